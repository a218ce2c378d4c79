use std::collections::BTreeSet;

use muster_net::pki;
use muster_rules::rotation::KeyState;
use muster_topics::diagnostic::Diagnostic;
use muster_topics::name::{HostId, Name};
use rustls::{pki_types::UnixTime, server::WebPkiClientVerifier};

use super::*;
use crate::authority::Authority;

fn admin() -> Name {
    "admin".parse().unwrap()
}

/// The authority of a console that has just started.
fn open(folder: &Path) -> Authority {
    let authority = Authority::open_or_create(folder, KeySources::default()).unwrap();
    authority.complete().unwrap();
    authority
}

fn names(folder: &Path) -> Vec<String> {
    let names = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.filter(|name| name.starts_with("authority")).collect();
    names.sort();
    names
}

const ONE: [&str; 2] = [ROOT_KEY, ROOT_CERTIFICATE];
const TWO: [&str; 4] = [ROOT_KEY, NEXT_ROOT_KEY, NEXT_ROOT_CERTIFICATE, ROOT_CERTIFICATE];

fn state(authority: &Authority) -> KeyState {
    authority.keys().state.clone()
}

/// Returns the state once a new root is offered, which is made.
fn offered(authority: &Authority) -> KeyState {
    let key = authority.make_next_root().unwrap();
    state(authority).root_offered(authority.roots().serving().key().clone(), key, admin(), now_ms()).unwrap()
}

fn issuing(authority: &Authority) -> KeyState {
    state(authority).root_issuing(admin(), BTreeSet::new(), now_ms()).unwrap()
}

fn finished(authority: &Authority) -> KeyState {
    state(authority).root_finished("old".to_owned(), admin(), BTreeSet::new(), now_ms()).unwrap()
}

/// Whether a server that trusts these roots accepts a client's certificate.
fn is_accepted(roots: &str, certificate: &str) -> bool {
    let roots = Arc::new(pki::roots(roots).unwrap());
    let verifier = WebPkiClientVerifier::builder_with_provider(roots, pki::provider()).build().unwrap();
    let certificate = CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap();
    verifier.verify_client_cert(&certificate, &[], UnixTime::now()).is_ok()
}

fn client(authority: &Authority) -> String {
    authority.issue_client(&Identity::Host(HostId::random()), Duration::from_secs(60)).unwrap().0
}

#[test]
fn new_root_takes_over_in_three_steps() {
    let folder = tempfile::tempdir().unwrap();
    let authority = open(folder.path());
    let (old, old_client) = (authority.certificate_pem(), client(&authority));
    let old_fingerprint = authority.fingerprint();

    authority.set(offered(&authority)).unwrap();
    let both = authority.certificate_pem();
    assert!(both.starts_with(&old) && both.len() > old.len() && names(folder.path()) == TWO);
    assert!(is_accepted(&old, &client(&authority)), "certificates are still under the old one");
    let server = |authority: &Authority| authority.issue_server(&["localhost".to_owned()]).unwrap().0;
    assert!(server(&authority).ends_with(&old));

    authority.set(issuing(&authority)).unwrap();
    let new = authority.roots().issuing().pem().to_owned();
    let new_client = client(&authority);
    assert_eq!(authority.certificate_pem(), format!("{new}{old}"), "the one that issues is the first");
    assert!(is_accepted(&both, &new_client) && is_accepted(&both, &old_client) && !is_accepted(&old, &new_client));
    assert!(server(&authority).ends_with(&old) && authority.fingerprint() == old_fingerprint);
    let broker = authority.roots().issuing().issue_server(&["localhost".to_owned()]).unwrap().0;
    assert!(broker.ends_with(&new));

    authority.set(finished(&authority)).unwrap();
    assert_eq!((authority.certificate_pem(), names(folder.path())), (new.clone(), ONE.map(str::to_owned).to_vec()));
    assert!(server(&authority).ends_with(&new) && authority.fingerprint() != old_fingerprint);
    assert!(is_accepted(&new, &new_client) && !is_accepted(&new, &old_client));
    assert_eq!(open(folder.path()).certificate_pem(), new);
    // And once more, from a root that was not the first.
    authority.set(offered(&authority)).unwrap();
    authority.set(issuing(&authority)).unwrap();
    authority.set(finished(&authority)).unwrap();
    assert!(!is_accepted(&authority.certificate_pem(), &new_client));
    assert_eq!(open(folder.path()).certificate_pem(), authority.certificate_pem());
}

