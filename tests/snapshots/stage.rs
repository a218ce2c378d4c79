//! Where rows are run: a home without a console, then a `muster up` in it, then hosts that are simulated beside it.

use std::{
    fs::{self, File},
    path::Path,
    process::{Child, Command, Stdio},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::{
    files,
    filter::{Filter, VerbOutput},
    fleet::{Fleet, Home, Running, eventually, muster},
    table::{Part, Row, Step, Use},
    top,
};

/// The name of the one host.
const HOSTNAME: &str = "shop-7";

/// Hosts that are simulated.
const SIMULATED: &str = "3";

/// What a row said.
pub(crate) struct Held {
    /// What its snapshot is named.
    pub(crate) name: String,
    /// All of it, without what varies.
    pub(crate) text: String,
    /// An exit code that is not of the row's kind.
    pub(crate) surprise: Option<String>,
}

/// A verb that runs; it does not outlive its row.
struct Verb(Child);

impl Drop for Verb {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A home, and what runs in it.
pub(crate) struct Stage {
    // Ended before the fleet.
    hosts: Option<Running>,
    fleet: Option<Fleet>,
    /// Before there is a fleet, which has its own.
    home: Option<Home>,
    filter: Filter,
}

impl Stage {
    /// One without a console.
    pub(crate) fn new() -> Self {
        let home = Home::new();
        let mut stage = Self { hosts: None, fleet: None, home: None, filter: Filter::default() };
        stage.settle(&home);
        stage.filter.put(muster(), "muster");
        stage.home = Some(home);
        stage
    }

    /// Makes the files in a home, and has its path be told as `{dir}`.
    fn settle(&mut self, home: &Home) {
        files::write_all(home);
        self.filter.put(&home.path().display().to_string(), "{dir}");
    }

    fn home(&self) -> &Home {
        self.fleet.as_ref().map_or_else(|| self.home.as_ref().unwrap(), |fleet| &fleet.home)
    }

    /// Does what a line of the table says; what it said, if that is held.
    #[track_caller]
    pub(crate) fn perform(&mut self, step: &Step) -> Option<Held> {
        match step {
            Step::Begin(part) => self.begin(*part),
            Step::Prepare(row) => {
                let said = self.run(row);
                assert_eq!(said.code, Some(0), "{}: {said:?}", row.line);
            }
            Step::Until(wanted, row) => eventually(&row.line, || {
                let said = self.run(row);
                if said.stdout.contains(wanted.as_str()) { Ok(()) } else { Err(format!("{said:?}")) }
            }),
            Step::Hold(row) => return Some(self.hold(row)),
        }
        None
    }

    fn hold(&self, row: &Row) -> Held {
        let said = self.run(row);
        let is_usual = said.code == Some(0);
        let surprise = (is_usual != (row.of == Use::Usual)).then(|| format!("{}: {said:?}", row.name));
        Held { name: row.name.clone(), text: self.filter.snapshot(&row.name, &row.line, &said), surprise }
    }

    fn begin(&mut self, part: Part) {
        match part {
            Part::Alone => {}
            Part::Up => self.begin_up(),
            Part::Many => {
                let args = [
                    "simulate",
                    "--yes",
                    "--hosts",
                    SIMULATED,
                    "--every",
                    "200ms",
                    "--change-takes",
                    "100ms",
                    "--data-dir",
                    "simulation",
                ];
                let mut running = Running::start(self.home().command().args(args));
                running.wait_for("hosts that are simulated", |printed| {
                    printed.contains(&format!("online {SIMULATED}/{SIMULATED}")).then_some(())
                });
                self.hosts = Some(running);
            }
            Part::Gone => {
                self.hosts = None;
                self.fleet.as_mut().unwrap().stop();
            }
        }
    }

    fn begin_up(&mut self) {
        // Whatever containers the machine has are none of it.
        let fleet = Fleet::start_named(
            HOSTNAME,
            &["--no-sample", "--podman-socket", "no-runtime.sock", "--backup-recipient", files::RECIPIENT],
        );
        self.home = None;
        self.settle(&fleet.home);
        for (scheme, word) in [("http://", "WEB"), ("mqtts://", "BROKER"), ("https://", "JOIN")] {
            let address = fleet.address(scheme);
            let (host, port) = address.strip_prefix(scheme).unwrap().rsplit_once(':').unwrap();
            self.filter.put(&format!("{host}:{port}"), &format!("{host}:{word}"));
        }
        self.fleet = Some(fleet);
    }

    /// A row's verb.
    fn command(&self, row: &Row) -> Command {
        let mut command = self.home().command();
        command.args(row.words.iter().map(|word| self.put_in(word))).stdin(Stdio::null());
        if let Some(name) = &row.stdin {
            command.stdin(File::open(self.home().path().join(name)).unwrap());
        }
        command
    }

    /// Runs it to its end; if it goes on, until its standard output has the words of the row, and then ends it as Ctrl-C does.
    fn run(&self, row: &Row) -> VerbOutput {
        let [stdout, stderr] = ["stdout", "stderr"].map(|name| self.home().path().join(name));
        let read = |path: &Path| fs::read_to_string(path).unwrap();
        let mut command = self.command(row);
        command.stdout(File::create(&stdout).unwrap()).stderr(File::create(&stderr).unwrap());
        let mut child = Verb(command.spawn().unwrap());
        let ended = eventually(&row.line, || {
            let ended = child.0.try_wait().unwrap();
            let goes_on = row.stop_at.as_ref().is_none_or(|words| !read(&stdout).contains(words));
            if ended.is_none() && goes_on { Err(read(&stdout) + &read(&stderr)) } else { Ok(ended) }
        });
        let ended = ended.unwrap_or_else(|| {
            kill(Pid::from_raw(child.0.id().cast_signed()), Signal::SIGINT).unwrap();
            child.0.wait().unwrap()
        });
        VerbOutput { code: ended.code(), stdout: read(&stdout), stderr: read(&stderr) }
    }

    /// A word with what stands in braces put in, if it is something that the stage knows.
    fn put_in(&self, word: &str) -> String {
        let Some((before, rest)) = word.split_once('{') else { return word.to_owned() };
        let Some((name, after)) = rest.split_once('}') else { return word.to_owned() };
        match self.value(name) {
            Some(value) => format!("{before}{value}{after}"),
            None => word.to_owned(),
        }
    }

    fn value(&self, name: &str) -> Option<String> {
        let first = |args: &[&str], field: &str| {
            let answer = self.fleet.as_ref().unwrap().json(args);
            answer[0][field].as_str().unwrap().to_owned()
        };
        let fleet = self.fleet.as_ref();
        let value = match name {
            "top" => top().display().to_string(),
            "dir" => self.home().path().display().to_string(),
            "data" => fleet?.data().display().to_string(),
            "token" => first(&["token", "ls"], "id"),
            "command" => first(&["command", "ls", "-n", "1"], "id"),
            "login" => first(&["login", "ls"], "id"),
            "link" => fleet?.ok(&["login", "--new-link"]).trim().to_owned(),
            "silence" => first(&["silence", "ls"], "id"),
            _ => return None,
        };
        Some(value)
    }
}
