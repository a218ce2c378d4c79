//! The checks: what the facts mean, and what helps.
//!
//! **Invariant: every finding that is not fine has a remedy.**

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use muster_net::pki;
use muster_topics::{Millis, PROTOCOL, diagnostic::Diagnostic, size};
use serde::Serialize;

use crate::{
    facts::{
        AgentFacts, BrokerFacts, CertificateContent, CertificateFacts, Cgroups, ConsoleAlertFacts, ConsoleFacts,
        DiskFacts, Facts, ListenerState, PartFacts, PodmanFacts, ProcessState, Reach, ServerAnswer, ServerFacts,
        StoreState, TimeZone,
    },
    setup::{ListenerSetup, Part},
};

/// How far clocks may differ before an operator should look: what HTTP tells is whole seconds.
const CLOCK_WARNING_MS: Millis = 5_000;
/// How far they may differ before it does harm: the shortest useful expiry of a command.
const CLOCK_PROBLEM_MS: Millis = 60_000;
const DAY_MS: Millis = 24 * 3_600_000;
/// Agents renew certificates of 30 days in their last third, so one with less left is not being renewed.
const EXPIRY_WARNING_MS: Millis = 7 * DAY_MS;
/// Below this a store cannot work for long.
const DISK_PROBLEM_BYTES: u64 = 64 * 1024 * 1024;
/// Controllers that limits of units need.
const CONTROLLERS: [&str; 3] = ["cpu", "memory", "pids"];

/// What a check found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// There is nothing to check here.
    NotApplicable,
    /// All is well.
    Ok,
    /// Something will go wrong, or is worse than it could be.
    Warning,
    /// Something does not work.
    Problem,
}

impl Verdict {
    /// As it is printed.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NotApplicable => "-",
            Self::Ok => "ok",
            Self::Warning => "warning",
            Self::Problem => "problem",
        }
    }
}

/// The result of one check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The part of the installation.
    pub part: Part,
    /// What was checked.
    pub check: &'static str,
    /// The verdict.
    pub verdict: Verdict,
    /// What was found.
    pub finding: String,
    /// What helps.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
}

/// A finding of a part that is still to be named.
pub(crate) struct CheckResult(
    pub(crate) &'static str,
    pub(crate) Verdict,
    pub(crate) String,
    pub(crate) Option<String>,
);

/// The server of [`ServerFacts`] whose rules are checked too.
const BROKER: &str = "broker";
const BROKER_RULES: &str = "broker rules";
/// What helps if nothing better is known.
const ASK: &str = "`muster doctor --out FILE` collects what a helper needs";

fn fine(check: &'static str, finding: impl Into<String>) -> CheckResult {
    CheckResult(check, Verdict::Ok, finding.into(), None)
}

fn not_applicable(check: &'static str, finding: impl Into<String>) -> CheckResult {
    CheckResult(check, Verdict::NotApplicable, finding.into(), None)
}

fn warning(check: &'static str, finding: impl Into<String>, remedy: impl Into<String>) -> CheckResult {
    CheckResult(check, Verdict::Warning, finding.into(), Some(remedy.into()))
}

fn problem(check: &'static str, finding: impl Into<String>, remedy: impl Into<String>) -> CheckResult {
    CheckResult(check, Verdict::Problem, finding.into(), Some(remedy.into()))
}

/// The hint is what helps; where there is none, somebody else may know.
fn problem_of(check: &'static str, told: &Diagnostic) -> CheckResult {
    let finding = Diagnostic { hint: None, ..told.clone() };
    problem(check, format!("{finding:#}"), told.hint.as_deref().unwrap_or(ASK))
}

/// The worst verdict of some findings.
#[must_use]
pub fn worst(findings: &[Finding]) -> Verdict {
    findings.iter().map(|finding| finding.verdict).max().unwrap_or(Verdict::NotApplicable)
}

/// Decides about everything that was found.
#[must_use]
pub fn examine(facts: &Facts) -> Vec<Finding> {
    let mut all = name(Part::Host, host(facts));
    for (part, found) in &facts.parts {
        all.extend(name(*part, check_part(*part, found, facts)));
    }
    all
}

