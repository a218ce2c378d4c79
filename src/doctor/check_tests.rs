use std::path::PathBuf;

use super::*;
use crate::{facts::HostFacts, setup::ServerSetup};

const NOW_MS: Millis = 1_700_000_000_000;

/// An installation on which all is well.
fn well() -> PartFacts {
    PartFacts { start: "systemctl start x".to_owned(), process: Some(ProcessState::Runs(7)), ..PartFacts::default() }
}

fn facts(part: Part, found: PartFacts) -> Facts {
    let host = HostFacts { cgroups: Cgroups::V1, time_zone: TimeZone::Unset };
    Facts { now_ms: NOW_MS, version: "1".to_owned(), host, parts: vec![(part, found)] }
}

/// What is found by one check of a part, and that whatever is not fine has a remedy.
#[track_caller]
fn check(part: Part, found: PartFacts, name: &str, verdict: Verdict, words: &str) {
    let findings = examine(&facts(part, found));
    for one in &findings {
        assert_eq!(one.remedy.is_some(), one.verdict > Verdict::Ok, "{one:?}");
    }
    let about: Vec<&Finding> = findings.iter().filter(|one| one.check == name).collect();
    let told = |one: &&Finding| format!("{} {}", one.finding, one.remedy.clone().unwrap_or_default());
    let is_there = about.iter().any(|one| one.verdict == verdict && told(one).contains(words));
    assert!(is_there, "{name}: {verdict:?} with {words:?} was expected: {about:#?}");
}

fn certificate_of(begins_ms: Millis, ends_ms: Millis) -> CertificateFacts {
    let content = CertificateContent {
        common_name: "anna".to_owned(),
        names: vec!["a.example".to_owned()],
        begins_ms: NOW_MS + begins_ms,
        ends_ms: NOW_MS + ends_ms,
    };
    CertificateFacts {
        what: "its own".to_owned(),
        place: "file".to_owned(),
        remedy: "make a new one".to_owned(),
        content: Ok(content),
    }
}

#[test]
fn certificates_are_judged_by_time() {
    for (begins_ms, ends_ms, verdict, words) in [
        (-DAY_MS, 29 * DAY_MS, Verdict::Ok, "29 d left"),
        (-29 * DAY_MS, DAY_MS, Verdict::Warning, "expires in 24 h"),
        (-30 * DAY_MS, -3 * DAY_MS, Verdict::Problem, "expired 3 d ago make a new one"),
        (DAY_MS, 30 * DAY_MS, Verdict::Problem, "not valid before 24 h from now"),
        // A short-lived one is not renewed a week before.
        (-DAY_MS, DAY_MS, Verdict::Ok, "24 h left"),
    ] {
        let found = PartFacts { certificates: vec![certificate_of(begins_ms, ends_ms)], ..well() };
        check(Part::Agent, found, "certificate", verdict, words);
    }
    let unreadable = CertificateFacts { content: Err("no PEM".to_owned()), ..certificate_of(0, 1) };
    let found = PartFacts { certificates: vec![unreadable], ..well() };
    check(Part::Broker, found, "certificate", Verdict::Problem, "no PEM");
}

#[test]
fn revocation_list_is_judged_by_when_it_has_to_be_replaced() {
    let list = |due: Result<Vec<Millis>, String>| PartFacts { revoked: Some(("revoked.pem".into(), due)), ..well() };
    for (due_ms, verdict, words) in [
        (vec![6 * DAY_MS, 7 * DAY_MS], Verdict::Ok, "revoked.pem, 6 d left"),
        (vec![-3 * DAY_MS, 7 * DAY_MS], Verdict::Warning, "out of date for 3 d"),
        (Vec::new(), Verdict::Ok, "revoked.pem"),
    ] {
        let due = due_ms.into_iter().map(|due_ms| NOW_MS + due_ms).collect();
        check(Part::Broker, list(Ok(due)), "revocation list", verdict, words);
    }
    check(Part::Broker, list(Err("no PEM".to_owned())), "revocation list", Verdict::Problem, "no PEM");
}

