//! Tests with real commands under real shims.

use muster_topics::outcome::Stream;
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use std::{fs, mem::MaybeUninit, os::unix::fs::PermissionsExt, time::Duration};

use muster_topics::{
    command::Keep,
    outcome::{CHUNK_MAX_BYTES, Data, RefusalCode},
    unit::Exit,
};
use tokio::time::timeout;

use super::*;
use crate::shim::tests::shims;

struct Rig {
    folder: tempfile::TempDir,
    executor: Executor,
    events: mpsc::Receiver<ExecEvent>,
}

/// What a command came to: its pieces, put together and counted, and its end.
#[derive(Debug)]
struct Told {
    status: Status,
    pieces: usize,
    sent: [Vec<u8>; 2],
    rest: (Vec<u8>, Vec<u8>),
    dropped_bytes: (u64, u64),
}

impl Told {
    fn stdout(&self) -> Vec<u8> {
        [self.sent[0].as_slice(), &self.rest.0].concat()
    }
}

impl Rig {
    fn new(parallel_max: usize) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (sender, events) = mpsc::channel(4);
        let executor = Executor::new(folder.path().to_owned(), shims(), &config(parallel_max), sender);
        Self { folder, executor, events }
    }

    /// The same folder after the agent was started again.
    fn again(self) -> Self {
        let (sender, events) = mpsc::channel(4);
        let executor = Executor::new(self.folder.path().to_owned(), shims(), &config(4), sender);
        Self { folder: self.folder, executor, events }
    }

    async fn try_run(&self, id: CommandId, exec: &Exec) -> Result<(), CommandRefusal> {
        let AdmittedCommand::Now(place) = self.executor.admit(id)? else { panic!("there is no place") };
        self.executor.run(id, exec, place).await
    }

    async fn run(&self, exec: &Exec) -> CommandId {
        let id = CommandId::new();
        self.try_run(id, exec).await.unwrap();
        id
    }

    async fn event(&mut self) -> ExecEvent {
        timeout(Duration::from_secs(60), self.events.recv()).await.unwrap().unwrap()
    }

    /// Everything up to the end of a command, checked for order; output begins after `sent`.
    async fn told(&mut self, wanted: CommandId, sent: SentBytes) -> Told {
        let mut offsets = [sent.stdout_bytes, sent.stderr_bytes];
        let (mut sent, mut pieces) = ([Vec::new(), Vec::new()], 0);
        loop {
            match self.event().await {
                ExecEvent::Output { id, stream, offset_bytes, bytes } => {
                    let stream = usize::from(stream == Stream::Stderr);
                    assert_eq!((id, offset_bytes), (wanted, offsets[stream]));
                    assert!(!bytes.is_empty() && bytes.len() <= CHUNK_MAX_BYTES);
                    offsets[stream] += bytes.len() as u64;
                    sent[stream].extend(bytes);
                    pieces += 1;
                }
                ExecEvent::Ended { id, status, rest, dropped_bytes, .. } => {
                    assert_eq!(id, wanted);
                    assert!(rest.0.len() <= CHUNK_MAX_BYTES && rest.1.len() <= CHUNK_MAX_BYTES);
                    return Told { status, pieces, sent, rest, dropped_bytes };
                }
            }
        }
    }

    async fn outcome(&mut self, exec: &Exec) -> Told {
        let id = self.run(exec).await;
        self.told(id, SentBytes::default()).await
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }
}

fn config(parallel_max: usize) -> ExecConfig {
    ExecConfig { parallel_max, queue_max: 0, ..ExecConfig::default() }
}

fn exec(argv: &[&str]) -> Exec {
    Exec::new(argv.iter().map(|word| (*word).to_owned()).collect(), 60_000)
}

fn sh(script: &str) -> Exec {
    exec(&["sh", "-c", script])
}

fn exited(code: i32) -> Status {
    Status::exited(Exit::Code(code))
}

