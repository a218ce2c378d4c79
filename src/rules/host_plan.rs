//! The plan of a host: what a document would change of it, unit by unit. The host makes it ([`muster_topics::command::Verb::Plan`]);
//! the console groups equal ones ([`group`]), and a host that was sent a digest compares its own with it before it begins.
//!
//! **Invariant: a plan has no secret in it**: of what has a secret it says only that it differs.
//!
//! **Invariant: two plans with the same digest show the same.** What is cut because it is long, is cut alike.

pub mod group;
pub mod text_diff;

use std::collections::BTreeMap;

use muster_topics::{canonical, desired::DeploymentName, diagnostic::Diagnostic, name::Digest, name::UnitName};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{cost::ChangeCost, packages::change::PackageChange, spec_comparison::FieldDifference};

/// The longest plan of one deployment on one host. An operator reads a screen of it.
pub const PLAN_MAX_BYTES: usize = 256 * 1024;

/// The longest difference of one file.
pub const DIFF_MAX_BYTES: usize = 16 * 1024;

/// The most paths or packages of a unit that are listed once a plan is too long.
const LISTED_MAX: usize = 50;

/// The answer to [`muster_topics::command::Verb::Plan`], as its output.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct HostPlan {
    /// The deployments that were asked about.
    pub deployments: Vec<DeploymentPlan>,
}

/// What a deployment would change of a host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DeploymentPlan {
    /// The deployment.
    pub deployment: DeploymentName,
    /// The digest of what its version changes. Units that go are not part of it: they go later.
    pub digest: Digest,
    /// The digest of all of it.
    pub whole: Digest,
    /// Why the host would refuse the version; then it changes nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<Diagnostic>,
    /// How many units are changed in which way.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub counts: BTreeMap<UnitAction, u32>,
    /// Its units and those that go, by name; none in a brief answer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub units: Vec<UnitPlan>,
    /// Whether something was left out because it would be too long.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_cut: bool,
}

/// What becomes of a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum UnitAction {
    /// It cannot be as described on this host.
    Refuse,
    /// Another unit of the host wants the same: it is rolled back, or is held.
    Conflict,
    /// It is stopped and removed.
    Remove,
    /// Its process is stopped and a new one started.
    Restart,
    /// A second process is started, and the first stopped once it is up.
    Replace,
    /// It is stopped.
    Stop,
    /// It is new.
    Create,
    /// It is started.
    Start,
    /// Files or packages of the host are changed.
    Change,
    /// Its process goes on and reads its files again.
    Reload,
    /// It is changed, and its process goes on.
    InPlace,
    /// Nothing.
    Unchanged,
}

impl UnitAction {
    /// The words that are shown to people.
    #[must_use]
    pub fn words(self) -> &'static str {
        match self {
            Self::Refuse => "refuse",
            Self::Conflict => "conflict",
            Self::Remove => "remove",
            Self::Restart => "restart",
            Self::Replace => "replace, start first",
            Self::Stop => "stop",
            Self::Create => "create",
            Self::Start => "start",
            Self::Change => "change",
            Self::Reload => "reload",
            Self::InPlace => "in place",
            Self::Unchanged => "unchanged",
        }
    }

    /// Whether something is changed, or is in the way of that.
    #[must_use]
    pub fn is_change(self) -> bool {
        self != Self::Unchanged
    }
}

impl From<ChangeCost> for UnitAction {
    fn from(cost: ChangeCost) -> Self {
        match cost {
            ChangeCost::InPlace => Self::InPlace,
            ChangeCost::Reload => Self::Reload,
            ChangeCost::Restart => Self::Restart,
            ChangeCost::Replace => Self::Replace,
            ChangeCost::Start => Self::Start,
            ChangeCost::Stop => Self::Stop,
        }
    }
}

