//! The console's store as tables in memory, on which the product's own ingest works ([`Tables`]).
//!
//! Each function stands for the statement of the function of the same name in `src/console/store`; [`super::console_shadow`] has
//! both do the same in some seeds, and compares. What is in here is committed: a batch that a crash comes before is not begun.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use futures_util::FutureExt;
use muster_api::CommandState;
use muster_console::{
    ingest::tables::Tables,
    store::{
        StoreResult,
        alert::MessageEffect,
        command::{Added, CommandReach, OpenCommand, SettledOutcome},
        host::{HostKeys, JUST_COME_MS, Known, LastHeartbeat, NewState, StoredState, UnitShare},
    },
};
use muster_rules::intent::CommandClass;
use muster_topics::{
    Millis,
    alert::{Alert, AlertSummary},
    command::Verb,
    name::{CommandId, HostId, Name, UnitName},
    outcome::{Outcome, Stream},
    presence::{Presence, PresenceState},
    task::TaskRecord,
    unit::UnitReport,
};

use super::{console_shadow::ConsoleShadow, wire::Body};

/// A row of `presence`.
#[derive(Clone, Debug)]
pub(super) struct PresenceRow {
    pub(super) state: PresenceState,
    pub(super) epoch: u64,
    pub(super) session: u64,
    pub(super) since_ms: Millis,
}

/// A row of `unit`.
#[derive(Clone, Debug)]
pub(super) struct UnitRow {
    pub(super) report: UnitReport,
}

/// How long a signed command counts as: nothing is signed in here.
pub(super) const SIGNED_BYTES: usize = 500;

/// A row of `command`, with those of `command_host`.
#[derive(Clone, Debug)]
pub(super) struct CommandRow {
    pub(super) issued_ms: Millis,
    pub(super) expires_ms: Millis,
    pub(super) verb: Verb,
    pub(super) broadcast: bool,
    /// Whether it may have been sent.
    pub(super) went_out: bool,
    pub(super) signed: Body,
    pub(super) hosts: BTreeMap<HostId, (CommandState, Option<Outcome>)>,
}

#[derive(Debug, Default)]
pub(super) struct Ledger {
    pub(super) members: BTreeSet<HostId>,
    pub(super) presences: BTreeMap<HostId, PresenceRow>,
    pub(super) heartbeats: BTreeMap<HostId, (StoredState, Millis)>,
    pub(super) units: BTreeMap<(HostId, UnitName), UnitRow>,
    pub(super) commands: BTreeMap<CommandId, CommandRow>,
    /// Outcomes that came first, for the watch to look at: it forgets them.
    pub(super) fresh: Vec<(CommandId, HostId, Outcome)>,
    /// Whose end was stored though it is of an earlier session, for the watch.
    pub(super) old_wills: Vec<HostId>,
    /// States that were stored, for the watch to look at.
    pub(super) stored: Vec<NewState>,
    pub(super) shadow: Option<ConsoleShadow>,
}

impl Ledger {
    pub(super) fn add(&mut self, id: CommandId, row: CommandRow) {
        if let Some(shadow) = &mut self.shadow {
            shadow.add(id, &row);
        }
        self.commands.insert(id, row);
    }

    /// A command is about to be sent.
    pub(super) fn go_out(&mut self, command: CommandId) {
        if let Some(row) = self.commands.get_mut(&command).filter(|row| !row.went_out) {
            row.went_out = true;
            if let Some(shadow) = &mut self.shadow {
                shadow.go_out(command);
            }
        }
    }

    /// A command ends with an outcome that no host has told.
    pub(super) fn close(&mut self, command: CommandId, host: HostId, outcome: Outcome, now: Millis) {
        let settled = [SettledOutcome { command, host, outcome }];
        let strangers = self.settle(&settled, now).now_or_never().map(|strangers| strangers.unwrap());
        assert_eq!(strangers, Some(HashSet::new()));
    }

    pub(super) fn online(&self) -> Vec<HostId> {
        let is_online = |(host, row): (&HostId, &PresenceRow)| (row.state == PresenceState::Online).then_some(*host);
        self.presences.iter().filter_map(is_online).collect()
    }

    /// `state IN ('waiting', 'accepted', 'running')`
    pub(super) fn open(&self) -> Vec<OpenCommand> {
        use CommandState::{Accepted, Running, Waiting};
        let hosts = |row: &CommandRow| {
            let open = row.hosts.iter().filter(|(_, (state, _))| matches!(state, Waiting | Accepted | Running));
            let reached = |state| match (state, row.went_out) {
                (Waiting, false) => CommandReach::No,
                (Waiting, true) => CommandReach::Maybe,
                _ => CommandReach::Answered,
            };
            open.map(|(host, (state, _))| (*host, reached(*state))).collect::<Vec<_>>()
        };
        let open = |(id, row): (&CommandId, &CommandRow)| {
            let hosts = hosts(row);
            let open = OpenCommand {
                id: *id,
                expires_ms: row.expires_ms,
                bytes: SIGNED_BYTES,
                kind: CommandClass::of(&row.verb),
                hosts,
            };
            (!open.hosts.is_empty()).then_some(open)
        };
        let mut rows: Vec<_> = self.commands.iter().collect();
        rows.sort_by_key(|(id, row)| (row.issued_ms, **id));
        let open: Vec<OpenCommand> = rows.into_iter().filter_map(open).collect();
        if let Some(shadow) = &self.shadow {
            shadow.open(&open, &self.online());
        }
        open
    }

