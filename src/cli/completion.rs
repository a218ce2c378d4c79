//! Names that shells complete, from the console and from the context file.
//!
//! **Invariant: completing changes nothing and says nothing**: it only reads, and whatever fails gives no names.

use std::{collections::BTreeMap, time::Duration};

use serde_json::Value;

use super::{
    client::ConsoleClient,
    context::{self, ConsoleContext, Contexts},
};

/// How long a console may take: a person has pressed a key, and waits.
const ANSWER: Duration = Duration::from_secs(1);

/// The most names that are asked for: more than a person reads.
const NAMES_MAX: usize = 200;

/// What a word on the command line names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NamedThing {
    /// A console, by its name in the context file.
    Context,
    /// A host.
    Host,
    /// A unit, perhaps with its host.
    Unit,
    /// A realm.
    Realm,
    /// A deployment.
    Deployment,
    /// An artifact, ROLE@VERSION.
    Artifact,
    /// A config, ID@VERSION.
    Config,
    /// A secret.
    Secret,
    /// A variable.
    Var,
    /// A rule of alerts.
    Rule,
    /// A silence of alerts.
    Silence,
    /// A command.
    Command,
    /// A one-time token.
    Token,
    /// A sign-in.
    SignIn,
}

/// A name that a word may be completed to, and what there is to say of it.
pub type Named = (String, Option<String>);

/// The names that begin with what was typed; of the console of this context, or of the current one.
#[must_use]
pub fn names(of: NamedThing, typed: &str, context: Option<&str>) -> Vec<Named> {
    let all = all(of, typed, context).unwrap_or_default();
    let begins = all.into_iter().filter(|(name, _)| name.starts_with(typed));
    // Each once: a unit may be on many hosts.
    begins.collect::<BTreeMap<_, _>>().into_iter().collect()
}

fn all(of: NamedThing, typed: &str, context: Option<&str>) -> Option<Vec<Named>> {
    let contexts = Contexts::load(&context::path().ok()?).ok()?;
    if of == NamedThing::Context {
        return Some(contexts.contexts.into_iter().map(|(name, context)| (name, Some(context.url))).collect());
    }
    let context = contexts.pick(context).ok()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().ok()?;
    let found = runtime.block_on(async { tokio::time::timeout(ANSWER, ask(of, typed, &context)).await });
    // A look-up of an address that hangs is not waited for.
    runtime.shutdown_background();
    found.ok().flatten()
}

async fn ask(of: NamedThing, typed: &str, context: &ConsoleContext) -> Option<Vec<Named>> {
    let client = ConsoleClient::quiet(context).ok()?;
    let (path, query) = question(of, typed);
    let found: Vec<Value> = client.get(path, &query).await.ok()?;
    let named = |one: &Value| {
        let (name, about) = named(of, one)?;
        Some((with_host(typed, name), about))
    };
    let mut names: Vec<Named> = found.iter().filter_map(named).collect();
    if of == NamedThing::Rule {
        let built_in = muster_rules::alert::defaults::rules().into_iter();
        names.extend(built_in.map(|(name, _)| (name.to_string(), Some("built in".to_owned()))));
    }
    Some(names)
}

/// The host of `HOST:REALM/NAME`, as far as it is typed.
fn typed_host(typed: &str) -> Option<(&str, &str)> {
    typed.rsplit_once(':').filter(|(host, _)| !host.is_empty())
}

/// The name as it is typed: with the host before it, if that was typed.
fn with_host(typed: &str, name: String) -> String {
    typed_host(typed).map_or_else(|| name.clone(), |(host, _)| format!("{host}:{name}"))
}

