//! The page of the API's routes in `docs/reference`, made from the table of routes and the OpenAPI document.

use muster_test_support::markdown::Page;
use serde_json::Value;

use super::{openapi, route::Route, routes};

/// Returns the page; `command` writes it anew.
pub(super) fn page(command: &str) -> String {
    let document: Value = serde_json::from_str(&openapi::generate()).unwrap();
    let mut page = Page::new("REST API", "the console's table of routes, `src/console/api/mod.rs`", command);
    page.paragraph(
        "Every route of the console's API. A request has the header `Authorization: Bearer TOKEN`, with a token that \
         `muster login` has stored in the context file; routes that are open need none. Bodies are JSON unless the \
         route says otherwise, and times are milliseconds since the Unix epoch.",
    );
    page.paragraph(
        "The console serves the whole contract, with every type, as an OpenAPI 3.1 document at `/api/openapi.json`; a \
         copy of it is [openapi.json](../../src/console/api/openapi.json). An answer that is not a success is a \
         `Problem`: [exit-codes.md](exit-codes.md#problems-of-the-api) lists its codes. Prometheus's own API is below \
         `/prometheus` ([metrics.md](../metrics.md)).",
    );
    let routes = routes();
    let mut groups: Vec<&str> = Vec::new();
    for route in &routes {
        if !groups.contains(&group(route.path)) {
            groups.push(group(route.path));
        }
    }
    for title in groups {
        page.heading(2, title);
        page.gap();
        for route in routes.iter().filter(|route| group(route.path) == title) {
            let path = format!("/api{}", route.path);
            page.item(&text(route, &path, &document["paths"][&path][route.method.as_str()]));
        }
    }
    page.text()
}

/// What a path is about: its first word after the version.
fn group(path: &str) -> &str {
    let mut words = path.split('/').filter(|word| !word.is_empty());
    match words.next() {
        Some("v1") => words.next().unwrap_or_default(),
        _ => "The document",
    }
}

fn text(route: &Route, path: &str, operation: &Value) -> String {
    let open = if route.open { " (open)" } else { "" };
    let mut text = format!("`{} {path}`{open}: {}", route.method.as_str().to_uppercase(), route.about);
    if let Some(body) = body(&operation["requestBody"]) {
        text.push_str(&format!(" Takes {body}."));
    }
    let done = ["200", "204"].iter().find_map(|status| body(&operation["responses"][status]));
    if let Some(body) = done {
        text.push_str(&format!(" Gives {body}."));
    }
    let parameters: Vec<String> =
        route.query.iter().map(|one| format!("`{}` ({})", one.name, plain(one.about))).collect();
    if !parameters.is_empty() {
        text.push_str(&format!(" Parameters: {}.", parameters.join("; ")));
    }
    text
}

/// A sentence as a part of another one.
fn plain(sentence: &str) -> &str {
    sentence.trim_end_matches('.')
}

/// The kind of a body, if there is one.
fn body(part: &Value) -> Option<String> {
    let (media, content) = part["content"].as_object()?.iter().next()?;
    let schema = &content["schema"];
    let name = |schema: &Value| Some(format!("`{}`", schema["$ref"].as_str()?.rsplit('/').next()?));
    Some(match (media.as_str(), name(schema), name(&schema["items"])) {
        ("text/event-stream", Some(event), _) => format!("events, each a {event}"),
        ("application/json", Some(one), _) => format!("a {one}"),
        ("application/json", None, Some(each)) => format!("a list of {each}"),
        ("application/json", None, None) => "JSON".to_owned(),
        ("application/octet-stream", ..) => "bytes".to_owned(),
        _ => "text".to_owned(),
    })
}
