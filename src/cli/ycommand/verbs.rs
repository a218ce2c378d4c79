//! The table of Yuneta's verbs: their parameters, their translation, and why some have none.
//!
//! **Invariant: every verb of Yuneta's agent is in [`VERBS`]**, so none is unknown: it is executed, or answered with
//! a line that names its replacement. `help` and `--help` are generated from the same table.

use muster_base::failure::Failure;
use serde::Serialize;

use super::{
    line::YunetaLine,
    translate::{self as to, MusterLine, SELECTORS, TranslationContext},
};

/// One of Yuneta's verbs.
#[derive(Clone, Copy, Debug)]
pub(super) struct YunetaVerb {
    pub(super) name: &'static str,
    /// Parameters, without selectors.
    pub(super) takes: &'static [&'static str],
    /// Whether it applies to selected yunos.
    pub(super) selects: bool,
    /// Parameters without effect in muster, each with the reason.
    pub(super) ignores: &'static [(&'static str, &'static str)],
    /// What it does, in one line; for an unsupported verb, its replacement.
    pub(super) says: &'static str,
    /// How it is performed.
    pub(super) does: Translation,
}

/// How a verb is performed.
#[derive(Clone, Copy, Debug)]
pub(super) enum Translation {
    /// By these lines of muster's own.
    Lines(fn(&YunetaLine, &TranslationContext) -> Result<Vec<MusterLine>, Failure>),
    /// By performing the verb that its parameter `command` contains.
    Other,
    /// By printing this table.
    Help,
    /// It is not supported.
    Nothing,
}

impl YunetaVerb {
    /// The verb with this name.
    pub(super) fn find(name: &str) -> Option<&'static Self> {
        VERBS.iter().find(|verb| verb.name == name)
    }

    /// All parameters that have an effect.
    pub(super) fn parameters(&self) -> Vec<&'static str> {
        self.takes.iter().chain(SELECTORS.iter().filter(|_| self.selects)).copied().collect()
    }

    /// Whether other parameters are passed on to the yuno.
    pub(super) fn passes_on(&self) -> bool {
        matches!(self.name, "command-yuno" | "command-agent" | "trace-on-yuno" | "trace-off-yuno")
    }

    /// The entry in `help`.
    pub(super) fn entry(&self) -> HelpEntry {
        let mut parameters: Vec<_> = self.takes.iter().map(|key| format!("{key}=")).collect();
        if self.selects {
            parameters.push("SELECTORS".to_owned());
        }
        if self.passes_on() {
            parameters.push("KEY=VALUE …".to_owned());
        }
        HelpEntry { verb: self.name, parameters, is_done: !matches!(self.does, Translation::Nothing), says: self.says }
    }
}

/// An entry in `help`.
#[derive(Clone, Debug, Serialize)]
pub(super) struct HelpEntry {
    pub(super) verb: &'static str,
    pub(super) parameters: Vec<String>,
    /// Whether it is supported.
    pub(super) is_done: bool,
    pub(super) says: &'static str,
}

/// A verb that is translated to lines of muster's own.
const fn verb(
    name: &'static str,
    takes: &'static [&'static str],
    says: &'static str,
    lines: fn(&YunetaLine, &TranslationContext) -> Result<Vec<MusterLine>, Failure>,
) -> YunetaVerb {
    YunetaVerb { name, takes, selects: false, ignores: &[], says, does: Translation::Lines(lines) }
}

/// A verb that is translated, and applies to selected yunos.
const fn yunos(
    name: &'static str,
    takes: &'static [&'static str],
    says: &'static str,
    lines: fn(&YunetaLine, &TranslationContext) -> Result<Vec<MusterLine>, Failure>,
) -> YunetaVerb {
    YunetaVerb { selects: true, ..verb(name, takes, says, lines) }
}

/// An unsupported verb.
const fn instead(name: &'static str, says: &'static str) -> YunetaVerb {
    YunetaVerb { name, takes: &[], selects: false, ignores: &[], says, does: Translation::Nothing }
}

const fn ignoring(ignores: &'static [(&'static str, &'static str)], verb: YunetaVerb) -> YunetaVerb {
    YunetaVerb { ignores, ..verb }
}

