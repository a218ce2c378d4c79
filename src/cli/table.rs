//! Tables as text: columns that line up and fit a width, and states in colours.
//!
//! **Invariant: nothing here reads a terminal or the environment**: what these say comes in as [`TableForm`].

use std::ops::Range;

use unicode_width::UnicodeWidthStr;

/// Columns between two columns of a table.
const GAP: usize = 2;

/// The least columns that a shortened column keeps, to be of any use.
const COLUMN_MIN: usize = 10;

/// What stands in the place of what was cut off.
const ELLIPSIS: char = '…';

/// The headers of columns that are never shortened: what stands there is typed again, or short.
const WHOLE: &[&str] = &[
    "ID",
    "HOST",
    "UNIT",
    "DEPLOYMENT",
    "NAME",
    "SNAPSHOT",
    "RULE",
    "LABEL",
    "ENDPOINT",
    "LISTENS AT",
    "AGE",
    "STATE",
    "PHASE",
    "PRESENCE",
    "SEVERITY",
    "MORE",
];

/// The headers of columns that begin with a state, and the names of lines that do.
const STATES: &[&str] =
    &["STATE", "PHASE", "PRESENCE", "SEVERITY", "OUTCOME", "STATUS", "state", "phase", "presence", "severity"];

/// How a table is printed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TableForm {
    /// The most columns of a line; `None` where nothing is cut, as in a pipe.
    pub width: Option<usize>,
    /// Whether states have colours.
    pub colours: bool,
}

/// A table as text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TableText {
    /// Its lines.
    pub text: String,
    /// How many columns have cells that were shortened.
    pub cut_columns: usize,
    /// How many rows have cells that were shortened.
    pub cut_rows: usize,
}

impl TableText {
    /// The message that it was cut, if it was.
    #[must_use]
    pub fn notice(&self) -> Option<String> {
        let some = |count: usize, what: &str| format!("{count} {what}{}", if count == 1 { "" } else { "s" });
        (self.cut_rows > 0).then(|| {
            format!(
                "{} of {} shortened to fit the terminal; -o json shows all",
                some(self.cut_columns, "column"),
                some(self.cut_rows, "row") + if self.cut_rows == 1 { " was" } else { " were" }
            )
        })
    }
}

/// A colour, as its number in a terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Colour {
    Red = 31,
    Green = 32,
    Yellow = 33,
}

/// Formats a table; without a header only its lines, which are never cut: they are `name value`, and a terminal wraps the
/// value.
#[must_use]
pub fn format(header: &[&str], mut rows: Vec<Vec<String>>, form: TableForm) -> TableText {
    let (mut cut_columns, mut cut_rows) = (0, 0);
    if let Some(width) = form.width.filter(|_| !header.is_empty()) {
        let limits = fit(header, &widths(header, &rows), width);
        let mut cut = vec![false; limits.len()];
        for row in &mut rows {
            let mut is_cut = false;
            for (column, (cell, limit)) in row.iter_mut().zip(&limits).enumerate() {
                if let Some(short) = shorten(cell, *limit) {
                    *cell = short;
                    is_cut = true;
                    cut[column] = true;
                }
            }
            cut_rows += usize::from(is_cut);
        }
        cut_columns = cut.into_iter().filter(|cut| *cut).count();
    }
    let widths = widths(header, &rows);
    let mut text = String::new();
    if !header.is_empty() {
        let header: Vec<String> = header.iter().map(|&name| name.to_owned()).collect();
        add(&mut text, &header, &widths, |_, _| None);
    }
    for row in &rows {
        add(&mut text, row, &widths, |column, line| {
            let is_first = line == 0 && form.colours;
            let name = match header {
                // In lines of `name value` the name says what the value is.
                [] if column == 1 => row.first().map(String::as_str),
                header => header.get(column).copied(),
            };
            name.filter(|name| is_first && STATES.contains(name)).and_then(|_| coloured(row.get(column)?))
        });
    }
    TableText { text, cut_columns, cut_rows }
}

/// The widest line of each column.
fn widths(header: &[&str], rows: &[Vec<String>]) -> Vec<usize> {
    let columns = rows.iter().map(Vec::len).chain([header.len()]).max().unwrap_or_default();
    let widest = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column)).flat_map(|cell| cell.lines());
        cells.chain(header.get(column).copied()).map(UnicodeWidthStr::width).max().unwrap_or_default()
    };
    (0..columns).map(widest).collect()
}

