//! Prepares incoming points for the writer: sorts them into series, and validates them. Pure.
//!
//! Points come from hosts, so each is checked, and an invalid one is left out and counted rather
//! than refused with the rest of its batch: an agent would send that batch again forever.

use std::{
    collections::{BTreeMap, HashMap},
    ops::RangeInclusive,
};

use muster_topics::{Millis, metric::Point};

use super::{
    chunk, downsample,
    key::{self, Hour},
    points::SeriesColumn,
    rollup_blob,
};
use muster_promql::StretchSummary;

/// The label that stands for the name in selectors; not allowed as a tag.
pub(super) const NAME_LABEL: &str = "__name__";
/// Largest number of labels of a series: agents set five, and hosts' own labels are added.
const LABELS_MAX: usize = 32;
/// With at least this many points of a series in one hour a chunk is written at once, without rows first; with fewer,
/// the chunk would mostly consist of its header.
const RUN_MIN: usize = 32;
/// Longest name or label, in bytes: a path may be a label.
const TEXT_MAX_BYTES: usize = 1024;

/// What identifies a series.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct SeriesIdentity {
    /// `measurement_field`.
    pub(super) name: String,
    /// A JSON object, sorted by name.
    pub(super) labels: String,
}

/// One value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct BatchSample {
    /// Index into the batch's series.
    pub(super) series: usize,
    /// The time.
    pub(super) at_ms: Millis,
    /// The value.
    pub(super) value: f64,
}

/// Many points of a series in one hour, already sealed.
#[derive(Debug)]
pub(super) struct SealedRun {
    /// Index into the batch's series.
    pub(super) series: usize,
    /// The hour.
    pub(super) hour: Hour,
    /// The points, sorted by time, for the case that the hour already has points in the store.
    pub(super) samples: Vec<downsample::ThinPoint>,
    /// Start and body of each chunk.
    pub(super) chunks: Vec<(u16, Vec<u8>)>,
    /// The body of the hour's summary.
    pub(super) summary: Vec<u8>,
}

/// Series that were found for measurement, tags and field, as these arrive: an index into the batch's series, or `None`
/// if they are invalid. Several samples of a series usually follow each other.
type FieldCache<'a> = HashMap<(&'a str, &'a [(String, String)], &'a str), Option<usize>>;

/// A batch of points that is ready to be written.
#[derive(Debug, Default)]
pub(super) struct WriteBatch {
    /// The series, without duplicates.
    pub(super) series: Vec<SeriesIdentity>,
    /// The values.
    pub(super) samples: Vec<BatchSample>,
    /// Series with many values in one hour. No series has the same hour here and in `samples`.
    pub(super) runs: Vec<SealedRun>,
    /// Number of values that were dropped because their time is out of range.
    pub(super) untimely: usize,
    /// Number of values that were dropped because their names or labels are invalid.
    pub(super) unfit: usize,
}

impl WriteBatch {
    /// Sorts points into series. Values outside the times `accepted` are dropped.
    pub(super) fn new(points: &[Point], accepted: &RangeInclusive<Millis>) -> Self {
        let mut batch = Self::default();
        let (mut numbers, mut seen) = (HashMap::new(), FieldCache::new());
        for point in points {
            if !accepted.contains(&point.at_ms) || !key::has_key(point.at_ms) {
                batch.untimely += point.fields.len();
            } else {
                batch.take(point, &mut numbers, &mut seen);
            }
        }
        batch.gather();
        batch
    }

    /// As [`Self::new`], from columns.
    pub(super) fn of_columns(columns: Vec<SeriesColumn>, accepted: &RangeInclusive<Millis>) -> Self {
        let mut batch = Self::default();
        let mut numbers = HashMap::new();
        for SeriesColumn { name, labels, mut samples } in columns {
            let count = samples.len();
            samples.retain(|(at_ms, value)| accepted.contains(at_ms) && key::has_key(*at_ms) && value.is_finite());
            batch.untimely += count - samples.len();
            let Some(labels) = canonical(&labels).filter(|_| name.len() <= TEXT_MAX_BYTES) else {
                batch.unfit += samples.len();
                continue;
            };
            let series = batch.series_of(SeriesIdentity { name, labels }, &mut numbers);
            batch.gather_series(series, samples);
        }
        batch
    }

