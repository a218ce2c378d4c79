//! What is measured of each.

use std::{
    collections::BTreeMap,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::{
    Options, Subject,
    common::{
        spread::Spread,
        usage::{self, Threads, Turns},
    },
    program::{Mains, now_ns},
    table::Row,
};

/// Longest time until all programs have started.
const START_MAX: Duration = Duration::from_secs(120);
/// Longest time until a program has restarted.
const AGAIN_MAX: Duration = Duration::from_secs(60);
/// Longer than the time in which any of the four takes an exit for a crash at the start.
const SETTLE: Duration = Duration::from_secs(3);
/// The work that follows kills is finished after this time: muster reports each restart, and ten stable seconds after
/// it.
const REST_AFTER: Duration = Duration::from_secs(20);
/// How often memory is looked at while it rests.
const LOOKS: u32 = 30;
/// Long enough for each of the four to start what it is going to start.
const AFTERWARDS: Duration = Duration::from_secs(5);

pub(crate) fn measure(
    subject: &mut dyn Subject,
    mains: &mut Mains,
    names: &[String],
    options: &Options,
) -> Result<Vec<(Row, f64)>> {
    let mut rows = Vec::new();
    // Starts during the preparation are not counted.
    mains.catch_up();
    let began_ns = now_ns()?;
    subject.start()?;
    let last_ns = mains.all(names, START_MAX)?;
    rows.push((Row::StartAll, (last_ns - began_ns) as f64 / 1e6));
    thread::sleep(SETTLE);

    let waits_ms = Spread::of(kills(mains, &names[..options.kills])?);
    rows.push((Row::KilledToMain, waits_ms.median()));
    rows.push((Row::KilledToMain99, waits_ms.percentile(99)));

    thread::sleep(REST_AFTER);
    rows.extend(rest(subject, options)?);
    rows.extend(copies(subject, mains, &names[options.kills])?);
    Ok(rows)
}

/// Kills one program after the other; returns the time until each has restarted, in milliseconds.
fn kills(mains: &mut Mains, names: &[String]) -> Result<Vec<f64>> {
    let mut waits_ms = Vec::new();
    for name in names {
        mains.catch_up();
        let alive = mains.alive(name);
        ensure!(alive.len() == 1, "{name} runs {} times", alive.len());
        let killed_ns = now_ns()?;
        kill(Pid::from_raw(alive[0]), Signal::SIGKILL)?;
        loop {
            let main = mains.next(AGAIN_MAX)?;
            if main.name == *name {
                waits_ms.push((main.at_ns - killed_ns) as f64 / 1e6);
                break;
            }
        }
        // The work that follows a start must not disturb the next one.
        thread::sleep(Duration::from_millis(50));
    }
    Ok(waits_ms)
}

fn rest(subject: &dyn Subject, options: &Options) -> Result<Vec<(Row, f64)>> {
    let before: BTreeMap<i32, Threads> = subject.processes().into_iter().map(|pid| (pid, threads(pid))).collect();
    let kilobytes =
        |pids: &[i32]| pids.iter().map(|pid| usage::pss_bytes(*pid).unwrap_or_default()).sum::<u64>() as f64 / 1024.0;
    let since = Instant::now();
    let (mut memory, mut direct) = (Vec::new(), Vec::new());
    for _ in 0..LOOKS {
        thread::sleep(Duration::from_secs(options.rest_s) / LOOKS);
        memory.push(kilobytes(&subject.processes()) / options.yunos as f64);
        direct.push(kilobytes(&subject.direct()) / options.yunos as f64);
    }
    let (memory, direct) = (Spread::of(memory), Spread::of(direct));
    let seconds = since.elapsed().as_secs_f64();
    let processes = subject.processes();
    ensure!(!processes.is_empty(), "the supervisor is gone");
    let (none, mut all) = (Threads::default(), Turns::default());
    for pid in &processes {
        let taken = threads(*pid).since(before.get(pid).unwrap_or(&none));
        all.busy += taken.busy;
        all.wakes += taken.wakes;
    }
    let mut rows = vec![
        (Row::Memory, memory.mean()),
        (Row::MemoryMost, memory.most()),
        (Row::Processor, all.busy.as_secs_f64() / seconds * 100.0),
        (Row::Wakes, all.wakes as f64 / seconds),
    ];
    if direct.most() > 0.0 {
        rows.push((Row::Direct, direct.mean()));
    }
    Ok(rows)
}

/// Number of copies of a program after its direct supervisor was killed and has restarted.
fn copies(subject: &mut dyn Subject, mains: &mut Mains, name: &str) -> Result<Vec<(Row, f64)>> {
    mains.catch_up();
    let before = mains.alive(name);
    ensure!(before.len() == 1, "{name} runs {} times", before.len());
    kill(Pid::from_raw(subject.supervisor_of(name)?), Signal::SIGKILL)?;
    subject.start_again()?;
    thread::sleep(AFTERWARDS);
    mains.catch_up();
    let after = mains.alive(name);
    Ok(vec![(Row::Copies, after.len() as f64), (Row::SamePid, f64::from(u8::from(after == before)))])
}

/// The threads of a process; none if it has ended.
fn threads(pid: i32) -> Threads {
    usage::threads(pid).unwrap_or_default()
}
