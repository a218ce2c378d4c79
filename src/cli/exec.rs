//! `muster exec`: run a program on hosts, and see what it prints.

use std::{collections::BTreeMap, time::Duration};

use clap::Args;
use muster_topics::{
    command::{Exec as ExecVerb, Verb, output_max_bytes},
    name::HostId,
    outcome::{Outcome, RefusalCode, Status, Stream},
    select::Select,
    unit::Exit,
};

use super::{Session, host, print, target};
use crate::{
    api::{Command, CommandEvent, CommandHost, CommandState, Host, NewCommand, NewTarget},
    failure::{Failure, Kind},
};

/// Run a program on one, several or all hosts.
#[derive(Args, Clone, Debug)]
#[command(after_help = "Examples:\n  muster exec -- uname -a\n  muster exec --all --timeout 10s -- df -h\n  \
                        muster exec --select 'label.site=north' -- uptime\n  \
                        muster exec --host shop-7 -- sh -c 'journalctl -n 20 | grep error'\n\nNo shell is involved \
                        unless you name one. Exit codes: 0 every host's program succeeded, 1 one did not, \
                        3 refused, 4 the console cannot be reached.")]
pub struct Exec {
    /// A host, by id or hostname; may be given several times
    #[arg(long = "host", value_name = "HOST")]
    pub hosts: Vec<String>,
    /// Every host of the fleet
    #[arg(long, conflicts_with_all = ["hosts", "passthrough"])]
    pub all: bool,
    /// The hosts that this picks, such as 'realm=prod and label.tier=gold'; fields are host, realm and label.NAME
    #[arg(long, value_name = "EXPRESSION", conflicts_with_all = ["hosts", "all"])]
    pub select: Option<Select>,
    /// How long it may run before it is ended with everything that it started
    #[arg(long, default_value = "60s", value_name = "TIME")]
    pub timeout: humantime::Duration,
    /// How long the command may wait for a host that is away
    #[arg(long, default_value = "10m", value_name = "TIME")]
    pub expires: humantime::Duration,
    /// The user that it runs as
    #[arg(long)]
    pub user: Option<String>,
    /// Working directory
    #[arg(long, value_name = "DIR")]
    pub cwd: Option<String>,
    /// A variable of its environment; may be given several times
    #[arg(long = "env", value_name = "K=V", value_parser = parse_variable)]
    pub env: Vec<(String, String)>,
    /// End with the exit code of the one host's program
    #[arg(long)]
    pub passthrough: bool,
    /// Print the command's id and do not wait
    #[arg(long, conflicts_with = "passthrough")]
    pub no_wait: bool,
    /// The program and its arguments
    #[arg(last = true, required = true, value_name = "ARGV")]
    pub argv: Vec<String>,
}

/// `K=V`, as in an environment.
///
/// # Errors
/// If it is not of that form.
pub fn parse_variable(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("NAME=VALUE is wanted".to_owned()),
    }
}

