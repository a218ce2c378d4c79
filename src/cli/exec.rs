//! `muster exec`: run a program on hosts, and see what it prints.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, Read},
    path::{Path, PathBuf},
    time::Duration,
};

use clap::Args;
use muster_topics::{
    command::{Batch, Exec as ExecVerb, Keep, STDIN_MAX_BYTES, Verb},
    name::HostId,
    outcome::{Data, RefusalCode, Status},
    process::{Cores, Limits},
    select::Select,
    unit::Exit,
};

use self::printed::Printed;
use super::{Session, host, print, process::parse_bytes, target};
use crate::{
    api::{Command, CommandEvent, CommandHost, CommandState, Host, NewCommand, NewTarget},
    failure::{Failure, Kind},
};

mod batch;
mod printed;

/// Run a program on one, several or all hosts.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
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
    /// How long it may run before it is ended with everything that it started; time in a host's queue does not count
    #[arg(long, default_value = "60s", value_name = "TIME")]
    pub timeout: humantime::Duration,
    /// How long the command may wait for a host that is away, and there for its turn
    #[arg(long, default_value = "10m", value_name = "TIME")]
    pub expires: humantime::Duration,
    /// The user that it runs as, with all groups of that user
    #[arg(long)]
    pub user: Option<String>,
    /// Working directory
    #[arg(long, value_name = "DIR")]
    pub cwd: Option<String>,
    /// A variable of its environment; may be given several times. Not with --all, for every host would read it
    #[arg(long = "env", value_name = "K=V", value_parser = parse_variable)]
    pub env: Vec<(String, String)>,
    /// What it reads as standard input, up to 32 KiB; `-` for what this command reads itself. Not with --all
    #[arg(long, value_name = "FILE")]
    pub stdin: Option<PathBuf>,
    /// What is given is one line for /bin/sh -c, with pipes, wildcards and all
    #[arg(long)]
    pub shell: bool,
    /// What becomes of what it prints
    #[arg(long, value_enum, default_value_t = KeepArg::Stream, value_name = "WHAT")]
    pub stdout: KeepArg,
    /// What becomes of its complaints
    #[arg(long, value_enum, default_value_t = KeepArg::Stream, value_name = "WHAT")]
    pub stderr: KeepArg,
    /// How much of each stream is kept, such as 64K; the rest is dropped, and counted
    #[arg(long, value_name = "BYTES", default_value = "1M", value_parser = parse_bytes)]
    pub output_max: u64,
    /// How much of standard error is kept, if not as much
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    pub stderr_max: Option<u64>,
    /// The most memory, with everything that it forks, such as 64M; what takes more is killed
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    pub memory: Option<u64>,
    /// The most time of processors, such as 0.5
    #[arg(long, value_name = "CORES")]
    pub cpu: Option<Cores>,
    /// The most processes and threads
    #[arg(long, value_name = "COUNT")]
    pub pids: Option<u32>,
    /// End with the exit code of the one host's program
    #[arg(long)]
    pub passthrough: bool,
    /// Print the command's id and do not wait
    #[arg(long, conflicts_with = "passthrough")]
    pub no_wait: bool,
    /// It is to stay: make a unit of it that is never timed out, print the unit's name, and do not wait
    #[arg(long, conflicts_with_all = ["batch", "passthrough", "stdin"])]
    pub daemon: bool,
    /// Run the steps of this file, one after the other, until one does not succeed; `-` for standard input
    #[arg(long, value_name = "FILE", conflicts_with_all = ["argv", "shell", "stdin", "passthrough"])]
    pub batch: Option<PathBuf>,
    /// With --batch: go on after a step that does not succeed
    #[arg(long)]
    pub keep_going: bool,
    /// The program and its arguments, or with --shell one line
    #[arg(last = true, required_unless_present = "batch", value_name = "ARGV")]
    pub argv: Vec<String>,
}

