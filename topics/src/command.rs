//! Commands: signed, expiring requests with an id.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{
    Millis, V1,
    envelope::{Body, Kind},
    name::{CommandId, Digest, HostId, LabelValue, Name, UnitName},
    outcome::Stream,
    realm::Realm,
    sealed::Sealed,
    select::{self, HostSelect},
    signal::Signal,
    topic::Topic,
    unit::{ArtifactRef, ConfigRef, Run, Spec},
};

pub use crate::exec::{BATCH_MAX, Batch, Exec, Keep, STDIN_MAX_BYTES, output_max_bytes};

/// The most output of a stream that is kept for one command on one host.
pub const OUTPUT_MAX_BYTES: u64 = 16 * 1024 * 1024;

/// The longest time between a command's issue and its expiry: seven days.
pub const LIFETIME_MAX_MS: Millis = 7 * 24 * 3_600_000;

/// In the last seconds before its expiry a command that the host is too busy for is refused for good. Earlier the host
/// answers `busy` and keeps nothing, and the command may come again.
pub const BUSY_FINAL_MS: Millis = 10_000;

/// The most hosts in one command; `all` and groups reach more. A thousand ids take 39 KB of the 64 KiB of a message.
pub const TARGET_HOSTS_MAX: usize = 1_000;

/// A signed body on `h/<host>/cmd`, `cmd/all` and `cmd/group/<label>`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Command {
    /// Version of this payload.
    pub v: V1,
    /// Identifies the command, so that a repetition is recognised.
    pub id: CommandId,
    /// The hosts that it is for.
    pub target: Target,
    /// When the console made it.
    pub issued_ms: Millis,
    /// When it expires: afterwards it is refused.
    pub expires_ms: Millis,
    /// The operator.
    pub operator: Name,
    /// The definitions of the verb's realm and its parents, parents first, so that a host that does not have them yet
    /// gets them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub realms: Vec<Realm>,
    /// What to do. [`sealed`](Self::sealed) values are replaced by masks.
    pub verb: Verb,
    /// The values of the verb that only its hosts may read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sealed: Option<Sealed>,
}

impl Body for Command {
    const KIND: Kind = Kind::Command;
}

/// The target of a command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Target {
    /// These hosts, at most [`TARGET_HOSTS_MAX`].
    Hosts(Vec<HostId>),
    /// Every host of the fleet.
    All,
    /// The hosts with a label of this name, whatever its value. It is published on `cmd/group/<label>`.
    Group(Name),
    /// The hosts that a selector matches; each decides by its own state when the command arrives. It is published on
    /// `cmd/all`.
    Select(HostSelect),
}

impl Target {
    /// Whether the target includes a host in its present state.
    #[must_use]
    pub fn includes(&self, host: &select::Host<'_>) -> bool {
        match self {
            Self::Hosts(hosts) => hosts.contains(&host.host),
            Self::All => true,
            Self::Group(label) => host.labels.contains_key(label),
            Self::Select(select) => select.picks(host),
        }
    }

    /// Returns the topic on which it is published for all hosts at once; `None` if it is published to each host.
    #[must_use]
    pub fn broadcast(&self) -> Option<Topic> {
        match self {
            Self::Hosts(_) => None,
            Self::All | Self::Select(_) => Some(Topic::CommandAll),
            Self::Group(label) => Some(Topic::CommandGroup(label.clone())),
        }
    }
}

