//! `./build.sh bench splice`: what a packet of an established connection costs, from receiving to sending it.
//!
//! 10 000 connections are bound to their servers; then requests and responses of one size go through them, the next
//! connection drawn at random, time stamps on. A client's acknowledgement rides on its next request, so that every packet
//! carries payload.

use std::time::Duration;

use benchkit::{Coverage, CpsSettings, Measured, Sum, unwanted, verdict};
use serde::Serialize;
use trafficengine::plot;

use crate::device::cli::Common;
use crate::device::{BoxError, Conditions, Host, InlineProxy};

/// Cycles of a spliced packet.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Connections.
    #[arg(long, default_value_t = 10_000)]
    flows: u32,
    /// How long to measure each size.
    #[arg(long, default_value_t = 5.0)]
    seconds: f64,
    #[command(flatten)]
    common: Common,
}

/// 1460 bytes and time stamps in one segment are more than 1500 bytes; this is the next MTU in common use.
const MTU: u16 = 9000;

/// Names are those of the JSON.
#[derive(Serialize)]
struct SpliceResult {
    cycles_per_packet_64: f64,
    cycles_per_packet_1460: f64,
    /// The same in all slices but the disturbed.
    cycles_all_slices_64: f64,
    cycles_all_slices_1460: f64,
    gbit_per_second_1460: f64,
    flows: u32,
    tsc_hz: u64,
    payload_share_64: f64,
    payload_share_1460: f64,
    lost: u64,
    retransmitted: u64,
    failed: u64,
    disturbed_slices: u32,
    slices_alone: u32,
    /// Of both sizes together.
    #[serde(flatten)]
    coverage: Coverage,
    slices_counted_share_64: f64,
    slices_counted_share_1460: f64,
    valid: bool,
    invalid_because: Vec<String>,
}

/// One size.
struct Run {
    measured: Measured,
    /// Share of packets that carry payload.
    payload_share: f64,
    lost: u64,
    retransmitted: u64,
    failed: u64,
}

impl Run {
    /// What keeps the figure of segments of so many bytes from being valid.
    fn reasons_against(&self, payload: u32) -> impl Iterator<Item = String> {
        // Acknowledgements without payload would make the mean packet cheaper than it is.
        let share = self.payload_share;
        let too_few = (share.is_nan() || share <= LEAST_WITH_PAYLOAD)
            .then(|| format!("{share:.3} of the packets carry payload, not more than {LEAST_WITH_PAYLOAD}"));
        let reasons = too_few.into_iter().chain(self.measured.coverage().reason_against());
        reasons.map(move |reason| format!("{payload} bytes: {reason}"))
    }
}

/// More of the packets must carry payload.
const LEAST_WITH_PAYLOAD: f64 = 0.95;

