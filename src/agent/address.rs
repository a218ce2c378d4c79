//! Addresses of broker and console beside those from when this host joined: stored with its membership, and tried in turn.

use std::future::Future;

use muster_topics::{
    address::{Addresses, candidates},
    join::Membership,
    numbered::NumberedKind,
};

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
    Err(first.unwrap_or_else(|| JoinError::Answer("the address of the console is unknown".to_owned())))
}

/// Takes further addresses of the fleet into a membership, unless it has newer ones.
pub(super) fn take_newer(membership: &mut Membership, number: u64, addresses: Option<&Addresses>) {
    if number > membership.number(NumberedKind::HostAddresses) {
        membership.addresses = addresses.cloned();
        membership.numbers.insert(NumberedKind::HostAddresses, number);
    }
}

impl AgentLoop {
    /// Stores the console's addresses, which are newer than the present ones, and uses them from the next attempt on.
    pub(super) fn set_addresses(&mut self, number: u64, addresses: &Addresses) -> Result<(), JoinError> {
        self.identity.set_addresses(number, addresses)?;
        tracing::info!(number, ?addresses, "new addresses of broker and console");
        self.host_snapshot.set_number(NumberedKind::HostAddresses, number);
        self.observe_units();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use muster_topics::name::HostId;

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
        let of = |url: &str| Addresses { broker_urls: vec![url.to_owned()], ..Addresses::default() };
        let broker = |membership: &Membership| membership.addresses.clone().map(|has| has.broker_urls.concat());
        let mut membership = crate::testing::empty_membership(HostId::random());
        for (number, told, wanted) in [
            (0, None, None),
            (3, Some("a"), Some("a")),
            (2, Some("b"), Some("a")),
            (0, None, Some("a")),
            (4, Some("c"), Some("c")),
        ] {
            take_newer(&mut membership, number, told.map(of).as_ref());
            assert_eq!(broker(&membership).as_deref(), wanted, "{number}");
        }
        assert_eq!(membership.number(NumberedKind::HostAddresses), 4);
    }
}
