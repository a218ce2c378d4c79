//! Starts a console: first everything is opened and bound, so that errors are reported
//! before anything is changed ([`prepare`]); then everything runs ([`PreparedConsole::start`]).

use std::{
    fs::File,
    io,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError, RwLock, atomic::AtomicU64},
    time::Duration,
};

use axum::Router;
use muster_backup::restored_mark;
use muster_base::{
    clock::now_ms,
    files, folders,
    form::{self, OtherForm},
    reload::other_changes,
};
use muster_guard::{LineLimiter, RecentLogins};
use muster_net::pki;
use muster_series::{SeriesError, SeriesStore};
use muster_sqlite::{index_file, room};
use muster_topics::{diagnostic::Diagnostic, numbered::NumberedKind, role::Identity};
use rustls::{ClientConfig, ServerConfig, server::WebPkiClientVerifier};
use tokio::{
    net::TcpListener,
    sync::{Notify, broadcast, mpsc, watch},
    task::JoinHandle,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::state::SharedPem;
use super::{
    address,
    alert::{
        self,
        outlet::{AlertOutlet, OutletError},
    },
    api,
    authority::{Authority, AuthorityError},
    backup,
    command_signer::SignerAddress,
    config::Config,
    content, desired, dispatch, document_sync, enrol,
    error::Error,
    external::{self, ExternalError, ExternalStores},
    fleet, health, host_plan,
    host_share::HostShares,
    ingest,
    key_ring::KeySources,
    label,
    link::{BrokerUrlError, ConsoleLink, LinkConfig, parse_broker_url},
    notice, operator, prometheus, register,
    revocation::{self, ListError},
    rollout, secret,
    server::{CONNECTIONS_MAX, HttpServer},
    signing_time::SigningTime,
    state::{
        CommandQueue, Console, ConsoleState, ContentFolder, HostMessages, Measurements, PageState, Revocation,
        Settings, StartedBy, Urls,
    },
    status_series,
    store::{self, Store, StoreError},
    upkeep, vitals, web,
};

/// How many events a slow reader may be behind before it loses some.
const CHANGES: usize = 1_024;
/// How often expired data is removed.
const SWEEP: Duration = Duration::from_secs(3600);
/// How long cleared alerts are kept: a quarter of a year, to compare it with the one before.
const ALERTS_KEPT: Duration = Duration::from_secs(92 * 24 * 3600);
/// The lifetime of the console's own certificate for the broker; it is made at each start.
const CLIENT_LIFETIME: Duration = Duration::from_secs(366 * 24 * 3600);
/// The file with the URL of the pages, in the console's folder.
pub(crate) const WEB_URL: &str = "web.url";
/// The store's file in the console's folder.
pub(crate) const STORE: &str = "console.db";
/// The file for measurements in the console's folder.
const SERIES: &str = "series.db";
/// The settings that can be changed while the console runs. The first of `public_names` is in URLs that hosts and operators
/// already have, so it needs a restart; the others affect only its certificates.
const TAKEN: [&str; 5] =
    ["public_names", "host_certificate_days", "command_retention_days", "artifact_max_bytes", "backup"];
/// How long everything may take to end.
const STOP: Duration = Duration::from_secs(10);

/// Why a console cannot start.
#[derive(Debug, thiserror::Error, miette::Diagnostic)]
pub enum ConsoleError {
    /// The folder for its data cannot be created or written.
    #[error("the console's folder {path} cannot be used: {source}")]
    #[diagnostic(help("{}", room::hint_or(source, "make it writable for this user, or choose another with data_dir")))]
    Folder {
        /// The folder.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// Another console uses the same data.
    #[error("another console uses {path}")]
    #[diagnostic(help("stop that one first, or give this one a data_dir of its own"))]
    InUse {
        /// The folder.
        path: PathBuf,
    },
    /// A restore of the folder was interrupted.
    #[error("the restore of {path} from a backup was interrupted")]
    #[diagnostic(help("run the same `muster backup restore` again; it finishes what is left"))]
    UnfinishedRestore {
        /// The folder.
        path: PathBuf,
    },
    /// An address cannot be listened on.
    #[error("cannot listen on {address} for {what}: {source}")]
    #[diagnostic(help("{}", listen_hint(source, setting)))]
    Listen {
        /// What it is for.
        what: &'static str,
        /// The setting with the address.
        setting: &'static str,
        /// The address.
        address: SocketAddr,
        /// The cause.
        source: io::Error,
    },
    /// The authority cannot be opened or created.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Authority(#[from] AuthorityError),
    /// A new certificate or key cannot be used.
    #[error("the console's own certificates cannot be used: {0}")]
    Tls(String),
    /// The keys that secrets are encrypted with cannot be opened.
    #[error(transparent)]
    #[diagnostic(transparent)]
    SecretKeys(#[from] secret::KeyringError),
    /// Another build has written what is in its folder.
    #[error(transparent)]
    #[diagnostic(transparent)]
    OtherForm(#[from] OtherForm),
    /// The store cannot be opened.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Store(#[from] StoreError),
    /// The revocation list cannot be made.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Revocation(#[from] ListError),
    /// An outlet for alerts cannot be used.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Outlet(#[from] OutletError),
    /// An external time-series store cannot be used.
    #[error(transparent)]
    #[diagnostic(transparent)]
    External(#[from] ExternalError),
    /// The broker's address is invalid.
    #[error("{0}")]
    #[diagnostic(help("broker_url in the console's configuration says where the broker is"))]
    BrokerUrl(#[from] BrokerUrlError),
    /// An address for hosts is invalid.
    #[error("{0}")]
    #[diagnostic(help(
        "broker_public_urls and more_console_urls in the console's configuration are URLs, such as \
         mqtts://192.0.2.8:8883 and https://192.0.2.8:7443"
    ))]
    Addresses(String),
    /// Another error; the log has details.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Other(#[from] Error),
}

impl ConsoleError {
    /// What went wrong, for people.
    #[must_use]
    pub fn diagnostic(&self) -> Diagnostic {
        match self {
            Self::Other(error) => error.problem.diagnostic.clone(),
            error => Diagnostic::of(error),
        }
    }
}

fn listen_hint(source: &io::Error, setting: &str) -> String {
    match source.kind() {
        io::ErrorKind::AddrInUse => {
            format!("another program listens there; choose another port with {setting}, or 0 for any")
        }
        io::ErrorKind::AddrNotAvailable => format!("this machine has no such address; choose another with {setting}"),
        io::ErrorKind::PermissionDenied => format!("ports below 1024 need a privilege; choose another with {setting}"),
        _ => format!("choose another address with {setting}"),
    }
}

/// A console that has opened its data and bound its ports, and does nothing yet.
#[derive(Debug)]
pub struct PreparedConsole {
    config: Config,
    started_by: StartedBy,
    authority: Authority,
    secret_keys: secret::Keyring,
    store: Store,
    series: SeriesStore,
    external: ExternalStores,
    revocations: revocation::ListKeeper,
    artifacts: PathBuf,
    web: TcpListener,
    hosts: TcpListener,
    web_addr: SocketAddr,
    hosts_addr: SocketAddr,
    outlets: Vec<AlertOutlet>,
    /// Held as long as the console runs.
    lock: File,
}

/// Opens the data of a console, and binds its ports.
///
/// # Errors
/// If something cannot be used; nothing runs then, and nothing is locked.
pub async fn prepare(config: Config) -> Result<PreparedConsole, ConsoleError> {
    let config = anchored(config)?;
    address::check(&config).map_err(ConsoleError::Addresses)?;
    let outlets = config.alert_outlets.iter().map(AlertOutlet::open).collect::<Result<Vec<_>, _>>()?;
    let dir = config.data_dir.clone();
    let folder = |source| ConsoleError::Folder { path: dir.clone(), source };
    check_form(&dir)?;
    files::make_folder(&dir, files::PRIVATE_FOLDER).map_err(folder)?;
    clear_places(&dir, files::RoleFile::File, &["lock"])?;
    let lock = lock(&dir)?;
    if restored_mark::is_unfinished(&dir) {
        return Err(ConsoleError::UnfinishedRestore { path: dir });
    }
    clear_places(&dir, files::RoleFile::RenewedFile, &["console.db-shm"])?;
    // What is in the log is nowhere else; the others are replaced, or not read.
    clear_places(&dir, files::RoleFile::File, &["console.db-wal", "reserve", revocation::FILE, WEB_URL])?;
    // A copy of the store, if the console was killed while it made a backup.
    backup::remove_folder(&dir.join(backup::WORK)).map_err(folder)?;
    let external = ExternalStores::open(&config)?;
    let web = bind("operators", "web_listen", config.web_listen)?;
    let hosts = bind("hosts", "hosts_listen", config.hosts_listen)?;
    let (web_addr, hosts_addr) = web.local_addr().and_then(|web| Ok((web, hosts.local_addr()?))).map_err(folder)?;
    let authority = open_authority(&dir, config.authority.signer.clone())?;
    authority.complete()?;
    let artifacts = dir.join("artifacts");
    content::prepare_folder(&artifacts).map_err(|source| ConsoleError::Folder { path: artifacts.clone(), source })?;
    let store = Store::open_in(&dir).await?;
    register::restore(&dir, &store, now_ms()).await.map_err(ListError::from)?;
    let series = open_series(&dir.join(SERIES), &config.series()).await;
    let secret_keys = secret::Keyring::open(&dir, store::secret::last_key(store.read()).await?)?;
    store::operator::ensure(store.write(), &operator::admin()?, now_ms()).await?;
    let revocations = revocation::ListKeeper::open(&dir, &authority, &store).await?;
    Ok(PreparedConsole {
        config,
        started_by: StartedBy::Console,
        authority,
        secret_keys,
        store,
        series,
        external,
        revocations,
        artifacts,
        web,
        hosts,
        web_addr,
        hosts_addr,
        outlets,
        lock,
    })
}

/// Checks that no other build has written what is in a console's folder, and changes nothing.
///
/// # Errors
/// If one has.
pub fn check_form(folder: &Path) -> Result<(), OtherForm> {
    [STORE, SERIES].into_iter().try_for_each(|name| form::check_store(&folder.join(name), store::other_form))
}

/// Returns everything that is wrong with a configuration although each value is of its type. It reads the files that outlets and
/// stores name, and opens nothing.
#[must_use]
pub fn problems(config: &Config) -> Vec<Diagnostic> {
    let mut problems = Vec::new();
    problems.extend(parse_broker_url(&config.broker_url).err().map(|error| Diagnostic::of(&ConsoleError::from(error))));
    problems.extend(address::check(config).err().map(|why| Diagnostic::of(&ConsoleError::Addresses(why))));
    problems.extend(anchored(config.clone()).err().map(|error| Diagnostic::of(&error)));
    let outlets = config.alert_outlets.iter().filter_map(|outlet| AlertOutlet::open(outlet).err());
    problems.extend(outlets.map(|error| Diagnostic::of(&error)));
    problems.extend(external::problems(config).iter().map(|error| Diagnostic::of(error)));
    problems
}

/// Makes the folder absolute: the revocation command gets a path in it.
fn anchored(config: Config) -> Result<Config, ConsoleError> {
    match folders::absolute(&config.data_dir) {
        Ok(data_dir) => Ok(Config { data_dir, ..config }),
        Err(source) => Err(ConsoleError::Folder { path: config.data_dir, source }),
    }
}

/// Makes sure that files which the console creates can be created. For others, such as the store and the authority's
/// keys, an operator has to decide what becomes of what is in their place.
fn clear_places(dir: &Path, kind: files::RoleFile, names: &[&str]) -> Result<(), ConsoleError> {
    files::clear_places(dir, kind, names).map_err(|source| ConsoleError::Folder { path: dir.to_owned(), source })
}

/// Opens the authority of a console's folder. It is created only in a folder that has served no fleet yet: hosts trust
/// only the authority that they joined.
pub(crate) fn open_authority(dir: &Path, signer: Option<SignerAddress>) -> Result<Authority, AuthorityError> {
    let (folder, sources) = (dir.join("authority"), KeySources::new(signer));
    match dir.join(STORE).exists() || dir.join(register::FILE).exists() {
        true => Authority::open(&folder, sources),
        false => Authority::open_or_create(&folder, sources),
    }
}

/// Opens the store for measurements. If it cannot be opened the console runs without: everything else is more important
/// than charts.
async fn open_series(path: &Path, settings: &muster_series::StoreSettings) -> SeriesStore {
    use sqlx::migrate::MigrateError::{VersionMissing, VersionTooNew};
    let opened = match index_file::prepare(path).await {
        Ok(_index) => SeriesStore::open_with(path, settings).await,
        Err(error) => Err(SeriesError::Sql(sqlx::Error::Io(error))),
    };
    let error = match opened {
        Ok(series) => return series,
        Err(error) => error,
    };
    let (meaning, hint) = match &error {
        _ if path.is_dir() => ("its path is a folder", "move that folder away, and restart the console"),
        SeriesError::Migrate(VersionMissing(_) | VersionTooNew(..)) => (
            "it is of a newer version of muster",
            "start that version; or move the file away, with its -wal and -shm, and restart the console",
        ),
        SeriesError::Sql(error) if room::is_missing(error) => {
            ("its disk is full", "free space on it, and restart the console")
        }
        _ => ("it cannot be opened", "make it writable for the console's user, and restart the console"),
    };
    let reason = format!("{}: {meaning} ({error})", path.display());
    tracing::error!(hint, "the time-series store is left out, so there are no charts: {reason}");
    SeriesStore::left_out(path, Diagnostic::new(reason).with_hint(hint))
}

/// Locks the data against a second console.
fn lock(dir: &Path) -> Result<File, ConsoleError> {
    let folder = |source| ConsoleError::Folder { path: dir.to_owned(), source };
    files::take_lock(&dir.join("lock")).map_err(folder)?.ok_or_else(|| ConsoleError::InUse { path: dir.to_owned() })
}

fn bind(what: &'static str, setting: &'static str, address: SocketAddr) -> Result<TcpListener, ConsoleError> {
    let error = |source| ConsoleError::Listen { what, setting, address, source };
    muster_guard::listen(address).map_err(error)
}

impl PreparedConsole {
    /// The authority, for the caller that starts a broker for this console.
    #[must_use]
    pub fn authority(&self) -> &Authority {
        &self.authority
    }

    /// The revocation list for the same broker, now and on each change.
    #[must_use]
    pub fn revocations(&self) -> SharedPem {
        self.revocations.list()
    }

    /// The address of the pages and API.
    #[must_use]
    pub fn web_addr(&self) -> SocketAddr {
        self.web_addr
    }

    /// The address for hosts.
    #[must_use]
    pub fn hosts_addr(&self) -> SocketAddr {
        self.hosts_addr
    }

    /// Sets what started this console, if not `muster console`.
    #[must_use]
    pub fn started_by(mut self, started_by: StartedBy) -> Self {
        self.started_by = started_by;
        self
    }

    /// Sets the broker's URL, for a caller that started the broker after preparing this console, on a port that was
    /// unknown before. `public` is the URL for hosts.
    #[must_use]
    pub fn with_broker(mut self, url: String, public: Option<String>) -> Self {
        self.config.broker_url = url;
        self.config.broker_public_urls = public.into_iter().collect();
        self
    }

    fn urls(&self) -> Urls {
        let scheme = if self.web_addr.ip().is_loopback() { "http" } else { "https" };
        let at = |address: SocketAddr| format!("{}:{}", self.config.host_in_urls(address.ip()), address.port());
        Urls {
            web: format!("{scheme}://{}", at(self.web_addr)),
            hosts: format!("https://{}", at(self.hosts_addr)),
            broker: self.config.broker_url_for_hosts().to_owned(),
        }
    }

    /// Starts to serve and to connect.
    ///
    /// # Errors
    /// If the broker's address is invalid, or a certificate cannot be made.
    pub async fn start(self) -> Result<RunningConsole, ConsoleError> {
        let urls = self.urls();
        let address = parse_broker_url(&self.config.broker_url)?;
        let tls = TlsConfigs::new(&self.authority, &self.config)?;
        let speaks_tls = !self.web_addr.ip().is_loopback();
        let (dispatch, dispatch_events) = mpsc::channel(dispatch::EVENTS);
        let (link, handle, queues) = ConsoleLink::new(dispatch.clone(), self.config.host_measurements_max_bytes_s());
        let link_config = LinkConfig {
            id: self.config.id.clone(),
            address,
            prefix: self.config.prefix.clone(),
            tls: tls.link.subscribe(),
            epoch: self.store.next_epoch().await?,
        };
        // For `muster login --new-link`, which is another process.
        let path = self.config.data_dir.join(WEB_URL);
        match files::write_atomically(&path, urls.web.as_bytes(), files::PUBLIC_MODE) {
            Err(error) if room::is_missing_for(&error) => tracing::error!(
                %error, file = %path.display(),
                consequence = "`muster login --new-link` may print another address",
                "the address of the pages is not written",
            ),
            written => written.map_err(|source| ConsoleError::Folder { path: path.clone(), source })?,
        }
        match register::write_mark(&self.config.data_dir, &self.store).await {
            Err(error) if error.is_full() => tracing::error!(
                %error,
                consequence = "a store that is set back is detected only if it is older than at the previous start",
                "the mark of the store cannot be written",
            ),
            marked => marked.map_err(ListError::from)?,
        }
        let signing_time = SigningTime::new(self.store.signed_ms().await?, now_ms());
        let time = super::certain_time::open(&self.store, now_ms()).await?;
        let shutdown = CancellationToken::new();
        let generations = store::alert::generations(self.store.read()).await?;
        let label_generations = store::label::generations(self.store.read()).await?;
        let generation = self.authority.keys().state.generation;
        let key_generations = store::alert::Generations { all: generation, ..Default::default() };
        let has_labels = store::label::heard(self.store.read()).await?;
        let addresses = address::FleetAddresses::open(&self.config, &urls, &self.store, now_ms()).await?;
        let desired = desired::DesiredState::open(&self.store).await?;
        let shared = Arc::new(ConsoleState {
            settings: Settings {
                current: RwLock::new(Arc::new(self.config.clone())),
                started_with: self.config,
                started_by: self.started_by,
                urls,
            },
            authority: self.authority,
            store: self.store,
            measurements: Measurements {
                series: self.series,
                external: self.external,
                received: AtomicU64::new(0),
                latest: fleet::LatestMeasurements::default(),
            },
            content: ContentFolder {
                folder: self.artifacts,
                lock: tokio::sync::Mutex::default(),
                damaged: content::DamagedContent::default(),
            },
            secret_keys: RwLock::new(self.secret_keys),
            hosts: HostMessages {
                link: handle,
                owed_acks: ingest::OwedAcks::default(),
                rules: document_sync::DocumentSync::new(generations),
                labels: label::Labels::new(document_sync::DocumentSync::new(label_generations), has_labels),
                keys: document_sync::DocumentSync::new(key_generations),
                rotating: tokio::sync::Mutex::default(),
                addresses,
                desired,
                rollouts: rollout::Rollouts::default(),
                plans: host_plan::Plans::default(),
                labelling: tokio::sync::Mutex::default(),
                signing_time,
                clocks: upkeep::HostClocks::default(),
                shares: HostShares::default(),
            },
            time,
            commands: CommandQueue { dispatch, held_back: Mutex::default() },
            revocation: Revocation {
                requested: Notify::new(),
                list: self.revocations.list(),
                told_broker: Mutex::default(),
            },
            tls,
            backups: backup::BackupState::default(),
            notices: notice::Notices::default(),
            pages: PageState { changes: broadcast::channel(CHANGES).0, tallies: super::web::Tallies::default() },
            shutdown: shutdown.clone(),
        });
        shared.measurements.series.set_time_max(shared.time.now());
        if let Some(why) = shared.measurements.series.why_left_out() {
            let message = why
                .clone()
                .within("the time-series store is left out: there are no charts, and hosts keep their measurements");
            shared.notices.raise(notice::NoticeKind::SeriesLeftOut, message, now_ms());
        }
        let console = Console { shared: Arc::clone(&shared) };
        // Before anybody can ask for a change.
        console.look_for_artifacts().await?;
        console.open_deployments().await?;
        let tasks = TaskTracker::new();
        let of_secrets = console.clone();
        tasks.spawn(async move { of_secrets.finish_secret_key_rotation().await });
        tasks.spawn(dispatch::run(Arc::clone(&shared), dispatch_events, shutdown.clone()));
        tasks.spawn(ingest::run(Arc::clone(&shared), queues.ingest, shutdown.clone()));
        tasks.spawn(ingest::acknowledge(Arc::clone(&shared), shutdown.clone()));
        for kind in NumberedKind::ALL {
            tasks.spawn(document_sync::run(Arc::clone(&shared), kind, shutdown.clone()));
        }
        tasks.spawn(desired::sync::run(console.clone(), shutdown.clone()));
        tasks.spawn(desired::publish::run(Arc::clone(&shared), shutdown.clone()));
        tasks.spawn(rollout::engine::run(console.clone(), shutdown.clone()));
        tasks.spawn(desired::alerts::run(Arc::clone(&shared), shutdown.clone()));
        if let Err(error) = AlertOutlet::forget_others(&self.outlets, &shared.store).await {
            tracing::warn!(%error, hint = error.hint(), "old records of alert outlets cannot be deleted");
        }
        for outlet in self.outlets {
            tasks.spawn(alert::outlet::run(Arc::clone(&shared), outlet, shutdown.clone()));
        }
        for store in shared.measurements.external.stores() {
            tasks.spawn(external::run(Arc::clone(store), shutdown.clone()));
        }
        tasks.spawn(backup::schedule::run(Arc::clone(&shared), shutdown.clone()));
        tasks.spawn(upkeep::run(Arc::clone(&shared), shutdown.clone()));
        tasks.spawn(upkeep::watch_signer(Arc::clone(&shared), shutdown.clone()));
        tasks.spawn(vitals::run(Arc::clone(&shared), shutdown.clone()));
        tasks.spawn(ingest::record(Arc::clone(&shared), queues.recorder, shutdown.clone()));
        tasks.spawn(status_series::run(Arc::clone(&shared), shutdown.clone()));
        tasks.spawn(fleet::record(Arc::clone(&shared), shutdown.clone()));
        tasks.spawn(link.run(link_config, shutdown.clone()));
        tasks.spawn(revocation::run(Arc::clone(&shared), self.revocations, shutdown.clone()));
        tasks.spawn(sweep(Arc::clone(&shared), shutdown.clone()));
        let stop = shutdown.clone();
        tasks.spawn(async move { stop.run_until_cancelled(LineLimiter::of_process().run()).await });
        muster_guard::make_room(CONNECTIONS_MAX, &self.web);
        let web = HttpServer {
            name: "web",
            listener: self.web,
            tls: speaks_tls.then(|| shared.tls.web.subscribe()),
            router: web_router(&console),
        };
        let hosts = HttpServer {
            name: "hosts",
            listener: self.hosts,
            tls: Some(shared.tls.hosts.subscribe()),
            router: enrol::router(console.clone()).merge(health::router(console.clone())),
        };
        let logins = Arc::<Mutex<RecentLogins>>::default();
        let servers = [web, hosts].map(|server| tokio::spawn(server.run(Arc::clone(&logins), shutdown.clone())));
        tasks.close();
        tracing::info!(web = %shared.settings.urls.web, hosts = %shared.settings.urls.hosts, "the console is ready");
        let (web_addr, hosts_addr) = (self.web_addr, self.hosts_addr);
        Ok(RunningConsole { console, web_addr, hosts_addr, tasks, servers, shutdown, lock: self.lock })
    }
}

/// TLS of the listeners, and of the connection to the broker: new connections take the present one.
#[derive(Debug)]
pub(super) struct TlsConfigs {
    web: watch::Sender<Arc<ServerConfig>>,
    hosts: watch::Sender<Arc<ServerConfig>>,
    link: watch::Sender<Arc<ClientConfig>>,
}

impl TlsConfigs {
    fn new(authority: &Authority, config: &Config) -> Result<Self, ConsoleError> {
        let (web, hosts) = servers_tls(authority, config)?;
        let link = Arc::new(client_tls(authority, config)?);
        Ok(Self { web: watch::Sender::new(web), hosts: watch::Sender::new(hosts), link: watch::Sender::new(link) })
    }

    /// Makes new certificates, with the present roots and names. Nothing changes if one cannot be made.
    pub(super) fn renew(&self, authority: &Authority, config: &Config) -> Result<(), ConsoleError> {
        let (web, hosts) = servers_tls(authority, config)?;
        let link = Arc::new(client_tls(authority, config)?);
        self.web.send_replace(web);
        self.hosts.send_replace(hosts);
        self.link.send_replace(link);
        Ok(())
    }
}

/// Returns TLS for the connection to the broker, with a new certificate.
fn client_tls(authority: &Authority, config: &Config) -> Result<ClientConfig, ConsoleError> {
    let identity = Identity::Console(config.id.clone());
    let (certificate, key) = authority.issue_client(&identity, CLIENT_LIFETIME)?;
    pki::client(&authority.certificate_pem(), &certificate, &key).map_err(tls_error)
}

/// Returns TLS for both listeners, with a new certificate for the presently configured names.
fn servers_tls(authority: &Authority, config: &Config) -> Result<(Arc<ServerConfig>, Arc<ServerConfig>), ConsoleError> {
    let (certificate, key) = authority.issue_server(&config.certificate_names())?;
    let of = |hosts| server_tls(authority, &certificate, &key, hosts);
    Ok((of(false)?, of(true)?))
}

/// Returns pages and APIs for one listener.
pub(super) fn web_router(console: &Console) -> Router {
    web::router(console.clone())
        .merge(health::router(console.clone()))
        .merge(api::router(console.clone()))
        .merge(prometheus::router(console.clone()))
}

fn tls_error(error: impl std::fmt::Display) -> ConsoleError {
    ConsoleError::Tls(error.to_string())
}

/// Returns TLS for a listener. The one for hosts requests client certificates, and verifies them if presented.
fn server_tls(authority: &Authority, chain: &str, key: &str, hosts: bool) -> Result<Arc<ServerConfig>, ConsoleError> {
    let chain = pki::certificates("the console's certificate", chain).map_err(tls_error)?;
    let key = pki::private_key("the console's key", key).map_err(tls_error)?;
    let builder = ServerConfig::builder_with_provider(pki::provider())
        .with_safe_default_protocol_versions()
        .map_err(tls_error)?;
    let builder = if hosts {
        let roots = Arc::new(pki::roots(&authority.certificate_pem()).map_err(tls_error)?);
        let verifier = WebPkiClientVerifier::builder_with_provider(roots, pki::provider()).allow_unauthenticated();
        builder.with_client_cert_verifier(verifier.build().map_err(tls_error)?)
    } else {
        builder.with_no_client_auth()
    };
    Ok(Arc::new(builder.with_single_cert(chain, key).map_err(tls_error)?))
}

/// Removes expired data regularly.
async fn sweep(shared: Arc<ConsoleState>, shutdown: CancellationToken) {
    loop {
        if let Err(error) = sweep_once(&shared).await {
            tracing::error!(%error, hint = error.hint(), "expired records cannot be deleted");
        }
        tokio::select! {
            () = shutdown.cancelled() => return,
            () = tokio::time::sleep(SWEEP) => (),
        }
    }
}

/// Removes what has certainly been over for as long as it is kept.
pub(super) async fn sweep_once(shared: &ConsoleState) -> Result<(), StoreError> {
    let (now, store) = (shared.time.now(), &shared.store);
    let before = dispatch::before(now, shared.current().command_retention());
    let commands = store::command::sweep(store.write(), before).await?;
    store::command::forget_clear_secrets(store.write()).await?;
    let tokens = store::token::sweep(store.write(), before).await?;
    let secrets = store::operator::sweep(store.write(), now).await?;
    let issued = store::issued::sweep(store.write(), before).await?;
    let issued = issued + store::removed::sweep(store.write(), now).await?;
    let issued = issued + store::given::sweep(store.write()).await?;
    if store::alert::end_own(store.write(), dispatch::before(now, alert::OWN_HOLDS), now).await? > 0 {
        shared.changed(super::page_change::PageChange::Alert(None));
    }
    let alerts = store::alert::sweep(store.write(), dispatch::before(now, ALERTS_KEPT)).await?;
    let given = store.give_back().await?;
    if given > 0 {
        tracing::info!(bytes = given, "the store frees space of deleted records");
    }
    if (commands, tokens, secrets, issued, alerts) != (0, 0, 0, 0, 0) {
        tracing::info!(commands, tokens, secrets, issued, alerts, "deleted expired records");
    }
    Ok(())
}

/// Opens everything, binds the ports, and starts to serve and to connect.
///
/// # Errors
/// If something fails; nothing runs then.
pub async fn start(config: Config) -> Result<RunningConsole, ConsoleError> {
    prepare(config).await?.start().await
}

/// A running console.
#[derive(Debug)]
pub struct RunningConsole {
    console: Console,
    web_addr: SocketAddr,
    hosts_addr: SocketAddr,
    tasks: TaskTracker,
    servers: [JoinHandle<()>; 2],
    shutdown: CancellationToken,
    lock: File,
}

impl RunningConsole {
    /// The handle that pages and API use.
    #[must_use]
    pub fn console(&self) -> Console {
        self.console.clone()
    }

    /// The address of the pages and API.
    #[must_use]
    pub fn web_addr(&self) -> SocketAddr {
        self.web_addr
    }

    /// The address for hosts.
    #[must_use]
    pub fn hosts_addr(&self) -> SocketAddr {
        self.hosts_addr
    }

    /// Reloads the configuration as far as possible while the console runs: new certificates for its listeners in any
    /// case, and [`TAKEN`]; and checks for revocations. Returns the other settings that have changed, which need a
    /// restart.
    ///
    /// # Errors
    /// If a certificate cannot be made; nothing has changed then.
    pub fn reload(&self, config: Config) -> Result<Vec<String>, ConsoleError> {
        let shared = &self.console.shared;
        let config = anchored(config)?;
        shared.tls.renew(&shared.authority, &config)?;
        let mut others = other_changes(&shared.settings.started_with, &config, &TAKEN);
        if shared.settings.started_with.public_names.first() != config.public_names.first() {
            others.push("public_names".to_owned());
        }
        *shared.settings.current.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(config);
        shared.revocation.requested.notify_one();
        Ok(others)
    }

    /// Does the same with the present configuration.
    ///
    /// # Errors
    /// As for [`RunningConsole::reload`].
    pub fn renew(&self) -> Result<(), ConsoleError> {
        let config = Config::clone(&self.console.shared.current());
        self.reload(config).map(drop)
    }

    /// The authority.
    #[must_use]
    pub fn authority(&self) -> &Authority {
        &self.console.shared.authority
    }

    /// The URL of the pages.
    #[must_use]
    pub fn web_url(&self) -> String {
        self.console.web_url().to_owned()
    }

    /// The revocation list, now and on each change.
    #[must_use]
    pub fn revocations(&self) -> SharedPem {
        self.console.shared.revocation.list.clone()
    }

    /// Stops: requests finish, the broker is notified, the stores are closed, the data is unlocked.
    pub async fn stop(self) {
        self.shutdown.cancel();
        let ended = async {
            for server in self.servers {
                let _ = server.await;
            }
            self.tasks.wait().await;
        };
        if tokio::time::timeout(STOP, ended).await.is_err() {
            tracing::warn!("the console's tasks do not end and are abandoned");
        }
        // After the recorder, which has stored by now what it took.
        self.console.shared.measurements.series.stop().await;
        self.console.shared.store.close().await;
        index_file::release_removed();
        drop(self.lock);
        tracing::info!("the console has stopped");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::config;

    #[tokio::test]
    async fn console_restarts_on_the_same_data() {
        let dir = tempfile::tempdir().unwrap();
        let first = start(config(dir.path())).await.unwrap();
        let fingerprint = first.console().shared.authority.fingerprint();
        assert_ne!(first.web_addr().port(), 0);
        first.stop().await;
        let second = start(config(dir.path())).await.unwrap();
        assert_eq!(second.console().shared.authority.fingerprint(), fingerprint);
        second.stop().await;
    }

    #[tokio::test]
    async fn full_disk_without_reserve_is_served_read_only() {
        let disk = muster_test_support::disk::Disk::ext4(96, &[]);
        start(config(disk.path())).await.unwrap().stop().await;
        let folder = disk.path().join("console");
        while std::fs::remove_file(folder.join("reserve")).is_ok() {
            disk.fill();
        }
        let running = start(config(disk.path())).await.unwrap();
        running.console().status().await.unwrap();
        assert!(running.console().units(None).await.unwrap().is_empty());
        running.stop().await;
        disk.empty();
        let running = start(config(disk.path())).await.unwrap();
        assert_eq!(std::fs::read_to_string(folder.join(WEB_URL)).unwrap(), running.web_url());
        running.stop().await;
    }

    #[tokio::test]
    async fn first_start_on_a_full_disk_asks_for_room() {
        let disk = muster_test_support::disk::Disk::new(8);
        std::fs::create_dir_all(disk.path().join("console/authority")).unwrap();
        disk.fill();
        let error = prepare(config(disk.path())).await.unwrap_err().diagnostic().to_string();
        assert!(error.contains("free space on that disk") && !error.contains("may read"), "{error}");
    }

    #[tokio::test]
    async fn a_second_console_on_the_same_data_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let first = start(config(dir.path())).await.unwrap();
        let second = prepare(config(dir.path())).await;
        assert!(matches!(second, Err(ConsoleError::InUse { .. })), "{second:?}");
        first.stop().await;
    }

    #[tokio::test]
    async fn taken_port_is_named_with_its_setting() {
        let dir = tempfile::tempdir().unwrap();
        let taken = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let config = Config { hosts_listen: taken.local_addr().unwrap(), ..config(dir.path()) };
        let error = prepare(config.clone()).await.unwrap_err();
        assert!(matches!(error, ConsoleError::Listen { what: "hosts", .. }));
        assert!(
            error.diagnostic().hint.is_some_and(
                |hint| hint.starts_with("another program listens there; choose another port with hosts_listen")
            ),
            "{error}"
        );
        assert!(!dir.path().join("console/console.db").exists(), "nothing half made");
        drop(taken);
        prepare(config).await.unwrap();
    }

    #[tokio::test]
    async fn lost_authority_is_not_replaced() {
        let dir = tempfile::tempdir().unwrap();
        start(config(dir.path())).await.unwrap().stop().await;
        let authority = dir.path().join("console/authority");
        for kept in [None, Some("register.json")] {
            for name in ["authority.key", "authority.pem", "signing.key"] {
                let _ = std::fs::remove_file(authority.join(name));
            }
            if kept.is_some() {
                std::fs::remove_file(dir.path().join("console/console.db")).unwrap();
            }
            let error = prepare(config(dir.path())).await.unwrap_err();
            assert!(matches!(error, ConsoleError::Authority(AuthorityError::Missing { .. })), "{error}");
            assert!(!authority.join("authority.key").exists());
        }
    }

    #[tokio::test]
    async fn unusable_series_store_is_disabled() {
        for broken in ["folder", "newer"] {
            let dir = tempfile::tempdir().unwrap();
            start(config(dir.path())).await.unwrap().stop().await;
            let path = dir.path().join("console/series.db");
            match broken {
                "folder" => {
                    std::fs::remove_file(&path).unwrap();
                    std::fs::create_dir(&path).unwrap();
                }
                _ => {
                    let database = sqlx::SqlitePool::connect(path.to_str().unwrap()).await.unwrap();
                    let newer = "INSERT INTO _sqlx_migrations VALUES (9999, 'later', 0, 1, x'00', 0)";
                    sqlx::query(newer).execute(&database).await.unwrap();
                    database.close().await;
                }
            }
            let running = start(config(dir.path())).await.unwrap();
            let console = running.console();
            console.status().await.unwrap();
            let refused = console.series("muster_host_load_1m", None, 1).await.unwrap_err();
            assert_eq!((refused.status, refused.problem.code.as_str()), (503, "series_left_out"), "{broken}");
            let alerts = console.alerts(store::alert::Which { limit: 9, ..Default::default() }).await.unwrap();
            let told = &alerts[0].alert.diagnostic;
            assert_eq!(alerts[0].alert.rule.as_str(), "console-series", "{broken}");
            assert!(told.cause.contains(path.to_str().unwrap()) && told.hint.is_some(), "{told}");
            assert_eq!(console.alert_count(None).await.unwrap(), 1, "{broken}");
            running.stop().await;
        }
    }

    #[tokio::test]
    async fn uncreatable_folder_is_named() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("console"), "a file").unwrap();
        let error = prepare(config(dir.path())).await.unwrap_err();
        assert!(matches!(error, ConsoleError::Folder { .. }), "{error}");
        assert!(error.diagnostic().hint.is_some(), "{error}");
    }

    #[tokio::test]
    async fn reload_applies_changeable_settings() {
        let dir = tempfile::tempdir().unwrap();
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let before = Config { public_names: names(&["fleet.example"]), ..config(dir.path()) };
        let running = start(before.clone()).await.unwrap();
        assert_eq!(running.reload(before.clone()).unwrap(), Vec::<String>::new());
        let public_names = names(&["fleet.example", "fleet2.example"]);
        let after = Config { artifact_max_bytes: 7, public_names, ..before.clone() };
        assert_eq!(running.reload(after).unwrap(), Vec::<String>::new());
        assert_eq!(running.console().shared.current().artifact_max_bytes, 7);
        let after = Config { broker_url: "mqtts://elsewhere:8883".to_owned(), metric_days: 15, ..before };
        assert_eq!(running.reload(after.clone()).unwrap(), ["broker_url", "metric_days"]);
        let after = Config { public_names: names(&["fleet2.example"]), ..after };
        assert_eq!(running.reload(after).unwrap(), ["broker_url", "metric_days", "public_names"]);
        running.stop().await;
    }

    #[tokio::test]
    async fn invalid_broker_address_is_refused_at_start() {
        let dir = tempfile::tempdir().unwrap();
        let config = Config { broker_url: "tcp://x".to_owned(), ..config(dir.path()) };
        let error = start(config).await.unwrap_err();
        assert!(matches!(error, ConsoleError::BrokerUrl(_)), "{error}");
    }
}
