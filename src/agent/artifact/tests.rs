//! Downloads from a real HTTPS server that requires a client certificate, as the console's does.

use std::{
    convert::Infallible,
    net::SocketAddr,
    os::unix::fs::PermissionsExt,
    sync::atomic::{AtomicUsize, Ordering},
    task::Poll,
};

use hyper::{
    Request, Response,
    body::{Body, Bytes, Frame, Incoming},
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use muster_net::pki;
use muster_topics::{diagnostic::Diagnostic, join::Membership};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::{ServerConfig, server::WebPkiClientVerifier};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use super::*;

/// How the server answers, one request after the other; the last answer is for all that follow.
#[derive(Clone, Copy, Debug)]
enum Answer {
    /// The content, or what was asked for of it.
    Right,
    /// The content from here on, which must be what was asked for.
    Rest(usize),
    /// The content, whatever was asked for of it.
    Whole,
    Wrong,
    Longer,
    /// The first half, and then the connection is cut.
    Half,
    Status(u16),
    /// 404, with the reason.
    Damaged,
}

const CONTENT: &[u8] = &[b'x'; 100_000];

/// A body of one frame, which may end in a failure.
struct Once {
    frame: Option<Bytes>,
    cut: bool,
    flushed: bool,
}

impl Once {
    fn new(bytes: impl Into<Bytes>, cut: bool) -> Self {
        Self { frame: Some(bytes.into()), cut, flushed: false }
    }
}

impl Body for Once {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: std::pin::Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        if let Some(bytes) = self.frame.take() {
            return Poll::Ready(Some(Ok(Frame::data(bytes))));
        }
        if !self.cut {
            return Poll::Ready(None);
        }
        if !self.flushed {
            // hyper sends what it has when it must wait, and drops it when it fails.
            self.flushed = true;
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        Poll::Ready(Some(Err(io::Error::other("cut"))))
    }
}

struct Server {
    asked: Arc<AtomicUsize>,
    identity: MemberIdentity,
}

fn answer(answer: Answer, request: &Request<Incoming>) -> Response<Once> {
    let offset = request.headers().get(RANGE).and_then(|range| range.to_str().ok());
    let offset = offset.and_then(|range| range.strip_prefix("bytes=")?.strip_suffix('-')?.parse::<usize>().ok());
    let (bytes, cut) = match answer {
        Answer::Right | Answer::Rest(_) | Answer::Whole => (CONTENT.to_vec(), false),
        Answer::Wrong => (vec![b'y'; CONTENT.len()], false),
        Answer::Longer => (vec![b'x'; CONTENT.len() + 1], false),
        Answer::Half => (CONTENT[..CONTENT.len() / 2].to_vec(), true),
        Answer::Status(status) => {
            return Response::builder().status(status).body(Once::new("{}", false)).unwrap();
        }
        Answer::Damaged => {
            let said = r#"{"code": "content_damaged", "message": "it is damaged", "hint": "add it once more"}"#;
            return Response::builder().status(404).body(Once::new(said, false)).unwrap();
        }
    };
    if let Answer::Rest(rest) = answer {
        assert_eq!(offset, Some(rest));
        assert_eq!(request.headers()["if-range"], format!("\"{}\"", Digest::of(CONTENT)));
    }
    match (answer, offset) {
        (Answer::Right | Answer::Rest(_), Some(offset)) => Response::builder()
            .status(206)
            .header(CONTENT_RANGE, format!("bytes {offset}-{}/{}", bytes.len() - 1, bytes.len()))
            .body(Once::new(bytes[offset..].to_vec(), cut))
            .unwrap(),
        _ => Response::new(Once::new(bytes, cut)),
    }
}

impl Server {
    async fn start(answers: &'static [Answer]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (server, identity) = certificates(listener.local_addr().unwrap());
        let acceptor = TlsAcceptor::from(Arc::new(server));
        let asked = Arc::new(AtomicUsize::new(0));
        let count = asked.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (acceptor, count) = (acceptor.clone(), count.clone());
                tokio::spawn(async move {
                    let Ok(stream) = acceptor.accept(stream).await else { return };
                    let service = service_fn(|request| {
                        let next = count.fetch_add(1, Ordering::Relaxed).min(answers.len() - 1);
                        let path = format!("/v1/artifacts/{}", Digest::of(CONTENT));
                        let config = format!("/v1/configs/{}", Digest::of(CONTENT));
                        assert!([path, config].contains(&request.uri().path().to_owned()));
                        let response = answer(answers[next], &request);
                        async move { Ok::<_, Infallible>(response) }
                    });
                    let _ = hyper::server::conn::http1::Builder::new()
                        .serve_connection(TokioIo::new(stream), service)
                        .await;
                });
            }
        });
        Self { asked, identity }
    }

    fn asked(&self) -> usize {
        self.asked.load(Ordering::Relaxed)
    }
}