fn name(part: Part, results: Vec<CheckResult>) -> Vec<Finding> {
    let named = |CheckResult(check, verdict, finding, remedy)| Finding { part, check, verdict, finding, remedy };
    results.into_iter().map(named).collect()
}

fn host(facts: &Facts) -> Vec<CheckResult> {
    let mut all = vec![fine("version", format!("muster {}", facts.version))];
    if facts.parts.is_empty() {
        all.push(not_applicable(
            "installation",
            "nothing is installed here: no agent, no console, no broker, no folder of `muster up`, no context",
        ));
    }
    all.push(time_zone(&facts.host.time_zone));
    let needs_cgroups = facts.parts.iter().any(|(part, _)| *part == Part::Agent);
    all.push(cgroups(&facts.host.cgroups, needs_cgroups));
    all
}

fn time_zone(zone: &TimeZone) -> CheckResult {
    match zone {
        TimeZone::Named(name) => fine("time zone", name),
        TimeZone::Unset => fine("time zone", "UTC: no time zone is set"),
        TimeZone::Unknown(name) => warning(
            "time zone",
            format!("{name} is set and unknown on this machine: programs show UTC"),
            "install tzdata, or choose another zone with `timedatectl set-timezone`",
        ),
    }
}

fn cgroups(found: &Cgroups, is_needed: bool) -> CheckResult {
    let check = "cgroups";
    match found {
        _ if !is_needed => not_applicable(check, "no agent here needs them"),
        Cgroups::V2(controllers) => {
            let lacks = |name: &&str| !controllers.iter().any(|one| one == name);
            let missing: Vec<&str> = CONTROLLERS.into_iter().filter(lacks).collect();
            if missing.is_empty() {
                return fine(check, "version 2");
            }
            warning(
                check,
                format!("version 2 without {}: such limits of units have no effect", missing.join(", ")),
                "run the agent as a service (`muster agent install`), whose unit file delegates controllers, or boot \
                 with a kernel that has them",
            )
        }
        Cgroups::V1 => fine(check, "version 1"),
        Cgroups::Missing => warning(
            check,
            "cgroups are not mounted: limits and usage of units are not available",
            "mount /sys/fs/cgroup (in a container: `--cgroupns=private` and a writable /sys/fs/cgroup)",
        ),
    }
}

fn check_part(part: Part, found: &PartFacts, facts: &Facts) -> Vec<CheckResult> {
    let mut all = Vec::new();
    match (&found.trouble, &found.config) {
        (Some(trouble), _) => all.push(problem_of("configuration", trouble)),
        (None, Some(path)) => all.push(fine("configuration", path.display().to_string())),
        (None, None) => all.push(fine("configuration", "no file; defaults and options apply")),
    }
    if let Some(missing) = &found.missing {
        all.push(problem_of("setup", missing));
    }
    if let Some(process) = found.process {
        all.push(check_process(process, found));
    }
    if let (Some(agent), Some(ProcessState::Runs(_))) = (&found.agent, found.process) {
        all.extend(check_agent(agent, &facts.version));
    }
    all.extend(found.listeners.iter().map(|(setup, state)| check_listener(setup, state, found)));
    for server in &found.servers {
        all.extend(check_server(server, facts.now_ms));
    }
    let is_unreached = |server: &ServerFacts| server.setup.what == BROKER && !matches!(server.reach, Reach::Answers(_));
    all.extend(found.broker.as_ref().map(|broker| match found.servers.iter().any(is_unreached) {
        true => not_applicable(BROKER_RULES, "the broker cannot be reached"),
        false => check_broker(broker),
    }));
    all.extend(found.certificates.iter().map(|one| check_certificate("certificate", one, facts.now_ms)));
    all.extend(found.revoked.as_ref().map(|(path, due)| check_revocation_list(path, due, facts.now_ms)));
    let is_open = |(_, mode): &&(PathBuf, u32)| mode & 0o077 != 0;
    all.extend(found.private.iter().filter(is_open).map(|(path, mode)| check_permissions(path, *mode)));
    for disk in &found.disks {
        all.extend(check_disk(disk));
    }
    all.extend(found.stores.iter().map(|(path, state)| check_store(part, &path.display().to_string(), state)));
    all.extend(found.podman.as_ref().map(check_podman));
    all.extend(found.consoles.iter().flat_map(check_console));
    all.extend(found.open_files.map(|(may, needs, what)| check_open_files(may, needs, what)));
    all
}

