//! `muster backup`: encrypted copies of a console. Making one asks the console; checking and restoring one needs a file and a
//! key, and no console.

use std::{
    io::{Read as _, Write as _},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use clap::{Args, Subcommand};
use muster_api::{BACKUP_BYTES_HEADER, Backups};
use muster_backup::{
    BackupError,
    archive::{Manifest, SUFFIX, Sums},
    key::PrivateKey,
    restore::{self, RestoreRequest, Restored},
};
use muster_base::{
    clock,
    failure::{Failure, FailureKind},
    files, terminal,
};
use muster_topics::{Millis, diagnostic::Diagnostic, name::Digest, size};
use serde::Serialize;

use super::{
    print::{self, Printer},
    session::CliSession,
};

/// The longest file of private keys that is read.
const IDENTITY_MAX_BYTES: u64 = 1 << 20;
/// The least time between two lines of progress.
const PROGRESS_PERIOD: Duration = Duration::from_millis(200);
/// Suffix of a file that is not complete.
const PART: &str = ".part";

/// Verbs on backups.
#[derive(Subcommand, Clone, Debug)]
pub enum BackupVerb {
    /// Create a pair of keys for backups
    ///
    /// The public key goes into the console's configuration. The private key opens every backup: keep it on another
    /// machine, or on paper. Without it backups are worth nothing.
    CreateKey(CreateKeyArgs),
    /// Create a backup of the console, as a file here
    ///
    /// The console goes on meanwhile. It encrypts to the public keys of its configuration.
    Create(CreateArgs),
    /// Check that a backup is whole, and show what is in it
    ///
    /// Needs no console.
    Verify(VerifyArgs),
    /// Restore a backup into the folder of a console
    ///
    /// Needs no console; one that uses the folder has to be stopped first.
    Restore(RestoreArgs),
    /// List the last backups, and how they are made
    Ls,
}

/// Make keys.
#[derive(Args, Clone, Debug)]
pub struct CreateKeyArgs {
    /// File to write [default: print it, once]
    ///
    /// It gets the private key.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

/// Make a backup.
#[derive(Args, Clone, Debug)]
#[command(
    after_long_help = "Always in it: the authority with its keys, the register of members and revocations, and console.db (hosts, \
                    commands, units, configs, labels, alerts, operators), with the console's configuration to look at. \
                    A backup is a tar archive, encrypted by the format of age; without muster it opens with:\n\
                    \x20 age -d -i key.txt FILE | tar x"
)]
pub struct CreateArgs {
    /// File to write [default: a name with fleet and time, in this folder]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Include artifacts: the programs that units run
    ///
    /// Without them they have to be created again before a unit can be started anew.
    #[arg(long)]
    artifacts: bool,
    /// Include measurements
    #[arg(long)]
    series: bool,
}

/// Check a backup.
#[derive(Args, Clone, Debug)]
pub struct VerifyArgs {
    /// Backup
    file: PathBuf,
    /// File with the private key; `-` reads standard input
    #[arg(long, value_name = "FILE")]
    identity: PathBuf,
}

/// Restore a backup.
#[derive(Args, Clone, Debug)]
#[command(
    after_long_help = "The backup is written to a folder beside and checked whole, and then takes the place of the folder in one \
                    step. A restore that was interrupted is repeated with the same command. What was in the folder is \
                    kept under the name FOLDER.replaced-TIME.\n\n\
                    The console notices at its next start that it was restored, and raises the alert console-restored. With \
                    --replace it takes from the folder that was there who was revoked or removed since the backup. \
                    Hosts come back by themselves, and tell how they and their units are."
)]
pub struct RestoreArgs {
    /// Backup
    file: PathBuf,
    /// Data folder
    ///
    /// That of the console; of `muster up`, the folder `console` in its data folder.
    #[arg(long, value_name = "DIR")]
    data_dir: PathBuf,
    /// File with the private key; `-` reads standard input
    #[arg(long, value_name = "FILE")]
    identity: PathBuf,
    /// Replace what is there
    ///
    /// That is a folder with data of the same fleet; it is kept under another name.
    #[arg(long)]
    replace: bool,
}

/// Runs a verb that needs no console; gives others back.
///
/// # Errors
/// If it fails.
pub async fn run_alone(verb: BackupVerb, printer: Printer) -> Result<Option<BackupVerb>, Failure> {
    match verb {
        BackupVerb::CreateKey(wanted) => make_key(&wanted, printer)?,
        BackupVerb::Verify(wanted) => verify(wanted, printer).await?,
        BackupVerb::Restore(wanted) => restore(wanted, printer).await?,
        other => return Ok(Some(other)),
    }
    Ok(None)
}

