//! Reboots of a host: what is started again, and in which order; and what stays as it was.

use std::fs;

use serde_json::Value;

use crate::{
    fleet::{eventually, file, machine::Machine},
    roles::Roles,
};

/// Says in which order it came, and goes on.
const COMES: &str = "#!/bin/sh\necho $MUSTER_UNIT >> /var/tmp/order\nexec sleep 1000\n";
const CRASHES: &str = "#!/bin/sh\necho $$ >> starts\nexit 3\n";

struct Site {
    roles: Roles,
    machine: Machine,
}

impl Site {
    fn create(&self, name: &str, artifact: &str, more: &[&str]) {
        let unit = format!("default/{name}");
        let create = ["yuno", "create", &unit, "--artifact", artifact, "--no-wait", "--run"];
        self.roles.ok(&[&create[..], more].concat());
    }

    fn unit(&self, name: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        eventually(name, || {
            let run = self.roles.home.muster(&["-o", "json", "unit", "show", &format!("default/{name}")]);
            let shown: Value = serde_json::from_str(&run.stdout).map_err(|_| run.stderr.clone())?;
            if wanted(&shown) { Ok(shown) } else { Err(shown.to_string()) }
        })
    }

    fn runs(&self, name: &str) {
        self.unit(name, |unit| unit["observed"]["phase"] == "running");
    }

    fn starts(&self, name: &str) -> usize {
        let path = self.machine.path(&format!("/var/lib/muster/agent/units/default/{name}/work/starts"));
        fs::read_to_string(path).unwrap_or_default().lines().count()
    }

    /// Takes the machine's power away, does something with its disk, and starts it again.
    fn restart(&mut self, meanwhile: impl FnOnce(&Self)) {
        self.machine.ok(&["systemctl", "stop", "muster-agent"]);
        self.roles.wait_for_host("stopped");
        meanwhile(self);
        self.machine.lose_power();
        assert!(self.machine.start());
        self.roles.wait_for_host("online");
    }
}

#[test]
fn reboot_starts_units_in_order_and_keeps_holds() {
    let roles = Roles::start();
    let Some(machine) = Machine::boot(&roles.home) else { return };
    machine.ok(&["/opt/muster", "agent", "install", "--now", "--join", &roles.token()]);
    roles.wait_for_host("online");
    for (name, content) in [("comes", COMES), ("crashes", CRASHES)] {
        let path = file(&roles.home, name, content);
        roles.ok(&["artifact", "create", &path, "--role", name, "--version", "1"]);
    }
    let mut site = Site { roles, machine };
    // Neither by name nor in the order in which they are made.
    site.create("a-last", "comes", &["--priority", "9"]);
    site.create("m-middle", "comes", &["--restart", "never"]);
    site.create("z-first", "comes", &["--priority", "0"]);
    site.create("held", "comes", &[]);
    site.create("crashes", "crashes", &[]);
    site.create("hopeless", "crashes", &[]);
    for name in ["a-last", "m-middle", "z-first", "held"] {
        site.runs(name);
    }
    site.roles.ok(&["unit", "retire", "default/held"]);
    for name in ["crashes", "hopeless"] {
        site.unit(name, |unit| unit["observed"]["phase"] == "backoff");
    }
    let starts = site.starts("crashes");

    site.restart(|site| {
        // Two days later for one of them.
        let later = "UPDATE unit SET observed = json_set(observed, '$.attempts', 199, '$.retry_ms', 1)
                     WHERE name = 'default/hopeless'";
        site.machine.ok(&["sqlite3", "/var/lib/muster/agent/agent.db", later]);
        fs::write(site.machine.path("/var/tmp/order"), "").unwrap();
    });
    for name in ["a-last", "m-middle", "z-first"] {
        site.runs(name);
    }
    let order = fs::read_to_string(site.machine.path("/var/tmp/order")).unwrap();
    assert_eq!(order, "default/z-first\ndefault/m-middle\ndefault/a-last\n");
    site.unit("hopeless", |unit| unit["hold"]["reason"] == "broken");
    // One that waited goes on waiting: it is not tried in haste because the host is new.
    let crashes = site.unit("crashes", |unit| unit["observed"]["attempts"].as_i64() >= Some(3));
    assert!(site.starts("crashes") <= starts + 1, "{crashes}");

    let hopeless = site.starts("hopeless");
    site.restart(|_| ());
    site.runs("a-last");
    site.unit("hopeless", |unit| unit["hold"]["reason"] == "broken");
    site.unit("held", |unit| unit["hold"]["reason"] == "operator" && unit["observed"]["phase"] == "stopped");
    assert_eq!(site.starts("hopeless"), hopeless);
}
