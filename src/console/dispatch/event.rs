//! Events for the dispatch task.

use std::collections::BTreeSet;

use muster_topics::{
    name::{CommandId, HostId},
    topic::Broadcast,
};

use super::super::store::command::OpenCommand;

/// An event for the dispatch task.
#[derive(Debug)]
pub enum DispatchEvent {
    /// A new command was stored.
    Submitted {
        /// Its hosts and expiry.
        open: OpenCommand,
        /// The topic, if it is sent in one message.
        broadcast: Option<Broadcast>,
    },
    /// A host has confirmed that it has a command.
    Answered(CommandId, HostId),
    /// A host has finished a command.
    Settled(CommandId, HostId),
    /// A host is too busy for a command.
    Busy(CommandId, HostId),
    /// A host came online (true) or went offline.
    Presence(HostId, bool),
    /// A host was removed or revoked.
    Left(HostId),
    /// Hosts have shown that they are online.
    Shown(BTreeSet<HostId>),
    /// There is a new connection to the broker.
    Connected,
    /// The console's clock was set: hosts are to report their clocks.
    ClockSet,
    /// The external signer signs again: what was to be asked of hosts meanwhile is asked now.
    SignerBack,
}
