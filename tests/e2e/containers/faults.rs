//! Faults of runtimes and disks: one clear outcome each, and other units go on.

use std::{fs, path::PathBuf, process::Command};

use muster_topics::diagnostic::Diagnostic;
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use super::{
    pid, shop,
    stage::{Lxc, Podman, add_rootfs, apply, write},
};
use crate::fleet::{Fleet, eventually};

/// A small disk in the place of a folder. It has to go before what is in it does.
struct Small(PathBuf);

impl Small {
    fn over(folder: PathBuf, size: &str) -> Self {
        fs::create_dir_all(&folder).unwrap();
        let small = Self(folder);
        small.mount(&format!("size={size},mode=0700"));
        small
    }

    fn mount(&self, options: &str) {
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", options, "muster-test"]).arg(&self.0).status();
        assert!(mounted.unwrap().success());
    }

    /// Somebody makes room.
    fn grow(&self, size: &str) {
        self.mount(&format!("remount,size={size},mode=0700"));
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}

/// Waits until the error of a unit has these words, in any case. A slow runtime may be reported before.
#[track_caller]
fn error_with(fleet: &Fleet, unit: &str, words: &str) -> String {
    let error = |unit: &Value| {
        let told: Option<Diagnostic> = serde_json::from_value(unit["observed"]["error"].clone()).unwrap();
        told.unwrap_or_default().to_string()
    };
    error(&fleet.unit(unit, |unit| error(unit).to_lowercase().contains(&words.to_lowercase())))
}

/// Applies a document whose unit does not come about for now.
fn begin(fleet: &Fleet, document: &Value) {
    fleet.ok(&["unit", "apply", &write(fleet, document), "--no-wait"]);
}

#[test]
fn hanging_runtime_does_not_block_others() {
    let podman = Podman::start();
    let fleet = podman.fleet();
    add_rootfs(&fleet);
    let lxc = Lxc::of(&fleet);
    apply(&fleet, &shop(json!({})));
    let first = pid(&fleet.unit_in_phase("default/shop", "running"));
    // It takes connections, and answers nobody.
    podman.service().signal(Signal::SIGSTOP);
    begin(&fleet, &shop(json!({"unit": "default/new"})));
    fleet.muster(&["container", "freeze", "default/shop"]).expect_code(1).expect_stderr("to ask it to freeze took");
    error_with(&fleet, "default/new", "did not answer at");
    // Units of another kind, and of another runtime, are as quick as ever; and what runs does.
    let script = crate::fleet::file(&fleet.home, "server", "#!/bin/sh\nwhile :; do sleep 1; done\n");
    fleet.ok(&["artifact", "create", &script, "--role", "server", "--version", "1"]);
    fleet.ok(&["yuno", "create", "default/till", "--artifact", "server", "--run"]);
    apply(&fleet, &shop(json!({"unit": "default/stall", "runtime": "lxc"})));
    fleet.unit_in_phase("default/till", "running");
    fleet.unit_in_phase("default/stall", "running");
    let inside = fleet.muster(&["unit", "exec", "default/shop", "--", "echo", "well"]).expect_code(3);
    inside.expect_stderr("default/shop cannot be entered: the container runtime did not answer at");
    assert_eq!(fleet.ok(&["unit", "exec", "default/stall", "--", "echo", "well"]), "well\n");
    podman.service().signal(Signal::SIGCONT);
    // Whatever was asked for comes about.
    fleet.unit("default/shop", |unit| unit["observed"]["frozen"] == true && unit["observed"]["error"].is_null());
    fleet.ok(&["container", "thaw", "default/shop"]);
    fleet.unit_in_phase("default/new", "running");
    assert_eq!(pid(&fleet.unit_in_phase("default/shop", "running")), first);
    fleet.ok(&["container", "stop", "default/shop"]);
    drop(lxc);
}

#[test]
fn missing_runtime_has_an_install_hint() {
    let fleet = Fleet::start_with(&["--no-sample", "--podman-socket", "/no/such/socket"]);
    add_rootfs(&fleet);
    begin(&fleet, &shop(json!({})));
    let error = error_with(
        &fleet,
        "default/shop",
        "cannot reach the container runtime at /no/such/socket: No such file or directory",
    );
    assert!(error.contains("hint: start Podman's service (`podman system service`) or Docker;"), "{error}");
}

#[test]
fn full_disk_of_lxc_is_reported_and_recovers() {
    let podman = Podman::start();
    let fleet = podman.fleet();
    add_rootfs(&fleet);
    // Not even a root file system of a static busybox has room.
    let lxc = Lxc::of(&fleet);
    let small = Small::over(lxc.path().to_owned(), "1m");
    begin(&fleet, &shop(json!({"runtime": "lxc"})));
    error_with(&fleet, "default/shop", "the disk is too full for the root file system");
    apply(&fleet, &shop(json!({"unit": "default/other"})));
    small.grow("64m");
    fleet.unit_in_phase("default/shop", "running");
    let left = fs::read_dir(lxc.path().join(".images")).unwrap().count();
    assert_eq!(left, 1, "what was half unpacked is gone");
    fleet.ok(&["container", "stop", "default/shop"]);
    fleet.ok(&["container", "stop", "default/other"]);
    drop((lxc, small));
}

#[test]
fn full_disk_of_podman_is_reported_and_recovers() {
    let mut podman = Podman::start();
    let fleet = podman.fleet();
    add_rootfs(&fleet);
    podman.run(&["images"]);
    let small = Small::over(podman.storage().join("vfs"), "1m");
    begin(&fleet, &shop(json!({})));
    fleet.unit("default/shop", |unit| {
        podman.keep_serving();
        unit["observed"]["error"]["message"].as_str().is_some_and(|error| error.contains("no space left on device"))
    });
    small.grow("64m");
    fleet.unit("default/shop", |unit| {
        podman.keep_serving();
        unit["observed"]["phase"] == "running"
    });
    drop((podman, small));
}

#[test]
fn container_disk_limit_is_enforced() {
    let podman = Podman::start();
    let fleet = podman.fleet();
    add_rootfs(&fleet);
    let lxc = Lxc::of(&fleet);
    let disks = || {
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        mounts.lines().filter(|line| line.contains(lxc.path().to_str().unwrap())).count()
    };
    let stall = |mb: u64| shop(json!({"runtime": "lxc", "user": "shop", "disk_bytes": mb << 20}));
    apply(&fleet, &stall(16));
    let first = pid(&fleet.unit_in_phase("default/shop", "running"));
    let write_mb = |mb: u32| {
        let script = format!("busybox dd if=/dev/zero of=/tmp/big bs=1M count={mb} && busybox wc -c /tmp/big");
        fleet.muster(&["unit", "exec", "default/shop", "--user", "root", "--shell", "--", &script])
    };
    assert!(write_mb(8).expect_code(0).stdout.contains("8388608"));
    // A threshold of its disk: half of it is written.
    fleet.ok(&["rule", "set", "shop-disk", "--metric", "unit_disk_used", "--of", "default/shop", "--level", "40%"]);
    let raised = eventually("its alert", || {
        let alerts = fleet.json(&["alert", "ls", "--rule", "shop-disk"]);
        alerts.as_array().unwrap().first().cloned().ok_or_else(|| alerts.to_string())
    });
    assert_eq!(raised["alert"]["unit"], "default/shop", "{raised}");
    assert!((0.4..0.9).contains(&raised["alert"]["value"].as_f64().unwrap()), "{raised}");
    write_mb(64).expect_code(1).expect_stderr("No space left on device");
    assert_eq!(pid(&fleet.unit_in_phase("default/shop", "running")), first, "it goes on");
    assert!(fs::metadata(lxc.path().join("muster.default.shop/disk")).unwrap().len() == 16 << 20);
    assert_eq!(disks(), 0, "nothing of it is mounted on the host");
    // What it has written is there after it was started again, and gone once it is made anew, with another disk.
    let has_it = || fleet.muster(&["unit", "exec", "default/shop", "--", "ls", "/tmp/big"]).code == 0;
    fleet.ok(&["container", "stop", "default/shop"]);
    eventually("an end of its loop device", || {
        let loops = Command::new("losetup").arg("--list").output().unwrap();
        let loops = String::from_utf8_lossy(&loops.stdout).into_owned();
        if loops.contains(lxc.path().to_str().unwrap()) { Err(loops) } else { Ok(()) }
    });
    fleet.ok(&["container", "run", "default/shop"]);
    assert!(has_it());
    fleet.ok(&["container", "quota", "default/shop", "--disk", "32M"]);
    fleet.unit("default/shop", |unit| unit["observed"]["revision"] == unit["desired"]["revision"]);
    assert!(!has_it());
    write_mb(24).expect_code(0);
    fleet.ok(&["container", "quota", "default/shop", "--disk", "none"]);
    fleet.unit("default/shop", |unit| unit["observed"]["revision"] == unit["desired"]["revision"]);
    write_mb(64).expect_code(0);

    // Whose storage cannot says so, by the field; what ran before runs again.
    apply(&fleet, &shop(json!({"unit": "default/other", "verify_after_ms": 0})));
    let wanted = shop(json!({"unit": "default/other", "disk_bytes": 16 << 20}));
    let refused = fleet.muster(&["unit", "apply", &write(&fleet, &wanted)]).expect_code(1);
    refused.expect_stderr("unsupported by podman: disk_bytes: ");
    fleet.unit("default/other", |unit| {
        unit["observed"]["phase"] == "running" && unit["observed"]["rolled_back"].is_object()
    });
    let too_small = shop(json!({"disk_bytes": 4096}));
    fleet.muster(&["unit", "apply", &write(&fleet, &too_small)]).expect_code(2).expect_stderr("disk_bytes is 4096");
    drop(lxc);
}
