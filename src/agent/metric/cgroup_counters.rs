//! Counters that the kernel keeps of a cgroup, from the files of v2 and of v1. The parsers are pure.

use super::procfs::ProcReader;
use crate::cgroup::CgroupFolders;

/// The longest of these files: `io.stat` has 150 bytes for each disk, `memory.stat` some 2 KB.
const FILE_MAX_BYTES: usize = 16 * 1024;
/// In v1 the largest number of whole pages stands for no limit; no machine has half of that.
const NO_LIMIT_BYTES: u64 = 1 << 62;

/// Bytes read from and written to disks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Io {
    pub(super) read_bytes: u64,
    pub(super) written_bytes: u64,
}

/// Reads the files of one unit's cgroups.
#[derive(Debug)]
pub(super) struct CgroupReader<'a> {
    pub(super) places: &'a CgroupFolders,
    pub(super) reader: &'a mut ProcReader,
}

impl CgroupReader<'_> {
    /// Returns the processor time of all processes, including ended ones, in microseconds.
    pub(super) fn busy_us(&mut self) -> Option<u64> {
        let unified = self.places.unified.as_ref().and_then(|folder| {
            let text = self.reader.read_below(folder, "cpu.stat", FILE_MAX_BYTES)?;
            value(text, "usage_usec")
        });
        unified.or_else(|| {
            let text = self.reader.read_below(self.places.cpuacct.as_ref()?, "cpuacct.usage", FILE_MAX_BYTES)?;
            Some(number(text)? / 1_000)
        })
    }

    /// Returns how long processes were throttled by the CPU limit, in microseconds; `None` without a limit.
    pub(super) fn throttled_us(&mut self) -> Option<u64> {
        let unified = self.places.unified.as_ref().and_then(|folder| {
            let text = self.reader.read_below(folder, "cpu.stat", FILE_MAX_BYTES)?;
            value(text, "throttled_usec")
        });
        unified.or_else(|| {
            let text = self.reader.read_below(self.places.cpu.as_ref()?, "cpu.stat", FILE_MAX_BYTES)?;
            Some(value(text, "throttled_time")? / 1_000)
        })
    }

    /// Returns the memory that its processes hold, without file pages that are only cached.
    pub(super) fn resident_bytes(&mut self) -> Option<u64> {
        let unified = self.places.unified.as_ref().and_then(|folder| {
            let text = self.reader.read_below(folder, "memory.stat", FILE_MAX_BYTES)?;
            resident(text, ["anon", "shmem", "file_mapped"])
        });
        unified.or_else(|| {
            let text = self.reader.read_below(self.places.memory.as_ref()?, "memory.stat", FILE_MAX_BYTES)?;
            resident(text, ["total_rss", "total_shmem", "total_mapped_file"])
        })
    }

    /// Returns the memory limit; `None` if there is none.
    pub(super) fn limit_bytes(&mut self) -> Option<u64> {
        let unified = self.places.unified.as_ref().and_then(|folder| {
            // `max` is not a number.
            number(self.reader.read_below(folder, "memory.max", FILE_MAX_BYTES)?)
        });
        unified.or_else(|| {
            let folder = self.places.memory.as_ref()?;
            number(self.reader.read_below(folder, "memory.limit_in_bytes", FILE_MAX_BYTES)?)
                .filter(|bytes| *bytes < NO_LIMIT_BYTES)
        })
    }

    /// Returns the number of processes (v1: and threads), if it is counted; otherwise those of its own cgroup.
    pub(super) fn processes(&mut self) -> Option<u64> {
        let counted = [&self.places.unified, &self.places.pids].into_iter().flatten();
        for folder in counted {
            if let Some(count) = self.reader.read_below(folder, "pids.current", FILE_MAX_BYTES).and_then(number) {
                return Some(count);
            }
        }
        let places = self.places;
        let all = [&places.unified, &places.cpuacct, &places.cpu, &places.memory];
        let folder = all.into_iter().flatten().next()?;
        let lines = self.reader.read_below(folder, "cgroup.procs", FILE_MAX_BYTES)?.lines().count();
        u64::try_from(lines).ok()
    }

    /// Returns bytes read and written; `None` if they are not counted.
    pub(super) fn io(&mut self) -> Option<Io> {
        let unified = self.places.unified.as_ref().and_then(|folder| {
            let text = self.reader.read_below(folder, "io.stat", FILE_MAX_BYTES)?;
            Some(io_v2(text))
        });
        unified.or_else(|| {
            let folder = self.places.blkio.as_ref()?;
            let text = self.reader.read_below(folder, "blkio.throttle.io_service_bytes_recursive", FILE_MAX_BYTES)?;
            Some(io_v1(text))
        })
    }
}

