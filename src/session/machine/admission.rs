//! Admission: what the host says of deployments that it asks for, and the console's answers.
//!
//! **Invariant: each message has a number of its own, and an answer counts only if it names the last message of its
//! deployment.** So a host that asks again has not begun, and never will with an earlier answer.
//!
//! **Invariant: what the host says is repeated until it is answered**: a question with growing pauses, or when the console
//! has said to ask again; that it has begun, and how it has ended, until the console has stored that. On a new connection
//! all that is open is said at once.
//!
//! **Invariant: record, then act.** That the host begins is stored, with the permit, before anything else follows from a
//! grant; a grant that cannot be stored is judged again.

use std::{collections::BTreeMap, fmt::Debug};

use muster_fault::planted;
use muster_rules::{backoff::jittered, desired::body::shortened, outbox_retry::REPEAT};
use muster_topics::{
    Millis, V1,
    ack::Numbered,
    admission::{AdmissionAnswer, AdmissionReport, AdmissionStage, AdmissionVerdict},
    desired::DeploymentName,
    topic::HostTopic,
};

use super::{Session, Waiting};
use crate::{
    identity::json,
    interface::{AdmissionStatement, AdmissionStatements, Effect, Moment},
    publisher::Publication,
    store::{AdmissionChange, AdmissionStep, StoreRequest},
};

/// How soon a host asks again at the earliest, and at the latest, whatever the console says: a wrong answer must neither
/// have it ask without a pause, nor never again.
const AGAIN_MIN_MS: Millis = 1_000;
const AGAIN_MAX_MS: Millis = 3_600_000;

/// What the host says of deployments, until it is answered.
#[derive(Debug)]
pub(super) struct AdmissionOutbox {
    epoch: u64,
    seq: u64,
    said: BTreeMap<DeploymentName, SaidAdmission>,
}

/// What the host says of a deployment.
#[derive(Debug)]
struct SaidAdmission {
    statement: AdmissionStatement,
    /// The last message.
    number: Option<Numbered>,
    /// How often it was said without an answer.
    attempts: u32,
    /// When it is said again; `None` if it was answered.
    due_ms: Option<Millis>,
}

impl SaidAdmission {
    fn new(statement: AdmissionStatement, now_ms: Millis) -> Self {
        let number = statement.noted;
        Self { due_ms: number.is_none().then_some(now_ms), number, attempts: 0, statement }
    }

    fn says(&self, other: &AdmissionStatement) -> bool {
        let AdmissionStatement { version, digest, stage, .. } = &self.statement;
        (version, digest, stage) == (&other.version, &other.digest, &other.stage)
    }
}

impl AdmissionOutbox {
    pub(super) fn new(epoch: u64, statements: AdmissionStatements) -> Self {
        let said = statements.into_iter().map(|(name, statement)| (name, SaidAdmission::new(statement, 0)));
        Self { epoch, seq: 0, said: said.collect() }
    }

    /// Sets what the host says of all deployments. What it says already keeps its number and its pause.
    pub(super) fn set_all(&mut self, statements: AdmissionStatements, now_ms: Millis) {
        self.said.retain(|deployment, _| statements.contains_key(deployment));
        for (deployment, statement) in statements {
            self.set(deployment, Some(statement), now_ms);
        }
    }

    /// Sets what the host says of a deployment.
    pub(super) fn set(&mut self, deployment: DeploymentName, statement: Option<AdmissionStatement>, now_ms: Millis) {
        match statement {
            None => drop(self.said.remove(&deployment)),
            Some(statement) => match self.said.get_mut(&deployment).filter(|said| said.says(&statement)) {
                Some(said) if said.statement.noted == statement.noted => {}
                Some(said) => {
                    said.due_ms = said.due_ms.filter(|_| statement.noted.is_none());
                    said.statement = statement;
                }
                None => drop(self.said.insert(deployment, SaidAdmission::new(statement, now_ms))),
            },
        }
    }

    /// Handles a new connection: questions, and what was not answered, are due.
    pub(super) fn connected(&mut self, now_ms: Millis) {
        for said in self.said.values_mut().filter(|said| said.due_ms.is_some()) {
            (said.attempts, said.due_ms) = (0, Some(now_ms));
        }
    }

    /// When the next message is due.
    pub(super) fn next_ms(&self) -> Option<Millis> {
        self.said.values().filter_map(|said| said.due_ms).min()
    }

