//! Metrics as text: [Prometheus' text format 0.0.4] and [OpenMetrics 1.0], which differ in how they name a counter's family.
//!
//! ```
//! use control::metrics::{Exposition, Family, Format, Kind};
//!
//! const OPENED: Family<'_> = Family { name: "door_opened", kind: Kind::Counter, help: "Times that a door was opened" };
//! let mut text = Exposition::new(Format::Text);
//! text.family(&OPENED).add(&[("door", "left")], 3);
//! assert_eq!(
//!     text.finish(),
//!     "# HELP door_opened_total Times that a door was opened\n# TYPE door_opened_total counter\n\
//!      door_opened_total{door=\"left\"} 3\n"
//! );
//! ```
//!
//! [Prometheus' text format 0.0.4]: https://prometheus.io/docs/instrumenting/exposition_formats/
//! [OpenMetrics 1.0]: https://prometheus.io/docs/specs/om/open_metrics_spec/

use std::fmt::{Display, Write};

/// Which text it is to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Prometheus' own, version 0.0.4.
    Text,
    /// OpenMetrics, version 1.0.0.
    OpenMetrics,
}

impl Format {
    /// The media type.
    pub const fn media_type(self) -> &'static str {
        match self {
            Self::Text => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

/// What the values of a family do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// They only grow; their name ends in `_total`.
    Counter,
    /// They go up and down.
    Gauge,
    /// How often something was how large: see [`Values::add_histogram`].
    Histogram,
    /// They are 1, and what is told are the labels; their name ends in `_info`.
    Info,
}

impl Kind {
    /// What values' names have at their end.
    pub const fn suffix(self) -> &'static str {
        match self {
            Self::Counter => "_total",
            Self::Gauge | Self::Histogram => "",
            Self::Info => "_info",
        }
    }

    /// Its name in `format`.
    const fn name(self, format: Format) -> &'static str {
        match (self, format) {
            (Self::Counter, _) => "counter",
            (Self::Histogram, _) => "histogram",
            (Self::Info, Format::OpenMetrics) => "info",
            (Self::Gauge, _) | (Self::Info, Format::Text) => "gauge",
        }
    }
}

/// Metrics of one name, with different labels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Family<'a> {
    /// Lower case with underscores, with the unit at its end and without the suffix of its kind.
    pub name: &'a str,
    /// What its values do.
    pub kind: Kind,
    /// A sentence without backslash and line break.
    pub help: &'a str,
}

/// The text of all families.
#[derive(Debug)]
pub struct Exposition {
    format: Format,
    text: String,
}

impl Exposition {
    /// Empty.
    pub fn new(format: Format) -> Self {
        Self {
            format,
            text: String::with_capacity(16 << 10),
        }
    }

    /// Begins a family; its values follow.
    pub fn family<'a>(&'a mut self, family: &'a Family<'_>) -> Values<'a> {
        let of_family = match self.format {
            Format::Text => family.kind.suffix(),
            Format::OpenMetrics => "",
        };
        let (name, kind) = (family.name, family.kind.name(self.format));
        // Writing to a String cannot fail.
        let _ = write!(
            self.text,
            "# HELP {name}{of_family} {}\n# TYPE {name}{of_family} {kind}\n",
            family.help
        );
        Values {
            name,
            suffix: family.kind.suffix(),
            text: &mut self.text,
        }
    }

    /// The text.
    pub fn finish(mut self) -> String {
        if self.format == Format::OpenMetrics {
            self.text.push_str("# EOF\n");
        }
        self.text
    }
}

/// The values of one family.
#[derive(Debug)]
pub struct Values<'a> {
    name: &'a str,
    suffix: &'static str,
    text: &'a mut String,
}

