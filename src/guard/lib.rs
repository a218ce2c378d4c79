//! What stands in front of every listener, so that a stranger costs nothing: broker and console use it alike, and it knows
//! nothing of either.
//!
//! Modules, in reading order:
//!
//! - `origin`: whom a connection counts for, by its address; which of them had a login lately
//! - `places`: the places of a listener, and whose is given to another when there are no more; a state machine without IO
//! - `guard`: the same for tasks: a [`Guard`] for each listener, a [`Place`] for each connection
//! - `listen`: sockets that listen, and whether a connection has said anything
//! - `descriptors`: room for as many sockets as may come
//! - `stall`: a stream whose other end has to take what is written
//! - `lines`: what is logged of peers, and how much of it at most
//!
//! **Invariant: to be accepted, a connection waits for nobody who is waited for.** While all places are taken, the one who
//! has been waited for longest gives way, and one that says nothing does before one that speaks.
//!
//! **Invariant: each listener has places of its own**, so that what is done to one is not felt at another.

mod descriptors;
mod guard;
mod lines;
mod listen;
mod origin;
mod places;
mod stall;

pub use self::{
    descriptors::make_room,
    guard::{Guard, Place},
    lines::{Kind, Lines},
    listen::{has_spoken, listen},
    origin::{Origin, RecentLogins},
    places::{Activity, Limits, Offer, Places},
    stall::WriteLimit,
};

#[doc(hidden)]
pub use tracing;
