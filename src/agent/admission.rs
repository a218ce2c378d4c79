//! Deployments that are rolled out: the host prepares a version, asks, begins with it, and says how it has ended.
//!
//! Decisions are in [`muster_rules::desired::change`] and in the session; what counts is in [`crate::store::admission`]. What is
//! here only, is gone with the agent and found out again: what is prepared, and what the host's own policy says.
//!
//! Modules: [`policy`] (the host's own policy).
//!
//! **Invariant: until a version is begun, nothing of its deployment changes.** Preparing downloads and checks, and no more.

pub mod policy;
#[cfg(test)]
mod tests;

use std::{collections::BTreeMap, sync::Arc};

use muster_base::{chance, clock};
use muster_rules::{
    CommandRefusal,
    backoff::{ExponentialGrowth, jittered},
    deployment_state::HostUnit,
    desired::{
        body::{DeploymentObstacle, shortened},
        change::{self, ChangeProgress},
        host_body::{self, HostBody},
    },
    plan::Failure,
};
use muster_session::{
    interface::{AdmissionStatement, AdmissionStatements},
    store::{AdmissionChange, AdmissionStep},
    unit_state::UnitStates,
};
use muster_topics::{
    Millis,
    ack::Numbered,
    admission::{AdmissionStage, AdmissionWait, AdmissionWaitKind, ChangeOutcome},
    desired::{DeploymentName, DeploymentReport, DeploymentVersion, DesiredReport},
    diagnostic::Diagnostic,
    name::{Digest, UnitName},
    outcome::RefusalCode,
};
use sqlx::SqliteConnection;
use tokio::task::AbortHandle;

use self::policy::{AdmissionPolicy, PolicyMoment};
use super::{
    command_handler::TaskResult,
    host_plan::Planner,
    main_loop::AgentLoop,
    store::{
        self, StoreError,
        admission::{self, AdmissionRow, AdmissionRowStage},
        deployment::{self, ApplyScope, RehearsedUnit},
        document,
        unit::{self, StoredUnits},
    },
    unit::Units,
};

/// How often a version that waits is examined again: a window closes, a file appears, what was downloaded is removed.
const EXAMINE_MS: Millis = 60_000;

/// The delays before what could not be prepared is tried again.
const PREPARE_AGAIN: ExponentialGrowth = ExponentialGrowth { first_ms: 2_000, max_ms: 300_000 };

/// Why a version is not begun whose plan has changed.
const PLAN_CHANGED: &str =
    "what the version would change here differs from the plan: something on this host has changed since";
/// What an operator can do about that.
const PLAN_CHANGED_HINT: &str = "make a new plan (`muster plan`) and apply it, or apply without `--plan`";

/// What the loop knows of versions that wait to be begun, and of those that were.
#[derive(Debug)]
pub(super) struct AdmissionProgress {
    policy: AdmissionPolicy,
    waiting: BTreeMap<DeploymentName, WaitingVersion>,
    /// When versions that were begun count as failed, by the agent's monotonic clock. After a restart their time begins anew.
    limits_ms: BTreeMap<(DeploymentName, u32), Millis>,
    /// When those whose time is over are judged.
    judge_ms: Millis,
    /// When a unit of one of them will have been up for long enough.
    verify_ms: Option<Millis>,
    examinations: u64,
}

/// A version that waits to be begun.
#[derive(Debug)]
struct WaitingVersion {
    version: Arc<DeploymentVersion>,
    digest: Digest,
    since_ms: Millis,
    stage: WaitStage,
    /// The digest of the plan that an operator has seen.
    plan: Option<Digest>,
    /// When it is examined next; `None` while it is.
    due_ms: Option<Millis>,
    /// How often it could not be prepared.
    failures: u32,
    /// The number of its last examination, and its task.
    examination: u64,
    task: Option<AbortHandle>,
}

/// What a version waits for.
#[derive(Debug, PartialEq, Eq)]
enum WaitStage {
    Preparing(Option<Diagnostic>),
    Policy(Diagnostic),
    /// For an operator: it would change something else than the plan showed.
    PlanChanged(Diagnostic),
    /// For the console, with what it has said.
    Asks(Option<Diagnostic>),
}

