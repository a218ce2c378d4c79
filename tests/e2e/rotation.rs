//! Replacing the key that signs commands, with real agents: nobody touches a host, whoever is killed or away meanwhile.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use muster_topics::{
    envelope::{Kind, PublicKey, Signer},
    name::{CommandId, HostId},
};
use serde_json::{Value, json};

use crate::{
    fleet::{Fleet, Home, Running, eventually, file, free_ports},
    roles::Roles,
    wire::{of_host, publish},
};

/// The three roles, and two hosts, `one` and `two`.
pub(crate) struct Bench {
    pub(crate) roles: Roles,
    agents: Vec<Option<Running>>,
    pub(crate) hosts: Vec<String>,
}

const NAMES: [&str; 2] = ["one", "two"];

impl Bench {
    pub(crate) fn start() -> Self {
        Self::start_with(Home::new(), String::new())
    }

    fn start_with(home: Home, more: String) -> Self {
        let mut roles = Roles::start_in(home, more);
        // Hosts renew at the address that they joined at.
        roles.hosts_port = free_ports(1);
        roles.restart_console();
        let mut bench = Self { roles, agents: Vec::new(), hosts: Vec::new() };
        for (at, name) in NAMES.into_iter().enumerate() {
            let agent = bench.agent(name, &["--join", &bench.roles.token()]);
            bench.agents.push(Some(agent));
            let online = bench.online(at + 1);
            bench.hosts.extend(online.into_iter().filter(|id| !bench.hosts.contains(id)).collect::<Vec<_>>());
        }
        bench
    }

    pub(crate) fn agent(&self, name: &str, more: &[&str]) -> Running {
        self.agent_with(name, more, None)
    }

    fn agent_with(&self, name: &str, more: &[&str], crash: Option<&str>) -> Running {
        let data = self.roles.home.path().join(name);
        let config = file(&self.roles.home, &format!("{name}.toml"), &format!("data_dir = \"{}\"\n", data.display()));
        let mut command = self.roles.home.command();
        command.args(["agent", "--config", &config]).args(more);
        if let Some(point) = crash {
            command.env("MUSTER_TEST_CRASH", point);
        }
        Running::start(&mut command)
    }

    pub(crate) fn online(&self, count: usize) -> Vec<String> {
        eventually("hosts online", || {
            let hosts = self.roles.json(&["host", "ls"]);
            let is_online = |host: &&Value| host["presence"]["state"] == "online" && host["state"].is_object();
            let ids = hosts.as_array().unwrap().iter().filter(is_online);
            let ids: Vec<String> = ids.map(|host| host["id"].as_str().unwrap().to_owned()).collect();
            if ids.len() == count { Ok(ids) } else { Err(hosts.to_string()) }
        })
    }

    pub(crate) fn leave(&mut self, at: usize) {
        self.agents[at].take().unwrap().kill();
        self.online(self.agents.iter().flatten().count());
    }

    pub(crate) fn come_back(&mut self, at: usize) {
        self.agents[at] = Some(self.agent(NAMES[at], &[]));
        self.online(self.agents.iter().flatten().count());
    }

    /// What an agent has printed since it was started last.
    pub(crate) fn printed(&self, at: usize) -> String {
        self.agents[at].as_ref().unwrap().printed()
    }

    /// The ids of the keys that an agent has on its disk.
    fn kept(&self, at: usize) -> Vec<String> {
        let text = fs::read_to_string(self.roles.home.path().join(NAMES[at]).join("identity.json")).unwrap();
        let identity: Value = serde_json::from_str(&text).unwrap();
        let keys: Vec<PublicKey> = serde_json::from_value(identity["membership"]["command_keys"].clone()).unwrap();
        keys.iter().map(|key| key.id().to_owned()).collect()
    }

    fn wait_for_keys(&self, at: usize, wanted: &[&str]) {
        eventually("keys on the host", || {
            let kept = self.kept(at);
            if kept == wanted { Ok(()) } else { Err(format!("{kept:?}")) }
        });
    }

    pub(crate) fn status(&self) -> Value {
        self.roles.json(&["authority", "show"])
    }

