//! All generated files: dashboards, their provisioning, rules.

use crate::{QueryLanguage, grafana, list};

/// The program that uses a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileReader {
    /// Grafana, in one of the languages; `None`: in all of them.
    Grafana(Option<QueryLanguage>),
    /// Prometheus.
    Prometheus,
}

/// A file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DashboardFile {
    /// Its path below the common folder.
    pub path: String,
    /// Its content.
    pub text: String,
    /// The program that uses it.
    pub reader: FileReader,
}

/// Files that are generated from the list of panels.
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

/// Files that are written by hand.
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

/// All files.
#[must_use]
pub fn all() -> Vec<DashboardFile> {
    let written = WRITTEN.iter().map(|(path, text, reader)| DashboardFile {
        path: (*path).to_owned(),
        text: (*text).to_owned(),
        reader: *reader,
    });
    made().into_iter().chain(written).collect()
}
