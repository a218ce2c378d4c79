//! Renders templates: texts with expressions in `{{ … }}` and statements in `{% … %}`, in the language of Jinja.
//!
//! - [`RenderValues`]: what a template can name; [`render`] gives its text
//! - [`names`]: what a template names, without a value: its secrets, variables, facts and labels
//! - [`unit`]: the templates of a spec
//! - [`config`]: those in its configs
//! - [`fault`]: why a template cannot be rendered, with its line and a hint
//!
//! A template comes from an operator, but its mistakes must not harm a host. It is strict: a name without a value is an
//! error. Nothing is escaped, whatever the template's name. Steps, memory and output are bounded by the engine's fuel, which
//! each step and each byte uses up. Nesting is bounded by the template's length: it is parsed and rendered on a thread whose
//! stack suffices for the deepest one.
//!
//! **Invariant: no message of a fault has the value of a secret in it.**

pub mod config;
mod fault;
mod names;
pub mod unit;
mod values;

use std::{
    collections::BTreeMap,
    fmt, io,
    panic::{self, AssertUnwindSafe},
    thread,
};

use minijinja::{
    AutoEscape, Environment, Error, ErrorKind, Output, State, UndefinedBehavior,
    syntax::SyntaxConfig,
    value::{Value, ValueKind},
};

pub use self::{
    fault::RenderFault,
    names::TemplateNames,
    values::{RenderValues, ValueRoot},
};
use muster_topics::unit::MASK;

/// The longest template: twice what a unit may have of them in its spec.
pub const TEMPLATE_MAX_BYTES: usize = 64 * 1024;

/// The longest result: more than any configuration file has.
pub const RESULT_MAX_BYTES: usize = 1024 * 1024;

/// The engine's steps; one also pays for 64 bytes that are made. A template that gives the longest result needs 20,000 for
/// its bytes, and a loop over a thousand hosts 50,000. All of it takes some ten milliseconds.
const FUEL: u64 = 250_000;

/// How deep loops may call themselves.
const RECURSION_MAX: usize = 64;

/// The thread's stack. The engine needs up to 1.4 KiB in a debug build for a level of nesting, which costs a template two
/// bytes (`.a`): 45 MiB for the longest. What is not touched takes no memory.
const STACK_BYTES: usize = 64 * 1024 * 1024;

/// Renders a template. `name` is what faults call it; `secrets` gives the value of a secret, or what stands in its place.
///
/// # Errors
/// If it is no template, names something that has no value, or is too large.
pub fn render(
    name: &str,
    template: &str,
    values: &RenderValues,
    secrets: &dyn Fn(&str) -> Option<String>,
) -> Result<String, RenderFault> {
    // Each is named literally, so that all can be found out before.
    let names = names(name, template)?;
    let secrets: BTreeMap<String, Option<String>> =
        names.secrets.iter().map(|secret| (secret.clone(), secrets(secret))).collect();
    on_own_stack(name, || render_here(name, template, values, &secrets)).map_err(|mut fault| {
        for value in secrets.values().flatten().filter(|value| !value.is_empty()) {
            fault.message = fault.message.replace(value, MASK);
        }
        fault.shortened()
    })
}

/// Returns what a template names.
///
/// # Errors
/// If it is no template, names what no host has, or a secret in another way than by its name.
pub fn names(name: &str, template: &str) -> Result<TemplateNames, RenderFault> {
    if template.len() > TEMPLATE_MAX_BYTES {
        let message = format!("it has {} bytes; at most {TEMPLATE_MAX_BYTES} are allowed", template.len());
        return Err(RenderFault::new(name, message));
    }
    on_own_stack(name, || names::find(name, template)).map_err(RenderFault::shortened)
}

