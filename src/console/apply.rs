//! Applies documents to units: validates everything, and compares it with the present state, before any command is issued.
//!
//! The present state comes from the hosts' last reports, in which values of environments are masked. The revision tells whether those
//! differ, because it is computed over them with a key that host and console share ([`RevisionKey`]).
//!
//! **Invariant: if any document has a fault, nothing is changed**, and all faults are reported. What only a
//! host can validate, each online host is asked before any host is told to change anything, for all of its units together; and
//! each host applies all of them in one transaction, or none ([`set`]).
//!
//! **Invariant: a unit that already matches is not changed**, unless a command under way may have changed it: then its
//! host decides, and keeps what matches.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    time::Duration,
};

use muster_topics::{
    command::{UnitWish, Verb},
    diagnostic::Diagnostic,
    endpoint::Protocol,
    name::{ConfigId, Digest, HostId, Name, UnitName, Version},
    revision::RevisionKey,
    unit::{ArtifactRef, ConfigRef, Run, Spec, UNITS_MAX},
};
use serde_json::Value;

mod set;

use muster_api::{
    Applied, AppliedUnit, Apply, ApplyAction, Artifact, CompareUnit, Config, FieldDifference, Host, NewCommand,
    NewTarget, Unit, upgrade,
};
use muster_rules::{
    cost::{ChangeCost, cost_there},
    document::{self, DocumentFault, WantedUnit},
    edit::{self, CurrentUnit, UnitEdit},
    spec_comparison, start_order,
    unknown_keys::nearest,
};

use super::{
    content, dispatch,
    error::Error,
    secret,
    state::Console,
    store::{command, host},
};

/// The most units on hosts in one request: as many commands may be open at a time.
const ALL_UNITS_MAX: usize = 10_000;

/// How long hosts may take to check whether they can apply their units. It takes milliseconds; a host that does not
/// answer in this time counts as away.
const CHECK_WAIT: Duration = Duration::from_secs(10);

/// The most faults that are reported: further ones appear once these are fixed.
const FAULTS_MAX: usize = 100;

/// The present state of the fleet.
struct FleetState {
    hosts: Vec<(HostId, String)>,
    /// Realms of each host, as it reports.
    carried: BTreeMap<HostId, Vec<Name>>,
    catalogue: Catalogue,
    units: BTreeMap<(HostId, UnitName), Unit>,
    /// Units with an open command.
    busy: BTreeSet<UnitName>,
}

/// What documents may name.
pub(super) struct Catalogue {
    pub(super) realms: Vec<Name>,
    artifacts: Vec<Artifact>,
    configs: Vec<Config>,
}

/// A unit's desired state, on whichever hosts.
struct UnitGoal {
    source: String,
    wanted: WantedUnit,
    spec: Spec,
    hosts: Vec<HostId>,
}

/// Everything that is wrong, line by line, each with its hint.
#[derive(Default)]
pub(super) struct DocumentFaults(Vec<(String, Option<String>)>);

impl DocumentFaults {
    /// Adds what is wrong.
    pub(super) fn add(&mut self, source: &str, at: &str, told: impl Into<Diagnostic>) {
        let place: Vec<&str> = [source, at].into_iter().filter(|part| !part.is_empty()).collect();
        let Diagnostic { cause, hint, .. } = told.into();
        let cause = cause.replace('\n', "\n  ");
        self.0.push((if place.is_empty() { cause } else { format!("{}: {cause}", place.join(": ")) }, hint));
    }

    pub(super) fn add_error(&mut self, source: &str, at: &str, error: Error) -> Result<(), Error> {
        if error.status >= 500 {
            return Err(error);
        }
        self.add(source, at, error.problem.diagnostic);
        Ok(())
    }

