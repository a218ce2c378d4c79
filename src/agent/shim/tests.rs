//! Tests with real shims and real programs. (The shim's own crate tests the shim alone.)

use std::sync::OnceLock;

use muster_shim::{
    MainProcessId, OutputMode, ProcessAttributes, RestartLimits, RestartOn,
    attributes::{LimitResource, ResourceLimit},
};

use muster_test_support::slot::slot;

use super::*;

/// One installation for all tests of a process, beside what the build script built.
pub(crate) fn shims() -> Shims {
    static SHIMS: OnceLock<Shims> = OnceLock::new();
    let install = || {
        let folder = Path::new(env!("MUSTER_SHIM_PROGRAM")).with_file_name(format!("installed-{}", slot(1_000)));
        std::fs::create_dir_all(&folder).unwrap();
        Shims::install(&folder).unwrap()
    };
    SHIMS.get_or_init(install).clone()
}

/// A folder so deep that no socket in it could be bound by its path.
fn deep_folder() -> (tempfile::TempDir, PathBuf) {
    let base = tempfile::tempdir().unwrap();
    let folder = base.path().join("deep".repeat(20)).join("deeper".repeat(20));
    (base, folder)
}

fn sh(script: &str, folder: &Path) -> Launch {
    Launch {
        protocol: muster_shim::PROTOCOL,
        argv: ["/bin/sh", "-c", script].map(str::to_owned).into(),
        env: vec![("PATH".into(), "/usr/bin:/bin".into()), ("FOLDER".into(), folder.display().to_string())],
        cwd: "/".into(),
        user: None,
        attributes: muster_shim::ProcessAttributes::default(),
        cgroup: muster_shim::cgroup::Cgroup::default(),
        inside: None,
        notify: None,
        forking: None,
        output: OutputMode::Log { max_bytes: 100_000, keep: 1, max_age_ms: None },
        restart: RestartLimits { on: RestartOn::Never, budget: 0, reset_after_ms: 0 },
        timeout_ms: None,
        stop_signal: 15,
        grace_ms: 1_000,
    }
}

const UNTIL_GO: &str = "echo $$ >> $FOLDER/pids; while ! [ -e $FOLDER/go ]; do sleep 0.02; done; exit 5";

async fn main_of(shim: &mut ShimHandle) -> MainProcessId {
    loop {
        if let ShimEvent::State(state) = shim.next().await.unwrap() {
            return state.main.unwrap();
        }
    }
}

async fn end(shim: &mut ShimHandle) -> ProgramEnd {
    loop {
        match shim.next().await.unwrap() {
            ShimEvent::State(state) if state.over => return state.last.unwrap(),
            _ => {}
        }
    }
}

fn kill(pid: i32) {
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::SIGKILL).unwrap();
}

/// The process ids that `UNTIL_GO` has noted, once there is one.
async fn ran(folder: &Path) -> Vec<i32> {
    loop {
        let text = fs::read_to_string(folder.join("pids")).unwrap_or_default();
        if text.ends_with('\n') {
            return text.lines().map(|line| line.parse().unwrap()).collect();
        }
        sleep(LOOK_AGAIN).await;
    }
}

#[tokio::test]
async fn launched_program_reports_and_stops() {
    let (_base, folder) = deep_folder();
    let mut shim = shims()
        .launch(&folder, &sh("trap 'exit 7' TERM; echo on; while :; do sleep 0.02; done", &folder))
        .await
        .unwrap();
    main_of(&mut shim).await;
    while fs::read_to_string(folder.join("log")).unwrap_or_default() != "on\n" {
        sleep(LOOK_AGAIN).await;
    }
    shim.send(&ShimRequest::Stop { signal: 15, grace_ms: 60_000 }).await.unwrap();
    let ended = end(&mut shim).await;
    assert_eq!(ended.exit, ProcessExit::Code(7));
    assert_eq!(shim.next().await, None);
    // It is known as long as the folder is there, and so is the next launch possible at once.
    for _ in 0..2 {
        let AdoptedShim::Ended(known) = shims().adopt(&folder).await.unwrap() else { panic!() };
        assert_eq!(known, ended);
    }
    let mut shim = shims().launch(&folder, &sh("exit 8", &folder)).await.unwrap();
    assert_eq!(end(&mut shim).await.exit, ProcessExit::Code(8));
}

#[tokio::test]
async fn relaunch_waits_for_earlier_shim() {
    let (_base, folder) = deep_folder();
    for code in 0..30 {
        let mut shim = shims().launch(&folder, &sh(&format!("exit {code}"), &folder)).await.unwrap();
        assert_eq!(end(&mut shim).await.exit, ProcessExit::Code(code));
    }
}

