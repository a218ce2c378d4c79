//! The three roles as separate processes, and a second host behind a network of its own.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use muster_test_support::slot::slot;
use muster_topics::{join::JoinToken, name::Digest};
use serde_json::Value;

use crate::{
    clock::Clock,
    fleet::{Fleet, Home, Run, Running, eventually},
};

/// Broker and console, each from a file of its own.
pub(crate) struct Roles {
    broker: Option<Running>,
    console: Option<Running>,
    pub(crate) mqtt: String,
    /// Where hosts reach the console; 0 is another port at each start.
    pub(crate) hosts_port: u16,
    /// What the console's configuration has beside the usual.
    more: String,
    /// The console's clock, if it can be set.
    clock: Option<Clock>,
    /// Where the console is killed: see `muster_base::crash`.
    pub(crate) crash: Option<String>,
    /// The folder of the console's credentials.
    pub(crate) credentials: Option<PathBuf>,
    pub(crate) home: Home,
}

fn write(home: &Home, name: &str, text: &str) -> String {
    let path = home.path().join(name);
    fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

impl Roles {
    pub(crate) fn start() -> Self {
        Self::start_in(Home::new(), String::new())
    }

    /// The same, with a console whose clock can be set.
    pub(crate) fn start_with_clock() -> Self {
        let home = Home::new();
        let clock = Clock::new(home.path(), "console");
        Self::start_with(home, String::new(), Some(clock))
    }

    /// The same, with more lines in the console's configuration.
    pub(crate) fn start_in(home: Home, more: String) -> Self {
        Self::start_with(home, more, None)
    }

    fn start_with(home: Home, more: String, clock: Option<Clock>) -> Self {
        let mut roles = Self {
            broker: None,
            console: None,
            mqtt: String::new(),
            hosts_port: 0,
            more,
            clock,
            crash: None,
            credentials: None,
            home,
        };
        let data = roles.home.path().join("console");
        roles.home.muster(&["console", "init", "--data-dir", data.to_str().unwrap()]).expect_code(0);
        roles.issue_broker();
        roles.start_broker("127.0.0.1:0");
        roles.start_console();
        roles
    }

    /// Makes the broker's files.
    pub(crate) fn issue_broker(&self) {
        let (data, out) = (self.home.path().join("console"), self.home.path().join("broker"));
        let (data, out) = (data.to_str().unwrap(), out.to_str().unwrap());
        let whose = ["--role", "broker", "--name", "broker", "--san", "127.0.0.1"];
        self.ok(&[&["console", "issue", "--data-dir", data, "--out", out], &whose[..]].concat());
    }

    /// Has the broker read its files again.
    pub(crate) fn reload_broker(&self) {
        nix::sys::signal::kill(self.broker.as_ref().unwrap().pid(), nix::sys::signal::Signal::SIGHUP).unwrap();
    }

    fn start_broker(&mut self, listen: &str) {
        let folder = self.home.path().join("broker");
        let file = |name: &str| folder.join(name).display().to_string();
        let text = format!(
            "listen = \"{listen}\"\ncertificate_file = \"{}\"\nkey_file = \"{}\"\nauthority_file = \"{}\"\ndata_dir = \"{}\"\nrevoked_file = \"{}\"\n",
            file("certificate.pem"),
            file("key.pem"),
            file("authority.pem"),
            file("data"),
            self.home.path().join("console/revoked.pem").display(),
        );
        let path = write(&self.home, "broker.toml", &text);
        let mut broker = Running::start(self.home.command().args(["broker", "--config", &path]));
        self.mqtt = broker.wait_for("the broker's address", |printed| word(printed, "mqtts://"));
        self.broker = Some(broker);
    }

    /// Kills the broker, and starts another one in its place, which knows nothing.
    pub(crate) fn restart_broker(&mut self) {
        let port = self.mqtt.rsplit_once(':').unwrap().1.to_owned();
        self.broker.take().unwrap().kill();
        fs::remove_dir_all(self.home.path().join("broker/data")).unwrap();
        self.start_broker(&format!("127.0.0.1:{port}"));
    }

    /// Starts a broker in the place of one that was taken away.
    pub(crate) fn revive_broker(&mut self) {
        let port = self.mqtt.rsplit_once(':').unwrap().1.to_owned();
        self.start_broker(&format!("127.0.0.1:{port}"));
    }

    pub(crate) fn start_console(&mut self) {
        let data = self.home.path().join("console");
        let text = format!(
            "data_dir = \"{}\"\nbroker_url = \"{}\"\nweb_listen = \"127.0.0.1:0\"\nhosts_listen = \"127.0.0.1:{}\"\n{}",
            data.display(),
            self.mqtt,
            self.hosts_port,
            self.more,
        );
        let path = write(&self.home, "console.toml", &text);
        let mut console = self.run_console(Path::new(&path));
        console.wait_for("a console", |printed| printed.contains("login --new-link").then_some(()));
        assert!(!console.printed().contains("code="), "a log is no place for a secret");
        let link =
            self.home.muster(&["login", "--new-link", "--data-dir", data.to_str().unwrap()]).expect_code(0).stdout;
        self.home.muster(&["login", link.trim()]).expect_code(0);
        self.console = Some(console);
    }

    fn run_console(&self, config: &Path) -> Running {
        let mut command = match &self.clock {
            Some(clock) => {
                let mut command = self.home.command_with_clock();
                clock.give_to(&mut command);
                command
            }
            None => self.home.command(),
        };
        if let Some(point) = &self.crash {
            command.env("MUSTER_TEST_CRASH", point);
        }
        if let Some(credentials) = &self.credentials {
            command.env("CREDENTIALS_DIRECTORY", credentials);
        }
        Running::start(command.args(["console", "--config"]).arg(config))
    }

    /// Sets the console's clock: see [`Clock::set`].
    pub(crate) fn set_clock(&self, to: &str) {
        self.clock.as_ref().unwrap().set(to);
    }

    /// Kills the console.
    pub(crate) fn kill_console(&mut self) {
        self.console.take().into_iter().for_each(Running::kill);
    }

    /// Ends the broker in order.
    pub(crate) fn stop_broker(&mut self) {
        let (code, printed) = self.broker.take().unwrap().stop();
        assert_eq!(code, 0, "{printed}");
    }

    /// Whether the console has ended by itself, or was killed at a crash point.
    pub(crate) fn console_has_ended(&mut self) -> bool {
        self.console.as_mut().is_some_and(Running::ended)
    }

    /// Starts a console that may refuse; what it said, if it did.
    pub(crate) fn try_console(&mut self) -> Result<(), String> {
        let mut console = self.run_console(&self.home.path().join("console.toml"));
        let began = started(&mut console, "login --new-link");
        if began.is_ok() {
            let data = self.home.path().join("console");
            let link = self.home.muster(&["login", "--new-link", "--data-dir", data.to_str().unwrap()]);
            self.home.muster(&["login", link.expect_code(0).stdout.trim()]).expect_code(0);
            self.console = Some(console);
        }
        began
    }

    /// Starts a broker in the place of one that was taken away, which may refuse; what it said, if it did.
    pub(crate) fn try_broker(&mut self) -> Result<(), String> {
        let port = self.mqtt.rsplit_once(':').unwrap().1.to_owned();
        let path = self.home.path().join("broker.toml");
        let text = fs::read_to_string(&path).unwrap();
        let listen = |line: &str| match line.starts_with("listen ") {
            true => format!("listen = \"127.0.0.1:{port}\"\n"),
            false => format!("{line}\n"),
        };
        fs::write(&path, text.lines().map(listen).collect::<String>()).unwrap();
        let mut broker = Running::start(self.home.command().args(["broker", "--config"]).arg(path));
        let began = started(&mut broker, "mqtts://");
        if began.is_ok() {
            self.broker = Some(broker);
        }
        began
    }

    /// What the console has printed since it was started last.
    pub(crate) fn console_printed(&self) -> String {
        self.console.as_ref().map(Running::printed).unwrap_or_default()
    }

    /// What the broker has printed since it was started last.
    pub(crate) fn broker_printed(&self) -> String {
        self.broker.as_ref().map(Running::printed).unwrap_or_default()
    }

    /// Ends the console, and starts it again.
    pub(crate) fn restart_console(&mut self) {
        self.console.take().unwrap().kill();
        self.start_console();
    }

    /// Adds lines to the agent's configuration; gives its path.
    pub(crate) fn agent_config_with(&self, more: &str) -> String {
        let path = self.agent_config();
        let text = fs::read_to_string(&path).unwrap();
        write(&self.home, "agent.toml", &format!("{text}{more}\n"))
    }

    /// Writes the configuration of an agent that measures often; gives its path.
    pub(crate) fn agent_config(&self) -> String {
        let data = self.home.path().join("agent");
        let text = format!("data_dir = \"{}\"\n[metrics]\nsample_ms = 1000\n", data.display());
        write(&self.home, "agent.toml", &text)
    }

    pub(crate) fn agent(&self, more: &[&str]) -> Running {
        Running::start(self.home.command().args(["agent", "--config", &self.agent_config()]).args(more))
    }

    /// The console's process.
    pub(crate) fn console_pid(&self) -> nix::unistd::Pid {
        self.console.as_ref().unwrap().pid()
    }

    /// Ends the console in order.
    pub(crate) fn stop_console(&mut self) {
        let (code, printed) = self.console.take().unwrap().stop();
        assert_eq!(code, 0, "{printed}");
    }

    /// Takes the broker away.
    pub(crate) fn kill_broker(&mut self) {
        self.broker.take().into_iter().for_each(Running::kill);
    }

    /// A token for joining.
    pub(crate) fn token(&self) -> String {
        self.json(&["token", "create"])["token"].as_str().unwrap().to_owned()
    }

    /// Runs a verb that must succeed.
    #[track_caller]
    pub(crate) fn ok(&self, args: &[&str]) -> String {
        self.home.muster(args).expect_code(0).stdout
    }

    pub(crate) fn json(&self, args: &[&str]) -> Value {
        let run = self.home.muster(&[&["-o", "json"], args].concat()).expect_code(0);
        serde_json::from_str(&run.stdout).unwrap()
    }

    pub(crate) fn wait_for_host(&self, state: &str) -> Value {
        eventually(state, || {
            let hosts = self.json(&["host", "ls"]);
            if hosts[0]["presence"]["state"] == state { Ok(hosts[0].clone()) } else { Err(hosts.to_string()) }
        })
    }
}

/// Waits until a role has said these words; gives all that it said if it ends instead.
fn started(role: &mut Running, words: &str) -> Result<(), String> {
    eventually("a role that is ready, or its end", || {
        // What it printed last may still be on its way.
        let has_ended = role.ended().then(|| std::thread::sleep(std::time::Duration::from_millis(100))).is_some();
        let printed = role.printed();
        match (has_ended, printed.contains(words)) {
            (true, _) => Ok(Err(printed)),
            (false, true) => Ok(Ok(())),
            (false, false) => Err(printed),
        }
    })
}

/// The first whole word that begins with `start` in what was printed.
fn word(printed: &str, start: &str) -> Option<String> {
    let from = &printed[printed.find(start)?..];
    // A word that still may go on is not whole.
    let end = from.find(char::is_whitespace)?;
    Some(from[..end].trim_end_matches(['"', ',', '.']).to_owned())
}

#[test]
fn three_processes_survive_restarts() {
    let mut roles = Roles::start();
    let agent = roles.agent(&["--join", &roles.token()]);
    let host = roles.wait_for_host("online");
    roles.ok(&["exec", "--", "echo", "all roads"]);

    // The broker comes back empty, and everybody after it.
    roles.kill_broker();
    eventually("metrics that wait for the broker", || pending_batches(&roles, 2));
    roles.revive_broker();
    eventually("an answer after the broker's restart", || answers(&roles));

    roles.console.take().unwrap().kill();
    eventually("metrics that wait for the console", || pending_batches(&roles, 2));
    roles.start_console();
    eventually("an answer after the console's restart", || answers(&roles));

    agent.kill();
    roles.wait_for_host("offline");
    let agent = roles.agent(&[]);
    let again = roles.wait_for_host("online");
    assert_eq!(host["id"], again["id"]);
    assert!(again["presence"]["epoch"].as_u64() > host["presence"]["epoch"].as_u64());
    eventually("no metrics that wait", || match pending_batches(&roles, 1) {
        Ok(()) => Err("some wait".to_owned()),
        Err(_) => Ok(()),
    });
    let (code, _) = agent.stop();
    assert_eq!(code, 0);
    roles.wait_for_host("stopped");

    // One point a second all the while, but for the moments in which the agent itself was down.
    let answer = roles.json(&["metric", "query", "muster_host_load_1m", "--since", "10m"]);
    let points = answer["series"][0]["points"].as_array().unwrap();
    let times: Vec<i64> = points.iter().map(|point| point[0].as_i64().unwrap()).collect();
    let gaps = times.windows(2).filter(|pair| pair[1] - pair[0] > 4_000).count();
    assert!(gaps <= 1, "{gaps} gaps in {times:?}");
}

fn answers(roles: &Roles) -> Result<(), String> {
    let run = roles.home.muster(&["exec", "--timeout", "5s", "--", "true"]);
    if run.code == 0 { Ok(()) } else { Err(run.stderr) }
}

/// Whether at least `count` batches wait in the agent's store.
fn pending_batches(roles: &Roles, count: i64) -> Result<(), String> {
    let waiting: i64 = roles.home.stored("agent/agent.db", "SELECT count(*) FROM metric_batch")?;
    if waiting >= count { Ok(()) } else { Err(format!("{waiting} wait")) }
}

#[test]
fn unknown_keys_and_wrong_values_are_named() {
    let home = Home::new();
    for (role, text, words) in [
        ("agent", "data_dri = \"/x\"\n", vec!["data_dri", "data_dir", "1"]),
        ("agent", "[metrics]\nsampel_ms = 3\n", vec!["sampel_ms", "sample_ms", "2"]),
        ("agent", "[metrics]\nsample_ms = \"often\"\n", vec!["sample_ms"]),
        ("console", "brokerurl = \"x\"\n", vec!["brokerurl", "broker_url"]),
        ("broker", "listne = \"x\"\n", vec!["listne", "listen"]),
        ("broker", "listen = [\n", vec!["role.toml"]),
    ] {
        let path = write(&home, "role.toml", text);
        let run = home.muster(&[role, "--config", &path]).expect_code(2);
        for word in words {
            assert!(run.stderr.contains(word), "{role} with {text:?}: {word} is not in {}", run.stderr);
        }
    }
    home.muster(&["agent", "--config", "/no/such/file.toml"]).expect_stderr("/no/such/file.toml");
}

#[test]
fn environment_sets_every_key_and_hides_secrets() {
    let home = Home::new();
    let print = |role: &str, variable: &str, value: &str| {
        let mut command = home.command();
        command.args([role, "--print-config"]).env(variable, value);
        Run::of(&[role], &mut command)
    };
    assert!(
        print("agent", "MUSTER_AGENT_METRICS_SAMPLE_MS", "7000").expect_code(0).stdout.contains("sample_ms = 7000")
    );
    assert!(print("broker", "MUSTER_BROKER_LISTEN", "127.0.0.1:1").expect_code(0).stdout.contains("127.0.0.1:1"));
    let token = JoinToken {
        url: "https://192.0.2.1:7443".to_owned(),
        authority: Digest::of(b"authority"),
        secret: "very-secret".to_owned(),
    }
    .to_string();
    let shown = print("agent", "MUSTER_AGENT_JOIN", &token).expect_code(0).stdout;
    assert!(shown.contains("join = \"***\"") && !shown.contains("muster1."), "{shown}");
    print("agent", "MUSTER_AGENT_JOIN", "muster1.very-secret").expect_code(2).expect_stderr("MUSTER_AGENT_JOIN");
    let unknown = print("agent", "MUSTER_AGENT_METRICS_SAMPEL_MS", "7000");
    assert!(unknown.code == 2 && unknown.stderr.contains("MUSTER_AGENT_METRICS_SAMPLE_MS"), "{}", unknown.stderr);
}

/// A second host: a network namespace with a link of its own to this machine.
struct Namespace {
    name: String,
    link: String,
    /// The addresses of this machine and of the other host on that link.
    addresses: [String; 2],
}

impl Namespace {
    fn ip(args: &[&str]) {
        Run::of(args, Command::new("ip").args(args)).expect_code(0);
    }

    fn new() -> Self {
        let tag = std::process::id() % 10_000;
        // Documentation addresses (RFC 5737): nobody's. Four for each link, so that several tests may be under way.
        let addresses = [1, 2].map(|host| format!("198.51.100.{}", 4 * slot(64) + host));
        let namespace = Self { name: format!("muster-{tag}"), link: format!("mus{tag}"), addresses };
        let [here, there] = namespace.addresses.each_ref().map(|address| format!("{address}/30"));
        let (name, link, peer) = (&namespace.name, &namespace.link, format!("{}p", namespace.link));
        Self::ip(&["netns", "add", name]);
        Self::ip(&["link", "add", link, "type", "veth", "peer", "name", &peer, "netns", name]);
        Self::ip(&["addr", "add", &here, "dev", link]);
        Self::ip(&["link", "set", link, "up"]);
        Self::ip(&["-n", name, "addr", "add", &there, "dev", &peer]);
        Self::ip(&["-n", name, "link", "set", &peer, "up"]);
        Self::ip(&["-n", name, "link", "set", "lo", "up"]);
        namespace
    }

    fn run(&self, home: &Home, args: &[&str]) -> Running {
        let mut command = Command::new("ip");
        home.dress(&mut command);
        command.args(["netns", "exec", &self.name, crate::fleet::muster()]).args(args);
        Running::start(&mut command)
    }

    fn set_link(&self, state: &str) {
        Self::ip(&["link", "set", &self.link, state]);
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.name]).status();
        let _ = Command::new("ip").args(["link", "del", &self.link]).status();
    }
}

