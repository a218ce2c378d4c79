//! Tests of desired state beside the spec, and of verbs that change a part of it.

use super::*;

#[test]
fn only_stopped_and_held_unit_is_removed() {
    let operator = Some(HoldReason::Operator);
    for phase in [Phase::Absent, Phase::Installing, Phase::Stopped, Phase::Backoff, Phase::Failed] {
        check_held((Run::Stopped, phase, operator), &rm(), "forget");
        check_held((Run::Stopped, phase, None), &rm(), "Conflict");
        check_held((Run::Stopped, phase, Some(HoldReason::Broken)), &rm(), "Conflict");
    }
    for phase in [Phase::Starting, Phase::Running, Phase::Stopping] {
        check_held((Run::Stopped, phase, operator), &rm(), "Conflict");
    }
    check_held((Run::Running, Phase::Backoff, operator), &rm(), "Conflict");
    let desired = desired(Run::Stopped, |_| ());
    let process = InstanceReport { pid: Some(1), ..InstanceReport::default() };
    let failed = Observed { state: ObservedState::Failed(process), ..Observed::absent(0) };
    for (observed, words) in [(failed, "wait"), (seen(Phase::Stopped), "`muster unit retire")] {
        let refusal = edit(&unit(), Some(CurrentUnit { desired: &desired, hold: None, observed: &observed }), &rm());
        let hint = refusal.as_ref().unwrap_err().diagnostic.hint.as_deref().unwrap();
        assert!(hint.starts_with(words), "{refusal:?}");
    }
}

#[test]
fn transient_unit_is_removed_after_its_run() {
    for (run, phase, outcome) in [
        (Run::Running, Phase::Stopped, "forget"),
        (Run::Running, Phase::Failed, "forget"),
        (Run::Stopped, Phase::Stopped, "forget"),
        (Run::Running, Phase::Absent, "Conflict"),
        (Run::Running, Phase::Running, "Conflict"),
        (Run::Stopped, Phase::Stopping, "Conflict"),
    ] {
        let (desired, observed) = (desired(run, |spec| spec.transient = true), seen(phase));
        let current = CurrentUnit { desired: &desired, hold: None, observed: &observed };
        assert_eq!(word(&edit(&unit(), Some(current), &rm())), outcome, "{run:?} {phase:?}");
    }
}

#[test]
fn operators_hold_lasts_until_unhold() {
    let (operator, broken) = (Some(HoldReason::Operator), Some(HoldReason::Broken));
    for (run, phase) in [(Run::Running, Phase::Running), (Run::Stopped, Phase::Stopped), (Run::Running, Phase::Failed)]
    {
        let name = format!("{run:?}").to_lowercase();
        check_held((run, phase, None), &held(None), &format!("{name} 0 held"));
        check_held((run, phase, broken), &held(None), &format!("{name} 0 held"));
        check_held((run, phase, operator), &held(None), "keep");
        check_held((run, phase, operator), &held(Some("why")), &format!("{name} 0 held"));
        check_held((run, phase, None), &unheld(), "keep");
        check_held((run, phase, operator), &unheld(), &format!("{name} 0 unheld"));
        check_held((run, phase, broken), &unheld(), &format!("{name} 0 unheld"));
        check_held((run, phase, None), &retired(), "stopped 0 held");
    }
    check_held((Run::Running, Phase::Running, operator), &retired(), "stopped 0");
    check_held((Run::Stopped, Phase::Stopped, operator), &retired(), "keep");
    // What else is desired meanwhile changes, and the hold stays.
    check_held((Run::Stopped, Phase::Stopped, operator), &run(), "running 0");
    check_held((Run::Running, Phase::Stopped, operator), &run(), "keep");
    check_held((Run::Running, Phase::Running, operator), &stop(), "stopped 0");
    check_held((Run::Running, Phase::Running, operator), &restarted(), "running 1");
    check_held(
        (Run::Running, Phase::Running, operator),
        &applied(yuno(|spec| spec.program.grace_ms = 1), None),
        "running 0",
    );
}

#[test]
fn multiline_note_is_refused() {
    let now = (Run::Running, Phase::Running, None);
    check_held(now, &held(Some(&"\u{fc}".repeat(NOTE_MAX_CHARS))), "running 0 held");
    check_held(now, &held(Some(&"x".repeat(NOTE_MAX_CHARS + 1))), "Invalid");
    check_held(now, &held(Some("two\nlines")), "Invalid");
}

