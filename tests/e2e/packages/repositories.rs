//! Repositories of units beside those of other units, and those that the host's administrator has.

use serde_json::json;

use super::{
    Bench,
    root::{self, Repository},
    version,
};
use crate::fleet::{eventually, file};

impl Bench {
    /// Applies the unit `default/others`, which wants the package and a repository with a key.
    fn apply_others(&self, repository: (&str, &str), more: &serde_json::Value) {
        let (url, key) = repository;
        let mut document = json!({
            "unit": "default/others",
            "kind": "packages",
            "run": "running",
            "present": ["tool"],
            "repositories": {"theirs": {"url": url, "suite": "./", "key": key}},
        });
        document.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let path = file(&self.roles.home, "others.json", &document.to_string());
        self.roles.ok(&["unit", "apply", &path, "--no-wait"]);
    }

    /// Waits until the other unit says something.
    #[track_caller]
    fn others_say(&self, words: &str) {
        eventually(words, || {
            let shown = self.roles.home.muster(&["unit", "show", "default/others"]).stdout;
            if shown.contains(words) { Ok(()) } else { Err(format!("{shown}\n{}", self.tasks().join("\n"))) }
        });
    }

    fn remove_others(&self) {
        self.roles.ok(&["unit", "retire", "default/others"]);
        self.roles.ok(&["unit", "rm", "default/others"]);
        eventually("a removed unit", || {
            let run = self.roles.home.muster(&["unit", "show", "default/others"]);
            if run.code == 0 { Err(run.stdout) } else { Ok(()) }
        });
    }

    /// The files of units among the sources and keys, and that apt reads all sources.
    #[track_caller]
    pub(super) fn files_of_units(&self) -> usize {
        root::run(&mut self.root.command(&["apt-get", "-q", "update"]));
        let count = |folder: &str| {
            let entries =
                std::fs::read_dir(self.root.path.join(folder)).unwrap().map(|entry| entry.unwrap().file_name());
            entries.filter(|name| name.to_string_lossy().starts_with("muster.")).count()
        };
        count("etc/apt/sources.list.d") + count("etc/apt/keyrings")
    }
}

#[test]
fn units_share_a_repository_and_the_last_one_takes_it_away() {
    let Some(bench) = Bench::start() else { return };
    bench.apply(json!({"present": ["tool=1.0"]}));
    bench.verified();
    assert_eq!(bench.files_of_units(), 2);
    // The same one, written in another way.
    let key = bench.repository.key().replace('\n', " \r\n");
    bench.apply_others((&format!("{}/", bench.repository.url()), &key), &json!({}));
    bench.others_say("running");
    assert_eq!(bench.files_of_units(), 2);
    bench.remove();
    assert_eq!(bench.files_of_units(), 2, "the other unit has it");
    bench.remove_others();
    assert_eq!(bench.files_of_units(), 0);
}

#[test]
fn repository_with_another_key_breaks_no_sources() {
    let Some(bench) = Bench::start() else { return };
    let stranger = Repository::start(&bench.roles.home.path().join("stranger"));
    bench.apply(json!({"present": ["tool=1.0"]}));
    bench.verified();
    bench.apply_others((&bench.repository.url(), &stranger.key()), &json!({}));
    bench.others_say("default/tools has repository");
    assert_eq!(bench.files_of_units(), 2);
    // What is retired wants nothing, but its repository is still there.
    bench.roles.ok(&["unit", "retire", "default/tools"]);
    bench.others_say("with another key");
    assert_eq!(bench.files_of_units(), 2);
}

#[test]
fn repository_of_the_administrator_serves_a_unit_or_is_named() {
    let Some(bench) = Bench::start() else { return };
    let (url, own) = (bench.repository.url(), "etc/apt/sources.list.d/own.list");
    let write = |path: &str, text: &str| std::fs::write(bench.root.path.join(path), text).unwrap();
    write("etc/apt/keyrings/own.asc", &bench.repository.key());
    write(own, &format!("# mine\ndeb [signed-by=/etc/apt/keyrings/own.asc] {url} ./\n"));
    bench.apply(json!({"present": ["tool=1.0"]}));
    bench.verified();
    assert_eq!((bench.files_of_units(), bench.version("tool")), (0, version("1.0")));
    // It names no key any more. No package is missing, so nothing else asks apt.
    write(own, &format!("deb [trusted=yes] {url} ./\n"));
    bench.apply(json!({"present": ["tool=1.0"], "hold": ["tool"]}));
    bench.failing(&format!("/{own} has the repository {url}/ ./ with another key"));
    assert_eq!(bench.files_of_units(), 0);
    std::fs::remove_file(bench.root.path.join(own)).unwrap();
    bench.apply(json!({"present": ["tool=2.0"]}));
    bench.verified();
    assert_eq!((bench.files_of_units(), bench.version("tool")), (2, version("2.0")));
    // Sources that somebody else has broken are nobody's reason to change anything.
    write(own, "what is this?\n");
    bench.apply(json!({"present": ["tool=2.0"], "hold": ["tool"]}));
    bench.failing("the sources of this host cannot be read");
}
