//! Packages of a host: what a spec wants, what a package manager would do for it, and what of that is refused.
//!
//! - this one: validates the spec
//! - [`version`]: compares versions of Debian packages
//! - [`installed`]: the packages that are there, from the output of `dpkg-query`
//! - [`target`]: what differs from the spec, and what has to be undone of a revision that failed
//! - [`change`]: what the package manager would do, from the output of its simulation, and what of that is refused
//! - [`fault`]: why it failed, from its output
//! - [`source`]: the repositories that a host has already, and which of a spec are left to be added

pub mod change;
pub mod fault;
pub mod installed;
pub mod source;
pub mod target;
pub mod version;

use std::collections::{BTreeMap, BTreeSet};

use muster_topics::{
    address::has_user_information,
    diagnostic::Diagnostic,
    files::NOTICES_MAX,
    packages::{PACKAGES_MAX, PackagesSpec, REPOSITORIES_MAX, Repository, RepositoryLogin},
};

use super::{common, process::most};

/// The longest name or version of a package; no package of Debian has more than half of it.
const WORD_MAX_BYTES: usize = 200;

/// The longest key of a repository: Debian's own keyring is a fifth of it.
const KEY_MAX_BYTES: usize = 256 * 1024;

/// Returns everything that is wrong with a spec, part by part.
#[must_use]
pub fn faults(spec: &PackagesSpec) -> Vec<Diagnostic> {
    let count = spec.present.len() + spec.absent.len();
    let checks = [
        if count == 0 { Err("present and absent are both empty".into()) } else { Ok(()) },
        most("present", " packages, with absent", count, PACKAGES_MAX),
        most("hold", " packages", spec.hold.len(), PACKAGES_MAX),
        most("repositories", "", spec.repositories.len(), REPOSITORIES_MAX),
        most("on_change", " actions", spec.on_change.len(), NOTICES_MAX),
    ];
    let of_packages = package_faults(spec);
    let of_repositories = spec.repositories.iter().filter_map(|(name, repository)| {
        check_repository(repository)
            .err()
            .map(|fault| Diagnostic { cause: format!("repositories.{name}.{}", fault.cause), ..fault })
    });
    let all = checks
        .into_iter()
        .chain(common::checks(&spec.common))
        .filter_map(Result::err)
        .chain(of_packages)
        .chain(of_repositories);
    all.chain(key_faults(spec)).chain(login_faults(spec)).collect()
}

/// Splits `NAME` or `NAME=VERSION`.
#[must_use]
pub fn split(package: &str) -> (&str, Option<&str>) {
    match package.split_once('=') {
        Some((name, version)) => (name, Some(version)),
        None => (package, None),
    }
}

fn package_faults(spec: &PackagesSpec) -> Vec<Diagnostic> {
    let mut faults = Vec::new();
    let mut named = BTreeSet::new();
    for (part, package) in
        spec.present.iter().map(|one| ("present", one)).chain(spec.absent.iter().map(|one| ("absent", one)))
    {
        let (name, version) = split(package);
        if let Err(fault) = check_name(name) {
            faults.push(fault.within(format_args!("{part}: {package}")));
        }
        match version {
            Some(_) if part == "absent" => faults.push(
                Diagnostic::new(format_args!("absent: {package}: an absent package has no version"))
                    .with_hint(format_args!("write {name} without a version")),
            ),
            Some(version) => {
                faults
                    .extend(check_version(version).err().map(|fault| fault.within(format_args!("{part}: {package}"))));
            }
            None => {}
        }
        if !named.insert(name) {
            faults.push(format!("{part}: {name} is named twice").into());
        }
    }
    for name in &spec.hold {
        if let Err(fault) = check_name(name) {
            faults.push(fault.within(format_args!("hold: {name}")));
        } else if spec.absent.contains(name) {
            faults.push(format!("hold: {name} is in absent too").into());
        }
    }
    faults
}