    /// Returns the next message that is due; it counts as sent.
    pub(super) fn next(&mut self, now: Moment) -> Option<Publication> {
        let is_due = |said: &SaidAdmission| said.due_ms.is_some_and(|due_ms| due_ms <= now.life_ms);
        let (deployment, said) = self.said.iter_mut().find(|(_, said)| is_due(said))?;
        self.seq += 1;
        let number = Numbered { epoch: self.epoch, seq: self.seq };
        said.number = Some(number);
        said.due_ms = Some(now.life_ms + REPEAT.jittered_ms(said.attempts, (now.random)()).max(AGAIN_MIN_MS));
        said.attempts = said.attempts.saturating_add(1);
        let AdmissionStatement { version, digest, stage, .. } = said.statement.clone();
        let deployment = deployment.clone();
        let report = AdmissionReport { v: V1, number, at_ms: now.clock_ms, deployment, version, digest, stage };
        Some(Publication::new(HostTopic::Admission, json(&report)))
    }

    /// Returns what an answer is about, if that is the last message of its deployment.
    fn answered(&mut self, answer: &AdmissionAnswer) -> Option<&mut SaidAdmission> {
        let said = self.said.get_mut(&answer.deployment)?;
        let is_last = said.number == Some(answer.to) || planted!(TakeLateGrant);
        (is_last && said.statement.version == answer.version).then_some(said)
    }
}

impl<R: Debug, W: Debug> Session<R, W> {
    /// Handles an answer of the console.
    pub(super) fn take_answer(&mut self, answer: AdmissionAnswer, receipt: Option<R>, now: Moment) {
        match self.judge_answer(&answer, now) {
            Ok(None) => self.finish(receipt, now),
            Ok(Some(step)) => {
                let (deployment, version) = (answer.deployment.clone(), answer.version);
                let request = StoreRequest::Admission(AdmissionChange { deployment, version, step });
                self.ask(request, Waiting::Admission(Box::new(answer), receipt));
            }
            Err(why) => {
                self.reject("admission_answer", why);
                self.finish(receipt, now);
            }
        }
    }

    /// Judges an answer; returns what is to be stored.
    fn judge_answer(&mut self, answer: &AdmissionAnswer, now: Moment) -> Result<Option<AdmissionStep>, &'static str> {
        if answer.host != self.local.me.host {
            return Err("it is for another host");
        }
        self.local.time.observe(answer.issued_ms, now.clock_ms);
        let Some(said) = self.admission.answered(answer) else {
            return Err("it does not answer the last message of its deployment");
        };
        match (&said.statement.stage, &answer.verdict) {
            (AdmissionStage::Asks, AdmissionVerdict::Granted { permit, begin_within_ms }) => {
                let within_ms = Millis::try_from(*begin_within_ms).unwrap_or(Millis::MAX);
                let is_late = self.local.time.now_ms(now.clock_ms) > answer.issued_ms.saturating_add(within_ms);
                match is_late {
                    true => Err("it grants a permit, and is too old by this host's clock"),
                    false => Ok(Some(AdmissionStep::Begin { permit: *permit })),
                }
            }
            (AdmissionStage::Asks, AdmissionVerdict::Wait { reason, again_ms }) => {
                let again_ms = Millis::try_from(*again_ms).unwrap_or(AGAIN_MAX_MS).clamp(AGAIN_MIN_MS, AGAIN_MAX_MS);
                (said.attempts, said.due_ms) = (0, Some(now.life_ms + jittered(again_ms, (now.random)())));
                let reason = shortened(reason.as_str());
                self.effects.push(Effect::AdmissionWaits(answer.deployment.clone(), answer.version, reason));
                Ok(None)
            }
            (AdmissionStage::Begun { .. }, AdmissionVerdict::Noted) => {
                said.due_ms = None;
                Ok(None)
            }
            (AdmissionStage::Ended { .. }, AdmissionVerdict::Noted) => {
                Ok(said.statement.noted.is_none().then_some(AdmissionStep::Noted(answer.to)))
            }
            (AdmissionStage::Ended { .. }, AdmissionVerdict::Retry) => Ok(Some(AdmissionStep::Retry(answer.to))),
            _ => Err("it does not answer this host's message"),
        }
    }
}
