//! Fetches units from the console: all, all of a host, or those of some names.

use std::collections::BTreeSet;

use futures_util::{StreamExt, TryStreamExt, stream};
use muster_api::Unit;
use muster_base::failure::Failure;
use muster_topics::name::UnitName;

use super::{
    session::CliSession,
    target::{self, NounVerb, UnitRef},
    unit::OneUnit,
};

pub(super) async fn units(session: &CliSession, host: Option<String>) -> Result<Vec<Unit>, Failure> {
    let query: Vec<_> = host.into_iter().map(|host| ("host", host)).collect();
    session.client.get("units", &query).await
}

/// The most requests under way at a time.
const REQUESTS: usize = 8;

/// The units of these names, on all hosts.
pub(super) async fn named(session: &CliSession, names: impl Iterator<Item = &UnitName>) -> Result<Vec<Unit>, Failure> {
    let names: BTreeSet<&UnitName> = names.collect();
    let found = names
        .into_iter()
        .map(async |name| session.client.get::<Vec<Unit>>("units", &[("unit", name.to_string())]).await);
    stream::iter(found).buffered(REQUESTS).try_concat().await
}

/// The unit that is named: on the named host, or on the only one that has it.
pub(super) async fn one(session: &CliSession, wanted: &UnitRef, host: Option<String>) -> Result<Unit, Failure> {
    let all = named(session, [&wanted.unit].into_iter()).await?;
    let hosts: Vec<String> = host.into_iter().collect();
    let picked = target::pick(&all, wanted, &hosts, false)?;
    picked
        .first()
        .map(|unit| (*unit).clone())
        .ok_or_else(|| Failure::not_found(format_args!("there is no unit {}", wanted.unit)))
}

/// As [`one`], for a verb that does not show the host: it is said.
pub(super) async fn one_of(
    session: &CliSession,
    OneUnit { unit: wanted, host }: OneUnit,
    verb: NounVerb,
) -> Result<Unit, Failure> {
    let found = one(session, &wanted, host.clone()).await?;
    verb.check([&found])?;
    target::say_host(&wanted, host.as_slice(), &found);
    Ok(found)
}
