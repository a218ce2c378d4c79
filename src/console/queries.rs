//! Queries of the API and the pages: hosts, units, commands, output and measurements.

use std::{collections::HashMap, str::FromStr};

use muster_topics::{
    Millis,
    name::{CommandId, Digest, HostId, UnitName},
    select::HostSelect,
};
use tokio::sync::mpsc;

use super::{
    error::Error,
    store::{command::Which, host, host_selection::HostPick, ids::IdKind},
};

use super::list;
use super::{dispatch, ingest, state::Console, store};

/// The most commands in one list.
const COMMANDS_MAX: u32 = 500;
/// The most points of one series in an answer: more than a screen has columns.
const POINTS_MAX: usize = 11_000;

impl Console {
    /// Returns an overview of the installation.
    pub async fn status(&self) -> Result<muster_api::Status, Error> {
        let (hosts, _) = host::count(self.shared.store.read()).await?;
        let presences = self.presences().await?;
        Ok(muster_api::Status {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            broker_connected: self.shared.hosts.link.is_connected(),
            hosts,
            hosts_online: presences.online,
            hosts_unknown: presences.unknown,
            broker_url: self.shared.settings.urls.broker.clone(),
            console_url: self.shared.settings.urls.hosts.clone(),
        })
    }

    /// Returns all hosts, sorted by hostname.
    pub async fn hosts(&self) -> Result<Vec<muster_api::Host>, Error> {
        let hosts = host::list(self.shared.store.read(), None).await?;
        self.complete(hosts).await
    }

    /// Returns hosts, filtered and sorted as requested.
    pub async fn hosts_listed(&self, wanted: &muster_api::HostListing) -> Result<Vec<muster_api::Host>, Error> {
        let only = self.picked(wanted.select.as_ref()).await?;
        let hosts = host::first(self.shared.store.read(), only.as_deref(), wanted.sort, wanted.limit).await?;
        self.complete(hosts).await
    }

    /// Returns the hosts that a selector matches; `None` without a selector.
    pub(crate) async fn picked(&self, select: Option<&HostSelect>) -> Result<Option<Vec<HostId>>, Error> {
        let Some(select) = select else { return Ok(None) };
        let (db, with_units) = (self.shared.store.read(), select.asks_units());
        let found = store::host_selection::hosts(db, HostPick::All, with_units, &|host| select.picks(host)).await?;
        Ok(Some(found.into_iter().map(|(host, _)| host).collect()))
    }

    /// Returns units, filtered and sorted as requested.
    pub async fn units_listed(&self, wanted: &muster_api::UnitListing) -> Result<Vec<muster_api::Unit>, Error> {
        let host = match &wanted.host {
            Some(host) => Some(self.resolve_host(host).await?),
            None => None,
        };
        let units = host::units(self.shared.store.read(), host, wanted.unit.as_ref()).await?;
        Ok(list::units(units, wanted))
    }

    /// Returns a page of units.
    pub(crate) async fn units_page(
        &self,
        filter: &store::unit_list::UnitFilter,
        offset: u64,
        limit: u32,
    ) -> Result<store::unit_list::UnitPage, Error> {
        Ok(store::unit_list::page(self.shared.store.read(), filter, offset, limit).await?)
    }

    /// Returns a page of the hosts that match a search, sorted by hostname, and their total number.
    pub async fn hosts_page(
        &self,
        search: &host::Search,
        offset: u64,
        limit: u32,
    ) -> Result<(Vec<muster_api::Host>, u64), Error> {
        // Without a connection to the broker it is unknown which hosts are online or offline.
        if search.online.is_some() && self.shared.hosts.link.lost_ms().is_some() {
            return Ok((Vec::new(), 0));
        }
        let (hosts, count) = host::page(self.shared.store.read(), search, offset, limit).await?;
        Ok((self.complete(hosts).await?, count))
    }

    /// Returns the first units that are held, failed, or wait for a restart, and their number.
    pub async fn troubled_units(&self, limit: u32) -> Result<(Vec<muster_api::Unit>, u64), Error> {
        Ok(host::troubled_units(self.shared.store.read(), limit).await?)
    }

    /// Returns one host, by id or unique hostname.
    pub async fn host(&self, name: &str) -> Result<muster_api::Host, Error> {
        let id = self.resolve_host(name).await?;
        let found = host::list(self.shared.store.read(), Some(id)).await?;
        self.complete(found).await?.pop().ok_or_else(|| dispatch::unknown_host(name))
    }

    /// Adds what the store's rows of hosts lack.
    async fn complete(&self, hosts: Vec<muster_api::Host>) -> Result<Vec<muster_api::Host>, Error> {
        let known = hosts.into_iter().map(|host| self.with_what_is_known(host)).collect();
        let mut hosts = self.with_labels(known).await?;
        self.with_cordons(&mut hosts);
        Ok(hosts)
    }

    /// Removes the presence from a host while the console has no connection to the broker, because it is unknown then.
    pub(super) fn with_what_is_known(&self, mut host: muster_api::Host) -> muster_api::Host {
        if let (Some(presence), Some(since_ms)) = (&mut host.presence, self.shared.hosts.link.lost_ms()) {
            (presence.state, presence.since_ms) = (muster_api::HostConnection::Unknown, since_ms);
        }
        host
    }

    /// Returns the id of a host that is given by id or unique hostname.
    pub async fn resolve_host(&self, name: &str) -> Result<HostId, Error> {
        let names = host::named(self.shared.store.read(), name).await?;
        let found = dispatch::resolve(&[name.to_owned()], &names)?;
        found.first().copied().ok_or_else(|| dispatch::unknown_host(name))
    }