/// The width that each column may have for the table to fit: the widest of those that may be shortened gives way first.
/// The first column is never shortened. A table may still be too wide, and is then wrapped by the terminal.
fn fit(header: &[&str], natural: &[usize], width: usize) -> Vec<usize> {
    let mut widths = natural.to_vec();
    let least = |column: usize| COLUMN_MIN.max(header.get(column).map_or(0, |name| name.width()));
    let may_shrink = |column: usize| column > 0 && header.get(column).is_some_and(|name| !WHOLE.contains(name));
    loop {
        let total = widths.iter().sum::<usize>() + GAP * widths.len().saturating_sub(1);
        let Some(too_many) = total.checked_sub(width).filter(|too_many| *too_many > 0) else { return widths };
        let spare = |column: usize| widths[column].saturating_sub(least(column));
        let shrinkable = (0..widths.len()).filter(|column| may_shrink(*column) && spare(*column) > 0);
        let Some(widest) = shrinkable.max_by_key(|column| widths[*column]) else { return widths };
        // Down to the next widest one at most, so that several wide ones give way together.
        let next = (0..widths.len())
            .filter(|column| *column != widest && may_shrink(*column))
            .map(|column| widths[column])
            .max()
            .unwrap_or_default();
        let step = spare(widest).min(too_many).min((widths[widest] - next).max(1));
        widths[widest] -= step;
    }
}

/// The cell with each line shortened to a width; `None` if it fits.
fn shorten(cell: &str, width: usize) -> Option<String> {
    if cell.lines().all(|line| line.width() <= width) {
        return None;
    }
    Some(cell.lines().map(|line| shorten_line(line, width)).collect::<Vec<_>>().join("\n"))
}

fn shorten_line(line: &str, width: usize) -> String {
    if line.width() <= width {
        return line.to_owned();
    }
    let mut short = String::new();
    for one in line.chars() {
        short.push(one);
        if short.width() > width.saturating_sub(1) {
            short.pop();
            break;
        }
    }
    short.truncate(short.trim_end().len());
    short.push(ELLIPSIS);
    short
}

/// Adds the lines of a row. `paint` says which bytes of a line of a cell have which colour.
fn add(
    text: &mut String,
    row: &[String],
    widths: &[usize],
    paint: impl Fn(usize, usize) -> Option<(Range<usize>, Colour)>,
) {
    let cells: Vec<Vec<&str>> = row.iter().map(|cell| cell.lines().collect()).collect();
    let height = cells.iter().map(Vec::len).max().unwrap_or_default().max(1);
    for line in 0..height {
        let part = |column: usize| cells[column].get(line).copied().unwrap_or_default();
        let last = (0..cells.len()).rev().find(|column| !part(*column).trim().is_empty());
        for column in 0..last.map_or(0, |last| last + 1) {
            let part = part(column);
            match paint(column, line).filter(|(range, _)| range.end <= part.len()) {
                Some((Range { start, end }, colour)) => {
                    let (before, painted, after) = (&part[..start], &part[start..end], &part[end..]);
                    text.push_str(&format!("{before}\x1b[{}m{painted}\x1b[0m{after}", colour as u8));
                }
                None => text.push_str(part),
            }
            if Some(column) != last {
                let used = part.width();
                text.extend(std::iter::repeat_n(' ', widths.get(column).map_or(0, |width| width - used) + GAP));
            }
        }
        text.truncate(text.trim_end_matches(' ').len());
        text.push('\n');
    }
}

/// The state that a cell begins with, and its colour.
fn coloured(cell: &str) -> Option<(Range<usize>, Colour)> {
    let end = cell.find(|c: char| !c.is_alphanumeric() && c != '-').unwrap_or(cell.len());
    let colour = match &cell[..end] {
        "online" | "running" | "playing" | "done" | "ok" | "succeeded" | "active" | "verified" => Colour::Green,
        "offline" | "failed" | "refused" | "lost" | "critical" | "broken" | "revoked" | "missing" | "conflict"
        | "cannot" => Colour::Red,
        "starting" | "stopping" | "installing" | "backoff" | "waiting" | "queued" | "paused" | "unready"
        | "warning" | "frozen" | "held" | "unknown" | "away" | "pending" | "changing" | "removing" | "unconfirmed"
        | "orphan" => Colour::Yellow,
        _ => return None,
    };
    Some((0..end, colour))
}

