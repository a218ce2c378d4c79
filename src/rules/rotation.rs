//! Replacing the key that the console signs with: its stages, and when each may end.
//!
//! A new key is *offered* to all hosts beside the present one. Once every member has it, the rotation is *finished*: the
//! console signs with the new key, and hosts are told to drop the old one. Until then it can be *abandoned*.

use std::collections::BTreeSet;

use muster_topics::{
    Millis,
    command_keys::KnownKeys,
    envelope::PublicKey,
    name::{HostId, Name},
};
use serde::{Deserialize, Serialize};

/// The keys of a console: what it signs with, and what hosts are to verify with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeyState {
    /// The generation of the keys of hosts; 0 as long as they were never replaced.
    pub generation: u64,
    /// The key that the console signs with.
    pub signing: PublicKey,
    /// The key that will replace it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<OfferedKey>,
    /// The last rotation that was finished.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last: Option<FinishedRotation>,
}

/// A key that hosts are told of, and that nothing is signed with yet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OfferedKey {
    /// The key.
    pub key: PublicKey,
    /// When the rotation began.
    pub begun_ms: Millis,
    /// Who began it.
    pub operator: Name,
}

/// A rotation that is over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FinishedRotation {
    /// The id of the key that was replaced.
    pub retired: String,
    /// When it was.
    pub finished_ms: Millis,
    /// Who finished it.
    pub operator: Name,
    /// Members that did not have the new key then, and were named.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub without: BTreeSet<HostId>,
}

impl KeyState {
    /// Creates the state of a console that has never replaced its key.
    #[must_use]
    pub fn new(signing: PublicKey) -> Self {
        Self { generation: 0, signing, next: None, last: None }
    }

    /// Returns all keys that hosts are to verify with.
    #[must_use]
    pub fn of_hosts(&self) -> Vec<PublicKey> {
        let next = self.next.iter().map(|next| next.key.clone());
        std::iter::once(self.signing.clone()).chain(next).collect()
    }

    /// Whether these are the keys that hosts are to verify with.
    #[must_use]
    pub fn is_known_by(&self, keys: &KnownKeys) -> bool {
        let wanted: BTreeSet<String> = self.of_hosts().iter().map(|key| key.id().to_owned()).collect();
        keys.ids.iter().cloned().collect::<BTreeSet<_>>() == wanted
    }

    /// Returns the state once `key` is offered to hosts; `None` if another one is, or if it is the present key.
    #[must_use]
    pub fn offered(&self, key: PublicKey, operator: Name, now: Millis) -> Option<Self> {
        if self.next.is_some() || key == self.signing {
            return None;
        }
        let next = Some(OfferedKey { key, begun_ms: now, operator });
        Some(Self { generation: self.next_generation(now), next, ..self.clone() })
    }

    /// Returns the state once the offered key has replaced the present one, for all but the hosts `without`; `None` if
    /// none is offered.
    #[must_use]
    pub fn finished(&self, operator: Name, without: BTreeSet<HostId>, now: Millis) -> Option<Self> {
        let next = self.next.clone()?;
        let retired = self.signing.id().to_owned();
        let last = Some(FinishedRotation { retired, finished_ms: now, operator, without });
        Some(Self { generation: self.next_generation(now), signing: next.key, next: None, last })
    }

    /// Returns the state once the offered key is taken back; `None` if none is offered.
    #[must_use]
    pub fn abandoned(&self, now: Millis) -> Option<Self> {
        self.next.as_ref()?;
        Some(Self { generation: self.next_generation(now), next: None, ..self.clone() })
    }

    /// Returns the same state with a newer generation, for hosts that report a newer one than this although they have
    /// other keys: this state was put back from an earlier copy. `None` if that would not help: what a host reports from
    /// the future is its own fault, and must not make all generations jump ahead.
    #[must_use]
    pub fn renumbered(&self, reported: u64, now: Millis) -> Option<Self> {
        let now = u64::try_from(now).unwrap_or_default();
        (reported >= self.generation && now > reported).then(|| Self { generation: now, ..self.clone() })
    }

    /// At least the time, so that a state that was put back from an earlier copy gets newer ones than hosts have.
    fn next_generation(&self, now: Millis) -> u64 {
        self.generation.saturating_add(1).max(u64::try_from(now).unwrap_or_default())
    }
}

/// What is known of a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberKeys {
    /// The host.
    pub host: HostId,
    /// Whether it has reported its state since it joined.
    pub has_reported: bool,
    /// The keys that it reported.
    pub keys: Option<KnownKeys>,
    /// When its last certificate expires.
    pub certificate_expires_ms: Millis,
}

/// How a member stands to a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum KeyStanding {
    /// It has it.
    Has,
    /// It has reported others.
    Lacks,
    /// It has not reported anything yet.
    Unheard,
    /// Its agent is of a release that cannot replace keys.
    TooOld,
    /// Its certificate has expired: it has to join anew, and gets the keys then.
    Expired,
}

impl KeyStanding {
    /// Returns how a member stands to the key with this id.
    #[must_use]
    pub fn of(member: &MemberKeys, id: &str, now: Millis) -> Self {
        match &member.keys {
            Some(keys) if keys.ids.iter().any(|known| known == id) => Self::Has,
            _ if member.certificate_expires_ms <= now => Self::Expired,
            Some(_) => Self::Lacks,
            None if member.has_reported => Self::TooOld,
            None => Self::Unheard,
        }
    }