impl Drop for WaitingVersion {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}

impl WaitingVersion {
    fn report(&self) -> AdmissionWait {
        let (kind, diagnostic) = match &self.stage {
            WaitStage::Preparing(why) => (AdmissionWaitKind::Preparing, why.clone()),
            WaitStage::Policy(why) => (AdmissionWaitKind::Policy, Some(why.clone())),
            WaitStage::PlanChanged(why) => (AdmissionWaitKind::PlanChanged, Some(why.clone())),
            WaitStage::Asks(why) => (AdmissionWaitKind::Admission, why.clone()),
        };
        AdmissionWait { version: self.version.number, kind, since_ms: self.since_ms, diagnostic }
    }

    fn asks(&self) -> Option<AdmissionStatement> {
        let (version, digest) = (self.version.number, self.digest.clone());
        let asks = || AdmissionStatement { version, digest, stage: AdmissionStage::Asks, noted: None };
        matches!(self.stage, WaitStage::Asks(_)).then(asks)
    }
}

impl AdmissionProgress {
    pub(super) fn new(policy: AdmissionPolicy) -> Self {
        Self {
            policy,
            waiting: BTreeMap::new(),
            limits_ms: BTreeMap::new(),
            judge_ms: 0,
            verify_ms: None,
            examinations: 0,
        }
    }

    /// When something is to be examined.
    pub(super) fn next_ms(&self) -> Option<Millis> {
        let waiting = self.waiting.values().filter_map(|waiting| waiting.due_ms);
        let limits = self.limits_ms.values().map(|limit_ms| self.judge_ms.max(*limit_ms));
        let verified = self.verify_ms.map(|verify_ms| self.judge_ms.max(verify_ms));
        waiting.chain(limits).chain(verified).min()
    }

    /// Whether a version was begun that has not ended.
    pub(super) fn has_begun(&self) -> bool {
        !self.limits_ms.is_empty()
    }

    fn asks(&self) -> AdmissionStatements {
        let asks = |(name, waiting): (&DeploymentName, &WaitingVersion)| Some((name.clone(), waiting.asks()?));
        self.waiting.iter().filter_map(asks).collect()
    }

    /// Adds what versions wait for to a report.
    fn complete(&self, report: &mut DesiredReport) {
        for (deployment, waiting) in &self.waiting {
            let none = || DeploymentReport { version: 0, refused: None, waits: None };
            report.deployments.entry(deployment.clone()).or_insert_with(none).waits = Some(waiting.report());
        }
    }

    /// Takes over which versions wait, each with the digest of its plan. One that waits already goes on.
    fn set_waiting(&mut self, versions: Vec<(DeploymentVersion, Option<Digest>)>, now_ms: Millis) {
        let is_there = |name: &DeploymentName| versions.iter().any(|(version, _)| version.deployment == *name);
        self.waiting.retain(|name, _| is_there(name));
        for (version, plan) in versions {
            let digest = admission::digest(&version);
            let waiting = self.waiting.get(&version.deployment);
            if waiting.is_some_and(|waiting| waiting.digest == digest && waiting.plan == plan) {
                continue;
            }
            tracing::info!(deployment = %version.deployment, version = version.number, "a version waits to begin");
            let waiting = WaitingVersion {
                version: Arc::new(version),
                digest,
                since_ms: clock::now_ms(),
                stage: WaitStage::Preparing(None),
                plan,
                due_ms: Some(now_ms),
                failures: 0,
                examination: 0,
                task: None,
            };
            self.waiting.insert(waiting.version.deployment.clone(), waiting);
        }
    }

    fn set_begun(&mut self, rows: &[AdmissionRow], limit_ms: impl Fn(&AdmissionRow) -> Millis) {
        let begun = rows.iter().filter(|row| matches!(row.stage, AdmissionRowStage::Begun { .. }));
        let before = std::mem::take(&mut self.limits_ms);
        self.limits_ms = begun
            .map(|row| {
                let key = (row.deployment.clone(), row.version);
                let limit_ms = before.get(&key).copied().unwrap_or_else(|| limit_ms(row));
                (key, limit_ms)
            })
            .collect();
    }
}

