//! TLS: only clients with a certificate of the fleet's authority get in, and the certificate says who they are.
//!
//! **Invariant: nothing here trusts the system's roots**, and no session is resumed, so that a certificate is looked at
//! on every connection.

mod stream;
mod verifier;

use std::sync::{Arc, PoisonError, RwLock};

pub(crate) use self::stream::TlsStream;

use rustls::{
    RootCertStore, ServerConfig,
    crypto::ring,
    pki_types::{
        CertificateDer, PrivateKeyDer,
        pem::{self, PemObject},
    },
    server::{NoServerSessionStorage, WebPkiClientVerifier},
};

use self::verifier::Verifier;
use crate::{StartError, revoked::Revoked};

/// The broker's own certificate, and whom it lets in. PEM documents, not paths.
#[derive(Clone)]
pub struct Tls {
    /// The authority whose certificates clients must have.
    pub authority: String,
    /// The broker's certificate, and what lies between it and the authority.
    pub certificate: String,
    /// The certificate's private key.
    pub key: String,
}

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tls")
            .field("authority", &self.authority)
            .field("certificate", &self.certificate)
            .field("key", &"***")
            .finish()
    }
}

impl Tls {
    /// The server's side of every handshake. What is `revoked` is refused; its lists are of this authority from then on.
    pub(crate) fn server(&self, revoked: &Arc<Revoked>) -> Result<Arc<ServerConfig>, StartError> {
        let provider = Arc::new(ring::default_provider());
        let what = "the authority's certificate";
        let mut roots = RootCertStore::empty();
        let authorities = certificates(what, &self.authority)?;
        for certificate in &authorities {
            roots.add(certificate.clone()).map_err(|source| tls(what, source))?;
        }
        let inner = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider))
            .build()
            .map_err(|source| tls(what, source))?;
        let verifier = Arc::new(Verifier { inner, revoked: Arc::clone(revoked) });
        let chain = certificates("the broker's certificate", &self.certificate)?;
        let key =
            PrivateKeyDer::from_pem_slice(self.key.as_bytes()).map_err(|source| tls("the broker's key", source))?;
        let what = "the broker's certificate with its key";
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|source| tls(what, source))?
            .with_client_cert_verifier(verifier)
            .with_single_cert(chain, key)
            .map_err(|source| tls(what, source))?;
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        revoked.trust(authorities);
        Ok(Arc::new(config))
    }
}

/// What handshakes are made with, which may be replaced while the broker runs: those that have begun go on with what they began with.
#[derive(Clone, Debug)]
pub(crate) struct Current(Arc<RwLock<Arc<ServerConfig>>>);

impl Current {
    pub(crate) fn new(config: Arc<ServerConfig>) -> Self {
        Self(Arc::new(RwLock::new(config)))
    }

    pub(crate) fn get(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn replace(&self, config: Arc<ServerConfig>) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = config;
    }
}

fn tls(what: &'static str, source: impl std::error::Error + Send + Sync + 'static) -> StartError {
    StartError::Tls { what, source: Box::new(source) }
}

fn certificates(what: &'static str, document: &str) -> Result<Vec<CertificateDer<'static>>, StartError> {
    let all = CertificateDer::pem_slice_iter(document.as_bytes())
        .collect::<Result<Vec<_>, _>>()
        .map_err(|source| tls(what, source))?;
    if all.is_empty() { Err(tls(what, pem::Error::NoItemsFound)) } else { Ok(all) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_never_printed() {
        let tls = Tls { authority: String::new(), certificate: String::new(), key: "secret".to_owned() };
        assert!(!format!("{tls:?}").contains("secret"));
    }
}
