//! An inspector that writes down what it is shown and does what the bytes say, and connections with it.

use crate::harness::{Bench, CONFIG, Client, Selector, Server, only};
use e2d2::wire::tcp::TcpFlags;
use proxyengine::callbacks::{ConnectionInfo, InspectPayload, Inspected, Payload, Towards, Verdict};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use testkit::Segment;

/// The largest window of a direction whose bytes were all doubled: half of what can be kept, less what a call may add and a
/// margin.
pub const KEEPABLE: u16 = ((64 - 8 - 4) * 1024 / 2) >> 7;

/// One call: where to, from which byte on, the bytes, and whether they were the last.
pub type Call = (Towards, u64, Vec<u8>, bool);

/// Writes down what it is shown and does what the bytes say: see [`obey`].
#[derive(Clone, Default)]
pub struct Scribe {
    calls: Arc<Mutex<Vec<Call>>>,
    open: Arc<AtomicUsize>,
    /// What is written when a direction closes.
    farewell: &'static [u8],
}

/// Counts the contexts that live.
pub struct Token(Arc<AtomicUsize>);

impl Drop for Token {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl InspectPayload for Scribe {
    type Context = Token;

    fn open(&mut self, connection: &ConnectionInfo) -> Option<Token> {
        assert_eq!(connection.local.port(), 80);
        assert_eq!(connection.server_address.port(), 8080);
        if connection.client.port() == UNWANTED {
            return None;
        }
        self.open.fetch_add(1, Ordering::Relaxed);
        Some(Token(Arc::clone(&self.open)))
    }

    fn inspect(&mut self, _context: &mut Token, payload: &mut Payload<'_>) -> Verdict {
        let call = (
            payload.towards(),
            payload.offset(),
            payload.bytes().to_vec(),
            payload.is_last(),
        );
        self.calls.lock().expect("one thread").push(call);
        let (is_last, farewell) = (payload.is_last(), self.farewell);
        if is_last && !farewell.is_empty() {
            let (bytes, output) = payload.replace();
            output.write(bytes).expect("room");
            output.write(farewell).expect("room");
            return Verdict::Replace;
        }
        obey(payload)
    }
}

/// The client port of connections that are not to be inspected.
pub const UNWANTED: u16 = 666;

/// `+` doubles the bytes, `#` makes them fifty times as many, `-` takes them away, `^` turns letters upside down in place,
/// `!` refuses, `.` is done; everything else passes. The byte may be the first or, for a first payload, the second.
fn obey(payload: &mut Payload<'_>) -> Verdict {
    let skip = usize::from(payload.offset() == 0 && !payload.is_to_client());
    match payload.bytes().get(skip) {
        Some(order @ (b'+' | b'#')) => {
            let times = if *order == b'+' { 2 } else { 50 };
            let (bytes, output) = payload.replace();
            (0..times).for_each(|_| output.write(bytes).expect("room"));
            Verdict::Replace
        }
        Some(b'-') => Verdict::Replace,
        Some(b'^') => {
            payload.bytes_mut().iter_mut().for_each(|byte| *byte ^= 0x20);
            Verdict::Pass
        }
        Some(b'!') => Verdict::Reject,
        Some(b'.') => Verdict::Done,
        _ => Verdict::Pass,
    }
}

pub type InspectedBench = Bench<Inspected<Selector, Scribe>>;

pub fn bench() -> (InspectedBench, Scribe) {
    bench_with(CONFIG, |_| {}, "")
}

pub fn bench_with(
    text: &str,
    adjust: impl FnOnce(&mut splice::settings::Settings),
    farewell: &'static str,
) -> (InspectedBench, Scribe) {
    let scribe = Scribe {
        farewell: farewell.as_bytes(),
        ..Scribe::default()
    };
    let inspector = scribe.clone();
    let bench = Bench::make_with(text, text.contains("bind = "), adjust, |selector| {
        Inspected::new(selector, inspector)
    });
    (bench, scribe)
}

impl Scribe {
    pub fn calls(&self) -> Vec<Call> {
        std::mem::take(&mut *self.calls.lock().expect("one thread"))
    }

    pub fn open(&self) -> usize {
        self.open.load(Ordering::Relaxed)
    }
}

/// A spliced connection on `port`, and what the server got first.
pub fn connect(bench: &mut InspectedBench, port: u16, first: &[u8]) -> (Client, Server, Vec<Segment>) {
    let mut client = Client::new(port);
    client.connect(bench);
    let syn = only(client.send(bench, first));
    let mut server = Server::from_syn(&syn);
    let (_, sent) = server.accept(bench);
    (client, server, sent)
}

/// The same, with everything acknowledged: both numberings are known and nothing is kept.
pub fn settled(bench: &mut InspectedBench, first: &[u8]) -> (Client, Server) {
    let (client, mut server, sent) = connect(bench, 40000, first);
    take(&mut server, &sent);
    let ack = only(bench.receive(&server.segment(TcpFlags::ACK, b"")));
    assert_eq!((ack.ack, ack.seq), (client.seq, client.ack));
    assert_eq!(bench.proxy.usage().kept, 0);
    (client, server)
}

/// The server takes segments in order and returns their bytes.
pub fn take(server: &mut Server, segments: &[Segment]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for segment in segments {
        assert_eq!(segment.seq, server.ack, "in order");
        server.ack = server.ack.wrapping_add(segment.len());
        bytes.extend(&segment.payload);
    }
    bytes
}

/// What segments carry, with its number.
pub fn payloads(segments: &[Segment]) -> Vec<(u32, Vec<u8>)> {
    segments
        .iter()
        .map(|segment| (segment.seq, segment.payload.clone()))
        .collect()
}
