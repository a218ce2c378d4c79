//! Ansible and Puppet, as Debian packages them.

use std::{
    fmt::Write as _,
    fs,
    path::Path,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use nix::sys::resource::{UsageWho, getrusage};
use serde_json::Value;

use crate::{
    Cost, Options,
    common::{family::family, usage},
    content::{Content, MODE},
    packages::{self, Overlay},
    packages_rows, rest_rows,
    table::Row,
};

/// A peer.
pub(crate) trait Peer {
    /// Its program, and what installs it.
    fn program(&self) -> (&'static str, &'static str);
    /// Writes what it is to make of the host.
    fn describe(&self, content: &Content) -> Result<()>;
    /// Writes that it is to install these packages, into a folder that it sees as `place`.
    fn describe_packages(&self, folder: &Path, place: &Path, names: &[String]) -> Result<()>;
    /// A run of it in a folder.
    fn command(&self, place: &Path) -> Command;
    /// Whether a run that has ended well has changed nothing.
    fn is_unchanged(&self, code: i32, printed: &str) -> bool;
    /// Whether the exit code is that of a run that has ended well.
    fn is_well(&self, code: i32) -> bool;
}

/// Measures a peer; `None`, with a word, if it is not installed.
pub(crate) fn measure(peer: &dyn Peer, content: &Content, options: &Options) -> Result<Option<Vec<(Row, f64)>>> {
    let (program, package) = peer.program();
    let path = std::env::var_os("PATH").unwrap_or_default();
    if !std::env::split_paths(&path).any(|folder| folder.join(program).is_file()) {
        eprintln!("{program} is not installed (Debian package {package}); left out");
        return Ok(None);
    }
    peer.describe(content)?;
    let printed = content.place.join("printed");
    let new = || {
        let mut command = dressed(peer, &content.place);
        command.current_dir(&content.place);
        command
    };
    let (first, _) = run(peer, new(), &printed)?;
    content.wait()?;
    let costs = again(peer, &new, &printed, options)?;
    let seconds = first.took.as_secs_f64();
    let mut rows = vec![(Row::First, seconds), (Row::FirstSaid, seconds)];
    rows.extend(rest_rows(&costs));
    rows.push((Row::RunMemory, usage::mb(peak_pss_bytes(start(new(), &printed)?)?)));
    if options.packages > 0 && nix::unistd::geteuid().is_root() {
        rows.extend(measure_packages(peer, content, options)?);
    }
    Ok(Some(rows))
}

/// The same with packages, in an overlay.
fn measure_packages(peer: &dyn Peer, content: &Content, options: &Options) -> Result<Vec<(Row, f64)>> {
    let names = packages::names(options.packages);
    let repository = packages::repository(&content.place.join("repository"), &names);
    let overlay = Overlay::make(&content.place.join("overlay"), &repository)?;
    let (place, printed) = (Path::new(packages::PLACE), content.place.join("printed"));
    peer.describe_packages(&overlay.path(packages::PLACE), place, &names)?;
    let new = || overlay.command(&dressed(peer, place));
    let (first, _) = run(peer, new(), &printed)?;
    let there = overlay.packages()?;
    ensure!(there == names.len(), "{there} packages are there");
    Ok(packages_rows(first.took, &again(peer, &new, &printed, options)?))
}

/// A run of it, with what is the same for all.
fn dressed(peer: &dyn Peer, place: &Path) -> Command {
    let mut command = peer.command(place);
    command.env("HOME", place).env("LC_ALL", "C.UTF-8");
    command
}

/// Runs in which nothing has changed. Its own files, and Python's and Ruby's, are in memory now.
fn again(peer: &dyn Peer, new: &dyn Fn() -> Command, printed: &Path, options: &Options) -> Result<Vec<Cost>> {
    let mut costs = Vec::new();
    for _ in 0..options.runs {
        let (cost, is_unchanged) = run(peer, new(), printed)?;
        ensure!(is_unchanged, "it has changed something again");
        costs.push(cost);
    }
    Ok(costs)
}

fn start(mut command: Command, printed: &Path) -> Result<Child> {
    let printed = fs::File::create(printed)?;
    command.stdin(Stdio::null()).stdout(printed.try_clone()?).stderr(printed);
    command.spawn().with_context(|| format!("{:?}", command.get_program()))
}

/// Runs it once; returns whether nothing was changed, too.
fn run(peer: &dyn Peer, command: Command, printed: &Path) -> Result<(Cost, bool)> {
    let (began, before) = (Instant::now(), children_busy()?);
    let status = start(command, printed)?.wait()?;
    let cost = Cost { took: began.elapsed(), busy: children_busy()?.saturating_sub(before) };
    let printed = fs::read_to_string(printed)?;
    let code = status.code().unwrap_or(-1);
    ensure!(peer.is_well(code), "exit code {code}: {printed}");
    Ok((cost, peer.is_unchanged(code, &printed)))
}

/// Processor time of all children that were waited for, and of theirs.
pub(crate) fn children_busy() -> Result<Duration> {
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN)?;
    let us = [usage.user_time(), usage.system_time()].map(|time| time.tv_sec() * 1_000_000 + time.tv_usec());
    Ok(Duration::from_micros(us.iter().sum::<i64>().unsigned_abs()))
}

