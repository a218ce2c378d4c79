//! MQTT over WebSocket, by a client of the test's own.

use muster_broker::{BrokerLimits, Config};
use rumqttc::QoS;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use tokio_rustls::client::TlsStream;

use crate::fixture::{Fixture, HOST, connect, packet, patiently, publish, subscribe, tls_to};

const REQUEST: &str = "GET /mqtt HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
    Origin: https://elsewhere.example\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\
    Sec-WebSocket-Protocol: mqtt\r\n\r\n";

async fn with_websocket(limits: BrokerLimits) -> Fixture {
    let address = "127.0.0.1:0".parse().unwrap();
    Fixture::configured(|config| Config { websocket: Some(address), limits, ..config }).await
}

async fn tls(fixture: &Fixture, common_name: &str) -> TlsStream<TcpStream> {
    let client = fixture.authority.client(Some(&fixture.authority.issue(common_name)));
    tls_to(fixture.broker.websocket_addr().unwrap(), client).await.unwrap()
}

struct WebSocket {
    stream: TlsStream<TcpStream>,
    /// What came in binary messages and was not looked at.
    data: Vec<u8>,
}

fn frame(first: u8, content: &[u8]) -> Vec<u8> {
    let mask = [1, 2, 3, 4];
    let length = match u16::try_from(content.len()).unwrap() {
        short @ 0..126 => vec![0x80 | u8::try_from(short).unwrap()],
        long => [&[0x80 | 126][..], &long.to_be_bytes()].concat(),
    };
    let masked = content.iter().zip(mask.iter().cycle()).map(|(byte, mask)| byte ^ mask);
    [&[first][..], &length, &mask, &masked.collect::<Vec<_>>()].concat()
}

