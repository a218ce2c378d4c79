//! Decides what is done about one path, given what is there, what should be, and what the journal says of it.
//!
//! **Invariant: what was there before a unit is in its journal before it is replaced**, and stays there until it is put back.
//!
//! **Invariant: once the steps of a plan are done, another plan has none.**

use muster_topics::{diagnostic::Diagnostic, name::Digest};
use serde::{Deserialize, Serialize};

/// What is at a path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Content {
    /// Nothing.
    Absent,
    /// A file with this content.
    File(Digest),
    /// A folder.
    Directory,
    /// A symbolic link that leads there.
    Link(String),
}

impl Content {
    /// What it is, for people.
    #[must_use]
    pub fn noun(&self) -> &'static str {
        match self {
            Self::Absent => "nothing",
            Self::File(_) => "a file",
            Self::Directory => "a folder",
            Self::Link(_) => "a symbolic link",
        }
    }

    fn is_kind_of(&self, other: &Self) -> bool {
        std::mem::discriminant(self) == std::mem::discriminant(other)
    }
}

/// Owner, group and permissions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attributes {
    /// The owner's number.
    pub uid: u32,
    /// The group's number.
    pub gid: u32,
    /// The permissions; those of a link do not count, and are 0.
    pub mode: u32,
}

/// What is at a path, with its attributes; those of nothing are 0.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EntryState {
    /// What is there.
    pub content: Content,
    /// Its attributes.
    pub attributes: Attributes,
}

impl EntryState {
    /// Nothing.
    #[must_use]
    pub fn absent() -> Self {
        Self { content: Content::Absent, attributes: Attributes::default() }
    }
}

/// What was found at a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundEntry {
    /// What is there.
    pub state: EntryState,
    /// Whether it is a folder that is not empty.
    pub is_full: bool,
    /// Whether it is a file that has further names (hard links).
    pub has_other_names: bool,
}

/// What should be at a path. What is not said of its attributes stays as it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WantedEntry {
    /// What should be there.
    pub content: Content,
    /// The owner.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    /// The group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gid: Option<u32>,
    /// The permissions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<u32>,
    /// The attributes of what is made anew.
    pub of_new: Attributes,
}

/// What the journal says of a path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JournalEntry {
    /// What was there before the unit.
    pub original: EntryState,
    /// What the unit has made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub made: Option<EntryState>,
    /// What the unit was about to make, if that was not noted as done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<EntryState>,
    /// Whether it is a folder from which others' files have been removed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_purged: bool,
    /// Whether a secret is in what the unit has made, or was about to make.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_secret: bool,
}

impl JournalEntry {
    /// Whether this content is the unit's own.
    fn is_own(&self, content: &Content) -> bool {
        self.made.iter().chain(&self.next).any(|own| own.content == *content)
    }

    fn latest(&self) -> Option<&EntryState> {
        self.next.as_ref().or(self.made.as_ref())
    }
}

/// A step at a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// What is there is kept as the original.
    Keep,
    /// A file is written and replaces what is there.
    Write,
    /// A link is made and replaces what is there.
    Link,
    /// A folder is made where nothing is.
    MakeDirectory,
    /// Owner, group and permissions are set.
    SetAttributes,
    /// A file or link is removed.
    RemoveFile,
    /// An empty folder is removed.
    RemoveDirectory,
}

/// The steps at a path, and what is there afterwards.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EntryPlan {
    /// The steps, in order; none if all is as it should be.
    pub steps: Vec<Step>,
    /// What is there afterwards.
    pub target: EntryState,
}

/// Decides what is done so that a path is as wanted.
///
/// # Errors
/// If what is there must not be replaced; with the reason, for people.
pub fn plan(wanted: &WantedEntry, found: &FoundEntry, journal: Option<&JournalEntry>) -> Result<EntryPlan, Diagnostic> {
    let target = EntryState { content: wanted.content.clone(), attributes: attributes(wanted, found, journal) };
    let is_first = journal.is_none();
    if is_first && found.state != target {
        check_takeover(&wanted.content, &found.state.content)?;
    }
    let mut steps = if is_first { vec![Step::Keep] } else { Vec::new() };
    steps.extend(steps_to(&target, found)?);
    Ok(EntryPlan { steps, target })
}

/// What a unit may take over that it has not made.
fn check_takeover(wanted: &Content, found: &Content) -> Result<(), Diagnostic> {
    match (wanted, found) {
        (_, Content::Absent) | (Content::Absent, Content::File(_) | Content::Link(_) | Content::Directory) => Ok(()),
        (wanted, found) if wanted.is_kind_of(found) => Ok(()),
        (_, Content::Directory) => {
            Err(Diagnostic::new("there is a folder").with_hint("move it away, or use a path in it"))
        }
        (_, Content::Link(_)) => Err(Diagnostic::new("there is a symbolic link")
            .with_hint("use the path that it leads to, or first apply `absent: true`")),
        (_, Content::File(_)) => {
            Err(Diagnostic::new("there is a file").with_hint("move it away, or first apply `absent: true`"))
        }
    }
}

