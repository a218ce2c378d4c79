//! The ports of units. [`muster_rules::port_lease`] decides who gets which; here leases are read, checked against
//! the system, and written in the transaction of the edit.

use std::net::{SocketAddr, TcpListener, UdpSocket};

use muster_rules::{
    CommandRefusal,
    port_lease::{PortLease, assign},
};
use muster_topics::{
    endpoint::{Protocol, Provided},
    name::UnitName,
};
use sqlx::SqliteConnection;

use super::{error::StoreError, realm};

/// Returns all leases. Unreadable ones belong to unreadable units, and are skipped.
///
/// # Errors
/// If the database fails.
pub async fn all(connection: &mut SqliteConnection) -> Result<Vec<PortLease>, StoreError> {
    let rows = sqlx::query!(r#"SELECT unit AS "unit!", name AS "name!", protocol, port FROM lease"#)
        .fetch_all(connection)
        .await?;
    let leases = rows.into_iter().filter_map(|row| {
        Some(PortLease {
            unit: row.unit.parse().ok()?,
            name: row.name.parse().ok()?,
            protocol: if row.protocol == "udp" { Protocol::Udp } else { Protocol::Tcp },
            port: u16::try_from(row.port).ok()?,
        })
    });
    Ok(leases.collect())
}

/// Computes the leases that a unit needs, without storing them.
///
/// # Errors
/// If the database fails; a port that is not available is the inner error.
pub async fn find(
    connection: &mut SqliteConnection,
    unit: &UnitName,
    provides: &[Provided],
) -> Result<Result<Vec<PortLease>, CommandRefusal>, StoreError> {
    let leases = all(connection).await?;
    let realm = realm::all(connection).await?.resolve(&unit.realm());
    let is_free = |provided: &Provided, port| is_free(provided, SocketAddr::new(realm.address(provided.global), port));
    Ok(assign(unit, provides, &leases, realm.ports, is_free))
}

/// Stores a unit's leases, in place of earlier ones.
///
/// # Errors
/// If the database fails.
pub async fn set(connection: &mut SqliteConnection, unit: &UnitName, leases: &[PortLease]) -> Result<(), StoreError> {
    let unit = unit.as_str();
    sqlx::query!("DELETE FROM lease WHERE unit = ?", unit).execute(&mut *connection).await?;
    for lease in leases {
        let (name, protocol, port) = (lease.name.as_str(), lease.protocol.as_str(), i64::from(lease.port));
        sqlx::query!("INSERT INTO lease (unit, name, protocol, port) VALUES (?, ?, ?, ?)", unit, name, protocol, port)
            .execute(&mut *connection)
            .await?;
    }
    Ok(())
}

/// Removes leases of a unit that it does not need any more.
///
/// # Errors
/// If the database fails.
pub async fn give_up(
    connection: &mut SqliteConnection,
    unit: &UnitName,
    provides: &[Provided],
) -> Result<(), StoreError> {
    let leases = all(connection).await?;
    let (own, kept): (Vec<PortLease>, Vec<bool>) = leases
        .into_iter()
        .filter(|lease| lease.unit == *unit)
        .map(|lease| {
            let is_kept = provides.iter().any(|provided| lease.is_for(provided));
            (lease, is_kept)
        })
        .unzip();
    if kept.iter().all(|is_kept| *is_kept) {
        return Ok(());
    }
    let left: Vec<PortLease> =
        own.into_iter().zip(kept).filter_map(|(lease, is_kept)| is_kept.then_some(lease)).collect();
    set(connection, unit, &left).await
}

/// Restores a unit's leases. A port that another unit has by now stays with that unit.
///
/// # Errors
/// If the database fails.
pub(super) async fn restore(connection: &mut SqliteConnection, leases: &[PortLease]) -> Result<(), StoreError> {
    for lease in leases {
        let (unit, name, protocol) = (lease.unit.as_str(), lease.name.as_str(), lease.protocol.as_str());
        let port = i64::from(lease.port);
        sqlx::query!(
            "INSERT INTO lease (unit, name, protocol, port) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING",
            unit,
            name,
            protocol,
            port
        )
        .execute(&mut *connection)
        .await?;
    }
    Ok(())
}

/// Whether no process listens there. Only "address in use" counts as not free: other problems with an address (not this
/// host's, or a port for root alone) the unit meets and reports itself.
fn is_free(provided: &Provided, at: SocketAddr) -> bool {
    // This takes microseconds, as other calls of the store here do.
    let bound = match provided.protocol {
        Protocol::Tcp => TcpListener::bind(at).map(drop),
        Protocol::Udp => UdpSocket::bind(at).map(drop),
    };
    !bound.is_err_and(|error| error.kind() == std::io::ErrorKind::AddrInUse)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn provided(protocol: &str) -> Provided {
        serde_json::from_value(serde_json::json!({ "name": "p", "protocol": protocol })).unwrap()
    }

    #[test]
    fn used_port_is_not_free() {
        let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = tcp.local_addr().unwrap();
        assert!(!is_free(&provided("tcp"), at));
        drop(tcp);
        assert!(is_free(&provided("tcp"), at));
        let everywhere = UdpSocket::bind("0.0.0.0:0").unwrap();
        let at = SocketAddr::new("127.0.0.1".parse().unwrap(), everywhere.local_addr().unwrap().port());
        assert!(!is_free(&provided("udp"), at));
        // An address of another host says nothing about the port.
        assert!(is_free(&provided("tcp"), "192.0.2.1:80".parse().unwrap()));
    }
}
