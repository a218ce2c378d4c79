//! Packages as units, with the real apt and dpkg in a root of their own.

mod beside;
mod repositories;
mod root;

use std::{fs, path::Path, process::Command};

use muster_test_support::disk::Disk;

use serde_json::{Value, json};

use self::root::{Package, Repository, Root};
use crate::{
    fleet::{Running, eventually, file},
    roles::Roles,
};

/// A script of a package that waits for a file.
const WAIT: &str = "touch /began; n=0; while [ ! -e /go ] && [ $n -lt 600 ]; do sleep 0.1; n=$((n+1)); done";

/// A console, an agent whose packages are those of a root, and a repository.
struct Bench {
    agent: Option<Running>,
    config: String,
    root: Root,
    repository: Repository,
    // It goes last.
    roles: Roles,
}

impl Bench {
    /// Starts them; `None`, said visibly, if this machine lacks what such a root needs.
    fn start() -> Option<Self> {
        Self::can_start().then(|| Self::start_in(Roles::start(), None))
    }

    fn can_start() -> bool {
        let missing: Vec<&str> = ["apt-get", "dpkg-deb", "dpkg-scanpackages", "gpg", "gpgv", "chroot"]
            .into_iter()
            .filter(|program| {
                !["/usr/bin", "/usr/sbin"].iter().any(|folder| fs::exists(format!("{folder}/{program}")).unwrap())
            })
            .collect();
        if !missing.is_empty() || !nix::unistd::geteuid().is_root() {
            eprintln!("SKIPPED: a root of packages needs root, and these programs, which are missing: {missing:?}");
            return false;
        }
        true
    }

    /// The same with the root in a folder.
    fn start_in(roles: Roles, folder: Option<&Path>) -> Self {
        let root = Root::make(&folder.unwrap_or(roles.home.path()).join("root"));
        let repository = Repository::start(&roles.home.path().join("repository"));
        for version in ["1.0", "2.0"] {
            repository.add(&Package { name: "tool", version, ..Package::default() });
        }
        let config = roles.agent_config_with(&format!("[packages]\nroot_dir = {:?}", root.path));
        let mut bench = Self { agent: None, config, root, repository, roles };
        let token = bench.roles.token();
        bench.start_agent(&["--join", &token]);
        bench.roles.wait_for_host("online");
        bench
    }

    fn start_agent(&mut self, more: &[&str]) {
        self.start_agent_to_crash(more, None);
    }

    /// Starts the agent, which ends at once when it comes to a place.
    fn start_agent_to_crash(&mut self, more: &[&str], place: Option<&str>) {
        let mut command = self.roles.home.command();
        if let Some(place) = place {
            command.env("MUSTER_TEST_CRASH", format!("{place}:1"));
        }
        self.agent = Some(Running::start(command.args(["agent", "--config", &self.config]).args(more)));
    }

    /// Kills the agent, and starts it again.
    fn restart_agent(&mut self) {
        self.agent.take().unwrap().kill();
        self.start_agent(&[]);
    }

    /// Applies the unit `default/tools` with these fields, and its repository.
    fn apply(&self, fields: Value) {
        let mut document = json!({
            "unit": "default/tools",
            "kind": "packages",
            "run": "running",
            "repositories": {"own": {"url": self.repository.url(), "suite": "./", "key": self.repository.key()}},
        });
        document.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        let path = file(&self.roles.home, "tools.json", &document.to_string());
        self.roles.ok(&["unit", "apply", &path, "--no-wait"]);
        self.unit("the applied spec", |unit| {
            fields.as_object().unwrap().iter().all(|(key, value)| unit["desired"]["spec"][key] == *value)
        });
    }

    /// The unit, once it was rolled back, and runs as it did before.
    #[track_caller]
    fn rolled_back(&self) -> Value {
        self.unit("a unit that was rolled back", |unit| {
            unit["observed"]["rolled_back"].is_object() && unit["observed"]["phase"] == "running"
        })
    }

