//! Alerts: conditions on a host that need attention, reported as long as they hold; and the rules that raise them.
//!
//! See `topics/decisions/0029` for how they travel.

mod metric;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use self::metric::{AlertSource, AlertSubject, Metric, MetricRow, SeriesField};
use crate::{
    Millis, V1,
    catalogue::Measure,
    diagnostic::Diagnostic,
    name::{Name, UnitName},
};

/// The most active alerts of a host: a host with more has one problem, not that many. In a heartbeat they take at most
/// 10 of its 64 KiB.
pub const ALERTS_MAX: usize = 64;

/// The most rules of a host, of the console and of its own together: at most 48 KiB, signed and quoted.
pub const RULES_MAX: usize = 128;

/// The longest `of` of a rule: longer than anybody would type, and short enough that half of all rules fit into a
/// message even if it consists of quotes.
pub const OF_MAX_BYTES: usize = 192;

/// Payload of `s/<slot>/h/<host>/alert/<id>`: one alert, which is active or has just ended.
///
/// It is retained while it is active, and repeated every few minutes. Once it has ended it says `cleared`, until the
/// console has acknowledged that; an empty message then clears the topic.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Alert {
    /// Version of this payload.
    pub v: V1,
    /// The epoch of the agent.
    pub epoch: u64,
    /// The message's number, which grows by one with each message about alerts in the epoch.
    pub seq: u64,
    /// The alert's id, made of its rule and its subject: when the alert occurs again, it has the same id.
    pub id: Name,
    /// The rule that raised it.
    pub rule: Name,
    /// Its severity.
    pub severity: Severity,
    /// The unit that it is about; the host if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unit: Option<UnitName>,
    /// The mount point of the file system that it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mount: Option<String>,
    /// The metric.
    pub metric: Metric,
    /// The last value.
    pub value: f64,
    /// The threshold at which it is raised.
    pub threshold: f64,
    /// The level at which it is cleared.
    pub clear: f64,
    /// Since when the threshold has been exceeded, by the agent's clock: the first such measurement, not when the alert
    /// was raised. Together with the id it identifies this occurrence.
    pub since_ms: Millis,
    /// When the value was measured; for a cleared alert, when it ended.
    pub at_ms: Millis,
    /// Whether it is active.
    pub state: AlertState,
    /// A description for people.
    #[serde(flatten)]
    pub diagnostic: Diagnostic,
}

impl Alert {
    /// Returns what an acknowledgement of this message names.
    #[must_use]
    pub fn key(&self) -> AlertAck {
        AlertAck { id: self.id.clone(), since_ms: self.since_ms, state: self.state }
    }

    /// Returns the summary for heartbeats.
    #[must_use]
    pub fn summary(&self) -> AlertSummary {
        AlertSummary { severity: self.severity, since_ms: self.since_ms, unit: self.unit.clone() }
    }
}

/// The state of an alert.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum AlertState {
    /// It is active.
    Raised,
    /// It has ended.
    Cleared,
}

/// The severity of an alert.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// Informative.
    Info,
    /// An operator should look within a day.
    #[default]
    Warning,
    /// An operator should look now.
    Critical,
}

impl Severity {
    /// Returns the severity as in the JSON form.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Info => "info",
            Self::Warning => "warning",
            Self::Critical => "critical",
        }
    }
}

/// A rule for raising and clearing an alert. Its name is its key in a set of rules.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// The metric.
    pub metric: Metric,
    /// The file system or unit; all of them, each for itself, if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub of: Option<String>,
    /// The threshold at which an alert is raised: above it, or below it if low values are bad.
    pub threshold: f64,
    /// The level at which it is cleared; the threshold, if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clear: Option<f64>,
    /// How long the threshold has to be exceeded before the alert is raised.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub for_ms: u64,
    /// The severity.
    #[serde(default)]
    pub severity: Severity,
    /// Whether the rule is off: this is how a default rule of the same name is switched off.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub disabled: bool,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl Rule {
    /// Returns the level at which an alert is cleared.
    #[must_use]
    pub fn clear_level(&self) -> f64 {
        self.clear.unwrap_or(self.threshold)
    }

    /// Whether a value is beyond the threshold.
    #[must_use]
    pub fn is_beyond(&self, value: f64) -> bool {
        if self.metric.is_bad_if_low() { value < self.threshold } else { value > self.threshold }
    }

    /// Whether a value has reached the clear level.
    #[must_use]
    pub fn is_back(&self, value: f64) -> bool {
        if self.metric.is_bad_if_low() { value >= self.clear_level() } else { value <= self.clear_level() }
    }

    /// Checks what types cannot express.
    ///
    /// # Errors
    /// If it cannot work, with the reason.
    pub fn check(&self) -> Result<(), RuleFault> {
        let fault = |field: RuleField, problem: String| Err(RuleFault { field, problem, hint: None });
        if self.metric == Metric::Other {
            let known: Vec<&str> = Metric::ALL.iter().map(|metric| metric.as_str()).collect();
            let hint = Some(format!("use one of {}", known.join(", ")));
            let problem = "its metric is unknown".to_owned();
            return Err(RuleFault { field: RuleField::Metric, problem, hint });
        }
        self.check_level(RuleField::Threshold, self.threshold)?;
        self.check_level(RuleField::Clear, self.clear_level())?;
        if !self.is_back(self.clear_level()) || self.is_beyond(self.clear_level()) {
            let side = if self.metric.is_bad_if_low() { "below" } else { "above" };
            let problem = format!(
                "its clear level {} is {side} its threshold {}, so the same value could raise and clear it",
                self.clear_level(),
                self.threshold
            );
            return fault(RuleField::Clear, problem);
        }
        let of_fault = match &self.of {
            Some(of) if of.is_empty() || of.len() > OF_MAX_BYTES => {
                Some(format!("its `of` has {} bytes; 1 to {OF_MAX_BYTES} are allowed", of.len()))
            }
            Some(of) if self.metric.is_of_units() => {
                of.parse::<UnitName>().err().map(|error| format!("its `of` is not a unit: {error}"))
            }
            Some(_) if self.metric.row().subject == AlertSubject::Host => {
                Some(format!("it has an `of`, and {} is a metric of the host", self.metric.as_str()))
            }
            _ => None,
        };
        of_fault.map_or(Ok(()), |problem| fault(RuleField::Of, problem))
    }

    /// Checks that values of the metric can be on both sides of a level.
    fn check_level(&self, field: RuleField, level: f64) -> Result<(), RuleFault> {
        let what = if field == RuleField::Clear { "clear level" } else { "threshold" };
        let (problem, hint) = match level {
            _ if !level.is_finite() => (format!("its {what} must be a finite number"), None),
            _ if self.metric.measure() != Measure::Ratio || (0.0..=1.0).contains(&level) => return Ok(()),
            _ => {
                let hint = match (0.0..=100.0).contains(&level) {
                    true => format!("did you mean {level}%?"),
                    false => "write it as 80% or 0.8".to_owned(),
                };
                (format!("its {what} is {level}, and {} is a share from 0 to 1", self.metric.as_str()), Some(hint))
            }
        };
        Err(RuleFault { field, problem, hint })
    }
}

