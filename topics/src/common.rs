//! What the specs of several kinds have in common, accessible without knowing the kind.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    container::ContainerSpec,
    endpoint::{Needed, Provided},
    name::{LabelValue, Name, UnitName},
    probe::Probes,
    process::Limits,
    secret::SecretRef,
    signal::Signal,
    unit::{ArtifactRef, Channel, ConfigRef, ConfigTemplate, ConfigTemplates, Restart, Rollback, Spec, YunoSpec},
};

/// The fields that a spec of each kind has. They stand beside the kind's own in its JSON form.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CommonSpec {
    /// The secrets of its realm that its configs or templates name, each with the version that it gets, by name; at most
    /// [`SECRETS_MAX`](crate::secret::SECRETS_MAX). The console fills this in, whatever a command says.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub secrets: Vec<SecretRef>,
    /// Counts requested restarts: a higher number is a new revision of otherwise the same unit. Files are written anew,
    /// and upgrades of packages without a version are looked for.
    #[serde(default)]
    pub restart_epoch: u64,
    /// What happens if a change of revision fails.
    #[serde(default, skip_serializing_if = "Rollback::is_auto")]
    pub rollback: Rollback,
    /// How long it has to be up in a revision, without a failure, before that is verified, so that a later failure
    /// rolls back to it; [`Spec::verify_after_ms`] has the default of each kind.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verify_after_ms: Option<u64>,
    /// Its labels, for selectors. At most [`LABELS_MAX`].
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<Name, LabelValue>,
    /// Units of this host that it waits for while they are starting. At most [`NEEDS_MAX`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub after: Vec<UnitName>,
    /// Units of this host that have to run before it is started. At most [`NEEDS_MAX`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub requires: Vec<UnitName>,
    /// The priority among units that start at the same time, and in conflicts, from 0 to [`PRIORITY_MAX`]: lower numbers
    /// first.
    #[serde(default = "priority", skip_serializing_if = "is_priority")]
    pub priority: u8,
}

impl Default for CommonSpec {
    fn default() -> Self {
        Self {
            secrets: Vec::new(),
            restart_epoch: 0,
            rollback: Rollback::default(),
            verify_after_ms: None,
            labels: BTreeMap::new(),
            after: Vec::new(),
            requires: Vec::new(),
            priority: priority(),
        }
    }
}

/// The most units in `after`, and in `requires`: more could not be understood.
pub const NEEDS_MAX: usize = 32;

/// The most labels of a unit: what fits on a screen beside the rest.
pub const LABELS_MAX: usize = 32;

/// The highest [`CommonSpec::priority`].
pub const PRIORITY_MAX: u8 = 9;

/// The default of [`CommonSpec::priority`]: the middle.
#[must_use]
pub fn priority() -> u8 {
    5
}

fn is_priority(number: &u8) -> bool {
    *number == priority()
}