pub(crate) fn check_permissions(path: &Path, mode: u32) -> CheckResult {
    let (path, mode) = (path.display(), mode & 0o777);
    problem(
        "permissions",
        format!("{path} has secrets and is readable by other users (mode {mode:o})"),
        format!("chmod 600 {path}; if other users may have read it, revoke what is in it"),
    )
}

fn check_process(process: ProcessState, found: &PartFacts) -> CheckResult {
    match process {
        ProcessState::Runs(pid) => fine("process", format!("runs (process {pid})")),
        ProcessState::Stopped if found.missing.is_some() || found.trouble.is_some() => {
            not_applicable("process", "it is not running, and cannot start yet")
        }
        ProcessState::Stopped => warning("process", "it is not running", format!("start it: {}", found.start)),
    }
}

fn check_agent(agent: &Result<AgentFacts, String>, version: &str) -> Vec<CheckResult> {
    let agent = match agent {
        Ok(agent) => agent,
        Err(error) => {
            return vec![problem(
                "agent's answer",
                format!("it is running and does not answer on its socket: {error}"),
                "as its user or root: systemctl restart muster-agent (units keep running)",
            )];
        }
    };
    let mut all = vec![if agent.version == version {
        fine("running version", &agent.version)
    } else {
        warning(
            "running version",
            format!("{} runs, and this program is {version}", agent.version),
            "restart the agent, so that the installed program runs (units keep running): systemctl restart muster-agent",
        )
    }];
    all.push(match agent.is_connected {
        true => fine("connection", "connected to the broker, as the only agent of this host"),
        false => problem(
            "connection",
            "it is not connected to the broker",
            "see the checks of broker and certificate below, and its log: journalctl -u muster-agent -n 50",
        ),
    });
    if let Some(protocol) = agent.later_protocol {
        all.push(problem(
            "console's protocol",
            format!(
                "the console uses protocol {protocol}, and this agent {PROTOCOL}: it ignores the console's commands"
            ),
            "upgrade the agent (units keep running)",
        ));
    }
    all
}

fn check_listener(setup: &ListenerSetup, state: &ListenerState, found: &PartFacts) -> CheckResult {
    let ListenerSetup { key, address } = setup;
    let runs = matches!(found.process, Some(ProcessState::Runs(_)));
    let other = format!("set another `{key}` in the configuration, or stop the other program (`ss -ltnp` shows it)");
    match (state, runs) {
        _ if address.port() == 0 => not_applicable("port", format!("{key}: a free one is taken at each start")),
        (ListenerState::Answers, true) => fine("port", format!("{key} {address} answers")),
        (ListenerState::Free, false) => fine("port", format!("{key} {address} is free")),
        (ListenerState::Answers, false) => problem("port", format!("{key} {address}: another program uses it"), other),
        (ListenerState::Free | ListenerState::Unusable(_), true) => problem(
            "port",
            format!("{key} {address}: nothing answers, although the role is running"),
            format!("its configuration has changed since it started, or it hangs; restart it: {}", found.start),
        ),
        (ListenerState::Unusable(error), false) => problem("port", format!("{key} {address}: {error}"), other),
    }
}

