//! Files of a host as a unit: the spec of kind `files`.
//!
//! A unit is *started* when its files are as described, and *running* while they are kept so. Removing it puts back what was
//! there before, as far as it still is the unit's own.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    canonical,
    common::CommonSpec,
    name::{Digest, UnitName},
    secret::SecretRef,
    task::Resource,
    unit::ArtifactRef,
};

/// The most entries of one unit: they are part of its report. A tree from an artifact is one entry.
pub const FILES_MAX: usize = 256;

/// The most bytes of all texts of one unit: they are part of its report. Larger files come from an artifact.
pub const TEXTS_MAX_BYTES: usize = 32 * 1024;

/// The most files that a folder with `purge` may lose in one run, if its entry names no other number.
pub const PURGE_MAX: u32 = 100;

/// Files, folders and links of a host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FilesSpec {
    /// The files by absolute path, at most [`FILES_MAX`].
    #[serde(default)]
    pub files: BTreeMap<String, FileEntry>,
    /// What is done if somebody else changes one of them.
    #[serde(default, skip_serializing_if = "Drift::is_correct")]
    pub drift: Drift,
    /// What is done on this host once they have changed; at most [`NOTICES_MAX`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub on_change: Vec<ChangeNotice>,
    /// What its templates name on its host, each as `vars.colour`, with its value. The host fills this in, whatever a command
    /// says: so a change of a value is a change of the unit.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub values: BTreeMap<String, serde_json::Value>,
    /// What each kind has.
    #[serde(flatten)]
    pub common: CommonSpec,
}

/// One file, folder or link.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FileEntry {
    /// What there is; exactly one of the forms.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// A template, which the host renders.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<String>,
    /// The content of an artifact; a tarball for a folder with `directory`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub artifact: Option<ArtifactRef>,
    /// A folder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub directory: Option<Directory>,
    /// A symbolic link, with where it leads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link: Option<String>,
    /// Nothing: what is there is removed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub absent: bool,
    /// Its owner, by name or number. By default a file that is there keeps its own, and a new one is the agent's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// Its group, likewise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// Its mode in octal, such as `0644`. By default a file that is there keeps its own, and a new one has `0644`, a folder
    /// `0755`; one whose template names a secret `0600`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
    /// A program with arguments that checks the new file before it replaces the old one; `{}` stands for its path. It has to
    /// end with code 0 within a minute.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub validate: Vec<String>,
}

/// A folder.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Directory {
    /// Whether owner, group and mode apply to what is in it, too.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub recurse: bool,
    /// Whether what nobody describes is removed from it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub purge: bool,
    /// The most files that `purge` may remove in one run, so that a mistake is noticed; [`PURGE_MAX`] by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub purge_max: Option<u32>,
}

/// What is done about a file that somebody else has changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Drift {
    /// It is put right.
    #[default]
    Correct,
    /// It is reported.
    Report,
}

impl Drift {
    /// Whether it is put right.
    #[must_use]
    pub fn is_correct(&self) -> bool {
        *self == Self::Correct
    }
}

/// The most actions in `on_change` of a unit: more could not be understood.
pub const NOTICES_MAX: usize = 16;

/// What is done once files have changed, or packages. It is done at least once, also if the agent ends in between, and is
/// not done if the change was rolled back before.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ChangeNotice {
    /// The paths, or names of packages, whose change counts; all of the unit's by default.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub of: Vec<String>,
    /// What is done.
    #[serde(rename = "do")]
    pub action: ChangeAction,
}

/// An action after a change.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ChangeAction {
    /// A unit of this host reads its files again, as its spec says.
    Reload(UnitName),
    /// A unit of this host is restarted.
    Restart(UnitName),
    /// A program with its arguments is run as the agent's user; it has ten minutes.
    Run(Vec<String>),
}

impl std::fmt::Display for ChangeAction {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Reload(unit) => write!(f, "reload {unit}"),
            Self::Restart(unit) => write!(f, "restart {unit}"),
            Self::Run(argv) => write!(f, "run {}", argv.join(" ")),
        }
    }
}

/// The identity fields of a unit of files.
#[derive(Serialize)]
struct Identity<'a> {
    kind: &'a str,
    files: &'a BTreeMap<String, FileEntry>,
    secrets: &'a [SecretRef],
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    values: &'a BTreeMap<String, serde_json::Value>,
    restart_epoch: u64,
}

impl FilesSpec {
    /// Creates a spec without files, with defaults.
    #[must_use]
    pub fn new() -> Self {
        Self {
            files: BTreeMap::new(),
            drift: Drift::default(),
            on_change: Vec::new(),
            values: BTreeMap::new(),
            common: CommonSpec::default(),
        }
    }

    /// Returns the digest of the identity fields.
    pub(crate) fn identity(&self, kind: &str) -> Result<Digest, canonical::CanonicalError> {
        let Self { files, values, common, .. } = self;
        let (secrets, restart_epoch) = (&common.secrets, common.restart_epoch);
        canonical::digest(&Identity { kind, files, secrets, values, restart_epoch })
    }

    /// Returns the paths that it owns.
    pub(crate) fn resources(&self) -> impl Iterator<Item = Resource> {
        self.files.keys().map(|path| Resource::Path(path.clone()))
    }
}

impl Default for FilesSpec {
    fn default() -> Self {
        Self::new()
    }
}
