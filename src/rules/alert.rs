//! Evaluates alert rules: takes readings, and returns the alerts that are raised or end.
//!
//! A reading is a number about a subject (the host, one of its file systems, a unit) at a time. Events of
//! units, of the certificate and of the clock are readings too, so one mechanism serves all. A rule
//! and a subject make one alert, with an id of its own.
//!
//! Time is passed in twice: a monotonic clock for durations, and the wall clock for records. No jump of
//! the wall clock raises or clears an alert.
//!
//! **Invariant: an alert is raised only by a value beyond the threshold, and cleared by one that is back at the clear
//! level, or because its subject or rule no longer exists.** NaN is no reading.
//!
//! Modules: [`defaults`] (the agent's default rules), [`words`] (alerts as text).

pub mod defaults;
#[cfg(test)]
mod tests;
pub mod words;

use std::collections::{BTreeMap, btree_map::Entry};

use muster_topics::{
    Millis, V1,
    alert::{ALERTS_MAX, Alert, AlertState, Metric, Rule},
    name::{Digest, Name, UnitName},
};

/// How often an active alert is published again.
pub const REPEAT_MS: Millis = 5 * 60_000;
/// The longest pause between two readings that does not restart an alert's `for` time. File systems are read once a
/// minute, and a slow one may be skipped twice.
const GAP_MS: Millis = 3 * 60_000 + 10_000;
/// How long a subject may go unmeasured before its alert is cleared.
const GONE_MS: Millis = 10 * 60_000;
/// How many samples may be missed by agents that sample rarely.
const SAMPLES: Millis = 3;

/// What a reading was taken of.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ReadingSubject {
    /// The metric.
    pub metric: Metric,
    /// The unit, for metrics of units.
    pub unit: Option<UnitName>,
    /// The mount point, for metrics of file systems.
    pub mount: Option<String>,
}

impl ReadingSubject {
    /// The host itself, for a metric of the host.
    #[must_use]
    pub fn host(metric: Metric) -> Self {
        Self { metric, unit: None, mount: None }
    }

    /// A unit, for a metric of units.
    #[must_use]
    pub fn unit(metric: Metric, unit: &UnitName) -> Self {
        Self { metric, unit: Some(unit.clone()), mount: None }
    }

    /// A file system, for a metric of file systems.
    #[must_use]
    pub fn mount(metric: Metric, mount: &str) -> Self {
        Self { metric, unit: None, mount: Some(mount.to_owned()) }
    }

    /// The unit or mount point, if the metric has several subjects on a host.
    fn of(&self) -> Option<&str> {
        self.unit.as_ref().map(UnitName::as_str).or(self.mount.as_deref())
    }
}

/// One measured value.
#[derive(Clone, Debug, PartialEq)]
pub struct Reading {
    /// What it was taken of.
    pub subject: ReadingSubject,
    /// The value.
    pub value: f64,
}

/// A change of an alert.
#[derive(Clone, Debug, PartialEq)]
pub enum AlertChange {
    /// The alert starts.
    Raised(Alert),
    /// The alert is still active and is published again, or its rule has changed.
    Repeated(Alert),
    /// The alert ends.
    Cleared(Alert),
}

impl AlertChange {
    /// Returns the alert.
    #[must_use]
    pub fn alert(&self) -> &Alert {
        match self {
            Self::Raised(alert) | Self::Repeated(alert) | Self::Cleared(alert) => alert,
        }
    }
}

/// The current time by both clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AlertTime {
    /// Monotonic time.
    pub steady_ms: Millis,
    /// Wall-clock time.
    pub wall_ms: Millis,
}

/// An alert that is active.
#[derive(Clone, Debug)]
struct ActiveAlert {
    alert: Alert,
    subject: ReadingSubject,
    /// When its subject was last read.
    read_ms: Millis,
    /// When it was last published.
    told_ms: Millis,
}

/// A subject that is beyond its threshold, but not yet for the rule's `for` time.
#[derive(Clone, Copy, Debug)]
struct PendingAlert {
    since_ms: Millis,
    began_ms: Millis,
    read_ms: Millis,
}

/// All alerts of one host.
#[derive(Clone, Debug)]
pub struct HostAlerts {
    rules: BTreeMap<Name, Rule>,
    sample_ms: Millis,
    active: BTreeMap<Name, ActiveAlert>,
    pending: BTreeMap<Name, PendingAlert>,
}

