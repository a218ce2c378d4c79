//! muster's wire contract, and nothing else: what every party may assume about every other one.
//!
//! A third party can read everything on the bus with a stock MQTT client and the documents in
//! `topics/schema/`, which are generated from the types here. Decisions about the wire are dated
//! records in `topics/decisions/`.
//!
//! Modules, in reading order:
//!
//! - [`name`]: the ids and names that topics and payloads are made of, each parsed once, at the edge
//! - [`topic`]: every topic as a type that formats and parses
//! - [`role`]: who may publish and read what; the broker's permission check and every other
//!   broker's configuration come from this one table
//! - [`envelope`]: signed messages; [`canonical`]: canonical JSON, for hashing only
//! - [`presence`], [`heartbeat`], [`unit`]: what a host says of itself; [`process`], [`capability`]: what a
//!   unit's process is given; [`effective`]: what it reads as its configuration; [`reload`]: and when that changes; [`probe`]: whether it
//!   is well
//! - [`manifest`]: what an artifact's author says of it
//! - [`command`], [`outcome`], [`ack`]: work for a host, its answers, and that they are safe; [`exec`]: a program to
//!   run once; [`signal`]: what may be sent to a unit's process
//! - [`sealed`]: what of a command only its host may read
//! - [`select`]: expressions that pick units
//! - [`channel`]: what a yuno and its agent say to each other, on their host
//! - [`endpoint`], [`realm`]: where units listen, and how they find each other; [`snapshot`]: what they should have been
//! - [`metric`]: batches of measurements in line protocol; [`alert`]: what somebody should look at, and when;
//!   [`label`]: what the console calls a host
//! - [`join`]: the HTTPS exchange by which a host gets its certificate, and later renews it
//! - [`schema`]: JSON Schema and AsyncAPI documents of all of the above
//!
//! **Invariant: this crate does no IO**, and depends on nothing else of ours.
//!
//! **Invariant: topics are built and taken apart in [`topic`] alone.**

pub mod ack;
pub mod alert;
pub mod canonical;
pub mod capability;
pub mod channel;
pub mod command;
mod common;
pub mod container;
pub mod effective;
pub mod endpoint;
pub mod envelope;
pub mod exec;
pub mod heartbeat;
pub mod join;
pub mod label;
pub mod manifest;
pub mod metric;
pub mod name;
pub mod newer;
pub mod outcome;
pub mod presence;
pub mod probe;
pub mod process;
pub mod realm;
pub mod reload;
pub mod role;
pub mod schema;
pub mod sealed;
pub mod select;
pub mod signal;
pub mod snapshot;
pub mod topic;
pub mod unit;
mod version;

pub use version::V1;

/// Milliseconds since the Unix epoch, the unit of every time on the wire.
pub type Millis = i64;

/// The largest MQTT payload that any party sends, in bytes; longer output goes in chunks.
/// RabbitMQ, NATS and EMQX all accept 64 KiB as installed.
pub const PAYLOAD_MAX_BYTES: usize = 64 * 1024;
