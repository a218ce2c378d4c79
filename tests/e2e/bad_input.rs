//! What an operator or a host may get wrong: one clear answer, nothing half made, and the right thing works afterwards.
//!
//! What comes from outside and is bad, and which tests have it (of the files in this folder, unless a path is given):
//!
//! | what comes | tests |
//! |---|---|
//! | a command that is unsigned, or signed with another key, or with another's under this one's name | `forged::unsigned_or_altered_command…`; `topics/src/envelope.rs` |
//! | one of a key or certificate that is revoked | `revoke`, `doors::revoked_client_is_disconnected…`, `delivery::stores::revocation_survives_a_lost…`; `broker/tests/broker/revoked.rs`, `broker/tests/configs` (Mosquitto) |
//! | altered after it was signed, or signed as something else | `forged::unsigned_or_altered_command…`, `wire::repeated_command_is_answered…`; `topics/src/envelope.rs` |
//! | keys that stand twice | `forged::unsigned_or_altered_command…`, `invalid_documents_and_artifacts…` below; `topics/src/canonical.rs` |
//! | another host's | `forged::signed_invalid_command_is…`; `src/rules/authorise/tests.rs` |
//! | another fleet's | `forged::command_of_another_fleet…`, `wire::client_without_certificate_is…`, `wrong_token_is_refused` below |
//! | expired | `forged::signed_invalid_command_is…`, `delivery::scenarios::gone_without_a_word…` over each broker, `delivery::clocks` |
//! | not yet valid | `forged::signed_invalid_command_is…`; `src/rules/time.rs` |
//! | repeated at once | `delivery::scenarios::delivered_often…` over each broker, `wire::repeated_command_is_answered…` |
//! | repeated after a restart, or after the store was lost | `forged::replayed_command_is_not…` |
//! | a host that publishes as another | `forged::host_cannot_publish_for…`; each broker in `broker/tests/configs`, `broker/tests/broker/identity.rs` |
//! | a forged last will | `forged::host_cannot_publish_for…`; `broker/tests/broker/identity.rs`, `src/agent/bus_tests.rs`, `src/rules/presence.rs` |
//! | a forged outcome, or a second one | `forged::host_cannot_publish_for…`; `src/console/ingest/tests.rs` |
//! | 256 MB in one message | `forged::oversized_messages_stop_nobody`; `broker/tests/broker/hostile.rs` |
//! | a batch of measurements that unpacks to a thousand times its size | `forged::oversized_messages_stop_nobody`; `topics/src/metric.rs` |
//! | nesting of a million | `forged::oversized_messages_stop_nobody`, `forged::unsigned_or_altered_command…` (signed) |
//! | a flood of commands | `queue` (good ones), `forged::a_flood…` (bad ones) |
//! | standard output without an end | `exec::endless_output_is_ended…`, `exec_options::output_limit_applies_per…` |
//! | a fork bomb | `exec_options::fork_bomb_ends_with…`; `src/shim/tests/shim/cgroups.rs` |
//! | `..` and symbolic links in names and paths | `forged::path_traversal_is_refused`, `forged::unsigned_or_altered_command…` (signed); `topics/src/name.rs`, `topics/src/topic.rs` |
//! | a disk without room | `a_full_disk…` below, `delivery::disks` |

use std::{fs, io::Write, path::Path, process::Command};

use muster_topics::{join::JoinToken, name::Digest};
use nix::sys::statvfs::statvfs;
use serde_json::Value;

use crate::{
    fleet::{Fleet, Home, Running, eventually, file, muster},
    roles::Roles,
};

/// An agent of its own that joins with a token, and the home that it lives in.
struct Joining {
    // Ended before its home goes away.
    agent: Running,
    _home: Home,
}

fn join(token: &str) -> Joining {
    let home = Home::new();
    let data = home.path().join("agent");
    let agent = Running::start(home.command().args(["agent", "--data-dir", data.to_str().unwrap(), "--join", token]));
    Joining { agent, _home: home }
}