/// Checks a package's name: nothing that a package manager could take for an option, or for more than one package.
fn check_name(name: &str) -> Result<(), Diagnostic> {
    let (bare, architecture) = name.split_once(':').map_or((name, None), |(bare, after)| (bare, Some(after)));
    let is_first = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let is_part = |byte: u8| is_first(byte) || matches!(byte, b'+' | b'-' | b'.' | b'_');
    let is_name = |text: &str| text.bytes().next().is_some_and(is_first) && text.bytes().all(is_part);
    // With one of these at its end apt would do the opposite, or take it for a pattern.
    let is_sign = bare.len() > 1 && bare.ends_with('-');
    if name.len() > WORD_MAX_BYTES || !is_name(bare) || is_sign || !architecture.is_none_or(is_name) {
        return Err("it is not a package name: use lower-case letters, digits, `+`, `-`, `.` and `_`".into());
    }
    Ok(())
}

fn check_version(version: &str) -> Result<(), Diagnostic> {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'+' | b'-' | b'~' | b':' | b'_');
    let begins = version.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric());
    if begins && version.len() <= WORD_MAX_BYTES && version.bytes().all(is_part) {
        return Ok(());
    }
    Err(Diagnostic::new("not a valid version").with_hint("`apt-cache policy NAME` lists the versions"))
}

/// Finds repositories that are named twice with different keys: no package manager reads such sources.
fn key_faults(spec: &PackagesSpec) -> Vec<Diagnostic> {
    let mut keys = BTreeMap::new();
    let mut faults = Vec::new();
    for (name, repository) in &spec.repositories {
        let (first, key) =
            keys.entry((repository.address(), &repository.suite)).or_insert_with(|| (name, repository.key_digest()));
        if *key != repository.key_digest() {
            faults.push(format!("repositories.{name}.key: {first} is the same repository with another key").into());
        }
    }
    faults
}

/// Finds logins to the same address that differ: a package manager has one for each.
fn login_faults(spec: &PackagesSpec) -> Vec<Diagnostic> {
    let mut logins = BTreeMap::new();
    let mut faults = Vec::new();
    for (name, repository) in &spec.repositories {
        let Some(login) = &repository.login else { continue };
        let (first, known) = logins.entry(repository.address()).or_insert((name, login));
        if *known != login {
            faults.push(format!("repositories.{name}.login: {first} has the same address with another login").into());
        }
    }
    faults
}

/// Checks that a login is one line of a file, and one that a package manager uses.
fn check_login(url: &str, login: &RepositoryLogin) -> Result<(), Diagnostic> {
    let RepositoryLogin { user, password: _ } = login;
    if user.is_empty() || user.len() > WORD_MAX_BYTES || !user.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err("login.user: it must be one word".into());
    }
    if !url.starts_with("https://") && !url.starts_with("http://") {
        return Err(Diagnostic::new("login: such a url needs no login").with_hint("leave it out"));
    }
    Ok(())
}

