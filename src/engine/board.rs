//! What a worker shows of itself: numbers in memory that any thread reads, whether the worker goes on or not.
//!
//! The worker writes them every [`PACE`]: a report that it fills in place, number by number, with relaxed stores to cache
//! lines that only it writes. A reader takes no part in that: it may come a thousand times a second or not at all, and of a
//! worker that hangs it sees the last numbers and how old they are. The numbers of one writing are seen together, unless the
//! reader is interrupted by writing after writing: then those of two.
//!
//! Cost for the worker, each [`PACE`]: its counters are collected, and stored one by one, some four hundred, and six for each of
//! [`SERVERS_AT_ONCE`] servers, which take turns. It is the same whatever the load, however many servers there are, and whoever
//! looks.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::time::Duration;

use e2d2::time::Instant;
use splice::tally::Tally;

use crate::report::{CoreReport, CoreServer, ReportedServerCaps};

/// How often a worker writes.
pub(super) const PACE: Duration = Duration::from_millis(5);

/// Servers that one writing renews. A server costs some 70 ns (bench cockpit, 1 000 servers), so all of these 5 µs: a tenth of
/// the longest that a round may take. Of 1 000 servers each is renewed every 80 ms.
pub(super) const SERVERS_AT_ONCE: usize = 64;

/// How often a reader begins again because the numbers changed under it.
const ATTEMPTS: usize = 1000;

/// A cache line of numbers.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Line([AtomicU64; 8]);

/// The numbers of one worker.
#[derive(Debug)]
pub(super) struct Board {
    /// What the numbers are; its own are those of the start.
    shape: CoreReport,
    /// Odd while the worker writes.
    turn: Turn,
    lines: Box<[Line]>,
    /// The number with which the first server begins; all servers are behind the rest.
    servers_at: usize,
    /// What the worker counts in the open, connection by connection.
    tally: Option<Arc<Tally>>,
}

#[derive(Debug, Default)]
#[repr(align(64))]
struct Turn(AtomicU64);

impl Board {
    /// For reports that have the same names in the same order as this one.
    pub(super) fn new(shape: CoreReport, tally: Option<Arc<Tally>>) -> Self {
        let servers_at = numbers(&shape, Instant::ZERO).count();
        let count = servers_at + shape.servers.len() * NUMBERS_OF_SERVER;
        let board = Self {
            turn: Turn::default(),
            lines: (0..count.div_ceil(8)).map(|_| Line::default()).collect(),
            servers_at,
            shape,
            tally,
        };
        board.write(&board.shape, 0..board.shape.servers.len(), Instant::ZERO);
        board
    }

    /// Writes a report, but of its servers only these; a range beyond them has none. Only the worker does, and at its end the
    /// thread that it has ended on.
    pub(super) fn write(&self, report: &CoreReport, servers: Range<usize>, now: Instant) {
        let turn = self.turn.0.load(Ordering::Relaxed);
        self.turn.0.store(turn.wrapping_add(1), Ordering::Relaxed);
        // No number is seen before the odd turn, and none after the even one.
        fence(Ordering::Release);
        let place = self.servers_at + servers.start * NUMBERS_OF_SERVER;
        let servers = report.servers.get(servers).unwrap_or_default();
        let numbers = (0..).zip(numbers(report, now));
        for (place, number) in numbers.chain((place..).zip(servers.iter().flat_map(numbers_of))) {
            if let Some(cell) = self.cell(place) {
                cell.store(number, Ordering::Relaxed);
            }
        }
        self.turn.0.store(turn.wrapping_add(2), Ordering::Release);
    }

    /// What the worker counts by listener, pool and server, if it does.
    pub(super) fn tally(&self) -> Option<Arc<Tally>> {
        self.tally.clone()
    }

    /// The turn that is complete once everything is written that is so now.
    pub(super) fn next_turn(&self) -> u64 {
        let turn = self.turn.0.load(Ordering::Acquire);
        let writings = self.shape.servers.len().div_ceil(SERVERS_AT_ONCE).max(1) as u64;
        // What is being written now may have been begun before.
        turn.wrapping_add(2 * writings) + turn % 2
    }

