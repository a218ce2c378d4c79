//! muster's wire contract: topics, payloads, permissions and signatures that all parties rely on.
//!
//! A third party can read everything on the bus with a stock MQTT client and the documents in
//! `topics/schema/`, which are generated from the types here. Decisions about the wire are dated
//! records in `topics/decisions/`.
//!
//! Modules, in reading order:
//!
//! - [`name`]: ids and names, each parsed once, where it enters
//! - [`slot`]: a fixed partition of all hosts, which topics and signed messages name
//! - [`topic`]: every topic as a type that formats and parses, and the table that says of each what everybody has to know
//! - [`role`]: who may publish and read what, by that table; the broker's permission check and every other
//!   broker's configuration come from it
//! - [`envelope`]: signed messages; [`canonical`]: canonical JSON, for hashing only
//! - [`presence`], [`heartbeat`], [`mod@unit`], [`observed`]: what a host reports of itself; [`process`], [`capability`]: attributes of a
//!   unit's process; [`effective`]: its effective configuration; [`reload`]: how changes of that reach it; [`probe`]: its
//!   health checks
//! - [`manifest`]: the description of an artifact by its author
//! - [`command`], [`verb`], [`verb_table`], [`outcome`], [`ack`]: commands for a host, their outcomes, and acknowledgements; [`exec`]: a program to
//!   run once; [`signal`]: signals for a unit's process; [`asker`]: who asked for them
//! - [`sealed`]: secrets of a command, which only its host can read; [`secret`]: those that units use by name;
//!   [`revision`]: revisions that do not reveal them
//! - [`desired`]: all that the console wants of one host, as a signed document; [`admission`]: the question whether the host may
//!   change now
//! - [`select`]: expressions that select units and hosts
//! - [`channel`]: messages between a yuno and its agent, on their host
//! - [`files`], [`packages`]: the specs of these kinds of units, beside those in [`unit`] and [`container`]; [`common`]: what
//!   specs of several kinds have in common; [`task`]: the steps
//!   of a change, and the resources that only one unit may own
//! - [`endpoint`], [`realm`]: where units listen, and how they find each other; [`snapshot`]: earlier desired state
//! - [`catalogue`]: all metrics; [`metric`]: batches of measurements in line protocol; [`alert`]: alerts and their rules;
//!   [`label`]: labels that the console gives a host
//! - [`numbered`]: the documents that the console keeps up to date on hosts: rules for alerts, labels, [`command_keys`],
//!   [`address`]
//! - [`join`]: the HTTPS exchange by which a host gets its certificate, and later renews it
//! - [`diagnostic`]: what went wrong, for people
//! - [`size`]: sizes in bytes, as people read and write them
//! - [`schema`]: JSON Schema and AsyncAPI documents of all of the above
//!
//! **Invariant: this crate does no IO**, and depends on none of the other crates.
//!
//! **Invariant: topics are formatted and parsed in [`topic`] alone.**

pub mod ack;
pub mod address;
pub mod admission;
pub mod alert;
pub mod argv;
pub mod asker;
pub mod canonical;
pub mod capability;
pub mod catalogue;
pub mod channel;
pub mod command;
pub mod command_keys;
pub mod common;
pub mod container;
pub mod count;
pub mod desired;
pub mod diagnostic;
pub mod effective;
pub mod endpoint;
pub mod envelope;
pub mod event;
pub mod exec;
pub mod files;
pub mod heartbeat;
pub mod join;
pub mod label;
pub mod manifest;
pub mod metric;
pub mod name;
pub mod numbered;
pub mod observed;
mod observed_form;
pub mod outcome;
pub mod packages;
pub mod presence;
pub mod probe;
pub mod process;
pub mod realm;
pub mod reload;
pub mod revision;
pub mod role;
pub mod schema;
pub mod sealed;
pub mod secret;
pub mod select;
pub mod signal;
pub mod size;
pub mod slot;
pub mod snapshot;
pub mod task;
pub mod topic;
pub mod unit;
pub mod verb;
pub mod verb_table;
mod version;
pub mod version_order;

pub use version::{PROTOCOL, V1};

/// Milliseconds since the Unix epoch, the unit of every time on the wire.
pub type Millis = i64;

/// The largest MQTT payload of any party, in bytes; longer output is sent in pieces. RabbitMQ, NATS and EMQX all accept
/// 64 KiB by default.
pub const PAYLOAD_MAX_BYTES: usize = 64 * 1024;
