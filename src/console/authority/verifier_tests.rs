//! Tests of which verifiers accept a certificate of the authority, by which clock.

use std::time::Duration;

use muster_base::clock;
use muster_net::pki::{certificates, roots, server_verifier};
use rustls::pki_types::{ServerName, UnixTime};

use super::Authority;

const DAY: Duration = Duration::from_secs(24 * 3600);

#[test]
fn clock_behind_accepts_server_and_clock_ahead_refuses() {
    let folder = tempfile::tempdir().unwrap();
    let authority =
        Authority::open_or_create(&folder.path().join("authority"), crate::key_ring::KeySources::default()).unwrap();
    let other =
        Authority::open_or_create(&folder.path().join("other"), crate::key_ring::KeySources::default()).unwrap();
    let (server, _) = authority.issue_server(&["localhost".to_owned()]).unwrap();
    let chain = certificates("test", &server).unwrap();
    let judge = |authority: &Authority, name: &'static str, since_epoch: Duration| {
        let verifier = server_verifier(roots(&authority.certificate_pem()).unwrap()).unwrap();
        let (name, now) = (ServerName::try_from(name).unwrap(), UnixTime::since_unix_epoch(since_epoch));
        verifier.verify_server_cert(&chain[0], &chain[1..], &name, &[], now).is_ok()
    };
    let now = Duration::from_millis(clock::now_ms().unsigned_abs());
    for (at, good) in [(now, true), (Duration::ZERO, true), (now - 400 * DAY, true), (now + 400 * DAY, false)] {
        assert_eq!(judge(&authority, "localhost", at), good, "{at:?}");
    }
    for at in [now, Duration::ZERO] {
        assert!(!judge(&other, "localhost", at), "another authority's");
        assert!(!judge(&authority, "elsewhere", at), "another server's");
    }
}