fn check_server(server: &ServerFacts, now_ms: Millis) -> Vec<CheckResult> {
    let (what, url) = (server.setup.what, &server.setup.url);
    let answer = match &server.reach {
        Reach::Answers(answer) => answer,
        Reach::Invalid => return vec![problem(what, format!("{url} is not a valid address"), &server.setup.remedy)],
        Reach::Unresolved(error) => {
            return vec![problem(
                what,
                format!("the name in {url} has no address: {error}"),
                "add the name to DNS or /etc/hosts, or set an address on the other side (`public_names`)",
            )];
        }
        Reach::Refused(error) => {
            return vec![problem(what, format!("cannot reach {url}: {error}"), &server.setup.remedy)];
        }
        Reach::NoTls(error) => {
            return vec![problem(
                what,
                format!("the server at {url} does not use TLS: {error}"),
                "another program listens there, or a proxy changes the connection; check the port",
            )];
        }
    };
    let mut all = vec![fine(what, format!("{url} answers"))];
    all.extend(check_answer(what, answer, now_ms));
    all
}

fn check_answer(what: &'static str, answer: &ServerAnswer, now_ms: Millis) -> Vec<CheckResult> {
    let mut all = Vec::new();
    // A clock that is far off makes a good certificate look bad, so it is named first.
    let is_clock_bad = answer.ahead_ms.is_some_and(|ahead_ms| ahead_ms.abs() >= CLOCK_PROBLEM_MS);
    all.extend(answer.ahead_ms.map(check_clock));
    if let Some((certificate, refusal)) = &answer.certificate {
        let judged = check_certificate("server certificate", certificate, now_ms);
        match refusal {
            Some(why) if judged.1 == Verdict::Ok => all.push(problem(
                "server certificate",
                format!("the certificate of the {what} is refused: {why}{}", names(certificate)),
                "if it is for other names, add them to `public_names` of the console (for a broker: `muster console issue --san`); if it is of another authority, this host is a member of another fleet: join again",
            )),
            Some(_) if is_clock_bad => all.push(problem(
                "server certificate",
                judged.2,
                "this machine's clock is wrong, see above: set it first",
            )),
            _ => all.push(judged),
        }
    }
    if let Some((status, text)) = &answer.ready {
        all.push(match status {
            200 => fine("console ready", text),
            _ => problem(
                "console ready",
                format!("{text} ({status})"),
                "start or repair that part; on the console's machine, `muster doctor` shows more",
            ),
        });
    }
    all
}

fn names(certificate: &CertificateFacts) -> String {
    match &certificate.content {
        Ok(content) if !content.names.is_empty() => format!("; it is for {}", content.names.join(", ")),
        _ => String::new(),
    }
}

fn check_clock(ahead_ms: Millis) -> CheckResult {
    let off_s = ahead_ms.abs() / 1_000;
    let words = if ahead_ms > 0 { "behind" } else { "ahead of" };
    let remedy = "set this machine's clock with `timedatectl set-ntp true`; if it is \
                  right, set the console's";
    match ahead_ms.abs() {
        ..CLOCK_WARNING_MS => fine("clock", "the same as the console's"),
        CLOCK_WARNING_MS..CLOCK_PROBLEM_MS => warning("clock", format!("{off_s} s {words} the console's"), remedy),
        _ => problem("clock", format!("{} {words} the console's", span(off_s)), remedy),
    }
}

/// Seconds in the largest unit that is not too coarse.
fn span(seconds: i64) -> String {
    match seconds {
        ..=119 => format!("{seconds} s"),
        120..=7_199 => format!("{} min", seconds / 60),
        7_200..=172_799 => format!("{} h", seconds / 3_600),
        _ => format!("{} d", seconds / 86_400),
    }
}

