//! Tests of programs in cgroups: limits apply, and no process escapes.

use std::fs;

use muster_shim::{Launch, ProcessExit, StartReport, StartStep, cgroup::Cgroup, files};

use crate::{
    leaf::{KINDS, Kind, Leaf},
    rig::{FAMILY, KILL, Rig, argv, command, eventually, is_alive, kill, pids_in, service, with_folder},
};

fn in_cgroup(leaf: &Leaf, launch: Launch) -> Launch {
    Launch { cgroup: leaf.cgroup.clone(), ..launch }
}

#[test]
fn a_program_is_in_its_cgroup_from_its_first_instruction_and_that_goes_with_it() {
    for kind in KINDS {
        let Some(leaf) = Leaf::make(kind) else { continue };
        let mut rig = Rig::new();
        rig.launch(&in_cgroup(&leaf, Launch { argv: argv(&["/bin/cat", "/proc/self/cgroup"]), ..command("") }));
        assert_eq!(rig.exit(), ProcessExit::Code(0));
        let text = rig.text("stdout");
        for folder in leaf.cgroup.folders() {
            let name = folder.file_name().unwrap().to_str().unwrap();
            assert!(text.lines().any(|line| line.ends_with(name)), "{kind:?}: {text}");
        }
        assert!(!leaf.exists(), "{kind:?}");
    }
}

#[test]
fn missing_cgroup_is_reported() {
    let mut rig = Rig::new();
    let cgroup = Cgroup { memory: Some("/no/such/cgroup".into()), ..Cgroup::default() };
    let report = rig.start(&Launch { cgroup, ..command("echo runs") }, false);
    assert_eq!(report, StartReport::Failed { step: StartStep::Cgroup, which: None, errno: 2 });
}

#[test]
fn oom_kill_is_reported() {
    // A stream without a line's end, all of which tail has to remember; by itself, and under a shell.
    for (script, exit) in
        [("exec tail /dev/zero", ProcessExit::Signal(KILL)), ("tail /dev/zero; exit $?", ProcessExit::Code(128 + KILL))]
    {
        let Some(leaf) = Leaf::make(Kind::All) else { return };
        if !leaf.limit_memory(16 * 1024 * 1024) {
            println!("memory cannot be limited here");
            return;
        }
        let mut rig = Rig::new();
        rig.launch(&in_cgroup(&leaf, command(script)));
        let last = rig.over().last.unwrap();
        assert_eq!((last.exit, last.oom_killed), (exit, true), "{script}");
        assert!(!leaf.exists());
    }
}

#[test]
fn other_kill_is_not_reported_as_oom() {
    let Some(leaf) = Leaf::make(Kind::All) else { return };
    if !leaf.limit_memory(16 * 1024 * 1024) {
        return;
    }
    let mut rig = Rig::new();
    // Each time it is started again its memory is what it was.
    let script = "if [ -e $FOLDER/ate ]; then while ! [ -e $FOLDER/go ]; do sleep 0.02; done; kill -9 $$; fi
                  touch $FOLDER/ate; exec tail /dev/zero";
    let launch = with_folder(&rig, in_cgroup(&leaf, service(script, 1)));
    rig.launch(&launch);
    let again = rig.state_where(|state| state.restarts == 1);
    assert!(again.last.unwrap().oom_killed);
    fs::write(rig.path("go"), "").unwrap();
    let last = rig.over().last.unwrap();
    assert_eq!((last.exit, last.oom_killed), (ProcessExit::Signal(KILL), false));
}

