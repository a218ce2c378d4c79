//! The host's document of desired state: fetched and handed in, stored and applied; and the units that are to go.
//!
//! Decisions are in [`muster_rules::desired`]. A document and all that follows from it are one transaction, in which each
//! deployment is applied by itself: one that is refused leaves the others.

use std::{collections::BTreeMap, io, path::PathBuf, time::Duration};

use muster_base::{chance, clock};
use muster_rules::{
    CommandRefusal,
    backoff::{ExponentialGrowth, jittered},
    desired::{
        host_body::{self, HostBody},
        removal::{LeavingUnit, RemovalPolicy, RemovalTurn, has_stopped, turns},
    },
    render::RenderValues,
};
use muster_session::{interface::Input, store::NewDocument};
use muster_topics::{
    Millis, V1, canonical,
    command::Verb,
    desired::{
        Admission, BODY_MAX_BYTES, DesiredDeployment, DocumentRefusal, HandedIn, PlanRequest, StoredDocument, UnitOwner,
    },
    diagnostic::Diagnostic,
    name::{Digest, UnitName},
    verb_table::VerbName,
};
use sqlx::SqliteConnection;

use super::{
    address,
    command_handler::TaskResult,
    host_snapshot::HostSnapshot,
    join::{self, JoinError, MemberIdentity},
    kept_data,
    main_loop::AgentLoop,
    store::{
        self, StoreError,
        deployment::{self, ApplyScope, DocumentHost},
        document::{self, DocumentText},
        label, removal,
        unit::{self, ChangeContext},
    },
};

/// How soon what could not be done is tried again, such as a deployment whose port is taken.
const AGAIN_MS: Millis = 60_000;

/// How soon a report is tried again that could not be made.
const REPORT_AGAIN_MS: Millis = 2_000;

/// How long a body may take: half a MiB over the slowest of links.
const FETCH_MAX: Duration = Duration::from_secs(120);

/// How often the document is handed in; the console asks again if it needs to.
const HAND_IN_MAX: u32 = 5;
const HAND_IN_AGAIN: ExponentialGrowth = ExponentialGrowth { first_ms: 2_000, max_ms: 60_000 };

/// Fetches the body with this digest from the console.
///
/// # Errors
/// If the console cannot be reached, refuses, or has other content.
pub async fn fetch(identity: &MemberIdentity, digest: &Digest) -> Result<Vec<u8>, JoinError> {
    fetch_from(identity, "/v1/desired/", digest).await
}

/// Fetches the request for a plan with this digest, likewise.
pub(super) async fn fetch_plan_request(identity: &MemberIdentity, digest: &Digest) -> Result<PlanRequest, JoinError> {
    let bytes = fetch_from(identity, "/v1/plans/", digest).await?;
    let value = canonical::parse(&bytes).map_err(|error| JoinError::Answer(error.to_string()))?;
    serde_json::from_value(value).map_err(|error| JoinError::Answer(error.to_string()))
}

async fn fetch_from(identity: &MemberIdentity, folder: &str, digest: &Digest) -> Result<Vec<u8>, JoinError> {
    let ask = async |url| {
        let request = join::https(identity.tls()?, url)?.get(join::whole(url, &format!("{folder}{digest}")));
        join::exchange(url, request.timeout(FETCH_MAX), BODY_MAX_BYTES).await
    };
    let bytes = address::ask(identity.console_urls(), ask).await?;
    match Digest::of(&bytes) == *digest {
        true => Ok(bytes),
        false => Err(JoinError::Answer("it does not have the requested digest".to_owned())),
    }
}

async fn hand_in(identity: &MemberIdentity, handed_in: &HandedIn) -> Result<(), JoinError> {
    let ask = async |url| {
        let request = join::https(identity.tls()?, url)?.put(join::whole(url, "/v1/desired")).json(handed_in);
        join::exchange(url, request.timeout(FETCH_MAX), BODY_MAX_BYTES).await
    };
    address::ask(identity.console_urls(), ask).await.map(drop)
}

