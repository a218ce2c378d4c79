//! A full disk: commands that free room get through, and every role starts.

use std::{
    fs,
    path::{Path, PathBuf},
};

use muster_test_support::disk::Disk;
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::{
    fleet::{Fleet, Running, eventually, file},
    roles::Roles,
};

/// A disk of 64 MB, with blocks of 1 KiB.
fn small_disk() -> Disk {
    Disk::ext4(64, &["-b", "1024"])
}

fn kept_bytes(data: &Path) -> u64 {
    ["agent/reserve", "console/reserve"].iter().map(|name| fs::metadata(data.join(name)).unwrap().len()).sum()
}

/// Kills all units of an agent with their shims.
fn kill_units(data: &Path) {
    let host = fs::read_to_string(data.join("host")).unwrap();
    let memory = format!("/muster-agent-{}-", host.trim());
    let is_of = |cwd: PathBuf| cwd.starts_with(data) || cwd.to_str().is_some_and(|cwd| cwd.contains(&memory));
    let below = |pid: &i32| fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(is_of);
    eventually("no process of a unit", || {
        let pids = fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
        let there: Vec<i32> = pids.filter(below).collect();
        for pid in &there {
            let _ = kill(Pid::from_raw(*pid), Signal::SIGKILL);
        }
        if there.is_empty() { Ok(()) } else { Err(format!("{there:?}")) }
    });
}

#[test]
fn full_disk_accepts_commands_and_starts_roles() {
    let disk = small_disk();
    let data = disk.path().join("data");
    let mut fleet = Fleet::start_with(&["--data-dir", data.to_str().unwrap()]);
    fleet.unit_in_phase("default/hello", "running");
    let whole = kept_bytes(&data);

    disk.fill();
    assert_eq!(fleet.ok(&["exec", "--", "echo", "one"]), "one\n");
    fleet.ok(&["yuno", "stop", "default/hello"]);
    // A stolen key is replaced now, and not when there is room.
    fleet.ok(&["authority", "rotate", "signing"]);
    fleet.ok(&["authority", "finish"]);
    assert_eq!(fleet.ok(&["exec", "--", "echo", "new key"]), "new key\n");
    let alert = eventually("an alert of the console", || {
        let alerts = fleet.json(&["alert", "ls"]);
        alerts
            .as_array()
            .unwrap()
            .iter()
            .find(|one| one["alert"]["rule"] == "console-disk-full")
            .cloned()
            .ok_or_else(|| alerts.to_string())
    });
    assert!(alert["alert"]["hint"].as_str().unwrap().starts_with("free space"), "{alert}");
    // The reserve is not for uploads.
    let config = file(&fleet.home, "small.json", "{}");
    for upload in [
        &["config", "create", "small", "1", &config][..],
        &["artifact", "create", &config, "--role", "small", "--version", "1"],
    ] {
        fleet
            .muster(upload)
            .expect_code(1)
            .expect_stderr("nothing of this upload was stored")
            .expect_stderr("hint: of the console's folder");
    }
    // Every verb says so, beside its answer.
    fleet.muster(&["host", "ls"]).expect_code(0).expect_stderr("is full");
    assert!(kept_bytes(&data) < whole);

    // It starts there, stopped or killed.
    for killed in [false, true] {
        if killed {
            fleet.kill();
        } else {
            fleet.stop();
        }
        disk.fill();
        fleet.again();
        assert_eq!(fleet.ok(&["exec", "--", "echo", "two"]), "two\n", "killed: {killed}");
    }
    fleet.ok(&["yuno", "run", "default/hello"]);

    // Once there is room the reserve is made again, and nothing is said any more.
    disk.empty();
    eventually("a whole reserve", || match kept_bytes(&data) {
        kept if kept == whole => Ok(()),
        kept => Err(format!("{kept} of {whole}")),
    });
    eventually("no alert", || match fleet.json(&["alert", "ls"]) {
        alerts if alerts.as_array().unwrap().is_empty() => Ok(()),
        alerts => Err(alerts.to_string()),
    });
    fleet.ok(&["config", "create", "small", "1", &config]);
    fleet.ok(&["yuno", "stop", "default/hello"]);
}

#[test]
fn up_without_reserve_can_be_read_and_runs_units() {
    let disk = small_disk();
    let data = disk.path().join("data");
    let mut fleet = Fleet::start_with(&["--data-dir", data.to_str().unwrap()]);
    fleet.unit_in_phase("default/hello", "running");
    fleet.stop();
    disk.fill();
    for reserve in ["agent/reserve", "console/reserve"] {
        fs::remove_file(data.join(reserve)).unwrap();
    }
    disk.fill();
    fleet.again();
    fleet.muster(&["host", "ls"]).expect_code(0).expect_stderr("is full");
    fleet.unit_in_phase("default/hello", "running");
    fleet.muster(&["exec", "--", "echo", "one"]).expect_code(1).expect_stderr("free space");
    disk.empty();
    eventually("a command", || {
        let run = fleet.muster(&["exec", "--", "echo", "two"]);
        if run.stdout == "two\n" { Ok(()) } else { Err(run.stderr) }
    });
    fleet.ok(&["yuno", "stop", "default/hello"]);
}

