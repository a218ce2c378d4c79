//! System calls that neither std nor nix has in a safe form. Signals are plain numbers here,
//! because nix does not know the real-time ones.

use std::{
    io,
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
};

use muster_shim::ProcessExit;
use nix::{
    errno::Errno,
    libc,
    sys::wait::WaitPidFlag,
    unistd::{ForkResult, fork},
};

/// What there is to reap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReapedChild {
    /// There are children, and all of them are alive.
    AllAlive,
    /// There are no children.
    NoChildren,
    /// This one has ended, and left a core file or not.
    Ended { pid: i32, exit: ProcessExit, core_dumped: bool },
}

/// Forks. The child may do whatever its parent may: the shim has one thread.
pub(crate) fn fork_process() -> io::Result<ForkResult> {
    // SAFETY: the danger of fork is a lock that another thread holds at that moment, and there is none.
    Ok(unsafe { fork() }?)
}

/// Ends this process at once, without anything that was to be done at its exit.
pub(crate) fn exit_now(code: i32) -> ! {
    // SAFETY: _exit has no preconditions and does not return.
    unsafe { libc::_exit(code) }
}

/// Forks a child that is our parent's, as we are: it is in the namespaces that this process has joined for its children,
/// and its exit is told as ours is. Gives the number of it that our own namespace has, and nothing in the child.
pub(crate) fn fork_sibling() -> nix::Result<Option<i32>> {
    let flags = (libc::CLONE_PARENT | libc::SIGCHLD) as libc::c_ulong;
    let none: libc::c_ulong = 0;
    // What comes first is not the same everywhere.
    let [first, second] = if cfg!(target_arch = "s390x") { [none, flags] } else { [flags, none] };
    // SAFETY: without a stack, and without memory that is shared, this is a fork: the child goes on here with a copy. There is
    // one thread, so no lock is held by another.
    let pid = Errno::result(unsafe { libc::syscall(libc::SYS_clone, first, second, none, none, none) })?;
    Ok(i32::try_from(pid).ok().filter(|pid| *pid > 0))
}

/// Joins namespaces of a process; that of process ids counts for what is forked from here on.
pub(crate) fn join_namespaces(process: &OwnedFd, namespaces: i32) -> nix::Result<()> {
    // SAFETY: the call takes two numbers and touches no memory of ours.
    Errno::result(unsafe { libc::setns(process.as_raw_fd(), namespaces) }).map(drop)
}

/// Closes every descriptor but standard input, output and error, and these.
pub(crate) fn close_all_but<const COUNT: usize>(mut keep: [i32; COUNT]) {
    keep.sort_unstable();
    let mut first = 3;
    for last in keep.into_iter().map(|kept| kept - 1).chain([i32::MAX]) {
        if first <= last {
            // SAFETY: closing descriptors touches no memory. Whoever owned them in this process never runs again: it is
            // a forked child, which executes a program or exits.
            unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) };
        }
        first = last.saturating_add(2).max(first);
    }
}

/// Ignores a signal.
pub(crate) fn ignore_signal(signal: i32) {
    // SAFETY: no handler is installed, so no code of ours runs in a signal's context.
    unsafe { libc::signal(signal, libc::SIG_IGN) };
}

/// Lets a signal do again what it does by default; past the C library, which keeps some signals for
/// itself and so would hand them on to a program as whoever started us left them.
pub(crate) fn default_signal(signal: i32) {
    // Zeros: the default, no flags, nothing blocked. No system's structure is longer.
    let action = [0_u64; 8];
    let nothing = std::ptr::null_mut::<libc::c_void>();
    let set_bytes: usize = if cfg!(any(target_arch = "mips", target_arch = "mips64")) { 16 } else { 8 };
    // SAFETY: the kernel reads `action`, which is long enough, and writes nothing.
    unsafe { libc::syscall(libc::SYS_rt_sigaction, signal, action.as_ptr(), nothing, set_bytes) };
}

/// The highest signal number.
pub(crate) fn signal_max() -> i32 {
    libc::SIGRTMAX()
}

