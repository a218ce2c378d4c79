//! Revocation: a revoked certificate is on the authority's list at once, and is no longer admitted.

use muster_topics::name::HostId;
use serde_json::Value;
use x509_parser::prelude::{CertificateRevocationList, FromDer, parse_x509_pem};

use crate::{
    fleet::{Fleet, Home, Running, eventually},
    roles::Roles,
};

/// Serial numbers on the fleet's list, in hexadecimal digits.
fn listed(fleet: &Fleet) -> Vec<String> {
    let pem = std::fs::read(fleet.data().join("console/revoked.pem")).unwrap();
    let (_, pem) = parse_x509_pem(&pem).unwrap();
    let (_, list) = CertificateRevocationList::from_der(&pem.contents).unwrap();
    let hex = |serial: &[u8]| serial.iter().map(|byte| format!("{byte:02x}")).collect();
    list.iter_revoked_certificates().map(|one| hex(one.raw_serial())).collect()
}

/// Waits until the list has this many.
#[track_caller]
fn wait_for_listed(fleet: &Fleet, count: usize) -> Vec<String> {
    eventually("the revocation list", || {
        let serials = listed(fleet);
        if serials.len() == count { Ok(serials) } else { Err(format!("{serials:?}")) }
    })
}

#[test]
fn revoked_host_is_locked_out() {
    let fleet = Fleet::start();
    let own = fleet.host();
    let token = fleet.json(&["token", "create"])["token"].as_str().unwrap().to_owned();
    let home = Home::new();
    let agent = Running::start(home.command().args(["agent", "--data-dir", "agent", "--join", &token]));
    let other = eventually("a second host online", || {
        let hosts = fleet.json(&["host", "ls"]);
        let is_other = |host: &&Value| host["id"] != own.as_str() && host["presence"]["state"] == "online";
        let found = hosts.as_array().unwrap().iter().find(is_other).map(|host| host["id"].clone());
        found.ok_or_else(|| hosts.to_string())
    });
    let other = other.as_str().unwrap();
    fleet.ok(&["exec", "--host", other, "--", "true"]);
    assert_eq!(listed(&fleet), [""; 0]);

    fleet.ok(&["host", "revoke", "--yes", other]);
    wait_for_listed(&fleet, 1);
    assert_eq!(fleet.json(&["host", "show", other])["certificate_expires_ms"], 0);
    assert!(fleet.ok(&["host", "show", other]).contains("revoked"));
    fleet.ok(&["exec", "--host", &own, "--", "true"]);
    let state = |wanted: &str| {
        eventually(wanted, || {
            let host = fleet.json(&["host", "show", other]);
            if host["presence"]["state"] == wanted { Ok(()) } else { Err(host.to_string()) }
        });
    };
    // Its agent runs on, but the broker has ended its connection: that is its last will.
    state("offline");
    fleet
        .muster(&["exec", "--host", other, "--", "true"])
        .expect_code(3)
        .expect_stderr("revoked, so they get no commands");
    fleet.ok(&["exec", "--all", "--", "true"]);
    // Only the other host is asked, which has nothing to take.
    fleet.muster(&["snapshot", "create", "all", "--all"]).expect_stderr("no units for a snapshot");

    // A token that was made for it brings it back, with the same folder; any other does not, and is an alert.
    agent.kill();
    let token = fleet.json(&["token", "create"])["token"].as_str().unwrap().to_owned();
    let mut agent = Running::start(home.command().args(["agent", "--data-dir", "agent", "--join", &token]));
    agent.wait_for("a refusal", |printed| printed.contains("token create --replace").then_some(()));
    agent.kill();
    let alerts = fleet.json(&["alert", "ls"]);
    let is_of_it = |alert: &Value| alert["alert"]["rule"] == "console-join-refused" && alert["host"] == other;
    assert!(alerts.as_array().unwrap().iter().any(is_of_it), "{alerts}");
    let sealing_key = || std::fs::read(home.path().join("agent/sealing.key")).unwrap();
    let former = sealing_key();
    let token = fleet.json(&["token", "create", "--replace", other])["token"].as_str().unwrap().to_owned();
    let agent = Running::start(home.command().args(["agent", "--data-dir", "agent", "--join", &token]));
    state("online");
    assert_ne!(sealing_key(), former, "who has the old certificate may have the old key");
    fleet.ok(&["exec", "--host", other, "--", "true"]);
    wait_for_listed(&fleet, 1);
    drop(agent);

    fleet.muster(&["host", "revoke", "nobody"]).expect_code(3).expect_stderr("nobody");
}

