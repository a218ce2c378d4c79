//! Tests of retention.

use std::collections::BTreeMap;

use sqlx::Connection;

use super::*;

/// 2024-01-01.
const BASE_MS: Millis = 1_704_067_200_000;
const HOUR_MS: Millis = 60 * MINUTE_MS;
const DAY_MS: Millis = 24 * HOUR_MS;
const ALL: (Millis, Millis) = (BASE_MS, BASE_MS + 3_000 * DAY_MS);

fn settings() -> StoreSettings {
    let days = |days: u64| Duration::from_secs(days * 24 * 3600);
    StoreSettings { raw: days(2), five_minutes: days(5), hours: days(40), size_max_bytes: u64::MAX, share: None }
}

fn for_ever() -> StoreSettings {
    let long = Duration::from_secs(100 * 365 * 24 * 3600);
    StoreSettings { raw: long, five_minutes: long, hours: long, size_max_bytes: u64::MAX, share: None }
}

/// Points every five minutes.
fn column(host: &str, from_ms: Millis, to_ms: Millis) -> SeriesColumn {
    let times = (from_ms..to_ms).step_by(5 * 60_000);
    SeriesColumn {
        name: "m_f".to_owned(),
        labels: vec![("host".to_owned(), host.to_owned())],
        samples: times.map(|at_ms| (at_ms, (at_ms / 300_000 % 100) as f64)).collect(),
    }
}

async fn count(path: &Path, table: &str) -> i64 {
    let mut other = file::open(path, 0).await.unwrap().writer;
    let count = sqlx::query_scalar(sqlx::AssertSqlSafe(format!("SELECT COUNT(*) FROM {table}")));
    let count = count.fetch_one(&mut other).await.unwrap();
    other.close().await.unwrap();
    count
}

#[tokio::test]
async fn each_resolution_is_kept_as_long_as_it_should() {
    let scratch = Scratch::new();
    let store = SeriesStore::open_with(&scratch.path(), &settings()).await.unwrap();
    store.append_columns(vec![column("long", BASE_MS, BASE_MS + 20 * DAY_MS)]).await.unwrap();
    store.append_columns(vec![column("gone", BASE_MS, BASE_MS + DAY_MS)]).await.unwrap();
    store.settle().await;
    let series = store.select(SeriesSelector::parse("m_f").unwrap(), 10).await.unwrap();
    let (gone, long) = (series[0].id, series[1].id);
    let end_ms = BASE_MS + 20 * DAY_MS;

    let points = store.points(&[gone, long], ALL).await.unwrap();
    assert_eq!(points[0], []);
    // Whole hours, from the newest point backwards.
    let first_ms = end_ms - 2 * DAY_MS - HOUR_MS;
    assert_eq!(points[1].first().unwrap().0, first_ms);
    assert_eq!(points[1].len() as i64, (end_ms - first_ms) / 300_000);
    let fives = store.buckets(&[gone, long], ALL, Resolution::FiveMinutes).await.unwrap();
    assert_eq!(fives[0].len(), 24, "by the hour");
    let coarse: Vec<_> = fives[1].iter().filter(|bucket| bucket.width_ms == HOUR_MS).collect();
    assert_eq!(coarse.len(), 14 * 24, "whole days");
    assert_eq!(fives[1].len() - coarse.len(), 6 * 288);
    assert!(fives[1].is_sorted_by(|one, next| one.start_ms + one.width_ms == next.start_ms), "no gaps");
    let total = |buckets: &[ViewBucket]| buckets.iter().map(|bucket| bucket.summary.count).sum::<u64>();
    assert_eq!(total(&fives[1]), 20 * 288);
    let hours = store.buckets(&[gone, long], ALL, Resolution::Hour).await.unwrap();
    assert_eq!((total(&hours[0]), total(&hours[1]), hours[1].len()), (288, 20 * 288, 20 * 24));
    let week = store.query("m_f{host='long'}", Some((BASE_MS, end_ms)), 200).await.unwrap();
    assert!(week[0].points.len() > 50 && week[0].points[0].0 < BASE_MS + DAY_MS, "summaries fill charts");

    // What comes for deleted hours is left out, and the rest of its batch is not.
    store.append_columns(vec![column("long", BASE_MS, BASE_MS + HOUR_MS)]).await.unwrap();
    let late = [BASE_MS, end_ms].map(|at_ms| Point::new("m", &[("host", "long")], at_ms).field("f", -1.0));
    store.append(&late).await.unwrap();
    assert_eq!(store.points(&[long], ALL).await.unwrap()[0].len(), points[1].len() + 1);

    // Points of a clock that is ahead delete nothing, as long as nobody says that it is right.
    store.set_time_max(end_ms - 300_000);
    let kept = store.points(&[long], ALL).await.unwrap()[0].len();
    store.append_columns(vec![column("new", end_ms + 60 * DAY_MS, end_ms + 61 * DAY_MS)]).await.unwrap();
    store.settle().await;
    assert_eq!(store.points(&[long], ALL).await.unwrap()[0].len(), kept);

    // Sixty days on, nothing of the old is left: neither points nor series.
    store.set_time_max(end_ms + 61 * DAY_MS);
    store.settle().await;
    store.stop().await;
    let store = SeriesStore::open_with(&scratch.path(), &settings()).await.unwrap();
    store.append_columns(vec![column("new", end_ms + 61 * DAY_MS, end_ms + 62 * DAY_MS)]).await.unwrap();
    store.settle().await;
    let left = store.select(SeriesSelector::parse("m_f").unwrap(), 10).await.unwrap();
    assert_eq!(left.iter().map(|one| one.labels["host"].as_str()).collect::<Vec<_>>(), ["new"]);
    store.append_columns(vec![column("gone", end_ms + 61 * DAY_MS, end_ms + 62 * DAY_MS)]).await.unwrap();
    let day = Some((end_ms + 61 * DAY_MS, end_ms + 62 * DAY_MS));
    assert_eq!(values(&store, "m_f{host='gone'}", day).await.len(), 288, "a series can come back");
    store.stop().await;
    assert_eq!(count(&scratch.path(), "damaged").await, 0);
}

