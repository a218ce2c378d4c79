//! Deployments that are rolled out, on a simulated host: it asks at once, pretends to change for a while, and says how that has
//! ended.

use std::collections::BTreeMap;

use muster_base::clock;
use muster_session::{
    interface::{AdmissionStatement, AdmissionStatements},
    store::{AdmissionChange, AdmissionStep},
};
use muster_topics::{
    Millis,
    admission::{AdmissionStage, AdmissionWait, AdmissionWaitKind, ChangeOutcome},
    desired::{Admission, DeploymentName, DeploymentReport, DeploymentVersion, DesiredDeployment, DesiredReport},
    diagnostic::Diagnostic,
    name::{Digest, HostId},
};

use super::host::{Behaviour, SimulatedHost};

/// What a host keeps of its document, from one life to the next.
#[derive(Debug, Default)]
pub(super) struct KeptDesired {
    /// What it reports.
    pub(super) report: DesiredReport,
    /// What it says of deployments.
    pub(super) said: AdmissionStatements,
}

/// When pretended changes end, by the clock of the host's life.
pub(super) type PretendedChanges = BTreeMap<DeploymentName, Millis>;

/// Returns how a pretended change ends.
fn outcome(host: HostId, name: &DeploymentName, (version, permit): (u32, u64), manner: &Behaviour) -> ChangeOutcome {
    match manner.is_in_share(&format!("{host} {name} {version} {permit}"), manner.change_fail) {
        true => ChangeOutcome::RolledBack,
        false => ChangeOutcome::Verified,
    }
}

impl KeptDesired {
    /// Takes the deployments of a document: a version that is asked for waits, and another is there at once.
    pub(super) fn take(&mut self, report: DesiredReport, deployments: Vec<DesiredDeployment>) {
        let before = std::mem::replace(&mut self.report, report);
        let said = std::mem::take(&mut self.said);
        for DesiredDeployment { version, admission, .. } in deployments {
            let name = version.deployment.clone();
            let applied = before.deployments.get(&name).map_or(0, |report| report.version);
            let kept =
                said.get(&name).filter(|kept| kept.version == version.number || kept.stage != AdmissionStage::Asks);
            if admission == Admission::Free || applied == version.number {
                self.said.extend(kept.map(|kept| (name.clone(), kept.clone())));
                self.set(name, version.number, None);
                continue;
            }
            let since_ms = before.deployments.get(&name).and_then(|report| report.waits.as_ref());
            let since_ms = since_ms.filter(|waits| waits.version == version.number).map(|waits| waits.since_ms);
            let kind = AdmissionWaitKind::Admission;
            let since_ms = since_ms.unwrap_or_else(clock::now_ms);
            let waits = AdmissionWait { version: version.number, kind, since_ms, diagnostic: None };
            self.set(name.clone(), applied, Some(waits));
            self.said.insert(name, asks(&version));
        }
    }

    fn set(&mut self, name: DeploymentName, version: u32, waits: Option<AdmissionWait>) {
        self.report.deployments.insert(name, DeploymentReport { version, refused: None, waits });
    }

    /// Takes what the console has answered; returns what the host says of the deployment now.
    fn answered(&mut self, change: &AdmissionChange) -> Option<AdmissionStatement> {
        let AdmissionChange { deployment, version, step } = change;
        let said = self.said.get_mut(deployment).filter(|said| said.version == *version)?;
        match step {
            AdmissionStep::Begin { permit } => {
                said.stage = AdmissionStage::Begun { permit: *permit };
                self.set(deployment.clone(), *version, None);
            }
            AdmissionStep::Noted(number) => said.noted = Some(*number),
            AdmissionStep::Retry(_) => (said.stage, said.noted) = (AdmissionStage::Asks, None),
        }
        self.said.get(deployment).cloned()
    }

    /// Ends a pretended change.
    fn end(&mut self, host: HostId, name: &DeploymentName, manner: &Behaviour) {
        let Some(said) = self.said.get_mut(name) else { return };
        let AdmissionStage::Begun { permit } = said.stage else { return };
        let outcome = outcome(host, name, (said.version, permit), manner);
        let is_verified = outcome == ChangeOutcome::Verified;
        let diagnostic = (!is_verified).then(|| "this simulated host fails the change (`--change-fail`)".into());
        said.stage = AdmissionStage::Ended { permit: Some(permit), outcome, changed: is_verified, diagnostic };
    }
}

fn asks(version: &DeploymentVersion) -> AdmissionStatement {
    // One that came in a document has a digest.
    let digest = version.digest().unwrap_or_else(|_| Digest::of(b""));
    AdmissionStatement { version: version.number, digest, stage: AdmissionStage::Asks, noted: None }
}

impl SimulatedHost {
    /// Handles an answer of the console.
    pub(super) fn admission_answered(&mut self, change: &AdmissionChange) -> Option<AdmissionStatement> {
        let said = self.change_desired(|kept| kept.answered(change));
        self.begin_changes();
        said
    }

