//! What hosts have said since the last decision: of each host and deployment the last message, which replaces those before.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use muster_topics::{
    admission::AdmissionReport,
    desired::{DEPLOYMENTS_MAX, DeploymentName},
    name::HostId,
};

/// What hosts have said.
#[derive(Debug, Default)]
pub(super) struct Inbox {
    pub(super) reports: BTreeMap<HostId, BTreeMap<DeploymentName, AdmissionReport>>,
    /// Hosts that came online (true) or went offline.
    pub(super) presences: BTreeMap<HostId, bool>,
    /// Hosts that are members no more.
    pub(super) left: BTreeSet<HostId>,
    pub(super) authorities: Vec<AuthorityAnswer>,
    pub(super) checks: Vec<CheckAnswer>,
}

/// What an authority has said of hosts: nothing of those that it admits, and why of the others.
#[derive(Debug)]
pub(super) struct AuthorityAnswer {
    pub(super) deployment: DeploymentName,
    pub(super) version: u32,
    pub(super) hosts: Vec<(HostId, Option<Arc<str>>)>,
}

/// What a check has found: by how much the changed hosts are worse, if they are; or why there is no result.
#[derive(Debug)]
pub(super) struct CheckAnswer {
    pub(super) deployment: DeploymentName,
    pub(super) version: u32,
    pub(super) result: Result<Option<String>, String>,
}

impl Inbox {
    /// Takes a message. Returns false if the host has too many deployments.
    pub(super) fn report(&mut self, host: HostId, report: AdmissionReport) -> bool {
        let of_host = self.reports.entry(host).or_default();
        match of_host.get(&report.deployment) {
            Some(before) if before.number >= report.number => return true,
            None if of_host.len() >= DEPLOYMENTS_MAX => return false,
            _ => {}
        }
        of_host.insert(report.deployment.clone(), report);
        true
    }
}

#[cfg(test)]
mod tests {
    use muster_topics::{V1, ack::Numbered, admission::AdmissionStage, name::Digest};

    use super::*;

    fn report(deployment: &str, seq: u64) -> AdmissionReport {
        AdmissionReport {
            v: V1,
            number: Numbered { epoch: 1, seq },
            at_ms: 1,
            deployment: deployment.parse().unwrap(),
            version: 1,
            digest: Digest::of(b"a"),
            stage: AdmissionStage::Asks,
        }
    }

    #[test]
    fn last_message_of_a_deployment_replaces_those_before() {
        let (mut inbox, host) = (Inbox::default(), HostId::random());
        for seq in [3, 5, 4] {
            assert!(inbox.report(host, report("shop/till", seq)));
        }
        let found = &inbox.reports[&host][&"shop/till".parse().unwrap()];
        assert_eq!((inbox.reports[&host].len(), found.number.seq), (1, 5));
    }

    #[test]
    fn host_fills_no_more_than_its_own_place() {
        let (mut inbox, host) = (Inbox::default(), HostId::random());
        let taken = (0..DEPLOYMENTS_MAX + 9).filter(|n| inbox.report(host, report(&format!("shop/t{n}"), 1))).count();
        assert_eq!((taken, inbox.reports[&host].len()), (DEPLOYMENTS_MAX, DEPLOYMENTS_MAX));
        assert!(inbox.report(host, report("shop/t0", 2)) && inbox.report(HostId::random(), report("shop/t0", 1)));
    }
}
