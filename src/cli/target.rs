//! Resolves typed names and selectors to hosts and units.

use std::{collections::BTreeMap, str::FromStr};

use muster_api::{Host, Unit};
use muster_base::failure::{Failure, FailureKind};
use muster_rules::id;
use muster_topics::{
    name::{HostId, UnitName},
    select::{self, HostSelect, Select},
    verb_table::KindName,
};

use super::{print, session::CliSession};

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
    /// The kind that it is about, unless it is about all.
    #[must_use]
    pub fn kind(self) -> Option<KindName> {
        match self {
            Self::Unit => None,
            Self::Yuno => Some(KindName::Yuno),
            Self::Container => Some(KindName::Container),
        }
    }

    /// The word for it.
    #[must_use]
    pub fn word(self) -> &'static str {
        self.kind().map_or("unit", KindName::as_str)
    }

    /// A verb after this noun.
    #[must_use]
    pub fn verb(self, word: &'static str) -> NounVerb {
        NounVerb { noun: self, word }
    }
}

/// A verb with the noun before it, which together say which units can be meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NounVerb {
    /// The noun.
    pub noun: Noun,
    /// The verb, as in [`UNIT_VERBS`](muster_topics::verb_table::UNIT_VERBS).
    pub word: &'static str,
}

impl NounVerb {
    /// Whether a unit is of the noun's kind, and has the verb.
    #[must_use]
    pub fn covers(self, unit: &Unit) -> bool {
        let kind = KindName::from(&*unit.desired.spec);
        self.noun.kind().is_none_or(|wanted| wanted == kind) && kind.has(self.word)
    }

    /// Refuses named units that it does not cover.
    ///
    /// # Errors
    /// If there is one.
    pub fn check<'a>(self, units: impl IntoIterator<Item = &'a Unit>) -> Result<(), Failure> {
        let Some(other) = units.into_iter().find(|unit| !self.covers(unit)) else { return Ok(()) };
        let kind = KindName::from(&*other.desired.spec);
        if !kind.has(self.word) {
            return Err(Failure::told(FailureKind::Usage, kind.without(&other.unit, self.word)));
        }
        let message = format!("{} is a {}, not a {}", other.unit, kind.noun(), self.noun.word());
        Err(Failure::new(FailureKind::Usage, message)
            .hint(format!("`muster unit {}` is for units of every kind that has it", self.word)))
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
                format!("{id}  {hostname}")
            };
            let list = listed(several.iter().map(named));
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
/// the only host that has it.
///
/// # Errors
/// If there is none, or if there are several where only one is allowed.
pub fn pick<'a>(units: &'a [Unit], wanted: &UnitRef, hosts: &[String], all: bool) -> Result<Vec<&'a Unit>, Failure> {
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
        several => Err(ambiguous(wanted, several)),
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

/// The most lines of a list in a message: more hide what stands before it.
const LISTED_MAX: usize = 10;

/// A list below a message: the first ten lines, and how many more there are.
pub fn listed(lines: impl ExactSizeIterator<Item = String>) -> String {
    let more = lines.len().saturating_sub(LISTED_MAX);
    let mut text: String = lines.take(LISTED_MAX).map(|line| format!("\n  {line}")).collect();
    if more > 0 {
        text.push_str(&format!("\n  and {more} more"));
    }
    text
}

fn ambiguous(wanted: &UnitRef, several: &[&Unit]) -> Failure {
    let list = listed(several.iter().map(|unit| format!("{}:{}  ({})", unit.host, unit.unit, unit.hostname)));
    Failure::new(FailureKind::Usage, format!("{} hosts have a unit {}:{list}", several.len(), wanted.unit))
        .hint("name one as HOST:REALM/NAME or with --host HOST")
}

/// Says on which host a unit was found, if that was not said on the command line.
pub fn say_host(wanted: &UnitRef, hosts: &[String], found: &Unit) {
    if wanted.host.is_none() && hosts.is_empty() {
        print::say(format_args!("{} on {}", found.unit, found.hostname));
    }
}

