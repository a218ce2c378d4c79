//! Tests of programs inside a container: here one that consists of namespaces only, as `unshare` makes them.

use std::{
    fs,
    path::Path,
    process::{Child, Command, Stdio},
};

use muster_shim::{
    CaptureResult, ContainerNamespaces, Launch, OutputMode, ProcessAttributes, ProcessExit, ResolvedUser, StartReport,
    StartStep, attributes, files, process_identity,
};
use nix::unistd::geteuid;

use crate::{
    leaf::{Kind, Leaf},
    rig::{FAMILY, KILL, Rig, argv, command, eventually, is_alive, pids_in, with_folder},
};

/// Its first process, which does nothing, and the one that has made it.
struct Container {
    unshare: Child,
    first: i32,
}

impl Container {
    /// Nothing where this user may make none.
    fn start() -> Option<Self> {
        if !geteuid().is_root() {
            println!("only root makes containers here");
            return None;
        }
        let mut command = Command::new("unshare");
        // Whoever made it ends it, too.
        command.args(["--fork", "--kill-child", "--pid", "--mount-proc", "--mount", "--uts", "--ipc", "--net"]);
        let unshare = command.args(["sleep", "1000"]).stdin(Stdio::null()).spawn().unwrap();
        let children = format!("/proc/{0}/task/{0}/children", unshare.id());
        let is_it = |pid: &i32| process_identity::name(*pid).is_some_and(|name| name == "sleep");
        let mut first = None;
        eventually("the first process", || {
            let text = fs::read_to_string(&children).unwrap_or_default();
            first = text.split_ascii_whitespace().filter_map(|pid| pid.parse().ok()).find(is_it);
            first.is_some()
        });
        Some(Self { unshare, first: first.unwrap() })
    }

    fn inside(&self) -> ContainerNamespaces {
        let start_ticks = process_identity::stat(self.first).unwrap().start_ticks;
        ContainerNamespaces { pid: self.first, start_ticks, cgroups: Vec::new(), bounding: u64::MAX, owner: 0 }
    }

    fn launch(&self, script: &str) -> Launch {
        Launch { inside: Some(self.inside()), user: user(0), ..command(script) }
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        let _ = self.unshare.kill();
        let _ = self.unshare.wait();
    }
}

fn user(id: u32) -> Option<ResolvedUser> {
    Some(ResolvedUser { uid: id, gid: id, groups: vec![id] })
}

#[test]
fn it_is_in_every_namespace_of_its_container_and_a_child_of_its_shim() {
    let Some(container) = Container::start() else { return };
    let mut rig = Rig::new();
    let script = "for n in mnt pid net ipc uts user cgroup; do readlink /proc/self/ns/$n; done; echo $$ $PPID; ls /proc/self/fd; exit 7";
    let state = rig.launch(&container.launch(script));
    assert_eq!(
        process_identity::stat(state.main.unwrap().pid).map(|stat| stat.ppid).filter(|ppid| Some(*ppid) != rig.shim()),
        None
    );
    assert_eq!(rig.exit(), ProcessExit::Code(7));
    let text = rig.text("stdout");
    let mut lines = text.lines();
    for name in ["mnt", "pid", "net", "ipc", "uts", "user", "cgroup"] {
        let theirs = fs::read_link(format!("/proc/{}/ns/{name}", container.first)).unwrap();
        assert_eq!(lines.next().map(Path::new), Some(theirs.as_path()), "{text}");
    }
    // Its parent is none that could be seen there.
    assert!(lines.next().unwrap().ends_with(" 0"), "{text}");
    assert_eq!(lines.collect::<Vec<_>>(), ["0", "1", "2", "3"], "the last is the folder itself");
    assert!(is_alive(container.first));
}

#[test]
fn only_the_container_that_is_meant_is_entered() {
    let Some(container) = Container::start() else { return };
    let (esrch, exdev) = (3, 18);
    let meant = container.inside();
    let own = i32::try_from(std::process::id()).unwrap();
    let own = ContainerNamespaces {
        pid: own,
        start_ticks: process_identity::stat(own).unwrap().start_ticks,
        ..meant.clone()
    };
    for (inside, errno) in [
        (ContainerNamespaces { start_ticks: meant.start_ticks + 1, ..meant.clone() }, esrch),
        (ContainerNamespaces { pid: i32::MAX, ..meant }, esrch),
        // What is on the host runs nothing there either.
        (own, exdev),
    ] {
        let mut rig = Rig::new();
        let report = rig.start(&Launch { inside: Some(inside), ..command("touch ran") }, false);
        assert_eq!(report, StartReport::Failed { step: StartStep::Enter, which: None, errno });
        assert_eq!(files::read_state(rig.folder.path()).unwrap(), files::StateFile::Nothing);
    }
}

