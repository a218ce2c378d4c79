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
    /// Make a container; with --overwrite, have the one of this name be another
    Create(Box<create::CreateContainer>),
    /// Make another container of what one is made of
    Clone(Box<create::CloneContainer>),
    /// Keep a container that somebody else has made, as it is
    Adopt(Box<adopt::AdoptContainer>),
    /// Start a container
    Run(UnitChange),
    /// Stop a container: its stop signal, its grace, then SIGKILL for all that is in it
    Stop(unit::StopUnits),
    /// End a container and make it anew
    Restart(UnitChange),
    /// Send a signal to a container's first process; nothing that is desired changes by that
    Signal {
        /// Its name or number, such as HUP, SIGUSR1, RTMIN+3 or 15
        signal: Signal,
        /// Which
        #[command(flatten)]
        which: UnitChange,
    },
    /// Suspend a container with all that is in it; it keeps its memory, can be stopped, and is thawed by a restart
    Freeze(UnitChange),
    /// Let a container go on that was frozen
    Thaw(UnitChange),
    /// Change what a container may use, while it runs if its runtime can; to take a limit away, or to give one that it had
    /// none of, makes it anew, and so does another disk
    Quota {
        /// The most memory, such as 64M, or `none`
        #[arg(long, value_name = "BYTES", value_parser = or_none(muster_topics::size::parse))]
        memory: Option<LimitValue<u64>>,
        /// The most time of processors, such as 0.5, or `none`
        #[arg(long, value_name = "CORES", value_parser = or_none(str::parse::<Cores>))]
        cpu: Option<LimitValue<Cores>>,
        /// The most processes and threads, or `none`
        #[arg(long, value_name = "COUNT", value_parser = or_none(str::parse::<u32>))]
        pids: Option<LimitValue<u32>>,
        /// The most that it may write beside its image, such as 2G, or `none`
        #[arg(long, value_name = "BYTES", value_parser = or_none(muster_topics::size::parse))]
        disk: Option<LimitValue<u64>>,
        /// Which
        #[command(flatten)]
        which: UnitChange,
    },
    /// Have a container brought back that is held as broken: its attempts begin anew
    Restore(UnitChange),
    /// List containers that agents keep
    #[command(alias = "list")]
    Ls(unit::UnitListArgs),
    /// Show what a container should be and what it is
    Show(unit::ShowUnit),
    /// Print the last lines that a container said, or several
    Logs(logs::Logs),
    /// Make a host forget containers that are retired (`muster unit retire`), and remove them with all that they wrote; those
    /// that were adopted are let go, and stay
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
