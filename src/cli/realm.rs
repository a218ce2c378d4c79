//! `muster realm`: namespaces of units, with the address and the ports of their endpoints.

use std::{
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use clap::{ArgGroup, Args, Subcommand};
use muster_api::{Command, CommandState, NewRealm, Realm, RealmChanged, RealmFields, RealmRemoved, Unit};
use muster_base::failure::Failure;
use muster_topics::{
    endpoint::Endpoint,
    name::{CommandId, HostId, Name, UnitName},
    realm::PortRange,
};
use serde::Serialize;

use super::{
    command_follower,
    command_report::report,
    endpoint::socket,
    limit_value::{LimitValue, or_none},
    options::YesOrNo,
    print,
    session::CliSession,
};

/// Verbs on realms.
#[derive(Subcommand, Clone, Debug)]
pub enum RealmVerb {
    /// Create a realm
    #[command(
        after_long_help = "A realm is a namespace of units: the part before the slash in REALM/NAME. The ports of its \
                    units' endpoints are leased from its range, and global ones listen at its bind address. What \
                    a realm leaves open it inherits from its parent."
    )]
    Create {
        /// Name of the realm
        realm: Name,
        /// What it is
        #[command(flatten)]
        fields: RealmOptions,
        /// How long to wait
        #[command(flatten)]
        wait: RealmWaitOptions,
    },
    /// List realms, with what they have from their parents
    Ls,
    /// List addresses and ports on which units listen
    Endpoints {
        /// Name of the realm
        realm: Option<Name>,
    },
    /// Show a realm
    Show {
        /// Name of the realm
        realm: Name,
    },
    /// Set the address, the ports or the parent of a realm
    ///
    /// What is not given stays as it is.
    #[command(
        after_long_help = "A realm that is disabled keeps its units, and those of the realms below it, from being \
                    started; running units continue until they are stopped. Units keep the ports that they have: another \
                    range is for new endpoints. With another bind address, units with global endpoints, and \
                    units that connect to these, are restarted."
    )]
    #[command(group(ArgGroup::new("changes").required(true).multiple(true).args(["parent", "bind", "ports", "enabled"])))]
    Set {
        /// Name of the realm
        realm: Name,
        /// What it becomes
        #[command(flatten)]
        fields: RealmOptions,
        /// How long to wait
        #[command(flatten)]
        wait: RealmWaitOptions,
    },
    /// Remove a realm that has no units
    Rm {
        /// Name of the realm
        realm: Name,
        /// How long to wait
        #[command(flatten)]
        wait: RealmWaitOptions,
    },
}

/// What a realm is, or becomes.
#[derive(Args, Clone, Debug)]
pub struct RealmOptions {
    /// Realm to inherit from; none without one
    #[arg(long, value_name = "REALM", value_parser = or_none(str::parse::<Name>))]
    parent: Option<LimitValue<Name>>,
    /// Address for global endpoints; none for the parent's, or 127.0.0.1
    ///
    /// An address that each host has, or 0.0.0.0.
    #[arg(long, value_name = "ADDRESS", value_parser = or_none(str::parse::<IpAddr>))]
    bind: Option<LimitValue<IpAddr>>,
    /// Ports for its endpoints; none for the parent's, or 11100-11199
    #[arg(long, value_name = "FIRST-LAST", value_parser = or_none(str::parse::<PortRange>))]
    ports: Option<LimitValue<PortRange>>,
    /// Whether it is enabled
    ///
    /// If not, its units are not started.
    #[arg(long, value_name = "YES|NO", hide_possible_values = true)]
    enabled: Option<YesOrNo>,
}

/// How long to wait for the hosts.
#[derive(Args, Clone, Copy, Debug)]
pub struct RealmWaitOptions {
    /// Do not wait: end as soon as the console has stored it
    #[arg(long)]
    no_wait: bool,
    /// Wait so long until it is done
    ///
    /// All online hosts know of it then. Offline hosts learn of it when they are online again.
    #[arg(long, default_value = "10s", value_name = "TIME")]
    timeout: humantime::Duration,
}

/// Runs the verb.
///
/// # Errors
/// If it fails.
pub async fn run(verb: RealmVerb, session: &CliSession) -> Result<(), Failure> {
    match verb {
        RealmVerb::Create { realm, fields: RealmOptions { parent, bind, ports, enabled }, wait } => {
            let wanted = NewRealm {
                name: realm.clone(),
                parent: parent.and_then(|parent| parent.0),
                bind: bind.and_then(|bind| bind.0),
                ports: ports.and_then(|ports| ports.0),
                disabled: enabled.is_some_and(|enabled| !enabled.is_yes()),
            };
            let changed: RealmChanged = session.client.post("realms", &wanted).await?;
            told(session, &format!("realm {realm} is created"), changed.command, wait).await
        }
        RealmVerb::Ls => list(session).await,
        RealmVerb::Endpoints { realm } => endpoints(session, realm.as_ref()).await,
        RealmVerb::Show { realm } => show(session, &find(session, &realm).await?),
        RealmVerb::Set { realm, fields, wait } => {
            let wanted = fields.of(find(session, &realm).await?);
            let changed: RealmChanged = session.client.post(&format!("realms/{realm}"), &wanted).await?;
            told(session, &format!("realm {realm} is set"), changed.command, wait).await
        }
        RealmVerb::Rm { realm, wait } => {
            let removed: RealmRemoved = session.client.delete(&format!("realms/{realm}"), &[]).await?;
            told(session, &format!("realm {realm} is removed"), removed.command, wait).await
        }
    }
}

