use super::*;

const ME: Owner = Owner {
    slot: 0,
    share: Quota::NOBODY,
};

fn pool_of(chunks: usize, percent: u8) -> ReassemblyPool {
    ReassemblyPool::new(chunks * CHUNK_MEMORY, percent)
}

fn stream(n: usize) -> Vec<u8> {
    (0..n).map(|i| (i * 7 + i / 251) as u8).collect()
}

#[test]
fn segments_in_any_order_and_overlap_make_one_slice() {
    let bytes = stream(6000);
    let cuts = [(4000, 6000), (0, 100), (50, 1500), (1400, 2900), (2900, 4000)];
    let mut pool = pool_of(2, 100);
    let mut held = None;
    for (start, end) in cuts {
        assert_eq!(
            pool.insert(&mut held, start, &bytes[start..end], ME),
            Ok(true),
            "{start}..{end}"
        );
    }
    assert_eq!(pool.in_order(held), bytes);
    assert_eq!(pool.insert(&mut held, 10, &bytes[10..5000], ME), Ok(false));
    pool.close(&mut held);
    assert_eq!(pool.in_use(), 0);
}

#[test]
fn bytes_before_the_first_hole_are_in_order() {
    let mut pool = pool_of(2, 100);
    let mut held = None;
    pool.insert(&mut held, 5, b"world", ME).expect("room");
    assert_eq!(pool.in_order(held), b"");
    pool.insert(&mut held, 0, b"hell", ME).expect("room");
    assert_eq!(pool.in_order(held), b"hell");
    assert_eq!(pool.runs(held).collect::<Vec<_>>(), [(0, &b"hell"[..]), (5, b"world")]);
    pool.insert(&mut held, 4, b"o", ME).expect("room");
    assert_eq!(pool.in_order(held), b"helloworld");
}

#[test]
fn stripping_moves_the_start_and_what_lies_behind_holes() {
    let bytes = stream(3000);
    let mut pool = pool_of(2, 100);
    let mut held = None;
    pool.insert(&mut held, 0, &bytes[..100], ME).expect("room");
    pool.insert(&mut held, 2000, &bytes[2000..3000], ME).expect("room");
    pool.strip(&mut held, 101);
    assert_eq!(
        pool.in_order(held),
        &bytes[..100],
        "what is not there cannot be taken out"
    );
    pool.strip(&mut held, 40);
    assert_eq!(
        pool.runs(held).collect::<Vec<_>>(),
        [(0, &bytes[40..100]), (1960, &bytes[2000..3000])]
    );
    pool.strip(&mut held, 60);
    assert_eq!(pool.in_order(held), b"");
    pool.insert(&mut held, 0, &bytes[100..2000], ME).expect("room");
    assert_eq!(pool.in_order(held), &bytes[100..]);
    pool.strip(&mut held, 2900);
    assert!(held.is_none() && pool.in_use() == 0);
}

#[test]
fn limits_are_exact() {
    let mut pool = pool_of(1, 100);
    let mut held = None;
    assert_eq!(pool.insert(&mut held, LARGE - 1, b"x", ME), Ok(true));
    assert_eq!(
        pool.insert(&mut held, LARGE, b"x", ME),
        Err(ReassemblyError::BeyondWindow)
    );
    let mut other = None;
    assert_eq!(pool.insert(&mut other, 0, b"x", ME), Err(ReassemblyError::Exhausted));
    for hole in 1..MAX_RUNS {
        assert_eq!(pool.insert(&mut held, hole * 2, b"x", ME), Ok(true));
    }
    assert_eq!(
        pool.insert(&mut held, 100, b"x", ME),
        Err(ReassemblyError::TooManyHoles)
    );
    // Filling a hole needs no new run.
    assert_eq!(pool.insert(&mut held, 3, b"x", ME), Ok(true));
}

#[test]
fn a_request_that_outgrows_its_buffer_moves() {
    let bytes = stream(LARGE);
    let mut pool = pool_of(2, 100);
    let mut held = None;
    let mut before = 0;
    for size in SIZES {
        pool.insert(&mut held, before, &bytes[before..size], ME).expect("room");
        assert_eq!(pool.in_order(held), &bytes[..size]);
        assert_eq!((pool.in_use(), pool.bytes_in_use()), (1, size + 64));
        before = size;
    }
}

