//! Tests of the parser with files of all kinds of hosts; the rest uses the cgroups of this host.

use super::*;

const V1: &str = "\
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
37 31 0:34 / /sys/fs/cgroup/freezer rw,relatime - cgroup cgroup rw,freezer
40 31 0:37 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,name=systemd
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
";
const V1_OWN: &str = "\
8:memory:/system.slice/muster.service
6:freezer:/
4:cpu,cpuacct:/system.slice/muster.service
1:name=systemd:/system.slice/muster.service
0::/system.slice/muster.service
";
const V2: &str = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n";

fn none() -> CgroupTree {
    CgroupTree { name: "muster-a".into(), unified: None, memory: None, cpu: None, pids: None, freezer: None }
}

fn unified(base: &str, is_own: bool) -> CgroupTree {
    CgroupTree { unified: Some(UnifiedHierarchy { base: base.into(), is_own }), ..none() }
}

#[track_caller]
fn check(mounts: &str, own: &str, wanted: CgroupTree) {
    assert_eq!(CgroupTree::parse("a", mounts, own), wanted, "{mounts}{own}");
}

#[test]
fn cgroup_mounts_are_parsed() {
    check("", "", none());
    check("nonsense\n1 2 3\n - cgroup2\n", "nonsense\n0:\n", none());
    check(V2, "0::/system.slice/muster.service\n", unified("/sys/fs/cgroup/system.slice", false));
    check(V2, "0::/init.scope\n", unified("/sys/fs/cgroup", false));
    check(V2, "0::/\n", unified("/sys/fs/cgroup", true));
    // In a namespace, or with a part of it mounted.
    check(V2, "0::/../other\n", none());
    check(&V2.replace("0:26 / ", "0:26 /box "), "0::/box/a\n", unified("/sys/fs/cgroup", false));
    check(&V2.replace("0:26 / ", "0:26 /box "), "0::/box\n", unified("/sys/fs/cgroup", true));
    check(&V2.replace("0:26 / ", "0:26 /box "), "0::/boxes/a\n", none());
    check(&V2.replace("/sys/fs", "/a\\040b\\134"), "0::/x/y\n", unified("/a b\\/cgroup/x", false));
    let folder = |text: &str| Some(PathBuf::from(text));
    let both = CgroupTree {
        memory: folder("/sys/fs/cgroup/memory/system.slice/muster.service"),
        cpu: folder("/sys/fs/cgroup/cpu,cpuacct/system.slice/muster.service"),
        freezer: folder("/sys/fs/cgroup/freezer"),
        ..unified("/sys/fs/cgroup/unified/system.slice", false)
    };
    check(V1, V1_OWN, both);
}

