//! Ports that need no NIC, and ports around ports.
//!
//! | port | what it is |
//! |---|---|
//! | [`LoopbackPort`] | one end of a cable within a core: what one end transmits, the other receives |

mod loopback;

pub use loopback::LoopbackPort;
