//! Everything that is written out: dashboards, their provisioning, rules.

use crate::{Flavour, grafana, list};

/// Who is to use a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reader {
    /// Grafana, in one of the languages; what is the same in both has none.
    Grafana(Option<Flavour>),
    /// Prometheus.
    Prometheus,
}

/// A file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct File {
    /// Where it lies, below the folder of all of them.
    pub path: String,
    /// What is in it.
    pub text: String,
    /// Who is to use it.
    pub reader: Reader,
}

/// Those that are made of the list of panels.
#[must_use]
pub fn made() -> Vec<File> {
    let dashboards = list::dashboards();
    let one = |flavour: Flavour, dashboard| {
        let made = grafana::dashboard(dashboard, flavour);
        let path = format!("{}/{}.json", flavour.word(), dashboard.name);
        File { path, text: format!("{made:#}\n"), reader: Reader::Grafana(Some(flavour)) }
    };
    Flavour::ALL.into_iter().flat_map(|flavour| dashboards.iter().map(move |each| one(flavour, each))).collect()
}

/// Those that people have written.
const WRITTEN: &[(&str, &str, Reader)] = &[
    ("README.md", include_str!("../README.md"), Reader::Grafana(None)),
    (
        "provisioning/dashboards/muster.yaml",
        include_str!("../provisioning/dashboards/muster.yaml"),
        Reader::Grafana(None),
    ),
    (
        "provisioning/datasources/muster.yaml",
        include_str!("../provisioning/datasources/muster.yaml"),
        Reader::Grafana(Some(Flavour::Promql)),
    ),
    (
        "provisioning/datasources/muster-influxql.yaml",
        include_str!("../provisioning/datasources/muster-influxql.yaml"),
        Reader::Grafana(Some(Flavour::Influxql)),
    ),
    ("rules/recording.yml", include_str!("../rules/recording.yml"), Reader::Prometheus),
    ("rules/alerts.yml", include_str!("../rules/alerts.yml"), Reader::Prometheus),
];

/// All of them.
#[must_use]
pub fn all() -> Vec<File> {
    let written = WRITTEN.iter().map(|(path, text, reader)| File {
        path: (*path).to_owned(),
        text: (*text).to_owned(),
        reader: *reader,
    });
    made().into_iter().chain(written).collect()
}
