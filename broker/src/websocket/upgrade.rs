//! The HTTP request with which a WebSocket begins, and its answer (RFC 6455, section 4): bytes in, bytes out, no IO.

use base64::{Engine, engine::general_purpose::STANDARD};
use ring::digest;

/// The longest head of a request. Browsers and proxies send a kilobyte or two, cookies included.
pub(super) const HEAD_MAX_BYTES: usize = 8 * 1024;

/// What the standard adds to a client's key before it is hashed.
const GUID: &str = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

/// The paths of MQTT: clients' defaults.
const PATHS: [&str; 2] = ["/mqtt", "/"];

/// Why a request does not begin a WebSocket for MQTT.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum UpgradeRefusal {
    #[error("the request is not HTTP/1.1")]
    Http,
    #[error("the request's head is longer than {HEAD_MAX_BYTES} bytes")]
    TooLarge,
    #[error("the request did not come in time")]
    Timeout,
    #[error("the request's method is not GET")]
    Method,
    #[error("unknown path; MQTT over WebSocket is at /mqtt")]
    Path,
    #[error("the request does not ask for a WebSocket; this port supports nothing else")]
    Upgrade,
    #[error("the request asks for another version of WebSocket than 13")]
    Version,
    #[error("the request has no Sec-WebSocket-Key of 16 bytes")]
    Key,
    #[error("the request does not offer the subprotocol mqtt (Sec-WebSocket-Protocol)")]
    Subprotocol,
    #[error("the request has a body")]
    Body,
}

impl UpgradeRefusal {
    fn status(self) -> &'static str {
        match self {
            Self::Http | Self::Key | Self::Subprotocol | Self::Body => "400 Bad Request",
            Self::Path => "404 Not Found",
            Self::Method => "405 Method Not Allowed",
            Self::Timeout => "408 Request Timeout",
            Self::Upgrade | Self::Version => "426 Upgrade Required",
            Self::TooLarge => "431 Request Header Fields Too Large",
        }
    }

    /// Returns the complete response.
    pub(super) fn answer(self) -> String {
        let (status, text) = (self.status(), self.to_string());
        let more = match self {
            Self::Method => "Allow: GET\r\n",
            Self::Upgrade | Self::Version => "Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n",
            _ => "",
        };
        let connection = if more.starts_with("Upgrade") { "Upgrade, close" } else { "close" };
        format!(
            "HTTP/1.1 {status}\r\nConnection: {connection}\r\n{more}Content-Type: text/plain\r\nContent-Length: {}\r\n\r\n{text}\n",
            text.len() + 1
        )
    }
}

/// Parses a request: returns the response if it begins a WebSocket, and the length of its head. `None` if that is
/// incomplete.
pub(super) fn read(input: &[u8]) -> Result<Option<(String, usize)>, UpgradeRefusal> {
    let window = input.get(..HEAD_MAX_BYTES).unwrap_or(input);
    let Some(end) = window.windows(4).position(|bytes| bytes == b"\r\n\r\n") else {
        // A client that uses TLS or MQTT here gets its error before the timeout.
        if !window.iter().all(|byte| is_text(*byte) || matches!(byte, b'\r' | b'\n')) {
            return Err(UpgradeRefusal::Http);
        }
        return if window.len() < HEAD_MAX_BYTES { Ok(None) } else { Err(UpgradeRefusal::TooLarge) };
    };
    let head = window.get(..end).and_then(|head| std::str::from_utf8(head).ok()).ok_or(UpgradeRefusal::Http)?;
    Ok(Some((answer(head)?, end + 4)))
}

fn is_text(byte: u8) -> bool {
    matches!(byte, b'\t' | b' '..=b'~' | 0x80..)
}