/// The result of an examination of a version that waits.
#[derive(Debug)]
pub(super) enum Examination {
    /// Everything is there, and nothing forbids it.
    Ready,
    /// Something cannot be prepared.
    NotPrepared(Failure),
    /// The host's own policy forbids it at present.
    Forbidden(Diagnostic),
    /// It would change something else than the plan showed that an operator has seen.
    PlanChanged(Diagnostic),
}

/// Prepares a version, compares what it would change with its plan, if it has one, and asks the host's own policy.
async fn examine(
    (units, planner): (Units, Planner),
    rehearsed: Vec<RehearsedUnit>,
    policy: AdmissionPolicy,
    (version, plan): (Arc<DeploymentVersion>, Option<Digest>),
) -> Examination {
    for one in &rehearsed {
        if let Err(Failure { error, may_heal }) = units.prepare(one).await {
            let error = shortened(error.within(&one.unit));
            return Examination::NotPrepared(Failure { error, may_heal });
        }
    }
    if let Some(plan) = plan {
        match planner.digest_of(&version.deployment).await {
            Ok(Some(found)) if found == plan => {}
            Ok(_) => return Examination::PlanChanged(Diagnostic::new(PLAN_CHANGED).with_hint(PLAN_CHANGED_HINT)),
            Err(error) => {
                return Examination::NotPrepared(Failure {
                    error: Diagnostic::of(&error).within("the changes of a version cannot be computed"),
                    may_heal: true,
                });
            }
        }
    }
    policy.ask(&version).await.map_or_else(Examination::Forbidden, |()| Examination::Ready)
}

/// The versions of a body that wait to be begun.
async fn waiting(
    tx: &mut SqliteConnection,
    body: &HostBody,
    rows: &[AdmissionRow],
) -> Result<Vec<DeploymentVersion>, StoreError> {
    let held_back = deployment::held_back(tx, body).await?;
    let refused = deployment::refused(tx).await?;
    let is_again = |version: &DeploymentVersion| {
        let of = |row: &&AdmissionRow| row.deployment == version.deployment && row.version == version.number;
        rows.iter().find(of).is_some_and(|row| row.stage == AdmissionRowStage::Again)
    };
    let waits = |version: &&DeploymentVersion| {
        let is_refused = refused.get(version.deployment.as_str()) == Some(&version.number);
        held_back.contains(&version.deployment) && !is_refused || is_again(version)
    };
    Ok(body.body.deployments.iter().map(|deployment| &deployment.version).filter(waits).cloned().collect())
}

impl AgentLoop {
    /// Finds out what waits and what was begun, says so, and adds it to the report.
    pub(super) async fn observe_admissions(
        &mut self,
        tx: &mut SqliteConnection,
        report: &mut DesiredReport,
    ) -> Result<(), StoreError> {
        let now_ms = self.now_ms();
        let body = stored_body(tx).await?;
        let rows = admission::all(tx).await?;
        let versions = match &body {
            Some(body) => waiting(tx, body, &rows).await?,
            None => Vec::new(),
        };
        let plan_of = |version: &DeploymentVersion| {
            let found = body.iter().flat_map(|body| &body.body.deployments);
            found.into_iter().find(|one| one.version.deployment == version.deployment)?.plan.clone()
        };
        let versions = versions.into_iter().map(|version| {
            let plan = plan_of(&version);
            (version, plan)
        });
        self.admission.set_waiting(versions.collect(), now_ms);
        if rows.iter().any(|row| matches!(row.stage, AdmissionRowStage::Begun { .. })) {
            let stored = unit::all(tx).await?;
            let limit_ms = |row: &AdmissionRow| {
                let units = stored.units.iter().filter(|unit| row.units.contains_key(&unit.name));
                now_ms.saturating_add(change::limit_ms(units.map(|unit| &*unit.desired.spec)))
            };
            self.admission.set_begun(&rows, limit_ms);
            // Its units may have come up before it was known here that it was begun, such as before a restart.
            self.admission.verify_ms = Some(now_ms);
        } else {
            self.admission.limits_ms.clear();
            self.admission.verify_ms = None;
        }
        self.admission.complete(report);
        self.session.set_admissions(admission::statements(&rows, &self.admission.asks()), now_ms);
        Ok(())
    }

