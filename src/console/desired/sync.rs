//! Evaluates targets: at once where an operator has changed something, and regularly for what hosts report. The regular run also compares
//! each host's document with what it reports, and sends again what differs.
//!
//! One host's error is that host's. A run that could not read everything has hosts remove nothing.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    time::Duration,
};

use muster_api::{SYNC_FINDINGS_MAX, SyncFinding, SyncFindingKind, SyncReport, SyncRun};
use muster_base::clock::now_ms;
use muster_topics::{
    Millis,
    desired::{DeploymentName, DesiredMark, UnitRemoval},
    diagnostic::Diagnostic,
    name::{Digest, HostId, UnitName},
};
use tokio::time::{Instant, MissedTickBehavior, interval_at};
use tokio_util::sync::CancellationToken;

use super::{
    plan::PlanWish,
    publish,
    table::{DocumentStanding, HostEntry},
};
use crate::{
    error::Error,
    list::first_names,
    notice::NoticeKind,
    page_change::PageChange,
    state::{Console, ConsoleState},
    store::{StoreError, deployment, desired, host},
};

/// How often all hosts are compared.
const PERIOD: Duration = Duration::from_secs(30);
/// The most hosts in a batch.
const BATCH: u32 = 500;
/// How long to wait for more of the same at least: many hosts report at once.
const SETTLE: Duration = Duration::from_millis(200);
/// How many times as long as the last evaluation took to wait: where instances are placed, each looks at all hosts.
const SETTLE_TIMES: u32 = 3;
/// The most units that a finding names.
const NAMED_MAX: usize = 5;
/// How long a connected host may lack its document before that is an alert: some tries to send it.
const BEHIND_MS: Millis = 10 * 60_000;

/// Evaluates targets until the console stops.
pub(crate) async fn run(console: Console, shutdown: CancellationToken) {
    let all = async {
        let mut ticks = interval_at(Instant::now() + SETTLE, PERIOD);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut settle = SETTLE;
        loop {
            tokio::select! {
                _ = ticks.tick() => console.sync().await,
                () = console.shared.hosts.desired.more.notified() => {
                    tokio::time::sleep(settle).await;
                    let began = Instant::now();
                    if let Err(error) = console.catch_up().await {
                        tracing::error!(%error, "targets of deployments cannot be evaluated until the next run");
                    }
                    settle = SETTLE.max(began.elapsed() * SETTLE_TIMES);
                }
            }
        }
    };
    tokio::select! {
        () = all => (),
        () = shutdown.cancelled() => (),
    }
}

impl Console {
    /// Evaluates the targets of hosts that wait for that, and asks for documents.
    pub(crate) async fn catch_up(&self) -> Result<(), Error> {
        let desired = &self.shared.hosts.desired;
        self.settle_doubts().await?;
        let _changing = desired.changing.lock().await;
        self.mark_content().await?;
        let dirty = desired.take_dirty();
        let is_to_place = {
            let table = desired.table();
            table.is_to_place && table.has_placed()
        };
        if !dirty.is_empty() || is_to_place {
            let gone = self.gone(&dirty).await?;
            let wish = PlanWish { may_remove: true, gone, now: now_ms(), ..PlanWish::default() };
            if let Err(error) = self.reconcile(Some(&dirty), wish).await {
                let mut table = desired.table();
                table.is_to_place |= is_to_place;
                table.dirty.extend(dirty);
                return Err(error);
            }
        }
        self.ask_for_documents().await
    }

    /// Marks hosts to be evaluated whose documents come to something else, because secrets were set or configs added.
    async fn mark_content(&self) -> Result<(), Error> {
        let desired = &self.shared.hosts.desired;
        if !desired.table().has_new_content {
            return Ok(());
        }
        let (changed, selects_others) = self.refresh_entries().await?;
        let mut table = desired.table();
        let carries =
            |entry: &HostEntry| selects_others || entry.assigned.iter().any(|row| changed.contains(&row.deployment));
        let hosts: Vec<HostId> =
            table.hosts.iter().filter(|(_, entry)| carries(entry)).map(|(host, _)| *host).collect();
        table.dirty.extend(hosts);
        Ok(())
    }

