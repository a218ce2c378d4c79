//! Protects listeners against strangers: limits connections, slow clients and log lines. Broker and console use it, and it depends on
//! neither.
//!
//! Modules, in reading order:
//!
//! - `origin`: the origin of a connection, by its address, and which origins had a login lately
//! - `places`: the places of a listener, and which connection gives way when they are full; a state machine without IO
//! - `guard`: the same for tasks: a [`Guard`] for each listener, a [`ConnectionPlace`] for each connection
//! - `listen`: listening sockets, and whether a connection has sent anything
//! - `descriptors`: the limit of open files
//! - `stall`: a stream whose peer has to read
//! - `lines`: a limit on log lines about peers
//!
//! **Invariant: an honest client is admitted however many silent ones wait.** While all places are taken, the connection that
//! has been waited for longest gives way, and a silent one before one that has sent something.
//!
//! **Invariant: each listener has places of its own**, so that an attack on one does not affect another.

mod descriptors;
mod guard;
mod lines;
mod listen;
mod origin;
mod places;
mod stall;

pub use self::{
    descriptors::make_room,
    guard::{ConnectionPlace, Guard},
    lines::{LineKind, LineLimiter},
    listen::{has_spoken, listen},
    origin::{Origin, RecentLogins},
    places::{Admission, ConnectionActivity, ConnectionPlaces, PlaceLimits},
    stall::TimedWriter,
};

#[doc(hidden)]
pub use tracing;
