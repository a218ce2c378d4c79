//! `muster authority`: the fleet's authority, and the replacement of its signing key and its root certificate.

use std::time::{Duration, Instant};

use clap::{Args, Subcommand, ValueEnum};
use muster_api::{
    authority::{
        AuthorityStatus, BeginRotation, FinishRotation, LackingHost, LackingReason, RootStage, RotatedKey,
        RotationStatus, SigningKeyPlace,
    },
    host_names::HostNames,
};
use muster_base::{clock, failure::Failure};
use muster_net::pki;
use muster_topics::count::counted;
use muster_topics::name::Digest;

use super::{
    client::ConsoleClient,
    context::{self, ConsoleContext, Contexts},
    print,
    session::CliSession,
};

/// How often progress is looked at.
const LOOK: Duration = Duration::from_millis(300);

/// Verbs on the authority.
#[derive(Subcommand, Clone, Debug)]
pub enum AuthorityVerb {
    /// Show the authority's keys, and which hosts lack a new one
    Show,
    /// Replace the signing key or the root, without touching a host
    ///
    /// A new one is made, and all hosts are told of it. If that has begun already, it goes on.
    #[command(
        after_long_help = "A rotation has two steps. `muster authority rotate signing` makes a new key and tells all \
                    hosts of it; the present key keeps signing. Once every host has the new key, `muster authority finish` has it sign from then on: the old key is deleted, and hosts drop it.                     A host that is away can be named with `--without`: it gets the new key when it is back, with \
                    a renewal of its certificate.\n\n\
                    That of the root certificate has three. `muster authority rotate root` makes a new root, and \
                    tells all hosts to trust it beside the present one. Once they do, `muster authority finish` has all hosts renew their certificates under the new root. Once they have, it ends all trust in the old one. A host that is named then has to join again. A broker that runs by itself needs its files again before each of both: `muster console issue --role broker`."
    )]
    Rotate {
        /// What to replace
        #[arg(value_enum)]
        what: RotatedPart,
        /// How long to wait
        #[command(flatten)]
        wait: RotationWait,
    },
    /// Finish a rotation: use the new key from now on
    ///
    /// The old key is deleted. A new root takes it twice: for certificates under it, and to drop the old one.
    Finish {
        /// Host that may lack the new key or root; repeatable
        ///
        /// The host gets a key with a renewal of its certificate when it is back. A host that has no certificate under a
        /// new root when the old one is dropped has to join anew.
        #[arg(long, value_name = "HOST")]
        without: Vec<String>,
        /// How long to wait
        #[command(flatten)]
        wait: RotationWait,
    },
    /// Cancel a rotation: hosts keep the present key and root
    Cancel,
}

/// How long to wait for the hosts.
#[derive(Args, Clone, Copy, Debug)]
pub struct RotationWait {
    /// Wait so long until it is done
    ///
    /// All online hosts have the keys then.
    #[arg(long, default_value = "10s", value_name = "TIME")]
    timeout: humantime::Duration,
}

/// A key that can be replaced.
#[derive(ValueEnum, Clone, Copy, Debug)]
pub enum RotatedPart {
    /// The key that signs commands
    Signing,
    /// The root certificate
    Root,
}

/// Runs the verb.
///
/// # Errors
/// If it fails, or hosts lack the new key.
pub async fn run(verb: AuthorityVerb, session: &CliSession) -> Result<(), Failure> {
    match verb {
        AuthorityVerb::Show => {
            let status = status(session).await?;
            show(session, &status)?;
            if session.printer.is_for_programs() {
                return Ok(());
            }
            if !lacking(&status).is_empty() {
                print::write_out("\n")?;
            }
            tell(session, &status)
        }
        AuthorityVerb::Rotate { what, wait } => rotate(what, wait, session).await,
        AuthorityVerb::Finish { without, wait } => finish(without, wait, session).await,
        AuthorityVerb::Cancel => cancel(session).await,
    }
}

async fn status(session: &CliSession) -> Result<AuthorityStatus, Failure> {
    let status: AuthorityStatus = session.client.get("authority", &[]).await?;
    trust(session, &status)?;
    Ok(status)
}

