//! `muster container`: the verbs of units on containers (`create` has how one is made, `adopt` how one comes that others have made), and what is shown of one beyond
//! what every unit has.

mod adopt;
mod create;

use clap::Subcommand;
use muster_topics::{
    container::{ContainerSummary, Image, Mount, Network},
    process::{Cores, Limits},
    signal::Signal,
    unit::Spec,
};

use super::{
    Session,
    change::{Action, Change, Quota, change},
    logs,
    target::Noun,
    unit,
};
use crate::failure::{Failure, Kind};

/// Verbs on containers.
#[derive(Subcommand, Clone, Debug)]
pub enum Verb {
    /// Make a container; with --overwrite, have the one of this name be another
    Create(Box<create::Create>),
    /// Make another container of what one is made of
    Clone(Box<create::Clone>),
    /// Keep a container that somebody else has made, as it is
    Adopt(Box<adopt::Adopt>),
    /// Start a container
    Run(Change),
    /// Stop a container: its stop signal, its grace, then SIGKILL for all that is in it
    Stop(unit::Stopping),
    /// End a container and make it anew
    Restart(Change),
    /// Send a signal to a container's first process; nothing that is desired changes by that
    Signal {
        /// Its name or number, such as HUP, SIGUSR1, RTMIN+3 or 15
        signal: Signal,
        /// Which
        #[command(flatten)]
        which: Change,
    },
    /// Suspend a container with all that is in it; it keeps its memory, can be stopped, and is thawed by a restart
    Freeze(Change),
    /// Let a container go on that was frozen
    Thaw(Change),
    /// Change what a container may use, while it runs if its runtime can; to take a limit away, or to give one that it had
    /// none of, makes it anew, and so does another disk
    Quota {
        /// The most memory, such as 64M, or `none`
        #[arg(long, value_name = "BYTES", value_parser = or_none(crate::size::parse))]
        memory: Option<Given<u64>>,
        /// The most time of processors, such as 0.5, or `none`
        #[arg(long, value_name = "CORES", value_parser = or_none(str::parse::<Cores>))]
        cpu: Option<Given<Cores>>,
        /// The most processes and threads, or `none`
        #[arg(long, value_name = "COUNT", value_parser = or_none(str::parse::<u32>))]
        pids: Option<Given<u32>>,
        /// The most that it may write beside its image, such as 2G, or `none`
        #[arg(long, value_name = "BYTES", value_parser = or_none(crate::size::parse))]
        disk: Option<Given<u64>>,
        /// Which
        #[command(flatten)]
        which: Change,
    },
    /// Have a container brought back that is held as broken: its attempts begin anew
    Restore(Change),
    /// List containers that agents keep
    #[command(alias = "list")]
    Ls(unit::Listing),
    /// Show what a container should be and what it is
    Show(unit::Shown),
    /// Print the last lines that a container said, or several
    Logs(logs::Logs),
    /// Make a host forget containers that are retired (`muster unit retire`), and remove them with all that they wrote; those
    /// that were adopted are let go, and stay
    Rm(Change),
}

/// A limit that somebody has named, or nothing where they do not want one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Given<T>(pub Option<T>);

/// Reads a limit, or `none`.
pub(super) fn or_none<T, E: ToString>(
    parse: impl Fn(&str) -> Result<T, E> + Clone,
) -> impl Fn(&str) -> Result<Given<T>, String> + Clone {
    move |text| match text {
        "none" => Ok(Given(None)),
        text => parse(text).map(|value| Given(Some(value))).map_err(|error| error.to_string()),
    }
}