fn server(reach: Reach) -> PartFacts {
    let setup = ServerSetup {
        what: "console",
        url: "https://c:7443".to_owned(),
        authority: None,
        remedy: "open the firewall".to_owned(),
    };
    PartFacts { servers: vec![ServerFacts { setup, reach }], ..well() }
}

#[test]
fn servers_are_judged_by_how_far_a_connection_comes() {
    for (reach, words) in [
        (Reach::Unresolved("unknown".to_owned()), "DNS"),
        (Reach::Refused("refused".to_owned()), "open the firewall"),
        (Reach::NoTls("no".to_owned()), "another program"),
        (Reach::Invalid, "is not a valid address"),
    ] {
        check(Part::Agent, server(reach), "console", Verdict::Problem, words);
    }
    let answer = ServerAnswer { ready: Some((503, "not ready: the store".to_owned())), ..ServerAnswer::default() };
    check(Part::Agent, server(Reach::Answers(answer)), "console ready", Verdict::Problem, "the store");
}

#[test]
fn clocks_are_compared_with_the_consoles() {
    for (ahead_ms, verdict, words) in [
        (900, Verdict::Ok, "the same as the console's"),
        (-4_000, Verdict::Ok, ""),
        (20_000, Verdict::Warning, "20 s behind"),
        (-20_000, Verdict::Warning, "20 s ahead of"),
        (3 * DAY_MS, Verdict::Problem, "3 d behind the console's"),
    ] {
        let answer = ServerAnswer { ahead_ms: Some(ahead_ms), ..ServerAnswer::default() };
        check(Part::Agent, server(Reach::Answers(answer)), "clock", verdict, words);
    }
}

#[test]
fn certificates_of_servers_are_judged_after_the_clock() {
    let answer = |certificate: CertificateFacts, refusal: Option<&str>, ahead_ms| {
        let certificate = Some((certificate, refusal.map(str::to_owned)));
        server(Reach::Answers(ServerAnswer { certificate, ahead_ms, ready: None }))
    };
    let good = certificate_of(-DAY_MS, 29 * DAY_MS);
    let name = "server certificate";
    check(Part::Agent, answer(good.clone(), None, Some(0)), name, Verdict::Ok, "29 d left");
    let other = answer(good, Some("not valid for name"), Some(0));
    check(Part::Agent, other, name, Verdict::Problem, "a.example");
    let expired = certificate_of(-30 * DAY_MS, -DAY_MS);
    let is_clock = answer(expired.clone(), Some("expired"), Some(-40 * DAY_MS));
    check(Part::Agent, is_clock, name, Verdict::Problem, "clock is wrong");
    check(Part::Agent, answer(expired, Some("expired"), Some(0)), name, Verdict::Problem, "make a new one");
}

#[test]
fn disks_are_judged_by_bytes_inodes_and_mount() {
    let disk = |free_bytes, free_inodes, is_read_only| {
        let disk = DiskFacts {
            folder: PathBuf::from("/data"),
            total_bytes: 1 << 40,
            free_bytes,
            total_inodes: 1_000,
            free_inodes,
            is_read_only,
            error: None,
        };
        PartFacts { disks: vec![disk], ..well() }
    };
    check(Part::Agent, disk(1 << 39, 900, false), "disk", Verdict::Ok, "512");
    check(Part::Agent, disk(1 << 30, 900, false), "disk", Verdict::Warning, "du -xh /data");
    check(Part::Agent, disk(4_096, 900, false), "disk", Verdict::Problem, "free space");
    check(Part::Agent, disk(1 << 39, 0, false), "inodes", Verdict::Problem, "remove small files");
    check(Part::Agent, disk(1 << 39, 30, false), "inodes", Verdict::Warning, "30 of 1000");
    check(Part::Agent, disk(1 << 39, 900, true), "disk", Verdict::Problem, "dmesg");
}

