//! Backups: made while commands run, checked, and restored with the fleet's hosts connected.

mod bad_input;
mod interrupted;

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use serde_json::Value;

use crate::{
    fleet::{Home, Run, Running, eventually, file, free_ports},
    roles::Roles,
};

/// A yuno that notes each of its starts.
const KEEPS: &str = "#!/bin/sh\necho start >> starts\nwhile :; do sleep 1; done\n";

/// Makes a pair of keys; returns the line of the public one for the console's configuration.
pub(crate) fn make_key(home: &Home, name: &str) -> String {
    let made = home.muster(&["backup", "create-key", "--out", name]).expect_code(0);
    made.stdout
}

/// Roles with one host, whose console backs up to `key.txt`. Hosts find the console where it was after it was restored, as
/// if by its name.
fn roles(more: &str) -> Roles {
    let home = Home::new();
    let section = make_key(&home, "key.txt");
    let mut roles = Roles::start_in(home, format!("{section}{more}\n"));
    roles.stop_console();
    roles.hosts_port = free_ports(1);
    roles.start_console();
    roles
}

fn another_agent(roles: &Roles, name: &str) -> Running {
    let token = roles.token();
    Running::start(roles.home.command().args(["agent", "--data-dir", name, "--join", &token]))
}

fn same_agent(roles: &Roles, name: &str) -> Running {
    Running::start(roles.home.command().args(["agent", "--data-dir", name]))
}

fn id_of(roles: &Roles, name: &str) -> String {
    fs::read_to_string(roles.home.path().join(name).join("host")).unwrap().trim().to_owned()
}

fn wait_for(roles: &Roles, id: &str, state: &str) {
    eventually(state, || {
        let hosts = roles.json(&["host", "ls"]);
        let host = hosts.as_array().unwrap().iter().find(|host| host["id"] == id);
        match host {
            Some(host) if host["presence"]["state"] == state => Ok(()),
            _ => Err(hosts.to_string()),
        }
    });
}

fn alert(roles: &Roles, rule: &str) -> Value {
    eventually(rule, || {
        let alerts = roles.json(&["alert", "ls"]);
        let found = alerts.as_array().unwrap().iter().find(|alert| alert["alert"]["rule"] == rule).cloned();
        found.ok_or_else(|| alerts.to_string())
    })
}

pub(crate) fn restore(roles: &Roles, more: &[&str]) -> Run {
    let folder = roles.home.path().join("console");
    let args = ["backup", "restore", "one.tar.age", "--identity", "key.txt", "--data-dir", folder.to_str().unwrap()];
    roles.home.muster(&[&args, more].concat())
}

fn starts(roles: &Roles) -> usize {
    let path = roles.home.path().join("agent/units/default/keeps/work/starts");
    fs::read_to_string(path).unwrap_or_default().lines().count()
}

