//! Whether a result is valid, in words: who sees that a figure is not also sees why.

use crate::inline::{Coverage, LEAST_SHARE};

/// What must not have happened and has: a sentence for each count that is not zero.
pub fn unwanted<'a>(counts: impl IntoIterator<Item = (&'a str, u64)>) -> Vec<String> {
    let counts = counts.into_iter().filter(|(_, count)| *count > 0);
    counts.map(|(what, count)| format!("{what} is {count}")).collect()
}

/// The verdict on a result by everything that keeps it from being valid.
pub fn verdict(invalid_because: &[String]) -> String {
    match invalid_because {
        [] => "valid".to_owned(),
        reasons => format!("NOT VALID: {}", reasons.join("; ")),
    }
}

impl Coverage {
    /// Why the figure cannot be judged, if it rests on too few slices.
    pub fn reason_against(&self) -> Option<String> {
        let reason = || {
            format!(
                "{} of {} slices count, fewer than {LEAST_SHARE} of them",
                self.slices_counted, self.slices
            )
        };
        (!self.is_enough()).then(reason)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_valid_says_why() {
        assert_eq!(verdict(&unwanted([("lost", 0), ("failed", 0)])), "valid");
        let mut reasons = unwanted([("lost", 3), ("failed", 0), ("retransmitted", 1)]);
        let coverage = |slices_counted| Coverage {
            slices: 100,
            slices_counted,
            slices_counted_share: f64::from(slices_counted) / 100.0,
        };
        assert_eq!(coverage(10).reason_against(), None);
        reasons.extend(coverage(9).reason_against());
        assert_eq!(
            verdict(&reasons),
            "NOT VALID: lost is 3; retransmitted is 1; 9 of 100 slices count, fewer than 0.1 of them"
        );
    }
}
