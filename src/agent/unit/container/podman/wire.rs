//! Requests and answers of the HTTP API, as far as they are used.

use std::collections::BTreeMap;

use muster_topics::{
    Millis,
    container::{ContainerState, Network},
    diagnostic::Diagnostic,
    process::{Amount, Cores, Limits, Resource, Rlimit},
    signal::Signal,
    unit::Exit,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use time::{OffsetDateTime, format_description::well_known::Rfc3339};

use super::image;
use crate::unit::container::runtime::{self, ContainerPhase, Recipe, RuntimeState};

/// The answer of `GET /version`.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct VersionAnswer {
    #[serde(default)]
    pub(super) components: Vec<Component>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Component {
    pub(super) name: String,
}

/// The answer of `GET /containers/NAME/json`.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct InspectedContainer {
    #[serde(default)]
    id: String,
    #[serde(default)]
    name: String,
    state: InspectedState,
    config: InspectedConfig,
    #[serde(default)]
    host_config: InspectedHostConfig,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
struct InspectedHostConfig {
    memory: i64,
    #[serde(rename = "NanoCpus")]
    nano_cpus: i64,
    cpu_quota: i64,
    cpu_period: i64,
    pids_limit: Option<i64>,
    restart_policy: InspectedRestartPolicy,
    auto_remove: bool,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
struct InspectedRestartPolicy {
    name: String,
}

/// An item in the answer of `GET /containers/json`.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct ContainerListItem {
    id: String,
    #[serde(default)]
    names: Option<Vec<String>>,
    #[serde(default)]
    image: String,
    #[serde(default)]
    state: String,
    #[serde(default)]
    labels: Option<BTreeMap<String, String>>,
}

impl ContainerListItem {
    /// Returns its id, and the details of a list.
    pub(super) fn into_listed(self) -> (String, runtime::ListedContainer) {
        let name = self.names.into_iter().flatten().next().unwrap_or_else(|| self.id.clone());
        let listed = runtime::ListedContainer {
            name: name.trim_start_matches('/').to_owned(),
            labels: self.labels.unwrap_or_default(),
            state: match self.state.as_str() {
                "created" | "configured" | "initialized" => ContainerState::Made,
                "running" => ContainerState::Running,
                "paused" => ContainerState::Frozen,
                "exited" | "dead" | "stopped" => ContainerState::Ended,
                _ => ContainerState::Busy,
            },
            image: self.image,
            limits: Limits::default(),
            process: None,
        };
        (self.id, listed)
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct InspectedState {
    status: String,
    #[serde(default)]
    pid: i32,
    #[serde(default)]
    exit_code: i32,
    #[serde(default, rename = "OOMKilled")]
    oom_killed: bool,
    #[serde(default)]
    started_at: String,
    #[serde(default)]
    finished_at: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct InspectedConfig {
    #[serde(default)]
    labels: Option<BTreeMap<String, String>>,
    /// A name or a number, as a string or a number.
    #[serde(default)]
    stop_signal: Value,
}

impl InspectedContainer {
    /// Returns its limits. Zero or less is no limit.
    pub(super) fn limits(&self) -> Limits {
        let InspectedHostConfig { memory, nano_cpus, cpu_quota, cpu_period, pids_limit, .. } = self.host_config;
        let some = |number: i64| u64::try_from(number).ok().filter(|number| *number > 0);
        let share = match (some(nano_cpus), some(cpu_quota), some(cpu_period)) {
            (Some(nano), ..) => Some(nano as f64 / 1e9),
            (None, Some(quota), Some(period)) => Some(quota as f64 / period as f64),
            _ => None,
        };
        Limits {
            memory_bytes: some(memory),
            cpu: share.and_then(Cores::new),
            pids: pids_limit.and_then(some).and_then(|pids| u32::try_from(pids).ok()),
        }
    }

    /// Returns its first process, with when it was started, if it runs.
    pub(super) fn process(&self) -> Option<(i32, u64)> {
        Some(self.state.pid).filter(|pid| *pid > 0).and_then(muster_shim::process_identity::identity)
    }

    /// What would be done to it by others than its agent, if anything.
    fn obstacle(&self) -> Option<Diagnostic> {
        let InspectedHostConfig { restart_policy, auto_remove, .. } = &self.host_config;
        let policy = Some(restart_policy.name.as_str()).filter(|policy| !matches!(*policy, "" | "no"));
        policy
            .map(|policy| {
                Diagnostic::new(format_args!(
                    "its own restart policy ({policy}) would start it again when it is stopped"
                ))
                .with_hint(
                    "use `update --restart no` if its runtime supports it, or create it again without a restart policy",
                )
            })
            .or_else(|| {
                auto_remove
                    .then(|| Diagnostic::new("it is removed as soon as it ends").with_hint("create it without --rm"))
            })
    }

    pub(super) fn into_state(self) -> RuntimeState {
        let obstacle = self.obstacle();
        let InspectedState { status, pid, exit_code, oom_killed, started_at, finished_at } = self.state;
        let (started_ms, at_ms) = (millis(&started_at), millis(&finished_at));
        let phase = match status.as_str() {
            "created" | "configured" | "initialized" => ContainerPhase::Made,
            "running" => ContainerPhase::Runs { pid, started_ms, frozen: false },
            "paused" => ContainerPhase::Runs { pid, started_ms, frozen: true },
            "exited" | "dead" | "stopped" => {
                ContainerPhase::Ended { exit: exit(exit_code, oom_killed), oom_killed, started_ms, at_ms }
            }
            // `stopping`, `removing`, `restarting`, and future states.
            _ => ContainerPhase::Busy,
        };
        let name = self.name.trim_start_matches('/').to_owned();
        let InspectedConfig { labels, stop_signal } = self.config;
        let stop_signal = own_stop_signal(stop_signal, &name);
        RuntimeState { id: self.id, name, labels: labels.unwrap_or_default(), phase, stop_signal, obstacle }
    }
}

/// Parses a container's stop signal, if it has a valid one.
fn own_stop_signal(said: Value, container: &str) -> Option<Signal> {
    if said.is_null() || said == "" || said == 0 {
        return None;
    }
    serde_json::from_value(said)
        .inspect_err(|error| tracing::warn!(container, %error, "its stop signal is unknown, and SIGTERM is sent"))
        .ok()
}

/// Parses a time; `None` for the year 1, which stands for never.
fn millis(text: &str) -> Option<Millis> {
    let at = OffsetDateTime::parse(text, &Rfc3339).ok()?;
    Millis::try_from(at.unix_timestamp_nanos() / 1_000_000).ok().filter(|ms| *ms > 0)
}

/// Converts an exit code: a signal is reported as 128 plus its number, as in a shell. (A program that returns such a
/// code cannot be distinguished from one that was killed.)
fn exit(code: i32, oom_killed: bool) -> Exit {
    const SIGNALS: std::ops::RangeInclusive<i32> = 129..=192;
    match code {
        _ if oom_killed => Exit::Signal(9),
        code if SIGNALS.contains(&code) => Exit::Signal(code - 128),
        code if code < 0 => Exit::Unknown,
        code => Exit::Code(code),
    }
}

/// The body of `POST /containers/create`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct CreateBody {
    image: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    cmd: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    entrypoint: Option<Vec<String>>,
    env: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    user: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    working_dir: Option<String>,
    labels: BTreeMap<String, String>,
    exposed_ports: BTreeMap<String, Value>,
    host_config: HostConfig,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
struct HostConfig {
    mounts: Vec<MountBody>,
    network_mode: &'static str,
    port_bindings: BTreeMap<String, Vec<Binding>>,
    /// Only its agent restarts it.
    restart_policy: Value,
    ulimits: Vec<Ulimit>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    storage_opt: BTreeMap<&'static str, String>,
    #[serde(flatten)]
    resources: ResourceLimits,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
struct Ulimit {
    name: Resource,
    soft: i64,
    hard: i64,
}

/// Converts an amount; no limit is zero there.
fn amount(amount: Amount) -> i64 {
    amount.get().map_or(-1, |amount| i64::try_from(amount).unwrap_or(i64::MAX))
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
struct MountBody {
    #[serde(rename = "Type")]
    kind: &'static str,
    source: String,
    target: String,
    read_only: bool,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
struct Binding {
    host_ip: String,
    host_port: String,
}

/// Limits in Docker's format.
#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct ResourceLimits {
    #[serde(skip_serializing_if = "Option::is_none")]
    memory: Option<u64>,
    /// Memory and swap together.
    #[serde(skip_serializing_if = "Option::is_none")]
    memory_swap: Option<u64>,
    #[serde(rename = "NanoCpus", skip_serializing_if = "Option::is_none")]
    nano_cpus: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pids_limit: Option<u32>,
}

impl ResourceLimits {
    pub(super) fn of(limits: Limits) -> Self {
        Self {
            memory: limits.memory_bytes,
            memory_swap: limits.memory_bytes,
            nano_cpus: limits.cpu.map(|cores| u64::from(cores.millis()) * 1_000_000),
            pids_limit: limits.pids,
        }
    }
}

/// The CPU period in microseconds.
const PERIOD_US: u64 = 100_000;

/// Limits in Podman's own format: that of the OCI runtime.
pub(super) fn podman_limits(limits: Limits) -> Value {
    let mut resources = json!({});
    if let Some(bytes) = limits.memory_bytes {
        resources["memory"] = json!({ "limit": bytes, "swap": bytes });
    }
    if let Some(cores) = limits.cpu {
        let quota = u64::from(cores.millis()) * PERIOD_US / 1_000;
        resources["cpu"] = json!({ "quota": quota, "period": PERIOD_US });
    }
    if let Some(pids) = limits.pids {
        resources["pids"] = json!({ "limit": pids });
    }
    resources
}

impl CreateBody {
    pub(super) fn of(recipe: &Recipe) -> Self {
        let mut exposed_ports = BTreeMap::new();
        let mut port_bindings: BTreeMap<String, Vec<Binding>> = BTreeMap::new();
        for (endpoint, inside) in &recipe.published {
            let port = format!("{inside}/{}", endpoint.protocol);
            exposed_ports.insert(port.clone(), json!({}));
            let (host_ip, host_port) = (endpoint.address.to_string(), endpoint.port.to_string());
            port_bindings.entry(port).or_default().push(Binding { host_ip, host_port });
        }
        let mount = |mount: &muster_topics::container::Mount| MountBody {
            kind: "bind",
            source: mount.host.clone(),
            target: mount.inside.clone(),
            read_only: mount.read_only,
        };
        Self {
            image: image::name(&recipe.image),
            cmd: recipe.args.clone(),
            entrypoint: recipe.entry.clone(),
            env: recipe.env.iter().map(|(name, value)| format!("{name}={value}")).collect(),
            user: recipe.user.clone(),
            working_dir: recipe.cwd.clone(),
            labels: recipe.labels.clone(),
            exposed_ports,
            host_config: HostConfig {
                mounts: recipe.mounts.iter().map(mount).collect(),
                network_mode: match recipe.network {
                    Network::Bridge => "bridge",
                    Network::Host => "host",
                    Network::None => "none",
                },
                port_bindings,
                ulimits: recipe
                    .rlimits
                    .iter()
                    .map(|(name, Rlimit { soft, hard })| Ulimit {
                        name: *name,
                        soft: amount(*soft),
                        hard: amount(*hard),
                    })
                    .collect(),
                storage_opt: recipe.disk_bytes.map(|bytes| ("size", bytes.to_string())).into_iter().collect(),
                restart_policy: json!({ "Name": "no" }),
                resources: ResourceLimits::of(recipe.limits),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn container_states_are_parsed() {
        let of = |state: Value| {
            let seen: InspectedContainer =
                serde_json::from_value(json!({"State": state, "Config": {"Labels": {"a": "b"}}})).unwrap();
            seen.into_state().phase
        };
        let (start, end) = ("1970-01-01T00:00:01.5Z", "1970-01-01T00:00:02+00:00");
        let runs = |frozen| ContainerPhase::Runs { pid: 7, started_ms: Some(1_500), frozen };
        assert_eq!(of(json!({"Status": "running", "Pid": 7, "StartedAt": start})), runs(false));
        assert_eq!(of(json!({"Status": "paused", "Pid": 7, "StartedAt": start})), runs(true));
        assert_eq!(of(json!({"Status": "created", "StartedAt": "0001-01-01T00:00:00Z"})), ContainerPhase::Made);
        assert_eq!(of(json!({"Status": "stopping"})), ContainerPhase::Busy);
        for (code, oom_killed, exit) in [
            (0, false, Exit::Code(0)),
            (3, false, Exit::Code(3)),
            (143, false, Exit::Signal(15)),
            (137, true, Exit::Signal(9)),
            (255, false, Exit::Code(255)),
            (-1, false, Exit::Unknown),
        ] {
            let state = json!({"Status": "exited", "ExitCode": code, "OOMKilled": oom_killed, "StartedAt": start, "FinishedAt": end});
            let wanted = ContainerPhase::Ended { exit, oom_killed, started_ms: Some(1_500), at_ms: Some(2_000) };
            assert_eq!(of(state), wanted);
        }
        let bare: InspectedContainer =
            serde_json::from_value(json!({"State": {"Status": "exited"}, "Config": {"Labels": null}})).unwrap();
        assert_eq!(bare.into_state().labels.len(), 0);
    }

    #[test]
    fn stop_signal_is_parsed_in_every_form() {
        let signal = |said: Value| {
            let seen = json!({"State": {"Status": "running"}, "Config": {"StopSignal": said}});
            serde_json::from_value::<InspectedContainer>(seen).unwrap().into_state().stop_signal
        };
        for (said, number) in
            [(json!("SIGQUIT"), 3), (json!("3"), 3), (json!(3), 3), (json!("SIGRTMIN+3"), 37), (json!("37"), 37)]
        {
            assert_eq!(signal(said.clone()).map(Signal::number), Some(number), "{said}");
        }
        for nothing in [json!(null), json!(""), json!(0), json!("SIGNOTHING"), json!({})] {
            assert_eq!(signal(nothing.clone()), None, "{nothing}");
        }
    }

    #[test]
    fn unsupported_settings_of_adopted_container_are_listed() {
        let obstacle = |host_config: Value| {
            let seen = json!({
                "Id": "ab", "Name": "/web", "State": {"Status": "running"}, "Config": {}, "HostConfig": host_config,
            });
            let state = serde_json::from_value::<InspectedContainer>(seen).unwrap().into_state();
            assert_eq!((state.id.as_str(), state.name.as_str()), ("ab", "web"));
            state.obstacle.map(|told| format!("{told:#}")).unwrap_or_default()
        };
        for policy in ["", "no"] {
            assert_eq!(obstacle(json!({"RestartPolicy": {"Name": policy}, "AutoRemove": false})), "");
        }
        assert_eq!(obstacle(json!({})), "");
        assert!(obstacle(json!({"RestartPolicy": {"Name": "always"}})).contains("restart policy (always)"));
        assert!(obstacle(json!({"AutoRemove": true})).contains("--rm"));
    }
}
