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

/// How often an alert that holds says so again.
pub const REPEAT_MS: Millis = 5 * 60_000;
/// The longest pause between two readings that does not begin anew what has to last: file systems are looked at once
/// a minute, and one that is slow may be left out twice.
const GAP_MS: Millis = 3 * 60_000 + 10_000;
/// How long nothing has to be measured until an alert is over.
const GONE_MS: Millis = 10 * 60_000;
/// How many samples may be left out, for agents that take them rarely.
const SAMPLES: Millis = 3;

/// What a reading is about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ReadingSubject {
    /// What was measured.
    pub metric: Metric,
    /// The unit, if it is one.
    pub unit: Option<UnitName>,
    /// Where the file system is mounted, if it is one.
    pub mount: Option<String>,
}

impl ReadingSubject {
    /// The host itself.
    #[must_use]
    pub fn host(metric: Metric) -> Self {
        Self { metric, unit: None, mount: None }
    }

    /// A unit.
    #[must_use]
    pub fn unit(metric: Metric, unit: &UnitName) -> Self {
        Self { metric, unit: Some(unit.clone()), mount: None }
    }

    /// A file system.
    #[must_use]
    pub fn mount(metric: Metric, mount: &str) -> Self {
        Self { metric, unit: None, mount: Some(mount.to_owned()) }
    }

    /// The one among several that a rule may mean.
    fn of(&self) -> Option<&str> {
        self.unit.as_ref().map(UnitName::as_str).or(self.mount.as_deref())
    }
}

/// One number.
#[derive(Clone, Debug, PartialEq)]
pub struct Reading {
    /// About what.
    pub subject: ReadingSubject,
    /// What it came to.
    pub value: f64,
}

/// What has become of an alert.
#[derive(Clone, Debug, PartialEq)]
pub enum AlertChange {
    /// It holds from now on.
    Raised(Alert),
    /// It still does, and says so again; or it is another one now (the rule has changed).
    Repeated(Alert),
    /// It is over.
    Cleared(Alert),
}

impl AlertChange {
    /// The alert.
    #[must_use]
    pub fn alert(&self) -> &Alert {
        match self {
            Self::Raised(alert) | Self::Repeated(alert) | Self::Cleared(alert) => alert,
        }
    }
}

/// What time it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AlertTime {
    /// By a clock that only goes forward.
    pub steady_ms: Millis,
    /// By the wall's.
    pub wall_ms: Millis,
}

/// An alert that holds.
#[derive(Clone, Debug)]
struct ActiveAlert {
    alert: Alert,
    subject: ReadingSubject,
    /// When there last was a reading of it.
    read_ms: Millis,
    /// When it last said so.
    told_ms: Millis,
}

/// Something that is beyond its threshold, and not for long enough yet.
#[derive(Clone, Copy, Debug)]
struct PendingAlert {
    since_ms: Millis,
    began_ms: Millis,
    read_ms: Millis,
}

/// The alerts of one host.
#[derive(Clone, Debug)]
pub struct HostAlerts {
    rules: BTreeMap<Name, Rule>,
    sample_ms: Millis,
    active: BTreeMap<Name, ActiveAlert>,
    pending: BTreeMap<Name, PendingAlert>,
}

impl HostAlerts {
    /// Those of an earlier life of the agent hold on until a reading says something else. Samples are taken every
    /// `sample_ms`.
    #[must_use]
    pub fn new(rules: BTreeMap<Name, Rule>, sample_ms: Millis, held: Vec<Alert>, now: AlertTime) -> Self {
        let active = |alert: Alert| {
            let subject = ReadingSubject { metric: alert.metric, unit: alert.unit.clone(), mount: alert.mount.clone() };
            let (read_ms, told_ms) = (now.steady_ms, now.steady_ms);
            (alert.id.clone(), ActiveAlert { alert, subject, read_ms, told_ms })
        };
        Self { rules, sample_ms, active: held.into_iter().map(active).collect(), pending: BTreeMap::new() }
    }

    /// Those that hold.
    pub fn active(&self) -> impl Iterator<Item = &Alert> {
        self.active.values().map(|active| &active.alert)
    }

    /// These are the rules from now on.
    pub fn set_rules(&mut self, rules: BTreeMap<Name, Rule>) {
        self.rules = rules;
    }

    /// Takes in readings, and says what comes of them.
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

    /// The longest pause that does not begin anew what has to last.
    fn gap_ms(&self) -> Millis {
        GAP_MS.max(SAMPLES * self.sample_ms)
    }

    /// What a reading means to a rule that it concerns.
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
        // One that finds no room waits here, and is raised once there is some.
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

    /// Ends what is not asked for any more, and what has not been measured for long.
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

    /// A unit is gone, and so is whatever was wrong with it.
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
    /// There is a new value, and the alert holds.
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

/// Whether a rule is about this subject.
fn concerns(rule: &Rule, subject: &ReadingSubject) -> bool {
    rule.metric == subject.metric && rule.of.as_deref().is_none_or(|of| subject.of() == Some(of))
}

/// The id of what a rule may find about a subject: the rule's name, with a digest of the one among several.
#[must_use]
pub fn id(rule: &Name, subject: &ReadingSubject) -> Name {
    /// A name has 63 characters; a dash and 16 digits, which no two of a host's will share, leave these.
    const RULE_MAX: usize = 46;
    let Some(of) = subject.of() else { return rule.clone() };
    let digest = Digest::of(format!("{rule}\0{of}").as_bytes());
    let rule: String = rule.as_str().chars().take(RULE_MAX).collect();
    // A name, a dash and hexadecimal digits make a name.
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
        message: words::raised(rule, reading),
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

/// An alert that is over: because of a value, or because there is none any more.
fn ended(alert: Alert, value: Option<f64>, now: AlertTime) -> Alert {
    let at_ms = now.wall_ms.max(alert.since_ms);
    let message = words::ended(&alert, value);
    Alert { value: value.unwrap_or(alert.value), at_ms, state: AlertState::Cleared, message, ..alert }
}
