//! The limits that a client shares with others: of its listener and of its class.

use super::{Applicant, Counted, Excess, begin, excess};
use crate::base::client_counts::ClientPlace;
use crate::base::limit::{Limit, Limited, Limits};
use crate::base::meter::CoreMeters;
use e2d2::time::Instant;

/// The limit of the listener, if it has one, and the class, which is counted without a limit, too.
pub(super) struct Shared<'l> {
    listener: Option<(u16, &'l Limit)>,
    class: Option<(u16, Option<&'l Limit>)>,
}

impl<'l> Shared<'l> {
    #[inline]
    pub(super) fn of(limits: &'l Limits, who: &Applicant) -> Self {
        let listener = limits.of(Limited::Listener, who.listener);
        Shared {
            listener: listener.map(|limit| (who.listener, limit)),
            class: who.class.map(|class| (class, limits.of(Limited::Class, class))),
        }
    }

    /// Whether the limits admit one more.
    #[inline]
    pub(super) fn have_room(&self, meters: &CoreMeters, now: Instant) -> Result<(), Excess> {
        if let Some((listener, limit)) = self.listener
            && !meters.has_room(Limited::Listener, listener, limit, now)
        {
            return Err(excess(Limited::Listener, limit));
        }
        if let Some((class, Some(limit))) = self.class
            && !meters.has_room(Limited::Class, class, limit, now)
        {
            return Err(excess(Limited::Class, limit));
        }
        Ok(())
    }

    #[inline]
    pub(super) fn count(
        &self,
        meters: &mut CoreMeters,
        places: (Option<ClientPlace>, Option<ClientPlace>),
        now: Instant,
    ) -> Counted {
        if let Some((listener, limit)) = self.listener {
            begin(meters, (Limited::Listener, listener), Some(limit), now);
        }
        if let Some((class, limit)) = self.class {
            begin(meters, (Limited::Class, class), limit, now);
        }
        Counted::new(places, self.class.map(|(class, _)| class), self.listener.is_some())
    }
}