#[tokio::test]
async fn short_command_needs_one_message() {
    let mut rig = Rig::new(4);
    let told = rig.outcome(&sh("echo out; echo err >&2; exit 3")).await;
    assert_eq!((told.status, told.pieces), (exited(3), 0));
    assert_eq!(told.rest, (b"out\n".to_vec(), b"err\n".to_vec()));
    let told = rig.outcome(&sh("kill -9 $$")).await;
    assert_eq!(told.status, Status::exited(Exit::Signal(9)));
    let told = rig.outcome(&exec(&["true"])).await;
    assert_eq!((told.status, told.pieces, told.rest), (exited(0), 0, (vec![], vec![])));
}

#[tokio::test]
async fn long_output_comes_in_text_pieces() {
    let mut rig = Rig::new(4);
    // Three bytes a character: no piece's limit is a multiple of that.
    let told = rig
        .outcome(&sh("i=0; while [ $i -lt 30000 ]; do printf '€'; i=$((i+1)); done; head -c 40000 /dev/zero >&2"))
        .await;
    assert_eq!(told.status, exited(0));
    assert_eq!(String::from_utf8(told.stdout()).unwrap(), "€".repeat(30_000));
    assert_eq!(told.sent[1].len() + told.rest.1.len(), 40_000);
    assert!(told.pieces >= 5, "{}", told.pieces);
    assert!(std::str::from_utf8(&told.sent[0]).is_ok(), "cut between characters");
}

#[tokio::test]
async fn long_command_streams_output() {
    let mut rig = Rig::new(4);
    let go = rig.path("go");
    let script = format!("echo first; while ! [ -e {} ]; do sleep 0.02; done; echo last", go.display());
    let id = rig.run(&sh(&script)).await;
    let ExecEvent::Output { bytes, offset_bytes: 0, stream: Stream::Stdout, .. } = rig.event().await else { panic!() };
    assert_eq!(bytes, b"first\n");
    fs::write(go, "").unwrap();
    let told = rig.told(id, SentBytes { stdout_bytes: 6, stderr_bytes: 0 }).await;
    assert_eq!((told.status.clone(), told.stdout()), (exited(0), b"last\n".to_vec()));
}

#[tokio::test]
async fn output_over_limit_is_counted() {
    let mut rig = Rig::new(4);
    let told = rig.outcome(&Exec { output_max_bytes: 10, ..sh("echo 123456789012345; echo err >&2") }).await;
    assert_eq!((told.rest, told.dropped_bytes), ((b"1234567890".to_vec(), b"err\n".to_vec()), (6, 0)));
}

#[tokio::test]
async fn endless_output_ends_at_time_limit() {
    let mut rig = Rig::new(4);
    let told = rig.outcome(&Exec { timeout_ms: 300, output_max_bytes: 100_000, ..exec(&["yes"]) }).await;
    assert_eq!(told.status, Status::TimedOut);
    assert_eq!(told.stdout(), b"y\n".repeat(50_000));
    assert!(told.dropped_bytes.0 > 0);
}

#[tokio::test]
async fn failed_launch_is_refused_and_leaves_nothing() {
    let mut rig = Rig::new(4);
    let binary = rig.path("binary").display().to_string();
    fs::write(&binary, b"\x7fELF and nothing that runs").unwrap();
    fs::set_permissions(&binary, fs::Permissions::from_mode(0o755)).unwrap();
    for (exec, code, told) in [
        (exec(&["no-such-program"]), RefusalCode::NoSuchFile, "no-such-program"),
        (exec(&["/no/such/program"]), RefusalCode::NoSuchFile, "/no/such/program: No such file"),
        (exec(&["/etc/passwd/program"]), RefusalCode::NoSuchFile, "Not a directory"),
        (exec(&["/etc/passwd"]), RefusalCode::NotExecutable, "is it executable"),
        (exec(&["/etc"]), RefusalCode::NotExecutable, "is it executable"),
        (exec(&[&binary]), RefusalCode::NotExecutable, "format error"),
        (Exec { cwd: Some("/no/such".into()), ..sh("x") }, RefusalCode::NoSuchFolder, "working directory /no/such"),
        (Exec { cwd: Some("/etc/passwd".into()), ..sh("x") }, RefusalCode::NoSuchFolder, "Not a directory"),
        (Exec { user: Some("no-such-user".into()), ..sh("x") }, RefusalCode::UnknownUser, "no-such-user"),
        (Exec { stdin: Some(Data::Base64("?".into())), ..sh("x") }, RefusalCode::Invalid, "base64"),
        (exec(&[]), RefusalCode::Invalid, "either `argv`"),
    ] {
        let refusal = rig.try_run(CommandId::new(), &exec).await.unwrap_err();
        assert_eq!(refusal.code, code, "{refusal:?}");
        assert!(format!("{:#}", refusal.diagnostic).contains(told), "{refusal:?}");
    }
    assert!(rig.events.try_recv().is_err());
    assert_eq!(fs::read_dir(rig.path("exec")).unwrap().count(), 0);
    assert_eq!(rig.outcome(&sh("exit 0")).await.status, exited(0));
}

