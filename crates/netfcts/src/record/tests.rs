//! A record that is told of a connection step by step, as it happens: the model of [`Progress`](crate::progress::Progress).

use super::*;
use crate::leg::mapped;
use proptest::prelude::*;

impl SessionRecord {
    /// A record of a connection from `client` that begins at `now`. No server, no state yet.
    pub(crate) fn new(now: Instant, client: IpAddr, client_port: u16, listener: u16, core: u8) -> SessionRecord {
        SessionRecord {
            start_ns: now.as_nanos(),
            client_addr: mapped(client).to_be_bytes(),
            packets_to_server: 0,
            packets_to_client: 0,
            bytes_to_server: [0; 6],
            bytes_to_client: [0; 6],
            client_port,
            local_port: 0,
            local_address: 0,
            listener,
            server: NO_SERVER,
            flags: 0,
            sides_and_count: 0,
            client_cause: Cause::Unknown,
            core,
            called_port: 0,
            states: [0; STAMPS / 2],
            stamps: [0; STAMPS * STAMP_BYTES],
            legs: None,
            class: NO_CLASS,
            called_address: 0,
        }
    }

    /// Replaces the client's address and port by those that a PROXY header named, and sets [`RecordFlags::PROXY_IN`].
    /// Who sent the header is kept as [`SessionRecord::peer`], in the place of four state changes.
    pub(crate) fn set_proxied_client(&mut self, client: IpAddr, client_port: u16) {
        let (peer, peer_port) = self.peer().unwrap_or((self.client(), self.client_port));
        while self.state_count() > PROXIED_STAMPS {
            // The latest goes: this early none of them is about the end.
            self.sides_and_count -= 1 << 12;
            self.set_flags(RecordFlags::STATES_DROPPED);
        }
        self.stamps[PEER_AT..PEER_AT + 16].copy_from_slice(&mapped(peer).to_be_bytes());
        self.stamps[PEER_AT + 16..PEER_AT + 18].copy_from_slice(&peer_port.to_le_bytes());
        self.client_addr = mapped(client).to_be_bytes();
        self.client_port = client_port;
        self.set_flags(RecordFlags::PROXY_IN);
    }

    /// Sets the payload bytes of both directions; they stop at 2^48 - 1.
    pub(crate) fn set_bytes(&mut self, to_server: u64, to_client: u64) {
        self.bytes_to_server = U48::from(to_server).to_le_bytes();
        self.bytes_to_client = U48::from(to_client).to_le_bytes();
    }

    /// Notes that a server is called.
    pub(crate) fn note_server(&mut self) {
        self.flags += u16::from(self.servers_tried() < MOST_TRIED) << TRIED_SHIFT;
    }

    /// Sets flags, in addition to those already set.
    pub(crate) fn set_flags(&mut self, flags: RecordFlags) {
        self.flags |= flags.bits();
    }

    /// Says why it ended, as the client's side sees it.
    pub(crate) fn set_cause(&mut self, cause: Cause) {
        self.client_cause = cause;
    }

    /// Notes that `side` enters `state` at `now`.
    pub(crate) fn push_state(&mut self, side: Side, state: State, now: Instant) {
        let mut index = self.state_count();
        let room = self.room().1;
        if index == room {
            self.forget_oldest_late_change();
            index = room - 1;
        }
        let micros = now.as_nanos().saturating_sub(self.start_ns) / 1_000;
        self.put_change(
            index,
            side as u16,
            state as u8,
            micros.min(MAX_STAMP.as_micros() as u64),
        );
    }

    /// How many changes stay when more come than there is room for, and the room.
    fn room(&self) -> (usize, usize) {
        if self.flags & RecordFlags::PROXY_IN.bits() == 0 {
            (KEPT_FIRST, STAMPS)
        } else {
            (PROXIED_KEPT_FIRST, PROXIED_STAMPS)
        }
    }

    fn forget_oldest_late_change(&mut self) {
        self.set_flags(RecordFlags::STATES_DROPPED);
        let (kept, room) = self.room();
        self.stamps
            .copy_within((kept + 1) * STAMP_BYTES..room * STAMP_BYTES, kept * STAMP_BYTES);
        for index in kept..room - 1 {
            self.set_side_and_state(
                index,
                self.sides_and_count >> (index + 1) & 1,
                self.state_bits(index + 1),
            );
        }
    }
}

fn record() -> SessionRecord {
    SessionRecord::new(Instant::from_nanos(5_000), IpAddr::from([10, 0, 0, 1]), 40_000, 2, 1)
}

