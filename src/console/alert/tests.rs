use muster_topics::{
    alert::{Metric, Severity},
    numbered::NumberedKind,
};

use super::*;
use crate::{
    numbered,
    testing::{Fixture, admin},
};

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

#[tokio::test]
async fn host_rule_overrides_fleet_rule() {
    let fixture = Fixture::new().await;
    let (one, two) = (fixture.member("one").await.id, fixture.member("two").await.id);
    let shared = fixture.shared();
    let set = |host: Option<&str>, name: &str, threshold| {
        let new = muster_api::NewAlertRule {
            name: name.parse().unwrap(),
            host: host.map(str::to_owned),
            rule: rule(threshold),
        };
        fixture.console.set_alert_rule(&ADMIN, new)
    };
    static ADMIN: std::sync::LazyLock<Name> = std::sync::LazyLock::new(admin);
    let thresholds = async |host| -> Vec<(String, f64)> {
        let rules = alert::rules_for(shared.store.read(), host).await.unwrap();
        rules.iter().map(|(name, rule)| (name.to_string(), rule.threshold)).collect()
    };
    let generations = || (shared.hosts.rules.of(one), shared.hosts.rules.of(two));
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
async fn host_ahead_of_the_store_gets_newer_rules() {
    let fixture = Fixture::new().await;
    let host = fixture.member("h").await.id;
    let ahead = u64::try_from(now_ms()).unwrap() + 1_000_000;
    numbered::tell(fixture.shared(), NumberedKind::AlertRules, host, ahead).await.unwrap();
    assert!(fixture.shared().hosts.rules.of(host) > ahead);
    // One that claims to be at the end of time stays there alone.
    numbered::tell(fixture.shared(), NumberedKind::AlertRules, host, u64::MAX).await.unwrap();
    assert_eq!(fixture.shared().hosts.rules.of(HostId::random()), 0);
    let new = muster_api::NewAlertRule { name: "disk".parse().unwrap(), host: None, rule: rule(0.5) };
    fixture.console.set_alert_rule(&admin(), new).await.unwrap();
    let of_others = fixture.shared().hosts.rules.of(HostId::random());
    assert!(of_others > 0 && of_others < ahead);
}
