//! Packages of a host as a unit: the spec of kind `packages`.
//!
//! A unit is *started* when its packages are as described, and *running* while they stay so.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    canonical,
    common::CommonSpec,
    files::{ChangeNotice, Drift},
    name::{Digest, Name},
    secret::SecretRef,
    task::Resource,
};

/// The most packages of one unit: they are part of its report.
pub const PACKAGES_MAX: usize = 512;

/// The most repositories of one unit.
pub const REPOSITORIES_MAX: usize = 16;

/// Packages of a host's package manager.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PackagesSpec {
    /// The package manager; the host's own by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub manager: Option<PackageManager>,
    /// The packages that are there, each as `NAME` or `NAME=VERSION`; with `absent` at most [`PACKAGES_MAX`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub present: Vec<String>,
    /// The packages that are not there.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub absent: Vec<String>,
    /// Whether the configuration files of absent packages are removed, too.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub purge: bool,
    /// Packages that nobody else may upgrade (`hold`).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hold: Vec<String>,
    /// Repositories in addition to the host's own, by name; at most [`REPOSITORIES_MAX`].
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub repositories: BTreeMap<Name, Repository>,
    /// What may be done that is refused otherwise.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allow: Vec<PackageAllowance>,
    /// Whether services of new packages are kept from starting.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub no_start: bool,
    /// What is done if somebody else changes one of them.
    #[serde(default, skip_serializing_if = "Drift::is_correct")]
    pub drift: Drift,
    /// What is done on this host once they have changed; at most [`NOTICES_MAX`](crate::files::NOTICES_MAX).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub on_change: Vec<ChangeNotice>,
    /// What each kind has.
    #[serde(flatten)]
    pub common: CommonSpec,
}

/// A package manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PackageManager {
    /// Debian's, with `dpkg`.
    Apt,
    /// Alpine's.
    Apk,
}

impl PackageManager {
    /// Returns its name as in the JSON form.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Apt => "apt",
            Self::Apk => "apk",
        }
    }
}

/// What a change of packages may do that is refused otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PackageAllowance {
    /// Replace a package by an older version.
    Downgrade,
    /// Remove packages that are not named.
    RemoveOthers,
}

/// A repository of packages.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Repository {
    /// Its address, without a user and a password.
    pub url: String,
    /// The suite, such as `stable`, or `./` for a flat repository.
    pub suite: String,
    /// The components; none for a flat repository.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub components: Vec<String>,
    /// The public key that signs it, in ASCII armour. Nothing is installed from a repository without a valid signature.
    pub key: String,
    /// The login for a repository that asks for one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub login: Option<RepositoryLogin>,
}

/// A login to a repository.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RepositoryLogin {
    /// The user.
    pub user: String,
    /// The password.
    pub password: PasswordSecret,
}

/// A password, by the secret that has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PasswordSecret {
    /// The name of a secret of the unit's realm.
    pub secret: Name,
}

impl Repository {
    /// Returns its address as a package manager compares it: with a slash at its end.
    #[must_use]
    pub fn address(&self) -> String {
        format!("{}/", self.url.strip_suffix('/').unwrap_or(&self.url))
    }

    /// Returns its key without what differs from copy to copy: spaces at the ends of lines, and empty lines around it.
    #[must_use]
    pub fn plain_key(&self) -> String {
        let lines: Vec<&str> = self.key.trim().lines().map(str::trim_end).collect();
        lines.join("\n") + "\n"
    }

    /// Returns the digest of that.
    #[must_use]
    pub fn key_digest(&self) -> Digest {
        Digest::of(self.plain_key().as_bytes())
    }
}

/// The identity fields of a unit of packages.
#[derive(Serialize)]
struct Identity<'a> {
    kind: &'a str,
    manager: Option<PackageManager>,
    present: &'a [String],
    absent: &'a [String],
    purge: bool,
    hold: &'a [String],
    repositories: &'a BTreeMap<Name, Repository>,
    #[serde(skip_serializing_if = "<[SecretRef]>::is_empty")]
    secrets: &'a [SecretRef],
    allow: &'a [PackageAllowance],
    no_start: bool,
    restart_epoch: u64,
}

impl PackagesSpec {
    /// Creates a spec without packages, with defaults.
    #[must_use]
    pub fn new() -> Self {
        Self {
            manager: None,
            present: Vec::new(),
            absent: Vec::new(),
            purge: false,
            hold: Vec::new(),
            repositories: BTreeMap::new(),
            allow: Vec::new(),
            no_start: false,
            drift: Drift::default(),
            on_change: Vec::new(),
            common: CommonSpec::default(),
        }
    }

    /// Returns the digest of the identity fields.
    pub(crate) fn identity(&self, kind: &str) -> Result<Digest, canonical::CanonicalError> {
        let Self { manager, present, absent, purge, hold, repositories, allow, no_start, common, .. } = self;
        canonical::digest(&Identity {
            kind,
            manager: *manager,
            present,
            absent,
            purge: *purge,
            hold,
            repositories,
            secrets: &common.secrets,
            allow,
            no_start: *no_start,
            restart_epoch: common.restart_epoch,
        })
    }

    /// Returns what it owns: packages, each with the version that it wants, repositories, and logins to them.
    pub(crate) fn resources(&self) -> impl Iterator<Item = Resource> {
        let present = self.present.iter().map(|package| match package.split_once('=') {
            Some((name, version)) => Resource::Package { name: name.to_owned(), version: Some(version.to_owned()) },
            None => Resource::Package { name: package.clone(), version: None },
        });
        let absent =
            self.absent.iter().map(|name| Resource::Package { name: name.clone(), version: Some(String::new()) });
        let repositories = self.repositories.values().map(|repository| Resource::Repository {
            url: repository.address(),
            suite: repository.suite.clone(),
            key: repository.key_digest(),
        });
        let logins = self.repositories.values().filter_map(|repository| {
            let login = repository.login.as_ref()?;
            Some(Resource::Login {
                url: repository.address(),
                user: login.user.clone(),
                secret: login.password.secret.clone(),
            })
        });
        present.chain(absent).chain(repositories).chain(logins)
    }

    /// Returns the secrets that its repositories name.
    pub fn named_secrets(&self) -> impl Iterator<Item = &Name> {
        let logins = self.repositories.values().filter_map(|repository| repository.login.as_ref());
        logins.map(|login| &login.password.secret)
    }
}

impl Default for PackagesSpec {
    fn default() -> Self {
        Self::new()
    }
}