pub(crate) fn check_certificate(check: &'static str, one: &CertificateFacts, now_ms: Millis) -> CheckResult {
    let what = format!("{} ({})", one.what, one.place);
    let content = match &one.content {
        Ok(content) => content,
        Err(error) => return problem(check, format!("{what} cannot be read: {error}"), &one.remedy),
    };
    let CertificateContent { common_name, begins_ms, ends_ms, .. } = content;
    let left_ms = ends_ms - now_ms;
    if left_ms <= 0 {
        let ago = span(-left_ms / 1_000);
        return problem(check, format!("{what} of {common_name} expired {ago} ago"), &one.remedy);
    }
    if *begins_ms > now_ms {
        let ahead = span((begins_ms - now_ms) / 1_000);
        return problem(
            check,
            format!("{what} of {common_name} is not valid before {ahead} from now"),
            "this machine's clock is behind, or the clock of the machine that made the certificate was ahead",
        );
    }
    // Of a short-lived one a third is left when it is renewed.
    let early_ms = EXPIRY_WARNING_MS.min((ends_ms - begins_ms) / 5);
    if left_ms < early_ms {
        return warning(check, format!("{what} of {common_name} expires in {}", span(left_ms / 1_000)), &one.remedy);
    }
    fine(check, format!("{what} of {common_name}, {} left", span(left_ms / 1_000)))
}

pub(crate) fn check_revocation_list(path: &Path, due: &Result<Vec<Millis>, String>, now_ms: Millis) -> CheckResult {
    let (check, path) = ("revocation list", path.display());
    let remedy = "the console writes a new one when it starts, and every day; if it is on another machine, copy its revoked.pem from \
                  its data folder";
    let due = match due {
        Ok(due) => due.iter().min(),
        Err(error) => return problem(check, format!("{path} cannot be read: {error}"), remedy),
    };
    match due.map(|due_ms| due_ms - now_ms) {
        Some(left_ms) if left_ms <= 0 => {
            let ago = span(-left_ms / 1_000);
            warning(
                check,
                format!(
                    "{path} has been out of date for {ago}: clients that were revoked after it was made are admitted"
                ),
                remedy,
            )
        }
        Some(left_ms) => fine(check, format!("{path}, {} left", span(left_ms / 1_000))),
        None => fine(check, path.to_string()),
    }
}

fn check_broker(broker: &BrokerFacts) -> CheckResult {
    let check = BROKER_RULES;
    let remedy = "give the broker muster's permissions: `muster broker render --program BROKER --console main` writes them; \
                  topics below another prefix need the same `prefix` everywhere";
    let (refused, reads_others, publishes) = match broker {
        BrokerFacts::Connected { refused, reads_others, publishes } => (refused, *reads_others, *publishes),
        BrokerFacts::Refused(why) => {
            let usual = "if its certificate was revoked or has expired, join again (`muster token create --replace HOST`); else                          see the broker's log";
            let remedy = match pki::clock_hint(why) {
                Some(of_clock) => format!("{of_clock}; {usual}"),
                None => usual.to_owned(),
            };
            return problem(check, format!("the broker does not let this host in: {why}"), remedy);
        }
    };
    if !refused.is_empty() {
        return problem(check, format!("this host may not subscribe to {}", refused.join(", ")), remedy);
    }
    if publishes == Some(false) {
        return problem(check, "messages of this host do not arrive", remedy);
    }
    if reads_others {
        return warning(check, "this host may read what other hosts publish", remedy);
    }
    let publishes = if publishes.is_some() { ", publish" } else { "" };
    fine(check, format!("this host may subscribe{publishes}, and not read other hosts' messages"))
}

fn check_disk(disk: &DiskFacts) -> Vec<CheckResult> {
    let folder = disk.folder.display();
    let remedy =
        format!("free space on the file system of {folder} (`du -xh {folder} | sort -h | tail` shows what is large)");
    if let Some(error) = &disk.error {
        return vec![problem("disk", format!("{folder}: {error}"), "mount it, or correct `data_dir`")];
    }
    if disk.is_read_only {
        return vec![problem(
            "disk",
            format!("{folder} is mounted read-only"),
            "check the disk for errors (`dmesg | tail`), repair it, and mount it writable",
        )];
    }
    let percent = |free: u64, total: u64| free.saturating_mul(100) / total.max(1);
    let free = percent(disk.free_bytes, disk.total_bytes);
    let words = format!("{folder}: {} of {} free", size::print(disk.free_bytes), size::print(disk.total_bytes));
    let mut all = vec![match disk.free_bytes {
        ..DISK_PROBLEM_BYTES => problem("disk", words, &remedy),
        _ if free < 5 => warning("disk", words, &remedy),
        _ => fine("disk", words),
    }];
    if disk.total_inodes > 0 && percent(disk.free_inodes, disk.total_inodes) < 5 {
        let words = format!("{folder}: {} of {} inodes free", disk.free_inodes, disk.total_inodes);
        let remedy = format!("remove small files (`du --inodes -x {folder} | sort -n | tail` shows where they are)");
        all.push(match percent(disk.free_inodes, disk.total_inodes) {
            0 => problem("inodes", words, remedy),
            _ => warning("inodes", words, remedy),
        });
    }
    all
}

