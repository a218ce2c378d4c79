//! The agent as a service: a real systemd, on a machine of its own, whose agent is killed, hangs, is
//! upgraded, and loses power.

use std::fs;

use serde_json::Value;

use crate::{
    fleet::{eventually, file, machine::Machine},
    roles::Roles,
};

const SERVER: &str = "#!/bin/sh\necho $$ >> starts\ntrap 'exit 0' TERM\nwhile :; do sleep 0.2; done\n";

/// A machine whose agent is a service and has joined a fleet.
struct Site {
    roles: Roles,
    machine: Machine,
}

impl Site {
    fn new() -> Option<Self> {
        let roles = Roles::start();
        let machine = Machine::boot(&roles.home)?;
        Some(Self { roles, machine })
    }

    fn install(&self) -> String {
        let token = self.roles.token();
        let run = self.machine.run(&["/opt/muster", "agent", "install", "--now", "--join", &token]).expect_code(0);
        self.roles.wait_for_host("online");
        run.stderr
    }

    /// A yuno that runs; its process id there, and when that began.
    fn yuno(&self, unit: &str) -> (i64, String) {
        let path = file(&self.roles.home, "server", SERVER);
        self.roles.ok(&["artifact", "create", &path, "--role", "server", "--version", "1"]);
        self.roles.ok(&["yuno", "create", unit, "--artifact", "server", "--run"]);
        self.running(unit)
    }

    fn running(&self, unit: &str) -> (i64, String) {
        let pid = self.unit(unit, |unit| unit["observed"]["phase"] == "running")["observed"]["pid"].as_i64().unwrap();
        (pid, self.machine.start_ticks(pid).expect("it runs on the machine"))
    }

    fn unit(&self, unit: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        eventually(unit, || {
            let run = self.roles.home.muster(&["-o", "json", "unit", "show", unit]);
            let shown: Value = serde_json::from_str(&run.stdout).map_err(|_| run.stderr.clone())?;
            if wanted(&shown) { Ok(shown) } else { Err(shown.to_string()) }
        })
    }

    /// Waits until the agent's service runs with another process than before; gives that one.
    fn new_agent(&self, before: &str) -> String {
        eventually("another agent", || {
            let (state, pid) = (self.machine.service("ActiveState"), self.machine.service("MainPID"));
            if state == "active" && pid != before && pid != "0" { Ok(pid) } else { Err(format!("{state} {pid}")) }
        })
    }

    /// How often the yuno was started since the machine is there.
    fn starts(&self, unit: &str) -> usize {
        let path = self.machine.path(&format!("/var/lib/muster/agent/units/{unit}/work/starts"));
        fs::read_to_string(path).unwrap().lines().count()
    }
}

