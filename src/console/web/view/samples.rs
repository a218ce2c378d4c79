//! Values of each view, as tests draw them: the usual, the empty, and the hostile, in which every text
//! that comes from elsewhere tries to be markup.

use std::collections::BTreeMap;

use maud::Markup;
use muster_topics::{
    Millis,
    alert::{AlertState, Metric, Rule, Severity},
    channel::{Ability, ToldStats},
    command::{Exec, Target, Verb},
    heartbeat::{Facts, HostState, Interface, UnitSummary},
    manifest::Manifest,
    name::{CommandId, Digest, HostId, UnitName},
    outcome::{Data, Outcome, Output, RefusalCode, Status as Ended},
    presence::PresenceState,
    probe::{Check, Probe, Probes},
    unit::{
        ArtifactRef, Beside, Channel, ConfigRef, Desired, Exit, Hold, HoldReason, Observed, Phase, Progress,
        RolledBack, Run, Spec, YunoSpec,
    },
};

use super::{
    Frame, View,
    alerts::{AlertsView, SilenceForm},
    command::{CommandView, Shown as Text},
    commands::CommandsView,
    content::{ArtifactsView, ConfigView, ConfigsView, ManifestView},
    host::HostView,
    hosts::{HostsView, Shown},
    join::JoinView,
    problem::ProblemView,
    run::{Aim, Input, RunView},
    sign_in::SignInView,
    unit::UnitView,
};
use crate::{
    api::{
        Alert, AlertRule, AlertSilence, AlertStanding, Artifact, Command, CommandHost, CommandState, Config,
        CreatedToken, Host, HostPresence, Problem, Received, Status, Token, Unit,
    },
    console::web::chart::{Latest, Range},
    rules::upgrade::{Offer, Upgrade, upgrade},
};

/// A text that would be noticed if it were taken for markup.
pub(in crate::console::web) const HOSTILE: &str = "\"><script>alert('x')</script><img src=x onerror=alert(1)>&amp;";

const NOW: Millis = 1_700_000_000_000;

fn ago(seconds: i64) -> Millis {
    NOW - seconds * 1000
}

fn frame() -> Frame {
    Frame { operator: Some("admin".parse().unwrap()), token: "00ff".repeat(16), alerts: 3, now_ms: NOW }
}

