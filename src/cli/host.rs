//! `muster host`: the hosts of the fleet.

use clap::Subcommand;
use reqwest::Method;

use super::{Session, container, label, print};
use crate::{api::Host, clock, failure::Failure};

/// Verbs on hosts.
#[derive(Subcommand, Clone, Debug)]
pub enum Verb {
    /// List all hosts, with the age of what is known of each
    #[command(alias = "list")]
    Ls,
    /// Show one host
    Show {
        /// Its id or hostname; the only host if there is but one
        host: Option<String>,
    },
    /// Ask a host to say everything anew
    Refresh {
        /// Its id or hostname; the only host if there is but one
        host: Option<String>,
    },
    /// List labels of hosts, or change them, for --group and --select
    Label(label::Label),
    /// Lock a host out: its certificates are revoked, and it must join anew with a new token
    Revoke {
        /// Its id or hostname
        host: String,
    },
    /// Remove a host that is gone for good: it is locked out, and forgotten with all that it said
    #[command(alias = "remove")]
    Rm {
        /// Its id or hostname
        host: String,
    },
}

/// Does it.
///
/// # Errors
/// If it cannot be done.
pub async fn run(verb: Verb, session: &Session) -> Result<(), Failure> {
    match verb {
        Verb::Ls => list(session).await,
        Verb::Show { host } => show(session, &one(session, host).await?).await,
        Verb::Refresh { host } => {
            let host = one(session, host).await?;
            session.client.order(Method::POST, &format!("hosts/{host}/refresh")).await?;
            print::say(format_args!("asked {host} to say everything anew"));
            Ok(())
        }
        Verb::Label(wanted) => label::run(wanted, session).await,
        Verb::Revoke { host } => {
            session.client.order(Method::POST, &format!("hosts/{host}/revoke")).await?;
            print::say(format_args!("{host} is locked out; what it runs goes on until somebody stops it there"));
            Ok(())
        }
        Verb::Rm { host } => {
            session.client.order(Method::DELETE, &format!("hosts/{host}")).await?;
            print::say(format_args!("{host} is removed; `muster command ls` still has what was ordered of it"));
            Ok(())
        }
    }
}

/// The host that is meant: the one named, the context's default, or the only one.
///
/// # Errors
/// If none is named and there is no telling.
pub async fn one(session: &Session, named: Option<String>) -> Result<String, Failure> {
    use crate::failure::Kind;
    if let Some(host) = named.or_else(|| session.context.host.map(|host| host.to_string())) {
        return Ok(host);
    }
    let hosts: Vec<Host> = session.client.get("hosts", &[]).await?;
    match hosts.as_slice() {
        [host] => Ok(host.id.to_string()),
        [] => Err(Failure::new(Kind::Failed, "no host has joined yet")
            .hint("`muster token create` makes a token; on the host, run `muster agent --join TOKEN`")),
        several => {
            let list: String = several.iter().map(|host| format!("\n  {}  {}", host.id, host.hostname)).collect();
            Err(Failure::new(Kind::Usage, format!("there are {} hosts:{list}", several.len()))
                .hint("name one with --host"))
        }
    }
}

/// The only host that there is: where more would do as well, none is taken for meant.
///
/// # Errors
/// If there are several, or none.
pub async fn only(session: &Session) -> Result<String, Failure> {
    use crate::failure::Kind;
    let hosts: Vec<Host> = session.client.get("hosts", &[]).await?;
    match hosts.as_slice() {
        [] | [_] => one(session, hosts.first().map(|host| host.id.to_string())).await,
        several => Err(Failure::new(Kind::Usage, format!("there are {} hosts, and none is named", several.len()))
            .hint("say which: --host HOST, --group LABEL, --select EXPRESSION or --all; `muster host ls` lists them")),
    }
}

async fn list(session: &Session) -> Result<(), Failure> {
    let hosts: Vec<Host> = session.client.get("hosts", &[]).await?;
    let now_ms = clock::now_ms();
    let row = |host: &Host| {
        let units = host.state.as_ref().map_or(0, |state| state.value.units.len());
        let heard = host.state.as_ref().map(|state| print::age(state.at_ms, now_ms)).unwrap_or_default();
        vec![host.hostname.clone(), host.id.to_string(), presence(host, now_ms), units.to_string(), heard]
    };
    let header = ["HOSTNAME", "ID", "PRESENCE", "UNITS", "LAST HEARTBEAT"];
    session.printer.list(&hosts, &header, row, "no host has joined yet; `muster token create` makes a token for one")
}

/// `online (since 5 min ago)`.
fn presence(host: &Host, now_ms: i64) -> String {
    let word = connection(host, now_ms);
    if host.certificate_expires_ms == 0 { format!("revoked; {word}") } else { word }
}

fn connection(host: &Host, now_ms: i64) -> String {
    match &host.presence {
        None => "never connected".to_owned(),
        Some(presence) => {
            format!("{} since {}", presence.state.word(), print::age(presence.since_ms, now_ms))
        }
    }
}

/// When a certificate ends, if it was not revoked.
fn certificate(expires_ms: i64) -> String {
    if expires_ms == 0 { "revoked".to_owned() } else { format!("until {}", print::time(expires_ms)) }
}

async fn show(session: &Session, host: &str) -> Result<(), Failure> {
    let host: Host = session.client.get(&format!("hosts/{host}"), &[]).await?;
    let now_ms = clock::now_ms();
    session.printer.one(&host, || {
        let mut lines = vec![
            ("hostname", host.hostname.clone()),
            ("id", host.id.to_string()),
            ("presence", presence(&host, now_ms)),
            ("joined", print::age(host.joined_ms, now_ms)),
            ("certificate", certificate(host.certificate_expires_ms)),
        ];
        if let Some(presence) = &host.presence {
            lines.push(("agent", format!("{}, life {}", presence.agent_version, presence.epoch)));
        }
        if !host.labels.is_empty() {
            lines.push(("labels", label::labels(&host.labels)));
        }
        if let Some(received) = &host.state {
            let state = &received.value;
            let facts = &state.facts;
            let realms: Vec<String> = state.realms.iter().map(ToString::to_string).collect();
            lines.extend([
                ("heard", print::age(received.at_ms, now_ms)),
                ("system", format!("{}, {} {}", facts.os, facts.kernel, facts.arch)),
                ("processor", format!("{} × {}", facts.cpus, facts.cpu_model)),
                ("memory", crate::size::print(facts.memory_bytes)),
                ("booted", print::age(facts.boot_ms, now_ms)),
                ("realms", realms.join(", ")),
            ]);
            lines.extend(
                state
                    .interfaces
                    .iter()
                    .map(|(name, interface)| ("interface", format!("{name} {}", interface.addresses.join(", ")))),
            );
            lines
                .extend(state.containers.iter().map(|(name, summary)| ("container", container::listed(name, summary))));
            lines.extend(
                state.units.iter().map(|(name, unit)| ("unit", format!("{name} {}", super::wait::phase(unit.phase)))),
            );
        }
        lines
    })
}
