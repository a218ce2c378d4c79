//! The `muster` program: arguments, logging, runtime, signals, and the exit code, which is chosen
//! here alone. It puts the parts together, each a crate; its features say which of them a build has.
//!
//! - `help`: examples, what holds for all verbs, manual pages and completions
//! - `role`: the long-lived roles as processes of their own
//! - `up`: broker, console and agent in one process

mod help;
#[cfg(test)]
#[cfg(feature = "simulate")]
mod reference_tests;
mod role;
#[cfg(all(feature = "agent", feature = "broker", feature = "cli", feature = "console"))]
mod up;
#[cfg(test)]
#[cfg(feature = "simulate")]
mod vocabulary_tests;

use std::{
    ffi::OsString,
    io::IsTerminal,
    path::Path,
    process::ExitCode,
    time::{Duration, Instant},
};

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum, error::ErrorKind};
use muster_base::{
    failure::{Failure, FailureKind},
    memory_release,
};
use nix::sys::{
    prctl,
    stat::{Mode, umask},
};
use tokio::{
    runtime::{Builder, Runtime},
    signal::unix::{SignalKind, signal},
};
use tokio_util::sync::CancellationToken;
use tracing_subscriber::EnvFilter;

/// Run programs and keep services on a fleet of hosts
///
/// One agent runs on each host; a broker and a console are the fleet's centre.
#[derive(Parser, Debug)]
#[command(version, arg_required_else_help = true, max_term_width = 100)]
#[command(after_long_help = help::EVERYWHERE, after_help = help::BEGIN, disable_help_subcommand = true)]
struct Cli {
    /// What to log, such as `info` or `muster=debug`
    #[arg(long, global = true, env = "MUSTER_LOG", value_name = "FILTER", help_heading = "Everywhere")]
    log: Option<String>,
    /// Format of the log on standard error: text or json
    #[arg(long, global = true, value_enum, default_value_t, value_name = "FORM")]
    #[arg(hide_possible_values = true, help_heading = "Everywhere")]
    log_format: LogFormat,
    #[cfg(feature = "cli")]
    #[command(flatten)]
    options: muster_cli::GlobalOptions,
    #[command(subcommand)]
    verb: MainVerb,
}

#[derive(Clone, Copy, Debug, Default, ValueEnum)]
enum LogFormat {
    /// For people
    #[default]
    Text,
    /// For programs
    Json,
}

#[derive(Subcommand, Debug)]
enum MainVerb {
    #[cfg(all(feature = "agent", feature = "broker", feature = "cli", feature = "console"))]
    Up(up::UpArgs),
    #[cfg(feature = "simulate")]
    Simulate(muster_simulate::Simulate),
    #[cfg(feature = "agent")]
    Agent(role::agent::AgentArgs),
    #[cfg(feature = "console")]
    Console(role::console::ConsoleArgs),
    #[cfg(feature = "broker")]
    Broker(role::broker::BrokerArgs),
    Doctor(role::doctor::DoctorArgs),
    #[cfg(feature = "cli")]
    #[command(flatten)]
    Operator(muster_cli::Verb),
    /// Print the script by which a shell completes words
    Completions {
        /// Shell: bash, zsh, fish or elvish
        #[arg(value_parser = ["bash", "zsh", "fish", "elvish"], hide_possible_values = true)]
        shell: String,
    },
    /// Show the help of a verb; with --all, list all verbs
    Help {
        /// List all verbs, also those that few need
        #[arg(long, conflicts_with = "verb")]
        all: bool,
        /// Verb, such as `host ls`
        verb: Vec<String>,
    },
    /// Write the manual pages into a folder
    Man {
        /// Folder to write into
        ///
        /// It is made if it does not exist; files of the same names are replaced.
        #[arg(long, value_name = "DIR")]
        out: std::path::PathBuf,
    },
}