impl HostAlerts {
    /// Creates the evaluator. `held` are the active alerts of an earlier instance of the agent; they stay active until
    /// a reading clears them. Samples are taken every `sample_ms`.
    #[must_use]
    pub fn new(rules: BTreeMap<Name, Rule>, sample_ms: Millis, held: Vec<Alert>, now: AlertTime) -> Self {
        let active = |alert: Alert| {
            let subject = ReadingSubject { metric: alert.metric, unit: alert.unit.clone(), mount: alert.mount.clone() };
            let (read_ms, told_ms) = (now.steady_ms, now.steady_ms);
            (alert.id.clone(), ActiveAlert { alert, subject, read_ms, told_ms })
        };
        Self { rules, sample_ms, active: held.into_iter().map(active).collect(), pending: BTreeMap::new() }
    }

    /// Iterates over the active alerts.
    pub fn active(&self) -> impl Iterator<Item = &Alert> {
        self.active.values().map(|active| &active.alert)
    }

    /// Replaces the rules.
    pub fn set_rules(&mut self, rules: BTreeMap<Name, Rule>) {
        self.rules = rules;
    }

    /// Evaluates readings and returns the changes that follow.
    pub fn observe(&mut self, readings: &[Reading], now: AlertTime) -> Vec<AlertChange> {
        let mut changes = Vec::new();
        let rules = std::mem::take(&mut self.rules);
        for (name, rule) in rules.iter().filter(|(_, rule)| !rule.disabled) {
            for reading in readings.iter().filter(|reading| concerns(rule, &reading.subject)) {
                if reading.value.is_finite() {
                    changes.extend(self.read(name, rule, reading, now));
                }
            }
        }
        self.rules = rules;
        let gap_ms = self.gap_ms();
        self.pending.retain(|_, pending| now.steady_ms - pending.read_ms <= gap_ms);
        changes.extend(self.forget(now));
        changes
    }

    /// The longest pause between two readings that does not restart an alert's `for` time.
    fn gap_ms(&self) -> Millis {
        GAP_MS.max(SAMPLES * self.sample_ms)
    }

    /// Evaluates one reading against one rule that applies to it.
    fn read(&mut self, name: &Name, rule: &Rule, reading: &Reading, now: AlertTime) -> Option<AlertChange> {
        let id = id(name, &reading.subject);
        if let Some(active) = self.active.get_mut(&id) {
            active.read_ms = now.steady_ms;
            if rule.is_back(reading.value) {
                self.pending.remove(&id);
                return self
                    .active
                    .remove(&id)
                    .map(|active| AlertChange::Cleared(ended(active.alert, Some(reading.value), now)));
            }
            return active.goes_on(name, rule, reading.value, now);
        }
        if !rule.is_beyond(reading.value) {
            self.pending.remove(&id);
            return None;
        }
        let gap_ms = self.gap_ms();
        let begin = PendingAlert { since_ms: now.wall_ms, began_ms: now.steady_ms, read_ms: now.steady_ms };
        let pending = match self.pending.entry(id.clone()) {
            Entry::Occupied(entry) if now.steady_ms - entry.get().read_ms <= gap_ms => entry.into_mut(),
            Entry::Occupied(mut entry) => {
                entry.insert(begin);
                entry.into_mut()
            }
            Entry::Vacant(entry) => entry.insert(begin),
        };
        pending.read_ms = now.steady_ms;
        let lasted_ms = now.steady_ms - pending.began_ms;
        // At the limit of active alerts it stays pending, and is raised once there is room.
        if lasted_ms < Millis::try_from(rule.for_ms).unwrap_or(Millis::MAX) || self.active.len() >= ALERTS_MAX {
            return None;
        }
        let since_ms = pending.since_ms;
        self.pending.remove(&id);
        let alert = raised(id.clone(), name, rule, reading, since_ms, now);
        let (read_ms, told_ms) = (now.steady_ms, now.steady_ms);
        self.active
            .insert(id, ActiveAlert { alert: alert.clone(), subject: reading.subject.clone(), read_ms, told_ms });
        Some(AlertChange::Raised(alert))
    }

