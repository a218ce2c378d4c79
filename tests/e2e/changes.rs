//! The way of a change on a host: units of one version that go back together, and the tasks of a unit.

use std::fs;

use serde_json::{Value, json};

use crate::{
    fleet::{Running, eventually, file, free_ports},
    roles::Roles,
};

/// It ends when it is asked; as `bad` it fails. It writes down when it starts and ends, if it is told where.
const PROGRAM: &str = "#!/bin/sh
[ \"$1\" = bad ] && exit 3
[ -z \"$2\" ] && exec sleep 1000
echo \"$1 starts\" >> \"$2\"
trap '[ -z \"$3\" ] || sleep $3; echo \"$1 ends\" >> \"$2\"; exit 0' TERM
while :; do sleep 0.05 & wait $!; done
";

/// One host with the label `role=till`.
struct Bench {
    _agent: Running,
    roles: Roles,
}

impl Bench {
    fn start() -> Self {
        let mut roles = Roles::start();
        roles.hosts_port = free_ports(1);
        roles.restart_console();
        let data = roles.home.path().join("host").display().to_string();
        let config = file(&roles.home, "host.toml", &format!("data_dir = \"{data}\"\n"));
        let agent = Running::start(roles.home.command().args(["agent", "--config", &config, "--join", &roles.token()]));
        eventually("shows whether it is online", || {
            let hosts = roles.json(&["host", "ls"]);
            if hosts[0]["presence"]["state"] == "online" { Ok(()) } else { Err(hosts.to_string()) }
        });
        let path = file(&roles.home, "till", PROGRAM);
        roles.ok(&["artifact", "create", &path, "--role", "till", "--version", "1"]);
        roles.ok(&["host", "label", "--all", "role=till", "--yes"]);
        Self { _agent: agent, roles }
    }

    /// Applies a version of two units, the second of which requires the first, each with its word.
    fn apply(&self, first: &str, second: &str) -> (i32, String) {
        let unit = |name: &str, word: &str, requires: &[&str]| json!({"name": name, "artifact": "till@1", "args": [word], "verify_after_ms": 300, "requires": requires});
        let units = json!([unit("base", first, &[]), unit("till", second, &["default/base"])]);
        let rollout = json!({"waves": [], "soak": 0, "max_failures": 0});
        let document = json!({
            "deployment": "default/shop", "target": {"select": "label.role=till"}, "rollout": rollout, "units": units
        });
        let path = file(&self.roles.home, "shop.yaml", &document.to_string());
        let applied = self.roles.home.muster(&["deployment", "apply", &path, "--yes"]);
        (applied.code, applied.stderr)
    }

    fn unit(&self, name: &str) -> Value {
        let units = self.roles.json(&["unit", "ls"]);
        units.as_array().unwrap().iter().find(|unit| unit["unit"] == name).cloned().unwrap()
    }
}

#[test]
fn units_of_a_version_go_back_together() {
    let bench = Bench::start();
    let (code, told) = bench.apply("good", "good");
    assert_eq!(code, 0, "{told}");
    let before = ["default/base", "default/till"].map(|name| bench.unit(name)["observed"]["revision"].clone());
    let (code, told) = bench.apply("better", "bad");
    assert_eq!(code, 1, "{told}");
    let shown = bench.roles.json(&["rollout", "show", "default/shop"]);
    assert_eq!(shown["outcomes"], json!({"rolled_back": 1}), "{shown}");
    let [base, till] = ["default/base", "default/till"].map(|name| bench.unit(name)["observed"].clone());
    assert_eq!([base["revision"].clone(), till["revision"].clone()], before);
    let why = base["rolled_back"]["error"]["message"].as_str().unwrap();
    assert!(why.starts_with("it belongs together with default/till, which has failed: "), "{why}");
    // Another version is another try.
    let (code, told) = bench.apply("better", "good");
    assert_eq!(code, 0, "{told}");
    assert_eq!(bench.unit("default/base")["observed"]["rolled_back"], Value::Null);

    let tasks = bench.roles.home.muster(&["unit", "tasks", "default/base"]);
    assert!(tasks.code == 2 && tasks.stderr.contains("a yuno, which has no `tasks`"), "{}", tasks.stderr);
}

#[test]
fn units_of_a_version_go_back_in_reverse_order() {
    let bench = Bench::start();
    let out = bench.roles.home.path().join("out");
    let unit = |name: &str, word: &str, requires: &[&str]| {
        // What requires another unit takes longer to end.
        let args = json!([word, out.to_str().unwrap(), if name == "till" { "1" } else { "" }]);
        json!({"name": name, "artifact": "till@1", "args": args, "verify_after_ms": 300, "requires": requires})
    };
    let apply = |version: u32, word: &str| {
        let units = json!([
            unit("base", &format!("base{version}"), &[]),
            unit("till", &format!("till{version}"), &["default/base"]),
            // It fails after the others are up.
            unit("web", word, &["default/till"]),
        ]);
        let document = json!({"deployment": "default/shop", "target": {"select": "label.role=till"}, "units": units});
        let path = file(&bench.roles.home, "shop.yaml", &document.to_string());
        bench.roles.home.muster(&["deployment", "apply", &path, "--yes"])
    };
    let run = apply(1, "web1");
    assert_eq!(run.code, 0, "{}", run.stderr);
    fs::remove_file(&out).unwrap();
    let run = apply(2, "bad");
    assert_eq!(run.code, 1, "{}", run.stderr);
    let back = ["base2 ends", "base1 starts", "till1 starts", "web1 starts"];
    let text = eventually("all units as they were", || {
        let text = fs::read_to_string(&out).unwrap_or_default();
        if back.iter().all(|line| text.lines().any(|there| there == *line)) { Ok(text) } else { Err(text) }
    });
    let place = |line: &str| text.lines().position(|there| there == line).unwrap_or_else(|| panic!("{line}: {text}"));
    // What requires another unit ends before that one is started as it was, and starts after it.
    let order = ["till2 ends", "base1 starts", "till1 starts", "web1 starts"];
    assert!(order.is_sorted_by_key(|line| place(line)), "{text}");
}

#[test]
fn new_unit_of_a_version_that_goes_back_says_that_it_stays() {
    let bench = Bench::start();
    let unit =
        |name: &str, word: &str| json!({"name": name, "artifact": "till@1", "args": [word], "verify_after_ms": 300});
    let apply = |units: &Value| {
        let document = json!({"deployment": "default/shop", "target": {"select": "label.role=till"}, "units": units});
        let path = file(&bench.roles.home, "shop.yaml", &document.to_string());
        bench.roles.home.muster(&["deployment", "apply", &path, "--yes"])
    };
    let error = |name: &str| bench.unit(name)["observed"]["error"]["message"].as_str().unwrap_or_default().to_owned();
    let run = apply(&json!([unit("base", "good")]));
    assert_eq!(run.code, 0, "{}", run.stderr);
    for (word, phase) in [("bad", "backoff"), ("good", "running")] {
        // Once it fails itself, and once another does.
        let base = if word == "bad" { "better" } else { "bad" };
        let run = apply(&json!([unit("base", base), unit("extra", word)]));
        assert_eq!(run.code, 1, "{}", run.stderr);
        eventually("what becomes of the new unit", || {
            let why = error("default/extra");
            let is_told =
                why.contains("it is new in version") && why.contains("which was rolled back here, so it stays");
            let unit = bench.unit("default/extra");
            if is_told && unit["observed"]["phase"] == phase { Ok(()) } else { Err(unit.to_string()) }
        });
        let run = apply(&json!([unit("base", "good")]));
        assert_eq!(run.code, 0, "{}", run.stderr);
        bench.roles.home.muster(&["unit", "rm", "default/extra"]);
        eventually("no new unit", || {
            let units = bench.roles.json(&["unit", "ls"]);
            if units.as_array().unwrap().len() == 1 { Ok(()) } else { Err(units.to_string()) }
        });
    }
}
