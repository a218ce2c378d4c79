//! Applies a revision: looks at everything, stores what it is about to do, does it, and stores that.

use std::{
    cell::RefCell,
    collections::{BTreeSet, HashMap},
    ffi::CString,
    fs::File,
    io::{self, Read, Seek, SeekFrom},
    os::unix::ffi::OsStrExt,
    path::Path,
    sync::Arc,
};

use muster_base::{clock::now_ms, crash, mount::MountId};
use muster_rules::{
    files::plan::{Content, Step},
    plan::Failure,
};
use muster_topics::count::counted;
use muster_topics::{
    diagnostic::Diagnostic,
    name::{Digest, UnitName},
    task::{Resource, TaskAction},
};

use super::{
    blobs::PackedContent,
    confine::{NoWay, Place, Ways},
    examine::open_file,
    staged::{StagedRevision, actions},
    state::FilesState,
    survey::{PathRole, SurveyedPath, Surveyor},
    write::{ContentOpener, Writer, remove_leftover, sync_file_system, words},
};
use crate::{
    store::files_journal::{self as journal, FilesJournal},
    unit::{
        failure::{blocking, may_heal},
        task_log::{RunningTask, TaskEnd},
        turns::ResourceClass,
    },
};

/// Up to this many files are each synced by themselves; more of them together.
const SYNCED_EACH_MAX: usize = 64;

/// The longest text of which a task shows what has changed, and how many lines of it.
const DIFF_MAX_BYTES: u64 = 32 * 1024;
const DIFF_MAX_LINES: usize = 20;

/// The paths that a message names.
const NAMED_MAX: usize = 3;

/// What has been done.
#[derive(Debug, Default)]
pub(super) struct Applied {
    /// The paths that were changed.
    pub(super) changed: BTreeSet<String>,
    /// Paths that were left as they are.
    pub(super) left: Vec<Diagnostic>,
}

impl FilesState {
    pub(super) async fn journal(&self, unit: &UnitName) -> Result<FilesJournal, Failure> {
        journal::journal(&self.store, unit).await.map_err(|error| may_heal(Diagnostic::of(&error)))
    }

    /// Looks at everything, and plans.
    pub(super) async fn survey(
        self: &Arc<Self>,
        unit: &UnitName,
        staged: Option<Arc<StagedRevision>>,
        journal: FilesJournal,
    ) -> Result<Vec<SurveyedPath>, Failure> {
        let secret_paths =
            journal::secret_paths(&self.store).await.map_err(|error| may_heal(Diagnostic::of(&error)))?;
        let (state, unit) = (self.clone(), unit.clone());
        blocking(move || {
            let is_of_other = |path: &str| state.owners.is_owned_by_other(&unit, &Resource::Path(path.to_owned()));
            let (confinement, hashes) = (&state.confinement, &state.hashes);
            let (ways, journal, secret_paths) = (RefCell::new(Ways::new(confinement)), &journal, &secret_paths);
            let surveyor = Surveyor { confinement, ways, hashes, journal, secret_paths, is_of_other: &is_of_other };
            surveyor.survey(staged.as_deref()).map_err(may_heal)
        })
        .await
    }

    /// Applies a revision on a task of its own, which ends it whether or not somebody waits.
    pub(super) async fn apply_alone(
        self: &Arc<Self>,
        unit: &UnitName,
        staged: &Arc<StagedRevision>,
    ) -> Result<Applied, Failure> {
        let (state, unit, staged) = (self.clone(), unit.clone(), staged.clone());
        let applied = tokio::spawn(async move {
            let _lock = state.lock(&unit).await;
            let _turn = state.turns.take(ResourceClass::Files).await;
            state.apply(&unit, &staged).await
        });
        applied.await.unwrap_or_else(|error| Err(may_heal(Diagnostic::new(error))))
    }

    /// Gives everything back, likewise.
    pub(super) async fn give_back_alone(self: &Arc<Self>, unit: &UnitName) -> Result<Applied, Failure> {
        let (state, unit) = (self.clone(), unit.clone());
        let given = tokio::spawn(async move {
            let _lock = state.lock(&unit).await;
            let _turn = state.turns.take(ResourceClass::Files).await;
            state.give_back(&unit).await
        });
        given.await.unwrap_or_else(|error| Err(may_heal(Diagnostic::new(error))))
    }

