//! Units of files on other file systems, with what files have beside their content, and with what is slow or large.

use std::{
    fs,
    os::unix::fs::{MetadataExt, chown, symlink},
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

use nix::unistd::{Group, User};
use serde_json::{Value, json};

use super::{Bench, Mounted, can};
use crate::fleet::eventually;

impl Bench {
    /// Mounts an ext4 of so many MiB, of which nothing is kept for root. `None`, said visibly, if this machine cannot do that.
    fn ext4(&self, name: &str, mib: u64) -> Option<Mounted> {
        let image = self.fleet.home.path().join(format!("{name}.image"));
        fs::File::create(&image).unwrap().set_len(mib << 20).unwrap();
        fs::create_dir(self.at(name)).unwrap();
        let image = image.to_str().unwrap();
        if !can(&["mkfs.ext4", "-q", "-m", "0", image]) {
            return None;
        }
        Mounted::new(&["mount", "-o", "loop", image], &self.at(name))
    }

    /// Adds a tarball of files, each of so many KiB of one letter.
    fn add_tree(&self, version: &str, letter: char, names: &[&str], kib: usize) {
        let tree = tempfile::tempdir().unwrap();
        for name in names {
            fs::write(tree.path().join(name), content(letter, kib)).unwrap();
        }
        let packed = self.fleet.home.path().join(format!("tree-{version}.tar"));
        let packed = packed.to_str().unwrap();
        assert!(can(&["tar", "-cf", packed, "-C", tree.path().to_str().unwrap(), "."]));
        self.fleet.ok(&["artifact", "create", packed, "--role", "tree", "--version", version]);
    }

    fn apply_without_waiting(&self, entries: &Value, more: &Value) {
        self.fleet.ok(&["unit", "apply", &self.document(entries, more), "--no-wait"]);
    }

    /// The unit, once it or what it was rolled back from has this error.
    #[track_caller]
    fn failing(&self, words: &str) -> Value {
        self.fleet.unit("default/config", |unit| {
            let observed = &unit["observed"];
            let errors = [&observed["error"], &observed["rolled_back"]["error"]];
            let says = |text: &Value| text.as_str().is_some_and(|text| text.contains(words));
            errors.iter().any(|error| says(&error["message"]) || says(&error["hint"]))
        })
    }

    #[track_caller]
    fn rolled_back(&self) -> Value {
        self.fleet.unit("default/config", |unit| {
            let observed = &unit["observed"];
            observed["rolled_back"].is_object() && observed["phase"] == "running"
        })
    }
}

fn content(letter: char, kib: usize) -> String {
    letter.to_string().repeat(kib * 1024)
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let mut names: Vec<String> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn ext4_that_fills_in_the_middle_of_a_change_keeps_each_file_whole() {
    let bench = Bench::start();
    let Some(_mounted) = bench.ext4("small", 4) else { return };
    let at = bench.at("small");
    bench.add_tree("1", 'o', &["a", "b"], 300);
    bench.add_tree("2", 'n', &["a", "b", "c", "d"], 400);
    let entries = |version: &str| json!({"small/tree": {"directory": {}, "artifact": format!("tree@{version}")}});
    bench.apply(&entries("1"));
    let filler = at.join("filler");
    fs::write(&filler, content('f', 1_500)).unwrap();

    // The version before comes back, and what was written of the new one goes.
    let is_old = || {
        names(&at.join("tree")) == ["a", "b"]
            && ["a", "b"].iter().all(|name| bench.text(&format!("small/tree/{name}")) == content('o', 300))
    };
    bench.apply_without_waiting(&entries("2"), &json!({}));
    bench.failing("free space on its file system");
    bench.rolled_back();
    assert!(is_old(), "{:?}", names(&at.join("tree")));

    // Without that, each file is the old or the new one, and nothing is left beside.
    bench.apply_without_waiting(&entries("2"), &json!({"rollback": "never"}));
    bench.fleet.unit("default/config", |unit| {
        unit["observed"]["phase"] == "backoff" && unit["observed"]["error"].to_string().contains("free space")
    });
    let mut changed = 0;
    for name in ["a", "b", "c", "d"] {
        let (text, is_new) = (bench.text(&format!("small/tree/{name}")), ["c", "d"].contains(&name));
        changed += u32::from(text == content('n', 400));
        let is_before = if is_new { text.is_empty() } else { text == content('o', 300) };
        assert!(is_before || text == content('n', 400), "{name} has {} bytes", text.len());
    }
    assert!((1..4).contains(&changed), "it was full in the middle: {changed} of 4");
    assert!(names(&at.join("tree")).iter().all(|name| ["a", "b", "c", "d"].contains(&name.as_str())));

    // With room it goes on by itself.
    fs::remove_file(&filler).unwrap();
    for name in ["a", "b", "c", "d"] {
        bench.text_becomes(&format!("small/tree/{name}"), &content('n', 400));
    }
    bench.verified();

    // Read-only, and a file that nobody may change.
    let mount = at.to_str().unwrap();
    assert!(can(&["mount", "-o", "remount,ro", mount]));
    let entries = json!({"small/motd": {"text": "motd\n"}});
    bench.apply_without_waiting(&entries, &json!({"rollback": "never"}));
    bench.failing("its file system is read-only");
    assert_eq!(names(&at.join("tree")), ["a", "b", "c", "d"]);
    assert!(can(&["mount", "-o", "remount,rw", mount]));
    bench.text_becomes("small/motd", "motd\n");
    bench.verified();
    let motd = at.join("motd");
    let motd = motd.to_str().unwrap();
    assert!(can(&["chattr", "+i", motd]));
    bench.apply_without_waiting(&json!({"small/motd": {"text": "other\n"}}), &json!({"rollback": "never"}));
    bench.failing("check whether the file is immutable");
    assert_eq!(bench.text("small/motd"), "motd\n");
    assert!(can(&["chattr", "-i", motd]));
    bench.text_becomes("small/motd", "other\n");
}

#[test]
fn files_of_the_lower_layer_of_an_overlay_are_replaced_and_given_back() {
    let bench = Bench::start();
    for name in ["lower/conf.d", "upper", "work", "root"] {
        fs::create_dir_all(bench.at(name)).unwrap();
    }
    for (name, text) in [("lower/motd", "before\n"), ("lower/conf.d/theirs", "theirs\n"), ("lower/gone", "gone\n")] {
        fs::write(bench.at(name), text).unwrap();
    }
    let at = |name: &str| bench.at(name).to_str().unwrap().to_owned();
    let options = format!("lowerdir={},upperdir={},workdir={}", at("lower"), at("upper"), at("work"));
    let mount = ["mount", "-t", "overlay", "overlay", "-o", &options];
    let Some(_mounted) = Mounted::new(&mount, &bench.at("root")) else { return };
    bench.apply(&json!({
        "root/motd": {"text": "after\n"},
        "root/conf.d": {"directory": {"purge": true}},
        "root/conf.d/own": {"text": "own\n"},
        "root/gone": {"absent": true},
        "root/link": {"link": "motd"},
    }));
    assert_eq!((bench.text("root/motd").as_str(), bench.text("root/link").as_str()), ("after\n", "after\n"));
    assert_eq!((names(&bench.at("root/conf.d")), bench.at("root/gone").exists()), (vec!["own".to_owned()], false));
    assert_eq!(bench.text("lower/motd"), "before\n", "the lower layer stays");
    for drift in [&(|path: &Path| fs::write(path, "wrong\n").unwrap()) as &dyn Fn(&Path), &|path: &Path| {
        fs::remove_file(path).unwrap();
    }] {
        let began = Instant::now();
        drift(&bench.at("root/motd"));
        bench.text_becomes("root/motd", "after\n");
        assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
    }
    bench.fleet.ok(&["unit", "retire", "default/config"]);
    bench.fleet.ok(&["unit", "rm", "default/config"]);
    bench.text_becomes("root/motd", "before\n");
    assert_eq!(names(&bench.at("root/conf.d")), ["theirs"]);
    assert_eq!((bench.text("root/gone").as_str(), bench.at("root/link").exists()), ("gone\n", false));
}

/// An access list: the owner may write, `nobody` read, and others read.
const ACCESS_LIST: &str = "0x0200000001000600ffffffff02000400feff000004000400ffffffff10000400ffffffff20000400ffffffff";

#[test]
fn attributes_and_labels_of_a_replaced_file_stay_and_capabilities_go() {
    let bench = Bench::start();
    let motd = bench.at("motd");
    fs::write(&motd, "before\n").unwrap();
    let path = motd.to_str().unwrap();
    let set = |name: &str, value: &str| can(&["setfattr", "-n", name, "-v", value, path]);
    let label = "system_u:object_r:etc_t:s0";
    let kept = [("user.colour", "blue"), ("security.selinux", label), ("system.posix_acl_access", ACCESS_LIST)];
    for (name, value) in kept {
        if !set(name, value) {
            return;
        }
    }
    assert!(set("security.capability", "0x0100000202000000000000000000000000000000"));
    let get = |name: &str| {
        let output = Command::new("getfattr").args(["--only-values", "-n", name, path]).output().unwrap();
        output.status.success().then_some(output.stdout)
    };
    let before = kept.map(|(name, _)| get(name).unwrap());
    let inode = fs::metadata(&motd).unwrap().ino();
    bench.apply(&json!({"motd": {"text": "after\n"}}));
    assert_ne!(fs::metadata(&motd).unwrap().ino(), inode, "it was replaced");
    assert_eq!(kept.map(|(name, _)| get(name).unwrap()), before);
    assert_eq!(get("security.capability"), None, "a capability belongs to the content");
    // Drift of the content, too.
    fs::write(&motd, "wrong\n").unwrap();
    bench.text_becomes("motd", "after\n");
    assert_eq!(kept.map(|(name, _)| get(name).unwrap()), before);
    bench.fleet.ok(&["unit", "retire", "default/config"]);
    bench.fleet.ok(&["unit", "rm", "default/config"]);
    bench.text_becomes("motd", "before\n");
    assert_eq!(kept.map(|(name, _)| get(name).unwrap()), before);
}

#[test]
fn owner_is_kept_or_set_and_a_folder_of_another_user_redirects_nothing() {
    let bench = Bench::start();
    let (Some(nobody), Some(nogroup)) = (User::from_name("nobody").unwrap(), Group::from_name("nogroup").unwrap())
    else {
        eprintln!("skipped: this machine has no user nobody");
        return;
    };
    let (uid, gid) = (nobody.uid.as_raw(), nogroup.gid.as_raw());
    fs::create_dir(bench.at("theirs")).unwrap();
    for name in ["theirs", "theirs/kept"] {
        if name != "theirs" {
            fs::write(bench.at(name), "before\n").unwrap();
        }
        chown(bench.at(name), Some(uid), Some(gid)).unwrap();
    }
    let owner = |name: &str| fs::metadata(bench.at(name)).map(|found| (found.uid(), found.gid())).unwrap();
    bench.apply(&json!({
        "theirs/kept": {"text": "after\n"},
        "theirs/new": {"text": "new\n", "owner": "nobody", "group": "nogroup", "mode": "0600"},
        "roots": {"text": "root's\n"},
    }));
    assert_eq!([owner("theirs/kept"), owner("theirs/new"), owner("roots")], [(uid, gid), (uid, gid), (0, 0)]);
    // What the other user makes of the owner is drift, if the owner was said.
    chown(bench.at("theirs/new"), Some(0), Some(0)).unwrap();
    eventually("the owner again", || match owner("theirs/new") {
        ours if ours == (uid, gid) => Ok(()),
        other => Err(format!("{other:?}")),
    });

    // A link of the other user leads nowhere.
    fs::create_dir(bench.at("secret")).unwrap();
    symlink("../secret", bench.at("theirs/way")).unwrap();
    std::os::unix::fs::lchown(bench.at("theirs/way"), Some(uid), Some(gid)).unwrap();
    bench.apply_without_waiting(&json!({"theirs/way/x": {"text": "x\n"}}), &json!({}));
    bench.failing("is a symbolic link that users other than root may change");
    assert!(names(&bench.at("secret")).is_empty());
    bench.apply(&json!({"secret/x": {"text": "x\n"}}));
    assert_eq!(bench.text("secret/x"), "x\n");
}

#[test]
fn validator_that_hangs_is_killed_and_the_old_file_stays() {
    let bench = Bench::start();
    bench.apply(&json!({"motd": {"text": "before\n"}}));
    let mark = bench.at("pid");
    let script = format!("sleep 4321 & echo $! > {}; wait # {{}}", mark.display());
    bench.apply_without_waiting(&json!({"motd": {"text": "after\n", "validate": ["sh", "-c", script]}}), &json!({}));
    let sleeper = eventually("the validator", || fs::read_to_string(&mark).map_err(|error| error.to_string()));
    // Meanwhile nothing is changed, and the host does other things.
    assert_eq!(bench.fleet.ok(&["exec", "--", "echo", "here"]), "here\n");
    assert_eq!(bench.text("motd"), "before\n");
    bench.failing("its validator sh did not end within 60 s and was killed");
    assert_eq!(bench.rolled_back()["observed"]["phase"], "running");
    assert_eq!(bench.text("motd"), "before\n");
    let is_alive = || {
        let cmdline = fs::read(format!("/proc/{}/cmdline", sleeper.trim())).unwrap_or_default();
        String::from_utf8_lossy(&cmdline).contains("4321")
    };
    eventually("what the validator has started", || if is_alive() { Err("it is alive".to_owned()) } else { Ok(()) });
    bench.apply(&json!({"motd": {"text": "after\n", "validate": ["grep", "-q", "after", "{}"]}}));
    assert_eq!(bench.text("motd"), "after\n");
}

/// The most memory that a file may take of the program that has all roles.
const FILE_MAX_MEMORY_MB: u64 = 200;

#[test]
fn file_of_a_gigabyte_is_written_kept_and_given_back_in_little_memory() {
    if std::env::var_os("TESTS_LONG").is_none() {
        eprintln!("skipped: it takes four gigabytes of disk; TESTS_LONG=1 runs it");
        return;
    }
    let mut bench = Bench::start();
    let image = bench.fleet.home.path().join("image");
    let size_bytes = 1 << 30;
    fs::File::create(&image).unwrap().set_len(size_bytes).unwrap();
    fs::write(bench.at("old"), "old\n").unwrap();
    let pid = bench.fleet.up().pid();
    let peak_mb = || {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() / 1024
    };
    let before_mb = peak_mb();
    bench.fleet.ok(&["artifact", "create", image.to_str().unwrap(), "--role", "image", "--version", "1"]);
    bench.apply(&json!({"image": {"artifact": "image@1"}, "old": {"artifact": "image@1"}}));
    let is_whole = |name: &str| can(&["cmp", image.to_str().unwrap(), bench.at(name).to_str().unwrap()]);
    assert!(is_whole("image") && is_whole("old"));
    fs::File::options().write(true).open(bench.at("image")).unwrap().set_len(1 << 20).unwrap();
    eventually("a whole file again", || match fs::metadata(bench.at("image")).map(|found| found.len()) {
        Ok(length) if length == size_bytes => Ok(()),
        other => Err(format!("{other:?}")),
    });
    assert!(is_whole("image"));
    let grown_mb = peak_mb() - before_mb;
    assert!(grown_mb < FILE_MAX_MEMORY_MB, "{grown_mb} MB more at its peak");
    bench.fleet.ok(&["unit", "retire", "default/config"]);
    bench.fleet.ok(&["unit", "rm", "default/config"]);
    bench.text_becomes("old", "old\n");
    assert!(!bench.at("image").exists());
}
