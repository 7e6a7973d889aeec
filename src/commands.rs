//! What a core is asked to do while it runs, and its answers: a ring to each core and one back.
//!
//! ```text
//!  control thread ─► Commander ── commands ──► CommandEnd ─► Proxy, between two batches
//!                        ▲                          │
//!                        └──────── answers ─────────┘
//! ```
//!
//! A core does a bounded part of a command in a round ([`LOOKED_AT_PER_ROUND`] places, [`PACE`] after the part before it and
//! [`FOR_SHOWN`] for each connection that this has shown), and answers only while the ring has room: it never waits, and allocates
//! nothing. Whoever asks waits for the answers, and gives up when a core does not come round; what comes too late is thrown away by its
//! number. After [`PARTS`] parts a visit is over, and its answer says where the next goes on: who asks is answered in time, however
//! many connections there are, and others have their turn.
//!
//! Cost for a core that nobody asks anything: a look at the ring in each round.

mod closing;

use std::ops::Range;
use std::time::{Duration, Instant as Time};

pub use closing::Closing;
use closing::Closings;
use e2d2::buffer::BufferPool;
use e2d2::time::Instant;
use rtrb::{Consumer, Producer, RingBuffer};
use splice::callbacks::SelectServer;
use splice::capture::Tap;
use splice::visit::{ConnectionFilter, ConnectionView, LOOKED_AT_PER_ROUND};
use splice::{NextHops, Output, Proxy};

/// Commands that wait for a core; who asks waits for the end of one before he sends the next.
const COMMANDS: usize = 4;

/// Answers that wait for who asked: those of some rounds, 320 bytes each.
const ANSWERS: usize = 4 * LOOKED_AT_PER_ROUND;

/// How often a core does a part of a command: some five microseconds of work each time, or one in ninety.
pub const PACE: Duration = Duration::from_micros(450);

/// How much later the next part is for each connection that a part shows: it is not in the cache, and crosses to another core.
pub const FOR_SHOWN: Duration = Duration::from_micros(5);

/// Parts of a visit, at most: 100 ms where all are shown.
const PARTS: u32 = 128;

/// How often who asked looks for answers.
const LOOK: Duration = Duration::from_micros(200);

/// What a core can be asked to do.
pub enum Command {
    /// Look for connections.
    Visit(Visit),
    /// Go on with this tap of a capture, or with none.
    Capture(Option<Box<Tap>>),
    /// End connections of what is out of service.
    Close(Closing),
}

/// Connections that are wanted, and for what.
#[derive(Clone, Debug)]
pub struct Visit {
    /// To be shown, or ended.
    pub purpose: Purpose,
    /// The places that are looked at, as far as a visit comes; those that never held a connection are left out.
    pub places: Range<u32>,
    /// Which.
    pub filter: ConnectionFilter,
    /// It is over when so many were shown.
    pub most: u32,
}

/// What becomes of a connection that is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// It is shown.
    Show,
    /// It is ended with a RST to both sides.
    End,
    /// It is captured from now on, if it is one of those that the core's tap is for; the filter is not asked.
    Capture,
}

/// What a core has done of a visit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Visited {
    /// The first place that was not looked at; none if there is no other.
    pub next: Option<u32>,
    /// Connections that were shown or ended.
    pub count: u32,
}

#[expect(
    clippy::large_enum_variant,
    reason = "it stands in the ring itself: a core allocates nothing"
)]
enum Answer {
    Connection(ConnectionView),
    Visited(Visited),
    Captured(Option<Box<Tap>>),
    Closing,
}

/// Why a core has not answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unanswered {
    /// It does not come round, or has ended.
    #[error("it does not answer")]
    Silent,
    /// Nothing can be asked of it.
    #[error("it takes no commands")]
    Deaf,
}

/// The end of who asks.
pub struct Commander {
    commands: Producer<(u64, Command)>,
    answers: Consumer<(u64, Answer)>,
    number: u64,
}

/// The core's end.
pub struct CommandEnd {
    commands: Consumer<(u64, Command)>,
    answers: Producer<(u64, Answer)>,
    current: Option<Current>,
    closings: Closings,
}

struct Current {
    number: u64,
    visit: Visit,
    count: u32,
    /// Parts that it may still have.
    parts: u32,
    due: Instant,
}

/// Both ends of the rings to and from one core.
pub fn command_ring() -> (Commander, CommandEnd) {
    let (to_core, commands) = RingBuffer::new(COMMANDS);
    let (to_asker, answers) = RingBuffer::new(ANSWERS);
    let commander = Commander {
        commands: to_core,
        answers,
        number: 0,
    };
    let end = CommandEnd {
        commands,
        answers: to_asker,
        current: None,
        closings: Closings::default(),
    };
    (commander, end)
}

impl Commander {
    /// Has the core do a visit, and waits for its end; the connections shown go to `each`.
    ///
    /// # Errors
    /// The core has not answered for `patience`. It may still do what it was asked.
    pub fn visit(
        &mut self,
        visit: Visit,
        patience: Duration,
        mut each: impl FnMut(ConnectionView),
    ) -> Result<Visited, Unanswered> {
        self.ask(Command::Visit(visit))?;
        loop {
            match self.answer(patience)? {
                Answer::Connection(view) => each(view),
                Answer::Visited(visited) => return Ok(visited),
                Answer::Captured(_) | Answer::Closing => {}
            }
        }
    }

