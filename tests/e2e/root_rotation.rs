//! Replacing the root certificate, with real agents: nobody touches a host that is there meanwhile, whoever is killed.

use std::{fs, path::Path};

use serde_json::Value;

use crate::{
    fleet::{Fleet, Run, eventually},
    rotation::Bench,
    wire::{mosquitto, publish},
};

/// Where the console is killed at each step, in the order in which they are passed.
const BEGIN: [&str; 2] = ["rotate root/after its key is made:1", "set keys/before:1"];
const ISSUE: [&str; 2] = ["set keys/before:1", "set keys/before roots are moved:1"];
const FINISH: [&str; 2] = ["set keys/before:1", "rotate root/after its key is renamed:1"];

impl Bench {
    /// The root certificates that an agent trusts, and its own certificate.
    fn trusted(&self, at: usize) -> (String, String) {
        let text = fs::read_to_string(self.roles.home.path().join(["one", "two"][at]).join("identity.json")).unwrap();
        let membership = serde_json::from_str::<Value>(&text).unwrap()["membership"].clone();
        let text = |name: &str| membership[name].as_str().unwrap().to_owned();
        (text("authority"), text("certificate"))
    }

    /// A step of a rotation, with a console that is killed at each of these places on the way to it. The last of them is
    /// behind what is stored.
    fn step_with_kills(&mut self, args: &[&str], points: [&str; 2], is_done: impl Fn(&Value) -> bool) {
        for (at, point) in points.into_iter().enumerate() {
            self.roles.kill_console();
            self.roles.crash = Some(point.to_owned());
            self.roles.start_console();
            self.roles.home.muster(&[&["authority"], args, &["--timeout", "0s"]].concat()).expect_code(4);
            self.roles.kill_console();
            self.roles.crash = None;
            self.roles.start_console();
            let status = self.status();
            assert_eq!(is_done(&status), at == 1, "{point} {args:?}: {status}");
        }
    }

    fn wait_until_ready(&self, stage: &str) {
        self.wait_for_status(stage, |status| {
            status["rotation"]["stage"] == stage && status["rotation"]["ready"] == true
        });
    }

    fn all_work(&self) {
        for at in 0..self.hosts.len() {
            self.exec(at);
        }
    }

    /// The broker's files, made anew and read.
    fn renew_broker(&self) {
        self.roles.issue_broker();
        self.roles.reload_broker();
    }

    /// Finishes once the broker has read its files.
    fn finish(&self, more: &[&str]) {
        eventually("the next stage", || {
            let run = self.roles.home.muster(&[&["authority", "finish", "--timeout", "0s"], more].concat());
            if run.code == 0 { Ok(()) } else { Err(run.stderr) }
        });
    }

    fn pem(&self) -> String {
        fs::read_to_string(self.roles.home.path().join("console/authority/authority.pem")).unwrap()
    }
}

#[test]
fn root_is_replaced_although_the_console_is_killed_at_each_step() {
    let mut bench = Bench::start();
    let (old, refused) = (bench.pem(), |bench: &Bench| bench.roles.home.muster(&["authority", "finish"]));
    let is_at = |stage: &'static str| move |status: &Value| status["rotation"]["stage"] == stage;
    // A root that is there is offered, as no state says yet that nobody was told of it.
    bench.step_with_kills(&["rotate", "root"], BEGIN, is_at("trust"));
    bench.wait_until_ready("trust");
    bench.all_work();
    let told = bench.roles.home.muster(&["authority", "show"]).expect_code(0);
    told.expect_stderr("2 of 2 trust it").expect_stderr("`muster console issue --role broker` makes its files again");
    let text = refused(&bench).expect_code(3).expect_stderr("does not accept a certificate under the new root").stderr;
    assert!(text.contains("certificates are still made under the present root"), "{text}");

    bench.renew_broker();
    eventually("a broker that trusts both", || {
        let run = bench.roles.home.muster(&["exec", "--host", &bench.hosts[0], "--", "true"]);
        if run.code == 0 { Ok(()) } else { Err(run.stderr) }
    });
    bench.step_with_kills(&["finish"], ISSUE, is_at("certificates"));
    bench.wait_until_ready("certificates");
    bench.all_work();
    for at in 0..2 {
        let (trusted, _) = bench.trusted(at);
        assert!(trusted.matches("BEGIN CERTIFICATE").count() == 2 && trusted.contains(old.trim()), "{trusted}");
    }
    let text = refused(&bench).expect_code(3).expect_stderr("has no certificate under the new root").stderr;
    assert!(text.contains("the old root is still trusted"), "{text}");
    bench.roles.home.muster(&["authority", "cancel"]).expect_code(3).expect_stderr("authority finish");

    bench.renew_broker();
    bench.wait_until_ready("certificates");
    bench.step_with_kills(&["finish"], FINISH, |status| status["rotation"].is_null());
    let new = bench.pem();
    assert_ne!(new, old);
    assert!(!bench.roles.home.path().join("console/authority/authority.next.key").exists());
    bench.wait_for_status("hosts without the old root", |status| status["last_rotation"]["having"] == 2);
    for at in 0..2 {
        assert_eq!(bench.trusted(at).0.trim(), new.trim());
    }
    bench.all_work();
    // The broker does not trust the old root any more, either.
    bench.renew_broker();
    bench.leave(0);
    bench.come_back(0);
    bench.all_work();
    let newcomer = bench.agent("three", &["--join", &bench.roles.token()]);
    bench.online(3);
    drop(newcomer);
    let shown = bench.roles.ok(&["authority", "show"]);
    assert!(shown.contains("last rotation"), "{shown}");
}