    /// Whether that turn is complete.
    pub(super) fn has_reached(&self, turn: u64) -> bool {
        self.turn.0.load(Ordering::Acquire) >= turn
    }

    /// When the report written last was: without the report, which is more work to read.
    pub(super) fn written_at(&self) -> Instant {
        self.cell(0)
            .map_or(Instant::ZERO, |cell| Instant::from_nanos(cell.load(Ordering::Relaxed)))
    }

    /// The report written last, and when that was.
    pub(super) fn read(&self) -> (CoreReport, Instant) {
        let mut report = self.shape.clone();
        let mut at = Instant::ZERO;
        for _ in 0..ATTEMPTS {
            let before = self.turn.0.load(Ordering::Acquire);
            at = self.read_into(&mut report);
            fence(Ordering::Acquire);
            if before.is_multiple_of(2) && self.turn.0.load(Ordering::Relaxed) == before {
                break;
            }
            std::hint::spin_loop();
        }
        (report, at)
    }

    fn read_into(&self, report: &mut CoreReport) -> Instant {
        let cells = self.lines.iter().flat_map(|line| &line.0);
        let mut numbers = cells.map(|cell| cell.load(Ordering::Relaxed));
        let mut next = || numbers.next().unwrap_or(0);
        let at = Instant::from_nanos(next());
        report.busy_rounds = next();
        report.idle_rounds = next();
        report.busy_cycles = next();
        report.busy_ns = next();
        report.longest_round_ns = next();
        report.connections_open = next();
        for count in report.counters.counts_mut() {
            *count = next();
        }
        for server in &mut report.servers {
            *server = server_of(&mut next);
        }
        at
    }

    fn cell(&self, number: usize) -> Option<&AtomicU64> {
        self.lines.get(number / 8)?.0.get(number % 8)
    }
}

/// A report as numbers, in the order in which they are read again, but for its servers, which are behind them.
fn numbers(report: &CoreReport, now: Instant) -> impl Iterator<Item = u64> + '_ {
    let fixed = [
        now.as_nanos(),
        report.busy_rounds,
        report.idle_rounds,
        report.busy_cycles,
        report.busy_ns,
        report.longest_round_ns,
        report.connections_open,
    ];
    fixed.into_iter().chain(report.counters.counts())
}

const NUMBERS_OF_SERVER: usize = 6;

/// A server's part of it.
fn numbers_of(server: &CoreServer) -> [u64; NUMBERS_OF_SERVER] {
    [
        packed(server.caps),
        server.open,
        server.calls,
        server.failures,
        u64::from(server.ejected_by_failure) << 32 | u64::from(server.ejected_by_silence),
        server.since_ms << 1 | u64::from(server.is_out),
    ]
}

fn server_of(next: &mut impl FnMut() -> u64) -> CoreServer {
    let (caps, open, calls, failures) = (unpacked(next()), next(), next(), next());
    let (ejected, state) = (next(), next());
    CoreServer {
        caps,
        open,
        calls,
        failures,
        ejected_by_failure: (ejected >> 32) as u32,
        ejected_by_silence: ejected as u32,
        is_out: state & 1 == 1,
        since_ms: state >> 1,
    }
}

const KNOWN: u64 = 1 << 63;
const SCALED: u64 = 1 << 62;
const SACK: u64 = 1 << 61;
const TIMESTAMPS: u64 = 1 << 60;

fn packed(abilities: Option<ReportedServerCaps>) -> u64 {
    let Some(of) = abilities else { return 0 };
    let flag = |is_set: bool, flag: u64| if is_set { flag } else { 0 };
    KNOWN
        | flag(of.window_scale.is_some(), SCALED)
        | flag(of.sack, SACK)
        | flag(of.timestamps, TIMESTAMPS)
        | u64::from(of.window_scale.unwrap_or(0)) << 32
        | u64::from(of.window) << 16
        | u64::from(of.mss)
}

