use muster_topics::alert::Severity;
use proptest::prelude::*;

use super::*;

const SAMPLE_MS: Millis = 10_000;
const START_MS: Millis = 1_800_000_000_000;

fn rule(metric: Metric, threshold: f64, clear: f64, for_ms: u64) -> Rule {
    Rule { metric, of: None, threshold, clear: Some(clear), for_ms, severity: Severity::Warning, disabled: false }
}

fn rules(named: &[(&str, Rule)]) -> BTreeMap<Name, Rule> {
    named.iter().map(|(name, rule)| (name.parse().unwrap(), rule.clone())).collect()
}

/// Seconds from the start, by both clocks.
fn at(seconds: i64) -> AlertTime {
    AlertTime { steady_ms: seconds * 1000, wall_ms: START_MS + seconds * 1000 }
}

fn alerts(named: &[(&str, Rule)]) -> HostAlerts {
    HostAlerts::new(rules(named), SAMPLE_MS, vec![], at(0))
}

fn cpu(value: f64) -> Vec<Reading> {
    vec![Reading { subject: ReadingSubject::host(Metric::CpuBusy), value }]
}

fn disk(mount: &str, value: f64) -> Reading {
    Reading { subject: ReadingSubject::mount(Metric::DiskUsed, mount), value }
}

/// A change in few words.
fn told(changes: &[AlertChange]) -> Vec<String> {
    let word = |change: &AlertChange| match change {
        AlertChange::Raised(alert) => format!("raised {}", alert.rule),
        AlertChange::Repeated(alert) => format!("repeated {}", alert.rule),
        AlertChange::Cleared(alert) => format!("cleared {}", alert.rule),
    };
    changes.iter().map(word).collect()
}

/// Readings of the processors at these seconds, and what each leads to.
#[track_caller]
fn check(rule: Rule, readings: &[(i64, f64, &[&str])]) -> HostAlerts {
    let mut alerts = alerts(&[("cpu", rule)]);
    for (seconds, value, wanted) in readings {
        assert_eq!(told(&alerts.observe(&cpu(*value), at(*seconds))), *wanted, "{value} at {seconds} s");
    }
    alerts
}

#[test]
fn value_beyond_threshold_raises_after_duration_and_clears_at_clear_level() {
    let rule = rule(Metric::CpuBusy, 0.9, 0.8, 30_000);
    check(
        rule.clone(),
        &[
            (0, 0.95, &[]),
            (10, 0.95, &[]),
            (20, 0.91, &[]),
            (30, 0.95, &["raised cpu"]),
            // Between the levels it goes on, and at the clear level it is over.
            (40, 0.85, &[]),
            (50, 0.8, &["cleared cpu"]),
            (60, 0.95, &[]),
        ],
    );
    // One good reading, and it begins anew.
    check(
        rule.clone(),
        &[(0, 0.95, &[]), (20, 0.9, &[]), (30, 0.95, &[]), (59, 0.95, &[]), (60, 0.95, &["raised cpu"])],
    );
    let mut alerts = check(rule, &[(7, 0.95, &[]), (40, 0.97, &["raised cpu"])]);
    let alert = alerts.active().next().unwrap().clone();
    assert_eq!((alert.since_ms, alert.at_ms, alert.value), (at(7).wall_ms, at(40).wall_ms, 0.97));
    assert_eq!(alert.diagnostic.cause, "processors busy: 97 %, above 90 % for 30 s");
    let changes = alerts.observe(&cpu(0.5), at(50));
    let ended = changes[0].alert();
    assert_eq!((ended.state, ended.since_ms, ended.at_ms), (AlertState::Cleared, at(7).wall_ms, at(50).wall_ms));
    assert_eq!(ended.diagnostic.cause, "processors busy: 50 % again");
}

#[test]
fn active_alert_is_repeated() {
    let mut alerts = check(rule(Metric::CpuBusy, 0.9, 0.8, 0), &[(0, 0.95, &["raised cpu"])]);
    let mut repeated = vec![];
    for seconds in (10..=1_000).step_by(10) {
        let changes = alerts.observe(&cpu(0.95), at(seconds));
        repeated.extend((!changes.is_empty()).then_some(seconds));
        assert!(changes.iter().all(|change| matches!(change, AlertChange::Repeated(_))));
    }
    assert_eq!(repeated, [300, 600, 900]);
}

