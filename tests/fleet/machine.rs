//! A machine of its own: processes, cgroups and changes to the file system apart from this host's, with a real
//! systemd as its first process. It can lose its power and be started again, with another boot id. Its network
//! and kernel are this host's.

use std::{
    fs,
    os::unix::process::CommandExt,
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicU32, Ordering},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::{Pid, geteuid},
};

use super::{Home, Run, eventually, muster};

const SCRIPT: &str = include_str!("machine.sh");

static MACHINES: AtomicU32 = AtomicU32::new(0);

/// A machine, and what it keeps when it is off.
pub(crate) struct Machine {
    /// Has the file system that the machine's changes are on, for as long as this lives.
    holder: Child,
    init: Option<Child>,
    boots: u32,
    folder: PathBuf,
    /// Of its cgroups.
    name: String,
}

impl Machine {
    /// Starts one; nothing if this host does not let the test do that, which is said.
    pub(crate) fn boot(home: &Home) -> Option<Self> {
        let why_not = if !geteuid().is_root() {
            "only root can make a machine"
        } else if !PathBuf::from("/lib/systemd/systemd").exists() {
            "there is no systemd on this host"
        } else {
            let folder = home.path().join("machine");
            fs::create_dir(&folder).unwrap();
            fs::write(home.path().join("machine.sh"), SCRIPT).unwrap();
            let mount = "mount --make-rprivate / && mount -t tmpfs tmpfs \"$0\" && touch \"$0/is-there\" && exec sleep infinity";
            let mut holder = quiet("setpriv");
            holder.args(["--pdeathsig", "KILL", "unshare", "--mount", "sh", "-c", mount]).arg(&folder);
            let name = format!("muster-machine-{}-{}", std::process::id(), MACHINES.fetch_add(1, Ordering::Relaxed));
            let mut machine = Self { holder: holder.spawn().unwrap(), init: None, boots: 0, folder, name };
            let mark = format!("/proc/{}/root{}/is-there", machine.holder.id(), machine.folder.display());
            let is_there = eventually("the machine's disk", || match machine.holder.try_wait() {
                Ok(None) if fs::exists(&mark).unwrap() => Ok(true),
                Ok(None) => Err("not yet".to_owned()),
                _ => Ok(false),
            });
            if is_there && machine.start() {
                return Some(machine);
            }
            "it cannot make namespaces, mounts or cgroups"
        };
        eprintln!("skipped: {why_not}");
        None
    }

    /// Starts it (again), and waits until systemd answers; false if it cannot be started here.
    pub(crate) fn start(&mut self) -> bool {
        self.boots += 1;
        let boot_id = format!("00000000-0000-4000-8000-{:012}", self.boots);
        let script = self.folder.with_file_name("machine.sh");
        let mut init = quiet("setpriv");
        init.args(["--pdeathsig", "KILL", "nsenter", "--mount", "--target", &self.holder.id().to_string(), "bash"]);
        init.arg(script).arg(&self.folder).arg(boot_id).env("MUSTER", muster()).env("CGROUP", &self.name);
        self.init = Some(init.spawn().unwrap());
        eventually("a started system", || {
            if let Some(ended) = self.init.as_mut().unwrap().try_wait().unwrap() {
                return if self.boots == 1 { Ok(false) } else { panic!("the machine did not start: {ended}") };
            }
            if self.first_process().is_none() {
                return Err("no first process".to_owned());
            }
            let run = self.run(&["systemctl", "is-system-running"]);
            let state = run.stdout.trim();
            if ["running", "degraded"].contains(&state) { Ok(true) } else { Err(format!("{run:?}")) }
        })
    }

    /// Takes its power away.
    pub(crate) fn lose_power(&mut self) {
        let first = self.first_process();
        let mut init = self.init.take().unwrap();
        // The first process takes all others along; its parent waits for it.
        match first {
            Some(first) => kill(Pid::from_raw(first.cast_signed()), Signal::SIGKILL).unwrap(),
            None => drop(init.kill()),
        }
        let _ = init.wait();
    }

    fn first_process(&self) -> Option<u32> {
        let unshare = self.init.as_ref()?.id();
        let children = fs::read_to_string(format!("/proc/{unshare}/task/{unshare}/children")).ok()?;
        let first: u32 = children.split_whitespace().next()?.parse().ok()?;
        let is_systemd = fs::read_to_string(format!("/proc/{first}/comm")).is_ok_and(|name| name.trim() == "systemd");
        is_systemd.then_some(first)
    }

    /// Runs a program on it to its end.
    #[track_caller]
    pub(crate) fn run(&self, argv: &[&str]) -> Run {
        let first = self.first_process().expect("the machine is off");
        let mut command = quiet("nsenter");
        command.args(["--all", "--root", "--wd=/", "--target", &first.to_string(), "--"]).args(argv);
        command.stdout(Stdio::piped());
        // What a test's home says is not for the machine.
        command.env_clear().env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
        Run::of(argv, &mut command)
    }

    /// Runs a program that must succeed; gives what it printed.
    #[track_caller]
    pub(crate) fn ok(&self, argv: &[&str]) -> String {
        self.run(argv).expect_code(0).stdout
    }

    /// A property of the agent's service.
    #[track_caller]
    pub(crate) fn service(&self, property: &str) -> String {
        self.property("muster-agent", property)
    }

    /// A property of a service.
    #[track_caller]
    pub(crate) fn property(&self, service: &str, property: &str) -> String {
        self.ok(&["systemctl", "show", "--value", "-p", property, service]).trim().to_owned()
    }

    /// A path on it, for this host.
    pub(crate) fn path(&self, path: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root{path}", self.first_process().unwrap()))
    }

    /// Whether a process is the same as before: its start time in ticks, nothing if there is none.
    pub(crate) fn start_ticks(&self, pid: i64) -> Option<String> {
        let stat = fs::read_to_string(self.path(&format!("/proc/{pid}/stat"))).ok()?;
        stat.rsplit(')').next()?.split_whitespace().nth(19).map(str::to_owned)
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        if std::thread::panicking() && self.first_process().is_some() {
            eprintln!("{}", self.run(&["journalctl", "--no-pager", "-u", "muster-*", "-n", "60"]).stdout);
        }
        if self.init.is_some() {
            self.lose_power();
        }
        let _ = self.holder.kill();
        let _ = self.holder.wait();
        self.remove_cgroups();
    }
}

impl Machine {
    /// Removes the cgroups that the machine had for its own; nothing is in them any more.
    fn remove_cgroups(&self) {
        for line in fs::read_to_string("/proc/self/mountinfo").unwrap_or_default().lines() {
            if line.contains(" - cgroup") {
                let point = line.split(' ').nth(4).unwrap();
                let _ = Command::new("find")
                    .args([&format!("{point}/{}", self.name), "-depth", "-type", "d", "-delete"])
                    .stderr(Stdio::null())
                    .status();
            }
        }
    }
}

/// A program without this terminal, in a group of its own.
fn quiet(program: &str) -> Command {
    let mut command = Command::new(program);
    command.stdin(Stdio::null()).stdout(Stdio::null()).process_group(0);
    command
}