fn answer(head: &str) -> Result<String, UpgradeRefusal> {
    let mut lines = head.split("\r\n");
    check_request_line(lines.next().unwrap_or_default())?;
    let fields = lines.map(field).collect::<Result<Vec<_>, _>>()?;
    let fields = HeaderFields(&fields);
    if fields.all("host").count() != 1 {
        return Err(UpgradeRefusal::Http);
    }
    if fields.all("transfer-encoding").next().is_some() || fields.all("content-length").any(|length| length != "0") {
        return Err(UpgradeRefusal::Body);
    }
    if !fields.lists("upgrade", "websocket") || !fields.lists("connection", "upgrade") {
        return Err(UpgradeRefusal::Upgrade);
    }
    if !fields.all("sec-websocket-version").eq(["13"]) {
        return Err(UpgradeRefusal::Version);
    }
    let mut keys = fields.all("sec-websocket-key");
    let (Some(key), None) = (keys.next(), keys.next()) else { return Err(UpgradeRefusal::Key) };
    if !STANDARD.decode(key).is_ok_and(|bytes| bytes.len() == 16) {
        return Err(UpgradeRefusal::Key);
    }
    // Names of subprotocols are case-sensitive.
    if !fields.all("sec-websocket-protocol").flat_map(|offers| offers.split(',')).any(|offer| offer.trim() == "mqtt") {
        return Err(UpgradeRefusal::Subprotocol);
    }
    let accept = digest::digest(&digest::SHA1_FOR_LEGACY_USE_ONLY, format!("{key}{GUID}").as_bytes());
    Ok(format!(
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Accept: {}\r\nSec-WebSocket-Protocol: mqtt\r\n\r\n",
        STANDARD.encode(accept)
    ))
}

fn check_request_line(line: &str) -> Result<(), UpgradeRefusal> {
    let mut words = line.split(' ');
    let (Some(method), Some(target), Some("HTTP/1.1"), None) = (words.next(), words.next(), words.next(), words.next())
    else {
        return Err(UpgradeRefusal::Http);
    };
    if method != "GET" {
        return Err(UpgradeRefusal::Method);
    }
    let path = target.split('?').next().unwrap_or_default();
    if PATHS.contains(&path) { Ok(()) } else { Err(UpgradeRefusal::Path) }
}

/// Parses a header field into name and value.
fn field(line: &str) -> Result<(&str, &str), UpgradeRefusal> {
    let (name, value) = line.split_once(':').ok_or(UpgradeRefusal::Http)?;
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    // A space before the colon and continuation lines have been forbidden for long.
    if name.is_empty() || !name.bytes().all(is_token) || !value.bytes().all(is_text) {
        return Err(UpgradeRefusal::Http);
    }
    Ok((name, value.trim_matches([' ', '\t'])))
}

struct HeaderFields<'a>(&'a [(&'a str, &'a str)]);

