//! Processes that are killed: the agent, the shim, both together, the program while no agent runs; and reused process ids.

use std::{fs, path::PathBuf};

use muster_shim::process_identity;
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::Value;

use crate::{
    fleet::{Running, eventually, file, machine::Machine},
    roles::Roles,
};

/// A fleet whose one agent can be killed by itself.
pub(crate) struct Site {
    pub(crate) roles: Roles,
    agent: Option<Running>,
}

impl Site {
    pub(crate) fn start() -> Self {
        let roles = Roles::start();
        let config = roles.agent_config();
        let join = format!("--join={}", roles.token());
        let agent = Running::start(roles.home.command().args(["agent", "--config", &config, &join]));
        let site = Self { roles, agent: Some(agent) };
        site.roles.wait_for_host("online");
        site
    }

    pub(crate) fn kill_agent(&mut self) {
        self.agent.take().unwrap().kill();
    }

    /// Starts the agent again, and waits until the console hears from it.
    pub(crate) fn start_agent(&mut self) {
        let config = self.roles.agent_config();
        self.agent = Some(Running::start(self.roles.home.command().args(["agent", "--config", &config])));
        self.roles.wait_for_host("online");
    }

    /// Makes a yuno of a script; `more` is more of what `yuno create` is told.
    pub(crate) fn create(&self, name: &str, script: &str, more: &[&str]) {
        let path = file(&self.roles.home, name, script);
        self.roles.ok(&["artifact", "create", &path, "--role", name, "--version", "1"]);
        let unit = format!("default/{name}");
        self.roles.ok(&[&["yuno", "create", &unit, "--artifact", name, "--run"], more].concat());
    }

    pub(crate) fn unit(&self, name: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        eventually(name, || {
            let run = self.roles.home.muster(&["-o", "json", "unit", "show", &format!("default/{name}")]);
            let shown: Value = serde_json::from_str(&run.stdout).map_err(|_| run.stderr.clone())?;
            if wanted(&shown) { Ok(shown) } else { Err(shown.to_string()) }
        })
    }

    /// The process of a yuno that runs.
    pub(crate) fn pid(&self, name: &str) -> i32 {
        let unit = self.unit(name, |unit| unit["observed"]["phase"] == "running" && unit["observed"]["pid"].is_i64());
        unit["observed"]["pid"].as_i64().unwrap() as i32
    }

    fn folder(&self, name: &str) -> PathBuf {
        self.roles.home.path().join("agent/units/default").join(name)
    }

    /// What a yuno has written into its working folder.
    pub(crate) fn written(&self, name: &str, file: &str) -> String {
        fs::read_to_string(self.folder(name).join("work").join(file)).unwrap_or_default()
    }

    /// The shim of a yuno: a process whose working folder is the shim's, and whose parent is not such a process. (The
    /// child that waits in it to become the next program is one, too; after a wrap of process ids it has the lower one.)
    pub(crate) fn shim(&self, name: &str) -> Option<i32> {
        let run = self.folder(name).join("run");
        let mut there = process_identity::pids().unwrap();
        there.retain(|pid| fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|cwd| cwd == run));
        let is_it = |pid: &i32| process_identity::stat(*pid).is_some_and(|stat| !there.contains(&stat.ppid));
        there.iter().copied().find(is_it)
    }

    /// Waits until a shim other than `before` is there.
    fn new_shim(&self, name: &str, before: i32) {
        eventually("a new shim", || match self.shim(name) {
            Some(shim) if shim != before => Ok(()),
            other => Err(format!("{other:?}")),
        });
    }

    /// Waits until the log has grown beyond what it is now.
    fn log_goes_on(&self, name: &str) {
        let len = || fs::metadata(self.folder(name).join("run/log")).map_or(0, |log| log.len());
        let before = len();
        eventually("more of its log", || if len() > before { Ok(()) } else { Err(before.to_string()) });
    }
}

/// Notes each of its starts, and goes on printing.
const TICKS: &str = "#!/bin/sh
echo $$ >> starts
trap 'exit 0' TERM
while :; do
    if [ -e end ]; then exit 7; fi
    echo tick
    sleep 0.05 & wait $!
done
";