    pub(super) fn into_result(self) -> Result<(), Error> {
        let Self(mut lines) = self;
        lines.dedup();
        let (count, more) = (lines.len(), lines.len().saturating_sub(FAULTS_MAX));
        let usual = || "correct the documents and apply them again".to_owned();
        let (mut message, hint) = match (count, lines.first()) {
            (0, _) | (_, None) => return Ok(()),
            (1, Some((line, hint))) => (line.clone(), hint.clone().unwrap_or_else(usual)),
            _ => {
                lines.truncate(FAULTS_MAX);
                let shown = |(line, hint): &(String, Option<String>)| match hint {
                    Some(hint) => format!("\n- {line} ({hint})"),
                    None => format!("\n- {line}"),
                };
                let all: String = lines.iter().map(shown).collect();
                (format!("{count} errors:{all}"), usual())
            }
        };
        if more > 0 {
            let _ = write!(message, "\n- and {more} more");
        }
        Err(Error::invalid("bad_documents", message).consequence("nothing was changed").hint(hint))
    }
}

/// The hosts of units whose documents name none.
#[derive(Clone, Copy)]
struct HostChoice<'a> {
    named: &'a [String],
    /// If they were picked by an expression: those of them that earn secrets.
    chosen: Option<&'a BTreeSet<HostId>>,
}

impl Console {
    /// Applies documents to units.
    pub async fn apply(&self, operator: &Name, apply: Apply) -> Result<Applied, Error> {
        self.shared.check_operator(operator).await?;
        let known = self.known().await?;
        let chosen = match &apply.picked_by {
            Some(select) => Some(self.chosen_hosts(select).await?),
            None => None,
        };
        let mut faults = DocumentFaults::default();
        let mut goals = Vec::new();
        for given in &apply.documents {
            let (wanted, wrong) = document::read(&given.content);
            wrong.into_iter().for_each(|DocumentFault { at, diagnostic }| faults.add(&given.source, &at, diagnostic));
            for wanted in wanted {
                let hosts = HostChoice { named: &apply.hosts, chosen: chosen.as_ref() };
                goals.extend(self.goal(&known, (&given.source, wanted), hosts, &mut faults).await?);
            }
        }
        if goals.iter().map(|goal| goal.hosts.len()).sum::<usize>() > ALL_UNITS_MAX {
            return Err(Error::invalid(
                "too_many_units",
                format!("at most {ALL_UNITS_MAX} units can be applied at once"),
            ));
        }
        twice(&goals, &mut faults);
        circles(&known, &goals, &mut faults);
        let mut units = Vec::new();
        for (index, goal) in goals.iter().enumerate() {
            for host in &goal.hosts {
                match known.compare(goal, *host, &self.shared.authority.revision_key(*host)) {
                    Ok(unit) => units.push((index, unit)),
                    Err(message) => faults.add(&goal.source, goal.wanted.unit.as_str(), message),
                }
            }
        }
        crowds(&known, &goals, &mut faults);
        std::mem::take(&mut faults).into_result()?;
        let shares = shares(&known, &units);
        let mut unchecked = Vec::new();
        // A single command to one host is done or refused as a whole: a check before it adds nothing.
        let is_one = matches!(&shares[..], [only] if only.is_one());
        if !shares.is_empty() && (apply.dry_run || !is_one) {
            unchecked = self.ask_hosts(operator, (&known, &goals), &shares, &mut faults).await?;
            faults.into_result()?;
        }
        if !apply.dry_run {
            self.order(operator, &goals, &shares, &mut units, apply.expires_in_ms).await?;
        }
        Ok(Applied { units: units.into_iter().map(|(_, unit)| unit).collect(), unchecked })
    }

    /// Returns the document of an existing unit.
    pub async fn unit_document(&self, host: HostId, unit: &UnitName) -> Result<Value, Error> {
        let unit = self.unit(host, unit).await?;
        let same_name = host::named(self.shared.store.read(), &unit.hostname).await?.len();
        let name = if same_name == 1 { unit.hostname } else { unit.host.to_string() };
        Ok(document::write(&unit.unit, &name, &unit.desired.spec, unit.desired.run))
    }

