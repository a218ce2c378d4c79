//! State that the handlers share, and the limits of a query.

use std::{sync::Arc, time::Duration};

use tokio::sync::Semaphore;

use super::super::state::Console;

/// How long an answer may take, its waiting included; who waits longer has gone, or has asked for too much.
pub(super) const DEADLINE: Duration = Duration::from_secs(30);

/// How many queries are answered at once: more than the smallest machine has processors, and few enough that their
/// memory is bounded. A dashboard's others wait.
pub(super) const AT_ONCE: usize = 4;

/// What the handlers share.
#[derive(Clone, Debug)]
pub(super) struct PrometheusState {
    pub(super) console: Console,
    pub(super) places: Arc<Semaphore>,
}
