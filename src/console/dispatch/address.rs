//! Resolves the target of a command: the target as it is signed, and the hosts that it means as the console knows them now.
//!
//! For a group or a select expression the console expects the hosts that match by their last
//! report. Each host then decides for itself: a host that answers unexpectedly is added (by `ingest`),
//! and one that was expected and does not match says so when the command is sent to it alone.

use muster_api::{NewTarget, host_names::HostNames};
use muster_topics::{
    command::{TARGET_HOSTS_MAX, Target},
    name::HostId,
};

use super::command_check;
use crate::{
    error::Error,
    state::ConsoleState,
    store::{Store, StoreError, host, host_selection},
};

/// The hosts of a command, with their names.
pub(crate) type TargetHosts = Vec<(HostId, String)>;

/// Resolves the target of a command.
pub(super) async fn resolve(shared: &ConsoleState, wanted: &NewTarget) -> Result<(Target, TargetHosts), Error> {
    let db = shared.store.read();
    match wanted {
        NewTarget::Hosts(names) => {
            let (target, meant) = listed(names, &named(&shared.store, names).await?)?;
            check_members(&shared.store, &meant.iter().map(|(host, _)| *host).collect::<Vec<_>>()).await?;
            Ok((target, meant))
        }
        NewTarget::All => everybody(host::names(db).await?),
        NewTarget::Group(label) => {
            let hosts = host_selection::hosts(db, host_selection::HostPick::Members, false, &|host| {
                host.labels.contains_key(label)
            })
            .await?;
            some(hosts, || format!("no host has the label {label}")).map(|hosts| (Target::Group(label.clone()), hosts))
        }
        NewTarget::Select(select) => {
            let hosts = host_selection::hosts(db, host_selection::HostPick::Members, select.asks_units(), &|host| {
                select.picks(host)
            })
            .await?;
            some(hosts, || format!("no host matches {select}")).map(|hosts| (Target::Select(select.clone()), hosts))
        }
    }
}

/// Checks that all of these hosts are members: a revoked host gets no commands.
pub(super) async fn check_members(store: &Store, hosts: &[HostId]) -> Result<(), Error> {
    let members = {
        let mut db = store.read().acquire().await.map_err(StoreError::from)?;
        host::members(&mut db, hosts).await?
    };
    let revoked: Vec<HostId> = hosts.iter().filter(|host| !members.contains(host)).copied().collect();
    if revoked.is_empty() {
        return Ok(());
    }
    let hostnames = host::names_of(store.read(), &revoked).await?;
    let names = HostNames::new(hostnames.iter().map(|(host, name)| (*host, name.as_str())));
    let name = |host: &HostId| hostnames.get(host).map_or_else(|| host.to_string(), |name| names.show(*host, name));
    let revoked: Vec<String> = revoked.iter().map(name).collect();
    let (who, first) = (revoked.join(", "), revoked.first().map_or("", String::as_str));
    Err(Error::conflict("host_revoked", format!("revoked, so they get no commands: {who}"))
        .hint(format!("leave it out, or let it join again with a token of `muster token create --replace {first}`")))
}

/// Returns the hosts that a list of names may mean.
async fn named(store: &Store, names: &[String]) -> Result<TargetHosts, StoreError> {
    let mut hosts = Vec::new();
    // One more than allowed is enough for the refusal.
    for name in names.iter().take(TARGET_HOSTS_MAX + 1) {
        hosts.extend(host::named(store.read(), name).await?);
    }
    hosts.sort();
    hosts.dedup();
    Ok(hosts)
}

fn listed(names: &[String], hosts: &[(HostId, String)]) -> Result<(Target, TargetHosts), Error> {
    if names.is_empty() {
        return Err(Error::invalid("no_hosts", "a command needs at least one host"));
    }
    if names.len() > TARGET_HOSTS_MAX {
        return Err(Error::invalid("too_many_hosts", format!("a command can list {TARGET_HOSTS_MAX} hosts"))
            .hint("give the command to all hosts, to a group, or to those that a select expression picks"));
    }
    let ids = command_check::resolve(names, hosts)?;
    let meant = ids.iter().flat_map(|id| hosts.iter().find(|(host, _)| host == id).cloned()).collect();
    Ok((Target::Hosts(ids), meant))
}

fn everybody(hosts: TargetHosts) -> Result<(Target, TargetHosts), Error> {
    if hosts.is_empty() {
        return Err(Error::conflict("no_hosts", "no host has joined yet")
            .hint("`muster token create` makes a one-time password for one"));
    }
    Ok((Target::All, hosts))
}

fn some(hosts: TargetHosts, none: impl FnOnce() -> String) -> Result<TargetHosts, Error> {
    if hosts.is_empty() {
        return Err(Error::conflict("no_hosts", none())
            .hint("`muster host ls` lists them, and `muster host show` what labels and facts one has"));
    }
    Ok(hosts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Fixture;

    #[test]
    fn lists_and_all_resolve_to_hosts() {
        let hosts: Vec<_> = ["a", "b"].map(|name| (HostId::random(), name.to_owned())).to_vec();
        assert_eq!(everybody(hosts[..1].to_vec()).unwrap(), (Target::All, hosts[..1].to_vec()));
        assert_eq!(everybody(Vec::new()).unwrap_err().status, 409);
        assert_eq!(listed(&[], &hosts).unwrap_err().status, 400);
        let many = vec!["a".to_owned(); TARGET_HOSTS_MAX + 1];
        assert_eq!(listed(&many, &hosts).unwrap_err().problem.code, "too_many_hosts");
        assert_eq!(listed(&many[..2], &hosts).unwrap(), (Target::Hosts(vec![hosts[0].0]), hosts[..1].to_vec()));
    }

    #[tokio::test]
    async fn silent_host_matches_by_name_and_facts_only() {
        let fixture = Fixture::new().await;
        let (one, two) = (fixture.member("one").await, fixture.member("two").await);
        let picked = async |text: &str| {
            let wanted = NewTarget::Select(text.parse().unwrap());
            let ids = |(_, hosts): (Target, TargetHosts)| hosts.into_iter().map(|(id, _)| id).collect();
            resolve(fixture.shared(), &wanted).await.map(ids).map_err(|error| error.problem.code)
        };
        let mut both = vec![one.id, two.id];
        both.sort();
        assert_eq!(picked("host=one").await, Ok(vec![one.id]));
        assert_eq!(picked("not host=one and fact.cpus=2").await, Ok(vec![two.id]));
        assert_eq!(
            picked("fact.arch=x86_64").await.map(|mut hosts: Vec<HostId>| {
                hosts.sort();
                hosts
            }),
            Ok(both)
        );
        assert_eq!(picked("label.site").await, Err("no_hosts".to_owned()));
        let group = NewTarget::Group("site".parse().unwrap());
        assert_eq!(resolve(fixture.shared(), &group).await.unwrap_err().status, 409);
    }
}