/// Checks that a repository is one line each in a file of sources, and has a key.
fn check_repository(repository: &Repository) -> Result<(), Diagnostic> {
    let Repository { url, suite, components, key, login } = repository;
    let is_word = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic());
    if has_user_information(url) {
        return Err(Diagnostic::new("url: it has a user or a password, which every listing would show").with_hint(
            "leave it out, and write `login: {user: NAME, password: {secret: SECRET}}`; `muster secret \
                 set SECRET` sets the password",
        ));
    }
    let schemes = ["http://", "https://", "file:/", "copy:/"];
    if !is_word(url) || !schemes.iter().any(|scheme| url.starts_with(scheme)) {
        return Err(format!("url: it must be one word, and begin with one of {}", schemes.join(", ")).into());
    }
    if !is_word(suite) {
        return Err("suite: it must be one word, such as stable, or ./ for a flat repository".into());
    }
    if suite.ends_with('/') != components.is_empty() {
        return Err(
            "components: a flat repository, whose suite ends with /, has none, and any other at least one".into()
        );
    }
    if !components.iter().all(|component| is_word(component)) {
        return Err("components: each must be one word".into());
    }
    let key = key.trim();
    let is_armoured =
        key.starts_with("-----BEGIN PGP PUBLIC KEY BLOCK-----") && key.ends_with("-----END PGP PUBLIC KEY BLOCK-----");
    if !is_armoured || key.len() > KEY_MAX_BYTES {
        return Err(Diagnostic::new("key: it must be a public key in ASCII armour")
            .with_hint("export it with `gpg --armor --export KEY`"));
    }
    login.as_ref().map_or(Ok(()), |login| check_login(url, login))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(json: serde_json::Value) -> PackagesSpec {
        serde_json::from_value(json).unwrap()
    }

    #[test]
    fn invalid_parts_are_named() {
        let key = "-----BEGIN PGP PUBLIC KEY BLOCK-----\n\nAA\n-----END PGP PUBLIC KEY BLOCK-----\n";
        let good = serde_json::json!({"url": "http://127.0.0.1/x", "suite": "./", "key": key});
        let with_login = |url: &str, user: &str, secret: &str| {
            let login = serde_json::json!({"user": user, "password": {"secret": secret}});
            let repository = serde_json::json!({"url": url, "suite": "./", "key": key, "login": login});
            serde_json::json!({"present": ["a"], "repositories": {"r": repository}})
        };
        for (json, fault) in [
            (serde_json::json!({}), Some("present and absent are both empty")),
            (serde_json::json!({"present": ["nginx", "libc6:i386", "g++=4:12.2.0-3", "a=1~rc1"]}), None),
            (serde_json::json!({"present": ["--yes"]}), Some("present: --yes: it is not a package name")),
            (serde_json::json!({"present": ["nginx-"]}), Some("it is not a package name")),
            (serde_json::json!({"present": ["nginx*"]}), Some("it is not a package name")),
            (serde_json::json!({"present": ["./x.deb"]}), Some("it is not a package name")),
            (serde_json::json!({"present": ["a="]}), Some("not a valid version")),
            (serde_json::json!({"present": ["a=1 b"]}), Some("not a valid version")),
            (serde_json::json!({"present": ["a", "a=1"]}), Some("a is named twice")),
            (serde_json::json!({"present": ["a"], "absent": ["a"]}), Some("a is named twice")),
            (serde_json::json!({"absent": ["a=1"]}), Some("write a without a version")),
            (serde_json::json!({"absent": ["a"], "hold": ["a"]}), Some("a is in absent")),
            (serde_json::json!({"present": ["a"], "repositories": {"r": good}}), None),
            (serde_json::json!({"present": ["a"], "repositories": {"r": good, "s": good}}), None),
            (with_login("http://127.0.0.1/x", "deploy", "repo"), None),
            (with_login("https://u:pw@h/x", "deploy", "repo"), Some("repositories.r.url: it has a user or a password")),
            (with_login("http://u@h", "deploy", "repo"), Some("`login: {user: NAME, password: {secret: SECRET}}`")),
            (with_login("http://h/a@b", "deploy", "repo"), None),
            (with_login("http://h", "two words", "repo"), Some("repositories.r.login.user: it must be one word")),
            (with_login("http://h", "", "repo"), Some("login.user: it must be one word")),
            (with_login("file:/srv/x", "deploy", "repo"), Some("such a url needs no login")),
            (
                serde_json::json!({"present": ["a"], "repositories": {
                    "r": with_login("http://h", "one", "repo")["repositories"]["r"],
                    "s": with_login("http://h/", "two", "repo")["repositories"]["r"]}}),
                Some("repositories.s.login: r has the same address with another login"),
            ),
            (
                serde_json::json!({"present": ["a"], "repositories": {"r": good, "s": {
                    "url": "http://127.0.0.1/x/", "suite": "./", "key": key.replace("AA", "AB")}}}),
                Some("repositories.s.key: r is the same repository with another key"),
            ),
            (
                serde_json::json!({"present": ["a"], "repositories": {"r": {"url": "http://a\nTrusted: yes", "suite": "./", "key": key}}}),
                Some("repositories.r.url"),
            ),
            (
                serde_json::json!({"present": ["a"], "repositories": {"r": {"url": "http://a", "suite": "stable", "key": key}}}),
                Some("at least one"),
            ),
            (
                serde_json::json!({"present": ["a"], "repositories": {"r": {"url": "http://a", "suite": "./", "key": "x"}}}),
                Some("ASCII armour"),
            ),
        ] {
            let found = faults(&spec(json.clone()));
            match fault {
                None => assert_eq!(found, [], "{json}"),
                Some(fault) => {
                    assert!(found.iter().any(|found| format!("{found:#}").contains(fault)), "{json}: {found:?}");
                }
            }
        }
    }
}
