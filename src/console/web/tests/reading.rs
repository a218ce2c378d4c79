//! What a screen reader says of each sample of each page, held by the files in `tests/snapshots/pages`.
//!
//! [`read`] makes it of the HTML alone: headings with their levels, landmarks, links with where they lead, what can be filled
//! in or pressed, and the cells of tables in order. What is hidden is left out, and a label for screen readers stands in the
//! place of what is shown.

use std::{collections::BTreeSet, iter::Peekable, path::Path, vec::IntoIter};

use muster_test_support::snapshots::Snapshots;
use uuid::Uuid;

use super::pieces::{Piece, VOID, pieces, value};
use crate::web::view::samples::pages;

const COMMAND: &str = "cargo test -p muster-console --lib reading::";

#[test]
fn every_page_reads_as_its_snapshot() {
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap();
    let mut snapshots = Snapshots::of(&top.join("tests/snapshots/pages"), COMMAND);
    for (name, page) in pages() {
        let said = without_ids(&read(&page.into_string()));
        // What all pages have in common is held once.
        let said = if name == "hosts" { said } else { without_frame(&said) };
        snapshots.check(name, &said);
    }
    snapshots.finish();
}

/// Replaces ids, which samples make by chance, and their beginnings, by which hosts of one name are told apart.
fn without_ids(text: &str) -> String {
    const SHOWN: usize = 8;
    let is_end = |letter: char| !letter.is_ascii_hexdigit() && letter != '-';
    let ids: BTreeSet<&str> = text.split(is_end).filter(|word| Uuid::try_parse(word).is_ok()).collect();
    let is_begin = |word: &str| word.len() == SHOWN && ids.iter().any(|id| id.starts_with(word));
    let words = text.split_inclusive(is_end).map(|word| match word.trim_end_matches(is_end) {
        id if ids.contains(id) || is_begin(id) => word.replace(id, "ID"),
        _ => word.to_owned(),
    });
    words.collect()
}

/// Leaves out what stands between the title and the page's own content.
fn without_frame(text: &str) -> String {
    match (text.split_once('\n'), text.split_once("\n[main]\n")) {
        (Some((title, _)), Some((_, content))) => format!("{title}\n{content}"),
        _ => text.to_owned(),
    }
}

/// An element with what is in it, or a text.
enum Node<'a> {
    Element { name: &'a str, attributes: Vec<(&'a str, &'a str)>, children: Vec<Self> },
    Text(&'a str),
}

/// The nodes up to the end of the element that is open.
fn nodes<'a>(pieces: &mut Peekable<IntoIter<Piece<'a>>>) -> Vec<Node<'a>> {
    let mut nodes = Vec::new();
    while let Some(piece) = pieces.next_if(|piece| !matches!(piece, Piece::Close(_))) {
        match piece {
            Piece::Open { name, attributes } => {
                let children = if VOID.contains(&name) { Vec::new() } else { nodes_of(pieces) };
                nodes.push(Node::Element { name, attributes, children });
            }
            Piece::Text(text) => nodes.push(Node::Text(text)),
            Piece::Close(_) => {}
        }
    }
    nodes
}

/// The nodes of an element, whose end is passed over.
fn nodes_of<'a>(pieces: &mut Peekable<IntoIter<Piece<'a>>>) -> Vec<Node<'a>> {
    let nodes = nodes(pieces);
    pieces.next();
    nodes
}

/// What a screen reader says of a document or a part of one, in lines.
fn read(html: &str) -> String {
    let nodes = nodes(&mut pieces(html).into_iter().peekable());
    let mut reader = Reader::default();
    nodes.iter().for_each(|node| reader.node(node));
    reader.end_line();
    reader.lines.join("\n")
}

/// Text as it was before it was escaped.
fn unescaped(text: &str) -> String {
    text.replace("&lt;", "<").replace("&gt;", ">").replace("&quot;", "\"").replace("&amp;", "&")
}

/// What it has said so far.
#[derive(Default)]
struct Reader {
    lines: Vec<String>,
    line: String,
}

impl Reader {
    fn end_line(&mut self) {
        let line = std::mem::take(&mut self.line);
        if !line.trim().is_empty() {
            self.lines.push(line.trim_end().to_owned());
        }
    }

