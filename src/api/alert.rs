//! Alerts, rules and silences.

use muster_rules::time;
use muster_topics::{
    Millis,
    alert::Rule,
    name::{HostId, Name},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// One occurrence of an alert: an item of `GET /api/v1/alerts` (active ones) and of `GET /api/v1/alerts/history`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "HostAlert")]
pub struct Alert {
    /// The host.
    pub host: HostId,
    /// The host's name.
    pub hostname: String,
    /// Whether it is active.
    pub standing: AlertStanding,
    /// When it ended, by the host's clock.
    pub ended_ms: Option<Millis>,
    /// When the console first received it.
    pub received_ms: Millis,
    /// The silence that covers it.
    pub silence: Option<AlertSilence>,
    /// The last message of the host about it.
    pub alert: muster_topics::alert::Alert,
}

impl Alert {
    /// Since when it has been active: by the host's clock, or the time at which the console first received it if that
    /// clock cannot have been right.
    #[must_use]
    pub fn begun_ms(&self) -> Millis {
        if time::can_be_true(self.alert.since_ms, self.received_ms) { self.alert.since_ms } else { self.received_ms }
    }
}

/// Whether an alert is active, as far as the console knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum AlertStanding {
    /// It is active.
    Raised,
    /// The host has reported its end.
    Cleared,
    /// The host no longer reports it as active, and has not reported its end.
    Gone,
}

/// A rule on the console: an item of `GET /api/v1/alert-rules`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct AlertRule {
    /// Its name.
    pub name: Name,
    /// The only host that it applies to; `null`: all hosts.
    pub host: Option<HostId>,
    /// The rule.
    pub rule: Rule,
}

/// `POST /api/v1/alert-rules`: sets a rule, which takes precedence over a host's own rule of the same name.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NewAlertRule {
    /// Its name.
    pub name: Name,
    /// The only host that it applies to, by id or by a unique hostname; all hosts, if left out.
    #[serde(default)]
    pub host: Option<String>,
    /// The rule.
    pub rule: Rule,
}

/// A silence: an item of `GET /api/v1/alert-silences`. Alerts that it covers are stored and shown, but nobody is
/// notified.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AlertSilence {
    /// Its id.
    pub id: Name,
    /// The host; `null`: all hosts.
    pub host: Option<HostId>,
    /// The rule; `null`: all rules.
    pub rule: Option<Name>,
    /// The reason.
    pub reason: String,
    /// The operator who created it.
    pub operator: Name,
    /// When it was created.
    pub created_ms: Millis,
    /// When it ends.
    pub until_ms: Millis,
}

impl AlertSilence {
    /// Whether it covers an alert of this host and rule.
    #[must_use]
    pub fn covers(&self, host: HostId, rule: &Name) -> bool {
        self.host.is_none_or(|of| of == host) && self.rule.as_ref().is_none_or(|of| of == rule)
    }
}

/// `POST /api/v1/alert-silences`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NewAlertSilence {
    /// The host, by id or by a unique hostname; all hosts, if left out.
    #[serde(default)]
    pub host: Option<String>,
    /// The rule; all rules, if left out.
    #[serde(default)]
    pub rule: Option<Name>,
    /// The reason.
    pub reason: String,
    /// Its duration.
    pub for_s: u64,
}
