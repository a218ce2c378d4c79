//! TLS: only clients with a certificate of the fleet's authority get in, and the certificate says who they are.
//!
//! **Invariant: nothing here trusts the system's roots**, and no session is resumed, so that a certificate is looked at
//! on every connection.

mod stream;

use std::sync::Arc;

pub(crate) use self::stream::TlsStream;

use muster_topics::role::Identity;
use rustls::{
    RootCertStore, ServerConfig,
    crypto::ring,
    pki_types::{
        CertificateDer, PrivateKeyDer,
        pem::{self, PemObject},
    },
    server::{NoServerSessionStorage, WebPkiClientVerifier},
};
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::StartError;

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
    pub(crate) fn server(&self) -> Result<Arc<ServerConfig>, StartError> {
        let provider = Arc::new(ring::default_provider());
        let what = "the authority's certificate";
        let mut roots = RootCertStore::empty();
        for certificate in certificates(what, &self.authority)? {
            roots.add(certificate).map_err(|source| tls(what, source))?;
        }
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider))
            .build()
            .map_err(|source| tls(what, source))?;
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
        Ok(Arc::new(config))
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

/// Why a certificate, valid as it is, says nothing.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NobodyError {
    #[error("no certificate was shown")]
    NoCertificate,
    #[error("the certificate cannot be read")]
    Unreadable,
    #[error("the certificate's subject has {0} common names instead of one")]
    CommonNames(usize),
    #[error(transparent)]
    Unknown(#[from] muster_topics::role::IdentityError),
}

/// Who a verified certificate chain is for.
pub(crate) fn identity(chain: Option<&[CertificateDer<'_>]>) -> Result<Identity, NobodyError> {
    let own = chain.and_then(<[_]>::first).ok_or(NobodyError::NoCertificate)?;
    let (_, certificate) = X509Certificate::from_der(own).map_err(|_| NobodyError::Unreadable)?;
    let names: Vec<_> = certificate.subject().iter_common_name().collect();
    let [name] = names[..] else { return Err(NobodyError::CommonNames(names.len())) };
    Ok(name.as_str().map_err(|_| NobodyError::Unreadable)?.parse()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{CertificateParams, DnType, KeyPair};

    #[track_caller]
    fn check(common_names: &[&str], expected: Result<&str, &str>) {
        let mut params = CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        for (index, name) in common_names.iter().enumerate() {
            // rcgen keeps one value per type, so a second name goes in under its number.
            let kind = if index == 0 { DnType::CommonName } else { DnType::CustomDnType(vec![2, 5, 4, 3]) };
            params.distinguished_name.push(kind, *name);
        }
        let certificate = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
        match (identity(Some(&[certificate.der().clone()])), expected) {
            (Ok(identity), Ok(expected)) => assert_eq!(identity.to_string(), expected),
            (Err(error), Err(part)) => assert!(error.to_string().contains(part), "{error}"),
            (found, _) => panic!("{common_names:?} gave {found:?}"),
        }
    }

    #[test]
    fn the_common_name_is_the_identity() {
        let host = "0e2c1a4e-6a61-4a1c-9d0f-0d6d5a8f1f52";
        check(&[host], Ok(host));
        check(&["console-main"], Ok("console-main"));
        check(&["root"], Err("neither"));
        check(&[], Err("0 common names"));
        check(&["console-main", "console-other"], Err("2 common names"));
        assert!(identity(None).is_err());
        assert!(identity(Some(&[CertificateDer::from_slice(b"no certificate")])).is_err());
    }

    #[test]
    fn a_key_is_never_printed() {
        let tls = Tls { authority: String::new(), certificate: String::new(), key: "secret".to_owned() };
        assert!(!format!("{tls:?}").contains("secret"));
    }
}
