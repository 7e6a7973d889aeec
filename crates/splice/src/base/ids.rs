//! The numbers by which the engine names what the configuration holds.
//!
//! Each is the index into the list of the checked configuration that it belongs to, given out in the order of the file, so
//! that a packet path keeps two bytes and a table needs no map. Rules, of which there may be more, are numbered over all listeners.

use std::fmt;

/// Number of a `[[port]]`: the index that e2d2's ports and packets carry.
pub type PortIndex = e2d2::port::PortId;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident $number:ty) => {
        $(#[$doc])*
        #[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        pub struct $name(pub $number);

        impl $name {
            /// The index into the list it numbers.
            pub const fn index(self) -> usize {
                self.0 as usize
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

id! {
    /// Number of a `[[listener]]`.
    ListenerId u16
}
id! {
    /// Number of a `[[pool]]`.
    PoolId u16
}
id! {
    /// Number of a server. A server is its address and port: listed in several pools it is still one.
    ServerId u16
}
id! {
    /// Number of a CPU core as the kernel counts them.
    CoreId u16
}
id! {
    /// Number of a rule: no other rule of any listener has it.
    RuleId u32
}
