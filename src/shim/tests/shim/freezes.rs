//! Tests of suspending a whole program, with a freezer cgroup and without.

use muster_shim::{Launch, ProcessExit, ShimRequest, StartReport, cgroup::Cgroup, process_identity};

use crate::{
    leaf::{Kind, Leaf},
    rig::{Rig, eventually, pids_in, service, with_folder},
};

/// A main process and one that left its session, which count.
const COUNTERS: &str = "
    count() { while :; do i=$((i+1)); echo $i > $FOLDER/$1; sleep 0.01; done; }
    export FOLDER; trap 'echo bye; exit 5' TERM
    (setsid sh -c 'echo $$ >> $FOLDER/pids; while :; do i=$((i+1)); echo $i > $FOLDER/far; sleep 0.01; done' &)
    echo $$ >> $FOLDER/pids; count near
";

struct Frozen {
    rig: Rig,
    launch: Launch,
    main: i32,
    _leaf: Option<Leaf>,
}

impl Frozen {
    /// Freezes a program in each way that this host has, and does something with it.
    fn each(then: impl Fn(Self)) {
        for kind in [None, Some(Kind::V1NoFreezer), Some(Kind::V1), Some(Kind::All)] {
            let leaf = match kind {
                None => None,
                Some(kind) => match Leaf::make(kind) {
                    None => continue,
                    leaf => leaf,
                },
            };
            println!("by {kind:?}");
            let mut rig = Rig::new();
            let cgroup = leaf.as_ref().map_or_else(Cgroup::default, |leaf| leaf.cgroup.clone());
            let launch = with_folder(&rig, Launch { cgroup, ..service(COUNTERS, 3) });
            let main = rig.launch(&launch).main.unwrap().pid;
            let mut frozen = Self { rig, launch, main, _leaf: leaf };
            frozen.until_counting();
            frozen.rig.send(&ShimRequest::Freeze);
            frozen.rig.state_where(|state| state.frozen);
            frozen.until_still();
            then(frozen);
        }
    }

    fn counts(&self) -> [String; 2] {
        ["near", "far"].map(|name| self.rig.text(name))
    }

    fn until_counting(&self) {
        pids_in(&self.rig, "pids", 2);
        let before = self.counts();
        eventually("both count", || {
            let now = self.counts();
            now.iter().all(|count| !count.is_empty()) && now[0] != before[0] && now[1] != before[1]
        });
    }

    /// Being suspended takes effect a moment later; then nothing moves for many times as long as a count takes.
    fn until_still(&self) {
        let pause = || std::thread::sleep(std::time::Duration::from_millis(100));
        eventually("stillness", || {
            let before = self.counts();
            pause();
            before == self.counts()
        });
        let before = self.counts();
        (0..3).for_each(|_| pause());
        assert_eq!(before, self.counts());
    }
}

#[test]
fn all_of_a_program_stands_still_until_it_is_thawed() {
    Frozen::each(|mut frozen| {
        frozen.rig.send(&ShimRequest::Thaw);
        frozen.rig.state_where(|state| !state.frozen);
        frozen.until_counting();
        frozen.rig.stop(30_000);
        assert_eq!(frozen.rig.exit(), ProcessExit::Code(5));
    });
}

#[test]
fn a_frozen_program_can_be_stopped_and_has_its_grace() {
    Frozen::each(|mut frozen| {
        frozen.rig.stop(30_000);
        assert_eq!(frozen.rig.exit(), ProcessExit::Code(5));
        assert!(frozen.rig.text("log").ends_with("bye\n"));
    });
}

#[test]
fn a_frozen_program_can_be_killed_and_the_next_is_not_frozen() {
    Frozen::each(|mut frozen| {
        frozen.rig.stop(0);
        assert_eq!(frozen.rig.exit(), ProcessExit::Signal(9));
    });
    Frozen::each(|mut frozen| {
        // By somebody else: what is started again runs.
        crate::rig::kill(frozen.main);
        if frozen.launch.cgroup.unified.is_none() && frozen.launch.cgroup.freezer.is_some() {
            // Frozen by v1, it dies of that only once it is thawed.
            frozen.rig.send(&ShimRequest::Thaw);
        }
        let again = frozen.rig.state_where(|state| state.restarts == 1);
        assert!(!again.frozen && again.main.is_some());
        std::fs::remove_file(frozen.rig.path("near")).unwrap();
        frozen.until_counting();
        frozen.rig.stop(0);
        frozen.rig.over();
    });
}

#[test]
fn frozen_it_stays_if_its_shim_is_killed() {
    Frozen::each(|mut frozen| {
        frozen.rig.kill_shim();
        assert_eq!(frozen.rig.start(&frozen.launch, true), StartReport::Started);
        let state = frozen.rig.state();
        assert!(state.frozen && process_identity::is_alive(&state.main.unwrap()));
        frozen.until_still();
        frozen.rig.send(&ShimRequest::Thaw);
        frozen.rig.state_where(|state| !state.frozen);
        // The other one has lost its parents and its session: only a cgroup knows whose it is.
        let near = frozen.rig.text("near");
        eventually("it counts", || frozen.rig.text("near") != near);
        frozen.rig.stop(0);
        frozen.rig.over();
        let left: Vec<i32> =
            pids_in(&frozen.rig, "pids", 2).into_iter().filter(|pid| crate::rig::is_alive(*pid)).collect();
        left.iter().for_each(|pid| crate::rig::kill_if_there(*pid));
        assert!(left.is_empty() || frozen.launch.cgroup.is_none(), "{left:?}");
    });
}
