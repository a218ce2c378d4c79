//! The product's own SQLite stores, doing the same as the simulation's tables in some seeds: what they answer must be the same.
//! So the tables that all other seeds run on are what the SQL does.

use muster_agent::store::{
    Store, Tx,
    journal::{self, Entry},
    outbox,
};
use muster_session::store::RepeatedCommand;
use muster_topics::{
    Millis,
    ack::ReportAck,
    name::CommandId,
    outcome::{Report, Status},
};
use tokio::runtime::Runtime;

/// An agent's store.
pub(super) struct AgentShadow {
    // In this order: the store's connection ends before what it runs on.
    transaction: Option<Tx>,
    store: Store,
    runtime: Runtime,
    _folder: tempfile::TempDir,
}

impl std::fmt::Debug for AgentShadow {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("AgentShadow")
    }
}

pub(super) fn runtime() -> Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

impl AgentShadow {
    pub(super) fn new() -> Self {
        let (runtime, folder) = (runtime(), tempfile::tempdir().unwrap());
        let store = runtime.block_on(Store::open(&folder.path().join("agent.db"))).unwrap();
        Self { transaction: None, store, runtime, _folder: folder }
    }

    pub(super) fn begin(&mut self) {
        self.transaction = Some(self.runtime.block_on(self.store.begin()).unwrap());
    }

    pub(super) fn commit(&mut self) {
        if let Some(transaction) = self.transaction.take() {
            self.runtime.block_on(transaction.commit()).unwrap();
        }
    }

    pub(super) fn insert(&mut self, id: CommandId, expires_ms: Millis, signed_ms: Millis, rows: u64) {
        let tx = self.transaction.as_mut().unwrap();
        let entry = Entry { id, body: "{}", expires_ms, issued_ms: None };
        let new = self.runtime.block_on(journal::insert(tx, entry, signed_ms, 0)).unwrap();
        assert_eq!(new, journal::is_new(rows), "insert {id}");
    }

    pub(super) fn finish(&mut self, id: CommandId, status: Status, now_ms: Millis, done: Option<ReportAck>) {
        let tx = self.transaction.as_mut().unwrap();
        let key = self.runtime.block_on(journal::finish(tx, id, status.into(), now_ms)).unwrap();
        assert_eq!(key, done, "finish {id}");
    }

    pub(super) fn answer_again(&mut self, id: CommandId, known: Option<RepeatedCommand>) {
        let tx = self.transaction.as_mut().unwrap();
        let found = self.runtime.block_on(journal::answer_again(tx, id)).unwrap();
        assert_eq!(found, known, "answer again {id}");
    }

    pub(super) fn acknowledge(&mut self, keys: &[ReportAck], signed_ms: Millis) {
        // It has a transaction of its own.
        self.commit();
        self.runtime.block_on(outbox::acknowledge(&self.store, keys, signed_ms)).unwrap();
    }

    pub(super) fn prune(&mut self, signed_ms: Millis, left: usize) {
        self.commit();
        self.runtime.block_on(journal::prune(&self.store, signed_ms, journal::KEPT_AFTER_EXPIRY_MS)).unwrap();
        let found = self.runtime.block_on(journal::count(&self.store)).unwrap();
        assert_eq!(found, left as u64, "prune");
    }

    pub(super) fn first(&mut self, limit: usize, keys: &[ReportAck]) {
        assert_eq!(self.runtime.block_on(outbox::first(&self.store, limit)).unwrap(), keys);
    }

    pub(super) fn payload(&mut self, key: ReportAck, payload: Option<&[u8]>) {
        let found = self.runtime.block_on(outbox::payload(&self.store, key)).unwrap();
        let read = |bytes: &[u8]| serde_json::from_slice::<Report>(bytes).unwrap();
        assert_eq!(found.as_deref().map(read), payload.map(read), "payload of {key:?}");
    }
}
