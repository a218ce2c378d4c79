//! Templates: rendered by the host from facts, labels, variables of three layers, an endpoint and a secret.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::json;

use crate::{
    fleet::{Fleet, Running, eventually, file, muster},
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
        fleet.ok(&["artifact", "create", &program, "--role", "program", "--version", "1"]);
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

/// It writes the config that it was started with, and again when it is told to read it.
const READER: &str = "#!/bin/sh\n\
    show() { cat \"$MUSTER_CONFIG\" >> \"$1\"; echo >> \"$1\"; }\n\
    trap 'show \"$1\"' HUP\nshow \"$1\"\n\
    while :; do sleep 100000 & wait $!; kill $! 2> /dev/null; done\n";

/// Units with layered configs, of which one restarts and one reloads.
struct ConfigBench {
    bench: Bench,
}

impl ConfigBench {
    fn start() -> Self {
        let bench = Bench::start();
        let program = file(&bench.fleet.home, "reader", READER);
        bench.fleet.ok(&["artifact", "create", &program, "--role", "reader", "--version", "1"]);
        let one = Self { bench };
        one.add(
            "base@1",
            &json!({
                "colour": {"$template": "{{ vars.colour }}\n{{ vars.limit // 5 }} {{ fact.cpus > 0 }}"},
                "over": {"$template": "{{ vars.nobody }}"}, "plain": "{{ realm }}",
            }),
        );
        one.add(
            "shop@1",
            &json!({
                "over": "shop", "dsn": {"$template": "pg://{{ secret('db') }}@{{ label.site }}"},
                "db": {"password": {"$secret": {"name": "db"}}},
                "web": [{"$template": "{{ endpoint('web').port }}"}],
            }),
        );
        one
    }

    fn try_add(&self, config: &str, content: &serde_json::Value) -> crate::fleet::Run {
        let (id, version) = config.split_once('@').unwrap();
        let file = file(&self.bench.fleet.home, "config.json", &content.to_string());
        self.bench.fleet.muster(&["config", "create", id, version, &file])
    }

    fn add(&self, config: &str, content: &serde_json::Value) {
        let run = self.try_add(config, content);
        assert_eq!(run.code, 0, "{}", run.stderr);
    }

    fn out(&self, unit: &str) -> String {
        self.bench.fleet.home.path().join(unit).display().to_string()
    }

    fn document(&self, base: &str) -> String {
        let unit = |name: &str, reload: &str| {
            json!({
                "name": name, "artifact": "reader@1", "args": [self.out(name)], "configs": [base, "shop@1"],
                "provides": [{"name": "web"}], "reload": reload, "verify_after_ms": 0, "stop_signal": "KILL",
            })
        };
        let document = json!({
            "deployment": "default/shop", "target": {"select": "label.site=berlin"},
            "units": [unit("till", "restart"), unit("reader", "signal")],
        });
        file(&self.bench.fleet.home, "shop.yaml", &document.to_string())
    }

    /// Waits until both units have read this as `colour`, as often as `times` says; returns what the first has read.
    #[track_caller]
    fn read(&self, times: usize, colour: &str) -> serde_json::Value {
        let mut last = serde_json::Value::Null;
        for unit in ["reader", "till"] {
            last = eventually("the config", || {
                let text = fs::read_to_string(self.out(unit)).unwrap_or_default();
                let read: Vec<serde_json::Value> =
                    text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
                match read.last() {
                    Some(last) if read.len() == times && last["colour"] == colour => Ok(last.clone()),
                    _ => Err(format!("{unit}: {text}")),
                }
            });
        }
        last
    }

    fn pid(&self, unit: &str) -> u64 {
        self.bench.fleet.unit_in_phase(unit, "running")["observed"]["pid"].as_u64().unwrap()
    }
}

#[test]
fn configs_are_rendered_by_the_host() {
    let one = ConfigBench::start();
    let (bench, fleet) = (&one.bench, &one.bench.fleet);
    fleet.ok(&["deployment", "apply", &one.document("base@1"), "--yes"]);
    let config = one.read(1, "blue\n2 true");
    let unit = fleet.unit_in_phase("default/till", "running");
    let port = unit["observed"]["endpoints"][0]["port"].as_u64().unwrap().to_string();
    let dsn = format!("pg://{SECRET}@berlin");
    assert_eq!([&config["over"], &config["plain"], &config["dsn"]], ["shop", "{{ realm }}", &dsn]);
    assert_eq!([&config["db"]["password"], &config["web"][0]], [SECRET, &port]);
    // Only the unit's user reads it, and nothing shows the secret.
    let folder = fleet.data().join("agent/units/default/till/rev");
    let mut files = 0;
    for file in walk(&folder) {
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o077, 0, "{}", file.display());
        files += 1;
    }
    assert!(files >= 4, "{}", folder.display());
    let (document, host) = (one.document("base@1"), ["--host", &bench.host]);
    for args in [
        &["yuno", "config", "--effective", "default/till"][..],
        &["unit", "show", "default/till"],
        &["config", "show", "shop"],
        &[&["render", &document][..], &host].concat(),
    ] {
        let shown = fleet.muster(&[&["-o", "json"], args].concat());
        assert_eq!(shown.code, 0, "{args:?}: {}", shown.stderr);
        assert!(!shown.stdout.contains(SECRET) && !shown.stderr.contains(SECRET), "{args:?}: {}", shown.stdout);
    }
    let of_unit = [&["render", "--unit", "default/till"][..], &host].concat();
    for args in [&[&["render", &document][..], &host].concat(), &of_unit] {
        let rendered = fleet.json(args);
        let all: std::collections::BTreeMap<&str, &str> = rendered
            .as_array()
            .unwrap()
            .iter()
            .filter(|one| one[0].as_str().unwrap().starts_with("default/till "))
            .map(|one| (one[0].as_str().unwrap(), one[1].as_str().unwrap()))
            .collect();
        let wanted = [
            ("default/till config base@1 /colour", "blue\n2 true"),
            ("default/till config shop@1 /dsn", "pg://***@berlin"),
            ("default/till config shop@1 /web/0", port.as_str()),
        ];
        assert_eq!(all, wanted.into(), "{args:?}");
    }
    // What comes out the same changes nothing; anything else restarts one, and is read by the other.
    let pids = || ["default/till", "default/reader"].map(|unit| one.pid(unit));
    let before = pids();
    fleet.ok(&["var", "set", "other", "2"]);
    fleet.ok(&["var", "set", "limit", "13", "--json", "--host", &bench.host]);
    fleet.ok(&["var", "set", "colour", "green", "--label", "site=berlin"]);
    one.read(2, "green\n2 true");
    let after = pids();
    assert_ne!(before[0], after[0]);
    assert_eq!(before[1], after[1]);
    // What cannot be rendered is refused with its place, and the version before goes on.
    let bad = one.try_add("base@2", &json!({"a": {"b": [{"$template": "x\n{{ fact.cpu }}"}]}}));
    assert!(
        bad.code != 0 && bad.stderr.contains("config base@2 /a/b/0, line 2: unknown name fact.cpu"),
        "{}",
        bad.stderr
    );
    one.add("base@2", &json!({"colour": {"$template": "\n{{ vars.color }}"}}));
    fleet.ok(&["deployment", "apply", &one.document("base@2"), "--yes", "--no-wait"]);
    eventually("the refusal of the host", || {
        let shown = fleet.json(&["deployment", "show", "default/shop"]).to_string();
        let is_told =
            shown.contains("config base@2 /colour, line 2: vars.color has no value here") && shown.contains("`colour`");
        if is_told { Ok(()) } else { Err(shown) }
    });
    assert_eq!(pids(), after);
    fleet.ok(&["var", "set", "color", "white"]);
    one.read(3, "\nwhite");
}

