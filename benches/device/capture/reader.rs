//! A server of `[control]`, as the engine starts it, and who captures over it, each on a thread of its own.

#![allow(dead_code, reason = "a module of two benches, each of which uses a part")]

use std::io::{self, Read};
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::{Duration, Instant};

use control::http::{Endpoint, Running, client};
use proxyengine::config::ControlConfig;
use proxyengine::engine::Watch;
use proxyengine::log_levels::LogLevels;
use proxyengine::status;

use crate::device::{BoxError, InlineProxy};

/// Bytes at the end of a file that hold its statistics.
const TAIL: usize = 16 << 10;

/// How fast a capture is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pace {
    /// As fast as it comes.
    Fast,
    /// For nine times as long as reading takes, nothing is read.
    Tenth,
    /// Takes nothing before the capture ends: measures the core's cost alone, without work on another CPU.
    Stalled,
}

/// What a file says of itself.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct File {
    pub(crate) frames: u64,
    pub(crate) lost: u64,
}

enum Order {
    Look(Watch),
    Begin(String, Pace),
}

enum Reply {
    Begun,
    Over(File),
}

/// Threads that serve and capture.
pub(crate) struct Reader {
    orders: Sender<Order>,
    replies: Receiver<Result<Reply, String>>,
    enough: Arc<Mutex<Option<client::Enough>>>,
    has_answered: Arc<AtomicBool>,
    _folder: tempfile::TempDir,
}

impl Reader {
    /// Threads on the CPUs that the caller's may use.
    pub(crate) fn start() -> Result<Reader, BoxError> {
        let folder = tempfile::tempdir()?;
        let endpoint = Endpoint::Unix(folder.path().join("control"));
        let (orders, taken) = mpsc::channel();
        let (tell, replies) = mpsc::channel();
        let enough: Arc<Mutex<Option<client::Enough>>> = Arc::default();
        let has_answered = Arc::new(AtomicBool::new(false));
        let (of_thread, answered) = (Arc::clone(&enough), Arc::clone(&has_answered));
        thread::spawn(move || {
            let mut running: Option<Running> = None;
            let say = |reply: io::Result<Reply>| {
                // Before the reply: who has that may give the next order, which stores false.
                answered.store(true, Ordering::Release);
                // The receiver is gone at the end only.
                let _ = tell.send(reply.map_err(|error| error.to_string()));
            };
            for order in taken {
                match order {
                    Order::Look(watch) => {
                        drop(running.take());
                        say(serve(&endpoint, watch)
                            .map(|server| running = Some(server))
                            .map(|()| Reply::Begun));
                    }
                    Order::Begin(query, pace) => match begin(&endpoint, &query, &of_thread) {
                        Ok(answer) => {
                            say(Ok(Reply::Begun));
                            wait_until_over(&of_thread, pace);
                            say(read(answer, pace).map(Reply::Over));
                        }
                        Err(error) => say(Err(error)),
                    },
                }
            }
        });
        Ok(Reader {
            orders,
            replies,
            enough,
            has_answered,
            _folder: folder,
        })
    }

    fn order(&self, order: Order) {
        self.has_answered.store(false, Ordering::Relaxed);
        // A thread that is gone answers nothing, which is seen.
        let _ = self.orders.send(order);
    }

    /// From now on this is what is served.
    pub(crate) fn look_at(&self, watch: Watch) -> Result<(), BoxError> {
        self.order(Order::Look(watch));
        self.answered()
    }

    /// Asks for a capture.
    pub(crate) fn begin(&self, query: &str, pace: Pace) {
        self.order(Order::Begin(query.to_owned(), pace));
    }

    /// Ends it.
    pub(crate) fn end(&self) {
        self.has_answered.store(false, Ordering::Relaxed);
        if let Some(enough) = self.enough.lock().unwrap_or_else(PoisonError::into_inner).take() {
            // If the server is gone, its file ends with an error.
            let _ = enough.say();
        }
    }

