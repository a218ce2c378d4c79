//! The identity of a certificate.

use std::fmt;

use muster_topics::role::Identity;
use rustls::pki_types::CertificateDer;
use x509_parser::prelude::{FromDer, X509Certificate};

/// The longest serial number of a certificate (RFC 5280, 4.1.2.2).
pub(crate) const SERIAL_MAX_BYTES: usize = 20;

/// A certificate's serial number. The broker has one authority, so it identifies a certificate.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Serial([u8; SERIAL_MAX_BYTES]);

impl Serial {
    /// Creates it from bytes, most significant first. `None` if there are too many.
    pub(crate) fn new(bytes: &[u8]) -> Option<Self> {
        // If its first bit is set, the encoding has a leading zero, because the type is signed.
        let start = bytes.iter().position(|byte| *byte != 0).unwrap_or(bytes.len());
        let digits = bytes.get(start..)?;
        let mut serial = [0; SERIAL_MAX_BYTES];
        serial.get_mut(SERIAL_MAX_BYTES.checked_sub(digits.len())?..)?.copy_from_slice(digits);
        Some(Self(serial))
    }

    /// Returns all bytes, most significant first.
    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Display for Serial {
    /// Formats it as hexadecimal digits, as `openssl x509 -serial` does.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let start = self.0.iter().position(|byte| *byte != 0).unwrap_or(SERIAL_MAX_BYTES - 1);
        self.0.iter().skip(start).try_for_each(|byte| write!(f, "{byte:02X}"))
    }
}

impl fmt::Debug for Serial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Serial({self})")
    }
}

/// Why a valid certificate has no identity.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NobodyError {
    #[error("no certificate was shown")]
    NoCertificate,
    #[error("the certificate cannot be read")]
    Unreadable,
    #[error("the certificate's serial number has more than 20 bytes")]
    Serial,
    #[error("the certificate's subject has {0} common names instead of one")]
    CommonNames(usize),
    #[error(transparent)]
    Unknown(#[from] muster_topics::role::IdentityError),
}

/// Returns the identity of a verified certificate chain, and the certificate's serial number.
pub(crate) fn identify(chain: Option<&[CertificateDer<'_>]>) -> Result<(Identity, Serial), NobodyError> {
    let own = chain.and_then(<[_]>::first).ok_or(NobodyError::NoCertificate)?;
    let (_, certificate) = X509Certificate::from_der(own).map_err(|_| NobodyError::Unreadable)?;
    let serial = Serial::new(certificate.raw_serial()).ok_or(NobodyError::Serial)?;
    let names: Vec<_> = certificate.subject().iter_common_name().collect();
    let [name] = names[..] else { return Err(NobodyError::CommonNames(names.len())) };
    Ok((name.as_str().map_err(|_| NobodyError::Unreadable)?.parse()?, serial))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{CertificateParams, DnType, KeyPair};

    #[track_caller]
    fn check(common_names: &[&str], expected: Result<&str, &str>) {
        let mut params = CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.serial_number = Some(0x00c0_ffee_u64.into());
        for (index, name) in common_names.iter().enumerate() {
            // rcgen keeps one value per type, so a second name is added by its number.
            let kind = if index == 0 { DnType::CommonName } else { DnType::CustomDnType(vec![2, 5, 4, 3]) };
            params.distinguished_name.push(kind, *name);
        }
        let certificate = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
        match (identify(Some(&[certificate.der().clone()])), expected) {
            (Ok((identity, serial)), Ok(expected)) => {
                assert_eq!(identity.to_string(), expected);
                assert_eq!(serial.to_string(), "C0FFEE");
            }
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
        assert!(identify(None).is_err());
        assert!(identify(Some(&[CertificateDer::from_slice(b"no certificate")])).is_err());
    }

    #[test]
    fn serial_numbers_are_numbers() {
        let serial = |bytes: &[u8]| Serial::new(bytes).map(|serial| serial.to_string());
        for (bytes, expected) in [
            (&[][..], Some("00")),
            (&[0], Some("00")),
            (&[0, 0x80, 1], Some("8001")),
            (&[0x80, 1], Some("8001")),
            (&[7; 20], Some("0707070707070707070707070707070707070707")),
            (&[7; 21], None),
        ] {
            assert_eq!(serial(bytes).as_deref(), expected, "{bytes:?}");
        }
        assert_eq!(Serial::new(&[0, 5]), Serial::new(&[5]));
        assert_ne!(Serial::new(&[5, 0]), Serial::new(&[5]));
        assert!(serial(&[&[0][..], &[0xff; 20]].concat()).is_some());
    }
}
