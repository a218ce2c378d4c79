//! Line protocol over the console's own HTTP client: InfluxDB 1 (`POST /write`), and every server behind TLS.

use bytes::Bytes;
use futures_util::future::BoxFuture;
use muster_base::failure::with_causes;
use muster_net::{http, pki};
use reqwest::{Client, RequestBuilder, Response, Url, header::HeaderValue};

use super::super::error::ExternalError;
use super::super::remote_error::{ANSWER, Remote, SendError, TEXT_MAX_CHARS, proxy, secret};
use crate::config::{MetricStoreConfig, MetricStoreKind};

/// A server, and the path on it.
#[derive(Debug)]
pub(super) struct RemoteServer {
    client: Client,
    write: Url,
    probe: Url,
    access: RemoteAccess,
}

/// The credentials.
enum RemoteAccess {
    Anybody,
    Token(HeaderValue),
    User { name: String, password: String },
}

impl std::fmt::Debug for RemoteAccess {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Anybody => "Anybody",
            Self::Token(_) => "Token(***)",
            Self::User { .. } => "User(***)",
        })
    }
}

pub(super) fn open(config: &MetricStoreConfig, url: &Url) -> Result<RemoteServer, ExternalError> {
    let client = http::client(tls(config, url)?, url, proxy(config)?.as_ref())
        .and_then(|client| client.timeout(ANSWER).build())
        .map_err(|error| ExternalError::new(config, "url", with_causes(&error), "http://HOST:PORT"))?;
    let below = |path: &str| {
        let mut whole = url.clone();
        whole.set_path(&format!("{}/{path}", url.path().trim_end_matches('/')));
        whole
    };
    let (mut write, probe) = match config.kind {
        MetricStoreKind::Influxdb1 => (below("write"), below("ping")),
        MetricStoreKind::Influxdb2 | MetricStoreKind::Victoriametrics => (below("api/v2/write"), below("ready")),
    };
    let bucket = config.bucket.as_deref();
    let query = match config.kind {
        MetricStoreKind::Influxdb1 => {
            // Its own name for a retention policy of a database in the API of version 2.
            let parts = bucket.map(|bucket| bucket.split_once('/').map_or((bucket, None), |(db, rp)| (db, Some(rp))));
            [("db", parts.map(|(database, _)| database)), ("rp", parts.and_then(|(_, policy)| policy))]
        }
        MetricStoreKind::Influxdb2 | MetricStoreKind::Victoriametrics => {
            [("org", config.org.as_deref()), ("bucket", bucket)]
        }
    };
    for (name, value) in query {
        if let Some(value) = value {
            write.query_pairs_mut().append_pair(name, value);
        }
    }
    write.query_pairs_mut().append_pair("precision", "ms");
    Ok(RemoteServer { client, write, probe, access: access(config)? })
}

fn access(config: &MetricStoreConfig) -> Result<RemoteAccess, ExternalError> {
    let secret = secret(config, "secret_file", config.secret_file.as_deref())?;
    if let (Some(name), Some(password)) = (&config.user, &secret) {
        return Ok(RemoteAccess::User { name: name.clone(), password: password.clone() });
    }
    if let Some(token) = secret {
        let mut value = HeaderValue::try_from(format!("Token {token}")).map_err(|_| {
            let reason = "its token has invalid characters".to_owned();
            ExternalError::new(config, "secret_file", reason, "one line: the token, and nothing else")
        })?;
        value.set_sensitive(true);
        return Ok(RemoteAccess::Token(value));
    }
    Ok(RemoteAccess::Anybody)
}

/// The TLS configuration of a server. The system's certificate authorities are trusted only if configured.
fn tls(config: &MetricStoreConfig, url: &Url) -> Result<rustls::ClientConfig, ExternalError> {
    const HINT: &str = "set it to a PEM file with the authorities of its certificate; Debian's \
                        public ones are in /etc/ssl/certs/ca-certificates.crt";
    let failed = |reason: String| ExternalError::new(config, "authority_file", reason, HINT);
    let roots = match &config.authority_file {
        Some(path) => {
            let told = |error: &dyn std::fmt::Display| failed(format!("{}: {error}", path.display()));
            let pem = muster_base::files::read_text(path).map_err(|error| told(&error))?;
            pki::roots(&pem).map_err(|error| told(&with_causes(&error)))?
        }
        None if url.scheme() == "https" => return Err(failed("it is missing, and https:// needs it".to_owned())),
        None => rustls::RootCertStore::empty(),
    };
    Ok(rustls::ClientConfig::builder_with_provider(pki::provider())
        .with_safe_default_protocol_versions()
        .map_err(|error| failed(error.to_string()))?
        .with_root_certificates(roots)
        .with_no_client_auth())
}

impl RemoteServer {
    async fn send(&self, request: RequestBuilder) -> Result<(), SendError> {
        let request = match &self.access {
            RemoteAccess::Anybody => request,
            RemoteAccess::Token(value) => request.header(reqwest::header::AUTHORIZATION, value),
            RemoteAccess::User { name, password } => request.basic_auth(name, Some(password)),
        };
        let answer = request.send().await.map_err(|error| unreachable(&error))?;
        if answer.status().is_success() {
            return Ok(());
        }
        let status = answer.status().as_u16();
        Err(SendError::answer(status, &said(answer).await))
    }
}

/// Returns the server's message of a refusal, shortened.
async fn said(mut answer: Response) -> String {
    let mut bytes = Vec::new();
    while bytes.len() < 4 * TEXT_MAX_CHARS
        && let Ok(Some(chunk)) = answer.chunk().await
    {
        bytes.extend_from_slice(&chunk);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn unreachable(error: &reqwest::Error) -> SendError {
    SendError::Unreachable(http::cause(error))
}

impl Remote for RemoteServer {
    fn probe(&self) -> BoxFuture<'_, Result<(), SendError>> {
        Box::pin(self.send(self.client.get(self.probe.clone())))
    }

    fn write(&self, lines: Bytes) -> BoxFuture<'_, Result<(), SendError>> {
        let request = self.client.post(self.write.clone()).header("content-type", "text/plain; charset=utf-8");
        Box::pin(self.send(request.body(lines)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn urls(text: &str) -> (String, String) {
        let config: MetricStoreConfig = toml::from_str(text).unwrap();
        let http = open(&config, &config.url.parse().unwrap()).unwrap();
        (http.write.to_string(), http.probe.to_string())
    }

    #[test]
    fn write_urls_are_built() {
        let text = "name = \"a\"\nkind = \"influxdb1\"\nurl = \"http://h:1/below/\"\nbucket = \"my db/week\"";
        let (write, probe) = urls(text);
        assert_eq!(write, "http://h:1/below/write?db=my+db&rp=week&precision=ms");
        assert_eq!(probe, "http://h:1/below/ping");
        let dir = tempfile::tempdir().unwrap();
        let authority = dir.path().join("authority.pem");
        let pem = rcgen::generate_simple_self_signed(["h".to_owned()]).unwrap().cert.pem();
        std::fs::write(&authority, pem).unwrap();
        let text = format!(
            "name = \"a\"\nkind = \"influxdb2\"\nurl = \"https://h\"\norg = \"o&p\"\nbucket = \"b\"\nauthority_file = {authority:?}"
        );
        let (write, probe) = urls(&text);
        assert_eq!(write, "https://h/api/v2/write?org=o%26p&bucket=b&precision=ms");
        assert_eq!(probe, "https://h/ready");
    }
}
