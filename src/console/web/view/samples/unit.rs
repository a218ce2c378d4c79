//! Units.

use super::*;

pub(super) fn config_ref(id: &str) -> ConfigRef {
    ConfigRef { id: id.parse().unwrap(), version: "7".parse().unwrap(), sha256: Digest::of(b"{}") }
}

/// One unit; an odd one is in trouble.
pub(in crate::web) fn unit(hostname: &str, index: usize) -> Unit {
    let text = |usual: &str| if hostname == HOSTILE { HOSTILE.to_owned() } else { usual.to_owned() };
    let failed = index % 2 == 1;
    let artifact = ArtifactRef {
        sha256: Digest::of(b"till"),
        size_bytes: 4_812_344,
        role: "till".parse().unwrap(),
        version: "2.4.1".parse().unwrap(),
        manifest: None,
    };
    let spec = YunoSpec {
        configs: ["till.main", "shop"].map(config_ref).to_vec(),
        channel: Channel::Lines,
        program: ProgramSpec {
            args: vec!["--config".to_owned(), text("{config}")],
            env: BTreeMap::from([(text("LOG_LEVEL"), "value-of-it".to_owned())]),
            user: Some(text("till")),
            probes: Probes {
                live: Some(Probe::new(Check::Exec(vec![text("check"), text("-q")]))),
                ..Probes::default()
            },
            ..ProgramSpec::default()
        },
        common: CommonSpec {
            labels: [("tier".parse().unwrap(), "gold".parse().unwrap())].into(),
            ..CommonSpec::default()
        },
        ..YunoSpec::new(artifact)
    };
    let running = ObservedState::Running(InstanceReport {
        pid: Some(4711),
        frozen: true,
        can: vec![Ability::Play, Ability::Stats],
        unready: Some(Diagnostic::new(text("ready probe: http://127.0.0.1:8080/ready: status 503"))),
        ..InstanceReport::default()
    });
    let back = RolledBack {
        generation: 4,
        revision: Digest::of(b"new"),
        to: Digest::of(b"old"),
        error: Diagnostic::new(text("ended unexpectedly: exit code 2")),
        at_ms: ago(300),
        last_lines: Some(text("no such table: till")),
    };
    Unit {
        host: HostId::random(),
        hostname: hostname.to_owned(),
        unit: name(index),
        desired: Desired {
            generation: 4,
            revision: Digest::of(b"new"),
            spec: Spec::Yuno(spec).into(),
            run: Run::Running,
            frozen: !failed,
        },
        observed: Observed {
            generation: if failed { 3 } else { 4 },
            revision: Some(Digest::of(if failed { b"old" } else { b"new" })),
            content: Some(Content {
                artifact: text(if failed { "till@2.4.0" } else { "till@2.4.1" }),
                configs: vec![text("till.main@7"), "shop@7".to_owned()],
            }),
            state: if failed { ObservedState::Backoff { retry_ms: ago(-42) } } else { running },
            since_ms: ago(312),
            last_end: failed.then_some(Exit::Signal(11).into()),
            attempts: u32::from(failed) * 4,
            progress: failed.then_some(Progress { done_bytes: 410_000_000, total_bytes: 1_000_000_000 }),
            error: failed.then(|| Diagnostic::new(text("it ended within a second, four times in a row"))),
            trial: if failed { TrialReport::RolledBack(back) } else { TrialReport::OnTrial { verified: back.to } },
            beside: (!failed).then(|| Beside {
                revision: Digest::of(b"old"),
                pid: Some(4_700),
                leaving: true,
                since_ms: ago(3),
            }),
            ..Observed::absent(0)
        },
        hold: failed.then(|| Hold {
            by: Some("anna".parse().unwrap()),
            note: Some(text("until the disk is replaced")),
            ..Hold::new(HoldReason::Operator, ago(300))
        }),
        owner: None,
        pins: muster_topics::snapshot::Pins::default(),
        stats: (!failed).then(|| {
            ToldStats::new(ago(3), [(text("requests"), 17.into()), ("lane".to_owned(), text("north").into())].into())
        }),
        at_ms: ago(5),
    }
}

/// A container with every field set.
pub(in crate::web) fn container(hostname: &str) -> Unit {
    let unit = unit(hostname, 0);
    let text = |usual: &str| if hostname == HOSTILE { HOSTILE.to_owned() } else { usual.to_owned() };
    let every = |check| Some(Probe::new(check));
    let image = unit.desired.spec.artifact().unwrap().clone();
    let spec = ContainerSpec {
        entry: Some(vec![text("/bin/till"), "--fast".to_owned()]),
        mounts: [true, false]
            .map(|read_only| Mount { host: text("/srv/till"), inside: "/data".to_owned(), read_only })
            .into(),
        disk_bytes: Some(2 << 30),
        program: ProgramSpec {
            args: vec![text("--config"), "/etc/till.conf".to_owned()],
            env: BTreeMap::from([(text("LOG_LEVEL"), "value-of-it".to_owned())]),
            user: Some(text("till")),
            limits: Limits { memory_bytes: Some(64 << 20), cpu: Cores::new(0.5), pids: Some(50) },
            probes: Probes {
                start: every(Check::Tcp(probe::Tcp { port: Port::Number(80), address: None })),
                ready: every(Check::Http(probe::Http {
                    port: Port::Endpoint("http".parse().unwrap()),
                    path: text("/ready"),
                    address: None,
                    status: None,
                })),
                live: every(Check::Exec(vec![text("/bin/check"), "--quick".to_owned()])),
            },
            ..ProgramSpec::default()
        },
        ..ContainerSpec::new(Image::Rootfs(image))
    };
    let desired = Desired { spec: Spec::Container(spec).into(), ..unit.desired };
    Unit { desired, ..unit }
}