fn attributes(wanted: &WantedEntry, found: &FoundEntry, journal: Option<&JournalEntry>) -> Attributes {
    if wanted.content == Content::Absent {
        return Attributes::default();
    }
    let own = journal.and_then(JournalEntry::latest).filter(|own| own.content.is_kind_of(&wanted.content));
    let is_same_kind = found.state.content.is_kind_of(&wanted.content);
    let base = match own {
        _ if found.state.content == wanted.content => found.state.attributes,
        Some(own) => own.attributes,
        None if is_same_kind => found.state.attributes,
        None => wanted.of_new,
    };
    let is_link = matches!(wanted.content, Content::Link(_));
    Attributes {
        uid: wanted.uid.unwrap_or(base.uid),
        gid: wanted.gid.unwrap_or(base.gid),
        mode: if is_link { 0 } else { wanted.mode.unwrap_or(base.mode) },
    }
}

/// The steps from what is there to what should be.
fn steps_to(target: &EntryState, found: &FoundEntry) -> Result<Vec<Step>, Diagnostic> {
    let there = &found.state.content;
    if *there == Content::Directory && target.content != Content::Directory && found.is_full {
        return Err(
            Diagnostic::new("there is a folder that is not empty, which is not removed").with_hint("move it away")
        );
    }
    let has_attributes = found.state.attributes == target.attributes;
    Ok(match (&target.content, there) {
        (Content::Absent, Content::Absent) => Vec::new(),
        (Content::Absent, Content::Directory) => vec![Step::RemoveDirectory],
        (Content::Absent, _) => vec![Step::RemoveFile],
        // Attributes of a file are shared by all its names.
        (wanted, there) if wanted == there && (has_attributes || !found.has_other_names) => {
            if has_attributes {
                Vec::new()
            } else {
                vec![Step::SetAttributes]
            }
        }
        (Content::File(_), Content::Directory) => vec![Step::RemoveDirectory, Step::Write],
        (Content::File(_), _) => vec![Step::Write],
        (Content::Link(_), Content::Directory) => vec![Step::RemoveDirectory, Step::Link],
        (Content::Link(_), _) => vec![Step::Link],
        (Content::Directory, Content::Absent) => vec![Step::MakeDirectory],
        (Content::Directory, Content::Directory) => vec![Step::SetAttributes],
        (Content::Directory, _) => vec![Step::RemoveFile, Step::MakeDirectory],
    })
}

