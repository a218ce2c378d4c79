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

/// Name, metric, threshold, clear level, `for` time, severity.
const DEFAULTS: [(&str, Metric, f64, f64, u64, Severity); 25] = [
    ("cpu", Metric::CpuBusy, 0.98, 0.9, 30 * MINUTE_MS, Severity::Warning),
    ("memory", Metric::MemoryUsed, 0.95, 0.9, 5 * MINUTE_MS, Severity::Warning),
    ("disk", Metric::DiskUsed, 0.9, 0.85, 5 * MINUTE_MS, Severity::Warning),
    ("disk-full", Metric::DiskUsed, 0.97, 0.95, MINUTE_MS, Severity::Critical),
    // A file system without free inodes cannot create files, however many bytes are free.
    ("inodes", Metric::InodesUsed, 0.9, 0.85, 5 * MINUTE_MS, Severity::Warning),
    ("inodes-full", Metric::InodesUsed, 0.99, 0.97, MINUTE_MS, Severity::Critical),
    // Each file system is asked once a minute and given 200 ms. If it times out twice in a row, everything that uses
    // it hangs, too.
    ("disk-unresponsive", Metric::DiskUnresponsive, 0.0, 0.0, MINUTE_MS, Severity::Critical),
    ("files", Metric::FilesUsed, 0.9, 0.8, 2 * MINUTE_MS, Severity::Critical),
    ("pids", Metric::PidsUsed, 0.9, 0.8, 2 * MINUTE_MS, Severity::Critical),
    // Near the limit the kernel takes long to find a free port; it may still find one for another destination.
    ("ports", Metric::PortsUsed, 0.9, 0.8, 2 * MINUTE_MS, Severity::Warning),
    // At the limit the firewall drops new connections.
    ("conntrack", Metric::ConntrackUsed, 0.9, 0.8, 2 * MINUTE_MS, Severity::Critical),
    // Eight runnable tasks for each processor, for a quarter of an hour.
    ("load", Metric::LoadPerCore, 8.0, 4.0, 15 * MINUTE_MS, Severity::Warning),
    // Processors slow themselves down at about 95 °C.
    ("temperature", Metric::Temperature, 90.0, 80.0, 5 * MINUTE_MS, Severity::Warning),
    // Three immediate restarts are normal for any unit; the fourth is the first that is delayed.
    ("unit-restarts", Metric::UnitRestarts, 3.0, 0.0, 0, Severity::Warning),
    ("unit-broken", Metric::UnitBroken, 0.0, 0.0, 0, Severity::Critical),
    // A late mount or a directory service may take a minute to appear.
    ("unit-failed", Metric::UnitFailed, 0.0, 0.0, MINUTE_MS, Severity::Warning),
    ("unit-rolled-back", Metric::UnitRolledBack, 0.0, 0.0, 0, Severity::Warning),
    // A certificate is renewed when a third of its lifetime is left, plus or minus a twelfth of the lifetime.
    ("certificate", Metric::CertificateLeft, 0.2, 0.25, 10 * MINUTE_MS, Severity::Critical),
    ("store", Metric::StoreUsed, 0.97, 0.95, MINUTE_MS, Severity::Critical),
    ("clock", Metric::ClockOff, 30.0, 10.0, 2 * MINUTE_MS, Severity::Warning),
    ("store-lost", Metric::StoreLost, 0.0, 0.0, 0, Severity::Critical),
    ("store-unwritable", Metric::StoreUnwritable, 0.0, 0.0, 0, Severity::Critical),
    ("duplicate", Metric::Duplicate, 0.0, 0.0, 0, Severity::Critical),
    ("document-refused", Metric::DocumentRefused, 0.0, 0.0, 0, Severity::Critical),
    ("later-protocol", Metric::LaterProtocol, 0.0, 0.0, 0, Severity::Critical),
];

/// Returns the default rules.
#[must_use]
pub fn rules() -> BTreeMap<Name, Rule> {
    let rule = |(name, metric, threshold, clear, for_ms, severity): (&str, Metric, f64, f64, u64, Severity)| {
        let clear = Some(clear);
        // The names are constants; a test checks that they parse.
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
