//! The same on hugepages, where the machine has some free; one test, because there is one EAL.
#![cfg(feature = "dpdk")]

use arrayvec::ArrayVec;
use e2d2::BURST;
use e2d2::buffer::{BufferPool, PacketBuffer};
use e2d2::native::{Eal, EalConfig, EalError, Mbuf, MbufPool, Memory, PageChoice, ring_pair};
use e2d2::port::{Port, PortId};

#[test]
fn packets_live_on_hugepages_where_there_are_some() {
    let config = EalConfig {
        memory_mib: 64,
        pages: PageChoice::Huge,
        ..EalConfig::default()
    };
    let eal = match Eal::start(&config) {
        Err(error @ EalError::NoHugepages { .. }) => {
            let test = "packets_live_on_hugepages_where_there_are_some";
            return rig::lacking(test, &error.to_string());
        }
        other => other.expect("the EAL starts on hugepages"),
    };
    assert_eq!(eal.memory(), &Memory::Huge { mib: 64 });
    let mut pool = MbufPool::new(&eal, "huge", 4095, 2048, None).expect("enough memory");
    {
        let [(_, mut left), (_, mut right)] =
            ring_pair(&eal, "huge", [PortId(0), PortId(1)], 255, 1500, [&[&pool], &[&pool]]).expect("ring ports");
        let mut burst: ArrayVec<Mbuf, BURST> = (0..BURST).filter_map(|_| pool.take_copy(&[7; 60])).collect();
        assert_eq!(left[0].transmit(&mut burst), BURST);
        assert_eq!(right[0].receive(&mut burst), BURST);
        assert!(burst.iter().all(|packet| packet.data() == [7; 60]));
    }
    assert_eq!(pool.in_use(), 0);
}
