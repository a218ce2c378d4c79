//! Tests of the server against strangers.

use std::{
    net::SocketAddr,
    sync::atomic::{AtomicU64, Ordering},
};

use proptest::prelude::*;

use super::*;

/// Nothing here takes a second. A test that would wait longer has failed.
const PATIENCE: Duration = Duration::from_secs(60);

async fn start() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let asked = AtomicU64::new(0);
    let stats =
        move || BrokerStats { received_total: asked.fetch_add(1, Ordering::Relaxed) + 1, ..BrokerStats::default() };
    let guard = Guard::new(PLACES, &Arc::default());
    tokio::spawn(run(listener, guard, stats, TaskTracker::new()));
    address
}

/// Everything that a request is answered, until the other side closes.
async fn ask(address: SocketAddr, request: &[u8]) -> String {
    let ask = async {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(request).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    };
    timeout(PATIENCE, ask).await.unwrap()
}

#[tokio::test]
async fn requests_and_answers() {
    let address = start().await;
    for (request, status, part) in [
        ("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n", "200 OK", "\nmuster_broker_messages_received_total 1\n"),
        ("GET /metrics HTTP/1.0\r\n\r\n", "200 OK", "\nmuster_broker_messages_received_total 2\n"),
        ("GET /metrics?format=text HTTP/1.1\r\n\r\n", "200 OK", CONTENT_TYPE),
        ("GET / HTTP/1.1\r\n\r\n", "404 Not Found", "the only path is /metrics"),
        ("GET /metrics/ HTTP/1.1\r\n\r\n", "404 Not Found", "the only path is /metrics"),
        ("POST /metrics HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc", "405 Method Not Allowed", "Allow: GET, HEAD\r\n"),
        ("GET /metrics HTTP/2.0\r\n\r\n", "505 ", "HTTP/1.1"),
        ("GET metrics HTTP/1.1\r\n\r\n", "400 Bad Request", "not an HTTP/1.1 request"),
        ("hello\r\n\r\n", "400 Bad Request", "not an HTTP/1.1 request"),
        ("\r\n\r\n", "400 Bad Request", "not an HTTP/1.1 request"),
    ] {
        let answer = ask(address, request.as_bytes()).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{request:?}: {answer}");
        assert!(answer.contains(part), "{request:?}: {answer}");
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.contains(&format!("Content-Length: {}\r\n", body.len())), "{request:?}: {answer}");
        assert!(head.ends_with("Connection: close"));
    }
    let answer = ask(address, b"HEAD /metrics HTTP/1.1\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 200 OK") && answer.ends_with("\r\n\r\n"), "{answer}");
}

const CONTENT_TYPE: &str = "Content-Type: text/plain; version=0.0.4; charset=utf-8\r\n";

#[tokio::test]
async fn a_request_that_does_not_end_is_cut_off() {
    let address = start().await;
    let endless = format!("GET /metrics HTTP/1.1\r\nx: {}", "y".repeat(2 * HEAD_MAX_BYTES));
    assert!(ask(address, endless.as_bytes()).await.starts_with("HTTP/1.1 431 "));
}

#[tokio::test]
async fn silent_connection_is_closed() {
    let address = start().await;
    assert!(ask(address, b"GET /metrics").await.starts_with("HTTP/1.1 408 "));
}

#[tokio::test]
async fn silent_connections_do_not_block_others() {
    let address = start().await;
    let mut silent = Vec::new();
    // If each were waited for as long as it may take, they would take minutes.
    for _ in 0..600 {
        silent.push(TcpStream::connect(address).await.unwrap());
    }
    assert!(ask(address, b"GET /metrics HTTP/1.1\r\n\r\n").await.starts_with("HTTP/1.1 200 "));
    let slow = async {
        for stream in &mut silent {
            // Those that gave way cannot be written to.
            let _ = stream.write_all(b"GET /met").await;
        }
    };
    slow.await;
    assert!(ask(address, b"GET /metrics HTTP/1.1\r\n\r\n").await.starts_with("HTTP/1.1 200 "));
    drop(silent);
}

#[tokio::test]
async fn dripping_requests_delay_others_for_a_moment() {
    const DRIPPING: usize = 2_100;
    muster_guard::make_room(2 * DRIPPING, std::io::stdout());
    let address = start().await;
    let mut dripping = Vec::new();
    for _ in 0..DRIPPING {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let _ = stream.write_all(b"G").await;
        dripping.push(tokio::spawn(async move {
            while stream.write_all(b"E").await.is_ok() {
                sleep(Duration::from_millis(300)).await;
            }
        }));
    }
    let begun = std::time::Instant::now();
    assert!(ask(address, b"GET /metrics HTTP/1.1\r\n\r\n").await.starts_with("HTTP/1.1 200 "));
    // A second for each 256 would be eight; a tenth is less than one, on a machine with time.
    assert!(begun.elapsed() < Duration::from_secs(4), "{:?}", begun.elapsed());
    dripping.iter().for_each(tokio::task::JoinHandle::abort);
}

proptest! {
    #[test]
    fn any_request_is_answered(head: Vec<u8>, text in "[A-Z]{0,4} ?/?[a-z]{0,8} ?(HTTP/[0-9.]{0,3})?") {
        for head in [head.as_slice(), text.as_bytes()] {
            let answer = answer(head, &BrokerStats::default);
            let status: u16 = answer.strip_prefix("HTTP/1.1 ").and_then(|rest| rest.get(..3)).unwrap().parse().unwrap();
            prop_assert!([200, 400, 404, 405, 505].contains(&status));
        }
    }
}
