//! What people see of a change on a host: its tasks over the API, what it owes, what others have changed, and a webhook that is
//! told of tasks that have ended.

use std::{fs, time::Duration};

use serde_json::{Value, json};

use crate::{
    fleet::{Fleet, Home, eventually, file},
    outlets::Hook,
    promql::Grafana,
    roles::Roles,
};

/// Writes the document of a unit of files that has one file with this text.
fn document(home: &Home, unit: &str, text: &str, more: &Value) -> String {
    let path = home.path().canonicalize().unwrap().join(format!("{unit}.conf"));
    let mut document = json!({
        "unit": format!("default/{unit}"), "kind": "files", "run": "running", "verify_after_ms": 1,
        "files": {path.to_str().unwrap(): {"text": text}}
    });
    document.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    file(home, &format!("{unit}.json"), &document.to_string())
}

#[test]
fn tasks_and_what_is_owed_are_in_the_api_and_in_unit_show() {
    let fleet = Fleet::start();
    let run = json!(["sh", "-c", "echo trying; exit 7"]);
    let more = json!({"on_change": [{"do": {"run": run}}], "drift": "report"});
    fleet.ok(&["unit", "apply", &document(&fleet.home, "config", "right\n", &more)]);
    let unit = fleet.unit("default/config", |unit| unit["observed"]["owed"][0]["attempts"] == 1);
    let owed = &unit["observed"]["owed"];
    assert_eq!((owed.as_array().unwrap().len(), &owed[0]["error"]), (1, &json!({"message": "exit code 7"})));
    let path = fleet.home.path().join("config.conf");
    fs::write(&path, "wrong\n").unwrap();
    fleet.unit("default/config", |unit| unit["observed"]["drift"][0].is_object());
    let shown = fleet.ok(&["unit", "show", "default/config"]);
    let has = |words: &[&str]| {
        shown.lines().any(|line| words.iter().all(|word| line.contains(word))) || panic!("{words:?}: {shown}")
    };
    assert!(has(&["others changed", "config.conf"]));
    assert!(has(&["owes", "run sh -c echo trying; exit 7", "retried", "exit code 7"]));

    let api = Grafana::new(&fleet);
    let get = |unit: &str, query: &str| {
        let line = format!("GET /api/v1/hosts/{}/units/default/{unit}/tasks{query}", fleet.host());
        api.send(&line, &api.bearer(), "")
    };
    let (status, found) = get("config", "");
    assert_eq!(status, 200, "{found}");
    let of = |action: &str| {
        let tasks = found["tasks"].as_array().unwrap();
        tasks.iter().find(|task| task["action"] == action).unwrap_or_else(|| panic!("{action}: {found}"))
    };
    assert_eq!((&of("write")["state"], &of("notify")["state"]), (&json!("changed"), &json!("failed")));
    assert!(found["owed"][0].as_str().unwrap().ends_with("exit code 7") && found["log"].is_null(), "{found}");
    let (status, found) = get("config", &format!("?log={}", of("notify")["number"]));
    assert_eq!((status, &found["log"]["text"]), (200, &json!("trying\n")), "{found}");
    let (_, found) = get("config", &format!("?log={}&from={}", found["tasks"][0]["number"], 3));
    assert_eq!(found["log"]["text"], "ing\n", "{found}");
    for (unit, query, wanted) in [("config", "?log=4711", 404), ("none", "", 404), ("config", "?log=x", 400)] {
        let (status, problem) = get(unit, query);
        assert_eq!(status, wanted, "{problem}");
    }
}

/// What the webhook was told of this unit's tasks: number and state of each.
fn told(hook: &Hook, unit: &str) -> Vec<(u64, String)> {
    let asked = hook.asked.lock().unwrap().clone();
    let events = asked.iter().map(|asked| asked.json()).filter(|event| event["event"] == "tasks");
    let tasks = events.flat_map(|event| event["tasks"].as_array().unwrap().clone());
    let of_unit = tasks.filter(|one| one["task"]["unit"] == unit && one["hostname"].is_string());
    of_unit
        .map(|one| (one["task"]["number"].as_u64().unwrap(), one["task"]["state"].as_str().unwrap().to_owned()))
        .collect()
}

/// Waits until the console has stored that the webhook was told of every task.
fn wait_until_noted(roles: &Roles) {
    let question = "SELECT count(*) FROM task_end_told WHERE n = (SELECT max(n) FROM task_end)";
    eventually("what the webhook was told", || match roles.home.stored::<i64>("console/console.db", question)? {
        1 => Ok(()),
        noted => Err(format!("{noted} outlets")),
    });
}

#[test]
fn webhook_is_told_of_ended_tasks_whoever_is_killed() {
    let home = Home::new();
    let hook = Hook::start();
    let outlet = format!("[[alert_outlets]]\nkind = \"webhook\"\nurl = \"{}\"\ntasks = true\n", hook.url);
    let mut roles = Roles::start_in(home, outlet);
    let agent = roles.agent(&["--join", &roles.token()]);
    roles.wait_for_host("online");
    roles.ok(&["unit", "apply", &document(&roles.home, "config", "right\n", &json!({}))]);
    // Its first two answers were no.
    let first = eventually("the first task", || match told(&hook, "default/config") {
        told if told.is_empty() => Err(String::new()),
        told => Ok(told),
    });
    assert!(first.iter().all(|(_, state)| state == "changed"), "{first:?}");
    wait_until_noted(&roles);

    // The console is killed, a change is put right, and the agent is killed before anybody was told.
    roles.kill_console();
    let path = roles.home.path().join("config.conf");
    fs::write(&path, "wrong\n").unwrap();
    eventually("the file is put right", || match fs::read_to_string(&path).unwrap().as_str() {
        "right\n" => Ok(()),
        other => Err(other.to_owned()),
    });
    agent.kill();
    let agent = roles.agent(&[]);
    roles.start_console();
    let second = eventually("the second task", || match told(&hook, "default/config") {
        told if told.len() > first.len() => Ok(told),
        told => Err(format!("{told:?}")),
    });
    assert!(second[first.len()..].iter().all(|(number, _)| first.iter().all(|(before, _)| before != number)));

    // A console that is killed right after it has noted that says it no second time.
    wait_until_noted(&roles);
    roles.restart_console();
    roles.wait_for_host("online");
    fs::write(&path, "wrong again\n").unwrap();
    let third = eventually("the third task", || match told(&hook, "default/config") {
        told if told.len() > second.len() => Ok(told),
        told => Err(format!("{told:?}")),
    });
    std::thread::sleep(Duration::from_secs(1));
    let mut numbers: Vec<u64> = told(&hook, "default/config").into_iter().map(|(number, _)| number).collect();
    let count = numbers.len();
    numbers.dedup();
    assert!(numbers.len() == count && count >= third.len(), "{numbers:?}");
    let (code, _) = agent.stop();
    assert_eq!(code, 0);
}