/// The fields of kinds with a program. They stand beside the kind's own in its JSON form. A yuno's program is a process of
/// its host, a container's is inside.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ProgramSpec {
    /// The arguments; those of a container are its whole command without an entry point, and the image's own by default.
    /// `{config}` stands for the path of a yuno's configuration, `{port:NAME}` and `{address:NAME}` for an endpoint that it
    /// provides, `{endpoint:NAME}` for one that it requires.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub args: Vec<String>,
    /// The environment, in addition to the few variables that the agent sets, and to those of an image.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// Whether its arguments, a container's entry point and the values of its environment are templates, which its host
    /// renders.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub render: bool,
    /// What its templates name on its host, each as `vars.colour`, with its value. The host fills this in, whatever a command
    /// says: so a change of a value is a change of the unit.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub values: BTreeMap<String, serde_json::Value>,
    /// The user that it runs as, by default the agent's own; inside a container `user` or `user:group`, by name or number,
    /// by default the image's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// The working directory, an absolute path; by default a folder of its own, or the image's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// The limits of all its processes together. They can be changed while it runs.
    #[serde(default, skip_serializing_if = "Limits::is_none")]
    pub limits: Limits,
    /// The endpoints that it provides, each with a port that its host leases to it: in `MUSTER_PORT_NAME` (and its
    /// address in `MUSTER_ADDRESS_NAME`), as `{port:NAME}` in arguments, and under `endpoints` in a yuno's configuration.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub provides: Vec<Provided>,
    /// The endpoints that it requires, each as `ADDRESS:PORT` in `MUSTER_ENDPOINT_NAME`, as `{endpoint:NAME}` in
    /// arguments, and under `connectors` in a yuno's configuration. If one is missing the unit is held. They are the host's,
    /// so a container needs the host's network for them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub needs: Vec<Needed>,
    /// Probes for whether it is up, ready and alive, in addition to a yuno's own reports. A command runs inside a container;
    /// a connection goes to an endpoint that it provides, at its port of the host, so a number is the port inside of an
    /// endpoint.
    #[serde(default, skip_serializing_if = "Probes::is_none")]
    pub probes: Probes,
    /// How long it may take to come up, by its channel and its probes, before it is stopped. It has no effect without a
    /// channel and probes.
    #[serde(default = "start_timeout_ms", skip_serializing_if = "is_start_timeout_ms")]
    pub start_timeout_ms: u64,
    /// When it is restarted automatically.
    #[serde(default)]
    pub restart: Restart,
    /// How long it may take to come up in another revision before that has failed; [`Spec::healthy_within`] by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub healthy_within_ms: Option<u64>,
    /// The signal that asks it to end; by default SIGQUIT with the channel `lines`, that of its image, or SIGTERM.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop_signal: Option<Signal>,
    /// How long it may take to end before it is killed, with all its processes.
    #[serde(default = "grace_ms")]
    pub grace_ms: u64,
    /// How long it has to stay up to count as running, without a channel and without a start or ready probe.
    #[serde(default = "started_after_ms")]
    pub started_after_ms: u64,
}

impl Default for ProgramSpec {
    fn default() -> Self {
        Self {
            args: Vec::new(),
            env: BTreeMap::new(),
            render: false,
            values: BTreeMap::new(),
            user: None,
            cwd: None,
            limits: Limits::default(),
            provides: Vec::new(),
            needs: Vec::new(),
            probes: Probes::default(),
            start_timeout_ms: start_timeout_ms(),
            restart: Restart::default(),
            healthy_within_ms: None,
            stop_signal: None,
            grace_ms: grace_ms(),
            started_after_ms: started_after_ms(),
        }
    }
}

/// The default of [`ProgramSpec::grace_ms`]: thirty seconds.
#[must_use]
pub fn grace_ms() -> u64 {
    30_000
}

/// The default of [`ProgramSpec::started_after_ms`]: one second.
#[must_use]
pub fn started_after_ms() -> u64 {
    1_000
}

/// The default of [`ProgramSpec::start_timeout_ms`]: a minute and a half, as in systemd.
#[must_use]
pub fn start_timeout_ms() -> u64 {
    90_000
}

fn is_start_timeout_ms(ms: &u64) -> bool {
    *ms == start_timeout_ms()
}

/// The default of [`CommonSpec::verify_after_ms`] for what has a program: ten seconds. A process that cannot read its
/// config or bind its port ends within the first; one that cannot connect to what it requires gives up within a few.
pub const PROGRAM_VERIFY_AFTER_MS: u64 = 10_000;

/// The default of the same for files and packages: a second. What is written wrongly is found while it is written.
pub const CONTENT_VERIFY_AFTER_MS: u64 = 1_000;

impl Spec {
    /// Returns the fields that each kind has.
    #[must_use]
    pub fn common(&self) -> &CommonSpec {
        match self {
            Self::Yuno(spec) => &spec.common,
            Self::Container(spec) => &spec.common,
            Self::Files(spec) => &spec.common,
            Self::Packages(spec) => &spec.common,
        }
    }

    /// Returns the same, mutable.
    #[must_use]
    pub fn common_mut(&mut self) -> &mut CommonSpec {
        match self {
            Self::Yuno(spec) => &mut spec.common,
            Self::Container(spec) => &mut spec.common,
            Self::Files(spec) => &mut spec.common,
            Self::Packages(spec) => &mut spec.common,
        }
    }

