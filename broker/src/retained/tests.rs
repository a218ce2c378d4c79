//! Tests of memory, file and thread together.

use std::{
    collections::BTreeMap,
    fs,
    path::PathBuf,
    process::Command,
    time::{Duration, Instant},
};

use proptest::prelude::*;
use tempfile::TempDir;

use super::*;
use crate::message::publication;

/// Nothing here takes a second. A test that would wait longer has failed.
const PATIENCE: Duration = Duration::from_secs(60);

fn message(topic: &str, payload: &str) -> BrokerMessage {
    BrokerMessage::plain(topic, payload, true)
}

fn expiring(topic: &str, payload: &str, expiry_s: u32, now_ms: u64) -> BrokerMessage {
    let publication = crate::codec::Publication { expiry_s: Some(expiry_s), ..publication(topic, payload.as_bytes()) };
    BrokerMessage::new(&publication, 0, now_ms)
}

fn limits(retained_max: usize, retained_max_bytes: usize) -> BrokerLimits {
    BrokerLimits { retained_max, retained_max_bytes, ..BrokerLimits::default() }
}

fn open(folder: &TempDir) -> RetainedStore {
    RetainedStore::open(Some(folder.path()), Prefix::default(), &BrokerLimits::default(), 0).unwrap()
}

fn folder() -> TempDir {
    TempDir::new().unwrap()
}

fn journal_of(folder: &TempDir) -> PathBuf {
    folder.path().join("retained.journal")
}

/// Everything that matches.
fn all(retained: &RetainedStore, filter: &str, now_ms: u64) -> Vec<BrokerMessage> {
    let mut steps = usize::MAX;
    let (found, after) = retained.some(filter, None, &mut steps, usize::MAX, now_ms);
    assert_eq!(after, None);
    found
}

/// Topics and payloads that match, sorted.
fn found(retained: &RetainedStore, filter: &str, now_ms: u64) -> Vec<(String, String)> {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    let found = all(retained, filter, now_ms);
    let mut found: Vec<_> = found.iter().map(|message| (message.topic().to_owned(), text(message.payload()))).collect();
    found.sort_unstable();
    found
}

#[track_caller]
fn check(retained: &RetainedStore, filter: &str, expected: &[(&str, &str)]) {
    let found = found(retained, filter, 0);
    let found: Vec<_> = found.iter().map(|(topic, payload)| (topic.as_str(), payload.as_str())).collect();
    assert_eq!(found, expected, "{filter}");
}

/// Does what the exchange does, until `is_so`.
#[track_caller]
fn until(what: &str, retained: &mut RetainedStore, is_so: impl Fn(&JournalFigures) -> bool) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let since = Instant::now();
    while !is_so(&retained.figures().unwrap()) {
        assert!(since.elapsed() < PATIENCE, "waited in vain for {what}: {:?}", retained.figures());
        // Most of what a test waits for comes with an alarm; the rest (a number that grows) is looked at again.
        let alarm = retained.alarm();
        let _ = runtime.block_on(async { tokio::time::timeout(Duration::from_millis(20), alarm.notified()).await });
        retained.tend(0);
    }
}

#[test]
fn last_message_is_retained_and_empty_one_clears() {
    let mut retained = RetainedStore::open(None, Prefix::default(), &limits(100, 10_000), 0).unwrap();
    assert_eq!(retained.keep(&message("muster/a", "1"), 0), RetainOutcome::Yes);
    assert_eq!(retained.keep(&message("muster/a", "2"), 0), RetainOutcome::Yes);
    check(&retained, "muster/a", &[("muster/a", "2")]);
    assert_eq!(retained.keep(&message("muster/a", ""), 0), RetainOutcome::Cleared);
    assert_eq!(retained.keep(&message("muster/a", ""), 0), RetainOutcome::Cleared);
    check(&retained, "muster/#", &[]);
    assert_eq!(retained.size(), (0, 0));
}

