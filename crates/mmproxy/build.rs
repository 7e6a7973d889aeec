//! Builds the programs of inline mode, where the feature and clang are there; else says that mmproxy goes without.

use std::path::PathBuf;
use std::process::Command;

fn main() {
    println!("cargo::rustc-check-cfg=cfg(inline_built)");
    println!("cargo::rerun-if-changed=bpf");
    println!("cargo::rerun-if-env-changed=CLANG");
    if std::env::var_os("CARGO_FEATURE_INLINE").is_none() {
        return;
    }
    match compile() {
        Ok(()) => println!("cargo::rustc-cfg=inline_built"),
        Err(reason) => println!("cargo::warning=mmproxy is built without inline mode: {reason}"),
    }
}

fn compile() -> Result<(), String> {
    let variable = |name: &str| std::env::var(name).map_err(|error| format!("{name}: {error}"));
    let clang = std::env::var("CLANG").unwrap_or_else(|_| "clang".into());
    let object = PathBuf::from(variable("OUT_DIR")?).join("inline.bpf.o");
    // Where Debian keeps asm/types.h, which is the same for every target.
    let headers = format!("/usr/include/{}-linux-gnu", variable("CARGO_CFG_TARGET_ARCH")?);
    let own_headers = variable("DEP_BPF_INCLUDE")?;
    let here = variable("CARGO_MANIFEST_DIR")?;
    // What is written about lines must not say where this was built: packages are the same bytes everywhere.
    let renamed = |from: &str, to: &str| format!("-ffile-prefix-map={from}={to}");
    let output = Command::new(&clang)
        .args(["-target", "bpf", "-O2", "-g", "-mcpu=v3", "-Wall", "-Werror"])
        .args(["-I", &own_headers, "-I", &headers])
        .args([renamed(&own_headers, "include"), renamed(&here, ".")])
        .arg("-fdebug-compilation-dir=.")
        .args(["-c", "bpf/inline.bpf.c", "-o"])
        .arg(&object)
        .output()
        .map_err(|error| format!("{clang}: {error}"))?;
    if output.status.success() {
        Ok(())
    } else {
        // A fault in the programs is no reason to go without them.
        panic!("{clang}: {}", String::from_utf8_lossy(&output.stderr));
    }
}
