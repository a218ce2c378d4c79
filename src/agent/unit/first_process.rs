//! The first process of a container, through which others enter it.

/// The first process of a container that runs. Process id and start time together are used once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FirstProcess {
    pub(crate) pid: i32,
    pub(crate) start_ticks: u64,
}
