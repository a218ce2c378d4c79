//! State that the handlers of pages share.

use std::sync::Arc;

use tokio::sync::Semaphore;

use super::super::state::Console;
use super::session::Cookie;

/// The state that handlers share.
#[derive(Clone, Debug)]
pub(super) struct Web {
    pub(super) console: Console,
    pub(super) cookie: Arc<Cookie>,
    /// Places for connections that follow changes.
    pub(super) followers: Arc<Semaphore>,
}
