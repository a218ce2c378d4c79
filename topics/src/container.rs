//! Containers: the spec of one. The words around it (generation, phase, hold, …) are those of every unit.
//!
//! **Invariant: a host does everything that a spec says, or refuses it by name.** No field is ignored
//! silently: if a runtime does not support one, the unit fails with that reason.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    canonical,
    endpoint::{Needed, Provided},
    name::{Digest, LabelValue, Name, UnitName},
    probe::Probes,
    process::{Limits, Resource, Rlimit},
    signal::Signal,
    unit::{
        ArtifactRef, Restart, Rollback, grace_ms, is_priority, is_start_timeout_ms, is_verify_after_ms, priority,
        start_timeout_ms, started_after_ms, verify_after_ms,
    },
};

/// The most mounts of a container, as of anything else that people keep in mind.
pub const MOUNTS_MAX: usize = 32;

/// The longest name of an image: what registries take.
pub const IMAGE_NAME_MAX_BYTES: usize = 255;

/// A container: an image, what runs in it, and what it sees of its host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ContainerSpec {
    /// What keeps it on its host.
    #[serde(default)]
    pub runtime: Runtime,
    /// What it is made of.
    pub image: Image,
    /// The program, in place of the image's own entry point.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entry: Option<Vec<String>>,
    /// Its arguments, or the whole command where there is no entry point; the image's own if there are none. `{port:NAME}`
    /// and `{address:NAME}` stand for an endpoint that it provides, `{endpoint:NAME}` for one that it needs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub args: Vec<String>,
    /// Environment, beside the image's own and the few variables that the agent sets.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// The user that it runs as inside, by name or number (`user` or `user:group`); the image's own if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Where it works inside, an absolute path; where the image says if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// What it sees of the host's files; at most [`MOUNTS_MAX`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mounts: Vec<Mount>,
    /// Its network.
    #[serde(default)]
    pub network: Network,
    /// What it may use, with everything that it forks. These can change while it runs.
    #[serde(default, skip_serializing_if = "Limits::is_none")]
    pub limits: Limits,
    /// The most that it may write beside its image, in bytes, what it keeps files in included; what is mounted does not count.
    /// Not every host can do that, and it cannot change while it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_bytes: Option<u64>,
    /// Limits for each process by itself, as `setrlimit` has them; the runtime's own if there are none. The first process has
    /// them, so that they cannot change while it runs.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub rlimits: BTreeMap<Resource, Rlimit>,
    /// The endpoints that it provides, each with a port that its host leases it: in `MUSTER_PORT_NAME` (and its address in
    /// `MUSTER_ADDRESS_NAME`), and for `{port:NAME}` in an argument.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub provides: Vec<Provided>,
    /// The port inside to which an endpoint's port of the host leads, in a network of its own. What is not named is the
    /// same inside.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub ports: BTreeMap<Name, u16>,
    /// The endpoints that it needs, each as `ADDRESS:PORT` in `MUSTER_ENDPOINT_NAME`, and for `{endpoint:NAME}` in an
    /// argument. Without one of them it is held. They are the host's, so they need its network.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub needs: Vec<Needed>,
    /// How it is found out whether it is up, ready and alive. A command runs inside; a connection goes to an endpoint that it
    /// provides, at its port of the host, so that a number is the port inside to which one leads.
    #[serde(default, skip_serializing_if = "Probes::is_none")]
    pub probes: Probes,
    /// How long it may take to come up, as its probes find, before it is ended as one that hangs. Without probes only
    /// [`ContainerSpec::healthy_within`] knows of it.
    #[serde(default = "start_timeout_ms", skip_serializing_if = "is_start_timeout_ms")]
    pub start_timeout_ms: u64,
    /// Counts restarts on demand: a higher number is a new revision of otherwise the same unit.
    #[serde(default)]
    pub restart_epoch: u64,
    /// When it is started again by itself.
    #[serde(default)]
    pub restart: Restart,
    /// What becomes of a change of revision that does not work.
    #[serde(default, skip_serializing_if = "Rollback::is_auto")]
    pub rollback: Rollback,
    /// How long it has to be up in a revision, without a failure, before that one is verified.
    #[serde(default = "verify_after_ms", skip_serializing_if = "is_verify_after_ms")]
    pub verify_after_ms: u64,
    /// How long it may take to be up in another revision before that one has failed;
    /// [`ContainerSpec::healthy_within`] if it says nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub healthy_within_ms: Option<u64>,
    /// The signal that asks its first process to end; without one the signal that the container itself says, which it has
    /// from its image, and SIGTERM if that says none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop_signal: Option<Signal>,
    /// How long it may take to end before it is killed, with everything in it.
    #[serde(default = "grace_ms")]
    pub grace_ms: u64,
    /// How long it has to stay up to count as running, if it has no probe of start or readiness.
    #[serde(default = "started_after_ms")]
    pub started_after_ms: u64,
    /// What it is known by beside its name, for selectors.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<Name, LabelValue>,
    /// Units of this host that it waits for while they are on their way.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub after: Vec<UnitName>,
    /// Units of this host that have to run before it is started.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub requires: Vec<UnitName>,
    /// Which of those that start at the same time go first, as for yunos.
    #[serde(default = "priority", skip_serializing_if = "is_priority")]
    pub priority: u8,
}