const CONTENT: &[&str] = &["id", "version", "zcontent", "content64", "content"];
const BINARY: &[&str] = &["id", "version", "content64"];
const REALM_ID: &[&str] = &["id", "realm_owner", "realm_name", "realm_role", "realm_env"];
const REALM: &[&str] =
    &["id", "realm_owner", "realm_name", "realm_role", "realm_env", "bind_ip", "parent_realm_id", "realm_disabled"];
const SNAP: &[&str] = &["name", "host"];
const STAYS: &[(&str, &str)] = &[("force", "what a yuno or a snapshot needs stays")];
const NO_SERVICE: &[(&str, &str)] = &[("service", "a yuno reports the numbers of all its parts")];

const CERTIFICATES: &str = "each yuno watches the files it reads (`muster unit create yuno --on-change FILE=signal`), by their content, every 30 s";
const CONSOLES: &str = "there are no terminals on hosts: `muster exec --host HOST -- PROGRAM …` runs a program";
const FILES: &str = "`muster exec --host HOST -- cat FILE` prints a file of a host";
const FOLDERS: &str = "hosts have no folders of this plan: `muster exec --host HOST -- ls -l FOLDER` lists any, `muster unit logs` has logs";
const KILLING: &str = "how a yuno ends is its own (`muster unit create yuno --stop-signal --grace`), and \
                       `kill-yuno signal2kill=9` is for once";
const LEASES: &str = "hosts lease ports to yunos: `muster unit create yuno --provide` says which a yuno has, `muster realm set --bind --ports` where a realm's are, and they go with the yuno";
const NODES: &str = "`muster unit export > FILE` and `muster unit apply FILE` bring units to other hosts";
const OPERATORS: &str = "every signed-in operator may do everything (`muster login ls`), and the \
                         broker's rules limit hosts and observers (`muster broker render`)";

