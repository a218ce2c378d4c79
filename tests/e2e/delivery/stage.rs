//! A fleet of one host over a broker: a console and an agent as processes that can be killed, and what tells how often
//! something was done: a file that commands write to.

use std::{
    fmt, fs,
    net::{SocketAddr, TcpStream},
    path::PathBuf,
    process::Command,
    time::{Duration, Instant},
};

use muster_topics::name::HostId;
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use super::bus::{Bus, Kind, free_address};
use crate::{
    clock::{self, Clock},
    fleet::{Home, Run, Running, api, eventually, file, muster},
};

/// Who can be killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Party {
    /// The agent.
    Agent,
    /// The console.
    Console,
    /// The broker, which comes back empty.
    Broker,
}

/// What is special about a stage.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Special {
    /// Clocks of agent and console can be set: see [`Stage::set_clock`].
    pub(super) clocks: bool,
    /// The console's folder is a disk of its own of so many MiB, which is gone with the console.
    pub(super) console_disk_mib: Option<u32>,
    /// More of the console's configuration.
    pub(super) console_config: &'static str,
    /// More of the agent's configuration.
    pub(super) agent_config: &'static str,
}

/// See the module.
pub(super) struct Stage {
    // Ended in this order, and all before the home goes away.
    agent: Option<Running>,
    console: Option<Running>,
    pub(super) bus: Bus,
    pub(super) host: HostId,
    /// One that the broker knows of, too: see [`Stage::second`].
    pub(super) other: HostId,
    web: SocketAddr,
    token: String,
    began: Instant,
    times: Vec<(&'static str, Duration)>,
    special: Special,
    /// Those of agent and console, if they can be set.
    clocks: Option<[Clock; 2]>,
    pub(super) home: Home,
}

/// Puts a small disk in the place of a folder, with what is in it, and a console on it.
const SMALL_DISK: &str = r#"rm -f "$1/reserve" # it is of the larger disk
cp -a "$1" "$1.before"
mount -t tmpfs -o "size=$2,mode=0700" muster-test "$1"
cp -a "$1.before/." "$1"
exec "$3" console --config "$4""#;

/// A unit that runs until somebody ends it.
const SLEEPER: &str = "#!/bin/sh\nexec sleep 100000\n";

/// The unit of every stage.
pub(super) const UNIT: &str = "default/till";

impl Stage {
    /// Starts broker, console and agent, and has a unit run.
    pub(super) fn start(kind: Kind) -> Self {
        Self::start_special(kind, Special::default())
    }

    /// The same, with something special.
    pub(super) fn start_special(kind: Kind, special: Special) -> Self {
        let began = Instant::now();
        let (home, host, other) = (Home::new(), HostId::random(), HostId::random());
        let bus = Bus::start(kind, &home, &[host, other]);
        let web = free_address();
        let text = format!(
            "data_dir = \"{}\"\nbroker_url = \"{}\"\nweb_listen = \"{web}\"\nhosts_listen = \"{}\"\n{}",
            home.path().join("console").display(),
            bus.url(),
            free_address(),
            special.console_config,
        );
        file(&home, "console.toml", &text);
        let data = home.path().join("agent");
        fs::create_dir(&data).unwrap();
        fs::write(data.join("host"), format!("{host}\n")).unwrap();
        // All that a scenario orders at once may wait.
        let text = format!("data_dir = \"{}\"\n{}[exec]\nqueue_max = 10000\n", data.display(), special.agent_config);
        file(&home, "agent.toml", &text);
        let (token, times) = (String::new(), Vec::new());
        let clocks = special.clocks.then(|| ["agent", "console"].map(|role| Clock::new(home.path(), role)));
        let mut stage =
            Self { agent: None, console: None, bus, host, other, web, token, began, times, special, clocks, home };
        stage.start_party(Party::Console);
        stage.sign_in();
        stage.join();
        let program = file(&stage.home, "till", SLEEPER);
        stage.ok(&["artifact", "create", &program, "--role", "till", "--version", "1"]);
        stage.ok(&["yuno", "create", UNIT, "--artifact", "till", "--restart", "never", "--run"]);
        stage.lap("start");
        stage
    }