#[test]
fn wrong_token_is_refused() {
    let fleet = Fleet::start();
    let create = || fleet.json(&["token", "create"])["token"].as_str().unwrap().to_owned();
    let (revoked, good) = (create(), create());
    // Newest first.
    fleet.ok(&["token", "revoke", fleet.json(&["token", "ls"])[1]["id"].as_str().unwrap()]);
    let cut = &good[..good.len() - 9];
    let parsed: JoinToken = good.parse().unwrap();
    let guessed = JoinToken { secret: "0".repeat(64), ..parsed.clone() }.to_string();
    let astray = JoinToken { authority: Digest::of(b"another fleet"), ..parsed }.to_string();
    for (token, code, words) in [
        ("nonsense", 2, "token"),
        (cut, 2, "token"),
        (revoked.as_str(), 3, "revoked"),
        (guessed.as_str(), 3, "hint:"),
        (astray.as_str(), 1, "not of the fleet"),
    ] {
        join(token).agent.wait_for_end(code, words);
    }
    assert_eq!(fleet.json(&["host", "ls"]).as_array().unwrap().len(), 1);

    // None of this has used up the good one.
    let joined = join(&good);
    eventually("two hosts", || {
        let hosts = fleet.json(&["host", "ls"]);
        let online = hosts.as_array().unwrap().iter().filter(|host| host["presence"]["state"] == "online").count();
        if online == 2 { Ok(()) } else { Err(format!("{hosts} {}", joined.agent.printed())) }
    });
}

