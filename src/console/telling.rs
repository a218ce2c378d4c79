//! Documents that each host is told, and is told again until it says that it has them: rules for alerts, labels.
//!
//! Such a document has no outcome. It has a generation, and a host says in its heartbeats which one it goes by; whenever that is another
//! than it should be, it is told again. So it does not matter what is lost on the way, how long a host was away, or whether it has joined
//! only now.

use std::{
    collections::{BTreeMap, HashMap},
    future::Future,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use muster_topics::{Millis, name::HostId};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::{Error, Shared, store::alert::Generations};
use crate::clock::now_ms;

/// A host that does not take what it is told (an older agent) is told the same no more often than this, for as long as it is connected;
/// one that says earlier that it has something else is told again then. Who comes anew is told at once, for what it was told before may
/// have been lost with the agent's last life; and so is who was told of something earlier.
const TELL_EVERY_MS: Millis = 60_000;
/// Hosts that are remembered for that; beyond it the memory begins anew.
const TOLD_MAX: usize = 100_000;

/// Which generation of one kind of document hosts should have, and who is to be told.
#[derive(Debug)]
pub(super) struct Tellings {
    generations: Mutex<Generations>,
    owed: Mutex<Owed>,
    more: Notify,
}

#[derive(Debug, Default)]
struct Owed {
    /// Hosts that are to be told, and the generation that they say they have, if it is newer than it should be.
    hosts: BTreeMap<HostId, u64>,
    /// What each was last told since it came.
    told: HashMap<HostId, Told>,
    /// Hosts that were told too short a time ago, and the generation as above.
    later: BTreeMap<HostId, u64>,
}

/// What a host was last told, and when.
#[derive(Clone, Copy, Debug)]
struct Told {
    generation: u64,
    at_ms: Millis,
}

impl Owed {
    /// How long it is until a host may be told this.
    fn wait_ms(&self, host: HostId, wanted: u64, now: Millis) -> Millis {
        let told = self.told.get(&host).filter(|told| told.generation == wanted);
        // A clock that was set back must not silence us for as long as it was ahead.
        let since = told.map(|told| now - told.at_ms).filter(|since| *since >= 0);
        since.map_or(0, |since| (TELL_EVERY_MS - since).max(0))
    }
}

impl Tellings {
    pub(super) fn new(generations: Generations) -> Self {
        Self { generations: Mutex::new(generations), owed: Mutex::default(), more: Notify::new() }
    }

    pub(super) fn of(&self, host: HostId) -> u64 {
        self.generations.lock().unwrap_or_else(PoisonError::into_inner).of(host)
    }

    /// This is the part of one host's generation, or of all.
    pub(super) fn set_generation(&self, host: Option<HostId>, generation: u64) {
        let mut generations = self.generations.lock().unwrap_or_else(PoisonError::into_inner);
        match host {
            Some(host) => drop(generations.hosts.insert(host, generation)),
            None => generations.all = generation,
        }
    }

    /// A host has come: it may not have heard what it was told before.
    pub(super) fn came(&self, host: HostId) {
        self.owed.lock().unwrap_or_else(PoisonError::into_inner).told.remove(&host);
    }

    /// A host is a member no more.
    pub(super) fn forget(&self, host: HostId) {
        self.generations.lock().unwrap_or_else(PoisonError::into_inner).hosts.remove(&host);
        let mut owed = self.owed.lock().unwrap_or_else(PoisonError::into_inner);
        owed.hosts.remove(&host);
        owed.told.remove(&host);
        owed.later.remove(&host);
    }

    /// A host has said which generation it has.
    pub(super) fn heard(&self, host: HostId, has: Option<u64>, now: Millis) {
        let (has, wanted) = (has.unwrap_or_default(), self.of(host));
        let mut owed = self.owed.lock().unwrap_or_else(PoisonError::into_inner);
        if has == wanted {
            owed.later.remove(&host);
            return;
        }
        let ahead = if has > wanted { has } else { 0 };
        let (is_late, is_first) = (owed.wait_ms(host, wanted, now) == 0, owed.later.is_empty());
        if is_late {
            owed.hosts.insert(host, ahead)
        } else {
            owed.later.insert(host, ahead)
        };
        // Whoever waits for one that is told later need not be woken for the next.
        if is_late || is_first {
            self.more.notify_one();
        }
    }

    /// These are to be told, whenever they last were.
    pub(super) fn owe(&self, hosts: Vec<HostId>) {
        let mut owed = self.owed.lock().unwrap_or_else(PoisonError::into_inner);
        for host in hosts {
            owed.hosts.entry(host).or_default();
        }
        self.more.notify_one();
    }

    /// Those that are to be told now, and how long it is until there are more.
    pub(super) fn take(&self, now: Millis) -> (BTreeMap<HostId, u64>, Option<Duration>) {
        let mut owed = self.owed.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut hosts, later) = (std::mem::take(&mut owed.hosts), std::mem::take(&mut owed.later));
        let mut wait_ms: Option<Millis> = None;
        for (host, ahead) in later {
            match owed.wait_ms(host, self.of(host), now) {
                0 => drop(hosts.entry(host).or_insert(ahead)),
                more_ms => {
                    wait_ms = Some(wait_ms.map_or(more_ms, |least_ms| least_ms.min(more_ms)));
                    owed.later.insert(host, ahead);
                }
            }
        }
        if owed.told.len() >= TOLD_MAX {
            owed.told.clear();
        }
        owed.told.extend(hosts.keys().map(|host| (*host, Told { generation: self.of(*host), at_ms: now })));
        (hosts, wait_ms.map(|wait_ms| Duration::from_millis(wait_ms.unsigned_abs())))
    }

    /// What became of telling a host that was taken: this generation went out, or nothing, for there is no connection.
    pub(super) fn told(&self, host: HostId, sent: Option<u64>) {
        let mut owed = self.owed.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(generation) = sent {
            // Unless it has come anew meanwhile.
            owed.told.entry(host).and_modify(|told| told.generation = generation);
        } else {
            owed.told.remove(&host);
        }
    }

    /// A host that was taken could not be told, through no fault of the connection: it is tried again as if it had been told.
    pub(super) fn failed(&self, host: HostId, ahead: u64) {
        self.owed.lock().unwrap_or_else(PoisonError::into_inner).later.entry(host).or_insert(ahead);
        self.more.notify_one();
    }
}

