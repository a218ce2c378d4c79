//! Turns an operator's request into a signed command, and sends it until it is answered or expires.
//!
//! Modules: [`address`] (its hosts), [`command_check`] (validation), [`schedule`] (when it is sent, and to whom). The rest is
//! here: [`submit`], and the task that performs the schedule's actions. That task also calls the roll
//! on each connection to the broker, because it sends to online hosts only.
//!
//! **Invariant: the body of a command is made once**, and stored before it is first sent; only the stored text is ever sent,
//! signed for each slot that has hosts of the command. Hosts recognise a repetition by its id.
//!
//! **Invariant: only [`authorise`] makes an [`AuthorisedCommand`]**, and only that can be issued.

mod address;
mod command_check;
pub(super) mod event;
pub mod schedule;

pub use event::DispatchEvent;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use axum::http::StatusCode;
use muster_topics::{
    Millis, V1,
    asker::Asker,
    command::{Command, Refresh, Target, Verb},
    diagnostic::Diagnostic,
    envelope::{self, EnvelopeError, UnsignedMessage},
    name::{CommandId, HostId, Name},
    outcome::{Outcome, Output, RefusalCode, Status},
    sealed::{Sealed, SealingKey},
    slot::Slot,
    topic::{HostTopic, Topic},
};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

pub(crate) use self::command_check::{resolve, unknown_host, verb as check_verb};
use muster_api::{HostProgress, NewCommand};
use muster_base::{certain_clock::CertainClock, clock::now_ms, clock_steps::ClockSteps};
use muster_bus::sealing::{self, SealError};
use muster_fault::planted;
use muster_rules::{
    capability::{self, MissingCapability},
    intent::CommandClass,
};

use self::{
    address::TargetHosts,
    schedule::{Schedule, ScheduleAction, UndeliveredEnd},
};
use super::{
    authority::Authority,
    command_signer::SignError,
    content,
    error::Error,
    given::{self, CommandGifts},
    label,
    list::first_names,
    page_change::PageChange,
    realm, register, rotation, secret,
    state::{Console, ConsoleState},
    store::{
        self, Store, StoreError,
        command::{CommandReach, OpenCommand, SettledOutcome},
        host,
    },
};

/// Events that wait for the task: those of one batch of ingest, and some submissions.
pub const EVENTS: usize = 1_024;
/// The most open commands: one takes about 200 bytes, and 150 for each host.
const OPEN_MAX: u64 = 10_000;
/// The most open commands for one host by name: half, so that a host that is away for a week does not block others.
const OPEN_OF_HOST_MAX: u64 = OPEN_MAX / 2;
/// The clock may be set during a sleep, so it is checked at least this often.
const SLEEP_MAX: Duration = Duration::from_secs(60);
/// How long a host may take to report everything after a request: its throttle of 5 s, and repetitions where brokers
/// lose messages.
const ROLL_CALL: Duration = Duration::from_secs(60);
/// The most hosts that an error names.
const NAMED_MAX: usize = 10;
/// The pause after a failure of the store.
const STORE_PAUSE: Duration = Duration::from_secs(1);

impl Console {
    /// Signs, stores and publishes a command.
    pub async fn submit(&self, operator: &Name, command: muster_api::NewCommand) -> Result<muster_api::Command, Error> {
        self::submit(self, operator, command).await
    }

    /// Asks a host, by id or unique hostname, to report everything again.
    pub async fn refresh(&self, operator: &Name, host: &str) -> Result<(), Error> {
        self::refresh(&self.shared, operator, self.resolve_host(host).await?).await
    }
}

/// A command that its operator may give; only [`authorise`] makes one.
#[derive(Debug)]
struct AuthorisedCommand {
    operator: Name,
    command: NewCommand,
}

/// Checks whether an operator may give this command. There is one role so far: every operator may do everything.
async fn authorise(shared: &ConsoleState, operator: &Name, command: NewCommand) -> Result<AuthorisedCommand, Error> {
    shared.check_operator(operator).await?;
    Ok(AuthorisedCommand { operator: operator.clone(), command })
}

/// Signs, stores and publishes an operator's command, except verbs that only the console may use.
pub async fn submit(console: &Console, operator: &Name, command: NewCommand) -> Result<muster_api::Command, Error> {
    if matches!(command.verb, Verb::RealmSet { .. } | Verb::RealmRm { .. }) {
        return Err(Error::invalid("not_by_command", "realms are kept by the console, which tells the hosts")
            .hint("use `muster realm`, or the API's /v1/realms"));
    }
    announce(console, operator, command).await
}

/// Signs, stores and publishes a command.
pub async fn announce(console: &Console, operator: &Name, command: NewCommand) -> Result<muster_api::Command, Error> {
    let issued = announce_all(console, operator, vec![command]).await?;
    issued.into_iter().next().ok_or_else(|| Error::invalid("no_command", "nothing to do"))
}

/// Signs, stores and publishes commands: all, or none. The caller may be dropped at any time; this must not happen
/// between storing and publishing, or the commands would stay in the store until the next start.
pub async fn announce_all(
    console: &Console,
    operator: &Name,
    commands: Vec<NewCommand>,
) -> Result<Vec<muster_api::Command>, Error> {
    let mut authorised = Vec::new();
    for command in commands {
        authorised.push(authorise(&console.shared, operator, command).await?);
    }
    let issuing = console.clone();
    let issued = tokio::spawn(async move { issue(&issuing, authorised).await });
    issued.await.map_err(|error| Error::internal("issuing the command", &error))?
}

/// A signed command, ready to be stored.
struct PreparedCommand {
    command: Command,
    signed: Vec<u8>,
    hosts: TargetHosts,
    /// For each host the key of the sealed content; empty if nothing is sealed.
    keys: HashMap<HostId, String>,
    /// What it gives to its hosts.
    gifts: CommandGifts,
    /// The signed time; the command's own times are by the console's clock, by which it expires here.
    signed_ms: Millis,
}

impl PreparedCommand {
    /// Returns the command as lists show it.
    fn shown(self, away: &HashMap<HostId, Millis>) -> muster_api::Command {
        let Self {
            command: Command { id, target, issued_ms, expires_ms, asked_by, verb, .. }, mut hosts, gifts, ..
        } = self;
        hosts.sort_unstable_by(|(one, its_name), (other, name)| (its_name, one).cmp(&(name, other)));
        let line = |(host, hostname)| muster_api::CommandHost {
            host,
            hostname,
            progress: HostProgress::Waiting { away_since_ms: away.get(&host).copied(), reason: None },
        };
        let hosts = hosts.into_iter().map(line).collect();
        let target = target.broadcast().is_some().then_some(target);
        muster_api::Command {
            id,
            operator: asked_by.operator,
            issued_ms,
            expires_ms,
            verb: verb.masked(),
            target,
            hosts,
            withheld: gifts.withheld,
        }
    }
}

