//! Faults of the console itself. They are listed with the alerts of hosts, sent to outlets with them, and, if they are critical,
//! shown on every page and in every answer of the API, so that nobody has to look for them.
//!
//! **Invariant: this needs no store**, because the store may be the fault.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use axum::http::{HeaderName, HeaderValue};
use muster_api::AlertStanding;
use muster_topics::{
    Millis, V1,
    alert::{Alert, AlertState, Metric, Severity},
    diagnostic::Diagnostic,
    name::Name,
};

use super::store::alert::CONSOLE;

/// The header of API responses that reports problems of the console.
pub(super) const HEADER: HeaderName = HeaderName::from_static(muster_api::NOTICE_HEADER);

/// A kind of problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum NoticeKind {
    /// The disk of the console's folder is full.
    DiskFull,
    /// The time-series store cannot be used.
    SeriesLeftOut,
    /// The console's clock is wrong.
    Clock,
    /// The external signer does not sign.
    SignerAway,
    /// There is no good backup that is new enough.
    BackupOld,
    /// Connected hosts have not stored their documents for long.
    HostsBehind,
    /// Something stored is not what was stored.
    StoreDamaged,
    /// Artifacts, configs or manifests are missing, or not what was stored.
    ContentDamaged,
    /// Several hosts have one hostname.
    HostnameShared,
    /// The file system of the console's folder is read-only.
    StoreUnwritable,
}

/// All kinds.
const ALL: [NoticeKind; 10] = [
    NoticeKind::DiskFull,
    NoticeKind::SeriesLeftOut,
    NoticeKind::Clock,
    NoticeKind::SignerAway,
    NoticeKind::BackupOld,
    NoticeKind::HostsBehind,
    NoticeKind::StoreDamaged,
    NoticeKind::ContentDamaged,
    NoticeKind::HostnameShared,
    NoticeKind::StoreUnwritable,
];

impl NoticeKind {
    fn name(self) -> &'static str {
        match self {
            Self::DiskFull => "console-disk-full",
            Self::SeriesLeftOut => "console-series",
            Self::Clock => "console-clock",
            Self::SignerAway => "console-signer",
            Self::BackupOld => "console-backup-old",
            Self::HostsBehind => "console-hosts-behind",
            Self::StoreDamaged => "console-store-damaged",
            Self::ContentDamaged => "console-content-damaged",
            Self::HostnameShared => "console-hostname-shared",
            Self::StoreUnwritable => "console-store-unwritable",
        }
    }

    fn severity(self) -> Severity {
        match self {
            // Nothing is lost, and commands for the name are refused.
            Self::HostnameShared => Severity::Warning,
            _ => Severity::Critical,
        }
    }

    fn metric(self) -> Metric {
        match self {
            Self::DiskFull => Metric::StoreUsed,
            Self::SeriesLeftOut
            | Self::SignerAway
            | Self::BackupOld
            | Self::HostsBehind
            | Self::StoreDamaged
            | Self::ContentDamaged
            | Self::HostnameShared
            | Self::StoreUnwritable => Metric::Other,
            Self::Clock => Metric::ClockOff,
        }
    }
}

/// The present problems.
#[derive(Debug, Default)]
pub(super) struct Notices(Mutex<BTreeMap<NoticeKind, (Millis, Diagnostic)>>);

impl Notices {
    fn locked(&self) -> MutexGuard<'_, BTreeMap<NoticeKind, (Millis, Diagnostic)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reports a problem; returns whether it is new.
    pub(super) fn raise(&self, trouble: NoticeKind, message: Diagnostic, now: Millis) -> bool {
        let mut all = self.locked();
        let is_new = !all.contains_key(&trouble);
        let since_ms = all.get(&trouble).map_or(now, |(since_ms, _)| *since_ms);
        all.insert(trouble, (since_ms, message));
        is_new
    }

    /// Clears a problem; returns whether it was present.
    pub(super) fn clear(&self, trouble: NoticeKind) -> bool {
        self.locked().remove(&trouble).is_some()
    }

    /// Returns the problems that everybody is told of, as texts: warnings are listed with the alerts alone.
    pub(super) fn texts(&self) -> Vec<String> {
        let all = self.locked();
        let told = all.iter().filter(|(trouble, _)| trouble.severity() == Severity::Critical);
        told.map(|(_, (_, message))| format!("{message:#}")).collect()
    }

    /// Returns these as a header, if there are any.
    pub(super) fn header(&self) -> Option<HeaderValue> {
        let texts = self.texts();
        let text: String = texts.join(" | ").chars().map(|c| if c.is_ascii_graphic() { c } else { ' ' }).collect();
        if texts.is_empty() { None } else { HeaderValue::from_str(&text).ok() }
    }

    /// Returns all problems as alerts.
    pub(super) fn alerts(&self, now: Millis) -> Vec<muster_api::Alert> {
        let all = self.locked();
        all.iter().filter_map(|(trouble, (since_ms, message))| alert(*trouble, *since_ms, message, now)).collect()
    }
}

/// Whether an alert of this rule is one of these, which are in no store.
pub(super) fn is_one(rule: &Name) -> bool {
    ALL.iter().any(|trouble| trouble.name() == rule.as_str())
}

fn alert(trouble: NoticeKind, since_ms: Millis, message: &Diagnostic, now: Millis) -> Option<muster_api::Alert> {
    // The names are constants; a test checks that they parse.
    let name: Name = trouble.name().parse().ok()?;
    Some(muster_api::Alert {
        host: CONSOLE,
        hostname: "console".to_owned(),
        standing: AlertStanding::Raised,
        ended_ms: None,
        received_ms: since_ms,
        silence: None,
        alert: Alert {
            v: V1,
            epoch: 0,
            seq: 0,
            id: name.clone(),
            rule: name,
            severity: trouble.severity(),
            unit: None,
            mount: None,
            metric: trouble.metric(),
            value: 1.0,
            threshold: 0.0,
            clear: 0.0,
            since_ms,
            at_ms: now.max(since_ms),
            state: AlertState::Raised,
            diagnostic: message.clone(),
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notice_is_a_console_alert_until_cleared() {
        let notices = Notices::default();
        assert_eq!((notices.alerts(1), notices.header()), (vec![], None));
        for trouble in ALL {
            assert!(notices.raise(trouble, Diagnostic::new("the disk is full\nand …"), 5));
            assert!(!notices.raise(trouble, Diagnostic::new("the disk is full\nand …"), 7), "it was said before");
        }
        let alerts = notices.alerts(9);
        assert_eq!(alerts.len(), ALL.len());
        assert!(alerts.iter().all(|one| (one.alert.since_ms, one.alert.at_ms) == (5, 9) && is_one(&one.alert.rule)));
        assert!(notices.header().unwrap().to_str().unwrap().starts_with("the disk is full and"));
        assert!(notices.clear(NoticeKind::DiskFull) && !notices.clear(NoticeKind::DiskFull));
        // The shared hostname is no fault of the console's.
        assert_eq!(notices.texts().len(), ALL.len() - 2);
    }
}
