//! What is measured: series as hosts have them, the same at each run.

use std::time::Duration;

/// 2024-01-01, at the beginning of a day: long ago, so that nobody takes it for what comes now.
pub(crate) const BASE_MS: i64 = 1_704_067_200_000;
/// Between two points of the bulk.
pub(crate) const STEP_MS: i64 = 10_000;
pub(crate) const HOUR_MS: i64 = 3_600_000;
/// Series of one host.
pub(crate) const PER_HOST: usize = 50;
/// Series of the second set.
pub(crate) const ASKED: usize = 200;

/// How much.
pub(crate) struct Plan {
    pub(crate) series: usize,
    pub(crate) hours: i64,
    /// How long the load of hosts lasts.
    pub(crate) slow: Duration,
}

impl Plan {
    pub(crate) fn points(&self) -> usize {
        self.series * (self.hours * HOUR_MS / STEP_MS) as usize
    }
}

/// A series that goes on from one hour to the next.
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
            // Some packets of many sizes.
            0 => self.value + self.random(20) * 1_460.0,
            // Hundredths of a percent, a step up or down.
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

    /// The points from one time on.
    pub(crate) fn points(&mut self, from_ms: i64, count: i64, step_ms: i64) -> Vec<(i64, f64)> {
        (0..count).map(|i| (from_ms + i * step_ms, self.next())).collect()
    }
}

/// Points of several series.
pub(crate) type Piece = Vec<(String, Vec<(String, String)>, Vec<(i64, f64)>)>;

/// An hour of all series after the other, each in two halves for two senders.
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

/// The second set: a day by the minute.
pub(crate) fn asked() -> Piece {
    (0..ASKED)
        .map(|number| {
            let mut source = Source::new("asked", number * 4 + 1);
            let points = source.points(BASE_MS, 1_440, 60_000);
            (source.name, source.labels, points)
        })
        .collect()
}

/// The middle one.
pub(crate) fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}
