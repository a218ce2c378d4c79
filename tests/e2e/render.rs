//! Templates: rendered by the host from facts, labels, variables of three layers, an endpoint and a secret.

use std::{fs, process::Command};

use serde_json::json;

use crate::{
    fleet::{Fleet, MUSTER, Running, eventually, file},
    local::on_socket,
    roles::Roles,
};

const SECRET: &str = "xk9-the-value-of-a-secret";

/// It writes what it was started with.
const PROGRAM: &str = "#!/bin/sh\nout=$1; shift\n\
    echo \"$*|$COLOUR|$LIMIT|$CPUS|$DSN\" >> \"$out\"\nexec sleep 100000\n";

struct Bench {
    fleet: Fleet,
    host: String,
}

impl Bench {
    fn start() -> Self {
        let fleet = Fleet::start();
        let host = fleet.host();
        let program = file(&fleet.home, "program", PROGRAM);
        fleet.ok(&["artifact", "add", &program, "--role", "program", "--version", "1"]);
        fleet.ok(&["host", "label", &host, "site=berlin", "--yes"]);
        fleet.ok(&["var", "set", "colour", "red"]);
        fleet.ok(&["var", "set", "colour", "blue", "--label", "site=berlin"]);
        fleet.ok(&["var", "set", "limit", "8", "--json"]);
        fleet.ok(&["var", "set", "limit", "12", "--json", "--host", &host]);
        fleet.ok(&["var", "set", "other", "1"]);
        let secret = file(&fleet.home, "secret", SECRET);
        fleet.ok(&["secret", "set", "db", "--file", &secret]);
        Self { fleet, host }
    }

    fn out(&self) -> String {
        self.fleet.home.path().join("out").display().to_string()
    }

    fn document(&self, args: &[&str], env: &serde_json::Value) -> String {
        let out = self.out();
        let args: Vec<&str> = [out.as_str()].into_iter().chain(args.iter().copied()).collect();
        let unit = json!({
            "name": "till", "artifact": "program@1", "render": true, "args": args, "env": env,
            "provides": [{"name": "web"}], "verify_after_ms": 0,
        });
        let document = json!({
            "deployment": "default/shop", "target": {"select": "label.site=berlin"}, "units": [unit],
        });
        file(&self.fleet.home, "shop.yaml", &document.to_string())
    }

    fn apply(&self, args: &[&str], env: &serde_json::Value) -> crate::fleet::Run {
        self.fleet.muster(&["deployment", "apply", &self.document(args, env), "--yes"])
    }

    /// Waits until the program was started with this, as often as `starts` says.
    #[track_caller]
    fn started(&self, starts: usize, with: &str) {
        eventually("the start of the program", || {
            let text = fs::read_to_string(self.out()).unwrap_or_default();
            let is_it = text.lines().count() == starts && text.lines().last() == Some(with);
            if is_it { Ok(()) } else { Err(text) }
        });
    }
}

#[test]
fn arguments_and_environment_are_rendered_by_the_host() {
    let bench = Bench::start();
    let fleet = &bench.fleet;
    let cpus = eventually("the facts of the host", || {
        let shown = fleet.json(&["host", "show", &bench.host]);
        shown["state"]["value"]["facts"]["cpus"].as_u64().ok_or_else(|| shown.to_string())
    });
    let args =
        ["{{ label.site }}", "{port:web}={{ endpoint('web').port }}", "{{ instance.unit }}@{{ deployment.name }}"];
    let env = json!({
        "COLOUR": "{{ vars.colour }}", "LIMIT": "{{ vars.limit // 5 }}", "CPUS": "{{ fact.cpus }}",
        "DSN": "pg://till:{{ secret('db') }}@{{ realm }}",
    });
    let applied = bench.apply(&args, &env);
    assert_eq!(applied.code, 0, "{}{}", applied.stdout, applied.stderr);
    let unit = fleet.unit_in_phase("default/till", "running");
    let port = unit["observed"]["endpoints"][0]["port"].as_u64().unwrap();
    let line = |colour: &str, limit: u64| {
        format!("berlin {port}={port} default/till@default/shop|{colour}|{limit}|{cpus}|pg://till:{SECRET}@default")
    };
    bench.started(1, &line("blue", 2));
    // The secret is in the environment alone.
    let pid = unit["observed"]["pid"].as_u64().unwrap();
    let argv = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap();
    assert!(!argv.contains(SECRET), "{argv}");
    for shown in
        [["unit", "show", "default/till"], ["deployment", "show", "default/shop"], ["unit", "logs", "default/till"]]
    {
        let shown = fleet.muster(&[&["-o", "json"], &shown[..]].concat());
        assert!(!shown.stdout.contains(SECRET) && !shown.stderr.contains(SECRET), "{}", shown.stdout);
    }
    // What was rendered of it is shown to whoever asks.
    let rendered = fleet.json(&["render", "--unit", "default/till", "--host", &bench.host]);
    let text = |name: &str| {
        let all = rendered.as_array().unwrap();
        all.iter().find(|one| one[0] == format!("default/till {name}")).unwrap_or_else(|| panic!("{rendered}"))[1]
            .clone()
    };
    assert_eq!([text("env.DSN"), text("env.COLOUR")], ["pg://till:***@default", "blue"]);
    assert_eq!([text("argument 2"), text("argument 3")], [json!("berlin"), json!(format!("{{port:web}}={port}"))]);
    // A variable that it does not name, and one whose result is the same, start nothing.
    fleet.ok(&["var", "set", "other", "2"]);
    fleet.ok(&["var", "set", "limit", "13", "--json", "--host", &bench.host]);
    fleet.ok(&["var", "set", "colour", "green", "--label", "site=berlin"]);
    bench.started(2, &line("green", 2));
    fleet.ok(&["var", "set", "limit", "15", "--json", "--host", &bench.host]);
    bench.started(3, &line("green", 3));
}

