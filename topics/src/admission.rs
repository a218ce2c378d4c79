//! Admission: a host asks the console before it changes anything for a deployment that is rolled out.
//!
//! A host whose document says `admission: ask` of a deployment prepares the version (it downloads and checks what its
//! units need), and then asks. The console grants a *permit*, or says why the host has to wait. The host begins with the
//! permit, and gives it back with the outcome. A permit that has expired only means that the host may not begin any more: one
//! that has begun counts as unavailable until its outcome is known.
//!
//! Every message says how far the host is *now* with one deployment, and is repeated until it is answered. An answer names
//! the message that it answers, and counts only if that is the host's last one of the deployment. So a host that asks
//! again has not begun, and never will with an earlier answer; and an answer that was held back grants nothing.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    Millis, V1,
    ack::Numbered,
    desired::DeploymentName,
    diagnostic::Diagnostic,
    envelope::{Body, Kind},
    name::{Digest, HostId},
};

/// The longest reason in an answer, and the longest message of an outcome.
pub const REASON_MAX_BYTES: usize = 512;

/// Payload of `s/<slot>/h/<host>/admission`: how far the host is with a deployment that it asks for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AdmissionReport {
    /// Version of this payload.
    pub v: V1,
    /// The message's number; a later one of the same deployment replaces it. Each repetition of a question has a new one.
    #[serde(flatten)]
    pub number: Numbered,
    /// When it was made, by the host's clock.
    pub at_ms: Millis,
    /// The deployment.
    pub deployment: DeploymentName,
    /// Its version.
    pub version: u32,
    /// The digest of that version.
    pub digest: Digest,
    /// How far the host is.
    pub stage: AdmissionStage,
}

/// How far a host is with a version of a deployment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum AdmissionStage {
    /// It has all that it needs, has not begun, and asks whether it may.
    Asks,
    /// It has begun.
    Begun {
        /// The permit with which it has.
        permit: u64,
    },
    /// It has ended.
    Ended {
        /// The permit with which it began; left out if it did not need one: it refused the version, or there was nothing to
        /// change.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        permit: Option<u64>,
        /// What became of it.
        outcome: ChangeOutcome,
        /// Whether anything on the host is different from before.
        changed: bool,
        /// Why, for people.
        #[serde(flatten)]
        diagnostic: Option<Diagnostic>,
    },
}

/// What became of a version of a deployment on a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ChangeOutcome {
    /// All its units are as desired, by their probes, for as long as they are to be verified.
    Verified,
    /// A unit has failed, and the units that were changed are back at what they were.
    RolledBack,
    /// A unit has failed, and not all are back at what they were.
    Failed,
    /// The host has refused the version.
    Refused,
}

/// A signed body on `s/<slot>/h/<host>/admission/answer`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AdmissionAnswer {
    /// Version of this payload.
    pub v: V1,
    /// The host; under the signature.
    pub host: HostId,
    /// When the console made this.
    pub issued_ms: Millis,
    /// The deployment.
    pub deployment: DeploymentName,
    /// Its version.
    pub version: u32,
    /// The host's message that this answers.
    pub to: Numbered,
    /// The answer.
    pub verdict: AdmissionVerdict,
}

impl Body for AdmissionAnswer {
    const KIND: Kind = Kind::AdmissionAnswer;
}

/// The console's answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum AdmissionVerdict {
    /// The host may begin.
    Granted {
        /// The permit's number: the later one of a host and a version is greater.
        permit: u64,
        /// For how long after this was issued the host may begin.
        begin_within_ms: u64,
    },
    /// The host has to wait, and asks again after a while. It may be granted a permit before that.
    Wait {
        /// Why, for people.
        reason: String,
        /// After how long it asks again.
        again_ms: u64,
    },
    /// What the host has said is stored.
    Noted,
    /// The outcome is stored, and the host is to try the version again: it prepares, and asks.
    Retry,
}

/// Why a host has not begun with a version of a deployment, within its [state](crate::heartbeat::HostState).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AdmissionWait {
    /// The version.
    pub version: u32,
    /// What it waits for.
    pub kind: AdmissionWaitKind,
    /// Since when, by the host's clock.
    pub since_ms: Millis,
    /// Why, for people.
    #[serde(flatten)]
    pub diagnostic: Option<Diagnostic>,
}

/// What a host waits for before it begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum AdmissionWaitKind {
    /// It downloads and checks what its units need.
    Preparing,
    /// Its own policy, or a window in its own time zone.
    Policy,
    /// The console's answer, or the console has said to wait.
    Admission,
    /// An operator: what it would change is not what the plan showed.
    PlanChanged,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn report_and_answer_keep_their_form() {
        let report = json!({
            "v": 1, "epoch": 4, "seq": 9, "at_ms": 5, "deployment": "shop/till", "version": 2,
            "digest": Digest::of(b"a"), "stage": {"kind": "ended", "outcome": "rolled_back", "permit": 3, "changed": true}
        });
        let read: AdmissionReport = serde_json::from_value(report.clone()).unwrap();
        assert_eq!((read.number.epoch, read.number.seq), (4, 9));
        assert_eq!(serde_json::to_value(&read).unwrap(), report);
        let answer = json!({
            "v": 1, "host": "0190b3a4-4a2b-7cde-8f01-23456789abcd", "issued_ms": 1, "deployment": "shop/till", "version": 2,
            "to": {"epoch": 4, "seq": 9}, "verdict": {"kind": "granted", "permit": 1, "begin_within_ms": 60_000}
        });
        let read: AdmissionAnswer = serde_json::from_value(answer.clone()).unwrap();
        assert_eq!(serde_json::to_value(&read).unwrap(), answer);
        let mut odd = answer;
        odd["surprise"] = json!(true);
        assert!(serde_json::from_value::<AdmissionAnswer>(odd).is_err());
    }
}
