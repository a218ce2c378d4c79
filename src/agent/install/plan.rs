//! Chooses the steps that install or uninstall the service; what is already done needs none.

use std::{
    fmt,
    path::{Path, PathBuf},
};

use muster_base::{
    failure::{Failure, FailureKind},
    files::{PUBLIC_MODE, SECRET_MODE},
};

use super::args::{InstallArgs, UninstallArgs, usage};

/// The service's name.
const SERVICE: &str = "muster-agent";
/// The unit file, as in the package.
const UNIT: &str = include_str!("muster-agent.service");
/// The program's path in it.
const PACKAGED_PROGRAM: &str = "/usr/bin/muster";
/// The initial configuration.
const CONFIG: &str = include_str!("package/agent.toml");
/// Where a package installs its unit file.
pub(super) const PACKAGE_UNITS: [&str; 2] =
    ["/usr/lib/systemd/system/muster-agent.service", "/lib/systemd/system/muster-agent.service"];
/// Mode of a program, and of a folder that everybody may read.
pub(super) const PROGRAM_MODE: u32 = 0o755;

/// The relevant state of this host.
#[derive(Clone, Debug, Default)]
pub(super) struct InstallHost {
    /// The root of the file system.
    pub(super) root: PathBuf,
    /// The prefix of the program's path.
    pub(super) prefix: PathBuf,
    /// Whether this process runs as root.
    pub(super) is_root: bool,
    /// Whether systemd runs here.
    pub(super) has_systemd: bool,
    /// This program.
    pub(super) program: PathBuf,
    /// Whether there is one where it would go.
    pub(super) has_program: bool,
    /// The existing configuration.
    pub(super) config: Option<String>,
    /// The existing unit file.
    pub(super) unit: Option<String>,
    /// Whether the service is enabled at boot.
    pub(super) is_enabled: bool,
    /// Whether a package has installed a unit file of the same name.
    pub(super) is_packaged: bool,
    /// Whether the host is a member of a fleet.
    pub(super) is_joined: bool,
}

impl InstallHost {
    /// Whether the root is an image, and not the running system.
    pub(super) fn is_image(&self) -> bool {
        self.root != Path::new("/")
    }

    /// Returns an absolute path below the root.
    pub(super) fn below(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    pub(super) fn program_path(&self) -> PathBuf {
        self.below(&self.program_name())
    }

    pub(super) fn config_path(&self) -> PathBuf {
        self.below("/etc/muster/agent.toml")
    }

    pub(super) fn unit_path(&self) -> PathBuf {
        self.below(&format!("/etc/systemd/system/{SERVICE}.service"))
    }

    pub(super) fn link_path(&self) -> PathBuf {
        self.below(&format!("/etc/systemd/system/multi-user.target.wants/{SERVICE}.service"))
    }

    /// The program's path for the unit file.
    fn program_name(&self) -> String {
        self.prefix.join("bin/muster").display().to_string()
    }

    /// Checks whether the service can be installed or removed here.
    fn check(&self) -> Result<(), Failure> {
        let prefix = self.prefix.display().to_string();
        let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "/._+-".contains(letter);
        if !self.prefix.is_absolute() || !prefix.chars().all(is_plain) {
            return Err(usage(
                format!("--prefix {prefix}: systemd cannot run a service from there"),
                "an absolute path of letters, digits and ._+-, such as /usr/local or /opt/muster",
            ));
        }
        if self.is_image() {
            return Ok(());
        }
        if !self.has_systemd {
            return Err(Failure::new(FailureKind::Failed, "systemd does not run on this host").hint(
                "have your own service manager run `muster agent`, and have it end only that process when \
                 it stops; or pass --root DIR to install the service into an image",
            ));
        }
        if !self.is_root {
            return Err(Failure::new(FailureKind::Failed, "only root can change this host's services")
                .hint("sudo muster agent install …; or `muster agent` by itself, which needs no root"));
        }
        if self.is_packaged && self.unit.is_none() {
            return Err(Failure::new(FailureKind::Failed, "the agent's service was installed by a package").hint(
                "leave it to the package: `systemctl enable --now muster-agent`; its configuration is /etc/muster/agent.toml",
            ));
        }
        Ok(())
    }
}

/// One step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum InstallStep {
    /// Copy the program. A running one is not disturbed: it keeps the file that it was started from.
    Copy { from: PathBuf, to: PathBuf },
    /// Write a text file atomically.
    Write { path: PathBuf, text: String, is_secret: bool },
    /// Create a symbolic link.
    Link { path: PathBuf, to: PathBuf },
    /// Remove a file.
    Remove { path: PathBuf },
    /// Run `systemctl`.
    Systemctl(&'static [&'static str]),
}