impl ContainerSpec {
    /// One that only says what it is made of.
    #[must_use]
    pub fn new(image: Image) -> Self {
        Self {
            runtime: Runtime::default(),
            image,
            entry: None,
            args: Vec::new(),
            env: BTreeMap::new(),
            user: None,
            cwd: None,
            mounts: Vec::new(),
            network: Network::default(),
            limits: Limits::default(),
            disk_bytes: None,
            rlimits: BTreeMap::new(),
            provides: Vec::new(),
            ports: BTreeMap::new(),
            needs: Vec::new(),
            probes: Probes::default(),
            start_timeout_ms: start_timeout_ms(),
            restart_epoch: 0,
            restart: Restart::default(),
            rollback: Rollback::default(),
            verify_after_ms: verify_after_ms(),
            healthy_within_ms: None,
            stop_signal: None,
            grace_ms: grace_ms(),
            started_after_ms: started_after_ms(),
            labels: BTreeMap::new(),
            after: Vec::new(),
            requires: Vec::new(),
            priority: priority(),
        }
    }

    /// How long it may take to be up in another revision, in milliseconds: what its spec says, or the time that its start may
    /// take and as long again as it then has to stay so. Without probes its runtime alone needs that time: to make it, on a
    /// slow disk, and to start it.
    #[must_use]
    pub fn healthy_within(&self) -> u64 {
        let slack_ms = self.started_after_ms.saturating_add(self.verify_after_ms);
        self.healthy_within_ms.unwrap_or_else(|| self.start_timeout_ms.saturating_add(slack_ms))
    }

    /// The digest of the fields that make it what it is; a change in one of these is a new container. With `limits` that
    /// is its revision; without, what can change while it runs.
    pub(crate) fn identity(&self, kind: &str, limits: bool) -> Result<Digest, canonical::CanonicalError> {
        canonical::digest(&Identity {
            kind,
            runtime: self.runtime,
            image: self.image.identity(),
            entry: self.entry.as_deref(),
            args: &self.args,
            env: &self.env,
            user: self.user.as_deref(),
            cwd: self.cwd.as_deref(),
            mounts: &self.mounts,
            network: self.network,
            limits: self.limits.some().filter(|_| limits),
            disk_bytes: self.disk_bytes,
            rlimits: &self.rlimits,
            provides: &self.provides,
            ports: &self.ports,
            needs: &self.needs,
            restart_epoch: self.restart_epoch,
        })
    }
}

/// The identity fields of a container.
#[derive(Serialize)]
struct Identity<'a> {
    kind: &'a str,
    runtime: Runtime,
    image: [&'a str; 2],
    entry: Option<&'a [String]>,
    args: &'a [String],
    env: &'a BTreeMap<String, String>,
    user: Option<&'a str>,
    cwd: Option<&'a str>,
    mounts: &'a [Mount],
    network: Network,
    #[serde(skip_serializing_if = "Option::is_none")]
    limits: Option<Limits>,
    #[serde(skip_serializing_if = "Option::is_none")]
    disk_bytes: Option<u64>,
    rlimits: &'a BTreeMap<Resource, Rlimit>,
    provides: &'a [Provided],
    ports: &'a BTreeMap<Name, u16>,
    needs: &'a [Needed],
    restart_epoch: u64,
}

/// What keeps containers on a host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Runtime {
    /// Podman, or Docker: whatever speaks their HTTP interface on the socket that the host's agent was told.
    #[default]
    Podman,
    /// LXC, by its own programs: containers from root file systems, with loopback alone or the host's network.
    Lxc,
}

impl Runtime {
    /// Its name, as in the JSON form.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Podman => "podman",
            Self::Lxc => "lxc",
        }
    }
}

