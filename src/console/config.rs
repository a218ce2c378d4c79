//! Configuration of the console, validated as a whole before anything is opened.

use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::PathBuf,
    time::Duration,
};

pub use muster_backup::key::PublicKey;
use muster_topics::{name::Name, topic::Prefix};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{command_signer::SignerAddress, store::command::OutputLimits};

/// Configuration of `muster console`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// The folder of the console's data. It contains keys: keep it private.
    pub data_dir: PathBuf,
    /// The id of this console among several; its MQTT identity is `console-<id>`.
    pub id: Name,
    /// The address of pages and API for operators. On a loopback address it is HTTP, on any other HTTPS with a
    /// certificate of the fleet's authority. Port 0 takes a free one.
    pub web_listen: SocketAddr,
    /// The address where hosts join, renew their certificates and fetch content (HTTPS). Port 0 takes a free one.
    pub hosts_listen: SocketAddr,
    /// The names and addresses by which others reach this machine, all of them for the console's certificates. The first is in
    /// URLs for hosts and operators; without one, URLs have the listening addresses.
    pub public_names: Vec<String>,
    /// The URL of the broker that the console connects to, such as `mqtts://127.0.0.1:8883`.
    pub broker_url: String,
    /// The URLs of the broker for hosts; `broker_url` by default. The first is the one that they use. They look at the others if
    /// it does not answer, such as that of a machine on which it would be restored; hosts that are online get these within
    /// seconds.
    pub broker_public_urls: Vec<String>,
    /// Further URLs of the console's interface for hosts, such as `https://192.0.2.8:7443`. Their names are in its certificate.
    pub more_console_urls: Vec<String>,
    /// A program with arguments that installs the revocation list on another machine's broker: run after each change,
    /// at each start and once a day, with the list's path in `MUSTER_REVOKED_PEM`. Without it, commands to many hosts
    /// are sent to each host alone for as long as a revoked host may still be listening.
    pub revocation_command: Vec<String>,
    /// The prefix of all topics.
    pub prefix: Prefix,
    /// The lifetime of a host's certificate in days. Agents renew theirs well before.
    pub host_certificate_days: u32,
    /// How many days finished commands and their output stay in the ledger.
    pub command_retention_days: u32,
    /// How many bytes of commands' output the ledger keeps before the oldest is removed, at least 128 MiB; a quarter of
    /// it for one host.
    pub command_output_max_bytes: u64,
    /// The largest artifact, in bytes.
    pub artifact_max_bytes: u64,
    /// Where alerts are sent.
    pub alert_outlets: Vec<OutletConfig>,
    /// External time-series stores that receive all measurements, too.
    pub metric_stores: Vec<MetricStoreConfig>,
    /// How many days measurements are kept in full.
    pub metric_days: u32,
    /// How many days summaries of five minutes are kept; at least `metric_days`.
    pub metric_five_minutes_days: u32,
    /// How many days summaries of an hour are kept; at least those of five minutes.
    pub metric_hours_days: u32,
    /// The largest size of the time-series store, in bytes; beyond it the oldest measurements are removed, down to a
    /// day.
    pub metric_store_max_bytes: u64,
    /// How many series of measurements one host may have, so that none takes the place of the others; and 512 bytes of
    /// measurements a second for each, in the mean of a minute.
    #[schemars(range(min = 1))]
    pub host_series_max: u32,
    /// The fleet's authority.
    pub authority: AuthorityConfig,
    /// Rollouts.
    pub rollouts: RolloutConfig,
    /// Backups of the console.
    pub backup: BackupConfig,
}

/// Where the authority's keys are.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct AuthorityConfig {
    /// An external signer, a process that keeps the key for commands and signs with it: `unix:` and the path of its
    /// socket. By default, the key is a file of the console.
    pub signer: Option<SignerAddress>,
}

