//! What an operator is shown of a running engine: what is wrong with it, and `top` on a terminal.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::num::NonZero;
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use proxyengine::config::Config;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};

use crate::running::{Running, wait_until, wait_until_running};
use crate::{GOOD, Place, code, stderr};

/// An engine that answers on a socket and keeps a journal, in a place of its own.
pub(crate) fn served() -> (Place, Running) {
    served_with("")
}

/// The same with more at the end of its configuration.
pub(crate) fn served_with(more: &str) -> (Place, Running) {
    let place = Place::new(GOOD);
    let socket = socket(&place);
    let config = fs::read_to_string(place.path("engine.toml")).expect("read");
    let journal = place.path("journal").display().to_string();
    let control = format!("[control]\nsocket = \"{socket}\"\njournal = \"{journal}\"\n[records]");
    let config = config.replace("[records]", &control) + more;
    fs::write(place.path("engine.toml"), config).expect("write");
    let program = Running::start(&place, &["engine.toml"]);
    wait_until_running(&place);
    (place, program)
}

/// `ctl capture start` of a client that never comes, to this file, as from a terminal: whoever runs the tests may ignore SIGHUP.
fn capture_nothing(place: &Place, file: &str) -> Child {
    let socket = socket(place);
    let mut command = Command::new("env");
    command
        .args(["--default-signal=HUP", env!("CARGO_BIN_EXE_proxyengine")])
        .args(["ctl", "--socket", &socket, "capture", "start"])
        .args(["--client", "192.0.2.250", "--file", file]);
    command.stdout(Stdio::piped()).spawn().expect("run the program")
}

/// While nothing is captured nothing is written, so a write cannot tell that the reader has gone.
#[test]
fn a_capture_ends_with_whoever_reads_it() {
    let (place, program) = served();
    for _ in 0..2 {
        let mut ctl = capture_nothing(&place, "-");
        let mut reader = ctl.stdout.take().expect("piped");
        let mut header = [0; 12];
        reader.read_exact(&mut header).expect("a section's header");
        assert_eq!(header[8..], 0x1a2b_3c4d_u32.to_ne_bytes());
        drop(reader);
        // Another one may begin, too.
        assert!(ctl.wait().expect("it ends").success());
    }
    program.signal("TERM");
    assert_eq!(program.wait().0, 0);
}

/// Clients are named in a capture, whoever could read what was in the file before.
#[test]
fn a_capture_is_its_owners_only() {
    let (place, program) = served();
    let file = place.path("captured.pcapng");
    fs::write(&file, "something else, which is longer than a header of a section").expect("write");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).expect("permissions");
    let mut ctl = capture_nothing(&place, file.to_str().expect("UTF-8"));
    wait_until("captured", &place, || {
        fs::read(&file).is_ok_and(|bytes| bytes.starts_with(&0x0a0d_0d0a_u32.to_ne_bytes()))
    });
    let metadata = fs::metadata(&file).expect("there");
    assert_eq!(metadata.permissions().mode() & 0o777, 0o600);
    // The terminal is closed: the file ends as it should.
    let hang_up = rustix::process::Pid::from_child(&ctl);
    rustix::process::kill_process(hang_up, rustix::process::Signal::HUP).expect("signal");
    assert!(ctl.wait().expect("it ends").success());
    program.signal("TERM");
    assert_eq!(program.wait().0, 0);
}

/// Of many prefixes with a wrong one behind them none is added, and of more than a request has room for, either.
#[test]
fn a_change_of_a_list_holds_as_a_whole_or_not_at_all() {
    let (place, program) = served_with("\n[[list]]\nname = \"noticed\"\n");
    let socket = socket(&place);
    let ctl = |arguments: &[&str], prefixes: &[String]| {
        let prefixes: Vec<&str> = prefixes.iter().map(String::as_str).collect();
        place.output(&[&["ctl", "--socket", &socket, "list"], arguments, &prefixes[..]].concat())
    };
    let prefixes = |count: u32| -> Vec<String> { (0..count).map(|n| format!("2001:db8:1000:{n:x}::/64")).collect() };
    let entries = || {
        let shown: serde_json::Value = serde_json::from_slice(&ctl(&["show", "--json"], &[]).stdout).expect("JSON");
        shown[0]["prefixes"].as_u64().expect("a number")
    };
    let mut wrong = prefixes(60);
    wrong.push("10.0.0.1/8".to_owned());
    assert_eq!((code(&ctl(&["add", "noticed"], &wrong)), entries()), (1, 0));
    assert_eq!((code(&ctl(&["add", "noticed"], &prefixes(1_000))), entries()), (1, 0));
    assert_eq!((code(&ctl(&["add", "noticed"], &prefixes(250))), entries()), (0, 250));
    assert_eq!((code(&ctl(&["del", "noticed"], &wrong)), entries()), (1, 250));
    assert_eq!((code(&ctl(&["del", "noticed"], &prefixes(60))), entries()), (0, 190));
    program.signal("TERM");
    assert_eq!(program.wait().0, 0);
}

