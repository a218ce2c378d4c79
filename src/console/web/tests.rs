//! Tests of all pages: well-formed markup, and no access without a session.

mod charts;
mod desired;
mod fleet;
mod flow;
mod labels;
mod markup;
mod pieces;
mod reading;
mod rollouts;
mod rules;
