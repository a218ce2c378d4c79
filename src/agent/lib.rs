//! The agent: one per host. It takes signed commands, keeps units in their desired state, and reports.
//!
//! Modules, in reading order:
//!
//! - [`config`]: its configuration
//! - [`join`], `pin`, `renew`, `identity_keeper`: the host's identity, and how it stays a member of its fleet
//! - [`store`]: state that survives the agent; `data_folder`: where it is; `state_folder`: where it is while nothing can be written there
//! - `main_loop`: the loop, which drives the session with the console ([`muster_session`]) and performs its effects
//! - `command_handler`: what the session asks of the store, and the beginning of commands; `program_queue`: programs that wait for a place; `daemon`: programs that stay;
//!   `realm_commands`: verbs about realms and snapshots; `unit_set`: several units at once; [`document`]: the host's document of desired state, with [`admission`] of versions that are rolled out and [`kept_data`] of units that it removed; `log_follower`: follows a unit's log;
//!   `pending_writes`: writes that wait for the store; `store_limits`: limits of what is kept
//! - [`link`]: the connection to the broker; `instance_history`: earlier instances of this agent
//! - `host_snapshot` and [`facts`]: the host's state
//! - [`execute`], [`shim`]: commands, and how they outlive the agent; `cgroup`: limits of units; `rootfs`: reads files of containers
//! - [`mod@unit`], [`artifact`]: units, and their programs
//! - [`local`]: the HTTP interface on the host itself
//! - [`metric`]: measurements; `alert`: alerts; `label`: labels that the console gives this host; [`service_status`]: notices to the service manager
//! - [`install`]: the agent as a service of its host; [`join_args`]: reads the join token; [`init`]: the first process of a container
//!
//! # Tasks
//!
//! The loop; the link (events to the loop, 64 deep); the units' task (a watch); the metrics' task (a
//! watch); the renewal (a watch with the identity, which link and units follow); one for each running command.
//!
//! **Invariant: no process of a unit or a command ends because the agent ends.**

mod address;
pub mod admission;
mod alert;
pub mod artifact;
#[cfg(test)]
mod bus_tests;
mod cancel_tokens;
mod capabilities;
mod cgroup;
mod command_handler;
pub mod config;
mod daemon;
mod data_folder;
pub mod document;
mod error;
pub mod execute;
pub mod facts;
mod host_plan;
mod host_snapshot;
mod identity_keeper;
pub mod init;
pub mod install;
mod instance_history;
pub mod join;
pub mod join_args;
mod kept_data;
mod label;
pub mod link;
pub mod local;
mod log_follower;
mod main_loop;
pub mod metric;
mod numbered;
mod pending_writes;
mod pin;
mod program_queue;
mod realm_commands;
mod render;
mod renew;
mod rootfs;
mod running;
mod sealing;
pub mod service_status;
pub mod shim;
mod shim_folders;
mod state_folder;
pub mod store;
mod store_limits;
#[cfg(test)]
mod testing;
pub mod unit;
mod unit_set;

pub use data_folder::check_form;
pub use running::RunningAgent;

pub use error::AgentError;

use std::{fs, io, path::Path, sync::Arc, time::Duration};

use muster_base::service_manager::ServiceManager;
use muster_base::{chance, clock};
use muster_rules::{authorise::LocalPolicy, heartbeat::HeartbeatSchedule, time::KnownTime};
use muster_session::{identity::ClientIdentity, interface::SessionParts, machine::Session};
use muster_topics::{Millis, diagnostic::Diagnostic, join::JoinToken, name::HostId, numbered::NumberedKind};
use tokio::sync::{Notify, mpsc, watch};
use tokio_util::sync::CancellationToken;

