//! Keys that there were, and what to do instead. People run builds from source, and a key that means nothing any more must not
//! be passed over in silence.

use Successor::{Constant, Follows, Moved};

/// A key that is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemovedKey {
    /// The role whose configuration had it.
    pub role: &'static str,
    /// Its path.
    pub key: &'static str,
    /// What there is in its place.
    pub successor: Successor,
}

/// What there is in place of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Successor {
    /// Another key.
    Moved {
        /// The other key.
        to: &'static str,
        /// What is different about it, if anything.
        how: &'static str,
    },
    /// A number that follows from other keys.
    Follows(&'static [&'static str]),
    /// A number that is the same for every fleet, with the reason.
    Constant(&'static str),
}

impl Successor {
    /// The keys that are there in its place.
    #[must_use]
    pub fn keys(&self) -> Vec<&'static str> {
        match self {
            Moved { to, .. } => vec![to],
            Follows(keys) => keys.to_vec(),
            Constant(_) => Vec::new(),
        }
    }
}

impl RemovedKey {
    /// What to do instead.
    #[must_use]
    pub fn hint(&self) -> String {
        match self.successor {
            Moved { to, how: "" } => format!("it is `{to}` now"),
            Moved { to, how } => format!("it is `{to}` now: {how}"),
            Follows(keys) => {
                let keys: Vec<String> = keys.iter().map(|key| format!("`{key}`")).collect();
                format!("leave it out: it follows from {}", keys.join(" and "))
            }
            Constant(why) => format!("leave it out: {why}"),
        }
    }

    /// The variable of the environment that set it.
    #[must_use]
    pub fn variable(&self) -> String {
        format!("MUSTER_{}_{}", self.role, self.key.replace('.', "_")).to_uppercase()
    }
}

/// The keys of a role that are gone.
pub(super) fn of_role(role: &str) -> Vec<&'static RemovedKey> {
    REMOVED.iter().filter(|removed| removed.role == role).collect()
}

const fn gone(role: &'static str, key: &'static str, successor: Successor) -> RemovedKey {
    RemovedKey { role, key, successor }
}

