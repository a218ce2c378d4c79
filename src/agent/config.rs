//! Configuration of an agent, validated as a whole before anything starts.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    net::SocketAddr,
    path::{Path, PathBuf},
};

use muster_base::{config::explain, folders};
use muster_rules::{alert::defaults, authorise::LocalPolicy, desired::removal::RemovalPolicy, heartbeat};
use muster_topics::{
    alert::{RULES_MAX, Rule},
    catalogue::MetricGroup,
    diagnostic::{Diagnostic, DiagnosticError},
    join::JoinToken,
    name::Name,
    process::Limits,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{admission::policy::AdmissionPolicy, metric::group::GroupPeriods};

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
    /// Seconds after which a silent connection is checked; after twice as long it counts as broken.
    pub keep_alive_s: u16,
    /// Execution of programs.
    pub exec: ExecConfig,
    /// Limits of the journal of commands, and of their unsent output.
    pub journal: JournalConfig,
    /// Downloads of artifacts.
    pub artifacts: ArtifactsConfig,
    /// Containers.
    pub containers: ContainersConfig,
    /// Units of files.
    pub files: FilesConfig,
    /// Packages.
    pub packages: PackagesConfig,
    /// How units go that the host's document of desired state removes.
    pub removals: RemovalPolicy,
    /// When this host begins versions of deployments that are rolled out.
    pub admission: AdmissionPolicy,
    /// Heartbeats.
    pub heartbeat: HeartbeatConfig,
    /// Metrics.
    pub metrics: MetricsConfig,
    /// Alert rules of this host.
    pub alerts: AlertsConfig,
    /// The agent's interface on its own host.
    pub local: LocalConfig,
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
            keep_alive_s: 30,
            exec: ExecConfig::default(),
            journal: JournalConfig::default(),
            artifacts: ArtifactsConfig::default(),
            containers: ContainersConfig::default(),
            files: FilesConfig::default(),
            packages: PackagesConfig::default(),
            removals: RemovalPolicy::default(),
            admission: AdmissionPolicy::default(),
            heartbeat: HeartbeatConfig::default(),
            metrics: MetricsConfig::default(),
            alerts: AlertsConfig::default(),
            local: LocalConfig::default(),
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
    pub lxc_path: Option<PathBuf>,
}

impl Default for ContainersConfig {
    fn default() -> Self {
        Self { podman_socket: PathBuf::from("/run/podman/podman.sock"), lxc_path: None }
    }
}

/// Units of files.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct FilesConfig {
    /// The folders in which units may have files, such as `["/etc", "/srv"]`; all by default. The agent's own folder, `/proc`,
    /// `/sys` and `/dev` are never touched.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub roots: Option<Vec<PathBuf>>,
}

/// Packages.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct PackagesConfig {
    /// The folder whose packages are managed: the host's root by default. In another one, such as the tree of an image, the
    /// package manager runs with `chroot`, as the programs of packages do.
    pub root: PathBuf,
}

impl Default for PackagesConfig {
    fn default() -> Self {
        Self { root: PathBuf::from("/") }
    }
}

/// Limits of the journal of commands, and of their unsent output. Outcomes wait until the console has them, however
/// long that takes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct JournalConfig {
    /// How long a command is remembered after its expiry, in seconds, so that a repetition is recognised. It must
    /// exceed the time for which a message can be in transit; at least two hours.
    pub kept_after_expiry_s: u32,
    /// How many commands are remembered. If there are as many and none is old enough to be forgotten, no more is
    /// accepted: the console sends further ones again until they expire. The default is eight days of a command every
    /// seven seconds, and 100 MB of a disk.
    pub commands_max: u64,
    /// How many bytes of output may wait for the console. Beyond it the rest stays in the programs' own files, limited
    /// by each command, until the console has acknowledged some. The default is twice the output of sixteen programs at
    /// the usual limit.
    pub output_max_bytes: u64,
}

/// The least value of [`JournalConfig::kept_after_expiry_s`]: the stored signed time lags behind by up to an hour.
const KEPT_MIN_S: u32 = 2 * 3_600;

impl Default for JournalConfig {
    fn default() -> Self {
        Self { kept_after_expiry_s: 24 * 3_600, commands_max: 100_000, output_max_bytes: 32 * 1024 * 1024 }
    }
}

/// Downloads of artifacts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ArtifactsConfig {
    /// The bandwidth limit of all downloads together, in bytes a second; unlimited by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate_bytes_per_s: Option<u64>,
}

