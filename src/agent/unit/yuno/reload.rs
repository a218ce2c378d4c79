//! Applies changes to a running process: its limits, its configs, and files outside that it reads.
//!
//! A reloadable unit finds its configs behind the link `config`, which points to the folder of its revision and
//! is swapped at once; any other has the path of its revision's own folder, which never changes.
//!
//! **Invariant: a revision is recorded as the running one only after the process was told**, so that an agent that
//! is killed in between tells it again rather than never.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    time::Duration,
};

use muster_rules::plan::{Failure, Slot};
use muster_topics::{
    diagnostic::Diagnostic,
    name::{Digest, UnitName},
    process::Limits,
    reload::Reload,
    unit::{Desired, YunoSpec},
};
use ring::digest::{Context, SHA256};

use super::super::failure::{blocking, may_heal};
use super::{
    Yunos,
    launch::find_user,
    of_yuno,
    place::{InstanceFolder, StartRecord},
};
use crate::{
    cgroup,
    unit::kind::{InstanceRequest, Signaller},
};

/// The largest watched file: a certificate, a list, a key; each is read every 30 s.
const WATCHED_MAX_BYTES: u64 = 16 * 1024 * 1024;

/// How long a process may take to read its files again and confirm it.
const ANSWER_MAX: Duration = Duration::from_secs(20);

/// The state of watched files when they were last read: the hash, or `None` if missing.
pub(super) type WatchedFiles = BTreeMap<String, Option<Digest>>;

impl Yunos {
    /// See [`crate::unit::kind::UnitKind::reload`].
    pub(super) async fn reload_unit(
        &self,
        (unit, slot): (&UnitName, Slot),
        desired: &Desired,
        keep: Option<&Digest>,
        signal: &Signaller<'_>,
    ) -> Result<bool, Failure> {
        let spec = of_yuno(&desired.spec)?;
        let place = self.place(unit, slot);
        let Ok(started) = place.started() else { return Ok(false) };
        let limits = started.limits;
        if started.frame != desired.spec.frame().ok() {
            return Ok(false);
        }
        if let Err(why) = self.change_limits(&place, spec, &started, limits) {
            tracing::warn!(%unit, why = why.cause, hint = why.hint, "its limits cannot be changed while it runs, so it is restarted");
            return Ok(false);
        }
        if !has_other_configs(desired, &started, limits) {
            // The path that it reads stays the same.
            self.install(unit, desired, keep, &|_| ()).await?;
            if !spec.reload.is_restart() {
                self.prepare_to_read(&place, spec, &desired.revision, &started)?;
            }
            let reads = started.reads.clone().or_else(|| Some(started.revision.clone()));
            let (revision, bare) = (desired.revision.clone(), desired.spec.revision().ok());
            let changed = StartRecord { revision, bare, limits: spec.program.limits, reads, ..started };
            place.write_started(&changed)?;
            tracing::info!(%unit, revision = desired.revision.short(), "its limits were changed in place");
            return Ok(true);
        }
        self.install(unit, desired, keep, &|_| ()).await?;
        self.prepare_to_read(&place, spec, &desired.revision, &started)?;
        if !self.tell((unit, slot), spec, spec.reload, signal).await? || place.started().ok().as_ref() != Some(&started)
        {
            return Ok(false);
        }
        let (revision, bare) = (desired.revision.clone(), desired.spec.revision().ok());
        place.write_started(&StartRecord { revision, bare, limits: spec.program.limits, reads: None, ..started })?;
        tracing::info!(%unit, revision = desired.revision.short(), "its configs were changed, and it reloads them");
        Ok(true)
    }

    /// Points the link to the configs of a revision.
    fn prepare_to_read(
        &self,
        place: &InstanceFolder,
        spec: &YunoSpec,
        revision: &Digest,
        started: &StartRecord,
    ) -> Result<(), Failure> {
        place.wire(revision, spec, &started.wiring)?;
        if let Some(user) = find_user(spec)? {
            place.give_to(revision, &user)?;
        }
        place.lead_to(revision)
    }

