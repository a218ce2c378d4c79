//! Tests of the attributes of a process, as the kernel reports them.

use std::{collections::BTreeMap, os::unix::fs::MetadataExt};

use muster_shim::{
    Launch, ProcessAttributes, ProcessExit, ResolvedUser, StartReport, StartStep,
    attributes::{LimitResource, ResourceLimit},
};

use crate::rig::{Rig, command};

const NOBODY: u32 = 65_534;
const EPERM: i32 = 1;
const EINVAL: i32 = 22;
/// CAP_CHOWN, CAP_NET_BIND_SERVICE.
const CHOWN: u8 = 0;
const NET_BIND_SERVICE: u8 = 10;

fn is_root() -> bool {
    std::fs::metadata("/proc/self").unwrap().uid() == 0
}

fn nobody() -> Option<ResolvedUser> {
    Some(ResolvedUser { uid: NOBODY, gid: NOBODY, groups: vec![4242, 4243] })
}

fn with(attributes: ProcessAttributes, script: &str) -> Launch {
    Launch { attributes, ..command(script) }
}

/// Runs a script to its end, and gives what it wrote.
#[track_caller]
fn output(launch: &Launch) -> String {
    let mut rig = Rig::new();
    rig.launch(launch);
    let exit = rig.exit();
    assert_eq!((exit, rig.text("stderr").as_str()), (ProcessExit::Code(0), ""));
    rig.text("stdout")
}

#[track_caller]
fn refused(launch: &Launch) -> StartReport {
    let mut rig = Rig::new();
    let report = rig.start(launch, false);
    assert_eq!(rig.event(), None, "nothing runs");
    report
}

fn failed(step: StartStep, which: impl Into<Option<u8>>, errno: i32) -> StartReport {
    StartReport::Failed { step, which: which.into(), errno }
}

/// The capability sets and `NoNewPrivs` of a program, by their names in `/proc/<pid>/status`.
#[track_caller]
fn status(launch: Launch) -> BTreeMap<String, u64> {
    let text = output(&Launch { argv: vec!["/bin/cat".into(), "/proc/self/status".into()], ..launch });
    let fields = text.lines().filter_map(|line| line.split_once(":\t"));
    fields.filter_map(|(name, value)| Some((name.to_owned(), u64::from_str_radix(value, 16).ok()?))).collect()
}

#[test]
fn umask_and_nice_are_applied() {
    let attributes = ProcessAttributes { umask: Some(0o027), nice: Some(19), ..ProcessAttributes::default() };
    assert_eq!(output(&with(attributes, "umask; nice")), "0027\n19\n");
    // What is not said stays as this process has it.
    let own = std::process::Command::new("nice").output().unwrap().stdout;
    let own = String::from_utf8(own).unwrap();
    assert_eq!(output(&with(ProcessAttributes::default(), "umask; nice")), format!("0022\n{own}"));
}

#[test]
fn limits_hold_and_cannot_be_raised() {
    let rlimits = vec![
        ResourceLimit { resource: LimitResource::Nofile, soft: Some(40), hard: Some(50) },
        ResourceLimit { resource: LimitResource::Core, soft: Some(0), hard: Some(0) },
        ResourceLimit { resource: LimitResource::Stack, soft: Some(1_048_576), hard: None },
        ResourceLimit { resource: LimitResource::Fsize, soft: Some(512), hard: Some(512) },
    ];
    // Who may raise limits could raise these, too.
    let capabilities = is_root().then(Vec::new);
    let attributes = ProcessAttributes { rlimits, capabilities, ..ProcessAttributes::default() };
    let script = "ulimit -Sn; ulimit -Hn; ulimit -c; ulimit -s; ulimit -Hs
                  ulimit -n 51 2>/dev/null || echo no
                  head -c 600 /dev/zero > $FOLDER/big 2>/dev/null; wc -c < $FOLDER/big";
    let mut rig = Rig::new();
    let launch = crate::rig::with_folder(&rig, Launch { user: None, ..with(attributes, script) });
    rig.launch(&launch);
    assert_eq!(rig.exit(), ProcessExit::Code(0));
    assert_eq!(rig.text("stdout"), "40\n50\n0\n1024\nunlimited\nno\n512\n");
}