fn number(text: &str) -> Option<u64> {
    text.trim_end().parse().ok()
}

/// Returns the value of a line `NAME VALUE`.
fn value(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok())
}

/// Returns anonymous memory and mapped file pages. Shared memory without a file counts once it is mapped.
fn resident(text: &str, [made, shared, mapped]: [&str; 3]) -> Option<u64> {
    let made = value(text, made)?;
    let of_files = value(text, mapped).unwrap_or(0).max(value(text, shared).unwrap_or(0));
    Some(made.saturating_add(of_files))
}

/// Parses lines of `8:0 rbytes=1 wbytes=2 rios=3 …`. The file is empty until something was read or written.
fn io_v2(text: &str) -> Io {
    let sum = |name: &str| {
        let words = text.split_ascii_whitespace().filter_map(|word| word.strip_prefix(name)?.strip_prefix('='));
        words.filter_map(|value| value.parse::<u64>().ok()).fold(0, u64::saturating_add)
    };
    Io { read_bytes: sum("rbytes"), written_bytes: sum("wbytes") }
}

/// Parses lines of `8:0 Read 1`, `8:0 Write 2` and others.
fn io_v1(text: &str) -> Io {
    let sum = |name: &str| {
        let values = text.lines().filter_map(|line| line.split_once(' ')?.1.strip_prefix(name)?.strip_prefix(' '));
        values.filter_map(|value| value.parse::<u64>().ok()).fold(0, u64::saturating_add)
    };
    Io { read_bytes: sum("Read"), written_bytes: sum("Write") }
}

/// Parses what one process alone has read and written, from `/proc/<pid>/io`, which only its own user and root may
/// read.
pub(super) fn process_io(text: &str) -> Option<Io> {
    Some(Io { read_bytes: value(text, "read_bytes:")?, written_bytes: value(text, "write_bytes:")? })
}

#[cfg(test)]
mod tests {
    use std::{fs, path::PathBuf};

    use proptest::prelude::*;

    use super::*;

    /// Checks the values read from a folder with these files.
    fn check(hierarchy: fn(PathBuf) -> CgroupFolders, files: &[(&str, &str)], wanted: [Option<u64>; 7]) {
        let folder = tempfile::tempdir().unwrap();
        for (file, text) in files {
            fs::write(folder.path().join(file), text).unwrap();
        }
        let (places, mut reader) = (hierarchy(folder.path().to_owned()), ProcReader::default());
        let mut account = CgroupReader { places: &places, reader: &mut reader };
        let io = account.io();
        let found = [
            account.busy_us(),
            account.throttled_us(),
            account.resident_bytes(),
            account.limit_bytes(),
            account.processes(),
            io.map(|io| io.read_bytes),
            io.map(|io| io.written_bytes),
        ];
        assert_eq!(found, wanted, "{files:?}");
    }

    fn v2(folder: PathBuf) -> CgroupFolders {
        CgroupFolders { unified: Some(folder), ..CgroupFolders::default() }
    }

    fn v1(folder: PathBuf) -> CgroupFolders {
        let folder = || Some(folder.clone());
        CgroupFolders {
            unified: None,
            cpu: folder(),
            cpuacct: folder(),
            memory: folder(),
            pids: folder(),
            blkio: folder(),
        }
    }

