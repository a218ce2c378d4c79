//! A round: what has happened is given to the rules, what they decide is stored, and then it is told.

use std::{collections::BTreeMap, sync::atomic::Ordering};

use muster_base::crash;
use muster_guard::{LineKind, log_peer};
use muster_rules::rollout::{
    decide::{self, Decision, RolloutStep},
    policy::{Authority, Check},
    state::{HostOutcome, RolloutPhase},
    transition::HostEnd,
};
use muster_topics::{
    Millis,
    admission::{AdmissionReport, AdmissionStage, AdmissionVerdict},
    desired::DeploymentName,
    name::HostId,
};

use super::{
    Rollouts,
    answer::{self, BEGIN_WITHIN_MS, DueAnswer},
    inbox::{AuthorityAnswer, CheckAnswer},
    table::{RolloutEntry, RolloutTable},
    write,
};
use crate::{error::Error, page_change::PageChange, state::Console, store::StoreError};

/// The most steps of one rollout in one round: from the end of a wave to the grants of the next one are three.
const STEPS_MAX: usize = 16;
/// How often a host is told to try again that does not ask.
const RETRY_EVERY_MS: Millis = 60_000;
/// How soon a decision is made again whose rollback was not made.
const ROLLBACK_AGAIN_MS: Millis = 5_000;

/// Log lines about what hosts say of rollouts.
const ODD: LineKind = LineKind::new("invalid messages about rollouts", 60).burst(3);

/// What is to be done beside the store.
#[derive(Debug, Default)]
pub(super) struct RoundOutcome {
    pub(super) answers: Vec<DueAnswer>,
    /// How many hosts are admitted.
    pub(super) admitted: u64,
    /// Versions that are to be rolled back, and why.
    pub(super) rollbacks: Vec<(DeploymentName, u32, String)>,
    pub(super) authorities: Vec<AuthorityRequest>,
    pub(super) checks: Vec<CheckRequest>,
    /// When to decide again at the latest.
    pub(super) again_ms: Option<Millis>,
}

/// Hosts that an authority is to be asked for.
#[derive(Debug)]
pub(super) struct AuthorityRequest {
    pub(super) deployment: DeploymentName,
    pub(super) version: u32,
    pub(super) authority: Authority,
    pub(super) hosts: Vec<HostId>,
}

/// A check that is to be made.
#[derive(Debug)]
pub(super) struct CheckRequest {
    pub(super) deployment: DeploymentName,
    pub(super) version: u32,
    pub(super) check: Check,
    /// Hosts that this version has changed.
    pub(super) changed: Vec<HostId>,
    /// Hosts that it has not.
    pub(super) rest: Vec<HostId>,
}

impl Console {
    /// Makes a round. Returns what is to be done beside it.
    pub(super) async fn rollout_round(&self) -> Result<RoundOutcome, Error> {
        let shared = &self.shared;
        let rollouts = &shared.hosts.rollouts;
        let changing = shared.hosts.desired.lock_changes().await;
        // No clock that is set opens a window, or ends a wait.
        let now = shared.time.now();
        let (outcome, changes) = {
            let inbox = std::mem::take(&mut *rollouts.inbox());
            let mut table = rollouts.table();
            table.revert();
            let mut outcome = RoundOutcome::default();
            for (host, is_online) in inbox.presences {
                table.presence(host, is_online);
            }
            for host in inbox.left {
                let names: Vec<DeploymentName> = table.rollouts.keys().cloned().collect();
                names.iter().for_each(|name| table.leave(name, host));
                table.rollouts.values_mut().for_each(|entry| entry.state.forget(host));
                table.online.remove(&host);
            }
            for (host, reports) in inbox.reports {
                for (_, report) in reports {
                    outcome.answers.extend(table.hear(host, &report, now));
                }
            }
            for word in inbox.authorities {
                table.authority_answered(word, now);
            }
            for word in inbox.checks {
                table.check_answered(word, now);
            }
            if table.is_ready {
                rollouts.decide(&mut table, now, &mut outcome);
            }
            (outcome, table.changes()?)
        };
        if !changes.is_empty() {
            crash::point("store rollout", "before");
            let mut transaction = shared.store.begin().await?;
            write(&mut transaction, &changes).await?;
            crash::point("store rollout", "before commit");
            transaction.commit().await.map_err(StoreError::from)?;
            crash::point("store rollout", "after commit");
        }
        rollouts.table().commit(&changes);
        rollouts.admitted.fetch_add(outcome.admitted, Ordering::Relaxed);
        self.set_gates().await?;
        drop(changing);
        for name in changes.deployments() {
            shared.changed(PageChange::Rollout(name.clone()));
        }
        Ok(outcome)
    }
}