#[test]
fn message_without_room_is_refused() {
    let length = message("muster/a", "1").len();
    let folder = folder();
    let limits = limits(2, 2 * length + 10);
    let mut retained = RetainedStore::open(Some(folder.path()), Prefix::default(), &limits, 0).unwrap();
    assert_eq!(retained.keep(&message("muster/a", "1"), 0), RetainOutcome::Yes);
    assert_eq!(retained.keep(&message("muster/b", "1"), 0), RetainOutcome::Yes);
    assert_eq!(retained.keep(&message("muster/c", "1"), 0), RetainOutcome::Full);
    assert_eq!(retained.keep(&message("muster/b", &"2".repeat(40)), 0), RetainOutcome::Full);
    check(&retained, "muster/#", &[("muster/a", "1"), ("muster/b", "1")]);
    assert_eq!(retained.keep(&message("muster/b", "2"), 0), RetainOutcome::Yes);
    assert_eq!(retained.keep(&message("muster/a", ""), 0), RetainOutcome::Cleared);
    assert_eq!(retained.keep(&message("muster/c", "1"), 0), RetainOutcome::Yes);
    assert_eq!(retained.keep(&message(&"/".repeat(2000), "1"), 0), RetainOutcome::Full);
    retained.close();
    check(&open(&folder), "muster/#", &[("muster/b", "2"), ("muster/c", "1")]);
}

const HOST: &str = "0e2c1a4e-6a61-4a1c-9d0f-0d6d5a8f1f52";
const OTHER: &str = "11111111-6a61-4a1c-9d0f-0d6d5a8f1f52";

fn of_host(host: &str, below: &str, payload: &str) -> BrokerMessage {
    message(&format!("muster/s/00/h/{host}/{below}"), payload)
}

#[test]
fn owner_is_limited_to_its_share() {
    let limits = BrokerLimits {
        retained_max: 50,
        retained_host_max: 40,
        retained_host_max_bytes: 20_000,
        retained_console_max: 3,
        ..BrokerLimits::default()
    };
    let folder = folder();
    let mut retained = RetainedStore::open(Some(folder.path()), Prefix::default(), &limits, 0).unwrap();
    let unit = |index: usize| format!("unit/default/u{index}");
    for index in 0..40 {
        assert_eq!(retained.keep(&of_host(HOST, &unit(index), "x"), 0), RetainOutcome::Yes, "{index}");
    }
    assert_eq!(retained.keep(&of_host(HOST, "presence", "x"), 0), RetainOutcome::Full);
    assert_eq!(retained.keep(&of_host(HOST, &unit(3), &"x".repeat(20_000)), 0), RetainOutcome::Full, "too many bytes");
    // What consoles say of a host is not its own.
    for (below, expected) in [("desired", RetainOutcome::Yes), ("ack", RetainOutcome::Yes), ("cmd", RetainOutcome::Yes)]
    {
        assert_eq!(retained.keep(&of_host(HOST, below, "x"), 0), expected);
    }
    assert_eq!(retained.keep(&of_host(OTHER, "desired", "x"), 0), RetainOutcome::Full, "of consoles");
    // All together have as much as they may before another host is done, and it has its sure share all the same.
    for index in 0..32 {
        assert_eq!(retained.keep(&of_host(OTHER, &unit(index), "x"), 0), RetainOutcome::Yes, "{index}");
    }
    assert_eq!(retained.keep(&of_host(OTHER, "presence", "x"), 0), RetainOutcome::Full);
    assert_eq!(retained.keep(&message("muster/console/main/presence", "x"), 0), RetainOutcome::Full);
    let length = of_host(HOST, &unit(10), "x").len();
    assert!((39 * length..=40 * length).contains(&retained.most()), "{}", retained.most());
    // A place that is given back can be had.
    assert_eq!(retained.keep(&of_host(OTHER, &unit(0), ""), 0), RetainOutcome::Cleared);
    assert_eq!(retained.keep(&of_host(OTHER, "presence", "x"), 0), RetainOutcome::Yes);
    retained.close();
    let again = RetainedStore::open(Some(folder.path()), Prefix::default(), &limits, 0).unwrap();
    assert_eq!(again.size().0, retained.size().0);
    drop(again);
    // Lower limits hold for what was kept under others.
    let fewer = BrokerLimits { retained_host_max: 10, ..limits };
    let fewer = RetainedStore::open(Some(folder.path()), Prefix::default(), &fewer, 0).unwrap();
    assert_eq!((all(&fewer, &format!("muster/s/00/h/{HOST}/unit/#"), 0).len(), fewer.size().0), (10, 10 + 10 + 3));
}