    /// `AND state = 'waiting'`
    pub(super) fn miss(&mut self, id: CommandId, hosts: &[HostId]) {
        for host in hosts {
            let line = self.commands.get_mut(&id).and_then(|row| row.hosts.get_mut(host));
            if let Some(line) = line.filter(|line| line.0 == CommandState::Waiting) {
                line.0 = CommandState::Missing;
            }
        }
        if let Some(shadow) = &mut self.shadow {
            shadow.miss(id, hosts);
        }
    }

    /// `WHERE state = 'online' AND since_ms NOT BETWEEN $1 AND $2 AND NOT EXISTS (… heartbeat.at_ms BETWEEN $1 AND $2)`
    pub(super) fn take_offline(&mut self, hosts: &[HostId], now: Millis) -> Vec<HostId> {
        let mut gone = Vec::new();
        for (host, row) in self.presences.iter_mut().filter(|(host, _)| hosts.contains(host)) {
            if row.state == PresenceState::Online && !(now - JUST_COME_MS..=now).contains(&row.since_ms) {
                let session = row.session.saturating_sub(1);
                *row = PresenceRow { state: PresenceState::Offline, session, since_ms: now, ..*row };
                gone.push(*host);
            }
        }
        if let Some(shadow) = &mut self.shadow {
            shadow.take_offline(hosts, now, &gone);
        }
        gone
    }

    fn report_order(&self, host: HostId, unit: &UnitName) -> Option<(u64, u64)> {
        self.units.get(&(host, unit.clone())).map(|row| (row.report.epoch, row.report.seq))
    }

    fn units_of(&self, host: HostId) -> impl Iterator<Item = (&UnitName, &UnitReport)> {
        self.units.iter().filter(move |((of, _), _)| *of == host).map(|((_, unit), row)| (unit, &row.report))
    }
}

impl Tables for Ledger {
    async fn known(&mut self, asked: &HostKeys) -> StoreResult<Known> {
        let mut known = Known::default();
        known.members.extend(asked.hosts.iter().filter(|host| self.members.contains(host)));
        for host in &asked.showing {
            if let Some(row) = self.presences.get(host) {
                known.presences.insert(*host, (row.epoch, row.session, row.state != PresenceState::Online));
                if let Some((held, at_ms)) = self.heartbeats.get(host) {
                    let follows_presence = *at_ms > row.since_ms;
                    known.last_heartbeats.insert(*host, LastHeartbeat { epoch: held.epoch, follows_presence });
                }
            }
        }
        for host in &asked.beating {
            if let Some((held, _)) = self.heartbeats.get(host) {
                known.held.insert(*host, held.clone());
            }
            if self.units_of(*host).next().is_some() {
                known.with_units.insert(*host);
            }
        }
        if let Some(shadow) = &mut self.shadow {
            shadow.known(asked, &known);
        }
        Ok(known)
    }

    async fn set_presences(&mut self, presences: &[(HostId, Presence)], now: Millis) -> StoreResult<()> {
        for (host, presence) in presences {
            let held = self.presences.get(host);
            let held = held.map(|held| (held.epoch, held.session, held.state != PresenceState::Online));
            if presence.state != PresenceState::Online && held.is_some_and(|held| held > presence.order()) {
                self.old_wills.push(*host);
            }
            let Presence { state, epoch, session, .. } = presence;
            let row = PresenceRow { state: *state, epoch: *epoch, session: *session, since_ms: now };
            self.presences.insert(*host, row);
        }
        if let Some(shadow) = &mut self.shadow {
            shadow.set_presences(presences, now);
        }
        Ok(())
    }

    async fn set_held(&mut self, states: &[NewState], now: Millis) -> StoreResult<()> {
        for state in states {
            self.heartbeats.insert(state.host, (state.held.clone(), now));
            self.stored.push(state.clone());
        }
        if let Some(shadow) = &mut self.shadow {
            shadow.set_held(states, now);
        }
        Ok(())
    }

    async fn last_reports(&mut self, host: HostId, epoch: u64) -> StoreResult<Option<BTreeMap<UnitName, u64>>> {
        let other = self.units_of(host).any(|(_, report)| report.epoch != epoch);
        let last = (!other).then(|| self.units_of(host).map(|(unit, report)| (unit.clone(), report.seq)).collect());
        if let Some(shadow) = &mut self.shadow {
            shadow.last_reports(host, epoch, &last);
        }
        Ok(last)
    }