    /// Adds a text to the line; blanks are one.
    fn say(&mut self, text: &str) {
        if text.starts_with(char::is_whitespace) && !self.line.is_empty() && !self.line.ends_with(' ') {
            self.line.push(' ');
        }
        self.line.push_str(&text.split_whitespace().collect::<Vec<_>>().join(" "));
        if text.ends_with(char::is_whitespace) && !self.line.is_empty() && !self.line.ends_with(' ') {
            self.line.push(' ');
        }
    }

    /// What stands beside something else, and not in its words: a control, a picture.
    fn say_apart(&mut self, text: &str) {
        self.say(&format!(" {text} "));
    }

    fn all(&mut self, nodes: &[Node<'_>]) {
        nodes.iter().for_each(|node| self.node(node));
    }

    /// Says an element that has lines of its own, after a word for it.
    fn block(&mut self, begin: &str, children: &[Node<'_>]) {
        self.end_line();
        self.line.push_str(begin);
        self.all(children);
        self.end_line();
    }

    /// Says a word for what follows, in a line of its own.
    fn mark(&mut self, what: &str, label: Option<&str>) {
        self.end_line();
        let label = label.map(|label| format!(" {}", unescaped(label))).unwrap_or_default();
        self.lines.push(format!("[{what}{label}]"));
    }

    fn node(&mut self, node: &Node<'_>) {
        match node {
            Node::Text(text) => self.say(&unescaped(text)),
            Node::Element { name, attributes, children } => self.element(name, attributes, children),
        }
    }

    fn element(&mut self, name: &str, attributes: &[(&str, &str)], children: &[Node<'_>]) {
        let of = |key: &str| value(attributes, key);
        if of("hidden").is_some() || of("aria-hidden") == Some("true") {
            return;
        }
        let label = of("aria-label");
        if let Some(role @ ("alert" | "status" | "group")) = of("role") {
            self.mark(role, label);
        }
        if of("aria-live").is_some() {
            self.mark("told when it changes", label);
        }
        match name {
            "script" | "style" | "link" | "meta" => {}
            "title" => self.block("page: ", children),
            "h1" | "h2" | "h3" | "h4" | "h5" | "h6" => {
                let level = name[1..].parse().unwrap();
                self.block(&format!("{} ", "#".repeat(level)), children);
            }
            "nav" | "main" | "header" | "footer" | "aside" | "form" | "fieldset" | "details" => {
                self.mark(of("role").unwrap_or(name), label);
                self.block("", children);
            }
            "section" if label.is_some() => {
                self.mark("section", label);
                self.block("", children);
            }
            "a" | "button" | "label" | "summary" | "select" | "textarea" | "input" | "meter" | "svg" => {
                self.control(name, attributes, children);
            }
            "table" => {
                self.mark("table", None);
                self.block("", children);
            }
            "tr" => self.row(children),
            "li" => self.block("- ", children),
            "dt" => {
                self.block("", children);
                let term = self.lines.pop().unwrap_or_default();
                self.line = format!("{term}: ");
            }
            "dd" => {
                self.all(children);
                self.end_line();
            }
            "pre" => self.preformatted(label, children),
            "br" => self.end_line(),
            _ if is_inline(name) => self.all(children),
            _ => self.block("", children),
        }
    }

    /// What can be followed, pressed or filled in, and what shows a value.
    fn control(&mut self, name: &str, attributes: &[(&str, &str)], children: &[Node<'_>]) {
        let of = |key: &str| value(attributes, key).map(unescaped);
        let text = of("aria-label").unwrap_or_else(|| within(children));
        let state: String = ["disabled", "checked", "required", "readonly", "aria-current", "aria-invalid"]
            .iter()
            .filter(|key| of(key).is_some_and(|value| value != "false"))
            .map(|key| format!(", {}", key.trim_start_matches("aria-")))
            .collect();
        match name {
            "a" => self.say(&format!("[{text}]({}){state}", of("href").unwrap_or_default())),
            "button" => self.say_apart(&format!("[button {text}{state}]")),
            "label" => {
                self.end_line();
                self.all(children);
                self.say(" ");
            }
            "summary" => self.block("[summary] ", children),
            "select" => self.say_apart(&format!("[choice of {}{state}]", options(children))),
            "textarea" => self.say_apart(&format!("[text {text:?}{state}]")),
            "meter" => self.say_apart(&format!("[meter {}]", of("value").unwrap_or_default())),
            "svg" => self.say_apart(&format!("[image {text}]")),
            _ => {
                let kind = of("type").unwrap_or_else(|| "text".to_owned());
                let filled = of("value").filter(|_| !matches!(&kind[..], "checkbox" | "radio"));
                let filled = filled.map(|value| format!(" {value:?}")).unwrap_or_default();
                let example = of("placeholder").map(|text| format!(", such as {text}")).unwrap_or_default();
                if kind != "hidden" {
                    self.say_apart(&format!("[{kind}{filled}{state}{example}]"));
                }
            }
        }
    }

    /// The cells of a row, which may have lines of their own.
    fn row(&mut self, cells: &[Node<'_>]) {
        let cells: Vec<String> = cells
            .iter()
            .filter_map(|cell| match cell {
                Node::Element { children, .. } => Some(within(children)),
                Node::Text(_) => None,
            })
            .collect();
        self.end_line();
        self.lines.push(cells.join(" | ").trim_end().to_owned());
    }

    /// A text whose lines are kept.
    fn preformatted(&mut self, label: Option<&str>, children: &[Node<'_>]) {
        self.mark("text", label);
        let text: String = children.iter().map(raw).collect();
        self.lines.extend(text.lines().map(|line| format!("    {line}").trim_end().to_owned()));
    }
}

/// Elements in the middle of a line.
fn is_inline(name: &str) -> bool {
    ["a", "abbr", "b", "code", "em", "i", "kbd", "output", "small", "span", "strong", "time"].contains(&name)
}

/// What is said of nodes, in one line.
fn within(nodes: &[Node<'_>]) -> String {
    let mut reader = Reader::default();
    reader.all(nodes);
    reader.end_line();
    let lines: Vec<&str> = reader.lines.iter().map(|line| line.trim()).collect();
    lines.join(" / ")
}

/// The text of a node as it stands.
fn raw(node: &Node<'_>) -> String {
    match node {
        Node::Text(text) => unescaped(text),
        Node::Element { children, .. } => children.iter().map(raw).collect(),
    }
}

/// The options of a choice; the one that is chosen stands between stars.
fn options(nodes: &[Node<'_>]) -> String {
    let option = |node: &Node<'_>| match node {
        Node::Element { name: "option", attributes, children } => {
            let text = within(children);
            Some(if value(attributes, "selected").is_some() { format!("*{text}*") } else { text })
        }
        Node::Element { children, .. } => Some(options(children)),
        Node::Text(_) => None,
    };
    nodes.iter().filter_map(option).collect::<Vec<_>>().join(", ")
}

#[test]
fn page_is_read_as_a_screen_reader_reads_it() {
    let html = "<!DOCTYPE html><html lang=\"en\"><head><title>Hosts</title><link rel=\"x\"></head><body>\
        <nav aria-label=\"Main\"><ul><li><a href=\"/\" aria-current=\"page\">Hosts</a></li></ul></nav>\
        <main><h1>2 &lt;hosts&gt;</h1><p>One is <b>away</b>, see <a href=\"/x\">it</a>.</p>\
        <span hidden>never</span><span aria-hidden=\"true\">→</span>\
        <form method=\"get\" action=\"/\" role=\"search\"><input type=\"hidden\" name=\"csrf\" value=\"1\">\
        <label for=\"q\">Name</label><input id=\"q\" type=\"search\" value=\"shop\" required>\
        <button type=\"submit\" aria-label=\"Find hosts\">?</button></form>\
        <table><caption class=\"visually-hidden\">Hosts</caption><thead><tr><th>Host</th><th>State</th></tr></thead>\
        <tbody><tr><td>shop-7</td><td><div>online</div><div>3 s ago</div></td></tr></tbody></table>\
        <dl><dt>Id</dt><dd>7</dd></dl><pre role=\"region\" aria-label=\"Log\">one\n  two\n</pre></main></body></html>";
    let said = "page: Hosts\n[nav Main]\n- [Hosts](/), current\n[main]\n# 2 <hosts>\nOne is away, see [it](/x).\n[search]\n\
        Name [search \"shop\", required] [button Find hosts]\n[table]\nHosts\nHost | State\nshop-7 | online / 3 s ago\n\
        Id: 7\n[text Log]\n    one\n      two";
    assert_eq!(read(html), said);
}
