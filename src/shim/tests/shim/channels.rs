//! Tests of programs that speak JSON lines.

use std::{
    fs,
    io::{Read, Write},
    os::{
        linux::net::SocketAddrExt,
        unix::net::{SocketAddr, UnixStream},
    },
};

use muster_shim::{
    ChannelInfo, ChannelWelcome, LINE_MAX_BYTES, Launch, NotifyKind, ProcessExit, ProgramState, RestartOn, ShimEvent,
    ShimRequest, StartReport,
};

use crate::rig::{Rig, argv, eventually, pids_in, service, with_folder};

/// `dial` connects and says hello, `say LINES…` says lines, `hear` waits for one, `until NAME` waits for a file.
const PRELUDE: &str = r#"
    use strict; use Socket; use IO::Handle; $| = 1; $SIG{PIPE} = 'IGNORE';
    my $socket;
    sub dial {
        my ($token, $more) = @_;
        my $name = $ENV{MUSTER_SOCKET}; $name =~ s/^@/\0/;
        socket(my $new, AF_UNIX, SOCK_STREAM, 0) or die;
        connect($new, pack_sockaddr_un($name)) or return 0;
        $new->autoflush(1);
        $socket = $new;
        say(qq({"hello":{"token":"$token","protocol":1,"can":["play","command"]$more}}));
        1
    }
    sub say { print $socket "$_\n" for @_ }
    sub hear { my $line = <$socket>; chomp $line if defined $line; $line }
    sub until { select(undef, undef, undef, 0.02) until -e "$ENV{FOLDER}/$_[0]" }
    sub note { open(my $file, ">>", "$ENV{FOLDER}/$_[0]"); print $file "$_[1]\n"; close $file }
"#;

fn name(rig: &Rig) -> String {
    format!("muster-lines{}", rig.folder.path().display())
}

fn speaker(rig: &Rig, script: &str, watchdog_ms: Option<u64>) -> Launch {
    let welcome = ChannelWelcome {
        unit: "default/a".into(),
        host: "here".into(),
        realm: "default".into(),
        playing: false,
        config: Some("/etc/a.json".into()),
    };
    let notify = NotifyKind { name: name(rig), start_timeout_ms: 60_000, watchdog_ms, lines: Some(welcome) };
    let mut launch = with_folder(rig, Launch { notify: Some(notify), ..service("", 0) });
    launch.argv = argv(&["/usr/bin/perl", "-e", &format!("{PRELUDE}{script}")]);
    launch.env.push(("MUSTER_SOCKET".into(), format!("@{}", name(rig))));
    launch
}

fn channel(state: &ProgramState) -> &ChannelInfo {
    state.channel.as_ref().unwrap()
}

fn is_connected(state: &ProgramState) -> bool {
    channel(state).connected.is_some()
}

fn say(rig: &mut Rig, id: &str, line: &str) {
    rig.send(&ShimRequest::Say { id: id.into(), line: line.into() });
}

/// The next event that is no state.
#[track_caller]
fn said(rig: &mut Rig) -> ShimEvent {
    loop {
        match rig.event().expect("the shim is gone") {
            ShimEvent::State(_) => {}
            event => return event,
        }
    }
}

fn mark(rig: &Rig, name: &str) {
    fs::write(rig.path(name), "").unwrap();
}

