//! Ports over rings in memory: two of them crossed, which is the cable of benches and tests, or one that hears itself.
#![allow(unsafe_code)] // FFI: rings, and draining one that nobody uses any more.

use std::ffi::CString;
use std::ptr::NonNull;
use std::sync::Arc;

use dpdk_sys as sys;

use super::eal::Eal;
use super::mbuf::Mbuf;
use super::pool::{MbufPool, PoolInner};
use super::port::{DpdkPort, PortConfig, PortError};
use super::port_setup::{c_string, devices, open_rings, own};
use super::queue::DpdkQueue;
use crate::port::PortId;

/// A ring of packets with one producer and one consumer; what is left in it is given back when it is dropped.
#[derive(Debug)]
pub(super) struct Ring {
    ring: NonNull<sys::rte_ring>,
    /// The pools of the ports at both ends, to which most of what is left in it belongs.
    _pools: Vec<Arc<PoolInner>>,
    _eal: Eal,
}

// SAFETY: only a port's driver uses the ring, one thread at each end; here it is only drained, with exclusive access.
unsafe impl Send for Ring {}
// SAFETY: as above.
unsafe impl Sync for Ring {}

/// Opens two ports that are crossed: queue `n` of one sends to queue `n` of the other.
///
/// `name` must be unique in the process and at most 16 bytes long; `descriptors` is the length of each queue and is rounded up to a
/// power of two less one. Each port gets as many queues as pools are given; both must be given the same number.
///
/// # Errors
/// [`PortError`].
#[allow(clippy::type_complexity)] // Two of what `DpdkPort::open` returns.
pub fn ring_pair(
    eal: &Eal,
    name: &str,
    ids: [PortId; 2],
    descriptors: u16,
    mtu: u16,
    pools: [&[&MbufPool]; 2],
) -> Result<[(DpdkPort, Vec<DpdkQueue>); 2], PortError> {
    let [left_pools, right_pools] = pools;
    let queues = left_pools.len();
    if queues != right_pools.len() {
        return Err(PortError::Queues {
            device: name.to_owned(),
            asked: right_pools.len(),
            most: queues as u16,
        });
    }
    eal.log().forget();
    let both: Vec<&MbufPool> = left_pools.iter().chain(right_pools).copied().collect();
    let to_right = rings(eal, &format!("{name}_r"), queues, descriptors, &both)?;
    let to_left = rings(eal, &format!("{name}_l"), queues, descriptors, &both)?;
    let config = |id: PortId, side: &str| -> Result<PortConfig, PortError> {
        let device = format!("net_ring_{name}_{side}").parse()?;
        Ok(PortConfig {
            mtu,
            rx_descriptors: descriptors,
            tx_descriptors: descriptors,
            ..PortConfig::new(id, device)
        })
    };
    let left = open_rings(eal, &config(ids[0], "l")?, left_pools, &to_left, &to_right)?;
    let right = open_rings(eal, &config(ids[1], "r")?, right_pools, &to_right, &to_left)?;
    Ok([left, right])
}

/// `queues` rings that hold at least `descriptors` packets each.
pub(super) fn rings(
    eal: &Eal,
    name: &str,
    queues: usize,
    descriptors: u16,
    pools: &[&MbufPool],
) -> Result<Vec<Arc<Ring>>, PortError> {
    (0..queues)
        .map(|queue| {
            let c_name = c_string(&format!("{name}_{queue}"))?;
            // One slot of a ring stays empty.
            let size = (u32::from(descriptors) + 1).next_power_of_two().max(64);
            let flags = sys::RING_F_SP_ENQ | sys::RING_F_SC_DEQ;
            // SAFETY: the EAL runs; the name is NUL-terminated; -1 is any NUMA node.
            let ring = unsafe { sys::rte_ring_create(c_name.as_ptr(), size, -1, flags) };
            let ring = NonNull::new(ring).ok_or_else(|| PortError::Setup {
                device: name.to_owned(),
                step: "rte_ring_create",
                reason: sys::thread::error_text(sys::thread::errno()),
                log: eal.log().complaints(),
            })?;
            let pools = pools.iter().map(|pool| pool.share()).collect();
            Ok(Arc::new(Ring {
                ring,
                _pools: pools,
                _eal: eal.clone(),
            }))
        })
        .collect()
}

/// Makes a net_ring port of the rings; returns its number and its device name.
pub(super) fn attach(eal: &Eal, name: &str, rx: &[Arc<Ring>], tx: &[Arc<Ring>]) -> Result<(u16, String), PortError> {
    let pointers = |rings: &[Arc<Ring>]| rings.iter().map(|ring| ring.ring.as_ptr()).collect::<Vec<_>>();
    let (rx, tx) = (pointers(rx), pointers(tx));
    // DPDK puts this prefix in front by itself.
    let short = name.strip_prefix("net_ring_").unwrap_or(name);
    let c_name: CString = c_string(short)?;
    let _alone = devices();
    // SAFETY: live rings, which the port's owner keeps as long as the port; their addresses are copied.
    let port = unsafe {
        sys::rte_eth_from_rings(
            c_name.as_ptr(),
            rx.as_ptr(),
            rx.len() as u32,
            tx.as_ptr(),
            tx.len() as u32,
            0,
        )
    };
    let Ok(port) = u16::try_from(port) else {
        let reason = sys::thread::error_text(sys::thread::errno());
        return Err(PortError::Attach {
            device: name.to_owned(),
            reason,
            log: eal.log().complaints(),
        });
    };
    own(port).map_err(|_| PortError::InUse {
        device: name.to_owned(),
    })?;
    Ok((port, format!("net_ring_{short}")))
}

impl Drop for Ring {
    fn drop(&mut self) {
        let ring = self.ring.as_ptr();
        // SAFETY: the ports at both ends are closed, so that nobody else uses the ring. Its objects follow its header, at the
        // positions from the consumer's tail to the producer's, modulo its size; each is a packet that the ring owns.
        unsafe {
            let objects = ring.add(1).cast::<*mut sys::rte_mbuf>();
            let (mut position, end) = ((*ring).__bindgen_anon_2.cons.tail, (*ring).__bindgen_anon_1.prod.tail);
            while position != end {
                let packet = *objects.add((position & (*ring).mask) as usize);
                drop(NonNull::new(packet).map(|packet| Mbuf::from_raw(packet)));
                position = position.wrapping_add(1);
            }
            sys::rte_ring_free(ring);
        }
    }
}
