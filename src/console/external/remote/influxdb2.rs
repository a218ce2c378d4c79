//! InfluxDB 2 and 3, and VictoriaMetrics, through the crate `influxdb2`.
//!
//! Of the crate only what takes bytes is used: its `write` takes a stream, which cannot be sent a second time, and its `health` wants an
//! answer that VictoriaMetrics does not give.

use bytes::Bytes;
use futures_util::future::BoxFuture;
use influxdb2::{Client, ClientBuilder, RequestError, api::write::TimestampPrecision};
use reqwest::Url;

use super::{ANSWER, ExternalError, Failed, Remote, proxy, secret};
use crate::{console::config::MetricStoreConfig, failure::with_causes, http};

/// A server, and where in it.
pub(super) struct InfluxDb2 {
    client: Client,
    url: String,
    org: String,
    bucket: String,
}

impl std::fmt::Debug for InfluxDb2 {
    /// Without the client, which holds the token.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("InfluxDb2").field("url", &self.url).field("bucket", &self.bucket).finish_non_exhaustive()
    }
}

pub(super) fn open(config: &MetricStoreConfig, url: &Url) -> Result<InfluxDb2, ExternalError> {
    // The crate would overwrite it.
    if !matches!(url.path(), "" | "/") {
        let reason = format!("over http:// a store of kind {} cannot lie below a path", config.kind.as_str());
        return Err(ExternalError::new(config, "url", reason, "http://HOST:PORT; https:// may have a path"));
    }
    let token = secret(config, "token_file", config.token_file.as_deref())?.unwrap_or_default();
    let (org, bucket) = (config.org.clone().unwrap_or_default(), config.bucket.clone().unwrap_or_default());
    // It follows no redirects: they may turn a POST into a GET, whose success would be taken for that of the write.
    let http = http::old_client(url, proxy(config)?.as_ref())
        .map_err(|error| ExternalError::new(config, "proxy", with_causes(&error), "http://HOST:PORT"))?;
    let client = ClientBuilder::with_builder(http.timeout(ANSWER), url.as_str(), &org, token)
        .build()
        .map_err(|error| ExternalError::new(config, "url", with_causes(&error), "http://HOST:PORT"))?;
    Ok(InfluxDb2 { client, url: url.to_string(), org, bucket })
}

impl Remote for InfluxDb2 {
    fn probe(&self) -> BoxFuture<'_, Result<(), Failed>> {
        Box::pin(async { self.client.ready().await.map(drop).map_err(failed) })
    }

    fn write(&self, lines: Bytes) -> BoxFuture<'_, Result<(), Failed>> {
        let precision = TimestampPrecision::Milliseconds;
        let written = self.client.write_line_protocol_with_precision(&self.org, &self.bucket, lines, precision);
        Box::pin(async { written.await.map_err(failed) })
    }
}

fn failed(error: RequestError) -> Failed {
    match error {
        RequestError::Http { status, text } => Failed::answer(status.as_u16(), &text),
        RequestError::ReqwestProcessing { source } => Failed::Unreachable(with_causes(&source)),
        other => Failed::Unreachable(with_causes(&other)),
    }
}