    pub(crate) fn wait_for_status(&self, what: &str, is_wanted: impl Fn(&Value) -> bool) -> Value {
        eventually(what, || {
            let status = self.status();
            if is_wanted(&status) { Ok(status) } else { Err(status.to_string()) }
        })
    }

    pub(crate) fn exec(&self, at: usize) {
        self.roles.ok(&["exec", "--host", &self.hosts[at], "--timeout", "30s", "--", "true"]);
    }

    /// Begins a rotation; gives the ids of the old and the new key.
    fn begin(&self) -> (String, String) {
        let begun = self.roles.json(&["authority", "rotate", "signing", "--timeout", "0s"]);
        let new = begun["rotation"]["new_key"].as_str().unwrap().to_owned();
        (begun["signing_key"].as_str().unwrap().to_owned(), new)
    }

    fn all_have_it(&self) {
        self.wait_for_status("all hosts with the new key", |status| status["rotation"]["ready"] == true);
    }
}

#[test]
fn key_is_replaced_although_console_and_agents_are_killed_at_each_step() {
    let mut bench = Bench::start();
    let (old, new) = bench.begin();
    bench.roles.kill_console();
    bench.roles.start_console();
    assert_eq!(bench.begin(), (old.clone(), new.clone()), "the same rotation goes on");
    bench.all_have_it();
    for at in 0..2 {
        bench.wait_for_keys(at, &[&old, &new]);
        bench.exec(at);
    }
    // Hosts that have the key have it after any end.
    bench.leave(0);
    bench.roles.kill_console();
    bench.roles.start_console();
    bench.come_back(0);
    bench.all_have_it();

    bench.roles.ok(&["authority", "finish", "--timeout", "0s"]);
    bench.roles.kill_console();
    assert_eq!(bench.roles.try_console(), Ok(()));
    for at in 0..2 {
        bench.wait_for_keys(at, &[&new]);
        bench.exec(at);
    }
    let done = bench.wait_for_status("hosts without the old key", |status| status["last_rotation"]["having"] == 2);
    assert_eq!((&done["signing_key"], &done["last_rotation"]["old_key"]), (&json!(new), &json!(old)));
    let shown = bench.roles.ok(&["authority", "show"]);
    assert!(shown.contains(&new) && shown.contains(&old) && shown.contains("a file of the console"), "{shown}");
    // And again, with one that is taken back.
    let (_, third) = bench.begin();
    bench.all_have_it();
    bench.roles.ok(&["authority", "cancel"]);
    for at in 0..2 {
        bench.wait_for_keys(at, &[&new]);
        bench.exec(at);
    }
    assert_ne!(bench.begin().1, third);
}

#[test]
fn agent_killed_while_it_stores_the_keys_has_the_old_ones_or_the_new() {
    for (point, kept_first) in [("keep identity/before:1", 1), ("keep identity/after:1", 2)] {
        let mut bench = Bench::start();
        bench.leave(0);
        let (old, new) = bench.begin();
        let mut agent = bench.agent_with("one", &[], Some(point));
        agent.wait_for_end(-1, "");
        assert_eq!(bench.kept(0).len(), kept_first, "{point}");
        bench.come_back(0);
        bench.all_have_it();
        bench.wait_for_keys(0, &[&old, &new]);
        bench.exec(0);
    }
}

