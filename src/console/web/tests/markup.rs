//! Renders every sample of every view, and holds what makes good markup.

use std::collections::BTreeSet;

use super::pieces::{Piece, VOID, pieces, value};
use crate::web::view::samples::{HOSTILE, pages, parts};

/// Elements are closed in order, ids are unique, nothing is inline, everything has a label.
#[track_caller]
fn check(name: &str, html: &str) {
    let pieces = pieces(html);
    let (mut open, mut ids, mut wanted_ids) = (Vec::new(), BTreeSet::new(), BTreeSet::new());
    for (index, piece) in pieces.iter().enumerate() {
        match piece {
            Piece::Open { name: element, attributes } => {
                if !VOID.contains(element) {
                    open.push(*element);
                }
                for (key, value) in attributes {
                    assert!(!key.starts_with("on") && *key != "style", "{name}: inline {key} on <{element}>");
                    assert!(!value.trim_start().starts_with("javascript:"), "{name}: {key}={value}");
                    match *key {
                        "id" => assert!(ids.insert(*value), "{name}: the id {value} is there twice"),
                        "for" | "aria-describedby" => drop(wanted_ids.insert(*value)),
                        _ => (),
                    }
                }
                check_element(name, element, attributes, &pieces[index + 1..]);
            }
            Piece::Close(element) => assert_eq!(open.pop(), Some(*element), "{name}: </{element}>"),
            Piece::Text(text) => assert!(!text.contains('>'), "{name}: {text:?}"),
        }
    }
    assert_eq!(open, Vec::<&str>::new(), "{name}");
    assert!(wanted_ids.is_subset(&ids), "{name}: {wanted_ids:?} should all be among {ids:?}");
}

/// What single elements have to have.
#[track_caller]
fn check_element(page: &str, element: &str, attributes: &[(&str, &str)], after: &[Piece<'_>]) {
    let text = || -> String {
        let closed = after.iter().take_while(|piece| !matches!(piece, Piece::Close(closed) if *closed == element));
        closed.filter_map(|piece| if let Piece::Text(text) = piece { Some(*text) } else { None }).collect()
    };
    let named = |key: &str| value(attributes, key).is_some_and(|value| !value.trim().is_empty());
    match element {
        "button" => {
            assert!(!text().trim().is_empty() || named("aria-label"), "{page}: a button without a label");
            assert!(named("type"), "{page}: a button without a type");
        }
        "a" => {
            assert!(!text().trim().is_empty(), "{page}: a link without a text");
            let href = value(attributes, "href").unwrap_or_default();
            assert!(href.starts_with('/') || href.starts_with('#'), "{page}: a link to {href:?}");
        }
        "input" if value(attributes, "type") != Some("hidden") => {
            let kind = value(attributes, "type").unwrap_or_default();
            // Those lie within their labels.
            assert!(
                named("id") || matches!(kind, "checkbox" | "radio"),
                "{page}: an input without an id for its label"
            );
        }
        "select" | "textarea" => assert!(named("id"), "{page}: a <{element}> without an id for its label"),
        "script" => assert!(named("src") && text().is_empty(), "{page}: a script within the page"),
        "style" => panic!("{page}: styles within the page"),
        "table" => {
            let caption = matches!(after.get(1), Some(Piece::Open { name: "caption", .. }));
            assert!(caption, "{page}: a table without a caption");
        }
        "form" => {
            let method = value(attributes, "method");
            assert!(
                value(attributes, "action").is_some_and(|action| action.starts_with('/')),
                "{page}: a form to nowhere"
            );
            let token = matches!(after.get(1), Some(Piece::Open { name: "input", attributes })
                                 if value(attributes, "name") == Some("csrf"));
            let sign_in = value(attributes, "action") == Some("/sign-in");
            assert!(method == Some("get") || token || sign_in, "{page}: a form without its token");
        }
        _ => (),
    }
}

#[test]
fn every_page_is_well_formed() {
    for (name, page) in pages() {
        let html = page.into_string();
        check(name, &html);
        assert_eq!(html.matches("<h1").count(), 1, "{name}: one h1");
        assert!(html.starts_with("<!DOCTYPE html><html lang=\"en\""), "{name}");
        assert_eq!(html.matches("<title>").count(), 1, "{name}");
        if let Ok(folder) = std::env::var("MUSTER_SAMPLES") {
            // To look at: a folder with `assets` of this module in it.
            let html = html.replace("href=\"/assets/", "href=\"assets/").replace("src=\"/assets/", "src=\"assets/");
            std::fs::write(std::path::Path::new(&folder).join(format!("{name}.html")), html).unwrap();
        }
    }
}

/// Were hostile text taken for markup anywhere, this element would be there: no page has one of its own.
#[test]
fn text_is_escaped() {
    let mut hostile = 0;
    for (name, page) in pages() {
        let html = page.into_string();
        assert!(!html.contains("<img") && !html.contains("<script>"), "{name}");
        hostile += usize::from(html.contains("&lt;script&gt;alert"));
    }
    assert!(hostile >= 9, "{HOSTILE} has to come in somewhere: {hostile}");
}

#[test]
fn every_region_is_served_alone() {
    let pages = pages();
    for (name, parts) in parts() {
        let page = pages.iter().find(|(page, _)| *page == name).map(|(_, page)| page.clone().into_string()).unwrap();
        let regions = page.matches("class=\"region\"").count();
        assert_eq!(regions, parts.len(), "{name}");
        for (part, markup) in parts {
            assert!(page.contains(&format!("part={part}\"")), "{name} {part}");
            let html = markup.unwrap_or_else(|| panic!("{name} has no part {part}")).into_string();
            check(&format!("{name} {part}"), &html);
            assert!(!html.contains("<form"), "{name} {part}: what somebody types in would be replaced");
        }
    }
}

/// Values of a unit's environment may be secrets.
#[test]
fn environments_show_only_names() {
    let (_, unit) = pages().into_iter().find(|(name, _)| *name == "unit").unwrap();
    let html = unit.into_string();
    assert!(html.contains("LOG_LEVEL") && !html.contains("value-of-it"));
}

/// What the module's prose promises, as far as the source text shows it.
#[test]
fn views_are_pure_and_use_no_raw_markup() {
    let web = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("web");
    let mut files = 0;
    for folder in ["", "page", "view"] {
        for entry in std::fs::read_dir(web.join(folder)).unwrap() {
            let path = entry.unwrap().path();
            let Ok(text) = std::fs::read_to_string(&path) else { continue };
            let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
            let forbidden: &[&str] = if folder == "view" {
                &["PreEscaped", "clock::", "async ", "std::fs", "Console>"]
            } else {
                &["PreEscaped"]
            };
            for line in code {
                assert!(!forbidden.iter().any(|word| line.contains(word)), "{}: {line}", path.display());
            }
            files += 1;
        }
    }
    assert!(files > 30, "{files} files");
}
