//! All generated files: dashboards, their provisioning, rules.

use crate::{QueryLanguage, grafana, list};

/// Who is to use a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileReader {
    /// Grafana, in one of the languages; what is the same in both has none.
    Grafana(Option<QueryLanguage>),
    /// Prometheus.
    Prometheus,
}

/// A file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DashboardFile {
    /// Where it lies, below the folder of all of them.
    pub path: String,
    /// What is in it.
    pub text: String,
    /// Who is to use it.
    pub reader: FileReader,
}

/// Those that are made of the list of panels.
#[must_use]
pub fn made() -> Vec<DashboardFile> {
    let dashboards = list::dashboards();
    let one = |flavour: QueryLanguage, dashboard| {
        let made = grafana::dashboard(dashboard, flavour);
        let path = format!("{}/{}.json", flavour.word(), dashboard.name);
        DashboardFile { path, text: format!("{made:#}\n"), reader: FileReader::Grafana(Some(flavour)) }
    };
    QueryLanguage::ALL.into_iter().flat_map(|flavour| dashboards.iter().map(move |each| one(flavour, each))).collect()
}

/// Those that people have written.
const WRITTEN: &[(&str, &str, FileReader)] = &[
    ("README.md", include_str!("../README.md"), FileReader::Grafana(None)),
    (
        "provisioning/dashboards/muster.yaml",
        include_str!("../provisioning/dashboards/muster.yaml"),
        FileReader::Grafana(None),
    ),
    (
        "provisioning/datasources/muster.yaml",
        include_str!("../provisioning/datasources/muster.yaml"),
        FileReader::Grafana(Some(QueryLanguage::Promql)),
    ),
    (
        "provisioning/datasources/muster-influxql.yaml",
        include_str!("../provisioning/datasources/muster-influxql.yaml"),
        FileReader::Grafana(Some(QueryLanguage::Influxql)),
    ),
    ("rules/recording.yml", include_str!("../rules/recording.yml"), FileReader::Prometheus),
    ("rules/alerts.yml", include_str!("../rules/alerts.yml"), FileReader::Prometheus),
];

/// All of them.
#[must_use]
pub fn all() -> Vec<DashboardFile> {
    let written = WRITTEN.iter().map(|(path, text, reader)| DashboardFile {
        path: (*path).to_owned(),
        text: (*text).to_owned(),
        reader: *reader,
    });
    made().into_iter().chain(written).collect()
}
