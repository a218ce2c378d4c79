//! Units: spec and desired state, and the report of both and of the observed state ([`crate::observed`]).

use std::{collections::BTreeMap, sync::Arc};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    Millis, V1, canonical,
    channel::ToldStats,
    common::{CommonSpec, ProgramSpec},
    container::ContainerSpec,
    desired::UnitOwner,
    endpoint::{Needed, Provided},
    files::{Drift, FilesSpec},
    name::{ConfigId, Digest, Name, UnitName, Version},
    packages::PackagesSpec,
    process::{Limits, Log, Process},
    reload::{OnChange, Reload},
    secret::SecretRef,
    signal::Signal,
    snapshot::Pins,
    verb_table::KindName,
};

pub use crate::observed::{
    Beside, Content, Exit, InstanceReport, Observed, ObservedState, Phase, ProcessEnd, Progress, RolledBack,
    TrialReport,
};

/// The spec of a unit, by kind. Another kind needs another variant here, an adapter in the agent (`src/agent/unit/`),
/// and nothing else on the wire.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Spec {
    /// A managed process.
    Yuno(YunoSpec),
    /// A container.
    Container(ContainerSpec),
    /// Files, folders and links.
    Files(FilesSpec),
    /// Packages of the host's package manager.
    Packages(PackagesSpec),
}

impl Spec {
    /// Returns the kind's name as in the JSON form.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        KindName::from(self).as_str()
    }

    /// Returns the same with the values of its environment masked, for reports and lists, which have more readers than
    /// secrets may have. The names stay, because they show what is set.
    #[must_use]
    pub fn masked(&self) -> Self {
        let mut masked = self.clone();
        // Files and packages have secrets by name alone.
        if let Some(program) = masked.program_mut() {
            program.env = mask(&program.env);
        }
        masked
    }

    /// Returns the digest of the frame: specs with other limits, or a yuno with other configs or secrets that it reloads, have the
    /// same frame. A process of one revision can then be changed to the other without a restart.
    ///
    /// # Errors
    /// As [`Self::revision`].
    pub fn frame(&self) -> Result<Digest, canonical::CanonicalError> {
        match self {
            Self::Yuno(spec) => {
                let mut frame = spec.clone();
                frame.program.limits = Limits::default();
                if !spec.reload.is_restart() {
                    frame.configs.clear();
                    frame.config_templates = ConfigTemplates::default();
                    // One in its environment is not read again.
                    if !spec.program.render {
                        frame.common.secrets.clear();
                    }
                }
                Self::Yuno(frame).revision()
            }
            Self::Container(spec) => spec.identity(self.kind(), false),
            Self::Files(_) | Self::Packages(_) => self.revision(),
        }
    }

    /// Returns the bare revision: SHA-256 over the canonical JSON of the identity fields. Two specs of one revision
    /// differ only in what can be changed without a restart. A host reports a keyed one for a spec with an environment
    /// ([`RevisionKey::revision`](crate::revision::RevisionKey::revision)), because the bare one would confirm guesses.
    ///
    /// # Errors
    /// Never for a spec that was parsed from JSON.
    pub fn revision(&self) -> Result<Digest, canonical::CanonicalError> {
        match self {
            Self::Yuno(spec) => spec.identity(self.kind()),
            Self::Container(spec) => spec.identity(self.kind(), true),
            Self::Files(spec) => spec.identity(self.kind()),
            Self::Packages(spec) => spec.identity(self.kind()),
        }
    }
}

/// The mask in place of a possible secret.
pub const MASK: &str = "***";

/// Returns an environment with its values masked.
#[must_use]
pub fn mask(env: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    env.keys().map(|name| (name.clone(), MASK.to_owned())).collect()
}

