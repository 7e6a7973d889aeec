//! `proxyengine top`: a running engine on a terminal, each second anew.
//!
//! ```text
//!  engine ── /api/v1/status, once a second ─► Readings (the last two) ─┐
//!  keyboard ── keys ─► State (table, order, filter, place) ────────────┴► tables ─► screen ─► terminal
//! ```
//!
//! Here are the terminal, the clock and the thread that asks. What is shown is a function of readings and state
//! ([`tables`], [`screen`]), and so is what a key does ([`state`]).

mod readings;
mod screen;
mod state;
mod tables;
#[cfg(test)]
mod tests;

use std::io::{self, IsTerminal};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, TryRecvError};
use std::thread;
use std::time::Duration;

use clap::Args;
use control::http::Endpoint;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyEventKind};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use serde_json::Value;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use super::ctl::{SOCKET, ask};
use super::{Exit, complain};
use readings::Readings;
use state::{State, Then};

/// How often the engine is asked.
const PACE: Duration = Duration::from_secs(1);

/// For how long a key is waited for before an answer or a signal is looked at.
const TURN: Duration = Duration::from_millis(100);

/// What the keys do, for `--help` and the manual page.
pub(super) const KEYS: &str = "\
Keys: Tab, Shift-Tab next table, table before; arrows, PgUp, PgDn, Home, End move; F6, s or the right arrow sort by the next column, \
the left arrow by the one before, at first what is wrong is on top; r the other way round; / shows only rows with a word, Esc all; \
q, F10 or Ctrl-C quits.";

#[derive(Args, Debug)]
pub(super) struct TopArguments {
    /// The engine's socket: `[control] socket` of its configuration; or its `http` address.
    #[arg(long, value_name = "PATH", default_value = SOCKET)]
    socket: Endpoint,
}

pub(super) fn top(arguments: &TopArguments) -> Exit {
    match run(&arguments.socket) {
        Ok(()) => Exit::Success,
        Err(reason) => {
            complain(&format!("proxyengine top: {}: {reason}", arguments.socket));
            Exit::NotStarted
        }
    }
}

/// Until a key or a signal ends it.
fn run(socket: &Endpoint) -> Result<(), String> {
    if !io::stdin().is_terminal() || !io::stdout().is_terminal() {
        return Err("this needs a terminal; `proxyengine ctl show servers --watch` does not".to_owned());
    }
    // What is missing is said before the screen is taken.
    let first = status(socket)?;
    let is_over = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&is_over)).map_err(|error| error.to_string())?;
    }
    let answers = asked_again(socket.clone());
    // A panic gives the terminal back before it is told.
    let terminal = ratatui::try_init().map_err(|error| format!("the terminal: {error}"));
    let outcome = terminal.and_then(|terminal| show(terminal, Readings::new(first), &answers, &is_over));
    // It fails if the terminal is gone.
    let _ = ratatui::try_restore();
    outcome
}

fn status(socket: &Endpoint) -> Result<Value, String> {
    let answer = ask(socket, "GET", "status")?;
    serde_json::from_str(&answer).map_err(|error| format!("the answer is no JSON: {error}"))
}

/// Answers of a thread that asks each [`PACE`], up to the first failure.
fn asked_again(socket: Endpoint) -> Receiver<Result<Value, String>> {
    let (sender, receiver) = mpsc::sync_channel(1);
    thread::spawn(move || {
        let mut goes_on = true;
        while goes_on {
            thread::sleep(PACE);
            let answer = status(&socket);
            goes_on = answer.is_ok();
            goes_on &= sender.send(answer).is_ok();
        }
    });
    receiver
}

fn show(
    mut terminal: DefaultTerminal,
    mut readings: Readings,
    answers: &Receiver<Result<Value, String>>,
    is_over: &AtomicBool,
) -> Result<(), String> {
    let of_terminal = |error: io::Error| format!("the terminal: {error}");
    let mut state = State::default();
    let mut is_drawn = false;
    while !is_over.load(Ordering::Relaxed) {
        if !is_drawn {
            let drawn = terminal.draw(|frame| screen::draw(frame, &mut state, &readings));
            drawn.map_err(of_terminal)?;
            is_drawn = true;
        }
        if wait_for_key().map_err(of_terminal)? == Keyboard::Gone {
            break;
        }
        if event::poll(Duration::ZERO).map_err(of_terminal)? {
            match event::read().map_err(of_terminal)? {
                Event::Key(key) if key.kind != KeyEventKind::Release => {
                    if state.handle_key(key) == Then::Quit {
                        break;
                    }
                    is_drawn = false;
                }
                Event::Resize(..) => is_drawn = false,
                _ => {}
            }
        }
        match answers.try_recv() {
            Ok(answer) => {
                readings.take(answer?);
                is_drawn = false;
            }
            Err(TryRecvError::Empty) => {}
            Err(TryRecvError::Disconnected) => return Err("nobody asks any more".to_owned()),
        }
    }
    Ok(())
}

/// What became of a wait for a key.
#[derive(PartialEq, Eq)]
enum Keyboard {
    /// There is one, or something else may have happened.
    Look,
    /// The terminal was closed: reading it would say so without end.
    Gone,
}

/// Waits for a key, a signal, or the end of a [`TURN`].
fn wait_for_key() -> io::Result<Keyboard> {
    let stdin = io::stdin();
    let mut keys = [PollFd::new(&stdin, PollFlags::IN)];
    let turn = Timespec {
        tv_sec: 0,
        tv_nsec: TURN.subsec_nanos().into(),
    };
    match poll(&mut keys, Some(&turn)) {
        // The size has changed, perhaps.
        Ok(_) | Err(Errno::INTR) => {}
        Err(error) => return Err(error.into()),
    }
    let is_gone = keys[0]
        .revents()
        .intersects(PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL);
    Ok(if is_gone { Keyboard::Gone } else { Keyboard::Look })
}
