//! Like [`super::shadow`], for the console's store.

use std::collections::{BTreeMap, HashSet};

use muster_api::CommandState;
use muster_console::store::{
    Store,
    command::{self, OpenCommand, SettledOutcome},
    host::{self, HostKeys, Known, NewState, UnitShare},
};
use muster_topics::{
    Millis, V1,
    asker::Asker,
    command::{Command, Target},
    name::{CommandId, HostId, Name, UnitName},
    presence::Presence,
    unit::UnitReport,
};
use tokio::runtime::Runtime;

use super::{
    ledger::{CommandRow, SIGNED_BYTES},
    shadow::runtime,
};

/// A console's store.
pub(super) struct ConsoleShadow {
    store: Store,
    runtime: Runtime,
    _folder: tempfile::TempDir,
}

impl std::fmt::Debug for ConsoleShadow {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ConsoleShadow")
    }
}

/// Awaits a function of the store with a connection that may write.
macro_rules! with {
    ($shadow:ident, $db:ident, $call:expr) => {
        $shadow.runtime.block_on(async {
            let mut connection = $shadow.store.write().acquire().await.unwrap();
            let $db = &mut *connection;
            $call.await.unwrap()
        })
    };
}

impl ConsoleShadow {
    pub(super) fn new(members: impl Iterator<Item = HostId>) -> Self {
        let (runtime, folder) = (runtime(), tempfile::tempdir().unwrap());
        let store = runtime.block_on(Store::open(&folder.path().join("console.db"))).unwrap();
        for host in members {
            let enter = sqlx::query("INSERT INTO host (id, hostname, facts, joined_ms) VALUES ($1, 'h', '{}', 0)")
                .bind(host.to_string());
            runtime.block_on(enter.execute(store.write())).unwrap();
            // Who has a certificate is a member.
            let give = sqlx::query(
                "INSERT INTO certificate (serial, host, key_sha256, issued_ms, expires_ms) VALUES ($1, $1, $2, 0, 1)",
            );
            let give = give.bind(host.to_string()).bind("0".repeat(64));
            runtime.block_on(give.execute(store.write())).unwrap();
        }
        Self { store, runtime, _folder: folder }
    }

    pub(super) fn add(&mut self, id: CommandId, row: &CommandRow) {
        let hosts: Vec<_> = row.hosts.keys().copied().collect();
        let CommandRow { issued_ms, expires_ms, verb, .. } = row.clone();
        let asked_by = Asker::admin(Name::admin());
        let target = if row.broadcast { Target::All } else { Target::Hosts(hosts.clone()) };
        let command =
            Command { v: V1, id, target, issued_ms, expires_ms, asked_by, realms: vec![], verb, sealed: None };
        with!(self, db, command::add(db, &command, &[0; SIGNED_BYTES], &hosts));
        if !row.went_out {
            with!(self, db, command::hold_back(db, id));
        }
    }

    pub(super) fn go_out(&mut self, command: CommandId) {
        self.runtime.block_on(command::go_out(self.store.write(), &[command])).unwrap();
    }

    pub(super) fn open(&self, open: &[OpenCommand], online: &[HostId]) {
        let mut found = self.runtime.block_on(command::open(self.store.read())).unwrap();
        found.iter_mut().for_each(|open| open.hosts.sort_by_key(|(host, _)| *host));
        assert_eq!(found, open);
        let found = self.runtime.block_on(host::online(self.store.read())).unwrap();
        assert_eq!(found.iter().collect::<HashSet<_>>(), online.iter().collect());
    }

    pub(super) fn miss(&mut self, id: CommandId, hosts: &[HostId]) {
        with!(self, db, command::miss(db, id, hosts));
    }

    pub(super) fn take_offline(&mut self, hosts: &[HostId], now: Millis, gone: &[HostId]) {
        let found = self.runtime.block_on(host::take_offline(self.store.write(), hosts, now)).unwrap();
        assert_eq!(found.iter().collect::<HashSet<_>>(), gone.iter().collect());
    }

    pub(super) fn known(&mut self, asked: &HostKeys, known: &Known) {
        let found: Known = with!(self, db, host::known(db, asked));
        assert_eq!(format!("{:?}", Sorted::of(&found)), format!("{:?}", Sorted::of(known)));
    }

    pub(super) fn set_presences(&mut self, presences: &[(HostId, Presence)], now: Millis) {
        with!(self, db, host::set_presences(db, presences, now));
    }

    pub(super) fn set_held(&mut self, states: &[NewState], now: Millis) {
        with!(self, db, host::set_held(db, states, now));
    }

    pub(super) fn last_reports(&mut self, host: HostId, epoch: u64, last: &Option<BTreeMap<UnitName, u64>>) {
        assert_eq!(with!(self, db, host::last_reports(db, host, epoch)), *last);
    }

    pub(super) fn units_before(&mut self, host: HostId, epoch: u64, made_ms: Millis, units: &Vec<UnitName>) {
        let mut found: Vec<UnitName> = with!(self, db, host::units_before(db, host, epoch, made_ms));
        found.sort();
        assert_eq!(found, *units);
    }

    pub(super) fn unit_share(&mut self, host: HostId, without: &UnitName, share: UnitShare) {
        assert_eq!(with!(self, db, host::unit_share(db, host, without)), share);
    }

    pub(super) fn set_unit(&mut self, host: HostId, report: &UnitReport, now: Millis, later: bool) {
        assert_eq!(with!(self, db, host::set_unit(db, host, report, now)), later);
    }

    pub(super) fn remove_unit(&mut self, host: HostId, unit: &UnitName, was: bool) {
        assert_eq!(with!(self, db, host::remove_unit(db, host, unit)), was);
    }

    pub(super) fn state(&mut self, id: CommandId, host: HostId, state: Option<CommandState>) {
        assert_eq!(with!(self, db, command::state(db, id, host)), state);
    }

    pub(super) fn advance(&mut self, id: CommandId, host: HostId, to: CommandState) {
        with!(self, db, command::advance(db, id, host, to));
    }

    pub(super) fn add_host(&mut self, id: CommandId, host: HostId, state: CommandState, added: bool) {
        assert_eq!(with!(self, db, command::add_host(db, id, host, state)), added);
    }

    pub(super) fn settle(
        &mut self,
        outcomes: &[SettledOutcome],
        now: Millis,
        strangers: &HashSet<(CommandId, HostId)>,
    ) {
        assert_eq!(with!(self, db, command::settle(db, outcomes, now)), *strangers);
    }
}

/// What is known, in one order.
#[derive(Debug)]
#[expect(dead_code, reason = "it is compared as text")]
struct Sorted<'a> {
    members: BTreeMap<HostId, ()>,
    presences: BTreeMap<HostId, (u64, u64, bool)>,
    last_heartbeats: BTreeMap<HostId, host::LastHeartbeat>,
    held: BTreeMap<HostId, &'a host::StoredState>,
    with_units: BTreeMap<HostId, ()>,
}

impl<'a> Sorted<'a> {
    fn of(known: &'a Known) -> Self {
        Self {
            members: known.members.iter().map(|host| (*host, ())).collect(),
            presences: known.presences.iter().map(|(host, order)| (*host, *order)).collect(),
            last_heartbeats: known.last_heartbeats.iter().map(|(host, last)| (*host, *last)).collect(),
            held: known.held.iter().map(|(host, held)| (*host, held)).collect(),
            with_units: known.with_units.iter().map(|host| (*host, ())).collect(),
        }
    }
}