/// What to do.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Verb {
    /// Run a program once.
    Exec(Exec),
    /// Run several programs, one after the other. Local policies treat it as `exec`.
    Batch(Batch),
    /// Create or change a unit.
    UnitApply {
        /// The unit.
        unit: UnitName,
        /// Its new spec.
        spec: Box<Spec>,
        /// Whether it should run; if left out, an existing unit keeps its state, and a new one is stopped.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        run: Option<Run>,
    },
    /// Create or change several units, all or none; or only check whether that could be done. Local policies treat it
    /// as `unit_apply`.
    UnitsApply(UnitSet),
    /// Start a unit.
    UnitRun {
        /// The unit.
        unit: UnitName,
    },
    /// Stop a unit.
    UnitStop {
        /// The unit.
        unit: UnitName,
    },
    /// Restart a unit.
    UnitRestart {
        /// The unit.
        unit: UnitName,
    },
    /// Pause reconciliation of a unit until `unit_unhold`: a running instance continues, and a stopped one is not
    /// started. Only a stop still works.
    UnitHold {
        /// The unit.
        unit: UnitName,
        /// The reason, in at most [`crate::unit::NOTE_MAX_CHARS`] characters.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        note: Option<String>,
    },
    /// End a unit's hold, an operator's or that of a broken one, and forget its earlier failures.
    UnitUnhold {
        /// The unit.
        unit: UnitName,
    },
    /// Stop a unit and hold it, which is required before it can be removed.
    UnitRetire {
        /// The unit.
        unit: UnitName,
        /// The reason, as with a hold.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        note: Option<String>,
    },
    /// Change a unit's labels; those that are not named stay.
    UnitLabel {
        /// The unit.
        unit: UnitName,
        /// Each label with its new value, or with null to remove it.
        labels: BTreeMap<Name, Option<LabelValue>>,
    },
    /// Give a unit another artifact or other configs, and change nothing else.
    UnitUpgrade {
        /// The unit.
        unit: UnitName,
        /// The revision that this was planned for. It is refused if another one is desired by now.
        from: Digest,
        /// The new artifact; if left out, it stays.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        artifact: Option<ArtifactRef>,
        /// The new configs, each in place of the one with its id.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        configs: Vec<ConfigRef>,
    },
    /// Freeze a unit that should run, with all its processes. It can still be stopped.
    UnitFreeze {
        /// The unit.
        unit: UnitName,
    },
    /// Thaw a frozen unit.
    UnitThaw {
        /// The unit.
        unit: UnitName,
    },
    /// Send a signal to a unit's main process. It does not change the desired state.
    UnitSignal {
        /// The unit.
        unit: UnitName,
        /// The signal.
        signal: Signal,
    },
    /// Remove a retired unit: one that is stopped, and held by an operator.
    UnitRm {
        /// The unit.
        unit: UnitName,
    },
    /// Return the last lines of a unit's log as output.
    UnitLogs {
        /// The unit.
        unit: UnitName,
        /// How many lines, at most [`LOG_LINES_MAX`].
        lines: u32,
        /// Which part, and its format.
        #[serde(default, skip_serializing_if = "LogView::is_plain")]
        view: LogView,
    },
    /// Return the last lines of a unit's log and later ones as output, until the time is over, the command is
    /// cancelled, or the limit of output is reached.
    UnitFollow {
        /// The unit.
        unit: UnitName,
        /// How many earlier lines.
        lines: u32,
        /// Which part of those, and the format.
        #[serde(default, skip_serializing_if = "LogView::is_plain")]
        view: LogView,
        /// For how long, at most [`FOLLOW_MAX_MS`].
        for_ms: u64,
    },
    /// Cancel a command: its program is asked to end and soon killed, a log is not followed any more, and a command
    /// that has not arrived yet is refused when it does. A finished command is not changed.
    Cancel {
        /// The command.
        command: CommandId,
    },
    /// Set a realm to its definition in [`Command::realms`].
    RealmSet {
        /// The realm.
        realm: Name,
    },
    /// Remove a realm that has no units.
    RealmRm {
        /// The realm.
        realm: Name,
    },
    /// Save the desired state of every unit of the host under a name. Repeating it succeeds; other units under an
    /// existing name are refused.
    SnapshotTake {
        /// The snapshot.
        snapshot: Name,
    },
    /// Return the host's snapshots as output: [`Snapshots`](crate::snapshot::Snapshots).
    SnapshotLs,
    /// Return how each unit differs from a snapshot, as output: a [`SnapshotDiff`](crate::snapshot::SnapshotDiff).
    SnapshotDiff {
        /// The snapshot.
        snapshot: Name,
    },
    /// Restore each unit of a snapshot. Unchanged units are not touched.
    SnapshotActivate {
        /// The snapshot.
        snapshot: Name,
    },
    /// Restore each unit that the activation of a snapshot has changed to its earlier state.
    SnapshotDeactivate {
        /// The snapshot.
        snapshot: Name,
    },
    /// Remove a snapshot that is not active.
    SnapshotRm {
        /// The snapshot.
        snapshot: Name,
    },
    /// Return the configuration that a unit's process reads, as stored on the host: an
    /// [`Effective`](crate::effective::Effective), as output.
    UnitConfig {
        /// The unit.
        unit: UnitName,
    },
    /// Make a yuno play, which it confirms on its channel.
    UnitPlay {
        /// The unit.
        unit: UnitName,
        /// Start it if it should not run; otherwise that is refused.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        run: bool,
    },
    /// Make a yuno run without playing.
    UnitPause {
        /// The unit.
        unit: UnitName,
    },
    /// Send yunos a command of their own, on their channels. The answer, on standard output, is one JSON object with a
    /// [`crate::outcome::UnitAnswer`] for each unit.
    UnitCommand(Forward),
    /// Ask yunos for their statistics; the answer is as for `unit_command`.
    UnitStats {
        /// The units, at most [`FORWARD_UNITS_MAX`].
        units: Vec<UnitName>,
        /// How long each may take to answer.
        timeout_ms: u64,
    },
}

