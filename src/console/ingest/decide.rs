//! Decides what a message changes: plain functions of the stored state and the message.

use muster_api::CommandState;
use muster_fault::planted;
use muster_rules::{hostname, merge_patch, presence};
use muster_topics::{
    PROTOCOL, V1,
    heartbeat::{Content, Heartbeat, HostState},
    name::Digest,
    presence::{Presence, PresenceState},
};
use serde_json::Value;
use uuid::Uuid;

use super::error::FaultyMessage;
use crate::{
    host_share::{ShareKind, ShareUse, UnitShares},
    store::host::{LastHeartbeat, StoredState, UnitShare},
};

/// Returns what a host's units would have with a report of this size beside those of the others. An agent has no more units: who
/// reports more is none.
pub(super) fn unit_shares(others: UnitShare, bytes: usize, most: UnitShares) -> [ShareUse; 2] {
    [
        ShareUse { kind: ShareKind::Units, used: others.units.saturating_add(1), most: most.units },
        ShareUse { kind: ShareKind::UnitReports, used: others.bytes.saturating_add(bytes as u64), most: most.bytes },
    ]
}

/// What to do with a presence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PresenceUpdate {
    /// It replaces the stored one.
    Store,
    /// It is earlier than the stored one.
    Old,
    /// It is either an objection to a claim or a late copy: a heartbeat will tell.
    Doubtful,
}

/// Decides whether a presence replaces the stored one. An old last will may arrive late, and a retained presence arrives
/// again with each subscription.
///
/// A clone that claims its host shows a later instance than the original's, and leaves when that objects. So an online
/// presence replaces that of a later instance which has sent nothing, if its own instance has sent a heartbeat since the
/// later one appeared. Without such a heartbeat it may be a late copy of what was published before.
pub(super) fn presence(
    held: Option<(u64, u64, bool)>,
    last: Option<LastHeartbeat>,
    presence: &Presence,
) -> PresenceUpdate {
    let Some(held) = held else { return PresenceUpdate::Store };
    if presence.order() > held || planted!(BelieveOldWill) {
        return PresenceUpdate::Store;
    }
    match last {
        Some(last)
            if last.epoch < held.0 && last.epoch == presence.epoch && presence.state == PresenceState::Online =>
        {
            if last.follows_presence { PresenceUpdate::Store } else { PresenceUpdate::Doubtful }
        }
        _ => PresenceUpdate::Old,
    }
}

/// Returns the presence for a heartbeat that arrived before any presence of its instance.
pub(super) fn presence_of(epoch: u64, state: &HostState) -> Presence {
    Presence {
        v: V1,
        state: PresenceState::Online,
        // It is not stored: only the host itself needs it.
        instance: Uuid::nil(),
        epoch,
        session: 0,
        protocol: PROTOCOL,
        agent_version: state.agent_version.clone(),
        capabilities: Vec::new(),
        since_ms: 0,
    }
}

/// What to do with a heartbeat.
#[derive(Debug)]
pub(super) enum HeartbeatVerdict {
    /// Store this state.
    Store {
        /// The state to store.
        held: StoredState,
        /// The same, parsed.
        state: Box<HostState>,
    },
    /// It is stored already, or a newer one is: acknowledge again, because the host may not know.
    Known {
        /// The newest stored number, in the same epoch.
        seq: u64,
    },
    /// It is of an earlier instance of the agent.
    Old,
    /// It is a delta to a heartbeat that is not stored: a full one is needed.
    Gap,
    /// It is a digest, to be compared with the stored state and units.
    Digest {
        /// The stored state.
        state: Value,
        /// The expected digest.
        digest: Digest,
    },
}

