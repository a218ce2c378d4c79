//! Addresses of broker and console beside those from when a host joined: so that hosts find the console when it is restored on
//! another machine. Hosts are sent them as one signed document, until each reports their generation ([`super::document_sync`]),
//! and with their membership when they join or renew.

use std::sync::{PoisonError, RwLock};

use muster_base::clock::now_ms;
use muster_topics::{
    Millis,
    address::{Addresses, candidates},
    name::HostId,
    numbered::NumberedContent,
};

use super::{
    config::Config,
    document_sync::DocumentSync,
    error::Error,
    state::{ConsoleState, Urls},
    store::{self, Store, StoreError, alert::Generations},
};

/// The addresses that hosts should have.
#[derive(Debug)]
pub(super) struct FleetAddresses {
    present: RwLock<NumberedAddresses>,
    pub(super) tellings: DocumentSync,
}

/// Addresses, and the number under which hosts are told them; 0 if they never were.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct NumberedAddresses {
    pub(super) number: u64,
    pub(super) addresses: Addresses,
}

impl FleetAddresses {
    /// Compares the configured addresses with those that hosts were told last; different ones get a new number.
    pub(super) async fn open(config: &Config, urls: &Urls, store: &Store, now: Millis) -> Result<Self, StoreError> {
        let told = store::address::told(store.read()).await?;
        let wanted = wanted(config, urls);
        let present = match told {
            Some(told) if told.addresses == wanted => told,
            // Hosts have never been told any.
            None if wanted == Addresses::default() => NumberedAddresses::default(),
            _ => {
                let mut transaction = store.begin().await?;
                let number = store::address::set(&mut transaction, &wanted, 1, now).await?;
                transaction.commit().await?;
                NumberedAddresses { number, addresses: wanted }
            }
        };
        let tellings = DocumentSync::new(Generations { all: present.number, ..Generations::default() });
        Ok(Self { present: RwLock::new(present), tellings })
    }

    /// The present addresses; `None` if there never were any.
    pub(super) fn present(&self) -> Option<NumberedAddresses> {
        let present = self.present.read().unwrap_or_else(PoisonError::into_inner).clone();
        (present.number > 0).then_some(present)
    }
}

/// What is checked before the console starts.
pub(super) fn check(config: &Config) -> Result<(), String> {
    let (broker_urls, console_urls) = (config.broker_public_urls.clone(), config.more_console_urls.clone());
    Addresses { broker_urls, console_urls }.check()
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
        broker_urls: of(&urls.broker, config.more_broker_urls()),
        console_urls: of(&urls.hosts, &config.more_console_urls),
    }
}

/// Returns the addresses, and their number. If this host has newer ones, from a store that was lost since, all get a still newer
/// number.
pub(super) async fn present(
    shared: &ConsoleState,
    host: HostId,
    ahead: u64,
) -> Result<Option<(u64, NumberedContent)>, Error> {
    let fleet = &shared.hosts.addresses;
    // A number from the future is the host's own fault, and must not make all others jump ahead.
    let is_from_future = u64::try_from(now_ms()).is_ok_and(|now| ahead > now);
    if ahead > 0 && ahead >= fleet.tellings.of(host) && !is_from_future {
        let mut present = fleet.present.read().unwrap_or_else(PoisonError::into_inner).clone();
        let mut transaction = shared.store.begin().await?;
        let least = ahead.saturating_add(1);
        present.number = store::address::set(&mut transaction, &present.addresses, least, now_ms()).await?;
        transaction.commit().await.map_err(StoreError::from)?;
        fleet.tellings.set_generation(None, present.number);
        *fleet.present.write().unwrap_or_else(PoisonError::into_inner) = present;
    }
    Ok(fleet.present().map(|present| (present.number, NumberedContent::HostAddresses(present.addresses))))
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
    async fn changed_addresses_get_a_new_number() {
        let (_folder, store) = temporary().await;
        let open = async |more: &[&str], now| {
            let own = (!more.is_empty()).then_some("mqtts://here:8883");
            let broker_public_urls = own.iter().chain(more).map(|url| (*url).to_owned()).collect();
            let config = Config { broker_public_urls, ..Config::default() };
            FleetAddresses::open(&config, &urls(), &store, now).await.unwrap().present()
        };
        assert_eq!(open(&[], 100).await, None);
        let first = open(&["mqtts://there:8883"], 200).await.unwrap();
        assert_eq!((first.number, first.addresses.broker_urls.len()), (200, 2));
        assert_eq!(first.addresses.broker_urls[0], "mqtts://here:8883");
        assert_eq!(open(&["mqtts://there:8883"], 300).await, Some(first));
        // Those that were told are taken back. A clock that was set back does not matter.
        let none = open(&[], 150).await.unwrap();
        assert_eq!((none.number, none.addresses.broker_urls.len()), (201, 0));
    }

    #[test]
    fn odd_addresses_are_named() {
        let config = Config { more_console_urls: vec!["there:7443".to_owned()], ..Config::default() };
        assert!(check(&config).unwrap_err().contains("there:7443"));
        assert_eq!(check(&Config::default()), Ok(()));
    }
}