#[test]
fn host_that_was_away_for_the_whole_rotation_heals_by_renewal() {
    let mut bench = Bench::start();
    bench.leave(1);
    let (old, new) = bench.begin();
    bench.wait_for_status("one host with it", |status| status["rotation"]["having"] == 1);
    let run = |args: &[&str]| bench.roles.home.muster(args);
    let refused = run(&["authority", "finish"]).expect_code(3).expect_stderr("1 of 2 hosts lack the new key");
    let hostname = bench.roles.json(&["host", "show", &bench.hosts[1]])["hostname"].as_str().unwrap().to_owned();
    assert!(refused.stderr.contains(&hostname) && refused.stderr.contains("--without"), "{}", refused.stderr);
    assert_eq!(bench.status()["signing_key"], old.as_str(), "nothing has changed");
    // What waits for it was signed with the old key.
    let waits = bench.roles.ok(&["exec", "--no-wait", "--host", &bench.hosts[1], "--", "echo", "late"]);
    bench.roles.ok(&["authority", "finish", "--without", &bench.hosts[1]]);
    bench.wait_for_keys(0, &[&new]);
    bench.exec(0);
    assert_eq!(bench.kept(1), [old]);
    let lacking = bench.wait_for_status("one host without", |status| status["last_rotation"]["having"] == 1);
    assert_eq!(lacking["last_rotation"]["lacking"][0]["host"], bench.hosts[1].as_str());

    bench.come_back(1);
    bench.wait_for_keys(1, &[&new]);
    let outcome = eventually("what waited for it", || {
        let shown = bench.roles.json(&["command", "show", waits.trim()]);
        let host = shown["hosts"][0].clone();
        if host["state"] == "done" { Ok(host["outcome"]["value"].clone()) } else { Err(host.to_string()) }
    });
    assert_eq!(outcome["status"], "exited", "{outcome}");
    bench.exec(1);
    bench.wait_for_status("all hosts", |status| status["last_rotation"]["having"] == 2);
    let printed = bench.printed(1);
    assert!(printed.contains("a key or a root certificate of the fleet is unknown"), "{printed}");
}

#[test]
fn host_that_comes_back_in_between_gets_the_key_and_waiting_commands() {
    let mut bench = Bench::start();
    bench.leave(1);
    let (old, new) = bench.begin();
    let waits = bench.roles.ok(&["exec", "--no-wait", "--host", &bench.hosts[1], "--", "true"]);
    bench.come_back(1);
    bench.all_have_it();
    bench.wait_for_keys(1, &[&old, &new]);
    // It has the new key and goes again; what waits for it is signed anew.
    bench.leave(1);
    let also = bench.roles.ok(&["exec", "--no-wait", "--host", &bench.hosts[1], "--", "true"]);
    // A newcomer has both keys from the beginning.
    let newcomer = bench.agent("three", &["--join", &bench.roles.token()]);
    bench.wait_for_status("three hosts with it", |status| status["rotation"]["having"] == 3);
    bench.roles.ok(&["authority", "finish"]);
    bench.come_back(1);
    for command in [&waits, &also] {
        eventually("its outcome", || {
            let shown = bench.roles.json(&["command", "show", command.trim()]);
            let status = shown["hosts"][0]["outcome"]["value"]["status"].clone();
            if status == "exited" { Ok(()) } else { Err(shown.to_string()) }
        });
    }
    bench.wait_for_keys(1, &[&new]);
    drop(newcomer);
}

#[test]
fn retired_key_commands_nobody_any_more() {
    let fleet = Fleet::start();
    let (host, forger) = (fleet.host(), fleet.issue("console", "forger"));
    let retired = fs::read(fleet.data().join("console/authority/signing.key")).unwrap();
    let retired = Signer::from_pkcs8(&retired).unwrap();
    let mark = fleet.home.path().join("mark");
    let send = |word: &str| {
        let now_ms = muster_base::clock::now_ms();
        let body = json!({
            "v": 1, "id": CommandId::new(), "target": {"hosts": [host]}, "asked_by": {"operator": "admin", "role": "admin"},
            "issued_ms": now_ms, "expires_ms": now_ms + 60_000,
            "verb": {"exec": {"shell": format!("echo {word} >> {}", mark.display()), "timeout_ms": 10_000}}
        });
        let envelope = serde_json::to_string(&retired.sign_text(
            host.parse::<HostId>().unwrap().slot(),
            Kind::Command,
            body.to_string(),
        ))
        .unwrap();
        assert_eq!(publish(&fleet, &forger, &of_host(&host, "cmd"), &envelope).code, 0);
    };
    let marks = || fs::read_to_string(&mark).unwrap_or_default();
    let wait_for = |word: &str| eventually(word, || if marks().contains(word) { Ok(()) } else { Err(marks()) });
    send("before");
    wait_for("before");
    fleet.ok(&["authority", "rotate", "signing"]);
    send("between");
    wait_for("between");
    fleet.ok(&["authority", "finish"]);
    eventually("a host without the old key", || {
        let status = fleet.json(&["authority", "show"]);
        if status["last_rotation"]["having"] == 1 { Ok(()) } else { Err(status.to_string()) }
    });
    send("after");
    // Whatever was sent before this is dealt with then.
    fleet.ok(&["exec", "--timeout", "30s", "--", "true"]);
    assert_eq!(marks(), "before\nbetween\n");
    // The host asks the console, which has not gone back: it stays with its keys.
    fleet.ok(&["exec", "--timeout", "30s", "--", "true"]);
}

