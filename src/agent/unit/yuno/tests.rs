//! Tests of yunos as real processes under real shims, with their artifacts in place.

use std::{collections::BTreeMap, fs, os::unix::fs::PermissionsExt, sync::Arc, time::Duration};

use muster_base::clock::now_ms;
use muster_bus::sealing::HostKey;
use muster_rules::CommandRefusal;
use muster_session::unit_state::UnitState;
use muster_topics::{
    command::{LogView, Verb},
    join::Membership,
    name::HostId,
    unit::{Exit, Phase, Run},
};
use nix::{
    sys::signal::{Signal, kill},
    unistd::{self, Pid},
};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::{
    join::MemberIdentity,
    store::{self, Store},
    unit::Units,
};

mod asked;
mod content;
mod given;
mod probed;

const SERVICE: &str = "#!/bin/sh\necho started as $MUSTER_UNIT in $MUSTER_REALM with $1\nwhile :; do sleep 1; done\n";

/// A host; what it runs outlives its agent.
struct Host {
    folder: tempfile::TempDir,
    store: Store,
    units: Units,
    artifacts: Artifacts,
    identity: watch::Receiver<Arc<MemberIdentity>>,
    shutdown: CancellationToken,
}

pub(in crate::unit) fn identity() -> watch::Receiver<Arc<MemberIdentity>> {
    // Nothing has to be fetched here.
    let membership = crate::testing::empty_membership(HostId::random());
    watch::channel(Arc::new(MemberIdentity { membership, key: String::new() })).1
}

impl Host {
    async fn start() -> Self {
        Self::start_as(identity()).await
    }

    async fn start_as(identity: watch::Receiver<Arc<MemberIdentity>>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(&folder.path().join("agent.db")).await.unwrap();
        let artifacts = Artifacts::open(folder.path(), identity.clone(), None).unwrap();
        let (units, shutdown) = Self::agent(&store, folder.path(), &identity, artifacts.clone()).await;
        Self { folder, store, units, artifacts, identity, shutdown }
    }

    async fn agent(
        store: &Store,
        folder: &Path,
        identity: &watch::Receiver<Arc<MemberIdentity>>,
        artifacts: Artifacts,
    ) -> (Units, CancellationToken) {
        let shutdown = CancellationToken::new();
        let shims = Shims::install(folder).unwrap();
        let host = identity.borrow().membership.host;
        let units = Units::start(
            store.clone(),
            (host, HostKey::generate().unwrap()),
            shims,
            artifacts,
            folder.to_owned(),
            (&Default::default(), &Default::default(), &Default::default()),
            shutdown.clone(),
        )
        .await
        .unwrap();
        (units, shutdown)
    }

    async fn stop_agent(&self) {
        self.shutdown.cancel();
        let mut states = self.units.states();
        while states.changed().await.is_ok() {}
    }

    async fn restart_agent(&mut self) {
        self.stop_agent().await;
        self.artifacts = Artifacts::open(self.folder.path(), self.identity.clone(), None).unwrap();
        let artifacts = self.artifacts.clone();
        (self.units, self.shutdown) = Self::agent(&self.store, self.folder.path(), &self.identity, artifacts).await;
    }

