//! Inspects a container: its users, its programs, and the settings that apply to every process in it.
//!
//! It reads through the container's first process: its root folder ([`rootfs`]) and its entry in `/proc`.

use std::{
    collections::BTreeMap,
    fs::{self, OpenOptions},
    io,
    os::{
        fd::{AsFd, OwnedFd},
        unix::fs::{MetadataExt, OpenOptionsExt},
    },
    path::Path,
};

use muster_rules::CommandRefusal;
use muster_shim::{
    ContainerNamespaces, Launch, ResolvedUser,
    attributes::{LimitResource, ResourceLimit},
    cgroup::AGENT_PREFIX,
    process_identity,
};
use muster_topics::{command::Exec, diagnostic::Diagnostic, name::UnitName, outcome::RefusalCode, process::Limits};
use nix::{
    fcntl::OFlag,
    libc,
    sys::stat::{SFlag, fstat},
};

use super::{prepare, program_path::SEARCH_PATH};
use crate::{
    cgroup::Hierarchies,
    rootfs::{self, ContainerUser},
    unit::first_process::FirstProcess,
};

/// The limits of a process, as `/proc/<pid>/limits` names them, without two obsolete ones.
const LIMITS: [(&str, LimitResource); 14] = [
    ("Max cpu time", LimitResource::Cpu),
    ("Max file size", LimitResource::Fsize),
    ("Max data size", LimitResource::Data),
    ("Max stack size", LimitResource::Stack),
    ("Max core file size", LimitResource::Core),
    ("Max processes", LimitResource::Nproc),
    ("Max open files", LimitResource::Nofile),
    ("Max locked memory", LimitResource::Memlock),
    ("Max address space", LimitResource::As),
    ("Max pending signals", LimitResource::Sigpending),
    ("Max msgqueue size", LimitResource::Msgqueue),
    ("Max nice priority", LimitResource::Nice),
    ("Max realtime priority", LimitResource::Rtprio),
    ("Max realtime timeout", LimitResource::Rttime),
];

/// Variables of a container's first process that are not passed on: they belong to the process or its user, and not to
/// the container.
const OF_A_PROCESS: [&str; 13] = [
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "PWD",
    "OLDPWD",
    "SHLVL",
    "_",
    "TERM",
    "NOTIFY_SOCKET",
    "LISTEN_FDS",
    "LISTEN_PID",
    "LISTEN_FDNAMES",
];

/// The most bytes of a container's variables that are used: images and specs have some hundred, and a launch has to fit
/// into a message to its shim.
const ENVIRONMENT_MAX_BYTES: usize = 32 * 1024;

/// A running container.
#[derive(Debug)]
pub(crate) struct RunningContainer {
    unit: UnitName,
    first: FirstProcess,
    root: OwnedFd,
    status: ProcessStatus,
    users: IdMap,
    groups: IdMap,
    cgroups: String,
    limits: Vec<ResourceLimit>,
    /// The variables that its image, its spec and its runtime have set.
    env: Vec<(String, String)>,
}

/// The content of `/proc/<pid>/status`, with ids as outside the container.
#[derive(Debug, Default, PartialEq, Eq)]
struct ProcessStatus {
    uid: u32,
    gid: u32,
    groups: Vec<u32>,
    bounding: u64,
    no_new_privs: bool,
}

/// The mapping of ids: rows of the first id inside, the first id outside, and the count.
#[derive(Debug, PartialEq, Eq)]
struct IdMap(Vec<[u32; 3]>);

