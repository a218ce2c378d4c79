//! The state of hosts and alerts as series.

use serde_json::Value;

use crate::{fleet::eventually, roles::Roles};

/// The only value of an expression, once it is `wanted`; gives its labels.
#[track_caller]
fn value(roles: &Roles, expression: &str, wanted: f64) -> Value {
    eventually(&format!("{expression} to be {wanted}"), || {
        let answer = roles.json(&["metric", "query", expression]);
        let found = &answer["series"][0];
        if found["points"][0][1].as_f64() == Some(wanted) {
            Ok(found["labels"].clone())
        } else {
            Err(answer.to_string())
        }
    })
}

#[test]
fn presence_and_alerts_are_series() {
    let roles = Roles::start();
    let agent = roles.agent(&["--join", &roles.token()]);
    roles.wait_for_host("online");
    let labels = value(&roles, "muster_host_online", 1.0);
    assert_eq!(labels["host"], roles.json(&["host", "ls"])[0]["id"]);

    roles.ok(&["rule", "set", "tight", "--metric", "memory_used", "--level", "0.1%", "--severity", "critical"]);
    let tight = "muster_alert_active{rule=\"tight\"}";
    let labels = value(&roles, tight, 1.0);
    assert_eq!((labels["severity"].as_str(), labels["subject"].as_str()), (Some("critical"), Some("host")));
    assert_eq!(labels["hostname"], roles.json(&["host", "ls"])[0]["hostname"]);
    roles.ok(&["rule", "set", "tight", "--level", "99.9%"]);
    value(&roles, tight, 0.0);

    agent.kill();
    roles.wait_for_host("offline");
    value(&roles, "muster_host_online", 0.0);
    assert_eq!(value(&roles, "count(muster_host_online)", 1.0), serde_json::json!({}));
}
