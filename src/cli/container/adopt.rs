//! `muster container adopt`: adopts a container that somebody else has made.

use clap::Args;
use muster_base::failure::Failure;
use muster_topics::{
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
    after_help = "One that runs goes on, and one that does not is started; from then on it is kept as any unit is: brought back, probed, \
                        limited (`quota`), entered (`exec --container`). It is not made anew if somebody removes it, and `rm` lets it \
                        go and leaves it.\n\nExample:\n  muster host show shop-7                                  lists all containers\n  \
                        muster container adopt old-web --as default/web --host shop-7"
)]
pub struct AdoptContainer {
    /// What its runtime calls it
    name: String,
    /// The unit that it becomes: REALM/NAME or HOST:REALM/NAME
    #[arg(long = "as", value_name = "UNIT")]
    unit: UnitRef,
    /// The host, by id or hostname
    #[arg(long)]
    host: Option<String>,
    /// What keeps it on its host
    #[arg(long, default_value = "podman", value_parser = parse_word::<Runtime>)]
    runtime: Runtime,
    /// It does not run, and stays stopped
    #[arg(long)]
    stopped: bool,
    /// How it is found out whether it is well
    #[command(flatten)]
    probes: probe::ProbeOptions,
    /// How long it may take to pass its probes (--start, --ready), before it is ended
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
pub(super) async fn adopt(adopt: AdoptContainer, session: &CliSession) -> Result<(), Failure> {
    let host = host_lookup::one(session, adopt.unit.host.clone().or(adopt.host)).await?;
    let policy = adopt.policy;
    let spec = ContainerSpec {
        runtime: adopt.runtime,
        probes: adopt.probes.into_field(),
        start_timeout_ms: millis(adopt.start_timeout),
        restart: policy.restart,
        stop_signal: policy.stop_signal,
        grace_ms: policy.grace_ms(),
        labels: policy.labels.into_iter().collect(),
        after: policy.after,
        requires: policy.requires,
        priority: policy.priority,
        ..ContainerSpec::new(Image::Existing(adopt.name))
    };
    let made = (Spec::Container(spec), (!adopt.stopped).then_some(Run::Running));
    make(session, (host, adopt.unit.unit), made, false, adopt.wait).await
}
