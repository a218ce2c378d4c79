//! The table of all files that the roles keep: what becomes of each, and what may be lost with it.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Agent,
    Console,
    Broker,
}

/// What becomes of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Damage {
    Half,
    /// Bits anywhere in it.
    Bits(usize),
    /// Bits where the rows of a database are; its pages still look like pages.
    Payload(usize),
    Empty,
    Deleted,
    Garbage,
    Folder,
    Unreadable,
    Older,
}
pub(super) use Damage::{Bits, Deleted, Empty, Folder, Garbage, Half, Older, Payload, Unreadable};

/// When a file is damaged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum When {
    /// While its role is stopped.
    Stopped,
    /// When its role was killed with commands in flight.
    Killed,
    /// While its role runs, which goes on, and is stopped and started afterwards.
    Running,
}

pub(super) const ALL: [Damage; 10] =
    [Half, Bits(20), Bits(200), Payload(20), Empty, Deleted, Garbage, Folder, Unreadable, Older];
/// What the usual run tries on the largest stores.
pub(super) const FEW: [Damage; 5] = [Half, Bits(20), Payload(20), Deleted, Older];
/// What leaves nothing of a file.
pub(super) const TAKEN: [Damage; 2] = [Empty, Deleted];

/// What of all there is may be gone afterwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lost {
    Nothing,
    /// Commands that were in flight may be refused, since nobody can know whether they were done; none is done twice.
    Certainty,
    /// What the console was told to do, and what it was given: it is nowhere else.
    Ledger,
}

/// What a role does with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Then {
    /// It starts, and its log has these words.
    Starts(Lost, &'static str),
    /// It refuses, and says this beside the path and a hint.
    Refuses(&'static str),
    /// One or the other, as the bits fall.
    Either(Lost),
}
pub(super) use Then::{Either, Refuses, Starts};

/// A store, and what holds for it.
pub(super) struct Row {
    pub(super) role: Role,
    /// Its file in the role's folder; `*` stands for the one name that there is.
    pub(super) file: &'static str,
    /// Whether there is a write-ahead log beside it, which goes with it.
    pub(super) is_database: bool,
    /// What was tried last that fits says what holds.
    pub(super) then: &'static [(&'static [Damage], Then)],
}

