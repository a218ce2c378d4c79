//! The same adapter over Docker: one daemon of a test's own, in a network and a view of mounts of its own, so that it changes
//! nothing of this machine's. Where none can be started the tests say so, and are skipped.

use std::{
    ffi::OsString,
    fs,
    path::PathBuf,
    process::{Command, Stdio},
};

use nix::{sys::signal::Signal, unistd::geteuid};
use serde_json::json;
use tempfile::TempDir;

use super::{
    as_container, as_yuno, memory_limit, pid, scenario, shop,
    stage::{Podman, add_rootfs, apply, unpacked, write},
    wait_for_log,
};
use crate::fleet::{Fleet, PATIENCE, Running, eventually};

/// `dockerd`, and what it keeps.
struct Docker {
    folder: TempDir,
    daemon: Option<Running>,
}

impl Docker {
    /// Starts one; nothing if this host does not let the test do that, which is said.
    fn start() -> Option<Self> {
        let why_not = if !geteuid().is_root() {
            "only root can start a Docker".to_owned()
        } else if let Some(program) = unpacked("dockerd") {
            // A socket's path has to be short.
            let folder = tempfile::Builder::new().prefix("md-").tempdir_in("/tmp").unwrap();
            fs::write(folder.path().join("daemon.json"), "{}").unwrap();
            let mut docker = Self { folder, daemon: None };
            match docker.serve(program) {
                Ok(()) => return Some(docker),
                Err(why) => why,
            }
        } else {
            "unknown dockerd, which `tests/tools docker` provides".to_owned()
        };
        eprintln!("skipped: {why_not}");
        None
    }

    fn serve(&mut self, program: PathBuf) -> Result<(), String> {
        let at = |name: &str| self.folder.path().join(name);
        // What it starts lies beside it.
        let beside = program.parent().unwrap().with_file_name("bin");
        let usual = std::env::var_os("PATH").unwrap_or_default();
        let path: OsString = std::env::join_paths([beside].into_iter().chain(std::env::split_paths(&usual))).unwrap();
        let mut command = Command::new("unshare");
        command.args(["--net", "--mount", "--"]).arg(&program);
        for (option, name) in
            [("config-file", "daemon.json"), ("data-root", "data"), ("exec-root", "run"), ("pidfile", "pid")]
        {
            command.arg(format!("--{option}")).arg(at(name));
        }
        for option in ["iptables", "ip6tables", "ip-masq", "ip-forward", "userland-proxy"] {
            command.arg(format!("--{option}=false"));
        }
        command
            .args(["--bridge", "none", "--storage-driver", "vfs", "--group", "root", "--log-level", "warn", "--host"])
            .arg(format!("unix://{}", self.socket().display()))
            .env_clear()
            .env("PATH", path)
            .env("HOME", self.folder.path())
            .env("TMPDIR", self.folder.path())
            .current_dir(self.folder.path())
            .stdin(Stdio::null());
        let mut daemon = Running::start(&mut command);
        let socket = self.socket();
        let answers = eventually("Docker's socket", || {
            match (daemon.ended(), std::os::unix::net::UnixStream::connect(&socket)) {
                (true, _) => Ok(false),
                (false, Ok(_)) => Ok(true),
                (false, Err(error)) => Err(error.to_string()),
            }
        });
        if !answers {
            return Err(format!("a Docker cannot be started here: {}", daemon.printed().trim()));
        }
        self.daemon = Some(daemon);
        Ok(())
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("s")
    }

    /// Runs `docker` beside the agent, as somebody else on that host would; gives what it prints.
    #[track_caller]
    fn run(&self, args: &[&str]) -> String {
        let output = self.command().args(args).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "docker {args:?}: {said}");
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    fn command(&self) -> Command {
        let mut command = Command::new(unpacked("docker").unwrap());
        command
            .env_clear()
            .env("HOME", self.folder.path())
            .arg("--host")
            .arg(format!("unix://{}", self.socket().display()));
        command
    }

    fn names(&self) -> String {
        self.run(&["ps", "--all", "--format", "{{.Names}}"])
    }

    fn fleet(&self) -> Fleet {
        let fleet = Fleet::start_with(&["--no-sample", "--podman-socket", self.socket().to_str().unwrap()]);
        fleet.lease_own_ports();
        fleet
    }
}

