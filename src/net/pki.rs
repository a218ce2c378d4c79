//! TLS for every role: one provider, one way to read PEM, one trust model.
//!
//! **Invariant: nothing here trusts the system's roots.** A fleet trusts its own authority alone.

use std::sync::Arc;

use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
    client::{
        WebPkiServerVerifier,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
    crypto::{CryptoProvider, ring},
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime, pem::PemObject},
};

/// Why a certificate or a key cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PkiError {
    /// Not PEM, or it does not contain what it should.
    #[error("{what} cannot be read: {source}")]
    Pem {
        /// The document.
        what: &'static str,
        /// The reason.
        source: rustls::pki_types::pem::Error,
    },
    /// rustls refuses it.
    #[error("{what} cannot be used: {source}")]
    Tls {
        /// The document.
        what: &'static str,
        /// The reason.
        source: rustls::Error,
    },
}

/// The cryptography provider of all connections.
#[must_use]
pub fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

/// All certificates of a PEM document.
///
/// # Errors
/// If it is not PEM, or contains no certificate.
pub fn certificates(what: &'static str, pem: &str) -> Result<Vec<CertificateDer<'static>>, PkiError> {
    CertificateDer::pem_slice_iter(pem.as_bytes())
        .collect::<Result<Vec<_>, _>>()
        .and_then(|all| if all.is_empty() { Err(rustls::pki_types::pem::Error::NoItemsFound) } else { Ok(all) })
        .map_err(|source| PkiError::Pem { what, source })
}

/// The first private key of a PEM document.
///
/// # Errors
/// If it contains none.
pub fn private_key(what: &'static str, pem: &str) -> Result<PrivateKeyDer<'static>, PkiError> {
    PrivateKeyDer::from_pem_slice(pem.as_bytes()).map_err(|source| PkiError::Pem { what, source })
}

/// A root store with all authorities of a document: one, or two while one replaces the other.
///
/// # Errors
/// If the PEM document is not a usable certificate.
pub fn roots(authority_pem: &str) -> Result<RootCertStore, PkiError> {
    let what = "the authority's certificate";
    let mut roots = RootCertStore::empty();
    for certificate in certificates(what, authority_pem)? {
        roots.add(certificate).map_err(|source| PkiError::Tls { what, source })?;
    }
    Ok(roots)
}

/// The verifier of servers' certificates, which tolerates a clock that is behind: see [`ForgivingClock`].
///
/// # Errors
/// If there is no trusted authority.
pub fn server_verifier(roots: RootCertStore) -> Result<Arc<dyn ServerCertVerifier>, PkiError> {
    let what = "the authority's certificate";
    let inner = WebPkiServerVerifier::builder_with_provider(roots.into(), provider())
        .build()
        .map_err(|error| PkiError::Tls { what, source: Error::General(error.to_string()) })?;
    Ok(Arc::new(ForgivingClock(inner)))
}

/// Tolerates a clock that is behind. The fleet's authority issues no certificates for the future, so one that is not
/// yet valid shows that the clock is behind. A host without a clock battery starts in 1970 and could otherwise never
/// connect to learn the time. Whether a certificate has expired is decided by the clock; on such a host, by the start
/// of the certificate's validity.
#[derive(Debug)]
struct ForgivingClock(Arc<WebPkiServerVerifier>);

impl ServerCertVerifier for ForgivingClock {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let at = |now| self.0.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now);
        match at(now) {
            Err(Error::InvalidCertificate(CertificateError::NotValidYetContext { not_before, .. })) => at(not_before),
            judged => judged,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}

/// A client configuration that trusts one authority and presents its own certificate.
///
/// # Errors
/// If one of the PEM documents cannot be used.
pub fn client(authority_pem: &str, certificate_pem: &str, key_pem: &str) -> Result<ClientConfig, PkiError> {
    let what = "the client certificate";
    let chain = certificates(what, certificate_pem)?;
    let key = private_key("the client key", key_pem)?;
    ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(|source| PkiError::Tls { what, source })?
        .dangerous()
        .with_custom_certificate_verifier(server_verifier(roots(authority_pem)?)?)
        .with_client_auth_cert(chain, key)
        .map_err(|source| PkiError::Tls { what, source })
}
/// What can be done about a connection error, by its text, if a certificate was refused because of its validity period. A
/// fleet's certificates are renewed long before they expire, so a wrong clock is by far the more likely cause.
#[must_use]
pub fn clock_hint(said: &str) -> Option<&'static str> {
    is_about_time(said).then_some(
        "a certificate's time or a clock is wrong: compare `date -u` on both machines; certificates that \
         were made with a wrong clock are made again when the console starts, or a host joins",
    )
}

/// Whether a connection error says that a certificate was refused because of its validity period.
#[must_use]
pub fn is_about_time(said: &str) -> bool {
    let squeezed: String = said.chars().filter(|c| !c.is_whitespace()).collect::<String>().to_lowercase();
    ["certificateexpired", "notvalidyet", "certificatenotvalid"].iter().any(|what| squeezed.contains(what))
}

/// Whether a connection error says that the server's certificate is under no root that is trusted.
#[must_use]
pub fn is_of_unknown_root(said: &str) -> bool {
    said.contains("UnknownIssuer")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expired_certificate_error_mentions_the_clock() {
        for (said, speaks) in [
            ("received fatal alert: CertificateExpired", true),
            ("invalid peer certificate: certificate expired: verification time 1", true),
            ("invalid peer certificate: certificate not valid yet", true),
            ("invalid peer certificate: UnknownIssuer", false),
        ] {
            assert_eq!(clock_hint(said).is_some_and(|hint| hint.contains("clock")), speaks, "{said}");
        }
    }
}