#[test]
fn lines_pass_both_ways() {
    let mut rig = Rig::new();
    let script = r#"
        dial($ENV{MUSTER_TOKEN}); note("heard", hear());
        &until("a"); say(q({"status":"warm"}), q({"ready":{}}));
        note("heard", hear());
        say(q({"answer":{"id":"7","ok":{"level":3}}}), q({"alive":{}}), q({"stats":{"requests":1}}));
        &until("b"); exit 4"#;
    let launch = speaker(&rig, script, None);
    assert!(!is_connected(&rig.launch(&launch)));
    let state = rig.state_where(is_connected);
    assert!(!state.notified.ready);
    let connected = channel(&state).connected.clone().unwrap();
    assert_eq!((channel(&state).connections, connected.playing), (1, false));
    assert_eq!(connected.can, ["play", "command"]);
    mark(&rig, "a");
    rig.state_where(|state| state.notified.ready && state.notified.status.as_deref() == Some("warm"));
    say(&mut rig, "7", r#"{"command":{"id":"7","name":"level","args":{}}}"#);
    assert_eq!(said(&mut rig), ShimEvent::Said { line: r#"{"answer":{"id":"7","ok":{"level":3}}}"#.into() });
    assert_eq!(said(&mut rig), ShimEvent::Said { line: r#"{"stats":{"requests":1}}"#.into() });
    let heard = rig.text("heard");
    let welcome =
        r#"{"welcome":{"unit":"default/a","host":"here","realm":"default","playing":false,"config":"/etc/a.json"}}"#;
    assert_eq!(heard, format!("{welcome}\n{{\"command\":{{\"id\":\"7\",\"name\":\"level\",\"args\":{{}}}}}}\n"));
    mark(&rig, "b");
    let over = rig.over();
    assert!(!is_connected(&over));
    assert_eq!(over.last.unwrap().exit, ProcessExit::Code(4));
}

#[test]
fn unreachable_program_is_reported_at_once() {
    let mut rig = Rig::new();
    let launch = speaker(&rig, r#"&until("a"); dial($ENV{MUSTER_TOKEN}); &until("b"); close $socket; sleep 60"#, None);
    rig.launch(&launch);
    let unreachable = |id: &str| ShimEvent::Unreachable { id: id.into() };
    say(&mut rig, "1", "{}");
    assert_eq!(said(&mut rig), unreachable("1"));
    mark(&rig, "a");
    rig.state_where(is_connected);
    // What no channel takes, from an agent that does not know better.
    say(&mut rig, "2", "{\n}");
    assert_eq!(said(&mut rig), unreachable("2"));
    say(&mut rig, "3", &"x".repeat(muster_shim::SAID_MAX_BYTES + 1));
    assert_eq!(said(&mut rig), unreachable("3"));
    mark(&rig, "b");
    rig.state_where(|state| !is_connected(state));
    say(&mut rig, "4", "{}");
    assert_eq!(said(&mut rig), unreachable("4"));
    rig.stop(0);
    rig.over();
}

#[test]
fn only_the_program_itself_is_let_in() {
    let mut rig = Rig::new();
    let script = r#"
        dial("0" x 32); note("heard", hear()); note("heard", defined hear() ? "more" : "end");
        &until("a"); dial($ENV{MUSTER_TOKEN}, q(,"ready":true)); hear(); note("heard", "in"); sleep 60"#;
    let launch = speaker(&rig, script, None);
    let token = channel(&rig.launch(&launch)).token.0.clone();
    assert_eq!(token.len(), 32);
    eventually("a refusal", || rig.text("heard").ends_with("end\n"));
    assert!(rig.text("heard").contains("refused") && rig.text("heard").contains("token"), "{}", rig.text("heard"));
    // This test is no part of it, and knows the token all the same.
    let stranger = || {
        let mut stream = UnixStream::connect_addr(&SocketAddr::from_abstract_name(name(&rig)).unwrap()).unwrap();
        let hello = format!("{{\"hello\":{{\"token\":\"{token}\",\"protocol\":1,\"ready\":true}}}}\n");
        // It may be closed before this is written.
        let _ = stream.write_all(hello.as_bytes());
        let mut answer = String::new();
        let _ = stream.read_to_string(&mut answer);
        answer
    };
    assert!(stranger().contains("not belong to the unit"));
    mark(&rig, "a");
    let state = rig.state_where(is_connected);
    assert_eq!(channel(&state).connections, 1, "of those that were let in");
    let state = if state.notified.ready { state } else { rig.state_where(|state| state.notified.ready) };
    assert!(is_connected(&state));
    // And it does not take the place of one that is in.
    let again = UnixStream::connect_addr(&SocketAddr::from_abstract_name(name(&rig)).unwrap()).unwrap();
    eventually("a refusal", || {
        let mut answer = [0; 512];
        (&again).read(&mut answer).is_ok_and(|len| len > 0)
    });
    say(&mut rig, "1", "{}");
    rig.stop(0);
    assert!(!matches!(said_or_over(&mut rig), Some(ShimEvent::Unreachable { .. })));
}

/// The next event that is no state, or nothing if it is over before.
fn said_or_over(rig: &mut Rig) -> Option<ShimEvent> {
    loop {
        match rig.event().expect("the shim is gone") {
            ShimEvent::State(state) if state.over => return None,
            ShimEvent::State(_) => {}
            event => return Some(event),
        }
    }
}

#[test]
fn each_start_has_a_token_of_its_own_and_hears_the_newest_wish() {
    let mut rig = Rig::new();
    let script = r#"
        my $second = -e "$ENV{FOLDER}/tokens";
        note("tokens", $ENV{MUSTER_TOKEN});
        dial($ENV{MUSTER_TOKEN}); note("heard", hear());
        sleep 60 if $second;
        &until("again"); exit 1"#;
    let mut launch = speaker(&rig, script, None);
    launch.restart = muster_shim::RestartLimits { on: RestartOn::Failure, budget: 1, reset_after_ms: 60_000 };
    rig.launch(&launch);
    rig.state_where(is_connected);
    rig.send(&ShimRequest::Playing { playing: true });
    rig.state_where(|state| channel(state).playing);
    mark(&rig, "again");
    let state = rig.state_where(|state| state.restarts == 1 && is_connected(state));
    assert!(channel(&state).connected.as_ref().unwrap().playing);
    assert_eq!(channel(&state).connections, 1);
    let tokens = rig.text("tokens");
    let tokens: Vec<&str> = tokens.lines().collect();
    assert!(tokens.len() == 2 && tokens[0] != tokens[1], "{tokens:?}");
    eventually("two welcomes", || rig.text("heard").lines().count() == 2);
    assert!(rig.text("heard").lines().last().unwrap().contains(r#""playing":true"#));
    rig.stop(0);
    rig.over();
}

#[test]
fn another_shim_takes_the_channel_back() {
    let mut rig = Rig::new();
    let script = r#"
        note("pids", $$);
        dial($ENV{MUSTER_TOKEN}); hear(); say(q({"ready":{}}));
        hear();
        my $welcome;
        # Also one that was let in when the shim was about to end hears nothing.
        until (dial($ENV{MUSTER_TOKEN}, q(,"ready":true)) && defined($welcome = hear())) {
            select(undef, undef, undef, 0.02)
        }
        note("heard", $welcome); note("heard", hear()); sleep 60"#;
    let launch = speaker(&rig, script, None);
    rig.launch(&launch);
    let before = rig.state_where(|state| state.notified.ready);
    rig.send(&ShimRequest::Playing { playing: true });
    rig.state_where(|state| channel(state).playing);
    let main = pids_in(&rig, "pids", 1)[0];
    rig.kill_shim();
    assert_eq!(rig.start(&launch, true), StartReport::Started);
    let state = rig.state_where(is_connected);
    assert_eq!((state.main.as_ref().unwrap().pid, channel(&state).connections), (main, 2));
    assert_eq!(channel(&state).token, channel(&before).token);
    say(&mut rig, "1", r#"{"play":{"id":"1"}}"#);
    eventually("two lines", || rig.text("heard").lines().count() == 2);
    let heard = rig.text("heard");
    assert!(heard.contains(r#""playing":true"#) && heard.ends_with("{\"play\":{\"id\":\"1\"}}\n"), "{heard}");
    rig.stop(0);
    rig.over();
}

#[test]
fn start_deadline_and_watchdog_are_those_of_notify() {
    let mut rig = Rig::new();
    let mut launch = speaker(&rig, "dial($ENV{MUSTER_TOKEN}); sleep 60", None);
    launch.notify.as_mut().unwrap().start_timeout_ms = 400;
    rig.launch(&launch);
    assert!(rig.over().last.unwrap().silent);

    let mut rig = Rig::new();
    let script = r#"
        dial($ENV{MUSTER_TOKEN}, q(,"ready":true));
        for (1..10) { say(q({"alive":{}})); select(undef, undef, undef, 0.15); print "spoke\n" }
        sleep 60"#;
    let launch = speaker(&rig, script, Some(1_000));
    rig.launch(&launch);
    let last = rig.over().last.unwrap();
    assert_eq!((last.exit, last.silent), (ProcessExit::Signal(6), true));
    assert_eq!(rig.text("log"), "spoke\n".repeat(10));
}

/// What a process has in memory that is its own, in KiB.
fn private_kib(pid: i32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap();
    let number = |line: &str| line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap();
    text.lines().filter(|line| line.starts_with("Private_")).map(number).sum()
}

#[test]
fn a_flood_costs_no_memory_and_the_agent_nothing() {
    let mut rig = Rig::new();
    // Long lines and short ones, without end, to an agent that does not read, and to none.
    let script = r#"
        dial($ENV{MUSTER_TOKEN}, q(,"ready":true));
        my $long = q({"stats":{"text":") . ("x" x 60000) . q("}});
        for (1..400) { say($long); say(q({"answer":{"id":"1","ok":null}})) for 1..50 }
        say(q({"status":"done"})); note("done", "1"); &until("a"); say($long . " "); sleep 60"#;
    let launch = speaker(&rig, script, None);
    rig.launch(&launch);
    let shim = rig.shim().unwrap();
    eventually("the end of the flood", || rig.path("done").exists());
    assert!(private_kib(shim) < 4 * 1024, "{} KiB", private_kib(shim));
    // The connection is still there, and the newest state comes through.
    let state = rig.state_where(|state| state.notified.status.as_deref() == Some("done"));
    assert!(is_connected(&state));
    // With no agent at all it is the same, and a line that is too long ends the connection and nothing else.
    rig.connection = None;
    mark(&rig, "a");
    assert!(rig.connect());
    let state = rig.state_where(|_| true);
    assert!(state.main.is_some());
    rig.stop(0);
    rig.over();
}

#[test]
fn no_line_is_too_long_for_the_agents_protocol() {
    let line = "\"".repeat(muster_shim::SAID_MAX_BYTES);
    let event = serde_json::to_string(&ShimEvent::Said { line: line.clone() }).unwrap();
    assert!(event.len() < LINE_MAX_BYTES);
    let request = serde_json::to_string(&ShimRequest::Say { id: "x".repeat(64), line }).unwrap();
    assert!(request.len() < LINE_MAX_BYTES);
}