#[test]
fn no_two_roots_have_one_name() {
    let folder = tempfile::tempdir().unwrap();
    let authority = open(folder.path());
    let mut seen = BTreeSet::new();
    for _ in 0..3 {
        authority.set(offered(&authority)).unwrap();
        seen.extend(authority.roots().all().map(|root| root.name.clone()));
        authority.set(issuing(&authority)).unwrap();
        authority.set(finished(&authority)).unwrap();
    }
    assert_eq!(seen.len(), 4, "{seen:?}");
    assert!(authority.roots().has_name(seen.iter().find(|name| authority.roots().has_name(name)).unwrap()));
    assert!(!authority.roots().has_name(ROOT_NAME));
}

#[test]
fn killed_console_goes_on_with_the_roots_that_hosts_have() {
    for stop in ["made", "offered", "issuing", "finished", "key renamed"] {
        let folder = tempfile::tempdir().unwrap();
        let authority = open(folder.path());
        let path = |name: &str| folder.path().join(name);
        // Otherwise its state is not written before the first rotation.
        authority.set(KeyState { generation: 1, ..state(&authority) }).unwrap();
        let old = authority.certificate_pem();
        let next = offered(&authority);
        if stop == "made" {
            assert_eq!(open(folder.path()).certificate_pem(), old, "{stop}");
            assert_eq!(names(folder.path()), ONE, "nobody was told of it");
            continue;
        }
        authority.set(next).unwrap();
        if stop != "offered" {
            authority.set(issuing(&authority)).unwrap();
        }
        let wanted = match stop {
            "finished" | "key renamed" => {
                // The state is written, and the files are as before.
                let files = TWO.map(|name| (path(name), fs::read(path(name)).unwrap()));
                authority.set(finished(&authority)).unwrap();
                files.iter().for_each(|(path, bytes)| fs::write(path, bytes).unwrap());
                if stop == "key renamed" {
                    fs::rename(path(NEXT_ROOT_KEY), path(ROOT_KEY)).unwrap();
                }
                ONE.map(str::to_owned).to_vec()
            }
            _ => TWO.map(str::to_owned).to_vec(),
        };
        // Another process, such as `muster console issue`, changes nothing.
        let other = Authority::open(folder.path(), KeySources::default()).unwrap();
        assert_eq!(other.certificate_pem(), authority.certificate_pem(), "{stop}");
        let again = open(folder.path());
        assert_eq!((again.certificate_pem(), names(folder.path())), (authority.certificate_pem(), wanted), "{stop}");
        assert_eq!(again.fingerprint(), authority.fingerprint(), "{stop}");
        assert_eq!(open(folder.path()).certificate_pem(), authority.certificate_pem(), "{stop}");
    }
}

#[test]
fn cancelled_root_is_removed() {
    let folder = tempfile::tempdir().unwrap();
    let authority = open(folder.path());
    let old = authority.certificate_pem();
    authority.set(offered(&authority)).unwrap();
    authority.set(state(&authority).root_cancelled(now_ms()).unwrap()).unwrap();
    assert_eq!((authority.certificate_pem(), names(folder.path())), (old.clone(), ONE.map(str::to_owned).to_vec()));
    assert_eq!(open(folder.path()).certificate_pem(), old);
}

#[test]
fn lost_state_leaves_both_roots_trusted() {
    for damage in [None, Some("nonsense")] {
        let folder = tempfile::tempdir().unwrap();
        let authority = open(folder.path());
        authority.set(offered(&authority)).unwrap();
        authority.set(issuing(&authority)).unwrap();
        let client = client(&authority);
        let file = folder.path().join("keys.json");
        fs::remove_file(&file).unwrap();
        damage.into_iter().for_each(|text| fs::write(&file, text).unwrap());
        let again = open(folder.path());
        assert!(state(&again).generation >= state(&authority).generation, "hosts are told");
        assert!(is_accepted(&again.certificate_pem(), &client), "{damage:?}");
        assert_eq!(names(folder.path()), TWO, "{damage:?}");
        again.set(issuing(&again)).unwrap();
        again.set(finished(&again)).unwrap();
        assert!(is_accepted(&again.certificate_pem(), &client), "{damage:?}");
    }
}

