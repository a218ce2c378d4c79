//! Decides whether the console's clock is right, and corrects the date of what it signs while it is not.
//!
//! The reference are the hosts: each heartbeat carries its host's clock. One host may have any clock, so the median counts,
//! if two thirds are near it. Three hosts that agree outvote the console's clock, and so does any number of them if
//! that clock was set by the same offset while the console ran. Otherwise one of two clocks is wrong, and an operator has to look.

use muster_topics::{Millis, diagnostic::Diagnostic};

use super::time::{AHEAD_MAX_MS, BUILD_MS, SLACK_MS};

/// How many agreeing hosts outvote the console's clock: with two, one wrong host would stand against one right host.
const OUTVOTE: usize = 3;

/// By how much the console's clock is ahead of its hosts' clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockConsensus {
    /// How far it is ahead of their median; negative if it is behind.
    pub ahead_ms: Millis,
    /// How many hosts are near the median.
    pub agree: usize,
    /// How many hosts there are.
    pub of: usize,
}

/// Returns the value on which at least two thirds of the hosts agree. `ahead_ms` has for each host by how much the
/// console's clock is ahead of the host's; it is sorted in place.
#[must_use]
pub fn consensus(ahead_ms: &mut [Millis]) -> Option<ClockConsensus> {
    ahead_ms.sort_unstable();
    let median_ms = *ahead_ms.get(ahead_ms.len().checked_sub(1)? / 2)?;
    let agree = ahead_ms.iter().filter(|ms| ms.abs_diff(median_ms) <= SLACK_MS.unsigned_abs()).count();
    let of = ahead_ms.len();
    (3 * agree >= 2 * of).then_some(ClockConsensus { ahead_ms: median_ms, agree, of })
}

/// The evidence about the console's clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClockEvidence {
    /// The console's clock.
    pub now_ms: Millis,
    /// The consensus of the hosts that reported since the clock was last set.
    pub consensus: Option<ClockConsensus>,
    /// By how much the clock was set forward (negative: back) since hosts last agreed with it.
    pub set_by_ms: Millis,
    /// By how far signed times lie ahead of the clock, if no host has shown yet that this does no harm.
    pub signed_ahead_ms: Millis,
    /// How many hosts still rely on the latest signed time, whatever the console signs later: those that
    /// do not say that they can go back ([`Capability::FreshTime`](muster_topics::presence::Capability::FreshTime)).
    pub bound: u64,
    /// Whether the console and the broker refused each other's certificates because of their validity times.
    pub is_refused: bool,
}

/// The assessment of the console's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClockFinding {
    /// Hosts agree with it.
    Right,
    /// There is no evidence for or against it.
    Unopposed,
    /// Hosts disagree with it.
    Differs {
        /// The hosts' consensus.
        consensus: ClockConsensus,
        /// Whether it is certainly wrong.
        is_sure: bool,
    },
    /// It is right, but some hosts rely on times that were signed while it was ahead.
    Bound {
        /// By how much those times are ahead.
        ahead_ms: Millis,
        /// How many hosts.
        hosts: u64,
    },
    /// It was set, and no host has reported since.
    Set {
        /// By how much.
        by_ms: Millis,
    },
    /// Signed times lie ahead of it, and no host has reported.
    Behind {
        /// By how much.
        by_ms: Millis,
    },
    /// Connections to the broker fail because of it.
    Refused,
}

