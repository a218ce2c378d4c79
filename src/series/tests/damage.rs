//! Tests of a store that is damaged, killed, or out of space.

use std::{
    io::{BufRead, BufReader},
    process::{Command, Stdio},
};

use sqlx::{Connection, SqliteConnection};

use muster_promql::text::quote;

use super::*;

const CHILD_STORE: &str = "MUSTER_TEST_SERIES_STORE";
/// 2024-01-01.
const BASE_MS: Millis = 1_704_067_200_000;

fn column(host: &str, from: i64, count: i64, value: fn(i64) -> f64) -> SeriesColumn {
    SeriesColumn {
        name: "m_f".to_owned(),
        labels: vec![("host".to_owned(), host.to_owned())],
        samples: (from..from + count).map(|i| (BASE_MS + i * 10_000, value(i))).collect(),
    }
}

const ALL: (Millis, Millis) = (0, BASE_MS + 365 * 24 * 60 * MINUTE_MS);

async fn everything(store: &SeriesStore, host: &str) -> Vec<(Millis, f64)> {
    let selector = SeriesSelector::parse(&format!("{{host={}}}", quote(host))).unwrap();
    let ids: Vec<_> = store.select(selector, 10).await.unwrap().iter().map(|chosen| chosen.id).collect();
    store.points(&ids, ALL).await.unwrap().concat()
}

/// Appends, and says of each point that it is committed, until it is killed. Beside that, hours are sealed and days
/// rolled up without a pause.
#[tokio::test]
#[ignore = "a part of acknowledged_points_survive_a_kill, which runs it in a process of its own"]
async fn append_until_killed() {
    let store = SeriesStore::open(Path::new(&std::env::var_os(CHILD_STORE).unwrap())).await.unwrap();
    let settling = store.clone();
    tokio::spawn(async move {
        loop {
            settling.settle().await;
        }
    });
    let first = everything(&store, "a").await.len() as i64;
    for number in first.. {
        // Every point another three minutes, so that hours end all the time, and every tenth comes late.
        let at_ms = BASE_MS + number * 3 * MINUTE_MS - if number % 10 == 0 { 90 * MINUTE_MS + 1 } else { 0 };
        let point = Point::new("m", &[("host", "a")], at_ms).field("f", number as f64);
        store.append(&[point]).await.unwrap();
        println!("committed {number}");
    }
}

#[tokio::test]
async fn acknowledged_points_survive_a_kill() {
    let scratch = Scratch::new();
    let mut committed = std::collections::BTreeSet::new();
    for after in [40, 7, 93, 1, 60] {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "tests::damage::append_until_killed", "--ignored", "--nocapture"])
            .env(CHILD_STORE, scratch.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        let mut count = 0;
        for line in lines {
            let number = line.split_once("committed ").and_then(|(_, number)| number.parse::<i64>().ok());
            count += usize::from(number.is_some());
            committed.extend(number);
            if count == after {
                // What it says before it dies is still read.
                child.kill().unwrap();
            }
        }
        child.wait().unwrap();
        assert!(count >= after, "it ended early");
        let store = scratch.open().await;
        assert_eq!(store.set_aside(), None);
        let kept = everything(&store, "a").await;
        let kept: Vec<i64> = kept.into_iter().map(|point| point.1 as i64).collect();
        let lost: Vec<_> = committed.iter().filter(|number| !kept.contains(number)).collect();
        assert!(lost.is_empty(), "{lost:?} of {committed:?}");
        assert_eq!(store.damaged().await.unwrap(), []);
        store.stop().await;
    }
}

/// Flips a bit in the middle of the first blob.
pub(super) async fn flip(connection: &mut SqliteConnection, table: &str, which: &str) {
    let select = format!("SELECT key, data FROM {table} {which}");
    let select = sqlx::query_as(sqlx::AssertSqlSafe(select));
    let (key, mut data): (i64, Vec<u8>) = select.fetch_one(&mut *connection).await.unwrap();
    let middle = data.len() / 2;
    data[middle] ^= 4;
    let update = sqlx::query(sqlx::AssertSqlSafe(format!("UPDATE {table} SET data = $1 WHERE key = $2")));
    update.bind(data).bind(key).execute(connection).await.unwrap();
}

