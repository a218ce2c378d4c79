//! Prints results. Data goes to standard output, as a table, JSON or YAML; messages go to
//! standard error.

use std::{
    fmt::Display,
    io::{self, IsTerminal},
    sync::Once,
};

use clap::ValueEnum;
use jiff::{Timestamp, ZonedDateTime, tz::TimeZone};
use muster_base::{
    failure::{Failure, FailureContext},
    terminal,
};
use muster_topics::size;
use muster_topics::{Millis, unit::Progress};
use serde::Serialize;
use time::{OffsetDateTime, format_description::well_known::Rfc3339};

use super::{
    table::{self, TableForm},
    watch,
};

/// The forms of data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum PrintFormat {
    /// For people.
    #[default]
    Table,
    /// For programs.
    Json,
    /// For both.
    Yaml,
}

/// Prints data in one format.
#[derive(Clone, Copy, Debug)]
pub struct Printer {
    /// The format.
    pub format: PrintFormat,
    /// More documents follow; in JSON each is one line.
    in_lines: bool,
    /// Whether times are those of the local zone.
    in_local_time: bool,
}

impl Printer {
    /// A printer of exactly one document.
    #[must_use]
    pub fn new(format: PrintFormat) -> Self {
        Self { format, in_lines: false, in_local_time: false }
    }

    /// A printer for a person at this terminal, if there is one: with times of the local zone, unless UTC is wanted.
    #[must_use]
    pub fn for_terminal(format: PrintFormat, utc: bool) -> Self {
        let in_local_time = format == PrintFormat::Table && !utc && io::stdout().is_terminal();
        Self { in_local_time, ..Self::new(format) }
    }

    /// A complete time (RFC 3339), which [`moment::parse`](super::moment::parse) takes again: of the local zone for a person
    /// at a terminal, who is told once which zone that is; otherwise in UTC.
    #[must_use]
    pub fn time(self, at_ms: Millis) -> String {
        if self.in_local_time {
            let zone = zone_name(&TimeZone::system());
            ZONE_TOLD.call_once(|| say(format_args!("times are of {zone}; --utc prints UTC")));
        }
        self.bare_time(at_ms)
    }

    /// The same where nobody is told of the zone, as in the title of a screen.
    pub(super) fn bare_time(self, at_ms: Millis) -> String {
        if self.in_local_time { time_in(at_ms, &TimeZone::system()) } else { time(at_ms) }
    }

    /// A printer of several documents, for a verb that prints each as an [item](Self::item).
    #[must_use]
    pub fn in_lines(self) -> Self {
        Self { in_lines: true, ..self }
    }

    /// Whether the output is for programs, so that standard output must contain nothing else.
    #[must_use]
    pub fn is_for_programs(self) -> bool {
        self.format != PrintFormat::Table
    }

    /// Prints one of several documents: a line of JSON, or a YAML document. The caller prints a table.
    ///
    /// # Errors
    /// If writing to standard output fails.
    pub fn item<T: Serialize>(self, item: &T) -> Result<(), Failure> {
        match self.format {
            PrintFormat::Table => Ok(()),
            PrintFormat::Json => write_out(&(serde_json::to_string(item).trying("writing JSON")? + "\n")),
            PrintFormat::Yaml => write_out(&format!("---\n{}", super::yaml::document(item)?)),
        }
    }

    /// Prints a list: the complete items, or a table with `header` and one row for each.
    ///
    /// # Errors
    /// If writing to standard output fails.
    pub fn list<T: Serialize>(
        self,
        items: &[T],
        header: &[&str],
        row: impl Fn(&T) -> Vec<String>,
        empty: &str,
    ) -> Result<(), Failure> {
        match self.format {
            PrintFormat::Table => self.table_of(items, header, row, empty),
            PrintFormat::Json | PrintFormat::Yaml => self.document(&items),
        }
    }

    /// Prints a table for people of rows that have no form for programs.
    ///
    /// # Errors
    /// If writing to standard output fails.
    pub fn table_of<T>(
        self,
        items: &[T],
        header: &[&str],
        row: impl Fn(&T) -> Vec<String>,
        empty: &str,
    ) -> Result<(), Failure> {
        if items.is_empty() {
            say(empty);
            return Ok(());
        }
        write_table(header, items.iter().map(row))
    }

    /// Prints items in a format for programs; nothing for people, who have been told already.
    ///
    /// # Errors
    /// If writing to standard output fails.
    pub fn data<T: Serialize>(self, items: &[T]) -> Result<(), Failure> {
        match self.format {
            PrintFormat::Table => Ok(()),
            PrintFormat::Json | PrintFormat::Yaml => self.document(&items),
        }
    }