    /// Makes everything as a revision says. The caller holds the unit's lock.
    async fn apply(self: &Arc<Self>, unit: &UnitName, staged: &Arc<StagedRevision>) -> Result<Applied, Failure> {
        let failed = |error: crate::store::StoreError| may_heal(Diagnostic::of(&error));
        let before = self.journal(unit).await?;
        let paths = self.survey(unit, Some(staged.clone()), before).await?;
        let intents = self.keep_originals(&paths).await?;
        let is_known = journal::applied(&self.store, unit).await.map_err(failed)?;
        let is_known = is_known.is_some_and(|applied| applied.is_kept && applied.revision == staged.revision);
        let is_idle = intents.is_empty()
            && paths.iter().all(|one| matches!(one.role, PathRole::Own { .. } | PathRole::Stray) && !one.is_change());
        if is_idle && is_known && !paths.iter().any(is_to_note) {
            return Ok(Applied::default());
        }
        if !intents.is_empty() {
            journal::intend(&self.store, unit, &intents).await.map_err(failed)?;
        }
        let pending = paths.iter().filter(|one| one.is_pending()).map(|one| one.path.clone()).collect::<Vec<_>>();
        let made: FilesJournal = paths.iter().filter(|one| is_to_note(one)).filter_map(named).collect();
        let gone = |one: &&SurveyedPath| matches!(one.role, PathRole::Released | PathRole::Left(_));
        let released: BTreeSet<String> = paths.iter().filter(gone).map(|one| one.path.clone()).collect();
        let mut applied = self.perform(unit, &staged.revision, paths, staged.packed()).await?;
        applied.changed.extend(pending);
        let owed = actions(&staged.on_change, &applied.changed);
        let noted = journal::note(&self.store, unit, &staged.revision, (&made, &released), (&owed, now_ms()));
        noted.await.map_err(failed)?;
        Ok(applied)
    }

    /// Gives everything back. The caller holds the unit's lock.
    async fn give_back(self: &Arc<Self>, unit: &UnitName) -> Result<Applied, Failure> {
        let failed = |error: crate::store::StoreError| may_heal(Diagnostic::of(&error));
        let before = self.journal(unit).await?;
        let applied = match before.is_empty() {
            true => Applied::default(),
            false => {
                let revision =
                    journal::applied(&self.store, unit).await.map_err(failed)?.map(|applied| applied.revision);
                let paths = self.survey(unit, None, before).await?;
                let revision = revision.unwrap_or_else(|| Digest::of(b""));
                self.perform(unit, &revision, paths, HashMap::new()).await?
            }
        };
        journal::forget(&self.store, unit).await.map_err(failed)?;
        Ok(applied)
    }

    /// Copies what is replaced for the first time; returns what the journal is to have before anything is changed.
    async fn keep_originals(self: &Arc<Self>, paths: &[SurveyedPath]) -> Result<FilesJournal, Failure> {
        let mut intents = FilesJournal::new();
        let mut kept = Vec::new();
        for one in paths.iter().filter(|one| matches!(one.role, PathRole::Own { .. }) && !one.plan.steps.is_empty()) {
            let Some(mut entry) = one.noted() else { continue };
            entry.made = one.journal.as_ref().and_then(|journal| journal.made.clone());
            // A purged folder is noted as such at the end, so that what goes now is kept.
            entry.is_purged = one.journal.as_ref().is_some_and(|journal| journal.is_purged);
            entry.next = Some(one.plan.target.clone());
            entry.is_secret |= one.journal.as_ref().is_some_and(|journal| journal.is_secret);
            if let (Content::File(sha256), true) = (&one.found.state.content, one.plan.steps.contains(&Step::Keep)) {
                kept.push((one.path.clone(), sha256.clone()));
            }
            intents.insert(one.path.clone(), entry);
        }
        let state = self.clone();
        blocking(move || {
            for (path, sha256) in &kept {
                state.keep_content(path, sha256)?;
            }
            if kept.is_empty() { Ok(()) } else { state.blobs.sync().map_err(|error| may_heal(words(&error))) }
        })
        .await?;
        Ok(intents)
    }

    fn keep_content(&self, path: &str, sha256: &Digest) -> Result<(), Failure> {
        if self.blobs.has(sha256) {
            return Ok(());
        }
        let failed = |why: Diagnostic| may_heal(why.within(format_args!("{path}: cannot keep the present file")));
        let place = place(&mut Ways::new(&self.confinement), path)?;
        let (kept, _) =
            open_file(&place).and_then(|file| self.blobs.put(file, u64::MAX)).map_err(|error| failed(words(&error)))?;
        if kept == *sha256 { Ok(()) } else { Err(failed("another program is changing it".into())) }
    }