#[cfg(test)]
mod tests {
    use muster_topics::{
        unit::{Desired, Observed, Run, Spec},
        verb_table::UNIT_VERBS,
    };

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
    fn check(typed: &str, hosts: &[&str], all: bool, wanted: Result<&[u128], FailureKind>) {
        let units = [unit(1, "anna", "a/x"), unit(2, "bert", "a/x"), unit(2, "bert", "a/y")];
        let hosts: Vec<String> = hosts.iter().map(|host| (*host).to_owned()).collect();
        let picked = pick(&units, &typed.parse().unwrap(), &hosts, all);
        let picked = picked.map(|units| units.iter().map(|unit| unit.host.0.as_u128()).collect::<Vec<_>>());
        assert_eq!(
            picked.as_deref().map_err(|failure| failure.kind),
            wanted.as_ref().map(|ids| *ids).map_err(|kind| *kind)
        );
    }

    #[test]
    fn typed_names_resolve_to_units() {
        check("a/y", &[], false, Ok(&[2]));
        check("a/x", &[], false, Err(FailureKind::Usage));
        check("a/x", &[], true, Ok(&[1, 2]));
        check("a/x", &["bert"], false, Ok(&[2]));
        check("a/x", &["anna", "bert"], false, Ok(&[1, 2]));
        check("anna:a/x", &[], false, Ok(&[1]));
        check("00000000-0000-0000-0000-000000000002:a/x", &[], false, Ok(&[2]));
        // Both ids begin like this.
        check("00000000:a/x", &[], false, Err(FailureKind::Usage));
        check("a/x", &["00000000-0000-0000-0000-0000"], true, Err(FailureKind::Usage));
        check("anna:a/y", &[], false, Err(FailureKind::NotFound));
        check("a/z", &[], true, Err(FailureKind::NotFound));
    }

    fn of_kind(kind: KindName) -> Unit {
        let mut unit = unit(1, "anna", &format!("a/{kind}"));
        let spec = match kind {
            KindName::Yuno => return unit,
            KindName::Container => serde_json::json!({"kind": kind.as_str(), "image": {"name": "x"}}),
            KindName::Files => serde_json::json!({"kind": kind.as_str(), "files": {}}),
            KindName::Packages => serde_json::json!({"kind": kind.as_str()}),
        };
        unit.desired.spec = serde_json::from_value(spec).unwrap();
        unit
    }

    #[test]
    fn verb_is_for_units_of_its_noun_whose_kind_has_it() {
        for row in UNIT_VERBS {
            for kind in KindName::ALL {
                let unit = of_kind(kind);
                for noun in [Noun::Unit, Noun::Yuno, Noun::Container] {
                    let verb = noun.verb(row.word);
                    let is_meant = noun.kind().is_none_or(|wanted| wanted == kind) && row.kinds.contains(&kind);
                    assert_eq!(verb.covers(&unit), is_meant, "{noun:?} {} {kind}", row.word);
                    match verb.check([&unit]) {
                        Ok(()) => assert!(is_meant, "{noun:?} {} {kind}", row.word),
                        Err(failure) => {
                            assert_eq!(failure.kind, FailureKind::Usage);
                            assert!(!is_meant && failure.given_hint().is_some(), "{noun:?} {} {kind}", row.word);
                        }
                    }
                }
            }
        }
        let cause =
            |verb: NounVerb| verb.check([&of_kind(KindName::Container)]).unwrap_err().cause().unwrap().to_owned();
        assert_eq!(cause(Noun::Yuno.verb("stop")), "a/container is a container, not a yuno");
        assert_eq!(cause(Noun::Unit.verb("config")), "a/container is a container, which has no `config`");
    }

    #[test]
    fn long_lists_are_cut() {
        let lines = |count: usize| listed((0..count).map(|n| n.to_string()));
        assert_eq!(lines(2), "\n  0\n  1");
        assert!(lines(10).ends_with("\n  9"));
        assert!(lines(303).ends_with("\n  9\n  and 293 more"));
    }

    #[test]
    fn target_arguments_parse() {
        for bad in ["", "x", ":a/x", "anna:", "anna:x", "a/x/y"] {
            assert!(bad.parse::<UnitRef>().is_err(), "{bad}");
        }
        assert_eq!("[::1]:a/x".parse::<UnitRef>().unwrap().host.as_deref(), Some("[::1]"));
    }
}
