//! Divides long blobs into rows that fill the pages of the file.
//!
//! A row that does not fit on the last page of its table begins a new one, and what is left of the last page stays empty.
//! Rows are appended in the order of their keys, so a blob can be cut where the last page ends, if it is known how much
//! of that is free. It is known from the rows that were written before: each page that the file gets is one of these tables.
//!
//! **Invariant: how a blob is divided matters for space alone.** Who reads it joins its pieces, whatever their lengths. So
//! a wrong idea of the last page, after a rollback or a row in the middle, does no harm; it is noticed when
//! a page is taken, or is not, against what is expected.

use std::sync::Arc;

use sqlx::{AssertSqlSafe, SqliteConnection};

use super::{blobs::BlobTable, key};

/// What rows of a table can use of a page of 4096 bytes.
const PAGE_BYTES: usize = 4_088;
/// What a row needs beside its blob: its place in the page, its lengths, and a key of seven bytes.
const HEAD_BYTES: usize = 15;
/// The longest blob of a row that lies on one page.
const ROW_BYTES: usize = 4_057;
/// A shorter piece is not worth a row.
const LEAST_BYTES: usize = 128;
/// Largest piece while it is not known how much of the last page is free: little of it stays empty.
const UNKNOWN_BYTES: usize = 500;

/// How much of a table's last page is free, as far as it is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LastPage {
    free: Option<usize>,
}

impl LastPage {
    /// The length of the next piece, if so much is left of a blob.
    fn next(self, rest: usize) -> usize {
        rest.min(match self.free {
            Some(free) if free >= LEAST_BYTES + HEAD_BYTES => (free - HEAD_BYTES).min(ROW_BYTES),
            Some(_) => ROW_BYTES,
            // A row of that length takes a page for itself.
            None if rest >= ROW_BYTES => ROW_BYTES,
            None => UNKNOWN_BYTES,
        })
    }

    /// Records a piece, and how many pages the file took for it.
    fn note(&mut self, length: usize, pages: i64) {
        let free = match pages {
            0 => self.free,
            1 => Some(PAGE_BYTES),
            // Inner pages as well, which is rare.
            _ => None,
        };
        self.free = free.and_then(|free| free.checked_sub(length + HEAD_BYTES));
    }
}

/// Writes a blob in pieces, of which there are none yet.
pub(crate) async fn put(
    tx: &mut SqliteConnection,
    table: BlobTable,
    key: i64,
    bytes: &[u8],
    last_page: &mut LastPage,
) -> Result<(), sqlx::Error> {
    let statement: Arc<str> = format!("INSERT INTO {} (key, data) VALUES ($1, $2)", table.name()).into();
    let (mut key, last) = (key, key::day_last(key));
    let (mut rest, mut pages) = (bytes, pages(tx).await?);
    while !rest.is_empty() {
        let length = if key == last { rest.len() } else { last_page.next(rest.len()) };
        let (piece, after) = rest.split_at(length);
        sqlx::query(AssertSqlSafe(Arc::clone(&statement))).bind(key).bind(piece).execute(&mut *tx).await?;
        let before = std::mem::replace(&mut pages, self::pages(tx).await?);
        last_page.note(length, pages - before);
        (rest, key) = (after, key + 1);
    }
    Ok(())
}

/// The number of pages in use.
async fn pages(tx: &mut SqliteConnection) -> Result<i64, sqlx::Error> {
    sqlx::query_scalar(
        "SELECT pages.page_count - free.freelist_count FROM pragma_page_count AS pages, pragma_freelist_count AS free",
    )
    .fetch_one(tx)
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn store(folder: &tempfile::TempDir) -> SqliteConnection {
        crate::file::open(&folder.path().join("series.db"), 0).await.unwrap().writer
    }

    fn key(series: i64) -> i64 {
        key::day_key(key::SeriesId::new(series).unwrap(), 2_500)
    }

    async fn rows(tx: &mut SqliteConnection) -> Vec<(i64, Vec<u8>)> {
        sqlx::query_as("SELECT key, data FROM day ORDER BY key").fetch_all(tx).await.unwrap()
    }

    #[tokio::test]
    async fn pages_are_filled() {
        let folder = tempfile::tempdir().unwrap();
        let mut tx = store(&folder).await;
        let (mut last_page, mut bytes) = (LastPage::default(), 0);
        let before = pages(&mut tx).await.unwrap();
        for series in 1..=300 {
            let blob = vec![1; (series * 7_919 % 6_007) as usize];
            put(&mut tx, BlobTable::Day, key(series), &blob, &mut last_page).await.unwrap();
            bytes += blob.len();
        }
        let taken = (pages(&mut tx).await.unwrap() - before) as usize * 4_096;
        assert!(taken < bytes + bytes / 50, "{taken} bytes for {bytes}");
        let count = rows(&mut tx).await.len();
        assert!(count <= 2 * 300 + bytes / ROW_BYTES, "{count} rows");
    }

    #[tokio::test]
    async fn a_wrong_idea_of_the_last_page_costs_little() {
        let folder = tempfile::tempdir().unwrap();
        let mut tx = store(&folder).await;
        let mut last_page = LastPage::default();
        let blob: Vec<u8> = (0..2_000).map(|i| (i % 251) as u8).collect();
        let before = pages(&mut tx).await.unwrap();
        for series in 1..=200 {
            // Out of order, and after what cannot be known.
            let place = if series % 10 == 0 { 500 - series } else { series };
            if series % 7 == 0 {
                last_page = LastPage { free: Some(series as usize * 20) };
            }
            put(&mut tx, BlobTable::Day, key(place), &blob, &mut last_page).await.unwrap();
        }
        let taken = (pages(&mut tx).await.unwrap() - before) as usize * 4_096;
        assert!(taken < 200 * blob.len() * 3 / 2, "{taken} bytes");
        let rows = rows(&mut tx).await;
        let joined = rows.chunk_by(|one, next| key::day_last(one.0) == key::day_last(next.0));
        assert_eq!(
            joined
                .map(|pieces| pieces.iter().map(|piece| &piece.1[..]).collect::<Vec<_>>().concat())
                .filter(|one| *one == blob)
                .count(),
            200
        );
    }

    #[tokio::test]
    async fn the_last_possible_piece_has_the_rest() {
        let folder = tempfile::tempdir().unwrap();
        let mut tx = store(&folder).await;
        let blob = vec![7; ROW_BYTES * (usize::from(key::SLOTS) + 3)];
        put(&mut tx, BlobTable::Day, key(1), &blob, &mut LastPage::default()).await.unwrap();
        put(&mut tx, BlobTable::Day, key(2), &[8], &mut LastPage::default()).await.unwrap();
        let rows = rows(&mut tx).await;
        assert_eq!((rows.len(), rows.iter().map(|row| row.1.len()).sum::<usize>()), (513, blob.len() + 1));
    }
}
