//! Hosts behind links that fail: each in a network namespace of its own, with a cable to this machine that is pulled
//! out while commands are under way, or that is thin and loses what does not fit. Whatever happens: everything is done
//! once, and every outcome arrives.

use std::{
    collections::BTreeMap,
    fs,
    path::PathBuf,
    process::Command,
    sync::atomic::{AtomicU32, Ordering},
    thread,
    time::Duration,
};

use muster_test_support::slot::slot;
use nix::unistd::geteuid;
use serde_json::Value;

use crate::fleet::{Fleet, Home, Run, Running, eventually, muster};

static NETS: AtomicU32 = AtomicU32::new(0);

/// This machine's end of a small network: an address that no cable carries, and a namespace with a cable for each host.
struct Net {
    tag: String,
    /// Where everybody finds this machine.
    address: String,
    hosts: usize,
}

fn ip(args: &[&str]) {
    Run::of(args, Command::new("ip").args(args)).expect_code(0);
}

impl Net {
    fn new(hosts: usize) -> Self {
        assert!(geteuid().is_root(), "this test makes network namespaces, which takes root: run it as root");
        let (pid, count) = (std::process::id(), NETS.fetch_add(1, Ordering::Relaxed));
        // Addresses for benchmarks of networks (RFC 2544): nobody's. 32 for each of a process's nets, which may all be
        // there at once.
        assert!(count < 4, "this process has made as many nets as it has addresses for");
        let block = slot(1_024) * 128 + count * 32;
        let at =
            |n: u32| format!("198.{}.{}.{}", 18 + ((block + n) >> 16), ((block + n) >> 8) & 255, (block + n) & 255);
        let net = Self { tag: format!("mst{}x{count}", pid % 100_000), address: at(1), hosts };
        let hub = net.cable("h");
        ip(&["link", "add", &hub, "type", "veth", "peer", "name", &format!("{hub}p")]);
        ip(&["addr", "add", &format!("{}/32", net.address), "dev", &hub]);
        ip(&["link", "set", &hub, "up"]);
        ip(&["link", "set", &format!("{hub}p"), "up"]);
        for host in 0..hosts {
            let (name, cable) = (net.namespace(host), net.cable(&host.to_string()));
            let peer = format!("{cable}p");
            let [here, there] = [1, 2].map(|end| at(4 * (host as u32 + 1) + end));
            ip(&["netns", "add", &name]);
            ip(&["link", "add", &cable, "type", "veth", "peer", "name", &peer, "netns", &name]);
            ip(&["addr", "add", &format!("{here}/30"), "dev", &cable]);
            ip(&["link", "set", &cable, "up"]);
            ip(&["-n", &name, "addr", "add", &format!("{there}/30"), "dev", &peer]);
            ip(&["-n", &name, "link", "set", &peer, "up"]);
            ip(&["-n", &name, "link", "set", "lo", "up"]);
            ip(&["-n", &name, "route", "add", &net.address, "via", &here]);
        }
        net
    }

    fn cable(&self, end: &str) -> String {
        // A name has at most 15 bytes.
        format!("{}{end}", self.tag)
    }

    fn namespace(&self, host: usize) -> String {
        format!("muster-{}-{host}", self.tag)
    }

    /// Pulls the cable of a host out, or puts it in.
    fn plug(&self, host: usize, is_in: bool) {
        ip(&["link", "set", &self.cable(&host.to_string()), if is_in { "up" } else { "down" }]);
    }

    /// Makes the cable of a host a bad one, in both directions; how, in a word.
    fn spoil(&self, host: usize) -> &'static str {
        let (name, cable) = (self.namespace(host), self.cable(&host.to_string()));
        let peer = format!("{cable}p");
        let both = |what: &[&str]| {
            let here = Command::new("tc").args(["qdisc", "add", "dev", &cable, "root"]).args(what).output().unwrap();
            let there = Command::new("tc")
                .args(["-n", &name, "qdisc", "add", "dev", &peer, "root"])
                .args(what)
                .output()
                .unwrap();
            here.status.success() && there.status.success()
        };
        if both(&["netem", "delay", "100ms", "50ms", "loss", "5%", "duplicate", "2%", "reorder", "10%"]) {
            "netem"
        } else if both(&["tbf", "rate", "128kbit", "burst", "3000", "limit", "6000"]) {
            // Where the kernel has no netem: a thin one, which drops what is more than four packets behind.
            "a token bucket, for this kernel has no netem"
        } else {
            panic!("this kernel has neither netem nor tbf, so no link can be made a bad one")
        }
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        // With a namespace goes its end of the cable, and so the other one.
        for host in 0..self.hosts {
            let _ = Command::new("ip").args(["netns", "del", &self.namespace(host)]).status();
        }
        let _ = Command::new("ip").args(["link", "del", &self.cable("h")]).status();
    }
}

