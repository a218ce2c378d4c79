//! `muster secret`: values that configs name and nobody sees.

use std::{
    io::{BufRead, IsTerminal, Read, stdin},
    path::{Path, PathBuf},
};

use clap::{Args, Subcommand};
use muster_api::{KeyRotation, NewSecret, Secret, SecretDetail, SecretSet, SecretVersion, host_names::HostNames};
use muster_base::{
    clock,
    failure::{Failure, FailureContext, FailureKind},
    terminal::{self, SilentTerminal},
};
use muster_topics::count::counted;
use muster_topics::{
    diagnostic::Diagnostic,
    name::Name,
    secret::{MASKED_MIN_BYTES, SECRET_MAX_BYTES},
};

use super::{change::WaitOptions, print, session::CliSession, upgrade};

/// Verbs on secrets.
#[derive(Subcommand, Clone, Debug)]
pub enum SecretVerb {
    /// Set a secret, and give its new value to the units that use it
    #[command(
        after_long_help = "The value is read from a file or from standard input, never from an argument, which other users \
                    of this machine could see. At a terminal it is typed without being shown.\n\n\
                    A config names a secret as {\"$secret\": {\"name\": NAME}}; a unit's secrets are those of its realm. \
                    Units that have an earlier version are shown, and changed as by `muster unit upgrade`: reloaded or \
                    restarted, as each says. Setting the value that a secret has already changes nothing.\n\n\
                    The console keeps values encrypted, and gives them to the hosts of such units alone, sealed to each \
                    host's key. No verb and no page shows one."
    )]
    Set(SetArgs),
    /// List secrets, with how many units use each
    Ls {
        /// Realm [default: all]
        #[arg(long)]
        realm: Option<Name>,
    },
    /// Show a secret: its versions, its units, the configs that name it
    Show(SecretName),
    /// List the versions of a secret
    History(SecretName),
    /// Remove a secret that no unit uses
    ///
    /// Its values are erased. Its history stays, and a later value gets the next version.
    Rm(SecretName),
    /// Encrypt all stored secrets with a new key
    ///
    /// The old key is dropped when all are. Units do not notice. A rotation that is interrupted goes on when the console
    /// starts again.
    RotateKey,
}

/// A secret of a realm.
#[derive(Args, Clone, Debug)]
pub struct SecretName {
    /// Name
    name: Name,
    /// Realm
    #[arg(long, default_value_t = Name::default_realm())]
    realm: Name,
}

/// Options of `set`.
#[derive(Args, Clone, Debug)]
pub struct SetArgs {
    #[command(flatten)]
    secret: SecretName,
    /// File with the value [default: standard input]
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Keep a newline at the end of the value, which is removed otherwise
    #[arg(long)]
    exact: bool,
    /// Only store it: units get it with their next change
    #[arg(long)]
    store_only: bool,
    /// Do not ask first
    ///
    /// It is asked before several yunos are changed.
    #[arg(short, long)]
    yes: bool,
    #[command(flatten)]
    wait: WaitOptions,
}

/// Runs the verb.
///
/// # Errors
/// If it fails.
pub async fn run(verb: SecretVerb, session: &CliSession) -> Result<(), Failure> {
    match verb {
        SecretVerb::Set(set) => self::set(set, session).await,
        SecretVerb::Ls { realm } => {
            let mut secrets: Vec<Secret> = session.client.get("secrets", &[]).await?;
            secrets.retain(|secret| realm.as_ref().is_none_or(|realm| secret.realm == *realm));
            let now_ms = clock::now_ms();
            let row = |secret: &Secret| {
                vec![
                    format!("{}/{}", secret.realm, secret.name),
                    secret.version.to_string(),
                    print::age(secret.set_ms, now_ms),
                    users(secret),
                ]
            };
            let empty = "no secrets; `muster secret set NAME` sets one";
            session.printer.list(&secrets, &["SECRET", "VERSION", "SET", "UNITS"], row, empty)
        }
        SecretVerb::Show(which) => {
            let detail = detail(session, &which).await?;
            let now_ms = clock::now_ms();
            session.printer.one(&detail, || {
                let hosts = HostNames::new(detail.users.iter().map(|user| (user.host, user.hostname.as_str())));
                let user = |user: &muster_api::SecretUser| {
                    format!("{} on {} has version {}", user.unit, hosts.show(user.host, &user.hostname), user.version)
                };
                let configs = detail.configs.iter().map(|config| format!("{}@{}", config.id, config.version));
                let newest = detail.versions.first();
                vec![
                    ("secret", format!("{}/{}", which.realm, which.name)),
                    (
                        "version",
                        newest.map(|one| format!("{} ({})", one.version, one.state.words())).unwrap_or_default(),
                    ),
                    (
                        "set",
                        newest
                            .map(|one| format!("{} by {}", print::age(one.set_ms, now_ms), one.operator))
                            .unwrap_or_default(),
                    ),
                    ("named by", configs.collect::<Vec<_>>().join(", ")),
                    ("units", detail.users.iter().map(user).collect::<Vec<_>>().join("\n")),
                ]
            })
        }
        SecretVerb::History(which) => {
            let versions = detail(session, &which).await?.versions;
            let now_ms = clock::now_ms();
            let row = |one: &SecretVersion| {
                vec![
                    one.version.to_string(),
                    print::age(one.set_ms, now_ms),
                    one.operator.to_string(),
                    one.state.words().to_owned(),
                ]
            };
            session.printer.list(&versions, &["VERSION", "SET", "BY", "VALUE"], row, "")
        }
        SecretVerb::Rm(which) => {
            session.client.order(reqwest::Method::DELETE, &path(&which)).await?;
            print::say(format_args!("secret {}/{} is removed", which.realm, which.name));
            Ok(())
        }
        SecretVerb::RotateKey => {
            let rotation: KeyRotation = session.client.post("secrets/rotate-key", &()).await?;
            if rotation.unreadable > 0 {
                print::say(format_args!(
                    "{} cannot be read, because the key that they were encrypted with is lost; \
                     `muster secret ls` shows which to set again",
                    counted(rotation.unreadable, "value")
                ));
            }
            session.printer.one(&rotation, || {
                vec![("key", rotation.key.to_string()), ("values encrypted again", rotation.encrypted.to_string())]
            })
        }
    }
}

