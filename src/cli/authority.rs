//! `muster authority`: the fleet's authority, and the replacement of its signing key.

use std::time::{Duration, Instant};

use clap::{Args, Subcommand, ValueEnum};
use muster_api::{
    authority::{
        AuthorityStatus, BeginRotation, FinishRotation, LackingHost, LackingReason, RotatedKey, SigningKeyPlace,
    },
    host_names::HostNames,
};
use muster_base::{clock, failure::Failure};

use super::{print, session::CliSession};

/// How often progress is looked at.
const LOOK: Duration = Duration::from_millis(300);

/// Verbs on the authority.
#[derive(Subcommand, Clone, Debug)]
pub enum AuthorityVerb {
    /// Show the authority's keys
    Show,
    /// Replace a key of the authority, without touching a host
    #[command(
        after_long_help = "A rotation has two steps. `muster authority rotate signing` makes a new key and tells all \
                    hosts of it; the present key goes on signing. Once every host has the new key, `muster \
                    authority rotate --finish` has it sign from then on: the old key is deleted, and hosts drop it. \
                    A host that is away can be named with `--without`: it gets the new key when it is back, with \
                    a renewal of its certificate."
    )]
    Rotate(RotateArgs),
}

/// What to do.
#[derive(Args, Clone, Debug)]
pub struct RotateArgs {
    /// The step
    #[command(flatten)]
    step: RotationStep,
    /// Finish although this host lacks the new key
    ///
    /// Can be given several times. The host gets the key with a renewal of its certificate when it is back.
    #[arg(long, value_name = "HOST", requires = "finish", conflicts_with_all = ["what", "status", "abandon"])]
    without: Vec<String>,
    /// Wait so long until online hosts have the keys
    #[arg(long, default_value = "10s", value_name = "TIME")]
    timeout: humantime::Duration,
}

/// A step of a rotation.
#[derive(Args, Clone, Debug)]
#[group(required = true, multiple = false)]
pub struct RotationStep {
    /// Key to replace
    ///
    /// A new one is made, and all hosts are told of it. If that has begun already, it goes on.
    #[arg(value_enum)]
    what: Option<RotatedPart>,
    /// Show which hosts lack the new key
    #[arg(long)]
    status: bool,
    /// Sign with the new key from now on, and delete the old one
    #[arg(long)]
    finish: bool,
    /// Take the new key back
    #[arg(long)]
    abandon: bool,
}

/// A key that can be replaced.
#[derive(ValueEnum, Clone, Copy, Debug)]
enum RotatedPart {
    /// The key that signs commands
    Signing,
}

/// Runs the verb.
///
/// # Errors
/// If it fails, or hosts lack the new key.
pub async fn run(verb: AuthorityVerb, session: &CliSession) -> Result<(), Failure> {
    match verb {
        AuthorityVerb::Show => show(session, &status(session).await?),
        AuthorityVerb::Rotate(args) => rotate(args, session).await,
    }
}

async fn status(session: &CliSession) -> Result<AuthorityStatus, Failure> {
    session.client.get("authority", &[]).await
}

async fn rotate(args: RotateArgs, session: &CliSession) -> Result<(), Failure> {
    let RotateArgs { step: RotationStep { what, finish, abandon, .. }, without, timeout } = args;
    let timeout = timeout.into();
    if let Some(RotatedPart::Signing) = what {
        let wanted = BeginRotation { what: RotatedKey::Signing };
        let begun: AuthorityStatus = session.client.post("authority/rotation", &wanted).await?;
        return report(session, &confirmed(session, begun, timeout).await?);
    }
    if finish {
        let wanted = FinishRotation { without };
        let finished: AuthorityStatus = session.client.post("authority/rotation/finish", &wanted).await?;
        return report(session, &confirmed(session, finished, timeout).await?);
    }
    if abandon {
        let abandoned: AuthorityStatus = session.client.delete("authority/rotation", &[]).await?;
        print::say(format_args!("the key {} goes on signing, and hosts forget the new one", abandoned.signing_key));
        return match session.printer.is_for_programs() {
            true => session.printer.one(&abandoned, Vec::new),
            false => Ok(()),
        };
    }
    report(session, &status(session).await?)
}

