//! The console's store: only one console uses it, and the fleet recovers when it is lost.

use std::fs;

use serde_json::Value;
use x509_parser::prelude::{CertificateRevocationList, FromDer, parse_x509_pem};

use super::{
    bus::Kind,
    stage::{Party, Stage, UNIT},
};
use crate::fleet::{Running, eventually};

#[test]
fn second_console_on_a_store_is_refused() {
    let stage = Stage::start(Kind::Own);
    let config = fs::read_to_string(stage.home.path().join("console.toml")).unwrap();
    // Even where no port is in its way.
    let free = |line: &str| match line.split_once(" = ") {
        Some((key @ ("web_listen" | "hosts_listen"), _)) => format!("{key} = \"127.0.0.1:0\"\n"),
        _ => format!("{line}\n"),
    };
    let config: String = config.lines().map(free).collect();
    let path = crate::fleet::file(&stage.home, "second.toml", &config);
    let mut second = Running::start(stage.home.command().args(["console", "--config", &path]));
    second.wait_for_end(1, "hint: stop that one first");
    assert!(second.printed().contains("another console uses"), "{}", second.printed());
    // The first one has not noticed.
    stage.succeeds(&stage.exec("true"));
}

#[test]
fn console_without_store_recovers_its_fleet() {
    let mut stage = Stage::start(Kind::Own);
    stage.wait_for_unit("running");
    let before = host(&stage);
    stage.kill(Party::Console);
    for name in ["console.db", "console.db-wal", "console.db-shm", "series.db", "series.db-wal", "series.db-shm"] {
        let _ = fs::remove_file(stage.home.path().join("console").join(name));
    }
    stage.start_party(Party::Console);
    // Who may sign in was in the store as well.
    stage.sign_in();
    stage.wait_for_presence("online");
    stage.wait_for_unit("running");
    let after = eventually("its state", || {
        let host = host(&stage);
        if host["state"]["value"]["hostname"].is_string() { Ok(host) } else { Err(host.to_string()) }
    });
    for key in ["id", "hostname", "certificate_expires_ms", "joined_ms"] {
        assert_eq!(before[key], after[key], "{key}");
    }
    assert_eq!(before["state"]["value"]["facts"], after["state"]["value"]["facts"]);
    // It commands them as before, for they know its key.
    stage.succeeds(&stage.exec(&stage.note("after")));
    assert_eq!(stage.effects("after"), 1);
    stage.ok(&["yuno", "stop", UNIT]);
    stage.wait_for_unit("stopped");
    // And locks them out as before.
    stage.ok(&["host", "revoke", "--yes", &stage.host.to_string()]);
    assert_eq!(host(&stage)["certificate_expires_ms"], 0);
}

fn host(stage: &Stage) -> Value {
    stage.request("GET", &format!("/hosts/{}", stage.host), None)
}

#[test]
fn revocation_survives_a_lost_store() {
    let mut stage = Stage::start(Kind::Own);
    stage.ok(&["host", "revoke", "--yes", &stage.host.to_string()]);
    let list = stage.home.path().join("console/revoked.pem");
    let revoked = |what: &str| {
        eventually(what, || {
            let pem = fs::read(&list).unwrap();
            let (_, pem) = parse_x509_pem(&pem).unwrap();
            let (_, list) = CertificateRevocationList::from_der(&pem.contents).unwrap();
            let count = list.iter_revoked_certificates().count();
            if count == 1 { Ok(()) } else { Err(format!("{count} are revoked")) }
        });
    };
    revoked("a revocation");
    stage.kill(Party::Console);
    for name in ["console.db", "console.db-wal", "console.db-shm"] {
        let _ = fs::remove_file(stage.home.path().join("console").join(name));
    }
    stage.start_party(Party::Console);
    stage.sign_in();
    revoked("the same revocation");
}
