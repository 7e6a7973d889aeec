//! What the bench says to people.

use super::LatencyResult;
use benchkit::verdict;

pub(super) fn print(result: &LatencyResult) {
    println!("to the first byte of the response, from the intended start, in µs (p50, p99, p99.9):");
    for level in &result.levels {
        let direct = &level.direct_first_byte_us;
        println!(
            "{:3} %: {:>9.0} connections/s: {:.1}, {:.1}, {:.1}; without a proxy {:.1}, {:.1}, {:.1}",
            level.percent,
            level.connections_per_second,
            level.p50,
            level.p99,
            level.p999,
            direct.p50,
            direct.p99,
            direct.p999,
        );
        let (calm, direct) = (
            &level.undisturbed_first_byte_us,
            &level.undisturbed_direct_first_byte_us,
        );
        println!(
            "      no core away: {:.1}, {:.1}, {:.1}, {:.2} % left out; without a proxy {:.1}, {:.1}, {:.1}, {:.2} %",
            calm.p50,
            calm.p99,
            calm.p999,
            level.left_out_share * 100.0,
            direct.p50,
            direct.p99,
            direct.p999,
            level.direct_left_out_share * 100.0,
        );
        println!(
            "      absences of the proxy's core: {:.1} a second, {:.2} % of the time; while it only polls {:.1}, {:.2} %",
            level.absences_per_second,
            level.away_share * 100.0,
            level.direct_absences_per_second,
            level.direct_away_share * 100.0,
        );
    }
    println!("{}", result.pinning);
    println!(
        "the system took the proxy's core away {} times; {}",
        result.disturbances,
        verdict(&result.invalid_because),
    );
}
