//! An engine that looks into every connection: it counts lines, blots out a word in place, and changes the length of both
//! directions, as a program.
//!
//! ```text
//! cargo run --release --example inspect_payload -- FILE [--report FILE]
//! ```
//!
//! FILE is an engine's configuration, such as `config/inspect_payload.toml`; its rules choose the servers. Its ports are
//! opened, so this needs root, and DPDK. SIGINT or SIGTERM ends it: open connections may go on for the configured time,
//! the rest is reset, and the counters are printed.
//!
//! What is done to the bytes, line by line or not, however they are cut:
//!
//! | direction | bytes | become | so that |
//! |---|---|---|---|
//! | to the server | `\r` | nothing | it is shorter by the number of `\r` |
//! | to the client | `\n` | `\r\n` | it is longer by the number of `\n` |
//! | both | `secret` | `******` | the length stays: in place where nothing else changes |
//!
//! A word may be torn by the end of a segment. So bytes that could be its beginning are kept back in the context of the
//! connection, and go on with the next bytes, or at the end.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use proxyengine::callbacks::{ConnectionInfo, InspectPayload, NoRoom, Output, Payload, Towards, Verdict, inspected};
use proxyengine::config::{Config, CoreId};
use proxyengine::engine::Engine;
use proxyengine::selectors::RuleSelector;
use signal_hook::consts::{SIGINT, SIGTERM};

/// The word that nobody is to see.
const WORD: &[u8] = b"secret";

/// What all cores have seen together.
#[derive(Debug, Default)]
pub struct Totals {
    connections: AtomicU64,
    lines_to_server: AtomicU64,
    lines_to_client: AtomicU64,
    words: AtomicU64,
}

/// One core's inspector. It keeps no state of its own: what belongs to a connection is in its [`Context`].
pub struct LineEnds {
    totals: Arc<Totals>,
}

/// What is remembered of one connection.
#[derive(Default)]
pub struct Context {
    to_server: Stream,
    to_client: Stream,
}

/// What is remembered of one direction.
#[derive(Default)]
struct Stream {
    /// The last bytes, still kept back, are so many of the word's first.
    begun: usize,
    lines: u64,
    words: u64,
}

impl InspectPayload for LineEnds {
    type Context = Context;

    fn open(&mut self, _connection: &ConnectionInfo) -> Option<Context> {
        Some(Context::default())
    }

    fn inspect(&mut self, context: &mut Context, payload: &mut Payload<'_>) -> Verdict {
        let towards = payload.towards();
        let stream = match towards {
            Towards::Server => &mut context.to_server,
            Towards::Client => &mut context.to_client,
        };
        if stream.begun == 0 && stream.blot_in_place(towards, payload) {
            return Verdict::Pass;
        }
        let is_last = payload.is_last();
        let (bytes, output) = payload.replace();
        match stream.rewrite(towards, bytes, is_last, output) {
            Ok(()) => Verdict::Replace,
            // A payload of nothing but line ends grows to twice its length, which is more than is guaranteed only beyond
            // 8 KiB at once.
            Err(NoRoom { .. }) => Verdict::Reject,
        }
    }

    fn close(&mut self, context: Context) {
        let Context { to_server, to_client } = context;
        self.totals.connections.fetch_add(1, Ordering::Relaxed);
        self.totals
            .lines_to_server
            .fetch_add(to_server.lines, Ordering::Relaxed);
        self.totals
            .lines_to_client
            .fetch_add(to_client.lines, Ordering::Relaxed);
        self.totals
            .words
            .fetch_add(to_server.words + to_client.words, Ordering::Relaxed);
    }
}

impl Stream {
    /// Blots out whole words, if that is all there is to do; otherwise returns false and has done nothing.
    fn blot_in_place(&mut self, towards: Towards, payload: &mut Payload<'_>) -> bool {
        let changes_length = match towards {
            Towards::Server => b'\r',
            Towards::Client => b'\n',
        };
        let bytes = payload.bytes();
        let ends_in_word = !payload.is_last() && (1..WORD.len()).any(|begun| bytes.ends_with(&WORD[..begun]));
        if ends_in_word || bytes.contains(&changes_length) {
            return false;
        }
        self.lines += bytes.iter().filter(|byte| **byte == b'\n').count() as u64;
        let mut from = 0;
        while let Some(at) = find_word(payload.bytes(), from) {
            payload.bytes_mut()[at..at + WORD.len()].fill(b'*');
            self.words += 1;
            from = at + WORD.len();
        }
        true
    }

    /// Writes what becomes of `bytes`, and of what was kept back before them.
    fn rewrite(
        &mut self,
        towards: Towards,
        bytes: &[u8],
        is_last: bool,
        output: &mut Output<'_>,
    ) -> Result<(), NoRoom> {
        for &byte in bytes {
            if byte == WORD[self.begun] {
                self.begun += 1;
                if self.begun == WORD.len() {
                    output.write(&[b'*'; WORD.len()])?;
                    self.words += 1;
                    self.begun = 0;
                }
                continue;
            }
            // No beginning of the word comes twice in it, so what was begun is over; this byte may begin another.
            output.write(&WORD[..self.begun])?;
            self.begun = usize::from(byte == WORD[0]);
            if self.begun == 0 {
                self.write_byte(towards, byte, output)?;
            }
        }
        if is_last {
            output.write(&WORD[..self.begun])?;
            self.begun = 0;
        }
        Ok(())
    }

    fn write_byte(&mut self, towards: Towards, byte: u8, output: &mut Output<'_>) -> Result<(), NoRoom> {
        self.lines += u64::from(byte == b'\n');
        match (towards, byte) {
            (Towards::Server, b'\r') => Ok(()),
            (Towards::Client, b'\n') => output.write(b"\r\n"),
            _ => output.write(&[byte]),
        }
    }
}

/// Where the word is next, from `from` on.
fn find_word(bytes: &[u8], from: usize) -> Option<usize> {
    let rest = bytes.get(from..)?;
    let at = rest.windows(WORD.len()).position(|window| window == WORD)?;
    Some(from + at)
}

fn main() -> ExitCode {
    env_logger::Builder::from_env(env_logger::Env::default().default_filter_or("info")).init();
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let file = arguments.next().ok_or("which configuration?")?;
    let report = match (arguments.next().as_deref(), arguments.next()) {
        (None, _) => None,
        (Some("--report"), Some(path)) => Some(path),
        _ => return Err("usage: inspect_payload FILE [--report FILE]".into()),
    };
    let config = Config::load(file)?;
    let ended = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&ended))?;
    }

    // The configuration's rules choose the server; each core gets its own copy of them, and its own inspector.
    let rules = RuleSelector::new(&config);
    let totals = Arc::new(Totals::default());
    let inspectors = {
        let totals = Arc::clone(&totals);
        move |_: CoreId| LineEnds {
            totals: Arc::clone(&totals),
        }
    };
    let drain = config.engine().drain;
    let mut engine = Engine::start(config, inspected(rules, inspectors))?;
    while !ended.load(Ordering::Relaxed) && engine.failures().is_empty() {
        std::thread::sleep(Duration::from_millis(100));
    }
    engine.drain(drain, || false);
    let outcome = engine.shutdown();
    println!("{}", outcome.report);
    println!("{totals:?}");
    if let Some(path) = report {
        outcome.report.write_json(path.as_ref())?;
    }
    match outcome.failures.first() {
        Some(failure) => Err(failure.clone().into()),
        None => Ok(()),
    }
}
