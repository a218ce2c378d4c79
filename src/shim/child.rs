//! A forked child, until it executes the program.
//!
//! **Invariant: after the first attribute is applied, a child allocates nothing and opens nothing**, because a limit
//! on memory or files may apply by then; everything it needs is prepared before the fork.

use std::{
    convert::Infallible,
    ffi::CString,
    fs::File,
    io::{self, Read, Write},
    os::fd::AsRawFd,
};

use muster_shim::{Launch, NEXT, ProcessAttributes, ResolvedUser, StartStep, TOKEN_VARIABLE, attributes};
use nix::{
    errno::Errno,
    sys::{
        prctl,
        resource::{self, RLIM_INFINITY},
        signal::SigSet,
        stat::{Mode, umask},
    },
    unistd::{Gid, Uid, chdir, dup2_stderr, dup2_stdin, dup2_stdout, execve, setgroups, setresgid, setresuid, setsid},
};

use crate::{
    enter::{self, ContainerEntry},
    program::{SpawnError, Stdio},
    sys,
};

/// All steps; a step is reported by its index.
const STEPS: [StartStep; 10] = [
    StartStep::Prepare,
    StartStep::Cgroup,
    StartStep::Enter,
    StartStep::Nice,
    StartStep::Rlimit,
    StartStep::Capabilities,
    StartStep::User,
    StartStep::NoNewPrivs,
    StartStep::Cwd,
    StartStep::Exec,
];
/// The index that a child reports if its failure does not concern one of several limits or capabilities. There are
/// always fewer of these.
const NONE: u8 = u8::MAX;

/// What a child reports if it fails: step, index, and error number.
pub(crate) type ChildError = [u8; 6];

/// The failure that a child reports.
pub(crate) fn failure([step, which, errno @ ..]: ChildError) -> SpawnError {
    let step = STEPS.into_iter().find(|known| *known as u8 == step).unwrap_or(StartStep::Prepare);
    SpawnError { step, which: (which != NONE).then_some(which), errno: i32::from_ne_bytes(errno) }
}

/// Everything that a child needs, prepared before the fork.
pub(crate) struct PreparedChild<'a> {
    /// Its process name until it executes the program.
    name: CString,
    argv: Vec<CString>,
    env: Vec<CString>,
    cwd: CString,
    user: Option<(&'a ResolvedUser, Vec<Gid>)>,
    /// The files through which it enters its cgroup.
    doors: Vec<File>,
    attributes: &'a ProcessAttributes,
    /// The capabilities that it keeps, as bits.
    keep: Option<u64>,
    /// The container that it enters, if it runs in one.
    door: Option<ContainerEntry>,
    /// The bounding set of its capabilities in the container.
    bounding: Option<u64>,
}

impl<'a> PreparedChild<'a> {
    pub(crate) fn new(launch: &'a Launch, token: Option<&str>) -> Result<Self, SpawnError> {
        let invalid = |step| SpawnError { step, which: None, errno: Errno::EINVAL as i32 };
        let text = |text: &str| CString::new(text).map_err(|_| invalid(StartStep::Exec));
        if launch.argv.is_empty() {
            return Err(invalid(StartStep::Exec));
        }
        let gids = |user: &ResolvedUser| user.groups.iter().map(|gid| Gid::from_raw(*gid)).collect();
        let attributes = &launch.attributes;
        Ok(Self {
            name: text(NEXT)?,
            argv: launch.argv.iter().map(|word| text(word)).collect::<Result<_, _>>()?,
            env: launch
                .env
                .iter()
                .map(|(name, value)| (name.as_str(), value.as_str()))
                .chain(token.map(|token| (TOKEN_VARIABLE, token)))
                .map(|(name, value)| text(&format!("{name}={value}")))
                .collect::<Result<_, _>>()?,
            cwd: text(&launch.cwd)?,
            user: launch.user.as_ref().map(|user| (user, gids(user))),
            doors: launch.cgroup.doors().map_err(|error| in_cgroup(&error))?,
            attributes,
            keep: attributes.capabilities.as_deref().map(bits).transpose()?,
            door: launch.inside.as_ref().map(ContainerEntry::open).transpose()?,
            bounding: launch.inside.as_ref().map(|inside| inside.bounding),
        })
    }

