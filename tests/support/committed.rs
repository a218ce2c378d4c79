//! Files that are generated, and committed: a test compares both, so that neither changes alone.

use std::{
    env, fs,
    path::{Path, PathBuf},
};

/// Fails unless a committed file is what is generated. With `MUSTER_REWRITE` in the environment it is written anew
/// instead. `command` is the test's own command, for the message.
#[track_caller]
pub fn check(path: &Path, generated: &str, command: &str) {
    if env::var_os("MUSTER_REWRITE").is_some() {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, generated).unwrap();
        return;
    }
    let committed = fs::read_to_string(path).unwrap_or_default();
    assert!(
        committed == generated,
        "{} is not what is generated{}\n`MUSTER_REWRITE=1 {command}` writes it anew",
        path.display(),
        first_difference(&committed, generated)
    );
}

/// Returns the path of a page below `docs/reference`, from a crate's folder, which is `depth` folders below the top.
#[must_use]
pub fn reference(manifest_folder: &str, depth: usize, name: &str) -> PathBuf {
    let top = Path::new(manifest_folder).ancestors().nth(depth).unwrap();
    top.join("docs/reference").join(name)
}

fn first_difference(committed: &str, generated: &str) -> String {
    let (mut ours, mut theirs) = (committed.lines(), generated.lines());
    for number in 1.. {
        match (ours.next(), theirs.next()) {
            (None, None) => break,
            (one, other) if one == other => {}
            (one, other) => {
                let shown = |line: Option<&str>| line.map_or("(the end)".to_owned(), |line| format!("{line:?}"));
                return format!(", from line {number}: {} is committed, {} generated", shown(one), shown(other));
            }
        }
    }
    String::new()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_difference_is_named() {
        assert_eq!(first_difference("a\nb\n", "a\nb\n"), "");
        assert_eq!(first_difference("a\n", "a\nc\n"), ", from line 2: (the end) is committed, \"c\" generated");
    }

    #[test]
    #[should_panic(expected = "writes it anew")]
    fn other_content_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.md");
        fs::write(&path, "old\n").unwrap();
        if env::var_os("MUSTER_REWRITE").is_some() {
            panic!("it writes it anew");
        }
        check(&path, "new\n", "cargo test");
    }
}
