//! The record of a connection that is still open: one cache line, half of what it becomes.
//!
//! Addresses, ports and counts are the connection's own as long as it is open, so only what happened when is kept here:
//! the start, up to twelve state changes of five bits and a time each, flags, servers tried. The first change happens at
//! the start and needs no time. At its end the core adds what only the connection knows, the [`Ends`], and hands both over;
//! whoever takes them makes the [`SessionRecord`] of them with [`Ended::record`], which is no work for the core.
//!
//! Budget: 64 bytes; noting a change is a subtraction, a shift and two stores.

use std::net::IpAddr;

use e2d2::time::Instant;

use crate::leg::{Side, mapped};
use crate::record::{
    Cause, KEPT_FIRST, MAX_STAMP, NO_CLASS, NO_SERVER, PROXIED_KEPT_FIRST, PROXIED_STAMPS, RecordFlags, STAMPS,
    SessionRecord, State, U48,
};

/// A side and a state.
const CHANGE_BITS: u32 = 5;
/// Behind the changes that are left to it the port that a PROXY header named.
const PORT_SHIFT: u32 = CHANGE_BITS * PROXIED_STAMPS as u32;
/// Behind the times that are left to it the address.
const ADDRESS_AT: usize = PROXIED_STAMPS - 1;

/// Times above 2^31 µs (35 min) are kept in steps of 512 µs.
const COARSE: u32 = 1 << 31;
const COARSE_SHIFT: u32 = 9;

const _: () = assert!(CHANGE_BITS * STAMPS as u32 <= u64::BITS);
const _: () = assert!(STAMPS - 1 - ADDRESS_AT == 4, "an IPv6 address behind the times");
const _: () = assert!(MAX_STAMP.as_micros() >> COARSE_SHIFT < COARSE as u128);
const _: () = assert!(size_of::<Progress>() == 64);

/// A time of the core's clock in whole microseconds, which the core finds out once for all records of a batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Micros(u64);

impl From<Instant> for Micros {
    fn from(instant: Instant) -> Micros {
        Micros(instant.as_micros())
    }
}

impl From<Micros> for Instant {
    fn from(Micros(micros): Micros) -> Instant {
        Instant::from_nanos(micros.saturating_mul(1_000))
    }
}

impl Micros {
    /// Microseconds that passed from `earlier` to `self`; zero if `earlier` is the later one.
    #[inline]
    pub const fn since(self, earlier: Micros) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

/// What has happened to an open connection.
#[derive(Clone, Debug)]
#[repr(C, align(64))]
pub struct Progress {
    start: Micros,
    /// Zero behind the last one, but for a port.
    changes: u64,
    times: [u32; STAMPS - 1],
    flags: u16,
    servers_tried: u8,
    /// Changes; a connection has begun with one.
    count: u8,
}

/// What the connection itself knows at its end.
#[derive(Clone, Copy, Debug)]
pub struct Ends {
    /// When that is.
    pub at: Micros,
    /// The address that has connected, IPv4 in its mapped form.
    pub client: u128,
    /// Its port.
    pub client_port: u16,
    /// Index of the listener.
    pub listener: u16,
    /// Index of our address that the client has called, and the port.
    pub called: (u16, u16),
    /// Index of our address towards the server, or [`TRANSPARENT`](crate::record::TRANSPARENT), and our port; 0 before
    /// there is one.
    pub local: (u16, u16),
    /// Index of the server, or [`NO_SERVER`].
    pub server: u16,
    /// The core that owned the connection.
    pub core: u8,
    /// Segments passed on to server and client.
    pub packets: (u32, u32),
    /// Payload bytes passed on to server and client.
    pub bytes: (U48, U48),
    /// Why it ended, as the client's side sees it.
    pub cause: Cause,
    /// Index of the client's class, or [`NO_CLASS`].
    pub class: u16,
}

impl Default for Ends {
    /// Nobody's, without a server.
    fn default() -> Ends {
        Ends {
            at: Micros::default(),
            client: 0,
            client_port: 0,
            listener: 0,
            called: (0, 0),
            local: (0, 0),
            server: NO_SERVER,
            core: 0,
            packets: (0, 0),
            bytes: (U48::default(), U48::default()),
            cause: Cause::Unknown,
            class: NO_CLASS,
        }
    }
}

/// A connection that has ended, as its core hands it over: 128 bytes, the first line as it was.
#[derive(Clone, Debug)]
#[repr(C)]
pub struct Ended {
    /// What has happened to it, but for its end.
    pub progress: Progress,
    /// What it knew at its end.
    pub ends: Ends,
}

const _: () = assert!(size_of::<Ended>() == 128);

impl Ended {
    /// Its record, in which both sides are closed.
    pub fn record(&self) -> SessionRecord {
        let Ended { mut progress, ends } = self.clone();
        progress.push_state(Side::Client, State::Closed, ends.at);
        if ends.server != NO_SERVER {
            progress.push_state(Side::Server, State::Closed, ends.at);
        }
        progress.finish(&ends)
    }
}

impl Progress {
    /// No connection.
    pub const NONE: Progress = Progress {
        start: Micros(0),
        changes: 0,
        times: [0; STAMPS - 1],
        flags: 0,
        servers_tried: 0,
        count: 0,
    };

