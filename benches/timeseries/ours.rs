//! The embedded store.

use std::{
    cell::RefCell,
    collections::HashMap,
    ops::RangeInclusive,
    path::Path,
    time::{Duration, Instant},
};

use muster_promql::{Labels, Matchers, NAME, ParsedQuery, QueryLimits, QueryRange, Source, SourceError, TimedValue};
use muster_series::{
    ChosenSeries, GATHER, GATHERED_MAX, ReadAhead, Resolution, SeriesColumn, SeriesId, SeriesSelector, SeriesStore,
    StoreSettings,
};
use muster_topics::metric::{self, Point};
use tokio::sync::mpsc;

use crate::{
    data::{self, BASE_MS, HOUR_MS, Piece, Plan},
    peers::{resident_mb, size_bytes},
    spread::Spread,
    table::{Row, Subject, Table},
    usage,
};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

const DAY_MS: i64 = 24 * HOUR_MS;
/// Samples of each series that are written together before the load begins: so few that none are sealed.
const FEW: i64 = 30;

/// Measures everything.
pub(crate) fn measure(plan: &Plan, table: &mut Table) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        bulk(plan, table).await?;
        slow(plan, table).await?;
        questions(table).await
    })
}

/// The id of this process.
fn this() -> i32 {
    std::process::id().cast_signed()
}

/// Processor time of this process so far.
fn busy() -> Result<Duration> {
    Ok(usage::ticks(this())?.own)
}

async fn open(folder: &Path) -> Result<SeriesStore> {
    // Old data must not be deleted.
    let settings = StoreSettings { raw: Duration::from_secs(3650 * 24 * 3600), ..StoreSettings::default() };
    Ok(SeriesStore::open_with(&folder.join("series.db"), &settings).await?)
}

fn columns(piece: Piece) -> Vec<SeriesColumn> {
    piece.into_iter().map(|(name, labels, samples)| SeriesColumn { name, labels, samples }).collect()
}

async fn bulk(plan: &Plan, table: &mut Table) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let store = open(folder.path()).await?;
    let mut took = Duration::ZERO;
    for [one, other] in data::hours(plan) {
        let (one, other) = (columns(one), columns(other));
        let start = Instant::now();
        let (one, other) = tokio::join!(store.append_columns(one), store.append_columns(other));
        one.and(other)?;
        took += start.elapsed();
    }
    table.put(Subject::Muster, Row::Bulk, plan.points() as f64 / took.as_secs_f64());
    table.put(Subject::Muster, Row::Memory, resident_mb(this())?);
    let raw = used(folder.path(), &store).await?;
    // A point after the last day, so that the day is over and is rolled up.
    let later = Point::new("later", &[], BASE_MS + plan.hours * HOUR_MS + HOUR_MS).field("v", 0.0);
    store.append(&[later]).await?;
    let start = Instant::now();
    store.settle().await;
    table.put(Subject::Muster, Row::Settle, start.elapsed().as_secs_f64());
    let ids: Vec<_> = store
        .select(SeriesSelector::parse("{realm='shop'}")?, plan.series)
        .await?
        .iter()
        .map(|series| series.id)
        .collect();
    let mut count = 0;
    for ids in ids.chunks(20) {
        count += store.points(ids, (0, i64::MAX)).await?.iter().map(Vec::len).sum::<usize>();
    }
    assert_eq!(count, plan.points(), "all that went in comes out");
    store.stop().await;
    table.put(Subject::Muster, Row::Bytes, size_bytes(folder.path())? as f64 / plan.points() as f64);
    table.put(Subject::Muster, Row::Raw, raw / plan.points() as f64);
    Ok(())
}

/// The size of the file before roll-ups: closing the store merges the log into it.
async fn used(folder: &Path, store: &SeriesStore) -> Result<f64> {
    let copy = tempfile::tempdir()?;
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_name() != "series.db-shm" {
            std::fs::copy(entry.path(), copy.path().join(entry.file_name()))?;
        }
    }
    // Nothing is written meanwhile: the queue is empty, and upkeep begins later.
    let _ = store;
    open(copy.path()).await?.stop().await;
    Ok(size_bytes(copy.path())? as f64)
}

