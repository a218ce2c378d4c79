//! A number for this process that no other test process has at the same time, from which tests make names, ports and
//! addresses that they share with nobody.

/// The number of a process that `tests/run` started: small, and free again when the process has ended. Without that, one
/// made from the process's id, below `count`: two processes at a time will hardly have the same.
///
/// The runner sets it: <https://nexte.st/docs/configuration/env-vars/>.
pub fn slot(count: u32) -> u32 {
    let given = std::env::var("NEXTEST_TEST_GLOBAL_SLOT").ok().and_then(|slot| slot.parse::<u32>().ok());
    given.unwrap_or_else(std::process::id) % count
}
