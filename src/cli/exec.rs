//! `muster exec`: runs a program on hosts, and prints its output; `muster unit exec`: runs one in the containers of units.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, Read},
    path::{Path, PathBuf},
    time::Duration,
};

use clap::Args;
use muster_api::{Command, CommandState, NewCommand, NewTarget};
use muster_base::failure::{Failure, FailureKind};
use muster_topics::{
    command::{Batch, Exec as ExecVerb, Keep, STDIN_MAX_BYTES, Verb},
    diagnostic::Diagnostic,
    name::{Name, UnitName},
    outcome::Data,
    process::{Cores, Limits},
    select::HostSelect,
};

use super::{
    environment::EnvironmentArgs,
    host_lookup, print,
    session::CliSession,
    target::{self, Noun},
    unit_targets::{UnitTargets, candidates, pick},
};
use muster_api::host_names::tell_apart;

mod batch;

use super::command_verdict::{is_success, summarise};
use super::{command_output::StreamPrinter, command_verdict::verdict};

use super::command_follower::follow_into;
pub use super::command_follower::{collect, follow, follow_log, follow_there, look, waits};

/// Run a program on one, several or all hosts.
#[derive(Args, Clone, Debug)]
#[command(after_long_help = notes(HOSTS, DAEMONS))]
pub struct ExecArgs {
    /// Host, by id or hostname; repeatable [default: the only one]
    #[arg(long = "host", value_name = "HOST")]
    pub hosts: Vec<String>,
    /// Hosts that this selects, such as 'label.tier=gold'
    ///
    /// `muster --help` has the fields.
    #[arg(long, value_name = "EXPRESSION", conflicts_with = "hosts")]
    pub select: Option<HostSelect>,
    /// Every host of the fleet
    #[arg(long, conflicts_with_all = ["hosts", "select", "passthrough"])]
    pub all: bool,
    /// The program
    #[command(flatten)]
    pub program: ProgramArgs,
}

/// Run a program in the containers of units.
#[derive(Args, Clone, Debug)]
#[command(after_long_help = notes(CONTAINERS, ""))]
pub struct UnitExecArgs {
    /// Which units
    #[command(flatten)]
    pub which: UnitTargets,
    /// The program
    #[command(flatten)]
    pub program: ProgramArgs,
}

/// A program, how it is run, and what becomes of its output.
#[derive(Args, Clone, Debug)]
pub struct ProgramArgs {
    /// End the program and its children after this time
    ///
    /// Time in a host's queue does not count.
    #[arg(long, default_value = "60s", value_name = "TIME")]
    pub timeout: humantime::Duration,
    /// Give up on a host that is offline or busy for so long
    #[arg(long, default_value = "10m", value_name = "TIME")]
    pub expires: humantime::Duration,
    /// Wait for offline hosts too
    ///
    /// They get the command when they are online again in any case.
    #[arg(long, conflicts_with = "no_wait")]
    pub wait_offline: bool,
    /// User that it runs as, with all groups of that user
    #[arg(long)]
    pub user: Option<String>,
    /// Working directory
    #[arg(long, value_name = "DIR")]
    pub cwd: Option<String>,
    /// Its environment
    #[command(flatten)]
    pub environment: EnvironmentArgs,
    /// File for its standard input, up to 32 KiB; `-` for this one's
    ///
    /// Not with `muster exec --all`, for every host would read it.
    #[arg(long, value_name = "FILE")]
    pub stdin: Option<PathBuf>,
    /// Run one line with /bin/sh -c, with pipes and wildcards
    #[arg(long)]
    pub shell: bool,
    /// What to do with its standard output
    #[arg(long, value_enum, default_value_t = KeepArg::Stream, value_name = "WHAT")]
    pub stdout: KeepArg,
    /// What to do with its standard error
    #[arg(long, value_enum, default_value_t = KeepArg::Stream, value_name = "WHAT")]
    pub stderr: KeepArg,
    /// Keep so much of each stream, such as 64K
    ///
    /// The rest is dropped, and counted.
    #[arg(long, value_name = "BYTES", default_value = "1M", value_parser = muster_topics::size::parse)]
    pub output_max: u64,
    /// Keep so much of standard error [default: --output-max]
    #[arg(long, value_name = "BYTES", value_parser = muster_topics::size::parse)]
    pub stderr_max: Option<u64>,
    /// Memory for it and its children, such as 64M
    ///
    /// It is killed if it takes more.
    #[arg(long, value_name = "BYTES", value_parser = muster_topics::size::parse)]
    pub memory: Option<u64>,
    /// Processors, such as 0.5
    #[arg(long, value_name = "CORES")]
    pub cpu: Option<Cores>,
    /// Processes and threads
    #[arg(long, value_name = "COUNT")]
    pub pids: Option<u32>,
    /// Exit with the exit code of the program (one host only)
    #[arg(long)]
    pub passthrough: bool,
    /// Print the command's id, and do not wait
    #[arg(long, conflicts_with = "passthrough")]
    pub no_wait: bool,
    /// Leave it running as a unit, and print the unit's name
    ///
    /// It is never timed out.
    #[arg(long, conflicts_with_all = ["batch", "passthrough", "stdin"])]
    pub daemon: bool,
    /// Run the steps of this file until one fails; `-` is stdin
    #[arg(long, value_name = "FILE", conflicts_with_all = ["argv", "shell", "stdin", "passthrough"])]
    pub batch: Option<PathBuf>,
    /// With --batch: go on after a step that fails
    #[arg(long)]
    pub keep_going: bool,
    /// Program and arguments, or one line with --shell
    #[arg(last = true, required_unless_present = "batch", value_name = "ARGV")]
    pub argv: Vec<String>,
}

