//! Tests of what a store loses when its files are lost, and of what is restored.

use muster_session::store::RepeatedCommand;
use muster_topics::{
    ack::ReportAck,
    command::Verb,
    name::{CommandId, Digest, UnitName},
    outcome::Status,
    unit::{Run, Spec},
};
use sqlx::AssertSqlSafe;

use super::*;
use crate::store::{
    desired_copies::IntentCopy,
    journal::Entry,
    unit::{ChangeContext, StoredUnits},
};

/// When the first command was issued; each later one a second after the one before.
const ISSUED_MS: Millis = 1_000_000;
/// When everything is opened.
const NOW_MS: Millis = 5_000_000;

struct Bench {
    folder: tempfile::TempDir,
    store: Store,
    issued_ms: Millis,
}

impl Bench {
    async fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open_or_replace(&folder.path().join("agent.db"), false, 500_000).await.unwrap();
        let life = store.begin_life(500_000).await.unwrap();
        assert_eq!((life.lost_ms, life.noticed_ms), (None, None), "a store that is made has lost nothing");
        Self { folder, store, issued_ms: ISSUED_MS }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("agent.db")
    }

    fn beside(&self, suffix: &str) -> PathBuf {
        self.folder.path().join(format!("agent.db{suffix}"))
    }

    /// Enters a command, which is answered.
    async fn command(&mut self) -> CommandId {
        let id = CommandId::new();
        self.issued_ms += 1_000;
        let mut tx = self.store.begin().await.unwrap();
        let entry = Entry { id, body: "{}", expires_ms: 9_000_000, issued_ms: Some(self.issued_ms) };
        assert!(journal::insert(&mut tx, entry, self.issued_ms, NOW_MS).await.unwrap());
        journal::finish(&mut tx, id, Status::Completed.into(), NOW_MS).await.unwrap();
        commit(tx, "enter command").await.unwrap();
        id
    }

    /// Edits a unit, and writes it down a second time as the task does that keeps units.
    async fn edit(&self, unit: &str, verb: impl Fn(UnitName) -> Verb) {
        let unit: UnitName = unit.parse().unwrap();
        let mut tx = self.store.begin().await.unwrap();
        let operator = "anna".parse().unwrap();
        let asker = ChangeContext { operator: &operator, now_ms: NOW_MS, key: None, is_document: false, values: None };
        unit::edit(&mut tx, &unit, &verb(unit.clone()), asker).await.unwrap().unwrap();
        step(&mut tx, self.issued_ms).await.unwrap();
        commit(tx, "edit unit").await.unwrap();
        let StoredUnits { units, leases, .. } = self.store.units().await.unwrap();
        match units.iter().find(|row| row.name == unit) {
            Some(row) => {
                let copy =
                    IntentCopy::new(&unit, &row.desired, (row.hold.as_ref(), row.owner.as_ref()), &row.kept, &leases);
                self.store.intent().keep(&copy).await.unwrap();
            }
            None => self.store.intent().forget(&unit),
        }
    }

    async fn apply(&self, unit: &str, artifact: &str) {
        let sha256 = Digest::of(artifact.as_bytes());
        let spec: Spec = serde_json::from_value(serde_json::json!({
            "kind": "yuno", "artifact": {"sha256": sha256, "size_bytes": 1, "role": artifact, "version": "1"},
            "provides": [{"name": "web"}],
        }))
        .unwrap();
        self.edit(unit, |unit| Verb::UnitApply { unit, spec: Box::new(spec.clone()), run: Some(Run::Running) }).await;
    }

    /// As by a kill: nothing is closed in order. What SQLite has open goes with the process, and here with the pool.
    async fn reopened(mut self, damage: impl FnOnce(&Self)) -> (Self, AgentLife) {
        damage(&self);
        self.store = Store::open_or_replace(&self.path(), true, NOW_MS).await.unwrap();
        let life = self.store.begin_life(NOW_MS).await.unwrap();
        (self, life)
    }

    /// Copies the files of the store, as a backup does that is not told of SQLite.
    fn copy_to(&self, folder: &Path) {
        for suffix in ["", "-wal"] {
            let _ = std::fs::copy(self.beside(suffix), folder.join(format!("agent.db{suffix}")));
        }
    }

    /// Replaces the files of the store.
    fn restore_from(&self, folder: &Path) {
        for suffix in ["", "-wal", "-shm"] {
            let _ = std::fs::remove_file(self.beside(suffix));
            let _ = std::fs::copy(folder.join(format!("agent.db{suffix}")), self.beside(suffix));
        }
    }

    async fn knows(&self, id: CommandId) -> bool {
        journal::knows(&self.store, id).await.unwrap()
    }

    /// Names, artifacts, ports and holds of all units.
    async fn units(&self) -> Vec<(String, String, Vec<u16>, bool)> {
        let StoredUnits { units, leases, unreadable, .. } = self.store.units().await.unwrap();
        assert_eq!(unreadable, Vec::<String>::new());
        let shown = units.iter().map(|row| {
            let ports = leases.iter().filter(|lease| lease.unit == row.name).map(|lease| lease.port).collect();
            let role = row.desired.spec.artifact().unwrap().role.to_string();
            (row.name.to_string(), role, ports, row.hold.is_some())
        });
        shown.collect()
    }
}

