//! Resolves ids as people type them: a whole id, a name, or a unique beginning.

use std::collections::BTreeSet;

use muster_topics::name::HostId;

/// Fewer characters are not taken for the beginning of an id: a typing error in a name would too easily match one.
pub const BEGINNING_MIN_CHARS: usize = 4;

/// Whether `text` is long enough to be the beginning of an id.
#[must_use]
pub fn may_begin(text: &str) -> bool {
    text.chars().count() >= BEGINNING_MIN_CHARS && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '-')
}

/// Whether an id begins with `text`, ignoring case.
#[must_use]
pub fn begins(text: &str, id: &str) -> bool {
    may_begin(text) && id.get(..text.len()).is_some_and(|beginning| beginning.eq_ignore_ascii_case(text))
}

/// Whether a host of this id and name matches.
type HostMatch<'a> = &'a dyn Fn(&str, &str) -> bool;

/// Resolves `text` to a host: by its whole id, by its name, or by the beginning of its id, in this order.
///
/// # Errors
/// If it matches none or several; those are listed.
pub fn host<'a>(text: &str, hosts: impl Iterator<Item = (HostId, &'a str)> + Clone) -> Result<HostId, Vec<HostId>> {
    let ids = |is_meant: HostMatch<'_>| -> BTreeSet<HostId> {
        let meant = hosts.clone().filter(|(id, name)| is_meant(&id.to_string(), name));
        meant.map(|(id, _)| id).collect()
    };
    let ways: [HostMatch<'_>; 3] =
        [&|id, _| id.eq_ignore_ascii_case(text), &|_, name| name == text, &|id, _| begins(text, id)];
    let found = ways.into_iter().map(ids).find(|found| !found.is_empty()).unwrap_or_default();
    match found.first() {
        Some(id) if found.len() == 1 => Ok(*id),
        _ => Err(found.into_iter().collect()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_resolves_by_id_name_or_unique_prefix() {
        let id = |text: &str| text.parse::<HostId>().unwrap();
        let one = id("deadbeef-0000-4000-8000-000000000001");
        let two = id("deadbe11-0000-4000-8000-000000000002");
        let three = id("cafe0000-0000-4000-8000-000000000003");
        // The third host's name is the beginning of the second's id; two hosts have the same name.
        let hosts = [(one, "till"), (two, "till"), (three, "deadbe1"), (three, "deadbe1")];
        for (text, wanted) in [
            ("deadbeef-0000-4000-8000-000000000001", Ok(one)),
            ("DEADBEEF-0000-4000-8000-000000000001", Ok(one)),
            ("deadbeef", Ok(one)),
            ("deadbee", Ok(one)),
            ("DeadBee", Ok(one)),
            ("deadbe1", Ok(three)),
            ("deadbe11", Ok(two)),
            ("cafe", Ok(three)),
            ("dead", Err(vec![two, one])),
            ("till", Err(vec![two, one])),
            ("caf", Err(vec![])),
            ("nobody", Err(vec![])),
            ("", Err(vec![])),
            ("%", Err(vec![])),
            ("déad", Err(vec![])),
        ] {
            assert_eq!(host(text, hosts.iter().copied()), wanted, "{text}");
        }
    }
}
