//! The core's end of a capture: which connection is being dealt with, and what of it is copied.

use super::bits::Bits;
use super::group::{Group, Interrupted, Whose};
use super::rings::Rings;
use super::sieve::Sieve;
use super::{Choice, Entry, Extent, Facts, Frame, FrameKind, Stepped, Wanted, What};
use crate::base::drop_reason::DropReason;
use crate::base::ids::{RuleId, ServerId};
use crate::session::phase::Phase;
use e2d2::port::PortId;
use e2d2::time::Instant;
use netfcts::Side;
use netfcts::ring::RecordSender;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// How often a core looks, while there is no room, whether the reader has made some: a line of the reader's cache is fetched for it.
/// Meanwhile a core at its fastest fills a part of the rings.
const LOOK: Duration = Duration::from_micros(250);

/// A core's end of a capture.
pub struct Tap {
    choice: Choice,
    /// What costs least to ask of a connection, and leaves most out.
    most_drawn: u64,
    extent: Extent,
    rings: Rings,
    /// The frames that were lost, and how many of them the reader has been told: nobody else writes the count.
    lost: u64,
    lost_told: u64,
    /// Frames that were said since the last entry.
    untold: u16,
    /// There was no room when that was looked at last; it is looked at again then.
    is_full: bool,
    look_at: Instant,
    /// While a batch is dealt with for which there is no room: no group begins.
    is_shut: bool,
    /// All are captured, whatever the place.
    is_all: bool,
    /// By place: it is captured.
    chosen: Bits,
    /// By place: it is known to be wanted.
    wanted: Bits,
    /// By place among the resting: it was captured and wanted.
    resting: Bits,
    /// By place, if rules are asked for or shown: the rule, plus one.
    rules: Vec<u32>,
    group: Option<Group>,
    packets: u64,
}

impl Tap {
    pub(super) fn new(choice: Choice, extent: Extent, (places, resting): (usize, usize), rings: Rings) -> Self {
        let chosen = if choice.is_all() { 0 } else { places };
        Self {
            most_drawn: choice.most_drawn(),
            choice,
            extent,
            rings,
            lost: 0,
            lost_told: 0,
            untold: 0,
            is_full: false,
            look_at: Instant::ZERO,
            is_shut: false,
            is_all: choice.is_all(),
            chosen: Bits::new(chosen),
            wanted: Bits::new(chosen),
            resting: Bits::new(resting),
            rules: vec![0; places],
            group: None,
            packets: 0,
        }
    }

    #[inline]
    pub(crate) fn sieve(&self) -> Sieve {
        Sieve {
            is_all: self.is_all,
            most_drawn: self.most_drawn,
        }
    }

    /// Whether the connection in this place is captured.
    #[inline]
    pub(crate) fn has(&self, slot: u32) -> bool {
        self.is_all || self.chosen.has(slot)
    }

    /// Whether that is known to be wanted.
    fn is_wanted(&self, slot: u32) -> bool {
        self.is_all || self.wanted.has(slot)
    }

    /// Whether the turn of the connection in this place may be captured, or interrupts what is.
    #[inline]
    pub(crate) fn concerns(&self, slot: u32) -> bool {
        match &self.group {
            None => !self.is_shut && self.has(slot),
            // Of one that is lost nothing is said, unless it is still to be known whether it is wanted.
            Some(group) => group.slot != Some(slot) || !group.is_lost || self.choice.waits(),
        }
    }

    /// Whether the resting connection in this place was captured.
    pub(crate) fn has_resting(&self, slot: u32) -> bool {
        self.resting.has(slot)
    }

    /// Whether a connection of this client with this listener may be captured.
    pub(crate) fn may_want(&self, client: u128, listener: u16, hash: u64) -> bool {
        self.is_drawn(hash) && self.choice.may_want(client, listener, hash)
    }

    /// Whether a connection with this hash is one of the sample.
    #[inline]
    pub(crate) fn is_drawn(&self, hash: u64) -> bool {
        hash <= self.most_drawn
    }

