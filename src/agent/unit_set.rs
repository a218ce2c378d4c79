//! Sets of units: all of them become what they should be, or none.
//!
//! As with the estate ([`super::estate`]), a set is one transaction with its journal row, its answer and its outbox row, and
//! what is refused leaves nothing of itself but the refusal. A check is the same, taken back.

use muster_topics::{
    command::{Command, UnitSet},
    outcome::{AppliedUnit, RefusalCode, Status},
};
use sqlx::SqliteConnection;

use super::{
    core::Agent,
    store::{self, StoreError, journal, realm, unit::Asker, unit_set},
};
use crate::{clock, rules::Refusal};

/// What a part of a set has come to.
enum Done {
    /// Others are yet to come.
    Kept,
    /// It was the last, and the whole of it was done.
    All(Vec<AppliedUnit>),
}

impl Agent {
    /// Makes the units of a set what they should be, or finds out whether they could be, and answers.
    pub(super) async fn apply_set(&mut self, command: &Command, set: &UnitSet) -> Result<(), StoreError> {
        let now_ms = clock::now_ms();
        let mut tx = self.store.begin().await?;
        if !self.enter(&mut tx, command).await? {
            tx.rollback().await?;
            return self.repeated(command.id).await;
        }
        let done = take(&mut tx, command, set).await?;
        let (status, is_taken_back) = match done {
            Ok(Done::Kept) => (Status::Completed, false),
            Ok(Done::All(_)) if set.check => (Status::Completed, true),
            Ok(Done::All(units)) => (Status::AppliedSet { units }, false),
            Err(refusal) => (refusal.into(), true),
        };
        if is_taken_back {
            tx.rollback().await?;
            tx = self.store.begin().await?;
            self.enter(&mut tx, command).await?;
            unit_set::forget(&mut tx, set.part, now_ms).await?;
        }
        let changed = matches!(status, Status::AppliedSet { .. });
        let key = journal::finish(&mut tx, command.id, status.into(), now_ms).await?;
        store::commit(tx, "edit units").await?;
        if changed {
            if !command.realms.is_empty() {
                self.carry_realms().await;
            }
            self.units.desired_changed();
            self.voice.beats.hasten();
        }
        self.queue(key);
        Ok(())
    }
}

async fn take(
    tx: &mut SqliteConnection,
    command: &Command,
    set: &UnitSet,
) -> Result<Result<Done, Refusal>, StoreError> {
    let gathered = match set.part {
        Some(part) => unit_set::gather(tx, part, &set.units, command.expires_ms).await?,
        None => Ok(Some(set.units.clone())),
    };
    let units = match gathered {
        Ok(Some(units)) => units,
        Ok(None) => return Ok(Ok(Done::Kept)),
        Err(refusal) => return Ok(Err(refusal)),
    };
    if units.is_empty() {
        return Ok(Err(Refusal::new(RefusalCode::Invalid, "the set has no units")));
    }
    if let Err(refusal) = realm::take_in(tx, &command.realms).await? {
        return Ok(Err(refusal));
    }
    let asker = Asker { operator: &command.operator, now_ms: clock::now_ms() };
    Ok(unit_set::apply(tx, &units, asker).await?.map(Done::All))
}