    /// The unit, once it reports this error.
    #[track_caller]
    fn failing(&self, words: &str) -> Value {
        self.unit(words, |unit| {
            let observed = &unit["observed"];
            let errors = [&observed["error"], &observed["rolled_back"]["error"]];
            let says = |text: &Value| text.as_str().is_some_and(|text| text.contains(words));
            errors.iter().any(|error| says(&error["message"]) || says(&error["hint"]))
        })
    }

    /// Adds a package whose configuration waits for the file `go` in its root.
    fn add_slow(&self, version: &str) {
        self.repository.add(&Package { name: "slow", version, postinst: Some(WAIT), ..Package::default() });
    }

    #[track_caller]
    fn began(&self) {
        eventually("a script of a package", || {
            let began = self.root.path.join("began");
            if began.exists() { Ok(()) } else { Err(self.tasks().join("\n")) }
        });
    }

    fn go(&self) {
        fs::write(self.root.path.join("go"), "").unwrap();
    }

    /// Removes the unit, and waits until it is gone.
    #[track_caller]
    fn remove(&self) {
        self.roles.ok(&["unit", "retire", "default/tools"]);
        self.roles.ok(&["unit", "rm", "default/tools"]);
        eventually("a removed unit", || {
            let run = self.roles.home.muster(&["unit", "show", "default/tools"]);
            if run.code == 0 { Err(format!("{}\n{}", run.stdout, self.tasks().join("\n"))) } else { Ok(()) }
        });
    }

    /// The unit, once it is as wanted.
    #[track_caller]
    fn unit(&self, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        eventually(what, || {
            let run = self.roles.home.muster(&["-o", "json", "unit", "show", "default/tools"]);
            let shown: Value = serde_json::from_str(&run.stdout).map_err(|_| run.stderr.clone())?;
            if wanted(&shown) { Ok(shown) } else { Err(format!("{shown}\n{}", self.tasks().join("\n"))) }
        })
    }

    /// The unit, once it runs in its desired revision, and that is verified.
    #[track_caller]
    fn verified(&self) -> Value {
        self.unit("a verified unit", |unit| {
            let (desired, observed) = (&unit["desired"], &unit["observed"]);
            observed["phase"] == "running"
                && observed["revision"] == desired["revision"]
                && observed["verified"] == desired["revision"]
        })
    }

    /// What the unit's tasks were: action, state, what it is about, its message.
    fn tasks(&self) -> Vec<String> {
        let store = self.roles.home.path().join("agent/agent.db");
        let question = "SELECT action || ' ' || state || ': ' || about || ' | ' || COALESCE(message ->> '$.message', '') FROM task ORDER BY number";
        let asked = Command::new("sqlite3").arg("-readonly").arg(store).arg(question).output().unwrap();
        String::from_utf8_lossy(&asked.stdout).lines().map(ToOwned::to_owned).collect()
    }

    /// Waits for a task.
    #[track_caller]
    fn task(&self, start: &str) -> String {
        eventually(start, || {
            let tasks = self.tasks();
            tasks.iter().rev().find(|task| task.starts_with(start)).cloned().ok_or_else(|| tasks.join("\n"))
        })
    }

    fn version(&self, package: &str) -> Option<String> {
        self.root.packages().get(package).cloned()
    }
}

fn version(text: &str) -> Option<String> {
    Some(text.to_owned())
}

#[test]
fn packages_are_installed_upgraded_and_removed() {
    let Some(bench) = Bench::start() else { return };
    bench.apply(json!({"present": ["tool=1.0"]}));
    bench.verified();
    assert_eq!(bench.version("tool"), version("1.0"));
    bench.task("install changed: install tool 1.0");
    assert_eq!(bench.files_of_units(), 2, "a source and its key");

    bench.apply(json!({"present": ["tool=2.0"]}));
    bench.verified();
    assert_eq!(bench.version("tool"), version("2.0"));
    bench.task("install changed: upgrade tool 1.0 to 2.0");

    bench.remove();
    bench.task("uninstall changed: remove tool");
    assert_eq!(bench.version("tool"), None);
    assert_eq!(bench.files_of_units(), 0);
}

