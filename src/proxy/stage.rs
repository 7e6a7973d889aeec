//! The stages that a core's cycles are counted by, if they are counted at all.
//!
//! The core has no clock. It says where it has got to ([`Outbox::enter`](super::Outbox::enter)), and whoever runs it may look at
//! the time then: [`crate::stages`]. By default nobody does, and nothing of it is left in the program.

use super::action::Action;

e2d2::reasons! {
    /// What a core is doing. Those from `SendCookie` on are the actions of [`step`](super::step::step) by name.
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
        RememberSyn = "action_remember_syn",
        PassSynAck = "action_pass_syn_ack",
        Establish = "action_establish",
        AwaitHeader = "action_await_header",
        ReadHeader = "action_read_header",
        SpliceAnswered = "action_splice_answered",
        Hold = "action_hold",
        GiveUpCopy = "action_give_up_copy",
        AskSelector = "action_ask_selector",
        AcknowledgeHeld = "action_acknowledge_held",
        ConnectServer = "action_connect_server",
        RepeatSyn = "action_repeat_syn",
        NextServer = "action_next_server",
        ResetStaleServer = "action_reset_stale_server",
        Splice = "action_splice",
        AcknowledgeServer = "action_acknowledge_server",
        SendHeld = "action_send_held",
        SendOwed = "action_send_owed",
        ForwardRarely = "action_forward_rarely",
        ProbeSender = "action_probe_sender",
        CloseClient = "action_close_client",
        ChallengeAck = "action_challenge_ack",
        Reset = "action_reset",
        Quarantine = "action_quarantine",
        Refuse = "action_refuse",
        Forget = "action_forget",
        Drop = "action_drop",
    }
}

impl From<Action> for WorkStage {
    #[inline]
    fn from(action: Action) -> WorkStage {
        match action {
            Action::SendCookie => WorkStage::SendCookie,
            Action::CreateConnection => WorkStage::CreateConnection,
            Action::RememberSyn => WorkStage::RememberSyn,
            Action::PassSynAck => WorkStage::PassSynAck,
            Action::Establish => WorkStage::Establish,
            Action::AwaitHeader => WorkStage::AwaitHeader,
            Action::ReadHeader => WorkStage::ReadHeader,
            Action::SpliceAnswered => WorkStage::SpliceAnswered,
            Action::Hold => WorkStage::Hold,
            Action::GiveUpCopy => WorkStage::GiveUpCopy,
            Action::AskSelector | Action::AskAtLast => WorkStage::AskSelector,
            Action::AcknowledgeHeld => WorkStage::AcknowledgeHeld,
            Action::ConnectServer => WorkStage::ConnectServer,
            Action::RepeatSyn => WorkStage::RepeatSyn,
            Action::GiveCallUp | Action::NextServer => WorkStage::NextServer,
            Action::ResetStaleServer => WorkStage::ResetStaleServer,
            Action::Splice => WorkStage::Splice,
            Action::AcknowledgeServer => WorkStage::AcknowledgeServer,
            Action::SendHeld => WorkStage::SendHeld,
            Action::SendOwed => WorkStage::SendOwed,
            Action::Forward => WorkStage::Rewrite,
            Action::ForwardRarely => WorkStage::ForwardRarely,
            Action::ProbeSender => WorkStage::ProbeSender,
            Action::CloseClient => WorkStage::CloseClient,
            Action::ChallengeAck => WorkStage::ChallengeAck,
            Action::ResetClient | Action::ResetServer => WorkStage::Reset,
            Action::Quarantine(_) => WorkStage::Quarantine,
            Action::Refuse => WorkStage::Refuse,
            Action::Forget(_) | Action::ForgetUnserved => WorkStage::Forget,
            Action::Drop(_) => WorkStage::Drop,
        }
    }
}
