//! Evaluates alert rules, stores each alert and publishes it.
//!
//! Rules are evaluated on each sample of measurements, connected or not; for units also after each change, and for a twin when
//! one is noticed. [`muster_rules::alert`] decides when an alert is raised and when it ends.

use muster_session::unit_state::{UnitState, UnitStates};
use std::{collections::BTreeMap, path::Path, sync::Arc};

use muster_base::clock;
use muster_rules::alert::{AlertChange, AlertTime, HostAlerts, Reading, ReadingSubject};
use muster_sqlite::room::Reserve;
use muster_topics::{
    Millis, PROTOCOL,
    alert::{Alert, AlertSource, AlertSubject, Metric, RULES_MAX, Rule},
    metric::Point,
    name::{Name, UnitName},
    unit::{HoldReason, Phase},
};

use super::{
    main_loop::AgentLoop,
    metric::filesystem::FileSystemSpace,
    store::{
        StoreError,
        alert::{self as kept, ConsoleRules},
    },
};

/// How long a twin counts as present after it was seen: one that has withdrawn connects again every five minutes.
const TWIN_MS: Millis = 15 * 60_000;

/// How long a loss of the store is an alert: long enough that an operator has had a day to see it.
const LOST_MS: Millis = 24 * 3_600_000;

/// The alerts of this host, and what they are evaluated from.
#[derive(Debug)]
pub(super) struct AlertEvaluator {
    alerts: HostAlerts,
    /// The rules of this host's configuration, and the default ones.
    own: BTreeMap<Name, Rule>,
    /// The console's rules, which replace rules of the same name.
    central: ConsoleRules,
    reserve: Reserve,
    cpus: u32,
    /// When a twin was last seen, by the agent's monotonic clock.
    twin_ms: Option<Millis>,
    /// When a loss of the store was last noticed, by the wall clock.
    lost_ms: Option<Millis>,
    /// Whether nothing can be written in the agent's folder.
    is_unwritable: bool,
    /// Whether the host has refused its document.
    is_document_refused: bool,
    /// The protocol of the console, if it is later than this agent's.
    later_protocol: Option<u32>,
    /// The clock's difference from the console's, by a message since the last sample.
    clock_off_s: Option<f64>,
}

impl AlertEvaluator {
    /// Creates it with the alerts that were active in an earlier instance of the agent.
    pub(super) fn new(
        own: BTreeMap<Name, Rule>,
        central: ConsoleRules,
        held: Vec<Alert>,
        about: &EvaluatorParts<'_>,
    ) -> Self {
        let rules = together(&own, &central);
        let now = AlertTime { steady_ms: 0, wall_ms: clock::now_ms() };
        Self {
            alerts: HostAlerts::new(rules, about.sample_ms, held, now),
            own,
            central,
            reserve: about.reserve.clone(),
            cpus: about.cpus,
            twin_ms: None,
            is_unwritable: false,
            is_document_refused: false,
            later_protocol: None,
            lost_ms: None,
            clock_off_s: None,
        }
    }

    /// Sets the time of a loss of the store, if there was one.
    pub(super) fn with_loss(self, lost_ms: Option<Millis>) -> Self {
        Self { lost_ms, ..self }
    }

    /// Sets whether nothing can be written in the agent's folder.
    pub(super) fn with_unwritable(self, is_unwritable: bool) -> Self {
        Self { is_unwritable, ..self }
    }

    /// Records that a loss of the store was noticed now.
    pub(super) fn record_loss_alert(&mut self) {
        self.lost_ms = Some(clock::now_ms());
    }

    /// The protocol of the console, if it is later than this agent's.
    pub(super) fn later_protocol(&self) -> Option<u32> {
        self.later_protocol
    }

    /// The number of the console's rules; 0 if there are none.
    pub(super) fn number(&self) -> u64 {
        self.central.generation
    }

