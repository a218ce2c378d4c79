//! The tables of verbs: what everybody has to know of each ([`Verb::row`]), and which kinds of units have which verb
//! ([`UNIT_VERBS`]).

use std::{fmt, str::FromStr};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{diagnostic::Diagnostic, name::UnitName, unit::Spec, verb::Verb};

/// The class of a verb: what kind of thing it does, and so how its commands are stored, sent and waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VerbClass {
    /// Runs programs; a host runs a limited number at once.
    Program,
    /// Asks something of units; nothing changes.
    Question,
    /// Does something with running units at once; it cannot be done again safely.
    Action,
    /// Changes the desired state of a unit, in one transaction with its outcome.
    Unit,
    /// Changes the desired state of several units of a host, likewise.
    UnitSet,
    /// Changes realms or snapshots of a host, likewise.
    Host,
    /// Asks something of a host itself; nothing changes.
    HostQuestion,
    /// Cancels another command.
    Cancel,
}

/// What becomes of a command that an earlier run of the agent left unfinished.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AfterRestart {
    /// Its program is looked up: it may still run.
    LookedUp,
    /// It is asked again.
    AskedAgain,
    /// It is over: its sender waited for output of that time.
    Over,
    /// It is lost: whether it was done is not known.
    Lost,
}

/// Verbs as local policies name them: whoever may or may not do one may or may not do all that have its name. They are an
/// enum so that a misspelt one in a policy is an error rather than a permission.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "each is the verb of its name")]
pub enum VerbName {
    Exec,
    UnitApply,
    UnitRun,
    UnitStop,
    UnitRestart,
    UnitHold,
    UnitUnhold,
    UnitRetire,
    UnitLabel,
    UnitUpgrade,
    UnitFreeze,
    UnitThaw,
    UnitSignal,
    UnitRm,
    UnitDetach,
    UnitLogs,
    UnitConfig,
    UnitTasks,
    Render,
    Plan,
    UnitPlay,
    UnitPause,
    UnitCommand,
    UnitStats,
    UnitFollow,
    Cancel,
    RealmSet,
    RealmRm,
    SnapshotCreate,
    SnapshotLs,
    SnapshotDiff,
    SnapshotActivate,
    SnapshotDeactivate,
    SnapshotRm,
}

/// A row of the table of verbs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VerbRow {
    /// The name, as in the JSON form.
    pub name: &'static str,
    /// The name by which local policies allow or deny it.
    pub permission: VerbName,
    /// Its class.
    pub class: VerbClass,
    /// What becomes of it after a restart of the agent.
    pub after_restart: AfterRestart,
}