#[test]
fn lost_console_is_restored_and_its_hosts_follow() {
    let mut roles = roles("every_hours = 0");
    let _agent = roles.agent(&["--join", &roles.token()]);
    let first = roles.wait_for_host("online")["id"].as_str().unwrap().to_owned();
    let script = file(&roles.home, "keeps.sh", KEEPS);
    roles.ok(&["artifact", "create", &script, "--role", "keeps", "--version", "1"]);
    roles.ok(&["yuno", "create", "default/keeps", "--artifact", "keeps", "--run"]);
    roles.ok(&["host", "label", "shop=1"]);

    // A command runs all the while, and another one is given while the backup is made.
    let slow =
        roles.home.command().args(["exec", "--", "sh", "-c", "sleep 3; echo slow"]).stdout(Stdio::piped()).spawn();
    let made = roles.json(&["backup", "create", "--out", "one.tar.age", "--artifacts", "--series"]);
    roles.ok(&["exec", "--", "echo", "beside"]);
    let slow = slow.unwrap().wait_with_output().unwrap();
    assert_eq!(String::from_utf8_lossy(&slow.stdout), "slow\n");
    assert_eq!(made["bytes"].as_u64(), Some(fs::metadata(roles.home.path().join("one.tar.age")).unwrap().len()));
    let checked = roles.json(&["backup", "verify", "one.tar.age", "--identity", "key.txt"]);
    let parts: Vec<_> =
        checked["parts"].as_array().unwrap().iter().map(|part| part["name"].as_str().unwrap()).collect();
    assert_eq!(parts, ["authority", "store", "configuration", "artifacts", "series"]);
    let listed = roles.json(&["backup", "ls"]);
    assert_eq!((&listed["backups"][0]["kind"], &listed["backups"][0]["hosts"]), (&"requested".into(), &1.into()));
    opens_with_age(roles.home.path());
    check_no_clear_text(&roles.home.path().join("one.tar.age"));

    // This host joins when the backup is made already.
    let late = another_agent(&roles, "late");
    eventually("the late host", || match roles.json(&["host", "ls"]).as_array().unwrap().len() {
        2 => Ok(()),
        count => Err(format!("{count} hosts")),
    });
    let late_id = id_of(&roles, "late");
    wait_for(&roles, &late_id, "online");
    restore(&roles, &["--replace"]).expect_code(1).expect_stderr("a console uses");

    roles.kill_console();
    let folder = roles.home.path().join("console");
    fs::rename(&folder, roles.home.path().join("lost")).unwrap();
    restore(&roles, &[]).expect_code(0).expect_stderr("repeat them");
    roles.start_console();
    let restored = alert(&roles, "console-restored");
    assert!(restored["alert"]["message"].as_str().unwrap().contains("there was no folder to replace"));
    wait_for(&roles, &first, "online");
    assert_eq!(roles.ok(&["exec", "--host", &first, "--", "echo", "again"]), "again\n");
    assert_eq!(starts(&roles), 1, "its unit did not notice");
    assert_eq!(roles.json(&["artifact", "ls"]).as_array().unwrap().len(), 1);
    assert!(roles.ok(&["host", "show", &first]).contains("shop=1"));

    // It shows its certificate when nobody answers it, or when it starts.
    late.kill();
    let _late = same_agent(&roles, "late");
    wait_for(&roles, &late_id, "online");
    let back = alert(&roles, "console-host-came-back");
    assert_eq!(back["host"], late_id.as_str());
    assert_eq!(roles.ok(&["exec", "--host", &late_id, "--", "echo", "late"]), "late\n");
    // It can be revoked, since its certificate is known now.
    roles.ok(&["host", "revoke", "--yes", &late_id]);
    assert_eq!(fs::metadata(folder.join("restored.json")).unwrap_err().kind(), std::io::ErrorKind::NotFound);
}

/// Hosts have certificates under a root that the backup has as one that is to come.
#[test]
fn rotation_of_the_root_goes_on_after_a_restore() {
    let mut roles = roles("every_hours = 0");
    let _agent = roles.agent(&["--join", &roles.token()]);
    let host = roles.wait_for_host("online")["id"].as_str().unwrap().to_owned();
    let ready = |roles: &Roles, stage: &str| {
        eventually(stage, || {
            let rotation = roles.json(&["authority", "show"])["rotation"].clone();
            let is_ready = rotation["stage"] == stage && rotation["ready"] == true;
            if is_ready { Ok(rotation["new_key"].clone()) } else { Err(rotation.to_string()) }
        })
    };
    let finish = |roles: &Roles| {
        roles.issue_broker();
        roles.reload_broker();
        eventually("the next stage", || {
            let run = roles.home.muster(&["authority", "finish", "--timeout", "0s"]);
            if run.code == 0 { Ok(()) } else { Err(run.stderr) }
        });
    };
    roles.ok(&["authority", "rotate", "root"]);
    let new = ready(&roles, "trust");
    roles.ok(&["backup", "create", "--out", "one.tar.age"]);
    finish(&roles);
    ready(&roles, "certificates");

    roles.kill_console();
    fs::rename(roles.home.path().join("console"), roles.home.path().join("lost")).unwrap();
    restore(&roles, &[]).expect_code(0);
    roles.start_console();
    wait_for(&roles, &host, "online");
    assert_eq!(ready(&roles, "trust"), new);
    assert_eq!(roles.ok(&["exec", "--host", &host, "--", "echo", "again"]), "again\n");
    finish(&roles);
    assert_eq!(ready(&roles, "certificates"), new);
    finish(&roles);
    assert_eq!(roles.ok(&["exec", "--host", &host, "--timeout", "30s", "--", "echo", "new"]), "new\n");
}

