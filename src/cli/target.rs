//! Resolves typed names and selectors to hosts and units.

use std::{collections::BTreeMap, str::FromStr};

use muster_api::{Host, Unit};
use muster_base::failure::{Failure, FailureKind};
use muster_rules::id;
use muster_topics::{
    name::{HostId, UnitName},
    select::{self, HostSelect, Select},
};

use super::session::CliSession;

/// A unit on the command line: `REALM/NAME`, or `HOST:REALM/NAME`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnitRef {
    /// The host, by id or hostname, if one was given.
    pub host: Option<String>,
    /// The unit.
    pub unit: UnitName,
}

impl FromStr for UnitRef {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (host, unit) = match text.rsplit_once(':') {
            Some((host, unit)) if !host.is_empty() => (Some(host.to_owned()), unit),
            Some(_) => return Err("expected HOST:REALM/NAME or REALM/NAME".to_owned()),
            None => (None, text),
        };
        let unit = unit.parse().map_err(|error: muster_topics::name::NameError| error.to_string())?;
        Ok(Self { host, unit })
    }
}

/// The kind of units that a verb handles, according to the noun before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Noun {
    /// `muster unit`: of any kind.
    Unit,
    /// `muster yuno`.
    Yuno,
    /// `muster container`.
    Container,
}

impl Noun {
    /// Whether the noun covers this unit.
    #[must_use]
    pub fn covers(self, unit: &Unit) -> bool {
        match self {
            Self::Unit => true,
            Self::Yuno | Self::Container => unit.desired.spec.kind() == self.word(),
        }
    }

    /// The word for it.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Unit => "unit",
            Self::Yuno => "yuno",
            Self::Container => "container",
        }
    }

    /// The units that it covers.
    pub fn among(self, units: Vec<Unit>) -> Vec<Unit> {
        units.into_iter().filter(|unit| self.covers(unit)).collect()
    }

    /// Refuses named units that it does not cover.
    ///
    /// # Errors
    /// If there is one.
    pub fn check<'a>(self, units: impl IntoIterator<Item = &'a Unit>) -> Result<(), Failure> {
        let Some(other) = units.into_iter().find(|unit| !self.covers(unit)) else { return Ok(()) };
        let kind = other.desired.spec.kind();
        let own = match other.desired.spec.program().is_some() {
            true => format!("`muster {kind} --help` lists what can be done with it, "),
            false => String::new(),
        };
        Err(Failure::new(FailureKind::Usage, format!("{} is a {kind}, not a {}", other.unit, self.word()))
            .hint(format!("{own}`muster unit --help` lists what can be done with any unit")))
    }
}

/// The host with units that is named by an id, its beginning, or a hostname; `None` if there is none.
///
/// # Errors
/// If the name is ambiguous.
pub fn host_of(units: &[Unit], name: &str) -> Result<Option<HostId>, Failure> {
    match id::host(name, units.iter().map(|unit| (unit.host, unit.hostname.as_str()))) {
        Ok(host) => Ok(Some(host)),
        Err(none) if none.is_empty() => Ok(None),
        Err(several) => {
            let named = |id: &HostId| {
                let hostname = units.iter().find(|unit| unit.host == *id).map_or("", |unit| unit.hostname.as_str());
                format!("\n  {id}  {hostname}")
            };
            let list: String = several.iter().map(named).collect();
            Err(Failure::new(FailureKind::Usage, format!("{name} could be {} hosts:{list}", several.len()))
                .hint("name one by its id, or by as much of it as no other one has"))
        }
    }
}

/// The units that an expression selects; all, if there is no expression.
pub fn select<'a>(units: &'a [Unit], wanted: Option<&Select>) -> impl Iterator<Item = &'a Unit> {
    units.iter().filter(move |unit| wanted.is_none_or(|select| select.picks_unit(&unit.selectable())))
}

