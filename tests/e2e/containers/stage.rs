//! A Podman of a test's own: its storage, its socket, and an image made of a static busybox; a registry that it pulls from;
//! and the LXC containers of a fleet. (`docker` has a Docker of a test's own.)

use std::{
    fs,
    net::{TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::atomic::{AtomicU32, Ordering},
};

use muster_test_support::slot::slot;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::fleet::{Fleet, Running, eventually};

/// `podman system service`, with storage, sockets and network of its own. What it keeps is ended with it.
pub(crate) struct Podman {
    folder: TempDir,
    /// The bridge of its network, which is there once a container was in that.
    bridge: String,
    /// The port of the only registry that it trusts without TLS.
    registry_port: u16,
    service: Option<Running>,
}

impl Podman {
    /// Starts one; fails if there is none on this machine, as `tests/run` installs it.
    #[track_caller]
    pub(crate) fn start() -> Self {
        // A socket's path has to be short.
        let folder = tempfile::Builder::new().prefix("mp-").tempdir_in("/tmp").unwrap();
        let bridge = network(folder.path());
        let config = format!(
            "[containers]\ndefault_ulimits = [\"nofile=1024:4096\", \"nproc=1000:1000\"]\n[engine]\nlock_type = \"file\"\n[network]\n\
             network_backend = \"cni\"\nnetwork_config_dir = \"{}\"\ndefault_network = \"{bridge}\"\n",
            folder.path().join("networks").display()
        );
        fs::write(folder.path().join("containers.conf"), config).unwrap();
        let free = TcpListener::bind(("127.0.0.1", 0)).and_then(|listener| listener.local_addr());
        let registry_port = free.unwrap().port();
        let registries = format!("[[registry]]\nlocation = \"127.0.0.1:{registry_port}\"\ninsecure = true\n");
        fs::write(folder.path().join("registries.conf"), registries).unwrap();
        let mut podman = Self { folder, bridge, registry_port, service: None };
        podman.serve();
        podman
    }

    /// Has the service listen (again).
    #[track_caller]
    pub(crate) fn serve(&mut self) {
        let url = format!("unix://{}", self.socket().display());
        let mut command = self.command();
        command.args(["system", "service", "--time", "0", &url]);
        self.service = Some(Running::start(&mut command));
        let socket = self.socket();
        eventually("Podman's socket", || {
            std::os::unix::net::UnixStream::connect(&socket).map(drop).map_err(|error| error.to_string())
        });
    }

    /// Has the service listen again if it has ended by itself, as systemd would: Podman 4 may crash when a layer finds no room.
    #[track_caller]
    pub(crate) fn keep_serving(&mut self) {
        if self.service.as_mut().is_some_and(Running::ended) {
            let _ = fs::remove_file(self.socket());
            self.serve();
        }
    }

    /// Ends the service, and nothing that it keeps.
    pub(crate) fn end_service(&mut self) {
        self.service.take().unwrap().kill();
        let _ = fs::remove_file(self.socket());
    }

    /// What a reboot does to it while nothing of it runs: what is in memory alone is gone, also of the container that ran.
    pub(crate) fn forget_this_boot(&self, id: &str) {
        assert!(Command::new("runc").args(["delete", "--force", id]).status().unwrap().success());
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
        let points = mounts.lines().filter_map(|line| line.split(' ').nth(1));
        for point in points.filter(|point| Path::new(point).starts_with(self.folder.path())) {
            assert!(Command::new("umount").arg(point).status().unwrap().success());
        }
        for folder in ["run", "tmp"] {
            fs::remove_dir_all(self.folder.path().join(folder)).unwrap();
        }
    }

    /// Where its images and containers are.
    pub(crate) fn storage(&self) -> PathBuf {
        self.folder.path().join("root")
    }

    /// The service itself.
    pub(crate) fn service(&self) -> &Running {
        self.service.as_ref().unwrap()
    }

    /// Where a registry listens that it pulls from, and what its images' names begin with.
    pub(crate) fn registry(&self) -> String {
        format!("127.0.0.1:{}", self.registry_port)
    }

    /// Starts that registry, with what it had before.
    #[track_caller]
    pub(crate) fn serve_registry(&self) -> Running {
        let (address, data) = (self.registry(), self.folder.path().join("registry"));
        let config = format!(
            "version: 0.1\nlog: {{level: warn}}\nstorage: {{filesystem: {{rootdirectory: {data:?}}}}}\nhttp: {{addr: {address:?}}}\n"
        );
        let path = self.folder.path().join("registry.yml");
        fs::write(&path, config).unwrap();
        let program = unpacked("docker-registry").expect("docker-registry is provided by `tests/tools docker`");
        let registry = Running::start(Command::new(program).arg("serve").arg(&path));
        eventually("the registry", || TcpStream::connect(&address).map(drop).map_err(|error| error.to_string()));
        registry
    }

    /// Makes an image of a fleet's tree, which says what it is made of and goes on.
    #[track_caller]
    pub(crate) fn import(&self, fleet: &Fleet, name: &str, made_of: &str) {
        let tar = fleet.home.path().join("shop.tar");
        let change = |line: &str| ["--change".to_owned(), line.to_owned()];
        let script = r#"echo "made of $MADE_OF as $(id -u)"; trap 'exit 0' TERM; while :; do sleep 0.1; done"#;
        let cmd = change(&format!("CMD {}", json!(["/bin/sh", "-c", script])));
        let (env, user) = (change(&format!("ENV MADE_OF={made_of}")), change("USER shop"));
        let options: Vec<&str> = cmd.iter().chain(&env).chain(&user).map(String::as_str).collect();
        self.run(&[&["import", "--quiet"], &options[..], &[tar.to_str().unwrap(), name]].concat());
    }

    /// Where it listens.
    pub(crate) fn socket(&self) -> PathBuf {
        self.folder.path().join("s")
    }

    /// `podman` with this storage.
    pub(crate) fn command(&self) -> Command {
        let at = |name: &str| self.folder.path().join(name);
        let mut command = Command::new("podman");
        command
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("HOME", self.folder.path())
            .env("XDG_RUNTIME_DIR", self.folder.path())
            .env("TMPDIR", self.folder.path())
            .env("CONTAINERS_CONF", at("containers.conf"))
            .env("CONTAINERS_REGISTRIES_CONF", at("registries.conf"))
            .current_dir(self.folder.path())
            .stdin(Stdio::null())
            .arg("--root")
            .arg(at("root"))
            .arg("--runroot")
            .arg(at("run"))
            .arg("--tmpdir")
            .arg(at("tmp"))
            .args(["--runtime", "runc", "--cgroup-manager", "cgroupfs", "--events-backend", "file"])
            .args(["--storage-driver", "vfs"]);
        command
    }

    /// Runs `podman` beside the agent, as somebody else on that host would; gives what it prints.
    #[track_caller]
    pub(crate) fn run(&self, args: &[&str]) -> String {
        let output = self.command().args(args).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "podman {args:?}: {said}");
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    /// What it tells of a container.
    #[track_caller]
    pub(crate) fn inspect(&self, name: &str) -> Value {
        let all: Value = serde_json::from_str(&self.run(&["container", "inspect", name])).unwrap();
        all[0].clone()
    }

    /// The names of all containers.
    #[track_caller]
    pub(crate) fn names(&self) -> Vec<String> {
        let names = self.run(&["ps", "--all", "--format", "{{.Names}}"]);
        names.lines().map(str::to_owned).collect()
    }

    /// A fleet whose host keeps its containers here.
    pub(crate) fn fleet(&self) -> Fleet {
        let fleet = Fleet::start_with(&["--no-sample", "--podman-socket", self.socket().to_str().unwrap()]);
        fleet.lease_own_ports();
        fleet
    }
}

impl Drop for Podman {
    fn drop(&mut self) {
        // By name, and only of this storage.
        let removed = self.command().args(["rm", "--all", "--force", "--time", "0"]).output();
        if let Ok(output) = removed
            && !output.status.success()
        {
            eprintln!("podman rm: {}", String::from_utf8_lossy(&output.stderr));
        }
        drop(self.service.take());
        // Nobody else removes what it is of no more use to.
        if Path::new("/sys/class/net").join(&self.bridge).exists() {
            let removed = Command::new("ip").args(["link", "delete", &self.bridge]).status();
            if !removed.is_ok_and(|status| status.success()) {
                eprintln!("the bridge {} stays", self.bridge);
            }
        }
    }
}

/// A program of one of the packages that `tests/tools docker` unpacks, or that this machine has.
pub(crate) fn unpacked(program: &str) -> Option<PathBuf> {
    let ours = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/tools/docker/usr");
    let all = std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()).collect::<Vec<_>>();
    [ours.join("bin"), ours.join("sbin")].into_iter().chain(all).map(|at| at.join(program)).find(|path| path.is_file())
}

