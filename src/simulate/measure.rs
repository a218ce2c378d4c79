//! Synthetic measurements of a simulated host: the configured number of series, always the same ones, with an agent's names and values
//! of a small host. Samples, batches and their times are an agent's: every ten seconds, every thirty, built
//! by [`muster_agent::metric::batch`]. Nothing is thinned, so that every sample has every series and arrivals can be counted.
//!
//! **Invariant: hosts do not measure in lockstep.** A host's id decides where in the thirty seconds its batch is sent.

use std::time::Duration;

use muster_agent::{config, metric};
use muster_base::chance;
use muster_topics::{
    Millis,
    ack::Numbered,
    metric::{Point, PointLine, Shared},
    name::HostId,
};

/// Largest number of series of a host. A batch of three samples then has about 40 kB, far below the limit of a message.
pub(super) const SERIES_MAX: u32 = 1_000;

/// How a value changes from one sample to the next.
#[derive(Clone, Copy, Debug)]
enum ValueModel {
    /// It is constant.
    Still(f64),
    /// Random below this, in steps of 0.0001.
    Ratio(f64),
    /// Random below this, in steps of 0.01.
    Load(f64),
    /// About this many bytes, in whole pages, and up to one per cent more.
    Pages(f64),
    /// Each sample adds up to twice as much.
    Counter(f64),
    /// Seconds since the start of this life.
    Uptime,
}

/// Measurement, a tag, field, and how the value changes.
type SeriesName = (&'static str, Option<(&'static str, &'static str)>, &'static str, ValueModel);

const ETH0: Option<(&str, &str)> = Some(("interface", "eth0"));
const ROOT: Option<(&str, &str)> = Some(("mount", "/"));
const VDA: Option<(&str, &str)> = Some(("device", "vda"));

/// Series with names that agents use. Those of one measurement are adjacent.
const SERIES: [SeriesName; 20] = [
    ("muster_host_cpu", None, "busy_ratio", ValueModel::Ratio(0.08)),
    ("muster_host_cpu", None, "user_ratio", ValueModel::Ratio(0.05)),
    ("muster_host_cpu", None, "system_ratio", ValueModel::Ratio(0.03)),
    ("muster_host_cpu", None, "iowait_ratio", ValueModel::Ratio(0.0004)),
    ("muster_host_load", None, "1m", ValueModel::Load(0.4)),
    ("muster_host_load", None, "5m", ValueModel::Load(0.3)),
    ("muster_host_load", None, "15m", ValueModel::Load(0.2)),
    ("muster_host_memory", None, "total_bytes", ValueModel::Still(4_124_336_128.0)),
    ("muster_host_memory", None, "used_bytes", ValueModel::Pages(1.2e9)),
    ("muster_host_memory", None, "available_bytes", ValueModel::Pages(2.9e9)),
    ("muster_host_network", ETH0, "receive_bytes_total", ValueModel::Counter(18_371.0)),
    ("muster_host_network", ETH0, "transmit_bytes_total", ValueModel::Counter(9_733.0)),
    ("muster_host_disk", ROOT, "total_bytes", ValueModel::Still(31_526_391_808.0)),
    ("muster_host_disk", ROOT, "used_bytes", ValueModel::Pages(9.8e9)),
    ("muster_host_disk_io", VDA, "read_bytes_total", ValueModel::Counter(1_536.0)),
    ("muster_host_disk_io", VDA, "written_bytes_total", ValueModel::Counter(158_720.0)),
    ("muster_host_swap", None, "total_bytes", ValueModel::Still(2_147_479_552.0)),
    ("muster_host_swap", None, "used_bytes", ValueModel::Still(1_835_008.0)),
    ("muster_host_uptime", None, "seconds", ValueModel::Uptime),
    ("muster_agent_memory", None, "resident_bytes", ValueModel::Pages(7.7e6)),
];
/// The measurement of all other series.
const MORE: &str = "muster_simulated";

/// A serialised batch.
#[derive(Clone, Debug)]
pub(super) struct PackedBatch {
    pub(super) payload: Vec<u8>,
    /// Number of values in it.
    pub(super) values: u64,
}

/// The measurements of one life of a host.
#[derive(Debug)]
pub(super) struct HostMetrics {
    host: String,
    hostname: String,
    /// The last value of each series.
    values: Vec<f64>,
    points: Vec<Point>,
    samples: u32,
    last: Numbered,
    next_ms: Millis,
}

impl HostMetrics {
    /// Starts at time 0 of a life.
    pub(super) fn new(series: u32, host: HostId, hostname: &str, epoch: u64) -> Self {
        let first = Duration::from_millis(rhythm().1.unsigned_abs()).mul_f64(metric::phase(host));
        Self {
            host: host.to_string(),
            hostname: hostname.to_owned(),
            values: vec![0.0; usize::try_from(series).unwrap_or(usize::MAX)],
            points: Vec::new(),
            samples: 0,
            last: Numbered { epoch, seq: 0 },
            next_ms: Millis::try_from(first.as_millis()).unwrap_or_default(),
        }
    }

    /// When the next sample is due.
    pub(super) fn next_ms(&self) -> Millis {
        self.next_ms
    }

