//! Brokers in processes of their own: this test program, started again with a role in its environment.
//!
//! Each test program has one test named `child`, which is none: it plays the role, if there is one. A child ends when the
//! process that started it closes its standard input, however that comes about.

use std::{
    collections::HashMap,
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpStream},
    process::{Child as Process, Command, Stdio},
    sync::{Arc, Mutex},
    thread,
    time::{Duration, Instant},
};

use muster_broker::{Broker, BrokerLimits, Tls};
use tempfile::TempDir;

use super::{
    PATIENCE,
    place::{Authority, Place, broker_config, free_address},
};

/// What a child is told to be.
const ROLE: &str = "MUSTER_TEST_ROLE";

/// A broker in a process of its own.
pub(crate) struct Child {
    process: Process,
    printed: Arc<Mutex<String>>,
}

impl Child {
    /// Starts this program again.
    pub(crate) fn start(role: &str) -> Self {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["child", "--exact", "--nocapture", "--test-threads=1"])
            .env(ROLE, role)
            // A panic there is an event that is waited for; it takes many seconds to find all names of a backtrace.
            .env("RUST_BACKTRACE", "0")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let printed = Arc::new(Mutex::new(String::new()));
        collect(process.stdout.take().unwrap(), Arc::clone(&printed));
        collect(process.stderr.take().unwrap(), Arc::clone(&printed));
        Self { process, printed }
    }

    pub(crate) fn printed(&self) -> String {
        self.printed.lock().unwrap().clone()
    }

    /// Whether a thread of it has panicked at a place in this file.
    pub(crate) fn panicked_in(&self, file: &str) -> bool {
        self.printed().lines().any(|line| line.contains("panicked at") && line.contains(file))
    }

    /// The rest of a line that it prints and that begins with `word`.
    pub(crate) fn wait_for(&mut self, word: &str) -> String {
        let started = Instant::now();
        loop {
            let printed = self.printed();
            // The test program itself may have begun the line.
            if let Some((_, rest)) = printed.split_once(word)
                && let Some((line, _)) = rest.split_once('\n')
            {
                return line.trim().to_owned();
            }
            let ended = self.process.try_wait().unwrap();
            assert!(ended.is_none() && started.elapsed() < PATIENCE, "no {word:?} ({ended:?}) in: {printed}");
            thread::sleep(Duration::from_millis(10));
        }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Says something to it.
    pub(crate) fn say(&mut self, line: &str) {
        writeln!(self.process.stdin.as_mut().unwrap(), "{line}").unwrap();
    }

    /// Ends it at once.
    pub(crate) fn kill(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.kill();
        if thread::panicking() {
            let printed = self.printed();
            let start = printed.len().saturating_sub(4_000);
            println!("--- printed by the child: {}", printed.get(start..).unwrap_or(&printed));
        }
    }
}

fn collect(from: impl Read + Send + 'static, into: Arc<Mutex<String>>) {
    thread::spawn(move || {
        for line in BufReader::new(from).lines() {
            let Ok(line) = line else { return };
            let mut into = into.lock().unwrap();
            into.push_str(&line);
            into.push('\n');
        }
    });
}

