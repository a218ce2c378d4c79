//! The share of all series that one value of a label may have, so that no host takes the place of the others.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use sqlx::SqliteConnection;

use super::settings::SeriesShare;

/// The most values of the label whose numbers of series are remembered. Beyond, they are counted again.
const VALUES_MAX: usize = 100_000;

/// That a value of the label has nearly all of its share, or all of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShareNotice {
    /// The value.
    pub value: String,
    /// The number of its series.
    pub series: usize,
    /// As many as it may have.
    pub series_max: usize,
}

impl ShareNotice {
    /// Whether its new series are left out.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.series >= self.series_max
    }
}

/// What the writer has found of shares, for the store's handles.
#[derive(Clone, Debug, Default)]
pub(super) struct ShareNotices(Arc<NoticedShares>);

#[derive(Debug, Default)]
struct NoticedShares {
    /// What nobody has taken yet.
    notices: Mutex<Vec<ShareNotice>>,
    refused: AtomicU64,
}

impl ShareNotices {
    pub(super) fn take(&self) -> Vec<ShareNotice> {
        std::mem::take(&mut *self.0.notices.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// How many series were not made since the start; one that comes again counts again.
    pub(super) fn refused(&self) -> u64 {
        self.0.refused.load(Ordering::Relaxed)
    }

    fn add(&self, notice: ShareNotice) {
        let mut notices = self.0.notices.lock().unwrap_or_else(PoisonError::into_inner);
        // Nobody may ever take them.
        if notices.len() < VALUES_MAX {
            notices.push(notice);
        }
    }
}

/// What each value of the label has of its share.
pub(super) struct ShareCounts {
    share: Option<SeriesShare>,
    used: HashMap<String, ShareUse>,
    notices: ShareNotices,
}

/// What one value has.
struct ShareUse {
    series: usize,
    told: ShareLevel,
}

/// How much of a share is in use.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum ShareLevel {
    Ample,
    /// A fifth or less is left.
    Near,
    Full,
}

impl ShareCounts {
    pub(super) fn new(share: Option<SeriesShare>, notices: ShareNotices) -> Self {
        Self { share, used: HashMap::new(), notices }
    }

    /// Forgets all numbers, because they may not be right any more.
    pub(super) fn forget(&mut self) {
        self.used.clear();
    }

    /// Takes a place for a series that is about to be made; false if its label's value has as many as it may.
    pub(super) async fn take(&mut self, tx: &mut SqliteConnection, labels: &str) -> Result<bool, sqlx::Error> {
        let Some(share) = &self.share else { return Ok(true) };
        let Some(value) = value_of(labels, &share.label) else { return Ok(true) };
        if self.used.len() >= VALUES_MAX {
            self.used.clear();
        }
        if !self.used.contains_key(&value) {
            let series: i64 = sqlx::query_scalar("SELECT COUNT(*) FROM label WHERE name = $1 AND value = $2")
                .bind(&share.label)
                .bind(&value)
                .fetch_one(tx)
                .await?;
            let series = usize::try_from(series).unwrap_or(usize::MAX);
            self.used.insert(value.clone(), ShareUse { series, told: ShareLevel::Ample });
        }
        let Some(used) = self.used.get_mut(&value) else { return Ok(true) };
        let is_free = used.series < share.series_max;
        used.series += usize::from(is_free);
        if !is_free {
            self.notices.0.refused.fetch_add(1, Ordering::Relaxed);
        }
        let level = level(used.series, share.series_max);
        if level > used.told {
            used.told = level;
            self.notices.add(ShareNotice { value, series: used.series, series_max: share.series_max });
        }
        Ok(is_free)
    }
}

fn level(series: usize, series_max: usize) -> ShareLevel {
    match series {
        _ if series >= series_max => ShareLevel::Full,
        _ if series >= series_max - series_max / 5 => ShareLevel::Near,
        _ => ShareLevel::Ample,
    }
}

/// The value of a label in a JSON object of labels.
fn value_of(labels: &str, label: &str) -> Option<String> {
    let labels: HashMap<String, String> = serde_json::from_str(labels).ok()?;
    labels.into_iter().find(|(name, _)| name == label).map(|(_, value)| value)
}
