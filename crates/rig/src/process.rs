//! Programs on the rig: run to the end within a time limit, or kept running until dropped.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};

use crate::RigError;

/// How much of a program's output an error quotes.
const QUOTED: usize = 4_000;
/// How often a wait looks again.
const POLL: Duration = Duration::from_millis(5);
/// How long a program may take to end after SIGTERM before it is killed.
const GRACE: Duration = Duration::from_secs(2);

/// What a command printed. It has ended with success.
#[derive(Debug)]
pub struct Output {
    /// Standard output.
    pub stdout: Vec<u8>,
    /// Standard error.
    pub stderr: Vec<u8>,
    /// From start to end.
    pub elapsed: Duration,
}

impl Output {
    /// Standard output as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }
}

/// A command line for messages.
fn line_of(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

/// The last part of `text` that an error quotes.
fn quoted(text: &[u8]) -> String {
    String::from_utf8_lossy(&text[text.len().saturating_sub(QUOTED)..])
        .trim_end()
        .to_owned()
}

/// Runs a command to its end, with `input` on its standard input.
///
/// # Errors
/// When it cannot be started, ends with an error, or has not ended after `limit`; then it is killed with all that it
/// started.
pub fn run(command: &mut Command, input: &[u8], limit: Duration) -> Result<Output, RigError> {
    let line = line_of(command);
    let start = Instant::now();
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()
        .map_err(RigError::io(format!("starting `{line}`")))?;
    let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let (status, stdout, stderr) = thread::scope(|scope| {
        // A program that does not read its input closes the pipe; that is its business.
        scope.spawn(move || stdin.map(|mut pipe| pipe.write_all(input)));
        let stdout = scope.spawn(move || read_all(stdout));
        let stderr = scope.spawn(move || read_all(stderr));
        let status = wait_until(&mut child, start + limit);
        // Whatever the program left running would hold the pipes open.
        signal_group(&child, Signal::KILL);
        if status.is_none() {
            let _ = child.wait();
        }
        let joined = |thread: thread::ScopedJoinHandle<'_, Vec<u8>>| thread.join().unwrap_or_default();
        (status, joined(stdout), joined(stderr))
    });
    let output = |out: &[u8], err: &[u8]| quoted(&[out, err].concat());
    match status {
        Some(status) if status.success() => Ok(Output {
            stdout,
            stderr,
            elapsed: start.elapsed(),
        }),
        Some(status) => Err(RigError::Failed {
            command: line,
            status,
            output: output(&stdout, &stderr),
        }),
        None => Err(RigError::TimedOut {
            what: format!("`{line}`"),
            limit,
            output: output(&stdout, &stderr),
        }),
    }
}

fn read_all(pipe: Option<impl Read>) -> Vec<u8> {
    let mut bytes = Vec::new();
    if let Some(mut pipe) = pipe {
        // What was read before an error is still worth showing.
        let _ = pipe.read_to_end(&mut bytes);
    }
    bytes
}

/// Waits for the child until `deadline`; `None` when it still runs then.
fn wait_until(child: &mut Child, deadline: Instant) -> Option<ExitStatus> {
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Some(status),
            Ok(None) if Instant::now() < deadline => thread::sleep(POLL),
            Ok(None) | Err(_) => return None,
        }
    }
}

fn pid_of(child: &Child) -> Option<Pid> {
    i32::try_from(child.id()).ok().and_then(Pid::from_raw)
}

/// Signals the child and all it started; they are a process group of their own. One that is gone is gone.
fn signal_group(child: &Child, signal: Signal) {
    if let Some(pid) = pid_of(child) {
        let _ = kill_process_group(pid, signal);
    }
}

/// Waits until `condition` holds, and says what it waited for when it does not within `limit`.
///
/// # Errors
/// [`RigError::TimedOut`].
pub fn wait_for(what: &str, limit: Duration, mut condition: impl FnMut() -> bool) -> Result<(), RigError> {
    let deadline = Instant::now() + limit;
    while !condition() {
        if Instant::now() >= deadline {
            return Err(RigError::TimedOut {
                what: what.to_owned(),
                limit,
                output: String::new(),
            });
        }
        thread::sleep(POLL);
    }
    Ok(())
}

/// A program that runs in the background. Dropping it ends it and everything it started.
#[derive(Debug)]
pub struct Process {
    child: Child,
    line: String,
    log: PathBuf,
    /// Set when the program is to outlive this value.
    released: bool,
}

impl Process {
    /// Starts a command; what it prints goes to the file `log`.
    ///
    /// # Errors
    /// When the log cannot be made or the program not be started.
    pub fn start(command: &mut Command, log: &Path) -> Result<Self, RigError> {
        let line = line_of(command);
        let open = || -> std::io::Result<(File, File)> {
            let file = File::create(log)?;
            Ok((file.try_clone()?, file))
        };
        let (stdout, stderr) = open().map_err(RigError::io(format!("creating {}", log.display())))?;
        let child = command
            .stdin(Stdio::null())
            .stdout(stdout)
            .stderr(stderr)
            .process_group(0)
            .spawn()
            .map_err(RigError::io(format!("starting `{line}`")))?;
        Ok(Self {
            child,
            line,
            log: log.to_owned(),
            released: false,
        })
    }

