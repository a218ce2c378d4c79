//! Who measures: started, counted, and ended by this bench.

use std::{
    fs,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use muster_topics::catalogue::MetricGroup;
use nix::{
    sys::signal::{Signal, kill},
    unistd::{Pid, User, getuid},
};
use sqlx::{Connection, SqliteConnection, sqlite::SqliteConnectOptions};
use tempfile::TempDir;

use crate::{
    common::{
        family::{family, start_ticks},
        usage,
    },
    fleet::{Fleet, Home, eventually},
};

/// Longest time to end after a request.
const FAREWELL: Duration = Duration::from_secs(10);

/// The place of its files.
enum Place {
    /// Of an agent, with its host.
    Agent(Home, String),
    Collectd(TempDir),
    Netdata(TempDir),
}

/// Resource usage of a process and its descendants.
#[derive(Clone, Copy, Default)]
pub(crate) struct Usage {
    /// Processor time, including that of children that have ended.
    pub(crate) busy: Duration,
    pub(crate) pss_bytes: u64,
    pub(crate) rss_bytes: u64,
    pub(crate) processes: usize,
}

/// A program that measures, until this is dropped.
pub(crate) struct Subject {
    pub(crate) name: &'static str,
    child: Child,
    place: Place,
}

impl Subject {
    /// An agent that has joined and sent a message.
    pub(crate) fn agent(fleet: &Fleet, program: &Path, measures: bool) -> Result<Self> {
        let home = Home::new();
        let off = if measures { &[][..] } else { &MetricGroup::ALL };
        let mut every_s = String::new();
        for group in off {
            every_s += &format!("{} = \"off\"\n", serde_json::to_string(group)?);
        }
        let config = home.path().join("agent.toml");
        fs::write(&config, format!("data_dir = {:?}\n[metrics.every_s]\n{every_s}", home.path().join("agent")))?;
        let token = fleet.json(&["token", "create"])["token"].as_str().context("no token")?.to_owned();
        let known = hosts(fleet);
        let mut command = Command::new(program);
        home.dress(&mut command);
        command.arg("agent").arg("--config").arg(&config).args(["--join", &token]);
        let child = start(&mut command, home.path())?;
        let mut subject = Self {
            name: if measures { "muster" } else { "no metrics" },
            child,
            place: Place::Agent(home, String::new()),
        };
        let host = eventually("a host that has joined", || {
            hosts(fleet).into_iter().find(|host| !known.contains(host)).ok_or_else(|| subject.printed())
        });
        if let Place::Agent(_, id) = &mut subject.place {
            *id = host;
        }
        Ok(subject)
    }

    /// collectd; `None` if it is not installed.
    pub(crate) fn collectd() -> Result<Option<Self>> {
        let Some(program) = installed("collectd") else { return Ok(None) };
        let folder = tempfile::Builder::new().prefix("muster-collectd-").tempdir()?;
        let (config, path) = (folder.path().join("collectd.conf"), folder.path().display());
        let plugins = ["cpu", "memory", "swap", "load", "df", "disk", "interface", "uptime", "processes", "csv"];
        let plugins: String = plugins.map(|plugin| format!("LoadPlugin {plugin}\n")).concat();
        fs::write(
            &config,
            format!(
                "BaseDir \"{path}\"\nPIDFile \"{path}/pid\"\nHostname \"bench\"\nFQDNLookup false\nInterval 10\n\
                 {plugins}<Plugin csv>\n  DataDir \"{path}/csv\"\n</Plugin>\n"
            ),
        )?;
        let child = start(Command::new(program).arg("-f").arg("-C").arg(&config), folder.path())?;
        Ok(Some(Self { name: "collectd", child, place: Place::Collectd(folder) }))
    }

    /// netdata; `None` if it is not installed.
    pub(crate) fn netdata() -> Result<Option<Self>> {
        let Some(program) = installed("netdata") else { return Ok(None) };
        let folder = tempfile::Builder::new().prefix("muster-netdata-").tempdir()?;
        let path = folder.path();
        for name in ["config", "cache", "lib/cloud.d", "log"] {
            fs::create_dir_all(path.join(name))?;
        }
        fs::write(path.join("lib/cloud.d/cloud.conf"), "[global]\n  enabled = no\n")?;
        let config = path.join("netdata.conf");
        let user = User::from_uid(getuid())?.context("nobody runs this")?.name;
        let off: String = NETDATA_OFF.iter().map(|plugin| format!("  {plugin} = no\n")).collect();
        fs::write(
            &config,
            format!(
                "[global]\n  run as user = {user}\n[directories]\n  config = {p}/config\n  cache = {p}/cache\n  lib = {p}/lib\n  \
                 log = {p}/log\n  lock = {p}/lib/lock\n[logs]\n  access = none\n  health = none\n[db]\n  mode = ram\n  \
                 update every = 10\n  retention = 360\n[web]\n  mode = none\n[health]\n  enabled = no\n[ml]\n  \
                 enabled = no\n[statsd]\n  enabled = no\n[plugins]\n{off}",
                p = path.display()
            ),
        )?;
        let child = start(Command::new(program).arg("-D").arg("-c").arg(&config), path)?;
        Ok(Some(Self { name: "netdata", child, place: Place::Netdata(folder) }))
    }

    /// Resource usage so far.
    pub(crate) fn usage(&self) -> Result<Usage> {
        let pid = self.child.id().cast_signed();
        ensure!(start_ticks(pid).is_some(), "{} is gone: {}", self.name, self.printed());
        let mut all = Usage::default();
        for pid in family(pid) {
            // It may end meanwhile.
            let busy = usage::ticks(pid).map_or(Duration::ZERO, |ticks| ticks.own + ticks.children);
            all.busy += busy;
            all.pss_bytes += usage::pss_bytes(pid).unwrap_or_default();
            all.rss_bytes += usage::rss_bytes(pid).unwrap_or_default();
            all.processes += 1;
        }
        Ok(all)
    }

    /// Number of series that it has stored of this host; netdata writes their names when it ends.
    pub(crate) fn series(&self, fleet: &Fleet) -> Result<usize> {
        match &self.place {
            Place::Agent(_, host) => {
                // Presence is measured by the console.
                let names = "__name__=~\"muster_.+\",__name__!=\"muster_host_online\"";
                let answer = fleet.json(&["metric", "query", &format!("{{{names},host=\"{host}\"}}")]);
                Ok(answer["series"].as_array().context("no series")?.len())
            }
            // The first line names the time and each value.
            Place::Collectd(folder) => {
                let columns = |path: PathBuf| -> Result<usize> {
                    Ok(fs::read_to_string(path)?.lines().next().unwrap_or_default().split(',').count() - 1)
                };
                files(&folder.path().join("csv"))?.into_iter().map(columns).sum()
            }
            Place::Netdata(folder) => {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
                let file = SqliteConnectOptions::new().filename(folder.path().join("cache/netdata-meta.db"));
                runtime.block_on(async {
                    let mut connection = SqliteConnection::connect_with(&file.read_only(true)).await?;
                    let count: i64 =
                        sqlx::query_scalar("SELECT count(*) FROM dimension").fetch_one(&mut connection).await?;
                    Ok(usize::try_from(count)?)
                })
            }
        }
    }

    fn folder(&self) -> &Path {
        match &self.place {
            Place::Agent(home, _) => home.path(),
            Place::Collectd(folder) | Place::Netdata(folder) => folder.path(),
        }
    }

    /// What it has printed.
    fn printed(&self) -> String {
        fs::read_to_string(self.folder().join("printed")).unwrap_or_default()
    }
}

impl Drop for Subject {
    fn drop(&mut self) {
        self.end();
    }
}

impl Subject {
    /// Ends it and everything that it has started.
    pub(crate) fn end(&mut self) {
        let pid = self.child.id().cast_signed();
        let family: Vec<_> = family(pid).into_iter().map(|pid| (pid, start_ticks(pid))).collect();
        let _ = kill(Pid::from_raw(pid), Signal::SIGTERM);
        let asked = Instant::now();
        while matches!(self.child.try_wait(), Ok(None)) && asked.elapsed() < FAREWELL {
            thread::sleep(Duration::from_millis(20));
        }
        // Processes that are left.
        for (pid, began) in family {
            if began.is_some() && start_ticks(pid) == began {
                let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
            }
        }
        let _ = self.child.wait();
    }
}

/// Features of netdata that are not part of the comparison.
const NETDATA_OFF: [&str; 20] = [
    "enable running new plugins",
    "tc",
    "idlejitter",
    "slabinfo",
    "apps",
    "checks",
    "netdata monitoring",
    "netdata monitoring extended",
    "profile",
    "python.d",
    "charts.d",
    "go.d",
    "ebpf",
    "perf",
    "nfacct",
    "fping",
    "ioping",
    "freeipmi",
    "xenstat",
    "cups",
];

fn start(command: &mut Command, folder: &Path) -> Result<Child> {
    let printed = fs::File::create(folder.join("printed"))?;
    let command = command.stdin(Stdio::null()).stdout(printed.try_clone()?).stderr(printed);
    // In its own process group, so that its signals to that group do not reach this bench.
    command.process_group(0).spawn().with_context(|| format!("{} cannot be started", command.get_program().display()))
}

/// The path of a program; reports if it is missing.
fn installed(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    // Some folders are only in root's search path.
    let mut folders: Vec<PathBuf> = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]).collect();
    folders.dedup();
    let found = folders.into_iter().map(|folder| folder.join(name)).find(|path| path.is_file());
    if found.is_none() {
        eprintln!("{name} is not installed; left out");
    }
    found
}

fn hosts(fleet: &Fleet) -> Vec<String> {
    let listed = fleet.json(&["host", "ls"]);
    listed.as_array().into_iter().flatten().filter_map(|host| Some(host["id"].as_str()?.to_owned())).collect()
}

fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() { found.extend(files(&path)?) } else { found.push(path) }
    }
    ensure!(!found.is_empty(), "there is nothing in {}", folder.display());
    Ok(found)
}
