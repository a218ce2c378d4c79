//! TLS: only clients with a certificate of the fleet's authority are admitted, and the certificate is their identity.
//!
//! **Invariant: nothing here trusts the system's roots**, and no session is resumed, so that a certificate is checked
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

use x509_parser::{
    error::X509Error,
    prelude::{FromDer, X509Certificate},
};

use self::verifier::Verifier;
use crate::{error::BrokerError, revoked::RevokedSerials};

/// The broker's own certificate, and the authority of clients. PEM documents, not paths.
#[derive(Clone)]
pub struct Tls {
    /// The authority whose certificates clients must have.
    pub authority: String,
    /// The broker's certificate, with intermediates.
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
    /// Returns the server's configuration for handshakes. Certificates in `revoked` are refused; its lists are of this
    /// authority from then on.
    pub(crate) fn server(&self, revoked: &Arc<RevokedSerials>) -> Result<Arc<ServerConfig>, BrokerError> {
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
        check_chain(what, &authorities)?;
        check_chain("the broker's certificate", &chain)?;
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

/// The configuration of handshakes, which may be replaced while the broker runs: handshakes under way keep theirs.
#[derive(Clone, Debug)]
pub(crate) struct CurrentTls(Arc<RwLock<Arc<ServerConfig>>>);

impl CurrentTls {
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

/// Checks that each certificate is signed by the next, and a self-issued one by itself: rustls does not verify the
/// signatures of certificates that it presents or trusts, and clients refuse a wrong one.
fn check_chain(what: &'static str, chain: &[CertificateDer<'_>]) -> Result<(), BrokerError> {
    let chain = chain.iter().map(|der| X509Certificate::from_der(der).map(|(_, certificate)| certificate));
    let chain = chain.collect::<Result<Vec<_>, _>>().map_err(|source| tls(what, source))?;
    for (certificate, behind) in chain.iter().zip(chain.iter().skip(1).map(Some).chain([None])) {
        let issuers = [Some(certificate), behind].into_iter().flatten();
        let issuers = issuers.filter(|issuer| issuer.subject() == certificate.issuer());
        // Unknown signature algorithms are not checked here.
        let is_wrong = |issuer: &X509Certificate<'_>| {
            let verified = certificate.verify_signature(Some(issuer.public_key()));
            matches!(verified, Err(X509Error::SignatureVerificationError))
        };
        let wrong: Vec<_> = issuers.map(is_wrong).collect();
        if !wrong.is_empty() && wrong.iter().all(|is_wrong| *is_wrong) {
            return Err(tls(what, X509Error::SignatureVerificationError));
        }
    }
    Ok(())
}

fn tls(what: &'static str, source: impl std::error::Error + Send + Sync + 'static) -> BrokerError {
    BrokerError::Tls { what, source: Box::new(source) }
}

fn certificates(what: &'static str, document: &str) -> Result<Vec<CertificateDer<'static>>, BrokerError> {
    let all = CertificateDer::pem_slice_iter(document.as_bytes())
        .collect::<Result<Vec<_>, _>>()
        .map_err(|source| tls(what, source))?;
    if all.is_empty() { Err(tls(what, pem::Error::NoItemsFound)) } else { Ok(all) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::Authority;

    #[test]
    fn certificate_with_a_wrong_signature_is_refused() {
        let (authority, namesake, stranger) =
            (Authority::new(), Authority::new(), Authority::named("another authority"));
        let flipped = |der: &CertificateDer<'_>| {
            let mut bytes = der.to_vec();
            *bytes.last_mut().unwrap() ^= 1;
            CertificateDer::from(bytes)
        };
        let leaf = CertificateDer::from_pem_slice(authority.issue("broker").certificate.as_bytes()).unwrap();
        for (chain, is_right) in [
            (vec![authority.der()], true),
            (vec![leaf.clone()], true),
            (vec![leaf.clone(), authority.der()], true),
            // While one authority is replaced by another of its name.
            (vec![authority.der(), namesake.der(), stranger.der()], true),
            (vec![flipped(&authority.der())], false),
            (vec![flipped(&leaf), authority.der()], false),
            (vec![leaf.clone(), namesake.der()], false),
        ] {
            assert_eq!(check_chain("a chain", &chain).is_ok(), is_right, "{chain:?}");
        }
    }

    #[test]
    fn a_key_is_never_printed() {
        let tls = Tls { authority: String::new(), certificate: String::new(), key: "secret".to_owned() };
        assert!(!format!("{tls:?}").contains("secret"));
    }
}