    /// Prints one item: completely, or as `name: value` lines.
    ///
    /// # Errors
    /// If writing to standard output fails.
    pub fn one<T: Serialize>(
        self,
        item: &T,
        lines: impl FnOnce() -> Vec<(&'static str, String)>,
    ) -> Result<(), Failure> {
        match self.format {
            PrintFormat::Table => {
                let rows = lines().into_iter().filter(|(_, value)| !value.is_empty());
                write_table(&[], rows.map(|(name, value)| vec![name.to_owned(), value]))
            }
            PrintFormat::Json | PrintFormat::Yaml => self.document(item),
        }
    }

    /// Prints an item that has rows of its own: completely, or as a table.
    ///
    /// # Errors
    /// If writing to standard output fails.
    pub fn table<T: Serialize>(
        self,
        item: &T,
        header: &[&str],
        rows: impl Iterator<Item = Vec<String>>,
    ) -> Result<(), Failure> {
        match self.format {
            PrintFormat::Table => write_table(header, rows),
            PrintFormat::Json | PrintFormat::Yaml => self.document(item),
        }
    }

    /// Prints the only document of a verb in a format for programs, or a line of text.
    ///
    /// # Errors
    /// If writing to standard output fails.
    pub fn line<T: Serialize>(self, item: &T, text: &str) -> Result<(), Failure> {
        match self.format {
            PrintFormat::Table => write_out(&format!("{text}\n")),
            PrintFormat::Json | PrintFormat::Yaml => self.document(item),
        }
    }

    fn document<T: Serialize>(self, item: &T) -> Result<(), Failure> {
        if self.in_lines {
            return self.item(item);
        }
        let text = match self.format {
            PrintFormat::Yaml => super::yaml::document(item)?,
            PrintFormat::Json | PrintFormat::Table => serde_json::to_string_pretty(item).trying("writing JSON")? + "\n",
        };
        write_out(&text)
    }
}

/// A table as text, whole and without colours; without a header only its lines.
#[must_use]
pub fn table(header: &[&str], rows: impl Iterator<Item = Vec<String>>) -> String {
    table::format(header, rows.collect(), TableForm::default()).text
}

/// Writes a table to standard output. On a terminal it fits the width, states have colours, and a message says what was cut.
fn write_table(header: &[&str], rows: impl Iterator<Item = Vec<String>>) -> Result<(), Failure> {
    let form = table_form();
    if form == TableForm::default() {
        return write_out(&table(header, rows));
    }
    // What a terminal would obey is made text here, before anything is measured.
    let shown = |cell: String| String::from_utf8_lossy(&terminal::shown(cell.as_bytes())).into_owned();
    let rows = rows.map(|row| row.into_iter().map(shown).collect()).collect();
    let table = table::format(header, rows, form);
    if !watch::keep_out(&table.text) {
        terminal::out_in_colours(&table.text)?;
    }
    table.notice().iter().for_each(say);
    Ok(())
}

/// How tables are printed here: as they are where standard output is no terminal.
fn table_form() -> TableForm {
    if !io::stdout().is_terminal() {
        return TableForm::default();
    }
    let width = terminal_size::terminal_size_of(io::stdout()).map(|(width, _)| usize::from(width.0));
    let variable = |name: &str| std::env::var(name).ok();
    let colours = table::wants_colours(variable("NO_COLOR").as_deref(), variable("TERM").as_deref());
    TableForm { width: width.filter(|width| *width > 0), colours }
}

/// Writes to standard output.
///
/// # Errors
/// As [`terminal::out`].
pub fn write_out(text: &str) -> Result<(), Failure> {
    if watch::keep_out(text) { Ok(()) } else { write_bytes(text.as_bytes()) }
}

/// Writes bytes to standard output at once; unchanged, unless it is a terminal ([`muster_base::terminal`]).
///
/// # Errors
/// As [`terminal::out`].
pub fn write_bytes(bytes: &[u8]) -> Result<(), Failure> {
    terminal::out(bytes)
}

/// Writes a message for people.
pub fn say(words: impl Display) {
    let line = format!("{words}\n");
    if !watch::keep_message(&line) {
        terminal::err(&line);
    }
}

/// Writes a failure, one of several.
pub fn say_failure(failure: &Failure) {
    terminal::err(&failure.lines());
}

/// Reports that a list may have more items than the limit.
pub fn say_if_limited(count: usize, limit: u32) {
    if count > 0 && count >= usize::try_from(limit).unwrap_or(usize::MAX) {
        let are = if count == 1 { "is" } else { "are" };
        say(format_args!("{count} {are} listed, the limit; --limit N lists more"));
    }
}

/// Asks a question that `--yes` would answer; without a terminal the answer is no.
#[must_use]
pub fn confirm(question: &str) -> bool {
    if !io::stdin().is_terminal() {
        return false;
    }
    terminal::err(&format!("{question} [y/N] "));
    let mut answer = String::new();
    io::stdin().read_line(&mut answer).is_ok() && matches!(answer.trim(), "y" | "Y" | "yes")
}

/// The age of something in its two largest units: `3 s ago`, `2 h 5 min ago`.
#[must_use]
pub fn age(at_ms: Millis, now_ms: Millis) -> String {
    let seconds = now_ms.saturating_sub(at_ms) / 1_000;
    if seconds < 0 { format!("in {}", span(-seconds)) } else { format!("{} ago", span(seconds)) }
}

/// Seconds in their two largest units.
#[must_use]
pub fn span(seconds: i64) -> String {
    let two = |large: i64, large_unit: &str, small: i64, small_unit: &str| match small {
        0 => format!("{large} {large_unit}"),
        _ => format!("{large} {large_unit} {small} {small_unit}"),
    };
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3_600 => two(seconds / 60, "min", seconds % 60, "s"),
        3_600..86_400 => two(seconds / 3_600, "h", seconds % 3_600 / 60, "min"),
        _ => two(seconds / 86_400, "d", seconds % 86_400 / 3_600, "h"),
    }
}