#[test]
fn the_configuration_is_shown_as_a_file_that_says_the_same() {
    let (place, program) = served();
    let shown = place.output(&["ctl", "--socket", &socket(&place), "show", "config"]);
    let shown = String::from_utf8(shown.stdout).expect("text");
    let read = Config::parse(&shown, "shown").expect("a configuration");
    assert_eq!(read, Config::load(place.path("engine.toml")).expect("a configuration"));
    program.signal("TERM");
    assert_eq!(program.wait().0, 0);
}

#[test]
fn what_is_wrong_is_told_the_worst_first() {
    let (place, program) = served();
    let socket = socket(&place);
    let ctl = |arguments: &[&str]| {
        let output = place.output(&[&["ctl", "--socket", &socket], arguments].concat());
        assert_eq!(code(&output), 0, "{}", stderr(&output));
        String::from_utf8(output.stdout).expect("text")
    };
    let wrong = ctl(&["show", "wrong"]);
    assert!(wrong.contains("next hops have no MAC address"), "{wrong}");
    assert!(!wrong.contains("critical"), "{wrong}");
    ctl(&["drain", "server", "one"]);
    let wrong = ctl(&["show", "wrong"]);
    let lines: Vec<&str> = wrong.lines().skip(1).collect();
    assert!(
        lines[0].starts_with("critical") && lines[0].contains("pool pool: every server is passed over"),
        "{wrong}"
    );
    assert!(wrong.contains("server one: drained"), "{wrong}");
    ctl(&["drain", "engine"]);
    assert!(ctl(&["show", "wrong"]).contains("it takes no more connections"));
    program.signal("TERM");
    assert_eq!(program.wait().0, 0);
}

/// `top` on a pseudoterminal (pty(7)) of 80 columns and 24 lines.
struct OnTerminal {
    child: Child,
    /// What is typed goes here; nothing once the terminal is closed.
    keys: Option<File>,
    /// What the program writes is often only the cells that differ from those before, so a terminal reads it.
    screen: Arc<Mutex<vt100::Parser>>,
    /// Kept open so that the terminal outlives the program.
    terminal: Option<File>,
    is_closed: Arc<AtomicBool>,
    reader: Option<JoinHandle<()>>,
}

