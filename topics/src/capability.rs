//! Linux capabilities by name, as `capabilities(7)` lists them.

use std::{borrow::Cow, fmt, str::FromStr};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

/// The names without `CAP_`, by number.
const NAMES: [&str; 41] = [
    "chown",
    "dac_override",
    "dac_read_search",
    "fowner",
    "fsetid",
    "kill",
    "setgid",
    "setuid",
    "setpcap",
    "linux_immutable",
    "net_bind_service",
    "net_broadcast",
    "net_admin",
    "net_raw",
    "ipc_lock",
    "ipc_owner",
    "sys_module",
    "sys_rawio",
    "sys_chroot",
    "sys_ptrace",
    "sys_pacct",
    "sys_admin",
    "sys_boot",
    "sys_nice",
    "sys_resource",
    "sys_time",
    "sys_tty_config",
    "mknod",
    "lease",
    "audit_write",
    "audit_control",
    "setfcap",
    "mac_override",
    "mac_admin",
    "syslog",
    "wake_alarm",
    "block_suspend",
    "audit_read",
    "perfmon",
    "bpf",
    "checkpoint_restore",
];

/// A capability of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Capability(u8);

impl Capability {
    /// Returns its number.
    #[must_use]
    pub fn number(self) -> u8 {
        self.0
    }

    /// Returns the name of a number; the number itself if it has no name here.
    #[must_use]
    pub fn name_of(number: u8) -> Cow<'static, str> {
        NAMES.get(usize::from(number)).map_or_else(|| number.to_string().into(), |name| (*name).into())
    }
}

impl fmt::Display for Capability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&Self::name_of(self.0))
    }
}

impl FromStr for Capability {
    type Err = String;

    /// Parses a name with or without `CAP_`, ignoring case.
    fn from_str(text: &str) -> Result<Self, String> {
        let name = text.to_ascii_lowercase();
        let name = name.strip_prefix("cap_").unwrap_or(&name);
        let number = NAMES.iter().position(|known| *known == name).and_then(|number| u8::try_from(number).ok());
        number.map(Self).ok_or_else(|| {
            let text: String = text.chars().take(32).collect();
            format!("unknown capability {text:?}: use names such as \"net_bind_service\"")
        })
    }
}

impl Serialize for Capability {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Capability {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Cow::<'de, str>::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

impl JsonSchema for Capability {
    fn schema_name() -> Cow<'static, str> {
        "Capability".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "A capability, by its name in capabilities(7), with or without `CAP_`, in any case.",
            "type": "string",
            "pattern": "^[A-Za-z_]{1,32}$",
            "examples": ["net_bind_service"]
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capabilities_parse_by_name_and_number() {
        for (name, wanted) in [
            ("chown", Some((0, "chown"))),
            ("CAP_CHOWN", Some((0, "chown"))),
            ("setuid", Some((7, "setuid"))),
            ("net_bind_service", Some((10, "net_bind_service"))),
            ("Cap_Sys_Admin", Some((21, "sys_admin"))),
            ("checkpoint_restore", Some((40, "checkpoint_restore"))),
            ("", None),
            ("cap_", None),
            ("cap_cap_chown", None),
            ("everything", None),
        ] {
            let found = name.parse::<Capability>().ok().map(|found| (found.number(), found.to_string()));
            assert_eq!(found, wanted.map(|(number, name)| (number, name.to_owned())), "{name}");
        }
        assert_eq!(Capability::name_of(63), "63");
    }
}