/// How the console asks the authorities of rollouts, whose addresses are in the documents of deployments.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RolloutConfig {
    /// A PEM file with the certificate authorities to trust. Without it, no authority is asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub authority_file: Option<PathBuf>,
    /// A proxy for the requests, such as `http://proxy:3128`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub proxy: Option<String>,
}

/// Backups of the console: encrypted files, written while it runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct BackupConfig {
    /// The public keys that backups are encrypted to (`age1…`, of `muster backup create-key`): each of their private keys opens
    /// them, and none of these belongs on the console's machine. Without one there are no backups.
    #[schemars(with = "Vec<String>")]
    pub recipients: Vec<PublicKey>,
    /// How often a backup is written to `dir`, in hours; 0 is never.
    pub every_hours: u32,
    /// How many of them are kept.
    pub keep: u32,
    /// The folder for them, best on another disk; `backups` in the console's folder by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dir: Option<PathBuf>,
    /// What they have beside the console's own store and keys.
    pub with: BTreeSet<BackupPart>,
}

impl Default for BackupConfig {
    fn default() -> Self {
        Self { recipients: Vec::new(), every_hours: 24, keep: 14, dir: None, with: BTreeSet::new() }
    }
}

/// What backups may have beside the console's own store and keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum BackupPart {
    /// The artifacts.
    Artifacts,
    /// The measurements.
    Measurements,
}

/// A receiver of alerts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct OutletConfig {
    /// Its kind: `webhook` or `alertmanager`.
    pub kind: OutletKind,
    /// Its URL: the whole URL of a webhook, or the part before `/api/v2/alerts` of Alertmanager.
    pub url: String,
    /// A file with a secret, by which a webhook can verify that a request is the console's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_file: Option<PathBuf>,
    /// A PEM file with the certificate authorities to trust, for `https://`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub authority_file: Option<PathBuf>,
    /// A proxy for its requests, such as `http://proxy:3128`. Proxies in the environment are ignored, and loopback
    /// addresses are reached directly.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proxy: Option<String>,
    /// Whether a webhook is also sent the tasks of units that have changed something, have failed or were interrupted.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub tasks: bool,
}

/// The kinds of outlets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OutletKind {
    /// Any server that takes a `POST` with JSON.
    Webhook,
    /// Prometheus's Alertmanager, by its API version 2.
    Alertmanager,
}

impl OutletKind {
    /// The kind as in configurations.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Webhook => "webhook",
            Self::Alertmanager => "alertmanager",
        }
    }
}

/// An external time-series store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MetricStoreConfig {
    /// Its name here. Its queue is kept under this name.
    pub name: Name,
    /// Its kind: `influxdb2` (also InfluxDB 3), `victoriametrics` or `influxdb1`.
    pub kind: MetricStoreKind,
    /// Its URL, without the path of the API, such as `http://127.0.0.1:8428`.
    pub url: String,
    /// The organisation (`influxdb2`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub org: Option<String>,
    /// The bucket (`influxdb2`), or the database (`influxdb1`), as `DATABASE/POLICY` with another retention policy than its
    /// default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bucket: Option<String>,
    /// The user (`influxdb1`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// A file with a token that may write, or with the password of `user`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_file: Option<PathBuf>,
    /// A PEM file with the certificate authorities to trust, for `https://`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub authority_file: Option<PathBuf>,
    /// A proxy for its requests, such as `http://proxy:3128`. Proxies in the environment are ignored, and loopback
    /// addresses are reached directly.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proxy: Option<String>,
    /// How many bytes may wait for it on disk before the oldest are removed. A gigabyte is about a day of 1,000 hosts,
    /// compressed.
    #[serde(default = "queue_max_bytes")]
    pub queue_max_bytes: u64,
}

fn queue_max_bytes() -> u64 {
    1024 * 1024 * 1024
}

/// The kinds of external stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum MetricStoreKind {
    /// InfluxDB 2 or 3.
    Influxdb2,
    /// VictoriaMetrics.
    Victoriametrics,
    /// InfluxDB 1.
    Influxdb1,
}

