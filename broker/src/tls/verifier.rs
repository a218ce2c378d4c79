//! Verifies a client's certificate: by rustls, and by the revocation list.

use std::sync::Arc;

use muster_guard::{LineKind, log_peer};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, SignatureScheme,
    client::danger::HandshakeSignatureValid,
    pki_types::{CertificateDer, UnixTime},
    server::danger::{ClientCertVerified, ClientCertVerifier},
};
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::{identity::Serial, revoked::RevokedSerials};

/// Log lines about revoked certificates.
const REVOKED: LineKind = LineKind::new("revoked certificates", 600);

/// Refuses revoked certificates in the handshake, so that their owners get the reason.
#[derive(Debug)]
pub(super) struct Verifier {
    pub(super) inner: Arc<dyn ClientCertVerifier>,
    pub(super) revoked: Arc<RevokedSerials>,
}

impl ClientCertVerifier for Verifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.inner.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let verified = self.inner.verify_client_cert(end_entity, intermediates, now)?;
        let (_, certificate) = X509Certificate::from_der(end_entity).map_err(|_| CertificateError::BadEncoding)?;
        let serial = Serial::new(certificate.raw_serial()).ok_or(CertificateError::BadEncoding)?;
        if self.revoked.contains(&serial) {
            let subject = certificate.subject();
            log_peer!(INFO, serial, REVOKED, certificate.serial = %serial, certificate.subject = %subject, "the client presented a revoked certificate");
            return Err(CertificateError::Revoked.into());
        }
        Ok(verified)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.inner.supported_verify_schemes()
    }
}