/// An authority, a server that wants certificates of it, and a host that has one.
fn certificates(address: SocketAddr) -> (ServerConfig, MemberIdentity) {
    let mut authority = CertificateParams::default();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = CertifiedIssuer::self_signed(authority, KeyPair::generate().unwrap()).unwrap();
    let signed = |name: &str| {
        let key = KeyPair::generate().unwrap();
        let certificate = CertificateParams::new([name.to_owned()]).unwrap().signed_by(&key, &authority).unwrap();
        (certificate.pem(), key.serialize_pem())
    };
    let (certificate, key) = signed("127.0.0.1");
    let roots = Arc::new(pki::roots(&authority.pem()).unwrap());
    let clients = WebPkiClientVerifier::builder_with_provider(roots, pki::provider()).build().unwrap();
    let server = ServerConfig::builder_with_provider(pki::provider())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_client_cert_verifier(clients)
        .with_single_cert(pki::certificates("c", &certificate).unwrap(), pki::private_key("k", &key).unwrap())
        .unwrap();
    let (certificate, key) = signed("host");
    (server, identity(&format!("https://{address}"), authority.pem(), certificate, key))
}

fn identity(console_url: &str, authority: String, certificate: String, key: String) -> MemberIdentity {
    let membership = Membership {
        certificate,
        authority,
        console_url: console_url.to_owned(),
        ..crate::testing::empty_membership(muster_topics::name::HostId::random())
    };
    MemberIdentity { membership, key }
}

fn wanted() -> ArtifactRef {
    ArtifactRef {
        sha256: Digest::of(CONTENT),
        size_bytes: CONTENT.len() as u64,
        role: "hello".parse().unwrap(),
        version: "1".parse().unwrap(),
        manifest: None,
    }
}

fn open(data_dir: &Path, identity: &MemberIdentity) -> Artifacts {
    let (sender, receiver) = watch::channel(Arc::new(identity.clone()));
    // The receiver alone keeps the last value.
    drop(sender);
    Artifacts::open(data_dir, receiver, None).unwrap()
}

fn listing(data_dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(data_dir.join("artifacts")).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

/// Fetches after this many failures; gives back what is then in the folder.
async fn check(answers: &'static [Answer], failures: usize, error: &str) -> Vec<String> {
    let server = Server::start(answers).await;
    let folder = tempfile::tempdir().unwrap();
    let artifacts = open(folder.path(), &server.identity);
    for _ in 0..failures {
        let failure = artifacts.fetch(&wanted()).await.expect_err("should fail");
        let told = Diagnostic::of(&failure);
        assert!(format!("{told:#}").contains(error), "{told}");
        assert!(failure.to_string().contains("artifact hello@1"), "{failure}");
    }
    if answers.len() > failures {
        let path = artifacts.fetch(&wanted()).await.expect("should be right at last");
        assert_eq!(fs::read(path).unwrap(), CONTENT);
    }
    assert_eq!(server.asked(), answers.len());
    listing(folder.path())
}

fn installed() -> Vec<String> {
    vec![Digest::of(CONTENT).to_string()]
}

#[tokio::test]
async fn valid_artifact_is_installed_read_only_once() {
    let server = Server::start(&[Answer::Right]).await;
    let folder = tempfile::tempdir().unwrap();
    let artifacts = open(folder.path(), &server.identity);
    let path = artifacts.fetch(&wanted()).await.unwrap();
    assert_eq!(path, folder.path().join("artifacts").join(Digest::of(CONTENT).as_str()));
    assert_eq!(fs::read(&path).unwrap(), CONTENT);
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o555);
    artifacts.fetch(&wanted()).await.unwrap();
    open(folder.path(), &server.identity).fetch(&wanted()).await.unwrap();
    assert_eq!(server.asked(), 1);
}

