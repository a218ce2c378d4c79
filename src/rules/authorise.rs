//! Decides whether a command is allowed on this host, now.
//!
//! The signature is checked before ([`muster_topics::envelope::open`]), and repetition after, by the
//! journal. All checks in between are here.
//!
//! **Invariant: only [`check`] makes an [`Authorised`]**, and the executor accepts nothing else.

use std::collections::BTreeSet;

use muster_fault::planted;
use muster_topics::{
    Millis,
    command::{Command, LIFETIME_MAX_MS, Target, Verb},
    name::{Name, UnitName},
    outcome::RefusalCode,
    select,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{CommandRefusal, time::KnownTime};

mod environment;

pub use environment::{DANGEROUS, Variables};

/// Something that [`check`] has let through.
#[derive(Debug)]
pub struct Authorised<T>(T);

impl<T> Authorised<T> {
    /// What was let through.
    #[must_use]
    pub fn get(&self) -> &T {
        &self.0
    }

    /// What was let through.
    #[must_use]
    pub fn into_inner(self) -> T {
        self.0
    }
}

/// What the agent forbids whatever the console says.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct LocalPolicy {
    /// Verbs that nobody may use on this host.
    pub deny_verbs: BTreeSet<VerbName>,
    /// Realms whose units nobody may touch on this host.
    pub deny_realms: BTreeSet<Name>,
    /// Users that no program may run as, by name. The agent's own user counts where a command names none.
    /// With any of them, no command may give a user as a number: nobody can tell here whose that is.
    pub deny_users: BTreeSet<String>,
    /// Variables that no command may set, beside those that have a program load other code (`LD_*` and the like), which none may set anyway.
    pub deny_env: BTreeSet<Variables>,
    /// Variables that commands may set although they have a program load other code. What is denied is denied all the same.
    pub allow_env: BTreeSet<Variables>,
}

impl LocalPolicy {
    /// Forbids what either forbids by name, and of [`DANGEROUS`] what neither allows.
    #[must_use]
    pub fn and(mut self, other: Self) -> Self {
        self.deny_verbs.extend(other.deny_verbs);
        self.deny_realms.extend(other.deny_realms);
        self.deny_users.extend(other.deny_users);
        self.deny_env.extend(other.deny_env);
        self.allow_env.extend(other.allow_env);
        self
    }

    /// The refusal of anything about a realm that nobody may touch.
    #[must_use]
    pub fn forbids_realm(&self, realm: &Name) -> Option<CommandRefusal> {
        if !self.deny_realms.contains(realm) {
            return None;
        }
        refuse(RefusalCode::Denied, format!("this host's own policy forbids the realm {realm}"))
    }

    /// The refusal of a program of a user that nothing may run as.
    #[must_use]
    pub fn forbids_user(&self, user: &str) -> Option<CommandRefusal> {
        if self.deny_users.contains(user) {
            return refuse(RefusalCode::Denied, format!("this host's own policy forbids programs of the user {user}"));
        }
        if self.deny_users.is_empty() || user.parse::<u32>().is_err() {
            return None;
        }
        refuse(
            RefusalCode::Denied,
            "this host's own policy forbids some users by name. hint: give the user by name, not as a number",
        )
    }
}

/// The names of verbs, so that a policy with a misspelt one is an error rather than a permission.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "each is the verb of its name")]
pub enum VerbName {
    Exec,
    UnitApply,
    UnitRun,
    UnitStop,
    UnitRestart,
    UnitHold,
    UnitUnhold,
    UnitRetire,
    UnitLabel,
    UnitUpgrade,
    UnitFreeze,
    UnitThaw,
    UnitSignal,
    UnitRm,
    UnitLogs,
    UnitConfig,
    UnitPlay,
    UnitPause,
    UnitCommand,
    UnitStats,
    UnitFollow,
    Cancel,
    RealmSet,
    RealmRm,
    SnapshotTake,
    SnapshotLs,
    SnapshotDiff,
    SnapshotActivate,
    SnapshotDeactivate,
    SnapshotRm,
}

