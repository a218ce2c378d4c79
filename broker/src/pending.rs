//! A client that has not sent its CONNECT.

use std::net::SocketAddr;

use muster_guard::LineKind;
use muster_topics::role::Identity;

use crate::{
    stream::ClientStream,
    who::{NobodyError, Serial},
};

/// A connection that did not become a client's, by where it came from.
pub(crate) const TURNED_AWAY: LineKind = LineKind::new("refused connections", 60).burst(3);

/// A connection whose transport is ready, before its CONNECT.
pub(crate) struct PendingClient {
    pub(crate) stream: ClientStream,
    pub(crate) peer: SocketAddr,
    pub(crate) proof: TransportProof,
}

/// What its transport has shown of who a guest is.
pub(crate) enum TransportProof {
    /// A certificate of the fleet's authority.
    Certificate { identity: Identity, serial: Serial },
    /// Nothing: its CONNECT has to bring a user name and a password.
    Password,
    /// One that says nothing: its CONNECT is only there to be refused.
    Nobody(NobodyError),
}
