//! Desired state: whoever dies, a host has the last version in the end, and starts each version once.

use serde_json::{Value, json};

use super::stage::{Party, Stage};
use crate::fleet::{eventually, file};

const DEPLOYMENT: &str = "default/shop";

/// Notes each of its starts with the version that it is told.
const SHOP: &str = "#!/bin/sh\necho $1 >> starts\nexec sleep 100000\n";

/// A version reaches its host whoever is killed once it is applied.
pub(super) fn each_version_reaches_the_host_once(stage: &mut Stage) {
    add_program(stage);
    apply(stage, 1);
    verified(stage, 1);
    for (version, victims) in [
        (2, &[Party::Agent][..]),
        (3, &[Party::Console]),
        (4, &[Party::Console, Party::Agent]),
        // It comes back empty: the head is retained again, by whoever made it.
        (5, &[Party::Broker]),
    ] {
        apply(stage, version);
        victims.iter().for_each(|victim| stage.kill(*victim));
        victims.iter().for_each(|victim| stage.start_party(*victim));
        verified(stage, version);
    }
    stage.bus.wait_for_retained(&stage.topic("desired"), "desired_head");
    // It is away while two versions go by: it starts the last one only.
    stage.kill(Party::Agent);
    apply(stage, 6);
    apply(stage, 7);
    stage.start_party(Party::Agent);
    verified(stage, 7);
    assert_eq!(starts(stage), ["1", "2", "3", "4", "5", "7"]);
    stage.ok(&["deployment", "rm", DEPLOYMENT, "--yes", "--no-wait"]);
    eventually("the end of the unit", || {
        let found = stage.request("GET", "/units", None);
        let is_there = found.as_array().unwrap().iter().any(|unit| unit["unit"] == DEPLOYMENT);
        if is_there { Err(found.to_string()) } else { Ok(()) }
    });
    stage.lap("desired state");
}

/// A document that was retained before, or that somebody has changed, stops nothing and changes nothing.
pub(super) fn stale_and_forged_documents_change_nothing(stage: &mut Stage) {
    let topic = stage.topic("desired");
    apply(stage, 11);
    verified(stage, 11);
    let old = stage.bus.retained(&topic).unwrap();
    apply(stage, 12);
    verified(stage, 12);
    let present = stage.bus.retained(&topic).unwrap();
    let pid = running(stage)["observed"]["pid"].clone();
    let forged = present.replace("\\\"generation\\\":", "\\\"generation\\\":9");
    assert!(forged != present && old != present, "{present}");
    for payload in [old.as_str(), &forged, &present[..present.len() / 2], "{}", "null", &"x".repeat(60_000)] {
        stage.bus.publish(&topic, payload, 1);
    }
    // What is ordered after them is done after them.
    stage.succeeds(&stage.exec("true"));
    verified(stage, 12);
    assert_eq!(running(stage)["observed"]["pid"], pid);
    // What the unit had written before it was removed was given back to it.
    assert_eq!(starts(stage), ["1", "2", "3", "4", "5", "7", "11", "12"]);
    stage.ok(&["deployment", "rm", DEPLOYMENT, "--yes", "--no-wait"]);
    stage.lap("forged documents");
}

/// A version that is rolled out is asked for, admitted, begun and ended, whoever is killed meanwhile, and begins once.
pub(super) fn each_rollout_reaches_the_host_once(stage: &mut Stage) {
    for (version, victims) in [
        (21, &[][..]),
        (22, &[Party::Agent]),
        (23, &[Party::Console]),
        (24, &[Party::Console, Party::Agent]),
        (25, &[Party::Broker]),
    ] {
        roll_out(stage, version);
        victims.iter().for_each(|victim| stage.kill(*victim));
        victims.iter().for_each(|victim| stage.start_party(*victim));
        verified(stage, version);
        eventually("the end of the rollout", || {
            let shown = stage.ask("GET", &format!("/rollouts/{DEPLOYMENT}"), None)?;
            let has_ended = shown["phase"]["kind"] == "completed" && shown["outcomes"] == json!({"verified": 1});
            if has_ended && shown["in_flight"] == 0 { Ok(()) } else { Err(shown.to_string()) }
        });
    }
    assert_eq!(starts(stage)[8..], ["21", "22", "23", "24", "25"]);
    stage.ok(&["deployment", "rm", DEPLOYMENT, "--yes", "--no-wait"]);
    stage.lap("rollouts");
}

/// Adds the program that the versions of the deployment run.
pub(super) fn add_program(stage: &Stage) {
    let program = file(&stage.home, "shop", SHOP);
    stage.ok(&["artifact", "create", &program, "--role", "shop", "--version", "1"]);
}

#[track_caller]
pub(super) fn apply(stage: &Stage, version: u32) {
    try_apply(stage, version).unwrap();
}

/// Applies a version to a console that may be away.
pub(super) fn try_apply(stage: &Stage, version: u32) -> Result<(), String> {
    publish(stage, version, json!({}))
}

fn roll_out(stage: &Stage, version: u32) {
    publish(stage, version, json!({"rollout": {}})).unwrap();
}

fn publish(stage: &Stage, version: u32, more: Value) -> Result<(), String> {
    let mut document = json!({
        "deployment": DEPLOYMENT,
        "target": {"select": format!("host={}", stage.host)},
        "units": [{"name": "shop", "artifact": "shop@1", "args": [version.to_string()]}],
    });
    document.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let body = json!({ "documents": [{"source": "a test", "content": document}] });
    stage.ask("POST", "/deployments", Some(&body)).map(drop)
}

/// Waits until the host runs a version, by its argument.
#[track_caller]
pub(super) fn verified(stage: &Stage, version: u32) {
    eventually("a verified version", || {
        let shown = stage.ask("GET", &format!("/deployments/{DEPLOYMENT}"), None)?;
        let host = &shown["on_hosts"][0];
        let argument = &shown["content"][0]["spec"]["args"][0];
        let is_it = host["state"] == "verified"
            && host["version"] == host["wanted"]
            && argument.as_str() == Some(version.to_string().as_str());
        if is_it { Ok(()) } else { Err(shown.to_string()) }
    });
}

fn running(stage: &Stage) -> Value {
    stage.request("GET", &format!("/hosts/{}/units/{DEPLOYMENT}", stage.host), None)
}

/// The versions that were started, in order.
pub(super) fn starts(stage: &Stage) -> Vec<String> {
    let noted = stage.home.path().join("agent/units").join(DEPLOYMENT).join("work/starts");
    std::fs::read_to_string(noted).unwrap().lines().map(str::to_owned).collect()
}
