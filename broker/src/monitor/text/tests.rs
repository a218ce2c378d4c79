//! Tests of the page with a strict parser, and with Prometheus' own.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::Write,
    process::{Command, Stdio},
};

use super::*;
use crate::stats::{Beginning, Counters, JournalStats, Refused};

/// Samples by name and labels.
type Samples = BTreeMap<(String, BTreeMap<String, String>), f64>;

/// Reads a page as the format's description has it, and refuses everything else.
fn parse(page: &str) -> Result<Samples, String> {
    if !page.is_empty() && !page.ends_with('\n') {
        return Err("the last line has no end".to_owned());
    }
    let (mut samples, mut helped, mut typed) = (Samples::new(), BTreeSet::new(), BTreeMap::new());
    for line in page.lines() {
        let fail = |why: &str| Err(format!("{why}: {line:?}"));
        if let Some(comment) = line.strip_prefix("# ") {
            let mut words = comment.splitn(3, ' ');
            let (Some(what), Some(name), Some(rest)) = (words.next(), words.next(), words.next()) else {
                return fail("a comment that says nothing");
            };
            if !is_name(name) {
                return fail("not a name");
            }
            let is_new = match what {
                "HELP" if !rest.trim().is_empty() => helped.insert(name.to_owned()),
                "TYPE" if matches!(rest, "counter" | "gauge") => {
                    typed.insert(name.to_owned(), rest.to_owned()).is_none()
                }
                _ => return fail("neither a help nor a type"),
            };
            if !is_new {
                return fail("said twice");
            }
            continue;
        }
        let Some((series, value)) = line.rsplit_once(' ') else { return fail("no value") };
        let Ok(value) = value.parse::<f64>() else { return fail("no number") };
        let (name, labels) = match series.split_once('{') {
            None => (series, BTreeMap::new()),
            Some((name, rest)) => (name, labels(rest.strip_suffix('}').ok_or("no end of labels")?)?),
        };
        let Some(kind) = typed.get(name) else { return fail("a sample before its type") };
        if !is_name(name) || !helped.contains(name) || value < 0.0 {
            return fail("not a sample");
        }
        if (kind == "counter") != name.ends_with("_total") {
            return fail("counters end in _total, and nothing else does");
        }
        if samples.insert((name.to_owned(), labels), value).is_some() {
            return fail("a sample twice");
        }
    }
    match typed.keys().find(|name| !samples.keys().any(|(sampled, _)| sampled == *name)) {
        Some(name) => Err(format!("{name} has no sample")),
        None => Ok(samples),
    }
}

fn is_name(name: &str) -> bool {
    name.starts_with("muster_broker_")
        && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_')
}

fn labels(text: &str) -> Result<BTreeMap<String, String>, String> {
    let mut labels = BTreeMap::new();
    for label in text.split(',') {
        let (name, value) = label.split_once('=').ok_or("a label without value")?;
        let value =
            value.strip_prefix('"').and_then(|value| value.strip_suffix('"')).ok_or("a value without quotes")?;
        let is_plain = |text: &str| !text.is_empty() && !text.contains(['"', '\\', '\n', '{', '}']);
        if !is_plain(name) || !is_plain(value) || labels.insert(name.to_owned(), value.to_owned()).is_some() {
            return Err(format!("a strange label: {label}"));
        }
    }
    Ok(labels)
}

/// One in which no two numbers are the same.
fn sample() -> BrokerStats {
    let counters = Counters::default();
    (0..20).for_each(|_| counters.begun.count(Beginning::Accepted));
    (0..21).for_each(|_| counters.begun.count(Beginning::Tls));
    (0..22).for_each(|_| counters.refusals.count(Refused::Publish));
    let journal = JournalStats {
        bytes: 23,
        queued_bytes: 46,
        errors_total: 24,
        missed_total: 25,
        rewrites_total: 26,
        is_whole: true,
    };
    BrokerStats {
        uptime_ms: 27_045,
        connections: 30,
        connections_v5: 8,
        sessions_asleep: 28,
        subscriptions: 29,
        mailbox_bytes: 31,
        mailbox_most_bytes: 47,
        takeovers_total: 32,
        received_total: 33,
        sent_total: 34,
        bytes_received_total: 35,
        bytes_sent_total: 36,
        dropped_total: 37,
        expired_total: 38,
        too_large_total: 39,
        slow_total: 40,
        retained: 41,
        retained_bytes: 42,
        retained_most_bytes: 48,
        retained_refused_total: 43,
        retained_revoked_total: 49,
        retained_expired_total: 44,
        journal: Some(journal),
        router_deaths_total: 45,
        ..counters.stats()
    }
}

