//! Common parts of the SQLite stores.
//!
//! - [`one_writer`]: the one connection that writes; [`rows`]: many rows in one statement
//! - [`index_file`]: the index of a write-ahead log, which has its place on the disk before it is used
//! - [`form`]: which build has written a store
//! - [`room`]: which errors mean a full disk, and the reserve for that case
//! - [`schema`]: migrations, and which errors mean damage

pub mod form;
pub mod index_file;
pub mod one_writer;
pub mod room;
pub mod rows;
pub mod schema;
