//! `muster unit ls`: lists units.

use clap::Args;
use muster_api::{Unit, UnitSort};
use muster_base::{
    clock,
    failure::{Failure, FailureKind},
};
use muster_topics::{select::Select, unit::Phase, verb_table::KindName};

use crate::{print, rollback, session::CliSession, target::Noun, wait};
use muster_api::host_names::HostNames;

/// Units that are listed.
#[derive(Args, Clone, Debug)]
pub struct UnitListArgs {
    /// Host, by id or hostname
    #[arg(long)]
    host: Option<String>,
    /// Show those of this kind: yuno, container, files or packages
    #[arg(long)]
    kind: Option<KindName>,
    /// Show units that this selects, such as 'realm=prod'
    ///
    /// `muster --help` has the fields.
    #[arg(long, value_name = "EXPRESSION")]
    select: Option<Select>,
    /// Order: host, unit, phase or since
    ///
    /// `phase` shows failures first, `since` the last change.
    #[arg(long, value_name = "ORDER", default_value = "host", value_parser = UnitSort::WORDS, hide_possible_values = true)]
    sort: String,
    /// Show so many at most
    #[arg(short = 'n', long, value_name = "N")]
    limit: Option<u32>,
}

impl UnitListArgs {
    /// The query of the list.
    fn query(self, kind: Option<KindName>) -> Vec<(&'static str, String)> {
        [
            self.host.map(|host| ("host", host)),
            kind.map(|kind| ("kind", kind.to_string())),
            self.select.map(|select| ("select", select.to_string())),
            Some(("sort", self.sort)),
            self.limit.map(|limit| ("limit", limit.to_string())),
        ]
        .into_iter()
        .flatten()
        .collect()
    }
}

/// Lists units: all, or those of one kind.
pub(super) async fn list(session: &CliSession, wanted: UnitListArgs, noun: Noun) -> Result<(), Failure> {
    let (limit, kind) = (wanted.limit, noun.kind().or(wanted.kind));
    if let (Some(of_noun), Some(other)) = (noun.kind(), wanted.kind)
        && of_noun != other
    {
        return Err(Failure::new(FailureKind::Usage, format!("`muster {of_noun} ls` lists no units of another kind"))
            .hint(format!("`muster unit ls --kind {other}`")));
    }
    let units: Vec<Unit> = session.client.get("units", &wanted.query(kind)).await?;
    let names = HostNames::new(units.iter().map(|unit| (unit.host, unit.hostname.as_str())));
    let now_ms = clock::now_ms();
    let row = |unit: &Unit| {
        let observed = &unit.observed;
        vec![
            names.show(unit.host, &unit.hostname),
            unit.unit.to_string(),
            unit.desired.spec.kind().to_owned(),
            unit.version(),
            unit.owner.as_ref().map(|owner| owner.deployment.to_string()).unwrap_or_default(),
            doing(unit),
            print::age(observed.since_ms, now_ms),
            observed.instance().pid.map(|pid| pid.to_string()).unwrap_or_default(),
            trouble(unit),
        ]
    };
    let header = ["HOST", "UNIT", "KIND", "VERSION", "DEPLOYMENT", "PHASE", "SINCE", "PID", "LAST EXIT OR ERROR"];
    let empty = match kind {
        Some(KindName::Yuno) => "no yunos; `muster unit create yuno --help` tells how to make one",
        Some(KindName::Container) => "no containers; `muster unit create container --help` tells how to make one",
        Some(KindName::Files) => "no units of files; `muster unit apply` makes one of a document",
        Some(KindName::Packages) => "no units of packages; `muster unit apply` makes one of a document",
        None => "no units; `muster unit create --help` tells how to make one",
    };
    session.printer.list(&units, &header, row, empty)?;
    if let Some(limit) = limit {
        print::say_if_limited(units.len(), limit);
    }
    Ok(())
}

/// Its last error, or why it is in its state.
pub(crate) fn trouble(unit: &Unit) -> String {
    let observed = &unit.observed;
    // The exit of a retired unit is not a problem.
    if let Some(hold) = unit.retired() {
        return hold.note.clone().unwrap_or_default();
    }
    observed
        .error
        .clone()
        .or(observed.instance().unready.clone())
        .or(observed.rolled_back().map(|back| back.diagnostic("it ")))
        .map(|told| format!("{told:#}"))
        .or(unit.hold.as_ref().map(|hold| format!("held: {hold}")))
        .or(observed.last_end.map(|end| end.to_string()))
        .unwrap_or_default()
}

/// The phase, and other states that must not be overlooked.
pub(crate) fn doing(unit: &Unit) -> String {
    if unit.retired().is_some() {
        return "retired".to_owned();
    }
    let frozen = if unit.observed.instance().frozen { ", frozen" } else { "" };
    let held = unit.hold.as_ref().map(|hold| format!(", held: {}", hold.reason.as_str())).unwrap_or_default();
    let unready = if is_unready(unit) { ", unready" } else { "" };
    format!("{}{}{frozen}{unready}{held}", wait::phase(unit.observed.phase()), rollback::mark(unit))
}

/// Whether it runs, but its probes report that it is not ready.
fn is_unready(unit: &Unit) -> bool {
    let observed = &unit.observed;
    matches!(observed.phase(), Phase::Running | Phase::Playing) && observed.instance().unready.is_some()
}