impl MainVerb {
    /// The default log filter: roles log their activity, verbs only errors.
    fn default_log(&self) -> &'static str {
        match self {
            #[cfg(feature = "agent")]
            Self::Agent(_) => "info",
            #[cfg(feature = "console")]
            // Some clients (mosquitto_sub) send an address where TLS expects a name. The warning is harmless, and its
            // rate is not limited.
            Self::Console(_) => "info,rustls=error",
            #[cfg(feature = "broker")]
            // The messages of rumqttd's router are useless to an operator, and their spans cost a third of the broker's
            // throughput (measured). If the router ends, the front reports that.
            Self::Broker(_) => "info,rumqttd=off,rustls=error",
            // What it meets it says in its findings.
            Self::Doctor(_) => "off",
            _ => "warn,rumqttd=off,rustls=error",
        }
    }

    /// Whether it is a role that runs until it is stopped, with keys in its memory.
    fn is_long_lived(&self) -> bool {
        match self {
            #[cfg(all(feature = "agent", feature = "broker", feature = "cli", feature = "console"))]
            Self::Up(_) => true,
            #[cfg(feature = "simulate")]
            Self::Simulate(_) => true,
            #[cfg(feature = "agent")]
            Self::Agent(_) => true,
            #[cfg(feature = "console")]
            Self::Console(_) => true,
            #[cfg(feature = "broker")]
            Self::Broker(_) => true,
            _ => false,
        }
    }

    /// What is to be said of a role's configuration, if that is asked for.
    fn config_report(&self) -> Option<role::check_config::ConfigReport> {
        match self {
            #[cfg(feature = "agent")]
            Self::Agent(args) => args.config_report(),
            #[cfg(feature = "console")]
            Self::Console(args) => args.config_report(),
            #[cfg(feature = "broker")]
            Self::Broker(args) => args.config_report(),
            _ => None,
        }
    }

    /// Refuses an output format that the verb does not support.
    #[cfg(feature = "cli")]
    fn check_form(&self, form: muster_cli::print::PrintFormat) -> Result<(), Failure> {
        let name = match self {
            #[cfg(feature = "agent")]
            Self::Agent(_) => "agent",
            #[cfg(feature = "console")]
            Self::Console(_) => "console",
            #[cfg(feature = "broker")]
            Self::Broker(_) => "broker",
            Self::Completions { .. } => "completions",
            Self::Man { .. } => "man",
            Self::Help { .. } => "help",
            #[cfg(all(feature = "agent", feature = "broker", feature = "console"))]
            Self::Up(_) => return Ok(()),
            #[cfg(feature = "simulate")]
            Self::Simulate(_) => return Ok(()),
            Self::Operator(_) | Self::Doctor(_) => return Ok(()),
        };
        if form == muster_cli::print::PrintFormat::Table {
            return Ok(());
        }
        let message = format!("what `muster {name}` prints is text, which has no other form");
        Err(Failure::new(FailureKind::Usage, message).hint("leave out --output"))
    }

    /// Whether it starts processes that outlive it, so that as the first process of a container it must reap orphans.
    #[cfg(feature = "agent")]
    fn leaves_orphans(&self) -> bool {
        match self {
            #[cfg(all(feature = "broker", feature = "cli", feature = "console"))]
            Self::Up(_) => true,
            Self::Agent(_) => true,
            _ => false,
        }
    }

    /// One thread for roles that serve one host or one person, several for those that serve a fleet.
    fn runtime(&self) -> std::io::Result<Runtime> {
        let one = || Builder::new_current_thread().enable_all().build();
        match self {
            #[cfg(all(feature = "agent", feature = "broker", feature = "cli", feature = "console"))]
            Self::Up(_) => Builder::new_multi_thread().enable_all().build(),
            #[cfg(feature = "simulate")]
            Self::Simulate(_) => Builder::new_multi_thread().enable_all().build(),
            #[cfg(feature = "console")]
            Self::Console(_) => {
                memory_release::share_heaps(memory_release::CONSOLE_HEAPS);
                Builder::new_multi_thread().enable_all().build()
            }
            #[cfg(feature = "broker")]
            Self::Broker(_) => Builder::new_multi_thread().enable_all().build(),
            #[cfg(feature = "agent")]
            Self::Agent(_) => {
                memory_release::share_heaps(memory_release::AGENT_HEAPS);
                let mut builder = Builder::new_current_thread();
                memory_release::release_when_idle(&mut builder);
                builder.enable_all().build()
            }
            _ => one(),
        }
    }
}

fn main() -> ExitCode {
    if help::complete::answered(Cli::command) {
        return ExitCode::SUCCESS;
    }
    let program = parse(arguments(std::env::args_os())).unwrap_or_else(|error| error.exit());
    #[cfg(feature = "agent")]
    if program.verb.leaves_orphans() {
        match muster_agent::init::run_if_first() {
            Ok(None) => {}
            Ok(Some(code)) => return ExitCode::from(code),
            Err(error) => {
                let failure =
                    Failure::new(FailureKind::Failed, format!("as the first process of this container: {error}"));
                let failure = failure.hint("have the container begin with an init (`podman run --init`)");
                muster_base::terminal::err(&failure.lines());
                return ExitCode::from(FailureKind::Failed.code());
            }
        }
    }
    match run(program) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            muster_base::terminal::err(&failure.lines());
            ExitCode::from(failure.kind.code())
        }
    }
}

