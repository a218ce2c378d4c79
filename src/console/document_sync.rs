//! Keeps the numbered documents of each host up to date: sends it until the host confirms its generation.
//!
//! Such a document has no outcome. Hosts report in their heartbeats which generation they have, and are sent the document again whenever
//! that is not the current one. So it does not matter what is lost on the way, how long a host was away, or whether it has only just
//! joined.

use std::sync::Arc;

use muster_base::clock::now_ms;
use muster_topics::numbered::NumberedKind;
use tokio_util::sync::CancellationToken;

use super::{numbered, state::ConsoleState};

pub(super) use super::owed_documents::DocumentSync;

/// Sends hosts their documents of a kind until the console stops. Without a connection, a request is dropped: the host's next
/// heartbeat or digest shows that it has an old generation.
pub(super) async fn run(shared: Arc<ConsoleState>, kind: NumberedKind, shutdown: CancellationToken) {
    let tellings = shared.hosts.sync(kind);
    let all = async {
        loop {
            let (hosts, wait) = tellings.take(now_ms());
            for (host, ahead) in hosts {
                match numbered::tell(&shared, kind, host, ahead).await {
                    Ok(sent) => tellings.record_sent(host, sent),
                    Err(error) => {
                        tracing::error!(host.id = %host, %error, "a host cannot be sent its present documents");
                        tellings.failed(host, ahead);
                    }
                }
            }
            let more = tellings.more.notified();
            match wait {
                // Early or late, it is checked again.
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
    use super::super::store::alert::Generations;
    use super::*;
    use muster_topics::name::HostId;
    use std::{collections::HashMap, time::Duration};

    #[test]
    fn document_is_sent_on_difference_with_a_gap() {
        let (host, other) = (HostId::random(), HostId::random());
        let tellings = DocumentSync::new(Generations { all: 5, hosts: [(other, 4)].into() });
        let heard = |host, has, now| {
            tellings.confirm(host, has, now);
            tellings.take(now).0.into_iter().collect::<Vec<_>>()
        };
        assert_eq!(heard(host, Some(5), 0), []);
        assert_eq!(heard(other, Some(9), 0), []);
        assert_eq!(heard(other, Some(5), 0), [(other, 0)]);
        assert_eq!(heard(host, None, 0), [(host, 0)]);
        // It does not understand, or has not heard yet.
        assert_eq!(heard(host, None, 59_999), []);
        // The message may be lost: it is sent once more, even without another report.
        assert_eq!(tellings.take(59_999), ([].into(), Some(Duration::from_millis(1))));
        assert_eq!(tellings.take(60_000), ([(host, 0)].into(), None));
        assert_eq!(tellings.take(120_001), ([].into(), None));
        // Unless the host confirms meanwhile.
        assert_eq!(heard(host, None, 119_000), []);
        assert_eq!(heard(host, Some(5), 119_001), []);
        assert_eq!(tellings.take(190_000), ([].into(), None));
        // A clock that was set back changes nothing.
        assert_eq!(heard(host, None, 10_000), [(host, 0)]);
        // The host has a newer generation than the store.
        assert_eq!(heard(host, Some(7), 200_000), [(host, 7)]);
        tellings.set_generation(None, 10);
        tellings.mark_owed(vec![host, other]);
        assert_eq!(tellings.take(200_001).0.len(), 2);
        assert_eq!((tellings.of(host), tellings.of(other)), (10, 14));
    }

    #[test]
    fn new_or_outdated_host_is_sent_at_once() {
        let host = HostId::random();
        let tellings = DocumentSync::new(Generations { all: 5, hosts: HashMap::new() });
        let check = |has, now, wanted: &[HostId], what: &str| {
            tellings.confirm(host, Some(has), now);
            assert_eq!(tellings.take(now).0.into_keys().collect::<Vec<_>>(), wanted, "{what}");
        };
        check(4, 0, &[host], "it has others");
        check(4, 1_000, &[], "it was told a second ago");
        tellings.set_generation(None, 6);
        check(4, 2_000, &[host], "it was away when the rules changed, and was told of those before");
        check(4, 3_000, &[], "it was told a second ago");
        tellings.host_connected(host);
        check(4, 4_000, &[host], "what it was told may have gone with its last life");
        check(4, 5_000, &[], "it was told a second ago");
        // There was no connection.
        tellings.record_sent(host, None);
        check(4, 6_000, &[host], "it was not told");
        // The store made a newer generation than was to be sent.
        tellings.set_generation(Some(host), 10);
        tellings.record_sent(host, Some(16));
        check(4, 7_000, &[], "it was told those");
        // The store failed: it is tried again after a pause.
        tellings.set_generation(None, 7);
        check(4, 8_000, &[host], "it was told of those before");
        tellings.failed(host, 0);
        assert_eq!(tellings.take(8_000), ([].into(), Some(Duration::from_secs(60))));
        assert_eq!(tellings.take(68_000).0, [(host, 0)].into());
        assert_eq!(tellings.take(200_000), ([].into(), None));
    }
}
