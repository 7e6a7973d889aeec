//! Retransmission towards a server: of the PROXY header, and of client bytes that were acknowledged before there was a server
//! (DECISIONS.md 3 and 14).
//!
//! The client has released them, so they are retransmitted until the server acknowledges: after RTO with back-off (RFC 6298
//! 5.4–5.6), and at once after three duplicate ACKs (RFC 5681 3.2). Until then ACKs towards the client never fall
//! below what has been acknowledged to it already.
//!
//! Budget: a queue is one cache line, and its header stands beside it where it was [written](RtxQueues::draft): it is copied into
//! segments only. Mostly the server's first ACK acknowledges all, which [`RtxQueue::is_acked_by`] tells.

use crate::base::sizes::MAX_HEADER;
use crate::retransmit::rtx_timer::RtxTimer;
use crate::session::handles::{BufferId, RtxId};
use crate::session::slab::Slab;
use e2d2::memory::LargeSlice;
use netfcts::seq::SeqNum;

/// Retransmissions without progress before the server is given up: about two minutes of silence.
pub(crate) const MAX_TRIES: u8 = 7;

/// The unacknowledged bytes of one connection, in the client's numbers.
#[derive(Clone, Debug)]
#[repr(align(64))]
pub(crate) struct RtxQueue {
    /// The length of our own bytes, which end where `first` begins.
    pub header_len: u16,
    /// The client's bytes; offset 0 is `first`.
    pub held: Option<BufferId>,
    /// The number of the client's first byte.
    pub first: SeqNum,
    /// The number behind the last byte.
    pub end: SeqNum,
    /// The largest segment for the server.
    pub mss: u16,
    /// TSval and TSecr for the server, if timestamps were agreed.
    pub timestamps: Option<(u32, u32)>,
    /// When to retransmit.
    pub timer: RtxTimer,
    /// The client's first bytes have been sent: when they come again, that is a retransmission.
    pub first_bytes_sent: bool,
    /// A window of 0 was sent to the client, which waits for an update.
    pub is_shut: bool,
    /// SND.UNA of RFC 9293 3.3.1: the first byte that the server has not acknowledged.
    pub snd_una: SeqNum,
    /// The window field of the server's last ACK, if there was one.
    pub last_window: Option<u16>,
}

const _: () = assert!(
    Slab::<RtxQueue>::slot_size() == 64,
    "a queue and its slot fit a cache line"
);

/// What an ACK of the server does to a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AckEffect {
    /// All is acknowledged.
    Full,
    /// Nothing new is acknowledged.
    Open,
    /// A part is acknowledged: the timer begins anew.
    Progress,
    /// The third duplicate: retransmit now.
    Retransmit,
}

impl RtxQueue {
    /// True if an ACK acknowledges everything, and is to be passed to the client whatever else its segment says: the client has never
    /// seen our header.
    #[inline]
    pub(crate) fn is_acked_by(&self, ack: SeqNum) -> bool {
        ack.gt(self.end) || ack == self.end && !self.is_header_only()
    }

    /// Notes the server's ACK, in the client's numbers, and its window; `pure` is set when the segment carries nothing else.
    pub(crate) fn note_ack(&mut self, (ack, window): (SeqNum, u16), pure: bool, now_ms: u32) -> AckEffect {
        if ack.ge(self.end) {
            return AckEffect::Full;
        }
        let is_same_window = self.last_window.is_none_or(|last| last == window);
        if ack.ge(self.snd_una) {
            self.last_window = Some(window);
        }
        if ack.gt(self.snd_una) {
            self.snd_una = ack;
            self.timer.on_progress(now_ms);
            return AckEffect::Progress;
        }
        if ack == self.snd_una && window == 0 {
            self.timer.on_zero_window();
        }
        // RFC 5681 2 (e): an ACK with another window is no duplicate.
        if ack == self.snd_una && pure && is_same_window && self.timer.on_duplicate_ack() {
            return AckEffect::Retransmit;
        }
        AckEffect::Open
    }

    /// Notes the server's own TSval and TSecr. A client that has repeated what goes before these bytes has brought the
    /// server newer timestamps than theirs, and then it drops what is older than those (RFC 7323 5.3). It echoes the newest
    /// that it goes by.
    pub(crate) fn note_timestamps(&mut self, said: Option<(u32, u32)>) {
        let is_newer = |new: u32, old: u32| new.wrapping_sub(old).cast_signed() > 0;
        if let (Some((ours, echo)), Some((theirs, echoed))) = (&mut self.timestamps, said) {
            if is_newer(echoed, *ours) {
                *ours = echoed;
            }
            if is_newer(theirs, *echo) {
                *echo = theirs;
            }
        }
    }

