//! Documents that say what units should be: applied, shown, exported, and applied again.

use serde_json::{Value, json};

use crate::fleet::{Fleet, file};

const PROGRAM: &str = "#!/bin/sh\nwhile :; do sleep 0.1; done\n";

fn fleet() -> Fleet {
    let fleet = Fleet::start();
    for version in ["1", "2"] {
        let path = file(&fleet.home, "till", &format!("{PROGRAM}# {version}\n"));
        fleet.ok(&["artifact", "add", &path, "--role", "till", "--version", version]);
        let path = file(&fleet.home, "base.json", &json!({ "version": version }).to_string());
        fleet.ok(&["config", "add", "base", version, &path]);
    }
    fleet
}

fn generation(fleet: &Fleet, unit: &str) -> Value {
    fleet.json(&["unit", "show", unit])["desired"]["generation"].clone()
}

/// Unit, action and cost of each line of an answer.
fn told(answer: &Value) -> Vec<[&str; 3]> {
    let words =
        |unit: &'_ Value| ["unit", "action", "cost"].map(|key| unit[key].as_str().unwrap_or_default().to_owned());
    let all: Vec<[String; 3]> = answer.as_array().unwrap().iter().map(words).collect();
    all.into_iter().map(|words| words.map(|word| &*word.leak())).collect()
}

#[test]
fn what_is_applied_is_made_so_and_then_left_alone() {
    let fleet = fleet();
    let path = file(
        &fleet.home,
        "shop.yaml",
        "unit: default/till\nartifact: till@1\nconfigs: [base@1]\nrun: running\nenv: {TOKEN: hunter2-hunter2}\n\
         ---\nunits:\n- {unit: default/spare, artifact: till@1, labels: {tier: gold}}\n",
    );
    let apply = |more: &[&str]| fleet.json(&[&["unit", "apply", &path], more].concat());

    let planned = apply(&["--dry-run"]);
    assert_eq!(told(&planned), [["default/till", "create", "start"], ["default/spare", "create", "in_place"]]);
    let shown = fleet.ok(&["unit", "apply", &path, "--dry-run"]);
    assert!(shown.contains("till@1") && shown.contains("***") && !shown.contains("hunter2"), "{shown}");
    fleet.muster(&["unit", "show", "default/till"]).expect_code(1);

    let done = apply(&[]);
    assert!(done.as_array().unwrap().iter().all(|unit| unit["done"] == true), "{done}");
    let till = fleet.unit_in_phase("default/till", "running");
    fleet.unit_in_phase("default/spare", "stopped");

    let again = fleet.muster(&["unit", "apply", &path]).expect_code(0);
    assert!(again.stderr.contains("2 units: 0 created, 0 changed, 2 unchanged"), "{}", again.stderr);
    assert_eq!(generation(&fleet, "default/till"), till["desired"]["generation"]);

    // What is so by other means is so: the document asks for no restart.
    fleet.ok(&["yuno", "restart", "default/till"]);
    let restarted = generation(&fleet, "default/till");
    assert_eq!(told(&apply(&[]))[0], ["default/till", "unchanged", "in_place"]);
    assert_eq!(generation(&fleet, "default/till"), restarted);
}

#[test]
fn what_differs_is_shown_field_by_field_with_what_it_costs() {
    let fleet = fleet();
    let write = |text: &str| file(&fleet.home, "till.yaml", text);
    let plan = |text: &str| fleet.json(&["unit", "apply", &write(text), "--dry-run"])[0].clone();
    let unit = "unit: default/till\nartifact: till@1\nconfigs: [base@1]\nreload: signal\nrun: running\n";
    fleet.ok(&["unit", "apply", &write(&format!("{unit}env: {{TOKEN: hunter2, A: a}}\n"))]);
    let pid = fleet.unit_in_phase("default/till", "running")["observed"]["pid"].clone();
    let environment = "env: {TOKEN: hunter2, A: a}\n";
    let difference = |field: &str, from: Value, to: Value| json!({"field": field, "from": from, "to": to});

    let grace = plan(&format!("{unit}{environment}grace_ms: 5\n"));
    assert_eq!(
        (&grace["cost"], &grace["differences"]),
        (&json!("in_place"), &json!([difference("grace_ms", json!(30000), json!(5))]))
    );
    let reload = plan(&format!("{unit}{environment}").replace("base@1", "base@2"));
    assert_eq!(
        (&reload["cost"], &reload["differences"]),
        (&json!("reload"), &json!([difference("configs.0", json!("base@1"), json!("base@2"))]))
    );
    let restart = plan(&format!("{unit}{environment}").replace("till@1", "till@2"));
    assert_eq!(restart["cost"], "restart");
    let stop = plan(&format!("{unit}{environment}").replace("run: running", "run: stopped"));
    assert_eq!(
        (&stop["cost"], &stop["differences"]),
        (&json!("stop"), &json!([difference("run", json!("running"), json!("stopped"))]))
    );
    let secret = plan(&format!("{unit}env: {{TOKEN: hunter3, A: a}}\n"));
    assert_eq!(
        (&secret["cost"], &secret["differences"]),
        (&json!("restart"), &json!([difference("env (values)", json!("***"), json!("***"))]))
    );
    assert!(!secret.to_string().contains("hunter"), "{secret}");

    // A change in place leaves the process alone, and a mask the value.
    fleet.ok(&["unit", "apply", &write(&format!("{unit}env: {{TOKEN: '***', A: '***'}}\ngrace_ms: 5\n"))]);
    let after = fleet.json(&["unit", "show", "default/till"]);
    assert_eq!((&after["observed"]["pid"], &after["desired"]["spec"]["grace_ms"]), (&pid, &json!(5)));
    assert_eq!(plan(&format!("{unit}{environment}grace_ms: 5\n"))["action"], "unchanged");
}

