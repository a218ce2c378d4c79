//! Targets of commands: lists, groups, all hosts, and select expressions. Three agents, each with a name,
//! an operating system and labels of its own.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    process::Command,
};

use serde_json::Value;

use crate::{
    fleet::{Run, Running, eventually, file},
    roles::Roles,
    wire::{below_slot, of_host},
};

/// A host by its name: its id, and its agent while that runs.
struct Host {
    id: String,
    agent: Option<Running>,
}

struct Bench {
    roles: Roles,
    hosts: BTreeMap<&'static str, Host>,
}

/// Its name, its operating system, and its labels.
const HOSTS: [(&str, &str, &str); 3] = [
    ("north-1", "Debian GNU/Linux 12 (bookworm)", "site = 'north'\nfloor = '10'"),
    ("north-2", "Alpine Linux v3.20", "site = 'north'\ncanary = ''\nfloor = '9'"),
    ("south-1", "Alpine Linux v3.19", "site = 'south'\ncanary = 'yes'"),
];

impl Bench {
    fn start() -> Self {
        let mut bench = Self { roles: Roles::start(), hosts: BTreeMap::new() };
        for (name, os, labels) in HOSTS {
            file(&bench.roles.home, &format!("{name}.os"), &format!("PRETTY_NAME=\"{os}\"\n"));
            bench.label(name, labels);
            let token = bench.roles.token();
            let agent = bench.agent(name, &["--join", &token]);
            let id = bench.state(name, "online");
            bench.hosts.insert(name, Host { id, agent: Some(agent) });
        }
        bench
    }

    fn path(&self, name: &str) -> String {
        self.roles.home.path().join(name).display().to_string()
    }

    /// Writes down the labels with which the next agent of a host starts.
    fn label(&self, name: &str, labels: &str) {
        let text = format!("data_dir = \"{}\"\n[labels]\n{labels}\n", self.path(name));
        fs::write(self.path(&format!("{name}.toml")), text).unwrap();
    }

    /// An agent on a machine that has another name and another system, as far as programs can tell.
    fn agent(&self, name: &str, more: &[&str]) -> Running {
        let machine = "hostname \"$0\" && mount --bind \"$0.os\" /etc/os-release && exec \"$@\"";
        let mut command = Command::new("unshare");
        self.roles.home.dress(&mut command);
        command.args(["--uts", "--mount", "sh", "-c", machine, name, crate::fleet::muster(), "agent", "--config"]);
        Running::start(command.arg(self.path(&format!("{name}.toml"))).args(more))
    }

    /// Waits until the console has heard that a host is so, with the labels that it has now; gives its id.
    fn state(&self, name: &str, state: &str) -> String {
        eventually(state, || {
            let hosts = self.roles.json(&["host", "ls"]);
            let host = hosts.as_array().unwrap().iter().find(|host| host["hostname"] == name);
            let host = host.filter(|host| host["presence"]["state"] == state && host["state"].is_object());
            host.and_then(|host| host["id"].as_str().map(str::to_owned)).ok_or(hosts.to_string())
        })
    }

    fn kill(&mut self, name: &str) {
        self.hosts.get_mut(name).unwrap().agent.take().unwrap().kill();
        self.state(name, "offline");
    }

    fn again(&mut self, name: &'static str) {
        let agent = self.agent(name, &[]);
        self.hosts.get_mut(name).unwrap().agent = Some(agent);
    }

    fn id(&self, name: &str) -> &str {
        &self.hosts[name].id
    }

    /// A line for a shell by which each host that runs it leaves its name.
    fn mark(&self, name: &str) -> String {
        format!("hostname >> {}", self.path(name))
    }

    /// Who has run it, how often.
    fn marked(&self, name: &str) -> Vec<String> {
        let text = fs::read_to_string(self.path(name)).unwrap_or_default();
        let mut names: Vec<String> = text.lines().map(str::to_owned).collect();
        names.sort();
        names
    }

