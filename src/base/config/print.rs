//! Prints a configuration as commented TOML: every key, its purpose, its value, and its default if that
//! differs. A key without a value is printed as a comment.

use std::fmt::Write as _;

use schemars::JsonSchema;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value as Json;

use super::fields;

/// Width of comments, in characters, without their mark: with it they fit into the 100 columns of a document.
const WIDTH: usize = 96;
/// Placeholder for a name that the user chooses.
const ANY_NAME: &str = "NAME";
/// The same placeholder, as a name that can be parsed.
const PROBED_NAME: &str = "name";

/// Prints the effective configuration. Secrets are printed as comments, masked.
///
/// # Errors
/// If it cannot be serialised.
pub fn print<T>(config: &T) -> Result<String, serde_json::Error>
where
    T: DeserializeOwned + Serialize + JsonSchema + Default,
{
    let schema = schemars::schema_for!(T);
    let (value, default) = (serde_json::to_value(config)?, serde_json::to_value(T::default())?);
    let mut page = ConfigPage { root: schema.as_value(), order: fields::declared::<T>, text: String::new() };
    page.fields(&PrintedTable {
        schema: schema.as_value(),
        value: Some(&value),
        default: Some(&default),
        name: String::new(),
        path: Vec::new(),
        is_template: false,
    });
    Ok(page.text)
}

/// How TOML writes the value of a key.
enum TomlShape<'a> {
    /// A value on the line of its key.
    Value,
    /// A table with its own header.
    Table,
    /// A table of values whose keys the user chooses.
    Values(&'a Json),
    /// Tables whose names the user chooses.
    Tables(&'a Json),
    /// A list of tables.
    List(&'a Json),
}

/// A table to print.
struct PrintedTable<'a> {
    schema: &'a Json,
    value: Option<&'a Json>,
    default: Option<&'a Json>,
    /// The name in its header.
    name: String,
    /// Its path in the configuration's type.
    path: Vec<String>,
    /// Whether all of it is commented out, as an example of what could be set.
    is_template: bool,
}

impl<'a> PrintedTable<'a> {
    /// The table under one of its keys, with that table's schema.
    fn below(&self, key: &str, schema: &'a Json) -> Self {
        let name = if self.name.is_empty() { key.to_owned() } else { format!("{}.{key}", self.name) };
        let path = [&self.path[..], &[key.to_owned()]].concat();
        let (value, default) = (self.value.and_then(|all| all.get(key)), self.default.and_then(|all| all.get(key)));
        Self { schema, value, default, name, path, is_template: self.is_template }
    }

    /// One of several tables below it, with a value or as a template.
    fn one(&self, name: String, schema: &'a Json, value: Option<&'a Json>) -> Self {
        let path = [&self.path[..], &[PROBED_NAME.to_owned()]].concat();
        Self { schema, value, default: None, name, path, is_template: value.is_none() }
    }
}

struct ConfigPage<'a> {
    root: &'a Json,
    order: fn(&[String]) -> Vec<&'static str>,
    text: String,
}

impl<'a> ConfigPage<'a> {
    /// Prints all keys of a table: values first, because everything after a header belongs to that table.
    fn fields(&mut self, table: &PrintedTable<'a>) {
        let schema = self.resolved(table.schema);
        let Some(properties) = schema["properties"].as_object() else { return };
        let declared = (self.order)(&table.path);
        let mut keys: Vec<&String> = properties.keys().collect();
        keys.sort_by_key(|key| declared.iter().position(|name| name == key).unwrap_or(usize::MAX));
        let (values, tables): (Vec<_>, Vec<_>) =
            keys.into_iter().partition(|key| matches!(self.shape(&properties[*key]), TomlShape::Value));
        for key in values {
            let is_required = schema["required"].as_array().is_some_and(|all| all.iter().any(|name| name == key));
            self.value(key, &table.below(key, &properties[key]), is_required);
        }
        for key in tables {
            self.table(&table.below(key, &properties[key]));
        }
    }

