//! One probe of a unit: its validation, its address, its schedule, and how its results count.
//!
//! A [`ProbeCounter`] takes each result and says whether the probe's state has changed. The planner decides what that means for the unit
//! ([`super::plan`]).

use core::net::IpAddr;
use std::time::Duration;

use muster_topics::{
    container::{ContainerSpec, Network},
    diagnostic::Diagnostic,
    endpoint::{Protocol, Provided},
    name::Name,
    probe::{self, ARGV_MAX, Check, Http, PATH_MAX_BYTES, Port, Probe, Tcp, WORD_MAX_BYTES, Which},
    unit::Spec,
};

use super::port_lease;

/// The shortest interval: each attempt may start a process, and no unit needs faster detection.
pub const INTERVAL_MIN_MS: u64 = 100;

/// The longest: an hour. A longer one is a mistake in the unit of time.
pub const INTERVAL_MAX_MS: u64 = 3_600_000;

/// The shortest timeout: with less, a host that is busy for a moment looks like one that hangs.
pub const TIMEOUT_MIN_MS: u64 = 10;

/// The longest: five minutes, for a check that has to do work. A longer one is a task of its own.
pub const TIMEOUT_MAX_MS: u64 = 300_000;

/// The largest threshold of consecutive results: a thousand, at an interval of ten seconds, take three hours.
pub const COUNT_MAX: u32 = 1_000;

/// The first delay while a unit comes up, and (after doublings) the longest. Many programs are up within a tenth of a
/// second, and one connection a second does no harm.
const EAGER_FIRST_MS: u64 = 100;
const EAGER_MAX_MS: u64 = 1_000;

/// The result of a probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProbeVerdict {
    /// It passed.
    Passed,
    /// It has not passed yet, for a unit that is coming up; with its last error.
    Pending(Diagnostic),
    /// It failed, with its last error.
    Failed(Diagnostic),
}

/// Counts the results of one probe.
#[derive(Clone, Debug, PartialEq)]
pub struct ProbeCounter {
    interval_ms: u64,
    failures: u32,
    successes: u32,
    /// Whether the unit is coming up and waits for this probe. Then the probe does not fail: a deadline applies.
    coming: bool,
    /// The number of consecutive equal results.
    good: u32,
    bad: u32,
    told: Option<ProbeVerdict>,
    wait_ms: u64,
}

impl ProbeCounter {
    /// Creates a counter for a unit that is `coming` up and waits for this probe, or is up. `random`, from 0 to 1,
    /// spreads the first attempts of many units.
    #[must_use]
    pub fn new(probe: &Probe, coming: bool, random: f64) -> Self {
        let spread = Duration::from_millis(probe.interval_ms.min(INTERVAL_MAX_MS)).mul_f64(random.clamp(0.0, 1.0));
        Self {
            interval_ms: probe.interval_ms,
            failures: probe.failures.max(1),
            successes: probe.successes.max(1),
            coming,
            good: 0,
            bad: 0,
            told: None,
            wait_ms: if coming { 0 } else { u64::try_from(spread.as_millis()).unwrap_or(INTERVAL_MAX_MS) },
        }
    }

    /// The delay before the next attempt.
    #[must_use]
    pub fn wait_ms(&self) -> u64 {
        self.wait_ms
    }

    /// Handles a result; returns the verdict if it changed.
    pub fn answered(&mut self, answer: Result<(), Diagnostic>) -> Option<ProbeVerdict> {
        let verdict = match answer {
            Ok(()) => {
                (self.good, self.bad) = (self.good.saturating_add(1), 0);
                (self.good >= self.successes).then_some(ProbeVerdict::Passed)
            }
            Err(why) => {
                (self.good, self.bad) = (0, self.bad.saturating_add(1));
                match self.coming {
                    true => Some(ProbeVerdict::Pending(why)),
                    false => (self.bad >= self.failures).then_some(ProbeVerdict::Failed(why)),
                }
            }
        };
        self.coming &= verdict != Some(ProbeVerdict::Passed);
        self.wait_ms = self.next_wait_ms();
        let is_news = match (&self.told, &verdict) {
            // A probe that continues to fail is reported once.
            (Some(ProbeVerdict::Failed(_)), Some(ProbeVerdict::Failed(_))) | (_, None) => false,
            (told, verdict) => told != verdict,
        };
        if is_news {
            self.told.clone_from(&verdict);
        }
        verdict.filter(|_| is_news)
    }