/// Does it.
///
/// # Errors
/// If it cannot be done, or a program did not succeed.
pub async fn run(exec: Exec, session: &Session) -> Result<(), Failure> {
    let target = match (&exec.select, exec.all, exec.hosts.is_empty()) {
        (Some(select), ..) => {
            let hosts: Vec<Host> = session.client.get("hosts", &[]).await?;
            NewTarget::Hosts(target::select_hosts(&hosts, select)?)
        }
        (None, true, _) => NewTarget::All,
        (None, false, false) => NewTarget::Hosts(exec.hosts.clone()),
        (None, false, true) => NewTarget::Hosts(vec![host::one(session, None).await?]),
    };
    if exec.passthrough && matches!(&target, NewTarget::Hosts(hosts) if hosts.len() > 1) {
        return Err(Failure::new(Kind::Usage, "--passthrough needs exactly one host"));
    }
    let verb = Verb::Exec(ExecVerb {
        argv: exec.argv,
        cwd: exec.cwd,
        env: exec.env.into_iter().collect(),
        user: exec.user,
        timeout_ms: millis(exec.timeout.into()),
        output_max_bytes: output_max_bytes(),
    });
    let wanted = NewCommand { target, expires_in_ms: Some(millis(exec.expires.into())), verb };
    let command: Command = session.client.post("commands", &wanted).await?;
    if exec.no_wait {
        return print::write_out(&format!("{}\n", command.id));
    }
    let hosts = follow(session, &command).await?;
    summarise(&hosts);
    verdict(&hosts, exec.passthrough)
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Prints a command's output as it comes, until every host has its outcome or is missing.
///
/// # Errors
/// If the console cannot be reached.
pub async fn follow(session: &Session, command: &Command) -> Result<Vec<CommandHost>, Failure> {
    follow_into(session, command, &mut Printed::new(&command.hosts)).await
}

/// The same, with a name of one's own before each line.
///
/// # Errors
/// As [`follow`].
pub async fn follow_named(session: &Session, command: &Command, name: &str) -> Result<Vec<CommandHost>, Failure> {
    let names = command.hosts.iter().map(|host| (host.host, format!("{name} | "))).collect();
    follow_into(session, command, &mut Printed { names, ..Printed::new(&command.hosts) }).await
}

/// Keeps the standard output of a command on one host, for whoever is to read it, until that has its outcome.
///
/// # Errors
/// As [`follow`].
pub async fn collect(session: &Session, command: &Command) -> Result<(Vec<CommandHost>, Vec<u8>), Failure> {
    let mut output = Printed { kept: Some(Vec::new()), ..Printed::new(&command.hosts) };
    let hosts = follow_into(session, command, &mut output).await?;
    Ok((hosts, output.kept.unwrap_or_default()))
}

async fn follow_into(session: &Session, command: &Command, output: &mut Printed) -> Result<Vec<CommandHost>, Failure> {
    let goes_on = |failure: Failure| match failure.kind {
        Kind::Unreachable => {
            failure.hint(format!("the command goes on; `muster command show {}` tells what became of it", command.id))
        }
        _ => failure,
    };
    let mut events = session.client.events(&format!("commands/{}/events", command.id)).await.map_err(goes_on)?;
    let mut hosts: BTreeMap<HostId, CommandHost> = command.hosts.iter().map(|host| (host.host, host.clone())).collect();
    let mut told = false;
    loop {
        let next = tokio::time::timeout(SILENCE, events.next()).await;
        let event = match next {
            Ok(event) => event.map_err(goes_on)?,
            // Nothing is lost with the time limit: what has come stays with the stream.
            Err(_) => {
                if !std::mem::replace(&mut told, true) {
                    tell_waiting(command, hosts.values());
                }
                continue;
            }
        };
        let Some(event) = event else { break };
        match event {
            CommandEvent::Output { host, stream, offset_bytes, data } => {
                output.take(host, stream, offset_bytes, data.to_bytes().unwrap_or_default())?;
            }
            CommandEvent::Host(host) => {
                if let Some(received) = &host.outcome {
                    output.rest(host.host, &received.value)?;
                }
                hosts.insert(host.host, host);
            }
            CommandEvent::End => {
                output.end()?;
                return Ok(hosts.into_values().collect());
            }
        }
    }
    Err(goes_on(Failure::new(Kind::Unreachable, "the console ended the connection")))
}

/// After this much silence people are told whom the command waits for.
const SILENCE: Duration = Duration::from_secs(3);

/// Names of hosts that one line may hold.
const NAMED_MAX: usize = 5;

fn tell_waiting<'a>(command: &Command, hosts: impl Iterator<Item = &'a CommandHost>) {
    let waiting: Vec<&str> =
        hosts.filter(|host| host.state == CommandState::Waiting).map(|host| host.hostname.as_str()).collect();
    if waiting.is_empty() {
        return;
    }
    let named = waiting.iter().take(NAMED_MAX).copied().collect::<Vec<_>>().join(", ");
    let more =
        if waiting.len() > NAMED_MAX { format!(" and {} more", waiting.len() - NAMED_MAX) } else { String::new() };
    let until = print::age(command.expires_ms, crate::clock::now_ms());
    print::say(format_args!("waiting for {named}{more}; the command expires {until} (Ctrl-C leaves it to wait)"));
}

/// What has been printed of each stream. Pieces come in any order, and more than once.
struct Printed {
    /// Names before lines, where there is more than one host.
    names: BTreeMap<HostId, String>,
    streams: BTreeMap<(HostId, Stream), Position>,
    /// Standard output that is not to be printed.
    kept: Option<Vec<u8>>,
}

#[derive(Default)]
struct Position {
    /// Up to here everything has come.
    at_bytes: u64,
    /// Pieces that came before those that stand before them.
    early: BTreeMap<u64, Vec<u8>>,
    /// A line whose end has not come yet, where lines have names before them.
    line: Vec<u8>,
}

