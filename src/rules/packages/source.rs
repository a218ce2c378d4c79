//! The repositories that a host has already, as apt lists them and as its files have them; and which of a spec's are left to be
//! added.
//!
//! **Invariant: no repository is added beside one of the same address and suite with another key**: apt reads no sources at all then.

use std::collections::BTreeSet;

use base64::{Engine, engine::general_purpose::STANDARD as BASE64};
use muster_topics::{diagnostic::Diagnostic, packages::Repository};

/// What apt is asked to list of each index (`apt-get indextargets --format`), for [`parse`].
pub const FORMAT: &str = "$(REPO_URI) $(RELEASE) $(COMPONENT) $(TARGET_OF) $(SOURCESENTRY)";

/// A component of a repository that a host has.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct HostSource {
    /// Its address, with a slash at its end.
    pub url: String,
    /// Its suite.
    pub suite: String,
    /// The component; `None` in a flat repository.
    pub component: Option<String>,
    /// Whether it has packages, rather than their source.
    pub is_binary: bool,
    /// The file that says so.
    pub file: String,
    /// Which of its entries: a line, or a paragraph.
    pub entry: usize,
}

/// Parses what apt lists.
#[must_use]
pub fn parse(output: &str) -> BTreeSet<HostSource> {
    let one = |line: &str| {
        let mut words = line.splitn(5, ' ');
        let (url, suite, component, kind) = (words.next()?, words.next()?, words.next()?, words.next()?);
        let (file, entry) = words.next()?.rsplit_once(':')?;
        Some(HostSource {
            url: url.to_owned(),
            suite: suite.to_owned(),
            component: (!component.starts_with('$')).then(|| component.to_owned()),
            is_binary: kind == "deb",
            file: file.to_owned(),
            entry: entry.parse().ok()?,
        })
    };
    output.lines().filter_map(one).collect()
}

/// What an entry of a file of sources says of the key that signs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SignedBy {
    /// Nothing: any key that the host trusts.
    Any,
    /// Files, or fingerprints.
    Named(Vec<String>),
    /// The key itself.
    Key(String),
}

/// Finds what an entry says of its key. The file is of the format of paragraphs if its name ends with `.sources`.
#[must_use]
pub fn signed_by(file: &str, text: &str, entry: usize) -> SignedBy {
    let said = match file.ends_with(".sources") {
        true => paragraph(text, entry).and_then(|lines| field(&lines, "signed-by")),
        false => text.lines().nth(entry.saturating_sub(1)).and_then(option_of_line),
    };
    match said.as_deref().map(str::trim) {
        None | Some("") => SignedBy::Any,
        Some(key) if key.contains("-----BEGIN") => SignedBy::Key(key.to_owned()),
        Some(named) => {
            let words = named.split([',', ' ', '\t', '\n']).filter(|word| !word.is_empty());
            SignedBy::Named(words.map(ToOwned::to_owned).collect())
        }
    }
}

/// Returns a paragraph without comments. As apt counts them, one of comments alone counts none.
fn paragraph(text: &str, number: usize) -> Option<Vec<&str>> {
    let mut paragraphs = vec![Vec::new()];
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        match (line.trim().is_empty(), paragraphs.last_mut()) {
            (true, Some(last)) if last.is_empty() => {}
            (false, Some(last)) => last.push(line),
            _ => paragraphs.push(Vec::new()),
        }
    }
    paragraphs.into_iter().nth(number.checked_sub(1)?)
}

/// Returns the value of a field, with its further lines; a dot alone is an empty line.
fn field(lines: &[&str], name: &str) -> Option<String> {
    let is_it = |line: &str| {
        let found = line.split_once(':').map(|(found, _)| found);
        !line.starts_with([' ', '\t']) && found.is_some_and(|found| found.trim().eq_ignore_ascii_case(name))
    };
    let at = lines.iter().position(|line| is_it(line))?;
    let mut value = lines.get(at)?.split_once(':')?.1.trim().to_owned();
    for line in lines.iter().skip(at + 1).take_while(|line| line.starts_with([' ', '\t'])) {
        value.push('\n');
        value.push_str(match line.trim() {
            "." => "",
            other => other,
        });
    }
    Some(value)
}