    /// Finds out whether hosts with an earlier document have it from this console.
    async fn settle_doubts(&self) -> Result<(), Error> {
        let desired = &self.shared.hosts.desired;
        let doubtful: Vec<(HostId, DesiredMark, Digest)> = {
            let mut table = desired.table();
            let hosts = std::mem::take(&mut table.doubtful);
            let report = |host: HostId| {
                let report = table.hosts.get(&host)?.report.as_ref()?;
                Some((host, report.mark, report.digest.clone()?))
            };
            hosts.into_iter().filter_map(report).collect()
        };
        let now = now_ms();
        for (host, mark, digest) in doubtful {
            let is_own = desired::is_issued(self.shared.store.read(), host, mark, &digest).await?;
            let mut table = desired.table();
            if let Some(entry) = table.hosts.get_mut(&host) {
                match is_own {
                    false => entry.standing = DocumentStanding::Unconfirmed,
                    true if entry.is_unconfirmed() => entry.standing = DocumentStanding::Settled,
                    true => {}
                }
                entry.own_mark = is_own.then_some(mark);
            }
            if is_own {
                table.compare(host, now);
            } else {
                tracing::warn!(
                    host.id = %host, document = %mark,
                    "a host has a document that this console did not make; it is sent nothing until the host is confirmed"
                );
            }
        }
        if !desired.table().to_send.is_empty() {
            desired.due.notify_one();
        }
        Ok(())
    }

    /// Returns which removals hosts have done: those that they neither wait for nor have the units of, as of their present
    /// document.
    pub(super) async fn gone(&self, hosts: &[HostId]) -> Result<HashMap<HostId, Vec<UnitRemoval>>, Error> {
        let asked: Vec<(HostId, Vec<UnitRemoval>)> = {
            let table = self.shared.hosts.desired.table();
            let removals = |host: &HostId| {
                let entry = table.hosts.get(host).filter(|entry| entry.is_current() && !entry.removals.is_empty())?;
                let waits = &entry.report.as_ref()?.removals;
                let done = entry.removals.iter().filter(|removal| !waits.contains_key(&removal.unit));
                Some((*host, done.cloned().collect()))
            };
            hosts.iter().filter_map(removals).collect()
        };
        if asked.is_empty() {
            return Ok(HashMap::new());
        }
        let hosts: Vec<HostId> = asked.iter().map(|(host, _)| *host).collect();
        let owned = deployment::hosts_with_units_of(self.shared.store.read(), &hosts).await?;
        let is_there = |host: HostId, removal: &UnitRemoval| {
            let of = |(unit, deployment): &(UnitName, DeploymentName)| {
                *unit == removal.unit && *deployment == removal.deployment
            };
            owned.get(&host).is_some_and(|units| units.iter().any(of))
        };
        Ok(asked
            .into_iter()
            .map(|(host, mut done)| {
                done.retain(|removal| !is_there(host, removal));
                (host, done)
            })
            .collect())
    }

    async fn ask_for_documents(&self) -> Result<(), Error> {
        let now = now_ms();
        let hosts: Vec<HostId> = {
            let table = self.shared.hosts.desired.table();
            table.hosts.iter().filter(|(_, entry)| entry.is_to_hand_in(now)).map(|(host, _)| *host).collect()
        };
        if !self.shared.hosts.link.is_connected() {
            return Ok(());
        }
        for host in hosts {
            publish::ask_for_document(&self.shared, host).await?;
        }
        Ok(())
    }