impl<'a> HeaderFields<'a> {
    /// Returns the values of all fields of this name.
    fn all(&self, name: &'static str) -> impl Iterator<Item = &'a str> {
        self.0.iter().filter(move |(found, _)| found.eq_ignore_ascii_case(name)).map(|(_, value)| *value)
    }

    /// Whether a word is in the lists of these fields.
    fn lists(&self, name: &'static str, word: &str) -> bool {
        self.all(name).flat_map(|value| value.split(',')).any(|found| found.trim().eq_ignore_ascii_case(word))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A request that begins a WebSocket, with the standard's own key.
    const GOOD: &str = "GET /mqtt HTTP/1.1\r\nHost: localhost:9001\r\nUpgrade: websocket\r\nConnection: keep-alive, Upgrade\r\n\
        Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\
        Sec-WebSocket-Protocol: mqttv3.1, mqtt\r\nOrigin: https://elsewhere.example\r\n\r\n";

    #[track_caller]
    fn check(request: &str, expected: Result<(), UpgradeRefusal>) {
        let found = read(request.as_bytes());
        match expected {
            Ok(()) => {
                let (answer, length) = found.unwrap().unwrap();
                assert_eq!(length, request.len());
                assert!(answer.contains("\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n"), "{answer}");
            }
            Err(refusal) => {
                assert_eq!(found, Err(refusal), "{request}");
                let answer = refusal.answer();
                assert!(
                    answer.starts_with("HTTP/1.1 4") && answer.ends_with(&format!("\r\n\r\n{refusal}\n")),
                    "{answer}"
                );
            }
        }
    }

    #[test]
    fn upgrade_requests_are_accepted_or_refused() {
        check(GOOD, Ok(()));
        let with = |from: &str, to: &str| {
            assert!(GOOD.contains(from), "{from}");
            GOOD.replacen(from, to, 1)
        };
        for (from, to) in [
            ("/mqtt", "/"),
            ("/mqtt", "/mqtt?x=/y"),
            ("Upgrade: websocket", "upgrade:WebSocket"),
            ("keep-alive, Upgrade", "upgrade"),
            ("mqttv3.1, mqtt", "mqtt"),
            ("mqttv3.1, mqtt", "a\r\nSec-WebSocket-Protocol: mqtt"),
            ("Origin: https://elsewhere.example", "Content-Length: 0"),
            ("Origin: https://elsewhere.example", "Cookie: gr\u{fc}\u{df}e"),
        ] {
            check(&with(from, to), Ok(()));
        }
        for (from, to, refusal) in [
            ("GET", "POST", UpgradeRefusal::Method),
            ("/mqtt", "/index.html", UpgradeRefusal::Path),
            ("HTTP/1.1", "HTTP/1.0", UpgradeRefusal::Http),
            ("HTTP/1.1", "HTTP/1.1 x", UpgradeRefusal::Http),
            ("Host: localhost:9001", "X: y", UpgradeRefusal::Http),
            ("Host:", "Host :", UpgradeRefusal::Http),
            ("Origin: ", " folded: ", UpgradeRefusal::Http),
            ("elsewhere", "else\u{1}where", UpgradeRefusal::Http),
            ("Upgrade: websocket", "X: y", UpgradeRefusal::Upgrade),
            ("keep-alive, Upgrade", "keep-alive", UpgradeRefusal::Upgrade),
            ("Version: 13", "Version: 8", UpgradeRefusal::Version),
            ("dGhlIHNhbXBsZSBub25jZQ==", "dGhlIHNhbXBsZSBub25j", UpgradeRefusal::Key),
            ("dGhlIHNhbXBsZSBub25jZQ==", "!", UpgradeRefusal::Key),
            ("Origin", "Sec-WebSocket-Key", UpgradeRefusal::Key),
            ("mqttv3.1, mqtt", "mqttv3.1", UpgradeRefusal::Subprotocol),
            ("mqttv3.1, mqtt", "MQTT", UpgradeRefusal::Subprotocol),
            ("Origin: https://elsewhere.example", "Content-Length: 5", UpgradeRefusal::Body),
            ("Origin: https://elsewhere.example", "Transfer-Encoding: chunked", UpgradeRefusal::Body),
        ] {
            check(&with(from, to), Err(refusal));
        }
        check("\r\n\r\n", Err(UpgradeRefusal::Http));
        check("\x10\x1b\0\x04MQTT", Err(UpgradeRefusal::Http));
        check(&"x".repeat(HEAD_MAX_BYTES), Err(UpgradeRefusal::TooLarge));
    }

    #[test]
    fn a_request_may_come_in_pieces() {
        for length in 0..GOOD.len() {
            assert_eq!(read(&GOOD.as_bytes()[..length]), Ok(None), "{length}");
        }
        let more = [GOOD.as_bytes(), b"\x82\x80\0\0\0\0"].concat();
        assert_eq!(read(&more).unwrap().unwrap().1, GOOD.len());
    }

    proptest! {
        #[test]
        fn no_request_panics(input: Vec<u8>, place in 0..GOOD.len(), cut in 0..GOOD.len()) {
            let _ = read(&input);
            let mixed = [&GOOD.as_bytes()[..place], &input, &GOOD.as_bytes()[cut..]].concat();
            let _ = read(&mixed);
        }
    }
}
