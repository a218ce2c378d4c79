//! `muster ycommand -c '…'`: Yuneta's verbs and selectors, for people and scripts that know them. Also available as the
//! program `ycommand`.
//!
//! Modules, in reading order: [`mod@line`] (the parser), [`verbs`] (the table of verbs), [`translate`] (translates one
//! to lines of muster's own, pure).
//!
//! **Invariant: everything done here could be typed as `muster` commands.** Each line is translated, shown, and
//! then executed as if it had been typed.

mod line;
mod translate;
mod verbs;

use std::{
    fs::File,
    io::{self, Read},
    path::Path,
};

use clap::{Args, Parser};
use muster_api::{Artifact, Realm};
use muster_base::failure::{Failure, FailureContext as _, FailureKind};
use muster_topics::{manifest::Manifest, name::Digest};

use self::{
    line::{ParameterValue, YunetaLine},
    translate::{FileFacts, TranslationContext},
    verbs::{HelpEntry, Translation, VERBS},
};
use super::{Verb, perform_one, print, session::CliSession, snapshot};

/// Size of the pieces in which a file is read, so that it need not be in memory.
const PIECE_BYTES: usize = 256 * 1024;

/// Number of characters of a hash that form a version: short to read, and unlikely to occur twice.
const VERSION_HASH_CHARS: usize = 12;

/// Run commands that are written in Yuneta's syntax
#[derive(Args, Clone, Debug)]
#[command(after_long_help = long_help())]
pub struct YCommand {
    /// Verb and parameters; repeatable
    #[arg(short, long = "command", value_name = "LINE", required = true)]
    command: Vec<String>,
    /// Show the muster commands that it stands for
    #[arg(long)]
    dry_run: bool,
}

/// What `--help` says before the table of verbs.
const NOTES: &str = "\
`help` lists all verbs. Yunos are selected by id, realm_id, yuno_role, yuno_name, yuno_release, yuno_tag and app \
(app=1: all but those that are tagged `util`); without any, all of them. An id is REALM/NAME, as `list-yunos` shows \
it. `$$(FILE)` stands for the content of a file. Each muster command that a line stands for is shown. A link to this \
program named `ycommand` does the same.";

fn long_help() -> String {
    let of = |entry: HelpEntry| format!("  {} {}\n      {}\n", entry.verb, entry.parameters.join(" "), entry.says);
    let (done, others): (Vec<HelpEntry>, Vec<HelpEntry>) =
        VERBS.iter().map(|verb| verb.entry()).partition(|entry| entry.is_done);
    let text = |entries: Vec<HelpEntry>| entries.into_iter().map(of).collect::<String>();
    format!("{NOTES}\n\nVerbs:\n{}\nVerbs in whose place there is something else:\n{}", text(done), text(others))
}

/// A line of muster's own, as it is typed.
#[derive(Parser, Debug)]
#[command(name = "muster", no_binary_name = true)]
struct MusterLineArgs {
    #[command(subcommand)]
    verb: Verb,
}

/// Runs the lines one after the other, until one fails. Each may print a document, and so may each line that it is
/// translated to.
///
/// # Errors
/// If one is invalid or fails.
pub async fn run(wanted: YCommand, session: &CliSession) -> Result<(), Failure> {
    let session = &CliSession { printer: session.printer.in_lines(), ..session.clone() };
    for text in &wanted.command {
        let line = YunetaLine::parse(text).map_err(|why| {
            Failure::new(FailureKind::Usage, format!("{text:?}: {why}"))
                .hint("a verb, then KEY=VALUE …, all in single quotes")
        })?;
        let line = translate::unwrap(line)?;
        if matches!(translate::check(&line)?.does, Translation::Help) {
            help(&line, session)?;
            continue;
        }
        for (key, why) in translate::ignored(&line) {
            print::say(format_args!("{}: {key} changes nothing: {why}", line.verb));
        }
        let world = look(&line, session).await?;
        for words in translate::translate(&line, &world)? {
            print::say(format_args!("= muster {}", shown(&words)));
            if wanted.dry_run {
                continue;
            }
            let own = MusterLineArgs::try_parse_from(&words)
                .map_err(|error| Failure::new(FailureKind::Usage, format!("{}: {}", line.verb, first_line(&error))))?;
            // A line is never translated to a line like this one.
            Box::pin(perform_one(own.verb, session)).await?;
        }
    }
    Ok(())
}

