//! `muster rollout`: how versions of deployments reach their hosts.
//!
//! `follow` (progress), `words` (what it is called).

pub(super) mod follow;
pub(crate) mod words;

use clap::{Args, Subcommand};
use muster_api::{
    CancelRollout, HostOutcome, ROLLOUT_HOSTS_MAX, ReleaseHost, Rollout, RolloutDetail, RolloutHost, RolloutHosts,
    RolloutVersion, RolloutWait, RolloutWave, host_names::HostNames,
};
use muster_base::{
    clock,
    failure::{Failure, FailureKind},
};
use muster_topics::desired::DeploymentName;

use self::words::{outcome_word, outcomes, phase};
use super::{print, session::CliSession};

/// Verbs on rollouts.
#[derive(Subcommand, Clone, Debug)]
pub enum RolloutVerb {
    /// List the last rollout of each deployment, or all of one
    Ls {
        /// REALM/NAME [default: the last rollout of each]
        deployment: Option<DeploymentName>,
    },
    /// Show a rollout: its waves, how its hosts end, and why they wait
    Show(ShowRollout),
    /// List the hosts of a rollout, with their outcomes or why they wait
    Hosts(ListRolloutHosts),
    /// Follow a rollout to its end
    ///
    /// Hosts that are away are waited for as long as the rollout does. It ends with code 1 if the rollout fails, or is paused.
    Watch(WatchRollout),
    /// Have no further host begin, until the rollout is resumed
    ///
    /// Hosts that change now go on.
    Pause(RolloutArgs),
    /// Have hosts begin again
    Resume(RolloutArgs),
    /// Approve the next wave
    Promote(RolloutArgs),
    /// Have the hosts that failed try again
    Retry(RolloutArgs),
    /// Cancel a rollout: hosts stay as they are
    ///
    /// Hosts that change now go on, and no further one begins. It needs the answer of no host.
    Cancel(CancelRolloutArgs),
    /// Count a host as available again that failed or was lost
    ///
    /// It takes no more of the budget of its group.
    Release {
        /// REALM/NAME
        deployment: DeploymentName,
        /// Host, by id or hostname
        #[arg(long)]
        host: String,
    },
}

/// The rollout that is shown.
#[derive(Args, Clone, Debug)]
pub struct ShowRollout {
    /// REALM/NAME
    deployment: DeploymentName,
    /// Number of a version [default: the present one]
    #[arg(long, value_name = "NUMBER")]
    version: Option<u32>,
}

/// The rollout whose hosts are listed.
#[derive(Args, Clone, Debug)]
pub struct ListRolloutHosts {
    #[command(flatten)]
    rollout: ShowRollout,
    /// Outcome of the hosts [default: all]
    #[arg(long, value_name = "OUTCOME", value_parser = parse_outcome)]
    outcome: Option<HostOutcome>,
}

/// The rollout that is followed.
#[derive(Args, Clone, Debug)]
pub struct WatchRollout {
    /// REALM/NAME
    deployment: DeploymentName,
    /// Wait so long until it is done [default: until it has ended]
    #[arg(long, value_name = "TIME")]
    timeout: Option<humantime::Duration>,
}

/// The rollout that is changed.
#[derive(Args, Clone, Debug)]
pub struct RolloutArgs {
    /// REALM/NAME
    deployment: DeploymentName,
    /// Number of a version [default: the present one]
    ///
    /// Refused if another one is the present one by then.
    #[arg(long, value_name = "NUMBER")]
    version: Option<u32>,
}

/// The rollout that is cancelled.
#[derive(Args, Clone, Debug)]
pub struct CancelRolloutArgs {
    #[command(flatten)]
    rollout: RolloutArgs,
    /// Have hosts go back to the last version whose rollout completed
    ///
    /// That is a new version with its content, without waves and approvals, within the same budget.
    #[arg(long)]
    rollback: bool,
    /// Do not ask first
    #[arg(short, long)]
    yes: bool,
}

fn parse_outcome(text: &str) -> Result<HostOutcome, String> {
    words::OUTCOMES.into_iter().find(|outcome| outcome_word(*outcome) == text).ok_or_else(|| {
        let known: Vec<&str> = words::OUTCOMES.into_iter().map(outcome_word).collect();
        format!("unknown outcome; use one of {}", known.join(", "))
    })
}

/// The path of a rollout in the API.
fn path(deployment: &DeploymentName) -> String {
    format!("rollouts/{deployment}")
}