impl Values<'_> {
    /// One more, with these names and values of labels.
    pub fn add(&mut self, labels: &[(&str, &str)], value: impl Display) -> &mut Self {
        self.add_to(self.suffix, labels, value)
    }

    /// A histogram with these labels: for each upper bound, in their order, how many values are not above it, and then the
    /// number of all values and their sum.
    pub fn add_histogram(
        &mut self,
        labels: &[(&str, &str)],
        buckets: impl IntoIterator<Item = (f64, u64)>,
        (count, sum): (u64, f64),
    ) -> &mut Self {
        let mut add_bucket = |bound: &str, below| {
            let labels: Vec<_> = labels.iter().copied().chain([("le", bound)]).collect();
            self.add_to("_bucket", &labels, below);
        };
        for (bound, below) in buckets {
            // OpenMetrics wants a point in every bound.
            add_bucket(&format!("{bound:?}"), below);
        }
        add_bucket("+Inf", count);
        self.add_to("_sum", labels, sum).add_to("_count", labels, count)
    }

    fn add_to(&mut self, suffix: &str, labels: &[(&str, &str)], value: impl Display) -> &mut Self {
        self.text.push_str(self.name);
        self.text.push_str(suffix);
        for (index, (name, label)) in labels.iter().enumerate() {
            self.text.push_str(if index == 0 { "{" } else { "," });
            self.text.push_str(name);
            self.text.push_str("=\"");
            escape(self.text, label);
            self.text.push('"');
        }
        if !labels.is_empty() {
            self.text.push('}');
        }
        // Writing to a String cannot fail.
        let _ = writeln!(self.text, " {value}");
        self
    }
}

fn escape(text: &mut String, label: &str) {
    for letter in label.chars() {
        match letter {
            '\\' => text.push_str("\\\\"),
            '"' => text.push_str("\\\""),
            '\n' => text.push_str("\\n"),
            other => text.push(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_histogram_has_its_bounds_and_one_that_is_infinite() {
        const TIMES: Family<'_> = Family {
            name: "t_seconds",
            kind: Kind::Histogram,
            help: "Times",
        };
        for (format, end) in [(Format::Text, ""), (Format::OpenMetrics, "# EOF\n")] {
            let mut text = Exposition::new(format);
            let buckets = [(0.000_5, 1), (2.0, 3)];
            text.family(&TIMES).add_histogram(&[("a", "b")], buckets, (4, 6.5));
            assert_eq!(
                text.finish(),
                format!(
                    "# HELP t_seconds Times\n# TYPE t_seconds histogram\n\
                     t_seconds_bucket{{a=\"b\",le=\"0.0005\"}} 1\nt_seconds_bucket{{a=\"b\",le=\"2.0\"}} 3\n\
                     t_seconds_bucket{{a=\"b\",le=\"+Inf\"}} 4\nt_seconds_sum{{a=\"b\"}} 6.5\n\
                     t_seconds_count{{a=\"b\"}} 4\n{end}"
                )
            );
        }
    }

    #[test]
    fn both_formats_name_families_as_they_have_to() {
        let families = [
            Family {
                name: "a_bytes",
                kind: Kind::Counter,
                help: "Bytes",
            },
            Family {
                name: "b",
                kind: Kind::Info,
                help: "Build",
            },
            Family {
                name: "c",
                kind: Kind::Gauge,
                help: "Now",
            },
        ];
        let text = |format| {
            let mut text = Exposition::new(format);
            text.family(&families[0])
                .add(&[("x", "1"), ("y", "q\"\\\n")], 5)
                .add(&[("x", "2"), ("y", "")], 6);
            text.family(&families[1]).add(&[("version", "0.1")], 1);
            text.family(&families[2]).add(&[], 0.5);
            text.finish()
        };
        let values = "a_bytes_total{x=\"1\",y=\"q\\\"\\\\\\n\"} 5\na_bytes_total{x=\"2\",y=\"\"} 6\n";
        assert_eq!(
            text(Format::Text),
            format!(
                "# HELP a_bytes_total Bytes\n# TYPE a_bytes_total counter\n{values}\
                 # HELP b_info Build\n# TYPE b_info gauge\nb_info{{version=\"0.1\"}} 1\n\
                 # HELP c Now\n# TYPE c gauge\nc 0.5\n"
            )
        );
        assert_eq!(
            text(Format::OpenMetrics),
            format!(
                "# HELP a_bytes Bytes\n# TYPE a_bytes counter\n{values}\
                 # HELP b Build\n# TYPE b info\nb_info{{version=\"0.1\"}} 1\n\
                 # HELP c Now\n# TYPE c gauge\nc 0.5\n# EOF\n"
            )
        );
    }
}
