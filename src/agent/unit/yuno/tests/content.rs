//! Tests of what is done when the content that an instance was started from changes on the disk.

use muster_topics::canonical;

use super::*;
use crate::testing::{Authority, server};

/// As long as [`SERVICE`] is, and says something else.
const OTHER: &str = "#!/bin/sh\necho changed\nexec sleep 1000\n";

const CONFIG: &[u8] = br#"{"colour":"blue"}"#;

type Damage = fn(&Bench);

/// A host whose console has the program and the config of its unit.
struct Bench {
    host: Host,
    unit: UnitName,
    artifact: PathBuf,
    /// The folder of its revision.
    revision: PathBuf,
}

impl Bench {
    async fn start(fields: Value) -> Self {
        let authority = Authority::new();
        let (url, _) = server(authority.console_tls(), |path, _| {
            let artifact = format!("/v1/artifacts/{}", Digest::of(SERVICE.as_bytes()));
            let config = format!("/v1/configs/{}", Digest::of(CONFIG));
            let known = [(artifact, SERVICE.as_bytes()), (config, CONFIG)];
            let found = known.into_iter().find(|(known, _)| known == path);
            found.map_or((404, b"{}".to_vec()), |(_, content)| (200, content.to_vec()))
        })
        .await;
        let (certificate, key) = authority.issue("host");
        let membership = identity().borrow().membership.clone();
        let membership = Membership { console_url: url, authority: authority.pem(), certificate, ..membership };
        let host = Host::start_as(watch::channel(Arc::new(MemberIdentity { membership, key })).1).await;
        let unit = unit();
        let config = json!({"id": "hello", "version": "1", "sha256": Digest::of(CONFIG)});
        let mut all = json!({"configs": [config], "provides": [{"name": "web"}]});
        all.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        host.verb(&unit, &host.apply(&unit, SERVICE, all)).await.unwrap();
        host.until_phase(&unit, Phase::Running).await;
        let artifact = host.artifacts.path(&Digest::of(SERVICE.as_bytes()));
        let revisions = fs::read_dir(host.unit_folder().join("rev")).unwrap();
        let revision = revisions.map(|entry| entry.unwrap().path()).next().unwrap();
        Self { host, unit, artifact, revision }
    }

    /// A file below the folder of the unit's revision.
    fn config(&self, name: &str) -> PathBuf {
        self.revision.join(name)
    }

    /// The content of every file that the unit was started from.
    fn content(&self) -> Vec<Option<Vec<u8>>> {
        let names = ["config.json", "hello.json", ".muster.json", "wired/config.json"];
        let paths = names.map(|name| self.config(name));
        paths.iter().chain([&self.artifact]).map(|path| fs::read(path).ok()).collect()
    }

