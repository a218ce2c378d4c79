//! Who this host is: its key, its membership of a fleet, how it came by them and renews them.

use muster_topics::join::Membership;

use crate::pki::{self, PkiError};

/// This host as a member of its fleet.
#[derive(Clone)]
pub struct Identity {
    /// What the console gave.
    pub membership: Membership,
    /// The host's own key, in PEM; it never leaves the host.
    pub key: String,
}

impl Identity {
    /// TLS to the broker and the console.
    ///
    /// # Errors
    /// If certificate or key cannot be used.
    pub fn tls(&self) -> Result<rustls::ClientConfig, PkiError> {
        pki::client(&self.membership.authority, &self.membership.certificate, &self.key)
    }
}
