//! Translates a container's spec to LXC's configuration, and parses the output of LXC's lists.
//!
//! **Invariant: untrusted text is a value, and never a line of its own.** Each value stands in quotation marks, of which
//! LXC removes the outermost two and ignores any others; a value with a line break is refused.

use std::fmt::Write;

use muster_topics::{
    container::{ContainerState, Mount, Network},
    process::{Amount, Resource, Rlimit},
};

use super::users::InsideUser;
use crate::{cgroup::LimitFile, execute::program_path::SEARCH_PATH, unit::container::runtime::Recipe};

/// The capabilities of root in a container, fewer than on the host: Docker's defaults without `mknod`.
const CAPABILITIES: &str = "chown dac_override fowner fsetid kill setgid setuid setpcap net_bind_service net_raw \
                            sys_chroot audit_write setfcap";

/// Shared memory, as in Docker.
const SHARED: &str = "tmpfs dev/shm tmpfs rw,nosuid,nodev,noexec,mode=1777,size=65536k,create=dir 0 0";

/// The host's name resolution, for containers in its network.
const NAMES: [&str; 2] = ["/etc/resolv.conf", "/etc/hosts"];

/// The longest host name of a machine.
const UTS_MAX_BYTES: usize = 63;

/// The context of a configuration, beside the recipe.
pub(super) struct ConfigContext<'a> {
    pub(super) name: &'a str,
    /// `dir:PATH` or `overlay:LOWER:UPPER`.
    pub(super) rootfs: &'a str,
    pub(super) user: &'a InsideUser,
    /// The file with the limits.
    pub(super) limits: &'a str,
    /// The hook that mounts its own file system, in its mount namespace, if it has one.
    pub(super) mount: Option<&'a str>,
    /// Further hooks, each with its key.
    pub(super) hooks: &'a [(&'static str, String)],
}

/// Returns the configuration of a container.
pub(super) fn text(
    frame: &ConfigContext<'_>,
    recipe: &Recipe,
    is_folder: impl Fn(&str) -> bool,
) -> Result<String, String> {
    let ConfigContext { name, rootfs, user, limits, mount, hooks } = frame;
    let mut lines = ConfigLines::default();
    lines.add("lxc.rootfs.path", rootfs)?;
    // Hooks get no arguments of LXC.
    lines.add("lxc.hook.version", "1")?;
    if let Some(mount) = mount {
        lines.add("lxc.hook.pre-mount", mount)?;
    }
    for (key, hook) in *hooks {
        lines.add(key, hook)?;
    }
    match recipe.network {
        // The host name is the host's, too.
        Network::Host => lines.add("lxc.namespace.keep", "user net")?,
        Network::Bridge | Network::None => {
            lines.add("lxc.uts.name", machine(name))?;
            lines.add("lxc.net.0.type", "empty")?;
            // Without this not even the loopback is up.
            lines.add("lxc.net.0.flags", "up")?;
        }
    }
    for (key, value) in [
        // Its output is that of `lxc-start`.
        ("lxc.console.path", "none"),
        ("lxc.tty.max", "0"),
        ("lxc.autodev", "1"),
        ("lxc.mount.auto", "proc:mixed sys:ro"),
        ("lxc.cap.keep", CAPABILITIES),
        ("lxc.mount.entry", SHARED),
    ] {
        lines.add(key, value)?;
    }
    if recipe.network == Network::Host {
        for file in NAMES {
            let inside = file.trim_start_matches('/');
            lines.add("lxc.mount.entry", &format!("{file} {inside} none bind,ro,optional,create=file 0 0"))?;
        }
    }
    for mount in &recipe.mounts {
        lines.add("lxc.mount.entry", &entry(mount, is_folder(&mount.host)))?;
    }
    lines.add("lxc.init.uid", &user.uid.to_string())?;
    lines.add("lxc.init.gid", &user.gid.to_string())?;
    if !user.groups.is_empty() {
        let groups: Vec<String> = user.groups.iter().map(u32::to_string).collect();
        lines.add("lxc.init.groups", &groups.join(","))?;
    }
    lines.add("lxc.init.cwd", recipe.cwd.as_deref().unwrap_or("/"))?;
    for (name, value) in [("PATH", SEARCH_PATH), ("HOME", user.home.as_str())] {
        if !recipe.env.contains_key(name) {
            lines.add("lxc.environment", &format!("{name}={value}"))?;
        }
    }
    for (name, value) in &recipe.env {
        lines.add("lxc.environment", &format!("{name}={value}"))?;
    }
    for (resource, Rlimit { soft, hard }) in &recipe.rlimits {
        lines.add(&format!("lxc.prlimit.{}", prlimit(*resource)), &format!("{}:{}", amount(*soft), amount(*hard)))?;
    }
    lines.add("lxc.include", limits)?;
    Ok(lines.0)
}

