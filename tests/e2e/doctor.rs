//! `muster doctor` on installations that are well, and on some that are broken for real.

use std::{fs, net::TcpListener, path::Path, process::Command};

use muster_test_support::disk::Disk;
use serde_json::Value;

use crate::{
    clock::Clock,
    fleet::{Fleet, Home, Run, file},
    roles::Roles,
};

/// What it found, by verdict, and its exit code.
struct Examined {
    code: i32,
    findings: Vec<Value>,
}

impl Examined {
    #[track_caller]
    fn of(command: &mut Command) -> Self {
        let run = Run::of(&["doctor"], command.args(["-o", "json"]));
        let report: Value = serde_json::from_str(&run.stdout).unwrap_or_else(|error| panic!("{error}: {run:?}"));
        Self { code: run.code, findings: report["findings"].as_array().unwrap().clone() }
    }

    /// Fails unless there is such a finding, with these words in it or in its remedy.
    #[track_caller]
    fn expect(&self, part: &str, check: &str, verdict: &str, words: &str) -> &Self {
        let is_about = |one: &&Value| one["part"] == part && one["check"] == check;
        let about: Vec<&Value> = self.findings.iter().filter(is_about).collect();
        let is_wanted = |one: &&Value| one["verdict"] == verdict && one.to_string().contains(words);
        assert!(about.iter().any(is_wanted), "{part} {check}: {verdict} with {words:?}: {about:#?}");
        self
    }

    /// Fails unless the exit code is 0 and there is no problem.
    #[track_caller]
    fn expect_well(&self) -> &Self {
        let problems: Vec<&Value> = self.findings.iter().filter(|one| one["verdict"] == "problem").collect();
        assert!(self.code == 0 && problems.is_empty(), "{}: {problems:#?}", self.code);
        self
    }
}

/// `muster doctor` of the three roles in a home.
fn doctor(home: &Home) -> Command {
    let mut command = home.command_with_clock();
    command.arg("doctor");
    for role in ["agent", "console", "broker"] {
        let path = home.path().join(format!("{role}.toml"));
        if path.exists() {
            command.arg(format!("--{role}-config")).arg(path);
        }
    }
    command
}

#[test]
fn host_with_nothing_installed_is_well() {
    let run = Home::new().muster(&["doctor"]).expect_code(0);
    assert!(run.stdout.contains("nothing is installed here"), "{run:?}");
}

#[test]
fn muster_up_is_well() {
    let mut fleet = Fleet::start();
    let examined = Examined::of(fleet.home.command().arg("doctor"));
    examined.expect_well();
    for (part, check) in [
        ("agent", "process"),
        ("agent", "running version"),
        ("agent", "connection"),
        ("agent", "console"),
        ("agent", "clock"),
        ("agent", "server certificate"),
        ("agent", "certificate"),
        ("agent", "store"),
        ("console", "process"),
        ("console", "certificate"),
        ("broker", "process"),
        ("cli", "console ready"),
        ("cli", "console alerts"),
    ] {
        examined.expect(part, check, "ok", "");
    }
    examined.expect("agent", "broker rules", "ok", "may subscribe");
    fleet.stop();
    let stopped = Examined::of(fleet.home.command().arg("doctor"));
    assert_eq!(stopped.code, 1, "what the agent needs does not answer");
    stopped.expect("cli", "console alerts", "not_applicable", "cannot be read");
    stopped.expect("agent", "process", "warning", "muster up --data-dir").expect(
        "agent",
        "broker",
        "problem",
        "start the broker",
    );
}

