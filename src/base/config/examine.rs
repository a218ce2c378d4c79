//! Reads a configuration to its end: everything that is wrong in it, and where each key is set. It opens nothing else.

use std::{collections::BTreeMap, ops::Range, path::Path};

use schemars::JsonSchema;
use serde::{Deserialize, de::DeserializeOwned};
use toml::{
    Spanned,
    de::{DeTable, DeValue, Deserializer},
};

use muster_rules::{mask::is_secret_key, unknown_keys::nearest};
use muster_topics::unit::MASK;

use super::{
    ConfigError, explain,
    removed::{self, RemovedKey},
    shape::{KeyShape, insert, known_keys, leaves, variable_value, variables},
};

/// Where the value of a key is from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeySource {
    /// The file, at this line, counted from 1.
    File {
        /// The line.
        line: usize,
    },
    /// A variable of the environment.
    Variable {
        /// Its name.
        name: String,
    },
}

/// What there is in a configuration.
#[derive(Debug)]
pub struct Examination<T> {
    /// The configuration, with its defaults in place of what is wrong; nothing if that is impossible.
    pub config: Option<T>,
    /// Everything that is wrong: of the file from its beginning to its end, then of variables.
    pub problems: Vec<ConfigError>,
    /// Every key that there is, by its path, with its source; nothing for one that keeps its default.
    pub keys: BTreeMap<String, Option<KeySource>>,
}

/// Examines the configuration of `role`, as [`super::load`] reads it.
#[must_use]
pub fn examine<T>(
    role: &str,
    path: Option<&Path>,
    environment: impl IntoIterator<Item = (String, String)>,
) -> Examination<T>
where
    T: DeserializeOwned + JsonSchema,
{
    let shape = known_keys(schemars::schema_for!(T).as_value());
    let keys = leaves(&shape).into_iter().map(|key| (key, None)).collect();
    let mut found = Examination { config: None, problems: Vec::new(), keys };
    let mut table = match path {
        Some(path) => found.read_file(role, path, &shape),
        None => toml::Table::new(),
    };
    found.read_variables(role, &mut table, &shape, environment);
    let config = toml::Value::Table(table).try_into();
    if let (Err(error), true) = (&config, found.problems.is_empty()) {
        let path = path.unwrap_or(Path::new("(none)")).to_owned();
        let message = toml::de::Error::to_string(error);
        found.problems.push(ConfigError::Invalid { path, message });
    }
    found.config = config.ok();
    found
}

impl<T: DeserializeOwned> Examination<T> {
    /// Reads what can be read of the file.
    fn read_file(&mut self, role: &str, path: &Path, shape: &KeyShape) -> toml::Table {
        let text = match crate::files::read_text(path) {
            Ok(text) => text,
            Err(source) => {
                self.problems.push(ConfigError::Read { path: path.to_owned(), source });
                return toml::Table::new();
            }
        };
        let invalid = |message: String| ConfigError::Invalid { path: path.to_owned(), message };
        let mut document = match DeTable::parse(&text) {
            Ok(document) => document,
            Err(error) => {
                self.problems.push(invalid(explain(&text, &error)));
                return toml::Table::new();
            }
        };
        let line = |offset: usize| text[..offset.min(text.len())].matches('\n').count() + 1;
        let mut wrong = Vec::new();
        let role = removed::of_role(role);
        take_unknown(document.get_mut(), (shape, ""), &role, &mut |offset, key, hint| {
            let (path, line) = (path.to_owned(), line(offset));
            wrong.push((
                offset,
                match hint {
                    UnknownHint::Gone(hint) => ConfigError::RemovedKey { path, line, key, hint },
                    UnknownHint::Near(hint) => ConfigError::UnknownKey { path, line, key, hint },
                },
            ));
        });
        // Each round takes what is wrong away, until the rest is right. What is missing then was named before.
        let mut taken: Vec<String> = Vec::new();
        while let Err(error) = T::deserialize(Deserializer::from(document.clone())) {
            let offset = error.span().map_or(0, |span| span.start);
            let is_known = taken.iter().any(|name| error.message() == format!("missing field `{name}`"));
            if !is_known {
                wrong.push((offset, invalid(explain(&text, &error))));
            }
            match error.span().and_then(|span| take_at(document.get_mut(), &span)) {
                Some(name) => taken.push(name),
                None => {
                    document = Spanned::new(0..0, DeTable::new());
                    break;
                }
            }
        }
        wrong.sort_by_key(|(offset, _)| *offset);
        self.problems.extend(wrong.into_iter().map(|(_, problem)| problem));
        note_lines(document.get_ref(), shape, "", &mut |key, offset| {
            self.keys.insert(key, Some(KeySource::File { line: line(offset) }));
        });
        toml::Table::deserialize(Deserializer::from(document)).unwrap_or_default()
    }

