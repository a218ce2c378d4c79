//! A console that was restored from yesterday's backup, or has lost its whole store, and hosts that have newer documents and
//! labels: they go on as they are, and are sent nothing, until an operator has confirmed them.

use std::fs;

use serde_json::{Value, json};

use super::Bench;
use crate::{
    backup::{make_key, restore},
    fleet::{Home, eventually, file},
    roles::Roles,
};

const SHOP: &str = "default/shop";
const LABELLED_LATER: &str = "one";

/// Hosts in version 5, and a console that has a backup of version 3, when one of them did not have the label `site=north`.
fn bench_with_backup() -> Bench {
    let home = Home::new();
    let section = make_key(&home, "key.txt");
    let bench =
        Bench::start_with(Roles::start_in(home, format!("{section}every_hours = 0\n")), &["one", "two", "three"]);
    bench.add_noting_program();
    (1..=3).for_each(|version| apply(&bench, version));
    bench.roles.ok(&["backup", "create", "--out", "one.tar.age", "--artifacts"]);
    bench.roles.ok(&["host", "label", &bench.id(LABELLED_LATER), "site=north"]);
    (4..=5).for_each(|version| apply(&bench, version));
    bench
}

/// Applies a version, and waits until all hosts have verified it.
fn apply(bench: &Bench, version: usize) {
    let path = bench.write_units(SHOP, &[("till", version.to_string())]);
    bench.roles.ok(&["deployment", "apply", &path, "--yes"]);
    bench.verified(SHOP, version);
}

fn restore_backup(bench: &mut Bench) {
    bench.roles.kill_console();
    let folder = bench.roles.home.path().join("console");
    fs::rename(&folder, bench.roles.home.path().join("lost")).unwrap();
    restore(&bench.roles, &[]).expect_code(0);
    bench.roles.start_console();
}

/// Which documents the agents have stored, and labels: as often as they said so.
fn stored(bench: &Bench) -> usize {
    let printed = bench.agents.iter().flatten().map(|agent| agent.printed());
    let words = ["new document", "new labels from the console"];
    printed.map(|printed| words.iter().map(|word| printed.matches(word).count()).sum::<usize>()).sum()
}

/// Waits until the console has seen that it does not know what hosts have, and compares them once more.
#[track_caller]
pub(super) fn wait_for_unconfirmed(bench: &Bench, count: usize) -> u64 {
    eventually("unconfirmed hosts", || {
        let last = bench.roles.json(&["deployment", "sync"])["last"].clone();
        let is_it = last["counts"]["unconfirmed"] == count;
        if is_it { Ok(last["begun_ms"].as_u64().unwrap()) } else { Err(last.to_string()) }
    })
}

/// What a confirmation would do, once these hosts have handed in what they have; by their names.
#[track_caller]
pub(super) fn dry_run(bench: &Bench, names: &[String], more: &[&str]) -> Vec<(String, Value)> {
    let shown = eventually("what hosts hand in", || {
        let shown = bench.roles.json(&[&["deployment", "confirm", "--dry-run"], more].concat());
        let hosts = shown["hosts"].as_array().map_or(0, Vec::len);
        if hosts == names.len() { Ok(shown) } else { Err(shown.to_string()) }
    });
    let of = |name: &String| {
        let id = fs::read_to_string(bench.folder(name).join("host")).unwrap();
        let host = shown["hosts"].as_array().unwrap().iter().find(|host| host["host"] == id.trim()).unwrap();
        (name.clone(), host.clone())
    };
    names.iter().map(of).collect()
}

fn history(bench: &Bench) -> Vec<u64> {
    let history = bench.roles.json(&["deployment", "history", SHOP]);
    history.as_array().unwrap().iter().map(|version| version["number"].as_u64().unwrap()).collect()
}

/// The labels of the console on a host.
fn labels(bench: &Bench, host: &str) -> Vec<String> {
    let id = fs::read_to_string(bench.folder(host).join("host")).unwrap();
    let shown = bench.roles.json(&["host", "label", id.trim()]);
    let labels = shown[0]["labels"].as_array().unwrap().clone();
    let of_console = labels.iter().filter(|label| label["origin"] == "console");
    of_console
        .map(|label| format!("{}={}", label["name"].as_str().unwrap(), label["value"].as_str().unwrap()))
        .collect()
}

/// Waits until hosts have confirmed the labels that the console has.
#[track_caller]
fn wait_for_labels(bench: &Bench) {
    eventually("labels that hosts have confirmed", || {
        let shown = bench.roles.json(&["host", "label", "--all"]);
        let all = shown.as_array().unwrap();
        if all.iter().all(|host| host["confirmed"] == true) { Ok(()) } else { Err(shown.to_string()) }
    });
}