/// What the loop knows of the document beside what is reported.
#[derive(Debug)]
pub(super) struct DesiredProgress {
    policy: RemovalPolicy,
    data_dir: PathBuf,
    /// Whether there are deployments that were refused, and may pass later.
    is_passing: bool,
    /// How far the units are that are to go.
    removals: RemovalProgress,
    /// Whether the console is asked which instances are still placed here.
    is_confirming: bool,
    /// When both are examined again, by the agent's monotonic clock.
    due_ms: Millis,
}

/// How far the units are that are to go, as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum RemovalProgress {
    /// There are none.
    None,
    /// There are some, or may be, and none is being stopped.
    Waiting,
    /// One is being stopped, or may be.
    Stopping,
}

impl DesiredProgress {
    pub(super) fn new(policy: RemovalPolicy, data_dir: PathBuf) -> Self {
        Self {
            policy,
            data_dir,
            is_passing: true,
            removals: RemovalProgress::Stopping,
            is_confirming: false,
            due_ms: 0,
        }
    }

    /// When something is to be examined.
    pub(super) fn next_ms(&self) -> Option<Millis> {
        (self.is_passing || self.removals != RemovalProgress::None).then_some(self.due_ms)
    }

    /// Has it examined now.
    pub(super) fn hasten(&mut self) {
        (self.is_passing, self.due_ms) = (true, 0);
    }

    /// Whether a change of a unit may be the end of one that is being stopped.
    pub(super) fn is_stopping(&self) -> bool {
        self.removals == RemovalProgress::Stopping
    }
}

impl AgentLoop {
    /// Fetches a body; the result is an event.
    pub(super) fn fetch_desired(&mut self, digest: Digest) {
        let identity = self.identity.present();
        self.work.spawn(async move {
            let fetched = fetch(&identity, &digest).await;
            if let Err(error) = &fetched {
                tracing::info!(digest = digest.short(), %error, hint = Diagnostic::of(error).hint, "the document of this host cannot be fetched yet");
            }
            TaskResult::DesiredFetched(digest, fetched.ok())
        });
    }

    /// Asks the console whether the stored document is the present one, until it says so, if instances wait for that. A later
    /// document that comes meanwhile is asked about instead.
    pub(super) fn confirm_places(&mut self) {
        if !self.units.has_unconfirmed() || std::mem::replace(&mut self.desired.is_confirming, true) {
            return;
        }
        let (store, identity, units) = (self.store.clone(), self.identity.present(), self.units.clone());
        self.work.spawn(async move {
            for attempts in 0_u32.. {
                match document::known(&store).await.map(|known| known.digest) {
                    // Bytes with this digest are those of the present document: the console has no others for this host.
                    Ok(Some(digest)) => match fetch(&identity, &digest).await {
                        Ok(_) => {
                            tracing::info!("the console has confirmed which instances are placed on this host");
                            units.confirm_places();
                            break;
                        }
                        Err(error) => {
                            tracing::info!(%error, hint = Diagnostic::of(&error).hint, "the console has not confirmed yet which instances are placed on this host");
                        }
                    },
                    Ok(None) => {}
                    Err(error) => tracing::warn!(%error, hint = Diagnostic::of(&error).hint, "the document of this host cannot be read"),
                }
                let wait_ms = HAND_IN_AGAIN.jittered_ms(attempts, chance::random());
                tokio::time::sleep(Duration::from_millis(wait_ms.unsigned_abs())).await;
            }
            TaskResult::Done
        });
    }

