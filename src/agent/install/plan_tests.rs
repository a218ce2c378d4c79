use std::process::Command;

use super::{super::InstallPaths, *};
use crate::join_args::JoinArgs;

fn host() -> InstallHost {
    InstallHost {
        root: "/".into(),
        prefix: "/usr/local".into(),
        is_root: true,
        has_systemd: true,
        program: "/home/anna/muster".into(),
        ..InstallHost::default()
    }
}

fn place() -> InstallPaths {
    InstallPaths { prefix: "/usr/local".into(), root: "/".into(), dry_run: false }
}

fn wanted(now: bool) -> InstallArgs {
    InstallArgs { place: place(), given: JoinArgs::default(), join: None, now }
}

/// A host on which all has been done.
fn done() -> InstallHost {
    InstallHost {
        has_program: true,
        config: Some(CONFIG.to_owned()),
        unit: Some(UNIT.replace(PACKAGED_PROGRAM, "/usr/local/bin/muster")),
        is_enabled: true,
        ..host()
    }
}

#[track_caller]
fn check(steps: Result<Vec<InstallStep>, Failure>, expected: &[&str]) {
    let steps: Vec<String> = steps.unwrap().iter().map(ToString::to_string).collect();
    assert_eq!(steps, expected);
}

#[test]
fn install_plans_only_missing_steps() {
    check(
        install(&wanted(true), &host()),
        &[
            "copy /home/anna/muster to /usr/local/bin/muster",
            "write /etc/muster/agent.toml",
            "write /etc/systemd/system/muster-agent.service",
            "systemctl daemon-reload",
            "systemctl enable muster-agent",
            "systemctl restart muster-agent",
        ],
    );
    check(install(&wanted(false), &done()), &["copy /home/anna/muster to /usr/local/bin/muster"]);
    let own = InstallHost { program: "/usr/local/bin/muster".into(), ..done() };
    check(install(&wanted(false), &own), &[]);
    check(install(&wanted(true), &own), &["systemctl restart muster-agent"]);
}

#[test]
fn an_image_needs_neither_root_nor_systemd() {
    let host = InstallHost { root: "/mnt".into(), is_root: false, has_systemd: false, ..host() };
    check(
        install(&wanted(false), &host),
        &[
            "copy /home/anna/muster to /mnt/usr/local/bin/muster",
            "write /mnt/etc/muster/agent.toml",
            "write /mnt/etc/systemd/system/muster-agent.service",
            "link /mnt/etc/systemd/system/multi-user.target.wants/muster-agent.service to ../muster-agent.service",
        ],
    );
    assert_eq!(install(&wanted(true), &host).unwrap_err().kind, FailureKind::Usage);
}

#[test]
fn uninstalling_leaves_configuration_and_data() {
    check(
        uninstall(&UninstallArgs { place: place() }, &done()),
        &[
            "systemctl disable --now muster-agent",
            "remove /etc/systemd/system/muster-agent.service",
            "systemctl daemon-reload",
            "remove /usr/local/bin/muster",
        ],
    );
    check(uninstall(&UninstallArgs { place: place() }, &host()), &[]);
}

#[test]
fn obstacles_are_reported_with_hint() {
    for (host, words) in [
        (InstallHost { is_root: false, ..host() }, "root"),
        (InstallHost { has_systemd: false, ..host() }, "systemd"),
        (InstallHost { is_packaged: true, ..host() }, "package"),
        (InstallHost { prefix: "relative".into(), ..host() }, "--prefix"),
        (InstallHost { prefix: "/a b".into(), ..host() }, "--prefix"),
        (InstallHost { prefix: "/a%i".into(), ..host() }, "--prefix"),
    ] {
        let failure = install(&wanted(true), &host).unwrap_err();
        assert!(failure.cause().unwrap().contains(words) && failure.given_hint().is_some(), "{words}");
    }
}

#[test]
fn token_is_added_to_existing_configuration() {
    for (before, after) in [
        ("", "join = \"T\"\n"),
        ("a = 1\n", "a = 1\njoin = \"T\"\n"),
        ("join = \"old\"\na = 1\n", "a = 1\njoin = \"T\"\n"),
        (
            "a = 1\n\n# the host's\n[labels]\njoin = \"x\"\n",
            "a = 1\njoin = \"T\"\n\n# the host's\n[labels]\njoin = \"x\"\n",
        ),
        ("# nothing yet\n[labels]\n", "join = \"T\"\n# nothing yet\n[labels]\n"),
    ] {
        assert_eq!(with_token(before, Some("T")), after);
        assert!(has_token(after) && with_token(after, None) == after);
        assert_eq!(with_token(after, Some("T")), after, "the same again changes nothing");
    }
    assert!(!has_token(CONFIG));
    let config = with_token(CONFIG, Some("T"));
    assert!(toml::from_str::<toml::Table>(&config).unwrap().contains_key("join"), "{config}");
}

#[test]
fn first_configuration_is_valid() {
    let config: crate::config::Config = toml::from_str(CONFIG).unwrap();
    assert_eq!(config, crate::config::Config::default());
}

/// What systemd itself says of the unit file. It wants to find the program.
#[test]
fn systemd_accepts_the_unit_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("muster-agent.service");
    std::fs::write(&path, UNIT.replace(PACKAGED_PROGRAM, "/bin/true")).unwrap();
    let output = Command::new("systemd-analyze").args(["verify", "--man=no"]).arg(&path).output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    let about_it: Vec<&str> = told.lines().filter(|line| line.contains("muster-agent")).collect();
    assert!(output.status.success() && about_it.is_empty(), "{told}");
}

/// What yunos depend on; and nothing that they would inherit.
#[test]
fn unit_file_kills_only_the_agent() {
    for line in [
        "Type=notify",
        "KillMode=process",
        "OOMPolicy=continue",
        "Delegate=yes",
        "TasksMax=infinity",
        "Restart=always",
        "WatchdogSec=180",
        "ExecReload=/bin/sh -c 'kill -HUP \"$$1\"' sh $MAINPID",
    ] {
        assert!(UNIT.lines().any(|found| found == line), "{line}");
    }
    for word in
        ["Protect", "Private", "NoNewPrivileges", "Restrict", "Capabilit", "SystemCall", "ReadOnly", "User=", "UMask"]
    {
        assert!(!UNIT.lines().any(|line| line.starts_with(word)), "{word}");
    }
}