    /// Performs all steps: first what goes, then what comes, each as a task.
    async fn perform(
        self: &Arc<Self>,
        unit: &UnitName,
        revision: &Digest,
        paths: Vec<SurveyedPath>,
        packed: HashMap<Digest, PackedContent>,
    ) -> Result<Applied, Failure> {
        let (mut applied, packed) = (Applied::default(), Arc::new(packed));
        for one in &paths {
            if let PathRole::Left(why) = &one.role {
                applied.left.push(why.clone().within(format_args!("{} is left unchanged", one.path)));
            }
        }
        let (goes, mut comes): (Vec<_>, Vec<_>) = paths
            .into_iter()
            .filter(SurveyedPath::is_change)
            .partition(|one| one.plan.target.content == Content::Absent || one.role == PathRole::Released);
        // Folders before what is in them.
        comes.reverse();
        // What was replaced is put back after what was in its way has gone.
        let (goes, mut back): (Vec<_>, Vec<_>) =
            goes.into_iter().partition(|one| one.plan.target.content == Content::Absent);
        back.reverse();
        let goes: Vec<_> = goes.into_iter().chain(back).collect();
        for (action, paths) in [(TaskAction::Remove, goes), (TaskAction::Write, comes)] {
            if paths.is_empty() && (action == TaskAction::Write || applied.left.is_empty()) {
                continue;
            }
            let task = self.tasks.begin(unit, revision, action, about(&paths)).await;
            let task = task.map_err(|error| may_heal(Diagnostic::of(&error)))?;
            if action == TaskAction::Remove {
                applied.left.iter().for_each(|left| task.line(&format!("{left:#}")));
            }
            applied.changed.extend(paths.iter().map(|one| one.path.clone()));
            let (count, state, packed) = (paths.len(), self.clone(), packed.clone());
            let (task, done) = blocking(move || {
                let done = state.perform_all(&paths, &packed, &task);
                Ok((task, done))
            })
            .await?;
            let end = match &done {
                Ok(()) => Ok(TaskEnd { is_changed: count > 0, message: Some(counted(count, "path")) }),
                Err(failure) => Err(failure.error.clone()),
            };
            task.end(end).await.map_err(|error| may_heal(Diagnostic::of(&error)))?;
            done?;
        }
        Ok(applied)
    }

    fn perform_all(
        &self,
        paths: &[SurveyedPath],
        packed: &HashMap<Digest, PackedContent>,
        task: &RunningTask,
    ) -> Result<(), Failure> {
        let open = |sha256: &Digest| self.open_content(sha256, packed.get(sha256));
        let keep = |file: &File| self.blobs.put(file, u64::MAX).map(drop);
        let syncs_each = paths.len() <= SYNCED_EACH_MAX;
        let writer = Writer { open: &open, keep: &keep, syncs_each };
        let mut ways = Ways::new(&self.confinement);
        // One place on each file system.
        let mut to_sync = std::collections::BTreeMap::new();
        for one in paths {
            let place = place(&mut ways, &one.path)?;
            let failed = |error: &io::Error| may_heal(words(error).within(&one.path));
            if !one.is_secret && syncs_each {
                Self::diff(one, &place, &open).iter().for_each(|line| task.line(line));
            } else {
                task.line(&one.difference());
            }
            if let Some(mount) = one.mount
                && lies_in(&place).map_err(|error| failed(&error))?.is_some_and(|found| found != mount)
            {
                return Err(may_heal(format!("{}: it is now a mount point and is left unchanged", one.path)));
            }
            if one.is_pending() {
                remove_leftover(&place).map_err(|error| failed(&error))?;
            }
            for step in &one.plan.steps {
                let done = writer.perform(*step, &place, &one.plan.target);
                if let (Err(error), Content::File(sha256)) = (&done, &one.plan.target.content)
                    && error.kind() == io::ErrorKind::InvalidData
                {
                    // It is made ready anew.
                    let blob = packed.get(sha256).map_or(sha256, |packed| &packed.pack);
                    let _ = std::fs::remove_file(self.blobs.path(blob));
                }
                done.map_err(|error| failed(&error))?;
            }
            crash::point("files", "after a path");
            if !is_of_file(one) {
                ways.forget();
            }
            if !syncs_each {
                let device = rustix::fs::fstat(&place.folder).map(|stat| stat.st_dev).unwrap_or_default();
                to_sync.entry(device).or_insert((&one.path, place));
            }
        }
        for (path, place) in to_sync.into_values() {
            sync_file_system(&place).map_err(|error| may_heal(words(&error).within(path)))?;
        }
        Ok(())
    }

