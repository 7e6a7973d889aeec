//! A load that runs beside the device, on another thread or in another process: what it says and what it is told.

use std::time::Duration;

use e2d2::buffer::BufferPool;
use e2d2::port::Port;
use e2d2::scheduler::Work;
use e2d2::time::{Clock, Instant};
use serde::{Deserialize, Serialize};
use trafficengine::stats::{Failure, Latencies, Life};

use crate::accounts::CycleCounter;
use crate::contention::Contentions;
use crate::inline::Arm;
use crate::undisturbed::{Absence, Watch};

/// How far a load is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LoadStatus {
    /// Connections that its clients have completed.
    pub completed: u64,
    /// Established connections that wait to be drawn.
    pub held: u64,
    /// Connections that are being opened, used or closed.
    pub in_motion: u64,
    /// How often its core has been taken away from it.
    pub disturbances: u64,
    /// How often somebody else was found to use its core, of about a thousand looks a second.
    pub contentions: u64,
}

/// What a load is to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LoadOrders {
    /// Draw no held connection.
    pub is_paused: bool,
    /// End.
    pub is_over: bool,
    /// How often latencies were to be forgotten so far.
    pub resets: u8,
    /// Ask the system now and then how often it has taken the core away, which takes some 20 µs each time, and look whether
    /// somebody else uses it.
    pub asks_system: bool,
}

/// A load elsewhere, as the bench sees it.
pub trait RemoteLoad {
    /// Tells it what to do from now on; it hears within milliseconds.
    fn order(&mut self, orders: LoadOrders);

    /// What it last said.
    fn status(&mut self) -> LoadStatus;

    /// Ends it and takes what it has counted.
    ///
    /// # Errors
    /// A sentence, if it has ended by itself.
    fn finish(self) -> Result<LoadTotals, String>;
}

/// What a load has counted when it is over.
#[derive(Clone, Debug, Default)]
pub struct LoadTotals {
    /// Segments sent again by either role.
    pub retransmitted: u64,
    /// Responses from another server than the key's.
    pub wrong_server: u64,
    /// Connections that did not end as they should, of either role.
    pub failed: u64,
    /// Packets that were not sent.
    pub not_sent: u64,
    /// How far an open loop was behind its schedule at most, in microseconds.
    pub max_behind_us: f64,
    /// The client's latencies.
    pub latencies: Latencies,
    /// Those to the first byte one by one, if the arms keep them, and the absences of the load's core since latencies were
    /// last forgotten: of a load in this process.
    pub lives: Vec<Life>,
    /// See above.
    pub absences: Vec<Absence>,
}

impl LoadTotals {
    /// The sum over arms.
    pub fn of<P: Port>(arms: &[Arm<P>]) -> LoadTotals {
        let mut totals = LoadTotals::default();
        for arm in arms {
            totals.not_sent += arm.generator.port_stats().not_sent;
            if let Some(client) = arm.generator.client_stats() {
                totals.retransmitted += client.traffic.retransmitted;
                totals.wrong_server += client.connections.failed(Failure::WrongServer);
                totals.failed += client.connections.failed_in_all();
                totals.max_behind_us = client.max_behind.as_nanos() as f64 / 1e3;
                totals.latencies = client.latencies.clone();
                totals.lives = client.lives.clone();
            }
            if let Some(server) = arm.generator.server_stats() {
                totals.retransmitted += server.traffic.retransmitted;
                totals.failed += server.connections.failed_in_all();
            }
        }
        totals
    }

    /// As a line of text for another process.
    pub(super) fn to_line(&self) -> String {
        let pairs = |histogram: &hdrhistogram::Histogram<u64>| {
            let recorded = histogram.iter_recorded();
            recorded
                .map(|value| (value.value_iterated_to(), value.count_at_value()))
                .collect()
        };
        let line = Line {
            counts: [self.retransmitted, self.wrong_server, self.failed, self.not_sent],
            max_behind_us: self.max_behind_us,
            latencies: [
                pairs(&self.latencies.connect),
                pairs(&self.latencies.first_byte),
                pairs(&self.latencies.whole),
            ],
        };
        // Numbers in arrays: nothing that the writer refuses.
        serde_json::to_string(&line).unwrap_or_default()
    }

