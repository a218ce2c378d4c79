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

/// The most output of a stream that is kept of one command on one host.
pub const OUTPUT_MAX_BYTES: u64 = 16 * 1024 * 1024;

/// The longest time between a command's issue and its expiry: seven days.
pub const LIFETIME_MAX_MS: Millis = 7 * 24 * 3_600_000;

/// What a host is too busy for in the last seconds before its expiry it refuses for good. Before that it says `busy` and
/// keeps nothing, and the command may come again.
pub const BUSY_FINAL_MS: Millis = 10_000;

/// The most hosts that one command may list; `all` and groups reach more.
/// A thousand ids take 39 KB of the 64 KiB that a message may have.
pub const TARGET_HOSTS_MAX: usize = 1_000;

/// A signed body on `h/<host>/cmd`, `cmd/all` and `cmd/group/<label>`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Command {
    /// Version of this payload.
    pub v: V1,
    /// What makes a repetition a repetition.
    pub id: CommandId,
    /// Whom it is for.
    pub target: Target,
    /// When the console made it.
    pub issued_ms: Millis,
    /// After this it is refused, not run.
    pub expires_ms: Millis,
    /// Which operator wants it.
    pub operator: Name,
    /// What the realm is that the verb is about, and its parents, each before those below it: so that a host that
    /// hears of it for the first time knows it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub realms: Vec<Realm>,
    /// What to do. Where something is [`sealed`](Self::sealed), a mask stands in its place.
    pub verb: Verb,
    /// What of the verb only its hosts may read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sealed: Option<Sealed>,
}

impl Body for Command {
    const KIND: Kind = Kind::Command;
}

/// Whom a command is for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Target {
    /// These hosts, at most [`TARGET_HOSTS_MAX`].
    Hosts(Vec<HostId>),
    /// Every host of the fleet.
    All,
    /// The hosts that carry a label of this name, whatever its value. It goes out on `cmd/group/<label>`.
    Group(Name),
    /// The hosts that this picks; each decides by its own state when the command comes. It goes out on `cmd/all`.
    Select(HostSelect),
}

impl Target {
    /// Whether a host is meant, as it is now.
    #[must_use]
    pub fn includes(&self, host: &select::Host<'_>) -> bool {
        match self {
            Self::Hosts(hosts) => hosts.contains(&host.host),
            Self::All => true,
            Self::Group(label) => host.labels.contains_key(label),
            Self::Select(select) => select.picks(host),
        }
    }