    /// A connection begins: `side` enters `state`.
    #[inline]
    pub fn begin(&mut self, side: Side, state: State, now: Micros) {
        self.start = now;
        self.changes = change(side, state);
        self.flags = 0;
        self.servers_tried = 0;
        self.count = 1;
    }

    /// True from [`Progress::begin`] to [`Progress::clear`].
    #[inline]
    pub fn is_begun(&self) -> bool {
        self.count != 0
    }

    /// There is no connection any more.
    #[inline]
    pub fn clear(&mut self) {
        self.count = 0;
    }

    /// When the connection began.
    #[inline]
    pub fn start(&self) -> Micros {
        self.start
    }

    /// Microseconds since a side entered a state, the last time, as exact as [`Progress::push_state`] keeps it; none if it did not,
    /// or that was forgotten.
    #[inline]
    pub fn micros_since(&self, (side, state): (Side, State), now: Micros) -> Option<u64> {
        let wanted = change(side, state);
        let is_wanted =
            |index: &usize| self.changes >> (CHANGE_BITS * *index as u32) & ((1 << CHANGE_BITS) - 1) == wanted;
        let index = (0..usize::from(self.count)).rev().find(is_wanted)?;
        let entered = self.times.get(index.wrapping_sub(1)).copied().map_or(0, unpacked);
        Some(now.since(self.start).saturating_sub(entered))
    }

    /// Sets flags, in addition to those already set.
    #[inline]
    pub fn set_flags(&mut self, flags: RecordFlags) {
        self.flags |= flags.bits();
    }

    /// One more server has been called.
    #[inline]
    pub fn note_server(&mut self) {
        self.servers_tried = self.servers_tried.saturating_add(1);
    }

    /// Notes that `side` enters `state`; after 35 minutes with a time that is at most 512 µs too early. A record that has not
    /// begun ignores it.
    ///
    /// There is room for [`STAMPS`] changes. When it is used up the first eight stay (how the connection opened), the
    /// last four become the latest four (how it closed) and [`RecordFlags::STATES_DROPPED`] is set. With a
    /// [`SessionRecord::peer`] there is room for [`PROXIED_STAMPS`], of which the first four stay.
    #[inline]
    pub fn push_state(&mut self, side: Side, state: State, now: Micros) {
        let last = usize::from(self.count).wrapping_sub(1);
        // In two comparisons, as the first is enough for most changes.
        if last < PROXIED_STAMPS - 1 || last < STAMPS - 1 && !self.is_proxied() {
            self.put_change(last, change(side, state), now);
        } else {
            self.push_seldom(change(side, state), now);
        }
    }

    /// Notes a change behind the one of index `last`.
    #[inline]
    fn put_change(&mut self, last: usize, change: u64, now: Micros) {
        self.times[last] = packed(now.since(self.start));
        self.changes |= change << (CHANGE_BITS * (last as u32 + 1));
        self.count += 1;
    }

    /// A change for which there is no room, or of a record that has not begun.
    #[cold]
    #[inline(never)]
    fn push_seldom(&mut self, change: u64, now: Micros) {
        if usize::from(self.count) >= self.room().1 {
            self.forget_oldest_late_change();
        }
        if let Some(last) = usize::from(self.count).checked_sub(1) {
            self.put_change(last, change, now);
        }
    }

    /// A PROXY header names the client.
    pub fn set_proxied_client(&mut self, client: IpAddr, client_port: u16) {
        if usize::from(self.count) > PROXIED_STAMPS {
            // The latest go: this early none of them is about the end.
            self.count = PROXIED_STAMPS as u8;
            self.set_flags(RecordFlags::STATES_DROPPED);
        }
        let kept = self.changes & ((1 << PORT_SHIFT) - 1);
        self.changes = kept | u64::from(client_port) << PORT_SHIFT;
        for (word, bytes) in self.times[ADDRESS_AT..]
            .iter_mut()
            .zip(mapped(client).to_be_bytes().as_chunks::<4>().0)
        {
            *word = u32::from_ne_bytes(*bytes);
        }
        self.set_flags(RecordFlags::PROXY_IN);
    }