#[test]
fn few_missing_samples_change_nothing() {
    let rule = rule(Metric::CpuBusy, 0.9, 0.8, 240_000);
    let mut alerts = check(rule.clone(), &[(0, 0.95, &[]), (60, 0.95, &[])]);
    for seconds in (70..240).step_by(10) {
        assert_eq!(alerts.observe(&[], at(seconds)), []);
    }
    assert_eq!(told(&alerts.observe(&cpu(0.95), at(240))), ["raised cpu"]);
    // Longer than a gap may be: nobody knows what was in between.
    let readings: Vec<(i64, f64, &[&str])> = [0, 200, 240, 400, 439].map(|seconds| (seconds, 0.95, &[][..])).to_vec();
    check(rule, &[&readings[..], &[(440, 0.95, &["raised cpu"])]].concat());
}

#[test]
fn vanished_metric_ends_its_alert() {
    let mut alerts = check(rule(Metric::CpuBusy, 0.9, 0.8, 0), &[(0, 0.95, &["raised cpu"])]);
    assert_eq!(alerts.observe(&[], at(600)), []);
    for (value, seconds) in [(f64::NAN, 601), (f64::INFINITY, 602)] {
        // That is no reading, so it is as good as none.
        let changes = alerts.observe(&cpu(value), at(seconds));
        assert_eq!(told(&changes), if seconds == 601 { vec!["cleared cpu"] } else { vec![] });
    }
    assert_eq!(alerts.active().count(), 0);
}

#[test]
fn nan_raises_and_clears_nothing() {
    for value in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
        let mut alerts = check(rule(Metric::CpuBusy, 0.9, 0.8, 0), &[(0, value, &[]), (1, 0.95, &["raised cpu"])]);
        assert_eq!(alerts.observe(&cpu(value), at(10)), []);
        assert!(alerts.active().all(|alert| alert.value == 0.95));
    }
}

#[test]
fn wall_clock_jump_raises_and_clears_nothing() {
    let mut alerts = alerts(&[("cpu", rule(Metric::CpuBusy, 0.9, 0.8, 30_000))]);
    let now = |seconds: i64, jump_s: i64| AlertTime { wall_ms: at(seconds).wall_ms + jump_s * 1000, ..at(seconds) };
    assert_eq!(alerts.observe(&cpu(0.95), now(0, 0)), []);
    // A day ahead and a year back: neither raises nor delays.
    assert_eq!(alerts.observe(&cpu(0.95), now(10, 86_400)), []);
    let changes = alerts.observe(&cpu(0.95), now(30, -31_536_000));
    assert_eq!(told(&changes), ["raised cpu"]);
    let alert = changes[0].alert();
    assert_eq!((alert.since_ms, alert.at_ms), (at(0).wall_ms, at(0).wall_ms), "it does not end before it began");
    assert_eq!(told(&alerts.observe(&cpu(0.1), now(40, -31_536_000))), ["cleared cpu"]);
}

#[test]
fn restart_keeps_active_alerts_with_their_times() {
    let rule = rule(Metric::CpuBusy, 0.9, 0.8, 30_000);
    let before = check(rule.clone(), &[(0, 0.95, &[]), (30, 0.95, &["raised cpu"])]);
    let held: Vec<Alert> = before.active().cloned().collect();
    // The steady clock begins anew with the machine.
    let start = AlertTime { steady_ms: 0, wall_ms: at(5_000).wall_ms };
    let now = |seconds: i64| AlertTime { steady_ms: seconds * 1000, wall_ms: start.wall_ms + seconds * 1000 };
    let mut after = HostAlerts::new(rules(&[("cpu", rule)]), SAMPLE_MS, held.clone(), start);
    assert_eq!(after.observe(&[], now(0)), []);
    assert_eq!(after.observe(&cpu(0.85), now(10)), []);
    assert_eq!(after.active().next().unwrap().since_ms, held[0].since_ms);
    let changes = after.observe(&cpu(0.3), now(20));
    assert_eq!(told(&changes), ["cleared cpu"]);
    assert_eq!((changes[0].alert().since_ms, changes[0].alert().at_ms), (held[0].since_ms, now(20).wall_ms));
}

