//! Tests of how programs end without leaving a process.

use std::{fs, process::Command};

use muster_shim::{
    Launch, ProcessAttributes, ProcessExit, ShimRequest,
    attributes::{LimitResource, ResourceLimit},
    process_identity,
};

use crate::rig::{FAMILY, KILL, Rig, command, eventually, is_alive, pids_in, service, with_folder};

#[test]
fn exit_codes_and_signals_are_reported() {
    for (script, exit) in [
        ("exit 0", ProcessExit::Code(0)),
        ("exit 7", ProcessExit::Code(7)),
        ("exit 255", ProcessExit::Code(255)),
        ("kill -TERM $$", ProcessExit::Signal(15)),
        ("kill -KILL $$", ProcessExit::Signal(9)),
        // A signal of real time, which has no name.
        ("kill -40 $$", ProcessExit::Signal(40)),
    ] {
        let mut rig = Rig::new();
        rig.launch(&command(script));
        let over = rig.over();
        let last = over.last.unwrap();
        assert_eq!(last.exit, exit, "{script}");
        assert!(!last.timed_out && over.main.is_none() && last.started_ms.unwrap() <= last.at_ms);
        assert_eq!(rig.event(), None, "the shim ends");
        assert!(!rig.connect());
    }
}

#[test]
fn core_dump_is_reported() {
    // Where the host hands cores to a program, or keeps none, there is none to be seen here.
    let pattern = fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap_or_default();
    let kept = !pattern.trim().is_empty() && !pattern.starts_with('|') && !pattern.starts_with('/');
    let unlimited = |soft| ResourceLimit { resource: LimitResource::Core, soft, hard: None };
    for (limit, dumped) in [(unlimited(None), kept), (unlimited(Some(0)), false)] {
        let mut rig = Rig::new();
        let attributes = ProcessAttributes { rlimits: vec![limit], ..ProcessAttributes::default() };
        let cwd = rig.folder.path().to_str().unwrap().to_owned();
        rig.launch(&Launch { attributes, cwd, ..command("kill -SEGV $$") });
        let last = rig.over().last.unwrap();
        assert_eq!((last.exit, last.core_dumped), (ProcessExit::Signal(11), dumped), "{pattern}");
    }
}

#[test]
fn a_program_that_ignores_the_signal_is_killed() {
    let mut rig = Rig::new();
    let script = "trap '' TERM; echo ready; while :; do sleep 0.05; done";
    rig.launch(&Launch { timeout_ms: Some(200), grace_ms: 200, ..command(script) });
    let last = rig.over().last.unwrap();
    assert_eq!((last.exit, last.timed_out), (ProcessExit::Signal(KILL), true));
}

#[test]
fn a_program_may_use_its_grace() {
    let mut rig = Rig::new();
    rig.launch(&command("trap 'sleep 0.2; echo bye; exit 3' TERM; echo ready; while :; do sleep 0.05; done"));
    eventually("ready", || rig.text("stdout") == "ready\n");
    rig.stop(30_000);
    assert_eq!(rig.exit(), ProcessExit::Code(3));
    assert_eq!(rig.text("stdout"), "ready\nbye\n");
}

#[test]
fn a_suspended_program_can_be_ended() {
    let mut rig = Rig::new();
    let main = rig.launch(&command("trap 'exit 4' TERM; echo ready; while :; do sleep 0.05; done")).main.unwrap();
    eventually("ready", || rig.text("stdout") == "ready\n");
    rig.send(&ShimRequest::Signal { signal: 19 });
    eventually("suspended", || process_identity::stat(main.pid).unwrap().state == b'T');
    rig.stop(30_000);
    assert_eq!(rig.exit(), ProcessExit::Code(4));
}

#[test]
fn nothing_of_a_family_outlives_the_time_limit() {
    let mut rig = Rig::new();
    let script = format!("{FAMILY} while :; do sleep 60; done");
    let launch = with_folder(&rig, Launch { timeout_ms: Some(1_000), grace_ms: 100, ..command(&script) });
    let main = rig.launch(&launch).main.unwrap();
    let family = pids_in(&rig, "pids", 3);
    let last = rig.over().last.unwrap();
    assert_eq!((last.exit, last.timed_out), (ProcessExit::Signal(KILL), true));
    assert_eq!(family.iter().filter(|pid| is_alive(**pid)).count(), 0, "{family:?}");
    assert!(!is_alive(main.pid));
}

#[test]
fn leftovers_are_killed_before_a_restart() {
    let mut rig = Rig::new();
    let script = format!("{FAMILY} while ! [ -e $FOLDER/go ]; do sleep 0.02; done; rm $FOLDER/go; exit 1");
    let launch = with_folder(&rig, service(&script, 5));
    rig.launch(&launch);
    let family = pids_in(&rig, "pids", 3);
    fs::write(rig.path("go"), "").unwrap();
    let again = rig.state_where(|state| state.restarts == 1);
    assert!(again.main.is_some());
    assert_eq!(again.last.unwrap().exit, ProcessExit::Code(1));
    assert_eq!(family.iter().filter(|pid| is_alive(**pid)).count(), 0);
    rig.stop(0);
    rig.over();
}

#[test]
fn a_service_is_started_again_within_its_budget() {
    let mut rig = Rig::new();
    rig.launch(&service("echo run; exit 9", 3));
    let over = rig.over();
    assert_eq!((over.restarts, over.last.unwrap().exit), (3, ProcessExit::Code(9)));
    assert_eq!(rig.text("log"), "run\n".repeat(4));
}

#[test]
fn ending_the_shim_ends_its_program() {
    let mut rig = Rig::new();
    rig.launch(&service("trap 'exit 2' TERM; echo ready; while :; do sleep 0.02; done", 9));
    eventually("ready", || rig.text("log") == "ready\n");
    assert!(Command::new("kill").arg(rig.shim().unwrap().to_string()).status().unwrap().success());
    assert_eq!(rig.exit(), ProcessExit::Code(2));
}