    /// Signs in with a new link.
    pub(super) fn sign_in(&mut self) {
        let is_up = |printed: &str| printed.contains("login --new-link").then_some(());
        self.console.as_mut().unwrap().wait_for("a console", is_up);
        let folder = self.home.path().join("console");
        // The folder may be on a disk that the console alone sees.
        let mut command = match self.special.console_disk_mib {
            None => self.home.command(),
            Some(_) => {
                let mut command = Command::new("nsenter");
                self.home.dress(&mut command);
                let pid = self.console.as_ref().unwrap().pid().to_string();
                command.args(["--mount", "--target", &pid, muster()]);
                command
            }
        };
        let link =
            Run::of(&["login"], command.args(["login", "--new-link", "--data-dir"]).arg(folder)).expect_code(0).stdout;
        self.home.muster(&["login", link.trim()]).expect_code(0);
        let context = fs::read_to_string(self.home.path().join("config/muster/context.toml")).unwrap();
        let token = context.lines().find_map(|line| line.strip_prefix("token = ")).unwrap();
        self.token = token.trim_matches('"').to_owned();
    }

    fn join(&mut self) {
        let token = self.request("POST", "/tokens", Some(&json!({})))["token"].as_str().unwrap().to_owned();
        let mut agent = self.role("agent");
        self.agent = Some(Running::start(agent.args(["--join", &token])));
        self.wait_for_presence("online");
    }

    /// A second host, with an agent of its own.
    pub(super) fn second(&self) -> Running {
        let data = self.home.path().join("second");
        fs::create_dir(&data).unwrap();
        fs::write(data.join("host"), format!("{}\n", self.other)).unwrap();
        let token = self.request("POST", "/tokens", Some(&json!({})))["token"].as_str().unwrap().to_owned();
        let agent =
            Running::start(self.home.command().arg("agent").arg("--data-dir").arg(&data).args(["--join", &token]));
        self.wait_for(self.other, "online");
        agent
    }

    /// Waits until the console counts a host as there, or as away.
    #[track_caller]
    pub(super) fn wait_for(&self, host: HostId, state: &str) {
        eventually(state, || {
            let shown = self.ask("GET", &format!("/hosts/{host}"), None)?;
            if shown["presence"]["state"] == state { Ok(()) } else { Err(shown["presence"].to_string()) }
        });
    }

    /// The command that runs a role.
    fn role(&self, role: &str) -> Command {
        let config = self.home.path().join(format!("{role}.toml"));
        let mut command = match self.special.console_disk_mib.filter(|_| role == "console") {
            None => {
                let mut command = match self.clocks {
                    Some(_) => self.home.command_with_clock(),
                    None => self.home.command(),
                };
                command.arg(role).arg("--config").arg(config);
                command
            }
            Some(size_mib) => {
                let mut command = Command::new("unshare");
                self.home.dress(&mut command);
                command.args(["--mount", "--propagation", "private", "sh", "-ec", SMALL_DISK, "sh"]);
                command.arg(self.home.path().join("console")).arg(format!("{size_mib}m")).arg(muster()).arg(config);
                command
            }
        };
        if let Some([agent, console]) = &self.clocks {
            let clock = if role == "agent" { agent } else { console };
            clock.give_to(&mut command);
        }
        command
    }

    /// Starts the broker anew with another clock.
    pub(super) fn restart_broker_at(&mut self, to: &str) {
        self.bus.kill();
        self.bus.env = vec![("LD_PRELOAD", clock::library().display().to_string()), ("FAKETIME", to.to_owned())];
        self.bus.env.push(("FAKETIME_DONT_FAKE_MONOTONIC", "1".to_owned()));
        self.bus.again();
    }

    /// Sets the clock of a party, while it runs or before it does: see [`Clock::set`].
    pub(super) fn set_clock(&self, party: Party, to: &str) {
        let [agent, console] = self.clocks.as_ref().unwrap();
        let clock = if party == Party::Agent { agent } else { console };
        clock.set(to);
    }

    /// What a party has printed since it was started.
    pub(super) fn printed(&self, party: Party) -> String {
        match party {
            Party::Agent => self.agent.as_ref().unwrap().printed(),
            Party::Console => self.console.as_ref().unwrap().printed(),
            Party::Broker => panic!("what a broker prints is its own affair"),
        }
    }

    /// A path below the console's folder, as the console sees it.
    pub(super) fn in_console(&self, name: &str) -> PathBuf {
        let inside = self.home.path().join("console").join(name);
        let pid = self.console.as_ref().unwrap().pid();
        PathBuf::from(format!("/proc/{pid}/root{}", inside.display()))
    }

    /// Notes how long what was done since the last note has taken.
    pub(super) fn lap(&mut self, what: &'static str) {
        self.times.push((what, self.began.elapsed()));
        self.began = Instant::now();
    }

