//! The console: one per fleet. It is the authority that hosts join, signs and sends commands, keeps
//! what hosts say, and shows it in an API and in pages.
//!
//! Modules, in reading order:
//!
//! - [`config`]; [`start`]: everything is opened and bound before anything is said to be ready
//! - [`authority`]: the root certificate and the key for commands
//! - [`store`]: what is remembered
//! - [`revocation`]: the list of certificates that are good no more; [`register`]: of all that were given, for a lost store
//! - [`enrol`]: the interface for hosts (HTTPS): join, renew, fetch content
//! - [`link`]: the connection to the broker
//! - [`ingest`]: what hosts say, from the link into the store, and then acknowledged
//! - [`dispatch`]: an operator's wish becomes a signed command, which goes out until it is answered
//! - `apply`: units become what documents say; `realm`: what realms are; `alert`: what hosts look at; `label`: what operators call them (`telling`: until they have heard it); [`content`]: artifacts and configs; [`operator`]: people, and how they sign in
//! - `muster_series`, a crate of its own: measurements over time; `standing`: how hosts and alerts stand, as such
//! - [`fleet`]: what hosts measured last, and what all of them come to; `vitals`: the console measures itself; [`external`]: stores elsewhere
//! - `upkeep`: the console looks after itself; `notice`: what is wrong with it
//! - [`server`]: the listeners; `health`: whether it is well, for anybody; [`api`](self::api): the REST API; [`prometheus`]: Prometheus's API; [`web`]: the pages
//!
//! Tasks: the link (one connection to the broker), ingest and recorder (each takes from the link
//! through a bounded queue and stores in batches), who acknowledges what is stored, who tells rules and who labels, who writes how hosts and alerts stand, who feeds each store elsewhere, who measures fleet and console, dispatch (owns the open commands), the two
//! listeners, the keeper of the revocation list, and a sweeper. [`Console`] is the handle on all of them that API and pages use.
//!
//! **Invariant: nothing is acknowledged, to a broker or to a host, before it is committed.**
//!
//! **Invariant: what a host says is attributed to the host whose topic it came on**, never to a name
//! in the payload.

pub mod alert;
mod api;
mod apply;
pub mod authority;
pub mod config;
mod content;
mod dated;
pub(crate) mod dispatch;
mod enrol;
mod error;
pub mod external;
pub mod fleet;
mod health;
pub(crate) mod ingest;
mod label;
mod link;
mod list;
mod notice;
pub(crate) mod operator;
mod prometheus;
mod realm;
pub mod register;
mod remove;
pub mod revocation;
mod server;
mod standing;
pub(crate) mod start;
pub mod store;
mod telling;
#[cfg(test)]
mod testing;
mod upkeep;
mod vitals;

pub mod web;

use std::{
    collections::{HashMap, HashSet},
    path::PathBuf,
    str::FromStr,
    sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, atomic::AtomicU64},
};

use axum::http::StatusCode;
use muster_series::SeriesStore;
use muster_topics::{
    Millis,
    name::{CommandId, Digest, HostId, Name, UnitName},
    select::HostSelect,
};
use tokio::sync::{Notify, broadcast, mpsc};
use tokio_util::sync::CancellationToken;

use self::{
    authority::Authority,
    config::Config,
    link::LinkHandle,
    store::{Store, command::Which, host, ids::Ids, pick::Among},
};
pub use self::{
    error::Error,
    start::{Prepared, RunningConsole, StartError, prepare, start},
};
use crate::{api as types, clock::now_ms};

/// The most commands that one listing gives.
const COMMANDS_MAX: u32 = 500;
/// How long a token for joining may be used, unless it is said; and at most.
const TOKEN_TTL_S: u64 = 3600;
const TOKEN_TTL_MAX_S: u64 = 30 * 24 * 3600;
/// The most points of one series in an answer: more than a screen has columns.
const POINTS_MAX: usize = 11_000;

/// Something changed that a page may show.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Change {
    /// A host: joined, presence, state.
    Host(HostId),
    /// A unit of a host.
    Unit(HostId, UnitName),
    /// A command: created, or a host came further, or there is more output.
    Command(CommandId),
    /// New measurements of a host.
    Metrics(HostId),
    /// Alerts of a host, or silences of all.
    Alert(Option<HostId>),
}