#[test]
fn ports_are_judged_by_whether_the_role_runs() {
    let port = |process, state| {
        let setup = ListenerSetup { key: "web_listen", address: "127.0.0.1:7080".parse().unwrap() };
        PartFacts { listeners: vec![(setup, state)], process: Some(process), ..well() }
    };
    let unusable = || ListenerState::Unusable("no such address".to_owned());
    for (process, state, verdict, words) in [
        (ProcessState::Runs(7), ListenerState::Answers, Verdict::Ok, "answers"),
        (ProcessState::Runs(7), ListenerState::Free, Verdict::Problem, "nothing answers"),
        (ProcessState::Stopped, ListenerState::Free, Verdict::Ok, "is free"),
        (ProcessState::Stopped, ListenerState::Answers, Verdict::Problem, "another program uses it"),
        (ProcessState::Stopped, unusable(), Verdict::Problem, "no such address"),
    ] {
        check(Part::Console, port(process, state), "port", verdict, words);
    }
}

#[test]
fn agents_are_judged_by_what_they_say() {
    let agent = |agent| PartFacts { agent: Some(agent), ..well() };
    let says = |version: &str, is_connected| {
        Ok(AgentFacts { version: version.to_owned(), is_connected, later_protocol: None })
    };
    let later = AgentFacts { version: "1".to_owned(), is_connected: true, later_protocol: Some(2) };
    check(Part::Agent, agent(Ok(later)), "console's protocol", Verdict::Problem, "upgrade the agent");
    check(Part::Agent, agent(says("1", true)), "connection", Verdict::Ok, "");
    check(Part::Agent, agent(says("1", false)), "connection", Verdict::Problem, "journalctl");
    check(Part::Agent, agent(says("0", true)), "running version", Verdict::Warning, "restart");
    check(Part::Agent, agent(Err("refused".to_owned())), "agent's answer", Verdict::Problem, "refused");
    let stopped = PartFacts { process: Some(ProcessState::Stopped), ..well() };
    check(Part::Agent, stopped.clone(), "process", Verdict::Warning, "systemctl start x");
    let missing = Some(Diagnostic::new("it has not joined").with_hint("a token"));
    check(Part::Agent, PartFacts { missing, ..stopped }, "setup", Verdict::Problem, "a token");
}

#[test]
fn permissions_of_the_broker_are_judged() {
    let broker = |refused: &[&str], reads_others, publishes| {
        let refused = refused.iter().map(|topic| (*topic).to_owned()).collect();
        PartFacts { broker: Some(BrokerFacts::Connected { refused, reads_others, publishes }), ..well() }
    };
    let name = "broker rules";
    check(Part::Agent, broker(&[], false, Some(true)), name, Verdict::Ok, "publish");
    check(Part::Agent, broker(&["muster/s/00/cmd/all"], false, None), name, Verdict::Problem, "muster/s/00/cmd/all");
    check(Part::Agent, broker(&[], false, Some(false)), name, Verdict::Problem, "broker render");
    check(Part::Agent, broker(&[], true, None), name, Verdict::Warning, "broker render");
    let shut = PartFacts { broker: Some(BrokerFacts::Refused("revoked".to_owned())), ..well() };
    check(Part::Agent, shut.clone(), name, Verdict::Problem, "--replace");
    // Nothing can be said of the rules of a broker that is not there.
    let mut servers = server(Reach::Refused("refused".to_owned())).servers;
    servers[0].setup.what = "broker";
    check(Part::Agent, PartFacts { servers, ..shut }, name, Verdict::NotApplicable, "cannot be reached");
}

