//! The context file: the console to connect to, and the operator's token. Written by `muster up` and `muster
//! login`, readable by its owner alone.

use muster_topics::diagnostic::Diagnostic;
use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
};

use muster_base::{
    config,
    failure::{Failure, FailureContext as _, FailureKind},
    files,
    folders::UserFolders,
    form::{FORM, OtherForm},
};
use muster_topics::name::{HostId, Name};
use serde::{Deserialize, Serialize};

/// How a context is made.
pub(super) const HOW: &str = "start `muster up`, or sign in to a console with `muster login LINK`; then try again";

/// The known consoles.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Contexts {
    /// The one that is used by default.
    pub current: Option<String>,
    /// All of them, by name.
    pub contexts: BTreeMap<String, ConsoleContext>,
}

/// The content of the file.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ContextFile {
    /// [`FORM`].
    form: u16,
    current: Option<String>,
    #[serde(default)]
    contexts: BTreeMap<String, ConsoleContext>,
}

/// A console, and the operator's access to it.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConsoleContext {
    /// Base of its web address.
    pub url: String,
    /// The operator.
    pub operator: Name,
    /// The operator's token.
    pub token: String,
    /// The authority's certificate (PEM), if the address is HTTPS.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub authority: Option<String>,
    /// The proxy for this console, such as `http://proxy:3128`; the environment's proxies are ignored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proxy: Option<String>,
    /// The default host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<HostId>,
}

impl std::fmt::Debug for ConsoleContext {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Context").field("url", &self.url).field("operator", &self.operator).finish_non_exhaustive()
    }
}

/// The path of the context file: `$XDG_CONFIG_HOME/muster/context.toml`, or below `~/.config`.
///
/// # Errors
/// If neither variable is set.
pub fn path() -> Result<PathBuf, Failure> {
    let folder = UserFolders::from_environment().config().ok_or_else(|| {
        Failure::new(
            FailureKind::Usage,
            "neither HOME nor XDG_CONFIG_HOME is an absolute path, so the context file has no place",
        )
        .hint("set HOME")
    })?;
    Ok(folder.join("muster/context.toml"))
}