async fn issue(console: &Console, authorised: Vec<AuthorisedCommand>) -> Result<Vec<muster_api::Command>, Error> {
    let shared = &*console.shared;
    // Content must not be removed between the check and the command.
    let _content = shared.content.lock.lock().await;
    let mut ready = Vec::new();
    for one in authorised {
        ready.push(make_ready(console, one).await?);
    }
    if store::command::open_count(shared.store.read()).await? + ready.len() as u64 > OPEN_MAX {
        return Err(Error::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "too_many_open",
            format!("{OPEN_MAX} commands wait for their outcome, the maximum"),
        )
        .hint("wait until some have ended, or use a shorter expiry"));
    }
    check_crowd(&shared.store, &ready).await?;
    // A revoked host that a broker still accepts would obey a broadcast: then it is sent to each member alone.
    let is_broadcast_safe = shared.revocations_are_in_force().await?;
    // Waiting commands are recorded as such, and recorded again before they are sent; immediate ones, of which many
    // may come at once, are sent at once. A cancellation that no host needs is never sent.
    let (mut waiting, mut unneeded) = (HashSet::new(), HashMap::new());
    for PreparedCommand { command, hosts, .. } in &ready {
        let without = unneeded_hosts(&shared.store, command, hosts).await?;
        if !hosts.is_empty() && hosts.iter().all(|(host, _)| without.contains(host)) {
            waiting.insert(command.id);
        }
        unneeded.insert(command.id, without);
        let hosts: Vec<HostId> = hosts.iter().map(|(host, _)| *host).collect();
        if command.target.broadcast().is_none() && !host::is_any_online(shared.store.read(), &hosts).await? {
            waiting.insert(command.id);
        }
    }
    shared.held_back().extend(&waiting);
    let mut transaction = shared.store.begin().await?;
    for PreparedCommand { command, signed, hosts, keys, gifts, signed_ms } in &ready {
        Store::note_signed_ms(&mut transaction, *signed_ms).await?;
        let hosts: Vec<HostId> = hosts.iter().map(|(host, _)| *host).collect();
        store::command::add(&mut transaction, command, signed, &hosts).await?;
        if waiting.contains(&command.id) {
            store::command::hold_back(&mut transaction, command.id).await?;
        }
        given::record(&mut transaction, command, &hosts, gifts).await?;
        if !keys.is_empty() {
            store::command::set_sealed_keys(&mut transaction, command.id, keys).await?;
        }
    }
    transaction.commit().await.map_err(StoreError::from)?;
    for one in &ready {
        let PreparedCommand { command, hosts, .. } = one;
        let broadcast = command.target.broadcast().filter(|_| is_broadcast_safe);
        let (id, expires_ms) = (command.id, command.expires_ms);
        tracing::info!(command.id = %id, verb = command.verb.name(), operator = %command.asked_by.operator, hosts = hosts.len(), "a command is issued");
        // A command that is over is not cancelled; a host that never got it would answer it again.
        let without = unneeded.remove(&id).unwrap_or_default();
        let reached = |host: &HostId| if without.contains(host) { CommandReach::Unneeded } else { CommandReach::No };
        let hosts = hosts.iter().map(|(host, _)| (*host, reached(host))).collect();
        let open =
            OpenCommand { id, expires_ms, bytes: one.signed.len(), kind: CommandClass::of(&command.verb), hosts };
        let _ = shared.commands.dispatch.send(DispatchEvent::Submitted { open, broadcast }).await;
        shared.changed(PageChange::Command(id));
    }
    let to_many = ready.iter().any(|one| one.command.target.broadcast().is_some());
    let named: Vec<HostId> = ready.iter().flat_map(|one| &one.hosts).map(|(host, _)| *host).collect();
    let away = host::away(shared.store.read(), (!to_many).then_some(&named)).await?;
    Ok(ready.into_iter().map(|one| one.shown(&away)).collect())
}

/// Returns the hosts that need not get a cancellation, because they have nothing to do with its command any more. Only
/// hosts know whom a group or a selector matches.
async fn unneeded_hosts(store: &Store, command: &Command, hosts: &TargetHosts) -> Result<HashSet<HostId>, StoreError> {
    match (&command.verb, &command.target) {
        (Verb::Cancel { command }, Target::Hosts(_) | Target::All) => {
            let hosts: Vec<HostId> = hosts.iter().map(|(host, _)| *host).collect();
            store::command::done_with(store.read(), *command, &hosts).await
        }
        _ => Ok(HashSet::new()),
    }
}

/// Returns the hosts of a target, as the console knows them now.
pub(crate) async fn target_hosts(shared: &ConsoleState, wanted: &muster_api::NewTarget) -> Result<TargetHosts, Error> {
    address::resolve(shared, wanted).await.map(|(_, hosts)| hosts)
}

/// Checks that there is room for commands to hosts by name.
async fn check_crowd(store: &Store, ready: &[PreparedCommand]) -> Result<(), Error> {
    let mut more: HashMap<HostId, u64> = HashMap::new();
    for one in ready.iter().filter(|one| one.command.target.broadcast().is_none()) {
        one.hosts.iter().for_each(|(host, _)| *more.entry(*host).or_default() += 1);
    }
    let hosts: Vec<HostId> = more.keys().copied().collect();
    let most = more.into_values().max().unwrap_or(0);
    let crowded = store::command::crowded(store.read(), &hosts, (OPEN_OF_HOST_MAX + 1).saturating_sub(most)).await?;
    let Some(host) = crowded.first().filter(|_| most > 0) else { return Ok(()) };
    let name = ready.iter().flat_map(|one| &one.hosts).find(|(id, _)| id == host).map_or("", |(_, name)| name);
    Err(Error::new(
        StatusCode::SERVICE_UNAVAILABLE,
        "too_many_open",
        format!("{OPEN_OF_HOST_MAX} commands wait for {name} ({host}), the maximum"),
    )
    .hint("`muster command ls --host` lists them, and `muster command cancel` cancels one"))
}