impl OnTerminal {
    fn start(place: &Place) -> Self {
        let keys = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).expect("a pseudoterminal");
        grantpt(&keys).expect("granted");
        unlockpt(&keys).expect("unlocked");
        let name = ptsname(&keys, Vec::new()).expect("its name");
        let path = name.to_str().expect("a path");
        let terminal = File::options().read(true).write(true).open(path).expect("opened");
        let size = Winsize {
            ws_row: 24,
            ws_col: 80,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        tcsetwinsize(&terminal, size).expect("a size");
        let end = || Stdio::from(terminal.try_clone().expect("a copy"));
        let child = place
            .command(&["top", "--socket", &socket(place)])
            .env("TERM", "xterm")
            .stdin(end())
            .stdout(end())
            .stderr(end())
            .spawn()
            .expect("start the program");
        let keys = File::from(keys);
        let [rows, columns] = [size.ws_row, size.ws_col].map(|size| NonZero::new(size).expect("some cells"));
        let screen = Arc::new(Mutex::new(vt100::Parser::new(rows, columns, 0)));
        let (mut read, shown) = (keys.try_clone().expect("a copy"), Arc::clone(&screen));
        let is_closed = Arc::new(AtomicBool::new(false));
        let closed = Arc::clone(&is_closed);
        let reader = std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            let turn = Timespec {
                tv_sec: 0,
                tv_nsec: 20_000_000,
            };
            while !closed.load(Ordering::Relaxed) {
                if poll(&mut [PollFd::new(&read, PollFlags::IN)], Some(&turn)) == Ok(0) {
                    continue;
                }
                let Ok(length) = read.read(&mut bytes) else { break };
                shown.lock().expect("a screen").process(&bytes[..length]);
            }
        });
        Self {
            child,
            keys: Some(keys),
            screen,
            terminal: Some(terminal),
            is_closed,
            reader: Some(reader),
        }
    }

    fn type_keys(&self, keys: &str) {
        let mut terminal = self.keys.as_ref().expect("a terminal");
        terminal.write_all(keys.as_bytes()).expect("typed");
    }

    /// Closes the terminal, as its window is closed.
    fn close(&mut self) {
        self.is_closed.store(true, Ordering::Relaxed);
        self.reader.take().expect("a reader").join().expect("its end");
        (self.keys, self.terminal) = (None, None);
    }

    /// What stands on the screen that is shown.
    fn shown(&self) -> String {
        self.screen.lock().expect("a screen").screen().contents()
    }

    /// Whether the alternate screen is shown, which leaves the first as it was.
    fn is_on_alternate_screen(&self) -> bool {
        self.screen.lock().expect("a screen").screen().alternate_screen()
    }

    fn wait_for(&self, what: &str, place: &Place) {
        wait_until(what, place, || self.shown().contains(what));
    }

    /// Whether lines are edited and echoed, as a shell has it.
    fn is_a_shells(&self) -> bool {
        let modes = tcgetattr(self.terminal.as_ref().expect("a terminal"))
            .expect("modes")
            .local_modes;
        modes.contains(LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG)
    }

    /// Its exit code, once the terminal is as it was: cooked, on its first screen, with its cursor.
    fn ended(mut self, place: &Place) -> (i32, String) {
        wait_until("ended", place, || self.child.try_wait().expect("wait").is_some());
        let status = self.child.wait().expect("wait");
        wait_until("on its first screen again", place, || !self.is_on_alternate_screen());
        let is_hidden = self.screen.lock().expect("a screen").screen().hide_cursor();
        assert!(self.is_a_shells() && !is_hidden, "{}", self.shown());
        (status.code().expect("a code"), self.shown())
    }
}

impl Drop for OnTerminal {
    fn drop(&mut self) {
        // Fails if it has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn socket(place: &Place) -> String {
    place.path("control").display().to_string()
}

#[test]
fn top_shows_the_engine_and_gives_the_terminal_back() {
    let (place, program) = served();
    for key in [Some("q"), Some("\x03"), None] {
        let top = OnTerminal::start(&place);
        for word in ["proxyengine", "failed/s", "have no MAC address"] {
            top.wait_for(word, &place);
        }
        assert!(top.is_on_alternate_screen() && !top.is_a_shells());
        // The next table; then the one of cores.
        top.type_keys("\t\t\t\t");
        top.wait_for("busy rounds/s", &place);
        match key {
            Some(key) => top.type_keys(key),
            None => {
                let pid = rustix::process::Pid::from_child(&top.child);
                rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("a signal");
            }
        }
        assert_eq!(top.ended(&place).0, 0);
    }
    let top = OnTerminal::start(&place);
    top.wait_for("failed/s", &place);
    program.signal("TERM");
    assert_eq!(program.wait().0, 0);
    let (code, shown) = top.ended(&place);
    assert!(code == 1 && shown.contains("does the engine run"), "{shown}");
}

#[test]
fn top_ends_when_its_terminal_is_closed() {
    let (place, program) = served();
    let mut top = OnTerminal::start(&place);
    top.wait_for("failed/s", &place);
    top.close();
    wait_until("ended", &place, || top.child.try_wait().expect("wait").is_some());
    program.signal("TERM");
    assert_eq!(program.wait().0, 0);
}

#[test]
fn top_says_what_is_missing() {
    let place = Place::new(GOOD);
    let top = OnTerminal::start(&place);
    let sentence = format!("proxyengine top: {}: No such file or directory", socket(&place));
    top.wait_for(&sentence, &place);
    assert!(!top.is_on_alternate_screen());
    let output = place.output(&["top", "--socket", &socket(&place)]);
    assert_eq!(code(&output), 1);
    assert!(stderr(&output).contains("needs a terminal"), "{}", stderr(&output));
}