/// Heartbeats.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct HeartbeatConfig {
    /// The longest delay before a change is published, in milliseconds (varied by a quarter).
    pub period_ms: u32,
    /// The least time between two heartbeats, in milliseconds.
    pub gap_ms: u32,
    /// The time between two digests of the published state, in milliseconds (varied by a quarter).
    pub digest_ms: u32,
}

impl Default for HeartbeatConfig {
    fn default() -> Self {
        Self { period_ms: 30_000, gap_ms: 5_000, digest_ms: 600_000 }
    }
}

impl HeartbeatConfig {
    /// Returns the intervals as the scheduler takes them.
    pub fn periods(&self) -> heartbeat::HeartbeatPeriods {
        let &Self { period_ms, gap_ms, digest_ms } = self;
        heartbeat::HeartbeatPeriods { period_ms: period_ms.into(), gap_ms: gap_ms.into(), digest_ms: digest_ms.into() }
    }
}

/// Metrics.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct MetricsConfig {
    /// Time between two samples, in milliseconds.
    pub sample_ms: u32,
    /// Time between two batches, in milliseconds.
    pub publish_ms: u32,
    /// Groups of metrics that are not collected.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub off: Vec<MetricGroup>,
    /// Whether batches are compressed (zlib with a dictionary), without what their topic says. Disable it for readers
    /// that only know line protocol.
    pub pack: bool,
    /// How many bytes may wait for the console; beyond it the oldest are dropped. The default is twelve days of a quiet
    /// host, so that usually the age decides.
    pub buffer_max_bytes: u64,
    /// The largest age of waiting measurements, in seconds.
    pub buffer_max_age_s: u64,
    /// The time between two batches that have waited for the console, in milliseconds (varied by a quarter). The newest
    /// batch does not wait, and none is sent before the last of them was acknowledged.
    pub backlog_gap_ms: u32,
    /// How often groups of metrics are collected, in seconds; 0 is with each sample.
    pub every_s: GroupPeriods,
}

impl Default for MetricsConfig {
    fn default() -> Self {
        Self {
            sample_ms: 10_000,
            publish_ms: 30_000,
            off: Vec::new(),
            pack: true,
            buffer_max_bytes: 16 * 1024 * 1024,
            buffer_max_age_s: 7 * 24 * 3_600,
            // The reason is at `rules::backlog::GAP_MS`.
            backlog_gap_ms: 1_000,
            every_s: GroupPeriods::default(),
        }
    }
}

/// Alert rules of this host. Rules of the console replace those of the same name.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct AlertsConfig {
    /// Whether the agent's default rules apply; `muster alert rules` lists them.
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

/// The agent's HTTP interface on its own host: `GET /ping`, `GET` and `POST /heartbeat`, `POST /trigger`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct LocalConfig {
    /// Whether to listen on `agent.sock` in its folder, for its own user and root.
    pub socket: bool,
    /// A loopback address to listen on, for every user of the host, such as `127.0.0.1:7070`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub listen: Option<SocketAddr>,
}