#[test]
fn template_that_cannot_be_rendered_is_refused_and_changes_nothing() {
    let bench = Bench::start();
    let fleet = &bench.fleet;
    for (args, env, words) in [
        (vec!["{{ secret('db') }}"], json!({}), "names the secret db"),
        (vec!["{{ fact.cpu }}"], json!({}), "there is no fact.cpu"),
        (vec![], json!({"COLOUR": "{{ vars.color"}), "env.COLOUR, line 1"),
        (vec![], json!({"DSN": "{{ secret('api') }}"}), "muster secret set api"),
    ] {
        let run = bench.apply(&args, &env);
        assert!(run.code != 0 && run.stderr.contains(words), "{} {}", run.code, run.stderr);
    }
    // What a host is asked to render has the same faults, and placeholders of all kinds.
    let host = ["--host", &bench.host];
    for (args, words) in [
        (["{{ fact.cpu }}", "x"], "there is no fact.cpu"),
        (["{{ vars.color }}", "x"], "vars.color has no value here"),
        (["{{ realm }}", "{port:x}"], "argument 3: it says {port:x}, and provides has no x"),
        (["{endpoint:y}", "x"], "argument 2: it says {endpoint:y}, and needs has no y"),
        (["{{ '{nonsense}' }}", "x"], "argument 2: it says {nonsense}, and there is no such placeholder"),
    ] {
        let path = bench.document(&args, &json!({}));
        let run = fleet.muster(&[&["render", &path][..], &host].concat());
        assert!(run.code == 1 && run.stderr.contains(words), "{} {}", run.code, run.stderr);
    }
    let run = fleet.muster(&["render", &bench.document(&[], &json!({})), "--host", "nobody"]);
    assert!(run.code == 1 && run.stderr.contains("hint: `muster host ls` lists"), "{} {}", run.code, run.stderr);
    let run = fleet.muster(&[&["render", "--unit", "default/none"][..], &host].concat());
    assert!(run.code != 0 && run.stderr.contains("default/none"), "{} {}", run.code, run.stderr);
    // What only the host knows, it refuses.
    fleet.ok(&["deployment", "apply", &bench.document(&["{{ vars.color }}"], &json!({})), "--yes", "--no-wait"]);
    eventually("the refusal of the host", || {
        let shown = fleet.json(&["deployment", "show", "default/shop"]).to_string();
        let is_told = shown.contains("vars.color has no value here") && shown.contains("`colour`");
        if is_told { Ok(()) } else { Err(shown) }
    });
    assert!(fleet.json(&["unit", "ls"]).as_array().unwrap().is_empty());
    fleet.ok(&["var", "set", "color", "blue"]);
    fleet.unit_in_phase("default/till", "running");
}

