//! Samples of the authority's keys.

use muster_api::authority::{
    AuthorityStatus, LackingHost, LackingReason, PastRotation, RotationStatus, SigningKeyPlace,
};
use muster_topics::name::{Digest, HostId};

use super::HOSTILE;

fn lacking() -> Vec<LackingHost> {
    let host =
        |why, away_since_ms| LackingHost { host: HostId::random(), hostname: HOSTILE.to_owned(), why, away_since_ms };
    vec![
        host(LackingReason::Unconfirmed, Some(1)),
        host(LackingReason::Unheard, None),
        host(LackingReason::OldAgent, None),
        host(LackingReason::CertificateExpired, Some(1)),
        host(LackingReason::HasOldKey, None),
    ]
}

/// Keys that were never replaced.
pub(super) fn quiet() -> AuthorityStatus {
    AuthorityStatus {
        fingerprint: Digest::of(b"root"),
        signing_key: "0123456789abcdef".to_owned(),
        signing_key_place: SigningKeyPlace::File,
        rotation: None,
        last_rotation: None,
    }
}

/// Keys in a rotation.
pub(super) fn rotating(ready: bool) -> AuthorityStatus {
    let rotation = RotationStatus {
        new_key: "fedcba9876543210".to_owned(),
        begun_ms: 1,
        operator: "admin".parse().unwrap(),
        having: 3,
        lacking: if ready { vec![] } else { lacking() },
        ready,
    };
    let signing_key_place = SigningKeyPlace::Signer(HOSTILE.to_owned());
    AuthorityStatus { rotation: Some(rotation), signing_key_place, ..quiet() }
}

/// Keys that were replaced.
pub(super) fn rotated() -> AuthorityStatus {
    let last = PastRotation {
        old_key: "fedcba9876543210".to_owned(),
        finished_ms: 1,
        operator: "admin".parse().unwrap(),
        having: 3,
        lacking: lacking(),
    };
    let signing_key_place = SigningKeyPlace::Credential(HOSTILE.to_owned());
    AuthorityStatus { last_rotation: Some(last), signing_key_place, ..quiet() }
}
