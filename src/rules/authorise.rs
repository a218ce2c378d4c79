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
    diagnostic::Diagnostic,
    name::{Name, UnitName},
    outcome::RefusalCode,
    select,
    unit::Spec,
    verb_table::VerbName,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{CommandRefusal, time::KnownTime};

mod environment;

pub use environment::{DANGEROUS, Variables};

/// A value that passed [`check`].
#[derive(Debug)]
pub struct Authorised<T>(T);

impl<T> Authorised<T> {
    /// Returns the checked value.
    #[must_use]
    pub fn get(&self) -> &T {
        &self.0
    }

    /// Returns the checked value.
    #[must_use]
    pub fn into_inner(self) -> T {
        self.0
    }
}

/// What this host's own configuration forbids, whatever the console signs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct LocalPolicy {
    /// Verbs that are denied on this host.
    pub deny_verbs: BTreeSet<VerbName>,
    /// Realms whose units must not be changed on this host.
    pub deny_realms: BTreeSet<Name>,
    /// Users that no program may run as, by name. A command without a user runs as the agent's own. If any are denied,
    /// no command may give a user as a number, since it cannot be resolved to a name here.
    pub deny_users: BTreeSet<String>,
    /// Variables that no command may set, in addition to those that make a program load other code (`LD_*` and the
    /// like), which are denied by default.
    pub deny_env: BTreeSet<Variables>,
    /// Variables that commands may set although they make a program load other code. `deny_env` wins over this.
    pub allow_env: BTreeSet<Variables>,
}

impl LocalPolicy {
    /// Combines two policies: everything that either denies by name, and those of [`DANGEROUS`] that neither allows.
    #[must_use]
    pub fn and(mut self, other: Self) -> Self {
        self.deny_verbs.extend(other.deny_verbs);
        self.deny_realms.extend(other.deny_realms);
        self.deny_users.extend(other.deny_users);
        self.deny_env.extend(other.deny_env);
        self.allow_env.extend(other.allow_env);
        self
    }

    /// Returns the refusal if the realm is denied.
    #[must_use]
    pub fn forbids_realm(&self, realm: &Name) -> Option<CommandRefusal> {
        if !self.deny_realms.contains(realm) {
            return None;
        }
        refuse(RefusalCode::Denied, format!("this host's own policy forbids the realm {realm}"))
    }

    /// Returns the refusal if no program may run as this user.
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
            Diagnostic::new("this host's own policy forbids some users by name")
                .with_hint("use the user's name instead of a number"),
        )
    }
}

/// What a command is checked against.
#[derive(Clone, Copy, Debug)]
pub struct JudgeContext<'a> {
    /// This host, with its current labels and facts.
    pub host: &'a select::Host<'a>,
    /// The realms that exist on this host.
    pub realms: &'a BTreeSet<Name>,
    /// The host's local policy.
    pub policy: &'a LocalPolicy,
    /// The user that the agent runs as.
    pub user: &'a str,
    /// When the agent's store was created.
    pub created_ms: Millis,
    /// The time of a loss of that store, if there was one: whether a command issued before it is new cannot be known.
    pub lost_ms: Option<Millis>,
    /// What is known of the time apart from the clock.
    pub time: KnownTime,
    /// The host's clock.
    pub clock_ms: Millis,
}

/// The kind of topic on which a command arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommandSource {
    /// The host's own topic.
    Own,
    /// A topic that many hosts read.
    Broadcast,
}

/// The result of [`check`].
#[derive(Debug)]
pub enum CommandVerdict {
    /// The command may run.
    Granted(Authorised<Command>),
    /// The command is refused, and its sender gets the reason.
    Refused(Command, CommandRefusal),
    /// The command is for other hosts: no answer.
    NotMine,
    /// The command appears expired, but only by signed times that may come from a console whose clock was ahead. No
    /// answer until the console confirms the time; the console sends the command again.
    Later(Command),
}

/// The fields that every version of a command has, so that a command with an unknown verb can be refused instead of
/// ignored.
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

/// Checks a command whose signature is valid.
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

/// Returns the refusal of a command of which only the head can be parsed, or nothing if it is for other hosts.
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

/// The longest message of another party that an answer includes.
const MESSAGE_MAX_BYTES: usize = 4 * 1024;