/// Every page, drawn.
pub(in crate::console::web) fn pages() -> Vec<(&'static str, Markup)> {
    let mut pages = vec![
        ("sign-in", Frame::stranger(NOW).page(&SignInView { code: Some("ab12".repeat(16)), problem: None })),
        ("sign-in-hostile", Frame::stranger(NOW).page(&SignInView { code: Some(HOSTILE.to_owned()), problem: None })),
        ("sign-in-first", Frame::stranger(NOW).page(&SignInView { code: None, problem: Some(problem(HOSTILE)) })),
    ];
    let mut add = |name, view: &dyn Fn() -> Markup| pages.push((name, view()));
    add("hosts", &|| frame().page(&hosts("shop-7", 12)));
    add("hosts-empty", &|| frame().page(&hosts("", 0)));
    add("hosts-none-found", &|| {
        let shown = Shown { text: HOSTILE.to_owned(), online: Some(false), page: 3 };
        frame().page(&HostsView { shown, ..hosts("", 0) })
    });
    add("hosts-hostile", &|| frame().page(&hosts(HOSTILE, 3)));
    add("host", &|| frame().page(&host_view("shop-7.example", 2)));
    add("host-empty", &|| {
        let host = Host { presence: None, state: None, ..host("fresh", 0) };
        let empty =
            HostView { host, alerts: vec![], units: vec![], commands: vec![], latest: vec![], range: Range::Hour };
        frame().page(&empty)
    });
    add("host-hostile", &|| frame().page(&host_view(HOSTILE, 2)));
    add("unit", &|| frame().page(&unit_view("shop-7", "GET /till 200 in 3 ms\n")));
    add("unit-plain", &|| {
        frame().page(&UnitView { asked: None, log: None, latest: vec![], newer: None, ..unit_view("shop-7", "") })
    });
    add("unit-retired", &|| {
        let mut view = unit_view("shop-7", "");
        view.unit.hold = Some(Hold::new(HoldReason::Operator, ago(9)));
        view.unit.desired.run = Run::Stopped;
        frame().page(&view)
    });
    add("unit-running", &|| frame().page(&UnitView { unit: unit("shop-7", 0), ..unit_view("shop-7", "") }));
    add("unit-hostile", &|| frame().page(&unit_view(HOSTILE, HOSTILE)));
    add("commands", &|| frame().page(&CommandsView { commands: commands("shop-7") }));
    add("commands-empty", &|| frame().page(&CommandsView { commands: vec![] }));
    add("commands-hostile", &|| frame().page(&CommandsView { commands: commands(HOSTILE) }));
    add("command", &|| frame().page(&command_view("shop-7", "Linux shop-7 6.1.0-18-amd64 #1 SMP x86_64 GNU/Linux\n")));
    add("command-hostile", &|| frame().page(&command_view(HOSTILE, HOSTILE)));
    add("command-many", &|| {
        let command = command("uname", "shop", 240);
        frame().page(&CommandView { command, only: None, outputs: vec![], page: 2 })
    });
    for (page, hostname, select) in
        [("command-over", "shop", "label.site=north"), ("command-over-hostile", HOSTILE, HOSTILE)]
    {
        add(page, &|| frame().page(&command_over(hostname, select)));
    }
    add("run-picked", &|| {
        let input = Input { aim: Aim::Picked, select: "label.site=north".to_owned(), ..Input::default() };
        frame().page(&run("shop-7", input, None))
    });
    add("run", &|| frame().page(&run("shop-7", Input { command: "uname -a".to_owned(), ..Input::default() }, None)));
    add("run-refused", &|| {
        let text = || HOSTILE.to_owned();
        let input = Input {
            command: text(),
            named: text(),
            select: text(),
            user: text(),
            cwd: text(),
            timeout_s: text(),
            ..Input::default()
        };
        frame().page(&run(HOSTILE, input, Some(problem(HOSTILE))))
    });
    add("run-nowhere", &|| frame().page(&RunView { hosts: vec![], found: 0, input: Input::default(), problem: None }));
    add("alerts", &|| frame().page(&alerts("shop-7", "disk /: 93 %")));
    add("alerts-empty", &|| {
        let empty = AlertsView { raised: vec![], over: vec![], silences: vec![], ..alerts("", "") };
        frame().page(&AlertsView { rules: vec![], form: SilenceForm::default(), ..empty })
    });
    add("alerts-hostile", &|| {
        frame().page(&AlertsView { problem: Some(problem(HOSTILE)), ..alerts(HOSTILE, HOSTILE) })
    });
    add("join", &|| frame().page(&JoinView { tokens: tokens(), created: None, problem: None }));
    add("join-made", &|| {
        frame().page(&JoinView { tokens: tokens(), created: Some(created()), problem: Some(problem("x")) })
    });
    add("join-empty", &|| frame().page(&JoinView { tokens: vec![], created: None, problem: None }));
    add("artifacts", &|| frame().page(&ArtifactsView { artifacts: vec![artifact("1.0.0"), artifact("1.1.0")] }));
    add("artifacts-empty", &|| frame().page(&ArtifactsView { artifacts: vec![] }));
    add("configs", &|| frame().page(&ConfigsView { configs: vec![config(None)] }));
    add("configs-empty", &|| frame().page(&ConfigsView { configs: vec![] }));
    add("manifest", &|| frame().page(&ManifestView { sha256: Digest::of(b"manifest"), manifest: manifest() }));
    add("config", &|| frame().page(&ConfigView { config: config(Some(serde_json::json!({"greeting": HOSTILE}))) }));
    add("not-found", &|| frame().page(&ProblemView { status: 404, problem: problem("there is no such page") }));
    add("failed", &|| frame().page(&ProblemView { status: 500, problem: problem(HOSTILE) }));
    pages
}

