//! Applies a batch of messages in one transaction.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use muster_api::CommandState;
use muster_fault::planted;
use muster_guard::{LineKind, log_peer};
use muster_topics::{
    Millis, PAYLOAD_MAX_BYTES,
    ack::{HostLives, Numbered, ReportAck},
    admission::{AdmissionReport, AdmissionStage, REASON_MAX_BYTES},
    alert::Alert,
    canonical,
    command_keys::KnownKeys,
    desired::DesiredReport,
    diagnostic::Diagnostic,
    event::{EVENT_TASKS_MAX, EVENT_TEXT_MAX_CHARS, HostEvent},
    heartbeat::{self, Heartbeat, HostState},
    name::{CommandId, HostId, Name, UnitName},
    numbered,
    outcome::{CHUNK_MAX_BYTES, Content, Data, Output, Report},
    presence::{Presence, PresenceState},
    task::TaskRecord,
    topic::{HostTopic, Topic},
    unit::UnitReport,
};
use serde::Deserialize;

use super::{
    decide::{self, HeartbeatVerdict, PresenceUpdate},
    effects::Effects,
    error::{ApplyError, FaultyMessage},
    tables::Tables,
};
use crate::{
    alert::OWN_PREFIX,
    host_share::{ShareLevel, UnitShares},
    page_change::PageChange,
    store::{
        StoreError,
        alert::MessageEffect,
        command::{Added, SettledOutcome},
        host::{HostKeys, Known, LastHeartbeat, NewState},
    },
};

/// The longest texts of an alert: the longest path, and a message around it.
const ALERT_MAX_BYTES: usize = 8 * 1024;

/// Log lines about hosts whose stored state differs from theirs.
const DIFFERS: LineKind = LineKind::new("hosts whose state differs", 600);
/// Log lines about unexpected answers of hosts.
const UNEXPECTED: LineKind = LineKind::new("unexpected answers", 60).burst(5);

type ApplyResult<T> = std::result::Result<T, ApplyError>;

/// A batch of messages for one transaction. What many messages have in common (presences, heartbeats, outcomes) is
/// collected here, and stored together by [`IngestBatch::finish`]: a statement costs ten times as much as a row in a
/// larger one.
pub struct IngestBatch {
    known: Known,
    presences: BTreeMap<HostId, Presence>,
    states: BTreeMap<HostId, NewState>,
    settled: Vec<SettledOutcome>,
    unit_shares: UnitShares,
    now: Millis,
    /// What has to follow the commit.
    pub effects: Effects,
}