/// Returns its limits, which have a file of their own.
pub(super) fn limits(files: &[LimitFile]) -> String {
    let line = |file: &LimitFile| {
        let cgroup = if file.unified { "cgroup2" } else { "cgroup" };
        format!("lxc.{cgroup}.{} = {}\n", file.name, file.value)
    };
    files.iter().map(line).collect()
}

/// The lines of a configuration.
#[derive(Default)]
struct ConfigLines(String);

impl ConfigLines {
    fn add(&mut self, key: &str, value: &str) -> Result<(), String> {
        if value.contains(['\n', '\0']) {
            return Err(format!("LXC does not support line breaks: {key} is {value:?}"));
        }
        writeln!(self.0, "{key} = \"{value}\"").map_err(|error| error.to_string())
    }
}

/// The host name of a container: the unit's name, after the last dot.
fn machine(name: &str) -> &str {
    let last = name.rsplit_once('.').map_or(name, |(_, last)| last);
    last.get(..UTS_MAX_BYTES).unwrap_or(last)
}

/// Formats a mount. LXC creates the mount point, without following links.
fn entry(mount: &Mount, is_folder: bool) -> String {
    let (host, inside) = (field(&mount.host), field(mount.inside.trim_matches('/')));
    let read_only = if mount.read_only { "ro," } else { "" };
    let create = if is_folder { "dir" } else { "file" };
    format!("{host} {inside} none rbind,{read_only}create={create} 0 0")
}

/// Escapes a field of such a line by octal codes.
fn field(text: &str) -> String {
    text.chars().fold(String::new(), |mut field, letter| {
        match letter {
            ' ' => field.push_str("\\040"),
            '\t' => field.push_str("\\011"),
            '\n' => field.push_str("\\012"),
            '\\' => field.push_str("\\134"),
            letter => field.push(letter),
        }
        field
    })
}

fn amount(amount: Amount) -> String {
    amount.get().map_or_else(|| "unlimited".to_owned(), |amount| amount.to_string())
}

fn prlimit(resource: Resource) -> &'static str {
    match resource {
        Resource::As => "as",
        Resource::Core => "core",
        Resource::Cpu => "cpu",
        Resource::Data => "data",
        Resource::Fsize => "fsize",
        Resource::Memlock => "memlock",
        Resource::Msgqueue => "msgqueue",
        Resource::Nice => "nice",
        Resource::Nofile => "nofile",
        Resource::Nproc => "nproc",
        Resource::Rtprio => "rtprio",
        Resource::Rttime => "rttime",
        Resource::Sigpending => "sigpending",
        Resource::Stack => "stack",
    }
}

