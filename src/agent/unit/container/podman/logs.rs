//! Reads container logs: frames of standard output and error, each line with a timestamp.
//!
//! Podman filters logs by whole seconds only, so a position in a log is a second and the number of lines of it that were read.

use muster_topics::{Millis, command::LogView};
use time::{OffsetDateTime, format_description::well_known::Rfc3339};

use crate::unit::log;

/// Stream, three zeros, and the length of the frame.
const HEADER_BYTES: usize = 8;

/// Bits of a position that count lines: 16 million in a second.
const COUNT_BITS: u32 = 24;

/// A line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ContainerLogLine {
    /// Its second since the epoch.
    pub(super) at_s: u64,
    /// Its time, as precise as reported.
    pub(super) at_ms: Millis,
    /// Its text, with the line break.
    pub(super) text: Vec<u8>,
}

/// Some lines, and the position where they end.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct ContainerLogLines {
    pub(super) lines: Vec<ContainerLogLine>,
    pub(super) mark: u64,
}

impl ContainerLogLines {
    /// Returns the lines in a view as text; `open` if the text before has not ended its line.
    pub(super) fn text(&self, view: &LogView, mut open: bool) -> Vec<u8> {
        let mut text = Vec::new();
        for line in self.lines.iter().filter(|line| view.has(Some(line.at_ms))) {
            if view.times && !open {
                text.extend(log::prefix(Some(line.at_ms)).into_bytes());
            }
            text.extend_from_slice(&line.text);
            open = !line.text.ends_with(b"\n");
        }
        text
    }
}

/// Returns the second of a position.
pub(super) fn second(mark: u64) -> u64 {
    mark >> COUNT_BITS
}

/// Returns those after a position, of all lines from its second on.
pub(super) fn after(lines: Vec<ContainerLogLine>, mark: u64) -> ContainerLogLines {
    let (at_s, told) = (second(mark), mark & ((1 << COUNT_BITS) - 1));
    // The request may have been more precise than the answer.
    let lines: Vec<ContainerLogLine> = lines.into_iter().filter(|line| line.at_s >= at_s).collect();
    let mark = lines.last().map_or(mark, |last| mark_at(last.at_s, &lines));
    let of_second = lines.iter().take_while(|line| line.at_s == at_s).count();
    let skipped = usize::try_from(told).unwrap_or(usize::MAX).min(of_second);
    ContainerLogLines { lines: lines.into_iter().skip(skipped).collect(), mark }
}

/// Joins lines that end in some second with all lines from that second on.
pub(super) fn joined(last: Vec<ContainerLogLine>, since: Vec<ContainerLogLine>) -> ContainerLogLines {
    let from_s = since.first().map_or(u64::MAX, |line| line.at_s);
    let lines: Vec<ContainerLogLine> = last.into_iter().filter(|line| line.at_s < from_s).chain(since).collect();
    let mark = lines.last().map_or(0, |last| mark_at(last.at_s, &lines));
    ContainerLogLines { lines, mark }
}

fn mark_at(at_s: u64, lines: &[ContainerLogLine]) -> u64 {
    let told = lines.iter().filter(|line| line.at_s == at_s).count();
    at_s << COUNT_BITS | u64::try_from(told).unwrap_or(u64::MAX).min((1 << COUNT_BITS) - 1)
}

/// Parses complete frames; an incomplete one is skipped.
pub(super) fn read(mut body: &[u8]) -> Vec<ContainerLogLine> {
    let mut lines = Vec::new();
    // Unframed output comes from a terminal, which our containers never have.
    while let Some((header, rest)) = body.split_at_checked(HEADER_BYTES) {
        let length = u32::from_be_bytes([header[4], header[5], header[6], header[7]]);
        let Some((frame, rest)) = usize::try_from(length).ok().and_then(|length| rest.split_at_checked(length)) else {
            break;
        };
        lines.extend(frame.split_inclusive(|byte| *byte == b'\n').filter_map(line));
        body = rest;
    }
    lines
}