/// The identity fields of a yuno: a change of one of these is a new revision, and so a new process. Later fields are
/// left out where they are not used, so that existing units keep their revisions.
#[derive(Serialize)]
struct YunoIdentity<'a> {
    kind: &'a str,
    artifact: &'a Digest,
    /// Their order matters for merging, and their ids name files.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    configs: Vec<(&'a ConfigId, &'a Digest)>,
    #[serde(skip_serializing_if = "<[SecretRef]>::is_empty")]
    secrets: &'a [SecretRef],
    /// The templates themselves are content of the configs.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    config_values: &'a BTreeMap<String, serde_json::Value>,
    args: &'a [String],
    env: &'a BTreeMap<String, String>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    render: bool,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    values: &'a BTreeMap<String, serde_json::Value>,
    user: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cwd: Option<&'a str>,
    #[serde(skip_serializing_if = "Limits::is_none")]
    limits: Limits,
    #[serde(skip_serializing_if = "Process::is_none")]
    process: &'a Process,
    #[serde(skip_serializing_if = "Log::is_default")]
    log: Log,
    #[serde(skip_serializing_if = "Channel::is_none")]
    channel: Channel,
    #[serde(skip_serializing_if = "Option::is_none")]
    watchdog_ms: Option<u64>,
    #[serde(skip_serializing_if = "<[Provided]>::is_empty")]
    provides: &'a [Provided],
    #[serde(skip_serializing_if = "<[Needed]>::is_empty")]
    needs: &'a [Needed],
    #[serde(skip_serializing_if = "Option::is_none")]
    container: Option<&'a UnitName>,
    restart_epoch: u64,
}

/// The most configs of one unit: each is a file beside the merged one, and more layers could not be understood.
pub const CONFIGS_MAX: usize = 16;

/// The most templates in the configs of one unit: each is rendered by itself, and they are part of each of its reports.
pub const CONFIG_TEMPLATES_MAX: usize = 128;

/// The most bytes of them: as many as a host renders at once.
pub const CONFIG_TEMPLATES_MAX_BYTES: usize = crate::effective::RENDER_MAX_BYTES;

/// The templates in a unit's configs, `{"$template": "…"}` in place of a text.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ConfigTemplates {
    /// Those that count, as no later config replaces them; at most [`CONFIG_TEMPLATES_MAX`]. The console, which has the
    /// content, fills this in, whatever a command says.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub templates: Vec<ConfigTemplate>,
    /// What they name on the unit's host, each as `vars.colour`, with its value. The host fills this in, whatever a command
    /// says.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub values: BTreeMap<String, serde_json::Value>,
}

impl ConfigTemplates {
    /// Whether there are none.
    #[must_use]
    pub fn is_none(&self) -> bool {
        self.templates.is_empty() && self.values.is_empty()
    }
}

/// A template in a config.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ConfigTemplate {
    /// The config's id.
    pub config: ConfigId,
    /// Its place in it, a JSON pointer, which is its place in the merged config, too.
    pub at: String,
    /// The template.
    pub text: String,
}

/// A managed process: a program and its configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct YunoSpec {
    /// The program.
    pub artifact: ArtifactRef,
    /// Its configs, at most [`CONFIGS_MAX`], each id once. They are merged in this order, later ones over earlier ones
    /// (RFC 7386), and `MUSTER_CONFIG` has the path of the result.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub configs: Vec<ConfigRef>,
    /// The templates in its configs.
    #[serde(default, skip_serializing_if = "ConfigTemplates::is_none")]
    pub config_templates: ConfigTemplates,
    /// How a change of only its configs and secrets is applied to a running process.
    #[serde(default, skip_serializing_if = "Reload::is_restart")]
    pub reload: Reload,
    /// The signal that asks it to read its files again.
    #[serde(default = "reload_signal", skip_serializing_if = "is_reload_signal")]
    pub reload_signal: Signal,
    /// Watched files that it reads, and what is done when one changes; at most
    /// [`ON_CHANGE_MAX`](crate::reload::ON_CHANGE_MAX).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub on_change: Vec<OnChange>,
    /// Further attributes of its processes.
    #[serde(default, skip_serializing_if = "Process::is_none")]
    pub process: Process,
    /// How much of its output is kept.
    #[serde(default, skip_serializing_if = "Log::is_default")]
    pub log: Log,
    /// How it communicates with its agent.
    #[serde(default, skip_serializing_if = "Channel::is_none")]
    pub channel: Channel,
    /// The watchdog: how long it may be silent, once it is up, before it is stopped. It needs a channel.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub watchdog_ms: Option<u64>,
    /// How another revision replaces the running one.
    #[serde(default, skip_serializing_if = "Replace::is_stop_first")]
    pub replace: Replace,
    /// What is done if somebody else, or the disk, changes what it was started from: its artifact and its configs. With
    /// `correct` they are put right, and a process that may run from what was changed is restarted.
    #[serde(default, skip_serializing_if = "Drift::is_correct")]
    pub drift: Drift,
    /// Whether it is for one run: it is not started again with the host, and its host removes it some time after it
    /// ended.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub transient: bool,
    /// The container, a unit of its host, that it runs in; only for a transient unit. `args` is then a program inside
    /// and its arguments, and user and working directory are those inside.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<UnitName>,
    /// Its program.
    #[serde(flatten)]
    pub program: ProgramSpec,
    /// What each kind has.
    #[serde(flatten)]
    pub common: CommonSpec,
}

