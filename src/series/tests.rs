//! Tests of the store as a whole, on real files.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::*;

mod damage;
mod kept;
mod many;
mod model;

const MINUTE_MS: Millis = 60_000;

struct Scratch {
    folder: tempfile::TempDir,
    now_ms: Millis,
}

impl Scratch {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap(), now_ms: clock::now_ms() }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("series.db")
    }

    async fn open(&self) -> SeriesStore {
        SeriesStore::open(&self.path()).await.unwrap()
    }

    /// A point some minutes ago.
    fn point(&self, host: &str, minutes: i64, value: f64) -> Point {
        Point::new("m", &[("host", host)], self.now_ms - minutes * MINUTE_MS).field("f", value)
    }

    fn day(&self) -> Option<(Millis, Millis)> {
        Some((self.now_ms - 24 * 60 * MINUTE_MS, self.now_ms + MINUTE_MS))
    }

    fn files(&self) -> Vec<String> {
        let mut names: Vec<_> = std::fs::read_dir(self.folder.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }
}

async fn values(store: &SeriesStore, selector: &str, range: Option<(Millis, Millis)>) -> Vec<f64> {
    let series = store.query(selector, range, 1_000).await.unwrap();
    series.iter().flat_map(|series| series.points.iter().map(|point| point.1)).collect()
}

#[tokio::test]
async fn points_are_there_after_opening_again_and_only_once() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    store.append(&[scratch.point("a", 20, 1.0), scratch.point("a", 10, 3.0)]).await.unwrap();
    store.stop().await;

    let store = scratch.open().await;
    // One that is late, one that is there already, and one that contradicts what is there.
    let again = [scratch.point("a", 15, 2.0), scratch.point("a", 20, 1.0), scratch.point("a", 10, 9.0)];
    store.append(&again).await.unwrap();
    store.append(&again).await.unwrap();
    assert_eq!(values(&store, "m_f", scratch.day()).await, [1.0, 2.0, 9.0], "what was written last counts");
    store.append(&[]).await.unwrap();
    store.stop().await;
    assert_eq!(scratch.files(), ["series.db"], "the write-ahead log is in the file");
}

#[tokio::test]
async fn untimely_points_are_left_out_and_the_others_kept() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let points = [scratch.point("a", -3 * 24 * 60, 1.0), scratch.point("a", 60 * 24 * 365 * 20, 2.0)];
    store.append(&points).await.unwrap();
    store.append(&[points[0].clone(), scratch.point("a", 1, 3.0)]).await.unwrap();
    assert_eq!(values(&store, "m_f", Some((Millis::MIN, Millis::MAX))).await, [3.0]);
}

#[tokio::test]
async fn selectors_choose_series() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let at_ms = scratch.now_ms;
    let point = |name, tags: &[(&str, &str)], value| Point::new(name, tags, at_ms).field("x", value).field("y", -value);
    store
        .append(&[
            point("cpu", &[("host", "a"), ("unit", "u/1")], 1.0),
            point("cpu", &[("host", "b")], 2.0),
            point("mem", &[("host", "a")], 3.0),
            point("with space", &[("host", "c")], 4.0),
        ])
        .await
        .unwrap();
    for (selector, chosen) in [
        ("cpu_x", &[1.0, 2.0][..]),
        ("cpu_x{host='a'}", &[1.0]),
        ("cpu_x{host!='a'}", &[2.0]),
        ("cpu_x{unit=''}", &[2.0]),
        ("cpu_x{host=~'a|b',unit!~'u/.'}", &[2.0]),
        ("{__name__=~'.+_x'}", &[1.0, 2.0, 3.0, 4.0]),
        ("{__name__=~'.+_x',host='a'}", &[1.0, 3.0]),
        ("{__name__='with space_y'}", &[-4.0]),
        ("{host='a'}", &[1.0, -1.0, 3.0, -3.0]),
        ("cpu_z", &[]),
        ("cpu_x{host='z'}", &[]),
    ] {
        assert_eq!(values(&store, selector, None).await, chosen, "{selector}, last values");
        assert_eq!(values(&store, selector, scratch.day()).await, chosen, "{selector}, a day");
    }
    let series = store.query("cpu_x{unit!=''}", None, 1).await.unwrap();
    assert_eq!(series[0].name, "cpu_x");
    assert_eq!(series[0].labels, [("host".into(), "a".into()), ("unit".into(), "u/1".into())].into());
    assert_eq!(series[0].points, [(at_ms, 1.0)]);
    let error = store.query("cpu_x{", None, 1).await.unwrap_err();
    assert_eq!(error.to_string(), "selector: at character 7: expected the name of a label");
}

