//! Tests of the stream against a client made here, over a pipe that moves arbitrary numbers of bytes.

use std::io::ErrorKind;

use proptest::prelude::*;
use tokio::io::{AsyncWriteExt, DuplexStream, duplex};

use super::*;
use crate::choppy::{Choppy, exchange_bytes, fewer, run, text};

const REQUEST: &str = "GET /mqtt HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
    Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: mqtt\r\n\r\n";

const PATIENCE: Duration = Duration::from_secs(30);

/// A frame as a client sends it.
fn frame(first: u8, content: &[u8]) -> Vec<u8> {
    let mask = [0x37, 0xfa, 0x21, 0x3d];
    let mut header = [0; HEADER_MAX_BYTES];
    let size = frame::write_header(FrameKind::Binary, content.len(), &mut header);
    let (mut frame, masked) = (vec![first, header[1] | 0x80], content.iter().zip(mask.iter().cycle()));
    frame.extend_from_slice(&header[2..size]);
    frame.extend_from_slice(&mask);
    frame.extend(masked.map(|(byte, mask)| byte ^ mask));
    frame
}

/// The frames in what a server sent: their first bytes and what is in them.
fn frames(mut input: &[u8]) -> Vec<(u8, Vec<u8>)> {
    let mut frames = Vec::new();
    while let [first, length, rest @ ..] = input {
        let (length, rest) = match (*length, rest) {
            (126, [a, b, rest @ ..]) => (usize::from(u16::from_be_bytes([*a, *b])), rest),
            (127, [0, 0, 0, 0, a, b, c, d, rest @ ..]) => {
                (usize::try_from(u32::from_be_bytes([*a, *b, *c, *d])).unwrap(), rest)
            }
            (length, rest) => (usize::from(length), rest),
        };
        let Some((content, rest)) = rest.split_at_checked(length) else { break };
        frames.push((*first, content.to_vec()));
        input = rest;
    }
    frames
}

/// How long a server's frame is.
fn sent_size(content: usize) -> usize {
    content + frame::write_header(FrameKind::Binary, content, &mut [0; HEADER_MAX_BYTES])
}

/// Both ends behind the request.
async fn pair() -> (Box<WebSocketStream<DuplexStream>>, DuplexStream) {
    let (near, mut far) = duplex(200_000);
    far.write_all(REQUEST.as_bytes()).await.unwrap();
    (WebSocketStream::accept(near, 1 << 20, PATIENCE).await.unwrap(), far)
}

/// What the server has sent until it has closed, behind the answer to the request.
async fn rest(mut far: DuplexStream) -> Vec<(u8, Vec<u8>)> {
    let mut all = Vec::new();
    far.read_to_end(&mut all).await.unwrap();
    assert!(all.starts_with(b"HTTP/1.1 101 "));
    answer(&all)
}

/// The frames behind the answer to the request.
fn answer(all: &[u8]) -> Vec<(u8, Vec<u8>)> {
    let end = all.windows(4).position(|bytes| bytes == b"\r\n\r\n");
    end.map_or_else(Vec::new, |end| frames(&all[end + 4..]))
}

