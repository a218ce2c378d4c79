//! Rollouts: how a version of a deployment reaches its hosts, a few at a time.
//!
//! A host asks before it changes ([`muster_topics::admission`]). [`decide`](decide::decide) says who may begin, what time
//! has brought, and what comes next, as a plain function of the policy, the state and the time. The shell
//! [carries it out](state::RolloutState::carry_out), stores the state, and only then tells it to anybody.
//!
//! Modules, in reading order: [`policy`] (what an operator asks for), [`window`] (when hosts may begin), [`state`] (what is
//! known of a rollout), [`transition`] (what happens to it), [`decide`] (what is to be done), [`wait`] (why a host waits).
//!
//! What holds whatever is lost, repeated, late, reordered or restarted:
//!
//! - **Invariant: a budget is never exceeded by a grant**, counted by what hosts have really begun. A host is unavailable from
//!   its grant on until it is known that it did not begin, or that it is verified or back.
//! - **Invariant: no more hosts are in the middle of a change than may be**; a host that is given up for lost is not counted,
//!   but keeps its place in the budget.
//! - **Invariant: nobody is granted a permit while the rollout is paused, has ended early, or outside its windows.**
//! - **Invariant: a host has one outcome per version.** What replaces one without a retry says
//!   [`is_replaced_by`](state::HostOutcome::is_replaced_by).
//! - **Invariant: a wave in which no host is verified is not followed by another.**
//! - **Invariant: a rollout ends** if hosts and operators answer: nobody who is away is waited for longer than the deadline.

pub mod decide;
pub(crate) mod duration;
pub mod policy;
mod share;
pub mod state;
#[cfg(test)]
mod tests;
pub mod transition;
pub mod wait;
pub mod window;
