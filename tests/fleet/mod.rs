//! The end-to-end harness: the real program, in real processes, on ports that the system chooses,
//! with a home of its own. Everything it starts it also ends, by pid.
//!
//! A [`Fleet`] is a `muster up`; [`Fleet::muster`] runs any verb against it. [`eventually`] waits for
//! what must come true. What an agent leaves running on purpose (shims and yunos) is known by
//! its folder below the home, and ended when the home goes away.

#![allow(
    dead_code,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::allow_attributes,
    reason = "each test program uses a part of the harness; a test that cannot go on has failed"
)]

pub(crate) mod api;
pub(crate) mod machine;

use std::{
    ffi::OsString,
    fs,
    io::{BufRead, BufReader, Read},
    net::TcpListener,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{Arc, LazyLock, Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

use muster_test_support::slot::slot;
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::Value;
use tempfile::TempDir;

/// The program under test: the one that `TESTS_MUSTER` names, such as the static one of `tests/run`, or a copy, which a build
/// meanwhile does not replace; otherwise the one that was built with this test.
pub(crate) fn muster() -> &'static str {
    static PROGRAM: LazyLock<String> =
        LazyLock::new(|| std::env::var("TESTS_MUSTER").unwrap_or_else(|_| LINKED.to_owned()));
    &PROGRAM
}

/// The program that was built with this test, which loads this machine's C library and so can be given a clock.
pub(crate) const LINKED: &str = env!("CARGO_BIN_EXE_muster");

/// How long anything may take before a test gives up on it: far more than it needs on two busy cores.
pub(crate) const PATIENCE: Duration = Duration::from_secs(90);

/// Between two probes at least so long, and at most.
const PROBES_APART: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(1));

/// Waits until `probe` gives something; fails with what it last said otherwise.
///
/// It sleeps four times as long as the probe took: a test that waits takes a fifth of a processor at most, and less of a
/// busy one, whether it looks at a file or starts a program.
#[track_caller]
pub(crate) fn eventually<T>(what: &str, mut probe: impl FnMut() -> Result<T, String>) -> T {
    let started = Instant::now();
    for repeated in 0.. {
        let began = Instant::now();
        match api::probing(repeated, &mut probe) {
            Ok(value) => return value,
            Err(last) if started.elapsed() > PATIENCE => panic!("{what}: not within {PATIENCE:?}; last: {last}"),
            Err(_) => thread::sleep((began.elapsed() * 4).clamp(PROBES_APART.0, PROBES_APART.1)),
        }
    }
    unreachable!("a probe is repeated until it gives something")
}

/// A folder that plays a user's home. Processes that still run from below it are ended with it.
pub(crate) struct Home {
    folder: TempDir,
    /// Whether the environment says where configuration and data are.
    names_folders: bool,
    /// More of the environment.
    pub(crate) env: Vec<(OsString, OsString)>,
}

impl Home {
    /// A new, empty one.
    pub(crate) fn new() -> Self {
        Self::of(true)
    }

    /// The same of somebody whose environment says nothing but `HOME`.
    pub(crate) fn plain() -> Self {
        Self::of(false)
    }

    fn of(names_folders: bool) -> Self {
        Self { folder: tempfile::Builder::new().prefix("muster-").tempdir().unwrap(), names_folders, env: Vec::new() }
    }

    /// Its path.
    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    /// `muster` with this home, and nothing else of the environment but the search path.
    pub(crate) fn command(&self) -> Command {
        let preloads = self.env.iter().any(|(name, _)| name == "LD_PRELOAD");
        self.command_of(if preloads { LINKED } else { muster() })
    }

    /// The same, to which a clock can be given.
    pub(crate) fn command_with_clock(&self) -> Command {
        self.command_of(LINKED)
    }

    fn command_of(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        self.dress(&mut command);
        command
    }

    /// Gives any command this home, and nothing else of the environment but the search path.
    pub(crate) fn dress(&self, command: &mut Command) {
        command
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("HOME", self.path())
            .envs(self.env.iter().map(|(name, value)| (name, value)))
            .current_dir(self.path())
            .stdin(Stdio::null());
        if self.names_folders {
            command.env("XDG_CONFIG_HOME", self.path().join("config")).env("XDG_DATA_HOME", self.path().join("share"));
        }
    }

