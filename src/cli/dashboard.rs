//! `muster dashboard`: dashboards for Grafana and rules for Prometheus, as files.

use std::{
    fs,
    path::{Path, PathBuf},
};

use clap::{Args, Subcommand, ValueEnum};
use muster_base::{failure::Failure, files as disk};
use muster_dashboards::files::{self, DashboardFile, FileReader};
use muster_topics::count::counted;
use serde::Serialize;

use super::{
    print::{self, Printer},
    session::GlobalOptions,
};

/// Verbs on dashboards.
#[derive(Subcommand, Clone, Debug)]
pub enum DashboardVerb {
    /// Write dashboards for Grafana and rules for Prometheus
    ///
    /// With the data sources that Grafana needs.
    Export(ExportArgs),
}

/// Arguments of `muster dashboard export`.
#[derive(Args, Clone, Debug)]
#[command(after_long_help = "What is written:\n\
                    \x20 README.md         how to set up a Grafana with these dashboards\n\
                    \x20 promql/*.json     dashboards over muster's own store, VictoriaMetrics or Prometheus\n\
                    \x20 influxql/*.json   the same over InfluxDB 1, 2 or 3\n\
                    \x20 provisioning/     data sources, and where Grafana finds the dashboards\n\
                    \x20 rules/*.yml       recording and alerting rules for Prometheus or vmalert\n\n\
                    With Grafana on the same machine (README.md has all steps):\n\
                    \x20 cp -r /var/lib/grafana/muster/provisioning /etc/grafana/\n\
                    \x20 MUSTER_DASHBOARDS=/var/lib/grafana/muster MUSTER_URL=http://127.0.0.1:7080 MUSTER_TOKEN=… \
                    in its environment\n\n\
                    Dashboards can be imported by hand as well: each asks for its data source.")]
pub struct ExportArgs {
    /// Folder to write into
    ///
    /// It is made if it does not exist; files of the same names are replaced.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Program that it is for [default: all]
    #[arg(long, value_enum, value_name = "PROGRAM")]
    program: Option<ReaderProgram>,
    /// Query language of the dashboards [default: all]
    #[arg(long, value_enum, value_name = "LANGUAGE")]
    language: Option<LanguageArg>,
}

/// Who is to use what is written.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
enum ReaderProgram {
    /// Dashboards and their provisioning
    Grafana,
    /// Rules
    Prometheus,
}

/// The language that dashboards ask in.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
enum LanguageArg {
    /// For muster's own store, VictoriaMetrics and Prometheus
    Promql,
    /// For InfluxDB 1, 2 and 3
    Influxql,
}

impl ExportArgs {
    /// Whether a file was requested.
    fn wants(&self, file: &DashboardFile) -> bool {
        let language = self.language.map(|language| match language {
            LanguageArg::Promql => muster_dashboards::QueryLanguage::Promql,
            LanguageArg::Influxql => muster_dashboards::QueryLanguage::Influxql,
        });
        match file.reader {
            FileReader::Grafana(of) => {
                self.program != Some(ReaderProgram::Prometheus)
                    && (of.is_none() || language.is_none() || of == language)
            }
            FileReader::Prometheus => self.program != Some(ReaderProgram::Grafana),
        }
    }
}

#[derive(Serialize)]
struct WrittenFile {
    file: String,
}

/// Runs the verb, without a console.
///
/// # Errors
/// If a file cannot be written; earlier ones then exist.
pub fn run(verb: &DashboardVerb, options: &GlobalOptions) -> Result<(), Failure> {
    let DashboardVerb::Export(export) = verb;
    let mut written = Vec::new();
    for file in files::all().iter().filter(|file| export.wants(file)) {
        let path = export.out.join(&file.path);
        write(&path, &file.text)?;
        written.push(WrittenFile { file: path.display().to_string() });
    }
    print::say(format_args!(
        "wrote {} to {}; README.md there describes their use",
        counted(written.len(), "file"),
        export.out.display()
    ));
    Printer::new(options.output).list(&written, &["FILE"], |one| vec![one.file.clone()], "nothing was requested")
}

fn write(path: &Path, text: &str) -> Result<(), Failure> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).map_err(|error| Failure::of_file(folder, &error))?;
    }
    disk::write_atomically(path, text.as_bytes(), disk::PUBLIC_MODE).map_err(|error| Failure::of_file(path, &error))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        export: ExportArgs,
    }

    /// The first folders, or files, for some arguments.
    fn asked(arguments: &[&str]) -> Vec<String> {
        let line = Line::parse_from([&["export", "--out", "/tmp"], arguments].concat());
        let all = files::all();
        let wanted = all.iter().filter(|file| line.export.wants(file));
        let mut tops: Vec<String> =
            wanted.map(|file| file.path.split('/').next().unwrap_or_default().to_owned()).collect();
        tops.dedup();
        tops
    }

    #[test]
    fn selected_dashboards_are_written() {
        for (arguments, wanted) in [
            (&[][..], &["promql", "influxql", "README.md", "provisioning", "rules"][..]),
            (&["--program", "grafana"], &["promql", "influxql", "README.md", "provisioning"]),
            (&["--program", "grafana", "--language", "influxql"], &["influxql", "README.md", "provisioning"]),
            (&["--language", "promql"], &["promql", "README.md", "provisioning", "rules"]),
            (&["--program", "prometheus"], &["rules"]),
        ] {
            assert_eq!(asked(arguments), wanted, "{arguments:?}");
        }
    }
}
