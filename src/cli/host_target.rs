//! The hosts that a verb is for: named, selected, or all.

use clap::Args;
use muster_api::NewTarget;
use muster_base::failure::Failure;
use muster_topics::select::HostSelect;

use super::{host_lookup, session::CliSession};

/// Hosts by an option.
#[derive(Args, Clone, Debug)]
pub struct HostOptions {
    /// Host, by id or hostname; repeatable [default: the only host]
    #[arg(long = "host", value_name = "HOST", conflicts_with_all = ["select", "all"])]
    pub hosts: Vec<String>,
    /// Others
    #[command(flatten)]
    pub others: OtherHosts,
}

/// Hosts by their names.
#[derive(Args, Clone, Debug)]
pub struct HostWords {
    /// Host, by id or hostname; repeatable
    #[arg(value_name = "HOST", conflicts_with_all = ["select", "all"])]
    pub hosts: Vec<String>,
    /// Others
    #[command(flatten)]
    pub others: OtherHosts,
}

/// Hosts that are not named.
#[derive(Args, Clone, Debug)]
pub struct OtherHosts {
    /// Hosts that this selects
    ///
    /// Such as 'label.site=north'; `muster --help` has the fields.
    #[arg(long, value_name = "EXPRESSION", conflicts_with = "all")]
    pub select: Option<HostSelect>,
    /// Every host
    #[arg(long)]
    pub all: bool,
}

impl OtherHosts {
    /// The target of these options, with the hosts that are named; `None` if nothing says which hosts are meant.
    #[must_use]
    pub fn target(&self, named: &[String]) -> Option<NewTarget> {
        match &self.select {
            Some(select) => Some(NewTarget::Select(select.clone())),
            None if self.all => Some(NewTarget::All),
            None if named.is_empty() => None,
            None => Some(NewTarget::Hosts(named.to_vec())),
        }
    }

    /// As [`target`](Self::target), or the only host.
    ///
    /// # Errors
    /// If nothing says which hosts are meant, and there are several.
    pub async fn target_or_only(&self, session: &CliSession, named: &[String]) -> Result<NewTarget, Failure> {
        match self.target(named) {
            Some(target) => Ok(target),
            None => Ok(NewTarget::Hosts(vec![host_lookup::one(session, None).await?])),
        }
    }
}