    /// Returns how a unit differs from a spec.
    pub async fn unit_differences(
        &self,
        host: HostId,
        unit: &UnitName,
        wanted: &CompareUnit,
    ) -> Result<Vec<FieldDifference>, Error> {
        let there = self.unit(host, unit).await?;
        let key = self.shared.authority.revision_key(host);
        Ok(spec_comparison::compare((&there.unit, &there.desired), &wanted.spec, wanted.run, &key))
    }

    async fn known(&self) -> Result<FleetState, Error> {
        let db = self.shared.store.read();
        let units = self.units(None).await?.into_iter().map(|unit| ((unit.host, unit.unit.clone()), unit));
        let busy = command::open_verbs(db)
            .await?
            .into_iter()
            .flat_map(|(_, verb)| verb.units().into_iter().cloned().collect::<Vec<_>>());
        let hosts = self.hosts().await?;
        let carried = |host: &Host| Some((host.id, host.state.as_ref()?.value.realms.clone()));
        Ok(FleetState {
            carried: hosts.iter().filter_map(carried).collect(),
            hosts: hosts.into_iter().map(|host| (host.id, host.hostname)).collect(),
            catalogue: self.catalogue().await?,
            units: units.collect(),
            busy: busy.collect(),
        })
    }

    pub(super) async fn catalogue(&self) -> Result<Catalogue, Error> {
        Ok(Catalogue {
            realms: self.realms().await?.into_iter().map(|realm| realm.realm.name).collect(),
            artifacts: self.artifacts(None, None).await?,
            configs: self.configs().await?,
        })
    }

    /// Resolves a document and all that it names; `None` if something is wrong.
    async fn goal(
        &self,
        known: &FleetState,
        (source, wanted): (&str, WantedUnit),
        hosts: HostChoice<'_>,
        faults: &mut DocumentFaults,
    ) -> Result<Option<UnitGoal>, Error> {
        let before = faults.0.len();
        let at = |field: &str| format!("{}: {field}", wanted.unit);
        let HostChoice { named, chosen } = hosts;
        let chosen = chosen.filter(|_| wanted.hosts.is_empty());
        let named = if wanted.hosts.is_empty() { named } else { &wanted.hosts };
        let found =
            known.hosts(named).or_else(|error| faults.add_error(source, &at("hosts"), error).map(|()| Vec::new()))?;
        if let Err(message) = known.realm(&wanted.unit.realm(), &found) {
            faults.add(source, &at("unit"), &message);
        }
        let spec = self.resolve(&known.catalogue, (source, &wanted), faults).await?;
        if let (Some(chosen), Some(spec)) = (chosen, &spec)
            && found.iter().any(|host| !chosen.contains(host))
            && (!spec.common().secrets.is_empty() || self.have_secret_values(spec.configs()).await?)
        {
            let cause = "it has secrets, so the expression must require a label that the console gives its \
                         hosts, such as label.role=till; facts and the host's own labels do not count";
            faults.add(source, &at("hosts"), Diagnostic::new(cause).with_hint("or name the hosts"));
        }
        let goal = spec.map(|spec| UnitGoal { source: source.to_owned(), wanted, spec, hosts: found });
        Ok(goal.filter(|_| faults.0.len() == before))
    }