use self::{
    admission::AdmissionProgress,
    alert::{AlertEvaluator, EvaluatorParts},
    artifact::Artifacts,
    config::{Config, FleetUrls},
    data_folder::DataFolder,
    document::DesiredProgress,
    execute::Executor,
    host_snapshot::HostSnapshot,
    identity_keeper::IdentityKeeper,
    instance_history::InstanceHistory,
    join::{JoinError, Joiner, JoinerSealingKey, MemberIdentity},
    link::{LinkTask, TrafficMeter},
    local::{LocalServer, LoopHandle},
    main_loop::{AgentLoop, AgentParts, Inputs},
    metric::{MetricsTask, QueueLengths, figures::MetricSources},
    shim::Shims,
    store::{
        Store, StoreError,
        journal::{self, RestoredOutbox},
    },
    store_limits::{JournalLimits, StoreBounds},
    unit::Units,
};

/// Output and ends of commands that the loop has not stored yet. Each piece is at most 16 KiB, so this holds a quarter
/// of a MiB; beyond it, programs wait, or their shims drop output.
const EXEC_EVENTS: usize = 16;

/// How long a member waits for its console to join again: a little more than the timeout of a request.
const REJOIN: Duration = Duration::from_secs(35);

/// Starts an agent; returns once its units are supervised and it begins to connect. A host that has not joined joins
/// first, and waits as long as the console cannot be reached.
///
/// # Errors
/// If folder, store or configuration cannot be used, or the host may not join. Nothing runs then.
pub async fn start(config: Config) -> Result<RunningAgent, AgentError> {
    start_managed(config, &ServiceManager::default()).await
}

/// The same with a service manager, which is notified if the agent has to join first: that may last until an operator
/// approves the host, longer than managers wait.
///
/// # Errors
/// As [`start`].
pub async fn start_managed(config: Config, manager: &ServiceManager) -> Result<RunningAgent, AgentError> {
    let error = match start_on(config.clone(), manager, None).await {
        Ok(running) => return Ok(running),
        Err(error) => error,
    };
    // Something else may fill the disk meanwhile.
    let Some(fault) = error.disk_fault() else { return Err(error) };
    tracing::warn!(%error, hint = Diagnostic::of(&error).hint, "the agent cannot write to its disk and starts with its state in memory");
    start_on(config, manager, Some(fault)).await
}

/// Starts an agent; in memory, if there is a reason why nothing can be written.
async fn start_on(
    config: Config,
    manager: &ServiceManager,
    unwritable: Option<io::ErrorKind>,
) -> Result<RunningAgent, AgentError> {
    let config = config.anchored().map_err(|(path, source)| AgentError::Folder { path, source })?;
    config.check()?;
    let policy = config.whole_policy()?;
    let opened = DataFolder::open(&config.data_dir, unwritable).await?;
    let store = opened.store.clone();
    match start_in(opened, config, policy, manager).await {
        Ok(running) => Ok(running),
        Err(error) => {
            // It may be opened again at once.
            store.close().await;
            Err(error)
        }
    }
}

