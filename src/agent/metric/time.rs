//! The offset of the host's clock, as the kernel has it from an NTP client.
//!
//! No server is asked. If no client disciplines the clock, the kernel says so, and the offset is unknown.

#![expect(unsafe_code, reason = "the kernel's own view of the clock comes by a call that no crate in the tree wraps")]

use nix::libc;

/// In `status`: the clock is not synchronised.
const UNSYNCHRONISED: i32 = libc::STA_UNSYNC;
/// In `status`: the offset is in nanoseconds rather than microseconds.
const IN_NANOSECONDS: i32 = libc::STA_NANO;

/// Returns the offset that remains to be corrected, in seconds: positive if the clock is behind. `None` if the clock is
/// not synchronised.
pub(super) fn offset_seconds() -> Option<f64> {
    // SAFETY: `timex` consists of integers alone, for which zero is valid. Zero in `modes` requests no change.
    let mut timex: libc::timex = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is to a whole `timex`, which lives until the call returns and is not shared.
    let state = unsafe { libc::adjtimex(&raw mut timex) };
    // A container may not be allowed to ask; then the offset is unknown.
    (state >= 0).then(|| known(timex.status, timex.offset)).flatten()
}

fn known(status: i32, offset: libc::c_long) -> Option<f64> {
    let per_second = if status & IN_NANOSECONDS == 0 { 1e6 } else { 1e9 };
    // An offset is below a second: a float represents it exactly.
    (status & UNSYNCHRONISED == 0).then(|| offset as f64 / per_second)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offset_is_known_only_with_a_time_daemon() {
        for (status, offset, expected) in [
            (libc::STA_PLL, 1_500, Some(0.0015)),
            (libc::STA_PLL | libc::STA_NANO, -1_500_000, Some(-0.0015)),
            (libc::STA_UNSYNC, 1_500, None),
            (libc::STA_PLL | libc::STA_NANO | libc::STA_UNSYNC, 1_500, None),
        ] {
            assert_eq!(known(status, offset), expected, "{status:#x}");
        }
    }

    #[test]
    fn offset_of_this_machine_is_plausible() {
        if let Some(offset) = offset_seconds() {
            assert!(offset.abs() < 1.0, "{offset}: the kernel corrects no more by and by");
        }
    }
}