#[tokio::test]
async fn last_values_are_fresh_ones() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let points = [("a", 2, 1.0), ("a", 1, 2.0), ("b", 6, 3.0), ("c", -10, 4.0)];
    store.append(&points.map(|(host, minutes, value)| scratch.point(host, minutes, value))).await.unwrap();
    assert_eq!(values(&store, "m_f", None).await, [2.0, 4.0], "b has none, and c's clock is ahead");
}

#[tokio::test]
async fn value_of_a_label_has_its_share_of_series_and_no_more() {
    let scratch = Scratch::new();
    let share = Some(SeriesShare { label: "host".to_owned(), series_max: 10 });
    let settings = StoreSettings { share, ..StoreSettings::default() };
    let store = SeriesStore::open_with(&scratch.path(), &settings).await.unwrap();
    let point = |host: &str, number: usize, value: f64| {
        let number = number.to_string();
        Point::new("m", &[("host", host), ("n", &number)], scratch.now_ms).field("f", value)
    };
    let many = |host: &str, numbers: std::ops::Range<usize>| {
        numbers.map(|number| point(host, number, 1.0)).collect::<Vec<_>>()
    };
    let notice = |value: &str, series| ShareNotice { value: value.to_owned(), series, series_max: 10 };
    store.append(&many("a", 0..7)).await.unwrap();
    assert_eq!(store.take_share_notices(), []);
    store.append(&many("a", 0..9)).await.unwrap();
    assert_eq!(store.take_share_notices(), [notice("a", 8)]);
    store.append(&many("a", 0..30)).await.unwrap();
    assert_eq!((store.take_share_notices(), store.series_refused()), (vec![notice("a", 10)], 20));
    // Others have their own share, what has no such label has none, and what is there goes on.
    store.append(&[many("b", 0..3), vec![point("a", 9, 2.0), point("a", 31, 2.0)]].concat()).await.unwrap();
    store
        .append(
            &(0..20)
                .map(|number| Point::new("own", &[("n", &number.to_string())], scratch.now_ms).field("f", 1.0))
                .collect::<Vec<_>>(),
        )
        .await
        .unwrap();
    assert_eq!(values(&store, "m_f{host='a'}", None).await.len(), 10);
    assert_eq!(values(&store, "m_f{host='a',n='9'}", None).await, [2.0]);
    assert_eq!((values(&store, "m_f{host='b'}", None).await.len(), values(&store, "own_f", None).await.len()), (3, 20));
    // It is known after a start.
    store.stop().await;
    let store = SeriesStore::open_with(&scratch.path(), &settings).await.unwrap();
    store.append(&many("a", 40..50)).await.unwrap();
    assert_eq!((values(&store, "m_f{host='a'}", None).await.len(), store.series_refused()), (10, 10));
    assert_eq!(store.take_share_notices(), [notice("a", 10)]);
}

#[tokio::test]
async fn answers_are_bounded() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let points: Vec<_> = (0..1440).map(|minute| scratch.point("a", minute, f64::from(minute == 700))).collect();
    store.append(&points).await.unwrap();
    for points_max in [0, 1, 10, 100, 1_000, 1_440, usize::MAX] {
        let series = store.query("m_f", scratch.day(), points_max).await.unwrap();
        let points = &series[0].points;
        assert!(points.len() <= points_max.max(downsample::THIN_MIN), "{points_max}: {}", points.len());
        assert!(points.iter().any(|point| point.1 == 1.0), "{points_max}: the peak is hidden");
        assert_eq!(points.len() == 1_440, points_max >= 1_440);
    }
    let empty = store.query("m_f", Some((0, 1)), 10).await.unwrap();
    assert_eq!(empty, [], "nothing was measured in 1970");
    let one_minute = Some((scratch.now_ms - 7 * MINUTE_MS, scratch.now_ms - 6 * MINUTE_MS));
    assert_eq!(store.query("m_f", one_minute, 10).await.unwrap()[0].points.len(), 2, "both ends are included");
    assert!(matches!(store.query("m_f", Some((2, 1)), 10).await, Err(SeriesError::Range { .. })));

    let many: Vec<_> = (0..=1_000).map(|host| scratch.point(&format!("h{host}"), 0, 1.0)).collect();
    store.append(&many).await.unwrap();
    assert!(matches!(store.query("m_f", None, 10).await, Err(SeriesError::TooMany { series_max: 1_000 })));
    assert_eq!(values(&store, "m_f{host=~'h.*0'}", None).await.len(), 101);
}

