use clap::Parser;
use muster_topics::{
    name::{Digest, HostId},
    unit::{Desired, Hold, HoldReason, Observed},
};
use serde_json::json;

use super::*;

const HOST: &str = "00000000-0000-0000-0000-000000000001";

/// A yuno of the role `till`, with the config `till.main@1`.
fn unit(name: &str, run: Run, labels: serde_json::Value) -> Unit {
    let digest = Digest::of(b"1");
    let spec = json!({
        "kind": "yuno",
        "artifact": { "sha256": digest, "size_bytes": 1, "role": "till", "version": "1.0" },
        "configs": [{ "id": "till.main", "version": "1", "sha256": digest }],
        "labels": labels,
    });
    let phase = if run == Run::Stopped { Phase::Stopped } else { Phase::Running };
    Unit {
        host: HostId(uuid::Uuid::from_u128(1)),
        hostname: "shop".to_owned(),
        unit: name.parse().unwrap(),
        desired: Desired {
            generation: 1,
            revision: digest,
            spec: serde_json::from_value(spec).unwrap(),
            run,
            frozen: false,
        },
        observed: Observed { state: phase.into(), ..Observed::absent(0) },
        hold: None,
        owner: None,
        pins: muster_topics::snapshot::Pins::default(),
        stats: None,
        at_ms: 0,
    }
}

fn config(version: &str, created_ms: i64) -> Config {
    let sha256 = Digest::of(version.as_bytes());
    Config { id: "till.main".parse().unwrap(), version: version.parse().unwrap(), sha256, created_ms, content: None }
}

fn world() -> TranslationContext {
    let there = |list: &[&str]| list.iter().map(|one| (*one).to_owned()).collect();
    TranslationContext {
        realms: there(&["a", "b", "default"]),
        artifacts: there(&["till@1.0"]),
        active: vec![("shop".to_owned(), "before".to_owned())],
        units: vec![
            unit("a/till-main", Run::Stopped, json!({ "yuno_name": "main" })),
            unit("a/till-second", Run::Running, json!({ "yuno_name": "second", "tag": "old" })),
            unit("b/till-main", Run::Running, json!({ "yuno_name": "main" })),
        ],
        configs: vec![config("1", 10)],
        file: Some(FileFacts { name: "My.Role".to_owned(), hash: "abcdef".to_owned(), ..FileFacts::default() }),
    }
}

/// Units of the host are written without it here.
#[track_caller]
fn check(text: &str, world: &TranslationContext, expected: &[&str]) {
    let lines =
        translate(&YunetaLine::parse(text).unwrap(), world).unwrap_or_else(|failure| panic!("{text}: {failure:?}"));
    let lines: Vec<String> = lines.iter().map(|words| words.join(" ").replace(&format!("{HOST}:"), "")).collect();
    assert_eq!(lines, expected, "{text}");
}

#[test]
fn recipes_are_translated() {
    let (empty, there) = (TranslationContext { units: Vec::new(), ..world() }, world());
    check(
        "install-binary content64=$$(bin/My.Role)",
        &empty,
        &["artifact create bin/My.Role --role my --version abcdef"],
    );
    check(
        "update-config id=till.main version=2 zcontent=$$(till_main.json)",
        &empty,
        &["config create till.main 2 till_main.json"],
    );
    check(
        "create-yuno realm_id=a yuno_role=till yuno_name=main",
        &TranslationContext { units: Vec::new(), ..world() },
        &["unit create yuno a/till-main --artifact till --config till.main --label yuno_name=main"],
    );
    check("enable-yuno id=a/till-main", &there, &["unit unhold a/till-main"]);
    check("run-yuno id=a/till-main", &there, &["unit run a/till-main"]);
    check("list-yunos", &there, &["unit ls --kind yuno"]);
    check("kill-yuno yuno_role=till", &there, &["unit stop a/till-main a/till-second b/till-main --yes"]);
    check(
        "update-binary id=till content64=$$(till)",
        &there,
        &[
            "artifact create till --role till --version abcdef",
            "unit upgrade a/till-main --artifact till@abcdef --force --yes",
        ],
    );
    check("list-binaries", &there, &["artifact ls"]);
    check("run-yuno", &there, &["unit run a/till-main a/till-second b/till-main"]);
    check(
        "command-yuno id=a/till-second service=__yuno__ command=view-config",
        &there,
        &["unit config a/till-second --effective"],
    );
    check("disable-yuno id=till-second", &there, &["unit hold a/till-second"]);
    check("delete-yuno id=a/till-main", &there, &["unit rm a/till-main --yes"]);
}

