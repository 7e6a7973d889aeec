//! Why the core dropped a packet. Every drop is counted under one of these. Answers that were not sent, and bytes that were
//! given up, are counted beside that.

e2d2::reasons! {
    /// Why the core dropped a packet.
    pub enum DropReason {
        /// Neither a connection nor a listener wants it.
        UnknownFlow = "unknown_flow",
        /// An ACK to a listener whose number could be a recent cookie, but does not fit the segment: those before it were
        /// lost, or it is forged.
        BadCookie = "bad_cookie",
        /// The cookie is right, but the connection it made is already over.
        CookieReplayed = "cookie_replayed",
        /// The connection table is full.
        TableFull = "table_full",
        /// The flow table has no place near enough to the hash of a new flow. One with a client is not begun; a call to a
        /// server is made from another source port.
        TableCrowded = "table_crowded",
        /// The table is filling up: a cookie is only honoured with payload.
        Pressure = "pressure",
        /// Its Ethernet destination is another station.
        OtherStation = "other_station",
        /// An ICMP error about nothing that we sent, or that says nothing to anyone.
        IcmpUnwanted = "icmp_unwanted",
        /// An ICMP error about a segment that is not in flight.
        IcmpNotInFlight = "icmp_not_in_flight",
        /// A flag combination that no TCP sends (SYN with FIN or RST, no flag at all).
        BadFlags = "bad_flags",
        /// The packet's layout does not fit its bytes: a defect of the caller, counted instead of trusted.
        BadLayout = "bad_layout",
        /// Source and destination are the same end point.
        Land = "land",
        /// The SYN-ACK went out, but will not be repeated: too many clients are half connected.
        HalfOpenFull = "half_open_full",
        /// The SYN was not passed on, but answered here, if it was answered at all: too many wait for their server or their
        /// client.
        ForwardedSynsFull = "forwarded_syns_full",
        /// The TCP checksum is wrong.
        BadTcpChecksum = "bad_tcp_checksum",
        /// It repeats what we have.
        Duplicate = "duplicate",
        /// Outside the window we offered; once connected, outside that of the other side.
        OutOfWindow = "out_of_window",
        /// The memory for held bytes is full, or so full that only connections without a server get any; the client will repeat
        /// them.
        ReassemblyFull = "reassembly_full",
        /// Its source holds its share of the pool for held bytes already; the client will repeat them.
        ReassemblyQuota = "reassembly_quota",
        /// Not a packet, but bytes held of a connection that its client has no ACK for and will repeat: they had waited
        /// longest, and the memory for held bytes was nearly full.
        ReassemblyEvicted = "reassembly_evicted",
        /// Not a packet, but all that was held of a connection that had asked for more: it had waited longest, the memory for
        /// held bytes was nearly full, no copy could be given up, and its client got a RST.
        ConnectionEvicted = "connection_evicted",
        /// A connection that began with no PROXY header where one is required; it was reset.
        HeaderMissing = "proxy_header_missing",
        /// A connection that began with something that is no PROXY header but must be, or with a wrong one; it was reset.
        HeaderMalformed = "proxy_header_malformed",
        /// A PROXY header, or a connection that must begin with one, from an address that is not trusted; it was reset.
        HeaderUntrusted = "proxy_header_untrusted",
        /// A client's address that may not be used as a source towards a server; the server was passed over.
        SourceRefused = "source_refused",
        /// The client's address and port are another connection's towards the same server, which was passed over.
        SourceInUse = "source_in_use",
        /// More holes between held bytes than are kept track of.
        TooManyHoles = "too_many_holes",
        /// What was sent to a server could not be kept for retransmission: too many servers have something to acknowledge.
        RtxFull = "rtx_full",
        /// Not the next bytes of an inspected direction: the sender repeats them after those that are missing.
        OutOfOrder = "out_of_order",
        /// No room to keep what an inspector may make of it: the sender repeats it.
        InspectBufferFull = "inspect_buffer_full",
        /// Too many connections are inspected, or too much is kept, for one more: the connection was reset.
        InspectFull = "inspect_full",
        /// An inspector refused its connection.
        Rejected = "rejected",
        /// A rule refuses its sender, or what its connection began with, by a RST.
        RuleRejected = "rule_rejected",
        /// A rule refuses its sender, or what its connection began with, by silence; or it is a late segment of such a
        /// connection.
        RuleDropped = "rule_dropped",
        /// A rule keeps its sender at a window of zero.
        RuleTarpitted = "rule_tarpitted",
        /// It begins a connection beyond `client_limit`.
        ClientLimit = "client_limit",
        /// It begins a connection beyond the limit of the client's class.
        ClassLimit = "class_limit",
        /// It begins a connection beyond the listener's limit.
        ListenerLimit = "listener_limit",
        /// Its connection is beyond the limit of the pool that was chosen.
        PoolLimit = "pool_limit",
        /// A RST outside the window.
        OutOfWindowRst = "out_of_window_rst",
        /// Not an answer to our SYN.
        NotAnAnswer = "not_an_answer",
        /// A SYN, or an ICMP error about no flow of this core, while more comes in than the core can do: those who are connected go first.
        Overload = "overload",
        /// An answer was not sent, as its rate limit is used up. The packet may be counted under another reason, too.
        RateLimited = "rate_limited",
        /// Too long for the port it must leave by.
        TooBig = "too_big",
        /// Longer than the server takes: passed on in pieces, and its sender told.
        Resegmented = "resegmented",
        /// Its hop limit is used up.
        HopLimit = "hop_limit",
        /// It has an IPv4 source route that is not over, and would have to go on over IPv6.
        SourceRoute = "source_route",
        /// Its buffer has no room for the longer header of IPv6.
        NoHeadroom = "no_headroom",
        /// Held or unacknowledged bytes for which this round had no room left: they are sent again like those that are lost.
        NoRoom = "no_room",
        /// No buffer was free for a packet we had to make.
        NoBuffer = "no_buffer",
        /// The next hop's MAC address is not known yet.
        NoNeighbour = "no_neighbour",
        /// It is another core's, and the ring to that core was full, or there is no such core.
        HandoverRefused = "handover_refused",
        /// The engine is draining and takes no new connection.
        Draining = "draining",
        /// A server's answer to a check with content, whose ring to the checks' thread was full.
        CheckQueueFull = "check_queue_full",
        /// An event, with a segment or without, that the table of phases excludes: a defect of the engine. The connection stays
        /// as it is.
        ImpossibleTransition = "impossible_transition",
        /// It was for us and has been dealt with.
        Consumed = "consumed",
    }
}