impl Drop for Docker {
    fn drop(&mut self) {
        let Some(mut daemon) = self.daemon.take() else { return };
        if let Ok(output) = self.command().args(["ps", "--all", "--quiet"]).output() {
            let ids = String::from_utf8_lossy(&output.stdout).into_owned();
            let _ = self.command().args(["rm", "--force"]).args(ids.split_whitespace()).output();
        }
        // It ends what it has started.
        daemon.signal(Signal::SIGTERM);
        let began = std::time::Instant::now();
        while !daemon.ended() && began.elapsed() < PATIENCE {
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
    }
}

#[test]
fn yuno_and_docker_container_behave_alike() {
    let Some(docker) = Docker::start() else { return };
    let fleet = docker.fleet();
    add_rootfs(&fleet);
    let yuno = scenario(&fleet, "yuno", "default/till", &|script| as_yuno(&fleet, script));
    let found =
        scenario(&fleet, "container", "default/shop", &|script| as_container(&fleet, "default/shop", "podman", script));
    assert_eq!(found, yuno);
    assert_eq!(docker.names(), "");
}

#[test]
fn docker_limits_restores_commands_and_archives() {
    let Some(docker) = Docker::start() else { return };
    let mut fleet = docker.fleet();
    add_rootfs(&fleet);
    let limits = |memory_mb: u64| {
        shop(json!({"user": "shop", "limits": {"memory_bytes": memory_mb << 20, "cpu": 0.5, "pids": 50}}))
    };
    apply(&fleet, &limits(64));
    let first = pid(&fleet.unit_in_phase("default/shop", "running"));
    wait_for_log(&fleet, "up as 700 with blue");
    assert_eq!(memory_limit(first), 64 << 20);
    fleet.ok(&["container", "quota", "default/shop", "--memory", "80M", "--cpu", "0.25"]);
    let unit = fleet.unit("default/shop", |unit| unit["observed"]["revision"] == unit["desired"]["revision"]);
    assert_eq!((pid(&unit), memory_limit(first)), (first, 80 << 20), "in place");
    let inside = fleet.muster(&["unit", "exec", "default/shop", "--passthrough", "--", "sh", "-c", "id -u; exit 7"]);
    assert_eq!((inside.stdout.as_str(), inside.code), ("700\n", 7));
    fleet.kill();
    fleet.again();
    assert_eq!(pid(&fleet.unit_in_phase("default/shop", "running")), first);
    // Somebody ends it by hand.
    docker.run(&["kill", "muster.default.shop"]);
    let unit = fleet.unit_in_phase("default/shop", "backoff");
    assert_eq!(unit["observed"]["exit"], json!({"signal": 9}), "{unit}");
    let unit =
        fleet.unit("default/shop", |unit| unit["observed"]["phase"] == "running" && unit["observed"]["attempts"] == 1);
    assert_eq!(memory_limit(pid(&unit)), 80 << 20);
    let listed = eventually("its limits in a heartbeat", || {
        let host = fleet.json(&["host", "show", &fleet.host()]);
        let listed = host["state"]["value"]["containers"]["muster.default.shop"].clone();
        if listed["state"] == "running" { Ok(listed) } else { Err(listed.to_string()) }
    });
    assert_eq!((&listed["unit"], &listed["limits"]["pids"]), (&json!("default/shop"), &json!(50)));

    // An archive in the form that every Docker takes; and one in OCI's, which this one may not know.
    let podman = Podman::start();
    podman.import(&fleet, "localhost/theirs:1", "an archive");
    for (form, version) in [("docker-archive", "1"), ("oci-archive", "2")] {
        let path = fleet.home.path().join(form).to_str().unwrap().to_owned();
        podman.run(&["save", "--quiet", "--format", form, "--output", &path, "localhost/theirs:1"]);
        fleet.ok(&["artifact", "create", &path, "--role", "theirs", "--version", version]);
    }
    let of = |version: &str| {
        shop(json!({"image": {"archive": format!("theirs@{version}")}, "args": [], "verify_after_ms": 0}))
    };
    apply(&fleet, &of("1"));
    wait_for_log(&fleet, "made of an archive as 700");
    let run = fleet.muster(&["unit", "apply", &write(&fleet, &of("2"))]);
    if run.code != 0 {
        run.expect_stderr("is not an archive of an image that can be loaded").expect_stderr("Docker before version 25");
    }
    assert!(!docker.run(&["images"]).contains("theirs"), "its name is not taken");
    let refused = fleet.muster(&["unit", "apply", &write(&fleet, &shop(json!({"disk_bytes": 16 << 20})))]);
    refused.expect_code(1).expect_stderr("unsupported by podman: disk_bytes");
}