proptest! {
    #![proptest_config(fewer(3))]

    #[test]
    fn sent_bytes_arrive_unchanged(
        seed: u64,
        max in prop_oneof![1_usize..8, 1_usize..2_000, Just(70_000)],
        up in prop::collection::vec((0_usize..30_000, any::<bool>()), 0..6),
        down in prop_oneof![Just(0_usize), 1_usize..100_000],
        read_size in prop_oneof![1_usize..100, 1_000_usize..70_000],
    ) {
        let small = max < 8 || read_size < 100;
        let shrink = |size: usize| if small { size % 3_000 } else { size };
        let (mut sent, mut pings, mut script) = (Vec::new(), Vec::new(), REQUEST.as_bytes().to_vec());
        for (index, (size, whole)) in up.iter().enumerate() {
            let part = text(shrink(*size));
            let halves = part.split_at(part.len() / 2);
            let ping = vec![u8::try_from(index).unwrap(); index * 20];
            if *whole {
                script.extend(frame(0x82, &part));
            } else {
                script.extend(frame(0x02, halves.0));
                script.extend(frame(0x89, &ping));
                script.extend(frame(0x80, halves.1));
                pings.push((0x8a, ping));
            }
            sent.extend(part);
        }
        let down = text(shrink(down));
        let pongs = pings.len();
        run(async {
            let (near, far) = Choppy::pair(seed, max, 8_192);
            let server = async {
                let mut stream = WebSocketStream::accept(near, 1 << 20, PATIENCE).await.unwrap();
                let got = exchange_bytes(&mut *stream, &down, read_size, false).await;
                assert!(stream.incoming.is_empty() && stream.outgoing.is_empty());
                got
            };
            let (tell, told) = tokio::sync::oneshot::channel();
            let (mut reader, mut writer) = tokio::io::split(far);
            let writing = async {
                writer.write_all(&script).await.unwrap();
                // A close frame is answered at once, so that all has to be there before it is sent.
                told.await.unwrap();
                writer.write_all(&frame(0x88, &1000_u16.to_be_bytes())).await.unwrap();
            };
            let reading = async {
                let (mut all, mut tell, mut found) = (Vec::new(), Some(tell), Vec::new());
                let mut is_answered = false;
                loop {
                    match all.windows(4).position(|bytes| bytes == b"\r\n\r\n") {
                        Some(end) if !is_answered => {
                            all.drain(..end + 4);
                            is_answered = true;
                        }
                        _ => (),
                    }
                    if is_answered {
                        let more = frames(&all);
                        let read: usize = more.iter().map(|frame| sent_size(frame.1.len())).sum();
                        all.drain(..read);
                        found.extend(more);
                    }
                    let of = |kind: u8| found.iter().filter(move |frame| frame.0 == kind);
                    if of(0x82).map(|frame| frame.1.len()).sum::<usize>() == down.len() && of(0x8a).count() == pongs {
                        tell.take().into_iter().for_each(|tell| tell.send(()).unwrap());
                    }
                    if reader.read_buf(&mut all).await.unwrap() == 0 {
                        return found;
                    }
                }
            };
            let (got, (), found) = tokio::join!(server, writing, reading);
            assert!(got.unwrap() == sent, "what came is not what was sent");
            let (data, others): (Vec<_>, Vec<_>) = found.into_iter().partition(|frame| frame.0 == 0x82);
            assert!(data.into_iter().flat_map(|frame| frame.1).eq(down.iter().copied()));
            let (close, others) = others.split_last().unwrap();
            assert_eq!(close, &(0x88, vec![3, 232]));
            assert_eq!(others, pings);
        });
    }
}

#[test]
fn either_side_may_close_first() {
    run(async {
        let (mut server, mut far) = pair().await;
        far.write_all(&[frame(0x82, b"last"), frame(0x88, b"\x0f\xa0why"), b"more".to_vec()].concat()).await.unwrap();
        let mut got = Vec::new();
        server.read_to_end(&mut got).await.unwrap();
        assert_eq!(got, b"last");
        assert_eq!(server.read(&mut [0; 9]).await.unwrap(), 0);
        assert_eq!(server.write(b"x").await.unwrap_err().kind(), ErrorKind::BrokenPipe);
        server.shutdown().await.unwrap();
        assert_eq!(rest(far).await, [(0x88, b"\x0f\xa0".to_vec())]);

        let (mut server, mut far) = pair().await;
        server.write_all(b"last").await.unwrap();
        server.shutdown().await.unwrap();
        server.shutdown().await.unwrap();
        far.write_all(&[frame(0x89, b"there?"), frame(0x82, b"heard"), frame(0x88, b"")].concat()).await.unwrap();
        let mut got = Vec::new();
        server.read_to_end(&mut got).await.unwrap();
        assert_eq!(got, b"heard");
        assert_eq!(rest(far).await, [(0x82, b"last".to_vec()), (0x88, vec![3, 232])]);
    });
}