#[test]
fn retained_messages_of_revoked_identity_are_cleared() {
    let serial = |number: u8| Serial::new(&[number]).unwrap();
    let (host, other): (Identity, Identity) = (HOST.parse().unwrap(), OTHER.parse().unwrap());
    let folder = folder();
    let mut retained = open(&folder);
    retained.shown(&host, serial(1));
    retained.shown(&other, serial(2));
    // It has another one now.
    retained.shown(&other, serial(3));
    for host in [HOST, OTHER] {
        for below in ["presence", "unit/default/a", "alert/b"] {
            retained.keep(&of_host(host, below, "x"), 0);
        }
        retained.keep(&of_host(host, "desired", "x"), 0);
    }
    for round in 0..3 {
        assert!(retained.removals(|_, found| *found == serial(2)).is_empty(), "nobody's any more");
        let mut removals = retained.removals(|_, found| *found == serial(1));
        removals.sort_by(|a, b| a.topic().cmp(b.topic()));
        let topics: Vec<_> = removals.iter().map(BrokerMessage::topic).collect();
        assert_eq!(
            topics,
            ["alert/b", "presence", "unit/default/a"].map(|below| format!("muster/s/00/h/{HOST}/{below}"))
        );
        assert!(removals.iter().all(|message| message.payload().is_empty() && message.retain()));
        if round == 1 {
            // A new file has it, too.
            retained.disk.as_ref().unwrap().rewrite(retained.memory.records());
        }
        if round == 2 {
            removals.iter().for_each(|message| assert_eq!(retained.keep(message, 0), RetainOutcome::Cleared));
        }
        retained.close();
        retained = open(&folder);
    }
    assert!(retained.removals(|_, found| *found == serial(1)).is_empty());
    check(&retained, &format!("muster/s/00/h/{HOST}/#"), &[(&format!("muster/s/00/h/{HOST}/desired"), "x")]);
    assert_eq!(retained.size().0, 5);
}

#[test]
fn expired_message_is_not_found_and_removed() {
    let folder = folder();
    let mut retained = open(&folder);
    retained.keep(&expiring("muster/a", "1", 2, 1000), 1000);
    retained.keep(&expiring("muster/b", "1", 9, 1000), 1000);
    retained.keep(&expiring("muster/c", "1", 2, 1000), 1000);
    // Its successor never expires.
    retained.keep(&message("muster/c", "2"), 1000);
    assert_eq!(found(&retained, "muster/#", 2999).len(), 3);
    assert_eq!(found(&retained, "muster/#", 3000).len(), 2);
    assert_eq!((retained.size().0, retained.expired()), (3, 0));
    retained.tend(3000);
    assert_eq!((retained.size().0, retained.expired()), (2, 1));
    retained.keep(&message("muster/d", "1"), 10_000);
    assert_eq!((retained.size().0, retained.expired()), (2, 2));
    retained.close();

    let mut again =
        RetainedStore::open(Some(folder.path()), Prefix::default(), &BrokerLimits::default(), 2000).unwrap();
    assert_eq!(found(&again, "muster/#", 2000).len(), 4, "the clock went back");
    again.close();
    let again = RetainedStore::open(Some(folder.path()), Prefix::default(), &BrokerLimits::default(), 10_000).unwrap();
    assert_eq!(found(&again, "#", 0), [("muster/c".into(), "2".into()), ("muster/d".into(), "1".into())]);
    assert_eq!(again.size().1, all(&again, "#", 0).iter().map(BrokerMessage::len).sum::<usize>());
}

#[test]
fn expired_message_does_not_reveal_earlier_one() {
    let folder = folder();
    let mut retained = open(&folder);
    retained.keep(&message("muster/a", "old"), 0);
    retained.keep(&expiring("muster/a", "new", 1, 0), 0);
    retained.close();
    let retained = RetainedStore::open(Some(folder.path()), Prefix::default(), &BrokerLimits::default(), 5000).unwrap();
    assert_eq!(all(&retained, "#", 0), []);
}

