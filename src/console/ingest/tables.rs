//! What ingest needs of a database, as a trait: the console's database implements it, and the simulation's tables, on which the same
//! decisions are tested in virtual time.

use std::collections::{BTreeMap, HashSet};

use muster_api::CommandState;
use muster_topics::{
    Millis,
    alert::{Alert, AlertSummary},
    name::{CommandId, HostId, Name, UnitName},
    outcome::Stream,
    presence::Presence,
    task::TaskRecord,
    unit::UnitReport,
};
use sqlx::SqliteConnection;

use crate::store::{
    StoreResult,
    alert::{self, MessageEffect},
    command::{self, Added, SettledOutcome},
    host::{self, HostKeys, Known, NewState, UnitShare},
    task_end,
};

/// The tables that a batch of messages is stored in. Each function is the one of the same name in [`host`], [`command`]
/// or [`alert`]; `put_task_ends` is that of [`task_end`].
#[expect(
    async_fn_in_trait,
    reason = "what implements it is driven on one thread, by this crate and the simulation alone"
)]
#[expect(missing_docs, reason = "each is the function of the same name")]
pub trait Tables {
    async fn known(&mut self, asked: &HostKeys) -> StoreResult<Known>;
    async fn set_presences(&mut self, presences: &[(HostId, Presence)], now: Millis) -> StoreResult<()>;
    async fn set_held(&mut self, states: &[NewState], now: Millis) -> StoreResult<()>;
    async fn last_reports(&mut self, host: HostId, epoch: u64) -> StoreResult<Option<BTreeMap<UnitName, u64>>>;
    async fn units_before(&mut self, host: HostId, epoch: u64, made_ms: Millis) -> StoreResult<Vec<UnitName>>;
    async fn unit_share(&mut self, host: HostId, without: &UnitName) -> StoreResult<UnitShare>;
    async fn set_unit(&mut self, host: HostId, report: &UnitReport, now: Millis) -> StoreResult<bool>;
    async fn remove_unit(&mut self, host: HostId, unit: &UnitName) -> StoreResult<bool>;
    async fn state(&mut self, command: CommandId, host: HostId) -> StoreResult<Option<CommandState>>;
    async fn advance(&mut self, command: CommandId, host: HostId, to: CommandState) -> StoreResult<()>;
    async fn add_host(&mut self, command: CommandId, host: HostId, state: CommandState) -> StoreResult<bool>;
    async fn settle(&mut self, outcomes: &[SettledOutcome], now: Millis) -> StoreResult<HashSet<(CommandId, HostId)>>;
    async fn add_output(
        &mut self,
        command: CommandId,
        host: HostId,
        stream: Stream,
        offset_bytes: u64,
        data: &[u8],
    ) -> StoreResult<Added>;
    async fn put_alert(&mut self, host: HostId, alert: &Alert, now: Millis) -> StoreResult<MessageEffect>;
    async fn put_task_ends(&mut self, host: HostId, tasks: &[TaskRecord]) -> StoreResult<bool>;
    async fn reconcile_alerts(
        &mut self,
        host: HostId,
        made: (u64, Millis),
        holding: &BTreeMap<Name, AlertSummary>,
    ) -> StoreResult<bool>;
}

impl Tables for SqliteConnection {
    async fn known(&mut self, asked: &HostKeys) -> StoreResult<Known> {
        host::known(self, asked).await
    }

    async fn set_presences(&mut self, presences: &[(HostId, Presence)], now: Millis) -> StoreResult<()> {
        host::set_presences(self, presences, now).await
    }

    async fn set_held(&mut self, states: &[NewState], now: Millis) -> StoreResult<()> {
        host::set_held(self, states, now).await
    }

    async fn last_reports(&mut self, host: HostId, epoch: u64) -> StoreResult<Option<BTreeMap<UnitName, u64>>> {
        host::last_reports(self, host, epoch).await
    }

    async fn units_before(&mut self, host: HostId, epoch: u64, made_ms: Millis) -> StoreResult<Vec<UnitName>> {
        host::units_before(self, host, epoch, made_ms).await
    }

    async fn unit_share(&mut self, host: HostId, without: &UnitName) -> StoreResult<UnitShare> {
        host::unit_share(self, host, without).await
    }

    async fn set_unit(&mut self, host: HostId, report: &UnitReport, now: Millis) -> StoreResult<bool> {
        host::set_unit(self, host, report, now).await
    }

    async fn remove_unit(&mut self, host: HostId, unit: &UnitName) -> StoreResult<bool> {
        host::remove_unit(self, host, unit).await
    }

    async fn state(&mut self, command: CommandId, host: HostId) -> StoreResult<Option<CommandState>> {
        command::state(self, command, host).await
    }

    async fn advance(&mut self, command: CommandId, host: HostId, to: CommandState) -> StoreResult<()> {
        command::advance(self, command, host, to).await
    }

    async fn add_host(&mut self, command: CommandId, host: HostId, state: CommandState) -> StoreResult<bool> {
        command::add_host(self, command, host, state).await
    }

    async fn settle(&mut self, outcomes: &[SettledOutcome], now: Millis) -> StoreResult<HashSet<(CommandId, HostId)>> {
        command::settle(self, outcomes, now).await
    }

    async fn add_output(
        &mut self,
        command: CommandId,
        host: HostId,
        stream: Stream,
        offset_bytes: u64,
        data: &[u8],
    ) -> StoreResult<Added> {
        command::add_output(self, command, host, stream, offset_bytes, data).await
    }

    async fn put_alert(&mut self, host: HostId, alert: &Alert, now: Millis) -> StoreResult<MessageEffect> {
        alert::put(self, host, alert, now).await
    }

    async fn put_task_ends(&mut self, host: HostId, tasks: &[TaskRecord]) -> StoreResult<bool> {
        task_end::put(self, host, tasks).await
    }

    async fn reconcile_alerts(
        &mut self,
        host: HostId,
        made: (u64, Millis),
        holding: &BTreeMap<Name, AlertSummary>,
    ) -> StoreResult<bool> {
        alert::reconcile(self, host, made, holding).await
    }
}
