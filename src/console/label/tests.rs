use muster_api::{LabelHosts, NewTarget};

use super::*;
use crate::testing::{Fixture, admin};

fn names(names: &[&str]) -> NewTarget {
    NewTarget::Hosts(names.iter().map(|name| (*name).to_owned()).collect())
}

fn wanted(target: NewTarget, words: &str, replace: bool) -> LabelHosts {
    let mut wanted = LabelHosts { target, set: BTreeMap::new(), remove: Default::default(), replace };
    for word in words.split_whitespace() {
        match word.split_once('=') {
            Some((name, value)) => drop(wanted.set.insert(name.parse().unwrap(), value.parse().unwrap())),
            None => drop(wanted.remove.insert(word.trim_end_matches('-').parse().unwrap())),
        }
    }
    wanted
}

/// What a host has said of its labels: `has` as it carries them, `own` of them by its own configuration.
async fn say(
    fixture: &Fixture,
    host: HostId,
    labels: serde_json::Value,
    own: Option<serde_json::Value>,
    has: Option<u64>,
) {
    let sample = crate::web::sample_host().state.unwrap().value;
    let mut state = serde_json::to_value(sample).unwrap();
    state["labels"] = labels;
    if let Some(own) = own {
        state["own_labels"] = own;
    }
    if let Some(has) = has {
        state["numbers"] = serde_json::json!({ "host_labels": has });
    }
    sqlx::query(
        "INSERT INTO heartbeat (host, epoch, seq, state, at_ms) VALUES ($1, 1, 1, $2, 1)
         ON CONFLICT (host) DO UPDATE SET state = excluded.state",
    )
    .bind(host.to_string())
    .bind(state.to_string())
    .execute(fixture.shared().store.write())
    .await
    .unwrap();
    fixture.shared().hosts.labels.confirm(host, has, 0);
}

fn line(host: &LabelledHost) -> String {
    let label = |label: &HostLabel| {
        let hides = label.hides.as_ref().map(|hides| format!(" over {hides}")).unwrap_or_default();
        format!("{}={} {}{hides}", label.name, label.value, label.origin.word())
    };
    host.labels.iter().map(label).collect::<Vec<_>>().join(", ")
}

#[tokio::test]
async fn console_label_overrides_own_until_removed() {
    let fixture = Fixture::new().await;
    let host = fixture.member("one").await.id;
    let console = &fixture.console;
    say(&fixture, host, serde_json::json!({"site": "north"}), None, None).await;
    let change = async |words: &str, replace| {
        let changed = console.label_hosts(&admin(), wanted(names(&["one"]), words, replace)).await;
        changed.map(|hosts| line(&hosts[0])).map_err(|error| error.problem.code)
    };
    let picked = async |text: &str| {
        let target = NewTarget::Select(text.parse().unwrap());
        dispatch::target_hosts(fixture.shared(), &target).await.is_ok()
    };
    assert_eq!(change("", false).await.unwrap(), "site=north agent");
    assert!(fixture.shared().hosts.labels.is_confirmed(host), "nothing was ever given");
    assert_eq!(change("site=south", false).await, Err("label_exists".to_owned()));
    assert_eq!(
        change("site=north canary=yes", false).await.unwrap(),
        "canary=yes console, site=north console over north"
    );
    assert_eq!(change("site=south", true).await.unwrap(), "canary=yes console, site=south console over north");
    // Selectors go by it before the host has heard it.
    assert_eq!((picked("label.site=south").await, picked("label.site=north").await), (true, false));
    assert!(dispatch::target_hosts(fixture.shared(), &NewTarget::Group("canary".parse().unwrap())).await.is_ok());
    let generation = fixture.shared().hosts.labels.tellings.of(host);
    assert!(generation > 0 && !fixture.shared().hosts.labels.is_confirmed(host));
    // The same again changes nothing.
    change("site=south", false).await.unwrap();
    assert_eq!(fixture.shared().hosts.labels.tellings.of(host), generation);
    // The host has it, and still tells what its own are.
    let (merged, own) = (serde_json::json!({"site": "south", "canary": "yes"}), serde_json::json!({"site": "north"}));
    say(&fixture, host, merged, Some(own), Some(generation)).await;
    assert!(fixture.shared().hosts.labels.is_confirmed(host));
    assert_eq!(change("", false).await.unwrap(), "canary=yes console, site=south console over north");
    assert_eq!(change("site- canary- nothing-", false).await.unwrap(), "site=north agent");
    assert!(picked("label.site=north").await && !picked("label.canary").await);
    assert_eq!(change("site-", false).await.unwrap(), "site=north agent", "its own cannot be taken from here");
    assert!(fixture.shared().hosts.labels.tellings.of(host) > generation);
    let kept = label::generations(fixture.shared().store.read()).await.unwrap();
    assert_eq!(kept.of(host), fixture.shared().hosts.labels.tellings.of(host), "it survives a restart");
}