/// Assesses the console's clock.
#[must_use]
pub fn judge(evidence: &ClockEvidence) -> ClockFinding {
    let ClockEvidence { now_ms, consensus, set_by_ms, signed_ahead_ms, bound, is_refused } = *evidence;
    let is_far = |ms: Millis| ms.unsigned_abs() > SLACK_MS.unsigned_abs();
    match consensus {
        Some(consensus) if is_far(consensus.ahead_ms) => {
            let was_set = is_far(set_by_ms) && !is_far(set_by_ms.saturating_sub(consensus.ahead_ms));
            // No right clock shows a time before this program was built.
            let can_be = now_ms.saturating_sub(consensus.ahead_ms) >= BUILD_MS;
            ClockFinding::Differs { consensus, is_sure: can_be && (consensus.agree >= OUTVOTE || was_set) }
        }
        // Agents do not believe times that are further ahead than this.
        Some(_) if bound > 0 && (SLACK_MS + 1..=AHEAD_MAX_MS).contains(&signed_ahead_ms) => {
            ClockFinding::Bound { ahead_ms: signed_ahead_ms, hosts: bound }
        }
        Some(_) => ClockFinding::Right,
        None if is_refused => ClockFinding::Refused,
        None if signed_ahead_ms > SLACK_MS => ClockFinding::Behind { by_ms: signed_ahead_ms },
        None if is_far(set_by_ms) => ClockFinding::Set { by_ms: set_by_ms },
        None => ClockFinding::Unopposed,
    }
}

impl ClockFinding {
    /// By how much the time that the console signs with differs from its clock.
    #[must_use]
    pub fn correction_ms(self) -> Millis {
        match self {
            Self::Differs { consensus, is_sure: true } => consensus.ahead_ms.saturating_neg(),
            _ => 0,
        }
    }

    /// Whether hosts agree with the corrected clock.
    #[must_use]
    pub fn is_confirmed(self) -> bool {
        matches!(self, Self::Right | Self::Bound { .. } | Self::Differs { is_sure: true, .. })
    }

    /// What an operator has to know and do about it.
    #[must_use]
    pub fn diagnostic(self) -> Option<Diagnostic> {
        const COMPARE: &str = "compare `date -u` here and on hosts, and keep clocks set (NTP)";
        let cause = match self {
            Self::Right | Self::Unopposed => return None,
            Self::Differs { consensus: ClockConsensus { ahead_ms, agree, of }, is_sure } => {
                let then = match is_sure {
                    true => "the console's clock is wrong, and it dates what it signs by theirs",
                    false => "one of them is wrong: if it is the console's, commands expire at the wrong time",
                };
                format!("the console's clock is {} those of {agree} of {of} hosts: {then}", off(ahead_ms))
            }
            Self::Bound { ahead_ms, hosts } => format!(
                "while its clock was ahead, the console signed messages that are dated {} min \
                 ahead, and {hosts} hosts do not accept an earlier time: messages to them keep that date until \
                 then, and so expire later",
                ahead_ms / 60_000,
            ),
            Self::Set { by_ms } => format!(
                "the console's clock was set {} while it was running, and there is no host to compare it with",
                if by_ms < 0 {
                    format!("back by {} min", by_ms / -60_000)
                } else {
                    format!("ahead by {} min", by_ms / 60_000)
                }
            ),
            Self::Behind { by_ms } => format!(
                "the console has signed messages that are dated {} min ahead of its clock: its clock was ahead then, or is behind now, \
                 and there is no host to compare it with",
                by_ms / 60_000
            ),
            Self::Refused => {
                "broker and console refuse each other's certificates because of their times: one of their clocks is wrong"
                    .to_owned()
            }
        };
        let diagnostic = Diagnostic::new(cause);
        Some(match self {
            Self::Bound { .. } => diagnostic.with_hint(
                "install agents there whose build can set its time back (`muster host show` says what each can do)",
            ),
            _ => diagnostic.with_hint(COMPARE),
        })
    }
}