/// The most memory that a run has, with all that it starts.
fn peak_pss_bytes(mut child: Child) -> Result<u64> {
    let (pid, mut peak) = (child.id().cast_signed(), 0);
    while child.try_wait()?.is_none() {
        let now: u64 = family(pid).into_iter().map(|pid| usage::pss_bytes(pid).unwrap_or_default()).sum();
        peak = peak.max(now);
        thread::sleep(Duration::from_millis(50));
    }
    Ok(peak)
}

/// Whether a process is alive, as a condition of a shell.
fn is_alive(pid_file: &Path) -> String {
    format!("kill -0 $(cat {})", pid_file.display())
}

fn begin(content: &Content, pid_file: &Path) -> String {
    format!("setsid {} {} < /dev/null > /dev/null 2>&1 &", content.script.display(), pid_file.display())
}

/// `ansible-playbook` over the local connection.
pub(crate) struct Ansible;

impl Peer for Ansible {
    fn program(&self) -> (&'static str, &'static str) {
        ("ansible-playbook", "ansible-core")
    }

    fn describe(&self, content: &Content) -> Result<()> {
        let folders: Vec<String> = content.folders.iter().map(|(path, _)| path.display().to_string()).collect();
        let files: Vec<_> =
            content.files().map(|file| serde_json::json!({"dest": file.path, "content": file.text})).collect();
        let processes: Vec<_> = content
            .pid_files
            .iter()
            .map(|path| format!("{} 2> /dev/null || {{ {} echo started; }}", is_alive(path), begin(content, path)))
            .collect();
        let (owner, group) = owner()?;
        let label = serde_json::json!({"label": "one"});
        let tasks = serde_json::json!([
            {
                "ansible.builtin.file": {
                    "path": "{{ item }}", "state": "directory", "mode": "0755", "owner": owner, "group": group,
                },
                "loop": folders,
            },
            {
                "ansible.builtin.copy": {
                    "dest": "{{ item.dest }}", "content": "{{ item.content }}", "mode": MODE, "owner": owner, "group": group,
                },
                "loop": files,
                "loop_control": label,
            },
            {
                "ansible.builtin.shell": "{{ item }}",
                "loop": processes,
                "loop_control": label,
                "register": "started",
                "changed_when": "'started' in started.stdout",
            },
        ]);
        playbook(&content.place, &content.place, &tasks)
    }

    fn describe_packages(&self, folder: &Path, place: &Path, names: &[String]) -> Result<()> {
        // It reads the lists when they are older than a day.
        let tasks = serde_json::json!([{
            "ansible.builtin.apt": {"name": names, "state": "present", "update_cache": true, "cache_valid_time": 86_400},
        }]);
        playbook(folder, place, &tasks)
    }

