use muster_rules::rotation::KeyState;
use muster_topics::{diagnostic::Diagnostic, name::Name};

use super::*;

fn admin() -> Name {
    "admin".parse().unwrap()
}

fn open(folder: &Path) -> KeyRing {
    let ring = KeyRing::open(folder, KeySources::default()).unwrap();
    ring.complete().unwrap();
    ring
}

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// Begins a rotation; returns the old and the new key.
async fn begin(ring: &KeyRing) -> (PublicKey, PublicKey) {
    let old = ring.active().state.signing.clone();
    let new = ring.new_key().await.unwrap();
    ring.set(ring.active().state.offered(new.clone(), admin(), now_ms()).unwrap()).unwrap();
    (old, new)
}

fn finished(ring: &KeyRing) -> KeyState {
    ring.active().state.finished(admin(), [].into(), now_ms()).unwrap()
}

#[tokio::test]
async fn rotation_replaces_the_key_and_leaves_one_file() {
    let folder = tempfile::tempdir().unwrap();
    let ring = open(folder.path());
    assert_eq!(names(folder.path()), [SIGNING_KEY], "nothing more, as long as nothing was replaced");
    let (old, new) = begin(&ring).await;
    assert_eq!(ring.active().state.signing, old, "the old one signs");
    let again = open(folder.path());
    assert_eq!(again.active().state, ring.active().state, "after a restart, too");
    again.set(finished(&again)).unwrap();
    assert_eq!(
        (&again.active().state.signing, names(folder.path())),
        (&new, vec![STATE.to_owned(), SIGNING_KEY.to_owned()])
    );
    assert_eq!(open(folder.path()).active().state.signing, new);
}

#[tokio::test]
async fn cancelled_key_is_deleted_and_never_used_again() {
    let folder = tempfile::tempdir().unwrap();
    let ring = open(folder.path());
    let (old, new) = begin(&ring).await;
    ring.set(ring.active().state.cancelled(now_ms()).unwrap()).unwrap();
    assert_eq!(
        (&ring.active().state.signing, names(folder.path())),
        (&old, vec![STATE.to_owned(), SIGNING_KEY.to_owned()])
    );
    let (_, other) = begin(&ring).await;
    assert_ne!(new, other);
}

/// What is in the folder when a console is killed at each step.
#[tokio::test]
async fn killed_console_goes_on_with_the_key_that_hosts_have() {
    // The new key is written, and nobody was told of it.
    let folder = tempfile::tempdir().unwrap();
    let ring = open(folder.path());
    let old = ring.active().state.signing.clone();
    ring.new_key().await.unwrap();
    assert_eq!(
        (&open(folder.path()).active().state.signing, names(folder.path())),
        (&old, vec![SIGNING_KEY.to_owned()])
    );

    // It is finished, and the files are as they were.
    let ring = open(folder.path());
    let (_, new) = begin(&ring).await;
    write_state(folder.path(), &finished(&ring)).unwrap();
    assert_eq!(names(folder.path()), [STATE, SIGNING_KEY, NEXT_KEY]);
    // Another process reads it meanwhile, and changes nothing.
    assert_eq!(KeyRing::open(folder.path(), KeySources::default()).unwrap().active().state.signing, new);
    assert_eq!(names(folder.path()), [STATE, SIGNING_KEY, NEXT_KEY]);
    let again = open(folder.path());
    assert_eq!(
        (&again.active().state.signing, names(folder.path())),
        (&new, vec![STATE.to_owned(), SIGNING_KEY.to_owned()])
    );
    assert_eq!(read_key(&folder.path().join(SIGNING_KEY)).unwrap().unwrap().public_key().unwrap(), new);
}

#[tokio::test]
async fn damaged_state_is_made_anew_from_the_keys() {
    for damage in [&b""[..], b"{", b"{\"sum\":1,\"generation\":1}"] {
        let folder = tempfile::tempdir().unwrap();
        let ring = open(folder.path());
        let (old, new) = begin(&ring).await;
        let generation = ring.active().state.generation;
        fs::write(folder.path().join(STATE), damage).unwrap();
        let again = open(folder.path());
        assert_eq!(again.active().state.of_hosts(), [old, new.clone()]);
        assert!(again.active().state.generation >= generation);
        assert!(names(folder.path()).iter().any(|name| name.starts_with("keys.json.damaged-")));
        again.set(finished(&again)).unwrap();
        fs::write(folder.path().join(STATE), damage).unwrap();
        assert_eq!(open(folder.path()).active().state.of_hosts(), [new]);
    }
}

