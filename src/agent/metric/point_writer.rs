//! Writes points with the tags of their host and unit.

use muster_topics::{Millis, metric::Point, name::UnitName};

/// Creates points with the host's tags.
#[derive(Debug)]
pub(super) struct PointWriter {
    pub(super) labels: [(&'static str, String); 2],
    /// The size of a page of memory.
    pub(super) page_bytes: u64,
}

impl PointWriter {
    pub(super) fn point(&self, measurement: &str, tags: &[(&str, &str)], at_ms: Millis) -> Point {
        let tags: Vec<_> = self.labels.iter().map(|(k, v)| (*k, v.as_str())).chain(tags.iter().copied()).collect();
        Point::new(measurement, &tags, at_ms)
    }

    /// Creates a point about a unit.
    pub(super) fn unit_point(&self, measurement: &str, unit: &UnitName, kind: &str, at_ms: Millis) -> Point {
        let (realm, name) = (unit.realm(), unit.name());
        self.point(measurement, &[("realm", realm.as_str()), ("unit", name.as_str()), ("kind", kind)], at_ms)
    }
}

/// Adds counts of bytes; they are far below 2⁵³, up to which a float is exact.
pub(super) fn bytes(point: Point, fields: &[(&str, u64)]) -> Point {
    fields.iter().fold(point, |point, (name, value)| point.field(name, *value as f64))
}

/// Converts microseconds to seconds, rounded to a hundredth.
pub(super) fn seconds(us: u64) -> f64 {
    // Dividing last gives the nearest float to a hundredth, which is written with two digits.
    (us / 10_000) as f64 / 100.0
}

/// Returns a ratio, rounded to ten-thousandths. Ticks of two files do not add up exactly, so it is at most 1.
pub(super) fn ratio(part: u64, whole: u64) -> f64 {
    ((part as f64 / whole as f64).min(1.0) * 1e4).round() / 1e4
}