#[tokio::test]
async fn damaged_artifact_is_downloaded_again() {
    type Damage = fn(&Path);
    let damages: [Damage; 5] = [
        |path| {
            // As long as it was, and as old.
            let modified = fs::metadata(path).unwrap().modified().unwrap();
            let mut bytes = fs::read(path).unwrap();
            bytes[3] ^= 1;
            fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
            fs::write(path, bytes).unwrap();
            fs::File::open(path).unwrap().set_modified(modified).unwrap();
        },
        |path| fs::OpenOptions::new().write(true).open(path).unwrap().set_len(2).unwrap(),
        |path| fs::write(path, "").unwrap(),
        |path| fs::remove_file(path).unwrap(),
        |path| {
            fs::remove_file(path).unwrap();
            fs::create_dir(path).unwrap();
        },
    ];
    let server = Server::start(&[Answer::Right; 11]).await;
    let folder = tempfile::tempdir().unwrap();
    let artifacts = open(folder.path(), &server.identity);
    let path = artifacts.fetch(&wanted()).await.unwrap();
    for (number, damage) in damages.iter().enumerate() {
        damage(&path);
        artifacts.fetch(&wanted()).await.unwrap();
        assert_eq!(fs::read(&path).unwrap(), CONTENT, "{number}");
        damage(&path);
        open(folder.path(), &server.identity).fetch(&wanted()).await.unwrap();
        assert_eq!(fs::read(&path).unwrap(), CONTENT, "{number}, another life");
    }
    assert_eq!(server.asked(), 11);
}

#[tokio::test]
async fn artifact_with_wrong_hash_is_not_installed() {
    assert_eq!(check(&[Answer::Wrong], 1, "SHA-256").await, [""; 0]);
    assert_eq!(check(&[Answer::Longer], 1, "longer than its 100000 bytes").await, [""; 0]);
    assert_eq!(check(&[Answer::Status(404)], 1, "the console does not have it").await, [""; 0]);
    assert_eq!(check(&[Answer::Damaged], 1, "404 Not Found: it is damaged").await, [""; 0]);
    assert_eq!(check(&[Answer::Damaged], 1, "add it once more").await, [""; 0]);
    assert_eq!(check(&[Answer::Status(403)], 1, "member of the fleet").await, [""; 0]);
    assert_eq!(check(&[Answer::Status(302)], 1, "302").await, [""; 0]);
}

#[tokio::test]
async fn temporary_failure_is_retried() {
    assert_eq!(check(&[Answer::Status(500), Answer::Right], 1, "500").await, installed());
    assert_eq!(check(&[Answer::Status(429), Answer::Right], 1, "429").await, installed());
    // After half of it: the rest is asked for; a server that knows no parts gives the whole again.
    assert_eq!(check(&[Answer::Half, Answer::Right], 1, "console").await, installed());
    assert_eq!(check(&[Answer::Half, Answer::Whole], 1, "console").await, installed());
    // Cut twice; an answer whose size is another than asked for is not appended.
    assert_eq!(check(&[Answer::Half, Answer::Half, Answer::Right], 2, "console").await, installed());
    assert_eq!(check(&[Answer::Half, Answer::Status(416), Answer::Right], 1, "console").await, installed());
}

#[tokio::test]
async fn unreachable_server_is_an_error() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (_, identity) = certificates(listener.local_addr().unwrap());
    drop(listener);
    let folder = tempfile::tempdir().unwrap();
    let error = open(folder.path(), &identity).fetch(&wanted()).await.unwrap_err();
    assert!(error.to_string().contains("refused"), "{error}");
}

#[tokio::test]
async fn server_of_another_authority_is_refused() {
    let server = Server::start(&[Answer::Right]).await;
    let (_, stranger) = certificates("127.0.0.1:1".parse().unwrap());
    let url = server.identity.membership.console_url.clone();
    let MemberIdentity { membership, key } = stranger;
    let stranger = MemberIdentity { membership: Membership { console_url: url, ..membership }, key };
    let folder = tempfile::tempdir().unwrap();
    let error = open(folder.path(), &stranger).fetch(&wanted()).await.unwrap_err();
    assert!(error.to_string().contains("certificate"), "{error}");
    assert_eq!((server.asked(), listing(folder.path())), (0, vec![]));
}

