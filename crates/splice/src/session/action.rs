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
    /// Take over the numbers and options that the two ends have agreed on.
    Establish,
    /// Note what the two ends have agreed on, and wait for the PROXY header that the client's stream begins with.
    AwaitProxyHeader,
    /// Go on as if the client's SYN had not been passed on, but answered by a cookie.
    FallBackToCookie,
    /// Forget the held bytes that the client has no ACK for; it repeats them.
    EvictUnacked,
    /// Acknowledge the bytes in order: from now on the engine retransmits them to the server.
    AckBuffered,
    /// Begin the call to the chosen server.
    BeginCall,
    /// Send our SYN, or the one that is passed on, to the server.
    SendSyn,
    /// Retransmit our SYN, or the one that is passed on, to the server.
    RetransmitSyn,
    /// Give the source port back and leave the server, which has failed for this cause, if any.
    ReleaseServer(Option<Cause>),
    /// Tell a server that remembers an older connection to forget it, and repeat our SYN, rate limited.
    ResetStaleServer,
    /// Note what a segment of the client without a byte says: its window and its newest timestamp.
    NoteClient,
    /// Take over the numbers and options of the server's SYN-ACK, behind a PROXY header if one was awaited.
    Splice,
    /// Acknowledge the server's SYN-ACK.
    AcknowledgeServer,
    /// Retransmit what is unacknowledged of the engine's own: to the server, or in the place of other bytes.
    Retransmit,
    /// Translate the segment and pass it to the other side.
    Forward,
    /// Drop the segment and have its receiver tell the sender where it stands, rate limited.
    AskReceiver,
    /// Send a keep-alive to the side whose RST is in the window, but not exact; rate limited.
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
    /// The segment belongs to no connection: answer with a RST if the configuration says so, rate limited.
    Refuse,
    /// A rule refuses its sender: answer with a RST, rate limited.
    RejectByRule,
    /// A rule keeps its sender at a window of zero: answer with that, rate limited.
    Tarpit,
    /// As [`Action::Forget`], for the reason for which the last server was given up.
    ForgetWithFailure,
    /// Write the record and forget the connection: no server was ever part of it.
    Forget(Cause),
    /// Drop the segment and count why.
    Drop(DropReason),
}

/// What a transition asks for last: the answer depends on more than the connection, and is the next event.
/// `repr(u8)`: see [`Event`](crate::session::event::Event).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Ask {
    /// Is there room for the client's bytes (and FIN)? `Buffered`; nothing if there is none, the client repeats them.
    Buffer,
    /// What of the PROXY header is in the buffered bytes? `HeaderDone`, `NeedMore`, `BadHeader`.
    ReadHeader,
    /// Which server does the selector name by the bytes in order so far? `Selected`, `NeedMore`, `Rejected`, `NoServer`; what
    /// [`Ask::ReadHeader`] answers while a header is awaited; nothing without new bytes.
    Select(PayloadWait),
    /// Is a source port towards the chosen server free? `PortTaken`, `NoPort`.
    TakePort,
    /// Which server of the pool is the next? `Selected`, `NoServer`.
    NextServer,
    /// The same behind silence, which may be nothing but loss: the server may be called again, as often as it allows.
    NextOrSameServer,
    /// Is there another server for a call that is overdue? `Replaced`; nothing if there is none.
    OtherServer,
    /// What becomes of the buffered bytes? They go to the server, behind the PROXY header and through the inspector: `Segment`
    /// with the client's FIN, `Rejected`, nothing.
    SendBuffered,
    /// What is the segment in the new phase? It is passed on behind the PROXY header, if one is to be sent.
    Reclassify,
}

/// Whether more of the first payload would be waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PayloadWait {
    /// It would.
    Left,
    /// No: without an answer of the selector, the listener's default pool is it.
    Over,
}

impl From<Ask> for WorkStage {
    #[inline]
    fn from(ask: Ask) -> WorkStage {
        match ask {
            Ask::Buffer => WorkStage::Hold,
            Ask::ReadHeader => WorkStage::ReadHeader,
            Ask::Select(_) => WorkStage::AskSelector,
            Ask::TakePort => WorkStage::ConnectServer,
            Ask::NextServer | Ask::NextOrSameServer | Ask::OtherServer => WorkStage::NextServer,
            Ask::SendBuffered => WorkStage::SendBuffered,
            Ask::Reclassify => WorkStage::Classify,
        }
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
            Action::FallBackToCookie => WorkStage::CreateConnection,
            Action::EvictUnacked => WorkStage::EvictUnacked,
            Action::AckBuffered => WorkStage::AckBuffered,
            Action::BeginCall | Action::SendSyn => WorkStage::ConnectServer,
            Action::RetransmitSyn => WorkStage::RetransmitSyn,
            Action::ReleaseServer(_) => WorkStage::NextServer,
            Action::ResetStaleServer => WorkStage::ResetStaleServer,
            Action::Splice => WorkStage::Splice,
            Action::AcknowledgeServer => WorkStage::AcknowledgeServer,
            Action::Retransmit => WorkStage::Retransmit,
            Action::Forward => WorkStage::Rewrite,
            Action::AskReceiver => WorkStage::AskReceiver,
            Action::SendKeepAlive => WorkStage::SendKeepAlive,
            Action::CloseClient => WorkStage::CloseClient,
            Action::ChallengeAck => WorkStage::ChallengeAck,
            Action::ResetClient | Action::ResetServer => WorkStage::Reset,
            Action::EnterTimeWait(_) => WorkStage::EnterTimeWait,
            Action::Refuse => WorkStage::Refuse,
            Action::RejectByRule => WorkStage::RejectByRule,
            Action::Tarpit => WorkStage::Tarpit,
            Action::Forget(_) | Action::ForgetWithFailure => WorkStage::Forget,
            Action::Drop(_) | Action::NoteClient => WorkStage::Drop,
        }
    }
}