fn unpacked(word: u64) -> Option<ReportedServerCaps> {
    (word & KNOWN != 0).then_some(ReportedServerCaps {
        mss: word as u16,
        window: (word >> 16) as u16,
        window_scale: (word & SCALED != 0).then_some((word >> 32) as u8),
        sack: word & SACK != 0,
        timestamps: word & TIMESTAMPS != 0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::CounterGroup;
    use std::sync::atomic::AtomicBool;
    use std::thread;

    fn report(number: u64) -> CoreReport {
        let mut report = CoreReport {
            core: 3,
            busy_rounds: number,
            connections_open: number,
            servers: vec![CoreServer::default(); 3],
            ..CoreReport::default()
        };
        let names = ["a", "b", "c", "d", "e", "f", "g", "h"];
        report
            .counters
            .add("g", &CounterGroup::new(names.map(|name| (name, number))));
        report
    }

    #[test]
    fn what_is_written_is_read() {
        let board = Board::new(report(0), None);
        let mut written = report(7);
        let abilities = ReportedServerCaps {
            mss: 1460,
            window_scale: Some(0),
            sack: true,
            timestamps: false,
            window: 65_535,
        };
        let other = ReportedServerCaps {
            mss: 65_535,
            window_scale: None,
            timestamps: true,
            ..ReportedServerCaps::default()
        };
        let server = |caps| CoreServer {
            caps,
            ..CoreServer::default()
        };
        let busy = CoreServer {
            open: 1,
            calls: 2,
            failures: 3,
            ejected_by_failure: 4,
            ejected_by_silence: u32::MAX,
            is_out: true,
            since_ms: 6,
            ..server(None)
        };
        written.servers = vec![server(Some(abilities)), busy, server(Some(other))];
        let turn = board.next_turn();
        assert!(!board.has_reached(turn));
        board.write(&written, 0..3, Instant::from_millis(9));
        assert!(board.has_reached(turn));
        let (read, at) = board.read();
        assert_eq!((at, board.written_at()), (Instant::from_millis(9), at));
        assert_eq!(read.counters, written.counters);
        assert_eq!(read.servers, written.servers);
        assert_eq!((read.core, read.busy_rounds, read.connections_open), (3, 7, 7));
    }

    #[test]
    fn a_reader_sees_one_writing() {
        let board = Arc::new(Board::new(report(0), None));
        let stop = Arc::new(AtomicBool::new(false));
        let (writes, is_over) = (Arc::clone(&board), Arc::clone(&stop));
        let writer = thread::spawn(move || {
            let mut number = 0;
            while !is_over.load(Ordering::Relaxed) {
                number += 1;
                writes.write(&report(number), 0..3, Instant::from_nanos(number));
            }
            number
        });
        for _ in 0..2000 {
            let (read, at) = board.read();
            let number = read.busy_rounds;
            assert_eq!(at.as_nanos(), number);
            assert_eq!(read.connections_open, number);
            assert!(
                read.counters.counts().all(|count| count == number),
                "{number}: {read:?}"
            );
        }
        stop.store(true, Ordering::Relaxed);
        let last = writer.join().expect("writer");
        assert_eq!(board.read().0.busy_rounds, last);
    }

    #[test]
    fn servers_take_turns() {
        let count = 2 * SERVERS_AT_ONCE + 3;
        let report = |calls| CoreReport {
            servers: vec![
                CoreServer {
                    calls,
                    ..CoreServer::default()
                };
                count
            ],
            ..report(calls)
        };
        let board = Board::new(report(1), None);
        let turn = board.next_turn();
        for (calls, first) in [(2, 0), (3, SERVERS_AT_ONCE), (4, 2 * SERVERS_AT_ONCE)] {
            assert!(!board.has_reached(turn));
            let end = count.min(first + SERVERS_AT_ONCE);
            board.write(&report(calls), first..end, Instant::from_nanos(calls));
            let (read, at) = board.read();
            assert_eq!((at.as_nanos(), read.connections_open), (calls, calls));
            let renewed: Vec<_> = (0..count).filter(|&of| read.servers[of].calls == calls).collect();
            assert_eq!(renewed, (first..end).collect::<Vec<_>>());
        }
        assert!(board.has_reached(turn));
        board.write(&report(5), count..count, Instant::ZERO);
        assert!(board.read().0.servers.iter().all(|server| server.calls < 5));
    }

    #[test]
    fn no_line_is_shared_with_others() {
        assert_eq!((align_of::<Line>(), size_of::<Line>()), (64, 64));
        assert_eq!(align_of::<Board>(), 64);
    }
}