    /// Handles the issue time of a signed message that is newer than all before.
    pub(super) fn observe_issue_time(&mut self, issued_ms: Millis, clock_ms: Millis) {
        let off_ms = clock_ms.saturating_sub(issued_ms);
        self.clock_off_s = Some(off_ms.unsigned_abs() as f64 / 1000.0);
    }

    /// Returns the readings that are not measurements.
    fn readings(&mut self, agent_ms: Millis) -> Vec<Reading> {
        let host = |metric, value| Reading { subject: ReadingSubject::host(metric), value };
        // An agent that has just started does not know yet whether there is a twin.
        let twin = match self.twin_ms {
            Some(seen_ms) => Some(agent_ms - seen_ms < TWIN_MS),
            None => (agent_ms >= TWIN_MS).then_some(false),
        };
        let twin = twin.map(|is_there| host(Metric::Duplicate, f64::from(u8::from(is_there))));
        let clock = self.clock_off_s.take().map(|off_s| host(Metric::ClockOff, off_s));
        let since_loss = |lost_ms: Millis| clock::now_ms().saturating_sub(lost_ms) < LOST_MS;
        let lost = self.lost_ms.map(|lost_ms| host(Metric::StoreLost, f64::from(u8::from(since_loss(lost_ms)))));
        let unwritable = host(Metric::StoreUnwritable, f64::from(u8::from(self.is_unwritable)));
        if !self.is_unwritable {
            self.reserve.refill();
        }
        // While the reserve is used, there is no room, whatever the file system reports.
        let share = if self.reserve.is_short() { Some(1.0) } else { used(self.reserve.folder()) };
        let store = share.map(|share| host(Metric::StoreUsed, share));
        let document = host(Metric::DocumentRefused, f64::from(u8::from(self.is_document_refused)));
        let protocol = host(Metric::LaterProtocol, f64::from(u8::from(self.later_protocol.is_some())));
        twin.into_iter().chain([document, unwritable, protocol]).chain(clock).chain(lost).chain(store).collect()
    }
}

/// The parts that an [`AlertEvaluator`] is made from.
pub(super) struct EvaluatorParts<'a> {
    pub(super) reserve: &'a Reserve,
    pub(super) cpus: u32,
    pub(super) sample_ms: Millis,
}

/// Combines all rules: the console's replace the host's of the same name.
fn together(own: &BTreeMap<Name, Rule>, central: &ConsoleRules) -> BTreeMap<Name, Rule> {
    own.iter().chain(&central.rules).map(|(name, rule)| (name.clone(), rule.clone())).collect()
}

/// Returns the used share of a file system. The store lies on it, so if it hangs, the agent does, too.
fn used(folder: &Path) -> Option<f64> {
    FileSystemSpace::of(folder).map(FileSystemSpace::used_ratio)
}

impl AgentLoop {
    /// Evaluates the rules on a new sample.
    pub(super) async fn sampled(&mut self) -> Result<(), StoreError> {
        let points = self.inputs.samples.borrow_and_update().clone();
        let mut readings = measured(&points, self.lookout.cpus);
        readings.extend(units(&self.inputs.units.borrow()));
        readings.extend(self.lookout.readings(self.now_ms()));
        readings.extend(self.certificate_left());
        // A unit that was removed just before an earlier agent ended causes no event any more.
        self.end_of_units_gone().await?;
        self.check_alerts(&readings).await
    }

    /// Evaluates the rules on changed units.
    pub(super) async fn check_unit_alerts(&mut self) -> Result<(), StoreError> {
        self.end_of_units_gone().await?;
        let states = self.inputs.units.borrow().clone();
        self.check_alerts(&units(&states)).await
    }

    /// Clears the alerts of units that do not exist any more.
    async fn end_of_units_gone(&mut self) -> Result<(), StoreError> {
        let states = self.inputs.units.borrow().clone();
        let gone = self.lookout.alerts.unit_gone(|unit| states.contains_key(unit), self.both_clocks());
        self.report_alert_changes(gone).await
    }

