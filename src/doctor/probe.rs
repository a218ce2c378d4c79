//! Connects to servers, and looks at what they show: their certificate, their clock, and a console's readiness. Nothing secret is
//! sent.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use muster_base::{clock, failure::with_causes};
use muster_net::pki;
use muster_topics::Millis;
use rustls::{
    ClientConfig, DigitallySignedStruct, Error, SignatureScheme,
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature},
    pki_types::{CertificateDer, ServerName, UnixTime},
};
use time::{OffsetDateTime, PrimitiveDateTime, macros::format_description};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};
use tokio_rustls::TlsConnector;
use x509_parser::extensions::GeneralName;

use crate::{
    facts::{CertificateContent, CertificateFacts, ListenerState, Reach, ServerAnswer, ServerFacts},
    setup::ServerSetup,
};

/// How long one step may take. What answers at all does so in milliseconds.
const STEP: Duration = Duration::from_secs(5);
/// The most of an answer that is read: heads of HTTP have some hundred bytes.
const ANSWER_MAX_BYTES: u64 = 16 * 1024;

/// A server's address.
struct Target {
    scheme: String,
    host: String,
    port: u16,
}

/// Parses `https://HOST[:PORT]`, `http://…`, `mqtts://…`, `mqtt://…`.
fn target(url: &str) -> Option<Target> {
    let (scheme, rest) = url.split_once("://")?;
    let usual = match scheme {
        "https" => 443,
        "http" => 80,
        "mqtts" => 8883,
        "mqtt" => 1883,
        _ => return None,
    };
    let authority = rest.split(['/', '?', '#']).next()?;
    let (host, port) = match authority.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') => (host, port.parse().ok()?),
        _ => (authority, usual),
    };
    let host = host.trim_start_matches('[').trim_end_matches(']');
    (!host.is_empty()).then(|| Target { scheme: scheme.to_owned(), host: host.to_owned(), port })
}

/// Looks at a server.
pub async fn server(setup: &ServerSetup) -> ServerFacts {
    ServerFacts { setup: setup.clone(), reach: reach(setup).await }
}

async fn reach(setup: &ServerSetup) -> Reach {
    let Some(target) = target(&setup.url) else { return Reach::Invalid };
    let stream = match connect(&target).await {
        Ok(stream) => stream,
        Err(reach) => return reach,
    };
    let is_http = target.scheme.starts_with("http");
    let mut answer = ServerAnswer::default();
    let Some(authority) = setup.authority.as_ref().filter(|_| target.scheme.ends_with('s')) else {
        if is_http {
            read_http(stream, &target, &mut answer).await;
        }
        return Reach::Answers(answer);
    };
    let seen = Arc::new(CertificateRecorder::default());
    let config =
        ClientConfig::builder_with_provider(pki::provider()).with_safe_default_protocol_versions().map(|builder| {
            let builder = builder.dangerous().with_custom_certificate_verifier(Arc::clone(&seen) as _);
            builder.with_no_client_auth()
        });
    let (config, name) = match (config, ServerName::try_from(target.host.clone())) {
        (Ok(config), Ok(name)) => (config, name),
        _ => return Reach::Invalid,
    };
    let connector = TlsConnector::from(Arc::new(config));
    let stream = timeout(STEP, connector.connect(name.clone(), stream)).await;
    let chain = seen.chain();
    if chain.is_empty() {
        return Reach::NoTls(match stream {
            Ok(Err(error)) => error.to_string(),
            _ => "it sends nothing".to_owned(),
        });
    }
    answer.certificate = Some((certificate_of_server(setup, &chain), refusal(authority, &chain, &name)));
    // A broker ends a connection without a client's certificate after it has shown its own.
    if let (true, Ok(Ok(stream))) = (is_http, stream) {
        read_http(stream, &target, &mut answer).await;
    }
    Reach::Answers(answer)
}