/// The hosts that do not have the keys that they should.
fn lacking(status: &AuthorityStatus) -> &[LackingHost] {
    match (&status.rotation, &status.last_rotation) {
        (Some(rotation), _) => &rotation.lacking,
        (None, Some(last)) => &last.lacking,
        (None, None) => &[],
    }
}

/// Waits until the hosts that are online have the keys, or the time is over.
async fn confirmed(
    session: &CliSession,
    mut present: AuthorityStatus,
    timeout: Duration,
) -> Result<AuthorityStatus, Failure> {
    let began = Instant::now();
    let is_pending = |host: &LackingHost| {
        host.away_since_ms.is_none() && !matches!(host.why, LackingReason::OldAgent | LackingReason::CertificateExpired)
    };
    while lacking(&present).iter().any(is_pending) && began.elapsed() < timeout {
        tokio::time::sleep(LOOK).await;
        present = status(session).await?;
    }
    Ok(present)
}

fn show(session: &CliSession, status: &AuthorityStatus) -> Result<(), Failure> {
    let now_ms = clock::now_ms();
    let place = match &status.signing_key_place {
        SigningKeyPlace::File => "a file of the console".to_owned(),
        SigningKeyPlace::Credential(path) => format!("the credential {path}"),
        SigningKeyPlace::Signer(address) => format!("the signer at {address}"),
        SigningKeyPlace::Absent => "nowhere".to_owned(),
    };
    let rotation = status.rotation.as_ref().map(|rotation| {
        let age = print::age(rotation.begun_ms, now_ms);
        format!("to {}, begun {age} by {}", rotation.new_key, rotation.operator)
    });
    let last = status
        .last_rotation
        .as_ref()
        .map(|last| format!("from {}, {} by {}", last.old_key, print::age(last.finished_ms, now_ms), last.operator));
    session.printer.one(status, || {
        vec![
            ("certificate", format!("SHA-256 {}", status.fingerprint)),
            ("signing key", format!("{}, in {place}", status.signing_key)),
            ("rotation", rotation.unwrap_or_default()),
            ("last rotation", last.unwrap_or_default()),
        ]
    })
}

/// Reports how far a rotation is: who lacks the key on standard output, and the rest in words.
fn report(session: &CliSession, status: &AuthorityStatus) -> Result<(), Failure> {
    if session.printer.is_for_programs() {
        return session.printer.one(status, Vec::new);
    }
    let hosts = lacking(status);
    match (&status.rotation, &status.last_rotation) {
        (Some(rotation), _) => print::say(format_args!(
            "hosts are told of the new key {}: {} of {} have it, and {} goes on signing",
            rotation.new_key,
            rotation.having,
            rotation.having + hosts.len() as u64,
            status.signing_key
        )),
        (None, Some(last)) => print::say(format_args!(
            "{} signs: {} of {} hosts accept it alone",
            status.signing_key,
            last.having,
            last.having + hosts.len() as u64
        )),
        (None, None) => print::say("no rotation is under way; `muster authority rotate signing` begins one"),
    }
    if !hosts.is_empty() {
        let now_ms = clock::now_ms();
        let names = HostNames::new(hosts.iter().map(|host| (host.host, host.hostname.as_str())));
        let row = |host: &LackingHost| {
            let away = host.away_since_ms.map(|since_ms| format!("away since {}", print::age(since_ms, now_ms)));
            vec![names.show(host.host, &host.hostname), host.why.words().to_owned(), away.unwrap_or_default()]
        };
        session.printer.list(hosts, &["HOST", "WHY", "AWAY"], row, "")?;
    }
    if let Some(rotation) = &status.rotation {
        print::say(match rotation.ready {
            true => "`muster authority rotate --finish` has the new key sign from now on",
            false => "`--finish` once all have it, or with `--without HOST` for those that get it when they are back",
        });
    }
    Ok(())
}