impl Rollouts {
    /// Decides for all rollouts that have something to decide.
    fn decide(&self, table: &mut RolloutTable, now: Millis, outcome: &mut RoundOutcome) {
        let names: Vec<DeploymentName> = table.rollouts.keys().cloned().collect();
        for name in names {
            let is_due = |entry: &RolloutEntry| entry.again_ms.is_none_or(|again_ms| again_ms <= now);
            if table.rollouts.get(&name).is_some_and(is_due) {
                self.decide_one(table, &name, now, outcome);
            }
            let again_ms = table.rollouts.get(&name).and_then(|entry| entry.again_ms);
            outcome.again_ms = outcome.again_ms.into_iter().chain(again_ms).min();
        }
    }

    fn decide_one(&self, table: &mut RolloutTable, name: &DeploymentName, now: Millis, outcome: &mut RoundOutcome) {
        for _ in 0..STEPS_MAX {
            let Some(entry) = table.rollouts.get_mut(name) else { return };
            let decision = decide::decide(&entry.policy, &entry.state, &self.zones, now);
            entry.state.carry_out(&decision, now);
            // Far in the future, so that nothing is decided again without a reason.
            entry.again_ms = Some(decision.again_ms.unwrap_or(Millis::MAX));
            let version = entry.state.version;
            entry.tell(name, &decision, now, outcome);
            for grant in &decision.grants {
                if let Some(earlier) = grant.replaces.filter(|earlier| *earlier != version) {
                    table.earlier(name, earlier, grant.host, HostOutcome::Superseded);
                }
            }
            for timed in decision.outcomes.iter().filter(|timed| timed.version != version) {
                table.earlier(name, timed.version, timed.host, timed.outcome);
            }
            if let Some(step) = &decision.step {
                if let RolloutStep::RollBack { reason } = step {
                    outcome.rollbacks.push((name.clone(), version, reason.clone()));
                    if let Some(entry) = table.rollouts.get_mut(name) {
                        entry.again_ms = Some(now + ROLLBACK_AGAIN_MS);
                        entry.failure = Some(reason.clone());
                    }
                    return;
                }
                let wave = table.rollouts.get(name).map_or(1, |entry| entry.state.wave);
                table.step(name, version, None, step_words(step, wave), now);
            }
            if decision.step.is_none() && decision.outcomes.is_empty() {
                break;
            }
        }
        if let Some(entry) = table.rollouts.get_mut(name) {
            entry.remind(name, now, outcome);
        }
    }
}

/// What a step is called.
fn step_words(step: &RolloutStep, wave: u32) -> String {
    match step {
        RolloutStep::EndWave { .. } => format!("wave {wave} has succeeded"),
        RolloutStep::AwaitApproval => format!("wave {} waits for approval", wave + 1),
        RolloutStep::BeginWave => format!("wave {wave} begins"),
        RolloutStep::Pause { reason } => format!("it is paused: {reason}"),
        RolloutStep::RollBack { reason } => format!("it is rolled back: {reason}"),
        RolloutStep::Complete => "it has completed".to_owned(),
        RolloutStep::Fail { reason } => format!("it has failed: {reason}"),
    }
}

impl RolloutTable {
    /// Handles that a host came online, or went offline.
    fn presence(&mut self, host: HostId, is_online: bool) {
        let is_new = if is_online { self.online.insert(host) } else { self.online.remove(&host) };
        for entry in self.rollouts.values_mut().filter(|entry| entry.state.hosts.contains_key(&host)) {
            match is_online {
                true => entry.state.online(host),
                false => entry.state.offline(host),
            }
            // It may not have received what it was told.
            entry.retried.remove(&host);
            if is_new {
                entry.again_ms = None;
            }
        }
    }