#[tokio::test]
async fn artifact_of_two_units_is_downloaded_once() {
    let server = Server::start(&[Answer::Right]).await;
    let folder = tempfile::tempdir().unwrap();
    let artifacts = open(folder.path(), &server.identity);
    let artifact = wanted();
    let (one, two, three) =
        tokio::join!(artifacts.fetch(&artifact), artifacts.fetch(&artifact), artifacts.fetch(&artifact));
    assert!(one.is_ok() && two.is_ok() && three.is_ok());
    assert_eq!(server.asked(), 1);
}

#[tokio::test]
async fn config_with_wrong_hash_is_refused() {
    let server = Server::start(&[Answer::Wrong, Answer::Right]).await;
    let folder = tempfile::tempdir().unwrap();
    let artifacts = open(folder.path(), &server.identity);
    let config =
        ConfigRef { id: "hello.main".parse().unwrap(), version: "2".parse().unwrap(), sha256: Digest::of(CONTENT) };
    let error = artifacts.config(&config).await.unwrap_err();
    assert!(error.to_string().contains("config hello.main@2"), "{error}");
    assert_eq!(artifacts.config(&config).await.unwrap(), CONTENT);
}

/// An agent is killed after so much of it, and another life fetches the rest.
async fn check_next_life(left: &[u8], answers: &'static [Answer], asked: usize, right: bool) {
    let server = Server::start(answers).await;
    let folder = tempfile::tempdir().unwrap();
    let artifacts = open(folder.path(), &server.identity);
    fs::write(artifacts.path(&Digest::of(CONTENT)).with_extension("part"), left).unwrap();
    let fetched = artifacts.fetch(&wanted()).await;
    assert_eq!(fetched.is_ok(), right, "{fetched:?}");
    if fetched.is_err() {
        // What was left was wrong, and is gone.
        artifacts.fetch(&wanted()).await.unwrap();
    }
    assert_eq!(listing(folder.path()), installed());
    assert_eq!(server.asked(), asked);
}

#[tokio::test]
async fn download_resumes_after_restart() {
    check_next_life(&CONTENT[..1], &[Answer::Rest(1)], 1, true).await;
    check_next_life(&CONTENT[..99_999], &[Answer::Rest(99_999)], 1, true).await;
    // All of it was there, but for its name.
    check_next_life(CONTENT, &[Answer::Wrong], 0, true).await;
    // A power cut left zeros.
    check_next_life(&[0; 70_000], &[Answer::Rest(70_000), Answer::Right], 2, false).await;
    check_next_life(&[0; 100_000], &[Answer::Right], 1, false).await;
    check_next_life(&[b'x'; 100_001], &[Answer::Status(416), Answer::Right], 2, true).await;
}

#[tokio::test]
async fn progress_is_reported_and_rate_limited() {
    let server = Server::start(&[Answer::Right]).await;
    let folder = tempfile::tempdir().unwrap();
    let (_sender, receiver) = watch::channel(Arc::new(server.identity.clone()));
    let artifacts = Artifacts::open(folder.path(), receiver, Some(100_000)).unwrap();
    assert_eq!(artifacts.done_bytes(&Digest::of(CONTENT)), None);
    let began = std::time::Instant::now();
    let (artifact, mut seen) = (wanted(), Vec::new());
    let fetched = artifacts.fetch(&artifact);
    tokio::pin!(fetched);
    while tokio::time::timeout(Duration::from_millis(20), &mut fetched).await.is_err() {
        seen.extend(artifacts.done_bytes(&artifact.sha256));
    }
    // A burst of a quarter of a second is free.
    assert!(began.elapsed() >= Duration::from_millis(700), "{:?}", began.elapsed());
    assert!(seen.is_sorted() && seen.iter().any(|done| (1..100_000).contains(done)), "{seen:?}");
}

