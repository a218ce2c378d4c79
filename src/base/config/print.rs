//! Prints a configuration as commented TOML: every key, its purpose, its value, and its default if that
//! differs. A key without a value is printed as a comment.

use std::fmt::Write as _;

use schemars::JsonSchema;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value as Json;

use super::fields;

/// How wide comments are.
const WIDTH: usize = 110;
/// What stands for a name of the user's own choice.
const ANY_NAME: &str = "NAME";
/// The same as a name that can be parsed.
const PROBED_NAME: &str = "name";

/// The effective configuration. What is a secret is a comment, and masked.
///
/// # Errors
/// If it does not serialise.
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

/// What may stand under a key, as TOML writes it.
enum TomlShape<'a> {
    /// A value in the line of its key.
    Value,
    /// A table of its own.
    Table,
    /// A table with keys of the user's own choice, and values.
    Values(&'a Json),
    /// Tables, each under a name of the user's own choice.
    Tables(&'a Json),
    /// A list of tables.
    List(&'a Json),
}

/// A table that is printed.
struct PrintedTable<'a> {
    schema: &'a Json,
    value: Option<&'a Json>,
    default: Option<&'a Json>,
    /// In its header.
    name: String,
    /// Where it stands in the configuration's type.
    path: Vec<String>,
    /// Whether all of it is a comment, which shows what could be there.
    is_template: bool,
}

impl<'a> PrintedTable<'a> {
    /// What is under a key of it; its schema is given.
    fn below(&self, key: &str, schema: &'a Json) -> Self {
        let name = if self.name.is_empty() { key.to_owned() } else { format!("{}.{key}", self.name) };
        let path = [&self.path[..], &[key.to_owned()]].concat();
        let (value, default) = (self.value.and_then(|all| all.get(key)), self.default.and_then(|all| all.get(key)));
        Self { schema, value, default, name, path, is_template: self.is_template }
    }

    /// One of several that are under it, with a value or as a template.
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
    /// All keys of a table: first those with values, for what follows a header belongs to it.
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

    /// A key with its value, or as a comment.
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
        // Some are left out while they are empty.
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

    /// A table, or several, under a header.
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

    /// An empty line, but none below a header.
    fn gap(&mut self) {
        let is_below_header =
            self.text.lines().next_back().is_none_or(|line| line.trim_start_matches("# ").starts_with('['));
        if !is_below_header {
            self.text.push('\n');
        }
    }

    /// A comment; twice, where what it is about is one.
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

    /// What a key, or else its type, says of itself.
    fn description(&self, schema: &'a Json) -> String {
        let said = [schema, self.resolved(schema)].into_iter().find_map(|one| one["description"].as_str());
        // Links are of the code's documentation.
        said.unwrap_or_default().replace("[`", "`").replace("`]", "`")
    }

    fn shape(&self, schema: &'a Json) -> TomlShape<'a> {
        let schema = self.resolved(schema);
        let is_table = |schema: &'a Json| self.resolved(schema).get("properties").is_some();
        if is_table(schema) {
            return TomlShape::Table;
        }
        // Keys of some form have that as their pattern.
        let of_pattern = schema["patternProperties"].as_object().and_then(|patterns| patterns.values().next());
        let values = of_pattern.or(schema.get("additionalProperties")).filter(|values| values.is_object());
        match (values, schema.get("items")) {
            (Some(values), _) if is_table(values) => TomlShape::Tables(values),
            (Some(values), _) => TomlShape::Values(values),
            (_, Some(items)) if is_table(items) => TomlShape::List(items),
            _ => TomlShape::Value,
        }
    }

    /// What a schema is about, without references, and without that it may be left out.
    fn resolved(&self, schema: &'a Json) -> &'a Json {
        let mut schema = schema;
        // A schema that contains itself has no place in a configuration; the limit only keeps this total.
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

    /// The words that may stand there, if only some may; or in a list there.
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

    /// What could stand there.
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

/// A key of the user's own choice.
fn name(key: &str) -> String {
    let is_bare = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
    if !key.is_empty() && key.bytes().all(is_bare) { key.to_owned() } else { inline(&Json::from(key)) }
}

/// A value in one line of TOML.
fn inline(value: &Json) -> String {
    match value {
        // TOML has none; what is empty is left out before.
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