fn line(bytes: &[u8]) -> Option<ContainerLogLine> {
    let space = bytes.iter().position(|byte| *byte == b' ')?;
    let at = OffsetDateTime::parse(std::str::from_utf8(&bytes[..space]).ok()?, &Rfc3339).ok()?;
    let at_s = u64::try_from(at.unix_timestamp()).ok()?;
    let at_ms = Millis::try_from(at.unix_timestamp_nanos() / 1_000_000).ok()?;
    Some(ContainerLogLine { at_s, at_ms, text: bytes[space + 1..].to_vec() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(stream: u8, text: &str) -> Vec<u8> {
        let mut frame = vec![stream, 0, 0, 0];
        frame.extend(u32::try_from(text.len()).unwrap().to_be_bytes());
        frame.extend(text.as_bytes());
        frame
    }

    fn lines(lines: &[(u64, &str)]) -> Vec<ContainerLogLine> {
        let line = |(at_s, text): &(u64, &str)| ContainerLogLine {
            at_s: *at_s,
            at_ms: Millis::try_from(*at_s).unwrap() * 1_000,
            text: text.as_bytes().to_vec(),
        };
        lines.iter().map(line).collect()
    }

    #[test]
    fn frames_are_parsed_to_lines() {
        let mut body = frame(1, "1970-01-01T00:00:01.000000002Z a b\n");
        body.extend(frame(2, "1970-01-01T01:00:02+01:00 c\n1970-01-01T00:00:03Z d\n"));
        let whole = body.clone();
        body.extend(&frame(1, "1970-01-01T00:00:04Z cut")[..12]);
        assert_eq!(read(&body), lines(&[(1, "a b\n"), (2, "c\n"), (3, "d\n")]));
        for cut in 0..whole.len() {
            assert!(read(&whole[..cut]).len() < 3, "{cut}");
        }
        assert_eq!(read(&frame(1, "no time\n")), []);
    }

    #[test]
    fn follower_reads_each_line_once() {
        let all = [(5, "a"), (5, "b"), (7, "c"), (7, "d"), (7, "e"), (9, "f")];
        let text = |found: &ContainerLogLines| String::from_utf8(found.text(&LogView::default(), false)).unwrap();
        for known in 0..=all.len() {
            for most in 0..=all.len() {
                let there = lines(&all[..known]);
                // As a runtime answers: this many from the end, and from a second on.
                let tail = there[there.len().saturating_sub(most.max(1))..].to_vec();
                let since = |at_s: u64, of: &[ContainerLogLine]| {
                    of.iter().filter(|line| line.at_s >= at_s).cloned().collect::<Vec<_>>()
                };
                let first = match tail.last().map(|line| line.at_s) {
                    Some(at_s) => joined(tail, since(at_s, &there)),
                    None => ContainerLogLines::default(),
                };
                let wanted: String = all[..known][known.saturating_sub(most)..].iter().map(|line| line.1).collect();
                // There may be more lines of the last second.
                assert!(text(&first).ends_with(&wanted), "{known}, {most}");
                let rest = after(since(second(first.mark), &lines(&all)), first.mark);
                let wanted: String = all[known..].iter().map(|line| line.1).collect();
                assert_eq!(text(&rest), wanted, "{known}, {most}");
                let none = after(since(second(rest.mark), &lines(&all)), rest.mark);
                assert_eq!((text(&none), none.mark), (String::new(), rest.mark));
            }
        }
    }

    #[test]
    fn view_filters_lines_by_time() {
        let all = ContainerLogLines { lines: lines(&[(1, "a\n"), (2, "b"), (2, "b\n"), (3, "c\n")]), mark: 0 };
        let text = |view: &LogView| String::from_utf8(all.text(view, false)).unwrap();
        let view = LogView { since_ms: Some(2_000), until_ms: Some(2_000), times: true };
        assert_eq!(text(&view), "1970-01-01T00:00:02.000Z bb\n");
        assert_eq!(text(&LogView { since_ms: Some(3_000), ..LogView::default() }), "c\n");
        assert_eq!(text(&LogView::default()), "a\nbb\nc\n");
    }
}
