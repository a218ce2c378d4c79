//! Alerts: conditions on a host that need attention, reported as long as they hold; and the rules that raise them.
//!
//! See `topics/decisions/0029` for how they travel.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    Millis, V1,
    envelope::{Body, Kind},
    name::{HostId, Name, UnitName},
};

/// The most alerts of a host that hold at a time: whoever has more has one trouble, and not so many. In a heartbeat
/// they take at most 10 of its 64 KiB.
pub const ALERTS_MAX: usize = 64;

/// The most rules of a host, of the console and of its own: at most 48 KiB, signed and quoted.
pub const RULES_MAX: usize = 128;

/// The longest `of` of a rule: longer than anybody would type, and such that half of all rules fit into a message with nothing but quotes there.
pub const OF_MAX_BYTES: usize = 192;

/// Payload of `h/<host>/alert/<id>`: one alert, which holds or has just ended.
///
/// It is retained while it holds, and says so again every few minutes. Once it has ended it says `cleared`, until the
/// console has acknowledged that; an empty message then clears the topic.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Alert {
    /// Version of this payload.
    pub v: V1,
    /// The life of the agent that says so.
    pub epoch: u64,
    /// Grows by one with each message about alerts in the epoch.
    pub seq: u64,
    /// The alert's id, which is made of its rule and what it is about: when that comes again, so does the id.
    pub id: Name,
    /// The rule that raised it.
    pub rule: Name,
    /// How bad it is.
    pub severity: Severity,
    /// The unit that it is about; the host, if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unit: Option<UnitName>,
    /// The file system that it is about, by where it is mounted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mount: Option<String>,
    /// What was measured.
    pub metric: Metric,
    /// What that came to last.
    pub value: f64,
    /// Beyond this it is raised.
    pub threshold: f64,
    /// Back at this it is cleared.
    pub clear: f64,
    /// Since when it has been so, by the agent's clock: when it was first measured, and not when it was raised. Together with
    /// the id it names this one occurrence, from its first message to its last.
    pub since_ms: Millis,
    /// When the value was measured; of one that is cleared, when it ended.
    pub at_ms: Millis,
    /// Whether it holds.
    pub state: AlertState,
    /// The same for people.
    pub message: String,
}

impl Alert {
    /// What an acknowledgement of this message names.
    #[must_use]
    pub fn key(&self) -> AlertAck {
        AlertAck { id: self.id.clone(), since_ms: self.since_ms, state: self.state }
    }

    /// The same in short, for heartbeats.
    #[must_use]
    pub fn summary(&self) -> AlertSummary {
        AlertSummary { severity: self.severity, since_ms: self.since_ms, unit: self.unit.clone() }
    }
}

/// Whether an alert holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum AlertState {
    /// It does.
    Raised,
    /// It does no more.
    Cleared,
}

/// How bad an alert is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// Good to know.
    Info,
    /// Somebody should look, today.
    #[default]
    Warning,
    /// Somebody should look, now.
    Critical,
}

impl Severity {
    /// The severity in a word, as in the JSON form.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Info => "info",
            Self::Warning => "warning",
            Self::Critical => "critical",
        }
    }
}

/// What a rule looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Metric {
    /// The share of all processors' time that was used.
    CpuBusy,
    /// The share of memory that is not available.
    MemoryUsed,
    /// The share of a file system that is used; `of` is where it is mounted.
    DiskUsed,
    /// The share of a file system's inodes that is used; `of` is where it is mounted, here and below.
    InodesUsed,
    /// 1 while a file system does not answer.
    DiskUnresponsive,
    /// The share of the files that can be open at a time that are open, of the whole host.
    FilesUsed,
    /// The share of the processes and threads that there can be.
    PidsUsed,
    /// The share of TCP's local ports that have connections which the host began.
    PortsUsed,
    /// The share of the connections that the firewall can track.
    ConntrackUsed,
    /// The load of five minutes for each logical processor.
    LoadPerCore,
    /// The warmest sensor, in degrees Celsius.
    Temperature,
    /// The share of all processors' time that a unit used; `of` is the unit, here and below.
    UnitCpuBusy,
    /// A unit's resident memory, in bytes.
    UnitMemory,
    /// The share of what a container may write that it has written.
    UnitDiskUsed,
    /// How often a unit was started again by itself since it last was up for five minutes.
    UnitRestarts,
    /// 1 while a unit is held as `broken`.
    UnitBroken,
    /// 1 while a unit should run and cannot be started, or has ended and is not started again.
    UnitFailed,
    /// 1 while a unit is back in its last verified revision because a later one failed.
    UnitRolledBack,
    /// The share of the life of the host's certificate that is left. An agent renews it at a third.
    CertificateLeft,
    /// The share of the file system of the agent's folder that is used.
    StoreUsed,
    /// How far the host's clock is from the console's, in seconds.
    ClockOff,
    /// 1 for a day after the agent's store went back, was lost, or was found to be damaged.
    StoreLost,
    /// 1 while another agent claims to be this host: its disk was cloned.
    Duplicate,
    /// A metric of a newer party, unknown to this reader.
    #[serde(other)]
    Other,
}