/// All of them.
pub const REMOVED: &[RemovedKey] = &[
    gone("agent", "keep_alive_s", Moved { to: "heartbeat_ms", how: "" }),
    gone(
        "agent",
        "journal.kept_after_expiry_s",
        Constant("a command is remembered for a day after its expiry, as long as a clock may be ahead"),
    ),
    gone(
        "agent",
        "journal.commands_max",
        Moved { to: "journal_max_bytes", how: "it is in bytes: 1,000 for each command, and a third more" },
    ),
    gone("agent", "journal.output_max_bytes", Moved { to: "journal_max_bytes", how: "a quarter of it is for output" }),
    gone("agent", "artifacts.rate_bytes_per_s", Moved { to: "artifact_rate_max_bytes_s", how: "" }),
    gone("agent", "containers.lxc_path", Moved { to: "containers.lxc_dir", how: "" }),
    gone("agent", "files.roots", Moved { to: "files.dirs", how: "" }),
    gone("agent", "packages.root", Moved { to: "packages.root_dir", how: "" }),
    gone("agent", "removals.day_share", Moved { to: "removal_day_share", how: "" }),
    gone("agent", "removals.parallel_max", Follows(&["removal_day_share"])),
    gone("agent", "admission.command_timeout_s", Constant("the program has 30 s")),
    gone("agent", "heartbeat.period_ms", Moved { to: "heartbeat_ms", how: "" }),
    gone("agent", "heartbeat.gap_ms", Follows(&["heartbeat_ms"])),
    gone("agent", "heartbeat.digest_ms", Follows(&["heartbeat_ms"])),
    gone("agent", "metrics.publish_ms", Follows(&["metrics.sample_ms"])),
    gone("agent", "metrics.off", Moved { to: "metrics.every_s", how: "a group with `\"off\"` is not measured" }),
    gone(
        "agent",
        "metrics.buffer_max_age_s",
        Constant("measurements wait for a week; `metrics.buffer_max_bytes` decides how many"),
    ),
    gone("agent", "metrics.backlog_gap_ms", Follows(&["metrics.sample_ms"])),
    gone(
        "agent",
        "local.socket",
        Constant("the socket is for the agent's own user and root alone, and is always there"),
    ),
    gone("agent", "local.listen", Moved { to: "local_listen", how: "" }),
    gone("console", "public_name", Moved { to: "public_names", how: "the first of them is in URLs" }),
    gone("console", "extra_names", Moved { to: "public_names", how: "all of them are in certificates" }),
    gone(
        "console",
        "broker_public_url",
        Moved { to: "broker_public_urls", how: "the first of them is the one that hosts use" },
    ),
    gone(
        "console",
        "more_broker_urls",
        Moved { to: "broker_public_urls", how: "hosts look at all but the first if that does not answer" },
    ),
    gone("console", "host_shares.units_max", Constant("a host may have 256 units")),
    gone(
        "console",
        "host_shares.unit_reports_max_bytes",
        Constant("the reports of a host's units may have 8 MiB, 32 KiB for each of 256 units"),
    ),
    gone("console", "host_shares.series_max", Moved { to: "host_series_max", how: "" }),
    gone("console", "host_shares.measurements_max_bytes_s", Follows(&["host_series_max"])),
    gone(
        "console",
        "host_shares.certificates_max",
        Constant("a host may have 16 certificates that have not expired; one that renews as agents do has three"),
    ),
    gone("console", "metric_stores.database", Moved { to: "metric_stores.bucket", how: "" }),
    gone(
        "console",
        "metric_stores.retention_policy",
        Moved { to: "metric_stores.bucket", how: "it may be `DATABASE/POLICY`" },
    ),
    gone("console", "metric_stores.password_file", Moved { to: "metric_stores.secret_file", how: "" }),
    gone("console", "metric_stores.token_file", Moved { to: "metric_stores.secret_file", how: "" }),
    gone(
        "console",
        "metric_stores.quarantine_max_bytes",
        Constant("64 MiB of rejected measurements are kept, enough to see what is wrong"),
    ),
    gone("console", "backup.with_artifacts", Moved { to: "backup.with", how: "say `with = [\"artifacts\"]`" }),
    gone("console", "backup.with_series", Moved { to: "backup.with", how: "say `with = [\"measurements\"]`" }),
    gone("broker", "certificate", Moved { to: "certificate_file", how: "" }),
    gone("broker", "key", Moved { to: "key_file", how: "" }),
    gone("broker", "authority", Moved { to: "authority_file", how: "" }),
    gone("broker", "revoked", Moved { to: "revoked_file", how: "" }),
    gone("broker", "websocket", Moved { to: "websocket_listen", how: "" }),
    gone("broker", "plain", Moved { to: "plain_listen", how: "" }),
    gone("broker", "users", Moved { to: "users_file", how: "" }),
    gone("broker", "monitor", Moved { to: "monitor_listen", how: "" }),
    gone("broker", "limits.connections_max", Moved { to: "clients_max", how: "" }),
    gone("broker", "limits.connections_per_identity_max", Moved { to: "identity_clients_max", how: "" }),
    gone("broker", "limits.handshakes_max", Follows(&["clients_max"])),
    gone("broker", "limits.handshake_timeout_ms", Moved { to: "connect_timeout_s", how: "it is in seconds" }),
    gone("broker", "limits.connect_timeout_ms", Moved { to: "connect_timeout_s", how: "it is in seconds" }),
    gone(
        "broker",
        "limits.keep_alive_max_s",
        Constant("a client is checked every hour at least, so that a vanished one is noticed"),
    ),
    gone("broker", "limits.write_timeout_ms", Constant("a client that takes nothing for 30 s is disconnected")),
    gone("broker", "limits.ack_timeout_ms", Constant("a client that acknowledges nothing for 60 s is disconnected")),
    gone(
        "broker",
        "limits.packet_max_bytes",
        Constant("packets have at most 256 KiB, four times what a party of the fleet sends"),
    ),
    gone("broker", "limits.bytes_per_second_per_identity", Follows(&["identity_clients_max"])),
    gone(
        "broker",
        "limits.topic_max_bytes",
        Constant("topics have at most 1,024 bytes, five times the longest of the fleet"),
    ),
    gone(
        "broker",
        "limits.topic_levels_max",
        Constant("topics have at most 32 levels; those of the fleet have six and a prefix"),
    ),
    gone("broker", "limits.topic_aliases_max", Constant("a client may have 16 topic aliases")),
    gone(
        "broker",
        "limits.inflight_max",
        Constant("512 messages to a client may be without acknowledgement: 10,000 a second at 50 ms"),
    ),
    gone("broker", "limits.subscriptions_max", Constant("a session may have 64 subscriptions; an agent has eight")),
    gone("broker", "limits.subscriptions_per_identity_max", Follows(&["identity_clients_max"])),
    gone("broker", "limits.queue_host_max_bytes", Follows(&["memory_max_bytes"])),
    gone("broker", "limits.queue_max_bytes", Follows(&["memory_max_bytes"])),
    gone("broker", "limits.queues_host_max_bytes", Follows(&["memory_max_bytes"])),
    gone("broker", "limits.queues_identity_max_bytes", Follows(&["memory_max_bytes"])),
    gone("broker", "limits.queues_max_bytes", Follows(&["memory_max_bytes"])),
    gone(
        "broker",
        "limits.intake_max_bytes",
        Constant("1 MiB of messages may be on their way to queues; publishers wait beyond it"),
    ),
    gone("broker", "limits.sessions_asleep_max", Follows(&["clients_max"])),
    gone("broker", "limits.session_expiry_max_s", Constant("a session whose client is away is kept for a day")),
    gone("broker", "limits.retained_max", Follows(&["clients_max"])),
    gone("broker", "limits.retained_max_bytes", Follows(&["memory_max_bytes"])),
    gone(
        "broker",
        "limits.retained_host_max",
        Constant("a host may retain 512 messages; an agent retains at most 321"),
    ),
    gone("broker", "limits.retained_host_max_bytes", Follows(&["memory_max_bytes"])),
    gone("broker", "limits.retained_console_max", Follows(&["clients_max"])),
    gone("broker", "limits.retained_console_max_bytes", Follows(&["memory_max_bytes"])),
];
