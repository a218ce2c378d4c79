//! Containers: the spec of one. The words around it (generation, phase, hold, …) are those of every unit.
//!
//! **Invariant: a host does everything that a spec says, or refuses it by name.** No field is ignored
//! silently: if a runtime does not support one, the unit fails with that reason.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    canonical,
    common::{CommonSpec, ProgramSpec},
    endpoint::{Needed, Provided},
    name::{Digest, Name, UnitName},
    process::{Limits, Resource, Rlimit},
    secret::SecretRef,
    unit::ArtifactRef,
};

/// The most mounts of a container: more than people overlook.
pub const MOUNTS_MAX: usize = 32;

/// The longest name of an image: the limit of registries.
pub const IMAGE_NAME_MAX_BYTES: usize = 255;

/// A container: an image, the program in it, and its access to the host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ContainerSpec {
    /// The container runtime.
    #[serde(default)]
    pub runtime: Runtime,
    /// The image.
    pub image: Image,
    /// The program, in place of the image's entry point.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entry: Option<Vec<String>>,
    /// The host's files that it has access to; at most [`MOUNTS_MAX`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mounts: Vec<Mount>,
    /// Its network.
    #[serde(default)]
    pub network: Network,
    /// The most bytes that it may write, besides its image and mounts, including its own file system's metadata. Not
    /// every host supports this, and it cannot be changed while it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_bytes: Option<u64>,
    /// Limits of each process, as in `setrlimit`; the runtime's own by default. They are set at the start of the first
    /// process, so they cannot be changed while it runs.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub rlimits: BTreeMap<Resource, Rlimit>,
    /// The port inside for an endpoint's port of the host, in a network of its own. By default it is the same.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub ports: BTreeMap<Name, u16>,
    /// Its program.
    #[serde(flatten)]
    pub program: ProgramSpec,
    /// What each kind has.
    #[serde(flatten)]
    pub common: CommonSpec,
}

impl ContainerSpec {
    /// Creates a spec with an image and defaults.
    #[must_use]
    pub fn new(image: Image) -> Self {
        Self {
            runtime: Runtime::default(),
            image,
            entry: None,
            mounts: Vec::new(),
            network: Network::default(),
            disk_bytes: None,
            rlimits: BTreeMap::new(),
            ports: BTreeMap::new(),
            program: ProgramSpec::default(),
            common: CommonSpec::default(),
        }
    }

    /// Returns the digest of the identity fields; a change of one of these is a new container. With `limits` it is the
    /// revision; without, it ignores what can be changed while it runs.
    pub(crate) fn identity(&self, kind: &str, limits: bool) -> Result<Digest, canonical::CanonicalError> {
        let program = &self.program;
        canonical::digest(&Identity {
            kind,
            runtime: self.runtime,
            image: self.image.identity(),
            entry: self.entry.as_deref(),
            args: &program.args,
            env: &program.env,
            render: program.render,
            values: &program.values,
            secrets: &self.common.secrets,
            user: program.user.as_deref(),
            cwd: program.cwd.as_deref(),
            mounts: &self.mounts,
            network: self.network,
            limits: program.limits.some().filter(|_| limits),
            disk_bytes: self.disk_bytes,
            rlimits: &self.rlimits,
            provides: &program.provides,
            ports: &self.ports,
            needs: &program.needs,
            restart_epoch: self.common.restart_epoch,
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
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    render: bool,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    values: &'a BTreeMap<String, serde_json::Value>,
    #[serde(skip_serializing_if = "<[SecretRef]>::is_empty")]
    secrets: &'a [SecretRef],
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

/// A container runtime.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Runtime {
    /// Podman, or Docker: their HTTP interface on the socket that the host's agent is configured with.
    #[default]
    Podman,
    /// LXC, by its own programs: containers from root file systems, with loopback alone or the host's network.
    Lxc,
}

impl Runtime {
    /// Returns its name as in the JSON form.
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

/// The image of a container, or an existing container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Image {
    /// An artifact: a tarball of a root file system.
    Rootfs(ArtifactRef),
    /// An artifact: an archive of one image, as written by `podman save` and `docker save` (OCI or Docker).
    Archive(ArtifactRef),
    /// The name of an image that the host's runtime has, or can pull.
    Name(String),
    /// The name of an existing container that was not created by the agent: the unit adopts it unchanged, and it is
    /// neither recreated nor removed.
    Existing(String),
}

impl Image {
    /// Returns the artifact, if it is one.
    #[must_use]
    pub fn artifact(&self) -> Option<&ArtifactRef> {
        match self {
            Self::Rootfs(artifact) | Self::Archive(artifact) => Some(artifact),
            Self::Name(_) | Self::Existing(_) => None,
        }
    }

    /// Returns the existing container, if it is one.
    #[must_use]
    pub fn existing(&self) -> Option<&str> {
        if let Self::Existing(name) = self { Some(name) } else { None }
    }

    /// Returns the same as [`Image::artifact`], mutable.
    #[must_use]
    pub fn artifact_mut(&mut self) -> Option<&mut ArtifactRef> {
        match self {
            Self::Rootfs(artifact) | Self::Archive(artifact) => Some(artifact),
            Self::Name(_) | Self::Existing(_) => None,
        }
    }

    /// Returns its form, and what identifies it.
    fn identity(&self) -> [&str; 2] {
        match self {
            Self::Rootfs(artifact) => ["rootfs", artifact.sha256.as_str()],
            Self::Archive(artifact) => ["archive", artifact.sha256.as_str()],
            Self::Name(name) => ["name", name],
            Self::Existing(name) => ["existing", name],
        }
    }
}

/// A file or folder of the host that is mounted in a container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Mount {
    /// Its absolute path on the host, which has to exist.
    pub host: String,
    /// Its absolute path inside.
    pub inside: String,
    /// Whether it is read-only.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub read_only: bool,
}

/// The network of a container.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Network {
    /// A network of its own, behind the runtime's bridge; its endpoints are published on the host.
    #[default]
    Bridge,
    /// The host's.
    Host,
    /// Loopback alone.
    None,
}

/// The most containers in a heartbeat: with some 150 bytes for each, half of a message. Those of units come first.
pub const LISTED_MAX: usize = 256;

/// The longest name that is listed; containers with longer ones are left out.
pub const LISTED_NAME_MAX_BYTES: usize = 128;

/// A container of a host, whoever created it, as in heartbeats.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ContainerSummary {
    /// Its runtime.
    pub runtime: Runtime,
    /// Its state.
    pub state: ContainerState,
    /// Its unit; null for a container that the host's agent neither created nor adopted, which it never touches.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unit: Option<UnitName>,
    /// Its image, as its runtime names it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub image: String,
    /// Its limits.
    #[serde(default, skip_serializing_if = "Limits::is_none")]
    pub limits: Limits,
}

/// The state of a container, as its runtime reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ContainerState {
    /// It was created, and never started.
    Made,
    /// It runs.
    Running,
    /// It is frozen.
    Frozen,
    /// It has ended.
    Ended,
    /// The runtime is changing it.
    Busy,
}

impl ContainerState {
    /// Returns the state as in the JSON form.
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
            spec.program.stop_signal
        };
        assert_eq!(signal(json!({})), None);
        for written in [json!("term"), json!("SIGTERM"), json!(15)] {
            assert_eq!(signal(json!({"stop_signal": written})), Some(Signal::Term));
        }
    }

    #[test]
    fn start_timeout_depends_on_revision() {
        let spec = spec(json!({"started_after_ms": 200, "verify_after_ms": 0, "start_timeout_ms": 5_000}));
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