    /// Compares all hosts, and keeps the report.
    pub(super) async fn sync(&self) {
        let begun = Instant::now();
        let mut run = SyncRun {
            begun_ms: now_ms(),
            took_ms: 0,
            hosts: 0,
            alike: 0,
            incomplete: None,
            counts: BTreeMap::new(),
            findings: Vec::new(),
        };
        if let Err(error) = self.sync_into(&mut run).await {
            tracing::error!(%error, "hosts cannot be compared with their desired state");
            run.incomplete.get_or_insert_with(|| format!("{:#}", error.problem.diagnostic));
        }
        run.took_ms = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
        *self.shared.hosts.desired.last_run.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(run);
    }

    async fn sync_into(&self, run: &mut SyncRun) -> Result<(), Error> {
        let desired = &self.shared.hosts.desired;
        self.settle_doubts().await?;
        let _changing = desired.changing.lock().await;
        self.mark_content().await?;
        let (members, changed) = self.changed_hosts(run).await;
        let mut look: Vec<HostId> = changed;
        look.extend(desired.take_dirty());
        let mut findings = Findings::default();
        let has_placed = {
            let mut table = desired.table();
            table.is_to_place = true;
            table.has_placed()
        };
        if !look.is_empty() || has_placed {
            let gone = self.gone(&look).await?;
            let may_remove = run.incomplete.is_none();
            let wish = PlanWish { may_remove, gone, now: run.begun_ms, ..PlanWish::default() };
            match self.reconcile(Some(&look), wish).await {
                Ok((plan, errors)) => {
                    for (deployment, hosts) in plan.gains.iter().chain(&plan.loses) {
                        hosts
                            .iter()
                            .for_each(|host| findings.add(*host, SyncFindingKind::Assigned, deployment.as_str()));
                    }
                    errors.iter().for_each(|(host, error)| findings.add(*host, SyncFindingKind::Error, error));
                }
                Err(error) => {
                    desired.table().dirty.extend(look);
                    return Err(error);
                }
            }
        }
        self.compare(run, &members, &mut findings).await?;
        findings.finish(&self.shared, run).await?;
        self.ask_for_documents().await?;
        desired.due.notify_one();
        desired::sweep_bodies(self.shared.store.write()).await?;
        Ok(())
    }

    /// Returns all members, and those of them that have reported something since their targets were evaluated, batch by
    /// batch.
    async fn changed_hosts(&self, run: &mut SyncRun) -> (Vec<HostId>, Vec<HostId>) {
        let (mut members, mut changed, mut after) = (Vec::new(), Vec::new(), None);
        loop {
            let batch = match deployment::heard(self.shared.store.read(), after, BATCH).await {
                Ok(batch) => batch,
                Err(error) => {
                    run.incomplete = Some(format!("{:#}", Diagnostic::of(&error)));
                    return (members, changed);
                }
            };
            let Some((last, _)) = batch.last() else { return (members, changed) };
            after = Some(*last);
            let table = self.shared.hosts.desired.table();
            for (host, heard) in batch {
                let seen = table.hosts.get(&host).map(|entry| entry.looked_at);
                if seen.is_none_or(|seen| seen.is_none() || seen != heard) {
                    changed.push(host);
                }
                members.push(host);
            }
        }
    }

    /// Compares what hosts report with their documents, and marks what is to be sent again.
    async fn compare(&self, run: &mut SyncRun, members: &[HostId], findings: &mut Findings) -> Result<(), StoreError> {
        let online: HashSet<HostId> = host::online(self.shared.store.read()).await?.into_iter().collect();
        let orphans = deployment::orphans(self.shared.store.read()).await?;
        let now = run.begun_ms;
        let mut late = 0_u64;
        let mut table = self.shared.hosts.desired.table();
        for host in members {
            run.hosts += 1;
            table.compare(*host, now);
            let entry = table.hosts.get(host);
            let found = entry.and_then(finding).or_else(|| {
                let units: Vec<&str> = orphans.get(host)?.iter().map(UnitName::as_str).collect();
                Some((
                    SyncFindingKind::Orphans,
                    format!("{} keep running without being desired", first_names(&units, NAMED_MAX)),
                ))
            });
            match found {
                Some((kind, detail)) => findings.add(*host, kind, &detail),
                None => run.alike += 1,
            }
            let Some(entry) = entry else { continue };
            let is_late = entry.behind_since_ms().is_some_and(|since_ms| now.saturating_sub(since_ms) > BEHIND_MS);
            late += u64::from(is_late && online.contains(host));
        }
        drop(table);
        self.raise(late, now);
        Ok(())
    }

