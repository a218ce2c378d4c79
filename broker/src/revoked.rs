//! The authority's revocation list (X.509, in PEM), which is replaced while the
//! broker runs.
//!
//! A list is accepted as a whole or not at all: one that is unreadable, foreign or partial leaves the one before in force. A document with
//! lists of several authorities needs one of a trusted one. A list in force stays so when it expires: revoked certificates do not become
//! valid again. So one that is out of date is better than none, and is accepted unless the one in force is as new.

use std::{
    collections::HashSet,
    fmt,
    sync::{Arc, PoisonError, RwLock},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use rustls::pki_types::{
    CertificateDer, CertificateRevocationListDer,
    pem::{self, PemObject},
};
use x509_parser::{
    extensions::X509Extension,
    prelude::{CertificateRevocationList, FromDer, X509Certificate},
};

use crate::identity::Serial;

/// Why a revocation list is refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RevocationError {
    /// The document has no list.
    #[error("the file has no revocation list (X.509, PEM)")]
    Pem(#[source] pem::Error),
    /// It cannot be parsed.
    #[error("the revocation list cannot be read: {0}")]
    Unreadable(String),
    /// It is not of this authority.
    #[error("the revocation list is of {issuer:?}, which is not the authority that the broker trusts")]
    Foreign {
        /// Its issuer.
        issuer: String,
    },
    /// It has the authority's name, but not its signature.
    #[error("the revocation list is not signed by the authority that the broker trusts")]
    Signature,
    /// It is outdated, and the one in force is as new.
    #[error("the revocation list is out of date, and not newer than the one in force: the next one was due {since}")]
    Expired {
        /// Since when.
        since: String,
    },
    /// It is incomplete, or has an unknown critical extension.
    #[error("the revocation list has the extension {0}, with which it may be incomplete")]
    Partial(String),
    /// It has an invalid serial number.
    #[error("the revocation list has a serial number of more than 20 bytes")]
    Serial,
}

/// A revocation list that is in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AcceptedList {
    /// How many certificates are on it.
    pub count: usize,
    /// By when there should have been another one, if it is out of date: who was revoked since then is admitted.
    pub overdue_since: Option<String>,
}

/// What a document with revocation lists says.
#[derive(Debug, Default)]
struct RevocationList {
    serials: HashSet<Serial>,
    /// When the newest of its lists was made.
    made_s: i64,
    /// By when there should have been another one, if one of its lists is out of date.
    overdue_since: Option<String>,
}

/// The revoked certificates.
#[derive(Default)]
pub(crate) struct RevokedSerials {
    /// The authorities whose lists are accepted.
    authorities: RwLock<Vec<CertificateDer<'static>>>,
    /// The list in force, if there is one.
    list: RwLock<Option<Arc<RevocationList>>>,
}

impl fmt::Debug for RevokedSerials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.list().map_or(0, |list| list.serials.len());
        f.debug_struct("Revoked").field("serials", &count).finish_non_exhaustive()
    }
}

impl RevokedSerials {
    /// Sets the authorities whose lists are accepted; revocations stay.
    pub(crate) fn trust(&self, authorities: Vec<CertificateDer<'static>>) {
        *self.authorities.write().unwrap_or_else(PoisonError::into_inner) = authorities;
    }

    /// The authorities whose lists are accepted.
    pub(crate) fn authorities(&self) -> Vec<CertificateDer<'static>> {
        self.authorities.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn list(&self) -> Option<Arc<RevocationList>> {
        self.list.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn contains(&self, serial: &Serial) -> bool {
        let list = self.list.read().unwrap_or_else(PoisonError::into_inner);
        list.as_ref().is_some_and(|list| list.serials.contains(serial))
    }

    /// Replaces the list. Its certificates are refused from then on; existing connections are the caller's to end.
    pub(crate) fn replace(&self, document: &str) -> Result<AcceptedList, RevocationError> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
        let list = read(document, &self.authorities(), i64::try_from(now.as_secs()).unwrap_or(i64::MAX))?;
        let accepted = AcceptedList { count: list.serials.len(), overdue_since: list.overdue_since.clone() };
        let mut in_force = self.list.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(since) = &list.overdue_since
            && in_force.as_ref().is_some_and(|in_force| in_force.made_s >= list.made_s)
        {
            return Err(RevocationError::Expired { since: since.clone() });
        }
        *in_force = Some(Arc::new(list));
        Ok(accepted)
    }
}

