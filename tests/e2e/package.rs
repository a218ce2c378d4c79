//! What is shipped: the Debian package, on a machine of its own; the static program, where there is nothing else; and the
//! container image. `tests/package` builds them, and runs this.

use std::{
    fs,
    net::TcpListener,
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::Value;

use crate::{
    containers::stage::Podman,
    fleet::{Home, Run, eventually, file, machine::Machine},
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
    roles.ok(&["artifact", "create", &path, "--role", "server", "--version", "1"]);
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

/// A free port on loopback, of this range.
fn free_port(mut range: impl Iterator<Item = u16>) -> u16 {
    let port = range.find_map(|port| TcpListener::bind(("127.0.0.1", port)).ok()?.local_addr().ok());
    port.expect("a free port").port()
}

/// A machine with the package of the whole program, whose broker and console have ports of their own.
fn machine_with_whole_package(home: &Home) -> Machine {
    let packages = PathBuf::from(std::env::var_os("MUSTER_TEST_PACKAGES").expect("tests/package runs this"));
    let machine = Machine::boot(home).expect("a package is tried on a machine of its own");
    for name in ["muster", "0.1.0-2"] {
        fs::copy(packages.join(format!("{name}.deb")), machine.path(&format!("/root/{name}.deb"))).unwrap();
    }
    machine.run(&["rm", "-f", "/usr/sbin/policy-rc.d"]);
    let told = machine.ok(&["dpkg", "--install", "/root/muster.deb"]);
    assert!(told.contains("production.md"), "{told}");
    let any = || free_port(std::iter::once(0));
    let (mqtt, hosts, web) = (format!(":{}", any()), format!(":{}", any()), format!(":{}", any()));
    for role in ["broker", "console"] {
        let path = machine.path(&format!("/etc/muster/{role}.toml"));
        let text = fs::read_to_string(&path).unwrap().replace("0.0.0.0", "127.0.0.1");
        fs::write(&path, text.replace(":8883", &mqtt).replace(":7443", &hosts).replace(":7080", &web)).unwrap();
    }
    machine
}

#[test]
#[ignore = "tests/package gives it packages"]
fn package_runs_broker_and_console_as_services() {
    const ROLES: [&str; 2] = ["muster-broker", "muster-console"];
    let home = Home::new();
    let machine = machine_with_whole_package(&home);
    let state = |service| (machine.property(service, "ActiveState"), machine.property(service, "UnitFileState"));
    let expect_state = |active: &str, enabled: &str| {
        for role in ROLES {
            assert_eq!(state(role), (active.to_owned(), enabled.to_owned()), "{role}");
        }
    };
    let parts = || {
        let report = machine.run(&["muster", "-o", "json", "doctor"]).stdout;
        let report: Value = serde_json::from_str(&report).unwrap();
        let findings = report["findings"].as_array().unwrap().clone();
        ["broker", "console"].map(|part| findings.iter().any(|one| one["part"] == part))
    };

    // Nothing begins by itself, and what nobody has begun to use is no fault.
    expect_state("inactive", "disabled");
    assert_eq!(parts(), [false, false]);
    for service in ["agent", "broker", "console"] {
        let unit = format!("/usr/lib/systemd/system/muster-{service}.service");
        let verified = machine.run(&["systemd-analyze", "verify", &unit]);
        assert!(verified.code == 0 && !verified.stderr.contains("muster-"), "{verified:?}");
    }

    // As production.md says, with a port for which only root needs no right.
    let low = free_port(600..1_024);
    let broker = machine.path("/etc/muster/broker.toml");
    let text = fs::read_to_string(&broker).unwrap();
    fs::write(&broker, format!("{text}websocket_listen = \"127.0.0.1:{low}\"\n")).unwrap();
    let as_muster = |args: &[&str]| machine.ok(&[&["runuser", "-u", "muster", "--", "muster"], args].concat());
    as_muster(&["console", "init"]);
    let issue = ["console", "issue", "--role", "broker", "--name", "broker", "--san", "127.0.0.1"];
    as_muster(&[&issue[..], &["--out", "/etc/muster/broker"]].concat());
    // Each is up once its service is: both notify.
    machine.ok(&[&["systemctl", "enable", "--now"], &ROLES[..]].concat());
    expect_state("active", "enabled");
    assert_eq!(parts(), [true, true]);
    assert!(machine.property(ROLES[1], "StatusText").contains("http://127.0.0.1"));
    assert_eq!(machine.ok(&["stat", "-c", "%U %a", "/var/lib/muster/console"]), "muster 700\n");
    TcpListener::bind(("127.0.0.1", low)).expect_err("the broker listens there");
    // What the broker sees of the console: the list of what is revoked, and no key.
    let broker = machine.property(ROLES[0], "MainPID");
    let as_broker = ["nsenter", "--mount", "--root", "--target", &broker, "runuser", "-u", "muster", "--"];
    let console = "/var/lib/muster/console";
    machine.ok(&[&as_broker[..], &["cat", &format!("{console}/revoked.pem")]].concat());
    machine
        .run(&[&as_broker[..], &["ls", &format!("{console}/authority")]].concat())
        .expect_stderr("Permission denied");

    let link = as_muster(&["login", "--new-link"]);
    let muster = |args: &[&str]| machine.ok(&[&["env", "HOME=/root", "muster"], args].concat());
    muster(&["login", link.trim()]);
    let token = muster(&["token", "create"]);
    let config = machine.path("/etc/muster/agent.toml");
    let text = fs::read_to_string(&config).unwrap();
    fs::write(&config, format!("join = \"{}\"\n{text}", token.trim())).unwrap();
    machine.ok(&["systemctl", "start", "muster-agent"]);
    let wait_until_connected = |wanted: bool| {
        eventually("the agent's connection", || {
            let status = machine.service("StatusText");
            if status.starts_with("connected") == wanted { Ok(()) } else { Err(status) }
        });
    };
    wait_until_connected(true);
    muster(&["exec", "--all", "--", "true"]);

    machine.ok(&[&["systemctl", "reload"], &ROLES[..]].concat());
    expect_state("active", "enabled");
    // An upgrade restarts what runs.
    let pids = || ROLES.map(|role| machine.property(role, "MainPID"));
    let before = pids();
    machine.ok(&["dpkg", "--install", "--force-confold", "/root/muster.deb"]);
    expect_state("active", "enabled");
    let now = pids();
    assert!(before[0] != now[0] && before[1] != now[1], "{before:?} {now:?}");
    wait_until_connected(true);
    let hosts: Value = serde_json::from_str(&muster(&["-o", "json", "host", "ls"])).unwrap();
    muster(&["host", "revoke", hosts[0]["id"].as_str().unwrap(), "--yes"]);
    wait_until_connected(false);

    // The agent's package takes its place: what both have stays when the other is purged.
    machine.ok(&["dpkg", "--install", "--force-confold", "/root/0.1.0-2.deb"]);
    assert_eq!(machine.property(ROLES[1], "ActiveState"), "inactive");
    machine.ok(&["dpkg", "--purge", "muster"]);
    assert!(config.exists() && machine.path("/var/lib/muster/agent/identity.json").exists());
    let told = machine.ok(&["dpkg", "--purge", "muster-agent"]);
    assert!(told.contains("nothing replaces a fleet's authority"), "{told}");
    let left = machine.ok(&["ls", "/var/lib/muster"]);
    assert_eq!(left, "console\n");
    assert!(!machine.path("/etc/muster").exists());
}

/// The static program that `tests/package` has built.
fn static_program() -> PathBuf {
    PathBuf::from(std::env::var_os("MUSTER_TEST_STATIC").expect("tests/package runs this"))
}

/// A server of names, which knows one of them.
const NAMES: &str = r#"
import socket
server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
server.bind(("127.0.0.1", 53))
while True:
    query, peer = server.recvfrom(512)
    end = query.index(b"\0", 12) + 5
    is_known = query[12:end - 4] == b"\7console\5fleet\4test\0"
    is_address = query[end - 4:end - 2] == b"\0\1"
    answer = b"\xc0\x0c\0\1\0\1\0\0\0\x3c\0\4\x7f\0\0\1" if is_known and is_address else b""
    flags = b"\x81\x80" if is_known else b"\x81\x83"
    count = b"\0\1" if answer else b"\0\0"
    server.sendto(query[:2] + flags + b"\0\1" + count + b"\0\0\0\0" + query[12:end] + answer, peer)
"#;

#[test]
#[ignore = "tests/package gives it a static program"]
fn static_program_needs_nothing_and_resolves_names() {
    let home = Home::new();
    let data = home.path().join("console");
    home.muster(&["console", "init", "--data-dir", data.to_str().unwrap()]).expect_code(0);
    let root = home.path().join("root");
    fs::create_dir_all(root.join("etc")).unwrap();
    fs::copy(static_program(), root.join("muster")).unwrap();
    fs::copy(data.join("authority/authority.pem"), root.join("authority.pem")).unwrap();
    fs::write(root.join("etc/resolv.conf"), "nameserver 127.0.0.1\n").unwrap();
    fs::write(root.join("etc/hosts"), "127.0.0.1 here.fleet.test\n").unwrap();
    file(&home, "names.py", NAMES);
    // A network of its own, in which port 53 is free and nothing listens on port 9.
    let script = "ip link set lo up && python3 names.py & until ss -lun | grep -q :53; do sleep 0.05; done; \
                  chroot root /muster login \"https://$0:9/sign-in?code=x\" --authority /authority.pem; \
                  code=$?; kill $!; exit $code";
    let login = |name: &str| {
        let mut command = Command::new("unshare");
        home.dress(&mut command);
        Run::of(&[name], command.args(["--net", "sh", "-c", script, name])).expect_code(4)
    };
    for known in ["console.fleet.test", "here.fleet.test"] {
        login(known).expect_stderr("onnection refused");
    }
    let unknown = login("nowhere.fleet.test");
    assert!(!unknown.stderr.contains("onnection refused"), "{unknown:?}");
}

/// Builds the image of the static program in a Podman's own storage.
#[track_caller]
fn build_image(podman: &Podman, tag: &str) {
    let base = podman.command();
    let words: Vec<&str> =
        std::iter::once(base.get_program()).chain(base.get_args()).map(|word| word.to_str().unwrap()).collect();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("packaging/image");
    let mut command = Command::new(script);
    command.env_clear().env("PODMAN", words.join(" "));
    for (name, value) in base.get_envs() {
        command.env(name, value.unwrap_or_default());
    }
    let program = static_program();
    Run::of(&["packaging/image"], command.arg(program).arg(tag)).expect_code(0);
}

#[test]
#[ignore = "tests/package gives it a static program"]
fn image_runs_up_and_an_agent_and_reaps() {
    let podman = Podman::start();
    build_image(&podman, "localhost/muster:test");
    let run = |name: &str, args: &[&str]| {
        let options = ["run", "--detach", "--name", name, "--network", "host", "localhost/muster:test"];
        podman.run(&[&options[..], args].concat())
    };
    let up = ["up", "--listen", "127.0.0.1", "--no-sample", "--web-port", "0", "--mqtt-port", "0", "--hosts-port", "0"];
    run("up", &up);
    eventually("a muster up", || {
        let said = podman.run(&["logs", "up"]);
        if said.contains("Ctrl-C") { Ok(()) } else { Err(said) }
    });
    let muster = |args: &[&str]| podman.run(&[&["exec", "up", "muster", "-o", "json"], args].concat());
    let json = |args: &[&str]| serde_json::from_str::<Value>(&muster(args)).unwrap();
    let token = json(&["token", "create"])["token"].as_str().unwrap().to_owned();
    run("agent", &["agent", "--join", &token]);
    eventually("two hosts", || {
        let hosts = json(&["host", "ls"]);
        let online = hosts.as_array().unwrap().iter().filter(|host| host["presence"]["state"] == "online").count();
        if online == 2 { Ok(()) } else { Err(hosts.to_string()) }
    });

    // Programs that leave others behind, which are the first process's then: of a command, and of somebody who looks in.
    let leaves = "(sleep 0.1 >/dev/null 2>&1 & echo $!)";
    let commanded = muster(&["exec", "--all", "--", "sh", "-c", leaves]);
    let outputs = commanded.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let texts: Vec<String> = outputs.filter_map(|event| event["data"]["text"].as_str().map(str::to_owned)).collect();
    assert_eq!(texts.len(), 2, "{commanded}");
    for name in ["up", "agent"] {
        let seen = podman.run(&["exec", name, "sh", "-c", leaves]);
        // Each has process ids of its own, and a dead one that nobody reaped keeps its name.
        let state = |pid: &str| {
            format!("[ \"$(cat /proc/{pid}/comm 2>/dev/null)\" != sleep ] || grep State /proc/{pid}/status")
        };
        for pid in texts.iter().map(|text| text.trim()).chain([seen.as_str()]) {
            eventually("the end of what was left, with nothing that remains of it", || {
                match podman.run(&["exec", name, "sh", "-c", &state(pid)]) {
                    gone if gone.is_empty() => Ok(()),
                    state => Err(format!("{name} {pid}: {state}")),
                }
            });
        }
    }
    for name in ["agent", "up"] {
        podman.run(&["stop", "--time", "30", name]);
        assert_eq!(podman.inspect(name)["State"]["ExitCode"], 0, "{}", podman.run(&["logs", name]));
    }
}
