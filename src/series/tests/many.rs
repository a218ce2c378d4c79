//! Tests of questions to many series at once.

use super::*;
use crate::{blobs::BlobTable, key};

/// 2024-01-01.
const BASE_MS: Millis = 1_704_067_200_000;
const HOUR_MS: Millis = 60 * MINUTE_MS;
const DAY_MS: Millis = 24 * HOUR_MS;
const SERIES: i64 = 150;

fn samples(series: i64, from_ms: Millis, to_ms: Millis) -> Vec<(Millis, f64)> {
    let value = |at_ms: Millis| ((at_ms / MINUTE_MS + series) * 7_919 % (100 + series)) as f64 / 100.0;
    (from_ms..to_ms).step_by(MINUTE_MS as usize).map(|at_ms| (at_ms, value(at_ms))).collect()
}

fn columns(from_ms: Millis, to_ms: Millis) -> Vec<SeriesColumn> {
    let column = |series: i64| SeriesColumn {
        name: "m_f".to_owned(),
        labels: vec![("host".to_owned(), format!("h{series:03}"))],
        samples: samples(series, from_ms, to_ms),
    };
    (0..SERIES).map(column).collect()
}

/// Two days as blobs, hours of a third as chunks, and points that are not sealed.
async fn store(scratch: &Scratch) -> (SeriesStore, Vec<SeriesId>) {
    let settings = StoreSettings { raw: Duration::from_secs(3_650 * 24 * 3_600), ..StoreSettings::default() };
    let store = SeriesStore::open_with(&scratch.path(), &settings).await.unwrap();
    store.append_columns(columns(BASE_MS, BASE_MS + 2 * DAY_MS + 5 * HOUR_MS)).await.unwrap();
    store.settle().await;
    let of = |column: &SeriesColumn| {
        let host = column.labels[0].1.clone();
        let point =
            move |(at_ms, value): &(Millis, f64)| Point::new("m", &[("host", &host)], *at_ms).field("f", *value);
        column.samples.iter().map(point).collect::<Vec<_>>()
    };
    // So few at a time that none are sealed.
    for part in [0, 1] {
        let from_ms = BASE_MS + 2 * DAY_MS + 5 * HOUR_MS + part * 20 * MINUTE_MS;
        let points: Vec<_> = columns(from_ms, from_ms + 20 * MINUTE_MS).iter().flat_map(of).collect();
        store.append(&points).await.unwrap();
    }
    let series = store.select(SeriesSelector::parse("m_f").unwrap(), 1_000).await.unwrap();
    (store, series.into_iter().map(|series| series.id).collect())
}

fn end_ms() -> Millis {
    BASE_MS + 2 * DAY_MS + 5 * HOUR_MS + 40 * MINUTE_MS
}

#[tokio::test]
async fn many_series_are_read_as_each_alone() {
    let scratch = Scratch::new();
    let (store, ids) = store(&scratch).await;
    let mut other = file::open(&scratch.path(), 0).await.unwrap().writer;
    for table in ["day", "chunk", "head"] {
        let count = sqlx::query_scalar(sqlx::AssertSqlSafe(format!("SELECT COUNT(*) FROM {table}")));
        let count: i64 = count.fetch_one(&mut other).await.unwrap();
        assert!(count >= SERIES, "{count} rows in {table}");
    }
    let backwards: Vec<SeriesId> = ids.iter().rev().copied().collect();
    for (from_ms, to_ms) in [
        (BASE_MS, end_ms()),
        (BASE_MS, BASE_MS + 90 * MINUTE_MS),
        (BASE_MS + 90 * MINUTE_MS, BASE_MS + 100 * MINUTE_MS),
        (BASE_MS + DAY_MS - 7 * MINUTE_MS, end_ms() - 3 * MINUTE_MS),
    ] {
        let found = store.points(&backwards, (from_ms, to_ms - 1)).await.unwrap();
        for (place, points) in found.iter().rev().enumerate() {
            assert!(*points == samples(place as i64, from_ms, to_ms), "{place} from {from_ms} to {to_ms}");
        }
        for resolution in [Resolution::FiveMinutes, Resolution::Hour] {
            let together = store.buckets(&backwards, (from_ms, to_ms - 1), resolution).await.unwrap();
            for (id, buckets) in backwards.iter().zip(together).step_by(17) {
                let alone = store.buckets(&[*id], (from_ms, to_ms - 1), resolution).await.unwrap().remove(0);
                assert!(buckets == alone && !alone.is_empty(), "{resolution:?} from {from_ms} to {to_ms}");
                let overlaps = |one: &ViewBucket| one.start_ms < to_ms && one.start_ms + one.width_ms > from_ms;
                assert!(alone.iter().all(overlaps), "{resolution:?} from {from_ms} to {to_ms}");
            }
        }
    }
    let last = store.query("m_f", None, 1).await.unwrap();
    assert_eq!(last, [], "the last points are old");
    store.stop().await;
}

#[tokio::test]
async fn a_damaged_day_costs_a_page_of_one_of_many_series() {
    let scratch = Scratch::new();
    let (store, ids) = store(&scratch).await;
    let mut other = file::open(&scratch.path(), 0).await.unwrap().writer;
    let last = key::day_last(key::day_key(ids[70], key::Hour::of(BASE_MS).day()));
    damage::flip(&mut other, "day", &format!("WHERE key <= {last} ORDER BY key DESC LIMIT 1")).await;
    let found = store.points(&ids, (BASE_MS, BASE_MS + DAY_MS - 1)).await.unwrap();
    for (place, points) in found.iter().enumerate() {
        let wanted = samples(place as i64, BASE_MS, BASE_MS + DAY_MS);
        if place == 70 {
            // A point a minute: the day is one page.
            assert_eq!((points.len(), wanted.len()), (0, 1_440));
        } else {
            assert!(*points == wanted, "{place}: {}", points.len());
        }
    }
    store.settle().await;
    let damaged = store.damaged().await.unwrap();
    assert_eq!((damaged.len(), damaged[0].place.as_str()), (1, BlobTable::Day.name()));
    store.stop().await;
}