/// Applies a heartbeat to the stored state of its host.
pub(super) fn heartbeat(held: Option<StoredState>, heartbeat: Heartbeat) -> Result<HeartbeatVerdict, FaultyMessage> {
    let Heartbeat { epoch, seq, content, .. } = heartbeat;
    let lives = presence::with_life(held.as_ref().map_or(&[], |held| &held.lives), epoch);
    let (state, base) = match (content, passed(held.as_ref(), epoch, seq)) {
        (Content::Digest { digest }, _) => return Ok(compared(held, epoch, seq, digest)),
        (_, Some(passed)) => return Ok(passed),
        (Content::Full { state }, None) => (serde_json::to_value(state)?, None),
        (Content::Delta { base_seq, patch }, None) => {
            let Some(base) = base_of(held, epoch, base_seq) else { return Ok(HeartbeatVerdict::Gap) };
            let mut state = base.clone();
            merge_patch::apply(&mut state, patch);
            (state, Some((base_seq, base)))
        }
    };
    // A patch may produce any JSON; the result has to be a valid state.
    let mut parsed: HostState = serde_json::from_value(state.clone())?;
    // An odd hostname must not hide a host. The stored state keeps it, because the next delta refers to that.
    parsed.hostname = hostname::cleaned(&parsed.hostname);
    Ok(HeartbeatVerdict::Store { held: StoredState { epoch, lives, seq, state, base }, state: Box::new(parsed) })
}

/// Returns the verdict on a heartbeat that is not new.
fn passed(held: Option<&StoredState>, epoch: u64, seq: u64) -> Option<HeartbeatVerdict> {
    match held? {
        held if held.epoch > epoch => Some(HeartbeatVerdict::Old),
        held if held.epoch == epoch && held.seq >= seq => Some(HeartbeatVerdict::Known { seq: held.seq }),
        _ => None,
    }
}

/// Returns the verdict on a digest of the heartbeat `seq`.
fn compared(held: Option<StoredState>, epoch: u64, seq: u64, digest: Digest) -> HeartbeatVerdict {
    match held {
        Some(held) if (held.epoch, held.seq) > (epoch, seq) => HeartbeatVerdict::Old,
        Some(held) if (held.epoch, held.seq) == (epoch, seq) => HeartbeatVerdict::Digest { state: held.state, digest },
        _ => HeartbeatVerdict::Gap,
    }
}

/// Returns the state as of `base_seq`, if it is still stored.
fn base_of(held: Option<StoredState>, epoch: u64, base_seq: u64) -> Option<Value> {
    let held = held.filter(|held| held.epoch == epoch)?;
    if held.seq == base_seq || planted!(ApplyAnyway) {
        return Some(held.state);
    }
    held.base.filter(|(seq, _)| *seq == base_seq).map(|(_, state)| state)
}