#[test]
fn each_subject_has_an_alert_of_its_own() {
    let disks = rule(Metric::DiskUsed, 0.9, 0.85, 0);
    let data =
        Rule { of: Some("/data".to_owned()), severity: Severity::Critical, ..rule(Metric::DiskUsed, 0.5, 0.4, 0) };
    let broken = rule(Metric::UnitBroken, 0.0, 0.0, 0);
    let mut alerts = alerts(&[("disk", disks), ("data", data), ("broken", broken)]);
    let unit: UnitName = "default/till".parse().unwrap();
    let flag = |value| Reading { subject: ReadingSubject::unit(Metric::UnitBroken, &unit), value };
    let changes = alerts.observe(&[disk("/", 0.95), disk("/data", 0.6), disk("/boot", 0.3), flag(1.0)], at(0));
    assert_eq!(told(&changes), ["raised broken", "raised data", "raised disk"]);
    let ids: Vec<&Name> = changes.iter().map(|change| &change.alert().id).collect();
    assert!(ids[0].as_str().starts_with("broken-") && ids[2].as_str().starts_with("disk-"), "{ids:?}");
    assert_eq!(changes[0].alert().unit.as_ref(), Some(&unit));
    assert_eq!(changes[2].alert().mount.as_deref(), Some("/"));
    let changes = alerts.observe(&[disk("/", 0.5), disk("/data", 0.95)], at(60));
    assert_eq!(told(&changes), ["cleared disk", "raised disk"]);
    // The unit is removed.
    assert_eq!(told(&alerts.unit_gone(|_| false, at(70))), ["cleared broken"]);
    assert_eq!(alerts.unit_gone(|_| false, at(71)), []);
}

#[test]
fn changed_and_removed_rules_take_effect() {
    let high = rule(Metric::CpuBusy, 0.9, 0.8, 0);
    let mut alerts = check(high.clone(), &[(0, 0.95, &["raised cpu"])]);
    alerts.set_rules(rules(&[("cpu", Rule { severity: Severity::Critical, ..high.clone() })]));
    assert_eq!(told(&alerts.observe(&cpu(0.95), at(10))), ["repeated cpu"]);
    assert_eq!(alerts.active().next().unwrap().severity, Severity::Critical);
    alerts.set_rules(rules(&[("cpu", rule(Metric::CpuBusy, 0.99, 0.97, 0))]));
    assert_eq!(told(&alerts.observe(&cpu(0.95), at(20))), ["cleared cpu"]);
    for last in [rules(&[]), rules(&[("cpu", Rule { disabled: true, ..high.clone() })])] {
        let mut alerts = check(high.clone(), &[(0, 0.95, &["raised cpu"])]);
        alerts.set_rules(last);
        assert_eq!(told(&alerts.observe(&cpu(0.95), at(10))), ["cleared cpu"]);
        assert_eq!(alerts.observe(&cpu(0.95), at(20)), []);
    }
}

#[test]
fn active_alerts_are_limited() {
    let mut alerts = alerts(&[("disk", rule(Metric::DiskUsed, 0.9, 0.85, 0))]);
    let all: Vec<Reading> = (0..ALERTS_MAX + 3).map(|index| disk(&format!("/{index:0>3}"), 0.95)).collect();
    assert_eq!(alerts.observe(&all, at(0)).len(), ALERTS_MAX);
    // One ends, and one that waited takes its place.
    let mut next = all.clone();
    next[0].value = 0.1;
    assert_eq!(told(&alerts.observe(&next, at(10))), ["cleared disk", "raised disk"]);
}

#[test]
fn alert_ids_are_valid_names_and_unique_by_subject() {
    let rule: Name = "r".repeat(63).parse().unwrap();
    let unit = |name: &str| ReadingSubject::unit(Metric::UnitBroken, &name.parse().unwrap());
    let ids = [
        unit("default/a"),
        unit("default/b"),
        ReadingSubject::mount(Metric::DiskUsed, "/"),
        ReadingSubject::mount(Metric::DiskUsed, "/é\n"),
        ReadingSubject::host(Metric::CpuBusy),
    ]
    .map(|subject| id(&rule, &subject));
    for id in &ids {
        assert!(id.as_str().len() <= 63 && id.as_str().starts_with("rrr"), "{id}");
    }
    assert_eq!(ids.iter().collect::<std::collections::BTreeSet<_>>().len(), ids.len());
    let other: Name = "other".parse().unwrap();
    assert_eq!(id(&other, &ReadingSubject::host(Metric::CpuBusy)), other);
}

