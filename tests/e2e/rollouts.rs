//! Rollouts with real agents: a bad version that is stopped and taken back, hosts that were away, approvals, budgets, a cancellation
//! while nobody is connected, and a console that is killed in the middle.

use std::{fs, path::PathBuf, process::Command};

use serde_json::{Value, json};

use crate::{
    fleet::{Home, Running, eventually, file, free_ports},
    roles::Roles,
};

/// It ends when it is asked; version 2 fails.
const PROGRAM: &str = "#!/bin/sh
[ \"$1\" = bad ] && exit 3
[ \"$1\" = fat ] && exec python3 -c 'import time; kept = b\"x\" * 100_000_000; time.sleep(1000)'
exec sleep 1000
";

/// Somebody who is asked before hosts are admitted, over HTTPS. It admits those whose ids are in a file, and keeps what it was
/// asked.
const AUTHORITY: &str = r#"
import http.server, json, os, ssl, sys
folder = sys.argv[1]
class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        with open(os.path.join(folder, "asked"), "a") as file:
            file.write(json.dumps(asked) + "\n")
        with open(os.path.join(folder, "admit")) as file:
            admit = file.read().split()
        answer = json.dumps({"admit": admit, "reason": "the shop is open"}).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)
server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(os.path.join(folder, "certificate.pem"), os.path.join(folder, "key.pem"))
server.socket = context.wrap_socket(server.socket, server_side=True)
print("listening at", f"https://127.0.0.1:{server.server_port}/admit", flush=True)
server.serve_forever()
"#;

/// Hosts with the label `role=till` and a label `host`, all on this machine.
struct Bench {
    roles: Roles,
    agents: Vec<Option<Running>>,
}

impl Bench {
    fn start(hosts: usize) -> Self {
        Self::start_in(Home::new(), String::new(), hosts)
    }

    /// The same, with more lines in the console's configuration.
    fn start_in(home: Home, console: String, hosts: usize) -> Self {
        let mut roles = Roles::start_in(home, console);
        // Hosts find a console that was started again.
        roles.hosts_port = free_ports(1);
        roles.restart_console();
        let mut bench = Self { roles, agents: (0..hosts).map(|_| None).collect() };
        for place in 0..hosts {
            let data = bench.folder(place);
            let text = format!(
                "data_dir = \"{}\"\nremoval_day_share = 1.0\n[labels]\nhost = \"h{place}\"\nsite = \"s{}\"\n\
                 [metrics]\nsample_ms = 400\n",
                data.display(),
                place % 2
            );
            file(&bench.roles.home, &format!("h{place}.toml"), &text);
            bench.run_agent(place, &["--join", &bench.roles.token()]);
        }
        bench.online(hosts);
        let path = file(&bench.roles.home, "till", PROGRAM);
        bench.roles.ok(&["artifact", "create", &path, "--role", "till", "--version", "1"]);
        bench.roles.ok(&["host", "label", "--all", "role=till", "--yes"]);
        bench
    }

    fn folder(&self, place: usize) -> PathBuf {
        self.roles.home.path().join(format!("h{place}"))
    }

    fn run_agent(&mut self, place: usize, more: &[&str]) {
        let config = self.roles.home.path().join(format!("h{place}.toml")).display().to_string();
        let agent = Running::start(self.roles.home.command().args(["agent", "--config", &config]).args(more));
        self.agents[place] = Some(agent);
    }

    fn online(&self, count: usize) {
        eventually("hosts online", || {
            let hosts = self.roles.json(&["host", "ls"]);
            let is_online = |host: &&Value| host["presence"]["state"] == "online" && host["state"].is_object();
            let found = hosts.as_array().unwrap().iter().filter(is_online).count();
            if found == count { Ok(()) } else { Err(hosts.to_string()) }
        });
    }

    fn write(&self, word: &str, rollout: &Value) -> String {
        let units = json!([{"name": "till", "artifact": "till@1", "args": [word], "verify_after_ms": 300}]);
        let document = json!({
            "deployment": "default/shop", "target": {"select": "label.role=till"}, "rollout": rollout, "units": units
        });
        file(&self.roles.home, "shop.yaml", &document.to_string())
    }

    /// Applies a version without waiting for it.
    fn apply(&self, word: &str, rollout: &Value) {
        self.roles.json(&["deployment", "apply", &self.write(word, rollout), "--yes", "--no-wait"]);
    }

    fn shown(&self) -> Value {
        self.roles.json(&["rollout", "show", "default/shop"])
    }

    /// Waits until the rollout is so.
    #[track_caller]
    fn reaches(&self, what: &str, is_there: impl Fn(&Value) -> bool) -> Value {
        let mut found = Value::Null;
        eventually(what, || {
            found = self.shown();
            if is_there(&found) { Ok(()) } else { Err(found.to_string()) }
        });
        found
    }

    #[track_caller]
    fn phase(&self, kind: &str) -> Value {
        self.reaches(kind, |shown| shown["phase"]["kind"] == kind)
    }

    /// The words that the tills of all hosts were started with.
    fn words(&self) -> Vec<String> {
        let units = self.roles.json(&["unit", "ls"]);
        let of = |unit: &Value| unit["desired"]["spec"]["args"][0].as_str().unwrap_or_default().to_owned();
        let mut words: Vec<String> = units.as_array().unwrap().iter().map(of).collect();
        words.sort();
        words
    }
}

#[test]
fn bad_version_is_stopped_in_its_first_wave_and_taken_back() {
    let bench = Bench::start(3);
    let policy = json!({"waves": [1], "soak": 0, "max_failures": 0, "on_failure": "rollback"});
    let good = bench.roles.home.muster(&["deployment", "apply", &bench.write("good", &policy), "--yes"]);
    assert_eq!(good.code, 0, "{}", good.stderr);
    assert!(good.stderr.contains("wave 2 of 2") && good.stderr.contains("3 verified"), "{}", good.stderr);
    let bad = bench.roles.home.muster(&["deployment", "apply", &bench.write("bad", &policy), "--yes"]);
    assert!(bad.code == 1 && bad.stderr.contains("version 3 rolls it back"), "{}", bad.stderr);
    let shown = bench.phase("completed");
    assert_eq!(
        (&shown["version"], &shown["is_rollback"], &shown["outcomes"]),
        (&json!(3), &json!(true), &json!({"verified": 3}))
    );
    let before = bench.roles.json(&["rollout", "show", "default/shop", "--version", "2"]);
    assert_eq!(before["phase"], json!({"kind": "rolled_back", "by": 3}));
    assert_eq!(before["on_waves"][0]["admitted"], 1, "{before}");
    let last = "it is rolled back by version 3: 1 of 1 host of wave 1 failed; at most 0 may fail";
    assert_eq!(before["steps"][0]["text"], last, "{before}");
    assert_eq!(bench.words(), ["good"; 3]);
    let ledger = bench.roles.json(&["rollout", "ls", "default/shop"]);
    assert_eq!(ledger.as_array().unwrap().len(), 3);
}

#[test]
fn host_that_was_away_changes_when_it_is_back_after_the_end() {
    let mut bench = Bench::start(2);
    bench.agents[1] = None;
    bench.online(1);
    bench.apply("one", &json!({"waves": [], "soak": 0, "deadline": "2s"}));
    let shown = bench.phase("completed");
    assert_eq!(shown["outcomes"], json!({"verified": 1, "missing": 1}), "{shown}");
    bench.run_agent(1, &[]);
    let shown = bench.reaches("both verified", |shown| shown["outcomes"] == json!({"verified": 2}));
    assert_eq!(shown["phase"]["kind"], "completed");
    assert_eq!(bench.words(), ["one"; 2]);
}

#[test]
fn rollout_waits_for_an_approval_and_says_so() {
    let bench = Bench::start(2);
    bench.apply("one", &json!({"waves": [1], "soak": 0, "approve": "each"}));
    let shown = bench.phase("approval");
    let waits = shown["waits"].as_array().unwrap();
    let is_told = |wait: &Value| {
        wait["kind"] == "approval" && wait["reason"]["message"].as_str().unwrap().contains("rollout promote")
    };
    assert!(waits.iter().any(is_told), "{shown}");
    let is_waiting =
        |host: &Value| host["state"] == "waiting" && host["reason"]["message"].as_str().unwrap().contains("approval");
    eventually("a host that waits", || {
        let states = bench.roles.json(&["deployment", "show", "default/shop"]);
        if states["on_hosts"].as_array().unwrap().iter().any(is_waiting) { Ok(()) } else { Err(states.to_string()) }
    });
    let ended = bench.roles.home.muster(&["rollout", "watch", "default/shop", "--timeout", "1s"]);
    assert!(ended.code == 1 && ended.stderr.contains("muster rollout promote"), "{}", ended.stderr);
    bench.roles.ok(&["rollout", "promote", "default/shop"]);
    bench.phase("completed");
    let steps = bench.shown()["steps"].to_string();
    assert!(steps.contains("wave 2 is approved") && steps.contains("admin"), "{steps}");
}

#[test]
fn budget_of_a_group_is_never_exceeded() {
    let bench = Bench::start(4);
    // It takes longer to verify than a look.
    let policy =
        json!({"waves": [], "soak": 0, "max_in_flight": 4, "budget": {"group_by": "label.site", "max_unavailable": 1}});
    bench.apply("one", &policy);
    bench.reaches("completed", |shown| {
        let hosts = bench.roles.json(&["rollout", "hosts", "default/shop"]);
        for site in ["s0", "s1"] {
            let is_out = |host: &&Value| host["group"] == site && host["is_unavailable"] == true;
            let out = hosts.as_array().unwrap().iter().filter(is_out).count();
            assert!(out <= 1, "{hosts}");
        }
        shown["phase"]["kind"] == "completed"
    });
}

#[test]
fn cancellation_while_hosts_are_cut_off_is_done_at_once() {
    let mut bench = Bench::start(2);
    bench.apply("one", &json!({"waves": [1], "soak": 0, "approve": "each"}));
    bench.phase("approval");
    bench.agents.iter_mut().for_each(|agent| *agent = None);
    bench.online(0);
    bench.roles.ok(&["rollout", "cancel", "default/shop", "--yes"]);
    let shown = bench.shown();
    assert_eq!(
        (&shown["phase"]["kind"], &shown["outcomes"]),
        (&json!("cancelled"), &json!({"verified": 1, "skipped": 1}))
    );
    for place in 0..2 {
        bench.run_agent(place, &[]);
    }
    bench.online(2);
    std::thread::sleep(std::time::Duration::from_secs(3));
    assert_eq!(bench.shown()["outcomes"], shown["outcomes"], "nobody begins any more");
    assert_eq!(bench.words().len(), 1);
}

/// The authority is a program of its own, with a certificate of its own.
#[test]
fn authority_is_asked_over_https_and_its_no_is_told() {
    let home = Home::new();
    let folder = home.path().join("authority");
    fs::create_dir(&folder).unwrap();
    let certificate =
        ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"];
    let names =
        ["-subj", "/CN=authority", "-addext", "subjectAltName=IP:127.0.0.1", "-addext", "basicConstraints=CA:FALSE"];
    let out = ["-keyout", "key.pem", "-out", "certificate.pem"];
    let made = Command::new("openssl").args(certificate).args(names).args(out).current_dir(&folder).output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    fs::write(folder.join("admit"), "").unwrap();
    let mut authority = Running::start(Command::new("python3").args(["-c", AUTHORITY]).arg(&folder));
    let url = authority.wait_for("the authority's address", |printed| {
        printed.split_whitespace().find(|word| word.starts_with("https://")).map(str::to_owned)
    });
    let trusts = format!("[rollouts]\nauthority_file = \"{}\"\n", folder.join("certificate.pem").display());
    let bench = Bench::start_in(home, trusts, 2);
    bench
        .apply("one", &json!({"waves": [], "soak": 0, "max_in_flight": 2, "authority": {"url": url, "timeout": "5s"}}));
    let shown = bench.reaches("its no", |shown| shown["waits"].to_string().contains("the shop is open"));
    assert_eq!(shown["in_flight"], 0, "{shown}");
    let asked = fs::read_to_string(folder.join("asked")).unwrap();
    let asked: Value = serde_json::from_str(asked.lines().next().unwrap()).unwrap();
    assert_eq!((&asked["deployment"], &asked["version"]), (&json!("default/shop"), &json!(1)), "{asked}");
    assert_eq!(asked["hosts"][0]["labels"]["role"], "till", "{asked}");
    let hosts = bench.roles.json(&["host", "ls"]);
    let ids: Vec<&str> = hosts.as_array().unwrap().iter().map(|host| host["id"].as_str().unwrap()).collect();
    let times = || fs::read_to_string(folder.join("asked")).unwrap().lines().count();
    let before = times();
    fs::write(folder.join("admit"), ids.join("\n")).unwrap();
    // After a minute.
    eventually("it is asked again", || if times() > before { Ok(()) } else { Err(before.to_string()) });
    let shown = bench.phase("completed");
    assert_eq!(shown["outcomes"], json!({"verified": 2}), "{shown}");
}

/// The check reads what hosts have measured: the version needs a hundred megabytes that the one before did not.
#[test]
fn version_that_measures_worse_is_stopped_by_its_check() {
    let bench = Bench::start(3);
    let query = "avg(muster_unit_memory_resident_bytes{$hosts})";
    let policy = json!({
        "waves": [1], "soak": "8s", "max_failures": 0, "check": {"query": query, "worse_than_rest_by": "50%"}
    });
    bench.apply("lean", &json!({"waves": [], "soak": 0, "max_in_flight": 3}));
    bench.phase("completed");
    eventually("measurements of all hosts", || {
        let found = bench.roles.json(&["metric", "query", "count(muster_unit_memory_resident_bytes)"]);
        if found["series"][0]["points"][0][1] == 3.0 { Ok(()) } else { Err(found.to_string()) }
    });
    bench.apply("fat", &policy);
    let shown = bench.phase("paused");
    let reason = shown["phase"]["reason"].as_str().unwrap();
    assert!(reason.contains("worse than the rest"), "{shown}");
    assert_eq!(bench.words(), ["fat", "lean", "lean"]);
}

/// The console is killed before and after each commit of a round, while a rollout goes on, and ends it all the same.
#[test]
fn console_that_is_killed_at_any_commit_goes_on() {
    let mut bench = Bench::start(2);
    let mut word = 0;
    for place in ["before", "before commit", "after commit"] {
        for count in 1..=3 {
            word += 1;
            let crash = format!("store rollout/{place}:{count}");
            bench.roles.kill_console();
            bench.roles.crash = Some(crash.clone());
            bench.roles.start_console();
            bench.online(2);
            let path = bench.write(&format!("w{word}"), &json!({"waves": [1], "soak": 0}));
            // It may be killed while it answers, or before: then the version is applied by the next one.
            let args = ["deployment", "apply", &path, "--yes", "--no-wait"];
            let is_applied = bench.roles.home.muster(&args).code == 0;
            eventually("the console is killed", || {
                if bench.roles.console_has_ended() { Ok(()) } else { Err(crash.clone()) }
            });
            bench.roles.kill_console();
            bench.roles.crash = None;
            bench.roles.start_console();
            if !is_applied {
                bench.roles.ok(&args);
            }
            let shown = bench.phase("completed");
            assert_eq!(shown["outcomes"], json!({"verified": 2}), "{crash}: {shown}");
            assert_eq!(bench.words(), vec![format!("w{word}"); 2], "{crash}");
        }
    }
}
