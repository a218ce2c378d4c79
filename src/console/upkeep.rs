//! Upkeep of the console: watches the room on its disk, its own clock, and the external signer.

use std::{
    collections::{BTreeMap, HashSet},
    sync::Arc,
    time::{Duration, Instant},
};

use muster_base::{
    clock::{boot_id, now_ms},
    clock_steps::ClockSteps,
};
use muster_rules::{
    clock::{self, ClockEvidence, ClockFinding},
    time::SLACK_MS,
};
use muster_sqlite::room;
use muster_topics::{Millis, diagnostic::Diagnostic, name::HostId};
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use super::{
    certain_time, dispatch,
    notice::NoticeKind,
    page_change::PageChange,
    state::ConsoleState,
    store::{self, StoreResult},
};

pub(super) use super::host_clocks::HostClocks;

/// How many shared hostnames, and how many hosts of each, are named.
const SHARED_NAMES_MAX: usize = 3;

/// How often hostnames are compared, in periods: ten thousand of them are read each time.
const NAMES_PERIODS: u32 = 12;

/// How often: a disk that was full is used again within this time.
const PERIOD: Duration = Duration::from_secs(5);

/// Checks regularly until the console stops.
pub(super) async fn run(shared: Arc<ConsoleState>, shutdown: CancellationToken) {
    let mut watch = ClockWatch::new(now_ms());
    let mut ticks = interval(PERIOD);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut until_names = 0;
    loop {
        tokio::select! {
            _ = ticks.tick() => {
                look_at_disk(&shared);
                watch.check(&shared).await;
                if until_names == 0 {
                    until_names = NAMES_PERIODS;
                    look_at_hostnames(&shared).await;
                }
                until_names -= 1;
            }
            () = shutdown.cancelled() => return,
        }
    }
}

/// Watches the external signer, if there is one, until the console stops.
pub(super) async fn watch_signer(shared: Arc<ConsoleState>, shutdown: CancellationToken) {
    let Some(signer) = shared.authority.key_ring().external() else { return };
    let all = async {
        loop {
            // While it signs, nobody asks it for more.
            let failed = match signer.has_failed() {
                true => signer.keys().await.err(),
                false => None,
            };
            let changed = match &failed {
                Some(error) => {
                    let consequence = "no commands are sent, and hosts repeat their messages";
                    let message = Diagnostic::of(error).with_consequence(consequence);
                    shared.notices.raise(NoticeKind::SignerAway, message, now_ms())
                }
                None => shared.notices.clear(NoticeKind::SignerAway),
            };
            if changed {
                match failed {
                    Some(error) => tracing::error!(hint = Diagnostic::of(&error).hint, "{error}"),
                    None => {
                        tracing::info!("the signer at {} signs again", signer.address());
                        let _ = shared.commands.dispatch.send(dispatch::DispatchEvent::SignerBack).await;
                    }
                }
                shared.changed(PageChange::Alert(None));
            }
            tokio::time::sleep(PERIOD).await;
        }
    };
    tokio::select! {
        () = all => (),
        () = shutdown.cancelled() => (),
    }
}

/// Watches the console's own clock.
#[derive(Debug)]
struct ClockWatch {
    steps: ClockSteps,
    /// By how much it was set since hosts last agreed with it.
    set_by_ms: Millis,
    /// When it was set last, or the console was started: hosts have not reported since.
    set: Option<Instant>,
}

/// How long hosts have to report their clocks, after the console's was set.
const ANSWER: Duration = Duration::from_secs(60);

impl ClockWatch {
    fn new(now: Millis) -> Self {
        Self { steps: ClockSteps::new(now), set_by_ms: 0, set: Some(Instant::now()) }
    }

