//! `muster silence`: alerts that are sent to nobody for some time.

use clap::Subcommand;
use muster_api::{AlertSilence, NewAlertSilence, host_names::HostNames};
use muster_base::{clock, failure::Failure};
use muster_topics::name::Name;
use reqwest::Method;

use super::{
    alert::{hosts_of, whom},
    print,
    session::CliSession,
};

/// Verbs on silences.
#[derive(Subcommand, Clone, Debug)]
pub enum SilenceVerb {
    /// Create a silence: have alerts sent to nobody for some time
    ///
    /// They are still recorded and shown.
    Create {
        /// Host, by id or hostname [default: all hosts]
        #[arg(long, value_name = "HOST")]
        host: Option<String>,
        /// Rule of the alerts [default: all rules]
        #[arg(long, value_name = "RULE")]
        rule: Option<Name>,
        /// How long it lasts
        #[arg(long = "for", value_name = "TIME", default_value = "2h")]
        time: humantime::Duration,
        /// Reason, for other operators
        #[arg(long)]
        reason: String,
    },
    /// List silences in force
    Ls,
    /// Remove a silence
    Rm {
        /// Id, or the beginning of it
        ///
        /// `muster silence ls` shows it.
        id: String,
    },
}

/// Runs the verb.
///
/// # Errors
/// If it fails.
pub async fn run(verb: SilenceVerb, session: &CliSession) -> Result<(), Failure> {
    match verb {
        SilenceVerb::Create { host, rule, time, reason } => {
            let wanted = NewAlertSilence { host, rule, reason, for_s: time.as_secs() };
            let silence: AlertSilence = session.client.post("alert-silences", &wanted).await?;
            let ends = print::age(silence.until_ms, clock::now_ms());
            print::say(format_args!("silence {} ends {ends}; `muster silence rm {0}` removes it before", silence.id));
            session.printer.data(&[silence])
        }
        SilenceVerb::Ls => list(session).await,
        SilenceVerb::Rm { id } => {
            session.client.order(Method::DELETE, &format!("alert-silences/{id}")).await?;
            print::say(format_args!("silence {id} is removed"));
            Ok(())
        }
    }
}

async fn list(session: &CliSession) -> Result<(), Failure> {
    let silences: Vec<AlertSilence> = session.client.get("alert-silences", &[]).await?;
    let hosts = hosts_of(session, silences.iter().map(|one| one.host)).await?;
    let names = HostNames::new(hosts.iter().map(|host| (host.id, host.hostname.as_str())));
    let now_ms = clock::now_ms();
    let row = |silence: &AlertSilence| {
        vec![
            silence.id.to_string(),
            whom(&hosts, &names, silence.host),
            silence.rule.as_ref().map_or_else(|| "all".to_owned(), ToString::to_string),
            print::age(silence.until_ms, now_ms),
            silence.operator.to_string(),
            silence.reason.clone(),
        ]
    };
    session.printer.list(&silences, &["ID", "HOST", "RULE", "ENDS", "BY", "REASON"], row, "no silences")
}
