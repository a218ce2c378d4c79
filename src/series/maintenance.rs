//! Maintenance in small steps: seals hours that are over, rolls up days that are
//! over, and deletes data that is too old, or too much.
//!
//! A round does these one after the other. Each step is one short transaction, after which queued
//! batches are committed first.
//!
//! "Over" and "too old" are relative to the newest point since the start, and not to the clock alone, and never to a later time
//! than the console knows to have come: if its clock jumps ahead, it must not lose everything. SQLite reuses freed pages for new points; only if many are
//! free after a day was sealed as a whole, the file shrinks.
//!
//! **Invariant: points are deleted after their hours were rolled up.** From the beginning of a round on, points that it
//! will delete are no longer accepted ([`Upkeep::taken_from_ms`]).

use std::{
    collections::HashSet,
    time::{Duration, Instant},
};

use muster_topics::Millis;
use sqlx::SqliteConnection;

use super::{
    head,
    key::{self, DAY_HOURS, HOUR_MS, Hour, SeriesId, TIME_FIRST_MS},
    retention,
    rollup::{self, LastPages},
    rollup_blob::SPAN_HOURS,
    seal,
    settings::StoreSettings,
    transaction,
};

/// Interval of rounds: late points are sealed soon, but still many at once.
const ROUND: Duration = Duration::from_secs(60);
/// Delay of the first round, because other work is more urgent at the start.
const FIRST: Duration = Duration::from_secs(20);
/// Pause between two steps of a round, so that waiting requests come first.
const STEP: Duration = Duration::from_millis(2);
/// Interval of searches for series without points.
const SWEEP: Duration = Duration::from_secs(3600);
/// An hour is sealed this long after its end: agents send every half minute.
const SEAL_AFTER_MS: Millis = 5 * 60 * 1000;
/// A day is rolled up this long after its end, when its last hour has been sealed.
const ROLL_AFTER_MS: Millis = 10 * 60 * 1000;
/// Number of series that one step examines, about a millisecond of work.
const LOOKED_AT: i64 = 512;
/// Number of hours that one step rolls up, about ten milliseconds of work.
const ROLLED: usize = 4 * DAY_HOURS as usize;
/// Number of chunks or pieces that one step deletes: some hundred pages.
const DELETED: i64 = 500;
/// Number of hours that are deleted when the file is too large.
const PLACE_HOURS: u32 = 6;
/// Number of hours that are always kept, however large the file is: a smaller store would be useless.
const LEAST_HOURS: u32 = DAY_HOURS;
/// The file shrinks if more than this fraction of it is free. With points of a week it seldom is: what a day leaves
/// free, when it is sealed as a whole, is what the hours of the next need.
const LOOSE_SHARE: i64 = 16;
/// Gives back one MiB, some milliseconds of work.
const SHRINK: &str = "PRAGMA incremental_vacuum(256)";

/// The times from which data is kept, for each resolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RetentionBounds {
    pub(crate) raw_ms: Millis,
    pub(crate) five_ms: Millis,
    pub(crate) hourly_ms: Millis,
}

/// Reads the bounds.
pub(crate) async fn kept(connection: &mut SqliteConnection) -> Result<RetentionBounds, sqlx::Error> {
    let mut kept = RetentionBounds { raw_ms: TIME_FIRST_MS, five_ms: TIME_FIRST_MS, hourly_ms: TIME_FIRST_MS };
    let rows: Vec<(String, Millis)> =
        sqlx::query_as("SELECT resolution, at_ms FROM kept_from").fetch_all(connection).await?;
    for (resolution, at_ms) in rows {
        match resolution.as_str() {
            "raw" => kept.raw_ms = at_ms,
            "five" => kept.five_ms = at_ms,
            _ => kept.hourly_ms = at_ms,
        }
    }
    Ok(kept)
}

/// The state of a round.
#[derive(Clone, Copy, Debug)]
enum UpkeepPhase {
    /// Not begun.
    Begin,
    /// Sealing hours, starting at this one; in this hour, series starting at this id.
    Seal { hour: Hour, from: i64 },
    /// Looking for days to roll up.
    Roll { from: i64, again: bool },
    /// Deleting chunks and days.
    Cut,
    /// Giving free pages back.
    Shrink,
    /// Deleting spans of sixteen days, and series without data, after this one.
    Sweep { done: i64 },
}