impl RealmOptions {
    fn of(self, before: Realm) -> RealmFields {
        let before = before.realm;
        RealmFields {
            parent: self.parent.map_or(before.parent, |parent| parent.0),
            bind: self.bind.map_or(before.bind, |bind| bind.0),
            ports: self.ports.map_or(before.ports, |ports| ports.0),
            disabled: self.enabled.map_or(before.disabled, |enabled| !enabled.is_yes()),
            if_generation: Some(before.generation),
        }
    }
}

async fn find(session: &CliSession, realm: &Name) -> Result<Realm, Failure> {
    session.client.get(&format!("realms/{realm}"), &[]).await
}

async fn list(session: &CliSession) -> Result<(), Failure> {
    let realms: Vec<Realm> = session.client.get("realms", &[]).await?;
    let row = |realm: &Realm| {
        let said = &realm.realm;
        vec![
            said.name.to_string(),
            said.parent.as_ref().map(ToString::to_string).unwrap_or_default(),
            inherited(realm.comes_to.bind, said.bind.is_none()),
            inherited(realm.comes_to.ports, said.ports.is_none()),
            state(realm),
            realm.units.to_string(),
        ]
    };
    let header = ["REALM", "PARENT", "BIND", "PORTS", "STATE", "UNITS"];
    session.printer.list(&realms, &header, row, "no realms")
}

/// An endpoint, and the unit that provides it.
#[derive(Debug, Serialize)]
struct ProvidedEndpoint<'a> {
    host: HostId,
    hostname: &'a str,
    unit: &'a UnitName,
    #[serde(flatten)]
    endpoint: &'a Endpoint,
}

fn provided_by(unit: &Unit) -> impl Iterator<Item = ProvidedEndpoint<'_>> {
    let Unit { host, hostname, unit, observed, .. } = unit;
    observed.endpoints.iter().map(move |endpoint| ProvidedEndpoint { host: *host, hostname, unit, endpoint })
}

async fn endpoints(session: &CliSession, realm: Option<&Name>) -> Result<(), Failure> {
    if let Some(realm) = realm {
        find(session, realm).await?;
    }
    let units: Vec<Unit> = session.client.get("units", &[]).await?;
    let of = |unit: &&Unit| realm.is_none_or(|realm| unit.unit.realm() == *realm);
    let all: Vec<ProvidedEndpoint<'_>> = units.iter().filter(of).flat_map(provided_by).collect();
    let row = |provided: &ProvidedEndpoint<'_>| {
        let ProvidedEndpoint { hostname, unit, endpoint, .. } = provided;
        let place = SocketAddr::new(endpoint.address, endpoint.port);
        vec![(*hostname).to_owned(), unit.to_string(), endpoint.name.to_string(), socket(place, endpoint.protocol)]
    };
    let empty = "no endpoints; `muster unit create yuno --provide NAME` has a yuno provide one";
    session.printer.list(&all, &["HOST", "UNIT", "ENDPOINT", "LISTENS AT"], row, empty)
}

fn inherited(value: impl std::fmt::Display, is_inherited: bool) -> String {
    if is_inherited { format!("({value})") } else { value.to_string() }
}

fn state(realm: &Realm) -> String {
    match &realm.comes_to.disabled_by {
        None => "enabled".to_owned(),
        Some(by) if *by == realm.realm.name => "disabled".to_owned(),
        Some(by) => format!("disabled by {by}"),
    }
}

fn show(session: &CliSession, realm: &Realm) -> Result<(), Failure> {
    session.printer.one(realm, || {
        vec![
            ("realm", realm.realm.name.to_string()),
            ("parent", realm.realm.parent.as_ref().map(ToString::to_string).unwrap_or_default()),
            ("bind", inherited(realm.comes_to.bind, realm.realm.bind.is_none())),
            ("ports", inherited(realm.comes_to.ports, realm.realm.ports.is_none())),
            ("state", state(realm)),
            ("units", realm.units.to_string()),
        ]
    })
}

/// Waits for a short time until the online hosts have been informed.
async fn told(
    session: &CliSession,
    what: &str,
    command: Option<CommandId>,
    wait: RealmWaitOptions,
) -> Result<(), Failure> {
    let Some(id) = command else {
        print::say(what);
        return Ok(());
    };
    if !wait.no_wait {
        let command: Command = session.client.get(&format!("commands/{id}"), &[]).await?;
        let limit: Duration = wait.timeout.into();
        if let Ok(hosts) = tokio::time::timeout(limit, command_follower::follow_there(session, &command)).await {
            let (away, heard): (Vec<_>, Vec<_>) =
                hosts?.into_iter().partition(|host| host.state() == CommandState::Waiting);
            if !heard.is_empty() {
                report(&command, &heard)?;
            }
            let later = if away.is_empty() { "" } else { "; those that are away are told when they are back" };
            let hosts = if heard.len() == 1 { "host" } else { "hosts" };
            print::say(format_args!("{what}, on {} {hosts}{later}", heard.len()));
            return Ok(());
        }
    }
    print::say(format_args!("{what}; some hosts have not confirmed yet (`muster command show {id}` shows which)"));
    Ok(())
}
