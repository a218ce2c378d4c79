//! Units become what documents say: everything is checked, and compared with what is there, before anything is ordered.
//!
//! What a unit is now is known from its host's last report, which has the values of environments masked. Whether those
//! differ is told by the revision, for that is made over them.
//!
//! **Invariant: nothing is changed if anything is wrong** with any of the documents, and all that is wrong is told.
//!
//! **Invariant: what is so already is not ordered**, unless a command is under way that may have changed it: then its
//! host decides, which keeps what is so.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
};

use muster_topics::{
    command::{TARGET_HOSTS_MAX, Verb},
    name::{ConfigId, Digest, HostId, Name, UnitName, Version},
    unit::{ArtifactRef, ConfigRef, MASK, Run, Spec},
};
use serde_json::Value;

use super::{
    Console, Error, content, dispatch,
    store::{command, host},
};
use crate::{
    api::{
        Applied, AppliedUnit, Apply, ApplyAction, Artifact, Config, FieldDifference, Host, NewCommand, NewTarget, Unit,
    },
    rules::{
        config::differences,
        cost::{Cost, cost},
        document::{self, Fault, Wanted},
        edit::{self, Current, Edit},
        keys::nearest,
        order,
    },
};

/// The most units on hosts that one request may be about: as many commands may wait at a time.
const UNITS_MAX: usize = 10_000;

/// The most faults that are told: whoever mends these sees the next ones then.
const FAULTS_MAX: usize = 100;

/// What there is.
struct Known {
    hosts: Vec<(HostId, String)>,
    /// Realms that each host carries, as it says itself.
    carried: BTreeMap<HostId, Vec<Name>>,
    realms: Vec<Name>,
    artifacts: Vec<Artifact>,
    configs: Vec<Config>,
    units: BTreeMap<(HostId, UnitName), Unit>,
    /// Units that a command is under way for.
    busy: BTreeSet<UnitName>,
}

/// A unit as it is to be, wherever that is.
struct Goal {
    source: String,
    wanted: Wanted,
    spec: Spec,
    hosts: Vec<HostId>,
}

/// Everything that is wrong, line by line.
#[derive(Default)]
struct Faults(Vec<String>);

impl Faults {
    fn add(&mut self, source: &str, at: &str, message: &str) {
        let place: Vec<&str> = [source, at].into_iter().filter(|part| !part.is_empty()).collect();
        let message = message.replace('\n', "\n  ");
        self.0.push(if place.is_empty() { message } else { format!("{}: {message}", place.join(": ")) });
    }

    fn add_error(&mut self, source: &str, at: &str, error: Error) -> Result<(), Error> {
        if error.status >= 500 {
            return Err(error);
        }
        let hint = error.problem.hint.map(|hint| format!(" ({hint})")).unwrap_or_default();
        self.add(source, at, &format!("{}{hint}", error.problem.message));
        Ok(())
    }

    fn into_result(self) -> Result<(), Error> {
        let Self(mut lines) = self;
        lines.dedup();
        let (count, more) = (lines.len(), lines.len().saturating_sub(FAULTS_MAX));
        let mut message = match (count, lines.first()) {
            (0, _) | (_, None) => return Ok(()),
            (1, Some(line)) => line.clone(),
            _ => {
                lines.truncate(FAULTS_MAX);
                lines.iter().fold(format!("{count} things are wrong:"), |all, line| format!("{all}\n- {line}"))
            }
        };
        if more > 0 {
            let _ = write!(message, "\n- and {more} more");
        }
        Err(Error::invalid("bad_documents", message)
            .hint("nothing was changed; mend the documents and apply them again"))
    }
}

impl Console {
    /// Has units be what documents say.
    pub async fn apply(&self, operator: &Name, apply: Apply) -> Result<Applied, Error> {
        self.shared.check_operator(operator).await?;
        let known = self.known().await?;
        let mut faults = Faults::default();
        let mut goals = Vec::new();
        for given in &apply.documents {
            let (wanted, wrong) = document::read(&given.content);
            wrong.iter().for_each(|Fault { at, message }| faults.add(&given.source, at, message));
            for wanted in wanted {
                goals.extend(self.goal(&known, (&given.source, wanted), &apply.hosts, &mut faults).await?);
            }
        }
        if goals.iter().map(|goal| goal.hosts.len()).sum::<usize>() > UNITS_MAX {
            return Err(Error::invalid("too_many_units", format!("at most {UNITS_MAX} units can be applied at once")));
        }
        twice(&goals, &mut faults);
        circles(&known, &goals, &mut faults);
        let mut units = Vec::new();
        for (index, goal) in goals.iter().enumerate() {
            for host in &goal.hosts {
                match known.compare(goal, *host) {
                    Ok(unit) => units.push((index, unit)),
                    Err(message) => faults.add(&goal.source, goal.wanted.unit.as_str(), &message),
                }
            }
        }
        faults.into_result()?;
        if !apply.dry_run {
            self.order(operator, &known, &goals, &mut units, apply.expires_in_ms).await?;
        }
        Ok(Applied { units: units.into_iter().map(|(_, unit)| unit).collect() })
    }