/// The running console; a handle that can be cloned.
#[derive(Clone, Debug)]
pub struct Console {
    shared: Arc<Shared>,
}

/// What every part of the console shares.
#[derive(Debug)]
struct Shared {
    /// As it was at the start.
    config: Config,
    /// As it was last read: what of it can change while the console runs is looked up here.
    current: RwLock<Arc<Config>>,
    started_by: StartedBy,
    urls: Urls,
    authority: Authority,
    store: Store,
    series: SeriesStore,
    external: external::External,
    /// Values that hosts have sent since the start.
    received: AtomicU64,
    artifacts: PathBuf,
    /// Held by whoever labels, orders or removes artifacts and configs.
    content: tokio::sync::Mutex<()>,
    link: LinkHandle,
    owed: ingest::Owed,
    /// The rules for alerts that hosts should have.
    tellings: telling::Tellings,
    labels: label::Labels,
    /// Held by whoever changes labels of hosts.
    labelling: tokio::sync::Mutex<()>,
    fleet: fleet::Fleet,
    dispatch: mpsc::Sender<dispatch::Event>,
    dated: dated::Dated,
    host_clocks: upkeep::HostClocks,
    /// Open commands of which the store says that they have not gone out to anybody.
    held_back: Mutex<HashSet<CommandId>>,
    notices: notice::Notices,
    changes: broadcast::Sender<Change>,
    tallies: web::Tallies,
    /// Something was revoked: the list is to be made anew.
    revoked: Notify,
    revocations: revocation::List,
    /// The serial numbers that `revocation_command` has succeeded with.
    told_broker: Mutex<HashSet<String>>,
    shutdown: CancellationToken,
}

impl Shared {
    /// Open commands of which the store says that they have not gone out to anybody.
    fn held_back(&self) -> MutexGuard<'_, HashSet<CommandId>> {
        // Nobody leaves it half changed.
        self.held_back.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The configuration as it was last read.
    fn current(&self) -> Arc<Config> {
        Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner))
    }
}

/// What a console was started by: it decides which words lead a person on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartedBy {
    /// `muster up`.
    Up,
    /// `muster console`.
    Console,
}

impl StartedBy {
    /// How other machines get to reach what listens for hosts.
    fn listen_hint(self) -> &'static str {
        match self {
            Self::Up => {
                "stop `muster up` and start it with `--listen ADDRESS`, an address of this machine that the other one reaches; \
                 then make a new token"
            }
            Self::Console => {
                "set `hosts_listen` and, if the broker's address is this machine's alone, `broker_public_url` in the console's \
                 configuration, start the console again, and make a new token"
            }
        }
    }
}

/// Where the parts of the installation are reached.
#[derive(Clone, Debug)]
struct Urls {
    web: String,
    hosts: String,
    broker: String,
}

impl Console {
    /// The installation at a glance.
    pub async fn status(&self) -> Result<types::Status, Error> {
        let (hosts, _) = host::count(self.shared.store.read()).await?;
        let presences = self.presences().await?;
        Ok(types::Status {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            broker_connected: self.shared.link.is_connected(),
            hosts,
            hosts_online: presences.online,
            hosts_unknown: presences.unknown,
            broker_url: self.shared.urls.broker.clone(),
            console_url: self.shared.urls.hosts.clone(),
        })
    }

    /// All hosts, sorted by hostname.
    pub async fn hosts(&self) -> Result<Vec<types::Host>, Error> {
        let hosts = host::list(self.shared.store.read(), None).await?;
        self.with_labels(hosts.into_iter().map(|host| self.with_what_is_known(host)).collect()).await
    }

    /// Hosts, as they are asked for.
    pub async fn hosts_listed(&self, wanted: &types::HostListing) -> Result<Vec<types::Host>, Error> {
        let only = self.picked(wanted.select.as_ref()).await?;
        let hosts = host::first(self.shared.store.read(), only.as_deref(), wanted.sort, wanted.limit).await?;
        self.with_labels(hosts.into_iter().map(|host| self.with_what_is_known(host)).collect()).await
    }