/// Does a verb on containers.
///
/// # Errors
/// If it cannot be done.
pub async fn run(verb: Verb, session: &Session) -> Result<(), Failure> {
    match verb {
        Verb::Create(wanted) => create::create(*wanted, session).await,
        Verb::Clone(wanted) => create::clone(*wanted, session).await,
        Verb::Adopt(wanted) => adopt::adopt(*wanted, session).await,
        Verb::Run(which) => change(session, Noun::Container, which, Action::Run).await,
        Verb::Stop(unit::Stopping { which, signal }) => {
            change(session, Noun::Container, which, Action::Stop(signal)).await
        }
        Verb::Restart(which) => change(session, Noun::Container, which, Action::Restart).await,
        Verb::Signal { signal, which } => change(session, Noun::Container, which, Action::Signal(signal)).await,
        Verb::Freeze(which) => change(session, Noun::Container, which, Action::Freeze).await,
        Verb::Thaw(which) => change(session, Noun::Container, which, Action::Thaw).await,
        Verb::Quota { memory: None, cpu: None, pids: None, disk: None, .. } => {
            let nothing = Failure::new(Kind::Usage, "there is no limit to change");
            Err(nothing.hint("name one: --memory, --cpu, --pids or --disk"))
        }
        Verb::Quota { memory, cpu, pids, disk, which } => {
            let quota = Quota {
                memory_bytes: memory.map(|given| given.0),
                cpu: cpu.map(|given| given.0),
                pids: pids.map(|given| given.0),
                disk_bytes: disk.map(|given| given.0),
            };
            change(session, Noun::Container, which, Action::Quota(quota)).await
        }
        Verb::Restore(which) => change(session, Noun::Container, which, Action::Unhold).await,
        Verb::Ls(wanted) => unit::list(session, wanted, Noun::Container).await,
        Verb::Show(wanted) => unit::show(session, wanted, Noun::Container).await,
        Verb::Logs(wanted) => logs::run(wanted, Noun::Container, session).await,
        Verb::Rm(which) => change(session, Noun::Container, which, Action::Remove).await,
    }
}

/// For one unit: its image and runtime, the user inside, its mounts and its network, nothing of these for what is no container;
/// and what it may use.
#[must_use]
pub fn facts(spec: &Spec) -> [(&'static str, String); 5] {
    let container = match spec {
        Spec::Container(container) => Some(container),
        Spec::Yuno(_) => None,
    };
    let shown = |of: &dyn Fn(&muster_topics::container::ContainerSpec) -> String| container.map(of).unwrap_or_default();
    let image = shown(&|container| {
        let what = match &container.image {
            Image::Rootfs(_) => "a root file system",
            Image::Archive(_) => "an archive",
            Image::Name(name) => name,
            Image::Existing(name) => return format!("none: the container {name} of {} was adopted", container.runtime),
        };
        format!("{what}, kept by {}", container.runtime)
    });
    let mounts = shown(&|container| container.mounts.iter().map(mount).collect::<Vec<_>>().join(", "));
    let network = shown(&|container| network(container.network).to_owned());
    [
        ("image", image),
        ("user inside", shown(&|container| container.user.clone().unwrap_or_default())),
        ("mounts", mounts),
        ("network", network),
        ("may use", limited(spec.limits(), container.and_then(|container| container.disk_bytes)).join(", ")),
    ]
}

fn mount(mount: &Mount) -> String {
    let read_only = if mount.read_only { " (read only)" } else { "" };
    format!("{} as {}{read_only}", mount.host, mount.inside)
}

/// The word for a network, as in a spec.
#[must_use]
pub fn network(network: Network) -> &'static str {
    match network {
        Network::Bridge => "bridge",
        Network::Host => "host",
        Network::None => "none",
    }
}

/// One in a list of all containers of a host.
#[must_use]
pub fn listed(name: &str, summary: &ContainerSummary) -> String {
    let ContainerSummary { state, unit, image, limits, runtime } = summary;
    let mut words = vec![format!("{name} {}, {runtime}", state.as_str())];
    words.push(unit.as_ref().map_or_else(|| "no unit".to_owned(), |unit| format!("unit {unit}")));
    words.extend((!image.is_empty()).then(|| image.clone()));
    words.extend(limited(*limits, None));
    words.join(", ")
}

/// Limits, in words.
fn limited(limits: Limits, disk_bytes: Option<u64>) -> Vec<String> {
    let words = [
        limits.memory_bytes.map(|bytes| format!("memory {}", crate::size::print(bytes))),
        limits.cpu.map(|cpu| format!("cpu {cpu}")),
        limits.pids.map(|pids| format!("pids {pids}")),
        disk_bytes.map(|bytes| format!("disk {}", crate::size::print(bytes))),
    ];
    words.into_iter().flatten().collect()
}
