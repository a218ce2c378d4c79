use std::{collections::VecDeque, time::Duration};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use muster_topics::diagnostic::Diagnostic;
use tokio_util::sync::CancellationToken;

use super::*;

/// A server that answers what it is told to, and takes everything once there is nothing more to tell.
#[derive(Debug, Default)]
struct Scripted {
    answers: Mutex<VecDeque<Result<(), SendError>>>,
    taken: Mutex<Vec<String>>,
}

impl Scripted {
    fn lines(&self) -> Vec<String> {
        locked(&self.taken).iter().flat_map(|body| body.lines().map(str::to_owned)).collect()
    }
}

#[derive(Debug)]
struct Handle(Arc<Scripted>);

impl Remote for Handle {
    fn probe(&self) -> BoxFuture<'_, Result<(), SendError>> {
        Box::pin(async { Ok(()) })
    }

    fn write(&self, lines: Bytes) -> BoxFuture<'_, Result<(), SendError>> {
        Box::pin(async move {
            let answer = locked(&self.0.answers).pop_front().unwrap_or(Ok(()));
            if answer.is_ok() {
                locked(&self.0.taken).push(String::from_utf8(lines.to_vec()).unwrap());
            }
            answer
        })
    }
}

fn config(name: &str) -> MetricStoreConfig {
    toml::from_str(&format!("name = \"{name}\"\nkind = \"victoriametrics\"\nurl = \"http://127.0.0.1:1\"")).unwrap()
}

/// A store in a folder, and its server.
fn store(folder: &Path, answers: &[Result<(), SendError>]) -> (Arc<ExternalStore>, Arc<Scripted>) {
    let server = Arc::new(Scripted { answers: Mutex::new(answers.to_vec().into()), ..Scripted::default() });
    let store = ExternalStore::open(&config("far"), folder).unwrap();
    (Arc::new(ExternalStore { remote: Box::new(Handle(Arc::clone(&server))), ..store }), server)
}

fn external(stores: &[&Arc<ExternalStore>]) -> ExternalStores {
    ExternalStores { stores: stores.iter().map(|store| Arc::clone(store)).collect() }
}

fn points(from: i64, count: i64) -> Arc<[Point]> {
    (from..from + count).map(|n| Point::new("m", &[("n", &n.to_string())], now_ms()).field("f", n as f64)).collect()
}

/// Waits until it is so.
async fn until(what: &str, so: impl Fn() -> bool) {
    for _ in 0..1_000 {
        if so() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("{what}");
}

fn answer(status: u16) -> Result<(), SendError> {
    Err(SendError::Answer { status, text: "because".to_owned() })
}

#[tokio::test]
async fn failed_lines_are_retried_and_refused_ones_set_aside() {
    let dir = tempfile::tempdir().unwrap();
    let away = Err(SendError::Unreachable("nobody".to_owned()));
    let (store, server) = store(dir.path(), &[answer(503), away, answer(400), Ok(())]);
    let external = external(&[&store]);
    external.append(&points(0, 10)).await.unwrap();
    let shutdown = CancellationToken::new();
    let task = tokio::spawn(run(Arc::clone(&store), shutdown.clone()));
    until("the first is refused", || store.status().refused_lines == 10).await;
    external.append(&points(10, 10)).await.unwrap();
    until("the second is sent", || store.status().sent_lines == 10).await;
    let told = store.status();
    assert_eq!((told.retries, told.waiting_lines, told.failing), (2, 0, false));
    assert_eq!((told.quarantine.files, told.quarantine.lines), (1, 10));
    assert!(told.last_error.unwrap().message.contains("400: because"));
    let lines = server.lines();
    assert!(lines.len() == 10 && lines[0].starts_with("m,n=10 f=10 "), "{lines:?}");
    shutdown.cancel();
    task.await.unwrap();
}

#[tokio::test]
async fn backlog_is_sent_after_restart_and_a_dead_store_delays_no_other() {
    let dir = tempfile::tempdir().unwrap();
    let (near, near_server) = store(&dir.path().join("near"), &[]);
    let (far, _) = store(&dir.path().join("far"), &vec![answer(500); 1_000]);
    let external = external(&[&near, &far]);
    let shutdown = CancellationToken::new();
    let tasks = [&near, &far].map(|store| tokio::spawn(run(Arc::clone(store), shutdown.clone())));
    external.append(&points(0, 6_000)).await.unwrap();
    until("the near one has all", || near.status().sent_lines == 6_000).await;
    until("the far one was tried", || far.status().retries > 0).await;
    assert!(
        near_server.lines().len() == 6_000
            && locked(&near_server.taken).iter().all(|body| body.lines().count() <= 5_000)
    );
    assert_eq!((far.status().waiting_lines, far.status().failing), (6_000, true));
    shutdown.cancel();
    for task in tasks {
        task.await.unwrap();
    }
    drop((external, near, far));

    let (far, server) = store(&dir.path().join("far"), &[]);
    assert_eq!(far.status().waiting_lines, 6_000);
    let shutdown = CancellationToken::new();
    let task = tokio::spawn(run(Arc::clone(&far), shutdown.clone()));
    until("the far one has all", || far.status().sent_lines == 6_000).await;
    let mut lines = server.lines();
    lines.sort();
    lines.dedup();
    assert_eq!(lines.len(), 6_000);
    shutdown.cancel();
    task.await.unwrap();
}

#[tokio::test]
async fn unwritable_queue_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = store(&dir.path().join("far"), &[]);
    let external = external(&[&store]);
    // A full disk: Linux has a device that is one.
    locked(&store.queue).break_disk();
    let error = external.append(&points(0, 1)).await.unwrap_err().to_string();
    assert!(error.contains("far") && error.contains("No space"), "{error}");
    // It is made good by a new file.
    external.append(&points(1, 1)).await.unwrap();
    assert_eq!(store.waiting().lines, 1);
}

#[test]
fn stores_are_opened_or_named() {
    let dir = tempfile::tempdir().unwrap();
    let open = |stores: Vec<MetricStoreConfig>| {
        ExternalStores::open(&Config { data_dir: dir.path().to_owned(), metric_stores: stores, ..Config::default() })
    };
    assert!(open(vec![config("a"), config("b")]).is_ok());
    assert_eq!(others(&dir.path().join("external"), &["a".to_owned()].into()), [dir.path().join("external/b")]);
    let twice = Diagnostic::of(&open(vec![config("a"), config("a")]).unwrap_err());
    assert!(twice.cause.contains("metric_stores, a: name") && twice.hint.is_some(), "{twice}");
    let small = open(vec![MetricStoreConfig { queue_max_bytes: 1, ..config("a") }]).unwrap_err();
    let small = Diagnostic::of(&small).to_string();
    assert!(small.contains("queue_max_bytes") && small.contains("16777216"), "{small}");
    std::fs::write(dir.path().join("external/c"), "a file").unwrap();
    let file = Diagnostic::of(&open(vec![config("c")]).unwrap_err());
    assert!(file.cause.contains("external/c") && file.hint.is_some(), "{file}");
}