impl From<&Verb> for VerbName {
    fn from(verb: &Verb) -> Self {
        match verb {
            // Who forbids programs does not mean one by one.
            Verb::Exec(_) | Verb::Batch(_) => Self::Exec,
            // As with programs: to apply is to apply.
            Verb::UnitApply { .. } | Verb::UnitsApply(_) => Self::UnitApply,
            Verb::UnitRun { .. } => Self::UnitRun,
            Verb::UnitStop { .. } => Self::UnitStop,
            Verb::UnitRestart { .. } => Self::UnitRestart,
            Verb::UnitHold { .. } => Self::UnitHold,
            Verb::UnitUnhold { .. } => Self::UnitUnhold,
            Verb::UnitRetire { .. } => Self::UnitRetire,
            Verb::UnitLabel { .. } => Self::UnitLabel,
            Verb::UnitUpgrade { .. } => Self::UnitUpgrade,
            Verb::UnitFreeze { .. } => Self::UnitFreeze,
            Verb::UnitThaw { .. } => Self::UnitThaw,
            Verb::UnitSignal { .. } => Self::UnitSignal,
            Verb::UnitRm { .. } => Self::UnitRm,
            Verb::UnitLogs { .. } => Self::UnitLogs,
            Verb::UnitConfig { .. } => Self::UnitConfig,
            Verb::UnitPlay { .. } => Self::UnitPlay,
            Verb::UnitPause { .. } => Self::UnitPause,
            Verb::UnitCommand(_) => Self::UnitCommand,
            Verb::UnitStats { .. } => Self::UnitStats,
            Verb::UnitFollow { .. } => Self::UnitFollow,
            Verb::Cancel { .. } => Self::Cancel,
            Verb::RealmSet { .. } => Self::RealmSet,
            Verb::RealmRm { .. } => Self::RealmRm,
            Verb::SnapshotTake { .. } => Self::SnapshotTake,
            Verb::SnapshotLs => Self::SnapshotLs,
            Verb::SnapshotDiff { .. } => Self::SnapshotDiff,
            Verb::SnapshotActivate { .. } => Self::SnapshotActivate,
            Verb::SnapshotDeactivate { .. } => Self::SnapshotDeactivate,
            Verb::SnapshotRm { .. } => Self::SnapshotRm,
        }
    }
}

/// What a command is judged by.
#[derive(Clone, Copy, Debug)]
pub struct JudgeContext<'a> {
    /// This host, as it is now.
    pub host: &'a select::Host<'a>,
    /// The realms that it carries.
    pub realms: &'a BTreeSet<Name>,
    /// What its owner forbids.
    pub policy: &'a LocalPolicy,
    /// The agent's own user.
    pub user: &'a str,
    /// When the agent's store was made.
    pub created_ms: Millis,
    /// If that store has lost something: what was issued by then cannot be known to be new.
    pub lost_ms: Option<Millis>,
    /// What is known of the time.
    pub time: KnownTime,
    /// What the clock shows.
    pub clock_ms: Millis,
}

/// Where a command came in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommandSource {
    /// On the host's own topic.
    Own,
    /// On one that many hosts read.
    Broadcast,
}

/// What is to become of a command.
#[derive(Debug)]
pub enum CommandVerdict {
    /// It is done.
    Granted(Authorised<Command>),
    /// It is not, and its sender hears why.
    Refused(Command, CommandRefusal),
    /// It is for others: silence.
    NotMine,
    /// By times alone that the console may have signed while its clock was ahead, it has expired: silence, until the console's fresh word
    /// about the time has come. The console sends it again.
    Later(Command),
}

/// The part of a command that every version of it has, so that one with a verb that this agent does
/// not know is refused rather than passed over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommandHead {
    /// See [`Command::id`].
    pub id: muster_topics::name::CommandId,
    /// See [`Command::target`].
    pub target: Target,
    /// See [`Command::issued_ms`].
    pub issued_ms: Millis,
    /// See [`Command::expires_ms`].
    pub expires_ms: Millis,
}

