//! Measurements of a container cover all its processes, not only the first.

use std::time::Instant;

use serde_json::json;

use super::{
    shop,
    stage::{Podman, add_rootfs, apply},
};
use crate::fleet::{Fleet, eventually};

fn last(fleet: &Fleet, measurement: &str, is_right: impl Fn(f64) -> bool) -> f64 {
    let selector = format!("{measurement}{{realm=\"default\",unit=\"shop\",kind=\"container\"}}");
    eventually(&selector, || {
        let answer = fleet.json(&["metric", "query", &selector]);
        let value = answer["series"][0]["points"][0][1].as_f64();
        value.filter(|value| is_right(*value)).ok_or_else(|| answer.to_string())
    })
}

#[test]
fn network_and_disk_of_unlimited_container_are_measured() {
    let podman = Podman::start();
    let fleet = podman.fleet();
    add_rootfs(&fleet);
    // It writes once, and asks the host, whose end of the network is its gateway, for what is not there.
    let script = "busybox head -c 3000000 /dev/zero > /written
        gateway=$(busybox ip route | busybox sed -n 's/^default via \\([^ ]*\\).*/\\1/p')
        while :; do busybox nc -w 1 $gateway 9 < /dev/null; busybox sleep 0.1; done";
    apply(&fleet, &shop(json!({"args": ["/bin/sh", "-c", script], "network": "bridge"})));
    fleet.unit_in_phase("default/shop", "running");
    let first = last(&fleet, "muster_unit_network_transmit_bytes_total", |bytes| bytes > 1_000.0);
    last(&fleet, "muster_unit_network_receive_bytes_total", |bytes| bytes > 1_000.0);
    last(&fleet, "muster_unit_disk_used_bytes", |bytes| (3e6..6e6).contains(&bytes));
    last(&fleet, "muster_unit_network_transmit_bytes_total", |bytes| bytes > first);
    // What has no limit has no share of one.
    let limit = fleet.json(&["metric", "query", "muster_unit_disk_total_bytes"]);
    assert_eq!(limit["series"], json!([]));
}

#[test]
fn all_processes_of_a_container_are_measured() {
    let podman = Podman::start();
    let fleet = podman.fleet();
    add_rootfs(&fleet);
    // Its first process only waits: what it forks works, each for a moment, and another holds memory.
    let script = "(x=$(busybox head -c 4000000 /dev/zero | busybox tr '\\0' x); sleep 1000; true) &
        while :; do (i=0; while [ $i -lt 5000 ]; do i=$((i + 1)); done); done";
    let limits = json!({"memory_bytes": 96 * 1_048_576, "cpu": 0.3, "pids": 40});
    let started = Instant::now();
    apply(&fleet, &shop(json!({"args": ["/bin/sh", "-c", script], "limits": limits})));
    fleet.unit_in_phase("default/shop", "running");
    // 0.3 of a processor, of however many there are.
    let cpus = f64::from(u32::try_from(std::thread::available_parallelism().unwrap().get()).unwrap());
    last(&fleet, "muster_unit_cpu_busy_ratio", |ratio| (0.1 / cpus..0.6 / cpus).contains(&ratio));
    // How long it is held back depends on what else the machine does: it grows, and is no longer than it ran.
    let throttled = "muster_unit_cpu_throttled_seconds_total";
    let first = last(&fleet, throttled, |seconds| 0.0 < seconds && seconds < started.elapsed().as_secs_f64() * cpus);
    last(&fleet, throttled, |seconds| seconds > first);
    last(&fleet, "muster_unit_memory_resident_bytes", |bytes| (4e6..96.0 * 1_048_576.0).contains(&bytes));
    last(&fleet, "muster_unit_memory_limit_bytes", |bytes| (bytes - 96.0 * 1_048_576.0).abs() < 1.0);
    last(&fleet, "muster_unit_processes_count", |count| (3.0..=40.0).contains(&count));

    // A threshold of this one container, and one that it keeps below.
    for (rule, above) in [("shop-memory", "1MiB"), ("shop-roomy", "90MiB")] {
        fleet.ok(&["rule", "set", rule, "--metric", "unit_memory", "--of", "default/shop", "--level", above]);
    }
    let raised = eventually("its alert", || {
        let alerts = fleet.json(&["alert", "ls"]);
        let all = alerts.as_array().unwrap();
        all.iter().find(|alert| alert["alert"]["rule"] == "shop-memory").cloned().ok_or_else(|| alerts.to_string())
    });
    assert_eq!(raised["alert"]["unit"], "default/shop", "{raised}");
    assert_eq!(fleet.json(&["alert", "ls", "--rule", "shop-roomy"]), json!([]));
    fleet.ok(&["rule", "set", "shop-memory", "--level", "95MiB"]);
    eventually("its end", || match fleet.json(&["alert", "ls"]) {
        alerts if alerts == json!([]) => Ok(()),
        alerts => Err(alerts.to_string()),
    });
}
