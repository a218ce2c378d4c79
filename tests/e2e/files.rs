//! Units of files on a real host, as root where that is needed, in folders that the test has made.

mod file_systems;

use std::{
    fs,
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use crate::fleet::{Fleet, eventually, file};

/// A fleet, and a folder of its host.
struct Bench {
    fleet: Fleet,
    etc: PathBuf,
}

impl Bench {
    fn start() -> Self {
        let fleet = Fleet::start();
        let etc = fleet.home.path().canonicalize().unwrap().join("etc");
        fs::create_dir(&etc).unwrap();
        Self { fleet, etc }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.etc.join(name)
    }

    fn text(&self, name: &str) -> String {
        fs::read_to_string(self.at(name)).unwrap_or_default()
    }

    /// Writes the document of a unit with these entries by name.
    fn document(&self, entries: &Value, more: &Value) -> String {
        let entries: serde_json::Map<String, Value> = entries
            .as_object()
            .unwrap()
            .iter()
            .map(|(name, entry)| (self.at(name).to_str().unwrap().to_owned(), entry.clone()))
            .collect();
        let mut document = json!({"unit": "default/config", "kind": "files", "run": "running", "files": entries});
        document.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        file(&self.fleet.home, "config.json", &document.to_string())
    }

    #[track_caller]
    fn apply(&self, entries: &Value) {
        self.fleet.ok(&["unit", "apply", &self.document(entries, &json!({}))]);
        self.verified();
    }

    #[track_caller]
    fn verified(&self) -> Value {
        self.fleet.unit("default/config", |unit| {
            let observed = &unit["observed"];
            observed["phase"] == "running"
                && observed["generation"] == unit["desired"]["generation"]
                && observed["verified"] == observed["revision"]
        })
    }

    #[track_caller]
    fn text_becomes(&self, name: &str, wanted: &str) {
        eventually(name, || match self.text(name) {
            text if text == wanted => Ok(()),
            other => Err(other),
        });
    }
}

#[test]
fn files_are_applied_kept_and_given_back() {
    let mut bench = Bench::start();
    fs::write(bench.at("motd"), "before\n").unwrap();
    fs::set_permissions(bench.at("motd"), fs::Permissions::from_mode(0o640)).unwrap();
    let entries = json!({
        "motd": {"text": "one\n"},
        "new": {"text": "new\n", "mode": "0600"},
        "conf.d": {"directory": {}},
        "conf.d/inner": {"text": "inner\n"},
        "link": {"link": "motd"},
    });
    bench.apply(&entries);
    assert_eq!(
        (bench.text("motd"), bench.text("conf.d/inner"), bench.text("link")),
        ("one\n".into(), "inner\n".into(), "one\n".into())
    );
    assert_eq!(fs::metadata(bench.at("motd")).unwrap().permissions().mode() & 0o777, 0o640);

    // Drift is put right within a second.
    for drift in [
        &(|path: &Path| fs::write(path, "wrong\n").unwrap()) as &dyn Fn(&Path),
        &|path: &Path| fs::File::options().write(true).open(path).unwrap().set_len(1).unwrap(),
        &|path: &Path| fs::rename(path, path.with_extension("moved")).unwrap(),
        &|path: &Path| fs::remove_file(path).unwrap(),
    ] {
        let began = Instant::now();
        drift(&bench.at("motd"));
        bench.text_becomes("motd", "one\n");
        assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
    }

    // What happened while the agent was away, too.
    bench.fleet.kill();
    fs::write(bench.at("new"), "while it was away\n").unwrap();
    bench.fleet.again();
    bench.text_becomes("new", "new\n");

    // Another revision gives back what it does not name, and a failed one changes nothing.
    bench.apply(&json!({"motd": {"text": "two\n"}}));
    assert_eq!(
        (bench.text("motd").as_str(), bench.at("new").exists(), bench.at("conf.d").exists()),
        ("two\n", false, false)
    );
    let wrong =
        bench.document(&json!({"motd": {"text": "three\n", "validate": ["grep", "-q", "two", "{}"]}}), &json!({}));
    bench.fleet.muster(&["unit", "apply", &wrong]);
    let unit = bench.fleet.unit("default/config", |unit| unit["observed"]["rolled_back"].is_object());
    let why = unit["observed"]["rolled_back"]["error"]["message"].as_str().unwrap();
    assert!(why.contains("its validator grep refuses it (exit status: 1): it gave no reason"), "{why}");
    assert_eq!(bench.text("motd"), "two\n");

    bench.fleet.ok(&["unit", "retire", "default/config"]);
    bench.fleet.ok(&["unit", "rm", "default/config"]);
    bench.text_becomes("motd", "before\n");
    assert_eq!(fs::metadata(bench.at("motd")).unwrap().permissions().mode() & 0o777, 0o640);
}

#[test]
fn obstacles_are_clear_and_the_right_thing_works_afterwards() {
    let bench = Bench::start();
    fs::create_dir_all(bench.at("folder/inside")).unwrap();
    symlink("elsewhere", bench.at("link")).unwrap();
    for (entries, words) in [
        (json!({"folder": {"text": "x"}}), "there is a folder"),
        (json!({"link": {"text": "x"}}), "there is a symbolic link"),
        (json!({"a": {"text": "x", "owner": "no-such-user"}}), "this host has no user no-such-user"),
        (json!({"none/a": {"text": "x"}}), "etc/none does not exist"),
    ] {
        let document = bench.document(&entries, &json!({}));
        bench.fleet.muster(&["unit", "apply", &document, "--no-wait"]);
        let unit = bench.fleet.unit("default/config", |unit| {
            unit["observed"]["error"]["message"].as_str().is_some_and(|error| error.contains(words))
        });
        assert_ne!(unit["observed"]["phase"], "running", "{unit}");
    }
    bench.apply(&json!({"a": {"text": "right\n"}}));
    assert_eq!(bench.text("a"), "right\n");
    assert!(bench.at("folder/inside").is_dir());
}

/// Where a change can be interrupted.
const PLACES: [&str; 5] = [
    "intend files/before commit",
    "intend files/after commit",
    "files/after a path",
    "note files/before commit",
    "note files/after commit",
];

#[test]
fn kill_at_each_boundary_is_mended_and_the_original_comes_back() {
    let mut bench = Bench::start();
    fs::write(bench.at("motd"), "before\n").unwrap();
    fs::write(bench.at("old"), "old\n").unwrap();
    bench.apply(&json!({"motd": {"text": "0\n"}, "old": {"absent": true}}));
    for (number, place) in (1..).zip(PLACES) {
        bench.fleet.stop();
        bench.fleet.home.env.push(("MUSTER_TEST_CRASH".into(), format!("{place}:1").into()));
        bench.fleet.again();
        let text = format!("{number}\n");
        let entries = json!({"motd": {"text": text}, "new": {"text": text}, "old": {"absent": true}});
        let document = bench.document(&entries, &json!({}));
        bench.fleet.muster(&["unit", "apply", &document, "--no-wait"]);
        eventually(place, || if bench.fleet.up().ended() { Ok(()) } else { Err("it goes on".to_owned()) });
        bench.fleet.home.env.pop();
        bench.fleet.again();
        bench.text_becomes("motd", &text);
        bench.text_becomes("new", &text);
        bench.verified();
        let mut names: Vec<_> =
            fs::read_dir(&bench.etc).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        assert_eq!(names, ["motd", "new"], "{place}: nothing else is left");
    }
    bench.fleet.ok(&["unit", "retire", "default/config"]);
    bench.fleet.ok(&["unit", "rm", "default/config"]);
    bench.text_becomes("motd", "before\n");
    assert_eq!((bench.text("old").as_str(), bench.at("new").exists()), ("old\n", false));
}

#[test]
fn fight_over_a_file_is_given_up_visibly() {
    let bench = Bench::start();
    bench.apply(&json!({"motd": {"text": "right\n"}}));
    let (at, stop) = (bench.at("motd"), Arc::new(AtomicBool::new(false)));
    let fighter = std::thread::spawn({
        let stop = stop.clone();
        move || {
            while !stop.load(Ordering::Relaxed) {
                let _ = fs::write(&at, "mine\n");
                std::thread::sleep(Duration::from_millis(50));
            }
        }
    });
    let unit = bench.fleet.unit("default/config", |unit| {
        unit["observed"]["phase"] == "backoff"
            && unit["observed"]["error"]["message"].as_str().is_some_and(|error| error.contains("keeps changing it"))
    });
    assert!(unit["observed"]["retry_ms"].is_number(), "{unit}");
    // Each time it waits longer.
    let unit = bench.fleet.unit("default/config", |unit| {
        let observed = &unit["observed"];
        observed["phase"] == "backoff" && observed["retry_ms"].as_i64().is_some_and(|at| at - now_ms() > 8_000)
    });
    stop.store(true, Ordering::Relaxed);
    fighter.join().unwrap();
    assert_eq!(bench.text("motd"), "mine\n", "{unit}");
    // Once the other has ended, an operator need not wait for the next try.
    let began = Instant::now();
    bench.fleet.ok(&["unit", "restart", "default/config"]);
    bench.text_becomes("motd", "right\n");
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    bench.verified();
}

fn now_ms() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    i64::try_from(since.as_millis()).unwrap()
}

