//! Options of `muster unit create yuno` for a change of revision: how it is done, when it counts as failed, and how
//! that is shown.

use clap::Args;
use muster_api::Unit;
use muster_topics::{
    Millis,
    common::{CommonSpec, ProgramSpec},
    unit::{Replace, Rollback, YunoSpec},
};

use super::print;

/// How a change of revision of a yuno takes place, and what becomes of one that does not work.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Replacement and rollback")]
#[group(id = "replacement")]
pub struct RollbackOptions {
    /// Order of a change of revision: stop-first or start-first
    ///
    /// With start-first both run until the new one is up, with the same endpoints.
    #[arg(long, value_name = "ORDER", default_value = "stop-first", value_parser = parse_replace)]
    update_order: Replace,
    #[command(flatten)]
    trial: OnFailure,
}

/// What becomes of a change of revision that does not work.
#[derive(Args, Clone, Copy, Debug)]
#[group(id = "trial")]
pub struct OnFailure {
    /// Do not roll back from a revision that fails
    #[arg(long)]
    no_rollback: bool,
    /// Verify a revision after it has been up for so long
    ///
    /// [default: 10s]
    #[arg(long, value_name = "TIME")]
    verify_after: Option<humantime::Duration>,
    /// Roll back if another revision is not up within this time
    ///
    /// [default: as long as it may take to start, and some more]
    #[arg(long, value_name = "TIME")]
    healthy_within: Option<humantime::Duration>,
}

impl RollbackOptions {
    /// Puts the options into a spec.
    pub fn put_into(&self, spec: &mut YunoSpec) {
        spec.replace = self.update_order;
        self.trial.put_into(&mut spec.common, &mut spec.program);
    }
}

impl OnFailure {
    /// Puts the options into a spec.
    pub fn put_into(&self, common: &mut CommonSpec, program: &mut ProgramSpec) {
        common.rollback = if self.no_rollback { Rollback::Never } else { Rollback::Auto };
        common.verify_after_ms = self.verify_after.map(millis);
        program.healthy_within_ms = self.healthy_within.map(millis);
    }
}

/// A duration in milliseconds.
pub(super) fn millis(time: humantime::Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

fn parse_replace(text: &str) -> Result<Replace, String> {
    match text.replace('_', "-").as_str() {
        "stop-first" => Ok(Replace::StopFirst),
        "start-first" => Ok(Replace::StartFirst),
        _ => Err("use stop-first or start-first".to_owned()),
    }
}

/// For a list: a mark of a state that must not be overlooked.
#[must_use]
pub fn mark(unit: &Unit) -> &'static str {
    let comes = unit.observed.beside.as_ref().is_some_and(|beside| !beside.leaving);
    match (unit.observed.rolled_back(), unit.observed.trial.is_on()) {
        _ if comes => ", being replaced",
        (Some(_), _) => ", rolled back",
        (None, true) => ", on trial",
        (None, false) => "",
    }
}

