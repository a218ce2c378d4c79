//! Alerts, rules and silences.

use muster_rules::time;
use muster_topics::{
    Millis,
    alert::Rule,
    name::{HostId, Name},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// One occurrence of an alert: an item of `GET /api/v1/alerts` (those that hold) and of `GET /api/v1/alerts/history`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "HostAlert")]
pub struct Alert {
    /// The host.
    pub host: HostId,
    /// The name that it gives itself.
    pub hostname: String,
    /// Whether it holds.
    pub standing: AlertStanding,
    /// When it ended, by the host's clock.
    pub ended_ms: Option<Millis>,
    /// When the console first heard of it.
    pub received_ms: Millis,
    /// What keeps it quiet.
    pub silence: Option<AlertSilence>,
    /// What the host said last.
    pub alert: muster_topics::alert::Alert,
}

impl Alert {
    /// Since when it has been so: by the host's clock, or by when the console first heard of it if that clock cannot have been right.
    #[must_use]
    pub fn begun_ms(&self) -> Millis {
        if time::can_be_true(self.alert.since_ms, self.received_ms) { self.alert.since_ms } else { self.received_ms }
    }
}

/// Whether an alert holds, as far as the console knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum AlertStanding {
    /// It does.
    Raised,
    /// The host has said that it is over.
    Cleared,
    /// The host holds it no more, and has not told how it ended.
    Gone,
}

/// A rule of the console: an item of `GET /api/v1/alert-rules`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct AlertRule {
    /// Its name.
    pub name: Name,
    /// The one host that it is for; all, if there is none.
    pub host: Option<HostId>,
    /// The rule.
    pub rule: Rule,
}

/// `POST /api/v1/alert-rules`: sets a rule, which stands before one of the same name that hosts have of their own.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NewAlertRule {
    /// Its name.
    pub name: Name,
    /// The one host that it is for, by id or by a hostname that only one has; all, if left out.
    #[serde(default)]
    pub host: Option<String>,
    /// The rule.
    pub rule: Rule,
}

/// A silence: an item of `GET /api/v1/alert-silences`. Alerts that it covers hold, are kept and shown, and are told to nobody.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AlertSilence {
    /// Names it.
    pub id: Name,
    /// Of this host; of all, if there is none.
    pub host: Option<HostId>,
    /// Of this rule; of all, if there is none.
    pub rule: Option<Name>,
    /// Why.
    pub reason: String,
    /// Who wants it.
    pub operator: Name,
    /// Since when.
    pub created_ms: Millis,
    /// Until when.
    pub until_ms: Millis,
}

impl AlertSilence {
    /// Whether it is about an alert of this host and this rule.
    #[must_use]
    pub fn covers(&self, host: HostId, rule: &Name) -> bool {
        self.host.is_none_or(|of| of == host) && self.rule.as_ref().is_none_or(|of| of == rule)
    }
}

/// `POST /api/v1/alert-silences`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NewAlertSilence {
    /// Of this host, by id or by a hostname that only one has; of all, if left out.
    #[serde(default)]
    pub host: Option<String>,
    /// Of this rule; of all, if left out.
    #[serde(default)]
    pub rule: Option<Name>,
    /// Why.
    pub reason: String,
    /// For how long.
    pub for_s: u64,
}
