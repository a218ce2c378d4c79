//! Collects the facts: looks at every part that is installed.

use std::{path::Path, time::Duration};

use muster_base::{
    clock,
    failure::with_causes,
    form::{self, StoreForm},
};
use muster_net::pki;
use muster_topics::Millis;
use rustls::pki_types::{CertificateRevocationListDer, pem::PemObject};
use serde_json::Value;
use sqlx::{ConnectOptions as _, Connection as _, sqlite::SqliteConnectOptions};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::UnixStream,
    time::timeout,
};
use x509_parser::{prelude::FromDer, revocation_list::CertificateRevocationList};

use crate::{
    broker,
    facts::{AgentFacts, CertificateFacts, Facts, HostFacts, PartFacts, PodmanFacts, ProcessState, StoreState},
    files, probe,
    setup::{CertificateSetup, CertificateSource, Part, PartSetup},
};

/// How long a program on this host may take to answer.
const ANSWER: Duration = Duration::from_secs(5);
/// How long the check of one store may take: a gigabyte is read in some seconds.
const STORE: Duration = Duration::from_secs(60);
/// The most that is read of an answer.
const ANSWER_MAX_BYTES: u64 = 64 * 1024;

/// Looks at everything.
pub async fn collect(version: &str, parts: &[(Part, PartSetup)]) -> Facts {
    let host = HostFacts { cgroups: files::cgroups(), time_zone: files::time_zone() };
    let mut facts = Facts { now_ms: clock::now_ms(), version: version.to_owned(), host, parts: Vec::new() };
    for (part, setup) in parts {
        facts.parts.push((*part, look_at(setup).await));
    }
    facts
}

async fn look_at(setup: &PartSetup) -> PartFacts {
    let holder = setup.lock.as_deref().and_then(files::lock_holder);
    let mut found = PartFacts {
        config: setup.config.clone(),
        trouble: setup.trouble.clone(),
        missing: setup.missing.clone(),
        start: setup.start.clone(),
        process: setup.lock.as_ref().map(|_| holder.map_or(ProcessState::Stopped, ProcessState::Runs)),
        certificates: setup.certificates.iter().map(certificate).collect(),
        revoked: setup.revoked.as_ref().map(|path| (path.clone(), revocation_list(path))),
        disks: files::one_for_each_disk(&setup.folders).iter().map(|folder| files::disk(folder)).collect(),
        private: setup.private.iter().filter_map(|path| Some((path.clone(), files::mode(path)?))).collect(),
        ..PartFacts::default()
    };
    let own = std::process::id().cast_signed();
    found.open_files = setup
        .open_files
        .and_then(|(needs, what)| files::open_files_limit(holder.unwrap_or(own)).map(|may| (may, needs, what)));
    for listener in &setup.listeners {
        found.listeners.push((listener.clone(), probe::listener(listener.address).await));
    }
    for server in &setup.servers {
        found.servers.push(probe::server(server).await);
    }
    for path in &setup.stores {
        found.stores.push((path.clone(), store(path, holder.is_some()).await));
    }
    if let (Some(path), Some(_)) = (&setup.agent_socket, holder) {
        found.agent = Some(agent(path).await);
    }
    if let Some(path) = &setup.podman_socket {
        found.podman = Some(podman(path).await);
    }
    if let Some(member) = &setup.member {
        found.broker = Some(broker::probe(member, holder.is_some()).await);
    }
    found
}

pub(crate) fn certificate(setup: &CertificateSetup) -> CertificateFacts {
    let (place, pem) = match &setup.source {
        CertificateSource::File(path) => {
            (path.display().to_string(), std::fs::read_to_string(path).map_err(|error| error.to_string()))
        }
        CertificateSource::Text(pem) => ("its identity".to_owned(), Ok(pem.clone())),
    };
    let content = pem.and_then(|pem| {
        let chain = pki::certificates("the certificate", &pem).map_err(|error| with_causes(&error))?;
        chain.first().map_or(Err("there is none".to_owned()), |der| probe::certificate(der))
    });
    CertificateFacts { what: setup.what.to_owned(), place, remedy: setup.remedy.clone(), content }
}

/// Returns by when each list of a file has to be replaced.
pub(crate) fn revocation_list(path: &Path) -> Result<Vec<Millis>, String> {
    let pem = std::fs::read(path).map_err(|error| error.to_string())?;
    let lists = CertificateRevocationListDer::pem_slice_iter(&pem)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| error.to_string())?;
    if lists.is_empty() {
        return Err("the file has no revocation list (X.509, PEM)".to_owned());
    }
    let due = |der: &CertificateRevocationListDer<'_>| {
        let (_, list) = CertificateRevocationList::from_der(der).map_err(|error| error.to_string())?;
        Ok(list.next_update().map(|due| due.timestamp() * 1_000))
    };
    lists.iter().filter_map(|der| due(der).transpose()).collect()
}