/// What the console is asked: of what there may be very much, only that which begins with what was typed.
fn question(of: NamedThing, typed: &str) -> (&'static str, Vec<(&'static str, String)>) {
    let is_plain = |text: &str| text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_./".contains(&byte));
    let limit = ("limit", NAMES_MAX.to_string());
    let begins = |field: &str, typed: &str| {
        (!typed.is_empty() && is_plain(typed)).then(|| ("select", format!("{field}={typed}*")))
    };
    match of {
        NamedThing::Context => ("", Vec::new()),
        NamedThing::Host => ("hosts", begins("host", typed).into_iter().chain([limit]).collect()),
        NamedThing::Unit => {
            let (host, unit) = typed_host(typed).map_or((None, typed), |(host, unit)| (Some(host), unit));
            let host = host.map(|host| ("host", host.to_owned()));
            ("units", host.into_iter().chain(begins("id", unit)).chain([limit]).collect())
        }
        NamedThing::Realm => ("realms", Vec::new()),
        NamedThing::Deployment => ("deployments", Vec::new()),
        NamedThing::Artifact => ("artifacts", Vec::new()),
        NamedThing::Config => ("configs", Vec::new()),
        NamedThing::Secret => ("secrets", Vec::new()),
        NamedThing::Var => ("vars", Vec::new()),
        NamedThing::Rule => ("alert-rules", Vec::new()),
        NamedThing::Silence => ("alert-silences", Vec::new()),
        NamedThing::Command => ("commands", vec![limit]),
        NamedThing::Token => ("tokens", Vec::new()),
        NamedThing::SignIn => ("sign-ins", Vec::new()),
    }
}

/// The name of one thing in the console's answer, and what there is to say of it. Values are not read: secrets have none
/// there.
fn named(of: NamedThing, one: &Value) -> Option<Named> {
    let text = |pointer: &str| one.pointer(pointer).and_then(Value::as_str).map(str::to_owned);
    let version = |of: &str| Some(format!("{}@{}", text(of)?, text("/version")?));
    Some(match of {
        NamedThing::Context => return None,
        NamedThing::Host => (text("/hostname")?, text("/presence/state")),
        NamedThing::Unit => (text("/unit")?, text("/observed/phase")),
        NamedThing::Realm => (text("/name")?, None),
        NamedThing::Deployment => (text("/deployment")?, None),
        NamedThing::Artifact => (version("/role")?, None),
        NamedThing::Config => (version("/id")?, None),
        NamedThing::Secret => (text("/name")?, text("/realm").map(|realm| format!("of realm {realm}"))),
        NamedThing::Var | NamedThing::Rule => (text("/name")?, None),
        NamedThing::Silence => (text("/id")?, text("/reason")),
        NamedThing::Command | NamedThing::Token => (text("/id")?, text("/operator").map(|who| format!("of {who}"))),
        NamedThing::SignIn => (text("/id")?, text("/kind")),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn large_lists_are_asked_for_by_their_beginning() {
        for (of, typed, wanted) in [
            (NamedThing::Host, "till-", vec![("select", "host=till-*"), ("limit", "200")]),
            (NamedThing::Host, "", vec![("limit", "200")]),
            (NamedThing::Host, "a\" or b=\"", vec![("limit", "200")]),
            (NamedThing::Unit, "shop/t", vec![("select", "id=shop/t*"), ("limit", "200")]),
            (NamedThing::Unit, "till-7:sh", vec![("host", "till-7"), ("select", "id=sh*"), ("limit", "200")]),
            (NamedThing::Realm, "a", vec![]),
        ] {
            let (_, query) = question(of, typed);
            let query: Vec<_> = query.iter().map(|(key, value)| (*key, value.as_str())).collect();
            assert_eq!(query, wanted, "{of:?} {typed:?}");
        }
    }

    #[test]
    fn names_are_read_without_values() {
        for (of, one, wanted) in [
            (NamedThing::Artifact, json!({"role": "web", "version": "1.2"}), Some("web@1.2")),
            (NamedThing::Secret, json!({"name": "db", "realm": "shop"}), Some("db")),
            (NamedThing::Unit, json!({"unit": "shop/till"}), Some("shop/till")),
            (NamedThing::Host, json!({"id": "x"}), None),
        ] {
            assert_eq!(named(of, &one).map(|(name, _)| name).as_deref(), wanted, "{one}");
        }
        assert_eq!(with_host("till-7:sh", "shop/till".to_owned()), "till-7:shop/till");
        assert_eq!(with_host("shop", "shop/till".to_owned()), "shop/till");
    }
}
