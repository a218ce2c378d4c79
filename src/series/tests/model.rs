//! Tests the store against a plain model, over random interleavings of writes, late and repeated points, sealing, rollups,
//! deletion and reopening.

use std::collections::BTreeMap;

use proptest::prelude::*;

use muster_promql::text::quote;

use super::*;

/// 2024-01-01.
const BASE_MS: Millis = 1_704_067_200_000;
const FIVE_MS: Millis = 5 * MINUTE_MS;
const HOUR_MS: Millis = 60 * MINUTE_MS;
const DAY_MS: Millis = 24 * HOUR_MS;
const RAW_MS: Millis = 2 * DAY_MS;
const FIVES_MS: Millis = 4 * DAY_MS;
const SERIES: i64 = 3;
const MINUTES: i64 = 8 * 24 * 60;

/// What is done to the store.
#[derive(Clone, Debug)]
enum Act {
    /// Points as hosts send them: series, minute, value.
    Write(Vec<(i64, i64, i32)>),
    /// Many points of a series in some hours: series, first minute, seconds between two, count.
    Column(i64, i64, i64, i64),
    /// The same points as some act before wrote, with the values that they had.
    Repeat(usize),
    /// Seal, roll up, delete.
    Settle,
    /// Stop and open again.
    Restart,
}

fn act() -> impl Strategy<Value = Act> {
    let minute = prop_oneof![0..MINUTES, 0..200_i64, MINUTES - 2_000..MINUTES];
    let point = (0..SERIES, minute.clone(), -9..9_i32);
    prop_oneof![
        4 => proptest::collection::vec(point, 1..40).prop_map(Act::Write),
        2 => (0..SERIES, minute, prop_oneof![Just(10_i64), 1..90_i64], 1..400_i64)
            .prop_map(|(series, minute, step, count)| Act::Column(series, minute, step, count)),
        1 => (0..20_usize).prop_map(Act::Repeat),
        3 => Just(Act::Settle),
        1 => Just(Act::Restart),
    ]
}

type Points = BTreeMap<(i64, Millis), f64>;

/// What the store should have.
#[derive(Default)]
struct Model {
    /// Everything that was ever taken.
    ever: Points,
    newest_ms: Option<Millis>,
    raw_from_ms: Millis,
    fives_from_ms: Millis,
}

impl Model {
    fn write(&mut self, points: &[(i64, Millis, f64)]) {
        for (series, at_ms, value) in points {
            if *at_ms >= self.raw_from_ms {
                self.ever.insert((*series, *at_ms), *value);
                self.newest_ms = self.newest_ms.max(Some(*at_ms));
            }
        }
    }

    fn settle(&mut self) {
        let floor = |ms: Millis, width: Millis| ms.div_euclid(width) * width;
        let Some(newest_ms) = self.newest_ms else { return };
        self.raw_from_ms = self.raw_from_ms.max(floor(newest_ms - RAW_MS, HOUR_MS));
        self.fives_from_ms = self.fives_from_ms.max(floor(newest_ms - FIVES_MS, DAY_MS));
    }

    fn points(&self, series: i64) -> Vec<(Millis, f64)> {
        let from = (series, self.raw_from_ms);
        self.ever.range(from..=(series, Millis::MAX)).map(|((_, at_ms), value)| (*at_ms, *value)).collect()
    }

    fn buckets(&self, series: i64, resolution: Resolution) -> Vec<ViewBucket> {
        let mut buckets: Vec<ViewBucket> = Vec::new();
        for ((_, at_ms), value) in self.ever.range((series, 0)..=(series, Millis::MAX)) {
            let fine = resolution == Resolution::FiveMinutes && *at_ms >= self.fives_from_ms;
            let width_ms = if fine { FIVE_MS } else { HOUR_MS };
            let (start_ms, summary) = (at_ms / width_ms * width_ms, StretchSummary::of(*value));
            match buckets.last_mut().filter(|last| last.start_ms == start_ms) {
                Some(last) => last.summary = last.summary.join(summary),
                None => buckets.push(ViewBucket { start_ms, width_ms, summary }),
            }
        }
        buckets
    }
}

fn settings() -> StoreSettings {
    let of = |ms: Millis| Duration::from_millis(ms as u64);
    StoreSettings {
        raw: of(RAW_MS),
        five_minutes: of(FIVES_MS),
        hours: of(400 * DAY_MS),
        size_max_bytes: u64::MAX,
        share: None,
    }
}

fn host(series: i64) -> String {
    format!("h{series}")
}

async fn write(store: &SeriesStore, points: &[(i64, Millis, f64)]) {
    let of = |(series, at_ms, value): &(i64, Millis, f64)| {
        Point::new("m", &[("host", &host(*series))], *at_ms).field("f", *value)
    };
    store.append(&points.iter().map(of).collect::<Vec<_>>()).await.unwrap();
}

