//! What is measured: series as hosts have them, the same at each run.

use std::time::Duration;

use muster_topics::metric::{self, Point};

/// 2024-01-01, the beginning of a day: long ago, so that it differs from current data.
pub(crate) const BASE_MS: i64 = 1_704_067_200_000;
/// Interval of the bulk's points.
pub(crate) const STEP_MS: i64 = 10_000;
pub(crate) const HOUR_MS: i64 = 3_600_000;
/// Number of series of one host.
pub(crate) const PER_HOST: usize = 50;
/// Number of series of the second set.
pub(crate) const ASKED: usize = 200;

/// The amount of data.
pub(crate) struct Plan {
    pub(crate) series: usize,
    pub(crate) hours: i64,
    /// Duration of the load of hosts.
    pub(crate) slow: Duration,
}

impl Plan {
    pub(crate) fn points(&self) -> usize {
        self.series * (self.hours * HOUR_MS / STEP_MS) as usize
    }
}

/// A series that continues from one hour to the next.
pub(crate) struct Source {
    pub(crate) name: String,
    pub(crate) labels: Vec<(String, String)>,
    kind: usize,
    value: f64,
    noise: u64,
}

impl Source {
    /// The series of a set, by number.
    pub(crate) fn new(set: &str, number: usize) -> Self {
        let (kind, host) = (number % 4, number / PER_HOST);
        let what = ["receive_bytes_total", "busy_percent", "used_bytes", "limit"][kind];
        let label = |name: &str, value: String| (name.to_owned(), value);
        Self {
            name: format!("{set}_{what}"),
            labels: vec![
                label("host", format!("host-{host:04}")),
                label("realm", "shop".to_owned()),
                label("unit", format!("shop/unit-{}", number % PER_HOST / 4)),
            ],
            kind,
            value: (number * 37 % 90) as f64 + 5.0,
            noise: (number as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
        }
    }

    fn random(&mut self, below: u64) -> f64 {
        self.noise ^= self.noise << 13;
        self.noise ^= self.noise >> 7;
        self.noise ^= self.noise << 17;
        (self.noise % below) as f64
    }

    fn next(&mut self) -> f64 {
        self.value = match self.kind {
            // Packets of different sizes.
            0 => self.value + self.random(20) * 1_460.0,
            // Hundredths of a per cent, one step up or down.
            1 => {
                let walked = (self.value * 100.0).round() + self.random(101) - 50.0;
                walked.clamp(0.0, 10_000.0) / 100.0
            }
            // Pages, which change now and then.
            2 => {
                let pages = if self.random(3) == 0.0 { self.random(64) - 31.0 } else { 0.0 };
                ((self.value / 4_096.0).round() + pages).max(1.0) * 4_096.0
            }
            _ => self.value,
        };
        self.value
    }

    /// The next points, from a given time on.
    pub(crate) fn points(&mut self, from_ms: i64, count: i64, step_ms: i64) -> Vec<(i64, f64)> {
        (0..count).map(|i| (from_ms + i * step_ms, self.next())).collect()
    }
}

/// Points of several series.
pub(crate) type Piece = Vec<(String, Vec<(String, String)>, Vec<(i64, f64)>)>;

/// All series, hour by hour, each hour in two halves for two senders.
pub(crate) fn hours(plan: &Plan) -> impl Iterator<Item = [Piece; 2]> {
    let mut sources: Vec<Source> = (0..plan.series).map(|number| Source::new("bulk", number)).collect();
    (0..plan.hours).map(move |hour| {
        let mut halves = [Piece::new(), Piece::new()];
        for (number, source) in sources.iter_mut().enumerate() {
            let points = source.points(BASE_MS + hour * HOUR_MS, HOUR_MS / STEP_MS, STEP_MS);
            halves[number % 2].push((source.name.clone(), source.labels.clone(), points));
        }
        halves
    })
}

/// The second set: one day, one point per minute.
pub(crate) fn asked() -> Piece {
    (0..ASKED)
        .map(|number| {
            let mut source = Source::new("asked", number * 4 + 1);
            let points = source.points(BASE_MS, 1_440, 60_000);
            (source.name, source.labels, points)
        })
        .collect()
}

/// Number of hosts of the slow load.
pub(crate) const HOSTS: usize = 1_000;
pub(crate) const OF_HOST: usize = 20;
/// Interval of a host's batches, which contain this many samples.
const BATCH_MS: i64 = 30_000;
const SAMPLES: i64 = BATCH_MS / STEP_MS;
/// Interval between two batches of different hosts.
pub(crate) const BATCH_EVERY: Duration = Duration::from_millis(BATCH_MS as u64 / HOSTS as u64);
/// Number of fields of a measurement.
const FIELDS: usize = 4;
/// What hosts have sent before the load begins: on average, half of the points that are not sealed are then in the
/// head, series by series.
pub(crate) const BEFORE_MS: i64 = 30 * 60_000;

/// A batch of the slow load.
pub(crate) struct Sent {
    /// The host that sends it.
    pub(crate) host: String,
    /// As a host sends it: packed, without what the topic says.
    pub(crate) packed: Vec<u8>,
    /// As line protocol, for other stores.
    pub(crate) lines: String,
}

/// A host's points of consecutive samples.
pub(crate) fn of_host(host: usize, from_ms: i64, samples: i64) -> Vec<Point> {
    let (id, name) = (host_id(host), format!("shop-{host}"));
    // Each host samples at its own moment.
    let from_ms = from_ms + host as i64 * 7 % 100 * (STEP_MS / 100);
    let mut points = Vec::new();
    for sample in 0..samples {
        let at_ms = from_ms + sample * STEP_MS;
        for measurement in 0..OF_HOST / FIELDS {
            let labels = [("host", id.as_str()), ("hostname", name.as_str())];
            let mut point = Point::new(&format!("slow_m{measurement}"), &labels, at_ms);
            for field in 0..FIELDS {
                let value = value(host * OF_HOST + measurement * FIELDS + field, at_ms);
                point = point.field(&format!("f{field}"), value);
            }
            points.push(point);
        }
    }
    points
}

/// One quarter each of counters, percentages, memory in pages, and constants.
fn value(number: usize, at_ms: i64) -> f64 {
    let noise = (number as i64 * 7_919 + at_ms / STEP_MS * 104_729).wrapping_mul(0x9e37_79b9).unsigned_abs() >> 8;
    match number % FIELDS {
        0 => ((at_ms - BASE_MS) / STEP_MS * (number as i64 % 90 + 5) * 1_460) as f64,
        1 => (noise % 10_000) as f64 / 100.0,
        2 => (1_000 + noise % 64) as f64 * 4_096.0,
        _ => number as f64,
    }
}

fn host_id(host: usize) -> String {
    format!("018f0000-0000-7000-8000-{host:012x}")
}

fn batches(time: Duration) -> usize {
    (time.as_millis() / BATCH_EVERY.as_millis()) as usize
}

/// Number of points of the slow load at its end.
pub(crate) fn slow_points(time: Duration) -> usize {
    HOSTS * OF_HOST * (BEFORE_MS / STEP_MS) as usize + batches(time) * OF_HOST * SAMPLES as usize
}

/// The batches that all hosts send in a time after [`BEFORE_MS`], created in advance.
pub(crate) fn sent(time: Duration) -> Vec<Sent> {
    (0..batches(time))
        .map(|number| {
            let (round, host) = ((number / HOSTS) as i64, number % HOSTS);
            let points = of_host(host, BASE_MS + BEFORE_MS + round * BATCH_MS, SAMPLES);
            let (id, name) = (host_id(host), format!("shop-{host}"));
            let shared = metric::Shared { host: &id, hostname: &name };
            let numbered = muster_topics::ack::Numbered { epoch: 1, seq: round.unsigned_abs() + 1 };
            let packed = metric::pack(&metric::encode_short(numbered, shared, &points));
            Sent { packed, lines: lines(&points), host: id }
        })
        .collect()
}

/// Points as line protocol.
pub(crate) fn lines(points: &[Point]) -> String {
    let mut text = String::new();
    points.iter().for_each(|point| metric::write_line(&mut text, point));
    text
}