impl IngestBatch {
    /// Reads the known state of the hosts that `topics` name. The units of each may have `unit_shares`.
    pub async fn begin<'a>(
        db: &mut impl Tables,
        topics: impl Iterator<Item = &'a Topic>,
        unit_shares: UnitShares,
        now: Millis,
    ) -> std::result::Result<Self, StoreError> {
        let (mut hosts, mut showing, mut beating) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
        for topic in topics {
            let Topic::Host(host, topic) = topic else { continue };
            hosts.insert(*host);
            if matches!(topic, HostTopic::Presence | HostTopic::Heartbeat) {
                showing.insert(*host);
            }
            if *topic == HostTopic::Heartbeat {
                beating.insert(*host);
            }
        }
        let of = |hosts: BTreeSet<HostId>| hosts.into_iter().collect();
        let known = db.known(&HostKeys { hosts: of(hosts), showing: of(showing), beating: of(beating) }).await?;
        let (presences, states) = (BTreeMap::new(), BTreeMap::new());
        Ok(Self { known, presences, states, settled: Vec::new(), unit_shares, now, effects: Effects::default() })
    }

    /// Applies a message; `retained`: the broker had retained it.
    pub async fn apply(
        &mut self,
        db: &mut impl Tables,
        topic: &Topic,
        payload: &[u8],
        retained: bool,
    ) -> ApplyResult<()> {
        if payload.len() > PAYLOAD_MAX_BYTES {
            return Err(FaultyMessage::TooLong(payload.len()).into());
        }
        let Topic::Host(host, topic) = topic else { return Err(FaultyMessage::Topic.into()) };
        if !self.known.members.contains(host) {
            // A retained topic is cleared with an empty message, also for a removed host.
            return if payload.is_empty() { Ok(()) } else { Err(FaultyMessage::NoMember.into()) };
        }
        match topic {
            // A cleared topic says nothing about the host.
            HostTopic::Presence if payload.is_empty() => Ok(()),
            HostTopic::Presence => {
                let presence: Presence = parse(payload)?;
                if presence.state == PresenceState::Online && !retained {
                    self.effects.shown.insert(*host);
                }
                self.presence(*host, presence);
                Ok(())
            }
            HostTopic::Heartbeat => self.heartbeat(db, *host, parse(payload)?).await,
            HostTopic::Unit(unit) if payload.is_empty() => unit_gone(db, *host, unit, &mut self.effects).await,
            HostTopic::Unit(unit) => {
                self.known.with_units.insert(*host);
                self.unit_report(db, *host, unit, (&parse(payload)?, payload.len())).await
            }
            HostTopic::Outcome => self.report(db, *host, parse(payload)?).await,
            HostTopic::Admission => {
                let report: AdmissionReport = parse(payload)?;
                if let AdmissionStage::Ended { diagnostic: Some(told), .. } = &report.stage
                    && told.texts().any(|text| text.len() > REASON_MAX_BYTES)
                {
                    return Err(FaultyMessage::Content("its message is too long").into());
                }
                self.effects.admissions.push((*host, report));
                Ok(())
            }
            // The alert has ended, which was reported before.
            HostTopic::Alert(_) if payload.is_empty() => Ok(()),
            HostTopic::Alert(id) => self.alert(db, *host, id, &parse(payload)?).await,
            HostTopic::Event => self.event(db, *host, parse(payload)?).await,
            _ => Err(FaultyMessage::Topic.into()),
        }
    }

    async fn unit_report(
        &mut self,
        db: &mut impl Tables,
        id: HostId,
        unit: &UnitName,
        (report, bytes): (&UnitReport, usize),
    ) -> ApplyResult<()> {
        if report.unit != *unit {
            return Err(FaultyMessage::Content("it is about another unit than its topic says").into());
        }
        let shares = decide::unit_shares(db.unit_share(id, unit).await?, bytes, self.unit_shares);
        for share in shares {
            self.effects.note_share(id, share);
        }
        if shares.iter().any(|share| share.level() == ShareLevel::Exceeded) {
            return Ok(());
        }
        if db.set_unit(id, report, self.now).await? {
            self.effects.changes.push(PageChange::Unit(id, unit.clone()));
        }
        Ok(())
    }

    fn presence(&mut self, id: HostId, presence: Presence) {
        let held = self.known.presences.get(&id).copied();
        let last = self.known.last_heartbeats.get(&id).copied();
        match decide::presence(held, last, &presence) {
            PresenceUpdate::Store => {}
            PresenceUpdate::Old => return,
            // Who works answers with a heartbeat and its presence.
            PresenceUpdate::Doubtful => {
                self.effects.refresh.insert(id);
                return;
            }
        }
        if let Some(last) = self.known.last_heartbeats.get_mut(&id) {
            last.follows_presence = false;
        }
        self.known.presences.insert(id, presence.order());
        self.effects.presences.push((id, presence.state == PresenceState::Online));
        // One that was made of a heartbeat says nothing of it.
        if presence.session > 0 {
            self.effects.capabilities.insert(id, presence.capabilities.clone());
        }
        self.effects.changes.push(PageChange::Host(id));
        self.presences.insert(id, presence);
    }

    async fn heartbeat(&mut self, db: &mut impl Tables, id: HostId, heartbeat: Heartbeat) -> ApplyResult<()> {
        let (epoch, made_ms, is_final) = (heartbeat.epoch, heartbeat.at_ms, heartbeat.is_final);
        let is_full = matches!(heartbeat.content, heartbeat::Content::Full { .. });
        let verdict = decide::heartbeat(self.known.held.get(&id).cloned(), heartbeat).inspect_err(|_| {
            // The host's idea of the stored state is wrong: it has to send everything.
            self.effects.refresh.insert(id);
        })?;
        match verdict {
            HeartbeatVerdict::Store { held, state } => {
                self.effects.clocks.push((id, made_ms));
                if self.known.with_units.contains(&id) {
                    forget_units(db, id, epoch, made_ms, &state, &mut self.effects).await?;
                }
                self.effects.acks(id).heartbeat = Some(Numbered { epoch, seq: held.seq });
                self.effects.changes.push(PageChange::Host(id));
                if self.known.alerted.contains(&id) || !state.alerts.is_empty() {
                    let made = (epoch, made_ms);
                    if db.reconcile_alerts(id, made, &state.alerts).await? {
                        self.effects.changes.push(PageChange::Alert(Some(id)));
                    }
                }
                self.effects.numbers.insert(id, (state.numbers.clone(), state.command_keys.clone()));
                self.effects.desired.insert(id, state.desired.clone());
                if !is_final {
                    self.lives(id, epoch, &state);
                }
                self.known.last_heartbeats.insert(id, LastHeartbeat { epoch, follows_presence: true });
                self.known.held.insert(id, held.clone());
                self.states.insert(id, NewState { host: id, held, hostname: state.hostname });
            }
            HeartbeatVerdict::Known { seq } => self.effects.acks(id).heartbeat = Some(Numbered { epoch, seq }),
            HeartbeatVerdict::Old => {}
            HeartbeatVerdict::Gap => drop(self.effects.refresh.insert(id)),
            HeartbeatVerdict::Digest { state, digest } => {
                self.effects.clocks.push((id, made_ms));
                let numbers = state.get("numbers").and_then(|numbers| numbered::known(numbers).ok());
                if let Some(keys) = state.get("command_keys").and_then(|keys| KnownKeys::deserialize(keys).ok()) {
                    self.effects.numbers.insert(id, (numbers.unwrap_or_default(), keys));
                }
                if let Some(desired) = state.get("desired").and_then(|one| DesiredReport::deserialize(one).ok()) {
                    self.effects.desired.insert(id, desired);
                }
                let units = db.last_reports(id, epoch).await?;
                let same =
                    units.is_some_and(|units| heartbeat::digest(&state, &units).is_ok_and(|held| held == digest));
                if !self.is_shown(id, epoch) {
                    self.effects.refresh.insert(id);
                }
                let same = same && !planted!(DoubtDigest);
                if !same && !planted!(AnyDigest) {
                    log_peer!(WARN, id, DIFFERS, host.id = %id, "the stored state of a host does not match its reports; it is asked for its whole state");
                    self.effects.refresh.insert(id);
                }
            }
        }
        // Also to an agent whose heartbeats are older than a stored one: its clock is behind that of a life it does not know.
        if is_full && let Some(held) = self.known.held.get(&id) {
            let heard = held.lives.iter().map(|life| canonical::signable(*life)).collect();
            self.effects.acks(id).answer_lives(HostLives { asked_by: canonical::signable(epoch), heard });
        }
        Ok(())
    }

    async fn alert(&mut self, db: &mut impl Tables, host: HostId, id: &Name, alert: &Alert) -> ApplyResult<()> {
        if alert.id != *id {
            return Err(FaultyMessage::Content("it is about another alert than its topic says").into());
        }
        if id.as_str().starts_with(OWN_PREFIX) {
            return Err(FaultyMessage::Content("its id is one of the console's own").into());
        }
        let texts = alert.diagnostic.texts().map(str::len).sum::<usize>() + alert.mount.as_ref().map_or(0, String::len);
        if texts > ALERT_MAX_BYTES {
            return Err(FaultyMessage::Content("its texts are too long").into());
        }
        match db.put_alert(host, alert, self.now).await? {
            MessageEffect::New => {
                self.known.alerted.insert(host);
                self.effects.changes.push(PageChange::Alert(Some(host)));
            }
            MessageEffect::Known => {}
            MessageEffect::TooMany => {
                return Err(FaultyMessage::Content("it has more active alerts than a host may have").into());
            }
        }
        self.effects.acks(host).alerts.insert(alert.key());
        Ok(())
    }

    async fn event(&mut self, db: &mut impl Tables, host: HostId, event: HostEvent) -> ApplyResult<()> {
        let is_short = |text: &str| text.chars().count() <= EVENT_TEXT_MAX_CHARS;
        let is_good = |task: &TaskRecord| {
            let mut texts = task.diagnostic.iter().flat_map(Diagnostic::texts);
            task.is_event() && is_short(&task.about) && texts.all(is_short)
        };
        if event.tasks.len() > EVENT_TASKS_MAX || !event.tasks.iter().all(is_good) {
            return Err(FaultyMessage::Content("its tasks are too many or too long, or have not ended").into());
        }
        if db.put_task_ends(host, &event.tasks).await? {
            self.effects.changes.push(PageChange::Tasks(host));
        }
        self.effects.acks(host).tasks.extend(event.tasks.iter().map(TaskRecord::key));
        Ok(())
    }

    /// Handles evidence that a host is online, whatever its presence: a heartbeat that is not the last one of its
    /// instance.
    fn lives(&mut self, id: HostId, epoch: u64, state: &HostState) {
        match self.known.presences.get(&id).copied() {
            Some(_) if self.is_shown(id, epoch) => drop(self.effects.shown.insert(id)),
            // It was marked as offline by mistake, or shadowed by a clone that has left: it publishes its presence
            // again on request.
            Some((held, _, _)) if held >= epoch => drop(self.effects.refresh.insert(id)),
            // No presence of this instance has arrived: brokers lose some when many come at once. Session 0 is
            // before all sessions of a host, so any presence counts as later.
            _ => self.presence(id, decide::presence_of(epoch, state)),
        }
    }

    /// Whether a host counts as online, in this instance.
    fn is_shown(&self, id: HostId, epoch: u64) -> bool {
        matches!(self.known.presences.get(&id), Some((held, _, false)) if *held == epoch)
    }

    async fn report(&mut self, db: &mut impl Tables, id: HostId, report: Report) -> ApplyResult<()> {
        let Report { command, seq, content, .. } = report;
        let acknowledged = ReportAck { command, seq };
        let effects = &mut self.effects;
        match content {
            Content::Done { mut outcome } => {
                for output in [&mut outcome.stdout, &mut outcome.stderr] {
                    shorten(output);
                }
                effects.acks(id).reports.insert(acknowledged);
                if planted!(AckUnstored) {
                    return Ok(());
                }
                self.settled.push(SettledOutcome { command, host: id, outcome });
            }
            content => {
                let state = match db.state(command, id).await? {
                    Some(state) => state,
                    None if unexpected(db, id, command).await? => CommandState::Waiting,
                    None => {
                        unknown(id, command);
                        // The host may forget it: it will never be needed.
                        effects.acks(id).reports.insert(acknowledged);
                        return Ok(());
                    }
                };
                match content {
                    // Hosts do not keep these, so they need no acknowledgement.
                    Content::Accepted => advance(db, id, command, state, CommandState::Accepted, effects).await?,
                    Content::Running => advance(db, id, command, state, CommandState::Running, effects).await?,
                    Content::Output { stream, offset_bytes, data } => {
                        effects.acks(id).reports.insert(acknowledged);
                        let data = data.to_bytes().map_err(|_| FaultyMessage::Content("its output is not base64"))?;
                        match db.add_output(command, id, stream, offset_bytes, &data).await? {
                            Added::New => {
                                effects.changes.push(PageChange::Command(command));
                                effects.printed.insert(id);
                            }
                            Added::Known => (),
                            Added::TooMuch => {
                                return Err(
                                    FaultyMessage::Content("its output is longer than the command allows").into()
                                );
                            }
                        }
                    }
                    // The host keeps nothing of it: it waits its turn here.
                    Content::Busy => effects.busy.push((command, id)),
                    Content::Done { .. } => (),
                }
            }
        }
        Ok(())
    }

    /// Stores what was collected; returns what has to follow the commit.
    pub async fn finish(mut self, db: &mut impl Tables) -> std::result::Result<Effects, StoreError> {
        let presences: Vec<_> = self.presences.into_iter().collect();
        db.set_presences(&presences, self.now).await?;
        let states: Vec<_> = self.states.into_values().collect();
        db.set_held(&states, self.now).await?;
        // The first outcome stays; of several in one batch the first is tried.
        let mut firsts = HashSet::new();
        self.settled.retain(|one| firsts.insert((one.command, one.host)));
        let strangers = db.settle(&self.settled, self.now).await?;
        let mut told = BTreeSet::new();
        for one in self.settled {
            let SettledOutcome { command, host, .. } = one;
            if strangers.contains(&(command, host)) {
                if !unexpected(db, host, command).await? {
                    unknown(host, command);
                    continue;
                }
                db.settle(&[one], self.now).await?;
            }
            // Earlier stored ones, too: which are new is not read back.
            told.insert(command);
            self.effects.settled.push((command, host));
        }
        self.effects.changes.extend(told.into_iter().map(PageChange::Command));
        Ok(self.effects)
    }
}

