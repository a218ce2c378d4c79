//! Finds the host that a verb works on.

use muster_api::Host;
use muster_base::failure::{Failure, FailureKind};

use super::{session::CliSession, target};

/// The named host, the context's default host, or the only host.
///
/// # Errors
/// If none is named and there are several.
pub async fn one(session: &CliSession, named: Option<String>) -> Result<String, Failure> {
    if let Some(host) = named.or_else(|| session.context.host.map(|host| host.to_string())) {
        return Ok(host);
    }
    let hosts: Vec<Host> = session.client.get("hosts", &[]).await?;
    match hosts.as_slice() {
        [host] => Ok(host.id.to_string()),
        [] => Err(none()),
        several => {
            let list = target::listed(several.iter().map(|host| format!("{}  {}", host.id, host.hostname)));
            Err(Failure::new(
                FailureKind::Usage,
                format!("there are {} hosts, and none is named:{list}", several.len()),
            )
            .hint("name one with --host HOST"))
        }
    }
}

/// The only host. Used where several hosts would be possible, so that a default host is not assumed.
///
/// # Errors
/// If there are several, or none.
pub async fn only(session: &CliSession) -> Result<Host, Failure> {
    let mut hosts: Vec<Host> = session.client.get("hosts", &[]).await?;
    match (hosts.pop(), hosts.len()) {
        (Some(host), 0) => Ok(host),
        (None, _) => Err(none()),
        (Some(_), others) => {
            Err(Failure::new(FailureKind::Usage, format!("there are {} hosts, and none is named", others + 1))
                .hint("pass --host HOST, --select EXPRESSION or --all; `muster host ls` lists them"))
        }
    }
}

fn none() -> Failure {
    Failure::not_found("no host has joined yet")
        .hint("`muster token create` makes a token; on the host, run `muster agent --join TOKEN`")
}
