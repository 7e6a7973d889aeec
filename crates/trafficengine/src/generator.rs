//! The generator: one port, a client role, a server role, or both.

use arrayvec::ArrayVec;
use e2d2::BURST;
use e2d2::buffer::{BufferPool, ChecksumStatus, PacketBuffer};
use e2d2::port::Port;
use e2d2::scheduler::Work;
use e2d2::time::Instant;
use e2d2::wire::Checksums;
use e2d2::wire::frame::{Kind, parse_with};

use crate::client::{Client, ClientSettings, Endpoint};
use crate::link::{IcmpPacket, Link, LinkSettings, Roles};
use crate::output::{Output, Transmitter};
use crate::received::Incoming;
use crate::role::Role;
use crate::server::{Flow, Server, ServerSettings};
use crate::stats::{ClientStats, Life, ServerStats};
use crate::tcb::Ticks;

/// All that a generator does, checked. Made from a file by the configuration, or by hand in benches.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct GeneratorSettings {
    /// The way to other hosts.
    pub link: LinkSettings,
    /// The client role, if it has one.
    pub client: Option<ClientSettings>,
    /// The server role, if it has one.
    pub server: Option<ServerSettings>,
    /// Whether TCP checksums are verified that the port has not verified.
    pub verify_checksums: bool,
}

/// What the generator saw beside its connections.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PortStats {
    /// Packets received.
    pub received: u64,
    /// Packets that the port took.
    pub sent: u64,
    /// Packets that were not sent because no buffer or no place in the queue was left.
    pub not_sent: u64,
    /// Frames that were no sound packets.
    pub malformed: u64,
    /// Segments with a wrong TCP checksum.
    pub bad_checksums: u64,
    /// Packets that were for none of the roles.
    pub not_ours: u64,
}

/// TCP clients and servers on one port, in virtual time: it never reads a clock.
///
/// Owned by one core. Call [`poll`](Self::poll) as often as the port may have packets; each call moves a burst.
pub struct Generator<B: PacketBuffer> {
    roles: BothRoles,
    transmitter: Transmitter<B>,
    /// Packets that the last poll has taken ahead for the next: none, unless that had a whole burst.
    received: ArrayVec<B, BURST>,
}

/// Whom a segment is for.
#[derive(Clone, Copy)]
enum Destination {
    Server(Flow),
    Client(Endpoint),
}

/// Everything but the packets, so that a packet can be lent to it.
struct BothRoles {
    client: Option<Client>,
    server: Option<Server>,
    link: Link,
    verify_checksums: bool,
    port: PortStats,
    ts_offset: u32,
    is_stopped: bool,
    is_paused: bool,
}

impl<B: PacketBuffer> Generator<B> {
    /// A generator that begins its load with the first poll after it knows the way.
    pub fn new(settings: GeneratorSettings, now: Instant) -> Generator<B> {
        let seed = settings.client.as_ref().map_or(0, |client| client.seed);
        let mut client = settings.client.map(|settings| Client::new(settings, now));
        Generator {
            roles: BothRoles {
                link: Link::new(settings.link, client.as_mut()),
                client,
                server: settings.server.map(|settings| Server::new(settings, now)),
                verify_checksums: settings.verify_checksums,
                port: PortStats::default(),
                ts_offset: seed as u32,
                is_stopped: false,
                is_paused: false,
            },
            transmitter: Transmitter::new(),
            received: ArrayVec::new(),
        }
    }

    /// Receives a burst, answers it, works on timers, starts connections that are due, and sends.
    pub fn poll<P, L>(&mut self, now: Instant, port: &mut P, pool: &mut L) -> Work
    where
        P: Port<Buffer = B>,
        L: BufferPool<Buffer = B>,
    {
        let Generator {
            roles,
            transmitter,
            received,
        } = self;
        let mut units = transmitter.flush(port);
        // With more waiting than a port takes at once, new work would only pile up.
        if !transmitter.is_blocked() {
            if received.is_empty() {
                take(port, received);
            } else {
                // They were asked for with the last poll, and since then others have used the first-level cache.
                received.iter().for_each(PacketBuffer::prefetch);
            }
            let count = received.len();
            units += count;
            roles.port.received += count as u64;
            let offloads = port.capabilities().tx_checksum;
            let mut out = Output {
                pool,
                transmitter,
                mac: port.mac(),
                checksums: if offloads { Checksums::Port } else { Checksums::Software },
                ticks: Ticks::new(now, roles.ts_offset),
            };
            roles.receive_all(received, &mut out);
            received.clear();
            units += roles.act(&mut out);
            units += transmitter.flush(port);
            if count == BURST {
                // More is waiting: it comes to the cache while the caller does something else.
                take(port, received);
            }
        }
        roles.port.sent = transmitter.packets;
        roles.port.not_sent = transmitter.dropped;
        Work::units(units)
    }