#[tokio::test]
async fn stale_partial_files_are_removed() {
    let server = Server::start(&[Answer::Half, Answer::Right]).await;
    let folder = tempfile::tempdir().unwrap();
    let artifacts = open(folder.path(), &server.identity);
    artifacts.fetch(&wanted()).await.unwrap_err();
    assert_eq!(listing(folder.path()).len(), 1, "half of it waits for the rest");
    let (now, tomorrow) = (SystemTime::now(), SystemTime::now() + Duration::from_secs(30 * 3600));
    let artifacts = open(folder.path(), &server.identity);
    artifacts.sweep(&BTreeSet::new(), now).unwrap();
    assert_eq!(listing(folder.path()).len(), 1, "in the next life, too");
    artifacts.sweep(&BTreeSet::from([Digest::of(CONTENT)]), tomorrow).unwrap();
    assert_eq!(listing(folder.path()), [""; 0], "but not for ever");

    artifacts.fetch(&wanted()).await.unwrap();
    artifacts.sweep(&BTreeSet::from([Digest::of(CONTENT)]), tomorrow).unwrap();
    artifacts.sweep(&BTreeSet::new(), now).unwrap();
    assert_eq!(listing(folder.path()), installed());
    artifacts.sweep(&BTreeSet::new(), tomorrow + Duration::from_secs(30 * 3600)).unwrap();
    assert_eq!(listing(folder.path()), [""; 0]);
}

#[tokio::test]
async fn installed_file_is_compared_once_and_after_each_change() {
    let server = Server::start(&[Answer::Right]).await;
    let folder = tempfile::tempdir().unwrap();
    let artifacts = open(folder.path(), &server.identity);
    let path = artifacts.fetch(&wanted()).await.unwrap();
    assert_eq!(artifacts.check(&wanted()).await.unwrap(), FileContent::Whole);
    let known_ms = artifacts.installed().whole_ms(&path);
    assert!(known_ms.is_some() && artifacts.installed().is_unchanged(&path));
    // Its time of last use is the agent's own, and says nothing of its content.
    let later = SystemTime::now() + Duration::from_secs(60);
    artifacts.sweep(&BTreeSet::from([Digest::of(CONTENT)]), later).unwrap();
    assert!(artifacts.installed().is_unchanged(&path));
    artifacts.keep([Digest::of(CONTENT)].iter(), later).unwrap();
    assert!(artifacts.installed().is_unchanged(&path));

    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    assert!(!artifacts.installed().is_unchanged(&path), "it may have been changed");
    assert_eq!(artifacts.check(&wanted()).await.unwrap(), FileContent::Whole);
    assert!(artifacts.installed().is_unchanged(&path));
    fs::write(&path, vec![b'y'; CONTENT.len()]).unwrap();
    let found = artifacts.check(&wanted()).await.unwrap();
    assert!(matches!(found, FileContent::Changed { whole_ms } if whole_ms >= known_ms), "{found:?}");
    fs::remove_file(&path).unwrap();
    assert!(matches!(artifacts.check(&wanted()).await.unwrap(), FileContent::Changed { .. }));
}

#[tokio::test]
async fn full_disk_is_reported() {
    let (_, identity) = certificates("127.0.0.1:1".parse().unwrap());
    let folder = tempfile::tempdir().unwrap();
    let artifacts = open(folder.path(), &identity);
    // The device that is always full stands where the partial file would.
    let partial = artifacts.path(&Digest::of(CONTENT)).with_extension("part");
    std::os::unix::fs::symlink("/dev/full", &partial).unwrap();
    let artifact = ArtifactRef { size_bytes: 1 << 20, ..wanted() };
    let path = artifacts.path(&artifact.sha256);
    let receiving = PartialArtifact {
        what: "artifact hello@1".to_owned(),
        artifact,
        partial,
        path,
        begun_bytes: 1,
        done_bytes: Arc::default(),
    };
    let (sender, queue) = mpsc::channel(1);
    sender.send(Ok(CONTENT)).await.unwrap();
    drop(sender);
    let error = tokio::task::spawn_blocking(move || receiving.write(queue)).await.unwrap().unwrap_err();
    assert!(Diagnostic::of(&error).hint.unwrap().contains("free space"), "{error}");
    assert_eq!(listing(folder.path()), [""; 0], "a half of something is the last to keep on a full disk");
}