#[test]
fn rendered_configs_are_followed_though_the_agent_is_killed() {
    let mut one = ConfigBench::start();
    one.bench.fleet.ok(&["deployment", "apply", &one.document("base@1"), "--yes"]);
    one.read(1, "blue\n2 true");
    for (times, colour, place) in [(2, "green", "before"), (3, "grey", "after")] {
        let fleet = &mut one.bench.fleet;
        fleet.stop();
        fleet.home.env.push(("MUSTER_TEST_CRASH".into(), format!("store document/{place} commit:1").into()));
        fleet.again();
        // The console ends with the agent, and may not answer.
        fleet.muster(&["var", "set", "colour", colour, "--label", "site=berlin"]);
        eventually("the end of the agent", || match one.bench.fleet.up().ended() {
            true => Ok(()),
            false => Err(fs::read_to_string(one.out("till")).unwrap_or_default()),
        });
        let fleet = &mut one.bench.fleet;
        fleet.home.env.pop();
        fleet.again();
        one.read(times, &format!("{colour}\n2 true"));
    }
}

/// Returns all files below a folder.
fn walk(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { walk(&path) } else { vec![path] }).collect()
}

#[test]
fn template_that_cannot_be_rendered_is_refused_and_changes_nothing() {
    let bench = Bench::start();
    let fleet = &bench.fleet;
    for (args, env, words) in [
        (vec!["{{ secret('db') }}"], json!({}), "names the secret db"),
        (vec!["{{ fact.cpu }}"], json!({}), "unknown name fact.cpu"),
        (vec![], json!({"COLOUR": "{{ vars.color"}), "env.COLOUR, line 1"),
        (vec![], json!({"DSN": "{{ secret('api') }}"}), "muster secret set api"),
    ] {
        let run = bench.apply(&args, &env);
        assert!(run.code != 0 && run.stderr.contains(words), "{} {}", run.code, run.stderr);
    }
    // What a host is asked to render has the same faults, and placeholders of all kinds.
    let host = ["--host", &bench.host];
    for (args, code, words) in [
        (["{{ fact.cpu }}", "x"], 3, "unknown name fact.cpu"),
        (["{{ vars.color }}", "x"], 3, "vars.color has no value here"),
        (["{{ realm }}", "{port:x}"], 1, "argument 3: it says {port:x}, and provides has no x"),
        (["{endpoint:y}", "x"], 1, "argument 2: it says {endpoint:y}, and needs has no y"),
        (["{{ '{nonsense}' }}", "x"], 1, "argument 2: it says {nonsense}, which is an unknown placeholder"),
    ] {
        let path = bench.document(&args, &json!({}));
        let run = fleet.muster(&[&["render", &path][..], &host].concat());
        assert!(run.code == code && run.stderr.contains(words), "{} {}", run.code, run.stderr);
    }
    let run = fleet.muster(&["render", &bench.document(&[], &json!({})), "--host", "nobody"]);
    assert!(run.code == 3 && run.stderr.contains("hint: `muster host ls` lists"), "{} {}", run.code, run.stderr);
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
    command.args(["--mount", "sh", "-c", machine, &at("os"), muster(), "agent", "--config", &roles.agent_config()]);
    let agent = Running::start(command.args(["--join", &roles.token()]));
    roles.wait_for_host("online");
    let program = file(&roles.home, "program", PROGRAM);
    roles.ok(&["artifact", "create", &program, "--role", "program", "--version", "1"]);
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
        bench.fleet.muster(&["host", "label", &bench.host, &format!("shelf={shelf}"), "--replace", "--yes"]);
        eventually("the end of the agent", || match bench.fleet.up().ended() {
            true => Ok(()),
            false => Err(fs::read_to_string(bench.out()).unwrap_or_default()),
        });
        bench.fleet.home.env.pop();
        bench.fleet.again();
        bench.started(starts, &format!("{shelf}||||"));
    }
}