impl Default for LocalConfig {
    fn default() -> Self {
        Self { socket: true, listen: None }
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
            Some(&mut self.packages.root),
            self.containers.lxc_path.as_mut(),
            self.policy_file.as_mut(),
            self.admission.unless_file.as_mut(),
        ];
        for path in paths.into_iter().flatten() {
            *path = folders::absolute(path).map_err(|source| (path.clone(), source))?;
        }
        Ok(self)
    }

    /// Checks what types cannot express.
    ///
    /// # Errors
    /// With the first key whose value cannot work.
    pub fn check(&self) -> Result<(), AgentConfigError> {
        let wrong = |told: Diagnostic| Err(AgentConfigError::Value(told.into_error()));
        if self.labels.len() > LABELS_MAX {
            return wrong(
                format!("`labels` has {} entries; at most {LABELS_MAX} are possible", self.labels.len()).into(),
            );
        }
        let realms = self.all_realms().len();
        if realms > REALMS_MAX {
            return wrong(
                format!("`realms` has {realms} entries with `default`; at most {REALMS_MAX} are possible").into(),
            );
        }
        if let Some((name, value)) = self.labels.iter().find(|(_, value)| value.len() > LABEL_MAX_BYTES) {
            return wrong(
                format!("`labels.{name}` has {} bytes; at most {LABEL_MAX_BYTES} are possible", value.len()).into(),
            );
        }
        for (key, value) in [
            ("keep_alive_s", u32::from(self.keep_alive_s)),
            ("exec.parallel_max", u32::try_from(self.exec.parallel_max).unwrap_or(u32::MAX)),
            ("heartbeat.period_ms", self.heartbeat.period_ms),
            ("heartbeat.gap_ms", self.heartbeat.gap_ms),
            ("heartbeat.digest_ms", self.heartbeat.digest_ms),
            ("metrics.sample_ms", self.metrics.sample_ms),
            ("metrics.publish_ms", self.metrics.publish_ms),
        ] {
            if value == 0 {
                return wrong(format!("`{key}` must be above 0").into());
            }
        }
        if self.journal.kept_after_expiry_s < KEPT_MIN_S {
            return wrong(format!("`journal.kept_after_expiry_s` must be at least {KEPT_MIN_S}").into());
        }
        if self.journal.commands_max < 2 || self.journal.output_max_bytes == 0 {
            return wrong("`journal.commands_max` must be at least 2, `journal.output_max_bytes` above 0".into());
        }
        if !(0.0..=1.0).contains(&self.removals.day_share) {
            return wrong("`removals.day_share` must be from 0 to 1".into());
        }
        if let Err(problem) = self.admission.check() {
            return wrong(problem.into());
        }
        if let Some(root) = self.files.roots.iter().flatten().find(|root| !root.is_absolute()) {
            return wrong(format!("`files.roots` has {}; it must be an absolute path", root.display()).into());
        }
        if self.artifacts.rate_bytes_per_s == Some(0) {
            return wrong("`artifacts.rate_bytes_per_s` must be above 0".into());
        }
        if self.alerts.rules.len() > RULES_MAX {
            return wrong(
                format!("`alerts.rules` has {} entries; at most {RULES_MAX} are possible", self.alerts.rules.len())
                    .into(),
            );
        }
        for (name, rule) in &self.alerts.rules {
            if let Err(fault) = rule.check() {
                return wrong(Diagnostic::of(&fault).within(format_args!("`alerts.rules.{name}`")));
            }
        }
        if let Some(address) = self.local.listen.filter(|address| !address.ip().is_loopback()) {
            return wrong(
                format!("`local.listen` is {address}; it must be an address of loopback, such as 127.0.0.1:7070")
                    .into(),
            );
        }
        if self.metrics.publish_ms < self.metrics.sample_ms {
            return wrong("`metrics.publish_ms` must not be below `metrics.sample_ms`".into());
        }
        Ok(())
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
        let text = "data_dir = 'a'\npolicy_file = './p'\n[containers]\npodman_socket = 's'\nlxc_path = '/lxc'\n";
        let config = parse(text).unwrap().anchored().unwrap();
        let here = std::env::current_dir().unwrap();
        assert_eq!((config.data_dir, config.policy_file), (here.join("a"), Some(here.join("p"))));
        let containers = config.containers;
        assert_eq!((containers.podman_socket, containers.lxc_path), (here.join("s"), Some(PathBuf::from("/lxc"))));
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
            "[metrics]\noff = ['weather']",
            "[metrics.every_s]\nweather = 1",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn invalid_values_are_named() {
        for (text, key) in [
            ("keep_alive_s = 0", "keep_alive_s"),
            ("[exec]\nparallel_max = 0", "exec.parallel_max"),
            ("[artifacts]\nrate_bytes_per_s = 0", "artifacts.rate_bytes_per_s"),
            ("[journal]\nkept_after_expiry_s = 60", "journal.kept_after_expiry_s"),
            ("[journal]\ncommands_max = 1", "journal.commands_max"),
            ("[journal]\noutput_max_bytes = 0", "journal.output_max_bytes"),
            ("[heartbeat]\ngap_ms = 0", "heartbeat.gap_ms"),
            ("[metrics]\nsample_ms = 40000", "metrics.publish_ms"),
            ("[admission]\ncommand = ['']", "admission.command"),
            ("[files]\nroots = ['etc']", "files.roots"),
            ("[local]\nlisten = '0.0.0.0:7070'", "local.listen"),
            (&format!("[labels]\nshop = '{}'", "x".repeat(256)), "labels.shop"),
        ] {
            let error = parse(text).unwrap().check().unwrap_err().to_string();
            assert!(error.contains(&format!("`{key}`")), "{error}");
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