impl RunningContainer {
    /// Opens a container. Everything is read from this very process, or it is refused.
    pub(crate) fn open(unit: &UnitName, first: FirstProcess) -> Result<Self, CommandRefusal> {
        let failed = |error: io::Error| not_entered(unit, &error);
        let of_it = |what: &str| format!("/proc/{}/{what}", first.pid);
        let read = |what: &str| fs::read_to_string(of_it(what));
        let own_limits = rlimits(&fs::read_to_string("/proc/self/limits").map_err(failed)?);
        let look = || {
            let root =
                OpenOptions::new().read(true).custom_flags(libc::O_PATH | libc::O_DIRECTORY).open(of_it("root"))?;
            let [theirs, ours] = [of_it("ns/mnt"), "/proc/self/ns/mnt".to_owned()].map(fs::metadata);
            let (theirs, ours) = (theirs?, ours?);
            let container = Self {
                unit: unit.clone(),
                first,
                root: root.into(),
                status: ProcessStatus::parse(&read("status")?).ok_or(io::ErrorKind::InvalidData)?,
                users: IdMap::parse(&read("uid_map")?),
                groups: IdMap::parse(&read("gid_map")?),
                cgroups: read("cgroup")?,
                limits: lowered(rlimits(&read("limits")?), &own_limits),
                env: variables(&fs::read(of_it("environ"))?),
            };
            Ok((container, (theirs.dev(), theirs.ino()) == (ours.dev(), ours.ino())))
        };
        let (container, is_host) = look().map_err(failed)?;
        if process_identity::stat(first.pid).is_none_or(|stat| stat.start_ticks != first.start_ticks || stat.is_dead())
        {
            return Err(CommandRefusal::new(RefusalCode::Conflict, format!("{unit} has just ended")));
        }
        if is_host {
            let message = format!("{unit} has no file system of its own, so nothing can be run inside");
            return Err(CommandRefusal::new(RefusalCode::Unsupported, message));
        }
        Ok(container)
    }

    /// Returns how to launch a program in it, except for its cgroups.
    pub(crate) fn launch(&self, exec: &Exec) -> Result<Launch, CommandRefusal> {
        prepare::check_texts(exec)?;
        let (account, user) = self.user(exec.user.as_deref())?;
        let owner = self.users.outside(user.uid).unwrap_or(user.uid);
        let cwd = exec.cwd.clone().unwrap_or_else(|| "/".into());
        let mut argv = prepare::words(exec)?;
        if let Some(program) = argv.first_mut() {
            *program = self.find_program(program, &cwd)?;
        }
        // The user's variables win over the container's, and the command's over both.
        let mut env: BTreeMap<String, String> =
            prepare::environment(&account.name, &account.home, &BTreeMap::new()).into_iter().collect();
        env.extend(self.env.iter().chain(&exec.env.clone().into_iter().collect::<Vec<_>>()).cloned());
        let env = env.into_iter().collect();
        let mut launch = prepare::assemble(exec, argv, env, cwd, Some(user));
        launch.attributes.rlimits.clone_from(&self.limits);
        launch.attributes.no_new_privs = self.status.no_new_privs;
        launch.inside = Some(ContainerNamespaces {
            pid: self.first.pid,
            start_ticks: self.first.start_ticks,
            cgroups: Vec::new(),
            bounding: self.status.bounding,
            owner,
        });
        Ok(launch)
    }

    /// Sets the cgroups of a launch beside the container's, if those are its own.
    pub(crate) fn place(&self, launch: &mut Launch, name: &str, limits: &Limits) -> Result<(), CommandRefusal> {
        let made = Hierarchies::detect().make_inside_container(&self.cgroups, &format!("{AGENT_PREFIX}{name}"), limits);
        let made = made.map_err(|why| {
            let place = format!("it cannot be limited inside {}", self.unit);
            CommandRefusal::new(RefusalCode::Unsupported, why.within(place))
        })?;
        launch.cgroup = made.cgroup;
        if let Some(inside) = &mut launch.inside {
            inside.cgroups = made.others;
        }
        Ok(())
    }

    /// Looks up a user by name or number in the container's own files; `None` is the user of its first process.
    fn user(&self, name: Option<&str>) -> Result<(ContainerUser, ResolvedUser), CommandRefusal> {
        let unknown = |message: String| CommandRefusal::new(RefusalCode::UnknownUser, message);
        let unit = &self.unit;
        let read =
            |path: &str| self.read(path).map_err(|error| unknown(format!("{path} of {unit} cannot be read: {error}")));
        let passwd = read("/etc/passwd")?;
        let Some(name) = name else {
            let ProcessStatus { uid, gid, groups, .. } = &self.status;
            let inside = |ids: &IdMap, id: u32| {
                ids.inside(id).ok_or_else(|| unknown(format!("{unit} has no entry for its user")))
            };
            let (uid, gid) = (inside(&self.users, *uid)?, inside(&self.groups, *gid)?);
            let groups = groups.iter().filter_map(|gid| self.groups.inside(*gid)).collect();
            let nameless = || ContainerUser { name: uid.to_string(), uid, gid, home: "/".to_owned() };
            return Ok((ContainerUser::of(&passwd, uid).unwrap_or_else(nameless), ResolvedUser { uid, gid, groups }));
        };
        let account = ContainerUser::find(&passwd, name)
            .ok_or_else(|| unknown(format!("there is no user {name:?} in {unit}")))?;
        let groups = account.groups(&read("/etc/group")?);
        let user = ResolvedUser { uid: account.uid, gid: account.gid, groups };
        Ok((account, user))
    }