/// Parses what `lxc-ls -f -F NAME,STATE,PID` prints: a line of headings, and one for each container with its first
/// process.
pub(super) fn listed(text: &str) -> impl Iterator<Item = (String, ContainerState, Option<i32>)> {
    text.lines().skip(1).filter_map(|line| {
        let (line, pid) = line.trim().rsplit_once(char::is_whitespace)?;
        let (name, state) = line.trim().rsplit_once(char::is_whitespace)?;
        let state = match state {
            "RUNNING" => ContainerState::Running,
            "FROZEN" => ContainerState::Frozen,
            "STOPPED" => ContainerState::Ended,
            _ => ContainerState::Busy,
        };
        // A stopped one has a dash.
        Some((name.trim().to_owned(), state, pid.parse().ok()))
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use muster_topics::{container::Image, process::Limits};

    use super::*;

    fn recipe() -> Recipe {
        Recipe {
            image: Image::Name(String::new()),
            entry: None,
            args: vec![],
            env: BTreeMap::new(),
            user: None,
            cwd: None,
            mounts: vec![],
            network: Network::None,
            limits: Limits::default(),
            disk_bytes: None,
            rlimits: BTreeMap::new(),
            published: vec![],
            labels: BTreeMap::new(),
        }
    }

    fn write(recipe: &Recipe) -> Result<String, String> {
        let user = InsideUser { uid: 700, gid: 7, groups: vec![], home: "/srv".to_owned() };
        let frame = ConfigContext {
            name: "muster.default.shop",
            rootfs: "dir:/a b",
            user: &user,
            limits: "/limits",
            mount: None,
            hooks: &[],
        };
        text(&frame, recipe, |host| host.ends_with('/'))
    }

    #[test]
    fn values_are_quoted() {
        let mut recipe = recipe();
        recipe.cwd = Some("/a\"b = c # d".to_owned());
        recipe.env = [("A", " b\" "), ("PATH", "/x"), ("Q", "'")].map(|(a, b)| (a.to_owned(), b.to_owned())).into();
        recipe.rlimits = serde_json::from_str(r#"{"nofile": {"soft": 5, "hard": "unlimited"}}"#).unwrap();
        let mount =
            |host: &str, inside: &str, read_only| Mount { host: host.to_owned(), inside: inside.to_owned(), read_only };
        recipe.mounts = vec![mount("/a b\\", "/c d/", true), mount("/e/", "//f", false)];
        let text = write(&recipe).unwrap();
        for line in [
            "lxc.rootfs.path = \"dir:/a b\"",
            "lxc.uts.name = \"shop\"",
            "lxc.net.0.type = \"empty\"",
            "lxc.init.cwd = \"/a\"b = c # d\"",
            "lxc.environment = \"A= b\" \"",
            "lxc.environment = \"PATH=/x\"",
            "lxc.environment = \"HOME=/srv\"",
            "lxc.environment = \"Q='\"",
            "lxc.prlimit.nofile = \"5:unlimited\"",
            "lxc.mount.entry = \"/a\\040b\\134 c\\040d none rbind,ro,create=file 0 0\"",
            "lxc.mount.entry = \"/e/ f none rbind,create=dir 0 0\"",
            "lxc.init.uid = \"700\"",
            "lxc.include = \"/limits\"",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
        }
        assert_eq!(text.lines().filter(|line| line.contains("PATH=")).count(), 1);
        assert!(text.lines().all(|line| line.starts_with("lxc.") && line.ends_with('"')), "{text}");
    }

    #[test]
    fn value_with_line_break_is_refused() {
        let line = "x\nlxc.hook.pre-start = /bin/sh".to_owned();
        let env = |name: &str, value: &str| Recipe { env: [(name.to_owned(), value.to_owned())].into(), ..recipe() };
        for recipe in
            [Recipe { cwd: Some(line.clone()), ..recipe() }, env("A", &line), env(&line, "b"), env("A", "a\0")]
        {
            assert!(write(&recipe).unwrap_err().contains("does not support line breaks"));
        }
        // Special characters in paths are escaped.
        let mount = Mount { host: line.clone(), inside: line, read_only: false };
        assert_eq!(write(&Recipe { mounts: vec![mount], ..recipe() }).unwrap().matches("\nlxc.hook.pre").count(), 0);
    }

    #[test]
    fn container_has_own_network_namespace() {
        for (network, keeps) in [(Network::None, false), (Network::Bridge, false), (Network::Host, true)] {
            let text = write(&Recipe { network, ..recipe() }).unwrap();
            // This would remove the host's network.
            assert!(!text.contains("\"none\"\nlxc.net") && !text.contains("type = \"none\""), "{text}");
            assert_eq!(text.contains("lxc.namespace.keep = \"user net\""), keeps, "{text}");
            assert_eq!(text.contains("lxc.net.0.type = \"empty\""), !keeps, "{text}");
        }
    }

    #[test]
    fn lists_of_lxc_are_parsed() {
        let text =
            "NAME   STATE   PID  \nweb    RUNNING 4711 \nthe db FROZEN  4712 \nold STOPPED -\nnew STARTING -\n\n";
        let all: Vec<_> = listed(text).collect();
        let wanted = [
            ("web", ContainerState::Running, Some(4_711)),
            ("the db", ContainerState::Frozen, Some(4_712)),
            ("old", ContainerState::Ended, None),
            ("new", ContainerState::Busy, None),
        ];
        assert_eq!(all, wanted.map(|(name, state, pid)| (name.to_owned(), state, pid)));
        assert_eq!(listed("").count(), 0);
    }
}
