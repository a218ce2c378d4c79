//! The cost of a change of desired state for the running process.

use muster_topics::{
    process::Limits,
    unit::{Observed, Run, Spec},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What a change does to the running process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "Cost")]
pub enum ChangeCost {
    /// Nothing: the process continues unchanged, or there is none.
    InPlace,
    /// The process continues and is asked to reload its configs.
    Reload,
    /// The process is stopped and a new one started.
    Restart,
    /// A second process is started, and the first stopped once it is up: no interruption.
    Replace,
    /// A process is started.
    Start,
    /// The process is stopped.
    Stop,
}

impl ChangeCost {
    /// Describes it for people.
    #[must_use]
    pub fn words(self) -> &'static str {
        match self {
            Self::InPlace => "in place",
            Self::Reload => "reload",
            Self::Restart => "restart",
            Self::Replace => "replace, start first",
            Self::Start => "start",
            Self::Stop => "stop",
        }
    }
}

/// Returns what a change of a unit's spec or `run` does to its process.
#[must_use]
pub fn cost(before: (&Spec, Run), after: (&Spec, Run)) -> ChangeCost {
    // A spec that its host has not filled in yet.
    let filled = (before.0.has_values() && !after.0.has_values()).then(|| {
        let mut filled = after.0.clone();
        filled.keep_values(before.0);
        filled
    });
    let after = (filled.as_ref().unwrap_or(after.0), after.1);
    match (before.1.is_running(), after.1.is_running()) {
        (false, false) => ChangeCost::InPlace,
        (false, true) => ChangeCost::Start,
        (true, false) => ChangeCost::Stop,
        // As in the planner: another revision is another process, unless only limits differ, or configs and
        // secrets that the unit reloads.
        (true, true) if before.0.revision().ok() == after.0.revision().ok() => ChangeCost::InPlace,
        (true, true) if has_same_frame(before.0, after.0) && has_same_files(before.0, after.0) => ChangeCost::InPlace,
        (true, true) if has_same_frame(before.0, after.0) => ChangeCost::Reload,
        (true, true) if starts_first(after.0) => ChangeCost::Replace,
        (true, true) => ChangeCost::Restart,
    }
}

/// Returns the same for a unit as it was observed. A process that runs without its limits, because its host cannot
/// enforce any, is restarted to change them.
#[must_use]
pub fn cost_there(observed: &Observed, before: (&Spec, Run), after: (&Spec, Run)) -> ChangeCost {
    let same_limits = Spec::limits(before.0) == Spec::limits(after.0);
    match cost(before, after) {
        ChangeCost::InPlace | ChangeCost::Reload
            if !same_limits && !observed.instance().unsupported.is_empty() && before.1.is_running() =>
        {
            if starts_first(after.0) { ChangeCost::Replace } else { ChangeCost::Restart }
        }
        cost => cost,
    }
}

/// Whether a process of the first spec can be changed to the second. A container is recreated to gain or lose a limit.
fn has_same_frame(before: &Spec, after: &Spec) -> bool {
    let has = |spec: &Spec| {
        let Limits { memory_bytes, cpu, pids } = spec.limits();
        [memory_bytes.is_some(), cpu.is_some(), pids.is_some()]
    };
    let is_open = before.yuno().is_some() || has(before) == has(after);
    is_open && before.frame().ok() == after.frame().ok()
}

/// Whether its configs would be the same.
fn has_same_files(before: &Spec, after: &Spec) -> bool {
    before.configs() == after.configs()
        && before.common().secrets == after.common().secrets
        && before.config_values() == after.config_values()
}

/// Whether the process continues until its successor is up. One that is not up, or is suspended, is stopped first.
fn starts_first(spec: &Spec) -> bool {
    spec.yuno().is_some_and(|yuno| !yuno.replace.is_stop_first())
}

#[cfg(test)]
mod tests {
    use muster_topics::{
        name::Digest,
        reload::Reload,
        unit::{ConfigRef, InstanceReport, ObservedState, Replace, YunoSpec},
    };

