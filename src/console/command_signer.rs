//! Signs the console's messages: with a key of its own, or through an external signer, a process that keeps the key and is asked
//! for signatures over a Unix socket.
//!
//! # The external signer's protocol
//!
//! JSON lines over a stream socket: each line is a request or its answer, and answers come in the order of requests.
//!
//! - `{"op": "public_keys"}` is answered with `{"keys": ["BASE64", …]}`, the Ed25519 public keys (32 bytes) that it signs with. A
//!   second key takes part in the next rotation.
//! - `{"op": "sign", "key": "KEY_ID", "data": "BASE64"}` is answered with `{"signature": "BASE64"}`, the Ed25519 signature (64
//!   bytes) over the data. The id of a key is the first 16 hexadecimal digits of the SHA-256 of its 32 bytes.
//! - Whatever it refuses is answered with `{"error": "TEXT"}`.
//!
//! **Invariant: every signature of an external signer is verified before it is used**, so a faulty one cannot have the console send
//! what hosts reject.

use std::{
    io::{self, BufRead, BufReader, Write},
    os::unix::net::UnixStream as BlockingStream,
    path::{Path, PathBuf},
    sync::{Arc, Mutex as BlockingMutex, PoisonError},
    time::{Duration, Instant},
};

use base64::{Engine, engine::general_purpose::STANDARD as BASE64};
use muster_topics::{
    envelope::{Body, EnvelopeError, PublicKey, Signer, UnsignedMessage},
    slot::Slot,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufStream},
    net::UnixStream,
    sync::Mutex,
};

/// How long a connection or an answer may take: an HSM behind the signer takes some ten milliseconds.
const ANSWER: Duration = Duration::from_secs(5);
/// After a failure, requests fail at once for this long: acknowledgements for ten thousand hosts must not wait for one timeout each.
const PAUSE: Duration = Duration::from_secs(1);
/// The longest answer: some keys, or one signature.
const ANSWER_MAX_BYTES: u64 = 16 * 1024;

/// Where an external signer listens: `unix:` and the path of its socket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
#[schemars(with = "String")]
pub struct SignerAddress(PathBuf);

impl SignerAddress {
    /// The path of its socket.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl std::fmt::Display for SignerAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "unix:{}", self.0.display())
    }
}

impl From<SignerAddress> for String {
    fn from(address: SignerAddress) -> Self {
        address.to_string()
    }
}

impl TryFrom<String> for SignerAddress {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        match text.strip_prefix("unix:").map(PathBuf::from) {
            Some(path) if path.is_absolute() => Ok(Self(path)),
            _ => Err(format!("{text:?} is not a signer's address: use \"unix:\" and the absolute path of its socket")),
        }
    }
}

/// Why a message could not be signed.
#[derive(Debug, thiserror::Error, miette::Diagnostic)]
pub enum SignError {
    /// It is no message that can be signed.
    #[error(transparent)]
    Message(#[from] EnvelopeError),
    /// The external signer does not answer, or not with what it should.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Signer(#[from] SignerError),
}

/// Why an external signer cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, miette::Diagnostic)]
#[error("the signer at {address} does not sign: {reason}")]
#[diagnostic(help(
    "check that it is running and that the console's user may open its socket; `signer` below [authority] in the \
     console's configuration sets its address"
))]
pub struct SignerError {
    /// Its address.
    pub address: String,
    /// The reason.
    pub reason: String,
}

/// What signs the console's messages.
#[derive(Debug)]
pub enum CommandSigner {
    /// A key of the console.
    Own(Signer),
    /// A key of an external signer.
    External(PublicKey, Arc<ExternalSigner>),
    /// A key that is not here: nothing can be signed.
    Absent(String),
}

impl CommandSigner {
    /// Serialises and signs a body for hosts of this slot; returns the bytes to publish.
    ///
    /// # Errors
    /// If it is too long, or the external signer does not sign it.
    pub async fn sign<B: Body + Sync>(&self, slot: Slot, body: &B) -> Result<Vec<u8>, SignError> {
        self.sign_message(UnsignedMessage::of(slot, body)?).await
    }

