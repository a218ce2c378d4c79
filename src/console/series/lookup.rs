//! What there is in the store, and the points of one series: what a query language asks for.

use std::{collections::BTreeMap, ops::RangeInclusive};

use futures_util::TryStreamExt;
use muster_promql::{Matchers, NAME};
use muster_topics::Millis;

use super::{
    SeriesError, SeriesStore, file,
    key::{self, Key, SeriesId},
    reader::rarest,
};

/// A series that was chosen.
#[derive(Clone, Debug)]
pub struct Found {
    /// Its number, by which [`SeriesStore::points`] finds it.
    pub id: u64,
    /// Its name.
    pub name: String,
    /// Its other labels.
    pub labels: BTreeMap<String, String>,
}

impl SeriesStore {
    /// The series that satisfy all matchers, at most so many.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub async fn select(&self, matchers: &Matchers, series_max: usize) -> Result<Vec<Found>, SeriesError> {
        self.noticed(self.chosen(matchers, series_max).await)
    }

    /// An error that says that the file is damaged is remembered for the next start.
    fn noticed<T>(&self, answer: Result<T, SeriesError>) -> Result<T, SeriesError> {
        if let Err(SeriesError::Sql(error)) = &answer
            && file::is_corrupt(error)
        {
            file::remember_damage(&self.path);
        }
        answer
    }

    async fn chosen(&self, matchers: &Matchers, series_max: usize) -> Result<Vec<Found>, SeriesError> {
        let mut candidates = match rarest(&self.readers, matchers.equalities()).await? {
            Some((name, value)) => sqlx::query_as(
                "SELECT series.id, series.name, series.labels FROM label CROSS JOIN series ON series.id = label.series
                 WHERE label.name = $1 AND label.value = $2",
            )
            .bind(name)
            .bind(value)
            .fetch(&self.readers),
            None => sqlx::query_as("SELECT id, name, labels FROM series").fetch(&self.readers),
        };
        let mut found = Vec::new();
        while let Some((id, name, labels)) = candidates.try_next().await? {
            let (id, name, labels): (i64, String, String) = (id, name, labels);
            let labels: BTreeMap<String, String> =
                serde_json::from_str(&labels).map_err(|_| SeriesError::Damaged(format!("labels of series {id}")))?;
            let value = |label: &str| if label == NAME { &name } else { labels.get(label).map_or("", String::as_str) };
            if let Ok(id) = u64::try_from(id)
                && matchers.accept(value)
            {
                found.push(Found { id, name, labels });
                if found.len() >= series_max {
                    break;
                }
            }
        }
        found.sort_by(|a, b| (&a.name, &a.labels).cmp(&(&b.name, &b.labels)));
        Ok(found)
    }

    /// Appends the points of a series in these times, both ends included, oldest first; of more than `points_max` one
    /// more than that.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub async fn points(
        &self,
        series: u64,
        times: RangeInclusive<Millis>,
        points_max: usize,
        into: &mut Vec<(Millis, f64)>,
    ) -> Result<(), SeriesError> {
        self.noticed(self.read(series, times, points_max, into).await)
    }

    async fn read(
        &self,
        series: u64,
        times: RangeInclusive<Millis>,
        points_max: usize,
        into: &mut Vec<(Millis, f64)>,
    ) -> Result<(), SeriesError> {
        let series = i64::try_from(series).ok().and_then(SeriesId::new);
        // Times without keys would be taken for the nearest that have one.
        let Some(series) = series.filter(|_| key::overlaps(&times)) else { return Ok(()) };
        let (first, last) = key::stretch(series, times);
        let limit = i64::try_from(points_max).unwrap_or(i64::MAX).saturating_add(1);
        let mut rows = sqlx::query_as("SELECT key, value FROM head WHERE key BETWEEN $1 AND $2 ORDER BY key LIMIT $3")
            .bind(first)
            .bind(last)
            .bind(limit)
            .fetch(&self.readers);
        while let Some((key, value)) = rows.try_next().await? {
            into.push((Key::from_sql(key).at_ms(), value));
        }
        Ok(())
    }

    /// The names of labels, sorted, at most so many.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub async fn label_names(&self, names_max: usize) -> Result<Vec<String>, SeriesError> {
        let limit = i64::try_from(names_max).unwrap_or(i64::MAX);
        let names = sqlx::query_scalar("SELECT DISTINCT name FROM label ORDER BY name LIMIT $1");
        self.noticed(names.bind(limit).fetch_all(&self.readers).await.map_err(SeriesError::Sql))
    }

    /// The values that a label has, sorted, at most so many.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub async fn label_values(&self, name: &str, values_max: usize) -> Result<Vec<String>, SeriesError> {
        let limit = i64::try_from(values_max).unwrap_or(i64::MAX);
        let values = sqlx::query_scalar("SELECT DISTINCT value FROM label WHERE name = $1 ORDER BY value LIMIT $2");
        self.noticed(values.bind(name).bind(limit).fetch_all(&self.readers).await.map_err(SeriesError::Sql))
    }
}
