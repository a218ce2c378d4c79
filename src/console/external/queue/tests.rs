use std::io::{Seek, SeekFrom};

use proptest::prelude::*;

use super::*;

/// So many lines that say where they stand, hard to pack.
fn record(first: u64, lines: u64) -> QueueRecord {
    let text: String =
        (first..first + lines).map(|n| format!("m f={n} {}\n", n.wrapping_mul(0x9e37_79b9_7f4a_7c15))).collect();
    QueueRecord::of(&LinePiece { text, lines }).unwrap()
}

/// The numbers of the lines in what was taken.
fn numbers(taken: &QueuedPiece) -> Vec<u64> {
    let number = |line: &str| line.strip_prefix("m f=").unwrap().split(' ').next().unwrap().parse().unwrap();
    let numbers: Vec<u64> = taken.piece.text.lines().map(number).collect();
    assert_eq!(numbers.len() as u64, taken.piece.lines);
    numbers
}

/// Takes and sends until nothing waits.
fn drain(queue: &mut DiskQueue) -> Vec<u64> {
    let mut all = Vec::new();
    while let Some(taken) = queue.take().unwrap() {
        all.extend(numbers(&taken));
        queue.sent(&taken);
    }
    assert_eq!((queue.waiting().lines, queue.waiting().bytes), (0, 0));
    all
}

fn files(folder: &Path) -> usize {
    fs::read_dir(folder)
        .unwrap()
        .filter(|e| e.as_ref().unwrap().path().extension().is_some_and(|e| e == "queue"))
        .count()
}

#[test]
fn records_survive_restart_in_order() {
    let dir = tempfile::tempdir().unwrap();
    let mut queue = DiskQueue::open(dir.path(), 1 << 30).unwrap();
    assert_eq!(queue.take().unwrap(), None);
    queue.append(&[record(0, 10), record(10, 10)]).unwrap();
    queue.append(&[record(20, 4_985)]).unwrap();
    let taken = queue.take().unwrap().unwrap();
    // One more record would be more than one request may have.
    assert_eq!(numbers(&taken), (0..20).collect::<Vec<_>>());
    assert_eq!(queue.take().unwrap(), Some(taken.clone()), "it waits until it is sent");
    queue.sent(&taken);
    assert_eq!(queue.waiting().lines, 4_985);
    drop(queue);

    let mut queue = DiskQueue::open(dir.path(), 1 << 30).unwrap();
    assert_eq!(queue.waiting().lines, 4_985);
    queue.append(&[record(5_005, 5)]).unwrap();
    assert_eq!(drain(&mut queue), (20..5_010).collect::<Vec<_>>());
    assert_eq!(files(dir.path()), 1, "what was sent is removed");
    drop(queue);
    let mut queue = DiskQueue::open(dir.path(), 1 << 30).unwrap();
    assert_eq!((queue.take().unwrap(), queue.waiting()), (None, QueueSize::default()));
}

#[test]
fn torn_record_is_ignored() {
    let dir = tempfile::tempdir().unwrap();
    for cut in [1, HEAD_BYTES as u64 - 1, HEAD_BYTES as u64 + 3] {
        let mut queue = DiskQueue::open(dir.path(), 1 << 30).unwrap();
        queue.append(&[record(0, 3)]).unwrap();
        let (number, bytes) = queue.segments.back().map(|tail| (tail.number, tail.bytes)).unwrap();
        queue.append(&[record(3, 3)]).unwrap();
        drop(queue);
        let file = OpenOptions::new().write(true).open(segment_path(dir.path(), number)).unwrap();
        file.set_len(bytes + cut).unwrap();
        let mut queue = DiskQueue::open(dir.path(), 1 << 30).unwrap();
        queue.append(&[record(6, 1)]).unwrap();
        assert_eq!((drain(&mut queue), queue.waiting().dropped), (vec![0, 1, 2, 6], 0));
    }
}