/// Sets the nice value of this process.
pub(crate) fn set_nice(nice: i32) -> nix::Result<()> {
    // SAFETY: the call takes three numbers and touches no memory of ours.
    Errno::result(unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, nice) }).map(drop)
}

/// The kernel's third version of capability sets: 64 of them, the lower half first.
#[repr(C)]
struct CapabilityHeader {
    version: u32,
    pid: i32,
}

/// One half of the three sets of a process.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct CapabilityHalf {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

const OF_THIS_PROCESS: CapabilityHeader = CapabilityHeader { version: 0x2008_0522, pid: 0 };

/// The capabilities that this process may use, as bits.
pub(crate) fn permitted_capabilities() -> nix::Result<u64> {
    let mut header = OF_THIS_PROCESS;
    let mut halves = [CapabilityHalf::default(); 2];
    // SAFETY: the kernel writes a header and, as its version says, two halves, for which there is room.
    Errno::result(unsafe { libc::syscall(libc::SYS_capget, &raw mut header, halves.as_mut_ptr()) })?;
    Ok(u64::from(halves[0].permitted) | u64::from(halves[1].permitted) << 32)
}

/// Has what this process executes inherit none of its capabilities, whoever it runs as.
pub(crate) fn inherit_no_capabilities() -> nix::Result<()> {
    let mut header = OF_THIS_PROCESS;
    let mut halves = [CapabilityHalf::default(); 2];
    // SAFETY: as above; and the second call reads what the first has written.
    Errno::result(unsafe { libc::syscall(libc::SYS_capget, &raw mut header, halves.as_mut_ptr()) })?;
    halves.iter_mut().for_each(|half| half.inheritable = 0);
    // SAFETY: as above. What is not inheritable is not ambient either.
    Errno::result(unsafe { libc::syscall(libc::SYS_capset, &raw mut header, halves.as_ptr()) }).map(drop)
}

/// Makes these the only capabilities of this process, to be inherited by what it executes.
pub(crate) fn set_capabilities(bits: u64) -> nix::Result<()> {
    let half = |shift: u32| {
        let bits = (bits >> shift) as u32;
        CapabilityHalf { effective: bits, permitted: bits, inheritable: bits }
    };
    let mut header = OF_THIS_PROCESS;
    let halves = [half(0), half(32)];
    // SAFETY: the kernel reads a header and, as its version says, two halves, and may write its version
    // into the header.
    Errno::result(unsafe { libc::syscall(libc::SYS_capset, &raw mut header, halves.as_ptr()) }).map(drop)
}

/// Whether a capability may ever be had by what this process executes.
pub(crate) fn is_bounded_by(capability: u8) -> bool {
    // SAFETY: the call takes numbers and touches no memory of ours; so do the two below.
    unsafe { libc::prctl(libc::PR_CAPBSET_READ, libc::c_ulong::from(capability)) == 1 }
}

/// Has it that a capability may not be had by anything that this process executes.
pub(crate) fn drop_from_bounding(capability: u8) -> nix::Result<()> {
    // SAFETY: as above.
    Errno::result(unsafe { libc::prctl(libc::PR_CAPBSET_DROP, libc::c_ulong::from(capability)) }).map(drop)
}

/// Has a capability that this process may inherit be had by what it executes, whoever it is.
pub(crate) fn raise_ambient(capability: u8) -> nix::Result<()> {
    let (raise, capability, none) = (libc::PR_CAP_AMBIENT_RAISE as libc::c_ulong, libc::c_ulong::from(capability), 0);
    // SAFETY: as above.
    Errno::result(unsafe {
        libc::prctl(libc::PR_CAP_AMBIENT, raise, capability, none as libc::c_ulong, none as libc::c_ulong)
    })
    .map(drop)
}

/// Sends a signal to a process, or to a process group if `pid` is negative. That the number still
/// means what it is meant to is for the caller to know.
pub(crate) fn kill(pid: i32, signal: i32) -> io::Result<()> {
    // SAFETY: kill takes two numbers and touches no memory of ours.
    check(unsafe { libc::kill(pid, signal) }.into()).map(drop)
}