/// Whatever is done to the file, the units come back with their ports, and what was issued before is not taken for new.
#[tokio::test]
async fn lost_store_is_restored_and_refuses_earlier_commands() {
    type Damage = fn(&Bench);
    let cases: [(&str, Damage); 6] = [
        ("deleted", |bench| {
            for suffix in ["", "-wal", "-shm"] {
                let _ = std::fs::remove_file(bench.beside(suffix));
            }
        }),
        ("emptied", |bench| {
            for suffix in ["-wal", "-shm"] {
                let _ = std::fs::remove_file(bench.beside(suffix));
            }
            std::fs::write(bench.path(), b"").unwrap();
        }),
        ("truncated to half", |bench| {
            let length = std::fs::metadata(bench.path()).unwrap().len();
            std::fs::OpenOptions::new().write(true).open(bench.path()).unwrap().set_len(length / 2).unwrap();
        }),
        ("no database", |bench| std::fs::write(bench.path(), vec![0x55; 20_000]).unwrap()),
        ("pages overwritten", |bench| {
            let mut bytes = std::fs::read(bench.path()).unwrap();
            bytes[4096..].fill(0x55);
            std::fs::write(bench.path(), bytes).unwrap();
        }),
        ("another store", |bench| {
            let other = tempfile::tempdir().unwrap();
            let path = other.path().join("agent.db");
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                    runtime.block_on(async {
                        let store = Store::open_or_replace(&path, false, 1).await.unwrap();
                        store.begin_life(1).await.unwrap();
                        store.close().await;
                    });
                });
            });
            bench.restore_from(other.path());
        }),
    ];
    for (what, damage) in cases {
        let mut bench = Bench::new().await;
        bench.command().await;
        bench.apply("default/till", "first").await;
        bench.apply("shop/web", "first").await;
        bench.apply("default/till", "second").await;
        let last = bench.command().await;
        let before = bench.units().await;
        let generation = bench.store.units().await.unwrap().units[0].desired.generation;
        bench.store.close().await;

        let (bench, life) = bench.reopened(damage).await;
        assert_eq!(bench.units().await, before, "{what}");
        assert!(!bench.knows(last).await, "{what}: of the journal nothing stands elsewhere");
        assert!(life.lost_ms.is_some_and(|lost_ms| lost_ms >= bench.issued_ms), "{what}: {life:?}");
        assert_eq!(life.noticed_ms, Some(NOW_MS), "{what}");
        assert!(
            life.lost_ms.is_some_and(|lost_ms| life.created_ms <= lost_ms),
            "{what}: what came since is new: {life:?}"
        );
        bench.apply("default/new", "third").await;
        let units = bench.store.units().await.unwrap().units;
        let new = units.iter().find(|row| row.name.as_str() == "default/new").unwrap();
        assert!(new.desired.generation > generation, "{what}: generations only grow");

        // It is noticed once, and remembered.
        bench.store.close().await;
        let (_, again) = bench.reopened(|_| ()).await;
        assert_eq!((again.lost_ms, again.noticed_ms), (life.lost_ms, life.noticed_ms), "{what}");
    }
}

#[tokio::test]
async fn damaged_record_of_migrations_loses_nothing_and_a_missing_table_is_a_loss() {
    let migrations = [
        "UPDATE _sqlx_migrations SET checksum = x'00' WHERE version = 1",
        "UPDATE _sqlx_migrations SET version = version + 65536 WHERE version = 1",
        "DELETE FROM _sqlx_migrations WHERE version = 1",
        "DROP TABLE _sqlx_migrations",
    ];
    let tables = ["DROP TABLE life", "DROP TABLE metric_batch", "DROP TABLE unit"];
    let rows = ["DELETE FROM meta"];
    for statement in migrations.into_iter().chain(tables).chain(rows) {
        let mut bench = Bench::new().await;
        bench.apply("default/till", "first").await;
        let last = bench.command().await;
        let before = bench.units().await;
        sqlx::query(statement).execute(&bench.store.pool).await.unwrap();
        bench.store.close().await;
        let (mut bench, life) = bench.reopened(|_| ()).await;
        assert_eq!(bench.units().await, before, "{statement}");
        let is_whole = migrations.contains(&statement);
        assert_eq!(life.noticed_ms.is_none(), is_whole, "{statement}");
        assert_eq!(bench.knows(last).await, !tables.contains(&statement), "{statement}");
        bench.command().await;
    }
}

