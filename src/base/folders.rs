//! Folders from the environment: where a user's programs keep their files.
//!
//! **Invariant: `HOME` and the XDG variables are read here alone**, and a relative path in them is ignored, because it would
//! mean another folder for each working directory. A path that a person gives (`--data-dir`, a configuration) may be relative
//! to the working directory, and is made [`absolute`] before it is stored or passed on.

use std::{
    env,
    ffi::OsString,
    io,
    path::{Path, PathBuf},
};

use crate::failure::{Failure, FailureKind};

/// The standard folders of the user who runs the program.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UserFolders {
    home: Option<PathBuf>,
    config: Option<PathBuf>,
    data: Option<PathBuf>,
}

impl UserFolders {
    /// The folders that the environment of this process names.
    #[must_use]
    pub fn from_environment() -> Self {
        Self::read(|name| env::var_os(name))
    }

    /// The folders that these variables name. Empty and relative values are ignored, as the XDG base directory
    /// specification requires.
    #[must_use]
    pub fn read(variable: impl Fn(&str) -> Option<OsString>) -> Self {
        let folder = |name| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
        Self { home: folder("HOME"), config: folder("XDG_CONFIG_HOME"), data: folder("XDG_DATA_HOME") }
    }

    /// The folder for configuration: `$XDG_CONFIG_HOME`, or `~/.config`.
    #[must_use]
    pub fn config(&self) -> Option<PathBuf> {
        self.config.clone().or_else(|| Some(self.home.as_ref()?.join(".config")))
    }

    /// The folder for data: `$XDG_DATA_HOME`, or `~/.local/share`.
    #[must_use]
    pub fn data(&self) -> Option<PathBuf> {
        self.data.clone().or_else(|| Some(self.home.as_ref()?.join(".local/share")))
    }

    /// The folder for data, if `XDG_DATA_HOME` is set.
    #[must_use]
    pub fn named_data(&self) -> Option<&Path> {
        self.data.as_deref()
    }
}

/// The folder for what lasts as long as this user is logged in: `$XDG_RUNTIME_DIR`, if it is set.
#[must_use]
pub fn runtime() -> Option<PathBuf> {
    env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|path| path.is_absolute())
}

/// The folder with the credentials that systemd hands to a service (`LoadCredential=`), if there is one.
#[must_use]
pub fn credentials() -> Option<PathBuf> {
    env::var_os("CREDENTIALS_DIRECTORY").map(PathBuf::from).filter(|path| path.is_absolute())
}

/// The error if the environment names no folder; the user can give one instead.
#[must_use]
pub fn nowhere() -> Failure {
    Failure::new(FailureKind::Usage, "neither HOME nor XDG_DATA_HOME is an absolute path").hint("pass --data-dir DIR")
}

/// An absolute path from one that a user gave, relative to the current folder of the process.
///
/// # Errors
/// If the current folder does not exist, or the path is empty.
pub fn absolute(path: &Path) -> io::Result<PathBuf> {
    std::path::absolute(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folders(home: &str, config: &str, data: &str) -> UserFolders {
        UserFolders::read(|name| {
            let value = match name {
                "HOME" => home,
                "XDG_CONFIG_HOME" => config,
                _ => data,
            };
            // `-` stands for a variable that is not set.
            (value != "-").then(|| value.into())
        })
    }

    #[test]
    fn relative_and_empty_variables_are_ignored() {
        let path = |text: &str| Some(PathBuf::from(text));
        for (home, config, data, wanted_config, wanted_data) in [
            ("/home/anna", "-", "-", path("/home/anna/.config"), path("/home/anna/.local/share")),
            ("/home/anna", "/c", "/d", path("/c"), path("/d")),
            ("/home/anna", "", "", path("/home/anna/.config"), path("/home/anna/.local/share")),
            ("/home/anna", "cfg", "dat", path("/home/anna/.config"), path("/home/anna/.local/share")),
            ("/home/anna", "./cfg", "~/dat", path("/home/anna/.config"), path("/home/anna/.local/share")),
            ("anna", "cfg", "dat", None, None),
            ("", "/c", "dat", path("/c"), None),
            ("-", "-", "/d", None, path("/d")),
        ] {
            let folders = folders(home, config, data);
            let case = format!("HOME={home} XDG_CONFIG_HOME={config} XDG_DATA_HOME={data}");
            assert_eq!((folders.config(), folders.data()), (wanted_config, wanted_data), "{case}");
        }
        assert_eq!(folders("/home/anna", "-", "dat").named_data(), None);
        assert_eq!(folders("/home/anna", "-", "/d").named_data(), Some(Path::new("/d")));
    }

    #[test]
    fn given_path_is_relative_to_the_working_directory() {
        let here = env::current_dir().unwrap();
        assert_eq!(absolute(Path::new("/a/b")).unwrap(), Path::new("/a/b"));
        assert_eq!(absolute(Path::new("try")).unwrap(), here.join("try"));
        assert_eq!(absolute(Path::new("./try/../x")).unwrap(), here.join("try/../x"));
        assert!(absolute(Path::new("")).is_err());
    }
}
