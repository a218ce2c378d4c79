//! Offline hosts: they delay nobody, and on their return get what is desired of them, in order, and no more
//! at once than they can take.

use std::{
    fs,
    process::Stdio,
    time::{Duration, Instant},
};

use serde_json::Value;

use crate::{
    fleet::{Running, eventually, file},
    roles::Roles,
};

const WEEK_MS: i64 = 7 * 24 * 3_600_000;

/// Two hosts, `there` and `gone`, by their ids.
struct Bench {
    roles: Roles,
    there: String,
    gone: String,
    _agent: Running,
    other: Option<Running>,
}

impl Bench {
    fn start() -> Self {
        let roles = Roles::start();
        // It runs few programs at once, so that what is too much for it shows soon.
        let few = "[exec]\nparallel_max = 2\nqueue_max = 2";
        let agent = Self::join(&roles, "there", "");
        let there = Self::online(&roles, 1)[0].clone();
        let other = Self::join(&roles, "gone", few);
        let gone = Self::online(&roles, 2).into_iter().find(|id| *id != there).unwrap();
        Self { roles, there, gone, _agent: agent, other: Some(other) }
    }

    fn join(roles: &Roles, name: &str, more: &str) -> Running {
        let data = roles.home.path().join(name);
        let config =
            file(&roles.home, &format!("{name}.toml"), &format!("data_dir = \"{}\"\n{more}\n", data.display()));
        Running::start(roles.home.command().args(["agent", "--config", &config, "--join", &roles.token()]))
    }

    fn online(roles: &Roles, count: usize) -> Vec<String> {
        eventually("hosts online", || {
            let hosts = roles.json(&["host", "ls"]);
            let is_online = |host: &&Value| host["presence"]["state"] == "online" && host["state"].is_object();
            let ids =
                hosts.as_array().unwrap().iter().filter(is_online).map(|host| host["id"].as_str().unwrap().to_owned());
            let ids: Vec<String> = ids.collect();
            if ids.len() == count { Ok(ids) } else { Err(hosts.to_string()) }
        })
    }

    fn leave(&mut self) {
        self.other.take().unwrap().kill();
        Self::online(&self.roles, 1);
    }

    fn come_back(&mut self) {
        let config = self.roles.home.path().join("gone.toml").display().to_string();
        self.other = Some(Running::start(self.roles.home.command().args(["agent", "--config", &config])));
    }

    fn create(&self, host: &str, unit: &str, more: &[&str]) {
        let args = ["yuno", "create", unit, "--host", host, "--artifact", "sleeper", "--run", "--verify-after", "0s"];
        self.roles.ok(&[&args[..], more].concat());
    }

    fn unit(&self, host: &str, unit: &str, phase: &str) {
        eventually(phase, || {
            let shown = self.roles.json(&["unit", "show", &format!("{host}:{unit}")]);
            if shown["observed"]["phase"] == phase { Ok(()) } else { Err(shown.to_string()) }
        });
    }

    /// The newest command for the host that is away.
    fn newest(&self) -> Value {
        self.roles.json(&["command", "ls", "--host", &self.gone, "-n", "1"])[0].clone()
    }

    fn state(&self, id: &str) -> Value {
        self.roles.json(&["command", "show", id])["hosts"][0].clone()
    }
}

