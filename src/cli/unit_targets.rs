//! The units that a verb is for: named, selected, or all that have the verb.

use clap::Args;
use muster_api::Unit;
use muster_base::failure::Failure;
use muster_topics::select::Select;

use super::{
    session::CliSession,
    target::{self, NounVerb, UnitRef},
    unit_lookup::{named, units},
};

/// Which units a verb is for.
#[derive(Args, Clone, Debug)]
pub struct UnitTargets {
    /// Units: REALM/NAME or HOST:REALM/NAME
    ///
    /// With --all and no unit: every one that has the verb.
    #[arg(value_name = "UNIT", required_unless_present_any = ["all", "select"])]
    pub units: Vec<UnitRef>,
    /// Units that this selects
    ///
    /// Such as 'realm=prod and role=web and not label.tier=gold'; `muster --help` has the fields.
    #[arg(long, value_name = "EXPRESSION", conflicts_with_all = ["units", "all"])]
    pub select: Option<Select>,
    /// Host, by id or hostname; repeatable [default: the only one]
    ///
    /// Without it a unit is on the only host that has it.
    #[arg(long = "host", value_name = "HOST")]
    pub hosts: Vec<String>,
    /// Every host that has such a unit
    #[arg(long)]
    pub all: bool,
}

/// Which units a verb is for: all, if none is named.
#[derive(Args, Clone, Debug)]
pub struct AnyUnits {
    /// Units: REALM/NAME or HOST:REALM/NAME [default: all]
    #[arg(value_name = "UNIT")]
    pub units: Vec<UnitRef>,
    /// Units that this selects
    ///
    /// Such as 'realm=prod and role=web and not label.tier=gold'; `muster --help` has the fields.
    #[arg(long, value_name = "EXPRESSION", conflicts_with_all = ["units", "all"])]
    pub select: Option<Select>,
    /// Host, by id or hostname; repeatable
    #[arg(long = "host", value_name = "HOST")]
    pub hosts: Vec<String>,
    /// Every host that has such a unit
    #[arg(long)]
    pub all: bool,
}

impl From<AnyUnits> for UnitTargets {
    fn from(any: AnyUnits) -> Self {
        let all = any.all || any.units.is_empty() && any.select.is_none();
        Self { units: any.units, select: any.select, hosts: any.hosts, all }
    }
}

/// The units among which [`pick`] picks.
///
/// # Errors
/// If the console does not answer.
pub async fn candidates(session: &CliSession, which: &UnitTargets) -> Result<Vec<Unit>, Failure> {
    if which.units.is_empty() {
        return units(session, None).await;
    }
    named(session, which.units.iter().map(|wanted| &wanted.unit)).await
}

/// The selected units; selectors and `--all` only select units that the verb covers.
///
/// # Errors
/// If there are none, if the selection is ambiguous, or if a named unit has no such verb.
pub fn pick<'a>(all: &'a [Unit], which: &UnitTargets, verb: NounVerb) -> Result<Vec<&'a Unit>, Failure> {
    let noun = verb.noun;
    let mut picked: Vec<&Unit> = Vec::new();
    for wanted in &which.units {
        let found = target::pick(all, wanted, &which.hosts, which.all)?;
        let (ours, others): (Vec<&Unit>, Vec<&Unit>) = found.into_iter().partition(|unit| verb.covers(unit));
        // On other hosts units of another kind may have this name.
        if !which.all || ours.is_empty() {
            verb.check(others)?;
        }
        picked.extend(ours);
    }
    if which.units.is_empty() {
        let hosts = which.hosts.iter().map(|host| target::host_of(all, host)).collect::<Result<Vec<_>, Failure>>()?;
        let is_there = |unit: &Unit| {
            let is_meant = hosts.is_empty() || hosts.contains(&Some(unit.host));
            is_meant && verb.covers(unit)
        };
        picked = target::select(all, which.select.as_ref()).filter(|unit| is_there(unit)).collect();
    }
    if let (true, Some(select)) = (picked.is_empty(), &which.select) {
        return Err(Failure::not_found(format_args!("no {} matches {select}", noun.word()))
            .hint("`muster unit ls --select …` shows what an expression picks"));
    }
    if let (true, Some(host)) = (picked.is_empty(), which.hosts.first()) {
        return Err(Failure::not_found(format_args!("there is no {} on {host}", noun.word()))
            .hint("`muster unit ls` lists the units"));
    }
    Ok(picked)
}