    /// Runs `muster` with `args` to its end. What is asked again and again is asked without a process: see [`api`].
    pub(crate) fn muster(&self, args: &[&str]) -> Run {
        match api::repeated_answer(&self.context_file(), args) {
            Some(stdout) => Run { args: args.join(" "), code: 0, stdout, stderr: String::new() },
            None => Run::of(args, self.command().args(args)),
        }
    }

    /// The one value that a question to a store gives, by the store's path below this home. (Read as a file: its owner has
    /// it open.)
    pub(crate) fn stored<T>(&self, store: &str, question: &str) -> Result<T, String>
    where
        T: Send + Unpin + for<'r> sqlx::Decode<'r, sqlx::Sqlite> + sqlx::Type<sqlx::Sqlite>,
    {
        use sqlx::Connection;
        let options = sqlx::sqlite::SqliteConnectOptions::new().filename(self.path().join(store)).read_only(true);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let answer = runtime.block_on(async {
            let mut connection = sqlx::SqliteConnection::connect_with(&options).await?;
            sqlx::query_scalar(sqlx::AssertSqlSafe(question)).fetch_one(&mut connection).await
        });
        answer.map_err(|error| error.to_string())
    }

    /// Where the command line finds its console.
    pub(crate) fn context_file(&self) -> PathBuf {
        self.path().join(if self.names_folders { "config" } else { ".config" }).join("muster/context.toml")
    }

    /// Processes whose working folder or program lies below this home: shims and what they run.
    fn leftovers(&self) -> Vec<Pid> {
        let below = |link: PathBuf| fs::read_link(link).is_ok_and(|target| target.starts_with(self.path()));
        let pids = fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
        pids.filter(|pid| below(format!("/proc/{pid}/cwd").into()) || below(format!("/proc/{pid}/exe").into()))
            .filter(|pid| *pid != std::process::id().cast_signed())
            .map(Pid::from_raw)
            .collect()
    }
}

/// The cgroups of all units below a folder.
fn cgroups(folder: &Path) -> Vec<muster_shim::cgroup::Cgroup> {
    let own = muster_shim::files::read_launch(folder).map(|launch| launch.cgroup).ok();
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let folders = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    own.into_iter().chain(folders.flat_map(|entry| cgroups(&entry.path()))).collect()
}

impl Drop for Home {
    fn drop(&mut self) {
        for _ in 0..50 {
            let leftovers = self.leftovers();
            if leftovers.is_empty() {
                cgroups(self.path()).iter().for_each(muster_shim::cgroup::Cgroup::remove);
                return;
            }
            for pid in leftovers {
                let _ = kill(pid, Signal::SIGKILL);
            }
            thread::sleep(Duration::from_millis(20));
        }
    }
}

/// A program that ran to its end.
#[derive(Debug)]
pub(crate) struct Run {
    args: String,
    /// Its exit code; -1 if a signal ended it.
    pub(crate) code: i32,
    /// What it wrote to standard output.
    pub(crate) stdout: String,
    /// What it wrote to standard error.
    pub(crate) stderr: String,
}