impl Contexts {
    /// Reads the file; empty if there is none.
    ///
    /// # Errors
    /// If it cannot be read, is invalid, or was written by another build.
    pub fn load(path: &Path) -> Result<Self, Failure> {
        match files::read_text(path) {
            Ok(text) => {
                check_form(path, &text)?;
                let ContextFile { current, contexts, .. } = toml::from_str(&text).map_err(|error| {
                    let why = config::explain(&text, &error);
                    Failure::new(FailureKind::Failed, format!("the context file {}: {why}", path.display()))
                })?;
                Ok(Self { current, contexts })
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => {
                let told = Diagnostic::of_error(&error).within(format_args!("the context file {}", path.display()));
                Err(Failure::told(FailureKind::Failed, told))
            }
        }
    }

    /// Writes the file, and creates its folder.
    ///
    /// # Errors
    /// If either fails.
    pub fn save(&self, path: &Path) -> Result<(), Failure> {
        let what = format!("the context file {}", path.display());
        if let Some(folder) = path.parent() {
            files::make_folder(folder, files::PRIVATE_FOLDER).trying(&what)?;
        }
        let Self { current, contexts } = self.clone();
        let text = toml::to_string_pretty(&ContextFile { form: FORM, current, contexts }).trying(&what)?;
        files::write_atomically(path, text.as_bytes(), files::SECRET_MODE).trying(&what)
    }

    /// The context with this name, or the current one.
    ///
    /// # Errors
    /// If there is none.
    pub fn pick(&self, name: Option<&str>) -> Result<ConsoleContext, Failure> {
        self.pick_named(name).map(|(_, context)| context)
    }

    /// The same, with its name.
    pub(super) fn pick_named(&self, name: Option<&str>) -> Result<(String, ConsoleContext), Failure> {
        if let Some(name) = name.or(self.current.as_deref()) {
            return Ok((name.to_owned(), self.find(name)?.clone()));
        }
        if self.contexts.is_empty() {
            return Err(Failure::new(FailureKind::Usage, "no console is known here").hint(HOW));
        }
        let message = format!("none of the known consoles is the current one; known are: {}", self.names());
        Err(Failure::new(FailureKind::Usage, message).hint("`muster context use NAME` chooses one"))
    }

    /// Adds or replaces a context. If another context is the current one, it stays current, and its name is returned.
    pub fn add(&mut self, name: &str, context: ConsoleContext) -> Option<String> {
        self.contexts.insert(name.to_owned(), context);
        let current = self.current.take().filter(|current| self.contexts.contains_key(current));
        self.current = Some(current.unwrap_or_else(|| name.to_owned()));
        self.current.clone().filter(|current| current != name)
    }

    /// Adds or replaces a context, and makes it the current one.
    pub fn put(&mut self, name: &str, context: ConsoleContext) {
        self.contexts.insert(name.to_owned(), context);
        self.current = Some(name.to_owned());
    }
}

/// Refuses a whole file of another build.
fn check_form(path: &Path, text: &str) -> Result<(), Failure> {
    let Ok(found) = text.parse::<toml::Table>() else { return Ok(()) };
    match found.get("form") {
        Some(toml::Value::Integer(form)) if *form == i64::from(FORM) => Ok(()),
        _ => {
            let hint = "move it away, and sign in again with `muster login LINK`, or start `muster up`".to_owned();
            Err(Failure::of(FailureKind::Failed, &OtherForm { path: path.to_owned(), hint }))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn context(url: &str) -> ConsoleContext {
        ConsoleContext {
            url: url.to_owned(),
            operator: "admin".parse().unwrap(),
            token: "secret".to_owned(),
            authority: None,
            proxy: None,
            host: None,
        }
    }

    #[test]
    fn contexts_are_kept_apart_and_private() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("deep/context.toml");
        let mut contexts = Contexts::load(&path).unwrap();
        assert_eq!(contexts.pick(None).unwrap_err().kind, FailureKind::Usage);
        contexts.put("one", context("http://1"));
        contexts.put("two", context("http://2"));
        contexts.save(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let contexts = Contexts::load(&path).unwrap();
        assert_eq!(contexts.pick(None).unwrap().url, "http://2");
        assert_eq!(contexts.pick(Some("one")).unwrap().url, "http://1");
        let message = contexts.pick(Some("three")).unwrap_err().cause().unwrap().to_owned();
        assert!(message.contains("one, two"), "{message}");
        assert!(!format!("{contexts:?}").contains("secret"));
    }

    #[test]
    fn added_context_is_current_only_if_first() {
        let mut contexts = Contexts::default();
        assert_eq!(contexts.add("local", context("http://1")), None);
        assert_eq!(contexts.add("local", context("http://2")), None);
        assert_eq!(contexts.add("second", context("http://3")), Some("local".to_owned()));
        assert_eq!(contexts.pick(None).unwrap().url, "http://2");
        contexts.current = None;
        let failure = contexts.pick(None).unwrap_err();
        assert_eq!(failure.cause(), Some("none of the known consoles is the current one; known are: local, second"));
        contexts.current = Some("gone".to_owned());
        assert_eq!(contexts.add("second", context("http://4")), None, "one that is not there is nobody's");
        assert_eq!(contexts.pick(None).unwrap().url, "http://4");
    }

    #[test]
    fn damaged_context_file_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("context.toml");
        fs::write(&path, format!("form = {FORM}\ncurrent = 7")).unwrap();
        assert!(Contexts::load(&path).unwrap_err().cause().unwrap().to_owned().contains("context.toml"));
    }

    #[test]
    fn context_file_of_another_build_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("context.toml");
        let later = format!("form = {}\nnew = 1\n", FORM + 1);
        for text in ["", "current = \"a\"\n", "form = 0\n", &later] {
            fs::write(&path, text).unwrap();
            let failure = Contexts::load(&path).unwrap_err();
            let cause = failure.cause().unwrap();
            assert!(cause.contains("context.toml was written by a build of muster from before"), "{cause}");
            assert!(failure.given_hint().unwrap().contains("muster login"), "{text}");
        }
    }
}