async fn connect(target: &Target) -> Result<TcpStream, Reach> {
    let found = timeout(STEP, tokio::net::lookup_host((target.host.as_str(), target.port))).await;
    let addresses: Vec<SocketAddr> = match found {
        Ok(Ok(addresses)) => addresses.collect(),
        Ok(Err(error)) => return Err(Reach::Unresolved(error.to_string())),
        Err(_) => return Err(Reach::Unresolved("no answer within 5 s".to_owned())),
    };
    let mut last = Reach::Unresolved("it has no certificate".to_owned());
    for address in addresses {
        last = match timeout(STEP, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(error)) => Reach::Refused(error.to_string()),
            Err(_) => Reach::Refused("no answer within 5 s; a firewall may drop the packets".to_owned()),
        };
    }
    Err(last)
}

/// Asks a console whether it is ready, and takes the time from its answer.
async fn read_http(mut stream: impl AsyncRead + AsyncWrite + Unpin, target: &Target, answer: &mut ServerAnswer) {
    let request = format!("GET /readyz HTTP/1.1\r\nHost: {}:{}\r\nConnection: close\r\n\r\n", target.host, target.port);
    let asked_ms = clock::now_ms();
    let exchange = async {
        stream.write_all(request.as_bytes()).await?;
        let mut read = Vec::new();
        // TLS may end without a word, with the answer already there.
        let ended = stream.take(ANSWER_MAX_BYTES).read_to_end(&mut read).await;
        if read.is_empty() { ended.and(Err(io::ErrorKind::UnexpectedEof.into())) } else { Ok(read) }
    };
    let Ok(Ok(read)) = timeout(STEP, exchange).await else { return };
    let answered_ms = clock::now_ms();
    let text = String::from_utf8_lossy(&read);
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    let status = head.split_whitespace().nth(1).and_then(|status| status.parse().ok());
    answer.ready = status.map(|status| (status, body.trim().lines().next().unwrap_or_default().to_owned()));
    answer.ahead_ms = date(head).map(|date_ms| ahead_ms(date_ms, asked_ms, answered_ms));
}

/// By how much a server's clock is ahead; its date is that of a whole second, rounded down.
fn ahead_ms(date_ms: Millis, asked_ms: Millis, answered_ms: Millis) -> Millis {
    date_ms + 500 - (asked_ms + answered_ms) / 2
}

/// The time in the head of an answer (RFC 9110).
fn date(head: &str) -> Option<Millis> {
    let form =
        format_description!("[weekday repr:short], [day] [month repr:short] [year] [hour]:[minute]:[second] GMT");
    let value = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("date").then(|| value.trim())
    })?;
    let time: OffsetDateTime = PrimitiveDateTime::parse(value, form).ok()?.assume_utc();
    Some(time.unix_timestamp() * 1_000)
}

