//! Big-endian integers in byte arrays, and the macro that lets a packet view answer for its header.
//!
//! The functions take arrays, not slices: with a constant offset the compiler sees that it is inside and leaves no bounds
//! check.

#[inline(always)]
pub(crate) fn be16<const N: usize>(bytes: &[u8; N], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

#[inline(always)]
pub(crate) fn be32<const N: usize>(bytes: &[u8; N], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

#[inline(always)]
pub(crate) fn array<const N: usize, const M: usize>(bytes: &[u8; N], at: usize) -> [u8; M] {
    let mut part = [0; M];
    part.copy_from_slice(&bytes[at..at + M]);
    part
}

#[inline(always)]
pub(crate) fn put<const N: usize, const M: usize>(bytes: &mut [u8; N], at: usize, value: [u8; M]) {
    bytes[at..at + M].copy_from_slice(&value);
}

/// The first `N` bytes of what a view's `new_checked` has measured.
///
/// # Panics
/// If the container behind the view gives out fewer bytes than it did then; no slice, array or vector does.
#[inline]
pub(crate) fn checked_chunk<const N: usize>(bytes: &[u8]) -> &[u8; N] {
    match bytes.first_chunk() {
        Some(chunk) => chunk,
        None => unreachable!("the buffer under a packet view became shorter"),
    }
}

/// As [`checked_chunk`].
#[inline]
pub(crate) fn checked_chunk_mut<const N: usize>(bytes: &mut [u8]) -> &mut [u8; N] {
    match bytes.first_chunk_mut() {
        Some(chunk) => chunk,
        None => unreachable!("the buffer under a packet view became shorter"),
    }
}

/// Gives a packet view the accessors of its header, so that `packet.seq()` is `packet.header().seq()`.
macro_rules! delegate_to_header {
    ($packet:ident { $($name:ident $(/ $set:ident)?: $type:ty),+ $(,)? }) => {
        impl<T: AsRef<[u8]>> $packet<T> {
            $(
                #[doc = concat!("As [`header`](Self::header)`().", stringify!($name), "()`.")]
                #[inline]
                pub fn $name(&self) -> $type {
                    self.header().$name()
                }
            )+
        }

        impl<T: AsRef<[u8]> + AsMut<[u8]>> $packet<T> {
            $($(
                #[doc = concat!("As [`header_mut`](Self::header_mut)`().", stringify!($set), "(…)`.")]
                #[inline]
                pub fn $set(&mut self, value: $type) {
                    self.header_mut().$set(value);
                }
            )?)+
        }
    };
}

/// The parts that every packet view has: what it wraps, and its header for reading and for writing.
macro_rules! packet_view {
    ($packet:ident, $header:ident, $len:expr) => {
        impl<T> $packet<T> {
            /// What the view was made of.
            pub fn into_inner(self) -> T {
                self.0
            }
        }

        impl<T: AsRef<[u8]>> $packet<T> {
            /// The fixed part of the header.
            #[inline]
            pub fn header(&self) -> $header<&[u8; $len]> {
                $header(crate::wire::bytes::checked_chunk(self.0.as_ref()))
            }
        }

        impl<T: AsRef<[u8]> + AsMut<[u8]>> $packet<T> {
            /// The fixed part of the header, for writing.
            #[inline]
            pub fn header_mut(&mut self) -> $header<&mut [u8; $len]> {
                $header(crate::wire::bytes::checked_chunk_mut(self.0.as_mut()))
            }
        }
    };
}

pub(crate) use {delegate_to_header, packet_view};
