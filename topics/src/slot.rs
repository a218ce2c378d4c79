//! Slots: a fixed partition of all hosts, by which consoles can divide them among themselves.
//!
//! Topics name the slot of their host, and every signed message the slot of the hosts that it is for. So a console can
//! subscribe to its slots alone, and none can give another one's hosts a message by mistake.

use std::{fmt, str::FromStr};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::name::{HostId, NameError};

/// One of the [`Slot::COUNT`] slots; as text, two hexadecimal digits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct Slot(pub u8);

impl Slot {
    /// How many slots there are.
    pub const COUNT: usize = 256;
}

impl HostId {
    /// Returns the slot of this host: the first byte of the SHA-256 of the 16 bytes of its id. It never changes.
    #[must_use]
    pub fn slot(self) -> Slot {
        let digest = ring::digest::digest(&ring::digest::SHA256, self.0.as_bytes());
        Slot(digest.as_ref().first().copied().unwrap_or_default())
    }
}

impl fmt::Display for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:02x}", self.0)
    }
}

impl FromStr for Slot {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        let is_digit = |byte: &u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(byte);
        let value = (text.len() == 2 && text.as_bytes().iter().all(is_digit)).then(|| u8::from_str_radix(text, 16));
        let value = value.and_then(Result::ok);
        value.map(Self).ok_or_else(|| crate::name::error("slot", text, "use two of 0-9 and a-f"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slot_of_a_host_is_fixed() {
        for (host, slot) in [
            ("00000000-0000-0000-0000-000000000000", "37"),
            ("00000000-0000-0000-0000-000000000001", "7c"),
            ("ffffffff-ffff-ffff-ffff-ffffffffffff", "5a"),
            ("0e2c1a4e-6a61-4a1c-9d0f-0d6d5a8f1f52", "00"),
            ("11111111-6a61-4a1c-9d0f-0d6d5a8f1f52", "62"),
        ] {
            let host: HostId = host.parse().unwrap();
            assert_eq!(host.slot().to_string(), slot, "{host}");
        }
    }

    #[test]
    fn slot_has_one_text() {
        for value in 0..=u8::MAX {
            assert_eq!(Slot(value).to_string().parse(), Ok(Slot(value)));
        }
        for text in ["", "0", "000", "0A", "+f", " f", "é"] {
            assert!(text.parse::<Slot>().is_err(), "{text:?}");
        }
        assert_eq!(serde_json::to_string(&Slot(171)).unwrap(), "171");
    }
}
