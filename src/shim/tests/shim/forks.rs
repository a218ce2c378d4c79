//! Tests of programs that go to the background.

use std::fs;

use muster_shim::{ForkingMode, Launch, OutputMode, ProcessExit, ProgramState, StartReport, process_identity};

use crate::rig::{KILL, Rig, TERM, eventually, is_alive, kill, pids_in, service, with_folder};

/// A program that forks twice: what it leaves does `work` until it is asked to end.
fn daemon(work: &str) -> String {
    format!(
        "(setsid sh -c 'trap \"exit 7\" TERM; echo $$ >> $FOLDER/pids; {work}; while :; do sleep 0.05; done' > /dev/null 2>&1 &) &
         wait; exit 0"
    )
}

fn forking(rig: &Rig, script: &str, pid_file: Option<&str>) -> Launch {
    let pid_file = pid_file.map(|name| rig.path(name).to_str().unwrap().to_owned());
    let forking = ForkingMode { pid_file, start_timeout_ms: 20_000 };
    with_folder(rig, Launch { forking: Some(forking), ..service(script, 1) })
}

fn is_up(state: &ProgramState) -> bool {
    state.notified.ready
}

fn main_pid(state: &ProgramState) -> i32 {
    state.main.as_ref().unwrap().pid
}

#[test]
fn daemonised_program_is_kept() {
    let mut rig = Rig::new();
    let launch = forking(&rig, &daemon(":"), None);
    assert_eq!(rig.start(&launch, false), StartReport::Started);
    let first = rig.state_where(is_up);
    eventually("the daemon is the main process", || main_pid(&first) > 0 && !pids_in(&rig, "pids", 1).is_empty());
    // It may have been a process on the way at first.
    let pid = pids_in(&rig, "pids", 1)[0];
    let state = if main_pid(&first) == pid { first } else { rig.state_where(|state| main_pid(state) == pid) };
    assert_eq!((state.restarts, state.last), (0, None));

    // One that ends is started again, and one that is asked to end does so, and is seen to.
    kill(pid);
    let again = pids_in(&rig, "pids", 2)[1];
    let state = rig.state_where(|state| is_up(state) && main_pid(state) == again);
    assert_eq!((state.restarts, state.last.unwrap().exit), (1, ProcessExit::Signal(KILL)));
    rig.stop(10_000);
    let last = rig.over().last.unwrap();
    assert_eq!((last.exit, last.left_some), (ProcessExit::Code(7), false));
    assert!(!is_alive(again));
}

#[test]
fn a_file_says_which_is_the_main_process_once_it_names_one_of_the_program() {
    let mut rig = Rig::new();
    // Of an earlier life, and of somebody else.
    fs::write(rig.path("pid"), std::process::id().to_string()).unwrap();
    let helper = "(sh -c 'echo $$ >> $FOLDER/helper; exec sleep 100' > /dev/null 2>&1 &);";
    let script = format!("{helper} {}", daemon("sleep 0.5; echo $$ > $FOLDER/pid"));
    let launch = forking(&rig, &script, Some("pid"));
    assert_eq!(rig.start(&launch, false), StartReport::Started);
    let state = rig.state_where(is_up);
    let pid = pids_in(&rig, "pids", 1)[0];
    assert_eq!(main_pid(&state), pid, "and not its older helper");

    // The program hands over to another process, and says so before the first one ends.
    let mut next = String::new();
    eventually("another one", || {
        next = rig.text("helper").trim().to_owned();
        !next.is_empty()
    });
    fs::write(rig.path("pid"), &next).unwrap();
    kill(pid);
    let state = rig.state_where(|state| main_pid(state) != pid);
    assert_eq!((main_pid(&state).to_string(), state.restarts), (next, 0));
    rig.stop(10_000);
    assert_eq!(rig.exit(), ProcessExit::Signal(TERM));
}

#[test]
fn one_that_names_nothing_of_its_own_has_failed() {
    let mut rig = Rig::new();
    let script = daemon(&format!("echo {} > $FOLDER/pid", std::process::id()));
    let mut launch = forking(&rig, &script, Some("pid"));
    launch.restart.budget = 0;
    launch.forking.as_mut().unwrap().start_timeout_ms = 1_000;
    assert_eq!(rig.start(&launch, false), StartReport::Started);
    let last = rig.over().last.unwrap();
    assert_eq!((last.exit, last.silent), (ProcessExit::Code(7), true));
    assert!(!is_alive(pids_in(&rig, "pids", 1)[0]), "program is gone");
}

#[test]
fn an_agent_and_a_shim_that_are_gone_leave_it_running_and_find_it() {
    let mut rig = Rig::new();
    let launch = forking(&rig, &daemon("echo $$ > $FOLDER/pid"), Some("pid"));
    assert_eq!(rig.start(&launch, false), StartReport::Started);
    let pid = main_pid(&rig.state_where(is_up));
    // An agent that is gone.
    rig.connection = None;
    eventually("it can be found", || rig.connect());
    assert_eq!(main_pid(&rig.state()), pid);
    // And a shim.
    rig.kill_shim();
    assert!(is_alive(pid));
    assert_eq!(rig.start(&launch, true), StartReport::Started);
    let state = rig.state();
    assert_eq!((main_pid(&state), is_up(&state)), (pid, true));
    rig.stop(10_000);
    assert_eq!(rig.exit(), ProcessExit::Unknown, "how it ended");
    eventually("it ends", || !is_alive(pid));
}

#[test]
fn one_that_ends_without_leaving_anything_or_badly_has_ended() {
    for (script, code) in [("exit 0".to_owned(), 0), (daemon(":").replace("exit 0", "exit 5"), 5)] {
        let mut rig = Rig::new();
        let mut launch = forking(&rig, &script, None);
        launch.restart.budget = 0;
        assert_eq!(rig.start(&launch, false), StartReport::Started);
        assert_eq!(rig.exit(), ProcessExit::Code(code));
        for pid in rig.text("pids").lines().filter_map(|line| line.parse().ok()) {
            assert!(process_identity::stat(pid).is_none_or(|stat| stat.is_dead()), "program is gone");
        }
    }
}

#[test]
fn one_that_should_not_go_to_the_background_is_told_apart() {
    for (script, left_some) in
        [(daemon(":"), true), ("sleep 0.1; exit 0".to_owned(), false), ("exit 5".to_owned(), false)]
    {
        let mut rig = Rig::new();
        let launch = with_folder(&rig, service(&script, 0));
        assert!(matches!(launch.output, OutputMode::Log { .. }));
        assert_eq!(rig.start(&launch, false), StartReport::Started);
        let last = rig.over().last.unwrap();
        assert_eq!(last.left_some, left_some, "{script}: {last:?}");
    }
}