#[test]
fn lost_certificate_is_made_anew_from_its_key_and_lost_key_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let authority = open(folder.path());
    authority.set(offered(&authority)).unwrap();
    authority.set(issuing(&authority)).unwrap();
    let client = client(&authority);
    fs::remove_file(folder.path().join(NEXT_ROOT_CERTIFICATE)).unwrap();
    let again = open(folder.path());
    assert_ne!(again.certificate_pem(), authority.certificate_pem());
    assert!(is_accepted(&again.certificate_pem(), &client), "its name and key are the same");
    again.set(finished(&again)).unwrap();
    fs::remove_file(folder.path().join(ROOT_CERTIFICATE)).unwrap();
    assert!(is_accepted(&open(folder.path()).certificate_pem(), &client), "after the rotation, too");

    again.set(offered(&again)).unwrap();
    fs::remove_file(folder.path().join(NEXT_ROOT_KEY)).unwrap();
    let told = Diagnostic::of(&Authority::open(folder.path(), KeySources::default()).unwrap_err());
    assert!(told.cause.contains(NEXT_ROOT_KEY) && told.hint.is_some(), "{told}");
}

#[test]
fn revocation_list_is_of_both_roots() {
    let folder = tempfile::tempdir().unwrap();
    let authority = open(folder.path());
    let revoked = [crate::store::issued::RevokedCertificate { serial: "4100".to_owned(), revoked_ms: 1_000 }];
    let list = |authority: &Authority| authority.revocation_list(&revoked, Duration::from_secs(60), now_ms()).unwrap();
    let read = |list: &str| authority.read_revocation_list(list.as_bytes()).map(|(serials, _)| serials);
    let of_old = list(&authority);
    authority.set(offered(&authority)).unwrap();
    let of_both = list(&authority);
    assert_eq!(of_both.matches("BEGIN X509 CRL").count(), 2);
    assert_eq!((read(&of_both), read(&of_old)), (Some(vec!["4100".to_owned()]), None));
    authority.set(issuing(&authority)).unwrap();
    authority.set(finished(&authority)).unwrap();
    assert_eq!(list(&authority).matches("BEGIN X509 CRL").count(), 1);
    assert_eq!(read(&of_old), None);
}

#[test]
fn root_in_a_credential_is_read_and_none_is_written() {
    let (folder, credentials) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let old = open(folder.path()).certificate_pem();
    let (at, credential) = (|name: &str| folder.path().join(name), |name: &str| credentials.path().join(name));
    fs::rename(at(ROOT_KEY), credential(ROOT_KEY)).unwrap();
    let sources = KeySources { credentials: Some(credentials.path().to_owned()), signer: None };
    let open = || {
        let authority = Authority::open(folder.path(), sources.clone()).unwrap();
        authority.complete().unwrap();
        authority
    };
    let authority = open();
    let refused = authority.make_next_root().unwrap_err();
    assert!(matches!(refused, NewKeyError::RootCredential(_)), "{refused}");
    let new = KeyPair::generate().unwrap().serialize_pem();
    fs::write(credential(NEXT_ROOT_KEY), &new).unwrap();
    authority.set(offered(&authority)).unwrap();
    authority.set(issuing(&authority)).unwrap();
    authority.set(finished(&authority)).unwrap();
    let present = authority.certificate_pem();
    assert_ne!(present, old);
    assert_eq!((open().certificate_pem(), names(folder.path())), (present.clone(), vec![ROOT_CERTIFICATE.to_owned()]));
    assert!(matches!(authority.make_next_root(), Err(NewKeyError::RootCredential(_))), "it is the present one");
    fs::rename(credential(NEXT_ROOT_KEY), credential(ROOT_KEY)).unwrap();
    assert_eq!(open().certificate_pem(), present);
}