/// The most units of one host. A full heartbeat has some 150 bytes for each, in a message of 64 KiB with other content.
pub const UNITS_MAX: usize = 256;

impl YunoSpec {
    /// Returns the signal that asks it to end: its own, or else its channel's.
    #[must_use]
    pub fn stop_signal(&self) -> Signal {
        let usual = match self.channel {
            Channel::Lines => Signal::Quit,
            // Programs for systemd expect its signal, and some end badly by any other.
            Channel::None | Channel::Notify => Signal::Term,
        };
        self.program.stop_signal.unwrap_or(usual)
    }

    /// Returns the digest of the identity fields.
    fn identity(&self, kind: &str) -> Result<Digest, canonical::CanonicalError> {
        let program = &self.program;
        canonical::digest(&YunoIdentity {
            kind,
            artifact: &self.artifact.sha256,
            configs: self.configs.iter().map(|config| (&config.id, &config.sha256)).collect(),
            secrets: &self.common.secrets,
            config_values: &self.config_templates.values,
            args: &program.args,
            env: &program.env,
            render: program.render,
            values: &program.values,
            user: program.user.as_deref(),
            cwd: program.cwd.as_deref(),
            limits: program.limits,
            process: &self.process,
            log: self.log,
            channel: self.channel,
            watchdog_ms: self.watchdog_ms,
            provides: &program.provides,
            needs: &program.needs,
            container: self.container.as_ref(),
            restart_epoch: self.common.restart_epoch,
        })
    }

    /// Creates a spec with an artifact and defaults.
    #[must_use]
    pub fn new(artifact: ArtifactRef) -> Self {
        Self {
            artifact,
            configs: Vec::new(),
            config_templates: ConfigTemplates::default(),
            reload: Reload::default(),
            reload_signal: reload_signal(),
            on_change: Vec::new(),
            process: Process::default(),
            log: Log::default(),
            channel: Channel::default(),
            watchdog_ms: None,
            replace: Replace::default(),
            drift: Drift::default(),
            transient: false,
            container: None,
            program: ProgramSpec::default(),
            common: CommonSpec::default(),
        }
    }
}

/// The default of [`YunoSpec::reload_signal`]: that of most daemons.
#[must_use]
pub fn reload_signal() -> Signal {
    Signal::Hup
}

fn is_reload_signal(signal: &Signal) -> bool {
    *signal == reload_signal()
}

/// How a yuno communicates with its agent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Channel {
    /// Not at all: it counts as running once it has stayed up for a while.
    #[default]
    None,
    /// By systemd's notify protocol: it is running once it has sent `READY=1` to the socket in `NOTIFY_SOCKET`.
    Notify,
    /// By JSON lines ([`crate::channel`]): it is running once it has sent `ready`, and can be sent requests.
    Lines,
}

impl Channel {
    /// Whether there is none.
    #[must_use]
    pub fn is_none(&self) -> bool {
        *self == Self::None
    }
}

/// When a unit that ended unexpectedly is restarted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Restart {
    /// However it ended.
    #[default]
    Always,
    /// Unless it ended with exit code 0.
    OnFailure,
    /// Never.
    Never,
}

