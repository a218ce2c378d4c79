//! Finds the first process of a container in `/proc`: a child of the `lxc-start` process that is identified by its start
//! time, and the first in a pid namespace of its own.

use std::{fs, io, os::unix::fs::MetadataExt};

use muster_shim::{MainProcessId, process_identity};
use nix::libc;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::cgroup::Hierarchies;

/// Returns the first process of the container of an `lxc-start`, once it executes its own program; before that, LXC is
/// still preparing.
pub(super) fn first_of(monitor: &MainProcessId) -> Option<i32> {
    if !process_identity::is_alive(monitor) {
        return None;
    }
    let lxc = program(monitor.pid)?;
    let is_it = |pid: &i32| is_first(*pid) && program(*pid).is_some_and(|program| program != lxc);
    children(monitor.pid).into_iter().find(is_it)
}

/// Sends it a signal; returns false if it has ended. Its identity is checked again once a handle is open.
pub(super) fn send(monitor: &MainProcessId, pid: i32, signal: i32) -> io::Result<bool> {
    let signal = signal_of(signal).ok_or(io::ErrorKind::InvalidInput)?;
    let handle = Pid::from_raw(pid).ok_or(io::ErrorKind::InvalidInput)?;
    let handle = match pidfd_open(handle, PidfdFlags::empty()) {
        Err(rustix::io::Errno::SRCH) => return Ok(false),
        handle => handle?,
    };
    if first_of(monitor) != Some(pid) {
        return Ok(false);
    }
    match pidfd_send_signal(&handle, signal) {
        Err(rustix::io::Errno::SRCH) => Ok(false),
        sent => Ok(sent.map(|()| true)?),
    }
}

/// Returns the signal of a number; `None` for one that the C library reserves.
#[expect(unsafe_code, reason = "signals of real time have no safe form in the crate that has pidfds")]
fn signal_of(number: i32) -> Option<Signal> {
    let real_time = || {
        let is_free = (libc::SIGRTMIN()..=libc::SIGRTMAX()).contains(&number);
        // SAFETY: it is not one that the C library reserves, which are below the first real-time signal.
        is_free.then(|| unsafe { Signal::from_raw_unchecked(number) })
    };
    Signal::from_named_raw(number).or_else(real_time)
}

/// Whether its cgroup is frozen.
pub(super) fn is_frozen(hierarchies: &Hierarchies, pid: i32) -> bool {
    let Ok(cgroups) = fs::read_to_string(format!("/proc/{pid}/cgroup")) else { return false };
    let read =
        |controller: &str, file: &str| fs::read_to_string(hierarchies.folder(controller, &cgroups)?.join(file)).ok();
    let in_v1 = read("freezer", "freezer.state").is_some_and(|state| state.trim() == "FROZEN");
    in_v1 || read("", "cgroup.events").is_some_and(|events| events.lines().any(|line| line == "frozen 1"))
}

fn children(pid: i32) -> Vec<i32> {
    // The list is per thread, and some kernels lack it.
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let told: Option<Vec<String>> = tasks.map(|task| fs::read_to_string(task.path().join("children")).ok()).collect();
    match told {
        Some(told) => {
            told.iter().flat_map(|text| text.split_ascii_whitespace()).filter_map(|pid| pid.parse().ok()).collect()
        }
        None => {
            let is_child =
                |child: &i32| process_identity::stat(*child).is_some_and(|stat| stat.ppid == pid && !stat.is_dead());
            process_identity::pids().unwrap_or_default().into_iter().filter(is_child).collect()
        }
    }
}

/// Whether it is the first process in its own PID namespace.
fn is_first(pid: i32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/status")).is_ok_and(|status| is_first_there(&status))
}

/// Parses `/proc/<pid>/status`: its number in each PID namespace, from ours on.
fn is_first_there(status: &str) -> bool {
    let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
    let numbers: Vec<&str> = numbers.unwrap_or_default().split_ascii_whitespace().collect();
    numbers.len() > 1 && numbers.last() == Some(&"1")
}

/// Identifies the file that it executes.
fn program(pid: i32) -> Option<(u64, u64)> {
    fs::metadata(format!("/proc/{pid}/exe")).ok().map(|file| (file.dev(), file.ino()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_process_of_the_namespace_is_found() {
        for (line, wanted) in [
            ("NSpid:\t29831\t1", true),
            ("NSpid:\t29831\t7\t1", true),
            ("NSpid:\t29831\t2", false),
            ("NSpid:\t1", false),
            ("NSpid:", false),
            ("NSpgid:\t5\t1", false),
        ] {
            assert_eq!(is_first_there(&format!("Name:\tsh\n{line}\nThreads:\t1\n")), wanted, "{line}");
        }
    }

    #[test]
    fn process_without_container_has_no_first_process() {
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let own = i32::try_from(std::process::id()).unwrap();
        let monitor =
            MainProcessId { pid: own, start_ticks: process_identity::stat(own).unwrap().start_ticks, started_ms: 0 };
        assert!(children(own).contains(&child.id().cast_signed()));
        assert_eq!(first_of(&monitor), None);
        assert!(!send(&monitor, child.id().cast_signed(), 9).unwrap());
        assert!(child.try_wait().unwrap().is_none());
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