/// Checks a command, and signs it.
async fn make_ready(
    console: &Console,
    AuthorisedCommand { operator, command }: AuthorisedCommand,
) -> Result<PreparedCommand, Error> {
    let shared = &*console.shared;
    let (target, hosts) = address::resolve(shared, &command.target).await?;
    command_check::verb(&command.verb, target.broadcast().is_some())?;
    check_content(console, &command.verb).await?;
    let mut verb = command.verb;
    let ids: Vec<HostId> = hosts.iter().map(|(host, _)| *host).collect();
    let gifts = secret::resolve(console, &mut verb, &ids).await?;
    console.check_chosen(&target, &gifts).await?;
    if let Some(from) = &command.copied_from {
        console.check_copy(from, &verb).await?;
    }
    for there in &gifts.withheld {
        tracing::warn!(
            host.id = %there.host, unit = %there.unit,
            "a unit that the console has not given to its host is changed without its configs and secrets"
        );
    }
    if gifts.has_secrets() {
        sealing_keys(&shared.store, &hosts, "secrets").await?;
    }
    check_capabilities(shared, &verb, &hosts)?;
    let given_ms = now_ms();
    let given_until_ms = command_check::expiry(given_ms, &verb, command.expires_in_ms)?;
    let issued_ms = date_for(shared, &hosts, given_ms).await?;
    let expires_ms = issued_ms + (given_until_ms - given_ms);
    let id = CommandId::new();
    let (sealed, keys) = seal(&shared.store, id, &mut verb, &hosts).await?;
    let realms = realm::chain(&shared.store, &verb).await?;
    let command =
        Command { v: V1, id, target, issued_ms, expires_ms, asked_by: Asker::admin(operator), realms, verb, sealed };
    let slot = hosts.first().map(|(host, _)| host.slot()).unwrap_or_default();
    let signed = sign(&shared.authority, slot, &command).await?;
    let command = Command { issued_ms: given_ms, expires_ms: given_until_ms, ..command };
    Ok(PreparedCommand { command, signed, hosts, keys, gifts, signed_ms: issued_ms })
}

/// Refuses what some hosts are known to lack something for. One that has not said what it can do judges itself.
fn check_capabilities(shared: &ConsoleState, verb: &Verb, hosts: &TargetHosts) -> Result<(), Error> {
    let needs = capability::needed_by_command(verb);
    if needs.is_empty() {
        return Ok(());
    }
    let mut lacking: BTreeMap<MissingCapability, Vec<&str>> = BTreeMap::new();
    for (host, name) in hosts {
        if let Some(missing) = shared.hosts.desired.lacks(*host, &needs) {
            lacking.entry(missing).or_default().push(name);
        }
    }
    let Some((missing, names)) = lacking.into_iter().next() else { return Ok(()) };
    let named = first_names(&names, NAMED_MAX);
    Err(Error::conflict("host_lacks", format!("the command cannot be done on {named}: {missing}"))
        .hint(format!("{}; or name other hosts", missing.hint())))
}

/// Returns the signed time for these hosts. Some rely on times that were signed while the console's clock was ahead, and do not
/// go back; whether it was, or is behind now, only hosts can tell.
async fn date_for(shared: &ConsoleState, hosts: &TargetHosts, now: Millis) -> Result<Millis, StoreError> {
    if shared.hosts.signing_time.ahead_ms(now) == 0 {
        return Ok(shared.hosts.signing_time.ms(now));
    }
    let hosts: Vec<HostId> = hosts.iter().map(|(host, _)| *host).collect();
    let is_free =
        shared.hosts.signing_time.is_confirmed(now) && !host::is_any_bound(shared.store.read(), &hosts).await?;
    Ok(if is_free { shared.hosts.signing_time.ms(now) } else { shared.hosts.signing_time.bound_ms(now) })
}

/// Seals what only the hosts of a command may read, to each of them. From here on it is in clear only on them.
async fn seal(
    store: &Store,
    command: CommandId,
    verb: &mut Verb,
    hosts: &TargetHosts,
) -> Result<(Option<Sealed>, HashMap<HostId, String>), Error> {
    let failed = |error: SealError| Error::internal("sealing the command", &error);
    let secret = verb.secret().unwrap_or("secret");
    let Some((sealed, content)) = sealing::seal(verb, command).map_err(failed)? else { return Ok(Default::default()) };
    let mut keys = HashMap::new();
    for (host, key) in sealing_keys(store, hosts, secret).await? {
        keys.insert(host, content.seal_to(&key, command, host).map_err(failed)?);
    }
    Ok((Some(sealed), keys))
}

/// Returns the keys of all hosts of a command that carries, or refers to, something that only its hosts may read.
async fn sealing_keys(store: &Store, hosts: &TargetHosts, secret: &str) -> Result<HashMap<HostId, SealingKey>, Error> {
    let ids: Vec<HostId> = hosts.iter().map(|(host, _)| *host).collect();
    let known = host::sealing_keys(store.read(), &ids).await?;
    let without: Vec<&str> =
        hosts.iter().filter(|(host, _)| !known.contains_key(host)).map(|(_, name)| name.as_str()).collect();
    if !without.is_empty() {
        let named = first_names(&without, NAMED_MAX);
        let message = format!(
            "the command has {secret} that only its hosts may read, and there is \
                 no sealing key yet for {named}"
        );
        return Err(Error::conflict("no_sealing_key", message).hint(
            "a host sends its key as soon as it reaches the console's port \
                 for hosts (`hosts_listen`); wait for it, or name other hosts",
        ));
    }
    Ok(known)
}

/// Signs a command for the hosts of one slot; for those of others it is signed when it is sent.
async fn sign(authority: &Authority, slot: Slot, command: &Command) -> Result<Vec<u8>, Error> {
    let room = if command.sealed.is_some() { envelope::KEY_ROOM_BYTES } else { 0 };
    let signed = authority.keys().signer.sign(slot, command).await.and_then(|bytes| match bytes.len() + room {
        length if length > muster_topics::PAYLOAD_MAX_BYTES => Err(EnvelopeError::TooLong(length).into()),
        _ => Ok(bytes),
    });
    signed.map_err(|error| match error {
        SignError::Message(EnvelopeError::TooLong(bytes)) => Error::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            "too_large",
            format!("the signed command has {bytes} bytes; at most {} are allowed", muster_topics::PAYLOAD_MAX_BYTES),
        )
        .hint("put what is large into an artifact or a config"),
        SignError::Message(EnvelopeError::NotStrict(error)) => Error::invalid("bad_command", error.to_string()),
        other => rotation::unsigned("signing the command", other),
    })
}

/// Checks that artifact and configs of a unit are stored: hosts will fetch them from here.
async fn check_content(console: &Console, verb: &Verb) -> Result<(), Error> {
    match verb {
        Verb::UnitApply { .. } | Verb::UnitsApply(_) => {
            for (_, spec) in verb.specs() {
                content::check_unit(console, spec).await?;
            }
            Ok(())
        }
        // The host knows the unit's other parts.
        Verb::UnitUpgrade { artifact, configs, .. } => content::check_parts(console, artifact.as_ref(), configs).await,
        _ => Ok(()),
    }
}

