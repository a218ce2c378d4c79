//! Opens the client for an external store, and checks its configuration.
//!
//! - [`influxdb2`](self::influxdb2): InfluxDB 2 and 3 and VictoriaMetrics, by `POST /api/v2/write`, through the crate of that name
//! - [`http`](self::http): the same over TLS, and InfluxDB 1's `POST /write`, through the console's own HTTP client
//!
//! The crate's TLS is that of reqwest 0.11, which is no longer maintained, so it is disabled, and TLS uses the other client.

mod http;
mod influxdb2;

use muster_net::http::url_fault;
use muster_topics::address::has_user_information;
use reqwest::Url;

use super::error::ExternalError;
use crate::config::{MetricStoreConfig, MetricStoreKind};

pub(super) use super::remote_error::Remote;

/// Creates the client of a store.
pub(super) fn open(config: &MetricStoreConfig) -> Result<Box<dyn Remote>, ExternalError> {
    let failed = |key, reason: String, hint| ExternalError::new(config, key, reason, hint);
    let url: Url = config.url.parse().map_err(|error| {
        failed("url", format!("{:?} is not a URL: {}", config.url, url_fault(&error)), "http://HOST:PORT or https://…")
    })?;
    if !matches!(url.scheme(), "http" | "https") || !url.has_host() {
        return Err(failed("url", "it must begin with http:// or https://".to_owned(), "http://HOST:PORT"));
    }
    if has_user_information(&config.url) {
        let reason = "it has a password, which every listing would show".to_owned();
        return Err(failed("url", reason, "secret_file, with `user` for a password"));
    }
    if url.query().is_some() || url.fragment().is_some() {
        let reason = "it has more than a path".to_owned();
        return Err(failed("url", reason, "use only the part before the path of the API: http://HOST:PORT"));
    }
    check_keys(config)?;
    match config.kind {
        MetricStoreKind::Influxdb2 | MetricStoreKind::Victoriametrics if url.scheme() == "http" => {
            Ok(Box::new(influxdb2::open(config, &url)?))
        }
        _ => Ok(Box::new(http::open(config, &url)?)),
    }
}