#[test]
fn restored_console_takes_newer_versions_and_labels_from_hosts() {
    let mut bench = bench_with_backup();
    let (pids, before) = (bench.pids("default/till"), stored(&bench));
    restore_backup(&mut bench);
    let first = wait_for_unconfirmed(&bench, 3);
    bench.states(&json!({"unconfirmed": 3}));
    // Nobody changes what decides what these hosts should have.
    let refused = bench.roles.home.muster(&["host", "label", "--all", "--yes", "frozen=yes"]);
    refused.expect_code(3).expect_stderr("hosts have newer labels than this console");
    // A version that is made now is sent to none of them.
    let path = bench.write_units("default/other", &[("other", "x".to_owned())]);
    bench.roles.ok(&["deployment", "apply", &path, "--yes", "--no-wait"]);
    bench.roles.ok(&["deployment", "rm", "default/other", "--yes", "--no-wait"]);
    eventually("another comparison", || {
        if wait_for_unconfirmed(&bench, 3) > first { Ok(()) } else { Err("the same") }.map_err(str::to_owned)
    });
    assert_eq!((stored(&bench), bench.pids("default/till")), (before, pids.clone()), "they are sent nothing");

    for (name, host) in dry_run(&bench, &bench.names, &[]) {
        let wanted = json!([{"deployment": SHOP, "host_version": 5, "console_version": 3, "action": "rebuild"}]);
        assert_eq!(host["deployments"], wanted, "{host}");
        match name == LABELLED_LATER {
            true => assert_eq!(
                host["labels"],
                json!({"host": {"role": "till", "site": "north"}, "console": {"role": "till"}, "action": "rebuild"})
            ),
            false => assert!(host["labels"].is_null(), "{host}"),
        }
    }
    bench.roles.ok(&["deployment", "confirm", "--all", "--yes"]);
    bench.verified(SHOP, 5);
    wait_for_labels(&bench);
    assert_eq!((history(&bench), bench.pids("default/till")), (vec![5, 3, 2, 1], pids));
    assert_eq!(labels(&bench, LABELLED_LATER), ["role=till", "site=north"]);
    apply(&bench, 6);
    for host in &bench.names {
        assert_eq!(bench.noted(host, "till"), ["1", "2", "3", "4", "5", "6"], "{host}");
    }
}

#[test]
fn restored_console_gives_hosts_what_it_has_if_that_is_confirmed() {
    let mut bench = bench_with_backup();
    restore_backup(&mut bench);
    wait_for_unconfirmed(&bench, 3);
    for (name, host) in dry_run(&bench, &bench.names, &["--replace"]) {
        let wanted = json!([{"deployment": SHOP, "host_version": 5, "console_version": 3, "action": "replace"}]);
        assert_eq!(host["deployments"], wanted, "{host}");
        assert_eq!(host["labels"]["action"] == "replace", name == LABELLED_LATER, "{host}");
    }
    bench.roles.ok(&["deployment", "confirm", "--all", "--replace", "--yes"]);
    bench.verified(SHOP, 3);
    wait_for_labels(&bench);
    assert_eq!((history(&bench), labels(&bench, LABELLED_LATER)), (vec![3, 2, 1], vec!["role=till".to_owned()]));
    // The number is the next one of this console.
    apply(&bench, 4);
    for host in &bench.names {
        assert_eq!(bench.noted(host, "till"), ["1", "2", "3", "4", "5", "3", "4"], "{host}");
    }
}

#[test]
fn lost_store_is_rebuilt_from_hosts_with_its_numbers_and_labels() {
    let mut bench = Bench::start_with(Roles::start(), &["one", "two", "three"]);
    bench.add_noting_program();
    (1..=3).for_each(|version| apply(&bench, version));
    let (pids, before) = (bench.pids("default/till"), stored(&bench));
    bench.roles.kill_console();
    let folder = bench.roles.home.path().join("console");
    for name in ["console.db", "console.db-wal", "console.db-shm"] {
        let _ = fs::remove_file(folder.join(name));
    }
    bench.roles.start_console();
    wait_for_unconfirmed(&bench, 3);
    assert_eq!(bench.roles.json(&["deployment", "ls"]), json!([]));
    for (_, host) in dry_run(&bench, &bench.names, &[]) {
        let rebuilt = json!({"deployment": SHOP, "host_version": 3, "action": "rebuild"});
        assert_eq!(host["deployments"], json!([rebuilt]), "{host}");
        let labels = json!({"host": {"role": "till"}, "console": {}, "action": "rebuild"});
        assert_eq!(host["labels"], labels, "{host}");
    }
    assert_eq!((stored(&bench), bench.pids("default/till")), (before, pids.clone()), "they are sent nothing");
    bench.roles.ok(&["deployment", "confirm", "--all", "--yes"]);
    bench.verified(SHOP, 3);
    wait_for_labels(&bench);
    assert_eq!((history(&bench), bench.pids("default/till")), (vec![3], pids));
    // What hosts download is added again.
    bench.add_noting_program();
    apply(&bench, 4);
    // A host that joins gets it, too.
    let path = file(&bench.roles.home, "late.toml", "");
    let data = bench.folder("late").display().to_string();
    fs::write(&path, format!("data_dir = \"{data}\"\n[labels]\nhost = \"late\"\n")).unwrap();
    bench.names.push("late".to_owned());
    bench.agents.push(None);
    bench.run_agent(3, &["--join", &bench.roles.token()]);
    bench.online(4);
    bench.roles.ok(&["host", "label", &bench.id("late"), "role=till"]);
    bench.verified(SHOP, 4);
    for host in ["one", "two", "three"] {
        assert_eq!(bench.noted(host, "till"), ["1", "2", "3", "4"], "{host}");
    }
    assert_eq!(bench.noted("late", "till"), ["4"]);
}