#[tokio::test]
async fn many_append_at_once() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let appends = (0..200).map(|host| {
        let (store, point) = (store.clone(), scratch.point(&format!("h{}", host % 50), host / 50, 1.0));
        tokio::spawn(async move { store.append(&[point]).await })
    });
    for append in appends.collect::<Vec<_>>() {
        append.await.unwrap().unwrap();
    }
    assert_eq!(values(&store, "m_f", scratch.day()).await.len(), 200);
    assert_eq!(store.query("m_f", scratch.day(), 10).await.unwrap().len(), 50);
}

#[tokio::test]
async fn a_stopped_store_refuses_and_a_dropped_one_commits() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let other = store.clone();
    store.stop().await;
    assert!(matches!(other.append(&[scratch.point("a", 1, 1.0)]).await, Err(SeriesError::Stopped)));
    other.stop().await;

    let store = scratch.open().await;
    let point = [scratch.point("a", 1, 1.0)];
    // In the queue, with nobody waiting for the answer.
    assert!(futures_util::poll!(std::pin::pin!(store.append(&point))).is_pending());
    drop(store);
    let store = scratch.open().await;
    let waiting = Instant::now();
    while values(&store, "m_f", scratch.day()).await.is_empty() {
        assert!(waiting.elapsed() < Duration::from_secs(60), "what was appended is not committed");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn a_commit_that_fails_is_told_to_all_and_can_be_repeated() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let mut other = file::open(&scratch.path(), 0).await.unwrap().writer;
    sqlx::query("ALTER TABLE head RENAME TO gone").execute(&mut other).await.unwrap();
    let points = ["a", "b", "c"].map(|host| [scratch.point(host, 1, 1.0)]);
    let append = || futures_util::future::join_all(points.iter().map(|points| store.append(points)));
    for answer in append().await {
        let error = answer.unwrap_err();
        assert!(error.to_string().contains("no such table"), "{error}");
    }
    sqlx::query("ALTER TABLE gone RENAME TO head").execute(&mut other).await.unwrap();
    for answer in append().await {
        answer.unwrap();
    }
    assert_eq!(values(&store, "m_f", scratch.day()).await, [1.0; 3]);
}

#[tokio::test]
async fn every_commit_is_synced() {
    let scratch = Scratch::new();
    let mut opened = file::open(&scratch.path(), 0).await.unwrap();
    let mode: i64 = sqlx::query_scalar("PRAGMA synchronous").fetch_one(&mut opened.writer).await.unwrap();
    assert_eq!(mode, 2, "FULL");
    let mode: String = sqlx::query_scalar("PRAGMA journal_mode").fetch_one(&mut opened.writer).await.unwrap();
    assert_eq!(mode, "wal");
    // What the caches come to is memory that a console grows by while they fill.
    for (connection, wanted) in
        [(&mut opened.writer, -4_096_i64), (&mut *opened.readers.acquire().await.unwrap(), -1_024)]
    {
        let cache: i64 = sqlx::query_scalar("PRAGMA cache_size").fetch_one(connection).await.unwrap();
        assert_eq!(cache, wanted, "kilobytes");
    }
    let write = sqlx::query("DELETE FROM head").execute(&opened.readers).await;
    assert!(write.is_err(), "readers only read");
}

/// Prints what a build without optimisation makes of bulk data; its limits are those of patience.
#[tokio::test]
async fn bulk_write_and_query() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let (hosts, samples) = (100, 100);
    let batches: Vec<Vec<Point>> = (0..hosts)
        .map(|host| {
            let host = format!("host-{host}");
            (0..samples).map(|i| scratch.point(&host, i, f64::from(i as i32)).field("g", 0.5)).collect()
        })
        .collect();
    let start = Instant::now();
    let appends: Vec<_> = batches
        .into_iter()
        .map(|batch| {
            let store = store.clone();
            tokio::spawn(async move { store.append(&batch).await })
        })
        .collect();
    for append in appends {
        append.await.unwrap().unwrap();
    }
    let seconds = start.elapsed().as_secs_f64();
    let points = 2.0 * f64::from(hosts) * samples as f64;
    let start = Instant::now();
    let answer = store.query("m_f", scratch.day(), 200).await.unwrap();
    let query_ms = start.elapsed().as_secs_f64() * 1e3;
    assert_eq!(answer.iter().map(|series| series.points.len()).sum::<usize>(), 10_000);
    store.stop().await;
    let bytes = std::fs::metadata(scratch.path()).unwrap().len();
    println!(
        "{points} points in {seconds:.3} s: {:.0} points/s, {:.1} bytes a point; 10,000 of them read in {query_ms:.1} ms",
        points / seconds,
        bytes as f64 / points
    );
}