/// Starts an agent in its opened folder.
async fn start_in(
    opened: DataFolder,
    config: Config,
    policy: LocalPolicy,
    manager: &ServiceManager,
) -> Result<RunningAgent, AgentError> {
    let DataFolder { folder, lock, reserve, state, store, host, is_member, now_ms } = opened;
    let state_path = state.path().to_owned();
    let realms = config.all_realms();
    let mut host_snapshot = HostSnapshot::new(config.labels.clone(), &realms);
    if !is_member && config.join.is_some() {
        manager.ready("this host joins its fleet");
    }
    let identity = membership(&config, &state_path, host, &host_snapshot).await?;
    let identity = at_urls(identity, config.own_fleet.as_ref(), &state_path)?;
    let life = store.begin_life(now_ms).await?;
    let lives = InstanceHistory::begin(&state_path, &folder)?;
    let me = ClientIdentity {
        host,
        instance: lives.instance(),
        epoch: life.epoch,
        keep_alive_s: config.keep_alive_s(),
        capabilities: capabilities::of_host(&config),
    };
    tracing::info!(host.id = %host, epoch = life.epoch, data = %folder.display(), "the agent starts");

    let (stop, tasks) = (CancellationToken::new(), CancellationToken::new());
    // An error from here on ends the tasks, too.
    let guard = tasks.clone().drop_guard();
    let failed = |source| AgentError::Folder { path: folder.clone(), source };
    let shims = Shims::install_in(&folder, state.shim_folders()).map_err(failed)?.with_reserve(reserve.clone());
    let (restart, must_restart) = watch::channel(false);
    tokio::spawn(tasks.clone().run_until_cancelled_owned(state_folder::watch(
        state.clone(),
        reserve.clone(),
        store.suspicion(),
        restart,
    )));
    let keeper = IdentityKeeper::new(state_path.clone(), identity);
    let (identity_watch, stale_keys) = (keeper.watch(), Arc::<Notify>::default());
    tokio::spawn(renew::keep_fresh(keeper.clone(), Arc::clone(&stale_keys), tasks.clone()));
    let sealing = sealing::load_or_make(&state_path)?;
    let (unanswered, is_unanswered) = watch::channel(false);
    tokio::spawn(sealing::hand_over(identity_watch.clone(), sealing.public(), is_unanswered, tasks.clone()));
    let artifacts = Artifacts::open(&folder, identity_watch.clone(), config.artifact_rate_max_bytes_s)
        .map_err(|source| AgentError::Folder { path: folder.join("artifacts"), source })?;
    let units = Units::start(
        store.clone(),
        (host, sealing.clone()),
        shims.clone(),
        artifacts,
        folder.clone(),
        (&config.containers, &config.files, &config.packages),
        tasks.clone(),
    )
    .await
    .map_err(AgentError::Units)?;
    host_snapshot.contain(units.containers());
    let (meter, queues) = (Arc::<TrafficMeter>::default(), Arc::<QueueLengths>::default());
    let metrics = MetricsTask::start(
        store.clone(),
        metric_settings(&config),
        metric::HostTags { host, hostname: host_snapshot.hostname.clone() },
        life.epoch,
        MetricSources {
            hostname: host_snapshot.renames(),
            ..MetricSources::new(units.clone(), meter.clone(), queues.clone())
        },
        tasks.clone(),
    );
    let (exec_sender, exec) = mpsc::channel(EXEC_EVENTS);
    let executor = Executor::new(folder.clone(), shims, &config.exec, exec_sender).with_containers(units.clone());
    put_commands_back(&store, &executor, now_ms).await?;
    let unfinished = journal::unfinished(&store).await?;
    executor.sweep(&unfinished.iter().map(|one| one.id).collect()).await;

    host_snapshot.give_labels(store::label::given(&store).await?);
    host_snapshot.set_command_keys(keeper.present().known_keys());
    for (kind, number) in &keeper.present().membership.numbers {
        host_snapshot.set_number(*kind, *number);
    }
    let rules = store::alert::central(&store).await?;
    host_snapshot.set_number(NumberedKind::AlertRules, rules.generation);
    host_snapshot.set_desired(store::document::report(&store).await?);
    let (groups, groups_watch) = watch::channel(host_snapshot.groups());
    let beats =
        HeartbeatSchedule::new(life.epoch, config.heartbeat_periods(), host_snapshot.with(&units.states().borrow()));
    let backlog_gap_ms = config.metrics.backlog_gap_ms();
    let bounds = StoreBounds::new(JournalLimits::of_bytes(config.journal_max_bytes));
    let time = KnownTime::new(life.signed_ms);
    let (held, ended) = store::alert::all(&store).await?;
    let mut session = Session::new(
        SessionParts {
            me: me.clone(),
            former: lives.former().to_vec(),
            time: time.with_way_back(),
            created_ms: life.created_ms,
            lost_ms: life.lost_ms,
            last_epoch: life.last_epoch,
            lives: store.lives().await?,
            console_epoch: life.console_epoch,
            kept_ms: journal::KEPT_AFTER_EXPIRY_MS,
            policy,
            user: facts::own_user(),
            realms: realms.clone(),
            beats,
            backlog_gap_ms,
            numbers: host_snapshot.numbers().clone(),
            document: store::document::known(&store).await?,
            admissions: store::admission::said(&store).await?,
        },
        chance::random,
    );
    for alert in held.iter().chain(&ended) {
        session.publisher.alerts.enqueue(alert.clone(), 0);
    }
    let about = EvaluatorParts {
        reserve: &reserve,
        cpus: host_snapshot.facts.cpus,
        sample_ms: Millis::from(config.metrics.sample_ms),
    };
    let lookout = AlertEvaluator::new(config.alerts.all_rules(), rules, held, &about)
        .with_loss(life.noticed_ms)
        .with_unwritable(state.unwritable().is_some());
    let (ready_sender, ready) = watch::channel(false);
    let (asker, asked) = LoopHandle::new();
    let local = LocalServer::listen(&state_path, config.local_listen).await;
    let local = local.map_err(|(place, source)| AgentError::Local { place, source })?;
    tokio::spawn(local.serve(asker.clone(), tasks.clone()));
    let inputs = Inputs {
        link: LinkTask::start_metered(
            me.clone(),
            groups_watch,
            identity_watch.clone(),
            meter,
            Arc::clone(&stale_keys),
            tasks.clone(),
        ),
        exec,
        units: units.states(),
        metrics: metrics.stored(),
        task_ends: units.task_ends(),
        samples: metrics.samples(),
        identity: identity_watch,
        asked,
        stop: stop.clone(),
    };
    let agent = AgentLoop::new(AgentParts {
        session,
        store: store.clone(),
        identity: keeper,
        stale_keys,
        sealing,
        own_realms: realms,
        executor,
        units: units.clone(),
        host_snapshot,
        desired: DesiredProgress::new(config.removal_policy(), config.data_dir.clone()),
        admission: AdmissionProgress::new(config.admission),
        groups,
        bounds,
        lookout,
        queues,
        lives,
        ready: ready_sender,
        unanswered,
        inputs,
    });
    let core = tokio::spawn(agent.run(unfinished));
    guard.disarm();
    Ok(RunningAgent { host, ready, must_restart, stop, tasks, store, metrics, units, asker, core, lock: Some(lock) })
}