    /// Resolves all that the document of a unit names, and checks the spec; `None` if something is wrong.
    pub(super) async fn resolve(
        &self,
        catalogue: &Catalogue,
        (source, wanted): (&str, &WantedUnit),
        faults: &mut DocumentFaults,
    ) -> Result<Option<Spec>, Error> {
        let at = |field: &str| format!("{}: {field}", wanted.unit);
        let artifact = wanted.artifact.as_ref().map(|name| catalogue.artifact(name)).transpose();
        let artifact = artifact.map_err(|message| faults.add(source, &at(wanted.artifact_key()), &message)).ok();
        let mut configs = Vec::new();
        for (index, text) in wanted.configs.iter().enumerate() {
            match catalogue.config(text) {
                Ok(config) => configs.push(config),
                Err(message) => faults.add(source, &at(&format!("configs.{index}")), &message),
            }
        }
        let mut file_artifacts = BTreeMap::new();
        for (path, text) in &wanted.file_artifacts {
            match catalogue.artifact(text) {
                Ok(artifact) => drop(file_artifacts.insert(path.clone(), artifact)),
                Err(message) => faults.add(source, &at(&format!("files.{path}.artifact")), &message),
            }
        }
        let is_found = wanted.is_whole
            && configs.len() == wanted.configs.len()
            && file_artifacts.len() == wanted.file_artifacts.len();
        let Some(artifact) = artifact.filter(|_| is_found) else { return Ok(None) };
        let says = match artifact.as_ref().and_then(|artifact| artifact.manifest.as_ref()) {
            Some(manifest) => self.manifest(manifest).await?,
            None => muster_topics::manifest::Manifest::default(),
        };
        let mut spec = match wanted.spec(artifact, configs, &says) {
            Ok(mut spec) => {
                document::set_file_artifacts(&mut spec, file_artifacts);
                spec
            }
            Err(DocumentFault { at, diagnostic }) => {
                faults.add(source, &at, diagnostic);
                return Ok(None);
            }
        };
        if let Err(error) = secret::fill_in(self, &wanted.unit.realm(), &mut spec, &BTreeSet::new()).await {
            let place = if spec.configs().is_empty() { "env" } else { "configs" };
            faults.add_error(source, &at(place), error)?;
            return Ok(None);
        }
        self.check(source, wanted, &spec, faults).await?;
        Ok(Some(spec))
    }

    /// Checks a spec as far as possible before a host is asked.
    async fn check(
        &self,
        source: &str,
        wanted: &WantedUnit,
        spec: &Spec,
        faults: &mut DocumentFaults,
    ) -> Result<(), Error> {
        let unit = wanted.unit.as_str();
        let wrong = edit::faults(spec);
        wrong.iter().for_each(|told| faults.add(source, unit, told.clone()));
        if wrong.is_empty()
            && let Err(error) = dispatch::check_verb(&verb(wanted, spec), false)
        {
            faults.add_error(source, unit, error)?;
        }
        for error in content::unit_faults(self, spec).await? {
            faults.add_error(source, unit, error)?;
        }
        Ok(())
    }

    /// Asks each connected host whether it could apply all its units together. Returns the names of hosts that were not
    /// asked, or did not answer in time.
    async fn ask_hosts(
        &self,
        operator: &Name,
        (known, goals): (&FleetState, &[UnitGoal]),
        shares: &[HostGroup],
        faults: &mut DocumentFaults,
    ) -> Result<Vec<String>, Error> {
        let online: BTreeSet<HostId> = host::online(self.shared.store.read()).await?.into_iter().collect();
        let mut silent: BTreeSet<HostId> = shares.iter().flat_map(HostGroup::hosts).collect();
        let mut commands = Vec::new();
        for share in shares {
            let hosts: Vec<HostId> = share.hosts().filter(|host| online.contains(host)).collect();
            let verbs = set::verbs(share.wishes(goals), true)?;
            for (verb, hosts) in
                verbs.iter().flat_map(|verb| set::portions(verb, &hosts).map(move |hosts| (verb, hosts)))
            {
                let target = NewTarget::Hosts(hosts.iter().map(HostId::to_string).collect());
                let expires_in_ms = u64::try_from(CHECK_WAIT.as_millis()).ok();
                commands.push(NewCommand { target, expires_in_ms, verb: verb.clone(), copied_from: None });
            }
        }
        for (host, answer) in set::ask(self, operator, commands, CHECK_WAIT).await? {
            if let Some(message) = answer {
                faults.add(&format!("host {}", known.name(host)), "", message);
            }
            silent.remove(&host);
        }
        Ok(silent.into_iter().map(|host| known.name(host)).collect())
    }

