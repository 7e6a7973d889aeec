//! Plays a configuration on a DPDK port.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use e2d2::native::{DpdkPort, Eal, EalConfig, MbufPool, PoolDemand, PortConfig, data_room};
use e2d2::port::PortId;
use e2d2::scheduler::pin_current_thread;
use e2d2::time::Clock;
use trafficengine::config::Config;
use trafficengine::plot;
use trafficengine::report::Report;
use trafficengine::run::{RunSettings, run};
use trafficengine::{Generator, GeneratorSettings};

use crate::{Outcome, say};

/// Packets that the generator holds on to: its queue to the port.
const HELD: u32 = 8_192;

/// Opens the port, runs, reports. The exit code says whether every connection ended as it should.
pub(crate) fn play(config: Config) -> Outcome {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, stop.clone())?;
    }
    let device: e2d2::native::Device = config.port.device.parse()?;
    device.check()?;
    let eal = Eal::start(&EalConfig {
        file_prefix: format!("trafficengine-{}", std::process::id()),
        packet_cores: config.port.core.into_iter().collect(),
        memory_mib: config.port.memory_mib,
        pci: device.as_pci().into_iter().collect(),
        ..EalConfig::default()
    })?;
    if let Some(core) = config.port.core {
        pin_current_thread(core)?;
    }
    let _registered = eal.register_thread()?;
    let port_config = PortConfig {
        mtu: config.port.mtu,
        rx_descriptors: config.port.descriptors,
        tx_descriptors: config.port.descriptors,
        mac: config.port.mac,
        // Neighbour solicitations go to groups that the device does not know of.
        promiscuous: true,
        checksum_offload: config.port.checksum_offload,
        ..PortConfig::new(PortId(0), device)
    };
    let demand = PoolDemand {
        queues: port_config.buffers(),
        held: HELD,
        threads: 1,
    };
    let mut pool = MbufPool::new(&eal, "traffic", demand.buffers(), data_room(config.port.mtu), None)?;
    let (port, queues) = DpdkPort::open(&eal, &port_config, &[&pool])?;
    let mut queue = queues.into_iter().next().ok_or("the port has no queue")?;
    say(&format!(
        "{} with {}, address {}",
        config.port.device,
        port.driver(),
        port.mac()
    ));

    let clock = Clock::new();
    let GeneratorSettings { client, server, .. } = &config.generator;
    say(&format!("roles: {}", roles(client.is_some(), server.is_some())));
    let mut generator = Generator::new(config.generator.clone(), clock.now());
    let settings = RunSettings {
        grace: config.grace,
        idle: config.port.idle,
    };
    let progress = config.report.progress;
    let report = run(
        &mut generator,
        &mut queue,
        &mut pool,
        &clock,
        settings,
        &stop,
        |second| {
            if progress {
                say(&second.to_string());
            }
        },
    );
    if !generator.is_ready() {
        return Err("no next hop answered: is the link up, and are link.prefixes and link.gateways right?".into());
    }
    finish(&config, &report, &generator)
}

fn roles(client: bool, server: bool) -> &'static str {
    match (client, server) {
        (true, true) => "client and server",
        (true, false) => "client",
        _ => "server, until interrupted",
    }
}

fn finish(config: &Config, report: &Report, generator: &Generator<e2d2::native::Mbuf>) -> Outcome {
    say(&format!("\n{report}"));
    if let Some(path) = &config.report.json {
        std::fs::write(path, report.to_json()).map_err(|error| format!("{}: {error}", path.display()))?;
    }
    if let Some(path) = &config.report.svg {
        plot::draw(
            path,
            &report.by_second,
            generator.client_stats().map(|stats| &stats.latencies),
        )?;
    }
    Ok(if report.is_clean() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
