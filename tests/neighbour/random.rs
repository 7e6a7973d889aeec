//! Frames that nobody meant: no panic, no more than one answer, no answer longer than allowed, no table that grows.

use proptest::prelude::*;
use proxyengine::neighbour::{NeighbourEvent, Verdict};

use crate::frames::{Arp, Icmp4, Icmp6};
use crate::world::{CLIENT_MAC, LEFT, OUR_MAC, RIGHT, SERVER_MAC, STATIC_MAC, World};

fn seeds() -> Vec<Vec<u8>> {
    vec![
        Arp::request(CLIENT_MAC, "10.0.0.5", "10.0.0.1").bytes(),
        Arp::reply(SERVER_MAC, "10.0.0.20", OUR_MAC, "10.0.0.1").bytes(),
        Icmp6::solicitation(CLIENT_MAC, "2001:db8::5", "2001:db8::1").bytes(),
        Icmp6::solicitation(CLIENT_MAC, "::", "2001:db8::1").bytes(),
        Icmp6::advertisement(SERVER_MAC, "2001:db8::20", OUR_MAC, "2001:db8::1", 0x60).bytes(),
        Icmp4::echo(CLIENT_MAC, "10.0.0.5", OUR_MAC, "10.0.0.1", b"payload").bytes(),
        Icmp4 {
            options: vec![1; 8],
            ..Icmp4::echo(CLIENT_MAC, "10.0.0.5", OUR_MAC, "10.0.0.1", b"")
        }
        .bytes(),
        Icmp6::echo(CLIENT_MAC, "2001:db8::5", OUR_MAC, "2001:db8::1", b"payload").bytes(),
    ]
}

/// A good frame with some bytes changed, cut or lengthened, and its checksums right again or not.
fn mutated() -> impl Strategy<Value = Vec<u8>> {
    let changes = prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6);
    let cut = prop_oneof![4 => Just(None), 1 => any::<prop::sample::Index>().prop_map(Some)];
    let tail = prop::collection::vec(any::<u8>(), 0..20);
    (prop::sample::select(seeds()), changes, cut, tail, any::<bool>()).prop_map(
        |(mut frame, changes, cut, tail, repair)| {
            for (index, byte) in changes {
                let at = index.index(frame.len());
                frame[at] = byte;
            }
            if repair {
                repair_icmp6(&mut frame);
            }
            if let Some(cut) = cut {
                frame.truncate(cut.index(frame.len() + 1));
            }
            frame.extend(tail);
            frame
        },
    )
}

/// Without this nearly every change would end at the checksum.
fn repair_icmp6(frame: &mut [u8]) {
    if frame.len() > 62 && frame[12..14] == [0x86, 0xdd] && frame[20] == 58 {
        let address = |at: usize| -> [u8; 16] { frame[at..at + 16].try_into().expect("16 bytes") };
        let (src, dst) = (address(22).into(), address(38).into());
        frame[56..58].fill(0);
        let sum = crate::frames::icmp6_checksum(src, dst, &frame[54..]);
        frame[56..58].copy_from_slice(&sum.to_be_bytes());
    }
}

fn check(world: &mut World, port: e2d2::port::PortId, frame: &[u8]) -> Result<(), TestCaseError> {
    let (verdict, answer) = world.receive(port, frame);
    if let Some(answer) = answer {
        let limit = match verdict {
            Verdict::Answer(NeighbourEvent::ArpAnswered) => 42,
            Verdict::Answer(NeighbourEvent::SolicitationAnswered) => 86,
            _ => frame.len(),
        };
        prop_assert!(answer.len() <= limit, "{} bytes: {:?}", answer.len(), verdict);
        prop_assert_eq!(
            &answer[6..12],
            if port == LEFT {
                &OUR_MAC[..]
            } else {
                &crate::world::OUR_RIGHT_MAC[..]
            }
        );
        prop_assert!(
            answer[0] & 1 == 0 || answer[..6] == [0x33, 0x33, 0, 0, 0, 1],
            "answer to a group: {:?}",
            answer
        );
    }
    prop_assert!(world.shared.resolved() <= 4);
    prop_assert_eq!(world.mac_of("10.0.0.30"), Some(STATIC_MAC));
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 20_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_bytes(frame in prop::collection::vec(any::<u8>(), 0..200), right in any::<bool>()) {
        check(&mut World::new(), if right { RIGHT } else { LEFT }, &frame)?;
    }

    #[test]
    fn mutated_frames(frame in mutated(), right in any::<bool>()) {
        check(&mut World::new(), if right { RIGHT } else { LEFT }, &frame)?;
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    /// A long conversation with a hostile link: what is sent unasked stays bounded.
    #[test]
    fn whole_conversations(frames in prop::collection::vec((mutated(), 0u64..3_000), 1..200)) {
        let mut world = World::new();
        let mut passed = 0;
        let mut sent = 0;
        for (frame, pause) in frames {
            check(&mut world, LEFT, &frame)?;
            passed += pause;
            sent += world.run_until(e2d2::time::Instant::from_millis(passed)).len() as u64;
        }
        // Twelve announcements, two reports a minute and twice at start, and one question per second and neighbour.
        prop_assert!(sent <= 12 + 4 + 2 * (passed / 60_000) + 3 * (passed / 1000 + 1), "{} frames in {} ms", sent, passed);
    }
}