#[test]
fn removed_host_is_forgotten() {
    let roles = Roles::start();
    let agent = roles.agent(&["--join", &roles.token()]);
    let host = roles.wait_for_host("online")["id"].as_str().unwrap().to_owned();
    roles.ok(&["exec", "--host", &host, "--", "true"]);
    let run = |args: &[&str]| roles.home.muster(args);
    run(&["host", "rm", "--yes", &host]).expect_code(3).expect_stderr("is online").expect_stderr("hint");

    agent.stop();
    roles.wait_for_host("stopped");
    let waits = roles.ok(&["exec", "--no-wait", "--host", &host, "--", "true"]);
    // Nobody is there to be asked; and nothing has happened.
    run(&["host", "rm", &host])
        .expect_code(2)
        .expect_stderr("to remove a host needs confirmation")
        .expect_stderr("--yes");
    run(&["host", "revoke", &host])
        .expect_code(2)
        .expect_stderr("to revoke a host needs confirmation")
        .expect_stderr(&host);
    roles.wait_for_host("stopped");
    // An id may be shortened for as long as no other one begins so.
    roles.ok(&["host", "rm", "--yes", &host[..8]]);
    assert_eq!(roles.json(&["host", "ls"]), serde_json::json!([]));
    run(&["host", "rm", "--yes", &host]).expect_code(3).expect_stderr(&host);
    run(&["exec", "--host", &host, "--", "true"]).expect_code(3).expect_stderr(&host);
    // What waited for it will never be done, and says so.
    let shown = roles.json(&["command", "show", &waits.trim()[..30]]);
    assert_eq!(shown["hosts"][0]["state"], "missing", "{shown}");

    // Its certificate does not let it in any more; a token does, with the folder that it has.
    let mut agent = roles.agent(&[]);
    agent.wait_for("that it is revoked", |printed| printed.contains("CertificateRevoked").then_some(()));
    agent.kill();
    assert_eq!(roles.json(&["host", "ls"]), serde_json::json!([]));
    let _agent = roles.agent(&["--join", &roles.token()]);
    let back = roles.wait_for_host("online")["id"].as_str().unwrap().to_owned();
    roles.ok(&["exec", "--host", &back, "--", "true"]);
}

#[test]
fn separate_broker_reads_the_consoles_list() {
    let roles = Roles::start();
    let agent = ["agent", "--config", &roles.agent_config(), "--join", &roles.token()];
    let _agent = Running::start(roles.home.command().args(agent));
    let host = roles.wait_for_host("online");
    roles.ok(&["host", "revoke", "--yes", host["id"].as_str().unwrap()]);
    roles.wait_for_host("offline");
}

#[test]
fn certificates_made_by_hand_are_listed_and_revoked_by_hand() {
    let fleet = Fleet::start();
    let console = fleet.data().join("console");
    let by_hand = |verb: &[&str]| {
        let args = [&["console", verb[0], "--data-dir", console.to_str().unwrap()], &verb[1..]].concat();
        fleet.muster(&args)
    };
    fleet.issue("observer", "bridge");
    fleet.issue("operator", "anna");
    let shown = by_hand(&["certificates"]).expect_code(0).stdout;
    let serial_of = |name: &str| {
        let line = shown.lines().find(|line| line.contains(name)).unwrap_or_else(|| panic!("{name} is not in {shown}"));
        line.split_whitespace().next().unwrap().to_owned()
    };
    let (bridge, anna) = (serial_of("observer-bridge"), serial_of("operator-anna"));
    by_hand(&["revoke", "observer-bridge"]).expect_code(0);
    assert_eq!(wait_for_listed(&fleet, 1), [bridge]);
    by_hand(&["revoke", &anna]).expect_code(0);
    assert!(wait_for_listed(&fleet, 2).contains(&anna));
    let shown = by_hand(&["certificates"]).expect_code(0).stdout;
    assert_eq!(shown.matches("revoked").count(), 2, "{shown}");
    for nobody in ["operator-anna", "console-x", &HostId::random().to_string()] {
        by_hand(&["revoke", nobody]).expect_code(1).expect_stderr("no valid certificate");
    }
    by_hand(&["revoke", &fleet.host()]).expect_code(0);
    wait_for_listed(&fleet, 3);
    let elsewhere = fleet.home.path().join("nothing");
    fleet
        .muster(&["console", "certificates", "--data-dir", elsewhere.to_str().unwrap()])
        .expect_code(1)
        .expect_stderr("hint");
    assert!(!elsewhere.exists());
}

#[test]
fn certificate_without_authority_is_refused() {
    let fleet = Fleet::start_with(&["--no-sample"]);
    let (console, out) = (fleet.data().join("console"), fleet.home.path().join("out"));
    let issue = |folder: &std::path::Path| {
        let (folder, out) = (folder.to_str().unwrap(), out.to_str().unwrap());
        let verb = ["console", "issue", "--data-dir", folder, "--role", "observer", "--name", "b", "--out", out];
        fleet.muster(&verb)
    };
    // The folder above the console's, and one that is not there: no other authority is made in either.
    for wrong in [fleet.data(), fleet.home.path().join("nothing")] {
        issue(&wrong).expect_code(1).expect_stderr("has no fleet's authority").expect_stderr("hint: pass --data-dir");
        assert!(!wrong.join("authority").exists() && !out.exists());
    }
    let issued = issue(&console).expect_code(0).stdout;
    for words in [" of observer-b, good until ", console.to_str().unwrap(), out.join("key.pem").to_str().unwrap()] {
        assert!(issued.contains(words), "{issued}");
    }
    let authority = |folder: &std::path::Path| std::fs::read(folder.join("authority.pem")).unwrap();
    assert_eq!(authority(&out), authority(&console.join("authority")));
}