    /// Signs a message.
    ///
    /// # Errors
    /// As [`Self::sign`].
    pub async fn sign_message(&self, message: UnsignedMessage) -> Result<Vec<u8>, SignError> {
        match self {
            Self::Own(signer) => Ok(signer.sign_message(message)?),
            Self::External(key, signer) => {
                let signature = signer.sign(key, &message.signed_bytes()).await?;
                Ok(message.with_signature(key.id(), &signature)?)
            }
            Self::Absent(reason) => Err(absent(reason).into()),
        }
    }
}

fn absent(reason: &str) -> SignerError {
    SignerError { address: "none".to_owned(), reason: reason.to_owned() }
}

#[derive(Serialize)]
#[serde(tag = "op", rename_all = "snake_case")]
enum SignerRequest<'a> {
    PublicKeys,
    Sign { key: &'a str, data: String },
}

#[derive(Deserialize)]
#[serde(untagged)]
enum SignerAnswer {
    Error { error: String },
    Keys { keys: Vec<PublicKey> },
    Signature { signature: String },
}

impl SignerAnswer {
    fn parse(line: &str) -> Result<Self, String> {
        match serde_json::from_str(line) {
            Ok(Self::Error { error }) => Err(format!("it refuses: {}", error.chars().take(200).collect::<String>())),
            Ok(answer) => Ok(answer),
            Err(_) if line.is_empty() => Err("it closed the connection".to_owned()),
            Err(_) => Err("its answer is not valid".to_owned()),
        }
    }
}

fn line(request: &SignerRequest<'_>) -> Vec<u8> {
    // It consists of strings, so this cannot fail.
    let mut line = serde_json::to_vec(request).unwrap_or_default();
    line.push(b'\n');
    line
}

/// The connection to an external signer.
#[derive(Debug)]
pub struct ExternalSigner {
    address: SignerAddress,
    /// Held for one request and its answer.
    connection: Mutex<Option<BufStream<UnixStream>>>,
    /// The last failure.
    failure: BlockingMutex<Option<(Instant, String)>>,
}

impl ExternalSigner {
    /// Creates it without a connection.
    #[must_use]
    pub fn new(address: SignerAddress) -> Self {
        Self { address, connection: Mutex::default(), failure: BlockingMutex::default() }
    }

    /// Its address.
    #[must_use]
    pub fn address(&self) -> &SignerAddress {
        &self.address
    }

    /// Whether the last request to it failed.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// Asks for its keys, before the console runs.
    ///
    /// # Errors
    /// If it does not answer in time, or has none.
    pub fn keys_at_start(&self) -> Result<Vec<PublicKey>, SignerError> {
        let ask = || -> io::Result<String> {
            let mut stream = BlockingStream::connect(self.address.path())?;
            stream.set_read_timeout(Some(ANSWER))?;
            stream.set_write_timeout(Some(ANSWER))?;
            stream.write_all(&line(&SignerRequest::PublicKeys))?;
            let mut answer = String::new();
            BufReader::new(io::Read::take(stream, ANSWER_MAX_BYTES)).read_line(&mut answer)?;
            Ok(answer)
        };
        let answer = ask().map_err(|error| self.error(error.to_string()))?;
        self.keys_of(SignerAnswer::parse(&answer).map_err(|reason| self.error(reason))?)
    }

    /// Asks for its keys.
    ///
    /// # Errors
    /// If it does not answer in time, or has none.
    pub async fn keys(&self) -> Result<Vec<PublicKey>, SignerError> {
        let answer = self.ask(&SignerRequest::PublicKeys).await?;
        self.keys_of(answer)
    }

    fn keys_of(&self, answer: SignerAnswer) -> Result<Vec<PublicKey>, SignerError> {
        match answer {
            SignerAnswer::Keys { keys } if !keys.is_empty() => Ok(keys),
            _ => Err(self.error("it has no keys".to_owned())),
        }
    }