#[test]
fn next_run_uses_the_latest_config() {
    let newer = TranslationContext { configs: vec![config("2", 20), config("1", 10)], ..world() };
    check(
        "run-yuno realm_id=a",
        &newer,
        &[
            "unit upgrade a/till-main --artifact till@1.0 --force --yes --config till.main@2",
            "unit run a/till-main a/till-second",
        ],
    );
}

#[test]
fn selectors_are_translated() {
    let there = world();
    for (selector, expected) in [
        ("id=b/till-main", "b/till-main"),
        ("id=till-main", "a/till-main b/till-main"),
        ("realm_id=b", "b/till-main"),
        ("yuno_name=main realm_id=a", "a/till-main"),
        ("yuno_tag=old", "a/till-second"),
        ("yuno_release=1.0 yuno_name=second", "a/till-second"),
        ("", "a/till-main a/till-second b/till-main"),
    ] {
        check(&format!("play-yuno {selector}"), &there, &[&format!("yuno play {expected}")]);
    }
    check(
        "list-yunos id=x yuno_name=main",
        &there,
        &["unit ls --kind yuno --select id=\"*/x\" and label.yuno_name=\"main\""],
    );
    check(
        "command-yuno id=b/till-main command=level service=scale level=3",
        &there,
        &["yuno command b/till-main level level=3 service=scale"],
    );
}

#[test]
fn disabled_yuno_runs_only_by_id() {
    let mut held = world();
    held.units[1].hold = Some(Hold::new(HoldReason::Operator, 0));
    check("run-yuno realm_id=a", &held, &["unit run a/till-main"]);
    check("run-yuno id=a/till-second play=1", &held, &["unit run a/till-second --play"]);
}

#[test]
fn impossible_verbs_are_refused_with_reason() {
    for (text, kind, words) in [
        ("kill-yunos", FailureKind::Usage, "kill-yuno"),
        ("kill-yuno id=a/x", FailureKind::NotFound, "id=a/x"),
        ("kill-yuno apps=1", FailureKind::Usage, "app"),
        ("kill-yuno signal2kill=nine", FailureKind::Usage, "signal2kill"),
        ("list-realms id=x", FailureKind::Usage, "nothing"),
        ("running-bin", FailureKind::Usage, "3 yunos are selected"),
        ("stats-agent stats=__reset__", FailureKind::Usage, "never set back"),
        ("update-realm id=a", FailureKind::Usage, "bind_ip"),
        ("create-realm", FailureKind::Usage, "id="),
        ("list-binaries id=x", FailureKind::Usage, "nothing"),
        ("install-binary content64=abc", FailureKind::Usage, "$$(FILE)"),
        ("update-config id=a.b zcontent=$$(f)", FailureKind::Usage, "version"),
        ("create-yuno realm_id=a yuno_role=till", FailureKind::Usage, "yuno_name"),
        ("set-tag id=a/till-main", FailureKind::Usage, "tag"),
        ("command-yuno id=a/till-main", FailureKind::Usage, "command"),
    ] {
        let failure = translate(&YunetaLine::parse(text).unwrap(), &world()).unwrap_err();
        let told = failure.lines();
        assert!(failure.kind == kind && told.contains(words), "{text}: {told}");
    }
}

#[test]
fn a_manifest_says_what_a_binary_is() {
    let manifest = (Some("scale".to_owned()), Some("2.1".to_owned()));
    let world = TranslationContext { file: Some(FileFacts { manifest, ..FileFacts::default() }), ..world() };
    check("install-binary content64=$$(f)", &world, &["artifact create f --role scale --version 2.1"]);
}