/// Runs a verb that asks the console.
///
/// # Errors
/// If it fails.
pub async fn run(verb: BackupVerb, session: &CliSession) -> Result<(), Failure> {
    match verb {
        BackupVerb::Create(wanted) => create(&wanted, session).await,
        BackupVerb::Ls => list(session).await,
        BackupVerb::CreateKey(_) | BackupVerb::Verify(_) | BackupVerb::Restore(_) => Ok(()),
    }
}

/// Whether an error of a file comes from its path, rather than from the disk.
fn is_wrong_path(kind: std::io::ErrorKind) -> bool {
    use std::io::ErrorKind::{IsADirectory, NotADirectory, NotFound, PermissionDenied};
    matches!(kind, IsADirectory | NotADirectory | NotFound | PermissionDenied)
}

fn failure(error: &BackupError) -> Failure {
    let kind = match error {
        // The file or the folder that an argument names.
        BackupError::File { source, .. } if is_wrong_path(source.kind()) => FailureKind::Usage,
        BackupError::NotABackup(_) => FailureKind::Usage,
        BackupError::Key { .. } | BackupError::NoKey | BackupError::NotEmpty { .. } | BackupError::Target { .. } => {
            FailureKind::Usage
        }
        _ => FailureKind::Failed,
    };
    Failure::told(kind, error.diagnostic())
}

/// A new pair of keys.
#[derive(Serialize)]
struct KeyPair {
    public_key: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    private_key: Option<String>,
}

fn make_key(wanted: &CreateKeyArgs, printer: Printer) -> Result<(), Failure> {
    let key = PrivateKey::generate().map_err(|error| failure(&error))?;
    let public_key = key.public().to_string();
    let file = format!("# public key: {public_key}\n{}\n", key.to_text());
    let line = format!("[backup]\nrecipients = [\"{public_key}\"]");
    match &wanted.out {
        Some(path) => {
            write_new(path, file.as_bytes()).map_err(|error| Failure::of_file(path, &error))?;
            printer.line(&KeyPair { public_key, private_key: None }, &line)?;
            print::say(format_args!(
                "the lines above are for the console's configuration; the private key is in {}: move it to another machine",
                path.display()
            ));
        }
        None => {
            let pair = KeyPair { public_key, private_key: Some(key.to_text()) };
            printer.line(&pair, file.trim_end())?;
            print::say(format_args!(
                "keep the private key on another machine; it is not shown again. For the console's configuration:\n{line}"
            ));
        }
    }
    Ok(())
}

/// Writes a file that must not exist.
fn write_new(path: &Path, content: &[u8]) -> std::io::Result<()> {
    let mut file = new_file(path)?;
    file.write_all(content)?;
    file.sync_all()
}

fn new_file(path: &Path) -> std::io::Result<std::fs::File> {
    use std::os::unix::fs::OpenOptionsExt as _;
    std::fs::OpenOptions::new().write(true).create_new(true).mode(files::SECRET_MODE).open(path)
}

/// Reads the private keys of a file, or of standard input.
fn read_identity(path: &Path) -> Result<Vec<PrivateKey>, Failure> {
    let mut bytes = Vec::new();
    let read = if path == Path::new("-") {
        std::io::stdin().lock().take(IDENTITY_MAX_BYTES).read_to_end(&mut bytes)
    } else {
        std::fs::File::open(path).and_then(|file| file.take(IDENTITY_MAX_BYTES).read_to_end(&mut bytes))
    };
    let unreadable = |error: std::io::Error| Failure::of_file(path, &error);
    read.map_err(unreadable)?;
    let text = files::text(bytes).map_err(unreadable)?;
    PrivateKey::all_of(&text).map_err(|error| failure(&error))
}

/// Shows how far something is, now and then.
struct ProgressLine {
    what: &'static str,
    shown: Option<Instant>,
}

impl ProgressLine {
    fn new(what: &'static str) -> Self {
        Self { what, shown: None }
    }

    fn show(&mut self, bytes: u64, of_bytes: u64) {
        if self.shown.is_some_and(|shown| shown.elapsed() < PROGRESS_PERIOD) {
            return;
        }
        self.shown = Some(Instant::now());
        let percent = bytes.saturating_mul(100).checked_div(of_bytes).unwrap_or(100).min(100);
        terminal::progress(&format!(
            "{}: {} of {} ({percent} %)  ",
            self.what,
            size::print(bytes),
            size::print(of_bytes)
        ));
    }

    /// Removes the line.
    fn end(&self) {
        terminal::progress(&format!("{:60}", ""));
        terminal::progress("");
    }
}

/// A backup that was written here.
#[derive(Serialize)]
struct CreatedBackup {
    file: PathBuf,
    bytes: u64,
}