/// Decides how a path becomes as it was before the unit.
///
/// # Errors
/// If it is left as it is, because somebody else has changed it; with the reason, for people.
pub fn release(found: &FoundEntry, journal: &JournalEntry) -> Result<EntryPlan, Diagnostic> {
    let target = journal.original.clone();
    let there = &found.state.content;
    let is_own = journal.is_own(there) || *there == journal.original.content || *there == Content::Absent;
    if !is_own {
        return Err("it was changed outside of muster since".into());
    }
    Ok(EntryPlan { steps: steps_to(&target, found)?, target })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn content() -> impl Strategy<Value = Content> {
        prop_oneof![
            Just(Content::Absent),
            prop::sample::select(vec!["a", "b"]).prop_map(|text| Content::File(Digest::of(text.as_bytes()))),
            Just(Content::Directory),
            prop::sample::select(vec!["x", "y"]).prop_map(|to| Content::Link(to.to_owned())),
        ]
    }

    fn state() -> impl Strategy<Value = EntryState> {
        (content(), 0u32..2, 0u32..2, prop::sample::select(vec![0o600, 0o644])).prop_map(|(content, uid, gid, mode)| {
            let mode = if matches!(content, Content::Link(_)) { 0 } else { mode };
            let is_there = content != Content::Absent;
            let attributes = if is_there { Attributes { uid, gid, mode } } else { Attributes::default() };
            EntryState { content, attributes }
        })
    }

    fn found() -> impl Strategy<Value = FoundEntry> {
        (state(), any::<bool>(), any::<bool>()).prop_map(|(state, full, linked)| {
            let is_full = full && state.content == Content::Directory;
            let has_other_names = linked && matches!(state.content, Content::File(_));
            FoundEntry { state, is_full, has_other_names }
        })
    }

    fn wanted() -> impl Strategy<Value = WantedEntry> {
        let number = || prop::option::of(0u32..2);
        (content(), number(), number(), prop::option::of(prop::sample::select(vec![0o600, 0o644]))).prop_map(
            |(content, uid, gid, mode)| {
                let of_new = Attributes { uid: 0, gid: 0, mode: 0o755 };
                WantedEntry { content, uid, gid, mode, of_new }
            },
        )
    }

    /// Performs steps on what was found, as the host would.
    fn perform(plan: &EntryPlan, found: &FoundEntry) -> FoundEntry {
        let mut there = found.clone();
        for step in &plan.steps {
            match step {
                Step::Keep => {}
                Step::Write | Step::Link => {
                    assert_ne!(there.state.content, Content::Directory, "nothing replaces a folder");
                    there = FoundEntry { state: plan.target.clone(), is_full: false, has_other_names: false };
                }
                Step::MakeDirectory => {
                    assert_eq!(there.state.content, Content::Absent);
                    there.state = plan.target.clone();
                }
                Step::SetAttributes => {
                    assert!(!there.has_other_names, "attributes of other names stay");
                    there.state.attributes = plan.target.attributes;
                }
                Step::RemoveFile => {
                    assert!(matches!(there.state.content, Content::File(_) | Content::Link(_)));
                    there = FoundEntry { state: EntryState::absent(), is_full: false, has_other_names: false };
                }
                Step::RemoveDirectory => {
                    assert!(there.state.content == Content::Directory && !there.is_full);
                    there.state = EntryState::absent();
                }
            }
        }
        there
    }

    /// What the journal has once the steps are done.
    fn noted(plan: &EntryPlan, before: &FoundEntry, journal: Option<JournalEntry>) -> JournalEntry {
        let original = journal.map_or_else(|| before.state.clone(), |journal| journal.original);
        JournalEntry { original, made: Some(plan.target.clone()), next: None, is_purged: false, is_secret: false }
    }

    proptest! {
        #[test]
        fn plan_converges_and_original_comes_back(before in found(), wanted in wanted(), later in wanted()) {
            let Ok(first) = plan(&wanted, &before, None) else { return Ok(()) };
            prop_assert_eq!(first.steps[0], Step::Keep, "the original is kept first");
            let there = perform(&first, &before);
            prop_assert_eq!(&there.state, &first.target);
            let journal = noted(&first, &before, None);
            prop_assert_eq!(plan(&wanted, &there, Some(&journal)).unwrap().steps, vec![]);
            // Another revision of the unit.
            if let Ok(second) = plan(&later, &there, Some(&journal)) {
                prop_assert!(!second.steps.contains(&Step::Keep));
                let there = perform(&second, &there);
                let journal = noted(&second, &before, Some(journal.clone()));
                prop_assert_eq!(plan(&later, &there, Some(&journal)).unwrap().steps, vec![]);
                let back = release(&there, &journal).unwrap();
                prop_assert_eq!(&perform(&back, &there).state, &before.state);
            }
            if let Ok(back) = release(&there, &journal) {
                prop_assert_eq!(perform(&back, &there).state, before.state);
            }
        }

        #[test]
        fn crash_between_intent_and_note_is_mended(before in found(), wanted in wanted(), is_done: bool) {
            let Ok(first) = plan(&wanted, &before, None) else { return Ok(()) };
            let there = if is_done { perform(&first, &before) } else { before.clone() };
            let journal = JournalEntry {
                original: before.state.clone(),
                made: None,
                next: Some(first.target.clone()),
                is_purged: false,
                is_secret: false,
            };
            let again = plan(&wanted, &there, Some(&journal)).unwrap();
            prop_assert_eq!(&again.target, &first.target);
            prop_assert_eq!(perform(&again, &there).state, first.target);
            let back = release(&there, &journal).unwrap();
            prop_assert_eq!(perform(&back, &there).state, before.state);
        }

        #[test]
        fn drift_is_put_right_or_refused(before in found(), wanted in wanted(), drifted in found()) {
            let Ok(first) = plan(&wanted, &before, None) else { return Ok(()) };
            let journal = noted(&first, &before, None);
            match plan(&wanted, &drifted, Some(&journal)) {
                Ok(again) => prop_assert_eq!(perform(&again, &drifted).state, again.target),
                Err(_) => prop_assert!(drifted.is_full),
            }
            if let Ok(back) = release(&drifted, &journal) {
                let own = [&wanted.content, &before.state.content, &Content::Absent];
                prop_assert!(own.contains(&&drifted.state.content), "what others have made is not removed");
                prop_assert_eq!(perform(&back, &drifted).state, before.state);
            }
        }
    }

    #[test]
    fn others_things_are_not_replaced_by_another_kind() {
        let at = |content| FoundEntry {
            state: EntryState { content, attributes: Attributes::default() },
            is_full: false,
            has_other_names: false,
        };
        let want = |content| WantedEntry {
            content,
            uid: None,
            gid: None,
            mode: None,
            of_new: Attributes { uid: 7, gid: 8, mode: 0o644 },
        };
        let file = || Content::File(Digest::of(b"a"));
        let link = || Content::Link("x".to_owned());
        for (wanted, there) in [
            (file(), Content::Directory),
            (file(), link()),
            (link(), file()),
            (link(), Content::Directory),
            (Content::Directory, file()),
            (Content::Directory, link()),
        ] {
            assert!(plan(&want(wanted.clone()), &at(there.clone()), None).is_err(), "{wanted:?} over {there:?}");
        }
        let fresh = plan(&want(file()), &at(Content::Absent), None).unwrap();
        assert_eq!(fresh.steps, [Step::Keep, Step::Write]);
        assert_eq!(fresh.target.attributes, Attributes { uid: 7, gid: 8, mode: 0o644 });
    }
}
