//! One measurement of one system in one column.

use crate::place::Site;
use crate::systems::{Running, System};
use crate::tally::Tally;
use crate::{Column, ECHO, Load, Options, PROXY, SOURCE, Sample, UDP_ECHO, UDP_SINK, machine, tcp, udp};
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Starts the server of a column; what the sink gets is counted in `sink`.
fn start_server(address: SocketAddr, sink: &Arc<AtomicU64>) -> Result<tcp::Server, String> {
    let port = address.port();
    let server = match port {
        ECHO => tcp::serve_echo(address),
        SOURCE => tcp::serve_source(address),
        UDP_ECHO => udp::serve_echo(port),
        _ => udp::serve_sink(port, Arc::clone(sink)),
    };
    server.map_err(|error| format!("server on port {port}: {error}"))
}

/// Busy seconds of the machine by second while nothing of ours runs.
pub(crate) fn idle(options: &Options) -> Option<f64> {
    let before = machine::busy_seconds()?;
    let begin = Instant::now();
    std::thread::sleep(Duration::from_secs_f64(options.seconds));
    Some((machine::busy_seconds()? - before) / begin.elapsed().as_secs_f64())
}

/// What a measurement has counted.
#[derive(Default)]
struct Counts {
    tally: Tally,
    received: AtomicU64,
    sink: Arc<AtomicU64>,
    stop: AtomicBool,
}

impl Counts {
    fn units(&self, column: Column) -> u64 {
        match column.load {
            Load::Tcp(_) => self.tally.units.load(Ordering::Relaxed),
            Load::Udp(_) if column.port == UDP_SINK => self.sink.load(Ordering::Relaxed),
            Load::Udp(_) => self.received.load(Ordering::Relaxed),
        }
    }
}

fn start_load(
    site: Site,
    load: Load,
    target: SocketAddr,
    with_header: bool,
    counts: &Arc<Counts>,
) -> JoinHandle<io::Result<()>> {
    let counts = Arc::clone(counts);
    std::thread::spawn(move || {
        site.enter_as_client().map_err(io::Error::other)?;
        match load {
            Load::Tcp(load) => tcp::generate(load, target, with_header, &counts.tally, &counts.stop),
            Load::Udp(load) => udp::generate(load, target, with_header, &counts.received, &counts.stop),
        }
    })
}

/// Until all connections stand: a queue of one, as a peer has, takes a second for each few of them.
fn wait_for_connections(column: Column, counts: &Counts, client: &JoinHandle<io::Result<()>>) {
    let (begin, nothing) = (Instant::now(), counts.units(column));
    while counts.units(column) == nothing && begin.elapsed() < Duration::from_secs(40) && !client.is_finished() {
        std::thread::sleep(Duration::from_millis(5));
    }
    std::thread::sleep(Duration::from_millis(400));
}

/// Measures one system in one column; `None` if it cannot do this, or does not work. `idle` is what [`idle`] returned.
pub(crate) fn measure(
    column: Column,
    system: Option<System>,
    options: &Options,
    idle: Option<f64>,
) -> Result<Option<Sample>, String> {
    let place = column.place;
    let site = place.enter(options.congestion.as_deref())?;
    let counts = Arc::new(Counts::default());
    let server = |address| SocketAddr::from((address, column.port));
    let _server = start_server(server(place.bind()), &counts.sink)?;
    let udp = matches!(column.load, Load::Udp(_));
    let name = system.map_or("no-proxy", System::name);
    let failed = |error: &dyn std::fmt::Display| {
        eprintln!("{} {name}: {error}", column.name);
        Ok(None)
    };
    let proxy = SocketAddr::from((place.server(), PROXY));
    let running: Option<Running> = match system {
        None => None,
        Some(system) if !system.does(column) => return Ok(None),
        Some(system) => match system.start(place, proxy, server(Ipv4Addr::LOCALHOST), udp) {
            Ok(running) => Some(running),
            Err(error) => return failed(&error),
        },
    };
    let target = running.as_ref().map_or(server(place.server()), |_| proxy);
    let client = start_load(site, column.load, target, running.is_some(), &counts);
    wait_for_connections(column, &counts, &client);
    counts.tally.forget_times();
    let read = || {
        let cpu = running.as_ref().map(Running::cpu_seconds);
        (machine::busy_seconds(), Instant::now(), counts.units(column), cpu)
    };
    let before = read();
    std::thread::sleep(Duration::from_secs_f64(options.seconds));
    let after = read();
    let p99 = counts.tally.quantile(0.99).map(|seconds| seconds * 1e3);
    let as_meant = system.map_or(Ok(()), System::check);
    counts.stop.store(true, Ordering::Relaxed);
    if let Err(error) = client.join().map_err(|_| "the load generator failed")? {
        // A proxy that fails in one column is still compared in the others.
        return failed(&error);
    }
    if let Err(error) = as_meant {
        return failed(&error);
    }
    let units = after.2.wrapping_sub(before.2) as f64;
    if units == 0.0 {
        return failed(&"nothing came through");
    }
    let seconds = (after.1 - before.1).as_secs_f64();
    // An echo passes the proxy twice.
    let passes = if matches!(column.load, Load::Tcp(tcp::Load::Stream { .. })) {
        2.0
    } else {
        1.0
    };
    let scale = if column.per_gigabyte { 1e9 / passes } else { 1e6 };
    let by_unit = |spent: f64| spent / units * scale;
    let busy = || Some(after.0? - before.0? - idle? * seconds);
    let cpu = || Some(after.3? - before.3?);
    Ok(Some(Sample {
        rate: units / seconds,
        cpu: cpu().map(by_unit),
        machine_cpu: busy().map(by_unit),
        p99,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::place::Place;

    /// Over the veth pair, with the server in the one namespace and the client in the other.
    #[test]
    fn no_proxy_is_measured_over_a_veth_pair() {
        if !rustix::process::geteuid().is_root() {
            return rig::skip("no_proxy_is_measured_over_a_veth_pair", "network namespaces need root");
        }
        let column = crate::COLUMNS.into_iter().find(|column| column.place == Place::Veth);
        let options = Options {
            seconds: 0.2,
            ..Options::default()
        };
        let measured = std::thread::spawn(move || {
            let idle = idle(&options);
            measure(column.expect("a column"), None, &options, idle)
        });
        let sample = measured.join().expect("a thread").expect("measured").expect("a sample");
        assert!(sample.rate > 0.0 && sample.cpu.is_none(), "{sample:?}");
    }
}