/// For one unit: how it is replaced, if not in the default way, and what runs beside it meanwhile.
#[must_use]
pub fn replacement(unit: &Unit, now_ms: Millis) -> [(&'static str, String); 2] {
    let how = if unit.desired.spec.yuno().is_none_or(|yuno| yuno.replace.is_stop_first()) { "" } else { "start first" };
    let beside = unit.observed.beside.as_ref();
    let told = beside.map(|beside| format!("{beside} (there since {})", print::age(beside.since_ms, now_ms)));
    [("replaced", how.to_owned()), ("beside it", told.unwrap_or_default())]
}

/// For one unit: what was rolled back and why, its last lines, and what helps.
#[must_use]
pub fn facts(unit: &Unit, now_ms: Millis) -> [(&'static str, String); 4] {
    let revision = unit.observed.trial.verified().map(|revision| format!("revision {}", revision.short()));
    let verified = ("verified", revision.unwrap_or_default());
    let Some(back) = unit.observed.rolled_back() else {
        let trial =
            if unit.observed.trial.is_on() { "until it is verified; if it fails it is rolled back" } else { "" };
        return [verified, ("on trial", trial.to_owned()), ("its last lines", String::new()), ("hint", String::new())];
    };
    let name = format!("{}:{}", unit.host, unit.unit);
    // Only for yunos a newer version is looked up.
    let another = if unit.desired.spec.yuno().is_some() {
        format!("`muster unit upgrade {name}`")
    } else {
        "`muster unit apply`".to_owned()
    };
    [
        verified,
        ("rolled back", format!("{:#} ({})", back.diagnostic("it "), print::age(back.at_ms, now_ms))),
        ("its last lines", back.last_lines.clone().unwrap_or_default().trim_end().to_owned()),
        (
            "hint",
            if unit.desired.spec.program().is_some() {
                format!(
                    "it stays so until something else is asked of it; `muster unit run {name}` tries that revision once \
                     more, {another} another"
                )
            } else {
                format!("it stays so until something else is asked of it, with {another}")
            },
        ),
    ]
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use muster_topics::{
        diagnostic::Diagnostic,
        name::Digest,
        unit::{ArtifactRef, Phase, RolledBack, TrialReport},
    };

    use super::*;
    use crate::upgrade::tests::unit;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        rollback: RollbackOptions,
    }

    #[track_caller]
    fn check(line: &str, rollback: Rollback, verify_after_ms: Option<u64>, healthy_within_ms: Option<u64>) {
        let line = Line::try_parse_from(["create"].into_iter().chain(line.split_whitespace())).unwrap();
        let artifact = ArtifactRef {
            sha256: Digest::of(b"a"),
            size_bytes: 1,
            role: "a".parse().unwrap(),
            version: "1".parse().unwrap(),
            manifest: None,
        };
        let mut spec = YunoSpec::new(artifact);
        line.rollback.put_into(&mut spec);
        assert_eq!((spec.common.rollback, spec.common.verify_after_ms), (rollback, verify_after_ms));
        assert_eq!(spec.program.healthy_within_ms, healthy_within_ms);
    }

    #[test]
    fn rollback_options_make_a_spec() {
        check("", Rollback::Auto, None, None);
        check("--no-rollback", Rollback::Never, None, None);
        check("--verify-after 2s --healthy-within 1m", Rollback::Auto, Some(2_000), Some(60_000));
    }

    #[test]
    fn change_waits_until_verified_or_rolled_back() {
        use crate::wait::{WaitGoal, WaitProgress, progress};
        let mut unit = unit("1.0.0");
        unit.observed.revision = Some(unit.desired.revision.clone());
        (unit.observed.state, unit.observed.generation, unit.observed.trial) = (Phase::Running.into(), 1, on_trial());
        assert_eq!(progress(&unit, 1, WaitGoal::Reached), WaitProgress::Reached);
        assert_eq!(progress(&unit, 1, WaitGoal::Proven), WaitProgress::Going);
        unit.observed.trial = TrialReport::Unverified;
        assert_eq!(progress(&unit, 1, WaitGoal::Proven), WaitProgress::Reached);
        unit.observed.trial = TrialReport::RolledBack(rolled_back());
        unit.observed.revision = Some(rolled_back().to);
        for goal in [WaitGoal::Reached, WaitGoal::Proven] {
            let WaitProgress::Stuck { why, .. } = progress(&unit, 1, goal) else { panic!("it rolled back") };
            assert!(why.cause.contains("it rolled back to revision") && why.cause.contains("exit code 1"), "{why}");
        }
        assert_eq!(progress(&unit, 2, WaitGoal::Proven), WaitProgress::Going, "that was another generation");
        // The desired revision is temporarily not available; the running one continues.
        unit.desired.generation = 2;
        unit.observed.trial = TrialReport::Verified(rolled_back().to);
        unit.observed.error = Some(Diagnostic::new("nobody answers"));
        let WaitProgress::Stuck { why, .. } = progress(&unit, 2, WaitGoal::Reached) else { panic!("nobody hears why") };
        assert_eq!(why, Diagnostic::new("it does not exist yet: nobody answers"));
        assert_eq!(progress(&unit, 2, WaitGoal::Seen), WaitProgress::Going);
        unit.observed.error = None;
        assert_eq!(progress(&unit, 2, WaitGoal::Reached), WaitProgress::Going);
    }

    fn on_trial() -> TrialReport {
        TrialReport::OnTrial { verified: Digest::of(b"good") }
    }

    fn rolled_back() -> RolledBack {
        RolledBack {
            generation: 1,
            revision: Digest::of(b"bad"),
            to: Digest::of(b"good"),
            error: Diagnostic::new("exit code 1"),
            at_ms: 0,
            last_lines: Some("no such table\n".to_owned()),
        }
    }

    #[test]
    fn rollback_is_reported_with_reason_and_hint() {
        let mut unit = unit("1.0.0");
        assert_eq!(mark(&unit), "");
        unit.observed.trial = on_trial();
        assert_eq!(mark(&unit), ", on trial");
        unit.observed.trial = TrialReport::Unverified;
        unit.observed.trial = TrialReport::RolledBack(rolled_back());
        assert_eq!(mark(&unit), ", rolled back");
        let [_, (_, what), (_, lines), (_, hint)] = facts(&unit, 3_000);
        let RolledBack { revision, to, .. } = rolled_back();
        assert!(what.contains(&format!("to revision {} from {}: exit code 1", to.short(), revision.short())), "{what}");
        assert_eq!(lines, "no such table");
        assert!(hint.contains("muster unit run"));
    }
}
