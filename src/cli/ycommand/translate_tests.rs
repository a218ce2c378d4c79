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
        "config": { "id": "till.main", "version": "1", "sha256": digest },
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
        observed: Observed { phase, ..Observed::absent(0) },
        hold: None,
        pins: muster_topics::snapshot::Pins::default(),
        stats: None,
        at_ms: 0,
    }
}

fn config(version: &str, added_ms: i64) -> Config {
    let sha256 = Digest::of(version.as_bytes());
    Config { id: "till.main".parse().unwrap(), version: version.parse().unwrap(), sha256, added_ms, content: None }
}

fn world() -> World {
    World {
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
fn check(text: &str, world: &World, expected: &[&str]) {
    let lines = translate(&Line::parse(text).unwrap(), world).unwrap_or_else(|failure| panic!("{text}: {failure:?}"));
    let lines: Vec<String> = lines.iter().map(|words| words.join(" ").replace(&format!("{HOST}:"), "")).collect();
    assert_eq!(lines, expected, "{text}");
}

#[test]
fn the_recipes() {
    let (empty, there) = (World { units: Vec::new(), ..world() }, world());
    check("install-binary content64=$$(bin/My.Role)", &empty, &["artifact add bin/My.Role --role my --version abcdef"]);
    check(
        "update-config id=till.main version=2 zcontent=$$(till_main.json)",
        &empty,
        &["config add till.main 2 till_main.json"],
    );
    check(
        "create-yuno realm_id=a yuno_role=till yuno_name=main",
        &empty,
        &["yuno create a/till-main --artifact till --config till.main --label yuno_name=main"],
    );
    check("enable-yuno id=a/till-main", &there, &["unit unhold a/till-main"]);
    check("run-yuno id=a/till-main", &there, &["yuno run a/till-main"]);
    check("list-yunos", &there, &["yuno ls"]);
    check("kill-yuno yuno_role=till", &there, &["yuno stop a/till-main a/till-second b/till-main --yes"]);
    check(
        "update-binary id=till content64=$$(till)",
        &there,
        &[
            "artifact add till --role till --version abcdef",
            "yuno upgrade a/till-main --artifact till@abcdef --force --yes",
        ],
    );
    check("list-binaries", &there, &["artifact ls"]);
    check("run-yuno", &there, &["yuno run a/till-main a/till-second b/till-main"]);
    check(
        "command-yuno id=a/till-second service=__yuno__ command=view-config",
        &there,
        &["yuno config a/till-second --effective"],
    );
    check("disable-yuno id=till-second", &there, &["unit hold a/till-second"]);
    check("delete-yuno id=a/till-main", &there, &["yuno rm a/till-main --yes"]);
}

#[test]
fn what_runs_next_reads_the_config_that_was_added_last() {
    let newer = World { configs: vec![config("2", 20), config("1", 10)], ..world() };
    check(
        "run-yuno realm_id=a",
        &newer,
        &[
            "yuno upgrade a/till-main --artifact till@1.0 --force --yes --config till.main@2",
            "yuno run a/till-main a/till-second",
        ],
    );
}

#[test]
fn selectors() {
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
    check("list-yunos id=x yuno_name=main", &there, &["yuno ls --select id=\"*/x\" and label.yuno_name=\"main\""]);
    check(
        "command-yuno id=b/till-main command=level service=scale level=3",
        &there,
        &["yuno command b/till-main level level=3 service=scale"],
    );
}

#[test]
fn what_is_disabled_is_run_only_by_its_id() {
    let mut held = world();
    held.units[1].hold = Some(Hold::new(HoldReason::Operator, 0));
    check("run-yuno realm_id=a", &held, &["yuno run a/till-main"]);
    check("run-yuno id=a/till-second play=1", &held, &["yuno run a/till-second --play"]);
}

#[test]
fn what_cannot_be_done_is_told() {
    for (text, kind, words) in [
        ("kill-yunos", Kind::Usage, "kill-yuno"),
        ("kill-yuno id=a/x", Kind::Failed, "id=a/x"),
        ("kill-yuno app=1", Kind::Usage, "app"),
        ("list-binaries id=x", Kind::Usage, "nothing"),
        ("install-binary content64=abc", Kind::Usage, "$$(FILE)"),
        ("update-config id=a.b zcontent=$$(f)", Kind::Usage, "version"),
        ("create-yuno realm_id=a yuno_role=till", Kind::Usage, "yuno_name"),
        ("set-tag id=a/till-main", Kind::Usage, "tag"),
        ("command-yuno id=a/till-main", Kind::Usage, "command"),
    ] {
        let failure = translate(&Line::parse(text).unwrap(), &world()).unwrap_err();
        let told = format!("{} {}", failure.message.unwrap(), failure.hint.unwrap_or_default());
        assert!(failure.kind == kind && told.contains(words), "{text}: {told}");
    }
}

#[test]
fn a_manifest_says_what_a_binary_is() {
    let manifest = (Some("scale".to_owned()), Some("2.1".to_owned()));
    let world = World { file: Some(FileFacts { manifest, ..FileFacts::default() }), ..world() };
    check("install-binary content64=$$(f)", &world, &["artifact add f --role scale --version 2.1"]);
}
