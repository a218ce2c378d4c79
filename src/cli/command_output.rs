//! Prints the output of many streams, each in its order, in whole lines; for programs as a line of JSON for each
//! piece, or each line of a log.

use std::collections::BTreeMap;

use muster_api::{Command, CommandHost};
use muster_base::{failure::Failure, terminal};
use muster_topics::{
    name::{HostId, UnitName},
    outcome::{Data, Outcome, Stream},
};
use serde::Serialize;

use crate::print::{self, Printer};
use muster_api::host_names::{short_id, tell_apart};

/// The printed parts of each stream. Pieces arrive in any order, and possibly several times.
pub(super) struct StreamPrinter {
    /// Names to print before lines, if there is more than one host.
    pub(super) names: BTreeMap<HostId, String>,
    /// The only host, whose lines need no name.
    pub(super) alone: Option<HostId>,
    pub(super) streams: BTreeMap<(HostId, Stream), StreamPosition>,
    pub(super) form: OutputForm,
}

/// The form of the output.
#[derive(Debug)]
pub(super) enum OutputForm {
    /// As the programs wrote it.
    Text,
    /// Standard output is collected for the caller instead.
    Kept(Vec<u8>),
    /// For programs: each piece, and the result on each host.
    Events(Printer, BTreeMap<HostId, String>),
    /// For programs: each line of a unit's log.
    Log(Printer, LogOwner),
}

/// The unit of a log, and its host.
#[derive(Clone, Debug, Serialize)]
pub(super) struct LogOwner {
    pub(super) host: HostId,
    pub(super) hostname: String,
    pub(super) unit: UnitName,
}