#[test]
fn message_survives_restart_with_its_properties() {
    let folder = folder();
    let properties = [0x01, 0x01];
    let whole = crate::codec::Publication {
        retain: true,
        properties: properties[..].into(),
        expiry_s: Some(7),
        ..publication("muster/é", b"\0\xff")
    };
    let whole = BrokerMessage::new(&whole, 3, 1);
    let mut retained = open(&folder);
    retained.keep(&whole, 0);
    retained.close();
    assert_eq!(all(&open(&folder), "muster/+", 0), [whole]);
}

#[test]
fn second_broker_on_a_folder_is_refused() {
    let folder = folder();
    let mut first = open(&folder);
    let second = RetainedStore::open(Some(folder.path()), Prefix::default(), &BrokerLimits::default(), 0);
    assert!(second.unwrap_err().to_string().contains("another broker uses the folder"));
    first.close();
    drop(open(&folder));
    // One that is dropped gives the folder back as well, in its own time.
    drop(open(&folder));
}

#[test]
fn unusable_folder_is_reported() {
    let folder = folder();
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    for path in [&file, &file.join("below")] {
        let error = RetainedStore::open(Some(path), Prefix::default(), &BrokerLimits::default(), 0).unwrap_err();
        assert!(matches!(&error, BrokerError::Store { folder, .. } if folder == path), "{error}");
    }
}

#[test]
fn folders_in_the_place_of_its_files_are_set_aside() {
    let folder = folder();
    open(&folder).close();
    for name in ["retained.journal", "retained.journal.new", "lock"] {
        let path = folder.path().join(name);
        let _ = fs::remove_file(&path);
        fs::create_dir(&path).unwrap();
        fs::write(path.join("inside"), name).unwrap();
        open(&folder).close();
        let aside = folder.path().join(format!("{name}.damaged-1/inside"));
        assert_eq!(fs::read_to_string(aside).unwrap(), name);
    }
}

#[test]
fn journal_of_newer_version_is_left_alone() {
    let folder = folder();
    open(&folder).close();
    let mut bytes = fs::read(journal_of(&folder)).unwrap();
    bytes[16] = 9;
    let checksum = crc32fast::hash(&bytes[..28]);
    bytes[28..32].copy_from_slice(&checksum.to_le_bytes());
    fs::write(journal_of(&folder), &bytes).unwrap();
    let error = RetainedStore::open(Some(folder.path()), Prefix::default(), &BrokerLimits::default(), 0).unwrap_err();
    assert!(matches!(error, BrokerError::StoreVersion { version: 9, .. }), "{error}");
    assert_eq!(fs::read(journal_of(&folder)).unwrap(), bytes);
}

#[test]
fn journal_is_private() {
    use std::os::unix::fs::PermissionsExt;
    let parent = folder();
    let inside = parent.path().join("a/b");
    let mut retained = RetainedStore::open(Some(&inside), Prefix::default(), &BrokerLimits::default(), 0).unwrap();
    retained.close();
    let mode = |path: PathBuf| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(inside.clone()), 0o700);
    assert_eq!(mode(inside.join("retained.journal")), 0o600);
}

