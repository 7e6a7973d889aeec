//! Who is served when there is more than a core can do: overload, limits, and what timers may do in a round.

pub(crate) mod limits;
pub(crate) mod overload;
pub mod round_budget;
pub(crate) mod validated_clients;
