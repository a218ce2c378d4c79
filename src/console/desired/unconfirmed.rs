//! What must not be done while hosts have documents or labels that this console did not make.

use std::collections::HashMap;

use muster_topics::{
    desired::DeploymentName,
    name::{Digest, HostId},
};

use super::table::assignment;
use crate::{error::Error, list::first_names, state::Console};

/// The most hosts that a refusal names.
const NAMED_MAX: usize = 5;

impl Console {
    /// Refuses to remove a deployment that unconfirmed hosts have, or may have: they would keep its units.
    pub(super) async fn check_confirmed(&self, name: &DeploymentName) -> Result<(), Error> {
        let open: Vec<(HostId, bool, Option<Digest>)> = {
            let table = self.shared.hosts.desired.table();
            let open = table.hosts.iter().filter(|(_, entry)| entry.is_open());
            open.map(|(host, entry)| {
                let handed_in = entry.shown_document().map(|document| document.digest.clone());
                let is_assigned = assignment(&entry.assigned, name).is_some();
                (*host, is_assigned || entry.is_unconfirmed() && handed_in.is_none(), handed_in)
            })
            .collect()
        };
        let (mut hosts, mut bodies) = (Vec::new(), HashMap::new());
        for (host, mut may_have, handed_in) in open {
            if let Some(digest) = handed_in.filter(|_| !may_have) {
                let body = self.handed_in_body(&digest, &mut bodies).await?;
                may_have = body.is_none_or(|body| body.deployments.iter().any(|one| one.version.deployment == *name));
            }
            if may_have {
                hosts.push(host);
            }
        }
        if hosts.is_empty() {
            return Ok(());
        }
        let names = self.hostnames(&hosts).await?;
        let mut names: Vec<&str> = names.values().map(String::as_str).collect();
        names.sort_unstable();
        let message = format!(
            "hosts have units of {name}, or may have some, and a document or labels that this console did not make: {}",
            first_names(&names, NAMED_MAX)
        );
        Err(Error::conflict("hosts_unconfirmed", message).consequence("nothing was removed").hint(
            "confirm them first with `muster deployment confirm`, or pass `--keep` to leave its units on their hosts",
        ))
    }
}
