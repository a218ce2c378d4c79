//! The whole installation at a glance: numbers, and what is not done.

use std::collections::BTreeMap;

use muster_topics::{Millis, alert::Severity, unit::Phase};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{BackupFailure, ConsoleClock, Deployment, Rollout, Status};

/// The most deployments, and the most rollouts, that [`Installation`] names.
pub const UNFINISHED_MAX: usize = 20;

/// `GET /api/v1/installation`: what there is, what is under way, and what is wrong.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Installation {
    /// The console, its broker, and the numbers of hosts.
    #[serde(flatten)]
    pub status: Status,
    /// Number of hosts that are away: offline or stopped, and not revoked.
    pub hosts_away: u64,
    /// Number of hosts that have joined and were never online.
    pub hosts_never: u64,
    /// Number of hosts that are revoked.
    pub hosts_revoked: u64,
    /// Number of units in each phase; phases without units are left out.
    pub units: BTreeMap<Phase, u64>,
    /// Number of units that are held, failed, or wait for a restart.
    pub units_troubled: u64,
    /// Number of deployments.
    pub deployments: u64,
    /// Number of deployments that are not verified on all their hosts.
    pub deployments_unfinished: u64,
    /// The first of these, by name: up to 20.
    pub unfinished_deployments: Vec<Deployment>,
    /// Number of rollouts that are running, are paused, or have failed.
    pub rollouts_unfinished: u64,
    /// The first of these, by deployment: up to 20.
    pub unfinished_rollouts: Vec<Rollout>,
    /// Number of alerts that hold and are not silenced, by severity; severities without alerts are left out.
    pub alerts: BTreeMap<Severity, u64>,
    /// The backups of the console.
    pub backup: BackupStatus,
    /// The console's clock.
    pub clock: ConsoleClock,
}

/// Whether the console is backed up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BackupStatus {
    /// Whether there is a public key to which backups are encrypted. Without one there are none.
    pub is_possible: bool,
    /// How often one is written by itself, in hours; 0 is never.
    pub every_hours: u32,
    /// When the last one was taken, if there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_ms: Option<Millis>,
    /// Why the last attempt failed, if it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<BackupFailure>,
}
