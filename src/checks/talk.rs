//! What is said over the connection of one check: PROXY header, request, answer.

use std::net::SocketAddr;

use netfcts::FourTuple;
use netfcts::leg::unmapped;
use proxy_protocol::{Addresses, Header};
use splice::settings::SendProxy;

use super::end_point::MOST_HEARD;
use super::request::{self, Verdict};
use crate::config::{CheckContent, CheckRequest};

/// Room for a PROXY header without fields; the longest is that of version 1.
const HEADER: usize = proxy_protocol::V1_MAX_LEN;

/// The conversation of one check.
pub(super) struct Talk {
    request: CheckRequest,
    say: Vec<u8>,
    said: usize,
    heard: Vec<u8>,
    /// There is something to judge that was not there before.
    is_news: bool,
}

impl Talk {
    /// What is to be said to the server of this connection, whose connections begin like that.
    pub(super) fn new(content: &CheckContent, announce: SendProxy, key: &FourTuple) -> Self {
        let mut say = header(announce, key);
        say.extend_from_slice(&request::bytes(&content.request, server(key)));
        Talk {
            request: content.request.clone(),
            say,
            said: 0,
            heard: Vec::new(),
            is_news: true,
        }
    }

    /// What is still to be sent.
    pub(super) fn to_say(&self) -> &[u8] {
        &self.say[self.said..]
    }

    /// So much of it is on its way.
    pub(super) fn note_said(&mut self, bytes: usize) {
        self.said += bytes;
    }

    /// The server has said this, too.
    pub(super) fn hear(&mut self, bytes: &[u8]) {
        let room = MOST_HEARD - self.heard.len().min(MOST_HEARD);
        self.heard.extend_from_slice(&bytes[..bytes.len().min(room)]);
        self.is_news = true;
    }

    /// What comes of it; `is_all` if the server says no more.
    pub(super) fn judge(&mut self, is_all: bool) -> Verdict {
        let is_all = is_all || self.heard.len() >= MOST_HEARD;
        if !self.is_news && !is_all {
            return Verdict::More;
        }
        self.is_news = false;
        request::judge(&self.request, &self.heard, is_all)
    }
}

/// The header is of us, not of a client: version 2 has a command for it, version 1 says our own address.
fn header(announce: SendProxy, key: &FourTuple) -> Vec<u8> {
    let ours = SocketAddr::new(unmapped(key.local), key.local_port);
    let mut bytes = [0; HEADER];
    let written = match announce {
        SendProxy::Off => Ok(0),
        SendProxy::V1 => Header::v1(Addresses::from_pair(ours, server(key))).encode(&mut bytes),
        SendProxy::V2(_) => Header::local().encode(&mut bytes),
    };
    // Both fit.
    bytes[..written.unwrap_or(0)].to_vec()
}

fn server(key: &FourTuple) -> SocketAddr {
    SocketAddr::new(unmapped(key.remote), key.remote_port)
}
