//! `muster container adopt`: adopts a container that somebody else has made.

use clap::Args;
use muster_base::failure::Failure;
use muster_topics::{
    common::ProgramSpec,
    container::{ContainerSpec, Image, Runtime},
    unit::{Run, Spec},
};

use crate::{
    change::{WaitOptions, make},
    host_lookup,
    policy::{self, parse_word},
    probe,
    rollback::millis,
    session::CliSession,
    target::UnitRef,
};

/// Keep a container that somebody else has made, as it is.
#[derive(Args, Clone, Debug)]
#[command(
    after_long_help = "A running container keeps running, and a stopped one is started. From then on it is kept as any unit is: restarted, probed, limited (`quota`), entered (`exec`). It is not made                     again if somebody removes it, and `rm` releases it without removing it."
)]
pub struct AdoptContainer {
    /// Name of the container in its runtime
    name: String,
    /// Unit that it becomes: REALM/NAME or HOST:REALM/NAME
    #[arg(long = "as", value_name = "UNIT")]
    unit: UnitRef,
    /// Host, by id or hostname [default: the context's, or the only one]
    #[arg(long)]
    host: Option<String>,
    /// Runtime
    #[arg(long, default_value = "podman", value_parser = parse_word::<Runtime>)]
    runtime: Runtime,
    /// Adopt one that does not run, and leave it stopped
    #[arg(long)]
    stopped: bool,
    /// How it is found out whether it is well
    #[command(flatten)]
    probes: probe::ProbeOptions,
    /// Time within which --start and --ready must succeed
    ///
    /// It is ended if they do not.
    #[arg(long, value_name = "TIME", default_value = "90s")]
    start_timeout: humantime::Duration,
    /// When it is started, and how it ends
    #[command(flatten)]
    policy: policy::PolicyOptions,
    #[command(flatten)]
    wait: WaitOptions,
}

/// Makes a host adopt an existing container.
///
/// # Errors
/// If it is refused, or if it does not become as desired in time.
pub(crate) async fn adopt(adopt: AdoptContainer, session: &CliSession) -> Result<(), Failure> {
    let host = host_lookup::one(session, adopt.unit.host.clone().or(adopt.host)).await?;
    let mut spec = ContainerSpec {
        runtime: adopt.runtime,
        program: ProgramSpec {
            probes: adopt.probes.into_field(),
            start_timeout_ms: millis(adopt.start_timeout),
            ..ProgramSpec::default()
        },
        ..ContainerSpec::new(Image::Existing(adopt.name))
    };
    adopt.policy.put_into(&mut spec.common, &mut spec.program);
    let made = (Spec::Container(spec), (!adopt.stopped).then_some(Run::Running));
    make(session, (host, adopt.unit.unit), made, false, adopt.wait, None).await
}
