//! Packages beside other things: the agent's own package among them, units that want the same package, actions after a change,
//! configuration files, and plans.

use serde_json::json;

use super::{Bench, root::Package, version};
use crate::fleet::{eventually, file};

impl Bench {
    /// Applies another unit of packages.
    fn apply_other(&self, unit: &str, present: &[&str]) {
        let document = json!({"unit": unit, "kind": "packages", "run": "running", "present": present});
        self.roles.ok(&["unit", "apply", &file(&self.roles.home, "other.json", &document.to_string())]);
    }
}

#[test]
fn agents_own_package_may_be_among_the_packages() {
    let Some(mut bench) = Bench::start() else { return };
    // As a service manager would: the script ends the agent, and goes on once it is gone.
    let restart = "echo once >> /runs; read agent < /agent.pid; kill $agent; while kill -0 $agent; do sleep 0.1; done";
    bench.repository.add(&Package {
        name: "muster-agent",
        version: "2.0",
        postinst: Some(restart),
        ..Package::default()
    });
    bench.repository.add(&Package {
        name: "after",
        version: "1.0",
        fields: "Depends: muster-agent",
        ..Package::default()
    });
    let pid = bench.agent.as_ref().unwrap().pid();
    std::fs::write(bench.root.path.join("agent.pid"), format!("{pid}\n")).unwrap();
    bench.apply(json!({"present": ["tool=2.0", "muster-agent", "after"]}));
    eventually("the end of the agent", || {
        if bench.agent.as_mut().unwrap().ended() { Ok(()) } else { Err(bench.tasks().join("\n")) }
    });
    bench.start_agent(&[]);
    bench.verified();
    let task = bench.task("install changed: ");
    assert!(task.contains("(interrupted)"), "{task}");
    assert_eq!(bench.version("muster-agent"), version("2.0"));
    assert_eq!(bench.version("after"), version("1.0"));
    assert_eq!(bench.root.read("runs").as_deref(), Some("once\n"));
}

#[test]
fn package_that_another_unit_names_stays() {
    let Some(bench) = Bench::start() else { return };
    bench.apply(json!({"present": ["tool=1.0"]}));
    bench.verified();
    bench.apply_other("default/others", &["tool"]);
    bench.remove();
    assert_eq!(bench.version("tool"), version("1.0"), "the other unit names it");
    bench.roles.ok(&["unit", "retire", "default/others"]);
    bench.roles.ok(&["unit", "rm", "default/others"]);
    assert_eq!(bench.version("tool"), version("1.0"), "it was there before that unit");
}

#[test]
fn purged_package_leaves_no_configuration() {
    let Some(bench) = Bench::start() else { return };
    bench.repository.add(&Package {
        name: "conf",
        version: "1.0",
        config: Some("colour = green\n"),
        ..Package::default()
    });
    bench.apply(json!({"present": ["conf"]}));
    bench.verified();
    bench.apply(json!({"absent": ["conf"]}));
    bench.verified();
    assert_eq!(bench.version("conf"), None);
    assert_eq!(bench.root.read("etc/conf.conf").as_deref(), Some("colour = green\n"), "it was not to be purged");
    bench.apply(json!({"absent": ["conf"], "purge": true}));
    bench.verified();
    assert_eq!(bench.root.read("etc/conf.conf"), None);
}

#[test]
fn change_of_packages_is_followed_by_its_actions() {
    let Some(bench) = Bench::start() else { return };
    let told = bench.roles.home.path().join("told");
    let action = json!([{"do": {"run": ["/bin/sh", "-c", format!("echo again >> {}", told.display())]}}]);
    let lines = || std::fs::read_to_string(&told).unwrap_or_default().lines().count();
    let becomes = |wanted: usize| {
        eventually("an action", || match lines() {
            found if found == wanted => Ok(()),
            found => Err(format!("{found} of {wanted}\n{}", bench.tasks().join("\n"))),
        });
    };
    bench.apply(json!({"present": ["tool=1.0"], "on_change": action}));
    bench.verified();
    becomes(1);
    bench.apply(json!({"present": ["tool=2.0"], "on_change": action}));
    bench.verified();
    becomes(2);
    // A revision that changes no package owes nothing.
    bench.apply(json!({"present": ["tool"], "on_change": action}));
    bench.verified();
    bench.apply(json!({"present": ["tool=1.0"], "on_change": action, "allow": ["downgrade"]}));
    bench.verified();
    becomes(3);
}

#[test]
fn plan_lists_packages_and_changes_none() {
    let Some(bench) = Bench::start() else { return };
    bench.repository.add(&Package { name: "library", version: "1.0", ..Package::default() });
    bench.repository.add(&Package { name: "user", version: "1.0", fields: "Depends: library", ..Package::default() });
    bench.apply(json!({"present": ["tool=1.0"]}));
    bench.verified();
    let document = json!({
        "deployment": "default/shop",
        "target": {"select": "host=*"},
        "units": [{
            "name": "tools", "kind": "packages", "present": ["tool=2.0", "user"],
            "repositories": {"own": {"url": bench.repository.url(), "suite": "./", "key": bench.repository.key()}},
        }],
    });
    let path = file(&bench.roles.home, "shop.json", &document.to_string());
    let planned = bench.roles.json(&["plan", &path, "--adopt"]);
    let unit = &planned["deployments"][0]["groups"][0]["plan"]["units"][0];
    let listed = unit["packages"].to_string();
    for words in ["tool", "2.0", "user", "library"] {
        assert!(listed.contains(words), "{words}: {unit}");
    }
    assert_eq!(bench.root.packages(), [("tool".to_owned(), "1.0".to_owned())].into());
    // An apply does what was shown.
    bench.roles.ok(&["deployment", "apply", &path, "--yes", "--adopt"]);
    let wanted = [("library", "1.0"), ("tool", "2.0"), ("user", "1.0")];
    assert_eq!(bench.root.packages(), wanted.map(|(name, version)| (name.to_owned(), version.to_owned())).into());
}