#[test]
fn intent_for_offline_host_waits_and_delays_no_other() {
    let mut bench = Bench::start();
    let path = file(&bench.roles.home, "sleeper", "#!/bin/sh\nexec sleep 1000\n");
    bench.roles.ok(&["artifact", "create", &path, "--role", "sleeper", "--version", "1"]);
    let (there, gone) = (bench.there.clone(), bench.gone.clone());
    bench.create(&there, "default/k0", &["--priority", "1"]);
    bench.create(&there, "default/k1", &[]);
    bench.create(&gone, "default/k4", &[]);
    bench.leave();

    // Both waves of the one that is there, although the other does nothing.
    let stop = bench.roles.home.muster(&["yuno", "stop", "--select", "name=k*", "--yes", "--timeout", "10m"]);
    let stop = stop.expect_code(1).expect_stderr("is away").expect_stderr("1 waiting for hosts that are away");
    assert!(stop.stderr.contains("2 done, 0 failed"), "{}", stop.stderr);
    for unit in ["default/k0", "default/k1"] {
        bench.unit(&there, unit, "stopped");
    }
    let waits = bench.newest();
    assert_eq!(waits["expires_ms"].as_i64().unwrap() - waits["issued_ms"].as_i64().unwrap(), WEEK_MS);
    assert!(bench.roles.ok(&["command", "ls"]).contains("waiting for the host, away since"));
    assert!(bench.roles.ok(&["command", "show", waits["id"].as_str().unwrap()]).contains("away since"));

    // What comes later makes it void; what is only stored is not waited for, whoever is away.
    let k4 = format!("{gone}:default/k4");
    let verb = |verb: &str, more: &[&str]| bench.roles.ok(&[&["yuno", verb, &k4, "--no-wait"], more].concat());
    verb("run", &[]);
    let run = bench.newest();
    let outcome = &bench.state(waits["id"].as_str().unwrap())["outcome"]["value"];
    assert_eq!((outcome["status"].as_str(), outcome["code"].as_str()), (Some("refused"), Some("superseded")));
    verb("stop", &["--expires", "1h"]);
    let stop = bench.newest();
    assert_eq!(stop["expires_ms"].as_i64().unwrap() - stop["issued_ms"].as_i64().unwrap(), 3_600_000);
    assert_eq!(bench.state(run["id"].as_str().unwrap())["outcome"]["value"]["code"], "superseded");

    // A document for both.
    let document = file(&bench.roles.home, "k4.yaml", "unit: default/k4\nartifact: sleeper@1\nlabels: {tier: gold}\n");
    let apply = ["unit", "apply", &document, "--host", &gone, "--timeout", "10m"];
    bench.roles.home.muster(&apply).expect_code(1).expect_stderr("wait for hosts that are away");

    // Programs: those that are there are waited for.
    let all = bench.roles.home.muster(&["exec", "--all", "--timeout", "3s", "--", "echo", "here"]);
    let all = all.expect_code(1).expect_stderr("is away").expect_stderr("muster command show");
    assert!(all.stdout.contains("here"), "{}", all.stdout);
    bench.roles.home.muster(&["exec", "--", "true"]).expect_code(2).expect_stderr("--all");

    // What is taken back before it went out ends at once.
    let id = bench.roles.ok(&["exec", "--no-wait", "--host", &gone, "--", "true"]).trim().to_owned();
    bench.roles.ok(&["command", "cancel", &id]);
    assert_eq!(bench.state(&id)["outcome"]["value"]["status"], "cancelled");

    bench.come_back();
    bench.unit(&gone, "default/k4", "stopped");
    eventually("the label", || {
        let shown = bench.roles.json(&["unit", "show", &k4]);
        let labels = &shown["desired"]["spec"]["labels"];
        if labels["tier"] == "gold" { Ok(()) } else { Err(labels.to_string()) }
    });
}

#[test]
fn verb_waits_for_briefly_offline_host() {
    let mut bench = Bench::start();
    let path = file(&bench.roles.home, "sleeper", "#!/bin/sh\nexec sleep 1000\n");
    bench.roles.ok(&["artifact", "create", &path, "--role", "sleeper", "--version", "1"]);
    let gone = bench.gone.clone();
    bench.create(&gone, "default/k4", &[]);
    let k4 = format!("{gone}:default/k4");

    // Its agent is killed, and comes back while the verb is waited for.
    bench.leave();
    let mut stop = bench.roles.home.command();
    stop.args(["yuno", "stop", &k4]).stdout(Stdio::null()).stderr(Stdio::piped());
    let stop = stop.spawn().unwrap();
    eventually("the command", || {
        let newest = bench.newest();
        if newest["verb"]["unit_stop"].is_object() { Ok(()) } else { Err(newest.to_string()) }
    });
    bench.come_back();
    let stop = stop.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&stop.stderr);
    assert!(stop.status.success() && !said.contains("is away"), "{said}");
    bench.unit(&gone, "default/k4", "stopped");

    // In order it says goodbye.
    bench.other.take().unwrap().stop();
    Bench::online(&bench.roles, 1);
    bench.roles.home.muster(&["yuno", "run", &k4]).expect_code(1).expect_stderr("is away");
    bench.come_back();
    bench.unit(&gone, "default/k4", "running");
}

#[test]
fn returning_host_is_not_overloaded() {
    const COUNT: usize = 60;
    let mut bench = Bench::start();
    bench.leave();
    let effects = bench.roles.home.path().join("effects");
    let note = format!("echo x >> {}", effects.display());
    let exec = ["exec", "--no-wait", "--host", &bench.gone, "--shell", "--", &note];
    let ids: Vec<String> = (0..COUNT).map(|_| bench.roles.ok(&exec).trim().to_owned()).collect();
    bench.come_back();
    let started = Instant::now();
    for id in ids {
        let outcome = eventually("an outcome", || {
            let host = bench.state(&id);
            if host["state"] == "done" { Ok(host["outcome"]["value"].clone()) } else { Err(host.to_string()) }
        });
        assert_eq!(outcome["exit"]["code"], 0, "{outcome}");
    }
    assert_eq!(fs::read_to_string(effects).unwrap().lines().count(), COUNT, "each once");
    eprintln!("{COUNT} programs after a return: {:?}", Duration::from_millis(started.elapsed().as_millis() as u64));
}
