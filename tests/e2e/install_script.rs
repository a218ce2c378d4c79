//! `install.sh`: it installs what was signed, says before what it will do, and takes all of it away again.

use std::{
    collections::BTreeMap,
    fs,
    io::{Read, Write},
    net::TcpListener,
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
    process::Command,
    thread,
};

use nix::unistd::geteuid;

use crate::{
    fleet::{Home, Run, eventually, file, machine::Machine, muster},
    roles::Roles,
};

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/install.sh");
/// A small program in the place of the real one.
const PROGRAM: &str = r#"#!/bin/sh
case "$1" in
    man) mkdir -p "$3" && echo "a page" >"$3/muster.1" && echo "a page" >"$3/muster-host.1" ;;
    completions) echo "completions for $2" ;;
    *) echo 'muster 7.0' ;;
esac
"#;
/// Where it has manual pages and completions, below its prefix.
const PAGES: [&str; 5] = [
    "share/bash-completion/completions/muster",
    "share/fish/vendor_completions.d/muster.fish",
    "share/man/man1/muster-host.1",
    "share/man/man1/muster.1",
    "share/zsh/site-functions/_muster",
];

fn machine_name() -> &'static str {
    std::env::consts::ARCH
}

#[track_caller]
fn openssl(args: &[&str], folder: &Path) {
    let output = Command::new("openssl").args(args).current_dir(folder).output().unwrap();
    assert!(output.status.success(), "openssl {args:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// A release in a folder, signed with a key beside it.
struct Release {
    folder: PathBuf,
    key: PathBuf,
}

impl Release {
    /// One of these files.
    fn new(home: &Home, files: &[(&str, &Path)]) -> Self {
        let folder = home.path().join("release");
        fs::create_dir(&folder).unwrap();
        for (name, from) in files {
            fs::copy(from, folder.join(name)).unwrap();
        }
        openssl(&["genpkey", "-algorithm", "ed25519", "-out", "secret.pem"], home.path());
        openssl(&["pkey", "-in", "secret.pem", "-pubout", "-out", "public.pem"], home.path());
        let release = Self { folder, key: home.path().join("public.pem") };
        release.sign();
        release
    }

    /// One of a small program, as the whole program and as the agent.
    fn small(home: &Home) -> Self {
        let path = PathBuf::from(file(home, "program", PROGRAM));
        let (whole, agent) =
            (format!("muster-{}-linux", machine_name()), format!("muster-agent-{}-linux", machine_name()));
        Self::new(home, &[(&whole, &path), (&agent, &path)])
    }

    fn sign(&self) {
        let sums = Command::new("sh").args(["-c", "sha256sum muster-*"]).current_dir(&self.folder).output().unwrap();
        fs::write(self.folder.join("SHA256SUMS"), sums.stdout).unwrap();
        let sign =
            ["pkeyutl", "-sign", "-rawin", "-inkey", "../secret.pem", "-in", "SHA256SUMS", "-out", "SHA256SUMS.sig"];
        openssl(&sign, &self.folder);
    }

    /// Changes a bit of a file.
    fn flip(&self, name: &str) {
        let path = self.folder.join(name);
        let mut bytes = fs::read(&path).unwrap();
        let at = bytes.len() / 2;
        bytes[at] ^= 1;
        fs::write(path, bytes).unwrap();
    }
}

/// Runs the script.
fn install(home: &Home, args: &[&str]) -> Run {
    let mut command = Command::new("sh");
    home.dress(&mut command);
    Run::of(args, command.arg(SCRIPT).args(args))
}

/// All files below a folder, with what they hold.
fn tree(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut all = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).into_iter().flatten() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path.clone());
                all.insert(path, Vec::new());
            } else {
                all.insert(path.clone(), fs::read(&path).unwrap());
            }
        }
    }
    all
}