/// Regions by name, as a page gives each alone.
pub(in crate::console::web) type Regions = Vec<(&'static str, Option<Markup>)>;

/// Pages that have regions.
pub(in crate::console::web) fn parts() -> Vec<(&'static str, Regions)> {
    fn each(view: &impl View, names: &[&'static str]) -> Regions {
        names.iter().map(|name| (*name, view.part(&frame(), name))).collect()
    }
    vec![
        ("hosts", each(&hosts("shop-7", 3), &["fleet"])),
        ("host", each(&host_view("shop-7", 2), &["facts", "alerts", "units", "latest", "recent"])),
        ("alerts", each(&alerts("shop-7", "disk"), &["raised", "over"])),
        ("unit", each(&unit_view("shop-7", "line\n"), &["asked", "state", "log", "latest"])),
        ("commands", each(&CommandsView { commands: commands("shop-7") }, &["commands"])),
        ("command", each(&command_view("shop-7", "x"), &["progress"])),
    ]
}

fn problem(message: &str) -> Problem {
    Problem { code: "sample".to_owned(), message: message.to_owned(), hint: Some(format!("try {message}")) }
}

fn name(index: usize) -> UnitName {
    ["default/hello", "shop/till", "shop/scanner_gateway-2"][index % 3].parse().unwrap()
}

/// One host; four of them differ.
pub(in crate::console::web) fn host(hostname: &str, index: usize) -> Host {
    let presence = match index % 4 {
        3 => PresenceState::Offline,
        2 => PresenceState::Stopped,
        _ => PresenceState::Online,
    };
    let facts = Facts {
        os: if hostname == HOSTILE { HOSTILE } else { "Debian GNU/Linux 12" }.to_owned(),
        kernel: "6.1.0-18-amd64".to_owned(),
        arch: "x86_64".to_owned(),
        cpus: 4,
        cpu_model: "Intel(R) Celeron(R) J4125 CPU @ 2.00GHz".to_owned(),
        memory_bytes: 8_243_429_376,
        boot_id: "boot".to_owned(),
        boot_ms: ago(380_000),
    };
    let interface = Interface {
        mac: "02:00:00:00:00:01".to_owned(),
        addresses: vec!["192.0.2.7/24".to_owned(), "2001:db8::7/64".to_owned()],
    };
    let summary = |phase, hold| UnitSummary { generation: 3, run: Run::Running, phase, hold };
    let hold = Hold::new(HoldReason::Broken, ago(700));
    let units =
        BTreeMap::from([(name(0), summary(Phase::Running, None)), (name(1), summary(Phase::Failed, Some(hold)))]);
    let state = HostState {
        hostname: hostname.to_owned(),
        agent_version: "0.1.0".to_owned(),
        facts,
        interfaces: BTreeMap::from([("eth0".to_owned(), interface)]),
        labels: BTreeMap::from([("site".parse().unwrap(), hostname.to_owned())]),
        realms: vec!["default".parse().unwrap(), "shop".parse().unwrap()],
        units: if index % 4 == 1 { units } else { BTreeMap::new() },
        alerts: BTreeMap::new(),
        containers: BTreeMap::new(),
        alert_rules: None,
    };
    Host {
        id: HostId::random(),
        hostname: hostname.to_owned(),
        presence: Some(HostPresence {
            state: presence,
            epoch: 1,
            since_ms: ago(4_000),
            agent_version: "0.1.0".to_owned(),
        }),
        state: Some(Received { at_ms: ago(3), value: state }),
        joined_ms: ago(90_000),
        certificate_expires_ms: ago(-2_500_000),
    }
}

fn hosts(hostname: &str, count: usize) -> HostsView {
    let hosts: Vec<_> = (0..count).map(|index| host(&format!("{hostname}{index}"), index)).collect();
    let troubled = if count == 0 { vec![] } else { vec![unit(hostname, 1)] };
    HostsView {
        status: Status {
            version: "0.1.0".to_owned(),
            broker_connected: count != 0,
            hosts: count as u64 * 100,
            hosts_online: count as u64 * 60,
            broker_url: "mqtts://192.0.2.1:8883".to_owned(),
            console_url: "https://192.0.2.1:7443".to_owned(),
        },
        shown: Shown { page: 1, ..Shown::default() },
        hosts,
        found: count as u64 * 100,
        troubled_count: troubled.len() as u64 * 3,
        troubled,
    }
}

fn config_ref(id: &str) -> ConfigRef {
    ConfigRef { id: id.parse().unwrap(), version: "7".parse().unwrap(), sha256: Digest::of(b"{}") }
}

/// One unit; an odd one is in trouble.
pub(in crate::console::web) fn unit(hostname: &str, index: usize) -> Unit {
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
        args: vec!["--config".to_owned(), text("{config}")],
        env: BTreeMap::from([(text("LOG_LEVEL"), "secret".to_owned())]),
        user: Some(text("till")),
        labels: [("tier".parse().unwrap(), "gold".parse().unwrap())].into(),
        channel: Channel::Lines,
        probes: Probes { live: Some(Probe::new(Check::Exec(vec![text("check"), text("-q")]))), ..Probes::default() },
        ..YunoSpec::new(artifact)
    };
    Unit {
        host: HostId::random(),
        hostname: hostname.to_owned(),
        unit: name(index),
        desired: Desired {
            generation: 4,
            revision: Digest::of(b"new"),
            spec: Spec::Yuno(spec),
            run: Run::Running,
            frozen: !failed,
        },
        observed: Observed {
            generation: if failed { 3 } else { 4 },
            revision: Some(Digest::of(if failed { b"old" } else { b"new" })),
            phase: if failed { Phase::Backoff } else { Phase::Running },
            since_ms: ago(312),
            pid: (!failed).then_some(4711),
            frozen: !failed,
            exit: failed.then_some(Exit::Signal(11)),
            attempts: u32::from(failed) * 4,
            retry_ms: failed.then_some(ago(-42)),
            progress: failed.then_some(Progress { done_bytes: 410_000_000, total_bytes: 1_000_000_000 }),
            can: if failed { Vec::new() } else { vec![Ability::Play, Ability::Stats] },
            unready: (!failed).then(|| text("ready probe: http://127.0.0.1:8080/ready: status 503")),
            error: failed.then(|| text("it ended within a second, four times in a row")),
            verified: Some(Digest::of(b"old")),
            on_trial: !failed,
            rolled_back: failed.then(|| RolledBack {
                generation: 4,
                revision: Digest::of(b"new"),
                to: Digest::of(b"old"),
                error: text("ended by itself: exit code 2"),
                at_ms: ago(300),
                last_lines: Some(text("no such table: till")),
            }),
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
        pins: muster_topics::snapshot::Pins::default(),
        stats: (!failed).then(|| {
            ToldStats::new(ago(3), [(text("requests"), 17.into()), ("lane".to_owned(), text("north").into())].into())
        }),
        at_ms: ago(5),
    }
}

fn latest(label: &str) -> Vec<Latest> {
    let one = |value: &str, share| Latest { label: label.to_owned(), value: value.to_owned(), share, at_ms: ago(12) };
    vec![one("3.1 %", Some(0.031)), one("1.2 GiB of 7.7 GiB", Some(0.96)), one("14 KiB/s", None)]
}

fn host_view(hostname: &str, units: usize) -> HostView {
    HostView {
        host: host(hostname, 1),
        alerts: vec![alert(hostname, hostname, AlertStanding::Raised, 1)],
        units: (0..units).map(|index| unit(hostname, index)).collect(),
        commands: commands(hostname),
        latest: latest(if hostname == HOSTILE { HOSTILE } else { "Memory" }),
        range: Range::SixHours,
    }
}

fn unit_view(hostname: &str, log: &str) -> UnitView {
    let ordered = Verb::UnitLogs { unit: name(1), lines: 200 };
    let asked = Command { verb: ordered, ..command("logs", hostname, 1) };
    let log = Text { tail: log.repeat(30), whole_bytes: log.len() * 30 };
    UnitView {
        unit: unit(hostname, 1),
        asked: Some(asked),
        log: Some(log),
        latest: latest("Memory"),
        range: Range::Hour,
        newer: newer(hostname),
    }
}

/// What a unit would get: a later version of all that it has.
fn newer(hostname: &str) -> Option<Upgrade> {
    let unit = unit(hostname, 1);
    let other = Digest::of(b"newer");
    let artifact = Artifact { sha256: other.clone(), ..artifact("2.5.0") };
    let config = Config { sha256: other, version: "8".parse().unwrap(), id: "shop".parse().unwrap(), ..config(None) };
    upgrade(&unit.unit, &unit.desired, &Offer::newest(vec![artifact], vec![config]))
}

fn outcome(status: Ended, stdout: &str) -> Outcome {
    let stdout = Output { sent_bytes: 0, rest: Some(Data::Text(stdout.to_owned())), dropped_bytes: 4096 };
    Outcome { status, started_ms: Some(ago(9)), finished_ms: ago(7), stdout, stderr: Output::default() }
}

fn line(hostname: &str, index: usize) -> CommandHost {
    let done = |status| (CommandState::Done, Some(Received { at_ms: ago(6), value: outcome(status, hostname) }));
    let (state, outcome) = match index % 8 {
        0 => done(Ended::Exited { exit: Exit::Code(0) }),
        1 => done(Ended::Exited { exit: Exit::Code(3) }),
        2 => done(Ended::TimedOut),
        3 => done(Ended::Refused { code: RefusalCode::Denied, message: hostname.to_owned() }),
        4 => (CommandState::Waiting, None),
        5 => (CommandState::Running, None),
        6 => (CommandState::Missing, None),
        _ => done(Ended::Lost),
    };
    CommandHost { host: HostId::random(), hostname: format!("{hostname}{index}"), state, outcome }
}

fn command(program: &str, hostname: &str, hosts: usize) -> Command {
    let text = |usual: &str| if hostname == HOSTILE { HOSTILE.to_owned() } else { usual.to_owned() };
    let exec = Exec {
        cwd: Some(text("/srv")),
        user: Some(text("nobody")),
        ..Exec::new(vec![program.to_owned(), text("two words")], 60_000)
    };
    Command {
        id: CommandId::new(),
        operator: "admin".parse().unwrap(),
        issued_ms: ago(10),
        expires_ms: ago(-590),
        verb: Verb::Exec(exec),
        target: None,
        hosts: (0..hosts).map(|index| line(hostname, index)).collect(),
    }
}

fn commands(hostname: &str) -> Vec<Command> {
    let restart = Command { verb: Verb::UnitRestart { unit: name(1) }, ..command("", hostname, 1) };
    vec![command("uname", hostname, 1), command("df", hostname, 24), restart, command("true", hostname, 0)]
}

fn command_view(hostname: &str, output: &str) -> CommandView {
    let command = command("uname", hostname, 6);
    let text = |text: &str| Text { tail: text.to_owned(), whole_bytes: text.len() };
    let outputs = command.hosts.iter().map(|line| (line.host, text(output), text(""))).collect();
    CommandView { command, only: None, outputs, page: 1 }
}

/// One for hosts that an expression picked, of which none is waited for any more, nor meant any more.
fn command_over(hostname: &str, text: &str) -> CommandView {
    let select = format!("label.site={text:?}").parse().unwrap_or_else(|_| "label.site".parse().unwrap());
    let mut command = Command { target: Some(Target::Select(select)), ..command("uname", hostname, 24) };
    command.hosts.retain(|line| !matches!(line.state, CommandState::Waiting | CommandState::Running));
    let refused = Ended::Refused { code: RefusalCode::NotSelected, message: hostname.to_owned() };
    command.hosts[0].outcome = Some(Received { at_ms: ago(6), value: outcome(refused, "") });
    CommandView { command, only: None, outputs: vec![], page: 1 }
}

fn run(hostname: &str, mut input: Input, problem: Option<Problem>) -> RunView {
    let hosts: Vec<_> = (0..6).map(|index| host(&format!("{hostname}{index}"), index)).collect();
    input.ticked = vec![hosts[1].id.to_string()];
    RunView { hosts, found: 60, input, problem }
}

fn alert(hostname: &str, message: &str, standing: AlertStanding, number: i64) -> Alert {
    let (unit, mount) = if number % 2 == 0 { (None, Some("/".to_owned())) } else { (Some(name(1)), None) };
    let is_raised = standing == AlertStanding::Raised;
    Alert {
        host: HostId::random(),
        hostname: hostname.to_owned(),
        standing,
        ended_ms: (!is_raised).then(|| ago(90 * number)),
        received_ms: ago(500 * number),
        silence: None,
        alert: muster_topics::alert::Alert {
            v: muster_topics::V1,
            epoch: 1,
            seq: 1,
            id: "disk-1".parse().unwrap(),
            rule: "disk".parse().unwrap(),
            severity: if number % 3 == 0 { Severity::Warning } else { Severity::Critical },
            unit,
            mount,
            metric: Metric::DiskUsed,
            value: 0.93,
            threshold: 0.9,
            clear: 0.85,
            since_ms: ago(600 * number),
            at_ms: ago(5 * number),
            state: if is_raised { AlertState::Raised } else { AlertState::Cleared },
            message: message.to_owned(),
        },
    }
}

fn alerts(hostname: &str, message: &str) -> AlertsView {
    let one = |standing, number| alert(hostname, message, standing, number);
    let raised = one(AlertStanding::Raised, 2);
    let silence = AlertSilence {
        id: "0a1b2c3d4e".parse().unwrap(),
        host: Some(raised.host),
        rule: Some("disk".parse().unwrap()),
        reason: format!("moving to a larger disk {message}"),
        operator: "admin".parse().unwrap(),
        created_ms: ago(700),
        until_ms: ago(-7_000),
    };
    let rule = |threshold, disabled| Rule {
        metric: Metric::DiskUsed,
        of: Some(message.to_owned()),
        threshold,
        clear: Some(0.7),
        for_ms: 600_000,
        severity: Severity::Critical,
        disabled,
    };
    let set = |host, rule| AlertRule { name: "disk".parse().unwrap(), host, rule };
    AlertsView {
        rules: vec![set(None, rule(0.8, false)), set(Some(raised.host), rule(0.8, true))],
        silences: vec![silence.clone(), AlertSilence { host: None, rule: None, ..silence.clone() }],
        raised: vec![one(AlertStanding::Raised, 1), Alert { silence: Some(silence), ..raised }],
        over: vec![one(AlertStanding::Cleared, 3), one(AlertStanding::Gone, 4)],
        form: SilenceForm { host: hostname.to_owned(), rule: hostname.to_owned(), reason: message.to_owned() },
        problem: None,
    }
}

fn tokens() -> Vec<Token> {
    let token = |id: &str, expires_ms, used| Token {
        id: id.parse().unwrap(),
        operator: "admin".parse().unwrap(),
        created_ms: ago(1_000),
        expires_ms,
        used,
    };
    vec![
        token("0a1b2c3d4e", ago(-2_600), None),
        token("1a1b2c3d4e", ago(-600), Some((ago(500), HostId::random()))),
        token("2a1b2c3d4e", ago(60), None),
    ]
}

fn created() -> CreatedToken {
    CreatedToken {
        id: "0a1b2c3d4e".parse().unwrap(),
        token: format!("muster1.{}", "eyJ1cmwiOiJodHRwczovLzE5Mi4w".repeat(7)),
        expires_ms: ago(-3_600),
    }
}

fn artifact(version: &str) -> Artifact {
    Artifact {
        sha256: Digest::of(version.as_bytes()),
        size_bytes: 4_812_344,
        role: "till".parse().unwrap(),
        version: version.parse().unwrap(),
        manifest: Some(Digest::of(b"manifest")),
        added_ms: ago(86_000),
    }
}

fn manifest() -> Manifest {
    serde_json::from_value(serde_json::json!({
        "role": "till", "version": "7", "description": HOSTILE, "channel": "notify", "args": ["-c", HOSTILE],
        "provides": {"web": {"port": 8080, "protocol": HOSTILE}, "admin": {}},
        "requires": {"db": {}, "cache": {"optional": true}},
        "config_schema": {"type": "object", "required": [HOSTILE]},
    }))
    .unwrap()
}

fn config(content: Option<serde_json::Value>) -> Config {
    Config {
        id: "till.main".parse().unwrap(),
        version: "7".parse().unwrap(),
        sha256: Digest::of(b"{}"),
        added_ms: ago(5_000),
        content,
    }
}
