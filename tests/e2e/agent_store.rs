//! Faults of an agent's store: its write-ahead log is deleted, it is emptied, deleted, damaged, swapped, restored from a
//! backup; at rest, and while commands run.
//!
//! Only outcomes that had not been sent may be lost. No command is executed twice, no unit is forgotten or ended, and
//! an alert is raised.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use serde_json::Value;

use crate::{
    fleet::{eventually, file},
    stores::copy,
    survival::Site,
};

const KEEPS: &str = "#!/bin/sh\necho start >> starts\nwhile :; do sleep 1; done\n";

fn store(site: &Site, suffix: &str) -> PathBuf {
    site.roles.home.path().join(format!("agent/agent.db{suffix}"))
}

fn delete(site: &Site, suffixes: &[&str]) {
    for suffix in suffixes {
        let _ = fs::remove_file(store(site, suffix));
    }
}

/// Flips bits anywhere in the file.
fn flip(site: &Site, bits: usize, seed: u64) {
    let mut bytes = fs::read(store(site, "")).unwrap();
    let mut state = seed;
    for _ in 0..bits {
        state = 6_364_136_223_846_793_005_u64.wrapping_mul(state).wrapping_add(1_442_695_040_888_963_407);
        let bit = (state >> 20) as usize % (bytes.len() * 8);
        bytes[bit / 8] ^= 1 << (bit % 8);
    }
    fs::write(store(site, ""), bytes).unwrap();
}

/// How a command stands on the one host.
fn host_of(site: &Site, id: &str) -> Value {
    site.roles.json(&["command", "show", id])["hosts"][0].clone()
}

fn outcome(site: &Site, id: &str) -> Value {
    eventually("its outcome", || match host_of(site, id) {
        host if host["outcome"].is_object() => Ok(host["outcome"].clone()),
        host => Err(host.to_string()),
    })
}

fn exec(site: &Site, script: &str) -> String {
    site.roles.ok(&["exec", "--no-wait", "--", "sh", "-c", script]).trim().to_owned()
}

fn wait_for_file(path: &Path) {
    eventually("a file", || if path.exists() { Ok(()) } else { Err(path.display().to_string()) });
}

/// The command is done, nobody but the agent knows, and its store forgets it.
#[test]
fn command_lost_with_the_log_is_not_repeated() {
    let mut site = Site::start();
    let marks = site.roles.home.path().join("marks");
    // What was written before is in the file itself.
    site.kill_agent();
    site.start_agent();
    let older = site.roles.home.path().join("older.db");
    let go = site.roles.home.path().join("go");
    let script = format!(
        "echo x >> {marks}; while ! [ -e {go} ]; do sleep 0.05; done; echo y >> {marks}",
        marks = marks.display(),
        go = go.display()
    );
    fs::copy(store(&site, ""), &older).unwrap();
    let id = exec(&site, &script);
    wait_for_file(&marks);
    site.roles.stop_console();
    fs::write(&go, "").unwrap();
    let note = site.roles.home.path().join("agent/exec").join(format!("{id}.json"));
    eventually(
        "the agent's knowing of its end",
        || {
            if note.exists() { Err(note.display().to_string()) } else { Ok(()) }
        },
    );
    site.kill_agent();
    delete(&site, &["-wal", "-shm"]);
    fs::copy(&older, store(&site, "")).unwrap();
    site.roles.start_console();
    site.start_agent();

    let refused = outcome(&site, &id);
    assert_eq!(fs::read_to_string(&marks).unwrap(), "x\ny\n", "it was done once: {refused}");
    assert!(refused.to_string().contains("set_back"), "{refused}");
    eventually("the alert", || {
        let alerts = site.roles.json(&["alert", "ls"]).to_string();
        if alerts.contains("store-lost") { Ok(()) } else { Err(alerts) }
    });
    assert!(site.roles.ok(&["exec", "--", "echo", "goes on"]).contains("goes on"), "what is issued now is done");
}

/// The agent's whole folder is put back to before a command that nobody else heard the end of, and the broker has lost what
/// it retained, so that only the console knows of the agent that did it.
#[test]
fn command_is_not_repeated_by_a_disk_that_only_the_console_knows_to_be_older() {
    let mut site = Site::start();
    let home = site.roles.home.path().to_owned();
    let (agent, older, marks, go) = (home.join("agent"), home.join("older"), home.join("marks"), home.join("go"));
    site.kill_agent();
    copy(&agent, &older);
    site.start_agent();
    let script = format!(
        "echo x >> {marks}; while ! [ -e {go} ]; do sleep 0.05; done; echo y >> {marks}",
        marks = marks.display(),
        go = go.display()
    );
    let id = exec(&site, &script);
    wait_for_file(&marks);
    site.roles.stop_console();
    fs::write(&go, "").unwrap();
    let note = agent.join("exec").join(format!("{id}.json"));
    eventually(
        "the agent's knowing of its end",
        || {
            if note.exists() { Err(note.display().to_string()) } else { Ok(()) }
        },
    );
    site.kill_agent();
    site.roles.restart_broker();
    fs::remove_dir_all(&agent).unwrap();
    fs::rename(&older, &agent).unwrap();
    site.roles.start_console();
    site.start_agent();

    let refused = outcome(&site, &id);
    assert_eq!(fs::read_to_string(&marks).unwrap(), "x\ny\n", "it was done once: {refused}");
    assert!(refused.to_string().contains("set_back"), "{refused}");
    eventually("the alert", || {
        let alerts = site.roles.json(&["alert", "ls"]).to_string();
        if alerts.contains("store-lost") { Ok(()) } else { Err(alerts) }
    });
    assert!(site.roles.ok(&["exec", "--", "echo", "goes on"]).contains("goes on"), "what is issued now is done");
}

