//! The console's API, asked by the test itself: a probe that is repeated until something holds takes a millisecond, where a
//! process would take twenty.

use std::{
    cell::Cell,
    io::{Read, Write},
    net::TcpStream,
    path::Path,
};

use muster_cli::context::Contexts;

thread_local! {
    /// How often the innermost `eventually` has already probed in vain.
    static REPEATED: Cell<u32> = const { Cell::new(0) };
}

/// Runs a probe that has already been made so many times.
pub(super) fn probing<T>(repeated: u32, probe: impl FnOnce() -> T) -> T {
    let before = REPEATED.replace(repeated);
    let result = probe();
    REPEATED.set(before);
    result
}

/// What a verb would print, if it is one that prints an answer of the API as it is, and is repeated: the first probe is
/// always the verb's own, as an operator would run it.
pub(super) fn repeated_answer(context_file: &Path, args: &[&str]) -> Option<String> {
    let path = (REPEATED.get() > 0).then(|| path(args))??;
    let context = Contexts::load(context_file).ok()?.pick(None).ok()?;
    let address = context.url.strip_prefix("http://").filter(|_| context.proxy.is_none())?;
    let answer = ask(address.trim_end_matches('/'), &context.token, "GET", &path, "").ok()?;
    // The verb prints the unit; the API answers with all of that name.
    match args {
        ["-o", "json", "unit", "show", ..] => {
            let units: Vec<serde_json::Value> = serde_json::from_str(&answer).ok()?;
            let [unit] = &units[..] else { return None };
            Some(unit.to_string())
        }
        _ => Some(answer),
    }
}

/// The address of the answer that a verb prints with `-o json`, below `/api/v1`.
fn path(args: &[&str]) -> Option<String> {
    let is_plain = |text: &str| text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_./".contains(&byte));
    let path = match args {
        ["-o", "json", "host", "ls"] => "/hosts".to_owned(),
        ["-o", "json", "host", "show", host] => format!("/hosts/{host}"),
        ["-o", "json", "unit", "ls"] => "/units".to_owned(),
        ["-o", "json", "unit", "show", unit] => return is_plain(unit).then(|| format!("/units?unit={unit}")),
        ["-o", "json", "unit", "show", unit, "--host", host] | ["-o", "json", "unit", "show", "--host", host, unit] => {
            return (is_plain(unit) && is_plain(host)).then(|| format!("/units?unit={unit}&host={host}"));
        }
        ["-o", "json", "alert", "ls"] => "/alerts".to_owned(),
        ["-o", "json", "command", "show", id] => format!("/commands/{id}"),
        ["-o", "json", "deployment", "show", name] => format!("/deployments/{name}"),
        ["-o", "json", "rollout", "show", name] => format!("/rollouts/{name}"),
        _ => return None,
    };
    is_plain(&path).then_some(path)
}

/// Asks the API of the console at an address; what is wrong if there is no answer of success.
pub(crate) fn ask(address: &str, token: &str, method: &str, path: &str, body: &str) -> Result<String, String> {
    let mut stream = TcpStream::connect(address).map_err(|error| error.to_string())?;
    let request = format!(
        "{method} /api/v1{path} HTTP/1.0\r\nhost: {address}\r\nauthorization: Bearer {token}\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len(),
    );
    let mut answer = String::new();
    stream
        .write_all(request.as_bytes())
        .and_then(|()| stream.read_to_string(&mut answer))
        .map_err(|error| error.to_string())?;
    match answer.split_once("\r\n\r\n") {
        Some((head, body)) if head.starts_with("HTTP/1.0 2") => Ok(body.to_owned()),
        _ => Err(format!("{method} {path}: {answer}")),
    }
}