impl InstallStep {
    /// The mode of a written file.
    pub(super) fn mode(is_secret: bool) -> u32 {
        if is_secret { SECRET_MODE } else { PUBLIC_MODE }
    }
}

impl fmt::Display for InstallStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Copy { from, to } => write!(f, "copy {} to {}", from.display(), to.display()),
            Self::Write { path, .. } => write!(f, "write {}", path.display()),
            Self::Link { path, to } => write!(f, "link {} to {}", path.display(), to.display()),
            Self::Remove { path } => write!(f, "remove {}", path.display()),
            Self::Systemctl(arguments) => write!(f, "systemctl {}", arguments.join(" ")),
        }
    }
}

/// Returns the steps of `muster agent install`.
pub(super) fn install(wanted: &InstallArgs, host: &InstallHost) -> Result<Vec<InstallStep>, Failure> {
    host.check()?;
    if host.is_image() && wanted.now {
        return Err(usage(
            "--now cannot be used with --root: an image is not running".to_owned(),
            "leave out one of them",
        ));
    }
    let mut steps = Vec::new();
    let program = host.program_path();
    if host.program != program {
        steps.push(InstallStep::Copy { from: host.program.clone(), to: program });
    }
    let token = wanted.join.as_ref().map(ToString::to_string);
    let config = with_token(host.config.as_deref().unwrap_or(CONFIG), token.as_deref());
    if host.config.as_ref() != Some(&config) {
        steps.push(InstallStep::Write { path: host.config_path(), text: config, is_secret: true });
    }
    let unit = UNIT.replace(PACKAGED_PROGRAM, &host.program_name());
    let unit_changes = host.unit.as_ref() != Some(&unit);
    if unit_changes {
        steps.push(InstallStep::Write { path: host.unit_path(), text: unit, is_secret: false });
    }
    if host.is_image() {
        if !host.is_enabled {
            let to = PathBuf::from(format!("../{SERVICE}.service"));
            steps.push(InstallStep::Link { path: host.link_path(), to });
        }
        return Ok(steps);
    }
    if unit_changes {
        steps.push(InstallStep::Systemctl(&["daemon-reload"]));
    }
    if !host.is_enabled {
        steps.push(InstallStep::Systemctl(&["enable", SERVICE]));
    }
    if wanted.now {
        steps.push(InstallStep::Systemctl(&["restart", SERVICE]));
    }
    Ok(steps)
}

/// Returns the steps of `muster agent uninstall`.
pub(super) fn uninstall(_wanted: &UninstallArgs, host: &InstallHost) -> Result<Vec<InstallStep>, Failure> {
    host.check()?;
    let mut steps = Vec::new();
    let is_live = !host.is_image();
    if host.unit.is_some() && is_live {
        steps.push(InstallStep::Systemctl(&["disable", "--now", SERVICE]));
    }
    if host.is_enabled && !is_live {
        steps.push(InstallStep::Remove { path: host.link_path() });
    }
    if host.unit.is_some() {
        steps.push(InstallStep::Remove { path: host.unit_path() });
        if is_live {
            steps.push(InstallStep::Systemctl(&["daemon-reload"]));
        }
    }
    if host.has_program {
        steps.push(InstallStep::Remove { path: host.program_path() });
    }
    Ok(steps)
}

/// Whether a configuration has a join token.
pub(super) fn has_token(config: &str) -> bool {
    head(config).any(is_token)
}

/// Replaces the token in a configuration; the rest stays, comments included.
fn with_token(config: &str, token: Option<&str>) -> String {
    let Some(token) = token else { return config.to_owned() };
    let in_head = head(config).count();
    let mut lines: Vec<&str> = config.lines().collect();
    let mut place = 0;
    lines.retain(|line| {
        place += 1;
        place > in_head || !is_token(line)
    });
    let line = format!("join = \"{token}\"");
    let at = head(config).filter(|line| !is_token(line)).count();
    // After the last setting before the first table, so that a table's comment stays with its table.
    let after = lines[..at].iter().rposition(|line| is_setting(line)).map_or(0, |last| last + 1);
    lines.insert(after, &line);
    lines.join("\n") + "\n"
}

/// Iterates over the lines before the first table.
fn head(config: &str) -> impl Iterator<Item = &str> {
    config.lines().take_while(|line| !line.trim_start().starts_with('['))
}

fn is_setting(line: &str) -> bool {
    let line = line.trim_start();
    !line.is_empty() && !line.starts_with('#')
}

fn is_token(line: &str) -> bool {
    line.split_once('=').is_some_and(|(key, _)| key.trim() == "join")
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