    /// Checks that the program exists and is executable, and that its working directory exists. The user's permissions
    /// are checked by the kernel when it starts.
    pub(crate) fn check(&self, launch: &Launch) -> Result<(), CommandRefusal> {
        let unit = &self.unit;
        let program = launch.argv.first().map(String::as_str).unwrap_or_default();
        if let Err(error) = self.open_inside(program, OFlag::O_PATH) {
            return Err(CommandRefusal::new(RefusalCode::NoSuchFile, format!("{program} in {unit}: {error}")));
        }
        if !self.is_executable(program) {
            let message =
                Diagnostic::new(format_args!("{program} in {unit} cannot be run")).with_hint("is it executable?");
            return Err(CommandRefusal::new(RefusalCode::NotExecutable, message));
        }
        if let Err(error) = self.open_inside(&launch.cwd, OFlag::O_PATH | OFlag::O_DIRECTORY) {
            let message = format!("working directory {} in {unit}: {error}", launch.cwd);
            return Err(CommandRefusal::new(RefusalCode::NoSuchFolder, message));
        }
        Ok(())
    }

    /// Finds a program inside the container, as on the host.
    fn find_program(&self, program: &str, cwd: &str) -> Result<String, CommandRefusal> {
        if program.contains('/') {
            return Ok(Path::new(cwd).join(program).to_string_lossy().into_owned());
        }
        let path = self.env.iter().find(|(name, _)| name == "PATH").map_or(SEARCH_PATH, |(_, path)| path);
        let found =
            path.split(':').filter(|folder| folder.starts_with('/')).map(|folder| format!("{folder}/{program}"));
        found.into_iter().find(|path| !program.is_empty() && self.is_executable(path)).ok_or_else(|| {
            let unit = &self.unit;
            let message = Diagnostic::new(format_args!("there is no program {program:?} in {path} of {unit}"))
                .with_hint("give its whole path");
            CommandRefusal::new(RefusalCode::NoSuchFile, message)
        })
    }

    fn is_executable(&self, path: &str) -> bool {
        let found = self.open_inside(path, OFlag::O_PATH).and_then(|file| Ok(fstat(&file)?));
        found.is_ok_and(|found| {
            SFlag::from_bits_truncate(found.st_mode).contains(SFlag::S_IFREG) && found.st_mode & 0o111 != 0
        })
    }

    fn read(&self, path: &str) -> io::Result<String> {
        rootfs::read(self.root.as_fd(), path)
    }

    fn open_inside(&self, path: &str, flags: OFlag) -> io::Result<OwnedFd> {
        rootfs::open(self.root.as_fd(), path, flags)
    }
}

impl ProcessStatus {
    fn parse(text: &str) -> Option<Self> {
        let field =
            |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim);
        // Real, effective, saved, and file-system id.
        let effective = |name: &str| field(name)?.split_ascii_whitespace().nth(1)?.parse().ok();
        Some(Self {
            uid: effective("Uid")?,
            gid: effective("Gid")?,
            groups: field("Groups")?.split_ascii_whitespace().map(str::parse).collect::<Result<_, _>>().ok()?,
            bounding: u64::from_str_radix(field("CapBnd")?, 16).ok()?,
            no_new_privs: field("NoNewPrivs") == Some("1"),
        })
    }
}

impl IdMap {
    fn parse(text: &str) -> Self {
        let row = |line: &str| {
            let mut numbers = line.split_ascii_whitespace().map_while(|number| number.parse().ok());
            Some([numbers.next()?, numbers.next()?, numbers.next()?])
        };
        Self(text.lines().filter_map(row).collect())
    }