#[tokio::test]
async fn damaged_chunk_is_set_aside() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    // Twelve hours, of a day that is over, in two pages, and a day of another host, its rollups, and the hours of its next day.
    let noise = |i: i64| (i * i * 7_919 % 8_191) as f64;
    store.append_columns(vec![column("a", 0, 12 * 360, noise)]).await.unwrap();
    store.append_columns(vec![column("b", 0, 30 * 360, |i| (i % 7) as f64)]).await.unwrap();
    store.settle().await;
    let mut other = file::open(&scratch.path(), 0).await.unwrap().writer;
    // A page of the day of the first series, one hour of the second, and the rollups of its first day.
    flip(&mut other, "day", "ORDER BY key LIMIT 1 OFFSET 1").await;
    flip(&mut other, "chunk", "ORDER BY key LIMIT 1 OFFSET 1").await;
    flip(&mut other, "five", "ORDER BY key DESC LIMIT 1").await;
    let host = |name| SeriesSelector::parse(&format!("{{host={}}}", quote(name))).unwrap();
    let b = store.select(host("b"), 1).await.unwrap()[0].id;

    let points = everything(&store, "a").await;
    assert_eq!(points, column("a", 0, 6 * 360, noise).samples, "the second page is lost");
    assert_eq!(everything(&store, "b").await.len(), 29 * 360);
    // Days that were not rolled up yet are read from their points; that of the damaged blob is gone.
    let fives = store.buckets(&[b], ALL, Resolution::FiveMinutes).await.unwrap().remove(0);
    assert_eq!(fives.len(), 5 * 12);
    // The writer has all of them by now, or after this.
    store.settle().await;
    let mut damaged: Vec<_> = store.damaged().await.unwrap().into_iter().map(|one| (one.place, one.reason)).collect();
    damaged.sort();
    let wrong = "its checksum is wrong";
    assert_eq!(damaged, ["chunk", "day", "five"].map(|place| (place.to_owned(), wrong.to_owned())));
    assert_eq!(everything(&store, "a").await, points, "what is sound of the day stays");
    // What comes for one of these hours again is taken.
    store.append_columns(vec![column("a", 7 * 360, 360, noise)]).await.unwrap();
    store.stop().await;
    let store = scratch.open().await;
    assert_eq!(everything(&store, "a").await.len(), 7 * 360);
    assert_eq!(store.damaged().await.unwrap().len(), 3);
}

/// A folder of a few megabytes.
struct SmallDisk(tempfile::TempDir);

impl SmallDisk {
    fn new(bytes: usize) -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let size = format!("size={bytes}");
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", &size, "tmpfs"]).arg(folder.path()).status();
        mounted.is_ok_and(|status| status.success()).then_some(Self(folder))
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(self.0.path()).status();
    }
}

#[tokio::test]
async fn full_disk_loses_no_acknowledged_points() {
    let Some(disk) = SmallDisk::new(6 << 20) else {
        assert_ne!(std::env::var("USER").as_deref(), Ok("root"), "root can mount");
        eprintln!("skipped: only root can mount a small disk");
        return;
    };
    let filling = disk.0.path().join("filling");
    std::fs::write(&filling, vec![1; 3 << 20]).unwrap();
    let path = disk.0.path().join("series.db");
    let store = SeriesStore::open(&path).await.unwrap();
    let (mut acknowledged, mut refused, mut noise) = (Vec::new(), 0, 1_u64);
    let at_ms = |batch: i64, i: i64| BASE_MS + (batch * 200 + i) * 1_000;
    for batch in 0_i64.. {
        let mut value = || {
            noise = noise.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (noise >> 11) as f64 / 1e15
        };
        let point = |i| Point::new("m", &[("host", "a")], at_ms(batch, i)).field("f", value());
        match store.append(&(0..200).map(point).collect::<Vec<_>>()).await {
            Ok(()) => acknowledged.push(batch),
            Err(error) => {
                refused += 1;
                assert!(matches!(error, SeriesError::Sql(_)), "{error}");
            }
        }
        if batch % 20 == 0 {
            store.settle().await;
        }
        if refused == 20 {
            break;
        }
        assert!(batch < 20_000, "the disk is never full");
    }
    let kept = everything(&store, "a").await;
    let there = |kept: &[(Millis, f64)], at_ms: Millis| kept.binary_search_by_key(&at_ms, |point| point.0).is_ok();
    for batch in &acknowledged {
        assert!((0..200).all(|i| there(&kept, at_ms(*batch, i))), "batch {batch} is lost, or not read");
    }
    std::fs::remove_file(&filling).unwrap();
    // Later than all others, and not so late that they would be too old.
    let later_ms = BASE_MS + 13 * 24 * 60 * MINUTE_MS;
    store.append(&[Point::new("m", &[("host", "a")], later_ms).field("f", 7.0)]).await.unwrap();
    store.settle().await;
    assert_eq!(everything(&store, "a").await.last(), Some(&(later_ms, 7.0)));
    store.stop().await;
    let store = SeriesStore::open(&path).await.unwrap();
    assert_eq!((store.set_aside(), store.damaged().await.unwrap()), (None, Vec::new()));
    let again = everything(&store, "a").await;
    assert!(kept.iter().all(|point| there(&again, point.0)));
    store.stop().await;
}