/// Adds a host to a command that it answers unexpectedly, if it matches: the console's knowledge was outdated when the
/// command was issued.
async fn unexpected(db: &mut impl Tables, host: HostId, command: CommandId) -> std::result::Result<bool, StoreError> {
    // As accepted: a host that answers has the command, and owes the outcome.
    let added = db.add_host(command, host, CommandState::Accepted).await?;
    if added {
        log_peer!(INFO, host, UNEXPECTED, host.id = %host, command.id = %command, "a host answers a broadcast that was not expected to");
    }
    Ok(added)
}

/// Handles an answer to a command of a ledger that was restored or swept since.
fn unknown(host: HostId, command: CommandId) {
    log_peer!(WARN, host, UNEXPECTED, host.id = %host, command.id = %command, "an answer to a command that is not in the ledger");
}

fn parse<T: serde::de::DeserializeOwned>(payload: &[u8]) -> ApplyResult<T> {
    serde_json::from_slice(payload).map_err(|error| FaultyMessage::Payload(error).into())
}

/// Removes units that a full heartbeat does not list. The message that clears a unit's topic is not retained, so a
/// disconnected console misses it.
async fn forget_units(
    db: &mut impl Tables,
    id: HostId,
    epoch: u64,
    made_ms: Millis,
    state: &HostState,
    effects: &mut Effects,
) -> ApplyResult<()> {
    for unit in db.units_before(id, epoch, made_ms).await? {
        if !state.units.contains_key(&unit) && !planted!(KeepUnits) {
            unit_gone(db, id, &unit, effects).await?;
        }
    }
    Ok(())
}

async fn unit_gone(db: &mut impl Tables, id: HostId, unit: &UnitName, effects: &mut Effects) -> ApplyResult<()> {
    if db.remove_unit(id, unit).await? {
        effects.changes.push(PageChange::Unit(id, unit.clone()));
    }
    Ok(())
}

async fn advance(
    db: &mut impl Tables,
    id: HostId,
    command: CommandId,
    from: CommandState,
    to: CommandState,
    effects: &mut Effects,
) -> ApplyResult<()> {
    if decide::advances(from, to) {
        db.advance(command, id, to).await?;
        effects.answered.push((command, id));
        effects.changes.push(PageChange::Command(command));
    }
    Ok(())
}

/// Removes output from an outcome if it is longer than an agent sends.
fn shorten(output: &mut Output) {
    let is_longer = |rest: &Data| rest.to_bytes().map_or(true, |bytes| bytes.len() > CHUNK_MAX_BYTES);
    if output.rest.as_ref().is_some_and(is_longer) {
        output.rest = None;
    }
}