    fn inside(&self, id: u32) -> Option<u32> {
        self.0.iter().find_map(|[inside, outside, count]| moved(id, *outside, *inside, *count))
    }

    fn outside(&self, id: u32) -> Option<u32> {
        self.0.iter().find_map(|[inside, outside, count]| moved(id, *inside, *outside, *count))
    }
}

fn moved(id: u32, from: u32, to: u32, count: u32) -> Option<u32> {
    let place = id.checked_sub(from).filter(|place| *place < count)?;
    to.checked_add(place)
}

/// Parses the limits of a process, as far as `/proc` lists them.
fn rlimits(text: &str) -> Vec<ResourceLimit> {
    let number = |word: &str| if word == "unlimited" { Some(None) } else { word.parse().ok().map(Some) };
    let limit = |(name, resource): &(&str, LimitResource)| {
        let mut words = text.lines().find_map(|line| line.strip_prefix(name))?.split_ascii_whitespace();
        Some(ResourceLimit { resource: *resource, soft: number(words.next()?)?, hard: number(words.next()?)? })
    };
    LIMITS.iter().filter_map(limit).collect()
}

/// Returns limits, none of them above the agent's own, which it may not be allowed to raise. Unchanged ones are left
/// out.
fn lowered(mut limits: Vec<ResourceLimit>, own: &[ResourceLimit]) -> Vec<ResourceLimit> {
    let least = |one: Option<u64>, other: Option<u64>| [one, other].into_iter().flatten().min();
    for limit in &mut limits {
        let ours = own.iter().find(|ours| ours.resource == limit.resource).and_then(|ours| ours.hard);
        limit.hard = least(limit.hard, ours);
        limit.soft = least(limit.soft, limit.hard);
    }
    limits.retain(|limit| !own.contains(limit));
    limits
}

/// The refusal for a container that cannot be opened.
fn not_entered(unit: &UnitName, error: &io::Error) -> CommandRefusal {
    match error.kind() {
        io::ErrorKind::PermissionDenied => CommandRefusal::new(
            RefusalCode::Denied,
            Diagnostic::new(format_args!("{unit} cannot be entered: {error}"))
                .with_hint("only an agent that runs as root can enter a container"),
        ),
        _ => CommandRefusal::new(RefusalCode::Conflict, format!("{unit} cannot be entered: {error}")),
    }
}