    /// Runs something where it is asked for, which must succeed; gives who did it.
    #[track_caller]
    fn ran(&self, target: &[&str]) -> Vec<String> {
        let _ = fs::remove_file(self.path("ran"));
        let mark = self.mark("ran");
        self.roles.ok(&[&["exec", "--shell"], target, &["--", &mark]].concat());
        self.marked("ran")
    }

    /// Its id, of the command that was given last.
    fn last(&self) -> Value {
        self.roles.json(&["command", "ls"])[0].clone()
    }

    /// What became of a command on a host, once it is over there.
    fn outcome(&self, command: &str, name: &str) -> Value {
        eventually("an outcome", || {
            let shown = self.roles.json(&["command", "show", command]);
            let line = shown["hosts"].as_array().unwrap().iter().find(|line| line["hostname"] == name).cloned();
            match line.filter(|line| line["state"] == "done") {
                Some(line) => Ok(line["outcome"]["value"].clone()),
                None => Err(shown.to_string()),
            }
        })
    }

    fn stock(&self, program: &str, role: &str) -> Command {
        let folder = self.path(&format!("{role}-stock"));
        if !fs::exists(&folder).unwrap() {
            let console = self.path("console");
            let args = ["--role", role, "--name", "stock", "--out", &folder];
            self.roles.ok(&[&["console", "issue", "--data-dir", &console], &args[..]].concat());
        }
        let (host, port) = self.roles.mqtt.trim_start_matches("mqtts://").rsplit_once(':').unwrap();
        let mut command = Command::new(program);
        command.args(["-h", host, "-p", port, "-q", "1", "-i", &format!("{role}-stock")]);
        for (flag, file) in [("--cafile", "authority.pem"), ("--cert", "certificate.pem"), ("--key", "key.pem")] {
            command.arg(flag).arg(format!("{folder}/{file}"));
        }
        command
    }

    /// Somebody who reads everything on the bus, from now on.
    fn reader(&self) -> Running {
        let mut reader = Running::start(self.stock("mosquitto_sub", "observer").args(["-v", "-t", "muster/#"]));
        reader.wait_for("the subscription", |printed| printed.contains("/presence ").then_some(()));
        reader
    }

    fn publish(&self, topic: &str, payload: &str) {
        Run::of(&[topic], self.stock("mosquitto_pub", "console").args(["-t", topic, "-m", payload])).expect_code(0);
    }
}

/// The payloads that were read on a topic.
fn payloads(printed: &str, topic: &str) -> Vec<String> {
    let of_topic = |line: &str| Some(line.strip_prefix(topic)?.strip_prefix(' ')?.to_owned());
    printed.lines().filter_map(of_topic).collect()
}

