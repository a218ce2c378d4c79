//! The layout: lines of text that fit the terminal. Pure.

use std::{collections::BTreeSet, time::Duration};

use muster_topics::size;

use super::super::top_subject::TopSubject;
use super::rows::{TopRow, TopSort, TopTable};
use crate::print::Printer;
use muster_api::host_names::SHORT_ID_CHARS;

/// From this share on a value is shown as a warning, and from the next as critical.
const CONCERN: f64 = 0.7;
const ALARM: f64 = 0.9;
/// Default width of a terminal.
const WIDTH: usize = 80;

const REVERSE: &str = "\x1b[7m";
const BOLD: &str = "\x1b[1m";
const YELLOW: &str = "\x1b[33m";
const RED: &str = "\x1b[31m";
const DIM: &str = "\x1b[2m";
const PLAIN: &str = "\x1b[0m";

/// The available space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ScreenSize {
    pub(super) width: usize,
    /// `None`: any number of lines.
    pub(crate) height: Option<usize>,
    pub(super) colours: bool,
}

impl ScreenSize {
    /// For a file or another program.
    pub(super) fn plain() -> Self {
        Self { width: WIDTH, height: None, colours: false }
    }
}

/// One state of the screen.
#[derive(Debug)]
pub(super) struct ScreenFrame<'a> {
    pub(super) table: &'a TopTable,
    pub(super) sort: TopSort,
    /// The interval of updates; `None` if there is only one.
    pub(super) every: Option<Duration>,
    /// How times are told.
    pub(super) printer: Printer,
    pub(super) look: ScreenSize,
}

/// A column of values.
struct TopColumn {
    head: &'static str,
    width: usize,
    /// The order that corresponds to it.
    sort: Option<TopSort>,
    /// Its text, and the share that determines its colour.
    cell: fn(&TopRow) -> (String, Option<f64>),
}

const fn column(
    head: &'static str,
    width: usize,
    sort: Option<TopSort>,
    cell: fn(&TopRow) -> (String, Option<f64>),
) -> TopColumn {
    TopColumn { head, width, sort, cell }
}

/// With 20 characters for a name and a space before each column: 80.
const HOSTS: &[TopColumn] = &[
    column("CPU", 5, Some(TopSort::Cpu), |row| share(row, "cpu_ratio")),
    column("MEM", 5, Some(TopSort::Memory), |row| share(row, "memory_ratio")),
    column("USED", 8, None, |row| amount(row, "memory_bytes")),
    column("LOAD", 5, None, |row| (row.value("load").map_or_else(unknown, |load| format!("{load:.2}")), None)),
    column("FULL", 5, None, |row| share(row, "disk_ratio")),
    column("DISK/s", 8, Some(TopSort::Disk), |row| amount(row, "disk_bytes_per_second")),
    column("IN/s", 8, Some(TopSort::Network), |row| amount(row, "receive_bytes_per_second")),
    column("OUT/s", 8, None, |row| amount(row, "transmit_bytes_per_second")),
];

/// With 27 characters for the names, and the phase: 80.
const UNITS: &[TopColumn] = &[
    column("CPU", 6, Some(TopSort::Cpu), |row| share(row, "cpu_ratio")),
    column("MEMORY", 8, Some(TopSort::Memory), |row| amount(row, "memory_bytes")),
    column("LIMIT", 5, None, |row| share(row, "memory_ratio")),
    column("DISK/s", 8, Some(TopSort::Disk), |row| amount(row, "disk_bytes_per_second")),
    column("PROC", 5, None, |row| count(row, "processes")),
    column("TRIES", 5, None, |row| count(row, "restarts")),
];

const STATE_WIDTH: usize = 9;

fn unknown() -> String {
    "-".to_owned()
}

fn share(row: &TopRow, name: &str) -> (String, Option<f64>) {
    let value = row.value(name);
    let text = |share: f64| {
        let percent = share * 100.0;
        if percent < 99.95 { format!("{percent:.1}%") } else { format!("{percent:.0}%") }
    };
    (value.map_or_else(unknown, text), value)
}

fn amount(row: &TopRow, name: &str) -> (String, Option<f64>) {
    // The bytes of a host are far below what a float represents exactly.
    (row.value(name).map_or_else(unknown, |bytes| size::print(bytes.max(0.0).round() as u64)), None)
}

fn count(row: &TopRow, name: &str) -> (String, Option<f64>) {
    (row.value(name).map_or_else(unknown, |count| format!("{count:.0}")), None)
}