    /// True if there is nothing of the client's in it.
    pub(crate) fn is_header_only(&self) -> bool {
        self.end == self.first
    }
}

/// Room for a header.
#[derive(Clone)]
#[repr(align(64))]
struct Room([u8; MAX_HEADER]);

const NO_HEADER: Room = Room([0; MAX_HEADER]);

/// All queues of one core, with the headers that are part of them.
pub(crate) struct RtxQueues {
    entries: Slab<RtxQueue>,
    /// One for each entry if any server gets a header.
    rooms: LargeSlice<Room>,
    /// For a header that is sent once because no entry is free.
    spare: Room,
}

impl RtxQueues {
    /// Room for so many queues, and for their headers unless no server gets any: they are most of the memory, which is
    /// touched as it is used.
    pub(crate) fn new(capacity: usize, with_headers: bool) -> Self {
        let headers = if with_headers { capacity } else { 0 };
        RtxQueues {
            entries: Slab::reserved(capacity),
            rooms: LargeSlice::reserved(headers),
            spare: NO_HEADER,
        }
    }

    /// Where the next header is written: the room of the queue that [`RtxQueues::insert`] will make next.
    #[inline]
    pub(crate) fn draft(&mut self) -> &mut [u8; MAX_HEADER] {
        let place = self.entries.next().map_or(usize::MAX, |entry| entry as usize);
        if (self.rooms.len()..self.rooms.capacity()).contains(&place) {
            self.rooms.grow_to(place + 1, NO_HEADER);
        }
        &mut self.rooms.get_mut(place).unwrap_or(&mut self.spare).0
    }

    /// What was written last to [`RtxQueues::draft`], and is in no queue yet.
    #[inline]
    pub(crate) fn drafted(&self, header_len: u16) -> &[u8] {
        let place = self.entries.next().map_or(usize::MAX, |entry| entry as usize);
        let room = self.rooms.get(place).unwrap_or(&self.spare);
        room.0.get(..usize::from(header_len)).unwrap_or_default()
    }

    /// Keeps a queue, whose header was written to [`RtxQueues::draft`].
    ///
    /// # Errors
    /// The queue itself, if there is no room.
    #[inline]
    pub(crate) fn insert(&mut self, queue: RtxQueue) -> Result<RtxId, RtxQueue> {
        self.entries.insert(queue).map(RtxId::of)
    }

    /// Forgets a queue. Returns the bytes that were held for it, if there were any.
    #[inline]
    pub(crate) fn forget(&mut self, id: Option<RtxId>) -> Option<BufferId> {
        let held = self.get(id)?.held;
        self.entries.free(id?.number());
        held
    }

    /// A queue.
    #[inline]
    pub(crate) fn get(&self, id: Option<RtxId>) -> Option<&RtxQueue> {
        self.entries.get(id?.number())
    }

    /// A queue, to change it.
    #[inline]
    pub(crate) fn get_mut(&mut self, id: Option<RtxId>) -> Option<&mut RtxQueue> {
        self.entries.get_mut(id?.number())
    }

    /// A queue and its header.
    pub(crate) fn with_header(&self, id: Option<RtxId>) -> Option<(&RtxQueue, &[u8])> {
        let queue = self.get(id)?;
        let room = self.rooms.get(id?.number() as usize);
        let header = room.and_then(|room| room.0.get(..usize::from(queue.header_len)));
        Some((queue, header.unwrap_or_default()))
    }

    /// The number of queues.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Bytes of all queues that there are.
    pub(crate) fn bytes_in_use(&self) -> usize {
        let room = if self.rooms.capacity() > 0 {
            size_of::<Room>()
        } else {
            0
        };
        self.len() * (Slab::<RtxQueue>::slot_size() + room)
    }

