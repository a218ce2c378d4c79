//! Tests of rollouts.

mod deadline;
mod documents;
mod model;
mod properties;
