//! Texts that people read, each held by a file: [`insta`] compares, and shows the difference.
//!
//! With `MUSTER_REWRITE` in the environment the files are written anew, and those that nothing makes any more are removed.
//! `.config/insta.yaml` has `insta` itself write nothing, unless `INSTA_UPDATE` says otherwise.

use std::{
    collections::BTreeSet,
    env, fs,
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
};

/// What the name of such a file ends with.
const ENDING: &str = ".snap";

/// The snapshots of one folder.
#[derive(Debug)]
pub struct Snapshots {
    folder: PathBuf,
    command: &'static str,
    is_rewritten: bool,
    made: BTreeSet<String>,
    differing: Vec<String>,
}

impl Snapshots {
    /// Those below a folder, which is given by its whole path; `command` is the test's own command, for the message.
    #[must_use]
    pub fn of(folder: &Path, command: &'static str) -> Self {
        let is_rewritten = env::var_os("MUSTER_REWRITE").is_some();
        fs::create_dir_all(folder).unwrap();
        Self { folder: folder.to_owned(), command, is_rewritten, made: BTreeSet::new(), differing: Vec::new() }
    }

    /// Compares a text with the one of this name. What differs is shown at once, and fails [`Snapshots::finish`].
    #[track_caller]
    pub fn check(&mut self, name: &str, text: &str) {
        assert!(self.made.insert(format!("{name}{ENDING}")), "two snapshots are named {name}");
        let text = text.trim_end();
        if self.is_rewritten {
            // As `insta` writes it.
            let whole = format!("---\nsource: {}\n---\n{text}\n", file!());
            fs::write(self.folder.join(format!("{name}{ENDING}")), whole).unwrap();
        }
        let mut settings = insta::Settings::new();
        settings.set_snapshot_path(&self.folder);
        settings.set_prepend_module_to_snapshot(false);
        settings.set_omit_expression(true);
        let compare = || settings.bind(|| insta::assert_snapshot!(name, text));
        if catch_unwind(AssertUnwindSafe(compare)).is_err() {
            self.differing.push(name.to_owned());
        }
    }

    /// Fails if a text differed, or if a file has no text any more.
    #[track_caller]
    pub fn finish(self) {
        let entries = fs::read_dir(&self.folder).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned());
        let mut orphans: Vec<String> =
            names.filter(|name| name.ends_with(ENDING) && !self.made.contains(name)).collect();
        orphans.sort();
        if self.is_rewritten {
            orphans.drain(..).for_each(|name| fs::remove_file(self.folder.join(name)).unwrap());
        }
        assert!(
            self.differing.is_empty() && orphans.is_empty(),
            "snapshots in {} that differ: {:?}; files without a text: {orphans:?}\n`MUSTER_REWRITE=1 {}` writes them anew",
            self.folder.display(),
            self.differing,
            self.command
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(folder: &Path, is_rewritten: bool) -> Snapshots {
        Snapshots { is_rewritten, ..Snapshots::of(folder, "cargo test") }
    }

    #[test]
    fn text_is_held_until_it_is_written_anew() {
        let folder = tempfile::tempdir().unwrap();
        let fails = |is_rewritten: bool, text: &str| {
            let mut snapshots = held(folder.path(), is_rewritten);
            snapshots.check("one", text);
            catch_unwind(AssertUnwindSafe(|| snapshots.finish())).is_err()
        };
        assert!(fails(false, "text"));
        assert!(!fails(true, "text\n"));
        assert!(!fails(false, "text"));
        assert!(fails(false, "other"));
        assert!(!fails(true, "other"));
        assert!(!fails(false, "other\n"));
    }

    #[test]
    fn file_without_a_text_is_named_and_removed() {
        let folder = tempfile::tempdir().unwrap();
        let orphan = folder.path().join("gone.snap");
        fs::write(&orphan, "---\nsource: x\n---\ntext\n").unwrap();
        assert!(catch_unwind(|| held(folder.path(), false).finish()).is_err());
        held(folder.path(), true).finish();
        assert!(!orphan.exists());
    }
}