    /// Takes a sample, if it is due: `now_ms` is the time of this life, `clock_ms` the wall clock. Returns a batch when
    /// it is complete.
    pub(super) fn on_time(&mut self, now_ms: Millis, clock_ms: Millis) -> Option<(Numbered, PackedBatch)> {
        if now_ms < self.next_ms {
            return None;
        }
        let (sample_ms, publish_ms) = rhythm();
        // Missed samples are not made up for.
        self.next_ms = (self.next_ms + sample_ms).max(now_ms + 1);
        let at_ms = metric::rounded(clock_ms, Duration::from_millis(sample_ms.unsigned_abs()));
        self.sample(at_ms, now_ms);
        self.samples += 1;
        if Millis::from(self.samples) * sample_ms < publish_ms { None } else { self.flush() }
    }

    /// The incomplete batch. Three samples of [`SERIES_MAX`] series fit into one message.
    pub(super) fn flush(&mut self) -> Option<(Numbered, PackedBatch)> {
        self.samples = 0;
        let points = std::mem::take(&mut self.points);
        let values = points.iter().map(|point| point.fields.len() as u64).sum();
        let first = Numbered { seq: self.last.seq + 1, ..self.last };
        let shared = Shared { host: &self.host, hostname: &self.hostname };
        let mut lines: Vec<_> =
            points.iter().filter_map(|point| PointLine::new(point, Some(shared), |_, _| true)).collect();
        let (id, payload) = metric::batch::messages(first, &mut lines, Some(shared)).into_iter().next()?;
        self.last = id;
        Some((id, PackedBatch { payload, values }))
    }

    fn sample(&mut self, at_ms: Millis, now_ms: Millis) {
        let common = [("host", self.host.as_str()), ("hostname", self.hostname.as_str())];
        let before = self.points.len();
        for (index, last) in self.values.iter_mut().enumerate() {
            let random = chance::random();
            let Some((measurement, tag, field, kind)) = SERIES.get(index) else {
                *last = (*last + random * 100.0).round();
                let number = index.to_string();
                let tags = [&common[..], &[("number", number.as_str())]].concat();
                self.points.push(Point::new(MORE, &tags, at_ms).field("value", *last));
                continue;
            };
            *last = kind.next(*last, now_ms, random);
            match self.points[before..].last_mut() {
                Some(point) if point.measurement == *measurement => point.fields.push(((*field).to_owned(), *last)),
                _ => {
                    let tags: Vec<_> = common.into_iter().chain(*tag).collect();
                    self.points.push(Point::new(measurement, &tags, at_ms).field(field, *last));
                }
            }
        }
    }
}

/// The intervals of samples and of batches: the defaults of agents.
fn rhythm() -> (Millis, Millis) {
    let metrics = config::Config::default().metrics;
    (metrics.sample_ms.into(), metrics.publish_ms().into())
}

impl ValueModel {
    fn next(self, last: f64, now_ms: Millis, random: f64) -> f64 {
        match self {
            Self::Still(value) => value,
            Self::Ratio(below) => (random * below * 1e4).floor() / 1e4,
            Self::Load(below) => (random * below * 1e2).floor() / 1e2,
            Self::Pages(about) => (about * (1.0 + random / 100.0) / 4096.0).round() * 4096.0,
            Self::Counter(about) => (last + 2.0 * about * random).round(),
            Self::Uptime => (now_ms / 1000) as f64,
        }
    }
}

#[cfg(test)]
mod tests {
    use muster_topics::{catalogue, metric::decode};

    use super::*;

    fn host(n: u8) -> HostId {
        HostId(uuid::Uuid::from_bytes([n; 16]))
    }

    #[test]
    fn simulated_series_are_in_the_catalogue() {
        for (measurement, tag, field, _) in SERIES {
            let point = Point::new(measurement, tag.as_slice(), 1).field(field, 1.0);
            assert_eq!(catalogue::unlisted(&point), None);
        }
    }

    #[test]
    fn each_sample_has_each_series() {
        for series in [1, 3, 20, 57, SERIES_MAX] {
            let mut measures = HostMetrics::new(series, host(1), "sim-00001", 7);
            let mut batches = Vec::new();
            while measures.next_ms() < 90_000 {
                let now_ms = measures.next_ms();
                batches.extend(measures.on_time(now_ms, 1_800_000_000_000 + now_ms));
            }
            assert_eq!(batches.iter().map(|(id, _)| id.seq).collect::<Vec<_>>(), [1, 2, 3], "{series}");
            for (id, batch) in batches {
                let (decoded, points) = decode(&batch.payload).unwrap();
                assert_eq!((decoded, id.epoch), (id, 7));
                let values: usize = points.iter().map(|point| point.fields.len()).sum();
                assert_eq!((values as u64, values), (batch.values, 3 * series as usize), "{series}");
                let hostname = ("hostname".to_owned(), "sim-00001".to_owned());
                assert!(points.iter().all(|point| point.tags.contains(&hostname)));
            }
        }
    }

    #[test]
    fn hosts_measure_each_in_its_time() {
        let mut first: Vec<Millis> = (0..=255).map(|n| HostMetrics::new(1, host(n), "h", 1).next_ms()).collect();
        first.sort_unstable();
        assert!(first[0] < 200 && first[255] > 29_800, "{first:?}");
        assert!(first.windows(2).all(|pair| pair[1] - pair[0] < 200), "{first:?}");
    }

    #[test]
    fn what_was_missed_is_not_made_up_for() {
        let mut measures = HostMetrics::new(1, host(0), "h", 1);
        assert!(measures.on_time(3_600_000, 1).is_none() && measures.points.len() == 1);
        assert!(measures.on_time(3_600_000, 1).is_none() && measures.points.len() == 1, "not yet");
        assert!(measures.flush().is_some() && measures.flush().is_none(), "nothing is sent twice");
    }
}