    /// Sets the desired limits of the running instance.
    fn change_limits(
        &self,
        place: &InstanceFolder,
        spec: &YunoSpec,
        started: &StartRecord,
        before: Limits,
    ) -> Result<(), Diagnostic> {
        if before == spec.program.limits {
            return Ok(());
        }
        if spec.container.is_some() {
            return Err("it runs in a container".into());
        }
        if let Some(missing) = started.missing.first() {
            return Err(missing.clone().within("it has no reload signal"));
        }
        // Where it was started, which need not be where it would be now.
        Ok(cgroup::change_limits(&place.cgroup(), &before, &spec.program.limits)?)
    }

    /// See [`crate::unit::kind::UnitKind::check_watched_files`].
    pub(super) async fn look_at_files(
        &self,
        (unit, slot): (&UnitName, Slot),
        desired: &Desired,
        signal: &Signaller<'_>,
    ) -> Result<bool, Failure> {
        let spec = of_yuno(&desired.spec)?;
        let place = self.place(unit, slot);
        let Ok(started) = place.started() else { return Ok(true) };
        if started.revision != desired.revision {
            // It is about to be replaced anyway.
            return Ok(true);
        }
        let wanted = spec.clone();
        let now = blocking(move || Ok(watched(&wanted))).await?;
        // A file that was not watched before counts as read.
        let changed = |path: &String| started.watched.get(path).is_some_and(|then| *then != now[path]);
        let action = |wanted| spec.on_change.iter().any(|one| one.action == wanted && changed(&one.path));
        // A restart covers all of them.
        for wanted in [Reload::Restart, Reload::Channel, Reload::Signal].into_iter().filter(|wanted| action(*wanted)) {
            if !self.tell((unit, slot), spec, wanted, signal).await? {
                tracing::info!(%unit, "a file outside has changed; it is restarted");
                return Ok(false);
            }
            tracing::info!(%unit, "a file outside has changed, and it reloads");
        }
        if now != started.watched && place.started().ok().as_ref() == Some(&started) {
            place.write_started(&StartRecord { watched: now, ..started })?;
        }
        Ok(true)
    }
}

impl Yunos {
    /// Has a process read its files again; returns false if it must be restarted for that.
    async fn tell(
        &self,
        (unit, slot): (&UnitName, Slot),
        spec: &YunoSpec,
        how: Reload,
        signal: &Signaller<'_>,
    ) -> Result<bool, Failure> {
        match how {
            Reload::Restart => Ok(false),
            Reload::Signal => signal(spec.reload_signal).await.map(|()| true),
            Reload::Channel => match self.switchboard.ask(unit, slot, InstanceRequest::Reload, ANSWER_MAX).await {
                Ok(_) => Ok(true),
                Err(complaint) => {
                    let Diagnostic { cause: why, hint, .. } = complaint.diagnostic;
                    tracing::warn!(%unit, code = complaint.code, why, hint, "it does not reload its files");
                    Ok(false)
                }
            },
        }
    }
}

/// Whether it differs from what was started in more than its limits.
fn has_other_configs(desired: &Desired, started: &StartRecord, limits: Limits) -> bool {
    let mut before = desired.spec.as_ref().clone();
    if let Some(program) = before.program_mut() {
        program.limits = limits;
    }
    before.revision().ok() != started.bare
}

/// Returns the state of watched files. An unreadable one counts as missing.
pub(super) fn watched(spec: &YunoSpec) -> WatchedFiles {
    spec.on_change.iter().map(|one| (one.path.clone(), digest_of(Path::new(&one.path)).ok())).collect()
}

