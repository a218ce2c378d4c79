//! Policies and windows as people write them.

use jiff::{
    Timestamp,
    tz::{TimeZone, TimeZoneDatabase},
};
use muster_topics::Millis;
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::{
    rollout::{
        policy::{self, Approve, Authority, Budget, Check, OnFailure, Retries, RolloutPolicy, Share},
        window::{self, Window, WindowState},
    },
    schema,
};

#[track_caller]
fn check_faults(policy: Value, wanted: &[(&str, &str)]) {
    let (read, faults) = policy::read(&policy, &TimeZoneDatabase::bundled());
    assert_eq!(faults.len(), wanted.len(), "{faults:#?}");
    assert_eq!(read.is_some(), wanted.is_empty());
    for (fault, (at, message)) in faults.iter().zip(wanted) {
        let at = if at.is_empty() { "rollout".to_owned() } else { format!("rollout.{at}") };
        assert!(fault.at == at && fault.diagnostic.cause.contains(message), "{fault:?} instead of {at}: {message}");
    }
}

#[test]
fn all_faults_of_a_policy_are_reported_at_once() {
    check_faults(json!({}), &[]);
    check_faults(json!("slow"), &[("", "expected a policy")]);
    check_faults(
        json!({
            "waves": [0, "0%", "-1%", "110%", "1O%", 2.5, true, "10 %"], "max_in_flite": 3, "max_in_flight": "0%",
            "budget": {"group_by": "site", "max_unavailable": 0, "min_available": 1}, "max_failures": "many",
            "on_failure": "rolback", "soak": "2 minutes", "approve": "all",
            "windows": ["Mon-Fri 02:00-05:00 Europe/Berln", "Mo 02:00-05:00 UTC", "02:00-02:00 UTC", "02:00-05:00"],
            "deadline": 0, "lost_after": 90, "retries": {"attempts": 11, "after": "-1m"},
            "check": {"query": "avg(up)", "worse_than_rest_by": "-20%"},
            "authority": {"url": "http://orly.example.com", "timeout": "2m"},
        }),
        &[
            ("max_in_flite", "`max_in_flight`"),
            ("waves.0", "the wave has no hosts"),
            ("waves.1", "the wave has no hosts"),
            ("waves.2", "such as 10%"),
            ("waves.3", "such as 10%"),
            ("waves.4", "such as 10%"),
            ("waves.5", "such as 10%"),
            ("waves.6", "such as 10%"),
            ("max_in_flight", "never admit"),
            ("budget.min_available", "`max_unavailable`"),
            ("budget.group_by", "label.site"),
            ("budget.max_unavailable", "never admit"),
            ("max_failures", "such as 10%"),
            ("on_failure", "`rollback`"),
            ("soak", "such as 90s"),
            ("approve", "known are `none`, `first`, `each`"),
            ("windows.0", "`Europe/Berlin`"),
            ("windows.1", "`Mon`"),
            ("windows.2", "never open"),
            ("windows.3", "a zone"),
            ("deadline", "at least 1s"),
            ("lost_after", "such as 90s"),
            ("retries.attempts", "from 0 to 10"),
            ("retries.after", "such as 90s"),
            ("check.query", "$hosts"),
            ("check.worse_than_rest_by", "not negative"),
            ("authority.url", "https://"),
            ("authority.timeout", "at most 1m"),
        ],
    );
    check_faults(
        json!({"waves": [], "approve": "first", "budget": {}, "retries": {}, "check": {}, "authority": {}, "windows": 3}),
        &[
            ("budget.group_by", "is required"),
            ("budget.max_unavailable", "is required"),
            ("windows", "a list"),
            ("retries.attempts", "is required"),
            ("check.query", "is required"),
            ("check.worse_than_rest_by", "is required"),
            ("authority.url", "is required"),
            ("approve", "only one wave"),
        ],
    );
    check_faults(
        json!({"windows": ["02:00-05:00 host", "02:00-05:00 UTC"], "authority": {"url": "https://me:secret@a.example"}}),
        &[("windows", "cannot be combined"), ("authority.url", "must not have a password")],
    );
    check_faults(json!({"windows": ["02:00-02:05 host"]}), &[("windows.0", "less than 10 minutes")]);
    check_faults(json!({"waves": vec![1; 21]}), &[("waves", "at most 20 are allowed")]);
    check_faults(json!({"windows": "02:00-05:00 UTC", "budget": 3}), &[("budget", "group_by"), ("windows", "a list")]);
}

