//! Writes the configs of a revision to files: merged into one, and each by itself.
//!
//! They lie in `rev/<revision>/`: `config.json`, which `MUSTER_CONFIG` names, and `<id>.json` for each config. All
//! are written into a new folder, which then replaces the present one in one step; so
//! a reader finds either all old or all new files. `.muster.json` records what was written, and which values are secret.
//!
//! **Invariant: a file that may hold a secret is readable by the unit's user alone**, and its content never leaves this module unmasked.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, OpenOptions},
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

use muster_base::{
    files::{PASSABLE_FOLDER, SECRET_MODE, make_folder, sync_folder},
    mount::remove_folder,
};
use muster_rules::{checked, config, process::MERGED};
use muster_topics::{
    canonical,
    effective::Effective,
    name::{Digest, UnitName},
    unit::ConfigRef,
};
use rustix::{
    fs::{CWD, RenameFlags, renameat_with},
    io::Errno,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::unit::given_secrets::texts_of;

/// The record of what was written and which parts are secret. It stays the agent's own.
const RECORD: &str = ".muster.json";

/// The content of `.muster.json`.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct MaterialsRecord {
    revision: Digest,
    configs: Vec<ConfigRef>,
    /// The SHA-256 of each file.
    files: BTreeMap<String, Digest>,
    /// Where the merged file has secrets, and which.
    secrets: Vec<(String, Value)>,
    /// The secrets of what is rendered when it is started, by name: of its environment, and of templates in configs that name
    /// endpoints. A host that starts without a network has no other source.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    in_environment: BTreeMap<String, String>,
}

/// The folder of one revision's configs.
pub(super) struct Materials {
    folder: PathBuf,
}

impl Materials {
    pub(super) fn new(folder: PathBuf) -> Self {
        Self { folder }
    }

    /// The merged config's file.
    pub(super) fn merged(&self) -> PathBuf {
        self.folder.join(file_name(MERGED))
    }

    /// Whether these configs are there, unchanged, and these secrets for the start. The secrets are those of the revision.
    pub(super) fn are_there(&self, configs: &[ConfigRef], secrets: &BTreeSet<String>) -> bool {
        self.record().is_ok_and(|record| {
            let has_all = secrets.iter().all(|name| record.in_environment.contains_key(name));
            record.configs == configs && has_all && self.changed(&record).is_empty()
        })
    }

    /// Returns the secrets of what is rendered when it is started, by name.
    pub(super) fn secrets_at_start(&self) -> BTreeMap<String, String> {
        self.record().map(|record| record.in_environment).unwrap_or_default()
    }

    /// The files that it consists of, with these configs.
    pub(super) fn paths(&self, configs: &[ConfigRef]) -> Vec<PathBuf> {
        let names = [RECORD.to_owned(), file_name(MERGED)].into_iter();
        let own = configs.iter().map(|config| file_name(config.id.as_str()));
        names.chain(own).map(|name| self.folder.join(name)).collect()
    }

    /// Returns files that differ from what was written.
    pub(super) fn changed_files(&self) -> Vec<String> {
        self.record().map_or_else(|_| vec![RECORD.to_owned()], |record| self.changed(&record))
    }

    /// Returns all values of secrets in it.
    pub(super) fn values(&self) -> Vec<String> {
        let Ok(record) = self.record() else { return Vec::new() };
        let inline = record.secrets.iter().flat_map(|(_, secret)| texts_of(secret));
        inline.chain(record.in_environment.into_values()).collect()
    }

    /// Writes the configs, each with its document, in place of existing ones.
    ///
    /// # Errors
    /// If they cannot be written; the existing ones are unchanged then.
    pub(super) fn write(
        &self,
        revision: &Digest,
        configs: &[(ConfigRef, Value)],
        in_environment: BTreeMap<String, String>,
    ) -> io::Result<()> {
        let merged = config::merge(configs.iter().map(|(_, document)| document.clone()));
        let mut files = vec![(file_name(MERGED), bytes(&merged)?)];
        for (config, document) in configs {
            files.push((file_name(config.id.as_str()), bytes(document)?));
        }
        let record = MaterialsRecord {
            revision: revision.clone(),
            configs: configs.iter().map(|(config, _)| config.clone()).collect(),
            files: files.iter().map(|(name, content)| (name.clone(), Digest::of(content))).collect(),
            secrets: config::secrets(&merged),
            in_environment,
        };
        files.push((RECORD.to_owned(), checked::to_text(&record)?.into_bytes()));
        let fresh = self.fresh()?;
        for (name, content) in &files {
            write_new(&fresh.join(name), content)?;
        }
        sync_folder(&fresh)?;
        self.swap(&fresh)
    }