pub(super) const fn row(role: Role, file: &'static str, then: &'static [(&'static [Damage], Then)]) -> Row {
    Row { role, file, is_database: false, then }
}

pub(super) const NOTHING: Then = Starts(Lost::Nothing, "");
pub(super) const HOLDS: &[(&[Damage], Then)] = &[(&ALL, NOTHING)];
pub(super) const KEY: &[(&[Damage], Then)] = &[(&ALL, Refuses("hint")), (&[Older], NOTHING)];

/// What a role does not make anew, since it goes on as well without it: a token is taken for the one that the host joined with,
/// the key that lies there for the one in use, and whatever lies in the place of a lock can be locked.
pub(super) const NOT_MADE_ANEW: &[&str] =
    &["token.sha256", "authority/keys.json", "authority/lock", "lock", "data/lock"];

pub(super) const TABLE: &[Row] = &[
    Row {
        role: Role::Agent,
        file: "agent.db",
        is_database: true,
        then: &[
            (&ALL, Starts(Lost::Certainty, "has lost something")),
            (&[Bits(20), Bits(200), Payload(20)], Starts(Lost::Certainty, "")),
        ],
    },
    row(Role::Agent, "agent.db-wal", &[(&ALL, Starts(Lost::Certainty, ""))]),
    row(Role::Agent, "agent.db-shm", &[(&ALL, Starts(Lost::Certainty, ""))]),
    row(
        Role::Agent,
        "agent.mark",
        &[
            (&ALL, Starts(Lost::Certainty, "")),
            (&[Empty, Deleted, Garbage, Folder], Starts(Lost::Certainty, "its mark was deleted")),
        ],
    ),
    row(Role::Agent, "intent/default/keeps.json", HOLDS),
    row(Role::Agent, "host", HOLDS),
    row(Role::Agent, "identity.json", &[(&ALL, Refuses("--replace")), (&[Older], NOTHING)]),
    row(Role::Agent, "token.sha256", HOLDS),
    row(Role::Agent, "instances", HOLDS),
    row(Role::Agent, "sealing.key", HOLDS),
    row(Role::Agent, "reserve", HOLDS),
    row(Role::Agent, "lock", HOLDS),
    row(Role::Agent, "artifacts/*", HOLDS),
    row(Role::Agent, "shim-*", HOLDS),
    row(Role::Agent, "units/default/keeps/run/state.json", HOLDS),
    row(Role::Agent, "units/default/keeps/run/launch.json", HOLDS),
    row(Role::Agent, "units/default/keeps/started.json", HOLDS),
    row(Role::Agent, "units/default/keeps/rev/*/config.json", HOLDS),
    // Both copies are whole again, for the unit was started anew.
    row(Role::Agent, "units/default/keeps/run/started.json", HOLDS),
    row(Role::Agent, "units/default/keeps/rev/*/.muster.json", HOLDS),
    row(Role::Agent, "exec/*.json", HOLDS),
    row(Role::Agent, "exec/*/state.json", HOLDS),
    row(Role::Agent, "exec/*/launch.json", HOLDS),
    Row {
        role: Role::Console,
        file: "console.db",
        is_database: true,
        then: &[
            (&ALL, Either(Lost::Ledger)),
            (&TAKEN, Starts(Lost::Ledger, "the store is new")),
            (&[Older], Starts(Lost::Ledger, "was set back to an older copy")),
            (&[Half, Garbage], Refuses("is damaged")),
            (&[Folder], Refuses("is a folder")),
        ],
    },
    row(Role::Console, "console.db-wal", &[(&ALL, Either(Lost::Ledger))]),
    row(Role::Console, "console.db-shm", &[(&ALL, Either(Lost::Nothing))]),
    row(Role::Console, "authority/authority.key", KEY),
    row(Role::Console, "authority/signing.key", KEY),
    row(Role::Console, "authority/authority.pem", &[(&ALL, Refuses("hint")), (&[Deleted, Older], NOTHING)]),
    row(Role::Console, "authority/keys.json", HOLDS),
    row(Role::Console, "authority/salt.key", HOLDS),
    row(Role::Console, "authority/secrets.key", HOLDS),
    row(Role::Console, "authority/register.json", HOLDS),
    row(Role::Console, "authority/mark.json", HOLDS),
    row(Role::Console, "authority/lock", HOLDS),
    row(Role::Console, "lock", HOLDS),
    row(Role::Console, "reserve", HOLDS),
    row(Role::Console, "revoked.pem", HOLDS),
    row(Role::Console, "web.url", HOLDS),
    row(Role::Console, "artifacts/*", HOLDS),
    Row { role: Role::Console, file: "series.db", is_database: true, then: HOLDS },
    row(Role::Broker, "data/retained.journal", HOLDS),
    row(Role::Broker, "data/lock", HOLDS),
    row(Role::Broker, "certificate.pem", KEY),
    row(Role::Broker, "key.pem", KEY),
    row(Role::Broker, "authority.pem", KEY),
    // Another role's, which the broker reads.
    row(Role::Broker, "../console/revoked.pem", &[(&ALL, Either(Lost::Nothing))]),
    row(Role::Agent, "intent/realms.json", HOLDS),
];

/// What lies in the roles' folders and is no store: named by how it begins.
pub(super) const NO_STORES: &[&str] = &[
    // Sockets, links, working folders of programs, what a shim reads and writes while its program runs.
    "agent/agent.sock",
    "agent/units/default/keeps/work/",
    // The same again, by its own name, and with its ports in it.
    "agent/units/default/keeps/rev/",
    "agent/units/default/keeps/run/socket",
    "agent/units/default/keeps/run/boot.",
    "agent/units/default/keeps/run/lock",
    "agent/units/default/keeps/run/log",
    "agent/units/default/keeps/run/times",
    // Beside the broker's certificate, for a broker elsewhere; this one reads the console's own.
    "broker/revoked.pem",
    "agent/exec/",
    // What was damaged, and put aside.
    "agent/.",
    "console/artifacts/.",
    "console/series.db-",
];

impl Then {
    /// What may be gone if it starts.
    pub(super) fn lost(self) -> Lost {
        match self {
            Starts(lost, _) | Either(lost) => lost,
            Refuses(_) => Lost::Nothing,
        }
    }
}

impl Row {
    pub(super) fn then(&self, damage: Damage) -> Option<Then> {
        self.then.iter().rev().find(|(damages, _)| damages.contains(&damage)).map(|(_, then)| *then)
    }
}
