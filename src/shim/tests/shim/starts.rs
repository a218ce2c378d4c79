//! Tests of starts and launches.

use std::{fs, os::unix::fs::PermissionsExt, path::Path};

use muster_shim::{
    Launch, ProcessExit, StartReport, StartStep,
    files::{self, StateFile},
};

use crate::rig::{Rig, argv, command, service};

#[test]
fn failed_start_is_reported_exactly_and_leaves_nothing() {
    let tool = tempfile::NamedTempFile::new().unwrap();
    fs::set_permissions(tool.path(), fs::Permissions::from_mode(0o644)).unwrap();
    let no_format = tempfile::NamedTempFile::new().unwrap();
    fs::write(no_format.path(), "no program").unwrap();
    fs::set_permissions(no_format.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let no_format = no_format.into_temp_path();
    let run = |path: &Path| Launch { argv: argv(&[path.to_str().unwrap()]), ..command("") };
    let (enoent, eacces, enoexec, enotdir, einval, eproto) = (2, 13, 8, 20, 22, 71);
    for (launch, step, errno) in [
        (run(Path::new("/no/such/program")), StartStep::Exec, enoent),
        (run(tool.path()), StartStep::Exec, eacces),
        (run(&no_format), StartStep::Exec, enoexec),
        (run(Path::new("/bin")), StartStep::Exec, eacces),
        (Launch { cwd: "/no/such/folder".into(), ..command("") }, StartStep::Cwd, enoent),
        (Launch { cwd: "/bin/sh".into(), ..command("") }, StartStep::Cwd, enotdir),
        (Launch { argv: argv(&["/bin/echo", "a\0b"]), ..command("") }, StartStep::Exec, einval),
        (Launch { argv: Vec::new(), ..command("") }, StartStep::Exec, einval),
        (Launch { protocol: muster_shim::PROTOCOL + 1, ..command("") }, StartStep::Prepare, eproto),
    ] {
        let mut rig = Rig::new();
        assert_eq!(rig.start(&launch, false), StartReport::Failed { step, which: None, errno }, "{launch:?}");
        assert_eq!(rig.event(), None);
        assert_eq!(files::read_state(rig.folder.path()).unwrap(), StateFile::Nothing);
        assert!(!rig.path(files::SOCKET).exists());
        // The same thing done right afterwards works.
        rig.launch(&command("exit 0"));
        assert_eq!(rig.exit(), ProcessExit::Code(0));
    }
}

#[test]
fn program_gets_only_its_launch() {
    let mut rig = Rig::new();
    // Read without a fork, during which a shell blocks its signals.
    let script = "pwd; cat; umask
                  while read -r name value; do case $name in SigBlk:|SigIgn:) echo $name $value;; esac; done < /proc/$$/status
                  set -- $(cat /proc/$$/stat); echo $1 = $5 = $6";
    rig.launch(&Launch { cwd: "/usr".into(), ..command(script) });
    assert_eq!(rig.exit(), ProcessExit::Code(0));
    let text = rig.text("stdout");
    let mut lines = text.lines();
    assert_eq!((lines.next(), lines.next()), (Some("/usr"), Some("0022")));
    assert_eq!(lines.next(), Some("SigBlk: 0000000000000000"), "{text}");
    assert_eq!(lines.next(), Some("SigIgn: 0000000000000000"));
    let ids: Vec<&str> = lines.next().unwrap().split(" = ").collect();
    assert!(ids[0] == ids[1] && ids[1] == ids[2], "it leads a group and a session: {ids:?}");

    // The fourth is the one that it reads the folder by.
    let mut rig = Rig::new();
    rig.launch(&Launch { argv: argv(&["/bin/ls", "/proc/self/fd"]), ..command("") });
    assert_eq!(rig.exit(), ProcessExit::Code(0));
    assert_eq!(rig.text("stdout"), "0\n1\n2\n3\n");

    let mut rig = Rig::new();
    let env = vec![("A".into(), "1".into()), ("B".into(), "x y=z".into())];
    rig.launch(&Launch { argv: argv(&["/usr/bin/env"]), env, ..command("") });
    assert_eq!(rig.exit(), ProcessExit::Code(0));
    assert_eq!(rig.text("stdout"), "A=1\nB=x y=z\n");
}

#[test]
fn program_runs_as_another_user() {
    let mut rig = Rig::new();
    let user = Some(muster_shim::ResolvedUser { uid: 65534, gid: 65534, groups: vec![65534, 4242] });
    let script = "id -u; id -g; id -G; echo named > /dev/stdout";
    let report = rig.start(&Launch { user: user.clone(), ..command(script) }, false);
    if proc_uid() != 0 {
        assert_eq!(report, StartReport::Failed { step: StartStep::User, which: None, errno: 1 });
        return;
    }
    assert_eq!(report, StartReport::Started);
    // Output can be opened by name, although the shim's folder is not the user's.
    assert_eq!(rig.exit(), ProcessExit::Code(0));
    assert_eq!(rig.text("stdout"), "65534\n65534\n65534 4242\nnamed\n");
    let mut rig = Rig::new();
    let locked = tempfile::tempdir().unwrap();
    fs::set_permissions(locked.path(), fs::Permissions::from_mode(0o700)).unwrap();
    let launch = Launch { user, cwd: locked.path().to_str().unwrap().into(), ..command("exit 0") };
    assert_eq!(rig.start(&launch, false), StartReport::Failed { step: StartStep::Cwd, which: None, errno: 13 });
}

fn proc_uid() -> u32 {
    std::os::unix::fs::MetadataExt::uid(&fs::metadata("/proc/self").unwrap())
}

#[test]
fn a_restart_that_cannot_start_counts_and_says_why() {
    let mut rig = Rig::new();
    let tool = rig.path("tool");
    fs::write(&tool, "#!/bin/sh\nrm \"$0\"; exit 1\n").unwrap();
    fs::set_permissions(&tool, fs::Permissions::from_mode(0o755)).unwrap();
    rig.launch(&Launch { argv: argv(&[tool.to_str().unwrap()]), ..service("", 2) });
    let over = rig.over();
    assert_eq!((over.restarts, over.last.unwrap().exit), (2, ProcessExit::Code(127)));
    let words = format!("cannot restart {} (Exec): No such file or directory", tool.display());
    assert_eq!(rig.text("log").matches(&words).count(), 2);
}
