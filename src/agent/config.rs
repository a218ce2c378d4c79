//! Configuration of an agent, validated as a whole before anything starts.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    net::SocketAddr,
    path::{Path, PathBuf},
};

use muster_base::{config::explain, folders};
use muster_rules::{
    alert::defaults, authorise::LocalPolicy, desired::removal::RemovalPolicy, heartbeat::HeartbeatPeriods,
};
use muster_topics::{
    Millis,
    alert::{RULES_MAX, Rule},
    catalogue::MetricGroup,
    diagnostic::{Diagnostic, DiagnosticError},
    join::JoinToken,
    name::Name,
    process::Limits,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{admission::policy::AdmissionPolicy, metric::group::GroupPeriod, store_limits::JournalLimits};

/// The most labels of a host: a full heartbeat has to fit into one message, and labels take at most 10 of its 64 KiB.
pub const LABELS_MAX: usize = 32;
/// The longest value of a label.
pub const LABEL_MAX_BYTES: usize = 255;
/// The most realms of a host, `default` included; they take at most 4 KiB.
pub const REALMS_MAX: usize = 64;

/// Configuration of an agent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Folder of the agent's store, keys, artifacts and logs. Only its owner may read it.
    pub data_dir: PathBuf,
    /// The one-time token to join with, as `muster token create` printed it. It is used once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub join: Option<Secret<JoinToken>>,
    /// The host's labels, by which operators select hosts.
    pub labels: BTreeMap<Name, String>,
    /// Realms of this host beside `default`. Commands for units of other realms are refused.
    pub realms: BTreeSet<Name>,
    /// The longest delay before a change is published, in milliseconds (varied by a quarter). A connection that is silent for as
    /// long is checked, and counts as broken after twice that; a digest of the published state follows every twenty times.
    pub heartbeat_ms: u32,
    /// How many bytes the journal may take: a quarter is for output that waits for the console (beyond it the rest stays in the
    /// programs' own files), and each command takes some thousand of the rest. If there are as many commands and none is old
    /// enough to be forgotten, no more is accepted: the console sends further ones again until they expire. The default is eight
    /// days of a command every seven seconds, and the output of sixteen programs, twice.
    pub journal_max_bytes: u64,
    /// The bandwidth limit of all downloads of artifacts together, in bytes a second; unlimited by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub artifact_rate_max_bytes_s: Option<u64>,
    /// The share of the host's units that may go within 24 hours because its document of desired state does not have them any
    /// more, from 0 to 1; at least one may, unless this is 0. The others wait until then, or until an operator removes them. One
    /// goes at a time, and for each quarter of this another one.
    pub removal_day_share: f64,
    /// A loopback address on which the agent answers every user of the host, such as `127.0.0.1:7070`. It answers its own user
    /// and root at `agent.sock` in its folder.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub local_listen: Option<SocketAddr>,
    /// Execution of programs.
    pub exec: ExecConfig,
    /// Containers.
    pub containers: ContainersConfig,
    /// Units of files.
    pub files: FilesConfig,
    /// Packages.
    pub packages: PackagesConfig,
    /// When this host begins versions of deployments that are rolled out.
    pub admission: AdmissionPolicy,
    /// Metrics.
    pub metrics: MetricsConfig,
    /// Alert rules of this host.
    pub alerts: AlertsConfig,
    /// What is forbidden on this host, whatever the console orders.
    pub policy: LocalPolicy,
    /// A TOML file with further policy, such as one that only the host's owner can write.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy_file: Option<PathBuf>,
    /// Where broker and console are, for an agent that is started by its console's own process. They take the place of what
    /// its identity says.
    #[serde(skip)]
    pub own_fleet: Option<FleetUrls>,
}

/// Where broker and console are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FleetUrls {
    /// The broker.
    pub broker: String,
    /// The console's interface for hosts.
    pub console: String,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            data_dir: PathBuf::from("/var/lib/muster/agent"),
            join: None,
            labels: BTreeMap::new(),
            realms: BTreeSet::new(),
            heartbeat_ms: 30_000,
            journal_max_bytes: 128 * 1024 * 1024,
            artifact_rate_max_bytes_s: None,
            removal_day_share: RemovalPolicy::default().day_share,
            local_listen: None,
            exec: ExecConfig::default(),
            containers: ContainersConfig::default(),
            files: FilesConfig::default(),
            packages: PackagesConfig::default(),
            admission: AdmissionPolicy::default(),
            metrics: MetricsConfig::default(),
            alerts: AlertsConfig::default(),
            policy: LocalPolicy::default(),
            policy_file: None,
            own_fleet: None,
        }
    }
}

