//! The flow table against a list of pairs, where many hashes share a home, a tag, or all of themselves.

use netfcts::FourTuple;
use proptest::prelude::*;
use splice::table::{FlowRef, FlowTable, NoPlace, REACH};

const FLOWS: usize = 24;

#[derive(Clone, Debug)]
enum Op {
    Insert {
        hash: u64,
        flow: FlowRef,
    },
    /// The n-th of what is in it.
    Remove(usize),
    Replace(usize, FlowRef),
    RemoveStranger {
        hash: u64,
        flow: FlowRef,
    },
}

/// Few homes, first and last among them, so that runs grow together and around the end; a few tags in each.
fn hash() -> impl Strategy<Value = u64> {
    let home = prop_oneof![
        Just(0_u32),
        Just(u32::MAX),
        Just(u32::MAX - 0x0400_0000),
        Just(0x8000_0000)
    ];
    (home, 0..3_u32, any::<u32>()).prop_map(|(home, tag, low)| u64::from(home ^ tag << 1) << 32 | u64::from(low))
}

fn flow() -> impl Strategy<Value = FlowRef> {
    (0..64_u32, 0..3).prop_map(|(slot, kind)| match kind {
        0 => FlowRef::client(slot),
        1 => FlowRef::server(slot),
        _ => FlowRef::server(slot).in_time_wait(slot),
    })
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        5 => (hash(), flow()).prop_map(|(hash, flow)| Op::Insert { hash, flow }),
        3 => any::<usize>().prop_map(Op::Remove),
        1 => (any::<usize>(), flow()).prop_map(|(n, flow)| Op::Replace(n, flow)),
        1 => (hash(), flow()).prop_map(|(hash, flow)| Op::RemoveStranger { hash, flow }),
    ]
}

/// Applies an operation to both.
fn apply(table: &mut FlowTable, model: &mut Vec<(u64, FlowRef)>, op: Op) -> Result<(), TestCaseError> {
    let is_known = |model: &[(u64, FlowRef)], flow| model.iter().any(|(_, known)| *known == flow);
    match op {
        // A flow is in the table once.
        Op::Insert { flow, .. } | Op::Replace(_, flow) | Op::RemoveStranger { flow, .. } if is_known(model, flow) => {}
        Op::Insert { hash, flow } if model.len() < FLOWS => {
            prop_assert_eq!(table.insert(hash, flow), Ok(()));
            model.push((hash, flow));
        }
        Op::Insert { hash, flow } => prop_assert_eq!(table.insert(hash, flow), Err(NoPlace::Full)),
        Op::Remove(n) if !model.is_empty() => {
            let (hash, flow) = model.swap_remove(n % model.len());
            prop_assert!(table.remove(hash, flow));
            prop_assert_eq!(table.find(hash, |found| found == flow), None);
        }
        Op::Replace(n, new) if !model.is_empty() => {
            let at = n % model.len();
            prop_assert!(table.replace(model[at].0, model[at].1, new));
            model[at].1 = new;
        }
        Op::RemoveStranger { hash, flow } => {
            prop_assert!(!table.remove(hash, flow));
            prop_assert!(!table.replace(hash, flow, FlowRef::client(1000)));
            prop_assert_eq!(table.find(hash, |found| found == flow), None);
        }
        Op::Remove(_) | Op::Replace(..) => {}
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]
    #[test]
    fn agrees_with_a_list_of_pairs(ops in prop::collection::vec(op(), 1..600)) {
        let mut table = FlowTable::new(FLOWS, [1, 2]);
        let mut model = Vec::new();
        for op in ops {
            apply(&mut table, &mut model, op)?;
            prop_assert_eq!(table.len(), model.len());
            for &(hash, flow) in &model {
                prop_assert_eq!(table.find(hash, |found| found == flow), Some(flow));
                // Somebody who looks for another flow of the same hash comes to an end, too.
                prop_assert_eq!(table.find(hash, |_| false), None);
            }
        }
    }
}