#[test]
fn policy_is_stored_whole() {
    let stored = policy::write(&policy::read(&json!({}), &TimeZoneDatabase::bundled()).0.unwrap());
    assert_eq!(
        Value::Object(stored.clone()),
        json!({
            "max_in_flight": "10%", "max_failures": "2%", "on_failure": "pause", "soak": "2m", "approve": "none",
            "deadline": "24h", "lost_after": "1h", "retries": {"attempts": 0, "after": "10m"},
        })
    );
    assert_eq!(policy::of(&stored), Ok(Some(RolloutPolicy::default())));
    assert_eq!(policy::of(&serde_json::Map::new()), Ok(None));
    let mut odd = stored;
    odd.insert("surprise".to_owned(), json!(1));
    assert!(policy::of(&odd).unwrap_err().cause.contains("rollout.surprise"));
}

#[test]
fn shares_are_of_one_host_at_least_where_somebody_has_to_be_admitted() {
    let tenth = Share::Percent(10.0);
    assert_eq!([0, 9, 10, 19, 20, 10_000].map(|hosts| tenth.at_least_one_of(hosts)), [1, 1, 1, 1, 2, 1_000]);
    assert_eq!([9, 10, 30].map(|hosts| tenth.of(hosts)), [0, 1, 3]);
    assert_eq!(RolloutPolicy::default().waves_for(9), []);
    assert_eq!(RolloutPolicy::default().waves_for(10), [Share::Count(1), tenth]);
}

fn at(text: &str) -> Millis {
    text.parse::<Timestamp>().unwrap().as_millisecond()
}

#[track_caller]
fn check_window(window: &str, now: &str, wanted: Result<&str, &str>) {
    let zones = TimeZoneDatabase::bundled();
    let windows: Vec<Window> = window.split(';').map(|window| window.parse().unwrap()).collect();
    let wanted = match wanted {
        Ok(until) => WindowState::Open { until_ms: Some(at(until)) },
        Err(opens) => WindowState::Closed { opens_ms: Some(at(opens)) },
    };
    assert_eq!(window::state(&windows, at(now), &zones), wanted, "{window} at {now}");
}

#[test]
fn windows_open_and_close_in_their_zones() {
    const BERLIN: &str = "Mon-Fri 02:00-05:00 Europe/Berlin";
    // 27 November 2026 is a Friday.
    check_window(BERLIN, "2026-11-27T00:59:59Z", Err("2026-11-27T01:00:00Z"));
    check_window(BERLIN, "2026-11-27T01:00:00Z", Ok("2026-11-27T04:00:00Z"));
    check_window(BERLIN, "2026-11-27T04:00:00Z", Err("2026-11-30T01:00:00Z"));
    // In summer it is an hour earlier.
    check_window(BERLIN, "2026-07-03T00:00:00Z", Ok("2026-07-03T03:00:00Z"));
    // Over midnight, of the day on which it opens.
    check_window("Fri 22:00-04:00 UTC", "2026-11-28T03:59:00Z", Ok("2026-11-28T04:00:00Z"));
    check_window("Fri 22:00-04:00 UTC", "2026-11-28T22:30:00Z", Err("2026-12-04T22:00:00Z"));
    check_window("Sat-Mon,Wed 00:00-24:00 UTC", "2026-11-27T12:00:00Z", Err("2026-11-28T00:00:00Z"));
    check_window("02:00-03:00 UTC;02:30-04:00 UTC", "2026-11-27T02:45:00Z", Ok("2026-11-27T04:00:00Z"));
    check_window("06:00-07:00 UTC;05:00-05:30 UTC", "2026-11-27T02:45:00Z", Err("2026-11-27T05:00:00Z"));
    // Clocks go from 02:00 to 03:00 on 29 March 2026, and from 03:00 to 02:00 on 25 October.
    check_window("02:00-02:30 Europe/Berlin", "2026-03-29T01:10:00Z", Ok("2026-03-29T01:30:00Z"));
    check_window("02:00-04:00 Europe/Berlin", "2026-10-25T02:30:00Z", Ok("2026-10-25T03:00:00Z"));
    let none = TimeZoneDatabase::none();
    let closed = WindowState::Closed { opens_ms: None };
    assert_eq!(window::state(&[BERLIN.parse().unwrap()], at("2026-11-27T02:00:00Z"), &none), closed);
    assert_eq!(window::state(&[], 0, &none), WindowState::Open { until_ms: None });
}