/// After a crash the file ends anywhere. It is opened at every length: what was written whole is there, and what is
/// written next stays.
#[test]
fn journal_survives_a_kill_at_any_byte() {
    let sample = folder();
    let mut retained = open(&sample);
    // What the map looks like after each change, by the length of the file then.
    let (mut map, mut states) = (BTreeMap::new(), vec![]);
    for (topic, payload) in [("a", "1"), ("b/c", "22"), ("a", "333"), ("b/c", ""), ("d", "4"), ("a", "")] {
        retained.keep(&message(topic, payload), 0);
        map.insert(topic, payload);
        if payload.is_empty() {
            map.remove(topic);
        }
        let length = || fs::metadata(journal_of(&sample)).unwrap().len();
        let before = states.last().map_or(0, |(length, _)| *length);
        until("the record", &mut retained, |_| length() > before.max(32));
        states.push((length(), map.clone()));
    }
    retained.close();
    let bytes = fs::read(journal_of(&sample)).unwrap();
    assert_eq!(bytes.len() as u64, states.last().unwrap().0);

    for length in 0..=bytes.len() {
        let folder = folder();
        fs::write(journal_of(&folder), &bytes[..length]).unwrap();
        let expected = states.iter().rev().find(|(end, _)| *end <= length as u64).map(|(_, map)| map.clone());
        let expected: Vec<_> = expected.unwrap_or_default().into_iter().collect();
        let mut reopened = open(&folder);
        check(&reopened, "#", &expected);
        reopened.keep(&message("z", "after"), 0);
        reopened.close();
        let again = open(&folder);
        check(&again, "z", &[("z", "after")]);
        assert_eq!(again.size().0, expected.len() + 1, "{length} bytes");
        assert!(!folder.path().join("retained.journal.damaged-1").exists());
    }
}

#[test]
fn damaged_journal_is_set_aside_and_readable_records_kept() {
    let folder = folder();
    for round in 1..=2 {
        let mut retained = open(&folder);
        for topic in ["a", "b", "c"] {
            retained.keep(&message(topic, &format!("{topic}{round}")), 0);
        }
        retained.close();
        let mut bytes = fs::read(journal_of(&folder)).unwrap();
        let needle = format!("b{round}");
        let at = bytes.windows(needle.len()).position(|window| window == needle.as_bytes()).unwrap();
        bytes[at] = b'X';
        fs::write(journal_of(&folder), &bytes).unwrap();

        let mut retained = open(&folder);
        let (a, c) = (format!("a{round}"), format!("c{round}"));
        // In the second round, `b` is not lost but stale: its first value was dropped with the first journal.
        check(&retained, "#", &[("a", &a), ("c", &c)]);
        let aside = folder.path().join(format!("retained.journal.damaged-{round}"));
        assert_eq!(fs::read(aside).unwrap(), bytes);
        retained.close();
        check(&open(&folder), "#", &[("a", &a), ("c", &c)]);
    }
}

#[test]
fn journal_that_cannot_be_read_is_set_aside() {
    let folder = folder();
    // Each read at the first address is an error of input; a link to itself cannot be opened.
    for (round, to) in [(1, PathBuf::from("/proc/self/mem")), (2, journal_of(&folder))] {
        let _ = fs::remove_file(journal_of(&folder));
        std::os::unix::fs::symlink(to, journal_of(&folder)).unwrap();
        let mut retained = open(&folder);
        retained.keep(&message("a", "after"), 0);
        retained.close();
        check(&open(&folder), "#", &[("a", "after")]);
        let aside = folder.path().join(format!("retained.journal.damaged-{round}"));
        assert!(aside.symlink_metadata().is_ok(), "{round}");
    }
}

#[test]
fn lower_limits_apply_on_load() {
    let folder = folder();
    let mut retained = open(&folder);
    for index in 0..10 {
        retained.keep(&message(&format!("t/{index}"), "x"), 0);
    }
    retained.close();
    let mut fewer = RetainedStore::open(Some(folder.path()), Prefix::default(), &limits(4, 10_000), 0).unwrap();
    assert_eq!(fewer.size().0, 4);
    fewer.close();
    // What was dropped does not come back.
    assert_eq!(open(&folder).size().0, 4);
}

#[test]
fn cleared_messages_are_compacted() {
    let folder = folder();
    let mut retained = open(&folder);
    let big = "x".repeat(100_000);
    for round in 0..100 {
        for topic in ["a", "b"] {
            retained.keep(&message(topic, &format!("{round}{big}")), 0);
        }
        retained.keep(&message(&format!("t/{round}"), "x"), 0);
    }
    until("a new file", &mut retained, |figures| {
        figures.queued_bytes == 0 && figures.rewrites > 0 && figures.file_bytes < 3_000_000
    });
    assert!(retained.figures().unwrap().is_whole);
    retained.close();
    assert!(fs::metadata(journal_of(&folder)).unwrap().len() < 3_000_000);
    let mut retained = open(&folder);
    assert_eq!(retained.size().0, 102);
    check(&retained, "a", &[("a", &format!("99{big}"))]);
    retained.close();
}