impl ScreenFrame<'_> {
    /// The complete text, with a line feed after each line.
    pub(super) fn text(&self) -> String {
        let TopTable { rows, trouble, .. } = self.table;
        let mut lines = Vec::new();
        if self.every.is_some() {
            lines.push(self.styled(BOLD, &self.title()));
        }
        if let Some(trouble) = trouble {
            lines.push(self.styled(RED, trouble.lines().next().unwrap_or_default()));
        }
        lines.push(self.heads());
        // The last line shows the keys.
        let room = self.look.height.map_or(usize::MAX, |height| height.saturating_sub(lines.len() + 1));
        let hidden = rows.len().saturating_sub(room);
        let twins = self.table.twins();
        lines.extend(rows.iter().take(room).map(|row| self.row(row, &twins)));
        if rows.is_empty() {
            lines.push(self.cut("nothing is measured yet"));
        }
        if self.every.is_some() {
            let more = if hidden > 0 { format!("{hidden} more · ") } else { String::new() };
            lines.push(self.styled(DIM, &format!("{more}c cpu  m memory  d disk  n network  h name  q quit")));
        }
        lines.into_iter().fold(String::new(), |text, line| text + &line + "\n")
    }

    fn title(&self) -> String {
        let TopTable { what, rows, hosts, online, at_ms, .. } = self.table;
        let time = self.printer.bare_time(*at_ms);
        let time = time.split('T').nth(1).unwrap_or_default().replace('Z', " UTC");
        let units = if *what == TopSubject::Units { format!("{} units on ", rows.len()) } else { String::new() };
        let every =
            self.every.map_or_else(String::new, |every| format!(" · every {}", humantime::format_duration(every)));
        let sort = self.sort.word();
        format!("{units}{hosts} hosts, {online} online · by {sort}{every} · {time}")
    }

    fn columns(&self) -> &'static [TopColumn] {
        match self.table.what {
            TopSubject::Hosts => HOSTS,
            TopSubject::Units => UNITS,
        }
    }

    /// The width of names: what the values leave.
    fn name_width(&self) -> usize {
        let values: usize = self.columns().iter().map(|column| column.width + 1).sum();
        let state = if self.table.what == TopSubject::Units { STATE_WIDTH + 1 } else { 0 };
        self.look.width.saturating_sub(values + state).max(8)
    }

    fn heads(&self) -> String {
        let what = match self.table.what {
            TopSubject::Hosts => "HOST",
            TopSubject::Units => "UNIT",
        };
        let mut line = format!("{what:<width$}", width = self.name_width());
        if self.table.what == TopSubject::Units {
            line += &format!(" {:<STATE_WIDTH$}", "PHASE");
        }
        for TopColumn { head, width, sort, .. } in self.columns() {
            // The order is also marked where there are no colours.
            let mark = if *sort == Some(self.sort) { "▾" } else { "" };
            line += &format!(" {:>width$}", format!("{head}{mark}"));
        }
        self.styled(REVERSE, &line)
    }

    fn row(&self, row: &TopRow, twins: &BTreeSet<&str>) -> String {
        let is_there = row.state == "online" || row.unit.is_some();
        // Two hosts can have the same name.
        let host = match twins.contains(row.hostname.as_str()) {
            false => row.hostname.clone(),
            true => format!("{} ({})", row.hostname, row.host.chars().take(SHORT_ID_CHARS).collect::<String>()),
        };
        let name = match &row.unit {
            Some(unit) => format!("{unit}  {host}"),
            None if is_there => host,
            None => format!("{host} ({})", row.state),
        };
        let width = self.name_width();
        let mut line = format!("{:<width$}", shortened(&name, width));
        if row.unit.is_some() {
            line += &format!(" {:<STATE_WIDTH$}", shortened(&row.state, STATE_WIDTH));
        }
        // Values come last, in fixed columns: only they can be cut at the edge of a narrow terminal.
        let mut left = self.look.width.saturating_sub(line.chars().count());
        for TopColumn { width, cell, .. } in self.columns() {
            if left <= *width {
                break;
            }
            left -= width + 1;
            let (text, share) = cell(row);
            let text = format!("{text:>width$}");
            let colour = share.and_then(|share| match share {
                ALARM.. => Some(RED),
                CONCERN.. => Some(YELLOW),
                _ => None,
            });
            line += " ";
            line += &match colour.filter(|_| self.look.colours) {
                Some(colour) => format!("{colour}{text}{PLAIN}"),
                None => text,
            };
        }
        if is_there || !self.look.colours { line } else { format!("{DIM}{line}{PLAIN}") }
    }

    fn styled(&self, style: &str, line: &str) -> String {
        let line = self.cut(line);
        if self.look.colours { format!("{style}{line}{PLAIN}") } else { line }
    }

    fn cut(&self, line: &str) -> String {
        line.chars().filter(|c| !c.is_control()).take(self.look.width).collect()
    }
}

/// Shortens a text to this many characters, with a mark; control characters are removed.
fn shortened(text: &str, width: usize) -> String {
    let text: String = text.chars().filter(|c| !c.is_control()).collect();
    if text.chars().count() <= width {
        return text;
    }
    text.chars().take(width.saturating_sub(1)).chain(['…']).collect()
}

#[cfg(test)]
mod tests {
    use super::{
        super::rows::tests::{row, table},
        *,
    };