#[test]
fn invalid_documents_and_artifacts_are_refused() {
    let fleet = Fleet::start();
    for (content, words) in [("{", "line 1"), (r#"{"a":1,"a":2}"#, "twice"), ("[99999999999999999999]", "2^53")] {
        let path = file(&fleet.home, "config.json", content);
        fleet.muster(&["config", "create", "a.b", "1", &path]).expect_code(2).expect_stderr(words);
    }
    assert_eq!(fleet.json(&["config", "ls"]), serde_json::json!([]));
    let path = file(&fleet.home, "config.json", "{}");
    fleet.ok(&["config", "create", "a.b", "1", &path]);
    fleet.ok(&["config", "create", "a.b", "1", &path]);
    fs::write(&path, r#"{"other": true}"#).unwrap();
    fleet.muster(&["config", "create", "a.b", "1", &path]).expect_code(3).expect_stderr("2");
    fleet.muster(&["config", "create", "A.b", "1", &path]).expect_code(2);

    fleet
        .muster(&["artifact", "create", "/no/such/file", "--role", "a", "--version", "1"])
        .expect_stderr("/no/such/file");
    let one = file(&fleet.home, "one", "#!/bin/sh\n");
    fleet.ok(&["artifact", "create", &one, "--role", "a", "--version", "1"]);
    fleet.ok(&["artifact", "create", &one, "--role", "a", "--version", "1"]);
    let two = file(&fleet.home, "two", "#!/bin/sh\necho\n");
    fleet.muster(&["artifact", "create", &two, "--role", "a", "--version", "1"]).expect_code(3).expect_stderr("hint:");
    assert_eq!(fleet.json(&["artifact", "ls"]).as_array().unwrap().len(), 1);
}

#[test]
fn unknown_names_are_reported() {
    let fleet = Fleet::start();
    fleet.muster(&["yuno", "create", "default/x", "--artifact", "nothing"]).expect_stderr("nothing");
    fleet.muster(&["yuno", "run", "default/x"]).expect_stderr("default/x");
    fleet.muster(&["yuno", "logs", "default/x"]).expect_stderr("default/x");
    fleet.muster(&["unit", "show", "not a name"]).expect_code(2);
    fleet.muster(&["command", "show", "0"]).expect_code(3).expect_stderr("there is no command 0");
    fleet.muster(&["no-such-verb"]).expect_code(2);
}

#[test]
fn missing_console_is_reported() {
    let home = Home::new();
    home.muster(&["host", "ls"]).expect_stderr("hint:");
    let mut fleet = Fleet::start();
    fleet.stop();
    fleet.muster(&["host", "ls"]).expect_code(4).expect_stderr("hint:");
}

#[test]
fn interrupted_download_is_retried() {
    let fleet = Fleet::start();
    let program = file(&fleet.home, "server", &format!("#!/bin/sh\nexec sleep 1000\n{}", "#".repeat(100_000)));
    fleet.ok(&["artifact", "create", &program, "--role", "server", "--version", "1"]);
    let sha256 = fleet.json(&["artifact", "ls"])[0]["sha256"].as_str().unwrap().to_owned();
    let stored = fleet.data().join("console/artifacts").join(sha256);
    let whole = fs::read(&stored).unwrap();
    let replace = |content: &[u8]| fs::remove_file(&stored).and_then(|()| fs::write(&stored, content)).unwrap();
    replace(&whole[..whole.len() / 2]);
    fleet.ok(&["yuno", "create", "default/till", "--artifact", "server", "--run", "--no-wait"]);
    let unit = fleet.unit("default/till", |unit| unit["observed"]["error"].is_object());
    assert!(unit["observed"]["error"]["message"].as_str().unwrap().contains("server@1"), "{unit}");
    assert!(!fleet.data().join("agent/artifacts").join(stored.file_name().unwrap()).exists());

    replace(&whole);
    let unit = fleet.unit_in_phase("default/till", "running");
    assert!(unit["observed"]["error"].is_null(), "{unit}");
}

/// An agent whose whole folder is a small disk of its own, in a mount namespace of its own.
struct SmallDisk {
    agent: Running,
}

impl SmallDisk {
    fn start(roles: &Roles, size: &str) -> Self {
        let config = roles.agent_config();
        let script = r#"mkdir -p "$1" && mount -t tmpfs -o "size=$2,mode=0700" muster-test "$1" && exec "$3" agent --config "$4" --join "$5""#;
        let mut command = Command::new("unshare");
        roles.home.dress(&mut command);
        command.args(["--mount", "--propagation", "private", "sh", "-ec", script, "sh"]);
        command.arg(roles.home.path().join("agent")).args([size, muster(), &config, &roles.token()]);
        Self { agent: Running::start(&mut command) }
    }

    /// The disk, as the agent sees it.
    fn path(&self, home: &Home, name: &str) -> std::path::PathBuf {
        let inside = home.path().join("agent").join(name);
        Path::new(&format!("/proc/{}/root", self.agent.pid())).join(inside.strip_prefix("/").unwrap())
    }

    /// Takes all but some bytes of it.
    fn fill(&self, home: &Home, left: u64) {
        let free = statvfs(&self.path(home, "")).unwrap();
        let free = free.blocks_available() * free.fragment_size();
        let mut ballast = fs::File::create(self.path(home, "ballast")).unwrap();
        let block = [0; 4096];
        for _ in 0..free.saturating_sub(left) / 4096 {
            // The agent may take the last of it first.
            if ballast.write_all(&block).is_err() {
                break;
            }
        }
    }

    fn make_room(&self, home: &Home) {
        fs::remove_file(self.path(home, "ballast")).unwrap();
    }
}

#[test]
fn full_disk_is_reported_and_heals_with_room() {
    let roles = Roles::start();
    let disk = SmallDisk::start(&roles, "16m");
    roles.wait_for_host("online");
    let program = file(&roles.home, "server", &format!("#!/bin/sh\nexec sleep 1000\n{}", "#".repeat(3_000_000)));
    roles.ok(&["artifact", "create", &program, "--role", "server", "--version", "1"]);
    disk.fill(&roles.home, 1_000_000);
    roles.ok(&["yuno", "create", "default/till", "--artifact", "server", "--run", "--no-wait"]);
    let shown = eventually("what is wrong", || {
        let run = roles.home.muster(&["-o", "json", "unit", "show", "default/till"]);
        // The console may not have heard of it yet.
        let shown: Value = serde_json::from_str(&run.stdout).map_err(|_| run.stderr)?;
        if shown["observed"]["error"].is_object() { Ok(shown) } else { Err(shown.to_string()) }
    });
    let error = &shown["observed"]["error"];
    let (message, hint) = (error["message"].as_str().unwrap(), error["hint"].as_str().unwrap());
    assert!(message.contains("server@1") && hint.starts_with("free space"), "{error}");
    // Nothing of it is left to keep the disk full, so the agent goes on.
    roles.ok(&["exec", "--", "true"]);
    disk.make_room(&roles.home);
    roles.ok(&["yuno", "run", "default/till"]);
    let shown = roles.json(&["unit", "show", "default/till"]);
    assert_eq!(
        (&shown["observed"]["phase"], &shown["observed"]["error"]),
        (&"running".into(), &Value::Null),
        "{shown}"
    );

    // With no room at all a command is journalled in what the agent keeps in reserve; it is run once.
    let mark = roles.home.path().join("runs");
    disk.fill(&roles.home, 0);
    roles.ok(&["exec", "--no-wait", "--", "sh", "-c", &format!("echo run >> {}", mark.display())]);
    eventually("the agent's own words", || {
        let printed = disk.agent.printed();
        if printed.contains("full") { Ok(()) } else { Err(printed) }
    });
    disk.make_room(&roles.home);
    eventually("the outcome", || {
        let commands = roles.json(&["command", "ls"]);
        if commands[0]["hosts"][0]["state"] == "done" { Ok(()) } else { Err(commands.to_string()) }
    });
    assert_eq!(fs::read_to_string(&mark).unwrap(), "run\n");

    // Nor does it keep an agent from its end.
    disk.fill(&roles.home, 0);
    let (code, printed) = disk.agent.stop();
    assert_eq!(code, 0, "{printed}");
}
