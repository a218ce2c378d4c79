//! `muster artifact`: immutable files that yunos run.

use std::{
    io::{IsTerminal, Write},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use clap::Subcommand;
use futures_util::StreamExt;
use muster_topics::name::{Digest, Name, Version};
use tokio::fs::File;
use tokio_util::io::ReaderStream;

use super::{Session, print};
use crate::{
    api::Artifact,
    clock,
    failure::{Context, Failure, Kind},
};

/// Pieces in which a file is sent: large enough to keep a link busy, small enough to show progress.
const PIECE_BYTES: usize = 256 * 1024;

/// Verbs on artifacts.
#[derive(Subcommand, Clone, Debug)]
pub enum Verb {
    /// Add a file under a role and a version; adding the same one again changes nothing
    Add {
        /// The file: a program, or a script with `#!`
        file: PathBuf,
        /// What it is for
        #[arg(long)]
        role: Name,
        /// Which one of the role
        #[arg(long = "version", value_name = "VERSION")]
        version: Version,
    },
    /// List artifacts, newest first
    #[command(alias = "list")]
    Ls,
    /// Show one artifact
    Show {
        /// Its SHA-256, or ROLE@VERSION
        artifact: String,
    },
}

/// Does it.
///
/// # Errors
/// If it cannot be done.
pub async fn run(verb: Verb, session: &Session) -> Result<(), Failure> {
    match verb {
        Verb::Add { file, role, version } => {
            let artifact = add(session, &file, &role, &version).await?;
            show(session, &artifact)
        }
        Verb::Ls => {
            let artifacts: Vec<Artifact> = session.client.get("artifacts", &[]).await?;
            let now_ms = clock::now_ms();
            let row = |artifact: &Artifact| {
                vec![
                    artifact.role.to_string(),
                    artifact.version.to_string(),
                    print::bytes(artifact.size_bytes),
                    artifact.sha256.short().to_owned(),
                    print::age(artifact.added_ms, now_ms),
                ]
            };
            let empty = "no artifacts; `muster artifact add FILE --role R --version V` adds one";
            session.printer.list(&artifacts, &["ROLE", "VERSION", "SIZE", "SHA-256", "ADDED"], row, empty)
        }
        Verb::Show { artifact } => show(session, &find(session, &artifact).await?),
    }
}

fn show(session: &Session, artifact: &Artifact) -> Result<(), Failure> {
    session.printer.one(artifact, || {
        vec![
            ("role", artifact.role.to_string()),
            ("version", artifact.version.to_string()),
            ("sha-256", artifact.sha256.to_string()),
            ("size", print::bytes(artifact.size_bytes)),
            ("added", print::age(artifact.added_ms, clock::now_ms())),
        ]
    })
}

async fn add(session: &Session, path: &Path, role: &Name, version: &Version) -> Result<Artifact, Failure> {
    let what = format!("the file {}", path.display());
    let file = File::open(path).await.trying(&what)?;
    let metadata = file.metadata().await.trying(&what)?;
    if !metadata.is_file() {
        return Err(Failure::new(Kind::Usage, format!("{what} is not a plain file")));
    }
    let size = metadata.len();
    let sent = Arc::new(AtomicU64::new(0));
    let counter = Arc::clone(&sent);
    let pieces = ReaderStream::with_capacity(file, PIECE_BYTES).inspect(move |piece| {
        let length = piece.as_ref().map_or(0, |piece| piece.len() as u64);
        let sent = counter.fetch_add(length, Ordering::Relaxed) + length;
        show_progress(sent, size);
    });
    let query = [("role", role.to_string()), ("version", version.to_string())];
    let answer = session.client.upload("artifacts", &query, size, reqwest::Body::wrap_stream(pieces)).await;
    if sent.load(Ordering::Relaxed) > PROGRESS_FROM_BYTES && std::io::stderr().is_terminal() {
        print::say("");
    }
    answer
}

/// Files below this size are there before a progress line could be read.
const PROGRESS_FROM_BYTES: u64 = 8 * 1024 * 1024;

fn show_progress(sent: u64, size: u64) {
    let mut err = std::io::stderr().lock();
    if size > PROGRESS_FROM_BYTES && err.is_terminal() {
        let _ = write!(err, "\r{} of {} ({} %)  ", print::bytes(sent), print::bytes(size), sent * 100 / size.max(1));
    }
}

/// An artifact by its SHA-256, by `ROLE@VERSION`, or by `ROLE` alone: then the one that was added last.
///
/// # Errors
/// If there is none.
pub async fn find(session: &Session, text: &str) -> Result<Artifact, Failure> {
    if let Ok(sha256) = text.parse::<Digest>() {
        return session.client.get(&format!("artifacts/{sha256}"), &[]).await;
    }
    let usage = |error: muster_topics::name::NameError| Failure::new(Kind::Usage, error);
    let (role, version) = text.split_once('@').map_or((text, None), |(role, version)| (role, Some(version)));
    let mut query = vec![("role", role.parse::<Name>().map_err(usage)?.to_string())];
    if let Some(version) = version {
        query.push(("version", version.parse::<Version>().map_err(usage)?.to_string()));
    }
    let found: Vec<Artifact> = session.client.get("artifacts", &query).await?;
    found.into_iter().max_by_key(|artifact| artifact.added_ms).ok_or_else(|| {
        Failure::new(Kind::Failed, format!("there is no artifact {text}"))
            .hint("`muster artifact ls` lists them; `muster artifact add` adds one")
    })
}
