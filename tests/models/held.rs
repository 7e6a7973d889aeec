//! The pool for held bytes against plain byte arrays and lists: several requests at a time, in any pieces, with any claim,
//! until blocks run out.

use splice::reassembly::{BufferId, EvictionClass, LARGE, Owner, ReassemblyError, ReassemblyPool};
use testkit::sim::Random;

/// What a chunk takes with its blocks.
const CHUNK: usize = LARGE + 32 * 64 + 16;

/// One request as the model has it.
struct Request {
    id: Option<BufferId>,
    known: Vec<bool>,
}

impl Request {
    fn new() -> Self {
        Request {
            id: None,
            known: vec![false; LARGE],
        }
    }

    /// The runs of known bytes.
    fn runs(&self) -> Vec<(usize, usize)> {
        let mut runs = Vec::new();
        let mut at = 0;
        while let Some(start) = (at..LARGE).find(|&n| self.known[n]) {
            let end = (start..LARGE).find(|&n| !self.known[n]).unwrap_or(LARGE);
            runs.push((start, end));
            at = end;
        }
        runs
    }
}

/// The byte of a request at a place.
fn byte(request: usize, at: usize) -> u8 {
    (at.wrapping_mul(31) ^ (at >> 8) ^ (request * 77)) as u8
}

fn check(pool: &ReassemblyPool, which: usize, request: &Request, seed: u64) {
    let runs = request.runs();
    let held: Vec<_> = pool
        .runs(request.id)
        .map(|(start, bytes)| (start, start + bytes.len()))
        .collect();
    assert_eq!(held, runs, "seed {seed}, request {which}");
    for (start, bytes) in pool.runs(request.id) {
        let is_right = bytes.iter().zip(start..).all(|(&got, at)| got == byte(which, at));
        assert!(
            is_right,
            "seed {seed}, request {which}: wrong bytes in the run at {start}"
        );
    }
    let first = runs.first().filter(|(start, _)| *start == 0).map_or(0, |(_, end)| *end);
    assert_eq!(pool.in_order(request.id).len(), first, "seed {seed}, request {which}");
}

#[test]
fn agrees_with_byte_arrays() {
    for seed in 0..20 {
        let mut random = Random::new(seed);
        let chunks = random.within(1..=3) as usize;
        let mut pool = ReassemblyPool::new(chunks * CHUNK, 100);
        let mut waiting: Vec<(u32, EvictionClass)> = Vec::new();
        let mut requests: Vec<Request> = (0..8).map(|_| Request::new()).collect();
        let mut refused = [0; 3];
        for _ in 0..1_500 {
            let which = random.within(0..=7) as usize;
            let request = &mut requests[which];
            let slot = which as u32;
            if random.chance(30) {
                pool.close(&mut request.id);
                request.known.fill(false);
            } else if random.chance(50) {
                let length = random.within(0..=pool.in_order(request.id).len() as u64) as usize;
                if pool.shorten(&mut request.id, length) {
                    request.known[length..].fill(false);
                    waiting.retain(|&(other, _)| other != slot);
                    waiting.push((slot, EvictionClass::Pinned));
                }
            } else if random.chance(150) {
                let claim = random.one_of(&[EvictionClass::Unacked, EvictionClass::Acked, EvictionClass::Pinned]);
                pool.set_claim(request.id, claim);
                let is_held = request.id.is_some();
                if is_held && !waiting.contains(&(slot, claim)) {
                    waiting.retain(|&(other, _)| other != slot);
                    waiting.push((slot, claim));
                }
            } else {
                let reach = random.one_of(&[64, 700, 2048, LARGE, LARGE + 100]);
                let start = random.within(0..=reach as u64 - 1) as usize;
                let end = start + random.magnitude(1..=2_000) as usize;
                let bytes: Vec<u8> = (start..end).map(|at| byte(which, at)).collect();
                let before = request.runs().len();
                let owner = Owner {
                    slot: which as u32,
                    ..Owner::default()
                };
                match pool.insert(&mut request.id, start, &bytes, owner) {
                    Ok(news) => {
                        let places = &mut request.known[start..end];
                        assert_eq!(news, places.iter().any(|known| !known), "seed {seed}");
                        places.fill(true);
                    }
                    Err(ReassemblyError::BeyondWindow) => {
                        assert!(end > LARGE, "seed {seed}");
                        refused[0] += 1;
                    }
                    Err(ReassemblyError::TooManyHoles) => {
                        assert_eq!(before, 8, "seed {seed}: as many holes as are kept track of");
                        refused[1] += 1;
                    }
                    Err(ReassemblyError::ShareUsed) => panic!("seed {seed}: all of it is one source's"),
                    Err(ReassemblyError::Exhausted) => {
                        assert!(pool.in_use() >= chunks, "seed {seed}: no chunk was left");
                        refused[2] += 1;
                    }
                }
                let is_new = request.id.is_some() && waiting.iter().all(|&(other, _)| other != slot);
                if is_new {
                    waiting.push((slot, EvictionClass::Unacked));
                }
            }
            waiting.retain(|&(slot, _)| requests[slot as usize].id.is_some());
            for claim in [EvictionClass::Unacked, EvictionClass::Acked] {
                let mut of_claim = waiting.iter().filter(|(_, of)| *of == claim).map(|(slot, _)| *slot);
                let (longest, next) = (of_claim.next(), of_claim.next());
                let told = [u32::MAX, longest.unwrap_or_default()].map(|but| pool.longest(claim, but));
                assert_eq!(told, [longest, next], "seed {seed}, {claim:?}: {waiting:?}");
            }
            check(&pool, which, &requests[which], seed);
            let open = requests.iter().filter(|request| request.id.is_some()).count();
            assert_eq!(pool.in_use(), open, "seed {seed}");
        }
        for (which, request) in requests.iter_mut().enumerate() {
            check(&pool, which, request, seed);
            pool.close(&mut request.id);
        }
        assert_eq!((pool.in_use(), pool.bytes_in_use()), (0, 0), "seed {seed}");
        assert!(
            refused[0] > 0 && refused[2] > 0,
            "seed {seed}: every limit was met: {refused:?}"
        );
    }
}