#[tokio::test]
async fn lost_write_ahead_log_is_noticed() {
    let mut bench = Bench::new().await;
    let first = bench.command().await;
    bench.apply("default/till", "first").await;
    // What has been written up to here goes into the file; what comes after is in the log alone.
    sqlx::query("PRAGMA wal_checkpoint(TRUNCATE)").execute(&bench.store.pool).await.unwrap();
    let second = bench.command().await;
    bench.apply("default/till", "second").await;
    let before = bench.units().await;
    let kept = tempfile::tempdir().unwrap();
    std::fs::copy(bench.path(), kept.path().join("agent.db")).unwrap();
    bench.store.close().await;

    let (bench, life) = bench.reopened(|bench| bench.restore_from(kept.path())).await;
    assert!(bench.knows(first).await && !bench.knows(second).await);
    assert_eq!(life.lost_ms, Some(bench.issued_ms), "up to the last command that was ever taken in");
    // So no life of before is one that nobody knew of.
    assert_eq!(bench.store.lives().await.unwrap(), [life.epoch, life.last_epoch]);
    assert_eq!(bench.units().await, before, "what units should be is that of the second copy");
}

#[tokio::test]
async fn older_copy_starts_nothing_removed_or_done() {
    let mut bench = Bench::new().await;
    bench.apply("default/removed", "first").await;
    bench.apply("default/stays", "first").await;
    let waits = CommandId::new();
    let mut tx = bench.store.begin().await.unwrap();
    let entry = Entry { id: waits, body: "{}", expires_ms: 9_000_000, issued_ms: Some(ISSUED_MS) };
    journal::insert(&mut tx, entry, ISSUED_MS, NOW_MS).await.unwrap();
    journal::set_queued(&mut tx, waits, true).await.unwrap();
    commit(tx, "enter command").await.unwrap();
    let older = tempfile::tempdir().unwrap();
    bench.copy_to(older.path());

    // Its turn comes, and a unit is removed.
    let mut tx = bench.store.begin().await.unwrap();
    journal::set_queued(&mut tx, waits, false).await.unwrap();
    commit(tx, "record facts").await.unwrap();
    bench.edit("default/removed", |unit| Verb::UnitRetire { unit, note: None }).await;
    bench.edit("default/removed", |unit| Verb::UnitRm { unit }).await;
    bench.command().await;
    bench.store.close().await;

    let (bench, life) = bench.reopened(|bench| bench.restore_from(older.path())).await;
    assert_eq!(life.lost_ms, Some(bench.issued_ms));
    let held: Vec<_> = bench.units().await.into_iter().map(|(name, _, _, held)| (name, held)).collect();
    assert_eq!(held, [("default/removed".to_owned(), true), ("default/stays".to_owned(), false)]);
    let unfinished = journal::unfinished(&bench.store).await.unwrap();
    assert_eq!(unfinished.iter().map(|one| (one.id, one.queued)).collect::<Vec<_>>(), [(waits, false)]);
}

#[tokio::test]
async fn store_without_mark_refuses_earlier_commands() {
    let mut bench = Bench::new().await;
    let known = bench.command().await;
    bench.store.close().await;
    let (bench, life) =
        bench.reopened(|bench| std::fs::remove_file(bench.folder.path().join("agent.mark")).unwrap()).await;
    assert_eq!(life.lost_ms, Some(NOW_MS));
    assert!(bench.knows(known).await);
}

#[tokio::test]
async fn kill_between_store_and_mark_is_no_loss() {
    let mut bench = Bench::new().await;
    bench.command().await;
    let mark = std::fs::read(bench.folder.path().join("agent.mark")).unwrap();
    bench.command().await;
    bench.store.close().await;
    let (_, life) = bench.reopened(|bench| std::fs::write(bench.folder.path().join("agent.mark"), mark).unwrap()).await;
    assert_eq!((life.lost_ms, life.noticed_ms), (None, None));
}

