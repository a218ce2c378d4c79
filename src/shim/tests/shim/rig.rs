//! Starts shims as an agent starts them.

use std::{
    fs::{self, File},
    io::{BufRead, BufReader, Write},
    os::unix::{fs::PermissionsExt, net::UnixStream},
    path::PathBuf,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use muster_shim::{
    CaptureResult, Launch, NEXT, OutputMode, PROTOCOL, ProcessExit, ProgramState, RestartLimits, RestartOn, ShimEvent,
    ShimRequest, StartReport,
    files::{self, StateFile},
    process_identity,
};

pub(crate) const TERM: i32 = 15;
pub(crate) const KILL: i32 = 9;

/// One shim's folder and the connection to the shim.
pub(crate) struct Rig {
    pub(crate) folder: tempfile::TempDir,
    pub(crate) connection: Option<BufReader<UnixStream>>,
}

impl Rig {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o700)).unwrap();
        Self { folder, connection: None }
    }

    /// The shim's process id.
    pub(crate) fn shim(&self) -> Option<i32> {
        self.own_processes().into_iter().find(|pid| !waits(*pid))
    }

    /// The process that waits to be the next main one, if there is one.
    pub(crate) fn next(&self) -> Option<i32> {
        self.own_processes().into_iter().find(|pid| waits(*pid))
    }

    /// Only their command line names the folder.
    fn own_processes(&self) -> Vec<i32> {
        let folder = self.folder.path().to_str().unwrap();
        let names_it = |pid: &i32| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let line = String::from_utf8_lossy(&line).into_owned();
            line.contains("muster-shim") && line.contains(folder)
        };
        process_identity::pids().unwrap().into_iter().filter(names_it).collect()
    }

    /// Kills the shim, and waits until it is gone.
    pub(crate) fn kill_shim(&mut self) {
        kill(self.shim().unwrap());
        while self.line().is_some() {}
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// What a file has, lossily; nothing if it is not there.
    pub(crate) fn text(&self, name: &str) -> String {
        String::from_utf8_lossy(&fs::read(self.path(name)).unwrap_or_default()).into_owned()
    }

    pub(crate) fn start(&mut self, launch: &Launch, adopt: bool) -> StartReport {
        let lock = File::create(self.path(files::LOCK)).unwrap();
        let deadline = Instant::now() + Duration::from_secs(20);
        while lock.try_lock().is_err() {
            assert!(Instant::now() < deadline, "another shim holds the lock");
        }
        if !adopt {
            files::begin(self.folder.path()).unwrap();
            files::write_launch(self.folder.path(), launch).unwrap();
        }
        let (ours, theirs) = UnixStream::pair().unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_muster-shim"));
        command.arg(self.folder.path()).args(adopt.then_some("--adopt")).env_clear();
        command.stdin(Stdio::from(std::os::fd::OwnedFd::from(theirs))).stdout(lock).stderr(Stdio::null());
        assert!(command.spawn().unwrap().wait().unwrap().success());
        drop(command);
        self.connection = Some(BufReader::new(ours));
        serde_json::from_str(&self.line().unwrap()).unwrap()
    }

    /// Starts it and takes the first state.
    #[track_caller]
    pub(crate) fn launch(&mut self, launch: &Launch) -> ProgramState {
        assert_eq!(self.start(launch, false), StartReport::Started);
        self.state()
    }

    pub(crate) fn connect(&mut self) -> bool {
        // The folder's path is short enough for a socket.
        self.connection = UnixStream::connect(self.path(files::SOCKET)).ok().map(BufReader::new);
        self.connection.is_some()
    }

    pub(crate) fn line(&mut self) -> Option<String> {
        let mut line = String::new();
        let connection = self.connection.as_mut().unwrap();
        connection.get_ref().set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        (connection.read_line(&mut line).unwrap() > 0).then_some(line)
    }

    pub(crate) fn event(&mut self) -> Option<ShimEvent> {
        self.line().map(|line| serde_json::from_str(&line).unwrap())
    }

    #[track_caller]
    pub(crate) fn state(&mut self) -> ProgramState {
        loop {
            if let ShimEvent::State(state) = self.event().expect("the shim is gone") {
                return state;
            }
        }
    }

    #[track_caller]
    pub(crate) fn state_where(&mut self, mut wanted: impl FnMut(&ProgramState) -> bool) -> ProgramState {
        loop {
            let state = self.state();
            if wanted(&state) {
                return state;
            }
        }
    }

    /// Waits for the end, and for the shim to have told the file the same.
    #[track_caller]
    pub(crate) fn over(&mut self) -> ProgramState {
        let state = self.state_where(|state| state.over);
        assert_eq!(files::read_state(self.folder.path()).unwrap(), StateFile::State(state.clone()));
        state
    }

    #[track_caller]
    pub(crate) fn exit(&mut self) -> ProcessExit {
        self.over().last.unwrap().exit
    }

    pub(crate) fn send(&mut self, request: &ShimRequest) {
        let mut line = serde_json::to_vec(request).unwrap();
        line.push(b'\n');
        self.connection.as_mut().unwrap().get_mut().write_all(&line).unwrap();
    }

    pub(crate) fn stop(&mut self, grace_ms: u64) {
        self.send(&ShimRequest::Stop { signal: TERM, grace_ms });
    }
}

