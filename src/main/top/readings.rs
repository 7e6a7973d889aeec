//! The last two answers of the engine, and how fast its numbers grow between them.

use serde_json::Value;

/// Two readings of `/api/v1/status`, or the first one.
pub(super) struct Readings {
    before: Option<Value>,
    now: Value,
}

impl Readings {
    pub(super) fn new(now: Value) -> Self {
        Self { before: None, now }
    }

    /// Another has come. One of an engine that has begun anew since then has none before it.
    pub(super) fn take(&mut self, status: Value) {
        let before = std::mem::replace(&mut self.now, status);
        self.before = (uptime_ms(&before) < uptime_ms(&self.now)).then_some(before);
    }

    pub(super) fn now(&self) -> &Value {
        &self.now
    }

    /// A part of the status as rows; none if it has no such part.
    pub(super) fn rows(&self, part: &str) -> impl Iterator<Item = &Value> {
        self.now[part].as_array().into_iter().flatten()
    }

    /// The row of the earlier reading that has the same in these fields: mostly it stands in the same place.
    pub(super) fn before(&self, part: &str, keys: &[&str], (place, row): (usize, &Value)) -> Option<&Value> {
        let rows = self.before.as_ref()?[part].as_array()?;
        let is_same = |other: &&Value| keys.iter().all(|key| other[*key] == row[*key]);
        rows.get(place).filter(is_same).or_else(|| rows.iter().find(is_same))
    }

    /// By how much a number of the whole status grows in a second; `of` finds it.
    pub(super) fn rate_of(&self, of: impl Fn(&Value) -> f64) -> Option<f64> {
        self.per_second(of(&self.now), of(self.before.as_ref()?))
    }

    /// By how much a number grows in a second that was `before` and is `now`. One that is less has begun anew.
    pub(super) fn per_second(&self, now: f64, before: f64) -> Option<f64> {
        let ms = uptime_ms(&self.now).checked_sub(uptime_ms(self.before.as_ref()?))?;
        (ms > 0 && now >= before).then(|| (now - before) * 1e3 / ms as f64)
    }
}

fn uptime_ms(status: &Value) -> u64 {
    status["stat"]["uptime_ms"].as_u64().unwrap_or(0)
}
