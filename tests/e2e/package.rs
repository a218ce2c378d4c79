//! The Debian package, on a machine of its own. `tests/package` builds it, and runs this.

use std::{fs, path::PathBuf};

use crate::{
    fleet::{eventually, file, machine::Machine},
    roles::Roles,
};

const SERVER: &str = "#!/bin/sh\necho $$ >> starts\ntrap 'exit 0' TERM\nwhile :; do sleep 0.2; done\n";

#[test]
#[ignore = "tests/package gives it packages"]
fn package_upgrade_leaves_yunos_running() {
    let packages = PathBuf::from(std::env::var_os("MUSTER_TEST_PACKAGES").expect("tests/package runs this"));
    let roles = Roles::start();
    let machine = Machine::boot(&roles.home).expect("a package is tried on a machine of its own");
    for version in ["0.1.0-1", "0.1.0-2"] {
        fs::copy(packages.join(format!("{version}.deb")), machine.path(&format!("/root/{version}.deb"))).unwrap();
    }
    // What keeps packages from starting services where images are made.
    machine.run(&["rm", "-f", "/usr/sbin/policy-rc.d"]);

    // Nothing runs before it has a token; but it will from the next boot on.
    let told = machine.ok(&["dpkg", "--install", "/root/0.1.0-1.deb"]);
    assert!(told.contains("/etc/muster/agent.toml"), "{told}");
    assert_eq!(
        (machine.service("ActiveState").as_str(), machine.service("UnitFileState").as_str()),
        ("inactive", "enabled")
    );
    let config = machine.path("/etc/muster/agent.toml");
    let text = fs::read_to_string(&config).unwrap();
    fs::write(&config, format!("join = \"{}\"\n{text}", roles.token())).unwrap();
    machine.ok(&["systemctl", "start", "muster-agent"]);
    roles.wait_for_host("online");
    // The package is the package's business.
    machine.run(&["/opt/muster", "agent", "install"]).expect_code(1).expect_stderr("package");

    let path = file(&roles.home, "server", SERVER);
    roles.ok(&["artifact", "add", &path, "--role", "server", "--version", "1"]);
    roles.ok(&["yuno", "create", "default/till", "--artifact", "server", "--run"]);
    let running = || {
        eventually("a yuno that runs", || {
            let unit = roles.json(&["unit", "show", "default/till"]);
            let pid = unit["observed"]["pid"].as_i64().filter(|_| unit["observed"]["phase"] == "running");
            pid.ok_or_else(|| unit.to_string())
        })
    };
    let pid = running();
    let began = machine.start_ticks(pid).unwrap();

    let agent = machine.service("MainPID");
    machine.ok(&["dpkg", "--install", "--force-confold", "/root/0.1.0-2.deb"]);
    eventually("the new agent", || {
        let now = (machine.service("ActiveState"), machine.service("MainPID"));
        if now.0 == "active" && now.1 != agent { Ok(()) } else { Err(format!("{now:?}")) }
    });
    roles.wait_for_host("online");
    assert_eq!((running(), machine.start_ticks(pid)), (pid, Some(began.clone())));
    assert!(fs::read_to_string(&config).unwrap().starts_with("join = "), "the configuration stays");
    let starts = machine.path("/var/lib/muster/agent/units/default/till/work/starts");
    assert_eq!(fs::read_to_string(&starts).unwrap().lines().count(), 1);

    // A host that stopped its agent on purpose has none after an upgrade either.
    machine.ok(&["systemctl", "stop", "muster-agent"]);
    machine.ok(&["dpkg", "--install", "--force-confold", "--force-downgrade", "/root/0.1.0-1.deb"]);
    assert_eq!(machine.service("ActiveState"), "inactive");
    machine.ok(&["systemctl", "start", "muster-agent"]);
    roles.wait_for_host("online");

    // Removed, purged even: what runs goes on, and keeps its files.
    let told = machine.ok(&["dpkg", "--remove", "muster-agent"]);
    assert!(told.contains("go on without an agent"), "{told}");
    roles.wait_for_host("stopped");
    let told = machine.ok(&["dpkg", "--purge", "muster-agent"]);
    assert!(told.contains("yunos still run"), "{told}");
    assert_eq!(machine.start_ticks(pid), Some(began));
    assert!(starts.exists() && !config.exists());
}
