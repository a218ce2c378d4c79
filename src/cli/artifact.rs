//! `muster artifact`: immutable files that yunos run.

use std::{
    io::IsTerminal,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use clap::{Args, Subcommand};
use futures_util::StreamExt;
use muster_api::{Artifact, Collect, Collected, StoredManifest};
use muster_base::{
    clock,
    failure::{Failure, FailureKind},
    files, terminal,
};
use muster_rules::id;
use muster_topics::{
    manifest::Manifest,
    name::{Digest, Name, Version},
    version_order,
};
use serde::Serialize;
use tokio::fs::File;
use tokio_util::io::ReaderStream;

use super::{print, session::CliSession};

/// Size of the pieces in which a file is sent: large enough to use the bandwidth, small enough to show progress.
const PIECE_BYTES: usize = 256 * 1024;

/// Suffix of a manifest beside its artifact.
const MANIFEST_SUFFIX: &str = ".manifest.json";

/// Verbs on artifacts.
#[derive(Subcommand, Clone, Debug)]
pub enum ArtifactVerb {
    /// Create an artifact of a file, under a role and a version
    ///
    /// Creating the same one again changes nothing.
    Create(CreateArgs),
    /// List artifacts, newest first
    Ls,
    /// Show one artifact, with its manifest
    Show {
        /// ROLE@VERSION, ROLE for the newest, or a SHA-256
        ///
        /// Of a SHA-256, the beginning is enough.
        artifact: String,
    },
    /// Remove an artifact that no unit uses
    Rm {
        /// ROLE@VERSION
        artifact: String,
    },
    /// Remove all artifacts that no unit uses
    ///
    /// They are removed from the console. A host removes its own copies a day after their last use.
    Gc {
        /// Show what would be done, and do nothing
        #[arg(long)]
        dry_run: bool,
        /// Do not ask first
        #[arg(short, long)]
        yes: bool,
    },
}

/// Options of `create`.
#[derive(Args, Clone, Debug)]
#[command(
    after_long_help = "A manifest is a JSON file that says what the artifact is. Everything in it may be left out:\n\n\
                    \x20 {\n\
                    \x20   \"role\": \"till\", \"version\": \"1.4.0\", \"description\": \"The till\",\n\
                    \x20   \"channel\": \"notify\",\n\
                    \x20   \"args\": [\"--config\", \"{config}\"],\n\
                    \x20   \"provides\": {\"web\": {\"port\": 8080, \"protocol\": \"http\"}},\n\
                    \x20   \"requires\": {\"db\": {}, \"cache\": {\"optional\": true}},\n\
                    \x20   \"config_schema\": {\"type\": \"object\", \"required\": [\"shop\"]}\n\
                    \x20 }\n\n\
                    It lies beside the artifact as NAME.manifest.json, or is given with --manifest. The artifact \
                    itself is never run to find these out. `muster unit create yuno` takes arguments and channel from \
                    it, and a unit whose config does not match config_schema is refused."
)]
pub struct CreateArgs {
    /// Program, or script that begins with `#!`
    file: PathBuf,
    /// Role of the artifact [default: that of the manifest]
    #[arg(long)]
    role: Option<Name>,
    /// Version of the artifact [default: that of the manifest]
    #[arg(long = "version", value_name = "VERSION")]
    version: Option<Version>,
    /// Manifest [default: FILE.manifest.json, if there is one]
    #[arg(long, value_name = "FILE")]
    manifest: Option<PathBuf>,
}

/// Runs the verb.
///
/// # Errors
/// If it fails.
pub async fn run(verb: ArtifactVerb, session: &CliSession) -> Result<(), Failure> {
    match verb {
        ArtifactVerb::Create(wanted) => {
            let artifact = create(session, &wanted).await?;
            show(session, artifact).await
        }
        ArtifactVerb::Ls => {
            let artifacts: Vec<Artifact> = session.client.get("artifacts", &[]).await?;
            let empty = "no artifacts; `muster artifact create FILE --role R --version V` creates one";
            list(session, &artifacts, empty)
        }
        ArtifactVerb::Show { artifact } => show(session, find(session, &artifact).await?).await,
        ArtifactVerb::Rm { artifact } => {
            let (role, version) = artifact.split_once('@').ok_or_else(|| {
                Failure::new(FailureKind::Usage, format!("{artifact:?} is not ROLE@VERSION"))
                    .hint("`muster artifact ls` lists them")
            })?;
            let (role, version): (Name, Version) = (role.parse().map_err(usage)?, version.parse().map_err(usage)?);
            session.client.order(reqwest::Method::DELETE, &format!("artifacts/{role}/{version}")).await?;
            print::say(format_args!("{artifact} is removed"));
            Ok(())
        }
        ArtifactVerb::Gc { dry_run, yes } => collect(session, dry_run, yes).await,
    }
}

fn usage(error: muster_topics::name::NameError) -> Failure {
    Failure::new(FailureKind::Usage, error)
}

