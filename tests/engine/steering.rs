//! The bench of steering, small: several cores behind software NICs, in every mode.

#[path = "../../benches/core/steering/field.rs"]
#[allow(unreachable_pub, reason = "a module of a bench as well")]
mod field;

use field::MODES;

#[test]
fn every_packet_meets_its_core_in_every_mode() {
    for mode in MODES {
        for queues in [1, 2, 3, 8] {
            let outcome =
                field::run(mode, queues, 1_000).unwrap_or_else(|error| panic!("{} {queues}: {error}", mode.0));
            assert!(outcome.is_right(), "{outcome:?}");
        }
    }
}
