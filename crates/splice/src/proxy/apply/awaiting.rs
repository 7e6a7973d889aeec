//! A SYN was passed on, and the client's stream begins with a PROXY header.
//!
//! ```text
//!  client ── ACK ──────► noted; the server still waits for it                               AwaitProxyHeader
//!         ── header ───► held, in any pieces, acknowledged by us and taken off
//!                        ── ACK, our header if wanted, what came behind theirs ──► server   Spliced
//! ```
//!
//! The server has answered a SYN and no more: its application hears nothing of a connection whose header is missing or
//! wrong, and no server speaks before it (proxy-protocol.txt 2: nothing is to be processed before the whole header). It
//! repeats its SYN-ACK meanwhile; so the wait, `select`, should be over before it gives up.

use super::ActionContext;
use super::shaking::{self, PeerNumbers};
use super::waiting;
use crate::base::callbacks::{MAX_FIRST_PAYLOAD, SelectServer};
use crate::base::output::{NextHops, Output};
use crate::handshake::forwarded_syn;
use crate::proxy::Proxy;
use crate::proxy_header::send_proxy;
use crate::session::connection::{Opening, Stage};
use crate::session::event::Event;
use crate::session::phase::Phase;
use crate::session::{classify, numbers};
use e2d2::buffer::{BufferPool, PacketBuffer};
use e2d2::time::Instant;
use e2d2::wire::tcp::TcpOptions;
use netfcts::Side;
use netfcts::record::State;
use std::ops::ControlFlow;

impl<P, S, N> Proxy<P, S, N>
where
    P: BufferPool,
    S: SelectServer,
    N: NextHops,
{
    /// The client has acknowledged the server's SYN. From here on it stands as one that we have shaken hands with
    /// ourselves, with what it has agreed on with the server.
    pub(crate) fn await_header(&mut self, now: Instant, slot: u32, scene: &ActionContext<P::Buffer>) -> Option<Event> {
        let incoming = scene.incoming.as_ref()?;
        let connection = self.connections.get_mut(slot)?;
        let select = self.settings.listeners.get(usize::from(connection.listener))?.select;
        let Stage::Opening(opening) = &mut connection.stage else {
            return None;
        };
        let syn = self.handshake.forwarded_syns.get(opening.syn.into())?;
        let answer = syn.answer?;
        let asked = TcpOptions::parse(&syn.options);
        let scale = shaking::scale_between(asked, answer.options);
        let scales = asked.window_scale.is_some() && answer.options.window_scale.is_some();
        opening.agreed.window_scale = scales.then_some(scale.client);
        opening.agreed.sack = asked.sack_permitted && answer.options.sack_permitted;
        opening.timestamps = asked.timestamps.is_some() && answer.options.timestamps.is_some();
        opening.advertised_scale = scale.advertised;
        opening.advertised_units = Opening::units_of_window(answer.window.min(MAX_FIRST_PAYLOAD as u16));
        waiting::note_client(opening, incoming.buffer.data(), incoming.segment);
        let event = classify::from_client_while_opening(Phase::AwaitProxyHeader, opening, || 0, incoming.segment);
        let says_more = incoming.segment.len() > 0;
        self.headers.received.await_header(slot);
        self.timers.arm(slot, now + select);
        self.on_cookie_returned(now, incoming.segment.key.remote);
        self.records.state(slot, Side::Client, State::Established, now);
        says_more.then_some(event)
    }

    /// Looks for the header in what has come so far.
    pub(crate) fn read_header_behind_syn(
        &mut self,
        slot: u32,
        scene: &mut ActionContext<P::Buffer>,
        out: &mut impl Output<P::Buffer>,
    ) -> Option<Event> {
        match self.read_header(slot, scene, out) {
            // A check that closes behind its header asks the server, as every SYN of this listener does.
            ControlFlow::Continue(()) | ControlFlow::Break(Some(Event::ClientFin)) => Some(Event::Ready),
            ControlFlow::Break(follows) => follows,
        }
    }

    /// The header is whole, or will not come: both numberings are known, and the two ends hear of each other.
    pub(crate) fn splice_answered(
        &mut self,
        now: Instant,
        slot: u32,
        scene: &mut ActionContext<P::Buffer>,
    ) -> Option<Event> {
        let ends = if self.selector.inspects() {
            self.client_of(slot).zip(self.destination_of(slot))
        } else {
            None
        };
        let connection = self.connections.get(slot)?;
        let mut opening = *connection.opening()?;
        let syn = self.handshake.forwarded_syns.remove(opening.syn.into())?;
        opening.syn = forwarded_syn::NONE;
        let answer = syn.answer?;
        let start = self.records.start(slot).unwrap_or(now);
        // What the header said is needed for the last time.
        let header_len = send_proxy::header(
            &self.settings,
            connection,
            (self.reassembly.in_order(opening.held), self.headers.received.kept(slot)),
            (self.settings.core, start),
            self.rtx.draft(),
        );
        self.headers.received.forget(slot);
        let newest = PeerNumbers {
            timestamps: opening
                .timestamps
                .then_some((opening.client_tsval, answer.newest_tsval)),
            window: opening.client_window,
            told: numbers::advertised_edge(&opening),
        };
        let (spliced, mut handoff) = self.meet(connection, (opening, &syn, &answer), header_len, newest);
        handoff.ends = ends;
        scene.handoff = Some(handoff);
        self.connections.get_mut(slot)?.stage = Stage::Spliced(spliced);
        // The timer is set when it is known what is owed.
        None
    }
}
