//! What units leave on their host beside packages: repositories, logins to them, holds, and a file that keeps services from starting. Each is in
//! the store before it is made, and undone if it is still the unit's.

use muster_topics::diagnostic::Diagnostic;
use std::{fs, io, os::unix::fs::PermissionsExt};

use muster_base::files::{PUBLIC_MODE, SECRET_MODE, make_folder, write_atomically};
use muster_rules::plan::Failure;
use muster_topics::name::{Digest, UnitName};

use super::{
    Host,
    manager::{LoginFile, SourceFile},
};
use crate::{
    store::packages::PackageTrace,
    unit::{failure::may_heal, task_log::RunningTask},
};

/// The file by which Debian's `invoke-rc.d` asks whether a service may be started.
const POLICY_FILE: &str = "/usr/sbin/policy-rc.d";

/// 101 is "forbidden".
const POLICY: &str =
    "#!/bin/sh\n# Of a unit of muster, while it installs packages whose services shall not start.\nexit 101\n";

const FOLDER_MODE: u32 = 0o755;

impl Host {
    /// Writes files of a unit's repositories and logins, and removes those of an earlier revision.
    pub(super) async fn write_repositories(
        &self,
        unit: &UnitName,
        files: &[SourceFile],
        logins: &[LoginFile],
    ) -> Result<(), Failure> {
        let wanted = files.iter().map(|file| &file.path).chain(logins.iter().map(|login| &login.path));
        for trace in self.files(unit).await? {
            if trace.file().is_some_and(|path| path != POLICY_FILE && !wanted.clone().any(|wanted| wanted == path)) {
                self.remove_file(unit, &trace).await?;
            }
        }
        for LoginFile { path, content } in logins {
            self.write_file(unit, path, content, SECRET_MODE).await?;
        }
        for SourceFile { path, content } in files {
            self.write_file(unit, path, content, PUBLIC_MODE).await?;
        }
        Ok(())
    }

    /// Whether a file has a login. It is the unit's whatever is in it, so that no password is left.
    fn is_login(&self, path: &str) -> bool {
        path.starts_with(&self.adapter.source_folders().logins)
    }

    /// The traces that are files, keys after the sources that name them.
    async fn files(&self, unit: &UnitName) -> Result<Vec<PackageTrace>, Failure> {
        let mut files = self.traces(unit).await?;
        files.retain(|trace| trace.file().is_some());
        let keys = self.adapter.source_folders().keys;
        files.sort_by_key(|trace| trace.file().is_some_and(|path| path.starts_with(&keys)));
        Ok(files)
    }

    async fn traces(&self, unit: &UnitName) -> Result<Vec<PackageTrace>, Failure> {
        self.store.package_traces(unit).await.map_err(|error| may_heal(Diagnostic::of(&error)))
    }

    async fn write_file(&self, unit: &UnitName, path: &str, content: &str, mode: u32) -> Result<(), Failure> {
        let at = self.root.path(path);
        if fs::read(&at).is_ok_and(|found| found == content.as_bytes()) {
            let traces = self.traces(unit).await?;
            let is_known = |trace: &PackageTrace| matches!(trace, PackageTrace::File(known, _) if known == path);
            if traces.iter().any(is_known) {
                return Ok(());
            }
        }
        // A digest would confirm guesses of a password.
        let digest = Digest::of(if self.is_login(path) { path.as_bytes() } else { content.as_bytes() });
        self.add_trace(unit, &PackageTrace::File(path.to_owned(), digest)).await?;
        let write = || {
            if let Some(folder) = at.parent() {
                make_folder(folder, FOLDER_MODE)?;
            }
            write_atomically(&at, content.as_bytes(), mode)?;
            fs::set_permissions(&at, fs::Permissions::from_mode(mode))
        };
        write().map_err(|error: io::Error| may_heal(format!("{} cannot be written: {error}", at.display())))
    }

    pub(super) async fn add_trace(&self, unit: &UnitName, trace: &PackageTrace) -> Result<(), Failure> {
        self.store.add_package_trace(unit, trace).await.map_err(|error| may_heal(Diagnostic::of(&error)))
    }

    pub(super) async fn forget_trace(&self, unit: &UnitName, trace: &PackageTrace) -> Result<(), Failure> {
        self.store.remove_package_trace(unit, trace).await.map_err(|error| may_heal(Diagnostic::of(&error)))
    }

    /// Removes a file if it is still as it was written, and no other unit has it, too.
    async fn remove_file(&self, unit: &UnitName, trace: &PackageTrace) -> Result<(), Failure> {
        let PackageTrace::File(path, digest) = trace else { return Ok(()) };
        let others =
            self.store.package_files_of_others(unit).await.map_err(|error| may_heal(Diagnostic::of(&error)))?;
        if others.contains(path) {
            return self.forget_trace(unit, trace).await;
        }
        let at = self.root.path(path);
        match fs::read(&at) {
            Ok(content) if self.is_login(path) || Digest::of(&content) == *digest => {
                fs::remove_file(&at)
                    .map_err(|error| may_heal(format!("{} cannot be removed: {error}", at.display())))?;
            }
            Ok(_) => {
                tracing::warn!(%unit, path = %at.display(), "a file was changed outside of muster and is left unchanged");
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(may_heal(format!("{} cannot be read: {error}", at.display()))),
        }
        self.forget_trace(unit, trace).await
    }

    /// Keeps services from starting, unless somebody else has a say in that.
    pub(super) async fn forbid_services(&self, unit: &UnitName, task: &RunningTask) -> Result<(), Failure> {
        let at = self.root.path(POLICY_FILE);
        match fs::read(&at) {
            Ok(content) if content != POLICY.as_bytes() => {
                task.line(&format!(
                    "warning: {POLICY_FILE} was not made by muster and is kept: it decides whether services of new packages start"
                ));
                return Ok(());
            }
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(may_heal(format!("{} cannot be read: {error}", at.display()))),
        }
        self.write_file(unit, POLICY_FILE, POLICY, 0o755).await
    }

    /// Undoes that.
    pub(super) async fn allow_services(&self, unit: &UnitName) -> Result<(), Failure> {
        for trace in self.traces(unit).await? {
            if matches!(&trace, PackageTrace::File(path, _) if path == POLICY_FILE) {
                self.remove_file(unit, &trace).await?;
            }
        }
        Ok(())
    }

    /// Undoes everything but packages and holds.
    pub(super) async fn remove_files(&self, unit: &UnitName) -> Result<(), Failure> {
        for trace in self.files(unit).await? {
            self.remove_file(unit, &trace).await?;
        }
        Ok(())
    }

    /// The holds that a unit has set.
    pub(super) async fn holds(&self, unit: &UnitName) -> Result<Vec<String>, Failure> {
        let traces = self.traces(unit).await?.into_iter();
        let holds = traces.filter_map(|trace| if let PackageTrace::Hold(name) = trace { Some(name) } else { None });
        Ok(holds.collect())
    }
}