/// Execution of programs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ExecConfig {
    /// How many programs of commands may run at once; others wait.
    pub parallel_max: usize,
    /// How many may wait; further ones are refused as `busy`. The default is four times as many as can run.
    pub queue_max: usize,
    /// Limits of each program with all its processes: `memory_bytes`, `cpu`, `pids`. A command may request less.
    pub limits: Limits,
}

impl Default for ExecConfig {
    fn default() -> Self {
        Self { parallel_max: 16, queue_max: 64, limits: Limits::default() }
    }
}

/// Containers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ContainersConfig {
    /// The Unix socket of the HTTP interface of Podman (`podman system service`) or Docker; by default that of Podman's
    /// unit file for systemd.
    pub podman_socket: PathBuf,
    /// The folder of this agent's LXC containers and their images; `lxc` in its data folder by default. Containers in
    /// LXC's own folder, of other owners, are listed, too.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lxc_dir: Option<PathBuf>,
}

impl Default for ContainersConfig {
    fn default() -> Self {
        Self { podman_socket: PathBuf::from("/run/podman/podman.sock"), lxc_dir: None }
    }
}

/// Units of files.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct FilesConfig {
    /// The folders in which units may have files, such as `["/etc", "/srv"]`; all by default. The agent's own folder, `/proc`,
    /// `/sys` and `/dev` are never touched.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dirs: Option<Vec<PathBuf>>,
}

/// Packages.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct PackagesConfig {
    /// The folder whose packages are managed: the host's root by default. In another one, such as the tree of an image, the
    /// package manager runs with `chroot`, as the programs of packages do.
    pub root_dir: PathBuf,
}

impl Default for PackagesConfig {
    fn default() -> Self {
        Self { root_dir: PathBuf::from("/") }
    }
}

/// Metrics.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct MetricsConfig {
    /// Time between two samples, in milliseconds. Three of them make a batch.
    pub sample_ms: u32,
    /// Whether batches are compressed (zlib with a dictionary), without what their topic says. Disable it for readers
    /// that only know line protocol.
    pub pack: bool,
    /// How many bytes may wait for the console; beyond it, and after a week, the oldest are dropped. The default is twelve days
    /// of a quiet host.
    pub buffer_max_bytes: u64,
    /// How often groups of metrics are collected, in seconds; 0 is with each sample, and `off` never. Groups that are not here
    /// keep what docs/reference/metrics.md says.
    pub every_s: BTreeMap<MetricGroup, GroupPeriod>,
}

impl Default for MetricsConfig {
    fn default() -> Self {
        Self { sample_ms: 10_000, pack: true, buffer_max_bytes: 16 * 1024 * 1024, every_s: BTreeMap::new() }
    }
}

impl MetricsConfig {
    /// The time between two batches, in milliseconds.
    #[must_use]
    pub fn publish_ms(&self) -> u32 {
        self.sample_ms.saturating_mul(3)
    }

    /// The time between two batches that have waited for the console, in milliseconds (varied by a quarter): a thirtieth of that
    /// between two new ones, so that a backlog is sent thirty times as fast as it grew. `rules::backlog::GAP_MS` has the reason.
    /// The newest batch does not wait, and none is sent before the last of them was acknowledged.
    #[must_use]
    pub fn backlog_gap_ms(&self) -> Millis {
        Millis::from(self.sample_ms.div_ceil(10))
    }
}

/// Alert rules of this host. Rules of the console replace those of the same name.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct AlertsConfig {
    /// Whether the agent's default rules apply; `muster rule ls` lists them.
    pub defaults: bool,
    /// Rules of this host, by name; one with the name of a default replaces it.
    pub rules: BTreeMap<Name, Rule>,
}