    /// Whether there is an answer to what was asked last.
    pub(crate) fn has_answered(&self) -> bool {
        self.has_answered.load(Ordering::Acquire)
    }

    /// Has the core come round until there is one: it has to take a tap, and to give it back.
    pub(crate) fn turn_until_answered(&self, inline: &mut InlineProxy) {
        let end = inline.counter.now() + Duration::from_secs(60);
        inline.run_until(end, |_| self.has_answered());
    }

    pub(crate) fn answered(&self) -> Result<(), BoxError> {
        self.replies.recv()??;
        Ok(())
    }

    /// The file of the capture that has ended.
    pub(crate) fn finished(&self) -> Result<File, BoxError> {
        match self.replies.recv()?? {
            Reply::Over(file) => Ok(file),
            Reply::Begun => Err("a capture that has begun twice".into()),
        }
    }
}

fn serve(endpoint: &Endpoint, watch: Watch) -> io::Result<Running> {
    let config = ControlConfig {
        socket: Some(endpoint.clone()),
        ..ControlConfig::default()
    };
    let server = status::listen(&config).map_err(|(_, error)| error)?;
    let server = server.ok_or(io::ErrorKind::NotFound)?;
    status::serve(server, watch, LogLevels::default(), None)
}

fn begin(endpoint: &Endpoint, query: &str, enough: &Mutex<Option<client::Enough>>) -> io::Result<client::Streamed> {
    let (mut answer, say) = client::stream(endpoint, "POST", &format!("/api/v1/capture?{query}"))?;
    if answer.status != 200 {
        let mut sentence = String::new();
        answer.read_to_string(&mut sentence)?;
        return Err(io::Error::other(sentence));
    }
    *enough.lock().unwrap_or_else(PoisonError::into_inner) = Some(say);
    Ok(answer)
}

fn wait_until_over(enough: &Mutex<Option<client::Enough>>, pace: Pace) {
    while pace == Pace::Stalled && enough.lock().unwrap_or_else(PoisonError::into_inner).is_some() {
        thread::sleep(Duration::from_millis(5));
    }
}

fn read(mut answer: client::Streamed, pace: Pace) -> io::Result<File> {
    let mut bytes = vec![0; 64 << 10];
    let mut tail: Vec<u8> = Vec::new();
    loop {
        let started = Instant::now();
        let count = answer.read(&mut bytes)?;
        if count == 0 {
            return Ok(told_in(&tail));
        }
        tail.extend_from_slice(&bytes[..count]);
        let surplus = tail.len().saturating_sub(TAIL);
        tail.drain(..surplus);
        if pace == Pace::Tenth {
            thread::sleep(9 * started.elapsed().max(Duration::from_micros(20)));
        }
    }
}

/// The sums of the statistics blocks with which a file ends, read from behind: a block has its length at its end, too.
fn told_in(mut tail: &[u8]) -> File {
    let word = |bytes: &[u8], at: usize| {
        bytes
            .get(at..)
            .and_then(|rest| rest.first_chunk())
            .map(|four| u32::from_le_bytes(*four))
    };
    let mut file = File::default();
    while let Some(length) = tail.len().checked_sub(4).and_then(|at| word(tail, at)) {
        let Some(at) = tail.len().checked_sub(length as usize).filter(|_| length > 0) else {
            break;
        };
        let block = &tail[at..];
        if word(block, 0) != Some(5) {
            break;
        }
        let mut options = block.get(20..).unwrap_or_default();
        let (mut received, mut lost) = (0, 0);
        while let Some(head) = word(options, 0) {
            let (code, size) = (head & 0xffff, (head >> 16) as usize);
            let value = options
                .get(4..12)
                .and_then(|rest| rest.first_chunk())
                .map_or(0, |eight| u64::from_le_bytes(*eight));
            match code {
                0 => break,
                4 => received = value,
                5 => lost = value,
                _ => {}
            }
            options = options.get(4 + size.next_multiple_of(4)..).unwrap_or_default();
        }
        file.frames += received - lost;
        file.lost += lost;
        tail = &tail[..at];
    }
    file
}