/// Sends and repeats commands, until the console stops. What it waits for, and when commands end, goes by the time that has
/// certainly come ([`crate::certain_time`]), so that no clock that is set ends a command.
pub(crate) async fn run(
    shared: Arc<ConsoleState>,
    mut events: mpsc::Receiver<DispatchEvent>,
    shutdown: CancellationToken,
) {
    let (mut schedule, mut left) = loop {
        match load(&shared).await {
            Ok(loaded) => break loaded,
            Err(error) => tracing::error!(%error, hint = error.hint(), "open commands cannot be read; retrying"),
        }
        tokio::select! {
            () = shutdown.cancelled() => return,
            () = tokio::time::sleep(STORE_PAUSE) => (),
        }
    };
    let mut roll_call: Option<RollCall> = None;
    let time = &shared.time;
    let (mut steps, mut known_steps) = (ClockSteps::new(now_ms()), ClockSteps::new(time.known_ms()));
    let mut remembered_ms = shared.hosts.signing_time.latest_ms();
    loop {
        let next_ms =
            [schedule.next_ms(), roll_call.as_ref().map(|called| called.until_ms)].into_iter().flatten().min();
        let next_ms = if left.is_empty() { next_ms } else { Some(time.now()) };
        let wake = next_ms
            .map_or(SLEEP_MAX, |at| Duration::from_millis(u64::try_from(at - time.now()).unwrap_or(0)).min(SLEEP_MAX));
        let (mut actions, mut taken) = (std::mem::take(&mut left), Vec::new());
        tokio::select! {
            // Cancel-safe: events are received or stay in the channel.
            count = events.recv_many(&mut taken, EVENTS) => if count == 0 { return },
            () = tokio::time::sleep(wake) => (),
            () = shutdown.cancelled() => return,
        }
        let is_set = known_steps.take(time.known_ms()) != 0;
        if steps.take(now_ms()) < 0 || is_set {
            // Open commands are to expire by what is known of the time now.
            match load(&shared).await {
                Ok((anew, more)) => (schedule, actions) = (anew, more),
                Err(error) => {
                    tracing::error!(%error, hint = error.hint(), "open commands cannot be read again and may end late");
                }
            }
        }
        for event in taken {
            match &event {
                DispatchEvent::Connected | DispatchEvent::ClockSet | DispatchEvent::SignerBack => {
                    roll_call = refresh_all(&shared).await;
                }
                DispatchEvent::Shown(hosts) => roll_call.iter_mut().for_each(|called| called.answered(hosts)),
                _ => (),
            }
            actions.extend(take(&mut schedule, in_certain_time(event, time), time.now()));
        }
        if roll_call.as_ref().is_some_and(|called| called.is_void(time.now())) {
            roll_call = refresh_all(&shared).await;
        }
        if let Some(called) = roll_call.take_if(|called| called.is_over(time.now())) {
            roll_call = close_roll_call(&shared, &mut schedule, called).await;
        }
        actions.extend(schedule.due(time.now()));
        if let Err(error) = perform(&shared, &mut schedule, actions).await {
            // Unsent commands are sent again later; missing ones are found at the next start.
            tracing::error!(%error, hint = error.hint(), "commands cannot be sent");
        }
        remember_date(&shared, &mut remembered_ms).await;
    }
}

/// A command is submitted by the clock, and ends as long after now as it was to, whatever the clock shows.
fn in_certain_time(event: DispatchEvent, time: &CertainClock) -> DispatchEvent {
    match event {
        DispatchEvent::Submitted { mut open, broadcast } => {
            open.expires_ms = open.expires_ms.saturating_sub(time.ahead_ms(now_ms()));
            DispatchEvent::Submitted { open, broadcast }
        }
        other => other,
    }
}

/// Stores the latest signed time now and then. What a crash loses of it is shorter than most commands live.
async fn remember_date(shared: &ConsoleState, remembered_ms: &mut Millis) {
    let latest_ms = shared.hosts.signing_time.latest_ms();
    if (latest_ms - *remembered_ms).abs() < to_ms(SLEEP_MAX) {
        return;
    }
    match shared.store.set_signed_ms(latest_ms).await {
        Ok(()) => {
            *remembered_ms = latest_ms;
            if let Err(error) = register::write_mark(&shared.settings.started_with.data_dir, &shared.store).await {
                tracing::error!(%error, hint = Diagnostic::of(&error).hint, "the mark of the store cannot be written");
            }
        }
        Err(error) => tracing::error!(%error, hint = error.hint(), "the latest date that was signed cannot be stored"),
    }
}

async fn load(shared: &ConsoleState) -> Result<(Schedule, Vec<ScheduleAction>), StoreError> {
    // While the clock is further ahead than is known, it cannot be told whether it was ahead before, too.
    let ahead = match shared.time.ahead_ms(now_ms()) {
        0 => store::command::date_back(shared.store.write(), shared.time.known_ms()).await?,
        _ => 0,
    };
    let now = shared.time.now();
    if ahead > 0 {
        tracing::warn!(
            commands = ahead,
            "open commands were issued by a clock that was ahead; they end after their original lifetime from now"
        );
    }
    let online = host::online(shared.store.read()).await?;
    let mut open = store::command::open(shared.store.read()).await?;
    for one in &mut open {
        mark_unneeded(&shared.store, one).await?;
    }
    let is_here = |open: &&OpenCommand| open.hosts.iter().all(|(_, reached)| *reached == CommandReach::No);
    shared.held_back().extend(open.iter().filter(is_here).map(|open| open.id));
    let loaded = Schedule::load(online, open, now);
    tracing::debug!(commands = loaded.0.open_commands(), "open commands");
    Ok(loaded)
}

/// Marks the hosts that need not get a cancellation; see [`unneeded_hosts`]. The console may have ended before it knew.
async fn mark_unneeded(store: &Store, open: &mut OpenCommand) -> Result<(), StoreError> {
    let CommandClass::Cancel(which) = open.kind else { return Ok(()) };
    let hosts: Vec<HostId> = open.hosts.iter().map(|(host, _)| *host).collect();
    let unneeded = store::command::done_with(store.read(), which, &hosts).await?;
    for (host, reached) in &mut open.hosts {
        if unneeded.contains(host) && *reached == CommandReach::No {
            *reached = CommandReach::Unneeded;
        }
    }
    Ok(())
}