#[test]
fn yuno_is_made_only_of_what_is_there_and_all_that_is_missing_is_named() {
    let message = |text: &str| {
        let failure = translate(&YunetaLine::parse(text).unwrap(), &world()).unwrap_err();
        assert!(failure.given_hint().is_none(), "{failure:?}");
        failure.cause().unwrap().to_owned()
    };
    assert_eq!(message("create-yuno id=x"), "create-yuno: expected yuno_role=… and yuno_name=…");
    assert_eq!(
        message("create-yuno realm_id=a yuno_role=till yuno_name=other"),
        "cannot create a/till-other: there is no config till.other (`update-config`)"
    );
    assert_eq!(
        message("create-yuno realm_id=c.d yuno_role=scale yuno_name=main role_version=2"),
        "cannot create c-d/scale-main: there is no realm c-d (`create-realm`), no binary scale@2 (`install-binary`), no \
         config scale.main (`update-config`)"
    );
    assert_eq!(
        message("create-yuno id=a/x yuno_role=till yuno_name=main role_version=1.0 name_version=7"),
        "cannot create a/x: there is no config till.main@7 (`update-config`)"
    );
    check(
        "create-yuno id=a/x yuno_role=till yuno_name=main role_version=1.0 name_version=1 yuno_tag=util",
        &world(),
        &["unit create yuno a/x --artifact till@1.0 --config till.main@1 --label yuno_name=main --label tag=util"],
    );
}

#[test]
fn tagged_yuno_is_deleted_only_with_force() {
    let failure = translate(&YunetaLine::parse("delete-yuno realm_id=a").unwrap(), &world()).unwrap_err();
    assert_eq!(failure.cause().unwrap(), "tagged yunos are not deleted: a/till-second (old)");
    check("delete-yuno realm_id=a force=1", &world(), &["unit rm a/till-main a/till-second --yes"]);
    check("delete-yuno realm_id=b", &world(), &["unit rm b/till-main --yes"]);
}

#[test]
fn yunos_are_killed_by_the_signal_that_is_named_and_utilities_are_left_out() {
    for (signal, shown) in [("9", "SIGKILL"), ("SIGINT", "SIGINT"), ("hup", "SIGHUP")] {
        let line = format!("kill-yuno realm_id=b signal2kill={signal}");
        check(&line, &world(), &[&format!("unit stop b/till-main --yes --signal {shown}")]);
    }
    check("kill-yuno realm_id=b force=1", &world(), &["unit stop b/till-main --yes --signal SIGKILL"]);
    let mut there = world();
    there.units[1] = unit("a/till-second", Run::Running, json!({ "tag": "util" }));
    check("kill-yuno app=1", &there, &["unit stop a/till-main b/till-main --yes"]);
    check("kill-yuno app=0 realm_id=a", &there, &["unit stop a/till-main a/till-second --yes"]);
    check("list-yunos app=1", &there, &["unit ls --kind yuno --select not label.tag=\"util\""]);
}

#[test]
fn snaps_and_realms() {
    let there = world();
    check("shoot-snap name=before description=x host=shop", &there, &["snapshot create before --host shop"]);
    check("list-snaps host=*", &there, &["snapshot ls --all"]);
    check("activate-snap name=before", &there, &["snapshot activate before"]);
    check("deactivate-snap", &there, &["snapshot deactivate before --host shop"]);
    check("deactivate-snap name=x", &there, &["snapshot deactivate x"]);
    let none = TranslationContext { active: Vec::new(), ..world() };
    assert!(translate(&YunetaLine::parse("deactivate-snap").unwrap(), &none).unwrap_err().lines().contains("no snap"));
    check("create-realm realm_name=shop realm_role=till realm_env=prod", &there, &["realm create shop-till-prod"]);
    check(
        "update-realm id=shop.till.prod bind_ip=10.0.0.1 realm_disabled=0 parent_realm_id=a",
        &there,
        &["realm set shop-till-prod --bind 10.0.0.1 --parent a --enabled yes"],
    );
    check("list-public-services realm_id=a", &there, &["realm endpoints a"]);
}

#[test]
fn agents_command_is_the_verb_that_it_names() {
    let inner = |text: &str| unwrap(YunetaLine::parse(text).unwrap());
    let line = inner("command-agent service=agent command=kill-yuno id=b/till-main force=1").unwrap();
    assert_eq!(line, YunetaLine::parse("kill-yuno id=b/till-main force=1").unwrap());
    assert_eq!(inner("ping").unwrap().verb, "ping");
    assert!(
        inner("command-agent command=nothing").unwrap_err().cause().unwrap().to_owned().contains("there is no verb")
    );
    for text in ["command-agent", "command-agent command=command-agent"] {
        assert!(inner(text).is_err(), "{text}");
    }
}

#[test]
fn traces_and_configs_of_yunos() {
    check("trace-on-yuno id=b/till-main level=3", &world(), &["yuno command b/till-main trace-on level=3"]);
    check("trace-off-yuno id=b/till-main", &world(), &["yuno command b/till-main trace-off"]);
    check("view-yuno-config", &world(), &["config show till.main@1"]);
    check("stats-agent host=shop", &world(), &["metric query {__name__=~\"muster_agent_.+\",hostname=\"shop\"}"]);
    check("find-new-yunos id=b/till-main force=1", &world(), &["unit upgrade b/till-main --dry-run --force"]);
}