impl Printed {
    fn new(hosts: &[CommandHost]) -> Self {
        let several = hosts.len() > 1;
        let width = hosts.iter().map(|host| host.hostname.len()).max().unwrap_or(0);
        let name = |host: &CommandHost| (host.host, format!("{:width$} | ", host.hostname));
        Self { names: hosts.iter().filter(|_| several).map(name).collect(), streams: BTreeMap::new(), kept: None }
    }

    fn take(&mut self, host: HostId, stream: Stream, offset_bytes: u64, bytes: Vec<u8>) -> Result<(), Failure> {
        let position = self.streams.entry((host, stream)).or_default();
        position.early.insert(offset_bytes, bytes);
        while let Some(entry) = position.early.first_entry() {
            if *entry.key() > position.at_bytes {
                break;
            }
            let (start, bytes) = entry.remove_entry();
            let known = usize::try_from(position.at_bytes - start).unwrap_or(usize::MAX);
            if let Some(fresh) = bytes.get(known..) {
                position.at_bytes += fresh.len() as u64;
                match &mut self.kept {
                    Some(kept) if stream == Stream::Stdout => kept.extend_from_slice(fresh),
                    _ => write(self.names.get(&host), stream, &mut position.line, fresh)?,
                }
            }
        }
        Ok(())
    }

    fn rest(&mut self, host: HostId, outcome: &Outcome) -> Result<(), Failure> {
        for (stream, output) in [(Stream::Stdout, &outcome.stdout), (Stream::Stderr, &outcome.stderr)] {
            if let Some(rest) = &output.rest {
                self.take(host, stream, output.sent_bytes, rest.to_bytes().unwrap_or_default())?;
            }
        }
        Ok(())
    }

    /// Prints lines that had no end.
    fn end(&mut self) -> Result<(), Failure> {
        for ((host, stream), position) in &mut self.streams {
            if !position.line.is_empty() {
                position.line.push(b'\n');
                let line = std::mem::take(&mut position.line);
                write(self.names.get(host), *stream, &mut position.line, &line)?;
            }
        }
        Ok(())
    }
}

/// Writes bytes as they are, or line by line with a name before each.
fn write(name: Option<&String>, stream: Stream, line: &mut Vec<u8>, bytes: &[u8]) -> Result<(), Failure> {
    let Some(name) = name else { return write_stream(stream, bytes) };
    line.extend_from_slice(bytes);
    let Some(end) = line.iter().rposition(|byte| *byte == b'\n') else { return Ok(()) };
    let whole: Vec<u8> = line.drain(..=end).collect();
    let named = whole.split_inclusive(|byte| *byte == b'\n').flat_map(|line| [name.as_bytes(), line]).flatten();
    write_stream(stream, &named.copied().collect::<Vec<u8>>())
}

fn write_stream(stream: Stream, bytes: &[u8]) -> Result<(), Failure> {
    use std::io::Write;
    match stream {
        Stream::Stdout => print::write_bytes(bytes),
        Stream::Stderr => {
            // If standard error is gone there is nobody to tell.
            let _ = std::io::stderr().lock().write_all(bytes);
            Ok(())
        }
    }
}

/// Says what did not go well, and, of several hosts, how many did.
fn summarise(hosts: &[CommandHost]) {
    for host in hosts {
        if let Some(words) = complaint(host) {
            print::say(format_args!("{}: {words}", host.hostname));
        }
    }
    if hosts.len() > 1 {
        let count = |wanted: fn(&CommandHost) -> bool| hosts.iter().filter(|host| wanted(host)).count();
        let (ok, missing) = (count(is_success), count(|host| host.state == CommandState::Missing));
        print::say(format_args!(
            "{} hosts: {ok} ok, {} failed, {missing} missing",
            hosts.len(),
            hosts.len() - ok - missing
        ));
    }
}

fn is_success(host: &CommandHost) -> bool {
    host.outcome.as_ref().is_some_and(|outcome| outcome.value.status.is_success())
}

/// What did not go well on a host, in words.
#[must_use]
pub fn complaint(host: &CommandHost) -> Option<String> {
    let Some(received) = &host.outcome else {
        return Some("no answer before the command expired".to_owned());
    };
    let outcome = &received.value;
    let dropped = outcome.stdout.dropped_bytes + outcome.stderr.dropped_bytes;
    let cut = (dropped > 0).then(|| format!("output was cut: {} were dropped", print::bytes(dropped)));
    let status = (!outcome.status.is_success()).then(|| status(&outcome.status));
    match (status, cut) {
        (Some(status), Some(cut)) => Some(format!("{status}; {cut}")),
        (status, cut) => status.or(cut),
    }
}

