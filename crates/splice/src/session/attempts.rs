//! How often servers were called for one connection.

/// Counts of one connection's calls to servers, in two bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attempts(u16);

impl Attempts {
    /// The most SYNs to one server: with each, the time to the next doubles.
    pub const MOST_SYNS: u8 = 15;
    /// The most calls that are given up because they are overdue; some seconds where servers are near.
    pub const MOST_GIVEN_UP: u16 = 63;
    const OVERDUE: u16 = 1 << 15;

    /// SYNs sent to the present server.
    pub fn syns(self) -> u8 {
        self.0 as u8 & Self::MOST_SYNS
    }

    /// Servers called anew because no other was left; at most 16.
    pub fn retries(self) -> u8 {
        (self.0 >> 4 & 0x1f) as u8
    }

    /// Calls given up because they were overdue.
    pub fn given_up(self) -> u16 {
        self.0 >> 9 & Self::MOST_GIVEN_UP
    }

    /// The present call has been noted to be overdue.
    pub fn is_overdue(self) -> bool {
        self.0 & Self::OVERDUE != 0
    }

    /// A server is about to be called.
    pub fn begin_call(&mut self) {
        self.0 &= !(Self::OVERDUE | u16::from(Self::MOST_SYNS));
    }

    /// One more SYN to the present server.
    pub fn note_syn(&mut self) {
        self.0 += u16::from(self.syns() < Self::MOST_SYNS);
    }

    /// One more server called anew.
    pub fn note_retry(&mut self) {
        self.0 += u16::from(self.retries() < 0x1f) << 4;
    }

    /// One more call given up because it is overdue.
    pub fn note_given_up(&mut self) {
        self.0 += u16::from(self.given_up() < Self::MOST_GIVEN_UP) << 9;
    }

    /// The present call is overdue.
    pub fn note_overdue(&mut self) {
        self.0 |= Self::OVERDUE;
    }
}