/// Everything that may become of the file, each with a yuno and a program that run meanwhile.
#[test]
fn units_and_programs_survive_a_damaged_store() {
    type Damage = fn(&Site);
    let cases: [(&str, Damage); 8] = [
        ("log deleted", |site| delete(site, &["-wal", "-shm"])),
        ("deleted", |site| delete(site, &["", "-wal", "-shm"])),
        ("emptied", |site| {
            delete(site, &["-wal", "-shm"]);
            fs::write(store(site, ""), "").unwrap();
        }),
        ("truncated", |site| {
            let file = fs::OpenOptions::new().write(true).open(store(site, "")).unwrap();
            let length = file.metadata().unwrap().len();
            file.set_len(length / 2).unwrap();
        }),
        ("200 bits", |site| flip(site, 200, 1)),
        ("20 bits", |site| flip(site, 20, 2)),
        ("swapped", |site| {
            delete(site, &["-wal", "-shm"]);
            fs::write(store(site, ""), vec![0x55; 30_000]).unwrap();
        }),
        ("put back", |site| {
            delete(site, &["-wal", "-shm"]);
            fs::copy(site.roles.home.path().join("older.db"), store(site, "")).unwrap();
        }),
    ];
    let mut site = Site::start();
    // A copy from before there was any unit.
    site.kill_agent();
    site.start_agent();
    fs::copy(store(&site, ""), site.roles.home.path().join("older.db")).unwrap();
    site.create("keeps", KEEPS, &[]);
    let pid = site.pid("keeps");
    for (what, damage) in cases {
        let folder = site.roles.home.path().join(what.replace(' ', "-"));
        fs::create_dir(&folder).unwrap();
        let at = folder.display();
        let id =
            exec(&site, &format!("echo x >> {at}/marks; while ! [ -e {at}/go ]; do sleep 0.05; done; echo {what}"));
        wait_for_file(&folder.join("marks"));
        site.kill_agent();
        damage(&site);
        site.start_agent();
        assert_eq!(site.pid("keeps"), pid, "{what}: it is known and runs on");
        fs::write(folder.join("go"), "").unwrap();
        let found = outcome(&site, &id);
        assert_eq!(found["value"]["exit"]["code"], 0, "{what}: its shim knows: {found}");
        assert_eq!(fs::read_to_string(folder.join("marks")).unwrap(), "x\n", "{what}");
        assert!(site.roles.ok(&["exec", "--", "echo", "goes", "on"]).contains("goes on"), "{what}");
    }
    assert_eq!(site.written("keeps", "starts"), "start\n");
    site.roles.ok(&["yuno", "stop", "default/keeps"]);
}

/// The log is deleted under an agent that is busy and killed, again and again.
#[test]
fn damaged_store_under_load_repeats_no_command() {
    let mut site = Site::start();
    let marks = site.roles.home.path().join("marks");
    site.create("keeps", KEEPS, &[]);
    let pid = site.pid("keeps");
    let stop = AtomicBool::new(false);
    let home = site.roles.home.path().to_owned();
    let script = file(&site.roles.home, "note", &format!("#!/bin/sh\necho $1 >> {}\n", marks.display()));
    for round in 0..3 {
        thread::scope(|scope| {
            let roles = &site.roles;
            let (stop, script) = (&stop, &script);
            let load = scope.spawn(move || {
                let mut count = 0;
                while !stop.load(Ordering::Relaxed) {
                    let name = format!("{round}-{count}");
                    roles.ok(&["exec", "--no-wait", "--", script, &name]);
                    count += 1;
                }
                count
            });
            eventually("some commands", || {
                let lines = fs::read_to_string(&marks).unwrap_or_default().lines().count();
                if lines >= 5 * (round + 1) { Ok(()) } else { Err(lines.to_string()) }
            });
            stop.store(true, Ordering::Relaxed);
            load.join().unwrap()
        });
        site.kill_agent();
        for suffix in ["-wal", "-shm"] {
            let _ = fs::remove_file(home.join(format!("agent/agent.db{suffix}")));
        }
        stop.store(false, Ordering::Relaxed);
        site.start_agent();
        site.roles.ok(&["exec", "--", "true"]);
    }
    eventually("the end of all commands", || {
        let commands = site.roles.json(&["command", "ls"]);
        let open = commands.as_array().unwrap().iter().filter(|one| !one["hosts"][0]["outcome"].is_object()).count();
        if open == 0 { Ok(()) } else { Err(format!("{open} are open")) }
    });
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for line in fs::read_to_string(&marks).unwrap().lines() {
        *counts.entry(line.to_owned()).or_default() += 1;
    }
    counts.retain(|_, count| *count > 1);
    assert_eq!(counts, BTreeMap::new(), "done more than once");
    assert_eq!(site.pid("keeps"), pid);
    assert_eq!(site.written("keeps", "starts"), "start\n");
    site.roles.ok(&["yuno", "stop", "default/keeps"]);
}