#[test]
fn what_is_not_allowed_is_refused_and_listed() {
    let Some(bench) = Bench::start() else { return };
    for version in ["1.0", "2.0"] {
        let fields = if version == "2.0" { "Conflicts: tool" } else { "" };
        bench.repository.add(&Package { name: "rival", version, fields, ..Package::default() });
    }
    bench.apply(json!({"present": ["tool=2.0"]}));
    bench.verified();

    bench.apply(json!({"present": ["tool=1.0"]}));
    let back = bench.failing("it would downgrade tool 2.0 to 1.0, which is not allowed");
    assert!(back.to_string().contains("allow: [downgrade]"), "{back}");
    assert_eq!(bench.version("tool"), version("2.0"));
    bench.apply(json!({"present": ["tool=1.0"], "allow": ["downgrade"]}));
    bench.verified();
    assert_eq!(bench.version("tool"), version("1.0"));

    // A package that is there, and was not the unit's.
    let apt = |argv: &[&str]| root::run(&mut bench.root.command(argv));
    apt(&["apt-get", "-q", "-y", "install", "rival=1.0"]);
    bench.repository.add(&Package { name: "newer", version: "1.0", fields: "Conflicts: rival", ..Package::default() });
    bench.apply(json!({"present": ["tool=1.0", "newer"], "allow": ["downgrade"]}));
    bench.failing("it would remove rival 1.0, which its spec does not name");
    bench.apply(json!({"present": ["tool=1.0", "newer"], "allow": ["downgrade", "remove_others"]}));
    bench.verified();
    assert_eq!((bench.version("rival"), bench.version("newer")), (None, version("1.0")));

    // Somebody else's hold stays; the unit's own is no obstacle.
    apt(&["apt-mark", "hold", "tool"]);
    bench.apply(json!({"present": ["tool=2.0", "newer"]}));
    bench.failing("which is held outside of muster");
    bench.apply(json!({"present": ["tool=2.0", "newer"], "hold": ["tool"]}));
    bench.verified();
    assert_eq!(bench.version("tool"), version("2.0"));

    bench.apply(json!({"present": ["nosuch"]}));
    bench.failing("no repository of this host has this package");
    bench.apply(json!({"present": ["tool=9.9"]}));
    bench.failing("no repository of this host has this version");
    assert_eq!(bench.version("tool"), version("2.0"));
}

#[test]
fn failed_revision_brings_earlier_versions_back() {
    let Some(bench) = Bench::start() else { return };
    bench.repository.add(&Package { name: "library", version: "1.0", ..Package::default() });
    bench.repository.add(&Package {
        name: "bad",
        version: "1.0",
        fields: "Depends: library",
        postinst: Some("echo it asks; read answer || exit 3"),
        ..Package::default()
    });
    bench.apply(json!({"present": ["tool=1.0"]}));
    bench.verified();
    // What was there before is in no repository any more.
    bench.repository.remove("tool", "1.0");
    bench.apply(json!({"present": ["tool=2.0", "bad"]}));
    let back = bench.rolled_back();
    let why = back["observed"]["rolled_back"]["error"]["message"].as_str().unwrap();
    assert!(why.contains("bad") && why.contains("exit status 3"), "{why}");
    assert_eq!(bench.root.packages(), [("tool".to_owned(), "1.0".to_owned())].into());
    bench.task("install changed: back: ");
    // The same thing done right works.
    bench.repository.add(&Package { name: "bad", version: "1.1", fields: "Depends: library", ..Package::default() });
    bench.apply(json!({"present": ["tool=2.0", "bad=1.1"]}));
    bench.verified();
    assert_eq!((bench.version("tool"), bench.version("bad")), (version("2.0"), version("1.1")));
    // What came along goes with the unit.
    bench.remove();
    assert_eq!(bench.root.packages(), [].into());
}

