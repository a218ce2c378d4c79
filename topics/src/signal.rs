//! Signals of Linux, by name or number. Everything that names one (a spec, a command, an option of the command
//! line, an image) is parsed and printed here.
//!
//! On the wire a signal is its name without `SIG`, in lower case (`quit`, `rtmin+3`). Input may
//! also be in upper case, begin with `SIG`, or be a number. Numbers are those of x86, ARM and RISC-V; the names are the same
//! everywhere. Real-time signals count from 34 on, as in the GNU C library, which Docker, Podman and systemd follow:
//! `SIGRTMIN+3` is 37.

use std::{borrow::Cow, fmt, str::FromStr};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// A signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(missing_docs, reason = "each is the signal of its name; signal(7) describes them")]
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
    Stkflt,
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
    RealTime(RealTime),
}

/// A real-time signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RealTime(u8);

/// The kernel's first real-time signal. The C library reserves this and the next one, so they have no names.
const REAL_TIME_FIRST: u8 = 32;
/// The first one that has a name.
const REAL_TIME_MIN: u8 = 34;
/// The last signal.
const REAL_TIME_MAX: u8 = 64;
/// Up to this many from the first, a real-time signal is named after the first, then after the last: as in `kill -l`.
const NAMED_AFTER_MIN: u8 = 15;

impl Signal {
    /// Signals with a name of their own, in the order of their numbers, from 1.
    const NAMED: [(Self, &'static str); 31] = [
        (Self::Hup, "hup"),
        (Self::Int, "int"),
        (Self::Quit, "quit"),
        (Self::Ill, "ill"),
        (Self::Trap, "trap"),
        (Self::Abrt, "abrt"),
        (Self::Bus, "bus"),
        (Self::Fpe, "fpe"),
        (Self::Kill, "kill"),
        (Self::Usr1, "usr1"),
        (Self::Segv, "segv"),
        (Self::Usr2, "usr2"),
        (Self::Pipe, "pipe"),
        (Self::Alrm, "alrm"),
        (Self::Term, "term"),
        (Self::Stkflt, "stkflt"),
        (Self::Chld, "chld"),
        (Self::Cont, "cont"),
        (Self::Stop, "stop"),
        (Self::Tstp, "tstp"),
        (Self::Ttin, "ttin"),
        (Self::Ttou, "ttou"),
        (Self::Urg, "urg"),
        (Self::Xcpu, "xcpu"),
        (Self::Xfsz, "xfsz"),
        (Self::Vtalrm, "vtalrm"),
        (Self::Prof, "prof"),
        (Self::Winch, "winch"),
        (Self::Io, "io"),
        (Self::Pwr, "pwr"),
        (Self::Sys, "sys"),
    ];

    /// Other names of signals.
    const OTHER_NAMES: [(&'static str, Self); 5] =
        [("iot", Self::Abrt), ("cld", Self::Chld), ("poll", Self::Io), ("info", Self::Pwr), ("unused", Self::Sys)];

    /// Returns all signals with a name, in the order of their numbers.
    pub fn all() -> impl Iterator<Item = Self> {
        (1..=i32::from(REAL_TIME_MAX)).filter_map(Self::from_number).filter(|signal| signal.is_named())
    }

    /// Returns the signal of a number.
    #[must_use]
    pub fn from_number(number: i32) -> Option<Self> {
        let number = u8::try_from(number).ok()?;
        match number {
            REAL_TIME_FIRST..=REAL_TIME_MAX => Some(Self::RealTime(RealTime(number))),
            _ => Self::NAMED.get(usize::from(number.checked_sub(1)?)).map(|(signal, _)| *signal),
        }
    }

    /// Returns its number.
    #[must_use]
    pub fn number(self) -> i32 {
        match self {
            Self::RealTime(RealTime(number)) => number.into(),
            _ => (1..).zip(Self::NAMED).find(|(_, (signal, _))| *signal == self).map_or(0, |(number, _)| number),
        }
    }

    /// Returns the name without `SIG`, in lower case, as in the JSON form; the number if it has none.
    #[must_use]
    pub fn name(self) -> Cow<'static, str> {
        match self {
            Self::RealTime(RealTime(number)) => match (number.checked_sub(REAL_TIME_MIN), REAL_TIME_MAX - number) {
                (None, _) => number.to_string().into(),
                (Some(0), _) => "rtmin".into(),
                (_, 0) => "rtmax".into(),
                (Some(above), _) if above <= NAMED_AFTER_MIN => format!("rtmin+{above}").into(),
                (_, below) => format!("rtmax-{below}").into(),
            },
            _ => Self::NAMED.iter().find(|(signal, _)| *signal == self).map_or("", |(_, name)| name).into(),
        }
    }

    fn is_named(self) -> bool {
        !matches!(self, Self::RealTime(RealTime(number)) if number < REAL_TIME_MIN)
    }
}

impl fmt::Display for Signal {
    /// Formats the full name, such as `SIGHUP`; the number if it has none.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_named() { write!(f, "SIG{}", self.name().to_uppercase()) } else { f.write_str(&self.name()) }
    }
}

/// A text that is no signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("use a signal's name or number, such as HUP, SIGUSR1, RTMIN+3 or 15; `kill -l` lists them")]
pub struct SignalError;

impl FromStr for Signal {
    type Err = SignalError;

