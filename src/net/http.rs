//! HTTP clients of every role: the command line, agents, outlets, external time-series stores. Each of them carries secrets, so proxies
//! and redirects are decided here alone.
//!
//! **Invariant: no client is built elsewhere** (a tidy test checks that), because the library's defaults let the environment decide:
//! `http_proxy` of whoever starts muster would receive an operator's token.
//!
//! **Invariant: a redirect is never followed**, so no secret for one server reaches another.

use reqwest::{ClientBuilder, Url, redirect::Policy};

/// An HTTP proxy that is configured for muster.
#[derive(Clone, PartialEq, Eq)]
pub struct Proxy(Url);

impl std::fmt::Debug for Proxy {
    /// Does not print user and password.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Proxy({}:{})", self.0.host_str().unwrap_or_default(), self.0.port_or_known_default().unwrap_or(0))
    }
}

/// A proxy's address cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, miette::Diagnostic)]
#[error("the proxy's address {0}")]
#[diagnostic(help("use http://HOST:PORT, or http://USER:PASSWORD@HOST:PORT for a proxy with authentication"))]
pub struct ProxyError(String);

impl std::str::FromStr for Proxy {
    type Err = ProxyError;

    fn from_str(text: &str) -> Result<Self, ProxyError> {
        // The text is not part of the message, because it may contain a password.
        let url: Url =
            text.trim().parse().map_err(|error| ProxyError(format!("is not a URL: {}", url_fault(&error))))?;
        match (url.scheme(), url.path()) {
            ("http", "" | "/") if url.has_host() && url.query().is_none() && url.fragment().is_none() => Ok(Self(url)),
            ("http", _) => Err(ProxyError("has more than a port".to_owned())),
            (other, _) => Err(ProxyError(format!("begins with {other}:, and only http: is supported"))),
        }
    }
}

impl Proxy {
    /// The proxy of a setting, if it is set.
    ///
    /// # Errors
    /// If the address is invalid.
    pub fn of(setting: Option<&str>) -> Result<Option<Self>, ProxyError> {
        setting.map(str::trim).filter(|text| !text.is_empty()).map(str::parse).transpose()
    }

    /// Its URL, with user and password.
    #[must_use]
    pub fn url(&self) -> &str {
        self.0.as_str()
    }
}

/// The proxy for requests to `target`; `None` for this machine, which is never reached through a proxy.
#[must_use]
pub fn proxy_to<'a>(target: &Url, proxy: Option<&'a Proxy>) -> Option<&'a Proxy> {
    proxy.filter(|_| !is_local(target))
}

/// Whether a URL refers to this machine.
fn is_local(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default();
    let address = host.trim_start_matches('[').trim_end_matches(']').parse::<std::net::IpAddr>();
    match address.map(|address| address.to_canonical()) {
        Ok(address) => address.is_loopback() || address.is_unspecified(),
        Err(_) => {
            let name = host.trim_end_matches('.').to_ascii_lowercase();
            name == "localhost" || name.ends_with(".localhost")
        }
    }
}

/// A builder of a client for requests to one server.
///
/// # Errors
/// If the library refuses the proxy.
pub fn client(tls: rustls::ClientConfig, target: &Url, proxy: Option<&Proxy>) -> reqwest::Result<ClientBuilder> {
    let proxy = proxy_to(target, proxy).map(|proxy| reqwest::Proxy::all(proxy.0.clone())).transpose()?;
    let client = direct(tls);
    Ok(match proxy {
        Some(proxy) => client.proxy(proxy),
        None => client,
    })
}

/// A builder of a client that never uses a proxy.
pub fn direct(tls: rustls::ClientConfig) -> ClientBuilder {
    reqwest::Client::builder().tls_backend_preconfigured(tls).no_proxy().redirect(Policy::none())
}

/// Why a URL cannot be parsed.
pub type UrlError = <Url as std::str::FromStr>::Err;

/// What is wrong with a URL, for people.
#[must_use]
pub fn url_fault(error: &UrlError) -> String {
    match error {
        UrlError::RelativeUrlWithoutBase => "it does not begin with a scheme such as https://".to_owned(),
        UrlError::EmptyHost => "it has no host".to_owned(),
        UrlError::InvalidPort => "its port is not a number up to 65535".to_owned(),
        other => other.to_string(),
    }
}

/// What the library says of a step, whose cause says what went wrong.
const STEPS: [&str; 8] = [
    "error sending request",
    "client error (",
    "tcp connect error",
    "dns error",
    "error trying to connect",
    "error decoding response body",
    "error reading a body from connection",
    "request or response body error",
];

