//! What is to happen in one simulation: drawn from a seed, and plain data, so that it can be printed and made smaller.

use crate::headers::{Headers, Incoming};
use std::time::Duration;
use testkit::sim::{Impairment, Outage, Random, SynOptions};

/// How the engine's listener binds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Binding {
    /// By the first payload.
    Payload,
    /// After the handshake.
    Handshake,
    /// With the SYN.
    Syn,
}

/// What servers say before they have heard anything, where the binding lets them.
pub const BANNER: &[u8] = b"220 sim ready\r\n";

/// To which servers a listener leads the clients of its address family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Families {
    /// To those of the same.
    Own,
    /// To those of the other.
    Other,
    /// To all of them, in one pool.
    Both,
}

/// Everything about one simulation.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// What it was drawn from, and what all chance in its course comes from.
    pub seed: u64,
    pub binding: Binding,
    pub families: Families,
    /// Of the link between clients and engine, and between engine and servers.
    pub client_mtu: u16,
    pub server_mtu: u16,
    /// Clients → engine, engine → clients, servers → engine, engine → servers.
    pub from_clients: Impairment,
    pub to_clients: Impairment,
    pub from_servers: Impairment,
    pub to_servers: Impairment,
    /// Client hosts, by their options.
    pub clients: [SynOptions; 2],
    pub servers: [ServerPlan; 3],
    pub promise: Promise,
    pub time_wait_ms: u64,
    /// Source ports towards each server.
    pub local_ports: u16,
    /// Chunks of 16 KiB for requests that wait for their servers, if there are so few that copies are given up. Nobody asks
    /// for more then: no connection may be reset for want of memory.
    pub held_chunks: Option<u8>,
    /// What the engine verifies.
    pub verify_all: bool,
    /// An inspector rewrites both directions ([`rewritten`](crate::ends::rewritten)).
    pub is_rewritten: bool,
    pub headers: Headers,
    pub connections: Vec<ConnectionPlan>,
}

/// What the engine's SYN-ACKs promise.
#[derive(Clone, Copy, Debug)]
pub struct Promise {
    /// All but the window is what the servers are found to do, and the rest here means nothing. The window is always
    /// given: smoltcp's sender does not survive one that shrinks when a small server is heard of late.
    pub is_learned: bool,
    pub window: u16,
    pub window_scale: Option<u8>,
    pub sack: bool,
    pub timestamps: bool,
}

/// A server's host.
#[derive(Clone, Copy, Debug)]
pub struct ServerPlan {
    pub options: SynOptions,
    pub mtu: u16,
    pub fate: Fate,
    /// The sizes of its sockets' buffers.
    pub receive_buffer: usize,
    pub send_buffer: usize,
}

/// What becomes of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    Well,
    /// Nothing listens.
    Refuses,
    /// Not even its address is known.
    Absent,
    /// Off from one time to another, all its connections forgotten.
    Restarts {
        from_ms: u64,
        to_ms: u64,
    },
    /// Off for good.
    Vanishes {
        at_ms: u64,
    },
    /// Its SYN-ACKs take so long.
    AcceptsLate {
        ms: u64,
    },
}

/// When one end of a connection closes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Close {
    /// As soon as it has sent everything, whatever may still come.
    AfterSending,
    /// When it has sent and received everything.
    AfterAll,
    /// When it has sent everything and the other end has closed.
    AfterEnd,
    /// With a RST, after so many bytes have come.
    Abort { received: u32 },
}

/// One connection. Its first byte to the server is its number, by which server and selector know it.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionPlan {
    pub id: u8,
    pub start_ms: u64,
    pub v6: bool,
    /// The server that the selector names has IPv6.
    pub server_v6: bool,
    /// Index of the client's host.
    pub host: usize,
    /// A connection with the port of an earlier one starts when that one is closed.
    pub port: u16,
    pub to_server: u32,
    pub to_client: u32,
    pub choice: Choice,
    /// The selector decides when it has seen so many bytes.
    pub needs: u32,
    pub client: EndPlan,
    pub server: EndPlan,
    pub client_buffers: (usize, usize),
}

/// What the selector says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    Server(u8),
    Pool,
    Reject,
}

/// How one end behaves.
#[derive(Clone, Copy, Debug)]
pub struct EndPlan {
    pub close: Close,
    /// It sends nothing until so many bytes have come.
    pub speaks_after: u32,
    /// And so long after that.
    pub think_ms: u64,
    /// The most it writes or reads at once.
    pub chunk: usize,
    /// How long it waits between two of these; 0 is no wait.
    pub pause_ms: u64,
}