#[test]
fn broken_servers_and_clocks_are_found() {
    let mut roles = Roles::start();
    // Now its configuration names the port that it has.
    roles.restart_broker();
    let agent = roles.agent(&["--join", &roles.token()]);
    roles.wait_for_host("online");
    Examined::of(&mut doctor(&roles.home)).expect_well().expect("broker", "port", "ok", "listen 127.0.0.1");

    // A clock that is three days ahead, and one that is so far ahead that all certificates look expired.
    let clock = Clock::new(roles.home.path(), "doctor");
    let at = |to: &str| {
        clock.set(to);
        let mut command = doctor(&roles.home);
        clock.give_to(&mut command);
        Examined::of(&mut command)
    };
    at("+3d").expect("agent", "clock", "problem", "timedatectl").expect("agent", "certificate", "ok", "");
    at("-10m").expect("agent", "clock", "problem", "behind");
    at("+400d")
        .expect("agent", "clock", "problem", "timedatectl")
        .expect("agent", "certificate", "problem", "--replace")
        .expect("agent", "server certificate", "problem", "clock is wrong");

    // The agent stops in order, and leaves a presence that may be published again.
    assert_eq!(agent.stop().0, 0);
    roles.wait_for_host("stopped");
    let stopped = Examined::of(&mut doctor(&roles.home));
    stopped.expect_well().expect("agent", "process", "warning", "systemctl start muster-agent");
    stopped.expect("agent", "broker rules", "ok", "publish");

    roles.stop_broker();
    let examined = Examined::of(&mut doctor(&roles.home));
    assert_eq!(examined.code, 1);
    examined
        .expect("agent", "broker", "problem", "start the broker")
        .expect("broker", "process", "warning", "start it");
    roles.kill_console();
    Examined::of(&mut doctor(&roles.home)).expect("agent", "console", "problem", "start the console");

    let store = roles.home.path().join("agent/agent.db");
    let mut bytes = fs::read(&store).unwrap();
    bytes[..16].fill(7);
    fs::write(&store, bytes).unwrap();
    Examined::of(&mut doctor(&roles.home)).expect("agent", "store", "problem", "sets the store aside");
}

#[test]
fn broken_files_ports_and_disks_are_found() {
    let home = Home::new();
    // Made three days ago, for one day.
    let clock = Clock::new(home.path(), "past");
    clock.set("-3d");
    let mut openssl = Command::new("openssl");
    openssl.args(["req", "-x509", "-newkey", "ed25519", "-nodes", "-days", "1", "-subj", "/CN=broker", "-keyout"]);
    openssl.arg(home.path().join("key.pem")).arg("-out").arg(home.path().join("certificate.pem"));
    clock.give_to(&mut openssl);
    assert!(openssl.output().unwrap().status.success());
    let there = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = |name: &str| home.path().join(name).display().to_string();
    let certificate = at("certificate.pem");
    let text = format!(
        "listen = \"{}\"\ncertificate_file = {certificate:?}\nauthority_file = {certificate:?}\nkey_file = {:?}\ndata_dir = {:?}\n",
        there.local_addr().unwrap(),
        at("key.pem"),
        at("broker")
    );
    file(&home, "broker.toml", &text);
    Command::new("chmod").arg("644").arg(at("key.pem")).status().unwrap();

    let disk = Disk::new(4);
    disk.fill();
    file(&home, "agent.toml", &format!("data_dir = {:?}\n", disk.path()));
    fs::set_permissions(home.path().join("agent.toml"), std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    file(&home, "console.toml", "web_listn = \"127.0.0.1:1\"\n");

    let examined = Examined::of(&mut doctor(&home));
    assert_eq!(examined.code, 1);
    examined
        .expect("broker", "certificate", "problem", "expired 2 d ago")
        .expect("broker", "certificate", "problem", "muster console issue")
        .expect("broker", "port", "problem", "another program uses it")
        .expect("broker", "permissions", "problem", "chmod 600")
        .expect("agent", "disk", "problem", "free space")
        .expect("agent", "setup", "problem", "muster token create")
        .expect("console", "configuration", "problem", "web_listen");
}

/// All texts of an archive, by their names.
fn unpacked(archive: &Path, folder: &Path) -> Vec<(String, String)> {
    assert!(Command::new("tar").arg("-xzf").arg(archive).arg("-C").arg(folder).status().unwrap().success());
    let mut folders = vec![folder.join("muster-doctor")];
    let mut all = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => folders.push(path),
                false => all.push((path.display().to_string(), fs::read_to_string(&path).unwrap())),
            }
        }
    }
    all
}