    /// Sends the changes as commands: each host applies all of its units, or none.
    async fn order(
        &self,
        operator: &Name,
        goals: &[UnitGoal],
        shares: &[HostGroup],
        units: &mut [(usize, AppliedUnit)],
        expires_in_ms: Option<u64>,
    ) -> Result<(), Error> {
        let (mut commands, mut of) = (Vec::new(), Vec::new());
        for share in shares {
            let hosts: Vec<HostId> = share.hosts().collect();
            let verbs = match &share.wishes(goals)[..] {
                [UnitWish { unit, spec, run, .. }] => {
                    vec![Verb::UnitApply { unit: unit.clone(), spec: spec.clone(), run: *run }]
                }
                several => set::verbs(several.to_vec(), false)?,
            };
            for (verb, hosts) in
                verbs.iter().flat_map(|verb| set::portions(verb, &hosts).map(move |hosts| (verb, hosts)))
            {
                let target = NewTarget::Hosts(hosts.iter().map(HostId::to_string).collect());
                commands.push(NewCommand { target, expires_in_ms, verb: verb.clone(), copied_from: None });
                of.push(hosts.to_vec());
            }
        }
        if commands.is_empty() {
            return Ok(());
        }
        let issued = dispatch::announce_all(self, operator, commands).await?;
        for (hosts, command) in of.into_iter().zip(issued) {
            let about: Vec<&UnitName> = command.verb.units();
            let is_of = |unit: &AppliedUnit| hosts.contains(&unit.host) && about.contains(&&unit.unit);
            let places = shares.iter().flat_map(|share| share.places.values().flatten());
            for place in places {
                if let Some((_, unit)) = units.get_mut(*place).filter(|(_, unit)| is_of(unit)) {
                    unit.command = Some(command.id);
                }
            }
        }
        Ok(())
    }
}

/// Hosts with the same changes to the same units.
struct HostGroup {
    /// The indexes of those units in the answer, by host.
    places: BTreeMap<HostId, Vec<usize>>,
    /// The indexes of the goals.
    goals: Vec<usize>,
}

impl HostGroup {
    fn hosts(&self) -> impl Iterator<Item = HostId> {
        self.places.keys().copied()
    }

    fn wishes(&self, goals: &[UnitGoal]) -> Vec<UnitWish> {
        let wish = |goal: &UnitGoal| UnitWish {
            unit: goal.wanted.unit.clone(),
            spec: Box::new(goal.spec.clone()),
            run: goal.wanted.run,
            new: false,
        };
        self.goals.iter().filter_map(|index| goals.get(*index)).map(wish).collect()
    }

    /// Whether it is a single command to one host, which is done or refused as a whole.
    fn is_one(&self) -> bool {
        self.places.len() == 1 && self.goals.len() == 1
    }
}

/// Groups changes by hosts that have the same ones.
fn shares(known: &FleetState, units: &[(usize, AppliedUnit)]) -> Vec<HostGroup> {
    let mut hosts: BTreeMap<HostId, Vec<usize>> = BTreeMap::new();
    for (place, (_, unit)) in units.iter().enumerate() {
        if unit.action != ApplyAction::Unchanged || known.busy.contains(&unit.unit) {
            hosts.entry(unit.host).or_default().push(place);
        }
    }
    let mut shares: BTreeMap<Vec<usize>, BTreeMap<HostId, Vec<usize>>> = BTreeMap::new();
    for (host, places) in hosts {
        let goals = places.iter().filter_map(|place| units.get(*place)).map(|(goal, _)| *goal).collect();
        shares.entry(goals).or_default().insert(host, places);
    }
    shares.into_iter().map(|(goals, places)| HostGroup { places, goals }).collect()
}

