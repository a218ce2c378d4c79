//! Crash points: a test kills a role or a verb at one of them, to check that it recovers.
//!
//! They exist in debug builds only. `MUSTER_TEST_CRASH=NAME:N` ends the process, as `kill -9` would, when it passes
//! the point of that name for the Nth time. `MUSTER_TEST_PLACES=FILE` records each point that is passed, so that
//! a test finds all of them without a list.
//!
//! **Invariant: a release build contains none of this.**

/// Marks a crash point. Its name is `WHAT/WHEN`, such as `keep unit/before`.
#[cfg(debug_assertions)]
pub fn point(what: &'static str, when: &'static str) {
    enabled::point(&format!("{what}/{when}"));
}

/// Does nothing.
#[cfg(not(debug_assertions))]
#[inline(always)]
pub fn point(_: &'static str, _: &'static str) {}

#[cfg(debug_assertions)]
mod enabled {
    use std::{
        env,
        fs::{File, OpenOptions},
        io::Write,
        sync::{
            LazyLock,
            atomic::{AtomicU32, Ordering},
        },
    };

    use nix::{
        sys::signal::{Signal, raise},
        unistd::pause,
    };

    /// The crash point, and at which pass to crash.
    static WANTED: LazyLock<Option<(String, u32)>> = LazyLock::new(|| {
        let wanted = env::var("MUSTER_TEST_CRASH").ok()?;
        let (name, count) = wanted.rsplit_once(':')?;
        Some((name.to_owned(), count.parse().ok()?))
    });
    static PASSED: AtomicU32 = AtomicU32::new(0);
    static PLACES: LazyLock<Option<File>> = LazyLock::new(|| {
        let path = env::var_os("MUSTER_TEST_PLACES")?;
        OpenOptions::new().create(true).append(true).open(path).ok()
    });

    pub(super) fn point(name: &str) {
        if let Some(mut places) = PLACES.as_ref() {
            let _ = places.write_all(format!("{name}\n").as_bytes());
        }
        if let Some((wanted, count)) = &*WANTED
            && wanted == name
            && PASSED.fetch_add(1, Ordering::Relaxed) + 1 == *count
        {
            let _ = raise(Signal::SIGKILL);
            // Not one more instruction is executed.
            loop {
                pause();
            }
        }
    }
}