    fn next_wait_ms(&self) -> u64 {
        if !self.coming {
            return self.interval_ms;
        }
        let eager_ms = match self.wait_ms {
            0 => EAGER_FIRST_MS,
            ms => ms.saturating_mul(2).min(EAGER_MAX_MS),
        };
        eager_ms.min(self.interval_ms)
    }
}

/// Returns everything that is wrong with a unit's probes.
#[must_use]
pub fn check(spec: &Spec) -> Vec<Diagnostic> {
    let mut wrong = Vec::new();
    for (which, probe) in spec.probes().iter() {
        let mut complain =
            |what: Diagnostic| wrong.push(Diagnostic { cause: format!("probes.{which}.{}", what.cause), ..what });
        check_numbers(which, probe, &mut complain);
        match &probe.check {
            Check::Exec(argv) => check_argv(argv, spec, &mut complain),
            Check::Tcp(Tcp { port, address }) => check_port("tcp", (port, *address), spec, &mut complain),
            Check::Http(Http { port, address, path, status }) => {
                check_port("http", (port, *address), spec, &mut complain);
                check_path(path, &mut complain);
                if let Some(status) = status.filter(|status| !(200..=599).contains(status)) {
                    complain(format!("http.status is {status}; it must be from 200 to 599").into());
                }
            }
        }
    }
    wrong
}

fn check_numbers(which: Which, probe: &Probe, complain: &mut impl FnMut(Diagnostic)) {
    let Probe { interval_ms, timeout_ms, failures, successes, .. } = *probe;
    let (failures_min, failures_max) = match which {
        // A unit that does not come up is stopped by its deadline alone.
        Which::Start => (probe::failures(), probe::failures()),
        Which::Ready | Which::Live => (1, COUNT_MAX),
    };
    // A unit that has to be stopped is not saved by a later success.
    let successes_max = if which == Which::Live { 1 } else { COUNT_MAX };
    for (what, value, min, max) in [
        ("interval_ms", interval_ms, INTERVAL_MIN_MS, INTERVAL_MAX_MS),
        ("timeout_ms", timeout_ms, TIMEOUT_MIN_MS, TIMEOUT_MAX_MS),
        ("failures", failures.into(), failures_min.into(), failures_max.into()),
        ("successes", successes.into(), 1, successes_max.into()),
    ] {
        if (min..=max).contains(&value) {
            continue;
        }
        complain(match (which, what) {
            (Which::Start, "failures") => Diagnostic::new(format_args!(
                "{what} is {value}, but the probe is repeated until it succeeds or `start_timeout_ms` has passed"
            ))
            .with_hint("leave it out"),
            (Which::Live, "successes") => {
                Diagnostic::new(format_args!("{what} is {value}, but this probe needs one success only"))
                    .with_hint("leave it out")
            }
            _ => format!("{what} is {value}; it must be from {min} to {max}").into(),
        });
    }
}

fn check_argv(argv: &[String], spec: &Spec, complain: &mut impl FnMut(Diagnostic)) {
    if argv.first().is_none_or(String::is_empty) {
        complain(Diagnostic::new("exec has no program").with_hint("[\"/usr/bin/test\", \"-e\", \"/run/ready\"]"));
    }
    if argv.len() > ARGV_MAX || argv.iter().any(|word| word.len() > WORD_MAX_BYTES || word.contains('\0')) {
        complain(
            format!("exec has more than {ARGV_MAX} words, or one of over {WORD_MAX_BYTES} bytes, or with a NUL").into(),
        );
    }
    for (word, wrong) in port_lease::wrong_placeholders(argv, spec) {
        complain(Diagnostic { cause: format!("exec: word {word} has {}", wrong.cause), ..wrong });
    }
}

/// Returns the unit's endpoint that a TCP probe connects to; `None` if the port is just a number on the host.
///
/// A bare port number of a container with its own network is a port inside; from the host it is reached through the
/// endpoint.
#[must_use]
pub fn endpoint<'a>(spec: &'a Spec, port: &'a Port, address: Option<IpAddr>) -> Option<&'a Name> {
    let number = match port {
        Port::Endpoint(name) => return Some(name),
        Port::Number(number) => *number,
    };
    let container = own_network(spec).filter(|_| address.is_none())?;
    let leads_there = |provided: &&Provided| {
        let inside = container.ports.get(&provided.name).copied().or(provided.port);
        provided.protocol == Protocol::Tcp && inside == Some(number)
    };
    container.program.provides.iter().find(leads_there).map(|provided| &provided.name)
}