    /// The document that wants a unit as it is.
    pub async fn unit_document(&self, host: HostId, unit: &UnitName) -> Result<Value, Error> {
        let unit = self.unit(host, unit).await?;
        let same_name = host::named(self.shared.store.read(), &unit.hostname).await?.len();
        let name = if same_name == 1 { unit.hostname } else { unit.host.to_string() };
        Ok(document::write(&unit.unit, &name, &unit.desired.spec, unit.desired.run))
    }

    async fn known(&self) -> Result<Known, Error> {
        let db = self.shared.store.read();
        let units = self.units(None).await?.into_iter().map(|unit| ((unit.host, unit.unit.clone()), unit));
        let busy = command::open_verbs(db).await?.into_iter().flat_map(|(_, verb)| verb.units().to_vec());
        let hosts = self.hosts().await?;
        let carried = |host: &Host| Some((host.id, host.state.as_ref()?.value.realms.clone()));
        Ok(Known {
            carried: hosts.iter().filter_map(carried).collect(),
            hosts: hosts.into_iter().map(|host| (host.id, host.hostname)).collect(),
            realms: self.realms().await?.into_iter().map(|realm| realm.realm.name).collect(),
            artifacts: self.artifacts(None, None).await?,
            configs: self.configs().await?,
            units: units.collect(),
            busy: busy.collect(),
        })
    }

    /// What a document wants, with all that it names; nothing if something of that is wrong.
    async fn goal(
        &self,
        known: &Known,
        (source, wanted): (&str, Wanted),
        hosts: &[String],
        faults: &mut Faults,
    ) -> Result<Option<Goal>, Error> {
        let before = faults.0.len();
        let at = |field: &str| format!("{}: {field}", wanted.unit);
        let named = if wanted.hosts.is_empty() { hosts } else { &wanted.hosts };
        let found =
            known.hosts(named).or_else(|error| faults.add_error(source, &at("hosts"), error).map(|()| Vec::new()))?;
        if let Err(message) = known.realm(&wanted.unit.realm(), &found) {
            faults.add(source, &at("unit"), &message);
        }
        let artifact = wanted.artifact.as_ref().map(|name| known.artifact(name)).transpose();
        let artifact = artifact.map_err(|message| faults.add(source, &at(wanted.artifact_key()), &message)).ok();
        let mut configs = Vec::new();
        for (index, text) in wanted.configs.iter().enumerate() {
            match known.config(text) {
                Ok(config) => configs.push(config),
                Err(message) => faults.add(source, &at(&format!("configs.{index}")), &message),
            }
        }
        let is_found = wanted.is_whole && configs.len() == wanted.configs.len();
        let Some(artifact) = artifact.filter(|_| is_found) else { return Ok(None) };
        let says = match artifact.as_ref().and_then(|artifact| artifact.manifest.as_ref()) {
            Some(manifest) => self.manifest(manifest).await?,
            None => muster_topics::manifest::Manifest::default(),
        };
        let spec = match wanted.spec(artifact, configs, &says) {
            Ok(spec) => spec,
            Err(Fault { at, message }) => {
                faults.add(source, &at, &message);
                return Ok(None);
            }
        };
        self.check(source, &wanted, &spec, faults).await?;
        let goal = Goal { source: source.to_owned(), wanted, spec, hosts: found };
        Ok(Some(goal).filter(|_| faults.0.len() == before))
    }

