//! What a capture says about a frame, in `key=value` words: `docs/capture.md` explains each. Wireshark's post-dissector
//! (`packaging/wireshark/proxyengine.lua`) reads them again.

use std::fmt::Write as _;
use std::net::SocketAddr;

use e2d2::counters::Reason;
use e2d2::wire::headers::Headers;
use e2d2::wire::protocol;
use e2d2::wire::tcp::{HEADER_LEN, TcpFlags, TcpHeader};
use netfcts::format::NameTable;
use netfcts::leg::{mapped, unmapped};
use netfcts::record::Cause;
use splice::action::Action;
use splice::capture::{Done, Facts, FrameKind, Stepped};

/// Which leg of its connection a frame is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Leg {
    Client,
    Server,
}

impl Leg {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Client => "client",
            Self::Server => "server",
        }
    }
}

/// The word for how a frame came to be.
pub(super) fn kind_name(kind: FrameKind) -> &'static str {
    match kind {
        FrameKind::Received(_) => "received",
        FrameKind::Passed => "passed",
        FrameKind::Held => "held",
        FrameKind::Own => "own",
    }
}

/// The name of a variant without its values, as words have no blanks.
fn name_of(value: &impl std::fmt::Debug) -> String {
    let text = format!("{value:?}");
    text.chars().filter(|character| *character != ' ').collect()
}

/// What was decided about all frames of a group.
pub(super) fn decision(steps: &[Stepped], done: &Done, facts: Option<&Facts>) -> String {
    let mut text = String::new();
    let phases = match (steps.first(), steps.last()) {
        (Some(first), Some(last)) => Some((name_of(&first.before), name_of(&last.after))),
        _ => done.facts.map(|facts| (name_of(&facts.phase), name_of(&facts.phase))),
    };
    // Writing to a text cannot fail.
    match phases {
        Some((before, after)) if before == after => _ = write!(text, " phase={before}"),
        Some((before, after)) => _ = write!(text, " phase={before}>{after}"),
        None => {}
    }
    let mut list = |key: &str, words: Vec<String>| {
        if !words.is_empty() {
            _ = write!(text, " {key}={}", words.join(";"));
        }
    };
    list("events", steps.iter().map(|step| name_of(&step.event)).collect());
    let actions = steps.iter().flat_map(|step| step.actions);
    list("actions", actions.map(name_of).collect());
    if let Some([client_seq, server_seq, client_ts, server_ts]) = facts.and_then(|facts| facts.offsets) {
        let signed = |offset: u32| offset.cast_signed();
        _ = write!(
            text,
            " dseq={:+},{:+} dts={:+},{:+}",
            signed(client_seq),
            signed(server_seq),
            signed(client_ts),
            signed(server_ts)
        );
    }
    if let Some(reason) = done.dropped {
        _ = write!(text, " drop={}", reason.name());
    }
    if let Some(cause) = cause_of(steps) {
        _ = write!(text, " end={}", cause.name());
    }
    text
}

/// Who takes part in a connection.
pub(super) fn parties(
    facts: Option<&Facts>,
    listener: Option<u16>,
    rule: Option<&String>,
    names: &NameTable,
) -> String {
    let mut text = String::new();
    let Some(facts) = facts else { return text };
    let address = unmapped(u128::from_ne_bytes(facts.client));
    _ = write!(text, " client={}", SocketAddr::new(address, facts.client_port));
    if let Some(name) = listener.and_then(|listener| names.listeners.get(usize::from(listener))) {
        _ = write!(text, " listener={name}");
    }
    if let Some(rule) = rule {
        _ = write!(text, " rule={rule}");
    }
    if let Some(server) = facts.server.and_then(|server| names.servers.get(server.index())) {
        _ = write!(text, " server={}", server.name);
    }
    text
}

/// Why a connection ended in these steps, if it did.
pub(super) fn cause_of(steps: &[Stepped]) -> Option<Cause> {
    steps.iter().find_map(|step| {
        step.actions.iter().find_map(|action| match action {
            Action::EnterTimeWait(cause) | Action::Forget(cause) => Some(*cause),
            Action::ForgetWithFailure => Some(step.failure.unwrap_or(Cause::NoServer)),
            _ => None,
        })
    })
}

/// What the headers of a frame say, however much of it there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ends {
    pub(super) source: (u128, u16),
    pub(super) destination: (u128, u16),
    /// Bytes of TCP payload.
    pub(super) payload: u32,
    /// The first number of the segment, and how many it has: those of its payload and of a FIN.
    pub(super) seq: u32,
    pub(super) length: u32,
}

/// Reads the addresses and ports of a frame; without TCP ports are 0.
pub(super) fn ends_of(frame: &[u8]) -> Option<Ends> {
    let headers = Headers::read(frame)?;
    let tcp = headers.tcp(frame);
    if headers.protocol == protocol::TCP && tcp.is_none() {
        return None;
    }
    let (source, destination) = tcp.map_or((0, 0), |tcp| (tcp.source, tcp.destination));
    // A packet has fewer than 2^17 bytes.
    let payload = tcp.map_or(0, |tcp| headers.end.saturating_sub(tcp.payload) as u32);
    let header = tcp
        .and_then(|_| frame.get(headers.l4..)?.first_chunk())
        .map(TcpHeader::<&[u8; HEADER_LEN]>);
    let (seq, fin) = header.map_or((0, 0), |header| {
        (header.seq(), u32::from(header.flags().contains(TcpFlags::FIN)))
    });
    Some(Ends {
        source: (mapped(headers.source), source),
        destination: (mapped(headers.destination), destination),
        payload,
        seq,
        length: payload + fin,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use splice::event::Event;
    use splice::phase::Phase;
    use std::net::IpAddr;

    #[test]
    fn a_connection_that_finds_no_server_ends_for_what_its_calls_met() {
        let ended = |failure| Stepped {
            before: Phase::ServerSynSent,
            event: Event::NoServer,
            after: Phase::Closed,
            actions: &[Action::ResetClient, Action::ForgetWithFailure],
            failure,
        };
        assert_eq!(
            cause_of(&[ended(Some(Cause::ServerRefused))]),
            Some(Cause::ServerRefused)
        );
        assert_eq!(cause_of(&[ended(None)]), Some(Cause::NoServer));
    }

    #[test]
    fn headers_that_are_cut_off_are_no_ends() {
        let mut frame = vec![0; 74];
        frame[12..14].copy_from_slice(&[8, 0]);
        (frame[14], frame[23], frame[46]) = (0x45, 6, 0x80);
        frame[16..18].copy_from_slice(&100_u16.to_be_bytes());
        frame[26..34].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 9]);
        frame[34..38].copy_from_slice(&[4, 0, 0, 80]);
        let ends = ends_of(&frame).expect("they are there");
        assert_eq!((ends.source.1, ends.destination.1, ends.payload), (1024, 80, 48));
        (frame[41], frame[47]) = (9, 1);
        let closing = ends_of(&frame).expect("they are there");
        assert_eq!((closing.seq, closing.length), (9, 49));
        assert_eq!(unmapped(ends.source.0), IpAddr::from([10, 0, 0, 1]));
        for end in 0..54 {
            assert_eq!(ends_of(&frame[..end]), None, "{end}");
        }
        frame[23] = 1;
        assert_eq!(ends_of(&frame).map(|ends| ends.source.1), Some(0));
    }
}
