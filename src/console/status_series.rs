//! Records the state of hosts and alerts as time series: `muster_host_online` is 1 or 0 for each member, and `muster_alert_active` is 1
//! while an alert is active and 0 once when it ends, as Prometheus's own `ALERTS` is. While the console has no connection to the
//! broker the series of hosts pause, because their state is unknown.
//!
//! They are written when they change, and every two minutes besides, because a query ignores values older than
//! five minutes. For ten thousand hosts that costs 83 points a second, and one read of the members' list every few seconds.
//!
//! An alert has the times of its host's clock: one that was raised while its host was away begins at its own time, is backfilled for
//! at most the last hour, and ends when it ended.
//!
//! **Invariant: a failed write is made up for later**: [`WrittenStatus`] advances only after the commit.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use muster_base::clock::now_ms;
use muster_topics::{Millis, catalogue::STATE_S, metric::Point, name::HostId};
use tokio::{
    sync::broadcast::{Receiver, error::RecvError},
    time::{Instant, timeout_at},
};
use tokio_util::sync::CancellationToken;

use super::{
    ingest,
    page_change::PageChange,
    state::ConsoleState,
    store::{
        alert::{self, CONSOLE, OccurrenceKey, PastAlert},
        host,
    },
};

/// How often unchanged states are written again: twice within the five minutes for which a value is found, so that one
/// may be late.
const REPEAT_MS: Millis = 1_000 * STATE_S as Millis;
/// How long to wait after a change for others. Each check reads the list of members, 10 to 20 ms for ten thousand.
const SETTLE: Duration = Duration::from_secs(5);
/// The number of values that fill in an alert's past, back from its end or from now: an hour.
const FILL_MAX: Millis = 30;
/// The most points that are written together.
const POINTS_MAX: usize = 4_096;
/// The most alerts that are read, latest beginning first: a thousand hosts with their maximum each.
const ALERTS_MAX: u32 = 64_000;

/// Writes the states of hosts and alerts until the console stops.
pub(super) async fn run(shared: Arc<ConsoleState>, shutdown: CancellationToken) {
    let mut changes = shared.pages.changes.subscribe();
    let mut standing = WrittenStatus { looked_ms: now_ms(), ..WrittenStatus::default() };
    let mut changed = BTreeSet::new();
    loop {
        match look(&shared, &standing, &changed, now_ms()).await {
            Ok(next) => {
                standing = next;
                changed.clear();
            }
            Err(error) => tracing::error!(%error, "the state of hosts and alerts cannot be stored; retrying"),
        }
        let due = Instant::now() + Duration::from_millis(standing.due_ms(now_ms()).unsigned_abs()).max(SETTLE);
        tokio::select! {
            () = shutdown.cancelled() => return,
            () = next(&mut changes, due, &mut changed) => (),
        }
    }
}

/// Waits until something has changed, and a little longer for more; at most until `due`. Collects hosts whose alerts
/// have changed. Some may be missed if changes come faster than they are read; then only alerts that begin and end
/// between two checks are lost.
async fn next(changes: &mut Receiver<PageChange>, mut due: Instant, changed: &mut BTreeSet<HostId>) {
    let mut settling = false;
    loop {
        match timeout_at(due, changes.recv()).await {
            Ok(Ok(PageChange::Alert(host))) => changed.extend(host),
            Ok(Ok(PageChange::Host(_)) | Err(RecvError::Lagged(_))) => (),
            Ok(Ok(_)) => continue,
            Ok(Err(RecvError::Closed)) => return tokio::time::sleep_until(due).await,
            Err(_) => return,
        }
        if !settling {
            settling = true;
            due = due.min(Instant::now() + SETTLE);
        }
    }
}

/// Checks the present states, and writes what has changed; returns what has been written by then. `changed` are hosts
/// of which alerts may have begun and ended.
async fn look(
    shared: &ConsoleState,
    standing: &WrittenStatus,
    changed: &BTreeSet<HostId>,
    now: Millis,
) -> Result<WrittenStatus, super::Error> {
    // Without a connection to the broker it is unknown which hosts are online.
    let hosts = match shared.hosts.link.lost_ms() {
        Some(_) => None,
        None => Some(host::standing(shared.store.read(), None).await?),
    };
    let mut alerts = alert::standing(shared.store.read(), ALERTS_MAX).await?;
    for host in changed {
        alerts.extend(alert::heard_of(shared.store.read(), *host, standing.looked_ms).await?);
    }
    let mut ended = BTreeMap::new();
    for key in standing.missing(&alerts) {
        ended.extend(alert::ended(shared.store.read(), key).await?.map(|at_ms| (key.clone(), at_ms)));
    }
    let (next, stretches) = standing.update(hosts, alerts, &ended, now);
    let mut points = Vec::new();
    let failed = |error| super::Error::internal("storing the state of hosts and alerts", &error);
    for point in stretches.iter().flat_map(StatusPoints::points) {
        points.push(point);
        if points.len() == POINTS_MAX {
            ingest::commit(shared, std::mem::take(&mut points)).await.map_err(failed)?;
        }
    }
    ingest::commit(shared, points).await.map_err(failed)?;
    Ok(next)
}

