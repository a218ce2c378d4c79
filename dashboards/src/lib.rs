//! Dashboards for Grafana over muster's metrics, and rules for Prometheus.
//!
//! There is one list of panels over [the catalogue of metrics](muster_topics::catalogue), rendered in two languages: PromQL, which muster's own store, VictoriaMetrics and
//! Prometheus understand, and InfluxQL. The output is committed beside this (`promql/`, `influxql/`), checked by a test,
//! and exported by `muster dashboard export`.
//!
//! Modules, in reading order:
//!
//! - [`query`]: the query of a panel; [`promql`] and [`influxql`]: its text
//! - [`panel`]: the parts of a dashboard; [`list`]: the dashboards themselves
//! - [`grafana`]: their JSON
//! - [`files`]: all generated files
//!
//! **Invariant: nothing here does IO.**

pub mod files;
pub mod grafana;
pub mod influxql;
pub mod list;
pub mod panel;
pub mod promql;
pub mod query;

/// The query language of a dashboard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueryLanguage {
    /// PromQL: muster's own store, VictoriaMetrics, Prometheus.
    Promql,
    /// InfluxQL: InfluxDB 1, 2 and 3.
    Influxql,
}

impl QueryLanguage {
    /// All languages.
    pub const ALL: [Self; 2] = [Self::Promql, Self::Influxql];

    /// Its name in folders and tags.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Promql => "promql",
            Self::Influxql => "influxql",
        }
    }
}
