//! runit, s6 and supervisord, as Debian packages them, each with its own logger.

use std::{
    fs,
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use anyhow::{Context, Result, ensure};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::{Subject, common::family::family};

/// Packages, with dependencies that not every host has.
const PACKAGES: [&str; 8] = [
    "runit",
    "supervisor",
    "python3-pkg-resources",
    "s6",
    "execline",
    "libs6-2.11",
    "libexecline2.9",
    "libskarnet2.13",
];

/// A peer.
pub(crate) struct Peer {
    name: &'static str,
    /// The folder of all its services.
    services: PathBuf,
    command: Vec<String>,
    /// The name of the direct supervisor's program; `None` if there is one for all.
    direct: Option<&'static str>,
    tools: PathBuf,
    child: Option<Child>,
}

/// runsvdir, with a runsv and a svlogd for each program.
pub(crate) fn runit(folder: &Path, program: &Path, names: &[String]) -> Result<Peer> {
    let tools = tools()?;
    let services = folder.join("services");
    let svlogd = tools.join("usr/bin/svlogd");
    for name in names {
        let service = services.join(name);
        fs::create_dir_all(service.join("log/main"))?;
        symlink(program, service.join("run"))?;
        script(&service.join("log/run"), &format!("exec {} ./main", svlogd.display()))?;
    }
    let command = vec![tools.join("usr/bin/runsvdir").display().to_string(), services.display().to_string()];
    Ok(Peer { name: "runit", services, command, direct: Some("runsv"), tools, child: None })
}

/// s6-svscan, with an s6-supervise and an s6-log for each program. (s6-svscan also supervises loggers by an
/// s6-supervise.)
pub(crate) fn s6(folder: &Path, program: &Path, names: &[String]) -> Result<Peer> {
    let tools = tools()?;
    let services = folder.join("services");
    for name in names {
        let service = services.join(name);
        fs::create_dir_all(service.join("log/main"))?;
        symlink(program, service.join("run"))?;
        script(&service.join("log/run"), "exec s6-log n3 s100000 ./main")?;
    }
    let most = (names.len() * 2 + 10).to_string();
    let bin = tools.join("usr/bin");
    // It calls /usr/bin/s6-supervise, so that it has a /usr/bin of its own, with its programs beside this host's.
    let beside = format!(
        "mount -t overlay overlay -o lowerdir={}:/usr/bin /usr/bin && exec s6-svscan -c {most} {}",
        bin.display(),
        services.display()
    );
    let command = ["unshare", "--mount", "sh", "-c", &beside].map(str::to_owned).into();
    Ok(Peer { name: "s6", services, command, direct: Some("s6-supervise"), tools, child: None })
}

/// One supervisord for all programs.
pub(crate) fn supervisord(folder: &Path, program: &Path, names: &[String]) -> Result<Peer> {
    let tools = tools()?;
    let services = folder.join("services");
    let mut conf = format!(
        "[supervisord]\nnodaemon=true\nminfds=4096\nlogfile={0}/supervisord.log\npidfile={0}/supervisord.pid\nchildlogdir={0}\n",
        folder.display()
    );
    for name in names {
        let service = services.join(name);
        fs::create_dir_all(&service)?;
        conf += &format!(
            "[program:{name}]\ncommand={}\ndirectory={}\nautorestart=true\n",
            program.display(),
            service.display()
        );
    }
    let path = folder.join("supervisord.conf");
    fs::write(&path, conf)?;
    let main = "import sys; from supervisor.supervisord import main; sys.argv[0] = 'supervisord'; main()";
    let mut command: Vec<String> = ["/usr/bin/python3", "-c", main, "-c"].map(str::to_owned).into();
    command.push(path.display().to_string());
    Ok(Peer { name: "supervisord", services, command, direct: None, tools, child: None })
}

fn script(path: &Path, line: &str) -> Result<()> {
    fs::write(path, format!("#!/bin/sh\n{line}\n"))?;
    Ok(fs::set_permissions(path, fs::Permissions::from_mode(0o755))?)
}

/// Unpacks the packages, once.
fn tools() -> Result<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/tools/supervisors");
    let (complete, all) = (folder.join("complete"), PACKAGES.join(" "));
    if fs::read_to_string(&complete).is_ok_and(|unpacked| unpacked == all) {
        return Ok(folder);
    }
    fs::create_dir_all(&folder)?;
    let hint = "hint: this needs Debian's packages, for which `apt-get update` may have to run first";
    let got = Command::new("apt-get").args(["download", "-q"]).args(PACKAGES).current_dir(&folder).status();
    ensure!(got.context(hint)?.success(), "the peers could not be had. {hint}");
    for entry in fs::read_dir(&folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "deb") {
            let unpacked = Command::new("dpkg-deb").arg("-x").arg(&path).arg(&folder).status()?;
            ensure!(unpacked.success(), "{} cannot be unpacked", path.display());
        }
    }
    fs::write(complete, all)?;
    Ok(folder)
}

impl Peer {
    /// The supervisor's processes: all its descendants except the services' program.
    fn below(&self) -> Vec<i32> {
        let Some(first) = self.child.as_ref().map(|child| child.id().cast_signed()) else { return Vec::new() };
        family(first)
    }

    fn is_program(&self, pid: i32) -> bool {
        fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe.ends_with("program"))
    }
}

impl Subject for Peer {
    fn name(&self) -> &'static str {
        self.name
    }

    fn start(&mut self) -> Result<()> {
        let libraries = fs::read_dir(self.tools.join("usr/lib"))?.flatten().map(|entry| entry.path());
        let libraries: Vec<String> = libraries.map(|path| path.display().to_string()).collect();
        let path = format!("{}:/usr/bin:/bin", self.tools.join("usr/bin").display());
        let log = fs::File::create(self.services.with_file_name("supervisor.log"))?;
        let child = Command::new(&self.command[0])
            .args(&self.command[1..])
            .env_clear()
            .env("PATH", path)
            .env("LD_LIBRARY_PATH", libraries.join(":"))
            .env("PYTHONPATH", self.tools.join("usr/lib/python3/dist-packages"))
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .with_context(|| self.command[0].clone())?;
        self.child = Some(child);
        Ok(())
    }

    fn processes(&self) -> Vec<i32> {
        self.below().into_iter().filter(|pid| !self.is_program(*pid)).collect()
    }

    fn supervisor_of(&self, name: &str) -> Result<i32> {
        let Some(direct) = self.direct else {
            return Ok(self.child.as_ref().context("it runs")?.id().cast_signed());
        };
        let line = |pid: &i32| fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let is_it = |pid: &i32| {
            let line = line(pid);
            let mut words = line.split('\0');
            words.next().is_some_and(|program| program.rsplit('/').next() == Some(direct))
                && words.next().is_some_and(|service| service == name)
        };
        self.below().into_iter().find(is_it).with_context(|| format!("the {direct} of {name}"))
    }

    fn start_again(&mut self) -> Result<()> {
        if self.direct.is_some() {
            // runsvdir and s6-svscan do this by themselves.
            return Ok(());
        }
        if let Some(mut child) = self.child.take() {
            child.wait()?;
        }
        let _ = fs::remove_file(self.services.with_file_name("supervisord.pid"));
        self.start()
    }

    fn stop(&mut self) {
        // Parents first, so that nothing is restarted.
        for pid in self.processes() {
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.stop();
    }
}