#[test]
fn damaged_record_is_skipped_and_counted() {
    for last in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let mut queue = DiskQueue::open(dir.path(), 1 << 30).unwrap();
        let first = record(0, 3);
        queue.append(&[first.clone(), record(3, 3), record(6, 3)]).unwrap();
        let path = segment_path(dir.path(), queue.segments.back().unwrap().number);
        if !last {
            drop(queue);
            queue = DiskQueue::open(dir.path(), 1 << 30).unwrap();
            queue.append(&[record(9, 3)]).unwrap();
        }
        let mut file = OpenOptions::new().write(true).open(path).unwrap();
        file.seek(SeekFrom::Start(first.bytes.len() as u64 + HEAD_BYTES as u64 + 12)).unwrap();
        file.write_all(b"????").unwrap();
        let wanted = if last { vec![0, 1, 2] } else { vec![0, 1, 2, 9, 10, 11] };
        assert_eq!((drain(&mut queue), queue.waiting().dropped), (wanted, 6));
        queue.append(&[record(20, 1)]).unwrap();
        assert_eq!(drain(&mut queue), [20]);
    }
}

#[test]
fn full_queue_drops_oldest_and_counts() {
    let dir = tempfile::tempdir().unwrap();
    let limit = 64 * 1024;
    let mut queue = DiskQueue::open(dir.path(), limit).unwrap();
    queue.append(&[record(0, 50)]).unwrap();
    let early = queue.take().unwrap().unwrap();
    for n in 1..200 {
        queue.append(&[record(n * 50, 50)]).unwrap();
        assert!(queue.bytes() <= limit);
    }
    let waiting = queue.waiting();
    assert_eq!(waiting.lines + waiting.dropped, 200 * 50);
    assert!(waiting.dropped > 0 && waiting.bytes > limit * 3 / 4, "{waiting:?}");
    // What was being sent when it made place takes nothing else with it.
    queue.sent(&early);
    assert_eq!(queue.waiting(), waiting);
    let all = drain(&mut queue);
    assert_eq!(all, (waiting.dropped..200 * 50).collect::<Vec<_>>());

    // A limit that was lowered holds from the start.
    for n in 0..100 {
        queue.append(&[record(n * 50, 50)]).unwrap();
    }
    drop(queue);
    let queue = DiskQueue::open(dir.path(), limit / 4).unwrap();
    assert!(queue.bytes() <= limit / 4 && queue.waiting().dropped > 0);
}

#[test]
fn without_position_sending_starts_at_the_oldest() {
    for text in ["", "nonsense", "0 7", "99999 0", "0 999999999"] {
        let dir = tempfile::tempdir().unwrap();
        let mut queue = DiskQueue::open(dir.path(), 1 << 30).unwrap();
        queue.append(&[record(0, 5)]).unwrap();
        drop(queue);
        fs::write(dir.path().join(SENT), text).unwrap();
        let mut queue = DiskQueue::open(dir.path(), 1 << 30).unwrap();
        queue.append(&[record(5, 5)]).unwrap();
        let found = drain(&mut queue);
        assert!(found.ends_with(&[5, 6, 7, 8, 9]), "{text:?}: {found:?}");
    }
}

#[derive(Clone, Debug)]
enum Step {
    Append(u64),
    Send,
    Restart,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![4 => (1_u64..40).prop_map(Step::Append), 3 => Just(Step::Send), 1 => Just(Step::Restart)]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn queue_keeps_order_and_loses_nothing_below_limit(
        steps in proptest::collection::vec(step(), 1..80), limit in 4_000_u64..40_000,
    ) {
        let dir = tempfile::tempdir().unwrap();
        let mut queue = DiskQueue::open(dir.path(), limit).unwrap();
        let (mut next, mut sent, mut dropped) = (0, Vec::new(), 0);
        for step in steps {
            match step {
                Step::Append(lines) => {
                    queue.append(&[record(next, lines)]).unwrap();
                    next += lines;
                }
                Step::Send => if let Some(taken) = queue.take().unwrap() {
                    sent.extend(numbers(&taken));
                    queue.sent(&taken);
                },
                Step::Restart => {
                    dropped += queue.waiting().dropped;
                    drop(queue);
                    queue = DiskQueue::open(dir.path(), limit).unwrap();
                }
            }
            let waiting = queue.waiting();
            prop_assert!(queue.bytes() <= limit);
            prop_assert_eq!(sent.len() as u64 + waiting.lines + waiting.dropped + dropped, next);
        }
        dropped += queue.waiting().dropped;
        sent.extend(drain(&mut queue));
        prop_assert!(sent.is_sorted() && sent.windows(2).all(|pair| pair[0] < pair[1]));
        prop_assert_eq!(sent.len() as u64 + dropped, next);
    }
}