    /// The hosts that an expression picks; nothing if there is none.
    pub(in crate::console) async fn picked(&self, select: Option<&HostSelect>) -> Result<Option<Vec<HostId>>, Error> {
        let Some(select) = select else { return Ok(None) };
        let (db, with_units) = (self.shared.store.read(), select.asks_units());
        let found = store::pick::hosts(db, Among::All, with_units, &|host| select.picks(host)).await?;
        Ok(Some(found.into_iter().map(|(host, _)| host).collect()))
    }

    /// Units, as they are asked for.
    pub async fn units_listed(&self, wanted: &types::UnitListing) -> Result<Vec<types::Unit>, Error> {
        let host = match &wanted.host {
            Some(host) => Some(self.resolve_host(host).await?),
            None => None,
        };
        let units = host::units(self.shared.store.read(), host, None).await?;
        Ok(list::units(units, wanted))
    }

    /// Some of the hosts that are looked for, sorted by hostname, and how many there are in all.
    pub async fn hosts_page(
        &self,
        search: &host::Search,
        offset: u64,
        limit: u32,
    ) -> Result<(Vec<types::Host>, u64), Error> {
        // Of nobody is known that it is there, while there is no connection to the broker: not even who counted as away.
        if search.online.is_some() && self.shared.link.lost_ms().is_some() {
            return Ok((Vec::new(), 0));
        }
        let (hosts, count) = host::page(self.shared.store.read(), search, offset, limit).await?;
        let hosts = hosts.into_iter().map(|host| self.with_what_is_known(host)).collect();
        Ok((self.with_labels(hosts).await?, count))
    }

    /// Units that are held, failed, or wait to be started again: the first ones, and how many there are.
    pub async fn troubled_units(&self, limit: u32) -> Result<(Vec<types::Unit>, u64), Error> {
        Ok(host::troubled_units(self.shared.store.read(), limit).await?)
    }

    /// One host, by id or by a hostname that only one has.
    pub async fn host(&self, name: &str) -> Result<types::Host, Error> {
        let id = self.resolve_host(name).await?;
        let found = host::list(self.shared.store.read(), Some(id)).await?;
        let found = found.into_iter().map(|host| self.with_what_is_known(host)).collect();
        self.with_labels(found).await?.pop().ok_or_else(|| dispatch::unknown_host(name))
    }

    /// A host without its last state, if the console has lost the broker: nobody knows whether it is there still.
    fn with_what_is_known(&self, mut host: types::Host) -> types::Host {
        if let (Some(presence), Some(since_ms)) = (&mut host.presence, self.shared.link.lost_ms()) {
            (presence.state, presence.since_ms) = (types::HostConnection::Unknown, since_ms);
        }
        host
    }

    /// The id of a host that is given by id or by a hostname that only one has.
    pub async fn resolve_host(&self, name: &str) -> Result<HostId, Error> {
        let names = host::named(self.shared.store.read(), name).await?;
        let found = dispatch::resolve(&[name.to_owned()], &names)?;
        found.first().copied().ok_or_else(|| dispatch::unknown_host(name))
    }

    /// Units, of one host or of all, sorted by hostname and name.
    pub async fn units(&self, host: Option<HostId>) -> Result<Vec<types::Unit>, Error> {
        Ok(host::units(self.shared.store.read(), host, None).await?)
    }

    /// One unit.
    pub async fn unit(&self, host: HostId, unit: &UnitName) -> Result<types::Unit, Error> {
        let found = host::units(self.shared.store.read(), Some(host), Some(unit)).await?.pop();
        if let Some(found) = found {
            return Ok(found);
        }
        let name = self.hostnames(&[host]).await?.remove(&host).unwrap_or_else(|| host.to_string());
        Err(Error::not_found("unknown_unit", format!("host {name} has no unit {unit}"))
            .hint("`muster unit ls`, or GET /api/v1/units, lists those that there are"))
    }