/// Makes all units of deployments ones that verbs change, without an agent and a console; returns how many there were. They
/// go on as they are.
///
/// # Errors
/// If there is no agent in the folder, one runs there, or its store fails.
pub async fn detach(folder: &Path) -> Result<u64, AgentError> {
    let failed = |source| AgentError::Folder { path: folder.to_owned(), source };
    let path = folder.join("agent.db");
    // Nothing is made where there is no agent.
    fs::metadata(&path).map_err(failed)?;
    check_form(folder)?;
    let _lock = data_folder::lock(folder)?;
    let now_ms = KnownTime::new(0).now_ms(clock::now_ms());
    let store = Store::open_or_replace(&path, true, now_ms).await?;
    let count = store::document::detach_all(&store).await;
    store.close().await;
    Ok(count?)
}

/// Restores commands that the journal has lost, from the shims of their programs.
async fn put_commands_back(store: &Store, executor: &Executor, now_ms: Millis) -> Result<(), StoreError> {
    for (command, body) in executor.noted().await {
        match journal::restore(store, &command, &body, now_ms).await? {
            RestoredOutbox::Lost => tracing::warn!(
                command.id = %command.id,
                "a command is restored to the agent's store"
            ),
            RestoredOutbox::Unfinished => {}
            // The agent was killed before it removed the files.
            RestoredOutbox::Answered => executor.forget(command.id).await,
        }
    }
    Ok(())
}

fn metric_settings(config: &Config) -> metric::MetricSettings {
    metric::MetricSettings {
        sample: Duration::from_millis(config.metrics.sample_ms.into()),
        publish: Duration::from_millis(config.metrics.publish_ms().into()),
        pack: config.metrics.pack,
        choice: metric::GroupChoice::new(config.metrics.every_s.clone()),
        buffer_max_bytes: config.metrics.buffer_max_bytes,
        ..metric::MetricSettings::default()
    }
}

