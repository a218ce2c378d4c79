//! The OpenAPI 3.1 document of the API, generated from the table of routes and the types of
//! [`muster_api`]. It is committed as `openapi.json`, and a test keeps it up to date:
//! `MUSTER_REWRITE=1 cargo test -p muster-console api::` writes it anew.

use muster_api::Problem;
use schemars::{JsonSchema, Schema, SchemaGenerator, generate::SchemaSettings};
use serde_json::{Map, Value, json};

use super::{route::Route, routes};

/// The document as it is served.
pub(super) const DOCUMENT: &str = include_str!("openapi.json");

/// A query parameter.
#[derive(Clone, Copy, Debug)]
pub(super) struct Parameter {
    pub(super) name: &'static str,
    pub(super) about: &'static str,
    /// Whether it is an integer, rather than text.
    pub(super) whole: bool,
}

type MakeSchema = fn(&mut SchemaGenerator) -> Schema;

/// The shape of a body.
#[derive(Clone, Copy, Debug)]
pub(super) enum BodyShape {
    /// No body.
    Nothing,
    /// Any JSON.
    Any,
    /// A blob.
    Bytes,
    /// Text in one of two formats.
    Text,
    /// JSON with this schema.
    Json(MakeSchema),
    /// Server-sent events, each with JSON of this schema.
    Events(MakeSchema),
}

impl BodyShape {
    /// Returns JSON of this type.
    pub(super) fn of<T: JsonSchema>() -> Self {
        Self::Json(|generator| generator.subschema_for::<T>())
    }

    /// Returns a JSON list of this type.
    pub(super) fn list<T: JsonSchema>() -> Self {
        Self::Json(|generator| generator.subschema_for::<Vec<T>>())
    }

    /// Returns server-sent events of this type.
    pub(super) fn events<T: JsonSchema>() -> Self {
        Self::Events(|generator| generator.subschema_for::<T>())
    }

    fn content(self, generator: &mut SchemaGenerator) -> Option<Value> {
        Some(match self {
            Self::Nothing => return None,
            Self::Any => json!({ "application/json": { "schema": {} } }),
            Self::Bytes => {
                json!({ "application/octet-stream": { "schema": { "type": "string", "format": "binary" } } })
            }
            Self::Text => {
                let text = json!({ "schema": { "type": "string" } });
                json!({ "text/plain": text, "text/csv": text })
            }
            Self::Json(schema) => json!({ "application/json": { "schema": schema(generator) } }),
            Self::Events(schema) => json!({ "text/event-stream": { "schema": schema(generator) } }),
        })
    }
}

/// Generates the document.
#[cfg_attr(not(test), expect(dead_code, reason = "the committed document is served; the test holds it true"))]
pub(super) fn generate() -> String {
    let mut generator = SchemaSettings::draft2020_12()
        .with(|settings| {
            settings.definitions_path = "/components/schemas".into();
            settings.meta_schema = None;
        })
        .into_generator();
    let problem = generator.subschema_for::<Problem>();
    let mut paths = Map::new();
    for route in routes() {
        let operation = operation(&route, &problem, &mut generator);
        let path = paths.entry(format!("/api{}", route.path)).or_insert_with(|| json!({}));
        path[route.method.as_str()] = operation;
    }
    let document = json!({
        "openapi": "3.1.0",
        "info": {
            "title": "muster",
            "version": env!("CARGO_PKG_VERSION"),
            "license": { "name": "Apache-2.0", "identifier": "Apache-2.0" },
            "description": "The console's API. Times are milliseconds since the Unix epoch. Every answer that \
                            is not a success is a Problem.",
        },
        "paths": paths,
        "components": {
            "schemas": generator.take_definitions(true),
            "securitySchemes": { "bearer": { "type": "http", "scheme": "bearer" } },
        },
    });
    let text = serde_json::to_string_pretty(&document).unwrap_or_default();
    text + "\n"
}

fn operation(route: &Route, problem: &Schema, generator: &mut SchemaGenerator) -> Value {
    let in_path = route.path.split('/').filter_map(|segment| segment.strip_prefix('{')?.strip_suffix('}'));
    let in_path =
        in_path.map(|name| json!({ "name": name, "in": "path", "required": true, "schema": { "type": "string" } }));
    let in_query = route.query.iter().map(|parameter| {
        let kind = if parameter.whole { "integer" } else { "string" };
        json!({ "name": parameter.name, "in": "query", "description": parameter.about, "schema": { "type": kind } })
    });
    let parameters: Vec<Value> = in_path.chain(in_query).collect();
    let status = if matches!(route.response, BodyShape::Nothing) { "204" } else { "200" };
    let mut done = json!({ "description": "Done." });
    if let Some(content) = route.response.content(generator) {
        done["content"] = content;
    }
    let mut operation = json!({
        "operationId": operation_id(route),
        "summary": route.about,
        "security": if route.open { json!([]) } else { json!([{ "bearer": [] }]) },
        "responses": {
            status: done,
            "default": { "description": "Not granted.", "content": { "application/json": { "schema": problem } } },
        },
    });
    if !parameters.is_empty() {
        operation["parameters"] = Value::Array(parameters);
    }
    if let Some(content) = route.request.content(generator) {
        operation["requestBody"] = json!({ "required": true, "content": content });
    }
    operation
}

/// Returns method and path as an identifier: `get_v1_hosts_host`.
fn operation_id(route: &Route) -> String {
    let words = route.path.split(['/', '.']).filter(|word| !word.is_empty());
    let words = words.map(|word| word.trim_matches(['{', '}']));
    std::iter::once(route.method.as_str()).chain(words).collect::<Vec<_>>().join("_")
}
