//! `muster realm`: namespaces of units, with the address and the ports of their endpoints.

use std::{
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use clap::{Args, Subcommand};
use muster_api::{Command, CommandState, NewRealm, Realm, RealmChanged, RealmFields, RealmRemoved, Unit};
use muster_base::failure::Failure;
use muster_topics::{
    endpoint::Endpoint,
    name::{CommandId, HostId, Name, UnitName},
    realm::PortRange,
};
use serde::Serialize;

use super::{command_follower, command_report::report, endpoint::socket, print, session::CliSession};

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
    #[command(alias = "list")]
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
    /// Change a realm
    ///
    /// What is not named stays as it is.
    #[command(
        after_long_help = "A realm that is disabled keeps its units, and those of the realms below it, from being \
                    started; what runs goes on until it is stopped. Units keep the ports that they have: another \
                    range is for new endpoints. With another bind address, units with global endpoints, and \
                    units that connect to these, are restarted."
    )]
    Update {
        /// Name of the realm
        realm: Name,
        /// What it becomes
        #[command(flatten)]
        fields: RealmChanges,
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

/// What a realm is.
#[derive(Args, Clone, Debug)]
pub struct RealmOptions {
    /// Realm to inherit from
    #[arg(long, value_name = "REALM")]
    parent: Option<Name>,
    /// Address for global endpoints [default: 127.0.0.1]
    ///
    /// An address that each host has, or 0.0.0.0.
    #[arg(long, value_name = "ADDRESS")]
    bind: Option<IpAddr>,
    /// Ports for its endpoints [default: 11100-11199]
    #[arg(long, value_name = "FIRST-LAST")]
    ports: Option<PortRange>,
    /// Do not start its units any more
    #[arg(long)]
    disable: bool,
}

/// What a realm becomes.
#[derive(Args, Clone, Debug)]
#[group(required = true, multiple = true)]
pub struct RealmChanges {
    /// Realm to inherit from, or `none`
    #[arg(long, value_name = "REALM", value_parser = or::<Name>("none"))]
    parent: Option<ValueOr<Name>>,
    /// Address for global endpoints, or `inherit`
    #[arg(long, value_name = "ADDRESS", value_parser = or::<IpAddr>("inherit"))]
    bind: Option<ValueOr<IpAddr>>,
    /// Ports for its endpoints, or `inherit`
    #[arg(long, value_name = "FIRST-LAST", value_parser = or::<PortRange>("inherit"))]
    ports: Option<ValueOr<PortRange>>,
    /// Do not start its units any more
    #[arg(long, conflicts_with = "enable")]
    disable: bool,
    /// Allow its units to be started again
    #[arg(long)]
    enable: bool,
}

/// A value, or a word for none.
#[derive(Clone, Debug)]
pub struct ValueOr<T>(Option<T>);

fn or<T: std::str::FromStr<Err: std::fmt::Display>>(
    none: &'static str,
) -> impl Fn(&str) -> Result<ValueOr<T>, String> + Clone {
    move |text| {
        if text == none {
            Ok(ValueOr(None))
        } else {
            text.parse().map(|value| ValueOr(Some(value))).map_err(|error: T::Err| error.to_string())
        }
    }
}

/// How long to wait for the hosts.
#[derive(Args, Clone, Copy, Debug)]
pub struct RealmWaitOptions {
    /// Do not wait until the hosts know of it
    #[arg(long)]
    no_wait: bool,
    /// Wait so long until all online hosts know of it
    ///
    /// Offline hosts learn of it when they are online again.
    #[arg(long, default_value = "10s", value_name = "TIME")]
    timeout: humantime::Duration,
}

/// Runs the verb.
///
/// # Errors
/// If it fails.
pub async fn run(verb: RealmVerb, session: &CliSession) -> Result<(), Failure> {
    match verb {
        RealmVerb::Create { realm, fields: RealmOptions { parent, bind, ports, disable }, wait } => {
            let wanted = NewRealm { name: realm.clone(), parent, bind, ports, disabled: disable };
            let changed: RealmChanged = session.client.post("realms", &wanted).await?;
            told(session, &format!("realm {realm} is there"), changed.command, wait).await
        }
        RealmVerb::Ls => list(session).await,
        RealmVerb::Endpoints { realm } => endpoints(session, realm.as_ref()).await,
        RealmVerb::Show { realm } => show(session, &find(session, &realm).await?),
        RealmVerb::Update { realm, fields, wait } => {
            let wanted = fields.of(find(session, &realm).await?);
            let changed: RealmChanged = session.client.post(&format!("realms/{realm}"), &wanted).await?;
            told(session, &format!("realm {realm} is changed"), changed.command, wait).await
        }
        RealmVerb::Rm { realm, wait } => {
            let removed: RealmRemoved = session.client.delete(&format!("realms/{realm}"), &[]).await?;
            told(session, &format!("realm {realm} is forgotten"), removed.command, wait).await
        }
    }
}

impl RealmChanges {
    fn of(self, before: Realm) -> RealmFields {
        let before = before.realm;
        RealmFields {
            parent: self.parent.map_or(before.parent, |parent| parent.0),
            bind: self.bind.map_or(before.bind, |bind| bind.0),
            ports: self.ports.map_or(before.ports, |ports| ports.0),
            disabled: (before.disabled || self.disable) && !self.enable,
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
    let empty = "no endpoints; `muster yuno create --provide NAME` has a yuno provide one";
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
            let later = if away.is_empty() { "" } else { "; those that are away hear of it when they are back" };
            let hosts = if heard.len() == 1 { "host" } else { "hosts" };
            print::say(format_args!("{what}, on {} {hosts}{later}", heard.len()));
            return Ok(());
        }
    }
    print::say(format_args!("{what}; hosts that have not heard yet will (`muster command show {id}` tells which)"));
    Ok(())
}