/// What the values of a metric are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Measure {
    /// Shares of a whole.
    Ratio,
    /// Degrees Celsius.
    Celsius,
    /// Bytes.
    Bytes,
    /// Seconds.
    Seconds,
    /// Numbers of things.
    Number,
    /// 1 while it is so, and 0 otherwise.
    Flag,
}

impl Metric {
    /// All that are known here.
    pub const ALL: [Self; 23] = [
        Self::CpuBusy,
        Self::MemoryUsed,
        Self::DiskUsed,
        Self::InodesUsed,
        Self::DiskUnresponsive,
        Self::FilesUsed,
        Self::PidsUsed,
        Self::PortsUsed,
        Self::ConntrackUsed,
        Self::LoadPerCore,
        Self::Temperature,
        Self::UnitCpuBusy,
        Self::UnitMemory,
        Self::UnitDiskUsed,
        Self::UnitRestarts,
        Self::UnitBroken,
        Self::UnitFailed,
        Self::UnitRolledBack,
        Self::CertificateLeft,
        Self::StoreUsed,
        Self::ClockOff,
        Self::StoreLost,
        Self::Duplicate,
    ];

    /// The metric in a word, as in the JSON form.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::CpuBusy => "cpu_busy",
            Self::MemoryUsed => "memory_used",
            Self::DiskUsed => "disk_used",
            Self::InodesUsed => "inodes_used",
            Self::DiskUnresponsive => "disk_unresponsive",
            Self::FilesUsed => "files_used",
            Self::PidsUsed => "pids_used",
            Self::PortsUsed => "ports_used",
            Self::ConntrackUsed => "conntrack_used",
            Self::LoadPerCore => "load_per_core",
            Self::Temperature => "temperature",
            Self::UnitCpuBusy => "unit_cpu_busy",
            Self::UnitMemory => "unit_memory",
            Self::UnitDiskUsed => "unit_disk_used",
            Self::UnitRestarts => "unit_restarts",
            Self::UnitBroken => "unit_broken",
            Self::UnitFailed => "unit_failed",
            Self::UnitRolledBack => "unit_rolled_back",
            Self::CertificateLeft => "certificate_left",
            Self::StoreUsed => "store_used",
            Self::ClockOff => "clock_off",
            Self::StoreLost => "store_lost",
            Self::Duplicate => "duplicate",
            Self::Other => "other",
        }
    }

    /// What its values are.
    #[must_use]
    pub fn measure(self) -> Measure {
        match self {
            Self::CpuBusy
            | Self::MemoryUsed
            | Self::DiskUsed
            | Self::InodesUsed
            | Self::FilesUsed
            | Self::PidsUsed
            | Self::PortsUsed
            | Self::ConntrackUsed
            | Self::UnitCpuBusy
            | Self::UnitDiskUsed
            | Self::CertificateLeft
            | Self::StoreUsed => Measure::Ratio,
            Self::Temperature => Measure::Celsius,
            Self::UnitMemory => Measure::Bytes,
            Self::ClockOff => Measure::Seconds,
            Self::LoadPerCore | Self::UnitRestarts | Self::Other => Measure::Number,
            Self::DiskUnresponsive
            | Self::UnitBroken
            | Self::UnitFailed
            | Self::UnitRolledBack
            | Self::StoreLost
            | Self::Duplicate => Measure::Flag,
        }
    }

    /// Whether it is bad if there is little of it. Of all others, much is bad.
    #[must_use]
    pub fn is_bad_if_low(self) -> bool {
        self == Self::CertificateLeft
    }

    /// Whether it is about units.
    #[must_use]
    pub fn is_of_units(self) -> bool {
        matches!(
            self,
            Self::UnitCpuBusy
                | Self::UnitMemory
                | Self::UnitDiskUsed
                | Self::UnitRestarts
                | Self::UnitBroken
                | Self::UnitFailed
                | Self::UnitRolledBack
        )
    }
}