#[tokio::test]
async fn a_store_that_is_too_large_gives_its_oldest_points() {
    let scratch = Scratch::new();
    let days = |days: u64| Duration::from_secs(days * 24 * 3600);
    let settings =
        StoreSettings { raw: days(30), five_minutes: days(30), hours: days(40), size_max_bytes: 200_000, share: None };
    let store = SeriesStore::open_with(&scratch.path(), &settings).await.unwrap();
    let mut noise = 1_u64;
    for day in 0..6 {
        let mut column = column("a", BASE_MS + day * DAY_MS, BASE_MS + (day + 1) * DAY_MS);
        column.samples = (0..8_640)
            .map(|i| {
                noise = noise.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (BASE_MS + day * DAY_MS + i * 10_000, (noise >> 11) as f64 / 1e15)
            })
            .collect();
        store.append_columns(vec![column]).await.unwrap();
    }
    for _ in 0..30 {
        store.settle().await;
    }
    let id = store.select(SeriesSelector::parse("m_f").unwrap(), 1).await.unwrap()[0].id;
    let points = store.points(&[id], ALL).await.unwrap().remove(0);
    assert!(points.len() < 3 * 8_640, "{}", points.len());
    assert!(points.len() >= 8_640, "the last day is never deleted");
    let hours = store.buckets(&[id], ALL, Resolution::Hour).await.unwrap().remove(0);
    assert_eq!(hours.iter().map(|bucket| bucket.summary.count).sum::<u64>(), 6 * 8_640, "summaries stay");
    store.stop().await;
}

#[tokio::test]
async fn points_are_kept_from_the_first_time_to_today() {
    let (scratch, mut wanted) = (Scratch::new(), vec![(1_577_836_800_000, -1.0)]);
    wanted.extend((0..1_000).map(|i| (BASE_MS + i * 10_007, i as f64)));
    wanted.push((clock::now_ms(), 0.5));
    let store = SeriesStore::open_with(&scratch.path(), &for_ever()).await.unwrap();
    store.append_columns(vec![SeriesColumn { samples: wanted.clone(), ..column("a", 0, 0) }]).await.unwrap();
    let id = store.select(SeriesSelector::parse("m_f").unwrap(), 1).await.unwrap()[0].id;
    assert_eq!(store.points(&[id], (0, Millis::MAX)).await.unwrap()[0], wanted);
    // A point that comes a second time finds the first.
    let again = (wanted[500].0, 9.0);
    let later = (BASE_MS + DAY_MS, 5.0);
    let of = |(at_ms, value): (Millis, f64)| Point::new("m", &[("host", "a")], at_ms).field("f", value);
    store.append(&[of(again), of(later)]).await.unwrap();
    store.settle().await;
    wanted[500] = again;
    wanted.insert(1_001, later);
    assert_eq!(store.points(&[id], (0, Millis::MAX)).await.unwrap()[0], wanted);
    store.stop().await;
}

#[tokio::test]
async fn a_store_of_a_later_version_is_not_opened() {
    let scratch = Scratch::new();
    scratch.open().await.stop().await;
    let mut other = file::open(&scratch.path(), 0).await.unwrap().writer;
    let last: i64 =
        sqlx::query_scalar("SELECT MAX(version) FROM _sqlx_migrations").fetch_one(&mut other).await.unwrap();
    let later = "INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time)
                 SELECT version + 1, 'later', success, checksum, execution_time FROM _sqlx_migrations WHERE version = $1";
    sqlx::query(later).bind(last).execute(&mut other).await.unwrap();
    other.close().await.unwrap();
    let opened = SeriesStore::open(&scratch.path()).await;
    assert!(matches!(opened, Err(SeriesError::Migrate(_))), "{opened:?}");
    assert_eq!(scratch.files(), ["series.db"], "it is not taken for damaged");
}