/// Runs the verb.
///
/// # Errors
/// If it fails.
pub async fn run(verb: RolloutVerb, session: &CliSession) -> Result<(), Failure> {
    match verb {
        RolloutVerb::Ls { deployment } => list(session, deployment.as_ref()).await,
        RolloutVerb::Show(wanted) => show(session, &wanted).await,
        RolloutVerb::Hosts(wanted) => hosts(session, &wanted).await,
        RolloutVerb::Watch(wanted) => watch(session, &wanted).await,
        RolloutVerb::Pause(args) => change(session, &args, "pause").await,
        RolloutVerb::Resume(args) => change(session, &args, "resume").await,
        RolloutVerb::Promote(args) => change(session, &args, "promote").await,
        RolloutVerb::Retry(args) => change(session, &args, "retry").await,
        RolloutVerb::Cancel(args) => cancel(session, &args).await,
        RolloutVerb::Release { deployment, host } => release(session, &deployment, host).await,
    }
}

async fn list(session: &CliSession, deployment: Option<&DeploymentName>) -> Result<(), Failure> {
    let rollouts: Vec<Rollout> = match deployment {
        None => session.client.get("rollouts", &[]).await?,
        Some(deployment) => session.client.get(&format!("{}/history", path(deployment)), &[]).await?,
    };
    let now_ms = clock::now_ms();
    let row = |one: &Rollout| {
        vec![
            one.deployment.to_string(),
            one.version.to_string(),
            phase(&one.phase, now_ms),
            format!("{} of {}", one.wave, one.waves),
            one.hosts.to_string(),
            outcomes(&one.outcomes),
            one.in_flight.to_string(),
            print::age(one.begun_ms, now_ms),
        ]
    };
    let header = ["DEPLOYMENT", "VERSION", "PHASE", "WAVE", "HOSTS", "OUTCOMES", "CHANGING", "BEGAN"];
    let empty = "no rollouts; a deployment whose document has `rollout` has one for each version";
    session.printer.list(&rollouts, &header, row, empty)
}

async fn show(session: &CliSession, wanted: &ShowRollout) -> Result<(), Failure> {
    let query: Vec<_> = wanted.version.map(|number| ("version", number.to_string())).into_iter().collect();
    let detail: RolloutDetail = session.client.get(&path(&wanted.deployment), &query).await?;
    let now_ms = clock::now_ms();
    session.printer.one(&detail, || lines(&detail, now_ms))?;
    if session.printer.is_for_programs() {
        return Ok(());
    }
    print::write_out("\n")?;
    let wave = |wave: &RolloutWave| {
        vec![
            wave.number.to_string(),
            wave.state.word().to_owned(),
            wave.size.map_or_else(|| "the rest".to_owned(), |size| size.to_string()),
            wave.admitted.to_string(),
            wave.in_flight.to_string(),
            outcomes(&wave.outcomes),
        ]
    };
    session.printer.list(&detail.on_waves, &["WAVE", "STATE", "SIZE", "ADMITTED", "CHANGING", "OUTCOMES"], wave, "")?;
    if detail.waits.is_empty() {
        return Ok(());
    }
    print::write_out("\n")?;
    let wait = |wait: &RolloutWait| {
        vec![wait.hosts.to_string(), wait.kind.word().to_owned(), format!("{:#}", wait.reason), first_hosts(wait)]
    };
    session.printer.list(&detail.waits, &["HOSTS", "WAIT FOR", "WHY", "WHICH"], wait, "")
}

fn lines(detail: &RolloutDetail, now_ms: i64) -> Vec<(&'static str, String)> {
    let of = &detail.rollout;
    let mut lines = vec![
        ("deployment", of.deployment.to_string()),
        ("version", format!("{}{}", of.version, if of.is_rollback { ", which rolls back" } else { "" })),
        ("phase", phase(&of.phase, now_ms)),
        ("wave", format!("{} of {}", of.wave, of.waves)),
        ("hosts", format!("{}: {}", of.hosts, follow::counts(of))),
        ("unavailable", of.unavailable.to_string()),
        ("began", print::age(of.begun_ms, now_ms)),
        ("ended", of.ended_ms.map(|at_ms| print::age(at_ms, now_ms)).unwrap_or_default()),
        ("deadline", detail.deadline_ms.map(|at_ms| print::age(at_ms, now_ms)).unwrap_or_default()),
        ("rolls back to", detail.goes_back_to.map(|number| format!("version {number}")).unwrap_or_default()),
    ];
    let verbs: Vec<&str> = detail.verbs.iter().map(|verb| verb.word()).collect();
    lines.push(("verbs", verbs.join(", ")));
    // The oldest first, as one reads.
    lines.extend(detail.steps.iter().take(STEPS_SHOWN).rev().map(|step| {
        let by = step.operator.as_ref().map(|operator| format!(" ({operator})")).unwrap_or_default();
        ("step", format!("{}: {}{by}", print::age(step.at_ms, now_ms), step.text))
    }));
    lines
}

/// The number of steps that are shown: a third of a screen.
const STEPS_SHOWN: usize = 8;