#[test]
fn lock_of_another_program_is_waited_for() {
    let Some(bench) = Bench::start() else { return };
    let script = "import fcntl,sys\nf=open(sys.argv[1],'w')\nfcntl.lockf(f,fcntl.LOCK_EX)\nprint('held',flush=True)\nsys.stdin.read()\n";
    let mut holder = Command::new("python3")
        .args(["-c", script])
        .arg(bench.root.path.join("var/lib/dpkg/lock-frontend"))
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    std::io::Read::read_exact(&mut holder.stdout.take().unwrap(), &mut [0; 5]).unwrap();
    bench.apply(json!({"present": ["tool"]}));
    bench.task("wait running: other programs that change packages");
    let unit = bench.unit("a unit that waits", |unit| unit["observed"]["phase"] == "installing");
    assert_eq!(unit["observed"]["error"], Value::Null);
    assert_eq!(bench.version("tool"), None);
    drop(holder.stdin.take());
    holder.wait().unwrap();
    bench.verified();
    bench.task("wait unchanged: other programs that change packages | waited ");
    assert_eq!(bench.version("tool"), version("2.0"));
}

#[test]
fn killed_agent_finds_what_went_on_without_it() {
    let Some(mut bench) = Bench::start() else { return };
    bench.add_slow("1.0");
    bench.apply(json!({"present": ["tool", "slow"], "no_start": true}));
    bench.began();
    assert!(bench.root.path.join("usr/sbin/policy-rc.d").exists());
    bench.agent.take().unwrap().kill();
    bench.start_agent(&[]);
    bench.task("install running: install");
    bench.task("install interrupted: install");
    bench.restart_agent();
    bench.go();
    bench.verified();
    let task = bench.task("install changed: ");
    assert!(task.contains("(interrupted)"), "{task}");
    assert_eq!((bench.version("tool"), bench.version("slow")), (version("2.0"), version("1.0")));
    assert!(!bench.root.path.join("usr/sbin/policy-rc.d").exists());
}

#[test]
fn interrupted_dpkg_is_repaired() {
    let Some(mut bench) = Bench::start() else { return };
    // While it is unpacked, and while it is configured.
    bench.repository.add(&Package { name: "early", version: "1.0", preinst: Some(WAIT), ..Package::default() });
    bench.apply(json!({"present": ["early"]}));
    bench.began();
    bench.agent.take().unwrap().kill();
    kill_below(&bench.root);
    bench.go();
    bench.start_agent(&[]);
    bench.verified();
    assert_eq!(bench.version("early"), version("1.0"));
    for file in ["go", "began"] {
        fs::remove_file(bench.root.path.join(file)).unwrap();
    }
    bench.add_slow("1.0");
    bench.apply(json!({"present": ["slow"]}));
    bench.began();
    // Both at once: the agent, and everything that changes packages.
    bench.agent.take().unwrap().kill();
    kill_below(&bench.root);
    bench.go();
    assert_ne!(bench.version("slow"), version("1.0"));
    bench.start_agent(&[]);
    bench.verified();
    bench.task("repair changed: packages that are not configured: slow");
    assert_eq!(bench.version("slow"), version("1.0"));
}

/// Kills every process whose root is that of the bench.
fn kill_below(root: &Root) {
    let is_below = |pid: i32| fs::read_link(format!("/proc/{pid}/root")).is_ok_and(|link| link == root.path);
    for _ in 0..3 {
        let entries = fs::read_dir("/proc").unwrap().flatten();
        let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
        for pid in pids.filter(|pid| is_below(*pid)) {
            let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGKILL);
        }
    }
}

