//! The tables of `top`: rows and cells of two readings, in an order, without a terminal.

use std::cmp::Ordering;

use serde_json::Value;

use super::readings::Readings;

/// A table.
pub(super) struct Table {
    /// Its part of the status, and its name on the screen.
    pub(super) part: &'static str,
    /// What tells a row from the others.
    keys: &'static [&'static str],
    /// What comes first is shown where the terminal is narrow.
    pub(super) columns: &'static [Column],
    /// Rows are as wrong as this says.
    severity: fn(&Value) -> Severity,
    /// Of those that are equally wrong, that one is first where this grows fastest; a row is wrong where it grows at all.
    wrong_by: Option<&'static str>,
}

/// A column.
pub(super) struct Column {
    pub(super) title: &'static str,
    field: &'static str,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Text,
    Count,
    /// What it grows by in a second.
    Rate,
    /// Milliseconds of work in a second, as a share of it.
    Load,
    Millis,
    Seconds,
}

/// How much a row wants to be looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Severity {
    Well,
    Warning,
    Critical,
}

/// A row, with a cell for each column.
pub(super) struct Row {
    pub(super) severity: Severity,
    pub(super) cells: Vec<Cell>,
    urgency: f64,
}

/// What stands in one column of one row.
pub(super) struct Cell {
    pub(super) text: String,
    /// What it is ordered by; none for words, and for numbers that are not known.
    number: Option<f64>,
}

/// How rows are ordered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Order {
    /// A column; none is what is wrong first.
    pub(super) column: Option<usize>,
    pub(super) is_reversed: bool,
}

const fn column(title: &'static str, field: &'static str, kind: Kind) -> Column {
    Column { title, field, kind }
}

/// The place of drops in [`TABLES`].
pub(super) const DROPS: usize = TABLES.len() - 1;

/// In the order of the Tab key.
pub(super) static TABLES: [Table; 6] = [
    Table {
        part: "servers",
        keys: &["name", "pools"],
        columns: &[
            column("server", "name", Kind::Text),
            column("state", "state", Kind::Text),
            column("for", "for_s", Kind::Seconds),
            column("open", "open", Kind::Count),
            column("calls/s", "calls", Kind::Rate),
            column("failed/s", "failures", Kind::Rate),
            column("conn p50", "connect_ms_p50", Kind::Millis),
            column("p99 ms", "connect_ms_p99", Kind::Millis),
            column("byte p50", "first_byte_ms_p50", Kind::Millis),
            column("p99 ms", "first_byte_ms_p99", Kind::Millis),
            column("ejected", "ejections", Kind::Count),
            column("why", "why", Kind::Text),
            column("address", "address", Kind::Text),
            column("pools", "pools", Kind::Text),
        ],
        severity: |row| match row["state"].as_str() {
            Some("out" | "down") => Severity::Critical,
            Some("partly out" | "drained") => Severity::Warning,
            _ => Severity::Well,
        },
        wrong_by: Some("failures"),
    },
    Table {
        part: "pools",
        keys: &["name"],
        columns: &[
            column("pool", "name", Kind::Text),
            column("servers", "servers", Kind::Count),
            column("out", "out", Kind::Count),
            column("open", "open", Kind::Count),
            column("new/s", "connections", Kind::Rate),
            column("failed/s", "failures", Kind::Rate),
            column("conn p50", "connect_ms_p50", Kind::Millis),
            column("p99 ms", "connect_ms_p99", Kind::Millis),
            column("byte p50", "first_byte_ms_p50", Kind::Millis),
            column("p99 ms", "first_byte_ms_p99", Kind::Millis),
            column("calls/s", "calls", Kind::Rate),
            column("partly", "partly_out", Kind::Count),
            column("choice p50", "choice_ms_p50", Kind::Millis),
            column("p99 ms", "choice_ms_p99", Kind::Millis),
            column("down", "down", Kind::Count),
        ],
        severity: |row| {
            let count = |key: &str| row[key].as_u64().unwrap_or(0);
            // One that is out may be down as well.
            let out = count("out") + count("down");
            match out + count("partly_out") {
                0 => Severity::Well,
                _ if out > 0 && out >= count("servers") => Severity::Critical,
                _ => Severity::Warning,
            }
        },
        wrong_by: Some("failures"),
    },
    Table {
        part: "listeners",
        keys: &["name"],
        columns: &[
            column("listener", "name", Kind::Text),
            column("open", "open", Kind::Count),
            column("new/s", "connections", Kind::Rate),
            column("connections", "connections", Kind::Count),
            column("addresses", "addresses", Kind::Text),
        ],
        severity: |_| Severity::Well,
        wrong_by: None,
    },
    Table {
        part: "rules",
        keys: &["listener", "rule"],
        columns: &[
            column("rule", "rule", Kind::Text),
            column("listener", "listener", Kind::Text),
            column("new/s", "connections", Kind::Rate),
            column("connections", "connections", Kind::Count),
            column("pool", "pool", Kind::Text),
        ],
        severity: |_| Severity::Well,
        wrong_by: None,
    },
    Table {
        part: "cores",
        keys: &["core"],
        columns: &[
            column("core", "core", Kind::Count),
            column("load %", "busy_ms", Kind::Load),
            column("longest µs", "longest_round_us", Kind::Count),
            column("open", "open", Kind::Count),
            column("received/s", "received", Kind::Rate),
            column("sent/s", "sent", Kind::Rate),
            column("dropped/s", "dropped", Kind::Rate),
            column("busy rounds/s", "busy_rounds", Kind::Rate),
            column("idle rounds/s", "idle_rounds", Kind::Rate),
        ],
        severity: |_| Severity::Well,
        wrong_by: None,
    },
    Table {
        part: "drops",
        keys: &["group", "reason"],
        columns: &[
            column("reason", "reason", Kind::Text),
            column("per second", "count", Kind::Rate),
            column("count", "count", Kind::Count),
            column("group", "group", Kind::Text),
        ],
        severity: |_| Severity::Well,
        wrong_by: Some("count"),
    },
];