    /// Records that another agent claims to be this host.
    pub(super) async fn record_duplicate(&mut self) -> Result<(), StoreError> {
        self.lookout.twin_ms = Some(self.now_ms());
        self.check_alerts(&[Reading { subject: ReadingSubject::host(Metric::Duplicate), value: 1.0 }]).await
    }

    /// Records whether the host has refused its document.
    pub(super) async fn record_document_refusal(&mut self, is_refused: bool) -> Result<(), StoreError> {
        if std::mem::replace(&mut self.lookout.is_document_refused, is_refused) == is_refused {
            return Ok(());
        }
        let value = f64::from(u8::from(is_refused));
        self.check_alerts(&[Reading { subject: ReadingSubject::host(Metric::DocumentRefused), value }]).await
    }

    /// Records that the console speaks a protocol that is later than this agent's, or one that it knows.
    pub(super) async fn record_protocol(&mut self, later: Option<u32>) -> Result<(), StoreError> {
        self.lookout.later_protocol = later;
        if let Some(protocol) = later {
            tracing::error!(
                protocol,
                known = PROTOCOL,
                consequence = "commands of the console are ignored; units keep running",
                hint = "upgrade this agent",
                "the console's protocol is newer than this agent's",
            );
        }
        let value = f64::from(u8::from(later.is_some()));
        self.check_alerts(&[Reading { subject: ReadingSubject::host(Metric::LaterProtocol), value }]).await
    }

    /// Stores the console's rules, which are newer than the present ones, and follows them.
    pub(super) async fn set_alert_rules(
        &mut self,
        number: u64,
        rules: &BTreeMap<Name, Rule>,
    ) -> Result<(), StoreError> {
        let (good, bad): (Vec<_>, Vec<_>) =
            rules.clone().into_iter().take(RULES_MAX).partition(|(_, rule)| rule.check().is_ok());
        for (name, rule) in bad {
            let (problem, hint) = rule.check().err().map(|fault| (fault.problem, fault.hint)).unzip();
            tracing::warn!(rule = %name, problem, hint = hint.flatten(), "an alert rule cannot be evaluated on this host");
        }
        let central = ConsoleRules { generation: number, rules: good.into_iter().collect() };
        kept::set_central(&self.store, &central).await?;
        tracing::info!(generation = central.generation, rules = central.rules.len(), "new alert rules");
        self.lookout.alerts.set_rules(together(&self.lookout.own, &central));
        self.lookout.central = central;
        // The rules are stored; whether an alert could be is another question.
        if let Err(error) = self.check_alerts(&[]).await {
            self.store_failed(&error);
        }
        self.observe_units();
        Ok(())
    }

    async fn check_alerts(&mut self, readings: &[Reading]) -> Result<(), StoreError> {
        let changes = self.lookout.alerts.observe(readings, self.both_clocks());
        self.report_alert_changes(changes).await
    }

    /// Stores and publishes changes of alerts. They are published even if the store fails, so that an operator looks at
    /// this host.
    async fn report_alert_changes(&mut self, changes: Vec<AlertChange>) -> Result<(), StoreError> {
        if changes.is_empty() {
            return Ok(());
        }
        let kept = kept::record(&self.store, &changes).await;
        let now_ms = self.now_ms();
        for change in changes {
            match &change {
                AlertChange::Raised(alert) => {
                    tracing::warn!(alert = %alert.id, severity = alert.severity.as_str(), hint = alert.diagnostic.hint, "alert: {}", alert.diagnostic.cause);
                }
                AlertChange::Cleared(alert) => tracing::info!(alert = %alert.id, "cleared: {}", alert.diagnostic.cause),
                AlertChange::Repeated(_) => {}
            }
            if !matches!(change, AlertChange::Repeated(_)) {
                self.session.publisher.beats.hasten();
            }
            self.session.publisher.alerts.enqueue(change.alert().clone(), now_ms);
        }
        self.observe_units();
        kept
    }

