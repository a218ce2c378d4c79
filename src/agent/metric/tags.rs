//! The tags of each point of a host.

use muster_topics::name::HostId;

/// The tags of a host, which every point has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostTags {
    /// The host.
    pub host: HostId,
    /// Its hostname.
    pub hostname: String,
}
