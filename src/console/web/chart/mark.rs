//! Alerts on the time axis: when each began and ended.

use muster_api::Alert;
use muster_topics::name::{HostId, UnitName};
use serde::Serialize;

use super::{
    panel,
    range::{ChartSpan, seconds},
};
use crate::{error::Error, state::Console, store::alert::Which};

/// The most alerts that are read, and the most that are shown: more cannot be distinguished. Cleared ones are kept for
/// a quarter of a year.
const LOOKED_AT_MAX: u32 = 500;
const MARKS_MAX: usize = 100;

/// The duration of an alert.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct AlertMark {
    /// Seconds since the Unix epoch.
    from: f64,
    /// `None` while it is active.
    to: Option<f64>,
    severity: &'static str,
    /// For people.
    text: String,
    /// The chart of its metric.
    chart: Option<&'static str>,
}

/// Returns alerts of a host, or of a unit on it, that were active in a span.
pub(super) async fn of(
    console: &Console,
    host: HostId,
    unit: Option<&UnitName>,
    span: &ChartSpan,
) -> Result<Vec<AlertMark>, Error> {
    let which = Which { history: true, host: Some(host), limit: LOOKED_AT_MAX, ..Which::default() };
    let alerts = console.alerts(which).await?;
    let of_page = alerts.iter().filter(|one| unit.is_none() || one.alert.unit.as_ref() == unit);
    Ok(of_page.filter_map(|one| mark(one, span)).take(MARKS_MAX).collect())
}

fn mark(one: &Alert, span: &ChartSpan) -> Option<AlertMark> {
    let alert = &one.alert;
    if alert.since_ms > span.end_ms || one.ended_ms.is_some_and(|ended_ms| ended_ms < span.start_ms) {
        return None;
    }
    Some(AlertMark {
        from: seconds(alert.since_ms),
        to: one.ended_ms.map(seconds),
        severity: alert.severity.as_str(),
        text: match &alert.unit {
            Some(unit) => format!("{} {unit}", alert.rule),
            None => alert.rule.to_string(),
        },
        chart: panel::about(alert.metric),
    })
}

#[cfg(test)]
mod tests {
    use muster_api::AlertStanding;
    use muster_topics::Millis;

    use super::*;
    use crate::web::view::samples;

    #[test]
    fn alerts_that_held_meanwhile_are_marked() {
        let one = samples::alert("shop-7", "disk /: 93 %", AlertStanding::Cleared, 2);
        let (since_ms, ended_ms) = (one.alert.since_ms, one.ended_ms.unwrap());
        let at = |start_ms: Millis, end_ms: Millis| mark(&one, &ChartSpan { start_ms, end_ms, step_ms: 10_000 });
        let found = at(since_ms - 5, since_ms + 5).unwrap();
        let (from, to) = (seconds(since_ms), Some(seconds(ended_ms)));
        let wanted = AlertMark { from, to, severity: "critical", text: "disk".to_owned(), chart: Some("disk") };
        assert_eq!(found, wanted);
        assert_eq!(at(ended_ms, ended_ms + 5), Some(wanted));
        assert_eq!(at(since_ms - 9, since_ms - 1), None);
        assert_eq!(at(ended_ms + 1, ended_ms + 9), None);
        let holds = samples::alert("shop-7", "", AlertStanding::Raised, 1);
        let found = mark(&holds, &ChartSpan { start_ms: since_ms, end_ms: Millis::MAX, step_ms: 1 }).unwrap();
        assert_eq!((found.to, found.text.as_str()), (None, "disk shop/till"));
    }
}
