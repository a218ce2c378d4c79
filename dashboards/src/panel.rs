//! The parts of a dashboard, independent of Grafana's JSON.

use crate::query::PanelQuery;

/// What values are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueUnit {
    /// Shares of 1.
    Ratio,
    /// Bytes.
    Bytes,
    /// Bytes in a second.
    BytesPerSecond,
    /// Events in a second.
    PerSecond,
    /// Seconds.
    Seconds,
    /// Degrees.
    Celsius,
    /// Numbers of things.
    Count,
    /// A flag.
    Flag,
}

/// How a panel shows its values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PanelKind {
    /// Lines over time.
    Lines,
    /// Areas over time, one upon the other.
    Stacked,
    /// One number for each query, of now.
    Number,
    /// A bar for each series, of now.
    Bars,
    /// A row for each combination of labels, a column for each query.
    Table,
    /// When each series was 1.
    States,
}

/// From which values on something is worth a look, and from which it is bad.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Thresholds {
    /// Worth a look.
    pub look: f64,
    /// Bad, if that is something else.
    pub bad: Option<f64>,
}

/// One picture.
#[derive(Clone, Debug)]
pub struct Panel {
    /// Its title.
    pub title: &'static str,
    /// What it shows, for who does not know.
    pub description: &'static str,
    /// How it shows that.
    pub kind: PanelKind,
    /// What the values are.
    pub unit: ValueUnit,
    /// How wide, in 24ths.
    pub width: u8,
    /// What it asks.
    pub queries: Vec<PanelQuery>,
    /// What is worth a look.
    pub thresholds: Option<Thresholds>,
    /// Where a series' name leads.
    pub link: Option<PanelLink>,
}

/// Another dashboard, of what is clicked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PanelLink {
    /// Of the host.
    Host,
    /// Of the unit.
    Unit,
}

/// Panels under a heading.
#[derive(Clone, Debug)]
pub struct PanelRow {
    /// The heading.
    pub title: &'static str,
    /// From left to right, line by line.
    pub panels: Vec<Panel>,
}

/// What who looks may choose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Variable {
    /// Its name.
    pub name: &'static str,
    /// What it is called.
    pub label: &'static str,
    /// The measurement and the field whose label it is.
    pub of: (&'static str, &'static str),
    /// The label.
    pub value: &'static str,
    /// Labels of it that must be what other variables say.
    pub within: &'static [(&'static str, &'static str)],
    /// Whether several may be chosen, or all.
    pub many: bool,
}

/// A page of panels.
#[derive(Clone, Debug)]
pub struct Dashboard {
    /// Its file, and the end of its id.
    pub name: &'static str,
    /// Its title.
    pub title: &'static str,
    /// What it shows.
    pub description: &'static str,
    /// How long ago its time begins.
    pub since: &'static str,
    /// What may be chosen.
    pub variables: Vec<Variable>,
    /// Its rows.
    pub rows: Vec<PanelRow>,
}

fn panel(kind: PanelKind, width: u8, title: &'static str, unit: ValueUnit, description: &'static str) -> Panel {
    Panel { title, description, kind, unit, width, queries: Vec::new(), thresholds: None, link: None }
}

/// Lines over time, half a page wide.
#[must_use]
pub fn lines(title: &'static str, unit: ValueUnit, description: &'static str) -> Panel {
    panel(PanelKind::Lines, 12, title, unit, description)
}

/// Areas upon each other, half a page wide.
#[must_use]
pub fn stacked(title: &'static str, unit: ValueUnit, description: &'static str) -> Panel {
    panel(PanelKind::Stacked, 12, title, unit, description)
}

/// A number, a sixth of a page wide.
#[must_use]
pub fn number(title: &'static str, unit: ValueUnit, description: &'static str) -> Panel {
    panel(PanelKind::Number, 4, title, unit, description)
}

/// Bars, a third of a page wide.
#[must_use]
pub fn bars(title: &'static str, unit: ValueUnit, description: &'static str) -> Panel {
    panel(PanelKind::Bars, 8, title, unit, description)
}

/// A table, as wide as the page.
#[must_use]
pub fn table(title: &'static str, unit: ValueUnit, description: &'static str) -> Panel {
    panel(PanelKind::Table, 24, title, unit, description)
}

/// States over time, as wide as the page.
#[must_use]
pub fn states(title: &'static str, description: &'static str) -> Panel {
    panel(PanelKind::States, 24, title, ValueUnit::Flag, description)
}

/// Panels under a heading.
#[must_use]
pub fn row(title: &'static str, panels: Vec<Panel>) -> PanelRow {
    PanelRow { title, panels }
}

impl Panel {
    /// Asks this too.
    #[must_use]
    pub fn ask(mut self, query: PanelQuery) -> Self {
        self.queries.push(query);
        self
    }

    /// So wide, in 24ths.
    #[must_use]
    pub fn wide(self, width: u8) -> Self {
        Self { width, ..self }
    }

    /// From which values on it is worth a look, and bad.
    #[must_use]
    pub fn look(self, look: f64, bad: f64) -> Self {
        Self { thresholds: Some(Thresholds { look, bad: Some(bad) }), ..self }
    }

    /// From which value on it is bad.
    #[must_use]
    pub fn bad(self, bad: f64) -> Self {
        Self { thresholds: Some(Thresholds { look: bad, bad: None }), ..self }
    }

    /// Names lead there.
    #[must_use]
    pub fn link(self, link: PanelLink) -> Self {
        Self { link: Some(link), ..self }
    }
}