    async fn check(&mut self, shared: &ConsoleState) {
        let now = now_ms();
        let by_ms = self.steps.take(now);
        if by_ms != 0 {
            tracing::warn!(
                by_s = by_ms / 1000,
                "the console's clock was set, or this machine was suspended; hosts are asked for their time"
            );
            self.set_by_ms += by_ms;
            self.set = Some(Instant::now());
            // Earlier reports were compared with another clock.
            shared.hosts.clocks.clear();
            shared.hosts.signing_time.correct_by(0, false);
            let _ = shared.commands.dispatch.send(dispatch::DispatchEvent::ClockSet).await;
        }
        let signed_ahead_ms = shared.hosts.signing_time.ahead_ms(now);
        let bound = match signed_ahead_ms {
            0 => Ok(0),
            _ => store::host::bound_count(shared.store.read()).await,
        };
        let Ok(bound) = bound.inspect_err(
            |error| tracing::error!(%error, hint = error.hint(), "agents that do not set their time back cannot be counted"),
        ) else {
            return;
        };
        let evidence = ClockEvidence {
            now_ms: now,
            consensus: shared.hosts.clocks.consensus(),
            set_by_ms: self.set_by_ms,
            signed_ahead_ms,
            bound,
            is_refused: shared.hosts.link.is_refused_for_time(),
        };
        let found = clock::judge(&evidence);
        shared.hosts.signing_time.correct_by(found.correction_ms(), found.is_confirmed());
        match found {
            ClockFinding::Right => {
                shared.hosts.signing_time.settle();
                (self.set_by_ms, self.set) = (0, None);
            }
            ClockFinding::Bound { .. } => (self.set_by_ms, self.set) = (0, None),
            _ => (),
        }
        // Until hosts have had time to answer, frequent messages keep the time of before.
        let is_open = evidence.consensus.is_none() && found != ClockFinding::Refused;
        let waits = is_open && self.set.is_some_and(|set| set.elapsed() < ANSWER);
        if !waits {
            shared.hosts.signing_time.trust(now);
        }
        let confirmed = confirm_time(shared, found, now).await;
        let kept = match confirmed {
            Ok(()) => certain_time::keep(&shared.time, &shared.store).await,
            Err(error) => Err(error),
        };
        if let Err(error) = kept {
            tracing::error!(%error, hint = error.hint(), "the confirmed time cannot be updated");
        }
        shared.measurements.series.set_time_max(shared.time.now());
        let message = found.diagnostic().or_else(|| certain_time::message(shared.time.ahead_ms(now)));
        let changed = match message.as_ref().filter(|_| !waits) {
            Some(message) => shared.notices.raise(NoticeKind::Clock, message.clone(), now),
            None => shared.notices.clear(NoticeKind::Clock),
        };
        if changed {
            if let Some(message) = message {
                let Diagnostic { cause, hint, .. } = message;
                tracing::error!(hint, "{cause}");
            }
            shared.changed(PageChange::Alert(None));
        }
    }
}

/// Confirms the time if hosts agree with it. Those on this machine have the same clock: they do not confirm that it was set ahead.
async fn confirm_time(shared: &ConsoleState, found: ClockFinding, now: Millis) -> StoreResult<()> {
    if !found.is_confirmed() {
        return Ok(());
    }
    let right_ms = now.saturating_add(found.correction_ms());
    if shared.time.ahead_ms(right_ms) > 0 {
        let here = match boot_id() {
            Some(boot) => store::host::on_machine(shared.store.read(), &boot).await?,
            None => HashSet::new(),
        };
        let others = shared.hosts.clocks.consensus_without(&here);
        let is_agreed =
            others.is_some_and(|others| others.ahead_ms.abs_diff(now - right_ms) <= SLACK_MS.unsigned_abs());
        if !is_agreed {
            return Ok(());
        }
        tracing::info!(ahead_ms = shared.time.ahead_ms(right_ms), "hosts confirm how much time has passed");
        shared.time.confirm(right_ms);
        // What has waited for that ends.
        let _ = shared.commands.dispatch.send(dispatch::DispatchEvent::ClockSet).await;
        return Ok(());
    }
    shared.time.confirm(right_ms);
    Ok(())
}

