//! Why a host waits.

use std::{fmt, sync::Arc};

use jiff::Timestamp;
use muster_topics::Millis;

/// Why a host has not begun with a version of a deployment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WaitReason {
    /// It lacks what the version needs, or has no document of this console.
    Cannot,
    /// It is away.
    Away,
    /// It is connected, and has not asked: it prepares, or its own policy keeps it.
    Preparing,
    /// It was granted a permit, and has not said that it has begun.
    Granted,
    /// It is in the middle of the change.
    Changing,
    /// It has failed, and nobody has told it to try again.
    Failed,
    /// It has failed, and tries again.
    Retry {
        /// When.
        at_ms: Millis,
    },
    /// An operator, or too many failures, have paused the rollout.
    Paused {
        /// Why, for people.
        reason: Arc<str>,
    },
    /// The rollout has ended, and hosts that come late wait, because too many of its last wave have failed.
    Failures,
    /// The rollout was cancelled.
    Cancelled,
    /// A later version takes its place.
    Superseded {
        /// The later version.
        by: u32,
    },
    /// The wave has ended, and the next one begins later.
    Soak {
        /// When.
        until_ms: Millis,
    },
    /// The wave has ended, and its check has no result yet.
    Check {
        /// Why, for people.
        message: Option<Arc<str>>,
    },
    /// The next wave waits for an operator.
    Approval {
        /// The wave.
        wave: u32,
    },
    /// All windows are closed.
    Window {
        /// When the next one opens; never within the time that is looked ahead.
        opens_ms: Option<Millis>,
    },
    /// As many hosts as the wave has were admitted.
    WaveFull {
        /// The wave.
        wave: u32,
    },
    /// Hosts that an earlier version has broken go first.
    Repairs,
    /// As many hosts as may are in the middle of a change.
    InFlight {
        /// How many may be.
        limit: u32,
    },
    /// As many hosts of its group as may be are unavailable.
    Budget {
        /// The group.
        group: Option<Arc<str>>,
        /// How many may be.
        limit: u32,
    },
    /// The authority has not admitted it.
    Authority {
        /// What it said.
        reason: Option<Arc<str>>,
    },
}

impl WaitReason {
    /// The word for it.
    #[must_use]
    pub fn word(&self) -> &'static str {
        match self {
            Self::Cannot => "cannot",
            Self::Away => "away",
            Self::Preparing => "preparing",
            Self::Granted => "granted",
            Self::Changing => "changing",
            Self::Failed => "failed",
            Self::Retry { .. } => "retry",
            Self::Paused { .. } => "paused",
            Self::Failures => "failures",
            Self::Cancelled => "cancelled",
            Self::Superseded { .. } => "superseded",
            Self::Soak { .. } => "soak",
            Self::Check { .. } => "check",
            Self::Approval { .. } => "approval",
            Self::Window { .. } => "window",
            Self::WaveFull { .. } => "wave",
            Self::Repairs => "repairs",
            Self::InFlight { .. } => "in_flight",
            Self::Budget { .. } => "budget",
            Self::Authority { .. } => "authority",
        }
    }
}

impl fmt::Display for WaitReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cannot => {
                write!(f, "the host lacks what the version needs, or waits for `muster deployment confirm`")
            }
            Self::Away => write!(f, "the host is offline"),
            Self::Preparing => {
                write!(f, "the host has not asked yet: it prepares the version, or its own policy delays it")
            }
            Self::Granted => write!(f, "the host may begin, and has not reported that it has begun"),
            Self::Changing => write!(f, "the host is in the middle of the change"),
            Self::Failed => write!(f, "the host has failed; `muster rollout retry` retries it"),
            Self::Retry { at_ms } => write!(f, "the host has failed and retries at {}", utc(*at_ms)),
            Self::Paused { reason } => write!(f, "the rollout is paused: {reason}"),
            Self::Failures => {
                write!(f, "too many hosts of the last wave have failed; `muster rollout resume` admits more")
            }
            Self::Cancelled => write!(f, "the rollout was cancelled"),
            Self::Superseded { by } => write!(f, "version {by} replaces it"),
            Self::Soak { until_ms } => write!(f, "the next wave begins at {}", utc(*until_ms)),
            Self::Check { message: None } => write!(f, "the check of the wave is running"),
            Self::Check { message: Some(message) } => write!(f, "the check of the wave has no result: {message}"),
            Self::Approval { wave } => write!(f, "wave {wave} waits for approval (`muster rollout promote`)"),
            Self::Window { opens_ms: Some(opens_ms) } => write!(f, "the next window opens at {}", utc(*opens_ms)),
            Self::Window { opens_ms: None } => write!(f, "no window opens within a year"),
            Self::WaveFull { wave } => write!(f, "wave {wave} has all its hosts; the host belongs to a later wave"),
            Self::Repairs => write!(f, "hosts that an earlier version has broken go first"),
            Self::InFlight { limit } => {
                write!(f, "{} changing, the maximum", hosts_are(*limit, ""))
            }
            Self::Budget { group, limit } => match group {
                Some(group) => {
                    write!(f, "{} unavailable, the maximum", hosts_are(*limit, &format!(" of {group}")))
                }
                None => write!(f, "{} unavailable, the maximum", hosts_are(*limit, " without a group")),
            },
            Self::Authority { reason: None } => write!(f, "the authority is asked"),
            Self::Authority { reason: Some(reason) } => write!(f, "the authority does not admit it: {reason}"),
        }
    }
}

/// A time, for people.
fn utc(at_ms: Millis) -> String {
    match Timestamp::from_millisecond(at_ms) {
        Ok(at) => at.strftime("%Y-%m-%d %H:%M:%S UTC").to_string(),
        Err(_) => format!("{at_ms} ms"),
    }
}

/// `1 host of x is`, or `2 hosts of x are`.
fn hosts_are(count: u32, which: &str) -> String {
    match count {
        1 => format!("1 host{which} is"),
        count => format!("{count} hosts{which} are"),
    }
}
