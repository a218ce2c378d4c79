//! Tests of agents that connect and disconnect, and of shims that are killed.

use std::{
    fs,
    io::{BufRead, Write},
    time::Duration,
};

use muster_shim::{
    ProcessExit, StartReport, StartStep,
    files::{self, StateFile},
    process_identity,
};

use crate::rig::{FAMILY, KILL, Rig, command, eventually, is_alive, kill, pids_in, service, with_folder};

#[test]
fn reconnected_agent_gets_the_whole_state() {
    let mut rig = Rig::new();
    let launch = with_folder(&rig, command("while ! [ -e $FOLDER/go ]; do sleep 0.02; done; echo out; exit 6"));
    let main = rig.launch(&launch).main;
    rig.connection = None;
    assert!(rig.connect());
    assert_eq!(rig.state().main, main);
    // A second one replaces the first.
    let mut first = rig.connection.take().unwrap();
    assert!(rig.connect());
    assert_eq!(rig.state().main, main);
    assert_eq!(first.read_line(&mut String::new()).unwrap(), 0);
    // Nobody is there when it ends.
    rig.connection = None;
    fs::write(rig.path("go"), "").unwrap();
    let over = || matches!(files::read_state(rig.folder.path()), Ok(StateFile::State(state)) if state.over);
    eventually("its end", over);
    let StateFile::State(state) = files::read_state(rig.folder.path()).unwrap() else { panic!() };
    assert_eq!(state.last.unwrap().exit, ProcessExit::Code(6));
    assert_eq!(rig.text("stdout"), "out\n");
}

#[test]
fn invalid_requests_are_ignored() {
    let mut rig = Rig::new();
    rig.launch(&command("sleep 60"));
    for nonsense in [
        "\n",
        "hello\n",
        "{\"stop\":{\"signal\":15}}\n",
        "{\"signal\":{\"signal\":0}}\n",
        "{\"signal\":{\"signal\":-9}}\n",
    ] {
        rig.connection.as_mut().unwrap().get_mut().write_all(nonsense.as_bytes()).unwrap();
        assert!(rig.connect());
        assert!(rig.state().main.is_some(), "{nonsense:?}");
    }
    rig.stop(0);
    assert_eq!(rig.exit(), ProcessExit::Signal(KILL));
}

#[test]
fn a_killed_shim_is_replaced_without_a_second_copy() {
    let mut rig = Rig::new();
    let script =
        "echo $$ >> $FOLDER/pids; while ! [ -e $FOLDER/go ]; do echo tick; sleep 0.02; done; echo last; exit 3";
    let launch = with_folder(&rig, service(script, 0));
    let main = rig.launch(&launch).main.unwrap();
    pids_in(&rig, "pids", 1);
    rig.kill_shim();
    assert!(is_alive(main.pid), "a dead shim is no SIGPIPE");

    assert_eq!(rig.start(&launch, true), StartReport::Started);
    assert_eq!(rig.state().main, Some(main.clone()));
    let len = rig.text("log").len();
    eventually("output of after", || rig.text("log").len() > len);
    fs::write(rig.path("go"), "").unwrap();
    let over = rig.over();
    assert_eq!(over.last.unwrap().exit, ProcessExit::Unknown);
    assert!(rig.text("log").ends_with("last\n"));
    assert_eq!(pids_in(&rig, "pids", 1), [main.pid], "it ran once");
}

#[test]
fn files_that_were_damaged_are_whole_again_once_an_agent_has_connected() {
    let boot = format!("boot.{}", process_identity::boot_id().unwrap());
    for name in [files::STATE, files::LAUNCH, &boot] {
        type Damage = fn(&std::path::Path);
        let damages: [Damage; 3] = [
            |path| fs::remove_file(path).unwrap(),
            |path| fs::write(path, "").unwrap(),
            |path| {
                fs::remove_file(path).unwrap();
                fs::create_dir(path).unwrap();
            },
        ];
        for damage in damages {
            let mut rig = Rig::new();
            let launch = with_folder(&rig, service("echo $$ >> $FOLDER/pids; exec sleep 60", 5));
            let main = rig.launch(&launch).main.unwrap();
            pids_in(&rig, "pids", 1);
            let whole = fs::read(rig.path(name)).unwrap();
            damage(&rig.path(name));
            assert!(rig.connect());
            assert_eq!(rig.state().main, Some(main.clone()));
            eventually("the file", || fs::read(rig.path(name)).is_ok_and(|found| found == whole));
            // And so a shim after this one finds what runs.
            rig.kill_shim();
            assert_eq!(rig.start(&launch, true), StartReport::Started, "{name}");
            assert_eq!(rig.state().main, Some(main.clone()), "{name}");
            assert_eq!(pids_in(&rig, "pids", 1), [main.pid], "it ran once");
            rig.stop(0);
            rig.over();
        }
    }
}