    /// Creates an empty folder beside this one.
    fn fresh(&self) -> io::Result<PathBuf> {
        let name = self.folder.file_name().unwrap_or_default().to_string_lossy();
        let fresh = self.folder.with_file_name(format!(".{name}.new"));
        remove_folder(&fresh)?;
        make_folder(&fresh, PASSABLE_FOLDER)?;
        Ok(fresh)
    }

    /// Exchanges a folder with this one atomically.
    fn swap(&self, fresh: &Path) -> io::Result<()> {
        if !self.folder.exists() {
            fs::rename(fresh, &self.folder)?;
        } else {
            match renameat_with(CWD, fresh, CWD, &self.folder, RenameFlags::EXCHANGE) {
                Ok(()) => {}
                // A file system without this operation: for a moment there is no folder.
                Err(Errno::INVAL | Errno::NOSYS) => {
                    remove_folder(&self.folder)?;
                    fs::rename(fresh, &self.folder)?;
                }
                Err(errno) => return Err(errno.into()),
            }
            remove_folder(fresh)?;
        }
        sync_folder(self.folder.parent().unwrap_or(Path::new(".")))
    }

    /// Every file that the unit's user has to read.
    pub(super) fn readable(&self) -> Vec<PathBuf> {
        let files = self.record().map(|record| record.files).unwrap_or_default();
        files.into_keys().map(|name| self.folder.join(name)).collect()
    }

    /// Returns the present configs, masked.
    ///
    /// # Errors
    /// If none were ever written, or they are unreadable.
    pub(super) fn effective(&self, unit: &UnitName) -> io::Result<Effective> {
        let record = self.record()?;
        let document = fs::read(self.merged()).ok().and_then(|content| serde_json::from_slice::<Value>(&content).ok());
        let config = document.map(|document| config::mask_revealed(&document, &record.secrets));
        Ok(Effective {
            unit: unit.clone(),
            path: self.merged().to_string_lossy().into_owned(),
            changed: self.changed(&record),
            revision: record.revision,
            configs: record.configs,
            config,
        })
    }

    fn record(&self) -> io::Result<MaterialsRecord> {
        let wrong = |problem: String| io::Error::new(io::ErrorKind::InvalidData, problem);
        checked::from_bytes(&fs::read(self.folder.join(RECORD))?).map_err(wrong)
    }

    /// Returns files that differ from what was written.
    fn changed(&self, record: &MaterialsRecord) -> Vec<String> {
        let differs = |(name, digest): &(&String, &Digest)| {
            fs::read(self.folder.join(name)).map_or(true, |content| Digest::of(&content) != **digest)
        };
        record.files.iter().filter(differs).map(|(name, _)| name.clone()).collect()
    }
}

fn file_name(id: &str) -> String {
    format!("{id}.json")
}

/// Formats a document as a program reads it.
fn bytes(document: &Value) -> io::Result<Vec<u8>> {
    canonical::to_bytes(&config::revealed(document)).map_err(io::Error::other)
}

