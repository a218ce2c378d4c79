//! The steps with a second package manager, which is the test's own: its packages are lines of a file, and its programs are scripts
//! for the shell of a root of their own.

use std::{
    collections::BTreeSet,
    fs,
    os::unix::fs::{PermissionsExt, symlink},
};

use muster_bus::sealing::HostKey;

use muster_rules::packages::{
    change::{self, PackageChange},
    fault::{self, PackageFault},
    installed::{self, InstalledPackages},
    source::HostSource,
    target::PackageTarget,
};
use muster_topics::{
    name::Name,
    packages::{PackageManager, Repository, RepositoryLogin},
};

use super::{
    manager::{Job, LoginFile, PackageAdapter, Program, SourceFile, SourceFolders},
    *,
};
use crate::artifact::Artifacts;

struct Lines;

fn script(text: &str) -> Program {
    Program::new(["/bin/sh", "-c", text])
}

impl Lines {
    /// A script for each target of a job.
    fn each(job: &Job, install: &str, remove: &str) -> Program {
        let words = job.targets.iter().map(|target| match target {
            PackageTarget::Newest(name) => install.replace("NAME", name).replace("VERSION", "2"),
            PackageTarget::Version(name, version) => install.replace("NAME", name).replace("VERSION", version),
            PackageTarget::Absent(name) => remove.replace("NAME", name),
        });
        script(&words.collect::<Vec<_>>().join("; "))
    }
}

impl PackageAdapter for Lines {
    fn which(&self) -> PackageManager {
        PackageManager::Apk
    }
    fn program(&self) -> &'static str {
        "sh"
    }
    fn status_file(&self) -> &'static str {
        "/db"
    }
    fn locks(&self) -> &'static [&'static str] {
        &["/lock"]
    }
    fn interrupted(&self) -> Option<&'static str> {
        None
    }
    fn list(&self) -> Program {
        script("cat /db")
    }
    fn read_list(&self, output: &str) -> InstalledPackages {
        installed::parse(output)
    }
    fn refresh(&self, _: Option<&SourceFolders>) -> Program {
        script("true")
    }
    fn simulate(&self, job: &Job) -> Program {
        let install = "old=$(grep '^NAME' /db | cut -f3); echo \"Inst NAME ${old:+[$old] }(VERSION)\"";
        Self::each(job, install, "echo 'Remv NAME [1]'")
    }
    fn read_changes(&self, output: &str) -> Vec<PackageChange> {
        change::parse_simulation(output)
    }
    fn download(&self, _: &Job) -> Program {
        script("true")
    }
    fn download_version(&self, _: &str, _: &str) -> Program {
        script("false")
    }
    fn file_prefix(&self, name: &str, version: &str) -> String {
        format!("{name}-{version}.")
    }
    fn apply(&self, job: &Job) -> Vec<Program> {
        let remove = "grep -v '^NAME' /db > /new; mv /new /db; echo removed NAME";
        let install = format!("{remove}; printf 'NAME\\tall\\tVERSION\\tii \\n' >> /db; echo brought NAME");
        vec![Self::each(job, &install, remove)]
    }
    fn repair(&self) -> Vec<Program> {
        Vec::new()
    }
    fn unpack_again(&self, _: &[String]) -> Program {
        script("false")
    }
    fn hold(&self, _: &[String], _: bool) -> Program {
        script("false")
    }
    fn configs(&self, _: &[String]) -> Program {
        script("true")
    }
    fn read_leftovers(&self, _: &str) -> Vec<String> {
        Vec::new()
    }
    fn explain(&self, output: &str) -> PackageFault {
        fault::explain(output)
    }
    fn sources(&self, _: &Repository, _: &SourceFolders) -> Vec<SourceFile> {
        Vec::new()
    }
    fn login(&self, realm: &Name, _: &Repository, login: &RepositoryLogin, password: &str) -> LoginFile {
        let secret = &login.password.secret;
        LoginFile { path: format!("/logins/muster.{realm}.{secret}"), content: format!("{password}\n").into() }
    }
    fn passwords(&self, text: &str) -> Vec<String> {
        text.lines().map(ToOwned::to_owned).collect()
    }
    fn list_sources(&self, _: &SourceFolders) -> Program {
        script("true")
    }
    fn read_sources(&self, _: &str) -> BTreeSet<HostSource> {
        BTreeSet::new()
    }
    fn source_folders(&self) -> SourceFolders {
        SourceFolders { sources: "/sources".to_owned(), keys: "/keys".to_owned(), logins: "/logins".to_owned() }
    }
    fn environment(&self) -> Vec<(String, String)> {
        vec![("PATH".to_owned(), "/usr/sbin:/usr/bin:/sbin:/bin".to_owned())]
    }
}

/// Where a host's units would get secrets, if there were a console.
fn secrets(folder: &Path, tasks: &TaskLog) -> SecretSource {
    let artifacts = Artifacts::open(folder, crate::unit::yuno::tests::identity(), None).unwrap();
    let host = (muster_topics::name::HostId::random(), HostKey::generate().unwrap());
    SecretSource::new(host, artifacts, tasks.given().clone())
}