/// The ids of the hosts that an expression selects, from what the console knows now. A host that has never connected
/// has no facts and realms, and only the labels that were set on the console.
///
/// # Errors
/// If none is selected.
pub async fn picked(session: &CliSession, wanted: &HostSelect) -> Result<Vec<String>, Failure> {
    let hosts: Vec<Host> = session.client.get("hosts", &[]).await?;
    let units: Vec<Unit> = if wanted.asks_units() { session.client.get("units", &[]).await? } else { Vec::new() };
    // Revoked hosts get no commands.
    let members = hosts.iter().filter(|host| !host.is_revoked());
    let picked: Vec<String> =
        members.filter(|host| is_picked(host, &units, wanted)).map(|host| host.id.to_string()).collect();
    if picked.is_empty() {
        return Err(Failure::not_found(format_args!("no host matches {wanted}"))
            .hint("`muster host ls` lists them, and `muster host show` shows the labels and facts of one"));
    }
    Ok(picked)
}

fn is_picked(host: &Host, units: &[Unit], wanted: &HostSelect) -> bool {
    let no_realms = Vec::new();
    let labels: BTreeMap<_, _> = host.labels.iter().map(|label| (label.name.clone(), label.value.clone())).collect();
    let theirs: Vec<select::Unit<'_>> =
        units.iter().filter(|unit| unit.host == host.id).map(Unit::selectable).collect();
    let state = host.state.as_ref().map(|received| &received.value);
    wanted.picks(&match state {
        Some(state) => select::Host { labels: &labels, ..select::Host::of(host.id, state, &theirs) },
        None => select::Host {
            host: host.id,
            hostname: &host.hostname,
            agent_version: "",
            facts: None,
            labels: &labels,
            realms: &no_realms,
            units: &theirs,
        },
    })
}

/// The units that a reference selects: on the named host, on `hosts`, or with `all` on every host; otherwise the one on
/// the context's default host, or the only one.
///
/// # Errors
/// If there is none, or if there are several where only one is allowed.
pub fn pick<'a>(
    units: &'a [Unit],
    wanted: &UnitRef,
    hosts: &[String],
    all: bool,
    default_host: Option<HostId>,
) -> Result<Vec<&'a Unit>, Failure> {
    let named: Vec<&Unit> = units.iter().filter(|unit| unit.unit == wanted.unit).collect();
    let on = |name: &String| {
        let host = host_of(units, name)?;
        let found: Vec<&Unit> = named.iter().copied().filter(|unit| Some(unit.host) == host).collect();
        if found.is_empty() { Err(missing(wanted, Some(name), &named)) } else { Ok(found) }
    };
    let asked: Vec<&String> = wanted.host.iter().chain(hosts).collect();
    if !asked.is_empty() {
        return asked.into_iter().map(on).collect::<Result<Vec<_>, _>>().map(|found| found.concat());
    }
    match named.as_slice() {
        [] => Err(missing(wanted, None, &named)),
        [_] => Ok(named),
        _ if all => Ok(named),
        several => several
            .iter()
            .find(|unit| Some(unit.host) == default_host)
            .map(|unit| vec![*unit])
            .ok_or_else(|| ambiguous(wanted, several)),
    }
}

fn missing(wanted: &UnitRef, host: Option<&String>, elsewhere: &[&Unit]) -> Failure {
    let at = host.map(|host| format!(" on {host}")).unwrap_or_default();
    let failure = Failure::not_found(format_args!("there is no unit {}{at}", wanted.unit));
    match elsewhere.first() {
        Some(unit) => failure.hint(format!("there is one on {} ({})", unit.hostname, unit.host)),
        None => failure.hint("`muster unit ls` lists the units"),
    }
}

fn ambiguous(wanted: &UnitRef, several: &[&Unit]) -> Failure {
    let list: String =
        several.iter().map(|unit| format!("\n  {}:{}  ({})", unit.host, unit.unit, unit.hostname)).collect();
    Failure::new(FailureKind::Usage, format!("{} hosts have a unit {}:{list}", several.len(), wanted.unit))
        .hint("name one as HOST:REALM/NAME, or pass --host HOST or --all")
}

#[cfg(test)]
mod tests {
    use muster_topics::unit::{Desired, Observed, Run, Spec};

    use super::*;

