//! Replacing the key that the console signs with, or the fleet's root certificate: the stages, and when each may end.
//!
//! A new key is *offered* to all hosts beside the present one. Once every member has it, the rotation is *finished*: the
//! console signs with the new key, and hosts are told to drop the old one. Until then it can be *cancelled*.
//!
//! A new root is *offered* in the same way. Once every member trusts it, it *issues*: certificates of clients are made under
//! it from then on, and hosts renew theirs. Once every member has such a certificate, the rotation is *finished*: servers'
//! certificates are made under it, too, and nobody trusts the old one. It can be cancelled until it issues.
//!
//! One rotation is under way at a time.

use std::collections::BTreeSet;

use muster_topics::{
    Millis,
    command_keys::KnownKeys,
    envelope::PublicKey,
    name::{Digest, HostId, Name},
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
    /// The root certificates, once the first one was replaced, or was to be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub root: Option<RootState>,
}

/// The root certificates of a fleet. Each is named by the SHA-256 of its public key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RootState {
    /// The root that the console's certificate as a server is under.
    pub present: Digest,
    /// The root that will replace it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<OfferedRoot>,
    /// The last rotation that was finished.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last: Option<FinishedRotation>,
}

/// A root that hosts are told to trust beside the present one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OfferedRoot {
    /// Its key.
    pub key: Digest,
    /// When the rotation began.
    pub begun_ms: Millis,
    /// Who began it.
    pub operator: Name,
    /// Since when certificates of clients are made under it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub issues: Option<IssuingSince>,
}

/// The beginning of a root's use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IssuingSince {
    /// When it was.
    pub at_ms: Millis,
    /// Who decided it.
    pub operator: Name,
    /// Members that did not trust it then, and were named.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub without: BTreeSet<HostId>,
}