#[test]
fn the_parser_is_strict() {
    let good = "# HELP muster_broker_a Help.\n# TYPE muster_broker_a gauge\nmuster_broker_a{b=\"c\"} 1\n";
    assert_eq!(parse(good).map(|samples| samples.len()), Ok(1));
    for (from, to) in [
        ("muster_broker_a{", "muster_broker_b{"),
        ("\"c\"", "c"),
        ("\"c\"}", "\"c\""),
        ("} 1\n", "} one\n"),
        ("} 1\n", "} 1"),
        ("} 1\n", "} -1\n"),
        ("gauge", "counter"),
        ("gauge", "guage"),
        ("Help.", ""),
        ("# HELP muster_broker_a Help.\n", ""),
        ("muster_broker_a{b=\"c\"} 1\n", ""),
        ("} 1\n", "} 1\nmuster_broker_a{b=\"c\"} 1\n"),
    ] {
        let bad = good.replace(from, to);
        assert!(bad != good && parse(&bad).is_err(), "{bad:?}");
    }
}

#[test]
fn every_number_is_there() {
    let samples = parse(&page(&sample())).unwrap();
    let plain = |name: &str| samples[&(format!("muster_broker_{name}"), BTreeMap::new())];
    let labelled = |name: &str, label: &str, value: &str| {
        samples[&(format!("muster_broker_{name}"), [(label.to_owned(), value.to_owned())].into())]
    };
    for (name, expected) in [
        ("uptime_seconds", 27.045),
        ("sessions_asleep", 28.0),
        ("subscriptions", 29.0),
        ("mailbox_bytes", 31.0),
        ("mailbox_most_bytes", 47.0),
        ("takeovers_total", 32.0),
        ("messages_received_total", 33.0),
        ("messages_sent_total", 34.0),
        ("received_bytes_total", 35.0),
        ("sent_bytes_total", 36.0),
        ("messages_dropped_total", 37.0),
        ("messages_expired_total", 38.0),
        ("messages_too_large_total", 39.0),
        ("slow_clients_total", 40.0),
        ("retained_messages", 41.0),
        ("retained_bytes", 42.0),
        ("retained_most_bytes", 48.0),
        ("retained_refused_total", 43.0),
        ("retained_revoked_total", 49.0),
        ("retained_expired_total", 44.0),
        ("router_deaths_total", 45.0),
        ("journal_bytes", 23.0),
        ("journal_queued_bytes", 46.0),
        ("journal_errors_total", 24.0),
        ("journal_missed_total", 25.0),
        ("journal_rewrites_total", 26.0),
        ("journal_whole", 1.0),
    ] {
        assert_eq!(plain(name), expected, "{name}");
    }
    assert_eq!(labelled("connections", "version", "5"), 8.0);
    assert_eq!(labelled("connections", "version", "3.1.1"), 22.0);
    assert_eq!(labelled("connections_begun_total", "outcome", "accepted"), 20.0);
    assert_eq!(labelled("connections_begun_total", "outcome", "tls"), 21.0);
    assert_eq!(labelled("connections_begun_total", "outcome", "full"), 0.0);
    assert_eq!(labelled("refusals_total", "kind", "publish"), 22.0);
    assert_eq!(labelled("build_info", "version", env!("CARGO_PKG_VERSION")), 1.0);
}

#[test]
fn readme_lists_every_metric() {
    let readme = include_str!("../../../README.md");
    for (name, labels) in parse(&page(&sample())).unwrap().into_keys() {
        assert!(readme.contains(&format!("`{name}`")) || readme.contains(&format!("`{name}{{")), "{name}");
        for value in labels.into_values().filter(|value| value != env!("CARGO_PKG_VERSION")) {
            assert!(readme.contains(&format!("`{value}`")), "{name} {value}");
        }
    }
}

#[test]
fn idle_broker_reports_zeros() {
    let samples = parse(&page(&BrokerStats::default())).unwrap();
    assert!(!samples.keys().any(|(name, _)| name.contains("journal")));
    assert!(samples.iter().all(|((name, _), value)| *value == 0.0 || name.ends_with("build_info")));
}

#[test]
fn promtool_accepts_the_page() {
    let Ok(mut promtool) = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
    else {
        eprintln!("skipped: promtool is not installed");
        return;
    };
    promtool.stdin.take().unwrap().write_all(page(&sample()).as_bytes()).unwrap();
    let output = promtool.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.trim().is_empty(), "{said}");
}
