//! An agent's protocol with its console, as a state machine without IO: what an agent says and when, and what it does with
//! what it hears.
//!
//! Modules, in reading order:
//!
//! - [`interface`]: inputs and effects; [`store`]: what is asked of a store; [`machine`]: the machine, with its parts `claim` (who may
//!   work), `received` (the console's messages), `desired` (the host's document), `admission` (what it
//!   asks before it changes) and `stored` (the store's answers)
//! - [`identity`]: who the agent is, and what a connection begins with; [`reconnect`]: delays between connections
//! - [`signed`]: messages of the console; [`running`]: commands under way
//! - [`publisher`]: what is due to be published; [`unit_topics`], [`alert_topics`]: the retained topics; [`unit_state`]: a unit as it is
//!   published
//!
//! **Invariant: no clock, no randomness, no IO.** A [`interface::Moment`] has the time, and whoever drives the machine
//! performs its effects: the agent, `muster simulate`, and the simulation under `tests/sim`.

pub mod alert_topics;
pub mod identity;
pub mod interface;
pub mod machine;
pub mod publisher;
pub mod reconnect;
pub mod running;
pub mod signed;
pub mod store;
pub mod task_ends;
pub mod unit_state;
pub mod unit_topics;