/// Without muster, the programs `age` and `tar` open a backup.
fn opens_with_age(home: &Path) {
    let opened = Command::new("sh")
        .args(["-ec", "age -d -i key.txt one.tar.age > one.tar; tar xf one.tar console.db; sqlite3 console.db 'PRAGMA integrity_check'"])
        .current_dir(home)
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&opened.stdout), "ok\n", "{}", String::from_utf8_lossy(&opened.stderr));
    fs::remove_file(home.join("console.db")).unwrap();
}

fn check_no_clear_text(backup: &Path) {
    let bytes = fs::read(backup).unwrap();
    for words in ["BEGIN", "SQLite format", "manifest.json", "keeps"] {
        assert!(!bytes.windows(words.len()).any(|window| window == words.as_bytes()), "{words}");
    }
}

#[test]
fn hosts_follow_to_another_address() {
    let first = free_ports(2);
    let (broker, hosts) = (format!("mqtts://127.0.0.1:{first}"), first + 1);
    let mut roles = roles("every_hours = 0");
    let _agent = roles.agent(&["--join", &roles.token()]);
    let host = roles.wait_for_host("online")["id"].as_str().unwrap().to_owned();
    // It learns of the addresses after it has joined.
    let config = roles.home.path().join("console.toml");
    let text = fs::read_to_string(&config).unwrap();
    let own = text.lines().find_map(|line| line.strip_prefix("broker_url = ")).unwrap();
    let text = format!(
        "broker_public_urls = [{own}, \"{broker}\"]\nmore_console_urls = [\"https://127.0.0.1:{hosts}\"]\n{text}"
    );
    fs::write(&config, &text).unwrap();
    roles.kill_console();
    roles.try_console().unwrap();
    let identity = roles.home.path().join("agent/identity.json");
    eventually("addresses that are stored", || match fs::read_to_string(&identity).unwrap() {
        text if text.contains(&broker) => Ok(()),
        text => Err(text),
    });
    eventually("a host that confirms them", || match roles.json(&["host", "ls"]) {
        hosts if hosts[0]["state"]["value"]["numbers"]["host_addresses"].is_u64() => Ok(()),
        hosts => Err(hosts.to_string()),
    });
    roles.ok(&["backup", "create", "--out", "one.tar.age", "--artifacts"]);

    // Nothing answers where it was.
    roles.kill_console();
    roles.kill_broker();
    fs::rename(roles.home.path().join("console"), roles.home.path().join("lost")).unwrap();
    restore(&roles, &[]).expect_code(0);
    let text = text.replace(&format!("\"{}\"", roles.mqtt), &format!("\"{broker}\""));
    let text = text.replace(&format!(":{}\"", roles.hosts_port), &format!(":{hosts}\""));
    fs::write(&config, text).unwrap();
    (roles.mqtt, roles.hosts_port) = (broker, hosts);
    roles.try_console().unwrap();
    roles.revive_broker();
    wait_for(&roles, &host, "online");
    let script = file(&roles.home, "keeps.sh", KEEPS);
    roles.ok(&["artifact", "create", &script, "--role", "keeps", "--version", "1"]);
    // It downloads from the new address, too.
    roles.ok(&["yuno", "create", "default/keeps", "--artifact", "keeps", "--run"]);
    assert_eq!(starts(&roles), 1);
}