#[test]
fn an_adopted_family_can_be_ended() {
    let mut rig = Rig::new();
    let script = format!("{FAMILY} while :; do sleep 60; done");
    let launch = with_folder(&rig, service(&script, 3));
    let main = rig.launch(&launch).main.unwrap();
    let family = pids_in(&rig, "pids", 3);
    rig.kill_shim();
    assert_eq!(rig.start(&launch, true), StartReport::Started);
    rig.stop(100);
    let over = rig.over();
    assert_eq!((over.last.unwrap().exit, over.restarts), (ProcessExit::Unknown, 0));
    assert!(!is_alive(main.pid));
    // The first of them is in its session. The others left it, and their parents had ended before
    // anybody could know whose they are: that takes a cgroup.
    assert!(!is_alive(family[0]));
    family[1..].iter().filter(|pid| is_alive(**pid)).for_each(|pid| kill(*pid));
}

#[test]
fn adopting_ended_program_starts_nothing() {
    let mut rig = Rig::new();
    let launch = with_folder(&rig, service("echo $$ >> $FOLDER/pids; exec sleep 60", 5));
    let main = rig.launch(&launch).main.unwrap();
    pids_in(&rig, "pids", 1);
    rig.kill_shim();
    kill(main.pid);
    eventually("both gone", || !is_alive(main.pid));
    assert_eq!(rig.start(&launch, true), StartReport::Over);
    let over = rig.over();
    let last = over.last.unwrap();
    assert_eq!((last.exit, last.started_ms), (ProcessExit::Unknown, Some(main.started_ms)));
    assert_eq!(pids_in(&rig, "pids", 1).len(), 1);
    // And once more: it is over.
    assert!(matches!(rig.start(&launch, true), StartReport::Failed { step: StartStep::Prepare, .. }));
}

#[test]
fn a_shim_killed_at_any_moment_leaves_a_whole_record_and_no_unrecorded_program() {
    for round in 0..40_u64 {
        let mut rig = Rig::new();
        let launch = with_folder(&rig, service("echo $$ >> $FOLDER/pids; sleep 0.003", 1_000_000));
        rig.launch(&launch);
        std::thread::sleep(Duration::from_micros(round * 737));
        rig.kill_shim();
        let StateFile::State(state) = files::read_state(rig.folder.path()).unwrap() else { panic!("no record") };
        // Whoever got as far as running is recorded: the last one that ran is the recorded one, or
        // one that had ended before.
        std::thread::sleep(Duration::from_millis(20));
        let ran: Vec<i32> = rig.text("pids").lines().filter_map(|line| line.parse().ok()).collect();
        let recorded = state.main.map(|main| main.pid);
        let unrecorded = ran.iter().filter(|pid| Some(**pid) != recorded && is_alive(**pid)).count();
        assert_eq!(unrecorded, 0, "round {round}: {ran:?}, {recorded:?}");
    }
}

#[test]
fn an_idle_shim_is_small_and_asleep() {
    let mut rig = Rig::new();
    rig.launch(&service("echo started; exec sleep 60", 1));
    let shim = rig.shim().unwrap();
    eventually("output", || rig.text("log") == "started\n");
    let status = || fs::read_to_string(format!("/proc/{shim}/status")).unwrap();
    let switches = || -> String { status().lines().filter(|line| line.contains("ctxt_switches")).collect() };
    let asleep = switches();
    std::thread::sleep(Duration::from_millis(600));
    assert_eq!(switches(), asleep, "nothing wakes it");
    assert_eq!(status().lines().find(|line| line.starts_with("Threads")), Some("Threads:\t1"));
    let smaps = fs::read_to_string(format!("/proc/{shim}/smaps_rollup")).unwrap();
    let pss = smaps.lines().find(|line| line.starts_with("Pss:")).unwrap();
    println!("an idle shim of this build: {pss}");
    assert_ne!(
        process_identity::stat(shim).unwrap().session,
        process_identity::stat(i32::try_from(std::process::id()).unwrap()).unwrap().session
    );
    rig.stop(1_000);
    rig.over();
}