pub(super) fn latest(label: &str) -> Vec<Latest> {
    let one = |value: &str, share| Latest { label: label.to_owned(), value: value.to_owned(), share, at_ms: ago(12) };
    vec![one("3.1 %", Some(0.031)), one("1.2 GiB of 7.7 GiB", Some(0.96)), one("14 KiB/s", None)]
}

pub(super) fn unit_view(hostname: &str, log: &str) -> UnitView {
    let view = LogView { times: true, ..LogView::default() };
    let ordered = Verb::UnitLogs { unit: name(1), lines: 200, view };
    let asked = Command { verb: ordered, ..command("logs", hostname, 1) };
    let log = Text { tail: log.repeat(30), whole_bytes: log.len() * 30 };
    UnitView {
        unit: unit(hostname, 1),
        asked: Some(asked),
        before: None,
        log: Some((log, "200 lines are shown, and there are more\n".to_owned())),
        tasks: ShownTasks::default(),
        latest: latest("Memory"),
        range: TimeRange::Hour,
        newer: newer(hostname),
        claim: UnitClaim::default(),
    }
}

/// A later version of everything in a unit.
pub(super) fn newer(hostname: &str) -> Option<Upgrade> {
    let unit = unit(hostname, 1);
    let other = Digest::of(b"newer");
    let artifact = Artifact { sha256: other.clone(), ..artifact("2.5.0") };
    let config = Config { sha256: other, version: "8".parse().unwrap(), id: "shop".parse().unwrap(), ..config(None) };
    upgrade(&unit.unit, &unit.desired, &Offer::newest(vec![artifact], vec![config]))
}

/// Units of several hosts; every other one belongs to a deployment.
pub(super) fn units_view(hostname: &str, count: usize) -> UnitsView {
    let owned = |index: usize| (index % 2 == 1).then(|| super::owner(index == 1));
    let units = (0..count).map(|index| Unit { owner: owned(index), ..unit(hostname, index) }).collect();
    let shown = ShownUnits { select: "realm=shop".to_owned(), version: Some(4), page: 2, ..ShownUnits::default() };
    let phases = if count == 0 { vec![] } else { vec![(Phase::Running, 238), (Phase::Failed, 2)] };
    UnitsView { shown, found: UnitPage { units, phases }, problem: None }
}

/// A unit of files, whose tasks were asked for.
pub(super) fn files_view(hostname: &str) -> UnitView {
    let text = |usual: &str| if hostname == HOSTILE { HOSTILE.to_owned() } else { usual.to_owned() };
    let mut view = unit_view(hostname, "");
    let entries = serde_json::json!({text("/etc/till.conf"): {"text": "a\n"}});
    view.unit.desired.spec = serde_json::from_value(serde_json::json!({"kind": "files", "files": entries})).unwrap();
    let drift = vec![Diagnostic::new(text("/etc/till.conf: its content differs"))];
    view.unit.observed.state = ObservedState::Running(InstanceReport { drift, ..InstanceReport::default() });
    let owed = OwedReport {
        action: text("restart shop/till"),
        since_ms: ago(40),
        attempts: 2,
        error: Some(Diagnostic::new(text("there is no unit shop/till on this host yet"))),
        failed_ms: None,
    };
    view.unit.observed.owed = vec![OwedReport { attempts: 0, error: None, ..owed.clone() }, owed];
    let task = |number: u64, state, message: Option<String>| TaskRecord {
        number,
        unit: name(1),
        revision: Digest::of(b"new"),
        action: TaskAction::Write,
        about: text("3 files below /etc/till"),
        state,
        began_ms: ago(50),
        ended_ms: (state != TaskState::Running).then(|| ago(48)),
        diagnostic: message.map(Diagnostic::new),
    };
    let tasks = vec![
        task(9, TaskState::Running, None),
        task(8, TaskState::Failed, Some(text("no room"))),
        task(7, TaskState::Changed, Some(text("/etc/till.conf"))),
        task(6, TaskState::Unchanged, None),
        task(5, TaskState::Interrupted, None),
    ];
    let log = TaskLogText { text: text("writing /etc/till.conf\n"), end: 23, is_over: false };
    let verb = Verb::UnitTasks { unit: name(1), log: Some(9), from: 0 };
    let asked = Command { verb, ..command("tasks", hostname, 1) };
    let answer = UnitTasks { tasks, owed: vec![text("restart shop/till is pending")], log: Some(log) };
    view.tasks = ShownTasks { asked: Some(asked.clone()), answer: Some(answer) };
    UnitView { asked: Some(asked), log: None, ..view }
}