impl Run {
    /// Runs a command to its end.
    pub(crate) fn of(args: &[&str], command: &mut Command) -> Self {
        let output = command.output().unwrap();
        Self {
            args: args.join(" "),
            code: output.status.code().unwrap_or(-1),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    /// Its standard output, after an exit code that must be `code`.
    #[track_caller]
    pub(crate) fn expect_code(self, code: i32) -> Self {
        assert_eq!(self.code, code, "muster {}\nstdout: {}\nstderr: {}", self.args, self.stdout, self.stderr);
        self
    }

    /// Fails unless standard error holds `words`.
    #[track_caller]
    pub(crate) fn expect_stderr(self, words: &str) -> Self {
        assert!(self.stderr.contains(words), "muster {}: {words:?} is not in stderr: {}", self.args, self.stderr);
        self
    }
}

/// A process that goes on, with everything that it prints.
pub(crate) struct Running {
    child: Child,
    printed: Arc<Mutex<String>>,
    readers: [thread::JoinHandle<()>; 2],
}

/// How long what a process printed last may be on its way after its end, if somebody else can go on printing.
const ON_ITS_WAY: Duration = Duration::from_secs(5);

impl Running {
    /// Starts a command and collects what it prints.
    pub(crate) fn start(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let printed = Arc::new(Mutex::new(String::new()));
        let readers = [
            collect(child.stdout.take().unwrap(), Arc::clone(&printed)),
            collect(child.stderr.take().unwrap(), Arc::clone(&printed)),
        ];
        Self { child, printed, readers }
    }

    /// Everything that it has printed so far.
    pub(crate) fn printed(&self) -> String {
        self.printed.lock().unwrap().clone()
    }

    /// Waits for a word among those that it prints which `pick` takes.
    #[track_caller]
    pub(crate) fn wait_for<T>(&mut self, what: &str, pick: impl Fn(&str) -> Option<T>) -> T {
        let mut ended_at = None;
        eventually(what, || {
            let ended = self.child.try_wait().unwrap();
            let is_all = self.readers.iter().all(thread::JoinHandle::is_finished);
            let printed = self.printed();
            if let Some(value) = pick(&printed) {
                return Ok(value);
            }
            let since = ended.map(|_| ended_at.get_or_insert_with(Instant::now).elapsed());
            match since {
                Some(since) if is_all || since > ON_ITS_WAY => {
                    panic!("{what}: ended ({ended:?}) after printing: {printed}")
                }
                _ => Err(printed),
            }
        })
    }

    /// Waits for it to end by itself, with this exit code, after printing `words`.
    #[track_caller]
    pub(crate) fn wait_for_end(&mut self, code: i32, words: &str) {
        let ended = eventually("its end", || match self.child.try_wait().unwrap() {
            Some(status) => Ok(status.code().unwrap_or(-1)),
            None => Err(self.printed()),
        });
        // What it printed last may still be on its way.
        eventually(words, || if self.printed().contains(words) { Ok(()) } else { Err(self.printed()) });
        assert_eq!(ended, code, "{}", self.printed());
    }

    /// Whether it has ended.
    pub(crate) fn ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    /// Its process id.
    pub(crate) fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id().cast_signed())
    }

    /// Sends it a signal.
    pub(crate) fn signal(&self, signal: Signal) {
        kill(self.pid(), signal).unwrap();
    }

    /// Asks it to end with SIGINT; gives its exit code and all that it printed.
    #[track_caller]
    pub(crate) fn stop(mut self) -> (i32, String) {
        self.signal(Signal::SIGINT);
        let code = eventually("the end after SIGINT", || match self.child.try_wait().unwrap() {
            Some(status) => Ok(status.code().unwrap_or(-1)),
            None => Err(self.printed()),
        });
        (code, self.printed())
    }

    /// Ends it with SIGKILL.
    pub(crate) fn kill(mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
        if thread::panicking() {
            eprintln!("--- printed by process {}:\n{}", self.child.id(), self.printed());
        }
    }
}

fn collect(from: impl Read + Send + 'static, into: Arc<Mutex<String>>) -> thread::JoinHandle<()> {
    thread::spawn(move || {
        let mut from = BufReader::new(from);
        let mut line = Vec::new();
        while from.read_until(b'\n', &mut line).is_ok_and(|length| length > 0) {
            into.lock().unwrap().push_str(&String::from_utf8_lossy(&line));
            line.clear();
        }
    })
}

/// A `muster up` with a home of its own.
pub(crate) struct Fleet {
    // Ended before the home goes away.
    up: Option<Running>,
    flags: Vec<String>,
    /// The name that the host has for it, if that is not the machine's.
    hostname: Option<String>,
    /// What it printed until it was ready, the last time that it was started.
    pub(crate) summary: String,
    /// The home that it runs in.
    pub(crate) home: Home,
}

