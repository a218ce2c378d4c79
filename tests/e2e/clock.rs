//! The clock of a process, which a test sets.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use crate::fleet::Home;

/// A clock that can be set while processes read it.
pub(crate) struct Clock(PathBuf);

impl Clock {
    /// One that shows what everybody else's does.
    pub(crate) fn new(folder: &Path, name: &str) -> Self {
        let clock = Self(folder.join(format!("{name}.clock")));
        clock.set("+0");
        clock
    }

    /// Sets it: `+7d`, `-2h`, `@1970-01-02 00:00:00`, `+0` for what everybody else has.
    pub(crate) fn set(&self, to: &str) {
        // In one step: it is read again and again.
        let new = self.0.with_extension("new");
        fs::write(&new, format!("{to}\n")).unwrap();
        fs::rename(new, &self.0).unwrap();
    }

    /// Has all processes of a home read it.
    pub(crate) fn give_to_all(&self, home: &mut Home) {
        let mut command = Command::new("env");
        self.give_to(&mut command);
        let set = command.get_envs().filter_map(|(name, value)| Some((name.to_owned(), value?.to_owned())));
        home.env.extend(set);
    }

    /// Has a process read it.
    pub(crate) fn give_to(&self, command: &mut Command) {
        command
            .env("LD_PRELOAD", library())
            .env("FAKETIME_TIMESTAMP_FILE", &self.0)
            .env("FAKETIME_NO_CACHE", "1")
            // Clocks are set, time goes on.
            .env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
    }
}

/// The library that sets a process's clock.
pub(crate) fn library() -> PathBuf {
    let libraries = fs::read_dir("/usr/lib").unwrap().map(|entry| entry.unwrap().path());
    let mut found = libraries.map(|folder| folder.join("faketime/libfaketime.so.1")).filter(|path| path.exists());
    found.next().expect("Debian's package libfaketime is missing; tests/run installs it")
}