#[tokio::test]
async fn empty_folder_has_no_program() {
    let folder = tempfile::tempdir().unwrap();
    assert!(matches!(shims().adopt(folder.path()).await.unwrap(), AdoptedShim::Nothing));
    assert!(matches!(shims().adopt(&folder.path().join("none")).await.unwrap(), AdoptedShim::Nothing));
}

#[tokio::test]
async fn failed_start_is_reported() {
    let (_base, folder) = deep_folder();
    let nothing = sh("", &folder);
    let program = Launch { argv: vec!["/no/such".into()], ..nothing.clone() };
    let file = Launch { argv: vec!["/etc/passwd".into()], ..nothing.clone() };
    let cwd = Launch { cwd: "/no/such".into(), ..nothing.clone() };
    let with = |attributes| Launch { attributes, ..nothing.clone() };
    let limit = ResourceLimit { resource: LimitResource::Nofile, soft: Some(2), hard: Some(1) };
    let rlimit = with(ProcessAttributes { rlimits: vec![limit], ..ProcessAttributes::default() });
    let capability = with(ProcessAttributes { capabilities: Some(vec![63]), ..ProcessAttributes::default() });
    for (launch, told) in [
        (program, "cannot start /no/such: No such file or directory (os error 2)"),
        (file, "cannot start /etc/passwd: Permission denied (os error 13)"),
        (cwd, "cannot start /bin/sh: working directory /no/such: No such file or directory (os error 2)"),
        (rlimit, "cannot start /bin/sh: limit nofile: Invalid argument (os error 22)"),
        (capability, "cannot start /bin/sh: capability 63: Operation not permitted (os error 1)"),
    ] {
        let error = shims().launch(&folder, &launch).await.unwrap_err();
        assert!(matches!(error, ShimError::Start { .. }));
        assert_eq!(error.to_string(), told);
        assert!(matches!(shims().adopt(&folder).await.unwrap(), AdoptedShim::Nothing));
    }
    // The same thing done right afterwards works.
    let mut shim = shims().launch(&folder, &sh("exit 0", &folder)).await.unwrap();
    assert_eq!(end(&mut shim).await.exit, ProcessExit::Code(0));
}

#[tokio::test]
async fn restarted_agent_adopts_program() {
    let (_base, folder) = deep_folder();
    let mut shim = shims().launch(&folder, &sh(UNTIL_GO, &folder)).await.unwrap();
    let main = main_of(&mut shim).await;
    drop(shim);
    // There it is, and it is not launched twice.
    let again = shims().launch(&folder, &sh(UNTIL_GO, &folder)).await.unwrap_err();
    assert!(again.to_string().contains("another shim is running"), "{again}");
    let AdoptedShim::Alive(mut shim) = shims().adopt(&folder).await.unwrap() else { panic!() };
    assert_eq!(main_of(&mut shim).await, main);
    drop(shim);
    // Nobody is there when it ends.
    ran(&folder).await;
    fs::write(folder.join("go"), "").unwrap();
    while !matches!(files::read_state(&folder).unwrap(), StateFile::State(state) if state.over) {
        sleep(LOOK_AGAIN).await;
    }
    let AdoptedShim::Ended(ended) = shims().adopt(&folder).await.unwrap() else { panic!() };
    assert_eq!((ended.exit, ended.started_ms), (ProcessExit::Code(5), Some(main.started_ms)));
    assert_eq!(ran(&folder).await, [main.pid]);
}

#[tokio::test]
async fn killed_shim_is_replaced() {
    let (_base, folder) = deep_folder();
    let mut shim = shims().launch(&folder, &sh(UNTIL_GO, &folder)).await.unwrap();
    let main = main_of(&mut shim).await;
    ran(&folder).await;
    kill(process_identity::stat(main.pid).unwrap().ppid);
    while shim.next().await.is_some() {}
    // No launch while it lives, whoever holds the lock.
    let again = shims().launch(&folder, &sh(UNTIL_GO, &folder)).await.unwrap_err();
    assert!(again.to_string().contains("still running"), "{again}");
    let AdoptedShim::Alive(mut shim) = shims().adopt(&folder).await.unwrap() else { panic!() };
    assert_eq!(main_of(&mut shim).await, main);
    fs::write(folder.join("go"), "").unwrap();
    assert_eq!(end(&mut shim).await.exit, ProcessExit::Unknown);
    assert_eq!(ran(&folder).await, [main.pid]);
}

#[tokio::test]
async fn killed_shim_and_program_end_unknown() {
    let (_base, folder) = deep_folder();
    let mut shim = shims().launch(&folder, &sh(UNTIL_GO, &folder)).await.unwrap();
    let main = main_of(&mut shim).await;
    kill(process_identity::stat(main.pid).unwrap().ppid);
    kill(main.pid);
    while shim.next().await.is_some() {}
    while process_identity::is_alive(&main) {
        sleep(LOOK_AGAIN).await;
    }
    let AdoptedShim::Ended(ended) = shims().adopt(&folder).await.unwrap() else { panic!() };
    assert_eq!((ended.exit, ended.started_ms), (ProcessExit::Unknown, Some(main.started_ms)));
}

