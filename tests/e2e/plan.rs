//! Plans of a mixed fleet: hosts that are alike, one whose file somebody has changed, one that is away; and that an apply does what
//! its plan has shown, or waits.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::{Value, json};

use crate::{
    fleet::{Home, Running, eventually, file, free_ports},
    roles::Roles,
};

/// Hosts on this machine, each with a folder of its own at the same path: their agents run in mount namespaces.
struct Bench {
    roles: Roles,
    agents: Vec<Option<Running>>,
    etc: PathBuf,
}

/// Runs the program in a mount namespace where one folder is seen at the place of another.
fn inside(home: &Home, from: &Path, at: &Path) -> Command {
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", "mount --bind \"$1\" \"$2\" && shift 2 && exec \"$@\"", "sh"]);
    command.args([from, at]).arg(home.command().get_program());
    home.dress(&mut command);
    command
}

impl Bench {
    fn start(hosts: usize) -> Self {
        let mut roles = Roles::start_in(Home::new(), String::new());
        roles.hosts_port = free_ports(1);
        roles.restart_console();
        let etc = roles.home.path().canonicalize().unwrap().join("etc");
        fs::create_dir(&etc).unwrap();
        let mut bench = Self { roles, agents: Vec::new(), etc };
        for place in 0..hosts {
            fs::create_dir_all(bench.own(place)).unwrap();
            let data = bench.roles.home.path().join(format!("h{place}"));
            let text = format!("data_dir = \"{}\"\n[labels]\nhost = \"h{place}\"\n", data.display());
            let config = file(&bench.roles.home, &format!("h{place}.toml"), &text);
            let mut command = inside(&bench.roles.home, &bench.own(place), &bench.etc);
            let agent = Running::start(command.args(["agent", "--config", &config, "--join", &bench.roles.token()]));
            bench.agents.push(Some(agent));
        }
        bench.online(hosts);
        let program = file(&bench.roles.home, "till", "#!/bin/sh\nexec sleep 1000\n");
        bench.roles.ok(&["artifact", "create", &program, "--role", "till", "--version", "1"]);
        bench.roles.ok(&["host", "label", "--all", "role=till", "--yes"]);
        bench
    }

    /// The folder that a host has as `etc`.
    fn own(&self, place: usize) -> PathBuf {
        self.roles.home.path().canonicalize().unwrap().join(format!("etc{place}"))
    }

    fn text(&self, place: usize) -> String {
        fs::read_to_string(self.own(place).join("till.conf")).unwrap_or_default()
    }

    fn online(&self, count: usize) {
        eventually("hosts online", || {
            let hosts = self.roles.json(&["host", "ls"]);
            let is_online = |host: &&Value| host["presence"]["state"] == "online" && host["state"].is_object();
            let found = hosts.as_array().unwrap().iter().filter(is_online).count();
            if found == count { Ok(()) } else { Err(hosts.to_string()) }
        });
    }

    fn write(&self, name: &str, text: &str, word: &str, rollout: &Value) -> String {
        let path = self.etc.join("till.conf").display().to_string();
        let units = json!([
            {"name": "conf", "kind": "files", "files": {path: {"text": text, "mode": "0644"}}, "drift": "report"},
            {"name": "till", "artifact": "till@1", "args": [word], "verify_after_ms": 300,
             "env": {"PIN": format!("secret-{word}")}},
            {"name": "same", "artifact": "till@1", "verify_after_ms": 300},
        ]);
        let mut document =
            json!({"deployment": "default/shop", "target": {"select": "label.role=till"}, "units": units});
        if !rollout.is_null() {
            document["rollout"] = rollout.clone();
        }
        file(&self.roles.home, name, &document.to_string())
    }

    /// The states of the deployment on its hosts, by the hosts' label.
    fn states(&self) -> Vec<String> {
        let shown = self.roles.json(&["deployment", "show", "default/shop"]);
        let mut states: Vec<String> = shown["on_hosts"]
            .as_array()
            .unwrap()
            .iter()
            .map(|host| host["state"].as_str().unwrap().to_owned())
            .collect();
        states.sort();
        states
    }

