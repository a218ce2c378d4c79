//! A change that pages show.

use muster_topics::name::{CommandId, HostId, UnitName};

/// Something changed that a page may show.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum PageChange {
    /// A host: joined, presence, state.
    Host(HostId),
    /// A unit of a host.
    Unit(HostId, UnitName),
    /// A command: created, or a host came further, or there is more output.
    Command(CommandId),
    /// New measurements of a host.
    Metrics(HostId),
    /// Alerts of a host, or silences of all.
    Alert(Option<HostId>),
}