/// A host behind a cable.
struct Remote {
    // Ended before its home goes away.
    _agent: Running,
    home: Home,
    id: String,
}

/// The fleet: a `muster up` on this machine, and hosts elsewhere.
struct Site {
    remotes: Vec<Remote>,
    fleet: Fleet,
    net: Net,
}

impl Site {
    fn start(hosts: usize) -> Self {
        let net = Net::new(hosts);
        let fleet = Fleet::start_with(&["--no-sample", "--listen", &net.address]);
        let mut site = Self { remotes: Vec::new(), fleet, net };
        for host in 0..hosts {
            site.join(host);
        }
        site
    }

    fn join(&mut self, host: usize) {
        let token = self.fleet.json(&["token", "create"])["token"].as_str().unwrap().to_owned();
        let home = Home::new();
        let data = home.path().join("agent");
        // A link that is dead without a word is noticed soon.
        let text = format!("data_dir = \"{}\"\nheartbeat_ms = 2000\n", data.display());
        let config = crate::fleet::file(&home, "agent.toml", &text);
        let mut command = Command::new("ip");
        home.dress(&mut command);
        command.args(["netns", "exec", &self.net.namespace(host), muster(), "agent", "--config", &config]);
        command.args(["--join", &token]);
        let agent = Running::start(&mut command);
        let id = eventually("its id", || fs::read_to_string(data.join("host")).map_err(|error| error.to_string()));
        let id = id.trim().to_owned();
        self.wait_for(&id, "online");
        self.remotes.push(Remote { _agent: agent, home, id });
    }

    #[track_caller]
    fn wait_for(&self, id: &str, state: &str) {
        eventually(state, || {
            let hosts = self.fleet.json(&["host", "ls"]);
            let found = hosts.as_array().unwrap().iter().find(|host| host["id"] == id);
            if found.is_some_and(|host| host["presence"]["state"] == state) { Ok(()) } else { Err(hosts.to_string()) }
        });
    }

    /// Orders a program on all remote hosts that has an effect on each; gives its id.
    fn order(&self, name: &str) -> String {
        let mut args = vec!["exec", "--no-wait"];
        for remote in &self.remotes {
            args.extend(["--host", &remote.id]);
        }
        let line = format!("echo done; seq 200; {}", self.note(name));
        args.extend(["--shell", "--", &line]);
        self.fleet.ok(&args).trim().to_owned()
    }

    /// All write to one folder, each to a file that its namespace names.
    fn note(&self, name: &str) -> String {
        let folder = self.marks();
        fs::create_dir_all(&folder).unwrap();
        format!("echo {name} >> {}/{name}-$(readlink /proc/self/ns/net | tr -dc 0-9)", folder.display())
    }

    fn marks(&self) -> PathBuf {
        self.fleet.home.path().join("marks")
    }

    /// Waits until every host has done every command, and checks that each was done once on each.
    #[track_caller]
    fn all_done_once(&self, ids: &BTreeMap<String, String>) {
        for (id, name) in ids {
            eventually("every outcome", || {
                let shown = self.fleet.json(&["command", "show", id]);
                let hosts = shown["hosts"].as_array().unwrap();
                let is_good = |host: &Value| host["outcome"]["value"]["exit"]["code"] == 0;
                let done = hosts.iter().filter(|host| is_good(host)).count();
                if done == self.remotes.len() { Ok(()) } else { Err(format!("{name}: {shown}")) }
            });
        }
        let marks: Vec<_> = fs::read_dir(self.marks()).unwrap().map(|entry| entry.unwrap().path()).collect();
        assert_eq!(marks.len(), ids.len() * self.remotes.len(), "{marks:?}");
        for mark in marks {
            assert_eq!(fs::read_to_string(&mark).unwrap().lines().count(), 1, "{} was done again", mark.display());
        }
    }

