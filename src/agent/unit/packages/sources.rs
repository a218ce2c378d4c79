//! The repositories of units among the sources of their host.
//!
//! A file of sources has one component of a repository, and is named by what it says, like the file of a key: units that want the
//! same share it, and the last one takes it away.
//!
//! **Invariant: sources are in effect only once the package manager has read them**, laid out beside those in effect, with everything
//! else that the host has.

use std::{collections::BTreeSet, fs, io, path::Path};

use muster_base::{
    files::{PUBLIC_MODE, make_folder, replace, write_atomically},
    mount::remove_folder,
};
use muster_rules::{
    packages::source::{HostSource, Rival, SignedBy, bare_key, is_to_be_added, signed_by},
    plan::Failure,
};
use muster_topics::{
    diagnostic::Diagnostic,
    name::{Digest, UnitName},
    packages::{PackagesSpec, Repository},
};

use super::{
    FOLDER,
    host::Host,
    logins::StagedLogins,
    manager::{LoginFile, SourceFile, SourceFolders},
    work::SIMULATE_MAX,
};
use crate::unit::failure::may_heal;

/// How the names of files of sources and keys begin that are units'.
pub(super) const OF_UNITS: &str = "muster.";

const FOLDER_MODE: u32 = 0o755;

/// The largest file of sources or key that is read; Debian's own keyring is a twentieth.
const FILE_MAX_BYTES: u64 = 1024 * 1024;

/// The sources of a host as a revision would have them.
#[derive(Debug, Default)]
pub(super) struct StagedSources {
    /// The folders in which they are laid out; `None` if the revision has no repositories.
    pub(super) folders: Option<SourceFolders>,
    /// What the revision adds.
    pub(super) files: Vec<SourceFile>,
    /// The logins of the revision.
    pub(super) logins: Vec<LoginFile>,
    /// The folder in which those are laid out as well.
    _staged_logins: Option<StagedLogins>,
}

impl Host {
    /// Lays out the host's sources with those of a revision in place of the unit's present ones, and has the package manager read
    /// them.
    ///
    /// # Errors
    /// If it cannot, or the host has one of the repositories with another key.
    pub(super) async fn stage_sources(&self, unit: &UnitName, spec: &PackagesSpec) -> Result<StagedSources, Failure> {
        let folder = format!("{FOLDER}/staged/{}.{}", unit.realm(), unit.name());
        let at = self.root.path(&folder);
        let failed = |error: io::Error| may_heal(format!("cannot write {}: {error}", at.display()));
        remove_folder(&at).map_err(failed)?;
        if spec.repositories.is_empty() {
            return Ok(StagedSources::default());
        }
        let own = self.files_of_unit_alone(unit).await?;
        let logins = self.logins(unit, spec).await?;
        let staged = SourceFolders {
            sources: format!("{folder}/sources"),
            keys: format!("{folder}/keys"),
            logins: match logins.is_empty() {
                true => self.adapter.source_folders().logins,
                false => format!("{folder}/logins"),
            },
        };
        self.copy_sources(&staged, &own).map_err(failed)?;
        let staged_logins = self.stage_logins(&staged, &logins).map_err(failed)?;
        let of_host = self.listed(&staged).await.map_err(|why| {
            let told = why.within("the sources of this host cannot be read, so no repository was added");
            may_heal(
                told.with_hint(format_args!("`{} update` on the host shows the same error", self.adapter.program())),
            )
        })?;
        let mut added = Vec::new();
        for (name, repository) in &spec.repositories {
            let rivals = self.rivals(repository, &of_host, &staged);
            if is_to_be_added(repository, &rivals)
                .map_err(|why| may_heal(why.within(format_args!("repositories.{name}"))))?
            {
                added.push(repository);
            }
        }
        let files_in = |folders: &SourceFolders| {
            let files = added.iter().flat_map(|repository| self.adapter.sources(repository, folders));
            files.collect::<BTreeSet<_>>()
        };
        for file in files_in(&staged) {
            write_atomically(&self.root.path(&file.path), file.content.as_bytes(), PUBLIC_MODE).map_err(failed)?;
        }
        self.listed(&staged).await.map_err(|why| {
            may_heal(why.within("with the unit's repositories the sources of this host could not be read"))
        })?;
        let files = files_in(&self.adapter.source_folders()).into_iter().collect();
        Ok(StagedSources { folders: Some(staged), files, logins, _staged_logins: staged_logins })
    }

    /// The files that a unit has written and no other one has, too.
    async fn files_of_unit_alone(&self, unit: &UnitName) -> Result<BTreeSet<String>, Failure> {
        let failed = |error: crate::store::StoreError| may_heal(Diagnostic::of(&error));
        let others = self.store.package_files_of_others(unit).await.map_err(failed)?;
        let own = self.store.package_traces(unit).await.map_err(failed)?;
        Ok(own.iter().filter_map(|trace| trace.file()).filter(|path| !others.contains(*path)).map(Into::into).collect())
    }

