//! The applications at both ends: what they write, and the check of every byte that they read.

use crate::headers;
use crate::scenario::{Close, ConnectionPlan, EndPlan, Scenario};
use e2d2::time::Instant;
use std::time::Duration;
use testkit::sim::tcp::{RecvError, Socket, State};

/// The direction of a byte stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    ToServer,
    ToClient,
}

/// The byte at `position` of a stream. Neighbouring streams and positions differ, so that a byte that is lost, repeated or
/// of another connection is found.
pub fn byte_at(id: u8, way: Way, position: u32) -> u8 {
    if position == 0 && way == Way::ToServer {
        return id;
    }
    let stream = u32::from(id) << 1 | u32::from(way == Way::ToClient);
    let mixed = (position ^ stream.wrapping_mul(0x9e37_79b9)).wrapping_mul(0x85eb_ca6b);
    (mixed ^ (mixed >> 15)) as u8
}

/// What an inspector makes of a byte: the bytes in its place. It needs to know no other byte, so that what becomes of a
/// stream does not depend on how it is cut.
pub fn rewritten(way: Way, position: u64, byte: u8) -> ([u8; 2], usize) {
    let grows = way == Way::ToServer;
    match byte % 32 {
        // The first byte names the connection.
        _ if position == 0 => ([byte, 0], 1),
        0..=2 if grows => ([byte, !byte], 2),
        3 if grows => ([0, 0], 0),
        0 => ([byte, !byte], 2),
        1..=3 => ([0, 0], 0),
        4 => ([byte ^ 0x80, 0], 1),
        _ => ([byte, 0], 1),
    }
}

/// What the other end gets of a stream.
fn expected(id: u8, way: Way, len: u32, (first, is_rewritten): (&[u8], bool)) -> Vec<u8> {
    let plain = first.iter().copied().chain((0..len).map(|at| byte_at(id, way, at)));
    if !is_rewritten {
        return plain.collect();
    }
    let bytes = plain.enumerate().flat_map(|(at, byte)| {
        let (bytes, count) = rewritten(way, at as u64, byte);
        bytes.into_iter().take(count)
    });
    bytes.collect()
}

/// One end of a connection.
#[derive(Clone, Debug)]
pub struct End {
    id: u8,
    plan: EndPlan,
    sends: Way,
    to_send: u32,
    expected: Vec<u8>,
    pub sent: u32,
    pub received: u32,
    /// The other end has closed, and everything before that was read.
    pub end_seen: bool,
    closed: bool,
    speaks_at: Option<Instant>,
    next_move: Option<Instant>,
    /// The header before the first byte, where it is cut, and how much of it is written.
    header: Vec<u8>,
    cuts: Vec<usize>,
    header_sent: usize,
    /// When the next piece of it is written.
    piece_at: Option<Instant>,
}

/// Between two pieces of a header: long enough to leave in segments of their own.
const PIECE_PAUSE: Duration = Duration::from_millis(1);

impl End {
    pub fn client(plan: &ConnectionPlan, scenario: &Scenario) -> Self {
        let course = (scenario.banner(), scenario.is_rewritten);
        let expected = expected(plan.id, Way::ToClient, plan.to_client, course);
        let header = scenario.headers.of(plan);
        End {
            cuts: headers::cuts(plan, header.len()),
            header,
            ..Self::new(plan.id, plan.client, Way::ToServer, plan.to_server, expected)
        }
    }

    /// The server's end, once its first byte has told whose connection it is.
    pub fn server(plan: &ConnectionPlan, scenario: &Scenario) -> Self {
        let expected = expected(plan.id, Way::ToServer, plan.to_server, (b"", scenario.is_rewritten));
        Self::new(plan.id, plan.server, Way::ToClient, plan.to_client, expected)
    }

    fn new(id: u8, mut plan: EndPlan, sends: Way, to_send: u32, expected: Vec<u8>) -> Self {
        // Fewer bytes may come than were sent.
        plan.speaks_after = plan.speaks_after.min(expected.len() as u32);
        End {
            id,
            plan,
            sends,
            to_send,
            expected,
            sent: 0,
            received: 0,
            end_seen: false,
            closed: false,
            speaks_at: None,
            next_move: None,
            header: Vec::new(),
            cuts: Vec::new(),
            header_sent: 0,
            piece_at: None,
        }
    }

    /// All bytes of the other end were read.
    pub fn has_all(&self) -> bool {
        self.received as usize == self.expected.len()
    }

    /// All bytes were written, all were read, and the other end was seen to close.
    pub fn is_complete(&self) -> bool {
        self.sent == self.to_send && self.has_all() && self.end_seen
    }

    /// All bytes were written, and what was not read yet, so many bytes, is the rest.
    pub fn lacks_only(&self, unread: usize) -> bool {
        self.sent == self.to_send && self.received as usize + unread == self.expected.len()
    }