fn list(session: &CliSession, artifacts: &[Artifact], empty: &str) -> Result<(), Failure> {
    let now_ms = clock::now_ms();
    let row = |artifact: &Artifact| {
        vec![
            artifact.role.to_string(),
            artifact.version.to_string(),
            muster_topics::size::print(artifact.size_bytes),
            artifact.sha256.short().to_owned(),
            artifact.manifest.as_ref().map(|_| "yes".to_owned()).unwrap_or_default(),
            print::age(artifact.created_ms, now_ms),
        ]
    };
    session.printer.list(artifacts, &["ROLE", "VERSION", "SIZE", "SHA-256", "MANIFEST", "CREATED"], row, empty)
}

async fn collect(session: &CliSession, dry_run: bool, yes: bool) -> Result<(), Failure> {
    let ask = |dry_run| async move { session.client.post::<_, Collected>("artifacts/gc", &Collect { dry_run }).await };
    let mut found = ask(true).await?;
    let count = found.artifacts.len();
    if !dry_run && found.freed_bytes > 0 {
        let names: String = found.artifacts.iter().map(|one| format!("\n  {}@{}", one.role, one.version)).collect();
        if count > 1 && !yes && !print::confirm(&format!("remove {count} artifacts?{names}\n")) {
            return Err(Failure::new(
                FailureKind::Usage,
                format!("to remove {count} artifacts needs confirmation:{names}"),
            )
            .hint("pass --yes, or --dry-run to only list them"));
        }
        found = ask(false).await?;
    }
    list(session, &found.artifacts, "every artifact is needed")?;
    let freed = muster_topics::size::print(found.freed_bytes);
    print::say(if dry_run { format!("{freed} would be free") } else { format!("{freed} are free") });
    Ok(())
}

/// An artifact with its manifest.
#[derive(Serialize)]
struct DescribedArtifact<'a> {
    #[serde(flatten)]
    artifact: &'a Artifact,
    #[serde(skip_serializing_if = "Option::is_none")]
    says: Option<&'a Manifest>,
}

async fn show(session: &CliSession, artifact: Artifact) -> Result<(), Failure> {
    let says = manifest(session, &artifact).await?;
    session.printer.one(&DescribedArtifact { artifact: &artifact, says: says.as_ref() }, || {
        let mut lines = vec![
            ("role", artifact.role.to_string()),
            ("version", artifact.version.to_string()),
            ("sha-256", artifact.sha256.to_string()),
            ("size", muster_topics::size::print(artifact.size_bytes)),
            ("created", print::age(artifact.created_ms, clock::now_ms())),
        ];
        lines.extend(says.as_ref().map(described).unwrap_or_default());
        lines
    })
}

fn described(says: &Manifest) -> Vec<(&'static str, String)> {
    let port = |(name, port): (&Name, &muster_topics::manifest::Port)| {
        let number = port.port.map(|port| format!(" on {port}")).unwrap_or_default();
        let protocol = port.protocol.as_ref().map(|protocol| format!(" ({protocol})")).unwrap_or_default();
        format!("{name}{number}{protocol}")
    };
    let need = |(name, need): (&Name, &muster_topics::manifest::Need)| {
        format!("{name}{}", if need.optional { " (optional)" } else { "" })
    };
    let channel = (!says.channel.is_none()).then(|| format!("{:?}", says.channel).to_lowercase());
    let schema = says.config_schema.as_ref().and_then(|schema| serde_json::to_string_pretty(schema).ok());
    vec![
        ("description", says.description.clone().unwrap_or_default()),
        ("arguments", says.args.join(" ")),
        ("channel", channel.unwrap_or_default()),
        ("provides", says.provides.iter().map(port).collect::<Vec<_>>().join(", ")),
        ("requires", says.requires.iter().map(need).collect::<Vec<_>>().join(", ")),
        ("config schema", schema.unwrap_or_default()),
    ]
}

/// The manifest of an artifact, if it has one.
///
/// # Errors
/// If the console cannot be reached.
pub async fn manifest(session: &CliSession, artifact: &Artifact) -> Result<Option<Manifest>, Failure> {
    match &artifact.manifest {
        Some(sha256) => session.client.get(&format!("manifests/{sha256}"), &[]).await.map(Some),
        None => Ok(None),
    }
}

/// The manifest for a file: the named one, or the one beside the file.
async fn read_manifest(wanted: &CreateArgs) -> Result<Option<Manifest>, Failure> {
    let path = match &wanted.manifest {
        Some(path) => path.clone(),
        None => {
            let mut beside = wanted.file.clone().into_os_string();
            beside.push(MANIFEST_SUFFIX);
            let beside = PathBuf::from(beside);
            if !tokio::fs::try_exists(&beside).await.unwrap_or(false) {
                return Ok(None);
            }
            beside
        }
    };
    let text = files::read_text(&path).map_err(|error| Failure::of_file(&path, &error))?;
    let manifest = serde_json::from_str(&text).map_err(|error| {
        Failure::new(FailureKind::Usage, format!("the manifest {}: {error}", path.display()))
            .hint("`muster artifact create --help` shows one")
    })?;
    Ok(Some(manifest))
}

