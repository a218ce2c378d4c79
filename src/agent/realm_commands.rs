//! Handles verbs about the host as a whole: realms, and snapshots of its units.
//!
//! Each is one transaction, like an edit of one unit ([`super::command_handler`]): its change, its journal row, its outcome
//! and its outbox row. A refused verb leaves nothing but the refusal.

use std::collections::BTreeSet;

use muster_base::clock;
use muster_rules::CommandRefusal;
use muster_topics::{
    Millis,
    command::{Command, Verb},
    diagnostic::Diagnostic,
    name::{Name, UnitName},
    outcome::{RefusalCode, Status},
    unit::Spec,
};
use serde::Serialize;
use sqlx::SqliteConnection;

use super::{
    command_handler::TakenInTransaction,
    main_loop::AgentLoop,
    pending_writes::answer_with,
    store::{self, StoreError, journal, realm, snapshot, unit::ChangeContext},
};

/// The result of a verb.
enum RealmResult {
    /// An answer without a change.
    Told(Vec<u8>),
    /// An answer after a change of desired state, realms or snapshots.
    Changed(Vec<u8>),
}

impl AgentLoop {
    /// Executes a verb about realms or snapshots, and answers.
    pub(super) async fn take_realm_command(
        &mut self,
        command: &Command,
        verb: &Verb,
        signed_ms: Millis,
    ) -> Result<TakenInTransaction, StoreError> {
        let now_ms = clock::now_ms();
        let mut tx = self.store.begin().await?;
        if !self.enter(&mut tx, command, signed_ms).await? {
            tx.rollback().await?;
            return Ok(TakenInTransaction::Repeated);
        }
        let mut keys = Vec::new();
        let is_change = match self.realm_command(&mut tx, command, verb, now_ms).await? {
            Ok(RealmResult::Told(output)) => {
                answer_with(&mut tx, command.id, (&output, &[]), now_ms, &mut keys).await?;
                false
            }
            Ok(RealmResult::Changed(output)) => {
                answer_with(&mut tx, command.id, (&output, &[]), now_ms, &mut keys).await?;
                true
            }
            Err(refusal) => {
                // A part of it may have been applied.
                tx.rollback().await?;
                tx = self.store.begin().await?;
                self.enter(&mut tx, command, signed_ms).await?;
                keys.extend(journal::finish(&mut tx, command.id, Status::from(refusal).into(), now_ms).await?);
                false
            }
        };
        store::commit(tx, "estate").await?;
        if is_change {
            self.update_realms().await;
            self.units.desired_changed();
        }
        Ok(TakenInTransaction::Answered { keys, is_change })
    }

    async fn realm_command(
        &self,
        tx: &mut SqliteConnection,
        command: &Command,
        verb: &Verb,
        now_ms: Millis,
    ) -> Result<Result<RealmResult, CommandRefusal>, StoreError> {
        let identity = self.identity.present().clone();
        let key = Some(&identity.membership.revision_key);
        // A unit of a snapshot is rendered as it was.
        let asker =
            ChangeContext { operator: &command.asked_by.operator, now_ms, key, is_document: false, values: None };
        let may_be = |unit: &UnitName, spec: &Spec| self.may_be(unit, spec);
        let nothing = |()| RealmResult::Changed(Vec::new());
        Ok(match verb {
            Verb::RealmSet { realm } if !command.realms.iter().any(|told| told.name == *realm) => {
                Err(CommandRefusal::new(RefusalCode::Invalid, format!("the command does not define realm {realm}")))
            }
            Verb::RealmSet { .. } => realm::take_in(tx, &command.realms).await?.map(nothing),
            Verb::RealmRm { realm } => realm::remove(tx, realm).await?.map(nothing),
            Verb::SnapshotCreate { snapshot } => {
                let is_denied = |unit: &UnitName| self.session.policy().forbids_realm(&unit.realm()).is_some();
                snapshot::create(tx, snapshot, is_denied, asker).await?.map(|()| RealmResult::Changed(Vec::new()))
            }
            Verb::SnapshotLs => Ok(RealmResult::Told(json(&snapshot::list(tx).await?)?)),
            Verb::SnapshotDiff { snapshot } => match snapshot::compare(tx, snapshot).await? {
                Ok(diff) => Ok(RealmResult::Told(json(&diff)?)),
                Err(refusal) => Err(refusal),
            },
            Verb::SnapshotActivate { snapshot } => match snapshot::activate(tx, snapshot, may_be, asker).await? {
                Ok(diff) => Ok(RealmResult::Changed(json(&diff)?)),
                Err(refusal) => Err(refusal),
            },
            Verb::SnapshotDeactivate { snapshot } => match snapshot::deactivate(tx, snapshot, may_be, asker).await? {
                Ok(diff) => Ok(RealmResult::Changed(json(&diff)?)),
                Err(refusal) => Err(refusal),
            },
            Verb::SnapshotRm { snapshot } => {
                snapshot::remove(tx, snapshot).await?.map(|()| RealmResult::Changed(Vec::new()))
            }
            other => {
                let message = format!("{} is not about realms or snapshots", other.name());
                Err(CommandRefusal::new(RefusalCode::Invalid, message))
            }
        })
    }

    /// Whether the host's local policy still allows a unit's earlier state: the policy may have become stricter.
    fn may_be(&self, unit: &UnitName, spec: &Spec) -> Result<(), CommandRefusal> {
        let user = spec.host_user().unwrap_or(self.session.user());
        let refusal =
            self.session.policy().forbids_realm(&unit.realm()).or_else(|| self.session.policy().forbids_user(user));
        refusal.map_or(Ok(()), Err)
    }

    /// Updates the host's realms: those of its configuration, and those that the console has defined.
    pub(super) async fn update_realms(&mut self) {
        let told = match self.store.realms().await {
            Ok(realms) => realms,
            Err(error) => {
                return tracing::error!(%error, hint = Diagnostic::of(&error).hint, "the realms of this host cannot be read");
            }
        };
        let realms: BTreeSet<Name> =
            self.own_realms.iter().cloned().chain(told.iter().map(|realm| realm.name.clone())).collect();
        if realms != *self.session.realms() {
            self.host_snapshot.set_realms(&realms);
            self.session.set_realms(realms);
            self.observe_units();
        }
    }
}

fn json<T: Serialize>(answer: &T) -> Result<Vec<u8>, StoreError> {
    serde_json::to_vec(answer).map_err(|source| StoreError::Content { what: "answer", source })
}