    /// Parses a name, with or without `SIG`, ignoring case; or a number.
    fn from_str(text: &str) -> Result<Self, SignalError> {
        let digits = |text: &str| {
            let plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
            plain.then(|| text.parse::<u8>().ok()).flatten()
        };
        if let Some(number) = digits(text) {
            return Self::from_number(number.into()).ok_or(SignalError);
        }
        let name = text.to_ascii_lowercase();
        let name = name.strip_prefix("sig").unwrap_or(&name);
        let named = Self::NAMED.iter().find(|(_, own)| *own == name).map(|(signal, _)| *signal);
        let other = || Self::OTHER_NAMES.iter().find(|(other, _)| *other == name).map(|(_, signal)| *signal);
        // A real-time signal at some distance from the first or the last.
        let away = |sign: char, from: &str| match name.strip_prefix(from)? {
            "" => Some(0),
            rest => digits(rest.strip_prefix(sign)?),
        };
        let real_time = || {
            let number = match (away('+', "rtmin"), away('-', "rtmax")) {
                (Some(above), _) => REAL_TIME_MIN.checked_add(above)?,
                (None, Some(below)) => REAL_TIME_MAX.checked_sub(below)?,
                (None, None) => return None,
            };
            (REAL_TIME_MIN..=REAL_TIME_MAX).contains(&number).then_some(Self::RealTime(RealTime(number)))
        };
        named.or_else(other).or_else(real_time).ok_or(SignalError)
    }
}

impl Serialize for Signal {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.name())
    }
}

impl<'de> Deserialize<'de> for Signal {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;

        impl de::Visitor<'_> for Visitor {
            type Value = Signal;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a signal's name or number, such as \"hup\", \"rtmin+3\" or 15")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Signal, E> {
                text.parse().map_err(|_| E::invalid_value(de::Unexpected::Str(text), &self))
            }

            fn visit_u64<E: de::Error>(self, number: u64) -> Result<Signal, E> {
                let signal = i32::try_from(number).ok().and_then(Signal::from_number);
                signal.ok_or_else(|| E::invalid_value(de::Unexpected::Unsigned(number), &self))
            }

            fn visit_i64<E: de::Error>(self, number: i64) -> Result<Signal, E> {
                let signal = i32::try_from(number).ok().and_then(Signal::from_number);
                signal.ok_or_else(|| E::invalid_value(de::Unexpected::Signed(number), &self))
            }
        }

        deserializer.deserialize_any(Visitor)
    }
}

impl JsonSchema for Signal {
    fn schema_name() -> Cow<'static, str> {
        "Signal".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let names = Self::NAMED.map(|(_, name)| name).join("|");
        json_schema!({
            "description": "A signal: its name without `SIG`, in lower case. Upper case, the prefix `SIG`, and \
                            the number on x86 and ARM are accepted too.",
            "oneOf": [
                {
                    "type": "string",
                    "pattern": format!("^([Ss][Ii][Gg])?({names}|{}|[Rr][Tt][Mm][Ii][Nn]([+][0-9]+)?|[Rr][Tt][Mm][Aa][Xx](-[0-9]+)?)$|^[0-9]+$",
                        names.to_uppercase())
                },
                { "type": "integer", "minimum": 1, "maximum": REAL_TIME_MAX }
            ],
            "examples": ["term", "usr1", "rtmin+3"]
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_parse_by_name_and_number() {
        for number in 1..=64 {
            let signal = Signal::from_number(number).unwrap();
            assert_eq!(signal.number(), number);
            let name = signal.name().into_owned();
            assert_eq!(serde_json::to_value(signal).unwrap(), serde_json::json!(name));
            for text in [name, signal.to_string(), signal.to_string().to_lowercase(), number.to_string()] {
                assert_eq!(text.parse(), Ok(signal), "{text}");
                assert_eq!(serde_json::from_value::<Signal>(text.into()).unwrap(), signal);
            }
            assert_eq!(serde_json::from_value::<Signal>(number.into()).unwrap(), signal);
        }
        assert_eq!(Signal::all().count(), 62);
    }

    #[test]
    fn signal_names_equal_those_of_kill() {
        for (number, name) in [
            (1, "SIGHUP"),
            (9, "SIGKILL"),
            (10, "SIGUSR1"),
            (15, "SIGTERM"),
            (16, "SIGSTKFLT"),
            (17, "SIGCHLD"),
            (29, "SIGIO"),
            (30, "SIGPWR"),
            (31, "SIGSYS"),
            (32, "32"),
            (33, "33"),
            (34, "SIGRTMIN"),
            (37, "SIGRTMIN+3"),
            (49, "SIGRTMIN+15"),
            (50, "SIGRTMAX-14"),
            (64, "SIGRTMAX"),
        ] {
            assert_eq!(Signal::from_number(number).unwrap().to_string(), name);
        }
        for (text, number) in [
            ("SIGPOLL", 29),
            ("cld", 17),
            ("iot", 6),
            ("RTMIN+16", 50),
            ("rtmax-30", 34),
            ("SIGRTMAX-0", 64),
            ("015", 15),
        ] {
            assert_eq!(text.parse::<Signal>().unwrap().number(), number, "{text}");
        }
    }

    #[test]
    fn unknown_signal_is_refused() {
        let texts = [
            "",
            "sig",
            "0",
            "65",
            "-1",
            "+1",
            "256",
            "SIGSIGHUP",
            "hup ",
            "rtmin+31",
            "rtmax-31",
            "rtmin-1",
            "rtmax+1",
            "rtmin+",
            "rtmin+-1",
            "rtmin3",
            "SIG15",
            "h\u{fc}p",
        ];
        for text in texts {
            assert_eq!(text.parse::<Signal>(), Err(SignalError), "{text:?}");
            assert!(serde_json::from_value::<Signal>(text.into()).is_err(), "{text:?}");
        }
        for value in [serde_json::json!(0), serde_json::json!(65), serde_json::json!(-1), serde_json::json!(1.5)] {
            assert!(serde_json::from_value::<Signal>(value).is_err());
        }
    }
}