/// What becomes of a unit, and what that changes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct UnitPlan {
    /// The unit.
    pub unit: UnitName,
    /// What becomes of it.
    pub action: UnitAction,
    /// Why it cannot be, or with whom it conflicts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<Diagnostic>,
    /// The fields of its spec that change, with secrets masked.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fields: Vec<FieldDifference>,
    /// The paths of the host that change.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<FilePlan>,
    /// The packages of the host that change.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub packages: Vec<PackageChange>,
}

impl UnitPlan {
    /// A unit of which only this is known.
    #[must_use]
    pub fn new(unit: UnitName, action: UnitAction) -> Self {
        Self { unit, action, reason: None, fields: Vec::new(), files: Vec::new(), packages: Vec::new() }
    }
}

/// What becomes of a path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FilePlan {
    /// The path.
    pub path: String,
    /// What is there; `None` if nothing is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<PathState>,
    /// What will be there; `None` if nothing will be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<PathState>,
    /// Why it is left as it is, though the unit does not name it any more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left: Option<Diagnostic>,
    /// The unified difference of a text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub diff: Option<String>,
    /// Whether its content has a secret, or is not the unit's own, and is not shown.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_masked: bool,
}

/// What is at a path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PathState {
    /// `file`, `directory` or `link`.
    pub kind: PathKind,
    /// Where a link leads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    /// The digest of a file's content.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256: Option<Digest>,
    /// The size of a file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size_bytes: Option<u64>,
    /// The permissions, in octal; none for a link.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
    /// The number of its owner.
    pub uid: u32,
    /// The number of its group.
    pub gid: u32,
}

/// A kind of thing at a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PathKind {
    /// A file.
    File,
    /// A folder.
    Directory,
    /// A symbolic link.
    Link,
}

impl FilePlan {
    /// Returns what becomes of it on one line, for people.
    #[must_use]
    pub fn sentence(&self) -> String {
        if let Some(why) = &self.left {
            return format!("is left unchanged: {why:#}");
        }
        match (&self.before, &self.after) {
            (None, None) => "unchanged".to_owned(),
            (None, Some(after)) => format!("create {}", after.words()),
            (Some(before), None) => format!("remove {}", before.words()),
            (Some(before), Some(after)) if before.kind != after.kind => {
                format!("replace {} by {}", before.words(), after.words())
            }
            (Some(before), Some(after)) => {
                let mut words = Vec::new();
                if before.to != after.to {
                    let to = |state: &PathState| state.to.clone().unwrap_or_default();
                    words.push(format!("leads to {} → {}", to(before), to(after)));
                }
                if before.sha256 != after.sha256 || before.size_bytes != after.size_bytes {
                    words.push(format!("content {} → {}", before.content_words(), after.content_words()));
                } else if self.is_masked {
                    words.push("content *** → ***".to_owned());
                }
                if before.mode != after.mode {
                    let mode = |state: &PathState| state.mode.clone().unwrap_or_default();
                    words.push(format!("mode {} → {}", mode(before), mode(after)));
                }
                if before.uid != after.uid {
                    words.push(format!("owner {} → {}", before.uid, after.uid));
                }
                if before.gid != after.gid {
                    words.push(format!("group {} → {}", before.gid, after.gid));
                }
                words.join(", ")
            }
        }
    }
}

impl PathState {
    fn words(&self) -> String {
        match self.kind {
            PathKind::File => match self.size_bytes {
                Some(size_bytes) => format!("file ({size_bytes} bytes)"),
                None => "file".to_owned(),
            },
            PathKind::Directory => "folder".to_owned(),
            PathKind::Link => format!("link to {}", self.to.as_deref().unwrap_or_default()),
        }
    }

    fn content_words(&self) -> String {
        match (&self.sha256, self.size_bytes) {
            (Some(sha256), Some(size_bytes)) => format!("{} ({size_bytes} bytes)", sha256.short()),
            (Some(sha256), None) => sha256.short().to_owned(),
            _ => "***".to_owned(),
        }
    }
}

