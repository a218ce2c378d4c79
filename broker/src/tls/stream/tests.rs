//! Tests of the stream against rustls's own client, over a pipe that moves arbitrary numbers of bytes.

use std::{io::ErrorKind, sync::LazyLock, time::Duration};

use proptest::prelude::*;
use rustls::{AlertDescription, ClientConfig, pki_types::ServerName, version};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex},
    time::timeout,
};
use tokio_rustls::{TlsConnector, client};

use super::*;
use crate::{
    choppy::{Choppy, exchange_bytes, fewer, run, text},
    fixture::Authority,
};

/// Both sides' configurations; making certificates takes longer than using them.
struct Sides {
    server: Arc<ServerConfig>,
    new: Arc<ClientConfig>,
    old: Arc<ClientConfig>,
    stranger: Arc<ClientConfig>,
}

static SIDES: LazyLock<Sides> = LazyLock::new(|| {
    let authority = Authority::new();
    let pair = authority.issue("console-main");
    Sides {
        server: authority.tls().server(&Arc::default()).unwrap(),
        new: authority.client_of(&[&version::TLS13], Some(&pair)),
        old: authority.client_of(&[&version::TLS12], Some(&pair)),
        stranger: authority.client(None),
    }
});

async fn connect<S: AsyncRead + AsyncWrite + Unpin>(
    io: S,
    config: &Arc<ClientConfig>,
) -> io::Result<client::TlsStream<S>> {
    TlsConnector::from(Arc::clone(config)).connect(ServerName::try_from("localhost").unwrap(), io).await
}

#[derive(Clone, Debug)]
struct Case {
    old: bool,
    seed: u64,
    /// The most that the pipe moves at once.
    max: usize,
    up: Vec<usize>,
    down: usize,
    read_size: usize,
}

fn cases() -> impl Strategy<Value = Case> {
    let sizes = prop_oneof![1_usize..64, 1_usize..5_000, 16_000_usize..40_000];
    (
        any::<bool>(),
        any::<u64>(),
        prop_oneof![1_usize..8, 1_usize..2_000, Just(70_000)],
        prop::collection::vec(sizes.clone(), 0..6),
        prop_oneof![Just(0), sizes],
        prop_oneof![1_usize..100, 1_000_usize..70_000],
    )
        .prop_map(|(old, seed, max, up, down, read_size)| Case { old, seed, max, up, down, read_size })
        // A byte at a time, a megabyte takes long and shows no more than a few kilobytes.
        .prop_map(|mut case| {
            if case.max < 8 || case.read_size < 100 {
                case.up.iter_mut().for_each(|size| *size = 1 + *size % 3_000);
                case.down %= 3_000;
            }
            case
        })
}

fn check_exchange(case: &Case) {
    let sides = &*SIDES;
    let (up, down) = (text(case.up.iter().sum()), text(case.down));
    run(async {
        let (near, far) = Choppy::pair(case.seed, case.max, 8_192);
        let server = async {
            let mut stream = TlsStream::accept(near, Arc::clone(&sides.server)).await.unwrap();
            assert!(stream.peer_certificates().is_some());
            let got = exchange_bytes(&mut *stream, &down, case.read_size, case.seed.is_multiple_of(2)).await.unwrap();
            assert!(got == up, "what came is not what was sent");
            assert!(stream.incoming.is_empty() && stream.plain.is_empty() && stream.outgoing.is_empty());
        };
        let client = async {
            let config = if case.old { &sides.old } else { &sides.new };
            let (mut reader, mut writer) = tokio::io::split(connect(far, config).await.unwrap());
            let writing = async {
                let mut rest = &up[..];
                for size in &case.up {
                    let (now, later) = rest.split_at(*size);
                    writer.write_all(now).await.unwrap();
                    rest = later;
                }
                writer.shutdown().await.unwrap();
            };
            let reading = async {
                let mut got = Vec::new();
                reader.read_to_end(&mut got).await.unwrap();
                assert!(got == down, "what came is not what was sent");
            };
            tokio::join!(writing, reading);
        };
        tokio::join!(server, client);
    });
}

/// What happens to bytes on their way to the server.
#[derive(Clone, Copy, Debug)]
enum Harm {
    Cut,
    Flip,
    Garbage,
}

/// How long a line on which harm was done may be silent.
const DEAD_LINE: Duration = Duration::from_millis(300);