#[test]
fn protocol_errors_are_answered_with_a_close() {
    let unmasked = [0x82, 1, b'x'].to_vec();
    for (bytes, code, part) in [
        (frame(0x81, b"text"), 1003, "text"),
        (unmasked, 1002, "not masked"),
        ([&[0x82, 0xff][..], &(1_u64 << 21).to_be_bytes(), &[0; 4]].concat(), 1009, "larger"),
    ] {
        run(async {
            let (mut server, mut far) = pair().await;
            far.write_all(&[frame(0x82, b"good"), bytes].concat()).await.unwrap();
            let mut space = [0; 100];
            assert_eq!(server.read(&mut space).await.unwrap(), 4);
            for _ in 0..2 {
                let error = server.read(&mut space).await.unwrap_err();
                assert!(error.kind() == ErrorKind::InvalidData && error.to_string().contains(part), "{error}");
            }
            server.shutdown().await.unwrap();
            assert_eq!(rest(far).await, [(0x88, u16::to_be_bytes(code).to_vec())]);
        });
    }
}

#[test]
fn missing_close_frame_is_an_error() {
    run(async {
        let (mut server, mut far) = pair().await;
        far.write_all(&frame(0x82, b"half of it")[..12]).await.unwrap();
        far.shutdown().await.unwrap();
        let mut space = [0; 100];
        assert_eq!(server.read(&mut space).await.unwrap(), 6);
        assert_eq!(server.read(&mut space).await.unwrap_err().kind(), ErrorKind::UnexpectedEof);
    });
}

#[test]
fn endless_pings_take_no_memory() {
    run(async {
        let (near, mut far) = duplex(4_000);
        far.write_all(REQUEST.as_bytes()).await.unwrap();
        let mut server = WebSocketStream::accept(near, 1 << 20, PATIENCE).await.unwrap();
        let asking = async {
            for _ in 0..2_000 {
                far.write_all(&frame(0x89, &[7; 125])).await.unwrap();
            }
            far.write_all(&frame(0x82, b"end")).await.unwrap();
        };
        let mut space = [0; 10];
        let (count, ()) = tokio::join!(server.read(&mut space), asking);
        assert_eq!(count.unwrap(), 3);
        assert!(server.outgoing.len() <= PONG_BACKLOG_MAX_BYTES + 127, "{}", server.outgoing.len());
    });
}

#[test]
fn other_requests_are_answered_in_http() {
    let long = format!("GET /mqtt HTTP/1.1\r\nCookie: {}\r\n", "x".repeat(HEAD_MAX_BYTES));
    for (request, status) in [
        ("GET / HTTP/1.1\r\nHost: x\r\n\r\n", "426 Upgrade Required"),
        ("GET /favicon.ico HTTP/1.1\r\nHost: x\r\n\r\n", "404 Not Found"),
        ("\x10\x0c\0\x04MQTT\x04\x02", "400 Bad Request"),
        (&long, "431 Request Header Fields Too Large"),
        ("GET /mqtt HTTP/1.1\r\n", "408 Request Timeout"),
    ] {
        run(async {
            let (near, mut far) = duplex(100_000);
            far.write_all(request.as_bytes()).await.unwrap();
            let client = async {
                let mut answer = String::new();
                far.read_to_string(&mut answer).await.unwrap();
                assert!(answer.starts_with(&format!("HTTP/1.1 {status}\r\n")), "{answer}");
                drop(far);
            };
            let (refused, ()) = tokio::join!(WebSocketStream::accept(near, 1 << 20, Duration::from_millis(50)), client);
            assert!(matches!(refused, Err(WebSocketError::Refused(_))));
        });
    }
    run(async {
        let (near, far) = duplex(100);
        drop(far);
        assert!(matches!(WebSocketStream::accept(near, 1, PATIENCE).await, Err(WebSocketError::Ended)));
    });
}