/// Handles an event; returns what is to be done.
pub fn take(schedule: &mut Schedule, event: DispatchEvent, now: Millis) -> Vec<ScheduleAction> {
    match event {
        DispatchEvent::Submitted { open, broadcast } => return schedule.open(open, broadcast, now),
        DispatchEvent::Answered(command, host) => schedule.answered(command, host, now),
        DispatchEvent::Settled(command, host) => schedule.settled(command, host, now),
        DispatchEvent::Busy(command, host) => schedule.busy(command, host, now),
        DispatchEvent::Presence(host, online) => schedule.presence(host, online, now),
        DispatchEvent::Left(host) => schedule.leave(host, now),
        DispatchEvent::Shown(_) | DispatchEvent::ClockSet | DispatchEvent::SignerBack => (),
        DispatchEvent::Connected => schedule.connected(now),
    }
    Vec::new()
}

/// A request to all hosts to report.
#[derive(Clone, Debug)]
pub struct RollCall {
    since_ms: Millis,
    /// Hosts that have not reported by then are offline.
    pub until_ms: Millis,
    answered: HashSet<HostId>,
}

impl RollCall {
    /// Requests a full heartbeat from `hosts` hosts, each after a random part of a time that grows with the fleet: at 2
    /// ms a host, ten thousand answer within 20 s, 500 a second.
    pub fn new(hosts: u64, now: Millis) -> (Self, Refresh) {
        let within_ms = hosts.saturating_mul(2).clamp(100, 60_000);
        let until_ms = now + to_ms(ROLL_CALL) + Millis::try_from(within_ms).unwrap_or(0);
        let until_ms = if planted!(NoRollCall) { Millis::MAX } else { until_ms };
        (Self { since_ms: now, until_ms, answered: HashSet::new() }, Refresh { v: V1, issued_ms: now, within_ms })
    }

    /// Whether it was made at a time in the future: the clock was set back, and it is unknown who has answered.
    pub fn is_void(&self, now: Millis) -> bool {
        now < self.since_ms
    }

    /// Records that these hosts have reported.
    pub fn answered(&mut self, hosts: &BTreeSet<HostId>) {
        self.answered.extend(hosts);
    }

    /// Returns the hosts among `online` that have not reported.
    pub fn missing(&self, mut online: Vec<HostId>) -> Vec<HostId> {
        online.retain(|host| !self.answered.contains(host));
        online
    }

    /// Whether the time is over.
    pub fn is_over(&self, now: Millis) -> bool {
        self.until_ms <= now
    }
}

/// Requests a full heartbeat from every host; `None` if the request was not sent.
async fn refresh_all(shared: &ConsoleState) -> Option<RollCall> {
    let hosts = host::count(shared.store.read()).await.map_or(0, |(all, _)| all);
    let (called, mut refresh) = RollCall::new(hosts, shared.time.now());
    refresh.issued_ms = shared.hosts.signing_time.another_ms(now_ms());
    for slot in member_slots(shared)
        .await
        .inspect_err(|error| tracing::error!(%error, hint = error.hint(), "hosts cannot be read"))
        .ok()?
    {
        match shared.authority.keys().signer.sign(slot, &refresh).await {
            Ok(bytes) => {
                if !shared.hosts.link.publish_in_turn(Topic::CommandAll(slot), bytes).await {
                    return None;
                }
            }
            Err(error) => {
                tracing::error!(%error, hint = Diagnostic::of(&error).hint, "a message cannot be signed");
                return None;
            }
        }
    }
    Some(called)
}

/// Returns the slots that have members. Hosts themselves decide whether a broadcast is for them, so it is published for each of
/// these.
async fn member_slots(shared: &ConsoleState) -> Result<BTreeSet<Slot>, StoreError> {
    Ok(host::names(shared.store.read()).await?.into_iter().map(|(host, _)| host.slot()).collect())
}

/// Marks hosts that have not reported as offline. A host that ended while the console was disconnected, or whose last
/// will was lost with its broker, would count as online forever otherwise. Returns the roll call if it is to be closed
/// later.
async fn close_roll_call(shared: &ConsoleState, schedule: &mut Schedule, called: RollCall) -> Option<RollCall> {
    if !shared.hosts.link.is_connected() {
        // No host can answer. The next connection makes a new request.
        return None;
    }
    let now = shared.time.now();
    let taken = async {
        let missing = called.missing(host::online(shared.store.read()).await?);
        host::take_offline(shared.store.write(), &missing, now_ms()).await
    };
    match taken.await {
        Ok(hosts) => {
            for host in hosts {
                tracing::info!(host.id = %host, "an online host does not answer and counts as offline");
                schedule.presence(host, false, now);
                shared.changed(PageChange::Host(host));
            }
            None
        }
        Err(error) => {
            tracing::error!(%error, hint = error.hint(), "the list of offline hosts cannot be stored; retrying");
            Some(RollCall { until_ms: now + to_ms(STORE_PAUSE), ..called })
        }
    }
}

/// Requests a full heartbeat from one host. The request is not repeated: an offline host reports everything when it
/// comes back.
pub(crate) async fn refresh(shared: &ConsoleState, operator: &Name, host: HostId) -> Result<(), Error> {
    shared.check_operator(operator).await?;
    address::check_members(&shared.store, &[host]).await?;
    let refresh = Refresh { v: V1, issued_ms: shared.hosts.signing_time.another_ms(now_ms()), within_ms: 0 };
    let bytes = shared
        .authority
        .keys()
        .signer
        .sign(host.slot(), &refresh)
        .await
        .map_err(|error| rotation::unsigned("signing a message", error))?;
    if shared.hosts.link.publish(Topic::Host(host, HostTopic::Command), bytes) {
        return Ok(());
    }
    let (code, message) = match shared.hosts.link.is_connected() {
        true => ("busy", "too many messages wait for the broker"),
        false => ("no_broker", "the console has no connection to the broker"),
    };
    Err(Error::new(StatusCode::SERVICE_UNAVAILABLE, code, message).hint("try again in a moment"))
}