/// What is flipped in a row, and what is left of it.
#[tokio::test]
async fn row_with_flipped_bits_is_set_aside_and_reported() {
    let mut bench = Bench::new().await;
    bench.apply("default/till", "first").await;
    bench.apply("default/other", "first").await;
    let (answered, damaged) = (bench.command().await, bench.command().await);
    let before = bench.units().await;
    let waiting = outbox::first(&bench.store, 10).await.unwrap();
    // The checksum of the row that was written stays, as where a bit flips in the file.
    for change in [
        "UPDATE journal SET sum = sum + 1 WHERE id = '{damaged}'",
        "UPDATE outbox SET sum = sum + 1 WHERE command = '{damaged}'",
        "UPDATE unit SET sum = sum + 1 WHERE name = 'default/till'",
        "UPDATE meta SET sum = sum + 1 WHERE key = 'generation'",
    ] {
        let change = change.replace("{damaged}", &damaged.to_string());
        assert_eq!(sqlx::query(AssertSqlSafe(change)).execute(&bench.store.pool).await.unwrap().rows_affected(), 1);
    }
    bench.store.close().await;
    let (bench, life) = bench.reopened(|_| ()).await;
    assert_eq!(life.noticed_ms, Some(NOW_MS));
    assert_eq!(life.lost_ms, Some(bench.issued_ms), "a command may be missing");
    assert!(bench.knows(answered).await && !bench.knows(damaged).await);
    assert_eq!(outbox::first(&bench.store, 10).await.unwrap(), waiting[..1]);
    assert_eq!(bench.units().await, before, "it is put back");
    let count: i64 = sqlx::query_scalar("SELECT count(*) FROM damaged").fetch_one(&bench.store.pool).await.unwrap();
    assert_eq!(count, 4, "what was found is kept");
}

#[tokio::test]
async fn damaged_command_keeps_its_outcome() {
    let mut bench = Bench::new().await;
    let id = bench.command().await;
    let key = outbox::first(&bench.store, 10).await.unwrap()[0];
    sqlx::query("UPDATE journal SET sum = sum + 1").execute(&bench.store.pool).await.unwrap();
    bench.store.close().await;
    let (bench, _) = bench.reopened(|_| ()).await;
    let mut tx = bench.store.begin().await.unwrap();
    assert_eq!(journal::answer_again(&mut tx, id).await.unwrap(), Some(RepeatedCommand::Answered(key)));
    assert_eq!(key, ReportAck { command: id, seq: 1 });
}

/// Two hundred and twenty bits anywhere in the file, payload and all: what is read afterwards is what was written, or it is
/// known to be lost.
#[tokio::test]
async fn row_with_any_flipped_bit_is_not_used() {
    for (bits, seed) in [(200, 1), (200, 2), (20, 3), (20, 4), (20, 5), (1, 6), (1, 7), (1, 8), (1, 9)] {
        let mut bench = Bench::new().await;
        bench.apply("default/till", "first").await;
        bench.apply("shop/web", "first").await;
        let mut commands = Vec::new();
        for _ in 0..20 {
            commands.push(bench.command().await);
        }
        let before = bench.units().await;
        let mut answers = Vec::new();
        for key in outbox::first(&bench.store, 100).await.unwrap() {
            answers.push((key, outbox::payload(&bench.store, key).await.unwrap().unwrap()));
        }
        bench.store.close().await;
        let whole = std::fs::read(bench.path()).unwrap();
        let (bench, life) = bench
            .reopened(|bench| {
                let mut bytes = whole.clone();
                let mut state = seed;
                for _ in 0..bits {
                    // Knuth's numbers: a test is to fail again as it did.
                    state = 6_364_136_223_846_793_005_u64.wrapping_mul(state).wrapping_add(1_442_695_040_888_963_407);
                    let bit = (state >> 20) as usize % (bytes.len() * 8);
                    bytes[bit / 8] ^= 1 << (bit % 8);
                }
                std::fs::write(bench.path(), bytes).unwrap();
            })
            .await;
        assert_eq!(bench.units().await, before, "seed {seed}");
        for key in outbox::first(&bench.store, 100).await.unwrap() {
            let payload = outbox::payload(&bench.store, key).await.unwrap().unwrap();
            assert!(answers.contains(&(key, payload)), "seed {seed}: a message that was never written");
        }
        for id in commands {
            let is_refused = life.lost_ms.is_some_and(|lost_ms| lost_ms >= bench.issued_ms);
            assert!(bench.knows(id).await || is_refused, "seed {seed}: it would be done again");
        }
    }
}
