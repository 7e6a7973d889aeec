//! The stages that a core's cycles are counted by, if they are counted at all.
//!
//! The core has no clock. It says where it has got to ([`Output::enter`](crate::base::output::Output::enter)), and whoever runs it may look at
//! the time then: `src/stages.rs` of the engine. By default nobody does, and nothing of it is left in the program.

e2d2::reasons! {
    /// What a core is doing. Those from `SendCookie` on are the actions of [`step`](crate::session::step::step) by name.
    #[allow(missing_docs, reason = "actions are described where they are")]
    pub enum WorkStage {
        /// Taking a burst from a port.
        Receive = "receive",
        /// Checking frames and reading headers.
        Parse = "parse",
        /// Verifying checksums.
        Checksum = "checksum",
        /// Finding the connection of a segment.
        LookUp = "look_up",
        /// Saying what a segment means.
        Classify = "classify",
        /// Rewriting and passing on: the action `Forward`.
        Rewrite = "rewrite",
        /// Handing a burst to a port.
        Send = "send",
        /// Timers that are due, before their actions.
        Timers = "timers",
        /// The graph between these, neighbours and what is not TCP.
        Rest = "rest",
        SendCookie = "action_send_cookie",
        CreateConnection = "action_create_connection",
        StoreSyn = "action_remember_syn",
        ForwardSynAck = "action_pass_syn_ack",
        Establish = "action_establish",
        AwaitProxyHeader = "action_await_header",
        ReadHeader = "action_read_header",
        Hold = "action_hold",
        EvictUnacked = "action_give_up_copy",
        AskSelector = "action_ask_selector",
        AckBuffered = "action_acknowledge_held",
        ConnectServer = "action_connect_server",
        RetransmitSyn = "action_repeat_syn",
        NextServer = "action_next_server",
        ResetStaleServer = "action_reset_stale_server",
        Splice = "action_splice",
        AcknowledgeServer = "action_acknowledge_server",
        SendBuffered = "action_send_held",
        Retransmit = "action_send_owed",
        AskReceiver = "action_ask_receiver",
        SendKeepAlive = "action_probe_sender",
        CloseClient = "action_close_client",
        ChallengeAck = "action_challenge_ack",
        Reset = "action_reset",
        EnterTimeWait = "action_quarantine",
        Refuse = "action_refuse",
        RejectByRule = "action_reject_by_rule",
        Tarpit = "action_tarpit",
        Forget = "action_forget",
        Drop = "action_drop",
    }
}