/// How another revision replaces the running one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Replace {
    /// The running process is stopped before the other is started.
    #[default]
    StopFirst,
    /// The other is started beside the running process, which is stopped once the other is up, and continues unchanged
    /// if that fails. So both run for a while, with the same endpoints.
    StartFirst,
}

impl Replace {
    /// Whether the running process is stopped first.
    #[must_use]
    pub fn is_stop_first(&self) -> bool {
        *self == Self::StopFirst
    }
}

/// What happens if a change of revision fails.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Rollback {
    /// It is rolled back automatically to the last verified revision, if there is one.
    #[default]
    Auto,
    /// It stays in the desired revision.
    Never,
}

impl Rollback {
    /// Whether it is rolled back automatically.
    #[must_use]
    pub fn is_auto(&self) -> bool {
        *self == Self::Auto
    }
}

/// An immutable blob, identified by its SHA-256; role and version are labels of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ArtifactRef {
    /// Its SHA-256.
    pub sha256: Digest,
    /// Its length.
    pub size_bytes: u64,
    /// Its role.
    pub role: Name,
    /// Its version.
    pub version: Version,
    /// The SHA-256 of its manifest's canonical JSON, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub manifest: Option<Digest>,
}

/// An immutable document, identified by the SHA-256 of its canonical JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ConfigRef {
    /// Its id.
    pub id: ConfigId,
    /// Its version.
    pub version: Version,
    /// Its SHA-256.
    pub sha256: Digest,
}

/// Whether a unit should run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Run {
    /// It should not run.
    Stopped,
    /// It should run.
    Running,
    /// It should run and play, which only a yuno with that ability can.
    Playing,
}

impl Run {
    /// Whether it should run, playing or not.
    #[must_use]
    pub fn is_running(self) -> bool {
        self != Self::Stopped
    }
}

/// The visible reason why a unit does not converge, on purpose.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Hold {
    /// The reason.
    pub reason: HoldReason,
    /// Since when.
    pub since_ms: Millis,
    /// The operator who holds it, if it is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<Name>,
    /// The operator's reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// The longest note of a hold, in characters: a line for people, and part of each report of the unit.
pub const NOTE_MAX_CHARS: usize = 200;

impl Hold {
    /// Creates a hold without a note.
    #[must_use]
    pub fn new(reason: HoldReason, since_ms: Millis) -> Self {
        Self { reason, since_ms, by: None, note: None }
    }

    /// Returns the same without its note, for lists in messages of limited size.
    #[must_use]
    pub fn in_short(&self) -> Self {
        Self { note: None, ..self.clone() }
    }
}

impl std::fmt::Display for Hold {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.reason.as_str())?;
        if let Some(by) = &self.by {
            write!(f, " {by}")?;
        }
        if let Some(note) = &self.note {
            write!(f, ": {note}")?;
        }
        Ok(())
    }
}

/// Why a unit is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum HoldReason {
    /// By an operator. It lasts until `unhold`, whatever else is desired meanwhile.
    Operator,
    /// A dependency is missing or does not run (yet), or its realm is disabled. It ends by itself when that is over.
    Dependency,
    /// It ended too often. It lasts until its desired state is changed or another attempt requested.
    Broken,
    /// It wants what another unit of its host has, such as a path. It ends by itself when that is over.
    Conflict,
}

impl HoldReason {
    /// Returns the reason as in the JSON form.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Operator => "operator",
            Self::Dependency => "dependency",
            Self::Broken => "broken",
            Self::Conflict => "conflict",
        }
    }
}

/// Payload of `s/<slot>/h/<host>/unit/<realm>/<unit>`; empty once the unit is removed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct UnitReport {
    /// Version of this payload.
    pub v: V1,
    /// The epoch of the agent.
    pub epoch: u64,
    /// The number, which grows by one with each report of the epoch: a later one supersedes an earlier one.
    pub seq: u64,
    /// When it was made, by the agent's clock.
    pub at_ms: Millis,
    /// The unit.
    pub unit: UnitName,
    /// Its desired state.
    pub desired: Desired,
    /// Its observed state.
    pub observed: Observed,
    /// Why it does not converge, on purpose.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hold: Option<Hold>,
    /// The deployment that it belongs to, if a verb has not made it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<UnitOwner>,
    /// What snapshots need of it beyond its desired state.
    #[serde(default, skip_serializing_if = "Pins::is_empty")]
    pub pins: Pins,
    /// The statistics that it sent last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stats: Option<ToldStats>,
}

