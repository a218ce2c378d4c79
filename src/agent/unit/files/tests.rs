//! Tests of units of files with real files, and the journal in a real store.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::{MetadataExt, PermissionsExt, symlink},
    path::PathBuf,
    time::Instant,
};

use muster_bus::sealing::HostKey;
use muster_rules::port_lease::EndpointWiring;
use muster_topics::{
    files::FilesSpec,
    task::{TaskAction, TaskState},
    unit::{Exit, Run, Spec},
};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::time::timeout;

use super::*;
use crate::unit::kind::InstanceEvent;

const LONG: Duration = Duration::from_secs(20);

struct Bench {
    files: Files,
    store: Store,
    folder: TempDir,
}

impl Bench {
    async fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("etc")).unwrap();
        fs::create_dir(folder.path().join("data")).unwrap();
        Self::over(folder).await
    }

    /// An agent over what an earlier one has left.
    async fn over(folder: TempDir) -> Self {
        let data = folder.path().join("data");
        let store = Store::open(&data.join("agent.db")).await.unwrap();
        let tasks = TaskLog::open(store.clone()).await.unwrap();
        let artifacts = Artifacts::open(&data, crate::unit::yuno::tests::identity(), None).unwrap();
        let host = (muster_topics::name::HostId::random(), HostKey::generate().unwrap());
        let secrets = SecretSource::new(host, artifacts.clone(), tasks.given().clone());
        let files = Files::new(
            &data,
            secrets,
            artifacts,
            &FilesConfig::default(),
            (store.clone(), tasks, Owners::default(), Turns::default()),
        )
        .unwrap();
        Self { files, store, folder }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.folder.path().canonicalize().unwrap().join("etc").join(name)
    }

    /// A spec with these entries by name; what else is in `more`.
    fn spec(&self, entries: &[(&str, Value)], more: Value) -> FilesSpec {
        let entries: BTreeMap<String, &Value> =
            entries.iter().map(|(name, entry)| (self.at(name).to_str().unwrap().to_owned(), entry)).collect();
        let mut spec = json!({ "files": entries });
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        serde_json::from_value(spec).unwrap()
    }

    async fn start(&self, spec: FilesSpec) -> Result<FilesInstance, String> {
        let spec = Spec::Files(spec);
        let revision = spec.revision().unwrap();
        let desired = Desired { generation: 1, revision, spec: spec.into(), run: Run::Running, frozen: false };
        self.files.0.install(&unit(), &desired, None, &|_| ()).await.map_err(|failure| failure.error.cause)?;
        let (slot, wiring) = (Slot::First, EndpointWiring::default());
        let order = StartOrder { slot, desired, keep: None, wiring, attempts: 0, beside: false };
        self.files.0.start(&unit(), &order).await.map_err(|error| match error {
            StartError::Failed(failure) => failure.error.cause,
            StartError::Unknown => "unknown".into(),
        })
    }

    async fn apply(&self, entries: &[(&str, Value)]) -> Result<FilesInstance, String> {
        self.start(self.spec(entries, json!({}))).await
    }

    fn desired(&self, entries: &[(&str, Value)]) -> Desired {
        let spec = Spec::Files(self.spec(entries, json!({})));
        let revision = spec.revision().unwrap();
        Desired { generation: 1, revision, spec: spec.into(), run: Run::Running, frozen: false }
    }

    /// Makes a revision ready as if its contents came from templates that name secrets.
    async fn stage_secret(&self, entries: &[(&str, Value)]) {
        let mut staged = self.files.0.make(&unit(), &self.desired(entries), &|_| ()).await.unwrap();
        staged.entries.values_mut().for_each(|entry| entry.is_secret = true);
        self.files.0.revisions(&unit()).write(&staged).unwrap();
    }

    /// Everything that the tasks of the unit have said.
    async fn logs(&self) -> String {
        let (tasks, mut all) = (&self.files.0.tasks, String::new());
        for task in tasks.of(&unit()).await.unwrap() {
            all.push_str(&tasks.log(&unit(), task.number, 0).await.unwrap().unwrap().text);
        }
        all
    }

    async fn remove(&self) {
        self.files.0.remove(&unit()).await.unwrap();
    }

    fn text(&self, name: &str) -> String {
        fs::read_to_string(self.at(name)).unwrap()
    }

    fn mode(&self, name: &str) -> u32 {
        fs::symlink_metadata(self.at(name)).unwrap().permissions().mode() & 0o7777
    }

    fn names(&self) -> Vec<String> {
        let mut names: Vec<String> =
            fs::read_dir(self.at("")).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[track_caller]
    fn eventually(&self, what: impl Fn() -> bool) -> impl Future<Output = ()> {
        let caller = std::panic::Location::caller();
        async move {
            let until = Instant::now() + LONG;
            while !what() {
                assert!(Instant::now() < until, "not reached: {caller}");
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
    }
}

fn unit() -> UnitName {
    "default/config".parse().unwrap()
}

async fn next(instance: &mut FilesInstance) -> InstanceEvent {
    timeout(LONG, instance.next()).await.unwrap().unwrap()
}

#[tokio::test]
async fn changes_are_what_an_apply_then_makes() {
    let bench = Bench::new().await;
    fs::write(bench.at("motd"), "before\nsame\n").unwrap();
    fs::set_permissions(bench.at("motd"), fs::Permissions::from_mode(0o644)).unwrap();
    let entries = [
        ("link", json!({"link": "motd"})),
        ("motd", json!({"text": "after\nsame\n", "mode": "0600"})),
        ("new", json!({"text": "x\n"})),
    ];
    let desired = |entries: &[(&str, Value)]| bench.desired(entries);
    let changes = bench.files.0.changes(&unit(), Some(&desired(&entries))).await.unwrap();
    let told: Vec<String> = changes.iter().map(|one| one.sentence()).collect();
    assert_eq!((told[0].as_str(), told[2].as_str()), ("create link to motd", "create file (2 bytes)"));
    assert!(told[1].starts_with("content ") && told[1].ends_with("mode 0644 → 0600"), "{told:?}");
    assert_eq!(changes[1].diff.as_deref(), Some("@@ -1,2 +1,2 @@\n-before\n+after\n same\n"));
    // Nothing was done so far; then it is what was said.
    assert_eq!((bench.names(), bench.text("motd")), (vec!["motd".to_owned()], "before\nsame\n".to_owned()));
    drop(bench.apply(&entries).await.unwrap());
    let after = changes[1].after.as_ref().unwrap();
    assert_eq!(after.sha256, Some(Digest::of(bench.text("motd").as_bytes())));
    assert_eq!(after.mode, Some(format!("{:04o}", bench.mode("motd"))));
    assert_eq!(bench.files.0.changes(&unit(), Some(&desired(&entries))).await.unwrap(), []);
    // What somebody has done since is seen, and what goes is not shown.
    fs::write(bench.at("new"), "by hand\n").unwrap();
    let drift = bench.files.0.changes(&unit(), Some(&desired(&entries))).await.unwrap();
    assert_eq!(drift[0].diff.as_deref(), Some("@@ -1,1 +1,1 @@\n-by hand\n+x\n"));
    let removal = bench.files.0.changes(&unit(), None).await.unwrap();
    let told: Vec<String> = removal.iter().map(|one| one.sentence()).collect();
    assert_eq!(
        (told[0].as_str(), told[2].as_str()),
        ("remove link to motd", "is left unchanged: it was changed outside of muster since")
    );
    assert!(removal[1].is_masked && removal.iter().all(|one| one.diff.is_none()), "{removal:?}");
    let unknown = desired(&[("new", json!({"text": "x\n", "owner": "nobody-of-this-name"}))]);
    let why = bench.files.0.changes(&unit(), Some(&unknown)).await.unwrap_err().error;
    assert!(why.cause.contains("no user nobody-of-this-name"), "{why}");
}

#[tokio::test]
async fn secret_that_a_plain_text_replaces_is_not_shown() {
    let bench = Bench::new().await;
    let with = |text: &str| [("a", json!({"text": text})), ("b", json!({"text": text}))];
    let (secret, plain, later) = (with("password=hunter2\n"), with("password=none\n"), with("password=other\n"));
    bench.stage_secret(&secret).await;
    drop(bench.apply(&secret).await.unwrap());
    for round in ["described", "described, after it was stopped half way"] {
        let changes = bench.files.0.changes(&unit(), Some(&bench.desired(&plain))).await.unwrap();
        assert_eq!(changes.len(), 2, "{round}");
        for change in &changes {
            let shown = (&change.diff, change.is_masked, &change.before.as_ref().unwrap().sha256);
            assert_eq!(shown, (&None, true, &None), "{round}");
        }
        // What comes is not known to be without a secret until it is there.
        let mut interrupted = bench.files.0.journal(&unit()).await.unwrap();
        for entry in interrupted.values_mut() {
            entry.next = entry.made.clone();
        }
        journal::intend(&bench.store, &unit(), &interrupted).await.unwrap();
    }
    drop(bench.apply(&plain).await.unwrap());
    let said = bench.logs().await;
    assert!(said.contains("its content differs") && !said.contains("hunter2"), "{said}");
    // From now on it is as open as any other.
    let changes = bench.files.0.changes(&unit(), Some(&bench.desired(&later))).await.unwrap();
    assert_eq!(changes[0].diff.as_deref(), Some("@@ -1,1 +1,1 @@\n-password=none\n+password=other\n"));
    drop(bench.apply(&later).await.unwrap());
    let said = bench.logs().await;
    assert!(said.contains("+password=other") && !said.contains("hunter2"), "{said}");
    bench.stage_secret(&secret).await;
    drop(bench.apply(&secret).await.unwrap());
    assert!(!bench.logs().await.contains("hunter2"));
}

#[tokio::test]
async fn everything_is_made_and_what_was_there_comes_back() {
    let bench = Bench::new().await;
    fs::write(bench.at("motd"), "before\n").unwrap();
    fs::set_permissions(bench.at("motd"), fs::Permissions::from_mode(0o640)).unwrap();
    fs::write(bench.at("old"), "old\n").unwrap();
    symlink("somewhere", bench.at("link")).unwrap();
    let entries = [
        ("motd", json!({"text": "after\n"})),
        ("new", json!({"text": "new\n", "mode": "0600"})),
        ("old", json!({"absent": true})),
        ("link", json!({"link": "elsewhere"})),
        ("made", json!({"directory": {}, "mode": "0700"})),
        ("made/inner", json!({"text": "inner\n"})),
    ];
    let mut instance = bench.apply(&entries).await.unwrap();
    assert!(
        matches!(next(&mut instance).await, InstanceEvent::Told(told) if told.ready && told.drift == Some(Vec::new()))
    );
    assert_eq!(bench.names(), ["link", "made", "motd", "new"]);
    assert_eq!((bench.text("motd").as_str(), bench.mode("motd")), ("after\n", 0o640), "what is not said stays");
    assert_eq!((bench.mode("new"), bench.mode("made"), bench.mode("made/inner")), (0o600, 0o700, 0o644));
    assert_eq!(fs::read_link(bench.at("link")).unwrap(), Path::new("elsewhere"));
    // The same again changes nothing.
    let inode = fs::metadata(bench.at("motd")).unwrap().ino();
    drop(instance);
    drop(bench.apply(&entries).await.unwrap());
    assert_eq!(fs::metadata(bench.at("motd")).unwrap().ino(), inode);
    // An entry that goes is given back, and the others stay.
    drop(bench.apply(&entries[1..]).await.unwrap());
    assert_eq!((bench.text("motd").as_str(), bench.mode("motd")), ("before\n", 0o640));
    fs::write(bench.at("new"), "somebody else's\n").unwrap();
    bench.remove().await;
    assert_eq!(bench.names(), ["link", "motd", "new", "old"], "what others have changed is not removed");
    assert_eq!(fs::read_link(bench.at("link")).unwrap(), Path::new("somewhere"));
    assert_eq!((bench.text("old").as_str(), bench.text("new").as_str()), ("old\n", "somebody else's\n"));
    assert!(bench.files.traces().unwrap().is_empty());
    assert!(journal::journal(&bench.store, &unit()).await.unwrap().is_empty());
}

#[tokio::test]
async fn drift_is_put_right_at_once_and_a_fight_ends() {
    let bench = Bench::new().await;
    let mut instance = bench.apply(&[("motd", json!({"text": "right\n", "mode": "0644"}))]).await.unwrap();
    next(&mut instance).await;
    let is_right =
        || fs::read_to_string(bench.at("motd")).is_ok_and(|text| text == "right\n") && bench.mode("motd") == 0o644;
    let drifts: [&dyn Fn(); 4] = [
        &|| fs::write(bench.at("motd"), "wrong\n").unwrap(),
        &|| fs::File::options().write(true).open(bench.at("motd")).unwrap().set_len(0).unwrap(),
        &|| fs::rename(bench.at("motd"), bench.at("moved")).unwrap(),
        &|| fs::set_permissions(bench.at("motd"), fs::Permissions::from_mode(0o777)).unwrap(),
    ];
    for drift in drifts {
        let began = Instant::now();
        drift();
        bench.eventually(is_right).await;
        assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
    }
    let at = bench.at("motd");
    let fight = tokio::spawn(async move {
        loop {
            let _ = fs::write(&at, "mine\n");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    });
    let ended = next(&mut instance).await;
    fight.abort();
    let InstanceEvent::Ended(ended) = ended else { panic!("{ended:?}") };
    assert!(ended.last.why.unwrap().cause.contains("keeps changing it"));
}

#[tokio::test]
async fn drift_is_only_reported_if_so_wanted() {
    let bench = Bench::new().await;
    let spec = bench.spec(&[("motd", json!({"text": "right\n"}))], json!({"drift": "report"}));
    let mut instance = bench.start(spec).await.unwrap();
    next(&mut instance).await;
    fs::write(bench.at("motd"), "wrong\n").unwrap();
    let InstanceEvent::Told(told) = next(&mut instance).await else { panic!("it goes on") };
    assert!(told.drift.as_ref().unwrap()[0].cause.contains("motd: its content differs"), "{told:?}");
    fs::write(bench.at("motd"), "right\n").unwrap();
    assert!(matches!(next(&mut instance).await, InstanceEvent::Told(told) if told.drift == Some(Vec::new())));
    assert_eq!(bench.text("motd"), "right\n");
    instance.stop(None, 0).await.unwrap();
    assert!(matches!(next(&mut instance).await, InstanceEvent::Ended(ended) if ended.last.exit == Exit::Code(0)));
}

#[tokio::test]
async fn obstacles_are_told_together_and_change_nothing() {
    let bench = Bench::new().await;
    fs::create_dir(bench.at("folder")).unwrap();
    fs::write(bench.at("folder/full"), "").unwrap();
    symlink("folder", bench.at("link")).unwrap();
    let entries = [
        ("a", json!({"text": "a"})),
        ("folder", json!({"text": "a file over a folder"})),
        ("link", json!({"text": "a file over a link"})),
        ("none/x", json!({"text": "x"})),
        ("link/y", json!({"text": "y"})),
    ];
    let error = bench.apply(&entries).await.err().unwrap();
    for words in ["folder: there is a folder", "link: there is a symbolic link", "none/x: its folder"] {
        assert!(error.contains(words), "{words}: {error}");
    }
    assert_eq!(bench.names(), ["folder", "link"]);
    let error = bench.apply(&[("a", json!({"text": "a", "owner": "no-such-user"}))]).await.err().unwrap();
    assert!(error.contains("no user no-such-user"), "{error}");
    let error = bench.apply(&[("a", json!({"text": "a", "validate": ["sh", "-c", "echo no; exit 1", "{}"]}))]).await;
    assert!(error.err().unwrap().contains("refuses it"));
    assert_eq!(bench.names(), ["folder", "link"]);
    // The same thing done right.
    bench.apply(&[("a", json!({"text": "a", "validate": ["grep", "-q", "a", "{}"]}))]).await.unwrap();
    assert_eq!(bench.text("a"), "a");
}

#[tokio::test]
async fn folder_is_purged_up_to_a_number_and_filled_again() {
    let bench = Bench::new().await;
    fs::create_dir_all(bench.at("conf.d/sub")).unwrap();
    for name in ["conf.d/a", "conf.d/b", "conf.d/sub/c"] {
        fs::write(bench.at(name), name).unwrap();
    }
    let entries = |max: u32| {
        [("conf.d", json!({"directory": {"purge": true, "purge_max": max}})), ("conf.d/own", json!({"text": "own"}))]
    };
    let error = bench.apply(&entries(3)).await.err().unwrap();
    assert!(error.contains("4 files and folders in it are in no unit"), "{error}");
    assert!(bench.at("conf.d/sub/c").exists() && !bench.at("conf.d/own").exists());
    let mut instance = bench.apply(&entries(4)).await.unwrap();
    next(&mut instance).await;
    let inside = || fs::read_dir(bench.at("conf.d")).unwrap().count();
    assert_eq!(inside(), 1);
    fs::write(bench.at("conf.d/stray"), "").unwrap();
    bench.eventually(|| inside() == 1).await;
    drop(instance);
    bench.remove().await;
    assert_eq!(
        (bench.text("conf.d/a"), bench.text("conf.d/sub/c")),
        ("conf.d/a".to_owned(), "conf.d/sub/c".to_owned())
    );
    assert_eq!(inside(), 3, "what appeared later is not made again");
}

/// A folder or file that is mounted in the place of another. It is unmounted when it is dropped.
struct BindMount(PathBuf);

impl BindMount {
    /// `None` if this user may not.
    fn new(from: &Path, to: &Path) -> Option<Self> {
        let mount = std::process::Command::new("mount").arg("--bind").args([from, to]).status().unwrap();
        mount.success().then(|| Self(to.to_owned()))
    }
}

impl Drop for BindMount {
    fn drop(&mut self) {
        assert!(std::process::Command::new("umount").arg(&self.0).status().unwrap().success());
    }
}

#[tokio::test]
async fn what_is_mounted_in_a_folder_is_not_its_own_though_of_the_same_file_system() {
    if !nix::unistd::geteuid().is_root() {
        return;
    }
    let bench = Bench::new().await;
    for name in ["theirs", "own/deep/mounted", "own/other"] {
        fs::create_dir_all(bench.at(name)).unwrap();
    }
    for name in ["theirs/data", "own/deep/mounted/below", "own/deep/stray", "own/other/stray", "own/file"] {
        fs::write(bench.at(name), "precious").unwrap();
        fs::set_permissions(bench.at(name), fs::Permissions::from_mode(0o644)).unwrap();
    }
    let Some(folder) = BindMount::new(&bench.at("theirs"), &bench.at("own/deep/mounted")) else { return };
    let file = BindMount::new(&bench.at("theirs/data"), &bench.at("own/file")).unwrap();
    bench.apply(&[("own", json!({"directory": {"recurse": true}, "mode": "0700"}))]).await.unwrap();
    assert_eq!((bench.mode("own/deep"), bench.mode("own/deep/stray")), (0o700, 0o600));
    assert_eq!((bench.mode("theirs"), bench.mode("theirs/data")), (0o755, 0o644));
    bench.apply(&[("own", json!({"directory": {"purge": true, "purge_max": 3}}))]).await.unwrap();
    assert_eq!(bench.text("theirs/data"), "precious");
    assert!(!bench.at("own/deep/stray").exists() && !bench.at("own/other").exists());
    drop((folder, file));
    assert_eq!(bench.text("own/deep/mounted/below"), "precious", "nor is what lies below a mount");
    bench.apply(&[("own", json!({"directory": {"purge": true}}))]).await.unwrap();
    assert_eq!(fs::read_dir(bench.at("own")).unwrap().count(), 0);
}

#[tokio::test]
async fn templates_are_rendered_with_the_values_of_the_spec() {
    let bench = Bench::new().await;
    let more = json!({"values": {"host.hostname": "anna"}});
    let spec = |text: &str| bench.spec(&[("motd", json!({"template": text}))], more.clone());
    drop(bench.start(spec("This is {{ host.hostname }}.\n")).await.unwrap());
    assert_eq!(bench.text("motd"), "This is anna.\n");
    let error = bench.start(spec("{{ host.nmae }}")).await.err().unwrap();
    assert!(error.contains("motd"), "{error}");
    let tasks = bench.files.0.tasks.of(&unit()).await.unwrap();
    let said: Vec<_> = tasks.iter().map(|task| (task.action, task.state)).collect();
    assert_eq!(
        said,
        [
            (TaskAction::Render, TaskState::Failed),
            (TaskAction::Write, TaskState::Changed),
            (TaskAction::Render, TaskState::Unchanged)
        ]
    );
    assert_eq!(bench.text("motd"), "This is anna.\n");
}

#[tokio::test]
async fn next_agent_takes_over_and_mends() {
    let bench = Bench::new().await;
    fs::write(bench.at("motd"), "before\n").unwrap();
    drop(bench.apply(&[("motd", json!({"text": "right\n"}))]).await.unwrap());
    let Bench { files, store, folder } = bench;
    drop(files);
    store.close().await;
    fs::write(folder.path().join("etc/motd"), "while it was away\n").unwrap();
    let bench = Bench::over(folder).await;
    let adopted = bench.files.0.adopt(&unit(), Slot::First).await.unwrap();
    let AdoptedUnit::Alive { instance, .. } = adopted else { panic!("it was applied") };
    bench.eventually(|| bench.text("motd") == "right\n").await;
    drop(instance);
    bench.remove().await;
    assert_eq!(bench.text("motd"), "before\n");
}

#[tokio::test]
async fn small_files_of_a_tree_share_a_blob_that_is_made_anew_if_it_is_damaged() {
    let bench = Bench::new().await;
    let large = "x".repeat(100 * 1024);
    let mut builder = tar::Builder::new(Vec::new());
    for (path, text) in [("a", "a\n"), ("b", "b and more\n"), ("again", "a\n"), ("empty", ""), ("large", &large)] {
        let mut header = tar::Header::new_gnu();
        header.set_mode(0o644);
        header.set_size(text.len() as u64);
        builder.append_data(&mut header, path, text.as_bytes()).unwrap();
    }
    let content = builder.into_inner().unwrap();
    let artifact = crate::artifact::install(&bench.folder.path().join("data"), &content).unwrap();
    let entries = [("tree", json!({"directory": {}, "artifact": artifact}))];
    let is_right = || {
        let texts = ["a", "b", "again", "empty", "large"]
            .map(|name| fs::read_to_string(bench.at("tree").join(name)).unwrap_or_default());
        texts == ["a\n", "b and more\n", "a\n", "", &large]
    };
    drop(bench.apply(&entries).await.unwrap());
    assert!(is_right());
    let blobs =
        || fs::read_dir(bench.folder.path().join("data/files/blobs")).unwrap().map(|entry| entry.unwrap().path());
    assert_eq!(blobs().count(), 2, "one for the small ones, and one for the large one");
    let pack = blobs().find(|path| fs::metadata(path).unwrap().len() < 1_000).unwrap();
    assert_eq!(fs::read_to_string(&pack).unwrap(), "a\nb and more\n");
    fs::write(&pack, "a\nc and more\n").unwrap();
    fs::write(bench.at("tree/b"), "drift\n").unwrap();
    let error = bench.apply(&entries).await.err().unwrap();
    assert!(error.contains("damaged and is created again"), "{error}");
    drop(bench.apply(&entries).await.unwrap());
    assert!(is_right());
    bench.files.sweep(Vec::new()).await.unwrap();
    assert!(pack.exists(), "the revision needs it");
}

#[tokio::test]
async fn tree_of_ten_thousand_files_comes_and_goes() {
    let bench = Bench::new().await;
    let mut builder = tar::Builder::new(Vec::new());
    for number in 0..10_000 - 10 {
        let text = format!("{number}\n");
        let mut header = tar::Header::new_gnu();
        header.set_mode(0o644);
        header.set_size(text.len() as u64);
        builder.append_data(&mut header, format!("{}/{number}", number % 10), text.as_bytes()).unwrap();
    }
    let content = builder.into_inner().unwrap();
    let artifact = crate::artifact::install(&bench.folder.path().join("data"), &content).unwrap();
    let entries = [("tree", json!({"directory": {"purge": true}, "artifact": artifact}))];
    let began = Instant::now();
    let instance = bench.apply(&entries).await.unwrap();
    println!("{:?}", began.elapsed());
    assert_eq!(bench.text("tree/7/4567"), "4567\n");
    drop(instance);
    let began = Instant::now();
    drop(bench.apply(&entries).await.unwrap());
    println!("again {:?}", began.elapsed());
    let began = Instant::now();
    bench.remove().await;
    println!("removed {:?}", began.elapsed());
    assert!(bench.names().is_empty());
}
