//! Releases memory that only the start or a rare operation needed, and keeps the allocator's heaps few.
//!
//! Most of an agent's resident memory is its own program: code that ran once (joining, opening the
//! store, a handshake) and what the kernel mapped around it, by the 64 KiB. Those pages are
//! clean copies of the file. Released, they cost nothing, and are loaded again when they run. An idle agent works for some
//! milliseconds every few seconds, so it releases them each time that it has become idle.
//!
//! A console's is its heap. The C library gives each thread an arena of its own, up to eight for each processor, and memory that
//! one thread allocates and another frees (a batch is unpacked here, committed there) leaves holes in all of them, which never merge. So a
//! console has few arenas, an agent has one, and both return free pages from time to time.

#![expect(
    unsafe_code,
    reason = "madvise takes an address, and the allocator's own calls are C's; each has its safety argument beside it"
)]

use std::{
    ffi::c_void,
    fs, io,
    ptr::NonNull,
    sync::{
        Arc,
        atomic::{AtomicI64, AtomicU8, Ordering},
    },
    thread,
    time::Duration,
};

#[cfg(target_env = "gnu")]
use nix::libc;
use nix::sys::{
    mman::{MmapAdvise, madvise},
    resource::{UsageWho, getrusage},
};
use tokio::{runtime::Builder, time::sleep};
use tokio_util::sync::CancellationToken;

/// Number of heaps of a console: the number of processors of a small machine, so threads seldom wait for each other.
pub const CONSOLE_HEAPS: i32 = 2;
/// Number of heaps of an agent: besides its one thread works the store's, and they wait for each other.
pub const AGENT_HEAPS: i32 = 1;
/// Interval at which a console returns free pages to the system. The calls take one or two milliseconds, and so do the
/// page faults that follow.
const EVERY: Duration = Duration::from_secs(60);

/// A runtime that has not worked for so long is idle: an event brings others, such as the broker's acknowledgement. Each release costs
/// about a millisecond, most of it for the page faults that follow.
const QUIET: Duration = Duration::from_millis(250);

/// A runtime whose thread had fewer page faults since it was looked at last has brought back too little to be released: a wake-up that
/// only moves a timer takes five, a sample of the host some fifty, each of up to 64 KiB.
const FAULTS_MIN: i64 = 16;

/// Has a thread return memory to the system each time that the runtime, of one thread, has become idle. Call it before that is built.
pub fn release_when_idle(runtime: &mut Builder) {
    let turns = Arc::new(Turns::default());
    let seen = turns.clone();
    let begin = || -> io::Result<_> {
        let pages = CleanPages::of_this_program()?;
        thread::Builder::new().name("memory".to_owned()).spawn(move || release_after(&seen, &pages))
    };
    match begin() {
        Ok(thread) => {
            let thread = thread.thread().clone();
            let seen = AtomicI64::new(0);
            runtime.on_thread_park(move || {
                let faults = page_faults();
                if faults - seen.load(Ordering::Relaxed) < FAULTS_MIN {
                    return;
                }
                seen.store(faults, Ordering::Relaxed);
                if turns.begin() {
                    thread.unpark();
                }
            });
        }
        // The agent also works if the kernel refuses.
        Err(error) => tracing::debug!(%error, "pages of the program stay resident"),
    }
}

/// The number of page faults of this thread.
fn page_faults() -> i64 {
    getrusage(UsageWho::RUSAGE_THREAD).map_or(0, |usage| usage.minor_page_faults() + usage.major_page_faults())
}

/// Releases memory after each time that the runtime has worked.
fn release_after(turns: &Turns, pages: &CleanPages) {
    loop {
        while turns.is_idle() {
            thread::park();
        }
        while turns.went_on() {
            thread::sleep(QUIET);
        }
        if let Err(error) = pages.release() {
            return tracing::debug!(%error, "pages of the program stay resident");
        }
        trim_heaps();
        turns.end();
    }
}

/// Whether the runtime works.
#[derive(Debug, Default)]
struct Turns(AtomicU8);

