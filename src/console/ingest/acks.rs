//! Sends acknowledgements to hosts: gathers them for a moment, and sends one signed message to each host.
//!
//! A signature costs as much as storing what it acknowledges, and hosts are in no hurry: they
//! repeat a message after 5 s. So acknowledgements wait until nothing has been stored for [`GATHER`], but no longer than
//! [`GATHER_MAX`]: during a burst of answers they do not compete with it. The host that has waited longest comes first, so that
//! all hosts wait about equally long.
//!
//! **Invariant: only committed messages are acknowledged.**

use std::{collections::HashSet, sync::Arc, time::Duration};

use muster_base::clock::now_ms;
use muster_topics::{
    Millis, V1,
    ack::Ack,
    canonical,
    name::HostId,
    topic::{HostTopic, Topic},
};
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use crate::{
    command_signer::SignError,
    state::ConsoleState,
    store::{self, Store, StoreError},
};

pub use super::owed_acks::{HostAcks, OwedAcks};

/// The idle time before acknowledgements are sent: a twentieth of the time after which a host repeats its messages.
pub const GATHER: Duration = Duration::from_millis(250);
/// The longest delay of acknowledgements: two thirds of the shortest time after which a host repeats its messages (5 s
/// less a quarter), so that a second is left for sending them.
const GATHER_MAX: Duration = Duration::from_millis(2_500);
/// The most reports in one acknowledgement: at 90 bytes each, quoted, they stay well below 64 KiB.
const REPORTS_MAX: usize = 400;
/// The same for alerts: 150 bytes each.
const ALERTS_MAX: usize = 300;

/// Sends owed acknowledgements until the console stops. Without a connection they are dropped: hosts repeat their
/// messages, and are answered then.
pub(crate) async fn run(shared: Arc<ConsoleState>, shutdown: CancellationToken) {
    let all = async {
        loop {
            shared.hosts.owed_acks.more.notified().await;
            let latest = Instant::now() + GATHER_MAX;
            // Cancel-safe: a notification that is not taken persists.
            while let Ok(()) = timeout(GATHER, shared.hosts.owed_acks.more.notified()).await
                && Instant::now() < latest
            {}
            say(&shared).await;
        }
    };
    tokio::select! {
        () = all => (),
        () = shutdown.cancelled() => (),
    }
}

async fn say(shared: &ConsoleState) {
    let mut owed = shared.hosts.owed_acks.take();
    // Revoked hosts get none. If that is unknown now, hosts are answered when they repeat their messages.
    let hosts: Vec<HostId> = owed.iter().map(|(host, _)| *host).collect();
    match members(&shared.store, &hosts).await {
        Ok(members) => owed.retain(|(host, _)| members.contains(host)),
        Err(error) => {
            tracing::error!(%error, hint = error.hint(), "members cannot be read; nothing is acknowledged");
            return;
        }
    }
    for (host, acks) in owed {
        for ack in messages(host, acks, shared.hosts.signing_time.careful_ms(now_ms())) {
            match shared.authority.keys().signer.sign(host.slot(), &ack).await {
                Ok(bytes) => drop(shared.hosts.link.publish_in_turn(Topic::Host(host, HostTopic::Ack), bytes).await),
                // It would fail for each of them; hosts repeat what is not acknowledged. An alert says so.
                Err(SignError::Signer(error)) => {
                    tracing::debug!(%error, "acknowledgements cannot be signed");
                    return;
                }
                Err(error) => tracing::error!(host.id = %host, %error, "a message cannot be signed"),
            }
        }
    }
}

async fn members(store: &Store, hosts: &[HostId]) -> Result<HashSet<HostId>, StoreError> {
    let mut connection = store.read().acquire().await?;
    store::host::members(&mut connection, hosts).await
}

/// Returns the acknowledgements of a host, in as many messages as needed.
pub fn messages(host: HostId, acks: HostAcks, now: Millis) -> Vec<Ack> {
    let HostAcks { reports, heartbeat, mut lives, metrics, alerts, tasks } = acks;
    // The life whose heartbeat is acknowledged does not ask again: its answer is in the same message.
    let own = heartbeat.and_then(|heartbeat| lives.remove(&canonical::signable(heartbeat.epoch)));
    let (alerts, tasks): (Vec<_>, Vec<_>) = (alerts.into_iter().collect(), tasks.into_iter().collect());
    let empty = || Ack {
        v: V1,
        host,
        issued_ms: now,
        reports: Vec::new(),
        heartbeat: None,
        metrics: Vec::new(),
        alerts: Vec::new(),
        tasks: Vec::new(),
        lives: None,
    };
    let (reports, metrics): (Vec<_>, Vec<_>) = (reports.into_iter().collect(), metrics.into_iter().collect());
    let is_any = heartbeat.is_some();
    let count = reports.len().max(metrics.len()).div_ceil(REPORTS_MAX).max(usize::from(is_any));
    let part = |index: usize, length: usize| (index * REPORTS_MAX).min(length)..((index + 1) * REPORTS_MAX).min(length);
    (0..count)
        .map(|index| Ack {
            reports: reports[part(index, reports.len())].to_vec(),
            heartbeat: heartbeat.filter(|_| index == 0),
            lives: own.clone().filter(|_| index == 0),
            metrics: metrics[part(index, metrics.len())].to_vec(),
            ..empty()
        })
        .chain(lives.into_values().map(|lives| Ack { lives: Some(lives), ..empty() }))
        // Alerts are rare, and long.
        .chain(alerts.chunks(ALERTS_MAX).map(|part| Ack { alerts: part.to_vec(), ..empty() }))
        .chain(tasks.chunks(REPORTS_MAX).map(|part| Ack { tasks: part.to_vec(), ..empty() }))
        .collect()
}