/// Returns the host's identity: its existing one, or a new one by joining.
async fn membership(
    config: &Config,
    folder: &Path,
    host: HostId,
    host_snapshot: &HostSnapshot,
) -> Result<MemberIdentity, AgentError> {
    let present = join::load(folder)?;
    let token = config.join.as_ref().map(config::Secret::reveal);
    let good = |identity: &MemberIdentity| identity.validity_ms().is_ok_and(|(_, ends_ms)| is_ahead(ends_ms));
    match (present, token) {
        (Some(identity), None) => Ok(identity),
        (Some(identity), Some(token)) if good(&identity) => {
            if !join::fingerprints(&identity.membership.authority)?.contains(&token.authority) {
                tracing::warn!(
                    consequence = "it stays there",
                    hint = "to move it, stop the agent and give it an empty folder (`data_dir`). If the fleet's root certificate \
                        was replaced while this host was away, remove only identity.json from its folder, and join with a token of \
                        `muster token create --replace HOST`",
                    "this host is a member of another fleet than the token is for",
                );
                return Ok(identity);
            }
            if !join::is_another_token(folder, token) {
                return Ok(identity);
            }
            // An operator made a new token: that is how a revoked host comes back.
            match tokio::time::timeout(REJOIN, join_anew(folder, token, host, host_snapshot, Some(&identity))).await {
                Ok(Ok(new)) => Ok(new),
                Ok(Err(error)) => {
                    tracing::warn!(%error, hint = Diagnostic::of(&error).hint, "this host has not joined with the new token; its membership is unchanged");
                    Ok(identity)
                }
                Err(_) => {
                    tracing::warn!(
                        "the console does not answer; this host keeps its membership, and joins at the next start"
                    );
                    Ok(identity)
                }
            }
        }
        (None, None) => Err(join::lost(folder, host).map_or(AgentError::NotJoined, AgentError::Join)),
        // There is none yet, or its certificate has expired.
        (present, Some(token)) => Ok(join_anew(folder, token, host, host_snapshot, present.as_ref()).await?),
    }
}

/// Stores where broker and console are now, if that was given.
fn at_urls(mut identity: MemberIdentity, urls: Option<&FleetUrls>, folder: &Path) -> Result<MemberIdentity, JoinError> {
    let Some(FleetUrls { broker, console }) = urls else { return Ok(identity) };
    let membership = &mut identity.membership;
    if (&membership.broker_url, &membership.console_url) != (broker, console) {
        (membership.broker_url, membership.console_url) = (broker.clone(), console.clone());
        join::save(folder, &identity)?;
    }
    Ok(identity)
}

async fn join_anew(
    folder: &Path,
    token: &JoinToken,
    host: HostId,
    host_snapshot: &HostSnapshot,
    present: Option<&MemberIdentity>,
) -> Result<MemberIdentity, JoinError> {
    let sealing_key = JoinerSealingKey::Stored(sealing::load_or_make(folder)?.public());
    let joiner = Joiner { host, hostname: &host_snapshot.hostname, facts: &host_snapshot.facts, sealing_key };
    let identity = match join::join(token, &joiner, present).await {
        Err(error) if present.is_some() && error.is_of_revoked_key() => {
            if join::has_key_credential() {
                return Err(error);
            }
            tracing::warn!("the key of this host was revoked; it joins with new keys");
            // A thief of the identity may have this key, too, and could still read on a broker without the
            // revocation list.
            let joiner = Joiner { sealing_key: JoinerSealingKey::Stored(sealing::make(folder)?.public()), ..joiner };
            join::join(token, &joiner, None).await?
        }
        joined => joined?,
    };
    join::save_joined(folder, &identity, token)?;
    tracing::info!(host.id = %host, console = token.url, "this host has joined");
    Ok(identity)
}

fn is_ahead(time_ms: Millis) -> bool {
    time_ms > clock::now_ms()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn nothing_is_detached_where_no_agent_is() {
        let folder = tempfile::tempdir().unwrap();
        assert!(matches!(detach(folder.path()).await.unwrap_err(), AgentError::Folder { .. }));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[tokio::test]
    async fn agent_without_token_and_membership_has_a_hint() {
        let folder = tempfile::tempdir().unwrap();
        let config = Config { data_dir: folder.path().join("agent"), ..Config::default() };
        let error = start(config).await.unwrap_err();
        assert!(
            matches!(error, AgentError::NotJoined) && Diagnostic::of(&error).hint.unwrap().contains("token create"),
            "{error}"
        );
    }
}
