use muster_topics::alert::{Metric, Severity};

use super::*;
use crate::console::testing::{Fixture, admin};

fn rule(threshold: f64) -> Rule {
    Rule {
        metric: Metric::DiskUsed,
        of: None,
        threshold,
        clear: None,
        for_ms: 0,
        severity: Severity::Warning,
        disabled: false,
    }
}

#[test]
fn a_host_is_told_when_it_has_something_else_and_not_all_the_time() {
    let (host, other) = (HostId::random(), HostId::random());
    let tellings = Tellings::new(Generations { all: 5, hosts: [(other, 4)].into() });
    let heard = |host, has, now| {
        tellings.heard(host, has, now);
        tellings.take(now).0.into_iter().collect::<Vec<_>>()
    };
    assert_eq!(heard(host, Some(5), 0), []);
    assert_eq!(heard(other, Some(9), 0), []);
    assert_eq!(heard(other, Some(5), 0), [(other, 0)]);
    assert_eq!(heard(host, None, 0), [(host, 0)]);
    // It does not understand, or has not heard yet.
    assert_eq!(heard(host, None, 59_999), []);
    // What it was told may be lost: it is told once more, whether it says something again or not.
    assert_eq!(tellings.take(59_999), ([].into(), Some(Duration::from_millis(1))));
    assert_eq!(tellings.take(60_000), ([(host, 0)].into(), None));
    assert_eq!(tellings.take(120_001), ([].into(), None));
    // Unless it says meanwhile that it has it.
    assert_eq!(heard(host, None, 119_000), []);
    assert_eq!(heard(host, Some(5), 119_001), []);
    assert_eq!(tellings.take(190_000), ([].into(), None));
    // A clock that was set back changes nothing.
    assert_eq!(heard(host, None, 10_000), [(host, 0)]);
    // What it has is newer than what there is.
    assert_eq!(heard(host, Some(7), 200_000), [(host, 7)]);
    tellings.set_generation(None, 10);
    tellings.owe(vec![host, other]);
    assert_eq!(tellings.take(200_001).0.len(), 2);
    assert_eq!((tellings.of(host), tellings.of(other)), (10, 14));
}

#[test]
fn who_comes_anew_and_who_was_told_something_older_is_told_at_once() {
    let host = HostId::random();
    let tellings = Tellings::new(Generations { all: 5, hosts: HashMap::new() });
    let check = |has, now, wanted: &[HostId], what: &str| {
        tellings.heard(host, Some(has), now);
        assert_eq!(tellings.take(now).0.into_keys().collect::<Vec<_>>(), wanted, "{what}");
    };
    check(4, 0, &[host], "it has others");
    check(4, 1_000, &[], "it was told a second ago");
    tellings.set_generation(None, 6);
    check(4, 2_000, &[host], "it was away when the rules changed, and was told of those before");
    check(4, 3_000, &[], "it was told a second ago");
    tellings.came(host);
    check(4, 4_000, &[host], "what it was told may have gone with its last life");
    check(4, 5_000, &[], "it was told a second ago");
    // There was no connection to tell it.
    tellings.told(host, None);
    check(4, 6_000, &[host], "it was not told");
    // The store made of it newer ones than it was to be told.
    tellings.set_generation(Some(host), 10);
    tellings.told(host, Some(16));
    check(4, 7_000, &[], "it was told those");
    // The store failed: it is tried again, and not at once.
    tellings.set_generation(None, 7);
    check(4, 8_000, &[host], "it was told of those before");
    tellings.failed(host, 0);
    assert_eq!(tellings.take(8_000), ([].into(), Some(Duration::from_secs(60))));
    assert_eq!(tellings.take(68_000).0, [(host, 0)].into());
    assert_eq!(tellings.take(200_000), ([].into(), None));
}

#[tokio::test]
async fn a_hosts_own_rule_stands_before_one_for_all_and_each_change_is_newer() {
    let fixture = Fixture::new().await;
    let (one, two) = (fixture.member("one").await.id, fixture.member("two").await.id);
    let shared = fixture.shared();
    let set = |host: Option<&str>, name: &str, threshold| {
        let new =
            api::NewAlertRule { name: name.parse().unwrap(), host: host.map(str::to_owned), rule: rule(threshold) };
        fixture.console.set_alert_rule(&ADMIN, new)
    };
    static ADMIN: std::sync::LazyLock<Name> = std::sync::LazyLock::new(admin);
    let thresholds = async |host| -> Vec<(String, f64)> {
        let rules = alert::rules_for(shared.store.read(), host).await.unwrap();
        rules.iter().map(|(name, rule)| (name.to_string(), rule.threshold)).collect()
    };
    let generations = || (shared.tellings.of(one), shared.tellings.of(two));
    assert_eq!(generations(), (0, 0));
    set(None, "disk", 0.8).await.unwrap();
    let first = generations();
    assert!(first.0 > 0 && first.0 == first.1);
    set(Some("one"), "disk", 0.6).await.unwrap();
    let second = generations();
    assert!(second.0 > first.0 && second.1 == first.1);
    assert_eq!(thresholds(one).await, [("disk".to_owned(), 0.6)]);
    assert_eq!(thresholds(two).await, [("disk".to_owned(), 0.8)]);
    // The same again changes nothing.
    set(Some("one"), "disk", 0.6).await.unwrap();
    assert_eq!(generations(), second);
    set(None, "other", 0.5).await.unwrap();
    let third = generations();
    assert!(third.0 > second.0 && third.1 > second.1);
    assert_eq!(alert::generations(shared.store.read()).await.unwrap().of(one), third.0, "it survives a restart");
    let disk = "disk".parse().unwrap();
    fixture.console.remove_alert_rule(&ADMIN, &disk, Some("one")).await.unwrap();
    assert!(generations().0 > third.0);
    assert!(fixture.console.remove_alert_rule(&ADMIN, &disk, Some("one")).await.is_err());
    assert_eq!(thresholds(one).await.len(), 2);
    assert_eq!(thresholds(one).await, thresholds(two).await);
    let refused = set(Some("nobody"), "disk", 0.5).await.unwrap_err();
    assert_eq!(refused.status, 404);
    assert_eq!(set(None, "disk", f64::NAN).await.unwrap_err().problem.code, "bad_rule");
    for index in 0..SCOPE_MAX - 2 {
        set(None, &format!("r{index}"), 0.5).await.unwrap();
    }
    assert_eq!(set(None, "last", 0.5).await.unwrap_err().problem.code, "too_many_rules");
    set(Some("two"), "last", 0.5).await.unwrap();
}

#[tokio::test]
async fn a_host_that_is_ahead_of_a_store_gets_newer_rules() {
    let fixture = Fixture::new().await;
    let host = fixture.member("h").await.id;
    let ahead = u64::try_from(now_ms()).unwrap() + 1_000_000;
    tell(fixture.shared(), host, ahead).await.unwrap();
    assert!(fixture.shared().tellings.of(host) > ahead);
    // One that claims to be at the end of time stays there alone.
    tell(fixture.shared(), host, u64::MAX).await.unwrap();
    assert_eq!(fixture.shared().tellings.of(HostId::random()), 0);
    let new = api::NewAlertRule { name: "disk".parse().unwrap(), host: None, rule: rule(0.5) };
    fixture.console.set_alert_rule(&admin(), new).await.unwrap();
    let of_others = fixture.shared().tellings.of(HostId::random());
    assert!(of_others > 0 && of_others < ahead);
}