impl std::fmt::Display for Runtime {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What a container is made of, or which it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Image {
    /// An artifact: a tarball of a root file system.
    Rootfs(ArtifactRef),
    /// An artifact: an archive of one image, as `podman save` and `docker save` write it (OCI or Docker).
    Archive(ArtifactRef),
    /// The name of an image that the host's runtime has, or can pull.
    Name(String),
    /// The name of a container that the host's runtime has, which somebody else has made: the unit adopts it as it is, and
    /// it is neither made anew nor removed.
    Existing(String),
}

impl Image {
    /// The artifact, if it is one.
    #[must_use]
    pub fn artifact(&self) -> Option<&ArtifactRef> {
        match self {
            Self::Rootfs(artifact) | Self::Archive(artifact) => Some(artifact),
            Self::Name(_) | Self::Existing(_) => None,
        }
    }

    /// The container that it is, if it was made by somebody else.
    #[must_use]
    pub fn existing(&self) -> Option<&str> {
        if let Self::Existing(name) = self { Some(name) } else { None }
    }

    /// The same as [`Image::artifact`], to be changed.
    #[must_use]
    pub fn artifact_mut(&mut self) -> Option<&mut ArtifactRef> {
        match self {
            Self::Rootfs(artifact) | Self::Archive(artifact) => Some(artifact),
            Self::Name(_) | Self::Existing(_) => None,
        }
    }

    /// What form it has, and what makes it this one.
    fn identity(&self) -> [&str; 2] {
        match self {
            Self::Rootfs(artifact) => ["rootfs", artifact.sha256.as_str()],
            Self::Archive(artifact) => ["archive", artifact.sha256.as_str()],
            Self::Name(name) => ["name", name],
            Self::Existing(name) => ["existing", name],
        }
    }
}

/// Something of the host's files that a container sees.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Mount {
    /// Its absolute path on the host, where it has to be.
    pub host: String,
    /// Its absolute path inside.
    pub inside: String,
    /// It cannot be written through this.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub read_only: bool,
}

/// The network of a container.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Network {
    /// One of its own, behind the runtime's bridge; what it provides is published on the host.
    #[default]
    Bridge,
    /// The host's.
    Host,
    /// Loopback alone.
    None,
}

/// The most containers that a heartbeat lists: with some 150 bytes for each, half of a message. Those of units come first.
pub const LISTED_MAX: usize = 256;

/// The longest name that is listed; what has a longer one is not.
pub const LISTED_NAME_MAX_BYTES: usize = 128;

/// A container that there is on a host, whoever made it, as heartbeats list it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ContainerSummary {
    /// What keeps it.
    pub runtime: Runtime,
    /// What it does.
    pub state: ContainerState,
    /// The unit that it is of; nothing for one that the host's agent neither made nor adopted, which it never touches.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unit: Option<UnitName>,
    /// What it is made of, as its runtime calls that.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub image: String,
    /// What it may use.
    #[serde(default, skip_serializing_if = "Limits::is_none")]
    pub limits: Limits,
}

/// What a container does, as its runtime tells of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ContainerState {
    /// It was made, and never started.
    Made,
    /// It runs.
    Running,
    /// It is suspended.
    Frozen,
    /// It has ended.
    Ended,
    /// Something is being done with it.
    Busy,
}

impl ContainerState {
    /// The state in a word, as in the JSON form.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Made => "made",
            Self::Running => "running",
            Self::Frozen => "frozen",
            Self::Ended => "ended",
            Self::Busy => "busy",
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::{signal::Signal, unit::Spec};

    fn spec(fields: serde_json::Value) -> Spec {
        let mut spec = json!({"kind": "container", "image": {"name": "alpine:3"}});
        spec.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        serde_json::from_value(spec).unwrap()
    }