    #[track_caller]
    fn states_become(&self, wanted: &[&str]) {
        eventually("states", || {
            let states = self.states();
            if states == wanted { Ok(()) } else { Err(format!("{states:?}")) }
        });
    }

    /// The units of a group that change, each with what becomes of it.
    fn actions(group: &Value) -> Vec<(String, String)> {
        let units = group["plan"]["units"].as_array().unwrap();
        let of =
            |unit: &Value| (unit["unit"].as_str().unwrap().to_owned(), unit["action"].as_str().unwrap().to_owned());
        units.iter().map(of).collect()
    }
}

fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs.iter().map(|(one, other)| ((*one).to_owned(), (*other).to_owned())).collect()
}

#[test]
fn mixed_fleet_is_grouped_and_an_apply_does_what_its_plan_shows() {
    let mut bench = Bench::start(4);
    let rollout = json!({"waves": [], "soak": 0, "max_in_flight": 4});
    let first = bench.write("one.json", "one\nsame\n", "one", &rollout);
    let planned = bench.roles.json(&["plan", &first]);
    let one = &planned["deployments"][0];
    assert_eq!(one["groups"].as_array().unwrap().len(), 1, "{one}");
    assert_eq!(
        Bench::actions(&one["groups"][0]),
        pairs(&[("default/conf", "create"), ("default/same", "create"), ("default/till", "create")])
    );
    bench.roles.json(&["deployment", "apply", &first, "--yes"]);
    bench.states_become(&["verified"; 4]);

    // One is changed by hand, one is away.
    fs::write(bench.own(2).join("till.conf"), "by hand\nsame\n").unwrap();
    bench.agents[3] = None;
    bench.online(3);
    let second = bench.write("two.json", "two\nsame\n", "two", &rollout);
    let planned = bench.roles.json(&["plan", &second]);
    let one = &planned["deployments"][0];
    let groups = one["groups"].as_array().unwrap();
    let sizes: Vec<usize> = groups.iter().map(|group| group["hosts"].as_array().unwrap().len()).collect();
    assert_eq!(sizes, [2, 1], "{one}");
    let changed = pairs(&[("default/conf", "change"), ("default/same", "unchanged"), ("default/till", "restart")]);
    assert_eq!((Bench::actions(&groups[0]), Bench::actions(&groups[1])), (changed.clone(), changed.clone()));
    let file_of = |group: &Value| group["plan"]["units"][0]["files"][0].clone();
    assert_eq!(file_of(&groups[0])["diff"], "@@ -1,2 +1,2 @@\n-one\n+two\n same\n");
    assert_eq!(file_of(&groups[1])["diff"], "@@ -1,2 +1,2 @@\n-by hand\n+two\n same\n");
    // Fields are named, and secrets are not told.
    let fields = groups[0]["plan"]["units"][2]["fields"].to_string();
    assert!(
        fields.contains("args") && fields.contains("env.PIN") && !planned.to_string().contains("secret-"),
        "{fields}"
    );
    let away = one["away"].as_array().unwrap();
    assert_eq!((away.len(), Bench::actions(&away[0])), (1, changed));
    let text = bench.roles.ok(&["plan", &second]);
    for words in ["2 hosts alike, 1 differ, 1 away", "default/till: restart", "-by hand", "a guess", "\nplan "] {
        assert!(text.contains(words), "{words}: {text}");
    }
    // Nothing was changed by that.
    assert_eq!((bench.text(0).as_str(), bench.text(2).as_str()), ("one\nsame\n", "by hand\nsame\n"));
    assert_eq!(bench.states(), ["verified"; 4]);

    // Somebody changes a file between the plan and the apply.
    fs::write(bench.own(1).join("till.conf"), "meanwhile\nsame\n").unwrap();
    let digest = planned["digest"].as_str().unwrap();
    bench.roles.json(&["deployment", "apply", &second, "--plan", digest, "--yes", "--no-wait"]);
    eventually("the others have changed, and one waits", || {
        let shown = bench.roles.json(&["rollout", "show", "default/shop"]);
        let waits = shown["waits"].as_array().unwrap();
        let is_told = |wait: &Value| wait["kind"] == "plan_changed" && wait["hosts"] == 1;
        let is_there = bench.states() == ["away", "verified", "verified", "waiting"];
        if is_there && waits.iter().any(is_told) { Ok(()) } else { Err(shown.to_string()) }
    });
    let texts: Vec<String> = (0..4).map(|place| bench.text(place)).collect();
    assert_eq!(texts, ["two\nsame\n", "meanwhile\nsame\n", "two\nsame\n", "one\nsame\n"]);

    // Another plan shows that, and is applied.
    let planned = bench.roles.json(&["plan", &second]);
    let groups = planned["deployments"][0]["groups"].as_array().unwrap();
    let waiting = groups.iter().find(|group| group["plan"]["counts"]["restart"] == 1).unwrap();
    assert_eq!(file_of(waiting)["diff"], "@@ -1,2 +1,2 @@\n-meanwhile\n+two\n same\n");
    let digest = planned["digest"].as_str().unwrap();
    bench.roles.json(&["deployment", "apply", &second, "--plan", digest, "--yes", "--no-wait"]);
    bench.states_become(&["away", "verified", "verified", "verified"]);
    assert_eq!(bench.text(1), "two\nsame\n");

    // A plan is of its own document, and of hosts that ask.
    let third = bench.write("three.json", "three\n", "two", &rollout);
    let refused = bench.roles.home.muster(&["deployment", "apply", &third, "--plan", digest, "--yes"]);
    refused.expect_code(2).expect_stderr("the plan was made of another document");
    let free = bench.write("free.json", "three\n", "two", &Value::Null);
    let digest = bench.roles.json(&["plan", &free])["digest"].as_str().unwrap().to_owned();
    let refused = bench.roles.home.muster(&["deployment", "apply", &free, "--plan", &digest, "--yes"]);
    refused.expect_code(2).expect_stderr("rollout");
    let other = "ab".repeat(32);
    let refused = bench.roles.home.muster(&["deployment", "apply", &third, "--plan", &other, "--yes"]);
    refused.expect_code(3).expect_stderr("there is no plan");
    assert_eq!(bench.text(0), "two\nsame\n");
}