#[test]
fn unchanged_message_is_not_written_again() {
    let folder = folder();
    let mut retained = open(&folder);
    for _ in 0..1000 {
        retained.keep(&message("a", "1"), 0);
    }
    retained.close();
    assert!(fs::metadata(journal_of(&folder)).unwrap().len() < 200);
}

#[test]
fn full_queue_loses_nothing() {
    let folder = folder();
    // Nothing fits: each message is one that the disk did not take in time.
    let mut retained =
        RetainedStore::with_queue(Some(folder.path()), Prefix::default(), &BrokerLimits::default(), 0, 0).unwrap();
    retained.keep(&message("a", "1"), 0);
    retained.keep(&message("b", "1"), 0);
    assert_eq!(retained.figures().map(|figures| (figures.is_whole, figures.missed)), Some((false, 2)));
    check(&retained, "#", &[("a", "1"), ("b", "1")]);
    until("the whole", &mut retained, |figures| figures.is_whole && figures.rewrites > 0);
    let copy = self::folder();
    fs::copy(journal_of(&folder), journal_of(&copy)).unwrap();
    check(&open(&copy), "#", &[("a", "1"), ("b", "1")]);
    // And at the end, without waiting for the pause to be over.
    retained.keep(&message("b", ""), 0);
    retained.close();
    check(&open(&folder), "#", &[("a", "1")]);
}

/// Where the test below finds its disk.
const SMALL_DISK: &str = "MUSTER_TEST_SMALL_DISK";

