//! Addresses of broker and console beside those from when this host joined: stored with its membership, and tried in turn.

use std::future::Future;

use muster_topics::address::{Addresses, HostAddresses, candidates};

use super::{
    join::{JoinError, MemberIdentity},
    main_loop::AgentLoop,
};

impl MemberIdentity {
    /// The URLs under which the broker may be, in the order in which they are tried.
    pub(super) fn broker_urls(&self) -> Vec<&str> {
        let more = self.membership.addresses.as_ref().map_or(&[][..], |more| more.broker_urls.as_slice());
        candidates(&self.membership.broker_url, more)
    }

    /// The URLs under which the console may be, in the order in which they are tried.
    pub(super) fn console_urls(&self) -> Vec<&str> {
        let more = self.membership.addresses.as_ref().map_or(&[][..], |more| more.console_urls.as_slice());
        candidates(&self.membership.console_url, more)
    }

    /// The generation of the console's addresses; `None` if there are none.
    pub(super) fn addresses_generation(&self) -> Option<u64> {
        self.membership.addresses.as_ref().map(|addresses| addresses.generation)
    }
}

/// Asks the console under each of its addresses, until one answers.
pub(super) async fn ask<'a, T, F: Future<Output = Result<T, JoinError>>>(
    urls: Vec<&'a str>,
    ask: impl Fn(&'a str) -> F,
) -> Result<T, JoinError> {
    let mut first = None;
    for url in urls {
        match ask(url).await {
            Err(error @ JoinError::Unreachable { .. }) => drop(first.get_or_insert(error)),
            answered => return answered,
        }
    }
    Err(first.unwrap_or_else(|| JoinError::Answer("there is no address of the console".to_owned())))
}

/// The newer of two sets of addresses.
pub(super) fn newer(one: Option<Addresses>, other: Option<Addresses>) -> Option<Addresses> {
    let generation = |of: &Option<Addresses>| of.as_ref().map_or(0, |addresses| addresses.generation);
    if generation(&other) > generation(&one) { other } else { one }
}

impl AgentLoop {
    /// Stores the console's addresses, which are newer than the present ones, and uses them from the next attempt on.
    pub(super) fn set_addresses(&mut self, told: &HostAddresses) -> Result<(), JoinError> {
        let addresses = &told.addresses;
        self.identity.set_addresses(addresses)?;
        tracing::info!(generation = addresses.generation, ?addresses, "new addresses of broker and console");
        self.host_snapshot.set_addresses(Some(addresses.generation));
        self.observe_units();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn console_is_asked_until_an_address_answers() {
        let unreachable =
            |url: &str| JoinError::Unreachable { url: url.to_owned(), reason: "nobody is there".to_owned() };
        let answer = async |urls: &'static [&'static str]| {
            ask(urls.to_vec(), |url| async move { if url == "b" { Ok(url) } else { Err(unreachable(url)) } }).await
        };
        assert_eq!(answer(&["a", "b", "c"]).await.unwrap(), "b");
        // What the usual address says is what an operator wants to know.
        assert!(answer(&["a", "c"]).await.unwrap_err().to_string().contains("the console at a"));
    }

    #[test]
    fn newer_addresses_win() {
        let of = |generation| Some(Addresses { generation, ..Addresses::default() });
        for (one, other, wanted) in [
            (None, None, None),
            (of(3), None, of(3)),
            (None, of(1), of(1)),
            (of(3), of(2), of(3)),
            (of(2), of(3), of(3)),
        ] {
            assert_eq!(newer(one, other), wanted);
        }
    }
}