    /// The process id of the program.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Does it still run?
    pub fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// What it has printed so far, both streams.
    pub fn printed(&self) -> String {
        fs::read(&self.log)
            .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
            .unwrap_or_default()
    }

    /// Waits until a TCP socket in the program's namespace listens at each of `addresses`: bound to it, or to all addresses and its port.
    ///
    /// # Errors
    /// When the program ends before that, or `limit` passes.
    pub fn wait_for_listeners(&mut self, addresses: &[SocketAddr], limit: Duration) -> Result<(), RigError> {
        self.wait_for("listening", limit, |process| {
            let listening = process.listening();
            let is_there = |wanted: &SocketAddr| {
                listening.iter().any(|bound| {
                    let is_wildcard = bound.ip().is_unspecified() && (bound.is_ipv6() || wanted.is_ipv4());
                    bound.port() == wanted.port() && (is_wildcard || bound.ip() == wanted.ip())
                })
            };
            addresses.iter().all(is_there)
        })
    }

    /// Waits until `condition` holds of the running program.
    ///
    /// # Errors
    /// When it ends before that, or `limit` passes; with the end of its log.
    pub fn wait_for(
        &mut self,
        what: &str,
        limit: Duration,
        mut condition: impl FnMut(&Self) -> bool,
    ) -> Result<(), RigError> {
        let deadline = Instant::now() + limit;
        while !condition(self) {
            if let Ok(Some(status)) = self.child.try_wait() {
                return Err(RigError::Failed {
                    command: self.line.clone(),
                    status,
                    output: self.quoted_log(),
                });
            }
            if Instant::now() >= deadline {
                let what = format!("`{}`: {what}", self.line);
                return Err(RigError::TimedOut {
                    what,
                    limit,
                    output: self.quoted_log(),
                });
            }
            thread::sleep(POLL);
        }
        Ok(())
    }

    fn quoted_log(&self) -> String {
        quoted(self.printed().as_bytes())
    }

    /// What the listening sockets in the program's namespace are bound to.
    fn listening(&self) -> Vec<SocketAddr> {
        /// The state column of `/proc/net/tcp` (`TCP_LISTEN` in the kernel's `tcp_states.h`).
        const LISTEN: &str = "0A";
        let mut bound = Vec::new();
        for table in ["tcp", "tcp6"] {
            let text = fs::read_to_string(format!("/proc/{}/net/{table}", self.id())).unwrap_or_default();
            for row in text.lines().skip(1) {
                let columns: Vec<&str> = row.split_whitespace().collect();
                if let [_, local, _, LISTEN, ..] = columns[..] {
                    bound.extend(address_of(local));
                }
            }
        }
        bound
    }

    /// Sends a signal to the program itself.
    pub fn signal(&self, signal: Signal) {
        if let Some(pid) = pid_of(&self.child) {
            let _ = kill_process(pid, signal);
        }
    }

    /// Waits for the program to end by itself.
    ///
    /// # Errors
    /// When it has not after `limit`; then it goes on running until dropped.
    pub fn wait(&mut self, limit: Duration) -> Result<ExitStatus, RigError> {
        wait_until(&mut self.child, Instant::now() + limit).ok_or_else(|| RigError::TimedOut {
            what: format!("ending of `{}`", self.line),
            limit,
            output: self.quoted_log(),
        })
    }

    /// Lets the program outlive this value.
    pub fn release(mut self) {
        self.released = true;
    }
}

/// An address as `/proc/net/tcp` and `tcp6` print it: words of 32 bits in the machine's order, in hexadecimal digits, then the port.
fn address_of(printed: &str) -> Option<SocketAddr> {
    let (words, port) = printed.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let word = |at: usize| {
        let digits = words.get(at * 8..at * 8 + 8)?;
        Some(u32::from_str_radix(digits, 16).ok()?.to_ne_bytes())
    };
    let ip = if words.len() == 8 {
        IpAddr::from(word(0)?)
    } else {
        let words = [word(0)?, word(1)?, word(2)?, word(3)?];
        IpAddr::from(<[u8; 16]>::try_from(words.as_flattened()).ok()?)
    };
    Some(SocketAddr::new(ip, port))
}

impl Drop for Process {
    fn drop(&mut self) {
        if self.released {
            return;
        }
        signal_group(&self.child, Signal::TERM);
        if wait_until(&mut self.child, Instant::now() + GRACE).is_none() {
            signal_group(&self.child, Signal::KILL);
            let _ = self.child.wait();
        }
    }
}