#[test]
fn second_host_joins_with_a_token() {
    let namespace = Namespace::new();
    let [here, there] = &namespace.addresses;
    let fleet = Fleet::start_with(&["--no-sample", "--listen", here]);
    let token = fleet.json(&["token", "create"])["token"].as_str().unwrap().to_owned();
    let other = Home::new();
    let agent = namespace.run(&other, &["agent", "--data-dir", data(&other).as_str(), "--join", &token]);
    let hosts = eventually("two hosts", || {
        let hosts = fleet.json(&["host", "ls"]);
        let online = |host: &&Value| host["presence"]["state"] == "online";
        let count = hosts.as_array().unwrap().iter().filter(online).count();
        if count == 2 { Ok(hosts) } else { Err(hosts.to_string()) }
    });
    let own = fs::read_to_string(fleet.data().join("agent/host")).unwrap();
    let second = hosts.as_array().unwrap().iter().find(|host| host["id"] != own.trim()).unwrap()["id"]
        .as_str()
        .unwrap()
        .to_owned();

    // Both answer; each by itself, too. With two hosts one must be named.
    let output = fleet.ok(&["exec", "--all", "--", "echo", "here"]);
    assert_eq!(output.matches("here").count(), 2, "{output}");
    let output = fleet.ok(&["exec", "--host", &second, "--", "ip", "-o", "addr"]);
    assert!(output.contains(there), "{output}");

    // Used once, the token is of no use to anybody else.
    let third = Home::new();
    let mut refused = namespace.run(&third, &["agent", "--data-dir", data(&third).as_str(), "--join", &token]);
    refused.wait_for_end(3, "used");
    assert_eq!(fleet.json(&["host", "ls"]).as_array().unwrap().len(), 2);

    // A command for a host that is away waits for it.
    namespace.set_link("down");
    let exec = Running::start(fleet.home.command().args(["exec", "--host", &second, "--", "echo", "back again"]));
    namespace.set_link("up");
    let mut exec = exec;
    exec.wait_for("the output of the host that was away", |printed| printed.contains("back again").then_some(()));
    drop(agent);
}

