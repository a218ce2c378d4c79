//! Files and folders that a configuration names: whether they are there, can be read, are as private as they have to be, and have
//! in them what they are for. It changes nothing, and connects to nothing.

use std::{
    fs, io,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use muster_topics::{Millis, diagnostic::Diagnostic};
use nix::unistd::{AccessFlags, access};
use rustls::pki_types::{PrivateKeyDer, pem::PemObject};

use crate::{
    check::{CheckResult, Verdict, check_certificate, check_permissions, check_revocation_list},
    collect,
    setup::{CertificateSetup, CertificateSource},
};

/// What a file or folder is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileUse {
    /// A certificate (PEM), which has to be in date.
    Certificate,
    /// A private key (PEM), which only its owner may read.
    Key,
    /// A secret, which only its owner may read.
    Secret,
    /// A revocation list (X.509, PEM).
    RevocationList,
    /// A text.
    Text,
    /// A program, which this user may run.
    Program,
    /// A folder that is made if it is not there.
    OwnFolder,
    /// A folder that has to be there.
    Folder,
}

/// A file or folder that a key names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedFile {
    /// The key.
    pub key: String,
    /// The file or folder.
    pub path: PathBuf,
    /// What it is for.
    pub usage: FileUse,
    /// What makes it, or brings it back.
    pub remedy: String,
}

impl NamedFile {
    /// A file or folder with what makes it.
    #[must_use]
    pub fn new(key: &str, path: &Path, usage: FileUse, remedy: &str) -> Self {
        Self { key: key.to_owned(), path: path.to_owned(), usage, remedy: remedy.to_owned() }
    }
}

/// A problem with a named file, or something to know about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileProblem {
    /// The key that names it.
    pub key: String,
    /// Whether the role works all the same.
    pub is_warning: bool,
    /// What is wrong, and what helps.
    pub told: Diagnostic,
}

/// Looks at what a key names.
#[must_use]
pub fn examine(file: &NamedFile, now_ms: Millis) -> Vec<FileProblem> {
    let (path, remedy) = (file.path.as_path(), file.remedy.as_str());
    let problem = |is_warning, told: Diagnostic| FileProblem { key: file.key.clone(), is_warning, told };
    let wrong = |why: String| vec![problem(false, Diagnostic::new(why).with_hint(remedy))];
    match file.usage {
        FileUse::OwnFolder => own_folder(path).map_or_else(Vec::new, |told| vec![problem(false, told)]),
        FileUse::Folder => match fs::read_dir(path) {
            Ok(_) => Vec::new(),
            Err(error) => wrong(format!("the folder {} cannot be read: {error}", path.display())),
        },
        FileUse::Program => match program(path) {
            Ok(()) => Vec::new(),
            Err(error) => wrong(format!("the program {} cannot be run: {error}", path.display())),
        },
        FileUse::Certificate | FileUse::Key | FileUse::Secret | FileUse::RevocationList | FileUse::Text => {
            let bytes = match read(path) {
                Ok(bytes) => bytes,
                Err(error) => return wrong(format!("{} cannot be read: {error}", path.display())),
            };
            let mut found = Vec::new();
            if matches!(file.usage, FileUse::Key | FileUse::Secret) {
                let mode = fs::metadata(path).map_or(0, |found| found.permissions().mode());
                let is_open = mode & 0o077 != 0;
                found.extend(is_open.then(|| check_permissions(path, mode)));
            }
            match file.usage {
                FileUse::Certificate => {
                    let setup = CertificateSetup {
                        what: "the certificate",
                        source: CertificateSource::File(path.to_owned()),
                        remedy: remedy.to_owned(),
                    };
                    found.push(check_certificate("certificate", &collect::certificate(&setup), now_ms));
                }
                FileUse::RevocationList => {
                    found.push(check_revocation_list(path, &collect::revocation_list(path), now_ms));
                }
                FileUse::Key if PrivateKeyDer::from_pem_slice(&bytes).is_err() => {
                    return wrong(format!("there is no private key (PEM) in {}", path.display()));
                }
                _ => {}
            }
            found.into_iter().filter_map(|result| of_result(&file.key, result)).collect()
        }
    }
}

/// The largest file that a configuration names: lists of users and of authorities are far below it.
const FILE_MAX_BYTES: u64 = 64 * 1024 * 1024;

/// Reads a regular file.
fn read(path: &Path) -> io::Result<Vec<u8>> {
    let found = fs::metadata(path)?;
    if found.is_dir() {
        return Err(io::Error::other("it is a folder"));
    }
    if !found.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    if found.len() > FILE_MAX_BYTES {
        return Err(io::Error::other(format!("it has more than {FILE_MAX_BYTES} bytes")));
    }
    fs::read(path)
}