/// Says what it does over and over.
const SPEAKS: &str = "#!/usr/bin/perl
use strict; use Socket;
$| = 1; $SIG{TERM} = sub { exit 0 };
my $name = $ENV{NOTIFY_SOCKET}; $name =~ s/^@/\\0/;
socket(my $socket, AF_UNIX, SOCK_DGRAM, 0) or die;
open(my $starts, '>>', 'starts'); print $starts qq($$\\n); close $starts;
for (my $n = 1; ; $n++) {
    send($socket, qq(READY=1\\nSTATUS=said $n), 0, pack_sockaddr_un($name));
    print qq(tick\\n);
    select(undef, undef, undef, 0.1);
}
";

fn said(unit: &Value) -> u64 {
    unit["observed"]["status"].as_str().and_then(|status| status.strip_prefix("said ")?.parse().ok()).unwrap_or(0)
}

#[test]
fn killed_shim_is_replaced_with_log_and_channel() {
    let site = Site::start();
    site.create("speaks", SPEAKS, &["--notify"]);
    let (pid, shim) = (site.pid("speaks"), site.shim("speaks").unwrap());
    kill(Pid::from_raw(shim), Signal::SIGKILL).unwrap();
    site.new_shim("speaks", shim);
    assert_eq!(site.pid("speaks"), pid);
    site.log_goes_on("speaks");
    let before = said(&site.unit("speaks", |unit| said(unit) > 0));
    site.unit("speaks", |unit| said(unit) > before);
    assert_eq!(site.written("speaks", "starts"), format!("{pid}\n"), "it was started once");

    // Nobody who may know has seen how it ended.
    site.roles.ok(&["yuno", "stop", "default/speaks"]);
    let unit = site.unit("speaks", |unit| unit["observed"]["phase"] == "stopped");
    assert_eq!(unit["observed"]["exit"], "unknown");
    assert!(site.roles.ok(&["yuno", "show", "default/speaks"]).contains("unknown"));
    assert!(process_identity::stat(pid).is_none_or(|stat| stat.is_dead()));
}

#[test]
fn agent_and_shim_killed_together_leave_one_yuno() {
    let mut site = Site::start();
    site.create("ticks", TICKS, &[]);
    let (pid, shim) = (site.pid("ticks"), site.shim("ticks").unwrap());
    kill(Pid::from_raw(shim), Signal::SIGSTOP).unwrap();
    site.kill_agent();
    kill(Pid::from_raw(shim), Signal::SIGKILL).unwrap();
    eventually("the shim's end", || if site.shim("ticks").is_none() { Ok(()) } else { Err("it lives".into()) });
    site.start_agent();
    site.new_shim("ticks", shim);
    assert_eq!(site.pid("ticks"), pid);
    site.log_goes_on("ticks");
    assert_eq!(site.written("ticks", "starts"), format!("{pid}\n"));
    // It is kept as before: when it ends there is a next one.
    kill(Pid::from_raw(pid), Signal::SIGKILL).unwrap();
    let unit = site.unit("ticks", |unit| {
        unit["observed"]["phase"] == "running"
            && unit["observed"]["pid"].as_i64().is_some_and(|now| now != i64::from(pid))
    });
    assert_eq!(unit["observed"]["exit"], "unknown", "{unit}");
}

#[test]
fn end_while_agent_was_away_is_reported() {
    let mut site = Site::start();
    site.create("ticks", TICKS, &["--restart", "never"]);
    let pid = site.pid("ticks");
    site.kill_agent();
    fs::write(site.folder("ticks").join("work/end"), "").unwrap();
    eventually("its end", || match process_identity::stat(pid).filter(|stat| !stat.is_dead()) {
        None if site.shim("ticks").is_none() => Ok(()),
        other => Err(format!("{other:?}")),
    });
    site.start_agent();
    let unit = site.unit("ticks", |unit| unit["observed"]["phase"] == "failed");
    assert_eq!(unit["observed"]["exit"]["code"], 7, "{unit}");
    assert_eq!(site.written("ticks", "starts").lines().count(), 1);
}

#[test]
fn restart_while_agent_was_away_is_reported() {
    let mut site = Site::start();
    site.create("ticks", TICKS, &[]);
    let first = site.pid("ticks");
    site.kill_agent();
    kill(Pid::from_raw(first), Signal::SIGSEGV).unwrap();
    eventually("its next start", || match site.written("ticks", "starts").lines().count() {
        2 => Ok(()),
        other => Err(other.to_string()),
    });
    site.start_agent();
    let unit = site.unit("ticks", |unit| unit["observed"]["phase"] == "running" && unit["observed"]["attempts"] == 1);
    assert_eq!(unit["observed"]["exit"]["signal"], 11, "{unit}");
    assert_ne!(unit["observed"]["pid"], first);
}

