//! Serves content to hosts, and compares it with its hash meanwhile. Who may fetch what is decided before ([`crate::given`]).

use std::{io, ops::RangeInclusive, sync::Arc};

use axum::{
    body::Body,
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use futures_util::StreamExt;
use muster_topics::name::Digest;
use ring::digest::{Context, SHA256};
use tokio::io::{AsyncReadExt, AsyncSeekExt};
use tokio_util::io::ReaderStream;

use super::{
    artifact_path,
    damaged::{FileStamp, artifact_words},
};
use crate::{
    error::Error,
    state::{Console, ConsoleState},
    store::{
        self, StoreError, StoreResult,
        content::{ArtifactFilter, artifacts},
    },
};

/// The size of pieces in which an artifact is read: large enough that reading takes most of the time.
const PIECE_BYTES: usize = 128 * 1024;

/// Returns a config as it is stored: canonical JSON.
pub(crate) async fn config(console: &Console, sha256: &Digest) -> Result<Response, Error> {
    let found = store::content::config_content(console.shared.store.read(), sha256).await;
    let unknown = || Error::not_found("unknown_config", format!("there is no config {sha256}"));
    document(console, found, unknown)
}

/// Returns a manifest as it is stored: canonical JSON.
pub(crate) async fn manifest(console: &Console, sha256: &Digest) -> Result<Response, Error> {
    let found = store::content::manifest(console.shared.store.read(), sha256).await;
    let unknown = || Error::not_found("unknown_manifest", format!("there is no manifest {sha256}"));
    document(console, found, unknown)
}

fn document(
    console: &Console,
    found: StoreResult<Option<String>>,
    unknown: impl FnOnce() -> Error,
) -> Result<Response, Error> {
    match console.shared.note_altered(found) {
        Ok(Some(content)) => Ok(([(header::CONTENT_TYPE, "application/json")], content).into_response()),
        Ok(None) => Err(unknown()),
        Err(StoreError::Altered { what, .. }) => Err(damaged(&what)),
        Err(error) => Err(error.into()),
    }
}

fn damaged(what: &str) -> Error {
    Error::not_found("content_damaged", format!("{what} is damaged")).hint("create it on the console again")
}

/// Returns an artifact, or the part of it that the headers ask for.
pub(crate) async fn artifact(console: &Console, sha256: Digest, headers: &HeaderMap) -> Result<Response, Error> {
    let shared = &console.shared;
    let path = artifact_path(&shared.content, &sha256);
    let filter = ArtifactFilter { sha256: Some(sha256.clone()), ..ArtifactFilter::default() };
    let labels = artifacts(shared.store.read(), &filter).await?;
    let what = artifact_words(&sha256, labels.first());
    let failed = |error: io::Error| match error.kind() {
        io::ErrorKind::NotFound => {
            if !labels.is_empty() {
                shared.note_damaged(&sha256, what.clone(), None);
            }
            Error::not_found("unknown_artifact", format!("there is no artifact {sha256}"))
        }
        _ => Error::internal("reading the artifact", &error),
    };
    let mut file = tokio::fs::File::open(&path).await.map_err(failed)?;
    let found = file.metadata().await.map_err(failed)?;
    let (size, stamp) = (found.len(), FileStamp::of(&found));
    let has_other_size = labels.iter().all(|label| label.size_bytes != size) && !labels.is_empty();
    if has_other_size {
        shared.note_damaged(&sha256, what.clone(), Some(stamp));
    }
    // To send it once more would only have its host refuse it.
    if shared.content.damaged.has(&sha256, stamp) {
        return Err(damaged(&what));
    }
    let etag = format!("\"{sha256}\"");
    // A part of other content is useless to a host that has the beginning of this (RFC 9110, 13.1.5).
    let is_other = headers.get(header::IF_RANGE).is_some_and(|value| value.as_bytes() != etag.as_bytes());
    let asked = headers.get(header::RANGE).filter(|_| !is_other).and_then(|value| value.to_str().ok());
    let (status, range) = match asked.map_or(RequestedRange::Whole, |range| wanted(range, size)) {
        RequestedRange::Whole => (StatusCode::OK, 0..=size.saturating_sub(1)),
        RequestedRange::Part(range) => (StatusCode::PARTIAL_CONTENT, range),
        RequestedRange::Nothing => {
            let error = Error::new(StatusCode::RANGE_NOT_SATISFIABLE, "bad_range", format!("there are {size} bytes"));
            return Ok(([(header::CONTENT_RANGE, format!("bytes */{size}"))], error).into_response());
        }
    };
    file.seek(io::SeekFrom::Start(*range.start())).await.map_err(failed)?;
    let length = (range.end() + 1 - range.start()).min(size);
    let hash = Context::new(&SHA256);
    let mut check =
        (length == size).then(|| BlobCheck { shared: shared.clone(), sha256, what, stamp, hash, left: size });
    let pieces = ReaderStream::with_capacity(file.take(length), PIECE_BYTES).inspect(move |piece| {
        // What is over is looked at no more.
        check = check.take().and_then(|check| check.read(piece));
    });
    let mut response = Response::builder()
        .status(status)
        .header(header::CONTENT_TYPE, "application/octet-stream")
        .header(header::ACCEPT_RANGES, "bytes")
        .header(header::ETAG, etag)
        .header(header::CONTENT_LENGTH, length);
    if status == StatusCode::PARTIAL_CONTENT {
        response = response.header(header::CONTENT_RANGE, format!("bytes {}-{}/{size}", range.start(), range.end()));
    }
    response.body(Body::from_stream(pieces)).map_err(|error| Error::internal("answering", &error))
}

/// Compares an artifact with its hash while it is sent.
struct BlobCheck {
    shared: Arc<ConsoleState>,
    sha256: Digest,
    what: String,
    stamp: FileStamp,
    hash: Context,
    /// How many bytes are still to come.
    left: u64,
}

impl BlobCheck {
    /// Takes the next piece; returns nothing after the last.
    fn read(mut self, piece: &io::Result<Bytes>) -> Option<Self> {
        let Ok(piece) = piece else {
            self.shared.note_damaged(&self.sha256, self.what, Some(self.stamp));
            return None;
        };
        self.hash.update(piece);
        self.left = self.left.saturating_sub(piece.len() as u64);
        if self.left > 0 {
            return Some(self);
        }
        match Digest::from_ring(self.hash.finish()) == self.sha256 {
            true => self.shared.note_whole(&self.sha256),
            false => self.shared.note_damaged(&self.sha256, self.what, Some(self.stamp)),
        }
        None
    }
}

/// The range of a `Range` header.
#[derive(Debug, PartialEq, Eq)]
enum RequestedRange {
    Whole,
    Part(RangeInclusive<u64>),
    Nothing,
}

/// Parses a `Range` header. An unknown form counts as absent (RFC 9110, 14.2), and so do several ranges.
fn wanted(header: &str, size: u64) -> RequestedRange {
    let Some((first, last)) = header.strip_prefix("bytes=").and_then(|range| range.split_once('-')) else {
        return RequestedRange::Whole;
    };
    let range = match (first.trim().parse::<u64>(), last.trim()) {
        (Ok(first), "") => Some((first, size.saturating_sub(1))),
        (Ok(first), last) => last.parse::<u64>().ok().filter(|last| first <= *last).map(|last| (first, last)),
        (Err(_), last) if first.trim().is_empty() => last.parse::<u64>().ok().map(|count| match count {
            0 => (size, size),
            count => (size.saturating_sub(count), size.saturating_sub(1)),
        }),
        (Err(_), _) => None,
    };
    match range {
        None => RequestedRange::Whole,
        Some((first, _)) if first >= size => RequestedRange::Nothing,
        Some((first, last)) => RequestedRange::Part(first..=last.min(size - 1)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn byte_ranges_parse() {
        let check = |header: &str, answer: RequestedRange| assert_eq!(wanted(header, 10), answer, "{header}");
        check("bytes=0-", RequestedRange::Part(0..=9));
        check("bytes=3-5", RequestedRange::Part(3..=5));
        check("bytes=3-99", RequestedRange::Part(3..=9));
        check("bytes=-3", RequestedRange::Part(7..=9));
        check("bytes=-99", RequestedRange::Part(0..=9));
        check("bytes=10-", RequestedRange::Nothing);
        check("bytes=-0", RequestedRange::Nothing);
        for odd in ["", "bytes=", "bytes=-", "bytes=5-3", "bytes=a-b", "bytes=0-1,3-4", "lines=0-1"] {
            check(odd, RequestedRange::Whole);
        }
        assert_eq!(wanted("bytes=0-", 0), RequestedRange::Nothing);
    }
}