    fn unit(host: u128, hostname: &str, name: &str) -> Unit {
        let digest = muster_topics::name::Digest::of(b"");
        let spec = serde_json::json!({
            "kind": "yuno",
            "artifact": { "sha256": digest, "size_bytes": 1, "role": "a", "version": "1" }
        });
        let spec: Spec = serde_json::from_value(spec).unwrap();
        Unit {
            host: HostId(uuid::Uuid::from_u128(host)),
            hostname: hostname.to_owned(),
            unit: name.parse().unwrap(),
            desired: Desired { generation: 1, revision: digest, spec: spec.into(), run: Run::Stopped, frozen: false },
            observed: Observed::absent(0),
            hold: None,
            owner: None,
            pins: muster_topics::snapshot::Pins::default(),
            stats: None,
            at_ms: 0,
        }
    }

    #[track_caller]
    fn check(typed: &str, hosts: &[&str], all: bool, default_host: Option<u128>, wanted: Result<&[u128], FailureKind>) {
        let units = [unit(1, "anna", "a/x"), unit(2, "bert", "a/x"), unit(2, "bert", "a/y")];
        let hosts: Vec<String> = hosts.iter().map(|host| (*host).to_owned()).collect();
        let default_host = default_host.map(|id| HostId(uuid::Uuid::from_u128(id)));
        let picked = pick(&units, &typed.parse().unwrap(), &hosts, all, default_host);
        let picked = picked.map(|units| units.iter().map(|unit| unit.host.0.as_u128()).collect::<Vec<_>>());
        assert_eq!(
            picked.as_deref().map_err(|failure| failure.kind),
            wanted.as_ref().map(|ids| *ids).map_err(|kind| *kind)
        );
    }

    #[test]
    fn typed_names_resolve_to_units() {
        check("a/y", &[], false, None, Ok(&[2]));
        check("a/x", &[], false, None, Err(FailureKind::Usage));
        check("a/x", &[], false, Some(1), Ok(&[1]));
        check("a/x", &[], true, None, Ok(&[1, 2]));
        check("a/x", &["bert"], false, Some(1), Ok(&[2]));
        check("a/x", &["anna", "bert"], false, None, Ok(&[1, 2]));
        check("anna:a/x", &[], false, None, Ok(&[1]));
        check("00000000-0000-0000-0000-000000000002:a/x", &[], false, None, Ok(&[2]));
        // Both ids begin like this.
        check("00000000:a/x", &[], false, None, Err(FailureKind::Usage));
        check("a/x", &["00000000-0000-0000-0000-0000"], true, None, Err(FailureKind::Usage));
        check("anna:a/y", &[], false, None, Err(FailureKind::NotFound));
        check("a/z", &[], true, None, Err(FailureKind::NotFound));
    }

    #[test]
    fn noun_limits_the_kind() {
        let mut container = unit(1, "anna", "a/c");
        let spec = serde_json::json!({"kind": "container", "image": {"name": "x"}});
        container.desired.spec = serde_json::from_value(spec).unwrap();
        let units = vec![unit(1, "anna", "a/x"), container];
        for (noun, among) in [(Noun::Unit, &["a/x", "a/c"][..]), (Noun::Yuno, &["a/x"]), (Noun::Container, &["a/c"])] {
            let found = noun.among(units.clone());
            assert_eq!(found.iter().map(|unit| unit.unit.as_str()).collect::<Vec<_>>(), among);
            assert_eq!(noun.check(&units).is_ok(), noun == Noun::Unit);
            noun.check(&found).unwrap();
        }
        let message = Noun::Yuno.check(&units).unwrap_err().cause().unwrap().to_owned();
        assert_eq!(message, "a/c is a container, not a yuno");
    }

    #[test]
    fn target_arguments_parse() {
        for bad in ["", "x", ":a/x", "anna:", "anna:x", "a/x/y"] {
            assert!(bad.parse::<UnitRef>().is_err(), "{bad}");
        }
        assert_eq!("[::1]:a/x".parse::<UnitRef>().unwrap().host.as_deref(), Some("[::1]"));
    }
}