/// Why a request failed, in one clause: without the library's steps and the address, which whoever reports it names.
#[must_use]
pub fn cause(error: &(dyn std::error::Error + 'static)) -> String {
    let chain = std::iter::successors(Some(error), |error| error.source());
    let texts: Vec<String> = chain.map(ToString::to_string).collect();
    let is_step = |text: &str| STEPS.iter().any(|step| text.starts_with(step));
    let mut clause = String::new();
    for text in texts.iter().filter(|text| !is_step(text)) {
        match text.strip_prefix("operation timed out").or_else(|| text.strip_prefix("deadline has elapsed")) {
            Some(_) => "no answer in time".clone_into(&mut clause),
            None if clause.is_empty() => clause.clone_from(text),
            None if !clause.contains(text.as_str()) => clause.extend([": ", text]),
            None => {}
        }
    }
    match texts.last() {
        Some(last) if clause.is_empty() => last.clone(),
        _ => clause,
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read, Write},
        net::TcpListener,
        thread,
    };

    use super::*;

    fn url(text: &str) -> Url {
        text.parse().unwrap()
    }

    #[test]
    fn proxy_is_used_for_other_machines_alone() {
        let proxy: Proxy = "http://proxy.example:3128".parse().unwrap();
        for (target, used) in [
            ("https://console.example:7443", true),
            ("http://192.0.2.7:7080", true),
            ("http://[2001:db8::7]:7080", true),
            ("http://localhost.example", true),
            ("http://127.0.0.1:7080", false),
            ("http://127.9.9.9", false),
            ("http://[::1]:7080", false),
            ("http://[::ffff:127.0.0.1]:7080", false),
            ("http://0.0.0.0:7080", false),
            ("http://LOCALHOST:7080", false),
            ("http://localhost.:7080", false),
            ("http://a.localhost", false),
        ] {
            assert_eq!(proxy_to(&url(target), Some(&proxy)).is_some(), used, "{target}");
            assert!(proxy_to(&url(target), None).is_none());
        }
    }

    #[test]
    fn address_of_a_proxy_is_checked_and_its_password_not_shown() {
        for good in ["http://proxy:3128", "http://u:s3cret@proxy:3128/", " http://192.0.2.1 "] {
            assert!(!format!("{:?}", good.parse::<Proxy>().unwrap()).contains("s3cret"));
        }
        for wrong in
            ["proxy:3128", "https://proxy", "socks5://u:s3cret@proxy", "http://u:s3cret@proxy/path", "http://u:s3cret@"]
        {
            let error = wrong.parse::<Proxy>().unwrap_err();
            assert!(miette::Diagnostic::help(&error).is_some() && !error.to_string().contains("s3cret"), "{error}");
        }
        assert_eq!(Proxy::of(Some("  ")), Ok(None));
        assert_eq!(Proxy::of(None), Ok(None));
    }

    #[tokio::test]
    async fn cause_of_a_failed_request_is_one_clause() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let client = direct(tls()).timeout(std::time::Duration::from_millis(50)).build().unwrap();
        // It accepts and never answers.
        let silent = client.get(format!("http://{address}")).send().await.unwrap_err();
        assert_eq!(cause(&silent), "no answer in time");
        drop(listener);
        let refused = client.get(format!("http://{address}")).send().await.unwrap_err();
        assert_eq!(cause(&refused), "Connection refused (os error 111)");
        let unknown = client.get("http://no.such.host.invalid").send().await.unwrap_err();
        assert!(!cause(&unknown).contains("error sending") && !cause(&unknown).contains("dns error"), "{unknown:?}");
    }

    fn tls() -> rustls::ClientConfig {
        rustls::ClientConfig::builder_with_provider(crate::pki::provider())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(rustls::RootCertStore::empty())
            .with_no_client_auth()
    }

    /// Serves one request, and returns what it received.
    fn server(answer: &'static str) -> (String, thread::JoinHandle<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let serving = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut read = Vec::new();
            let mut piece = [0; 1_024];
            while !read.windows(4).any(|end| end == b"\r\n\r\n") {
                let count = stream.read(&mut piece).unwrap();
                assert!(count > 0, "{}", String::from_utf8_lossy(&read));
                read.extend_from_slice(&piece[..count]);
            }
            stream.write_all(answer.as_bytes()).unwrap();
            String::from_utf8(read).unwrap()
        });
        (address, serving)
    }

    #[tokio::test]
    async fn request_for_another_machine_goes_through_the_proxy_that_is_configured() {
        let target = url("http://console.invalid:7080/path");
        let (proxy, served) = server("HTTP/1.1 204 No Content\r\n\r\n");
        let client = client(tls(), &target, Some(&proxy.parse().unwrap())).unwrap().build().unwrap();
        assert_eq!(client.get(target.clone()).bearer_auth("t").send().await.unwrap().status(), 204);
        let read = served.join().unwrap();
        assert!(read.starts_with("GET http://console.invalid:7080/path HTTP/1.1"), "{read}");
    }

    #[tokio::test]
    async fn redirect_is_an_answer_and_not_followed() {
        let (address, served) =
            server("HTTP/1.1 307 Other\r\nLocation: http://127.0.0.1:9/\r\nContent-Length: 0\r\n\r\n");
        let client = client(tls(), &url(&address), None).unwrap().build().unwrap();
        assert_eq!(client.get(&address).bearer_auth("t").send().await.unwrap().status(), 307);
        served.join().unwrap();
    }
}