    /// What `to_line` wrote.
    pub(super) fn from_line(line: &str) -> Result<LoadTotals, String> {
        let line: Line = serde_json::from_str(line).map_err(|error| format!("what the load counted: {error}"))?;
        let [retransmitted, wrong_server, failed, not_sent] = line.counts;
        let mut latencies = Latencies::default();
        let histograms = [&mut latencies.connect, &mut latencies.first_byte, &mut latencies.whole];
        for (histogram, pairs) in histograms.into_iter().zip(&line.latencies) {
            pairs
                .iter()
                .for_each(|(value, count)| histogram.saturating_record_n(*value, *count));
        }
        Ok(LoadTotals {
            retransmitted,
            wrong_server,
            failed,
            not_sent,
            max_behind_us: line.max_behind_us,
            latencies,
            ..LoadTotals::default()
        })
    }
}

#[derive(Serialize, Deserialize)]
struct Line {
    counts: [u64; 4],
    max_behind_us: f64,
    latencies: [Vec<(u64, u64)>; 3],
}

/// The load's end of the connection to the bench.
pub(super) trait Exchange {
    /// Says how far the load is and hears what it is to do.
    fn exchange(&mut self, status: LoadStatus) -> LoadOrders;
}

/// How often it is looked whether somebody else uses the load's core, which takes it some 7 µs.
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// How long a paused load with nothing in motion does nothing, before it looks again.
const REST: Duration = Duration::from_millis(2);

/// Polls the arms until it is told to end; returns the absences of the core since latencies were last forgotten.
pub(super) fn drive<P: Port, L: BufferPool<Buffer = P::Buffer>>(
    arms: &mut [Arm<P>],
    pool: &mut L,
    clock: &Clock,
    bench: &mut impl Exchange,
) -> Vec<Absence> {
    let (mut turns, mut orders) = (0u32, LoadOrders::default());
    let mut disturbances = clock.disturbances();
    let (mut watch, mut work) = (Watch::default(), Work::NONE);
    let (mut contentions, mut look_at) = (Contentions::default(), Instant::ZERO);
    loop {
        let now = clock.now();
        watch.begin_turn(now, work.count());
        work = Work::NONE;
        for arm in &mut *arms {
            work += arm.generator.poll(now, &mut arm.port, pool);
        }
        turns = turns.wrapping_add(1);
        if orders.asks_system && turns.is_multiple_of(8192) {
            disturbances = clock.disturbances();
        }
        // Seldom enough that what is shared with the bench does not matter.
        if !turns.is_multiple_of(64) {
            continue;
        }
        if orders.asks_system && now >= look_at {
            contentions.look(clock);
            look_at = now + LOOK_EVERY;
        }
        let status = LoadStatus {
            disturbances,
            contentions: contentions.found,
            ..status(arms)
        };
        let before = std::mem::replace(&mut orders, bench.exchange(status));
        if orders.is_over {
            return watch.take();
        }
        for arm in &mut *arms {
            arm.generator.set_paused(orders.is_paused);
            if orders.resets != before.resets {
                arm.generator.reset_latencies();
            }
        }
        if orders.resets != before.resets {
            watch.take();
        }
        if orders.is_paused && status.in_motion == 0 {
            // It leaves its core to whoever wants to know where that is.
            std::thread::sleep(REST);
        }
    }
}

fn status<P: Port>(arms: &[Arm<P>]) -> LoadStatus {
    let (mut completed, mut held, mut open) = (0, 0, 0);
    for arm in arms {
        let client = arm.generator.client_stats();
        completed += client.map_or(0, |stats| stats.connections.completed);
        held += u64::from(arm.generator.held());
        open += u64::from(arm.generator.open().0);
    }
    LoadStatus {
        completed,
        held,
        // A held connection that was reset leaves the list when it is drawn.
        in_motion: open.saturating_sub(held),
        ..LoadStatus::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn totals_survive_the_way_to_another_process() {
        let mut totals = LoadTotals {
            retransmitted: 1,
            wrong_server: 2,
            failed: 3,
            not_sent: 4,
            max_behind_us: 5.5,
            ..LoadTotals::default()
        };
        (1..1000).for_each(|micros| totals.latencies.whole.record(micros * 1000).unwrap());
        totals.latencies.connect.record_n(7, 9).unwrap();
        let back = LoadTotals::from_line(&totals.to_line()).unwrap();
        assert_eq!(
            (back.retransmitted, back.wrong_server, back.failed, back.not_sent),
            (1, 2, 3, 4)
        );
        assert_eq!(back.max_behind_us, 5.5);
        assert_eq!(back.latencies.whole, totals.latencies.whole);
        assert_eq!(back.latencies.connect.len(), 9);
        assert!(back.latencies.first_byte.is_empty());
        assert!(LoadTotals::from_line("").is_err());
    }
}
