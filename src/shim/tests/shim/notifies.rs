//! Tests of programs that notify readiness and liveness.

use std::{
    fs,
    os::{
        linux::net::SocketAddrExt,
        unix::net::{SocketAddr, UnixDatagram},
    },
    path::Path,
};

use muster_shim::{Launch, NotifyKind, ProcessExit, ProgramState, RestartLimits, RestartOn, StartReport};

use crate::rig::{Rig, argv, command, eventually, pids_in, service, with_folder};

/// `notify WORDS…` sends a message each, `until NAME` waits for a file, `get LINE` for a line of output.
const PRELUDE: &str = r#"
    use strict; use Socket; $| = 1;
    sub notify {
        my $name = $ENV{NOTIFY_SOCKET}; $name =~ s/^@/\0/;
        socket(my $socket, AF_UNIX, SOCK_DGRAM, 0) or die;
        send($socket, $_, 0, pack_sockaddr_un($name)) // die "send: $!" for @_;
    }
    sub until { select(undef, undef, undef, 0.02) until -e "$ENV{FOLDER}/$_[0]" }
"#;

fn name(rig: &Rig) -> String {
    format!("muster-test{}", rig.folder.path().display())
}

/// A program in Perl, which every Debian has, that may speak.
fn speaker(rig: &Rig, script: &str, watchdog_ms: Option<u64>) -> Launch {
    let notify = NotifyKind { name: name(rig), start_timeout_ms: 60_000, watchdog_ms, lines: None };
    let mut launch = with_folder(rig, Launch { notify: Some(notify), ..service("", 0) });
    launch.argv = argv(&["/usr/bin/perl", "-e", &format!("{PRELUDE}{script}")]);
    launch.env.push(("NOTIFY_SOCKET".into(), format!("@{}", name(rig))));
    launch
}

fn failing(budget: u32) -> RestartLimits {
    RestartLimits { on: RestartOn::Failure, budget, reset_after_ms: 60_000 }
}

#[test]
fn status_and_readiness_are_reported() {
    let mut rig = Rig::new();
    let script = r#"
        &until("a"); notify("STATUS=warming up");
        &until("b"); notify("READY=1\nSTATUS=at work");
        &until("c"); notify("RELOADING=1");
        &until("d"); notify("READY=1", "MAINPID=1", "MAINPID=1", "NONSENSE");
        &until("e"); notify("STOPPING=1");
        &until("f"); exit 3;"#;
    let launch = speaker(&rig, script, None);
    assert!(rig.launch(&launch).notified.is_nothing());
    let mut step = |file: &str, is: &dyn Fn(&ProgramState) -> bool| {
        fs::write(rig.path(file), "").unwrap();
        rig.state_where(is).notified
    };
    let status = step("a", &|state| state.notified.status.is_some());
    assert_eq!((status.status.as_deref(), status.ready), (Some("warming up"), false));
    step("b", &|state| state.notified.ready && state.notified.status.as_deref() == Some("at work"));
    step("c", &|state| state.notified.reloading && state.notified.ready);
    step("d", &|state| !state.notified.reloading && state.notified.ready);
    step("e", &|state| state.notified.stopping);
    fs::write(rig.path("f"), "").unwrap();
    let over = rig.over();
    assert_eq!((over.last.unwrap().exit, over.notified.is_nothing()), (ProcessExit::Code(3), true));
    assert_eq!(rig.text("log").matches("MAINPID is ignored").count(), 1);
}

#[test]
fn a_helper_may_speak_for_the_program_and_nobody_else() {
    let mut rig = Rig::new();
    let script = r#"
        &until("a");
        my $helper = fork // die;
        if (!$helper) { notify("STATUS=from a helper"); &until("b"); exit 0 }
        &until("b");
        my $far = fork // die;
        if (!$far) { require POSIX; POSIX::setsid(); exit 0 if fork; notify("READY=1"); sleep 60 }
        waitpid($far, 0); sleep 60"#;
    let launch = speaker(&rig, script, None);
    rig.launch(&launch);
    // This test is no part of it.
    let stranger = UnixDatagram::unbound().unwrap();
    let to = SocketAddr::from_abstract_name(name(&rig)).unwrap();
    for message in ["READY=1", "STATUS=believe me", "WATCHDOG=trigger"] {
        stranger.send_to_addr(message.as_bytes(), &to).unwrap();
    }
    fs::write(rig.path("a"), "").unwrap();
    let heard = rig.state_where(|state| !state.notified.is_nothing()).notified;
    assert_eq!((heard.status.as_deref(), heard.ready), (Some("from a helper"), false));
    fs::write(rig.path("b"), "").unwrap();
    rig.state_where(|state| state.notified.ready);
    rig.stop(0);
    rig.over();
}

#[test]
fn an_unchanged_program_of_systemds_is_understood() {
    if !Path::new("/usr/bin/systemd-notify").exists() {
        println!("systemd-notify is not installed");
        return;
    }
    let mut rig = Rig::new();
    let mut launch = speaker(&rig, "", None);
    let script = "systemd-notify --ready --status='up to speed' && echo sent; while :; do sleep 1; done";
    launch.argv = argv(&["/bin/sh", "-c", script]);
    rig.launch(&launch);
    let state = rig.state_where(|state| state.notified.ready && state.notified.status.is_some());
    assert_eq!(state.notified.status.as_deref(), Some("up to speed"));
    // It waits until it was heard, by a descriptor that is to be closed.
    eventually("the end of systemd-notify", || rig.text("log") == "sent\n");
    rig.stop(0);
    rig.over();
}