#[test]
fn drift_is_corrected_or_reported() {
    let Some(bench) = Bench::start() else { return };
    bench.repository.add(&Package { name: "conf", version: "1.0", config: Some("one\n"), ..Package::default() });
    bench.apply(json!({"present": ["tool=1.0", "conf"]}));
    bench.verified();
    let apt = |argv: &[&str]| root::run(&mut bench.root.command(argv));
    apt(&["apt-get", "-q", "-y", "remove", "tool"]);
    eventually("the package again", || match bench.version("tool") {
        Some(_) => Ok(()),
        None => Err(bench.tasks().join("\n")),
    });
    bench.verified();

    bench.apply(json!({"present": ["tool=1.0", "conf"], "drift": "report"}));
    bench.verified();
    apt(&["apt-get", "-q", "-y", "install", "tool=2.0"]);
    bench
        .unit("reported drift", |unit| unit["observed"]["drift"] == json!([{"message": "tool is 2.0 instead of 1.0"}]));
    assert_eq!(bench.version("tool"), version("2.0"));

    // A configuration file that somebody has changed stays, and the new one beside it is reported.
    fs::write(bench.root.path.join("etc/conf.conf"), "mine\n").unwrap();
    bench.repository.add(&Package { name: "conf", version: "2.0", config: Some("two\n"), ..Package::default() });
    bench.apply(json!({"present": ["tool=2.0", "conf=2.0"], "drift": "report"}));
    bench.unit("a reported leftover", |unit| {
        unit["observed"]["drift"][0]["message"]
            .as_str()
            .is_some_and(|one| one.contains("wrote /etc/conf.conf.dpkg-dist instead of replacing the existing file"))
    });
    assert_eq!(bench.root.read("etc/conf.conf").unwrap(), "mine\n");
}

#[test]
fn holds_and_files_are_undone_unless_somebody_else_has_changed_them() {
    let Some(bench) = Bench::start() else { return };
    let held = || String::from_utf8(root::run(&mut bench.root.command(&["apt-mark", "showhold"])).stdout).unwrap();
    let policy = bench.root.path.join("usr/sbin/policy-rc.d");
    fs::write(&policy, "#!/bin/sh\nexit 0\n").unwrap();
    bench.apply(json!({"present": ["tool=1.0"], "hold": ["tool"], "no_start": true}));
    bench.verified();
    assert_eq!((held().as_str(), fs::read_to_string(&policy).unwrap().as_str()), ("tool\n", "#!/bin/sh\nexit 0\n"));
    // The version changes, and the hold stays.
    bench.apply(json!({"present": ["tool=2.0"], "hold": ["tool"]}));
    bench.verified();
    assert_eq!((held().as_str(), bench.version("tool")), ("tool\n", version("2.0")));
    bench.apply(json!({"present": ["tool=2.0"]}));
    bench.unit("no hold", |_| held().is_empty());
    let entries = fs::read_dir(bench.root.path.join("etc/apt/sources.list.d")).unwrap();
    let sources = entries.map(|entry| entry.unwrap().path()).next().unwrap();
    let text = fs::read_to_string(&sources).unwrap();
    fs::write(&sources, format!("{text}# mine\n")).unwrap();
    bench.remove();
    assert!(sources.exists() && policy.exists());
    assert_eq!(bench.version("tool"), None);
}

#[test]
fn unsigned_and_unreachable_repositories_are_named() {
    let Some(bench) = Bench::start() else { return };
    bench.repository.unsign();
    bench.apply(json!({"present": ["tool"]}));
    bench.failing("a repository has no valid signature");
    bench.repository.publish();
    bench.verified();
    bench.remove();
    let away = format!("http://127.0.0.1:{}", crate::fleet::free_ports(1));
    let key = bench.repository.key();
    bench.apply(json!({
        "present": ["tool"],
        "repositories": {"own": {"url": away, "suite": "./", "key": key}},
    }));
    bench.failing("a repository cannot be reached");
    bench.apply(json!({
        "present": ["tool"],
        "repositories": {"own": {"url": bench.repository.url(), "suite": "./", "key": key}},
    }));
    bench.verified();
    assert_eq!(bench.version("tool"), version("2.0"));
}