    /// Returns units, of one host or of all, sorted by hostname and name.
    pub async fn units(&self, host: Option<HostId>) -> Result<Vec<muster_api::Unit>, Error> {
        Ok(host::units(self.shared.store.read(), host, None).await?)
    }

    /// Returns one unit.
    pub async fn unit(&self, host: HostId, unit: &UnitName) -> Result<muster_api::Unit, Error> {
        let found = host::units(self.shared.store.read(), Some(host), Some(unit)).await?.pop();
        if let Some(found) = found {
            return Ok(found);
        }
        let name = self.hostnames(&[host]).await?.remove(&host).unwrap_or_else(|| host.to_string());
        Err(Error::not_found("unknown_unit", format!("host {name} has no unit {unit}"))
            .hint("`muster unit ls`, or GET /api/v1/units, lists them"))
    }

    /// Returns the newest commands, of one host or of all.
    pub async fn commands(&self, host: Option<HostId>, limit: u32) -> Result<Vec<muster_api::Command>, Error> {
        let which = Which::Newest { host, limit: limit.min(COMMANDS_MAX) };
        Ok(store::command::list(self.shared.store.read(), which).await?)
    }

    /// Returns the newest commands, without their hosts.
    pub(super) async fn commands_alone(&self, limit: u32) -> Result<Vec<muster_api::Command>, Error> {
        let which = Which::Newest { host: None, limit: limit.min(COMMANDS_MAX) };
        Ok(store::command::alone(self.shared.store.read(), which).await?)
    }

    /// Returns one command, without its hosts.
    pub(super) async fn command_alone(&self, id: CommandId) -> Result<muster_api::Command, Error> {
        let found = store::command::alone(self.shared.store.read(), Which::One(id)).await?.pop();
        found.ok_or_else(|| Error::not_found("unknown_command", format!("there is no command {id}")))
    }

    /// Completes an id that may be abbreviated.
    pub(super) async fn whole_id<T: FromStr>(&self, of: IdKind, typed: &str) -> Result<T, Error> {
        let found = store::ids::beginning(self.shared.store.read(), of, typed).await?;
        let ((code, what, list), typed) = (of.words(), typed.chars().take(100).collect::<String>());
        let unknown =
            || Error::not_found(code, format!("there is no {what} {typed}")).hint(format!("{list} lists them"));
        match found.as_slice() {
            [] => Err(unknown()),
            [id] => id.parse().map_err(|_| unknown()),
            several => Err(Error::conflict(
                "ambiguous_id",
                format!("the ids of several {what}s begin with {typed}: {}", several.join(", ")),
            )
            .hint("type more of the id")),
        }
    }

    /// Returns the id of a command from a unique beginning.
    pub async fn command_id(&self, typed: &str) -> Result<CommandId, Error> {
        self.whole_id(IdKind::Commands, typed).await
    }

    /// Returns the SHA-256 of an artifact from a unique beginning.
    pub async fn artifact_id(&self, typed: &str) -> Result<Digest, Error> {
        self.whole_id(IdKind::Artifacts, typed).await
    }

    /// Returns the names of hosts that exist.
    pub async fn hostnames(&self, hosts: &[HostId]) -> Result<HashMap<HostId, String>, Error> {
        Ok(host::names_of(self.shared.store.read(), hosts).await?)
    }

    /// Returns one command.
    pub async fn command(&self, id: CommandId) -> Result<muster_api::Command, Error> {
        let found = store::command::list(self.shared.store.read(), Which::One(id)).await?.pop();
        found.ok_or_else(|| Error::not_found("unknown_command", format!("there is no command {id}")))
    }

    /// Returns all output of a command on one host so far: stdout and stderr.
    pub async fn output(&self, id: CommandId, host: HostId) -> Result<(Vec<u8>, Vec<u8>), Error> {
        let db = self.shared.store.read();
        let Some(line) = store::command::of_host(db, id, host).await? else {
            // The command was not for that host, or does not exist.
            self.command(id).await?;
            return Ok(ingest::output::whole(&[], None));
        };
        let chunks = store::command::output_after(db, id, Some(host), 0, u32::MAX).await?;
        Ok(ingest::output::whole(&chunks, line.outcome().map(|received| &received.value)))
    }

    /// Returns measurements over time: `range` is start and end; `None` for the last values.
    pub async fn series(
        &self,
        selector: &str,
        range: Option<(Millis, Millis)>,
        points_max: usize,
    ) -> Result<muster_api::SeriesAnswer, Error> {
        if range.is_some_and(|(start, end)| start > end) {
            return Err(Error::invalid("bad_range", "the range ends before it starts"));
        }
        let points_max = points_max.clamp(1, POINTS_MAX);
        let series = self.shared.measurements.series.query(selector, range, points_max).await?;
        let series =
            series.into_iter().map(|one| muster_api::Series { name: one.name, labels: one.labels, points: one.points });
        Ok(muster_api::SeriesAnswer { series: series.collect() })
    }

    /// Exports measurements as text, piece by piece.
    pub async fn export_series(
        &self,
        selector: &str,
        range: (Millis, Millis),
        format: muster_series::LineFormat,
    ) -> Result<mpsc::Receiver<Result<String, muster_series::SeriesError>>, Error> {
        Ok(self.shared.measurements.series.export(selector, range, format).await?)
    }

    /// Returns the external stores, with the state of their queues.
    #[must_use]
    pub fn metric_stores(&self) -> Vec<muster_api::MetricStore> {
        self.shared.measurements.external.status()
    }
}
