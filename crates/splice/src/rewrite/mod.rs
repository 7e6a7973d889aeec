//! Headers of frames that pass, rewritten in place (RFC 1624), also from IPv4 to IPv6 and back (RFC 7915).

pub mod siit;
pub mod translate;
