//! The console: one per fleet. It is the authority that hosts join, signs and sends commands, stores
//! what hosts report, and serves it through an API and pages.
//!
//! Modules, in reading order:
//!
//! - [`config`]; [`start()`]: opens and binds everything before it reports ready; `state`: what all parts share
//! - [`authority`]: the root certificate ([`roots`]) and the key for commands
//! - [`store`]: the database
//! - [`revocation`]: the list of revoked certificates; [`register`]: the list of all issued ones, for a lost store
//! - [`enrol`]: the interface for hosts (HTTPS): join, renew, download content; `membership`: join tokens, and revoking a host
//! - `given`: what the console has given to hosts, which alone decides what they may fetch or be sent
//! - [`link`]: the connection to the broker; `link_handle`, `inbound`: its two directions
//! - [`ingest`]: stores what hosts report, and then acknowledges it
//! - [`dispatch`]: turns an operator's request into a signed command, and sends it until it is answered
//! - `desired`: deployments, which host carries which, and the document that each host is sent; `rollout`: how their versions
//!   reach the hosts
//! - `apply`: applies documents to units; `realm`: realms; `alert`: alerts and their rules; `label`: labels of hosts; `address`: where hosts
//!   find the fleet (`document_sync`: sends these to hosts until confirmed); [`content`]: artifacts and configs; `secret`: secrets that
//!   units use by name; [`operator`]: people, and how they sign in
//! - `muster_series`, a crate of its own: measurements over time; `status_series`: the state of hosts and alerts as series
//! - [`fleet`]: the latest measurements and their totals; `vitals`: the console's own metrics; [`external`]: external stores
//! - [`backup`]: encrypted copies of the console's folder
//! - `upkeep`: disk room and clock; `host_clocks`; `notice`: faults of the console itself
//! - `queries`: what API and pages read; [`server`]: the listeners; `health`: liveness; [`api`](self::api): the REST API;
//!   [`prometheus`]: Prometheus's API; [`web`]: the pages
//!
//! Tasks: the link (one connection to the broker); ingest and the recorder (each takes from the link
//! through a bounded queue and stores in batches); acknowledgements; one each for sending rules and labels; two for deployments, one for rollouts; status series; one for each
//! external store; metrics of fleet and console; dispatch (owns the open commands); the two
//! listeners; the keeper of the revocation list; a sweeper. API and pages use [`Console`], the handle on all of them.
//!
//! **Invariant: nothing is acknowledged, to a broker or to a host, before it is committed.** What hosts say of rollouts is
//! acknowledged to the broker before: they repeat it until they are answered (`topics/decisions/0093`).
//!
//! **Invariant: a report is attributed to the host whose topic it came on**, never to a name
//! in the payload.

mod address;
pub mod alert;
mod api;
mod apply;
pub mod authority;
mod backup;
mod certain_time;
pub mod command_signer;
pub mod config;
mod confirmed_labels;
mod content;
mod desired;
pub mod dispatch;
mod document_sync;
mod enrol;
mod error;
pub mod external;
pub mod fleet;
mod given;
mod health;
mod host_clocks;
mod host_plan;
pub mod host_share;
mod inbound;
pub mod ingest;
mod installation;
pub mod issue;
pub mod key_ring;
mod label;
pub mod latest_measurements;
mod link;
mod link_handle;
mod list;
mod membership;
mod notice;
mod numbered;
pub mod operator;
mod owed_documents;
mod page_change;
mod prometheus;
mod queries;
mod realm;
pub mod register;
mod remove;
pub mod revocation;
mod rollout;
pub mod roots;
mod rotation;
mod secret;
mod server;
mod signing_time;
pub mod start;
mod state;
mod status_series;
pub mod store;
mod tasks;
#[cfg(test)]
mod testing;
mod upkeep;
mod vitals;

pub mod web;

pub use page_change::PageChange;

pub use state::{Console, SharedPem, StartedBy};

pub use self::{
    error::Error,
    start::{ConsoleError, PreparedConsole, RunningConsole, check_form, prepare, problems, start},
};