#[test]
fn limits_are_formatted_for_the_kernel() {
    let limits: Limits = serde_json::from_str(r#"{"memory_bytes": 1048576, "cpu": 1.5, "pids": 7}"#).unwrap();
    let texts = |entries: fn(LimitSetting) -> Vec<CgroupFile>| {
        let all = settings(&limits).into_iter().flat_map(entries);
        all.map(|(file, text, optional)| format!("{file}={text}{}", if optional { "?" } else { "" }))
            .collect::<Vec<_>>()
    };
    assert_eq!(
        texts(LimitSetting::v2),
        ["memory.max=1048576", "memory.swap.max=0?", "cpu.max=150000 100000", "pids.max=7"]
    );
    let v1 = [
        "memory.limit_in_bytes=1048576",
        "memory.memsw.limit_in_bytes=1048576?",
        "cpu.cfs_period_us=100000",
        "cpu.cfs_quota_us=150000",
        "pids.max=7",
    ];
    assert_eq!(texts(LimitSetting::v1), v1);
    assert_eq!(settings(&Limits::default()), []);
}

#[test]
fn limits_of_foreign_cgroups_go_to_their_controllers() {
    let limits: Limits = serde_json::from_str(r#"{"memory_bytes": 4096, "cpu": 1, "pids": 7}"#).unwrap();
    let of = |own: &str| {
        let all = limit_files_of(&limits, own).into_iter();
        all.map(|file| format!("{}{}", if file.unified { "2:" } else { "1:" }, file.name)).collect::<Vec<_>>()
    };
    assert_eq!(of("0::/a\n"), ["2:memory.max", "2:memory.swap.max", "2:cpu.max", "2:pids.max"]);
    // V1_OWN has no pids controller among those of v1.
    let mixed = [
        "1:memory.limit_in_bytes",
        "1:memory.memsw.limit_in_bytes",
        "1:cpu.cfs_period_us",
        "1:cpu.cfs_quota_us",
        "2:pids.max",
    ];
    assert_eq!(of(V1_OWN), mixed);
    assert_eq!(limit_files_of(&Limits::default(), V1_OWN), []);
}

/// A folder that looks like a cgroup of v2 in which every controller there is has been handed on.
fn imitation(controllers: &str) -> (tempfile::TempDir, CgroupTree, UnitName) {
    let base = tempfile::tempdir().unwrap();
    let unit: UnitName = "shop/till".parse().unwrap();
    for folder in [base.path().to_owned()].iter().chain(&folders(base.path(), "muster-a", (&unit, Slot::First))) {
        fs::create_dir_all(folder).unwrap();
        for (file, content) in [("cgroup.controllers", controllers), ("cgroup.subtree_control", ""), ("memory.max", "")]
        {
            fs::write(folder.join(file), content).unwrap();
        }
    }
    let tree = unified(base.path().to_str().unwrap(), false);
    (base, tree, unit)
}

#[test]
fn unified_controllers_are_delegated_and_limits_written() {
    let (base, tree, unit) = imitation("cpuset memory\n");
    let limits: Limits = serde_json::from_str(r#"{"memory_bytes": 4096, "pids": 7}"#).unwrap();
    let made = tree.prepare((&unit, Slot::First), &limits).unwrap();
    let [all, realm, leaf] = folders(base.path(), "muster-a", (&unit, Slot::First));
    for folder in [base.path(), &all, &realm] {
        assert_eq!(fs::read_to_string(folder.join("cgroup.subtree_control")).unwrap(), "+memory");
    }
    assert_eq!(fs::read_to_string(leaf.join("memory.max")).unwrap(), "4096");
    assert_eq!(made.cgroup, Cgroup { unified: Some(leaf), ..Cgroup::default() });
    // What this host does not have is told.
    let [missing] = made.missing.as_slice() else { panic!("{:?}", made.missing) };
    assert!(
        missing.cause.starts_with("the limit of pids: ") && missing.cause.contains("no pids controller"),
        "{missing}"
    );
}

#[test]
fn units_run_without_cgroups_and_report_why() {
    let limits: Limits = serde_json::from_str(r#"{"memory_bytes": 4096, "cpu": 1, "pids": 7}"#).unwrap();
    let unit = "shop/till".parse().unwrap();
    let nowhere = CgroupTree { memory: Some("/no/such/folder".into()), ..unified("/no/such/base", false) };
    for (tree, reason) in [(none(), "this host has no cgroups"), (nowhere, "/no/such")] {
        let made = tree.prepare((&unit, Slot::First), &limits).unwrap();
        assert!(made.cgroup.is_none());
        assert_eq!(made.missing.len(), 3, "{:?}", made.missing);
        assert!(made.missing.iter().all(|missing| missing.cause.contains(reason)), "{:?}", made.missing);
        assert_eq!(tree.prepare((&unit, Slot::First), &Limits::default()).unwrap(), UnitCgroup::default());
        tree.remove((&unit, Slot::First));
    }
}

/// The tree of this host, for an agent of this test's own; nothing if it may make no cgroups.
fn here() -> Option<(CgroupTree, UnitName, tempfile::TempDir)> {
    let data_dir = tempfile::tempdir().unwrap();
    let tree = CgroupTree::detect(data_dir.path());
    let unit = "shop/till".parse().unwrap();
    let made = tree.prepare((&unit, Slot::First), &Limits::default()).unwrap();
    let has_any = !made.cgroup.is_none();
    tree.remove((&unit, Slot::First));
    has_any.then_some((tree, unit, data_dir))
}

#[test]
fn units_cgroup_has_limits_and_is_removed() {
    let Some((tree, unit, _folder)) = here() else { return };
    let mut limits: Limits = serde_json::from_str(r#"{"memory_bytes": 8388608, "cpu": 0.25, "pids": 9}"#).unwrap();
    let read = |made: &UnitCgroup, files: [&str; 2]| {
        let found = made
            .cgroup
            .folders()
            .find_map(|folder| files.iter().find_map(|file| fs::read_to_string(folder.join(file)).ok()));
        found.unwrap_or_default().trim().to_owned()
    };
    for memory_bytes in [8_388_608, 16_777_216, 4_194_304] {
        limits.memory_bytes = Some(memory_bytes);
        let made = tree.prepare((&unit, Slot::First), &limits).unwrap();
        let is_missing = |what: &str| made.missing.iter().any(|missing| missing.cause.contains(what));
        if !is_missing("memory") {
            assert_eq!(read(&made, ["memory.max", "memory.limit_in_bytes"]), memory_bytes.to_string());
        }
        if !is_missing("cpu") {
            let found = read(&made, ["cpu.max", "cpu.cfs_quota_us"]);
            assert!(["25000 100000", "25000"].contains(&found.as_str()), "{found}");
        }
        if !is_missing("pids") {
            assert_eq!(read(&made, ["pids.max", "pids.max"]), "9");
        }
    }
    // Without limits there are none of before.
    let made = tree.prepare((&unit, Slot::First), &Limits::default()).unwrap();
    assert!(!read(&made, ["memory.max", "memory.limit_in_bytes"]).starts_with("4194304"));
    assert!(made.missing.is_empty());
    let folders: Vec<PathBuf> = made.cgroup.folders().map(Path::to_owned).collect();
    tree.remove((&unit, Slot::First));
    for folder in folders {
        assert!(!folder.parent().unwrap().parent().unwrap().exists(), "{}", folder.display());
    }
}

#[test]
fn realm_cgroup_is_removed_with_last_unit() {
    let Some((tree, till, _folder)) = here() else { return };
    let scale: UnitName = "shop/scale".parse().unwrap();
    let (first, second) = (
        tree.prepare((&till, Slot::First), &Limits::default()).unwrap(),
        tree.prepare((&scale, Slot::First), &Limits::default()).unwrap(),
    );
    tree.remove((&till, Slot::First));
    assert!(!first.cgroup.folders().any(Path::exists));
    assert!(second.cgroup.folders().all(Path::exists));
    tree.remove((&scale, Slot::First));
    assert!(!second.cgroup.folders().any(|folder| folder.parent().unwrap().exists()));
}

#[test]
fn leftover_processes_prevent_a_start() {
    let Some((tree, unit, _folder)) = here() else { return };
    let made = tree.prepare((&unit, Slot::First), &Limits::default()).unwrap();
    let mut left = std::process::Command::new("sleep").arg("60").spawn().unwrap();
    let entered =
        made.cgroup.folders().all(|folder| write(&folder.join("cgroup.procs"), &left.id().to_string()).is_ok());
    if entered {
        let again = tree.prepare((&unit, Slot::First), &Limits::default()).unwrap_err();
        assert!(again.to_string().contains("earlier start"), "{again}");
    }
    left.kill().unwrap();
    left.wait().unwrap();
    assert!(tree.prepare((&unit, Slot::First), &Limits::default()).is_ok());
    tree.remove((&unit, Slot::First));
}
