//! Tests of the file format against all kinds of damage.

use std::{
    io::{SeekFrom, Write},
    ops::Range,
};

use proptest::prelude::*;

use super::*;

const SALT: u64 = 0x0123_4567_89ab_cdef;

fn kept(topic: &str, payload: &str) -> JournalRecord {
    JournalRecord::Kept(BrokerMessage::plain(topic, payload, true))
}

fn sample() -> Vec<JournalRecord> {
    let cleared = JournalRecord::Cleared(Bytes::from_static(b"muster/a"));
    let shown = JournalRecord::Shown("console-main".parse().unwrap(), Serial::new(&[7, 0, 7]).unwrap());
    let (b, a) = (kept("muster/b", &"x".repeat(90)), kept("muster/a", "2"));
    vec![kept("muster/a", "1"), b, cleared, shown, kept("muster/c", ""), a]
}

/// A journal, and where each of its records stands.
fn journal(records: &[JournalRecord]) -> (Vec<u8>, Vec<Range<usize>>) {
    let mut bytes = header(SALT).to_vec();
    let places = records.iter().map(|record| {
        let start = bytes.len();
        record.write(SALT, &mut bytes);
        start..bytes.len()
    });
    let places = places.collect();
    (bytes, places)
}

fn read_bytes(bytes: &[u8]) -> (JournalFile, Vec<JournalRecord>) {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(bytes).unwrap();
    file.seek(SeekFrom::Start(0)).unwrap();
    let mut records = Vec::new();
    let found = read(&file, |record| records.push(record)).unwrap();
    (found, records)
}

fn sound(end: usize, torn: usize) -> JournalFile {
    JournalFile::Sound { salt: SALT, end: end as u64, torn: torn as u64 }
}

#[test]
fn written_records_are_read() {
    let (bytes, _) = journal(&sample());
    assert_eq!(read_bytes(&bytes), (sound(bytes.len(), 0), sample()));
    assert_eq!(read_bytes(&header(SALT)), (sound(HEADER_BYTES, 0), vec![]));
    assert_eq!(read_bytes(b""), (JournalFile::Unfinished, vec![]));
}

/// The layout itself. If this fails, files of released versions cannot be read: there is to be a new version.
#[test]
fn layout_equals_version_2() {
    let (bytes, _) = journal(&[kept("m/a", "hi"), JournalRecord::Cleared(Bytes::from_static(b"m/a"))]);
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let header = concat!("6d75737465722d72657461696e65640a", "02000000", "efcdab8967452301");
    assert_eq!(hex.get(..56), Some(header));
    let message = concat!("03", "0000000000000000", "0000000000000000", "0003", "00000000", "6d2f61", "6869");
    assert_eq!(hex.get(64..80), Some("1c00000001000000"), "length and kind");
    assert_eq!(hex.get(96..152), Some(message));
    assert_eq!(hex.get(152..168), Some("0300000002000000"));
    assert_eq!(hex.get(184..), Some("6d2f61"));
}

#[test]
fn torn_end_is_truncated() {
    let (bytes, places) = journal(&sample());
    for length in 0..bytes.len() {
        let (found, records) = read_bytes(&bytes[..length]);
        let whole = places.iter().filter(|place| place.end <= length).count();
        let end = if whole == 0 { HEADER_BYTES } else { places[whole - 1].end };
        let expected = if length < HEADER_BYTES { JournalFile::Unfinished } else { sound(end, length - end) };
        assert_eq!((found, records.as_slice()), (expected, &sample()[..whole]), "{length} bytes");
    }
}

#[test]
fn zeroed_end_is_truncated() {
    let (bytes, places) = journal(&sample());
    let last = places.last().unwrap();
    for zeros in [1, 15, 16, 5000] {
        let mut torn = bytes.clone();
        torn.extend(vec![0; zeros]);
        assert_eq!(read_bytes(&torn), (sound(bytes.len(), zeros), sample()));
        // The length arrived, the rest did not.
        let mut torn = bytes[..last.start + 10].to_vec();
        torn.extend(vec![0; zeros]);
        assert_eq!(read_bytes(&torn), (sound(last.start, 10 + zeros), sample()[..5].to_vec()));
    }
}

