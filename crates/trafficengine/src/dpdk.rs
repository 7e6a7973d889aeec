//! Plays configurations on DPDK ports: one for each port, and a thread for each core.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use e2d2::native::{Device, DpdkPort, DpdkQueue, Eal, EalConfig, MbufPool, PoolDemand, PortConfig, data_room};
use e2d2::port::PortId;
use e2d2::scheduler::{IdleMode, pin_current_thread};
use e2d2::time::Clock;
use trafficengine::config::Config;
use trafficengine::plot;
use trafficengine::run::{Ended, RunSettings, Seat, Station, run};
use trafficengine::{Generator, GeneratorSettings};

use crate::{Outcome, say};

/// Packets that a generator holds on to: its queue to the port.
const HELD: u32 = 8_192;

/// Opens the ports, runs, reports. The exit code says whether every connection ended as it should.
///
/// Those that name the same core share its thread; one that names none has a thread of its own. The first says where results go.
pub(crate) fn play(configs: Vec<Config>) -> Outcome {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, stop.clone())?;
    }
    let devices = configs.iter().map(|config| config.port.device.parse());
    let devices = devices.collect::<Result<Vec<Device>, _>>()?;
    for device in &devices {
        device.check()?;
    }
    let eal = Eal::start(&EalConfig {
        file_prefix: format!("trafficengine-{}", std::process::id()),
        packet_cores: configs.iter().filter_map(|config| config.port.core).collect(),
        memory_mib: configs.iter().map(|config| config.port.memory_mib).sum(),
        pci: devices.iter().filter_map(Device::as_pci).collect(),
        ..EalConfig::default()
    })?;
    let registered = eal.register_thread()?;
    let clock = Clock::new();
    let mut ports = Vec::new();
    let mut seats: Vec<Seat<DpdkQueue, MbufPool>> = Vec::new();
    for (index, (config, device)) in configs.iter().zip(devices).enumerate() {
        let (port, station) = open(&eal, index as u8, config, device, &clock)?;
        ports.push(port);
        let shared = seats
            .iter_mut()
            .find(|seat| seat.core.is_some() && seat.core == config.port.core);
        match shared {
            Some(seat) => {
                seat.settings.grace = seat.settings.grace.max(config.grace);
                if config.port.idle == IdleMode::Poll {
                    seat.settings.idle = IdleMode::Poll;
                }
                seat.stations.push(station);
            }
            None => seats.push(Seat {
                core: config.port.core,
                stations: vec![station],
                settings: RunSettings {
                    grace: config.grace,
                    idle: config.port.idle,
                },
            }),
        }
    }
    let Some(first) = configs.first() else {
        return Err("there is no configuration".into());
    };
    let prepare = |core: Option<usize>| {
        core.map_or(Ok(()), pin_current_thread)
            .map_err(|error| error.to_string())?;
        eal.register_thread().map_err(|error| error.to_string())
    };
    let ended = run(seats, &clock, &stop, prepare, |second| {
        if first.report.progress {
            say(&second.to_string());
        }
    })?;
    drop(registered);
    if !ended.is_ready {
        return Err("no next hop answered: is the link up, and are link.prefixes and link.gateways right?".into());
    }
    finish(first, &ended)
}

fn open(
    eal: &Eal,
    index: u8,
    config: &Config,
    device: Device,
    clock: &Clock,
) -> Result<(DpdkPort, Station<DpdkQueue, MbufPool>), Box<dyn std::error::Error>> {
    let port_config = PortConfig {
        mtu: config.port.mtu,
        rx_descriptors: config.port.descriptors,
        tx_descriptors: config.port.descriptors,
        mac: config.port.mac,
        // Neighbour solicitations go to groups that the device does not know of.
        promiscuous: true,
        checksum_offload: config.port.checksum_offload,
        ..PortConfig::new(PortId(index), device)
    };
    let demand = PoolDemand {
        queues: port_config.buffers(),
        held: HELD,
        threads: 1,
    };
    let name = format!("traffic{index}");
    let pool = MbufPool::new(eal, &name, demand.buffers(), data_room(config.port.mtu), None)?;
    let (port, queues) = DpdkPort::open(eal, &port_config, &[&pool])?;
    let queue = queues.into_iter().next().ok_or("the port has no queue")?;
    let GeneratorSettings { client, server, .. } = &config.generator;
    say(&format!(
        "{} with {}, address {}{}, roles: {}",
        config.port.device,
        port.driver(),
        port.mac(),
        config.port.core.map_or(String::new(), |core| format!(", core {core}")),
        roles(client.is_some(), server.is_some())
    ));
    let station = Station {
        name: config.port.device.clone(),
        generator: Generator::new(config.generator.clone(), clock.now()),
        port: queue,
        pool,
    };
    Ok((port, station))
}

fn roles(client: bool, server: bool) -> &'static str {
    match (client, server) {
        (true, true) => "client and server",
        (true, false) => "client",
        _ => "server, until interrupted or all clients of this process are done",
    }
}

fn finish(config: &Config, ended: &Ended) -> Outcome {
    let report = &ended.report;
    say(&format!("\n{report}"));
    if let Some(path) = &config.report.json {
        std::fs::write(path, report.to_json()).map_err(|error| format!("{}: {error}", path.display()))?;
    }
    if let Some(path) = &config.report.svg {
        let latencies = ended.totals.client.as_ref().map(|stats| &stats.latencies);
        plot::draw(path, &report.by_second, latencies)?;
    }
    Ok(if report.is_clean() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
