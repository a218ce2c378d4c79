//! The query of a panel, independent of a language.
//!
//! The order of steps is fixed: a value of each series ([`QueryValue`], as it is or per second), filters, an
//! aggregation by labels ([`SeriesFold`]), the greatest ones.

use std::borrow::Cow;

use muster_topics::catalogue::{FieldKind, REPEAT_S, Writing, measurement};

/// The value that is computed from a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueryValue {
    /// One field.
    Field(&'static str),
    /// The first field as a fraction of the second.
    Share(&'static str, &'static str),
    /// 1 where a flag is 0.
    Not(&'static str),
    /// All fields.
    All,
}

impl QueryValue {
    /// The fields that it uses.
    #[must_use]
    pub fn fields(self) -> Vec<&'static str> {
        match self {
            Self::Field(field) | Self::Not(field) => vec![field],
            Self::Share(part, whole) => vec![part, whole],
            Self::All => Vec::new(),
        }
    }
}

/// A filter of series.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SeriesFilter {
    /// Series whose label matches a variable of the dashboard.
    Variable {
        /// The label.
        label: &'static str,
        /// The variable.
        name: &'static str,
        /// Whether the variable may have several values.
        many: bool,
    },
    /// Series whose label has this value.
    Is(&'static str, &'static str),
}

/// How the values of several series are combined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SeriesFold {
    /// The sum.
    Sum,
    /// The average.
    Avg,
    /// The maximum.
    Max,
    /// The minimum.
    Min,
    /// The number of series.
    Count,
    /// The percentile.
    Percentile(u8),
}

/// The query of one line, bar or column of a panel.
#[derive(Clone, Debug, PartialEq)]
pub struct PanelQuery {
    /// The measurement.
    pub measurement: &'static str,
    /// The value.
    pub value: QueryValue,
    /// Whether it is the increase per second.
    pub per_second: bool,
    /// The filters of series.
    pub only: Vec<SeriesFilter>,
    /// Only values above this.
    pub above: Option<f64>,
    /// How series are combined; `None`: not at all.
    pub fold: Option<SeriesFold>,
    /// The labels that remain.
    pub by: &'static [&'static str],
    /// Only this many, largest first.
    pub top: Option<u8>,
    /// The legend; `{label}` is replaced by the value of that label.
    pub legend: Cow<'static, str>,
    /// The unit of the values, if it differs from the panel's.
    pub unit: Option<crate::panel::ValueUnit>,
}

/// A field of a measurement, without combining series.
#[must_use]
pub fn of(measurement: &'static str, field: &'static str) -> PanelQuery {
    PanelQuery {
        measurement,
        value: QueryValue::Field(field),
        per_second: false,
        only: Vec::new(),
        above: None,
        fold: None,
        by: &[],
        top: None,
        legend: Cow::Borrowed(""),
        unit: None,
    }
}

/// One field as a fraction of another.
#[must_use]
pub fn share(measurement: &'static str, part: &'static str, whole: &'static str) -> PanelQuery {
    PanelQuery { value: QueryValue::Share(part, whole), ..of(measurement, part) }
}

/// The inverse of a flag.
#[must_use]
pub fn not(measurement: &'static str, flag: &'static str) -> PanelQuery {
    PanelQuery { value: QueryValue::Not(flag), ..of(measurement, flag) }
}

/// All fields of a measurement; `{field}` in the legend is replaced by the name of the field.
#[must_use]
pub fn all(measurement: &'static str) -> PanelQuery {
    PanelQuery { value: QueryValue::All, ..of(measurement, "") }
}

/// The increase of a counter per second.
#[must_use]
pub fn rate(measurement: &'static str, counter: &'static str) -> PanelQuery {
    PanelQuery { per_second: true, ..of(measurement, counter) }
}

impl PanelQuery {
    /// Only these series.
    #[must_use]
    pub fn only(mut self, only: &[SeriesFilter]) -> Self {
        self.only.extend_from_slice(only);
        self
    }

    /// Only values above this.
    #[must_use]
    pub fn above(self, least: f64) -> Self {
        Self { above: Some(least), ..self }
    }

    /// Does not combine series that differ in these labels.
    #[must_use]
    pub fn each(self, by: &'static [&'static str]) -> Self {
        Self { by, ..self }
    }

    /// Combines series with equal values of these labels.
    #[must_use]
    pub fn fold(self, fold: SeriesFold, by: &'static [&'static str]) -> Self {
        Self { fold: Some(fold), by, ..self }
    }

    /// The ten largest.
    #[must_use]
    pub fn top(self) -> Self {
        Self { top: Some(10), ..self }
    }

    /// Sets the legend.
    #[must_use]
    pub fn named(self, legend: impl Into<Cow<'static, str>>) -> Self {
        Self { legend: legend.into(), ..self }
    }

    /// Sets the unit of the values.
    #[must_use]
    pub fn unit(self, unit: crate::panel::ValueUnit) -> Self {
        Self { unit: Some(unit), ..self }
    }

    /// Interval at which its fields are written, in seconds; the longest, if they differ.
    #[must_use]
    pub fn every_s(&self) -> u32 {
        let found = measurement(self.measurement);
        let fields = self.value.fields().into_iter();
        let writings = fields.filter_map(|field| found?.writing(field));
        writings.map(Writing::every_s).max().unwrap_or(REPEAT_S)
    }

    /// An error in the query: unknown fields or labels, or the rate of a field that is not a counter.
    #[must_use]
    pub fn problem(&self) -> Option<String> {
        let Some(found) = measurement(self.measurement) else { return Some("no such measurement".to_owned()) };
        let only = self.only.iter().map(|only| match only {
            SeriesFilter::Variable { label, .. } | SeriesFilter::Is(label, _) => *label,
        });
        if let Some(label) = only.chain(self.by.iter().copied()).find(|label| !found.labels.contains(label)) {
            return Some(format!("no label {label}"));
        }
        self.value.fields().into_iter().find_map(|field| match found.field(field).map(|field| field.kind) {
            None => Some(format!("no field {field}")),
            Some(kind) if (kind == FieldKind::Counter) != self.per_second => Some(format!("{field} is {kind:?}")),
            Some(_) => None,
        })
    }
}

/// A legend with each `{label}` replaced.
pub(crate) fn legend(text: &str, label: impl Fn(&str) -> String) -> String {
    let mut written = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('{') {
        let (name, behind) = after.split_once('}').unwrap_or((after, ""));
        written.push_str(before);
        written.push_str(&label(name));
        rest = behind;
    }
    written.push_str(rest);
    written
}
