//! The end of a log that is rotated: `log` is written, `log.1` is the one before, `log.2` the one before that.
//!
//! A unit may have two of these, each in the folder of an instance. Which of their files comes after which is told by
//! when each was written last: an instance that is started beside another begins a new file.

use std::{
    fs::{self, File},
    io::{self, Read, Seek, SeekFrom},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    time::SystemTime,
};

/// The most that is read: about as much as anybody reads, and what the agent can hold in memory for a moment.
pub(super) const TAIL_MAX_BYTES: u64 = 1024 * 1024;

/// The last `lines` lines of the logs in `folders` (two at most), oldest first, as far as `max_bytes` from the end hold
/// them. Nothing if there is no log.
///
/// While it is being rotated, lines may be missing or come twice: it is for people who look, and costs the
/// writer nothing.
pub(super) fn tail(folders: &[impl AsRef<Path>], lines: u32, max_bytes: u64) -> io::Result<Vec<u8>> {
    tail_to(folders, lines, max_bytes).map(|(content, _)| content)
}

/// How far somebody has read who follows the logs of a unit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::agent) struct Place([Spot; 2]);

impl Place {
    /// A place in what has no files, which its keeper knows by a number.
    pub(super) fn of(number: u64) -> Self {
        Self([Spot { inode: 0, at_bytes: number }, Spot::default()])
    }

    /// That number.
    pub(super) fn at(self) -> u64 {
        self.0[0].at_bytes
    }
}

/// How far somebody has read one of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Spot {
    /// The file that he is in, whatever it is called by now; 0 before there is one.
    inode: u64,
    at_bytes: u64,
}

/// Files that are looked through for the one that somebody was in. Who fell further behind reads on at the newest.
const FOLLOWED_BACK: u32 = 100;

/// The same, and where it ended, so that [`since`] goes on there.
pub(super) fn tail_to(folders: &[impl AsRef<Path>], lines: u32, max_bytes: u64) -> io::Result<(Vec<u8>, Place)> {
    let mut place = Place::default();
    let lines = usize::try_from(lines).unwrap_or(usize::MAX);
    let mut content = Vec::new();
    let mut logs: Vec<_> =
        folders.iter().zip(&mut place.0).map(|(folder, spot)| Backwards::new(folder, spot)).collect();
    for log in &mut logs {
        log.look()?;
    }
    let mut last = None;
    loop {
        let left = max_bytes.saturating_sub(content.len() as u64);
        let newest = logs.iter().enumerate().filter_map(|(index, log)| Some((log.written?, index))).max();
        let Some((_, index)) = newest.filter(|_| left > 0 && lines_in(&content) <= lines) else { break };
        let mut older = logs[index].read(left)?;
        if last.replace(index) != Some(index) && !older.is_empty() && !older.ends_with(b"\n") && !content.is_empty() {
            // What one instance has not ended is no part of another's line.
            older.push(b'\n');
        }
        older.append(&mut content);
        content = older;
    }
    let cut = content.len() as u64 >= max_bytes;
    let start = start_of_last(&content, lines);
    // The limit cut through the first line: its rest would look like a line.
    let start =
        if cut && start == 0 { content.iter().position(|byte| *byte == b'\n').map_or(0, |at| at + 1) } else { start };
    content.drain(..start);
    Ok((content, place))
}

/// The files of one log, from the newest on.
struct Backwards<'a> {
    folder: &'a Path,
    number: u32,
    /// When that one was written last; nothing if there are no more.
    written: Option<SystemTime>,
    /// Where the newest ended.
    spot: &'a mut Spot,
}

impl<'a> Backwards<'a> {
    fn new(folder: &'a impl AsRef<Path>, spot: &'a mut Spot) -> Self {
        Self { folder: folder.as_ref(), number: 0, written: None, spot }
    }