impl muster_topics::envelope::Body for CommandHead {
    const KIND: muster_topics::envelope::Kind = muster_topics::envelope::Kind::Command;
}

/// Judges a command whose signature is good.
#[must_use]
pub fn check(command: Command, channel: CommandSource, judge: &JudgeContext<'_>) -> CommandVerdict {
    if let Some(elsewhere) = elsewhere(&command.target, channel, judge.host) {
        return match elsewhere {
            OtherHostReason::Silence => CommandVerdict::NotMine,
            OtherHostReason::Refused(refusal) => CommandVerdict::Refused(command, refusal),
        };
    }
    if is_in_doubt(&command, judge) {
        return CommandVerdict::Later(command);
    }
    let refusal =
        wrong_time(&command, judge).or_else(|| exposed(&command, channel)).or_else(|| forbidden(&command, judge));
    match refusal {
        Some(refusal) => CommandVerdict::Refused(command, refusal),
        None => CommandVerdict::Granted(Authorised(command)),
    }
}

/// The refusal of a command of which only the head can be read; nothing if it is for others.
#[must_use]
pub fn not_understood(
    head: &CommandHead,
    channel: CommandSource,
    host: &select::Host<'_>,
    reason: &str,
) -> Option<CommandRefusal> {
    match elsewhere(&head.target, channel, host) {
        Some(OtherHostReason::Silence) => None,
        Some(OtherHostReason::Refused(refusal)) => Some(refusal),
        None => {
            refuse(RefusalCode::Invalid, format!("this agent does not understand the command: {}", shortened(reason)))
        }
    }
}

/// The longest text of an answer that somebody else wrote.
const MESSAGE_MAX_BYTES: usize = 4 * 1024;