    /// Puts the variables of the environment in the place of what the file says.
    fn read_variables(
        &mut self,
        role: &str,
        table: &mut toml::Table,
        shape: &KeyShape,
        environment: impl IntoIterator<Item = (String, String)>,
    ) {
        let prefix = format!("MUSTER_{}_", role.to_uppercase());
        let variables = variables(&prefix, shape);
        for (name, text) in environment.into_iter().filter(|(name, _)| name.starts_with(&prefix)) {
            let Some((place, key)) = variables.get(&name) else {
                let is_it = |removed: &&RemovedKey| removed.role == role && removed.variable() == name;
                self.problems.push(match removed::REMOVED.iter().find(is_it) {
                    Some(removed) => ConfigError::RemovedVariable { name, hint: removed.hint() },
                    None => {
                        let hint = nearest(&name, variables.keys().map(String::as_str));
                        ConfigError::UnknownVariable { name, hint }
                    }
                });
                continue;
            };
            let mut with = table.clone();
            insert(&mut with, place, variable_value(key, &text));
            let parsed: Result<T, toml::de::Error> = toml::Value::Table(with.clone()).try_into();
            match parsed {
                Ok(_) => {
                    *table = with;
                    self.keys.insert(place.join("."), Some(KeySource::Variable { name }));
                }
                Err(error) => {
                    let message = error.to_string().trim_end().to_owned();
                    let message = if is_secret_key(&name) { message.replace(&text, MASK) } else { message };
                    self.problems.push(ConfigError::Variable { name, message });
                }
            }
        }
    }
}

/// Why a key is unknown.
enum UnknownHint {
    /// There was one of this name.
    Gone(String),
    /// There never was.
    Near(String),
}

/// Takes every unknown key out of a table, and says where it was, its whole name, and what helps.
fn take_unknown(
    table: &mut DeTable<'_>,
    (shape, above): (&KeyShape, &str),
    removed: &[&RemovedKey],
    say: &mut impl FnMut(usize, String, UnknownHint),
) {
    let known = match shape {
        KeyShape::Table(known) | KeyShape::Tables(known) => known,
        KeyShape::Value { .. } | KeyShape::Open => return,
    };
    let mut unknown = Vec::new();
    for (key, value) in table.iter_mut() {
        let name: &str = key.get_ref();
        let full = join(above, name);
        let offset = key.span().start;
        let shape = known.get(name);
        let gone = removed.iter().find(|removed| removed.key == full);
        let below = format!("{full}.");
        let is_gone_table = shape.is_none() && removed.iter().any(|removed| removed.key.starts_with(&below));
        match (shape, value.get_mut()) {
            (Some(shape), DeValue::Table(inner)) => take_unknown(inner, (shape, &full), removed, say),
            (Some(shape), DeValue::Array(all)) => {
                for one in all.iter_mut() {
                    if let DeValue::Table(inner) = one.get_mut() {
                        take_unknown(inner, (shape, &full), removed, say);
                    }
                }
            }
            (Some(_), _) => {}
            // Each of its keys has a successor of its own.
            (None, DeValue::Table(inner)) if is_gone_table && !inner.is_empty() => {
                take_unknown(inner, (&KeyShape::Table(BTreeMap::new()), &full), removed, say);
            }
            (None, _) => say(
                offset,
                full,
                match gone {
                    Some(removed) => UnknownHint::Gone(removed.hint()),
                    // Of a table that is gone nothing is known.
                    None if known.is_empty() => UnknownHint::Near("`--print-config` shows every key".to_owned()),
                    None => UnknownHint::Near(nearest(name, known.keys().map(String::as_str))),
                },
            ),
        }
        if shape.is_none() {
            unknown.push(name.to_owned());
        }
    }
    for name in unknown {
        table.remove(name.as_str());
    }
}

/// Takes the deepest key whose name or value is at a place out of a table; returns its name.
fn take_at(table: &mut DeTable<'_>, place: &Range<usize>) -> Option<String> {
    let is_in = |span: Range<usize>| span.start <= place.start && place.start < span.end.max(span.start + 1);
    for (_, value) in table.iter_mut() {
        let taken = match value.get_mut() {
            DeValue::Table(inner) => take_at(inner, place),
            DeValue::Array(all) => all.iter_mut().find_map(|one| match one.get_mut() {
                DeValue::Table(inner) => take_at(inner, place),
                _ => None,
            }),
            _ => None,
        };
        if taken.is_some() {
            return taken;
        }
    }
    let found = table.iter().find(|(key, value)| {
        let is_inside = match value.get_ref() {
            DeValue::Array(all) => all.iter().any(|one| is_in(one.span())),
            _ => false,
        };
        is_in(key.span()) || is_in(value.span()) || is_inside
    });
    let name = found.map(|(key, _)| key.get_ref().as_ref().to_owned())?;
    table.remove(name.as_str()).map(|_| name)
}

/// Says of each key of a table where it is.
fn note_lines(table: &DeTable<'_>, shape: &KeyShape, above: &str, say: &mut impl FnMut(String, usize)) {
    let KeyShape::Table(known) = shape else { return };
    for (key, value) in table {
        let full = join(above, key.get_ref());
        match (known.get(key.get_ref().as_ref()), value.get_ref()) {
            (Some(shape @ KeyShape::Table(_)), DeValue::Table(inner)) => note_lines(inner, shape, &full, say),
            _ => say(full, key.span().start),
        }
    }
}

fn join(above: &str, name: &str) -> String {
    if above.is_empty() { name.to_owned() } else { format!("{above}.{name}") }
}