/// The most units that one command is sent to on a host: as many as a host may have.
pub const FORWARD_UNITS_MAX: usize = crate::unit::UNITS_MAX;

/// The longest name of a yuno's own command.
pub const FORWARD_NAME_MAX_BYTES: usize = 200;

/// The longest timeout of a yuno's own command: an hour.
pub const FORWARD_TIMEOUT_MAX_MS: u64 = 3_600_000;

/// A command of yunos' own.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Forward {
    /// The units, at most [`FORWARD_UNITS_MAX`].
    pub units: Vec<UnitName>,
    /// The command's name, which the yuno defines.
    pub name: String,
    /// Its arguments.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub args: Map<String, Value>,
    /// How long each may take to answer.
    pub timeout_ms: u64,
}

/// Desired state of several units, to be applied to all or none.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct UnitSet {
    /// The units, each once.
    pub units: Vec<UnitWish>,
    /// Whether to check only, and change nothing.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub check: bool,
    /// The part of a larger set that this is; without it, it is the whole set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub part: Option<SetPart>,
}

/// The desired state of one unit of a set.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct UnitWish {
    /// The unit.
    pub unit: UnitName,
    /// Its spec.
    pub spec: Box<Spec>,
    /// Whether it should run, as with [`Verb::UnitApply`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<Run>,
    /// Whether it must not exist yet.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub new: bool,
}

/// A part of a set that is too large for one message. The host stores parts until it has all of them, in any order: all
/// but the last one to arrive are answered with `completed`, and that one with the result of the whole set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SetPart {
    /// The id of the set.
    pub set: CommandId,
    /// The part's number, from 1.
    pub number: u32,
    /// The number of parts, at most [`SET_PARTS_MAX`].
    pub of: u32,
}

/// The most parts of a set: as many as a host may have units, each as large as a message.
pub const SET_PARTS_MAX: u32 = 256;

/// Which part of a log is read, and its format. A line's time is when its host received it from the program; lines from
/// before times were recorded have none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LogView {
    /// Leave out earlier lines.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since_ms: Option<Millis>,
    /// Leave out later lines.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until_ms: Option<Millis>,
    /// Put each line's time before it, as `2026-01-31T12:00:00.000Z`, or `-` if it is unknown, and a blank.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub times: bool,
}

impl LogView {
    /// Whether it is the whole log, unchanged.
    #[must_use]
    pub fn is_plain(&self) -> bool {
        *self == Self::default()
    }

    /// Whether a line of this time is part of it; a line without a time only if the view has no beginning.
    #[must_use]
    pub fn has(&self, at_ms: Option<Millis>) -> bool {
        match at_ms {
            None => self.since_ms.is_none(),
            Some(at_ms) => {
                self.since_ms.is_none_or(|since_ms| at_ms >= since_ms)
                    && self.until_ms.is_none_or(|until_ms| at_ms <= until_ms)
            }
        }
    }
}

/// The most lines of a log that can be requested at once.
pub const LOG_LINES_MAX: u32 = 10_000;

/// The longest time to follow a log: an hour. To follow longer, ask again.
pub const FOLLOW_MAX_MS: u64 = 3_600_000;

impl Verb {
    /// Returns the programs that it runs.
    #[must_use]
    pub fn execs(&self) -> &[Exec] {
        match self {
            Self::Exec(exec) => std::slice::from_ref(exec),
            Self::Batch(batch) => &batch.steps,
            _ => &[],
        }
    }

    /// Returns the specs that it applies.
    pub fn specs(&self) -> impl Iterator<Item = (&UnitName, &Spec)> {
        let (one, several) = match self {
            Self::UnitApply { unit, spec, .. } => (Some((unit, &**spec)), &[][..]),
            Self::UnitsApply(set) => (None, &set.units[..]),
            _ => (None, &[][..]),
        };
        one.into_iter().chain(several.iter().map(|wish| (&wish.unit, &*wish.spec)))
    }

    /// Returns the containers that its programs run in.
    pub fn containers(&self) -> impl Iterator<Item = &UnitName> {
        let of_units = self.specs().filter_map(|(_, spec)| spec.yuno()?.container.as_ref());
        self.execs().iter().filter_map(|exec| exec.container.as_ref()).chain(of_units)
    }