/// Has the context trust the roots that the console does, and returns a session with it; `None` if it does already. As long as
/// the old root is trusted, the console can be believed about the new one.
fn trust(session: &CliSession, status: &AuthorityStatus) -> Result<Option<CliSession>, Failure> {
    let Some(known) = &session.context.authority else { return Ok(None) };
    let retired = status.last_rotation.as_ref().filter(|last| last.what == RotatedKey::Root);
    let retired = retired.map(|last| last.old_key.as_str());
    let Some(authority) = with_roots(known, &status.certificates, retired) else { return Ok(None) };
    let path = context::path()?;
    let mut contexts = Contexts::load(&path)?;
    let of_console =
        |one: &&mut ConsoleContext| one.url == session.context.url && one.authority.as_ref() == Some(known);
    for one in contexts.contexts.values_mut().filter(of_console) {
        one.authority = Some(authority.clone());
    }
    contexts.save(&path)?;
    let context = ConsoleContext { authority: Some(authority), ..session.context.clone() };
    Ok(Some(CliSession { client: ConsoleClient::new(&context)?, context, ..session.clone() }))
}

/// Returns the certificates of a context with all roots of the fleet, and without the one with the id `retired`. `None` if
/// that changes nothing, or if the context trusts none of them: its console is behind a proxy with a certificate of its own.
fn with_roots(known: &str, roots: &str, retired: Option<&str>) -> Option<String> {
    let ids = |pem: &str| -> Vec<String> {
        let all = pki::certificates("a certificate", pem).unwrap_or_default();
        all.iter().map(|der| Digest::of(der).as_str().get(..16).unwrap_or_default().to_owned()).collect()
    };
    let (of_known, of_roots) = (ids(known), ids(roots));
    if !of_roots.iter().any(|root| of_known.contains(root)) {
        return None;
    }
    let is_kept = |pem: &&str| !ids(pem).iter().any(|id| retired == Some(id));
    let is_new = |pem: &&str| !ids(pem).iter().any(|id| of_known.contains(id));
    let kept: Vec<&str> = certificates(known).filter(is_kept).collect();
    let new: Vec<&str> = certificates(roots).filter(is_new).collect();
    let is_changed = kept.len() < of_known.len() || !new.is_empty();
    is_changed.then(|| kept.into_iter().chain(new).flat_map(|pem| [pem, "\n"]).collect())
}

/// The certificates of a document, each in PEM.
fn certificates(pem: &str) -> impl Iterator<Item = &str> {
    const BEGIN: &str = "-----BEGIN CERTIFICATE-----";
    pem.split_inclusive("-----END CERTIFICATE-----").filter_map(|part| part.get(part.find(BEGIN)?..))
}

async fn rotate(what: RotatedPart, wait: RotationWait, session: &CliSession) -> Result<(), Failure> {
    let what = match what {
        RotatedPart::Signing => RotatedKey::Signing,
        RotatedPart::Root => RotatedKey::Root,
    };
    let begun: AuthorityStatus = session.client.post("authority/rotation", &BeginRotation { what }).await?;
    report(session, &confirmed(session, begun, wait.timeout.into()).await?)
}

async fn finish(without: Vec<String>, wait: RotationWait, session: &CliSession) -> Result<(), Failure> {
    // Before the console shows a certificate under a root that the context does not trust.
    let present: AuthorityStatus = session.client.get("authority", &[]).await?;
    let trusting = trust(session, &present)?;
    let session = trusting.as_ref().unwrap_or(session);
    let wanted = FinishRotation { without };
    let finished: AuthorityStatus = session.client.post("authority/rotation/finish", &wanted).await?;
    let confirmed = confirmed(session, finished, wait.timeout.into()).await?;
    report(session, &confirmed)?;
    if confirmed.rotation.is_none() && confirmed.last_rotation.is_some_and(|last| last.what == RotatedKey::Root) {
        print::say(
            "make a backup now: earlier ones have a root that hosts do not trust; and make the files of a separate \
             broker again, so that it does not trust the old root either",
        );
    }
    Ok(())
}