    pub(super) fn open_content(&self, sha256: &Digest, packed: Option<&PackedContent>) -> io::Result<io::Take<File>> {
        if let Some(PackedContent { pack, offset_bytes, size_bytes }) = packed {
            let mut file = File::open(self.blobs.path(pack))?;
            file.seek(SeekFrom::Start(*offset_bytes))?;
            return Ok(file.take(*size_bytes));
        }
        let file = match File::open(self.blobs.path(sha256)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => File::open(self.artifacts.path(sha256)),
            opened => opened,
        }?;
        let size_bytes = file.metadata()?.len();
        Ok(file.take(size_bytes))
    }

    /// What is different in a text, for people.
    fn diff(one: &SurveyedPath, place: &Place, open: &ContentOpener<'_>) -> Vec<String> {
        let mut lines = vec![one.difference()];
        let text = |content: io::Result<io::Take<File>>| -> Option<String> {
            let content = content.ok().filter(|content| content.limit() <= DIFF_MAX_BYTES)?;
            let mut text = String::new();
            content.take(DIFF_MAX_BYTES).read_to_string(&mut text).is_ok().then_some(text)
        };
        let whole = |file: File| {
            let size_bytes = file.metadata()?.len();
            Ok(file.take(size_bytes))
        };
        if let (Content::File(_), Content::File(new)) = (&one.found.state.content, &one.plan.target.content)
            && one.found.state.content != one.plan.target.content
            && let (Some(old), Some(new)) = (text(open_file(place).and_then(whole)), text(open(new)))
        {
            lines.extend(changed_lines(&old, &new));
        }
        lines
    }
}

/// Whether what is done at a path leads no other path elsewhere.
fn is_of_file(one: &SurveyedPath) -> bool {
    let contents = [&one.found.state.content, &one.plan.target.content];
    contents.iter().all(|content| matches!(content, Content::File(_) | Content::Absent))
}

/// The mount in which something lies; `None` if it is not there any more.
fn lies_in(place: &Place) -> io::Result<Option<MountId>> {
    match MountId::at(&place.folder, &CString::new(place.name.as_bytes())?) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        found => found.map(Some),
    }
}

fn place(ways: &mut Ways<'_>, path: &str) -> Result<Place, Failure> {
    ways.open(Path::new(path)).map_err(|error| {
        may_heal(match error {
            NoWay::Missing(folder) => format!("{path}: its folder {} no longer exists", folder.display()).into(),
            NoWay::Barred(why) => why.within(path),
            NoWay::Io(error) => words(&error).within(path),
        })
    })
}

fn is_to_note(one: &SurveyedPath) -> bool {
    one.noted().is_some_and(|noted| one.journal.as_ref() != Some(&noted))
}

fn named(one: &SurveyedPath) -> Option<(String, muster_rules::files::plan::JournalEntry)> {
    Some((one.path.clone(), one.noted()?))
}

fn about(paths: &[SurveyedPath]) -> String {
    let mut named: Vec<&str> = paths.iter().take(NAMED_MAX).map(|one| one.path.as_str()).collect();
    if paths.len() > NAMED_MAX {
        named.push("…");
    }
    format!("{}: {}", counted(paths.len(), "path"), named.join(", "))
}

/// The lines between the common beginning and end of two texts.
fn changed_lines(old: &str, new: &str) -> Vec<String> {
    let (mut old, mut new): (Vec<&str>, Vec<&str>) = (old.lines().collect(), new.lines().collect());
    let same = old.iter().zip(&new).take_while(|(old, new)| old == new).count();
    let first = same + 1;
    (old, new) = (old.split_off(same), new.split_off(same));
    while let (Some(before), Some(after)) = (old.last(), new.last())
        && before == after
    {
        old.pop();
        new.pop();
    }
    let all = old.iter().map(|line| format!("-{line}")).chain(new.iter().map(|line| format!("+{line}")));
    let mut lines: Vec<String> = [format!("@@ line {first}")].into_iter().chain(all).collect();
    if lines.len() > DIFF_MAX_LINES {
        let more = lines.len() - DIFF_MAX_LINES;
        lines.truncate(DIFF_MAX_LINES);
        lines.push(format!("… and {more} more lines"));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changed_lines_are_between_the_common_ones() {
        assert_eq!(changed_lines("a\nb\nc\n", "a\nB\nc\n"), ["@@ line 2", "-b", "+B"]);
        assert_eq!(changed_lines("a\n", "a\nb\n"), ["@@ line 2", "+b"]);
        let many: String = (0..100).map(|number| format!("{number}\n")).collect();
        assert!(changed_lines("", &many).last().unwrap().contains("81 more"));
    }
}