impl DeploymentPlan {
    /// The plan of a deployment with these units, in any order.
    #[must_use]
    pub fn of(deployment: DeploymentName, mut units: Vec<UnitPlan>) -> Self {
        units.sort_by(|one, other| one.unit.cmp(&other.unit));
        let mut counts = BTreeMap::new();
        for unit in &units {
            *counts.entry(unit.action).or_insert(0) += 1;
        }
        let (digest, whole) = digests(None, &units);
        let mut plan = Self { deployment, digest, whole, refused: None, counts, units, is_cut: false };
        plan.cut_to(PLAN_MAX_BYTES);
        plan
    }

    /// The plan of a deployment that the host would refuse.
    #[must_use]
    pub fn refused(deployment: DeploymentName, why: Diagnostic) -> Self {
        let (digest, whole) = digests(Some(&why), &[]);
        let (counts, units) = (BTreeMap::new(), Vec::new());
        Self { deployment, digest, whole, refused: Some(why), counts, units, is_cut: false }
    }

    /// The same without its units.
    #[must_use]
    pub fn brief(self) -> Self {
        Self { units: Vec::new(), ..self }
    }

    /// Whether it changes anything, or something is in the way.
    #[must_use]
    pub fn is_change(&self) -> bool {
        self.refused.is_some() || self.counts.keys().any(|action| action.is_change())
    }

    /// Leaves out differences of files from the end on, then long lists, until it is short enough.
    fn cut_to(&mut self, max_bytes: usize) {
        let length = |plan: &Self| serde_json::to_vec(plan).map_or(usize::MAX, |bytes| bytes.len());
        let mut long_bytes = length(self).saturating_sub(max_bytes);
        let files = self.units.iter_mut().rev().flat_map(|unit| unit.files.iter_mut().rev());
        for file in files {
            if long_bytes == 0 {
                return;
            }
            if let Some(diff) = file.diff.take() {
                long_bytes = long_bytes.saturating_sub(serde_json::to_string(&diff).map_or(0, |text| text.len()));
                self.is_cut = true;
            }
        }
        if length(self) <= max_bytes {
            return;
        }
        self.is_cut = true;
        for unit in &mut self.units {
            unit.files.truncate(LISTED_MAX);
            unit.packages.truncate(LISTED_MAX);
        }
        for unit in self.units.iter_mut().rev() {
            unit.fields.clear();
        }
        let mut left_bytes = length(self);
        while left_bytes > max_bytes
            && let Some(unit) = self.units.pop()
        {
            left_bytes -= serde_json::to_vec(&unit).map_or(0, |bytes| bytes.len()).min(left_bytes);
        }
    }
}

/// Returns the digest of what a version changes, and that of all, with the units that go.
fn digests(refused: Option<&Diagnostic>, units: &[UnitPlan]) -> (Digest, Digest) {
    // The contents are named by their digests, so their differences add nothing.
    let bare = |unit: &UnitPlan| {
        let mut unit = unit.clone();
        unit.files.iter_mut().for_each(|file| file.diff = None);
        unit
    };
    let all: Vec<UnitPlan> = units.iter().filter(|unit| unit.action.is_change()).map(bare).collect();
    let kept: Vec<&UnitPlan> = all.iter().filter(|unit| unit.action != UnitAction::Remove).collect();
    (digest_of(&(refused, kept)), digest_of(&(refused, &all)))
}