/// Raises an alert while hosts share a hostname: a command for the name is refused, so one host can keep commands from another.
async fn look_at_hostnames(shared: &ConsoleState) {
    let hosts = match store::host::names(shared.store.read()).await {
        Ok(hosts) => hosts,
        Err(error) => {
            tracing::warn!(%error, hint = error.hint(), "the hosts' names cannot be compared");
            return;
        }
    };
    let changed = match shared_names(hosts) {
        Some(message) => shared.notices.raise(NoticeKind::HostnameShared, message, now_ms()),
        None => shared.notices.clear(NoticeKind::HostnameShared),
    };
    if changed {
        shared.changed(PageChange::Alert(None));
    }
}

/// Says which hosts share a hostname, if any do.
fn shared_names(hosts: Vec<(HostId, String)>) -> Option<Diagnostic> {
    let mut by_name: BTreeMap<String, Vec<HostId>> = BTreeMap::new();
    for (host, name) in hosts {
        by_name.entry(name).or_default().push(host);
    }
    by_name.retain(|_, hosts| hosts.len() > 1);
    let told = |(name, hosts): (&String, &Vec<HostId>)| {
        let ids: Vec<String> = hosts.iter().take(SHARED_NAMES_MAX).map(HostId::to_string).collect();
        let more =
            if hosts.len() > ids.len() { format!(" and {} more", hosts.len() - ids.len()) } else { String::new() };
        format!("{name:?} is the name of {}{more}", ids.join(", "))
    };
    let named: Vec<String> = by_name.iter().take(SHARED_NAMES_MAX).map(told).collect();
    let more = if by_name.len() > named.len() { "; and so are more names" } else { "" };
    (!named.is_empty()).then(|| {
        let named = named.join("; ");
        let cause =
            format!("several hosts have one hostname: {named}{more}. Commands for such a name are refused");
        Diagnostic::new(cause).with_hint(
            "name hosts by their ids, find the one with the wrong name (`muster host show ID`), and give it another name \
             (`hostnamectl set-hostname`)",
        )
    })
}

