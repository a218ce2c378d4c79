//! The logins of repositories. apt reads them from files of their own, which nobody else may read: no list of sources has them.
//!
//! A file is named by whose login it is, not by its password: units of a realm that use the same secret share it, and the last one
//! takes it away.

use std::{collections::BTreeMap, fs, io};

use muster_base::{
    files::{PRIVATE_FOLDER, SECRET_MODE, make_folder, write_atomically},
    mount::remove_folder,
};
use muster_rules::plan::Failure;
use muster_topics::{
    name::{Name, UnitName},
    packages::PackagesSpec,
};
use zeroize::Zeroizing;

use super::{
    host::Host,
    manager::{LoginFile, SourceFolders},
    program::Root,
    sources::OF_UNITS,
};
use crate::unit::failure::never;

/// The folder in which logins are laid out for a run of the package manager; it goes when it is dropped.
#[derive(Debug)]
pub(super) struct StagedLogins {
    root: Root,
    folder: String,
}

impl Drop for StagedLogins {
    fn drop(&mut self) {
        let at = self.root.path(&self.folder);
        if let Err(error) = remove_folder(&at) {
            tracing::warn!(%error, path = %at.display(), "a folder with passwords cannot be removed");
        }
    }
}

impl Host {
    /// Returns the files with the logins of a unit. While their passwords cannot be fetched, those that are on the host count.
    ///
    /// # Errors
    /// If a password cannot be had, or is none that the package manager can read.
    pub(super) async fn logins(&self, unit: &UnitName, spec: &PackagesSpec) -> Result<Vec<LoginFile>, Failure> {
        if spec.named_secrets().next().is_none() {
            return Ok(Vec::new());
        }
        let fetched = self.secrets.fetch(unit, &spec.common.secrets).await;
        let of_host = || self.logins_of_host(unit, spec);
        match fetched {
            Ok(passwords) => self.login_files(unit, spec, &passwords),
            Err(failure) => of_host().ok_or(failure),
        }
    }

    /// Returns these files with their passwords.
    pub(super) fn login_files(
        &self,
        unit: &UnitName,
        spec: &PackagesSpec,
        passwords: &BTreeMap<Name, Zeroizing<String>>,
    ) -> Result<Vec<LoginFile>, Failure> {
        let mut files = Vec::new();
        for (name, repository) in &spec.repositories {
            let Some(login) = &repository.login else { continue };
            let secret = &login.password.secret;
            let wrong = |why: &str| never(format!("repositories.{name}.login: the secret {secret} {why}"));
            let password = passwords.get(secret).ok_or_else(|| wrong("was not sent to this unit"))?;
            let password = password.trim_end_matches(['\r', '\n']);
            if password.is_empty() || password.contains(|one: char| one.is_whitespace() || one.is_control()) {
                return Err(wrong("must be one word"));
            }
            files.push(self.adapter.login(&unit.realm(), repository, login, password));
        }
        files.sort_by(|one: &LoginFile, other| one.path.cmp(&other.path));
        files.dedup();
        Ok(files)
    }

    /// Those that are on the host already, if all are.
    fn logins_of_host(&self, unit: &UnitName, spec: &PackagesSpec) -> Option<Vec<LoginFile>> {
        let logins = spec.repositories.values().filter_map(|one| Some((one, one.login.as_ref()?)));
        logins
            .map(|(repository, login)| {
                let LoginFile { path, .. } = self.adapter.login(&unit.realm(), repository, login, "");
                let content = fs::read_to_string(self.root.path(&path)).ok()?;
                Some(LoginFile { path, content: content.into() })
            })
            .collect()
    }

    /// Lays out the host's logins with those of a revision.
    ///
    /// # Errors
    /// If a file cannot be read or written.
    pub(super) fn stage_logins(
        &self,
        staged: &SourceFolders,
        logins: &[LoginFile],
    ) -> io::Result<Option<StagedLogins>> {
        if logins.is_empty() {
            return Ok(None);
        }
        let of_host = self.root.path(&self.adapter.source_folders().logins);
        let at = self.root.path(&staged.logins);
        make_folder(&at, PRIVATE_FOLDER)?;
        let guard = StagedLogins { root: self.root.clone(), folder: staged.logins.clone() };
        for entry in fs::read_dir(of_host).into_iter().flatten().filter_map(Result::ok) {
            if entry.path().is_file() {
                write_atomically(&at.join(entry.file_name()), &fs::read(entry.path())?, SECRET_MODE)?;
            }
        }
        for LoginFile { path, content } in logins {
            let name = path.rsplit('/').next().unwrap_or(path);
            write_atomically(&at.join(name), content.as_bytes(), SECRET_MODE)?;
        }
        Ok(Some(guard))
    }

    /// Returns the passwords in the files of units on this host, so that they are masked in what is said.
    pub(super) fn kept_passwords(&self) -> Vec<String> {
        let folder = self.root.path(&self.adapter.source_folders().logins);
        let files = fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok);
        let of_units = files.filter(|entry| entry.file_name().to_string_lossy().starts_with(OF_UNITS));
        let texts = of_units.filter_map(|entry| fs::read_to_string(entry.path()).ok());
        texts.flat_map(|text| self.adapter.passwords(&text)).collect()
    }
}