/// Checks a store, without a write: of one that nobody has open, not even a lock file is made.
async fn store(path: &Path, is_open: bool) -> StoreState {
    if !path.exists() {
        return StoreState::Missing;
    }
    if matches!(form::of_store(path), Ok(StoreForm::Other)) {
        return StoreState::OtherForm;
    }
    let has_log = path.with_extension("db-wal").metadata().is_ok_and(|log| log.len() > 0);
    let options = SqliteConnectOptions::new().filename(path).read_only(true).immutable(!is_open && !has_log);
    let check = async {
        let mut connection = options.disable_statement_logging().connect().await?;
        let found: Vec<String> = sqlx::query_scalar("PRAGMA quick_check(1)").fetch_all(&mut connection).await?;
        connection.close().await?;
        Ok::<_, sqlx::Error>(found)
    };
    match timeout(STORE, check).await {
        Ok(Ok(found)) if found == ["ok"] => StoreState::Whole,
        Ok(Ok(found)) => StoreState::Damaged(found.join("; ")),
        Ok(Err(error)) => {
            let code = error.as_database_error().and_then(|error| error.code());
            // SQLITE_CORRUPT and SQLITE_NOTADB.
            match code.as_deref() {
                Some("11" | "26") => StoreState::Damaged(error.to_string()),
                _ => StoreState::Unchecked(error.to_string()),
            }
        }
        Err(_) => StoreState::Unchecked(format!("it took longer than {} s", STORE.as_secs())),
    }
}

/// Sends a request to a socket in the file system; the body of the answer.
async fn ask(path: &Path, request: &str) -> Result<String, String> {
    let exchange = async {
        let mut stream = UnixStream::connect(path).await?;
        let request = format!("GET {request} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut read = Vec::new();
        stream.take(ANSWER_MAX_BYTES).read_to_end(&mut read).await?;
        Ok::<_, std::io::Error>(read)
    };
    let read = match timeout(ANSWER, exchange).await {
        Ok(read) => read.map_err(|error| error.to_string())?,
        Err(_) => return Err("no answer within 5 s".to_owned()),
    };
    let text = String::from_utf8_lossy(&read);
    match text.split_once("\r\n\r\n") {
        Some((head, body)) if head.contains(" 200 ") => Ok(body.to_owned()),
        _ => Err(text.lines().next().unwrap_or("nothing").to_owned()),
    }
}

async fn agent(socket: &Path) -> Result<AgentFacts, String> {
    let status: Value = serde_json::from_str(&ask(socket, "/ping").await?).map_err(|error| error.to_string())?;
    Ok(AgentFacts {
        version: status["agent_version"].as_str().unwrap_or("?").to_owned(),
        is_connected: status["connected"] == true,
        later_protocol: status["later_protocol"].as_u64(),
    })
}

async fn podman(socket: &Path) -> PodmanFacts {
    if !socket.exists() {
        return PodmanFacts::Missing(socket.to_owned());
    }
    match ask(socket, "/_ping").await {
        Ok(_) => PodmanFacts::Answers,
        Err(error) => PodmanFacts::Silent(socket.to_owned(), error),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[tokio::test]
    async fn damaged_store_is_told_from_a_whole_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.db");
        assert_eq!(store(&path, false).await, StoreState::Missing);
        let options = SqliteConnectOptions::new().filename(&path).create_if_missing(true);
        let mut connection = options.connect().await.unwrap();
        sqlx::query("CREATE TABLE a (b)").execute(&mut connection).await.unwrap();
        assert_eq!(store(&path, false).await, StoreState::OtherForm);
        let version = format!("PRAGMA user_version = {}", form::USER_VERSION);
        sqlx::query(sqlx::AssertSqlSafe(version)).execute(&mut connection).await.unwrap();
        connection.close().await.unwrap();
        assert_eq!(store(&path, false).await, StoreState::Whole);
        let names = fs::read_dir(folder.path()).unwrap().count();
        assert_eq!(names, 1, "nothing is made beside it");
        let mut bytes = fs::read(&path).unwrap();
        bytes[..16].fill(7);
        fs::write(&path, bytes).unwrap();
        assert!(matches!(store(&path, false).await, StoreState::Damaged(_)));
    }
}
