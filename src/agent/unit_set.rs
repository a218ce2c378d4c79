//! Applies sets of units: all of them, or none.
//!
//! As in [`super::realm_commands`], a set is one transaction with its journal row, its outcome and its outbox row, and
//! a refused set leaves nothing but the refusal. A check does the same and rolls back.

use muster_base::clock;
use muster_rules::{CommandRefusal, render::RenderValues};
use muster_topics::{
    Millis,
    command::{Command, UnitSet, Verb},
    outcome::{AppliedUnit, RefusalCode, Status},
    revision::RevisionKey,
};
use sqlx::SqliteConnection;

use super::{
    command_handler::TakenInTransaction,
    main_loop::AgentLoop,
    store::{self, StoreError, journal, realm, unit::ChangeContext, unit_set},
};

/// The result of a part of a set.
enum SetResult {
    /// Other parts are missing.
    Kept,
    /// It was the last part, and the set was applied.
    All(Vec<AppliedUnit>),
}

impl AgentLoop {
    /// Applies the units of a set, or checks whether they could be applied, and answers.
    pub(super) async fn apply_set(
        &mut self,
        command: &Command,
        verb: &Verb,
        signed_ms: Millis,
    ) -> Result<TakenInTransaction, StoreError> {
        let Verb::UnitsApply(set) = verb else { return Ok(TakenInTransaction::Repeated) };
        let now_ms = clock::now_ms();
        let mut tx = self.store.begin().await?;
        if !self.enter(&mut tx, command, signed_ms).await? {
            tx.rollback().await?;
            return Ok(TakenInTransaction::Repeated);
        }
        let identity = self.identity.present();
        let values = self.render_values();
        let done = take(&mut tx, command, set, (Some(&identity.membership.revision_key), &values)).await?;
        let (status, is_taken_back) = match done {
            Ok(SetResult::Kept) => (Status::Completed, false),
            Ok(SetResult::All(_)) if set.check => (Status::Completed, true),
            Ok(SetResult::All(units)) => (Status::AppliedSet { units }, false),
            Err(refusal) => (refusal.into(), true),
        };
        if is_taken_back {
            tx.rollback().await?;
            tx = self.store.begin().await?;
            self.enter(&mut tx, command, signed_ms).await?;
            unit_set::forget(&mut tx, set.part, self.store.certain_ms()).await?;
        }
        let is_change = matches!(status, Status::AppliedSet { .. });
        let key = journal::finish(&mut tx, command.id, status.into(), now_ms).await?;
        store::commit(tx, "edit units").await?;
        if is_change {
            if !command.realms.is_empty() {
                self.update_realms().await;
            }
            self.units.desired_changed();
        }
        Ok(TakenInTransaction::Answered { keys: key.into_iter().collect(), is_change })
    }
}

async fn take(
    tx: &mut SqliteConnection,
    command: &Command,
    set: &UnitSet,
    (key, values): (Option<&RevisionKey>, &RenderValues),
) -> Result<Result<SetResult, CommandRefusal>, StoreError> {
    let gathered = match set.part {
        Some(part) => unit_set::gather(tx, part, &set.units, command.expires_ms).await?,
        None => Ok(Some(set.units.clone())),
    };
    let units = match gathered {
        Ok(Some(units)) => units,
        Ok(None) => return Ok(Ok(SetResult::Kept)),
        Err(refusal) => return Ok(Err(refusal)),
    };
    if units.is_empty() {
        return Ok(Err(CommandRefusal::new(RefusalCode::Invalid, "the set has no units")));
    }
    if let Err(refusal) = realm::take_in(tx, &command.realms).await? {
        return Ok(Err(refusal));
    }
    let asker = ChangeContext {
        operator: &command.asked_by.operator,
        now_ms: clock::now_ms(),
        key,
        is_document: false,
        values: Some(values),
    };
    Ok(unit_set::apply(tx, &units, asker).await?.map(SetResult::All))
}