/// The verbs of Yuneta's agent, as its users know them.
const OF_YUNETA: &str = "help ping node-uuid authzs list-realms check-realm create-realm update-realm delete-realm \
    list-public-services update-public-service delete-public-service install-binary update-binary delete-binary \
    list-binaries list-binaries-instances create-config update-config delete-config edit-config view-config list-configs \
    list-configs-instances find-new-yunos create-yuno delete-yuno enable-yuno disable-yuno set-tag set-multiple run-yuno \
    kill-yuno set-graceful-kill set-quick-kill play-yuno pause-yuno command-yuno stats-yuno authzs-yuno command-agent \
    stats-agent trace-on-yuno trace-off-yuno top list-yunos list-yunos-instances view-yuno-config edit-yuno-config \
    list-consoles open-console close-console write-tty read-json read-file read-binary-file dir-logs dir-local-data \
    dir-yuneta dir-realms dir-repos dir-store running-keys running-bin replicate-node upgrade-node replicate-binaries \
    cert-sync-now cert-sync-status check-json shoot-snap list-snaps activate-snap deactivate-snap";

/// What makes a line of each verb that needs more than its name.
const SAMPLES: [(&str, &str); 22] = [
    ("activate-snap", "name=before"),
    ("check-realm", "id=a"),
    ("command-agent", "command=ping"),
    ("command-yuno", "command=level x=1"),
    ("create-config", "id=till.main version=2 zcontent=$$(f)"),
    ("create-realm", "realm_name=shop realm_env=prod bind_ip=10.0.0.1 realm_disabled=1"),
    ("create-yuno", "realm_id=a yuno_role=till yuno_name=main host=shop"),
    ("delete-binary", "id=till version=1.0 force=1"),
    ("delete-config", "id=till.main version=1"),
    ("delete-realm", "id=a"),
    ("delete-yuno", "force=1"),
    ("install-binary", "content64=$$(f)"),
    ("kill-yuno", "signal2kill=9"),
    ("running-bin", "id=b/till-main"),
    ("running-keys", "id=b/till-main"),
    ("set-tag", "tag=util"),
    ("shoot-snap", "name=before"),
    ("trace-on-yuno", "level=1"),
    ("update-binary", "id=till content64=$$(f)"),
    ("update-config", "id=till.main version=2 zcontent=$$(f)"),
    ("update-realm", "id=a bind_ip=10.0.0.1"),
    ("view-config", "id=till.main"),
];

#[test]
fn every_verb_of_yuneta_is_done_or_answered() {
    let names: Vec<&str> = VERBS.iter().map(|verb| verb.name).collect();
    assert!(names.is_sorted(), "{names:?}");
    let mut wanted: Vec<&str> = OF_YUNETA.split_ascii_whitespace().collect();
    wanted.sort_unstable();
    assert_eq!(names, wanted);
    for verb in VERBS {
        let YunetaVerb { name, says, .. } = verb;
        assert!(!says.is_empty() && says.lines().count() == 1 && says.chars().count() < 260, "{name}: {says}");
        let sample = SAMPLES.iter().find(|(of, _)| of == name).map_or("", |(_, sample)| sample);
        let line = YunetaLine::parse(&format!("{name} {sample}")).unwrap();
        match verb.does {
            Translation::Nothing => {
                let line = YunetaLine::parse(&format!("{name} whatever=1")).unwrap();
                let failure = translate(&unwrap(line).unwrap(), &world()).unwrap_err();
                assert_eq!(failure.cause().unwrap(), format!("{name}: not here: {says}"));
                assert!(failure.given_hint().is_none() && failure.kind == FailureKind::Usage);
            }
            Translation::Help | Translation::Other => assert!(unwrap(line).is_ok(), "{name}"),
            Translation::Lines(_) => {
                let lines = translate(&line, &world()).unwrap_or_else(|failure| panic!("{name}: {failure:?}"));
                assert!(!lines.is_empty(), "{name}");
                for words in lines {
                    // As muster itself would take it.
                    let own = super::super::MusterLineArgs::try_parse_from(&words);
                    assert!(own.is_ok(), "{name}: {words:?}: {:?}", own.err().map(|error| error.to_string()));
                }
            }
        }
    }
}
