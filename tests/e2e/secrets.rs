//! Secrets by name: a changed one reaches the units that use it, and nobody else sees any of its values.

use std::fs;

use crate::{
    fleet::{Fleet, Running, eventually, file},
    sealed::{assert_absent, sum},
    wire::{mosquitto, of_host, payloads},
};

const FIRST: &str = "xk4-the-first-value-of-a-secret";
const SECOND: &str = "xk4-the-second-value-of-a-secret";

/// What the units' file has with a value.
fn merged(value: &str) -> String {
    format!(r#"{{"db":{{"password":"{value}","user":"till"}}}}"#)
}

/// Waits until a unit has read its file with this value.
#[track_caller]
fn has_read(fleet: &Fleet, unit: &str, value: &str) {
    let path = fleet.home.path().join(format!("read.{unit}"));
    let wanted = sum(&merged(value));
    eventually("the value in the unit's file", || {
        let read = fs::read_to_string(&path).unwrap_or_default();
        if read.lines().last().is_some_and(|line| wanted.starts_with(line)) { Ok(()) } else { Err(read) }
    });
}

fn pid(fleet: &Fleet, unit: &str) -> u64 {
    fleet.unit_in_phase(unit, "running")["observed"]["pid"].as_u64().unwrap()
}

#[test]
fn changed_secret_reaches_its_units_and_nobody_else_sees_it() {
    let mut fleet = Fleet::start();
    let (host, home) = (fleet.host(), fleet.home.path().display().to_string());
    let observer = fleet.issue("observer", "reader");
    let mut reader = Running::start(mosquitto("mosquitto_sub", &fleet, &observer).args(["-v", "-t", "muster/#"]));
    let presence = of_host(&host, "presence");
    reader.wait_for("retained presence", |printed| (!payloads(printed, &presence).is_empty()).then_some(()));

    let script = format!(
        "#!/bin/sh\nread_it() {{ sha256sum < \"$MUSTER_CONFIG\" | cut -c1-64 >> {home}/read.${{MUSTER_UNIT##*/}}; }}\n\
         trap read_it HUP\nread_it\nwhile :; do sleep 0.1; done\n"
    );
    let script = file(&fleet.home, "program", &script);
    fleet.ok(&["artifact", "create", &script, "--role", "program", "--version", "1"]);
    let config = r#"{"db": {"user": "till", "password": {"$secret": {"name": "db"}}}}"#;
    let config = file(&fleet.home, "app.json", config);
    fleet.ok(&["config", "create", "app", "1", &config]);
    let create = |unit: &str, more: &[&str]| {
        let args = ["yuno", "create", unit, "--artifact", "program", "--config", "app", "--run"];
        fleet.muster(&[&args[..], more].concat())
    };
    let refused = create("default/restarts", &[]);
    assert!(refused.code == 3 && refused.stderr.contains("muster secret set db"), "{}", refused.stderr);

    let (first, second) = (file(&fleet.home, "first", &format!("{FIRST}\n")), file(&fleet.home, "second", SECOND));
    fleet.ok(&["secret", "set", "db", "--file", &first]);
    create("default/restarts", &[]).expect_code(0);
    create("default/reloads", &["--reload", "signal"]).expect_code(0);
    let units = ["restarts", "reloads"];
    units.iter().for_each(|unit| has_read(&fleet, unit, FIRST));
    let before = units.map(|unit| pid(&fleet, &format!("default/{unit}")));
    let unneeded = fleet.muster(&["secret", "rm", "db"]);
    assert!(unneeded.code == 3 && unneeded.stderr.contains("default/restarts"), "{}", unneeded.stderr);

    let asked = fleet.muster(&["secret", "set", "db", "--file", &second]);
    assert!(asked.code == 2 && asked.stderr.contains("secret db 1 → 2"), "{}", asked.stderr);
    fleet.ok(&["yuno", "upgrade", "--yes"]);
    units.iter().for_each(|unit| has_read(&fleet, unit, SECOND));
    let after = units.map(|unit| pid(&fleet, &format!("default/{unit}")));
    assert_ne!(after[0], before[0]);
    assert_eq!(after[1], before[1], "it was asked to read its file again");
    // The same value again is no change.
    fleet.ok(&["secret", "set", "db", "--file", &second, "--yes"]);
    let shown = fleet.json(&["secret", "show", "db"]);
    assert_eq!((&shown["secret"]["version"], &shown["secret"]["behind"]), (&2.into(), &0.into()), "{shown}");
    assert_eq!(fleet.json(&["yuno", "show", "default/reloads"])["desired"]["spec"]["secrets"][0]["version"], 2);

    // A value is fetched again, and from another key.
    fleet.ok(&["secret", "rotate-key"]);
    fleet.ok(&["yuno", "stop", "default/restarts"]);
    let folder = fleet.data().join("agent/units/default/restarts");
    fs::remove_dir_all(folder.join("rev")).unwrap();
    fs::remove_file(fleet.home.path().join("read.restarts")).unwrap();
    fleet.ok(&["yuno", "run", "default/restarts"]);
    has_read(&fleet, "restarts", SECOND);

    // Who looks at processes finds none of it, nor who reads the bus, what is printed, or what the console keeps.
    let mut seen = String::new();
    for process in fs::read_dir("/proc").unwrap().flatten() {
        for name in ["cmdline", "environ"] {
            seen += &String::from_utf8_lossy(&fs::read(process.path().join(name)).unwrap_or_default());
        }
    }
    seen += &fleet.json(&["command", "ls"]).to_string();
    seen += &fleet.json(&["yuno", "config", "default/restarts", "--effective"]).to_string();
    seen += &shown.to_string();
    seen += &reader.stop().1;
    seen += &fleet.stop();
    assert!(![FIRST, SECOND].iter().any(|value| seen.contains(value)));
    assert_absent(&fleet.data().join("console"), &[FIRST, SECOND]);
    for store in ["agent.db", "agent.db-wal", "artifacts"] {
        let path = fleet.data().join("agent").join(store);
        if path.is_dir() {
            assert_absent(&path, &[FIRST, SECOND]);
        } else {
            let content = fs::read(path).unwrap_or_default();
            assert!(![FIRST, SECOND].iter().any(|value| String::from_utf8_lossy(&content).contains(value)), "{store}");
        }
    }
}