impl Default for AlertsConfig {
    fn default() -> Self {
        Self { defaults: true, rules: BTreeMap::new() }
    }
}

impl AlertsConfig {
    /// Returns all rules that apply without the console's.
    pub(super) fn all_rules(&self) -> BTreeMap<Name, Rule> {
        let mut rules = if self.defaults { defaults::rules() } else { BTreeMap::new() };
        rules.extend(self.rules.clone());
        rules
    }
}

/// A configuration that cannot work as a whole.
#[derive(Debug, thiserror::Error, miette::Diagnostic)]
pub enum AgentConfigError {
    /// A value is out of range.
    #[error("the agent's configuration: {0}")]
    Value(#[diagnostic_source] DiagnosticError),
    /// The policy file cannot be read.
    #[error("the policy file {path}: {reason}")]
    #[diagnostic(help("an agent does not start without the policy that it was given"))]
    PolicyFile {
        /// Its path.
        path: PathBuf,
        /// The reason.
        reason: String,
    },
}

impl Config {
    /// Makes paths absolute: shims, units and containers get them and run elsewhere.
    ///
    /// # Errors
    /// If a path is empty, or the present working directory does not exist any more; with the path.
    pub fn anchored(mut self) -> Result<Self, (PathBuf, std::io::Error)> {
        let paths = [
            Some(&mut self.data_dir),
            Some(&mut self.containers.podman_socket),
            Some(&mut self.packages.root_dir),
            self.containers.lxc_dir.as_mut(),
            self.policy_file.as_mut(),
            self.admission.unless_file.as_mut(),
        ];
        for path in paths.into_iter().flatten() {
            *path = folders::absolute(path).map_err(|source| (path.clone(), source))?;
        }
        Ok(self)
    }

    /// The intervals of heartbeats, as the scheduler takes them: a sixth of the period, and at most 5 s, lies between two.
    #[must_use]
    pub fn heartbeat_periods(&self) -> HeartbeatPeriods {
        let period_ms = Millis::from(self.heartbeat_ms);
        HeartbeatPeriods { period_ms, gap_ms: (period_ms / 6).clamp(1, 5_000), digest_ms: 20 * period_ms }
    }

    /// After how many seconds a silent connection is checked: as often as there are heartbeats. In less than two seconds a busy
    /// network would look broken, and one that is checked less often than every five minutes is not missed in time.
    #[must_use]
    pub fn keep_alive_s(&self) -> u16 {
        u16::try_from(self.heartbeat_ms.div_ceil(1_000).clamp(2, 300)).unwrap_or(300)
    }

    /// How units go that the host's document of desired state removes.
    #[must_use]
    pub fn removal_policy(&self) -> RemovalPolicy {
        RemovalPolicy::of_share(self.removal_day_share)
    }

    /// Checks what types cannot express.
    ///
    /// # Errors
    /// With the first key whose value cannot work.
    pub fn check(&self) -> Result<(), AgentConfigError> {
        match self.problems().into_iter().next() {
            Some(problem) => Err(AgentConfigError::Value(problem.into_error())),
            None => Ok(()),
        }
    }

