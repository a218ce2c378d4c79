//! Common parts of the SQLite stores.
//!
//! - [`one_writer`]: the one connection that writes; [`rows`]: many rows in one statement
//! - [`room`]: which errors mean a full disk, and the reserve for that case
//! - [`schema`]: migrations, and which errors mean damage

pub mod one_writer;
pub mod room;
pub mod rows;
pub mod schema;