#[tokio::test]
async fn a_day_is_sealed_as_a_whole_and_taken_apart_for_late_points() {
    let scratch = Scratch::new();
    let store = SeriesStore::open_with(&scratch.path(), &for_ever()).await.unwrap();
    let noise = |i: i64| (i * i * 7_919 % 1_009) as f64 / 100.0;
    let mut wanted = BTreeMap::new();
    for hour in 0..24 {
        let mut column = column("a", BASE_MS, BASE_MS);
        column.samples = (0..360).map(|i| (BASE_MS + hour * HOUR_MS + i * 10_000, noise(hour * 360 + i))).collect();
        wanted.extend(column.samples.iter().copied());
        // Another series, so that the file has more pages than tables.
        let others =
            (0..50).map(|_| SeriesColumn { samples: column.samples.clone(), ..self::column("b", BASE_MS, BASE_MS) });
        let others = others.zip(0..).map(|(one, number)| SeriesColumn { name: format!("n{number}"), ..one });
        store.append_columns(others.chain([column.clone()]).collect()).await.unwrap();
    }
    let later = BASE_MS + DAY_MS + HOUR_MS;
    store.append_columns(vec![column("a", later, later + HOUR_MS)]).await.unwrap();
    wanted.extend(column("a", later, later + HOUR_MS).samples);
    let id = store.select(SeriesSelector::parse("m_f").unwrap(), 1).await.unwrap()[0].id;
    let read = async || store.points(&[id], ALL).await.unwrap().remove(0);
    let as_wanted =
        |wanted: &BTreeMap<Millis, f64>| wanted.iter().map(|(at_ms, value)| (*at_ms, *value)).collect::<Vec<_>>();
    store.settle().await;
    assert!(read().await == as_wanted(&wanted));
    assert_eq!(sqlx::query_scalar::<_, i64>("PRAGMA freelist_count").fetch_one(&store.readers).await.unwrap(), 0);
    let day = (BASE_MS, BASE_MS + DAY_MS - 1);
    let fives = store.buckets(&[id], day, Resolution::FiveMinutes).await.unwrap();
    // One point is there already with another value, one is new, and many come at once.
    let late = [(BASE_MS + 5 * HOUR_MS, -1.0), (BASE_MS + 7 * HOUR_MS + 1, -2.0)];
    let of = |(at_ms, value): (Millis, f64)| Point::new("m", &[("host", "a")], at_ms).field("f", value);
    store.append(&late.map(of)).await.unwrap();
    let mut many = column("a", BASE_MS, BASE_MS);
    many.samples = (0..100).map(|i| (BASE_MS + 9 * HOUR_MS + i * 1_001, i as f64)).collect();
    wanted.extend(late.iter().chain(&many.samples).copied());
    store.append_columns(vec![many]).await.unwrap();
    assert!(read().await == as_wanted(&wanted), "from rows");
    store.settle().await;
    assert!(read().await == as_wanted(&wanted), "from the day");
    let changed = store.buckets(&[id], day, Resolution::FiveMinutes).await.unwrap();
    let differing = fives[0].iter().zip(&changed[0]).filter(|(one, other)| one.summary != other.summary).count();
    assert_eq!((fives[0].len(), changed[0].len(), differing), (288, 288, 3));
    store.stop().await;
    assert_eq!(count(&scratch.path(), "chunk").await, 0, "the days are whole again");
}

#[tokio::test]
async fn text_is_written_piece_by_piece() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    store.append_columns(vec![column("a", BASE_MS, BASE_MS + 3 * DAY_MS)]).await.unwrap();
    store.append_columns(vec![column("b", BASE_MS, BASE_MS + HOUR_MS)]).await.unwrap();
    for (format, line, extra) in [
        (LineFormat::Lines, "m,host=a f=24 1704067200000", 0),
        (LineFormat::Csv, "\"m_f{host=\"\"a\"\"}\",1704067200000,24", 1),
    ] {
        let mut pieces = store.export("m_f", (BASE_MS, BASE_MS + 2 * DAY_MS - 1), format).await.unwrap();
        let (mut text, mut count) = (String::new(), 0);
        while let Some(piece) = pieces.recv().await {
            let piece = piece.unwrap();
            assert!(piece.ends_with('\n'));
            text.push_str(&piece);
            count += 1;
        }
        assert_eq!(count, 3 + extra, "{format:?}: a day of a series at a time");
        assert_eq!(text.lines().count(), 2 * 288 + 12 + extra);
        assert_eq!(text.lines().nth(extra), Some(line));
    }
    assert!(matches!(store.export("m{", ALL, LineFormat::Csv).await, Err(SeriesError::Selector(_))));
    assert!(matches!(store.export("m_f", (2, 1), LineFormat::Csv).await, Err(SeriesError::Range { .. })));
    let mut none = store.export("other", ALL, LineFormat::Lines).await.unwrap();
    assert!(none.recv().await.is_none());
    assert_eq!(store.label_names().await.unwrap(), ["__name__", "host"]);
    assert_eq!(store.label_values("host").await.unwrap(), ["a", "b"]);
    assert_eq!(store.label_values("nothing").await.unwrap(), [""; 0]);
}