    /// The record of a connection that has ended, with the changes so far.
    fn finish(&self, ends: &Ends) -> SessionRecord {
        let mut record = SessionRecord::of(
            Instant::from(self.start).as_nanos(),
            ends,
            self.flags,
            self.servers_tried,
        );
        if let Some(client) = self.proxied_client() {
            record.set_peer_and_client((client.to_be_bytes(), (self.changes >> PORT_SHIFT) as u16));
        }
        for index in 0..usize::from(self.count).min(self.room().1) {
            let bits = self.changes >> (CHANGE_BITS * index as u32);
            let time = if index == 0 { 0 } else { unpacked(self.times[index - 1]) };
            record.put_change(index, (bits >> 4 & 1) as u16, (bits & 0xf) as u8, time);
        }
        record
    }

    /// Whom a PROXY header has named, IPv4 in its mapped form.
    pub fn proxied_client(&self) -> Option<u128> {
        if !self.is_proxied() {
            return None;
        }
        let mut address = [0; 16];
        for (word, bytes) in self.times[ADDRESS_AT..].iter().zip(address.as_chunks_mut::<4>().0) {
            *bytes = word.to_ne_bytes();
        }
        Some(u128::from_be_bytes(address))
    }

    fn is_proxied(&self) -> bool {
        self.flags & RecordFlags::PROXY_IN.bits() != 0
    }

    /// How many changes stay when more come than there is room for, and the room.
    #[inline]
    fn room(&self) -> (usize, usize) {
        if self.is_proxied() {
            (PROXIED_KEPT_FIRST, PROXIED_STAMPS)
        } else {
            (KEPT_FIRST, STAMPS)
        }
    }

    #[cold]
    fn forget_oldest_late_change(&mut self) {
        self.set_flags(RecordFlags::STATES_DROPPED);
        let (kept, room) = self.room();
        self.count = room as u8 - 1;
        // The time of change n is the one before n.
        self.times.copy_within(kept..room - 1, kept - 1);
        let below = |index: usize| (1_u64 << (CHANGE_BITS * index as u32)) - 1;
        let late = self.changes & below(room) & !below(kept + 1);
        self.changes = self.changes & !(below(room) & !below(kept)) | late >> CHANGE_BITS;
    }
}

fn change(side: Side, state: State) -> u64 {
    (side as u64) << 4 | state as u64
}

/// A time in µs in 32 bits.
#[inline]
fn packed(micros: u64) -> u32 {
    if micros < u64::from(COARSE) {
        return micros as u32;
    }
    COARSE | (micros.min(MAX_STAMP.as_micros() as u64) >> COARSE_SHIFT) as u32
}

#[inline]
fn unpacked(time: u32) -> u64 {
    if time & COARSE == 0 {
        return u64::from(time);
    }
    u64::from(time & !COARSE) << COARSE_SHIFT
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const CLIENT: [u8; 16] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 1];
    const START: u64 = 5_000;

    fn ends() -> Ends {
        Ends {
            at: Instant::from_nanos(START + 7_000).into(),
            client: u128::from_be_bytes(CLIENT),
            client_port: 40_000,
            listener: 2,
            called: (1, 80),
            local: (3, 4),
            server: 5,
            core: 1,
            packets: (6, 7),
            bytes: (8.into(), 9.into()),
            cause: Cause::ActiveClose,
            class: NO_CLASS,
        }
    }

    /// What [`ends`] says in a record that knows all from the start.
    fn record() -> SessionRecord {
        let mut record = SessionRecord::new(Instant::from_nanos(START), IpAddr::from([10, 0, 0, 1]), 40_000, 2, 1);
        (record.local_address, record.local_port, record.server) = (3, 4, 5);
        (record.packets_to_server, record.packets_to_client) = (6, 7);
        (record.called_address, record.called_port) = (1, 80);
        record.set_bytes(8, 9);
        record.set_cause(Cause::ActiveClose);
        record
    }

    #[derive(Clone, Copy, Debug)]
    enum Op {
        Push(bool, u8, u64),
        Header([u8; 16], u16),
        Flag,
        Server,
    }

    fn op() -> impl Strategy<Value = Op> {
        let micros = prop_oneof![0u64..1 << 20, (1u64 << 31) - 4..1 << 31];
        prop_oneof![
            12 => (any::<bool>(), 0u8..14, micros).prop_map(|(server, state, micros)| Op::Push(server, state, micros)),
            1 => (any::<[u8; 16]>(), any::<u16>()).prop_map(|(address, port)| Op::Header(address, port)),
            1 => Just(Op::Flag),
            1 => Just(Op::Server),
        ]
    }