    #[test]
    fn revision_and_frame_cover_their_fields() {
        let plain = spec(json!({}));
        for (fields, same_revision, same_frame) in [
            (json!({"grace_ms": 1, "labels": {"a": "b"}, "priority": 1, "restart": "never"}), true, true),
            (json!({"probes": {"live": {"exec": ["a"]}}, "start_timeout_ms": 5}), true, true),
            (json!({"limits": {"pids": 5}}), false, true),
            (json!({"limits": {}}), true, true),
            (json!({"image": {"name": "alpine:4"}}), false, false),
            (json!({"args": ["sh"]}), false, false),
            (json!({"entry": []}), false, false),
            (json!({"env": {"A": "b"}}), false, false),
            (json!({"user": "1"}), false, false),
            (json!({"cwd": "/"}), false, false),
            (json!({"mounts": [{"host": "/a", "inside": "/b"}]}), false, false),
            (json!({"network": "none"}), false, false),
            (json!({"provides": [{"name": "a"}]}), false, false),
            (json!({"ports": {"a": 80}}), false, false),
            (json!({"needs": [{"name": "a"}]}), false, false),
            (json!({"rlimits": {"nofile": {"soft": 1, "hard": 2}}}), false, false),
            (json!({"restart_epoch": 1}), false, false),
        ] {
            let other = spec(fields.clone());
            assert_eq!(other.revision().unwrap() == plain.revision().unwrap(), same_revision, "{fields}");
            assert_eq!(other.frame().unwrap() == plain.frame().unwrap(), same_frame, "{fields}");
        }
    }

    #[test]
    fn image_with_two_sources_is_refused() {
        let artifact = json!({"sha256": "0".repeat(64), "size_bytes": 5, "role": "shop", "version": "1"});
        let revision = |image: serde_json::Value| spec(json!({"image": image})).revision().unwrap();
        assert_ne!(revision(json!({"rootfs": artifact})), revision(json!({"archive": artifact})));
        assert_ne!(revision(json!({"name": "a"})), revision(json!({"existing": "a"})));
        for wrong in [json!({}), json!({"name": "a", "rootfs": artifact}), json!({"file": "a"}), json!("alpine")] {
            let spec = json!({"kind": "container", "image": wrong});
            assert!(serde_json::from_value::<Spec>(spec).is_err(), "{wrong}");
        }
    }

    #[test]
    fn unknown_fields_are_refused() {
        for fields in [json!({"memory": 5}), json!({"runtime": "docker"}), json!({"network": "empty"})] {
            let mut spec = json!({"kind": "container", "image": {"name": "a"}});
            spec.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
            assert!(serde_json::from_value::<Spec>(spec).is_err(), "{fields}");
        }
    }

    #[test]
    fn new_fields_are_written_only_if_used() {
        let plain = serde_json::to_value(spec(json!({}))).unwrap();
        for field in ["probes", "start_timeout_ms", "stop_signal"] {
            assert!(plain.get(field).is_none(), "{plain}");
        }
        let probed = spec(json!({"probes": {"live": {"exec": ["a"]}}, "start_timeout_ms": 5}));
        assert_eq!(serde_json::from_value::<Spec>(serde_json::to_value(&probed).unwrap()).unwrap(), probed);
    }

    #[test]
    fn container_without_stop_signal_keeps_its_revision() {
        const BEFORE: &str = "8cb24f85287c22f95b54ba93d941f6a316e2e4b0b83f9f6859b7afa015fbf24f";
        for fields in [json!({}), json!({"stop_signal": "term"}), json!({"stop_signal": "SIGRTMIN+3"})] {
            assert_eq!(spec(fields).revision().unwrap().as_str(), BEFORE);
        }
        let signal = |fields| {
            let Spec::Container(spec) = spec(fields) else { unreachable!() };
            spec.stop_signal
        };
        assert_eq!(signal(json!({})), None);
        for written in [json!("term"), json!("SIGTERM"), json!(15)] {
            assert_eq!(signal(json!({"stop_signal": written})), Some(Signal::Term));
        }
    }

    #[test]
    fn start_timeout_depends_on_revision() {
        let Spec::Container(spec) =
            spec(json!({"started_after_ms": 200, "verify_after_ms": 0, "start_timeout_ms": 5_000}))
        else {
            unreachable!()
        };
        assert_eq!(spec.healthy_within(), 5_200);
    }

    #[test]
    fn written_spec_parses_to_the_same() {
        let whole = spec(json!({
            "entry": ["/bin/sh"], "args": ["-c", "true"], "env": {"A": "b"}, "user": "nobody", "cwd": "/srv",
            "mounts": [{"host": "/srv", "inside": "/data", "read_only": true}], "network": "host",
            "limits": {"memory_bytes": 1_048_576, "cpu": 0.5, "pids": 5}, "stop_signal": "int", "healthy_within_ms": 9,
        }));
        assert_eq!(serde_json::from_value::<Spec>(serde_json::to_value(&whole).unwrap()).unwrap(), whole);
        let masked = serde_json::to_string(&whole.masked()).unwrap();
        assert!(masked.contains(r#""env":{"A":"***"}"#), "{masked}");
    }
}