    /// Returns the units that it is about.
    #[must_use]
    pub fn units(&self) -> Vec<&UnitName> {
        match self {
            Self::Exec(_)
            | Self::Batch(_)
            | Self::Cancel { .. }
            | Self::RealmSet { .. }
            | Self::RealmRm { .. }
            | Self::SnapshotTake { .. }
            | Self::SnapshotLs
            | Self::SnapshotDiff { .. }
            | Self::SnapshotActivate { .. }
            | Self::SnapshotDeactivate { .. }
            | Self::SnapshotRm { .. } => Vec::new(),
            Self::UnitsApply(set) => set.units.iter().map(|wish| &wish.unit).collect(),
            Self::UnitApply { unit, .. }
            | Self::UnitRun { unit }
            | Self::UnitStop { unit }
            | Self::UnitRestart { unit }
            | Self::UnitHold { unit, .. }
            | Self::UnitUnhold { unit }
            | Self::UnitRetire { unit, .. }
            | Self::UnitLabel { unit, .. }
            | Self::UnitUpgrade { unit, .. }
            | Self::UnitFreeze { unit }
            | Self::UnitThaw { unit }
            | Self::UnitSignal { unit, .. }
            | Self::UnitRm { unit }
            | Self::UnitLogs { unit, .. }
            | Self::UnitFollow { unit, .. }
            | Self::UnitConfig { unit }
            | Self::UnitPlay { unit, .. }
            | Self::UnitPause { unit } => vec![unit],
            Self::UnitCommand(Forward { units, .. }) | Self::UnitStats { units, .. } => units.iter().collect(),
        }
    }

    /// Returns the most output of a stream that one host may report.
    #[must_use]
    pub fn output_max_bytes(&self, stream: Stream) -> u64 {
        match self {
            Self::Exec(exec) => exec.max_bytes(stream),
            Self::Batch(batch) => batch.steps.iter().map(|exec| exec.max_bytes(stream)).fold(0, u64::saturating_add),
            // Logs, answers and lists, of which an agent reports no more.
            _ => OUTPUT_MAX_BYTES,
        }
    }

    /// Returns the verb's name as in the JSON form.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Exec(_) => "exec",
            Self::Batch(_) => "batch",
            Self::UnitApply { .. } => "unit_apply",
            Self::UnitsApply(_) => "units_apply",
            Self::UnitRun { .. } => "unit_run",
            Self::UnitStop { .. } => "unit_stop",
            Self::UnitRestart { .. } => "unit_restart",
            Self::UnitHold { .. } => "unit_hold",
            Self::UnitUnhold { .. } => "unit_unhold",
            Self::UnitRetire { .. } => "unit_retire",
            Self::UnitLabel { .. } => "unit_label",
            Self::UnitUpgrade { .. } => "unit_upgrade",
            Self::UnitFreeze { .. } => "unit_freeze",
            Self::UnitThaw { .. } => "unit_thaw",
            Self::UnitSignal { .. } => "unit_signal",
            Self::UnitRm { .. } => "unit_rm",
            Self::UnitLogs { .. } => "unit_logs",
            Self::UnitConfig { .. } => "unit_config",
            Self::UnitPlay { .. } => "unit_play",
            Self::UnitPause { .. } => "unit_pause",
            Self::UnitCommand(_) => "unit_command",
            Self::UnitStats { .. } => "unit_stats",
            Self::UnitFollow { .. } => "unit_follow",
            Self::Cancel { .. } => "cancel",
            Self::RealmSet { .. } => "realm_set",
            Self::RealmRm { .. } => "realm_rm",
            Self::SnapshotTake { .. } => "snapshot_take",
            Self::SnapshotLs => "snapshot_ls",
            Self::SnapshotDiff { .. } => "snapshot_diff",
            Self::SnapshotActivate { .. } => "snapshot_activate",
            Self::SnapshotDeactivate { .. } => "snapshot_deactivate",
            Self::SnapshotRm { .. } => "snapshot_rm",
        }
    }
}

/// A signed body on `h/<host>/cmd` and `cmd/all`: a request to send a full heartbeat, publish the retained state again,
/// and send the outbox. It has no id and no outcome, because it changes nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Refresh {
    /// Version of this payload.
    pub v: V1,
    /// When the console made it.
    pub issued_ms: Millis,
    /// The agent answers after a random part of this time, so that a fleet does not answer at once.
    pub within_ms: u64,
}

impl Body for Refresh {
    const KIND: Kind = Kind::Refresh;
}
