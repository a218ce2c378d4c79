//! Properties that hold for any bytes from a WebSocket client. The fuzz target in `broker/fuzz` and the tests check the
//! same.
//!
//! Each function panics if a property is violated, and returns whether the bytes are valid.

use super::{
    frame::{CONTROL_MAX_BYTES, FrameEvent, FrameReader, FrameViolation, HEADER_MAX_BYTES},
    upgrade,
};

/// The largest frame that is accepted here.
const FRAME_MAX_BYTES: usize = 100_000;

/// Parses a request, and frames after it.
#[must_use]
pub fn stream(bytes: &[u8]) -> bool {
    match upgrade::read(bytes) {
        Ok(Some((answer, length))) => {
            assert!(answer.starts_with("HTTP/1.1 101 ") && length <= bytes.len());
            // Its head is complete only with its last byte.
            assert_eq!(upgrade::read(bytes.get(..length - 1).unwrap_or_default()), Ok(None));
            frames(bytes.get(length..).unwrap_or_default())
        }
        Ok(None) => false,
        Err(refusal) => {
            assert!(refusal.answer().starts_with("HTTP/1.1 4"));
            false
        }
    }
}

/// Parses frames, the last one incomplete: however they are cut, and however much room there is, the result is the
/// same.
#[must_use]
pub fn frames(bytes: &[u8]) -> bool {
    let whole = read(bytes, bytes.len().max(1), usize::MAX);
    for (piece, room) in [(1, usize::MAX), (1, 1), (usize::MAX, 1), (7, 3)] {
        assert_eq!(read(bytes, piece, room), whole);
    }
    whole.end.is_ok()
}

/// The content of some frames.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) data: Vec<u8>,
    /// Control frames, described.
    pub(super) others: Vec<String>,
    pub(super) end: Result<(), FrameViolation>,
}

/// Reads input in pieces of `piece` bytes, `room` bytes at a time.
pub(super) fn read(bytes: &[u8], piece: usize, room: usize) -> Found {
    let mut reader = FrameReader::new(FRAME_MAX_BYTES);
    let (mut found, mut held) = (Found { data: Vec::new(), others: Vec::new(), end: Ok(()) }, Vec::new());
    for piece in bytes.chunks(piece) {
        held.extend_from_slice(piece);
        let mut used = 0;
        loop {
            match reader.read(held.get_mut(used..).unwrap_or_default(), room) {
                Ok(None) => break,
                Ok(Some((step, count))) => {
                    assert!(count > 0, "a step that goes nowhere");
                    used += count;
                    match step {
                        FrameEvent::Data(bytes) => found.data.extend_from_slice(bytes),
                        other => found.others.push(format!("{other:?}")),
                    }
                }
                Err(violation) => {
                    found.end = Err(violation);
                    return found;
                }
            }
        }
        held.drain(..used);
        assert!(held.len() < HEADER_MAX_BYTES + 4 + CONTROL_MAX_BYTES, "{} bytes wait for nothing", held.len());
    }
    found
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use super::*;
    use proptest::prelude::*;

    /// Runs the initial corpus of the fuzz target. Files whose names begin with `bad-` are invalid.
    #[test]
    fn corpus() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus/websocket");
        let mut valid = 0;
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let expected = !path.file_name().unwrap().to_str().unwrap().starts_with("bad-");
            assert_eq!(stream(&fs::read(&path).unwrap()), expected, "{}", path.display());
            valid += usize::from(expected);
        }
        assert!(valid >= 3, "{valid}");
    }

    proptest! {
        #[test]
        fn any_frames(bytes in prop::collection::vec(prop_oneof![Just(0x82), 0x80_u8..0x90, 0_u8..4, any::<u8>()], 0..200)) {
            let _ = frames(&bytes);
        }

        #[test]
        fn any_request(bytes: Vec<u8>) {
            let _ = stream(&bytes);
        }
    }
}