/// The work of a round, and its progress.
#[derive(Debug)]
pub(crate) struct Upkeep {
    settings: StoreSettings,
    phase: UpkeepPhase,
    pause: Duration,
    kept: RetentionBounds,
    /// The bounds after this round.
    wanted: RetentionBounds,
    swept: Option<Instant>,
    /// No point before this time needs sealing. Examining all series costs as much as storing some seconds of points,
    /// so it is only done if something can be found.
    unsealed_ms: Millis,
    /// The value of `unsealed_ms` after all series have been examined.
    sealing_ms: Millis,
    /// Whether there may be new summaries since the last roll-up.
    unrolled: bool,
    /// The day and the first point up to which all series were rolled up.
    rolled: Option<(u32, Millis)>,
    /// Whether days were sealed since it was last examined whether the file should shrink.
    sealed_days: bool,
    last_pages: LastPages,
}

impl Upkeep {
    /// The state before the first round.
    pub(crate) fn new(settings: &StoreSettings, kept: RetentionBounds) -> Self {
        Self {
            settings: settings.clone(),
            phase: UpkeepPhase::Begin,
            pause: FIRST,
            kept,
            wanted: kept,
            swept: None,
            unsealed_ms: Millis::MIN,
            sealing_ms: Millis::MIN,
            unrolled: true,
            rolled: None,
            sealed_days: false,
            last_pages: LastPages::default(),
        }
    }

    /// Records that points were committed, with the earliest time, and possibly summaries.
    pub(crate) fn note(&mut self, oldest_ms: Millis, summaries: bool) {
        self.unsealed_ms = self.unsealed_ms.min(oldest_ms);
        self.unrolled |= summaries;
    }

    /// The wait before the next step.
    pub(crate) fn pause(&self) -> Duration {
        self.pause
    }

    /// Whether no round is in progress.
    pub(crate) fn rests(&self) -> bool {
        self.pause >= ROUND
    }

    /// Points before this time are no longer accepted.
    pub(crate) fn taken_from_ms(&self) -> Millis {
        self.wanted.raw_ms
    }

    /// Does one step, in one transaction; returns the series that were deleted.
    pub(crate) async fn step(
        &mut self,
        connection: &mut SqliteConnection,
        now_ms: Millis,
    ) -> Result<HashSet<SeriesId>, sqlx::Error> {
        // If the step fails, the next attempt comes with the next round.
        let phase = std::mem::replace(&mut self.phase, UpkeepPhase::Begin);
        self.pause = ROUND;
        transaction::begin(connection).await?;
        let done = self.perform(phase, connection, now_ms).await;
        let done = transaction::end(connection, done).await;
        if done.is_err() {
            // It is not known what was committed, so everything is examined again.
            self.note(Millis::MIN, true);
        }
        let (next, gone, kept) = done?;
        self.kept = kept;
        match next {
            Some(UpkeepPhase::Sweep { done: 0 }) if self.swept.is_some_and(|swept| swept.elapsed() < SWEEP) => {}
            Some(next) => {
                self.phase = next;
                self.pause = STEP;
            }
            None => self.swept = Some(Instant::now()),
        }
        Ok(gone)
    }

    /// Does the work of one step, and returns the next phase.
    async fn perform(
        &mut self,
        phase: UpkeepPhase,
        tx: &mut SqliteConnection,
        now_ms: Millis,
    ) -> Result<(Option<UpkeepPhase>, HashSet<SeriesId>, RetentionBounds), sqlx::Error> {
        let mut gone = HashSet::new();
        let next = match phase {
            UpkeepPhase::Begin => {
                self.wanted = self.want(tx, now_ms).await?;
                if is_over(Hour::of(self.unsealed_ms), now_ms) {
                    self.sealing_ms = Hour::of(now_ms.saturating_sub(SEAL_AFTER_MS)).start_ms();
                    // Points that arrive from now on may belong to series that were already examined.
                    self.unsealed_ms = Millis::MAX;
                    Some(self.seal_some(tx, Hour(0), 0, now_ms).await?)
                } else {
                    Some(UpkeepPhase::Roll { from: 0, again: false })
                }
            }
            UpkeepPhase::Seal { hour, from } => Some(self.seal_some(tx, hour, from, now_ms).await?),
            UpkeepPhase::Roll { from: 0, again: false } if !self.may_roll(now_ms) => Some(UpkeepPhase::Cut),
            UpkeepPhase::Roll { from, again } => Some(self.roll_some(tx, from, again, now_ms).await?),
            UpkeepPhase::Cut => Some(self.cut_some(tx).await?),
            UpkeepPhase::Shrink => Some(shrink_some(tx).await?),
            UpkeepPhase::Sweep { done } => {
                let swept = retention::sweep(tx, done, self.kept.hourly_ms).await?;
                gone = swept.gone;
                swept.done.map(|done| UpkeepPhase::Sweep { done })
            }
        };
        Ok((next, gone, kept(tx).await?))
    }