#[test]
fn numbers_are_the_places_in_the_lists() {
    for (number, state) in (0..).zip(State::ALL) {
        assert_eq!((state as u8, format!("{state:?}")), (number, state.name().to_owned()));
        assert_eq!(State::try_from(number), Ok(state));
    }
    for (number, cause) in (0..).zip(Cause::ALL) {
        assert_eq!((cause as u8, format!("{cause:?}")), (number, cause.name().to_owned()));
        assert_eq!(Cause::try_from(number), Ok(cause));
    }
    assert_eq!((State::try_from(14), Cause::try_from(21)), (Err(14), Err(21)));
}

#[test]
fn addresses_of_both_families_come_back() {
    for client in ["192.0.2.7", "2001:db8::7"] {
        let client: IpAddr = client.parse().unwrap();
        assert_eq!(SessionRecord::new(Instant::ZERO, client, 1, 0, 0).client(), client);
    }
    let mut record = record();
    record.set_proxied_client("2001:db8::8".parse().unwrap(), 9);
    assert_eq!(
        (record.client().to_string(), record.client_port),
        ("2001:db8::8".to_owned(), 9)
    );
    assert_eq!(record.flags(), RecordFlags::PROXY_IN);
    assert_eq!(record.peer(), Some((IpAddr::from([10, 0, 0, 1]), 40_000)));
    assert_eq!(
        (record.start(), record.listener, record.core),
        (Instant::from_nanos(5_000), 2, 1)
    );
}

#[test]
fn a_peer_costs_four_changes_and_is_not_written_over() {
    let mut record = record();
    record.set_proxied_client("2001:db8::8".parse().unwrap(), 9);
    let states = State::ALL;
    for (micros, state) in (0..).zip(states) {
        record.push_state(Side::Server, state, Instant::from_nanos(5_000 + micros * 1_000));
    }
    let kept: Vec<_> = record.changes().map(|change| change.state).collect();
    assert_eq!(kept, [&states[..4], &states[states.len() - 4..]].concat());
    let after: Vec<_> = record
        .changes()
        .map(|change| change.after.as_micros() as usize)
        .collect();
    assert_eq!(after, [0, 1, 2, 3, 10, 11, 12, 13]);
    assert!(record.flags().contains(RecordFlags::STATES_DROPPED));
    assert_eq!(record.peer(), Some((IpAddr::from([10, 0, 0, 1]), 40_000)));
}

#[test]
fn bytes_stop_at_their_width() {
    let mut record = record();
    record.set_bytes((1 << 48) - 1, 1 << 48);
    assert_eq!(
        (record.bytes_to_server(), record.bytes_to_client()),
        ((1 << 48) - 1, (1 << 48) - 1)
    );
    record.set_bytes(0x0102_0304_0506, 7);
    assert_eq!(
        (record.bytes_to_server(), record.bytes_to_client()),
        (0x0102_0304_0506, 7)
    );
}

#[test]
fn stamps_are_whole_microseconds_and_stop_at_their_width() {
    let mut record = record();
    record.push_state(Side::Client, State::SynReceived, Instant::from_nanos(4_000));
    record.push_state(Side::Client, State::Established, Instant::from_nanos(6_999));
    record.push_state(Side::Server, State::Closed, Instant::from_nanos(u64::MAX));
    let after: Vec<_> = record.changes().map(|change| change.after).collect();
    assert_eq!(after, [Duration::ZERO, Duration::from_micros(1), MAX_STAMP]);
    assert_eq!(record.duration(), MAX_STAMP);
}

fn change() -> impl Strategy<Value = (bool, u8, u64)> {
    (any::<bool>(), 0u8..13, 0u64..1 << 41)
}

proptest! {
    #[test]
    fn keeps_the_first_eight_and_the_last_four_changes(
        changes in prop::collection::vec(change(), 0..40),
    ) {
        let mut record = SessionRecord { start_ns: 0, ..record() };
        let mut model: Vec<StateChange> = Vec::new();
        for (server, state, micros) in changes.iter().copied() {
            let side = if server { Side::Server } else { Side::Client };
            let state = State::try_from(state).unwrap();
            record.push_state(side, state, Instant::from_nanos(micros * 1_000));
            model.push(StateChange { side, state, after: Duration::from_micros(micros).min(MAX_STAMP) });
        }
        let dropped = model.len() > STAMPS;
        if dropped {
            model.drain(KEPT_FIRST..model.len() - (STAMPS - KEPT_FIRST));
        }
        prop_assert_eq!(record.flags().contains(RecordFlags::STATES_DROPPED), dropped);
        prop_assert_eq!(record.changes().collect::<Vec<_>>(), model);
    }
}
