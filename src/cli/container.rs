//! `muster container`: the verbs of units, for containers (`create` makes one, `adopt` adopts one that others have made).

mod adopt;
mod create;

use clap::Subcommand;
use muster_base::failure::{Failure, FailureKind};
use muster_topics::{process::Cores, signal::Signal};

use super::{
    change::{LimitOptions, UnitAction, UnitChange, change},
    logs,
    session::CliSession,
    target::Noun,
    unit,
};

pub use super::container_text::{facts, listed, network};

pub use super::limit_value::LimitValue;
pub(super) use super::limit_value::or_none;

/// Verbs on containers.
#[derive(Subcommand, Clone, Debug)]
pub enum ContainerVerb {
    /// Create a container, or with --overwrite change one
    Create(Box<create::CreateContainer>),
    /// Create another container from the image of one
    Clone(Box<create::CloneContainer>),
    /// Adopt a container that somebody else has made
    Adopt(Box<adopt::AdoptContainer>),
    /// Start a container
    Run(UnitChange),
    /// Stop a container
    ///
    /// It gets its stop signal, and after its grace everything in it is killed.
    Stop(unit::StopUnits),
    /// Restart a container: stop it and make it anew
    Restart(UnitChange),
    /// Send a signal to a container's first process
    ///
    /// Its desired state does not change.
    Signal {
        /// Name or number, such as HUP, SIGUSR1, RTMIN+3 or 15
        signal: Signal,
        /// Which
        #[command(flatten)]
        which: UnitChange,
    },
    /// Freeze a container: suspend all its processes
    ///
    /// It keeps its memory and can be stopped; a restart thaws it.
    Freeze(UnitChange),
    /// Thaw a container that was frozen
    Thaw(UnitChange),
    /// Change the limits of a container
    ///
    /// They change while it runs if its runtime can do that. It is made anew to take a limit away, to set one that it
    /// did not have, and for another disk limit.
    Quota {
        /// Memory, such as 64M, or `none`
        #[arg(long, value_name = "BYTES", value_parser = or_none(muster_topics::size::parse))]
        memory: Option<LimitValue<u64>>,
        /// Processors, such as 0.5, or `none`
        #[arg(long, value_name = "CORES", value_parser = or_none(str::parse::<Cores>))]
        cpu: Option<LimitValue<Cores>>,
        /// Processes and threads, or `none`
        #[arg(long, value_name = "COUNT", value_parser = or_none(str::parse::<u32>))]
        pids: Option<LimitValue<u32>>,
        /// Disk space beside its image, such as 2G, or `none`
        #[arg(long, value_name = "BYTES", value_parser = or_none(muster_topics::size::parse))]
        disk: Option<LimitValue<u64>>,
        /// Which
        #[command(flatten)]
        which: UnitChange,
    },
    /// Try again to run a container that is held as broken
    Restore(UnitChange),
    /// List containers
    #[command(alias = "list")]
    Ls(unit::UnitListArgs),
    /// Show a container: desired and observed state
    Show(unit::ShowUnit),
    /// Print the last lines of the log of containers
    Logs(logs::Logs),
    /// Remove containers that are retired
    ///
    /// `muster unit retire` stops and holds them first. What they wrote is deleted; an adopted container is only
    /// released.
    Rm(UnitChange),
}

/// Runs a verb on containers.
///
/// # Errors
/// If it fails.
pub async fn run(verb: ContainerVerb, session: &CliSession) -> Result<(), Failure> {
    match verb {
        ContainerVerb::Create(wanted) => create::create(*wanted, session).await,
        ContainerVerb::Clone(wanted) => create::clone(*wanted, session).await,
        ContainerVerb::Adopt(wanted) => adopt::adopt(*wanted, session).await,
        ContainerVerb::Run(which) => change(session, Noun::Container, which, UnitAction::Run).await,
        ContainerVerb::Stop(unit::StopUnits { which, signal }) => {
            change(session, Noun::Container, which, UnitAction::Stop(signal)).await
        }
        ContainerVerb::Restart(which) => change(session, Noun::Container, which, UnitAction::Restart).await,
        ContainerVerb::Signal { signal, which } => {
            change(session, Noun::Container, which, UnitAction::Signal(signal)).await
        }
        ContainerVerb::Freeze(which) => change(session, Noun::Container, which, UnitAction::Freeze).await,
        ContainerVerb::Thaw(which) => change(session, Noun::Container, which, UnitAction::Thaw).await,
        ContainerVerb::Quota { memory: None, cpu: None, pids: None, disk: None, .. } => {
            let nothing = Failure::new(FailureKind::Usage, "there is no limit to change");
            Err(nothing.hint("name one: --memory, --cpu, --pids or --disk"))
        }
        ContainerVerb::Quota { memory, cpu, pids, disk, which } => {
            let quota = LimitOptions {
                memory_bytes: memory.map(|given| given.0),
                cpu: cpu.map(|given| given.0),
                pids: pids.map(|given| given.0),
                disk_bytes: disk.map(|given| given.0),
            };
            change(session, Noun::Container, which, UnitAction::Quota(quota)).await
        }
        ContainerVerb::Restore(which) => change(session, Noun::Container, which, UnitAction::Unhold).await,
        ContainerVerb::Ls(wanted) => unit::list(session, wanted, Noun::Container).await,
        ContainerVerb::Show(wanted) => unit::show(session, wanted, Noun::Container).await,
        ContainerVerb::Logs(wanted) => logs::run(wanted, Noun::Container, session).await,
        ContainerVerb::Rm(which) => change(session, Noun::Container, which, UnitAction::Remove).await,
    }
}