/// The first part of a text that came from outside.
fn shortened(text: &str) -> &str {
    let mut end = text.len().min(MESSAGE_MAX_BYTES);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

fn refuse(code: RefusalCode, message: impl Into<String>) -> Option<CommandRefusal> {
    Some(CommandRefusal::new(code, message))
}

/// What is said about a command that is not for this host.
#[derive(Debug)]
enum OtherHostReason {
    /// Nothing: it came to everybody.
    Silence,
    /// Its sender thinks that it is, and waits.
    Refused(CommandRefusal),
}

/// Whether a command is for others. It is judged by what the host is at this moment: one that is sent again may find
/// the host changed. That is no matter where it was let in before, for the journal answers that.
fn elsewhere(target: &Target, channel: CommandSource, host: &select::Host<'_>) -> Option<OtherHostReason> {
    if target.includes(host) {
        return None;
    }
    if channel == CommandSource::Broadcast {
        return Some(OtherHostReason::Silence);
    }
    let (code, message) = match target {
        Target::Hosts(_) | Target::All => {
            (RefusalCode::WrongHost, "the command is for other hosts, and came on this host's topic".to_owned())
        }
        Target::Group(label) => (RefusalCode::NotSelected, format!("this host has no label {label} now")),
        Target::Select(select) => (RefusalCode::NotSelected, format!("this host is not picked now by {select}")),
    };
    Some(OtherHostReason::Refused(CommandRefusal::new(code, message)))
}

/// Whether only a signed time that nothing has confirmed speaks against a command, or a store that was made at a time that has not come yet.
fn is_in_doubt(command: &Command, judge: &JudgeContext<'_>) -> bool {
    let by_clock_ms = KnownTime::by_clock_ms(judge.clock_ms);
    let expired = judge.time.now_ms(judge.clock_ms) > command.expires_ms && by_clock_ms <= command.expires_ms;
    let replayed = command.issued_ms < judge.created_ms && by_clock_ms < judge.created_ms;
    !judge.time.is_sure() && (expired || replayed)
}

fn wrong_time(command: &Command, judge: &JudgeContext<'_>) -> Option<CommandRefusal> {
    let (issued_ms, expires_ms) = (command.issued_ms, command.expires_ms);
    let lifetime_ms = expires_ms.saturating_sub(issued_ms);
    if lifetime_ms <= 0 {
        return refuse(RefusalCode::Invalid, "the command expires before it was issued");
    }
    if lifetime_ms > LIFETIME_MAX_MS {
        return refuse(RefusalCode::Invalid, "the command lives longer than seven days");
    }
    if judge.lost_ms.is_some_and(|lost_ms| issued_ms <= lost_ms) && !planted!(ObeyBeforeStore) {
        return refuse(
            RefusalCode::SetBack,
            "the agent's store went back or was lost since the command was issued, so nothing shows whether it was done \
             before. hint: look whether it was, and send it anew if not",
        );
    }
    if issued_ms < judge.created_ms && !planted!(ObeyBeforeStore) {
        return refuse(
            RefusalCode::Replayed,
            "the command was issued before this agent's store was made, so nothing shows whether it was done before. \
             hint: send it anew; if that does not help, compare the clocks of host and console",
        );
    }
    if !judge.time.believes(issued_ms, judge.clock_ms) {
        return refuse(
            RefusalCode::Invalid,
            "the command is dated more than a day ahead of this host's time. hint: compare the clocks of host and console",
        );
    }
    let now_ms = judge.time.now_ms(judge.clock_ms);
    if now_ms > expires_ms && !planted!(ObeyExpired) {
        let late_s = (now_ms - expires_ms) / 1000;
        return refuse(RefusalCode::Expired, format!("the command expired {late_s} s before it could be begun"));
    }
    None
}

/// What many read must not carry what may be secret.
fn exposed(command: &Command, channel: CommandSource) -> Option<CommandRefusal> {
    let broadcast = channel == CommandSource::Broadcast || command.target.broadcast().is_some();
    let secret = command.verb.secret().filter(|_| broadcast)?;
    refuse(
        RefusalCode::Invalid,
        format!("a broadcast carries no {secret}, for every host reads it. hint: name the hosts one by one"),
    )
}

fn forbidden(command: &Command, judge: &JudgeContext<'_>) -> Option<CommandRefusal> {
    let (policy, verb) = (judge.policy, &command.verb);
    if policy.deny_verbs.contains(&verb.into()) {
        return refuse(RefusalCode::Denied, format!("this host's own policy forbids the verb {}", verb.name()));
    }
    if let Some(refusal) = realms(verb).iter().find_map(|realm| policy.forbids_realm(realm)) {
        return Some(refusal);
    }
    for realm in verb.units().into_iter().chain(verb.containers()).map(UnitName::realm) {
        // One of which it hears with the command it carries from then on.
        let comes_along = command.realms.iter().any(|told| told.name == realm);
        if !comes_along && !judge.realms.contains(&realm) {
            return refuse(
                RefusalCode::Denied,
                format!(
                    "this host does not carry the realm {realm}. hint: `muster realm create {realm}`, or add it to the \
                     agent's `realms`"
                ),
            );
        }
    }
    let mut environments = verb.execs().iter().map(|exec| &exec.env);
    environments
        .find_map(|env| policy.forbids_environment(env))
        .or_else(|| users(verb).into_iter().find_map(|user| policy.forbids_user(user.unwrap_or(judge.user))))
}

/// The realms that a verb is about.
fn realms(verb: &Verb) -> Vec<Name> {
    match verb {
        Verb::RealmSet { realm } | Verb::RealmRm { realm } => vec![realm.clone()],
        // Its unit will be there.
        Verb::Exec(exec) if exec.daemon => {
            verb.containers().map(UnitName::realm).chain([Name::default_realm()]).collect()
        }
        other => other.units().into_iter().chain(other.containers()).map(UnitName::realm).collect(),
    }
}

/// The users that a verb makes something run as; nothing for the agent's own.
fn users(verb: &Verb) -> Vec<Option<&str>> {
    match verb {
        Verb::UnitApply { .. } | Verb::UnitsApply(_) => verb.specs().map(|(_, spec)| spec.host_user()).collect(),
        other => other.execs().iter().map(|exec| exec.user.as_deref()).collect(),
    }
}

#[cfg(test)]
mod tests;
