//! `muster unit create yuno`: makes a yuno without a document.

use clap::Args;
use muster_api::Config;
use muster_base::failure::Failure;
use muster_topics::{
    common::ProgramSpec,
    files::Drift,
    reload::{OnChange, Reload},
    signal::Signal,
    unit::{ConfigRef, Run, Spec, YunoSpec},
};

use crate::{
    artifact,
    change::{WaitOptions, make},
    config, endpoint,
    environment::EnvironmentArgs,
    host_lookup,
    policy::{self, parse_word},
    probe, process, rollback,
    session::CliSession,
    target::UnitRef,
};

/// Make a yuno; with --replace, have the one of this name be another.
#[derive(Args, Clone, Debug)]
pub struct CreateYuno {
    /// Unit: REALM/NAME or HOST:REALM/NAME
    pub unit: UnitRef,
    /// Host, by id or hostname [default: the context's, or the only one]
    #[arg(long)]
    pub host: Option<String>,
    /// Artifact: ROLE@VERSION, ROLE for the newest, or a SHA-256
    ///
    /// Of a SHA-256, the beginning is enough.
    #[arg(long)]
    pub artifact: String,
    /// Config: ID@VERSION, or ID for the newest; repeatable
    ///
    /// Later ones are merged over earlier ones (RFC 7386). MUSTER_CONFIG has the path of the merged file.
    #[arg(long = "config", value_name = "CONFIG")]
    pub configs: Vec<String>,
    /// Argument; repeatable [default: those of the manifest]
    ///
    /// {config} stands for the path of the merged configuration, and {{word}} for the text {word}.
    #[arg(long = "arg", value_name = "ARG", allow_hyphen_values = true)]
    pub args: Vec<String>,
    /// Its environment
    #[command(flatten)]
    pub environment: EnvironmentArgs,
    /// On a new config: restart, signal or channel
    ///
    /// `signal` is for a program that reads its configs again at a signal, `channel` for one that does so when it is
    /// asked to there.
    #[arg(long, default_value = "restart", value_parser = parse_word::<Reload>)]
    pub reload: Reload,
    /// Signal at which it reads its files again
    #[arg(long, default_value = "hup", value_name = "SIGNAL")]
    pub reload_signal: Signal,
    /// File to watch, and restart, signal or channel; repeatable
    ///
    /// A file such as a certificate, and what is done when its content changes.
    #[arg(long, value_name = "PATH=ACTION", value_parser = parse_on_change)]
    pub on_change: Vec<OnChange>,
    /// If others change its artifact or configs: correct or report
    ///
    /// With `correct` they are fetched again, and a process that may run from what was changed is restarted.
    #[arg(long, default_value = "correct", value_parser = parse_word::<Drift>)]
    pub drift: Drift,
    /// User that it runs as
    #[arg(long)]
    pub user: Option<String>,
    /// When it is started, and how it ends
    #[command(flatten)]
    pub policy: policy::PolicyOptions,
    /// What it may use and what it is given
    #[command(flatten)]
    pub process: process::ProcessOptions,
    /// Where it listens, and what it connects to
    #[command(flatten)]
    pub endpoints: endpoint::EndpointOptions,
    /// How it is found out whether it is well
    #[command(flatten)]
    pub probes: probe::ProbeOptions,
    /// What becomes of a change that does not work
    #[command(flatten)]
    pub rollback: rollback::RollbackOptions,
    /// Start it
    #[arg(long)]
    pub run: bool,
    /// Replace what is there
    ///
    /// What is not given gets its default.
    #[arg(long)]
    pub replace: bool,
    #[command(flatten)]
    wait: WaitOptions,
}

fn parse_on_change(text: &str) -> Result<OnChange, String> {
    let (path, action) = text.rsplit_once('=').ok_or("use PATH=restart, PATH=signal or PATH=channel")?;
    Ok(OnChange { path: path.to_owned(), action: parse_word(action)? })
}

/// Creates a yuno from the options.
///
/// # Errors
/// If it is refused, or if it does not become as desired in time.
pub(super) async fn create(create: CreateYuno, session: &CliSession) -> Result<(), Failure> {
    let named = create.unit.host.clone().or(create.host.clone());
    let host = host_lookup::one(session, named).await?;
    let artifact = artifact::find(session, &create.artifact).await?;
    let mut configs = Vec::new();
    for wanted in &create.configs {
        let Config { id, version, sha256, .. } = config::find(session, wanted).await?;
        configs.push(ConfigRef { id, version, sha256 });
    }
    let says = artifact::manifest(session, &artifact).await?.unwrap_or_default();
    let policy = create.policy;
    let process::ProcessFields { cwd, limits, process, log, channel, start_timeout_ms, watchdog_ms } =
        create.process.into_fields();
    let (provides, needs) = create.endpoints.into_fields();
    let mut spec = YunoSpec {
        configs,
        reload: create.reload,
        reload_signal: create.reload_signal,
        on_change: create.on_change,
        drift: create.drift,
        process,
        log,
        channel: if channel.is_none() { says.channel } else { channel },
        watchdog_ms,
        program: ProgramSpec {
            args: if create.args.is_empty() { says.args } else { create.args },
            env: create.environment.variables()?,
            user: create.user,
            cwd,
            limits,
            start_timeout_ms,
            provides,
            needs,
            probes: create.probes.into_field(),
            ..ProgramSpec::default()
        },
        ..YunoSpec::new(artifact.into())
    };
    policy.put_into(&mut spec.common, &mut spec.program);
    create.rollback.put_into(&mut spec);
    let made = (Spec::Yuno(spec), create.run.then_some(Run::Running));
    make(session, (host, create.unit.unit), made, create.replace, create.wait, None).await
}