#[cfg(test)]
mod tests {
    use muster_topics::{alert::AlertState, envelope::Signer, name::CommandId};

    use super::*;
    use muster_topics::{
        ack::{HostLives, LIVES_MAX, Numbered, ReportAck},
        alert::AlertAck,
        event::TaskAck,
    };
    use std::collections::{BTreeMap, BTreeSet};

    #[test]
    fn many_acknowledgements_stay_below_the_limit_and_none_is_left_out() {
        let signer = Signer::from_pkcs8(&Signer::generate().unwrap()).unwrap();
        let reports: BTreeSet<_> =
            (0..1000).map(|_| ReportAck { command: CommandId::new(), seq: u64::from(u32::MAX) }).collect();
        let metrics: BTreeSet<_> = (0..500).map(|seq| Numbered { epoch: u64::from(u32::MAX), seq }).collect();
        let heartbeat = Some(Numbered { epoch: 1, seq: 1 });
        let id = |index: i64| AlertAck {
            id: format!("{index:0>63}").parse().unwrap(),
            since_ms: i64::MAX >> 10,
            state: AlertState::Cleared,
        };
        let alerts: BTreeSet<_> = (0..700).map(id).collect();
        let tasks: BTreeSet<_> = (0..700).map(|number| TaskAck { number, began_ms: i64::MAX >> 10 }).collect();
        let host = HostId::random();
        let lives = |asked_by| (asked_by, HostLives { asked_by, heard: vec![u64::from(u32::MAX); LIVES_MAX] });
        let lives = BTreeMap::from([lives(1), lives(u64::from(u32::MAX))]);
        let acks = messages(
            host,
            HostAcks {
                reports: reports.clone(),
                heartbeat,
                lives: lives.clone(),
                metrics: metrics.clone(),
                alerts: alerts.clone(),
                tasks: tasks.clone(),
            },
            0,
        );
        for ack in &acks {
            signer.sign(host.slot(), ack).unwrap();
        }
        let sent: BTreeSet<_> = acks.iter().flat_map(|ack| ack.reports.clone()).collect();
        let sent_metrics: BTreeSet<_> = acks.iter().flat_map(|ack| ack.metrics.clone()).collect();
        let sent_alerts: BTreeSet<_> = acks.iter().flat_map(|ack| ack.alerts.clone()).collect();
        let sent_tasks: BTreeSet<_> = acks.iter().flat_map(|ack| ack.tasks.clone()).collect();
        assert_eq!((sent, sent_metrics, sent_alerts, sent_tasks), (reports, metrics, alerts, tasks));
        assert_eq!(acks.iter().filter(|ack| ack.heartbeat.is_some()).count(), 1);
        let answers: Vec<_> =
            acks.iter().filter_map(|ack| Some((ack.heartbeat, ack.lives.as_ref()?.asked_by))).collect();
        assert_eq!(answers, [(heartbeat, 1), (None, u64::from(u32::MAX))]);
        // An agent whose heartbeats are too old to be stored is told of it.
        let alone = messages(host, HostAcks { lives: lives.clone(), ..HostAcks::default() }, 0);
        let answers: Vec<_> = alone.iter().filter_map(|ack| ack.lives.as_ref()).collect();
        assert_eq!(answers, lives.values().collect::<Vec<_>>(), "{alone:?}");
    }

    #[test]
    fn copy_of_an_earlier_heartbeat_takes_no_answer_from_a_later_one() {
        let (owed, host) = (OwedAcks::default(), HostId::random());
        for (asked_by, heartbeat) in [(7, Some(Numbered { epoch: 7, seq: 1 })), (5, None)] {
            let mut acks = HostAcks { heartbeat, ..HostAcks::default() };
            acks.answer_lives(HostLives { asked_by, heard: vec![7, 5] });
            owed.add(BTreeMap::from([(host, acks)]));
        }
        let mut sent = messages(host, owed.take().remove(0).1, 0).into_iter();
        let first = sent.next().unwrap();
        assert_eq!((first.heartbeat.unwrap().epoch, first.lives.unwrap().asked_by), (7, 7));
        assert_eq!(sent.map(|ack| ack.lives.unwrap().asked_by).collect::<Vec<_>>(), [5]);
    }

    #[test]
    fn answers_to_lives_are_bounded() {
        let mut acks = HostAcks::default();
        for asked_by in 0..100 {
            acks.answer_lives(HostLives { asked_by, heard: Vec::new() });
        }
        assert_eq!((acks.lives.len(), acks.lives.last_key_value().unwrap().0), (LIVES_MAX, &99));
    }

    #[test]
    fn acknowledgements_are_gathered() {
        let owed = OwedAcks::default();
        let (first, second, command) = (HostId::random(), HostId::random(), CommandId::new());
        let of = |host: HostId, seq: u64, heartbeat: Option<u64>| {
            let heartbeat = heartbeat.map(|seq| Numbered { epoch: 1, seq });
            let reports = [ReportAck { command, seq }].into();
            BTreeMap::from([(host, HostAcks { reports, heartbeat, ..HostAcks::default() })])
        };
        for (one, other) in [(first, second), (second, first)] {
            owed.add(of(one, 1, Some(4)));
            owed.add(of(other, 1, None));
            owed.add(of(one, 2, Some(5)));
            owed.add(of(one, 3, None));
            let taken = owed.take();
            assert_eq!(taken.iter().map(|(host, _)| *host).collect::<Vec<_>>(), [one, other], "in their order");
            assert_eq!((taken[0].1.reports.len(), taken[1].1.reports.len()), (3, 1));
            assert_eq!(taken[0].1.heartbeat, Some(Numbered { epoch: 1, seq: 5 }));
            assert!(owed.take().is_empty());
        }
    }
}
