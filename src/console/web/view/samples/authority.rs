//! Samples of the authority's keys.

use muster_api::authority::{
    AuthorityStatus, LackingHost, LackingReason, PastRotation, RootStage, RotatedKey, RotationStatus, SigningKeyPlace,
};
use muster_topics::name::{Digest, HostId};

use super::HOSTILE;

fn lacking() -> Vec<LackingHost> {
    let host =
        |why, away_since_ms| LackingHost { host: HostId::random(), hostname: HOSTILE.to_owned(), why, away_since_ms };
    vec![
        host(LackingReason::Unconfirmed, Some(1)),
        host(LackingReason::Unheard, None),
        host(LackingReason::CertificateExpired, Some(1)),
        host(LackingReason::HasOldKey, None),
        host(LackingReason::OldCertificate, Some(1)),
        host(LackingReason::HasOldRoot, None),
    ]
}

/// Keys that were never replaced.
pub(super) fn quiet() -> AuthorityStatus {
    AuthorityStatus {
        fingerprint: Digest::of(b"root"),
        certificates: "-----BEGIN CERTIFICATE-----".to_owned(),
        signing_key: "0123456789abcdef".to_owned(),
        signing_key_place: SigningKeyPlace::File,
        rotation: None,
        last_rotation: None,
    }
}

/// Keys in a rotation.
pub(super) fn rotating(ready: bool) -> AuthorityStatus {
    let rotation = RotationStatus {
        what: RotatedKey::Signing,
        stage: None,
        new_key: "fedcba9876543210".to_owned(),
        begun_ms: 1,
        operator: "admin".parse().unwrap(),
        having: 3,
        lacking: if ready { vec![] } else { lacking() },
        ready,
        broker: None,
        by_hand: vec![],
    };
    let signing_key_place = SigningKeyPlace::Signer(HOSTILE.to_owned());
    AuthorityStatus { rotation: Some(rotation), signing_key_place, ..quiet() }
}

/// A root in a rotation.
pub(super) fn rotating_root(stage: RootStage, ready: bool) -> AuthorityStatus {
    let status = rotating(ready);
    let rotation = status.rotation.map(|rotation| RotationStatus {
        what: RotatedKey::Root,
        stage: Some(stage),
        broker: Some(HOSTILE.to_owned()),
        by_hand: vec![HOSTILE.to_owned()],
        ..rotation
    });
    AuthorityStatus { rotation, ..status }
}

/// Keys that were replaced.
pub(super) fn rotated(is_root: bool) -> AuthorityStatus {
    let last = PastRotation {
        what: if is_root { RotatedKey::Root } else { RotatedKey::Signing },
        old_key: "fedcba9876543210".to_owned(),
        finished_ms: 1,
        operator: "admin".parse().unwrap(),
        having: 3,
        lacking: lacking(),
    };
    let signing_key_place = SigningKeyPlace::Credential(HOSTILE.to_owned());
    AuthorityStatus { last_rotation: Some(last), signing_key_place, ..quiet() }
}
