//! A console whose record of a host is wrong notices it by the host's digest.

use std::fs;

use sqlx::{Connection, SqliteConnection, sqlite::SqliteConnectOptions};

use crate::{
    fleet::{Running, eventually, file},
    roles::Roles,
};

/// Changes the console's store behind its back.
fn tamper(roles: &Roles, change: &'static str) {
    let store = roles.home.path().join("console/console.db");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let changed = runtime.block_on(async {
        let mut db = SqliteConnection::connect_with(&SqliteConnectOptions::new().filename(&store)).await.unwrap();
        sqlx::query(change).execute(&mut db).await.unwrap().rows_affected()
    });
    assert_eq!(changed, 1, "{change}");
}

#[test]
fn lost_host_state_is_sent_again() {
    let roles = Roles::start();
    let config = roles.agent_config();
    let text = "heartbeat_ms = 100\n".to_owned() + &fs::read_to_string(&config).unwrap();
    fs::write(&config, text).unwrap();
    let agent = Running::start(roles.home.command().args(["agent", "--config", &config, "--join", &roles.token()]));
    let host = roles.wait_for_host("online");
    let program = file(&roles.home, "sleeper", "#!/bin/sh\nexec sleep 1000\n");
    roles.ok(&["artifact", "create", &program, "--role", "sleeper", "--version", "1"]);
    roles.ok(&["yuno", "create", "default/sleeper", "--artifact", "sleeper", "--run"]);

    let shown = |what: &str, path: &str, args: &[&str], wanted: &str| {
        eventually(what, || {
            let shown = roles.json(args);
            if shown.pointer(path).is_some_and(|found| found == wanted) { Ok(()) } else { Err(shown.to_string()) }
        });
    };
    let name = host["hostname"].as_str().unwrap();
    shown("a state", "/state/value/hostname", &["host", "show"], name);
    // A state that is not what was told, and a report that never came.
    tamper(&roles, "UPDATE heartbeat SET state = json_set(state, '$.hostname', 'another')");
    shown("the host's state", "/state/value/hostname", &["host", "show"], name);
    tamper(&roles, "UPDATE unit SET seq = seq - 1, report = json_set(report, '$.observed.phase()', 'starting')");
    shown("the unit's state", "/observed/phase", &["unit", "show", "default/sleeper"], "running");
    tamper(&roles, "DELETE FROM heartbeat");
    shown("a state after none", "/state/value/hostname", &["host", "show"], name);

    roles.ok(&["yuno", "stop", "default/sleeper"]);
    assert_eq!(agent.stop().0, 0);
}