fn digest_of(path: &Path) -> io::Result<Digest> {
    // Opening a pipe would wait for a writer.
    let metadata = fs::metadata(path)?;
    if !metadata.is_file() || metadata.len() > WATCHED_MAX_BYTES {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut hash = Context::new(&SHA256);
    let mut content = io::Read::take(File::open(path)?, WATCHED_MAX_BYTES);
    let mut buffer = vec![0; 64 * 1024];
    loop {
        match io::Read::read(&mut content, &mut buffer)? {
            0 => return Ok(Digest::from_ring(hash.finish())),
            count => hash.update(&buffer[..count]),
        }
    }
}

impl InstanceFolder {
    /// Where the link leads that leads to this revision's configs.
    pub(super) fn revision_link(&self, revision: &Digest) -> PathBuf {
        Path::new("rev").join(revision.short())
    }

    /// Where the link leads.
    pub(super) fn leads_to(&self) -> Option<PathBuf> {
        fs::read_link(self.link()).ok()
    }

    /// Points the link to this revision's configs atomically.
    pub(super) fn lead_to(&self, revision: &Digest) -> Result<(), Failure> {
        let link = self.link();
        let target = self.revision_link(revision);
        if fs::read_link(&link).is_ok_and(|present| present == target) {
            return Ok(());
        }
        let fresh = link.with_file_name(".config.new");
        let _ = fs::remove_file(&fresh);
        std::os::unix::fs::symlink(target, &fresh)
            .and_then(|()| fs::rename(&fresh, &link))
            .and_then(|()| muster_base::files::sync_folder(&self.folder))
            .map_err(|error| may_heal(format!("cannot create {}: {error}", link.display())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_watched_by_their_content() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.pem");
        assert!(digest_of(&path).is_err() && digest_of(folder.path()).is_err());
        fs::write(&path, "a").unwrap();
        assert_eq!(digest_of(&path).unwrap(), Digest::of(b"a"));
        fs::write(&path, vec![b'x'; 200_000]).unwrap();
        assert_eq!(digest_of(&path).unwrap(), Digest::of(&vec![b'x'; 200_000]));
        nix::unistd::mkfifo(&folder.path().join("pipe"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert!(digest_of(&folder.path().join("pipe")).is_err());
    }

    #[test]
    fn limits_alone_differ_whether_a_revision_is_keyed_or_not() {
        let key = muster_topics::revision::RevisionKey::from_bytes([1; 32]);
        let unit = "a/till".parse().unwrap();
        let spec = |memory_bytes, config: &[u8]| {
            let artifact = serde_json::json!({
                "sha256": Digest::of(b"a"), "size_bytes": 1, "role": "a", "version": "1",
            });
            let mut spec = YunoSpec::new(serde_json::from_value(artifact).unwrap());
            spec.program.env.insert("PIN".to_owned(), "4711".to_owned());
            spec.program.limits.memory_bytes = memory_bytes;
            let config = serde_json::json!([{ "id": "a", "version": "1", "sha256": Digest::of(config) }]);
            spec.configs = serde_json::from_value(config).unwrap();
            muster_topics::unit::Spec::Yuno(spec)
        };
        let desired = |spec: muster_topics::unit::Spec| Desired {
            generation: 1,
            revision: key.revision(&unit, &spec).unwrap(),
            spec: spec.into(),
            run: muster_topics::unit::Run::Running,
            frozen: false,
        };
        let before = spec(None, b"1");
        let bare = before.revision().unwrap();
        let started = |revision: &Digest| StartRecord {
            revision: revision.clone(),
            bare: Some(bare.clone()),
            artifact: Digest::of(b"a"),
            missing: Vec::new(),
            frame: None,
            limits: Limits::default(),
            reads: None,
            watched: WatchedFiles::default(),
            wiring: muster_rules::port_lease::EndpointWiring::default(),
        };
        let keyed = desired(before).revision;
        for started in [started(&bare), started(&keyed)] {
            let differs = |spec| has_other_configs(&desired(spec), &started, Limits::default());
            assert!(!differs(spec(Some(1 << 20), b"1")), "{started:?}");
            assert!(differs(spec(Some(1 << 20), b"2")), "{started:?}");
        }
    }

    #[test]
    fn the_link_leads_to_one_revision_or_the_other() {
        let folder = tempfile::tempdir().unwrap();
        let shims = crate::shim_folders::ShimFolders::on_disk(folder.path());
        let place = InstanceFolder { folder: folder.path().to_owned(), slot: Slot::First, shims };
        for name in ["one", "other", "one"] {
            let revision = Digest::of(name.as_bytes());
            place.lead_to(&revision).unwrap();
            assert_eq!(fs::read_link(folder.path().join("config")).unwrap(), Path::new("rev").join(revision.short()));
        }
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