    /// Has it sign bytes.
    ///
    /// # Errors
    /// If it does not answer in time, or its signature is not the key's.
    async fn sign(&self, key: &PublicKey, bytes: &[u8]) -> Result<Vec<u8>, SignerError> {
        let request = SignerRequest::Sign { key: key.id(), data: BASE64.encode(bytes) };
        let SignerAnswer::Signature { signature } = self.ask(&request).await? else {
            return Err(self.error("its answer is not a signature".to_owned()));
        };
        let signature = BASE64.decode(signature).unwrap_or_default();
        if !key.verifies(bytes, &signature) {
            return Err(self.error(format!("its signature does not match key {}", key.id())));
        }
        Ok(signature)
    }

    fn error(&self, reason: String) -> SignerError {
        SignerError { address: self.address.to_string(), reason }
    }

    /// Sends a request and waits for the answer. A connection that has ended since the last request is made anew once.
    async fn ask(&self, request: &SignerRequest<'_>) -> Result<SignerAnswer, SignerError> {
        let mut connection = self.connection.lock().await;
        let failed = self.failure.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some((_, reason)) = failed.filter(|(at, _)| at.elapsed() < PAUSE) {
            return Err(self.error(reason));
        }
        let was_open = connection.is_some();
        let mut answer = self.exchange(&mut connection, request).await;
        if answer.is_err() && was_open {
            answer = self.exchange(&mut connection, request).await;
        }
        let reason = match answer {
            Ok(line) => match SignerAnswer::parse(&line) {
                Ok(answer) => {
                    *self.failure.lock().unwrap_or_else(PoisonError::into_inner) = None;
                    return Ok(answer);
                }
                Err(reason) => reason,
            },
            Err(error) => error.to_string(),
        };
        *connection = None;
        *self.failure.lock().unwrap_or_else(PoisonError::into_inner) = Some((Instant::now(), reason.clone()));
        Err(self.error(reason))
    }