    /// Tells `progress` of it.
    fn tell(progress: &mut Progress, op: Op) {
        match op {
            Op::Push(server, state, micros) => {
                let side = if server { Side::Server } else { Side::Client };
                let now = Instant::from_nanos(START + micros * 1_000);
                progress.push_state(side, State::try_from(state).unwrap(), now.into());
            }
            Op::Header(address, port) => progress.set_proxied_client(IpAddr::from(address), port),
            Op::Flag => progress.set_flags(RecordFlags::COOKIE),
            Op::Server => progress.note_server(),
        }
    }

    proptest! {
        #[test]
        fn becomes_the_record_that_was_told_the_same(ops in prop::collection::vec(op(), 0..30)) {
            let start = Instant::from_nanos(START);
            let mut progress = Progress::NONE;
            prop_assert!(!progress.is_begun());
            progress.begin(Side::Client, State::SynSent, start.into());
            let mut model = record();
            model.push_state(Side::Client, State::SynSent, start);
            let mut has_header = false;
            for op in ops {
                // A connection begins with one header at most.
                if matches!(op, Op::Header(..)) && std::mem::replace(&mut has_header, true) {
                    continue;
                }
                tell(&mut progress, op);
                match op {
                    Op::Push(server, state, micros) => {
                        let side = if server { Side::Server } else { Side::Client };
                        let now = Instant::from_nanos(START + micros * 1_000);
                        model.push_state(side, State::try_from(state).unwrap(), now);
                    }
                    Op::Header(address, port) => model.set_proxied_client(IpAddr::from(address), port),
                    Op::Flag => model.set_flags(RecordFlags::COOKIE),
                    Op::Server => model.note_server(),
                }
            }
            prop_assert!(progress.is_begun());
            prop_assert_eq!(progress.start(), model.start().into());
            for side in [Side::Client, Side::Server] {
                for state in (0..14).map(|number| State::try_from(number).expect("a state")) {
                    let mut of_model = model.changes().filter(|change| (change.side, change.state) == (side, state));
                    let after = of_model.next_back().map(|change| change.after.as_micros() as u64);
                    let later = Instant::from_nanos(START + (1 << 50));
                    let since = after.map(|after| Micros::from(later).since(start.into()) - after);
                    prop_assert_eq!(progress.micros_since((side, state), later.into()), since);
                }
            }
            for side in [Side::Client, Side::Server] {
                model.push_state(side, State::Closed, ends().at.into());
            }
            let finished = Ended { progress: progress.clone(), ends: ends() }.record();
            prop_assert_eq!(finished.changes().collect::<Vec<_>>(), model.changes().collect::<Vec<_>>());
            prop_assert_eq!(finished.peer(), model.peer());
            prop_assert_eq!(finished.client(), model.client());
            prop_assert_eq!(finished, normalised(&model));
            progress.clear();
            prop_assert!(!progress.is_begun());
        }

        #[test]
        fn of_a_connection_that_has_not_begun_nothing_is_kept(ops in prop::collection::vec(op(), 0..30)) {
            let begun = |mut progress: Progress| {
                progress.begin(Side::Client, State::SynSent, Instant::from_nanos(START).into());
                Ended { progress, ends: ends() }.record()
            };
            let mut progress = Progress::NONE;
            for op in ops {
                tell(&mut progress, op);
                prop_assert!(!progress.is_begun());
            }
            prop_assert_eq!(begun(progress), begun(Progress::NONE));
        }

        #[test]
        fn times_are_exact_for_half_an_hour_and_then_to_half_a_millisecond(micros in 0u64..1 << 42) {
            let kept = unpacked(packed(micros));
            let held = micros.min(MAX_STAMP.as_micros() as u64);
            let step = if micros < 1 << 31 { 1 } else { 512 };
            prop_assert!(kept <= held && held - kept < step);
        }
    }

    /// What earlier changes have left behind in places that are not in use any more does not count.
    fn normalised(record: &SessionRecord) -> SessionRecord {
        let mut clean = self::record();
        clean.set_flags(record.flags() & !RecordFlags::PROXY_IN);
        (0..record.servers_tried()).for_each(|_| clean.note_server());
        if record.peer().is_some() {
            clean.set_proxied_client(record.client(), record.client_port);
        }
        for change in record.changes() {
            clean.push_state(change.side, change.state, record.start() + change.after);
        }
        clean
    }
}
