//! Criterion's measure for benches that move a burst per iteration: cycles of the time stamp counter per packet.

use criterion::Throughput;
use criterion::measurement::{Measurement, ValueFormatter};
use e2d2::BURST;
use e2d2::time::Clock;

/// Measures in cycles of the time stamp counter.
pub(crate) struct Cycles(pub(crate) Clock);

impl Measurement for Cycles {
    type Intermediate = u64;
    type Value = u64;

    fn start(&self) -> u64 {
        self.0.tsc()
    }
    fn end(&self, start: u64) -> u64 {
        self.0.tsc() - start
    }
    fn add(&self, first: &u64, second: &u64) -> u64 {
        first + second
    }
    fn zero(&self) -> u64 {
        0
    }
    fn to_f64(&self, value: &u64) -> f64 {
        *value as f64
    }
    fn formatter(&self) -> &dyn ValueFormatter {
        &CyclesPerPacket
    }
}

struct CyclesPerPacket;

impl ValueFormatter for CyclesPerPacket {
    fn scale_values(&self, _typical: f64, values: &mut [f64]) -> &'static str {
        values.iter_mut().for_each(|value| *value /= BURST as f64);
        "cycles/packet"
    }
    fn scale_throughputs(&self, _typical: f64, throughput: &Throughput, values: &mut [f64]) -> &'static str {
        if let Throughput::Elements(elements) = throughput {
            values.iter_mut().for_each(|value| *value = *elements as f64 / *value);
        }
        "packets/cycle"
    }
    fn scale_for_machines(&self, _values: &mut [f64]) -> &'static str {
        "cycles/burst"
    }
}