#[test]
fn host_that_was_away_heals_as_long_as_the_old_root_is_trusted() {
    let mut bench = Bench::start();
    let token = bench.roles.token();
    bench.leave(1);
    bench.roles.ok(&["authority", "rotate", "root"]);
    bench.wait_for_status("one host", |status| status["rotation"]["having"] == 1);
    bench.renew_broker();
    let refused = bench.roles.home.muster(&["authority", "finish"]).expect_code(3);
    refused.expect_stderr("1 of 2 hosts do not trust the new root").expect_stderr("--without");
    let waits = bench.roles.ok(&["exec", "--no-wait", "--host", &bench.hosts[1], "--", "true"]);
    bench.finish(&["--without", &bench.hosts[1]]);
    // Its broker is under a root that it does not know, and the console under the one that it knows.
    bench.renew_broker();
    bench.wait_for_status("one host", |status| status["rotation"]["having"] == 1);
    bench.come_back(1);
    let printed = bench.printed(1);
    assert!(printed.contains("a key or a root certificate of the fleet is unknown"), "{printed}");
    bench.wait_until_ready("certificates");
    eventually("what waited for it", || {
        let shown = bench.roles.json(&["command", "show", waits.trim()]);
        if shown["hosts"][0]["state"] == "done" { Ok(()) } else { Err(shown.to_string()) }
    });
    // A token of before is good as long as the console is under the root that it names.
    let newcomer = bench.agent("three", &["--join", &token]);
    bench.wait_for_status("three hosts", |status| status["rotation"]["having"] == 3);
    let all = bench.online(3);
    let newcomers = all.iter().find(|host| !bench.hosts.contains(host)).unwrap();
    newcomer.kill();
    bench.roles.ok(&["host", "rm", "--yes", newcomers]);
    let late = bench.roles.token();

    // And of no use after that.
    bench.finish(&[]);
    bench.wait_for_status("both hosts alone", |status| status["last_rotation"]["having"] == 2);
    let mut four = bench.agent("four", &["--join", &late]);
    four.wait_for_end(1, "is not of the fleet that the token was made for");
    bench.exec(0);
}

#[test]
fn host_that_is_named_at_the_end_joins_anew_under_its_id() {
    let mut bench = Bench::start();
    bench.leave(1);
    bench.roles.ok(&["authority", "rotate", "root"]);
    let two = bench.hosts[1].clone();
    bench.renew_broker();
    bench.wait_for_status("one host", |status| status["rotation"]["having"] == 1);
    bench.finish(&["--without", &two]);
    bench.renew_broker();
    bench.wait_for_status("one host", |status| status["rotation"]["having"] == 1);
    let refused = bench.roles.home.muster(&["authority", "finish"]).expect_code(3);
    refused.expect_stderr("1 of 2 hosts have no certificate under the new root").expect_stderr("join again");
    bench.finish(&["--without", &two]);
    bench.renew_broker();
    bench.exec(0);
    let status = bench.roles.home.muster(&["authority", "show"]).expect_code(0);
    assert!(status.stdout.contains("its certificate is under the old root"), "{status:?}");

    let mut agent = bench.agent("two", &[]);
    agent.wait_for("the refusal", |printed| printed.contains("UnknownIssuer").then_some(()));
    assert_eq!(bench.online(1), [bench.hosts[0].clone()]);
    agent.kill();
    let token = bench.roles.json(&["token", "create", "--replace", &two])["token"].as_str().unwrap().to_owned();
    let mut agent = bench.agent("two", &["--join", &token]);
    agent.wait_for("a hint", |printed| printed.contains("remove only identity.json").then_some(()));
    agent.kill();
    fs::remove_file(bench.roles.home.path().join("two/identity.json")).unwrap();
    let agent = bench.agent("two", &["--join", &token]);
    assert!(bench.online(2).contains(&two));
    bench.all_work();
    bench.wait_for_status("both hosts", |status| status["last_rotation"]["having"] == 2);
    drop(agent);
}