    /// Takes what an authority has said of hosts.
    fn authority_answered(&mut self, word: AuthorityAnswer, now: Millis) {
        let is_this = |entry: &&mut RolloutEntry| entry.state.version == word.version;
        let Some(entry) = self.rollouts.get_mut(&word.deployment).filter(is_this) else { return };
        for (host, refusal) in word.hosts {
            entry.state.authority_answered(host, refusal, now);
            // Whoever waits for it is told what it has said.
            entry.answered.remove(&host);
        }
        entry.again_ms = None;
    }

    /// Takes what a check has found.
    fn check_answered(&mut self, word: CheckAnswer, now: Millis) {
        let is_this = |entry: &&mut RolloutEntry| entry.state.version == word.version;
        let Some(entry) = self.rollouts.get_mut(&word.deployment).filter(is_this) else { return };
        entry.state.check_answered(word.result, now);
        entry.again_ms = None;
    }

    /// Takes a message of a host. Returns what is answered at once.
    fn hear(&mut self, host: HostId, report: &AdmissionReport, now: Millis) -> Option<DueAnswer> {
        let AdmissionReport { number, deployment, version, stage, .. } = report;
        let due = |verdict| DueAnswer { host, deployment: deployment.clone(), version: *version, to: *number, verdict };
        let Some(entry) = self.rollouts.get_mut(deployment) else {
            return Some(due(self.without_rollout(host, report)));
        };
        if entry.state.version == *version && entry.digest != report.digest {
            log_peer!(WARN, host, ODD, host.id = %host, %deployment, version,
                "a host reports a version of this number with other content; it is not answered");
            return None;
        }
        if !entry.state.hosts.contains_key(&host) {
            return match stage {
                AdmissionStage::Asks => {
                    let reason = format!("the host is not one of deployment {deployment}");
                    Some(due(answer::wait_for(reason, 0)))
                }
                AdmissionStage::Begun { .. } | AdmissionStage::Ended { .. } => Some(due(AdmissionVerdict::Noted)),
            };
        }
        entry.again_ms = None;
        let reception = match stage {
            AdmissionStage::Asks => entry.state.asked(host, *number, *version, now),
            AdmissionStage::Begun { permit } => entry.state.begun(host, *number, *version, *permit, now),
            AdmissionStage::Ended { permit, outcome, changed, diagnostic } => {
                let end = HostEnd { version: *version, permit: *permit, outcome: *outcome };
                let reception = entry.state.ended(host, *number, end, &entry.policy, now);
                if *version == entry.state.version && reception.is_changed {
                    entry.note(host, |note| {
                        (note.changed, note.message, note.ended_ms) = (Some(*changed), diagnostic.clone(), Some(now));
                    });
                }
                reception
            }
        };
        let current = entry.state.version;
        let verdict = reception.reply.map(answer::replied);
        if verdict == Some(AdmissionVerdict::Retry) {
            entry.retried.insert(host, now);
        }
        if let Some((version, outcome)) = reception.outcome.filter(|(version, _)| *version != current) {
            self.earlier(deployment, version, host, outcome);
        }
        verdict.map(due)
    }

    /// Answers a host that speaks of a deployment without a rollout: it was removed, or its present version goes to all
    /// hosts at once.
    fn without_rollout(&mut self, host: HostId, report: &AdmissionReport) -> AdmissionVerdict {
        let AdmissionReport { deployment, version, stage, .. } = report;
        match stage {
            AdmissionStage::Asks => {
                answer::wait_for(format!("version {version} of deployment {deployment} is not rolled out"), 0)
            }
            AdmissionStage::Begun { .. } => AdmissionVerdict::Noted,
            AdmissionStage::Ended { outcome, .. } => {
                self.earlier(deployment, *version, host, (*outcome).into());
                AdmissionVerdict::Noted
            }
        }
    }
}