    /// Has the core go on with another tap, or none, and returns the one before.
    ///
    /// # Errors
    /// The core has not answered for `patience`. It may still do what it was asked.
    pub fn capture(&mut self, tap: Option<Box<Tap>>, patience: Duration) -> Result<Option<Box<Tap>>, Unanswered> {
        self.ask(Command::Capture(tap))?;
        loop {
            if let Answer::Captured(before) = self.answer(patience)? {
                return Ok(before);
            }
        }
    }

    /// Has the core begin to close, and does not wait for the end.
    ///
    /// # Errors
    /// The core has not answered for `patience`. It may still do what it was asked.
    pub fn close(&mut self, closing: Closing, patience: Duration) -> Result<(), Unanswered> {
        self.ask(Command::Close(closing))?;
        while !matches!(self.answer(patience)?, Answer::Closing) {}
        Ok(())
    }

    fn ask(&mut self, command: Command) -> Result<(), Unanswered> {
        self.number += 1;
        // What was too late for those who asked for it.
        while self.answers.pop().is_ok() {}
        let command = (self.number, command);
        self.commands.push(command).map_err(|_| Unanswered::Silent)
    }

    /// The next answer to what was asked last.
    fn answer(&mut self, patience: Duration) -> Result<Answer, Unanswered> {
        let asked = Time::now();
        loop {
            match self.answers.pop() {
                Ok((number, answer)) if number == self.number => return Ok(answer),
                Ok(_) => {}
                Err(_) if asked.elapsed() >= patience => return Err(Unanswered::Silent),
                Err(_) => std::thread::sleep(LOOK),
            }
        }
    }
}

impl CommandEnd {
    /// Does a round's part of what the core was asked; whether that was anything.
    #[inline]
    pub(crate) fn work<P, S, N>(
        &mut self,
        now: Instant,
        proxy: &mut Proxy<P, S, N>,
        out: &mut impl Output<P::Buffer>,
    ) -> bool
    where
        P: BufferPool,
        S: SelectServer,
        N: NextHops,
    {
        let has_closed = self.closings.work(now, proxy, out);
        if self.current.is_none() && self.commands.is_empty() {
            return has_closed;
        }
        self.go_on(now, proxy, out) | has_closed
    }

    /// When there is something to do at the earliest.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        let current = self.current.as_ref().map(|current| current.due);
        current.into_iter().chain(self.closings.next_deadline()).min()
    }

    #[cold]
    fn go_on<P, S, N>(&mut self, now: Instant, proxy: &mut Proxy<P, S, N>, out: &mut impl Output<P::Buffer>) -> bool
    where
        P: BufferPool,
        S: SelectServer,
        N: NextHops,
    {
        // Without room for the answer a tap would be freed here.
        if self.current.is_none() && self.answers.slots() > 0 {
            match self.commands.pop() {
                Ok((number, Command::Visit(visit))) => {
                    self.current = Some(Current {
                        number,
                        visit,
                        count: 0,
                        parts: PARTS,
                        due: now,
                    });
                }
                Ok((number, Command::Capture(tap))) => {
                    let before = proxy.swap_tap(tap);
                    let _there_is_room = self.answers.push((number, Answer::Captured(before)));
                    return true;
                }
                Ok((number, Command::Close(closing))) => {
                    self.closings.begin(closing, now);
                    let _there_is_room = self.answers.push((number, Answer::Closing));
                    return true;
                }
                Err(_) => {}
            }
        }
        let Some(current) = &mut self.current else { return false };
        // Room for all that a part may have to say, and for its end.
        if now < current.due || self.answers.slots() <= LOOKED_AT_PER_ROUND {
            return false;
        }
        current.due = now + PACE;
        current.parts -= 1;
        let used = proxy.places_used();
        let Visit {
            purpose,
            places,
            filter,
            most,
        } = &mut current.visit;
        let mut rest = places.start..places.end.min(used);
        match purpose {
            Purpose::Capture => proxy.choose_open(&mut rest),
            Purpose::End => current.count += proxy.end_wanted(now, &mut rest, (filter, u32::MAX), out),
            Purpose::Show => proxy.look_at(now, &mut rest, filter, |found| {
                // There is room, also for the end behind it, as was seen above. A copy would wait for lines that the reader has.
                e2d2::send_in_place(&mut self.answers, || {
                    (current.number, Answer::Connection(proxy.view(found)))
                });
                current.due += FOR_SHOWN;
                current.count += 1;
                current.count < *most
            }),
        }
        places.start = rest.start;
        if rest.is_empty() || current.parts == 0 || (current.count >= *most && *purpose == Purpose::Show) {
            let next = (rest.start < used).then_some(rest.start);
            let count = current.count;
            let visited = Visited { next, count };
            let _ = self.answers.push((current.number, Answer::Visited(visited)));
            self.current = None;
        }
        true
    }
}
