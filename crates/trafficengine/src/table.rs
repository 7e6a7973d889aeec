//! The connections of one role: a slab, their timers and those that owe an acknowledgement.

use std::time::Duration;

use e2d2::time::Instant;
use netfcts::TimerWheel;

use crate::tcb::{Marks, Tcb, TcpSettings};

/// Connections by id. Ids are used again last in first out, so that few open connections stay in the cache.
pub(crate) struct Table {
    slots: Vec<Tcb>,
    free: Vec<u32>,
    capacity: usize,
    wheel: TimerWheel,
    /// Connections whose acknowledgement waits for the end of the burst.
    due: Vec<u32>,
    expired: Vec<u32>,
}

/// So fine that hosts which began at different times do not repeat their segments at the same: with a tick of a millisecond
/// hundreds of thousands of SYNs a second come again in bursts of hundreds, as no independent hosts send them.
const TICK: Duration = Duration::from_micros(16);

impl Table {
    /// A table for `capacity` connections; their memory is touched when it is first used.
    pub(crate) fn new(capacity: usize, now: Instant) -> Table {
        Table {
            slots: Vec::with_capacity(capacity),
            free: Vec::with_capacity(capacity),
            capacity,
            wheel: TimerWheel::with_tick(capacity, now, TICK),
            due: Vec::with_capacity(64),
            expired: Vec::with_capacity(64),
        }
    }

    pub(crate) fn memory(&self) -> usize {
        self.capacity * (size_of::<Tcb>() + size_of::<u32>()) + self.wheel.memory()
    }

    pub(crate) fn open(&self) -> u32 {
        (self.slots.len() - self.free.len()) as u32
    }

    pub(crate) fn is_full(&self) -> bool {
        self.free.is_empty() && self.slots.len() == self.capacity
    }

    /// Puts a connection in; `None` if the table is full.
    pub(crate) fn insert(&mut self, tcb: Tcb) -> Option<u32> {
        if let Some(id) = self.free.pop() {
            self.slots[id as usize] = tcb;
            return Some(id);
        }
        if self.slots.len() == self.capacity {
            return None;
        }
        self.slots.push(tcb);
        Some(self.slots.len() as u32 - 1)
    }

    pub(crate) fn remove(&mut self, id: u32) {
        self.wheel.disarm(id);
        // Whatever list still names the id must not act on its next user.
        self.slots[id as usize].marks.remove(Marks::ACK_DUE | Marks::HELD);
        self.free.push(id);
    }

    /// Asks the processor for a connection that is about to be worked on.
    #[inline]
    pub(crate) fn prefetch(&self, id: u32) {
        if let Some(tcb) = self.slots.get(id as usize) {
            e2d2::prefetch_lines(tcb);
            self.wheel.prefetch(id);
        }
    }

    #[inline]
    pub(crate) fn get(&mut self, id: u32) -> &mut Tcb {
        &mut self.slots[id as usize]
    }

    /// Has an acknowledgement sent at the end of the burst, unless something else carries it.
    pub(crate) fn owe_ack(&mut self, id: u32) {
        let marks = &mut self.slots[id as usize].marks;
        if !marks.contains(Marks::ACK_DUE) {
            marks.insert(Marks::ACK_DUE);
            self.due.push(id);
        }
    }

    /// Has an acknowledgement sent at `deadline`, unless something else carries it before.
    pub(crate) fn delay_ack(&mut self, id: u32, deadline: Instant) {
        self.slots[id as usize].marks.insert(Marks::ACK_DUE);
        self.wheel.arm(id, deadline);
    }

    /// A connection that owes an acknowledgement.
    pub(crate) fn next_due(&mut self) -> Option<u32> {
        while let Some(id) = self.due.pop() {
            if self.slots[id as usize].marks.contains(Marks::ACK_DUE) {
                return Some(id);
            }
        }
        None
    }

    /// Sets the timer to what the connection waits for: an acknowledgement, or else the peer's next step for `idle`.
    ///
    /// A retransmission timer that runs is left alone unless there was progress (RFC 6298 5.1 and 5.3).
    pub(crate) fn rearm(&mut self, id: u32, now: Instant, progress: bool, idle: Duration, settings: &TcpSettings) {
        let tcb = &self.slots[id as usize];
        if tcb.is_waiting_for_ack() {
            if progress || !self.wheel.is_armed(id) {
                self.wheel.arm(id, now + tcb.retransmission_timeout(settings));
            }
        } else if tcb.marks.contains(Marks::HELD) {
            if !tcb.marks.contains(Marks::ACK_DUE) {
                self.wheel.disarm(id);
            }
        } else {
            self.wheel.arm(id, now + idle);
        }
    }

    /// Collects the connections whose timers have fired, one budget of the wheel, for `next_expired`.
    ///
    /// All of them are to be worked on before anything else happens to the table: a fired timer names its connection by
    /// an id that could be used again.
    pub(crate) fn expire(&mut self, now: Instant) {
        let expired = &mut self.expired;
        self.wheel.expire(now, &mut |id| expired.push(id));
    }

    pub(crate) fn next_expired(&mut self) -> Option<u32> {
        self.expired.pop()
    }

    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.wheel.next_deadline()
    }

    /// Ids of all open connections.
    pub(crate) fn ids(&self) -> Vec<u32> {
        let mut is_open = vec![true; self.slots.len()];
        self.free.iter().for_each(|id| is_open[*id as usize] = false);
        (0..self.slots.len() as u32)
            .filter(|id| is_open[*id as usize])
            .collect()
    }
}
