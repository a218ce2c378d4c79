//! Packages that are made here, and this machine as a peer may change it, for peers know no other root.

use std::{
    fs,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use anyhow::{Context, Result, ensure};

use crate::root::{Package, Repository};

/// Where peers find what they are told, in the overlay.
pub(crate) const PLACE: &str = "/bench";

/// Mounts the overlay, and keeps it until its input is closed. Mounts of this machine other than its root are not below it.
const HOLD: &str = r#"
set -e
mount -t tmpfs tmpfs "$1"
cd "$1"
mkdir upper work root
mount -t overlay overlay -o "lowerdir=/,upperdir=$1/upper,workdir=$1/work" root
mount --rbind /proc root/proc
mount --rbind /dev root/dev
: > root/var/lib/dpkg/status
rm -rf root/etc/apt/sources.list root/etc/apt/sources.list.d root/var/lib/apt/lists
mkdir -p root/etc/apt/keyrings root/etc/apt/sources.list.d root/var/lib/apt/lists/partial root/bench root/tmp
# Lists that were never read are not fresh.
rm -f root/var/lib/apt/periodic/update-success-stamp
touch -d 2000-01-01 root/var/lib/apt/lists
echo ready
read -r end || true
"#;

/// The names of the packages.
pub(crate) fn names(count: usize) -> Vec<String> {
    (0..count).map(|number| format!("bench-{number}")).collect()
}

/// A repository that has them.
pub(crate) fn repository(folder: &Path, names: &[String]) -> Repository {
    let repository = Repository::start(folder);
    for name in names {
        repository.add(&Package { name, version: "1.0", ..Package::default() });
    }
    repository
}

/// An overlay over this machine's root with a database of packages of its own, in a mount namespace of its own: with its process
/// all of it goes.
pub(crate) struct Overlay {
    holder: Child,
    /// Its root, as its own processes see it.
    inside: PathBuf,
}

impl Overlay {
    /// Makes one whose apt knows a repository; `folder` is not there yet.
    pub(crate) fn make(folder: &Path, repository: &Repository) -> Result<Self> {
        fs::create_dir(folder)?;
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "sh", "-c", HOLD, "sh"]).arg(folder);
        let holder = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().context("unshare")?;
        let mut overlay = Self { holder, inside: folder.join("root") };
        let mut said = String::new();
        BufReader::new(overlay.holder.stdout.take().context("a pipe")?).read_line(&mut said)?;
        ensure!(said == "ready\n", "an overlay over / cannot be mounted");
        let source = format!("deb [signed-by=/etc/apt/keyrings/bench.asc] {} ./\n", repository.url());
        fs::write(overlay.path("etc/apt/keyrings/bench.asc"), repository.key())?;
        fs::write(overlay.path("etc/apt/sources.list.d/bench.list"), source)?;
        Ok(overlay)
    }

    /// A path in it, as this process sees it.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        let root = PathBuf::from(format!("/proc/{}/root", self.holder.id()));
        root.join(self.inside.strip_prefix("/").unwrap_or(&self.inside)).join(name.trim_start_matches('/'))
    }

    /// The same command in it, with [`PLACE`] as its folder.
    pub(crate) fn command(&self, of: &Command) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["--mount", "--target", &self.holder.id().to_string(), "chroot"]).arg(&self.inside);
        command.args(["env", "--chdir", PLACE]);
        for (name, value) in of.get_envs() {
            let mut variable = name.to_owned();
            variable.push("=");
            variable.push(value.unwrap_or_default());
            command.arg(variable);
        }
        command.arg(of.get_program()).args(of.get_args());
        command
    }

    /// How many packages it has.
    pub(crate) fn packages(&self) -> Result<usize> {
        let listed = self.command(Command::new("dpkg-query").arg("--show")).output()?;
        Ok(String::from_utf8_lossy(&listed.stdout).lines().count())
    }
}

impl Drop for Overlay {
    fn drop(&mut self) {
        drop(self.holder.stdin.take());
        let _ = self.holder.wait();
    }
}