#[test]
fn command_reaches_only_its_targets() {
    let bench = Bench::start();
    bench.roles.ok(&["realm", "create", "shop"]);
    let program = file(&bench.roles.home, "web", "#!/bin/sh\nexec sleep 1000\n");
    bench.roles.ok(&["artifact", "create", &program, "--role", "web", "--version", "1.4.2"]);
    bench.roles.ok(&["yuno", "create", "shop/till", "--artifact", "web", "--host", "north-2", "--run"]);
    bench.roles.ok(&["yuno", "create", "shop/till", "--artifact", "web", "--host", "south-1"]);

    let (n1, n2, s1) = ("north-1", "north-2", "south-1");
    let south = bench.id("south-1");
    for (target, wanted) in [
        (&["--host", n1][..], &[n1][..]),
        (&["--host", n1, "--host", south], &[n1, s1]),
        (&["--all"], &[n1, n2, s1]),
        (&["--select", "label.canary"], &[n2, s1]),
        (&["--select", "label.site=*"], &[n1, n2, s1]),
        (&["--select", "host=north-*"], &[n1, n2]),
        (&["--select", &format!("host={south} or host=north-1")], &[n1, s1]),
        (&["--select", "label.site=north and not label.canary"], &[n1]),
        (&["--select", "label.floor>=10"], &[n1]),
        (&["--select", "label.floor<10 or label.canary=yes"], &[n2, s1]),
        (&["--select", "fact.os=Alpine*"], &[n2, s1]),
        (&["--select", "fact.os!=\"Alpine Linux v3.19\" and fact.cpus>=1 and fact.memory_bytes>1M"], &[n1, n2]),
        (&["--select", "realm=default and unit=shop/till"], &[n2, s1]),
        (&["--select", "unit(role=web and phase=running)"], &[n2]),
        (&["--select", "unit.role=web and unit.phase!=running"], &[s1]),
        (&["--select", "unit(version>=1.5)  or unit(version<1.4) or not unit.role=web"], &[n1]),
        // What every host would read has no environment: these are named one by one.
        (&["--select", "label.canary", "--env", "A=b"], &[n2, s1]),
        (&["--select", "label.site=north", "--env", "A=b"], &[n1, n2]),
    ] {
        assert_eq!(bench.ran(target), wanted, "{target:?}");
    }
    let shown = bench.last();
    assert!(shown["target"].is_null(), "{shown}");
    bench.ran(&["--select", "label.canary"]);
    let shown = bench.last();
    assert_eq!((&shown["target"]["group"], shown["hosts"].as_array().unwrap().len()), (&"canary".into(), 2));
    let id = shown["id"].as_str().unwrap();
    assert!(bench.roles.ok(&["command", "show", id]).contains("hosts with the label canary"));

    // Output as it comes has names before it, and only of those that are meant.
    let run = bench.roles.home.muster(&["exec", "--select", "label.canary", "--", "echo", "here"]).expect_code(0);
    let lines: BTreeSet<&str> = run.stdout.lines().collect();
    assert_eq!(lines, ["north-2 | here", "south-1 | here"].into(), "{run:?}");
    run.expect_stderr("2 hosts: 2 ok");
    // Each kind of end is counted, and named.
    let script = "case $(hostname) in north-1) exit 3;; north-2) exec sleep 1000;; esac";
    let run = bench.roles.home.muster(&["exec", "--all", "--timeout", "1s", "--shell", "--", script]).expect_code(1);
    let run = run.expect_stderr("3 hosts: 1 ok, 1 failed, 1 timed out\n");
    run.expect_stderr("  failed: north-1\n").expect_stderr("  timed out: north-2\n");
}

#[test]
fn other_hosts_do_not_answer() {
    let bench = Bench::start();
    let mut reader = bench.reader();
    assert_eq!(bench.ran(&["--select", "label.site=north"]), ["north-1", "north-2"]);
    let select = bench.last()["id"].as_str().unwrap().to_owned();
    assert_eq!(bench.ran(&["--select", "label.canary"]), ["north-2", "south-1"]);
    let group = bench.last()["id"].as_str().unwrap().to_owned();
    // What came to them before this they are done with.
    assert_eq!(bench.ran(&["--host", "south-1", "--host", "north-1"]), ["north-1", "south-1"]);
    let last = bench.last()["id"].as_str().unwrap().to_owned();

    let said = |printed: &str, name: &str, id: &str| {
        let prefix = of_host(bench.id(name), "");
        printed
            .lines()
            .filter(|line| line.starts_with(&prefix) && line.contains("/outcome ") && line.contains(id))
            .count()
    };
    reader.wait_for("all that was said", |printed| {
        let all = said(printed, "north-1", &select) > 0
            && said(printed, "north-2", &select) > 0
            && said(printed, "north-2", &group) > 0
            && said(printed, "south-1", &group) > 0
            && said(printed, "north-1", &last) > 0
            && said(printed, "south-1", &last) > 0;
        all.then_some(())
    });
    let printed = reader.printed();
    assert_eq!((said(&printed, "south-1", &select), said(&printed, "north-1", &group)), (0, 0), "{printed}");
    // One message each in each slot, however many they were for, and none to a host alone.
    let signed = |topic: &str, id: &str| payloads(&printed, topic).iter().filter(|text| text.contains(id)).count();
    for name in ["north-1", "north-2", "south-1"] {
        let of_slot = |topic| below_slot(bench.id(name), topic);
        let both = (signed(&of_slot("cmd/all"), &select), signed(&of_slot("cmd/group/canary"), &group));
        assert_eq!(both, (1, 1), "{printed}");
        let topic = of_host(bench.id(name), "cmd");
        assert_eq!((signed(&topic, &select), signed(&topic, &group)), (0, 0), "{printed}");
    }
}