fn look_at_disk(shared: &ConsoleState) {
    let Some(reserve) = shared.store.reserve() else { return };
    reserve.refill();
    let is_read_only = reserve.is_read_only();
    let unwritable = match is_read_only {
        true => shared.notices.raise(
            NoticeKind::StoreUnwritable,
            Diagnostic::new(format!(
                "the console's folder {} is on a read-only file system: its content can be \
                 read, commands and changes are refused, and hosts keep their messages",
                reserve.folder().display(),
            ))
            .with_hint(format!("{}; then restart the console", room::READ_ONLY_HINT)),
            now_ms(),
        ),
        false => shared.notices.clear(NoticeKind::StoreUnwritable),
    };
    let full = match reserve.is_short() && !is_read_only {
        true => shared.notices.raise(
            NoticeKind::DiskFull,
            Diagnostic::new(format!(
                "the disk of the console's folder {} is full: commands and the register are stored in \
                 the reserve; measurements, artifacts and configs are refused",
                reserve.folder().display(),
            ))
            .with_hint(room::HINT),
            now_ms(),
        ),
        false => shared.notices.clear(NoticeKind::DiskFull),
    };
    if unwritable || full {
        shared.changed(PageChange::Alert(None));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use muster_rules::{clock::ClockConsensus, time::BUILD_MS};

    #[tokio::test]
    async fn hosts_on_other_machines_confirm_the_clock() {
        const DAY: Millis = 86_400_000;
        let fixture = crate::testing::Fixture::new().await;
        let (shared, boot) = (fixture.shared(), boot_id().unwrap());
        let (here, other) = (fixture.member("here").await, fixture.member("other").await);
        let state = serde_json::json!({"facts": {"boot_id": boot}}).to_string();
        sqlx::query("INSERT INTO heartbeat (host, epoch, seq, state, at_ms) VALUES ($1, 1, 1, $2, 1)")
            .bind(here.id.to_string())
            .bind(state)
            .execute(shared.store.write())
            .await
            .unwrap();
        muster_base::clock::pretended::set_ahead(31 * DAY);
        let look = async |clocks: &[(HostId, Millis)]| {
            shared.hosts.clocks.clear();
            for (host, ahead_ms) in clocks {
                shared.hosts.clocks.note(*host, now_ms() - ahead_ms, now_ms());
            }
            ClockWatch::new(now_ms()).check(shared).await;
            shared.time.ahead_ms(now_ms()) / DAY
        };
        assert_eq!(look(&[]).await, 30, "nobody says so");
        assert_eq!(look(&[(other.id, 31 * DAY)]).await, 30, "a host contradicts it");
        assert_eq!(look(&[(here.id, 0)]).await, 30, "it is the same clock");
        assert_eq!(look(&[(here.id, 0), (other.id, 31 * DAY)]).await, 30, "one contradicts it");
        assert_eq!(look(&[(here.id, 0), (other.id, 0)]).await, 0, "one agrees");
        // What they say once it was put right goes.
        muster_base::clock::pretended::set_ahead(0);
        assert_eq!(look(&[(here.id, 0)]).await, 0);
        assert!(shared.time.known_ms() < now_ms() + DAY);
        fixture.running.stop().await;
    }

    #[tokio::test]
    async fn hostname_that_two_hosts_have_raises_an_alert() {
        let fixture = crate::testing::Fixture::new().await;
        let shared = fixture.shared();
        let told = async || {
            look_at_hostnames(shared).await;
            let alerts = shared.notices.alerts(now_ms()).into_iter();
            alerts
                .filter(|one| one.alert.rule.as_str() == "console-hostname-shared")
                .map(|one| one.alert.diagnostic)
                .next()
        };
        let (first, other) = (fixture.member("till-7").await, fixture.member("till-8").await);
        assert_eq!(told().await, None);
        let rename = async |name: &str| {
            let rename = sqlx::query("UPDATE host SET hostname = $1 WHERE id = $2").bind(name.to_owned());
            rename.bind(other.id.to_string()).execute(shared.store.write()).await.unwrap();
        };
        rename("till-7").await;
        let message = told().await.unwrap();
        for words in ["\"till-7\"", &first.id.to_string(), &other.id.to_string()] {
            assert!(message.cause.contains(words), "{words}: {message}");
        }
        assert!(message.hint.is_some(), "{message}");
        rename("till-8").await;
        assert_eq!(told().await, None);
        fixture.running.stop().await;
    }

    #[test]
    fn shared_names_are_told_in_a_few_words() {
        let hosts = (0..40).flat_map(|name| (0..9).map(move |_| (HostId::random(), format!("n{name}"))));
        let message = shared_names(hosts.collect()).unwrap().to_string();
        assert!(message.len() < 1_000 && message.contains("and 6 more") && message.contains("so are more names"));
        assert_eq!(shared_names(vec![(HostId::random(), "a".into()), (HostId::random(), "b".into())]), None);
    }

    #[test]
    fn unset_host_clocks_are_ignored() {
        let clocks = HostClocks::default();
        let (one, other, now) = (HostId::random(), HostId::random(), BUILD_MS + 1_000_000);
        assert_eq!(clocks.consensus(), None);
        clocks.note(one, now - 100, now);
        // The report was delayed.
        clocks.note(one, now - 90_000, now);
        clocks.note(other, 5_000, now);
        assert_eq!(clocks.consensus(), Some(ClockConsensus { ahead_ms: 100, agree: 1, of: 1 }));
        clocks.clear();
        assert_eq!(clocks.consensus(), None);
    }
}
