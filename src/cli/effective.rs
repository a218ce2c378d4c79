//! `muster unit config`: shows a yuno's effective configuration.

use clap::Args;
use muster_api::{CommandHost, Unit};
use muster_base::failure::{Failure, FailureKind};
use muster_topics::{command::Verb, effective::Effective};
use serde_json::Value;

use super::{
    change::submit, command_follower, command_report::report, print, session::CliSession, target::Noun, unit::OneUnit,
    unit_lookup,
};

/// Show what a yuno reads as its configuration.
#[derive(Args, Clone, Debug)]
#[command(
    after_long_help = "Without --effective it is what the yuno should read: its configs as the console has them, \
                    merged. With --effective the host is asked, which reads its own files. The two differ while \
                    a change is on its way, after a rollback, and if somebody has edited the file by hand."
)]
pub struct Config {
    #[command(flatten)]
    which: OneUnit,
    /// Ask the host for the file that the yuno reads
    #[arg(long)]
    effective: bool,
}

/// Runs the verb.
///
/// # Errors
/// If it fails.
pub async fn run(wanted: Config, noun: Noun, session: &CliSession) -> Result<(), Failure> {
    let unit = unit_lookup::one_of(session, wanted.which, noun.verb("config")).await?;
    if !wanted.effective {
        return desired(session, &unit).await;
    }
    let asked = Verb::UnitConfig { unit: unit.unit.clone() };
    let command = submit(session, vec![unit.host.to_string()], asked, None).await?;
    let (hosts, output) = command_follower::collect(session, &command).await?;
    report(&command, &hosts)?;
    show(session, &hosts, &output)
}

fn show(session: &CliSession, hosts: &[CommandHost], output: &[u8]) -> Result<(), Failure> {
    let effective: Effective = serde_json::from_slice(output).map_err(|error| {
        let host = hosts.first().map(|host| host.hostname.as_str()).unwrap_or_default();
        Failure::new(FailureKind::Failed, format!("the answer of {host} is not valid: {error}"))
    })?;
    for file in &effective.changed {
        print::say(format_args!("{file} was changed after the agent wrote it"));
    }
    session.printer.one(&effective, || {
        let configs = effective.configs.iter().map(|config| format!("{}@{}", config.id, config.version));
        vec![
            ("unit", effective.unit.to_string()),
            ("revision", effective.revision.short().to_owned()),
            ("file", effective.path.clone()),
            ("configs", configs.collect::<Vec<_>>().join(", ")),
            (
                "config",
                effective.config.as_ref().map(pretty).unwrap_or_else(|| "it is no longer valid JSON".to_owned()),
            ),
        ]
    })
}

fn pretty(document: &Value) -> String {
    serde_json::to_string_pretty(document).unwrap_or_default()
}

async fn desired(session: &CliSession, unit: &Unit) -> Result<(), Failure> {
    let configs = unit.desired.spec.configs();
    if configs.is_empty() {
        return Err(Failure::new(FailureKind::Failed, format!("{} has no configs", unit.unit)));
    }
    let mut documents = Vec::new();
    for config in configs {
        let path = format!("configs/{}/{}", config.id, config.version);
        let whole: muster_api::Config = session.client.get(&path, &[]).await?;
        documents.push(whole.content.unwrap_or_default());
    }
    // Masked documents merge like the original ones.
    let merged = muster_rules::config::merge(documents);
    session.printer.one(&merged, || {
        let configs = configs.iter().map(|config| format!("{}@{}", config.id, config.version));
        vec![
            ("unit", unit.unit.to_string()),
            ("configs", configs.collect::<Vec<_>>().join(", ")),
            ("config", pretty(&merged)),
        ]
    })
}