/// The container of a spec, if it has a network of its own.
fn own_network(spec: &Spec) -> Option<&ContainerSpec> {
    match spec {
        Spec::Container(container) => {
            Some(container).filter(|it| it.network == Network::Bridge && it.image.existing().is_none())
        }
        Spec::Yuno(_) | Spec::Files(_) | Spec::Packages(_) => None,
    }
}

fn check_port(
    kind: &str,
    (port, address): (&Port, Option<IpAddr>),
    spec: &Spec,
    complain: &mut impl FnMut(Diagnostic),
) {
    if matches!(spec, Spec::Container(container) if container.network == Network::None) {
        return complain(
            Diagnostic::new(format_args!("{kind}: its network is none, so it cannot be connected to"))
                .with_hint("use exec, which runs inside"),
        );
    }
    match port {
        Port::Number(0) => complain(format!("{kind}.port is 0, which is not a port").into()),
        Port::Number(number) if address.is_none() && own_network(spec).is_some() => {
            if endpoint(spec, port, address).is_none() {
                complain(
                    Diagnostic::new(format_args!(
                        "{kind}.port is {number}, a port inside to which no endpoint leads from the host"
                    ))
                    .with_hint("add one to `provides` and its number to `ports`, or use use exec, which runs inside"),
                );
            }
        }
        Port::Number(_) => {}
        Port::Endpoint(name) => match spec.provides().iter().find(|provided| provided.name == *name) {
            None => complain(format!("{kind}.port is {name}, and `provides` has no endpoint of that name").into()),
            Some(endpoint) if endpoint.protocol != Protocol::Tcp => {
                complain(
                    format!(
                        "{kind}.port is {name}, an endpoint of {}, which cannot be connected to",
                        endpoint.protocol
                    )
                    .into(),
                );
            }
            Some(_) => {}
        },
    }
}

