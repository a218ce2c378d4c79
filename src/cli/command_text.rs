//! Describes commands in words.

use muster_topics::{command::Verb as Asked, name::UnitName};

/// What was requested, as text.
#[must_use]
pub fn asked(verb: &Asked) -> String {
    match verb {
        Asked::Exec(exec) => {
            let inside = exec.container.as_ref().map(|unit| format!("--container {unit} ")).unwrap_or_default();
            match &exec.shell {
                Some(line) => format!("exec {inside}--shell {}", muster_base::argv::join(std::slice::from_ref(line))),
                None => format!("exec {inside}{}", exec.argv.join(" ")),
            }
        }
        Asked::Batch(batch) => format!("batch of {} steps", batch.steps.len()),
        Asked::UnitApply { unit, .. } => format!("apply {unit}"),
        Asked::UnitsApply(set) => {
            let units = set.units.iter().map(|wish| wish.unit.clone()).collect::<Vec<_>>();
            format!("{} {}", if set.check { "check" } else { "apply" }, several(&units))
        }
        Asked::UnitRun { unit } => format!("run {unit}"),
        Asked::UnitStop { unit } => format!("stop {unit}"),
        Asked::UnitRestart { unit } => format!("restart {unit}"),
        Asked::UnitHold { unit, .. } => format!("hold {unit}"),
        Asked::UnitUnhold { unit } => format!("unhold {unit}"),
        Asked::UnitRetire { unit, .. } => format!("retire {unit}"),
        Asked::UnitLabel { unit, .. } => format!("label {unit}"),
        Asked::UnitUpgrade { unit, .. } => format!("upgrade {unit}"),
        Asked::UnitFreeze { unit } => format!("freeze {unit}"),
        Asked::UnitThaw { unit } => format!("thaw {unit}"),
        Asked::UnitSignal { unit, signal } => format!("send {signal} to {unit}"),
        Asked::UnitRm { unit } => format!("remove {unit}"),
        Asked::UnitFollow { unit, .. } => format!("follow the log of {unit}"),
        Asked::Cancel { command } => format!("cancel {command}"),
        Asked::UnitLogs { unit, lines, .. } => format!("last {lines} log lines of {unit}"),
        Asked::RealmSet { realm } => format!("set realm {realm}"),
        Asked::RealmRm { realm } => format!("forget realm {realm}"),
        Asked::SnapshotTake { snapshot } => format!("take snapshot {snapshot}"),
        Asked::SnapshotLs => "list snapshots".to_owned(),
        Asked::SnapshotDiff { snapshot } => format!("compare with snapshot {snapshot}"),
        Asked::SnapshotActivate { snapshot } => format!("activate snapshot {snapshot}"),
        Asked::SnapshotDeactivate { snapshot } => format!("deactivate snapshot {snapshot}"),
        Asked::SnapshotRm { snapshot } => format!("remove snapshot {snapshot}"),
        Asked::UnitConfig { unit } => format!("effective config of {unit}"),
        Asked::UnitPlay { unit, run } => format!("{}play {unit}", if *run { "run and " } else { "" }),
        Asked::UnitPause { unit } => format!("pause {unit}"),
        Asked::UnitCommand(forward) => format!("{:?} to {}", forward.name, several(&forward.units)),
        Asked::UnitStats { units, .. } => format!("stats of {}", several(units)),
    }
}

pub(super) fn several(units: &[UnitName]) -> String {
    match units {
        [unit] => unit.to_string(),
        units => format!("{} units", units.len()),
    }
}