#[test]
fn fact_that_changes_the_result_is_a_change_of_the_unit() {
    let roles = Roles::start();
    let at = |name: &str| roles.home.path().join(name).display().to_string();
    let system = |name: &str| fs::write(at("os"), format!("PRETTY_NAME=\"{name}\"\n")).unwrap();
    system("Old 1");
    // An agent on a machine with another system, as far as programs can tell.
    let machine = "mount --bind \"$0\" /etc/os-release && exec \"$@\"";
    let mut command = Command::new("unshare");
    roles.home.dress(&mut command);
    command.args(["--mount", "sh", "-c", machine, &at("os"), MUSTER, "agent", "--config", &roles.agent_config()]);
    let agent = Running::start(command.args(["--join", &roles.token()]));
    roles.wait_for_host("online");
    let program = file(&roles.home, "program", PROGRAM);
    roles.ok(&["artifact", "add", &program, "--role", "program", "--version", "1"]);
    let document = |name: &str, text: &str, rollout: Option<serde_json::Value>| {
        let unit = json!({
            "name": name, "artifact": "program@1", "render": true, "args": [at(name)], "env": {"COLOUR": text},
            "verify_after_ms": 300,
        });
        let mut document = json!({
            "deployment": format!("default/{name}"), "target": {"select": "host=*"}, "units": [unit],
        });
        if let Some(rollout) = rollout {
            document["rollout"] = rollout;
        }
        roles.ok(&["deployment", "apply", &file(&roles.home, "shop.json", &document.to_string()), "--yes"]);
    };
    document("names", "{{ fact.os }}", None);
    document("counts", "{{ 'long' if fact.os|length > 3 else 'short' }}", None);
    document("waits", "{{ fact.os }}", Some(json!({"waves": [], "soak": 0, "max_failures": 0})));
    let out = |name: &str| fs::read_to_string(at(name)).unwrap_or_default();
    assert_eq!([out("names"), out("waits")], ["|Old 1|||\n", "|Old 1|||\n"]);
    system("New 2");
    // It looks at itself every few minutes, and when it is told to.
    assert_eq!(on_socket(&roles, "POST /trigger").0, 202);
    eventually("another start", || {
        let text = out("names");
        if text == "|Old 1|||\n|New 2|||\n" { Ok(()) } else { Err(text) }
    });
    // The same result is the same unit, and what is rolled out waits for its next version.
    let generation = |name: &str| roles.json(&["unit", "show", name])["desired"]["generation"].as_u64().unwrap();
    assert_eq!([out("counts"), out("waits")], ["|long|||\n", "|Old 1|||\n"]);
    assert!(generation("default/counts") < generation("default/waits"));
    eventually("the new revision", || {
        let unit = roles.json(&["unit", "show", "default/names"]);
        let (desired, observed) = (&unit["desired"], &unit["observed"]);
        let is_verified =
            observed["verified"] == desired["revision"] && desired["spec"]["values"]["fact.os"] == "New 2";
        if is_verified { Ok(()) } else { Err(unit.to_string()) }
    });
    // A host that is away renders nothing, and is not waited for.
    let host = roles.json(&["host", "ls"])[0]["id"].as_str().unwrap().to_owned();
    agent.kill();
    roles.wait_for_host("offline");
    let run = roles.home.muster(&["render", &at("shop.json"), "--host", &host]);
    assert!(run.code == 4 && run.stderr.contains("only the host itself can render"), "{} {}", run.code, run.stderr);
}

#[test]
fn values_are_followed_though_the_agent_is_killed() {
    let mut bench = Bench::start();
    bench.fleet.ok(&["host", "label", &bench.host, "shelf=blue", "--yes"]);
    let applied = bench.apply(&["{{ label.shelf }}"], &json!({}));
    assert_eq!(applied.code, 0, "{}{}", applied.stdout, applied.stderr);
    bench.started(1, "blue||||");
    for (starts, shelf, place) in [(2, "green", "before"), (3, "grey", "after")] {
        bench.fleet.stop();
        bench.fleet.home.env.push(("MUSTER_TEST_CRASH".into(), format!("follow values/{place} commit:1").into()));
        bench.fleet.again();
        // The console ends with the agent, and may not answer.
        bench.fleet.muster(&["host", "label", &bench.host, &format!("shelf={shelf}"), "--overwrite", "--yes"]);
        eventually("the end of the agent", || match bench.fleet.up().ended() {
            true => Ok(()),
            false => Err(fs::read_to_string(bench.out()).unwrap_or_default()),
        });
        bench.fleet.home.env.pop();
        bench.fleet.again();
        bench.started(starts, &format!("{shelf}||||"));
    }
}