    /// Has the disk looked at until this holds.
    async fn until(&self, what: &str, holds: impl Fn(&UnitState) -> bool) -> UnitState {
        let deadline = tokio::time::Instant::now() + Duration::from_secs(60);
        loop {
            self.host.units.look();
            let state = self.host.units.states().borrow().get(&self.unit).cloned().unwrap();
            if holds(&state) {
                return state.as_ref().clone();
            }
            assert!(tokio::time::Instant::now() < deadline, "{what}: {:#?}", state.observed);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Waits until the artifact and the config were seen as they should be after the process began.
    async fn until_seen(&self) {
        let installed = self.host.artifacts.installed();
        let paths = [self.artifact.clone(), self.config("config.json")];
        let is_seen = |path: &PathBuf, state: &UnitState| {
            let started = state.process.map(|(_, ticks)| ticks);
            installed.whole_ms(path).is_some_and(|ms| Some(crate::metric::ticks_of_ms(ms)) > started)
        };
        self.until("nothing was looked at", |state| paths.iter().all(|path| is_seen(path, state))).await;
    }
}

/// Changes a file so that its length and the time of its content are as before.
fn flip(path: &Path) {
    let modified = fs::metadata(path).unwrap().modified().unwrap();
    let mut bytes = fs::read(path).unwrap();
    bytes[3] ^= 1;
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    fs::write(path, bytes).unwrap();
    fs::File::open(path).unwrap().set_modified(modified).unwrap();
}

#[tokio::test]
async fn changed_content_of_running_unit_is_put_right() {
    assert_eq!(canonical::to_bytes(&canonical::parse(CONFIG).unwrap()).unwrap(), CONFIG);
    let damages: [&[Damage]; 3] = [
        &[
            |bench| {
                // A program that runs cannot be written, but replaced.
                let content = fs::read(&bench.artifact).unwrap();
                fs::remove_file(&bench.artifact).unwrap();
                fs::write(&bench.artifact, content).unwrap();
                flip(&bench.artifact);
            },
            |bench| fs::remove_file(&bench.artifact).unwrap(),
            |bench| {
                fs::remove_file(&bench.artifact).unwrap();
                fs::create_dir(&bench.artifact).unwrap();
            },
        ],
        &[
            |bench| flip(&bench.config("config.json")),
            |bench| fs::remove_file(bench.config("hello.json")).unwrap(),
            |bench| fs::write(bench.config(".muster.json"), "x").unwrap(),
        ],
        &[
            |bench| flip(&bench.config("wired/config.json")),
            |bench| fs::remove_dir_all(bench.config("wired")).unwrap(),
            |bench| fs::remove_dir_all(bench.config("")).unwrap(),
        ],
    ];
    for (group, damages) in damages.iter().enumerate() {
        let bench = Bench::start(json!({})).await;
        let right = bench.content();
        assert!(right.iter().all(Option::is_some), "{right:?}");
        let before = bench.host.until_phase(&bench.unit, Phase::Running).await;
        for (number, damage) in damages.iter().enumerate() {
            damage(&bench);
            let what = format!("damage {number} of {group}");
            let after = bench.until(&what, |_| bench.content() == right).await;
            assert_eq!(after.process, before.process, "{what}: the process goes on");
        }
        let after = bench.until("something is reported", |state| state.observed.instance().drift.is_empty()).await;
        assert_eq!(after.process, before.process);
        bench.host.stop(&bench.unit).await;
    }
}

#[tokio::test]
async fn process_that_may_run_changed_content_is_restarted() {
    let bench = Bench::start(json!({})).await;
    bench.until_seen().await;
    let before = bench.host.until_phase(&bench.unit, Phase::Running).await;
    // What is held is left as it is until that ends.
    let hold = Verb::UnitHold { unit: bench.unit.clone(), note: None };
    bench.host.verb(&bench.unit, &hold).await.unwrap();
    bench.host.until(&bench.unit, |state| state.hold.is_some()).await;
    fs::remove_file(&bench.artifact).unwrap();
    fs::write(&bench.artifact, OTHER).unwrap();
    fs::set_permissions(&bench.artifact, fs::Permissions::from_mode(0o755)).unwrap();
    // Its shim starts it again by itself, from what lies there.
    kill(pid(&before), Signal::SIGKILL).unwrap();
    bench.host.logs_until(&bench.unit, "changed\n").await;
    let is_told =
        |state: &UnitState| state.observed.instance().drift.iter().any(|one| one.cause.contains("artifact a@1"));
    bench.until("nothing is reported", is_told).await;
    bench.host.verb(&bench.unit, &Verb::UnitUnhold { unit: bench.unit.clone() }).await.unwrap();
    let is_right = || fs::read(&bench.artifact).is_ok_and(|content| content == SERVICE.as_bytes());
    bench.until("it is not put right", |_| is_right()).await;
    let is_restarted = |state: &UnitState| {
        let command =
            state.observed.instance().pid.map(|pid| fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default());
        let is_shell = command.is_some_and(|command| command.starts_with(b"/bin/sh"));
        is_shell && state.observed.phase() == Phase::Running
    };
    bench.until("what runs is not what was installed", is_restarted).await;
    bench.host.stop(&bench.unit).await;
}

#[tokio::test]
async fn content_is_left_if_drift_is_reported_and_after_a_fight() {
    let changed =
        |state: &UnitState, words: &str| state.observed.instance().drift.iter().any(|one| one.cause.contains(words));
    let bench = Bench::start(json!({"drift": "report"})).await;
    let (right, path) = (bench.content(), bench.config("config.json"));
    flip(&path);
    bench.until("nothing is reported", |state| changed(state, "config.json: its content differs")).await;
    assert_ne!(bench.content(), right);
    fs::write(&path, CONFIG).unwrap();
    bench.until("it is as it should be", |state| state.observed.instance().drift.is_empty()).await;
    bench.host.stop(&bench.unit).await;

    let bench = Bench::start(json!({})).await;
    let (right, path) = (bench.content(), bench.config("config.json"));
    for time in 0..3 {
        flip(&path);
        bench.until(&format!("time {time}"), |_| bench.content() == right).await;
    }
    // It may take until the next look that the last correction is counted.
    bench.until_seen().await;
    flip(&path);
    bench.until("the fight goes on", |state| changed(state, "3 times within an hour")).await;
    assert_ne!(bench.content(), right);
    bench.host.stop(&bench.unit).await;
}