const EXAMPLES: &str = "\
Examples:
  muster exec -- uname -a
  muster exec --all --timeout 10s -- df -h
  muster exec --select 'label.site=north' -- uptime
  muster exec --shell --host shop-7 -- 'journalctl -n 20 | grep error'
  muster exec --host shop-7 --user www-data --cwd /srv/www --env STAGE=test -- ./check.sh
  muster exec --host shop-7 --stdin new.conf --stdout drop -- tee /etc/shop.conf
  muster exec --batch update.yaml --host shop-7 --timeout 5m
  muster exec --daemon --host shop-7 -- tcpdump -i eth0 -w /tmp/trace
  muster exec --passthrough --host shop-7 -- test -e /etc/shop.conf && echo it is there

No shell is involved without --shell: each word reaches the program as it stands, and a `*` stays a `*`.
Of what it prints, `stream` shows what comes as it comes, `capture` all of it when the program has ended (fewer
messages), `drop` nothing: the program writes to /dev/null.
A batch is a list in YAML or JSON, at most 32 steps, each with `argv` or `shell`, and as needed cwd, env, user, stdin,
timeout and limits; what a step does not say is as on the command line:
  - argv: [systemctl, stop, shop]
  - shell: cp -a /srv/shop /srv/shop.$(date +%s)
    timeout: 10m
  - argv: [systemctl, start, shop]
    env: {STAGE: test}
What --daemon leaves running is a unit, default/exec-ID: `muster unit ls`, `muster yuno logs` and `muster yuno stop` know
it. It does not come back with its host, and is forgotten a day after it ended, or with `muster unit rm`.
A host runs only so many commands at once; more wait there for their turn, and `muster command ls` shows them as
queued. `muster command cancel ID` ends one, whether it waits or runs.
Exit codes: 0 every host's program succeeded, 1 one did not, 2 the command makes no sense, 3 refused, 4 the console
cannot be reached.";

/// What becomes of an output stream.
#[derive(clap::ValueEnum, Clone, Copy, Debug)]
pub enum KeepArg {
    /// Show it as it comes
    Stream,
    /// Show it when the program has ended
    Capture,
    /// Nobody wants it
    Drop,
}

impl From<KeepArg> for Keep {
    fn from(arg: KeepArg) -> Self {
        match arg {
            KeepArg::Stream => Self::Stream,
            KeepArg::Capture => Self::Capture,
            KeepArg::Drop => Self::Drop,
        }
    }
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
    let verb = match &exec.batch {
        // The parser does not see it: a batch is in conflict with what is given.
        None if exec.keep_going => {
            return Err(Failure::new(Kind::Usage, "--keep-going is about the steps of a --batch"));
        }
        None => Verb::Exec(wanted(&exec)?),
        Some(file) => {
            let steps = batch::read(file, &wanted(&exec)?)?;
            Verb::Batch(Batch { steps, keep_going: exec.keep_going })
        }
    };
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
    let wanted = NewCommand { target, expires_in_ms: Some(millis(exec.expires.into())), verb };
    let command: Command = session.client.post("commands", &wanted).await?;
    if exec.no_wait {
        return print::write_out(&format!("{}\n", command.id));
    }
    let hosts = follow(session, &command).await?;
    if exec.daemon && hosts.iter().any(is_success) {
        print::write_out(&format!("default/exec-{}\n", command.id))?;
    }
    for lines in hosts.iter().filter_map(|host| batch::lines(host, command.verb.execs())) {
        print::say(lines.trim_end());
    }
    summarise(&hosts);
    verdict(&hosts, exec.passthrough)
}

/// What is to be run.
fn wanted(exec: &Exec) -> Result<ExecVerb, Failure> {
    let (argv, shell) = match (exec.shell, &exec.argv[..]) {
        (false, argv) => (argv.to_vec(), None),
        (true, [line]) => (Vec::new(), Some(line.clone())),
        (true, _) => {
            let message = "--shell takes one line, and there are several words";
            return Err(Failure::new(Kind::Usage, message).hint("put the whole line into quotes: -- 'a | b'"));
        }
    };
    Ok(ExecVerb {
        shell,
        cwd: exec.cwd.clone(),
        env: exec.env.iter().cloned().collect(),
        user: exec.user.clone(),
        stdin: exec.stdin.as_deref().map(stdin).transpose()?,
        limits: Limits { memory_bytes: exec.memory, cpu: exec.cpu, pids: exec.pids },
        stdout: exec.stdout.into(),
        stderr: exec.stderr.into(),
        output_max_bytes: exec.output_max,
        stderr_max_bytes: exec.stderr_max,
        daemon: exec.daemon,
        ..ExecVerb::new(argv, if exec.daemon { 0 } else { millis(exec.timeout.into()) })
    })
}