    /// Whether it runs in a container. Then the forked process only enters the container, forks the program there, and
    /// reports its number.
    pub(crate) fn is_inside(&self) -> bool {
        self.door.is_some()
    }

    /// The child's work. In a container, `born` receives the number of the program's process.
    pub(crate) fn run(&self, leave: File, mut failure: File, born: Option<File>, stdio: &Stdio) -> ! {
        let gone = match (&self.door, born) {
            (Some(door), Some(born)) => self.go_inside(door, &leave, &failure, &born, stdio),
            _ => self.take_place(stdio),
        };
        let Err(failed) = gone.and_then(|()| self.wait_and_execute(leave, &failure));
        let mut answer: ChildError = [failed.step as u8, failed.which.unwrap_or(NONE), 0, 0, 0, 0];
        answer[2..].copy_from_slice(&failed.errno.to_ne_bytes());
        let _ = failure.write_all(&answer);
        sys::exit_now(127)
    }

    fn wait_and_execute(&self, mut leave: File, failure: &File) -> Result<Infallible, SpawnError> {
        // It may wait for a long time, and must not hold the shim's lock or connections meanwhile.
        let _ = prctl::set_name(&self.name);
        sys::close_all_but([leave.as_raw_fd(), failure.as_raw_fd()]);
        if leave.read_exact(&mut [0]).is_err() {
            sys::exit_now(0);
        }
        self.execute()
    }

    /// Enters the container and forks the program's process there; only that process returns. The process that entered
    /// exits: it cannot be seen from the inside, and the program's process holds nothing of the host.
    fn go_inside(
        &self,
        door: &ContainerEntry,
        leave: &File,
        failure: &File,
        born: &File,
        stdio: &Stdio,
    ) -> Result<(), SpawnError> {
        self.take_place(stdio)?;
        // Raising limits is allowed here, but perhaps not in the container.
        self.limit()?;
        let [process, root] = door.descriptors();
        let [leave, failure, told] = [leave.as_raw_fd(), failure.as_raw_fd(), born.as_raw_fd()];
        sys::close_all_but([leave, failure, told, process, root]);
        door.enter()?;
        sys::close_all_but([leave, failure, told]);
        let at_enter = at(StartStep::Enter);
        if let Some(pid) = sys::fork_sibling().map_err(&at_enter)? {
            // If the shim is gone, the program never gets permission to run.
            let _ = enter::tell(born, pid);
            sys::exit_now(0);
        }
        setsid().map(drop).map_err(&at_enter)
    }

    /// Enters the program's environment. Entering a cgroup takes the kernel up to ten milliseconds.
    fn take_place(&self, [stdin, stdout, stderr]: &Stdio) -> Result<(), SpawnError> {
        setsid()?;
        // This comes first: from here on everything is accounted to the program.
        for mut door in self.door.iter().flat_map(|door| &door.cgroups).chain(&self.doors) {
            door.write_all(b"0").map_err(|error| in_cgroup(&error))?;
        }
        dup2_stdin(stdin)?;
        dup2_stdout(stdout)?;
        Ok(dup2_stderr(stderr)?)
    }

    fn execute(&self) -> Result<Infallible, SpawnError> {
        umask(Mode::from_bits_truncate(self.attributes.umask.unwrap_or(attributes::UMASK)));
        for signal in 1..=sys::signal_max() {
            sys::default_signal(signal);
        }
        SigSet::empty().thread_set_mask()?;
        if self.door.is_none() {
            self.limit()?;
        }
        if let Some(bounding) = self.bounding {
            sys::inherit_no_capabilities().map_err(at(StartStep::Capabilities))?;
            bound(bounding)?;
        }
        self.become_user()?;
        if self.attributes.no_new_privs {
            prctl::set_no_new_privs().map_err(at(StartStep::NoNewPrivs))?;
        }
        // Done as the user: a folder that only the shim may enter must fail.
        chdir(self.cwd.as_c_str()).map_err(at(StartStep::Cwd))?;
        execve(&self.argv[0], &self.argv, &self.env).map_err(at(StartStep::Exec))
    }

