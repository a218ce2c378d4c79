//! Fetches units from the console: all of a host, or one by name.

use muster_api::Unit;
use muster_base::failure::{Failure, FailureKind};

use super::{
    session::CliSession,
    target::{self, UnitRef},
};

pub(super) async fn units(session: &CliSession, host: Option<String>) -> Result<Vec<Unit>, Failure> {
    let query: Vec<_> = host.into_iter().map(|host| ("host", host)).collect();
    session.client.get("units", &query).await
}

pub(super) async fn one(session: &CliSession, wanted: &UnitRef, host: Option<String>) -> Result<Unit, Failure> {
    let all = units(session, None).await?;
    let hosts: Vec<String> = host.into_iter().collect();
    let picked = target::pick(&all, wanted, &hosts, false, session.context.host)?;
    picked
        .first()
        .map(|unit| (*unit).clone())
        .ok_or_else(|| Failure::new(FailureKind::Failed, format!("there is no unit {}", wanted.unit)))
}