    fn both_clocks(&self) -> AlertTime {
        AlertTime { steady_ms: self.now_ms(), wall_ms: clock::now_ms() }
    }

    /// Reads how much of the certificate's lifetime is left.
    fn certificate_left(&self) -> Option<Reading> {
        let (begins_ms, ends_ms) = self.identity.present().validity_ms().ok()?;
        let (left_ms, all_ms) = (ends_ms - self.session.time().now_ms(clock::now_ms()), ends_ms - begins_ms);
        let value = left_ms.max(0) as f64 / all_ms as f64;
        (all_ms > 0).then(|| Reading { subject: ReadingSubject::host(Metric::CertificateLeft), value })
    }
}

/// Turns measurements into readings.
fn measured(points: &[Point], cpus: u32) -> Vec<Reading> {
    points.iter().flat_map(|point| readings(point, cpus)).collect()
}

fn readings(point: &Point, cpus: u32) -> impl Iterator<Item = Reading> {
    Metric::ALL.into_iter().filter_map(move |metric| reading(metric, point, cpus))
}

/// Returns what a point says of an alert's metric. An incomplete point says nothing.
fn reading(metric: Metric, point: &Point, cpus: u32) -> Option<Reading> {
    let row = metric.row();
    let (measured, whole) = row.source.fields().filter(|(of, _)| of.measurement == point.measurement)?;
    let field = |name: &str| point.fields.iter().find(|(field, _)| field == name).map(|(_, value)| *value);
    let tag = |name: &str| point.tags.iter().find(|(tag, _)| tag == name).map(|(_, value)| value.as_str());
    let part = field(measured.field)?;
    let value = match (row.source, whole) {
        (AlertSource::Resource(name), _) if tag("resource") != Some(name) => return None,
        (AlertSource::PerProcessor(_), _) => part / f64::from(cpus.max(1)),
        (_, Some(whole)) => part / field(whole)?,
        (_, None) => part,
    };
    let subject = match row.subject {
        AlertSubject::Host => ReadingSubject::host(metric),
        AlertSubject::Mount => ReadingSubject::mount(metric, tag("mount")?),
        AlertSubject::Unit => {
            let unit: UnitName = format!("{}/{}", tag("realm")?, tag("unit")?).parse().ok()?;
            ReadingSubject::unit(metric, &unit)
        }
    };
    Some(Reading { subject, value })
}

/// Turns states of units into readings.
fn units(states: &UnitStates) -> Vec<Reading> {
    let flag = |is_so: bool| f64::from(u8::from(is_so));
    let of_unit = |(unit, state): (&UnitName, &Arc<UnitState>)| {
        let broken = state.hold.as_ref().is_some_and(|hold| hold.reason == HoldReason::Broken);
        let failed = is_failing(state);
        [
            (Metric::UnitBroken, flag(broken)),
            (Metric::UnitFailed, flag(failed)),
            (Metric::UnitRestarts, f64::from(state.observed.attempts)),
            (Metric::UnitRolledBack, flag(state.observed.rolled_back().is_some())),
        ]
        .map(|(metric, value)| Reading { subject: ReadingSubject::unit(metric, unit), value })
    };
    states.iter().flat_map(of_unit).collect()
}

