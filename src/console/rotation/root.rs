//! Replaces the fleet's root certificate.
//!
//! 1. `begin` makes a new root. Everything of the console's own trusts both, and hosts are told to.
//! 2. `issue`, once every member trusts it, and the broker does: certificates of hosts and of other clients are made under it, and
//!    hosts renew theirs. The console's listeners and the broker of `muster up` keep their certificates under the old root, so
//!    that a host which was away finds them, and gets to know the new one.
//! 3. `finish`, once every member has a certificate under it, and a broker that runs by itself has one: nobody trusts the old
//!    root any more, and its key is deleted.
//!
//! Roots may have no certificate authority below them, so the old one cannot vouch for the new one: a host that knows the old one
//! alone after that has to join anew.
//!
//! **Invariant: no certificate is made under a root before the broker accepts it**, and no root is dropped while the broker's
//! certificate is under it.

use std::{collections::BTreeSet, time::Duration};

use muster_base::clock::now_ms;
use muster_net::pki;
use muster_rules::rotation::HostNeed;
use muster_topics::{
    name::{HostId, Name},
    role::Identity,
};

use super::{FILES_BYTES, check_members, no_new_key, nothing_under_way, set, tell_all};
use crate::{
    error::Error,
    link::{parse_broker_url, try_tls},
    roots::{Root, RootSet},
    state::{ConsoleState, StartedBy},
};

/// How long the certificate is valid with which the broker is tried.
const TRIAL_LIFETIME: Duration = Duration::from_secs(3600);

/// Makes the new root, and has everybody trust it beside the present one.
pub(super) async fn begin(shared: &ConsoleState, operator: &Name) -> Result<(), Error> {
    shared.store.make_room_for(FILES_BYTES);
    let key = shared.authority.make_next_root().map_err(no_new_key)?;
    let present = shared.authority.roots().serving().key().clone();
    let offered = shared.authority.keys().state.root_offered(present, key, operator.clone(), now_ms());
    set(shared, offered.ok_or_else(nothing_under_way)?)?;
    let roots = shared.authority.roots();
    tracing::warn!(%operator, root = ?roots.ids().last(), "a rotation of the root certificate begins: hosts are told to trust the new one");
    Ok(tell_all(shared).await?)
}

/// Has certificates of clients made under the new root.
pub(super) async fn issue(shared: &ConsoleState, operator: &Name, without: BTreeSet<HostId>) -> Result<(), Error> {
    let roots = shared.authority.roots();
    let next = next_root(shared, &roots)?;
    check_members(shared, HostNeed::Trust(&next.id()), &without).await?;
    try_broker(shared, next, &roots.pem()).await.map_err(|(url, reason)| {
        Error::conflict(
            "broker_lacks_root",
            format!("the broker at {url} does not accept a certificate under the new root: {reason}"),
        )
        .consequence("certificates are still made under the present root")
        .hint(
            "make its files again with `muster console issue --role broker`, and reload it; their authority.pem has \
                 both root certificates",
        )
    })?;
    let issuing = shared.authority.keys().state.root_issuing(operator.clone(), without, now_ms());
    set(shared, issuing.ok_or_else(nothing_under_way)?)?;
    tracing::warn!(%operator, root = next.id(), "certificates are made under the new root: hosts are told to renew theirs");
    Ok(tell_all(shared).await?)
}

/// Drops the old root.
pub(super) async fn finish(shared: &ConsoleState, operator: &Name, without: BTreeSet<HostId>) -> Result<(), Error> {
    let roots = shared.authority.roots();
    let next = next_root(shared, &roots)?;
    check_members(shared, HostNeed::Certificate(&next.id()), &without).await?;
    try_broker(shared, next, next.pem()).await.map_err(|(url, reason)| {
        Error::conflict(
            "broker_lacks_root",
            format!("the broker at {url} has no certificate under the new root: {reason}"),
        )
        .consequence("the old root is still trusted")
        .hint("make its files again with `muster console issue --role broker`, and reload it")
    })?;
    let retired = roots.serving().id();
    let finished = shared.authority.keys().state.root_finished(retired, operator.clone(), without, now_ms());
    set(shared, finished.ok_or_else(nothing_under_way)?)?;
    tracing::warn!(%operator, root = next.id(), "the rotation is finished: the old root certificate is no longer trusted");
    Ok(tell_all(shared).await?)
}

/// The refusal to take back a root that hosts have certificates under.
pub(super) fn in_use() -> Error {
    Error::conflict("root_in_use", "certificates of hosts are made under the new root already")
        .consequence("the rotation continues")
        .hint("finish it (`muster authority finish`); after that, another one can begin")
}

/// Has everything of the console's own use the present roots.
pub(super) fn replaced(shared: &ConsoleState) {
    if let Err(error) = shared.tls.renew(&shared.authority, &shared.current()) {
        tracing::error!(
            %error,
            consequence = "the console keeps its former certificates",
            hint = "start the console again",
            "the console has no certificates under the present root",
        );
    }
    shared.revocation.requested.notify_one();
}

/// The new root of a rotation.
pub(super) fn next_root<'a>(shared: &ConsoleState, roots: &'a RootSet) -> Result<&'a Root, Error> {
    let keys = shared.authority.keys();
    keys.state.next_root().and_then(|next| roots.with_key(&next.key)).ok_or_else(nothing_under_way)
}

/// Connects to a broker that runs by itself, with a certificate under `root`, trusting `trusted`. Returns its URL and the reason
/// if that fails.
async fn try_broker(shared: &ConsoleState, root: &Root, trusted: &str) -> Result<(), (String, String)> {
    let config = &shared.settings.started_with;
    let failed = |reason: String| (config.broker_url.clone(), reason);
    // The broker of `muster up` follows the console.
    if shared.settings.started_by == StartedBy::Up {
        return Ok(());
    }
    let address = parse_broker_url(&config.broker_url).map_err(|error| failed(error.to_string()))?;
    let identity = Identity::Console(config.id.clone());
    let (certificate, key) = root.issue_client(&identity, TRIAL_LIFETIME).map_err(|error| failed(error.to_string()))?;
    let tls = pki::client(trusted, &certificate, &key).map_err(|error| failed(error.to_string()))?;
    try_tls(&address, tls).await.map_err(failed)
}
