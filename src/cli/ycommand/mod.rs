//! `muster ycommand -c '…'`: Yuneta's verbs and selectors, for hands and scripts that know them. The same by the
//! program's other name, `ycommand`.
//!
//! Modules, in reading order: [`line`] (what was typed), [`translate`] (which lines of muster's own that is, pure).
//!
//! **Invariant: nothing is done here that `muster` could not be told as well.** Each line is translated, shown, and
//! then done as if it had been typed.

mod line;
mod translate;

use std::{
    fs::File,
    io::{self, Read},
    path::Path,
};

use clap::{Args, Parser};
use muster_topics::{manifest::Manifest, name::Digest};

use self::{
    line::{Line, Value},
    translate::{FileFacts, VERBS, World},
};
use super::{Session, Verb, perform_one, print};
use crate::failure::{Context as _, Failure, Kind};

/// Pieces in which a file is read: a gigabyte need not be in memory.
const PIECE_BYTES: usize = 256 * 1024;

/// How much of a hash makes a version: short enough to be read, long enough not to be met twice.
const VERSION_HASH_CHARS: usize = 12;

/// Do what a line in Yuneta's manner says
#[derive(Args, Clone, Debug)]
#[command(
    after_help = "Examples:\n  muster ycommand -c 'install-binary content64=$$(my_role)'\n  \
                        muster ycommand -c 'create-yuno realm_id=shop yuno_role=my_role yuno_name=my_name'\n  \
                        muster ycommand -c 'kill-yuno yuno_role=my_role'\n\n\
                        Yunos are selected by id, realm_id, yuno_role, yuno_name, yuno_release and yuno_tag; without any, all of \
                        them. An id is REALM/NAME, as `list-yunos` shows it. `$$(FILE)` stands for what is in a file. Each line of \
                        muster's own that it comes to is shown. A link to this program named `ycommand` is the same.",
    after_long_help = long_help()
)]
pub struct YCommand {
    /// A verb and its parameters; may be given several times
    #[arg(short, long = "command", value_name = "LINE", required = true)]
    command: Vec<String>,
    /// Only show what it comes to
    #[arg(long)]
    dry_run: bool,
}

fn long_help() -> String {
    let verbs = VERBS.iter().map(|(verb, ..)| *verb).collect::<Vec<_>>().join(", ");
    format!("Verbs: {verbs}")
}

/// A line of muster's own, as it is typed.
#[derive(Parser, Debug)]
#[command(name = "muster", no_binary_name = true)]
struct Own {
    #[command(subcommand)]
    verb: Verb,
}

/// Does what the lines say, one after the other, up to the first that fails. Each may print a document, and so may each
/// that it comes to.
///
/// # Errors
/// If one cannot be understood or done.
pub async fn run(wanted: YCommand, session: &Session) -> Result<(), Failure> {
    let session = &Session { printer: session.printer.in_lines(), ..session.clone() };
    for text in &wanted.command {
        let line = Line::parse(text).map_err(|why| {
            Failure::new(Kind::Usage, format!("{text:?}: {why}")).hint("a verb, then KEY=VALUE …, all in single quotes")
        })?;
        let world = look(&line, session).await?;
        for words in translate::translate(&line, &world)? {
            print::say(format_args!("= muster {}", shown(&words)));
            if wanted.dry_run {
                continue;
            }
            let own = Own::try_parse_from(&words)
                .map_err(|error| Failure::new(Kind::Usage, format!("{}: {}", line.verb, first_line(&error))))?;
            // A line never comes to a line like this one.
            Box::pin(perform_one(own.verb, session)).await?;
        }
    }
    Ok(())
}

/// What there is to know for a line.
async fn look(line: &Line, session: &Session) -> Result<World, Failure> {
    let mut world = World {
        units: session.client.get("units", &[]).await?,
        configs: session.client.get("configs", &[]).await?,
        file: None,
    };
    if let Some(Value::File(path)) = line.parameters.get("content64") {
        world.file = Some(facts(Path::new(path)).trying(format_args!("the file {path}"))?);
    }
    Ok(world)
}

fn facts(path: &Path) -> io::Result<FileFacts> {
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let digest = digest(File::open(path)?)?;
    let beside = path.with_file_name(format!("{name}.manifest.json"));
    let manifest = match crate::files::read_text(&beside) {
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

/// A line as a shell would take it.
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
