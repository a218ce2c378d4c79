//! A revision of a unit of files as this host will have it: users resolved, templates rendered, trees unpacked. It is kept beside the
//! contents, so that going back to a revision needs nothing but this host.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fs, io,
    path::{Path, PathBuf},
};

use muster_base::files::{PRIVATE_FOLDER, SECRET_MODE, make_folder, write_atomically};
use muster_rules::files::plan::{Attributes, Content, WantedEntry};
use muster_topics::{
    diagnostic::Diagnostic,
    files::{ChangeNotice, Directory, Drift, FileEntry, FilesSpec},
    name::{Digest, UnitName},
};
use nix::unistd::{Gid, Group, Uid, User};
use serde::{Deserialize, Serialize};

use super::blobs::PackedContent;

/// The mode of a new file, of one with a secret, and of a new folder.
const FILE_MODE: u32 = 0o644;
const FOLDER_MODE: u32 = 0o755;

/// A revision, ready to be applied.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct StagedRevision {
    pub(super) revision: Digest,
    pub(super) entries: BTreeMap<String, StagedEntry>,
    pub(super) on_change: Vec<ChangeNotice>,
    pub(super) drift: Drift,
    /// The values that are in it, so that they are masked in what is said of it.
    #[serde(default, skip_serializing_if = "SecretTexts::is_empty")]
    pub(super) secrets: SecretTexts,
}

/// Values of secrets.
#[derive(Clone, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct SecretTexts(Vec<String>);

impl SecretTexts {
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl From<Vec<String>> for SecretTexts {
    fn from(values: Vec<String>) -> Self {
        Self(values)
    }
}

impl std::fmt::Debug for SecretTexts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SecretTexts({} values)", self.0.len())
    }
}

/// An entry, ready to be applied.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct StagedEntry {
    pub(super) wanted: WantedEntry,
    /// Whether its content has a secret.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) is_secret: bool,
    /// What checks it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) validate: Vec<String>,
    /// Its own keys, if it is a folder of the spec.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) directory: Option<Directory>,
    /// Where its content lies, if not in a file of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) packed: Option<PackedContent>,
}

impl StagedRevision {
    /// Returns the directories of which more than the described is looked at.
    pub(super) fn walked(&self) -> impl Iterator<Item = (&String, &StagedEntry, &Directory)> {
        self.entries.iter().filter_map(|(path, entry)| {
            let directory = entry.directory.as_ref().filter(|directory| directory.recurse || directory.purge)?;
            Some((path, entry, directory))
        })
    }

    /// Returns the blobs and artifacts that it needs.
    pub(super) fn blobs(&self) -> BTreeSet<&Digest> {
        let needed = self.entries.values().filter_map(|entry| match (&entry.wanted.content, &entry.packed) {
            (Content::File(_), Some(packed)) => Some(&packed.pack),
            (Content::File(sha256), None) => Some(sha256),
            _ => None,
        });
        needed.collect()
    }

    /// Returns the contents that have no file of their own.
    pub(super) fn packed(&self) -> HashMap<Digest, PackedContent> {
        let packed = self.entries.values().filter_map(|entry| match (&entry.wanted.content, &entry.packed) {
            (Content::File(sha256), Some(packed)) => Some((sha256.clone(), packed.clone())),
            _ => None,
        });
        packed.collect()
    }
}

/// The folder of a unit's revisions.
pub(super) struct Revisions(pub(super) PathBuf);

impl Revisions {
    pub(super) fn of(units: &Path, unit: &UnitName) -> Self {
        Self(units.join(unit.realm().as_str()).join(unit.name().as_str()))
    }

    fn file(&self, revision: &Digest) -> PathBuf {
        self.0.join(format!("{revision}.json"))
    }

    /// Returns a revision; `None` if it was not staged, or is unreadable, so that it has to be staged anew.
    pub(super) fn read(&self, revision: &Digest) -> Option<StagedRevision> {
        let staged: StagedRevision = serde_json::from_slice(&fs::read(self.file(revision)).ok()?).ok()?;
        (staged.revision == *revision).then_some(staged)
    }