fn data(home: &Home) -> String {
    Path::new(home.path()).join("agent").to_str().unwrap().to_owned()
}

#[test]
fn rules_are_rendered_for_other_brokers() {
    let home = Home::new();
    let out = home.path().join("mosquitto");
    let render = |more: &[&str]| home.muster(&[&["broker", "render", "--program"], more].concat());
    render(&["mosquitto", "--console", "eu", "--topic-prefix", "shops", "--out", out.to_str().unwrap()]).expect_code(0);
    let acl = fs::read_to_string(out.join("muster.acl")).unwrap();
    assert!(acl.contains("\nuser console-eu\n") && acl.contains("topic write shops/console/eu/presence\n"), "{acl}");
    assert!(fs::read_to_string(out.join("mosquitto.conf")).unwrap().contains("\nrequire_certificate true\n"));
    let both = render(&["emqx", "--console", "main"]).expect_code(0).stdout;
    assert!(both.contains("==> emqx.conf <==") && both.contains("==> acl.conf <=="), "{both}");
    render(&["activemq", "--console", "main"]).expect_code(2).expect_stderr("rabbitmq");
    render(&["nats"]).expect_code(2).expect_stderr("--console main");
    render(&["nats", "--console", "a/b"]).expect_code(2);
    render(&["nats", "--console", "main", "--topic-prefix", "a/#"]).expect_code(2).expect_stderr("--topic-prefix");
    render(&["nats", "--console", "main", "--certificates", "/a b"]).expect_code(2).expect_stderr("/a b");
}

