//! Ports that need no NIC, and ports around ports.
//!
//! | port | what it is |
//! |---|---|
//! | [`LoopbackPort`] | one end of a cable within a core: what one end transmits, the other receives |
//! | [`PcapPort`] | receives the frames of a file and writes what it transmits to another |
//! | [`VlanPort`] | one VLAN of another port |
//! | [`NicQueue`] | one queue of a [`SoftwareNic`], which spreads another port's packets as a card does |
//! | [`CapturePort`] | another port, whose frames are also written to a file |
//! | `Box<dyn Port<..>>` | any of them, where ports of different kinds must have one type |

mod boxed;
mod capture;
mod capture_file;
mod loopback;
mod pcap;
mod softnic;
mod vlan;

pub use capture::CapturePort;
pub use capture_file::{CaptureError, Direction, FrameReader, FrameWriter, InterfaceId, TimeStamps, wall_clock};
pub use loopback::LoopbackPort;
pub use pcap::PcapPort;
pub use softnic::{NicConfig, NicError, NicEvent, NicParts, NicQueue, NicSide, SoftwareNic};
pub use vlan::{NoVlanId, VlanId, VlanPort};