fn off(ahead_ms: Millis) -> String {
    if ahead_ms < 0 {
        format!("{} min behind", ahead_ms / -60_000)
    } else {
        format!("{} min ahead of", ahead_ms / 60_000)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Millis = BUILD_MS + 400 * DAY;
    const DAY: Millis = 86_400_000;

    fn agreed(ahead_ms: Millis, agree: usize) -> Option<ClockConsensus> {
        Some(ClockConsensus { ahead_ms, agree, of: agree })
    }

    #[test]
    fn outlier_clocks_do_not_change_consensus() {
        for (mut clocks, wanted) in [
            (vec![], None),
            (vec![7], Some((7, 1, 1))),
            (vec![DAY, DAY + 900, DAY - 500, -3 * DAY], Some((DAY - 500, 3, 4))),
            (vec![0, 100, -90, Millis::MAX, Millis::MIN], None),
            (vec![0, 100, -90, 50, Millis::MAX, Millis::MIN], Some((0, 4, 6))),
            // If one of two is wrong, there is no consensus.
            (vec![0, DAY], None),
            (vec![0, 0, DAY, DAY], None),
        ] {
            let wanted = wanted.map(|(ahead_ms, agree, of)| ClockConsensus { ahead_ms, agree, of });
            assert_eq!(consensus(&mut clocks), wanted, "{clocks:?}");
        }
    }

    #[test]
    fn console_clock_is_judged_by_hosts_and_by_its_jump() {
        let evidence = ClockEvidence { now_ms: NOW, ..ClockEvidence::default() };
        let differs = |ahead_ms, agree, is_sure| ClockFinding::Differs {
            consensus: ClockConsensus { ahead_ms, agree, of: agree },
            is_sure,
        };
        for (evidence, wanted) in [
            (evidence, ClockFinding::Unopposed),
            (ClockEvidence { consensus: agreed(SLACK_MS, 1), ..evidence }, ClockFinding::Right),
            // Set to the hosts' time: they agree.
            (
                ClockEvidence { consensus: agreed(5, 1), set_by_ms: DAY, signed_ahead_ms: DAY, ..evidence },
                ClockFinding::Right,
            ),
            (ClockEvidence { consensus: agreed(DAY, 1), ..evidence }, differs(DAY, 1, false)),
            (ClockEvidence { consensus: agreed(DAY, 1), set_by_ms: DAY - 9, ..evidence }, differs(DAY, 1, true)),
            (ClockEvidence { consensus: agreed(DAY, 1), set_by_ms: 2 * DAY, ..evidence }, differs(DAY, 1, false)),
            (ClockEvidence { consensus: agreed(DAY, 3), ..evidence }, differs(DAY, 3, true)),
            (ClockEvidence { consensus: agreed(-DAY, 3), ..evidence }, differs(-DAY, 3, true)),
            (ClockEvidence { consensus: agreed(500 * DAY, 3), ..evidence }, differs(500 * DAY, 3, false)),
            (
                ClockEvidence { consensus: agreed(0, 2), signed_ahead_ms: DAY, bound: 2, ..evidence },
                ClockFinding::Bound { ahead_ms: DAY, hosts: 2 },
            ),
            (
                ClockEvidence { consensus: agreed(0, 2), signed_ahead_ms: DAY + 1, bound: 2, ..evidence },
                ClockFinding::Right,
            ),
            (ClockEvidence { signed_ahead_ms: 3 * DAY, bound: 2, ..evidence }, ClockFinding::Behind { by_ms: 3 * DAY }),
            (ClockEvidence { set_by_ms: -DAY, ..evidence }, ClockFinding::Set { by_ms: -DAY }),
            (
                ClockEvidence { set_by_ms: -DAY, signed_ahead_ms: DAY, is_refused: true, ..evidence },
                ClockFinding::Refused,
            ),
        ] {
            let found = judge(&evidence);
            assert_eq!(found, wanted, "{evidence:?}");
            let silent = matches!(wanted, ClockFinding::Right | ClockFinding::Unopposed);
            assert_eq!(found.diagnostic().is_none(), silent);
            assert!(found.diagnostic().is_none_or(|told| told.hint.is_some()));
        }
        assert!(
            ClockFinding::Right.is_confirmed()
                && !ClockFinding::Unopposed.is_confirmed()
                && !differs(DAY, 1, false).is_confirmed()
        );
        assert_eq!(differs(DAY, 3, true).correction_ms(), -DAY);
        assert_eq!(differs(DAY, 1, false).correction_ms(), 0);
    }
}
