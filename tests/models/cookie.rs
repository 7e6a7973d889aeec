//! How often a guess is taken for a cookie, and for how long a cookie is one.

use e2d2::time::Instant;
use netfcts::FourTuple;
use netfcts::seq::SeqNum;
use splice::cookie::{Agreed, CookieJar, LIFETIME, MSS_CLASSES, SLOT};
use std::time::Duration;
use testkit::sim::Random;

/// The seed of this run: `SEED`, or always the same.
fn seeded() -> Random {
    let given = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = given.unwrap_or(4987);
    println!("SEED={seed}");
    Random::new(seed)
}

fn flow(random: &mut Random) -> FourTuple {
    let ports = random.bits();
    FourTuple {
        remote: 0xffff_0000_0000 | u128::from(random.bits() as u32),
        local: 0xffff_0a00_0009,
        remote_port: ports as u16,
        local_port: (ports >> 16) as u16,
    }
}

fn agreed(random: &mut Random) -> Agreed {
    Agreed {
        mss: random.one_of(&MSS_CLASSES),
        window_scale: Some(random.within(0..=15) as u8).filter(|shift| *shift <= 14),
        sack: random.chance(500),
    }
}

#[test]
fn guesses_pass_at_the_computed_rate() {
    // Any flow, any numbers, any time: half of all numbers show one of the two live slots, and of those 2⁻²² have the right
    // MAC. 2²⁶ guesses: 8 are expected, and by Poisson's law fewer than 1 or more than 24 in less than 4 of 10 000 runs.
    let mut random = seeded();
    let jar = CookieJar::new([random.bits(), random.bits()]);
    let (mut live, mut passed) = (0_u32, 0);
    const GUESSES: u32 = 1 << 26;
    for chunk in 0..1 << 10 {
        let key = flow(&mut random);
        let now = Instant::ZERO + Duration::from_secs(1000 + chunk);
        for _ in 0..GUESSES >> 10 {
            let numbers = random.bits();
            let cookie = SeqNum(numbers as u32);
            if jar.may_be_live(cookie, now) {
                live += 1;
                passed += u32::from(jar.open(&key, SeqNum((numbers >> 32) as u32), cookie, now).is_some());
            }
        }
    }
    println!("{passed} of {GUESSES} guesses passed, {live} showed a live slot");
    assert!((1..=24).contains(&passed), "{passed} guesses passed");
    // The standard deviation of a fair coin thrown so often is 4096; six of them.
    let half = GUESSES / 2;
    assert!(live.abs_diff(half) < 6 * 4096, "{live} guesses showed a live slot");
}

#[test]
fn a_cookie_is_one_to_its_last_nanosecond_and_never_after() {
    let mut random = seeded();
    let mut late = 0;
    for _ in 0..100_000 {
        let jar = CookieJar::new([random.bits(), random.bits()]);
        let (key, isn, agreed) = (flow(&mut random), SeqNum(random.bits() as u32), agreed(&mut random));
        let baked = Instant::ZERO + Duration::from_nanos(random.within(0..=1 << 50));
        let cookie = jar.bake(&key, isn, agreed, baked);
        // Its own slot and the next.
        let end = Instant::ZERO + Duration::from_nanos((CookieJar::slot(baked) + 2) * SLOT.as_nanos() as u64);
        assert!(end - baked > SLOT && end - baked <= LIFETIME);
        let age = Duration::from_nanos(random.within(0..=(end - baked).as_nanos() as u64 - 1));
        for now in [baked, baked + age, end - Duration::from_nanos(1)] {
            let opened = jar.open(&key, isn, cookie, now).map(|opened| opened.agreed);
            assert_eq!(opened, Some(agreed), "after {:?}", now - baked);
        }
        // For two slots its bits show that it is over: no guess about it.
        for after in [Duration::ZERO, SLOT, SLOT * 2 - Duration::from_nanos(1)] {
            assert_eq!(
                jar.open(&key, isn, cookie, end + after),
                None,
                "{after:?} after its end"
            );
        }
        // Then they are those of a live slot again, and only the MAC tells.
        let again = SLOT * 2 + SLOT * 4 * random.within(0..=1000) as u32;
        late += u32::from(jar.open(&key, isn, cookie, end + again).is_some());
    }
    // One in 42 runs would have one.
    assert!(late <= 1, "{late} of 100 000 expired cookies were taken");
}