/// Tells hosts what they should have until the console stops; `tell` gives the generation that went out, if there is a connection. What
/// finds none is dropped: the host's next heartbeat, or its next digest, shows that it has not heard.
pub(super) async fn run<T, F>(
    shared: Arc<Shared>,
    tellings: fn(&Shared) -> &Tellings,
    tell: T,
    shutdown: CancellationToken,
) where
    T: Fn(Arc<Shared>, HostId, u64) -> F + Send + Sync,
    F: Future<Output = Result<Option<u64>, Error>> + Send,
{
    let tellings = tellings(&shared);
    let all = async {
        loop {
            let (hosts, wait) = tellings.take(now_ms());
            for (host, ahead) in hosts {
                match tell(Arc::clone(&shared), host, ahead).await {
                    Ok(sent) => tellings.told(host, sent),
                    Err(error) => {
                        tracing::error!(host.id = %host, %error, "a host cannot be told what it should have now");
                        tellings.failed(host, ahead);
                    }
                }
            }
            let more = tellings.more.notified();
            match wait {
                // Too early or too late, it is looked again.
                Some(wait) => drop(tokio::time::timeout(wait, more).await),
                None => more.await,
            }
        }
    };
    tokio::select! {
        () = all => (),
        () = shutdown.cancelled() => (),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_told_when_it_has_something_else_and_not_all_the_time() {
        let (host, other) = (HostId::random(), HostId::random());
        let tellings = Tellings::new(Generations { all: 5, hosts: [(other, 4)].into() });
        let heard = |host, has, now| {
            tellings.heard(host, has, now);
            tellings.take(now).0.into_iter().collect::<Vec<_>>()
        };
        assert_eq!(heard(host, Some(5), 0), []);
        assert_eq!(heard(other, Some(9), 0), []);
        assert_eq!(heard(other, Some(5), 0), [(other, 0)]);
        assert_eq!(heard(host, None, 0), [(host, 0)]);
        // It does not understand, or has not heard yet.
        assert_eq!(heard(host, None, 59_999), []);
        // What it was told may be lost: it is told once more, whether it says something again or not.
        assert_eq!(tellings.take(59_999), ([].into(), Some(Duration::from_millis(1))));
        assert_eq!(tellings.take(60_000), ([(host, 0)].into(), None));
        assert_eq!(tellings.take(120_001), ([].into(), None));
        // Unless it says meanwhile that it has it.
        assert_eq!(heard(host, None, 119_000), []);
        assert_eq!(heard(host, Some(5), 119_001), []);
        assert_eq!(tellings.take(190_000), ([].into(), None));
        // A clock that was set back changes nothing.
        assert_eq!(heard(host, None, 10_000), [(host, 0)]);
        // What it has is newer than what there is.
        assert_eq!(heard(host, Some(7), 200_000), [(host, 7)]);
        tellings.set_generation(None, 10);
        tellings.owe(vec![host, other]);
        assert_eq!(tellings.take(200_001).0.len(), 2);
        assert_eq!((tellings.of(host), tellings.of(other)), (10, 14));
    }

    #[test]
    fn who_comes_anew_and_who_was_told_something_older_is_told_at_once() {
        let host = HostId::random();
        let tellings = Tellings::new(Generations { all: 5, hosts: HashMap::new() });
        let check = |has, now, wanted: &[HostId], what: &str| {
            tellings.heard(host, Some(has), now);
            assert_eq!(tellings.take(now).0.into_keys().collect::<Vec<_>>(), wanted, "{what}");
        };
        check(4, 0, &[host], "it has others");
        check(4, 1_000, &[], "it was told a second ago");
        tellings.set_generation(None, 6);
        check(4, 2_000, &[host], "it was away when the rules changed, and was told of those before");
        check(4, 3_000, &[], "it was told a second ago");
        tellings.came(host);
        check(4, 4_000, &[host], "what it was told may have gone with its last life");
        check(4, 5_000, &[], "it was told a second ago");
        // There was no connection to tell it.
        tellings.told(host, None);
        check(4, 6_000, &[host], "it was not told");
        // The store made of it newer ones than it was to be told.
        tellings.set_generation(Some(host), 10);
        tellings.told(host, Some(16));
        check(4, 7_000, &[], "it was told those");
        // The store failed: it is tried again, and not at once.
        tellings.set_generation(None, 7);
        check(4, 8_000, &[host], "it was told of those before");
        tellings.failed(host, 0);
        assert_eq!(tellings.take(8_000), ([].into(), Some(Duration::from_secs(60))));
        assert_eq!(tellings.take(68_000).0, [(host, 0)].into());
        assert_eq!(tellings.take(200_000), ([].into(), None));
    }
}