/// The LXC containers of a fleet's host. They are ended with this, which has to go before the fleet.
pub(crate) struct Lxc {
    path: PathBuf,
}

impl Lxc {
    pub(crate) fn of(fleet: &Fleet) -> Self {
        Self::at(fleet.data().join("agent/lxc"))
    }

    /// The same of any agent.
    pub(crate) fn at(path: PathBuf) -> Self {
        Self { path }
    }

    /// Where they are.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Runs one of LXC's programs beside the agent, as somebody else on that host would; gives what it prints.
    #[track_caller]
    pub(crate) fn run(&self, program: &str, args: &[&str]) -> String {
        let output = Command::new(program).arg("-P").arg(&self.path).args(args).stdin(Stdio::null()).output();
        let output = output.expect("lxc is installed by tests/run");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{program} {args:?}: {said}");
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    /// Runs a program in a container; gives what it prints.
    #[track_caller]
    pub(crate) fn inside(&self, name: &str, argv: &[&str]) -> String {
        self.run("lxc-attach", &[&["-n", name, "--"], argv].concat())
    }

    /// What LXC says that a container does.
    #[track_caller]
    pub(crate) fn state(&self, name: &str) -> String {
        self.run("lxc-info", &["-n", name, "-s", "-H"])
    }

    /// The names of all of them.
    #[track_caller]
    pub(crate) fn names(&self) -> Vec<String> {
        self.run("lxc-ls", &["-1"]).lines().map(|line| line.trim().to_owned()).collect()
    }
}

impl Drop for Lxc {
    fn drop(&mut self) {
        for entry in fs::read_dir(&self.path).into_iter().flatten().flatten() {
            // One that does not run is no failure.
            let stop =
                Command::new("lxc-stop").arg("-P").arg(&self.path).args(["-k", "-n"]).arg(entry.file_name()).output();
            if let Err(error) = stop {
                eprintln!("lxc-stop: {error}");
            }
        }
    }
}

/// Describes a network of this test's own, as Podman describes its usual one, and gives the name of it and of its bridge.
fn network(folder: &Path) -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let (process, count) = (std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
    // At most 15 characters.
    let name = format!("mp{process}x{count}");
    // A net of 254 addresses in 10.64.0.0/10, which few use, and those that run at the same time do not share: 64 for each
    // process.
    assert!(count < 64, "this process has made as many nets as it has addresses for");
    let place = slot(256) * 64 + count;
    let net = format!("10.{}.{}", 64 + place / 256, place % 256);
    let ipam = json!({
        "type": "host-local", "dataDir": folder.join("ipam"), "routes": [{"dst": "0.0.0.0/0"}],
        "ranges": [[{"subnet": format!("{net}.0/24"), "gateway": format!("{net}.1")}]],
    });
    let plugins = json!([
        {"type": "bridge", "bridge": name, "isGateway": true, "ipMasq": true, "hairpinMode": true, "ipam": ipam},
        {"type": "portmap", "capabilities": {"portMappings": true}},
        {"type": "firewall"},
        {"type": "tuning"},
    ]);
    let description = json!({"cniVersion": "0.4.0", "name": name, "plugins": plugins});
    fs::create_dir(folder.join("networks")).unwrap();
    fs::write(folder.join("networks").join("net.conflist"), description.to_string()).unwrap();
    name
}

/// Adds a root file system to a fleet, as `shop@1`: a static busybox and the names that it goes by.
#[track_caller]
pub(crate) fn add_rootfs(fleet: &Fleet) {
    let tree = fleet.home.path().join("tree");
    for folder in ["bin", "dev", "etc", "proc", "sys", "tmp", "srv"] {
        fs::create_dir_all(tree.join(folder)).unwrap();
    }
    fs::copy("/bin/busybox", tree.join("bin/busybox")).expect("busybox-static is installed by tests/run");
    for name in ["sh", "sleep", "cat", "echo", "true", "kill", "id", "httpd", "env", "touch", "ls", "date"] {
        std::os::unix::fs::symlink("busybox", tree.join("bin").join(name)).unwrap();
    }
    fs::write(tree.join("etc/passwd"), "root:x:0:0::/:/bin/sh\nshop:x:700:700::/:/bin/sh\n").unwrap();
    fs::write(tree.join("etc/group"), "root:x:0:\nshop:x:700:\n").unwrap();
    add_packed(fleet, "--no-auto-compress", "1");
}

/// Adds the same tree as another version, packed with an option of `tar`.
#[track_caller]
pub(crate) fn add_packed(fleet: &Fleet, option: &str, version: &str) {
    let (tree, tar) = (fleet.home.path().join("tree"), fleet.home.path().join("shop.tar"));
    let packed = Command::new("tar").arg(option).arg("-C").arg(&tree).arg("-cf").arg(&tar).arg(".").status().unwrap();
    assert!(packed.success());
    fleet.ok(&["artifact", "create", tar.to_str().unwrap(), "--role", "shop", "--version", version]);
}

/// Applies a document.
#[track_caller]
pub(crate) fn apply(fleet: &Fleet, document: &Value) {
    fleet.ok(&["unit", "apply", &write(fleet, document)]);
}

/// Writes a document down; gives its path.
pub(crate) fn write(fleet: &Fleet, document: &Value) -> String {
    let path: &Path = &fleet.home.path().join("unit.json");
    fs::write(path, document.to_string()).unwrap();
    path.to_str().unwrap().to_owned()
}