#[test]
fn silent_host_is_missing_and_returning_one_gets_same_bytes() {
    let mut bench = Bench::start();
    bench.kill("south-1");
    let targets = [&["--all"][..], &["--select", "label.site"], &["--select", "label.site=*"]];
    let started = targets.map(|target| {
        let args = [&["exec", "--wait-offline", "--expires", "2s"], target, &["--", "true"]].concat();
        Running::start(bench.roles.home.command().args(args))
    });
    for mut exec in started {
        exec.wait_for_end(1, "3 hosts: 2 ok, 1 missing\n  missing: south-1\n");
    }

    let mut reader = bench.reader();
    let mark = bench.mark("ran");
    let args = ["exec", "--select", "label.canary=*", "--no-wait", "--shell", "--", &mark];
    let id = bench.roles.ok(&args).trim().to_owned();
    assert_eq!(bench.outcome(&id, "north-2")["exit"]["code"], 0);
    assert_eq!(bench.marked("ran"), ["north-2"]);
    bench.again("south-1");
    assert_eq!(bench.outcome(&id, "south-1")["exit"]["code"], 0);
    assert_eq!(bench.marked("ran"), ["north-2", "south-1"]);
    let signed = |printed: &str, topic: &str| payloads(printed, topic).into_iter().find(|text| text.contains(&id));
    let own = of_host(bench.id("south-1"), "cmd");
    let sent = reader.wait_for("what was sent", |printed| signed(printed, &own));
    assert_eq!(signed(&reader.printed(), &below_slot(bench.id("south-1"), "cmd/all")), Some(sent));
}

#[test]
fn host_that_no_longer_matches_is_not_waited_for() {
    let mut bench = Bench::start();
    bench.kill("south-1");
    bench.label("south-1", "site = 'west'");
    let mark = bench.mark("ran");
    let start = |target: &[&str]| {
        let mut command = bench.roles.home.command();
        Running::start(command.args([&["exec", "--wait-offline", "--shell"], target, &["--", &mark]].concat()))
    };
    let mut both = start(&["--select", "label.site=south or host=north-1"]);
    let mut alone = start(&["--select", "label.site=south"]);
    let mut group = start(&["--select", "label.canary"]);
    eventually("three commands that wait for it", || {
        let commands = bench.roles.json(&["command", "ls", "--host", bench.id("south-1")]);
        if commands.as_array().unwrap().len() == 3 { Ok(()) } else { Err(commands.to_string()) }
    });
    bench.again("south-1");
    both.wait_for_end(0, "2 hosts: 1 ok, 1 no longer selected\n");
    alone.wait_for_end(3, "no host is selected any longer");
    group.wait_for_end(0, "  no longer selected: south-1\n");
    assert_eq!(bench.marked("ran"), ["north-1", "north-2"]);
    let hosts = bench.last()["hosts"].clone();
    assert!(!hosts.to_string().contains("missing"), "{hosts}");
    // From now on it is in other groups.
    assert_eq!(bench.ran(&["--select", "label.site=west"]), ["south-1"]);
    bench.roles.home.muster(&["exec", "--select", "label.site=south", "--", "true"]).expect_code(3);
    assert_eq!(bench.ran(&["--select", "label.canary"]), ["north-2"]);
}

