//! With real commands under real shims.

use std::{collections::BTreeMap, fs, os::unix::fs::PermissionsExt, time::Duration};

use muster_topics::{outcome::CHUNK_MAX_BYTES, unit::Exit};
use tokio::time::timeout;

use super::*;
use crate::agent::shim::tests::shims;

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
        let executor = Executor::new(folder.path().join("exec"), shims(), parallel_max, sender);
        Self { folder, executor, events }
    }

    /// The same folder after the agent was started again.
    fn again(self) -> Self {
        let (sender, events) = mpsc::channel(4);
        let executor = Executor::new(self.folder.path().join("exec"), shims(), 4, sender);
        Self { folder: self.folder, executor, events }
    }

    async fn run(&self, exec: &Exec) -> CommandId {
        let id = CommandId::new();
        self.executor.run(id, exec).await.unwrap();
        id
    }

    async fn event(&mut self) -> ExecEvent {
        timeout(Duration::from_secs(60), self.events.recv()).await.unwrap().unwrap()
    }

    /// Everything up to the end of a command, checked for order; output begins after `sent`.
    async fn told(&mut self, wanted: CommandId, sent: Sent) -> Told {
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
        self.told(id, Sent::default()).await
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }
}

fn exec(argv: &[&str]) -> Exec {
    Exec {
        argv: argv.iter().map(|word| (*word).to_owned()).collect(),
        cwd: None,
        env: BTreeMap::new(),
        user: None,
        timeout_ms: 60_000,
        output_max_bytes: 1024 * 1024,
    }
}

fn sh(script: &str) -> Exec {
    exec(&["sh", "-c", script])
}

fn exited(code: i32) -> Status {
    Status::Exited { exit: Exit::Code(code) }
}

#[tokio::test]
async fn a_short_command_is_told_in_one_message() {
    let mut rig = Rig::new(4);
    let told = rig.outcome(&sh("echo out; echo err >&2; exit 3")).await;
    assert_eq!((told.status, told.pieces), (exited(3), 0));
    assert_eq!(told.rest, (b"out\n".to_vec(), b"err\n".to_vec()));
    let told = rig.outcome(&sh("kill -9 $$")).await;
    assert_eq!(told.status, Status::Exited { exit: Exit::Signal(9) });
    let told = rig.outcome(&exec(&["true"])).await;
    assert_eq!((told.status, told.pieces, told.rest), (exited(0), 0, (vec![], vec![])));
}

#[tokio::test]
async fn much_output_comes_in_pieces_that_are_texts() {
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
async fn a_long_command_is_told_as_it_prints() {
    let mut rig = Rig::new(4);
    let go = rig.path("go");
    let script = format!("echo first; while ! [ -e {} ]; do sleep 0.02; done; echo last", go.display());
    let id = rig.run(&sh(&script)).await;
    let ExecEvent::Output { bytes, offset_bytes: 0, stream: Stream::Stdout, .. } = rig.event().await else { panic!() };
    assert_eq!(bytes, b"first\n");
    fs::write(go, "").unwrap();
    let told = rig.told(id, Sent { stdout_bytes: 6, stderr_bytes: 0 }).await;
    assert_eq!((told.status.clone(), told.stdout()), (exited(0), b"last\n".to_vec()));
}

#[tokio::test]
async fn what_is_over_the_limit_is_counted() {
    let mut rig = Rig::new(4);
    let told = rig.outcome(&Exec { output_max_bytes: 10, ..sh("echo 123456789012345; echo err >&2") }).await;
    assert_eq!((told.rest, told.dropped_bytes), ((b"1234567890".to_vec(), b"err\n".to_vec()), (6, 0)));
}

#[tokio::test]
async fn endless_output_ends_with_the_time() {
    let mut rig = Rig::new(4);
    let told = rig.outcome(&Exec { timeout_ms: 300, output_max_bytes: 100_000, ..exec(&["yes"]) }).await;
    assert_eq!(told.status, Status::TimedOut);
    assert_eq!(told.stdout(), b"y\n".repeat(50_000));
    assert!(told.dropped_bytes.0 > 0);
}

#[tokio::test]
async fn what_cannot_be_begun_is_refused_and_nothing_is_left() {
    let mut rig = Rig::new(4);
    for (exec, code, told) in [
        (exec(&["no-such-program"]), RefusalCode::NotFound, "no-such-program"),
        (exec(&["/no/such/program"]), RefusalCode::NotFound, "/no/such/program: No such file"),
        (exec(&["/etc/passwd"]), RefusalCode::NotFound, "is it executable"),
        (Exec { cwd: Some("/no/such".into()), ..sh("") }, RefusalCode::NotFound, "working directory /no/such"),
        (Exec { user: Some("no-such-user".into()), ..sh("") }, RefusalCode::NotFound, "no-such-user"),
        (exec(&[]), RefusalCode::Invalid, "no program"),
    ] {
        let refusal = rig.executor.run(CommandId::new(), &exec).await.unwrap_err();
        assert_eq!(refusal.code, code, "{refusal:?}");
        assert!(refusal.message.contains(told), "{refusal:?}");
    }
    assert!(rig.events.try_recv().is_err());
    assert_eq!(fs::read_dir(rig.path("exec")).unwrap().count(), 0);
    assert_eq!(rig.outcome(&sh("exit 0")).await.status, exited(0));
}

#[tokio::test]
async fn a_command_has_its_folder_user_and_environment() {
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
        let refusal = rig.executor.run(CommandId::new(), &exec).await.unwrap_err();
        assert_eq!(refusal.code, RefusalCode::Denied, "{refusal:?}");
    }
}