    /// Returns the fields of its program, if it has one: a process, an environment, limits and probes.
    #[must_use]
    pub fn program(&self) -> Option<&ProgramSpec> {
        match self {
            Self::Yuno(spec) => Some(&spec.program),
            Self::Container(spec) => Some(&spec.program),
            Self::Files(_) | Self::Packages(_) => None,
        }
    }

    /// Returns the same, mutable.
    #[must_use]
    pub fn program_mut(&mut self) -> Option<&mut ProgramSpec> {
        match self {
            Self::Yuno(spec) => Some(&mut spec.program),
            Self::Container(spec) => Some(&mut spec.program),
            Self::Files(_) | Self::Packages(_) => None,
        }
    }

    /// Returns how long it has to be up in a revision before that is verified, in milliseconds: as in its spec, or the
    /// default of its kind.
    #[must_use]
    pub fn verify_after_ms(&self) -> u64 {
        let usual = if self.program().is_some() { PROGRAM_VERIFY_AFTER_MS } else { CONTENT_VERIFY_AFTER_MS };
        self.common().verify_after_ms.unwrap_or(usual)
    }

    /// Returns how long it may take to come up in another revision, in milliseconds: as in its spec, or its start timeout
    /// plus the time that it then has to stay up, twice. By then a process that hangs at its start has been stopped; a
    /// container's runtime needs that time to create it on a slow disk, and to start it. What has no program is up at once.
    #[must_use]
    pub fn healthy_within(&self) -> u64 {
        let Some(program) = self.program() else { return 0 };
        let slack_ms = program.started_after_ms.saturating_add(self.verify_after_ms());
        program.healthy_within_ms.unwrap_or_else(|| program.start_timeout_ms.saturating_add(slack_ms))
    }

    /// Returns a yuno's own fields, if it is one.
    #[must_use]
    pub fn yuno(&self) -> Option<&YunoSpec> {
        match self {
            Self::Yuno(spec) => Some(spec),
            Self::Container(_) | Self::Files(_) | Self::Packages(_) => None,
        }
    }

    /// Returns a container's own fields, if it is one.
    #[must_use]
    pub fn container(&self) -> Option<&ContainerSpec> {
        match self {
            Self::Container(spec) => Some(spec),
            Self::Yuno(_) | Self::Files(_) | Self::Packages(_) => None,
        }
    }

    /// Returns its environment; what has no program has none.
    #[must_use]
    pub fn env(&self) -> &BTreeMap<String, String> {
        static NONE: BTreeMap<String, String> = BTreeMap::new();
        self.program().map_or(&NONE, |program| &program.env)
    }

    /// Returns its arguments; what has no program has none.
    #[must_use]
    pub fn args(&self) -> &[String] {
        self.program().map_or(&[], |program| &program.args)
    }

    /// Returns the user that its program runs as, on its host or inside a container, if it names one.
    #[must_use]
    pub fn user(&self) -> Option<&str> {
        self.program().and_then(|program| program.user.as_deref())
    }

    /// Returns its limits; what has no program has none.
    #[must_use]
    pub fn limits(&self) -> Limits {
        self.program().map(|program| program.limits).unwrap_or_default()
    }

    /// Returns the endpoints that it provides.
    #[must_use]
    pub fn provides(&self) -> &[Provided] {
        self.program().map_or(&[], |program| &program.provides)
    }

    /// Returns the endpoints that it requires.
    #[must_use]
    pub fn needs(&self) -> &[Needed] {
        self.program().map_or(&[], |program| &program.needs)
    }

    /// Returns its probes.
    #[must_use]
    pub fn probes(&self) -> &Probes {
        static NONE: Probes = Probes { start: None, ready: None, live: None };
        self.program().map_or(&NONE, |program| &program.probes)
    }

    /// Returns its artifact, if it has one.
    #[must_use]
    pub fn artifact(&self) -> Option<&ArtifactRef> {
        match self {
            Self::Yuno(spec) => Some(&spec.artifact),
            Self::Container(spec) => spec.image.artifact(),
            Self::Files(_) | Self::Packages(_) => None,
        }
    }