/// All verbs, by name.
pub(super) const VERBS: &[YunetaVerb] = &[
    verb(
        "activate-snap",
        SNAP,
        "make units what they were in a snapshot; only what differs restarts",
        to::activate_snap,
    ),
    instead("authzs", OPERATORS),
    instead("authzs-yuno", OPERATORS),
    instead("cert-sync-now", CERTIFICATES),
    instead("cert-sync-status", CERTIFICATES),
    instead("check-json", "dropped: it was there to debug Yuneta's agent"),
    verb("check-realm", REALM_ID, "show a realm", to::check_realm),
    instead("close-console", CONSOLES),
    YunetaVerb {
        name: "command-agent",
        takes: &["command"],
        selects: false,
        ignores: &[("service", "the agent has one set of verbs, those of `help`")],
        says: "do the verb that command= names, with the other parameters",
        does: Translation::Other,
    },
    yunos("command-yuno", &["service", "command"], "pass a command of their own on to yunos", to::command),
    verb("create-config", CONTENT, "create a config", to::create_config),
    verb("create-realm", REALM, "make a realm", to::create_realm),
    verb(
        "create-yuno",
        &["id", "realm_id", "yuno_role", "yuno_name", "role_version", "name_version", "yuno_tag", "host"],
        "create a yuno of a realm, a binary and a config, which must exist",
        to::create,
    ),
    verb("deactivate-snap", SNAP, "undo the activation of a snapshot", to::deactivate_snap),
    ignoring(STAYS, verb("delete-binary", &["id", "version"], "remove a binary that nothing needs", to::delete_binary)),
    ignoring(STAYS, verb("delete-config", &["id", "version"], "remove a config that nothing needs", to::delete_config)),
    instead("delete-public-service", LEASES),
    verb("delete-realm", REALM_ID, "remove a realm that has no units", to::delete_realm),
    yunos(
        "delete-yuno",
        &["force"],
        "remove yunos that are stopped and disabled; tagged ones with force=1",
        to::delete,
    ),
    instead("dir-local-data", FOLDERS),
    instead("dir-logs", FOLDERS),
    instead("dir-realms", FOLDERS),
    instead("dir-repos", FOLDERS),
    instead("dir-store", FOLDERS),
    instead("dir-yuneta", FOLDERS),
    yunos(
        "disable-yuno",
        &[],
        "hold yunos in their present state: those that do not run are not started",
        |line, world| to::on(line, world, &["unit", "hold"], &[]),
    ),
    instead(
        "edit-config",
        "a version of a config never changes: `view-config`, then `update-config` with another version",
    ),
    instead(
        "edit-yuno-config",
        "a version of a config never changes: `view-yuno-config`, then `update-config` with another version",
    ),
    yunos("enable-yuno", &[], "end the hold of yunos", |line, world| to::on(line, world, &["unit", "unhold"], &[])),
    yunos(
        "find-new-yunos",
        &["create", "force"],
        "show which yunos have newer binaries or configs; create=1 brings them there, force=1 also to older ones",
        to::find_new,
    ),
    YunetaVerb {
        name: "help",
        takes: &["cmd"],
        selects: false,
        ignores: &[],
        says: "print this table, or cmd= of it",
        does: Translation::Help,
    },
    verb("install-binary", BINARY, "create a binary", to::install_binary),
    yunos(
        "kill-yuno",
        &["signal2kill", "force"],
        "stop yunos; signal2kill= sends that signal at once as well, force=1 SIGKILL",
        to::kill,
    ),
    verb("list-binaries", &[], "list binaries", |_, _| to::words(&["artifact", "ls"])),
    verb("list-binaries-instances", &[], "list binaries", |_, _| to::words(&["artifact", "ls"])),
    verb("list-configs", &[], "list configs", |_, _| to::words(&["config", "ls"])),
    verb("list-configs-instances", &[], "list configs", |_, _| to::words(&["config", "ls"])),
    instead("list-consoles", CONSOLES),
    verb("list-public-services", &["realm_id"], "list where yunos listen", to::list_services),
    verb("list-realms", &[], "list realms", |_, _| to::words(&["realm", "ls"])),
    verb("list-snaps", &["host"], "list snapshots", to::list_snaps),
    yunos("list-yunos", &[], "list yunos", to::list),
    yunos("list-yunos-instances", &[], "list yunos", to::list),
    verb("node-uuid", &[], "list hosts with their ids", |_, _| to::words(&["host", "ls"])),
    instead("open-console", CONSOLES),
    yunos("pause-yuno", &[], "have yunos run on without playing", |line, world| {
        to::on(line, world, &["yuno", "pause"], &["--yes"])
    }),
    verb("ping", &[], "list hosts and whether they are online", |_, _| to::words(&["host", "ls"])),
    yunos("play-yuno", &[], "have yunos play", |line, world| to::on(line, world, &["yuno", "play"], &[])),
    instead("read-binary-file", FILES),
    instead("read-file", FILES),
    instead("read-json", FILES),
    instead("replicate-binaries", NODES),
    instead("replicate-node", NODES),
    yunos(
        "run-yuno",
        &["play"],
        "start yunos that are enabled, with their newest configs; play=1 makes them play",
        to::run,
    ),
    yunos("running-bin", &[], "show what one yuno runs", to::show_one),
    yunos("running-keys", &[], "show what one yuno runs, and with which arguments", to::show_one),
    instead("set-graceful-kill", KILLING),
    instead(
        "set-multiple",
        "a name is there once on a host: `create-yuno id=` gives another yuno of the same role another",
    ),
    instead("set-quick-kill", KILLING),
    yunos("set-tag", &["tag"], "give yunos a tag", to::set_tag),
    ignoring(
        &[("description", "a snapshot is known by its name, its time and who took it")],
        verb("shoot-snap", SNAP, "keep what all units of a host should be, under a name", to::shoot_snap),
    ),
    ignoring(
        &[("service", "all that the agent measures of itself is told")],
        verb("stats-agent", &["host", "stats"], "print what agents measure of themselves", to::stats_agent),
    ),
    ignoring(NO_SERVICE, yunos("stats-yuno", &["stats"], "ask yunos for numbers about themselves", to::stats)),
    yunos("top", &[], "list yunos", to::list),
    yunos("trace-off-yuno", &[], "pass `trace-off` on to yunos, as a command of theirs", to::trace),
    yunos("trace-on-yuno", &[], "pass `trace-on` on to yunos, as a command of theirs", to::trace),
    verb(
        "update-binary",
        BINARY,
        "create a binary, and have yunos of its role that do not run take it",
        to::update_binary,
    ),
    verb("update-config", CONTENT, "create a version of a config, which `run-yuno` takes up", to::create_config),
    instead("update-public-service", LEASES),
    verb("update-realm", REALM, "change a realm", to::update_realm),
    instead("upgrade-node", NODES),
    verb("view-config", &["id", "version"], "print a config unchanged", to::view_config),
    yunos("view-yuno-config", &[], "print the configs of yunos as they were created", to::view_yuno_config),
    instead("write-tty", CONSOLES),
];