/// What `--help` says of hosts.
const HOSTS: &str = "\
Targets: a selector and --all are one message that every host reads; a label alone (--select label.canary) is one that only \
the hosts with the label read. The console expects outcomes of the \
hosts that it knows to match; each host decides by its own state at that moment. With --env, --env-file, --stdin or \
--passthrough the selected hosts are named one by one instead; these cannot be with --all, for every host would read them.";

/// What `--help` says of containers.
const CONTAINERS: &str = "\
Containers: program, folder and user are those inside; without --user it is the user of the container's first process. \
The container's limits hold, those of --memory, --cpu and --pids lie below them, and at the end every process of the \
command is ended. A container that does not run is not started for it, and what --daemon leaves running ends with it. Only units that are containers have this verb.";

/// What `--help` says of programs that go on.
const DAEMONS: &str = "\
Daemons: --daemon makes a unit, default/exec-ID, for `muster unit ls`, `muster unit logs` and `muster unit stop`. It \
is never timed out, and not started again after a reboot of its host. It is removed a day after it ended, or by \
`muster unit rm`.

";

/// What `--help` says after the options.
fn notes(first: &str, daemons: &str) -> String {
    format!("{first}\n\n{PROGRAM}\n\n{daemons}{QUEUES}")
}

/// What `--help` says of any program.
const PROGRAM: &str = "\
Offline hosts: of several hosts only the online ones are waited for. The offline ones are named at once: they get the \
command when they are online again, until it expires (`muster command show ID`), and count as not done. \
--wait-offline waits for them. At the end the hosts that did not succeed are counted and named: failed, timed out, \
refused, or missing, which means that no outcome came before the command expired.

Program: no shell is involved without --shell; each word reaches the program as it stands, and a `*` stays a `*`. Of \
its output, `stream` shows what comes as it comes, `capture` all of it when the program has ended (fewer messages), \
`drop` nothing: the program writes to /dev/null.

Batches: a list in YAML or JSON, at most 32 steps, each with `argv` or `shell`, and as needed container, cwd, env, \
user, stdin, timeout and limits; what a step does not say is as on the command line:
  - argv: [systemctl, stop, shop]
  - shell: cp -a /srv/shop /srv/shop.$(date +%s)
    timeout: 10m
  - argv: [systemctl, start, shop]
    env: {STAGE: test}";

/// What `--help` says of queues and data.
const QUEUES: &str = "\
Queues: a host runs only so many commands at once; more wait there, and `muster command ls` shows them as queued. \
`muster command cancel ID` ends one, whether it waits or runs.

With -o json each line of the output is an object, by its `event`: first the `command`, then `output` as it comes, and \
each `host` with its outcome.";

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

/// Runs a program on hosts.
///
/// # Errors
/// If it fails, or if a program was not successful.
pub async fn run(exec: ExecArgs, session: &CliSession) -> Result<(), Failure> {
    let verb = exec.program.verb(None)?;
    let target = resolve_target(&exec, &verb, session).await?;
    perform(&exec.program, verb, target, session).await
}