async fn set(wanted: SetArgs, session: &CliSession) -> Result<(), Failure> {
    let SetArgs { secret: SecretName { name, realm }, file, exact, store_only, yes, wait } = wanted;
    let value = match &file {
        Some(file) => read(std::fs::File::open(file).map_err(|error| Failure::of_file(file, &error))?, file)?,
        None if stdin().is_terminal() => ask(&realm, &name)?,
        None => read(stdin().lock(), Path::new("standard input"))?,
    };
    // Also without a newline at its end, it would be too long.
    if value.len() > SECRET_MAX_BYTES + 2 {
        let message = format!("the value is longer than {SECRET_MAX_BYTES} bytes");
        return Err(Failure::new(FailureKind::Usage, message)
            .hint("keep the key to a large file here, and the encrypted file as an artifact"));
    }
    let mut value = String::from_utf8(value).map_err(|_| {
        Failure::new(FailureKind::Usage, "the value is not text in UTF-8")
            .hint("encode it first, such as with `base64`")
    })?;
    if !exact && value.ends_with('\n') {
        value.pop();
        if value.ends_with('\r') {
            value.pop();
        }
    }
    let is_short = value.len() < MASKED_MIN_BYTES;
    let SecretSet { secret, changed } = session.client.post("secrets", &NewSecret { realm, name, value }).await?;
    let at = format!("secret {}/{} has version {}", secret.realm, secret.name, secret.version);
    print::say(format_args!("{at}{}", if changed { "" } else { ", which has this value already" }));
    if is_short {
        let cause = format!(
            "warning: the value has fewer than {MASKED_MIN_BYTES} bytes, so it is masked in what units say only where it is a word of \
             its own"
        );
        print::say(format_args!("{:#}", Diagnostic::new(cause).with_hint("take a longer one")));
    }
    if store_only || secret.behind == 0 {
        if secret.behind > 0 {
            print::say(format_args!("{}; `muster unit upgrade` gives it to them", users(&secret)));
        }
        // As with the units that are changed otherwise.
        return session.printer.data::<()>(&[]);
    }
    upgrade::with_secret(session, &secret, yes, wait).await
}

/// Says how many units use a secret, and how many have an earlier version.
fn users(secret: &Secret) -> String {
    let units = counted(secret.units, "unit");
    match (secret.readable, secret.behind) {
        (false, _) => format!("{units}; unreadable: set it again"),
        (true, 0) => units,
        (true, behind) => format!("{units}, {behind} with an earlier version"),
    }
}

async fn detail(session: &CliSession, which: &SecretName) -> Result<SecretDetail, Failure> {
    session.client.get(&path(which), &[]).await
}

fn path(which: &SecretName) -> String {
    format!("secrets/{}/{}", which.realm, which.name)
}

/// Reads a value, and no more than one may have.
fn read(from: impl Read, name: &Path) -> Result<Vec<u8>, Failure> {
    let mut value = Vec::new();
    // A newline that is removed, and one byte to see that there is more.
    let most = u64::try_from(SECRET_MAX_BYTES + 3).unwrap_or(u64::MAX);
    from.take(most).read_to_end(&mut value).trying(name.display())?;
    Ok(value)
}

/// Asks for a value at the terminal, without showing it.
fn ask(realm: &Name, name: &Name) -> Result<Vec<u8>, Failure> {
    let _silent = SilentTerminal::begin().trying("the terminal")?;
    terminal::err(&format!("value of {realm}/{name} (one line, not shown; --file takes more): "));
    let mut line = Vec::new();
    let most = u64::try_from(SECRET_MAX_BYTES + 3).unwrap_or(u64::MAX);
    stdin().lock().take(most).read_until(b'\n', &mut line).trying("the terminal")?;
    terminal::err("\n");
    Ok(line)
}