    /// The bounds that a round beginning now should reach.
    async fn want(&self, tx: &mut SqliteConnection, now_ms: Millis) -> Result<RetentionBounds, sqlx::Error> {
        let since = |kept: Duration| {
            let kept_ms = Millis::try_from(kept.as_millis()).unwrap_or(Millis::MAX);
            Hour::of(now_ms.saturating_sub(kept_ms))
        };
        let (raw, five) = (since(self.settings.raw), since(self.settings.five_minutes()));
        let hourly = since(self.settings.hours());
        let mut raw_ms = raw.start_ms();
        // Before the first point, the current time is not known.
        if now_ms > 0 && used_bytes(tx).await? > self.settings.size_max_bytes {
            let (chunk, day): (Option<i64>, Option<i64>) =
                sqlx::query_as("SELECT (SELECT MIN(key) FROM chunk), (SELECT MIN(key) FROM day)")
                    .fetch_one(&mut *tx)
                    .await?;
            let chunk = chunk.and_then(key::ChunkKey::from_sql).map(|key| key.hour.0 + PLACE_HOURS);
            let day = day.and_then(key::of_day).map(|(day, _)| (day + 1) * DAY_HOURS);
            let place = chunk.into_iter().chain(day).min().map(|hour| Hour(hour).start_ms());
            let last_ms = Hour::of(now_ms).start_ms() - Millis::from(LEAST_HOURS) * HOUR_MS;
            raw_ms = raw_ms.max(place.unwrap_or(TIME_FIRST_MS).min(last_ms));
        }
        let floor = |hour: Hour, hours: u32| Hour(hour.0 / hours * hours).start_ms();
        Ok(RetentionBounds {
            raw_ms: raw_ms.max(self.wanted.raw_ms),
            five_ms: floor(five, DAY_HOURS).max(self.kept.five_ms),
            hourly_ms: floor(hourly, SPAN_HOURS).max(self.kept.hourly_ms),
        })
    }

    /// Seals some series of the first hour with points, starting at one, if it is over.
    async fn seal_some(
        &mut self,
        tx: &mut SqliteConnection,
        begun: Hour,
        from: i64,
        now_ms: Millis,
    ) -> Result<UpkeepPhase, sqlx::Error> {
        let hour = head::first_hour(tx, begun).await?;
        let Some(hour) = hour.filter(|hour| is_over(*hour, now_ms)) else {
            self.unsealed_ms = self.unsealed_ms.min(self.sealing_ms);
            return Ok(UpkeepPhase::Roll { from: 0, again: false });
        };
        let from = if hour == begun { from } else { 0 };
        self.unrolled = true;
        Ok(match seal::seal(tx, hour, from, now_ms).await? {
            Some(from) => UpkeepPhase::Seal { hour, from },
            None => UpkeepPhase::Seal { hour: Hour(hour.0 + 1), from: 0 },
        })
    }

    /// Whether there may be days to roll up; if so, they are marked as examined.
    fn may_roll(&mut self, now_ms: Millis) -> bool {
        let as_of = (Hour::of(now_ms.saturating_sub(ROLL_AFTER_MS)).day(), self.wanted.raw_ms);
        let is_new = self.rolled.replace(as_of) != Some(as_of);
        std::mem::take(&mut self.unrolled) || is_new
    }

    /// Rolls up some days that are over, or that are about to lose their points.
    async fn roll_some(
        &mut self,
        tx: &mut SqliteConnection,
        from: i64,
        mut again: bool,
        now_ms: Millis,
    ) -> Result<UpkeepPhase, sqlx::Error> {
        let keys = firsts(tx, from).await?;
        let mut rolled = 0;
        for key in &keys {
            let (Some(series), hour) = key::of_series_first(*key) else { continue };
            let day_end_ms = Hour((hour / DAY_HOURS + 1) * DAY_HOURS).start_ms();
            let over = day_end_ms + ROLL_AFTER_MS <= now_ms;
            if over || Hour(hour).start_ms() < self.wanted.raw_ms {
                rolled += rollup::roll(tx, series, Hour(hour).day(), over, now_ms, &mut self.last_pages).await?;
                again = true;
                self.sealed_days |= over;
            }
            if rolled >= ROLLED {
                return Ok(UpkeepPhase::Roll { from: next_series(*key), again });
            }
        }
        Ok(match next_from(&keys) {
            Some(from) => UpkeepPhase::Roll { from, again },
            None if again => UpkeepPhase::Roll { from: 1, again: false },
            None => UpkeepPhase::Cut,
        })
    }