    async fn units_before(&mut self, host: HostId, epoch: u64, made_ms: Millis) -> StoreResult<Vec<UnitName>> {
        let before = |report: &UnitReport| report.epoch < epoch || (report.epoch == epoch && report.at_ms < made_ms);
        let units = self.units_of(host).filter(|(_, report)| before(report)).map(|(unit, _)| unit.clone()).collect();
        if let Some(shadow) = &mut self.shadow {
            shadow.units_before(host, epoch, made_ms, &units);
        }
        Ok(units)
    }

    async fn unit_share(&mut self, host: HostId, without: &UnitName) -> StoreResult<UnitShare> {
        let others = self.units_of(host).filter(|(unit, _)| *unit != without);
        let sizes = others.map(|(_, report)| serde_json::to_vec(report).map_or(0, |text| text.len() as u64));
        let share = sizes.fold(UnitShare::default(), |share, bytes| UnitShare {
            units: share.units + 1,
            bytes: share.bytes + bytes,
        });
        if let Some(shadow) = &mut self.shadow {
            shadow.unit_share(host, without, share);
        }
        Ok(share)
    }

    async fn set_unit(&mut self, host: HostId, report: &UnitReport, now: Millis) -> StoreResult<bool> {
        // WHERE unit.epoch < excluded.epoch OR (unit.epoch = excluded.epoch AND unit.seq < excluded.seq)
        let later = self.report_order(host, &report.unit).is_none_or(|held| held < (report.epoch, report.seq));
        if later {
            self.units.insert((host, report.unit.clone()), UnitRow { report: report.clone() });
        }
        if let Some(shadow) = &mut self.shadow {
            shadow.set_unit(host, report, now, later);
        }
        Ok(later)
    }

    async fn remove_unit(&mut self, host: HostId, unit: &UnitName) -> StoreResult<bool> {
        let was = self.units.remove(&(host, unit.clone())).is_some();
        if let Some(shadow) = &mut self.shadow {
            shadow.remove_unit(host, unit, was);
        }
        Ok(was)
    }

    async fn state(&mut self, command: CommandId, host: HostId) -> StoreResult<Option<CommandState>> {
        let state = self.commands.get(&command).and_then(|row| row.hosts.get(&host)).map(|(state, _)| *state);
        if let Some(shadow) = &mut self.shadow {
            shadow.state(command, host, state);
        }
        Ok(state)
    }

    async fn advance(&mut self, command: CommandId, host: HostId, to: CommandState) -> StoreResult<()> {
        // AND state <> 'done'
        let line = self.commands.get_mut(&command).and_then(|row| row.hosts.get_mut(&host));
        if let Some(line) = line.filter(|line| line.0 != CommandState::Done) {
            line.0 = to;
        }
        if let Some(shadow) = &mut self.shadow {
            shadow.advance(command, host, to);
        }
        Ok(())
    }

    async fn add_host(&mut self, command: CommandId, host: HostId, state: CommandState) -> StoreResult<bool> {
        // WHERE broadcast = 1 … ON CONFLICT DO NOTHING
        let row = self.commands.get_mut(&command).filter(|row| row.broadcast && !row.hosts.contains_key(&host));
        let added = row.map(|row| row.hosts.insert(host, (state, None))).is_some();
        if let Some(shadow) = &mut self.shadow {
            shadow.add_host(command, host, state, added);
        }
        Ok(added)
    }

    async fn settle(&mut self, outcomes: &[SettledOutcome], now: Millis) -> StoreResult<HashSet<(CommandId, HostId)>> {
        let mut strangers = HashSet::new();
        for SettledOutcome { command, host, outcome } in outcomes {
            let Some(line) = self.commands.get_mut(command).and_then(|row| row.hosts.get_mut(host)) else {
                strangers.insert((*command, *host));
                continue;
            };
            // AND command_host.state <> 'done'
            if line.0 != CommandState::Done {
                *line = (CommandState::Done, Some(outcome.clone()));
                self.fresh.push((*command, *host, outcome.clone()));
            }
        }
        if let Some(shadow) = &mut self.shadow {
            shadow.settle(outcomes, now, &strangers);
        }
        Ok(strangers)
    }

    async fn add_output(&mut self, _: CommandId, _: HostId, _: Stream, _: u64, _: &[u8]) -> StoreResult<Added> {
        // Simulated programs put out nothing.
        Ok(Added::Known)
    }

    async fn put_task_ends(&mut self, _: HostId, _: &[TaskRecord]) -> StoreResult<bool> {
        Ok(false)
    }

    async fn put_alert(&mut self, _: HostId, _: &Alert, _: Millis) -> StoreResult<MessageEffect> {
        // Simulated hosts raise nothing.
        Ok(MessageEffect::Known)
    }

    async fn reconcile_alerts(
        &mut self,
        _: HostId,
        _: (u64, Millis),
        _: &BTreeMap<Name, AlertSummary>,
    ) -> StoreResult<bool> {
        Ok(false)
    }
}