/// Whether colours are wanted, by the variables of the environment: not with `NO_COLOR` (<https://no-color.org>), nor on a
/// terminal that has none.
#[must_use]
pub fn wants_colours(no_color: Option<&str>, term: Option<&str>) -> bool {
    no_color.is_none_or(str::is_empty) && term != Some("dumb")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn rows(rows: &[&[&str]]) -> Vec<Vec<String>> {
        rows.iter().map(|row| row.iter().map(|cell| (*cell).to_owned()).collect()).collect()
    }

    #[track_caller]
    fn check(header: &[&str], cells: &[&[&str]], width: Option<usize>, wanted: &str, cut: (usize, usize)) {
        let table = format(header, rows(cells), TableForm { width, colours: false });
        assert_eq!(table.text, wanted);
        assert_eq!((table.cut_columns, table.cut_rows), cut);
    }

    #[test]
    fn tables_line_up() {
        check(&["NAME", "N"], &[&["a", "1"], &["longer", "2"]], None, "NAME    N\na       1\nlonger  2\n", (0, 0));
        let content = "content  {\n           \"a\": 1\n         }\n";
        check(&[], &[&["content", "{\n  \"a\": 1\n}"]], Some(5), content, (0, 0));
        check(&["A", "B"], &[&["世界", "x"], &["", ""], &["y", ""]], None, "A     B\n世界  x\n\ny\n", (0, 0));
    }

    #[test]
    fn widest_column_that_may_be_shortened_gives_way() {
        let cells: &[&[&str]] =
            &[&["0198c1f2-aaaa", "done", "systemctl restart shop and more"], &["b", "failed", "ls"]];
        let header = ["ID", "STATE", "WHAT"];
        let wanted = "ID             STATE   WHAT\n0198c1f2-aaaa  done    systemctl…\nb              failed  ls\n";
        check(&header, cells, Some(34), wanted, (1, 1));
        check(&header, cells, Some(33), wanted, (1, 1));
        // Ids are typed again: the terminal wraps the line.
        check(&header, cells, Some(5), wanted, (1, 1));
        let whole = "ID             STATE   WHAT\n0198c1f2-aaaa  done    systemctl restart shop and more\nb              failed  ls\n";
        check(&header, cells, Some(54), whole, (0, 0));
        check(&header, cells, None, whole, (0, 0));
    }

    #[test]
    fn several_wide_columns_give_way_together() {
        let (one, two) = ("a".repeat(40), "b".repeat(30));
        let table =
            format(&["N", "ONE", "TWO"], rows(&[&["1", &one, &two]]), TableForm { width: Some(39), colours: false });
        let lengths: Vec<usize> =
            table.text.lines().nth(1).unwrap().split("  ").map(|cell| cell.chars().count()).collect();
        assert_eq!((lengths, table.cut_columns), (vec![1, 17, 17], 2), "{}", table.text);
    }

    #[test]
    fn cut_is_reported() {
        let cut = |cut_columns, cut_rows| TableText { cut_columns, cut_rows, ..TableText::default() }.notice();
        assert_eq!(cut(0, 0), None);
        let ending = "shortened to fit the terminal; -o json shows all";
        assert_eq!(cut(1, 1), Some(format!("1 column of 1 row was {ending}")));
        assert_eq!(cut(3, 12), Some(format!("3 columns of 12 rows were {ending}")));
    }

    #[test]
    fn states_have_colours() {
        let form = TableForm { width: None, colours: true };
        let table =
            format(&["HOST", "STATE"], rows(&[&["running", "running"], &["b", "failed (2)"], &["c", "stopped"]]), form);
        let wanted =
            "HOST     STATE\nrunning  \x1b[32mrunning\x1b[0m\nb        \x1b[31mfailed\x1b[0m (2)\nc        stopped\n";
        assert_eq!(table.text, wanted);
        let lines = format(&[], rows(&[&["presence", "online since 3 s ago"], &["note", "online"]]), form).text;
        assert_eq!(lines, "presence  \x1b[32monline\x1b[0m since 3 s ago\nnote      online\n");
        let plain = format(&["STATE"], rows(&[&["running"]]), TableForm::default()).text;
        assert_eq!(plain, "STATE\nrunning\n");
    }

    #[test]
    fn no_color_and_dumb_terminals_have_no_colours() {
        for (no_color, term, wanted) in [
            (None, Some("xterm"), true),
            (None, None, true),
            (Some(""), Some("xterm"), true),
            (Some("1"), Some("xterm"), false),
            (None, Some("dumb"), false),
        ] {
            assert_eq!(wants_colours(no_color, term), wanted, "{no_color:?} {term:?}");
        }
    }

    proptest! {
        #[test]
        fn table_fits_where_columns_may_be_shortened(
            cells in prop::collection::vec(prop::collection::vec("[a-zé世 ]{0,40}", 3), 0..5), width in 40_usize..120
        ) {
            let cells: Vec<Vec<String>> = cells.into_iter().map(|mut row| { row[0] = "x".to_owned(); row }).collect();
            let table = format(&["ID", "B", "C"], cells, TableForm { width: Some(width), colours: false });
            for line in table.text.lines() {
                prop_assert!(line.width() <= width, "{}", table.text);
            }
        }
    }
}