/// Like the console's recorder: batches that arrive within a moment are unpacked, get their host, and are committed
/// together.
async fn slow(plan: &Plan, table: &mut Table) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let store = open(folder.path()).await?;
    for piece in 0..data::BEFORE_MS / data::STEP_MS / FEW {
        let from_ms = BASE_MS + piece * FEW * data::STEP_MS;
        for hosts in (0..data::HOSTS).collect::<Vec<_>>().chunks(50) {
            let points: Vec<Point> = hosts.iter().flat_map(|host| data::of_host(*host, from_ms, FEW)).collect();
            store.append(&points).await?;
        }
    }
    let (sender, mut queue) = mpsc::channel(1_024);
    let sent = data::sent(plan.slow);
    let (used, begin) = (busy()?, Instant::now());
    let hosts = tokio::spawn(async move {
        for (number, sent) in (0..).zip(sent) {
            tokio::time::sleep_until((begin + data::BATCH_EVERY * number).into()).await;
            if sender.send(sent).await.is_err() {
                return;
            }
        }
    });
    let mut came = Vec::new();
    while queue.recv_many(&mut came, GATHERED_MAX).await > 0 {
        if came.len() + queue.len() < GATHERED_MAX {
            tokio::time::sleep(GATHER).await;
        }
        while came.len() < GATHERED_MAX
            && let Ok(sent) = queue.try_recv()
        {
            came.push(sent);
        }
        let mut points = Vec::new();
        for sent in came.drain(..) {
            let (_, mut of_host) = metric::decode(&sent.packed)?;
            for point in &mut of_host {
                point.tags.push(("host".to_owned(), sent.host.clone()));
                point.tags.sort();
            }
            points.extend(of_host);
        }
        store.append(&points).await?;
    }
    hosts.await?;
    let took = begin.elapsed();
    let taking = (busy()? - used).as_secs_f64() / took.as_secs_f64();
    table.put(Subject::Muster, Row::SlowMemory, resident_mb(this())?);
    let found = store.select(SeriesSelector::parse("{hostname=~'shop-.*'}")?, data::HOSTS * data::OF_HOST).await?;
    let mut points = 0;
    for series in found.chunks(100) {
        let ids: Vec<_> = series.iter().map(|series| series.id).collect();
        points += store.points(&ids, (0, i64::MAX)).await?.iter().map(Vec::len).sum::<usize>();
    }
    assert_eq!(points, data::slow_points(plan.slow), "all that was sent was stored");
    let mut times = Vec::new();
    for i in 0..500 {
        let start = Instant::now();
        let points = store.points(&[found[i * 37 % found.len()].id], (BASE_MS, BASE_MS + HOUR_MS)).await?;
        times.push(start.elapsed());
        assert!(points[0].len() >= 180);
    }
    table.put(Subject::Muster, Row::Fresh, Spread::of(times).median().as_secs_f64() * 1e6);

    // When an hour is over its points are sealed: a share of that work belongs to each second.
    store.append(&[Point::new("later", &[], BASE_MS + 2 * HOUR_MS).field("v", 0.0)]).await?;
    let used = busy()?;
    store.settle().await;
    let per_second = (data::HOSTS * data::OF_HOST) as f64 / (data::STEP_MS as f64 / 1e3);
    let sealing = (busy()? - used).as_secs_f64() / (points as f64 / per_second);
    table.put(Subject::Muster, Row::Slow, (taking + sealing) * 100.0);
    table.put(Subject::Muster, Row::SlowSealing, sealing * 100.0);
    store.stop().await;
    Ok(())
}