fn check_store(part: Part, path: &str, state: &StoreState) -> CheckResult {
    let check = "store";
    match state {
        StoreState::Whole => fine(check, format!("{path} is whole")),
        StoreState::Missing => not_applicable(check, format!("{path} does not exist yet")),
        StoreState::Unchecked(why) => warning(
            check,
            format!("{path} could not be checked: {why}"),
            "run this command as the role's user or as root",
        ),
        StoreState::OtherForm => problem(
            check,
            format!(
                "{path} was written by a build of muster from before its first release, whose stores are no longer supported"
            ),
            "use the build that wrote it, or stop with that build all that it runs, move the folder away, and start again",
        ),
        StoreState::Damaged(why) => problem(
            check,
            format!("{path} is damaged: {why}"),
            match part {
                Part::Agent => {
                    "check the disk, then restart the agent: it sets the store aside, and its state comes back from \
                     running units and the console"
                }
                _ => "check the disk, then restore the store from a backup",
            },
        ),
    }
}

/// One finding for each rule: a thousand hosts may have the same alert.
fn check_console(console: &ConsoleFacts) -> Vec<CheckResult> {
    let (check, name) = ("console alerts", &console.name);
    let alerts = match &console.alerts {
        Ok(alerts) if alerts.is_empty() => return vec![fine(check, format!("{name} has no alerts of its own"))],
        Ok(alerts) => alerts,
        Err(why) => return vec![not_applicable(check, format!("the alerts of {name} cannot be read: {why}"))],
    };
    let mut by_rule: BTreeMap<&str, Vec<&ConsoleAlertFacts>> = BTreeMap::new();
    for alert in alerts {
        by_rule.entry(&alert.rule).or_default().push(alert);
    }
    let finding = |(rule, of_rule): (&str, Vec<&ConsoleAlertFacts>)| {
        let first = of_rule.first()?;
        let about = match (&first.hostname, of_rule.len()) {
            (Some(host), 1) => format!(", about {host}"),
            (Some(host), count) => format!(", about {host} and {} others", count - 1),
            (None, _) => String::new(),
        };
        let message = Diagnostic { hint: None, ..first.told.clone() };
        let all = format!("`muster alert ls --rule {rule}` shows all of it");
        Some(warning(check, format!("{name}: {rule}{about}: {message:#}"), first.told.hint.clone().unwrap_or(all)))
    };
    by_rule.into_iter().filter_map(finding).collect()
}

fn check_podman(podman: &PodmanFacts) -> CheckResult {
    let remedy = "systemctl enable --now podman.socket, or set `containers.podman_socket`";
    match podman {
        PodmanFacts::Answers => fine("podman", "answers"),
        PodmanFacts::Missing(path) => {
            not_applicable("podman", format!("no socket {}; Podman's containers are not available", path.display()))
        }
        PodmanFacts::Silent(path, why) => problem("podman", format!("{}: {why}", path.display()), remedy),
    }
}

fn check_open_files(may: u64, needs: u64, what: &str) -> CheckResult {
    if may >= needs {
        return fine("open files", format!("{may}"));
    }
    warning(
        "open files",
        format!("at most {may} are allowed; {what} needs {needs}"),
        "raise the limit: LimitNOFILE=65536 in `systemctl edit` of the service, or `ulimit -n` before it is started",
    )
}

#[cfg(test)]
#[path = "check_tests.rs"]
mod tests;
