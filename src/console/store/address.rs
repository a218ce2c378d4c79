//! The addresses of the fleet that hosts are told.

use muster_topics::{Millis, address::Addresses};
use sqlx::{SqliteConnection, SqlitePool};

use super::{
    columns::{json, signed, to_json, unsigned},
    error::StoreResult,
};
use crate::address::NumberedAddresses;

/// Returns the addresses that hosts were told last.
pub(crate) async fn told(db: &SqlitePool) -> StoreResult<Option<NumberedAddresses>> {
    let row = sqlx::query!("SELECT generation, broker_urls, console_urls FROM address WHERE id = 1")
        .fetch_optional(db)
        .await?;
    let addresses = row.map(|row| {
        Ok(NumberedAddresses {
            number: unsigned("generation", row.generation)?,
            addresses: Addresses {
                broker_urls: json("broker's addresses", &row.broker_urls)?,
                console_urls: json("console's addresses", &row.console_urls)?,
            },
        })
    });
    addresses.transpose()
}

/// Stores addresses under a new generation, which is `least` or more, and is returned. It is at least the present time, so that
/// a store that was made anew or restored has newer generations than the one that was lost.
pub async fn set(db: &mut SqliteConnection, addresses: &Addresses, least: u64, now: Millis) -> StoreResult<u64> {
    let least = signed(least).max(now);
    let (broker, console) = (
        to_json("broker's addresses", &addresses.broker_urls)?,
        to_json("console's addresses", &addresses.console_urls)?,
    );
    let generation = sqlx::query_scalar!(
        "INSERT INTO address (id, generation, broker_urls, console_urls) VALUES (1, $1, $2, $3)
         ON CONFLICT (id) DO UPDATE SET generation = max(address.generation + 1, excluded.generation),
           broker_urls = excluded.broker_urls, console_urls = excluded.console_urls
         RETURNING generation",
        least,
        broker,
        console
    )
    .fetch_one(db)
    .await?;
    unsigned("generation", generation)
}