/// Runs a program in the containers of units. Those of one name are one command to their hosts.
///
/// # Errors
/// If it fails, or if a program was not successful.
pub async fn run_inside(exec: UnitExecArgs, noun: Noun, session: &CliSession) -> Result<(), Failure> {
    let all = candidates(session, &exec.which).await?;
    let mut hosts: BTreeMap<UnitName, Vec<String>> = BTreeMap::new();
    let picked = pick(&all, &exec.which, noun.verb("exec"))?;
    for unit in &picked {
        hosts.entry(unit.unit.clone()).or_default().push(unit.host.to_string());
    }
    if exec.program.passthrough && picked.len() > 1 {
        return Err(Failure::new(FailureKind::Usage, "--passthrough needs exactly one unit"));
    }
    if let ([wanted], [unit]) = (&exec.which.units[..], &picked[..]) {
        target::say_host(wanted, &exec.which.hosts, unit);
    }
    let mut failed = None;
    for (unit, hosts) in hosts {
        let verb = exec.program.verb(Some(&unit))?;
        if let Err(failure) = perform(&exec.program, verb, NewTarget::Hosts(hosts), session).await {
            failed.get_or_insert(failure);
        }
    }
    failed.map_or(Ok(()), Err)
}

impl ProgramArgs {
    /// The request, in the container of a unit if there is one.
    fn verb(&self, container: Option<&UnitName>) -> Result<Verb, Failure> {
        match &self.batch {
            // The parser of the command line does not check this, because a batch conflicts with a given option.
            None if self.keep_going => {
                Err(Failure::new(FailureKind::Usage, "--keep-going is about the steps of a --batch"))
            }
            None => Ok(Verb::Exec(wanted(self, container)?)),
            Some(file) => {
                let steps = batch::read(file, &wanted(self, container)?)?;
                Ok(Verb::Batch(Batch { steps, keep_going: self.keep_going }))
            }
        }
    }
}

/// Sends the request, and follows it.
async fn perform(exec: &ProgramArgs, verb: Verb, target: NewTarget, session: &CliSession) -> Result<(), Failure> {
    if exec.passthrough && matches!(&target, NewTarget::Hosts(hosts) if hosts.len() > 1) {
        return Err(Failure::new(FailureKind::Usage, "--passthrough needs exactly one host"));
    }
    let wanted = NewCommand { target, expires_in_ms: Some(millis(exec.expires.into())), verb, copied_from: None };
    let command: Command = session.client.post("commands", &wanted).await?;
    let mut output = StreamPrinter::of(&command, session.printer)?;
    if exec.no_wait {
        return if session.printer.is_for_programs() { Ok(()) } else { print::write_out(&format!("{}\n", command.id)) };
    }
    let leaves = command.hosts.len() > 1 && !exec.wait_offline;
    let hosts = tokio::select! {
        hosts = follow_into(session, &command, &mut output, leaves) => hosts?,
        _ = tokio::signal::ctrl_c() => {
            output.end()?;
            return Err(Failure::new(FailureKind::Failed, "interrupted; the command continues").hint(look(&command)));
        }
    };
    let hosts = tell_apart(hosts);
    if exec.daemon && hosts.iter().any(is_success) {
        output.became(&format!("default/exec-{}", command.id))?;
    }
    for lines in hosts.iter().filter_map(|host| batch::lines(host, command.verb.execs())) {
        print::say(lines.trim_end());
    }
    summarise(&hosts);
    if hosts.iter().any(|host| host.state() == CommandState::Waiting) {
        print::say(Diagnostic::new("not every host has done it yet").with_hint(look(&command)));
    }
    verdict(&hosts, exec.passthrough)
}

/// The target of the command.
async fn resolve_target(exec: &ExecArgs, verb: &Verb, session: &CliSession) -> Result<NewTarget, Failure> {
    // What every host would read must not contain secrets, and only one host has one exit code.
    let by_name = exec.program.passthrough || verb.execs().iter().any(|exec| exec.secret().is_some());
    Ok(match &exec.select {
        Some(select) if by_name => NewTarget::Hosts(target::picked(session, select).await?),
        Some(select) => group(select).map_or_else(|| NewTarget::Select(select.clone()), NewTarget::Group),
        None if exec.all => NewTarget::All,
        None if exec.hosts.is_empty() => {
            let host = host_lookup::only(session).await?;
            print::say(format_args!("on {}", host.hostname));
            NewTarget::Hosts(vec![host.id.to_string()])
        }
        None => NewTarget::Hosts(exec.hosts.clone()),
    })
}