pub(crate) fn run(arguments: &Arguments) -> Result<bool, BoxError> {
    arguments.common.pin()?;
    let host = Host::start(1, MTU)?;
    let small = measure(&host, 'a', arguments, 64)?;
    let large = measure(&host, 'b', arguments, 1460)?;
    let tsc_hz = e2d2::time::Clock::new().tsc_hz();
    let [cycles_small, cycles_large] = [&small, &large].map(|run| per_packet(&run.measured.counted));
    let [lost, retransmitted, failed] = [
        small.lost + large.lost,
        small.retransmitted + large.retransmitted,
        small.failed + large.failed,
    ];
    let mut invalid_because = unwanted([("lost", lost), ("retransmitted", retransmitted), ("failed", failed)]);
    invalid_because.extend(small.reasons_against(64));
    invalid_because.extend(large.reasons_against(1460));
    let result = SpliceResult {
        cycles_per_packet_64: cycles_small,
        cycles_per_packet_1460: cycles_large,
        cycles_all_slices_64: per_packet(&small.measured.quiet),
        cycles_all_slices_1460: per_packet(&large.measured.quiet),
        gbit_per_second_1460: tsc_hz as f64 / cycles_large * 1460.0 * 8.0 / 1e9,
        flows: arguments.flows,
        tsc_hz,
        payload_share_64: small.payload_share,
        payload_share_1460: large.payload_share,
        lost,
        retransmitted,
        failed,
        disturbed_slices: small.measured.disturbed + large.measured.disturbed,
        slices_alone: small.measured.slices_alone + large.measured.slices_alone,
        coverage: Coverage::of([&small.measured, &large.measured]),
        slices_counted_share_64: small.measured.coverage().slices_counted_share,
        slices_counted_share_1460: large.measured.coverage().slices_counted_share,
        valid: invalid_because.is_empty(),
        invalid_because,
    };
    println!(
        "64 bytes: {:.0} cycles per packet; 1460 bytes: {:.0}, {:.1} Gbit/s by division; in all slices but the disturbed {:.0} and {:.0}; \
         of {} slices {} count ({:.0} %), {} disturbed, {} with the core to itself; {}",
        result.cycles_per_packet_64,
        result.cycles_per_packet_1460,
        result.gbit_per_second_1460,
        result.cycles_all_slices_64,
        result.cycles_all_slices_1460,
        result.coverage.slices,
        result.coverage.slices_counted,
        result.coverage.slices_counted_share * 100.0,
        result.disturbed_slices,
        result.slices_alone,
        verdict(&result.invalid_because),
    );
    arguments.common.write(&result)?;
    let bars = [
        ("64 bytes", result.cycles_per_packet_64),
        ("1460 bytes", result.cycles_per_packet_1460),
    ];
    plot::bars(&arguments.common.plot("splice.svg"), "cycles per spliced packet", &bars)?;
    Ok(result.valid)
}

fn measure(host: &Host, name: char, arguments: &Arguments, payload: u32) -> Result<Run, BoxError> {
    let settings = CpsSettings {
        open: arguments.flows,
        length: Duration::from_secs_f64(arguments.seconds),
        ..CpsSettings::default()
    };
    let conditions = Conditions {
        rounds: u16::MAX,
        request: payload,
        response: payload,
        capacity: arguments.flows * 2,
        mtu: MTU,
        // A passed segment's checksum is updated, not verified: an error in it is the receiver's to find.
        verify_all: false,
        ..Conditions::new(settings)
    };
    let mut inline = host.open(name, &conditions)?;
    inline.warm_up(&settings);
    // A connection is bound with its first request: go on until nearly all have had theirs.
    let bound = u64::from(arguments.flows) * 999 / 1000;
    let end = inline.counter.now() + Duration::from_secs(30);
    inline.run_until(end, |arms| {
        let servers = arms.iter().filter_map(|arm| arm.generator.server_stats());
        servers.map(|stats| stats.connections.established).sum::<u64>() >= bound
    });
    inline.settle();
    let payload_before = payload_packets(&inline);
    let measured = inline.measure(settings.length);
    let report = inline.result(&settings, &measured);
    if report.lost + report.retransmitted + report.failed > 0 {
        println!(
            "{payload} bytes: {}; {:#?}",
            report.invalid_because.join("; "),
            inline.device.counters()
        );
        for arm in &inline.arms {
            println!(
                "{:?} {:?}",
                arm.generator.client_stats().map(|s| &s.connections),
                arm.generator.server_stats().map(|s| &s.connections)
            );
        }
    }
    let received = measured.all.accounts.received;
    Ok(Run {
        measured,
        payload_share: (payload_packets(&inline) - payload_before) as f64 / received.max(1) as f64,
        lost: report.lost,
        retransmitted: report.retransmitted,
        failed: report.failed,
    })
}

fn per_packet(sum: &Sum) -> f64 {
    sum.accounts.busy_cycles as f64 / sum.accounts.received.max(1) as f64
}

/// Segments with payload that client and servers have sent.
fn payload_packets(inline: &InlineProxy) -> u64 {
    let sent = netfcts::TcpCounter::SentPayload;
    let clients = inline
        .arms
        .iter()
        .filter_map(|arm| arm.generator.client_stats())
        .map(|stats| stats.tcp[sent]);
    let servers = inline
        .arms
        .iter()
        .filter_map(|arm| arm.generator.server_stats())
        .map(|stats| stats.tcp[sent]);
    clients.sum::<u64>() + servers.sum::<u64>()
}
