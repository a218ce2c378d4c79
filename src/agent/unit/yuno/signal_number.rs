//! The numbers of signals on this host.

use muster_topics::signal::Signal;

/// The number of a signal on this machine. Real-time signals have the same numbers everywhere.
pub(in crate::unit) fn signal_number(signal: Signal) -> i32 {
    let named = signal.to_string().parse::<nix::sys::signal::Signal>();
    named.map_or_else(|_| signal.number(), |signal| signal as i32)
}