#[tokio::test]
async fn a_damaged_file_is_set_aside() {
    type Damage = fn(&mut Vec<u8>);
    let damages: [(&str, Damage); 3] = [
        ("not a database", |bytes| bytes[..16].copy_from_slice(b"something else!!")),
        ("a page in the middle", |bytes| {
            let middle = bytes.len() / 2 / 4096 * 4096;
            bytes[middle..middle + 4096].fill(0xa5);
        }),
        ("cut short", |bytes| bytes.truncate(bytes.len() / 2)),
    ];
    for (damage, inflict) in damages {
        let scratch = Scratch::new();
        let store = scratch.open().await;
        let points: Vec<_> = (0..5_000).map(|i| scratch.point("a", i, 1.0)).collect();
        store.append(&points).await.unwrap();
        store.stop().await;
        let mut bytes = std::fs::read(scratch.path()).unwrap();
        inflict(&mut bytes);
        std::fs::write(scratch.path(), &bytes).unwrap();

        let store = scratch.open().await;
        let aside = store.set_aside().unwrap_or_else(|| panic!("{damage}: not noticed")).to_owned();
        assert_eq!(std::fs::read(&aside).unwrap(), bytes, "{damage}: what was there is kept as it was");
        assert_eq!(values(&store, "m_f", scratch.day()).await, [0.0; 0]);
        store.append(&points[..1]).await.unwrap();
        store.stop().await;

        let store = scratch.open().await;
        assert_eq!(store.set_aside(), None, "{damage}: the new one is sound");
        assert_eq!(values(&store, "m_f", scratch.day()).await, [1.0]);
        store.stop().await;
        assert_eq!(scratch.files().len(), 2, "{damage}: {:?}", scratch.files());
    }
}

#[tokio::test]
async fn damaged_record_of_migrations_loses_nothing_and_a_missing_table_is_damage() {
    for (statement, is_kept) in [
        ("UPDATE _sqlx_migrations SET checksum = x'00'", true),
        ("DROP TABLE _sqlx_migrations", true),
        ("DROP TABLE five", false),
    ] {
        let scratch = Scratch::new();
        let store = scratch.open().await;
        store.append(&[scratch.point("a", 1, 1.0)]).await.unwrap();
        store.stop().await;
        let options = sqlx::sqlite::SqliteConnectOptions::new().filename(scratch.path());
        let mut connection = SqliteConnection::connect_with(&options).await.unwrap();
        sqlx::query(statement).execute(&mut connection).await.unwrap();
        connection.close().await.unwrap();
        let store = scratch.open().await;
        assert_eq!(store.set_aside().is_none(), is_kept, "{statement}");
        assert_eq!(values(&store, "m_f", scratch.day()).await.len(), usize::from(is_kept), "{statement}");
        store.stop().await;
    }
}

#[tokio::test]
async fn damage_met_while_running_is_found_at_the_next_start() {
    let scratch = Scratch::new();
    scratch.open().await.stop().await;
    file::remember_damage(&scratch.path());
    assert_eq!(scratch.files(), ["series.db", "series.db.suspect"]);
    let store = scratch.open().await;
    assert_eq!(store.set_aside(), None, "it was sound after all");
    store.stop().await;
    assert_eq!(scratch.files(), ["series.db"]);
}

#[tokio::test]
async fn other_errors_set_nothing_aside() {
    let scratch = Scratch::new();
    std::fs::create_dir(scratch.path()).unwrap();
    assert!(matches!(SeriesStore::open(&scratch.path()).await, Err(SeriesError::Sql(_))));
    assert_eq!(scratch.files(), ["series.db"]);
    let nowhere = scratch.folder.path().join("none/series.db");
    assert!(SeriesStore::open(&nowhere).await.is_err());
}