#[tokio::test]
async fn login_is_its_owners_alone_and_goes_with_the_last_unit_that_has_it() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("root");
    let store = Store::open(&folder.path().join("agent.db")).await.unwrap();
    let tasks = TaskLog::open(store.clone()).await.unwrap();
    let shims = (Shims::install(folder.path()).unwrap(), secrets(folder.path(), &tasks));
    let kept = (store, tasks, Owners::default(), Turns::default());
    let host = Host::new(Box::new(Lines), &root, kept, shims, &folder.path().join("packages"));
    let (one, other): (UnitName, UnitName) = ("shop/one".parse().unwrap(), "shop/other".parse().unwrap());
    let repository = |secret: &str| {
        let login = serde_json::json!({"user": "deploy", "password": {"secret": secret}});
        serde_json::json!({"url": "http://127.0.0.1/", "suite": "./", "key": "-", "login": login})
    };
    let repositories = serde_json::json!({
        "present": ["a"], "repositories": {"r": repository("repo")}, "secrets": [{"name": "repo", "version": 1}],
    });
    let spec: PackagesSpec = serde_json::from_value(repositories).unwrap();
    let files = |unit: &UnitName, password: &str| {
        let password = zeroize::Zeroizing::new(password.to_owned());
        host.login_files(unit, &spec, &[("repo".parse().unwrap(), password)].into())
    };
    let at = root.join("logins/muster.shop.repo");
    let read = || (fs::read_to_string(&at).unwrap(), fs::metadata(&at).unwrap().permissions().mode() & 0o7777);
    host.write_repositories(&one, &[], &files(&one, "first-first\n").unwrap()).await.unwrap();
    assert_eq!(read(), ("first-first\n".to_owned(), 0o600));
    // Another one has a later version of the secret.
    host.write_repositories(&other, &[], &files(&other, "second-second").unwrap()).await.unwrap();
    assert_eq!((read().0.as_str(), host.kept_passwords()), ("second-second\n", vec!["second-second".to_owned()]));
    let staged = SourceFolders { sources: "/s".into(), keys: "/k".into(), logins: "/staged".into() };
    fs::write(root.join("logins/own.conf"), "the host's own").unwrap();
    let laid_out = host.stage_logins(&staged, &files(&one, "third-third").unwrap()).unwrap();
    assert_eq!(fs::read_to_string(root.join("staged/muster.shop.repo")).unwrap(), "third-third\n");
    assert_eq!(fs::read_to_string(root.join("staged/own.conf")).unwrap(), "the host's own");
    drop(laid_out);
    assert!(!root.join("staged").exists());
    // The console cannot be reached, so what is there counts.
    assert_eq!(host.logins(&one, &spec).await.unwrap()[0].content.as_str(), "second-second\n");
    host.remove(&other).await.unwrap();
    assert!(at.exists());
    host.write_repositories(&one, &[], &[]).await.unwrap();
    assert!(!at.exists() && root.join("logins/own.conf").exists());
    host.logins(&one, &spec).await.unwrap_err();
    for wrong in ["two words", "", "a\nb"] {
        let failure = files(&one, wrong).unwrap_err();
        assert!(
            !failure.may_heal && failure.error.cause.contains("repositories.r.login: the secret repo must be one word")
        );
    }
}

#[tokio::test]
async fn another_package_manager_needs_an_adapter_alone() {
    if !nix::unistd::geteuid().is_root() || !Path::new("/bin/busybox").exists() {
        eprintln!("SKIPPED: a root of packages needs root, and busybox");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("root");
    fs::create_dir_all(root.join("bin")).unwrap();
    fs::copy("/bin/busybox", root.join("bin/busybox")).unwrap();
    for program in ["sh", "cat", "cut", "grep", "mv", "printf", "true", "false"] {
        symlink("busybox", root.join("bin").join(program)).unwrap();
    }
    fs::write(root.join("db"), "other\tall\t1\tii \n").unwrap();
    let store = Store::open(&folder.path().join("agent.db")).await.unwrap();
    let tasks = TaskLog::open(store.clone()).await.unwrap();
    let shims = (Shims::install(folder.path()).unwrap(), secrets(folder.path(), &tasks));
    let host = Host::new(
        Box::new(Lines),
        &root,
        (store, tasks.clone(), Owners::default(), Turns::default()),
        shims,
        &folder.path().join("packages"),
    );
    let unit: UnitName = "default/tools".parse().unwrap();
    let spec = |json| serde_json::from_value::<PackagesSpec>(json).unwrap();
    let db = || fs::read_to_string(root.join("db")).unwrap();

    let (one, wanted) = (Digest::of(b"one"), spec(serde_json::json!({"present": ["tool=1"]})));
    host.prepare(&unit, &one, &wanted, None).await.unwrap();
    assert!(!db().contains("tool"), "nothing is changed yet");
    host.apply(&unit, &one, &wanted, None).await.unwrap();
    assert!(db().contains("tool\tall\t1\t"), "{}", db());
    let refused = spec(serde_json::json!({"present": ["tool=1"], "manager": "apt"}));
    assert!(host.prepare(&unit, &one, &refused, None).await.unwrap_err().error.cause.contains("not apt"));
    // A second revision, and back to the first.
    let (two, other) = (Digest::of(b"two"), spec(serde_json::json!({"present": ["tool=2", "more"]})));
    host.apply(&unit, &two, &other, Some(&one)).await.unwrap();
    assert!(db().contains("tool\tall\t2\t") && db().contains("more"), "{}", db());
    host.apply(&unit, &one, &wanted, Some(&one)).await.unwrap();
    assert!(db().contains("tool\tall\t1\t") && !db().contains("more"), "{}", db());
    host.remove(&unit).await.unwrap();
    assert_eq!(db(), "other\tall\t1\tii \n");
    let logged = tasks.of(&unit).await.unwrap();
    assert!(logged.iter().any(|task| task.about.starts_with("back: ")), "{logged:?}");
}