/// Carries bytes from a client to the server, and does harm at `place`.
async fn carry(mut from: impl AsyncRead + Unpin, mut to: impl AsyncWrite + Unpin, place: usize, harm: Harm) {
    let mut space = [0; 700];
    let mut carried = 0;
    loop {
        let read = from.read(&mut space);
        // A length that was changed may leave each side waiting for the other: the broker has a time limit for that, and
        // here the line goes dead.
        let read = if carried > place { timeout(DEAD_LINE, read).await.unwrap_or(Ok(0)) } else { read.await };
        let Ok(count @ 1..) = read else { break };
        let bytes = &mut space[..count];
        let hit = place.checked_sub(carried).filter(|place| *place < count);
        carried += count;
        let done = match (hit, harm) {
            (None, _) => to.write_all(bytes).await,
            (Some(at), Harm::Cut) => {
                to.write_all(&bytes[..at]).await.ok();
                break;
            }
            (Some(at), Harm::Flip) => {
                bytes[at] ^= 0x10;
                to.write_all(bytes).await
            }
            (Some(at), Harm::Garbage) => {
                let (before, after) = bytes.split_at(at);
                to.write_all(&[before, &[0x5a; 40], after].concat()).await
            }
        };
        if done.is_err() {
            break;
        }
    }
    to.shutdown().await.ok();
}

fn check_harm(old: bool, place: usize, harm: Harm) {
    const LENGTH: usize = 6_000;
    let sides = &*SIDES;
    let sent = text(LENGTH);
    run(async {
        let (near, near_far) = duplex(1_000);
        let (far, far_near) = duplex(1_000);
        let (near_reader, near_writer) = tokio::io::split(near_far);
        let (far_reader, far_writer) = tokio::io::split(far_near);
        let server = async {
            let mut stream = TlsStream::accept(near, Arc::clone(&sides.server)).await?;
            let (mut got, mut space) = (Vec::new(), [0; 900]);
            let end = loop {
                match stream.read(&mut space).await {
                    Ok(0) => break Ok(()),
                    Ok(count) => got.extend_from_slice(&space[..count]),
                    Err(error) => break Err(error),
                }
            };
            assert!(sent.starts_with(&got), "what came was never sent");
            assert!(end.is_err() || got.len() == LENGTH, "an end where there was none");
            end
        };
        let client = async {
            let config = if old { &sides.old } else { &sides.new };
            let Ok(mut stream) = connect(far, config).await else { return };
            for part in sent.chunks(600) {
                if stream.write_all(part).await.is_err() {
                    return;
                }
            }
            stream.shutdown().await.ok();
            stream.read_to_end(&mut Vec::new()).await.ok();
        };
        let back = carry(near_reader, far_writer, usize::MAX, Harm::Cut);
        let ended = tokio::join!(server, client, carry(far_reader, near_writer, place, harm), back).0;
        if let Err(error) = ended {
            assert!(matches!(error.kind(), ErrorKind::InvalidData | ErrorKind::UnexpectedEof), "{error:?}");
        }
    });
}

proptest! {
    #![proptest_config(fewer(3))]

    #[test]
    fn sent_bytes_arrive_unchanged(case in cases()) {
        check_exchange(&case);
    }

    #[test]
    fn altered_records_are_refused(
        old: bool,
        place in 0_usize..9_500,
        harm in prop_oneof![Just(Harm::Cut), Just(Harm::Flip), Just(Harm::Garbage)],
    ) {
        check_harm(old, place, harm);
    }

    #[test]
    fn plain_bytes_are_refused(bytes: Vec<u8>, looks_like_a_record: bool) {
        run(async {
            let (mut far, near) = duplex(100_000);
            if looks_like_a_record {
                let length = u16::try_from(bytes.len()).unwrap().to_be_bytes();
                far.write_all(&[&[0x16, 3, 1], &length[..]].concat()).await.unwrap();
            }
            far.write_all(&bytes).await.unwrap();
            far.shutdown().await.unwrap();
            assert!(TlsStream::accept(near, Arc::clone(&SIDES.server)).await.is_err());
        });
    }
}

/// A connection whose handshake is done.
async fn pair(config: &Arc<ClientConfig>) -> (Box<TlsStream<DuplexStream>>, client::TlsStream<DuplexStream>) {
    let (near, far) = duplex(100_000);
    let (server, client) = tokio::join!(TlsStream::accept(near, Arc::clone(&SIDES.server)), connect(far, config));
    (server.unwrap(), client.unwrap())
}

