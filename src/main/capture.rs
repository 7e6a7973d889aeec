//! `proxyengine ctl capture start`: takes a capture from a running engine and writes it where its user says, with that user's rights.

use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::sync::Arc;
use std::thread;

use clap::{Args, Subcommand};
use control::http::{Endpoint, client};
use rustix::event::{PollFd, PollFlags, poll};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::ctl::query;

/// Clients are named in it.
const MODE: u32 = 0o600;

#[derive(Subcommand, Debug)]
pub(super) enum CaptureCommand {
    /// Capture both legs of connections, with what the engine decides about each frame, until Ctrl-C: those for which all is so
    /// that is said here.
    Start(Box<CaptureArguments>),
}

#[derive(Args, Debug)]
pub(super) struct CaptureArguments {
    /// Of clients with this address or prefix.
    #[arg(long, value_name = "PREFIX")]
    client: Option<String>,
    /// Of this listener.
    #[arg(long, value_name = "NAME")]
    listener: Option<String>,
    /// For which this server is called.
    #[arg(long, value_name = "NAME")]
    server: Option<String>,
    /// Whose server this rule of the listener has chosen: by its name, or its place from 0.
    #[arg(long, value_name = "RULE", requires = "listener")]
    rule: Option<String>,
    /// One of so many.
    #[arg(long, value_name = "1/N")]
    sample: Option<String>,
    /// That end for this cause, as records name it; or `reset`, `timeout`. What came before is kept until then.
    #[arg(long, value_name = "CAUSE")]
    cause: Vec<String>,
    /// Whose server answered later than this behind the first byte of the client, or not at all. What came before is kept until
    /// their end.
    #[arg(long, value_name = "TIME")]
    slower_than: Option<String>,
    /// Of those that are kept, so many frames with what came of each: the last.
    #[arg(long, value_name = "NUMBER")]
    last: Option<u16>,
    /// Bytes of a frame that are copied at most.
    #[arg(long, value_name = "BYTES")]
    snaplen: Option<u16>,
    /// Copy what clients and servers say, too, not only headers.
    #[arg(long)]
    payload: bool,
    /// End after this time.
    #[arg(long, value_name = "TIME")]
    duration: Option<String>,
    /// End after so many frames.
    #[arg(long, value_name = "NUMBER")]
    count: Option<u64>,
    /// The pcapng file, for its owner only; `-` is the standard output.
    #[arg(long, value_name = "FILE")]
    file: String,
}

impl CaptureArguments {
    /// The path that asks for it.
    fn path(&self) -> String {
        let said = [
            ("client", self.client.clone()),
            ("listener", self.listener.clone()),
            ("server", self.server.clone()),
            ("rule", self.rule.clone()),
            ("sample", self.sample.clone()),
            ("slower_than", self.slower_than.clone()),
            ("last", self.last.map(|last| last.to_string())),
            ("snaplen", self.snaplen.map(|snaplen| snaplen.to_string())),
            ("payload", self.payload.then(String::new)),
            ("duration", self.duration.clone()),
            ("count", self.count.map(|count| count.to_string())),
        ];
        let said = said.into_iter().filter_map(|(name, value)| Some((name, value?)));
        let causes = self.cause.iter().map(|cause| ("cause", cause.clone()));
        let pairs: Vec<(&str, String)> = said.chain(causes).collect();
        query("/api/v1/capture", &pairs)
    }
}

pub(super) fn capture(socket: &Endpoint, command: &CaptureCommand) -> Result<(), String> {
    let CaptureCommand::Start(arguments) = command;
    let (mut answer, enough) =
        client::stream(socket, "POST", &arguments.path()).map_err(|error| super::ctl::unanswered(&error))?;
    if answer.status != 200 {
        let mut sentence = String::new();
        // Half a sentence is better than none.
        let _ = answer.read_to_string(&mut sentence);
        return Err(format!("{} {}", answer.status, sentence.trim_end()));
    }
    // A file is made only for a capture that has begun.
    let file = match arguments.file.as_str() {
        "-" => None,
        path => Some(created(path).map_err(|error| format!("{path}: {error}"))?),
    };
    let enough = Arc::new(enough);
    end_on_signals(Arc::clone(&enough)).map_err(|error| format!("no signal can be waited for: {error}"))?;
    match file {
        Some(mut file) => copy(&mut answer, &mut file),
        None => {
            end_with_reader(enough).map_err(|error| format!("the standard output cannot be watched: {error}"))?;
            copy(&mut answer, &mut io::stdout().lock())
        }
    }
}

/// An empty file for its owner only, whoever could read what was there before. A file of another owner is left as it is, as that one
/// could read the capture.
fn created(path: &str) -> io::Result<File> {
    let mut options = OpenOptions::new();
    let file = options.write(true).create(true).truncate(false).mode(MODE).open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Ok(file);
    }
    if metadata.uid() != rustix::process::geteuid().as_raw() {
        return Err(io::Error::other("it is there already and belongs to another user"));
    }
    if metadata.permissions().mode() & 0o777 != MODE {
        file.set_permissions(Permissions::from_mode(MODE))?;
    }
    file.set_len(0)?;
    Ok(file)
}

/// Has the engine end the capture when whoever reads the standard output has gone, also while nothing is captured.
fn end_with_reader(enough: Arc<client::Enough>) -> io::Result<()> {
    let output: OwnedFd = io::stdout().as_fd().try_clone_to_owned()?;
    let wait = move || {
        if has_no_reader(output.as_fd()) {
            // The engine has gone, too.
            let _ = enough.say();
        }
    };
    thread::Builder::new().name("reader".to_owned()).spawn(wait).map(drop)
}

/// Waits until nobody reads any more from a pipe or a socket. False where that cannot be told.
fn has_no_reader(output: BorrowedFd<'_>) -> bool {
    loop {
        // Only errors are waited for.
        let mut watched = [PollFd::new(&output, PollFlags::empty())];
        match poll(&mut watched, None) {
            Ok(_) => return watched[0].revents().intersects(PollFlags::ERR | PollFlags::HUP),
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => return false,
        }
    }
}

/// The first signal has the engine end the file, the second ends this program.
fn end_on_signals(enough: Arc<client::Enough>) -> io::Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    if !ignores_hang_ups() {
        signals.add_signal(SIGHUP)?;
    }
    let wait = move || {
        for (count, signal) in signals.forever().enumerate() {
            if count > 0 || enough.say().is_err() {
                signal_hook::low_level::exit(128 + signal);
            }
        }
    };
    thread::Builder::new().name("signals".to_owned()).spawn(wait).map(drop)
}

/// Whether this program was begun so that it goes on when its terminal is closed: nohup(1).
fn ignores_hang_ups() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    ignored.is_some_and(|mask| mask >> (SIGHUP - 1) & 1 == 1)
}

fn copy(from: &mut impl Read, to: &mut impl Write) -> Result<(), String> {
    let mut bytes = vec![0; 64 << 10];
    loop {
        match from.read(&mut bytes) {
            Ok(0) => return Ok(()),
            // What has come is what a reader waits for.
            Ok(count) => match to.write_all(&bytes[..count]).and_then(|()| to.flush()) {
                Ok(()) => {}
                // Who read it has had enough.
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
                Err(error) => return Err(format!("the capture cannot be written: {error}")),
            },
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(format!("the capture has broken off: {error}")),
        }
    }
}
