//! The steps with a second package manager, which is the test's own: its packages are lines of a file, and its programs are scripts
//! for the shell of a root of their own.

use std::{collections::BTreeSet, fs, os::unix::fs::symlink};

use muster_rules::packages::{
    change::{self, PackageChange},
    fault::{self, PackageFault},
    installed::{self, InstalledPackages},
    source::HostSource,
    target::PackageTarget,
};
use muster_topics::packages::{PackageManager, Repository};

use super::{
    manager::{Job, PackageAdapter, Program, SourceFile, SourceFolders},
    *,
};

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
    fn refresh(&self, _: Option<&str>) -> Program {
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
    fn list_sources(&self, _: &str) -> Program {
        script("true")
    }
    fn read_sources(&self, _: &str) -> BTreeSet<HostSource> {
        BTreeSet::new()
    }
    fn source_folders(&self) -> SourceFolders {
        SourceFolders { sources: "/sources".to_owned(), keys: "/keys".to_owned() }
    }
    fn environment(&self) -> Vec<(String, String)> {
        vec![("PATH".to_owned(), "/usr/sbin:/usr/bin:/sbin:/bin".to_owned())]
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
    let shims = Shims::install(folder.path()).unwrap();
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
    assert!(host.prepare(&unit, &one, &refused, None).await.unwrap_err().error.contains("not apt"));
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