#[test]
fn agent_and_console_reload_on_sighup() {
    let mut roles = Roles::start();
    let token = roles.home.muster(&["token", "create", "-o", "json"]).expect_code(0);
    let token: Value = serde_json::from_str(&token.stdout).unwrap();
    let mut agent = roles.agent(&["--join", token["token"].as_str().unwrap()]);
    eventually("a command's end", || {
        let run = roles.home.muster(&["exec", "--", "echo", "before"]);
        if run.stdout.contains("before") { Ok(()) } else { Err(format!("{} {}", run.stdout, run.stderr)) }
    });

    // A file that is wrong changes nothing.
    let config = roles.agent_config();
    let good = fs::read_to_string(&config).unwrap();
    fs::write(&config, "nonsense = 1\n").unwrap();
    agent.signal(nix::sys::signal::Signal::SIGHUP);
    agent.wait_for("a refusal", |printed| printed.contains("is unchanged").then_some(()));
    // Labels are taken at the start of an agent alone, so that it has started anew.
    fs::write(&config, format!("{good}[labels]\nsite = \"north\"\n")).unwrap();
    agent.signal(nix::sys::signal::Signal::SIGHUP);
    agent.wait_for("the configuration", |printed| printed.contains("the configuration is reloaded").then_some(()));
    eventually("the label", || {
        let run = roles.home.muster(&["exec", "--select", "label.site=north", "--", "echo", "after"]);
        if run.stdout.contains("after") { Ok(()) } else { Err(format!("{} {}", run.stdout, run.stderr)) }
    });
    assert_eq!(agent.stop().0, 0);

    let path = roles.home.path().join("console.toml");
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, format!("{text}artifact_max_bytes = 4\nmetric_days = 15\n")).unwrap();
    let console = roles.console.as_mut().unwrap();
    console.signal(nix::sys::signal::Signal::SIGHUP);
    console.wait_for("what it took", |printed| {
        printed.contains("these changes need a restart: metric_days").then_some(())
    });
    let file = write(&roles.home, "five", "12345");
    let run = roles.home.muster(&["artifact", "create", &file, "--role", "five", "--version", "1"]);
    assert_ne!(run.code, 0, "{}", run.stdout);
}