    /// Runs a verb that must succeed.
    #[track_caller]
    pub(super) fn ok(&self, args: &[&str]) -> String {
        self.home.muster(args).expect_code(0).stdout
    }

    /// Asks the API; the answer must be one of success.
    #[track_caller]
    pub(super) fn request(&self, method: &str, path: &str, body: Option<&Value>) -> Value {
        self.ask(method, path, body).unwrap()
    }

    /// Asks the API; what is wrong if there is no answer of success.
    pub(super) fn ask(&self, method: &str, path: &str, body: Option<&Value>) -> Result<Value, String> {
        let body = body.map(Value::to_string).unwrap_or_default();
        let answer = api::ask(&self.web.to_string(), &self.token, method, path, &body)?;
        Ok(serde_json::from_str(&answer).unwrap_or(Value::Null))
    }

    /// Orders something of the host; gives the command's id.
    #[track_caller]
    pub(super) fn order(&self, verb: &Value, expires_in_ms: u64) -> String {
        self.orders().order(verb, expires_in_ms).unwrap()
    }

    /// What orders something of the host while others are killed.
    pub(super) fn orders(&self) -> Orders {
        Orders { web: self.web, token: self.token.clone(), host: self.host }
    }

    /// Orders a line of shell.
    #[track_caller]
    pub(super) fn exec(&self, line: &str) -> String {
        self.order(&shell(line), 600_000)
    }

    /// How far a command has come.
    pub(super) fn progress(&self, id: &str) -> Value {
        self.request("GET", &format!("/commands/{id}"), None)["hosts"][0].clone()
    }

    /// Waits for the outcome of a command.
    #[track_caller]
    pub(super) fn outcome(&self, id: &str) -> Value {
        eventually("an outcome", || {
            let progress = self.progress(id);
            if progress["state"] == "done" {
                Ok(progress["outcome"]["value"].clone())
            } else {
                Err(progress.to_string())
            }
        })
    }

    /// Waits for the outcome of a command that must have ended well.
    #[track_caller]
    pub(super) fn succeeds(&self, id: &str) {
        let outcome = self.outcome(id);
        assert_eq!(outcome["exit"]["code"], 0, "{id}: {outcome}");
    }

    /// How much a command has printed that is in the console's store: all of it, from its beginning to its end.
    #[track_caller]
    pub(super) fn stored_output(&self, id: &str) -> usize {
        let stdout = self.outcome(id)["stdout"].clone();
        let question = format!("SELECT coalesce(sum(length(data)), 0) FROM output WHERE command = '{id}'");
        // A piece may come after the outcome, where some had to be said again.
        let stored = eventually("all output", || match self.count_in_console(&question) {
            stored if stored == stdout["sent_bytes"].as_i64().unwrap_or(0) => Ok(stored),
            stored => Err(format!("{stored} of {}", stdout["sent_bytes"])),
        });
        stored as usize + stdout["rest"]["text"].as_str().map_or(0, str::len)
    }

    /// The number that a question to the console's store gives, which may be on a disk that the console alone sees.
    fn count_in_console(&self, question: &str) -> i64 {
        let pid = self.console.as_ref().unwrap().pid().to_string();
        let mut command = Command::new("nsenter");
        command.args(["--mount", "--target", &pid, "sqlite3", "-readonly"]);
        command.arg(self.home.path().join("console/console.db")).arg(question);
        Run::of(&["sqlite3"], &mut command).expect_code(0).stdout.trim().parse().unwrap()
    }

    fn effects_of(&self, name: &str) -> PathBuf {
        self.home.path().join(format!("effect-{name}"))
    }

    /// A line of shell that has an effect that can be counted.
    pub(super) fn note(&self, name: &str) -> String {
        format!("echo {name} >> {}", self.effects_of(name).display())
    }

    /// How often it has had it.
    pub(super) fn effects(&self, name: &str) -> usize {
        fs::read_to_string(self.effects_of(name)).unwrap_or_default().lines().count()
    }

    /// Waits until it has had it.
    #[track_caller]
    pub(super) fn wait_for_effect(&self, name: &str) {
        eventually(name, || if self.effects(name) > 0 { Ok(()) } else { Err("nothing was done".to_owned()) });
    }

    /// The bytes of a command as they were signed.
    pub(super) fn signed(&self, id: &str) -> String {
        let bytes: Vec<u8> = self.query("console/console.db", &format!("SELECT signed FROM command WHERE id = '{id}'"));
        String::from_utf8(bytes).unwrap()
    }