#[test]
fn console_on_a_read_only_disk_says_so_and_can_be_read() {
    let disk = small_disk();
    let data = disk.path().join("data");
    let mut fleet = Fleet::start_with(&["--data-dir", data.to_str().unwrap()]);
    fleet.unit_in_phase("default/hello", "running");
    disk.abort();
    for _ in 0..2 {
        fleet.muster(&["exec", "--", "echo", "one"]).expect_code(1).expect_stderr("read-only").expect_stderr("hint: ");
    }
    eventually("an alert of the console", || {
        let alerts = fleet.json(&["alert", "ls"]);
        let mut rules = alerts.as_array().unwrap().iter().map(|one| &one["alert"]["rule"]);
        if rules.any(|rule| rule == "console-store-unwritable") { Ok(()) } else { Err(alerts.to_string()) }
    });
    fleet.muster(&["host", "ls"]).expect_code(0).expect_stderr("mount it writable");
    fleet.unit_in_phase("default/hello", "running");
    fleet.kill();
    fleet
        .muster(&["up", "--data-dir", data.to_str().unwrap()])
        .expect_code(1)
        .expect_stderr("Read-only file system")
        .expect_stderr("mount it writable");
    kill_units(&data.join("agent"));
}

/// A fault after which nothing can be written.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    NoRoom,
    NoFiles,
    /// After an error of the disk.
    Aborted,
    /// Until somebody mounts it for writing again.
    ReadOnly,
}

/// An agent on a disk of its own, with a yuno that runs.
struct DiskSite {
    disk: Disk,
    fault: Fault,
    roles: Roles,
    agent: Option<Running>,
}

impl DiskSite {
    fn start(fault: Fault) -> Self {
        let disk = match fault {
            Fault::NoFiles => Disk::ext4(64, &["-b", "1024", "-N", "512"]),
            Fault::NoRoom | Fault::Aborted | Fault::ReadOnly => small_disk(),
        };
        let mut site = Self { disk, fault, roles: Roles::start(), agent: None };
        site.start_agent();
        let program = file(&site.roles.home, "keeps", "#!/bin/sh\necho started\nwhile :; do sleep 1; done\n");
        site.roles.ok(&["artifact", "create", &program, "--role", "keeps", "--version", "1"]);
        site.roles.ok(&["yuno", "create", "default/keeps", "--artifact", "keeps", "--run"]);
        site.pid_other_than(0);
        site
    }

    fn data(&self) -> PathBuf {
        self.disk.path().join("agent")
    }

    fn start_agent(&mut self) {
        let mut text = format!("data_dir = {:?}\n", self.data());
        if !self.data().exists() {
            text += &format!("join = \"{}\"\n", self.roles.token());
        }
        text += "[metrics]\nsample_ms = 200\n";
        let config = file(&self.roles.home, "agent.toml", &text);
        self.agent = Some(Running::start(self.roles.home.command().args(["agent", "--config", &config])));
        self.roles.wait_for_host("online");
    }

    fn kill_agent(&mut self) {
        self.agent.take().unwrap().kill();
    }

    /// Kills the yuno with its shim, as the end of the host does.
    fn kill_yuno(&self) {
        kill_units(&self.data());
    }

    /// The process of the yuno, once it runs and is another one than this.
    fn pid_other_than(&self, before: i64) -> i64 {
        eventually("a process of the yuno", || {
            let shown = self.roles.json(&["unit", "show", "default/keeps"]);
            let observed = &shown["observed"];
            match observed["pid"].as_i64() {
                Some(pid) if observed["phase"] == "running" && pid != before => Ok(pid),
                _ => Err(shown.to_string()),
            }
        })
    }

    fn strike(&self) {
        match self.fault {
            Fault::NoFiles => self.disk.fill_files(),
            Fault::Aborted => self.disk.abort(),
            Fault::ReadOnly => self.disk.set_read_only(true),
            Fault::NoRoom => {
                self.disk.fill();
                // The agent may put some of it back meanwhile.
                while fs::metadata(self.data().join("reserve")).is_ok_and(|reserve| reserve.len() > 0) {
                    fs::remove_file(self.data().join("reserve")).unwrap();
                    self.disk.fill();
                }
            }
        }
    }

    fn alerts(&self) -> String {
        self.roles.ok(&["alert", "ls"])
    }

    /// The yuno goes on, and whatever would have to be remembered is refused with the reason.
    fn check_goes_on_in_memory(&self, pid: i64) {
        eventually("the host's alert", || match self.alerts() {
            alerts if alerts.contains("store-unwritable") => Ok(()),
            alerts => Err(alerts),
        });
        let is_read_only = matches!(self.fault, Fault::Aborted | Fault::ReadOnly);
        let hint = if is_read_only { "mounted read-only" } else { "free space" };
        for refused in [&["exec", "--", "echo", "one"][..], &["yuno", "stop", "default/keeps"]] {
            let run = self.roles.home.muster(refused).expect_code(3).expect_stderr("cannot write to");
            run.expect_stderr(hint);
        }
        // What only reads is answered.
        assert!(self.roles.ok(&["yuno", "logs", "default/keeps"]).contains("started"), "{:?}", self.fault);
        assert_eq!(self.pid_other_than(0), pid, "{:?}", self.fault);
        // One that ends is started again.
        kill(Pid::from_raw(i32::try_from(pid).unwrap()), Signal::SIGKILL).unwrap();
        self.pid_other_than(pid);
    }