fn render_here(
    name: &str,
    template: &str,
    values: &RenderValues,
    secrets: &BTreeMap<String, Option<String>>,
) -> Result<String, RenderFault> {
    let mut environment = environment();
    for (root, value) in values.roots() {
        environment.add_global(root.name(), value);
    }
    let (endpoints, known) = (values.endpoints.clone(), secrets.clone());
    environment.add_function("endpoint", move |name: &str| match endpoints.get(name) {
        Some(endpoint) => Ok(Value::from_object(*endpoint)),
        None => Err(fault::no_endpoint(name, endpoints.keys())),
    });
    environment.add_function("secret", move |name: &str| match known.get(name) {
        Some(Some(value)) => Ok(value.clone()),
        _ => Err(fault::no_secret(name)),
    });
    let mut result = LimitedText::default();
    let rendered = environment
        .template_from_named_str(name, template)
        .and_then(|compiled| compiled.render_captured_to((), &mut result).map(drop));
    match rendered {
        _ if result.is_full => Err(RenderFault::new(name, format!("{TOO_LARGE} {RESULT_MAX_BYTES} bytes"))),
        Ok(()) => String::from_utf8(result.bytes).map_err(|error| RenderFault::new(name, error.to_string())),
        Err(error) => Err(fault::explain(name, &error, values)),
    }
}

/// The engine, as all templates have it.
fn environment<'a>() -> Environment<'a> {
    let mut environment = Environment::new();
    // By default the name's extension decides.
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_undefined_behavior(UndefinedBehavior::Strict);
    environment.set_fuel(Some(FUEL));
    environment.set_recursion_limit(RECURSION_MAX);
    environment.set_formatter(write_value);
    // Faults say which name has no value.
    environment.set_debug(true);
    // A namespace lets a loop nest values without end; debug() shows all that there is.
    for name in ["debug", "namespace"] {
        environment.remove_global(name);
    }
    // A file keeps its last newline, and a line with statements alone leaves none.
    let syntax = SyntaxConfig::builder().keep_trailing_newline(true).trim_blocks(true).lstrip_blocks(true).build();
    if let Ok(syntax) = syntax {
        environment.set_syntax(syntax);
    }
    environment
}

/// Writes a value as configuration files have it: `true`, `null`. A list or an object is charged for when it is written.
fn write_value(out: &mut Output<'_>, _: &mut State<'_, '_>, value: &Value) -> Result<(), Error> {
    use fmt::Write;
    let written = match value.kind() {
        ValueKind::Bool => out.write_str(if value.is_true() { "true" } else { "false" }),
        ValueKind::None => out.write_str("null"),
        ValueKind::String => out.write_str(value.as_str().unwrap_or_default()),
        ValueKind::Map => return Err(fault::no_text("a map", "use one of its parts, or add `|tojson`")),
        ValueKind::Seq | ValueKind::Iterable => {
            return Err(fault::no_text("a list", "add `|join(',')` or `|tojson`"));
        }
        _ => {
            let mut text = LimitedText::default();
            match write!(text, "{value}") {
                Ok(()) => out.write_str(&String::from_utf8_lossy(&text.bytes)),
                Err(fmt::Error) => Err(fmt::Error),
            }
        }
    };
    written.map_err(|fmt::Error| Error::new(ErrorKind::WriteFailure, format!("{TOO_LARGE} {RESULT_MAX_BYTES} bytes")))
}

/// Why a result is refused that is too large.
const TOO_LARGE: &str = "its result has more than";

/// Runs a function on a thread of its own with [`STACK_BYTES`]. The engine's own mistakes are faults, too.
fn on_own_stack<T: Send>(name: &str, work: impl FnOnce() -> Result<T, RenderFault> + Send) -> Result<T, RenderFault> {
    let guarded = || panic::catch_unwind(AssertUnwindSafe(work));
    let ended = thread::scope(|scope| {
        let thread = thread::Builder::new().name("render".to_owned()).stack_size(STACK_BYTES);
        thread.spawn_scoped(scope, guarded).map(thread::ScopedJoinHandle::join)
    });
    match ended {
        Ok(Ok(Ok(result))) => result,
        Ok(_) => Err(RenderFault::new(name, "the template engine has failed on it".to_owned())),
        Err(error) => Err(RenderFault::new(name, format!("cannot start a thread to render it: {error}"))),
    }
}

/// A text of at most [`RESULT_MAX_BYTES`].
#[derive(Default)]
struct LimitedText {
    bytes: Vec<u8>,
    is_full: bool,
}

impl io::Write for LimitedText {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.bytes.len() + bytes.len() > RESULT_MAX_BYTES {
            self.is_full = true;
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl fmt::Write for LimitedText {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        io::Write::write_all(self, text.as_bytes()).map_err(|_| fmt::Error)
    }
}

#[cfg(test)]
mod tests;
