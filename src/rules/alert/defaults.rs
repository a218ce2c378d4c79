//! The agent's default alert rules.
//!
//! They cover conditions that need attention on any host. What is right for one may be wrong for another (a compute host is
//! busy all day), so each waits long, and is changed or disabled by a rule of the same name.

use std::collections::BTreeMap;

use muster_topics::{
    alert::{Metric, Rule, Severity},
    name::Name,
};

const MINUTE_MS: u64 = 60_000;

/// Name, metric, threshold, clear level, how long, how bad.
const DEFAULTS: [(&str, Metric, f64, f64, u64, Severity); 22] = [
    ("cpu", Metric::CpuBusy, 0.98, 0.9, 30 * MINUTE_MS, Severity::Warning),
    ("memory", Metric::MemoryUsed, 0.95, 0.9, 5 * MINUTE_MS, Severity::Warning),
    ("disk", Metric::DiskUsed, 0.9, 0.85, 5 * MINUTE_MS, Severity::Warning),
    ("disk-full", Metric::DiskUsed, 0.97, 0.95, MINUTE_MS, Severity::Critical),
    // A disk without inodes takes no new file, however empty it looks.
    ("inodes", Metric::InodesUsed, 0.9, 0.85, 5 * MINUTE_MS, Severity::Warning),
    ("inodes-full", Metric::InodesUsed, 0.99, 0.97, MINUTE_MS, Severity::Critical),
    // It is asked each minute and given 200 ms: twice in a row is no hiccup, and whatever uses it hangs as well.
    ("disk-unresponsive", Metric::DiskUnresponsive, 0.0, 0.0, MINUTE_MS, Severity::Critical),
    ("files", Metric::FilesUsed, 0.9, 0.8, 2 * MINUTE_MS, Severity::Critical),
    ("pids", Metric::PidsUsed, 0.9, 0.8, 2 * MINUTE_MS, Severity::Critical),
    // Near the end the kernel needs long to find a free one; it may still find one for another address.
    ("ports", Metric::PortsUsed, 0.9, 0.8, 2 * MINUTE_MS, Severity::Warning),
    // Beyond the limit the firewall drops new connections.
    ("conntrack", Metric::ConntrackUsed, 0.9, 0.8, 2 * MINUTE_MS, Severity::Critical),
    // Work for eight times the processors that there are, for a quarter of an hour.
    ("load", Metric::LoadPerCore, 8.0, 4.0, 15 * MINUTE_MS, Severity::Warning),
    // Processors slow themselves down at about 95 °C.
    ("temperature", Metric::Temperature, 90.0, 80.0, 5 * MINUTE_MS, Severity::Warning),
    // Three starts at once belong to the budget of any unit; the fourth is the first that has to wait.
    ("unit-restarts", Metric::UnitRestarts, 3.0, 0.0, 0, Severity::Warning),
    ("unit-broken", Metric::UnitBroken, 0.0, 0.0, 0, Severity::Critical),
    // A disk that is mounted late, or a directory service that starts late, may take a minute.
    ("unit-failed", Metric::UnitFailed, 0.0, 0.0, MINUTE_MS, Severity::Warning),
    ("unit-rolled-back", Metric::UnitRolledBack, 0.0, 0.0, 0, Severity::Warning),
    // It is renewed at a third, give or take a twelfth of the whole.
    ("certificate", Metric::CertificateLeft, 0.2, 0.25, 10 * MINUTE_MS, Severity::Critical),
    ("store", Metric::StoreUsed, 0.97, 0.95, MINUTE_MS, Severity::Critical),
    ("clock", Metric::ClockOff, 30.0, 10.0, 2 * MINUTE_MS, Severity::Warning),
    ("store-lost", Metric::StoreLost, 0.0, 0.0, 0, Severity::Critical),
    ("duplicate", Metric::Duplicate, 0.0, 0.0, 0, Severity::Critical),
];

/// The rules.
#[must_use]
pub fn rules() -> BTreeMap<Name, Rule> {
    let rule = |(name, metric, threshold, clear, for_ms, severity): (&str, Metric, f64, f64, u64, Severity)| {
        let clear = Some(clear);
        // The names are constants, which a test parses.
        Some((name.parse().ok()?, Rule { metric, of: None, threshold, clear, for_ms, severity, disabled: false }))
    };
    DEFAULTS.into_iter().filter_map(rule).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_default_rule_is_valid() {
        let rules = rules();
        assert_eq!(rules.len(), DEFAULTS.len());
        for (name, rule) in rules {
            assert_eq!(rule.check(), Ok(()), "{name}");
        }
    }
}
