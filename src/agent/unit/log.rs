//! The end of a log that is rotated: `log` is written, `log.1` is the one before, `log.2` the one before that.

use std::{
    fs::File,
    io::{self, Read, Seek, SeekFrom},
    path::{Path, PathBuf},
};

/// The most that is read: about as much as anybody reads, and what the agent can hold in memory for a moment.
pub(super) const TAIL_MAX_BYTES: u64 = 1024 * 1024;

/// The last `lines` lines of the log in `folder`, oldest first, as far as `max_bytes` from the end hold them.
/// Nothing if there is no log.
///
/// While it is being rotated, lines may be missing or come twice: it is for people who look, and costs the
/// writer nothing.
pub(super) fn tail(folder: &Path, lines: u32, max_bytes: u64) -> io::Result<Vec<u8>> {
    let lines = usize::try_from(lines).unwrap_or(usize::MAX);
    let mut content = Vec::new();
    for number in 0.. {
        let left = max_bytes.saturating_sub(content.len() as u64);
        if left == 0 || lines_in(&content) > lines {
            break;
        }
        match end_of(&file(folder, number), left) {
            Ok(mut older) => {
                older.append(&mut content);
                content = older;
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => break,
            Err(error) => return Err(error),
        }
    }
    let cut = content.len() as u64 == max_bytes;
    let start = start_of_last(&content, lines);
    // The limit cut through the first line: its rest would look like a line.
    let start =
        if cut && start == 0 { content.iter().position(|byte| *byte == b'\n').map_or(0, |at| at + 1) } else { start };
    content.drain(..start);
    Ok(content)
}

fn file(folder: &Path, number: u32) -> PathBuf {
    folder.join(if number == 0 { "log".to_owned() } else { format!("log.{number}") })
}

fn end_of(path: &Path, max_bytes: u64) -> io::Result<Vec<u8>> {
    let mut file = File::open(path)?;
    let len_bytes = file.metadata()?.len();
    file.seek(SeekFrom::Start(len_bytes.saturating_sub(max_bytes)))?;
    let mut content = Vec::new();
    // It may grow meanwhile.
    file.take(max_bytes).read_to_end(&mut content)?;
    Ok(content)
}

fn lines_in(content: &[u8]) -> usize {
    content.iter().filter(|byte| **byte == b'\n').count()
}

/// Where the last `lines` lines begin. A last line without its end is one, too.
fn start_of_last(content: &[u8], lines: usize) -> usize {
    if lines == 0 {
        return content.len();
    }
    let body = content.strip_suffix(b"\n").unwrap_or(content);
    let ends = body.iter().enumerate().rev().filter(|(_, byte)| **byte == b'\n').map(|(at, _)| at + 1);
    ends.take(lines).nth(lines - 1).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(files: &[&str], lines: u32, max_bytes: u64, expected: &str) {
        let folder = tempfile::tempdir().unwrap();
        for (number, content) in files.iter().enumerate() {
            std::fs::write(file(folder.path(), number as u32), content).unwrap();
        }
        let content = tail(folder.path(), lines, max_bytes).unwrap();
        assert_eq!(String::from_utf8(content).unwrap(), expected);
    }

    #[test]
    fn the_last_lines_across_rotated_files() {
        check(&[], 10, 100, "");
        check(&[""], 10, 100, "");
        check(&["a\nb\nc\n"], 2, 100, "b\nc\n");
        check(&["a\nb\nc\n"], 3, 100, "a\nb\nc\n");
        check(&["a\nb\nc\n"], 0, 100, "");
        check(&["a\nb\nc"], 2, 100, "b\nc");
        check(&["c\nd\n", "a\nb\n"], 3, 100, "b\nc\nd\n");
        check(&["c\nd\n", "a\nb\n"], u32::MAX, 100, "a\nb\nc\nd\n");
        check(&["c\nd\n", "a\nb\n"], 2, 100, "c\nd\n");
        check(&["", "a\nb\n"], 1, 100, "b\n");
        // A line that was written across a rotation is one line.
        check(&["b\nc\n", "a"], 2, 100, "ab\nc\n");
    }

    #[test]
    fn no_more_is_read_than_the_limit() {
        check(&["aaaa\nbbbb\ncccc\n"], 10, 12, "bbbb\ncccc\n");
        check(&["cccc\n", "aaaa\nbbbb\n"], 10, 12, "bbbb\ncccc\n");
        check(&["a line that is longer than all that may be read"], 10, 4, "read");
    }
}
