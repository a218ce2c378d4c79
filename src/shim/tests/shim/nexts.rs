//! Tests of the process kept ready.

use muster_shim::{Launch, ProcessExit, ShimRequest, StartReport};

use crate::{
    leaf::{KINDS, Kind, Leaf},
    rig::{KILL, Rig, eventually, is_alive, kill, pids_in, service, with_folder},
};

/// Says who it is, each time that it is started.
const SLEEPER: &str = "echo $$ >> $FOLDER/mains; while :; do sleep 60 & wait $!; done";

/// A program that has been up for so long that its next process waits.
struct Waiting {
    rig: Rig,
    launch: Launch,
    leaf: Leaf,
    main: i32,
    next: i32,
}

impl Waiting {
    fn each(then: impl Fn(Self)) {
        for kind in KINDS {
            let Some(leaf) = Leaf::make(kind) else { continue };
            println!("in {kind:?}");
            let mut rig = Rig::new();
            let launch = with_folder(&rig, Launch { cgroup: leaf.cgroup.clone(), ..service(SLEEPER, 9) });
            let main = rig.launch(&launch).main.unwrap().pid;
            then(Self { next: next_of(&rig, &leaf), rig, launch, leaf, main });
        }
    }
}

/// Waits until it is there, and where it belongs.
#[track_caller]
fn next_of(rig: &Rig, leaf: &Leaf) -> i32 {
    eventually("a process that waits", || rig.next().is_some_and(|next| leaf.cgroup.members().contains(&next)));
    rig.next().unwrap()
}

#[test]
fn it_is_the_next_main_process_of_one_that_ended_with_all_that_it_left() {
    Waiting::each(|Waiting { mut rig, leaf, main, next, .. }| {
        kill(main);
        let again = rig.state_where(|state| state.restarts == 1).main.unwrap();
        assert_eq!(again.pid, next);
        assert_eq!(pids_in(&rig, "mains", 2), [main, next]);
        // The `sleep` that the first one left is gone, the second one's may be there.
        eventually("two of the second", || leaf.cgroup.members().len() <= 3);
        let another = next_of(&rig, &leaf);
        assert!(another != next);
        rig.stop(5_000);
        rig.over();
        assert!(!is_alive(another) && !leaf.exists());
    });
}

#[test]
fn without_it_the_program_is_started_all_the_same() {
    Waiting::each(|Waiting { mut rig, main, next, .. }| {
        kill(next);
        kill(main);
        let again = rig.state_where(|state| state.restarts == 1).main.unwrap();
        assert!(again.pid != next);
        assert_eq!(pids_in(&rig, "mains", 2), [main, again.pid]);
        rig.stop(5_000);
        rig.over();
    });
}

#[test]
fn it_ends_with_its_shim_and_holds_nothing_that_the_next_shim_needs() {
    Waiting::each(|Waiting { mut rig, launch, leaf, main, next }| {
        rig.kill_shim();
        assert_eq!(rig.start(&launch, true), StartReport::Started);
        eventually("its end", || !is_alive(next));
        assert_eq!(rig.state().main.unwrap().pid, main);
        let another = next_of(&rig, &leaf);
        rig.stop(5_000);
        rig.over();
        assert!(!is_alive(another) && !leaf.exists());
    });
}

#[test]
fn a_shim_that_dies_while_it_is_frozen_lets_go_at_once() {
    Waiting::each(|Waiting { mut rig, launch, next, .. }| {
        rig.send(&ShimRequest::Freeze);
        rig.state_where(|state| state.frozen);
        // What waits cannot end now, and so could keep what it had open.
        rig.kill_shim();
        assert_eq!(rig.start(&launch, true), StartReport::Started);
        assert!(rig.state().frozen);
        rig.send(&ShimRequest::Thaw);
        eventually("its end", || !is_alive(next));
        rig.stop(5_000);
        rig.over();
    });
}

#[test]
fn none_waits_where_processes_are_counted_or_none_is_to_follow() {
    let Some(leaf) = Leaf::make(Kind::All) else { return };
    if !leaf.limit_pids(20) {
        println!("processes cannot be counted here");
        return;
    }
    let mut rig = Rig::new();
    rig.launch(&with_folder(&rig, Launch { cgroup: leaf.cgroup.clone(), ..service("sleep 1.5; exit 3", 1) }));
    let again = rig.state_where(|state| state.restarts == 1);
    assert_eq!(again.last.unwrap().exit, ProcessExit::Code(3));
    assert_eq!(rig.next(), None);
    let last = rig.over().last.unwrap();
    assert_eq!(last.exit, ProcessExit::Code(3));

    let Some(leaf) = Leaf::make(Kind::V1) else { return };
    let mut rig = Rig::new();
    rig.launch(&with_folder(&rig, Launch { cgroup: leaf.cgroup.clone(), ..service(SLEEPER, 1) }));
    let main = pids_in(&rig, "mains", 1)[0];
    next_of(&rig, &leaf);
    kill(main);
    let second = rig.state_where(|state| state.restarts == 1).main.unwrap().pid;
    pids_in(&rig, "mains", 2);
    kill(second);
    // The budget is used up.
    assert_eq!(rig.exit(), ProcessExit::Signal(KILL));
    assert!(rig.next().is_none() && !leaf.exists());
}
