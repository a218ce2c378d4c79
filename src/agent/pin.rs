//! Trusts a console that this host has never met: its certificate must be issued by the
//! authority whose fingerprint the join token carries.
//!
//! **Invariant: no byte of a request is written before the fingerprint was compared.**

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use muster_net::pki;
use muster_topics::name::Digest;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature},
    pki_types::{CertificateDer, ServerName, UnixTime},
};

/// Accepts only a server whose chain ends in the authority with this fingerprint.
#[derive(Debug)]
pub(super) struct PinnedVerifier {
    authority: Digest,
    provider: Arc<CryptoProvider>,
    strange: AtomicBool,
}

impl PinnedVerifier {
    pub(super) fn new(authority: Digest) -> Arc<Self> {
        Arc::new(Self { authority, provider: pki::provider(), strange: AtomicBool::new(false) })
    }

    /// Whether a server of another authority answered, so that a retry is useless.
    pub(super) fn met_a_stranger(&self) -> bool {
        self.strange.load(Ordering::Relaxed)
    }

    /// Returns the TLS configuration with this pin.
    pub(super) fn client(self: &Arc<Self>) -> Result<ClientConfig, Error> {
        Ok(ClientConfig::builder_with_provider(self.provider.clone())
            .with_safe_default_protocol_versions()?
            .dangerous()
            .with_custom_certificate_verifier(self.clone())
            .with_no_client_auth())
    }
}

impl ServerCertVerifier for PinnedVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let stranger = |error| {
            self.strange.store(true, Ordering::Relaxed);
            error
        };
        let authority = intermediates
            .iter()
            .find(|certificate| Digest::of(certificate) == self.authority)
            .ok_or_else(|| stranger(Error::InvalidCertificate(CertificateError::UnknownIssuer)))?;
        let mut roots = RootCertStore::empty();
        roots.add(authority.clone().into_owned())?;
        pki::server_verifier(roots)
            .map_err(|error| Error::General(error.to_string()))?
            .verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now)
            .map_err(|error| match error {
                // Anybody can present the authority's public certificate; only the fleet's own server has one issued
                // by it. (A wrong clock or name is a fault that may pass.)
                Error::InvalidCertificate(CertificateError::UnknownIssuer | CertificateError::BadSignature) => {
                    stranger(error)
                }
                error => error,
            })
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