    /// Performs one exchange; the connection is kept only if that succeeds, so no answer is ever taken for that of
    /// another request, also if the caller is dropped meanwhile.
    async fn exchange(
        &self,
        connection: &mut Option<BufStream<UnixStream>>,
        request: &SignerRequest<'_>,
    ) -> io::Result<String> {
        let present = connection.take();
        let exchanged = async {
            let mut stream = match present {
                Some(stream) => stream,
                None => BufStream::new(UnixStream::connect(self.address.path()).await?),
            };
            stream.write_all(&line(request)).await?;
            stream.flush().await?;
            let mut answer = String::new();
            (&mut stream).take(ANSWER_MAX_BYTES).read_line(&mut answer).await?;
            if !answer.ends_with('\n') {
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "it closed the connection"));
            }
            Ok((stream, answer))
        };
        let timeout = || io::Error::new(io::ErrorKind::TimedOut, format!("no answer within {} s", ANSWER.as_secs()));
        let (stream, answer) = tokio::time::timeout(ANSWER, exchanged).await.map_err(|_| timeout())??;
        *connection = Some(stream);
        Ok(answer)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use muster_topics::{V1, command::Refresh, diagnostic::Diagnostic, envelope::open};
    use tokio::{io::BufReader, net::UnixListener};

    use super::*;

    fn signer() -> Signer {
        Signer::from_pkcs8(&Signer::generate().unwrap()).unwrap()
    }

    fn body() -> Refresh {
        Refresh { v: V1, issued_ms: 7, within_ms: 1000 }
    }

    /// Serves each connection with answers of a function, until that returns none.
    fn serve(path: &Path, answer: impl Fn(serde_json::Value) -> Option<String> + Clone + Send + 'static) {
        let listener = UnixListener::bind(path).unwrap();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let answer = answer.clone();
                tokio::spawn(async move {
                    let mut stream = BufReader::new(stream);
                    let mut line = String::new();
                    while stream.read_line(&mut line).await.unwrap() > 0 {
                        let Some(answer) = answer(serde_json::from_str(&line).unwrap()) else { return };
                        stream.write_all(format!("{answer}\n").as_bytes()).await.unwrap();
                        line.clear();
                    }
                });
            }
        });
    }

    fn external(path: &Path, key: &PublicKey) -> CommandSigner {
        let address = SignerAddress::try_from(format!("unix:{}", path.display())).unwrap();
        CommandSigner::External(key.clone(), Arc::new(ExternalSigner::new(address)))
    }

    fn sign_with(signer: &Signer, request: &serde_json::Value) -> String {
        let data = BASE64.decode(request["data"].as_str().unwrap()).unwrap();
        serde_json::json!({ "signature": BASE64.encode(signer.sign_bytes(&data)) }).to_string()
    }

    #[test]
    fn address_is_a_unix_socket() {
        for bad in ["", "/run/x", "unix:", "unix:relative", "tcp:127.0.0.1:1"] {
            assert!(SignerAddress::try_from(bad.to_owned()).is_err(), "{bad}");
        }
        assert_eq!(SignerAddress::try_from("unix:/run/x".to_owned()).unwrap().to_string(), "unix:/run/x");
    }

    #[tokio::test]
    async fn message_signed_elsewhere_opens() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("signer");
        let own = Arc::new(signer());
        let key = own.public_key().unwrap();
        let wanted = key.id().to_owned();
        let connections = Arc::<AtomicUsize>::default();
        let asked = Arc::clone(&connections);
        serve(&path, move |request| {
            assert_eq!(request["key"], wanted);
            // Every third request finds that the connection has ended.
            (asked.fetch_add(1, Ordering::Relaxed) % 3 != 2).then(|| sign_with(&own, &request))
        });
        let signer = external(&path, &key);
        for _ in 0..7 {
            let bytes = signer.sign(Slot(0), &body()).await.unwrap();
            assert_eq!(open(&bytes, std::slice::from_ref(&key)).unwrap().body::<Refresh>().unwrap(), body());
        }
        assert!(connections.load(Ordering::Relaxed) > 7);
    }

    #[tokio::test]
    async fn bad_answers_are_errors_that_say_why() {
        let (own, other) = (signer(), signer());
        let key = own.public_key().unwrap();
        let of_another = sign_with(&other, &serde_json::json!({ "data": BASE64.encode("x") }));
        for (answer, why) in [
            (Some(r#"{"error": "no such key"}"#.to_owned()), "it refuses: no such key"),
            (Some("nonsense".to_owned()), "not valid"),
            (Some(r#"{"keys": []}"#.to_owned()), "not a signature"),
            (Some(r#"{"signature": "!"}"#.to_owned()), "does not match key"),
            (Some(of_another), "does not match key"),
            (Some("x".repeat(70_000)), "closed"),
            (None, "closed"),
        ] {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("signer");
            serve(&path, move |_| answer.clone());
            let told = Diagnostic::of(&external(&path, &key).sign(Slot(0), &body()).await.unwrap_err());
            assert!(told.cause.contains(why) && told.hint.is_some(), "{told}");
        }
    }

    #[tokio::test]
    async fn signer_that_is_away_is_asked_again_after_a_moment() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("signer");
        let own = Arc::new(signer());
        let key = own.public_key().unwrap();
        let signer = external(&path, &key);
        let told = Diagnostic::of(&signer.sign(Slot(0), &body()).await.unwrap_err());
        assert!(told.cause.contains(path.to_str().unwrap()) && told.hint.is_some(), "{told}");
        serve(&path, move |request| Some(sign_with(&own, &request)));
        assert!(signer.sign(Slot(0), &body()).await.is_err(), "not so soon");
        tokio::time::sleep(PAUSE).await;
        assert!(signer.sign(Slot(0), &body()).await.is_ok());
    }

    #[tokio::test]
    async fn keys_are_asked_for_before_and_while_the_console_runs() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("signer");
        let keys = [signer().public_key().unwrap(), signer().public_key().unwrap()];
        let answer = serde_json::json!({ "keys": keys }).to_string();
        serve(&path, move |request| (request["op"] == "public_keys").then(|| answer.clone()));
        let address = SignerAddress::try_from(format!("unix:{}", path.display())).unwrap();
        let signer = Arc::new(ExternalSigner::new(address));
        assert_eq!(signer.keys().await.unwrap(), keys);
        let blocking = Arc::clone(&signer);
        assert_eq!(tokio::task::spawn_blocking(move || blocking.keys_at_start()).await.unwrap().unwrap(), keys);
    }
}