fn certificate_of_server(setup: &ServerSetup, chain: &[CertificateDer<'static>]) -> CertificateFacts {
    CertificateFacts {
        what: format!("the certificate of the {}", setup.what),
        place: setup.url.clone(),
        remedy: match setup.what {
            "broker" => {
                "make a new one on the console's machine (`muster console issue --role broker …`), put it in place, \
                         and have the broker read it: kill -HUP, or restart it"
            }
            _ => "the console makes a new one when it starts: restart it",
        }
        .to_owned(),
        content: chain.first().map_or(Err("there is none".to_owned()), |der| certificate(der)),
    }
}

/// Why an agent would refuse this server.
fn refusal(authority: &str, chain: &[CertificateDer<'static>], name: &ServerName<'_>) -> Option<String> {
    let (leaf, others) = chain.split_first()?;
    let verifier = match pki::roots(authority).and_then(pki::server_verifier) {
        Ok(verifier) => verifier,
        Err(error) => return Some(with_causes(&error)),
    };
    let verdict = verifier.verify_server_cert(leaf, others, name, &[], UnixTime::now());
    verdict.err().map(|error| error.to_string())
}

/// What a certificate says.
///
/// # Errors
/// If it cannot be read.
pub fn certificate(der: &[u8]) -> Result<CertificateContent, String> {
    let (_, parsed) = x509_parser::parse_x509_certificate(der).map_err(|error| error.to_string())?;
    let common_name = parsed.subject().iter_common_name().next().and_then(|name| name.as_str().ok());
    let names = parsed.subject_alternative_name().ok().flatten();
    let names = names.map(|names| names.value.general_names.iter().filter_map(general_name).collect());
    let validity = parsed.validity();
    Ok(CertificateContent {
        common_name: common_name.unwrap_or("nobody").to_owned(),
        names: names.unwrap_or_default(),
        begins_ms: validity.not_before.timestamp() * 1_000,
        ends_ms: validity.not_after.timestamp() * 1_000,
    })
}

fn general_name(name: &GeneralName<'_>) -> Option<String> {
    match name {
        GeneralName::DNSName(name) => Some((*name).to_owned()),
        GeneralName::IPAddress(bytes) => match bytes.len() {
            4 => <[u8; 4]>::try_from(*bytes).ok().map(|bytes| Ipv4Addr::from(bytes).to_string()),
            _ => <[u8; 16]>::try_from(*bytes).ok().map(|bytes| Ipv6Addr::from(bytes).to_string()),
        },
        _ => None,
    }
}

/// Looks whether something listens at an address, or could.
pub async fn listener(address: SocketAddr) -> ListenerState {
    let mut own = address;
    if address.ip().is_unspecified() {
        own.set_ip(if address.is_ipv4() { IpAddr::V4(Ipv4Addr::LOCALHOST) } else { IpAddr::V6(Ipv6Addr::LOCALHOST) });
    }
    if address.port() != 0 && matches!(timeout(STEP, TcpStream::connect(own)).await, Ok(Ok(_))) {
        return ListenerState::Answers;
    }
    match std::net::TcpListener::bind(address) {
        Ok(_) => ListenerState::Free,
        Err(error) => ListenerState::Unusable(error.to_string()),
    }
}

/// Takes any certificate, so that it can be looked at.
#[derive(Debug)]
struct CertificateRecorder {
    chain: Mutex<Vec<CertificateDer<'static>>>,
    provider: Arc<CryptoProvider>,
}

impl Default for CertificateRecorder {
    fn default() -> Self {
        Self { chain: Mutex::default(), provider: pki::provider() }
    }
}

impl CertificateRecorder {
    fn chain(&self) -> Vec<CertificateDer<'static>> {
        self.chain.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl ServerCertVerifier for CertificateRecorder {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let chain = std::iter::once(end_entity).chain(intermediates).map(|der| der.clone().into_owned());
        *self.chain.lock().unwrap_or_else(PoisonError::into_inner) = chain.collect();
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signed, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signed, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_servers_parse() {
        for (url, wanted) in [
            ("https://a.example", Some(("a.example", 443))),
            ("mqtts://[::1]:7", Some(("::1", 7))),
            ("http://127.0.0.1:7080/x", Some(("127.0.0.1", 7080))),
            ("ftp://a", None),
            ("https://:1", None),
            ("https://a:b", None),
        ] {
            let found = target(url);
            assert_eq!(found.as_ref().map(|found| (found.host.as_str(), found.port)), wanted, "{url}");
        }
    }

    #[test]
    fn offset_of_a_clock_is_taken_from_the_middle_of_the_exchange() {
        let head = "HTTP/1.1 200 OK\r\nDate: Tue, 14 Nov 2023 22:13:20 GMT\r\nx: y";
        assert_eq!(date(head), Some(1_700_000_000_000));
        assert_eq!(date("HTTP/1.1 200 OK\r\nx: y"), None);
        assert_eq!(ahead_ms(10_000, 8_000, 9_000), 2_000);
    }

    #[tokio::test]
    async fn listeners_are_told_from_free_ports() {
        let listener_there = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener_there.local_addr().unwrap();
        assert_eq!(listener(address).await, ListenerState::Answers);
        drop(listener_there);
        assert_eq!(listener(address).await, ListenerState::Free);
        assert!(matches!(listener("192.0.2.1:0".parse().unwrap()).await, ListenerState::Unusable(_)));
    }
}