async fn perform(
    shared: &Arc<ConsoleState>,
    schedule: &mut Schedule,
    actions: Vec<ScheduleAction>,
) -> Result<(), StoreError> {
    let mut signed = SignedCommands::default();
    // Later messages of a host wait behind one that had no room, so that it gets them in order.
    let mut crowded: HashSet<HostId> = HashSet::new();
    let mut labelled: HashSet<HostId> = HashSet::new();
    record_first_sends(shared, schedule, &actions).await?;
    for action in actions {
        let (command, topics) = match action {
            ScheduleAction::Close(command, host, ended) => {
                close(shared, command, host, ended).await?;
                continue;
            }
            ScheduleAction::Miss(command, hosts) => {
                miss(shared, command, &hosts).await?;
                continue;
            }
            ScheduleAction::Broadcast(command, readers) => {
                let slots = member_slots(shared).await?;
                (command, slots.into_iter().map(|slot| (slot, readers.topic(slot))).collect())
            }
            ScheduleAction::Send(command, host) => {
                (command, vec![(host.slot(), Topic::Host(host, HostTopic::Command))])
            }
        };
        for (slot, topic) in topics {
            let host = topic.host();
            let bytes = signed.bytes(shared, command, slot).await?;
            if let Some(host) = host.filter(|host| labelled.insert(*host))
                && !label::send_labels_first(shared, host).await
            {
                crowded.insert(host);
            }
            let bytes = match (bytes, host) {
                (Some((bytes, true)), Some(host)) => Some(with_key(&shared.store, command, host, bytes).await?),
                (bytes, _) => bytes.map(|(bytes, _)| bytes),
            };
            let is_crowded = host.is_some_and(|host| crowded.contains(&host));
            let is_sent = match bytes.filter(|_| !is_crowded) {
                None => false,
                Some(bytes) if host.is_some() => shared.hosts.link.publish(topic, bytes),
                // One for each slot: there may be more than there is room for at once.
                Some(bytes) => shared.hosts.link.publish_in_turn(topic, bytes).await,
            };
            if !is_sent && shared.hosts.link.is_connected() {
                crowded.extend(host);
                host.into_iter().for_each(|host| schedule.no_room(command, host, shared.time.now()));
            }
        }
    }
    Ok(())
}

/// The signed bytes of commands, as stored, and for hosts of other slots than they were first signed for.
#[derive(Default)]
struct SignedCommands {
    stored: HashMap<CommandId, (Vec<u8>, bool)>,
    of_slot: HashMap<(CommandId, Slot), Vec<u8>>,
}

impl SignedCommands {
    /// Returns the bytes for hosts of a slot, and whether they have sealed content; `None` if they cannot be signed now.
    async fn bytes(
        &mut self,
        shared: &ConsoleState,
        command: CommandId,
        slot: Slot,
    ) -> Result<Option<(Vec<u8>, bool)>, StoreError> {
        let (stored, is_sealed) = match self.stored.get(&command) {
            Some(stored) => stored.clone(),
            None => {
                let stored = store::command::signed_bytes(shared.store.read(), command).await?.unwrap_or_default();
                self.stored.insert(command, stored.clone());
                stored
            }
        };
        if let Some(bytes) = self.of_slot.get(&(command, slot)) {
            return Ok(Some((bytes.clone(), is_sealed)));
        }
        match sign_for_slot(&shared.authority, stored, slot).await {
            Ok(bytes) => {
                self.of_slot.insert((command, slot), bytes.clone());
                Ok(Some((bytes, is_sealed)))
            }
            Err(error) => {
                let hint = Diagnostic::of(&error).hint;
                tracing::error!(command.id = %command, %error, hint, "a command cannot be signed for its host and is retried");
                Ok(None)
            }
        }
    }
}

/// Signs a stored command for hosts of a slot, unless it was signed for them.
async fn sign_for_slot(authority: &Authority, stored: Vec<u8>, slot: Slot) -> Result<Vec<u8>, SignError> {
    let message = UnsignedMessage::of_signed(&stored)?;
    match message.slot() == slot {
        true => Ok(stored),
        false => authority.keys().signer.sign_message(message.for_slot(slot)).await,
    }
}

/// Records which commands, or cancellations of them, are about to be sent for the first time, so that they do not count as
/// unsent after a restart.
async fn record_first_sends(
    shared: &ConsoleState,
    schedule: &Schedule,
    actions: &[ScheduleAction],
) -> Result<(), StoreError> {
    let going = |action: &ScheduleAction| match action {
        ScheduleAction::Send(command, _) | ScheduleAction::Broadcast(command, _) => {
            [Some(*command), schedule.cancelled_by(*command)]
        }
        ScheduleAction::Close(..) | ScheduleAction::Miss(..) => [None; 2],
    };
    let going: Vec<CommandId> = {
        let held_back = shared.held_back();
        actions.iter().flat_map(going).flatten().filter(|command| held_back.contains(command)).collect()
    };
    if going.is_empty() {
        return Ok(());
    }
    store::command::go_out(shared.store.write(), &going).await?;
    let mut held_back = shared.held_back();
    held_back.retain(|command| !going.contains(command));
    Ok(())
}

/// Adds one host's key of the sealed content to the stored bytes.
async fn with_key(store: &Store, command: CommandId, host: HostId, bytes: Vec<u8>) -> Result<Vec<u8>, StoreError> {
    let Some(key) = store::command::sealed_key(store.read(), command, host).await? else { return Ok(bytes) };
    Ok(envelope::with_key(&bytes, key).unwrap_or_else(|error| {
        tracing::error!(command.id = %command, host.id = %host, %error, "the key of a command cannot go with it");
        bytes
    }))
}

/// Stores how a command ended that its host never got.
async fn close(
    shared: &ConsoleState,
    command: CommandId,
    host: HostId,
    ended: UndeliveredEnd,
) -> Result<(), StoreError> {
    shared.held_back().remove(&command);
    let outcome = ended.outcome(now_ms());
    tracing::info!(command.id = %command, host.id = %host, status = ?outcome.status, "a command ends that was never sent");
    let mut transaction = shared.store.begin().await?;
    store::command::settle(&mut transaction, &[SettledOutcome { command, host, outcome }], now_ms()).await?;
    transaction.commit().await?;
    shared.changed(PageChange::Command(command));
    Ok(())
}

impl UndeliveredEnd {
    /// Returns the outcome for the ledger.
    pub fn outcome(self, now: Millis) -> Outcome {
        let status = match self {
            Self::Superseded(by) => Status::Refused {
                code: RefusalCode::Superseded,
                diagnostic: format!("it was never sent: the later command {by} makes it void").into(),
            },
            Self::Cancelled => Status::Cancelled,
            Self::Completed => Status::Completed,
        };
        Outcome { status, started_ms: None, finished_ms: now, stdout: Output::default(), stderr: Output::default() }
    }
}

async fn miss(shared: &ConsoleState, command: CommandId, hosts: &[HostId]) -> Result<(), StoreError> {
    shared.held_back().remove(&command);
    let mut transaction = shared.store.begin().await?;
    store::command::miss(&mut transaction, command, hosts).await?;
    transaction.commit().await?;
    tracing::info!(command.id = %command, hosts = hosts.len(), "hosts have not answered a command in time");
    shared.changed(PageChange::Command(command));
    Ok(())
}

/// Returns the time this long ago.
pub fn before(now: Millis, time: Duration) -> Millis {
    now.saturating_sub(to_ms(time))
}

fn to_ms(time: Duration) -> Millis {
    Millis::try_from(time.as_millis()).unwrap_or(Millis::MAX)
}

#[cfg(test)]
mod tests {
    use muster_api::NewTarget;
    use muster_topics::{command::Exec, presence::Capability};
    use serde_json::{Value, json};