#[test]
fn impossible_limit_is_named() {
    let good = ResourceLimit { resource: LimitResource::Nofile, soft: Some(10), hard: Some(10) };
    let bad = ResourceLimit { resource: LimitResource::Cpu, soft: Some(2), hard: Some(1) };
    let attributes = ProcessAttributes { rlimits: vec![good, bad], ..ProcessAttributes::default() };
    assert_eq!(refused(&with(attributes, "echo runs")), failed(StartStep::Rlimit, 1, EINVAL));
    if !is_root() {
        let attributes = ProcessAttributes { nice: Some(-5), ..ProcessAttributes::default() };
        assert_eq!(refused(&with(attributes, "echo runs")), failed(StartStep::Nice, None, 13));
    }
}

#[test]
fn groups_and_user_and_no_way_back() {
    if !is_root() {
        return;
    }
    let launch = Launch { user: nobody(), ..with(ProcessAttributes::default(), "") };
    let status = status(launch);
    assert_eq!([status["CapPrm"], status["CapEff"], status["NoNewPrivs"]], [0, 0, 0]);
    assert_ne!(status["CapBnd"], 0, "unless it is asked for");
    let launch = Launch { user: nobody(), ..with(ProcessAttributes::default(), "id -u; id -G") };
    assert_eq!(output(&launch), "65534\n65534 4242 4243\n");
}

#[test]
fn only_capabilities_of_the_list_are_left_for_root_and_for_others() {
    if !is_root() {
        return;
    }
    for user in [None, nobody()] {
        for list in [vec![], vec![NET_BIND_SERVICE], vec![CHOWN, NET_BIND_SERVICE]] {
            let wanted = list.iter().fold(0, |bits, number| bits | 1_u64 << number);
            let attributes = ProcessAttributes { capabilities: Some(list), ..ProcessAttributes::default() };
            let status = status(Launch { user: user.clone(), ..with(attributes, "") });
            let sets = ["CapPrm", "CapEff", "CapInh", "CapBnd", "CapAmb"].map(|name| status[name]);
            assert_eq!(sets, [wanted; 5], "{user:?}");
        }
    }
    // They are really gone, and really there.
    let chown = |list: &[u8]| {
        let attributes = ProcessAttributes { capabilities: Some(list.to_vec()), ..ProcessAttributes::default() };
        let script = "touch $FOLDER/file; chown 1 $FOLDER/file 2>/dev/null && echo given";
        let mut rig = Rig::new();
        let launch = crate::rig::with_folder(&rig, with(attributes, script));
        rig.launch(&launch);
        rig.exit()
    };
    assert_eq!((chown(&[]), chown(&[CHOWN])), (ProcessExit::Code(1), ProcessExit::Code(0)));
}

#[test]
fn impossible_capability_is_named() {
    let keep = |number| ProcessAttributes { capabilities: Some(vec![CHOWN, number]), ..ProcessAttributes::default() };
    assert_eq!(refused(&with(keep(64), "echo runs")), failed(StartStep::Capabilities, 64, EINVAL));
    // No kernel knows this one.
    let number = if is_root() { 63 } else { CHOWN };
    assert_eq!(refused(&with(keep(63), "echo runs")), failed(StartStep::Capabilities, number, EPERM));
}

#[test]
fn executed_program_gains_no_capability() {
    let attributes = ProcessAttributes { no_new_privs: true, ..ProcessAttributes::default() };
    assert_eq!(status(with(attributes.clone(), ""))["NoNewPrivs"], 1);
    if !is_root() {
        return;
    }
    // A copy of a program that becomes root for whoever executes it, and here does not.
    let mut rig = Rig::new();
    std::fs::set_permissions(rig.folder.path(), std::os::unix::fs::PermissionsExt::from_mode(0o711)).unwrap();
    let tool = rig.path("id");
    std::fs::copy("/usr/bin/id", &tool).unwrap();
    std::fs::set_permissions(&tool, std::os::unix::fs::PermissionsExt::from_mode(0o4755)).unwrap();
    for (attributes, uid) in [(ProcessAttributes::default(), "0\n"), (attributes, "65534\n")] {
        let argv = vec![tool.to_str().unwrap().into(), "-u".into()];
        rig.launch(&Launch { argv, user: nobody(), ..with(attributes, "") });
        assert_eq!(rig.exit(), ProcessExit::Code(0));
        assert_eq!(rig.text("stdout"), uid);
    }
}

#[test]
fn launch_of_older_agent_is_accepted() {
    let launch = serde_json::to_value(command("exit 0")).unwrap();
    let mut old = launch.clone();
    old.as_object_mut().unwrap().remove("attributes");
    let old: Launch = serde_json::from_value(old).unwrap();
    assert_eq!(serde_json::to_value(old).unwrap(), launch);
}
