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

/// The size of a page. Where pages are larger, the kernel refuses to release a part of one.
const PAGE_BYTES: usize = 4096;
/// More than the frames of `shrink` and of what it calls.
const FRAMES_MAX_BYTES: usize = 1024;
/// More of the stack than the deepest call needs, and less than the distance that the kernel keeps between a stack and other mappings
/// (a megabyte).
const STACK_MAX_BYTES: usize = 256 * 1024;

/// The result of looking for children to reap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReapedChild {
    /// There are children, and none has ended.
    AllAlive,
    /// There are no children.
    NoChildren,
    /// This one has ended, with or without a core dump.
    Ended { pid: i32, exit: ProcessExit, core_dumped: bool },
}

/// Forks. The child may do everything that its parent may: the shim has one thread.
pub(crate) fn fork_process() -> io::Result<ForkResult> {
    // SAFETY: fork is dangerous if another thread holds a lock at that moment, and there is no other thread.
    Ok(unsafe { fork() }?)
}

/// Ends this process at once, without exit handlers.
pub(crate) fn exit_now(code: i32) -> ! {
    // SAFETY: _exit has no preconditions and does not return.
    unsafe { libc::_exit(code) }
}

/// Forks a child of our own parent: it is in the namespaces that this process has joined for its children, and its exit
/// is reported to the parent. Returns its number in our own namespace; `None` in the child.
pub(crate) fn fork_sibling() -> nix::Result<Option<i32>> {
    let flags = (libc::CLONE_PARENT | libc::SIGCHLD) as libc::c_ulong;
    let none: libc::c_ulong = 0;
    // The order of arguments depends on the architecture.
    let [first, second] = if cfg!(target_arch = "s390x") { [none, flags] } else { [flags, none] };
    // SAFETY: without a stack and without shared memory this is a fork: the child continues with a copy. There is one
    // thread, so no other thread holds a lock.
    let pid = Errno::result(unsafe { libc::syscall(libc::SYS_clone, first, second, none, none, none) })?;
    Ok(i32::try_from(pid).ok().filter(|pid| *pid > 0))
}

/// Joins namespaces of a process; the process id namespace applies to children that are forked later.
pub(crate) fn join_namespaces(process: &OwnedFd, namespaces: i32) -> nix::Result<()> {
    // SAFETY: the call takes two numbers and touches no memory of ours.
    Errno::result(unsafe { libc::setns(process.as_raw_fd(), namespaces) }).map(drop)
}

/// Closes all descriptors except standard input, output and error, and these.
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
    // SAFETY: no handler is installed, so no code runs in a signal's context.
    unsafe { libc::signal(signal, libc::SIG_IGN) };
}

