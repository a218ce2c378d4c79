//! Chooses which values of a sample go to the console: those that seldom change go after a change, or every few minutes. Pure.
//!
//! Alerts see every sample in full; thinning saves traffic only, where an unchanged value costs as much as
//! a new one.

use std::collections::BTreeMap;

use muster_topics::{
    Millis,
    catalogue::{Writing, measurement},
    metric::Point,
};

/// The most values that are remembered: four of each of a thousand units. Beyond it, all are forgotten and sent again.
const REMEMBERED_MAX: usize = 4_096;

/// The values that were sent last.
#[derive(Debug, Default)]
pub(super) struct ThinFilter {
    gone: BTreeMap<String, (f64, Millis)>,
}

impl ThinFilter {
    /// Whether a value of a point is sent; if so, it was sent last.
    pub(super) fn is_sent(&mut self, point: &Point, field: &str, value: f64) -> bool {
        let found = measurement(&point.measurement).and_then(|found| found.writing(field));
        let Some(writing @ (Writing::Changed(_) | Writing::Slow(_))) = found else {
            return true;
        };
        let key = key(point, field);
        let stays = self.gone.get(&key).is_some_and(|(last, at_ms)| {
            let since_ms = point.at_ms - at_ms;
            // A clock that was set back is no reason to wait.
            let is_recent = (0..Millis::from(writing.every_s()) * 1000).contains(&since_ms);
            is_recent && (matches!(writing, Writing::Slow(_)) || last.total_cmp(&value).is_eq())
        });
        if !stays {
            if self.gone.len() >= REMEMBERED_MAX {
                self.gone.clear();
            }
            self.gone.insert(key, (value, point.at_ms));
        }
        !stays
    }
}

/// The tags that all points have are left out: they do not distinguish series here.
fn key(point: &Point, field: &str) -> String {
    let own = point.tags.iter().filter(|(name, _)| name != "host" && name != "hostname");
    own.fold(format!("{} {field}", point.measurement), |key, (name, value)| key + " " + name + "=" + value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disk(mount: &str, total: f64, used: f64, at_ms: Millis) -> Point {
        Point::new("muster_host_disk", &[("mount", mount)], at_ms).field("total_bytes", total).field("used_bytes", used)
    }

    fn sent<'a>(thin: &mut ThinFilter, point: &'a Point) -> Vec<&'a str> {
        let fields = point.fields.iter().filter(|(field, value)| thin.is_sent(point, field, *value));
        fields.map(|(field, _)| field.as_str()).collect()
    }

    #[test]
    fn unchanged_values_are_sent_rarely() {
        let mut thin = ThinFilter::default();
        for (at_ms, total, wanted) in [
            (0, 10.0, &["total_bytes", "used_bytes"][..]),
            (60_000, 10.0, &["used_bytes"]),
            (120_000, 11.0, &["total_bytes", "used_bytes"]),
            (180_000, 11.0, &["used_bytes"]),
            (359_999, 11.0, &["used_bytes"]),
            (360_000, 11.0, &["total_bytes", "used_bytes"]),
            // The clock was set back.
            (5, 11.0, &["total_bytes", "used_bytes"]),
        ] {
            assert_eq!(sent(&mut thin, &disk("/", total, 5.0, at_ms)), wanted, "{at_ms}");
        }
        assert_eq!(sent(&mut thin, &disk("/data", 11.0, 5.0, 6)).len(), 2, "another disk is another series");
        let length = |at_ms| Point::new("muster_agent_queue", &[("queue", "outbox")], at_ms).field("length", 0.0);
        assert_eq!(sent(&mut thin, &length(0)), ["length"]);
        assert_eq!(sent(&mut thin, &length(10_000)), [""; 0]);
    }

    #[test]
    fn slow_values_are_sent_each_minute() {
        let mut thin = ThinFilter::default();
        let load = |at_ms| Point::new("muster_host_load", &[], at_ms).field("1m", 0.5).field("15m", at_ms as f64);
        for (at_ms, wanted) in [(0, 2), (10_000, 1), (59_999, 1), (60_000, 2), (70_000, 1)] {
            assert_eq!(sent(&mut thin, &load(at_ms)).len(), wanted, "{at_ms}");
        }
    }

    #[test]
    fn memory_is_bounded() {
        let mut thin = ThinFilter::default();
        for i in 0..3 * REMEMBERED_MAX {
            sent(&mut thin, &disk(&i.to_string(), 1.0, 1.0, 0));
            assert!(thin.gone.len() <= REMEMBERED_MAX);
        }
    }
}
