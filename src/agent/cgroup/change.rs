//! Changes the limits of running cgroups; the processes go on.
//!
//! **Invariant: lowering a limit kills no process.** A memory limit is set only once usage is below it, because the
//! kernel would kill to enforce it. Memory that the kernel can reclaim (caches) is reclaimed first.

use std::{io, path::Path};

use muster_shim::cgroup::Cgroup;
use muster_topics::process::Limits;

use super::{CPU_PERIOD_US, hand_on, has_controller, values, write};

/// Changes the limits of a running cgroup; limits may be added and removed.
///
/// # Errors
/// If one cannot be changed, with the reason: the cgroup lacks the controller, or more is in use than the limit allows.
/// Earlier changes remain then.
pub(crate) fn change_limits(cgroup: &Cgroup, before: &Limits, after: &Limits) -> Result<(), String> {
    for ((controller, before), (_, value)) in values(before).into_iter().zip(values(after)) {
        if before != value {
            let change = LimitChange { controller, value };
            change.make(cgroup).map_err(|why| format!("the limit of {controller}: {why}"))?;
        }
    }
    Ok(())
}

/// A limit that is changed or removed.
#[derive(Clone, Copy, Debug)]
struct LimitChange {
    controller: &'static str,
    value: Option<u64>,
}

impl LimitChange {
    fn make(self, cgroup: &Cgroup) -> Result<(), String> {
        if let Some(folder) = &cgroup.unified {
            if self.value.is_some() && !has_controller(folder, self.controller) {
                hand_on_to(folder, self.controller);
            }
            if has_controller(folder, self.controller) {
                return self.set_unified(folder);
            }
        }
        let place = match self.controller {
            "memory" => &cgroup.memory,
            "cpu" => &cgroup.cpu,
            _ => &cgroup.pids,
        };
        match (place, self.value) {
            (Some(folder), _) => self.set_v1(folder),
            // There was no limit.
            (None, None) => Ok(()),
            (None, Some(_)) => Err("the running process has no cgroup for it".to_owned()),
        }
    }

    fn set_unified(self, folder: &Path) -> Result<(), String> {
        let text = self.value.map_or_else(|| "max".to_owned(), |value| value.to_string());
        match (self.controller, self.value) {
            ("memory", Some(bytes)) => {
                make_room(folder, bytes)?;
                let set = set(folder, "memory.max", &text).and_then(|()| set_if_there(folder, "memory.swap.max", "0"));
                // From now on the limit itself applies.
                set_if_there(folder, "memory.high", "max").and(set)
            }
            ("memory", None) => {
                set(folder, "memory.max", &text).and_then(|()| set_if_there(folder, "memory.swap.max", "max"))
            }
            ("cpu", _) => set(folder, "cpu.max", &format!("{text} {CPU_PERIOD_US}")),
            _ => set(folder, "pids.max", &text),
        }
    }

    fn set_v1(self, folder: &Path) -> Result<(), String> {
        let number = self.value.map_or_else(|| "-1".to_owned(), |value| value.to_string());
        match self.controller {
            "memory" => set_memory_v1(folder, &number),
            "cpu" => set(folder, "cpu.cfs_period_us", &CPU_PERIOD_US.to_string())
                .and_then(|()| set(folder, "cpu.cfs_quota_us", &number)),
            _ => set(folder, "pids.max", self.value.map_or("max", |_| &number)),
        }
    }
}

/// Makes the kernel reclaim memory while more than `bytes` is in use. Processes that allocate meanwhile are slowed
/// down, not killed.
fn make_room(folder: &Path, bytes: u64) -> Result<(), String> {
    let in_use = || std::fs::read_to_string(folder.join("memory.current")).ok()?.trim().parse::<u64>().ok();
    if in_use().is_none_or(|used| used <= bytes) {
        return Ok(());
    }
    set(folder, "memory.high", &bytes.to_string())?;
    match in_use() {
        Some(used) if used > bytes => {
            set(folder, "memory.high", "max")?;
            Err(format!("{used} bytes are used"))
        }
        _ => Ok(()),
    }
}

/// In v1 the limit with swap is never below the one without, so their order depends on whether they grow or shrink. The
/// kernel itself refuses limits below what is in use.
fn set_memory_v1(folder: &Path, number: &str) -> Result<(), String> {
    let (alone, swap) = ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes");
    let before = std::fs::read_to_string(folder.join(alone)).unwrap_or_default();
    match write(&folder.join(alone), number) {
        Ok(()) => set_if_there(folder, swap, number).inspect_err(|_| {
            // Neither of the two is changed then.
            let _ = write(&folder.join(alone), before.trim());
        }),
        Err(error) if error.kind() == io::ErrorKind::InvalidInput && folder.join(swap).exists() => {
            set(folder, swap, number).and_then(|()| set(folder, alone, number))
        }
        Err(error) => Err(told(alone, &error)),
    }
}

fn set(folder: &Path, file: &str, text: &str) -> Result<(), String> {
    write(&folder.join(file), text).map_err(|error| told(file, &error))
}

/// Writes a file that some kernels lack.
fn set_if_there(folder: &Path, file: &str, text: &str) -> Result<(), String> {
    match write(&folder.join(file), text) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        written => written.map_err(|error| told(file, &error)),
    }
}

fn told(file: &str, error: &io::Error) -> String {
    let more = if error.kind() == io::ErrorKind::ResourceBusy { " (more is used)" } else { "" };
    format!("{file}: {error}{more}")
}