/// What a program is to read. No more is read here than a command can bring, however long the file is.
fn stdin(path: &Path) -> Result<Data, Failure> {
    let failed = |error: io::Error| Failure::new(Kind::Usage, format!("{} cannot be read: {error}", path.display()));
    let source: Box<dyn Read> = match path.to_str() {
        Some("-") => Box::new(io::stdin().lock()),
        _ => Box::new(File::open(path).map_err(failed)?),
    };
    let mut bytes = Vec::new();
    source.take(STDIN_MAX_BYTES as u64 + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() > STDIN_MAX_BYTES {
        let limit = print::bytes(STDIN_MAX_BYTES as u64);
        let message = format!("{} has more than the {limit} that a command can bring", path.display());
        return Err(Failure::new(Kind::Usage, message).hint("put what is large into an artifact, or onto the host"));
    }
    Ok(Data::signed(&bytes))
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
    let cut: Vec<String> = [("stdout", &outcome.stdout), ("stderr", &outcome.stderr)]
        .into_iter()
        .filter(|(_, output)| output.dropped_bytes > 0)
        .map(|(word, output)| format!("{word} was cut: {} more were dropped", print::bytes(output.dropped_bytes)))
        .collect();
    let cut = (!cut.is_empty()).then(|| cut.join("; "));
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
        Status::Batch { steps } => match (1..).zip(steps).find(|(_, step)| !step.status.is_success()) {
            Some((number, step)) => format!("step {number}: {}", self::status(&step.status)),
            None => format!("{} steps done", steps.len()),
        },
        Status::Cancelled => "cancelled".to_owned(),
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
    use muster_topics::outcome::{Outcome, Output};

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

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        exec: Exec,
    }

    fn parsed(words: &[&str]) -> Result<ExecVerb, Failure> {
        wanted(&<Line as clap::Parser>::try_parse_from([&["exec"], words].concat()).unwrap().exec)
    }

    #[test]
    fn options_are_what_the_host_is_asked_for() {
        let plain = parsed(&["--", "a", "b c"]).unwrap();
        assert_eq!(plain, ExecVerb::new(vec!["a".to_owned(), "b c".to_owned()], 60_000));
        let shell = parsed(&["--shell", "--stdout", "capture", "--stderr", "drop", "--", "a | b"]).unwrap();
        assert_eq!((shell.shell.as_deref(), shell.argv.len()), (Some("a | b"), 0));
        assert_eq!((shell.stdout, shell.stderr), (Keep::Capture, Keep::Drop));
        let limits = parsed(&["--output-max", "2K", "--stderr-max", "5", "--", "a"]).unwrap();
        assert_eq!((limits.output_max_bytes, limits.stderr_max_bytes), (2_048, Some(5)));
        let words = parsed(&["--shell", "--", "a", "b"]).unwrap_err();
        assert_eq!(words.kind.code(), 2);
    }

    #[test]
    fn what_is_read_is_bounded() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let path = file.path().to_str().unwrap();
        std::fs::write(path, vec![b'\n'; STDIN_MAX_BYTES]).unwrap();
        let data = parsed(&["--stdin", path, "--", "cat"]).unwrap().stdin.unwrap();
        assert_eq!(data.to_bytes().unwrap().len(), STDIN_MAX_BYTES);
        std::fs::write(path, vec![b'\n'; STDIN_MAX_BYTES + 1]).unwrap();
        for path in [path, "/dev/zero", "/no/such/file"] {
            let failure = parsed(&["--stdin", path, "--", "cat"]).unwrap_err();
            assert!(failure.kind == Kind::Usage && failure.message.as_ref().unwrap().contains(path), "{failure:?}");
        }
    }

    #[test]
    fn variables() {
        assert_eq!(parse_variable("A=b=c"), Ok(("A".to_owned(), "b=c".to_owned())));
        assert!(parse_variable("A").is_err() && parse_variable("=b").is_err());
    }
}