    /// A connection is made in `slot`, by a frame whose group has begun if it is captured. Returns whether it is.
    #[inline]
    pub(crate) fn note_made(&mut self, slot: u32, of: (u128, u16), hash: u64) -> bool {
        // By far the most: nothing is left of who had the place before, or it is as it was.
        (self.is_drawn(hash) || self.has(slot)) && self.note_drawn(slot, of, hash)
    }

    #[inline(never)]
    fn note_drawn(&mut self, slot: u32, (client, listener): (u128, u16), hash: u64) -> bool {
        let is_chosen = self.is_all || self.may_want(client, listener, hash);
        if is_chosen || self.has(slot) {
            self.choose(slot, is_chosen);
            if let Some(group) = &mut self.group {
                group.slot = Some(slot);
            }
        }
        is_chosen
    }

    /// Captures a connection from now on, or not.
    fn choose(&mut self, slot: u32, is_chosen: bool) {
        self.chosen.set(slot, is_chosen);
        self.wanted.set(slot, is_chosen && !self.choice.waits());
        if let Some(rule) = self.rules.get_mut(slot as usize) {
            *rule = 0;
        }
    }

    /// Captures a connection from now on that was there before, if it is one of those, or may become one: another server may be called
    /// as long as none has accepted, and a rule may choose one as long as none is called. Which rule has chosen is not known. Returns
    /// whether it is.
    pub(crate) fn choose_open(
        &mut self,
        slot: u32,
        (client, listener): (u128, u16),
        (server, is_spliced): (Option<ServerId>, bool),
        hash: u64,
    ) -> bool {
        let is_called = self.choice.server.is_none_or(|wanted| server == Some(wanted));
        let is_wanted = is_called && self.choice.rule.is_none();
        let may_become = !is_spliced && (self.choice.rule.is_none() || server.is_none());
        let is_chosen = self.may_want(client, listener, hash) && (is_wanted || may_become);
        self.choose(slot, is_chosen);
        self.wanted.set(slot, is_chosen && is_wanted);
        is_chosen
    }

    /// A rule has chosen the pool of a connection's server, or none has.
    #[inline]
    pub(crate) fn note_rule(&mut self, slot: u32, rule: Option<RuleId>) {
        if self.has(slot) {
            self.note_rule_of_chosen(slot, rule);
        }
    }

    #[inline(never)]
    fn note_rule_of_chosen(&mut self, slot: u32, rule: Option<RuleId>) {
        if let (Some(place), Some(rule)) = (self.rules.get_mut(slot as usize), rule) {
            *place = rule.0.saturating_add(1);
        }
        match self.choice.rule {
            Some(wanted) if rule != Some(wanted) => self.give_up(slot),
            Some(_) if self.choice.server.is_none() => self.wanted.set(slot, true),
            _ => {}
        }
    }

    /// The rule that has chosen the server of a connection.
    pub(crate) fn rule(&self, slot: u32) -> Option<RuleId> {
        self.rules.get(slot as usize)?.checked_sub(1).map(RuleId)
    }

    /// A server is called for a connection.
    #[inline]
    pub(crate) fn note_call(&mut self, slot: u32, server: ServerId) {
        if self.has(slot) && self.choice.server == Some(server) {
            self.wanted.set(slot, true);
        }
    }

    /// It is not one of those.
    fn give_up(&mut self, slot: u32) {
        self.choose(slot, false);
        if let Some(group) = &mut self.group
            && group.slot == Some(slot)
        {
            group.is_unwanted = true;
        }
    }

    /// Begins a group of the connection in `slot`, of one that rests, or of a stranger, whose hash is `connection`. If there is no
    /// room for all of it, it is lost: its frames are counted, and nothing else is done about it.
    #[inline]
    pub(crate) fn begin(&mut self, whose: Whose, at: Instant, connection: impl FnOnce() -> u64) {
        let said = self.has_room(at).then(|| {
            self.packets += 1;
            (self.packets, connection())
        });
        self.group = Some(Group::begin(whose, at, said));
    }