/// Returns the option `signed-by` of `deb [NAME=VALUE …] …`.
fn option_of_line(line: &str) -> Option<String> {
    let (options, _) = line.split_once('[')?.1.split_once(']')?;
    let words = options.split_whitespace().filter_map(|word| word.split_once('='));
    words.into_iter().find(|(name, _)| name.eq_ignore_ascii_case("signed-by")).map(|(_, value)| value.to_owned())
}

/// Returns a key as it is without armour.
#[must_use]
pub fn bare_key(key: &[u8]) -> Vec<u8> {
    let Some(text) = std::str::from_utf8(key).ok().filter(|text| text.trim_start().starts_with("-----BEGIN")) else {
        return key.to_vec();
    };
    let is_body = |line: &&str| !line.starts_with("-----") && !line.starts_with('=') && !line.contains(':');
    let body: String = text.trim().lines().map(str::trim).filter(is_body).collect();
    BASE64.decode(body).unwrap_or_else(|_| key.to_vec())
}

/// What a host has of a repository that a spec wants, in somebody's file.
#[derive(Clone, Debug)]
pub struct Rival {
    /// The component.
    pub source: HostSource,
    /// Whether the file is of units, with the same key: those may have it together.
    pub is_shared: bool,
    /// Whether its key is the same.
    pub has_same_key: bool,
}

