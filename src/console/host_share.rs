//! What one host may have of the console's room, so that none takes the place of the others: units and their reports, series and
//! bytes of measurements, certificates. Each has its key of the configuration, a counter, and an alert from four fifths on.

use std::{
    collections::HashMap,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use muster_guard::{LineKind, log_peer};
use muster_topics::{Millis, diagnostic::Diagnostic, name::HostId, unit::UNITS_MAX};

use super::{alert, state::ConsoleState};

/// Log lines about hosts that have nearly all, or more, than one may have.
const CROWDED: LineKind = LineKind::new("hosts at a limit of their share", 60).burst(5);
/// How often it is said again that a host wants more than it may have, so that the alert stays while it lasts.
const AGAIN: Duration = Duration::from_secs(3_600);
/// The most hosts whose last notices are remembered. Beyond, notices may come twice.
const HOSTS_MAX: usize = 100_000;

/// What has a share by host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ShareKind {
    /// The number of its units.
    Units,
    /// The bytes of their reports.
    UnitReports,
    /// The number of its series of measurements.
    Series,
    /// The bytes of measurements within a minute.
    Measurements,
    /// Its certificates that have not expired.
    Certificates,
}

impl ShareKind {
    /// All kinds.
    pub(super) const ALL: [Self; 5] =
        [Self::Units, Self::UnitReports, Self::Series, Self::Measurements, Self::Certificates];

    /// The name in metrics; with `console-` and `-share` around it, the rule of the alert.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Units => "units",
            Self::UnitReports => "unit-reports",
            Self::Series => "series",
            Self::Measurements => "measurements",
            Self::Certificates => "certificates",
        }
    }

    /// The rule of the alert.
    pub(super) fn rule(self) -> String {
        format!("console-{}-share", self.as_str())
    }

    fn of_what(self) -> &'static str {
        match self {
            Self::Units => "units",
            Self::UnitReports => "bytes of reports of its units",
            Self::Series => "series of measurements",
            Self::Measurements => "bytes of measurements within a minute",
            Self::Certificates => "certificates that have not expired",
        }
    }

    /// What happens to more, and what helps.
    fn beyond(self) -> (&'static str, &'static str) {
        const STOLEN: &str =
            "if its agent works correctly, its certificate was stolen: `muster host revoke` revokes it";
        match self {
            Self::Units => ("reports of more units are not stored", STOLEN),
            Self::UnitReports => ("longer reports are not stored", STOLEN),
            Self::Series => (
                "new series are left out",
                "a label whose values change makes a series for each; `host_series_max` in the console's configuration is the \
                 limit",
            ),
            Self::Measurements => (
                "more are sent again later",
                "let it measure fewer things, or less often; each of `host_series_max` in the console's configuration stands for \
                 512 bytes a second",
            ),
            Self::Certificates => {
                ("another key gets none", "an agent keeps its key; if it asks for no others, see `muster host revoke`")
            }
        }
    }
}

/// What the units of one host may have: as many as a host may have, with 32 KiB each; a document gives them a sixteenth of it.
pub const UNIT_SHARES: UnitShares = UnitShares { units: UNITS_MAX as u64, bytes: 32 * 1024 * UNITS_MAX as u64 };

/// What the units of one host may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnitShares {
    /// How many they may be.
    pub units: u64,
    /// The bytes of their reports.
    pub bytes: u64,
}

/// How much a host has, or wants to have, of its share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShareUse {
    /// Of what.
    pub kind: ShareKind,
    /// How much it has together with what it asks for.
    pub used: u64,
    /// How much it may have.
    pub most: u64,
}

/// How much of a share is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ShareLevel {
    /// There is room.
    Ample,
    /// A fifth or less is left.
    Near,
    /// It is more than the host may have.
    Exceeded,
}

impl ShareUse {
    /// How much of it is in use.
    #[must_use]
    pub fn level(&self) -> ShareLevel {
        match self.used {
            used if used > self.most => ShareLevel::Exceeded,
            used if used.saturating_mul(5) >= self.most.saturating_mul(4) => ShareLevel::Near,
            _ => ShareLevel::Ample,
        }
    }