    /// Prints a key with its value, or commented out.
    fn value(&mut self, key: &str, at: &PrintedTable<'a>, is_required: bool) {
        let schema = self.resolved(at.schema);
        self.gap();
        let mut about = self.description(at.schema);
        let choices = self.choices(schema);
        if !choices.is_empty() && !choices.iter().all(|choice| about.contains(&format!("`{choice}`"))) {
            let _ = write!(about, " Possible: {}.", choices.join(", "));
        }
        let is_secret = schema["writeOnly"] == true;
        let value = at.value.filter(|value| !value.is_null());
        let default = at.default.or(at.schema.get("default")).filter(|default| !default.is_null());
        let empty = Json::Array(Vec::new());
        // Empty lists and tables may be missing from the serialised form.
        let is_list = schema["type"] == "array" && !at.is_template;
        let value = value.or(is_list.then_some(&empty)).filter(|_| !at.is_template);
        self.comment(&about, at.is_template);
        let otherwise = match (value, default) {
            (Some(value), Some(default)) if value != default => inline(default),
            (Some(value), None) if *value != empty && !is_required => "not set".to_owned(),
            _ => String::new(),
        };
        if !otherwise.is_empty() {
            self.comment(&format!("Default: {otherwise}"), at.is_template);
        }
        let hash = if value.is_none() || is_secret { "# " } else { "" };
        let shown = value.or(default).map_or_else(|| self.example(schema), inline);
        let _ = writeln!(self.text, "{hash}{key} = {shown}");
    }

    /// Prints one table, or several, with headers.
    fn table(&mut self, at: &PrintedTable<'a>) {
        match self.shape(at.schema) {
            TomlShape::Value => {}
            TomlShape::Table => {
                self.header(at.schema, &format!("[{}]", at.name), at.is_template);
                self.fields(at);
            }
            TomlShape::Values(values) => {
                self.header(at.schema, &format!("[{}]", at.name), at.is_template);
                let all = at.value.and_then(Json::as_object).into_iter().flatten();
                let mut is_empty = true;
                for (key, value) in all {
                    let _ = writeln!(self.text, "{} = {}", name(key), inline(value));
                    is_empty = false;
                }
                if is_empty {
                    let _ = writeln!(self.text, "# {ANY_NAME} = {}", self.example(self.resolved(values)));
                }
            }
            TomlShape::Tables(schema) => {
                let all = at.value.and_then(Json::as_object).into_iter().flatten();
                let mut all: Vec<_> =
                    all.map(|(key, value)| at.one(format!("{}.{}", at.name, name(key)), schema, Some(value))).collect();
                if all.is_empty() {
                    all.push(at.one(format!("{}.{ANY_NAME}", at.name), schema, None));
                }
                self.several(at, &all, ("[", "]"));
            }
            TomlShape::List(schema) => {
                let all = at.value.and_then(Json::as_array).into_iter().flatten();
                let mut all: Vec<_> = all.map(|value| at.one(at.name.clone(), schema, Some(value))).collect();
                if all.is_empty() {
                    all.push(at.one(at.name.clone(), schema, None));
                }
                self.several(at, &all, ("[[", "]]"));
            }
        }
    }