    /// Looks what the next file is. Who follows goes on at the end of the first.
    fn look(&mut self) -> io::Result<()> {
        self.written = None;
        // While the log is rotated one number is missing for a moment, at any place.
        for number in [self.number, self.number + 1] {
            let metadata = match fs::metadata(file(self.folder, number)) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                metadata => metadata?,
            };
            if number == 0 {
                *self.spot = Spot { inode: metadata.ino(), at_bytes: metadata.len() };
            }
            (self.number, self.written) = (number, Some(metadata.modified()?));
            break;
        }
        Ok(())
    }

    /// The end of that file.
    fn read(&mut self, max_bytes: u64) -> io::Result<Vec<u8>> {
        let content = match end_of(&file(self.folder, self.number), max_bytes) {
            Ok((content, end)) => {
                if self.number == 0 {
                    *self.spot = end;
                }
                content
            }
            // It was the oldest, and has been removed meanwhile.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(error),
        };
        self.number += 1;
        self.look()?;
        Ok(content)
    }
}

/// Has the next instance begin a new file in a folder in which none runs, with `keep` old ones at most.
pub(super) fn begin_anew(folder: &Path, keep: u32) -> io::Result<()> {
    let rename = |from: u32| match fs::rename(file(folder, from), file(folder, from + 1)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    };
    match fs::metadata(file(folder, 0)) {
        Ok(metadata) if metadata.len() == 0 => Ok(()),
        Ok(_) if keep == 0 => fs::remove_file(file(folder, 0)),
        Ok(_) => (0..keep).rev().try_for_each(rename),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

/// What was written after `place`, at most `max_bytes` of it and nothing from two files of one log at once, and where that
/// ended.
pub(super) fn since(folders: &[impl AsRef<Path>], place: Place, max_bytes: u64) -> io::Result<(Vec<u8>, Place)> {
    let (mut content, mut next) = (Vec::new(), place);
    for (folder, spot) in folders.iter().zip(&mut next.0) {
        let left = max_bytes.saturating_sub(content.len() as u64);
        let (mut more, end) = since_spot(folder.as_ref(), *spot, left)?;
        content.append(&mut more);
        *spot = end;
    }
    Ok((content, next))
}

fn since_spot(folder: &Path, place: Spot, max_bytes: u64) -> io::Result<(Vec<u8>, Spot)> {
    let mut newer = None;
    for number in 0..FOLLOWED_BACK {
        let file = match File::open(self::file(folder, number)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => break,
            opened => opened?,
        };
        let inode = file.metadata()?.ino();
        if inode != place.inode {
            newer = Some((file, inode));
            continue;
        }
        let (content, end) = read_from(&file, place, max_bytes)?;
        return match newer {
            // All of it was read, and there is a later one.
            Some((file, inode)) if content.is_empty() => read_from(&file, Spot { inode, at_bytes: 0 }, max_bytes),
            _ => Ok((content, end)),
        };
    }
    // It is gone, or there was none: what is newest begins at its beginning.
    match File::open(file(folder, 0)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok((Vec::new(), place)),
        opened => {
            let file = opened?;
            let inode = file.metadata()?.ino();
            read_from(&file, Spot { inode, at_bytes: 0 }, max_bytes)
        }
    }
}

fn read_from(mut file: &File, place: Spot, max_bytes: u64) -> io::Result<(Vec<u8>, Spot)> {
    file.seek(SeekFrom::Start(place.at_bytes))?;
    let mut content = Vec::new();
    file.take(max_bytes).read_to_end(&mut content)?;
    let at_bytes = place.at_bytes + content.len() as u64;
    Ok((content, Spot { at_bytes, ..place }))
}

fn file(folder: &Path, number: u32) -> PathBuf {
    folder.join(if number == 0 { "log".to_owned() } else { format!("log.{number}") })
}

fn end_of(path: &Path, max_bytes: u64) -> io::Result<(Vec<u8>, Spot)> {
    let file = File::open(path)?;
    let metadata = file.metadata()?;
    // It may grow meanwhile.
    read_from(&file, Spot { inode: metadata.ino(), at_bytes: metadata.len().saturating_sub(max_bytes) }, max_bytes)
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
        let content = tail(&[folder.path()], lines, max_bytes).unwrap();
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
    fn a_log_that_is_being_rotated_is_not_empty() {
        for missing in 0..3 {
            let folder = tempfile::tempdir().unwrap();
            for number in (0..4).filter(|number| *number != missing) {
                std::fs::write(file(folder.path(), number), format!("{number}\n")).unwrap();
            }
            let all: String =
                (0..4).rev().filter(|number| *number != missing).map(|number| format!("{number}\n")).collect();
            let content = tail(&[folder.path()], 10, 100).unwrap();
            assert_eq!(String::from_utf8(content).unwrap(), all, "without {missing}");
        }
    }

    #[test]
    fn who_follows_misses_nothing_and_reads_nothing_twice() {
        let folder = tempfile::tempdir().unwrap();
        let path = |number| file(folder.path(), number);
        let add = |text: &str| {
            use std::io::Write;
            File::options().append(true).create(true).open(path(0)).unwrap().write_all(text.as_bytes()).unwrap();
        };
        let (content, mut place) = tail_to(&[folder.path()], 2, 100).unwrap();
        assert_eq!((content, place), (vec![], Place::default()));
        let mut read = |max_bytes| {
            let (content, next) = since(&[folder.path()], place, max_bytes).unwrap();
            place = next;
            String::from_utf8(content).unwrap()
        };
        assert_eq!(read(100), "");
        add("a\nb\n");
        assert_eq!((read(2), read(100), read(100)), ("a\n".to_owned(), "b\n".to_owned(), String::new()));
        add("c\n");
        // Rotated twice before anybody looked.
        std::fs::rename(path(0), path(1)).unwrap();
        add("d\n");
        std::fs::rename(path(1), path(2)).unwrap();
        std::fs::rename(path(0), path(1)).unwrap();
        add("e\n");
        assert_eq!([read(100), read(100), read(100), read(100)], ["c\n", "d\n", "e\n", ""]);
        // The file that he was in is gone.
        std::fs::remove_file(path(0)).unwrap();
        std::fs::remove_file(path(1)).unwrap();
        std::fs::remove_file(path(2)).unwrap();
        std::fs::write(path(0), "f\n").unwrap();
        assert_eq!([read(100), read(100)], ["f\n", ""]);

        add("g\nh\n");
        let (content, place) = tail_to(&[folder.path()], 1, 100).unwrap();
        add("i\n");
        assert_eq!((content, since(&[folder.path()], place, 100).unwrap().0), (b"h\n".to_vec(), b"i\n".to_vec()));
    }

    #[test]
    fn what_two_instances_say_is_told_in_the_order_of_their_files() {
        let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let folders = [one.path(), two.path()];
        let write = |folder: &Path, number: u32, content: &str, at_s: u64| {
            let path = file(folder, number);
            std::fs::write(&path, content).unwrap();
            let at = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(at_s);
            File::options().write(true).open(path).unwrap().set_modified(at).unwrap();
        };
        let tail = |lines| String::from_utf8(tail(&folders, lines, 100).unwrap()).unwrap();
        assert_eq!(tail(10), "");
        write(one.path(), 0, "1\n", 1);
        assert_eq!(tail(10), "1\n");
        // The second takes the first one's place, without an end to its last line, and is itself replaced.
        write(two.path(), 0, "2\n2", 2);
        begin_anew(one.path(), 3).unwrap();
        write(one.path(), 0, "3\n", 3);
        assert_eq!((tail(10), tail(2)), ("1\n2\n2\n3\n".to_owned(), "2\n3\n".to_owned()));
        assert_eq!(tail(1), "3\n");
        // Whoever follows reads of both only what is new.
        let (_, place) = tail_to(&folders, 1, 100).unwrap();
        write(two.path(), 0, "2\n2!\n", 4);
        write(one.path(), 0, "3\n3\n", 4);
        let (content, place) = since(&folders, place, 100).unwrap();
        assert_eq!(String::from_utf8(content).unwrap(), "3\n!\n");
        assert_eq!(since(&folders, place, 100).unwrap().0, b"");
        // As many old ones are kept as may be.
        begin_anew(one.path(), 1).unwrap();
        assert_eq!(std::fs::read(file(one.path(), 1)).unwrap(), b"3\n3\n");
        begin_anew(two.path(), 0).unwrap();
        assert!(!file(two.path(), 0).exists() && !file(one.path(), 0).exists());
        begin_anew(one.path(), 1).unwrap();
        assert!(file(one.path(), 1).exists());
    }

    #[test]
    fn no_more_is_read_than_the_limit() {
        check(&["aaaa\nbbbb\ncccc\n"], 10, 12, "bbbb\ncccc\n");
        check(&["cccc\n", "aaaa\nbbbb\n"], 10, 12, "bbbb\ncccc\n");
        check(&["a line that is longer than all that may be read"], 10, 4, "read");
    }
}
