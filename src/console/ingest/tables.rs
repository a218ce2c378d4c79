//! What ingest reads and writes, as a trait: the console's database, or the simulation's tables, on which the same
//! decisions are tried in virtual time.

use std::collections::{BTreeMap, HashSet};

use muster_topics::{
    Millis,
    alert::{Alert, AlertSummary},
    name::{CommandId, HostId, Name, UnitName},
    outcome::Stream,
    presence::Presence,
    unit::UnitReport,
};
use sqlx::SqliteConnection;

use crate::{
    api::CommandState,
    console::store::{
        Result,
        alert::{self, Put},
        command::{self, Added, Settled},
        host::{self, Asked, Known, NewState},
    },
};

/// Tables that a batch of messages is stored in. Each function is the one of the same name in [`host`], [`command`] or [`alert`].
pub(crate) trait Tables {
    async fn known(&mut self, asked: &Asked) -> Result<Known>;
    async fn set_presences(&mut self, presences: &[(HostId, Presence)], now: Millis) -> Result<()>;
    async fn set_held(&mut self, states: &[NewState], now: Millis) -> Result<()>;
    async fn last_reports(&mut self, host: HostId, epoch: u64) -> Result<Option<BTreeMap<UnitName, u64>>>;
    async fn units_before(&mut self, host: HostId, epoch: u64, made_ms: Millis) -> Result<Vec<UnitName>>;
    async fn set_unit(&mut self, host: HostId, report: &UnitReport, now: Millis) -> Result<bool>;
    async fn remove_unit(&mut self, host: HostId, unit: &UnitName) -> Result<bool>;
    async fn state(&mut self, command: CommandId, host: HostId) -> Result<Option<CommandState>>;
    async fn advance(&mut self, command: CommandId, host: HostId, to: CommandState) -> Result<()>;
    async fn add_host(&mut self, command: CommandId, host: HostId, state: CommandState) -> Result<bool>;
    async fn settle(&mut self, outcomes: &[Settled], now: Millis) -> Result<HashSet<(CommandId, HostId)>>;
    async fn add_output(
        &mut self,
        command: CommandId,
        host: HostId,
        stream: Stream,
        offset_bytes: u64,
        data: &[u8],
    ) -> Result<Added>;
    async fn put_alert(&mut self, host: HostId, alert: &Alert, now: Millis) -> Result<Put>;
    async fn reconcile_alerts(
        &mut self,
        host: HostId,
        made: (u64, Millis),
        holding: &BTreeMap<Name, AlertSummary>,
    ) -> Result<bool>;
}

impl Tables for SqliteConnection {
    async fn known(&mut self, asked: &Asked) -> Result<Known> {
        host::known(self, asked).await
    }

    async fn set_presences(&mut self, presences: &[(HostId, Presence)], now: Millis) -> Result<()> {
        host::set_presences(self, presences, now).await
    }

    async fn set_held(&mut self, states: &[NewState], now: Millis) -> Result<()> {
        host::set_held(self, states, now).await
    }

    async fn last_reports(&mut self, host: HostId, epoch: u64) -> Result<Option<BTreeMap<UnitName, u64>>> {
        host::last_reports(self, host, epoch).await
    }

    async fn units_before(&mut self, host: HostId, epoch: u64, made_ms: Millis) -> Result<Vec<UnitName>> {
        host::units_before(self, host, epoch, made_ms).await
    }

    async fn set_unit(&mut self, host: HostId, report: &UnitReport, now: Millis) -> Result<bool> {
        host::set_unit(self, host, report, now).await
    }

    async fn remove_unit(&mut self, host: HostId, unit: &UnitName) -> Result<bool> {
        host::remove_unit(self, host, unit).await
    }

    async fn state(&mut self, command: CommandId, host: HostId) -> Result<Option<CommandState>> {
        command::state(self, command, host).await
    }

    async fn advance(&mut self, command: CommandId, host: HostId, to: CommandState) -> Result<()> {
        command::advance(self, command, host, to).await
    }

    async fn add_host(&mut self, command: CommandId, host: HostId, state: CommandState) -> Result<bool> {
        command::add_host(self, command, host, state).await
    }

    async fn settle(&mut self, outcomes: &[Settled], now: Millis) -> Result<HashSet<(CommandId, HostId)>> {
        command::settle(self, outcomes, now).await
    }

    async fn add_output(
        &mut self,
        command: CommandId,
        host: HostId,
        stream: Stream,
        offset_bytes: u64,
        data: &[u8],
    ) -> Result<Added> {
        command::add_output(self, command, host, stream, offset_bytes, data).await
    }

    async fn put_alert(&mut self, host: HostId, alert: &Alert, now: Millis) -> Result<Put> {
        alert::put(self, host, alert, now).await
    }

    async fn reconcile_alerts(
        &mut self,
        host: HostId,
        made: (u64, Millis),
        holding: &BTreeMap<Name, AlertSummary>,
    ) -> Result<bool> {
        alert::reconcile(self, host, made, holding).await
    }
}