#[test]
fn whole_header_of_another_version_is_told_from_a_damaged_one() {
    let (mut bytes, _) = journal(&sample());
    bytes[16..20].copy_from_slice(&(VERSION + 1).to_le_bytes());
    assert_eq!(read_bytes(&bytes).0, JournalFile::Damaged { at: 0, lost: bytes.len() as u64 });
    let checksum = crc32fast::hash(&bytes[..28]);
    bytes[28..32].copy_from_slice(&checksum.to_le_bytes());
    assert_eq!(read_bytes(&bytes).0, JournalFile::Version(VERSION + 1));
}

#[test]
fn damaged_byte_loses_only_its_record() {
    let (bytes, places) = journal(&sample());
    let last = places.last().unwrap().clone();
    for at in 0..bytes.len() {
        let mut damaged = bytes.clone();
        damaged[at] ^= 0x40;
        let (found, records) = read_bytes(&damaged);
        if at < HEADER_BYTES {
            assert_eq!(found, JournalFile::Damaged { at: 0, lost: bytes.len() as u64 }, "byte {at}");
        } else if last.contains(&at) {
            // What is at the end cannot be told from what was not written to the end.
            assert_eq!((found, records), (sound(last.start, last.len()), sample()[..5].to_vec()), "byte {at}");
        } else {
            let lost = places.iter().position(|place| place.contains(&at)).unwrap();
            let place = &places[lost];
            assert_eq!(found, JournalFile::Damaged { at: place.start as u64, lost: place.len() as u64 }, "byte {at}");
            let mut expected = sample();
            expected.remove(lost);
            assert_eq!(records, expected, "byte {at}");
        }
    }
}

/// Somebody who may publish anything cannot plant a record of a topic that is not theirs.
#[test]
fn a_payload_is_never_taken_for_a_record() {
    let mut forged = Vec::new();
    // The salt that this would need is nobody's to know.
    kept("muster/s/00/h/another/presence", "forged").write(SALT + 1, &mut forged);
    let publication = crate::message::publication("muster/mine", &forged);
    let (mut bytes, places) =
        journal(&[JournalRecord::Kept(BrokerMessage::new(&publication, 0, 0)), kept("muster/a", "1")]);
    bytes[places[0].start] ^= 1;
    let (found, records) = read_bytes(&bytes);
    assert!(matches!(found, JournalFile::Damaged { .. }));
    assert_eq!(records, [kept("muster/a", "1")]);
}

#[test]
fn a_record_of_another_kind_is_damage() {
    let mut bytes = header(SALT).to_vec();
    let head = |bytes: &mut Vec<u8>, kind: u32, body: &[u8]| {
        let start = bytes.len();
        bytes.extend((body.len() as u32).to_le_bytes());
        bytes.extend(kind.to_le_bytes());
        bytes.extend(checksum(SALT, body).to_le_bytes());
        let sum = checksum(SALT, &bytes[start..]);
        bytes.extend(sum.to_le_bytes());
        bytes.extend_from_slice(body);
    };
    head(&mut bytes, 3, b"what the future brings");
    head(&mut bytes, KEPT, b"no message");
    head(&mut bytes, CLEARED, b"\xff");
    kept("muster/a", "1").write(SALT, &mut bytes);
    let (found, records) = read_bytes(&bytes);
    assert_eq!(found, JournalFile::Damaged { at: HEADER_BYTES as u64, lost: 3 * 16 + 22 + 10 + 1 });
    assert_eq!(records, [kept("muster/a", "1")]);
}

proptest! {
    /// Whatever stands in a file, reading it ends, and nothing is read that was not written.
    #[test]
    fn random_files_are_read_without_panic(start in 0_usize..400, strange: Vec<u8>, with_header: bool) {
        let (bytes, _) = journal(&sample());
        let mut file = if with_header { bytes[..start.clamp(HEADER_BYTES, bytes.len())].to_vec() } else { vec![] };
        file.extend(&strange);
        let (_, records) = read_bytes(&file);
        prop_assert!(sample().starts_with(&records));
    }
}