/// Traps whatever can be trapped, and notes it. It says its process id when it is ready for that.
const BYSTANDER: &str = "
for signal in 1 2 3 10 12 13 14 15 18; do trap \"echo $signal >> /root/signals\" $signal; done
echo $$ >> /root/bystander
while :; do sleep 1; done";

/// On the machine: ends processes `$2`… with SIGKILL, and sees to it that a stranger gets the process id `$1`. Process
/// ids are few there, and the kernel can be told which was given out last.
const TAKE_ITS_NUMBER: &str = "
number=$1; shift
for victim in \"$@\"; do kill -9 $victim; done
for victim in \"$@\"; do while kill -0 $victim 2>/dev/null; do :; done; done
for try in $(seq 2000); do
    echo $((number - 1)) > /proc/sys/kernel/ns_last_pid
    setsid sh -c \"$BYSTANDER\" > /dev/null 2>&1 & got=$!
    if [ $got = $number ]; then
        for wait in $(seq 500); do grep -qx $number /root/bystander 2>/dev/null && exit 0; sleep 0.02; done
    fi
    kill -9 $got; wait $got
done 2>/dev/null
exit 9";

#[test]
fn reused_process_id_is_not_signalled() {
    let roles = Roles::start();
    let Some(machine) = Machine::boot(&roles.home) else { return };
    // Where this is not the machine's own it is left as it is.
    if machine.run(&["test", "-w", "/proc/sys/kernel/ns_last_pid"]).code != 0 {
        eprintln!("skipped: this kernel cannot be told which process id was given out last");
        return;
    }
    machine.ok(&["/opt/muster", "agent", "install", "--now", "--join", &roles.token()]);
    roles.wait_for_host("online");
    let path = file(&roles.home, "ticks", TICKS);
    roles.ok(&["artifact", "create", &path, "--role", "ticks", "--version", "1"]);
    roles.ok(&["yuno", "create", "default/ticks", "--artifact", "ticks", "--run"]);
    let running = |but: i64| {
        eventually("a yuno that runs", || {
            let unit = roles.json(&["unit", "show", "default/ticks"]);
            let pid = unit["observed"]["pid"].as_i64().filter(|pid| *pid != but);
            match pid.filter(|_| unit["observed"]["phase"] == "running") {
                Some(pid) => Ok(pid),
                None => Err(unit.to_string()),
            }
        })
    };
    let shim_of = |pid: i64| {
        let stat = fs::read_to_string(machine.path(&format!("/proc/{pid}/stat"))).unwrap();
        stat.rsplit(") ").next().unwrap().split_whitespace().nth(1).unwrap().to_owned()
    };
    let take_number = |number: i64, victims: &[&str]| {
        let script = format!("BYSTANDER='{BYSTANDER}'\n{TAKE_ITS_NUMBER}");
        let number = number.to_string();
        machine.ok(&[&["bash", "-c", &script, "take", &number][..], victims].concat());
        machine.start_ticks(number.parse().unwrap()).expect("a bystander")
    };
    let unharmed = |number: i64, began: &str| {
        assert_eq!(machine.start_ticks(number).as_deref(), Some(began), "the bystander lives");
        assert!(!machine.path("/root/signals").exists(), "and has heard nothing");
    };

    // A shim that has only a process id and a start time to go by, for the yuno is not its child.
    let first = running(0);
    machine.ok(&["kill", "-9", &shim_of(first)]);
    eventually("its new shim", || {
        let run = machine.run(&["pgrep", "-f", "shim-.* --adopt"]);
        if run.code == 0 { Ok(()) } else { Err(format!("{run:?}")) }
    });
    let began = take_number(first, &[&first.to_string()]);
    let second = running(first);
    unharmed(first, &began);

    // An agent that comes back when neither yuno nor shim is there any more.
    machine.ok(&["systemctl", "stop", "muster-agent"]);
    let began_again = take_number(second, &[&shim_of(second), &second.to_string()]);
    machine.ok(&["systemctl", "start", "muster-agent"]);
    roles.wait_for_host("online");
    let third = running(second);
    roles.ok(&["yuno", "stop", "default/ticks"]);
    eventually("its end", || match machine.start_ticks(third) {
        None => Ok(()),
        Some(_) => Err(format!("process {third} is there")),
    });
    unharmed(first, &began);
    unharmed(second, &began_again);
}