/// Parses all lists in a document; there is more than one only while an authority is being replaced by another. Those of an
/// authority that is not trusted, or not yet, count for nothing; there has to be one that does.
fn read(document: &str, authorities: &[CertificateDer<'_>], now_s: i64) -> Result<RevocationList, RevocationError> {
    let lists = CertificateRevocationListDer::pem_slice_iter(document.as_bytes())
        .collect::<Result<Vec<_>, _>>()
        .map_err(RevocationError::Pem)?;
    if lists.is_empty() {
        return Err(RevocationError::Pem(pem::Error::NoItemsFound));
    }
    let (mut read, mut is_any_ours, mut foreign) = (RevocationList::default(), false, None);
    for der in &lists {
        let list = match CertificateRevocationList::from_der(der) {
            Ok(([], list)) => list,
            Ok(_) => return Err(RevocationError::Unreadable("the file has data after the revocation list".to_owned())),
            Err(error) => return Err(RevocationError::Unreadable(error.to_string())),
        };
        match check(&list, authorities) {
            Ok(()) => is_any_ours = true,
            Err(error @ RevocationError::Foreign { .. }) => {
                foreign = Some(error);
                continue;
            }
            Err(error) => return Err(error),
        }
        read.made_s = read.made_s.max(list.last_update().timestamp());
        let due = list.next_update().filter(|due| due.timestamp() <= now_s);
        read.overdue_since = due.map(|due| due.to_string()).or(read.overdue_since);
        for revoked in list.iter_revoked_certificates() {
            refuse_critical(revoked.extensions())?;
            read.serials.insert(Serial::new(revoked.raw_serial()).ok_or(RevocationError::Serial)?);
        }
    }
    match foreign {
        Some(error) if !is_any_ours => Err(error),
        _ => Ok(read),
    }
}

fn check(list: &CertificateRevocationList<'_>, authorities: &[CertificateDer<'_>]) -> Result<(), RevocationError> {
    let mut named = authorities
        .iter()
        .filter_map(|authority| X509Certificate::from_der(authority).ok())
        .filter(|(_, authority)| authority.subject().as_raw() == list.issuer().as_raw())
        .peekable();
    if named.peek().is_none() {
        return Err(RevocationError::Foreign { issuer: list.issuer().to_string() });
    }
    if !named.any(|(_, authority)| list.verify_signature(authority.public_key()).is_ok()) {
        return Err(RevocationError::Signature);
    }
    refuse_critical(list.extensions())
}

