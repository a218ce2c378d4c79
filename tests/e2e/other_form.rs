//! What a build from before the first release has left: refused by name, and not changed.
//!
//! `other_form/` has the folders of a fleet as that build left them, with a README that says how they were made.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    process::Command,
};

use muster_topics::name::Digest;

use crate::fleet::{Home, Run, file};

const ARCHIVE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/e2e/other_form/fd0afa16.tar.xz");
const WORDS: &str = "by a build of muster from before its first release";

/// A home with these folders in it.
struct OldHome {
    home: Home,
}

/// What is known of a file: its mode, when it was changed, and its content.
type KnownFile = (u32, i64, Option<Digest>);

impl OldHome {
    fn new() -> Self {
        let home = Home::new();
        let mut tar = Command::new("tar");
        let unpacked = tar.args(["-xJf", ARCHIVE, "--no-same-owner", "-C"]).arg(home.path()).status().unwrap();
        assert!(unpacked.success(), "{unpacked}");
        Self { home }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    fn remove(&self, name: &str) {
        fs::remove_file(self.path(name)).unwrap();
    }

    /// Every file and folder below a folder.
    fn content(&self, name: &str) -> BTreeMap<PathBuf, KnownFile> {
        let mut content = BTreeMap::new();
        let mut paths = vec![self.path(name)];
        while let Some(path) = paths.pop() {
            let found = fs::symlink_metadata(&path).unwrap();
            let bytes = found.is_file().then(|| Digest::of(&fs::read(&path).unwrap()));
            if found.is_dir() {
                paths.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
            }
            content.insert(path, (found.mode(), found.mtime_nsec() + found.mtime() * 1_000_000_000, bytes));
        }
        content
    }

    /// Fails unless a command is refused because of a file, and everything below a folder stays as it is.
    #[track_caller]
    fn refuses(&self, args: &[&str], folder: &str, because_of: &str) -> Run {
        let before = self.content(folder);
        let run = self.home.muster(args).expect_code(1).expect_stderr(WORDS).expect_stderr("hint: ");
        let named = self.path(because_of);
        assert!(run.stderr.contains(named.to_str().unwrap()), "{run:?}");
        let after = self.content(folder);
        let changed: Vec<&Path> = before
            .keys()
            .chain(after.keys())
            .filter(|path| before.get(*path) != after.get(*path))
            .map(PathBuf::as_path)
            .collect();
        assert!(changed.is_empty(), "{args:?}: {changed:?}");
        run
    }

    fn config(&self, role: &str, text: &str) -> String {
        file(&self.home, &format!("{role}.toml"), text)
    }
}

#[test]
fn each_role_refuses_the_folder_of_an_older_build() {
    let old = OldHome::new();
    let paths = ["up", "up/console", "up/agent", "simulate"].map(|name| old.path(name));
    let [up, console, agent, simulate] = paths.each_ref().map(|path| path.to_str().unwrap());
    let ports = ["--web-port", "0", "--hosts-port", "0", "--mqtt-port", "0"];
    let up = [&["up", "--data-dir", up], &ports[..]].concat();
    old.refuses(&up, "up", "up/console/console.db");
    let serve = old.config(
        "console",
        &format!(
            "data_dir = \"{console}\"\nbroker_url = \"mqtts://127.0.0.1:1\"\nweb_listen = \"127.0.0.1:0\"\n\
             hosts_listen = \"127.0.0.1:0\"\n"
        ),
    );
    old.refuses(&["console", "--config", &serve], "up", "up/console/console.db");
    old.refuses(&["console", "init", "--data-dir", console], "up", "up/console/console.db");
    old.refuses(&["login", "--new-link", "--data-dir", console], "up", "up/console/console.db");
    old.refuses(&["agent", "--data-dir", agent], "up", "up/agent/agent.db");
    old.refuses(&["agent", "detach", "--data-dir", agent], "up", "up/agent/agent.db");
    let simulate = ["simulate", "--hosts", "2", "--data-dir", simulate];
    old.refuses(&simulate, "simulate", "simulate/simulation.db");

    // Without its store a folder is known by what else is in it.
    old.remove("up/console/console.db");
    old.refuses(&["console", "--config", &serve], "up", "up/console/series.db");
    old.refuses(&up, "up", "up/console/series.db");
    old.remove("up/console/series.db");
    old.refuses(&up, "up", "up/agent/agent.db");
    old.remove("up/agent/agent.db");
    old.refuses(&["agent", "--data-dir", agent], "up", "up/agent/identity.json");
    old.refuses(&up, "up", "up/agent/identity.json");
    old.remove("up/agent/identity.json");
    old.refuses(&["agent", "--data-dir", agent], "up", "up/agent/intent/default/hello.json");
    old.refuses(&up, "up", "up/agent/intent/default/hello.json");
}

#[test]
fn command_line_refuses_an_older_context_and_an_older_backup() {
    let old = OldHome::new();
    let context = old.home.context_file();
    fs::create_dir_all(context.parent().unwrap()).unwrap();
    fs::copy(old.path("context.toml"), &context).unwrap();
    let named = context.strip_prefix(old.home.path()).unwrap().to_str().unwrap().to_owned();
    let folder = Path::new(&named).parent().unwrap().to_str().unwrap().to_owned();
    old.refuses(&["host", "ls"], &folder, &named);
    let new = old.path("new");
    old.refuses(&["up", "--data-dir", new.to_str().unwrap()], &folder, &named);
    assert!(!new.exists(), "nothing is begun");
    fs::remove_file(context).unwrap();

    let backup = ["one.tar.age", "--identity", "key.txt"];
    for verb in [&["backup", "verify"][..], &["backup", "restore", "--data-dir", "restored"]] {
        let run = old.home.muster(&[verb, &backup].concat()).expect_code(1);
        run.expect_stderr(WORDS).expect_stderr("hint: ");
        assert!(!old.path("restored").exists() && !old.path("restored.restoring").exists());
    }
}

#[test]
fn doctor_names_stores_of_an_older_build() {
    let old = OldHome::new();
    let before = old.content("up");
    let agent = old.config("agent", &format!("data_dir = \"{}\"\n", old.path("up/agent").display()));
    let console = old.config("console", &format!("data_dir = \"{}\"\n", old.path("up/console").display()));
    let run = old.home.muster(&["doctor", "--agent-config", &agent, "--console-config", &console]);
    for store in ["up/agent/agent.db", "up/agent/identity.json", "up/console/console.db", "up/console/series.db"] {
        let named = format!("{} was written {WORDS}", old.path(store).display());
        assert!(run.stdout.contains(&named), "{store}: {run:?}");
    }
    assert!(run.code != 0 && before == old.content("up"), "{run:?}");
}