/// One step of a life: how long after the one before, how far the wall's clock jumps, what is read, and whether the
/// agent is restarted before.
fn steps() -> impl Strategy<Value = Vec<(i64, i64, Option<f64>, bool)>> {
    let value = prop_oneof![
        1 => Just(None),
        1 => Just(Some(f64::NAN)),
        8 => (0.0..1.0f64).prop_map(Some),
        4 => (0.88..0.93f64).prop_map(Some),
    ];
    let jump = prop_oneof![8 => Just(0i64), 1 => -100_000..100_000i64];
    prop::collection::vec((1..120i64, jump, value, prop::bool::weighted(0.1)), 1..80)
}

proptest! {
    /// Whatever comes: an alert is raised once before it is cleared, by a value beyond the threshold that has lasted, it ends
    /// by one that is back or because nothing came, and its beginning stays what it was.
    #[test]
    fn every_life_is_orderly(steps in steps(), for_s in 0..200u64) {
        let (threshold, clear) = (0.9, 0.8);
        let named = rules(&[("cpu", rule(Metric::CpuBusy, threshold, clear, for_s * 1000))]);
        let mut alerts = HostAlerts::new(named.clone(), SAMPLE_MS, vec![], at(0));
        let mut held: Option<Alert> = None;
        // When it last was not beyond the threshold, and when there last was a reading.
        let (mut seconds, mut jumped_s, mut good_s, mut read_s) = (0, 0, 0, 0);
        for (wait_s, jump_s, value, restart) in steps {
            seconds += wait_s;
            jumped_s += jump_s;
            let now = AlertTime { steady_ms: seconds * 1000, wall_ms: START_MS + (seconds + jumped_s) * 1000 };
            if restart {
                alerts = HostAlerts::new(named.clone(), SAMPLE_MS, alerts.active().cloned().collect(), now);
                (good_s, read_s) = (seconds, seconds);
            }
            let readings = value.map(cpu).unwrap_or_default();
            let changes = alerts.observe(&readings, now);
            prop_assert!(changes.len() <= 1);
            let finite = value.filter(|value| value.is_finite());
            match changes.first() {
                Some(AlertChange::Raised(alert)) => {
                    prop_assert!(held.is_none());
                    prop_assert!(finite.is_some_and(|value| value > threshold));
                    prop_assert!(seconds - good_s >= for_s as i64, "for {} s, raised after {}", for_s, seconds - good_s);
                    prop_assert!(alert.at_ms >= alert.since_ms);
                    held = Some(alert.clone());
                }
                Some(AlertChange::Repeated(alert)) => {
                    prop_assert_eq!(held.as_ref().map(|held| held.since_ms), Some(alert.since_ms));
                }
                Some(AlertChange::Cleared(alert)) => {
                    let vanished = seconds - read_s > GONE_MS / 1000;
                    prop_assert!(finite.is_some_and(|value| value <= clear) || vanished);
                    prop_assert_eq!(held.take().map(|held| held.since_ms), Some(alert.since_ms));
                    prop_assert!(alert.at_ms >= alert.since_ms);
                }
                None => {}
            }
            if let Some(value) = finite {
                read_s = seconds;
                // The time begins with the first reading that is beyond, which is later than the last good one.
                if value <= threshold { good_s = seconds; }
                // What is back is never left standing, and what holds is what is told to hold.
                prop_assert!(value > clear || held.is_none());
            }
            let active: Vec<Millis> = alerts.active().map(|alert| alert.since_ms).collect();
            prop_assert_eq!(active, held.iter().map(|held| held.since_ms).collect::<Vec<_>>());
        }
    }

    /// A value that stays beyond is raised in the end, however samples are left out within the gap.
    #[test]
    fn what_stays_beyond_is_raised(waits in prop::collection::vec(1..190i64, 40), for_s in 0..600u64) {
        let mut alerts = alerts(&[("cpu", rule(Metric::CpuBusy, 0.9, 0.8, for_s * 1000))]);
        let mut seconds = 0;
        for wait_s in waits.into_iter().chain(std::iter::repeat_n(100, 10)) {
            seconds += wait_s;
            alerts.observe(&cpu(0.95), at(seconds));
        }
        prop_assert_eq!(alerts.active().count(), 1);
    }
}
