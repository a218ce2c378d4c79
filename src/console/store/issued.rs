//! Certificates issued by hand, and all revoked certificates, hosts' included.

use std::fmt;

use muster_topics::{Millis, name::Name};
use sqlx::SqlitePool;

use super::{
    columns::parsed,
    error::{StoreError, StoreResult},
};

/// The purpose of a certificate that is issued by hand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IssuedRole {
    /// A separate broker.
    Broker,
    /// Another console.
    Console,
    /// A client that may read everything.
    Operator,
    /// A client that may read some topics.
    Observer,
}

impl IssuedRole {
    const ALL: [Self; 4] = [Self::Broker, Self::Console, Self::Operator, Self::Observer];

    /// The role as a word.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Broker => "broker",
            Self::Console => "console",
            Self::Operator => "operator",
            Self::Observer => "observer",
        }
    }
}

/// A certificate that was issued by hand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IssuedCertificate {
    /// Its serial number, in hexadecimal digits.
    pub serial: String,
    /// Its purpose.
    pub role: IssuedRole,
    /// Its owner's name.
    pub name: Name,
    /// When it was issued.
    pub issued_ms: Millis,
    /// When it expires.
    pub expires_ms: Millis,
    /// When it was revoked.
    pub revoked_ms: Option<Millis>,
}

impl IssuedCertificate {
    /// Returns role and name, such as `operator-anna`: the common name, except for a broker.
    #[must_use]
    pub fn owner(&self) -> CertificateOwner<'_> {
        CertificateOwner(self.role, &self.name)
    }
}

/// See [`IssuedCertificate::owner`].
#[derive(Clone, Copy, Debug)]
pub struct CertificateOwner<'a>(IssuedRole, &'a Name);

impl fmt::Display for CertificateOwner<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{}-{}", self.0.as_str(), self.1))
    }
}

struct IssuedRow {
    serial: String,
    role: String,
    name: String,
    issued_ms: i64,
    expires_ms: i64,
    revoked_ms: Option<i64>,
}

impl IssuedRow {
    fn issued(self) -> StoreResult<IssuedCertificate> {
        let unknown = || StoreError::Row { what: "role", problem: format!("{:?} is not valid", self.role) };
        let role = IssuedRole::ALL.into_iter().find(|role| role.as_str() == self.role).ok_or_else(unknown)?;
        Ok(IssuedCertificate {
            serial: self.serial,
            role,
            name: parsed("name", &self.name)?,
            issued_ms: self.issued_ms,
            expires_ms: self.expires_ms,
            revoked_ms: self.revoked_ms,
        })
    }
}

/// Stores a certificate.
pub async fn add(db: &SqlitePool, issued: &IssuedCertificate) -> StoreResult<()> {
    sqlx::query!(
        "INSERT INTO issued (serial, role, name, issued_ms, expires_ms, revoked_ms) VALUES ($1, $2, $3, $4, $5, $6)",
        &issued.serial,
        issued.role.as_str(),
        issued.name.as_str(),
        issued.issued_ms,
        issued.expires_ms,
        issued.revoked_ms
    )
    .execute(db)
    .await?;
    Ok(())
}

/// Returns all certificates that were issued by hand and have not expired, newest first.
pub async fn list(db: &SqlitePool, now: Millis) -> StoreResult<Vec<IssuedCertificate>> {
    let rows = sqlx::query_as!(
        IssuedRow,
        "SELECT serial, role, name, issued_ms, expires_ms, revoked_ms FROM issued
         WHERE expires_ms > $1 ORDER BY issued_ms DESC, serial",
        now
    )
    .fetch_all(db)
    .await?;
    rows.into_iter().map(IssuedRow::issued).collect()
}

/// Revokes certificates with this serial number, or this owner (`operator-anna`). Returns what was revoked; empty if
/// there was none left.
pub async fn revoke(db: &SqlitePool, which: &str, now: Millis) -> StoreResult<Vec<IssuedCertificate>> {
    let rows = sqlx::query_as!(
        IssuedRow,
        "UPDATE issued SET revoked_ms = $2
         WHERE (serial = lower($1) OR role || '-' || name = $1) AND revoked_ms IS NULL AND expires_ms > $2
         RETURNING serial, role, name, issued_ms, expires_ms, revoked_ms",
        which,
        now
    )
    .fetch_all(db)
    .await?;
    rows.into_iter().map(IssuedRow::issued).collect()
}