/// The most connections of a scenario: their number is one byte.
pub const MOST_CONNECTIONS: usize = 200;

impl Scenario {
    /// The scenario of a seed whose listeners bind before the first payload: the pool alone decides, servers speak first, and
    /// most clients wait for that.
    pub fn bound(seed: u64, count: usize, binding: Binding) -> Self {
        let mut scenario = Self::from_seed(seed, count);
        let mut r = Random::new(seed).fork("binding");
        scenario.binding = binding;
        for plan in &mut scenario.connections {
            (plan.choice, plan.needs) = (Choice::Pool, 1);
            // Whoever may have a header and has none is waited for until it speaks.
            let may_wait = scenario.headers.incoming != Incoming::Optional;
            plan.client.speaks_after = if may_wait && r.chance(600) {
                BANNER.len() as u32
            } else {
                0
            };
        }
        scenario
    }

    /// What servers say first.
    pub fn banner(&self) -> &'static [u8] {
        match self.binding {
            Binding::Payload => b"",
            Binding::Handshake | Binding::Syn => BANNER,
        }
    }

    /// Whether any client may have been promised timestamps. A server is passed over for them as long as it was not heard.
    pub fn may_promise_timestamps(&self) -> bool {
        self.promise.is_learned || self.promise.timestamps
    }

    /// The scenario of a seed, with `count` connections.
    pub fn from_seed(seed: u64, count: usize) -> Self {
        let random = Random::new(seed);
        let mut r = random.fork("scenario");
        let weather = Weather::draw(&mut r);
        let v6 = r.chance(800);
        let mtus: &[u16] = if v6 {
            &[1280, 1400, 1500, 1500, 1500, 9000]
        } else {
            &[576, 1006, 1500, 9000]
        };
        let (client_mtu, server_mtu) = (r.one_of(mtus), r.one_of(mtus));
        let is_troubled = r.chance(300);
        let has_small_servers = r.chance(250);
        let servers = [0, 1, 2].map(|_| ServerPlan::draw(&mut r, is_troubled, server_mtu, has_small_servers));
        let clients = [0, 1].map(|_| draw_options(&mut r, 250));
        let mut scenario = Scenario {
            seed,
            binding: Binding::Payload,
            families: Families::Own,
            client_mtu,
            server_mtu,
            from_clients: weather.draw_link(&mut r),
            to_clients: weather.draw_link(&mut r),
            from_servers: weather.draw_link(&mut r),
            to_servers: weather.draw_link(&mut r),
            clients,
            servers,
            promise: Promise {
                is_learned: random.fork("promise").chance(400),
                window: if has_small_servers {
                    r.one_of(&[536, 900, SMALL_SERVER as u16 / 2])
                } else {
                    r.one_of(&[16_384, 16_384, 8_192, 4_096, 1_500, 536])
                },
                window_scale: r.one_of(&[Some(7), Some(7), Some(0), Some(9), Some(3), None]),
                sack: r.chance(800),
                timestamps: r.chance(700),
            },
            time_wait_ms: r.one_of(&[0, 500, 4_000, 12_000]),
            local_ports: r.one_of(&[8, 40, 200, 1_000]),
            held_chunks: draw_held_chunks(&mut random.fork("held")),
            verify_all: r.chance(100),
            is_rewritten: false,
            headers: Headers::draw(&mut random.fork("headers")),
            connections: Vec::new(),
        };
        // A sum of 16 bits does not find two errors that make up for each other: no packet is spoilt on both legs, unless
        // the engine drops those that come in spoilt.
        if !scenario.verify_all {
            let spared = if r.chance(500) { 0 } else { 2 };
            for link in &mut scenario.links_mut()[spared..spared + 2] {
                link.corrupt = 0;
            }
        }
        let mut families = random.fork("families");
        if v6 {
            scenario.families = families.one_of(&[Families::Own, Families::Other, Families::Both]);
        }
        if has_small_servers {
            // The pieces of a header are acknowledged, and then 16 KiB promised: see [`SMALL_SERVER`].
            scenario.headers.incoming = Incoming::Off;
        }
        if scenario.held_chunks.is_some() {
            // The pieces of a header are acknowledged.
            scenario.headers.incoming = Incoming::Off;
        }
        let mut r = random.fork("connections");
        for id in 0..count.min(MOST_CONNECTIONS) {
            let mut plan = ConnectionPlan::draw(&mut r, id as u8, v6, &scenario.connections);
            plan.server_v6 = match scenario.families {
                Families::Own => plan.v6,
                Families::Other => !plan.v6,
                Families::Both => families.chance(500),
            };
            if has_small_servers || scenario.held_chunks.is_some() {
                plan.needs = plan.needs.min(1);
            }
            if scenario.links().iter().any(|link| !link.is_clean()) {
                plan.keep_windows_open();
            }
            scenario.connections.push(plan);
        }
        scenario
    }

    /// Frames may come out of a link wrong.
    pub fn spoils_frames(&self) -> bool {
        self.links().iter().any(|link| link.corrupt > 0 || link.truncate > 0)
    }

    pub fn links(&self) -> [&Impairment; 4] {
        [
            &self.from_clients,
            &self.to_clients,
            &self.from_servers,
            &self.to_servers,
        ]
    }

    pub fn links_mut(&mut self) -> [&mut Impairment; 4] {
        [
            &mut self.from_clients,
            &mut self.to_clients,
            &mut self.from_servers,
            &mut self.to_servers,
        ]
    }

    /// True if the addresses of IPv6 are configured: every link must carry it.
    pub fn has_v6(&self) -> bool {
        self.client_mtu.min(self.server_mtu) >= 1280
    }
}

