//! What a template names. Values are found by the engine's own parser; secrets, endpoints and assignments by the words
//! of its tags.

use std::collections::BTreeSet;

use muster_topics::name::Name;

use super::{
    environment,
    fault::{self, FUNCTIONS, RenderFault},
    values::{RenderValues, ValueRoot},
};

/// What a template names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TemplateNames {
    /// The secrets.
    pub secrets: BTreeSet<String>,
    /// The endpoints that are named literally.
    pub endpoints: BTreeSet<String>,
    /// Whether it names any endpoint, however.
    pub has_endpoint: bool,
    /// The values, each as `vars.colour`; `vars` if all of a group may be meant.
    pub values: BTreeSet<String>,
}

impl TemplateNames {
    /// Adds those of another template.
    pub fn add(&mut self, other: Self) {
        let Self { secrets, endpoints, has_endpoint, values } = other;
        self.secrets.extend(secrets);
        self.endpoints.extend(endpoints);
        self.has_endpoint |= has_endpoint;
        self.values.extend(values);
    }
}

/// Finds the names of a template.
pub(super) fn find(name: &str, template: &str) -> Result<TemplateNames, RenderFault> {
    let tags = tags(template);
    let assigned = assigned(name, &tags)?;
    // The engine computes what is constant when it reads the template, and charges nothing for it.
    check_operators(name, &tags)?;
    check_growth(name, &tags, &assigned)?;
    let environment = environment();
    let compiled = environment
        .template_from_named_str(name, template)
        .map_err(|error| fault::explain(name, &error, &RenderValues::default()))?;
    let mut names = TemplateNames::default();
    for path in compiled.undeclared_variables(true) {
        let mut parts = path.split('.');
        let (word, key) = (parts.next().unwrap_or_default(), parts.next());
        let line = || line_of(&tags, word);
        match (ValueRoot::of_name(word), key) {
            (None, _) if FUNCTIONS.contains(&word) || assigned.contains(word) => {}
            (None, _) => {
                let fault = RenderFault::new(name, format!("unknown name {word}"));
                return Err(fault.at(line()).with_hint(fault::unknown_root(word)));
            }
            (Some(root), Some(key)) if root.fixed().is_some_and(|known| !known.contains(&key)) => {
                let known = root.fixed().unwrap_or_default();
                let fault = RenderFault::new(name, format!("unknown name {word}.{key}")).at(line());
                return Err(match known {
                    [] => fault.with_hint(format!("{word} is a text")),
                    _ => fault.with_hint(fault::listed(key, known.iter().copied())),
                });
            }
            (Some(_), Some(key)) => drop(names.values.insert(format!("{word}.{key}"))),
            (Some(_), None) => drop(names.values.insert(word.to_owned())),
        }
    }
    // All of a group has each of it.
    let all: Vec<String> = names.values.iter().filter(|path| !path.contains('.')).cloned().collect();
    names.values.retain(|path| !path.split_once('.').is_some_and(|(root, _)| all.iter().any(|all| all == root)));
    named_by_calls(name, &tags, &mut names)?;
    Ok(names)
}

/// Finds the secrets and endpoints that a template calls for.
fn named_by_calls(name: &str, tags: &[Tag<'_>], names: &mut TemplateNames) -> Result<(), RenderFault> {
    for Tag { words, .. } in tags {
        for (at, (line, word)) in words.iter().enumerate() {
            // The name of an attribute, or of an argument, is no call.
            let is_value = at == 0 || !matches!(words[at - 1].1, Word::Mark('.' | '|'));
            let called = match (words.get(at + 1), words.get(at + 2), words.get(at + 3)) {
                (Some((_, Word::Mark('('))), Some((_, Word::Text(text))), Some((_, Word::Mark(')')))) => Some(*text),
                _ => None,
            };
            names.has_endpoint |= is_value && *word == Word::Ident("endpoint");
            match (word, called) {
                (Word::Ident("endpoint"), Some(called)) if is_value => {
                    names.endpoints.insert(called.to_owned());
                }
                (Word::Ident("secret"), Some(called)) if is_value => {
                    if let Err(error) = called.parse::<Name>() {
                        return Err(RenderFault::new(name, format!("the secret's name: {error}")).at(*line));
                    }
                    names.secrets.insert(called.to_owned());
                }
                (Word::Ident("secret"), None) if is_value => {
                    let message = "the name of a secret must be a literal text".to_owned();
                    return Err(RenderFault::new(name, message).at(*line).with_hint("secret('NAME')"));
                }
                _ => {}
            }
        }
    }
    Ok(())
}

/// Returns the words that a template assigns values to. Those of our own values stay what they are: or the parser would not
/// see what is read of them.
fn assigned<'a>(name: &str, tags: &[Tag<'a>]) -> Result<BTreeSet<&'a str>, RenderFault> {
    let mut all = BTreeSet::new();
    for Tag { words, .. } in tags {
        let Some((_, Word::Ident(statement @ ("set" | "with" | "for")))) = words.first() else { continue };
        for (at, (line, word)) in words.iter().enumerate().skip(1) {
            let Word::Ident(target) = word else {
                match (statement, word) {
                    (&"set", Word::Mark('=')) => break,
                    _ => continue,
                }
            };
            if *statement == "for" && *target == "in" {
                break;
            }
            let is_target = *statement != "with" || matches!(words.get(at + 1), Some((_, Word::Mark('='))));
            if is_target && (ValueRoot::of_name(target).is_some() || FUNCTIONS.contains(target)) {
                let message = format!("{target} is reserved and cannot be assigned");
                return Err(RenderFault::new(name, message).at(*line).with_hint("choose another name"));
            }
            if is_target {
                all.insert(*target);
            }
        }
    }
    Ok(all)
}