/// Decides whether a repository has to be added to a host that has these of the same address and suite.
///
/// # Errors
/// If it cannot be added; with the reason, which names the file.
pub fn is_to_be_added(repository: &Repository, rivals: &[Rival]) -> Result<bool, Diagnostic> {
    let Repository { suite, components, .. } = repository;
    let url = repository.address();
    if let Some(other) = rivals.iter().find(|rival| !rival.has_same_key) {
        return Err(Diagnostic::new(format_args!(
            "{} has the repository {url} {suite} with another key or none; \
                 apt reads no sources at all if these differ, so nothing was changed",
            other.source.file
        ))
        .with_hint("remove it from that file, or leave it out of `repositories`"));
    }
    let Some(own) = rivals.iter().find(|rival| !rival.is_shared) else { return Ok(true) };
    let has = |component: &String| {
        rivals.iter().any(|rival| rival.source.is_binary && rival.source.component.as_ref() == Some(component))
    };
    let missing: Vec<&str> = components.iter().filter(|name| !has(name)).map(String::as_str).collect();
    let has_packages = rivals.iter().any(|rival| rival.source.is_binary);
    match missing.is_empty() && has_packages {
        true => Ok(false),
        false => Err(Diagnostic::new(format_args!(
            "{} has the repository {url} {suite} without {}, so nothing was changed",
            own.source.file,
            if missing.is_empty() {
                "its packages".to_owned()
            } else {
                format!("the component {}", missing.join(", "))
            }
        ))
        .with_hint("add that to the file, or remove the repository from it")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_apt_lists_is_parsed() {
        let output = "http://a/ stable main deb /etc/apt/sources.list.d/my own.list:3\n\
                      http://a/ stable main deb /etc/apt/sources.list.d/my own.list:3\n\
                      http://b/x/ ./ $(COMPONENT) deb-src /b.sources:1\n\nbad\n";
        let source = |url: &str, suite: &str, component: Option<&str>, is_binary, file: &str, entry| HostSource {
            url: url.into(),
            suite: suite.into(),
            component: component.map(Into::into),
            is_binary,
            file: file.into(),
            entry,
        };
        assert_eq!(
            parse(output).into_iter().collect::<Vec<_>>(),
            [
                source("http://a/", "stable", Some("main"), true, "/etc/apt/sources.list.d/my own.list", 3),
                source("http://b/x/", "./", None, false, "/b.sources", 1)
            ]
        );
    }

    #[test]
    fn key_of_an_entry_is_found_in_both_formats() {
        let lines = "# deb [signed-by=/no.gpg] http://c d e\n\n  deb [arch=amd64  Signed-By=/x.gpg,/y.gpg] \
                 http://l d a\ndeb http://n d a # [signed-by=/z]\n";
        let paragraphs = "# a comment alone\n\n# more\nTypes: deb\nURIs: http://one\n\nEnabled: no\nURIs: http://off\n\n\
                          types: deb\nsigned-by: /a.gpg,\n /b.gpg\nuris: http://three\n\nTypes: deb\nSigned-By:\n \
                          -----BEGIN PGP PUBLIC KEY BLOCK-----\n .\n AAEC\n =aaaa\n -----END PGP PUBLIC KEY BLOCK-----\nSuites: x\n";
        let named = |names: &[&str]| SignedBy::Named(names.iter().map(|name| (*name).to_owned()).collect());
        for (file, text, entry, wanted) in [
            ("/a.list", lines, 3, named(&["/x.gpg", "/y.gpg"])),
            ("/a.list", lines, 9, SignedBy::Any),
            ("/a.sources", paragraphs, 1, SignedBy::Any),
            ("/a.sources", paragraphs, 3, named(&["/a.gpg", "/b.gpg"])),
            ("/a.sources", paragraphs, 0, SignedBy::Any),
            ("/a.sources", paragraphs, 9, SignedBy::Any),
        ] {
            assert_eq!(signed_by(file, text, entry), wanted, "{file} {entry}");
        }
        let SignedBy::Key(key) = signed_by("/a.sources", paragraphs, 4) else { panic!("the key itself") };
        assert_eq!(bare_key(key.as_bytes()), [0, 1, 2]);
        assert_eq!(bare_key(&[0, 1, 2]), [0, 1, 2]);
        let armoured =
            "-----BEGIN PGP PUBLIC KEY BLOCK-----\r\nVersion: x\r\n\r\nAAEC\r\n-----END PGP PUBLIC KEY BLOCK-----\r\n";
        assert_eq!(bare_key(armoured.as_bytes()), [0, 1, 2]);
    }

    #[test]
    fn repository_is_added_beside_none_but_shared_ones() {
        let repository = |components: &[&str]| Repository {
            url: "http://a".into(),
            suite: "stable".into(),
            components: components.iter().map(|name| (*name).to_owned()).collect(),
            key: String::new(),
            login: None,
        };
        let rival = |component: Option<&str>, is_shared, has_same_key| Rival {
            source: HostSource {
                url: "http://a/".into(),
                suite: "stable".into(),
                component: component.map(Into::into),
                is_binary: true,
                file: "/etc/apt/mine.list".into(),
                entry: 1,
            },
            is_shared,
            has_same_key,
        };
        let source_alone = |mut rival: Rival| {
            rival.source.is_binary = false;
            rival
        };
        for (components, rivals, wanted) in [
            (&["main"][..], vec![], Ok(true)),
            (&["main"], vec![rival(Some("main"), true, true)], Ok(true)),
            (&["main"], vec![rival(Some("main"), false, true)], Ok(false)),
            (&[], vec![rival(None, false, true)], Ok(false)),
            (
                &["main"],
                vec![rival(Some("other"), false, false)],
                Err("/etc/apt/mine.list has the repository http://a/"),
            ),
            (&["main"], vec![rival(Some("main"), true, false)], Err("with another key")),
            (&["main", "extra"], vec![rival(Some("main"), false, true)], Err("without the component extra")),
            (&["main"], vec![source_alone(rival(Some("main"), false, true))], Err("without the component main")),
            (&[], vec![source_alone(rival(None, false, true))], Err("without its packages")),
        ] {
            match (is_to_be_added(&repository(components), &rivals), wanted) {
                (Ok(found), Ok(wanted)) => assert_eq!(found, wanted, "{rivals:?}"),
                (Err(found), Err(words)) => assert!(found.cause.contains(words) && found.hint.is_some(), "{found}"),
                other => panic!("{other:?}"),
            }
        }
    }
}
