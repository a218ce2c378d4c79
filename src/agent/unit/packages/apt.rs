//! Debian's package manager: `apt-get` and `dpkg`.

use std::collections::BTreeSet;

use muster_rules::packages::{
    change::{PackageChange, parse_simulation},
    fault::{PackageFault, explain},
    installed::{self, InstalledPackages},
    source::{self, HostSource},
    target::PackageTarget,
};
use muster_topics::{
    name::{Digest, Name},
    packages::{PackageManager, PasswordSecret, Repository, RepositoryLogin},
};

use super::{
    ARCHIVES,
    manager::{Job, LoginFile, PackageAdapter, Program, SourceFile, SourceFolders},
    sources::OF_UNITS,
};
use crate::execute::prepare::SEARCH_PATH;

/// How long apt itself waits for its lock: only for one that was taken since the agent has looked.
const LOCK_MAX: &str = "DPkg::Lock::Timeout=120";

/// New configuration files are taken where nobody has changed the old one, and nothing is asked.
const KEEP_CONFIGS: [&str; 2] = ["--force-confdef", "--force-confold"];

pub(super) struct Apt;

impl Apt {
    fn options(&self, job: &Job) -> Vec<String> {
        let mut options: Vec<String> = vec!["apt-get".into(), "-q".into()];
        let mut set = |option: String| options.extend(["-o".to_owned(), option]);
        set(format!("Dir::Cache::Archives={ARCHIVES}/"));
        set("APT::Keep-Downloaded-Packages=true".into());
        set("Dpkg::Use-Pty=0".into());
        set(LOCK_MAX.into());
        for option in KEEP_CONFIGS {
            set(format!("Dpkg::Options::={option}"));
        }
        if let Some(SourceFolders { sources, keys: _, logins }) = &job.sources {
            set(format!("Dir::Etc::SourceParts={sources}/"));
            set(format!("Dir::Etc::netrcparts={logins}/"));
        }
        if job.purge {
            options.push("--purge".into());
        }
        options
    }

    /// The words after the options: what to do with which packages.
    fn words(&self, job: &Job) -> Vec<String> {
        let is_removal = job.targets.iter().all(|target| matches!(target, PackageTarget::Absent(_)));
        let word = |target: &PackageTarget| match target {
            PackageTarget::Newest(name) => name.clone(),
            PackageTarget::Version(name, version) => {
                job.files.get(name).cloned().unwrap_or_else(|| format!("{name}={version}"))
            }
            PackageTarget::Absent(name) if is_removal => name.clone(),
            PackageTarget::Absent(name) => format!("{name}-"),
        };
        let verb = if is_removal { "remove" } else { "install" };
        [verb.to_owned()].into_iter().chain(job.targets.iter().map(word)).collect()
    }

    fn permissions(&self, job: &Job) -> Vec<String> {
        let mut permissions = vec!["-y".to_owned()];
        if job.may_downgrade {
            permissions.push("--allow-downgrades".to_owned());
        }
        if job.may_change_held {
            permissions.push("--allow-change-held-packages".to_owned());
        }
        if !job.may_remove {
            permissions.push("--no-remove".to_owned());
        }
        permissions
    }
}

impl PackageAdapter for Apt {
    fn which(&self) -> PackageManager {
        PackageManager::Apt
    }

