//! `muster context`: the consoles that this user's command line knows. None of it asks a console.

use clap::Subcommand;
use muster_base::failure::{Failure, FailureKind};
use muster_topics::name::{HostId, Name};
use serde::Serialize;

use super::{
    context::{self, Contexts},
    print::{self, Printer},
    session::GlobalOptions,
};

/// Verbs on contexts.
#[derive(Subcommand, Clone, Debug)]
pub enum ContextVerb {
    /// List the consoles that are known here, and which one is used
    #[command(alias = "list")]
    Ls,
    /// Use a console from now on
    Use {
        /// Name
        name: String,
    },
    /// Remove a console from those that are known here
    ///
    /// The console does not hear of it; `muster login ls` there still has the sign-in.
    #[command(alias = "remove")]
    Rm {
        /// Name
        name: String,
    },
}

/// A context without its secrets.
#[derive(Serialize)]
struct ListedContext<'a> {
    name: &'a str,
    current: bool,
    url: &'a str,
    operator: &'a Name,
    #[serde(skip_serializing_if = "Option::is_none")]
    host: Option<HostId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    proxy: Option<&'a str>,
}

/// Runs the verb.
///
/// # Errors
/// If the context file cannot be read or written, or has no such context.
pub fn run(verb: ContextVerb, options: &GlobalOptions) -> Result<(), Failure> {
    let path = context::path()?;
    let mut contexts = Contexts::load(&path)?;
    match verb {
        ContextVerb::Ls => list(&contexts, options),
        ContextVerb::Use { name } => {
            let url = contexts.find(&name)?.url.clone();
            contexts.current = Some(name.clone());
            contexts.save(&path)?;
            print::say(format_args!("{name:?} is used from now on: {url}"));
            Ok(())
        }
        ContextVerb::Rm { name } => {
            let was_current = contexts.remove(&name)?;
            contexts.save(&path)?;
            print::say(format_args!("context {name:?} is removed{}", used_then(&contexts, was_current)));
            Ok(())
        }
    }
}

/// What is used once the current context is removed.
fn used_then(contexts: &Contexts, was_current: bool) -> String {
    match &contexts.current {
        _ if !was_current => String::new(),
        Some(next) => format!("; {next:?} is used from now on"),
        None if contexts.contexts.is_empty() => {
            "; no other one is known here: `muster up` or `muster login LINK` makes one".to_owned()
        }
        None => {
            format!("; none is used now: `muster context use NAME` chooses one of {}", contexts.names())
        }
    }
}

fn list(contexts: &Contexts, options: &GlobalOptions) -> Result<(), Failure> {
    let listed: Vec<ListedContext<'_>> = contexts
        .contexts
        .iter()
        .map(|(name, context)| ListedContext {
            name,
            current: contexts.current.as_ref() == Some(name),
            url: &context.url,
            operator: &context.operator,
            host: context.host,
            proxy: context.proxy.as_deref(),
        })
        .collect();
    let row = |one: &ListedContext<'_>| {
        let current = if one.current { "yes" } else { "" };
        vec![one.name.to_owned(), current.to_owned(), one.url.to_owned(), one.operator.to_string()]
    };
    let empty = "no console is known here; `muster up` or `muster login LINK` makes a context";
    Printer::new(options.output).list(&listed, &["CONTEXT", "CURRENT", "CONSOLE", "OPERATOR"], row, empty)?;
    match (&contexts.current, &options.context) {
        (_, Some(given)) => print::say(format_args!("--context or MUSTER_CONTEXT has {given:?} used instead")),
        (None, None) if !listed.is_empty() => {
            print::say("none is used; `muster context use NAME` chooses one");
        }
        (Some(current), None) if !contexts.contexts.contains_key(current) => {
            print::say(format_args!(
                "{current:?} is to be used, and is not there; `muster context use NAME` chooses one"
            ));
        }
        _ => {}
    }
    Ok(())
}

impl Contexts {
    /// Removes a context; tells whether it was the current one. If one is left then, it is the current one.
    ///
    /// # Errors
    /// If there is no such context.
    fn remove(&mut self, name: &str) -> Result<bool, Failure> {
        self.find(name)?;
        self.contexts.remove(name);
        let was_current = self.current.as_deref() == Some(name);
        if was_current {
            let mut left = self.contexts.keys();
            self.current = left.next().filter(|_| self.contexts.len() == 1).cloned();
        }
        Ok(was_current)
    }

    /// The names of all contexts.
    pub(super) fn names(&self) -> String {
        self.contexts.keys().cloned().collect::<Vec<_>>().join(", ")
    }

    /// The context of this name.
    ///
    /// # Errors
    /// If there is none.
    pub(super) fn find(&self, name: &str) -> Result<&context::ConsoleContext, Failure> {
        self.contexts.get(name).ok_or_else(|| {
            let (known, hint) = match self.contexts.is_empty() {
                true => ("none is known here".to_owned(), context::HOW),
                false => (format!("known are: {}", self.names()), "`muster context ls` has their addresses"),
            };
            Failure::new(FailureKind::Usage, format!("there is no context {name:?}; {known}")).hint(hint)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn contexts(names: &[&str], current: Option<&str>) -> Contexts {
        let context = |name: &&str| {
            let context = context::ConsoleContext {
                url: format!("http://{name}"),
                operator: "admin".parse().unwrap(),
                token: "secret".to_owned(),
                authority: None,
                proxy: None,
                host: None,
            };
            ((*name).to_owned(), context)
        };
        Contexts { current: current.map(str::to_owned), contexts: names.iter().map(context).collect() }
    }

    #[test]
    fn removal_of_the_current_context_says_what_is_used_then() {
        for (names, current, removed, wanted, words) in [
            (&["a", "b"][..], "a", "b", Some("a"), ""),
            (&["a", "b"], "a", "a", Some("b"), "\"b\" is used from now on"),
            (&["a"], "a", "a", None, "`muster up` or `muster login LINK`"),
            (&["a", "b", "c"], "a", "a", None, "chooses one of b, c"),
            (&["a", "b"], "gone", "b", Some("gone"), ""),
        ] {
            let mut contexts = contexts(names, Some(current));
            let was_current = contexts.remove(removed).unwrap();
            assert_eq!(contexts.current.as_deref(), wanted, "{names:?} {removed}");
            let said = used_then(&contexts, was_current);
            assert!(said.contains(words) && said.is_empty() == words.is_empty(), "{said}");
        }
    }

    #[test]
    fn unknown_context_is_told_with_those_that_there_are() {
        let failure = contexts(&["a", "b"], Some("a")).remove("c").unwrap_err();
        assert_eq!(failure.cause(), Some("there is no context \"c\"; known are: a, b"));
        let failure = contexts(&[], None).find("c").unwrap_err();
        assert_eq!(failure.cause(), Some("there is no context \"c\"; none is known here"));
        assert!(failure.given_hint().unwrap().contains("muster up"));
    }
}