    /// Stores what the console has answered, and returns what the host says of the deployment now.
    pub(super) async fn admission_answered(
        &mut self,
        change: &AdmissionChange,
    ) -> Result<Option<AdmissionStatement>, StoreError> {
        let AdmissionChange { deployment, version, step } = change;
        let mut tx = self.store.begin().await?;
        let what = match step {
            AdmissionStep::Begin { permit } => {
                match self.begin_version(&mut tx, (deployment, *version), *permit).await? {
                    true => Some("begin deployment"),
                    false => None,
                }
            }
            AdmissionStep::Noted(to) => {
                note(&mut tx, (deployment, *version), *to).await?;
                Some("note end of deployment")
            }
            AdmissionStep::Retry(to) => {
                note(&mut tx, (deployment, *version), *to).await?;
                let found = admission::all(&mut tx).await?.into_iter();
                if let Some(row) = found.into_iter().find(|row| is_of(row, deployment, *version)) {
                    tracing::info!(%deployment, version, "a version is retried");
                    deployment::try_again(&mut tx, row).await?;
                }
                Some("retry deployment")
            }
        };
        let mut asks = self.admission.asks();
        asks.retain(|name, statement| name != deployment || statement.version != *version || what.is_none());
        let said = admission::statements(&admission::all(&mut tx).await?, &asks).remove(deployment);
        let Some(what) = what else { return Ok(said) };
        store::commit(tx, what).await?;
        self.admission.waiting.retain(|name, waiting| name != deployment || waiting.version.number != *version);
        match step {
            AdmissionStep::Noted(_) => self.report_desired().await,
            AdmissionStep::Begin { .. } | AdmissionStep::Retry(_) => {
                // Others may wait for what it gives up.
                self.desired.hasten();
                self.desired_changed().await;
            }
        }
        Ok(said)
    }

    /// Makes a version that the console has admitted the desired state. Returns false if it does not wait any more, or the
    /// host's own policy forbids it now.
    async fn begin_version(
        &self,
        tx: &mut SqliteConnection,
        (name, number): (&DeploymentName, u32),
        permit: u64,
    ) -> Result<bool, StoreError> {
        let Some(waiting) = self.admission.waiting.get(name).filter(|waiting| waiting.version.number == number) else {
            return Ok(false);
        };
        if let (WaitStage::Preparing(_) | WaitStage::Policy(_) | WaitStage::PlanChanged(_), _) | (_, Some(_)) =
            (&waiting.stage, self.admission.policy.forbids(&waiting.version, PolicyMoment::Begin))
        {
            return Ok(false);
        }
        let Some(body) = stored_body(tx).await? else { return Ok(false) };
        let rows = admission::all(tx).await?;
        let waits = self::waiting(tx, &body, &rows).await?;
        if !waits.iter().any(|version| admission::digest(version) == waiting.digest) {
            return Ok(false);
        }
        tracing::info!(deployment = %name, version = number, permit, "a version begins");
        self.apply_body(tx, &body, ApplyScope::Begin(name, permit)).await?;
        Ok(true)
    }

    /// Handles that the console has said to wait.
    pub(super) async fn admission_waits(&mut self, deployment: &DeploymentName, version: u32, reason: Diagnostic) {
        let Some(waiting) = self.admission.waiting.get_mut(deployment) else { return };
        let WaitStage::Asks(before) = &mut waiting.stage else { return };
        if waiting.version.number == version && before.as_ref() != Some(&reason) {
            *before = Some(reason);
            self.report_desired().await;
        }
    }

    /// Examines versions that wait, and those that were begun, as far as it is time.
    pub(super) async fn drive_admissions(&mut self) -> Result<(), StoreError> {
        let now_ms = self.now_ms();
        let is_due = |waiting: &WaitingVersion| waiting.due_ms.is_some_and(|due_ms| due_ms <= now_ms);
        let due = self.admission.waiting.iter().filter(|(_, waiting)| is_due(waiting));
        let due: Vec<DeploymentName> = due.map(|(name, _)| name.clone()).collect();
        for name in due {
            self.examine(&name).await?;
        }
        let is_due = self.admission.limits_ms.values().chain(&self.admission.verify_ms).any(|due_ms| *due_ms <= now_ms);
        if self.admission.judge_ms <= now_ms && is_due {
            // If the store fails, it is tried again.
            self.admission.judge_ms = now_ms + PREPARE_AGAIN.first_ms;
            self.judge_changes().await?;
            self.admission.judge_ms = 0;
        }
        Ok(())
    }