/// Parses a command line with the whole grammar.
fn parse(words: impl IntoIterator<Item = impl Into<OsString> + Clone>) -> Result<Cli, clap::Error> {
    let mut command = help::for_people(Cli::command());
    let words: Vec<OsString> = words.into_iter().map(Into::into).collect();
    let mut matches = command.try_get_matches_from_mut(&words).map_err(|error| match words.as_slice() {
        // `muster host help`, as `muster help host`.
        [_, noun, word, rest @ ..] if word == "help" && error.kind() == ErrorKind::InvalidSubcommand => {
            let verb = [noun].into_iter().chain(rest).map(|word| word.to_string_lossy().into_owned());
            help::show(Cli::command(), false, &verb.collect::<Vec<_>>())
        }
        words => help::other_words::suggest(error, &command, words),
    })?;
    #[cfg(feature = "cli")]
    let watch = help::wants_watch(&matches);
    let program = Cli::from_arg_matches_mut(&mut matches).map_err(|error| error.format(&mut command))?;
    if let MainVerb::Help { all, verb } = &program.verb {
        return Err(help::show(Cli::command(), *all, verb));
    }
    #[cfg(feature = "cli")]
    let program = Cli { options: muster_cli::GlobalOptions { watch, ..program.options }, ..program };
    Ok(program)
}

/// The arguments; if the program is called by its other name, it is one of its verbs.
fn arguments(given: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let mut arguments: Vec<OsString> = given.into_iter().collect();
    let name = arguments.first().and_then(|path| Path::new(path).file_name());
    if cfg!(feature = "cli") && name.is_some_and(|name| name == "ycommand") {
        arguments.splice(..1, ["muster".into(), "ycommand".into()]);
    }
    arguments
}

/// Protects a role's keys and files from other users of this machine: no core dump has its memory, no other process of its
/// user reads it, and files without a mode of their own are written by their owner alone.
fn protect_process() -> Result<(), Failure> {
    let before = umask(Mode::S_IWGRP | Mode::S_IWOTH);
    umask(before | Mode::S_IWGRP | Mode::S_IWOTH);
    prctl::set_dumpable(false).map_err(|error| {
        Failure::new(FailureKind::Failed, format!("this process cannot be kept out of core dumps: {error}"))
    })
}

fn run(program: Cli) -> Result<(), Failure> {
    if program.verb.is_long_lived() {
        protect_process()?;
    }
    if let Some(report) = program.verb.config_report() {
        #[cfg(feature = "cli")]
        muster_cli::print::Printer::new(program.options.output).line(&report, &report.text())?;
        #[cfg(not(feature = "cli"))]
        muster_base::terminal::out(format!("{}\n", report.text()).as_bytes())?;
        return report.outcome();
    }
    #[cfg(feature = "cli")]
    program.verb.check_form(program.options.output)?;
    start_log(&program)?;
    let runtime =
        program.verb.runtime().map_err(|error| Failure::new(FailureKind::Failed, format!("the runtime: {error}")))?;
    let done = runtime.block_on(async {
        let shutdown =
            shutdown_on_signals().map_err(|error| Failure::new(FailureKind::Failed, format!("signals: {error}")))?;
        match program.verb {
            #[cfg(all(feature = "agent", feature = "broker", feature = "cli", feature = "console"))]
            MainVerb::Up(up) => up::run(up, program.options.output, shutdown).await,
            #[cfg(feature = "simulate")]
            MainVerb::Simulate(wanted) => muster_simulate::run(wanted, &program.options, shutdown).await,
            #[cfg(feature = "agent")]
            MainVerb::Agent(args) => role::agent::agent(args, shutdown).await,
            #[cfg(feature = "console")]
            MainVerb::Console(args) => role::console::console(args, shutdown).await,
            #[cfg(feature = "broker")]
            MainVerb::Broker(args) => role::broker::broker(args, shutdown).await,
            MainVerb::Doctor(args) => {
                let report = role::doctor::examine(&args).await?;
                #[cfg(feature = "cli")]
                muster_cli::print::Printer::new(program.options.output).line(&report, report.text().trim_end())?;
                #[cfg(not(feature = "cli"))]
                muster_base::terminal::out(report.text().as_bytes())?;
                report.outcome()
            }
            #[cfg(feature = "cli")]
            MainVerb::Operator(verb) => {
                #[cfg(feature = "console")]
                let new_link: Option<muster_cli::login::NewSignInLink> = Some(role::console::new_sign_in_link);
                #[cfg(not(feature = "console"))]
                let new_link = None;
                muster_cli::run(verb, &program.options, new_link, shutdown).await
            }
            MainVerb::Completions { shell } => {
                let script = help::complete::script(&shell, "muster").unwrap_or_default();
                muster_base::terminal::out(&script)
            }
            // Its words were answered when they were parsed.
            MainVerb::Help { .. } => Ok(()),
            MainVerb::Man { out } => help::pages::write_manual(Cli::command(), &out),
        }
    });
    // Blocking calls that may still hang are not waited for.
    runtime.shutdown_background();
    done
}