#[test]
fn failed_start_inside_is_reported_as_outside() {
    let Some(container) = Container::start() else { return };
    let (enoent, eacces) = (2, 13);
    let attributes = ProcessAttributes {
        rlimits: vec![attributes::ResourceLimit {
            resource: attributes::LimitResource::Nofile,
            soft: Some(9),
            hard: Some(8),
        }],
        ..ProcessAttributes::default()
    };
    for (launch, step, errno) in [
        (Launch { argv: argv(&["/no/such/program"]), ..container.launch("") }, StartStep::Exec, enoent),
        (Launch { argv: argv(&["/etc/passwd"]), ..container.launch("") }, StartStep::Exec, eacces),
        (Launch { cwd: "/no/such/folder".into(), ..container.launch("") }, StartStep::Cwd, enoent),
    ] {
        let mut rig = Rig::new();
        assert_eq!(rig.start(&launch, false), StartReport::Failed { step, which: None, errno }, "{launch:?}");
    }
    let mut rig = Rig::new();
    let report = rig.start(&Launch { attributes, ..container.launch("") }, false);
    assert!(matches!(report, StartReport::Failed { step: StartStep::Rlimit, which: Some(0), .. }), "{report:?}");
    assert!(is_alive(container.first));
}

#[test]
fn its_capabilities_are_at_most_those_of_the_container() {
    let Some(container) = Container::start() else { return };
    let (chown, net_admin) = (0, 12);
    let bounding = 1_u64 << chown | 1 << net_admin;
    for (id, permitted) in [(0, bounding), (65_534, 0)] {
        let mut launch = container.launch("");
        launch.argv = argv(&["/bin/cat", "/proc/self/status"]);
        launch.user = user(id);
        launch.inside = Some(ContainerNamespaces { bounding, owner: id, ..container.inside() });
        let mut rig = Rig::new();
        rig.launch(&launch);
        assert_eq!(rig.exit(), ProcessExit::Code(0));
        let text = rig.text("stdout");
        let bits = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap();
            u64::from_str_radix(line.trim(), 16).unwrap()
        };
        let found = ["CapBnd:", "CapPrm:", "CapEff:", "CapInh:", "CapAmb:"].map(bits);
        assert_eq!(found, [bounding, permitted, permitted, 0, 0], "{id}");
    }
}

#[test]
fn standard_input_inside_is_an_immutable_copy() {
    let Some(container) = Container::start() else { return };
    let mut rig = Rig::new();
    fs::write(rig.path(files::STDIN), "words\n").unwrap();
    let output = OutputMode::Capture(CaptureResult { stdin: true, ..CaptureResult::of(1_000) });
    let script = "cat; cat < /dev/stdin; echo more 2> /dev/null > /proc/self/fd/0 || echo no";
    rig.launch(&Launch { output, ..container.launch(script) });
    assert_eq!(rig.exit(), ProcessExit::Code(0));
    assert_eq!(rig.text("stdout"), "words\nwords\nno\n");
    assert_eq!(rig.text("stdin"), "words\n");
}

#[test]
fn it_ends_with_its_time_and_so_does_all_that_it_forked() {
    for kind in [Kind::All, Kind::V1] {
        let (Some(container), Some(leaf)) = (Container::start(), Leaf::make(kind)) else { continue };
        let mut rig = Rig::new();
        let script = format!("{FAMILY}\necho $$ >> $FOLDER/pids; while :; do sleep 60; done");
        let launch = Launch {
            cgroup: leaf.cgroup.clone(),
            timeout_ms: Some(1_500),
            grace_ms: 200,
            ..with_folder(&rig, container.launch(&script))
        };
        rig.launch(&launch);
        // As they are numbered inside.
        let count = pids_in(&rig, "pids", 4).len();
        assert_eq!(leaf.cgroup.members().len().min(count), count, "{kind:?}");
        let last = rig.over().last.unwrap();
        assert!(last.timed_out && last.exit == ProcessExit::Signal(KILL), "{last:?}");
        assert!(!leaf.exists(), "{kind:?}: {:?}", leaf.cgroup.members());
        assert!(is_alive(container.first));
    }
}

#[test]
fn it_ends_with_its_container() {
    let Some(container) = Container::start() else { return };
    let mut rig = Rig::new();
    rig.launch(&container.launch("while :; do sleep 60; done"));
    drop(container);
    assert_eq!(rig.exit(), ProcessExit::Signal(KILL));
}

#[test]
fn a_shim_that_is_killed_is_replaced() {
    let Some(container) = Container::start() else { return };
    let mut rig = Rig::new();
    let launch =
        with_folder(&rig, container.launch("echo up > $FOLDER/up; while ! test -e $FOLDER/end; do sleep 0.05; done"));
    let main = rig.launch(&launch).main.unwrap();
    eventually("it to run", || rig.text("up") == "up\n");
    rig.kill_shim();
    assert_eq!(rig.start(&launch, true), StartReport::Started);
    assert_eq!(rig.state().main.unwrap(), main);
    fs::write(rig.path("end"), "").unwrap();
    assert_eq!(rig.exit(), ProcessExit::Unknown);
    assert!(is_alive(container.first));
}
