//! Dashboards for Grafana over what muster measures, and rules for Prometheus.
//!
//! There is one list of panels, and each speaks two languages: Prometheus's, which muster's own store, VictoriaMetrics and
//! Prometheus understand, and InfluxQL. What comes out is committed beside this (`promql/`, `influxql/`), checked by a test,
//! and written out by `muster dashboards export`.
//!
//! Modules, in reading order:
//!
//! - [`series`]: what there is to draw
//! - [`query`]: what a panel asks; [`promql`] and [`influxql`]: its text
//! - [`panel`]: what a dashboard is made of; [`list`]: the panels themselves
//! - [`grafana`]: their JSON
//! - [`files`]: everything that is written out
//!
//! **Invariant: nothing here does IO.**

pub mod files;
pub mod grafana;
pub mod influxql;
pub mod list;
pub mod panel;
pub mod promql;
pub mod query;
pub mod series;

/// The language that a dashboard asks in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flavour {
    /// Prometheus's: muster's own store, VictoriaMetrics, Prometheus.
    Promql,
    /// InfluxDB's: 1, 2 and 3.
    Influxql,
}

impl Flavour {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Promql, Self::Influxql];

    /// Its name, as folders and tags have it.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Promql => "promql",
            Self::Influxql => "influxql",
        }
    }
}
