//! Compares what an instance was started from with what was installed, and puts right what differs.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use muster_rules::{
    content_check::{ContentReport, FileCheck},
    plan::{Failure, Slot},
};
use muster_topics::{
    Millis,
    diagnostic::Diagnostic,
    name::{Digest, UnitName},
    unit::YunoSpec,
};

use super::super::failure::{blocking, from_artifact};
use super::{
    Yunos,
    launch::find_user,
    of_yuno,
    place::{InstanceFolder, StartRecord},
};
use crate::{
    artifact::{FileContent, InstalledFiles, uptime_ms},
    metric::ticks_of_ms,
    unit::kind::ContentOrder,
};

/// What was found, and until when all of it was as it should be.
struct FoundContent {
    changed: Vec<Diagnostic>,
    /// Whether the link leads elsewhere.
    is_misled: bool,
    whole_ms: Option<Millis>,
}

impl FoundContent {
    fn add(&mut self, what: impl Into<Diagnostic>, whole_ms: Option<Millis>) {
        let is_first = self.changed.is_empty();
        self.whole_ms = if is_first { whole_ms } else { self.whole_ms.min(whole_ms) };
        self.changed.push(what.into());
    }
}

impl Yunos {
    /// See [`crate::unit::kind::UnitKind::check_content`].
    pub(super) async fn check_content_of(
        &self,
        (unit, slot): (&UnitName, Slot),
        order: &ContentOrder,
    ) -> Result<Option<ContentReport>, Failure> {
        let ContentOrder { running, corrects } = order;
        let spec = of_yuno(&running.spec)?;
        let place = self.place(unit, slot);
        let Ok(started) = place.started() else { return Ok(None) };
        // It is about to be replaced, or was only just.
        if started.revision != running.revision || started.bare != running.spec.revision().ok() {
            return Ok(None);
        }
        let found = self.find_changed(&place, spec, &started).await?;
        let mut report = ContentReport {
            revision: Some(started.revision.clone()),
            whole_ticks: found.whole_ms.map(ticks_of_ms),
            changed: found.changed,
            is_corrected: false,
        };
        if report.changed.is_empty() || !corrects {
            return Ok(Some(report));
        }
        match self.put_right(&place, unit, spec, &started, found.is_misled).await {
            Ok(()) => report.is_corrected = true,
            Err(failure) => report.changed.push(failure.error.within("it cannot be corrected")),
        }
        Ok(Some(report))
    }

    async fn find_changed(
        &self,
        place: &InstanceFolder,
        spec: &YunoSpec,
        started: &StartRecord,
    ) -> Result<FoundContent, Failure> {
        let mut found = FoundContent { changed: Vec::new(), is_misled: false, whole_ms: None };
        let artifact = &spec.artifact;
        let what = format!("artifact {}@{}", artifact.role, artifact.version);
        match self.artifacts.check(artifact).await {
            Ok(FileContent::Whole | FileContent::Unsettled) => {}
            Ok(FileContent::Changed { whole_ms }) => found.add(format!("{what}: its content differs"), whole_ms),
            Err(error) => found.add(format!("{what}: it cannot be read: {error}"), None),
        }
        let installed = self.artifacts.installed();
        let revision = read_revision(spec, started);
        let paths = place.content_paths(revision, spec, started);
        let now_ms = uptime_ms();
        // Each is looked at, so that all are noted as seen.
        let due = paths.iter().filter(|path| installed.next_check(path, now_ms) != FileCheck::Unchanged).count();
        if due > 0 {
            let whole_ms = paths.iter().map(|path| installed.whole_ms(path)).min().flatten();
            for what in compare(installed, place, revision, spec, started, paths).await? {
                found.add(what, whole_ms);
            }
        }
        if !spec.reload.is_restart() && place.leads_to() != Some(place.revision_link(&started.revision)) {
            found.is_misled = true;
            found.add("config: it leads to another folder", None);
        }
        Ok(found)
    }

    /// Fetches and writes everything again that differs. Another revision may be installed meanwhile, so nothing of others is
    /// touched, and the link is put right first, before anything takes long.
    async fn put_right(
        &self,
        place: &InstanceFolder,
        unit: &UnitName,
        spec: &YunoSpec,
        started: &StartRecord,
        is_misled: bool,
    ) -> Result<(), Failure> {
        let revision = read_revision(spec, started);
        if is_misled {
            place.lead_to(&started.revision)?;
        }
        self.artifacts.fetch(&spec.artifact).await.map_err(from_artifact)?;
        let materials = place.materials(revision);
        if let Some((configs, kept)) = self.make_configs(unit, spec, &materials).await? {
            let written = materials.write(revision, &configs, kept);
            written.map_err(|error| place.failure("written", &error))?;
        }
        place.wire(revision, spec, &started.wiring)?;
        let user = if spec.container.is_some() { None } else { find_user(spec)? };
        if let Some(user) = user {
            place.give_to(revision, &user)?;
        }
        Ok(())
    }
}

/// The revision whose configs an instance reads.
fn read_revision<'a>(spec: &YunoSpec, started: &'a StartRecord) -> &'a Digest {
    // Behind the link are those of the revision that it was changed to.
    let reads = started.reads.as_ref().filter(|_| spec.reload.is_restart());
    reads.unwrap_or(&started.revision)
}

/// Compares the configs with what was written; those that are as they should be are noted.
async fn compare(
    installed: &InstalledFiles,
    place: &InstanceFolder,
    revision: &Digest,
    spec: &YunoSpec,
    started: &StartRecord,
    paths: Vec<PathBuf>,
) -> Result<Vec<Diagnostic>, Failure> {
    let len_bytes = |path: &PathBuf| fs::metadata(path).map_or(0, |found| usize::try_from(found.len()).unwrap_or(0));
    installed.wait_for(paths.iter().map(len_bytes).sum()).await;
    let before: Vec<_> = paths.iter().map(|path| crate::artifact::seen(path)).collect();
    let (materials, wired) = (place.materials(revision), place.wired_text(revision, spec, &started.wiring));
    let wired = wired.map(|text| text.map(|text| (place.wired(revision), text)));
    let changed = blocking(move || Ok(materials.changed_files())).await?;
    let another = |name: &str| Diagnostic::new(format_args!("{name}: its content differs"));
    let mut changed: Vec<Diagnostic> = changed.iter().map(|name| another(name)).collect();
    // A config that differs differs with its endpoints, too.
    if changed.is_empty() {
        match wired {
            Ok(Some((path, text))) if !is_text(&path, &text) => {
                changed.push(another("config.json with its endpoints"));
            }
            Ok(_) => {}
            Err(failure) => changed.push(failure.error),
        }
    }
    if changed.is_empty() {
        for (path, identity) in paths.iter().zip(before) {
            if let Some(identity) = identity.filter(|identity| crate::artifact::seen(path) == Some(*identity)) {
                installed.add(path, identity);
            }
        }
    }
    Ok(changed)
}

fn is_text(path: &Path, text: &str) -> bool {
    let read: io::Result<Vec<u8>> = fs::read(path);
    read.is_ok_and(|content| content == text.as_bytes())
}
