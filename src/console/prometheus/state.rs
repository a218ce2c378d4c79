//! State that the handlers share, and the limits of a query.

use std::{sync::Arc, time::Duration};

use tokio::sync::Semaphore;

use super::super::state::Console;

/// How long a response may take, including its wait in the queue; a requester who waits longer has gone, or has asked
/// for too much.
pub(super) const DEADLINE: Duration = Duration::from_secs(30);

/// Concurrent queries: more than the smallest machine has processors, and few enough to bound their memory. Others
/// wait.
pub(super) const AT_ONCE: usize = 4;

/// The state that handlers share.
#[derive(Clone, Debug)]
pub(super) struct PrometheusState {
    pub(super) console: Console,
    pub(super) places: Arc<Semaphore>,
}
