//! Membership: join tokens, and the revocation of hosts.

use muster_base::clock::now_ms;
use muster_topics::name::{Digest, HostId, Name};

use super::{
    error::Error,
    store::{host, ids::IdKind},
};

use super::{operator, state::Console, store};

/// The default and maximum lifetimes of a join token.
const TOKEN_LIFETIME_S: u64 = 3600;
const TOKEN_LIFETIME_MAX_S: u64 = 30 * 24 * 3600;

impl Console {
    /// Revokes all certificates of a host, by id or unique hostname: it is not a member any more until it joins again.
    pub async fn revoke_host(&self, operator: &Name, host: &str) -> Result<(), Error> {
        self.shared.check_operator(operator).await?;
        let id = self.resolve_host(host).await?;
        let mut transaction = self.shared.store.begin().await?;
        let ended = host::revoke(&mut transaction, id, now_ms()).await?;
        transaction.commit().await.map_err(store::StoreError::from)?;
        if let Some(commands) = ended {
            tracing::warn!(host.id = %id, %operator, commands = commands.len(), "a host was revoked");
            self.shared.left(id, &commands).await;
        }
        Ok(())
    }

    /// Creates a join token for a host.
    pub async fn create_token(
        &self,
        operator: &Name,
        token: muster_api::NewToken,
    ) -> Result<muster_api::CreatedToken, Error> {
        self.shared.check_operator(operator).await?;
        let muster_api::NewToken { for_s, replace } = token;
        let replaces = match replace {
            Some(host) => Some(self.resolve_host(&host).await?),
            None => None,
        };
        let made = self.make_tokens(operator, muster_api::NewTokens { count: 1, for_s }, replaces).await?;
        made.into_iter().next().ok_or_else(|| Error::invalid("bad_count", "no token was requested"))
    }

    /// Creates join tokens for several hosts: all, or none.
    pub async fn create_tokens(
        &self,
        operator: &Name,
        wanted: muster_api::NewTokens,
    ) -> Result<Vec<muster_api::CreatedToken>, Error> {
        self.make_tokens(operator, wanted, None).await
    }

    pub(super) async fn make_tokens(
        &self,
        operator: &Name,
        wanted: muster_api::NewTokens,
        replaces: Option<HostId>,
    ) -> Result<Vec<muster_api::CreatedToken>, Error> {
        let for_s = wanted.for_s.unwrap_or(TOKEN_LIFETIME_S);
        if !(1..=TOKEN_LIFETIME_MAX_S).contains(&for_s) {
            return Err(Error::invalid("bad_lifetime", format!("a token lives from 1 s to {TOKEN_LIFETIME_MAX_S} s")));
        }
        if !(1..=muster_api::TOKENS_MAX).contains(&wanted.count) {
            let message = format!("from 1 to {} tokens are made at once", muster_api::TOKENS_MAX);
            return Err(Error::invalid("bad_count", message));
        }
        let now = now_ms();
        let expires_ms = now + i64::try_from(for_s).unwrap_or(0) * 1000;
        let mut made = Vec::new();
        let mut transaction = self.shared.store.begin().await?;
        for _ in 0..wanted.count {
            let secret = operator::new_secret()?;
            let id = operator::new_id()?;
            let hash = Digest::of(secret.as_bytes());
            store::token::add(&mut transaction, &id, &hash, operator, (now, expires_ms), replaces).await?;
            let token = muster_topics::join::JoinToken {
                url: self.shared.settings.urls.hosts.clone(),
                authority: self.shared.authority.fingerprint(),
                secret,
            };
            tracing::info!(token.id = %id, %operator, "made a token for joining");
            let (token, warning) = (token.to_string(), self.shared.join_warning());
            let command = format!("muster agent --join {token}");
            made.push(muster_api::CreatedToken { id, token, expires_ms, command, warning });
        }
        transaction.commit().await.map_err(store::StoreError::from)?;
        Ok(made)
    }

    /// Returns all join tokens, newest first.
    pub async fn tokens(&self) -> Result<Vec<muster_api::Token>, Error> {
        Ok(store::token::list(self.shared.store.read()).await?)
    }

    /// Revokes a join token. A used one stays used: its host is a member.
    pub async fn revoke_token(&self, id: &str) -> Result<(), Error> {
        let id: Name = self.whole_id(IdKind::Tokens, id).await?;
        if store::token::revoke(self.shared.store.write(), &id, now_ms()).await? {
            return Ok(());
        }
        Err(Error::not_found("unknown_token", format!("there is no token {id}")))
    }
}