    /// Whether a rotation must not be finished before this member has the key, or is named.
    #[must_use]
    pub fn blocks(self) -> bool {
        !matches!(self, Self::Has | Self::Expired)
    }
}

/// Returns the members that keep a rotation from being finished.
#[must_use]
pub fn blocking(members: &[(HostId, KeyStanding)], without: &BTreeSet<HostId>) -> Vec<HostId> {
    let blocks = |(host, standing): &&(HostId, KeyStanding)| standing.blocks() && !without.contains(host);
    members.iter().filter(blocks).map(|(host, _)| *host).collect()
}

#[cfg(test)]
mod tests {
    use muster_topics::envelope::Signer;

    use super::*;

    fn key() -> PublicKey {
        Signer::from_pkcs8(&Signer::generate().unwrap()).unwrap().public_key().unwrap()
    }

    fn admin() -> Name {
        "admin".parse().unwrap()
    }

    fn known(keys: &[&PublicKey]) -> KnownKeys {
        let ids = keys.iter().map(|key| key.id().to_owned()).collect();
        KnownKeys { generation: 1, ids, ..KnownKeys::default() }
    }

    #[test]
    fn hosts_verify_with_both_keys_until_the_new_one_has_replaced_the_old() {
        let (old, new) = (key(), key());
        let begin = KeyState::new(old.clone());
        assert_eq!(begin.of_hosts(), std::slice::from_ref(&old));
        let offered = begin.offered(new.clone(), admin(), 50).unwrap();
        assert_eq!(
            (offered.of_hosts(), &offered.signing, offered.generation),
            (vec![old.clone(), new.clone()], &old, 50)
        );
        let finished = offered.finished(admin(), BTreeSet::new(), 40).unwrap();
        // A clock that was set back makes no generation older.
        assert_eq!((finished.of_hosts(), &finished.signing, finished.generation), (vec![new.clone()], &new, 51));
        assert_eq!(finished.last.as_ref().unwrap().retired, old.id());
        let abandoned = offered.abandoned(60).unwrap();
        assert_eq!((abandoned.of_hosts(), abandoned.generation), (vec![old], 60));
    }

    #[test]
    fn stages_out_of_order_are_none() {
        let (old, new) = (key(), key());
        let begin = KeyState::new(old.clone());
        assert_eq!((begin.finished(admin(), BTreeSet::new(), 1), begin.abandoned(1)), (None, None));
        assert_eq!(begin.offered(old, admin(), 1), None);
        let offered = begin.offered(new, admin(), 1).unwrap();
        assert_eq!(offered.offered(key(), admin(), 2), None);
    }

    #[test]
    fn state_is_renumbered_for_a_host_with_other_and_newer_keys_alone() {
        let state = KeyState { generation: 100, ..KeyState::new(key()) };
        assert_eq!(state.renumbered(99, 500), None);
        assert_eq!(state.renumbered(200, 500).unwrap().generation, 500);
        assert_eq!(state.renumbered(100, 500).unwrap().generation, 500);
        assert_eq!(state.renumbered(u64::MAX, 500), None);
    }

    #[test]
    fn same_keys_are_the_same_in_any_order_and_generation() {
        let (old, new) = (key(), key());
        let offered = KeyState::new(old.clone()).offered(new.clone(), admin(), 9).unwrap();
        assert!(offered.is_known_by(&known(&[&new, &old])));
        assert!(!offered.is_known_by(&known(&[&old])) && !offered.is_known_by(&known(&[&old, &new, &key()])));
    }

    #[test]
    fn members_without_the_key_block_unless_they_are_named_or_have_to_join_anew() {
        let (old, new) = (key(), key());
        let member = |has_reported, keys, certificate_expires_ms| MemberKeys {
            host: HostId::random(),
            has_reported,
            keys,
            certificate_expires_ms,
        };
        let members = [
            (member(true, Some(known(&[&old, &new])), 100), KeyStanding::Has),
            (member(true, Some(known(&[&old, &new])), 0), KeyStanding::Has),
            (member(true, Some(known(&[&old])), 100), KeyStanding::Lacks),
            (member(true, None, 100), KeyStanding::TooOld),
            (member(false, None, 100), KeyStanding::Unheard),
            (member(true, Some(known(&[&old])), 50), KeyStanding::Expired),
            (member(false, None, 50), KeyStanding::Expired),
        ];
        let mut standings = Vec::new();
        for (member, wanted) in &members {
            assert_eq!(KeyStanding::of(member, new.id(), 50), *wanted, "{member:?}");
            standings.push((member.host, *wanted));
        }
        let blocking_without = |named: &[usize]| {
            let without = named.iter().map(|at| members[*at].0.host).collect();
            blocking(&standings, &without)
        };
        let of = |places: &[usize]| places.iter().map(|at| members[*at].0.host).collect::<Vec<_>>();
        assert_eq!(blocking_without(&[]), of(&[2, 3, 4]));
        assert_eq!(blocking_without(&[2, 4, 0]), of(&[3]));
        assert_eq!(blocking_without(&[2, 3, 4]), []);
    }

    #[test]
    fn unsound_states_do_not_parse() {
        let state = KeyState::new(key()).offered(key(), admin(), 7).unwrap();
        let text = serde_json::to_string(&state).unwrap();
        assert_eq!(serde_json::from_str::<KeyState>(&text).unwrap(), state);
        assert!(serde_json::from_str::<KeyState>(&text.replace("\"next\"", "\"later\"")).is_err());
        assert!(serde_json::from_str::<KeyState>("{}").is_err());
    }
}