    fn command(&self, place: &Path) -> Command {
        let mut command = Command::new("ansible-playbook");
        command.env("ANSIBLE_CONFIG", place.join("ansible.cfg")).env("ANSIBLE_NOCOLOR", "1").arg("playbook.yml");
        command
    }

    fn is_unchanged(&self, _: i32, printed: &str) -> bool {
        printed.contains("changed=0")
    }

    fn is_well(&self, code: i32) -> bool {
        code == 0
    }
}

/// Writes a playbook of these tasks, and what belongs to it, into a folder that Ansible sees as `place`.
fn playbook(folder: &Path, place: &Path, tasks: &Value) -> Result<()> {
    let playbook = serde_json::json!([{"hosts": "all", "gather_facts": false, "tasks": tasks}]);
    fs::write(folder.join("playbook.yml"), serde_json::to_string_pretty(&playbook)?)?;
    let place = place.display();
    let config = format!(
        "[defaults]\ninventory = {place}/hosts\nlocal_tmp = {place}/tmp\nremote_tmp = {place}/tmp\nretry_files_enabled = false\n\
         interpreter_python = /usr/bin/python3\n[connection]\npipelining = true\n"
    );
    fs::write(folder.join("ansible.cfg"), config)?;
    Ok(fs::write(folder.join("hosts"), "localhost ansible_connection=local\n")?)
}

/// Who runs this, by names.
fn owner() -> Result<(String, String)> {
    let user = nix::unistd::User::from_uid(nix::unistd::geteuid())?.context("nobody runs this")?;
    let group = nix::unistd::Group::from_gid(nix::unistd::getegid())?.context("no group runs this")?;
    Ok((user.name, group.name))
}

/// `puppet apply` of one manifest.
pub(crate) struct Puppet;

impl Peer for Puppet {
    fn program(&self) -> (&'static str, &'static str) {
        ("puppet", "puppet-agent")
    }

    fn describe(&self, content: &Content) -> Result<()> {
        let (owner, group) = owner()?;
        let mut manifest = String::new();
        for (path, _) in &content.folders {
            let path = path.display();
            writeln!(
                manifest,
                "file {{ '{path}': ensure => directory, mode => '0755', owner => '{owner}', group => '{group}' }}"
            )?;
        }
        for file in content.files() {
            // Puppet has no other way to write a line feed.
            let text = file.text.replace('\n', "\\n");
            writeln!(
                manifest,
                "file {{ '{}': ensure => file, content => \"{text}\", mode => '{MODE}', owner => '{owner}', group => '{group}' }}",
                file.path.display()
            )?;
        }
        for path in &content.pid_files {
            writeln!(
                manifest,
                "exec {{ '{}': command => '{}', unless => '{}', provider => shell }}",
                path.display(),
                begin(content, path),
                is_alive(path)
            )?;
        }
        Ok(fs::write(content.place.join("manifest.pp"), manifest)?)
    }

    fn describe_packages(&self, folder: &Path, place: &Path, names: &[String]) -> Result<()> {
        let read = place.join("lists");
        let read = read.display();
        let mut manifest = format!(
            "exec {{ 'lists': command => 'apt-get update && touch {read}', creates => '{read}', provider => shell }}\n"
        );
        for name in names {
            writeln!(manifest, "package {{ '{name}': ensure => installed, require => Exec['lists'] }}")?;
        }
        Ok(fs::write(folder.join("manifest.pp"), manifest)?)
    }

    fn command(&self, place: &Path) -> Command {
        let mut command = Command::new("puppet");
        command.args(["apply", "--detailed-exitcodes", "--color", "false"]);
        for name in ["confdir", "vardir", "logdir", "rundir"] {
            command.arg(format!("--{name}")).arg(place.join("puppet").join(name));
        }
        command.arg("manifest.pp");
        command
    }

    fn is_unchanged(&self, code: i32, _: &str) -> bool {
        code == 0
    }

    fn is_well(&self, code: i32) -> bool {
        // 2: something was changed.
        code == 0 || code == 2
    }
}