    /// Hands in what is stored of the console: document and labels; the result is an event.
    pub(super) async fn hand_in_document(&mut self) {
        let stored = async {
            let mut tx = self.store.begin().await?;
            Ok((document::text(&mut tx).await?, label::signed(&mut tx).await?))
        };
        let (document, labels) = match stored.await {
            Ok(stored) => stored,
            Err(error) => {
                self.store_failed(&error);
                (None, None)
            }
        };
        let document = document.and_then(|DocumentText { signed, body }| {
            serde_json::from_str(&signed).map(|head| StoredDocument { head, body }).ok()
        });
        let labels = labels.and_then(|signed| serde_json::from_str(&signed).ok());
        if document.is_none() && labels.is_none() {
            return self.tell(Input::DocumentHandedIn);
        }
        let handed_in = HandedIn { v: V1, document, labels };
        let identity = self.identity.present();
        self.work.spawn(async move {
            for attempts in 0..HAND_IN_MAX {
                match hand_in(&identity, &handed_in).await {
                    Ok(()) => {
                        tracing::info!("document and labels of this host were sent to the console");
                        break;
                    }
                    Err(error) => tracing::warn!(%error, hint = Diagnostic::of(&error).hint, "document and labels of this host cannot be sent to the console"),
                }
                let wait_ms = HAND_IN_AGAIN.jittered_ms(attempts, chance::random());
                tokio::time::sleep(Duration::from_millis(wait_ms.unsigned_abs())).await;
            }
            TaskResult::DocumentHandedIn
        });
    }

    /// Stores a document, and makes what it says the desired state.
    pub(super) async fn set_document(&mut self, new: &NewDocument) -> Result<(), StoreError> {
        let NewDocument { head, signed, bytes, body } = new;
        let text = DocumentText { signed: signed.0.clone(), body: String::from_utf8_lossy(bytes).into_owned() };
        let mut tx = self.store.begin().await?;
        document::set(&mut tx, head, &text).await?;
        self.apply_body(&mut tx, body, ApplyScope::All).await?;
        store::commit(tx, "store document").await?;
        for (name, reason) in &body.unreadable_vars {
            tracing::error!(
                variable = name,
                reason,
                consequence = "the variable is treated as not set",
                "a variable of this host's document cannot be read"
            );
        }
        let body = &body.body;
        tracing::info!(mark = %head.mark, deployments = body.deployments.len(), removals = body.remove.len(), "new document");
        if !body.realms.is_empty() {
            self.update_realms().await;
        }
        self.desired_changed().await;
        self.follow_values().await;
        Ok(())
    }

    /// Stores that a document was refused.
    pub(super) async fn refuse_document(
        &mut self,
        refusal: &DocumentRefusal,
        digest: &Digest,
    ) -> Result<(), StoreError> {
        document::refuse(&self.store, refusal, digest).await?;
        self.desired_changed().await;
        Ok(())
    }

    /// Handles that the document, or the owner of a unit, has changed: units follow, removals begin, and it is reported.
    pub(super) async fn desired_changed(&mut self) {
        self.units.desired_changed();
        self.desired.removals = self.desired.removals.max(RemovalProgress::Waiting);
        if let Err(error) = self.drive_removals().await {
            self.store_failed(&error);
        }
        self.report_desired().await;
    }

    /// Applies the deployments of a body.
    pub(super) async fn apply_body(
        &self,
        tx: &mut SqliteConnection,
        body: &HostBody,
        scope: ApplyScope<'_>,
    ) -> Result<(), StoreError> {
        let (identity, values) = (self.identity.present(), self.render_values());
        deployment::apply(tx, body, scope, self.document_host(&identity, &values)).await
    }