/// The label, if an expression selects the hosts that have it and says no more: only they read a message for their group.
fn group(select: &HostSelect) -> Option<Name> {
    select.to_string().strip_prefix("label.")?.parse().ok()
}

/// The programs to run.
fn wanted(exec: &ProgramArgs, container: Option<&UnitName>) -> Result<ExecVerb, Failure> {
    let (argv, shell) = match (exec.shell, &exec.argv[..]) {
        (false, argv) => (argv.to_vec(), None),
        (true, [line]) => (Vec::new(), Some(line.clone())),
        (true, _) => {
            let message = "--shell takes one line, and there are several words";
            return Err(Failure::new(FailureKind::Usage, message).hint("put the whole line into quotes: -- 'a | b'"));
        }
    };
    Ok(ExecVerb {
        shell,
        container: container.cloned(),
        cwd: exec.cwd.clone(),
        env: exec.environment.variables()?,
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

/// Reads standard input for a program: never more than a command can carry, however long the file is.
fn stdin(path: &Path) -> Result<Data, Failure> {
    let failed = |error: io::Error| Failure::of_file(path, &error);
    let source: Box<dyn Read> = match path.to_str() {
        Some("-") => Box::new(io::stdin().lock()),
        _ => Box::new(File::open(path).map_err(failed)?),
    };
    let mut bytes = Vec::new();
    source.take(STDIN_MAX_BYTES as u64 + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() > STDIN_MAX_BYTES {
        let limit = muster_topics::size::print(STDIN_MAX_BYTES as u64);
        let message = format!("{} has more than the {limit} that a command can bring", path.display());
        return Err(
            Failure::new(FailureKind::Usage, message).hint("put what is large into an artifact, or onto the host")
        );
    }
    Ok(Data::signed(&bytes))
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        program: ProgramArgs,
    }

    fn parsed(words: &[&str]) -> Result<ExecVerb, Failure> {
        wanted(&<Line as clap::Parser>::try_parse_from([&["exec"], words].concat()).unwrap().program, None)
    }

    #[test]
    fn options_make_the_request() {
        let plain = parsed(&["--", "a", "b c"]).unwrap();
        assert_eq!(plain, ExecVerb::new(vec!["a".to_owned(), "b c".to_owned()], 60_000));
        let shell = parsed(&["--shell", "--stdout", "capture", "--stderr", "drop", "--", "a | b"]).unwrap();
        assert_eq!((shell.shell.as_deref(), shell.argv.len()), (Some("a | b"), 0));
        assert_eq!((shell.stdout, shell.stderr), (Keep::Capture, Keep::Drop));
        assert_eq!(plain.container, None);
        let limits = parsed(&["--output-max", "2K", "--stderr-max", "5", "--", "a"]).unwrap();
        assert_eq!((limits.output_max_bytes, limits.stderr_max_bytes), (2_048, Some(5)));
        let words = parsed(&["--shell", "--", "a", "b"]).unwrap_err();
        assert_eq!(words.kind.code(), 2);
    }

    #[test]
    fn label_alone_is_a_group() {
        for (select, label) in [
            ("label.canary", Some("canary")),
            (" label.canary ", Some("canary")),
            ("label.canary=yes", None),
            ("label.a or label.b", None),
            ("not label.canary", None),
            ("host=a", None),
        ] {
            let found = group(&select.parse().unwrap());
            assert_eq!(found.as_ref().map(Name::as_str), label, "{select}");
        }
    }

    #[test]
    fn standard_input_is_limited() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let path = file.path().to_str().unwrap();
        std::fs::write(path, vec![b'\n'; STDIN_MAX_BYTES]).unwrap();
        let data = parsed(&["--stdin", path, "--", "cat"]).unwrap().stdin.unwrap();
        assert_eq!(data.to_bytes().unwrap().len(), STDIN_MAX_BYTES);
        std::fs::write(path, vec![b'\n'; STDIN_MAX_BYTES + 1]).unwrap();
        for path in [path, "/dev/zero", "/no/such/file"] {
            let failure = parsed(&["--stdin", path, "--", "cat"]).unwrap_err();
            assert!(failure.kind == FailureKind::Usage && failure.cause().unwrap().contains(path), "{failure:?}");
        }
    }
}