    use super::*;
    use crate::testing::{Fixture, admin, exec};

    #[tokio::test]
    async fn submit_answers_what_listings_show() {
        let fixture = Fixture::new().await;
        for name in ["b", "a", "c"] {
            fixture.member(name).await;
        }
        let verb = || exec(&["env"]);
        for target in [NewTarget::All, NewTarget::Hosts(vec!["c".to_owned(), "a".to_owned(), "c".to_owned()])] {
            let command = NewCommand { target, expires_in_ms: None, verb: verb(), copied_from: None };
            let answered = fixture.console.submit(&admin(), command).await.unwrap();
            assert_eq!(answered.hosts[0].hostname, "a");
            assert_eq!(answered, fixture.console.command(answered.id).await.unwrap());
        }
    }

    #[tokio::test]
    async fn secret_is_sealed_to_each_host_that_has_a_key() {
        let fixture = Fixture::new().await;
        let (one, two) = (fixture.member("one").await, fixture.member("two").await);
        let verb = || {
            let Verb::Exec(exec) = exec(&["env"]) else { panic!("an exec") };
            Verb::Exec(Exec { env: [("TOKEN".to_owned(), "s3cret".to_owned())].into(), ..exec })
        };
        let to = |names: &[&str]| {
            let target = NewTarget::Hosts(names.iter().map(|name| (*name).to_owned()).collect());
            NewCommand { target, expires_in_ms: None, verb: verb(), copied_from: None }
        };
        let shared = fixture.shared();
        let given = fixture.console.submit(&admin(), to(&["one", "two"])).await.unwrap();
        assert_eq!(given.verb, verb().masked());
        let (stored, is_sealed) =
            store::command::signed_bytes(shared.store.read(), given.id).await.unwrap().unwrap_or_default();
        assert!(is_sealed && !String::from_utf8_lossy(&stored).contains("s3cret"));
        let keys = shared.authority.keys().state.of_hosts();
        for (host, other) in [(&one, &two), (&two, &one)] {
            let bytes = with_key(&shared.store, given.id, host.id, stored.clone()).await.unwrap();
            let verified = envelope::open(&bytes, &keys).unwrap();
            let mut command: Command = verified.body().unwrap();
            command.sealed.as_mut().unwrap().key = verified.key().map(str::to_owned);
            let opened =
                |by: &crate::testing::Member| sealing::HostKey::derived_from(by.key.as_bytes()).open(&command, by.id);
            assert_eq!(opened(host), Ok(verb()));
            assert_eq!(opened(other), Err(sealing::OpenError::WrongKey));
        }
        // A host that has not handed its key over is named, and no host gets the command.
        let forget = "UPDATE host SET sealing_key = NULL, sealing_key_ms = NULL WHERE id = $1";
        sqlx::query(forget).bind(two.id.to_string()).execute(shared.store.write()).await.unwrap();
        let refused = fixture.console.submit(&admin(), to(&["one", "two"])).await.unwrap_err();
        assert_eq!((refused.status, refused.problem.code.as_str()), (409, "no_sealing_key"));
        assert!(refused.problem.diagnostic.cause.ends_with("for two"), "{}", refused.problem.diagnostic.cause);
        assert!(fixture.console.submit(&admin(), to(&["one"])).await.is_ok());
        let plain = NewCommand { verb: exec(&["env"]), ..to(&["two"]) };
        assert!(fixture.console.submit(&admin(), plain).await.is_ok());
    }

    #[tokio::test]
    async fn command_is_refused_for_hosts_that_lack_what_it_needs() {
        let fixture = Fixture::new().await;
        let (one, two) = (fixture.member("one").await.id, fixture.member("two").await.id);
        let packages =
            json!({"unit_apply": {"unit": "default/base", "spec": {"kind": "packages", "present": ["curl"]}}});
        let command = |hosts: &[&str], verb: &Value| NewCommand {
            target: NewTarget::Hosts(hosts.iter().map(|host| (*host).to_owned()).collect()),
            expires_in_ms: None,
            verb: serde_json::from_value(verb.clone()).unwrap(),
            copied_from: None,
        };
        // Who has not said what it can do judges itself.
        fixture.console.submit(&admin(), command(&["one", "two"], &packages)).await.unwrap();
        let can = |host, list: &[Capability]| fixture.shared().hosts.desired.set_capabilities(host, list.to_vec());
        can(one, &[Capability::Exec, Capability::Packages]);
        can(two, &[Capability::Exec]);
        let refused = fixture.console.submit(&admin(), command(&["one", "two"], &packages)).await.unwrap_err();
        let told = refused.problem.diagnostic.to_string();
        assert_eq!((refused.status, refused.problem.code.as_str()), (409, "host_lacks"));
        assert!(told.contains("cannot be done on two: it has no dpkg") && told.contains("name other hosts"), "{told}");
        fixture.console.submit(&admin(), command(&["one"], &packages)).await.unwrap();
        // What a command does not need is not asked for.
        let exec = serde_json::to_value(exec(&["env"])).unwrap();
        for verb in [exec, json!({"unit_stop": {"unit": "default/base"}})] {
            fixture.console.submit(&admin(), command(&["one", "two"], &verb)).await.unwrap();
        }
    }

    #[tokio::test]
    async fn clock_that_is_set_ends_no_command() {
        use muster_base::clock::pretended;
        const DAY: Millis = 86_400_000;
        let fixture = Fixture::new().await;
        let (shared, host) = (fixture.shared(), fixture.member("one").await.id);
        fixture.command(&[host]).await;
        let (mut running, _) = load(shared).await.unwrap();
        let misses = |schedule: &mut Schedule| {
            let due = schedule.due(shared.time.now());
            due.iter().filter(|action| matches!(action, ScheduleAction::Miss(..))).count()
        };
        for ahead_ms in [7 * DAY, 31 * DAY, -31 * DAY] {
            pretended::set_ahead(ahead_ms);
            let (mut loaded, _) = load(shared).await.unwrap();
            assert_eq!((misses(&mut running), misses(&mut loaded)), (0, 0), "{ahead_ms}");
        }
        // What is submitted meanwhile lives as long as it was to.
        pretended::set_ahead(31 * DAY);
        let open = OpenCommand {
            id: CommandId::new(),
            expires_ms: now_ms() + 60_000,
            bytes: 1,
            kind: CommandClass::Other,
            hosts: vec![(host, store::command::CommandReach::No)],
        };
        let submitted = DispatchEvent::Submitted { open, broadcast: None };
        take(&mut running, in_certain_time(submitted, &shared.time), shared.time.now());
        assert_eq!(running.due(shared.time.now() + 90_000).len(), 1);
        // The time was right.
        pretended::set_ahead(0);
        let (mut loaded, _) = load(shared).await.unwrap();
        assert_eq!(misses(&mut loaded), 0);
        pretended::set_ahead(31 * DAY);
        shared.time.confirm(now_ms());
        let (mut loaded, _) = load(shared).await.unwrap();
        assert_eq!(misses(&mut loaded), 1);
        pretended::set_ahead(0);
        fixture.running.stop().await;
    }

