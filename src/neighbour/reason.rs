//! What happened to the frames of this module, counted: why they were dropped, and what the others led to.

e2d2::reasons! {
    /// Why a frame ended here without an answer and without teaching us anything.
    pub enum NeighbourDrop {
        /// The Ethernet destination is another station or a group we are not in.
        OtherStation = "other_station",
        /// The frame carries one of our own MAC addresses as its source: a loop.
        OwnFrame = "own_frame",
        /// Too short, or a length, type or option field that the protocol does not allow.
        Malformed = "malformed",
        /// Neighbour discovery from beyond the link: hop limit below 255 (RFC 4861 7.1.1).
        BadHopLimit = "bad_hop_limit",
        /// The ICMP checksum is wrong.
        BadChecksum = "bad_checksum",
        /// A source address that no single neighbour can have, or that does not go with the destination.
        BadSource = "bad_source",
        /// One of our own addresses as the source.
        OwnSource = "own_source",
        /// A target address that nobody can own.
        BadTarget = "bad_target",
        /// Meant for an address that is not ours on this port.
        NotOurAddress = "not_our_address",
        /// From a neighbour that we have no reason to know.
        UnknownNeighbour = "unknown_neighbour",
        /// A message type that we neither answer nor use.
        Unsupported = "unsupported",
        /// More than the rate limit allows.
        RateLimited = "rate_limited",
        /// The answer does not fit the request's buffer.
        NoRoom = "no_room",
        /// No buffer for a frame of our own; it is sent later.
        NoBuffer = "no_buffer",
    }
}

e2d2::reasons! {
    /// What was done.
    pub enum NeighbourEvent {
        /// An ARP request was answered.
        ArpAnswered = "arp_answered",
        /// A neighbour solicitation was answered.
        SolicitationAnswered = "solicitation_answered",
        /// An echo request was answered.
        EchoAnswered = "echo_answered",
        /// An own address was announced.
        Announced = "announced",
        /// The multicast groups of some own addresses were reported.
        GroupsReported = "groups_reported",
        /// A neighbour was asked for its MAC address.
        Asked = "asked",
        /// A neighbour answered.
        Confirmed = "confirmed",
        /// A neighbour's MAC address was learned from what it said unasked.
        Learned = "learned",
        /// A neighbour has another MAC address than before.
        MacChanged = "mac_changed",
        /// A claim that may not change the entry (no override flag) makes us ask the neighbour.
        Doubted = "doubted",
        /// A claim against an entry with a fixed MAC address was ignored.
        StaticKept = "static_kept",
        /// A known neighbour said what we knew.
        Unchanged = "unchanged",
        /// A neighbour stopped answering; its MAC address was forgotten.
        Lost = "lost",
        /// Another station uses one of our addresses.
        DuplicateAddress = "duplicate_address",
    }
}