/// What a child can be: a name, and what it does with the settings behind that.
pub(crate) type Role = (&'static str, fn(&str));

/// Plays a role, if this process was started for one.
pub(crate) fn play(roles: &[Role]) {
    let Ok(asked) = std::env::var(ROLE) else { return };
    let (name, settings) = asked.split_once(' ').unwrap_or((&asked, ""));
    let (_, role) = roles.iter().find(|(known, _)| *known == name).expect("a known role");
    role(settings);
}

/// Ends this process when the one that started it is gone; hands over each line that it says.
pub(crate) fn until_alone(mut hear: impl FnMut(&str)) {
    for line in std::io::stdin().lines() {
        match line {
            Ok(line) => hear(&line),
            Err(_) => break,
        }
    }
    std::process::exit(0);
}

/// rumqttd's own listener, as it is released.
pub(crate) struct Rumqttd {
    pub(crate) child: Child,
    pub(crate) place: Place,
}

/// What differs from rumqttd's own example configuration.
#[derive(Clone, Copy)]
pub(crate) struct Settings {
    pub(crate) max_connections: usize,
    pub(crate) segment_bytes: usize,
    pub(crate) segments: usize,
}

impl Default for Settings {
    /// Those of `rumqttd.toml` in its repository.
    fn default() -> Self {
        Self { max_connections: 10_010, segment_bytes: 104_857_600, segments: 10 }
    }
}

impl Rumqttd {
    pub(crate) fn start(settings: Settings) -> Self {
        let (v4, v5) = (free_address(), free_address());
        let Settings { max_connections, segment_bytes, segments } = settings;
        let role = format!("rumqttd {v4} {v5} {max_connections} {segment_bytes} {segments}");
        let child = Child::start(&role);
        let started = Instant::now();
        while [v4, v5].iter().any(|address| TcpStream::connect(address).is_err()) {
            assert!(started.elapsed() < PATIENCE, "rumqttd does not listen: {}", child.printed());
            thread::sleep(Duration::from_millis(10));
        }
        Self { child, place: Place { v4, v5, authority: None } }
    }

    /// What the child does.
    pub(crate) fn run(settings: &str) {
        let words: Vec<&str> = settings.split_whitespace().collect();
        let [v4, v5, max_connections, segment_bytes, segments] = words[..] else { panic!("{settings}") };
        let router = rumqttd::RouterConfig {
            max_connections: max_connections.parse().unwrap(),
            max_outgoing_packet_count: 200,
            max_segment_size: segment_bytes.parse().unwrap(),
            max_segment_count: segments.parse().unwrap(),
            ..Default::default()
        };
        let config = rumqttd::Config {
            id: 0,
            router,
            v4: Some(HashMap::from([server("v4", v4)])),
            v5: Some(HashMap::from([server("v5", v5)])),
            ..Default::default()
        };
        thread::spawn(|| until_alone(|_| {}));
        // It blocks for as long as one of its listeners lives.
        let ended = rumqttd::Broker::new(config).start();
        println!("start ended: {ended:?}");
        thread::sleep(PATIENCE);
    }
}

fn server(name: &str, listen: &str) -> (String, rumqttd::ServerSettings) {
    let listen: SocketAddr = listen.parse().unwrap();
    let connections = rumqttd::ConnectionSettings {
        connection_timeout_ms: 60_000,
        // Its example says 20480; larger ones only serve to make some tests faster.
        max_payload_size: 262_144,
        max_inflight_count: 100,
        auth: None,
        external_auth: None,
        dynamic_filters: true,
    };
    let settings =
        rumqttd::ServerSettings { name: name.to_owned(), listen, tls: None, next_connection_delay_ms: 1, connections };
    (name.to_owned(), settings)
}

/// The embedded broker in a process of its own, with a store, and with as many threads as it has in earnest.
pub(crate) struct OursApart {
    pub(crate) child: Child,
    pub(crate) place: Place,
    folder: TempDir,
}

impl OursApart {
    pub(crate) fn start(limits: &BrokerLimits) -> Self {
        let folder = tempfile::Builder::new().prefix("muster-").tempdir().unwrap();
        let authority = Arc::new(Authority::new());
        let own = authority.issue("broker");
        let limits = toml::to_string(limits).unwrap();
        let files = [
            ("authority.pem", &authority.certificate),
            ("certificate.pem", &own.certificate),
            ("key.pem", &own.key),
            ("limits.toml", &limits),
        ];
        for (name, text) in files {
            std::fs::write(folder.path().join(name), text).unwrap();
        }
        let (child, address) = Self::spawn(&folder);
        let place = Place { v4: address, v5: address, authority: Some(authority) };
        Self { child, place, folder }
    }

    /// Whether its store holds these words. What is retained gets there within a second, not before it is acknowledged.
    pub(crate) fn has_stored(&self, words: &str) -> bool {
        let files = std::fs::read_dir(self.folder.path().join("store")).unwrap();
        files
            .filter_map(|file| std::fs::read(file.unwrap().path()).ok())
            .any(|bytes| bytes.windows(words.len()).any(|window| window == words.as_bytes()))
    }

    /// Kills it, and starts it again from what it has stored.
    pub(crate) fn again(mut self) -> Self {
        self.child.kill();
        let (child, address) = Self::spawn(&self.folder);
        let place = Place { v4: address, v5: address, authority: self.place.authority.clone() };
        Self { child, place, folder: self.folder }
    }

    fn spawn(folder: &TempDir) -> (Child, SocketAddr) {
        let mut child = Child::start(&format!("muster {}", folder.path().display()));
        let address = child.wait_for("listening on").parse().unwrap();
        (child, address)
    }

    /// One of its counters: a field of its `Stats`.
    pub(crate) fn stat(&mut self, name: &str) -> u64 {
        let before = self.child.printed().len();
        self.child.say("stats");
        let started = Instant::now();
        loop {
            let printed = self.child.printed();
            if let Some((_, rest)) = printed[before..].split_once(&format!(" {name}: ")) {
                let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
                return digits.parse().unwrap();
            }
            assert!(started.elapsed() < PATIENCE, "no {name} in: {printed}");
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// What the child does.
    pub(crate) fn run(folder: &str) {
        let folder = std::path::Path::new(folder);
        let read = |name: &str| std::fs::read_to_string(folder.join(name)).unwrap();
        let tls = Tls { authority: read("authority.pem"), certificate: read("certificate.pem"), key: read("key.pem") };
        let limits = toml::from_str(&read("limits.toml")).unwrap();
        let config = broker_config(tls, limits, Some(folder.join("store")));
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        let broker = runtime.block_on(Broker::start(config)).unwrap();
        println!("listening on {}", broker.local_addr());
        until_alone(|_| println!("{:?}", broker.stats()));
    }
}

/// The memory of a process that is in use, in bytes.
pub(crate) fn rss_bytes(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}
