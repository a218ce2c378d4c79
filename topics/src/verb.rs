//! Verbs: what a command asks for. [`verb_table`](crate::verb_table) says of each what everybody has to know of it.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::count::counted;
use crate::{
    argv,
    command::{Batch, Exec, Forward, LogView, OUTPUT_MAX_BYTES, UnitSet},
    desired::{DeploymentName, PlanQuestion},
    name::{CommandId, Digest, LabelValue, Name, UnitName},
    outcome::Stream,
    secret::SecretRef,
    signal::Signal,
    unit::{ArtifactRef, ConfigRef, ConfigTemplates, Run, Spec},
    verb_table::VerbClass,
};

/// What to do.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Verb {
    /// Run a program once.
    Exec(Exec),
    /// Run several programs, one after the other. Local policies treat it as `exec`.
    Batch(Batch),
    /// Create or change a unit.
    UnitApply {
        /// The unit.
        unit: UnitName,
        /// Its new spec.
        spec: Box<Spec>,
        /// Whether it should run; if left out, an existing unit keeps its state, and a new one is stopped.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        run: Option<Run>,
    },
    /// Create or change several units, all or none; or only check whether that could be done. Local policies treat it
    /// as `unit_apply`.
    UnitsApply(UnitSet),
    /// Start a unit.
    UnitRun {
        /// The unit.
        unit: UnitName,
    },
    /// Stop a unit.
    UnitStop {
        /// The unit.
        unit: UnitName,
    },
    /// Restart a unit.
    UnitRestart {
        /// The unit.
        unit: UnitName,
    },
    /// Pause reconciliation of a unit until `unit_unhold`: a running instance continues, and a stopped one is not
    /// started. Only a stop still works.
    UnitHold {
        /// The unit.
        unit: UnitName,
        /// The reason, in at most [`crate::unit::NOTE_MAX_CHARS`] characters.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        note: Option<String>,
    },
    /// End a unit's hold, an operator's or that of a broken one, and forget its earlier failures.
    UnitUnhold {
        /// The unit.
        unit: UnitName,
    },
    /// Stop a unit and hold it, which is required before it can be removed.
    UnitRetire {
        /// The unit.
        unit: UnitName,
        /// The reason, as with a hold.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        note: Option<String>,
    },
    /// Change a unit's labels; those that are not named stay.
    UnitLabel {
        /// The unit.
        unit: UnitName,
        /// Each label with its new value, or with null to remove it.
        labels: BTreeMap<Name, Option<LabelValue>>,
    },
    /// Give a unit another artifact, other configs or newer secrets, and change nothing else.
    UnitUpgrade {
        /// The unit.
        unit: UnitName,
        /// The revision that this was planned for. It is refused if another one is desired by now.
        from: Digest,
        /// The new artifact; if left out, it stays.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        artifact: Option<ArtifactRef>,
        /// The new configs, each in place of the one with its id.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        configs: Vec<ConfigRef>,
        /// The secrets of its configs, all of them; if left out, they stay. The console fills this in.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        secrets: Option<Vec<SecretRef>>,
        /// The templates in its configs, all of them; if left out, they stay. The console fills this in.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        config_templates: Option<ConfigTemplates>,
    },
    /// Freeze a unit that should run, with all its processes. It can still be stopped.
    UnitFreeze {
        /// The unit.
        unit: UnitName,
    },
    /// Thaw a frozen unit.
    UnitThaw {
        /// The unit.
        unit: UnitName,
    },
    /// Send a signal to a unit's main process. It does not change the desired state.
    UnitSignal {
        /// The unit.
        unit: UnitName,
        /// The signal.
        signal: Signal,
    },
    /// Remove a retired unit: one that is stopped, and held by an operator.
    UnitRm {
        /// The unit.
        unit: UnitName,
    },
    /// Make a unit of a deployment one that verbs change. It goes on as it is. As long as the host's document lists it, the
    /// deployment refuses further versions on this host.
    UnitDetach {
        /// The unit.
        unit: UnitName,
    },
    /// Return the last lines of a unit's log as output.
    UnitLogs {
        /// The unit.
        unit: UnitName,
        /// How many lines, at most [`LOG_LINES_MAX`].
        lines: u32,
        /// Which part, and its format.
        #[serde(default, skip_serializing_if = "LogView::is_plain")]
        view: LogView,
    },
    /// Return the last lines of a unit's log and later ones as output, until the time is over, the command is
    /// cancelled, or the limit of output is reached.
    UnitFollow {
        /// The unit.
        unit: UnitName,
        /// How many earlier lines.
        lines: u32,
        /// Which part of those, and the format.
        #[serde(default, skip_serializing_if = "LogView::is_plain")]
        view: LogView,
        /// For how long, at most [`FOLLOW_MAX_MS`].
        for_ms: u64,
    },
    /// Cancel a command: its program is asked to end and soon killed, a log is not followed any more, and a command
    /// that has not arrived yet is refused when it does. A finished command is not changed.
    Cancel {
        /// The command.
        command: CommandId,
    },
    /// Set a realm to its definition in [`Command::realms`].
    RealmSet {
        /// The realm.
        realm: Name,
    },
    /// Remove a realm that has no units.
    RealmRm {
        /// The realm.
        realm: Name,
    },
    /// Save the desired state of every unit of the host under a name. Repeating it succeeds; other units under an
    /// existing name are refused.
    SnapshotCreate {
        /// The snapshot.
        snapshot: Name,
    },
    /// Return the host's snapshots as output: [`Snapshots`](crate::snapshot::Snapshots).
    SnapshotLs,
    /// Return how each unit differs from a snapshot, as output: a [`SnapshotDiff`](crate::snapshot::SnapshotDiff).
    SnapshotDiff {
        /// The snapshot.
        snapshot: Name,
    },
    /// Restore each unit of a snapshot. Unchanged units are not touched.
    SnapshotActivate {
        /// The snapshot.
        snapshot: Name,
    },
    /// Restore each unit that the activation of a snapshot has changed to its earlier state.
    SnapshotDeactivate {
        /// The snapshot.
        snapshot: Name,
    },
    /// Remove a snapshot that is not active.
    SnapshotRm {
        /// The snapshot.
        snapshot: Name,
    },
    /// Return the configuration that a unit's process reads, as stored on the host: an
    /// [`Effective`](crate::effective::Effective), as output.
    UnitConfig {
        /// The unit.
        unit: UnitName,
    },
    /// Return the tasks of a unit, what its changes owe, and the log of one task: [`UnitTasks`](crate::task::UnitTasks), as output.
    UnitTasks {
        /// The unit.
        unit: UnitName,
        /// The number of the task whose log is returned, too.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        log: Option<u64>,
        /// From which position of its log on: the end of what was read before.
        #[serde(default, skip_serializing_if = "is_zero")]
        from: u64,
    },
    /// Render templates as the host would, with secrets masked, and change nothing: a
    /// [`RenderedTexts`](crate::effective::RenderedTexts), as output.
    Render {
        /// The unit that they are for, which need not be there; without one there is nothing of a unit to name.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        unit: Option<UnitName>,
        /// The deployment of the unit.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        deployment: Option<DeploymentName>,
        /// The templates by name, of at most [`RENDER_MAX_BYTES`](crate::effective::RENDER_MAX_BYTES) together. Without any, they
        /// are those of the unit, as it runs now.
        templates: BTreeMap<String, String>,
    },
    /// Return what a document would change of this host, compared with what is really there, and change nothing.
    Plan(PlanQuestion),
    /// Make a yuno play, which it confirms on its channel.
    UnitPlay {
        /// The unit.
        unit: UnitName,
        /// Start it if it should not run; otherwise that is refused.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        run: bool,
    },
    /// Make a yuno run without playing.
    UnitPause {
        /// The unit.
        unit: UnitName,
    },
    /// Send yunos a command of their own, on their channels. The answer, on standard output, is one JSON object with a
    /// [`crate::outcome::UnitAnswer`] for each unit.
    UnitCommand(Forward),
    /// Ask yunos for their statistics; the answer is as for `unit_command`.
    UnitStats {
        /// The units, at most [`FORWARD_UNITS_MAX`].
        units: Vec<UnitName>,
        /// How long each may take to answer.
        timeout_ms: u64,
    },
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl Verb {
    /// Returns the verb's name as in the JSON form.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.row().name
    }

    /// Returns the verb's class.
    #[must_use]
    pub fn class(&self) -> VerbClass {
        self.row().class
    }

    /// Describes what it does, on one line, for people.
    #[must_use]
    pub fn sentence(&self) -> String {
        match self {
            Self::Exec(exec) => {
                let inside = exec.container.as_ref().map(|unit| format!("in {unit}: ")).unwrap_or_default();
                inside + &argv::join(&exec.shown()).replace('\n', "⏎")
            }
            Self::Batch(batch) => format!("batch of {}", counted(batch.steps.len(), "step")),
            Self::UnitApply { unit, .. } => format!("apply {unit}"),
            Self::UnitsApply(set) => {
                let units = set.units.iter().map(|wish| &wish.unit);
                format!("{} {}", if set.check { "check" } else { "apply" }, several(units))
            }
            Self::UnitRun { unit } => format!("run {unit}"),
            Self::UnitStop { unit } => format!("stop {unit}"),
            Self::UnitRestart { unit } => format!("restart {unit}"),
            Self::UnitHold { unit, .. } => format!("hold {unit}"),
            Self::UnitUnhold { unit } => format!("unhold {unit}"),
            Self::UnitRetire { unit, .. } => format!("retire {unit}"),
            Self::UnitLabel { unit, .. } => format!("label {unit}"),
            Self::UnitUpgrade { unit, .. } => format!("upgrade {unit}"),
            Self::UnitFreeze { unit } => format!("freeze {unit}"),
            Self::UnitThaw { unit } => format!("thaw {unit}"),
            Self::UnitSignal { unit, signal } => format!("send {signal} to {unit}"),
            Self::UnitRm { unit } => format!("remove {unit}"),
            Self::UnitDetach { unit } => format!("detach {unit} from its deployment"),
            Self::UnitPlay { unit, run } => format!("{}play {unit}", if *run { "run and " } else { "" }),
            Self::UnitPause { unit } => format!("pause {unit}"),
            Self::UnitLogs { unit, lines, .. } => format!("last {lines} log lines of {unit}"),
            Self::UnitFollow { unit, .. } => format!("follow the log of {unit}"),
            Self::UnitConfig { unit } => format!("effective config of {unit}"),
            Self::UnitTasks { unit, log: None, .. } => format!("tasks of {unit}"),
            Self::UnitTasks { unit, log: Some(number), .. } => format!("log of task {number} of {unit}"),
            Self::Render { unit: Some(unit), .. } => format!("render templates of {unit}"),
            Self::Render { unit: None, .. } => "render a template".to_owned(),
            Self::Plan(PlanQuestion::Request(request)) => format!("plan {}", several(request.names())),
            Self::Plan(PlanQuestion::Stored { digest }) => format!("plan {}", digest.short()),
            Self::UnitCommand(forward) => format!("{:?} to {}", forward.name, several(&forward.units)),
            Self::UnitStats { units, .. } => format!("stats of {}", several(units)),
            Self::Cancel { command } => format!("cancel {command}"),
            Self::RealmSet { realm } => format!("set realm {realm}"),
            Self::RealmRm { realm } => format!("remove realm {realm}"),
            Self::SnapshotCreate { snapshot } => format!("create snapshot {snapshot}"),
            Self::SnapshotLs => "list snapshots".to_owned(),
            Self::SnapshotDiff { snapshot } => format!("compare with snapshot {snapshot}"),
            Self::SnapshotActivate { snapshot } => format!("activate snapshot {snapshot}"),
            Self::SnapshotDeactivate { snapshot } => format!("deactivate snapshot {snapshot}"),
            Self::SnapshotRm { snapshot } => format!("remove snapshot {snapshot}"),
        }
    }

    /// Returns the programs that it runs.
    #[must_use]
    pub fn execs(&self) -> &[Exec] {
        match self {
            Self::Exec(exec) => std::slice::from_ref(exec),
            Self::Batch(batch) => &batch.steps,
            _ => &[],
        }
    }

    /// Returns the specs that it applies.
    pub fn specs(&self) -> impl Iterator<Item = (&UnitName, &Spec)> {
        let (one, several, planned) = match self {
            Self::UnitApply { unit, spec, .. } => (Some((unit, &**spec)), &[][..], &[][..]),
            Self::UnitsApply(set) => (None, &set.units[..], &[][..]),
            Self::Plan(question) => (None, &[][..], question.deployments()),
            _ => (None, &[][..], &[][..]),
        };
        let planned = planned.iter().flat_map(|one| &one.version.units).map(|listed| (&listed.unit, &*listed.spec));
        one.into_iter().chain(several.iter().map(|wish| (&wish.unit, &*wish.spec))).chain(planned)
    }

    /// Returns the specs that it contains, mutable, each with its unit.
    pub fn specs_mut(&mut self) -> impl Iterator<Item = (&UnitName, &mut Spec)> {
        let (one, several, planned) = match self {
            Self::UnitApply { unit, spec, .. } => (Some((&*unit, &mut **spec)), &mut [][..], &mut [][..]),
            Self::UnitsApply(set) => (None, &mut set.units[..], &mut [][..]),
            Self::Plan(question) => (None, &mut [][..], question.deployments_mut()),
            _ => (None, &mut [][..], &mut [][..]),
        };
        let listed = planned.iter_mut().flat_map(|one| &mut one.version.units);
        let planned = listed.map(|listed| (&listed.unit, &mut *listed.spec));
        one.into_iter().chain(several.iter_mut().map(|wish| (&wish.unit, &mut *wish.spec))).chain(planned)
    }

    /// Returns the containers that its programs run in.
    pub fn containers(&self) -> impl Iterator<Item = &UnitName> {
        let of_units = self.specs().filter_map(|(_, spec)| spec.yuno()?.container.as_ref());
        self.execs().iter().filter_map(|exec| exec.container.as_ref()).chain(of_units)
    }

    /// Returns the units that it is about.
    #[must_use]
    pub fn units(&self) -> Vec<&UnitName> {
        match self {
            Self::Exec(_)
            | Self::Batch(_)
            | Self::Cancel { .. }
            | Self::RealmSet { .. }
            | Self::RealmRm { .. }
            | Self::SnapshotCreate { .. }
            | Self::SnapshotLs
            | Self::SnapshotDiff { .. }
            | Self::SnapshotActivate { .. }
            | Self::SnapshotDeactivate { .. }
            | Self::SnapshotRm { .. } => Vec::new(),
            Self::UnitsApply(set) => set.units.iter().map(|wish| &wish.unit).collect(),
            Self::UnitApply { unit, .. }
            | Self::UnitRun { unit }
            | Self::UnitStop { unit }
            | Self::UnitRestart { unit }
            | Self::UnitHold { unit, .. }
            | Self::UnitUnhold { unit }
            | Self::UnitRetire { unit, .. }
            | Self::UnitLabel { unit, .. }
            | Self::UnitUpgrade { unit, .. }
            | Self::UnitFreeze { unit }
            | Self::UnitThaw { unit }
            | Self::UnitSignal { unit, .. }
            | Self::UnitRm { unit }
            | Self::UnitDetach { unit }
            | Self::UnitLogs { unit, .. }
            | Self::UnitFollow { unit, .. }
            | Self::UnitConfig { unit }
            | Self::UnitTasks { unit, .. }
            | Self::UnitPlay { unit, .. }
            | Self::UnitPause { unit } => vec![unit],
            Self::Render { unit, .. } => unit.iter().collect(),
            Self::Plan(question) => {
                let listed = question.deployments().iter().flat_map(|one| &one.version.units);
                listed.map(|listed| &listed.unit).collect()
            }
            Self::UnitCommand(Forward { units, .. }) | Self::UnitStats { units, .. } => units.iter().collect(),
        }
    }

    /// Returns the most output of a stream that one host may report.
    #[must_use]
    pub fn output_max_bytes(&self, stream: Stream) -> u64 {
        match self {
            Self::Exec(exec) => exec.max_bytes(stream),
            Self::Batch(batch) => batch.steps.iter().map(|exec| exec.max_bytes(stream)).fold(0, u64::saturating_add),
            // Logs, answers and lists, of which an agent reports no more.
            _ => OUTPUT_MAX_BYTES,
        }
    }
}

