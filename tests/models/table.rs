//! The flow table against a list of pairs, where many hashes share a home, a tag, or all of themselves.

use proptest::prelude::*;
use proxyengine::proxy::table::{FlowRef, FlowTable, TableFull};

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
        _ => FlowRef::server(slot).quarantined(slot),
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
        Op::Insert { hash, flow } => prop_assert_eq!(table.insert(hash, flow), Err(TableFull)),
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
        let mut table = FlowTable::new(FLOWS, [1, 2, 3]);
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
