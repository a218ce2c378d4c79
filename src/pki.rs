//! TLS for every role: one provider, one way to read PEM, one way to trust.
//!
//! **Invariant: nothing here trusts the system's roots.** A fleet trusts its own authority alone.

use std::sync::Arc;

use rustls::{
    ClientConfig, RootCertStore,
    crypto::{CryptoProvider, ring},
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
};

/// Why a certificate or key cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PkiError {
    /// Not PEM, or without what should be in it.
    #[error("{what} cannot be read: {source}")]
    Pem {
        /// Which document.
        what: &'static str,
        /// Why not.
        source: rustls::pki_types::pem::Error,
    },
    /// rustls refuses it.
    #[error("{what} cannot be used: {source}")]
    Tls {
        /// Which document.
        what: &'static str,
        /// Why not.
        source: rustls::Error,
    },
}

/// The cryptography that every connection uses.
#[must_use]
pub fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

/// All certificates of a PEM document.
///
/// # Errors
/// If it is none.
pub fn certificates(what: &'static str, pem: &str) -> Result<Vec<CertificateDer<'static>>, PkiError> {
    CertificateDer::pem_slice_iter(pem.as_bytes())
        .collect::<Result<Vec<_>, _>>()
        .and_then(|all| if all.is_empty() { Err(rustls::pki_types::pem::Error::NoItemsFound) } else { Ok(all) })
        .map_err(|source| PkiError::Pem { what, source })
}

/// The first private key of a PEM document.
///
/// # Errors
/// If there is none.
pub fn private_key(what: &'static str, pem: &str) -> Result<PrivateKeyDer<'static>, PkiError> {
    PrivateKeyDer::from_pem_slice(pem.as_bytes()).map_err(|source| PkiError::Pem { what, source })
}

/// A store that trusts one authority.
///
/// # Errors
/// If the PEM document is no usable certificate.
pub fn roots(authority_pem: &str) -> Result<RootCertStore, PkiError> {
    let what = "the authority's certificate";
    let mut roots = RootCertStore::empty();
    for certificate in certificates(what, authority_pem)? {
        roots.add(certificate).map_err(|source| PkiError::Tls { what, source })?;
    }
    Ok(roots)
}

/// A client that trusts one authority and shows its own certificate.
///
/// # Errors
/// If one of the PEM documents cannot be used.
pub fn client(authority_pem: &str, certificate_pem: &str, key_pem: &str) -> Result<ClientConfig, PkiError> {
    let what = "the own certificate";
    let chain = certificates(what, certificate_pem)?;
    let key = private_key("the own key", key_pem)?;
    ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(|source| PkiError::Tls { what, source })?
        .with_root_certificates(roots(authority_pem)?)
        .with_client_auth_cert(chain, key)
        .map_err(|source| PkiError::Tls { what, source })
}