/// A revoked certificate that has not expired.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RevokedCertificate {
    /// Its serial number, in hexadecimal digits.
    pub serial: String,
    /// When it was revoked.
    pub revoked_ms: Millis,
}

/// Returns all revoked certificates that have not expired, of hosts, removed hosts and others, in one order.
pub async fn revoked(db: &SqlitePool, now: Millis) -> StoreResult<Vec<RevokedCertificate>> {
    let rows = sqlx::query_as!(
        RevokedCertificate,
        r#"SELECT serial, revoked_ms AS "revoked_ms!" FROM certificate
           WHERE revoked_ms IS NOT NULL AND expires_ms > $1
           UNION ALL
           SELECT serial, revoked_ms FROM issued WHERE revoked_ms IS NOT NULL AND expires_ms > $1
           UNION ALL
           SELECT serial, revoked_ms FROM removed WHERE expires_ms > $1
           ORDER BY 2, 1"#,
        now
    )
    .fetch_all(db)
    .await?;
    Ok(rows)
}

/// Removes certificates that expired before `before`.
pub async fn sweep(db: &SqlitePool, before: Millis) -> StoreResult<u64> {
    let gone = sqlx::query!("DELETE FROM issued WHERE expires_ms < $1", before).execute(db).await?;
    Ok(gone.rows_affected())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::tests::temporary;

    fn issued(serial: &str, role: IssuedRole, name: &str, expires_ms: Millis) -> IssuedCertificate {
        IssuedCertificate {
            serial: serial.to_owned(),
            role,
            name: name.parse().unwrap(),
            issued_ms: 1,
            expires_ms,
            revoked_ms: None,
        }
    }

    #[tokio::test]
    async fn revoked_certificate_is_listed_until_expiry() {
        let (_dir, store) = temporary().await;
        let anna = issued("a1", IssuedRole::Operator, "anna", 1_000);
        let again = issued("a2", IssuedRole::Operator, "anna", 2_000);
        let broker = issued("b1", IssuedRole::Broker, "anna", 2_000);
        for one in [&anna, &again, &broker] {
            add(store.write(), one).await.unwrap();
        }
        let serials = |of: Vec<IssuedCertificate>| of.into_iter().map(|issued| issued.serial).collect::<Vec<_>>();
        assert_eq!(serials(list(store.read(), 500).await.unwrap()), ["a1", "a2", "b1"]);
        assert_eq!(serials(list(store.read(), 1_500).await.unwrap()), ["a2", "b1"]);
        for nothing in ["", "anna", "observer-anna", "operator-ann", "%", "a"] {
            assert_eq!(revoke(store.write(), nothing, 10).await.unwrap(), [], "{nothing}");
        }
        assert_eq!(serials(revoke(store.write(), "B1", 10).await.unwrap()), ["b1"]);
        let mut by_owner = serials(revoke(store.write(), "operator-anna", 20).await.unwrap());
        by_owner.sort();
        assert_eq!(by_owner, ["a1", "a2"]);
        assert_eq!(revoke(store.write(), "operator-anna", 30).await.unwrap(), [], "once is enough");
        let of =
            |of: Vec<RevokedCertificate>| of.into_iter().map(|one| (one.serial, one.revoked_ms)).collect::<Vec<_>>();
        let entry = |serial: &str, at: Millis| (serial.to_owned(), at);
        assert_eq!(of(revoked(store.read(), 500).await.unwrap()), [entry("b1", 10), entry("a1", 20), entry("a2", 20)]);
        assert_eq!(of(revoked(store.read(), 1_500).await.unwrap()), [entry("b1", 10), entry("a2", 20)]);
        assert_eq!(sweep(store.write(), 1_500).await.unwrap(), 1);
    }

    #[tokio::test]
    async fn every_role_can_be_stored() {
        let (_dir, store) = temporary().await;
        for role in IssuedRole::ALL {
            add(store.write(), &issued(role.as_str(), role, "x", 10)).await.unwrap();
        }
        assert_eq!(list(store.read(), 1).await.unwrap().len(), IssuedRole::ALL.len());
    }
}