    /// Puts a program where it would have been installed.
    fn add(&self, content: &str) -> Digest {
        let sha256 = Digest::of(content.as_bytes());
        let path = self.folder.path().join("artifacts").join(sha256.as_str());
        fs::write(&path, content).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o555)).unwrap();
        sha256
    }

    fn apply(&self, unit: &UnitName, program: &str, fields: Value) -> Verb {
        let artifact = json!({"sha256": self.add(program), "size_bytes": program.len(), "role": "a", "version": "1"});
        let mut spec = json!({"kind": "yuno", "artifact": artifact, "started_after_ms": 100});
        spec.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        let spec: Spec = serde_json::from_value(spec).unwrap();
        Verb::UnitApply { unit: unit.clone(), spec: Box::new(spec), run: Some(Run::Running) }
    }

    async fn verb(&self, unit: &UnitName, verb: &Verb) -> Result<Option<store::unit::AppliedChange>, CommandRefusal> {
        let operator = "anna".parse().unwrap();
        let asker = store::unit::ChangeContext {
            operator: &operator,
            now_ms: now_ms(),
            key: None,
            is_document: false,
            values: None,
        };
        let mut tx = self.store.begin().await.unwrap();
        let result = store::unit::edit(&mut tx, unit, verb, asker).await.unwrap();
        tx.commit().await.unwrap();
        self.units.desired_changed();
        result
    }

    async fn until(&self, unit: &UnitName, what: impl Fn(&UnitState) -> bool) -> UnitState {
        let mut states = self.units.states();
        let found = states.wait_for(|states| states.get(unit).is_some_and(|state| what(state)));
        match tokio::time::timeout(Duration::from_secs(60), found).await {
            Ok(states) => states.unwrap()[unit].as_ref().clone(),
            Err(_) => panic!("{unit} is not as it should be: {:#?}", self.units.states().borrow().get(unit)),
        }
    }

    /// Waits until a unit has come to this, as it is desired now.
    async fn until_phase(&self, unit: &UnitName, phase: Phase) -> UnitState {
        let rows = self.store.units().await.unwrap().units;
        let generation = rows.iter().find(|row| row.name == *unit).unwrap().desired.generation;
        self.until(unit, |state| state.observed.phase() == phase && state.observed.generation == generation).await
    }

    async fn stop(&self, unit: &UnitName) -> UnitState {
        self.verb(unit, &Verb::UnitStop { unit: unit.clone() }).await.unwrap();
        self.until_phase(unit, Phase::Stopped).await
    }

    async fn logs_until(&self, unit: &UnitName, words: &str) -> String {
        loop {
            let logs =
                String::from_utf8(self.units.log(unit, FollowFrom::Last(100), LogView::default()).await.unwrap().text)
                    .unwrap();
            if logs.contains(words) {
                return logs;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    fn unit_folder(&self) -> PathBuf {
        self.folder.path().join("units/default/hello")
    }
}

impl Drop for Host {
    /// A test that failed leaves nothing behind either.
    fn drop(&mut self) {
        let states: BTreeMap<_, _> = (**self.units.states().borrow()).clone();
        for (pid, start_ticks) in states.values().filter_map(|state| state.process) {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            // The same process still, and not a later one with its number.
            if stat.rsplit(')').next().and_then(|rest| rest.split(' ').nth(20)) == Some(&start_ticks.to_string()) {
                let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
            }
        }
    }
}

fn unit() -> UnitName {
    "default/hello".parse().unwrap()
}

fn pid(state: &UnitState) -> Pid {
    Pid::from_raw(state.observed.instance().pid.unwrap())
}

fn is_alive(pid: Pid) -> bool {
    kill(pid, None).is_ok()
}

#[tokio::test]
async fn a_process_runs_outlives_its_agent_and_stops() {
    let mut host = Host::start().await;
    let unit = unit();
    host.verb(&unit, &host.apply(&unit, SERVICE, json!({"args": ["now"]}))).await.unwrap();
    let before = host.until_phase(&unit, Phase::Running).await;
    assert!(is_alive(pid(&before)));
    host.logs_until(&unit, "started as default/hello in default with now").await;

    host.restart_agent().await;
    let after = host.until(&unit, |state| state.process.is_some()).await;
    assert_eq!((after.process, &after.observed), (before.process, &before.observed));

    let state = host.stop(&unit).await;
    assert_eq!(state.observed.exit(), Some(Exit::Signal(15)));
    assert!(!is_alive(pid(&before)));
    host.verb(&unit, &Verb::UnitRetire { unit: unit.clone(), note: None }).await.unwrap();
    assert_eq!(host.verb(&unit, &Verb::UnitRm { unit: unit.clone() }).await, Ok(None));
    let gone = async {
        while host.folder.path().join("units/default").exists() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), gone).await.unwrap();
}

#[tokio::test]
async fn its_environment_is_what_the_agent_says() {
    let host = Host::start().await;
    let unit = unit();
    let program = "#!/bin/sh\nenv\npwd\necho arg=$1\ncat $MUSTER_CONFIG\nexec sleep 1000\n";
    let content = br#"{"colour":"blue"}"#;
    let fields = json!({
        "args": ["--config={config}"],
        "env": {"COLOUR": "green", "PATH": "/bin"},
        "configs": [{"id": "hello", "version": "1", "sha256": Digest::of(content)}],
    });
    let verb = host.apply(&unit, program, fields);
    let Verb::UnitApply { spec, .. } = &verb else { unreachable!() };
    // As it is written once it was fetched.
    let revision = spec.revision().unwrap();
    let materials = Materials::new(host.unit_folder().join("rev").join(revision.short()));
    let configs = [(of_yuno(spec).unwrap().configs[0].clone(), json!({"colour": "blue"}))];
    materials.write(&revision, &configs, BTreeMap::new()).unwrap();
    let config = materials.merged();
    host.verb(&unit, &verb).await.unwrap();
    host.until_phase(&unit, Phase::Running).await;
    let logs = host.logs_until(&unit, "blue").await;
    let work = host.unit_folder().join("work");
    let lines: BTreeSet<&str> = logs.lines().collect();
    for line in [
        "COLOUR=green",
        "PATH=/bin",
        "MUSTER_UNIT=default/hello",
        "MUSTER_REALM=default",
        &format!("MUSTER_CONFIG={}", config.display()),
        &format!("arg=--config={}", config.display()),
        &format!("HOME={}", work.display()),
        &work.display().to_string(),
        r#"{"colour":"blue"}"#,
    ] {
        assert!(lines.contains(line), "{line} is not in {logs}");
    }
    assert!(!logs.contains("CARGO"), "the agent's own environment is none of its business");
    host.stop(&unit).await;
}

#[tokio::test]
async fn a_crash_is_seen_and_mended() {
    let host = Host::start().await;
    let unit = unit();
    host.verb(&unit, &host.apply(&unit, SERVICE, json!({}))).await.unwrap();
    let first = host.until_phase(&unit, Phase::Running).await;
    kill(pid(&first), Signal::SIGSEGV).unwrap();
    let second = host
        .until(&unit, |state| {
            state.observed.phase() == Phase::Running && state.observed.instance().pid != first.observed.instance().pid
        })
        .await;
    assert_eq!((second.observed.exit(), second.observed.attempts), (Some(Exit::Signal(11)), 1));
    host.stop(&unit).await;
}

#[tokio::test]
async fn what_crashes_at_once_waits_and_survives_the_agent_in_that() {
    let mut host = Host::start().await;
    let unit = unit();
    host.verb(&unit, &host.apply(&unit, "#!/bin/sh\nexit 3\n", json!({}))).await.unwrap();
    let state = host.until_phase(&unit, Phase::Backoff).await;
    assert_eq!((state.observed.exit(), state.observed.attempts), (Some(Exit::Code(3)), 3));
    assert!(state.observed.retry_ms().is_some());
    host.restart_agent().await;
    let shims = Shims::install(host.folder.path()).unwrap();
    assert!(matches!(shims.adopt(&host.unit_folder().join("run")).await.unwrap(), shim::AdoptedShim::Ended(_)));
    assert_eq!(host.until_phase(&unit, Phase::Backoff).await.observed, state.observed);
    host.stop(&unit).await;
}

#[tokio::test]
async fn what_ended_while_the_agent_was_away_is_known() {
    let mut host = Host::start().await;
    let unit = unit();
    let verb = host.apply(&unit, "#!/bin/sh\nread line < fifo\nexit 7\n", json!({"restart": "never"}));
    let work = host.unit_folder().join("work");
    fs::create_dir_all(&work).unwrap();
    unistd::mkfifo(&work.join("fifo"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    host.verb(&unit, &verb).await.unwrap();
    host.until_phase(&unit, Phase::Running).await;
    host.stop_agent().await;
    let fifo = work.join("fifo");
    tokio::task::spawn_blocking(move || fs::write(fifo, "go\n")).await.unwrap().unwrap();
    host.restart_agent().await;
    let state = host.until_phase(&unit, Phase::Failed).await;
    assert_eq!(state.observed.exit(), Some(Exit::Code(7)));
}

#[tokio::test]
async fn what_is_no_program_fails_and_the_right_one_heals() {
    let host = Host::start().await;
    let unit = unit();
    for (program, words, phase) in [
        ("this is no program", "is not a program for this machine", Phase::Failed),
        // It may be installed yet.
        ("#!/no/such/interpreter\n", "is missing on this host", Phase::Backoff),
    ] {
        host.verb(&unit, &host.apply(&unit, program, json!({}))).await.unwrap();
        let state = host.until_phase(&unit, phase).await;
        let error = state.observed.error.as_ref().unwrap();
        assert!(format!("{error:#}").contains(words), "{state:?}");
    }
    host.verb(&unit, &host.apply(&unit, SERVICE, json!({"user": "nobody-of-this-name"}))).await.unwrap();
    let state = host.until_phase(&unit, Phase::Backoff).await;
    assert!(state.observed.error.as_ref().unwrap().cause.contains("nobody-of-this-name"), "{state:?}");
    host.verb(&unit, &host.apply(&unit, SERVICE, json!({}))).await.unwrap();
    let state = host.until_phase(&unit, Phase::Running).await;
    assert_eq!(state.observed.error, None);
    host.stop(&unit).await;
}

#[tokio::test]
async fn what_does_not_want_to_end_is_killed() {
    let host = Host::start().await;
    let unit = unit();
    let program = "#!/bin/sh\ntrap '' TERM\necho ready\nwhile :; do sleep 1; done\n";
    host.verb(&unit, &host.apply(&unit, program, json!({"grace_ms": 100}))).await.unwrap();
    let before = host.until_phase(&unit, Phase::Running).await;
    host.logs_until(&unit, "ready").await;
    let state = host.stop(&unit).await;
    assert_eq!(state.observed.exit(), Some(Exit::Signal(9)));
    assert!(!is_alive(pid(&before)));
}

#[tokio::test]
async fn a_new_revision_takes_the_place_of_the_old_one() {
    let host = Host::start().await;
    let unit = unit();
    host.verb(&unit, &host.apply(&unit, SERVICE, json!({}))).await.unwrap();
    let first = host.until_phase(&unit, Phase::Running).await;
    fs::write(host.unit_folder().join("work/data"), "kept").unwrap();
    host.verb(&unit, &host.apply(&unit, SERVICE, json!({"args": ["again"]}))).await.unwrap();
    let second = host.until_phase(&unit, Phase::Running).await;
    assert!(!is_alive(pid(&first)) && is_alive(pid(&second)));
    assert_ne!(first.observed.revision, second.observed.revision);
    host.logs_until(&unit, "with again").await;
    assert_eq!(fs::read_to_string(host.unit_folder().join("work/data")).unwrap(), "kept");
    host.verb(&unit, &Verb::UnitRestart { unit: unit.clone() }).await.unwrap();
    let third = host.until_phase(&unit, Phase::Running).await;
    assert!(!is_alive(pid(&second)) && is_alive(pid(&third)));
    // Revisions that are past are tidied away, but for the one before.
    assert!(folders::names(&host.unit_folder().join("rev")).unwrap().len() <= 2);
    host.stop(&unit).await;
}

#[test]
fn what_can_be_gone_back_to_is_not_tidied_away() {
    let folder = tempfile::tempdir().unwrap();
    let shims = crate::shim_folders::ShimFolders::on_disk(folder.path());
    let place = InstanceFolder { folder: folder.path().to_owned(), slot: Slot::First, shims };
    let [first, second, third] = ["1", "2", "3"].map(|text| Digest::of(text.as_bytes()));
    place.prepare(&first, None, Some((&[], &BTreeMap::new()))).unwrap();
    for (revision, left) in [(&second, [&first, &second]), (&third, [&first, &third]), (&second, [&first, &second])] {
        place.prepare(revision, Some(&first), Some((&[], &BTreeMap::new()))).unwrap();
        let mut left = left.map(Digest::short);
        let mut there = folders::names(&folder.path().join("rev")).unwrap();
        left.sort_unstable();
        there.sort_unstable();
        assert_eq!(there, left);
    }
    place.prepare(&second, Some(&second), None).unwrap();
    assert_eq!(folders::names(&folder.path().join("rev")).unwrap(), [second.short()]);
}

#[tokio::test]
async fn a_change_that_fails_goes_back_to_what_was_verified() {
    let host = Host::start().await;
    let unit = unit();
    host.verb(&unit, &host.apply(&unit, SERVICE, json!({"verify_after_ms": 1}))).await.unwrap();
    let before = host.until(&unit, |state| state.observed.trial.verified().is_some()).await;
    host.verb(&unit, &host.apply(&unit, "#!/bin/sh\necho no such table\nexit 4\n", json!({}))).await.unwrap();
    let after = host.until(&unit, |state| state.observed.rolled_back().is_some() && state.process.is_some()).await;
    let back = after.observed.rolled_back().cloned().unwrap();
    assert_eq!(
        (&after.observed.revision, after.observed.trial.verified()),
        (&before.observed.revision, before.observed.trial.verified())
    );
    assert_eq!((Some(back.to), back.revision), (before.observed.revision, after.desired.revision.clone()));
    assert!(back.error.cause.contains("exit code 4") && back.last_lines.unwrap().ends_with("no such table\n"));
    assert_eq!(after.spec.as_deref(), Some(&*before.desired.spec));
    host.stop(&unit).await;
}

#[tokio::test]
async fn a_store_that_was_lost_ends_no_unit() {
    let mut host = Host::start().await;
    let unit = unit();
    let verb = host.apply(&unit, SERVICE, json!({}));
    host.verb(&unit, &verb).await.unwrap();
    let before = host.until_phase(&unit, Phase::Running).await;
    host.stop_agent().await;
    host.store.close().await;
    host.store = Store::open(&host.folder.path().join("another.db")).await.unwrap();
    host.store.begin_life(now_ms() + 1).await.unwrap();
    (host.units, host.shutdown) =
        Host::agent(&host.store, host.folder.path(), &host.identity, host.artifacts.clone()).await;
    assert!(host.units.states().borrow().is_empty());
    host.verb(&unit, &verb).await.unwrap();
    let after = host.until_phase(&unit, Phase::Running).await;
    assert_eq!(after.process, before.process);
    host.stop(&unit).await;
}

#[tokio::test]
async fn another_user_needs_the_way_to_its_program() {
    if !unistd::geteuid().is_root() {
        return;
    }
    let host = Host::start().await;
    let unit = unit();
    for (mode, phase) in [(0o700, Phase::Backoff), (0o711, Phase::Running)] {
        fs::set_permissions(host.folder.path(), fs::Permissions::from_mode(mode)).unwrap();
        let fields = json!({"user": "nobody", "args": [mode.to_string()]});
        host.verb(&unit, &host.apply(&unit, SERVICE, fields)).await.unwrap();
        let state = host.until_phase(&unit, phase).await;
        let hinted =
            state.observed.error.and_then(|error| error.hint).is_some_and(|hint| hint.contains("`chmod o+x /"));
        assert_eq!(hinted, phase == Phase::Backoff);
    }
    host.stop(&unit).await;
}

#[tokio::test]
async fn a_process_of_a_unit_that_nobody_knows_is_stopped_and_removed() {
    let mut host = Host::start().await;
    let unit = unit();
    host.verb(&unit, &host.apply(&unit, SERVICE, json!({}))).await.unwrap();
    let state = host.until_phase(&unit, Phase::Running).await;
    host.stop_agent().await;
    let mut tx = host.store.begin().await.unwrap();
    sqlx::query("DELETE FROM unit").execute(&mut *tx).await.unwrap();
    tx.commit().await.unwrap();
    host.restart_agent().await;
    let gone = async {
        while host.unit_folder().exists() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), gone).await.unwrap();
    assert!(!is_alive(pid(&state)));
}
