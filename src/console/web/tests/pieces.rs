//! A small strict parser of pages.

/// A piece of a document.
#[derive(Debug)]
pub(super) enum Piece<'a> {
    Open { name: &'a str, attributes: Vec<(&'a str, &'a str)> },
    Close(&'a str),
    Text(&'a str),
}

/// Elements that have no end.
pub(super) const VOID: [&str; 4] = ["input", "link", "meta", "br"];

/// Takes a document apart; whatever a careful author would not write is an error.
pub(super) fn pieces(html: &str) -> Vec<Piece<'_>> {
    let mut pieces = Vec::new();
    let mut rest = html.strip_prefix("<!DOCTYPE html>").unwrap_or(html);
    while let Some(start) = rest.find('<') {
        pieces.push(Piece::Text(&rest[..start]));
        // Maud escapes `>` too, so the next one ends the tag even if a value holds one.
        let end = rest[start..].find('>').expect("a tag has an end") + start;
        let tag = &rest[start + 1..end];
        match tag.strip_prefix('/') {
            Some(name) => pieces.push(Piece::Close(name)),
            None => pieces.push(opening(tag)),
        }
        rest = &rest[end + 1..];
    }
    pieces.push(Piece::Text(rest));
    pieces
}

fn opening(tag: &str) -> Piece<'_> {
    let (name, mut rest) = tag.split_once(' ').unwrap_or((tag, ""));
    assert!(name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit()), "element <{tag}>");
    let mut attributes = Vec::new();
    while !rest.is_empty() {
        let key_end = rest.find([' ', '=']).unwrap_or(rest.len());
        let (key, after) = rest.split_at(key_end);
        let value;
        (value, rest) = match after.strip_prefix("=\"") {
            Some(quoted) => quoted.split_once('"').expect("a value has an end"),
            None => ("", after),
        };
        attributes.push((key, value));
        rest = rest.strip_prefix(' ').unwrap_or(rest);
    }
    Piece::Open { name, attributes }
}

/// The value of an attribute.
pub(super) fn value<'a>(attributes: &[(&'a str, &'a str)], wanted: &str) -> Option<&'a str> {
    attributes.iter().find(|(key, _)| *key == wanted).map(|(_, value)| *value)
}