/// Places at which an agent that changes packages is killed.
const PLACES: [&str; 14] = [
    "add package trace/before commit",
    "add package trace/after commit",
    "begin package run/before commit",
    "begin package run/after commit",
    "packages/before they change",
    "launch/before files",
    "launch/before spawn",
    "launch/after spawn",
    "launch/before it is told",
    "packages/after they changed",
    "remove package trace/before commit",
    "remove package trace/after commit",
    "end package run/before commit",
    "end package run/after commit",
];

#[test]
fn agent_killed_at_any_place_brings_the_change_to_its_end() {
    let Some(mut bench) = Bench::start() else { return };
    let apply = |bench: &Bench, wanted: &str| {
        bench.apply(json!({"present": [format!("tool={wanted}")], "allow": ["downgrade"], "no_start": true}));
    };
    apply(&bench, "1.0");
    bench.verified();
    for (index, place) in PLACES.iter().enumerate() {
        let wanted = if index % 2 == 0 { "2.0" } else { "1.0" };
        bench.agent.take().unwrap().kill();
        bench.start_agent_to_crash(&[], Some(place));
        bench.roles.wait_for_host("online");
        apply(&bench, wanted);
        eventually(place, || {
            let ended = bench.agent.as_mut().unwrap().ended();
            if ended { Ok(()) } else { Err(bench.tasks().join("\n")) }
        });
        bench.start_agent(&[]);
        bench.verified();
        assert_eq!(bench.version("tool"), version(wanted), "{place}");
        assert!(!bench.root.path.join("usr/sbin/policy-rc.d").exists(), "{place}");
    }
    // The same while the unit goes.
    for place in ["remove package trace/after commit", "forget packages/before commit", "forget packages/after commit"]
    {
        bench.agent.take().unwrap().kill();
        bench.start_agent_to_crash(&[], Some(place));
        bench.roles.wait_for_host("online");
        bench.roles.ok(&["unit", "retire", "default/tools"]);
        bench.roles.ok(&["unit", "rm", "default/tools", "--no-wait"]);
        eventually(place, || {
            let ended = bench.agent.as_mut().unwrap().ended();
            if ended { Ok(()) } else { Err(bench.tasks().join("\n")) }
        });
        bench.start_agent(&[]);
        eventually("a root without packages", || {
            let packages = bench.root.packages();
            if packages.is_empty() { Ok(()) } else { Err(format!("{packages:?}\n{}", bench.tasks().join("\n"))) }
        });
        eventually("no repository", || {
            let sources = bench.root.read("etc/apt/sources.list.d/muster.default.tools.own.sources");
            if sources.is_none() { Ok(()) } else { Err(bench.tasks().join("\n")) }
        });
        apply(&bench, "1.0");
        bench.verified();
    }
}

#[test]
fn full_disk_is_named_and_mended_with_room() {
    let disk = Disk::new(120);
    let Some(bench) = Bench::can_start().then(|| Bench::start_in(Roles::start(), Some(disk.path()))) else { return };
    bench.repository.add(&Package { name: "big", version: "1.0", megabytes: 24, ..Package::default() });
    bench.apply(json!({"present": ["tool=1.0"]}));
    bench.verified();
    // There is room to download it, and none to unpack it.
    let fill = |mib: usize| fs::write(disk.path().join("filler"), vec![1; mib * 1024 * 1024]).unwrap();
    let stats = nix::sys::statvfs::statvfs(disk.path()).unwrap();
    let free_mib = usize::try_from(stats.blocks_available() * stats.fragment_size() / 1024 / 1024).unwrap();
    fill(free_mib - 12);
    bench.apply(json!({"present": ["tool=1.0", "big"]}));
    bench.failing("the disk is full");
    assert_eq!(bench.version("tool"), version("1.0"));
    fs::remove_file(disk.path().join("filler")).unwrap();
    bench.apply(json!({"present": ["tool=2.0", "big"]}));
    bench.verified();
    assert_eq!((bench.version("tool"), bench.version("big")), (version("2.0"), version("1.0")));
}
