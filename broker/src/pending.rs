//! A client that has not sent its CONNECT.

use std::net::SocketAddr;

use muster_guard::LineKind;
use muster_topics::role::Identity;

use crate::{
    identity::{NobodyError, Serial},
    stream::ClientStream,
};

/// Log lines about refused connections, by address.
pub(crate) const TURNED_AWAY: LineKind = LineKind::new("refused connections", 60).burst(3);

/// A connection whose transport is ready, before its CONNECT.
pub(crate) struct PendingClient {
    pub(crate) stream: ClientStream,
    pub(crate) peer: SocketAddr,
    pub(crate) proof: TransportProof,
}

/// What the transport has shown of the client's identity.
pub(crate) enum TransportProof {
    /// A certificate of the fleet's authority.
    Certificate { identity: Identity, serial: Serial },
    /// Nothing: its CONNECT must have a user name and a password.
    Password,
    /// A certificate without an identity: its CONNECT will be refused.
    Nobody(NobodyError),
}