impl MetricStoreKind {
    /// The kind as in configurations.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Influxdb2 => "influxdb2",
            Self::Victoriametrics => "victoriametrics",
            Self::Influxdb1 => "influxdb1",
        }
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            data_dir: PathBuf::from("/var/lib/muster/console"),
            id: main_id(),
            web_listen: SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 7080),
            hosts_listen: SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 7443),
            public_names: Vec::new(),
            broker_url: "mqtts://127.0.0.1:8883".to_owned(),
            broker_public_urls: Vec::new(),
            more_console_urls: Vec::new(),
            revocation_command: Vec::new(),
            prefix: Prefix::default(),
            host_certificate_days: 30,
            command_retention_days: 30,
            command_output_max_bytes: 1024 * 1024 * 1024,
            artifact_max_bytes: 4 * 1024 * 1024 * 1024,
            alert_outlets: Vec::new(),
            metric_stores: Vec::new(),
            metric_days: 14,
            metric_five_minutes_days: 90,
            metric_hours_days: 730,
            metric_store_max_bytes: 32 * 1024 * 1024 * 1024,
            host_series_max: 2_000,
            authority: AuthorityConfig::default(),
            rollouts: RolloutConfig::default(),
            backup: BackupConfig::default(),
        }
    }
}

#[expect(clippy::expect_used, reason = "a constant that a test parses too")]
fn main_id() -> Name {
    "main".parse().expect("`main` is a name")
}

/// A day, the unit of the longer settings.
const DAY: Duration = Duration::from_secs(24 * 3600);

impl Config {
    /// The lifetime of a host's certificate: at least a day, at most a year.
    #[must_use]
    pub fn host_certificate_lifetime(&self) -> Duration {
        DAY * self.host_certificate_days.clamp(1, 366)
    }

    /// How long finished commands stay in the ledger: at least as long as a command may live, so that a late outcome
    /// always finds its command.
    #[must_use]
    pub fn command_retention(&self) -> Duration {
        DAY * self.command_retention_days.max(8)
    }

    /// The limits of commands' output. A quarter of the least is what one command may have on a host, both streams
    /// together.
    #[must_use]
    pub fn output_limits(&self) -> OutputLimits {
        let of_all_bytes = self.command_output_max_bytes.max(128 * 1024 * 1024);
        OutputLimits { of_host_bytes: of_all_bytes / 4, of_all_bytes }
    }

    /// The retention of measurements: at least a day.
    #[must_use]
    pub fn series(&self) -> muster_series::StoreSettings {
        muster_series::StoreSettings {
            raw: DAY * self.metric_days.max(1),
            five_minutes: DAY * self.metric_five_minutes_days.max(1),
            hours: DAY * self.metric_hours_days.max(1),
            size_max_bytes: self.metric_store_max_bytes,
            share: Some(muster_series::SeriesShare {
                label: "host".to_owned(),
                series_max: self.host_series_max as usize,
            }),
        }
    }

    /// The bytes of measurements that one host may send each second, in the mean of a minute.
    #[must_use]
    pub fn host_measurements_max_bytes_s(&self) -> u64 {
        512 * u64::from(self.host_series_max)
    }

    /// Further URLs under which hosts look for the broker.
    #[must_use]
    pub fn more_broker_urls(&self) -> &[String] {
        self.broker_public_urls.get(1..).unwrap_or_default()
    }

    /// The folder for backups.
    #[must_use]
    pub fn backup_folder(&self) -> PathBuf {
        self.backup.dir.clone().unwrap_or_else(|| self.data_dir.join("backups"))
    }

    /// The URL of the broker for hosts.
    #[must_use]
    pub fn broker_url_for_hosts(&self) -> &str {
        self.broker_public_urls.first().unwrap_or(&self.broker_url)
    }

