//! `muster host`: the hosts of the fleet.

use clap::{Args, Subcommand};
use muster_api::{Cordon, Host, HostSort};
use muster_base::{
    clock,
    failure::{Failure, FailureKind},
};
use muster_topics::count::counted;
use muster_topics::select::HostSelect;
use reqwest::Method;

use super::{
    container_text, cordon, label,
    print::{self, Printer},
    session::CliSession,
};

pub use super::host_lookup::{one, only};

/// Verbs on hosts.
#[derive(Subcommand, Clone, Debug)]
pub enum HostVerb {
    /// List hosts, and how old their last news is
    Ls(HostListArgs),
    /// Show a host
    Show {
        /// Host, by id or hostname [default: the only host]
        host: Option<String>,
    },
    /// Ask a host to report its whole state again
    Refresh {
        /// Host, by id or hostname [default: the only host]
        host: Option<String>,
    },
    /// List or change labels of hosts
    Label(label::LabelArgs),
    /// Keep new deployments from hosts, or list those that are not open
    ///
    /// A cordoned host keeps the deployments that it has, and gets their new versions.
    Cordon(cordon::CordonArgs),
    /// Have hosts carry deployments again
    Uncordon(cordon::CordonArgs),
    /// Have hosts remove the units of their deployments, and get no new ones
    Drain(cordon::DrainArgs),
    /// Revoke a host's certificates, so that it must join again
    ///
    /// It needs a new token for that.
    Revoke {
        /// Host, by id or hostname
        host: String,
        /// Do not ask first
        #[arg(short, long)]
        yes: bool,
    },
    /// Remove a host, and all that it has reported
    ///
    /// Its certificates are revoked.
    Rm {
        /// Host, by id or hostname
        host: String,
        /// Do not ask first
        #[arg(short, long)]
        yes: bool,
    },
}

/// Hosts that are listed.
#[derive(Args, Clone, Debug)]
pub struct HostListArgs {
    /// Hosts that this selects
    ///
    /// Such as 'label.site=north'; `muster --help` has the fields.
    #[arg(long, value_name = "EXPRESSION")]
    select: Option<HostSelect>,
    /// Order of the list
    ///
    /// `presence` shows offline hosts first, `heard` the last news, `units` the most units, `joined` the newest host.
    #[arg(long, value_name = "ORDER", default_value = "hostname", value_parser = HostSort::WORDS)]
    sort: String,
    /// Show so many at most [default: all]
    #[arg(short = 'n', long, value_name = "N")]
    limit: Option<u32>,
}

/// Runs the verb.
///
/// # Errors
/// If it fails.
pub async fn run(verb: HostVerb, session: &CliSession) -> Result<(), Failure> {
    match verb {
        HostVerb::Ls(wanted) => list(session, wanted).await,
        HostVerb::Show { host } => show(session, &one(session, host).await?).await,
        HostVerb::Refresh { host } => {
            let host = one(session, host).await?;
            session.client.order(Method::POST, &format!("hosts/{host}/refresh")).await?;
            print::say(format_args!("asked {host} for its whole state"));
            Ok(())
        }
        HostVerb::Label(wanted) => label::run(wanted, session).await,
        HostVerb::Cordon(wanted) => cordon::run(wanted, Cordon::Cordoned, session).await,
        HostVerb::Uncordon(wanted) => cordon::run(wanted, Cordon::Open, session).await,
        HostVerb::Drain(wanted) => cordon::drain(wanted, session).await,
        HostVerb::Revoke { host, yes } => {
            let host = sure(session, "revoke", &host, yes).await?;
            session.client.order(Method::POST, &format!("hosts/{}/revoke", host.id)).await?;
            print::say(format_args!(
                "{} is revoked; its units keep running until they are stopped there",
                host.hostname
            ));
            Ok(())
        }
        HostVerb::Rm { host, yes } => {
            let host = sure(session, "remove", &host, yes).await?;
            session.client.order(Method::DELETE, &format!("hosts/{}", host.id)).await?;
            print::say(format_args!(
                "{} is removed; `muster command ls` still has what was ordered of it",
                host.hostname
            ));
            Ok(())
        }
    }
}

