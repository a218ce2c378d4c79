//! Events for the dispatch task.

use std::collections::BTreeSet;

use muster_topics::{
    name::{CommandId, HostId},
    topic::Topic,
};

use super::super::store::command::OpenCommand;

/// What the task has to know.
#[derive(Debug)]
pub enum DispatchEvent {
    /// There is a new command in the store.
    Submitted {
        /// Its hosts and expiry.
        open: OpenCommand,
        /// Where it goes out in one message.
        broadcast: Option<Topic>,
    },
    /// A host says that it has a command.
    Answered(CommandId, HostId),
    /// A host is done with a command.
    Settled(CommandId, HostId),
    /// A host is too busy for a command.
    Busy(CommandId, HostId),
    /// A host came (true) or went.
    Presence(HostId, bool),
    /// A host is a member no more.
    Left(HostId),
    /// Hosts have shown that they are there.
    Shown(BTreeSet<HostId>),
    /// There is a new connection to the broker.
    Connected,
    /// The console's clock was set: hosts are to say what theirs show.
    ClockSet,
}