    /// Reports what the console has said.
    pub(super) fn admission_waits(&mut self, name: &DeploymentName, version: u32, reason: Diagnostic) {
        self.change_desired(|kept| {
            let waits = kept.report.deployments.get_mut(name).and_then(|report| report.waits.as_mut());
            if let Some(waits) = waits.filter(|waits| waits.version == version) {
                waits.diagnostic = Some(reason);
            }
        });
    }

    /// Begins to pretend the changes that have begun, also those of an earlier life.
    pub(super) fn begin_changes(&mut self) {
        let end_ms = self.now_ms().saturating_add(self.parts.manner.change_takes_ms);
        let begun = self.kept(|kept| {
            let is_begun = |said: &AdmissionStatement| matches!(said.stage, AdmissionStage::Begun { .. });
            kept.said.iter().filter(|(_, said)| is_begun(said)).map(|(name, _)| name.clone()).collect::<Vec<_>>()
        });
        self.changes.retain(|name, _| begun.contains(name));
        for name in begun {
            self.changes.entry(name).or_insert(end_ms);
        }
    }

    /// Ends pretended changes whose time is over.
    pub(super) fn end_changes(&mut self) {
        let (now_ms, host) = (self.now_ms(), self.host());
        let over: Vec<DeploymentName> =
            self.changes.iter().filter(|(_, end_ms)| **end_ms <= now_ms).map(|(name, _)| name.clone()).collect();
        if over.is_empty() {
            return;
        }
        let manner = self.parts.manner.clone();
        for name in over {
            self.changes.remove(&name);
            self.change_desired(|kept| kept.end(host, &name, &manner));
        }
        let said = self.kept(|kept| kept.said.clone());
        self.parts.session.set_admissions(said, now_ms);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use muster_rules::authorise::LocalPolicy;
    use muster_topics::{ack::Numbered, desired::DesiredBody};
    use serde_json::json;
    use uuid::Uuid;

    use super::*;

    fn manner(change_fail: f64) -> Behaviour {
        let realms = BTreeSet::new();
        let state = crate::state(&realms);
        let (policy, user) = (LocalPolicy::default(), String::new());
        Behaviour { takes_ms: 0, fail: 0.0, change_takes_ms: 0, change_fail, series: 0, realms, policy, user, state }
    }

    fn take(kept: &mut KeptDesired, number: u32, admission: &str) {
        let version = json!({"deployment": "d/x", "number": number, "target": {"select": "host=*"}, "units": []});
        let body = json!({"v": 1, "deployments": [{"version": version, "admission": admission, "asked_by": {"operator": "admin", "role": "admin"}}]});
        let body: DesiredBody = serde_json::from_value(body).unwrap();
        kept.take(DesiredReport::default(), body.deployments);
    }

    #[test]
    fn version_is_asked_for_and_ends_once_it_was_begun() {
        let (name, host): (DeploymentName, _) = ("d/x".parse().unwrap(), HostId(Uuid::from_u128(1)));
        let mut kept = KeptDesired::default();
        take(&mut kept, 1, "free");
        take(&mut kept, 2, "ask");
        let report = |kept: &KeptDesired| kept.report.deployments[&name].clone();
        assert_eq!((report(&kept).version, report(&kept).waits.unwrap().version), (1, 2));
        let answer = |kept: &mut KeptDesired, step| {
            let change = AdmissionChange { deployment: name.clone(), version: 2, step };
            kept.answered(&change).unwrap()
        };
        let begun = answer(&mut kept, AdmissionStep::Begin { permit: 7 });
        assert_eq!(
            (begun.stage, report(&kept).version, report(&kept).waits),
            (AdmissionStage::Begun { permit: 7 }, 2, None)
        );
        // The same document again changes nothing.
        take(&mut kept, 2, "ask");
        let ends = |kept: &mut KeptDesired, fail| {
            kept.end(host, &name, &manner(fail));
            let AdmissionStage::Ended { permit, outcome, .. } = kept.said[&name].stage.clone() else { panic!() };
            (permit, outcome)
        };
        assert_eq!(ends(&mut kept, 1.0), (Some(7), ChangeOutcome::RolledBack));
        let number = Numbered { epoch: 1, seq: 2 };
        assert_eq!(answer(&mut kept, AdmissionStep::Noted(number)).noted, Some(number));
        assert_eq!(answer(&mut kept, AdmissionStep::Retry(number)).stage, AdmissionStage::Asks);
        answer(&mut kept, AdmissionStep::Begin { permit: 8 });
        assert_eq!(ends(&mut kept, 0.0), (Some(8), ChangeOutcome::Verified));
        take(&mut kept, 3, "ask");
        assert_eq!((kept.said[&name].version, report(&kept).version), (3, 2));
        kept.take(DesiredReport::default(), Vec::new());
        assert!(kept.said.is_empty() && kept.report.deployments.is_empty());
    }
}
