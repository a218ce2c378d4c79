//! Names of simulated hosts.

use super::store::Number;

/// The name that a simulated host gives itself.
pub(super) fn hostname(n: Number) -> String {
    format!("sim-{n:05}")
}