/// What is being replaced, and how far that is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RotationStage {
    /// The key for signatures: hosts are told of the new one.
    Key,
    /// The root: hosts are told to trust the new one.
    Trust,
    /// The root: hosts renew their certificates under the new one.
    Certificates,
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
        Self { generation: 0, signing, next: None, last: None, root: None }
    }

    /// Returns all keys that hosts are to verify with.
    #[must_use]
    pub fn of_hosts(&self) -> Vec<PublicKey> {
        let next = self.next.iter().map(|next| next.key.clone());
        std::iter::once(self.signing.clone()).chain(next).collect()
    }

    /// Returns the root that will replace the present one.
    #[must_use]
    pub fn next_root(&self) -> Option<&OfferedRoot> {
        self.root.as_ref()?.next.as_ref()
    }

    /// Returns how far the rotation is that is under way.
    #[must_use]
    pub fn stage(&self) -> Option<RotationStage> {
        match (self.next_root(), &self.next) {
            (Some(OfferedRoot { issues: Some(_), .. }), _) => Some(RotationStage::Certificates),
            (Some(_), _) => Some(RotationStage::Trust),
            (None, Some(_)) => Some(RotationStage::Key),
            (None, None) => None,
        }
    }

    /// Whether these are the keys that hosts are to verify with, and these `roots` those that they are to trust; `number`
    /// is that of the keys that the host reports. The ids of both come in any order, but for the root that issues, which is the first.
    #[must_use]
    pub fn is_known_by(&self, keys: &KnownKeys, number: u64, roots: &[String]) -> bool {
        let set = |ids: &[String]| ids.iter().cloned().collect::<BTreeSet<_>>();
        let wanted: Vec<String> = self.of_hosts().iter().map(|key| key.id().to_owned()).collect();
        if set(&keys.ids) != set(&wanted) {
            return false;
        }
        if self.root.is_none() {
            return true;
        }
        // Which root issues is told with the generation alone.
        let knows_issuer = keys.issuer.as_ref() == roots.first() || number >= self.generation;
        set(&keys.authorities) == set(roots) && knows_issuer
    }

    /// Returns the state once `key` is offered to hosts; `None` if another rotation is under way, or if it is the present
    /// key.
    #[must_use]
    pub fn offered(&self, key: PublicKey, operator: Name, now: Millis) -> Option<Self> {
        if self.stage().is_some() || key == self.signing {
            return None;
        }
        let next = Some(OfferedKey { key, begun_ms: now, operator });
        Some(Self { generation: self.next_generation(now), next, ..self.clone() })
    }

    /// Returns the state once the root with `key` is offered to hosts beside the `present` one; `None` if another rotation
    /// is under way, or if it is the present one.
    #[must_use]
    pub fn root_offered(&self, present: Digest, key: Digest, operator: Name, now: Millis) -> Option<Self> {
        if self.stage().is_some() || key == present {
            return None;
        }
        let last = self.root.as_ref().and_then(|root| root.last.clone());
        let next = Some(OfferedRoot { key, begun_ms: now, operator, issues: None });
        Some(self.with_root(RootState { present, next, last }, now))
    }

    /// Returns the state once the offered root issues certificates, although the hosts `without` may not trust it; `None`
    /// if none is offered, or if it does.
    #[must_use]
    pub fn root_issuing(&self, operator: Name, without: BTreeSet<HostId>, now: Millis) -> Option<Self> {
        let mut root = self.root.clone()?;
        let next = root.next.as_mut().filter(|next| next.issues.is_none())?;
        next.issues = Some(IssuingSince { at_ms: now, operator, without });
        Some(self.with_root(root, now))
    }

    /// Returns the state once the new root has replaced the one with the id `retired`, for all but the hosts `without`;
    /// `None` if it does not issue certificates yet.
    #[must_use]
    pub fn root_finished(
        &self,
        retired: String,
        operator: Name,
        without: BTreeSet<HostId>,
        now: Millis,
    ) -> Option<Self> {
        let next = self.next_root().filter(|next| next.issues.is_some())?;
        let last = Some(FinishedRotation { retired, finished_ms: now, operator, without });
        Some(self.with_root(RootState { present: next.key.clone(), next: None, last }, now))
    }

    /// Returns the state once the offered root is taken back; `None` if none is offered, or if it issues certificates.
    #[must_use]
    pub fn root_cancelled(&self, now: Millis) -> Option<Self> {
        let mut root = self.root.clone()?;
        root.next.take().filter(|next| next.issues.is_none())?;
        Some(self.with_root(root, now))
    }

    fn with_root(&self, root: RootState, now: Millis) -> Self {
        Self { generation: self.next_generation(now), root: Some(root), ..self.clone() }
    }

    /// Returns the state once the offered key has replaced the present one, for all but the hosts `without`; `None` if
    /// none is offered.
    #[must_use]
    pub fn finished(&self, operator: Name, without: BTreeSet<HostId>, now: Millis) -> Option<Self> {
        let next = self.next.clone()?;
        let retired = self.signing.id().to_owned();
        let last = Some(FinishedRotation { retired, finished_ms: now, operator, without });
        Some(Self {
            generation: self.next_generation(now),
            signing: next.key,
            next: None,
            last,
            root: self.root.clone(),
        })
    }

    /// Returns the state once the offered key is taken back; `None` if none is offered.
    #[must_use]
    pub fn cancelled(&self, now: Millis) -> Option<Self> {
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
    /// The keys that it reported; nothing if it has reported nothing since it joined.
    pub keys: Option<KnownKeys>,
    /// The number of these keys; 0 if they were never replaced.
    pub number: u64,
    /// When its last certificate expires.
    pub certificate_expires_ms: Millis,
}

/// What a host must have before a rotation goes on, by its id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostNeed<'a> {
    /// This key for signatures.
    Key(&'a str),
    /// Trust in this root.
    Trust(&'a str),
    /// A certificate under this root.
    Certificate(&'a str),
}

impl HostNeed<'_> {
    /// Whether a host with these keys has it.
    fn is_met(self, keys: &KnownKeys) -> bool {
        let has = |ids: &[String], id: &str| ids.iter().any(|known| known == id);
        match self {
            Self::Key(id) => has(&keys.ids, id),
            Self::Trust(id) => has(&keys.authorities, id),
            Self::Certificate(id) => keys.issuer.as_deref() == Some(id),
        }
    }
}

/// How a member stands to a key, or to a root.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum KeyStanding {
    /// It has it.
    Has,
    /// It has reported others.
    Lacks,
    /// It has not reported anything yet.
    Unheard,
    /// Its certificate has expired: it must join again, and gets the keys then.
    Expired,
}