#[test]
fn host_asks_while_its_own_window_stays_open_for_as_long_as_an_answer_may_take() {
    let stored = json!({"windows": ["Mon-Fri 02:00-05:00 host"]});
    let windows = window::of_host(stored.as_object().unwrap());
    let zone = TimeZoneDatabase::bundled().get("America/New_York").unwrap();
    let state = |now: &str| window::host_state(&windows, at(now), &zone);
    assert_eq!(state("2026-11-27T07:00:00Z"), WindowState::Open { until_ms: Some(at("2026-11-27T09:55:00Z")) });
    assert_eq!(state("2026-11-27T09:55:00Z"), WindowState::Closed { opens_ms: Some(at("2026-11-30T07:00:00Z")) });
    assert_eq!(window::host_state(&[], 0, &TimeZone::UTC), WindowState::Open { until_ms: None });
    let console = window::state(&windows, at("2026-11-27T12:00:00Z"), &TimeZoneDatabase::bundled());
    assert_eq!(console, WindowState::Open { until_ms: None });
    let named = json!({"windows": ["02:00-05:00 UTC"]});
    assert_eq!(window::of_host(named.as_object().unwrap()), []);
}

fn share() -> impl Strategy<Value = Share> {
    prop_oneof![
        (1u32..10_000).prop_map(Share::Count),
        (1u32..=1_000).prop_map(|tenths| Share::Percent(f64::from(tenths) / 10.0)),
    ]
}

prop_compose! {
    fn policies()(
        waves in prop::option::of(prop::collection::vec(share(), 1..5)),
        max_in_flight in share(),
        max_unavailable in prop::option::of(share()),
        max_failures in share(),
        (rolls_back, approve) in (any::<bool>(), prop::sample::select(vec![Approve::None, Approve::First, Approve::Each])),
        windows in prop::collection::vec(
            prop::sample::select(vec!["Mon-Fri 02:00-05:00 Europe/Berlin", "22:00-04:00 UTC", "Mon,Wed,Fri-Sat 00:00-24:00 UTC"]),
            0..3,
        ),
        times in prop::array::uniform4(1_000i64..1_000_000_000),
        attempts in 0u32..=10,
        check in prop::option::of(0u32..500),
        authority in any::<bool>(),
    ) -> RolloutPolicy {
        RolloutPolicy {
            waves,
            max_in_flight,
            budget: max_unavailable.map(|max_unavailable| Budget { group_by: "site".parse().unwrap(), max_unavailable }),
            max_failures,
            on_failure: if rolls_back { OnFailure::Rollback } else { OnFailure::Pause },
            soak_ms: times[0],
            approve,
            windows: windows.into_iter().map(|window| window.parse().unwrap()).collect(),
            deadline_ms: times[1],
            lost_after_ms: times[2],
            retries: Retries { attempts, after_ms: times[3] },
            check: check.map(|percent| Check { query: "up{$hosts}".to_owned(), worse_than_rest_by: f64::from(percent) / 10.0 }),
            authority: authority.then(|| Authority { url: "https://a.example/b".to_owned(), timeout_ms: 1_500 }),
        }
    }
}

proptest! {
    #[test]
    fn written_policy_reads_as_the_same(policy in policies()) {
        let written = policy::write(&policy);
        let document = Value::Object(written.clone());
        prop_assert_eq!(schema::check(&policy::schema(), &document), []);
        let (read, faults) = policy::read(&document, &TimeZoneDatabase::bundled());
        prop_assert_eq!(faults, []);
        prop_assert_eq!(read.as_ref(), Some(&policy));
        prop_assert_eq!(policy::of(&written), Ok(Some(policy)));
    }

    #[test]
    fn no_text_is_too_much_for_a_window(text in ".{0,40}", days in "[A-Za-z,-]{0,12}", times in "[0-9:-]{0,12}") {
        let _ = text.parse::<Window>();
        if let Ok(window) = format!("{days} {times} UTC").parse::<Window>() {
            prop_assert_eq!(window.to_string().parse::<Window>(), Ok(window.clone()));
            let _ = window.state(0, &TimeZone::UTC);
            let _ = window.state(i64::MAX, &TimeZone::UTC);
        }
    }
}
