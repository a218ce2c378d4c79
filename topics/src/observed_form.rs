//! The JSON form of a unit's observed state: flat, so that a selector, a query or a script needs to know no variants.
//!
//! **Invariant: a combination that no unit can be in has no Rust value.** What a form lacks for its phase is an error here;
//! what does not belong to its phase is ignored, as an unknown field is.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    Millis,
    channel::Ability,
    diagnostic::Diagnostic,
    endpoint::{Connector, Endpoint},
    name::Digest,
    observed::{
        Beside, Content, Exit, InstanceReport, Observed, ObservedState, Phase, ProcessEnd, Progress, RolledBack,
        TrialReport,
    },
    task::OwedReport,
};

/// The observed state of a unit.
#[derive(Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Observed")]
pub(crate) struct ObservedForm {
    /// The generation of desired state that it belongs to.
    generation: u64,
    /// The revision that is installed or runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    revision: Option<Digest>,
    /// The content of that revision, for people; no decision depends on it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    content: Option<Content>,
    /// Its phase.
    phase: Phase,
    /// Since when.
    since_ms: Millis,
    /// Its process id, for people; no signal is ever sent to this number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pid: Option<i32>,
    /// How its last process ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    exit: Option<Exit>,
    /// Whether its last process left a core file.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    core_dumped: bool,
    /// Whether its last process, or a child, was killed for lack of memory.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    oom_killed: bool,
    /// The last lines of its log when it ended; none once it is up again, or rests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    last_lines: Option<String>,
    /// Whether it is frozen.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    frozen: bool,
    /// Its own status text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    status: Option<String>,
    /// Why, by its probes, it has not come up yet, or, once it is up, is not ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    unready: Option<Diagnostic>,
    /// The progress of its download, updated now and then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    progress: Option<Progress>,
    /// What it can be asked for on its channel.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    can: Vec<Ability>,
    /// Where it listens.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    endpoints: Vec<Endpoint>,
    /// How it reaches the endpoints that it requires.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    connectors: Vec<Connector>,
    /// Features of its spec that this host cannot provide, so that it runs without: each with the reason.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    unsupported: Vec<Diagnostic>,
    /// What others have changed of what it was made from, and is not put right: each with what is known of it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    drift: Vec<Diagnostic>,
    /// How often it was restarted automatically since it last was up for five minutes.
    attempts: u32,
    /// When it will be restarted, in phase `backoff`, which has it always.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    retry_ms: Option<Millis>,
    /// The last error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    error: Option<Diagnostic>,
    /// The last verified revision, to which a later failure rolls back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    verified: Option<Digest>,
    /// Whether its revision is not verified yet, and would be rolled back, to the one in `verified`, if it failed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    on_trial: bool,
    /// The rollback to the last verified revision, which lasts until the desired state is changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    rolled_back: Option<RolledBack>,
    /// Its second process, while one revision replaces another without interruption.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    beside: Option<Beside>,
    /// What its last changes still owe, such as a restart: at most
    /// [`OWED_REPORTED_MAX`](crate::task::OWED_REPORTED_MAX) actions, the oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    owed: Vec<OwedReport>,
}

impl From<Observed> for ObservedForm {
    fn from(mut observed: Observed) -> Self {
        let (phase, retry_ms) = (observed.phase(), observed.retry_ms());
        let instance = observed.state.instance_mut().map(std::mem::take).unwrap_or_default();
        let InstanceReport { pid, frozen, status, unready, can, unsupported, drift } = instance;
        let (verified, on_trial) = (observed.trial.verified().cloned(), observed.trial.is_on());
        let rolled_back = if let TrialReport::RolledBack(back) = observed.trial { Some(back) } else { None };
        let end = observed.last_end;
        Self {
            generation: observed.generation,
            revision: observed.revision,
            content: observed.content,
            phase,
            since_ms: observed.since_ms,
            pid,
            exit: end.map(|end| end.exit),
            core_dumped: end.is_some_and(|end| end.core_dumped),
            oom_killed: end.is_some_and(|end| end.oom_killed),
            last_lines: observed.last_lines,
            frozen,
            status,
            unready,
            progress: observed.progress,
            can,
            endpoints: observed.endpoints,
            connectors: observed.connectors,
            unsupported,
            drift,
            attempts: observed.attempts,
            retry_ms,
            error: observed.error,
            verified,
            on_trial,
            rolled_back,
            beside: observed.beside,
            owed: observed.owed,
        }
    }
}

