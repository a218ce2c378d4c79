//! An admitted client.

use std::{sync::Arc, time::Duration};

use super::last_will::LastWill;
use crate::{
    access::ClientAccess,
    registry::ConnectionTicket,
    session::{ClientLimits, ClientSession},
};

/// An admitted client, as its CONNECT was answered.
pub(crate) struct AdmittedClient {
    pub(crate) ticket: ConnectionTicket,
    pub(crate) access: Arc<ClientAccess>,
    pub(crate) reach: ClientLimits,
    pub(crate) will: Option<LastWill>,
    pub(crate) session: ClientSession,
    pub(crate) session_expiry_s: u32,
    /// How long it may be silent.
    pub(crate) silence: Duration,
}