/// Whether a unit should run and does not, against its operator's intent: a hold is intended, and a broken unit has an
/// alert of its own. A unit that is being restarted counts as failing until it is up.
fn is_failing(state: &UnitState) -> bool {
    let observed = &state.observed;
    let is_up = matches!(observed.phase(), Phase::Running | Phase::Playing);
    let is_down = matches!(observed.phase(), Phase::Failed | Phase::Backoff) || (observed.error.is_some() && !is_up);
    is_down && state.desired.run.is_running() && state.hold.is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn measurements_become_readings() {
        let point = |measurement: &str, tags: &[(&str, &str)], fields: &[(&str, f64)]| {
            fields.iter().fold(Point::new(measurement, tags, 1), |point, (name, value)| point.field(name, *value))
        };
        let of_unit = [("realm", "default"), ("unit", "till")];
        let points = [
            point("muster_host_cpu", &[], &[("user_ratio", 0.1), ("busy_ratio", 0.4)]),
            point("muster_host_memory", &[], &[("total_bytes", 200.0), ("used_bytes", 50.0)]),
            point("muster_host_disk", &[("mount", "/data")], &[("total_bytes", 100.0), ("used_bytes", 93.0)]),
            point("muster_host_disk", &[("mount", "/hung")], &[("unresponsive", 1.0)]),
            point(
                "muster_host_disk",
                &[("mount", "/small")],
                &[("unresponsive", 0.0), ("inodes", 32.0), ("used_inodes", 32.0)],
            ),
            point("muster_host_resource", &[("resource", "pids")], &[("used", 10.0), ("limit", 40.0)]),
            point("muster_host_resource", &[("resource", "files")], &[("used", 10.0)]),
            point("muster_host_load", &[], &[("1m", 9.0), ("5m", 6.0)]),
            point("muster_unit_cpu", &of_unit, &[("busy_ratio", 0.2)]),
            point("muster_unit_memory", &of_unit, &[("resident_bytes", 4096.0)]),
            point("muster_unit_disk", &of_unit, &[("total_bytes", 8192.0), ("used_bytes", 4096.0)]),
            point("muster_host_uptime", &[], &[("seconds", 5.0)]),
            // An incomplete point gives no reading.
            point("muster_host_disk", &[], &[("total_bytes", 100.0), ("used_bytes", 93.0)]),
            point("muster_host_cpu", &[], &[]),
            point("muster_unit_cpu", &[("realm", "default")], &[("busy_ratio", 0.2)]),
        ];
        let unit: UnitName = "default/till".parse().unwrap();
        let wanted = [
            (ReadingSubject::host(Metric::CpuBusy), 0.4),
            (ReadingSubject::host(Metric::MemoryUsed), 0.25),
            (ReadingSubject::mount(Metric::DiskUsed, "/data"), 0.93),
            (ReadingSubject::mount(Metric::DiskUnresponsive, "/hung"), 1.0),
            (ReadingSubject::mount(Metric::InodesUsed, "/small"), 1.0),
            (ReadingSubject::mount(Metric::DiskUnresponsive, "/small"), 0.0),
            (ReadingSubject::host(Metric::PidsUsed), 0.25),
            (ReadingSubject::host(Metric::LoadPerCore), 3.0),
            (ReadingSubject::unit(Metric::UnitCpuBusy, &unit), 0.2),
            (ReadingSubject::unit(Metric::UnitMemory, &unit), 4096.0),
            (ReadingSubject::unit(Metric::UnitDiskUsed, &unit), 0.5),
        ];
        assert_eq!(measured(&points, 2), wanted.map(|(subject, value)| Reading { subject, value }));
        // A size of zero gives no finite number, and so no reading.
        let nothing = point("muster_host_memory", &[], &[("total_bytes", 0.0), ("used_bytes", 0.0)]);
        assert!(measured(&[nothing], 2).iter().all(|reading| !reading.value.is_finite()));
    }

    #[test]
    fn console_rule_overrides_hosts_own() {
        let own = muster_rules::alert::defaults::rules();
        let disk: Name = "disk".parse().unwrap();
        let other = Rule { threshold: 0.5, clear: None, ..own[&disk].clone() };
        let rules = together(&own, &ConsoleRules { generation: 1, rules: [(disk.clone(), other.clone())].into() });
        assert_eq!((rules.len(), &rules[&disk]), (own.len(), &other));
        assert!(used(Path::new("/")).is_some_and(|share| (0.0..=1.0).contains(&share)));
    }
}