/// The sample of an external signer, with keys that openssl has made.
struct Signers {
    folder: PathBuf,
    running: Option<Running>,
}

impl Signers {
    fn new(home: &Home) -> Self {
        let folder = home.path().join("signer");
        fs::create_dir(&folder).unwrap();
        for name in ["first.pem", "second.pem"] {
            let path = folder.join(name);
            let made = Command::new("openssl").args(["genpkey", "-algorithm", "ed25519", "-out"]).arg(path).status();
            assert!(made.unwrap().success(), "openssl (tests/run installs it)");
        }
        Self { folder, running: None }
    }

    fn config(&self) -> String {
        format!("[authority]\nsigner = \"unix:{}\"\n", self.folder.join("socket").display())
    }

    /// Starts it with these keys, in the place of one that runs.
    fn start(&mut self, home: &Home, keys: &[&str]) {
        self.stop();
        let sample = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/signer.py");
        let mut command = Command::new(sample);
        home.dress(&mut command);
        let keys = keys.iter().map(|name| self.folder.join(name));
        let mut running = Running::start(command.arg(self.folder.join("socket")).args(keys));
        running.wait_for("a signer", |printed| printed.contains("ready").then_some(()));
        self.running = Some(running);
    }

    fn stop(&mut self) {
        self.running.take().into_iter().for_each(Running::kill);
    }
}

#[test]
fn fleet_moves_to_an_external_signer_and_to_its_next_key() {
    let home = Home::new();
    let mut signers = Signers::new(&home);
    signers.start(&home, &["first.pem"]);
    let config = signers.config();
    let bench = Bench::start_with(home, config);
    let shown = || bench.roles.ok(&["authority", "show"]);
    assert!(shown().contains("a file of the console"), "hosts have that key: {}", shown());
    let (_, first) = bench.begin();
    bench.all_have_it();
    bench.roles.ok(&["authority", "finish"]);
    assert!(shown().contains(&first) && shown().contains("the signer at unix:"), "{}", shown());
    assert!(!bench.roles.home.path().join("console/authority/signing.key").exists());
    bench.exec(0);

    // It is away: nothing is half done, and everything goes on when it is back.
    let count = || bench.roles.json(&["command", "ls"]).as_array().unwrap().len();
    let before = count();
    signers.stop();
    let refused = bench.roles.home.muster(&["exec", "--host", &bench.hosts[0], "--", "true"]).expect_code(4);
    let refused = refused.expect_stderr("does not sign").expect_stderr("nothing of this was done");
    assert!(refused.stderr.contains("hint: check that it is running"), "{}", refused.stderr);
    assert_eq!(count(), before);
    let is_raised = || {
        let alerts = bench.roles.json(&["alert", "ls"]);
        alerts.as_array().unwrap().iter().any(|one| one["alert"]["rule"] == "console-signer")
    };
    eventually("an alert", || if is_raised() { Ok(()) } else { Err(String::new()) });
    signers.start(&bench.roles.home, &["first.pem"]);
    eventually("a command", || {
        let run = bench.roles.home.muster(&["exec", "--host", &bench.hosts[0], "--", "true"]);
        if run.code == 0 { Ok(()) } else { Err(run.stderr) }
    });

    eventually("the end of the alert", || if is_raised() { Err(String::new()) } else { Ok(()) });

    // It has no other key; then it has.
    let run = |args: &[&str]| bench.roles.home.muster(args);
    run(&["authority", "rotate", "signing"]).expect_code(3).expect_stderr("no other key than the present one");
    signers.start(&bench.roles.home, &["first.pem", "second.pem"]);
    let second = eventually("a rotation", || {
        let run = run(&["-o", "json", "authority", "rotate", "signing"]);
        let begun: Value = serde_json::from_str(&run.stdout).map_err(|_| run.stderr)?;
        Ok(begun["rotation"]["new_key"].as_str().unwrap().to_owned())
    });
    bench.all_have_it();
    // A console that starts while its signer is away waits for it, too.
    signers.stop();
    let mut bench = bench;
    bench.roles.restart_console();
    bench.roles.home.muster(&["authority", "finish"]).expect_code(4).expect_stderr("does not sign");
    signers.start(&bench.roles.home, &["first.pem", "second.pem"]);
    eventually("the end of it", || {
        let run = bench.roles.home.muster(&["authority", "finish"]);
        if run.code == 0 { Ok(()) } else { Err(run.stderr) }
    });
    signers.start(&bench.roles.home, &["second.pem"]);
    for at in 0..2 {
        bench.wait_for_keys(at, &[&second]);
        eventually("a command", || {
            let run = bench.roles.home.muster(&["exec", "--host", &bench.hosts[at], "--", "true"]);
            if run.code == 0 { Ok(()) } else { Err(run.stderr) }
        });
    }
}