/// `till-7, till-8 and 12 more`.
fn first_hosts(wait: &RolloutWait) -> String {
    let names = HostNames::new(wait.first.iter().map(|host| (host.host, host.hostname.as_str())));
    let shown: Vec<String> = wait.first.iter().map(|host| names.show(host.host, &host.hostname)).collect();
    let more = wait.hosts.saturating_sub(shown.len() as u64);
    match more {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

/// Lists hosts, page by page.
async fn hosts(session: &CliSession, wanted: &ListRolloutHosts) -> Result<(), Failure> {
    let mut hosts: Vec<RolloutHost> = Vec::new();
    let ShowRollout { deployment, mut version } = wanted.rollout.clone();
    loop {
        let mut query = vec![("after", hosts.len().to_string()), ("limit", ROLLOUT_HOSTS_MAX.to_string())];
        query.extend(version.map(|number| ("version", number.to_string())));
        query.extend(wanted.outcome.map(|outcome| ("outcome", outcome_word(outcome).to_owned())));
        let page: RolloutHosts = session.client.get(&format!("{}/hosts", path(&deployment)), &query).await?;
        // Further pages are of the same version, whatever becomes of the deployment.
        version = Some(page.version);
        let is_last = page.hosts.is_empty();
        hosts.extend(page.hosts);
        if is_last || hosts.len() as u64 >= page.total {
            break;
        }
    }
    let now_ms = clock::now_ms();
    let names = HostNames::new(hosts.iter().map(|host| (host.host, host.hostname.as_str())));
    let row = |host: &RolloutHost| {
        vec![
            names.show(host.host, &host.hostname),
            host.wave.map(|wave| wave.to_string()).unwrap_or_default(),
            host.group.clone().unwrap_or_default(),
            match (host.outcome, host.waits) {
                (Some(outcome), _) => outcome_word(outcome).to_owned(),
                (None, Some(kind)) => format!("({})", kind.word()),
                (None, None) => String::new(),
            },
            if host.is_unavailable { "unavailable" } else { "" }.to_owned(),
            host.ended_ms.map(|at_ms| print::age(at_ms, now_ms)).unwrap_or_default(),
            host.reason.as_ref().map(|why| format!("{why:#}")).unwrap_or_default(),
        ]
    };
    let empty = "no host of the rollout has this outcome";
    session.printer.list(&hosts, &["HOST", "WAVE", "GROUP", "OUTCOME", "STATE", "ENDED", "WHY"], row, empty)
}

async fn watch(session: &CliSession, wanted: &WatchRollout) -> Result<(), Failure> {
    let lines = session.printer.in_lines();
    let goal = follow::RolloutGoal { version: None, waits_for_away: true };
    let limit = wanted.timeout.map(Into::into);
    let followed = follow::follow(session, &wanted.deployment, goal, limit, |event| lines.item(event)).await?;
    followed.verdict()
}

async fn change(session: &CliSession, args: &RolloutArgs, verb: &str) -> Result<(), Failure> {
    let asked = RolloutVersion { version: args.version };
    let rollout: Rollout = session.client.post(&format!("{}/{verb}", path(&args.deployment)), &asked).await?;
    tell(session, &rollout)
}

fn tell(session: &CliSession, rollout: &Rollout) -> Result<(), Failure> {
    let phase = phase(&rollout.phase, clock::now_ms());
    let Rollout { deployment, version, .. } = rollout;
    session.printer.line(rollout, &format!("{deployment}, version {version}: {phase}"))
}

async fn cancel(session: &CliSession, args: &CancelRolloutArgs) -> Result<(), Failure> {
    let RolloutArgs { deployment, version } = &args.rollout;
    let what = match args.rollback {
        true => format!("cancel the rollout of {deployment}, and roll its hosts back"),
        false => format!("cancel the rollout of {deployment}; its hosts keep what they have"),
    };
    if !args.yes && !print::confirm(&format!("{what}?")) {
        return Err(Failure::new(FailureKind::Usage, format!("to {what} needs confirmation")).hint("pass --yes"));
    }
    let asked = CancelRollout { version: *version, rollback: args.rollback };
    let rollout: Rollout = session.client.post(&format!("{}/cancel", path(deployment)), &asked).await?;
    tell(session, &rollout)
}

async fn release(session: &CliSession, deployment: &DeploymentName, host: String) -> Result<(), Failure> {
    let released: RolloutHost =
        session.client.post(&format!("{}/release", path(deployment)), &ReleaseHost { host }).await?;
    session.printer.line(&released, &format!("{} counts as available in {deployment}", released.hostname))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcomes_are_known_by_their_words() {
        for outcome in words::OUTCOMES {
            assert_eq!(parse_outcome(outcome_word(outcome)), Ok(outcome));
            assert_eq!(serde_json::to_value(outcome).unwrap(), outcome_word(outcome));
        }
        assert!(parse_outcome("verifed").unwrap_err().contains("verified"));
    }
}