fn start_log(program: &Cli) -> Result<(), Failure> {
    let filter = program.log.as_deref().unwrap_or(program.verb.default_log());
    let filter = EnvFilter::try_new(filter).map_err(|error| {
        Failure::new(FailureKind::Usage, format!("--log: {error}")).hint("`info`, or `warn,muster=debug`, for example")
    })?;
    let colours = std::io::stderr().is_terminal()
        && std::env::var_os("NO_COLOR").is_none_or(|set| set.is_empty())
        && std::env::var_os("TERM").is_none_or(|term| term != "dumb");
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(|| muster_base::terminal::LogWriter)
        .with_ansi(colours);
    match program.log_format {
        LogFormat::Text => log.with_target(false).init(),
        LogFormat::Json => log.json().init(),
    }
    Ok(())
}

/// A second signal within this time counts as the first one: tools that end a group of processes often send both
/// SIGTERM and SIGINT, and a terminal and a wrapper may both forward one.
const SAME_SIGNAL: Duration = Duration::from_secs(1);

/// A token that SIGINT or SIGTERM cancels; another signal after [`SAME_SIGNAL`] ends the process at once.
fn shutdown_on_signals() -> std::io::Result<CancellationToken> {
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    let token = CancellationToken::new();
    let cancelled = token.clone();
    tokio::spawn(async move {
        let mut first = None;
        loop {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
            if first.get_or_insert_with(Instant::now).elapsed() > SAME_SIGNAL {
                std::process::exit(130);
            }
            cancelled.cancel();
        }
    });
    Ok(token)
}

#[cfg(test)]
#[cfg(feature = "cli")]
mod tests {
    use super::*;

    #[test]
    fn clap_grammar_is_valid() {
        help::for_people(Cli::command()).debug_assert();
        help::for_programs(Cli::command()).debug_assert();
    }

    #[test]
    fn roles_are_kept_out_of_core_dumps() {
        for (line, wanted) in [
            ("muster agent", true),
            ("muster console", true),
            ("muster broker", true),
            ("muster up", true),
            ("muster host ls", false),
            ("muster doctor", false),
        ] {
            assert_eq!(parse(line.split(' ')).unwrap().verb.is_long_lived(), wanted, "{line}");
        }
        assert!(prctl::get_dumpable().unwrap());
        protect_process().unwrap();
        assert!(!prctl::get_dumpable().unwrap());
        // A program that a role starts has its own way.
        let child = std::process::Command::new("sh").args(["-c", "umask"]).output().unwrap();
        assert!(child.stdout.starts_with(b"0022\n"), "{child:?}");
        prctl::set_dumpable(true).unwrap();
    }

    #[test]
    fn program_named_ycommand_is_a_verb() {
        for name in ["ycommand", "/usr/local/bin/ycommand"] {
            let given = [name, "-c", "list-yunos"].map(OsString::from);
            assert_eq!(arguments(given), ["muster", "ycommand", "-c", "list-yunos"]);
        }
        assert_eq!(arguments(["./muster", "ycommand"].map(OsString::from)), ["./muster", "ycommand"]);
    }

    #[test]
    fn typical_command_lines_parse() {
        for line in [
            "muster exec -- uname -a",
            "muster exec --host a --host b --timeout 5s --env A=b -- sh -c x",
            "muster -o json host ls",
            "muster host ls -o yaml",
            "muster unit create yuno default/x --artifact a@1 --arg -v --stop-signal quit --restart on-failure --run",
            "muster unit stop --all --yes",
            "muster unit exec a/b --all -- x",
            "muster config create a.b 1 file.json",
            "muster metric query x --since 1h",
            "muster token create --count 100",
            "muster simulate --hosts 1000 --churn 5%/min --fail 1% --ramp 10s --for 5m --takes 2s",
        ] {
            assert!(parse(line.split(' ')).is_ok(), "{line}");
        }
        for line in [
            "muster exec uname",
            "muster unit stop",
            "muster exec --all --host a -- x",
            "muster exec --all --passthrough -- x",
            "muster unit show x",
            "muster simulate",
            "muster simulate --hosts 0",
            "muster simulate --hosts 5 --fail 101%",
        ] {
            assert!(parse(line.split(' ')).is_err(), "{line}");
        }
    }
}