fn draw_held_chunks(random: &mut Random) -> Option<u8> {
    random.chance(250).then(|| random.one_of(&[1, 2, 2, 4]))
}

/// What the links of a scenario have in common.
struct Weather {
    loss: u64,
    duplicate: u64,
    reorder: u64,
    corrupt: u64,
    truncate: u64,
    outages: bool,
}

impl Weather {
    fn draw(r: &mut Random) -> Self {
        let clean = Weather {
            loss: 0,
            duplicate: 0,
            reorder: 0,
            corrupt: 0,
            truncate: 0,
            outages: false,
        };
        match r.within(0..=7) {
            0 => clean,
            1 => Weather { loss: 20, ..clean },
            2 => Weather { loss: 200, ..clean },
            3 => Weather {
                duplicate: 200,
                reorder: 200,
                ..clean
            },
            4 => Weather {
                corrupt: 100,
                truncate: 50,
                ..clean
            },
            5 => Weather {
                loss: 10,
                outages: true,
                ..clean
            },
            6 => Weather {
                loss: 50,
                duplicate: 50,
                reorder: 50,
                corrupt: 20,
                truncate: 10,
                outages: false,
            },
            _ => Weather {
                loss: 100,
                duplicate: 100,
                reorder: 100,
                corrupt: 50,
                truncate: 20,
                outages: true,
            },
        }
    }

    fn draw_link(&self, r: &mut Random) -> Impairment {
        let mut share = |most: u64| r.within(0..=most) as u16;
        let mut link = Impairment {
            loss: share(self.loss),
            duplicate: share(self.duplicate),
            reorder: share(self.reorder),
            corrupt: share(self.corrupt),
            truncate: share(self.truncate),
            ..Impairment::default()
        };
        link.delay_us = r.magnitude(10..=100_000);
        link.jitter_us = r.magnitude(1..=link.delay_us);
        link.lag_us = r.magnitude(100..=300_000);
        if self.outages {
            for _ in 0..r.within(0..=2) {
                let from_ms = r.within(0..=20_000);
                let to_ms = from_ms + r.magnitude(10..=8_000);
                link.outages.push(Outage { from_ms, to_ms });
            }
        }
        link
    }
}

fn draw_options(r: &mut Random, lacks_per_mille: u16) -> SynOptions {
    let mut has = || !r.chance(lacks_per_mille);
    SynOptions {
        mss: has(),
        window_scale: has(),
        sack: has(),
        timestamps: has(),
    }
}

impl ServerPlan {
    fn draw(r: &mut Random, may_be_troubled: bool, mtu: u16, is_small: bool) -> Self {
        let options = if r.chance(700) {
            SynOptions::ALL
        } else {
            draw_options(r, 400)
        };
        let fate = match r.within(0..=9) {
            _ if !may_be_troubled => Fate::Well,
            0 => Fate::Refuses,
            1 => Fate::Absent,
            2 | 3 => {
                let from_ms = r.within(500..=15_000);
                let to_ms = from_ms + r.within(1..=5_000);
                Fate::Restarts { from_ms, to_ms }
            }
            4 => Fate::Vanishes {
                at_ms: r.within(500..=15_000),
            },
            5 | 6 => Fate::AcceptsLate {
                ms: r.magnitude(100..=15_000),
            },
            _ => Fate::Well,
        };
        ServerPlan {
            options,
            mtu,
            fate,
            receive_buffer: if is_small {
                r.magnitude(SMALL_SERVER..=30_000) as usize
            } else {
                r.magnitude(2 * 16_384..=150_000) as usize
            },
            send_buffer: draw_buffer(r),
        }
    }
}