/// Why a rule cannot work.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, miette::Diagnostic)]
#[error("{problem}")]
pub struct RuleFault {
    /// What of it is wrong.
    pub field: RuleField,
    /// What is wrong.
    pub problem: String,
    /// What to write instead.
    #[help]
    pub hint: Option<String>,
}

/// What can be wrong about a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuleField {
    /// What it measures.
    Metric,
    /// The level at which its alert is raised.
    Threshold,
    /// The level at which its alert is cleared.
    Clear,
    /// What it is about.
    Of,
}

/// A message about an alert that the console has stored.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AlertAck {
    /// The alert.
    pub id: Name,
    /// Since when: it identifies the occurrence.
    pub since_ms: Millis,
    /// The state in the message.
    pub state: AlertState,
}

/// The summary of an active alert; `s/<slot>/h/<host>/alert/…` has the whole.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AlertSummary {
    /// Its severity.
    pub severity: Severity,
    /// Since when the threshold has been exceeded.
    pub since_ms: Millis,
    /// The unit that it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unit: Option<UnitName>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        name::HostId,
        numbered::{NumberedContent, NumberedDocument},
        slot::Slot,
    };

    fn rule(metric: Metric, threshold: f64, clear: Option<f64>) -> Rule {
        Rule { metric, of: None, threshold, clear, for_ms: 0, severity: Severity::Warning, disabled: false }
    }

    #[test]
    fn invalid_rules_are_refused_with_reason() {
        let of = |metric, of: &str| Rule { of: Some(of.to_owned()), ..rule(metric, 0.9, None) };
        for (rule, problem) in [
            (rule(Metric::CpuBusy, 0.9, Some(0.8)), ""),
            (rule(Metric::CpuBusy, 0.9, None), ""),
            (rule(Metric::CertificateLeft, 0.2, Some(0.3)), ""),
            (of(Metric::DiskUsed, "/"), ""),
            (of(Metric::InodesUsed, "/"), ""),
            (of(Metric::DiskUnresponsive, "/"), ""),
            (of(Metric::UnitCpuBusy, "default/till"), ""),
            (rule(Metric::CpuBusy, 0.9, Some(0.95)), "above its threshold"),
            (rule(Metric::CertificateLeft, 0.2, Some(0.1)), "below its threshold"),
            (rule(Metric::CpuBusy, f64::NAN, None), "finite"),
            (rule(Metric::CpuBusy, 0.9, Some(f64::NEG_INFINITY)), "finite"),
            (rule(Metric::Other, 0.9, None), "disk_used"),
            (rule(Metric::DiskUsed, 80.0, None), "did you mean 80%?"),
            (rule(Metric::UnitCpuBusy, 92.5, None), "did you mean 92.5%?"),
            (rule(Metric::DiskUsed, 1_000.0, None), "write it as 80%"),
            (rule(Metric::DiskUsed, -0.1, None), "write it as 80%"),
            (rule(Metric::CertificateLeft, 0.2, Some(30.0)), "clear level is 30"),
            (rule(Metric::DiskUsed, 1.0, Some(0.0)), ""),
            (rule(Metric::LoadPerCore, 80.0, None), ""),
            (of(Metric::DiskUsed, ""), "bytes"),
            (of(Metric::UnitCpuBusy, "till"), "not a unit"),
            (of(Metric::CpuBusy, "/"), "metric of the host"),
        ] {
            let found = rule.check().err().map(|fault| Diagnostic::of(&fault).to_string()).unwrap_or_default();
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
        let body = |rules| NumberedDocument {
            v: V1,
            host: HostId::random(),
            issued_ms: 0,
            number: 1,
            content: NumberedContent::AlertRules(rules),
        };
        let rules = (0..RULES_MAX / 2).map(|index| (name(index), one.clone())).collect();
        let signer = crate::envelope::Signer::from_pkcs8(&crate::envelope::Signer::generate().unwrap()).unwrap();
        // Sixty-four of the longest kind, quoted twice, or the maximum of realistic ones.
        signer.sign(Slot(0), &body(rules)).unwrap();
        let one = Rule { of: Some(format!("/{}", "x".repeat(64))), ..one };
        let rules = (0..RULES_MAX).map(|index| (name(index), one.clone())).collect();
        signer.sign(Slot(0), &body(rules)).unwrap();
    }
}