impl Kind {
    pub(super) fn is_number(self) -> bool {
        self != Self::Text
    }
}

impl Column {
    pub(super) fn is_number(&self) -> bool {
        self.kind.is_number()
    }

    fn cell(&self, row: &Value, before: Option<&Value>, readings: &Readings) -> Cell {
        let now = row[self.field].as_f64();
        let rate = || readings.per_second(now?, before?[self.field].as_f64()?);
        let number = match self.kind {
            Kind::Text => None,
            Kind::Count | Kind::Millis | Kind::Seconds => now,
            Kind::Rate => rate(),
            // Of a second, in which there are 1000 ms of 0.1 %.
            Kind::Load => rate().map(|ms| (ms / 10.0).min(100.0)),
        };
        let text = match (self.kind, number) {
            (Kind::Text, _) => row[self.field].as_str().unwrap_or("–").to_owned(),
            (_, None) => "–".to_owned(),
            (Kind::Seconds, Some(seconds)) => duration(seconds),
            (Kind::Load, Some(load)) => format!("{load:.1}"),
            (Kind::Millis, Some(ms)) => fixed(ms),
            (Kind::Count | Kind::Rate, Some(number)) => short(number),
        };
        Cell { text, number }
    }
}

impl Table {
    /// Its rows with `word` in one of their texts, whatever its case, in this order.
    pub(super) fn rows(&self, readings: &Readings, word: &str, order: Order) -> Vec<Row> {
        let word = word.to_lowercase();
        let mut rows: Vec<Row> = readings
            .rows(self.part)
            .enumerate()
            .map(|place_and_row| self.row(place_and_row, readings))
            .filter(|row| {
                let cells = self.columns.iter().zip(&row.cells);
                let mut words = cells.filter(|(column, _)| !column.is_number());
                words.any(|(_, cell)| cell.text.to_lowercase().contains(&word)) || row.cells[0].text.contains(&word)
            })
            .collect();
        rows.sort_by(|one, other| match order.column {
            None => other
                .severity
                .cmp(&one.severity)
                .then(other.urgency.total_cmp(&one.urgency)),
            Some(column) => match (one.cells.get(column), other.cells.get(column)) {
                (Some(one), Some(other)) => one.compare(other),
                _ => Ordering::Equal,
            },
        });
        if order.is_reversed {
            rows.reverse();
        }
        rows
    }

    fn row(&self, (place, row): (usize, &Value), readings: &Readings) -> Row {
        let before = readings.before(self.part, self.keys, (place, row));
        let cells: Vec<Cell> = self
            .columns
            .iter()
            .map(|column| column.cell(row, before, readings))
            .collect();
        let is_loss = row["loss"] != Value::Bool(false);
        let urgency = self
            .wrong_by
            .filter(|_| is_loss)
            .and_then(|field| column("", field, Kind::Rate).cell(row, before, readings).number)
            .unwrap_or(0.0);
        let severity = (self.severity)(row);
        Row {
            severity: if urgency >= 1.0 {
                severity.max(Severity::Warning)
            } else {
                severity
            },
            cells,
            urgency,
        }
    }
}

impl Cell {
    /// Numbers from the largest, words by the alphabet, what is not known last.
    fn compare(&self, other: &Self) -> Ordering {
        match (self.number, other.number) {
            (Some(one), Some(other)) => other.total_cmp(&one),
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (None, None) => self.text.cmp(&other.text),
        }
    }
}

/// A number in at most five characters up to a thousand million, exact below ten thousand if it is whole.
pub(super) fn short(number: f64) -> String {
    match number {
        _ if number < 1e4 && number.fract() == 0.0 => format!("{number:.0}"),
        _ if number < 1e2 => format!("{number:.1}"),
        _ if number < 1e4 => format!("{number:.0}"),
        _ if number < 1e6 => format!("{:.0}k", number / 1e3),
        _ if number < 1e8 => format!("{:.1}M", number / 1e6),
        _ if number < 1e9 => format!("{:.0}M", number / 1e6),
        _ => format!("{:.1}G", number / 1e9),
    }
}

/// Three digits or more.
fn fixed(ms: f64) -> String {
    match ms {
        _ if ms < 1.0 => format!("{ms:.3}"),
        _ if ms < 10.0 => format!("{ms:.2}"),
        _ if ms < 100.0 => format!("{ms:.1}"),
        _ => format!("{ms:.0}"),
    }
}

/// In the largest unit of which there are two.
pub(super) fn duration(seconds: f64) -> String {
    match seconds {
        _ if seconds < 120.0 => format!("{seconds:.0} s"),
        _ if seconds < 7_200.0 => format!("{:.0} min", (seconds / 60.0).floor()),
        _ if seconds < 172_800.0 => format!("{:.0} h", (seconds / 3_600.0).floor()),
        _ => format!("{:.0} d", (seconds / 86_400.0).floor()),
    }
}