/// Places of a line.
const PLACES: usize = 10;

/// The hash of a flow at home in line `line` of `lines`, with the n-th tag.
fn at_home(line: usize, lines: usize, n: usize) -> u64 {
    ((line as u64) << 32).div_ceil(lines as u64) << 32 | (2 * n + 1) as u64
}

/// The number of flows that a search without success compares, which is that of its tag in the lines that it reads.
fn compared(table: &FlowTable, hash: u64) -> usize {
    let mut count = 0;
    let found = table.find(hash, |_| {
        count += 1;
        false
    });
    assert_eq!(found, None);
    count
}

/// A table of `lines` lines in which every flow is at home in line 0 until it refuses.
fn crowded(lines: usize) -> (FlowTable, Vec<(u64, FlowRef)>) {
    let mut table = FlowTable::new(lines * PLACES * 4 / 5, [1, 2]);
    let mut inside = Vec::new();
    let hash = at_home(0, lines, 0);
    for n in 0..(REACH * PLACES) as u32 {
        assert_eq!(table.insert(hash, FlowRef::client(n)), Ok(()));
        inside.push((hash, FlowRef::client(n)));
    }
    (table, inside)
}

#[test]
fn a_flow_without_a_place_near_its_home_is_refused_and_changes_nothing() {
    const LINES: usize = 100;
    let (mut table, inside) = crowded(LINES);
    let (first, next) = (at_home(0, LINES, 0), at_home(1, LINES, 1));
    for _ in 0..100_000 {
        assert_eq!(table.insert(first, FlowRef::client(9_999)), Err(NoPlace::Crowded));
    }
    assert_eq!(table.len(), REACH * PLACES);
    // Of the last line nobody has gone further: what is at home there has its search end there.
    let last = at_home(REACH - 1, LINES, 0);
    assert_eq!(compared(&table, last), PLACES);
    assert_eq!(compared(&table, first), REACH * PLACES);
    // The neighbour still finds the first line behind the crowd, as do all others.
    assert_eq!(table.insert(next, FlowRef::server(1)), Ok(()));
    assert_eq!(
        table.find(next, |flow| flow == FlowRef::server(1)),
        Some(FlowRef::server(1))
    );
    // Who leaves makes room, and at the end no line counts anybody as having passed.
    assert!(table.remove(next, FlowRef::server(1)));
    for &(hash, flow) in &inside {
        assert!(table.remove(hash, flow));
        assert_eq!(table.insert(hash, FlowRef::client(9_999)), Ok(()));
        assert!(table.remove(hash, FlowRef::client(9_999)));
    }
    for n in 0..PLACES as u32 {
        assert_eq!(table.insert(first, FlowRef::client(n)), Ok(()));
    }
    assert_eq!(table.insert(last, FlowRef::server(2)), Ok(()));
    assert_eq!(compared(&table, first), PLACES, "a search ends where nobody has passed");
}

#[test]
fn a_table_that_is_full_by_chance_refuses_hardly_anybody() {
    const FLOWS: u32 = 200_000;
    let mut table = FlowTable::new(FLOWS as usize, [1, 2]);
    let key = |n: u32| FourTuple {
        remote: 0xffff_0000_0000 | u128::from(n / 60_000),
        local: 0xffff_0a00_0001,
        remote_port: (n % 60_000) as u16,
        local_port: 80,
    };
    let insert = |table: &mut FlowTable, n: u32| table.insert(table.hash(&key(n)), FlowRef::client(n)).is_ok();
    assert!((0..FLOWS).all(|n| insert(&mut table, n)));
    // A million connections come and go while all places are taken that may be.
    let refused = (FLOWS..FLOWS + 1_000_000).filter(|&n| {
        assert!(table.remove(table.hash(&key(n - FLOWS)), FlowRef::client(n - FLOWS)));
        !insert(&mut table, n)
    });
    assert_eq!(refused.count(), 0);
}