/// The desired state of a unit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Desired {
    /// The generation, which orders desired states.
    pub generation: u64,
    /// The revision of `spec`: comparable with other revisions of this unit on this host only. With an environment it
    /// is keyed for its host, so that it confirms no guess at masked values.
    pub revision: Digest,
    /// The spec. In reports and lists the values of its environment are masked.
    pub spec: Arc<Spec>,
    /// Whether it should run.
    pub run: Run,
    /// Whether it should be frozen while it runs.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub frozen: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec() -> YunoSpec {
        serde_json::from_str(&format!(
            r#"{{"artifact":{{"sha256":"{}","size_bytes":7,"role":"hello","version":"1"}}}}"#,
            Digest::of(b"hello")
        ))
        .unwrap()
    }

    #[track_caller]
    fn check(same: bool, change: impl FnOnce(&mut YunoSpec)) {
        let mut changed = spec();
        change(&mut changed);
        let (before, after) = (Spec::Yuno(spec()).revision().unwrap(), Spec::Yuno(changed).revision().unwrap());
        assert_eq!(before == after, same);
    }

    #[test]
    fn identity_fields_make_a_new_revision() {
        check(false, |spec| spec.artifact.sha256 = Digest::of(b"other"));
        check(false, |spec| spec.program.args.push("-v".to_owned()));
        check(false, |spec| drop(spec.program.env.insert("A".to_owned(), "b".to_owned())));
        check(false, |spec| spec.program.user = Some("nobody".to_owned()));
        check(false, |spec| spec.common.restart_epoch += 1);
        check(false, |spec| spec.program.cwd = Some("/srv".to_owned()));
        check(false, |spec| spec.program.limits.memory_bytes = Some(1));
        check(false, |spec| spec.process.nice = Some(0));
        check(false, |spec| spec.log.keep = 9);
        check(false, |spec| spec.channel = Channel::Notify);
        check(false, |spec| spec.channel = Channel::Lines);
        check(false, |spec| spec.watchdog_ms = Some(9));
        check(false, |spec| spec.program.provides = serde_json::from_str(r#"[{"name":"http"}]"#).unwrap());
        check(false, |spec| spec.program.needs = serde_json::from_str(r#"[{"name":"db"}]"#).unwrap());
        check(false, |spec| drop(spec.config_templates.values.insert("vars.a".to_owned(), 1.into())));
    }

    #[test]
    fn new_field_keeps_old_revisions() {
        let revision = Spec::Yuno(spec()).revision().unwrap();
        assert_eq!(revision.as_str(), "15dc1689bb9564b4007983de0ac8df06c40936f723b44e5ba76405f53c2c4425");
    }

    fn config(id: &str) -> ConfigRef {
        ConfigRef { id: id.parse().unwrap(), version: "1".parse().unwrap(), sha256: Digest::of(id.as_bytes()) }
    }

    #[test]
    fn field_that_is_not_known_is_refused() {
        let with = |key: &str, value: serde_json::Value| {
            let mut json = serde_json::to_value(Spec::Yuno(spec())).unwrap();
            json[key] = value;
            serde_json::from_value::<Spec>(json)
        };
        assert_eq!(with("args", serde_json::json!(["-v"])).unwrap().program().unwrap().args, ["-v"]);
        assert_eq!(with("priority", 3.into()).unwrap().common().priority, 3);
        let error = with("config", serde_json::json!([config("a")])).unwrap_err().to_string();
        assert!(error.contains("unknown field `config`"), "{error}");
    }

    #[test]
    fn order_of_configs_changes_revision() {
        let of = |ids: &[&str]| {
            let spec = YunoSpec { configs: ids.iter().map(|id| config(id)).collect(), ..spec() };
            Spec::Yuno(spec).revision().unwrap()
        };
        let all = [of(&[]), of(&["a"]), of(&["b"]), of(&["a", "b"]), of(&["b", "a"])];
        assert_eq!(all.iter().collect::<std::collections::BTreeSet<_>>().len(), all.len());
    }

    #[test]
    fn secrets_are_masked_in_debug_output() {
        let mut spec = spec();
        spec.program.env.insert("PASSWORD".to_owned(), "hunter2".to_owned());
        let masked = serde_json::to_string(&Spec::Yuno(spec).masked()).unwrap();
        assert!(masked.contains("PASSWORD") && !masked.contains("hunter2"), "{masked}");
    }

    #[test]
    fn frame_excludes_limits_and_reloadable_configs() {
        let frame = |change: &dyn Fn(&mut YunoSpec)| {
            let mut spec = YunoSpec { reload: Reload::Signal, ..spec() };
            change(&mut spec);
            Spec::Yuno(spec).frame().unwrap()
        };
        let bare = frame(&|_| ());
        assert_eq!(frame(&|spec| spec.configs = vec![config("a")]), bare);
        assert_eq!(frame(&|spec| spec.configs = vec![config("a"), config("b")]), bare);
        assert_eq!(frame(&|spec| spec.program.limits.pids = Some(5)), bare);
        assert_eq!(frame(&|spec| drop(spec.config_templates.values.insert("vars.a".to_owned(), 1.into()))), bare);
        assert_ne!(frame(&|spec| spec.program.args.push("x".to_owned())), bare);
        let restarts = |id: &'static str, pids| {
            frame(&move |spec| {
                spec.reload = Reload::Restart;
                spec.configs = vec![config(id)];
                spec.program.limits.pids = pids;
            })
        };
        assert_ne!(restarts("a", None), restarts("b", None));
        assert_eq!(restarts("a", None), restarts("a", Some(5)));
    }

    #[test]
    fn default_stop_signal_follows_channel() {
        let of = |channel, stop_signal| {
            let mut spec = YunoSpec { channel, ..spec() };
            spec.program.stop_signal = stop_signal;
            spec.stop_signal()
        };
        assert_eq!([of(Channel::None, None), of(Channel::Notify, None)], [Signal::Term; 2]);
        assert_eq!(of(Channel::Lines, None), Signal::Quit);
        assert_eq!(of(Channel::Lines, Some(Signal::Term)), Signal::Term);
    }

    #[test]
    fn other_fields_apply_in_place() {
        check(true, |_| ());
        check(true, |spec| spec.reload = Reload::Signal);
        check(true, |spec| spec.reload_signal = Signal::Usr1);
        check(true, |spec| spec.on_change.push(OnChange { path: "/a".to_owned(), action: Reload::Signal }));
        check(true, |spec| spec.program.grace_ms = 1);
        check(true, |spec| spec.program.started_after_ms = 1);
        check(true, |spec| spec.program.start_timeout_ms = 1);
        check(true, |spec| spec.program.stop_signal = Some(Signal::Quit));
        check(true, |spec| spec.program.restart = Restart::Never);
        check(true, |spec| spec.program.probes = serde_json::from_str(r#"{"live":{"tcp":{"port":1}}}"#).unwrap());
        check(true, |spec| spec.replace = Replace::StartFirst);
        check(true, |spec| spec.common.rollback = Rollback::Never);
        check(true, |spec| spec.common.verify_after_ms = Some(1));
        check(true, |spec| spec.program.healthy_within_ms = Some(1));
        check(true, |spec| spec.common.priority = 0);
        check(true, |spec| spec.common.requires.push("default/db".parse().unwrap()));
        check(true, |spec| drop(spec.common.labels.insert("tier".parse().unwrap(), "gold".parse().unwrap())));
        check(true, |spec| spec.artifact.version = "2".parse().unwrap());
        check(true, |spec| {
            let text = "{{ vars.a }}".to_owned();
            spec.config_templates.templates.push(ConfigTemplate {
                config: "a".parse().unwrap(),
                at: "/a".to_owned(),
                text,
            });
        });
    }
}