async fn cancel(session: &CliSession) -> Result<(), Failure> {
    let status: AuthorityStatus = session.client.delete("authority/rotation", &[]).await?;
    print::say("the rotation is cancelled: hosts keep the present key and root certificate, and drop the new one");
    if session.printer.is_for_programs() { session.printer.one(&status, Vec::new) } else { Ok(()) }
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
    let is_pending = |host: &LackingHost| host.away_since_ms.is_none() && host.why != LackingReason::CertificateExpired;
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

/// Reports how far a rotation is.
fn report(session: &CliSession, status: &AuthorityStatus) -> Result<(), Failure> {
    if session.printer.is_for_programs() { session.printer.one(status, Vec::new) } else { tell(session, status) }
}

/// Tells people how far a rotation is: who lacks the key or root on standard output, and the rest in words.
fn tell(session: &CliSession, status: &AuthorityStatus) -> Result<(), Failure> {
    let hosts = lacking(status);
    match (&status.rotation, &status.last_rotation) {
        (Some(rotation), _) => print::say(progress(rotation, status)),
        (None, Some(last)) => {
            let all = last.having + hosts.len() as u64;
            print::say(match last.what {
                RotatedKey::Signing => {
                    format!("{} signs: {} of {} accept it alone", status.signing_key, last.having, counted(all, "host"))
                }
                RotatedKey::Root => {
                    let root = status.fingerprint.as_str().get(..16).unwrap_or_default();
                    format!(
                        "all certificates are under the root {root}: {} of {} trust it alone",
                        last.having,
                        counted(all, "host")
                    )
                }
            });
        }
        (None, None) => {}
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
        next_step(rotation);
    }
    Ok(())
}

/// How far a rotation is, in words.
fn progress(rotation: &RotationStatus, status: &AuthorityStatus) -> String {
    let RotationStatus { new_key, having, .. } = rotation;
    let all = having + rotation.lacking.len() as u64;
    match rotation.stage {
        None => format!(
            "hosts are told of the new key {new_key}: {having} of {all} have it, and {} keeps signing",
            status.signing_key
        ),
        Some(RootStage::Trust) => format!(
            "hosts are told of the new root {new_key}: {having} of {all} trust it; certificates are still made under the present one"
        ),
        Some(RootStage::Certificates) => format!(
            "hosts renew their certificates under the new root {new_key}: {having} of {all} have one; both roots are trusted"
        ),
    }
}

/// Says what has to be done before a rotation goes on.
fn next_step(rotation: &RotationStatus) {
    if let Some(broker) = &rotation.broker {
        print::say(format_args!(
            "the broker at {broker} runs by itself: before `muster authority finish`, `muster console issue --role broker` makes its files again, {}",
            match rotation.stage {
                Some(RootStage::Certificates) => "with a certificate under the new root",
                _ => "with both roots",
            }
        ));
    }
    if !rotation.by_hand.is_empty() {
        print::say(format_args!(
            "made by hand under the old root, and invalid after `muster authority finish`: {}; `muster console issue` makes new ones",
            rotation.by_hand.join(", ")
        ));
    }
    print::say(match (rotation.stage, rotation.ready) {
        (None, true) => "`muster authority finish` has the new key sign from now on",
        (None, false) => {
            "`muster authority finish` once all have it, or with `--without HOST` for those that get it when they are back"
        }
        (Some(RootStage::Trust), true) => {
            "`muster authority finish` has hosts renew their certificates under the new root"
        }
        (Some(RootStage::Trust), false) => {
            "`muster authority finish` once all trust it, or with `--without HOST` for those that get to know it when they are back"
        }
        (Some(RootStage::Certificates), true) => "`muster authority finish` ends all trust in the old root",
        (Some(RootStage::Certificates), false) => {
            "`muster authority finish` once all have one, or with `--without HOST` for those that must join again then"
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn context_follows_the_roots_that_it_knows_and_keeps_others() {
        let make = |body: &str| format!("-----BEGIN CERTIFICATE-----\n{body}\n-----END CERTIFICATE-----\n");
        let (old, new, proxy) = (make("b2xk"), make("bmV3"), make("cHJveHk="));
        let id = |pem: &str| Digest::of(&pki::certificates("one", pem).unwrap()[0]).as_str()[..16].to_owned();
        let retired = id(&old);
        let both = format!("{old}{new}");
        let ids = |pem: Option<String>| pem.map(|pem| certificates(&pem).map(id).collect::<Vec<_>>());
        for (known, roots, retired, wanted) in [
            (&old, &old, None, None),
            (&old, &both, None, Some(vec![id(&old), id(&new)])),
            (&both, &new, Some(&*retired), Some(vec![id(&new)])),
            (&new, &new, Some(&*retired), None),
            // It knows nothing of the fleet's roots.
            (&proxy, &both, None, None),
            (&old, &new, Some(&*retired), None),
            (&format!("# a comment\n{proxy}\n{old}"), &both, None, Some(vec![id(&proxy), id(&old), id(&new)])),
            (&"nonsense".to_owned(), &both, None, None),
        ] {
            assert_eq!(ids(with_roots(known, roots, retired)), wanted, "{known}");
        }
    }
}