    /// Clears alerts that no rule covers any more, and those whose subject has not been measured for long.
    fn forget(&mut self, now: AlertTime) -> Vec<AlertChange> {
        let gone_ms = GONE_MS.max(SAMPLES * self.sample_ms);
        let is_over = |active: &ActiveAlert| {
            let rule = self.rules.get(&active.alert.rule);
            let asked = rule.is_some_and(|rule| !rule.disabled && concerns(rule, &active.subject));
            !asked || now.steady_ms - active.read_ms > gone_ms
        };
        let over: Vec<Name> =
            self.active.iter().filter(|(_, active)| is_over(active)).map(|(id, _)| id.clone()).collect();
        over.iter()
            .filter_map(|id| self.active.remove(id))
            .map(|active| AlertChange::Cleared(ended(active.alert, None, now)))
            .collect()
    }

    /// Clears the alerts of a unit that was removed.
    pub fn unit_gone(&mut self, is_there: impl Fn(&UnitName) -> bool, now: AlertTime) -> Vec<AlertChange> {
        let is_gone = |active: &ActiveAlert| active.subject.unit.as_ref().is_some_and(|unit| !is_there(unit));
        let gone: Vec<Name> = self.active.iter().filter(|(_, one)| is_gone(one)).map(|(id, _)| id.clone()).collect();
        gone.iter()
            .filter_map(|id| self.active.remove(id))
            .map(|active| AlertChange::Cleared(ended(active.alert, None, now)))
            .collect()
    }
}

impl ActiveAlert {
    /// Updates an active alert with a new value.
    fn goes_on(&mut self, name: &Name, rule: &Rule, value: f64, now: AlertTime) -> Option<AlertChange> {
        let same = self.alert.severity == rule.severity
            && self.alert.threshold == rule.threshold
            && self.alert.clear == rule.clear_level();
        let reading = Reading { subject: self.subject.clone(), value };
        self.alert = raised(self.alert.id.clone(), name, rule, &reading, self.alert.since_ms, now);
        if same && now.steady_ms - self.told_ms < REPEAT_MS {
            return None;
        }
        self.told_ms = now.steady_ms;
        Some(AlertChange::Repeated(self.alert.clone()))
    }
}

/// Whether a rule applies to this subject.
fn concerns(rule: &Rule, subject: &ReadingSubject) -> bool {
    rule.metric == subject.metric && rule.of.as_deref().is_none_or(|of| subject.of() == Some(of))
}

/// The id of an alert: the rule's name, with a digest of the subject if the metric has several on a host.
#[must_use]
pub fn id(rule: &Name, subject: &ReadingSubject) -> Name {
    /// A name has 63 characters; a dash and 16 hexadecimal digits, which do not collide on one host, leave these for
    /// the rule.
    const RULE_MAX: usize = 46;
    let Some(of) = subject.of() else { return rule.clone() };
    let digest = Digest::of(format!("{rule}\0{of}").as_bytes());
    let rule: String = rule.as_str().chars().take(RULE_MAX).collect();
    // A name, a dash and hexadecimal digits are a valid name.
    format!("{rule}-{}", &digest.as_str()[..16]).parse().unwrap_or_else(|_| Name::default_realm())
}

fn raised(id: Name, name: &Name, rule: &Rule, reading: &Reading, since_ms: Millis, now: AlertTime) -> Alert {
    let ReadingSubject { metric, unit, mount } = reading.subject.clone();
    Alert {
        v: V1,
        epoch: 0,
        seq: 0,
        id,
        rule: name.clone(),
        severity: rule.severity,
        diagnostic: words::raised(rule, reading),
        unit,
        mount,
        metric,
        value: reading.value,
        threshold: rule.threshold,
        clear: rule.clear_level(),
        since_ms,
        at_ms: now.wall_ms.max(since_ms),
        state: AlertState::Raised,
    }
}

/// Ends an alert, because of a value or because there are no values any more.
fn ended(alert: Alert, value: Option<f64>, now: AlertTime) -> Alert {
    let at_ms = now.wall_ms.max(alert.since_ms);
    let diagnostic = words::ended(&alert, value);
    Alert { value: value.unwrap_or(alert.value), at_ms, state: AlertState::Cleared, diagnostic, ..alert }
}
