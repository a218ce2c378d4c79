//! Measures hosts that a version has changed beside the rest: the same query over both, in the console's own time-series store.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use muster_base::clock::now_ms;
use muster_promql::{Instant as QueryResult, ParsedQuery, QueryLimits};
use muster_rules::rollout::policy::{Check, HOSTS_VARIABLE};
use muster_topics::{Millis, diagnostic::Diagnostic, name::HostId};

use super::{inbox::CheckAnswer, round::CheckRequest};
use crate::{prometheus::StoreSource, state::ConsoleState};

/// The longest query, with the ids of hosts in it: the parser takes 16 KiB. Of more hosts than fit, as many are taken evenly.
const QUERY_MAX_BYTES: usize = 15 * 1024;
/// The most hosts of each side: a matcher may be compiled to 256 KiB, which is some two hundred ids.
const HOSTS_MAX: usize = 100;
/// The length of an id, with what stands between two.
const ID_BYTES: usize = 37;
/// How long both queries may take.
const DEADLINE: Duration = Duration::from_secs(30);
/// The most samples that a query may read: those of a day of a thousand series.
const SAMPLES_MAX: usize = 5_000_000;

/// Makes a check, and hands the result in.
pub(super) async fn make(shared: Arc<ConsoleState>, request: CheckRequest) {
    let CheckRequest { deployment, version, check, changed, rest } = request;
    let result = measured(&shared, &check, &changed, &rest).await;
    if let Err(error) = &result {
        tracing::warn!(%deployment, version, error, "the check of a rollout has no result");
    }
    shared.hosts.rollouts.inbox().checks.push(CheckAnswer { deployment, version, result });
    shared.hosts.rollouts.look();
}

async fn measured(
    shared: &ConsoleState,
    check: &Check,
    changed: &[HostId],
    rest: &[HostId],
) -> Result<Option<String>, String> {
    if changed.is_empty() || rest.is_empty() {
        // There is nobody to compare with.
        return Ok(None);
    }
    if let Some(why) = shared.measurements.series.why_left_out() {
        return Err(format!("the time-series store is left out: {why:#}"));
    }
    let queries = [changed, rest].map(|hosts| query_of(check, hosts));
    let deadline = Instant::now() + DEADLINE;
    let source = StoreSource::new(shared.measurements.series.clone(), deadline);
    let at_ms = now_ms();
    let work = tokio::task::spawn_blocking(move || {
        let limits = QueryLimits {
            samples_max: SAMPLES_MAX,
            enough: Arc::new(move || Instant::now() >= deadline),
            ..QueryLimits::default()
        };
        let [changed, rest] = queries.map(|query| number(&query, &source, at_ms, &limits));
        let changed = changed.map_err(|error| format!("changed hosts: {error:#}"))?;
        let rest = rest.map_err(|error| format!("the rest: {error:#}"))?;
        Ok::<_, String>((changed, rest))
    });
    let (changed, rest) = work.await.map_err(|_| "the query ended without an answer".to_owned())??;
    Ok(worse(check, changed, rest))
}

/// The query over some hosts.
fn query_of(check: &Check, hosts: &[HostId]) -> String {
    let places = check.query.matches(HOSTS_VARIABLE).count().max(1);
    let fit = QUERY_MAX_BYTES.saturating_sub(check.query.len() + 16 * places) / (ID_BYTES * places);
    let every = hosts.len().div_ceil(fit.clamp(1, HOSTS_MAX)).max(1);
    let ids: Vec<String> = hosts.iter().step_by(every).map(HostId::to_string).collect();
    check.query.replace(HOSTS_VARIABLE, &format!("host=~\"{}\"", ids.join("|")))
}

/// The number that a query results in.
fn number(query: &str, source: &StoreSource, at_ms: Millis, limits: &QueryLimits) -> Result<f64, Diagnostic> {
    let parsed = ParsedQuery::parse(query).map_err(|error| Diagnostic::of(&error))?;
    let value = match parsed.instant(source, at_ms, limits).map_err(|error| Diagnostic::of(&error))? {
        QueryResult::Scalar(value) => value,
        QueryResult::Vector(series) => match series.as_slice() {
            [] => return Err(Diagnostic::new("there are no measurements")),
            [(_, value)] => *value,
            several => {
                let count = several.len();
                return Err(Diagnostic::new(format!(
                    "the query returns {count} values, and exactly one is needed: avg(…)"
                )));
            }
        },
        QueryResult::Text(_) | QueryResult::Matrix(_) => {
            return Err(Diagnostic::new("the query does not return a number"));
        }
    };
    if value.is_finite() { Ok(value) } else { Err(Diagnostic::new(format!("the query returns {value}"))) }
}

/// Says by how much the changed hosts are worse, if they are.
fn worse(check: &Check, changed: f64, rest: f64) -> Option<String> {
    let limit = rest * (1.0 + check.worse_than_rest_by / 100.0);
    (changed > limit).then(|| format!("{changed}; the rest has {rest}, and at most {limit} is allowed"))
}

/// Why a query cannot be made, as far as the query itself says.
pub(crate) fn fault(check: &Check) -> Option<Diagnostic> {
    ParsedQuery::parse(&query_of(check, &[HostId(uuid::Uuid::nil())])).err().map(|error| Diagnostic::of(&error))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(query: &str) -> Check {
        Check { query: query.to_owned(), worse_than_rest_by: 20.0 }
    }

    #[test]
    fn changed_hosts_may_be_a_little_worse() {
        let check = check("avg(x{$hosts})");
        assert_eq!(worse(&check, 1.2, 1.0), None);
        assert_eq!(worse(&check, 0.0, 0.0), None);
        assert!(worse(&check, 1.3, 1.0).unwrap().contains("1.3") && worse(&check, 0.1, 0.0).is_some());
    }

    #[test]
    fn query_names_hosts_and_no_more_than_fit() {
        let hosts: Vec<HostId> = (0..1_001).map(|_| HostId::random()).collect();
        let query = query_of(&check("avg(x{$hosts})"), &hosts);
        assert_eq!(query.matches('|').count() + 1, 91);
        let twice = query_of(&check("avg(x{$hosts}) / avg(y{$hosts})"), &hosts);
        assert_eq!(ParsedQuery::parse(&twice).err().map(|error| error.to_string()), None);
        assert!(ParsedQuery::parse(&query).is_ok() && query.contains(&hosts[0].to_string()));
        assert_eq!(fault(&check("avg(x{$hosts})")), None);
        assert!(fault(&check("avg(x{$hosts}")).is_some());
    }
}