/// Whether the broker lets a stock client in.
fn is_let_in(fleet: &Fleet, folder: &Path) -> bool {
    let mut client = mosquitto("mosquitto_sub", fleet, folder);
    Run::of(&["mosquitto_sub"], client.args(["-t", "muster/#", "-W", "10", "-E"])).code == 0
}

fn ready(fleet: &Fleet, stage: &str) -> Value {
    eventually(stage, || {
        let status = fleet.json(&["authority", "show"]);
        let is_ready = status["rotation"]["stage"] == stage && status["rotation"]["ready"] == true;
        if is_ready { Ok(status) } else { Err(status.to_string()) }
    })
}

#[test]
fn broker_of_up_follows_and_old_certificates_are_refused_at_the_end() {
    let mut fleet = Fleet::start();
    let old = fleet.issue("observer", "old");
    assert!(is_let_in(&fleet, &old));
    fleet.ok(&["authority", "rotate", "root"]);
    let status = ready(&fleet, "trust");
    assert!(status["rotation"]["broker"].is_null(), "{status}");
    fleet.ok(&["exec", "--", "true"]);
    fleet.kill();
    fleet.again();
    fleet.ok(&["exec", "--timeout", "60s", "--", "true"]);
    fleet.ok(&["authority", "finish", "--timeout", "0s"]);
    let status = ready(&fleet, "certificates");
    assert_eq!(status["rotation"]["by_hand"], serde_json::json!(["observer-old"]));
    fleet.ok(&["exec", "--", "true"]);
    fleet.kill();
    fleet.again();
    fleet.ok(&["exec", "--timeout", "60s", "--", "true"]);
    let is_let_in = |folder: &Path| is_let_in(&fleet, folder);
    let between = fleet.issue("observer", "between");
    assert!(is_let_in(&old) && is_let_in(&between));
    fleet.ok(&["authority", "finish"]);
    fleet.ok(&["exec", "--timeout", "60s", "--", "true"]);
    let new = fleet.issue("observer", "new");
    // Even if it trusts the new root.
    fs::copy(new.join("authority.pem"), old.join("authority.pem")).unwrap();
    assert!(is_let_in(&new) && is_let_in(&between) && !is_let_in(&old));
    assert_ne!(publish(&fleet, &old, "muster/x", "x").code, 0);
    eventually("a host that trusts the new root alone", || {
        let status = fleet.json(&["authority", "show"]);
        if status["last_rotation"]["having"] == 1 { Ok(()) } else { Err(status.to_string()) }
    });
    // A revocation is in force, by a list under the new root.
    let data = fleet.data().join("console");
    fleet.ok(&["console", "revoke", "observer-between", "--data-dir", data.to_str().unwrap()]);
    eventually("its refusal", || if is_let_in(&between) { Err("it is let in".to_owned()) } else { Ok(()) });
    assert!(is_let_in(&new));
}

#[test]
fn context_of_pages_over_https_follows_if_it_is_used_in_time() {
    let fleet = Fleet::start_with(&["--no-sample", "--web-listen", "0.0.0.0"]);
    let path = fleet.home.path().join("config/muster/context.toml");
    let text = fs::read_to_string(&path).unwrap();
    let (before, rest) = text.split_once("https://").unwrap();
    let (_, after) = rest.split_once(':').unwrap();
    let stale = format!("{before}https://127.0.0.1:{after}");
    fs::write(&path, &stale).unwrap();
    let known = || fs::read_to_string(&path).unwrap().matches("BEGIN CERTIFICATE").count();
    assert_eq!(known(), 1);
    fleet.ok(&["authority", "rotate", "root"]);
    ready(&fleet, "trust");
    assert_eq!(known(), 2);
    fleet.ok(&["authority", "finish", "--timeout", "0s"]);
    ready(&fleet, "certificates");
    fleet.ok(&["authority", "finish"]);
    fleet.ok(&["exec", "--timeout", "60s", "--", "true"]);
    fleet.ok(&["authority", "show"]);
    assert_eq!(known(), 1, "the old one is forgotten");
    fleet.ok(&["host", "ls"]);
    // One that was not used meanwhile says what to do.
    fs::write(&path, &stale).unwrap();
    let refused = fleet.muster(&["host", "ls"]).expect_code(4);
    refused.expect_stderr("not under the root certificate that this context knows").expect_stderr("--authority FILE");
}