    /// Raises or clears the alert about hosts without their documents.
    fn raise(&self, late: u64, now: Millis) {
        let notices = &self.shared.notices;
        let changed = match late {
            0 => notices.clear(NoticeKind::HostsBehind),
            late => notices.raise(
                NoticeKind::HostsBehind,
                Diagnostic::new(format!(
                    "{late} connected hosts have refused their document, or not stored it for more than {} minutes",
                    BEHIND_MS / 60_000
                ))
                .with_hint("`muster deployment sync` names them"),
                now,
            ),
        };
        if changed {
            self.shared.changed(PageChange::Alert(None));
        }
    }

    /// Returns what the last comparison has found.
    #[must_use]
    pub fn deployment_sync(&self) -> SyncReport {
        let last = self.shared.hosts.desired.last_run.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        SyncReport { last: last.clone(), interval_ms: u64::try_from(PERIOD.as_millis()).unwrap_or_default() }
    }
}

/// Returns what is remarkable about a host, if anything is.
fn finding(entry: &HostEntry) -> Option<(SyncFindingKind, String)> {
    if let Some(error) = &entry.error {
        return Some((SyncFindingKind::Error, error.clone()));
    }
    if entry.newer_labels.is_some() && !entry.is_unconfirmed() {
        return Some((SyncFindingKind::Unconfirmed, "it has newer labels than this console".to_owned()));
    }
    let report = entry.report.as_ref()?;
    if entry.is_unconfirmed() {
        return Some((SyncFindingKind::Unconfirmed, format!("it has {}", report.mark)));
    }
    let mark = entry.mark()?;
    match &report.refused {
        Some(refused) if refused.mark == mark => Some((SyncFindingKind::Refused, format!("{:#}", refused.diagnostic))),
        _ if entry.is_current() => entry.lacking.first().map(|(name, missing)| {
            let cannot = Diagnostic::new(format_args!("{missing}, which {name} needs")).with_hint(missing.hint());
            (SyncFindingKind::Cannot, format!("{cannot:#}"))
        }),
        _ => Some((SyncFindingKind::Behind, format!("it has {} instead of {mark}", report.mark))),
    }
}

/// What a run has found.
#[derive(Debug, Default)]
struct Findings {
    counts: BTreeMap<SyncFindingKind, u64>,
    first: Vec<(HostId, SyncFindingKind, String)>,
}

impl Findings {
    fn add(&mut self, host: HostId, kind: SyncFindingKind, detail: &str) {
        *self.counts.entry(kind).or_default() += 1;
        if self.first.len() < SYNC_FINDINGS_MAX {
            self.first.push((host, kind, detail.to_owned()));
        }
    }

    async fn finish(self, shared: &ConsoleState, run: &mut SyncRun) -> Result<(), StoreError> {
        let hosts: Vec<HostId> = self.first.iter().map(|(host, ..)| *host).collect();
        let names = host::names_of(shared.store.read(), &hosts).await?;
        let hostname = |host: &HostId| names.get(host).cloned().unwrap_or_default();
        let finding = |(host, kind, detail)| SyncFinding { hostname: hostname(&host), host, kind, detail };
        run.findings = self.first.into_iter().map(finding).collect();
        run.counts = self.counts;
        Ok(())
    }
}
