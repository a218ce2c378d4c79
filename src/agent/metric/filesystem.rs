//! Free and used space of a file system, computed as `df` does.

use std::path::Path;

use nix::sys::statvfs::statvfs;

/// The usage of one file system.
///
/// `used_bytes / total_bytes` is the `Use%` of `df`: blocks that are reserved for root count neither as used nor as
/// available, so that a file system is full (1.0) when ordinary programs cannot write any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileSystemSpace {
    /// The size for ordinary programs: used and available bytes.
    pub(crate) total_bytes: u64,
    /// The used bytes.
    pub(crate) used_bytes: u64,
    /// The total and used inodes; `None` if they are unlimited.
    pub(crate) inodes: Option<(u64, u64)>,
    /// Whether not one block and not one inode is free, not even for root: as in an image that was made to fit.
    pub(crate) is_exhausted: bool,
}

/// The kernel's figures of a file system; sizes in blocks.
#[derive(Clone, Copy, Debug)]
struct StatfsCounts {
    block_bytes: u64,
    blocks: u64,
    free: u64,
    available: u64,
    files: u64,
    files_free: u64,
}

impl FileSystemSpace {
    /// Measures the file system of a path; `None` if it has no size, as in `/proc`. It takes as long as the file system
    /// takes to respond.
    pub(crate) fn of(path: &Path) -> Option<Self> {
        let about = statvfs(path).ok()?;
        Self::count(StatfsCounts {
            block_bytes: about.fragment_size(),
            blocks: about.blocks(),
            free: about.blocks_free(),
            available: about.blocks_available(),
            files: about.files(),
            files_free: about.files_free(),
        })
    }

    fn count(counts: StatfsCounts) -> Option<Self> {
        let StatfsCounts { block_bytes, blocks, free, available, files, files_free } = counts;
        let used = blocks.saturating_sub(free);
        // If more is reserved than is free, some file systems report a negative number, which wraps.
        let total = used.saturating_add(available.min(free));
        // The largest number stands for no limit.
        let limited = files > 0 && files < u64::from(u32::MAX) << 16;
        (total > 0).then(|| Self {
            total_bytes: total.saturating_mul(block_bytes),
            used_bytes: used.saturating_mul(block_bytes),
            inodes: limited.then(|| (files, files.saturating_sub(files_free))),
            is_exhausted: free == 0 && (files_free == 0 || files == 0),
        })
    }

    /// The used share, from 0 to 1.
    pub(crate) fn used_ratio(self) -> f64 {
        self.used_bytes as f64 / self.total_bytes as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COUNTS: StatfsCounts =
        StatfsCounts { block_bytes: 4_096, blocks: 1_000, free: 700, available: 650, files: 256, files_free: 224 };

    #[test]
    fn reserved_blocks_are_neither_used_nor_room() {
        let space = FileSystemSpace::count(COUNTS).unwrap();
        assert_eq!((space.used_bytes, space.total_bytes), (300 * 4_096, 950 * 4_096), "as df: 300 of 950");
        assert_eq!(space.inodes, Some((256, 32)));
        // Nothing is left for ordinary programs: full, whatever is reserved.
        let full = FileSystemSpace::count(StatfsCounts { free: 50, available: 0, ..COUNTS }).unwrap();
        assert!((full.used_ratio() - 1.0).abs() < f64::EPSILON, "{full:?}");
        assert!(!space.is_exhausted && !full.is_exhausted);
        for (files, files_free, is_exhausted) in [(256, 0, true), (0, 0, true), (256, 1, false)] {
            let image = StatfsCounts { free: 0, available: 0, files, files_free, ..COUNTS };
            assert_eq!(FileSystemSpace::count(image).unwrap().is_exhausted, is_exhausted, "{files} {files_free}");
        }
        let wrapped = FileSystemSpace::count(StatfsCounts { free: 50, available: u64::MAX - 5, ..COUNTS }).unwrap();
        assert_eq!(wrapped.total_bytes, 1_000 * 4_096);
    }

    #[test]
    fn endless_inodes_are_no_limit_and_no_blocks_no_file_system() {
        for files in [0, u64::MAX] {
            assert_eq!(FileSystemSpace::count(StatfsCounts { files, ..COUNTS }).unwrap().inodes, None, "{files}");
        }
        assert_eq!(FileSystemSpace::count(StatfsCounts { blocks: 0, free: 0, available: 0, ..COUNTS }), None);
        assert_eq!(FileSystemSpace::of(Path::new("/proc")), None);
        assert!(FileSystemSpace::of(Path::new("/")).is_some_and(|root| (0.0..=1.0).contains(&root.used_ratio())));
    }
}