    /// The host that a document is applied on.
    pub(super) fn document_host<'a>(
        &'a self,
        identity: &'a MemberIdentity,
        values: &'a RenderValues,
    ) -> DocumentHost<'a> {
        DocumentHost {
            policy: self.session.policy(),
            realms: &self.own_realms,
            user: self.session.user(),
            key: &identity.membership.revision_key,
            now_ms: clock::now_ms(),
            values,
        }
    }

    /// The values of this host for templates, without its variables.
    pub(super) fn render_values(&self) -> RenderValues {
        let HostSnapshot { hostname, facts, .. } = &self.host_snapshot;
        let labels = self.host_snapshot.labels().iter().map(|(name, value)| (name.to_string(), value.clone()));
        RenderValues::of_host((self.host, hostname), facts, labels)
    }

    /// Has units follow the host's name and facts, if these have changed.
    pub(super) async fn follow_host(&mut self) {
        if self.followed.as_ref() != Some(&self.render_values()) {
            self.follow_values().await;
        }
    }

    /// Has units follow facts, labels and variables that their templates name. Those of a deployment whose version this host
    /// asks for follow with a version.
    pub(super) async fn follow_values(&mut self) {
        let values = self.render_values();
        let operator = deployment::actor();
        let identity = self.identity.present();
        let key = Some(&identity.membership.revision_key);
        let now_ms = clock::now_ms();
        let asker = ChangeContext { operator: &operator, now_ms, key, is_document: true, values: Some(&values) };
        let refreshed = async {
            let mut tx = self.store.begin().await?;
            let text = document::text(&mut tx).await?;
            let body = text.and_then(|text| host_body::read(text.body.as_bytes()).ok()).unwrap_or_default();
            let is_free = |owner: &UnitOwner| {
                let free = |one: &&DesiredDeployment| one.admission == Admission::Free;
                body.body.deployments.iter().filter(free).any(|one| one.version.deployment == owner.deployment)
            };
            let is_followed = |row: &unit::StoredUnit| row.owner.as_ref().is_none_or(is_free);
            let is_changed = unit::refresh_values(&mut tx, asker, is_followed).await?;
            if is_changed {
                store::commit(tx, "follow values").await?;
            }
            Ok::<_, StoreError>(is_changed)
        };
        match refreshed.await {
            Ok(is_changed) => {
                self.followed = Some(values);
                if is_changed {
                    self.units.desired_changed();
                }
            }
            // The next look at the host tries again.
            Err(error) => {
                self.followed = None;
                self.store_failed(&error);
            }
        }
    }

    /// Tries what could not be done, if it is time.
    pub(super) async fn drive_desired(&mut self) -> Result<(), StoreError> {
        let now_ms = self.now_ms();
        if self.desired.next_ms().is_none_or(|due_ms| now_ms < due_ms) {
            return Ok(());
        }
        self.desired.due_ms = now_ms + jittered(AGAIN_MS, chance::random());
        self.retry_deployments().await?;
        self.drive_removals().await?;
        self.report_desired().await;
        Ok(())
    }

    /// Tries deployments again whose refusal may pass.
    async fn retry_deployments(&mut self) -> Result<(), StoreError> {
        let mut tx = self.store.begin().await?;
        let passing = deployment::passing(&mut tx).await?;
        self.desired.is_passing = !passing.is_empty();
        if passing.is_empty() {
            return Ok(());
        }
        let Some(text) = document::text(&mut tx).await? else { return Ok(()) };
        // It was read before it was stored; another version of the agent may see it in another way.
        match host_body::read(text.body.as_bytes()) {
            Ok(body) => self.apply_body(&mut tx, &body, ApplyScope::Passing(&passing)).await?,
            Err(reason) => {
                tracing::error!(reason, "the stored document cannot be read");
                return Ok(());
            }
        }
        store::commit(tx, "apply deployments").await?;
        self.units.desired_changed();
        Ok(())
    }

    /// Stops and removes units that are to go, as fast as the host's policy allows.
    pub(super) async fn drive_removals(&mut self) -> Result<(), StoreError> {
        if self.desired.removals == RemovalProgress::None {
            return Ok(());
        }
        let now_ms = self.store.certain_ms();
        let mut tx = self.store.begin().await?;
        let (leaving, turns) = self.turns(&mut tx, now_ms).await?;
        let states = self.inputs.units.borrow().clone();
        let mut is_changed = false;
        for one in &leaving {
            let unit = &one.unit;
            match turns.get(unit) {
                Some(RemovalTurn::Now(_)) => {
                    tracing::info!(%unit, is_counted = one.is_counted(), "a removed unit is stopped");
                    let (operator, verb) = (deployment::actor(), Verb::UnitStop { unit: unit.clone() });
                    let asker =
                        ChangeContext { operator: &operator, now_ms, key: None, is_document: true, values: None };
                    if let Err(CommandRefusal { diagnostic, .. }) = unit::edit(&mut tx, unit, &verb, asker).await? {
                        tracing::warn!(%unit, reason = diagnostic.cause, hint = diagnostic.hint, "a removed unit cannot be stopped");
                        continue;
                    }
                    removal::begin(&mut tx, one, now_ms).await?;
                    is_changed = true;
                }
                Some(RemovalTurn::Begun(_)) if states.get(unit).is_none_or(|state| has_stopped(&state.observed)) => {
                    if let Err(error) = self.leave_data(&mut tx, unit).await? {
                        tracing::warn!(%unit, %error, "the data of a removed unit cannot be kept; the unit stays until it can");
                        continue;
                    }
                    match unit::remove(&mut tx, unit).await? {
                        Ok(()) => {
                            tracing::info!(%unit, "a removed unit is deleted");
                            is_changed = true;
                        }
                        Err(refusal) => {
                            tracing::debug!(%unit, reason = refusal.diagnostic.cause, hint = refusal.diagnostic.hint, "it cannot be removed yet");
                        }
                    }
                }
                _ => {}
            }
        }
        if is_changed {
            store::commit(tx, "remove units").await?;
            self.units.desired_changed();
        }
        Ok(())
    }

    /// Keeps what a unit that has stopped has written, or removes it, as its removal says.
    async fn leave_data(&self, tx: &mut SqliteConnection, unit: &UnitName) -> Result<io::Result<()>, StoreError> {
        let data_dir = &self.desired.data_dir;
        Ok(match removal::is_purge(tx, unit).await? {
            true => kept_data::discard(data_dir, unit),
            false => kept_data::keep(data_dir, unit),
        })
    }

    async fn turns(
        &self,
        tx: &mut SqliteConnection,
        now_ms: Millis,
    ) -> Result<(Vec<LeavingUnit>, BTreeMap<UnitName, RemovalTurn>), StoreError> {
        let mut leaving = removal::leaving(tx).await?;
        if self.session.policy().deny_verbs.contains(&VerbName::UnitRm) {
            leaving.iter_mut().for_each(|leaving| leaving.is_kept = true);
        }
        let (units, past) = (unit::count(tx).await?, removal::past(tx, now_ms).await?);
        let turns = turns(&leaving, units, &past, &self.desired.policy, now_ms);
        Ok((leaving, turns))
    }

    /// Reports what became of the document.
    pub(super) async fn report_desired(&mut self) {
        let report = async {
            let mut report = document::report(&self.store).await?;
            let mut tx = self.store.begin().await?;
            let (_, turns) = self.turns(&mut tx, self.store.certain_ms()).await?;
            let removals = match turns.values().any(|turn| matches!(turn, RemovalTurn::Begun(_))) {
                true => RemovalProgress::Stopping,
                false if turns.is_empty() => RemovalProgress::None,
                false => RemovalProgress::Waiting,
            };
            self.observe_admissions(&mut tx, &mut report).await?;
            report.removals = turns.into_iter().map(|(unit, turn)| (unit, turn.time())).collect();
            Ok::<_, StoreError>((report, removals, !deployment::passing(&mut tx).await?.is_empty()))
        };
        let (report, removals, is_passing) = match report.await {
            Ok(report) => report,
            Err(error) => {
                // What the loop knows is of before: it is found out again soon.
                (self.desired.is_passing, self.desired.due_ms) = (true, self.now_ms() + REPORT_AGAIN_MS);
                return self.store_failed(&error);
            }
        };
        (self.desired.removals, self.desired.is_passing) = (removals, is_passing);
        if self.desired.next_ms().is_some_and(|due_ms| due_ms <= self.now_ms()) {
            self.desired.due_ms = self.now_ms() + jittered(AGAIN_MS, chance::random());
        }
        let is_refused = report.refused.is_some();
        self.host_snapshot.set_desired(report);
        self.observe_units();
        let checked = self.record_document_refusal(is_refused).await;
        if let Err(error) = checked {
            self.store_failed(&error);
        }
    }
}

#[cfg(test)]
mod tests;
