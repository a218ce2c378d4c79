//! The first process of a container, through which others enter it.

/// The first process of a running container. Process id and start time together are unique.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FirstProcess {
    pub(crate) pid: i32,
    pub(crate) start_ticks: u64,
}