async fn create(wanted: &CreateArgs, session: &CliSession) -> Result<(), Failure> {
    let query = [("artifacts", wanted.artifacts), ("series", wanted.series)];
    let query = query.map(|(name, wanted)| (name, wanted.to_string()));
    if let Some(path) = &wanted.out {
        refuse_existing(path)?;
    }
    let response = session.client.download("backups/new", &query).await?;
    let all_bytes = header(&response, BACKUP_BYTES_HEADER).and_then(|text| text.parse().ok()).unwrap_or(0);
    let path = match &wanted.out {
        Some(path) => path.clone(),
        None => given_name(header(&response, "content-disposition").unwrap_or_default())?,
    };
    refuse_existing(&path)?;
    let part = with_suffix(&path, PART);
    let unwritable = |error: std::io::Error| Failure::of_file(&path, &error);
    let _ = std::fs::remove_file(&part);
    let mut file = new_file(&part).map_err(unwritable)?;
    let full =
        |error: std::io::Error| Failure::told(FailureKind::Failed, Diagnostic::of_error(&error).within(path.display()));
    let (mut bytes, mut progress) = (0_u64, ProgressLine::new("backup"));
    let taken = session
        .client
        .take(response, |piece| {
            bytes += piece.len() as u64;
            progress.show(bytes, all_bytes.max(bytes));
            file.write_all(piece).map_err(full)
        })
        .await;
    progress.end();
    let kept = taken.and_then(|()| file.sync_all().and_then(|()| std::fs::rename(&part, &path)).map_err(full));
    if let Err(failure) = kept {
        let _ = std::fs::remove_file(&part);
        return Err(failure.consequence("no backup"));
    }
    let text = format!("{}", path.display());
    session.printer.line(&CreatedBackup { file: path, bytes }, &text)?;
    print::say(format_args!(
        "{} are written; `muster backup verify` checks them with the private key",
        size::print(bytes)
    ));
    Ok(())
}

fn refuse_existing(path: &Path) -> Result<(), Failure> {
    match path.symlink_metadata() {
        Ok(_) => Err(Failure::new(FailureKind::Usage, format!("{} exists already", path.display()))
            .hint("name another file, or leave out --out for a name with the time")),
        Err(_) => Ok(()),
    }
}

fn header<'a>(response: &'a reqwest::Response, name: &str) -> Option<&'a str> {
    response.headers().get(name).and_then(|value| value.to_str().ok())
}

/// The file name that the console gives: a plain one.
fn given_name(disposition: &str) -> Result<PathBuf, Failure> {
    let name = disposition.split("filename=\"").nth(1).and_then(|rest| rest.split('"').next()).unwrap_or_default();
    let is_plain = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.'));
    if !is_plain || name.starts_with('.') || !name.ends_with(SUFFIX) {
        return Err(Failure::new(FailureKind::Failed, "the console sent no name for the file")
            .hint("name a file: `muster backup create --out FILE`"));
    }
    Ok(PathBuf::from(name))
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

async fn list(session: &CliSession) -> Result<(), Failure> {
    let backups: Backups = session.client.get("backups", &[]).await?;
    let now_ms = clock::now_ms();
    if session.printer.is_for_programs() {
        return session.printer.one(&backups, Vec::new);
    }
    let row = |backup: &muster_api::Backup| {
        let place = match (&backup.path, &backup.operator) {
            (Some(path), _) => path.clone(),
            (None, Some(operator)) => format!("given to {operator}"),
            (None, None) => "removed".to_owned(),
        };
        vec![print::age(backup.taken_ms, now_ms), size::print(backup.bytes), backup.contents(), place]
    };
    let empty = "no backups; `muster backup create` creates one";
    session.printer.list(&backups.backups, &["CREATED", "SIZE", "CONTENT", "FILE"], row, empty)?;
    if let Some(failed) = &backups.failed {
        let age = print::age(failed.at_ms, now_ms);
        print::say(format_args!("the last attempt failed {age}: {:#}", failed.diagnostic));
    }
    let Backups { recipients, every_hours, keep, dir, .. } = &backups;
    match (recipients.len(), every_hours) {
        (0, _) => {
            print::say(
                "no public key is configured, so no backups are made; `muster backup create-key` creates a pair",
            );
        }
        (_, 0) => print::say("no automatic backups: every_hours is 0"),
        (_, hours) => print::say(format_args!("one every {hours} hours, of which {keep} are kept in {dir}")),
    }
    Ok(())
}

/// What is in a file.
#[derive(Serialize)]
struct DescribedBackup<'a> {
    fleet: &'a Digest,
    console: &'a str,
    muster: &'a str,
    taken_ms: Millis,
    parts: &'a [muster_backup::archive::Part],
    #[serde(skip_serializing_if = "Option::is_none")]
    files: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    folder: Option<&'a Path>,
    #[serde(skip_serializing_if = "Option::is_none")]
    replaced: Option<&'a Path>,
}