/// Returns the beginning of a text that came from outside.
fn shortened(text: &str) -> &str {
    let mut end = text.len().min(MESSAGE_MAX_BYTES);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

fn refuse(code: RefusalCode, message: impl Into<Diagnostic>) -> Option<CommandRefusal> {
    Some(CommandRefusal::new(code, message))
}

/// How to answer a command that is not for this host.
#[derive(Debug)]
enum OtherHostReason {
    /// No answer: it was sent to many hosts.
    Silence,
    /// A refusal: it was sent to this host alone, and its sender waits.
    Refused(CommandRefusal),
}

/// Checks whether a command is for other hosts. The host is matched as it is now, so a command that is sent again may
/// find the host changed. That does no harm if it was accepted before: the journal answers then.
fn elsewhere(target: &Target, channel: CommandSource, host: &select::Host<'_>) -> Option<OtherHostReason> {
    if target.includes(host) {
        return None;
    }
    if channel == CommandSource::Broadcast {
        return Some(OtherHostReason::Silence);
    }
    let (code, message) = match target {
        Target::Hosts(_) | Target::All => {
            (RefusalCode::WrongHost, "the command is for other hosts and was sent on this host's topic".to_owned())
        }
        Target::Group(label) => (RefusalCode::NotSelected, format!("this host has no label {label} now")),
        Target::Select(select) => (RefusalCode::NotSelected, format!("this host does not match {select} now")),
    };
    Some(OtherHostReason::Refused(CommandRefusal::new(code, message)))
}

/// Whether the only evidence against a command is an unconfirmed signed time, or a store with a creation time in the
/// future.
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
        return refuse(RefusalCode::Invalid, "the command is valid for more than seven days");
    }
    if judge.lost_ms.is_some_and(|lost_ms| issued_ms <= lost_ms) && !planted!(ObeyBeforeStore) {
        return refuse(
            RefusalCode::SetBack,
            Diagnostic::new(
                "the agent's store was set back or lost since the command was issued, so nothing \
                 shows whether it was run before",
            )
            .with_hint("check whether it was run; if not, send it again"),
        );
    }
    if issued_ms < judge.created_ms && !planted!(ObeyBeforeStore) {
        return refuse(
            RefusalCode::Replayed,
            Diagnostic::new(
                "the command was issued before this agent's store was made, so nothing shows whether it was run before",
            )
            .with_hint("send it again; if that does not help, compare the clocks of host and console"),
        );
    }
    if !judge.time.believes(issued_ms, judge.clock_ms) {
        return refuse(
            RefusalCode::Invalid,
            Diagnostic::new("the command is dated more than a day ahead of this host's time")
                .with_hint("compare the clocks of host and console"),
        );
    }
    let now_ms = judge.time.now_ms(judge.clock_ms);
    if now_ms > expires_ms && !planted!(ObeyExpired) {
        let late_s = (now_ms - expires_ms) / 1000;
        return refuse(RefusalCode::Expired, format!("the command expired {late_s} s before it could begin"));
    }
    None
}

/// Returns the refusal of a command on a shared topic that may carry secrets.
fn exposed(command: &Command, channel: CommandSource) -> Option<CommandRefusal> {
    let broadcast = channel == CommandSource::Broadcast || command.target.broadcast().is_some();
    let secret = command.verb.secret().filter(|_| broadcast)?;
    refuse(
        RefusalCode::Invalid,
        Diagnostic::new(format_args!("a broadcast cannot have {secret}, because every host reads it"))
            .with_hint("name the hosts one by one"),
    )
}

fn forbidden(command: &Command, judge: &JudgeContext<'_>) -> Option<CommandRefusal> {
    let (policy, verb) = (judge.policy, &command.verb);
    if policy.deny_verbs.contains(&verb.row().permission) {
        return refuse(RefusalCode::Denied, format!("this host's own policy forbids the verb {}", verb.name()));
    }
    if let Some(refusal) = realms(verb).iter().find_map(|realm| policy.forbids_realm(realm)) {
        return Some(refusal);
    }
    for realm in verb.units().into_iter().chain(verb.containers()).map(UnitName::realm) {
        // A realm that comes with the command exists from then on.
        let comes_along = command.realms.iter().any(|told| told.name == realm);
        if !comes_along && !judge.realms.contains(&realm) {
            return Some(unknown_realm(&realm));
        }
    }
    let mut environments = verb.execs().iter().map(|exec| &exec.env);
    environments
        .find_map(|env| policy.forbids_environment(env))
        .or_else(|| users(verb).into_iter().find_map(|user| policy.forbids_user(user.unwrap_or(judge.user))))
}

fn unknown_realm(realm: &Name) -> CommandRefusal {
    let message = Diagnostic::new(format_args!("this host does not carry the realm {realm}"))
        .with_hint(format_args!("`muster realm create {realm}`, or add it to the agent's `realms`"));
    CommandRefusal::new(RefusalCode::Denied, message)
}

/// Returns the refusal if units of a deployment must not be on this host: what is forbidden for `unit_apply` is forbidden for
/// them.
#[must_use]
pub fn forbids_units<'a>(
    policy: &LocalPolicy,
    units: impl IntoIterator<Item = (&'a UnitName, &'a Spec)>,
    has_realm: impl Fn(&Name) -> bool,
    user: &str,
) -> Option<CommandRefusal> {
    if policy.deny_verbs.contains(&VerbName::UnitApply) {
        return refuse(RefusalCode::Denied, "this host's own policy forbids the verb unit_apply");
    }
    units.into_iter().find_map(|(unit, spec)| {
        let realm = unit.realm();
        let refusal = policy.forbids_realm(&realm);
        refusal
            .or_else(|| (!has_realm(&realm)).then(|| unknown_realm(&realm)))
            .or_else(|| policy.forbids_user(spec.host_user().unwrap_or(user)))
    })
}

/// Returns the realms that a verb is about.
fn realms(verb: &Verb) -> Vec<Name> {
    match verb {
        Verb::RealmSet { realm } | Verb::RealmRm { realm } => vec![realm.clone()],
        // A daemon becomes a unit of this realm.
        Verb::Exec(exec) if exec.daemon => {
            verb.containers().map(UnitName::realm).chain([Name::default_realm()]).collect()
        }
        other => other.units().into_iter().chain(other.containers()).map(UnitName::realm).collect(),
    }
}

/// Returns the users that a verb makes programs run as; `None` is the agent's own.
fn users(verb: &Verb) -> Vec<Option<&str>> {
    match verb {
        Verb::UnitApply { .. } | Verb::UnitsApply(_) => verb.specs().map(|(_, spec)| spec.host_user()).collect(),
        other => other.execs().iter().map(|exec| exec.user.as_deref()).collect(),
    }
}

#[cfg(test)]
mod tests;