    /// What is wrong with a spec, as far as can be known before a host is asked.
    async fn check(&self, source: &str, wanted: &Wanted, spec: &Spec, faults: &mut Faults) -> Result<(), Error> {
        let unit = wanted.unit.as_str();
        let wrong = edit::faults(spec);
        wrong.iter().for_each(|message| faults.add(source, unit, message));
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

    /// Orders what is to change: one command for each unit, all of them or none.
    async fn order(
        &self,
        operator: &Name,
        known: &Known,
        goals: &[Goal],
        units: &mut [(usize, AppliedUnit)],
        expires_in_ms: Option<u64>,
    ) -> Result<(), Error> {
        let (mut commands, mut of) = (Vec::new(), Vec::new());
        for (index, goal) in goals.iter().enumerate() {
            let is_to_do =
                |unit: &AppliedUnit| unit.action != ApplyAction::Unchanged || known.busy.contains(&unit.unit);
            let places: Vec<usize> =
                (0..units.len()).filter(|place| units[*place].0 == index && is_to_do(&units[*place].1)).collect();
            for part in places.chunks(TARGET_HOSTS_MAX) {
                let hosts = part.iter().map(|place| units[*place].1.host.to_string()).collect();
                let verb = verb(&goal.wanted, &goal.spec);
                commands.push(NewCommand { target: NewTarget::Hosts(hosts), expires_in_ms, verb });
                of.push(part.to_vec());
            }
        }
        if commands.is_empty() {
            return Ok(());
        }
        let issued = dispatch::announce_all(self, operator, commands).await?;
        for (places, command) in of.into_iter().zip(issued) {
            places.into_iter().for_each(|place| units[place].1.command = Some(command.id));
        }
        Ok(())
    }
}

fn verb(wanted: &Wanted, spec: &Spec) -> Verb {
    Verb::UnitApply { unit: wanted.unit.clone(), spec: Box::new(spec.clone()), run: wanted.run }
}

/// A unit that is wanted twice on one host.
fn twice(goals: &[Goal], faults: &mut Faults) {
    let mut seen: BTreeMap<(HostId, &UnitName), &str> = BTreeMap::new();
    for goal in goals {
        for host in &goal.hosts {
            if let Some(other) = seen.insert((*host, &goal.wanted.unit), &goal.source) {
                let elsewhere = if other == goal.source { String::new() } else { format!(" (also in {other})") };
                let message = format!("it is wanted twice on host {host}{elsewhere}");
                faults.add(&goal.source, goal.wanted.unit.as_str(), &message);
            }
        }
    }
}

/// Units that would wait for each other in a circle, once all is as it is wanted.
fn circles(known: &Known, goals: &[Goal], faults: &mut Faults) {
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
        if let Some(circle) = units.and_then(|units| order::cycle(&goal.wanted.unit, &goal.spec, units)) {
            let circle = circle.iter().map(UnitName::as_str).collect::<Vec<_>>().join(" → ");
            let message = format!("after, requires: units would wait for each other in a circle: {circle}");
            faults.add(&goal.source, goal.wanted.unit.as_str(), &message);
        }
    }
}

impl Known {
    /// The hosts that are named; the only one there is if none is.
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

    /// Whether there is a realm, here or on all of these hosts.
    fn realm(&self, realm: &Name, hosts: &[HostId]) -> Result<(), String> {
        let carries = |host: &HostId| self.carried.get(host).is_some_and(|carried| carried.contains(realm));
        if self.realms.contains(realm) || !hosts.is_empty() && hosts.iter().all(carries) {
            return Ok(());
        }
        let hint = nearest(realm.as_str(), self.realms.iter().map(Name::as_str));
        Err(format!("there is no realm {realm}; {hint} (`muster realm create {realm}` makes it)"))
    }

    fn artifact(&self, text: &str) -> Result<ArtifactRef, String> {
        let found = if let Ok(sha256) = text.parse::<Digest>() {
            let same = self.artifacts.iter().filter(|artifact| artifact.sha256 == sha256);
            same.max_by_key(|artifact| artifact.added_ms).ok_or_else(|| format!("there is no artifact {sha256}"))?
        } else {
            let label = |artifact: &Artifact| (artifact.role.to_string(), artifact.version.to_string());
            check_name::<Name>(text)?;
            document::named("artifact", text, &self.artifacts, label, |artifact| artifact.added_ms)?
        };
        let Artifact { sha256, size_bytes, role, version, manifest, .. } = found.clone();
        Ok(ArtifactRef { sha256, size_bytes, role, version, manifest })
    }

    fn config(&self, text: &str) -> Result<ConfigRef, String> {
        check_name::<ConfigId>(text)?;
        let label = |config: &Config| (config.id.to_string(), config.version.to_string());
        let found = document::named("config", text, &self.configs, label, |config| config.added_ms)?;
        let Config { id, version, sha256, .. } = found.clone();
        Ok(ConfigRef { id, version, sha256 })
    }