#[test]
fn what_is_exported_changes_nothing_when_it_is_applied() {
    let fleet = fleet();
    fleet.ok(&[
        "yuno",
        "create",
        "default/till",
        "--artifact",
        "till@2",
        "--config",
        "base@2",
        "--arg",
        "-x",
        "--env",
        "TOKEN=hunter2",
        "--memory",
        "64M",
        "--cpu",
        "0.5",
        "--umask",
        "027",
        "--rlimit",
        "nofile=64:128",
        "--label",
        "tier=gold",
        "--provide",
        "web/udp",
        "--priority",
        "3",
        "--restart",
        "on-failure",
        "--stop-signal",
        "int",
        "--grace",
        "7s",
        "--reload",
        "signal",
        "--on-change",
        "/etc/hosts=restart",
        "--log-size",
        "64K",
        "--run",
    ]);
    fleet.ok(&["yuno", "restart", "default/till"]);
    let before = fleet.unit_in_phase("default/till", "running");
    for form in ["yaml", "json"] {
        let exported = fleet.ok(&["-o", form, "unit", "export"]);
        assert!(exported.contains("***") && !exported.contains("hunter2"), "{exported}");
        let path = file(&fleet.home, &format!("fleet.{form}"), &exported);
        let applied = fleet.json(&["unit", "apply", &path]);
        assert!(told(&applied).iter().all(|[_, action, _]| *action == "unchanged"), "{applied}\n{exported}");
    }
    let after = fleet.json(&["unit", "show", "default/till"]);
    assert_eq!((&after["desired"], &after["observed"]["pid"]), (&before["desired"], &before["observed"]["pid"]));
}

#[test]
fn everything_that_is_wrong_is_told_at_once_and_nothing_is_changed() {
    let fleet = fleet();
    let path = file(
        &fleet.home,
        "bad.yaml",
        "unit: default/a\nartifact: till@9\nconfigs: [bsae@1]\nlimits: {memroy_bytes: 1}\n\
         ---\nunit: default/b\nartifact: till@1\ngrace_ms: soon\nhosts: [nowhere]\n\
         ---\nunit: defualt/c\nartifact: tlil@1\n\
         ---\nunit: default/d\nartifact: till@1\nrequires: [default/e]\ngrace_ms: 9999999999\n\
         ---\nunit: default/e\nartifact: till@1\nenv: {A: '***'}\n\
         ---\nunit: default/good\nartifact: till@1\n\
         ---\nunit: default/good\nartifact: till@1\n\
         ---\nunit: default/f\nartifact: till@1\nafter: [default/g]\n\
         ---\nunit: default/g\nartifact: till@1\nafter: [default/f]\n",
    );
    let run = fleet.muster(&["unit", "apply", &path]).expect_code(2);
    for words in [
        "bad.yaml, document 1: default/a: limits.memroy_bytes: there is no such key; did you mean `memory_bytes`?",
        "document 1: default/a: artifact: there is no artifact \"till@9\"; there are till@",
        "document 1: default/a: configs.0: there is no config \"bsae@1\"; did you mean `base`?",
        "document 2: default/b: grace_ms: invalid type",
        "document 2: default/b: hosts: no host has the id",
        "document 3: defualt/c: unit: there is no realm defualt; did you mean `default`?",
        "document 3: defualt/c: artifact: there is no artifact \"tlil@1\"; did you mean `till`?",
        "document 4: default/d: grace_ms",
        "document 5: default/e: env.A: ***",
        "document 7: default/good: it is wanted twice",
        "document 8: default/f: after, requires: units would wait",
        "nothing was changed",
    ] {
        assert!(run.stderr.contains(words), "{words:?} is not in {}", run.stderr);
    }
    assert!(fleet.json(&["unit", "ls", "--select", "name=good"]).as_array().unwrap().is_empty());
    let path = file(&fleet.home, "broken.yaml", "unit: [default/a\n");
    fleet.muster(&["unit", "apply", &path]).expect_code(2).expect_stderr("broken.yaml: ");
}
