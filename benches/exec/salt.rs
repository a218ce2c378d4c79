//! A Salt master and its minions, on this machine.

use std::{
    fs,
    net::{Ipv4Addr, TcpListener},
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::{Duration, Instant},
};

use serde_json::{Deserializer, Value};

use crate::{
    Measured,
    common::{family::family, spread::Spread},
    content,
    fleet::{Home, Run, Running, eventually},
    median, pss_bytes,
};

/// The last release on PyPI of the branch with long-term support.
const VERSION: &str = "3006.9";
/// Its dependencies, which its package does not declare completely (`requirements/base.txt` and `zeromq.txt`).
const DEPENDENCIES: [&str; 13] = [
    "Jinja2",
    "PyYAML",
    "MarkupSafe",
    "cryptography<43",
    "distro",
    "jmespath",
    "looseversion",
    "msgpack<1.1",
    "packaging",
    "psutil",
    "pycryptodomex",
    "pyzmq",
    "requests",
];

/// Number of minions that start at the same time.
const BEGIN_AT_ONCE: usize = 4;

/// Installs Salt from PyPI, once; returns the folder of its programs.
fn install() -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/salt");
    let programs = folder.join("bin");
    if !programs.join("salt-minion").exists() {
        eprintln!("Salt {VERSION} is installed into {}", folder.display());
        let made = Command::new("python3").args(["-m", "venv"]).arg(&folder).status().expect("python3 is wanted");
        assert!(made.success(), "no virtual environment could be made");
        let wanted = format!("salt=={VERSION}");
        let mut pip = Command::new(programs.join("pip"));
        let installed = pip.args(["install", "--quiet", &wanted]).args(DEPENDENCIES).status().unwrap();
        assert!(installed.success(), "Salt could not be installed");
    }
    programs
}

/// A port that was free a moment ago.
fn free_port() -> u16 {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port()
}

pub(crate) fn measure(hosts: usize, rounds: usize) -> Measured {
    let programs = install();
    let home = Home::new();
    let (publish, answers) = (free_port(), free_port());
    let folder = |name: &str| {
        let folder = home.path().join(name);
        fs::create_dir_all(&folder).unwrap();
        folder
    };
    let central = folder("master");
    let text = format!(
        "interface: 127.0.0.1\npublish_port: {publish}\nret_port: {answers}\nroot_dir: {}\nauto_accept: true\nuser: root\n\
         file_roots: {{base: [{}]}}\n",
        central.display(),
        folder("states").display()
    );
    fs::write(central.join("master"), text).unwrap();
    let start = |program: &str, folder: &Path| {
        let mut command = Command::new(programs.join(program));
        home.dress(&mut command);
        Running::start(command.arg("-c").arg(folder).args(["-l", "error"]))
    };
    let master = start("salt-master", &central);
    let accepted = central.join("etc/salt/pki/master/minions");
    let minions: Vec<Running> = (0..hosts)
        .map(|n| {
            // Started all at once, their first handshakes time out, and many give up.
            eventually("earlier minions to be accepted", || match fs::read_dir(&accepted).map_or(0, Iterator::count) {
                came if came + BEGIN_AT_ONCE > n => Ok(()),
                came => Err(format!("{came} of {n}")),
            });
            let folder = folder(&format!("minion{n}"));
            let text = format!(
                "master: 127.0.0.1\nmaster_port: {answers}\npublish_port: {publish}\nid: minion{n}\nroot_dir: {}\nuser: root\n",
                folder.display()
            );
            fs::write(folder.join("minion"), text).unwrap();
            start("salt-minion", &folder)
        })
        .collect();
    let ask = |function: &[&str]| {
        let mut command = Command::new(programs.join("salt"));
        home.dress(&mut command);
        command.arg("-c").arg(&central).args(["--out", "json", "--static", "-t", "60", "*"]).args(function);
        let ran = Run::of(function, &mut command);
        let answered: Option<Value> = Deserializer::from_str(&ran.stdout).into_iter().next().and_then(Result::ok);
        let answers = answered.as_ref().and_then(Value::as_object);
        answers.map_or(0, |answers| answers.values().filter(|answer| **answer == true || **answer == "").count())
    };
    eprintln!("{hosts} minions begin");
    eventually("every minion to answer", || match ask(&["test.ping"]) {
        came if came == hosts => Ok(()),
        came => Err(format!("{came} answered")),
    });
    thread::sleep(Duration::from_secs(10));
    let all = |function: &[&str]| assert_eq!(ask(function), hosts, "answers to {function:?}");
    // With its path, because Salt reads arguments as YAML, where `true` is a boolean.
    let run = median(rounds, || all(&["cmd.run", "/bin/true"]));
    let ping = Some(median(rounds, || all(&["test.ping"])));
    let hosts_bytes = minions.iter().map(|minion| with_children(minion.pid().as_raw())).sum();
    let central_bytes = with_children(master.pid().as_raw());
    let states = folder("states");
    fs::write(states.join("till.sls"), STATE).unwrap();
    let mut number = 0;
    let mut apply = || {
        number += 1;
        fs::write(states.join("till.json"), content(number)).unwrap();
        let began = Instant::now();
        let applied = states_applied(&programs, &home, &central);
        let took = began.elapsed();
        assert_eq!(applied, hosts, "minions that have changed the file");
        for minion in 0..hosts {
            let there = fs::read_to_string(folder(&format!("minion{minion}")).join("till.json")).unwrap();
            assert_eq!(there, content(number), "the file of minion {minion}");
        }
        took
    };
    apply();
    let times = (0..rounds).map(|_| {
        // As beside it.
        thread::sleep(Duration::from_secs(6));
        apply()
    });
    let change = Spread::of(times).median();
    let measured = Measured { run, ping, change, hosts_bytes, central_bytes };
    minions.into_iter().chain([master]).for_each(|running| drop(running.stop()));
    measured
}

/// A file that each minion has in a folder of its own.
const STATE: &str =
    "till:\n  file.managed:\n    - name: {{ opts['root_dir'] }}/till.json\n    - source: salt://till.json\n";

/// Has all minions apply the state, and returns how many have changed the file.
fn states_applied(programs: &Path, home: &Home, central: &Path) -> usize {
    let function = ["state.apply", "till"];
    let mut command = Command::new(programs.join("salt"));
    home.dress(&mut command);
    command.arg("-c").arg(central).args(["--out", "json", "--static", "-t", "120", "*"]).args(function);
    let ran = Run::of(&function, &mut command);
    let answered: Option<Value> = Deserializer::from_str(&ran.stdout).into_iter().next().and_then(Result::ok);
    let has_changed = |answer: &Value| {
        let states = answer.as_object().map(|states| states.values().collect::<Vec<_>>()).unwrap_or_default();
        states.len() == 1 && states.iter().all(|state| state["result"] == true && state["changes"]["diff"].is_string())
    };
    let answers = answered.as_ref().and_then(Value::as_object);
    answers.map_or(0, |answers| answers.values().filter(|answer| has_changed(answer)).count())
}

/// Memory of a process and all its descendants.
fn with_children(pid: i32) -> u64 {
    family(pid).into_iter().map(pss_bytes).sum()
}