#[test]
fn labels_change_in_place() {
    let before = desired(Run::Running, |spec| {
        spec.common.labels =
            [("tier", "gold"), ("site", "north")].map(|(k, v)| (k.parse().unwrap(), v.parse().unwrap())).into();
    });
    let observed = seen(Phase::Running);
    let edited = |labels: &[(&str, Option<&str>)]| {
        let labels = labels.iter().map(|(k, v)| (k.parse().unwrap(), v.map(|v| v.parse().unwrap()))).collect();
        let current = CurrentUnit { desired: &before, hold: None, observed: &observed };
        edit(&unit(), Some(current), &Verb::UnitLabel { unit: unit(), labels })
    };
    assert_eq!(edited(&[("tier", Some("gold")), ("colour", None)]), Ok(UnitEdit::Keep));
    let Ok(UnitEdit::Set { spec, revision, .. }) = edited(&[("tier", Some("tin")), ("site", None), ("a", Some("b"))])
    else {
        panic!("should be a change")
    };
    let Spec::Yuno(spec) = &*spec else { panic!("a yuno") };
    let labels: Vec<_> = spec.common.labels.iter().map(|(name, value)| format!("{name}={value}")).collect();
    assert_eq!((labels, revision), (vec!["a=b".to_owned(), "tier=tin".to_owned()], before.revision.clone()));
    let many: Vec<String> = (0..40).map(|number| format!("l{number}")).collect();
    let many: Vec<_> = many.iter().map(|name| (name.as_str(), Some("x"))).collect();
    assert_eq!(word(&edited(&many)), "Invalid");
}

#[test]
fn upgrade_changes_only_content() {
    let config = |version: &str| ConfigRef {
        id: "hello.main".parse().unwrap(),
        version: version.parse().unwrap(),
        sha256: Digest::of(version.as_bytes()),
    };
    let before = desired(Run::Running, |spec| {
        spec.configs = vec![config("1")];
        spec.program.env.insert("SECRET".to_owned(), "x".to_owned());
    });
    let Spec::Yuno(spec) = &*before.spec else { panic!("a yuno") };
    let newer = ArtifactRef { sha256: Digest::of(b"new"), version: "2".parse().unwrap(), ..spec.artifact.clone() };
    let observed = seen(Phase::Running);
    let upgraded = |from: &Digest, artifact: Option<&ArtifactRef>, configs: Vec<ConfigRef>| {
        let verb = Verb::UnitUpgrade {
            unit: unit(),
            from: from.clone(),
            artifact: artifact.cloned(),
            configs,
            secrets: None,
            config_templates: None,
        };
        edit(&unit(), Some(CurrentUnit { desired: &before, hold: None, observed: &observed }), &verb)
    };
    let right = before.revision.clone();
    let Ok(UnitEdit::Set { spec: after, revision, .. }) = upgraded(&right, Some(&newer), vec![config("2")]) else {
        panic!("should be a change")
    };
    let Spec::Yuno(after) = &*after else { panic!("a yuno") };
    assert_eq!(after.configs.iter().map(|config| config.version.as_str()).collect::<Vec<_>>(), ["2"]);
    assert_eq!((&after.artifact, &after.program.env), (&newer, &spec.program.env));
    assert_ne!(revision, right);
    // What is so already is kept, whatever was planned from.
    let other = Digest::of(b"other");
    assert_eq!(upgraded(&other, Some(&spec.artifact), vec![config("1")]), Ok(UnitEdit::Keep));
    assert_eq!(word(&upgraded(&other, Some(&newer), vec![])), "Conflict");
    let unknown = ConfigRef { id: "other".parse().unwrap(), ..config("2") };
    assert_eq!(word(&upgraded(&right, None, vec![unknown])), "Conflict");
}

#[test]
fn freeze_is_desired_state() {
    let (freeze, thaw) = (Verb::UnitFreeze { unit: unit() }, Verb::UnitThaw { unit: unit() });
    check((Run::Running, Phase::Running, false), &freeze, "running 0 frozen");
    check((Run::Running, Phase::Running, false), &thaw, "keep");
    check((Run::Stopped, Phase::Stopped, false), &freeze, "Conflict");
    check((Run::Stopped, Phase::Stopped, false), &thaw, "keep");
    let before = Desired { frozen: true, ..desired(Run::Running, |_| ()) };
    let observed = seen(Phase::Running);
    for (verb, outcome) in [
        (freeze, "keep"),
        (thaw, "running 0"),
        (run(), "keep"),
        (held(None), "running 0 frozen held"),
        (applied(yuno(|spec| spec.program.grace_ms = 1), None), "running 0 frozen"),
        (restarted(), "running 1"),
        (stop(), "stopped 0"),
        (retired(), "stopped 0 held"),
        (applied(yuno(|_| ()), Some(Run::Stopped)), "stopped 0"),
    ] {
        let current = CurrentUnit { desired: &before, hold: None, observed: &observed };
        assert_eq!(word(&edit(&unit(), Some(current), &verb)), outcome, "{verb:?}");
    }
}