/// Finds what a host cannot have, as far as known here: too many units, or a port twice.
fn crowds(known: &FleetState, goals: &[UnitGoal], faults: &mut DocumentFaults) {
    let hosts: BTreeSet<HostId> = goals.iter().flat_map(|goal| goal.hosts.iter().copied()).collect();
    for host in hosts {
        let there = known.units.iter().filter(|((of, _), _)| *of == host);
        let mut specs: BTreeMap<&UnitName, &Spec> =
            there.map(|((_, unit), there)| (unit, &*there.desired.spec)).collect();
        specs
            .extend(goals.iter().filter(|goal| goal.hosts.contains(&host)).map(|goal| (&goal.wanted.unit, &goal.spec)));
        if specs.len() > UNITS_MAX {
            let message = format!("it would have {} units, and a host may have {UNITS_MAX}", specs.len());
            faults.add(&format!("host {}", known.name(host)), "", &message);
        }
        let mut ports: BTreeMap<(Protocol, u16), &UnitName> = BTreeMap::new();
        for (unit, spec) in &specs {
            for provided in spec.provides() {
                let Some(port) = provided.port else { continue };
                let Some(other) = ports.insert((provided.protocol, port), unit).filter(|other| other != unit) else {
                    continue;
                };
                let message = format!(
                    "provides: {} port {port} is that of {other} on host {} (leave the port out, to be leased a free one)",
                    provided.protocol,
                    known.name(host)
                );
                let goal = goals.iter().find(|goal| goal.wanted.unit == **unit || goal.wanted.unit == *other);
                let source = goal.map(|goal| goal.source.as_str()).unwrap_or_default();
                faults.add(source, unit.as_str(), &message);
            }
        }
    }
}

fn verb(wanted: &WantedUnit, spec: &Spec) -> Verb {
    Verb::UnitApply { unit: wanted.unit.clone(), spec: Box::new(spec.clone()), run: wanted.run }
}

/// Finds units that occur twice for one host.
fn twice(goals: &[UnitGoal], faults: &mut DocumentFaults) {
    let mut seen: BTreeMap<(HostId, &UnitName), &str> = BTreeMap::new();
    for goal in goals {
        for host in &goal.hosts {
            if let Some(other) = seen.insert((*host, &goal.wanted.unit), &goal.source) {
                let elsewhere = if other == goal.source { String::new() } else { format!(" (also in {other})") };
                let message = format!("it is listed twice for host {host}{elsewhere}");
                faults.add(&goal.source, goal.wanted.unit.as_str(), &message);
            }
        }
    }
}

/// Finds circles of dependencies in the resulting state.
fn circles(known: &FleetState, goals: &[UnitGoal], faults: &mut DocumentFaults) {
    let mut hosts: BTreeMap<HostId, BTreeMap<&UnitName, &Spec>> = BTreeMap::new();
    for host in goals.iter().flat_map(|goal| &goal.hosts) {
        hosts.entry(*host).or_default();
    }
    for ((host, unit), there) in &known.units {
        if let Some(units) = hosts.get_mut(host) {
            units.insert(unit, &there.desired.spec);
        }
    }
    for goal in goals {
        for host in &goal.hosts {
            hosts.entry(*host).or_default().insert(&goal.wanted.unit, &goal.spec);
        }
    }
    for goal in goals {
        let units = goal.hosts.first().and_then(|host| hosts.get(host));
        if let Some(circle) = units.and_then(|units| start_order::cycle(&goal.wanted.unit, &goal.spec, units)) {
            let circle = circle.iter().map(UnitName::as_str).collect::<Vec<_>>().join(" → ");
            let message = format!("after, requires: units would wait for each other in a cycle: {circle}");
            faults.add(&goal.source, goal.wanted.unit.as_str(), &message);
        }
    }
}

impl Catalogue {
    /// Checks that a realm exists here.
    pub(super) fn realm(&self, realm: &Name) -> Result<(), String> {
        if self.realms.contains(realm) {
            return Ok(());
        }
        let hint = nearest(realm.as_str(), self.realms.iter().map(Name::as_str));
        Err(format!("there is no realm {realm}; {hint} (`muster realm create {realm}` makes it)"))
    }