/// Runs a program of the host; false if it cannot do that here.
fn can(argv: &[&str]) -> bool {
    let output = std::process::Command::new(argv[0]).args(&argv[1..]).output();
    let is_done = output.as_ref().is_ok_and(|output| output.status.success());
    if !is_done {
        eprintln!("skipped: {argv:?}: {output:?}");
    }
    is_done
}

/// Unmounts a place when it is dropped.
struct Mounted(PathBuf);

impl Mounted {
    fn new(argv: &[&str], at: &Path) -> Option<Self> {
        can(&[argv, &[at.to_str().unwrap()]].concat()).then(|| Self(at.to_owned()))
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        can(&["umount", self.0.to_str().unwrap()]);
    }
}

#[test]
fn bind_mounted_file_is_written_in_place_and_given_back() {
    let bench = Bench::start();
    fs::write(bench.at("source"), "before, and longer than what comes\n").unwrap();
    fs::write(bench.at("target"), "").unwrap();
    let source = bench.at("source").to_str().unwrap().to_owned();
    let Some(_mounted) = Mounted::new(&["mount", "--bind", &source], &bench.at("target")) else { return };
    bench.apply(&json!({"target": {"text": "after\n"}}));
    assert_eq!((bench.text("target"), bench.text("source")), ("after\n".to_owned(), "after\n".to_owned()));
    fs::write(bench.at("source"), "wrong\n").unwrap();
    bench.fleet.ok(&["unit", "retire", "default/config"]);
    fs::write(bench.at("source"), "after\n").unwrap();
    bench.fleet.ok(&["unit", "rm", "default/config"]);
    bench.text_becomes("source", "before, and longer than what comes\n");
}

