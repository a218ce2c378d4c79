//! `query` and `query_range`: evaluates an expression at one time or over a range.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use axum::extract::State;
use muster_base::clock::now_ms;
use muster_promql::{Error, ParsedQuery, QueryLimits, QueryRange};
use tokio::time::timeout_at;

use super::{
    answer::{self, ErrorKind, LOG_HINT, QueryRefusal, QueryResponse},
    params::FormParams,
    source::StoreSource,
    state::{DEADLINE, PrometheusState},
};

/// The most samples that a query may read: an hour of a thousand series at 10 s, thirteen times. They are read one
/// series after another.
const SAMPLES_MAX: usize = 5_000_000;
/// The most values of a part of a query: 40 MB.
const VALUES_MAX: usize = 5_000_000;

pub(super) async fn instant(State(state): State<PrometheusState>, params: FormParams) -> QueryResponse {
    let at_ms = params.time("time")?.unwrap_or_else(now_ms);
    let ask =
        move |query: &ParsedQuery, source: &StoreSource, limits: &QueryLimits| query.instant(source, at_ms, limits);
    let (answer, warnings) = run(&state, &params, ask).await?;
    answer::instant(&answer, at_ms, &warnings)
}

pub(super) async fn range(State(state): State<PrometheusState>, params: FormParams) -> QueryResponse {
    let (start_ms, end_ms) = (params.needed_time("start")?, params.needed_time("end")?);
    let step_ms = params.duration("step")?.ok_or_else(|| QueryRefusal::parameter("step", "it is missing"))?;
    let range = QueryRange { start_ms, end_ms, step_ms };
    let ask = move |query: &ParsedQuery, source: &StoreSource, limits: &QueryLimits| query.range(source, range, limits);
    let (answer, warnings) = run(&state, &params, ask).await?;
    answer::matrix(&answer, &warnings)
}

/// Signals that the requester has gone when it is dropped.
struct WaitGuard(Arc<AtomicBool>);

impl Drop for WaitGuard {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Runs a query on a blocking thread, until it is done, its time is over, or the requester has gone. Returns also its
/// warnings.
async fn run<T: Send + 'static>(
    state: &PrometheusState,
    params: &FormParams,
    ask: impl FnOnce(&ParsedQuery, &StoreSource, &QueryLimits) -> Result<T, Error> + Send + 'static,
) -> Result<(T, Vec<String>), QueryRefusal> {
    let text = params.query()?.to_owned();
    let asked = params.duration("timeout")?.and_then(|ms| u64::try_from(ms).ok()).map(Duration::from_millis);
    let deadline = Instant::now() + asked.unwrap_or(DEADLINE).min(DEADLINE);
    let too_long = |_| QueryRefusal::from(Error::Enough);
    let place = timeout_at(deadline.into(), Arc::clone(&state.places).acquire_owned()).await.map_err(too_long)?;
    let gone = Arc::new(AtomicBool::new(false));
    let waiting = WaitGuard(Arc::clone(&gone));
    let enough = move || gone.load(Ordering::Relaxed) || Instant::now() >= deadline;
    let limits = QueryLimits {
        samples_max: SAMPLES_MAX,
        values_max: VALUES_MAX,
        enough: Arc::new(enough),
        ..QueryLimits::default()
    };
    let source = StoreSource::new(state.console.shared.measurements.series.clone(), deadline);
    let work = tokio::task::spawn_blocking(move || {
        let answer = ParsedQuery::parse(&text).and_then(|query| ask(&query, &source, &limits));
        drop(place);
        answer.map(|answer| (answer, source.warnings()))
    });
    let answer = work.await.map_err(|error| {
        tracing::error!(%error, "a query ended without an answer");
        QueryRefusal::new(ErrorKind::Internal, "the query ended without an answer").hint(LOG_HINT)
    })?;
    drop(waiting);
    Ok(answer?)
}
