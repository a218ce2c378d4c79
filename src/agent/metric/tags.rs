//! The tags of each point of a host.

use muster_topics::name::HostId;

/// Whose measurements these are; every point says so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostTags {
    /// The host.
    pub host: HostId,
    /// The name that it gives itself.
    pub hostname: String,
}