impl Verb {
    /// The table of verbs.
    #[must_use]
    pub fn row(&self) -> VerbRow {
        use AfterRestart as Restart;
        use VerbClass as Class;
        let row = |name, permission, class, after_restart| VerbRow { name, permission, class, after_restart };
        match self {
            Self::Exec(_) => row("exec", VerbName::Exec, Class::Program, Restart::LookedUp),
            Self::Batch(_) => row("batch", VerbName::Exec, Class::Program, Restart::LookedUp),
            Self::UnitApply { .. } => row("unit_apply", VerbName::UnitApply, Class::Unit, Restart::Lost),
            Self::UnitsApply(_) => row("units_apply", VerbName::UnitApply, Class::UnitSet, Restart::Lost),
            Self::UnitRun { .. } => row("unit_run", VerbName::UnitRun, Class::Unit, Restart::Lost),
            Self::UnitStop { .. } => row("unit_stop", VerbName::UnitStop, Class::Unit, Restart::Lost),
            Self::UnitRestart { .. } => row("unit_restart", VerbName::UnitRestart, Class::Unit, Restart::Lost),
            Self::UnitHold { .. } => row("unit_hold", VerbName::UnitHold, Class::Unit, Restart::Lost),
            Self::UnitUnhold { .. } => row("unit_unhold", VerbName::UnitUnhold, Class::Unit, Restart::Lost),
            Self::UnitRetire { .. } => row("unit_retire", VerbName::UnitRetire, Class::Unit, Restart::Lost),
            Self::UnitLabel { .. } => row("unit_label", VerbName::UnitLabel, Class::Unit, Restart::Lost),
            Self::UnitUpgrade { .. } => row("unit_upgrade", VerbName::UnitUpgrade, Class::Unit, Restart::Lost),
            Self::UnitFreeze { .. } => row("unit_freeze", VerbName::UnitFreeze, Class::Unit, Restart::Lost),
            Self::UnitThaw { .. } => row("unit_thaw", VerbName::UnitThaw, Class::Unit, Restart::Lost),
            Self::UnitRm { .. } => row("unit_rm", VerbName::UnitRm, Class::Unit, Restart::Lost),
            Self::UnitDetach { .. } => row("unit_detach", VerbName::UnitDetach, Class::Unit, Restart::Lost),
            Self::UnitPlay { .. } => row("unit_play", VerbName::UnitPlay, Class::Unit, Restart::Lost),
            Self::UnitPause { .. } => row("unit_pause", VerbName::UnitPause, Class::Unit, Restart::Lost),
            Self::UnitLogs { .. } => row("unit_logs", VerbName::UnitLogs, Class::Question, Restart::AskedAgain),
            Self::UnitFollow { .. } => row("unit_follow", VerbName::UnitFollow, Class::Question, Restart::Over),
            Self::UnitConfig { .. } => row("unit_config", VerbName::UnitConfig, Class::Question, Restart::AskedAgain),
            Self::UnitTasks { .. } => row("unit_tasks", VerbName::UnitTasks, Class::Question, Restart::AskedAgain),
            Self::Render { .. } => row("render", VerbName::Render, Class::Question, Restart::Over),
            Self::Plan(_) => row("plan", VerbName::Plan, Class::Question, Restart::Over),
            Self::UnitStats { .. } => row("unit_stats", VerbName::UnitStats, Class::Question, Restart::AskedAgain),
            Self::UnitSignal { .. } => row("unit_signal", VerbName::UnitSignal, Class::Action, Restart::Lost),
            Self::UnitCommand(_) => row("unit_command", VerbName::UnitCommand, Class::Action, Restart::Lost),
            Self::RealmSet { .. } => row("realm_set", VerbName::RealmSet, Class::Host, Restart::Lost),
            Self::RealmRm { .. } => row("realm_rm", VerbName::RealmRm, Class::Host, Restart::Lost),
            Self::SnapshotCreate { .. } => row("snapshot_create", VerbName::SnapshotCreate, Class::Host, Restart::Lost),
            Self::SnapshotActivate { .. } => {
                row("snapshot_activate", VerbName::SnapshotActivate, Class::Host, Restart::Lost)
            }
            Self::SnapshotDeactivate { .. } => {
                row("snapshot_deactivate", VerbName::SnapshotDeactivate, Class::Host, Restart::Lost)
            }
            Self::SnapshotRm { .. } => row("snapshot_rm", VerbName::SnapshotRm, Class::Host, Restart::Lost),
            Self::SnapshotLs => row("snapshot_ls", VerbName::SnapshotLs, Class::HostQuestion, Restart::Lost),
            Self::SnapshotDiff { .. } => {
                row("snapshot_diff", VerbName::SnapshotDiff, Class::HostQuestion, Restart::Lost)
            }
            Self::Cancel { .. } => row("cancel", VerbName::Cancel, Class::Cancel, Restart::Lost),
        }
    }

    /// The verb of a unit of this word that needs nothing but the unit, such as `restart`; `None` if there is none.
    #[must_use]
    pub fn of_unit(word: &str, unit: &UnitName) -> Option<Self> {
        let name = format!("{PREFIX}{word}");
        serde_json::from_value(serde_json::json!({ name: { "unit": unit } })).ok()
    }

    /// Its row among the verbs of units, if it is one.
    #[must_use]
    pub fn of_units(&self) -> Option<&'static UnitVerbRow> {
        match self {
            // A log that is followed is a log.
            Self::UnitFollow { .. } => UnitVerbRow::find("logs"),
            other => UnitVerbRow::find(other.name().strip_prefix(PREFIX)?),
        }
    }
}