    /// Copies the host's sources but these. Keys of units come along, and their sources name the copies.
    fn copy_sources(&self, staged: &SourceFolders, but: &BTreeSet<String>) -> io::Result<()> {
        let present = self.adapter.source_folders();
        for (from, to) in [(&present.sources, &staged.sources), (&present.keys, &staged.keys)] {
            make_folder(&self.root.path(to), FOLDER_MODE)?;
            let from_there = self.root.path(from);
            let entries = match from_there.is_dir() {
                true => fs::read_dir(from_there)?.collect::<Result<Vec<_>, _>>()?,
                false => Vec::new(),
            };
            for entry in entries.into_iter().filter(|entry| entry.path().is_file()) {
                let file = entry.file_name();
                let name = file.to_string_lossy();
                let (is_units, copy) = (name.starts_with(OF_UNITS), self.root.path(to).join(&file));
                if but.contains(&format!("{from}/{name}")) || from == &present.keys && !is_units {
                    continue;
                }
                if is_units && from == &present.sources {
                    let key = |keys: &str| format!("{keys}/{OF_UNITS}");
                    let text = fs::read_to_string(entry.path())?.replace(&key(&present.keys), &key(&staged.keys));
                    replace(&copy, text.as_bytes(), PUBLIC_MODE)?;
                } else {
                    fs::copy(entry.path(), &copy)?;
                }
            }
        }
        Ok(())
    }

    /// Has the package manager list laid out sources; the error is what it says.
    async fn listed(&self, staged: &SourceFolders) -> Result<BTreeSet<HostSource>, Diagnostic> {
        let program = self.adapter.list_sources(staged);
        let said = self.run(&program, SIMULATE_MAX, &|_| ()).await.map_err(|failure| failure.error)?;
        match said.is_ok {
            true => Ok(self.adapter.read_sources(&said.stdout)),
            false => Err(self.adapter.explain(&said.all()).diagnostic),
        }
    }

    /// What the host has of the same address and suite.
    fn rivals(&self, repository: &Repository, of_host: &BTreeSet<HostSource>, staged: &SourceFolders) -> Vec<Rival> {
        let is_same = |source: &&HostSource| source.url == repository.address() && source.suite == repository.suite;
        let key = bare_key(repository.key.as_bytes());
        let rival = |source: &HostSource| {
            let text = self.text(&source.file).unwrap_or_default();
            let has_same_key = match signed_by(&source.file, &text, source.entry) {
                SignedBy::Key(text) => bare_key(text.as_bytes()) == key,
                SignedBy::Named(names) => match &*names {
                    [path] if path.starts_with('/') => self.bytes(path).is_some_and(|found| bare_key(&found) == key),
                    _ => false,
                },
                SignedBy::Any => false,
            };
            let is_shared =
                Path::new(&source.file).file_name().is_some_and(|name| name.to_string_lossy().starts_with(OF_UNITS));
            // It is named as the host's own.
            let folders = self.adapter.source_folders();
            let file = match source.file.strip_prefix(&staged.sources) {
                Some(name) => format!("{}{name}", folders.sources),
                None => source.file.clone(),
            };
            Rival { source: HostSource { file, ..source.clone() }, is_shared, has_same_key }
        };
        of_host.iter().filter(is_same).map(rival).collect()
    }

    fn bytes(&self, path: &str) -> Option<Vec<u8>> {
        let at = self.root.path(path);
        let is_read = fs::metadata(&at).is_ok_and(|about| about.is_file() && about.len() <= FILE_MAX_BYTES);
        is_read.then(|| fs::read(&at).ok()).flatten()
    }

    fn text(&self, path: &str) -> Option<String> {
        String::from_utf8(self.bytes(path)?).ok()
    }

    /// Returns what sources there are, to notice that others were added.
    pub(super) fn sources_mark(&self, staged: Option<&SourceFolders>) -> String {
        let folders = staged.cloned().unwrap_or_else(|| self.adapter.source_folders());
        let Ok(entries) = fs::read_dir(self.root.path(&folders.sources)) else { return String::new() };
        let lines = |path: std::path::PathBuf| fs::read_to_string(path).unwrap_or_default();
        let mut words: Vec<String> = entries
            .filter_map(Result::ok)
            .flat_map(|entry| {
                let text = lines(entry.path());
                // Where a key lies differs between what is laid out and what is in effect.
                let counts = |line: &&str| !line.starts_with("Signed-By:") && !line.starts_with('#');
                text.lines().filter(counts).map(ToOwned::to_owned).collect::<Vec<_>>()
            })
            .collect();
        words.sort();
        Digest::of(words.join("\n").as_bytes()).to_string()
    }
}