/// The host, after the user has confirmed an operation that cannot be undone.
async fn sure(session: &CliSession, what: &str, host: &str, yes: bool) -> Result<Host, Failure> {
    let host: Host = session.client.get(&format!("hosts/{host}"), &[]).await?;
    let (name, id) = (&host.hostname, host.id);
    let units = host.state.as_ref().map_or(0, |state| state.value.units.len());
    let told = format!("{name}\n  {id}, {}, {}", standing(&host, clock::now_ms()), counted(units, "unit"));
    if yes || print::confirm(&format!("{what} {told}?\n")) {
        return Ok(host);
    }
    Err(Failure::new(FailureKind::Usage, format!("to {what} a host needs confirmation: {told}")).hint("pass --yes"))
}

async fn list(session: &CliSession, wanted: HostListArgs) -> Result<(), Failure> {
    let is_all = wanted.select.is_none();
    let mut query = vec![("sort", wanted.sort)];
    query.extend(wanted.select.map(|select| ("select", select.to_string())));
    query.extend(wanted.limit.map(|limit| ("limit", limit.to_string())));
    let hosts: Vec<Host> = session.client.get("hosts", &query).await?;
    let now_ms = clock::now_ms();
    let row = |host: &Host| {
        let units = host.state.as_ref().map_or(0, |state| state.value.units.len());
        let heard = host.state.as_ref().map(|state| print::age(state.at_ms, now_ms)).unwrap_or_default();
        vec![host.hostname.clone(), host.id.to_string(), standing(host, now_ms), units.to_string(), heard]
    };
    let header = ["HOSTNAME", "ID", "PRESENCE", "UNITS", "LAST HEARTBEAT"];
    let empty = match is_all {
        true => "no host has joined yet; `muster token create` makes a token for one",
        false => "no host matches; `muster host show` shows a host's labels and facts",
    };
    session.printer.list(&hosts, &header, row, empty)?;
    if let Some(limit) = wanted.limit {
        print::say_if_limited(hosts.len(), limit);
    }
    Ok(())
}

/// `online since 5 min ago; drained`.
fn standing(host: &Host, now_ms: i64) -> String {
    let word = presence(host, now_ms);
    match &host.cordon {
        Some(cordon) => format!("{word}; {}", cordon.words()),
        None => word,
    }
}

fn presence(host: &Host, now_ms: i64) -> String {
    let word = connection(host, now_ms);
    if host.is_revoked() { format!("revoked; {word}") } else { word }
}

fn connection(host: &Host, now_ms: i64) -> String {
    match &host.presence {
        None => "never connected".to_owned(),
        Some(presence) => {
            format!("{} since {}", presence.state.word(), print::age(presence.since_ms, now_ms))
        }
    }
}

/// The expiry of a certificate that is not revoked.
fn certificate(printer: Printer, expires_ms: i64) -> String {
    if expires_ms == 0 { "revoked".to_owned() } else { format!("until {}", printer.time(expires_ms)) }
}

async fn show(session: &CliSession, host: &str) -> Result<(), Failure> {
    let host: Host = session.client.get(&format!("hosts/{host}"), &[]).await?;
    let now_ms = clock::now_ms();
    session.printer.one(&host, || {
        let mut lines = vec![
            ("hostname", host.hostname.clone()),
            ("id", host.id.to_string()),
            ("presence", presence(&host, now_ms)),
            ("joined", print::age(host.joined_ms, now_ms)),
            ("certificate", certificate(session.printer, host.certificate_expires_ms)),
        ];
        if let Some(presence) = &host.presence {
            lines.push(("agent", format!("{}, life {}", presence.agent_version, presence.epoch)));
            lines.push(("can do", presence.abilities()));
        }
        if let Some(cordon) = &host.cordon {
            let set = print::age(cordon.set_ms, now_ms);
            lines.push(("deployments", format!("{} by {}, {set}", cordon.words(), cordon.operator)));
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
                ("memory", muster_topics::size::print(facts.memory_bytes)),
                ("booted", print::age(facts.boot_ms, now_ms)),
                ("realms", realms.join(", ")),
            ]);
            lines.extend(
                state
                    .interfaces
                    .iter()
                    .map(|(name, interface)| ("interface", format!("{name} {}", interface.addresses.join(", ")))),
            );
            lines.extend(
                state.containers.iter().map(|(name, summary)| ("container", container_text::listed(name, summary))),
            );
            lines.extend(
                state.units.iter().map(|(name, unit)| ("unit", format!("{name} {}", super::wait::phase(unit.phase)))),
            );
        }
        lines
    })
}