/// Enables a controller for the cgroup of a unit, from the folder of all units down.
fn hand_on_to(folder: &Path, controller: &str) {
    let above: Vec<&Path> = folder.ancestors().skip(1).take(3).collect();
    for folder in above.into_iter().rev() {
        // Failures are reported where the controller is needed.
        let _ = hand_on(folder, controller);
    }
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        io::{BufRead, BufReader},
        process::{Command, Stdio},
    };

    use muster_rules::plan::Slot;

    use super::*;
    use crate::cgroup::CgroupTree;

    fn limits(json: &str) -> Limits {
        serde_json::from_str(json).unwrap()
    }

    const FIRST: &str = r#"{"memory_bytes": 67108864, "cpu": 0.5, "pids": 50}"#;

    #[test]
    fn unified_limits_are_set_changed_and_removed() {
        let at = tempfile::tempdir().unwrap();
        let file = |name: &str| fs::read_to_string(at.path().join(name)).unwrap();
        let put = |name: &str, text: &str| fs::write(at.path().join(name), text).unwrap();
        put("cgroup.controllers", "cpu memory pids\n");
        for name in ["memory.max", "memory.high", "memory.swap.max", "cpu.max", "pids.max"] {
            put(name, "");
        }
        put("memory.current", "33554432\n");
        let cgroup = Cgroup { unified: Some(at.path().to_owned()), ..Cgroup::default() };
        let (none, first) = (Limits::default(), limits(FIRST));
        let values = || {
            ["memory.max", "memory.swap.max", "cpu.max", "pids.max"].map(|name| {
                let text = file(name);
                put(name, "");
                text
            })
        };
        change_limits(&cgroup, &none, &first).unwrap();
        assert_eq!(values(), ["67108864", "0", "50000 100000", "50"]);
        change_limits(&cgroup, &first, &first).unwrap();
        assert_eq!(values(), ["", "", "", ""], "what is so is not written");
        // More remains in use, so the old limit remains, too.
        let error = change_limits(&cgroup, &first, &limits(r#"{"memory_bytes": 16777216}"#)).unwrap_err();
        assert_eq!(error, "the limit of memory: 33554432 bytes are used");
        assert_eq!(values(), ["", "", "", ""]);
        // (Each write to a kernel file replaces all of it.)
        assert!(file("memory.high").starts_with("max"), "{}", file("memory.high"));
        change_limits(&cgroup, &first, &none).unwrap();
        assert_eq!(values(), ["max", "max", "max 100000", "max"]);
    }

    #[test]
    fn limit_without_its_controller_is_refused() {
        let (none, first) = (Limits::default(), limits(r#"{"pids": 50}"#));
        let error = change_limits(&Cgroup::default(), &none, &first).unwrap_err();
        assert_eq!(error, "the limit of pids: the running process has no cgroup for it");
        assert_eq!(change_limits(&Cgroup::default(), &first, &none), Ok(()), "none was in force");
    }

    /// With real cgroups of this machine, if it allows to create some.
    #[test]
    fn process_survives_lowered_limits() {
        let data_dir = tempfile::tempdir().unwrap();
        let tree = CgroupTree::detect(data_dir.path());
        let unit = "default/eater".parse().unwrap();
        let made = tree.prepare((&unit, Slot::First), &limits(FIRST)).unwrap();
        if !made.missing.is_empty() {
            return;
        }
        // Sixteen megabytes that cannot be reclaimed.
        let script = "x=$(head -c 16000000 /dev/zero | tr '\\0' x); echo ready; read y; echo ${#x}";
        let enter = made
            .cgroup
            .folders()
            .fold(String::new(), |enter, folder| format!("{enter}echo $$ > {}/cgroup.procs; ", folder.display()));
        let mut eater = Command::new("sh")
            .args(["-c", &format!("{enter}{script}")])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(eater.stdout.take().unwrap()).lines();
        assert_eq!(lines.next().unwrap().unwrap(), "ready");
        let read = |file: &str| {
            let found = made.cgroup.folders().find_map(|folder| fs::read_to_string(folder.join(file)).ok());
            found.map(|text| text.trim().to_owned())
        };
        let memory = || read("memory.max").or_else(|| read("memory.limit_in_bytes")).unwrap();
        let change = |before: &str, after: &str| change_limits(&made.cgroup, &limits(before), &limits(after));
        let second = r#"{"memory_bytes": 134217728, "cpu": 1.5, "pids": 60}"#;
        change(FIRST, second).unwrap();
        assert_eq!((memory().as_str(), read("pids.max").unwrap().as_str()), ("134217728", "60"));
        assert_eq!(read("cpu.cfs_quota_us").or_else(|| read("cpu.max")).unwrap().split(' ').next(), Some("150000"));
        change(second, FIRST).unwrap();
        assert_eq!(memory(), "67108864");
        // With swap space the limit may be lowered, and without it is refused; the process is never killed.
        let below = r#"{"memory_bytes": 4194304, "cpu": 0.5, "pids": 50}"#;
        match change(FIRST, below) {
            Ok(()) => assert_eq!(memory(), "4194304"),
            Err(error) => {
                assert!(error.starts_with("the limit of memory: "), "{error}");
                assert_eq!(memory(), "67108864");
            }
        }
        change(FIRST, r#"{"cpu": 0.5, "pids": 50}"#).unwrap();
        assert!(memory() == "max" || memory().parse::<u64>().unwrap() > 1 << 40, "{}", memory());
        drop(eater.stdin.take());
        assert_eq!(lines.next().unwrap().unwrap(), "16000000");
        assert!(eater.wait().unwrap().success());
        while !made.cgroup.is_empty() {
            std::thread::yield_now();
        }
        tree.remove((&unit, Slot::First));
    }
}