#[test]
fn command_may_change_what_its_selector_matched() {
    let bench = Bench::start();
    let mut reader = bench.reader();
    let select = "host=north-1 and not unit(name=exec-*)";
    let unit = bench.roles.ok(&["exec", "--daemon", "--select", select, "--", "sleep", "1000"]).trim().to_owned();
    let id = bench.last()["id"].as_str().unwrap().to_owned();
    let again = ["exec", "--select", select, "--", "true"];
    eventually("a host that is not picked any more", || {
        let run = bench.roles.home.muster(&again);
        if run.code == 3 && run.stderr.contains("no host matches") { Ok(()) } else { Err(format!("{run:?}")) }
    });

    // The same bytes once more: it is answered as it was, and nothing is done twice.
    let mut signed = |name: &str| {
        let topic = below_slot(bench.id(name), "cmd/all");
        let of_command = |printed: &str| payloads(printed, &topic).into_iter().find(|text| text.contains(&id));
        reader.wait_for("the broadcast", of_command)
    };
    let (signed, foreign) = (signed("north-1"), signed("south-1"));
    bench.publish(&of_host(bench.id("north-1"), "cmd"), &signed);
    let outcomes = of_host(bench.id("north-1"), "outcome");
    let done = reader.wait_for("the same outcome again", |printed| {
        let about = payloads(printed, &outcomes).into_iter().filter(|text| text.contains(&id)).collect::<Vec<_>>();
        (about.len() >= 2).then_some(about)
    });
    assert!(done.iter().all(|text| text.contains("\"applied\"")), "{done:?}");
    let units = bench.roles.json(&["unit", "ls"]);
    assert_eq!(units.as_array().unwrap().len(), 1, "{units}");
    // To a host that never was meant it is a refusal, which it owes to whoever sends it there.
    bench.publish(&of_host(bench.id("south-1"), "cmd"), &foreign);
    let topic = of_host(bench.id("south-1"), "outcome");
    reader.wait_for("a refusal", |printed| {
        payloads(printed, &topic)
            .iter()
            .any(|text| text.contains(&id) && text.contains("\"not_selected\""))
            .then_some(())
    });
    bench.roles.ok(&["yuno", "stop", &unit]);
}

#[test]
fn invalid_expression_is_refused_and_nothing_published() {
    let roles = Roles::start();
    let _agent = roles.agent(&["--join", &roles.token()]);
    roles.wait_for_host("online");
    let run = |target: &[&str]| roles.home.muster(&[&["exec"], target, &["--", "true"]].concat());
    for (select, words) in [
        ("fact.cpus>many", "expected a number"),
        ("label.site=north adn host=a", "expected `and`, `or` or the end"),
        ("phase=failed", "`phase` is a field of units"),
        ("unit(fact.os=x)", "`fact.os` is a field of hosts"),
        ("fact.colour=red", "unknown fact \"colour\""),
        ("unit.phase=runing", "unknown phase \"runing\""),
        ("(host=a", "this parenthesis is not closed"),
        ("", "expected a field"),
    ] {
        run(&["--select", select]).expect_code(2).expect_stderr(words);
    }
    // Where it is: below the text.
    run(&["--select", "host=a or fact.cpus>many"]).expect_code(2).expect_stderr(&format!("\n  {:>21}\n", "^"));
    run(&["--select", "label.Site"]).expect_code(2).expect_stderr("Site");
    run(&["--select", "label.a", "--host", "a"]).expect_code(2);
    run(&["--select", "host=nobody"]).expect_code(3).expect_stderr("no host matches host=nobody");
    run(&["--select", "label.nobody"]).expect_code(3).expect_stderr("no host has the label nobody");
    run(&["--all", "--env", "A=b"]).expect_code(2).expect_stderr("carries no environment");
    assert_eq!(roles.json(&["command", "ls"]), Value::Array(vec![]));
}