#[tokio::test]
async fn program_of_another_boot_is_dead() {
    let folder = tempfile::tempdir().unwrap();
    let own = i32::try_from(std::process::id()).unwrap();
    let main =
        MainProcessId { pid: own, start_ticks: process_identity::stat(own).unwrap().start_ticks, started_ms: 77 };
    let state = ProgramState { main: Some(main), ..ProgramState::new("another".into()) };
    File::create(folder.path().join(files::LOCK)).unwrap();
    files::write_state(folder.path(), &state, true).unwrap();
    let AdoptedShim::Ended(ended) = shims().adopt(folder.path()).await.unwrap() else { panic!() };
    assert_eq!((ended.exit, ended.started_ms), (ProcessExit::Unknown, Some(77)));
    // What a power cut damaged is as good.
    fs::write(folder.path().join(files::STATE), "{").unwrap();
    let AdoptedShim::Ended(ended) = shims().adopt(folder.path()).await.unwrap() else { panic!() };
    assert_eq!(ended.exit, ProcessExit::Unknown);
}

#[tokio::test]
async fn no_child_is_left_to_reap() {
    let (_base, folder) = deep_folder();
    let mut shim = shims().launch(&folder, &sh("exit 0", &folder)).await.unwrap();
    end(&mut shim).await;
    let own = i32::try_from(std::process::id()).unwrap();
    // Other tests start processes too, but wait for them: in the end none is a zombie of ours.
    let zombies = || {
        let stats = process_identity::pids().unwrap().into_iter().filter_map(process_identity::stat);
        stats.filter(|stat| stat.ppid == own && stat.is_dead()).count()
    };
    let deadline = Instant::now() + ANSWER_MAX;
    while zombies() > 0 {
        assert!(Instant::now() < deadline);
        sleep(LOOK_AGAIN).await;
    }
}

#[test]
fn shim_install_is_idempotent_and_repairs() {
    let folder = tempfile::tempdir().unwrap();
    let shims = Shims::install(folder.path()).unwrap();
    let mode = || fs::metadata(shims.program.path()).unwrap().permissions().mode() & 0o777;
    assert_eq!((fs::read(shims.program.path()).unwrap().as_slice(), mode()), (PROGRAM, PROGRAM_MODE));
    fs::remove_file(shims.program.path()).unwrap();
    fs::write(shims.program.path(), "half").unwrap();
    assert_eq!(Shims::install(folder.path()).unwrap().program.path(), shims.program.path());
    assert_eq!((fs::read(shims.program.path()).unwrap().as_slice(), mode()), (PROGRAM, PROGRAM_MODE));
}

#[tokio::test]
async fn removed_shim_program_is_installed_again() {
    let folder = tempfile::tempdir().unwrap();
    let shims = Shims::install(folder.path()).unwrap();
    let program = shims.program.path();
    for (number, damage) in ["removed", "cut", "not executable"].into_iter().enumerate() {
        match damage {
            "removed" => fs::remove_file(&program).unwrap(),
            "cut" => {
                fs::remove_file(&program).unwrap();
                fs::write(&program, "half").unwrap();
            }
            _ => fs::set_permissions(&program, fs::Permissions::from_mode(0o400)).unwrap(),
        }
        let run = folder.path().join(number.to_string());
        let mut shim =
            shims.launch(&run, &sh("exit 3", &run)).await.unwrap_or_else(|error| panic!("{damage}: {error}"));
        assert_eq!(end(&mut shim).await.exit, ProcessExit::Code(3), "{damage}");
    }
}

#[tokio::test]
async fn an_idle_shim_is_small() {
    let (_base, folder) = deep_folder();
    let mut shim = shims().launch(&folder, &sh("exec sleep 60", &folder)).await.unwrap();
    let main = main_of(&mut shim).await;
    let pid = process_identity::stat(main.pid).unwrap().ppid;
    // It gives memory back when it first goes to sleep, some microseconds from now.
    let mut least = u64::MAX;
    let deadline = Instant::now() + ANSWER_MAX;
    while least > 250 && Instant::now() < deadline {
        sleep(LOOK_AGAIN).await;
        let smaps = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap();
        let pss = smaps.lines().find_map(|line| line.strip_prefix("Pss:")).unwrap();
        least = least.min(pss.trim().trim_end_matches(" kB").parse().unwrap());
    }
    println!("PSS of an idle shim: {least} kB");
    // The budget, where the linker can order and the C library is static, as on the machines that decide.
    assert!(least <= 250 || !cfg!(all(target_arch = "x86_64", target_env = "gnu")), "{least} kB");
    shim.send(&ShimRequest::Stop { signal: 9, grace_ms: 0 }).await.unwrap();
    end(&mut shim).await;
}