impl RolloutEntry {
    /// Collects what a decision, which was carried out, has to be told.
    fn tell(&mut self, name: &DeploymentName, decision: &Decision, now: Millis, outcome: &mut RoundOutcome) {
        let version = self.state.version;
        if self.state.phase.is_end() {
            self.ended_ms.get_or_insert(now);
        } else {
            self.ended_ms = None;
        }
        for grant in &decision.grants {
            self.note(grant.host, |note| {
                note.admitted_ms = Some(now);
                (note.changed, note.message, note.ended_ms) = (None, None, None);
            });
            self.answered.remove(&grant.host);
            self.retried.remove(&grant.host);
            outcome.admitted += 1;
            outcome.answers.push(DueAnswer {
                host: grant.host,
                deployment: name.clone(),
                version: grant.version,
                to: grant.to,
                verdict: AdmissionVerdict::Granted { permit: grant.permit, begin_within_ms: BEGIN_WITHIN_MS },
            });
        }
        for timed in decision.outcomes.iter().filter(|timed| timed.version == version) {
            self.note(timed.host, |note| note.ended_ms = Some(now));
        }
        for (host, reason) in &decision.waits {
            let Some(asks) = self.state.hosts.get(host).and_then(|progress| progress.asks) else { continue };
            if self.answered.insert(*host, asks.number) == Some(asks.number) {
                continue;
            }
            outcome.answers.push(DueAnswer {
                host: *host,
                deployment: name.clone(),
                version: asks.version,
                to: asks.number,
                verdict: answer::wait(reason, decision.waits.len()),
            });
        }
        if let Some(authority) = self.policy.authority.clone().filter(|_| !decision.ask_authority.is_empty()) {
            let hosts = decision.ask_authority.clone();
            self.state.authority_asked(&hosts, now);
            outcome.authorities.push(AuthorityRequest { deployment: name.clone(), version, authority, hosts });
        }
        if let Some(check) = self.policy.check.clone().filter(|_| decision.ask_check) {
            self.state.check_asked(now);
            let (changed, rest) = self.changed_hosts();
            outcome.checks.push(CheckRequest { deployment: name.clone(), version, check, changed, rest });
        }
    }

    /// The hosts that this version has changed, and the others.
    fn changed_hosts(&self) -> (Vec<HostId>, Vec<HostId>) {
        let is_changed = |host: &HostId| {
            self.state.hosts.get(host).is_some_and(|progress| progress.terminal() == Some(HostOutcome::Verified))
                && self.notes.get(host).is_some_and(|note| note.changed == Some(true))
        };
        self.state.hosts.keys().copied().partition(is_changed)
    }

    /// Tells hosts to try again that are to, and have not asked: they may not have heard it.
    fn remind(&mut self, name: &DeploymentName, now: Millis, outcome: &mut RoundOutcome) {
        if matches!(
            self.state.phase,
            RolloutPhase::Cancelled | RolloutPhase::RolledBack { .. } | RolloutPhase::Superseded { .. }
        ) {
            return;
        }
        let mut due: BTreeMap<HostId, _> = BTreeMap::new();
        for (host, progress) in &self.state.hosts {
            let is_meant = progress.retry_ms().is_some()
                && progress.permit.is_none()
                && progress.asks.is_none()
                && progress.is_online
                && !matches!(progress.outcome(), None | Some(HostOutcome::Removed));
            let Some(heard) = progress.heard.filter(|_| is_meant) else { continue };
            let told = self.retried.get(host);
            if told.is_none_or(|at_ms| !(0..RETRY_EVERY_MS).contains(&now.saturating_sub(*at_ms))) {
                due.insert(*host, heard);
            }
            self.again_ms = self.again_ms.map(|again_ms| again_ms.min(now + RETRY_EVERY_MS));
        }
        for (host, to) in due {
            self.retried.insert(host, now);
            let (deployment, version) = (name.clone(), self.state.version);
            outcome.answers.push(DueAnswer { host, deployment, version, to, verdict: AdmissionVerdict::Retry });
        }
    }
}