#[test]
fn console_labels_decide_targets() {
    let mut bench = Bench::start();
    let mut reader = bench.reader();
    let label = |bench: &Bench, args: &[&str]| bench.roles.home.muster(&[&["host", "label"], args].concat());
    label(&bench, &["north-1", "canary=yes"]).expect_code(0).expect_stderr("north-1: canary=yes floor=10 site=north\n");
    assert_eq!(bench.ran(&["--select", "label.canary"]), ["north-1", "north-2", "south-1"]);
    // It heard the group's one message, and was not told alone.
    let group = bench.last()["id"].as_str().unwrap().to_owned();
    let signed =
        |printed: &str, topic: &str| payloads(printed, topic).iter().filter(|text| text.contains(&group)).count();
    let group_topic = below_slot(bench.id("north-1"), "cmd/group/canary");
    reader.wait_for("the group's message", |printed| (signed(printed, &group_topic) == 1).then_some(()));
    assert_eq!(signed(&reader.printed(), &of_host(bench.id("north-1"), "cmd")), 0, "{}", reader.printed());

    // One of its own file is changed only if that is said, and shows again afterwards.
    label(&bench, &["north-1", "site=south"]).expect_code(3).expect_stderr("north-1 has site=north");
    label(&bench, &["north-1", "site=south", "--replace"]).expect_code(0);
    assert_eq!(bench.ran(&["--select", "label.site=south"]), ["north-1", "south-1"]);
    let shown = bench.roles.json(&["host", "label", "north-1"]);
    let site = shown[0]["labels"].as_array().unwrap().iter().find(|label| label["name"] == "site").unwrap();
    assert_eq!(
        (&site["value"], &site["origin"], &site["hides"]),
        (&"south".into(), &"console".into(), &"north".into())
    );
    label(&bench, &["north-1", "site-"]).expect_code(0).expect_stderr("site=north");
    assert_eq!(bench.ran(&["--select", "label.site=north"]), ["north-1", "north-2"]);

    // Who is away hears of it before anything that is to be judged by it, also from a console that was started anew.
    bench.kill("south-1");
    label(&bench, &["south-1", "wave=1"]).expect_code(0).expect_stderr("it is away");
    let mark = bench.mark("ran");
    let id = bench.roles.ok(&["exec", "--select", "label.wave", "--no-wait", "--shell", "--", &mark]).trim().to_owned();
    bench.roles.restart_console();
    bench.again("south-1");
    assert_eq!(bench.outcome(&id, "south-1")["exit"]["code"], 0);
    // And who has heard of it knows it again, with nobody to tell it.
    bench.kill("north-1");
    bench.roles.stop_console();
    bench.again("north-1");
    let mut agent = bench.hosts.get_mut("north-1").unwrap().agent.take().unwrap();
    agent.wait_for("a connection", |printed| printed.contains("connected to the broker").then_some(()));
    bench.hosts.get_mut("north-1").unwrap().agent = Some(agent);
    bench.roles.start_console();
    bench.state("north-1", "online");
    bench.state("south-1", "online");
    assert_eq!(bench.ran(&["--select", "label.canary"]), ["north-1", "north-2", "south-1"]);

    let refused = label(&bench, &["--all", "canary-"]).expect_code(2);
    refused.expect_stderr("to change labels of all 3 hosts needs confirmation");
    let run = label(&bench, &["--all", "canary-", "--yes"]).expect_code(0);
    run.expect_stderr("north-2: canary= is of its agent's own configuration, and stays");
    assert_eq!(bench.ran(&["--select", "label.canary"]), ["north-2", "south-1"]);
    assert_eq!(bench.roles.home.muster(&["host", "label", "nobody", "a=b"]).code, 3);
}