impl Fleet {
    /// Starts one with the sample yuno left out.
    pub(crate) fn start() -> Self {
        Self::start_with(&["--no-sample"])
    }

    /// Starts one with more flags.
    pub(crate) fn start_with(flags: &[&str]) -> Self {
        Self::start_in(Home::new(), flags)
    }

    /// Starts one as root gets it who says nothing: in the host's own folder. The fleet has a `/var/lib` and processes of its own.
    pub(crate) fn start_as_root() -> Self {
        Self::start_in(Home::plain(), &["--no-sample"])
    }

    /// Starts one on a host of this name, which takes root.
    pub(crate) fn start_named(hostname: &str, flags: &[&str]) -> Self {
        Self::start_on(Some(hostname.to_owned()), Home::new(), flags)
    }

    fn start_in(home: Home, flags: &[&str]) -> Self {
        Self::start_on(None, home, flags)
    }

    fn start_on(hostname: Option<String>, home: Home, flags: &[&str]) -> Self {
        let flags = flags.iter().map(|flag| (*flag).to_owned()).collect();
        let mut fleet = Self { up: None, flags, hostname, summary: String::new(), home };
        fleet.again();
        fleet
    }

    /// Starts it (again).
    #[track_caller]
    pub(crate) fn again(&mut self) {
        let mut command = self.home.command();
        if !self.home.names_folders {
            let program = command.get_program().to_owned();
            command = Command::new("unshare");
            self.home.dress(&mut command);
            let script = "mount --make-rprivate / && mount -t tmpfs -o mode=755 tmpfs /var/lib && exec \"$0\" \"$@\"";
            command.args(["--mount", "--pid", "--fork", "--kill-child=KILL", "--mount-proc", "sh", "-c", script]);
            command.arg(program);
        }
        if let Some(hostname) = &self.hostname {
            let program = command.get_program().to_owned();
            command = Command::new("unshare");
            self.home.dress(&mut command);
            command.args(["--uts", "sh", "-c", "hostname \"$0\" && exec \"$@\"", hostname]).arg(program);
        }
        command.args(["up", "--web-port", "0", "--mqtt-port", "0", "--hosts-port", "0"]).args(&self.flags);
        let mut up = Running::start(&mut command);
        self.summary = up.wait_for("a ready muster up", |printed| {
            // The last line of the summary says how to stop.
            printed.contains("Ctrl-C").then(|| printed.to_owned())
        });
        self.up = Some(up);
    }

    /// Starts it again with other flags.
    #[track_caller]
    pub(crate) fn restart_with(&mut self, flags: &[&str]) {
        self.flags = flags.iter().map(|flag| (*flag).to_owned()).collect();
        self.again();
    }

    /// The address in the summary that begins with `scheme`.
    #[track_caller]
    pub(crate) fn address(&self, scheme: &str) -> String {
        let start = self.summary.find(scheme).unwrap_or_else(|| panic!("no {scheme} in {}", self.summary));
        self.summary[start..].split_whitespace().next().unwrap().to_owned()
    }

    /// The one-time sign-in link in the summary.
    #[track_caller]
    pub(crate) fn sign_in_link(&self) -> String {
        assert!(self.summary.contains("login --new-link") && !self.summary.contains("code="), "{}", self.summary);
        self.ok(&["login", "--new-link"]).trim().to_owned()
    }

    /// Makes a client certificate with the authority of this fleet; gives its folder.
    #[track_caller]
    pub(crate) fn issue(&self, role: &str, name: &str) -> PathBuf {
        let folder = self.home.path().join(format!("{role}-{name}"));
        let console = self.data().join("console");
        let (console, out) = (console.to_str().unwrap(), folder.to_str().unwrap());
        self.ok(&["console", "issue", "--data-dir", console, "--role", role, "--name", name, "--out", out]);
        folder
    }

    /// The process.
    #[track_caller]
    pub(crate) fn up(&mut self) -> &mut Running {
        self.up.as_mut().unwrap()
    }