/// The value of an option, or of the manifest. Both may be given if they are equal.
fn label<T: PartialEq + std::fmt::Display + Clone>(
    what: &str,
    flag: Option<&T>,
    says: Option<&T>,
) -> Result<T, Failure> {
    match (flag, says) {
        (Some(flag), Some(says)) if flag != says => {
            Err(Failure::new(FailureKind::Usage, format!("--{what} is {flag}, and the manifest says {says}"))
                .hint(format!("leave --{what} out")))
        }
        (Some(label), _) | (None, Some(label)) => Ok(label.clone()),
        (None, None) => Err(Failure::new(FailureKind::Usage, format!("--{what} is missing, and no manifest says it"))
            .hint("`muster artifact create --help` describes a manifest")),
    }
}

async fn create(session: &CliSession, wanted: &CreateArgs) -> Result<Artifact, Failure> {
    let path: &Path = &wanted.file;
    let unreadable = |error: std::io::Error| Failure::of_file(path, &error);
    let file = File::open(path).await.map_err(unreadable)?;
    let metadata = file.metadata().await.map_err(unreadable)?;
    if !metadata.is_file() {
        return Err(Failure::new(FailureKind::Usage, format!("{} is not a regular file", path.display())));
    }
    let manifest = read_manifest(wanted).await?;
    let says = manifest.as_ref();
    let role = label("role", wanted.role.as_ref(), says.and_then(|says| says.role.as_ref()))?;
    let version = label("version", wanted.version.as_ref(), says.and_then(|says| says.version.as_ref()))?;
    let mut query = vec![("role", role.to_string()), ("version", version.to_string())];
    if let Some(manifest) = &manifest {
        let stored: StoredManifest = session.client.post("manifests", manifest).await?;
        query.push(("manifest", stored.sha256.to_string()));
    }
    upload(session, file, metadata.len(), &query).await
}

async fn upload(session: &CliSession, file: File, size: u64, query: &[(&str, String)]) -> Result<Artifact, Failure> {
    let sent = Arc::new(AtomicU64::new(0));
    let counter = Arc::clone(&sent);
    let pieces = ReaderStream::with_capacity(file, PIECE_BYTES).inspect(move |piece| {
        let length = piece.as_ref().map_or(0, |piece| piece.len() as u64);
        let sent = counter.fetch_add(length, Ordering::Relaxed) + length;
        show_progress(sent, size);
    });
    let answer = session.client.upload("artifacts", query, size, reqwest::Body::wrap_stream(pieces)).await;
    if sent.load(Ordering::Relaxed) > PROGRESS_FROM_BYTES && std::io::stderr().is_terminal() {
        print::say("");
    }
    answer
}

/// Smaller files are sent before a progress line could be read.
const PROGRESS_FROM_BYTES: u64 = 8 * 1024 * 1024;

fn show_progress(sent: u64, size: u64) {
    if size > PROGRESS_FROM_BYTES {
        let (sent_words, size_words, percent) =
            (muster_topics::size::print(sent), muster_topics::size::print(size), sent * 100 / size.max(1));
        terminal::progress(&format!("{sent_words} of {size_words} ({percent} %)  "));
    }
}

/// Finds an artifact by its SHA-256, by `ROLE@VERSION`, by `ROLE` (the newest), or, if there is no such role, by the
/// beginning of a SHA-256.
///
/// # Errors
/// If there is none.
pub async fn find(session: &CliSession, text: &str) -> Result<Artifact, Failure> {
    if let Ok(sha256) = text.parse::<Digest>() {
        return session.client.get(&format!("artifacts/{sha256}"), &[]).await;
    }
    let (role, version) = text.split_once('@').map_or((text, None), |(role, version)| (role, Some(version)));
    let mut query = vec![("role", role.parse::<Name>().map_err(usage)?.to_string())];
    if let Some(version) = version {
        query.push(("version", version.parse::<Version>().map_err(usage)?.to_string()));
    }
    let found: Vec<Artifact> = session.client.get("artifacts", &query).await?;
    if found.is_empty() && id::may_begin(text) && text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return session.client.get(&format!("artifacts/{text}"), &[]).await;
    }
    version_order::newest(&found, |artifact| (&artifact.version, artifact.created_ms)).cloned().ok_or_else(|| {
        Failure::not_found(format_args!("there is no artifact {text}"))
            .hint("`muster artifact ls` lists them; `muster artifact create` creates one")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_label_is_refused() {
        let (one, two) = ("a".to_owned(), "b".to_owned());
        let check =
            |flag, says| label("role", flag, says).map_err(|failure| failure.cause().unwrap_or_default().to_owned());
        assert_eq!(check(Some(&one), None), Ok(one.clone()));
        assert_eq!(check(None, Some(&one)), Ok(one.clone()));
        assert_eq!(check(Some(&one), Some(&one)), Ok(one.clone()));
        assert_eq!(check(Some(&one), Some(&two)), Err("--role is a, and the manifest says b".to_owned()));
        assert!(check(None, None).is_err());
    }
}