#[test]
fn any_cuts_in_any_order_give_the_stream_back() {
    let bytes = stream(LARGE);
    for seed in 0..200_u64 {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut random = |n: usize| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state % n as u64) as usize
        };
        let length = 1 + random(LARGE);
        let mut pool = pool_of(2, 100);
        let mut held = None;
        let mut rounds = 0;
        while pool.in_order(held).len() < length {
            let start = random(length);
            let end = length.min(start + 1 + random(3000));
            let _ = pool.insert(&mut held, start, &bytes[start..end], ME);
            for (offset, run) in pool.runs(held) {
                assert_eq!(run, &bytes[offset..offset + run.len()], "seed {seed}");
            }
            rounds += 1;
            // Holes can only be closed from the front when all runs are taken.
            let front = pool.in_order(held).len();
            if rounds % 8 == 0 && front < length {
                let _ = pool.insert(&mut held, front, &bytes[front..length.min(front + 1460)], ME);
            }
        }
        assert_eq!(pool.in_order(held), &bytes[..length], "seed {seed}");
    }
}

fn slots(pool: &ReassemblyPool, claim: EvictionClass) -> Vec<u32> {
    let mut next = pool.orders.get(claim as usize).map_or(NOBODY, |order| order.longest);
    std::iter::from_fn(|| {
        let block = pool.blocks.get(next as usize)?;
        next = block.later;
        Some(block.owner.slot)
    })
    .collect()
}

#[test]
fn each_waits_in_the_order_of_its_claim() {
    let mut pool = pool_of(2, 100);
    let mut all = [None; 4];
    for (slot, held) in (0..).zip(&mut all) {
        pool.insert(held, 0, b"x", Owner { slot, ..ME }).expect("room");
    }
    assert_eq!(slots(&pool, EvictionClass::Unacked), [0, 1, 2, 3]);
    pool.set_claim(all[2], EvictionClass::Acked);
    pool.set_claim(all[0], EvictionClass::Acked);
    pool.set_claim(all[2], EvictionClass::Acked);
    assert_eq!(slots(&pool, EvictionClass::Unacked), [1, 3]);
    assert_eq!(
        slots(&pool, EvictionClass::Acked),
        [2, 0],
        "as long as they have had it"
    );
    pool.set_claim(all[3], EvictionClass::Pinned);
    pool.insert(&mut all[1], 1, &[0; 600], Owner { slot: 1, ..ME })
        .expect("room");
    assert_eq!(slots(&pool, EvictionClass::Unacked), [1]);
    all.iter_mut().for_each(|held| pool.close(held));
    assert_eq!(
        (
            pool.longest(EvictionClass::Unacked, NOBODY),
            pool.longest(EvictionClass::Acked, NOBODY)
        ),
        (None, None)
    );
}

#[test]
fn only_what_is_acknowledged_is_left_where_that_makes_room() {
    let bytes = stream(3000);
    let mut pool = pool_of(2, 100);
    let mut held = None;
    pool.insert(&mut held, 0, &bytes, ME).expect("room");
    assert!(!pool.shorten(&mut held, 2049), "no smaller block");
    assert_eq!(pool.in_order(held), bytes);
    assert!(pool.shorten(&mut held, 2048));
    assert_eq!((pool.in_order(held), pool.bytes_in_use()), (&bytes[..2048], 2048 + 64));
    assert_eq!(
        pool.longest(EvictionClass::Unacked, NOBODY),
        None,
        "the rest is acknowledged"
    );
    assert!(!pool.shorten(&mut held, 1100));
    assert!(pool.shorten(&mut held, 0) && held.is_none());
    assert!(pool.in_use() == 0 && !pool.shorten(&mut held, 0));
}

#[test]
fn the_share_of_a_source_is_what_its_blocks_have() {
    // A quarter of 16 chunks.
    let mut pool = pool_of(16, 25);
    let mut all = [None; 5];
    let room = &stream(LARGE)[..];
    for held in &mut all[..4] {
        pool.insert(held, 0, room, ME).expect("room");
    }
    assert_eq!(pool.insert(&mut all[4], 0, b"x", ME), Err(ReassemblyError::ShareUsed));
    assert!(pool.shorten(&mut all[0], 4096));
    for _ in 0..3 {
        let mut held = None;
        pool.insert(&mut held, 0, &room[..4096], ME).expect("room");
    }
    assert_eq!(pool.insert(&mut all[4], 0, b"x", ME), Err(ReassemblyError::ShareUsed));
}

#[test]
fn the_memory_carries_what_is_said() {
    for bytes in [1, 512, 513, 2048, LARGE] {
        let mut pool = pool_of(20, 100);
        let mut count = 0;
        while !pool.is_pressed() {
            let mut held = None;
            pool.insert(&mut held, 0, &stream(bytes), ME).expect("room");
            count += 1;
        }
        assert_eq!(count - 1, requests_in(20 * CHUNK_MEMORY, bytes), "{bytes} bytes each");
    }
    assert_eq!(requests_in(64 << 20, 512), 109_140);
}
