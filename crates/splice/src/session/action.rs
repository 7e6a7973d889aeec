//! What a transition asks for. `step` names actions, [the shell](crate::proxy) carries them out in the order given.

use crate::base::drop_reason::DropReason;
use crate::base::stage::WorkStage;
use netfcts::record::Cause;

/// One thing to do. The data for it are in the connection and in the segment that caused it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Answer a SYN with a cookie SYN-ACK; store nothing.
    SendCookie,
    /// Make the connection that a cookie stands for. The segment is then looked at again in the new phase.
    CreateConnection,
    /// Make a connection of a SYN that is passed on.
    StoreSyn,
    /// Pass the server's SYN-ACK on to the client, and remember what it says.
    ForwardSynAck,
    /// Take over the numbers and options that the two ends have agreed on, and send the PROXY header if there is one. The
    /// segment is then looked at again in the new phase.
    Establish,
    /// Note what the two ends have agreed on, and wait for the PROXY header that the client's stream begins with. What the
    /// segment carries is the next event.
    AwaitProxyHeader,
    /// Look for that header in what is held: what comes of it is the next event.
    ReadHeader,
    /// Keep the client's bytes (and FIN) until there is a server for them.
    Hold,
    /// Forget the held bytes that the client has no ACK for; it repeats them.
    EvictUnacked,
    /// Ask the selector with the bytes in order so far; its answer is the next event.
    AskSelector,
    /// As [`Action::AskSelector`], but no more will be waited for; without an answer, the listener's default pool is it.
    AskAtLast,
    /// Acknowledge the bytes in order: from now on we owe them to the server.
    AckBuffered,
    /// Take a source port and send a SYN to the chosen server; failing that, the next event is `NoServer`.
    ConnectServer,
    /// Repeat our SYN, or the one that is passed on, to the server.
    RetransmitSyn,
    /// Give the server up and choose the next one; the next event is `Selected` or `NoServer`.
    NextServer,
    /// Give the call up for another server that is not ejected; the next event is `Selected`.
    MoveToNextServer,
    /// Tell a server that remembers an older connection to forget it.
    ResetStaleServer,
    /// Take over the numbers and options of the server's SYN-ACK, behind a PROXY header if one was awaited.
    Splice,
    /// Acknowledge the server's SYN-ACK.
    AcknowledgeServer,
    /// Send the held bytes to the server, in order.
    SendBuffered,
    /// Send again what we owe, to the server or in the place of other bytes, and has not been acknowledged.
    Retransmit,
    /// Translate the segment and pass it to the other side.
    Forward,
    /// Drop the segment and have its receiver tell the sender where it stands, rate limited.
    AskReceiver,
    /// Ask who is said to have sent a RST whether it is still there, rate limited.
    SendKeepAlive,
    /// Close our direction towards the client: FIN and ACK of its FIN.
    CloseClient,
    /// Answer with the numbers that we expect (RFC 5961 4.2), rate limited.
    ChallengeAck,
    /// Send a RST to the client.
    ResetClient,
    /// Send a RST to the server.
    ResetServer,
    /// Write the record, keep the translation for late segments, let the port rest.
    EnterTimeWait(Cause),
    /// Nothing here belongs to the segment: answer with a RST if the configuration says so, rate limited.
    Refuse,
    /// As [`Action::Forget`], for the reason for which the last server was given up.
    ForgetWithFailure,
    /// Write the record and forget the connection: no server was ever part of it.
    Forget(Cause),
    /// Drop the segment and count why.
    Drop(DropReason),
}

impl Action {
    /// Nothing is left of the connection behind it.
    pub(crate) const fn ends_connection(self) -> bool {
        matches!(
            self,
            Action::EnterTimeWait(_) | Action::Forget(_) | Action::ForgetWithFailure
        )
    }
}

impl From<Action> for WorkStage {
    #[inline]
    fn from(action: Action) -> WorkStage {
        match action {
            Action::SendCookie => WorkStage::SendCookie,
            Action::CreateConnection => WorkStage::CreateConnection,
            Action::StoreSyn => WorkStage::StoreSyn,
            Action::ForwardSynAck => WorkStage::ForwardSynAck,
            Action::Establish => WorkStage::Establish,
            Action::AwaitProxyHeader => WorkStage::AwaitProxyHeader,
            Action::ReadHeader => WorkStage::ReadHeader,
            Action::Hold => WorkStage::Hold,
            Action::EvictUnacked => WorkStage::EvictUnacked,
            Action::AskSelector | Action::AskAtLast => WorkStage::AskSelector,
            Action::AckBuffered => WorkStage::AckBuffered,
            Action::ConnectServer => WorkStage::ConnectServer,
            Action::RetransmitSyn => WorkStage::RetransmitSyn,
            Action::MoveToNextServer | Action::NextServer => WorkStage::NextServer,
            Action::ResetStaleServer => WorkStage::ResetStaleServer,
            Action::Splice => WorkStage::Splice,
            Action::AcknowledgeServer => WorkStage::AcknowledgeServer,
            Action::SendBuffered => WorkStage::SendBuffered,
            Action::Retransmit => WorkStage::Retransmit,
            Action::Forward => WorkStage::Rewrite,
            Action::AskReceiver => WorkStage::AskReceiver,
            Action::SendKeepAlive => WorkStage::SendKeepAlive,
            Action::CloseClient => WorkStage::CloseClient,
            Action::ChallengeAck => WorkStage::ChallengeAck,
            Action::ResetClient | Action::ResetServer => WorkStage::Reset,
            Action::EnterTimeWait(_) => WorkStage::EnterTimeWait,
            Action::Refuse => WorkStage::Refuse,
            Action::Forget(_) | Action::ForgetWithFailure => WorkStage::Forget,
            Action::Drop(_) => WorkStage::Drop,
        }
    }
}