    fn check_is_back(&mut self) {
        let before = self.pid_other_than(0);
        match self.fault {
            // It would have to be repaired, which is a start of the host.
            Fault::Aborted => return,
            Fault::ReadOnly => self.disk.set_read_only(false),
            Fault::NoRoom | Fault::NoFiles => self.disk.empty(),
        }
        eventually("an alert less", || match self.alerts() {
            alerts if alerts.contains("store-unwritable") => Err(alerts),
            _ => Ok(()),
        });
        assert_eq!(self.pid_other_than(0), before, "{:?}", self.fault);
        assert_eq!(self.roles.ok(&["exec", "--", "echo", "two"]), "two\n");
        self.roles.ok(&["yuno", "stop", "default/keeps"]);
        self.roles.ok(&["yuno", "run", "default/keeps"]);
        self.pid_other_than(before);
        // What was refused stays so.
        let listed = self.roles.json(&["command", "ls"]).to_string();
        assert!(listed.contains("unwritable"), "{listed}");
        // It was all put back: nothing was lost.
        assert!(!self.alerts().contains("store-lost"), "{}", self.alerts());
    }
}

impl Drop for DiskSite {
    fn drop(&mut self) {
        self.agent.take().into_iter().for_each(Running::kill);
        if self.data().join("host").exists() {
            self.kill_yuno();
        }
    }
}

fn check_running(fault: Fault) {
    let mut site = DiskSite::start(fault);
    let pid = site.pid_other_than(0);
    site.strike();
    site.check_goes_on_in_memory(pid);
    site.check_is_back();
}

fn check_started(fault: Fault) {
    let mut site = DiskSite::start(fault);
    let before = site.pid_other_than(0);
    site.kill_agent();
    site.kill_yuno();
    site.strike();
    site.start_agent();
    let pid = site.pid_other_than(before);
    site.check_goes_on_in_memory(pid);
    // Another start finds what was started in memory.
    let pid = site.pid_other_than(pid);
    site.kill_agent();
    site.start_agent();
    assert_eq!(site.pid_other_than(0), pid);
    site.check_is_back();
}

#[test]
fn running_agent_goes_on_without_room() {
    check_running(Fault::NoRoom);
}

#[test]
fn running_agent_goes_on_without_files() {
    check_running(Fault::NoFiles);
}

#[test]
fn running_agent_goes_on_after_an_error_of_the_disk() {
    check_running(Fault::Aborted);
}

#[test]
fn started_agent_runs_units_without_room() {
    check_started(Fault::NoRoom);
}

#[test]
fn started_agent_runs_units_without_files() {
    check_started(Fault::NoFiles);
}

#[test]
fn started_agent_runs_units_after_an_error_of_the_disk() {
    check_started(Fault::Aborted);
}

#[test]
fn started_agent_runs_units_read_only() {
    check_started(Fault::ReadOnly);
}

#[test]
fn exhausted_reserve_is_reported_to_the_caller() {
    let disk = small_disk();
    let roles = Roles::start();
    let data = disk.path().join("agent");
    let config = file(
        &roles.home,
        "agent.toml",
        &format!(
            "data_dir = \"{}\"\njoin = \"{}\"\n[metrics]\nsample_ms = 200\n\
             [alerts.rules.store]\nmetric = \"store_used\"\nthreshold = 0.97\nclear = 0.95\n",
            data.display(),
            roles.token()
        ),
    );
    let agent = Running::start(roles.home.command().args(["agent", "--config", &config]));
    roles.wait_for_host("online");
    disk.fill();
    // What is in reserve is for this, too.
    eventually("the host's alert", || match roles.ok(&["alert", "ls"]) {
        alerts if alerts.contains("store") => Ok(()),
        alerts => Err(alerts),
    });
    // The agent may put some of it back meanwhile.
    while fs::metadata(data.join("reserve")).is_ok_and(|reserve| reserve.len() > 0) {
        fs::remove_file(data.join("reserve")).unwrap();
        disk.fill();
    }
    let why = "cannot write to";
    roles.home.muster(&["exec", "--", "echo", "one"]).expect_code(3).expect_stderr(why).expect_stderr("free space");
    // With room it is done.
    disk.empty();
    eventually("no alert", || match roles.ok(&["alert", "ls"]) {
        alerts if alerts.contains("store-unwritable") => Err(alerts),
        _ => Ok(()),
    });
    assert_eq!(roles.ok(&["exec", "--", "echo", "one"]), "one\n");
    agent.kill();
}