    /// The host in URLs for `listen`: the public name, or a specific address, or this machine's own name.
    #[must_use]
    pub fn host_in_urls(&self, listen: IpAddr) -> String {
        match (self.public_names.first(), listen) {
            // A public name is for others; they cannot reach a loopback listener.
            (_, ip) if ip.is_loopback() => bracketed(ip),
            (Some(name), _) => name.parse::<IpAddr>().map_or_else(|_| name.clone(), bracketed),
            (None, ip) if !ip.is_unspecified() => bracketed(ip),
            (None, _) => own_hostname().unwrap_or_else(|| "localhost".to_owned()),
        }
    }

    /// Every name and address for the console's server certificates.
    #[must_use]
    pub fn certificate_names(&self) -> Vec<String> {
        let listening = [self.web_listen.ip(), self.hosts_listen.ip()];
        let mut names: Vec<String> = ["localhost", "127.0.0.1", "::1"].map(str::to_owned).to_vec();
        names.extend(listening.iter().filter(|ip| !ip.is_unspecified()).map(IpAddr::to_string));
        names.extend(own_hostname());
        names.extend(self.public_names.iter().cloned());
        let more = self.more_console_urls.iter().filter_map(|url| reqwest::Url::parse(url).ok());
        names.extend(more.filter_map(|url| Some(url.host_str()?.trim_matches(['[', ']']).to_owned())));
        names.sort();
        names.dedup();
        names
    }
}

fn bracketed(ip: IpAddr) -> String {
    match ip {
        IpAddr::V4(ip) => ip.to_string(),
        IpAddr::V6(ip) => format!("[{ip}]"),
    }
}

/// The machine's name, if it is valid in a certificate.
fn own_hostname() -> Option<String> {
    let name = nix::unistd::gethostname().ok()?.into_string().ok()?;
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.');
    (!name.is_empty() && name.bytes().all(plain)).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_has_a_default() {
        let config: Config = toml::from_str("").unwrap();
        assert_eq!(config, Config::default());
        assert_eq!(config.id.as_str(), "main");
        let share = Some(muster_series::SeriesShare { label: "host".to_owned(), series_max: 2_000 });
        assert_eq!(config.series(), muster_series::StoreSettings { share, ..muster_series::StoreSettings::default() });
    }

    #[test]
    fn unknown_keys_are_refused() {
        let error = toml::from_str::<Config>("web_listn = \"127.0.0.1:1\"").unwrap_err();
        assert!(error.to_string().contains("web_listn"), "{error}");
        assert!(toml::from_str::<Config>("prefix = \"a/+\"").is_err());
    }

    #[test]
    fn external_stores_are_named_by_kind() {
        let text = "[[metric_stores]]\nname = \"far\"\nkind = \"victoriametrics\"\nurl = \"http://h\"\n";
        let config: Config = toml::from_str(text).unwrap();
        let store = &config.metric_stores[0];
        assert_eq!((store.kind.as_str(), store.queue_max_bytes), ("victoriametrics", 1 << 30));
        for wrong in ["kind = \"graphite\"", "burl = 1"] {
            let error = toml::from_str::<Config>(&format!("{text}{wrong}")).unwrap_err().to_string();
            assert!(error.contains("line 5"), "{error}");
        }
        let error = toml::from_str::<Config>(&text.replace("victoriametrics", "graphite")).unwrap_err().to_string();
        assert!(error.contains("line 3") && error.contains("influxdb1"), "{error}");
    }

    #[test]
    fn host_names_in_urls_are_checked() {
        let check = |public: Option<&str>, listen: &str, wanted: &str| {
            let config = Config { public_names: public.map(str::to_owned).into_iter().collect(), ..Config::default() };
            assert_eq!(config.host_in_urls(listen.parse().unwrap()), wanted);
        };
        check(None, "127.0.0.1", "127.0.0.1");
        check(Some("fleet.example"), "127.0.0.1", "127.0.0.1");
        check(Some("fleet.example"), "0.0.0.0", "fleet.example");
        check(Some("2001:db8::7"), "::", "[2001:db8::7]");
        check(None, "192.0.2.7", "192.0.2.7");
        check(None, "2001:db8::7", "[2001:db8::7]");
    }
}