/// How a command ended, in words.
#[must_use]
pub fn status(status: &Status) -> String {
    match status {
        Status::Exited { exit: Exit::Unknown } => "ended, and nobody saw how".to_owned(),
        Status::Exited { exit } => format!("ended with {exit}"),
        Status::TimedOut => "timed out and was ended".to_owned(),
        Status::Applied { generation, .. } => format!("generation {generation} is desired"),
        Status::Completed => "done".to_owned(),
        Status::Refused { message, .. } => format!("refused: {message}"),
        Status::Failed { message } => format!("failed: {message}"),
        Status::Lost => "lost: what became of it cannot be known; it is not run again".to_owned(),
    }
}

/// The failure that the outcomes amount to, if any.
///
/// # Errors
/// If not every host succeeded.
pub fn verdict(hosts: &[CommandHost], passthrough: bool) -> Result<(), Failure> {
    if let ([CommandHost { outcome: Some(outcome), .. }], true) = (hosts, passthrough) {
        match outcome.value.status {
            Status::Exited { exit: Exit::Code(0) } => return Ok(()),
            Status::Exited { exit: Exit::Code(code) } => {
                return Err(Failure::silent(Kind::Code(u8::try_from(code).unwrap_or(1))));
            }
            // As a shell has it.
            Status::Exited { exit: Exit::Signal(signal) } => {
                return Err(Failure::silent(Kind::Code(u8::try_from(128 + signal).unwrap_or(1))));
            }
            _ => {}
        }
    }
    let denied = |host: &CommandHost| {
        matches!(
            host.outcome.as_ref().map(|outcome| &outcome.value.status),
            Some(Status::Refused { code: RefusalCode::Denied, .. })
        )
    };
    match hosts {
        hosts if hosts.iter().all(is_success) => Ok(()),
        hosts if hosts.iter().all(denied) => Err(Failure::silent(Kind::Refused)),
        _ => Err(Failure::silent(Kind::Failed)),
    }
}

#[cfg(test)]
mod tests {
    use muster_topics::outcome::Output;

    use super::*;
    use crate::api::Received;

    fn host(id: u128, status: Option<Status>) -> CommandHost {
        let outcome = status.map(|status| Outcome {
            status,
            started_ms: None,
            finished_ms: 0,
            stdout: Output::default(),
            stderr: Output::default(),
        });
        CommandHost {
            host: HostId(uuid::Uuid::from_u128(id)),
            hostname: format!("host-{id}"),
            state: if outcome.is_some() { CommandState::Done } else { CommandState::Missing },
            outcome: outcome.map(|value| Received { at_ms: 0, value }),
        }
    }

    #[track_caller]
    fn check(statuses: Vec<Option<Status>>, passthrough: bool, code: u8) {
        let hosts: Vec<_> = statuses.into_iter().zip(1..).map(|(status, id)| host(id, status)).collect();
        assert_eq!(verdict(&hosts, passthrough).err().map_or(0, |failure| failure.kind.code()), code);
    }

    #[test]
    fn exit_codes() {
        let exited = |code| Some(Status::Exited { exit: Exit::Code(code) });
        let refused = |code| Some(Status::Refused { code, message: String::new() });
        check(vec![exited(0), exited(0)], false, 0);
        check(vec![exited(0), exited(7)], false, 1);
        check(vec![exited(7)], true, 7);
        check(vec![Some(Status::Exited { exit: Exit::Signal(9) })], true, 137);
        check(vec![Some(Status::TimedOut)], true, 1);
        check(vec![refused(RefusalCode::Denied)], false, 3);
        check(vec![refused(RefusalCode::NotFound)], false, 1);
        check(vec![exited(0), None], false, 1);
    }

    #[test]
    fn pieces_find_their_order() {
        let one = host(1, None);
        let mut printed = Printed::new(std::slice::from_ref(&one));
        for (offset, piece) in [(2, "cd"), (2, "cd"), (0, "ab"), (3, "de")] {
            printed.take(one.host, Stream::Stderr, offset, piece.into()).unwrap();
        }
        let position = &printed.streams[&(one.host, Stream::Stderr)];
        assert_eq!((position.at_bytes, position.early.len()), (5, 0));
    }

    #[test]
    fn variables() {
        assert_eq!(parse_variable("A=b=c"), Ok(("A".to_owned(), "b=c".to_owned())));
        assert!(parse_variable("A").is_err() && parse_variable("=b").is_err());
    }
}
