//! Assembles a command's output from pieces that may come twice and in any order.

use std::collections::BTreeMap;

use muster_topics::outcome::{Outcome, Output, Stream};

use crate::store::command::Chunk;

/// Returns all output without a gap: stdout and stderr.
pub(crate) fn whole(chunks: &[Chunk], outcome: Option<&Outcome>) -> (Vec<u8>, Vec<u8>) {
    let stream = |stream: Stream, output: Option<&Output>| {
        let mut bytes = contiguous(chunks.iter().filter(|chunk| chunk.stream == stream));
        let sent_bytes = output.map_or(0, |output| output.sent_bytes);
        // The rest in the outcome follows what was sent before it.
        let rest = output.and_then(|output| output.rest.as_ref()?.to_bytes().ok());
        if let Some(rest) = rest.filter(|_| bytes.len() as u64 == sent_bytes) {
            bytes.extend(rest);
        }
        bytes
    };
    (
        stream(Stream::Stdout, outcome.map(|outcome| &outcome.stdout)),
        stream(Stream::Stderr, outcome.map(|outcome| &outcome.stderr)),
    )
}

/// Joins pieces of one stream up to the first gap. Pieces may overlap.
fn contiguous<'a>(chunks: impl Iterator<Item = &'a Chunk>) -> Vec<u8> {
    let by_offset: BTreeMap<u64, &[u8]> = chunks.map(|chunk| (chunk.offset_bytes, chunk.data.as_slice())).collect();
    let mut bytes: Vec<u8> = Vec::new();
    for (offset, data) in by_offset {
        let Some(known) = (bytes.len() as u64).checked_sub(offset) else { break };
        let known = usize::try_from(known).unwrap_or(usize::MAX);
        bytes.extend(data.get(known..).unwrap_or_default());
    }
    bytes
}

#[cfg(test)]
mod tests {
    use muster_topics::{
        name::HostId,
        outcome::{Data, Status},
    };

    use super::*;

    fn chunk(offset_bytes: u64, text: &str) -> Chunk {
        Chunk { n: 0, host: HostId::random(), stream: Stream::Stdout, offset_bytes, data: text.into() }
    }

    #[track_caller]
    fn check(chunks: &[(u64, &str)], sent_and_rest: Option<(u64, &str)>, wanted: &str) {
        let chunks: Vec<Chunk> = chunks.iter().map(|(offset, text)| chunk(*offset, text)).collect();
        let outcome = sent_and_rest.map(|(sent_bytes, rest)| Outcome {
            status: Status::Completed,
            started_ms: None,
            finished_ms: 0,
            stdout: Output { sent_bytes, rest: Some(Data::new(rest.as_bytes())), dropped_bytes: 0 },
            stderr: Output::default(),
        });
        let (stdout, stderr) = whole(&chunks, outcome.as_ref());
        assert_eq!((String::from_utf8(stdout).unwrap().as_str(), stderr.len()), (wanted, 0));
    }

    #[test]
    fn pieces_are_assembled() {
        check(&[], None, "");
        check(&[(0, "ab"), (2, "cd")], None, "abcd");
        check(&[(2, "cd"), (0, "ab")], None, "abcd");
        check(&[(0, "ab"), (3, "d")], None, "ab");
        check(&[(1, "b")], None, "");
        check(&[(0, "abc"), (1, "b"), (2, "cd")], None, "abcd");
        check(&[], Some((0, "xyz")), "xyz");
        check(&[(0, "ab"), (2, "cd")], Some((4, "ef")), "abcdef");
        check(&[(0, "ab")], Some((4, "ef")), "ab");
    }
}
