//! A change that pages show.

use muster_topics::{
    desired::DeploymentName,
    name::{CommandId, HostId, UnitName},
};

/// A change that a page may show.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum PageChange {
    /// Of a host: membership, presence, state.
    Host(HostId),
    /// Of a unit of a host.
    Unit(HostId, UnitName),
    /// Of a command: a new one, a new status, or more output.
    Command(CommandId),
    /// Of a deployment: a new version, or its removal.
    Deployment(DeploymentName),
    /// New measurements of a host.
    Metrics(HostId),
    /// Of alerts of a host, or of silences.
    Alert(Option<HostId>),
}