#[test]
fn half_closed_stream_still_receives() {
    for config in [&SIDES.old, &SIDES.new] {
        run(async {
            let (mut server, mut client) = pair(config).await;
            client.shutdown().await.unwrap();
            assert_eq!(server.read(&mut [0; 10]).await.unwrap(), 0);
            assert_eq!(server.read(&mut [0; 10]).await.unwrap(), 0);
            server.write_all(b"still here").await.unwrap();
            server.shutdown().await.unwrap();
            let mut got = Vec::new();
            client.read_to_end(&mut got).await.unwrap();
            assert_eq!(got, b"still here");
            assert_eq!(server.write(b"x").await.unwrap_err().kind(), ErrorKind::BrokenPipe);

            let (mut server, mut client) = pair(config).await;
            server.shutdown().await.unwrap();
            server.shutdown().await.unwrap();
            assert_eq!(client.read(&mut [0; 10]).await.unwrap(), 0);
            client.write_all(b"me too").await.unwrap();
            client.shutdown().await.unwrap();
            let mut got = Vec::new();
            server.read_to_end(&mut got).await.unwrap();
            assert_eq!(got, b"me too");
        });
    }
}

#[test]
fn key_update_is_handled() {
    run(async {
        let (mut server, mut client) = pair(&SIDES.new).await;
        for round in 0..20_u8 {
            client.write_all(&[round; 100]).await.unwrap();
            client.get_mut().1.refresh_traffic_keys().unwrap();
            client.write_all(&[round; 50]).await.unwrap();
            client.flush().await.unwrap();
            let mut got = [0; 150];
            server.read_exact(&mut got).await.unwrap();
            assert_eq!(got, [round; 150]);
            server.write_all(&[round; 70]).await.unwrap();
            server.flush().await.unwrap();
            let mut got = [0; 70];
            client.read_exact(&mut got).await.unwrap();
            assert_eq!(got, [round; 70]);
        }
    });
}

#[test]
fn client_receives_the_alert() {
    run(async {
        let (near, far) = duplex(100_000);
        let server = async { TlsStream::accept(near, Arc::clone(&SIDES.server)).await.map(drop) };
        let client = async {
            let mut stream = connect(far, &SIDES.stranger).await.unwrap();
            stream.read(&mut [0; 10]).await.unwrap_err()
        };
        let (server, client) = tokio::join!(server, client);
        assert!(server.unwrap_err().to_string().contains("certificate"));
        let alert = client.into_inner().unwrap().downcast::<Error>().unwrap();
        assert_eq!(*alert, Error::AlertReceived(AlertDescription::CertificateRequired));

        let (mut server, mut client) = pair(&SIDES.new).await;
        client.write_all(b"first").await.unwrap();
        client.flush().await.unwrap();
        client.get_mut().0.write_all(&[23, 3, 3, 0, 30]).await.unwrap();
        client.get_mut().0.write_all(&[7; 30]).await.unwrap();
        let mut got = [0; 100];
        assert_eq!(server.read(&mut got).await.unwrap(), 5);
        for _ in 0..2 {
            assert_eq!(server.read(&mut got).await.unwrap_err().kind(), ErrorKind::InvalidData);
        }
        assert_eq!(server.write(b"x").await.unwrap_err().kind(), ErrorKind::InvalidData);
        server.shutdown().await.unwrap();
        let alert = client.read(&mut got).await.unwrap_err().into_inner().unwrap().downcast::<Error>().unwrap();
        assert_eq!(*alert, Error::AlertReceived(AlertDescription::BadRecordMac));
    });
}

#[test]
fn unsent_writes_are_bounded() {
    run(async {
        let (near, far) = duplex(1_000);
        let (server, client) =
            tokio::join!(TlsStream::accept(near, Arc::clone(&SIDES.server)), connect(far, &SIDES.new));
        let (mut server, mut client) = (server.unwrap(), client.unwrap());
        let sent = text(200_000);
        let mut taken = 0;
        poll_fn(|cx| {
            while let Poll::Ready(count) = Pin::new(&mut *server).poll_write(cx, &sent[taken..]) {
                taken += count.unwrap();
            }
            Poll::Ready(())
        })
        .await;
        assert!(taken <= WRITE_MAX_BYTES && server.outgoing.len() <= WRITE_MAX_BYTES + OVERHEAD_BYTES);
        let writing = async {
            server.write_all(&sent[taken..]).await.unwrap();
            server.shutdown().await.unwrap();
        };
        let mut got = Vec::new();
        let (reading, ()) = tokio::join!(client.read_to_end(&mut got), writing);
        reading.unwrap();
        assert!(got == sent && server.outgoing.is_empty());
    });
}

#[test]
fn idle_stream_is_small() {
    // Beside what rustls allocates. A change here is a change of what ten thousand clients cost.
    assert!(size_of::<TlsStream<tokio::net::TcpStream>>() < 2_048, "{}", size_of::<TlsStream<tokio::net::TcpStream>>());
}