    use super::*;

    fn spec(change: impl FnOnce(&mut YunoSpec)) -> Spec {
        let text = format!(
            r#"{{"artifact":{{"sha256":"{}","size_bytes":5,"role":"hello","version":"1"}}}}"#,
            Digest::of(b"hello")
        );
        let mut spec = serde_json::from_str(&text).unwrap();
        change(&mut spec);
        Spec::Yuno(spec)
    }

    fn config(version: &str) -> Vec<ConfigRef> {
        let sha256 = Digest::of(version.as_bytes());
        vec![ConfigRef { id: "hello".parse().unwrap(), version: version.parse().unwrap(), sha256 }]
    }

    #[test]
    fn only_identity_changes_restart_a_process() {
        let plain = spec(|_| ());
        let other = spec(|spec| spec.program.args.push("x".to_owned()));
        let grace = spec(|spec| spec.program.grace_ms = 1);
        let limited = |pids: u32| spec(|spec| spec.program.limits.pids = Some(pids));
        let first = |arg: &str| {
            spec(|spec| {
                spec.program.args.push(arg.to_owned());
                spec.replace = Replace::StartFirst;
            })
        };
        let with = |version: &str, reload| {
            spec(|spec| {
                spec.configs = config(version);
                spec.reload = reload;
            })
        };
        for (before, after, wanted) in [
            ((&plain, Run::Running), (&plain, Run::Running), ChangeCost::InPlace),
            ((&plain, Run::Running), (&grace, Run::Running), ChangeCost::InPlace),
            ((&plain, Run::Running), (&plain, Run::Playing), ChangeCost::InPlace),
            ((&plain, Run::Running), (&other, Run::Running), ChangeCost::Restart),
            ((&first("x"), Run::Running), (&first("y"), Run::Running), ChangeCost::Replace),
            ((&first("x"), Run::Running), (&plain, Run::Running), ChangeCost::Restart),
            ((&other, Run::Running), (&first("x"), Run::Running), ChangeCost::InPlace),
            ((&first("x"), Run::Stopped), (&first("y"), Run::Running), ChangeCost::Start),
            ((&plain, Run::Stopped), (&other, Run::Stopped), ChangeCost::InPlace),
            ((&plain, Run::Stopped), (&other, Run::Running), ChangeCost::Start),
            ((&plain, Run::Running), (&other, Run::Stopped), ChangeCost::Stop),
            ((&plain, Run::Running), (&limited(1), Run::Running), ChangeCost::InPlace),
            ((&limited(1), Run::Running), (&limited(2), Run::Running), ChangeCost::InPlace),
            ((&limited(1), Run::Running), (&plain, Run::Running), ChangeCost::InPlace),
            (
                (&with("1", Reload::Signal), Run::Running),
                (&with("2", Reload::Signal), Run::Running),
                ChangeCost::Reload,
            ),
            (
                (&with("1", Reload::Restart), Run::Running),
                (&with("2", Reload::Restart), Run::Running),
                ChangeCost::Restart,
            ),
        ] {
            assert_eq!(cost(before, after), wanted, "{before:?} {after:?}");
        }
        let mut observed = Observed::absent(0);
        let change = ((&limited(1), Run::Running), (&limited(2), Run::Running));
        assert_eq!(cost_there(&observed, change.0, change.1), ChangeCost::InPlace);
        let unsupported = vec!["the limit of pids: there are no cgroups".into()];
        observed.state = ObservedState::Running(InstanceReport { unsupported, ..InstanceReport::default() });
        assert_eq!(cost_there(&observed, change.0, change.1), ChangeCost::Restart);
        assert_eq!(cost_there(&observed, (&plain, Run::Running), (&grace, Run::Running)), ChangeCost::InPlace);
        assert_eq!(
            cost_there(&observed, (&limited(1), Run::Stopped), (&limited(2), Run::Stopped)),
            ChangeCost::InPlace
        );
    }
}