#[test]
fn a_fork_bomb_is_held_and_ended() {
    for kind in KINDS {
        let Some(leaf) = Leaf::make(kind) else { continue };
        if !leaf.limit_pids(20) {
            println!("processes cannot be counted here");
            return;
        }
        let mut rig = Rig::new();
        // Of 512 if nothing held it.
        let bomb = "b() { [ $1 -gt 0 ] || exec sleep 60; b $(($1 - 1)) & b $(($1 - 1)) & wait; }
                    while :; do (b 8); done";
        rig.launch(&in_cgroup(&leaf, service(bomb, 0)));
        let folder = leaf.cgroup.pids.clone().or(leaf.cgroup.unified.clone()).unwrap();
        let refused = || {
            let events = fs::read_to_string(folder.join("pids.events")).unwrap_or_default();
            events.lines().find_map(|line| line.strip_prefix("max ")?.parse::<u64>().ok()).unwrap_or(0)
        };
        eventually("forks that fail", || refused() > 0);
        let now: u64 = fs::read_to_string(folder.join("pids.current")).unwrap().trim().parse().unwrap();
        assert!(now <= 20, "{now}");
        rig.stop(0);
        rig.over();
        assert!(!leaf.exists(), "nothing is left in it, or it could not be removed: {kind:?}");
    }
}

#[test]
fn double_forked_process_is_killed_with_the_rest() {
    for kind in KINDS {
        let Some(leaf) = Leaf::make(kind) else { continue };
        let mut rig = Rig::new();
        let script = format!("{FAMILY} while :; do sleep 60; done");
        let launch = with_folder(&rig, in_cgroup(&leaf, service(&script, 3)));
        rig.launch(&launch);
        let family = pids_in(&rig, "pids", 3);
        // Another shim cannot know by their parents whose they are.
        rig.kill_shim();
        assert_eq!(rig.start(&launch, true), StartReport::Started);
        rig.stop(50);
        assert_eq!(rig.over().last.unwrap().exit, ProcessExit::Unknown);
        assert_eq!(family.iter().filter(|pid| is_alive(**pid)).count(), 0, "{kind:?}: {family:?}");
        assert!(!leaf.exists(), "{kind:?}");
    }
}

#[test]
fn leftovers_of_dead_shim_are_killed() {
    for kind in KINDS {
        let Some(leaf) = Leaf::make(kind) else { continue };
        let mut rig = Rig::new();
        let script = format!("{FAMILY} while :; do sleep 60; done");
        let launch = with_folder(&rig, in_cgroup(&leaf, service(&script, 3)));
        let main = rig.launch(&launch).main.unwrap();
        let family = pids_in(&rig, "pids", 3);
        rig.kill_shim();
        kill(main.pid);
        eventually("its end", || !is_alive(main.pid));
        assert!(!leaf.cgroup.is_empty());
        // It has nothing to adopt, and something to clear.
        rig.start(&launch, true);
        let over = rig.over();
        assert_eq!((over.last.unwrap().exit, over.restarts), (ProcessExit::Unknown, 0));
        assert_eq!(family.iter().filter(|pid| is_alive(**pid)).count(), 0, "{kind:?}: {family:?}");
        assert!(!leaf.exists(), "{kind:?}");
    }
}

#[test]
fn cgroups_that_a_program_made_in_its_own_go_with_it() {
    let Some(leaf) = Leaf::make(Kind::V1) else { return };
    let Some(own) = leaf.cgroup.freezer.clone() else { return };
    let mut rig = Rig::new();
    let script = "mkdir $OWN/further; sleep 60 & echo $! > $OWN/further/cgroup.procs; echo $! > $FOLDER/pids
                  while :; do sleep 60; done";
    let mut launch = with_folder(&rig, in_cgroup(&leaf, service(script, 0)));
    launch.env.push(("OWN".into(), own.to_str().unwrap().into()));
    rig.launch(&launch);
    let child = pids_in(&rig, "pids", 1)[0];
    eventually("its own cgroup", || leaf.cgroup.members().contains(&child));
    rig.stop(0);
    rig.over();
    assert!(!is_alive(child) && !leaf.exists());
}

#[test]
fn failed_start_leaves_no_cgroup() {
    let Some(leaf) = Leaf::make(Kind::All) else { return };
    let mut rig = Rig::new();
    let launch = in_cgroup(&leaf, Launch { argv: argv(&["/no/such/program"]), ..command("") });
    assert_eq!(rig.start(&launch, false), StartReport::Failed { step: StartStep::Exec, which: None, errno: 2 });
    assert!(!leaf.exists());
    assert_eq!(files::read_state(rig.folder.path()).unwrap(), files::StateFile::Nothing);
}