    pub(super) fn write(&self, staged: &StagedRevision) -> io::Result<()> {
        make_folder(&self.0, PRIVATE_FOLDER)?;
        write_atomically(&self.file(&staged.revision), &serde_json::to_vec(staged)?, SECRET_MODE)
    }

    /// Returns the values of secrets in all revisions that are there.
    pub(super) fn secrets(&self) -> Vec<String> {
        let revisions = self.all().unwrap_or_default();
        revisions.iter().filter_map(|revision| self.read(revision)).flat_map(|staged| staged.secrets.0).collect()
    }

    /// Removes all revisions but these.
    pub(super) fn retain(&self, kept: &[&Digest]) -> io::Result<()> {
        for revision in self.all()? {
            if !kept.contains(&&revision) {
                fs::remove_file(self.file(&revision))?;
            }
        }
        Ok(())
    }

    pub(super) fn all(&self) -> io::Result<Vec<Digest>> {
        let entries = match fs::read_dir(&self.0) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            other => other?,
        };
        let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        Ok(names.filter_map(|name| name.strip_suffix(".json")?.parse().ok()).collect())
    }
}

/// Resolves owner, group and mode of an entry.
///
/// # Errors
/// With the reason, for people.
pub(super) fn wanted(entry: &FileEntry, content: Content, is_secret: bool) -> Result<WantedEntry, Diagnostic> {
    let mode = entry.mode.as_deref().map(octal).transpose()?;
    let of_new = Attributes {
        uid: nix::unistd::geteuid().as_raw(),
        gid: nix::unistd::getegid().as_raw(),
        mode: if content == Content::Directory { FOLDER_MODE } else { FILE_MODE },
    };
    Ok(WantedEntry {
        content,
        uid: entry.owner.as_deref().map(uid).transpose()?,
        gid: entry.group.as_deref().map(gid).transpose()?,
        mode: mode.or(is_secret.then_some(SECRET_MODE)),
        of_new,
    })
}

fn octal(mode: &str) -> Result<u32, Diagnostic> {
    u32::from_str_radix(mode, 8)
        .ok()
        .filter(|mode| *mode <= 0o7777)
        .ok_or_else(|| format!("{mode:?} is not a valid mode").into())
}

fn uid(name: &str) -> Result<u32, Diagnostic> {
    if let Ok(number) = name.parse() {
        return Ok(number);
    }
    let found = User::from_name(name).map_err(|error| format!("the users of this host cannot be read: {error}"))?;
    let uid = found.map(|user| Uid::as_raw(user.uid));
    uid.ok_or_else(|| {
        Diagnostic::new(format_args!("this host has no user {name}")).with_hint("create the user first, or use another")
    })
}

fn gid(name: &str) -> Result<u32, Diagnostic> {
    if let Ok(number) = name.parse() {
        return Ok(number);
    }
    let found = Group::from_name(name).map_err(|error| format!("the groups of this host cannot be read: {error}"))?;
    let gid = found.map(|group| Gid::as_raw(group.gid));
    gid.ok_or_else(|| {
        Diagnostic::new(format_args!("this host has no group {name}"))
            .with_hint("create the group first, or use another")
    })
}

/// What has changed for the actions that a spec wants.
pub(super) fn actions(
    on_change: &[ChangeNotice],
    changed: &BTreeSet<String>,
) -> Vec<muster_topics::files::ChangeAction> {
    let counts = |of: &String| {
        changed
            .iter()
            .any(|path| path == of || path.strip_prefix(of.as_str()).is_some_and(|rest| rest.starts_with('/')))
    };
    let wanted = |notice: &&ChangeNotice| {
        if notice.of.is_empty() { !changed.is_empty() } else { notice.of.iter().any(counts) }
    };
    let mut actions = Vec::new();
    for notice in on_change.iter().filter(wanted) {
        if !actions.contains(&notice.action) {
            actions.push(notice.action.clone());
        }
    }
    actions
}

/// Creates an empty revision of a spec.
pub(super) fn begin(revision: &Digest, spec: &FilesSpec) -> StagedRevision {
    StagedRevision {
        revision: revision.clone(),
        entries: BTreeMap::new(),
        on_change: spec.on_change.clone(),
        drift: spec.drift,
        secrets: SecretTexts::default(),
    }
}