    /// Where a command goes out in one message for all; nothing if it goes out to each of its hosts alone.
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
    /// Run several programs, one after the other. To a host's policy it is an `exec`.
    Batch(Batch),
    /// Make a unit what `spec` says: a new unit, or a change of one.
    UnitApply {
        /// The unit.
        unit: UnitName,
        /// What it should be.
        spec: Box<Spec>,
        /// Whether it should run; a unit that exists keeps what it has if this is left out, and a
        /// new one is stopped.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        run: Option<Run>,
    },
    /// Make several units what specs say, all of them or none; or only find out whether that could be done. To a host's
    /// policy it is a `unit_apply`.
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
    /// End a unit's process and start it anew.
    UnitRestart {
        /// The unit.
        unit: UnitName,
    },
    /// Leave a unit as it is, whatever is desired of it: what runs goes on, and what does not is not started. Only
    /// to stop it still works.
    UnitHold {
        /// The unit.
        unit: UnitName,
        /// What for, in at most [`crate::unit::NOTE_MAX_CHARS`] characters.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        note: Option<String>,
    },
    /// End a unit's hold, an operator's or that of a broken one, and with it what went wrong before.
    UnitUnhold {
        /// The unit.
        unit: UnitName,
    },
    /// Stop a unit and hold it, as it has to be before it can be removed.
    UnitRetire {
        /// The unit.
        unit: UnitName,
        /// What for, as with a hold.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        note: Option<String>,
    },
    /// Change a unit's labels, in place; those that are not named stay.
    UnitLabel {
        /// The unit.
        unit: UnitName,
        /// Each label with its value from now on, or with nothing if it is to go.
        labels: BTreeMap<Name, Option<LabelValue>>,
    },
    /// Give a unit another artifact or other configs, and leave all else of it as it is.
    UnitUpgrade {
        /// The unit.
        unit: UnitName,
        /// The revision that this was planned for. It is refused once another one is desired.
        from: Digest,
        /// What runs from now on; what it was, if this is left out.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        artifact: Option<ArtifactRef>,
        /// Configs, each in place of the one with its id.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        configs: Vec<ConfigRef>,
    },
    /// Suspend a unit that should run, with everything that it started. It can be stopped all the same.
    UnitFreeze {
        /// The unit.
        unit: UnitName,
    },
    /// Let a unit go on that was frozen.
    UnitThaw {
        /// The unit.
        unit: UnitName,
    },
    /// Send a signal to a unit's main process. It changes nothing of what is desired.
    UnitSignal {
        /// The unit.
        unit: UnitName,
        /// The signal.
        signal: Signal,
    },
    /// Forget a unit that is retired: stopped, and held by an operator.
    UnitRm {
        /// The unit.
        unit: UnitName,
    },
    /// The last lines of a unit's log, as output.
    UnitLogs {
        /// The unit.
        unit: UnitName,
        /// How many lines, at most [`LOG_LINES_MAX`].
        lines: u32,
        /// Of which part, and how.
        #[serde(default, skip_serializing_if = "LogView::is_plain")]
        view: LogView,
    },
    /// The last lines of a unit's log and what comes after them, as output, until the time is over, the command is
    /// cancelled, or as much was told as a command may.
    UnitFollow {
        /// The unit.
        unit: UnitName,
        /// How many lines of what was there before.
        lines: u32,
        /// Of which part of that, and how.
        #[serde(default, skip_serializing_if = "LogView::is_plain")]
        view: LogView,
        /// For how long, at most [`FOLLOW_MAX_MS`].
        for_ms: u64,
    },
    /// Bring a command to its end: a program is asked to end and soon after killed, a log is followed no more, and what
    /// has not come yet is refused when it does. What is over stays as it is.
    Cancel {
        /// The command.
        command: CommandId,
    },
    /// Let a realm be what [`Command::realms`] says that it is.
    RealmSet {
        /// The realm.
        realm: Name,
    },
    /// Forget a realm that has no units.
    RealmRm {
        /// The realm.
        realm: Name,
    },
    /// Keep what every unit of the host should be, under a name. The same again is a success; other units under a name
    /// that there is are not.
    SnapshotTake {
        /// The snapshot.
        snapshot: Name,
    },
    /// The host's snapshots, as output: [`Snapshots`](crate::snapshot::Snapshots).
    SnapshotLs,
    /// How each unit differs from a snapshot, as output: a [`SnapshotDiff`](crate::snapshot::SnapshotDiff).
    SnapshotDiff {
        /// The snapshot.
        snapshot: Name,
    },
    /// Make each unit of a snapshot again what it was. Units that are so already are not touched.
    SnapshotActivate {
        /// The snapshot.
        snapshot: Name,
    },
    /// Make each unit that the activation of a snapshot has changed again what it was before.
    SnapshotDeactivate {
        /// The snapshot.
        snapshot: Name,
    },
    /// Forget a snapshot that is not active.
    SnapshotRm {
        /// The snapshot.
        snapshot: Name,
    },
    /// What a unit's process reads as its configuration, as it lies on the host: an
    /// [`Effective`](crate::effective::Effective), as output.
    UnitConfig {
        /// The unit.
        unit: UnitName,
    },
    /// Have a yuno play, which it confirms on its channel.
    UnitPlay {
        /// The unit.
        unit: UnitName,
        /// Start it if it should not run; otherwise that is refused.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        run: bool,
    },
    /// Have a yuno run and not play.
    UnitPause {
        /// The unit.
        unit: UnitName,
    },
    /// Pass a command of their own on to yunos, each on its channel. The answer, on standard output, is one JSON
    /// object with a [`crate::outcome::UnitAnswer`] for each unit.
    UnitCommand(Forward),
    /// Ask yunos for numbers about themselves; the answer is as for `unit_command`.
    UnitStats {
        /// Which, at most [`FORWARD_UNITS_MAX`].
        units: Vec<UnitName>,
        /// How long each may take to answer.
        timeout_ms: u64,
    },
}

/// The most units that one command is passed on to on a host: as many as a host has.
pub const FORWARD_UNITS_MAX: usize = crate::unit::UNITS_MAX;

/// The longest name of a yuno's own command.
pub const FORWARD_NAME_MAX_BYTES: usize = 200;