#[test]
fn replaced_folder_keeps_who_is_revoked() {
    let mut roles = roles("every_hours = 0");
    let _agent = roles.agent(&["--join", &roles.token()]);
    roles.wait_for_host("online");
    let stolen = another_agent(&roles, "stolen");
    eventually("both hosts", || match roles.json(&["host", "ls"]).as_array().unwrap().len() {
        2 => Ok(()),
        count => Err(format!("{count} hosts")),
    });
    let stolen_id = id_of(&roles, "stolen");
    roles.ok(&["backup", "create", "--out", "one.tar.age"]);
    roles.ok(&["host", "revoke", "--yes", &stolen_id]);
    let _late = another_agent(&roles, "late");
    eventually("the late host", || match roles.json(&["host", "ls"]).as_array().unwrap().len() {
        3 => Ok(()),
        count => Err(format!("{count} hosts")),
    });
    let late_id = id_of(&roles, "late");
    // The register has them within seconds.
    let register = roles.home.path().join("console/authority/register.json");
    eventually("the register", || match fs::read_to_string(&register).unwrap() {
        text if text.contains(&late_id) => Ok(()),
        text => Err(text),
    });
    roles.kill_console();

    restore(&roles, &[]).expect_code(2).expect_stderr("is not empty");
    let restored = restore(&roles, &["--replace"]).expect_code(0);
    assert!(restored.stderr.contains("who was revoked in the folder that was replaced"), "{}", restored.stderr);
    roles.start_console();
    let message = alert(&roles, "console-restored")["alert"]["message"].as_str().unwrap().to_owned();
    assert!(message.contains("1 revoked certificates, 1 hosts that had joined"), "{message}");
    wait_for(&roles, &late_id, "online");
    stolen.kill();
    let mut stolen = same_agent(&roles, "stolen");
    assert!(roles.ok(&["host", "show", &stolen_id]).contains("revoked"));
    roles.home.muster(&["exec", "--host", &stolen_id, "--", "true"]).expect_code(3).expect_stderr("revoked");
    assert!(!stolen.ended());
    let aside = fs::read_dir(roles.home.path()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let aside: Vec<_> = aside.filter(|name| name.starts_with("console.")).collect();
    assert!(aside.iter().any(|name| name.starts_with("console.replaced-")), "{aside:?}");
}

#[test]
fn backups_are_made_by_the_clock() {
    let roles = roles("every_hours = 24\nkeep = 2\ndir = \"kept\"");
    let kept = || -> Vec<PathBuf> {
        let entries = fs::read_dir(roles.home.path().join("kept")).into_iter().flatten();
        entries
            .map(|entry| entry.unwrap().path())
            .filter(|path| path.extension().is_some_and(|end| end == "age"))
            .collect()
    };
    let first = eventually("the first backup", || kept().pop().ok_or_else(|| "none".to_owned()));
    roles.ok(&["backup", "verify", first.to_str().unwrap(), "--identity", "key.txt"]);
    let listed = roles.json(&["backup", "ls"]);
    assert_eq!(listed["backups"][0]["kind"], "scheduled");
    assert_eq!(kept().len(), 1, "the next one is due tomorrow");
}

#[test]
fn failing_backups_are_an_alert() {
    // A file where the folder is to be.
    let home = Home::new();
    let section = make_key(&home, "key.txt");
    file(&home, "kept", "");
    let roles = Roles::start_in(home, format!("{section}dir = \"kept\"\n"));
    let told = alert(&roles, "console-backup-old")["alert"].clone();
    assert!(
        told["message"].as_str().unwrap().contains("there is no good backup") && told["hint"].is_string(),
        "{told}"
    );
    fs::remove_file(roles.home.path().join("kept")).unwrap();
    assert!(roles.home.muster(&["backup", "ls"]).expect_code(0).stderr.contains("the last attempt failed"));
    roles.ok(&["backup", "create", "--out", "by-hand.tar.age"]);
    eventually("no alert after a good backup", || match roles.json(&["alert", "ls"]) {
        alerts if alerts.as_array().unwrap().is_empty() => Ok(()),
        alerts => Err(alerts.to_string()),
    });
}