    /// Reads, writes and closes as planned. Returns when it wants to do more, if nothing happens before.
    ///
    /// # Errors
    /// What is wrong with the bytes that came.
    pub fn work(&mut self, now: Instant, socket: &mut Socket<'_>) -> Result<Option<Instant>, String> {
        // smoltcp forgets what was not read when TIME-WAIT ends: who is past the end reads without a break.
        let is_ending = matches!(
            socket.state(),
            State::TimeWait | State::Closed | State::LastAck | State::Closing
        );
        if self.next_move.is_some_and(|at| now < at) && !is_ending {
            return Ok(self.next_move);
        }
        let before = (self.sent, self.received);
        self.read(socket, is_ending)?;
        if let Close::Abort { received } = self.plan.close
            && (self.received >= received.min(self.expected.len() as u32))
            && self.has_begun(now)
        {
            socket.abort();
            return Ok(None);
        }
        self.write(now, socket);
        self.close(socket);
        self.next_move = None;
        if before != (self.sent, self.received) && self.plan.pause_ms > 0 {
            self.next_move = Some(now + Duration::from_millis(self.plan.pause_ms));
        }
        let thinks_until = self.speaks_at.filter(|at| now < *at);
        let piece_at = self.piece_at.filter(|at| now < *at);
        Ok([self.next_move, thinks_until, piece_at].into_iter().flatten().min())
    }

    fn read(&mut self, socket: &mut Socket<'_>, everything: bool) -> Result<(), String> {
        let mut left = if self.plan.pause_ms > 0 && !everything {
            self.plan.chunk
        } else {
            usize::MAX
        };
        let came = match self.sends {
            Way::ToServer => Way::ToClient,
            Way::ToClient => Way::ToServer,
        };
        while left > 0 {
            let (id, most) = (self.id, left);
            let awaited = &self.expected[(self.received as usize).min(self.expected.len())..];
            let outcome = socket.recv(|bytes| {
                let taken = bytes.len().min(most);
                // Bytes beyond the end are counted, and complained of below.
                let wrong = (0..taken.min(awaited.len())).find(|&i| bytes[i] != awaited[i]);
                (taken, wrong.map_or(Ok(taken), |at| Err((at, bytes[at]))))
            });
            match outcome {
                Ok(Ok(0)) => break,
                Ok(Ok(taken)) => {
                    self.received += taken as u32;
                    left -= taken;
                }
                Ok(Err((at, byte))) => {
                    let right = awaited[at];
                    let at = self.received + at as u32;
                    return Err(format!(
                        "connection {id}, {came:?}: byte {at} is {byte:#04x}, not {right:#04x}"
                    ));
                }
                Err(RecvError::Finished) => {
                    self.end_seen = true;
                    break;
                }
                Err(RecvError::InvalidState) => break,
            }
        }
        if self.received as usize > self.expected.len() {
            return Err(format!(
                "connection {}, {came:?}: {} bytes came, {} were sent",
                self.id,
                self.received,
                self.expected.len()
            ));
        }
        Ok(())
    }

    fn has_begun(&mut self, now: Instant) -> bool {
        if self.speaks_at.is_none() && self.received >= self.plan.speaks_after {
            self.speaks_at = Some(now + Duration::from_millis(self.plan.think_ms));
        }
        self.speaks_at.is_some_and(|at| now >= at)
    }

    /// Writes the header, one piece at a time. Returns true when it is written and its last pause is over.
    fn write_header(&mut self, now: Instant, socket: &mut Socket<'_>) -> bool {
        while self.piece_at.is_none_or(|at| now >= at) {
            if self.header_sent == self.header.len() {
                return true;
            }
            let end = self.cuts.iter().find(|&&cut| cut > self.header_sent);
            let end = end.copied().unwrap_or(self.header.len());
            let Ok(written @ 1..) = socket.send_slice(&self.header[self.header_sent..end]) else {
                return false;
            };
            self.header_sent += written;
            self.piece_at = self.cuts.contains(&self.header_sent).then(|| now + PIECE_PAUSE);
        }
        false
    }

    fn write(&mut self, now: Instant, socket: &mut Socket<'_>) {
        // Whoever waits for the other end's first word has said before who is calling.
        let waits = self.sends == Way::ToServer && self.plan.speaks_after > 0;
        if waits && !self.write_header(now, socket) {
            return;
        }
        if !self.has_begun(now) || !self.write_header(now, socket) {
            return;
        }
        let mut left = if self.plan.pause_ms > 0 {
            self.plan.chunk
        } else {
            usize::MAX
        };
        while left > 0 && self.sent < self.to_send && socket.can_send() {
            let (id, way, position) = (self.id, self.sends, self.sent);
            let most = left.min(self.plan.chunk).min((self.to_send - self.sent) as usize);
            let written = socket.send(|room| {
                let count = room.len().min(most);
                for (i, byte) in room[..count].iter_mut().enumerate() {
                    *byte = byte_at(id, way, position + i as u32);
                }
                (count, count)
            });
            let Ok(written @ 1..) = written else { break };
            self.sent += written as u32;
            left -= written;
        }
    }

    fn close(&mut self, socket: &mut Socket<'_>) {
        if self.closed
            || self.sent < self.to_send
            || self.header_sent < self.header.len()
            || !matches!(socket.state(), State::Established | State::CloseWait)
        {
            return;
        }
        let is_time = match self.plan.close {
            Close::AfterSending => true,
            Close::AfterAll => self.has_all(),
            Close::AfterEnd => self.end_seen,
            Close::Abort { .. } => false,
        };
        if is_time {
            socket.close();
            self.closed = true;
        }
    }
}