    /// Begins a batch at `at`; whether all of it that is captured is lost. Not where steps decide whether a connection is wanted.
    #[inline]
    pub(crate) fn begin_batch(&mut self, at: Instant) -> bool {
        self.is_shut = !self.choice.waits() && !self.has_room(at);
        self.is_shut
    }

    /// Whether what is captured of the batch is lost.
    #[inline]
    pub(crate) fn is_shut(&self) -> bool {
        self.is_shut
    }

    /// Counts frames that are lost, those that came in and those that went out for them.
    #[inline]
    pub(crate) fn lose(&mut self, frames: u64) {
        self.lost += frames;
    }

    /// Whether every frame is captured that belongs to a connection or is for a listener.
    #[inline]
    pub(crate) fn has_all(&self) -> bool {
        self.is_all
    }

    /// Ends the batch.
    #[inline]
    pub(crate) fn end_batch(&mut self) {
        self.is_shut = false;
        self.tell_lost();
    }

    /// How far the reader has come is looked at when what was known to be free is used up, and once in [`LOOK`].
    #[inline]
    fn has_room(&mut self, at: Instant) -> bool {
        if self.is_full && at < self.look_at {
            return false;
        }
        if !self.rings.have_room() && at >= self.look_at {
            self.look_at = at + LOOK;
            self.rings.look();
        }
        self.is_full = !self.rings.have_room();
        !self.is_full
    }

    /// Whether what happens now is lost.
    #[inline]
    pub(crate) fn is_losing(&self) -> bool {
        self.group.as_ref().is_some_and(|group| group.is_lost)
    }

    /// Lets the reader know what was lost.
    #[inline]
    pub(crate) fn tell_lost(&mut self) {
        if self.lost != self.lost_told {
            self.lost_told = self.lost;
            self.rings.lost.0.store(self.lost, Ordering::Relaxed);
        }
    }

    /// It is the turn of a connection: a group of its own, if it has none and is captured.
    pub(crate) fn enter(&mut self, slot: u32, at: Instant, connection: impl FnOnce() -> u64) -> Interrupted {
        let is_part_of_it = match &self.group {
            None => !self.has(slot),
            Some(group) => group.slot == Some(slot),
        };
        if is_part_of_it {
            return Interrupted::Nothing;
        }
        let interrupted = Interrupted::Group(self.group.take());
        if self.has(slot) {
            self.begin(Whose::Open(slot), at, connection);
        }
        interrupted
    }

    /// The turn is over; `facts` are those of its connection, if that goes on.
    pub(crate) fn leave(&mut self, interrupted: Interrupted, facts: Option<Facts>) {
        if let Interrupted::Group(group) = interrupted {
            self.end(facts);
            self.tell_lost();
            self.group = group;
        }
    }

    /// The place of the connection whose group has begun.
    pub(crate) fn current(&self) -> Option<u32> {
        self.group.as_ref()?.slot
    }

    /// A frame has come in from `side`.
    #[inline]
    pub(crate) fn note_received(&mut self, side: Side, port: PortId, frame: &[u8]) {
        self.note_sent(FrameKind::Received(side), port, frame);
        if let Some(group) = &mut self.group {
            (group.has_effect, group.received) = (false, Some(side));
        }
    }

    /// Whether the group is that of a frame that has come in from `side`.
    pub(crate) fn has_received(&self, side: Side) -> bool {
        self.group.as_ref().is_some_and(|group| group.received == Some(side))
    }

    /// The frame on the leg of a resting connection, whose group has begun, begins another connection, or is meant to.
    pub(crate) fn note_anew(&mut self) {
        if let Some(group) = &mut self.group {
            group.whose = Whose::Stranger;
        }
    }

    /// Whether the group is that of a resting connection that was captured.
    pub(crate) fn is_of_resting(&self) -> bool {
        self.group.as_ref().is_some_and(|group| group.whose == Whose::Resting)
    }

