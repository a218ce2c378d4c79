//! What containers alone have: their options (`create`), and taking over ones that others have made (`adopt`).

mod adopt;
mod create;

pub use super::container_text::{facts, listed, network};
pub use adopt::AdoptContainer;
pub(crate) use adopt::adopt;
pub use create::{CloneContainer, CreateContainer};
pub(crate) use create::{clone, create};