#[test]
fn document_that_has_no_room_in_a_command_is_planned_and_applied() {
    let bench = Bench::start(1);
    let path = |name: &str| bench.etc.join(name).display().to_string();
    let files = |name: &str| {
        let text = format!("{name} {}\n", "x".repeat(30_000));
        json!({"name": name, "kind": "files", "files": {path(name): {"text": text}}})
    };
    let document = json!({
        "deployment": "default/shop", "target": {"select": "label.role=till"},
        "rollout": {"waves": [], "soak": 0, "max_in_flight": 1},
        "units": [files("one"), files("two"),
            {"name": "till", "artifact": "till@1", "env": {"PIN": "secret-pin"}, "verify_after_ms": 300}],
    });
    let path = file(&bench.roles.home, "large.json", &document.to_string());
    let planned = bench.roles.json(&["plan", &path]);
    let one = &planned["deployments"][0];
    let actions = Bench::actions(&one["groups"][0]);
    assert_eq!(actions, pairs(&[("default/one", "create"), ("default/till", "create"), ("default/two", "create")]));
    assert!(!planned.to_string().contains("secret-pin"), "{planned}");
    let digest = planned["digest"].as_str().unwrap();
    bench.roles.json(&["deployment", "apply", &path, "--yes", "--plan", digest]);
    bench.states_become(&["verified"]);
}
