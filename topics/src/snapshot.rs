//! Snapshots: what the units of a host should be, under a name, to be compared with and gone back to. These are the
//! answers to the verbs about them, each a JSON document as the command's output.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    Millis,
    name::{Name, UnitName},
    unit::Run,
};

/// Answer to [`crate::command::Verb::SnapshotLs`]: the snapshots of the host, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Snapshots {
    /// Each of them.
    pub snapshots: Vec<Snapshot>,
}

/// A snapshot, without what is in it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Snapshot {
    /// Its name.
    pub name: Name,
    /// Who took it.
    pub by: Name,
    /// When it was taken, by the host's clock.
    pub taken_ms: Millis,
    /// Since when it is active, if it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub active_ms: Option<Millis>,
    /// Its units.
    pub units: Vec<UnitName>,
}

/// Answer to [`crate::command::Verb::SnapshotDiff`], and to [`crate::command::Verb::SnapshotActivate`] and
/// [`crate::command::Verb::SnapshotDeactivate`], of which it says what they do: unit by unit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SnapshotDiff {
    /// The snapshot.
    pub snapshot: Name,
    /// Every unit of the host or the snapshot, by name.
    pub units: Vec<UnitDiff>,
}

/// How one unit differs from a snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct UnitDiff {
    /// The unit.
    pub unit: UnitName,
    /// How.
    #[serde(flatten)]
    pub difference: Difference,
    /// The generation that was made of it, once something was done about the difference.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Option<u64>,
}

/// How a unit differs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "difference", rename_all = "snake_case")]
pub enum Difference {
    /// Not at all.
    Same,
    /// It should be something else now than it should then.
    Changed {
        /// The fields of its spec in which it differs; their values may be secret.
        fields: Vec<String>,
        /// Whether it should run, if that is another answer than now.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        run: Option<Run>,
        /// It is another revision: its process is replaced.
        restarts: bool,
    },
    /// It is in the snapshot, and not on the host.
    Missing,
    /// It is on the host, and not in the snapshot, which has no opinion on it.
    Extra,
    /// Something else was desired of it since the snapshot was activated, and that stays.
    Later,
}