impl KeyStanding {
    /// Returns how a member stands to what it must have.
    #[must_use]
    pub fn of(member: &MemberKeys, need: HostNeed<'_>, now: Millis) -> Self {
        match member.keys.as_ref().map(|keys| need.is_met(keys)) {
            Some(true) => Self::Has,
            _ if member.certificate_expires_ms <= now => Self::Expired,
            Some(false) => Self::Lacks,
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
        KnownKeys { ids, ..KnownKeys::default() }
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
        let cancelled = offered.cancelled(60).unwrap();
        assert_eq!((cancelled.of_hosts(), cancelled.generation), (vec![old], 60));
    }

    #[test]
    fn stages_out_of_order_are_none() {
        let (old, new) = (key(), key());
        let begin = KeyState::new(old.clone());
        assert_eq!((begin.finished(admin(), BTreeSet::new(), 1), begin.cancelled(1)), (None, None));
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
        let is_known = |keys: &[&PublicKey]| offered.is_known_by(&known(keys), 1, &[]);
        assert!(is_known(&[&new, &old]));
        assert!(!is_known(&[&old]) && !is_known(&[&old, &new, &key()]));
    }

    #[test]
    fn root_is_offered_then_issues_then_replaces_the_old() {
        let begin = KeyState::new(key());
        let (old, new) = (Digest::of(b"old"), Digest::of(b"new"));
        let away = BTreeSet::from([HostId::random()]);
        let finish = |state: &KeyState, now| state.root_finished("0123".to_owned(), admin(), away.clone(), now);
        let offer = |state: &KeyState, key: &Digest, now| state.root_offered(old.clone(), key.clone(), admin(), now);
        assert_eq!((begin.stage(), finish(&begin, 1), begin.root_cancelled(1)), (None, None, None));
        assert_eq!((begin.root_issuing(admin(), BTreeSet::new(), 1), offer(&begin, &old, 1)), (None, None));

        let offered = offer(&begin, &new, 50).unwrap();
        assert_eq!((offered.stage(), offered.generation), (Some(RotationStage::Trust), 50));
        assert_eq!((finish(&offered, 51), offer(&offered, &Digest::of(b"third"), 51)), (None, None));
        assert_eq!(offered.offered(key(), admin(), 51), None, "one rotation at a time");
        let cancelled = offered.root_cancelled(60).unwrap();
        assert_eq!((cancelled.stage(), cancelled.root.as_ref().unwrap().present.clone()), (None, old.clone()));

        let issuing = offered.root_issuing(admin(), away.clone(), 70).unwrap();
        assert_eq!((issuing.stage(), issuing.generation), (Some(RotationStage::Certificates), 70));
        assert_eq!(issuing.next_root().unwrap().issues.as_ref().unwrap().without, away);
        assert_eq!((issuing.root_cancelled(71), issuing.root_issuing(admin(), BTreeSet::new(), 71)), (None, None));

        let finished = finish(&issuing, 80).unwrap();
        let root = finished.root.clone().unwrap();
        assert_eq!((finished.stage(), finished.generation, root.present), (None, 80, new.clone()));
        assert_eq!(root.last.unwrap().without, away);
        // A rotation of the signing key leaves the roots as they are, and the other way round.
        let signing = finished.offered(key(), admin(), 90).unwrap();
        assert_eq!((signing.stage(), offer(&signing, &new, 91)), (Some(RotationStage::Key), None));
        let signing = signing.finished(admin(), BTreeSet::new(), 92).unwrap();
        assert_eq!(signing.root, finished.root);
        let again = offer(&signing, &new, 93).unwrap();
        assert_eq!((&again.signing, again.root.unwrap().last), (&signing.signing, finished.root.unwrap().last));
        let text = serde_json::to_string(&issuing).unwrap();
        assert_eq!(serde_json::from_str::<KeyState>(&text).unwrap(), issuing);
    }

    fn roots(ids: &[&str], issuer: Option<&str>) -> KnownKeys {
        let ids = ids.iter().map(|id| (*id).to_owned()).collect();
        KnownKeys { authorities: ids, issuer: issuer.map(str::to_owned), ..KnownKeys::default() }
    }

    #[test]
    fn hosts_are_told_until_they_trust_the_roots_and_know_which_one_issues() {
        let signing = key();
        let begin = KeyState::new(signing.clone());
        let with_keys = |reported: KnownKeys| KnownKeys { ids: vec![signing.id().to_owned()], ..reported };
        assert!(begin.is_known_by(&with_keys(roots(&["x"], Some("x"))), 0, &[]), "no root was ever replaced");
        let offered = begin.root_offered(Digest::of(b"old"), Digest::of(b"new"), admin(), 50).unwrap();
        let trusted = ["old".to_owned(), "new".to_owned()];
        for (generation, reported, wanted) in [
            (0, roots(&["old"], Some("old")), false),
            (50, roots(&["old"], Some("old")), false),
            (50, roots(&["new", "old"], Some("old")), true),
            (50, roots(&["new", "old", "other"], Some("old")), false),
            (0, roots(&[], None), false),
        ] {
            assert_eq!(offered.is_known_by(&with_keys(reported.clone()), generation, &trusted), wanted, "{reported:?}");
        }
        let issuing = offered.root_issuing(admin(), BTreeSet::new(), 70).unwrap();
        let trusted = ["new".to_owned(), "old".to_owned()];
        for (generation, issuer, wanted) in [(50, "old", false), (70, "old", true), (50, "new", true)] {
            let reported = with_keys(roots(&["old", "new"], Some(issuer)));
            assert_eq!(issuing.is_known_by(&reported, generation, &trusted), wanted, "{generation} {issuer}");
        }
    }

    #[test]
    fn trust_and_certificates_are_what_hosts_report() {
        let member = |keys, certificate_expires_ms| MemberKeys {
            host: HostId::random(),
            keys,
            number: 1,
            certificate_expires_ms,
        };
        let (trust, certificate) = (HostNeed::Trust("new"), HostNeed::Certificate("new"));
        let both = || Some(roots(&["old", "new"], Some("old")));
        for (member, need, wanted) in [
            (member(both(), 100), trust, KeyStanding::Has),
            (member(both(), 100), certificate, KeyStanding::Lacks),
            (member(both(), 50), certificate, KeyStanding::Expired),
            (member(Some(roots(&["new"], Some("new"))), 100), certificate, KeyStanding::Has),
            (member(Some(roots(&["old"], Some("old"))), 100), trust, KeyStanding::Lacks),
            (member(Some(roots(&["old", "new"], None)), 100), certificate, KeyStanding::Lacks),
            (member(None, 100), trust, KeyStanding::Unheard),
        ] {
            assert_eq!(KeyStanding::of(&member, need, 50), wanted, "{member:?} {need:?}");
        }
    }

    #[test]
    fn members_without_the_key_block_unless_they_are_named_or_have_to_join_anew() {
        let (old, new) = (key(), key());
        let member = |keys, certificate_expires_ms| MemberKeys {
            host: HostId::random(),
            keys,
            number: 1,
            certificate_expires_ms,
        };
        let members = [
            (member(Some(known(&[&old, &new])), 100), KeyStanding::Has),
            (member(Some(known(&[&old, &new])), 0), KeyStanding::Has),
            (member(Some(known(&[&old])), 100), KeyStanding::Lacks),
            (member(None, 100), KeyStanding::Unheard),
            (member(Some(known(&[&old])), 50), KeyStanding::Expired),
            (member(None, 50), KeyStanding::Expired),
        ];
        let mut standings = Vec::new();
        for (member, wanted) in &members {
            assert_eq!(KeyStanding::of(member, HostNeed::Key(new.id()), 50), *wanted, "{member:?}");
            standings.push((member.host, *wanted));
        }
        let blocking_without = |named: &[usize]| {
            let without = named.iter().map(|at| members[*at].0.host).collect();
            blocking(&standings, &without)
        };
        let of = |places: &[usize]| places.iter().map(|at| members[*at].0.host).collect::<Vec<_>>();
        assert_eq!(blocking_without(&[]), of(&[2, 3]));
        assert_eq!(blocking_without(&[3, 0]), of(&[2]));
        assert_eq!(blocking_without(&[2, 3]), []);
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