/// Prints the table of verbs, or the entry of one.
fn help(line: &YunetaLine, session: &CliSession) -> Result<(), Failure> {
    let name = line.text("cmd").map_err(|why| Failure::new(FailureKind::Usage, why))?;
    let found: Vec<HelpEntry> =
        VERBS.iter().filter(|verb| name.is_none_or(|name| verb.name == name)).map(|verb| verb.entry()).collect();
    if found.is_empty() {
        // With the same message as for an unknown verb.
        let line = YunetaLine { verb: name.unwrap_or_default().to_owned(), ..YunetaLine::default() };
        return translate::check(&line).map(|_| ());
    }
    let row = |entry: &HelpEntry| vec![entry.verb.to_owned(), entry.says.to_owned(), entry.parameters.join(" ")];
    session.printer.list(&found, &["VERB", "DOES, OR WHAT TAKES ITS PLACE", "PARAMETERS"], row, "no verbs")
}

/// Reads what the translation of a line needs.
async fn look(line: &YunetaLine, session: &CliSession) -> Result<TranslationContext, Failure> {
    if matches!(translate::check(line)?.does, Translation::Nothing) {
        return Ok(TranslationContext::default());
    }
    let mut world = TranslationContext {
        units: session.client.get("units", &[]).await?,
        configs: session.client.get("configs", &[]).await?,
        ..TranslationContext::default()
    };
    if line.verb == "create-yuno" {
        let realms: Vec<Realm> = session.client.get("realms", &[]).await?;
        let artifacts: Vec<Artifact> = session.client.get("artifacts", &[]).await?;
        world.realms = realms.iter().map(|realm| realm.realm.name.to_string()).collect();
        world.artifacts = artifacts.iter().map(|artifact| format!("{}@{}", artifact.role, artifact.version)).collect();
    }
    if line.verb == "deactivate-snap" && !line.parameters.contains_key("name") {
        let host = line.text("host").map_err(|why| Failure::new(FailureKind::Usage, why))?;
        world.active = snapshot::active(session, host.filter(|host| *host != "*"), host == Some("*")).await?;
    }
    if let Some(ParameterValue::File(path)) = line.parameters.get("content64") {
        world.file = Some(facts(Path::new(path)).trying(format_args!("the file {path}"))?);
    }
    Ok(world)
}

fn facts(path: &Path) -> io::Result<FileFacts> {
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let digest = digest(File::open(path)?)?;
    let beside = path.with_file_name(format!("{name}.manifest.json"));
    let manifest = match muster_base::files::read_text(&beside) {
        Ok(text) => serde_json::from_str(&text)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => Manifest::default(),
        Err(error) => return Err(error),
    };
    let text = |value: &dyn ToString| value.to_string();
    Ok(FileFacts {
        name,
        hash: digest.as_str().chars().take(VERSION_HASH_CHARS).collect(),
        manifest: (manifest.role.map(|role| text(&role)), manifest.version.map(|version| text(&version))),
    })
}

fn digest(mut file: File) -> io::Result<Digest> {
    let mut context = ring::digest::Context::new(&ring::digest::SHA256);
    let mut piece = vec![0; PIECE_BYTES];
    loop {
        match file.read(&mut piece)? {
            0 => return Ok(Digest::from_ring(context.finish())),
            length => context.update(&piece[..length]),
        }
    }
}

/// A line as a shell would accept it.
fn shown(words: &[String]) -> String {
    let plain =
        |word: &String| !word.is_empty() && word.chars().all(|c| c.is_ascii_alphanumeric() || "/@:._=+-".contains(c));
    let quoted = |word: &String| if plain(word) { word.clone() } else { format!("'{}'", word.replace('\'', "'\\''")) };
    words.iter().map(quoted).collect::<Vec<_>>().join(" ")
}

fn first_line(error: &clap::Error) -> String {
    let text = error.to_string();
    text.lines().next().unwrap_or_default().trim_start_matches("error: ").to_owned()
}
