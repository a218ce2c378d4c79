//! A root with the machine's own `apt` and `dpkg` and a database of packages of its own, packages that are made here, and a signed
//! repository of them on loopback. The machine's own packages are never touched.

use std::{
    collections::BTreeMap,
    fs::{self, Permissions},
    io::{BufRead, BufReader, Write},
    net::{TcpListener, TcpStream},
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
    process::{Command, Output},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

/// What apt, dpkg and the scripts of the packages here call.
const PROGRAMS: &[&str] = &[
    "apt-cache",
    "apt-config",
    "apt-get",
    "apt-key",
    "apt-mark",
    "awk",
    "base64",
    "cat",
    "chmod",
    "chown",
    "cmp",
    "comm",
    "cp",
    "cut",
    "dd",
    "diff",
    "dpkg",
    "dpkg-deb",
    "dpkg-divert",
    "dpkg-query",
    "dpkg-split",
    "dpkg-statoverride",
    "dpkg-trigger",
    "env",
    "expr",
    "false",
    "find",
    "gpgconf",
    "gpgv",
    "grep",
    "gzip",
    "head",
    "id",
    "ldconfig",
    "ln",
    "ls",
    "mkdir",
    "mktemp",
    "mv",
    "od",
    "readlink",
    "rm",
    "rmdir",
    "sed",
    "sh",
    "sleep",
    "sort",
    "sqv",
    "start-stop-daemon",
    "stat",
    "tail",
    "tar",
    "test",
    "touch",
    "tr",
    "true",
    "uname",
    "uniq",
    "update-alternatives",
    "wc",
    "xz",
    "zstd",
];

const METHODS: &[&str] = &["copy", "file", "gpgv", "http", "sqv", "store"];

const FOLDERS: &[&str] = &[
    "dev",
    "etc/apt/apt.conf.d",
    "etc/apt/keyrings",
    "etc/apt/preferences.d",
    "etc/apt/sources.list.d",
    "etc/apt/trusted.gpg.d",
    "etc/dpkg/dpkg.cfg.d",
    "proc",
    "run",
    "tmp",
    "usr/bin",
    "usr/lib",
    "usr/lib64",
    "usr/sbin",
    "usr/share/dpkg",
    "var/cache/apt/archives/partial",
    "var/lib/apt/lists/partial",
    "var/lib/dpkg/alternatives",
    "var/lib/dpkg/info",
    "var/lib/dpkg/triggers",
    "var/lib/dpkg/updates",
    "var/log/apt",
];

/// Runs a program of the test's own to its end.
#[track_caller]
pub(super) fn run(command: &mut Command) -> Output {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {said}{}", String::from_utf8_lossy(&output.stdout));
    output
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A root.
pub(super) struct Root {
    pub(super) path: PathBuf,
}

impl Root {
    /// Makes one in a folder that is not there yet.
    pub(super) fn make(path: &Path) -> Self {
        let root = Self { path: path.to_owned() };
        for folder in FOLDERS {
            fs::create_dir_all(path.join(folder)).unwrap();
        }
        for (link, target) in [("bin", "usr/bin"), ("sbin", "usr/sbin"), ("lib", "usr/lib"), ("lib64", "usr/lib64")] {
            symlink(target, path.join(link)).unwrap();
        }
        fs::set_permissions(path.join("tmp"), Permissions::from_mode(0o1777)).unwrap();
        for program in PROGRAMS {
            root.copy_program(program);
        }
        for method in METHODS {
            root.copy_with_libraries(&PathBuf::from("/usr/lib/apt/methods").join(method));
        }
        for entry in fs::read_dir("/usr/share/dpkg").unwrap().flatten().filter(|entry| entry.path().is_file()) {
            fs::copy(entry.path(), path.join("usr/share/dpkg").join(entry.file_name())).unwrap();
        }
        let users = fs::read_to_string("/etc/passwd").unwrap();
        let users: Vec<&str> = users
            .lines()
            .filter(|line| ["root:", "_apt:", "nobody:"].iter().any(|user| line.starts_with(user)))
            .collect();
        fs::write(path.join("etc/passwd"), users.join("\n") + "\n").unwrap();
        fs::write(path.join("etc/group"), "root:x:0:\nnogroup:x:65534:\n").unwrap();
        fs::write(path.join("var/lib/dpkg/status"), "").unwrap();
        let null = path.join("dev/null");
        let mode = nix::sys::stat::Mode::from_bits_truncate(0o666);
        nix::sys::stat::mknod(&null, nix::sys::stat::SFlag::S_IFCHR, mode, nix::sys::stat::makedev(1, 3)).unwrap();
        fs::set_permissions(&null, Permissions::from_mode(0o666)).unwrap();
        root
    }

    fn copy_program(&self, program: &str) {
        let folders = ["/usr/bin", "/usr/sbin"].map(|folder| Path::new(folder).join(program));
        let Some(found) = folders.into_iter().find(|path| path.exists()) else { return };
        let real = fs::canonicalize(&found).unwrap();
        self.copy_with_libraries(&real);
        let link = self.path.join(found.strip_prefix("/").unwrap());
        if !link.exists() {
            symlink(&real, &link).unwrap();
        }
    }

    fn copy_with_libraries(&self, file: &Path) {
        if !file.exists() {
            return;
        }
        self.copy(file);
        // What is no program has none.
        let Ok(listed) = Command::new("ldd").arg(file).output() else { return };
        let listed = text(&listed);
        for word in listed.split_whitespace().filter(|word| word.starts_with('/')) {
            self.copy(Path::new(word));
        }
    }

    fn copy(&self, file: &Path) {
        let to = self.path.join(file.strip_prefix("/").unwrap());
        if !to.exists() && file.exists() {
            fs::create_dir_all(to.parent().unwrap()).unwrap();
            fs::copy(file, to).unwrap();
        }
    }

    /// A program in it, as somebody else would run it.
    pub(super) fn command(&self, argv: &[&str]) -> Command {
        let mut command = Command::new("chroot");
        command.arg(&self.path).args(argv).env_clear();
        command
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .env("LC_ALL", "C")
            .env("DEBIAN_FRONTEND", "noninteractive");
        command
    }

    /// The versions of the packages that are there.
    pub(super) fn packages(&self) -> BTreeMap<String, String> {
        let listed =
            self.command(&["dpkg-query", "-W", "-f=${Package} ${Version} ${db:Status-Abbrev}\\n"]).output().unwrap();
        let listed = text(&listed);
        let lines = listed.lines().filter_map(|line| {
            let mut words = line.split_whitespace();
            let (name, version, state) = (words.next()?, words.next()?, words.next()?);
            state.ends_with('i').then(|| (name.to_owned(), version.to_owned()))
        });
        lines.collect()
    }

    /// The content of a file in it.
    pub(super) fn read(&self, path: &str) -> Option<String> {
        fs::read_to_string(self.path.join(path)).ok()
    }
}

/// A package to be made.
#[derive(Default)]
pub(super) struct Package<'a> {
    pub(super) name: &'a str,
    pub(super) version: &'a str,
    /// More fields, each a line.
    pub(super) fields: &'a str,
    pub(super) preinst: Option<&'a str>,
    pub(super) postinst: Option<&'a str>,
    /// The size of what it brings, which is compressed well.
    pub(super) megabytes: usize,
    /// The content of its configuration file `/etc/NAME.conf`.
    pub(super) config: Option<&'a str>,
}

/// A repository, with its key, and the server on loopback that has it.
pub(super) struct Repository {
    folder: PathBuf,
    port: u16,
    is_over: Arc<AtomicBool>,
}

impl Repository {
    /// Makes an empty one in a folder.
    pub(super) fn start(folder: &Path) -> Self {
        fs::create_dir_all(folder.join("www")).unwrap();
        fs::create_dir_all(folder.join("gpg")).unwrap();
        fs::set_permissions(folder.join("gpg"), Permissions::from_mode(0o700)).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (port, is_over) = (listener.local_addr().unwrap().port(), Arc::new(AtomicBool::new(false)));
        let (www, over) = (folder.join("www"), is_over.clone());
        thread::spawn(move || {
            for stream in listener.incoming() {
                if over.load(Ordering::Relaxed) {
                    return;
                }
                if let Ok(stream) = stream {
                    let www = www.clone();
                    thread::spawn(move || drop(serve(stream, &www)));
                }
            }
        });
        let repository = Self { folder: folder.to_owned(), port, is_over };
        let key = ["--quick-gen-key", "repository@example.com", "ed25519", "sign", "never"];
        run(repository.gpg().args(["--passphrase", ""]).args(key));
        repository.publish();
        repository
    }

    fn gpg(&self) -> Command {
        let mut gpg = Command::new("gpg");
        gpg.env("GNUPGHOME", self.folder.join("gpg")).args(["--batch", "--yes", "--pinentry-mode", "loopback"]);
        gpg
    }

    pub(super) fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    pub(super) fn key(&self) -> String {
        text(&run(self.gpg().args(["--armor", "--export"])))
    }

    /// Adds a package.
    pub(super) fn add(&self, package: &Package<'_>) {
        let Package { name, version, fields, preinst, postinst, megabytes, config } = package;
        let tree = tempfile::tempdir().unwrap();
        fs::set_permissions(tree.path(), Permissions::from_mode(0o755)).unwrap();
        let write = |path: &str, content: &str, mode: u32| {
            let path = tree.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, content).unwrap();
            fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        };
        let more = if fields.is_empty() { String::new() } else { format!("{fields}\n") };
        let control = format!(
            "Package: {name}\nVersion: {version}\nArchitecture: all\nMaintainer: Test <test@example.com>\n{more}Description: for a test\n"
        );
        write("DEBIAN/control", &control, 0o644);
        write(&format!("usr/share/{name}/version"), version, 0o644);
        for (file, script) in [("DEBIAN/preinst", preinst), ("DEBIAN/postinst", postinst)] {
            if let Some(script) = script {
                write(file, &format!("#!/bin/sh\n{script}\n"), 0o755);
            }
        }
        if *megabytes > 0 {
            write(&format!("usr/share/{name}/content"), &"x".repeat(megabytes * 1024 * 1024), 0o644);
        }
        if let Some(content) = config {
            write(&format!("etc/{name}.conf"), content, 0o644);
            write("DEBIAN/conffiles", &format!("/etc/{name}.conf\n"), 0o644);
        }
        let file = self.folder.join("www").join(format!("{name}_{version}_all.deb"));
        run(Command::new("dpkg-deb").args(["--root-owner-group", "-b"]).arg(tree.path()).arg(file));
        self.publish();
    }

    /// Takes a package away.
    pub(super) fn remove(&self, name: &str, version: &str) {
        fs::remove_file(self.folder.join("www").join(format!("{name}_{version}_all.deb"))).unwrap();
        self.publish();
    }

    /// Writes the lists, and signs them.
    pub(super) fn publish(&self) {
        let www = self.folder.join("www");
        let packages = run(Command::new("dpkg-scanpackages").args(["-m", "."]).current_dir(&www)).stdout;
        fs::write(www.join("Packages"), &packages).unwrap();
        let sum = text(&run(Command::new("sha256sum").arg("Packages").current_dir(&www)));
        let sum = sum.split_whitespace().next().unwrap();
        let date = text(&run(Command::new("date").args(["-Ru"])));
        let release = format!("Date: {date}SHA256:\n {sum} {} Packages\n", packages.len());
        fs::write(www.join("Release"), release).unwrap();
        run(self.gpg().args(["--clearsign", "-o", "InRelease", "Release"]).current_dir(&www));
    }

    /// Takes the signature away.
    pub(super) fn unsign(&self) {
        fs::remove_file(self.folder.join("www/InRelease")).unwrap();
    }
}

impl Drop for Repository {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        let _ = TcpStream::connect(("127.0.0.1", self.port));
        let _ = Command::new("gpgconf").args(["--kill", "all"]).env("GNUPGHOME", self.folder.join("gpg")).output();
    }
}

/// Answers requests for files, one after the other.
fn serve(stream: TcpStream, www: &Path) -> std::io::Result<()> {
    let mut from = BufReader::new(stream.try_clone()?);
    let mut to = stream;
    loop {
        let mut line = String::new();
        if from.read_line(&mut line)? == 0 {
            return Ok(());
        }
        let path = line.split(' ').nth(1).unwrap_or_default().to_owned();
        while from.read_line(&mut line)? > 2 {}
        let name = path.rsplit('/').next().unwrap_or_default().replace("%7e", "~").replace("%3a", ":");
        match fs::read(www.join(name)) {
            Ok(content) => {
                write!(to, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", content.len())?;
                to.write_all(&content)?;
            }
            Err(_) => write!(to, "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")?,
        }
    }
}