/// A test that failed leaves nothing behind either.
impl Drop for Rig {
    fn drop(&mut self) {
        if let Some(shim) = self.shim().filter(|shim| is_alive(*shim)) {
            kill_if_there(shim);
        }
        if let Ok(StateFile::State(ProgramState { main: Some(main), .. })) = files::read_state(self.folder.path())
            && process_identity::is_alive(&main)
        {
            kill_if_there(main.pid);
        }
    }
}

fn waits(pid: i32) -> bool {
    process_identity::name(pid).is_some_and(|name| name == NEXT)
}

pub(crate) fn argv(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

pub(crate) fn command(script: &str) -> Launch {
    Launch {
        protocol: PROTOCOL,
        argv: argv(&["/bin/sh", "-c", script]),
        env: vec![("PATH".into(), "/usr/bin:/bin".into())],
        cwd: "/".into(),
        user: None,
        attributes: muster_shim::ProcessAttributes::default(),
        cgroup: muster_shim::cgroup::Cgroup::default(),
        inside: None,
        notify: None,
        forking: None,
        output: OutputMode::Capture(CaptureResult::of(1024 * 1024)),
        restart: RestartLimits { on: RestartOn::Never, budget: 0, reset_after_ms: 60_000 },
        timeout_ms: Some(60_000),
        stop_signal: TERM,
        grace_ms: 10_000,
    }
}

pub(crate) fn service(script: &str, budget: u32) -> Launch {
    Launch {
        output: OutputMode::Log { max_bytes: 1024 * 1024, keep: 2, max_age_ms: None },
        restart: RestartLimits { on: RestartOn::Always, budget, reset_after_ms: 60_000 },
        timeout_ms: None,
        ..command(script)
    }
}

#[track_caller]
pub(crate) fn eventually(what: &str, mut is: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !is() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

pub(crate) fn is_alive(pid: i32) -> bool {
    process_identity::stat(pid).is_some_and(|stat| !stat.is_dead())
}

/// Kills a process that a test started.
#[track_caller]
pub(crate) fn kill(pid: i32) {
    assert!(send_kill(pid), "{pid} is gone");
}

/// Kills one that may have ended already.
pub(crate) fn kill_if_there(pid: i32) {
    send_kill(pid);
}

fn send_kill(pid: i32) -> bool {
    Command::new("/bin/kill").args(["-9", &pid.to_string()]).stderr(Stdio::null()).status().unwrap().success()
}

/// The process ids that a script has put into a file, once there are so many.
pub(crate) fn pids_in(rig: &Rig, name: &str, count: usize) -> Vec<i32> {
    let read = || -> Vec<i32> {
        let text = rig.text(name);
        text.lines().filter(|_| text.ends_with('\n')).filter_map(|line| line.trim().parse().ok()).collect()
    };
    eventually("process ids", || read().len() >= count);
    read()
}

/// Children, children of children that nobody waits for, and such that left the session.
pub(crate) const FAMILY: &str = "
    trap '' TERM HUP
    (trap '' TERM; while :; do sleep 60; done) & echo $! >> $FOLDER/pids
    (setsid sh -c 'trap \"\" TERM; echo $$ >> $FOLDER/pids; while :; do sleep 60; done' &)
    (setsid sh -c '(setsid sh -c \"trap : TERM; echo \\$\\$ >> $FOLDER/pids; while :; do sleep 60; done\" &)' &)
";

pub(crate) fn with_folder(rig: &Rig, mut launch: Launch) -> Launch {
    launch.env.push(("FOLDER".into(), rig.folder.path().to_str().unwrap().into()));
    launch
}