impl TryFrom<ObservedForm> for Observed {
    type Error = &'static str;

    fn try_from(form: ObservedForm) -> Result<Self, Self::Error> {
        let ObservedForm { exit, core_dumped, oom_killed, .. } = form;
        let mut state = ObservedState::from(form.phase);
        if let ObservedState::Backoff { retry_ms } = &mut state {
            *retry_ms = form.retry_ms.ok_or("a unit in phase `backoff` needs `retry_ms`")?;
        }
        if let Some(instance) = state.instance_mut() {
            *instance = InstanceReport {
                pid: form.pid,
                frozen: form.frozen,
                status: form.status,
                unready: form.unready,
                can: form.can,
                unsupported: form.unsupported,
                drift: form.drift,
            };
        }
        let trial = match (form.rolled_back, form.verified, form.on_trial) {
            (Some(back), ..) => TrialReport::RolledBack(back),
            (None, Some(verified), true) => TrialReport::OnTrial { verified },
            (None, Some(verified), false) => TrialReport::Verified(verified),
            (None, None, true) => return Err("a unit that is `on_trial` needs `verified`"),
            (None, None, false) => TrialReport::Unverified,
        };
        Ok(Self {
            generation: form.generation,
            revision: form.revision,
            content: form.content,
            state,
            since_ms: form.since_ms,
            last_end: exit.map(|exit| ProcessEnd { exit, oom_killed, core_dumped }),
            last_lines: form.last_lines,
            progress: form.progress,
            endpoints: form.endpoints,
            connectors: form.connectors,
            attempts: form.attempts,
            error: form.error,
            trial,
            beside: form.beside,
            owed: form.owed,
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn form(more: &Value) -> Value {
        let mut form = json!({"generation": 3, "phase": "running", "since_ms": 5, "attempts": 2});
        form.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        form
    }

    fn parsed(more: &Value) -> Result<Observed, serde_json::Error> {
        serde_json::from_value(form(more))
    }

    /// What is read of a form is written as `expected`.
    #[track_caller]
    fn check(more: &Value, expected: &Value) {
        assert_eq!(serde_json::to_value(parsed(more).unwrap()).unwrap(), form(expected));
    }

    fn back() -> Value {
        let (from, to) = (Digest::of(b"new"), Digest::of(b"old"));
        json!({"generation": 3, "revision": from, "to": to, "error": {"message": "it hangs", "hint": "wait"}, "at_ms": 4})
    }

    #[test]
    fn form_of_each_state_is_written_as_it_was_read() {
        let verified = Digest::of(b"old");
        for more in [
            json!({}),
            json!({"phase": "absent"}),
            json!({"phase": "stopped", "exit": {"code": 0}}),
            json!({"phase": "starting", "pid": 7, "unready": {"message": "start probe: refused"}}),
            json!({"pid": 7, "frozen": true, "status": "serving", "can": ["play"], "unsupported": [{"message": "the limit of pids"}]}),
            json!({"drift": [{"message": "/etc/motd: its content differs"}]}),
            json!({"phase": "backoff", "retry_ms": 9, "exit": {"signal": 9}, "oom_killed": true, "last_lines": "no"}),
            json!({"phase": "failed", "pid": 7, "error": {"message": "it does not play"}}),
            json!({"progress": {"done_bytes": 1, "total_bytes": 2}}),
            json!({"verified": verified}),
            json!({"verified": verified, "on_trial": true}),
            json!({"verified": verified, "rolled_back": back()}),
        ] {
            check(&more, &more);
        }
    }

    #[test]
    fn field_of_another_phase_is_ignored() {
        let phase = json!({"phase": "stopped"});
        check(
            &json!({"phase": "stopped", "pid": 7, "frozen": true, "status": "x", "drift": [{"message": "y"}]}),
            &phase,
        );
        check(&json!({"phase": "stopped", "retry_ms": 9, "core_dumped": true}), &phase);
        let back = json!({"verified": Digest::of(b"old"), "rolled_back": back()});
        check(&json!({"on_trial": true, "rolled_back": back["rolled_back"]}), &back);
    }

    #[test]
    fn state_without_what_it_needs_is_refused() {
        for (more, lacks) in [(json!({"phase": "backoff"}), "`retry_ms`"), (json!({"on_trial": true}), "`verified`")] {
            let error = parsed(&more).unwrap_err().to_string();
            assert!(error.contains(lacks), "{error}");
        }
    }
}