    /// The newest commands, of one host or of all.
    pub async fn commands(&self, host: Option<HostId>, limit: u32) -> Result<Vec<types::Command>, Error> {
        let which = Which::Newest { host, limit: limit.min(COMMANDS_MAX) };
        Ok(store::command::list(self.shared.store.read(), which).await?)
    }

    /// The newest commands, without their hosts.
    async fn commands_alone(&self, limit: u32) -> Result<Vec<types::Command>, Error> {
        let which = Which::Newest { host: None, limit: limit.min(COMMANDS_MAX) };
        Ok(store::command::alone(self.shared.store.read(), which).await?)
    }

    /// One command, without its hosts.
    async fn command_alone(&self, id: CommandId) -> Result<types::Command, Error> {
        let found = store::command::alone(self.shared.store.read(), Which::One(id)).await?.pop();
        found.ok_or_else(|| Error::not_found("unknown_command", format!("there is no command {id}")))
    }

    /// The whole of an id that may have been shortened.
    async fn whole_id<T: FromStr>(&self, of: Ids, typed: &str) -> Result<T, Error> {
        let found = store::ids::beginning(self.shared.store.read(), of, typed).await?;
        let ((code, what, list), typed) = (of.words(), typed.chars().take(100).collect::<String>());
        let unknown = || {
            Error::not_found(code, format!("there is no {what} {typed}"))
                .hint(format!("{list} lists those that there are"))
        };
        match found.as_slice() {
            [] => Err(unknown()),
            [id] => id.parse().map_err(|_| unknown()),
            several => Err(Error::conflict(
                "ambiguous_id",
                format!("{typed} begins the ids of several {what}s: {}", several.join(", ")),
            )
            .hint("type as much of the id as no other one has")),
        }
    }

    /// The command of this id, or of the only one that begins so.
    pub async fn command_id(&self, typed: &str) -> Result<CommandId, Error> {
        self.whole_id(Ids::Commands, typed).await
    }

    /// The artifact with this SHA-256, or with the only one that begins so.
    pub async fn artifact_id(&self, typed: &str) -> Result<Digest, Error> {
        self.whole_id(Ids::Artifacts, typed).await
    }

    /// Names of hosts, of those that there are.
    pub async fn hostnames(&self, hosts: &[HostId]) -> Result<HashMap<HostId, String>, Error> {
        Ok(host::names_of(self.shared.store.read(), hosts).await?)
    }

    /// One command.
    pub async fn command(&self, id: CommandId) -> Result<types::Command, Error> {
        let found = store::command::list(self.shared.store.read(), Which::One(id)).await?.pop();
        found.ok_or_else(|| Error::not_found("unknown_command", format!("there is no command {id}")))
    }

    /// All output of a command on one host that has come so far: stdout and stderr.
    pub async fn output(&self, id: CommandId, host: HostId) -> Result<(Vec<u8>, Vec<u8>), Error> {
        let db = self.shared.store.read();
        let Some(line) = store::command::of_host(db, id, host).await? else {
            // It was not for that host, or there is none.
            self.command(id).await?;
            return Ok(ingest::output::whole(&[], None));
        };
        let chunks = store::command::output_after(db, id, Some(host), 0, u32::MAX).await?;
        Ok(ingest::output::whole(&chunks, line.outcome.as_ref().map(|received| &received.value)))
    }

    /// Signs, stores and publishes a command.
    pub async fn submit(&self, operator: &Name, command: types::NewCommand) -> Result<types::Command, Error> {
        dispatch::submit(self, operator, command).await
    }

    /// Asks a host, by id or by a hostname that only one has, to say everything anew.
    pub async fn refresh(&self, operator: &Name, host: &str) -> Result<(), Error> {
        dispatch::refresh(&self.shared, operator, self.resolve_host(host).await?).await
    }

    /// Revokes all certificates of a host, by id or by a hostname that only one has: it is a member no more
    /// until it joins anew.
    pub async fn revoke_host(&self, operator: &Name, host: &str) -> Result<(), Error> {
        self.shared.check_operator(operator).await?;
        let id = self.resolve_host(host).await?;
        let mut transaction = self.shared.store.begin().await?;
        let ended = host::revoke(&mut transaction, id, now_ms()).await?;
        transaction.commit().await.map_err(store::StoreError::from)?;
        if let Some(commands) = ended {
            tracing::warn!(host.id = %id, %operator, commands = commands.len(), "a host was revoked");
            self.shared.left(id, &commands).await;
        }
        Ok(())
    }