/// Whether this user may run a program; one without a path is looked for in `PATH` when it is run.
fn program(path: &Path) -> io::Result<()> {
    if !path.is_absolute() && path.components().count() == 1 {
        return Ok(());
    }
    if !fs::metadata(path)?.is_file() {
        return Err(io::Error::other("it is not a file"));
    }
    Ok(access(path, AccessFlags::X_OK)?)
}

/// What is wrong with a folder that its role makes, and alone uses.
fn own_folder(path: &Path) -> Option<Diagnostic> {
    let shown = path.display();
    let usage = "choose another folder, or run this as the user that the role runs as";
    match fs::metadata(path) {
        Ok(found) if !found.is_dir() => Some(Diagnostic::new(format!("{shown} is not a folder")).with_hint(usage)),
        Ok(_) => match access(path, AccessFlags::R_OK | AccessFlags::W_OK | AccessFlags::X_OK) {
            Ok(()) => None,
            Err(error) => Some(Diagnostic::new(format!("the folder {shown} cannot be used: {error}")).with_hint(usage)),
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let above = path.ancestors().skip(1).find(|above| above.exists())?;
            let error = access(above, AccessFlags::W_OK | AccessFlags::X_OK).err()?;
            let why = format!("the folder {shown} cannot be made: {}: {error}", above.display());
            Some(Diagnostic::new(why).with_hint(usage))
        }
        Err(error) => Some(Diagnostic::new(format!("the folder {shown} cannot be used: {error}")).with_hint(usage)),
    }
}

fn of_result(key: &str, CheckResult(_, verdict, finding, remedy): CheckResult) -> Option<FileProblem> {
    let is_warning = match verdict {
        Verdict::Problem => false,
        Verdict::Warning => true,
        Verdict::Ok | Verdict::NotApplicable => return None,
    };
    let told = Diagnostic::new(finding);
    let told = match remedy {
        Some(remedy) => told.with_hint(remedy),
        None => told,
    };
    Some(FileProblem { key: key.to_owned(), is_warning, told })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(path: &Path, usage: FileUse) -> NamedFile {
        NamedFile::new("key", path, usage, "bring it back")
    }

    #[track_caller]
    fn check(path: &Path, usage: FileUse, wanted: &[&str]) {
        let found = examine(&named(path, usage), 1_800_000_000_000);
        let told: Vec<String> = found.iter().map(|problem| problem.told.to_string()).collect();
        assert_eq!(told.len(), wanted.len(), "{told:?}");
        for (words, told) in wanted.iter().zip(&told) {
            assert!(told.contains(words) && told.contains("hint: "), "{words} is not in {told}");
        }
    }

    #[test]
    fn files_are_what_they_are_named_for() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str, mode: u32| {
            let path = folder.path().join(name);
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            path
        };
        let (missing, text) = (folder.path().join("missing"), file("text", "x", 0o644));
        for usage in [FileUse::Text, FileUse::Certificate, FileUse::Key, FileUse::Secret, FileUse::RevocationList] {
            check(&missing, usage, &["missing cannot be read: No such file"]);
            check(folder.path(), usage, &["it is a folder"]);
        }
        check(&text, FileUse::Text, &[]);
        check(&text, FileUse::Secret, &["is readable by other users (mode 644)"]);
        check(&file("secret", "x", 0o600), FileUse::Secret, &[]);
        check(&text, FileUse::Certificate, &["cannot be read"]);
        check(&file("key", "x", 0o600), FileUse::Key, &["no private key"]);
        check(&text, FileUse::RevocationList, &["no revocation list"]);
        check(&text, FileUse::Program, &["cannot be run"]);
        check(&file("program", "#!/bin/sh\n", 0o755), FileUse::Program, &[]);
        check(Path::new("sh"), FileUse::Program, &[]);
        check(&missing, FileUse::Folder, &["cannot be read"]);
        check(folder.path(), FileUse::Folder, &[]);
    }

    #[test]
    fn own_folder_may_be_missing() {
        let folder = tempfile::tempdir().unwrap();
        check(&folder.path().join("a/b"), FileUse::OwnFolder, &[]);
        assert!(!folder.path().join("a").exists(), "nothing is made");
        let file = folder.path().join("file");
        fs::write(&file, "x").unwrap();
        check(&file, FileUse::OwnFolder, &["is not a folder"]);
        check(&file.join("below"), FileUse::OwnFolder, &["cannot be used"]);
        check(folder.path(), FileUse::OwnFolder, &[]);
    }
}