    /// Gives up what is still open, with RST; it counts as unfinished.
    pub fn abort<P, L>(&mut self, now: Instant, port: &mut P, pool: &mut L)
    where
        P: Port<Buffer = B>,
        L: BufferPool<Buffer = B>,
    {
        self.stop();
        let mut out = Output {
            pool,
            transmitter: &mut self.transmitter,
            mac: port.mac(),
            checksums: Checksums::Software,
            ticks: Ticks::new(now, self.roles.ts_offset),
        };
        if let Some(client) = &mut self.roles.client {
            client.abort_all(&mut out);
        }
        if let Some(server) = &mut self.roles.server {
            server.abort_all(&mut out);
        }
        self.transmitter.flush(port);
    }

    /// Draws no held connection while paused; what is in motion goes on, and ended connections are still replaced.
    pub fn set_paused(&mut self, is_paused: bool) {
        self.roles.is_paused = is_paused;
    }

    /// Starts no more connections; those that are open go on.
    pub fn stop(&mut self) {
        self.roles.is_stopped = true;
    }

    /// Whether the client's load has ended and its last connection, too; a server alone is never done.
    pub fn is_done(&self, now: Instant) -> bool {
        self.roles
            .client
            .as_ref()
            .is_some_and(|client| (self.roles.is_stopped || client.is_over(now)) && client.open() == 0)
    }

    /// Whether the client starts no more connections.
    pub fn is_over(&self, now: Instant) -> bool {
        self.roles.is_stopped || self.roles.client.as_ref().is_some_and(|client| client.is_over(now))
    }

    /// When it wants to be polled even if nothing comes in; a lower bound.
    pub fn next_deadline(&self) -> Option<Instant> {
        let roles = [
            self.roles.client.as_ref().and_then(Client::next_deadline),
            self.roles.server.as_ref().and_then(Server::next_deadline),
            self.roles.link.next_deadline(),
            (!self.received.is_empty()).then_some(Instant::ZERO),
        ];
        roles.into_iter().flatten().min()
    }

    /// Whether the next hops are known, so that the load has begun or can.
    pub fn is_ready(&self) -> bool {
        self.roles.link.is_ready()
    }

    /// Connections open now, of the client's and the server's role.
    pub fn open(&self) -> (u32, u32) {
        (
            self.roles.client.as_ref().map_or(0, Client::open),
            self.roles.server.as_ref().map_or(0, Server::open),
        )
    }

    /// Client connections that are established and wait to be drawn.
    pub fn held(&self) -> u32 {
        self.roles.client.as_ref().map_or(0, Client::held)
    }

    /// The client role's statistics.
    pub fn client_stats(&self) -> Option<&ClientStats> {
        self.roles.client.as_ref().map(|client| &client.stats)
    }

    /// Forgets the client's latencies so far, to measure from now on.
    pub fn reset_latencies(&mut self) {
        if let Some(client) = &mut self.roles.client {
            client.stats.latencies.reset();
            client.stats.lives.clear();
        }
    }

    /// Keeps when each connection should have started and when its first byte came, of at most `count` since the latencies
    /// were last forgotten.
    pub fn keep_lives(&mut self, count: usize) {
        if let Some(client) = &mut self.roles.client {
            // Written once, so that no page is missing while it is filled.
            client.stats.lives = vec![Life::default(); count];
            client.stats.lives.clear();
        }
    }

    /// The server role's statistics.
    pub fn server_stats(&self) -> Option<&ServerStats> {
        self.roles.server.as_ref().map(|server| &server.stats)
    }

    /// What else was seen.
    pub fn port_stats(&self) -> &PortStats {
        &self.roles.port
    }