async fn questions(table: &mut Table) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let store = open(folder.path()).await?;
    store.append_columns(columns(data::asked())).await?;
    // A point on the next day, so that the day is over.
    let later = Point::new("later", &[], BASE_MS + DAY_MS + HOUR_MS).field("v", 0.0);
    store.append(&[later]).await?;
    store.settle().await;
    let all = || SeriesSelector::parse("asked_busy_percent");
    let chosen = store.select(all()?, data::ASKED).await?;
    let mut times = Vec::new();
    for i in 0..500 {
        let (id, hour) = (chosen[i * 7 % chosen.len()].id, i as i64 * 5 % 24);
        let range = (BASE_MS + hour * HOUR_MS, BASE_MS + (hour + 1) * HOUR_MS - 1);
        let start = Instant::now();
        let points = store.points(&[id], range).await?;
        times.push(start.elapsed());
        assert_eq!(points[0].len(), 60);
    }
    table.put(Subject::Muster, Row::Hour, Spread::of(times).median().as_secs_f64() * 1e6);

    let (mut days, mut averages, mut fives) = (Vec::new(), Vec::new(), Vec::new());
    let range = (BASE_MS, BASE_MS + DAY_MS - 1);
    for _ in 0..21 {
        let start = Instant::now();
        let chosen = store.select(all()?, data::ASKED).await?;
        let ids: Vec<_> = chosen.iter().map(|series| series.id).collect();
        let points = store.points(&ids, range).await?;
        days.push(start.elapsed());
        assert_eq!(points.iter().map(Vec::len).sum::<usize>(), data::ASKED * 1_440);
        // A column of a host has a place for each minute, as that of a query has for each step.
        let mut hosts: HashMap<&str, Vec<(f64, u32)>> = HashMap::new();
        for (series, points) in chosen.iter().zip(&points) {
            let host = hosts.entry(series.labels["host"].as_str()).or_insert_with(|| vec![(0.0, 0); 1_440]);
            for (at_ms, value) in points {
                let (sum, count) = &mut host[((at_ms - BASE_MS) / 60_000) as usize];
                *sum += value;
                *count += 1;
            }
        }
        let averaged: f64 = hosts.values().flatten().map(|(sum, count)| sum / f64::from(*count)).sum();
        averages.push(start.elapsed());
        assert!(averaged > 0.0);
        let start = Instant::now();
        let buckets = store.buckets(&ids, range, Resolution::FiveMinutes).await?;
        let averaged: f64 = buckets.iter().flatten().map(|bucket| bucket.summary.average()).sum();
        fives.push(start.elapsed());
        assert!(averaged > 0.0 && buckets.iter().all(|buckets| buckets.len() == 288));
    }
    let mut queries = Vec::new();
    for _ in 0..21 {
        let source = StoreSource::new(store.clone());
        let start = Instant::now();
        let answer = tokio::task::spawn_blocking(move || {
            let range = QueryRange { start_ms: BASE_MS, end_ms: BASE_MS + DAY_MS - 1, step_ms: 60_000 };
            let query = ParsedQuery::parse("avg by (host) (asked_busy_percent)")?;
            query.range(&source, range, &QueryLimits::default())
        });
        let answer = answer.await??;
        queries.push(start.elapsed());
        assert!(!answer.is_empty() && answer.iter().all(|(_, samples)| samples.len() == 1_440));
    }
    for (row, times) in [(Row::Day, days), (Row::Average, averages), (Row::Query, queries), (Row::Fives, fives)] {
        table.put(Subject::Muster, row, Spread::of(times).median().as_secs_f64() * 1e3);
    }
    store.stop().await;
    Ok(())
}

/// The store as the console gives it to the query language.
struct StoreSource {
    store: SeriesStore,
    runtime: tokio::runtime::Handle,
    chosen: RefCell<Vec<SeriesId>>,
    ahead: RefCell<ReadAhead>,
}

impl StoreSource {
    fn new(store: SeriesStore) -> Self {
        let runtime = tokio::runtime::Handle::current();
        Self { store, runtime, chosen: RefCell::default(), ahead: RefCell::default() }
    }

    fn id(&self, series: u64) -> SeriesId {
        self.chosen.borrow()[series as usize]
    }
}

impl Source for StoreSource {
    fn select(
        &self,
        matchers: &Matchers,
        _: RangeInclusive<i64>,
        series_max: usize,
    ) -> std::result::Result<Vec<(Labels, u64)>, SourceError> {
        let selector = SeriesSelector::of(matchers.iter())?;
        let found = self.runtime.block_on(self.store.select(selector, series_max))?;
        let mut chosen = self.chosen.borrow_mut();
        let mut number = |series: &ChosenSeries| {
            chosen.push(series.id);
            let labels = series.labels.iter().map(|(name, value)| (name.as_str(), value.as_str()));
            (labels.chain([(NAME, series.name.as_str())]).collect(), chosen.len() as u64 - 1)
        };
        Ok(found.iter().map(&mut number).collect())
    }

    fn announce(&self, series: &[u64]) {
        self.ahead.replace(ReadAhead::new(series.iter().map(|series| self.id(*series)).collect()));
    }

    fn read(
        &self,
        series: u64,
        times: RangeInclusive<i64>,
        _: usize,
        into: &mut Vec<TimedValue>,
    ) -> std::result::Result<(), SourceError> {
        let mut ahead = self.ahead.borrow_mut();
        let points = ahead.points(&self.store, self.id(series), (*times.start(), *times.end()));
        into.extend(self.runtime.block_on(points)?);
        Ok(())
    }
}
