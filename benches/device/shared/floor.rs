//! What a connection costs before anything is done about it: its 14 packets received, both MAC addresses written, and sent,
//! without a look at anything else.
//!
//! The same clients and servers speak to each other through a device that is a cable: 7 packets of a connection come in and 7
//! go out, as with the proxy, of the same sizes, in bursts of the same size, on ports and rings of the same kind. What the
//! proxy takes by what this takes is a number that means the same on any machine.

use std::time::Duration;

use arrayvec::ArrayVec;
use benchkit::{
    Arm, Coverage, CpsResult, CpsSettings, DeviceCounts, DeviceUnderTest, InlineBench, RoundWork, cps_arms, cps_server,
};
use e2d2::BURST;
use e2d2::buffer::PacketBuffer;
use e2d2::native::{Mbuf, MbufPool};
use e2d2::port::{Port, PortId};
use e2d2::time::{Clock, Instant};

use super::load::{roles, server_addresses};
use super::port::{LoadPort, mac_of};
use super::{BoxError, Conditions, Host, open_cables};

/// The two ports, and how long to stay away.
pub(crate) struct FloorDevice {
    /// The clients' and the servers'.
    ports: [LoadPort; 2],
    lost: u64,
    /// What it says is open: it knows of no connections.
    open: u64,
    pause: Duration,
    back_at: Instant,
}

/// Load and floor in one thread.
pub(crate) type InlineFloor = InlineBench<FloorDevice, LoadPort, MbufPool, Clock>;

/// Connections at most: the floor does not touch what is kept of them, and their number changes no packet.
const OPEN: u32 = 10_000;

/// The shortest run that says something.
const SHORTEST: Duration = Duration::from_millis(200);

/// Conditions of the floor beside a bench with these: a quarter of its length.
pub(crate) fn conditions(of_proxy: &Conditions) -> Conditions {
    let settings = CpsSettings {
        open: of_proxy.settings.open.min(OPEN),
        length: (of_proxy.settings.length / 4).max(SHORTEST),
        time_wait: Duration::from_millis(20),
    };
    Conditions { settings, ..*of_proxy }
}

impl FloorDevice {
    /// A device that stays away for `pause` after each packet: where the load runs beside it, it gets packets in bursts of the
    /// proxy's size only if it asks for them as often.
    pub(super) fn new(ports: [LoadPort; 2], conditions: &Conditions, pause: Duration) -> FloorDevice {
        FloorDevice {
            ports,
            lost: 0,
            open: u64::from(conditions.settings.open),
            pause,
            back_at: Instant::ZERO,
        }
    }
}

/// How long the proxy takes for a packet that comes in.
pub(crate) fn pause_of(proxy: &CpsResult) -> Duration {
    let packets = proxy.connections_per_second * proxy.rx_packets_per_connection;
    Duration::from_secs_f64(1.0 / packets.max(1.0))
}

impl DeviceUnderTest for FloorDevice {
    #[inline]
    fn round(&mut self, now: Instant) -> RoundWork {
        let mut work = RoundWork::default();
        if now < self.back_at {
            return work;
        }
        for from in [0, 1] {
            let to = 1 - from;
            let mut burst = ArrayVec::<Mbuf, BURST>::new();
            let received = self.ports[from].receive(&mut burst);
            if received == 0 {
                continue;
            }
            let (destination, source) = (mac_of(PortId(to as u8 + 10)), mac_of(PortId(to as u8)));
            burst.iter().for_each(PacketBuffer::prefetch);
            for buffer in &mut burst {
                if let Some(macs) = buffer.data_mut().first_chunk_mut::<12>() {
                    macs[..6].copy_from_slice(&destination.0);
                    macs[6..].copy_from_slice(&source.0);
                }
            }
            work.received += received as u32;
            work.sent += self.ports[to].transmit(&mut burst) as u32;
            self.lost += burst.len() as u64;
        }
        if work.received > 0 {
            self.back_at = now + self.pause * work.received;
        }
        work
    }

    fn counts(&self) -> DeviceCounts {
        DeviceCounts {
            lost: self.lost,
            open: self.open,
            ..DeviceCounts::default()
        }
    }
}

/// The floor of a run. Field names are those of the JSON.
#[derive(Clone, Debug, serde::Serialize)]
pub(crate) struct Floor {
    /// Cycles of the 14 packets of a connection.
    pub(crate) floor_cycles: f64,
    /// Packets that came in together: as many as with the proxy, if the two are to be compared.
    pub(crate) floor_mean_burst: f64,
    /// Part of the floor's slices that its figure is of.
    pub(crate) floor_slices_counted_share: f64,
    #[serde(skip)]
    pub(crate) coverage: Coverage,
    /// Why it is not valid.
    #[serde(skip)]
    pub(crate) invalid_because: Vec<String>,
}

impl Floor {
    /// What a run of the floor says. It waits for its load on purpose where that runs beside it.
    pub(crate) fn of(result: &CpsResult, waits: bool) -> Floor {
        let counts = |reason: &&String| !(waits && reason.contains("times the busy"));
        Floor {
            floor_cycles: result.busy_cycles_per_connection,
            floor_mean_burst: result.mean_burst,
            floor_slices_counted_share: result.coverage.slices_counted_share,
            coverage: result.coverage,
            invalid_because: (result.invalid_because.iter().filter(counts))
                .map(|reason| format!("the floor: {reason}"))
                .collect(),
        }
    }
}

/// Clients and servers that reach each other through the floor.
pub(crate) fn arms(conditions: &Conditions, ends: [LoadPort; 2], now: Instant) -> Vec<Arm<LoadPort>> {
    let (mut client, _) = roles(conditions);
    client.servers = 1;
    client.targets = server_addresses(conditions).into_iter().take(1).collect();
    let server = cps_server(&client, &client.targets.clone());
    cps_arms(client, server, &[mac_of(PortId(0)), mac_of(PortId(1))], ends, now)
}

impl Host {
    /// Opens rings with the floor between, and the load; `name` is one letter, unique in the process.
    pub(crate) fn open_floor(
        &self,
        name: char,
        conditions: &Conditions,
        pause: Duration,
    ) -> Result<InlineFloor, BoxError> {
        let cables = open_cables(&self.eal, name, conditions)?;
        let clock = Clock::new();
        let device = FloorDevice::new(cables.ports.map(LoadPort::from), conditions, pause);
        let ends = cables.ends.map(LoadPort::from);
        let arms = arms(conditions, ends, clock.now());
        Ok(InlineBench::new(device, arms, cables.load_pool, clock))
    }
}