    fn limit(&self) -> Result<(), SpawnError> {
        if let Some(nice) = self.attributes.nice {
            sys::set_nice(nice).map_err(at(StartStep::Nice))?;
        }
        for (limit, place) in self.attributes.rlimits.iter().zip(0..NONE) {
            let (soft, hard) = (limit.soft.unwrap_or(RLIM_INFINITY), limit.hard.unwrap_or(RLIM_INFINITY));
            resource::setrlimit(kind(limit.resource), soft, hard).map_err(at_one(StartStep::Rlimit, place))?;
        }
        Ok(())
    }

    /// Changes to the program's user and keeps the configured capabilities.
    fn become_user(&self) -> Result<(), SpawnError> {
        if let Some(keep) = self.keep {
            drop_others(keep)?;
            prctl::set_keepcaps(true).map_err(at(StartStep::Capabilities))?;
        }
        if let Some((user, groups)) = &self.user {
            let (uid, gid) = (Uid::from_raw(user.uid), Gid::from_raw(user.gid));
            let change = || {
                setgroups(groups)?;
                setresgid(gid, gid, gid)?;
                setresuid(uid, uid, uid)
            };
            change().map_err(at(StartStep::User))?;
        }
        if let Some(keep) = self.keep {
            sys::set_capabilities(keep).map_err(at(StartStep::Capabilities))?;
            // Without these, a program of another user than root would lose them on execution.
            for number in numbers(keep) {
                sys::raise_ambient(number).map_err(at_one(StartStep::Capabilities, number))?;
            }
        }
        Ok(())
    }
}

/// Removes all other capabilities from those that any later executed program can gain.
fn drop_others(keep: u64) -> Result<(), SpawnError> {
    let ours = sys::permitted_capabilities().map_err(at(StartStep::Capabilities))?;
    if let Some(number) = numbers(keep & !ours).next() {
        return Err(at_one(StartStep::Capabilities, number)(Errno::EPERM));
    }
    bound(keep)
}

/// Restricts later executed programs to these capabilities.
fn bound(keep: u64) -> Result<(), SpawnError> {
    for number in 0..64 {
        // Numbers above the last capability of this kernel are not in the set.
        if keep & (1 << number) == 0 && sys::is_bounded_by(number) {
            sys::drop_from_bounding(number).map_err(at_one(StartStep::Capabilities, number))?;
        }
    }
    Ok(())
}

fn in_cgroup(error: &io::Error) -> SpawnError {
    SpawnError { step: StartStep::Cgroup, which: None, errno: error.raw_os_error().unwrap_or(Errno::EIO as i32) }
}

fn at(step: StartStep) -> impl Fn(Errno) -> SpawnError {
    move |errno| SpawnError { step, which: None, errno: errno as i32 }
}

fn at_one(step: StartStep, which: u8) -> impl Fn(Errno) -> SpawnError {
    move |errno| SpawnError { step, which: Some(which), errno: errno as i32 }
}

fn bits(capabilities: &[u8]) -> Result<u64, SpawnError> {
    let bit = |number: u8| {
        1_u64.checked_shl(number.into()).ok_or_else(|| at_one(StartStep::Capabilities, number)(Errno::EINVAL))
    };
    capabilities.iter().try_fold(0, |bits, number| Ok(bits | bit(*number)?))
}

fn numbers(bits: u64) -> impl Iterator<Item = u8> {
    (0..64).filter(move |number| bits & (1 << number) != 0)
}

fn kind(resource: attributes::LimitResource) -> resource::Resource {
    use attributes::LimitResource as Of;
    use resource::Resource as Kind;
    match resource {
        Of::As => Kind::RLIMIT_AS,
        Of::Core => Kind::RLIMIT_CORE,
        Of::Cpu => Kind::RLIMIT_CPU,
        Of::Data => Kind::RLIMIT_DATA,
        Of::Fsize => Kind::RLIMIT_FSIZE,
        Of::Memlock => Kind::RLIMIT_MEMLOCK,
        Of::Msgqueue => Kind::RLIMIT_MSGQUEUE,
        Of::Nice => Kind::RLIMIT_NICE,
        Of::Nofile => Kind::RLIMIT_NOFILE,
        Of::Nproc => Kind::RLIMIT_NPROC,
        Of::Rtprio => Kind::RLIMIT_RTPRIO,
        Of::Rttime => Kind::RLIMIT_RTTIME,
        Of::Sigpending => Kind::RLIMIT_SIGPENDING,
        Of::Stack => Kind::RLIMIT_STACK,
    }
}
