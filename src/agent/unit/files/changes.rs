//! What a revision, or that the unit goes, would change of the host.

use std::{
    collections::HashMap,
    fs::File,
    io::{Read, Take},
    path::Path,
    sync::Arc,
};

use muster_rules::{
    files::plan::{Content, EntryState},
    host_plan::{DIFF_MAX_BYTES, FilePlan, PLAN_MAX_BYTES, PathKind, PathState, text_diff},
    plan::Failure,
};
use muster_topics::{
    name::{Digest, UnitName},
    unit::Desired,
};
use rustix::fs::fstat;

use super::{
    blobs::PackedContent,
    confine::Place,
    examine::open_file,
    staged::StagedRevision,
    state::FilesState,
    survey::{PathRole, SurveyedPath},
};
use crate::unit::failure::blocking;

/// The longest text that is compared line by line.
const TEXT_MAX_BYTES: u64 = 256 * 1024;

impl FilesState {
    /// Looks at everything as [`FilesState::apply_alone`] does, and returns what would change, by path. Files are not checked by
    /// their validators: these are programs.
    pub(super) async fn changes(
        self: &Arc<Self>,
        unit: &UnitName,
        desired: Option<&Desired>,
    ) -> Result<Vec<FilePlan>, Failure> {
        let staged = match desired {
            None => None,
            Some(desired) => Some(match self.ready(unit, &desired.revision) {
                Some(staged) => staged,
                None => self.make(unit, desired, &|_| ()).await?,
            }),
        };
        let before = self.journal(unit).await?;
        let packed = staged.as_ref().map(StagedRevision::packed).unwrap_or_default();
        let paths = self.survey(unit, staged.map(Arc::new), before).await?;
        let state = self.clone();
        blocking(move || {
            let mut paths: Vec<&SurveyedPath> = paths.iter().collect();
            paths.sort_by(|one, other| one.path.cmp(&other.path));
            let mut left_bytes = PLAN_MAX_BYTES;
            Ok(paths.into_iter().filter_map(|one| state.change(one, &packed, &mut left_bytes)).collect())
        })
        .await
    }

    /// `left_bytes`: how much of differences is shown yet.
    fn change(
        &self,
        one: &SurveyedPath,
        packed: &HashMap<Digest, PackedContent>,
        left_bytes: &mut usize,
    ) -> Option<FilePlan> {
        let SurveyedPath { path, found, plan, role, is_secret, .. } = one;
        let left = if let PathRole::Left(why) = role { Some(why.clone()) } else { None };
        if left.is_none() && (!one.is_change() || found.state == plan.target) {
            return None;
        }
        let place = self.confinement.open(Path::new(path)).ok();
        let open = |sha256: &Digest| self.open_content(sha256, packed.get(sha256)).ok();
        let size_there =
            || fstat(open_file(place.as_ref()?).ok()?).ok().and_then(|stat| u64::try_from(stat.st_size).ok());
        let size_new = |sha256: &Digest| Some(open(sha256)?.limit());
        let before = state_of(&found.state, *is_secret, |_| size_there());
        let after = state_of(&plan.target, *is_secret, size_new);
        let is_other = found.state.content != plan.target.content;
        let is_shown = !*is_secret && left.is_none() && *left_bytes > 0;
        let diff = if is_shown { text_difference(one, place.as_ref(), open) } else { None };
        *left_bytes = left_bytes.saturating_sub(diff.as_ref().map_or(0, String::len));
        let is_masked = *is_secret && is_other && matches!(plan.target.content, Content::File(_));
        let after = if left.is_some() { before.clone() } else { after };
        Some(FilePlan { path: path.clone(), before, after, left, diff, is_masked })
    }
}

/// How the text at a path would change; `None` if it does not, or is no text.
fn text_difference(
    one: &SurveyedPath,
    place: Option<&Place>,
    open: impl Fn(&Digest) -> Option<Take<File>>,
) -> Option<String> {
    let (before, after) = (&one.found.state.content, &one.plan.target.content);
    if before == after {
        return None;
    }
    let old = match before {
        Content::File(_) => {
            let file = open_file(place?).ok()?;
            let size_bytes = file.metadata().ok()?.len();
            text(file.take(size_bytes))?
        }
        _ => String::new(),
    };
    let new = match after {
        Content::File(sha256) => text(open(sha256)?)?,
        // What is removed is not shown.
        _ => return None,
    };
    Some(text_diff::unified(&old, &new, DIFF_MAX_BYTES))
}

/// Returns the text of a file; `None` if it is long, or no text.
fn text(mut content: Take<File>) -> Option<String> {
    if content.limit() > TEXT_MAX_BYTES {
        return None;
    }
    let mut text = String::new();
    content.read_to_string(&mut text).ok()?;
    (!text.contains('\0')).then_some(text)
}

fn state_of(state: &EntryState, is_secret: bool, size: impl Fn(&Digest) -> Option<u64>) -> Option<PathState> {
    let (kind, to, content) = match &state.content {
        Content::Absent => return None,
        Content::Directory => (PathKind::Directory, None, None),
        Content::Link(to) => (PathKind::Link, Some(to.clone()), None),
        Content::File(sha256) => (PathKind::File, None, Some(sha256)),
    };
    let shown = content.filter(|_| !is_secret);
    let mode = (kind != PathKind::Link).then(|| format!("{:04o}", state.attributes.mode));
    let (uid, gid) = (state.attributes.uid, state.attributes.gid);
    Some(PathState { kind, to, sha256: shown.cloned(), size_bytes: shown.and_then(size), mode, uid, gid })
}