#[tokio::test]
async fn command_has_folder_user_and_environment() {
    let mut rig = Rig::new(4);
    let env = [("GREETING".to_owned(), "hello".to_owned())].into();
    let told = rig.outcome(&Exec { cwd: Some("/usr".into()), env, ..sh("pwd; echo $GREETING $LANG $PATH") }).await;
    let wanted = format!("/usr\nhello C.UTF-8 {}\n", prepare::SEARCH_PATH);
    assert_eq!(String::from_utf8(told.stdout()).unwrap(), wanted);
    if nix::unistd::geteuid().is_root() {
        let told = rig.outcome(&Exec { user: Some("nobody".into()), ..sh("id -un; echo $USER") }).await;
        assert_eq!(told.stdout(), b"nobody\nnobody\n");
        fs::set_permissions(rig.folder.path(), fs::Permissions::from_mode(0o700)).unwrap();
        let cwd = Some(rig.path("").display().to_string());
        let exec = Exec { user: Some("nobody".into()), cwd, ..sh("exit 0") };
        let refusal = rig.try_run(CommandId::new(), &exec).await.unwrap_err();
        assert_eq!(refusal.code, RefusalCode::NoSuchFolder, "{refusal:?}");
    }
}

#[tokio::test]
async fn shell_line_reads_standard_input() {
    let mut rig = Rig::new(4);
    let stdin = Some(Data::new(b"b\na\n"));
    let exec = Exec { shell: Some("sort | tr a-z A-Z".into()), stdin, ..exec(&[]) };
    assert_eq!(rig.outcome(&exec).await.stdout(), b"A\nB\n");
    if nix::unistd::geteuid().is_root() {
        let exec = Exec { user: Some("nobody".into()), shell: Some("cat < /dev/stdin".into()), ..exec };
        assert_eq!(rig.outcome(&exec).await.stdout(), b"b\na\n");
    }
}

#[tokio::test]
async fn other_user_has_all_groups() {
    if !nix::unistd::geteuid().is_root() {
        return;
    }
    let mut rig = Rig::new(4);
    // A user of the system that has more groups than one, if there is one; nobody otherwise.
    let groups = fs::read_to_string("/etc/group").unwrap();
    let member = groups
        .lines()
        .filter_map(|line| line.rsplit(':').next()?.split(',').next())
        .find(|user| !user.is_empty() && *user != "root" && matches!(nix::unistd::User::from_name(user), Ok(Some(_))));
    let user = member.unwrap_or("nobody");
    let ids = std::process::Command::new("id").args(["-G", user]).output().unwrap().stdout;
    let told = rig.outcome(&Exec { user: Some(user.into()), ..exec(&["id", "-G"]) }).await;
    let sorted = |bytes: &[u8]| {
        let mut ids: Vec<String> = String::from_utf8_lossy(bytes).split_whitespace().map(str::to_owned).collect();
        ids.sort();
        ids
    };
    assert_eq!(sorted(&told.stdout()), sorted(&ids), "{user}");
}