    /// Number of values.
    pub(super) fn len(&self) -> usize {
        self.samples.len() + self.runs.iter().map(|run| run.samples.len()).sum::<usize>()
    }

    /// Finds series with many values in one hour.
    fn gather(&mut self) {
        let mut counts = vec![0_usize; self.series.len()];
        for sample in &self.samples {
            counts[sample.series] += 1;
        }
        if counts.iter().all(|count| *count < RUN_MIN) {
            return;
        }
        let mut dense: BTreeMap<usize, Vec<downsample::ThinPoint>> = BTreeMap::new();
        self.samples.retain(|sample| {
            let many = counts[sample.series] >= RUN_MIN;
            if many {
                dense.entry(sample.series).or_default().push((sample.at_ms, sample.value));
            }
            !many
        });
        for (series, samples) in dense {
            self.gather_series(series, samples);
        }
    }

    /// Moves the values of one series, in the order in which they were written.
    fn gather_series(&mut self, series: usize, mut samples: Vec<downsample::ThinPoint>) {
        chunk::settle(&mut samples);
        for samples in samples.chunk_by(|one, next| Hour::of(one.0) == Hour::of(next.0)) {
            let summary = StretchSummary::over(samples.iter().map(|sample| sample.1));
            let hour = samples.first().map_or(Hour(0), |first| Hour::of(first.0));
            match summary.filter(|_| samples.len() >= RUN_MIN) {
                Some(summary) => self.runs.push(SealedRun {
                    series,
                    hour,
                    samples: samples.to_vec(),
                    chunks: chunk::encode_hour(hour, samples),
                    summary: rollup_blob::encode(&[(0, summary)].into()),
                }),
                None => self.samples.extend(samples.iter().map(|(at_ms, value)| BatchSample {
                    series,
                    at_ms: *at_ms,
                    value: *value,
                })),
            }
        }
    }

    fn series_of(&mut self, identity: SeriesIdentity, numbers: &mut HashMap<SeriesIdentity, usize>) -> usize {
        *numbers.entry(identity).or_insert_with_key(|identity| {
            self.series.push(identity.clone());
            self.series.len() - 1
        })
    }

    fn take<'a>(&mut self, point: &'a Point, numbers: &mut HashMap<SeriesIdentity, usize>, seen: &mut FieldCache<'a>) {
        for (field, value) in &point.fields {
            if !value.is_finite() {
                self.unfit += 1;
                continue;
            }
            let series = seen.entry((&point.measurement, &point.tags, field));
            let series = *series.or_insert_with(|| Some(self.series_of(identity(point, field)?, numbers)));
            match series {
                Some(series) => self.samples.push(BatchSample { series, at_ms: point.at_ms, value: *value }),
                None => self.unfit += 1,
            }
        }
    }
}

/// The series of a point's field; `None` if its names or labels are invalid.
fn identity(point: &Point, field: &str) -> Option<SeriesIdentity> {
    let name = format!("{}_{field}", point.measurement);
    let labels = canonical(&point.tags)?;
    (name.len() <= TEXT_MAX_BYTES).then_some(SeriesIdentity { name, labels })
}