/// How the names of verbs of units begin in the JSON form.
const PREFIX: &str = "unit_";

/// A kind of units, by its name in the JSON form of a spec.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum KindName {
    /// A process.
    Yuno,
    /// A container.
    Container,
    /// Files, folders and links.
    Files,
    /// Packages.
    Packages,
}

impl KindName {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Yuno, Self::Container, Self::Files, Self::Packages];

    /// Returns the name.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Yuno => "yuno",
            Self::Container => "container",
            Self::Files => "files",
            Self::Packages => "packages",
        }
    }

    /// Returns what one unit of this kind is called.
    #[must_use]
    pub const fn noun(self) -> &'static str {
        match self {
            Self::Yuno => "yuno",
            Self::Container => "container",
            Self::Files => "files unit",
            Self::Packages => "packages unit",
        }
    }

    /// Returns the words of the verbs that units of this kind have, in the order of the table.
    pub fn verbs(self) -> impl Iterator<Item = &'static str> {
        UNIT_VERBS.iter().filter(move |row| row.kinds.contains(&self)).map(|row| row.word)
    }

    /// Whether units of this kind have a verb. One that is not in the table is no verb of units alone.
    #[must_use]
    pub fn has(self, word: &str) -> bool {
        UnitVerbRow::find(word).is_none_or(|row| row.kinds.contains(&self))
    }

    /// Says that a unit of this kind has no such verb, and which it has.
    #[must_use]
    pub fn without(self, unit: &UnitName, word: &str) -> Diagnostic {
        Diagnostic::new(format_args!("{unit} is a {}, which has no `{word}`", self.noun()))
            .with_hint(format_args!("it has: {}", self.verbs().collect::<Vec<_>>().join(", ")))
    }
}

impl fmt::Display for KindName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for KindName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL
            .into_iter()
            .find(|kind| kind.as_str() == text)
            .ok_or_else(|| "unknown kind; use yuno, container, files or packages".to_owned())
    }
}

impl From<&Spec> for KindName {
    fn from(spec: &Spec) -> Self {
        match spec {
            Spec::Yuno(_) => Self::Yuno,
            Spec::Container(_) => Self::Container,
            Spec::Files(_) => Self::Files,
            Spec::Packages(_) => Self::Packages,
        }
    }
}

/// A verb of units, as people type it: `muster unit WORD`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnitVerbRow {
    /// Its word; [`Verb::name`] is the same after `unit_`, if there is a verb of hosts for it.
    pub word: &'static str,
    /// The kinds whose units have it.
    pub kinds: &'static [KindName],
    /// Whether it stops or interrupts something, so that people are asked before it is done to several units.
    pub interrupts: bool,
    /// Whether an operator may use it on a unit of a deployment, because it changes nothing that the deployment says.
    pub beside_deployment: bool,
    /// Words of verbs that it makes void if it comes after one, with no other change of the unit between them.
    pub voids: &'static [&'static str],
}

impl UnitVerbRow {
    const fn of(word: &'static str, kinds: &'static [KindName]) -> Self {
        Self { word, kinds, interrupts: false, beside_deployment: false, voids: &[] }
    }

    const fn interrupts(self) -> Self {
        Self { interrupts: true, ..self }
    }

    const fn beside_deployment(self) -> Self {
        Self { beside_deployment: true, ..self }
    }

    const fn voids(self, voids: &'static [&'static str]) -> Self {
        Self { voids, ..self }
    }

    /// Returns the row of a word.
    #[must_use]
    pub fn find(word: &str) -> Option<&'static Self> {
        UNIT_VERBS.iter().find(|row| row.word == word)
    }
}

/// Units of every kind.
const EVERY: &[KindName] = &KindName::ALL;
/// Units that are programs.
const PROGRAMS: &[KindName] = &[KindName::Yuno, KindName::Container];
/// Units that change their host by tasks.
const TASKS: &[KindName] = &[KindName::Files, KindName::Packages];
/// Processes.
const YUNO: &[KindName] = &[KindName::Yuno];
/// Containers.
const CONTAINER: &[KindName] = &[KindName::Container];