/// The most work of the operators of all tags, as [`check_operators`] counts it: a thousand operators in a row. The engine takes a
/// third of a second for that, at worst.
const OPERATORS_MAX: usize = 2_000_000;

/// Refuses long rows of operators. The engine tries anew at each operator to compute all that is constant on its left side.
fn check_operators(name: &str, tags: &[Tag<'_>]) -> Result<(), RenderFault> {
    let mut work = 0_usize;
    for Tag { words, operators, bytes } in tags {
        work = work.saturating_add(operators.saturating_mul(*bytes));
        if work > OPERATORS_MAX {
            let line = words.first().map_or(1, |(line, _)| *line);
            let message = "it has too many operators in one tag, or in all".to_owned();
            return Err(RenderFault::new(name, message).at(line).with_hint("write several shorter tags"));
        }
    }
    Ok(())
}

/// The most uses of a template's own variables in statements that may make a larger value of them: with all of them in the
/// worst order, a list grows some thousand times.
const GROWTH_MAX: usize = 24;

/// What makes a list of what is given.
const LIST_MAKERS: [&str; 19] = [
    "batch",
    "chain",
    "dictsort",
    "groupby",
    "items",
    "lines",
    "list",
    "map",
    "range",
    "reject",
    "rejectattr",
    "reverse",
    "select",
    "selectattr",
    "slice",
    "sort",
    "split",
    "unique",
    "zip",
];

/// Refuses what the engine makes large without a charge: lists in lists (`a = [a, a]`), lists that are added, repeated
/// (`[0] * 99999999`), or made by a loop that calls itself. Texts, numbers and tuples are charged by their size.
fn check_growth(name: &str, tags: &[Tag<'_>], assigned: &BTreeSet<&str>) -> Result<(), RenderFault> {
    let (mut lists, mut uses) = (BTreeSet::new(), 0);
    for Tag { words, .. } in tags {
        let Some((line, first)) = words.first() else { continue };
        let fault = |message: &str| Err(RenderFault::new(name, message.to_owned()).at(*line));
        let has = |mark: char| words.iter().any(|(_, word)| *word == Word::Mark(mark));
        let idents =
            || words.iter().filter_map(|(_, word)| if let Word::Ident(ident) = word { Some(*ident) } else { None });
        let is_binding = matches!(first, Word::Ident("set" | "with" | "for"));
        let makes_list =
            has('[') || has('{') || idents().any(|ident| LIST_MAKERS.contains(&ident) || lists.contains(ident));
        if matches!(first, Word::Ident("for")) && matches!(words.last(), Some((_, Word::Ident("recursive")))) {
            return fault("a loop cannot be recursive");
        }
        let mut products = (1..words.len()).filter(|at| is_product(words, *at));
        if products.any(|at| makes_list || repeats(words, at)) {
            return fault("only numbers can be multiplied, and not in a tag with a list");
        }
        if is_binding && (makes_list || has('+')) {
            uses += idents().skip(1).filter(|ident| assigned.contains(ident)).count();
            if uses > GROWTH_MAX {
                return fault("too many variables depend on variables of the template");
            }
        }
        if is_binding && makes_list {
            lists.extend(idents().filter(|ident| assigned.contains(ident)));
        }
    }
    Ok(())
}

/// Whether a word is `*` between two values; `**` makes numbers alone, and `*values` hands over arguments.
fn is_product(words: &[(usize, Word<'_>)], at: usize) -> bool {
    let is = |at: usize, marks: &[char]| matches!(words.get(at), Some((_, Word::Mark(mark))) if marks.contains(mark));
    is(at, &['*']) && !is(at - 1, &['*', '(', ',']) && !is(at + 1, &['*'])
}

/// Whether the `*` at this place repeats a constant text, tuple or list.
fn repeats(words: &[(usize, Word<'_>)], at: usize) -> bool {
    let is_constant = |words: &[(usize, Word<'_>)]| {
        words.iter().any(|(_, word)| matches!(word, Word::Text(_) | Word::Mark(',' | '[')))
    };
    let is_name = |at: Option<usize>| matches!(at.and_then(|at| words.get(at)), Some((_, Word::Ident(_))));
    let depth_at = |word: &Word<'_>| match word {
        Word::Mark('(' | '[') => 1_i32,
        Word::Mark(')' | ']') => -1,
        _ => 0,
    };
    let before = match words[at - 1].1 {
        Word::Mark(')' | ']') => {
            let mut depth = 0;
            let open = (0..at).rev().find(|place| {
                depth -= depth_at(&words[*place].1);
                depth == 0
            });
            // A call, or a part of a value, is no constant.
            let open = open.unwrap_or_default();
            !is_name(open.checked_sub(1)) && is_constant(&words[open..at])
        }
        Word::Text(_) => true,
        _ => false,
    };
    let after = match words.get(at + 1).map(|(_, word)| word) {
        Some(Word::Mark('(' | '[')) => {
            let mut depth = 0;
            let close = (at + 1..words.len()).find(|place| {
                depth += depth_at(&words[*place].1);
                depth == 0
            });
            is_constant(&words[at + 1..close.unwrap_or(words.len())])
        }
        Some(Word::Text(_)) => true,
        _ => false,
    };
    before || after
}

fn line_of(tags: &[Tag<'_>], wanted: &str) -> usize {
    let mut words = tags.iter().flat_map(|tag| &tag.words);
    words.find(|(_, word)| *word == Word::Ident(wanted)).map_or(1, |(line, _)| *line)
}

/// A tag: `{{ … }}` or `{% … %}`.
struct Tag<'a> {
    /// Its words, each with its line.
    words: Vec<(usize, Word<'a>)>,
    /// How many of its words and marks may be operators.
    operators: usize,
    /// Its length.
    bytes: usize,
}

/// The operators that are words.
const OPERATOR_WORDS: [&str; 7] = ["and", "else", "if", "in", "is", "not", "or"];

#[derive(Clone, Copy, Debug, PartialEq)]
enum Word<'a> {
    Ident(&'a str),
    /// A text in quotes, as it is written.
    Text(&'a str),
    Mark(char),
}

/// Returns the tags of a template that the engine has accepted.
fn tags(template: &str) -> Vec<Tag<'_>> {
    let (mut tags, mut from) = (Vec::new(), 0);
    let mut is_raw = false;
    while let Some(open) = template[from..].find('{').map(|at| from + at) {
        let rest = &template[open..];
        if rest.starts_with("{#") && !is_raw {
            from = rest.find("#}").map_or(template.len(), |end| open + end + 2);
        } else if rest.starts_with("{%") || rest.starts_with("{{") && !is_raw {
            let line = 1 + template[..open].matches('\n').count();
            let (tag, end) = tag(&rest[2..], line, if rest.starts_with("{%") { "%}" } else { "}}" });
            match (is_raw, tag.words.as_slice()) {
                (false, [(_, Word::Ident("raw"))]) if rest.starts_with("{%") => is_raw = true,
                (true, [(_, Word::Ident("endraw"))]) => is_raw = false,
                (true, _) => {
                    from = open + 2;
                    continue;
                }
                (false, _) => tags.push(tag),
            }
            from = open + 2 + end;
        } else {
            from = open + 1;
        }
    }
    tags
}

/// Reads a tag up to its end; returns it with the position after that.
fn tag<'a>(text: &'a str, first_line: usize, close: &str) -> (Tag<'a>, usize) {
    let (mut words, mut at, mut line, mut depth) = (Vec::new(), 0, first_line, 0_usize);
    let mut operators = 0;
    while let Some(character) = text[at..].chars().next() {
        let rest = &text[at..];
        if depth == 0 && rest.starts_with(close) {
            at += close.len();
            break;
        }
        let length = match character {
            '\'' | '"' => {
                let mut is_escaped = false;
                let end = rest[1..].find(|one| {
                    let is_end = one == character && !is_escaped;
                    is_escaped = one == '\\' && !is_escaped;
                    is_end
                });
                let inside = &rest[1..end.map_or(rest.len(), |end| end + 1)];
                words.push((line, Word::Text(inside)));
                (inside.len() + 2).min(rest.len())
            }
            _ if character.is_alphabetic() || character == '_' => {
                let length = rest.find(|one: char| !one.is_alphanumeric() && one != '_').unwrap_or(rest.len());
                operators += usize::from(OPERATOR_WORDS.contains(&&rest[..length]));
                words.push((line, Word::Ident(&rest[..length])));
                length
            }
            _ => {
                depth = match character {
                    '{' | '(' | '[' => depth + 1,
                    '}' | ')' | ']' => depth.saturating_sub(1),
                    _ => depth,
                };
                // `==` assigns nothing.
                let is_equals =
                    character == '=' && (rest[1..].starts_with('=') || text[..at].ends_with(['=', '!', '<', '>']));
                // Marks at the ends of a tag say what becomes of the spaces around it.
                let is_trim = matches!(character, '-' | '+') && (at == 0 || rest[1..].starts_with(close));
                operators += usize::from(!is_trim && "+-*/%~<>=!".contains(character));
                if !character.is_whitespace() && !is_equals && !is_trim {
                    words.push((line, Word::Mark(character)));
                }
                character.len_utf8()
            }
        };
        line += rest[..length].matches('\n').count();
        at += length;
    }
    (Tag { words, operators, bytes: at }, at)
}