    /// What becomes of a unit on a host.
    fn compare(&self, goal: &Goal, host: HostId) -> Result<AppliedUnit, String> {
        let Goal { wanted, spec, .. } = goal;
        let hostname = self.hosts.iter().find(|(id, _)| *id == host).map(|(_, name)| name.clone()).unwrap_or_default();
        let made = |action, cost, differences| {
            let (hostname, unit) = (hostname.clone(), wanted.unit.clone());
            Ok(AppliedUnit { host, hostname, unit, action, cost, differences, command: None })
        };
        let verb = verb(wanted, spec);
        let Some(there) = self.units.get(&(host, wanted.unit.clone())) else {
            edit::edit(&wanted.unit, None, &verb).map_err(|refusal| refusal.message)?;
            let run = wanted.run.unwrap_or(Run::Stopped);
            let costs = if run.is_running() { Cost::Start } else { Cost::InPlace };
            return made(ApplyAction::Create, costs, fields(None, Some((spec, run))));
        };
        let mut desired = there.desired.clone();
        let other_values = other_values(&mut desired.spec, &desired.revision, spec);
        let current = Current { desired: &desired, hold: there.hold.as_ref(), observed: &there.observed };
        let edited = edit::edit(&wanted.unit, Some(current), &verb).map_err(|refusal| refusal.message)?;
        let Edit::Set { spec: after, run, .. } = edited else {
            return made(ApplyAction::Unchanged, Cost::InPlace, vec![]);
        };
        // To say again what is so is no wish for another try.
        if *after == desired.spec && run == desired.run {
            return made(ApplyAction::Unchanged, Cost::InPlace, vec![]);
        }
        let mut differences = fields(Some((&desired.spec, desired.run)), Some((&after, run)));
        differences.extend(other_values.map(|name| FieldDifference {
            field: name,
            from: Some(MASK.into()),
            to: Some(MASK.into()),
        }));
        made(ApplyAction::Change, cost((&desired.spec, desired.run), (&after, run)), differences)
    }
}

fn check_name<T: std::str::FromStr<Err = muster_topics::name::NameError>>(text: &str) -> Result<(), String> {
    let (name, version) = text.split_once('@').map_or((text, None), |(name, version)| (name, Some(version)));
    let wrong = |error: muster_topics::name::NameError| error.to_string();
    name.parse::<T>().map_err(wrong)?;
    version.map(str::parse::<Version>).transpose().map_err(wrong)?;
    Ok(())
}

/// Puts the values of an environment into a spec that was reported without them, if they are those of `after`, as its
/// revision tells. What is not so for the same names is a difference, in the words that stand for it.
fn other_values(before: &mut Spec, revision: &Digest, after: &Spec) -> Option<String> {
    let known = {
        let mut with = before.clone();
        let shared = after.env().iter().filter(|(name, _)| before.env().contains_key(*name));
        with.env_mut().extend(shared.map(|(name, value)| (name.clone(), value.clone())));
        with
    };
    if known.revision().is_ok_and(|found| found == *revision) {
        *before = known;
        return None;
    }
    let is_told = |name: &String| after.env().get(name).is_some_and(|value| value != MASK);
    // With a name that goes its value is gone, and with it what the others were.
    let names_are_kept = before.env().keys().all(|name| after.env().contains_key(name));
    (names_are_kept && before.env().keys().any(is_told)).then(|| "env (values)".to_owned())
}

/// In which fields a unit differs.
fn fields(before: Option<(&Spec, Run)>, after: Option<(&Spec, Run)>) -> Vec<FieldDifference> {
    let portrait = |unit: Option<(&Spec, Run)>| {
        Value::Object(unit.map(|(spec, run)| document::portrait(spec, run)).unwrap_or_default())
    };
    let mut found: Vec<FieldDifference> = differences(&portrait(before), &portrait(after))
        .into_iter()
        .map(|one| FieldDifference {
            field: one.pointer.trim_start_matches('/').replace('/', "."),
            from: one.from,
            to: one.to,
        })
        .collect();
    // Under one label there may have been another content.
    let content = |unit: Option<(&Spec, Run)>| unit?.0.artifact().cloned();
    if let (Some(one), Some(other)) = (content(before), content(after))
        && one.sha256 != other.sha256
        && (&one.role, &one.version) == (&other.role, &other.version)
    {
        let short = |artifact: &ArtifactRef| Some(artifact.sha256.short().into());
        found.push(FieldDifference { field: "artifact.sha256".to_owned(), from: short(&one), to: short(&other) });
    }
    found
}
