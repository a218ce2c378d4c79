//! The embedded broker.