    /// Returns everything that types cannot express and that cannot work, each with its key.
    #[must_use]
    pub fn problems(&self) -> Vec<Diagnostic> {
        let mut problems = Vec::new();
        let mut wrong = |problem: Diagnostic| problems.push(problem);
        if self.labels.len() > LABELS_MAX {
            wrong(format!("`labels` has {} entries; at most {LABELS_MAX} are allowed", self.labels.len()).into());
        }
        let realms = self.all_realms().len();
        if realms > REALMS_MAX {
            wrong(format!("`realms` has {realms} entries with `default`; at most {REALMS_MAX} are allowed").into());
        }
        for (name, value) in self.labels.iter().filter(|(_, value)| value.len() > LABEL_MAX_BYTES) {
            wrong(format!("`labels.{name}` has {} bytes; at most {LABEL_MAX_BYTES} are allowed", value.len()).into());
        }
        for (key, is_zero) in [
            ("heartbeat_ms", self.heartbeat_ms == 0),
            ("exec.parallel_max", self.exec.parallel_max == 0),
            ("metrics.sample_ms", self.metrics.sample_ms == 0),
            ("artifact_rate_max_bytes_s", self.artifact_rate_max_bytes_s == Some(0)),
        ] {
            if is_zero {
                wrong(format!("`{key}` must be above 0").into());
            }
        }
        if self.journal_max_bytes < JournalLimits::LEAST_BYTES {
            wrong(format!("`journal_max_bytes` must be at least {}", JournalLimits::LEAST_BYTES).into());
        }
        if !(0.0..=1.0).contains(&self.removal_day_share) {
            wrong("`removal_day_share` must be from 0 to 1".into());
        }
        self.admission.problems().into_iter().for_each(|problem| wrong(problem.into()));
        for folder in self.files.dirs.iter().flatten().filter(|folder| !folder.is_absolute()) {
            wrong(format!("`files.dirs` has {}; it must be an absolute path", folder.display()).into());
        }
        let rules = self.alerts.rules.len();
        if rules > RULES_MAX {
            wrong(format!("`alerts.rules` has {rules} entries; at most {RULES_MAX} are allowed").into());
        }
        for (name, rule) in &self.alerts.rules {
            if let Err(fault) = rule.check() {
                wrong(Diagnostic::of(&fault).within(format_args!("`alerts.rules.{name}`")));
            }
        }
        if let Some(address) = self.local_listen.filter(|address| !address.ip().is_loopback()) {
            wrong(
                format!("`local_listen` is {address}; it must be an address of loopback, such as 127.0.0.1:7070")
                    .into(),
            );
        }
        problems
    }

    /// Combines the policy of the configuration and of the policy file.
    ///
    /// # Errors
    /// If the file cannot be read, or is not a policy.
    pub fn whole_policy(&self) -> Result<LocalPolicy, AgentConfigError> {
        match &self.policy_file {
            Some(path) => Ok(self.policy.clone().and(read_policy(path)?)),
            None => Ok(self.policy.clone()),
        }
    }

    /// All realms of the host.
    #[must_use]
    pub fn all_realms(&self) -> BTreeSet<Name> {
        self.realms.iter().cloned().chain([Name::default_realm()]).collect()
    }
}

fn read_policy(path: &Path) -> Result<LocalPolicy, AgentConfigError> {
    let wrong = |reason: String| AgentConfigError::PolicyFile { path: path.to_owned(), reason };
    let text = muster_base::files::read_text(path).map_err(|error| wrong(error.to_string()))?;
    toml::from_str(&text).map_err(|error| wrong(explain(&text, &error)))
}

/// A value that is parsed from text and never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret<T>(T);

impl<T> Secret<T> {
    /// Wraps a value.
    pub fn new(value: T) -> Self {
        Self(value)
    }

    /// Returns the value.
    pub fn reveal(&self) -> &T {
        &self.0
    }
}

impl<T> fmt::Debug for Secret<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

impl<T> Serialize for Secret<T> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str("***")
    }
}

impl<'de, T: std::str::FromStr<Err: fmt::Display>> Deserialize<'de> for Secret<T> {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map(Self).map_err(serde::de::Error::custom)
    }
}

impl<T> JsonSchema for Secret<T> {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Secret".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({ "type": "string", "writeOnly": true })
    }
}

#[cfg(test)]
mod tests {
    use muster_topics::name::Digest;

    use super::*;

    fn parse(text: &str) -> Result<Config, toml::de::Error> {
        toml::from_str(text)
    }

    #[test]
    fn relative_paths_are_made_absolute() {
        let text = "data_dir = 'a'\npolicy_file = './p'\n[containers]\npodman_socket = 's'\nlxc_dir = '/lxc'\n";
        let config = parse(text).unwrap().anchored().unwrap();
        let here = std::env::current_dir().unwrap();
        assert_eq!((config.data_dir, config.policy_file), (here.join("a"), Some(here.join("p"))));
        let containers = config.containers;
        assert_eq!((containers.podman_socket, containers.lxc_dir), (here.join("s"), Some(PathBuf::from("/lxc"))));
        assert_eq!(parse("data_dir = ''").unwrap().anchored().unwrap_err().0, PathBuf::new());
    }

    #[test]
    fn every_key_has_a_default() {
        let config = parse("").unwrap();
        assert_eq!(config, Config::default());
        config.check().unwrap();
        assert_eq!(config.all_realms().len(), 1);
    }

