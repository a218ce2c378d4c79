//! Names of simulated hosts.

use super::store::Number;

/// The hostname of a simulated host.
pub(super) fn hostname(n: Number) -> String {
    format!("sim-{n:05}")
}
