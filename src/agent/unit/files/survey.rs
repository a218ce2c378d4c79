//! Looks at every path of a unit, and plans what is done about each, before anything is changed.
//!
//! **Invariant: all obstacles are reported at once**, and then nothing is changed.

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use muster_base::mount::MountId;
use muster_rules::files::plan::{
    Attributes, Content, EntryPlan, EntryState, FoundEntry, JournalEntry, Step, WantedEntry, plan, release,
};
use muster_topics::{diagnostic::Diagnostic, files::PURGE_MAX};

use super::{
    confine::{Confinement, NoWay, Place, Ways},
    examine::{Hashes, names, nothing},
    staged::{StagedEntry, StagedRevision},
    walk::{self, WALK_MAX, WalkedPath},
    write::words,
};
use crate::store::files_journal::FilesJournal;

/// The most obstacles that are reported.
const OBSTACLES_MAX: usize = 5;

/// A path of a unit, and what is to be done about it.
#[derive(Debug)]
pub(super) struct SurveyedPath {
    pub(super) path: String,
    pub(super) found: FoundEntry,
    pub(super) plan: EntryPlan,
    /// What the journal says of it; `None` if nothing yet.
    pub(super) journal: Option<JournalEntry>,
    pub(super) role: PathRole,
    /// Whether a secret is in what is there, or in what comes.
    pub(super) is_secret: bool,
    /// Whether a secret is in what comes.
    pub(super) makes_secret: bool,
    /// The mount in which it has to lie, if it was found by looking through a folder.
    pub(super) mount: Option<MountId>,
}

/// What a path is to its unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum PathRole {
    /// It is described, and is in the journal; a folder may be purged.
    Own { is_purged: bool },
    /// It is removed from a folder without a trace: it appeared after the folder was the unit's.
    Stray,
    /// It is given back, because it is not described any more.
    Released,
    /// It would be given back, and is left as it is.
    Left(Diagnostic),
}

impl SurveyedPath {
    /// Whether a step changes the host.
    pub(super) fn is_change(&self) -> bool {
        self.plan.steps.iter().any(|step| *step != Step::Keep)
    }

    /// Whether an earlier run was interrupted here.
    pub(super) fn is_pending(&self) -> bool {
        self.journal.as_ref().is_some_and(|journal| journal.next.is_some())
    }

    /// The entry of the journal once it is as planned; `None` if it needs none.
    pub(super) fn noted(&self) -> Option<JournalEntry> {
        let PathRole::Own { is_purged } = self.role else { return None };
        let original =
            self.journal.as_ref().map_or_else(|| self.found.state.clone(), |journal| journal.original.clone());
        let (made, is_secret) = (Some(self.plan.target.clone()), self.makes_secret);
        Some(JournalEntry { original, made, next: None, is_purged, is_secret })
    }

    /// What is different, for people.
    pub(super) fn difference(&self) -> String {
        let (found, target) = (&self.found.state, &self.plan.target);
        let what = match (&target.content, &found.content) {
            (Content::Absent, there) => format!("expected nothing, found {}", there.noun()),
            (_, Content::Absent) => "it is missing".to_owned(),
            (wanted, there) if wanted != there => match (wanted, there) {
                (Content::File(_), Content::File(_)) => "its content differs".to_owned(),
                (Content::Link(to), Content::Link(other)) => format!("it leads to {other} instead of {to}"),
                _ => format!("found {} instead of {}", there.noun(), wanted.noun()),
            },
            _ => attributes_words(found.attributes, target.attributes),
        };
        format!("{}: {what}", self.path)
    }
}

fn attributes_words(found: Attributes, wanted: Attributes) -> String {
    let mut words = Vec::new();
    if found.mode != wanted.mode {
        words.push(format!("its mode is {:04o} instead of {:04o}", found.mode, wanted.mode));
    }
    if found.uid != wanted.uid {
        words.push(format!("its owner is {} instead of {}", found.uid, wanted.uid));
    }
    if found.gid != wanted.gid {
        words.push(format!("its group is {} instead of {}", found.gid, wanted.gid));
    }
    words.join(", ")
}

/// What is wanted of a path.
enum Want<'a> {
    Entry(&'a StagedEntry),
    /// The attributes of a folder that hold in it.
    Inherited {
        of: &'a WantedEntry,
        mount: MountId,
    },
    /// It is removed; a copy is kept if the folder was not purged before.
    Purged {
        is_kept: bool,
        mount: MountId,
    },
}

/// Looks at the paths.
pub(super) struct Surveyor<'a> {
    pub(super) confinement: &'a Confinement,
    pub(super) ways: RefCell<Ways<'a>>,
    pub(super) hashes: &'a Hashes,
    pub(super) journal: &'a FilesJournal,
    /// Where units have put secrets.
    pub(super) secret_paths: &'a BTreeSet<String>,
    /// Whether another unit has a path by now.
    pub(super) is_of_other: &'a dyn Fn(&str) -> bool,
}