#[tokio::test]
async fn only_so_many_at_once() {
    let mut rig = Rig::new(1);
    let go = rig.path("go");
    let script = format!("while ! [ -e {} ]; do sleep 0.02; done", go.display());
    let id = rig.run(&sh(&script)).await;
    let refusal = rig.executor.run(CommandId::new(), &sh("exit 0")).await.unwrap_err();
    assert_eq!(refusal.code, RefusalCode::Busy);
    fs::write(go, "").unwrap();
    rig.told(id, Sent::default()).await;
    // The place is free a moment after the end is told.
    while rig.executor.places.available_permits() == 0 {
        tokio::task::yield_now().await;
    }
    assert_eq!(rig.outcome(&sh("exit 4")).await.status, exited(4));
}

#[tokio::test]
async fn a_command_is_never_begun_twice() {
    let mut rig = Rig::new(4);
    let once = rig.path("once");
    let exec = sh(&format!("echo x >> {}", once.display()));
    let id = rig.run(&exec).await;
    assert_eq!(rig.told(id, Sent::default()).await.status, exited(0));
    assert_eq!(rig.executor.run(id, &exec).await.unwrap_err().code, RefusalCode::Conflict);
    assert_eq!(fs::read_to_string(once).unwrap(), "x\n");
}

#[tokio::test]
async fn a_restarted_agent_goes_on_where_it_was() {
    let mut rig = Rig::new(4);
    let go = rig.path("go");
    let exec = sh(&format!("echo first; while ! [ -e {} ]; do sleep 0.02; done; echo last; exit 2", go.display()));
    let id = rig.run(&exec).await;
    let ExecEvent::Output { bytes, .. } = rig.event().await else { panic!() };
    let sent = Sent { stdout_bytes: bytes.len() as u64, stderr_bytes: 0 };

    // While it runs.
    let mut rig = rig.again();
    rig.executor.resume(id, &exec, sent).await;
    fs::write(&go, "").unwrap();
    let told = rig.told(id, sent).await;
    assert_eq!((told.status.clone(), told.stdout()), (exited(2), b"last\n".to_vec()));

    // After it has ended, however often: nothing of it is lost, and nothing done again.
    for sent in [Sent::default(), sent] {
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
async fn a_command_whose_shim_was_killed_ends_as_lost_and_runs_once() {
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
    let shim = muster_shim::proc::stat(main).unwrap().ppid;
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(shim), nix::sys::signal::SIGKILL).unwrap();
    fs::write(&go, "").unwrap();
    let told = rig.told(id, Sent::default()).await;
    assert_eq!(told.status, Status::Lost);
    assert_eq!(read().lines().count(), 1);
}

#[tokio::test]
async fn a_folder_that_cannot_be_made_is_a_failure_and_no_refusal() {
    let mut rig = Rig::new(4);
    fs::write(rig.path("exec"), "a file").unwrap();
    let told = rig.outcome(&sh("exit 0")).await;
    assert!(matches!(told.status, Status::Failed { .. }), "{told:?}");
}