/// Checks a path, which is put into a request unchanged.
fn check_path(path: &str, complain: &mut impl FnMut(Diagnostic)) {
    let is_plain = path.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'#');
    if !path.starts_with('/') || !is_plain || path.len() > PATH_MAX_BYTES {
        complain(Diagnostic::new(format_args!("http.path {path:?} is not a valid path")).with_hint(format_args!(
            "begin it with /, use at most {PATH_MAX_BYTES} bytes, and write characters outside of ASCII as %XX"
        )));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn probe(change: impl FnOnce(&mut Probe)) -> Probe {
        let mut probe = Probe::new(Check::Tcp(Tcp { port: Port::Number(1), address: None }));
        change(&mut probe);
        probe
    }

    /// In `answers`, `+` is a success and a letter a failure with that reason; `wanted` has each verdict, `.` for none.
    #[track_caller]
    fn check_answers(probe: &Probe, coming: bool, answers: &str, wanted: &str) {
        let mut watch = ProbeCounter::new(probe, coming, 0.0);
        let told = answers.chars().map(|answer| {
            let answer = if answer == '+' { Ok(()) } else { Err(answer.to_string()) };
            match watch.answered(answer.map_err(Diagnostic::from)) {
                None => ".".to_owned(),
                Some(ProbeVerdict::Passed) => "+".to_owned(),
                Some(ProbeVerdict::Pending(why)) => format!("?{why}"),
                Some(ProbeVerdict::Failed(why)) => format!("!{why}"),
            }
        });
        assert_eq!(told.collect::<Vec<_>>().join(" "), wanted, "{answers}");
    }

    #[test]
    fn probe_results_change_state_by_thresholds() {
        let usual = probe(|_| ());
        check_answers(&usual, false, "+++", "+ . .");
        check_answers(&usual, false, "ab+abab+", ". . + . . !a . +");
        check_answers(&usual, false, "abcd", ". . !c .");
        check_answers(&usual, false, "ab+ab+ab+", ". . + . . . . . .");
        check_answers(&probe(|probe| probe.failures = 1), false, "a+b+", "!a + !b +");
        check_answers(&probe(|probe| probe.successes = 2), false, "+a++aaa+a++", ". . . + . . !a . . . +");
    }

    #[test]
    fn starting_probe_reports_reason_without_failing() {
        let usual = probe(|_| ());
        check_answers(&usual, true, "aaab+aaa", "?a . . ?b + . . !a");
        check_answers(&probe(|probe| probe.successes = 2), true, "+a++", ". ?a . +");
    }

    #[test]
    fn starting_unit_is_probed_often() {
        let mut watch = ProbeCounter::new(&probe(|_| ()), true, 0.9);
        let mut waits = vec![watch.wait_ms()];
        for answer in [Err("".into()), Err("".into()), Err("".into()), Err("".into()), Err("".into())] {
            watch.answered(answer);
            waits.push(watch.wait_ms());
        }
        assert_eq!(waits, [0, 100, 200, 400, 800, 1_000]);
        watch.answered(Ok(()));
        assert_eq!(watch.wait_ms(), 10_000);
        watch.answered(Err("".into()));
        assert_eq!(watch.wait_ms(), 10_000, "it was up");
        // Not more often than configured.
        let mut watch = ProbeCounter::new(&probe(|probe| probe.interval_ms = 150), true, 0.0);
        for _ in 0..3 {
            watch.answered(Err("".into()));
        }
        assert_eq!(watch.wait_ms(), 150);
    }

    #[test]
    fn probes_of_many_units_are_spread() {
        let wait = |random| ProbeCounter::new(&probe(|_| ()), false, random).wait_ms();
        assert_eq!((wait(0.0), wait(0.5), wait(1.0)), (0, 5_000, 10_000));
    }

    proptest! {
        #[test]
        fn probe_reports_only_changes(
            answers in prop::collection::vec(any::<bool>(), 0..60),
            failures in 1u32..5,
            successes in 1u32..5,
            coming in any::<bool>(),
        ) {
            let mut watch = ProbeCounter::new(&probe(|probe| (probe.failures, probe.successes) = (failures, successes)), coming, 0.5);
            let mut told: Option<ProbeVerdict> = None;
            for (index, good) in answers.iter().enumerate() {
                let news = watch.answered(if *good { Ok(()) } else { Err("no".into()) });
                let row = answers[..=index].iter().rev().take_while(|answer| *answer == good).count();
                prop_assert!(news.is_none() || news != told, "told twice");
                match &news {
                    Some(ProbeVerdict::Passed) => prop_assert!(*good && row >= successes as usize),
                    Some(ProbeVerdict::Failed(_)) => prop_assert!(!good && row >= failures as usize),
                    Some(ProbeVerdict::Pending(_)) => prop_assert!(!good && coming && told != Some(ProbeVerdict::Passed)),
                    None => {}
                }
                told = news.or(told);
                // Enough consecutive results always give a verdict.
                if *good && row >= successes as usize {
                    prop_assert_eq!(&told, &Some(ProbeVerdict::Passed));
                }
                if !good && row >= failures as usize {
                    prop_assert!(matches!(told, Some(ProbeVerdict::Failed(_) | ProbeVerdict::Pending(_))));
                }
                prop_assert!((INTERVAL_MIN_MS..=10_000).contains(&watch.wait_ms()));
            }
        }
    }

    #[track_caller]
    fn check_spec(probes: &str, wanted: &[&str]) {
        let artifact = serde_json::json!({"sha256": "0".repeat(64), "size_bytes": 1, "role": "a", "version": "1"});
        check_of(serde_json::json!({"kind": "yuno", "artifact": artifact}), probes, wanted);
    }

    #[track_caller]
    fn check_of(mut spec: serde_json::Value, probes: &str, wanted: &[&str]) {
        spec["probes"] = serde_json::from_str(probes).unwrap();
        if spec["provides"].is_null() {
            spec["provides"] = serde_json::json!([{"name": "web"}, {"name": "dns", "protocol": "udp"}]);
        }
        let wrong = check(&serde_json::from_value(spec).unwrap());
        assert_eq!(wrong.len(), wanted.len(), "{wrong:?}");
        for (found, wanted) in wrong.iter().zip(wanted) {
            assert!(found.cause.contains(wanted), "{found:?} should say {wanted:?}");
        }
    }

    #[test]
    fn what_is_wrong_is_named_with_its_field() {
        check_spec("{}", &[]);
        check_spec(r#"{"start":{"tcp":{"port":1}},"ready":{"http":{"port":"web","path":"/a?b=%20"}}}"#, &[]);
        check_spec(r#"{"live":{"exec":["/bin/true","{port:web}","{{else}}"],"failures":1}}"#, &[]);
        check_spec(r#"{"live":{"tcp":{"port":0}}}"#, &["probes.live.tcp.port is 0"]);
        check_spec(
            r#"{"start":{"tcp":{"port":"db"}},"ready":{"tcp":{"port":"dns"}}}"#,
            &["probes.start.tcp.port is db, and `provides` has no", "probes.ready.tcp.port is dns, an endpoint of udp"],
        );
        check_spec(
            r#"{"live":{"tcp":{"port":1},"interval_ms":1,"timeout_ms":9000000,"failures":0,"successes":2}}"#,
            &[
                "probes.live.interval_ms is 1; it must be from 100",
                "probes.live.timeout_ms is 9000000",
                "probes.live.failures is 0; it must be from 1",
                "probes.live.successes is 2, but",
            ],
        );
        check_spec(
            r#"{"start":{"tcp":{"port":1},"failures":5}}"#,
            &["probes.start.failures is 5, but the probe is repeated until"],
        );
        check_spec(r#"{"live":{"exec":[]}}"#, &["probes.live.exec has no program"]);
        check_spec(r#"{"live":{"exec":["a","{port:db}"]}}"#, &["probes.live.exec: word 2 has {port:db}"]);
        check_spec(r#"{"live":{"exec":["a","b\u0000"]}}"#, &["probes.live.exec has more than"]);
        for path in ["", "a", "/a b", "/é", "/a#b"] {
            let probes = serde_json::json!({"ready": {"http": {"port": 1, "path": path}}});
            check_spec(&probes.to_string(), &["probes.ready.http.path"]);
        }
        check_spec(r#"{"ready":{"http":{"port":1,"status":99}}}"#, &["probes.ready.http.status is 99"]);
    }

    #[test]
    fn what_nobody_can_connect_to_is_said_before_it_is_tried() {
        let on = |network: &str| serde_json::json!({"kind": "container", "image": {"name": "a"}, "network": network});
        let mut published = on("bridge");
        published["ports"] = serde_json::json!({"web": 80, "dns": 53});
        let (inside, named, other) = (
            r#"{"ready":{"http":{"port":80}}}"#,
            r#"{"ready":{"tcp":{"port":"web"}},"live":{"exec":["a","{port:web}"]}}"#,
            r#"{"start":{"tcp":{"port":53}}}"#,
        );
        let leads_nowhere = |number: u16| format!("tcp.port is {number}, a port inside to which no endpoint leads");
        check_of(published.clone(), inside, &[]);
        check_of(published.clone(), named, &[]);
        check_of(published.clone(), other, &[&leads_nowhere(53)]);
        check_of(published.clone(), r#"{"live":{"tcp":{"port":81}}}"#, &["no endpoint leads from the host"]);
        check_of(published.clone(), r#"{"live":{"tcp":{"port":0}}}"#, &["tcp.port is 0"]);
        check_of(published, r#"{"live":{"tcp":{"port":81,"address":"10.0.0.1"}}}"#, &[]);
        check_of(on("bridge"), named, &[]);
        check_of(on("bridge"), other, &[&leads_nowhere(53)]);
        // In the host's network a port is the host's.
        check_of(on("host"), inside, &[]);
        check_of(on("host"), other, &[]);
        let mut alone = on("none");
        alone["provides"] = serde_json::json!([]);
        check_of(alone.clone(), r#"{"live":{"exec":["a"]}}"#, &[]);
        for kind in ["tcp", "http"] {
            let probes = serde_json::json!({"live": {kind: {"port": 80, "address": "10.0.0.1"}}}).to_string();
            check_of(alone.clone(), &probes, &[&format!("probes.live.{kind}: its network is none")]);
        }
    }

    #[test]
    fn a_number_is_of_the_host_or_of_the_endpoint_that_leads_there() {
        let spec = |kind: &str| -> Spec {
            let artifact = serde_json::json!({"sha256": "0".repeat(64), "size_bytes": 1, "role": "a", "version": "1"});
            let (what, made_of) =
                if kind == "yuno" { ("artifact", artifact) } else { ("image", serde_json::json!({"name": "a"})) };
            let mut spec = serde_json::json!({"kind": kind, what: made_of, "provides": [{"name": "web"}, {"name": "db", "port": 5432}]});
            if kind == "container" {
                spec["ports"] = serde_json::json!({"web": 80});
            }
            serde_json::from_value(spec).unwrap()
        };
        let found = |kind: &str, port: Port, address: Option<&str>| {
            let address = address.map(|address| address.parse().unwrap());
            endpoint(&spec(kind), &port, address).map(ToString::to_string)
        };
        let name = |name: &str| Port::Endpoint(name.parse().unwrap());
        let some = |name: &str| Some(name.to_owned());
        assert_eq!(found("container", Port::Number(80), None), some("web"));
        assert_eq!(found("container", Port::Number(5432), None), some("db"));
        assert_eq!(found("container", Port::Number(81), None), None);
        assert_eq!(found("container", Port::Number(80), Some("10.0.0.1")), None);
        assert_eq!(found("container", name("db"), Some("10.0.0.1")), some("db"));
        assert_eq!(found("yuno", Port::Number(80), None), None);
        assert_eq!(found("yuno", name("web"), None), some("web"));
    }
}