impl Turns {
    /// It has not worked since memory was released.
    const IDLE: u8 = 0;
    /// It has worked, and memory is to be released.
    const WORKED: u8 = 1;
    /// It works, or has worked since it was looked at.
    const WORKS: u8 = 2;

    /// It begins to work; returns whether it was idle.
    fn begin(&self) -> bool {
        self.0.swap(Self::WORKS, Ordering::AcqRel) == Self::IDLE
    }

    fn is_idle(&self) -> bool {
        self.0.load(Ordering::Acquire) == Self::IDLE
    }

    /// Whether it has worked since this was asked last.
    fn went_on(&self) -> bool {
        self.0.swap(Self::WORKED, Ordering::AcqRel) == Self::WORKS
    }

    /// Memory was released. If it has begun to work meanwhile, that stands.
    fn end(&self) {
        let _ = self.0.compare_exchange(Self::WORKED, Self::IDLE, Ordering::AcqRel, Ordering::Acquire);
    }
}

/// Makes all threads share this number of heaps. Call it before any thread starts.
pub fn share_heaps(count: i32) {
    #[cfg(target_env = "gnu")]
    {
        // SAFETY: sets a number in the allocator, which it reads when a thread asks for its first memory.
        let done = unsafe { libc::mallopt(libc::M_ARENA_MAX, count) };
        if done == 0 {
            tracing::debug!("each thread has a heap of its own");
        }
    }
    #[cfg(not(target_env = "gnu"))]
    let _ = count;
}

/// Gives free pages of the heaps back every minute, until `shutdown`.
pub async fn trim_heaps_each_minute(shutdown: CancellationToken) {
    while shutdown.run_until_cancelled(sleep(EVERY)).await.is_some() {
        trim_heaps();
    }
}

fn trim_heaps() {
    #[cfg(target_env = "gnu")]
    // SAFETY: gives back what is free, and touches nothing that is in use.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// The pages of this program's code and constants that equal its file.
#[derive(Debug)]
struct CleanPages(Vec<(usize, usize)>);

impl CleanPages {
    /// Finds them; they stay where they are.
    fn of_this_program() -> io::Result<Self> {
        let program = fs::read_link("/proc/self/exe")?;
        Ok(Self(clean_mappings(&fs::read_to_string("/proc/self/maps")?, &program.to_string_lossy())))
    }

    /// Lets go of them.
    fn release(&self) -> io::Result<()> {
        for (start, end) in &self.0 {
            let Some(address) = NonNull::new(std::ptr::with_exposed_provenance_mut::<c_void>(*start)) else { continue };
            // SAFETY: the range is a private, file-backed mapping of this program's file that is not writable, as the
            // kernel has said, and holds code or begins with the file's header. Neither is ever part of the
            // segment that the linker relocates (and then protects), so nothing has written to it: its pages equal
            // the file's, and MADV_DONTNEED makes the next access read the file again. The mapping itself stays, for
            // it is never unmapped while the program runs.
            unsafe { madvise(address, end - start, MmapAdvise::MADV_DONTNEED) }?;
        }
        Ok(())
    }
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
    fn memory_is_released_once_after_work() {
        let turns = Turns::default();
        assert!(turns.is_idle());
        assert!(turns.begin() && !turns.begin(), "it is woken once");
        assert!(turns.went_on() && !turns.went_on());
        turns.end();
        assert!(turns.is_idle());
        // What is done meanwhile is not forgotten.
        turns.begin();
        assert!(turns.went_on());
        assert!(!turns.begin());
        turns.end();
        assert!(!turns.is_idle() && turns.went_on());
    }

    #[test]
    fn program_continues_after_release() {
        let resident = || {
            let rollup = fs::read_to_string("/proc/self/smaps_rollup").unwrap();
            let line = rollup.lines().find(|line| line.starts_with("Rss:")).unwrap().to_owned();
            line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap()
        };
        let before = resident();
        CleanPages::of_this_program().unwrap().release().unwrap();
        assert!(resident() < before);
    }
}