    fn artifact(&self, text: &str) -> Result<ArtifactRef, String> {
        let found = if let Ok(sha256) = text.parse::<Digest>() {
            let same = self.artifacts.iter().filter(|artifact| artifact.sha256 == sha256);
            same.max_by_key(|artifact| artifact.created_ms).ok_or_else(|| format!("there is no artifact {sha256}"))?
        } else {
            check_name::<Name>(text)?;
            document::named(
                "artifact",
                text,
                &self.artifacts,
                |one| (one.role.as_str(), &one.version),
                |one| one.created_ms,
            )?
        };
        let Artifact { sha256, size_bytes, role, version, manifest, .. } = found.clone();
        Ok(ArtifactRef { sha256, size_bytes, role, version, manifest })
    }

    fn config(&self, text: &str) -> Result<ConfigRef, String> {
        check_name::<ConfigId>(text)?;
        let found = document::named(
            "config",
            text,
            &self.configs,
            |one| (one.id.as_str(), &one.version),
            |one| one.created_ms,
        )?;
        let Config { id, version, sha256, .. } = found.clone();
        Ok(ConfigRef { id, version, sha256 })
    }

    /// Checks that the newest version, which a reference without a version means, is not older than a unit's present
    /// one.
    pub(super) fn goes_forward(&self, wanted: &WantedUnit, after: &Spec, before: &Spec) -> Result<(), String> {
        let back = |what: &str, has: &Version, gets: &Version| {
            Err(format!(
                "{what} without a version is {gets}, older than the present {has}; use {what}@{gets} to go back"
            ))
        };
        let names_no_version = |text: &String| !text.contains('@') && text.parse::<Digest>().is_err();
        if let (Some(has), Some(gets), true) =
            (before.artifact(), after.artifact(), wanted.artifact.as_ref().is_some_and(names_no_version))
            && has.role == gets.role
            && has.version != gets.version
        {
            let created_ms = |version: &Version| {
                let same = self.artifacts.iter().find(|one| one.role == has.role && one.version == *version);
                same.map(|one| one.created_ms)
            };
            let found = (&gets.version, created_ms(&gets.version).unwrap_or_default());
            if !upgrade::is_newer(found, (&has.version, created_ms(&has.version))) {
                return back(has.role.as_str(), &has.version, &gets.version);
            }
        }
        for (gets, _) in after.configs().iter().zip(&wanted.configs).filter(|(_, text)| names_no_version(text)) {
            let Some(has) = before.configs().iter().find(|has| has.id == gets.id) else { continue };
            let created_ms = |version: &Version| {
                let same = self.configs.iter().find(|one| one.id == has.id && one.version == *version);
                same.map(|one| one.created_ms)
            };
            let found = (&gets.version, created_ms(&gets.version).unwrap_or_default());
            if has.version != gets.version && !upgrade::is_newer(found, (&has.version, created_ms(&has.version))) {
                return back(has.id.as_str(), &has.version, &gets.version);
            }
        }
        Ok(())
    }
}

impl FleetState {
    fn name(&self, host: HostId) -> String {
        let found = self.hosts.iter().find(|(id, _)| *id == host);
        found.map_or_else(|| host.to_string(), |(_, name)| name.clone())
    }

    /// Resolves hosts; the only host if none is named.
    fn hosts(&self, named: &[String]) -> Result<Vec<HostId>, Error> {
        if !named.is_empty() {
            return dispatch::resolve(named, &self.hosts);
        }
        match &self.hosts[..] {
            [(only, _)] => Ok(vec![*only]),
            [] => Err(Error::invalid("no_hosts", "no host has joined yet")),
            several => Err(Error::invalid("no_hosts", format!("there are {} hosts, and none is named", several.len()))
                .hint("name them here, or with --host or --select")),
        }
    }

    /// Checks that a realm exists, here or on all of these hosts.
    fn realm(&self, realm: &Name, hosts: &[HostId]) -> Result<(), String> {
        let carries = |host: &HostId| self.carried.get(host).is_some_and(|carried| carried.contains(realm));
        match !hosts.is_empty() && hosts.iter().all(carries) {
            true => Ok(()),
            false => self.catalogue.realm(realm),
        }
    }