/// Serves a folder over HTTP on loopback for as long as the test's process lives; gives its URL.
fn serve(folder: &Path) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/some/where", listener.local_addr().unwrap());
    let folder = folder.to_owned();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut read = Vec::new();
            let mut piece = [0; 1_024];
            while !read.windows(4).any(|end| end == b"\r\n\r\n") {
                match stream.read(&mut piece) {
                    Ok(count) if count > 0 => read.extend_from_slice(&piece[..count]),
                    _ => break,
                }
            }
            let text = String::from_utf8_lossy(&read).into_owned();
            let path = text.split_whitespace().nth(1).unwrap_or_default();
            let name = path.strip_prefix("/some/where/").unwrap_or_default();
            let answer = match fs::read(folder.join(name)) {
                Ok(bytes) if !name.is_empty() => [
                    format!("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {}\r\n\r\n", bytes.len())
                        .into_bytes(),
                    bytes,
                ]
                .concat(),
                _ => b"HTTP/1.1 404 Not Found\r\nConnection: close\r\nContent-Length: 0\r\n\r\n".to_vec(),
            };
            let _ = stream.write_all(&answer);
        }
    });
    url
}

#[test]
fn release_is_installed_from_folder_and_url_and_removed() {
    let home = Home::new();
    let release = Release::small(&home);
    let prefix = home.path().join("opt/muster");
    let (folder, key) = (release.folder.to_str().unwrap(), release.key.to_str().unwrap());
    let before = tree(&home.path().join("opt"));
    for from in [folder.to_owned(), serve(&release.folder)] {
        let args = ["--program", "--from", &from, "--key", key, "--prefix", prefix.to_str().unwrap()];
        let with = |more: &[&'static str]| install(&home, &[&args[..], more].concat());
        // Without a terminal nobody can be asked.
        with(&[]).expect_code(1).expect_stderr("--yes");
        let plan = with(&["--dry-run"]).expect_code(0).stdout;
        assert!(plan.contains("muster 7.0") && plan.contains("opt/muster/bin/muster"), "{plan}");
        assert_eq!(tree(&home.path().join("opt")), before, "nothing is changed before somebody agrees");
        let done = with(&["--yes"]).expect_code(0).stdout;
        assert!(done.find("This will be done").unwrap() < done.find("done. ").unwrap(), "{done}");
        assert!(done.contains("export PATH=") && done.contains("muster up"), "{done}");
        let program = prefix.join("bin/muster");
        assert_eq!(fs::read_to_string(&program).unwrap(), PROGRAM);
        assert_eq!(fs::metadata(&program).unwrap().permissions().mode() & 0o777, 0o755);
        let pages = tree(&prefix.join("share")).into_keys().filter(|path| path.is_file());
        assert_eq!(pages.collect::<Vec<_>>(), PAGES.map(|page| prefix.join(page)));
        assert!(plan.contains("manual pages and completions below"), "{plan}");
        let bash = fs::read_to_string(prefix.join(PAGES[0])).unwrap();
        assert_eq!(bash, "completions for bash\n");
        let installed = tree(&home.path().join("opt"));
        let again = with(&["--yes"]).expect_code(0).stdout;
        assert!(again.contains("nothing is changed"), "{again}");
        assert_eq!(tree(&home.path().join("opt")), installed);
        install(&home, &["--undo", "--yes", "--prefix", prefix.to_str().unwrap()]).expect_code(0);
        assert_eq!(tree(&home.path().join("opt")), before);
        let nothing = install(&home, &["--undo", "--yes", "--prefix", prefix.to_str().unwrap()]).expect_code(0);
        assert!(nothing.stdout.contains("nothing is changed"), "{nothing:?}");
    }
}

#[test]
fn new_release_replaces_the_program() {
    let home = Home::new();
    let release = Release::small(&home);
    let prefix = home.path().join("opt").display().to_string();
    let args =
        ["--program", "--yes", "--from", release.folder.to_str().unwrap(), "--key", release.key.to_str().unwrap()];
    let args = [&args[..], &["--prefix", &prefix]].concat();
    install(&home, &args).expect_code(0);
    let installed = home.path().join("opt/bin/muster");
    let pages = || PAGES.map(|page| home.path().join("opt").join(page).exists());
    // A verb goes, and its page with it; and a program that makes no pages has none.
    let newer = PROGRAM.replace("7.0", "7.1").replace("muster-host", "muster-node");
    for (program, has) in
        [(&newer, [true, true, false, true, true]), (&newer.replace("mkdir", "exit 2; mkdir"), [false; 5])]
    {
        fs::write(release.folder.join(format!("muster-{}-linux", machine_name())), program).unwrap();
        release.sign();
        install(&home, &args).expect_code(0);
        assert_eq!(&fs::read_to_string(&installed).unwrap(), program);
        assert_eq!(pages(), has);
        assert_eq!(home.path().join("opt/share/man/man1/muster-node.1").exists(), program == &newer);
    }
    // An earlier script installed the program without pages: this one adds them.
    let record = home.path().join("opt/lib/muster/installed");
    fs::write(release.folder.join(format!("muster-{}-linux", machine_name())), PROGRAM).unwrap();
    release.sign();
    install(&home, &args).expect_code(0);
    let text = fs::read_to_string(&record).unwrap();
    fs::write(&record, text.lines().filter(|line| !line.starts_with("page ")).collect::<Vec<_>>().join("\n") + "\n")
        .unwrap();
    let again = install(&home, &args).expect_code(0).stdout;
    assert!(again.contains("wrote its manual pages") && !again.contains("copied to"), "{again}");
    assert_eq!(fs::read_to_string(&record).unwrap(), text);
    install(&home, &["--undo", "--yes", "--prefix", &prefix]).expect_code(0);
    assert!(tree(&home.path().join("opt")).is_empty());
}

#[test]
fn changed_release_is_refused() {
    let program = format!("muster-{}-linux", machine_name());
    for (name, words) in [
        (program.as_str(), "is not the file that was signed"),
        ("SHA256SUMS", "the signature of SHA256SUMS is not of the key"),
        ("SHA256SUMS.sig", "the signature of SHA256SUMS is not of the key"),
    ] {
        let home = Home::new();
        let release = Release::small(&home);
        release.flip(name);
        let prefix = home.path().join("opt").display().to_string();
        let args = ["--program", "--yes", "--from", release.folder.to_str().unwrap(), "--key"];
        let args = [&args[..], &[release.key.to_str().unwrap(), "--prefix", &prefix]].concat();
        install(&home, &args).expect_code(3).expect_stderr(words);
        assert!(!Path::new(&prefix).exists(), "{name}: nothing is changed");
    }
    // A good release, and the key of somebody else.
    let (home, other) = (Home::new(), Home::new());
    let (release, stranger) = (Release::small(&home), Release::small(&other));
    let prefix = home.path().join("opt").display().to_string();
    let args = ["--program", "--yes", "--from", release.folder.to_str().unwrap(), "--key"];
    let args = [&args[..], &[stranger.key.to_str().unwrap(), "--prefix", &prefix]].concat();
    install(&home, &args).expect_code(3).expect_stderr("signature");
    // A name twice in a list that is signed.
    let sums = release.folder.join("SHA256SUMS");
    let text = fs::read_to_string(&sums).unwrap();
    fs::write(&sums, text.repeat(2)).unwrap();
    let sign = ["pkeyutl", "-sign", "-rawin", "-inkey", "../secret.pem", "-in", "SHA256SUMS", "-out", "SHA256SUMS.sig"];
    openssl(&sign, &release.folder);
    let args = ["--program", "--yes", "--from", release.folder.to_str().unwrap(), "--key"];
    let args = [&args[..], &[release.key.to_str().unwrap(), "--prefix", &prefix]].concat();
    install(&home, &args).expect_code(3).expect_stderr("more than once");
    assert!(!Path::new(&prefix).exists());
}

#[test]
fn what_is_needed_is_named() {
    let home = Home::new();
    let release = Release::small(&home);
    let (folder, key) = (release.folder.to_str().unwrap(), release.key.to_str().unwrap());
    for (args, code, words) in [
        (&["--form"][..], 2, "unknown option --form"),
        (&["--from"], 2, "needs a value"),
        (&["--from", folder], 2, "no key is named"),
        (&["--from", folder, "--key", "nonsense"], 2, "neither a PEM file"),
        (&["--from", "/no/such", "--key", key], 1, "has no file SHA256SUMS"),
        (&["--from", "http://127.0.0.1:9/x", "--key", key], 1, "cannot be had"),
        (&["--from", folder, "--key", key, "--prefix", "relative"], 2, "absolute"),
        (&["--from", folder, "--key", key, "--prefix", "/a b"], 2, "characters"),
        (&["--program", "--now"], 2, "--program"),
        (&["--purge"], 2, "--undo"),
    ] {
        install(&home, args).expect_code(code).expect_stderr(words);
    }
    // The agent is a service: of root, and of systemd.
    let service = ["--from", folder, "--key", key];
    if !Path::new("/run/systemd/system").exists() {
        install(&home, &service)
            .expect_code(1)
            .expect_stderr("systemd does not run")
            .expect_stderr("--program --prefix");
    }
    // A host without OpenSSL.
    let programs = home.path().join("programs");
    fs::create_dir(&programs).unwrap();
    let path = std::env::var_os("PATH").unwrap();
    for name in ["sh", "sha256sum", "cut", "sed", "uname", "mktemp", "rm", "cat", "dirname"] {
        let mut found = std::env::split_paths(&path).map(|folder| folder.join(name));
        symlink(found.find(|path| path.exists()).unwrap(), programs.join(name)).unwrap();
    }
    let mut command = Command::new("/bin/sh");
    home.dress(&mut command);
    command.env("PATH", &programs).arg(SCRIPT).args(["--program", "--from", folder, "--key", key]);
    Run::of(&["without openssl"], &mut command).expect_code(1).expect_stderr("openssl");
}

#[test]
fn agent_service_is_installed_joins_and_is_removed() {
    if !geteuid().is_root() {
        eprintln!("skipped: only root can make a machine");
        return;
    }
    let roles = Roles::start();
    let Some(machine) = Machine::boot(&roles.home) else { return };
    let name = format!("muster-agent-{}-linux", machine_name());
    let release = Release::new(&roles.home, &[(&name, Path::new(muster()))]);
    let url = serve(&release.folder);
    fs::copy(SCRIPT, machine.path("/root/install.sh")).unwrap();
    fs::copy(&release.key, machine.path("/root/key.pem")).unwrap();
    let token = roles.token();
    fs::write(machine.path("/root/token"), &token).unwrap();
    let places = ["/usr/local", "/etc/muster", "/etc/systemd/system", "/var/lib/muster"];
    let names = || machine.run(&[&["find"], &places[..]].concat()).stdout;
    let before = names();

    let script = format!("sh /root/install.sh --from {url} --key /root/key.pem --join - --now --yes </root/token");
    let wrong = script.replace("--join - ", "--join wrong ");
    machine.run(&["sh", "-c", &wrong]).expect_code(2).expect_stderr("begins with muster1.");
    let nobody = format!(
        "cd / && setpriv --reuid=65534 --regid=65534 --clear-groups sh -c '{}'",
        wrong.replace("</root/token", "")
    );
    machine.ok(&["chmod", "a+rx", "/root", "/root/install.sh", "/root/key.pem"]);
    machine.run(&["sh", "-c", &nobody]).expect_code(1).expect_stderr("only root").expect_stderr("--program --prefix");
    assert_eq!(names(), before, "nothing is changed");
    let done = machine.ok(&["sh", "-c", &script]);
    assert!(done.contains("systemctl enable muster-agent") && !done.contains(&token), "{done}");
    roles.wait_for_host("online");
    assert_eq!(machine.service("ActiveState"), "active");
    let agent = machine.service("MainPID");

    // Once more: it stays as it is, and the agent runs on.
    let script = format!("sh /root/install.sh --from {url} --key /root/key.pem --now --yes");
    let again = machine.ok(&["sh", "-c", &script]);
    assert!(again.contains("nothing is changed"), "{again}");
    assert_eq!(machine.service("MainPID"), agent);

    // Somebody has written into the configuration, so that stays; so do the host's key and units.
    let config = machine.path("/etc/muster/agent.toml");
    let text = fs::read_to_string(&config).unwrap();
    fs::write(&config, format!("{text}# kept\n")).unwrap();
    let undone = machine.ok(&["sh", "/root/install.sh", "--undo", "--yes"]);
    assert!(undone.contains("/etc/muster/agent.toml stays"), "{undone}");
    roles.wait_for_host("stopped");
    assert!(config.exists() && machine.path("/var/lib/muster/agent/identity.json").exists());
    assert!(!machine.path("/usr/local/bin/muster").exists());

    // Installed again it is the same host, and purged nothing is left.
    machine.ok(&["sh", "-c", &script]);
    roles.wait_for_host("online");
    machine.ok(&["sh", "/root/install.sh", "--undo", "--purge", "--yes"]);
    eventually("nothing that is left", || {
        let now = names();
        if now == before { Ok(()) } else { Err(format!("{before}\n---\n{now}")) }
    });
}