    fn message(&self) -> Diagnostic {
        let (beyond, help) = self.kind.beyond();
        let (most, of_what) = (self.most, self.kind.of_what());
        let has = match self.level() {
            ShareLevel::Exceeded => {
                format!("this host exceeds the limit of {most} {of_what} for one host: {beyond}")
            }
            _ => {
                format!("this host has {} of at most {most} {of_what} for one host; beyond that, {beyond}", self.used)
            }
        };
        Diagnostic::new(has).with_hint(help)
    }
}

/// What was said of hosts' shares, and how often they were exceeded.
#[derive(Debug, Default)]
pub(super) struct HostShares {
    exceeded: [AtomicU64; ShareKind::ALL.len()],
    told: Mutex<HashMap<(HostId, ShareKind), (ShareLevel, Instant)>>,
}

impl HostShares {
    /// How often hosts wanted more than they may have since the start.
    pub(super) fn exceeded(&self, kind: ShareKind) -> u64 {
        self.exceeded[kind as usize].load(Ordering::Relaxed)
    }

    /// Counts this, and returns whether it is to be said.
    fn note(&self, host: HostId, of: &ShareUse, exceeded: u64, now: Instant) -> bool {
        let level = of.level();
        self.exceeded[of.kind as usize].fetch_add(exceeded, Ordering::Relaxed);
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        if level == ShareLevel::Ample {
            told.remove(&(host, of.kind));
            return false;
        }
        let is_new = told.get(&(host, of.kind)).is_none_or(|(before, at)| {
            level > *before || level == ShareLevel::Exceeded && now.saturating_duration_since(*at) >= AGAIN
        });
        if is_new {
            if told.len() >= HOSTS_MAX {
                told.clear();
            }
            told.insert((host, of.kind), (level, now));
        }
        is_new
    }
}

/// Says what a host has of its share, if there is something new to say: in the log, and by an alert about it. `exceeded` is how
/// often the host wanted more.
pub(super) async fn tell(shared: &ConsoleState, host: HostId, of: &ShareUse, exceeded: u64, now: Millis) {
    if !shared.hosts.shares.note(host, of, exceeded, Instant::now()) {
        return;
    }
    let (message, of_what, used, most) = (of.message(), of.kind.as_str(), of.used, of.most);
    log_peer!(WARN, host, CROWDED, host.id = %host, of_what, used, most, "a host is near or above a limit of its share");
    if let Err(error) = alert::raise_own(shared, host, &of.kind.rule(), &message, now).await {
        tracing::error!(host.id = %host, %error, "an alert cannot be stored");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn used(used: u64) -> ShareUse {
        ShareUse { kind: ShareKind::Units, used, most: 10 }
    }

    #[test]
    fn it_is_said_from_four_fifths_on_and_again_when_it_is_worse_or_lasts() {
        let levels: Vec<_> = [0, 7, 8, 10, 11, u64::MAX].map(|count| used(count).level()).to_vec();
        use ShareLevel::{Ample, Exceeded, Near};
        assert_eq!(levels, [Ample, Ample, Near, Near, Exceeded, Exceeded]);
        let (shares, host, begin) = (HostShares::default(), HostId::random(), Instant::now());
        let said = |count, after_s| {
            shares.note(host, &used(count), u64::from(count > 10), begin + Duration::from_secs(after_s))
        };
        assert_eq!([said(7, 0), said(8, 0), said(9, 0), said(11, 1), said(12, 9)], [false, true, false, true, false]);
        assert!(said(12, 3_601), "it lasts");
        assert_eq!((shares.exceeded(ShareKind::Units), shares.exceeded(ShareKind::Series)), (3, 0));
        assert!(!said(9, 3_602) && !said(3, 3_602) && said(9, 3_602), "it had room in between");
    }

    #[test]
    fn message_names_what_and_how_much_and_the_key() {
        let near = used(9).message().to_string();
        assert!(near.contains("9 of at most 10 units") && near.contains("`muster host revoke`"), "{near}");
        let series = ShareUse { kind: ShareKind::Series, used: 9, most: 10 }.message().to_string();
        assert!(series.contains("`host_series_max`"), "{series}");
        for kind in ShareKind::ALL {
            let beyond = ShareUse { kind, used: 11, most: 10 }.message();
            assert!(beyond.cause.contains(kind.of_what()) && beyond.hint.is_some(), "{beyond}");
            assert!(kind.rule().parse::<muster_topics::name::Name>().is_ok());
        }
    }
}
