//! A full disk: commands that free room get through, and every role starts.

use std::{fs, path::Path};

use muster_test_support::disk::Disk;

use crate::{
    fleet::{Fleet, Running, eventually, file},
    roles::Roles,
};

/// A disk of 64 MB, with blocks of 1 KiB.
fn small_disk() -> Disk {
    Disk::ext4(64, &["-b", "1024"])
}

fn kept_bytes(data: &Path) -> u64 {
    ["agent/reserve", "console/reserve"].iter().map(|name| fs::metadata(data.join(name)).unwrap().len()).sum()
}

#[test]
fn full_disk_accepts_commands_and_starts_roles() {
    let disk = small_disk();
    let data = disk.path().join("data");
    let mut fleet = Fleet::start_with(&["--data", data.to_str().unwrap()]);
    fleet.unit_in_phase("default/hello", "running");
    let whole = kept_bytes(&data);

    disk.fill();
    assert_eq!(fleet.ok(&["exec", "--", "echo", "one"]), "one\n");
    fleet.ok(&["yuno", "stop", "default/hello"]);
    // A stolen key is replaced now, and not when there is room.
    fleet.ok(&["authority", "rotate", "signing"]);
    fleet.ok(&["authority", "rotate", "--finish"]);
    assert_eq!(fleet.ok(&["exec", "--", "echo", "new key"]), "new key\n");
    let alert = eventually("an alert of the console", || {
        let alerts = fleet.json(&["alert", "ls"]);
        alerts
            .as_array()
            .unwrap()
            .iter()
            .find(|one| one["alert"]["rule"] == "console-disk-full")
            .cloned()
            .ok_or_else(|| alerts.to_string())
    });
    assert!(alert["alert"]["message"].as_str().unwrap().contains("hint: make room"), "{alert}");
    // The reserve is not for uploads.
    let config = file(&fleet.home, "small.json", "{}");
    for upload in [
        &["config", "add", "small", "1", &config][..],
        &["artifact", "add", &config, "--role", "small", "--version", "1"],
    ] {
        fleet
            .muster(upload)
            .expect_code(1)
            .expect_stderr("not for uploads")
            .expect_stderr("hint: of the console's folder");
    }
    // Every verb says so, beside its answer.
    fleet.muster(&["host", "ls"]).expect_code(0).expect_stderr("is full");
    assert!(kept_bytes(&data) < whole);

    // It starts there, stopped or killed.
    for killed in [false, true] {
        if killed {
            fleet.kill();
        } else {
            fleet.stop();
        }
        disk.fill();
        fleet.again();
        assert_eq!(fleet.ok(&["exec", "--", "echo", "two"]), "two\n", "killed: {killed}");
    }
    fleet.ok(&["yuno", "run", "default/hello"]);

    // Once there is room the reserve is made again, and nothing is said any more.
    disk.empty();
    eventually("a whole reserve", || match kept_bytes(&data) {
        kept if kept == whole => Ok(()),
        kept => Err(format!("{kept} of {whole}")),
    });
    eventually("no alert", || match fleet.json(&["alert", "ls"]) {
        alerts if alerts.as_array().unwrap().is_empty() => Ok(()),
        alerts => Err(alerts.to_string()),
    });
    fleet.ok(&["config", "add", "small", "1", &config]);
    fleet.ok(&["yuno", "stop", "default/hello"]);
}

#[test]
fn exhausted_reserve_is_reported_to_the_caller() {
    let disk = small_disk();
    let roles = Roles::start();
    let data = disk.path().join("agent");
    let config = file(
        &roles.home,
        "agent.toml",
        &format!(
            "data_dir = \"{}\"\njoin = \"{}\"\n[metrics]\nsample_ms = 500\npublish_ms = 500\n\
             [alerts.rules.store]\nmetric = \"store_used\"\nthreshold = 0.97\nclear = 0.95\n",
            data.display(),
            roles.token()
        ),
    );
    let agent = Running::start(roles.home.command().args(["agent", "--config", &config]));
    roles.wait_for_host("online");
    disk.fill();
    // What is in reserve is for this, too.
    eventually("the host's alert", || match roles.ok(&["alert", "ls"]) {
        alerts if alerts.contains("store") => Ok(()),
        alerts => Err(alerts),
    });
    // The agent may put some of it back meanwhile.
    while fs::metadata(data.join("reserve")).is_ok_and(|reserve| reserve.len() > 0) {
        fs::remove_file(data.join("reserve")).unwrap();
        disk.fill();
    }
    let mut waits = Running::start(roles.home.command().args(["exec", "--timeout", "60s", "--", "echo", "one"]));
    let told = waits.wait_for("why", |printed| printed.contains("tells: ").then(|| printed.to_owned()));
    assert!(told.contains("waiting for ") && told.contains("file system of the agent's folder"), "{told}");
    let listed = roles.ok(&["command", "ls"]);
    assert!(listed.contains("waiting for the host, which tells: "), "{listed}");
    // With room it is done.
    disk.empty();
    waits.wait_for_end(0, "one");
    agent.kill();
}