    /// Bytes of memory for connections, tables and timers.
    pub fn memory(&self) -> usize {
        self.roles.client.as_ref().map_or(0, Client::memory) + self.roles.server.as_ref().map_or(0, Server::memory)
    }
}

/// Takes a burst from the port; its packets are on their way to the cache.
fn take<P: Port>(port: &mut P, received: &mut ArrayVec<P::Buffer, BURST>) {
    port.receive(received);
    received.iter().for_each(PacketBuffer::prefetch);
}

impl BothRoles {
    /// Works on a burst: what its connections need is on its way to the cache while the segments are read and checked.
    fn receive_all<L: BufferPool>(&mut self, burst: &[L::Buffer], out: &mut Output<'_, L>) {
        let mut segments = ArrayVec::<(Incoming<'_>, Destination), BURST>::new();
        for segment in burst.iter().filter_map(|buffer| self.read(buffer, out)) {
            // No more than the burst's.
            segments.push(segment);
        }
        for (_, destination) in &segments {
            match (destination, &self.server, &self.client) {
                (Destination::Server(flow), Some(server), _) => server.prefetch(*flow),
                (Destination::Client(endpoint), _, Some(client)) => client.prefetch(*endpoint),
                _ => {}
            }
        }
        for (incoming, destination) in &segments {
            match (destination, &mut self.server, &mut self.client) {
                (Destination::Server(flow), Some(server), _) => server.receive(*flow, incoming, out),
                (Destination::Client(endpoint), _, Some(client)) => client.receive(*endpoint, incoming, out),
                _ => {}
            }
        }
    }

    /// Reads a packet; what is no segment for a role is dealt with at once.
    fn read<'a, L: BufferPool>(
        &mut self,
        buffer: &'a L::Buffer,
        out: &mut Output<'_, L>,
    ) -> Option<(Incoming<'a>, Destination)> {
        let (frame, info) = (buffer.data(), buffer.rx_info());
        let Ok(kind) = parse_with(frame, info) else {
            self.port.malformed += 1;
            return None;
        };
        let roles = Roles {
            client: self.client.as_mut(),
            server: self.server.as_ref(),
        };
        match kind {
            Kind::Tcp(layout) => {
                let is_right = match info.l4_checksum {
                    ChecksumStatus::Good => true,
                    ChecksumStatus::Bad => false,
                    ChecksumStatus::Unknown => !self.verify_checksums || layout.is_checksum_valid(frame),
                };
                if !is_right {
                    self.port.bad_checksums += 1;
                    return None;
                }
                let incoming = Incoming::new(frame, &layout)?;
                let of_server = roles.server.and_then(|server| server.find(&incoming));
                let destination = of_server.map(Destination::Server).or_else(|| {
                    let client = roles.client.as_deref();
                    client
                        .and_then(|client| client.find(&incoming))
                        .map(Destination::Client)
                });
                self.port.not_ours += u64::from(destination.is_none());
                return destination.map(|destination| (incoming, destination));
            }
            Kind::Arp => self.link.receive_arp(frame, roles, out),
            Kind::Icmpv4 { l3, l4, end } => self.link.receive_icmp4(IcmpPacket { frame, l3, l4, end }, roles, out),
            Kind::Icmpv6 { l3, l4, end } => self.link.receive_icmp6(IcmpPacket { frame, l3, l4, end }, roles, out),
            Kind::Other { .. } => self.port.not_ours += 1,
        }
        None
    }

    /// Everything that is not the answer to one packet.
    fn act<L: BufferPool>(&mut self, out: &mut Output<'_, L>) -> usize {
        let mut units = 0;
        if let Some(server) = &mut self.server {
            server.end_burst(out);
            units += server.expire(out);
        }
        if let Some(client) = &mut self.client {
            client.end_burst(out);
            units += client.expire(out);
            if !self.link.is_ready() {
                let mut roles = Roles {
                    client: Some(client),
                    server: self.server.as_ref(),
                };
                self.link.ask(&mut roles, out);
            } else {
                if !self.is_paused {
                    units += client.draw_due(BURST, out);
                }
                if !self.is_stopped {
                    units += client.start_due(BURST, out);
                }
            }
        }
        units
    }
}