#[test]
fn the_rest_is_judged() {
    let path = PathBuf::from("/x");
    let store = |state| PartFacts { stores: vec![(path.clone(), state)], ..well() };
    check(Part::Agent, store(StoreState::Whole), "store", Verdict::Ok, "whole");
    check(
        Part::Agent,
        store(StoreState::Damaged("page 7".to_owned())),
        "store",
        Verdict::Problem,
        "sets the store aside",
    );
    check(Part::Console, store(StoreState::Damaged("page 7".to_owned())), "store", Verdict::Problem, "from a backup");
    check(Part::Agent, store(StoreState::Missing), "store", Verdict::NotApplicable, "");
    check(Part::Agent, store(StoreState::Unchecked("no".to_owned())), "store", Verdict::Warning, "as root");
    let private = |mode| PartFacts { private: vec![(path.clone(), mode)], ..well() };
    check(Part::Agent, private(0o100_644), "permissions", Verdict::Problem, "chmod 600 /x");
    let podman = |found| PartFacts { podman: Some(found), ..well() };
    check(Part::Agent, podman(PodmanFacts::Answers), "podman", Verdict::Ok, "");
    check(Part::Agent, podman(PodmanFacts::Missing(path.clone())), "podman", Verdict::NotApplicable, "/x");
    check(Part::Agent, podman(PodmanFacts::Silent(path, "no".to_owned())), "podman", Verdict::Problem, "podman.socket");
    let few = PartFacts { open_files: Some((1_024, 10_000, "a broker")), ..well() };
    check(Part::Broker, few, "open files", Verdict::Warning, "LimitNOFILE");
}

#[test]
fn empty_host_has_no_problems() {
    let findings = examine(&Facts::default());
    assert_eq!(worst(&findings), Verdict::Ok);
    assert!(findings.iter().any(|one| one.finding.contains("nothing is installed here")));
}

#[test]
fn kernel_and_zone_are_judged() {
    let verdict = |host: HostFacts, name: &str| {
        let findings = examine(&Facts { host, ..facts(Part::Agent, well()) });
        findings.into_iter().find(|one| one.check == name).unwrap().verdict
    };
    let all = CONTROLLERS.map(str::to_owned).to_vec();
    for (cgroups, wanted) in [
        (Cgroups::V2(all), Verdict::Ok),
        (Cgroups::V2(vec!["cpu".to_owned()]), Verdict::Warning),
        (Cgroups::V1, Verdict::Ok),
        (Cgroups::Missing, Verdict::Warning),
    ] {
        assert_eq!(verdict(HostFacts { cgroups, time_zone: TimeZone::Unset }, "cgroups"), wanted);
    }
    let zone = TimeZone::Unknown("Mars/Base".to_owned());
    assert_eq!(verdict(HostFacts { cgroups: Cgroups::V1, time_zone: zone }, "time zone"), Verdict::Warning);
}

#[test]
fn alerts_of_a_console_are_told_once_for_each_rule() {
    let alert = |rule: &str, hostname: Option<&str>| ConsoleAlertFacts {
        rule: rule.to_owned(),
        hostname: hostname.map(str::to_owned),
        told: Diagnostic::new("it has too many").with_hint("ask it for fewer"),
    };
    let of = |alerts| PartFacts { consoles: vec![ConsoleFacts { name: "main".to_owned(), alerts }], ..well() };
    check(Part::Cli, of(Ok(Vec::new())), "console alerts", Verdict::Ok, "main has no alerts of its own");
    check(Part::Cli, of(Err("it is away".to_owned())), "console alerts", Verdict::NotApplicable, "it is away");
    let one = of(Ok(vec![alert("console-clock", None)]));
    check(Part::Cli, one, "console alerts", Verdict::Warning, "console-clock: it has too many ask it for fewer");
    let many = of(Ok(["a", "b", "c"].map(|host| alert("console-units-share", Some(host))).to_vec()));
    let findings = examine(&facts(Part::Cli, many.clone()));
    assert_eq!(findings.iter().filter(|one| one.check == "console alerts").count(), 1);
    check(Part::Cli, many, "console alerts", Verdict::Warning, "console-units-share, about a and 2 others");
}
