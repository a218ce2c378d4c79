//! Tests of what processes receive, what they may use, and what they report.

use super::*;

/// The cgroups of a process, as the kernel tells them, of those that an agent has made.
fn cgroups(pid: Pid) -> Vec<String> {
    let text = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
    text.lines().filter(|line| line.contains("/muster-")).map(str::to_owned).collect()
}

async fn until(what: &str, mut is: impl FnMut() -> bool) {
    let deadline = tokio::time::Instant::now() + Duration::from_secs(60);
    while !is() {
        assert!(tokio::time::Instant::now() < deadline, "{what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn process_matches_its_spec() {
    let host = Host::start().await;
    let unit = unit();
    let program =
        "#!/bin/sh\numask; nice; ulimit -n; pwd; id -u; id -G\ncat /proc/self/status\necho end\nexec sleep 1000\n";
    let mut fields = json!({
        "cwd": "/usr",
        "process": {
            "umask": "027", "nice": 19, "no_new_privs": true,
            "rlimits": {"nofile": {"soft": 33, "hard": 44}},
        },
    });
    let is_root = unistd::geteuid().is_root();
    if is_root {
        fs::set_permissions(host.folder.path(), fs::Permissions::from_mode(0o711)).unwrap();
        fields["user"] = json!("nobody");
        fields["process"]["groups"] = json!(["4242", "daemon"]);
        fields["process"]["capabilities"] = json!(["CAP_NET_BIND_SERVICE"]);
    }
    host.verb(&unit, &host.apply(&unit, program, fields)).await.unwrap();
    host.until_phase(&unit, Phase::Running).await;
    let logs = host.logs_until(&unit, "end\n").await;
    assert!(logs.starts_with("0027\n19\n33\n/usr\n"), "{logs}");
    assert!(logs.contains("NoNewPrivs:\t1\n"), "{logs}");
    if is_root {
        let nobody = unistd::User::from_name("nobody").unwrap().unwrap();
        let daemon = unistd::Group::from_name("daemon").unwrap().unwrap().gid;
        assert!(logs.contains(&format!("{}\n{} {daemon} 4242\n", nobody.uid, nobody.gid)), "{logs}");
        assert!(logs.contains("CapEff:\t0000000000000400\nCapBnd:\t0000000000000400\n"), "{logs}");
    }
    host.stop(&unit).await;
}

#[tokio::test]
async fn unavailable_attribute_fails_the_start() {
    let host = Host::start().await;
    let unit = unit();
    for (fields, words, phase) in [
        (json!({"cwd": "/no/such/folder"}), "working directory /no/such/folder", Phase::Backoff),
        (json!({"process": {"groups": ["no-such-group"]}}), "there is no group \"no-such-group\"", Phase::Backoff),
        (
            json!({"process": {"capabilities": ["checkpoint_restore", "sys_resource", "chown"]}}),
            "capability",
            Phase::Failed,
        ),
    ] {
        if words == "capability" && has_all_capabilities() {
            continue;
        }
        host.verb(&unit, &host.apply(&unit, SERVICE, fields)).await.unwrap();
        let state = host.until_phase(&unit, phase).await;
        assert!(state.observed.error.as_ref().unwrap().cause.contains(words), "{state:?}");
        assert_eq!((state.process, state.observed.retry_ms().is_some()), (None, phase == Phase::Backoff), "{state:?}");
    }
}

#[tokio::test]
async fn missing_working_folder_is_waited_for() {
    let host = Host::start().await;
    let unit = unit();
    let late = host.folder.path().join("late-mount");
    host.verb(&unit, &host.apply(&unit, SERVICE, json!({"cwd": late}))).await.unwrap();
    let state = host.until_phase(&unit, Phase::Backoff).await;
    let hint = state.observed.error.as_ref().unwrap().hint.as_deref().unwrap_or_default();
    assert!(hint.contains("disk is mounted"), "{state:?}");
    fs::create_dir(&late).unwrap();
    host.until_phase(&unit, Phase::Running).await;
    host.stop(&unit).await;
}

fn has_all_capabilities() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let permitted = status.lines().find_map(|line| line.strip_prefix("CapPrm:\t")).unwrap();
    let wanted = (1 << 40) | (1 << 24) | 1;
    u64::from_str_radix(permitted, 16).unwrap() & wanted == wanted
}

#[tokio::test]
async fn limits_apply_and_are_removed_with_the_unit() {
    let host = Host::start().await;
    let unit = unit();
    let limits = json!({"memory_bytes": 16 * 1024 * 1024, "cpu": 0.5, "pids": 20});
    let fields = json!({"limits": limits, "restart": "never", "args": ["once"]});
    host.verb(&unit, &host.apply(&unit, SERVICE, fields)).await.unwrap();
    let state = host.until_phase(&unit, Phase::Running).await;
    if !state.observed.instance().unsupported.is_empty() {
        // Then this is what is told, and it runs all the same.
        host.stop(&unit).await;
        return;
    }
    let before = cgroups(pid(&state));
    assert!(!before.is_empty() && before.iter().all(|line| line.ends_with("/default/hello")), "{before:?}");
    let eater = "#!/bin/sh\necho I am hungry\nexec tail /dev/zero\n";
    let fields = json!({"limits": limits, "restart": "never", "started_after_ms": 3_600_000});
    host.verb(&unit, &host.apply(&unit, eater, fields)).await.unwrap();
    let state = host.until_phase(&unit, Phase::Failed).await;
    let observed = &state.observed;
    let end = observed.last_end.unwrap();
    assert_eq!((end.exit, end.oom_killed), (Exit::Signal(9), true));
    assert!(observed.error.as_ref().unwrap().cause.contains("out of memory"), "{observed:?}");
    // The last line of before, of the same log, may stand above.
    assert!(observed.last_lines.as_ref().unwrap().ends_with("I am hungry\n"), "{observed:?}");
    host.verb(&unit, &Verb::UnitRm { unit: unit.clone() }).await.unwrap_err();
    host.verb(&unit, &Verb::UnitRetire { unit: unit.clone(), note: None }).await.unwrap();
    host.until_phase(&unit, Phase::Stopped).await;
    host.verb(&unit, &Verb::UnitRm { unit: unit.clone() }).await.unwrap();
    until("no folder", || !host.unit_folder().exists()).await;
    let traces = || {
        let mut below = vec![PathBuf::from("/sys/fs/cgroup")];
        let mine = format!("muster-{}", Digest::of(host.folder.path().as_os_str().as_encoded_bytes()).short());
        while let Some(folder) = below.pop() {
            if folder.ends_with(&mine) {
                return true;
            }
            let entries = fs::read_dir(&folder).into_iter().flatten().flatten();
            below.extend(entries.map(|entry| entry.path()).filter(|path| path.is_dir() && !path.is_symlink()));
        }
        false
    };
    until("no cgroup", || !traces()).await;
}

#[tokio::test]
async fn unavailable_limits_are_reported() {
    let host = Host::start().await;
    let unit = unit();
    // More than any kernel counts to.
    let limits = json!({"pids": u32::MAX});
    host.verb(&unit, &host.apply(&unit, SERVICE, json!({"limits": limits}))).await.unwrap();
    let told = |state: &UnitState| {
        let missing = &state.observed.instance().unsupported;
        assert!(missing.len() == 1 && missing[0].cause.starts_with("the limit of pids: "), "{missing:?}");
    };
    told(&host.until_phase(&unit, Phase::Running).await);
    let mut host = host;
    host.restart_agent().await;
    told(
        &host.until(&unit, |state| state.process.is_some() && !state.observed.instance().unsupported.is_empty()).await,
    );
    let state = host.stop(&unit).await;
    assert!(state.observed.instance().unsupported.is_empty());
}

#[tokio::test]
async fn no_process_of_a_unit_outlives_it() {
    let host = Host::start().await;
    let unit = unit();
    // Away from its parents and from its session: only a cgroup knows whose it is.
    let program = "#!/bin/sh\n(setsid sh -c 'echo $$ >> far; exec sleep 1000' &)\nwhile :; do sleep 1; done\n";
    host.verb(&unit, &host.apply(&unit, program, json!({}))).await.unwrap();
    let state = host.until_phase(&unit, Phase::Running).await;
    let fars = || fs::read_to_string(host.unit_folder().join("work/far")).unwrap_or_default();
    until("the other process", || fars().ends_with('\n')).await;
    let far = Pid::from_raw(fars().trim().parse().unwrap());
    if cgroups(far).is_empty() {
        kill(far, Signal::SIGKILL).unwrap();
        host.stop(&unit).await;
        return;
    }
    let shim = muster_shim::process_identity::stat(pid(&state).as_raw()).unwrap().ppid;
    kill(Pid::from_raw(shim), Signal::SIGKILL).unwrap();
    kill(pid(&state), Signal::SIGKILL).unwrap();
    let again = |now: &UnitState| {
        now.observed.phase() == Phase::Running && now.observed.instance().pid != state.observed.instance().pid
    };
    let second = host.until(&unit, again).await;
    assert_eq!(second.observed.exit(), Some(Exit::Unknown));
    // A zombie, perhaps, if init is slow: it runs no more.
    let is_gone = |pid: Pid| muster_shim::process_identity::stat(pid.as_raw()).is_none_or(|stat| stat.is_dead());
    assert!(is_gone(far), "it was there when the next one was started");
    until("the next other process", || fars().lines().count() == 2).await;
    host.stop(&unit).await;
    let second = Pid::from_raw(fars().lines().last().unwrap().parse().unwrap());
    assert!(is_gone(second));
}

/// A program in Perl, which every Debian has: it is up once there is a file `go`, and then says so.
const SPEAKER: &str = r#"#!/usr/bin/perl
use strict; use Socket; $| = 1;
sub notify {
    my $name = $ENV{NOTIFY_SOCKET}; $name =~ s/^@/\0/;
    socket(my $socket, AF_UNIX, SOCK_DGRAM, 0) or die;
    send($socket, $_[0], 0, pack_sockaddr_un($name)) // die "send: $!";
}
print "watchdog $ENV{WATCHDOG_USEC}\n";
notify("STATUS=waiting");
select(undef, undef, undef, 0.02) until -e "go";
notify("READY=1\nSTATUS=serving");
while (! -e "hang") { notify("WATCHDOG=1"); select(undef, undef, undef, 0.05) }
unlink "go", "hang";
sleep 1000;
"#;

#[tokio::test]
async fn notify_unit_runs_once_ready_and_hanging_one_is_ended() {
    let mut host = Host::start().await;
    let unit = unit();
    let fields = json!({"channel": "notify", "watchdog_ms": 2_000, "started_after_ms": 0});
    host.verb(&unit, &host.apply(&unit, SPEAKER, fields)).await.unwrap();
    let starting = host.until(&unit, |state| state.observed.instance().status.as_deref() == Some("waiting")).await;
    assert_eq!(starting.observed.phase(), Phase::Starting);
    let work = host.unit_folder().join("work");
    fs::write(work.join("go"), "").unwrap();
    host.until_phase(&unit, Phase::Running).await;
    host.until(&unit, |state| state.observed.instance().status.as_deref() == Some("serving")).await;
    host.logs_until(&unit, "watchdog 2000000\n").await;
    // An agent that was away knows what was said meanwhile.
    host.restart_agent().await;
    let state = host.until(&unit, |state| state.process.is_some() && state.observed.instance().status.is_some()).await;
    assert_eq!((state.observed.phase(), state.process), (Phase::Running, starting.process));
    fs::write(work.join("hang"), "").unwrap();
    let again = host.until(&unit, |state| state.process != starting.process && state.process.is_some()).await;
    assert_eq!((again.observed.exit(), again.observed.phase()), (Some(Exit::Signal(6)), Phase::Starting));
    fs::write(work.join("go"), "").unwrap();
    host.until_phase(&unit, Phase::Running).await;
    host.stop(&unit).await;
}

#[tokio::test]
async fn unit_that_never_comes_up_fails() {
    let host = Host::start().await;
    let unit = unit();
    let fields = json!({"channel": "notify", "start_timeout_ms": 300, "restart": "never"});
    host.verb(&unit, &host.apply(&unit, SPEAKER, fields)).await.unwrap();
    let state = host.until_phase(&unit, Phase::Failed).await;
    assert!(state.observed.error.as_ref().unwrap().cause.contains("was not up within its start timeout"), "{state:?}");
}