    fn rounds() -> usize {
        if std::env::var_os("TESTS_LONG").is_some() { 20 } else { 3 }
    }
}

#[test]
fn pulled_cables_lose_and_repeat_nothing() {
    let site = Site::start(3);
    let mut ids = BTreeMap::new();
    for round in 0..Site::rounds() {
        let mut order = |what: &str| {
            let name = format!("{what}-{round}");
            ids.insert(site.order(&name), name);
        };
        let (short, long) = (round % 3, (round + 1) % 3);
        order("before");
        site.net.plug(long, false);
        order("one-away");
        // Out for a moment, while something is on its way.
        site.net.plug(short, false);
        order("two-away");
        thread::sleep(Duration::from_millis(300));
        site.net.plug(short, true);
        order("one-back");
        // Out for longer than a silent connection lives.
        site.wait_for(&site.remotes[long].id, "offline");
        site.net.plug(long, true);
        order("both-back");
    }
    for remote in &site.remotes {
        site.wait_for(&remote.id, "online");
    }
    site.all_done_once(&ids);
}

#[test]
fn lossy_link_loses_no_outcome() {
    let site = Site::start(2);
    let how = site.net.spoil(0);
    eprintln!("the link is a bad one by {how}");
    let mut ids = BTreeMap::new();
    for n in 0..4 * Site::rounds() {
        let name = format!("spoilt-{n}");
        ids.insert(site.order(&name), name);
    }
    // More than the link takes in a second.
    let id = &site.remotes[0].id;
    let much =
        site.fleet.ok(&["exec", "--host", id, "--expires", "5m", "--timeout", "60s", "--shell", "--", "seq 20000"]);
    assert_eq!(much, (1..=20_000).map(|n| format!("{n}\n")).collect::<String>());
    site.all_done_once(&ids);
}

#[test]
fn desired_state_reaches_hosts_behind_pulled_cables() {
    let site = Site::start(5);
    let script = "#!/bin/sh\necho $1 >> starts\nexec sleep 100000\n";
    let program = crate::fleet::file(&site.fleet.home, "shop", script);
    site.fleet.ok(&["artifact", "create", &program, "--role", "shop", "--version", "1"]);
    let apply = |version: usize| {
        let text = format!(
            "deployment: default/shop\ntarget: {{select: 'host=*'}}\nunits:\n- name: shop\n  artifact: shop@1\n  \
             args: ['{version}']\n"
        );
        let path = crate::fleet::file(&site.fleet.home, "shop.yaml", &text);
        site.fleet.ok(&["deployment", "apply", &path, "--yes", "--no-wait"]);
    };
    let last = 3 * Site::rounds();
    for version in 1..=last {
        let (away, flaky) = (version % 5, (version + 2) % 5);
        site.net.plug(away, false);
        apply(version);
        site.net.plug(flaky, false);
        thread::sleep(Duration::from_millis(300));
        site.net.plug(flaky, true);
        // It misses the next version, or comes back in the midst of it.
        if version % 2 == 0 {
            site.net.plug(away, true);
            site.net.plug((version + 4) % 5, true);
        }
    }
    (0..5).for_each(|host| site.net.plug(host, true));
    eventually("every host to have the last version", || {
        let shown = site.fleet.json(&["deployment", "show", "default/shop"]);
        let hosts = shown["on_hosts"].as_array().unwrap();
        // The sixth is this machine's own.
        let verified = hosts.iter().filter(|host| host["state"] == "verified" && host["version"] == last).count();
        if verified == 6 { Ok(()) } else { Err(shown["on_hosts"].to_string()) }
    });
    for remote in &site.remotes {
        let noted = remote.home.path().join("agent/units/default/shop/work/starts");
        let noted = fs::read_to_string(noted).unwrap();
        let starts: Vec<usize> = noted.lines().map(|line| line.parse().unwrap()).collect();
        assert!(starts.is_sorted_by(|one, next| one < next), "{} started {starts:?}", remote.id);
        assert_eq!(starts.last(), Some(&last));
    }
}
