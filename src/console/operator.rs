//! Operators: how they sign in. A sign-in link carries a code that is good once, and for a quarter of
//! an hour; it becomes a session (a browser) or a token (a program).
//!
//! **Invariant: a secret is shown once, when it is made; what is kept is its SHA-256.** Secrets are
//! 32 random bytes, so nothing slower than a plain hash is needed.

use std::time::Duration;

use muster_topics::name::{Digest, Name, hex};

use super::{
    Console, Error,
    store::operator::{self, Kind},
};
use crate::{chance, clock::now_ms};

/// How long a sign-in code is good.
const SIGN_IN: Duration = Duration::from_secs(15 * 60);
/// How long a browser stays signed in.
const SESSION: Duration = Duration::from_secs(7 * 24 * 3600);

/// The operator that every installation has.
///
/// # Errors
/// Never.
pub(super) fn admin() -> Result<Name, Error> {
    "admin".parse().map_err(|error| Error::internal("the name of the first operator", &error))
}

/// 32 random bytes, as hexadecimal digits.
pub(super) fn new_secret() -> Result<String, Error> {
    Ok(hex(&random::<32>()?))
}

/// A short random name for listings.
pub(super) fn new_id() -> Result<Name, Error> {
    hex(&random::<5>()?).parse().map_err(|error| Error::internal("making an id", &error))
}

fn random<const N: usize>() -> Result<[u8; N], Error> {
    chance::bytes().map_err(|error| Error::internal("drawing random bytes", &error))
}

fn after(now: i64, time: Duration) -> i64 {
    now.saturating_add(i64::try_from(time.as_millis()).unwrap_or(i64::MAX))
}

impl Console {
    /// A link that signs the first operator in, once, within a quarter of an hour.
    pub async fn new_sign_in_link(&self) -> Result<String, Error> {
        let code = self.new_secret_of(&admin()?, Kind::SignIn, Some(SIGN_IN)).await?;
        Ok(format!("{}/sign-in?code={code}", self.web_url()))
    }

    /// A token for a program of an operator, without an end.
    pub async fn new_api_token(&self, operator: &Name) -> Result<String, Error> {
        self.shared.check_operator(operator).await?;
        self.new_secret_of(operator, Kind::Api, None).await
    }

    /// Uses up a one-time sign-in code; gives a session's secret for the cookie.
    pub async fn sign_in(&self, code: &str) -> Result<String, Error> {
        Ok(self.exchange(code, Kind::Session, Some(SESSION)).await?.1)
    }

    /// Uses up a one-time sign-in code; gives a token for a program.
    pub async fn login(&self, code: &str) -> Result<(Name, String), Error> {
        self.exchange(code, Kind::Api, None).await
    }

    /// Who has this session.
    pub async fn session(&self, secret: &str) -> Result<Option<Name>, Error> {
        self.whose(Kind::Session, secret).await
    }

    /// Whose program has this token.
    pub async fn bearer(&self, secret: &str) -> Result<Option<Name>, Error> {
        self.whose(Kind::Api, secret).await
    }

    /// Ends a session.
    pub async fn sign_out(&self, secret: &str) -> Result<(), Error> {
        operator::end(self.shared.store.write(), Kind::Session, &Digest::of(secret.as_bytes()), now_ms()).await?;
        Ok(())
    }

    async fn whose(&self, kind: Kind, secret: &str) -> Result<Option<Name>, Error> {
        let secret = Digest::of(secret.as_bytes());
        Ok(operator::find(self.shared.store.read(), kind, &secret, now_ms()).await?)
    }

    async fn new_secret_of(&self, name: &Name, kind: Kind, lifetime: Option<Duration>) -> Result<String, Error> {
        let (secret, now) = (new_secret()?, now_ms());
        let hash = Digest::of(secret.as_bytes());
        let mut transaction = self.shared.store.begin().await?;
        operator::add_secret(&mut transaction, kind, &hash, name, now, lifetime.map(|time| after(now, time))).await?;
        transaction.commit().await.map_err(super::store::StoreError::from)?;
        Ok(secret)
    }

    /// Takes the code away and enters the new secret in one transaction: either both happen, or the
    /// code is still good.
    async fn exchange(&self, code: &str, kind: Kind, lifetime: Option<Duration>) -> Result<(Name, String), Error> {
        let (secret, now) = (new_secret()?, now_ms());
        let mut transaction = self.shared.store.begin().await?;
        let taken = operator::take(&mut transaction, Kind::SignIn, &Digest::of(code.as_bytes()), now).await?;
        let Some(name) = taken else {
            return Err(Error::unauthorised("bad_code", "this sign-in code is wrong, used or older than 15 minutes")
                .hint("`muster up` prints a new sign-in link at each start"));
        };
        let hash = Digest::of(secret.as_bytes());
        operator::add_secret(&mut transaction, kind, &hash, &name, now, lifetime.map(|time| after(now, time))).await?;
        transaction.commit().await.map_err(super::store::StoreError::from)?;
        tracing::info!(operator = %name, "signed in");
        Ok((name, secret))
    }
}