/// What has been written so far.
#[derive(Clone, Debug, Default)]
struct WrittenStatus {
    hosts: BTreeMap<HostId, (String, bool)>,
    /// Active alerts, with the labels that they were written with.
    alerts: BTreeMap<OccurrenceKey, Vec<(&'static str, String)>>,
    /// When everything was last written.
    said_ms: Option<Millis>,
    /// When the last check was made, or the first one started.
    looked_ms: Millis,
}

/// Values of one series: 1 or 0 at one time, or from one time to another.
#[derive(Clone, Debug, PartialEq)]
struct StatusPoints {
    measurement: &'static str,
    field: &'static str,
    tags: Vec<(&'static str, String)>,
    /// Since when it is 1, if that was not written before.
    since_ms: Option<Millis>,
    /// Until when.
    until_ms: Millis,
    /// The value then.
    last: bool,
}

impl StatusPoints {
    fn points(&self) -> impl Iterator<Item = Point> {
        let tags: Vec<(&str, &str)> = self.tags.iter().map(|(name, value)| (*name, value.as_str())).collect();
        let last = self.until_ms;
        // As many as allowed, back from the end; and the beginning.
        let before = self.since_ms.into_iter().flat_map(move |since| {
            let filled = ((last - since) / REPEAT_MS).clamp(0, FILL_MAX);
            let fill = (1..=filled).rev().map(move |back| last - back * REPEAT_MS).filter(move |at| *at > since);
            std::iter::once(since).filter(move |since| *since < last).chain(fill)
        });
        let times: Vec<(Millis, bool)> = before.map(|at_ms| (at_ms, true)).chain([(last, self.last)]).collect();
        let points: Vec<Point> = times
            .into_iter()
            .map(|(at_ms, is)| Point::new(self.measurement, &tags, at_ms).field(self.field, f64::from(u8::from(is))))
            .collect();
        points.into_iter()
    }
}

impl WrittenStatus {
    /// How long until everything is to be written again.
    fn due_ms(&self, now: Millis) -> Millis {
        // After a clock was set back, writes must not be blocked for that long.
        self.said_ms.map_or(0, |said| (said + REPEAT_MS - now).clamp(0, REPEAT_MS))
    }

    /// Returns alerts that were active and are not among these.
    fn missing<'a>(
        &'a self,
        alerts: &'a BTreeMap<OccurrenceKey, PastAlert>,
    ) -> impl Iterator<Item = &'a OccurrenceKey> {
        self.alerts.keys().filter(|key| !alerts.contains_key(*key))
    }

    /// Returns what to write for the present states, and what has been written then. Without `hosts`, they are unknown,
    /// and their series pause. `ended` has the end times of missing alerts.
    fn update(
        &self,
        hosts: Option<BTreeMap<HostId, (String, bool)>>,
        alerts: BTreeMap<OccurrenceKey, PastAlert>,
        ended: &BTreeMap<OccurrenceKey, Millis>,
        now: Millis,
    ) -> (Self, Vec<StatusPoints>) {
        let all = self.due_ms(now) == 0;
        let mut told = hosts.as_ref().map(|hosts| self.hosts(hosts, all, now)).unwrap_or_default();
        // All are written again once they are known.
        let hosts = hosts.unwrap_or_default();
        let mut holding = BTreeMap::new();
        for (key, stood) in alerts {
            let before = self.alerts.get(&key);
            let tags = before.cloned().unwrap_or_else(|| labels(key.0, &stood));
            // Alerts from before the console started were written then.
            let is_new = before.is_none() && stood.received_ms >= self.looked_ms;
            let since_ms = is_new.then_some(key.2);
            match stood.ended_ms {
                Some(_) if before.is_none() && !is_new => {}
                Some(at_ms) => told.push(stretch(tags, since_ms, at_ms, false)),
                None => {
                    if all || before.is_none() {
                        told.push(stretch(tags.clone(), since_ms, now, true));
                    }
                    holding.insert(key, tags);
                }
            }
        }
        for (key, tags) in &self.alerts {
            if !holding.contains_key(key) && !told.iter().any(|one| !one.last && one.tags == *tags) {
                let at_ms = ended.get(key).copied().unwrap_or(now);
                told.push(stretch(tags.clone(), None, at_ms, false));
            }
        }
        let said_ms = if all { Some(now) } else { self.said_ms };
        (Self { hosts, alerts: holding, said_ms, looked_ms: now }, told)
    }