#[test]
fn full_and_read_only_file_systems_leave_the_old_file_whole() {
    let bench = Bench::start();
    fs::create_dir(bench.at("small")).unwrap();
    let options = ["mount", "-t", "tmpfs", "-o", "size=24k,mode=755", "tmpfs"];
    let Some(_mounted) = Mounted::new(&options, &bench.at("small")) else { return };
    fs::write(bench.at("small/motd"), "before\n").unwrap();
    let entries = json!({"small/motd": {"text": "x".repeat(30_000)}});
    bench.fleet.muster(&["unit", "apply", &bench.document(&entries, &json!({})), "--no-wait"]);
    let said = |words: &'static str| {
        move |unit: &Value| {
            let error = &unit["observed"]["error"];
            ["message", "hint"].iter().any(|part| error[*part].as_str().is_some_and(|text| text.contains(words)))
        }
    };
    bench.fleet.unit("default/config", said("free space on its file system"));
    assert_eq!(bench.text("small/motd"), "before\n");
    let at = bench.at("small");
    let at = at.to_str().unwrap();
    assert!(can(&["mount", "-o", "remount,size=1m", at]));
    bench.text_becomes("small/motd", &"x".repeat(30_000));
    assert!(can(&["mount", "-o", "remount,ro", at]));
    let entries = json!({"small/motd": {"text": "after\n"}});
    bench.fleet.muster(&["unit", "apply", &bench.document(&entries, &json!({"rollback": "never"})), "--no-wait"]);
    bench.fleet.unit("default/config", said("its file system is read-only"));
    assert_eq!(bench.text("small/motd"), "x".repeat(30_000));
    assert!(can(&["mount", "-o", "remount,rw", at]));
    bench.text_becomes("small/motd", "after\n");
}

#[test]
fn tree_comes_from_an_artifact_and_files_are_exported() {
    let bench = Bench::start();
    let tree = bench.fleet.home.path().join("tree");
    fs::create_dir_all(tree.join("conf.d")).unwrap();
    fs::write(tree.join("conf.d/a"), "a\n").unwrap();
    let packed = bench.fleet.home.path().join("tree.tar.gz");
    let (tree, packed) = (tree.to_str().unwrap(), packed.to_str().unwrap());
    assert!(can(&["tar", "-czf", packed, "-C", tree, "."]));
    bench.fleet.ok(&["artifact", "create", packed, "--role", "tree", "--version", "1"]);
    bench.apply(&json!({"tree": {"directory": {"purge": true}, "artifact": "tree@1"}}));
    assert_eq!(bench.text("tree/conf.d/a"), "a\n");
    fs::remove_dir_all(bench.at("tree/conf.d")).unwrap();
    bench.text_becomes("tree/conf.d/a", "a\n");
    bench.fleet.muster(&["artifact", "rm", "tree@1"]).expect_code(3).expect_stderr("default/config");
    let exported = bench.fleet.json(&["unit", "export", "--files", bench.at("tree").to_str().unwrap()]);
    assert_eq!(exported["files"][bench.at("tree/conf.d/a").to_str().unwrap()]["text"], "a\n", "{exported}");
    fs::write(bench.at("binary"), [0, 1, 2]).unwrap();
    let export = bench.fleet.muster(&["unit", "export", "--files", bench.at("binary").to_str().unwrap()]);
    export.expect_code(1).expect_stderr("it is not text");
}