    fn hosts() -> TopTable {
        let busy = [
            ("cpu_ratio", 0.953),
            ("memory_ratio", 0.71),
            ("memory_bytes", 2.9e9),
            ("load", 3.25),
            ("disk_ratio", 1.0),
            ("disk_bytes_per_second", 1_234_567.0),
            ("receive_bytes_per_second", 999.4),
            ("transmit_bytes_per_second", 0.0),
        ];
        let mut away = row("away", None, &[]);
        away.state = "offline".to_owned();
        table(TopSubject::Hosts, vec![row("shop-0042", None, &busy), away])
    }

    fn printer() -> Printer {
        Printer::new(crate::print::PrintFormat::Table)
    }

    fn frame(table: &TopTable, look: ScreenSize) -> String {
        ScreenFrame { table, sort: TopSort::Cpu, every: Some(Duration::from_secs(5)), printer: printer(), look }.text()
    }

    #[test]
    fn hosts_fit_eighty_columns() {
        let text = frame(&hosts(), ScreenSize { height: Some(24), ..ScreenSize::plain() });
        assert_eq!(
            text,
            "2 hosts, 2 online · by cpu · every 5s · 02:41:07 UTC\n\
             HOST                  CPU▾   MEM     USED  LOAD  FULL   DISK/s     IN/s    OUT/s\n\
             shop-0042            95.3% 71.0%  2.7 GiB  3.25  100%  1.2 MiB    999 B      0 B\n\
             away (offline)           -     -        -     -     -        -        -        -\n\
             c cpu  m memory  d disk  n network  h name  q quit\n"
        );
        let (printer, look) = (printer(), ScreenSize::plain());
        let once = ScreenFrame { table: &hosts(), sort: TopSort::Cpu, every: None, printer, look }.text();
        assert_eq!(once.lines().count(), 3, "heads and hosts alone");
    }

    #[test]
    fn hosts_of_one_name_show_their_ids() {
        let mut twin = row("till", None, &[]);
        twin.host = "2222222222".to_owned();
        let table = table(TopSubject::Hosts, vec![row("till", None, &[]), twin, row("desk", None, &[])]);
        let text = frame(&table, ScreenSize { height: Some(24), ..ScreenSize::plain() });
        for wanted in ["\ntill (id-till) ", "\ntill (22222222) ", "\ndesk "] {
            assert!(text.contains(wanted), "{text}");
        }
    }

    #[test]
    fn units_fit_eighty_columns() {
        let values = [("cpu_ratio", 0.012), ("memory_bytes", 5.1e6), ("processes", 3.0), ("restarts", 0.0)];
        let long = row("shop-0042.north.example", Some("default/a-unit-with-a-long-name"), &values);
        let text = frame(&table(TopSubject::Units, vec![long]), ScreenSize { height: Some(24), ..ScreenSize::plain() });
        assert!(text.contains("1 units on 1 hosts"), "{text}");
        assert!(text.contains("…  ") || text.contains("… running"), "{text}");
        assert!(text.contains("1.2%  4.9 MiB     -        -     3     0"), "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    }

    #[test]
    fn every_terminal_is_wide_enough() {
        for (width, height) in [(80, 24), (200, 50), (40, 10), (20, 3), (1, 1), (0, 0)] {
            for colours in [false, true] {
                let text = frame(&hosts(), ScreenSize { width, height: Some(height), colours });
                let plain = text.replace(RED, "").replace(YELLOW, "").replace(DIM, "").replace(PLAIN, "");
                let plain = plain.replace(REVERSE, "").replace(BOLD, "");
                // A name needs some space.
                assert!(plain.lines().all(|line| line.chars().count() <= width.max(8)), "{width}: {plain}");
                assert!(text.lines().count() <= height.max(3), "{height}: {text}");
                assert_eq!(text.contains('\x1b'), colours);
            }
        }
        let text = frame(&hosts(), ScreenSize { height: Some(4), ..ScreenSize::plain() });
        assert!(text.ends_with("1 more · c cpu  m memory  d disk  n network  h name  q quit\n"), "{text}");
    }

    #[test]
    fn colours_mark_thresholds() {
        let look = ScreenSize { colours: true, ..ScreenSize::plain() };
        let text = frame(&hosts(), look);
        assert!(text.contains(&format!("{RED}95.3%{PLAIN} {YELLOW}71.0%{PLAIN}")), "{text:?}");
        assert!(text.contains(&format!("{DIM}away")), "{text:?}");
        let mut table = hosts();
        table.rows[0].hostname = "\x1b[2Jevil\n".to_owned();
        assert!(!frame(&table, look).contains("\x1b[2J"), "a host's name moves no cursor");
        table.trouble = Some("the console does not answer\nhint".to_owned());
        assert!(frame(&table, look).contains(&format!("{RED}the console does not answer{PLAIN}")));
    }
}