#[test]
fn full_disk_is_retried() {
    let folder = folder();
    let script = r#"mount -t tmpfs -o size=256k muster-test "$1" && exec "$2" --ignored --exact retained::tests::small_disk_fills_and_recovers"#;
    let mut inside = Command::new("unshare");
    inside.args(["--mount", "--propagation", "private", "sh", "-ec", script, "sh"]);
    inside.arg(folder.path()).arg(std::env::current_exe().unwrap()).env(SMALL_DISK, folder.path());
    let may = Command::new("unshare").args(["--mount", "true"]).output();
    if !may.is_ok_and(|output| output.status.success()) {
        eprintln!("skipped: this needs the right to mount");
        return;
    }
    let output = inside.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("1 passed"), "{said}{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
#[ignore = "the test above runs it on a disk of its own"]
fn small_disk_fills_and_recovers() {
    let Some(folder) = std::env::var_os(SMALL_DISK).map(PathBuf::from) else { return };
    let ballast = folder.join("ballast");
    fs::write(&ballast, vec![0; 200_000]).unwrap();
    let mut retained = RetainedStore::open(Some(&folder), Prefix::default(), &BrokerLimits::default(), 0).unwrap();
    retained.keep(&message("first", "1"), 0);
    until("the first one", &mut retained, |figures| figures.file_bytes > 32);
    let topics: Vec<_> = (0..10).map(|index| format!("t/{index}")).collect();
    let payload = "x".repeat(10_000);
    for topic in &topics {
        retained.keep(&message(topic, &payload), 0);
    }
    until("the disk to be full", &mut retained, |figures| figures.errors > 0);
    assert!(!retained.figures().unwrap().is_whole);
    assert_eq!(retained.size().0, 11, "all are in memory");
    // What the file holds is sound: a kill at this moment costs no more than what came last.
    let copy = TempDir::new_in("/tmp").unwrap();
    fs::copy(folder.join("retained.journal"), journal_of(&copy)).unwrap();
    check(&open(&copy), "first", &[("first", "1")]);
    assert!(!copy.path().join("retained.journal.damaged-1").exists());

    fs::remove_file(&ballast).unwrap();
    until("room", &mut retained, |figures| figures.is_whole);
    retained.close();
    assert_eq!(
        RetainedStore::open(Some(&folder), Prefix::default(), &BrokerLimits::default(), 0).unwrap().size().0,
        11
    );
}

#[test]
fn hundred_thousand_messages_are_loaded() {
    const HOSTS: usize = 10_000;
    let folder = folder();
    let mut retained = open(&folder);
    let host = |index: usize| format!("{index:08x}-6a61-4a1c-9d0f-0d6d5a8f1f52");
    for index in 0..HOSTS {
        let host = host(index);
        for below in ["presence", "desired", "alert/one", "alert/two"] {
            assert_eq!(
                retained.keep(&message(&format!("muster/s/00/h/{host}/{below}"), "payload"), 0),
                RetainOutcome::Yes
            );
        }
        for unit in 0..6 {
            retained.keep(&message(&format!("muster/s/00/h/{host}/unit/default/u{unit}"), "payload"), 0);
        }
    }
    assert_eq!(retained.size().0, 10 * HOSTS);
    let timed = |filter: &str, expected: usize| {
        let mut fastest = Duration::MAX;
        for _ in 0..5 {
            let since = Instant::now();
            assert_eq!(all(&retained, filter, 0).len(), expected, "{filter}");
            fastest = fastest.min(since.elapsed());
        }
        println!("{filter}: {expected} in {fastest:?}");
        fastest
    };
    let all = timed("muster/#", 10 * HOSTS);
    let one = timed(&format!("muster/s/00/h/{}/#", host(7)), 10);
    let exact = timed(&format!("muster/s/00/h/{}/presence", host(7)), 1);
    timed("muster/s/+/h/+/presence", HOSTS);
    timed("muster/s/+/h/+/unit/+/+", 6 * HOSTS);
    timed("+/+/+/nothing", 0);
    // Thousands of times as fast, in truth. This only fails if it looks at all of them.
    assert!(one * 20 < all && exact * 20 < all, "{one:?} {exact:?} {all:?}");
    let since = Instant::now();
    retained.close();
    println!("closed in {:?}", since.elapsed());
    let since = Instant::now();
    assert_eq!(open(&folder).size(), retained.size());
    println!("read in {:?}", since.elapsed());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// Whatever happens, and however often the broker is restarted, the messages are those of a plain map.
    #[test]
    fn against_a_plain_map(
        steps in proptest::collection::vec(("[ab](/[ab]){0,2}", "[xy]{0,30}", 0_u32..4), 0..60),
        queue_max_bytes in prop_oneof![Just(QUEUE_MAX_BYTES), 0_usize..200],
    ) {
        let folder = folder();
        let limits = limits(5, 400);
        let open = |now_ms| RetainedStore::with_queue(Some(folder.path()), Prefix::default(), &limits, now_ms, queue_max_bytes).unwrap();
        let (mut retained, mut map, mut now_ms) = (open(0), BTreeMap::<String, BrokerMessage>::new(), 0);
        for (topic, payload, what) in steps {
            now_ms += 500;
            if what == 0 {
                retained.close();
                retained = open(now_ms);
            }
            let message = if what == 1 { expiring(&topic, &payload, 2, now_ms) } else { message(&topic, &payload) };
            map.retain(|_, message| !message.is_expired(now_ms));
            let others = || map.iter().filter(|(other, _)| **other != topic).map(|(_, message)| message);
            let (count, bytes) = (others().count(), others().map(BrokerMessage::len).sum::<usize>());
            let expected = match () {
                () if payload.is_empty() => RetainOutcome::Cleared,
                () if count >= 5 || bytes + message.len() > 400 => RetainOutcome::Full,
                () => RetainOutcome::Yes,
            };
            prop_assert_eq!(retained.keep(&message, now_ms), expected);
            match expected {
                RetainOutcome::Yes => drop(map.insert(topic, message)),
                RetainOutcome::Cleared => drop(map.remove(&topic)),
                RetainOutcome::Full => (),
            }
            prop_assert_eq!(retained.size(), (map.len(), map.values().map(BrokerMessage::len).sum::<usize>()));
        }
        retained.close();
        let retained = open(now_ms);
        let expected: Vec<_> = map.into_values().collect();
        let mut found = all(&retained, "#", now_ms);
        found.sort_by(|a, b| a.topic().cmp(b.topic()));
        prop_assert_eq!(found, expected);
    }
}