/// The longest that a yuno's own command may take: an hour.
pub const FORWARD_TIMEOUT_MAX_MS: u64 = 3_600_000;

/// A command of yunos' own.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Forward {
    /// To which, at most [`FORWARD_UNITS_MAX`].
    pub units: Vec<UnitName>,
    /// Which command; the yuno knows what it means.
    pub name: String,
    /// Its arguments.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub args: Map<String, Value>,
    /// How long each may take to answer.
    pub timeout_ms: u64,
}

/// Units that are to be what specs say, all of them or none.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct UnitSet {
    /// The units, each once.
    pub units: Vec<UnitWish>,
    /// Only find out whether it could be done, and change nothing.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub check: bool,
    /// Which part of a larger set this is; without it, it is all of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub part: Option<SetPart>,
}

/// One unit of a set.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct UnitWish {
    /// The unit.
    pub unit: UnitName,
    /// What it should be.
    pub spec: Box<Spec>,
    /// Whether it should run, as with [`Verb::UnitApply`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<Run>,
    /// It must not be there yet.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub new: bool,
}

/// A part of a set that is too large for one message. The host keeps the parts until it has all of them, in whatever order they
/// come: all but the last to come are answered with `completed`, and that one with what the whole set came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SetPart {
    /// Names the set.
    pub set: CommandId,
    /// Which part, from 1.
    pub number: u32,
    /// Of how many, at most [`SET_PARTS_MAX`].
    pub of: u32,
}

/// The most parts of a set: as many as a host may have units, each as large as a message.
pub const SET_PARTS_MAX: u32 = 256;

/// Which part of a log is read, and how it is shown. Times are those at which its host took a line from the program; what
/// was written before they were kept has none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LogView {
    /// Nothing that was written before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since_ms: Option<Millis>,
    /// Nothing that was written after.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until_ms: Option<Millis>,
    /// Have before each line when it was written, as `2026-01-31T12:00:00.000Z`, or `-` where that is not known, and a blank.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub times: bool,
}

impl LogView {
    /// Whether it is all of a log, as it was written.
    #[must_use]
    pub fn is_plain(&self) -> bool {
        *self == Self::default()
    }

    /// Whether something that was written then is part of it; of what has no time, only where it does not begin later.
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

/// The most lines of a log that can be asked for at once.
pub const LOG_LINES_MAX: u32 = 10_000;

/// The longest that a log is followed: an hour. Whoever looks longer asks again.
pub const FOLLOW_MAX_MS: u64 = 3_600_000;

impl Verb {
    /// The programs that it runs.
    #[must_use]
    pub fn execs(&self) -> &[Exec] {
        match self {
            Self::Exec(exec) => std::slice::from_ref(exec),
            Self::Batch(batch) => &batch.steps,
            _ => &[],
        }
    }

    /// The specs that it gives units.
    pub fn specs(&self) -> impl Iterator<Item = (&UnitName, &Spec)> {
        let (one, several) = match self {
            Self::UnitApply { unit, spec, .. } => (Some((unit, &**spec)), &[][..]),
            Self::UnitsApply(set) => (None, &set.units[..]),
            _ => (None, &[][..]),
        };
        one.into_iter().chain(several.iter().map(|wish| (&wish.unit, &*wish.spec)))
    }

    /// The containers that its programs run in.
    pub fn containers(&self) -> impl Iterator<Item = &UnitName> {
        let of_units = self.specs().filter_map(|(_, spec)| spec.yuno()?.container.as_ref());
        self.execs().iter().filter_map(|exec| exec.container.as_ref()).chain(of_units)
    }

    /// The units that it is about.
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

    /// The most output of a stream that one host may tell of it.
    #[must_use]
    pub fn output_max_bytes(&self, stream: Stream) -> u64 {
        match self {
            Self::Exec(exec) => exec.max_bytes(stream),
            Self::Batch(batch) => batch.steps.iter().map(|exec| exec.max_bytes(stream)).fold(0, u64::saturating_add),
            // Logs, answers and listings, of which an agent tells no more.
            _ => OUTPUT_MAX_BYTES,
        }
    }

    /// The verb's name, as in the JSON form.
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

/// A signed body on `h/<host>/cmd` and `cmd/all`: send a full heartbeat, publish the retained state
/// again, and send what waits in the outbox. It has no id and no outcome, for it changes nothing.
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