#[tokio::test]
async fn labels_of_many_hosts_are_all_or_nothing() {
    let fixture = Fixture::new().await;
    let (one, two) = (fixture.member("one").await.id, fixture.member("two").await.id);
    let console = &fixture.console;
    let change = async |target, words: &str| console.label_hosts(&admin(), wanted(target, words, false)).await;
    change(names(&["two"]), "tier=gold").await.unwrap();
    let refused = change(NewTarget::All, "tier=iron").await.unwrap_err();
    assert_eq!((refused.status, refused.problem.code.as_str()), (409, "label_exists"));
    assert!(refused.problem.diagnostic.cause.ends_with("two has tier=gold"), "{}", refused.problem.diagnostic.cause);
    assert_eq!(line(&console.host_labels("one").await.unwrap()), "");
    let picked = NewTarget::Select("not label.tier".parse().unwrap());
    assert_eq!(change(picked, "tier=iron").await.unwrap().iter().map(|host| host.host).collect::<Vec<_>>(), [one]);
    let hosts = console.hosts().await.unwrap();
    let shown: Vec<_> = hosts.iter().map(|host| (host.id, host.labels[0].value.as_str())).collect();
    assert_eq!(shown, [(one, "iron"), (two, "gold")]);
    let many: String = (0..HOST_LABELS_MAX).map(|index| format!("l{index}=1 ")).collect();
    assert_eq!(change(names(&["one"]), &many).await.unwrap_err().problem.code, "too_many_labels");
    change(names(&["one"]), &format!("{many} tier-")).await.unwrap();
    assert_eq!(change(names(&["nobody"]), "a=1").await.unwrap_err().status, 404);
    let both = change(names(&["one"]), "a=1 a-").await.unwrap_err();
    assert_eq!(both.problem.code, "bad_label");
    // What was removed is forgotten.
    sqlx::query("UPDATE presence SET state = 'offline'").execute(fixture.shared().store.write()).await.unwrap();
    console.remove_host(&admin(), "one").await.unwrap();
    assert!(!label::given(fixture.shared().store.read(), None).await.unwrap().contains_key(&one));
}

#[tokio::test]
async fn host_that_has_newer_labels_is_sent_none_and_its_word_is_no_label() {
    let fixture = Fixture::new().await;
    let host = fixture.member("h").await.id;
    let labels = || &fixture.shared().hosts.labels;
    let ahead = u64::try_from(now_ms()).unwrap() + 1_000_000;
    // It claims labels that nobody here has given it.
    say(&fixture, host, serde_json::json!({"tier": "gold"}), Some(serde_json::json!({})), Some(ahead)).await;
    assert_eq!(labels().tellings.take(0).0, [].into(), "nothing is owed to it");
    assert_eq!(numbered::tell(fixture.shared(), NumberedKind::HostLabels, host, ahead).await.unwrap(), None);
    assert_eq!((labels().tellings.of(host), labels().newer(host)), (0, Some(ahead)));
    assert!(send_labels_first(fixture.shared(), host).await, "commands do not wait");
    assert_eq!(line(&fixture.console.host_labels("h").await.unwrap()), "");
    let target = NewTarget::Group("tier".parse().unwrap());
    assert!(dispatch::target_hosts(fixture.shared(), &target).await.is_err());
    // Labels that are changed would be all that it has.
    let refused = fixture.console.label_hosts(&admin(), wanted(names(&["h"]), "site=north", false)).await.unwrap_err();
    assert_eq!(refused.problem.code, "labels_unconfirmed");
    assert_eq!(line(&fixture.console.host_labels("h").await.unwrap()), "");
    // No console makes such a number: it is sent what it should have.
    say(&fixture, host, serde_json::json!({}), None, Some(u64::MAX)).await;
    assert_eq!(labels().newer(host), None);
    fixture.console.label_hosts(&admin(), wanted(names(&["h"]), "site=north", false)).await.unwrap();
    assert_eq!(line(&fixture.console.host_labels("h").await.unwrap()), "site=north console");
}