/// The objects that `muster exec` prints for programs: first the command, then its output as it arrives, and the result
/// of each host.
#[derive(Debug, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
enum PrintedEvent<'a> {
    /// The command, as the console has stored it.
    Command(&'a Command),
    /// A piece of output.
    Output { host: HostId, hostname: &'a str, stream: Stream, offset_bytes: u64, data: Data },
    /// A host has its outcome, or is not waited for.
    Host(&'a CommandHost),
    /// It has become a unit.
    Unit { unit: &'a str },
}

/// A line of a log.
#[derive(Debug, Serialize)]
struct LogLine<'a> {
    #[serde(flatten)]
    of: &'a LogOwner,
    /// When it was written; null if not known.
    time: Option<&'a str>,
    /// `text`, without the line ending; `base64` if it is not valid text.
    #[serde(flatten)]
    data: Data,
}

#[derive(Default)]
pub(super) struct StreamPosition {
    /// Everything before this position has arrived.
    at_bytes: u64,
    /// Pieces that arrived before earlier ones.
    early: BTreeMap<u64, Vec<u8>>,
    /// An incomplete line, if names are printed before lines.
    line: Vec<u8>,
}

impl StreamPrinter {
    pub(super) fn new(hosts: &[CommandHost]) -> Self {
        let several = hosts.len() > 1;
        let hosts = tell_apart(hosts.to_vec());
        let width = hosts.iter().map(|host| host.hostname.len()).max().unwrap_or(0);
        let name = |host: &CommandHost| (host.host, format!("{:width$} | ", host.hostname));
        let alone = hosts.first().filter(|_| !several).map(|host| host.host);
        let names = hosts.iter().filter(|_| several).map(name).collect();
        Self { names, alone, streams: BTreeMap::new(), form: OutputForm::Text }
    }

    /// The form for programs, if one was requested.
    pub(super) fn of(command: &Command, printer: Printer) -> Result<Self, Failure> {
        let mut printed = Self::new(&command.hosts);
        if printer.is_for_programs() {
            printer.item(&PrintedEvent::Command(command))?;
            let hostnames = command.hosts.iter().map(|host| (host.host, host.hostname.clone()));
            printed.form = OutputForm::Events(printer, hostnames.collect());
        }
        Ok(printed)
    }

    /// Reports that a program has become a unit.
    pub(super) fn became(&self, unit: &str) -> Result<(), Failure> {
        match &self.form {
            OutputForm::Events(printer, _) => printer.item(&PrintedEvent::Unit { unit }),
            _ => print::write_out(&format!("{unit}\n")),
        }
    }

    /// Reports the result of a host, for programs.
    pub(super) fn conclude(&self, host: &CommandHost) -> Result<(), Failure> {
        match &self.form {
            OutputForm::Events(printer, _) => printer.item(&PrintedEvent::Host(host)),
            _ => Ok(()),
        }
    }

    /// Reports progress on a host. An unexpected host gets its name here.
    pub(super) fn meet(&mut self, host: &CommandHost) {
        if let OutputForm::Events(_, hostnames) = &mut self.form {
            hostnames.entry(host.host).or_insert_with(|| host.hostname.clone());
        }
        if self.alone == Some(host.host) || self.names.contains_key(&host.host) {
            return;
        }
        let is_taken = self.names.values().any(|name| name.trim_end_matches([' ', '|']) == host.hostname);
        let name =
            if is_taken { format!("{} ({})", host.hostname, short_id(host.host)) } else { host.hostname.clone() };
        self.names.insert(host.host, format!("{name} | "));
    }

    pub(super) fn take(
        &mut self,
        host: HostId,
        stream: Stream,
        offset_bytes: u64,
        bytes: Vec<u8>,
    ) -> Result<(), Failure> {
        if self.alone != Some(host) {
            // Its output arrived before its name.
            self.names.entry(host).or_insert_with(|| format!("{host} | "));
        }
        let position = self.streams.entry((host, stream)).or_default();
        position.early.insert(offset_bytes, bytes);
        while let Some(entry) = position.early.first_entry() {
            if *entry.key() > position.at_bytes {
                break;
            }
            let (start, bytes) = entry.remove_entry();
            let known = usize::try_from(position.at_bytes - start).unwrap_or(usize::MAX);
            if let Some(fresh) = bytes.get(known..) {
                let offset_bytes = position.at_bytes;
                position.at_bytes += fresh.len() as u64;
                match (&mut self.form, stream) {
                    (OutputForm::Kept(kept), Stream::Stdout) => kept.extend_from_slice(fresh),
                    (OutputForm::Events(printer, hostnames), _) => {
                        let hostname = hostnames.get(&host).map_or("", String::as_str);
                        let data = Data::new(fresh);
                        printer.item(&PrintedEvent::Output { host, hostname, stream, offset_bytes, data })?;
                    }
                    (OutputForm::Log(printer, of), Stream::Stdout) => {
                        log_lines(*printer, of, &mut position.line, fresh)?;
                    }
                    _ => write(self.names.get(&host), stream, &mut position.line, fresh)?,
                }
            }
        }
        Ok(())
    }

    pub(super) fn rest(&mut self, host: HostId, outcome: &Outcome) -> Result<(), Failure> {
        for (stream, output) in [(Stream::Stdout, &outcome.stdout), (Stream::Stderr, &outcome.stderr)] {
            if let Some(rest) = &output.rest {
                self.take(host, stream, output.sent_bytes, rest.to_bytes().unwrap_or_default())?;
            }
        }
        Ok(())
    }

    /// Prints incomplete lines, and reports missing parts of the output.
    pub(super) fn end(&mut self) -> Result<(), Failure> {
        for ((host, stream), position) in &mut self.streams {
            if let Some(next) = position.early.first_key_value().map(|(at_bytes, _)| *at_bytes) {
                let name = self.names.get(host).map_or("", String::as_str);
                let (word, at_bytes) = (if *stream == Stream::Stdout { "stdout" } else { "stderr" }, position.at_bytes);
                print::say(format_args!(
                    "{name}bytes {at_bytes} to {next} of {word} are missing, and what comes after them is not shown: the console \
                     keeps only so much output (`command_output_max_bytes` in its configuration)"
                ));
                position.early.clear();
            }
            if !position.line.is_empty() {
                position.line.push(b'\n');
                let line = std::mem::take(&mut position.line);
                match (&self.form, stream) {
                    (OutputForm::Log(printer, of), Stream::Stdout) => {
                        log_lines(*printer, of, &mut position.line, &line)?;
                    }
                    _ => write(self.names.get(host), *stream, &mut position.line, &line)?,
                }
            }
        }
        Ok(())
    }
}

/// Prints the complete lines of a log, and keeps the rest.
fn log_lines(printer: Printer, of: &LogOwner, line: &mut Vec<u8>, bytes: &[u8]) -> Result<(), Failure> {
    line.extend_from_slice(bytes);
    let Some(end) = line.iter().rposition(|byte| *byte == b'\n') else { return Ok(()) };
    let whole: Vec<u8> = line.drain(..=end).collect();
    whole[..end].split(|byte| *byte == b'\n').try_for_each(|line| {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let (time, line) = timed(line);
        printer.item(&LogLine { of, time, data: Data::new(line) })
    })
}

/// Splits the time from a line.
fn timed(line: &[u8]) -> (Option<&str>, &[u8]) {
    let Some((time, rest)) = line.iter().position(|byte| *byte == b' ').map(|at| (&line[..at], &line[at + 1..])) else {
        return (None, line);
    };
    match std::str::from_utf8(time) {
        Ok("-") => (None, rest),
        Ok(time) if humantime::parse_rfc3339(time).is_ok() => (Some(time), rest),
        // The beginning of a truncated line.
        _ => (None, line),
    }
}

/// Writes bytes unchanged, or line by line with a name before each.
fn write(name: Option<&String>, stream: Stream, line: &mut Vec<u8>, bytes: &[u8]) -> Result<(), Failure> {
    let Some(name) = name else { return write_stream(stream, bytes) };
    line.extend_from_slice(bytes);
    let Some(end) = line.iter().rposition(|byte| *byte == b'\n') else { return Ok(()) };
    let whole: Vec<u8> = line.drain(..=end).collect();
    let named = whole.split_inclusive(|byte| *byte == b'\n').flat_map(|line| [name.as_bytes(), line]).flatten();
    write_stream(stream, &named.copied().collect::<Vec<u8>>())
}

fn write_stream(stream: Stream, bytes: &[u8]) -> Result<(), Failure> {
    match stream {
        Stream::Stdout => print::write_bytes(bytes),
        Stream::Stderr => {
            terminal::err_bytes(bytes);
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use muster_api::HostProgress;

    use super::*;

    fn host(id: u128) -> CommandHost {
        CommandHost {
            host: HostId(uuid::Uuid::from_u128(id)),
            hostname: format!("host-{id}"),
            progress: HostProgress::Running,
        }
    }

    #[test]
    fn unexpected_host_has_a_name() {
        let [one, two, three] = [1, 2, 3].map(host);
        let mut printed = StreamPrinter::new(std::slice::from_ref(&one));
        printed.meet(&one);
        printed.meet(&two);
        printed.take(three.host, Stream::Stderr, 0, b"line\n".to_vec()).unwrap();
        printed.meet(&three);
        assert_eq!(printed.names.get(&one.host), None);
        assert_eq!(printed.names[&two.host], "host-2 | ");
        assert_eq!(printed.names[&three.host], format!("{} | ", three.host));
    }

    #[test]
    fn hosts_of_one_name_show_their_ids_before_their_lines() {
        let twin = |id: u128| CommandHost { hostname: "till".to_owned(), ..host(id << 96) };
        let [one, two, three] = [1, 2, 3].map(twin);
        let mut printed = StreamPrinter::new(&[one.clone(), two.clone(), host(9)]);
        assert_eq!(printed.names[&one.host], "till (00000001) | ");
        assert_eq!(printed.names[&two.host], "till (00000002) | ");
        assert_eq!(printed.names[&host(9).host], "host-9          | ");
        printed.meet(&three);
        assert_eq!(printed.names[&three.host], "till | ");
        printed.meet(&twin(4));
        assert_eq!(printed.names[&twin(4).host], "till (00000004) | ");
    }

    #[test]
    fn pieces_are_printed_in_order() {
        let one = host(1);
        let mut printed = StreamPrinter::new(std::slice::from_ref(&one));
        for (offset, piece) in [(2, "cd"), (2, "cd"), (0, "ab"), (3, "de")] {
            printed.take(one.host, Stream::Stderr, offset, piece.into()).unwrap();
        }
        let position = &printed.streams[&(one.host, Stream::Stderr)];
        assert_eq!((position.at_bytes, position.early.len()), (5, 0));
    }
}