    fn several(&mut self, at: &PrintedTable<'a>, all: &[PrintedTable<'a>], (open, close): (&str, &str)) {
        for one in all {
            self.header(at.schema, &format!("{open}{}{close}", one.name), one.is_template);
            self.fields(one);
        }
    }

    fn header(&mut self, schema: &'a Json, header: &str, is_template: bool) {
        self.text.push('\n');
        self.comment(&self.description(schema), false);
        let _ = writeln!(self.text, "{}{header}", if is_template { "# " } else { "" });
    }

    /// Prints an empty line, except directly below a header.
    fn gap(&mut self) {
        let is_below_header =
            self.text.lines().next_back().is_none_or(|line| line.trim_start_matches("# ").starts_with('['));
        if !is_below_header {
            self.text.push('\n');
        }
    }

    /// Prints a comment; with a doubled mark if the key itself is commented out.
    fn comment(&mut self, about: &str, is_template: bool) {
        let hash = if is_template { "# #" } else { "#" };
        let mut line = String::new();
        for word in about.split_whitespace() {
            if !line.is_empty() && line.chars().count() + word.chars().count() > WIDTH {
                let _ = writeln!(self.text, "{hash}{line}");
                line.clear();
            }
            line.push(' ');
            line.push_str(word);
        }
        if !line.is_empty() {
            let _ = writeln!(self.text, "{hash}{line}");
        }
    }

    /// The description of a key, or else of its type.
    fn description(&self, schema: &'a Json) -> String {
        let said = [schema, self.resolved(schema)].into_iter().find_map(|one| one["description"].as_str());
        // Links only work in the documentation of the code.
        said.unwrap_or_default().replace("[`", "`").replace("`]", "`")
    }

    fn shape(&self, schema: &'a Json) -> TomlShape<'a> {
        let schema = self.resolved(schema);
        let is_table = |schema: &'a Json| self.resolved(schema).get("properties").is_some();
        if is_table(schema) {
            return TomlShape::Table;
        }
        // Keys with a required form are described by their pattern.
        let of_pattern = schema["patternProperties"].as_object().and_then(|patterns| patterns.values().next());
        let values = of_pattern.or(schema.get("additionalProperties")).filter(|values| values.is_object());
        match (values, schema.get("items")) {
            (Some(values), _) if is_table(values) => TomlShape::Tables(values),
            (Some(values), _) => TomlShape::Values(values),
            (_, Some(items)) if is_table(items) => TomlShape::List(items),
            _ => TomlShape::Value,
        }
    }

    /// A schema with references and `null` alternatives resolved.
    fn resolved(&self, schema: &'a Json) -> &'a Json {
        let mut schema = schema;
        // A configuration's schema never contains itself; the limit only guarantees that this ends.
        for _ in 0..16 {
            let target = schema["$ref"].as_str().and_then(|reference| self.root.pointer(reference.strip_prefix('#')?));
            let either = schema["anyOf"].as_array().filter(|all| all.iter().any(|one| one["type"] == "null"));
            let present = either.and_then(|all| all.iter().find(|one| one["type"] != "null"));
            match target.or(present) {
                Some(deeper) => schema = deeper,
                None => break,
            }
        }
        schema
    }

    /// The allowed words of a value, or of a list's elements; empty if any word is allowed.
    fn choices(&self, schema: &'a Json) -> Vec<String> {
        let schema = schema.get("items").map_or(schema, |items| self.resolved(items));
        let words = |one: &Json| match (one["const"].as_str(), one["enum"].as_array()) {
            (Some(word), _) => vec![word.to_owned()],
            (None, Some(several)) => several.iter().filter_map(|word| word.as_str().map(str::to_owned)).collect(),
            (None, None) => Vec::new(),
        };
        match schema["oneOf"].as_array() {
            Some(all) => all.iter().flat_map(words).collect(),
            None => words(schema),
        }
    }

    /// An example value.
    fn example(&self, schema: &'a Json) -> String {
        if let Some(choice) = self.choices(schema).first().filter(|_| schema.get("items").is_none()) {
            return inline(&Json::from(choice.as_str()));
        }
        if let Some(example) = schema["examples"].as_array().and_then(|all| all.first()) {
            return inline(example);
        }
        let is = |wanted: &str| match &schema["type"] {
            Json::String(one) => one == wanted,
            Json::Array(several) => several.iter().any(|one| one == wanted),
            _ => false,
        };
        let example = [("string", "\"…\""), ("integer", "1"), ("number", "1.5"), ("boolean", "true"), ("array", "[]")];
        example.iter().find(|(kind, _)| is(kind)).map_or("{}", |(_, example)| example).to_owned()
    }
}

/// A key that the user chose, quoted if necessary.
fn name(key: &str) -> String {
    let is_bare = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
    if !key.is_empty() && key.bytes().all(is_bare) { key.to_owned() } else { inline(&Json::from(key)) }
}

/// A value on one line of TOML.
fn inline(value: &Json) -> String {
    match value {
        // TOML has no null; empty values were skipped before.
        Json::Null => "\"\"".to_owned(),
        Json::Bool(value) => value.to_string(),
        Json::Number(number) => number.to_string(),
        Json::String(text) => toml::Value::from(text.as_str()).to_string(),
        Json::Array(all) => format!("[{}]", all.iter().map(inline).collect::<Vec<_>>().join(", ")),
        Json::Object(all) => {
            let all: Vec<_> = all.iter().map(|(key, value)| format!("{} = {}", name(key), inline(value))).collect();
            format!("{{ {} }}", all.join(", "))
        }
    }
}