/// When an alert is raised, and when it is cleared. The rule's name is its key in a set of rules.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// What is looked at.
    pub metric: Metric,
    /// The one file system or unit that is meant; each for itself, if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub of: Option<String>,
    /// Beyond this an alert is raised: above it, or below it where little is bad.
    pub threshold: f64,
    /// Back at this it is cleared; at the threshold, if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clear: Option<f64>,
    /// For how long it has to be so before the alert is raised.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub for_ms: u64,
    /// How bad it is.
    #[serde(default)]
    pub severity: Severity,
    /// Nothing is looked at: this is how a rule of the same name that the agent brings along is switched off.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub disabled: bool,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl Rule {
    /// Where an alert is cleared.
    #[must_use]
    pub fn clear_level(&self) -> f64 {
        self.clear.unwrap_or(self.threshold)
    }

    /// Whether a value is beyond the threshold.
    #[must_use]
    pub fn is_beyond(&self, value: f64) -> bool {
        if self.metric.is_bad_if_low() { value < self.threshold } else { value > self.threshold }
    }

    /// Whether a value is back.
    #[must_use]
    pub fn is_back(&self, value: f64) -> bool {
        if self.metric.is_bad_if_low() { value >= self.clear_level() } else { value <= self.clear_level() }
    }

    /// Checks what types cannot say.
    ///
    /// # Errors
    /// With what cannot work.
    pub fn check(&self) -> Result<(), String> {
        if self.metric == Metric::Other {
            let known: Vec<&str> = Metric::ALL.iter().map(|metric| metric.as_str()).collect();
            return Err(format!("its metric is not known here. hint: it is one of {}", known.join(", ")));
        }
        if !self.threshold.is_finite() || !self.clear_level().is_finite() {
            return Err("its threshold and its clear level have to be finite numbers".to_owned());
        }
        if !self.is_back(self.clear_level()) || self.is_beyond(self.clear_level()) {
            let side = if self.metric.is_bad_if_low() { "below" } else { "above" };
            return Err(format!(
                "its clear level {} is {side} its threshold {}, so that it could be raised and cleared by the same value",
                self.clear_level(),
                self.threshold
            ));
        }
        match &self.of {
            Some(of) if of.is_empty() || of.len() > OF_MAX_BYTES => {
                Err(format!("its `of` has {} bytes; 1 to {OF_MAX_BYTES} are possible", of.len()))
            }
            Some(of) if self.metric.is_of_units() => {
                of.parse::<UnitName>().map(|_| ()).map_err(|error| format!("its `of` is no unit: {error}"))
            }
            Some(_) if self.metric != Metric::DiskUsed => {
                Err(format!("it has an `of`, and {} is about the host alone", self.metric.as_str()))
            }
            _ => Ok(()),
        }
    }
}

/// A signed body on `h/<host>/cmd`: all rules of the console for one host. It has no outcome: the host says in its
/// heartbeats which generation it has, and is told until that is this one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AlertRules {
    /// Version of this payload.
    pub v: V1,
    /// Whose rules these are; under the signature, so that they cannot be sent to another host.
    pub host: HostId,
    /// When the console made this.
    pub issued_ms: Millis,
    /// The order of what they were in time: a host refuses what is not newer than what it has.
    pub generation: u64,
    /// The rules. They stand before those of the same name that the host has of its own.
    pub rules: BTreeMap<Name, Rule>,
}

impl Body for AlertRules {
    const KIND: Kind = Kind::AlertRules;
}

/// One message about an alert, which the console has stored.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AlertAck {
    /// The alert.
    pub id: Name,
    /// Which occurrence of it.
    pub since_ms: Millis,
    /// What was said of it.
    pub state: AlertState,
}