/// Gives back memory that was needed to start: free pages of the heap, and pages of this program's
/// code and constants, which come back from the file when they are used again. An idle shim uses few.
pub(crate) fn shrink() {
    #[cfg(target_env = "gnu")]
    // SAFETY: gives back what is free, and touches nothing that is in use.
    unsafe {
        libc::malloc_trim(0);
    }
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let mut ranges = [(0, 0); 8];
    ranges.iter_mut().zip(maps.lines().filter_map(unwritten)).for_each(|(place, range)| *place = range);
    // To free memory is code as well, and would come back.
    drop(maps);
    for (start, len) in ranges {
        let start = std::ptr::without_provenance_mut(start);
        // SAFETY: the range, if not empty, is mapped from a file and was never written to, so the kernel
        // reads the same again from the file.
        unsafe { libc::madvise(start, len, libc::MADV_DONTNEED) };
    }
}

/// Start and length of a mapping, `START-END MODE OFFSET … /path`, if it is a file's code, or what a
/// file begins with. (Other mappings that can only be read were written to when they were relocated.)
fn unwritten(line: &str) -> Option<(usize, usize)> {
    let mut fields = line.split_ascii_whitespace();
    let (start, end) = fields.next()?.split_once('-')?;
    let unwritten = match (fields.next()?, fields.next()?) {
        ("r-xp", _) | ("r--p", "00000000") => line.contains('/'),
        _ => false,
    };
    let (start, end) = (usize::from_str_radix(start, 16).ok()?, usize::from_str_radix(end, 16).ok()?);
    unwritten.then(|| (start, end.saturating_sub(start)))
}

/// A handle of a process, which never comes to mean another one.
pub(crate) fn pidfd_open(pid: i32) -> io::Result<OwnedFd> {
    // SAFETY: the call takes two numbers and touches no memory of ours.
    let fd = check(unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) })?;
    let fd = i32::try_from(fd).map_err(io::Error::other)?;
    // SAFETY: the kernel has just given us this descriptor, so nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Sends a signal to the process that the handle means.
pub(crate) fn pidfd_kill(process: &OwnedFd, signal: i32) -> io::Result<()> {
    let no_info = std::ptr::null::<libc::siginfo_t>();
    // SAFETY: a null pointer stands for the signal information that kill would make.
    check(unsafe { libc::syscall(libc::SYS_pidfd_send_signal, process.as_raw_fd(), signal, no_info, 0) }).map(drop)
}

/// Looks for a child that has ended and leaves it unreaped, so that its number stays taken.
pub(crate) fn peek() -> io::Result<ReapedChild> {
    wait(libc::P_ALL, 0, WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT)
}

/// Reaps a child that has ended, or is about to.
pub(crate) fn reap(pid: i32) -> io::Result<ReapedChild> {
    wait(libc::P_PID, pid.unsigned_abs(), WaitPidFlag::empty())
}

fn wait(kind: libc::idtype_t, id: libc::id_t, flags: WaitPidFlag) -> io::Result<ReapedChild> {
    // SAFETY: zeros are a valid siginfo_t, which the call fills in.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    let flags = (flags | WaitPidFlag::WEXITED).bits();
    loop {
        // SAFETY: `info` lives for the whole call.
        match check(unsafe { libc::waitid(kind, id, &raw mut info, flags) }.into()) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.raw_os_error() == Some(libc::ECHILD) => return Ok(ReapedChild::NoChildren),
            Err(error) => return Err(error),
            Ok(_) => break,
        }
    }
    // SAFETY: these fields are valid after waitid; with WNOHANG and nothing to tell they are still zero.
    let (pid, status) = unsafe { (info.si_pid(), info.si_status()) };
    Ok(match info.si_code {
        _ if pid == 0 => ReapedChild::AllAlive,
        libc::CLD_EXITED => ReapedChild::Ended { pid, exit: ProcessExit::Code(status), core_dumped: false },
        code => ReapedChild::Ended { pid, exit: ProcessExit::Signal(status), core_dumped: code == libc::CLD_DUMPED },
    })
}

fn check(result: libc::c_long) -> io::Result<libc::c_long> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}
