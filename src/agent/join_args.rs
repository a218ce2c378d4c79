//! Reads the one-time join token from a file, standard input or an argument (which every user of the host can see in the process list).

use std::{
    fs::File,
    io::{self, Read as _},
    path::PathBuf,
};

use clap::Args;
use muster_base::failure::{Failure, FailureContext as _, FailureKind};
use muster_topics::join::JoinToken;

/// The longest text that is read; a token has some 250 bytes.
const TOKEN_MAX_BYTES: u64 = 16 * 1024;

/// Where the token comes from.
#[derive(Args, Clone, Debug, Default)]
pub struct JoinArgs {
    /// One-time token to join a fleet; `-` reads it from standard input
    ///
    /// It is needed once: afterwards the agent has a certificate.
    #[arg(long, value_name = "TOKEN", env = "MUSTER_JOIN", hide_env_values = true)]
    join: Option<String>,
    /// File with the token, so that no list of processes shows it
    #[arg(long, value_name = "FILE")]
    join_file: Option<PathBuf>,
}

impl JoinArgs {
    /// Returns the token, if one is given.
    ///
    /// # Errors
    /// If it cannot be read or parsed.
    pub fn token(&self) -> Result<Option<JoinToken>, Failure> {
        let (what, text) = match (&self.join, &self.join_file) {
            (_, Some(path)) => {
                let what = format!("--join-file {}", path.display());
                let file = File::open(path).trying(&what)?;
                let text = read(file).trying(&what)?;
                (what, text)
            }
            (Some(token), None) if token == "-" => {
                ("--join -".to_owned(), read(io::stdin().lock()).trying("--join -")?)
            }
            (Some(token), None) => ("--join".to_owned(), token.clone()),
            (None, None) => return Ok(None),
        };
        text.parse().map(Some).map_err(|error| Failure::new(FailureKind::Usage, format!("{what}: {error}")))
    }
}

fn read(from: impl io::Read) -> io::Result<String> {
    let mut text = String::new();
    from.take(TOKEN_MAX_BYTES).read_to_string(&mut text)?;
    Ok(text)
}