    /// A frame goes out.
    #[inline]
    pub(crate) fn note_sent(&mut self, kind: FrameKind, port: PortId, frame: &[u8]) {
        match &self.group {
            None => {}
            Some(group) if group.is_lost => self.lost += 1,
            Some(_) => self.copy(kind, port, frame),
        }
    }

    #[inline(never)]
    fn copy(&mut self, kind: FrameKind, port: PortId, frame: &[u8]) {
        let Some(group) = &mut self.group else { return };
        group.has_effect = true;
        let captured = self.extent.of(frame);
        let bytes = frame.get(..captured).unwrap_or_default();
        // The bytes come first: who sees the frame finds them. More frames than there was room for are lost.
        if self.rings.frames.is_full() || self.rings.bytes.push_entire_slice(bytes).is_err() {
            self.lost += 1;
            return;
        }
        let frame = Frame {
            kind,
            port,
            // A frame has fewer than 2^16 bytes.
            length: frame.len().min(u16::MAX.into()) as u16,
            captured: captured as u16,
        };
        let _there_is_room = self.rings.frames.push((group.packet, frame));
        self.untold += 1;
    }

    /// Says something of a group, with all frames that have come before.
    fn say(&mut self, group: &Group, what: What) {
        let entry = Entry {
            packet: group.packet,
            connection: group.connection,
            at: group.at,
            frames: self.untold,
            what,
        };
        // There is room, by far, as was seen when the group began.
        if self.rings.entries.push(entry).is_ok() {
            self.untold = 0;
        }
    }

    /// What an event does to the connection of the group; nothing of it has been done yet.
    pub(crate) fn note_step(&mut self, slot: u32, stepped: Stepped) {
        let is_spliced = |phase| matches!(phase, Phase::Spliced { .. });
        let is_over = stepped.after.has_no_connection();
        let is_settled = is_over || is_spliced(stepped.after) && !is_spliced(stepped.before);
        if is_settled && self.has(slot) && !self.is_wanted(slot) {
            self.give_up(slot);
        }
        let Some(group) = self.group.as_mut().filter(|group| group.slot == Some(slot)) else {
            return;
        };
        (group.has_effect, group.is_over) = (true, group.is_over || is_over);
        if !group.is_lost {
            let group = *group;
            self.say(&group, What::Step(stepped));
        }
    }

    /// A frame was dropped, or something else for this reason.
    pub(crate) fn note_drop(&mut self, reason: DropReason) {
        if let Some(group) = &mut self.group {
            group.has_effect = true;
            group.dropped = Some(reason);
        }
    }

    /// Where the record of the connection in `slot` goes, if it is captured.
    pub(crate) fn records(&mut self, slot: u32) -> Option<&mut RecordSender> {
        let is_said = |group: &Group| group.slot == Some(slot) && !group.is_lost;
        let has_group = self.group.as_ref().is_some_and(is_said);
        has_group.then_some(&mut self.rings.records)
    }

    /// The connection in `slot`, which is captured if `may_be` and if it was chosen, is over and rests in the place `resting`. Returns
    /// whether it is one of those that are wanted.
    #[inline]
    pub(crate) fn note_rest(&mut self, slot: u32, resting: u32, may_be: bool) -> bool {
        let is_wanted = may_be && self.has(slot) && self.is_wanted(slot);
        if is_wanted != self.resting.has(resting) {
            self.resting.set(resting, is_wanted);
        }
        is_wanted
    }

    /// Ends the group.
    pub(crate) fn end(&mut self, facts: Option<Facts>) {
        let Some(group) = self.group.take() else { return };
        let wanted = match group.slot {
            _ if group.is_unwanted => Wanted::No,
            Some(slot) if self.has(slot) && !self.is_wanted(slot) => Wanted::Unknown,
            None if self.choice.waits() && group.whose == Whose::Stranger => Wanted::Unknown,
            _ => Wanted::Yes,
        };
        if let Some(slot) = group.slot.filter(|_| group.is_over) {
            self.choose(slot, false);
        }
        if group.is_lost {
            return;
        }
        let done = group.done(facts, wanted);
        self.say(&group, What::Done(done));
    }
}