    /// Makes a one-time password for a host that shall join.
    pub async fn create_token(&self, operator: &Name, token: types::NewToken) -> Result<types::CreatedToken, Error> {
        self.shared.check_operator(operator).await?;
        let types::NewToken { ttl_s, replaces } = token;
        let replaces = match replaces {
            Some(host) => Some(self.resolve_host(&host).await?),
            None => None,
        };
        let made = self.make_tokens(operator, types::NewTokens { count: 1, ttl_s }, replaces).await?;
        made.into_iter().next().ok_or_else(|| Error::invalid("bad_count", "there is no token to make"))
    }

    /// Makes one-time passwords for as many hosts: all, or none of them.
    pub async fn create_tokens(
        &self,
        operator: &Name,
        wanted: types::NewTokens,
    ) -> Result<Vec<types::CreatedToken>, Error> {
        self.make_tokens(operator, wanted, None).await
    }

    async fn make_tokens(
        &self,
        operator: &Name,
        wanted: types::NewTokens,
        replaces: Option<HostId>,
    ) -> Result<Vec<types::CreatedToken>, Error> {
        let ttl_s = wanted.ttl_s.unwrap_or(TOKEN_TTL_S);
        if !(1..=TOKEN_TTL_MAX_S).contains(&ttl_s) {
            return Err(Error::invalid("bad_ttl", format!("a token lives from 1 s to {TOKEN_TTL_MAX_S} s")));
        }
        if !(1..=types::TOKENS_MAX).contains(&wanted.count) {
            let message = format!("from 1 to {} tokens are made at once", types::TOKENS_MAX);
            return Err(Error::invalid("bad_count", message));
        }
        let now = now_ms();
        let expires_ms = now + i64::try_from(ttl_s).unwrap_or(0) * 1000;
        let mut made = Vec::new();
        let mut transaction = self.shared.store.begin().await?;
        for _ in 0..wanted.count {
            let secret = operator::new_secret()?;
            let id = operator::new_id()?;
            let hash = Digest::of(secret.as_bytes());
            store::token::add(&mut transaction, &id, &hash, operator, (now, expires_ms), replaces).await?;
            let token = muster_topics::join::JoinToken {
                url: self.shared.urls.hosts.clone(),
                authority: self.shared.authority.fingerprint().clone(),
                secret,
            };
            tracing::info!(token.id = %id, %operator, "made a token for joining");
            let (token, warning) = (token.to_string(), self.shared.join_warning());
            let command = format!("muster agent --join {token}");
            made.push(types::CreatedToken { id, token, expires_ms, command, warning });
        }
        transaction.commit().await.map_err(store::StoreError::from)?;
        Ok(made)
    }

    /// All one-time passwords, newest first.
    pub async fn tokens(&self) -> Result<Vec<types::Token>, Error> {
        Ok(store::token::list(self.shared.store.read()).await?)
    }

    /// Revokes a one-time password. One that was used stays used: the host is a member.
    pub async fn revoke_token(&self, id: &str) -> Result<(), Error> {
        let id: Name = self.whole_id(Ids::Tokens, id).await?;
        if store::token::revoke(self.shared.store.write(), &id, now_ms()).await? {
            return Ok(());
        }
        Err(Error::not_found("unknown_token", format!("there is no token {id}")))
    }

    /// Measurements over time: `range` is start and end, nothing for the last values.
    pub async fn series(
        &self,
        selector: &str,
        range: Option<(Millis, Millis)>,
        points_max: usize,
    ) -> Result<types::SeriesAnswer, Error> {
        if range.is_some_and(|(start, end)| start > end) {
            return Err(Error::invalid("bad_range", "the range ends before it starts"));
        }
        let points_max = points_max.clamp(1, POINTS_MAX);
        let series = self.shared.series.query(selector, range, points_max).await?;
        let series =
            series.into_iter().map(|one| types::Series { name: one.name, labels: one.labels, points: one.points });
        Ok(types::SeriesAnswer { series: series.collect() })
    }

