//! Bytes that the engine has acknowledged or written itself and the server has not: until it has, they are sent again.

pub(crate) mod rtx;
pub(crate) mod rtx_timer;