fn digest_of<T: Serialize>(content: &T) -> Digest {
    canonical::digest(content).unwrap_or_else(|_| Digest::of(&serde_json::to_vec(content).unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, content: &str, diff: &str) -> FilePlan {
        let state = |content: &str| PathState {
            kind: PathKind::File,
            to: None,
            sha256: Some(Digest::of(content.as_bytes())),
            size_bytes: Some(content.len() as u64),
            mode: Some("0644".to_owned()),
            uid: 0,
            gid: 0,
        };
        FilePlan {
            path: path.to_owned(),
            before: Some(state("before")),
            after: Some(state(content)),
            left: None,
            diff: Some(diff.to_owned()),
            is_masked: false,
        }
    }

    fn unit(name: &str, action: UnitAction) -> UnitPlan {
        UnitPlan::new(name.parse().unwrap(), action)
    }

    fn plan(units: Vec<UnitPlan>) -> DeploymentPlan {
        DeploymentPlan::of("d/x".parse().unwrap(), units)
    }

    #[test]
    fn digest_is_over_what_changes_and_not_over_how_it_is_shown() {
        let with = |content: &str, diff: &str| {
            plan(vec![UnitPlan { files: vec![file("/a", content, diff)], ..unit("d/f", UnitAction::Change) }])
        };
        assert_eq!(with("x", "-a\n+b").digest, with("x", "").digest);
        assert_ne!(with("x", "").digest, with("y", "").digest);
        // Units in another order, and ones that stay as they are, change nothing.
        let (one, two) = (unit("d/a", UnitAction::Restart), unit("d/b", UnitAction::Create));
        let same = plan(vec![two.clone(), unit("d/c", UnitAction::Unchanged), one.clone()]);
        assert_eq!(plan(vec![one.clone(), two.clone()]).digest, same.digest);
        assert_eq!(same.units[0].unit.as_str(), "d/a");
        // What goes counts in the whole alone.
        let gone = plan(vec![one, two, unit("d/gone", UnitAction::Remove)]);
        assert_eq!(gone.digest, same.digest);
        assert_ne!(gone.whole, same.whole);
        assert_ne!(DeploymentPlan::refused("d/x".parse().unwrap(), "no".into()).digest, plan(vec![]).digest);
    }

    #[test]
    fn long_plan_is_cut_from_the_end_and_says_so() {
        let text = "+x\n".repeat(DIFF_MAX_BYTES / 3);
        let files = |count: usize| (0..count).map(|n| file(&format!("/f{n}"), "x", &text)).collect::<Vec<_>>();
        let short = plan(vec![UnitPlan { files: files(3), ..unit("d/f", UnitAction::Change) }]);
        assert!(!short.is_cut && short.units[0].files.iter().all(|file| file.diff.is_some()));
        let long = plan(vec![UnitPlan { files: files(60), ..unit("d/f", UnitAction::Change) }]);
        let length = |plan: &DeploymentPlan| serde_json::to_vec(plan).unwrap().len();
        assert!(long.is_cut && length(&long) <= PLAN_MAX_BYTES, "{}", length(&long));
        let files_of = &long.units[0].files;
        assert!(files_of[0].diff.is_some() && files_of[59].diff.is_none());
        // However much there is.
        let listed: Vec<FilePlan> = (0..100).map(|n| file(&format!("/f{n}"), "x", "+x")).collect();
        let endless: Vec<UnitPlan> = (0..200)
            .map(|n| UnitPlan { files: listed.clone(), ..unit(&format!("d/u{n}"), UnitAction::Change) })
            .collect();
        let endless = plan(endless);
        assert!(endless.is_cut && length(&endless) <= PLAN_MAX_BYTES, "{}", length(&endless));
        assert_eq!(endless.counts[&UnitAction::Change], 200, "all are counted");
    }

    #[test]
    fn change_of_a_path_is_one_line() {
        let mut one = file("/a", "after", "");
        assert!(one.sentence().starts_with("content "), "{}", one.sentence());
        if let Some(after) = &mut one.after {
            (after.mode, after.sha256) = (Some("0600".to_owned()), one.before.as_ref().unwrap().sha256.clone());
            after.size_bytes = one.before.as_ref().unwrap().size_bytes;
        }
        assert_eq!(one.sentence(), "mode 0644 → 0600");
        one.before = None;
        assert_eq!(one.sentence(), "create file (6 bytes)");
        one.left = Some("it was changed outside of muster since".into());
        assert_eq!(one.sentence(), "is left unchanged: it was changed outside of muster since");
    }
}
