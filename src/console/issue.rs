//! Makes, lists and revokes certificates by hand, with the console's data folder alone.
//! A console that runs with the same folder notices.

use std::{
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use clap::{Args, ValueEnum};
use muster_base::{
    clock::now_ms,
    failure::{Failure, FailureContext as _, FailureKind},
    files,
    role_args::RoleArgs,
};
use muster_topics::{
    name::{HostId, Name},
    role::Identity,
};
use time::{OffsetDateTime, format_description::well_known::Rfc3339};

use crate::{
    authority::{Authority, serial_and_end},
    config::{AuthorityConfig, Config},
    key_ring::KeySources,
    operator, register, revocation,
    start::{STORE, WEB_URL, check_form, open_authority},
    store::{Store, host, issued},
};

/// The console's folder.
#[derive(Args, Clone, Debug)]
struct ConsoleFolder {
    #[command(flatten)]
    role_args: RoleArgs,
    /// Data folder
    ///
    /// [default: as the configuration says]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
}

impl ConsoleFolder {
    /// Returns the folder; `None` if only the configuration was printed.
    fn path(self) -> Result<Option<PathBuf>, Failure> {
        Ok(self.config()?.map(|config| config.data_dir))
    }

    /// Returns the console's configuration; `None` if it was only printed.
    fn config(self) -> Result<Option<Config>, Failure> {
        self.role_args.load("console", |config: &mut Config| {
            if let Some(folder) = self.data_dir {
                config.data_dir = folder;
            }
            Ok(())
        })
    }

    /// Returns the folder of an existing console.
    fn known_path(self) -> Result<Option<PathBuf>, Failure> {
        match self.path()? {
            Some(path) if !Authority::exists(&path.join(AUTHORITY)) => {
                Err(Failure::new(FailureKind::Failed, format!("{} has no fleet's authority", path.display())).hint(format!(
                    "pass --data-dir DIR; below the folder of `muster up` it is `console`. For a new fleet, `muster console init \
                     --data-dir {}` makes one there",
                    path.display()
                )))
            }
            path => Ok(path),
        }
    }
}

/// The authority's folder in the console's.
const AUTHORITY: &str = "authority";

/// Makes a new sign-in link of the console in the first of these folders that has one. A running console accepts it at
/// once.
///
/// # Errors
/// If none of them is a console's, or its store cannot be written.
pub async fn new_sign_in_link(folders: &[PathBuf]) -> Result<String, Failure> {
    let Some(folder) = folders.iter().find(|folder| folder.join(STORE).exists()) else {
        let names: Vec<String> = folders.iter().map(|folder| folder.display().to_string()).collect();
        return Err(Failure::new(
            FailureKind::Failed,
            format!("{} is not a console's folder, or is not readable", names.join(", ")),
        )
        .hint("run this on the console's machine, as the console's user, and pass --data-dir DIR"));
    };
    let url = fs::read_to_string(folder.join(WEB_URL))
        .trying(format_args!("the console's address in {}", folder.display()))?;
    let store = Store::open(&folder.join(STORE)).await.map_err(|error| Failure::of(FailureKind::Failed, &error))?;
    let link = operator::new_sign_in_link(&store, url.trim()).await.map_err(Failure::trying("a sign-in link"))?;
    store.close().await;
    Ok(link)
}

/// Arguments of `muster console init`.
#[derive(Args, Clone, Debug)]
pub struct InitArgs {
    #[command(flatten)]
    folder: ConsoleFolder,
}

/// Creates the authority of a new fleet; an existing one is kept.
///
/// # Errors
/// If it cannot be created, or a part of an existing one is missing.
pub fn init(wanted: InitArgs) -> Result<(), Failure> {
    let Some(Config { data_dir: folder, authority: AuthorityConfig { signer }, .. }) = wanted.folder.config()? else {
        return Ok(());
    };
    check_form(&folder).map_err(|other| Failure::of(FailureKind::Failed, &other))?;
    let was_there = Authority::exists(&folder.join(AUTHORITY));
    files::make_folder(&folder, files::PRIVATE_FOLDER).map_err(|error| Failure::of_file(&folder, &error))?;
    let authority = open_authority(&folder, signer).map_err(|error| Failure::of(FailureKind::Failed, &error))?;
    let state = if was_there { "exists already and is kept" } else { "is made" };
    let at = folder.join(AUTHORITY);
    print(&format!(
        "the authority in {} {state}; SHA-256 of its certificate: {}\n",
        at.display(),
        authority.fingerprint()
    ))
}

/// Arguments of `muster console issue`.
#[derive(Args, Clone, Debug)]
pub struct IssueArgs {
    #[command(flatten)]
    folder: ConsoleFolder,
    /// Role of the certificate
    #[arg(long, value_enum)]
    role: IssueRole,
    /// Name in the certificate
    #[arg(long)]
    name: Name,
    /// Name or address of a broker; repeatable
    #[arg(long = "san", value_name = "NAME")]
    names: Vec<String>,
    /// How long it lasts
    ///
    /// The certificate of a broker lasts for a year, whatever is given.
    #[arg(long = "for", default_value = "90d", value_name = "TIME", value_parser = lifetime)]
    lifetime: Duration,
    /// Folder to write into
    ///
    /// It gets authority.pem, certificate.pem and key.pem, for a broker also revoked.pem. authority.pem
    /// has both root certificates while one replaces the other.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
}

/// The shortest lifetime of a certificate: clocks differ by less.
const LIFETIME_MIN: Duration = Duration::from_mins(1);
/// The longest one: no key stays good for longer than a person works.
const LIFETIME_MAX: Duration = Duration::from_hours(24 * 365 * 50);

/// Parses a lifetime.
fn lifetime(text: &str) -> Result<Duration, String> {
    let lifetime = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    match (LIFETIME_MIN..=LIFETIME_MAX).contains(&lifetime) {
        true => Ok(lifetime),
        false => Err("it is from 1m to 50 years".to_owned()),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum IssueRole {
    /// A broker that runs by itself
    Broker,
    /// Another console
    Console,
    /// A client that may read everything
    Operator,
    /// A client that only looks on, such as a bridge to a database
    Observer,
}

/// Arguments of `muster console certificates`.
#[derive(Args, Clone, Debug)]
pub struct CertificatesArgs {
    #[command(flatten)]
    folder: ConsoleFolder,
}

/// Arguments of `muster console revoke`.
#[derive(Args, Clone, Debug)]
pub struct RevokeArgs {
    #[command(flatten)]
    folder: ConsoleFolder,
    /// Serial number, name, or id of a host
    ///
    /// `muster console certificates` shows serial numbers and names.
    #[arg(value_name = "SERIAL|NAME|HOST")]
    which: String,
}

/// Makes a certificate, stores it, and writes its files.
///
/// # Errors
/// If it cannot be made, stored or written.
pub async fn issue(wanted: IssueArgs) -> Result<(), Failure> {
    let Some(folder) = wanted.folder.known_path()? else { return Ok(()) };
    if wanted.role == IssueRole::Broker && wanted.names.is_empty() {
        return Err(Failure::new(
            FailureKind::Usage,
            "a broker's certificate needs the names that it is reached under",
        )
        .hint("pass --san ADDRESS, once for each name and address"));
    }
    let (authority, store) = open(&folder).await?;
    let name = wanted.name.clone();
    let (role, identity) = match wanted.role {
        IssueRole::Broker => (issued::IssuedRole::Broker, None),
        IssueRole::Console => (issued::IssuedRole::Console, Some(Identity::Console(name))),
        IssueRole::Operator => (issued::IssuedRole::Operator, Some(Identity::Operator(name))),
        IssueRole::Observer => (issued::IssuedRole::Observer, Some(Identity::Observer(name))),
    };
    let made = match &identity {
        Some(identity) => authority.issue_client(identity, wanted.lifetime),
        // A broker that runs by itself shows the new root's certificate as soon as all hosts trust that.
        None => authority.roots().issuing().issue_server(&wanted.names),
    };
    let (certificate, key) = made.map_err(Failure::trying("the certificate"))?;
    let (serial, expires_ms) = serial_and_end(&certificate)
        .ok_or_else(|| Failure::new(FailureKind::Failed, "the new certificate cannot be read"))?;
    let row = issued::IssuedCertificate {
        serial,
        role,
        name: wanted.name,
        issued_ms: now_ms(),
        expires_ms,
        revoked_ms: None,
    };
    issued::add(store.write(), &row).await.map_err(Failure::trying("remembering the certificate"))?;
    register::keep(&folder, &store).await.map_err(Failure::trying("the register"))?;
    let list = match wanted.role {
        IssueRole::Broker => {
            Some(revocation::write(&folder, &authority, &store).await.map_err(Failure::trying("the revocation list"))?)
        }
        _ => None,
    };
    store.close().await;
    let files = write(&wanted.out, &authority.certificate_pem(), &certificate, &key, list.as_deref())?;
    let mut text = format!("issued {} of {}, good until {}", row.serial, row.owner(), time(row.expires_ms));
    if row.role == issued::IssuedRole::Broker {
        text.push_str(&format!(", for {}", wanted.names.join(", ")));
    }
    text.push_str(&format!("\nby the authority in {}\n", folder.join(AUTHORITY).display()));
    for path in files {
        text.push_str(&format!("  {}\n", path.display()));
    }
    print(&text)
}

/// Opens the authority and the store of a folder; the store is created if needed.
async fn open(folder: &Path) -> Result<(Authority, Store), Failure> {
    let authority = Authority::open(&folder.join(AUTHORITY), KeySources::new(None))
        .map_err(|error| Failure::of(FailureKind::Failed, &error))?;
    let store = Store::open_in(folder).await.map_err(|error| Failure::of(FailureKind::Failed, &error))?;
    register::restore(folder, &store, now_ms()).await.map_err(|error| Failure::of(FailureKind::Failed, &error))?;
    Ok((authority, store))
}

/// Writes the files; returns their paths.
fn write(
    folder: &Path,
    authority: &str,
    certificate: &str,
    key: &str,
    revoked: Option<&str>,
) -> Result<Vec<PathBuf>, Failure> {
    fs::create_dir_all(folder).map_err(|error| Failure::of_file(folder, &error))?;
    let own = [
        ("authority.pem", authority, files::PUBLIC_MODE),
        ("certificate.pem", certificate, files::PUBLIC_MODE),
        ("key.pem", key, files::SECRET_MODE),
    ];
    let list = revoked.map(|list| (revocation::FILE, list, files::PUBLIC_MODE));
    let mut written = Vec::new();
    for (name, text, mode) in own.into_iter().chain(list) {
        let path = folder.join(name);
        files::write_atomically(&path, text.as_bytes(), mode).map_err(|error| Failure::of_file(&path, &error))?;
        written.push(path);
    }
    Ok(written)
}

/// Lists certificates that were issued by hand.
///
/// # Errors
/// If the store cannot be read.
pub async fn list(wanted: CertificatesArgs) -> Result<(), Failure> {
    let Some(folder) = wanted.folder.known_path()? else { return Ok(()) };
    let (_, store) = open(&folder).await?;
    let all = issued::list(store.read(), now_ms()).await.map_err(Failure::trying("reading what was issued"))?;
    store.close().await;
    let mut text = format!("{:<32}  {:<24}  {:<20}  {:<20}  STATE\n", "SERIAL", "NAME", "CREATED", "ENDS");
    for one in &all {
        let state = one.revoked_ms.map_or_else(|| "good".to_owned(), |at| format!("revoked {}", time(at)));
        let (owner, made, ends) = (one.owner(), time(one.issued_ms), time(one.expires_ms));
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{:<32}  {owner:<24}  {made:<20}  {ends:<20}  {state}", one.serial);
    }
    print(&text)
}

fn time(at_ms: i64) -> String {
    let at = OffsetDateTime::from_unix_timestamp(at_ms / 1000).ok();
    at.and_then(|at| at.format(&Rfc3339).ok()).unwrap_or_else(|| at_ms.to_string())
}

fn print(text: &str) -> Result<(), Failure> {
    muster_base::terminal::out(text.as_bytes())
}

/// Revokes a certificate.
///
/// # Errors
/// If there is none of that name, or the store cannot be written.
pub async fn revoke(wanted: RevokeArgs) -> Result<(), Failure> {
    let Some(folder) = wanted.folder.known_path()? else { return Ok(()) };
    let (authority, store) = open(&folder).await?;
    let (which, now) = (wanted.which.as_str(), now_ms());
    let what = "revoking";
    let mut revoked: Vec<String> = issued::revoke(store.write(), which, now)
        .await
        .map_err(Failure::trying(what))?
        .iter()
        .map(|one| format!("revoked {} of {}\n", one.serial, one.owner()))
        .collect();
    if let Ok(id) = which.parse::<HostId>() {
        let mut transaction = store.begin().await.map_err(Failure::trying(what))?;
        let ended = host::revoke(&mut transaction, id, now).await.map_err(Failure::trying(what))?;
        transaction.commit().await.trying(what)?;
        revoked.extend(ended.map(|_| format!("revoked every certificate of host {id}\n")));
    }
    if !revoked.is_empty() {
        revocation::write(&folder, &authority, &store).await.map_err(Failure::trying("the revocation list"))?;
    }
    store.close().await;
    if revoked.is_empty() {
        return Err(Failure::new(FailureKind::Failed, format!("there is no valid certificate {which:?}"))
            .hint("`muster console certificates` lists the certificates that were made with `muster console issue`; for a host, give its id"));
    }
    print(&revoked.concat())
}