    /// Measurements as text, piece by piece.
    pub async fn export_series(
        &self,
        selector: &str,
        range: (Millis, Millis),
        format: muster_series::Format,
    ) -> Result<mpsc::Receiver<Result<String, muster_series::SeriesError>>, Error> {
        Ok(self.shared.series.export(selector, range, format).await?)
    }

    /// Stores elsewhere, and how they are fed.
    #[must_use]
    pub fn metric_stores(&self) -> Vec<types::MetricStore> {
        self.shared.external.told()
    }

    /// What changes from now on.
    #[must_use]
    pub fn changes(&self) -> broadcast::Receiver<Change> {
        self.shared.changes.subscribe()
    }

    /// Where operators reach the pages.
    #[must_use]
    pub fn web_url(&self) -> &str {
        &self.shared.urls.web
    }

    /// Ends once the console stops: what streams without end should end with it.
    pub async fn stopping(&self) {
        self.shared.shutdown.cancelled().await;
    }
}

/// Whether a URL leads to the machine alone that it is used on.
fn is_loopback(url: &str) -> bool {
    let url = reqwest::Url::parse(url).ok();
    let host = url.as_ref().and_then(reqwest::Url::host_str).map(|host| host.trim_matches(['[', ']']));
    host.is_some_and(|host| host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback()))
}

impl Shared {
    /// Why a host on another machine could not join now, and what to do about that.
    fn join_warning(&self) -> Option<String> {
        let Urls { hosts, broker, .. } = &self.urls;
        let (what, url) = match (is_loopback(hosts), is_loopback(broker)) {
            (true, _) => ("the console", hosts),
            (false, true) => ("the broker", broker),
            (false, false) => return None,
        };
        let hint = self.started_by.listen_hint();
        Some(format!("with this token {what} is looked for at {url}, which no other machine reaches. hint: {hint}"))
    }

    /// A host is a member no more, and these commands are over for it: everybody hears of that.
    async fn left(&self, host: HostId, commands: &[CommandId]) {
        self.revoked.notify_one();
        self.fleet.remove(host);
        let _ = self.dispatch.send(dispatch::Event::Left(host)).await;
        commands.iter().for_each(|command| self.changed(Change::Command(*command)));
        self.changed(Change::Host(host));
        self.changed(Change::Alert(Some(host)));
    }

    /// Whether the broker is known to refuse whoever was revoked, if anybody was.
    async fn revocations_are_in_force(&self) -> Result<bool, store::StoreError> {
        // The broker of `muster up` is in this process, and follows the list at once.
        if self.started_by == StartedBy::Up || !host::may_listen(self.store.read()).await? {
            return Ok(true);
        }
        let revoked = store::issued::revoked(self.store.read(), now_ms()).await?;
        let told = self.told_broker.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(revoked.iter().all(|one| told.contains(&one.serial)))
    }

    /// Tells pages that look on. Nobody may be looking, which is fine.
    fn changed(&self, change: Change) {
        self.tallies.changed(&change);
        let _ = self.changes.send(change);
    }

    /// The right to order something, checked against the operators that there are. One role so far:
    /// an operator may do everything.
    async fn check_operator(&self, operator: &Name) -> Result<(), Error> {
        if store::operator::exists(self.store.read(), operator).await? {
            return Ok(());
        }
        Err(Error::new(StatusCode::FORBIDDEN, "unknown_operator", format!("there is no operator {operator}")))
    }
}

#[cfg(test)]
mod tests {
    use super::is_loopback;

    #[test]
    fn urls_of_this_machine_alone() {
        for own in ["https://127.0.0.1:7443", "mqtts://127.1.2.3:8883", "https://[::1]:7443", "mqtts://localhost:8883"]
        {
            assert!(is_loopback(own), "{own}");
        }
        for other in ["https://192.0.2.5:7443", "mqtts://[2001:db8::7]:8883", "https://fleet.example", "nonsense"] {
            assert!(!is_loopback(other), "{other}");
        }
    }
}