/// An alert that holds, in short; `h/<host>/alert/…` has each in full.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AlertSummary {
    /// How bad it is.
    pub severity: Severity,
    /// Since when it has been so.
    pub since_ms: Millis,
    /// The unit that it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unit: Option<UnitName>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(metric: Metric, threshold: f64, clear: Option<f64>) -> Rule {
        Rule { metric, of: None, threshold, clear, for_ms: 0, severity: Severity::Warning, disabled: false }
    }

    #[test]
    fn every_metric_parses_and_unknown_one_is_kept() {
        for metric in Metric::ALL {
            let json = serde_json::to_value(metric).unwrap();
            assert_eq!(json, metric.as_str());
            assert_eq!(serde_json::from_value::<Metric>(json).unwrap(), metric);
        }
        assert_eq!(serde_json::from_str::<Metric>("\"pressure\"").unwrap(), Metric::Other);
    }

    #[test]
    fn invalid_rules_are_refused_with_reason() {
        let of = |metric, of: &str| Rule { of: Some(of.to_owned()), ..rule(metric, 0.9, None) };
        for (rule, problem) in [
            (rule(Metric::CpuBusy, 0.9, Some(0.8)), ""),
            (rule(Metric::CpuBusy, 0.9, None), ""),
            (rule(Metric::CertificateLeft, 0.2, Some(0.3)), ""),
            (of(Metric::DiskUsed, "/"), ""),
            (of(Metric::UnitCpuBusy, "default/till"), ""),
            (rule(Metric::CpuBusy, 0.9, Some(0.95)), "above its threshold"),
            (rule(Metric::CertificateLeft, 0.2, Some(0.1)), "below its threshold"),
            (rule(Metric::CpuBusy, f64::NAN, None), "finite"),
            (rule(Metric::CpuBusy, 0.9, Some(f64::NEG_INFINITY)), "finite"),
            (rule(Metric::Other, 0.9, None), "disk_used"),
            (of(Metric::DiskUsed, ""), "bytes"),
            (of(Metric::UnitCpuBusy, "till"), "no unit"),
            (of(Metric::CpuBusy, "/"), "host alone"),
        ] {
            let found = rule.check().err().unwrap_or_default();
            assert!(found.contains(problem) && found.is_empty() == problem.is_empty(), "{rule:?}: {found}");
        }
    }

    #[test]
    fn clear_level_separates_raised_and_cleared() {
        let high = rule(Metric::DiskUsed, 0.9, Some(0.85));
        let of = |value| (high.is_beyond(value), high.is_back(value));
        assert_eq!([0.95, 0.9, 0.86, 0.85].map(of), [(true, false), (false, false), (false, false), (false, true)]);
        let low = rule(Metric::CertificateLeft, 0.2, Some(0.3));
        let of = |value| (low.is_beyond(value), low.is_back(value));
        assert_eq!([0.1, 0.2, 0.3].map(of), [(true, false), (false, false), (false, true)]);
    }

    #[test]
    fn the_largest_rules_fit_into_a_message() {
        let name = |index: usize| -> Name { format!("{index:0>63}").parse().unwrap() };
        let of = Some(format!("/{}", "\"".repeat(OF_MAX_BYTES - 1)));
        let one =
            Rule { of, for_ms: u64::from(u32::MAX), ..rule(Metric::DiskUsed, 0.123_456_789, Some(0.012_345_678)) };
        let rules = (0..RULES_MAX / 2).map(|index| (name(index), one.clone())).collect();
        let body = AlertRules { v: V1, host: HostId::random(), issued_ms: 0, generation: 1, rules };
        let signer = crate::envelope::Signer::from_pkcs8(&crate::envelope::Signer::generate().unwrap()).unwrap();
        // Sixty-four of the most hostile kind, which is quoted twice, or all that there may be of any that somebody would write.
        signer.sign(&body).unwrap();
        let one = Rule { of: Some(format!("/{}", "x".repeat(64))), ..one };
        let rules = (0..RULES_MAX).map(|index| (name(index), one.clone())).collect();
        signer.sign(&AlertRules { rules, ..body }).unwrap();
    }
}