#[tokio::test]
async fn captured_output_comes_with_the_outcome() {
    let mut rig = Rig::new(4);
    let go = rig.path("go");
    let script = format!(
        "head -c 40000 /dev/zero; echo err >&2; while ! [ -e {} ]; do sleep 0.02; done; echo last",
        go.display()
    );
    let id = rig.run(&Exec { stdout: Keep::Capture, ..sh(&script) }).await;
    // Of standard output nothing comes before what is streamed.
    let ExecEvent::Output { stream, bytes, .. } = rig.event().await else { panic!("output") };
    assert_eq!((stream, bytes), (Stream::Stderr, b"err\n".to_vec()));
    fs::write(&go, "").unwrap();
    let told = rig.told(id, SentBytes { stdout_bytes: 0, stderr_bytes: 4 }).await;
    assert_eq!((told.status.clone(), told.stdout().len()), (exited(0), 40_005));
    let told = rig.outcome(&Exec { stdout: Keep::Drop, ..sh("echo out; echo err >&2") }).await;
    assert_eq!((told.rest, told.dropped_bytes), ((vec![], b"err\n".to_vec()), (0, 0)));
}

#[tokio::test]
async fn cancelled_command_leaves_nothing() {
    let mut rig = Rig::new(4);
    let pids = rig.path("pids");
    let script = format!("(setsid sh -c 'echo $$ > {0}; sleep 1000' &); while :; do sleep 0.02; done", pids.display());
    let id = rig.run(&sh(&script)).await;
    let read = || fs::read_to_string(&pids).unwrap_or_default();
    while !read().ends_with('\n') {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    rig.executor.cancel(id);
    assert_eq!(rig.told(id, SentBytes::default()).await.status, Status::Cancelled);
    let left = muster_shim::process_identity::stat(read().trim().parse().unwrap());
    assert!(left.is_none_or(|left| left.is_dead()), "it lives on: {left:?}");
}

#[tokio::test]
async fn running_commands_are_limited() {
    let mut rig = Rig::new(1);
    let go = rig.path("go");
    let script = format!("while ! [ -e {} ]; do sleep 0.02; done", go.display());
    let id = rig.run(&sh(&script)).await;
    let refusal = rig.try_run(CommandId::new(), &sh("exit 0")).await.unwrap_err();
    assert_eq!(refusal.code, RefusalCode::Busy);
    fs::write(go, "").unwrap();
    rig.told(id, SentBytes::default()).await;
    // The place is free a moment after the end is told.
    while rig.executor.places.free() == 0 {
        tokio::task::yield_now().await;
    }
    assert_eq!(rig.outcome(&sh("exit 4")).await.status, exited(4));
}

#[tokio::test]
async fn command_is_launched_once() {
    let mut rig = Rig::new(4);
    let once = rig.path("once");
    let exec = sh(&format!("echo x >> {}", once.display()));
    let id = rig.run(&exec).await;
    assert_eq!(rig.told(id, SentBytes::default()).await.status, exited(0));
    assert_eq!(rig.try_run(id, &exec).await.unwrap_err().code, RefusalCode::Conflict);
    assert_eq!(fs::read_to_string(once).unwrap(), "x\n");
}

#[tokio::test]
async fn restarted_agent_follows_running_commands() {
    let mut rig = Rig::new(4);
    let go = rig.path("go");
    let exec = sh(&format!("echo first; while ! [ -e {} ]; do sleep 0.02; done; echo last; exit 2", go.display()));
    let id = rig.run(&exec).await;
    let ExecEvent::Output { bytes, .. } = rig.event().await else { panic!() };
    let sent = SentBytes { stdout_bytes: bytes.len() as u64, stderr_bytes: 0 };

    // While it runs.
    let mut rig = rig.again();
    rig.executor.resume(id, &exec, sent).await;
    fs::write(&go, "").unwrap();
    let told = rig.told(id, sent).await;
    assert_eq!((told.status.clone(), told.stdout()), (exited(2), b"last\n".to_vec()));

    // After it has ended, however often: nothing of it is lost, and nothing done again.
    for sent in [SentBytes::default(), sent] {
        rig = rig.again();
        rig.executor.resume(id, &exec, sent).await;
        let told = rig.told(id, sent).await;
        let from = usize::try_from(sent.stdout_bytes).unwrap();
        assert_eq!((told.status.clone(), told.stdout()), (exited(2), b"first\nlast\n"[from..].to_vec()));
    }

    rig.executor.forget(id).await;
    rig.executor.forget(id).await;
    assert_eq!(fs::read_dir(rig.path("exec")).unwrap().count(), 0);
    rig.executor.resume(id, &exec, sent).await;
    assert_eq!(rig.told(id, sent).await.status, Status::Lost);
}

#[tokio::test]
async fn what_is_left_of_commands_that_are_over_is_deleted() {
    let mut rig = Rig::new(4);
    let go = rig.path("go");
    let waits = sh(&format!("while ! [ -e {} ]; do sleep 0.02; done", go.display()));
    let over = rig.run(&sh("exit 3")).await;
    assert_eq!(rig.told(over, SentBytes::default()).await.status, exited(3));
    let (unfinished, lost) = (rig.run(&waits).await, rig.run(&waits).await);
    let half = CommandId::new();
    // The agent was killed while it removed this one.
    fs::create_dir(rig.path("exec").join(half.to_string())).unwrap();
    let mut rig = rig.again();
    rig.executor.sweep(&[unfinished].into()).await;
    let left = || -> BTreeSet<String> {
        let entries = fs::read_dir(rig.folder.path().join("exec")).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    };
    assert_eq!(left(), [unfinished, lost].map(|id| id.to_string()).into(), "what runs is left alone");
    fs::write(&go, "").unwrap();
    for id in [unfinished, lost] {
        rig.executor.resume(id, &waits, SentBytes::default()).await;
        assert_eq!(rig.told(id, SentBytes::default()).await.status, exited(0));
    }
    rig.executor.sweep(&BTreeSet::new()).await;
    assert_eq!(fs::read_dir(rig.path("exec")).unwrap().count(), 0);
}

/// An agent that is killed while it forgets a command finds its note, and forgets it then.
#[tokio::test]
async fn note_of_a_command_goes_after_its_folder() {
    let mut rig = Rig::new(4);
    let id = rig.run(&sh("exit 0")).await;
    rig.told(id, SentBytes::default()).await;
    rig.executor.note(id, "{}".to_owned()).await;
    let events = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC).unwrap();
    inotify::add_watch(&events, rig.path("exec"), WatchFlags::DELETE).unwrap();
    rig.executor.forget(id).await;
    let mut buffer = [MaybeUninit::uninit(); 4096];
    let mut reader = inotify::Reader::new(&events, &mut buffer);
    let mut deleted = Vec::new();
    while let Ok(event) = reader.next() {
        deleted.push(event.file_name().unwrap().to_str().unwrap().to_owned());
    }
    assert_eq!(deleted, [id.to_string(), format!("{id}.json")]);
}

#[tokio::test]
async fn command_with_killed_shim_is_lost() {
    let mut rig = Rig::new(4);
    let (go, pids) = (rig.path("go"), rig.path("pids"));
    let script = "echo $$ >> PIDS; while ! [ -e GO ]; do sleep 0.02; done; echo last";
    let exec = sh(&script.replace("PIDS", &pids.display().to_string()).replace("GO", &go.display().to_string()));
    let id = rig.run(&exec).await;
    let read = || fs::read_to_string(&pids).unwrap_or_default();
    while !read().ends_with('\n') {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let main: i32 = read().trim().parse().unwrap();
    let shim = muster_shim::process_identity::stat(main).unwrap().ppid;
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(shim), nix::sys::signal::SIGKILL).unwrap();
    fs::write(&go, "").unwrap();
    let told = rig.told(id, SentBytes::default()).await;
    assert_eq!(told.status, Status::Lost);
    assert_eq!(read().lines().count(), 1);
}

#[tokio::test]
async fn failed_folder_is_a_failure() {
    let mut rig = Rig::new(4);
    fs::write(rig.path("exec"), "a file").unwrap();
    let told = rig.outcome(&sh("exit 0")).await;
    assert!(matches!(told.status, Status::Failed { .. }), "{told:?}");
}
