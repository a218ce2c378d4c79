//! InfluxDB 2 and 3, and VictoriaMetrics, through the crate `influxdb2`.
//!
//! Only the crate's request builder for bytes is used: its `write` takes a stream, which cannot be retried, and its `health` needs an
//! answer that VictoriaMetrics does not give.

use bytes::Bytes;
use futures_util::future::BoxFuture;
use influxdb2::{Client, ClientBuilder, RequestError, api::write::TimestampPrecision};
use muster_base::failure::with_causes;
use muster_net::http::{self, Proxy};
use reqwest::Url;

use super::super::error::ExternalError;
use super::super::remote_error::{ANSWER, Remote, SendError, proxy, secret};
use crate::config::MetricStoreConfig;

/// A server, and the path on it.
pub(super) struct InfluxDb2 {
    client: Client,
    url: String,
    org: String,
    bucket: String,
}

impl std::fmt::Debug for InfluxDb2 {
    /// Without the client, which contains the token.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("InfluxDb2").field("url", &self.url).field("bucket", &self.bucket).finish_non_exhaustive()
    }
}

pub(super) fn open(config: &MetricStoreConfig, url: &Url) -> Result<InfluxDb2, ExternalError> {
    // The crate would replace the path.
    if !matches!(url.path(), "" | "/") {
        let reason = format!("over http:// a store of kind {} cannot be below a path", config.kind.as_str());
        return Err(ExternalError::new(config, "url", reason, "http://HOST:PORT; https:// may have a path"));
    }
    let token = secret(config, "secret_file", config.secret_file.as_deref())?.unwrap_or_default();
    let (org, bucket) = (config.org.clone().unwrap_or_default(), config.bucket.clone().unwrap_or_default());
    // It follows no redirects: they may turn a POST into a GET, whose success would be mistaken for that of the
    // write.
    let http = client(url, proxy(config)?.as_ref())
        .map_err(|error| ExternalError::new(config, "proxy", with_causes(&error), "http://HOST:PORT"))?;
    let client = ClientBuilder::with_builder(http.timeout(ANSWER), url.as_str(), &org, token)
        .build()
        .map_err(|error| ExternalError::new(config, "url", with_causes(&error), "http://HOST:PORT"))?;
    Ok(InfluxDb2 { client, url: url.to_string(), org, bucket })
}

/// A client of the older HTTP library that the crate `influxdb2` uses, without TLS; configured as `http::client` is.
fn client(target: &Url, proxy: Option<&Proxy>) -> old_reqwest::Result<old_reqwest::ClientBuilder> {
    let proxy = http::proxy_to(target, proxy).map(|proxy| old_reqwest::Proxy::all(proxy.url())).transpose()?;
    let client = old_reqwest::Client::builder().no_proxy().redirect(old_reqwest::redirect::Policy::none());
    Ok(match proxy {
        Some(proxy) => client.proxy(proxy),
        None => client,
    })
}

impl Remote for InfluxDb2 {
    fn probe(&self) -> BoxFuture<'_, Result<(), SendError>> {
        Box::pin(async { self.client.ready().await.map(drop).map_err(failed) })
    }

    fn write(&self, lines: Bytes) -> BoxFuture<'_, Result<(), SendError>> {
        let precision = TimestampPrecision::Milliseconds;
        let written = self.client.write_line_protocol_with_precision(&self.org, &self.bucket, lines, precision);
        Box::pin(async { written.await.map_err(failed) })
    }
}

fn failed(error: RequestError) -> SendError {
    match error {
        RequestError::Http { status, text } => SendError::answer(status.as_u16(), &text),
        RequestError::ReqwestProcessing { source } => SendError::Unreachable(http::cause(&source)),
        other => SendError::Unreachable(http::cause(&other)),
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read, Write},
        net::TcpListener,
    };

    use super::*;

    #[tokio::test]
    async fn request_for_another_machine_goes_through_the_proxy_that_is_configured() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let proxy: Proxy = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
        let served = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut read = [0; 4096];
            let length = stream.read(&mut read).unwrap();
            stream.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").unwrap();
            String::from_utf8_lossy(&read[..length]).into_owned()
        });
        let target: Url = "http://store.invalid:8086/ready".parse().unwrap();
        let client = client(&target, Some(&proxy)).unwrap().build().unwrap();
        assert_eq!(client.get(target.as_str()).send().await.unwrap().status().as_u16(), 204);
        let read = served.join().unwrap();
        assert!(read.starts_with("GET http://store.invalid:8086/ready HTTP/1.1"), "{read}");
    }
}