    /// Deletes some data that is too old.
    async fn cut_some(&mut self, tx: &mut SqliteConnection) -> Result<UpkeepPhase, sqlx::Error> {
        for (resolution, wanted_ms, kept_ms) in [
            ("raw", self.wanted.raw_ms, self.kept.raw_ms),
            ("five", self.wanted.five_ms, self.kept.five_ms),
            ("hourly", self.wanted.hourly_ms, self.kept.hourly_ms),
        ] {
            if wanted_ms > kept_ms {
                sqlx::query("INSERT OR REPLACE INTO kept_from (resolution, at_ms) VALUES ($1, $2)")
                    .bind(resolution)
                    .bind(wanted_ms)
                    .execute(&mut *tx)
                    .await?;
            }
        }
        let raw = Hour::of(self.wanted.raw_ms);
        let chunks = key::chunks_from(raw);
        // A day that is sealed as a whole goes with its last hour.
        let whole_days = key::days_from(raw.day());
        let fives = Hour::of(self.wanted.five_ms).day();
        let mut deleted = 0;
        for (statement, before) in [
            ("DELETE FROM chunk WHERE key IN (SELECT key FROM chunk WHERE key < $1 ORDER BY key LIMIT $2)", chunks),
            ("DELETE FROM day WHERE key IN (SELECT key FROM day WHERE key < $1 ORDER BY key LIMIT $2)", whole_days),
            (
                "DELETE FROM five WHERE key IN (SELECT key FROM five WHERE key < $1 ORDER BY key LIMIT $2)",
                key::days_from(fives),
            ),
        ] {
            let done = sqlx::query(statement).bind(before).bind(DELETED).execute(&mut *tx).await?;
            deleted = deleted.max(done.rows_affected());
        }
        let more = i64::try_from(deleted).is_ok_and(|deleted| deleted >= DELETED);
        Ok(match more {
            true => UpkeepPhase::Cut,
            false if std::mem::take(&mut self.sealed_days) && is_loose(tx).await? => UpkeepPhase::Shrink,
            false => UpkeepPhase::Sweep { done: 0 },
        })
    }
}

/// Gives some free pages back to the file system.
async fn shrink_some(tx: &mut SqliteConnection) -> Result<UpkeepPhase, sqlx::Error> {
    let free = free_pages(tx).await?;
    // Each page is a row, without columns.
    sqlx::query(SHRINK).fetch_all(&mut *tx).await?;
    let more = (1..free).contains(&free_pages(tx).await?);
    Ok(if more { UpkeepPhase::Shrink } else { UpkeepPhase::Sweep { done: 0 } })
}

/// Whether so much of the file is free that it should shrink. Otherwise the next day uses these pages.
async fn is_loose(tx: &mut SqliteConnection) -> Result<bool, sqlx::Error> {
    let pages: i64 = sqlx::query_scalar("PRAGMA page_count").fetch_one(&mut *tx).await?;
    Ok(free_pages(tx).await? > pages / LOOSE_SHARE)
}

async fn free_pages(tx: &mut SqliteConnection) -> Result<i64, sqlx::Error> {
    sqlx::query_scalar("PRAGMA freelist_count").fetch_one(tx).await
}

/// Whether an hour must be sealed.
fn is_over(hour: Hour, now_ms: Millis) -> bool {
    hour.start_ms() + HOUR_MS + SEAL_AFTER_MS <= now_ms
}

/// The first summary of each of some series.
async fn firsts(tx: &mut SqliteConnection, from: i64) -> Result<Vec<i64>, sqlx::Error> {
    sqlx::query_scalar(
        "WITH RECURSIVE first(key) AS (
             SELECT (SELECT key FROM summary WHERE key >= $1 ORDER BY key LIMIT 1)
             UNION ALL
             SELECT (SELECT summary.key FROM summary WHERE summary.key >= (first.key / $2 + 1) * $2
                     ORDER BY summary.key LIMIT 1)
             FROM first WHERE first.key IS NOT NULL
             LIMIT $3
         ) SELECT key FROM first WHERE key IS NOT NULL",
    )
    .bind(from)
    .bind(key::HOUR_STRIDE)
    .bind(LOOKED_AT)
    .fetch_all(tx)
    .await
}

/// The key at which to continue, if there may be more.
fn next_from(keys: &[i64]) -> Option<i64> {
    let full = i64::try_from(keys.len()).is_ok_and(|count| count >= LOOKED_AT);
    keys.last().filter(|_| full).map(|last| next_series(*last))
}

/// The first possible key of the next series.
fn next_series(key: i64) -> i64 {
    (key / key::HOUR_STRIDE + 1).saturating_mul(key::HOUR_STRIDE)
}

/// The used size of the file.
async fn used_bytes(tx: &mut SqliteConnection) -> Result<u64, sqlx::Error> {
    let used: i64 = sqlx::query_scalar(
        "SELECT (pages.page_count - free.freelist_count) * size.page_size
         FROM pragma_page_count AS pages, pragma_freelist_count AS free, pragma_page_size AS size",
    )
    .fetch_one(tx)
    .await?;
    Ok(used.unsigned_abs())
}