    #[test]
    fn unknown_keys_are_refused() {
        for text in [
            "dat_dir = 'x'",
            "[exec]\nparallel = 1",
            "[exec.limits]\nprocesses = 1",
            "[policy]\ndeny = []",
            "[metrics]\nsample_s = 1",
            "[metrics.every_s]\nweather = 1",
            "[metrics.every_s]\ncores = 'never'",
            "[metrics.every_s]\ncores = -1",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn invalid_values_are_named() {
        for (text, key) in [
            ("heartbeat_ms = 0", "heartbeat_ms"),
            ("[exec]\nparallel_max = 0", "exec.parallel_max"),
            ("artifact_rate_max_bytes_s = 0", "artifact_rate_max_bytes_s"),
            ("journal_max_bytes = 60", "journal_max_bytes"),
            ("removal_day_share = 1.5", "removal_day_share"),
            ("[metrics]\nsample_ms = 0", "metrics.sample_ms"),
            ("[admission]\ncommand = ['']", "admission.command"),
            ("[files]\ndirs = ['etc']", "files.dirs"),
            ("local_listen = '0.0.0.0:7070'", "local_listen"),
            (&format!("[labels]\nshop = '{}'", "x".repeat(256)), "labels.shop"),
        ] {
            let error = parse(text).unwrap().check().unwrap_err().to_string();
            assert!(error.contains(&format!("`{key}`")), "{error}");
        }
    }

    #[test]
    fn all_invalid_values_are_found() {
        let config = parse("heartbeat_ms = 0\nremoval_day_share = -1.0\n[admission]\nwindows = ['x', 'y']").unwrap();
        assert_eq!(config.problems().len(), 4, "{:?}", config.problems());
    }

    #[test]
    fn intervals_follow_from_heartbeat_and_sample() {
        let config = Config::default();
        let HeartbeatPeriods { period_ms, gap_ms, digest_ms } = config.heartbeat_periods();
        assert_eq!((period_ms, gap_ms, digest_ms, config.keep_alive_s()), (30_000, 5_000, 600_000, 30));
        assert_eq!((config.metrics.publish_ms(), config.metrics.backlog_gap_ms()), (30_000, 1_000));
        let mut before = Config { heartbeat_ms: 1, ..Config::default() };
        for heartbeat_ms in [1, 10, 100, 1_000, 10_000, 60_000, 600_000, u32::MAX] {
            let config = Config { heartbeat_ms, ..Config::default() };
            let (these, those) = (before.heartbeat_periods(), config.heartbeat_periods());
            assert!(these.gap_ms <= those.gap_ms && these.digest_ms <= those.digest_ms && those.gap_ms > 0);
            assert!(before.keep_alive_s() <= config.keep_alive_s() && config.keep_alive_s() >= 2);
            before = config;
        }
    }

    #[test]
    fn token_is_read_and_never_printed() {
        let token =
            JoinToken { url: "https://[::1]:1".to_owned(), authority: Digest::of(b""), secret: "5ec2e7".to_owned() };
        let config = parse(&format!("join = '{token}'")).unwrap();
        assert_eq!(config.join.as_ref().unwrap().reveal(), &token);
        for shown in [format!("{config:?}"), toml::to_string(&config).unwrap()] {
            assert!(shown.contains("***") && !shown.contains("5ec2e7") && !shown.contains("muster1."), "{shown}");
        }
        assert!(parse("join = 'muster1.x'").is_err());
    }

    #[test]
    fn policy_file_extends_the_policy() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("policy.toml");
        let mut config = parse("[policy]\ndeny_verbs = ['exec']").unwrap();
        config.policy_file = Some(path.clone());
        assert!(config.whole_policy().is_err(), "a missing file is no permission");
        std::fs::write(&path, "deny_users = ['root']").unwrap();
        let policy = config.whole_policy().unwrap();
        assert_eq!((policy.deny_verbs.len(), policy.deny_users.len()), (1, 1));
        std::fs::write(&path, "deny_user = ['root']").unwrap();
        assert!(config.whole_policy().unwrap_err().to_string().contains("policy.toml"));
    }
}
