//! Operators, and how they sign in. A sign-in link carries a code that works once, within a quarter of
//! an hour; it becomes a session (a browser) or a token (a program).
//!
//! **Invariant: a secret is shown once, when it is made; only its SHA-256 is stored.** Secrets are
//! 32 random bytes, so nothing slower than a plain hash is needed.

use std::time::Duration;

use muster_base::{chance, clock::now_ms};
use muster_topics::name::{Digest, Name, hex};

use super::{
    error::Error,
    state::Console,
    store::{
        Store,
        ids::IdKind,
        operator::{self, SecretPurpose},
    },
};

/// How long a sign-in code is valid.
const SIGN_IN: Duration = Duration::from_secs(15 * 60);
/// How long a browser stays signed in.
const SESSION: Duration = Duration::from_secs(7 * 24 * 3600);
/// How long a program's token is valid: a season, after which it has to be renewed on purpose.
const API: Duration = Duration::from_secs(90 * 24 * 3600);
/// The same for the token that `muster up` gives the command line of its own user, and replaces when it has expired.
const OWN: Duration = Duration::from_secs(366 * 24 * 3600);

/// Returns the operator that every installation has.
///
/// # Errors
/// Never.
pub(super) fn admin() -> Result<Name, Error> {
    "admin".parse().map_err(|error| Error::internal("the name of the first operator", &error))
}

/// Returns 32 random bytes as hexadecimal digits.
pub(super) fn new_secret() -> Result<String, Error> {
    Ok(hex(&random::<32>()?))
}

/// Returns a short random name for lists.
pub(super) fn new_id() -> Result<Name, Error> {
    hex(&random::<5>()?).parse().map_err(|error| Error::internal("making an id", &error))
}

fn random<const N: usize>() -> Result<[u8; N], Error> {
    chance::bytes().map_err(|error| Error::internal("drawing random bytes", &error))
}

fn after(now: i64, time: Duration) -> i64 {
    now.saturating_add(i64::try_from(time.as_millis()).unwrap_or(i64::MAX))
}

/// Makes a link to the pages at `web_url` that signs the first operator in, once, within a quarter of an hour. It needs
/// no running console; a running one accepts it at once, because it is in the store.
pub(crate) async fn new_sign_in_link(store: &Store, web_url: &str) -> Result<String, Error> {
    let code = new_secret_of(store, &admin()?, SecretPurpose::SignIn, SIGN_IN).await?;
    Ok(format!("{web_url}/sign-in?code={code}"))
}

async fn new_secret_of(store: &Store, name: &Name, kind: SecretPurpose, lifetime: Duration) -> Result<String, Error> {
    let (secret, now) = (new_secret()?, now_ms());
    let hash = Digest::of(secret.as_bytes());
    let mut transaction = store.begin().await?;
    operator::add_secret(&mut transaction, kind, &hash, name, now, after(now, lifetime)).await?;
    transaction.commit().await.map_err(super::store::StoreError::from)?;
    Ok(secret)
}

impl Console {
    /// Makes a link that signs the first operator in, once, within a quarter of an hour.
    pub async fn new_sign_in_link(&self) -> Result<String, Error> {
        new_sign_in_link(&self.shared.store, self.web_url()).await
    }

    /// Makes a token for the command line of the user who runs the console; it is valid for a year.
    pub async fn new_api_token(&self, operator: &Name) -> Result<String, Error> {
        self.shared.check_operator(operator).await?;
        new_secret_of(&self.shared.store, operator, SecretPurpose::Api, OWN).await
    }

    /// Returns signed-in browsers and programs, newest first.
    pub async fn sign_ins(&self) -> Result<Vec<muster_api::SignIn>, Error> {
        Ok(operator::list(self.shared.store.read(), now_ms()).await?)
    }

    /// Ends one of them at once.
    pub async fn revoke_sign_in(&self, by: &Name, id: &str) -> Result<(), Error> {
        self.shared.check_operator(by).await?;
        let id: Name = self.whole_id(IdKind::SignIns, id).await?;
        if operator::end_by_id(self.shared.store.write(), &id, now_ms()).await? {
            tracing::info!(sign_in.id = %id, operator = %by, "a sign-in was revoked");
            return Ok(());
        }
        Err(Error::not_found("unknown_sign_in", format!("there is no sign-in {id}"))
            .hint("`muster login ls`, or GET /api/v1/sign-ins, lists them"))
    }

    /// Uses a one-time sign-in code; returns a session's secret for the cookie.
    pub async fn sign_in(&self, code: &str) -> Result<String, Error> {
        Ok(self.exchange(code, SecretPurpose::Session, SESSION).await?.1)
    }

    /// Uses a one-time sign-in code; returns a token for a program.
    pub async fn login(&self, code: &str) -> Result<(Name, String), Error> {
        self.exchange(code, SecretPurpose::Api, API).await
    }

    /// Returns the operator of a session.
    pub async fn session(&self, secret: &str) -> Result<Option<Name>, Error> {
        self.whose(SecretPurpose::Session, secret).await
    }

    /// Returns the operator of a program's token.
    pub async fn bearer(&self, secret: &str) -> Result<Option<Name>, Error> {
        self.whose(SecretPurpose::Api, secret).await
    }

    /// Ends a session.
    pub async fn sign_out(&self, secret: &str) -> Result<(), Error> {
        operator::end(self.shared.store.write(), SecretPurpose::Session, &Digest::of(secret.as_bytes()), now_ms())
            .await?;
        Ok(())
    }

    async fn whose(&self, kind: SecretPurpose, secret: &str) -> Result<Option<Name>, Error> {
        let (secret, now) = (Digest::of(secret.as_bytes()), now_ms());
        let Some((name, is_noted)) = operator::find(self.shared.store.read(), kind, &secret, now).await? else {
            return Ok(None);
        };
        if !is_noted {
            match operator::note_use(self.shared.store.write(), &secret, now).await {
                // What is there can be read on a full disk, too.
                Err(error) if error.is_full() => {
                    tracing::warn!(%error, hint = error.hint(), "the use of a secret cannot be recorded");
                }
                noted => noted?,
            }
        }
        Ok(Some(name))
    }

    /// Removes the code and stores the new secret in one transaction: either both happen, or the code is still valid.
    async fn exchange(&self, code: &str, kind: SecretPurpose, lifetime: Duration) -> Result<(Name, String), Error> {
        let (secret, now) = (new_secret()?, now_ms());
        let mut transaction = self.shared.store.begin().await?;
        let taken = operator::take(&mut transaction, SecretPurpose::SignIn, &Digest::of(code.as_bytes()), now).await?;
        let Some(name) = taken else {
            return Err(Error::unauthorised("bad_code", "this sign-in code is wrong, used or older than 15 minutes")
                .hint("`muster login --new-link`, on the console's machine, prints a new sign-in link"));
        };
        let hash = Digest::of(secret.as_bytes());
        operator::add_secret(&mut transaction, kind, &hash, &name, now, after(now, lifetime)).await?;
        transaction.commit().await.map_err(super::store::StoreError::from)?;
        tracing::info!(operator = %name, "signed in");
        Ok((name, secret))
    }
}