/// Everything is there, and nothing else, at each resolution.
async fn compare(store: &SeriesStore, model: &Model, after: &str) {
    for series in 0..SERIES {
        let selector = SeriesSelector::parse(&format!("{{host={}}}", quote(&host(series)))).unwrap();
        let ids: Vec<_> = store.select(selector, 1).await.unwrap().iter().map(|chosen| chosen.id).collect();
        let all = (0, Millis::MAX);
        let points = store.points(&ids, all).await.unwrap().concat();
        assert_eq!(points, model.points(series), "points of {series} after {after}");
        for resolution in [Resolution::FiveMinutes, Resolution::Hour] {
            let buckets = store.buckets(&ids, all, resolution).await.unwrap().concat();
            assert_eq!(buckets, model.buckets(series, resolution), "{resolution:?} of {series} after {after}");
        }
    }
    // All together, backwards.
    let chosen = store.select(SeriesSelector::parse("m_f").unwrap(), SERIES as usize).await.unwrap();
    let (ids, hosts): (Vec<_>, Vec<_>) = chosen.iter().rev().map(|one| (one.id, one.labels["host"].clone())).unzip();
    let series = hosts.iter().map(|name| (0..SERIES).find(|series| host(*series) == *name).unwrap());
    let points: Vec<_> = series.map(|series| model.points(series)).collect();
    assert_eq!(store.points(&ids, (0, Millis::MAX)).await.unwrap(), points, "all after {after}");
    assert_eq!(store.damaged().await.unwrap(), []);
}

async fn follow(acts: Vec<Act>) {
    let scratch = Scratch::new();
    let mut store = SeriesStore::open_with(&scratch.path(), &settings()).await.unwrap();
    let (mut model, mut written) = (Model::default(), Vec::<Vec<(i64, Millis, f64)>>::new());
    for (number, act) in acts.into_iter().enumerate() {
        let after = format!("act {number}: {act:?}");
        match act {
            Act::Write(points) => {
                let at = |minute: i64| BASE_MS + minute * MINUTE_MS;
                let points =
                    points.into_iter().map(|(series, minute, value)| (series, at(minute), f64::from(value) / 2.0));
                written.push(points.collect());
                let points = &written[written.len() - 1];
                write(&store, points).await;
                model.write(points);
            }
            Act::Column(series, minute, step, count) => {
                let of = |i: i64| (BASE_MS + minute * MINUTE_MS + i * step * 1_000, (i * 37 % 11) as f64);
                let samples: Vec<_> = (0..count).map(of).collect();
                written.push(samples.iter().map(|(at_ms, value)| (series, *at_ms, *value)).collect());
                model.write(&written[written.len() - 1]);
                let labels = vec![("host".to_owned(), host(series))];
                store.append_columns(vec![SeriesColumn { name: "m_f".to_owned(), labels, samples }]).await.unwrap();
            }
            Act::Repeat(which) => {
                let Some(points) = written.get(which).cloned() else { continue };
                write(&store, &points).await;
                model.write(&points);
            }
            Act::Settle => {
                store.settle().await;
                model.settle();
                compare(&store, &model, &after).await;
            }
            Act::Restart => {
                store.stop().await;
                store = SeriesStore::open_with(&scratch.path(), &settings()).await.unwrap();
                assert_eq!(store.set_aside(), None);
                model.newest_ms = None;
                compare(&store, &model, &after).await;
            }
        }
    }
    compare(&store, &model, "everything").await;
    store.stop().await;
}

fn run(test: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(test);
}

proptest! {
    // Each has a database of its own, on a real disk.
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn the_store_is_what_a_map_would_be(acts in proptest::collection::vec(act(), 1..30)) {
        run(follow(acts));
    }

    /// What the module `view` says that summaries may be wrong by.
    #[test]
    fn summaries_are_wrong_by_their_ends_only(
        points in proptest::collection::btree_map(0..DAY_MS, 0..1_000_u32, 1..300),
        start in 0..DAY_MS, length in 1..DAY_MS, hourly in any::<bool>(), sealed in any::<bool>(),
    ) {
        run(async {
            let points: Vec<_> = points.into_iter().map(|(at, value)| (BASE_MS + at, f64::from(value) / 8.0)).collect();
            let (start_ms, end_ms) = (BASE_MS + start, BASE_MS + start + length - 1);
            let scratch = Scratch::new();
            let store = SeriesStore::open_with(&scratch.path(), &settings()).await.unwrap();
            let column = SeriesColumn { name: "m".to_owned(), labels: Vec::new(), samples: points.clone() };
            let later = Point::new("other", &[], BASE_MS + DAY_MS + HOUR_MS).field("f", 0.0);
            store.append_columns(vec![column]).await.unwrap();
            store.append(&[later]).await.unwrap();
            if sealed {
                store.settle().await;
            }
            let id = store.select(SeriesSelector::parse("m").unwrap(), 1).await.unwrap()[0].id;
            let resolution = if hourly { Resolution::Hour } else { Resolution::FiveMinutes };
            let width_ms = resolution.width_ms().unwrap();
            let found = store.buckets(&[id], (start_ms, end_ms), resolution).await.unwrap().remove(0);
            let found = found.into_iter().map(|bucket| bucket.summary).reduce(StretchSummary::join);
            let over = |from: Millis, to: Millis| {
                StretchSummary::over(points.iter().filter(|point| (from..=to).contains(&point.0)).map(|point| point.1))
            };
            // Exactly those of the range widened to whole ones, by less than one at each end.
            let wide = (start_ms / width_ms * width_ms, end_ms / width_ms * width_ms + width_ms - 1);
            assert!(start_ms - wide.0 < width_ms && wide.1 - end_ms < width_ms);
            assert_eq!(found, over(wide.0, wide.1));
            if let Some(exact) = over(start_ms, end_ms) {
                let found = found.unwrap();
                assert!(found.min <= exact.min && found.max >= exact.max);
                assert!(found.sum >= exact.sum && found.count >= exact.count);
                let ends = over(wide.0, start_ms - 1).map_or(0, |end| end.count) + over(end_ms + 1, wide.1).map_or(0, |end| end.count);
                assert_eq!(found.count - exact.count, ends);
            }
            store.stop().await;
        });
    }
}