    fn hosts(&self, hosts: &BTreeMap<HostId, (String, bool)>, all: bool, now: Millis) -> Vec<StatusPoints> {
        let one = |id: &HostId, hostname: &str, online| StatusPoints {
            measurement: "muster_host",
            field: "online",
            tags: vec![("host", id.to_string()), ("hostname", hostname.to_owned())],
            since_ms: None,
            until_ms: now,
            last: online,
        };
        let changed = hosts.iter().filter(|(id, held)| all || self.hosts.get(id) != Some(held));
        // For a renamed host, the series with the old name ends.
        let renamed = |id: &HostId, name: &str| hosts.get(id).is_none_or(|(now, _)| now != name);
        let gone = self.hosts.iter().filter(|(id, (name, _))| renamed(id, name));
        let gone = gone.map(|(id, (name, _))| one(id, name, false));
        changed.map(|(id, (name, online))| one(id, name, *online)).chain(gone).collect()
    }
}

fn stretch(tags: Vec<(&'static str, String)>, since_ms: Option<Millis>, until_ms: Millis, last: bool) -> StatusPoints {
    StatusPoints { measurement: "muster_alert", field: "active", tags, since_ms, until_ms, last }
}

fn labels(host: HostId, stood: &PastAlert) -> Vec<(&'static str, String)> {
    let alert = &stood.alert;
    let subject = match (&alert.unit, &alert.mount) {
        (Some(unit), _) => unit.to_string(),
        (None, Some(mount)) => mount.clone(),
        // The console's own may be about several things at once.
        (None, None) if host == CONSOLE && alert.id != alert.rule => alert.id.to_string(),
        (None, None) => "host".to_owned(),
    };
    vec![
        ("host", host.to_string()),
        ("hostname", stood.hostname.clone()),
        ("rule", alert.rule.to_string()),
        ("severity", alert.severity.as_str().to_owned()),
        ("subject", subject),
    ]
}

#[cfg(test)]
mod tests {
    use muster_topics::{alert::Alert, catalogue};
    use serde_json::json;

    use super::*;

    fn host(number: u8) -> HostId {
        format!("6f9c0a52-37a1-4a54-9b3e-0d1f6a7f8c{number:02}").parse().unwrap()
    }

    fn stood(since_ms: Millis, ended_ms: Option<Millis>, received_ms: Millis) -> (OccurrenceKey, PastAlert) {
        let alert: Alert = serde_json::from_value(json!({
            "v": 1, "epoch": 1, "seq": 1, "id": "disk-1", "rule": "disk", "severity": "warning", "mount": "/", "metric": "disk_used",
            "value": 0.9, "threshold": 0.8, "clear": 0.7, "since_ms": since_ms, "at_ms": since_ms, "state": "raised", "message": "",
        }))
        .unwrap();
        let id = alert.id.clone();
        ((host(1), id, since_ms), PastAlert { hostname: "shop-1".to_owned(), ended_ms, received_ms, alert })
    }

    /// Returns times and values of what is written, by measurement.
    fn written(told: &[StatusPoints], measurement: &str) -> Vec<(Millis, f64)> {
        let points = told.iter().filter(|one| one.measurement == measurement).flat_map(StatusPoints::points);
        let points = points.inspect(|point| assert_eq!(catalogue::unlisted(point), None));
        points.map(|point| (point.at_ms, point.fields[0].1)).collect()
    }

    fn hosts(online: &[(u8, bool)]) -> BTreeMap<HostId, (String, bool)> {
        online.iter().map(|(number, online)| (host(*number), (format!("shop-{number}"), *online))).collect()
    }

    fn shown(online: &[(u8, bool)]) -> Option<BTreeMap<HostId, (String, bool)>> {
        Some(hosts(online))
    }

    #[test]
    fn host_series_pause_without_broker() {
        let none = BTreeMap::new;
        let (first, _) = WrittenStatus::default().update(shown(&[(1, true)]), none(), &BTreeMap::new(), 1_000_000);
        let (lost, told) = first.update(None, none(), &BTreeMap::new(), 1_500_000);
        assert_eq!(told, []);
        let (_, told) = lost.update(shown(&[(1, true)]), none(), &BTreeMap::new(), 1_510_000);
        assert_eq!(written(&told, "muster_host"), [(1_510_000, 1.0)]);
    }

    #[test]
    fn host_series_are_written_on_change_and_periodically() {
        let none = BTreeMap::new;
        let (first, told) =
            WrittenStatus::default().update(shown(&[(1, true), (2, false)]), none(), &BTreeMap::new(), 1_000_000);
        assert_eq!(written(&told, "muster_host"), [(1_000_000, 1.0), (1_000_000, 0.0)]);
        let (second, told) = first.update(shown(&[(1, true), (2, false)]), none(), &BTreeMap::new(), 1_010_000);
        assert_eq!(told, []);
        let (third, told) = second.update(shown(&[(1, false), (2, false)]), none(), &BTreeMap::new(), 1_020_000);
        assert_eq!(written(&told, "muster_host"), [(1_020_000, 0.0)]);
        let (fourth, told) = third.update(shown(&[(1, false), (2, false)]), none(), &BTreeMap::new(), 1_120_000);
        assert_eq!(written(&told, "muster_host").len(), 2, "all of them again");
        // One host is removed, the other has a new name.
        let renamed = [(host(2), ("till-2".to_owned(), true))].into();
        let (_, told) = fourth.update(Some(renamed), none(), &BTreeMap::new(), 1_130_000);
        let mut names: Vec<_> = told.iter().map(|one| (one.tags[1].1.as_str(), one.last)).collect();
        names.sort_unstable();
        assert_eq!(names, [("shop-1", false), ("shop-2", false), ("till-2", true)]);
    }

    #[test]
    fn alert_series_spans_the_alert() {
        let now = 10_000_000;
        let (quiet, _) = WrittenStatus::default().update(shown(&[]), BTreeMap::new(), &BTreeMap::new(), now);
        // It was raised ten seconds ago.
        let (key, raised) = stood(now - 5_000, None, now + 5_000);
        let (holding, told) =
            quiet.update(shown(&[]), [(key.clone(), raised.clone())].into(), &BTreeMap::new(), now + 5_000);
        assert_eq!(written(&told, "muster_alert"), [(now - 5_000, 1.0), (now + 5_000, 1.0)]);
        assert_eq!(told[0].tags[4], ("subject", "/".to_owned()));
        let (holding, told) =
            holding.update(shown(&[]), [(key.clone(), raised.clone())].into(), &BTreeMap::new(), now + 10_000);
        assert_eq!(told, []);
        let (holding, told) =
            holding.update(shown(&[]), [(key.clone(), raised)].into(), &BTreeMap::new(), now + 130_000);
        assert_eq!(written(&told, "muster_alert"), [(now + 130_000, 1.0)]);
        assert_eq!(holding.missing(&BTreeMap::new()).collect::<Vec<_>>(), [&key]);
        let ended = [(key, now + 135_000)].into();
        let (over, told) = holding.update(shown(&[]), BTreeMap::new(), &ended, now + 140_000);
        assert_eq!(written(&told, "muster_alert"), [(now + 135_000, 0.0)]);
        assert_eq!(over.update(shown(&[]), BTreeMap::new(), &BTreeMap::new(), now + 150_000).1, []);
    }

    #[test]
    fn late_alert_is_backfilled() {
        let now = 100_000_000;
        let (quiet, _) = WrittenStatus::default().update(shown(&[]), BTreeMap::new(), &BTreeMap::new(), now);
        let (key, past) = stood(now - 50_000_000, Some(now - 20_000_000), now + 500);
        let (next, told) =
            quiet.update(shown(&[]), [(key.clone(), past.clone())].into(), &BTreeMap::new(), now + 1_000);
        let points = written(&told, "muster_alert");
        assert_eq!((points[0], points[points.len() - 1]), ((now - 50_000_000, 1.0), (now - 20_000_000, 0.0)));
        assert_eq!(points.len(), 32, "its beginning, the last hour, its end");
        assert_eq!(points[points.len() - 2], (now - 20_000_000 - REPEAT_MS, 1.0));
        assert!(points.is_sorted_by_key(|(at_ms, _)| *at_ms));
        // It is not written again.
        let (_, told) = next.update(shown(&[]), [(key, past)].into(), &BTreeMap::new(), now + 6_000);
        assert_eq!(told, []);
    }

    #[test]
    fn started_console_writes_current_state() {
        let now = 100_000_000;
        let (key, raised) = stood(now - 50_000, None, now - 40_000);
        let begins = WrittenStatus { looked_ms: now - 10_000, ..WrittenStatus::default() };
        let (_, told) = begins.update(shown(&[]), [(key, raised)].into(), &BTreeMap::new(), now);
        assert_eq!(written(&told, "muster_alert"), [(now, 1.0)], "how it began was told before");
    }
}