/// Parses the variables of a container from those of its first process.
fn variables(environ: &[u8]) -> Vec<(String, String)> {
    let mut room = ENVIRONMENT_MAX_BYTES;
    let texts = environ.split(|byte| *byte == 0).filter_map(|one| std::str::from_utf8(one).ok());
    let own = texts
        .filter_map(|text| text.split_once('='))
        .filter(|(name, _)| !name.is_empty() && !OF_A_PROCESS.contains(name))
        .take_while(|(name, value)| {
            let taken = name.len() + value.len() + 2;
            let fits = taken <= room;
            room = room.saturating_sub(taken);
            fits
        });
    own.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;
    use crate::rootfs::LIST_MAX_BYTES;

    #[test]
    fn ids_map_into_the_user_namespace() {
        let same = IdMap::parse("         0          0 4294967295\n");
        assert_eq!((same.inside(700), same.outside(700)), (Some(700), Some(700)));
        let mapped = IdMap::parse("0 100000 1000\n65534 5 1\n");
        for (inside, outside) in [(0, 100_000), (999, 100_999), (65_534, 5)] {
            assert_eq!((mapped.inside(outside), mapped.outside(inside)), (Some(inside), Some(outside)));
        }
        assert_eq!((mapped.inside(0), mapped.inside(101_000), mapped.outside(1_000)), (None, None, None));
        assert_eq!(IdMap::parse("nonsense\n1 2\n").inside(1), None);
    }

    #[test]
    fn status_of_process_is_parsed() {
        let text = "Name:\tsh\nUid:\t1\t700\t3\t4\nGid:\t5\t701\t7\t8\nGroups:\t10 12 \nNoNewPrivs:\t1\nCapBnd:\t00000000a80425fb\n";
        let wanted =
            ProcessStatus { uid: 700, gid: 701, groups: vec![10, 12], bounding: 0xa804_25fb, no_new_privs: true };
        assert_eq!(ProcessStatus::parse(text), Some(wanted));
        assert!(ProcessStatus::parse(&fs::read_to_string("/proc/self/status").unwrap()).is_some());
        assert_eq!(ProcessStatus::parse("Uid:\t1\n"), None);

        let own = rlimits(&fs::read_to_string("/proc/self/limits").unwrap());
        assert_eq!(own.len(), LIMITS.len(), "{own:?}");
        assert_eq!(lowered(own.clone(), &own), []);
        let limit = |soft, hard| vec![ResourceLimit { resource: LimitResource::Nofile, soft, hard }];
        for (theirs, ours, wanted) in [
            (limit(Some(5), Some(6)), limit(Some(7), Some(8)), limit(Some(5), Some(6))),
            (limit(None, None), limit(Some(7), Some(8)), limit(Some(8), Some(8))),
            (limit(Some(9), None), limit(None, None), limit(Some(9), None)),
            (limit(None, None), limit(None, None), Vec::new()),
        ] {
            assert_eq!(lowered(theirs, &ours), wanted);
        }
    }

    /// A container whose root is a folder.
    fn container(root: &Path) -> RunningContainer {
        let pid = i32::try_from(std::process::id()).unwrap();
        RunningContainer {
            unit: "default/shop".parse().unwrap(),
            first: FirstProcess { pid, start_ticks: process_identity::stat(pid).unwrap().start_ticks },
            root: File::open(root).unwrap().into(),
            status: ProcessStatus { uid: 100_700, gid: 100_000, groups: vec![100_010, 3], ..ProcessStatus::default() },
            users: IdMap::parse("0 100000 1000"),
            groups: IdMap::parse("0 100000 1000"),
            cgroups: String::new(),
            limits: Vec::new(),
            env: variables(b"COLOUR=blue\0HOME=/elsewhere\0SHADE=dark\0"),
        }
    }

    #[test]
    fn environment_is_the_containers() {
        let many = format!("A=b\0{}C=d\0", "X=y\0".repeat(ENVIRONMENT_MAX_BYTES));
        for (bytes, wanted) in [
            (&b""[..], &[][..]),
            (b"A=b=c\0PWD=/x\0HOME=/root\0PATH=/opt/bin\0", &[("A", "b=c"), ("PATH", "/opt/bin")]),
            // Entries that are not UTF-8, or no variables, are skipped.
            (b"A=\xff\0=x\0nothing\0B=\0", &[("B", "")]),
        ] {
            let found = variables(bytes);
            let found: Vec<(&str, &str)> = found.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
            assert_eq!(found, wanted);
        }
        let found = variables(many.as_bytes());
        assert!(found.len() > 1 && !found.contains(&("C".to_owned(), "d".to_owned())));
    }

    fn exec(argv: &[&str]) -> Exec {
        Exec::new(argv.iter().map(|word| (*word).to_owned()).collect(), 1_000)
    }

    #[test]
    fn users_and_programs_resolve_inside() {
        let root = tempfile::tempdir().unwrap();
        let at = |path: &str| root.path().join(path);
        fs::create_dir_all(at("usr/bin")).unwrap();
        fs::create_dir_all(at("etc")).unwrap();
        fs::write(at("etc/passwd"), "root:x:0:0::/root:\nshop:x:700:701::/srv:\n").unwrap();
        fs::write(at("etc/group"), "wheel:x:10:shop\n").unwrap();
        fs::copy("/bin/true", at("usr/bin/tool")).unwrap();
        fs::write(at("usr/bin/text"), "").unwrap();
        // A link is resolved inside, where it leads elsewhere than outside.
        std::os::unix::fs::symlink("usr/bin", at("bin")).unwrap();
        std::os::unix::fs::symlink("/usr/bin/tool", at("usr/bin/other")).unwrap();
        let container = container(root.path());
        let launch = |exec: Exec| container.launch(&exec);

        let found = launch(exec(&["tool", "a"])).unwrap();
        assert_eq!(found.argv, ["/usr/bin/tool", "a"]);
        assert_eq!(found.user, Some(ResolvedUser { uid: 700, gid: 0, groups: vec![10] }));
        assert!(
            found.env.contains(&("HOME".into(), "/srv".into())) && found.env.contains(&("USER".into(), "shop".into()))
        );
        let has = |name: &str, value: &str| found.env.contains(&(name.to_owned(), value.to_owned()));
        assert!(has("COLOUR", "blue") && has("SHADE", "dark"));
        let asked = launch(Exec { env: [("COLOUR".to_owned(), "red".to_owned())].into(), ..exec(&["tool"]) }).unwrap();
        assert!(asked.env.contains(&("COLOUR".to_owned(), "red".to_owned())));
        assert_eq!(asked.env.iter().filter(|(name, _)| name == "COLOUR").count(), 1);
        assert_eq!(found.inside.unwrap().owner, 100_700);
        assert_eq!(launch(exec(&["other"])).unwrap().argv, ["/usr/bin/other"]);
        let of = |user: &str| launch(Exec { user: Some(user.to_owned()), ..exec(&["tool"]) });
        assert_eq!(of("shop").unwrap().user, Some(ResolvedUser { uid: 700, gid: 701, groups: vec![701, 10] }));
        assert_eq!(of("0").unwrap().user, Some(ResolvedUser { uid: 0, gid: 0, groups: vec![0] }));
        assert!(container.check(&launch(exec(&["tool"])).unwrap()).is_ok());
        let checked = |exec: Exec| container.check(&launch(exec).unwrap()).unwrap_err().code;
        assert_eq!(checked(exec(&["/none"])), RefusalCode::NoSuchFile);
        assert_eq!(checked(exec(&["/usr/bin/text"])), RefusalCode::NotExecutable);
        let nowhere = Exec { cwd: Some("/usr/bin/tool".to_owned()), ..exec(&["/usr/bin/tool"]) };
        assert_eq!(checked(nowhere), RefusalCode::NoSuchFolder);
        for (refused, code) in [
            (of("daemon"), RefusalCode::UnknownUser),
            (of("4242"), RefusalCode::UnknownUser),
            (launch(exec(&["text"])), RefusalCode::NoSuchFile),
            (launch(exec(&["env"])), RefusalCode::NoSuchFile),
            (launch(exec(&[""])), RefusalCode::Invalid),
            (launch(exec(&["tool", "\0"])), RefusalCode::Invalid),
        ] {
            assert_eq!(refused.unwrap_err().code, code);
        }
    }

    #[test]
    fn links_do_not_leave_the_container() {
        let (root, outside) = (tempfile::tempdir().unwrap(), tempfile::NamedTempFile::new().unwrap());
        fs::create_dir_all(root.path().join("etc")).unwrap();
        fs::write(outside.path(), "host:x:1:1::/:\n").unwrap();
        let passwd = root.path().join("etc/passwd");
        let container = container(root.path());
        let read = || container.read("/etc/passwd").map_err(|error| error.to_string());
        assert_eq!(read(), Ok(String::new()), "there is none");
        for link in [outside.path().to_str().unwrap(), "../../../../../../etc/hostname", "/proc/self/root/etc/passwd"] {
            std::os::unix::fs::symlink(link, &passwd).unwrap();
            assert_eq!(read(), Ok(String::new()), "{link}");
            fs::remove_file(&passwd).unwrap();
        }
        nix::unistd::mkfifo(&passwd, nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert!(read().unwrap_err().contains("not a regular file"));
        fs::remove_file(&passwd).unwrap();
        fs::create_dir(&passwd).unwrap();
        assert!(read().is_err());
        fs::remove_dir(&passwd).unwrap();
        File::create(&passwd).unwrap().set_len(LIST_MAX_BYTES + 1).unwrap();
        assert!(read().unwrap_err().contains("bytes"));
    }

    #[test]
    fn process_with_host_root_is_refused() {
        let pid = i32::try_from(std::process::id()).unwrap();
        let unit = "default/shop".parse().unwrap();
        let start_ticks = process_identity::stat(pid).unwrap().start_ticks;
        let code = |first| RunningContainer::open(&unit, first).unwrap_err().code;
        assert_eq!(code(FirstProcess { pid, start_ticks }), RefusalCode::Unsupported);
        // Another process has this number now.
        assert_eq!(code(FirstProcess { pid, start_ticks: start_ticks + 1 }), RefusalCode::Conflict);
        assert_eq!(code(FirstProcess { pid: i32::MAX, start_ticks }), RefusalCode::Conflict);
    }
}
