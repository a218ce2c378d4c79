//! `muster unit export`: units as documents, for `muster unit apply`.

use clap::Args;
use muster_base::failure::{Failure, FailureKind};
use serde_json::{Value, json};
use serde_norway::Mapping;

use super::{
    export_files, host_lookup,
    print::{self, PrintFormat},
    session::CliSession,
    target::Noun,
    unit_targets::{AnyUnits, UnitTargets, candidates, pick},
    yaml,
};

/// Print units as documents, which applied again change nothing.
#[derive(Args, Clone, Debug)]
#[command(
    after_long_help = "A document has the desired state of a unit. If something else runs, as after a rollback, a \
                    comment says so.\n\n\
                    Values of environments are never shown: *** in a document stands for the value that is \
                    stored."
)]
pub struct ExportUnits {
    /// Which units
    #[command(flatten)]
    pub which: AnyUnits,
    /// Print a document of these files of a host instead, to begin with
    ///
    /// A folder is taken with what is in it.
    ///
    /// The host is asked as by `muster exec`. Large files and ones that are no text become artifacts by hand.
    #[arg(long, value_name = "PATH", num_args = 1.., conflicts_with_all = ["units", "select", "all"])]
    pub files: Vec<String>,
}

/// Runs the verb.
///
/// # Errors
/// If the selection is ambiguous or empty.
pub async fn run(export: ExportUnits, noun: Noun, session: &CliSession) -> Result<(), Failure> {
    if !export.files.is_empty() {
        return of_files(&export, session).await;
    }
    let which = UnitTargets::from(export.which);
    let (mut documents, mut deviations) = (Vec::<Value>::new(), Vec::new());
    let all = candidates(session, &which).await?;
    for unit in pick(&all, &which, noun.verb("export"))? {
        let deviation = unit.deviation().map(|what| format!("{} on {}: it {what}", unit.unit, unit.hostname));
        if let Some(deviation) = &deviation {
            print::say(format_args!("{deviation}; the document has the desired state"));
        }
        deviations.push(deviation);
        let path = format!("hosts/{}/units/{}/document", unit.host, unit.unit);
        documents.push(session.client.get(&path, &[]).await?);
    }
    match session.printer.format {
        PrintFormat::Json => session.printer.one(&json!({ "units": documents }), Vec::new),
        PrintFormat::Table | PrintFormat::Yaml => {
            let texts = documents.iter().zip(&deviations).map(|(document, deviation)| {
                let comment = deviation.as_ref().map(|what| format!("# {what}\n")).unwrap_or_default();
                comment + &yaml::write(&ordered(document).into())
            });
            print::write_out(&texts.collect::<Vec<_>>().join("---\n"))
        }
    }
}

/// Prints a document of files that a host has.
async fn of_files(export: &ExportUnits, session: &CliSession) -> Result<(), Failure> {
    let host = match &export.which.hosts[..] {
        [host] => host.clone(),
        [] => host_lookup::only(session).await?.id.to_string(),
        _ => return Err(Failure::new(FailureKind::Usage, "files are exported of one host at a time")),
    };
    let document = export_files::document(session, &host, &export.files).await?;
    match session.printer.format {
        PrintFormat::Json => session.printer.one(&document, Vec::new),
        PrintFormat::Table | PrintFormat::Yaml => print::write_out(&yaml::write(&ordered(&document).into())),
    }
}

/// Fields that people look for first.
const FIRST: [&str; 7] = ["unit", "hosts", "run", "artifact", "configs", "args", "env"];

/// The document with these fields first.
fn ordered(document: &Value) -> Mapping {
    let Value::Object(fields) = document else { return Mapping::new() };
    let first = FIRST.iter().filter_map(|key| fields.get_key_value(*key));
    let rest = fields.iter().filter(|(key, _)| !FIRST.contains(&key.as_str()));
    let value = |value: &Value| serde_norway::to_value(value).unwrap_or_default();
    first.chain(rest).map(|(key, field)| (key.as_str().into(), value(field))).collect()
}
