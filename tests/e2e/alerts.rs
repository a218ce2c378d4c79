//! Alerts of hosts and units: raised, kept, reported late, silenced, cleared.

use std::{fs, path::Path, process::Command};

use serde_json::Value;

use crate::{
    fleet::{Fleet, Running, eventually, file},
    roles::Roles,
};

/// A rule that every host breaks: some memory is always used.
const TIGHT: &str = "[alerts.rules.tight]\nmetric = \"memory_used\"\nthreshold = 0.001\n";

fn now_ms() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    i64::try_from(since.as_millis()).unwrap()
}

/// The alerts of a rule, those that hold or all, once `wanted` holds of them.
#[track_caller]
fn alerts(json: impl Fn(&[&str]) -> Value, verb: &str, rule: &str, wanted: impl Fn(&[Value]) -> bool) -> Vec<Value> {
    eventually(&format!("{verb} {rule}"), || {
        let listed = json(&["alert", verb, "--rule", rule]);
        let list = listed.as_array().unwrap();
        if wanted(list) { Ok(list.clone()) } else { Err(listed.to_string()) }
    })
}

#[track_caller]
fn raised(roles: &Roles, rule: &str) -> Value {
    alerts(|args| roles.json(args), "ls", rule, |list| list.len() == 1).remove(0)
}

fn since(alert: &Value) -> i64 {
    alert["alert"]["since_ms"].as_i64().unwrap()
}

#[test]
fn threshold_alert_is_active_while_it_holds() {
    let roles = Roles::start();
    let agent = roles.agent(&["--join", &roles.token()]);
    roles.wait_for_host("online");
    assert_eq!(roles.json(&["alert", "ls"]), serde_json::json!([]));

    // The console's rule reaches the host, and the host says what it finds.
    roles.ok(&["rule", "set", "tight", "--metric", "memory_used", "--level", "0.1%", "--severity", "critical"]);
    let first = raised(&roles, "tight");
    let alert = &first["alert"];
    assert_eq!((alert["severity"].as_str(), alert["state"].as_str()), (Some("critical"), Some("raised")));
    assert!(alert["value"].as_f64().unwrap() > 0.001, "{alert}");
    assert!(roles.ok(&["alert", "ls"]).contains("memory used"));
    // Its heartbeats say so, too, and by which rules it goes.
    eventually("a heartbeat with the alert", || {
        let state = &roles.json(&["host", "ls"])[0]["state"]["value"];
        let told =
            state["alerts"]["tight"]["since_ms"] == alert["since_ms"] && state["numbers"]["alert_rules"].is_u64();
        if told { Ok(()) } else { Err(state.to_string()) }
    });

    let silenced = roles.json(&["silence", "create", "--rule", "tight", "--for", "1h", "--reason", "it is a test"]);
    let shown = raised(&roles, "tight");
    assert_eq!(shown["silence"]["reason"], "it is a test");
    roles.ok(&["silence", "rm", silenced[0]["id"].as_str().unwrap()]);
    assert_eq!(raised(&roles, "tight")["silence"], Value::Null);

    // A restart in between, and it is the same alert.
    agent.kill();
    roles.wait_for_host("offline");
    let agent = roles.agent(&[]);
    roles.wait_for_host("online");
    eventually("news of the alert", || {
        let shown = raised(&roles, "tight");
        if shown["alert"]["epoch"].as_u64() > alert["epoch"].as_u64() { Ok(()) } else { Err(shown.to_string()) }
    });
    assert_eq!(since(&raised(&roles, "tight")), since(&first));

    // With another threshold it is over.
    roles.ok(&["rule", "set", "tight", "--level", "99.9%"]);
    alerts(|args| roles.json(args), "ls", "tight", <[Value]>::is_empty);
    let history = alerts(|args| roles.json(args), "history", "tight", |list| list[0]["standing"] == "cleared");
    assert_eq!((history.len(), since(&history[0])), (1, since(&first)));
    assert!(history[0]["ended_ms"].as_i64().unwrap() >= since(&first));

    roles.ok(&["rule", "rm", "tight"]);
    assert_eq!(roles.json(&["rule", "ls"]), serde_json::json!([]));
    for wrong in [
        &["rule", "rm", "tight"][..],
        &["silence", "rm", "nothing"],
        &["rule", "set", "cpu", "--level", "50%", "--clear", "60%"],
        &["rule", "set", "cpu", "--of", "/"],
    ] {
        let run = roles.home.muster(wrong);
        assert!((1..=3).contains(&run.code), "{run:?}");
        assert!(run.stderr.contains("error:"), "{run:?}");
    }
    let (code, _) = agent.stop();
    assert_eq!(code, 0);
}

/// How many alerts of a state an agent's store holds.
fn kept(store: &Path, state: &str) -> String {
    let question = format!("SELECT count(*) FROM alert WHERE state = '{state}'");
    let asked = Command::new("sqlite3").arg("-readonly").arg(store).arg(question).output().unwrap();
    String::from_utf8_lossy(&asked.stdout).trim().to_owned()
}

fn wait_until_kept(roles: &Roles, state: &str) {
    let store = roles.home.path().join("agent/agent.db");
    eventually(state, || match kept(&store, state).as_str() {
        "1" => Ok(()),
        other => Err(other.to_owned()),
    });
}