    /// The one value that a question to a store gives.
    #[track_caller]
    pub(super) fn query<T>(&self, store: &str, question: &str) -> T
    where
        T: Send + Unpin + for<'r> sqlx::Decode<'r, sqlx::Sqlite> + sqlx::Type<sqlx::Sqlite>,
    {
        self.home.stored(store, question).unwrap()
    }

    /// A topic of the host.
    pub(super) fn topic(&self, name: &str) -> String {
        crate::wire::of_host(&self.host.to_string(), name)
    }

    /// Waits until the console shows the host so.
    #[track_caller]
    pub(super) fn wait_for_presence(&self, state: &str) {
        eventually(state, || {
            let host = self.ask("GET", &format!("/hosts/{}", self.host), None)?;
            if host["presence"]["state"] == state { Ok(()) } else { Err(host["presence"].to_string()) }
        });
    }

    /// Waits until the console shows the unit so; gives what it shows.
    #[track_caller]
    pub(super) fn wait_for_unit(&self, phase: &str) -> Value {
        eventually(phase, || {
            let unit = self.ask("GET", &format!("/hosts/{}/units/{UNIT}", self.host), None)?;
            if unit["observed"]["phase"] == phase { Ok(unit) } else { Err(unit.to_string()) }
        })
    }

    /// Sends a party a signal.
    pub(super) fn signal(&self, party: Party, signal: Signal) {
        match party {
            Party::Agent => self.agent.as_ref().unwrap().signal(signal),
            Party::Console => self.console.as_ref().unwrap().signal(signal),
            Party::Broker => panic!("a broker is not signalled here"),
        }
    }

    /// Kills a party; a broker loses all that it knew.
    pub(super) fn kill(&mut self, party: Party) {
        match party {
            Party::Agent => self.agent.take().unwrap().kill(),
            Party::Console => self.console.take().unwrap().kill(),
            Party::Broker => {
                self.bus.kill();
                self.bus.forget();
            }
        }
    }

    /// Ends the agent in order.
    pub(super) fn stop_agent(&mut self) {
        let (code, printed) = self.agent.take().unwrap().stop();
        assert_eq!(code, 0, "{printed}");
    }

    /// Starts a party; a console, too, takes requests then.
    pub(super) fn start_party(&mut self, party: Party) {
        match party {
            Party::Agent => self.agent = Some(Running::start(&mut self.role("agent"))),
            Party::Console => {
                let (mut console, web) = (Running::start(&mut self.role("console")), self.web);
                console.wait_for("a console that answers", |_| TcpStream::connect(web).is_ok().then_some(()));
                self.console = Some(console);
            }
            Party::Broker => self.bus.again(),
        }
    }
}

/// Orders something of the host of a stage, from another thread.
pub(super) struct Orders {
    web: SocketAddr,
    token: String,
    host: HostId,
}

impl Orders {
    /// Orders it; gives the command's id, or what is wrong if there is no answer of success.
    pub(super) fn order(&self, verb: &Value, expires_in_ms: u64) -> Result<String, String> {
        let command = json!({ "target": {"hosts": [self.host]}, "expires_in_ms": expires_in_ms, "verb": verb });
        let answer = self.ask("POST", "/commands", &command.to_string())?;
        answer["id"].as_str().map(str::to_owned).ok_or_else(|| answer.to_string())
    }

    /// Whether a command is known to have its outcome.
    pub(super) fn is_done(&self, id: &str) -> bool {
        self.ask("GET", &format!("/commands/{id}"), "").is_ok_and(|shown| shown["hosts"][0]["state"] == "done")
    }

    fn ask(&self, method: &str, path: &str, body: &str) -> Result<Value, String> {
        let answer = api::ask(&self.web.to_string(), &self.token, method, path, body)?;
        serde_json::from_str(&answer).map_err(|error| error.to_string())
    }
}

/// The verb that runs a line of shell.
pub(super) fn shell(line: &str) -> Value {
    json!({ "exec": { "shell": line, "timeout_ms": 60_000 } })
}

/// What took how long.
impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let total: Duration = self.times.iter().map(|(_, time)| *time).sum();
        write!(f, "{:?}: {:.1} s", self.bus.kind, total.as_secs_f64())?;
        self.times.iter().try_for_each(|(what, time)| write!(f, ", {what} {:.1}", time.as_secs_f64()))
    }
}
