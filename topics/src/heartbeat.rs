//! Heartbeats: the state of a host, full at first, and then as deltas.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    Millis, V1,
    alert::AlertSummary,
    canonical::{self, CanonicalError},
    command_keys::KnownKeys,
    container::ContainerSummary,
    desired::DesiredReport,
    name::{Digest, Name, UnitName},
    numbered::{self, Numbers},
    unit::{Hold, Phase, Run},
};

/// Payload of `s/<slot>/h/<host>/heartbeat`.
///
/// A delta applies only to the state of `base_seq` in the same epoch, which is the last one that the console has
/// acknowledged. A console that has another one asks for a full heartbeat.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Heartbeat {
    /// Version of this payload.
    pub v: V1,
    /// The epoch of the agent.
    pub epoch: u64,
    /// The number, which grows by one with each heartbeat of the epoch, from 1; a repetition keeps its number, and a
    /// digest has that of the heartbeat that it is about.
    pub seq: u64,
    /// When it was made, by the agent's clock.
    pub at_ms: Millis,
    /// Whether it is the last heartbeat of an orderly exit.
    #[serde(rename = "final")]
    pub is_final: bool,
    /// The state, or its changes.
    #[serde(flatten)]
    pub content: Content,
}

/// The content of a heartbeat.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[expect(clippy::large_enum_variant, reason = "few exist at a time, and each is about to be serialised")]
pub enum Content {
    /// The whole state.
    Full {
        /// The state.
        state: HostState,
    },
    /// The changes since `base_seq`.
    Delta {
        /// The heartbeat that this applies to.
        base_seq: u64,
        /// A JSON merge patch (RFC 7396) of the state's JSON form.
        patch: Value,
    },
    /// What the console should have as of the acknowledged heartbeat with this `seq`: see [`digest`]. It is sent
    /// regularly and is not acknowledged; only a console that has something else answers, by asking for everything.
    Digest {
        /// The digest.
        digest: Digest,
    },
}

/// Returns the digest of a host's reports: the SHA-256 of the canonical JSON (RFC 8785) of `{"state": …, "units":
/// {…}}`, with its state as of a heartbeat, and for each unit the `seq` of its last report in this epoch.
///
/// # Errors
/// If a number in the state has no canonical form.
pub fn digest(state: &Value, units: &BTreeMap<UnitName, u64>) -> Result<Digest, CanonicalError> {
    #[derive(Serialize)]
    struct Told<'a> {
        state: &'a Value,
        units: &'a BTreeMap<UnitName, u64>,
    }
    canonical::digest(&Told { state, units })
}

/// The state of a host, as it reports it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct HostState {
    /// The hostname.
    pub hostname: String,
    /// The agent's version.
    pub agent_version: String,
    /// Slowly changing properties of the machine.
    pub facts: Facts,
    /// Network interfaces by name, loopback left out.
    pub interfaces: BTreeMap<String, Interface>,
    /// The host's labels: its own, and those that the console gives it, which win.
    pub labels: BTreeMap<Name, String>,
    /// The realms of the host.
    pub realms: Vec<Name>,
    /// The summary of every unit; `s/<slot>/h/<host>/unit/…` has the whole.
    pub units: BTreeMap<UnitName, UnitSummary>,
    /// The summary of every active alert.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub alerts: BTreeMap<Name, AlertSummary>,
    /// The containers of the host, by name, units or not: at most [`LISTED_MAX`](crate::container::LISTED_MAX).
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub containers: BTreeMap<String, ContainerSummary>,
    /// Which of the console's numbered documents the host has.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty", deserialize_with = "numbered::known")]
    pub numbers: Numbers,
    /// The labels of the host's own configuration, if the console gives it any; otherwise they are `labels`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub own_labels: Option<BTreeMap<Name, String>>,
    /// The keys that the host verifies the console's signatures with.
    pub command_keys: KnownKeys,
    /// The console's document on the host, and what became of it.
    pub desired: DesiredReport,
}

impl HostState {
    /// Returns the labels of the host's own configuration.
    #[must_use]
    pub fn own_labels(&self) -> &BTreeMap<Name, String> {
        self.own_labels.as_ref().unwrap_or(&self.labels)
    }
}

/// Slowly changing properties of the machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Facts {
    /// Name and version of the distribution.
    pub os: String,
    /// Release of the kernel.
    pub kernel: String,
    /// Architecture, as Rust names it (`x86_64`, `aarch64`).
    pub arch: String,
    /// Logical processors.
    pub cpus: u32,
    /// The processor's model.
    pub cpu_model: String,
    /// Physical memory.
    pub memory_bytes: u64,
    /// Changes with each boot of the machine.
    pub boot_id: String,
    /// When the machine was booted.
    pub boot_ms: Millis,
}

/// One network interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Interface {
    /// Hardware address.
    pub mac: String,
    /// Addresses with prefix length (`192.0.2.7/24`), sorted.
    pub addresses: Vec<String>,
}

/// The summary of a unit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct UnitSummary {
    /// The generation that the agent has reached.
    pub generation: u64,
    /// Whether the unit should run.
    pub run: Run,
    /// Its phase.
    pub phase: Phase,
    /// Why it does not converge, on purpose.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hold: Option<Hold>,
    /// Whether it is rolled back to the last verified revision.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub rolled_back: bool,
}

impl UnitSummary {
    /// Whether it needs attention: it should run, is not held by an operator, and it has failed, waits for a restart,
    /// is held as broken or for a dependency, or is rolled back.
    #[must_use]
    pub fn is_troubled(&self) -> bool {
        let is_held = self.hold.as_ref().is_some_and(|hold| hold.reason == crate::unit::HoldReason::Operator);
        let has_failed = matches!(self.phase, Phase::Failed | Phase::Backoff);
        self.run.is_running() && !is_held && (has_failed || self.rolled_back || self.hold.is_some())
    }
}
