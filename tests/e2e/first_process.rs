//! An agent as the first process of its namespace, as in a container without `--init`.

use std::process::Command;

use muster_shim::process_identity;
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::{
    fleet::{Running, eventually, muster},
    roles::Roles,
};

/// The children of a process, and whether each has ended.
fn children(parent: i32) -> Vec<(i32, bool)> {
    let of = |pid: i32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // Behind the name, which is in brackets and may have some itself.
        let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
        let state = fields.next()?;
        (fields.next()?.parse() == Ok(parent)).then_some((pid, state == "Z"))
    };
    process_identity::pids().unwrap().into_iter().filter_map(of).collect()
}

#[test]
fn init_reaps_orphans_and_stops_cleanly() {
    if !nix::unistd::geteuid().is_root() {
        eprintln!("skipped: only root makes a namespace of processes");
        return;
    }
    let roles = Roles::start();
    let mut command = Command::new("unshare");
    roles.home.dress(&mut command);
    command.args(["--pid", "--fork", "--kill-child", "--mount-proc", muster(), "agent", "--config"]);
    let mut agent = Running::start(command.arg(roles.agent_config()).arg(format!("--join={}", roles.token())));
    roles.wait_for_host("online");
    let first = eventually("the first process", || match children(agent.pid().as_raw()).as_slice() {
        [(first, _)] => Ok(*first),
        other => Err(format!("{other:?}")),
    });
    for _ in 0..5 {
        // A program that leaves another behind, too.
        roles.ok(&["exec", "--", "sh", "-c", "(sleep 0.1 &) ; true"]);
    }
    eventually("the end of all that has ended", || {
        let left: Vec<_> = children(first).into_iter().filter(|(_, is_dead)| *is_dead).collect();
        if left.is_empty() { Ok(()) } else { Err(format!("zombies: {left:?}")) }
    });
    kill(Pid::from_raw(first), Signal::SIGTERM).unwrap();
    agent.wait_for_end(0, "");
    roles.wait_for_host("stopped");
}