/// Names units: all of a few, or how many they are.
fn several<T: ToString>(units: impl IntoIterator<Item = T>) -> String {
    let units: Vec<String> = units.into_iter().map(|unit| unit.to_string()).collect();
    match units.len() {
        0..=3 => units.join(", "),
        count => format!("{count} units"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_json_form() {
        let id = CommandId::new();
        let unit: UnitName = "default/shop".parse().unwrap();
        for verb in [
            Verb::Exec(Exec::new(vec!["true".to_owned()], 0)),
            Verb::UnitRun { unit: unit.clone() },
            Verb::UnitThaw { unit: unit.clone() },
            Verb::UnitDetach { unit: unit.clone() },
            Verb::UnitConfig { unit },
            Verb::Cancel { command: id },
            Verb::SnapshotLs,
        ] {
            let json = serde_json::to_value(&verb).unwrap();
            let name = json.as_str().or_else(|| json.as_object()?.keys().next().map(String::as_str));
            assert_eq!(name, Some(verb.name()));
            let permission = serde_json::to_value(verb.row().permission).unwrap();
            assert_eq!(permission, verb.name());
        }
    }

    #[test]
    fn few_units_are_named_and_many_are_counted() {
        let units = |count: usize| (0..count).map(|n| format!("d/u{n}").parse().unwrap()).collect::<Vec<UnitName>>();
        assert_eq!(Verb::UnitStats { units: units(2), timeout_ms: 1 }.sentence(), "stats of d/u0, d/u1");
        assert_eq!(Verb::UnitStats { units: units(9), timeout_ms: 1 }.sentence(), "stats of 9 units");
    }
}
