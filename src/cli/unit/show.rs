//! `muster unit show`: all that is known of one unit.

use clap::Args;
use muster_base::{clock, failure::Failure};
use muster_topics::{
    channel::ToldStats,
    diagnostic::Diagnostic,
    name::UnitName,
    probe::Which,
    unit::{ArtifactRef, Hold, Observed, Run, Spec},
};

use crate::{
    container_text, deployment, endpoint, print, probe, rollback,
    session::CliSession,
    target::{Noun, UnitRef},
    unit_lookup::one,
    wait,
};

/// One unit.
#[derive(Args, Clone, Debug)]
pub struct OneUnit {
    /// Unit: REALM/NAME or HOST:REALM/NAME
    pub unit: UnitRef,
    /// Host, by id or hostname [default: the only one that has it]
    #[arg(long)]
    pub host: Option<String>,
}

/// Shows a unit.
///
/// # Errors
/// If there is none, if several hosts have it, or if it is of another kind.
pub(super) async fn show(session: &CliSession, wanted: OneUnit, noun: Noun) -> Result<(), Failure> {
    let unit = one(session, &wanted.unit, wanted.host).await?;
    noun.verb("show").check([&unit])?;
    let now_ms = clock::now_ms();
    let [verified, rolled_back, its_lines, hint] = rollback::facts(&unit, now_ms);
    let [replaced, beside] = rollback::replacement(&unit, now_ms);
    session.printer.one(&unit, || {
        let (desired, observed) = (&unit.desired, &unit.observed);
        let instance = observed.instance();
        let error = observed.error.clone().unwrap_or_default();
        let listed = |all: &[Diagnostic]| all.iter().map(|one| format!("{one:#}")).collect::<Vec<_>>().join("; ");
        let spec = desired.spec.as_ref();
        let probed = |which| spec.probes().get(which).map(|probe| probe::shown(which, probe)).unwrap_or_default();
        let [image, inside, mounts, network, may_use] = container_text::facts(spec);
        let artifact =
            |artifact: &ArtifactRef| format!("{}@{} ({})", artifact.role, artifact.version, artifact.sha256.short());
        let configs = spec.configs().iter().map(|config| format!("{}@{}", config.id, config.version));
        let revision = observed.revision.as_ref().map(|revision| revision.short().to_owned());
        vec![
            ("unit", unit.unit.to_string()),
            ("host", format!("{} ({})", unit.hostname, unit.host)),
            ("kind", desired.spec.kind().to_owned()),
            ("deployment", unit.owner.as_ref().map(deployment::owner).unwrap_or_default()),
            (
                "differs",
                unit.deviation().map(|what| format!("{what}; the rest shows what it should be")).unwrap_or_default(),
            ),
            ("artifact", spec.artifact().map(artifact).unwrap_or_default()),
            ("files", files(spec)),
            image,
            network,
            mounts,
            ("configs", configs.collect::<Vec<_>>().join(", ")),
            ("secrets", spec.common().secrets.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")),
            ("arguments", spec.args().join(" ")),
            ("user", spec.host_user().unwrap_or_default().to_owned()),
            inside,
            may_use,
            ("starts after", names(&spec.common().after)),
            ("requires", names(&spec.common().requires)),
            ("snapshots need", unit.pins.words().join(", ")),
            (
                "labels",
                spec.common()
                    .labels
                    .iter()
                    .map(|(name, value)| format!("{name}={value}"))
                    .collect::<Vec<_>>()
                    .join(" "),
            ),
            (
                "desired",
                format!(
                    "{}{}, generation {}, revision {}",
                    run_word(desired.run),
                    if desired.frozen { ", frozen" } else { "" },
                    desired.generation,
                    desired.revision.short()
                ),
            ),
            (
                "observed",
                format!(
                    "{} since {}, generation {}, revision {}",
                    wait::phase(observed.phase()),
                    print::age(observed.since_ms, now_ms),
                    observed.generation,
                    revision.unwrap_or_else(|| "none".to_owned()),
                ),
            ),
            replaced,
            beside,
            verified,
            rolled_back,
            its_lines,
            hint,
            ("start probe", probed(Which::Start)),
            ("ready probe", probed(Which::Ready)),
            ("live probe", probed(Which::Live)),
            ("unready", instance.unready.as_ref().map(|why| format!("{why:#}")).unwrap_or_default()),
            ("hold", unit.hold.as_ref().map(|hold| held(hold, now_ms)).unwrap_or_default()),
            ("listens at", endpoint::listens(observed)),
            ("connects to", endpoint::connects(observed)),
            ("pid", instance.pid.map(|pid| pid.to_string()).unwrap_or_default()),
            ("restarts", observed.attempts.to_string()),
            ("last exit", last_exit(observed)),
            ("progress", observed.progress.map(print::progress).unwrap_or_default()),
            ("says", instance.status.clone().unwrap_or_default()),
            ("owes", observed.owed.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")),
            ("stats", unit.stats.as_ref().map(|stats| told(stats, now_ms)).unwrap_or_default()),
            ("can", instance.can.iter().map(|ability| ability.name()).collect::<Vec<_>>().join(", ")),
            ("frozen", if instance.frozen { "yes".to_owned() } else { String::new() }),
            ("does without", listed(&instance.unsupported)),
            ("others changed", listed(&instance.drift)),
            ("last lines", observed.last_lines.clone().unwrap_or_default().trim_end().to_owned()),
            ("next start", observed.retry_ms().map(|at_ms| print::age(at_ms, now_ms)).unwrap_or_default()),
            ("error", error.cause),
            ("consequence", error.consequence.unwrap_or_default()),
            ("hint", error.hint.unwrap_or_default()),
            ("told", print::age(unit.at_ms, now_ms)),
        ]
    })
}

fn names(units: &[UnitName]) -> String {
    units.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
}

fn held(hold: &Hold, now_ms: muster_topics::Millis) -> String {
    format!("{hold} (since {})", print::age(hold.since_ms, now_ms))
}

fn last_exit(observed: &Observed) -> String {
    observed.last_end.map(|end| end.to_string()).unwrap_or_default()
}

/// The statistics of a yuno, with their age.
fn told(stats: &ToldStats, now_ms: muster_topics::Millis) -> String {
    let values: Vec<String> = stats.values.iter().map(|(name, value)| format!("{name}={value}")).collect();
    let more = if stats.and_more { " …" } else { "" };
    format!("{}{more} ({})", values.join(" "), print::age(stats.at_ms, now_ms))
}

fn run_word(run: Run) -> &'static str {
    match run {
        Run::Stopped => "stopped",
        Run::Running => "running",
        Run::Playing => "playing",
    }
}

/// The files of a unit, one in a line.
fn files(spec: &Spec) -> String {
    let Spec::Files(spec) = spec else { return String::new() };
    let lines = spec.files.iter().map(|(path, entry)| format!("{path}: {}", muster_rules::files::words(entry)));
    lines.collect::<Vec<_>>().join("\n")
}