/// Restores the default action of a signal, directly by a system call: the C library reserves some signals, which a
/// program would otherwise inherit as whoever started us left them.
pub(crate) fn default_signal(signal: i32) {
    // Zeros: default action, no flags, empty mask. No architecture's structure is longer.
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

/// The header of the third version of the kernel's capability sets: 64 bits, lower half first.
#[repr(C)]
struct CapabilityHeader {
    version: u32,
    pid: i32,
}

/// One half of a process's three sets.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct CapabilityHalf {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

const OF_THIS_PROCESS: CapabilityHeader = CapabilityHeader { version: 0x2008_0522, pid: 0 };

/// The permitted capabilities of this process, as bits.
pub(crate) fn permitted_capabilities() -> nix::Result<u64> {
    let mut header = OF_THIS_PROCESS;
    let mut halves = [CapabilityHalf::default(); 2];
    // SAFETY: the kernel writes a header and, for this version, two halves; both fit.
    Errno::result(unsafe { libc::syscall(libc::SYS_capget, &raw mut header, halves.as_mut_ptr()) })?;
    Ok(u64::from(halves[0].permitted) | u64::from(halves[1].permitted) << 32)
}

/// Clears the inheritable capabilities, so that executed programs of other users get none.
pub(crate) fn inherit_no_capabilities() -> nix::Result<()> {
    let mut header = OF_THIS_PROCESS;
    let mut halves = [CapabilityHalf::default(); 2];
    // SAFETY: as above; and the second call reads what the first has written.
    Errno::result(unsafe { libc::syscall(libc::SYS_capget, &raw mut header, halves.as_mut_ptr()) })?;
    halves.iter_mut().for_each(|half| half.inheritable = 0);
    // SAFETY: as above. Clearing the inheritable set clears the ambient set, too.
    Errno::result(unsafe { libc::syscall(libc::SYS_capset, &raw mut header, halves.as_ptr()) }).map(drop)
}

/// Makes these the only capabilities of this process, and inheritable.
pub(crate) fn set_capabilities(bits: u64) -> nix::Result<()> {
    let half = |shift: u32| {
        let bits = (bits >> shift) as u32;
        CapabilityHalf { effective: bits, permitted: bits, inheritable: bits }
    };
    let mut header = OF_THIS_PROCESS;
    let halves = [half(0), half(32)];
    // SAFETY: the kernel reads a header and, for this version, two halves, and may write its version into the header.
    Errno::result(unsafe { libc::syscall(libc::SYS_capset, &raw mut header, halves.as_ptr()) }).map(drop)
}

/// Whether a capability is in the bounding set of this process.
pub(crate) fn is_bounded_by(capability: u8) -> bool {
    // SAFETY: the call takes numbers and touches no memory of ours; so do the two below.
    unsafe { libc::prctl(libc::PR_CAPBSET_READ, libc::c_ulong::from(capability)) == 1 }
}

/// Removes a capability from the bounding set.
pub(crate) fn drop_from_bounding(capability: u8) -> nix::Result<()> {
    // SAFETY: as above.
    Errno::result(unsafe { libc::prctl(libc::PR_CAPBSET_DROP, libc::c_ulong::from(capability)) }).map(drop)
}

/// Adds an inheritable capability to the ambient set, so that an executed program of any user has it.
pub(crate) fn raise_ambient(capability: u8) -> nix::Result<()> {
    let (raise, capability, none) = (libc::PR_CAP_AMBIENT_RAISE as libc::c_ulong, libc::c_ulong::from(capability), 0);
    // SAFETY: as above.
    Errno::result(unsafe {
        libc::prctl(libc::PR_CAP_AMBIENT, raise, capability, none as libc::c_ulong, none as libc::c_ulong)
    })
    .map(drop)
}

/// Sends a signal to a process, or to a process group if `pid` is negative. The caller must make sure that the number
/// still refers to the right process.
pub(crate) fn kill(pid: i32, signal: i32) -> io::Result<()> {
    // SAFETY: kill takes two numbers and touches no memory of ours.
    check(unsafe { libc::kill(pid, signal) }.into()).map(drop)
}

/// Returns memory that is not needed while this process sleeps: free pages of the heap, the stack below the caller, and the
/// pages of the program's code and constants, which are read from the file again when they are needed. An idle shim uses
/// few of them.
///
/// What stands in the frames of callers stays, in this process and in each that it forks. So calls with large buffers are not
/// inlined into the loop or into the way to a fork.
#[inline(never)]
pub(crate) fn shrink() {
    #[cfg(target_env = "gnu")]
    // SAFETY: releases free memory only.
    unsafe {
        libc::malloc_trim(0);
    }
    let frame = 0_u8;
    let stack_end = (&raw const frame).addr().saturating_sub(FRAMES_MAX_BYTES) / PAGE_BYTES * PAGE_BYTES;
    release(stack_end.saturating_sub(STACK_MAX_BYTES), stack_end);
    let (start, end) = (&raw const EXECUTABLE_START, &raw const TEXT_END);
    release(start.addr(), end.addr());
}

unsafe extern "C" {
    // The linker defines both: the beginning of the program in memory, and the end of its code.
    #[link_name = "__executable_start"]
    static EXECUTABLE_START: u8;
    #[link_name = "etext"]
    static TEXT_END: u8;
}

/// Has the kernel drop the pages between two addresses. Those that are not mapped are left out.
fn release(start: usize, end: usize) {
    let len = end.saturating_sub(start);
    let start = std::ptr::without_provenance_mut(start);
    // SAFETY: only `shrink` calls this, with two ranges. One is the stack below all frames in use. The other was mapped from the
    // program's file and is never written to, so that the kernel reads the same again.
    unsafe { libc::madvise(start, len, libc::MADV_DONTNEED) };
}

/// Opens a handle of a process, which never refers to another one.
pub(crate) fn pidfd_open(pid: i32) -> io::Result<OwnedFd> {
    // SAFETY: the call takes two numbers and touches no memory of ours.
    let fd = check(unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) })?;
    let fd = i32::try_from(fd).map_err(io::Error::other)?;
    // SAFETY: the kernel has just returned this descriptor, so nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Sends a signal to the process of a handle.
pub(crate) fn pidfd_kill(process: &OwnedFd, signal: i32) -> io::Result<()> {
    let no_info = std::ptr::null::<libc::siginfo_t>();
    // SAFETY: a null pointer selects the same signal information as kill.
    check(unsafe { libc::syscall(libc::SYS_pidfd_send_signal, process.as_raw_fd(), signal, no_info, 0) }).map(drop)
}

/// Looks for a child that has ended without reaping it, so that its number is not reused.
pub(crate) fn peek() -> io::Result<ReapedChild> {
    wait(libc::P_ALL, 0, WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT)
}

/// Reaps a child that has ended or is about to end.
pub(crate) fn reap(pid: i32) -> io::Result<ReapedChild> {
    wait(libc::P_PID, pid.unsigned_abs(), WaitPidFlag::empty())
}

fn wait(kind: libc::idtype_t, id: libc::id_t, flags: WaitPidFlag) -> io::Result<ReapedChild> {
    // SAFETY: zeros are a valid siginfo_t, which the call fills.
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
    // SAFETY: these fields are valid after waitid; with WNOHANG and no ended child they are still zero.
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

#[cfg(test)]
mod tests {
    use std::{fs::File, hint::black_box, os::unix::fs::FileExt};

    use super::*;

    /// Writes to a large frame; returns its sum, and the address of its middle.
    #[inline(never)]
    fn deep() -> (u64, usize) {
        let frame = black_box([1_u8; 100 * 1024]);
        (frame.iter().map(|byte| u64::from(*byte)).sum(), (&raw const frame[frame.len() / 2]).addr())
    }

    fn is_in_memory(address: usize) -> bool {
        let mut entry = [0; 8];
        let at = (address / PAGE_BYTES * entry.len()) as u64;
        File::open("/proc/self/pagemap").unwrap().read_exact_at(&mut entry, at).unwrap();
        // Source: the kernel's documentation of pagemap.
        u64::from_ne_bytes(entry) >> 63 == 1
    }

    #[test]
    fn stack_below_is_released_and_usable_again() {
        let (sum, address) = deep();
        assert!(is_in_memory(address));
        shrink();
        assert!(!is_in_memory(address));
        assert_eq!(deep().0, sum);
    }
}