fn with_config(roles: &Roles, more: &str) -> Running {
    let path = roles.agent_config_with(more);
    Running::start(roles.home.command().args(["agent", "--config", &path]))
}

#[test]
fn offline_alert_arrives_with_its_own_times() {
    let mut roles = Roles::start();
    let agent = roles.agent(&["--join", &roles.token()]);
    roles.wait_for_host("online");
    agent.kill();
    roles.wait_for_host("offline");
    let quiet = "[alerts]\ndefaults = false\n";
    let agent = with_config(&roles, quiet);
    roles.wait_for_host("online");
    agent.kill();
    roles.wait_for_host("offline");

    roles.kill_broker();
    let before_ms = now_ms();
    let agent = with_config(&roles, &format!("{quiet}{TIGHT}"));
    wait_until_kept(&roles, "raised");
    let raised_ms = now_ms();
    agent.kill();
    // Nobody asks for it any more, and nobody hears that it is over.
    let agent = with_config(&roles, quiet);
    wait_until_kept(&roles, "cleared");
    let cleared_ms = now_ms();
    agent.kill();
    // And once more, to stay.
    let agent = with_config(&roles, &format!("{quiet}{TIGHT}"));
    wait_until_kept(&roles, "raised");
    let again_ms = now_ms();

    roles.revive_broker();
    let history = alerts(|args| roles.json(args), "history", "tight", |list| list.len() == 2);
    let (second, first) = (&history[0], &history[1]);
    assert_eq!((first["standing"].as_str(), second["standing"].as_str()), (Some("cleared"), Some("raised")));
    assert!((before_ms..=raised_ms).contains(&since(first)), "{first}");
    assert!((raised_ms..=cleared_ms).contains(&first["ended_ms"].as_i64().unwrap()), "{first}");
    assert!((cleared_ms..=again_ms).contains(&since(second)), "{second}");
    // It is known, and so forgotten.
    eventually("an empty store", || match kept(&roles.home.path().join("agent/agent.db"), "cleared").as_str() {
        "0" => Ok(()),
        other => Err(other.to_owned()),
    });
    let (code, _) = agent.stop();
    assert_eq!(code, 0);
}

#[test]
fn cloned_folder_raises_duplicate_alert() {
    let roles = Roles::start();
    let agent = roles.agent(&["--join", &roles.token()]);
    let host = roles.wait_for_host("online");
    let (original, copy) = (roles.home.path().join("agent"), roles.home.path().join("copy"));
    let copied = Command::new("cp").arg("-a").arg(&original).arg(&copy).status().unwrap();
    assert!(copied.success());
    let config = fs::read_to_string(roles.agent_config()).unwrap().replace("/agent\"", "/copy\"");
    let config = file(&roles.home, "copy.toml", &config);
    let mut twin = Running::start(roles.home.command().args(["agent", "--config", &config]));
    let alert = raised(&roles, "duplicate");
    assert_eq!((&alert["host"], &alert["alert"]["severity"]), (&host["id"], &serde_json::json!("critical")));
    // The twin knows better than to go on, and the host is there all the same.
    twin.wait_for("a twin that withdraws", |printed| printed.contains("duplicate: another agent").then_some(()));
    roles.ok(&["exec", "--", "true"]);
    twin.kill();
    let (code, _) = agent.stop();
    assert_eq!(code, 0);
}

#[test]
fn broken_unit_raises_and_clears_alert() {
    let mut fleet = Fleet::start();
    let path = file(&fleet.home, "crashes", "#!/bin/sh\nexit 3\n");
    fleet.ok(&["artifact", "create", &path, "--role", "crashes", "--version", "1"]);
    fleet.muster(&["yuno", "create", "default/crashes", "--artifact", "crashes@1", "--run", "--no-wait"]);
    fleet.unit_in_phase("default/crashes", "backoff");
    // Two days later.
    let database = fleet.data().join("agent/agent.db");
    fleet.stop();
    let later = "UPDATE unit SET observed = json_set(observed, '$.attempts', 199, '$.retry_ms', 1)";
    let edited = Command::new("sqlite3").arg(&database).arg(later).output().unwrap();
    assert!(edited.status.success(), "{edited:?}");
    fleet.again();
    let broken = alerts(|args| fleet.json(args), "ls", "unit-broken", |list| list.len() == 1);
    assert_eq!(broken[0]["alert"]["unit"], "default/crashes");
    alerts(|args| fleet.json(args), "ls", "unit-restarts", |list| list.len() == 1);
    fleet.ok(&["yuno", "stop", "default/crashes"]);
    alerts(|args| fleet.json(args), "ls", "unit-broken", <[Value]>::is_empty);
    let history = alerts(|args| fleet.json(args), "history", "unit-broken", |list| list[0]["standing"] == "cleared");
    assert_eq!(since(&history[0]), since(&broken[0]));
    fleet.ok(&["unit", "retire", "default/crashes"]);
    fleet.ok(&["unit", "rm", "default/crashes"]);
    alerts(|args| fleet.json(args), "ls", "unit-restarts", <[Value]>::is_empty);
}