/// A list that only has changes, or only certificates of some kind, has a critical extension.
fn refuse_critical(extensions: &[X509Extension<'_>]) -> Result<(), RevocationError> {
    match extensions.iter().find(|extension| extension.critical) {
        Some(extension) => Err(RevocationError::Partial(extension.oid.to_id_string())),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{Authority, Day};
    use proptest::prelude::*;

    #[track_caller]
    fn check(revoked: &RevokedSerials, document: &str, expected: Result<&[u64], &str>) {
        let serials = || revoked.list().map(|list| list.serials.clone());
        let before = serials();
        match (revoked.replace(document), expected) {
            (Ok(accepted), Ok(serials)) => {
                assert_eq!(accepted, AcceptedList { count: serials.len(), overdue_since: None });
                for serial in serials {
                    assert!(revoked.contains(&Serial::new(&serial.to_be_bytes()).unwrap()), "{serial}");
                }
            }
            (Err(error), Err(part)) => {
                assert!(error.to_string().contains(part), "{error}");
                assert_eq!(serials(), before);
            }
            (found, _) => panic!("{found:?}"),
        }
    }

    #[test]
    fn partial_list_is_refused() {
        let (authority, stranger) = (Authority::new(), Authority::named("another authority"));
        let namesake = Authority::new();
        let revoked = RevokedSerials::default();
        revoked.trust(vec![authority.der()]);
        let (tomorrow, yesterday) = (Day::Tomorrow, Day::Yesterday);
        let good = authority.revocation_list(&[1, 2, u64::MAX], tomorrow);
        check(&revoked, &good, Ok(&[1, 2, u64::MAX]));
        for (document, part) in [
            ("", "no revocation list"),
            ("nonsense", "no revocation list"),
            (&authority.certificate, "no revocation list"),
            ("-----BEGIN X509 CRL-----\nAAAA\n-----END X509 CRL-----\n", "cannot be read"),
            (&authority.revocation_list(&[3], yesterday), "out of date"),
            (&stranger.revocation_list(&[3], tomorrow), "another authority"),
            (&namesake.revocation_list(&[3], tomorrow), "not signed"),
            (&authority.partial_revocation_list(&[3]), "2.5.29.28"),
            (&[&good[..], &namesake.revocation_list(&[3], tomorrow)].concat(), "not signed"),
        ] {
            check(&revoked, document, Err(part));
        }
        // Before the new authority is trusted that replaces this one, its list does no harm.
        check(&revoked, &[&stranger.revocation_list(&[3], tomorrow), &good[..]].concat(), Ok(&[1, 2, u64::MAX]));
        check(&revoked, &authority.revocation_list(&[], tomorrow), Ok(&[]));
        assert!(!revoked.contains(&Serial::new(&[1]).unwrap()));
        let both = RevokedSerials::default();
        both.trust(vec![authority.der(), stranger.der(), namesake.der()]);
        let lists = [good, stranger.revocation_list(&[7], tomorrow), namesake.revocation_list(&[8], tomorrow)];
        check(&both, &lists.concat(), Ok(&[1, 2, u64::MAX, 7, 8]));
    }

    #[test]
    fn list_that_is_out_of_date_is_better_than_none() {
        let authority = Authority::new();
        let revoked = RevokedSerials::default();
        revoked.trust(vec![authority.der()]);
        let accepted = revoked.replace(&authority.revocation_list(&[1, 2], Day::Yesterday)).unwrap();
        assert!(accepted.overdue_since.is_some_and(|since| since.contains("2025")) && accepted.count == 2);
        assert!(revoked.contains(&Serial::new(&[2]).unwrap()));
        // The same day's is no news; what the console brings is.
        check(&revoked, &authority.revocation_list(&[], Day::Yesterday), Err("not newer"));
        check(&revoked, &authority.revocation_list(&[3], Day::Tomorrow), Ok(&[3]));
        check(&revoked, &authority.revocation_list(&[1, 2], Day::Yesterday), Err("not newer"));
    }

    proptest! {
        /// Whatever is changed in a list, it is refused, or has the same content.
        #[test]
        fn altered_list_is_refused(place: prop::sample::Index, bit in 0_u8..8) {
            let authority = Authority::new();
            let good = authority.revocation_list(&[1, 2, 3], Day::Tomorrow);
            let mut der = CertificateRevocationListDer::from_pem_slice(good.as_bytes()).unwrap().to_vec();
            let place = place.index(der.len());
            der[place] ^= 1 << bit;
            let list = read(&pem_of(&der), &[authority.der()], 0);
            prop_assert!(list.is_err() || list.unwrap().serials.len() == 3);
        }
    }

    fn pem_of(der: &[u8]) -> String {
        use base64::{Engine, engine::general_purpose::STANDARD};
        format!("-----BEGIN X509 CRL-----\n{}\n-----END X509 CRL-----\n", STANDARD.encode(der))
    }
}
