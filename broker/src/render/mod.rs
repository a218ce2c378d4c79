//! Renders the table of topics as other brokers' configuration, for fleets that use one of them.
//!
//! A configuration is a plain function of the table, of the fleet's prefix and of the clients that have to be named. Those for
//! a fleet with the one console `main` are committed in `broker/configs/`; a test compares them, and others run
//! them in the real brokers.
//!
//! Modules: [`mosquitto`], [`rabbitmq`], [`nats`], [`emqx`], [`hivemq`], one for each.
//!
//! **Invariant: no broker gets a rule that is not in the table.** What a broker cannot express is stated in its file.

mod context;
mod emqx;
mod hivemq;
mod kind;
mod mosquitto;
mod nats;
mod rabbitmq;

/// Renders the configuration files of a broker for this fleet, by the table of topics.
///
/// # Errors
/// If something of the fleet cannot be written in such a file.
pub fn render(kind: BrokerKind, fleet: &RenderInputs) -> Result<Vec<RenderedFile>, RenderError> {
    let maker = RenderContext { kind, fleet, folder: folder(kind, fleet)? };
    Ok(match kind {
        BrokerKind::Mosquitto => mosquitto::files(&maker),
        BrokerKind::RabbitMq => rabbitmq::files(&maker),
        BrokerKind::Nats => nats::files(&maker),
        BrokerKind::Emqx => emqx::files(&maker),
        BrokerKind::HiveMq => hivemq::files(&maker),
    })
}

#[cfg(test)]
mod tests;

pub use kind::{BrokerKind, BrokerKindError, RenderError, default_listen};

use context::{RenderContext, folder};
pub use context::{RenderInputs, RenderedFile};
