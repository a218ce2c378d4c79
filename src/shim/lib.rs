//! The protocol between agent and shim.