    /// Files of a kernel 6.1, of a service with all controllers.
    #[test]
    fn unified_counters_are_parsed() {
        let cpu = "usage_usec 2190473\nuser_usec 1603118\nsystem_usec 587355\ncore_sched.force_idle_usec 0\n\
                   nr_periods 97\nnr_throttled 12\nthrottled_usec 1100321\nnr_bursts 0\nburst_usec 0\n";
        let memory = "anon 4960256\nfile 20480000\nkernel 1220608\nkernel_stack 65536\nshmem 4096\nfile_mapped 3219456\n\
                      file_dirty 0\ninactive_anon 4907008\n";
        let io = "254:0 rbytes=1228800 wbytes=53248 rios=46 wios=11 dbytes=0 dios=0\n\
                  8:16 rbytes=4096 wbytes=0 rios=1 wios=0 dbytes=0 dios=0\n";
        let files = [
            ("cpu.stat", cpu),
            ("memory.stat", memory),
            ("memory.max", "268435456\n"),
            ("pids.current", "7\n"),
            ("cgroup.procs", "10\n11\n"),
            ("io.stat", io),
        ];
        let resident = Some(4_960_256 + 3_219_456);
        let wanted =
            [Some(2_190_473), Some(1_100_321), resident, Some(268_435_456), Some(7), Some(1_232_896), Some(53_248)];
        check(v2, &files, wanted);
        // Without controllers, as beside v1 hierarchies.
        let bare =
            [("cpu.stat", "usage_usec 12\nuser_usec 6\nsystem_usec 6\nnice_usec 0\n"), ("cgroup.procs", "10\n11\n")];
        check(v2, &bare, [Some(12), None, None, None, Some(2), None, None]);
        check(v2, &[("memory.max", "max\n"), ("io.stat", "")], [None, None, None, None, None, Some(0), Some(0)]);
    }

    /// Files of the v1 hierarchies of a kernel 5.10.
    #[test]
    fn v1_counters_are_parsed() {
        let memory = "cache 135168\nrss 2162688\nmapped_file 0\ntotal_cache 135168\ntotal_rss 2162688\n\
                      total_rss_huge 0\ntotal_shmem 0\ntotal_mapped_file 1351680\n";
        let io = "254:0 Read 1048576\n254:0 Write 12288\n254:0 Sync 1060864\n254:0 Async 0\n254:0 Discard 0\n\
                  254:0 Total 1060864\n7:0 Read 512\nTotal 1061376\n";
        let files = [
            ("cpuacct.usage", "2190473123\n"),
            ("cpu.stat", "nr_periods 97\nnr_throttled 12\nthrottled_time 1100321456\n"),
            ("memory.stat", memory),
            ("memory.limit_in_bytes", "8388608\n"),
            ("pids.current", "3\n"),
            ("blkio.throttle.io_service_bytes_recursive", io),
        ];
        let resident = Some(2_162_688 + 1_351_680);
        let wanted =
            [Some(2_190_473), Some(1_100_321), resident, Some(8_388_608), Some(3), Some(1_049_088), Some(12_288)];
        check(v1, &files, wanted);
        let unlimited = [("memory.limit_in_bytes", "9223372036854771712\n"), ("cgroup.procs", "5\n")];
        check(v1, &unlimited, [None, None, None, None, Some(1), None, None]);
    }

    #[test]
    fn io_of_one_process_is_parsed() {
        let text = "rchar: 6976\nwchar: 0\nsyscr: 10\nsyscw: 0\nread_bytes: 4096\nwrite_bytes: 8192\n\
                    cancelled_write_bytes: 0\n";
        assert_eq!(process_io(text), Some(Io { read_bytes: 4_096, written_bytes: 8_192 }));
        assert_eq!(process_io(""), None);
    }

    proptest! {
        #[test]
        fn no_text_panics_the_parsers(text in "([ a-z_0-9:=]{0,20}\n?){0,20}", any in any::<String>()) {
            for text in [&text, &any] {
                let _ = (io_v1(text), io_v2(text), process_io(text), number(text));
                let _ = resident(text, ["anon", "shmem", "file_mapped"]);
            }
        }
    }
}
