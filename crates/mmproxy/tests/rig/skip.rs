//! How a test says that it cannot run here; the library's own tests include it as well.

use std::fs::OpenOptions;
use std::io::Write;

/// The harness names the thread of each test after it.
pub(crate) fn test_name() -> String {
    std::thread::current().name().unwrap_or("mmproxy").to_owned()
}

/// Says that the test, or a part of it, cannot run here, where `build.sh test` collects it. With `PROXYENGINE_REQUIRE_RIG`
/// that is a failure.
pub(crate) fn skip(reason: &str) {
    let line = format!("{}: {reason}\n", test_name());
    assert!(
        std::env::var_os("PROXYENGINE_REQUIRE_RIG").is_none(),
        "not to be skipped here: {line}"
    );
    let file =
        std::env::var_os("PROXYENGINE_SKIP_FILE").and_then(|path| OpenOptions::new().append(true).open(path).ok());
    if file.is_none_or(|mut file| file.write_all(line.as_bytes()).is_err()) {
        eprint!("skipped: {line}");
    }
}