    #[tokio::test]
    async fn unsent_command_is_superseded_or_cancelled_at_once() {
        let fixture = Fixture::new().await;
        let member = fixture.member("a").await;
        let submit = async |verb: serde_json::Value| {
            let target = NewTarget::Hosts(vec![member.id.to_string()]);
            let command = NewCommand {
                target,
                expires_in_ms: None,
                verb: serde_json::from_value(verb).unwrap(),
                copied_from: None,
            };
            fixture.console.submit(&admin(), command).await.unwrap()
        };
        let unit = serde_json::json!({"unit": "default/shop"});
        let run = submit(serde_json::json!({ "unit_run": unit })).await;
        assert!(run.hosts[0].away_since_ms().is_some(), "it never connected");
        let stop = submit(serde_json::json!({ "unit_stop": unit })).await;
        let cancel = submit(serde_json::json!({"cancel": {"command": stop.id}})).await;
        let status = async |command: &muster_api::Command| loop {
            let outcome = fixture.console.command(command.id).await.unwrap().hosts[0].outcome().cloned();
            if let Some(outcome) = outcome {
                return outcome.value.status;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        };
        // A command that is over cannot be cancelled.
        let unneeded = submit(serde_json::json!({"cancel": {"command": run.id}})).await;
        assert_eq!(status(&unneeded).await, Status::Completed);
        // Nor after a restart, even if the console ended before it knew.
        let mut loaded = OpenCommand {
            id: unneeded.id,
            expires_ms: Millis::MAX,
            bytes: 1,
            kind: CommandClass::Cancel(run.id),
            hosts: vec![(member.id, CommandReach::No)],
        };
        mark_unneeded(&fixture.shared().store, &mut loaded).await.unwrap();
        assert_eq!(loaded.hosts, [(member.id, CommandReach::Unneeded)]);
        let status = [status(&run).await, status(&stop).await, status(&cancel).await];
        assert!(matches!(status[0], Status::Refused { code: RefusalCode::Superseded, .. }), "{status:?}");
        assert_eq!(status[1..], [Status::Cancelled, Status::Completed]);
    }

    #[tokio::test]
    async fn only_unsent_command_is_superseded_after_restart() {
        let fixture = Fixture::new().await;
        let member = fixture.member("a").await;
        let shared = fixture.shared();
        let unit = serde_json::json!({"unit": "default/shop"});
        let run: Verb = serde_json::from_value(serde_json::json!({ "unit_run": unit })).unwrap();
        let command = NewCommand {
            target: NewTarget::Hosts(vec!["a".to_owned()]),
            expires_in_ms: None,
            verb: run,
            copied_from: None,
        };
        let first = fixture.console.submit(&admin(), command.clone()).await.unwrap();
        let stop: Verb = serde_json::from_value(serde_json::json!({ "unit_stop": unit })).unwrap();
        let later = || OpenCommand {
            id: CommandId::new(),
            expires_ms: Millis::MAX,
            bytes: 1,
            kind: CommandClass::of(&stop),
            hosts: vec![(member.id, CommandReach::No)],
        };
        let (mut schedule, _) = load(shared).await.unwrap();
        let void = schedule.open(later(), None, now_ms());
        assert!(
            matches!(&void[..], [ScheduleAction::Close(id, _, UndeliveredEnd::Superseded(_))] if *id == first.id),
            "{void:?}"
        );
        // It is sent, without an answer; then the console is restarted.
        let (mut schedule, _) = load(shared).await.unwrap();
        schedule.presence(member.id, true, now_ms());
        let actions = schedule.due(now_ms());
        assert_eq!(actions, [ScheduleAction::Send(first.id, member.id)]);
        perform(shared, &mut schedule, actions).await.unwrap();
        let (mut schedule, _) = load(shared).await.unwrap();
        assert_eq!(schedule.open(later(), None, now_ms()), []);
        // A command for an online host may have been sent.
        sqlx::query(
            "INSERT INTO presence (host, state, epoch, session, agent_version, since_ms) VALUES ($1, \
                 'online', 1, 1, '', 1)",
        )
        .bind(member.id.to_string())
        .execute(shared.store.write())
        .await
        .unwrap();
        let second = fixture.console.submit(&admin(), command).await.unwrap();
        let open = store::command::open(shared.store.read()).await.unwrap();
        let reached = open.iter().find(|open| open.id == second.id).unwrap().hosts[0].1;
        assert_eq!(reached, CommandReach::Maybe);
    }

    #[tokio::test]
    async fn open_commands_of_a_host_are_limited() {
        let fixture = Fixture::new().await;
        let (one, other) = (fixture.member("a").await.id, fixture.member("b").await.id);
        for _ in 0..3 {
            fixture.command(&[one]).await;
        }
        fixture.command(&[one, other]).await;
        let crowded =
            async |count| store::command::crowded(fixture.shared().store.read(), &[one, other], count).await.unwrap();
        assert_eq!([crowded(4).await, crowded(5).await], [vec![one], vec![]]);
    }

    #[test]
    fn silent_host_is_missing_after_roll_call() {
        let [there, silent, away] = [HostId::random(), HostId::random(), HostId::random()];
        let (mut called, refresh) = RollCall::new(3, 1_000);
        assert_eq!((refresh.issued_ms, refresh.within_ms), (1_000, 100));
        assert_eq!(called.missing(vec![there, silent]), [there, silent]);
        called.answered(&BTreeSet::from([there]));
        // A host that does not count as online is not missing.
        called.answered(&BTreeSet::from([there, away]));
        assert_eq!(called.missing(vec![there, silent]), [silent]);
        let over_ms = 1_000 + to_ms(ROLL_CALL) + 100;
        assert_eq!([999, over_ms - 1, over_ms].map(|now| called.is_over(now)), [false, false, true]);
        assert_eq!([999, 1_000].map(|now| called.is_void(now)), [true, false]);
    }

    #[test]
    fn roll_call_lasts_longer_in_a_larger_fleet() {
        let within_ms = [0, 50, 51, 10_000, 30_000, 1_000_000].map(|hosts| RollCall::new(hosts, 0).1.within_ms);
        assert_eq!(within_ms, [100, 100, 102, 20_000, 60_000, 60_000]);
    }
}
