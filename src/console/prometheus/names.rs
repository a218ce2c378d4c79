//! Answers about what exists: series, labels and their values, and the meaning of metrics.

use std::collections::{BTreeMap, BTreeSet};

use axum::{
    extract::{Path, State},
    response::Response,
};
use muster_promql::{Matchers, NAME};
use muster_series::{ChosenSeries, SeriesError, SeriesId};
use muster_topics::{
    catalogue::{self, FieldKind, Measure},
    diagnostic::Diagnostic,
};
use serde_json::{Value, json};

use super::{
    answer::{ErrorKind, QueryRefusal, QueryResponse, success},
    params::FormParams,
    source::selector,
    state::PrometheusState,
};

/// The most series, labels or values in a response: more than anybody chooses from.
const NAMES_MAX: usize = 50_000;

impl From<SeriesError> for QueryRefusal {
    fn from(error: SeriesError) -> Self {
        if let SeriesError::TooMany { .. } = error {
            return Self::told(ErrorKind::Execution, Diagnostic::of(&error));
        }
        tracing::error!(%error, "reading the names of series failed");
        Self::unreadable()
    }
}

impl PrometheusState {
    /// Returns the series that any of some selectors match.
    async fn chosen(&self, selectors: &[Matchers]) -> Result<Vec<ChosenSeries>, QueryRefusal> {
        let mut chosen: BTreeMap<SeriesId, ChosenSeries> = BTreeMap::new();
        for matchers in selectors {
            let selector =
                selector(matchers).map_err(|error| QueryRefusal::new(ErrorKind::BadData, error.to_string()))?;
            let found = self.console.shared.measurements.series.select(selector, NAMES_MAX).await?;
            chosen.extend(found.into_iter().map(|one| (one.id, one)));
            if chosen.len() > NAMES_MAX {
                let message = format!("more than {NAMES_MAX} series are selected");
                return Err(QueryRefusal::new(ErrorKind::Execution, message).hint("select a host or a unit"));
            }
        }
        Ok(chosen.into_values().collect())
    }
}

/// `series`: the labels of matching series.
pub(super) async fn series(State(state): State<PrometheusState>, params: FormParams) -> QueryResponse {
    check_times(&params)?;
    let selectors = params.selectors()?;
    if selectors.is_empty() {
        return Err(QueryRefusal::new(ErrorKind::BadData, "no match[] parameter provided"));
    }
    let mut series: Vec<BTreeMap<String, String>> = state
        .chosen(&selectors)
        .await?
        .into_iter()
        .map(|one| one.labels.into_iter().chain([(NAME.to_owned(), one.name)]).collect())
        .collect();
    series.sort();
    Ok(success(series))
}

/// `labels`: the names of labels.
pub(super) async fn labels(State(state): State<PrometheusState>, params: FormParams) -> QueryResponse {
    check_times(&params)?;
    let selectors = params.selectors()?;
    let names: BTreeSet<String> = if selectors.is_empty() {
        state.console.shared.measurements.series.label_names().await?.into_iter().take(NAMES_MAX).collect()
    } else {
        let chosen = state.chosen(&selectors).await?;
        chosen.into_iter().flat_map(|one| one.labels.into_keys().chain([NAME.to_owned()])).collect()
    };
    Ok(success(names))
}

/// `label/NAME/values`: the values of a label.
pub(super) async fn values(
    State(state): State<PrometheusState>,
    Path(label): Path<String>,
    params: FormParams,
) -> QueryResponse {
    check_times(&params)?;
    let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    if label.is_empty() || label.starts_with(|c: char| c.is_ascii_digit()) || !label.chars().all(word) {
        return Err(QueryRefusal::new(ErrorKind::BadData, format!("invalid label name: {label:?}")));
    }
    let selectors = params.selectors()?;
    let values: BTreeSet<String> = if selectors.is_empty() {
        state.console.shared.measurements.series.label_values(&label).await?.into_iter().take(NAMES_MAX).collect()
    } else {
        let chosen = state.chosen(&selectors).await?;
        let value = |mut one: ChosenSeries| if label == NAME { Some(one.name) } else { one.labels.remove(&label) };
        chosen.into_iter().filter_map(value).collect()
    };
    Ok(success(values))
}

/// `metadata`: the kind and unit of each metric, by its suffix, and what it is, from the catalogue.
pub(super) async fn metadata(State(state): State<PrometheusState>, params: FormParams) -> QueryResponse {
    let wanted = params.get("metric").map(str::to_owned);
    let limit = match params.get("limit").map(str::parse::<usize>) {
        None => NAMES_MAX,
        Some(Ok(limit)) => limit,
        Some(Err(_)) => return Err(QueryRefusal::new(ErrorKind::BadData, "limit must be a number")),
    };
    let names = state.console.shared.measurements.series.label_values(NAME).await?;
    let names = names.into_iter().filter(|name| wanted.as_ref().is_none_or(|wanted| wanted == name)).take(limit);
    let metadata: BTreeMap<String, Value> = names
        .map(|name| {
            let (kind, unit) = kind_and_unit(&name);
            let entry = json!([{ "type": kind, "help": help(&name), "unit": unit }]);
            (name, entry)
        })
        .collect();
    Ok(success(metadata))
}

/// Returns the catalogue's sentence about a metric; nothing for one that is not listed.
fn help(name: &str) -> &'static str {
    catalogue::series(name).map_or("", |(_, field)| field.about)
}

/// Returns the kind and the unit of a metric in Prometheus's words.
fn kind_and_unit(name: &str) -> (&'static str, &'static str) {
    let (kind, unit) = catalogue::kind_and_unit(name);
    let kind = match kind {
        FieldKind::Counter => "counter",
        FieldKind::Gauge | FieldKind::Rate => "gauge",
    };
    let unit = match unit {
        Measure::Bytes => "bytes",
        Measure::Celsius => "celsius",
        Measure::Ratio => "ratio",
        Measure::Seconds => "seconds",
        Measure::Number | Measure::Flag => "",
    };
    (kind, unit)
}

/// `status/buildinfo`: the compatible version of Prometheus, by which Grafana decides what it may request.
pub(super) async fn build() -> Response {
    success(json!({
        "version": "2.42.0",
        "revision": concat!("muster ", env!("CARGO_PKG_VERSION")),
        "branch": "",
        "buildUser": "",
        "buildDate": "",
        "goVersion": "",
    }))
}

/// Checks the time range. Series are listed for all times, but an invalid range is an error all the same.
fn check_times(params: &FormParams) -> Result<(), QueryRefusal> {
    match (params.time("start")?, params.time("end")?) {
        (Some(start), Some(end)) if end < start => {
            Err(QueryRefusal::new(ErrorKind::BadData, "end timestamp must not be before start timestamp"))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_has_kind_and_unit() {
        assert_eq!(kind_and_unit("muster_host_disk_used_bytes"), ("gauge", "bytes"));
        assert_eq!(kind_and_unit("muster_host_pressure_some_seconds_total"), ("counter", "seconds"));
        assert_eq!(kind_and_unit("muster_host_load_5m"), ("gauge", ""));
        assert_eq!(kind_and_unit("muster_yuno_requests_total"), ("counter", ""));
    }

    #[test]
    fn metadata_has_the_catalogue_sentence() {
        let (_, field) = catalogue::series("muster_host_load_5m").unwrap();
        assert_eq!((help("muster_host_load_5m"), help("muster_of_nobody")), (field.about, ""));
        assert!(!field.about.is_empty());
    }
}