    /// Ends it in order; gives all that it printed.
    #[track_caller]
    pub(crate) fn stop(&mut self) -> String {
        let (code, printed) = self.up.take().unwrap().stop();
        assert_eq!(code, 0, "{printed}");
        printed
    }

    /// Ends it with SIGKILL.
    pub(crate) fn kill(&mut self) {
        self.up.take().unwrap().kill();
    }

    /// The folder of all its data.
    pub(crate) fn data(&self) -> PathBuf {
        self.home.path().join("share/muster")
    }

    /// Runs a verb to its end.
    pub(crate) fn muster(&self, args: &[&str]) -> Run {
        self.home.muster(args)
    }

    /// Runs a verb that must succeed; gives its standard output.
    #[track_caller]
    pub(crate) fn ok(&self, args: &[&str]) -> String {
        self.muster(args).expect_code(0).stdout
    }

    /// Runs a verb that must succeed, with `-o json`; gives what it answers.
    #[track_caller]
    pub(crate) fn json(&self, args: &[&str]) -> Value {
        let stdout = self.ok(&[&["-o", "json"], args].concat());
        serde_json::from_str(&stdout).unwrap_or_else(|error| panic!("{args:?} printed no JSON ({error}): {stdout}"))
    }

    /// The id of the one host.
    #[track_caller]
    pub(crate) fn host(&self) -> String {
        match self.json(&["host", "ls"]).as_array().unwrap().as_slice() {
            [host] => host["id"].as_str().unwrap().to_owned(),
            hosts => panic!("one host is wanted: {hosts:?}"),
        }
    }

    /// Has units of the default realm lease ports that no other test's units lease: each host begins with the lowest.
    #[track_caller]
    pub(crate) fn lease_own_ports(&self) {
        const COUNT: u16 = 10;
        let first = free_ports(COUNT);
        self.ok(&["realm", "set", "default", "--ports", &format!("{first}-{}", first + COUNT - 1)]);
    }

    /// A unit of the one host, as the console shows it, once `wanted` holds.
    #[track_caller]
    pub(crate) fn unit(&self, unit: &str, mut wanted: impl FnMut(&Value) -> bool) -> Value {
        eventually(unit, || {
            let run = self.muster(&["-o", "json", "unit", "show", unit]);
            let shown: Value = serde_json::from_str(&run.stdout).map_err(|_| run.stderr.clone())?;
            if wanted(&shown) { Ok(shown) } else { Err(shown.to_string()) }
        })
    }

    /// A unit, once it has this phase.
    #[track_caller]
    pub(crate) fn unit_in_phase(&self, unit: &str, phase: &str) -> Value {
        self.unit(unit, |shown| shown["observed"]["phase"] == phase)
    }
}

/// Whether a process, which looks like a shim, waits to be the next one of the shim's program.
pub(crate) fn waits(pid: i32) -> bool {
    muster_shim::process_identity::name(pid).is_some_and(|name| name == muster_shim::NEXT)
}

/// Ports in a row that nobody has now, and no other test is given.
pub(crate) fn free_ports(count: u16) -> u16 {
    /// So many processes that run at the same time have ports of their own: more than a runner starts.
    const PROCESSES: u16 = 120;
    /// So many each.
    const EACH: u16 = 100;
    static GIVEN: Mutex<u16> = Mutex::new(0);
    let mut given = GIVEN.lock().unwrap_or_else(PoisonError::into_inner);
    let is_free = |port: u16| TcpListener::bind(("127.0.0.1", port)).is_ok();
    // Below those that the system gives to whoever wants any.
    let begin = 20_000 + u16::try_from(slot(PROCESSES.into())).unwrap() * EACH;
    let first = (begin.max(*given)..begin + EACH - count).find(|first| (*first..first + count).all(is_free));
    let first = first.expect("free ports among those of this process");
    *given = first + count;
    first
}

/// Writes a file below a home and gives its path.
pub(crate) fn file(home: &Home, name: &str, content: &str) -> String {
    use std::os::unix::fs::PermissionsExt;
    let path = home.path().join(name);
    fs::write(&path, content).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path.to_str().unwrap().to_owned()
}