    /// The memory that they have touched, in bytes.
    pub(crate) fn memory(&self) -> usize {
        self.entries.memory() + size_of_val(&*self.rooms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn new(header_len: u16, first: u32, end: u32) -> RtxQueue {
        RtxQueue {
            header_len,
            held: None,
            first: SeqNum(first),
            end: SeqNum(end),
            mss: 1460,
            timestamps: None,
            timer: RtxTimer::new(0),
            first_bytes_sent: false,
            is_shut: false,
            snd_una: SeqNum(first) - u32::from(header_len),
            last_window: None,
        }
    }

    fn unacked() -> RtxQueue {
        new(0, u32::MAX - 9, 10)
    }

    #[test]
    fn an_ack_of_the_end_acknowledges_all_and_none_before_does() {
        assert_eq!(unacked().note_ack((SeqNum(9), 1), true, 5), AckEffect::Progress);
        assert_eq!(unacked().note_ack((SeqNum(10), 1), true, 5), AckEffect::Full);
        assert_eq!(unacked().note_ack((SeqNum(11), 1), true, 5), AckEffect::Full);
    }

    #[test]
    fn third_duplicate_retransmits_once() {
        let mut queue = unacked();
        let verdicts: Vec<_> = (0..5)
            .map(|_| queue.note_ack((SeqNum(u32::MAX - 9), 1), true, 5))
            .collect();
        assert_eq!(verdicts.iter().filter(|v| **v == AckEffect::Retransmit).count(), 1);
        assert_eq!(verdicts[2], AckEffect::Retransmit);
        assert_eq!(queue.note_ack((SeqNum(u32::MAX - 9), 1), false, 5), AckEffect::Open);
    }

    #[test]
    fn retransmitted_timestamps_are_as_new_as_what_the_server_has_seen() {
        let mut queue = unacked();
        queue.note_timestamps(Some((1, 1)));
        assert_eq!(queue.timestamps, None, "not agreed");
        queue.timestamps = Some((u32::MAX, 7));
        queue.note_timestamps(Some((6, u32::MAX - 1)));
        assert_eq!(queue.timestamps, Some((u32::MAX, 7)), "an old ACK");
        queue.note_timestamps(Some((9, 3)));
        assert_eq!(queue.timestamps, Some((3, 9)));
    }

    #[test]
    fn backs_off_and_recovers() {
        let mut queue = unacked();
        queue.timer.on_timeout(1000);
        assert_eq!((queue.timer.deadline(), queue.timer.has_tried(1)), (3000, true));
        queue.note_ack((SeqNum(0), 1), true, 1500);
        assert_eq!((queue.timer.deadline(), queue.timer.has_tried(1)), (2500, false));
    }

    #[test]
    fn an_ack_of_the_header_alone_does_not_end_it_at_once() {
        let header_only = new(28, 3, 3);
        let acked = |queue: &RtxQueue, ack: u32| queue.is_acked_by(SeqNum(ack));
        assert!(!acked(&header_only, 3) && acked(&header_only, 4) && !acked(&header_only, u32::MAX - 24));
        assert!(!acked(&unacked(), 9) && acked(&unacked(), 10) && acked(&unacked(), 11));
    }

    #[test]
    fn a_header_stays_where_it_was_written() {
        let queue = || new(2, 3, 3);
        let mut queues = RtxQueues::new(2, true);
        let mut indices = Vec::new();
        for name in [b"ab", b"cd", b"ef"] {
            queues.draft()[..2].copy_from_slice(name);
            assert_eq!(queues.drafted(2), name);
            indices.extend(queues.insert(queue()).map(Some).ok());
        }
        let header = |queues: &RtxQueues, id| queues.with_header(id).map(|(_, header)| header.to_vec());
        assert_eq!(indices.len(), 2, "the third has the spare room and is not kept");
        assert_eq!(queues.drafted(2), b"ef");
        assert_eq!(header(&queues, indices[0]).as_deref(), Some(&b"ab"[..]));
        assert!(queues.get(indices[0]).is_some());
        assert_eq!(queues.forget(indices[0]), None, "no bytes");
        assert!(queues.get(indices[0]).is_none() && header(&queues, indices[0]).is_none());
        queues.draft()[..2].copy_from_slice(b"gh");
        assert_eq!(header(&queues, indices[1]).as_deref(), Some(&b"cd"[..]));
        assert_eq!(queues.insert(queue()).ok(), indices[0]);
        assert_eq!(header(&queues, indices[0]).as_deref(), Some(&b"gh"[..]));
        assert_eq!((queues.len(), queues.entries.capacity()), (2, 2));
    }
    #[test]
    fn without_headers_there_is_room_for_queues_only() {
        let mut queues = RtxQueues::new(100, false);
        for _ in 0..100 {
            queues.draft();
            assert_eq!(queues.drafted(0), b"");
            let index = queues.insert(unacked()).expect("room");
            let (queue, header) = queues.with_header(Some(index)).expect("a queue");
            assert_eq!((queue.end, header), (SeqNum(10), &b""[..]));
        }
        assert!(queues.insert(unacked()).is_err());
        assert_eq!((queues.draft().len(), queues.memory()), (MAX_HEADER, 100 * 64));
    }
}
