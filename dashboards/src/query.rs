//! The query of a panel, independent of a language.
//!
//! The order of steps is fixed: a value of each series ([`QueryValue`], as it is or per second), filters, an
//! aggregation by labels ([`SeriesFold`]), the greatest ones.

use crate::series::{FieldKind, SELDOM_S, every_s, measurement};

/// What is made of a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueryValue {
    /// One field.
    Field(&'static str),
    /// The first as a share of the second.
    Share(&'static str, &'static str),
    /// 1 where a flag is 0.
    Not(&'static str),
    /// Every field that there is.
    All,
}

impl QueryValue {
    /// The fields that it is made of.
    #[must_use]
    pub fn fields(self) -> Vec<&'static str> {
        match self {
            Self::Field(field) | Self::Not(field) => vec![field],
            Self::Share(part, whole) => vec![part, whole],
            Self::All => Vec::new(),
        }
    }
}

/// Which series are meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SeriesFilter {
    /// Those whose label is what a variable of the dashboard says.
    Variable {
        /// The label.
        label: &'static str,
        /// The variable.
        name: &'static str,
        /// Whether it may have several values.
        many: bool,
    },
    /// Those whose label is this.
    Is(&'static str, &'static str),
}

/// How the values of several series become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SeriesFold {
    /// Added.
    Sum,
    /// Their mean.
    Avg,
    /// The greatest.
    Max,
    /// The least.
    Min,
    /// How many there are.
    Count,
    /// The value below which so many of a hundred are.
    Percentile(u8),
}

/// What a panel asks for one line, bar or column.
#[derive(Clone, Debug, PartialEq)]
pub struct PanelQuery {
    /// Of what.
    pub measurement: &'static str,
    /// What of it.
    pub value: QueryValue,
    /// By how much that grows in a second.
    pub per_second: bool,
    /// Which series are meant.
    pub only: Vec<SeriesFilter>,
    /// Only values above this.
    pub above: Option<f64>,
    /// How series are put together; each stays by itself if not at all.
    pub fold: Option<SeriesFold>,
    /// The labels that stay.
    pub by: &'static [&'static str],
    /// Only so many, the greatest first.
    pub top: Option<u8>,
    /// What it is called; `{label}` stands for that label's value.
    pub legend: &'static str,
    /// What the values are, if not what the panel says.
    pub unit: Option<crate::panel::ValueUnit>,
}

/// A field of a measurement, each series by itself.
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
        legend: "",
        unit: None,
    }
}

/// One field as a share of another.
#[must_use]
pub fn share(measurement: &'static str, part: &'static str, whole: &'static str) -> PanelQuery {
    PanelQuery { value: QueryValue::Share(part, whole), ..of(measurement, part) }
}

/// A flag the other way round.
#[must_use]
pub fn not(measurement: &'static str, flag: &'static str) -> PanelQuery {
    PanelQuery { value: QueryValue::Not(flag), ..of(measurement, flag) }
}

/// Every field of a measurement; `{field}` in its name is the field's.
#[must_use]
pub fn all(measurement: &'static str) -> PanelQuery {
    PanelQuery { value: QueryValue::All, ..of(measurement, "") }
}

/// By how much a counter grows in a second.
#[must_use]
pub fn rate(measurement: &'static str, counter: &'static str) -> PanelQuery {
    PanelQuery { per_second: true, ..of(measurement, counter) }
}

impl PanelQuery {
    /// Of these series alone.
    #[must_use]
    pub fn only(mut self, only: &[SeriesFilter]) -> Self {
        self.only.extend_from_slice(only);
        self
    }

    /// Values above this alone.
    #[must_use]
    pub fn above(self, least: f64) -> Self {
        Self { above: Some(least), ..self }
    }

    /// These labels tell series apart.
    #[must_use]
    pub fn each(self, by: &'static [&'static str]) -> Self {
        Self { by, ..self }
    }

    /// Put together by these labels.
    #[must_use]
    pub fn fold(self, fold: SeriesFold, by: &'static [&'static str]) -> Self {
        Self { fold: Some(fold), by, ..self }
    }

    /// The ten greatest.
    #[must_use]
    pub fn top(self) -> Self {
        Self { top: Some(10), ..self }
    }

    /// What it is called.
    #[must_use]
    pub fn named(self, legend: &'static str) -> Self {
        Self { legend, ..self }
    }

    /// What its values are.
    #[must_use]
    pub fn unit(self, unit: crate::panel::ValueUnit) -> Self {
        Self { unit: Some(unit), ..self }
    }

    /// How often what it needs is written, in seconds: the least often of it.
    #[must_use]
    pub fn every_s(&self) -> u32 {
        let fields = self.value.fields().into_iter();
        fields.map(|field| every_s(self.measurement, field)).max().unwrap_or(SELDOM_S)
    }

    /// What is wrong with it, if anything is: fields and labels that there are not, or a rate of what is no counter.
    #[must_use]
    pub fn problem(&self) -> Option<String> {
        let Some(found) = measurement(self.measurement) else { return Some("no such measurement".to_owned()) };
        let only = self.only.iter().map(|only| match only {
            SeriesFilter::Variable { label, .. } | SeriesFilter::Is(label, _) => *label,
        });
        if let Some(label) = only.chain(self.by.iter().copied()).find(|label| !found.tags.contains(label)) {
            return Some(format!("no label {label}"));
        }
        self.value.fields().into_iter().find_map(|field| match found.kind(field) {
            None => Some(format!("no field {field}")),
            Some(kind) if (kind == FieldKind::Counter) != self.per_second => Some(format!("{field} is {kind:?}")),
            Some(_) => None,
        })
    }
}

/// A legend, with each `{label}` as `label` says.
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
