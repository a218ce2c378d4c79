//! Signals by name: what an operator may send to a unit's process. Numbers differ between machines, names do not.

use std::{fmt, str::FromStr};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::unit::StopSignal;

/// A signal, by its name without `SIG`, in lower case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[expect(missing_docs, reason = "each is the signal of its name; signal(7) tells what they are for")]
pub enum Signal {
    Hup,
    Int,
    Quit,
    Ill,
    Trap,
    Abrt,
    Bus,
    Fpe,
    Kill,
    Usr1,
    Segv,
    Usr2,
    Pipe,
    Alrm,
    Term,
    Chld,
    Cont,
    Stop,
    Tstp,
    Ttin,
    Ttou,
    Urg,
    Xcpu,
    Xfsz,
    Vtalrm,
    Prof,
    Winch,
    Io,
    Pwr,
    Sys,
}

impl From<StopSignal> for Signal {
    fn from(signal: StopSignal) -> Self {
        match signal {
            StopSignal::Term => Self::Term,
            StopSignal::Int => Self::Int,
            StopSignal::Quit => Self::Quit,
            StopSignal::Hup => Self::Hup,
            StopSignal::Usr1 => Self::Usr1,
            StopSignal::Usr2 => Self::Usr2,
            StopSignal::Kill => Self::Kill,
        }
    }
}

impl Signal {
    /// All of them, in the order of their numbers on most machines.
    pub const ALL: [Self; 30] = [
        Self::Hup,
        Self::Int,
        Self::Quit,
        Self::Ill,
        Self::Trap,
        Self::Abrt,
        Self::Bus,
        Self::Fpe,
        Self::Kill,
        Self::Usr1,
        Self::Segv,
        Self::Usr2,
        Self::Pipe,
        Self::Alrm,
        Self::Term,
        Self::Chld,
        Self::Cont,
        Self::Stop,
        Self::Tstp,
        Self::Ttin,
        Self::Ttou,
        Self::Urg,
        Self::Xcpu,
        Self::Xfsz,
        Self::Vtalrm,
        Self::Prof,
        Self::Winch,
        Self::Io,
        Self::Pwr,
        Self::Sys,
    ];

    /// The name without `SIG`, in lower case, as in the JSON form.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Hup => "hup",
            Self::Int => "int",
            Self::Quit => "quit",
            Self::Ill => "ill",
            Self::Trap => "trap",
            Self::Abrt => "abrt",
            Self::Bus => "bus",
            Self::Fpe => "fpe",
            Self::Kill => "kill",
            Self::Usr1 => "usr1",
            Self::Segv => "segv",
            Self::Usr2 => "usr2",
            Self::Pipe => "pipe",
            Self::Alrm => "alrm",
            Self::Term => "term",
            Self::Chld => "chld",
            Self::Cont => "cont",
            Self::Stop => "stop",
            Self::Tstp => "tstp",
            Self::Ttin => "ttin",
            Self::Ttou => "ttou",
            Self::Urg => "urg",
            Self::Xcpu => "xcpu",
            Self::Xfsz => "xfsz",
            Self::Vtalrm => "vtalrm",
            Self::Prof => "prof",
            Self::Winch => "winch",
            Self::Io => "io",
            Self::Pwr => "pwr",
            Self::Sys => "sys",
        }
    }
}

impl fmt::Display for Signal {
    /// The full name, such as `SIGHUP`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SIG{}", self.as_str().to_uppercase())
    }
}

/// A text is no signal's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("use a signal's name, such as HUP or SIGUSR1; `kill -l` lists them")]
pub struct SignalError;

impl FromStr for Signal {
    type Err = SignalError;

    /// With `SIG` or without, in any case.
    fn from_str(text: &str) -> Result<Self, SignalError> {
        let name = text.to_ascii_lowercase();
        let name = name.strip_prefix("sig").unwrap_or(&name);
        Self::ALL.into_iter().find(|signal| signal.as_str() == name).ok_or(SignalError)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_wire_and_parse() {
        for signal in Signal::ALL {
            assert_eq!(serde_json::to_string(&signal).unwrap(), format!("\"{}\"", signal.as_str()));
            for text in [signal.as_str().to_owned(), signal.to_string(), signal.to_string().to_lowercase()] {
                assert_eq!(text.parse(), Ok(signal), "{text}");
            }
        }
        for bad in ["", "sig", "1", "-1", "SIGSIGHUP", "hup ", "rtmin", "h\u{fc}p"] {
            assert_eq!(bad.parse::<Signal>(), Err(SignalError), "{bad:?}");
        }
    }
}
