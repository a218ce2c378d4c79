//! Releases memory that only the start or a rare operation needed, and keeps the allocator's heaps few.
//!
//! Most of an agent's resident memory is its own program: code that ran once (joining, opening the
//! store, the first handshake) and what the kernel mapped around it, by the 64 KiB. Those pages are
//! clean copies of the file. Released, they cost nothing, and are loaded again one by one when they run.
//!
//! A console's is its heap. The C library gives each thread an arena of its own, up to eight for each processor, and memory that
//! one thread allocates and another frees (a batch is unpacked here, committed there) leaves holes in all of them, which never merge. So a
//! console has few arenas, and returns free pages from time to time.

#![expect(
    unsafe_code,
    reason = "madvise takes an address, and the allocator's own calls are C's; each has its safety argument beside it"
)]

use std::{ffi::c_void, fs, io, ptr::NonNull, time::Duration};

#[cfg(target_env = "gnu")]
use nix::libc;
use nix::sys::mman::{MmapAdvise, madvise};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// Number of heaps of a console: the number of processors of a small machine, so threads seldom wait for each other.
#[cfg(target_env = "gnu")]
const ARENAS: i32 = 2;
/// Interval at which a console returns free pages to the system. The calls take one or two milliseconds, and so do the
/// page faults that follow.
const EVERY: Duration = Duration::from_secs(60);

/// Delay after a batch of measurements was stored: by then it has been sent and acknowledged, and an idle agent does
/// almost nothing until the next one.
const AFTER_BATCH: Duration = Duration::from_secs(2);

/// Returns memory to the system after each batch of measurements, which `stored` signals, until `shutdown`. The page
/// faults that follow take less than a millisecond of processor time.
pub async fn release_after_batches(mut stored: watch::Receiver<u64>, shutdown: CancellationToken) {
    let mut batch = async || {
        let changed = stored.changed().await;
        tokio::time::sleep(AFTER_BATCH).await;
        changed
    };
    while let Some(Ok(())) = shutdown.run_until_cancelled(batch()).await {
        if let Err(error) = release_pages() {
            // The agent also works if the kernel refuses.
            tracing::debug!(%error, "pages of the program stay resident");
            return;
        }
    }
}

/// Makes all threads share a few heaps. Call it before any thread starts.
pub fn share_heaps() {
    #[cfg(target_env = "gnu")]
    {
        // SAFETY: sets a number in the allocator, which it reads when a thread asks for its first memory.
        let done = unsafe { libc::mallopt(libc::M_ARENA_MAX, ARENAS) };
        if done == 0 {
            tracing::debug!("each thread has a heap of its own");
        }
    }
}

/// Gives free pages of the heaps back every minute, until `shutdown`.
pub async fn trim_heaps_each_minute(shutdown: CancellationToken) {
    while shutdown.run_until_cancelled(tokio::time::sleep(EVERY)).await.is_some() {
        #[cfg(target_env = "gnu")]
        // SAFETY: gives back what is free, and touches nothing that is in use.
        unsafe {
            libc::malloc_trim(0);
        }
    }
}

/// Lets go of the pages of this program's code and constants.
///
/// # Errors
/// If the kernel does not say where they are, or does not take them.
pub fn release_pages() -> io::Result<()> {
    let program = fs::read_link("/proc/self/exe")?;
    for (start, end) in clean_mappings(&fs::read_to_string("/proc/self/maps")?, &program.to_string_lossy()) {
        let Some(address) = NonNull::new(std::ptr::with_exposed_provenance_mut::<c_void>(start)) else { continue };
        // SAFETY: the range is a private, file-backed mapping of this program's file that is not writable, as the
        // kernel has just said, and holds code or begins with the file's header. Neither is ever part of the
        // segment that the linker relocates (and then protects), so nothing has written to it: its pages equal
        // the file's, and MADV_DONTNEED makes the next access read the file again. The mapping itself stays, for
        // it is never unmapped while the program runs.
        unsafe { madvise(address, end - start, MmapAdvise::MADV_DONTNEED) }?;
    }
    Ok(())
}

/// Start and end of each private mapping of `program` that equals the file: its code, and the constants
/// that stand between the file's header and the code. (Other read-only mappings were relocated before.)
fn clean_mappings(maps: &str, program: &str) -> Vec<(usize, usize)> {
    let mapping = |line: &str| {
        let (range, rest) = line.split_once(' ')?;
        let (mode, rest) = rest.split_once(' ')?;
        let (offset, rest) = rest.split_once(' ')?;
        let (start, end) = range.split_once('-')?;
        let file = rest.splitn(3, ' ').nth(2)?.trim_start();
        let is_clean = mode == "r-xp" || (mode == "r--p" && usize::from_str_radix(offset, 16) == Ok(0));
        (is_clean && file == program)
            .then_some((usize::from_str_radix(start, 16).ok()?, usize::from_str_radix(end, 16).ok()?))
    };
    maps.lines().filter_map(mapping).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_clean_pages_are_released() {
        let maps = "\
            55d000000000-55d000100000 r--p 00000000 fe:00 123                        /usr/bin/muster\n\
            55d000100000-55d000200000 r-xp 00100000 fe:00 123                        /usr/bin/muster\n\
            55d000200000-55d000280000 r--p 00200000 fe:00 123                        /usr/bin/muster\n\
            55d000280000-55d000300000 rw-p 00280000 fe:00 123                        /usr/bin/muster\n\
            7f0000000000-7f0000100000 r-xp 00000000 fe:00 456                        /usr/lib/libc.so.6\n\
            7f0000200000-7f0000201000 r-xp 00000000 00:00 0                          [vdso]\n\
            nonsense\n";
        let wanted = [(0x55d0_0000_0000, 0x55d0_0010_0000), (0x55d0_0010_0000, 0x55d0_0020_0000)];
        assert_eq!(clean_mappings(maps, "/usr/bin/muster"), wanted);
    }

    #[test]
    fn program_continues_after_release() {
        let resident = || {
            let rollup = fs::read_to_string("/proc/self/smaps_rollup").unwrap();
            let line = rollup.lines().find(|line| line.starts_with("Rss:")).unwrap().to_owned();
            line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap()
        };
        let before = resident();
        release_pages().unwrap();
        assert!(resident() < before);
    }
}