    /// Returns all its artifacts: units of files may have several.
    #[must_use]
    pub fn artifacts(&self) -> Vec<&ArtifactRef> {
        match self {
            Self::Files(spec) => spec.files.values().filter_map(|entry| entry.artifact.as_ref()).collect(),
            Self::Yuno(_) | Self::Container(_) | Self::Packages(_) => self.artifact().into_iter().collect(),
        }
    }

    /// Returns the same, mutable.
    #[must_use]
    pub fn artifact_mut(&mut self) -> Option<&mut ArtifactRef> {
        match self {
            Self::Yuno(spec) => Some(&mut spec.artifact),
            Self::Container(spec) => spec.image.artifact_mut(),
            Self::Files(_) | Self::Packages(_) => None,
        }
    }

    /// Returns its configs; some kinds have none.
    #[must_use]
    pub fn configs(&self) -> &[ConfigRef] {
        self.yuno().map_or(&[], |yuno| &yuno.configs)
    }

    /// Returns the same, mutable.
    #[must_use]
    pub fn configs_mut(&mut self) -> &mut [ConfigRef] {
        match self {
            Self::Yuno(spec) => &mut spec.configs,
            Self::Container(_) | Self::Files(_) | Self::Packages(_) => &mut [],
        }
    }

    /// Returns what its templates name on its host, with the values; some kinds have no templates.
    #[must_use]
    pub fn values(&self) -> Option<&BTreeMap<String, serde_json::Value>> {
        match self {
            Self::Yuno(spec) => Some(&spec.program.values),
            Self::Files(spec) => Some(&spec.values),
            Self::Container(spec) => Some(&spec.program.values),
            Self::Packages(_) => None,
        }
    }

    /// Replaces these, for a kind that has templates.
    pub fn set_values(&mut self, values: BTreeMap<String, serde_json::Value>) {
        match self {
            Self::Yuno(spec) => spec.program.values = values,
            Self::Files(spec) => spec.values = values,
            Self::Container(spec) => spec.program.values = values,
            Self::Packages(_) => {}
        }
    }

    /// Returns the templates in its configs; some kinds have no configs.
    #[must_use]
    pub fn config_templates(&self) -> &[ConfigTemplate] {
        self.yuno().map_or(&[], |yuno| &yuno.config_templates.templates)
    }

    /// Replaces these, for a kind that has configs. What they name has no values then.
    pub fn set_config_templates(&mut self, templates: Vec<ConfigTemplate>) {
        if let Self::Yuno(spec) = self {
            spec.config_templates = ConfigTemplates { templates, values: BTreeMap::new() };
        }
    }

    /// Returns what the templates in its configs name on its host, with the values.
    #[must_use]
    pub fn config_values(&self) -> Option<&BTreeMap<String, serde_json::Value>> {
        self.yuno().map(|yuno| &yuno.config_templates.values)
    }

    /// Replaces these, for a kind that has configs.
    pub fn set_config_values(&mut self, values: BTreeMap<String, serde_json::Value>) {
        if let Self::Yuno(spec) = self {
            spec.config_templates.values = values;
        }
    }

    /// Takes all that a host fills in from the spec before.
    pub fn keep_values(&mut self, before: &Self) {
        self.set_values(before.values().cloned().unwrap_or_default());
        self.set_config_values(before.config_values().cloned().unwrap_or_default());
    }

    /// Whether it has any of what a host fills in.
    #[must_use]
    pub fn has_values(&self) -> bool {
        let has_any = |values: Option<&BTreeMap<_, _>>| values.is_some_and(|values| !values.is_empty());
        has_any(self.values()) || has_any(self.config_values())
    }

    /// Returns its channel.
    #[must_use]
    pub fn channel(&self) -> Channel {
        self.yuno().map_or(Channel::None, |yuno| yuno.channel)
    }

    /// Whether it is for one run.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        self.yuno().is_some_and(|yuno| yuno.transient)
    }

    /// Returns the user of its host that it runs as; `None` for the agent's own. A container's runtime runs as the
    /// agent does, whatever the user inside.
    #[must_use]
    pub fn host_user(&self) -> Option<&str> {
        self.yuno().and_then(|yuno| yuno.program.user.as_deref())
    }
}