/// A listener must not promise more than its servers take (DECISIONS.md 13), and bytes that the selector wants to see
/// are promised 16 KiB: smoltcp's sender does not survive a window that shrinks.
const SMALL_SERVER: u64 = 3_000;

/// From a few segments to more than fits an unscaled window.
fn draw_buffer(r: &mut Random) -> usize {
    r.magnitude(2_000..=150_000) as usize
}

impl ConnectionPlan {
    fn draw(r: &mut Random, id: u8, v6: bool, earlier: &[ConnectionPlan]) -> Self {
        let start_ms = r.within(0..=15_000);
        let (to_server, to_client) = (r.magnitude(1..=200_000) as u32, r.magnitude(1..=200_000) as u32);
        let to_server = if r.chance(10) { 0 } else { to_server };
        let reused = earlier.iter().find(|plan| plan.start_ms + 2_000 < start_ms);
        let reused = reused.filter(|_| r.chance(200)).map(|plan| plan.port);
        let needs = match r.within(0..=3) {
            0 => r.magnitude(1..=16_000) as u32,
            _ => 1,
        };
        let mut plan = ConnectionPlan {
            id,
            start_ms,
            v6: v6 && r.chance(500),
            server_v6: false,
            host: r.within(0..=1) as usize,
            port: 20_000 + u16::from(id),
            to_server,
            to_client,
            choice: match r.within(0..=99) {
                0..=1 => Choice::Reject,
                2..=49 => Choice::Server(r.within(0..=2) as u8),
                _ => Choice::Pool,
            },
            needs: needs.min(to_server),
            client: EndPlan::draw(r, 0),
            server: EndPlan::draw(r, to_server),
            client_buffers: (draw_buffer(r), draw_buffer(r)),
        };
        if let Some(port) = reused {
            let other = earlier.iter().find(|earlier| earlier.port == port);
            (plan.port, plan.host, plan.v6) = (port, other.map_or(plan.host, |o| o.host), other.is_some_and(|o| o.v6));
        }
        // Two who wait for each other to close would wait for ever.
        if plan.client.close == Close::AfterEnd && plan.server.close == Close::AfterEnd {
            plan.client.close = Close::AfterSending;
        }
        if to_server == 0 {
            plan.client.close = Close::AfterSending;
        }
        plan
    }

    /// Lets both ends read without a break if they could not hold all that comes: smoltcp's fast retransmission sends
    /// beyond a window that is nearly closed, and never finds back when that is refused. Windows that close are for
    /// links without duplicate ACKs.
    fn keep_windows_open(&mut self) {
        if self.to_client as usize > self.client_buffers.0 {
            self.client.pause_ms = 0;
        }
        if self.to_server as usize > SMALL_SERVER as usize / 2 {
            self.server.pause_ms = 0;
        }
    }

    /// How long the client takes at least to write what the selector wants to see.
    pub fn writes_for(&self) -> Duration {
        let client = &self.client;
        let pauses = match client.pause_ms {
            0 => 0,
            pause_ms => u64::from(self.needs.saturating_sub(1)) / client.chunk.max(1) as u64 * pause_ms,
        };
        Duration::from_millis(client.think_ms + pauses)
    }

    /// Some end resets the connection before its time.
    pub fn is_aborted(&self) -> bool {
        [self.client.close, self.server.close]
            .iter()
            .any(|close| matches!(close, Close::Abort { .. }))
    }
}

impl EndPlan {
    /// `incoming`: how many bytes it will get before it must have spoken.
    fn draw(r: &mut Random, incoming: u32) -> Self {
        let close = match r.within(0..=99) {
            0..=29 => Close::AfterSending,
            30..=64 => Close::AfterAll,
            65..=95 => Close::AfterEnd,
            _ => Close::Abort {
                received: r.magnitude(1..=100_000) as u32,
            },
        };
        let speaks_after = match r.within(0..=2) {
            0 => incoming.min(1),
            1 => r.within(0..=u64::from(incoming)) as u32,
            _ => incoming,
        };
        EndPlan {
            close,
            speaks_after,
            think_ms: if r.chance(100) { r.magnitude(1..=10_000) } else { 0 },
            chunk: r.magnitude(20..=100_000) as usize,
            pause_ms: if r.chance(100) { r.magnitude(1..=200) } else { 0 },
        }
    }
}
