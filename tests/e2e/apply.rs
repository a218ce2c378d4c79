//! Documents of units: applied, shown, exported, and applied again.

use std::fs;

use muster_topics::unit::Spec;
use serde_json::{Value, json};

use crate::fleet::{Fleet, file, free_ports};

const PROGRAM: &str = "#!/bin/sh\nwhile :; do sleep 0.1; done\n";

fn fleet() -> Fleet {
    let fleet = Fleet::start();
    for version in ["1", "2"] {
        let path = file(&fleet.home, "till", &format!("{PROGRAM}# {version}\n"));
        fleet.ok(&["artifact", "create", &path, "--role", "till", "--version", version]);
        let path = file(&fleet.home, "base.json", &json!({ "version": version }).to_string());
        fleet.ok(&["config", "create", "base", version, &path]);
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
fn applied_unit_is_created_then_unchanged() {
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
    fleet.muster(&["unit", "show", "default/till"]).expect_code(3);

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
fn differences_are_shown_by_field_with_cost() {
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
fn exported_document_applies_without_change() {
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
fn all_faults_are_reported_and_nothing_changed() {
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
        "bad.yaml, document 1: default/a: limits.memroy_bytes: unknown key; did you mean `memory_bytes`?",
        "document 1: default/a: artifact: there is no artifact \"till@9\"; there are till@",
        "document 1: default/a: configs.0: there is no config \"bsae@1\"; did you mean `base`?",
        "document 2: default/b: grace_ms: invalid type",
        "document 2: default/b: hosts: no host has the id",
        "document 3: defualt/c: unit: there is no realm defualt; did you mean `default`?",
        "document 3: defualt/c: artifact: there is no artifact \"tlil@1\"; did you mean `till`?",
        "document 4: default/d: grace_ms",
        "document 5: default/e: env.A: ***",
        "document 7: default/good: it is listed twice",
        "document 8: default/f: after, requires: units would wait",
        "nothing was changed",
    ] {
        assert!(run.stderr.contains(words), "{words:?} is not in {}", run.stderr);
    }
    assert!(fleet.json(&["unit", "ls", "--select", "name=good"]).as_array().unwrap().is_empty());
    let path = file(&fleet.home, "broken.yaml", "unit: [default/a\n");
    fleet.muster(&["unit", "apply", &path]).expect_code(2).expect_stderr("broken.yaml: ");
}

#[test]
fn host_checks_precede_any_change() {
    let fleet = fleet();
    let names = || {
        let units = fleet.json(&["unit", "ls", "--select", "realm=default and not name=hello"]);
        let mut names: Vec<String> =
            units.as_array().unwrap().iter().map(|unit| unit["unit"].as_str().unwrap().to_owned()).collect();
        names.sort();
        names
    };
    let provides = |name: &str, port: u16| {
        format!("---\nunit: default/{name}\nartifact: till@1\nprovides: [{{name: http, port: {port}}}]\n")
    };
    let port = free_ports(1);
    let check = |text: &str, words: &str, left: &[&str]| {
        let path = file(&fleet.home, "set.yaml", text);
        for more in [&["--dry-run"][..], &["--yes"]] {
            let run = fleet.muster(&[&["unit", "apply", &path], more].concat()).expect_code(2);
            assert!(run.stderr.contains(words) && run.stderr.contains("nothing was changed"), "{}", run.stderr);
        }
        assert_eq!(names(), left);
    };
    // What can be seen without a host, too: one port for two, and more units than a host may have.
    let two = format!("{}{}", provides("a", port), provides("b", port));
    check(&two, "is that of default/", &[]);
    let many: String = (0..260).map(|number| format!("- {{unit: default/u{number}, artifact: till@1}}\n")).collect();
    check(&format!("units:\n{many}"), "units, and a host may have 256", &[]);
    // And what the host alone knows: which port it has leased to whom.
    fleet.ok(&["yuno", "create", "default/first", "--artifact", "till@1", "--provide", "http"]);
    let leased = fleet.unit("default/first", |unit| unit["observed"]["endpoints"][0]["port"].is_number());
    let leased = u16::try_from(leased["observed"]["endpoints"][0]["port"].as_u64().unwrap()).unwrap();
    let taken =
        format!("{}{}{}", provides("a", port), provides("b", leased), "---\nunit: default/c\nartifact: till@1\n");
    check(&taken, &format!("default/b: tcp port {leased} is leased to default/first"), &["default/first"]);
    // All of a larger set in one go, in several messages.
    let words = "x".repeat(400);
    let many: String = (0..150)
        .map(|number| format!("- {{unit: default/u{number}, artifact: till@1, args: ['{words}']}}\n"))
        .collect();
    let path = file(&fleet.home, "many.yaml", &format!("units:\n{many}"));
    let done = fleet.json(&["unit", "apply", &path, "--yes"]);
    assert!(done.as_array().unwrap().iter().all(|unit| unit["done"] == true), "{done}");
    assert_eq!(names().len(), 151);
}

#[test]
fn existing_name_needs_overwrite() {
    let fleet = fleet();
    fleet.ok(&["yuno", "create", "default/till", "--artifact", "till@1", "--config", "base@1", "--label", "tier=gold"]);
    let before = fleet.json(&["unit", "show", "default/till"])["desired"].clone();
    let create = ["yuno", "create", "default/till", "--artifact", "till@2"];
    let run = fleet.muster(&create).expect_code(3);
    for words in [
        "default/till exists on",
        "artifact: till@1 → till@2",
        "configs: [\"base@1\"] → nothing",
        "labels: {\"tier\":\"gold\"} → nothing",
        "--replace",
    ] {
        assert!(run.stderr.contains(words), "{words:?} is not in {}", run.stderr);
    }
    assert_eq!(fleet.json(&["unit", "show", "default/till"])["desired"], before);
    // To say again what is so changes nothing, and Yuneta's verb takes over nothing either.
    let same = ["yuno", "create", "default/till", "--artifact", "till@1", "--config", "base@1", "--label", "tier=gold"];
    fleet.ok(&same);
    assert_eq!(fleet.json(&["unit", "show", "default/till"])["desired"], before);
    let config = file(&fleet.home, "x.json", "{}");
    fleet.ok(&["config", "create", "till.x", "1", &config]);
    let line = "create-yuno realm_id=default id=till yuno_role=till yuno_name=x";
    fleet.muster(&["ycommand", "--command", line]).expect_code(3).expect_stderr("default/till exists on");
    assert_eq!(fleet.json(&["unit", "show", "default/till"])["desired"], before);
    fleet.ok(&[&create[..], &["--replace"]].concat());
    let after = fleet.json(&["unit", "show", "default/till"])["desired"].clone();
    assert_eq!(after["spec"]["artifact"]["version"], "2");
    assert_eq!(after["spec"]["labels"], Value::Null);
}

/// The revision that anybody could compute of a unit, who knows the value of `PIN`.
fn bare_revision(unit: &Value, pin: &str) -> Value {
    let mut spec = unit["desired"]["spec"].clone();
    spec["env"]["PIN"] = pin.into();
    json!(serde_json::from_value::<Spec>(spec).unwrap().revision().unwrap())
}

#[test]
fn revision_of_a_unit_with_an_environment_confirms_no_guess() {
    let fleet = fleet();
    let unit = "unit: default/till\nartifact: till@1\nconfigs: [base@1]\nreload: signal\nrun: running\n";
    let write = |fleet: &Fleet, pin: &str, more: &str| {
        file(&fleet.home, "till.yaml", &format!("{unit}env: {{PIN: '{pin}'}}\n{more}"))
    };
    let document = write(&fleet, "4711", "");
    fleet.ok(&["unit", "apply", &document]);
    let before = fleet.unit_in_phase("default/till", "running");
    assert_ne!(before["desired"]["revision"], bare_revision(&before, "4711"));

    // It is so already, by whatever it is asked for.
    let again = fleet.muster(&["unit", "apply", &document]).expect_code(0);
    assert!(again.stderr.contains("1 unchanged"), "{}", again.stderr);
    let create = ["yuno", "create", "default/till", "--artifact", "till@1", "--config", "base@1", "--run"];
    let create = [&create[..], &["--reload", "signal", "--env", "PIN=4711"]].concat();
    fleet.ok(&create);
    let same = |unit: &Value| (unit["desired"]["revision"].clone(), unit["observed"]["pid"].clone());
    let after = fleet.unit_in_phase("default/till", "running");
    assert_eq!((same(&after), &after["desired"]["generation"]), (same(&before), &before["desired"]["generation"]));
    fleet.ok(&["unit", "apply", &write(&fleet, "4711", "labels: {tier: gold}\n")]);
    assert_eq!(same(&fleet.unit_in_phase("default/till", "running")), same(&before));

    // Another value is another revision.
    fleet.ok(&["unit", "apply", &write(&fleet, "4712", "")]);
    let keyed = fleet.unit_in_phase("default/till", "running");
    assert_ne!(keyed["observed"]["pid"], before["observed"]["pid"]);
    let shown = fleet.json(&["unit", "show", "default/till"]).to_string() + &keyed.to_string();
    // (What was verified before is shown as long as it is what the unit would go back to.)
    assert!(!shown.contains(bare_revision(&keyed, "4712").as_str().unwrap()), "{shown}");
    // The console can, for who may change it anyway.
    for (pin, action) in [("4712", "unchanged"), ("4713", "change")] {
        let planned = fleet.json(&["unit", "apply", &write(&fleet, pin, ""), "--dry-run"])[0].clone();
        assert_eq!(planned["action"], action, "{pin}");
    }
    let other = fleet.muster(&create).expect_code(3);
    assert!(other.stderr.contains("env (values)") && !other.stderr.contains("grace"), "{}", other.stderr);
    fleet.ok(&["unit", "apply", &write(&fleet, "4712", "")]);
    assert_eq!(same(&fleet.unit_in_phase("default/till", "running")), same(&keyed));
    // A reload of configs is one still.
    let reloaded = write(&fleet, "4712", "");
    let text = fs::read_to_string(&reloaded).unwrap().replace("base@1", "base@2");
    fs::write(&reloaded, text).unwrap();
    let planned = fleet.json(&["unit", "apply", &reloaded, "--dry-run"])[0].clone();
    assert_eq!(planned["cost"], "reload", "{planned}");
}

/// What a reader of YAML 1.1 makes of documents, as JSON.
fn read_by_pyyaml(fleet: &Fleet, text: &str) -> Value {
    let path = file(&fleet.home, "read.yaml", text);
    let script = "import json, sys, yaml; json.dump(list(yaml.safe_load_all(open(sys.argv[1]))), sys.stdout)";
    let output = std::process::Command::new("python3").args(["-c", script, &path]).output().unwrap();
    // Debian's python3-yaml.
    assert!(output.status.success(), "{}\n{text}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn exported_yaml_reads_the_same_everywhere() {
    let fleet = fleet();
    let words = [
        "yes",
        "no",
        "on",
        "off",
        "12:30:45",
        "2026-01-01",
        "1_000",
        "1:2",
        "=",
        "~",
        "017",
        "0b1",
        "1e3",
        ".5",
        "a\nb",
    ];
    let document = json!({"unit": "default/till", "artifact": "till@1", "args": words, "env": {"y": "n"}});
    let path = file(&fleet.home, "till.json", &document.to_string());
    fleet.ok(&["unit", "apply", &path]);
    let exported = fleet.ok(&["unit", "export", "default/till"]);
    let read = read_by_pyyaml(&fleet, &exported);
    assert_eq!((&read[0]["args"], &read[0]["env"]), (&json!(words), &json!({"y": "***"})), "{exported}");
    let shown = fleet.ok(&["-o", "yaml", "unit", "show", "default/till"]);
    assert_eq!(read_by_pyyaml(&fleet, &shown)[0]["desired"]["spec"]["args"], json!(words), "{shown}");

    // With a byte order mark and the line ends of another system, and with what documents share.
    let windows = |text: &str| format!("\u{feff}{}", text.replace('\n', "\r\n"));
    let path = file(&fleet.home, "base.json", &windows("{\n\"version\": 3\n}\n"));
    fleet.ok(&["config", "create", "base", "3", &path]);
    let text =
        "units:\n- &first {unit: default/a, artifact: till@1, configs: [base@3]}\n- {<<: *first, unit: default/b}\n";
    let path = file(&fleet.home, "shop.yaml", &windows(text));
    let planned = fleet.json(&["unit", "apply", &path]);
    assert_eq!(told(&planned).iter().map(|[unit, ..]| *unit).collect::<Vec<_>>(), ["default/a", "default/b"]);
    let b = fleet.json(&["unit", "show", "default/b"]);
    assert_eq!(b["desired"]["spec"]["configs"][0]["version"], "3");
}
