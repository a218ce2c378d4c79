//! Addresses of broker and console beside those from when a host joined: so that hosts find the console when it is restored on
//! another machine. Hosts are sent them as one signed document, until each reports their generation ([`super::document_sync`]),
//! and with their membership when they join or renew.

use std::sync::{Arc, PoisonError, RwLock};

use muster_base::clock::now_ms;
use muster_topics::{
    Millis, V1,
    address::{Addresses, HostAddresses, candidates},
    name::HostId,
    topic::{HostTopic, Topic},
};

use super::{
    config::Config,
    document_sync::DocumentSync,
    error::Error,
    rotation,
    state::{ConsoleState, Urls},
    store::{self, Store, StoreError, alert::Generations},
};

/// The addresses that hosts should have.
#[derive(Debug)]
pub(super) struct FleetAddresses {
    present: RwLock<Addresses>,
    pub(super) tellings: DocumentSync,
}

impl FleetAddresses {
    /// Compares the configured addresses with those that hosts were told last; different ones get a new generation.
    pub(super) async fn open(config: &Config, urls: &Urls, store: &Store, now: Millis) -> Result<Self, StoreError> {
        let told = store::address::told(store.read()).await?;
        let wanted = wanted(config, urls);
        let is_same =
            |told: &Addresses| (&told.broker_urls, &told.console_urls) == (&wanted.broker_urls, &wanted.console_urls);
        let is_none = wanted.broker_urls.is_empty() && wanted.console_urls.is_empty();
        let present = match told {
            Some(told) if is_same(&told) => told,
            // Hosts have never been told any.
            None if is_none => Addresses::default(),
            _ => {
                let mut transaction = store.begin().await?;
                let generation = store::address::set(&mut transaction, &wanted, 1, now).await?;
                transaction.commit().await?;
                Addresses { generation, ..wanted }
            }
        };
        let tellings = DocumentSync::new(Generations { all: present.generation, ..Generations::default() });
        Ok(Self { present: RwLock::new(present), tellings })
    }

    /// The present addresses; `None` if there never were any.
    pub(super) fn present(&self) -> Option<Addresses> {
        let present = self.present.read().unwrap_or_else(PoisonError::into_inner).clone();
        (present.generation > 0).then_some(present)
    }
}

/// What is checked before the console starts.
pub(super) fn check(config: &Config) -> Result<(), String> {
    let Config { more_broker_urls, more_console_urls, .. } = config;
    Addresses { generation: 0, broker_urls: more_broker_urls.clone(), console_urls: more_console_urls.clone() }.check()
}

/// The configured addresses. The console's own come first, for hosts that joined under others.
fn wanted(config: &Config, urls: &Urls) -> Addresses {
    let of = |own: &str, more: &[String]| -> Vec<String> {
        match more.is_empty() {
            true => Vec::new(),
            false => candidates(own, more).into_iter().map(str::to_owned).collect(),
        }
    };
    Addresses {
        generation: 0,
        broker_urls: of(&urls.broker, &config.more_broker_urls),
        console_urls: of(&urls.hosts, &config.more_console_urls),
    }
}

/// Sends one host the addresses. If it has newer ones, from a store that was lost since, all get a still newer generation.
/// Returns the generation that was sent, if there is a connection.
pub(super) async fn tell(shared: Arc<ConsoleState>, host: HostId, ahead: u64) -> Result<Option<u64>, Error> {
    let fleet = &shared.hosts.addresses;
    // A generation from the future is the host's own fault, and must not make all others jump ahead.
    let is_from_future = u64::try_from(now_ms()).is_ok_and(|now| ahead > now);
    if ahead > 0 && ahead >= fleet.tellings.of(host) && !is_from_future {
        let mut addresses = fleet.present.read().unwrap_or_else(PoisonError::into_inner).clone();
        let mut transaction = shared.store.begin().await?;
        let least = ahead.saturating_add(1);
        addresses.generation = store::address::set(&mut transaction, &addresses, least, now_ms()).await?;
        transaction.commit().await.map_err(StoreError::from)?;
        fleet.tellings.set_generation(None, addresses.generation);
        *fleet.present.write().unwrap_or_else(PoisonError::into_inner) = addresses;
    }
    let Some(addresses) = fleet.present() else { return Ok(None) };
    let generation = addresses.generation;
    let body = HostAddresses { v: V1, host, issued_ms: shared.hosts.signing_time.careful_ms(now_ms()), addresses };
    let signed = shared.authority.keys().signer.sign(&body).await;
    let bytes = signed.map_err(|error| rotation::unsigned("signing addresses", error))?;
    let is_sent = shared.hosts.link.publish_in_turn(Topic::Host(host, HostTopic::Command), bytes).await;
    Ok(is_sent.then_some(generation))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::tests::temporary;

    fn urls() -> Urls {
        let of = str::to_owned;
        Urls { web: of("http://w"), hosts: of("https://here:7443"), broker: of("mqtts://here:8883") }
    }

    #[tokio::test]
    async fn changed_addresses_get_a_new_generation() {
        let (_folder, store) = temporary().await;
        let open = async |more: &[&str], now| {
            let more_broker_urls = more.iter().map(|url| (*url).to_owned()).collect();
            let config = Config { more_broker_urls, ..Config::default() };
            FleetAddresses::open(&config, &urls(), &store, now).await.unwrap().present()
        };
        assert_eq!(open(&[], 100).await, None);
        let first = open(&["mqtts://there:8883"], 200).await.unwrap();
        assert_eq!((first.generation, first.broker_urls.len()), (200, 2));
        assert_eq!(first.broker_urls[0], "mqtts://here:8883");
        assert_eq!(open(&["mqtts://there:8883"], 300).await, Some(first));
        // Those that were told are taken back. A clock that was set back does not matter.
        let none = open(&[], 150).await.unwrap();
        assert_eq!((none.generation, none.broker_urls.len()), (201, 0));
    }

    #[test]
    fn odd_addresses_are_named() {
        let config = Config { more_console_urls: vec!["there:7443".to_owned()], ..Config::default() };
        assert!(check(&config).unwrap_err().contains("there:7443"));
        assert_eq!(check(&Config::default()), Ok(()));
    }
}
