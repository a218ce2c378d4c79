//! Signs answers for hosts, and publishes them.

use muster_base::clock::now_ms;
use muster_rules::rollout::{transition::Reply, wait::WaitReason};
use muster_topics::{
    Millis, V1,
    ack::Numbered,
    admission::{AdmissionAnswer, AdmissionVerdict, REASON_MAX_BYTES},
    desired::DeploymentName,
    name::HostId,
    topic::{HostTopic, Topic},
};

use crate::{error::Error, rotation, state::ConsoleState, store};

/// For how long after it was answered a host may begin. A host that is slower asks again.
pub(super) const BEGIN_WITHIN_MS: u64 = 60_000;

/// After how long a host that waits asks again, at the least: an answer that was lost is missed for that long.
const AGAIN_MIN_MS: u64 = 60_000;
/// And at the most: within the time for which questions count where windows are in hosts' own zones.
const AGAIN_MAX_MS: u64 = 150_000;
/// How much later for each host that waits: a thousand of them ask a hundred times a second at most.
const AGAIN_EACH_MS: u64 = 10;

/// An answer that is to be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DueAnswer {
    pub(super) host: HostId,
    pub(super) deployment: DeploymentName,
    pub(super) version: u32,
    pub(super) to: Numbered,
    pub(super) verdict: AdmissionVerdict,
}

/// The verdict for a message that is no question.
pub(super) fn replied(reply: Reply) -> AdmissionVerdict {
    match reply {
        Reply::Noted => AdmissionVerdict::Noted,
        Reply::Retry => AdmissionVerdict::Retry,
    }
}

/// The verdict for a host that has to wait, as one of so many.
pub(super) fn wait(reason: &WaitReason, waiting: usize) -> AdmissionVerdict {
    wait_for(reason.to_string(), waiting)
}

pub(super) fn wait_for(mut reason: String, waiting: usize) -> AdmissionVerdict {
    if reason.len() > REASON_MAX_BYTES {
        reason.truncate(reason.floor_char_boundary(REASON_MAX_BYTES - '…'.len_utf8()));
        reason.push('…');
    }
    let again_ms = (waiting as u64).saturating_mul(AGAIN_EACH_MS).clamp(AGAIN_MIN_MS, AGAIN_MAX_MS);
    AdmissionVerdict::Wait { reason, again_ms }
}

/// Sends answers. What is lost is asked for again.
pub(super) async fn send(shared: &ConsoleState, answers: Vec<DueAnswer>) -> Result<(), Error> {
    if answers.is_empty() || !shared.hosts.link.is_connected() {
        return Ok(());
    }
    let hosts: Vec<HostId> = answers.iter().map(|answer| answer.host).collect();
    let members = {
        let mut connection = shared.store.read().acquire().await.map_err(store::StoreError::from)?;
        store::host::members(&mut connection, &hosts).await?
    };
    for DueAnswer { host, deployment, version, to, verdict } in answers {
        if !members.contains(&host) {
            continue;
        }
        let issued_ms: Millis = shared.hosts.signing_time.careful_ms(now_ms());
        let answer = AdmissionAnswer { v: V1, host, issued_ms, deployment, version, to, verdict };
        let signed = shared.authority.keys().signer.sign(host.slot(), &answer).await;
        let bytes = signed.map_err(|error| rotation::unsigned("signing an answer about a rollout", error))?;
        if !shared.hosts.link.publish_in_turn(Topic::Host(host, HostTopic::AdmissionAnswer), bytes).await {
            return Ok(());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_reason_is_cut_and_many_that_wait_ask_later() {
        let AdmissionVerdict::Wait { reason, again_ms } = wait_for("ä".repeat(REASON_MAX_BYTES), 10) else { panic!() };
        assert!(reason.len() <= REASON_MAX_BYTES && reason.ends_with("ä…"));
        let again = |waiting| match wait_for(String::new(), waiting) {
            AdmissionVerdict::Wait { again_ms, .. } => again_ms,
            _ => panic!(),
        };
        assert_eq!((again_ms, again(10_000), again(usize::MAX)), (60_000, 100_000, 150_000));
    }
}
