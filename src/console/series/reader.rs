//! Answering queries, on connections of their own, beside the writer.
//!
//! **Invariant: a query costs a bounded amount**, of series, of points in memory, and of time.

use std::{collections::BTreeMap, ops::RangeInclusive, time::Duration};

use futures_util::TryStreamExt;
use muster_topics::Millis;
use sqlx::SqlitePool;

use super::{
    SeriesError,
    key::{self, Key, SeriesId, TIME_LAST_MS},
    selector::Selector,
    thin::{THIN_MIN, Thinner},
};
use crate::api;

/// The most series in one answer: more than a page or a person reads.
const SERIES_MAX: usize = 1_000;
/// The most points of one series, as Prometheus has it: more than a screen has columns.
const POINTS_MAX: usize = 11_000;
/// The most points in one answer, 8 MB of them: many series are thinned further.
const ANSWER_POINTS_MAX: usize = 500_000;
/// The most time for one answer; who waits longer has gone, or has asked for too much.
const DEADLINE: Duration = Duration::from_secs(10);
/// How old a last value may be, as Prometheus has it.
const LAST_MAX_AGE_MS: Millis = 300_000;
/// Series with a label that are counted to find its rarest one.
const RARITY_MAX: i64 = 1_000;

/// A series that was chosen.
struct Chosen {
    id: SeriesId,
    name: String,
    labels: BTreeMap<String, String>,
}

/// Measurements that a selector chooses, sorted by name and labels; see [`super::SeriesStore::query`].
pub(super) async fn query(
    readers: &SqlitePool,
    selector: &str,
    range: Option<(Millis, Millis)>,
    points_max: usize,
    now_ms: Millis,
) -> Result<Vec<api::Series>, SeriesError> {
    let selector = Selector::parse(selector)?;
    if let Some((start_ms, end_ms)) = range
        && start_ms > end_ms
    {
        return Err(SeriesError::Range { start_ms, end_ms });
    }
    let answer = async {
        let chosen = choose(readers, selector).await?;
        let points_max = points_max.min(POINTS_MAX).min(ANSWER_POINTS_MAX / chosen.len().max(1));
        let mut answer = Vec::with_capacity(chosen.len());
        for Chosen { id, name, labels } in chosen {
            let points = match range {
                Some((start_ms, end_ms)) => thinned(readers, id, start_ms..=end_ms, points_max).await?,
                None => last(readers, id, now_ms).await?.into_iter().collect(),
            };
            if !points.is_empty() {
                answer.push(api::Series { name, labels, points });
            }
        }
        Ok(answer)
    };
    tokio::time::timeout(DEADLINE, answer).await.map_err(|_| SeriesError::Deadline(DEADLINE))?
}

/// The series that a selector means.
async fn choose(readers: &SqlitePool, mut selector: Selector) -> Result<Vec<Chosen>, SeriesError> {
    let mut candidates = match rarest(readers, selector.equalities()).await? {
        Some((name, value)) => sqlx::query_as(
            "SELECT series.id, series.name, series.labels FROM label CROSS JOIN series ON series.id = label.series
             WHERE label.name = $1 AND label.value = $2",
        )
        .bind(name)
        .bind(value)
        .fetch(readers),
        None => sqlx::query_as("SELECT id, name, labels FROM series").fetch(readers),
    };
    let mut chosen = Vec::new();
    while let Some((id, name, labels)) = candidates.try_next().await? {
        let (id, name, labels): (i64, String, String) = (id, name, labels);
        let labels =
            serde_json::from_str(&labels).map_err(|_| SeriesError::Damaged(format!("labels of series {id}")))?;
        let Some(id) = SeriesId::new(id) else { continue };
        if selector.accepts(&name, &labels) {
            if chosen.len() == SERIES_MAX {
                return Err(SeriesError::TooMany { series_max: SERIES_MAX });
            }
            chosen.push(Chosen { id, name, labels });
        }
    }
    chosen.sort_by(|a, b| (&a.name, &a.labels).cmp(&(&b.name, &b.labels)));
    Ok(chosen)
}

/// Of the labels that must have a certain value, the one that the fewest series have.
pub(super) async fn rarest(
    readers: &SqlitePool,
    equalities: impl Iterator<Item = (&str, &str)>,
) -> Result<Option<(String, String)>, SeriesError> {
    let mut rarest = None;
    for (name, value) in equalities {
        let count: i64 = sqlx::query_scalar(
            "SELECT COUNT(*) FROM (SELECT 1 FROM label WHERE name = $1 AND value = $2 LIMIT $3) AS counted",
        )
        .bind(name)
        .bind(value)
        .bind(RARITY_MAX)
        .fetch_one(readers)
        .await?;
        if rarest.as_ref().is_none_or(|(least, _)| count < *least) {
            rarest = Some((count, (name.to_owned(), value.to_owned())));
        }
    }
    Ok(rarest.map(|(_, label)| label))
}

/// The points of a series from one time to another, thinned while they are read.
async fn thinned(
    readers: &SqlitePool,
    series: SeriesId,
    times: RangeInclusive<Millis>,
    points_max: usize,
) -> Result<Vec<(Millis, f64)>, SeriesError> {
    // Times without keys would be taken for the nearest that have one.
    if !key::overlaps(&times) {
        return Ok(Vec::new());
    }
    let (first, last) = key::stretch(series, times);
    let mut rows = sqlx::query_as("SELECT key, value FROM head WHERE key BETWEEN $1 AND $2 ORDER BY key")
        .bind(first)
        .bind(last)
        .fetch(readers);
    let mut thinner = Thinner::new(points_max.max(THIN_MIN));
    while let Some((key, value)) = rows.try_next().await? {
        thinner.push((Key::from_sql(key).at_ms(), value));
    }
    Ok(thinner.finish())
}

/// The newest point of a series, if it is fresh. Clocks of hosts may be ahead, so there is no upper end.
async fn last(readers: &SqlitePool, series: SeriesId, now_ms: Millis) -> Result<Option<(Millis, f64)>, SeriesError> {
    let (first, last) = key::stretch(series, now_ms - LAST_MAX_AGE_MS..=TIME_LAST_MS);
    let row: Option<(i64, f64)> =
        sqlx::query_as("SELECT key, value FROM head WHERE key BETWEEN $1 AND $2 ORDER BY key DESC LIMIT 1")
            .bind(first)
            .bind(last)
            .fetch_optional(readers)
            .await?;
    Ok(row.map(|(key, value)| (Key::from_sql(key).at_ms(), value)))
}