fn write_new(path: &Path, content: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(SECRET_MODE).open(path)?;
    file.write_all(content)?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use muster_topics::unit::MASK;
    use serde_json::json;

    use super::*;

    fn part(id: &str, document: Value) -> (ConfigRef, Value) {
        let sha256 = canonical::digest(&document).unwrap();
        (ConfigRef { id: id.parse().unwrap(), version: "1".parse().unwrap(), sha256 }, document)
    }

    fn refs(configs: &[(ConfigRef, Value)]) -> Vec<ConfigRef> {
        configs.iter().map(|(config, _)| config.clone()).collect()
    }

    fn read(path: &Path) -> Value {
        serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
    }

    #[test]
    fn configs_are_merged_and_lie_there_each_by_itself() {
        let folder = tempfile::tempdir().unwrap();
        let materials = Materials::new(folder.path().join("abc"));
        let revision = Digest::of(b"revision");
        let base =
            part("till.base", json!({"colour": "blue", "db": {"user": "u", "password": {"$secret": "hunter2"}}}));
        let shop = part("shop", json!({"colour": "red", "db": {"user": null}}));
        let configs = [base, shop];
        assert!(!materials.are_there(&refs(&configs), &BTreeSet::new()));
        materials.write(&revision, &configs, BTreeMap::new()).unwrap();
        assert!(materials.are_there(&refs(&configs), &BTreeSet::new()));
        assert!(!materials.are_there(&refs(&configs[..1]), &BTreeSet::new()), "other configs than these");
        let revealed = json!({"colour": "red", "db": {"password": "hunter2"}});
        assert_eq!(read(&materials.merged()), revealed);
        assert_eq!(read(&folder.path().join("abc/shop.json")), configs[1].1);
        assert_eq!(read(&folder.path().join("abc/till.base.json"))["db"]["password"], "hunter2");
        assert_eq!(materials.readable().len(), 3);
        for path in materials.readable() {
            assert_eq!(fs::metadata(path).unwrap().permissions().mode() & 0o777, 0o600);
        }
        let unit = "default/till".parse().unwrap();
        let effective = materials.effective(&unit).unwrap();
        assert_eq!(effective.config, Some(json!({"colour": "red", "db": {"password": MASK}})));
        assert_eq!((effective.revision, effective.configs), (revision, refs(&configs)));
        assert!(effective.changed.is_empty());
    }

    #[test]
    fn what_somebody_changed_is_told_and_written_anew() {
        let folder = tempfile::tempdir().unwrap();
        let materials = Materials::new(folder.path().join("abc"));
        let configs = [part("a", json!({"password": {"$secret": "hunter2-hunter2"}}))];
        let revision = Digest::of(b"revision");
        materials.write(&revision, &configs, BTreeMap::new()).unwrap();
        fs::write(materials.merged(), r#"{"url":"//u:hunter2-hunter2@h"}"#).unwrap();
        let effective = materials.effective(&"default/till".parse().unwrap()).unwrap();
        assert_eq!(
            (effective.config, &effective.changed[..]),
            (Some(json!({"url": MASK})), &["config.json".to_owned()][..])
        );
        assert!(!materials.are_there(&refs(&configs), &BTreeSet::new()));
        materials.write(&revision, &configs, BTreeMap::new()).unwrap();
        assert!(materials.are_there(&refs(&configs), &BTreeSet::new()));
        let left: Vec<_> = fs::read_dir(folder.path()).unwrap().collect();
        assert_eq!(left.len(), 1, "nothing is left beside");
    }

    #[test]
    fn a_reader_never_finds_half_of_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("abc");
        let configs = |n: u32| [part("a", json!({"n": n})), part("b", json!({"m": n}))];
        Materials::new(path.clone()).write(&Digest::of(b"0"), &configs(0), BTreeMap::new()).unwrap();
        let (over, is_over) = std::sync::mpsc::channel::<()>();
        let at = path.clone();
        let reader = std::thread::spawn(move || {
            let mut seen = 0;
            while is_over.try_recv() == Err(std::sync::mpsc::TryRecvError::Empty) {
                // A folder that was opened once shows one state.
                let here = fs::File::open(&at).unwrap();
                let below = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&here));
                let part = |name: &str| fs::read(format!("{below}/{name}.json"));
                // A folder that was exchanged meanwhile is being emptied.
                if let (Ok(_), Ok(a), Ok(b)) = (fs::read(at.join("config.json")), part("a"), part("b")) {
                    let number =
                        |bytes: Vec<u8>, key: &str| serde_json::from_slice::<Value>(&bytes).unwrap()[key].clone();
                    assert_eq!(number(a, "n"), number(b, "m"));
                    seen += 1;
                }
            }
            seen
        });
        for n in 1..200 {
            Materials::new(path.clone()).write(&Digest::of(b"n"), &configs(n), BTreeMap::new()).unwrap();
        }
        drop(over);
        assert!(reader.join().unwrap() > 0);
    }
}