#[test]
fn keys_that_are_credentials_are_read_and_never_written() {
    let mut bench = Bench::start();
    let home = bench.roles.home.path().to_owned();
    let (authority, credentials) = (home.join("console/authority"), home.join("credentials"));
    fs::create_dir(&credentials).unwrap();
    bench.roles.kill_console();
    for name in ["signing.key", "authority.key", "salt.key"] {
        fs::rename(authority.join(name), credentials.join(name)).unwrap();
    }
    assert!(bench.roles.try_console().unwrap_err().contains("authority.key"));
    bench.roles.credentials = Some(credentials.clone());
    bench.roles.start_console();
    for at in 0..2 {
        bench.exec(at);
    }
    let shown = bench.roles.ok(&["authority", "show"]);
    assert!(shown.contains(&format!("the credential {}", credentials.join("signing.key").display())), "{shown}");
    let refused = bench.roles.home.muster(&["authority", "rotate", "signing"]).expect_code(3);
    refused.expect_stderr("is a credential").expect_stderr("no rotation begins").expect_stderr("signing.next.key");
    for name in ["signing.key", "signing.next.key", "authority.key", "salt.key"] {
        assert!(!authority.join(name).exists(), "{name}");
    }
    // Another key than hosts have signs nothing.
    let key = fs::read(credentials.join("signing.key")).unwrap();
    fs::write(credentials.join("signing.key"), Signer::generate().unwrap()).unwrap();
    bench.roles.kill_console();
    let refused = bench.roles.try_console().unwrap_err();
    assert!(refused.contains("which is not in") && refused.contains("hint:"), "{refused}");
    fs::rename(credentials.join("signing.key"), credentials.join("signing.next.key")).unwrap();
    fs::write(credentials.join("signing.key"), key).unwrap();
    bench.roles.start_console();
    let (_, new) = bench.begin();
    bench.all_have_it();
    bench.roles.ok(&["authority", "finish"]);
    for at in 0..2 {
        bench.wait_for_keys(at, &[&new]);
    }

    // An agent's own keys.
    let curve = ["genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256", "-out"];
    assert!(Command::new("openssl").args(curve).arg(credentials.join("host.key")).status().unwrap().success());
    let agent = |more: &[&str]| {
        let data = home.join("three");
        let config = file(&bench.roles.home, "three.toml", &format!("data_dir = \"{}\"\n", data.display()));
        let mut command = bench.roles.home.command();
        command.env("CREDENTIALS_DIRECTORY", &credentials).args(["agent", "--config", &config]).args(more);
        Running::start(&mut command)
    };
    let first = agent(&["--join", &bench.roles.token()]);
    bench.online(3);
    first.kill();
    let identity = fs::read_to_string(home.join("three/identity.json")).unwrap();
    assert!(!identity.contains("PRIVATE KEY"), "{identity}");
    bench.online(2);
    let second = agent(&[]);
    bench.online(3);
    second.kill();
    fs::remove_file(credentials.join("host.key")).unwrap();
    agent(&[]).wait_for_end(1, "it is not provided");
}