impl WebSocket {
    async fn open(fixture: &Fixture, common_name: &str) -> Self {
        let mut stream = tls(fixture, common_name).await;
        stream.write_all(REQUEST.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        while !answer.ends_with(b"\r\n\r\n") {
            answer.push(patiently("the answer", stream.read_u8()).await.unwrap());
        }
        let answer = String::from_utf8(answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 101 "), "{answer}");
        assert!(answer.contains("Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n"), "{answer}");
        Self { stream, data: Vec::new() }
    }

    async fn send(&mut self, bytes: &[u8]) {
        self.send_frame(0x82, bytes).await;
    }

    async fn send_frame(&mut self, first: u8, content: &[u8]) {
        self.stream.write_all(&frame(first, content)).await.unwrap();
        self.stream.flush().await.unwrap();
    }

    /// The next frame.
    async fn frame(&mut self) -> (u8, Vec<u8>) {
        let reading = async {
            let first = self.stream.read_u8().await?;
            let length = match self.stream.read_u8().await? {
                126 => self.stream.read_u16().await?.into(),
                127 => usize::try_from(self.stream.read_u64().await?).unwrap(),
                length => length.into(),
            };
            let mut content = vec![0; length];
            self.stream.read_exact(&mut content).await?;
            std::io::Result::Ok((first, content))
        };
        patiently("a frame", reading).await.unwrap()
    }

    /// Exactly this comes next in binary messages.
    async fn expect(&mut self, expected: &[u8]) {
        while self.data.len() < expected.len() {
            let (first, content) = self.frame().await;
            assert_eq!(first, 0x82);
            self.data.extend(content);
        }
        assert_eq!(self.data.drain(..expected.len()).collect::<Vec<_>>(), expected);
    }
}

fn event() -> String {
    format!("muster/s/00/h/{HOST}/event")
}

#[tokio::test]
async fn mqtt_works_over_websocket() {
    let fixture = with_websocket(BrokerLimits::default()).await;
    let mut console = fixture.console().await;
    console.subscribe("muster/#", QoS::AtLeastOnce).await;
    let mut host = WebSocket::open(&fixture, HOST).await;
    host.send(&connect(&format!("{HOST}-1"), 30)).await;
    host.expect(&[0x20, 2, 0, 0]).await;
    // A packet in two messages, one of them in two frames with a ping between; and two packets in one message.
    let packet = publish(&event(), b"in pieces");
    host.send(&packet[..5]).await;
    host.send_frame(0x02, &packet[5..9]).await;
    host.send_frame(0x89, b"there?").await;
    host.send_frame(0x80, &packet[9..]).await;
    assert_eq!(host.frame().await, (0x8a, b"there?".to_vec()));
    host.send(&[publish(&event(), b"first"), publish(&event(), b"second")].concat()).await;
    for expected in ["in pieces", "first", "second"] {
        assert_eq!(console.text().await.1, expected);
    }
    // And in the other direction, a message larger than a TLS record.
    let cmd = format!("muster/s/00/h/{HOST}/cmd");
    host.send(&subscribe(1, cmd.as_bytes(), 0)).await;
    host.expect(&[0x90, 3, 0, 1, 0]).await;
    let payload = "x".repeat(40_000);
    console.publish(&cmd, false, &payload).await;
    let length = u16::try_from(cmd.len()).unwrap();
    let rest = 2 + cmd.len() + payload.len();
    let size = [
        u8::try_from(rest % 128).unwrap() | 0x80,
        u8::try_from(rest / 128 % 128).unwrap() | 0x80,
        u8::try_from(rest >> 14).unwrap(),
    ];
    host.expect(&[&[0x30][..], &size, &length.to_be_bytes(), cmd.as_bytes(), payload.as_bytes()].concat()).await;
    // DISCONNECT ends the session; the broker closes the WebSocket, then TLS.
    host.send(&[0xe0, 0]).await;
    assert_eq!(host.frame().await, (0x88, vec![3, 232]));
    let mut rest = Vec::new();
    patiently("the end", host.stream.read_to_end(&mut rest)).await.unwrap();
    assert_eq!(rest, b"");
}

#[tokio::test]
async fn certificate_identifies_websocket_client() {
    let fixture = with_websocket(BrokerLimits::default()).await;
    let mut host = WebSocket::open(&fixture, HOST).await;
    host.send(&connect("console-main", 30)).await;
    host.expect(&[0x20, 2, 0, 2]).await;
    let stranger = fixture.authority.client(None);
    if let Ok(mut stream) = tls_to(fixture.broker.websocket_addr().unwrap(), stranger).await {
        stream.write_all(REQUEST.as_bytes()).await.ok();
        let mut answer = Vec::new();
        patiently("the end", stream.read_to_end(&mut answer)).await.unwrap_err();
        assert_eq!(answer, b"");
    }
}

#[tokio::test]
async fn protocol_error_closes_with_a_reason() {
    let fixture = with_websocket(BrokerLimits { packet_max_bytes: 2_000, ..BrokerLimits::default() }).await;
    for (first, content, code) in [(0x81, &b"text"[..], 1003_u16), (0x82, &[0; 2_001], 1009), (0xc2, b"x", 1002)] {
        let mut host = WebSocket::open(&fixture, HOST).await;
        host.send(&connect(&format!("{HOST}-1"), 30)).await;
        host.expect(&[0x20, 2, 0, 0]).await;
        host.send_frame(first, content).await;
        assert_eq!(host.frame().await, (0x88, code.to_be_bytes().to_vec()));
    }
    // MQTT's own mistakes end the WebSocket in order.
    let mut host = WebSocket::open(&fixture, HOST).await;
    host.send(&connect(&format!("{HOST}-1"), 30)).await;
    host.expect(&[0x20, 2, 0, 0]).await;
    host.send(&packet(0xf0, b"")).await;
    assert_eq!(host.frame().await, (0x88, vec![3, 232]));
}

#[tokio::test]
async fn other_requests_are_answered_in_http() {
    let limits = BrokerLimits { handshake_timeout_ms: 2_000, ..BrokerLimits::default() };
    let fixture = with_websocket(limits).await;
    for (request, status) in [
        ("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n".to_owned(), "426 "),
        (REQUEST.replace("mqtt\r\n\r\n", "chat\r\n\r\n"), "400 "),
        (REQUEST.replace("/mqtt", "/other"), "404 "),
        (REQUEST.replace("GET", "PUT"), "405 "),
        (format!("GET /mqtt HTTP/1.1\r\nX: {}", "x".repeat(9_000)), "431 "),
        ("GET /mqtt HTTP/1.1\r\n".to_owned(), "408 "),
    ] {
        let mut stream = tls(&fixture, HOST).await;
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        patiently("the answer", stream.read_to_string(&mut answer)).await.unwrap();
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{answer}");
    }
    fixture.until("six refusals", |stats| stats.refused_total == 6).await;
}
