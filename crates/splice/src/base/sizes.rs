//! Sizes that several rooms must agree on; the most bytes of a first payload are
//! [`MAX_FIRST_PAYLOAD`](crate::base::callbacks::MAX_FIRST_PAYLOAD).

/// The longest header: what HAProxy's specification lets every receiver expect in one piece (536 less TCP's and IP's
/// room for options). Fields that do not fit are left out.
pub(crate) const MAX_HEADER: usize = 496;

/// What is taken for the MSS of a peer that names less: Linux's least (`tcp_min_snd_mss` and full options).
pub(crate) const LEAST_MSS: u16 = 88;