/// Whether the zone of times was told.
static ZONE_TOLD: Once = Once::new();

fn zone_name(zone: &TimeZone) -> String {
    zone.iana_name().unwrap_or("this machine's zone").to_owned()
}

/// A complete time (RFC 3339) in a zone. Its offset stands in it, so that it means one time also when clocks are set back.
fn time_in(at_ms: Millis, zone: &TimeZone) -> String {
    match Timestamp::from_second(at_ms.div_euclid(1_000)) {
        Ok(at) => ZonedDateTime::new(at, zone.clone()).strftime("%Y-%m-%dT%H:%M:%S%:z").to_string(),
        Err(_) => at_ms.to_string(),
    }
}

/// A complete time (RFC 3339, UTC).
#[must_use]
pub fn time(at_ms: Millis) -> String {
    OffsetDateTime::from_unix_timestamp(at_ms.div_euclid(1_000))
        .ok()
        .and_then(|time| time.format(&Rfc3339).ok())
        .unwrap_or_else(|| at_ms.to_string())
}

/// The progress of something: `412 MiB of 1.0 GiB (40 %)`.
#[must_use]
pub fn progress(progress: Progress) -> String {
    format!("{} of {} ({} %)", size::print(progress.done_bytes), size::print(progress.total_bytes), progress.percent())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_formatted() {
        for (seconds, text) in [
            (0, "0 s ago"),
            (59, "59 s ago"),
            (60, "1 min ago"),
            (61, "1 min 1 s ago"),
            (3_600, "1 h ago"),
            (86_399, "23 h 59 min ago"),
            (90_000, "1 d 1 h ago"),
            (-5, "in 5 s"),
        ] {
            assert_eq!(age(0, seconds * 1_000), text);
        }
        assert!(age(Millis::MAX, Millis::MIN).starts_with("in "));
    }

    #[test]
    fn local_times_have_their_offset_also_when_clocks_are_set_back() {
        let zone = TimeZone::posix("CET-1CEST,M3.5.0,M10.5.0/3").unwrap();
        for (utc, wanted) in [
            ("2026-03-29T00:59:59Z", "2026-03-29T01:59:59+01:00"),
            ("2026-03-29T01:00:00Z", "2026-03-29T03:00:00+02:00"),
            ("2026-10-25T00:30:00Z", "2026-10-25T02:30:00+02:00"),
            ("2026-10-25T01:30:00Z", "2026-10-25T02:30:00+01:00"),
        ] {
            let at_ms = utc.parse::<Timestamp>().unwrap().as_millisecond();
            let shown = time_in(at_ms, &zone);
            assert_eq!(shown, wanted);
            assert_eq!(super::super::moment::parse(&shown), Ok(super::super::moment::Moment::At(at_ms)));
        }
        assert_eq!(time_in(1_700_000_000_123, &TimeZone::UTC), "2023-11-14T22:13:20+00:00");
        assert_eq!(time_in(Millis::MAX, &zone), Millis::MAX.to_string());
        assert_eq!(Printer::new(PrintFormat::Table).time(1_700_000_000_123), "2023-11-14T22:13:20Z");
    }

    #[test]
    fn times_are_formatted() {
        assert_eq!(time(1_700_000_000_123), "2023-11-14T22:13:20Z");
        assert_eq!(time(Millis::MAX), Millis::MAX.to_string());
    }
}