/// The canonical form of a set of labels. Of two tags with the same name the first counts.
fn canonical(tags: &[(String, String)]) -> Option<String> {
    let mut labels = BTreeMap::new();
    for (name, value) in tags {
        let fit = !name.is_empty() && name != NAME_LABEL && name.len().max(value.len()) <= TEXT_MAX_BYTES;
        if !fit {
            return None;
        }
        if !value.is_empty() {
            labels.entry(name).or_insert(value);
        }
    }
    if labels.len() > LABELS_MAX {
        return None;
    }
    serde_json::to_string(&labels).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Millis = 1_800_000_000_000;

    fn batch(points: &[Point]) -> WriteBatch {
        WriteBatch::new(points, &(NOW - 1_000..=NOW + 1_000))
    }

    #[test]
    fn fields_become_series_and_labels_one_spelling() {
        let mut unsorted = Point::new("m", &[("a", "1"), ("b", "x\"y")], NOW).field("f", 1.0).field("g", 2.0);
        let sorted = Point { at_ms: NOW + 1, ..unsorted.clone() };
        unsorted.tags.reverse();
        unsorted.tags.push(("a".into(), "other".into()));
        unsorted.tags.push(("empty".into(), String::new()));
        let batch = batch(&[unsorted, sorted]);
        let labels = r#"{"a":"1","b":"x\"y"}"#.to_owned();
        assert_eq!(
            batch.series,
            [
                SeriesIdentity { name: "m_f".into(), labels: labels.clone() },
                SeriesIdentity { name: "m_g".into(), labels },
            ]
        );
        let samples: Vec<_> = batch.samples.iter().map(|s| (s.series, s.at_ms, s.value)).collect();
        assert_eq!(samples, [(0, NOW, 1.0), (1, NOW, 2.0), (0, NOW + 1, 1.0), (1, NOW + 1, 2.0)]);
        assert_eq!((batch.untimely, batch.unfit), (0, 0));
    }

    #[test]
    fn dense_hour_is_sealed_at_once() {
        let hour = Hour::of(NOW);
        let labels = vec![("a".to_owned(), "1".to_owned())];
        let column = |first: i64, count: i64| SeriesColumn {
            name: "m".to_owned(),
            labels: labels.clone(),
            samples: (0..count).map(|i| (hour.start_ms() + (first + i) * 1_000, i as f64)).collect(),
        };
        let all = Millis::MIN..=Millis::MAX;
        let batch = WriteBatch::of_columns(vec![column(0, 32), column(3_590, 20)], &all);
        assert_eq!((batch.series.len(), batch.runs.len(), batch.samples.len(), batch.len()), (1, 1, 20, 52));
        assert_eq!((batch.runs[0].hour, batch.runs[0].samples.len(), batch.runs[0].chunks.len()), (hour, 32, 1));

        // The same as points; one of them twice, and the second counts.
        let point = |i: i64, value| Point::new("m", &[("a", "1")], hour.start_ms() + i * 1_000).field("f", value);
        let mut points: Vec<_> = (0..40).map(|i| point(39 - i, 0.5)).collect();
        points.push(point(0, 7.0));
        let batch = WriteBatch::new(&points, &all);
        assert_eq!((batch.runs.len(), batch.samples.len()), (1, 0));
        assert_eq!(batch.runs[0].samples.len(), 40);
        assert_eq!(batch.runs[0].samples[0], (hour.start_ms(), 7.0));
    }

    #[test]
    fn invalid_points_are_counted() {
        let long = "x".repeat(TEXT_MAX_BYTES + 1);
        let many: Vec<_> = (0..=LABELS_MAX).map(|i| format!("l{i}")).collect();
        let many: Vec<_> = many.iter().map(|name| (name.as_str(), "v")).collect();
        let mut infinite = Point::new("m", &[], NOW);
        infinite.fields.push(("f".into(), f64::INFINITY));
        for (point, untimely, unfit) in [
            (Point::new("m", &[], NOW - 1_001).field("f", 1.0).field("g", 1.0), 2, 0),
            (Point::new("m", &[], NOW + 1_001).field("f", 1.0), 1, 0),
            (Point::new("m", &[], Millis::MIN).field("f", 1.0), 1, 0),
            (Point::new("m", &[(NAME_LABEL, "n")], NOW).field("f", 1.0), 0, 1),
            (Point::new("m", &[("", "n")], NOW).field("f", 1.0), 0, 1),
            (Point::new("m", &[("l", &long)], NOW).field("f", 1.0), 0, 1),
            (Point::new("m", &many, NOW).field("f", 1.0), 0, 1),
            (Point::new(&long, &[], NOW).field("f", 1.0), 0, 1),
            (infinite, 0, 1),
        ] {
            let batch = batch(std::slice::from_ref(&point));
            assert_eq!((batch.untimely, batch.unfit, batch.samples.len()), (untimely, unfit, 0), "{point:?}");
            assert!(batch.series.is_empty());
        }
        let everything = WriteBatch::new(&[Point::new("m", &[], 0).field("f", 1.0)], &(Millis::MIN..=Millis::MAX));
        assert_eq!(everything.untimely, 1, "1970 has no key");
    }
}