impl<'a> DescribedBackup<'a> {
    fn of(manifest: &'a Manifest, sums: Option<&Sums>) -> Self {
        let Manifest { muster, fleet, console, taken_ms, parts, .. } = manifest;
        let files = sums.map(|sums| sums.files.len());
        Self { fleet, console, muster, taken_ms: *taken_ms, parts, files, folder: None, replaced: None }
    }

    fn lines(&self, printer: Printer) -> Vec<(&'static str, String)> {
        let part = |part: &muster_backup::archive::Part| match part.files {
            1 => format!("{} ({})", part.name, size::print(part.bytes)),
            files => format!("{} ({files} files, {})", part.name, size::print(part.bytes)),
        };
        let mut lines = vec![
            ("fleet", self.fleet.to_string()),
            ("console", self.console.to_owned()),
            ("created", format!("{} ({})", printer.time(self.taken_ms), print::age(self.taken_ms, clock::now_ms()))),
            ("by muster", self.muster.to_owned()),
            ("content", self.parts.iter().map(part).collect::<Vec<_>>().join(", ")),
        ];
        lines.extend(self.folder.map(|folder| ("folder", folder.display().to_string())));
        lines.extend(self.replaced.map(|folder| ("replaced", folder.display().to_string())));
        lines
    }
}

async fn verify(wanted: VerifyArgs, printer: Printer) -> Result<(), Failure> {
    let keys = read_identity(&wanted.identity)?;
    let (manifest, sums) = in_background(move || {
        let mut progress = ProgressLine::new("checked");
        let checked = restore::verify(&wanted.file, &keys, &mut |bytes, of_bytes| progress.show(bytes, of_bytes));
        progress.end();
        checked
    })
    .await?;
    let described = DescribedBackup::of(&manifest, Some(&sums));
    printer.one(&described, || described.lines(printer))?;
    print::say("the backup is whole");
    Ok(())
}

async fn restore(wanted: RestoreArgs, printer: Printer) -> Result<(), Failure> {
    let folder = wanted.data_dir.clone();
    // Easily confused: the console's folder is in it.
    if folder.join("console/authority").is_dir() && !folder.join("authority").exists() {
        let message = format!("{} is the folder of `muster up`, which contains the console's folder", folder.display());
        return Err(Failure::new(FailureKind::Usage, message)
            .hint(format!("pass --data-dir {}", folder.join("console").display())));
    }
    let keys = read_identity(&wanted.identity)?;
    let restored = in_background(move || {
        let RestoreArgs { file, data_dir, replace, .. } = &wanted;
        let request = RestoreRequest { file, keys: &keys, folder: data_dir, replace: *replace, now: clock::now_ms() };
        let mut progress = ProgressLine::new("restored");
        let restored = restore::restore(&request, &mut |bytes, of_bytes| progress.show(bytes, of_bytes));
        progress.end();
        restored
    })
    .await?;
    let Restored { manifest, sums, was_interrupted, aside, merges_register } = &restored;
    let mut described = DescribedBackup::of(manifest, sums.as_ref());
    described.folder = Some(&folder);
    described.replaced = aside.as_deref();
    printer.one(&described, || described.lines(printer))?;
    match sums {
        Some(_) => {}
        None if *was_interrupted => print::say("an interrupted restore of this backup is finished"),
        None => print::say("the folder has this backup already; nothing was changed"),
    }
    print::say(match merges_register {
        true => {
            "start the console: it takes over who was revoked in the folder that was replaced, and hosts come back by themselves"
        }
        false => {
            "start the console: hosts connect again by themselves. Revocations since the backup are not known: repeat them"
        }
    });
    Ok(())
}

/// Runs work on files in a thread of its own, so that an interrupt ends the verb.
async fn in_background<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, BackupError> + Send + 'static,
) -> Result<T, Failure> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done.map_err(|error| failure(&error)),
        Err(error) => Err(Failure::new(FailureKind::Failed, error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_from_the_console_is_a_plain_one() {
        let name = |name: &str| given_name(&format!("attachment; filename=\"{name}\"")).ok();
        assert_eq!(name("muster-a-1.tar.age"), Some(PathBuf::from("muster-a-1.tar.age")));
        for bad in ["../x.tar.age", "/etc/x.tar.age", ".tar.age", "x.sh", "", "a b.tar.age"] {
            assert_eq!(name(bad), None, "{bad}");
        }
        assert!(given_name("inline").is_err());
    }
}