impl Surveyor<'_> {
    /// Plans a revision, or, without one, that everything is given back. Paths in folders come before those.
    ///
    /// # Errors
    /// If something is in the way; with the reasons, for people.
    pub(super) fn survey(&self, staged: Option<&StagedRevision>) -> Result<Vec<SurveyedPath>, Diagnostic> {
        let mut obstacles = Vec::new();
        let mut wants: BTreeMap<String, Want<'_>> = BTreeMap::new();
        if let Some(staged) = staged {
            wants.extend(staged.entries.iter().map(|(path, entry)| (path.clone(), Want::Entry(entry))));
            for (path, entry, directory) in staged.walked() {
                let found = match walk::walk(self.confinement, path) {
                    Ok(found) => found,
                    Err(obstacle) => {
                        obstacles.push(obstacle.within(path));
                        continue;
                    }
                };
                let mut purged = 0;
                let is_kept = !self.journal.get(path).is_some_and(|journal| journal.is_purged);
                for WalkedPath { path: inner, mount, holds_mount } in found {
                    if staged.entries.contains_key(&inner) || directory.purge && holds_mount {
                        continue;
                    }
                    purged += u32::from(directory.purge);
                    let want = match directory.purge {
                        true => Want::Purged { is_kept, mount },
                        false => Want::Inherited { of: &entry.wanted, mount },
                    };
                    wants.insert(inner, want);
                }
                let max = directory.purge_max.unwrap_or(PURGE_MAX);
                if purged > max {
                    obstacles.push(
                        Diagnostic::new(format_args!(
                            "{path}: {purged} files and folders in it are in no unit, at most {max} \
                 may be removed at once, and none was removed"
                        ))
                        .with_hint("check the path, or set `purge_max`"),
                    );
                }
            }
        }
        let released = self.journal.keys().filter(|path| !wants.contains_key(*path)).filter(|path| {
            // What was removed from a folder stays away as long as the folder is purged.
            !staged.is_some_and(|staged| staged.walked().any(|(folder, ..)| is_below(path, folder)))
        });
        let released: BTreeSet<&String> = released.collect();
        let all: BTreeSet<&String> = wants.keys().chain(released.iter().copied()).collect();
        let (mut surveyed, mut goes) = (Vec::new(), BTreeSet::new());
        // Children first, so that a folder that becomes empty is known to.
        for path in all.into_iter().rev() {
            let one = match wants.get(path) {
                Some(want) => self.plan(path, want, &wants, &goes),
                None => self.give_back(path, &goes),
            };
            match one {
                Ok(one) => {
                    if one.plan.target.content == Content::Absent && !matches!(one.role, PathRole::Left(_)) {
                        goes.insert(path.clone());
                    }
                    surveyed.push(one);
                }
                Err(obstacle) => obstacles.push(obstacle.within(path)),
            }
        }
        if obstacles.is_empty() {
            return Ok(surveyed);
        }
        let more = obstacles.len().saturating_sub(OBSTACLES_MAX);
        obstacles.truncate(OBSTACLES_MAX);
        obstacles.extend((more > 0).then(|| format!("and {more} more").into()));
        Err(Diagnostic::all(obstacles).unwrap_or_default())
    }

    fn plan(
        &self,
        path: &str,
        want: &Want<'_>,
        wants: &BTreeMap<String, Want<'_>>,
        goes: &BTreeSet<String>,
    ) -> Result<SurveyedPath, Diagnostic> {
        let journal = self.journal.get(path);
        let mut found = self.find(path, |missing| {
            let is_made = Path::new(path).parent().and_then(Path::to_str).and_then(|folder| wants.get(folder));
            let is_made = matches!(is_made, Some(Want::Entry(entry)) if entry.wanted.content == Content::Directory);
            let is_absent = matches!(want, Want::Entry(entry) if entry.wanted.content == Content::Absent);
            if is_made || is_absent {
                return Ok(());
            }
            let folder = missing.display();
            Err(Diagnostic::new(format_args!("its folder {folder} does not exist"))
                .with_hint("add it to the unit with `directory: {}`"))
        })?;
        let strayed;
        let (wanted, journal, role, is_secret, mount) = match want {
            Want::Entry(entry) => {
                let is_purged = entry.directory.as_ref().is_some_and(|directory| directory.purge);
                if entry.directory.as_ref().is_some_and(|directory| directory.purge || directory.recurse)
                    && self.confinement.holds_what_is_never_touched(Path::new(path))
                {
                    return Err(
                        "it contains paths that an agent never changes, so it cannot be purged or changed as a whole"
                            .into(),
                    );
                }
                (entry.wanted.clone(), journal, PathRole::Own { is_purged }, entry.is_secret, None)
            }
            Want::Inherited { of, mount } => {
                (inherited(of, &found.state), journal, PathRole::Own { is_purged: false }, true, Some(*mount))
            }
            Want::Purged { is_kept, mount } => {
                let absent = WantedEntry {
                    content: Content::Absent,
                    uid: None,
                    gid: None,
                    mode: None,
                    of_new: Attributes::default(),
                };
                if *is_kept || journal.is_some() {
                    (absent, journal, PathRole::Own { is_purged: false }, true, Some(*mount))
                } else {
                    let made = Some(EntryState::absent());
                    let (original, next) = (EntryState::absent(), None);
                    strayed = JournalEntry { original, made, next, is_purged: false, is_secret: false };
                    (absent, Some(&strayed), PathRole::Stray, true, Some(*mount))
                }
            }
        };
        if wanted.content != Content::Directory {
            self.empty(path, &mut found, goes)?;
        }
        let plan = plan(&wanted, &found, journal)?;
        // What is as it should be, and is described by its folder alone, needs no trace.
        let is_idle = matches!(want, Want::Inherited { .. }) && journal.is_none() && plan.target == found.state;
        let plan = if is_idle { EntryPlan { steps: Vec::new(), ..plan } } else { plan };
        let role = if is_idle { PathRole::Stray } else { role };
        // What it was made from before may have had a secret.
        let was_secret = self.secret_paths.contains(path);
        let makes_secret = match want {
            Want::Entry(entry) => entry.is_secret,
            Want::Inherited { .. } => was_secret,
            Want::Purged { .. } => false,
        };
        let (path, journal, is_secret) = (path.to_owned(), journal.cloned(), is_secret || was_secret);
        Ok(SurveyedPath { path, found, plan, journal, role, is_secret, makes_secret, mount })
    }

    fn give_back(&self, path: &str, goes: &BTreeSet<String>) -> Result<SurveyedPath, Diagnostic> {
        let Some(journal) = self.journal.get(path) else { return Err("it is not in the journal".into()) };
        let made = |found: FoundEntry, plan, role| SurveyedPath {
            path: path.to_owned(),
            found,
            plan,
            journal: Some(journal.clone()),
            role,
            is_secret: true,
            makes_secret: true,
            mount: None,
        };
        let left = |found: FoundEntry, why: Diagnostic| {
            let plan = EntryPlan { steps: Vec::new(), target: found.state.clone() };
            made(found, plan, PathRole::Left(why))
        };
        let mut is_missing = false;
        let mut found = self.find(path, |_| {
            is_missing = true;
            Ok(())
        })?;
        if (self.is_of_other)(path) {
            return Ok(left(found, "another unit has it now".into()));
        }
        let folder = Path::new(path).parent().and_then(Path::to_str).and_then(|folder| self.journal.get(folder));
        let comes_back = folder.is_some_and(|folder| folder.original.content == Content::Directory);
        if is_missing && !comes_back && journal.original.content != Content::Absent {
            return Ok(left(found, "its folder no longer exists".into()));
        }
        if journal.original.content != Content::Directory {
            self.empty(path, &mut found, goes)?;
        }
        match release(&found, journal) {
            Ok(plan) => Ok(made(found, plan, PathRole::Released)),
            Err(why) => Ok(left(found, why)),
        }
    }

    /// Returns what is at a path. A folder that is missing on the way may be all right.
    fn find(
        &self,
        path: &str,
        missing: impl FnOnce(&Path) -> Result<(), Diagnostic>,
    ) -> Result<FoundEntry, Diagnostic> {
        let place = self.ways.borrow_mut().open(Path::new(path));
        match place {
            Ok(place) => self.hashes.found(&place).map_err(|error| words(&error)),
            Err(NoWay::Missing(folder)) => missing(&folder).map(|()| nothing()),
            Err(NoWay::Barred(why)) => Err(why),
            Err(NoWay::Io(error)) => Err(words(&error)),
        }
    }

    /// Finds out whether a folder will be empty, once what is removed has gone.
    fn empty(&self, path: &str, found: &mut FoundEntry, goes: &BTreeSet<String>) -> Result<(), Diagnostic> {
        if !found.is_full {
            return Ok(());
        }
        let place = self.open(path)?;
        let inside = names(&place, WALK_MAX).map_err(|error| words(&error))?;
        found.is_full = inside.iter().any(|name| !goes.contains(&format!("{path}/{name}")));
        Ok(())
    }

    fn open(&self, path: &str) -> Result<Place, Diagnostic> {
        self.ways.borrow_mut().open(Path::new(path)).map_err(|error| match error {
            NoWay::Missing(folder) => format!("{} no longer exists", folder.display()).into(),
            NoWay::Barred(why) => why,
            NoWay::Io(error) => words(&error),
        })
    }
}

/// What a folder wants of something in it: the same owner and group, and its mode; a file that cannot be executed stays so.
fn inherited(of: &WantedEntry, found: &EntryState) -> WantedEntry {
    let mode = of.mode.map(|mode| match &found.content {
        Content::File(_) if found.attributes.mode & 0o111 == 0 => mode & !0o111,
        _ => mode,
    });
    WantedEntry { content: found.content.clone(), mode, ..of.clone() }
}

fn is_below(path: &str, folder: &str) -> bool {
    path.strip_prefix(folder).is_some_and(|rest| rest.starts_with('/'))
}