/// All verbs of units, in the order in which people read them.
pub const UNIT_VERBS: &[UnitVerbRow] = &[
    UnitVerbRow::of("ls", EVERY),
    UnitVerbRow::of("show", EVERY),
    UnitVerbRow::of("create", PROGRAMS),
    UnitVerbRow::of("apply", EVERY),
    UnitVerbRow::of("export", EVERY),
    UnitVerbRow::of("tasks", TASKS),
    UnitVerbRow::of("run", EVERY),
    UnitVerbRow::of("stop", EVERY).interrupts(),
    UnitVerbRow::of("restart", EVERY).interrupts().beside_deployment().voids(&["restart"]),
    UnitVerbRow::of("signal", PROGRAMS).interrupts(),
    UnitVerbRow::of("freeze", PROGRAMS).interrupts().beside_deployment().voids(&["freeze", "thaw"]),
    UnitVerbRow::of("thaw", PROGRAMS).beside_deployment().voids(&["freeze", "thaw"]),
    UnitVerbRow::of("quota", PROGRAMS).interrupts(),
    UnitVerbRow::of("logs", PROGRAMS),
    UnitVerbRow::of("exec", CONTAINER),
    UnitVerbRow::of("config", YUNO),
    UnitVerbRow::of("upgrade", EVERY),
    UnitVerbRow::of("hold", EVERY).beside_deployment().voids(&["hold"]),
    UnitVerbRow::of("unhold", EVERY).beside_deployment().voids(&["hold", "unhold"]),
    UnitVerbRow::of("retire", EVERY).interrupts(),
    UnitVerbRow::of("label", EVERY),
    UnitVerbRow::of("detach", EVERY),
    UnitVerbRow::of("rm", EVERY).interrupts().voids(&["rm"]),
    UnitVerbRow::of("play", YUNO),
    UnitVerbRow::of("pause", YUNO),
    UnitVerbRow::of("command", YUNO),
    UnitVerbRow::of("stats", YUNO),
    UnitVerbRow::of("clone", CONTAINER),
    UnitVerbRow::of("adopt", CONTAINER),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_there_once() {
        for (index, row) in UNIT_VERBS.iter().enumerate() {
            assert!(!row.kinds.is_empty(), "{}", row.word);
            assert!(UNIT_VERBS[..index].iter().all(|earlier| earlier.word != row.word), "{} is there twice", row.word);
            assert!(row.voids.iter().all(|word| UnitVerbRow::find(word).is_some()), "{}", row.word);
        }
    }

    #[test]
    fn each_kind_has_the_verbs_of_its_rows() {
        let unit: UnitName = "default/motd".parse().unwrap();
        for kind in KindName::ALL {
            assert_eq!(kind.as_str().parse(), Ok(kind));
            for row in UNIT_VERBS {
                assert_eq!(kind.has(row.word), row.kinds.contains(&kind), "{kind} {}", row.word);
                assert_eq!(kind.verbs().any(|word| word == row.word), kind.has(row.word), "{kind} {}", row.word);
                let told = kind.without(&unit, row.word).to_string();
                assert!(told.contains(&format!("which has no `{}`", row.word)), "{told}");
            }
        }
        assert_eq!(
            format!("{:#}", KindName::Files.without(&unit, "signal")),
            "default/motd is a files unit, which has no `signal`. hint: it has: ls, show, apply, export, tasks, run, \
             stop, restart, upgrade, hold, unhold, retire, label, detach, rm"
        );
        assert!("file".parse::<KindName>().is_err());
    }

    #[test]
    fn verbs_of_units_have_rows() {
        let unit: UnitName = "a/b".parse().unwrap();
        for row in UNIT_VERBS {
            let Some(verb) = Verb::of_unit(row.word, &unit) else { continue };
            assert_eq!((verb.of_units(), verb.units()), (Some(row), vec![&unit]));
        }
        assert_eq!(Verb::of_unit("restart", &unit), Some(Verb::UnitRestart { unit: unit.clone() }));
        assert_eq!(Verb::of_unit("signal", &unit), None);
        assert_eq!(Verb::of_unit("dance", &unit), None);
        assert_eq!(Verb::SnapshotLs.of_units(), None);
    }
}
