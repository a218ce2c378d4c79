//! The parts of a dashboard, independent of Grafana's JSON.

use crate::query::PanelQuery;

/// The unit of values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueUnit {
    /// Fractions of 1.
    Ratio,
    /// Bytes.
    Bytes,
    /// Bytes per second.
    BytesPerSecond,
    /// Events per second.
    PerSecond,
    /// Seconds.
    Seconds,
    /// Degrees Celsius.
    Celsius,
    /// Counts.
    Count,
    /// A flag.
    Flag,
}

/// How a panel shows its values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PanelKind {
    /// Lines over time.
    Lines,
    /// Stacked areas over time.
    Stacked,
    /// One current number for each query.
    Number,
    /// One bar with the current value of each series.
    Bars,
    /// A row for each combination of labels, a column for each query.
    Table,
    /// The times at which each series was 1.
    States,
}

/// The thresholds of a panel's colours.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Thresholds {
    /// Warning.
    pub look: f64,
    /// Critical, if it differs.
    pub bad: Option<f64>,
}

/// A panel.
#[derive(Clone, Debug)]
pub struct Panel {
    /// Its title.
    pub title: &'static str,
    /// An explanation for readers.
    pub description: &'static str,
    /// How its values are shown.
    pub kind: PanelKind,
    /// The unit of its values.
    pub unit: ValueUnit,
    /// Its width, in 24ths of the page.
    pub width: u8,
    /// Its queries.
    pub queries: Vec<PanelQuery>,
    /// Its thresholds.
    pub thresholds: Option<Thresholds>,
    /// The target of links from series' names.
    pub link: Option<PanelLink>,
}

/// A link to another dashboard, for the series that was clicked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PanelLink {
    /// To that of the host.
    Host,
    /// To that of the unit.
    Unit,
}

/// Panels with a heading.
#[derive(Clone, Debug)]
pub struct PanelRow {
    /// The heading.
    pub title: &'static str,
    /// Ordered from left to right, row by row.
    pub panels: Vec<Panel>,
}

/// A variable that the reader can set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Variable {
    /// Its name.
    pub name: &'static str,
    /// Its label on the page.
    pub label: &'static str,
    /// The measurement and the field whose label values it offers.
    pub of: (&'static str, &'static str),
    /// The label.
    pub value: &'static str,
    /// Labels that must match other variables.
    pub within: &'static [(&'static str, &'static str)],
    /// Whether several values, or all, can be selected.
    pub many: bool,
}

/// A dashboard.
#[derive(Clone, Debug)]
pub struct Dashboard {
    /// Its file name, and the end of its id.
    pub name: &'static str,
    /// Its title.
    pub title: &'static str,
    /// A description for readers.
    pub description: &'static str,
    /// Start of its default time range, before now.
    pub since: &'static str,
    /// Its variables.
    pub variables: Vec<Variable>,
    /// Its rows.
    pub rows: Vec<PanelRow>,
}

fn panel(kind: PanelKind, width: u8, title: &'static str, unit: ValueUnit, description: &'static str) -> Panel {
    Panel { title, description, kind, unit, width, queries: Vec::new(), thresholds: None, link: None }
}

/// Lines over time; half a page wide.
#[must_use]
pub fn lines(title: &'static str, unit: ValueUnit, description: &'static str) -> Panel {
    panel(PanelKind::Lines, 12, title, unit, description)
}

/// Stacked areas; half a page wide.
#[must_use]
pub fn stacked(title: &'static str, unit: ValueUnit, description: &'static str) -> Panel {
    panel(PanelKind::Stacked, 12, title, unit, description)
}

/// A number; a sixth of a page wide.
#[must_use]
pub fn number(title: &'static str, unit: ValueUnit, description: &'static str) -> Panel {
    panel(PanelKind::Number, 4, title, unit, description)
}

/// Bars; a third of a page wide.
#[must_use]
pub fn bars(title: &'static str, unit: ValueUnit, description: &'static str) -> Panel {
    panel(PanelKind::Bars, 8, title, unit, description)
}

/// A table; as wide as the page.
#[must_use]
pub fn table(title: &'static str, unit: ValueUnit, description: &'static str) -> Panel {
    panel(PanelKind::Table, 24, title, unit, description)
}

/// States over time; as wide as the page.
#[must_use]
pub fn states(title: &'static str, description: &'static str) -> Panel {
    panel(PanelKind::States, 24, title, ValueUnit::Flag, description)
}

/// Panels with a heading.
#[must_use]
pub fn row(title: &'static str, panels: Vec<Panel>) -> PanelRow {
    PanelRow { title, panels }
}

impl Panel {
    /// Adds a query.
    #[must_use]
    pub fn ask(mut self, query: PanelQuery) -> Self {
        self.queries.push(query);
        self
    }

    /// Sets the width, in 24ths of the page.
    #[must_use]
    pub fn wide(self, width: u8) -> Self {
        Self { width, ..self }
    }

    /// Sets the thresholds of warning and critical.
    #[must_use]
    pub fn look(self, look: f64, bad: f64) -> Self {
        Self { thresholds: Some(Thresholds { look, bad: Some(bad) }), ..self }
    }

    /// Sets the critical threshold.
    #[must_use]
    pub fn bad(self, bad: f64) -> Self {
        Self { thresholds: Some(Thresholds { look: bad, bad: None }), ..self }
    }

    /// Sets the target of links from names.
    #[must_use]
    pub fn link(self, link: PanelLink) -> Self {
        Self { link: Some(link), ..self }
    }
}