    /// Begins to examine a version: rehearses it, then prepares what it needs in a task.
    async fn examine(&mut self, name: &DeploymentName) -> Result<(), StoreError> {
        let now_ms = self.now_ms();
        if let Some(waiting) = self.admission.waiting.get_mut(name) {
            // If the store fails, it is tried again.
            waiting.due_ms = Some(now_ms + PREPARE_AGAIN.first_ms);
        }
        let mut tx = self.store.begin().await?;
        let Some(body) = stored_body(&mut tx).await? else { return Ok(()) };
        let identity = self.identity.present();
        let values = self.render_values();
        let rehearsed = deployment::rehearse(&mut tx, &body, name, self.document_host(&identity, &values)).await?;
        drop(tx);
        let rehearsed = match rehearsed {
            Ok(rehearsed) => rehearsed,
            Err(obstacle) => return self.refuse_waiting(name, obstacle).await,
        };
        let planner = self.planner();
        let Some(waiting) = self.admission.waiting.get_mut(name) else { return Ok(()) };
        self.admission.examinations += 1;
        let number = self.admission.examinations;
        let version = (Arc::clone(&waiting.version), waiting.plan.clone());
        let examined = examine((self.units.clone(), planner), rehearsed, self.admission.policy.clone(), version);
        let of = name.clone();
        let task = self.work.spawn(async move { TaskResult::Examined(of, number, examined.await) });
        (waiting.due_ms, waiting.examination, waiting.task) = (None, number, Some(task));
        Ok(())
    }

    /// Handles the result of an examination.
    pub(super) async fn examined(
        &mut self,
        name: &DeploymentName,
        number: u64,
        examination: Examination,
    ) -> Result<(), StoreError> {
        let now_ms = self.now_ms();
        let waiting = self.admission.waiting.get_mut(name).filter(|waiting| waiting.examination == number);
        let Some(waiting) = waiting else { return Ok(()) };
        waiting.due_ms = Some(now_ms + jittered(EXAMINE_MS, chance::random()));
        let stage = match examination {
            Examination::Ready => {
                waiting.failures = 0;
                WaitStage::Asks(if let WaitStage::Asks(said) = &mut waiting.stage { said.take() } else { None })
            }
            Examination::Forbidden(why) => WaitStage::Policy(why),
            Examination::PlanChanged(why) => {
                if !matches!(waiting.stage, WaitStage::PlanChanged(_)) {
                    tracing::warn!(deployment = %name, "a version waits: its changes differ from the plan");
                }
                WaitStage::PlanChanged(why)
            }
            Examination::NotPrepared(Failure { error, may_heal: true }) => {
                let again_ms = PREPARE_AGAIN.jittered_ms(waiting.failures, chance::random());
                waiting.failures = waiting.failures.saturating_add(1);
                waiting.due_ms = Some(now_ms + again_ms);
                tracing::info!(deployment = %name, error = error.cause, hint = error.hint, "a version cannot be prepared yet");
                WaitStage::Preparing(Some(error))
            }
            Examination::NotPrepared(Failure { error, may_heal: false }) => {
                let refusal = CommandRefusal::new(RefusalCode::Invalid, error);
                return self.refuse_waiting(name, DeploymentObstacle { refusal, may_pass: false }).await;
            }
        };
        waiting.stage = stage;
        self.report_desired().await;
        Ok(())
    }

    /// Refuses a version that waits.
    async fn refuse_waiting(&mut self, name: &DeploymentName, obstacle: DeploymentObstacle) -> Result<(), StoreError> {
        let Some(waiting) = self.admission.waiting.get(name) else { return Ok(()) };
        let mut tx = self.store.begin().await?;
        deployment::refuse_prepared(&mut tx, &waiting.version, obstacle).await?;
        store::commit(tx, "refuse deployment").await?;
        self.desired_changed().await;
        Ok(())
    }

