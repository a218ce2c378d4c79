//! The trait of a package manager. It says which programs do what, and reads what they say; [`super::program`] and
//! [`super::transaction`] run them.

use std::collections::{BTreeMap, BTreeSet};

use muster_rules::packages::{
    change::PackageChange, fault::PackageFault, installed::InstalledPackages, source::HostSource, target::PackageTarget,
};
use muster_topics::{
    name::Name,
    packages::{PackageManager, Repository, RepositoryLogin},
};
use zeroize::Zeroizing;

/// A program and its arguments, as its root knows them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Program(pub(super) Vec<String>);

impl Program {
    pub(super) fn new<S: Into<String>>(argv: impl IntoIterator<Item = S>) -> Self {
        Self(argv.into_iter().map(Into::into).collect())
    }
}

/// What is to be done in one run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Job {
    /// What packages shall be.
    pub(super) targets: Vec<PackageTarget>,
    /// Files of packages to install in place of what repositories have, by package.
    pub(super) files: BTreeMap<String, String>,
    /// Whether packages may be replaced by older versions.
    pub(super) may_downgrade: bool,
    /// Whether held packages may be changed.
    pub(super) may_change_held: bool,
    /// Whether any package may be removed.
    pub(super) may_remove: bool,
    /// Whether configuration files of removed packages go, too.
    pub(super) purge: bool,
    /// Folders of sources and logins in place of the host's.
    pub(super) sources: Option<SourceFolders>,
}

/// A file of a repository, as its root knows it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct SourceFile {
    pub(super) path: String,
    pub(super) content: String,
}

/// A file with a login, as its root knows it. Its owner alone may read it.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct LoginFile {
    pub(super) path: String,
    pub(super) content: Zeroizing<String>,
}

impl std::fmt::Debug for LoginFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "LoginFile({})", self.path)
    }
}

/// A package manager.
pub(super) trait PackageAdapter: Send + Sync {
    /// Which it is.
    fn which(&self) -> PackageManager;

    /// The program without which it is not there.
    fn program(&self) -> &'static str;

    /// The file that changes whenever packages do.
    fn status_file(&self) -> &'static str;

    /// The files whose locks others hold while they change packages.
    fn locks(&self) -> &'static [&'static str];

    /// The folder in which an interrupted run leaves files, if there is one.
    fn interrupted(&self) -> Option<&'static str>;

    /// Lists the packages that are there, for [`Self::read_list`].
    fn list(&self) -> Program;

    /// Reads that list.
    fn read_list(&self, output: &str) -> InstalledPackages;

    /// Fetches what repositories have; `sources` are folders in place of the host's.
    fn refresh(&self, sources: Option<&SourceFolders>) -> Program;

    /// Says what a job would do, for [`Self::read_changes`].
    fn simulate(&self, job: &Job) -> Program;

    /// Reads that.
    fn read_changes(&self, output: &str) -> Vec<PackageChange>;

    /// Fetches what a job needs, and changes nothing.
    fn download(&self, job: &Job) -> Program;

    /// Fetches the file of a version of a package into the present folder.
    fn download_version(&self, name: &str, version: &str) -> Program;

    /// The beginning of the name of the file of a version of a package.
    fn file_prefix(&self, name: &str, version: &str) -> String;

    /// Does a job, program by program.
    fn apply(&self, job: &Job) -> Vec<Program>;

    /// Repairs what an interrupted run has left, program by program, while it is necessary.
    fn repair(&self) -> Vec<Program>;

    /// Unpacks packages again.
    fn unpack_again(&self, names: &[String]) -> Program;

    /// Sets holds, or removes them.
    fn hold(&self, names: &[String], is_held: bool) -> Program;

    /// Lists the configuration files of packages, for [`Self::read_leftovers`].
    fn configs(&self, names: &[String]) -> Program;

    /// Returns the names that files may have which were not put in place of those configuration files.
    fn read_leftovers(&self, output: &str) -> Vec<String>;

    /// Says why a program has failed.
    fn explain(&self, output: &str) -> PackageFault;

    /// The files of a repository, each named by what it says: its key, and what makes it known.
    fn sources(&self, repository: &Repository, folders: &SourceFolders) -> Vec<SourceFile>;

    /// The file of a repository's login with a password, named by whose it is.
    fn login(&self, realm: &Name, repository: &Repository, login: &RepositoryLogin, password: &str) -> LoginFile;

    /// The passwords in the text of such a file.
    fn passwords(&self, text: &str) -> Vec<String>;

    /// Reads the sources in folders in place of the host's, and lists them for [`Self::read_sources`]. It fails if they cannot be
    /// read.
    fn list_sources(&self, sources: &SourceFolders) -> Program;

    /// Reads that list.
    fn read_sources(&self, output: &str) -> BTreeSet<HostSource>;

    /// The folders of the host's sources.
    fn source_folders(&self) -> SourceFolders;

    /// The variables of its programs.
    fn environment(&self) -> Vec<(String, String)>;
}

/// The folders of sources, of their keys, and of logins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SourceFolders {
    pub(super) sources: String,
    pub(super) keys: String,
    pub(super) logins: String,
}