    fn program(&self) -> &'static str {
        "apt-get"
    }

    fn status_file(&self) -> &'static str {
        "/var/lib/dpkg/status"
    }

    fn locks(&self) -> &'static [&'static str] {
        &[
            "/var/lib/dpkg/lock-frontend",
            "/var/lib/dpkg/lock",
            "/var/lib/apt/lists/lock",
            "/var/cache/apt/archives/lock",
        ]
    }

    fn interrupted(&self) -> Option<&'static str> {
        Some("/var/lib/dpkg/updates")
    }

    fn list(&self) -> Program {
        Program::new(["dpkg-query".to_owned(), "-W".to_owned(), format!("-f={}", installed::FORMAT)])
    }

    fn read_list(&self, output: &str) -> InstalledPackages {
        installed::parse(output)
    }

    fn refresh(&self, sources: Option<&SourceFolders>) -> Program {
        let mut argv = self.options(&Job { sources: sources.cloned(), ..Job::default() });
        // Lists of sources that are not in that folder stay.
        argv.extend(
            ["-o", "APT::Get::List-Cleanup=false", "-o", "Acquire::Retries=2", "update"].map(ToOwned::to_owned),
        );
        Program(argv)
    }

    fn simulate(&self, job: &Job) -> Program {
        let mut argv = self.options(job);
        // What is not allowed shall be seen, and is refused then.
        argv.extend(["-s", "--allow-downgrades", "--allow-change-held-packages"].map(ToOwned::to_owned));
        argv.extend(self.words(job));
        Program(argv)
    }

    fn read_changes(&self, output: &str) -> Vec<PackageChange> {
        parse_simulation(output)
    }

    fn download(&self, job: &Job) -> Program {
        let mut argv = self.options(job);
        argv.extend(self.permissions(&Job {
            may_remove: true,
            may_downgrade: true,
            may_change_held: true,
            ..Job::default()
        }));
        argv.push("--download-only".to_owned());
        argv.extend(self.words(job));
        Program(argv)
    }

    fn download_version(&self, name: &str, version: &str) -> Program {
        Program::new(["apt-get".to_owned(), "-q".to_owned(), "download".to_owned(), format!("{name}={version}")])
    }

    fn file_prefix(&self, name: &str, version: &str) -> String {
        let name = name.split(':').next().unwrap_or(name);
        format!("{name}_{}_", version.replace(':', "%3a"))
    }

    fn apply(&self, job: &Job) -> Vec<Program> {
        let mut argv = self.options(job);
        argv.extend(self.permissions(job));
        argv.extend(self.words(job));
        vec![Program(argv)]
    }

    fn repair(&self) -> Vec<Program> {
        let configure = ["dpkg", KEEP_CONFIGS[0], KEEP_CONFIGS[1], "--configure", "-a"].map(ToOwned::to_owned);
        let mut fix = self.options(&Job::default());
        fix.extend(["-y", "--fix-broken", "install"].map(ToOwned::to_owned));
        vec![Program::new(configure), Program(fix)]
    }

    fn unpack_again(&self, names: &[String]) -> Program {
        let mut argv = self.options(&Job::default());
        argv.extend(["-y", "--reinstall", "install"].map(ToOwned::to_owned));
        argv.extend(names.iter().cloned());
        Program(argv)
    }

    fn hold(&self, names: &[String], is_held: bool) -> Program {
        let verb = if is_held { "hold" } else { "unhold" };
        Program::new(["apt-mark", verb].into_iter().map(ToOwned::to_owned).chain(names.iter().cloned()))
    }

    fn configs(&self, names: &[String]) -> Program {
        let words = ["dpkg-query", "-W", "-f=${Conffiles}\\n"].into_iter().map(ToOwned::to_owned);
        Program::new(words.chain(names.iter().cloned()))
    }

    fn read_leftovers(&self, output: &str) -> Vec<String> {
        let paths =
            output.lines().filter_map(|line| line.split_whitespace().next()).filter(|path| path.starts_with('/'));
        paths.flat_map(|path| ["dpkg-dist", "dpkg-new"].map(|end| format!("{path}.{end}"))).collect()
    }

    fn explain(&self, output: &str) -> PackageFault {
        explain(output)
    }

    fn sources(&self, repository: &Repository, folders: &SourceFolders) -> Vec<SourceFile> {
        let Repository { suite, components, .. } = repository;
        let (url, key) = (repository.address(), repository.key_digest());
        let key_path = format!("{}/{OF_UNITS}{}.asc", folders.keys, key.short());
        let source = |component: Option<&String>| {
            let named = component.map_or("", String::as_str);
            let name = Digest::of(format!("{url}\n{suite}\n{named}\n{key}").as_bytes());
            let component = component.map_or_else(String::new, |component| format!("Components: {component}\n"));
            SourceFile {
                path: format!("{}/{OF_UNITS}{}.sources", folders.sources, name.short()),
                content: format!(
                    "# Of units of muster; it goes with the last one that wants it.\nTypes: deb\nURIs: {url}\nSuites: {suite}\n\
                     {component}Signed-By: {key_path}\n"
                ),
            }
        };
        let mut files = vec![SourceFile { path: key_path.clone(), content: repository.plain_key() }];
        if components.is_empty() {
            files.push(source(None));
        }
        files.extend(components.iter().map(|component| source(Some(component))));
        files
    }

    fn login(&self, realm: &Name, repository: &Repository, login: &RepositoryLogin, password: &str) -> LoginFile {
        let (url, RepositoryLogin { user, password: PasswordSecret { secret } }) = (repository.address(), login);
        let name = Digest::of(format!("{realm}\n{url}\n{user}\n{secret}").as_bytes());
        let folder = self.source_folders().logins;
        // With its scheme an entry counts for that alone; without one it would for https.
        let content = format!(
            "# Of units of muster; it goes with the last one that wants it.\nmachine {url} login {user} password {password}\n"
        );
        LoginFile { path: format!("{folder}/{OF_UNITS}{}.conf", name.short()), content: content.into() }
    }

    fn passwords(&self, text: &str) -> Vec<String> {
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        lines.filter_map(|line| Some(line.rsplit_once(" password ")?.1.to_owned())).collect()
    }

    fn list_sources(&self, sources: &SourceFolders) -> Program {
        let mut argv = self.options(&Job { sources: Some(sources.clone()), ..Job::default() });
        argv.extend(["indextargets", "--no-release-info", "--format", source::FORMAT].map(ToOwned::to_owned));
        Program(argv)
    }

    fn read_sources(&self, output: &str) -> BTreeSet<HostSource> {
        source::parse(output)
    }

    fn source_folders(&self) -> SourceFolders {
        SourceFolders {
            sources: "/etc/apt/sources.list.d".to_owned(),
            keys: "/etc/apt/keyrings".to_owned(),
            logins: "/etc/apt/auth.conf.d".to_owned(),
        }
    }

    fn environment(&self) -> Vec<(String, String)> {
        let variables = [
            ("PATH", SEARCH_PATH),
            ("LC_ALL", "C"),
            ("HOME", "/root"),
            ("DEBIAN_FRONTEND", "noninteractive"),
            // It is listed what should be restarted, and nothing is.
            ("NEEDRESTART_MODE", "l"),
            ("APT_LISTCHANGES_FRONTEND", "none"),
            ("UCF_FORCE_CONFFOLD", "1"),
        ];
        variables.map(|(name, value)| (name.to_owned(), value.to_owned())).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(program: &Program) -> String {
        program.0.join(" ")
    }

    #[test]
    fn only_what_is_allowed_is_given_to_apt() {
        let targets = vec![
            PackageTarget::Newest("a".into()),
            PackageTarget::Version("b".into(), "1:2".into()),
            PackageTarget::Absent("c".into()),
        ];
        let strict = Job { targets, ..Job::default() };
        let [run] = &*Apt.apply(&strict) else { panic!("one program") };
        let run = line(run);
        assert!(run.ends_with("-y --no-remove install a b=1:2 c-"), "{run}");
        for option in ["Dpkg::Options::=--force-confdef", "Dpkg::Options::=--force-confold", "DPkg::Lock::Timeout="] {
            assert!(run.contains(option), "{option}: {run}");
        }
        let free = Job { may_downgrade: true, may_remove: true, may_change_held: true, purge: true, ..strict.clone() };
        let run = line(&Apt.apply(&free)[0]);
        assert!(
            run.ends_with("--purge -y --allow-downgrades --allow-change-held-packages install a b=1:2 c-"),
            "{run}"
        );
        let gone = Job { targets: vec![PackageTarget::Absent("c".into())], ..Job::default() };
        assert!(line(&Apt.simulate(&gone)).ends_with("-s --allow-downgrades --allow-change-held-packages remove c"));
        let file = Job { files: [("b".to_owned(), "/x/b.deb".to_owned())].into(), ..strict };
        assert!(line(&Apt.apply(&file)[0]).ends_with("install a /x/b.deb c-"));
        assert_eq!(Apt.file_prefix("b:i386", "1:2"), "b_1%3a2_");
    }

    #[test]
    fn password_of_a_repository_is_in_the_file_of_its_login_alone() {
        let login =
            RepositoryLogin { user: "deploy".to_owned(), password: PasswordSecret { secret: "repo".parse().unwrap() } };
        let repository = Repository {
            url: "https://example.org/deb".to_owned(),
            suite: "stable".to_owned(),
            components: vec!["main".to_owned()],
            key: "-".to_owned(),
            login: Some(login.clone()),
        };
        let file = |realm: &str, password: &str| Apt.login(&realm.parse().unwrap(), &repository, &login, password);
        let one = file("shop", "hunter2-hunter2");
        assert!(one.path.starts_with("/etc/apt/auth.conf.d/muster.") && one.path.ends_with(".conf"), "{one:?}");
        let entry = "machine https://example.org/deb/ login deploy password hunter2-hunter2";
        assert_eq!(one.content.lines().last(), Some(entry));
        assert_eq!(Apt.passwords(&one.content), ["hunter2-hunter2"]);
        // Its name confirms no guess of the password, and is another one for another realm's secret.
        assert_eq!(file("shop", "other").path, one.path);
        assert_ne!(file("bank", "hunter2-hunter2").path, one.path);
        for SourceFile { path, content } in Apt.sources(&repository, &Apt.source_folders()) {
            assert!(!content.contains("deploy") && !content.contains("hunter2"), "{path}: {content}");
        }
        let sources = SourceFolders { sources: "/s".into(), keys: "/k".into(), logins: "/l".into() };
        let run = line(&Apt.simulate(&Job { sources: Some(sources), ..Job::default() }));
        assert!(run.contains("Dir::Etc::SourceParts=/s/") && run.contains("Dir::Etc::netrcparts=/l/"), "{run}");
    }

    #[test]
    fn leftovers_of_configuration_files_are_named() {
        let output = "\n /etc/hello/a b5d4\n /etc/hello/b c6e5 obsolete\nx\n";
        assert_eq!(
            Apt.read_leftovers(output),
            ["/etc/hello/a.dpkg-dist", "/etc/hello/a.dpkg-new", "/etc/hello/b.dpkg-dist", "/etc/hello/b.dpkg-new"]
        );
    }
}