#[test]
fn start_timeout_ends_the_program() {
    let mut rig = Rig::new();
    let mut launch = speaker(&rig, "$SIG{TERM} = sub { exit 0 }; print qq(started\\n); sleep 1 while 1", None);
    launch.notify.as_mut().unwrap().start_timeout_ms = 400;
    launch.restart = failing(1);
    rig.launch(&launch);
    let over = rig.over();
    let last = over.last.unwrap();
    assert!(last.silent && last.start_timed_out && over.restarts == 1, "{last:?}");
    assert!(matches!(last.exit, ProcessExit::Code(0) | ProcessExit::Signal(15)), "{last:?}");
}

#[test]
fn watchdog_timeout_restarts_the_program() {
    let mut rig = Rig::new();
    // The first time it speaks ten times, which is longer than it may be silent, and then never again.
    let script = r#"
        notify("READY=1");
        if (-e "$ENV{FOLDER}/again") { while (1) { notify("WATCHDOG=1"); select(undef, undef, undef, 0.05) } }
        open(my $again, ">", "$ENV{FOLDER}/again"); close $again;
        for (1..10) { notify("WATCHDOG=1"); select(undef, undef, undef, 0.15); print "spoke\n" }
        sleep 60"#;
    let mut launch = speaker(&rig, script, Some(1_000));
    launch.restart = failing(1);
    rig.launch(&launch);
    let again = rig.state_where(|state| state.restarts == 1 && state.main.is_some());
    let last = again.last.unwrap();
    assert_eq!((last.exit, last.silent, last.start_timed_out), (ProcessExit::Signal(6), true, false));
    assert_eq!(rig.text("log"), "spoke\n".repeat(10));
    // The second one goes on speaking, and lives.
    rig.state_where(|state| state.notified.ready);
    std::thread::sleep(std::time::Duration::from_millis(1_500));
    rig.stop(0);
    let over = rig.over();
    assert_eq!((over.restarts, over.last.unwrap().silent), (1, false));
}

#[test]
fn frozen_program_does_not_trip_the_watchdog() {
    let mut rig = Rig::new();
    let script = r#"notify("READY=1"); while (1) { notify("WATCHDOG=1"); select(undef, undef, undef, 0.02) }"#;
    let launch = speaker(&rig, script, Some(700));
    rig.launch(&launch);
    rig.state_where(|state| state.notified.ready);
    rig.send(&muster_shim::ShimRequest::Freeze);
    rig.state_where(|state| state.frozen);
    std::thread::sleep(std::time::Duration::from_millis(1_500));
    rig.send(&muster_shim::ShimRequest::Thaw);
    let thawed = rig.state_where(|state| !state.frozen);
    assert!(thawed.main.is_some() && thawed.restarts == 0);
    rig.stop(0);
    assert!(!rig.over().last.unwrap().silent);
}

#[test]
fn another_shim_hears_it_and_knows_what_it_had_said() {
    let mut rig = Rig::new();
    let script = r#"
        open(my $pids, ">", "$ENV{FOLDER}/pids"); print $pids "$$\n"; close $pids;
        notify("READY=1"); &until("a"); notify("STATUS=still here"); sleep 60"#;
    let launch = speaker(&rig, script, None);
    rig.launch(&launch);
    rig.state_where(|state| state.notified.ready);
    pids_in(&rig, "pids", 1);
    rig.kill_shim();
    assert_eq!(rig.start(&launch, true), StartReport::Started);
    assert!(rig.state().notified.ready);
    fs::write(rig.path("a"), "").unwrap();
    let heard = rig.state_where(|state| state.notified.status.is_some()).notified;
    assert_eq!((heard.status.as_deref(), heard.ready), (Some("still here"), true));
    rig.stop(0);
    rig.over();
}

#[test]
fn flood_of_status_messages_is_merged() {
    let mut rig = Rig::new();
    let script = r#"notify("STATUS=$_") for 1..3000; notify("READY=1"); sleep 60"#;
    let launch = speaker(&rig, script, None);
    rig.launch(&launch);
    let mut told = 0;
    let ready = rig.state_where(|state| {
        told += 1;
        state.notified.ready
    });
    assert_eq!(ready.notified.status.as_deref(), Some("3000"));
    assert!(told < 300, "{told} states");
    rig.stop(0);
    rig.over();
}

#[test]
fn taken_socket_name_fails_the_start() {
    let mut rig = Rig::new();
    let _taken = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(name(&rig)).unwrap()).unwrap();
    let launch = speaker(&rig, "print qq(runs\\n)", None);
    let eaddrinuse = 98;
    let step = muster_shim::StartStep::Prepare;
    assert_eq!(rig.start(&launch, false), StartReport::Failed { step, which: None, errno: eaddrinuse });
    assert!(!rig.path(muster_shim::files::SOCKET).exists());
    rig.launch(&command("exit 0"));
    assert_eq!(rig.exit(), ProcessExit::Code(0));
}