/// Whether a state that is not an outcome advances a host's command. `missing` only means that nothing had arrived.
pub(super) fn advances(from: CommandState, to: CommandState) -> bool {
    use CommandState::{Accepted, Done, Missing, Running, Waiting};
    match (from, to) {
        (Waiting | Missing, Accepted | Running) | (Accepted, Running) => true,
        (Waiting | Missing | Accepted | Running | Done, _) => false,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn presence_in(epoch: u64, session: u64, state: PresenceState) -> Presence {
        Presence {
            v: V1,
            state,
            instance: Uuid::nil(),
            epoch,
            session,
            protocol: PROTOCOL,
            agent_version: String::new(),
            capabilities: Vec::new(),
            since_ms: 0,
        }
    }

    #[test]
    fn presence_follows_epoch_order() {
        let presence = presence_in;
        let check = |held: Option<Presence>, came: Presence, wanted: bool| {
            let verdict = super::presence(held.as_ref().map(Presence::order), None, &came);
            assert_eq!(verdict == PresenceUpdate::Store, wanted, "{held:?} {came:?}");
        };
        use PresenceState::{Offline, Online, Stopped};
        check(None, presence(1, 1, Offline), true);
        check(Some(presence(1, 1, Online)), presence(1, 1, Offline), true);
        check(Some(presence(1, 1, Online)), presence(1, 1, Online), false);
        check(Some(presence(1, 1, Stopped)), presence(1, 1, Offline), false);
        // The last will of session 1, after session 2 has begun.
        check(Some(presence(1, 2, Online)), presence(1, 1, Offline), false);
        check(Some(presence(1, 9, Online)), presence(2, 1, Online), true);
        check(Some(presence(2, 1, Online)), presence(1, 9, Offline), false);
    }

    #[test]
    fn objection_counts_with_a_heartbeat_after_the_claim() {
        use PresenceState::{Offline, Online};
        use PresenceUpdate::{Doubtful, Old, Store};
        // A later instance has claimed the host and sent nothing.
        let verdict = |epoch, follows_presence, state| {
            super::presence(
                Some((2, 1, false)),
                Some(LastHeartbeat { epoch, follows_presence }),
                &presence_in(1, 9, state),
            )
        };
        assert_eq!(verdict(1, true, Online), Store);
        assert_eq!(verdict(1, false, Online), Doubtful);
        assert_eq!(verdict(1, true, Offline), Old);
        assert_eq!(verdict(2, true, Online), Old);
    }

    fn state(hostname: &str, labels: Value) -> Value {
        json!({
            "hostname": hostname, "agent_version": "1", "labels": labels, "realms": [], "units": {}, "interfaces": {},
            "facts": {"os": "", "kernel": "", "arch": "", "cpus": 1, "cpu_model": "", "memory_bytes": 1, "boot_id": "", "boot_ms": 0},
            "command_keys": {"ids": [], "authorities": []}, "desired": {"mark": {"epoch": 0, "generation": 0}},
        })
    }

    fn full(epoch: u64, seq: u64, state: Value) -> Heartbeat {
        serde_json::from_value(
            json!({"v": 1, "epoch": epoch, "seq": seq, "at_ms": 0, "final": false, "kind": "full", "state": state}),
        )
        .unwrap()
    }

    fn delta(epoch: u64, seq: u64, base_seq: u64, patch: Value) -> Heartbeat {
        serde_json::from_value(
            json!({"v": 1, "epoch": epoch, "seq": seq, "at_ms": 0, "final": false, "kind": "delta", "base_seq": base_seq, "patch": patch}),
        )
        .unwrap()
    }

    #[test]
    fn bad_hostname_is_cleaned() {
        for (name, shown) in
            [("", "unnamed"), (&"h".repeat(254), &"h".repeat(253)), ("a\u{1b}[31m\n", "a?[31m?"), ("till", "till")]
        {
            let said = serde_json::from_value(
                json!({"v": 1, "epoch": 1, "seq": 1, "at_ms": 0, "final": false, "kind": "full", "state": state(name, json!({}))}),
            );
            let Ok(HeartbeatVerdict::Store { held, state }) = heartbeat(None, said.unwrap()) else {
                panic!("{name:?}")
            };
            assert_eq!((state.hostname.as_str(), held.state["hostname"].as_str()), (shown, Some(name)));
        }
    }

    #[test]
    fn digest_is_compared_with_its_heartbeat() {
        let digest = Digest::of(b"");
        let content = || Content::Digest { digest: digest.clone() };
        let about = |epoch, seq| Heartbeat { content: content(), ..delta(epoch, seq, 0, json!({})) };
        let held = || Some(StoredState { epoch: 2, lives: vec![2], seq: 7, state: json!({"a": 1}), base: None });
        assert!(
            matches!(heartbeat(held(), about(2, 7)), Ok(HeartbeatVerdict::Digest { state, digest: of }) if state == json!({"a": 1}) && of == digest)
        );
        for (held, epoch, seq) in [(None, 1, 1), (held(), 2, 8), (held(), 3, 1)] {
            assert!(matches!(heartbeat(held, about(epoch, seq)), Ok(HeartbeatVerdict::Gap)), "{epoch} {seq}");
        }
        for (epoch, seq) in [(2, 6), (1, 9)] {
            assert!(matches!(heartbeat(held(), about(epoch, seq)), Ok(HeartbeatVerdict::Old)), "{epoch} {seq}");
        }
    }

    /// Applies heartbeats one after the other; returns each verdict as a word.
    fn run(heartbeats: Vec<Heartbeat>) -> (Vec<&'static str>, Option<StoredState>) {
        let mut held = None;
        let mut words = Vec::new();
        for one in heartbeats {
            words.push(match heartbeat(held.clone(), one) {
                Ok(HeartbeatVerdict::Store { held: new, .. }) => {
                    held = Some(new);
                    "store"
                }
                Ok(HeartbeatVerdict::Known { seq }) => {
                    assert_eq!(seq, held.as_ref().unwrap().seq);
                    "known"
                }
                Ok(HeartbeatVerdict::Old) => "old",
                Ok(HeartbeatVerdict::Gap) => "gap",
                Ok(HeartbeatVerdict::Digest { .. }) => "digest",
                Err(_) => "faulty",
            });
        }
        (words, held)
    }

    #[track_caller]
    fn check(heartbeats: Vec<Heartbeat>, wanted: &[&str], labels: Value) {
        let (words, held) = run(heartbeats);
        assert_eq!(words, wanted);
        assert_eq!(held.map(|held| held.state["labels"].clone()).unwrap_or_default(), labels);
    }

    #[test]
    fn delta_applies_only_to_its_base() {
        let a = || state("h", json!({"a": "1"}));
        check(
            vec![full(1, 1, a()), delta(1, 2, 1, json!({"labels": {"b": "2"}}))],
            &["store", "store"],
            json!({"a": "1", "b": "2"}),
        );
        check(vec![delta(1, 2, 1, json!({}))], &["gap"], json!(null));
        check(vec![full(1, 1, a()), delta(1, 4, 3, json!({"labels": null}))], &["store", "gap"], json!({"a": "1"}));
        check(vec![full(1, 1, a()), delta(2, 2, 1, json!({}))], &["store", "gap"], json!({"a": "1"}));
        check(vec![full(1, 1, a()), full(2, 1, state("h", json!({})))], &["store", "store"], json!({}));
    }

    #[test]
    fn a_repetition_changes_nothing() {
        let a = || state("h", json!({"a": "1"}));
        let remove = || delta(1, 2, 1, json!({"labels": {"a": null}}));
        check(vec![full(1, 1, a()), full(1, 1, a())], &["store", "known"], json!({"a": "1"}));
        check(
            vec![full(1, 1, a()), remove(), full(1, 1, a()), remove()],
            &["store", "store", "known", "known"],
            json!({}),
        );
        check(vec![full(2, 1, a()), full(1, 9, state("h", json!({})))], &["store", "old"], json!({"a": "1"}));
    }

    #[test]
    fn a_lost_acknowledgement_makes_no_gap() {
        // The host did not receive the acknowledgement of 2, so it continues from 1.
        let a = state("h", json!({}));
        check(
            vec![
                full(1, 1, a),
                delta(1, 2, 1, json!({"labels": {"a": "1"}})),
                delta(1, 3, 1, json!({"labels": {"b": "2"}})),
                delta(1, 4, 3, json!({"labels": {"c": "3"}})),
                delta(1, 5, 2, json!({})),
            ],
            &["store", "store", "store", "store", "gap"],
            json!({"b": "2", "c": "3"}),
        );
    }

    #[test]
    fn invalid_state_is_faulty() {
        let a = || state("h", json!({}));
        check(vec![full(1, 1, a()), delta(1, 2, 1, json!({"facts": null}))], &["store", "faulty"], json!({}));
        check(vec![full(1, 1, a()), delta(1, 2, 1, json!(7))], &["store", "faulty"], json!({}));
    }

    #[test]
    fn rfc_7396_examples_apply() {
        // RFC 7396, appendix A.
        for (target, patch, wanted) in [
            (json!({"a": "b"}), json!({"a": "c"}), json!({"a": "c"})),
            (json!({"a": "b"}), json!({"b": "c"}), json!({"a": "b", "b": "c"})),
            (json!({"a": "b"}), json!({"a": null}), json!({})),
            (json!({"a": "b", "b": "c"}), json!({"a": null}), json!({"b": "c"})),
            (json!({"a": ["b"]}), json!({"a": "c"}), json!({"a": "c"})),
            (json!({"a": "c"}), json!({"a": ["b"]}), json!({"a": ["b"]})),
            (json!({"a": {"b": "c"}}), json!({"a": {"b": "d", "c": null}}), json!({"a": {"b": "d"}})),
            (json!({"a": [{"b": "c"}]}), json!({"a": [1]}), json!({"a": [1]})),
            (json!(["a", "b"]), json!(["c", "d"]), json!(["c", "d"])),
            (json!({"a": "b"}), json!(["c"]), json!(["c"])),
            (json!({"a": "foo"}), json!(null), json!(null)),
            (json!({"a": "foo"}), json!("bar"), json!("bar")),
            (json!({"e": null}), json!({"a": 1}), json!({"e": null, "a": 1})),
            (json!([1, 2]), json!({"a": "b", "c": null}), json!({"a": "b"})),
            (json!({}), json!({"a": {"bb": {"ccc": null}}}), json!({"a": {"bb": {}}})),
        ] {
            let mut merged = target.clone();
            merge_patch::apply(&mut merged, patch.clone());
            assert_eq!(merged, wanted, "{target} {patch}");
        }
    }

    #[test]
    fn command_state_never_goes_back() {
        use CommandState::{Accepted, Done, Missing, Running, Waiting};
        let order = [Waiting, Missing, Accepted, Running, Done];
        for from in order {
            for to in [Accepted, Running] {
                let wanted = match from {
                    Waiting | Missing => true,
                    Accepted => to == Running,
                    Running | Done => false,
                };
                assert_eq!(advances(from, to), wanted, "{from:?} {to:?}");
            }
        }
    }

    proptest! {
        /// Whatever is lost and repeated, the stored state is one that the host had.
        #[test]
        fn loss_and_repetition_yield_only_real_states(
            lost in proptest::collection::vec(any::<bool>(), 12),
            acks_lost in proptest::collection::vec(any::<bool>(), 12),
        ) {
            let label = |seq: u64| state("h", json!({format!("l{}", seq % 3): seq.to_string()}));
            let mut held: Option<StoredState> = None;
            let mut acknowledged = 0;
            for (index, (lost, ack_lost)) in lost.into_iter().zip(acks_lost).enumerate() {
                let seq = index as u64 + 1;
                let beat = if acknowledged == 0 {
                    full(1, seq, label(seq))
                } else {
                    let gone = format!("l{}", acknowledged % 3);
                    let mut patch = json!({"labels": {gone: null}});
                    merge_keep_nulls(&mut patch, json!({"labels": {format!("l{}", seq % 3): seq.to_string()}}));
                    delta(1, seq, acknowledged, patch)
                };
                if lost { continue }
                match heartbeat(held.clone(), beat).unwrap() {
                    HeartbeatVerdict::Store { held: new, .. } => {
                        prop_assert_eq!(&new.state, &label(seq));
                        held = Some(new);
                        if !ack_lost { acknowledged = seq }
                    }
                    HeartbeatVerdict::Gap => acknowledged = 0,
                    other => prop_assert!(false, "{:?}", other),
                }
            }
        }
    }

    /// Combines two patches.
    fn merge_keep_nulls(patch: &mut Value, more: Value) {
        match (patch, more) {
            (Value::Object(patch), Value::Object(more)) => {
                for (key, value) in more {
                    merge_keep_nulls(patch.entry(key).or_insert(Value::Null), value);
                }
            }
            (patch, more) => *patch = more,
        }
    }
}