#[tokio::test]
async fn key_that_is_nowhere_is_named_and_nothing_is_removed() {
    let (folder, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let ring = open(folder.path());
    begin(&ring).await;
    ring.set(finished(&ring)).unwrap();
    open(other.path());
    fs::copy(other.path().join(SIGNING_KEY), folder.path().join(SIGNING_KEY)).unwrap();
    let before = names(folder.path());
    let ring = KeyRing::open(folder.path(), KeySources::default()).unwrap();
    let told = Diagnostic::of(&ring.complete().unwrap_err());
    assert!(told.cause.contains(ring.active().state.signing.id()) && told.hint.is_some(), "{told}");
    assert_eq!(names(folder.path()), before);
}

#[tokio::test]
async fn credential_is_read_and_no_key_is_written_beside_it() {
    let (folder, handed_in) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    open(handed_in.path());
    let sources = KeySources { credentials: Some(handed_in.path().to_owned()), signer: None };
    let open_with = || {
        let ring = KeyRing::open(folder.path(), sources.clone()).unwrap();
        ring.complete().unwrap();
        ring
    };
    let ring = open_with();
    let credential = handed_in.path().join(SIGNING_KEY);
    assert_eq!(ring.active().place, KeyPlace::Credential(credential.clone()));
    assert_eq!(names(folder.path()), [STATE]);
    assert!(matches!(ring.new_key().await, Err(NewKeyError::Credential(path)) if path == credential));
    assert_eq!(names(folder.path()), [STATE], "nothing is made");
    // Another key in its place is not what hosts have.
    let other = tempfile::tempdir().unwrap();
    open(other.path());
    let whole = fs::read(&credential).unwrap();
    fs::copy(other.path().join(SIGNING_KEY), &credential).unwrap();
    let refused = KeyRing::open(folder.path(), sources.clone()).unwrap().complete().unwrap_err();
    assert!(matches!(refused, AuthorityError::NoSigningKey { .. }), "{refused}");
    fs::write(&credential, whole).unwrap();
    // With the next key beside it, it can be replaced, and files stay as they are.
    fs::copy(other.path().join(SIGNING_KEY), handed_in.path().join(NEXT_KEY)).unwrap();
    let ring = open_with();
    let (_, new) = begin(&ring).await;
    ring.set(finished(&ring)).unwrap();
    assert_eq!(ring.active().place, KeyPlace::Credential(handed_in.path().join(NEXT_KEY)));
    assert_eq!(
        (names(folder.path()), names(handed_in.path())),
        (vec![STATE.to_owned()], vec![SIGNING_KEY.to_owned(), NEXT_KEY.to_owned()])
    );
    assert_eq!(open_with().active().state.signing, new);
}

#[test]
fn keys_of_other_programs_are_read() {
    use base64::{Engine, engine::general_purpose::STANDARD};
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(SIGNING_KEY);
    // What `openssl genpkey -algorithm ed25519` writes: version 1 of PKCS#8, which has no public key.
    let pem = "-----BEGIN PRIVATE KEY-----\nMC4CAQAwBQYDK2VwBCIEIIlHZy7PZ0LL3KPRyZWYvZqZrZgCRLfKcUk8LOLuCxTF\n-----END PRIVATE KEY-----\n";
    let der = STANDARD.decode(pem.lines().nth(1).unwrap()).unwrap();
    let mut keys = Vec::new();
    for bytes in [pem.as_bytes(), &der] {
        fs::write(&path, bytes).unwrap();
        keys.push(read_key(&path).unwrap().unwrap().public_key().unwrap());
    }
    assert_eq!(keys[0], keys[1]);
    fs::write(&path, "-----BEGIN PRIVATE KEY-----\n").unwrap();
    assert!(matches!(read_key(&path), Err(AuthorityError::Damaged { .. })));
}