#[test]
fn bundle_has_no_secrets() {
    let roles = Roles::start();
    let token = roles.token();
    let agent = roles.agent(&["--join", &token]);
    roles.wait_for_host("online");
    // A token in the file, another in a comment, and one in a line that cannot be read.
    let config = roles.agent_config_with(&format!("# join = \"muster1.C0mment-{token}\""));
    let text = fs::read_to_string(&config).unwrap();
    fs::write(&config, format!("join = \"{token}\"\n{text}")).unwrap();
    let console = roles.home.path().join("console.toml");
    let text = fs::read_to_string(&console).unwrap();
    let outlet = "[[alert_outlets]]\nkind = \"webhook\"\nurl = \"https://hooks.example/s/W3bhookPathSecret\"\n\
                  proxy = \"http://anna:Pr0xyPassw0rd@proxy:3128\"\nsecret_file = \"{secret}\"\n";
    let secret = file(&roles.home, "outlet.secret", "0utletS3cret\n");
    let command = "revocation_command = [\"/usr/bin/push\", \"--password\", \"C0mmandSecret\"]\n";
    fs::write(&console, format!("{command}{text}{}", outlet.replace("{secret}", &secret))).unwrap();
    let users = file(&roles.home, "users", "operator-anna:$pbkdf2$Us3rsFileHash\n");
    let broker = roles.home.path().join("broker.toml");
    let text = fs::read_to_string(&broker).unwrap();
    fs::write(&broker, format!("plain_listen = \"127.0.0.1:0\"\nusers_file = {users:?}\n{text}")).unwrap();

    let identity: Value =
        serde_json::from_slice(&fs::read(roles.home.path().join("agent/identity.json")).unwrap()).unwrap();
    let key = identity["key"].as_str().unwrap().lines().nth(1).unwrap().to_owned();
    let context = fs::read_to_string(roles.home.path().join("config/muster/context.toml")).unwrap();
    let context: toml::Table = toml::from_str(&context).unwrap();
    let contexts = context["contexts"].as_table().unwrap().values();
    let bearer = contexts.map(|one| one["token"].as_str().unwrap().to_owned()).next().unwrap();

    // What stands in the log of a service, here that of another program of this name.
    let programs = roles.home.path().join("programs");
    fs::create_dir(&programs).unwrap();
    let log = format!(
        "#!/bin/sh\necho 'a line of the log'\necho 'join {token} key {key}'\necho 'Authorization: Bearer {bearer}'\n\
         echo 'unknown: password=Unkn0wnPassword http://u:Url1nLog@h/x'\necho '-----BEGIN PRIVATE KEY-----'\n\
         echo MIGHPrivateInLog\necho '-----END PRIVATE KEY-----'\n"
    );
    file(&roles.home, "programs/journalctl", &log);
    let archive = roles.home.path().join("bundle.tar.gz");
    let mut command = doctor(&roles.home);
    let path = format!("{}:{}", programs.display(), std::env::var("PATH").unwrap());
    let run =
        Run::of(&["doctor"], command.env("PATH", path).env("MUSTER_AGENT_JOIN", &token).arg("--out").arg(&archive));
    assert!(run.stderr.contains("read it before you send it"), "{run:?}");
    let mode = std::os::unix::fs::MetadataExt::mode(&fs::metadata(&archive).unwrap());
    assert_eq!(mode & 0o777, 0o600);

    let files = unpacked(&archive, roles.home.path());
    for name in ["findings.json", "versions.txt", "agent.toml", "console.toml", "broker.toml", "cli.toml", "agent.log"]
    {
        assert!(files.iter().any(|(path, _)| path.ends_with(name)), "{name}: {:?}", files.iter().map(|one| &one.0));
    }
    let all: String = files.iter().map(|(_, text)| text.as_str()).collect();
    for kept in ["a line of the log", "hooks.example", "127.0.0.1", "/usr/bin/push"] {
        assert!(all.contains(kept), "{kept}: {all}");
    }
    let half = &token[token.len() - 20..];
    for secret in [
        token.as_str(),
        half,
        &key,
        &bearer,
        "C0mment",
        "W3bhookPathSecret",
        "Pr0xyPassw0rd",
        "0utletS3cret",
        "C0mmandSecret",
        "Us3rsFileHash",
        "Unkn0wnPassword",
        "Url1nLog",
        "MIGHPrivateInLog",
        "PRIVATE KEY",
    ] {
        assert!(!all.contains(secret) && !run.stdout.contains(secret), "{secret} is in {all}");
    }
    drop(agent);
}
