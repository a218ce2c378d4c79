//! The environment of a program, from options and files.

use muster_topics::diagnostic::Diagnostic;
use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, Read},
    path::{Path, PathBuf},
};

use clap::Args;
use muster_base::{
    failure::{Failure, FailureKind},
    files,
};

/// The largest file of variables: more than a command can carry.
const FILE_MAX_BYTES: u64 = 256 * 1024;

/// Options for variables of an environment.
#[derive(Args, Clone, Debug, Default)]
pub struct EnvironmentArgs {
    /// Environment variable; repeatable
    ///
    /// Everybody on this machine can see the options of its programs: secrets belong into --env-file.
    #[arg(long = "env", value_name = "K=V", value_parser = parse_variable)]
    pub env: Vec<(String, String)>,
    /// File with a variable K=V in each line; repeatable
    ///
    /// `-` is the standard input. Empty lines, and those that begin with `#`, are left out. A value is taken as it stands.
    /// --env goes before a file, and a later file before an earlier one.
    #[arg(long = "env-file", value_name = "FILE")]
    pub env_files: Vec<PathBuf>,
}

impl EnvironmentArgs {
    /// Reads the files, and returns all variables.
    ///
    /// # Errors
    /// If a file cannot be read, or has something else in it.
    pub fn variables(&self) -> Result<BTreeMap<String, String>, Failure> {
        let mut all = BTreeMap::new();
        for path in &self.env_files {
            all.extend(read(path)?);
        }
        all.extend(self.env.iter().cloned());
        Ok(all)
    }
}

/// Parses `K=V`, as in an environment.
///
/// # Errors
/// If it does not have that form.
pub fn parse_variable(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("expected NAME=VALUE".to_owned()),
    }
}

fn read(path: &Path) -> Result<Vec<(String, String)>, Failure> {
    let failed =
        |message: String| Failure::new(FailureKind::Usage, format!("--env-file {}: {message}", path.display()));
    let source: Box<dyn Read> = match path.to_str() {
        Some("-") => Box::new(io::stdin().lock()),
        _ => Box::new(File::open(path).map_err(|error| failed(error.to_string()))?),
    };
    let mut bytes = Vec::new();
    source.take(FILE_MAX_BYTES + 1).read_to_end(&mut bytes).map_err(|error| failed(error.to_string()))?;
    if bytes.len() as u64 > FILE_MAX_BYTES {
        return Err(failed(format!("it has more than {FILE_MAX_BYTES} bytes")).hint("put what is large into a config"));
    }
    let text = files::text(bytes).map_err(|error| {
        let told = Diagnostic::of_error(&error).within(format_args!("--env-file {}", path.display()));
        Failure::told(FailureKind::Usage, told)
    })?;
    parse(&text).map_err(|line| {
        failed(format!("line {line} is not a variable"))
            .hint("write K=V in each line; lines that begin with # are ignored")
    })
}

/// Parses the lines of a file; the error is the number of a line that is no variable, whose text may be a secret.
fn parse(text: &str) -> Result<Vec<(String, String)>, usize> {
    let lines = (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty() && !line.starts_with('#'));
    lines.map(|(number, line)| parse_variable(line).map_err(|_| number)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_and_options_make_one_environment() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, text).unwrap();
            path
        };
        let first = file("first", "\u{feff}# of the shop\r\nTOKEN=a=b \"c\" \r\n\r\nSTAGE=one\r\nEMPTY=\r\n");
        let later = file("later", "STAGE=two\nZONE=two");
        let args = EnvironmentArgs {
            env: vec![("ZONE".to_owned(), "three".to_owned())],
            env_files: vec![first.clone(), later],
        };
        let wanted = [("EMPTY", ""), ("STAGE", "two"), ("TOKEN", "a=b \"c\" "), ("ZONE", "three")];
        let found = args.variables().unwrap();
        assert_eq!(found.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect::<Vec<_>>(), wanted);
        for (path, words) in [
            (file("wrong", "A=1\nhunter2\n"), "line 2 is not a variable"),
            (file("nameless", "=hunter2"), "line 1 is not a variable"),
            (file("large", &"#hunter2\n".repeat(40_000)), "more than 262144 bytes"),
            (folder.path().join("none"), "none"),
        ] {
            let failure = EnvironmentArgs { env_files: vec![first.clone(), path], ..EnvironmentArgs::default() };
            let failure = failure.variables().unwrap_err();
            let said = failure.lines();
            assert!(failure.kind == FailureKind::Usage && said.contains(words) && !said.contains("hunter2"), "{said}");
        }
    }

    #[test]
    fn variable_options_parse() {
        assert_eq!(parse_variable("A=b=c"), Ok(("A".to_owned(), "b=c".to_owned())));
        assert!(parse_variable("A").is_err() && parse_variable("=b").is_err());
    }
}