/// Checks which keys a kind requires, and which it does not have.
fn check_keys(config: &MetricStoreConfig) -> Result<(), ExternalError> {
    use MetricStoreKind::{Influxdb1, Influxdb2};
    let has = |key: &Option<String>| key.as_deref().is_some_and(|text| !text.trim().is_empty());
    let kind = config.kind.as_str();
    let missing = match config.kind {
        Influxdb2 | Influxdb1 if !has(&config.bucket) => Some("bucket"),
        _ => None,
    };
    if let Some(key) = missing {
        let reason = format!("a store of kind {kind} needs it");
        return Err(ExternalError::new(
            config,
            key,
            reason,
            "the bucket that measurements go to; of influxdb1 the database, or DATABASE/POLICY",
        ));
    }
    let given = [
        ("org", config.org.is_some(), &[Influxdb2][..]),
        ("bucket", config.bucket.is_some(), &[Influxdb2, Influxdb1]),
        ("user", config.user.is_some(), &[Influxdb1]),
    ];
    for (key, is_given, kinds) in given {
        if is_given && !kinds.contains(&config.kind) {
            let kinds: Vec<&str> = kinds.iter().map(|kind| kind.as_str()).collect();
            let reason = format!("a store of kind {kind} does not use it");
            return Err(ExternalError::new(
                config,
                key,
                reason,
                &format!("leave it out; it is for {}", kinds.join(", ")),
            ));
        }
    }
    if config.user.is_some() && config.secret_file.is_none() {
        return Err(ExternalError::new(
            config,
            "secret_file",
            "it is missing".to_owned(),
            "a file with the password of user",
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::remote_error::{SendError, SendFate, TEXT_MAX_CHARS};
    use bytes::Bytes;
    use muster_topics::diagnostic::Diagnostic;
    use std::path::Path;

    use std::fs;

    use super::*;

    #[test]
    fn answers_map_to_fates() {
        let fate = |status| SendError::answer(status, "").fate();
        for status in [408, 429, 500, 502, 503, 504, 599, 301, 302, 307, 100] {
            assert_eq!(fate(status), SendFate::Again, "{status}");
        }
        for status in [400, 401, 403, 404, 405, 413, 422, 499] {
            assert_eq!(fate(status), SendFate::Aside, "{status}");
        }
        assert_eq!(SendError::Unreachable("timeout".to_owned()).fate(), SendFate::Again);
    }

    #[test]
    fn long_answer_is_truncated() {
        let SendError::Answer { text, .. } = SendError::answer(400, &"é".repeat(5_000)) else { panic!() };
        assert_eq!(text.chars().count(), TEXT_MAX_CHARS);
    }

    /// A server that answers one request, and returns it.
    async fn answer(status: &'static str) -> (String, tokio::task::JoinHandle<String>) {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let served = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let (mut asked, mut buffer) = (Vec::new(), [0; 4_096]);
            while !asked.ends_with(b"LAST 1\n") {
                let read = stream.read(&mut buffer).await.unwrap();
                asked.extend_from_slice(&buffer[..read]);
                if read == 0 || asked.starts_with(b"GET ") && asked.ends_with(b"\r\n\r\n") {
                    break;
                }
            }
            let more = "location: http://127.0.0.1:1/\r\ncontent-length: 7\r\nconnection: close";
            stream.write_all(format!("HTTP/1.1 {status}\r\n{more}\r\n\r\nbecause").as_bytes()).await.unwrap();
            String::from_utf8(asked).unwrap().to_lowercase()
        });
        (url, served)
    }

    #[tokio::test]
    async fn each_kind_uses_its_servers_api() {
        let dir = tempfile::tempdir().unwrap();
        let secret = dir.path().join("secret");
        fs::write(&secret, "s3cret\n").unwrap();
        let lines = Bytes::from_static(b"m f=1 1800000000000\nLAST 1\n");
        for (kind, more, path, access) in [
            (
                "influxdb2",
                format!("org = \"o p\"\nbucket = \"b&c\"\nsecret_file = {secret:?}"),
                "post /api/v2/write?bucket=b%26c&org=o+p&precision=ms http/1.1",
                Some("authorization: token s3cret"),
            ),
            ("victoriametrics", String::new(), "post /api/v2/write?", None),
            (
                "influxdb1",
                format!("bucket = \"d\"\nuser = \"me\"\nsecret_file = {secret:?}"),
                "post /write?db=d&precision=ms http/1.1",
                // me:s3cret
                Some("authorization: basic bwu6cznjcmv0"),
            ),
        ] {
            for (status, wanted) in
                [("204 Fine", None), ("302 Elsewhere", Some(302)), ("400 No", Some(400)), ("503 Later", Some(503))]
            {
                let (url, served) = answer(status).await;
                let remote = open(&config(kind, &format!("url = {url:?}\n{more}"))).unwrap();
                let wanted = wanted.map_or(Ok(()), |status| Err(SendError::answer(status, "because")));
                assert_eq!(remote.write(lines.clone()).await, wanted, "{kind} {status}");
                let asked = served.await.unwrap();
                assert!(asked.starts_with(path) && asked.contains("precision=ms"), "{asked}");
                assert!(asked.ends_with("\r\n\r\nm f=1 1800000000000\nlast 1\n"), "{asked}");
                let found = asked.lines().find(|line| line.starts_with("authorization: "));
                assert_eq!(found, access.map(str::to_lowercase).as_deref(), "{kind}");
            }
            let (url, served) = answer("200 Fine").await;
            let remote = open(&config(kind, &format!("url = {url:?}\n{more}"))).unwrap();
            assert_eq!(remote.probe().await, Ok(()));
            let asked = served.await.unwrap();
            assert!(asked.starts_with(if kind == "influxdb1" { "get /ping " } else { "get /ready " }), "{asked}");
            // The server has ended.
            let gone = remote.probe().await.unwrap_err();
            assert!(matches!(&gone, SendError::Unreachable(why) if !why.contains("s3cret")), "{gone}");
        }
    }

    #[tokio::test]
    async fn tls_trusts_only_the_configured_authority() {
        let fixture = crate::testing::Fixture::new().await;
        let authority = fixture.dir.path().join("authority.pem");
        fs::write(&authority, fixture.shared().authority.certificate_pem()).unwrap();
        let stranger = fixture.dir.path().join("stranger.pem");
        fs::write(&stranger, rcgen::generate_simple_self_signed(["h".to_owned()]).unwrap().cert.pem()).unwrap();
        for kind in ["influxdb2", "victoriametrics", "influxdb1"] {
            let more = match kind {
                "influxdb2" | "influxdb1" => "bucket = \"b\"",
                _ => "",
            };
            let open = |authority: &Path| {
                let url = &fixture.shared().settings.urls.hosts;
                open(&config(kind, &format!("url = {url:?}\nauthority_file = {authority:?}\n{more}"))).unwrap()
            };
            // A TLS server without measurements: where hosts join.
            let answered = open(&authority).write(Bytes::from_static(b"m f=1 1\n")).await;
            assert!(matches!(answered, Err(SendError::Answer { status: 404, .. })), "{answered:?}");
            let distrusted = open(&stranger).write(Bytes::from_static(b"m f=1 1\n")).await;
            assert!(matches!(distrusted, Err(SendError::Unreachable(_))), "{distrusted:?}");
        }
        fixture.running.stop().await;
    }

    fn config(kind: &str, more: &str) -> MetricStoreConfig {
        toml::from_str(&format!("name = \"far\"\nkind = \"{kind}\"\n{more}")).unwrap()
    }

    #[test]
    fn invalid_store_is_refused_with_hint() {
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            let path = dir.path().join(name);
            fs::write(&path, text).unwrap();
            path.display().to_string()
        };
        let (empty, two) = (file("empty", "\n"), file("two", "a\nb\n"));
        let with_url = |more: &str| format!("url = \"http://127.0.0.1:1\"\n{more}");
        for (kind, more, words) in [
            ("victoriametrics", "url = \"there\"".to_owned(), &["metric_stores", "far", "url"][..]),
            ("victoriametrics", "url = \"ftp://there\"".to_owned(), &["far", "url", "http://"]),
            ("victoriametrics", "url = \"http://me:pw@there\"".to_owned(), &["far", "url", "password", "secret_file"]),
            ("victoriametrics", "url = \"http://there/?x=1\"".to_owned(), &["far", "url", "path"]),
            ("victoriametrics", "url = \"http://there/below\"".to_owned(), &["far", "url", "path", "https://"]),
            ("influxdb2", with_url(""), &["far", "bucket", "influxdb2"]),
            ("influxdb1", with_url(""), &["far", "bucket", "influxdb1", "DATABASE"]),
            ("influxdb1", with_url("bucket = \" \""), &["far", "bucket", "influxdb1"]),
            ("victoriametrics", with_url("bucket = \"b\""), &["far", "bucket", "leave it out", "influxdb2"]),
            ("influxdb1", with_url("bucket = \"d\"\norg = \"o\""), &["far", "org", "leave it out", "influxdb2"]),
            ("influxdb1", with_url("bucket = \"d\"\nuser = \"u\""), &["far", "secret_file", "missing", "user"]),
            ("victoriametrics", with_url("secret_file = \"/no/such\""), &["far", "secret_file", "/no/such"]),
            (
                "victoriametrics",
                with_url(&format!("secret_file = {empty:?}")),
                &["secret_file", "empty", "secret", "one line"],
            ),
            (
                "victoriametrics",
                with_url(&format!("secret_file = {two:?}")),
                &["secret_file", "two", "secret", "one line"],
            ),
            ("victoriametrics", "url = \"https://there\"".to_owned(), &["far", "authority_file", "PEM"]),
            (
                "victoriametrics",
                format!("url = \"https://there\"\nauthority_file = {empty:?}"),
                &["far", "authority_file", "empty"],
            ),
        ] {
            let told = Diagnostic::of(&open(&config(kind, &more)).unwrap_err());
            let error = told.to_string();
            for word in words {
                assert!(error.contains(word), "{more}: {word} is not in: {error}");
            }
            assert!(told.hint.is_some_and(|hint| !hint.is_empty()), "{more}: {error}");
        }
        let token = file("token", "very-secret\n");
        let good = config("influxdb2", &with_url(&format!("org = \"o\"\nbucket = \"b\"\nsecret_file = {token:?}")));
        let remote = open(&good).unwrap();
        assert!(!format!("{remote:?}").contains("very-secret"), "{remote:?}");
    }
}