#[test]
fn service_restarts_keep_yunos_running() {
    let Some(mut site) = Site::new() else { return };
    let told = site.install();
    for words in ["/usr/local/bin/muster", "/etc/muster/agent.toml", "systemctl enable", "systemctl status"] {
        assert!(told.contains(words), "{words} is not in {told}");
    }
    assert_eq!(site.machine.service("ActiveState"), "active");
    let yuno = site.yuno("default/till");
    eventually("a status", || {
        let status = site.machine.service("StatusText");
        if status == "connected; 1 of 1 units running" { Ok(()) } else { Err(status) }
    });

    // Killed.
    let agent = site.machine.service("MainPID");
    site.machine.ok(&["systemctl", "kill", "--kill-whom=main", "--signal=KILL", "muster-agent"]);
    let agent = site.new_agent(&agent);
    assert_eq!(site.running("default/till"), yuno);

    // Restarted in order, by somebody who brings it up to date.
    let again = site.machine.run(&["/opt/muster", "agent", "install", "--now"]).expect_code(0);
    assert!(!again.stderr.contains("agent.toml: done"), "a configuration that is there stays: {}", again.stderr);
    let agent = site.new_agent(&agent);
    assert_eq!(site.running("default/till"), yuno);

    // Reloaded, it is the same process, with what its configuration says now.
    let config = site.machine.path("/etc/muster/agent.toml");
    let text = fs::read_to_string(&config).unwrap();
    fs::write(&config, format!("{text}\n[labels]\nshop = \"12\"\n")).unwrap();
    site.machine.ok(&["systemctl", "reload", "muster-agent"]);
    eventually("the new label", || {
        let shown = site.roles.home.muster(&["-o", "json", "host", "ls"]).stdout;
        if shown.contains("\"shop\"") { Ok(()) } else { Err(shown) }
    });
    assert_eq!(site.machine.service("MainPID"), agent);
    assert_eq!(site.running("default/till"), yuno);

    // Hung: systemd's watchdog ends it.
    let over = "[Service]\nWatchdogSec=3\n";
    let folder = site.machine.path("/etc/systemd/system/muster-agent.service.d");
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("watchdog.conf"), over).unwrap();
    site.machine.ok(&["systemctl", "daemon-reload"]);
    site.machine.ok(&["systemctl", "restart", "muster-agent"]);
    let agent = site.new_agent(&agent);
    site.machine.ok(&["kill", "-STOP", &agent]);
    let agent = site.new_agent(&agent);
    assert_eq!(site.machine.service("NRestarts"), "1");
    assert_eq!(site.running("default/till"), yuno);

    // Stopped, it leaves the yuno; started, it takes it up.
    site.machine.ok(&["systemctl", "stop", "muster-agent"]);
    site.roles.wait_for_host("stopped");
    assert_eq!(site.machine.start_ticks(yuno.0).as_ref(), Some(&yuno.1));
    site.machine.ok(&["systemctl", "start", "muster-agent"]);
    site.new_agent(&agent);
    site.roles.wait_for_host("online");
    assert_eq!(site.running("default/till"), yuno);
    assert_eq!(site.starts("default/till"), 1, "there never was a second copy");

    // Without power nothing is left; afterwards nothing is mistaken for what it was.
    site.machine.lose_power();
    site.roles.wait_for_host("offline");
    assert!(site.machine.start());
    site.roles.wait_for_host("online");
    eventually("a second start", || match site.starts("default/till") {
        2 => Ok(()),
        other => Err(other.to_string()),
    });
    let after = site.unit("default/till", |unit| unit["observed"]["phase"] == "running");
    assert_eq!(after["observed"]["exit"], "unknown", "nobody saw it end: {after}");

    // Taken away, it still leaves the yuno.
    let yuno = site.running("default/till");
    let gone = site.machine.run(&["/usr/local/bin/muster", "agent", "uninstall"]).expect_code(0).stderr;
    assert!(gone.contains(&format!("default/till keeps running (process {})", yuno.0)), "{gone}");
    assert_eq!(site.machine.start_ticks(yuno.0), Some(yuno.1));
    assert!(site.machine.path("/etc/muster/agent.toml").exists());
    assert!(!site.machine.path("/usr/local/bin/muster").exists());
    assert_eq!(site.machine.service("LoadState"), "not-found");
    site.machine.run(&["/opt/muster", "agent", "uninstall"]).expect_code(0).expect_stderr("no agent is installed");
}

#[test]
fn failing_service_is_not_restarted_forever() {
    let Some(site) = Site::new() else { return };
    // It has no token.
    let run = site.machine.run(&["/opt/muster", "agent", "install", "--now"]).expect_code(1).expect_stderr("hint:");
    assert!(run.stderr.contains("journalctl"), "{}", run.stderr);
    eventually("its end", || {
        let (state, result) = (site.machine.service("ActiveState"), site.machine.service("ExecMainStatus"));
        if (state.as_str(), result.as_str()) == ("failed", "2") { Ok(()) } else { Err(format!("{state} {result}")) }
    });
    let log = site.machine.ok(&["journalctl", "--no-pager", "-u", "muster-agent"]);
    assert!(log.contains("muster token create"), "it says what to do: {log}");
    // With one it can be started.
    site.install();
}