    /// Compares a goal with a unit on a host whose revisions have this key.
    fn compare(&self, goal: &UnitGoal, host: HostId, key: &RevisionKey) -> Result<AppliedUnit, Diagnostic> {
        let UnitGoal { wanted, spec, .. } = goal;
        let hostname = self.name(host);
        let made = |action, cost, differences| {
            let (hostname, unit) = (hostname.clone(), wanted.unit.clone());
            Ok(AppliedUnit { host, hostname, unit, action, cost, differences, command: None })
        };
        let verb = verb(wanted, spec);
        let Some(there) = self.units.get(&(host, wanted.unit.clone())) else {
            edit::edit(&wanted.unit, None, &verb).map_err(|refusal| refusal.diagnostic)?;
            let run = wanted.run.unwrap_or(Run::Stopped);
            let costs = if run.is_running() { ChangeCost::Start } else { ChangeCost::InPlace };
            return made(ApplyAction::Create, costs, spec_comparison::fields(None, Some((spec, run))));
        };
        self.catalogue.goes_forward(wanted, spec, &there.desired.spec)?;
        let mut desired = there.desired.clone();
        let values = spec_comparison::other_values((&wanted.unit, &mut desired), spec, key);
        let current = CurrentUnit { desired: &desired, hold: there.hold.as_ref(), observed: &there.observed };
        let edited = edit::edit(&wanted.unit, Some(current), &verb).map_err(|refusal| refusal.diagnostic)?;
        let UnitEdit::Set { spec: after, run, .. } = edited else {
            return made(ApplyAction::Unchanged, ChangeCost::InPlace, vec![]);
        };
        // An unchanged document does not request another attempt.
        if after == desired.spec && run == desired.run {
            return made(ApplyAction::Unchanged, ChangeCost::InPlace, vec![]);
        }
        let mut differences = spec_comparison::fields(Some((&desired.spec, desired.run)), Some((&after, run)));
        differences.extend(values.map(spec_comparison::masked));
        let costs = cost_there(&there.observed, (&desired.spec, desired.run), (&after, run));
        made(ApplyAction::Change, costs, differences)
    }
}

fn check_name<T: std::str::FromStr<Err = muster_topics::name::NameError>>(text: &str) -> Result<(), String> {
    let (name, version) = text.split_once('@').map_or((text, None), |(name, version)| (name, Some(version)));
    let wrong = |error: muster_topics::name::NameError| error.to_string();
    name.parse::<T>().map_err(wrong)?;
    version.map(str::parse::<Version>).transpose().map_err(wrong)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hint_of_a_fault_is_not_part_of_its_cause() {
        let owned = || {
            Diagnostic::new("shop/till belongs to the deployment shop/tills, which changes it")
                .with_hint("`muster deployment apply`")
        };
        let said = |add: &dyn Fn(&mut DocumentFaults)| {
            let mut faults = DocumentFaults::default();
            add(&mut faults);
            faults.into_result().unwrap_err().problem.diagnostic
        };
        let one = said(&|faults| faults.add("host till-7", "", owned()));
        assert_eq!(one.cause, "host till-7: shop/till belongs to the deployment shop/tills, which changes it");
        assert_eq!(one.hint.as_deref(), Some("`muster deployment apply`"));
        assert_eq!(one.consequence.as_deref(), Some("nothing was changed"));
        let two = said(&|faults| {
            faults.add("host till-7", "", owned());
            faults.add("a.yaml", "shop/x", "it is listed twice");
        });
        assert!(
            two.cause.ends_with("which changes it (`muster deployment apply`)\n- a.yaml: shop/x: it is listed twice")
        );
        assert_eq!(two.hint.as_deref(), Some("correct the documents and apply them again"));
        let error = Error::invalid("bad_query", "no such").consequence("nothing").hint("another");
        let of_error = said(&|faults| faults.add_error("a.yaml", "x", error.clone()).unwrap());
        assert_eq!((of_error.cause.as_str(), of_error.hint.as_deref()), ("a.yaml: x: no such", Some("another")));
    }
}