    /// Stores the ends of versions that were begun, if they have ended.
    pub(super) async fn judge_changes(&mut self) -> Result<(), StoreError> {
        if !self.admission.has_begun() {
            return Ok(());
        }
        let now_ms = self.now_ms();
        let states = self.inputs.units.borrow().clone();
        let mut tx = self.store.begin().await?;
        let stored = unit::all(&mut tx).await?;
        let (mut has_ended, mut verify_ms) = (false, None::<Millis>);
        for row in admission::all(&mut tx).await? {
            let AdmissionRowStage::Begun { permit } = row.stage else { continue };
            let limit_ms = self.admission.limits_ms.get(&(row.deployment.clone(), row.version)).copied();
            let find = |name: &UnitName| unit_on_host(name, &stored, &states);
            let is_late = limit_ms.is_some_and(|limit_ms| limit_ms <= now_ms);
            let (outcome, reason) = match change::progress(&row.deployment, &row.units, find, is_late, clock::now_ms())
            {
                ChangeProgress::Ended(outcome, reason) => (outcome, reason),
                ChangeProgress::UnderWay { next_ms } => {
                    let in_ms = next_ms.map(|next_ms| next_ms.saturating_sub(clock::now_ms()).max(0));
                    verify_ms = verify_ms.into_iter().chain(in_ms.map(|in_ms| now_ms + in_ms)).min();
                    continue;
                }
            };
            let changed = outcome != ChangeOutcome::RolledBack && row.units.values().any(|is_changed| *is_changed);
            let (reason_text, hint) = reason.clone().map(|told| (told.cause, told.hint)).unzip();
            tracing::info!(
                deployment = %row.deployment, version = row.version, ?outcome, reason = reason_text, hint = hint.flatten(),
                "a version has ended"
            );
            let stage = AdmissionRowStage::Ended { permit: Some(permit), outcome, changed, reason, noted: None };
            admission::set(&mut tx, &AdmissionRow { stage, ..row.clone() }).await?;
            has_ended = true;
        }
        self.admission.verify_ms = verify_ms;
        if has_ended {
            store::commit(tx, "end deployment").await?;
            self.report_desired().await;
        }
        Ok(())
    }
}

/// Returns what is known of a unit; nothing if that is of before its present desired state.
fn unit_on_host<'a>(name: &UnitName, stored: &'a StoredUnits, states: &'a UnitStates) -> Option<HostUnit<'a>> {
    let stored = stored.units.iter().find(|unit| unit.name == *name)?;
    let state = states.get(name).filter(|state| state.desired.generation == stored.desired.generation)?;
    Some(HostUnit {
        unit: &stored.name,
        desired: &state.desired,
        observed: &state.observed,
        hold: state.hold.as_ref(),
        owner: stored.owner.as_ref(),
    })
}

fn is_of(row: &AdmissionRow, deployment: &DeploymentName, version: u32) -> bool {
    row.deployment == *deployment && row.version == version
}

/// Stores that the console has stored an end.
async fn note(
    tx: &mut SqliteConnection,
    (deployment, version): (&DeploymentName, u32),
    to: Numbered,
) -> Result<(), StoreError> {
    let body = stored_body(tx).await?;
    let numbers = body.iter().flat_map(|body| &body.body.deployments).map(|listed| &listed.version);
    let is_present = numbers.into_iter().any(|listed| listed.deployment == *deployment && listed.number == version);
    for mut row in admission::all(tx).await? {
        if !is_of(&row, deployment, version) {
            continue;
        }
        if let AdmissionRowStage::Ended { noted, .. } = &mut row.stage {
            *noted = Some(to);
            match is_present {
                true => admission::set(tx, &row).await?,
                // Nobody asks for it any more.
                false => admission::remove(tx, deployment, version).await?,
            }
        }
    }
    Ok(())
}

/// Returns the body of the stored document, if there is one that this version of the agent can read.
async fn stored_body(tx: &mut SqliteConnection) -> Result<Option<HostBody>, StoreError> {
    let Some(text) = document::text(tx).await? else { return Ok(None) };
    let read = host_body::read(text.body.as_bytes());
    Ok(read.inspect_err(|reason| tracing::error!(reason, "the stored document cannot be read")).ok())
}
