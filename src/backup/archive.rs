//! What a backup contains: a tar archive, which begins with a manifest and ends with the sums of all files.
//!
//! | entry | content |
//! |---|---|
//! | `manifest.json` | [`Manifest`] |
//! | `authority/…` | the keys, the root certificate, the register: every file of that folder and of those in it |
//! | `console.db` | the ledger, hosts, units, configs |
//! | `console.toml` | the configuration that the console ran with, to look at |
//! | `artifacts/…`, `series.db` | if asked for |
//! | `sums.json` | [`Sums`] |
//!
//! **Invariant: no entry is written outside of the folder that is restored into**: a name is one to three plain parts.

use std::{
    collections::BTreeSet,
    io::{self, Read, Write},
};

use muster_base::form::FORM;
use muster_topics::{Millis, name::Digest};
use ring::digest::{Context, SHA256};
use serde::{Deserialize, Serialize};

use crate::{
    BackupError,
    age::{Decryptor, Encryptor},
    key::{PrivateKey, PublicKey},
};

/// The present format.
pub const FORMAT: u64 = 1;
/// The suffix of the files' names.
pub const SUFFIX: &str = ".tar.age";
const MANIFEST: &str = "manifest.json";
const SUMS: &str = "sums.json";
/// The longest manifest that is read.
const MANIFEST_MAX_BYTES: u64 = 1 << 20;
/// The longest list of sums that is read: some hundred thousand files.
const SUMS_MAX_BYTES: u64 = 64 << 20;
/// The most files of a backup: as many as the list of sums has room for.
const FILES_MAX: usize = 200_000;
/// The longest part of a name.
const NAME_MAX_BYTES: usize = 200;
/// The mode of files in the archive.
const MODE: u32 = 0o600;

/// What a backup says of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// The format of the archive, [`FORMAT`].
    pub format: u64,
    /// The form of what is in it, [`muster_base::form::FORM`].
    pub form: u16,
    /// The version of the program that made it.
    pub muster: String,
    /// The fleet: SHA-256 of its root certificate.
    pub fleet: Digest,
    /// The id of the console.
    pub console: String,
    /// When the ledger was copied.
    pub taken_ms: Millis,
    /// What is in it.
    pub parts: Vec<Part>,
}

impl Manifest {
    /// The bytes of all parts.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.parts.iter().map(|part| part.bytes).sum()
    }
}

/// A part of a backup.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// Its name: `authority`, `store`, `configuration`, `artifacts` or `series`.
    pub name: String,
    /// The number of its files.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// The sums of all files, in the order of the archive.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sums {
    /// The files.
    pub files: Vec<FileSum>,
}

/// The sum of one file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileSum {
    /// Its name in the archive.
    pub path: String,
    /// Its length.
    pub bytes: u64,
    /// Its SHA-256.
    pub sha256: Digest,
}

/// Writes a backup.
pub struct BackupWriter<W: Write> {
    tar: tar::Builder<Encryptor<W>>,
    sums: Sums,
}

impl<W: Write> std::fmt::Debug for BackupWriter<W> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BackupWriter").field("files", &self.sums.files.len()).finish_non_exhaustive()
    }
}

impl<W: Write> BackupWriter<W> {
    /// Begins one with its manifest, encrypted to these keys.
    ///
    /// # Errors
    /// If it cannot be written, or there is no key.
    pub fn new(out: W, to: &[PublicKey], manifest: &Manifest) -> Result<Self, BackupError> {
        let mut writer = Self { tar: tar::Builder::new(Encryptor::new(out, to)?), sums: Sums::default() };
        let json = serde_json::to_vec_pretty(manifest).map_err(|error| BackupError::writing(error.into()))?;
        writer.put(MANIFEST, json.len() as u64, json.as_slice())?;
        Ok(writer)
    }

    /// Adds a file of exactly so many bytes.
    ///
    /// # Errors
    /// If it is shorter, or cannot be read or written.
    pub fn add(&mut self, path: &str, bytes: u64, content: impl Read) -> Result<(), BackupError> {
        if !is_safe(path) || self.sums.files.len() >= FILES_MAX {
            let source =
                io::Error::new(io::ErrorKind::InvalidInput, "it cannot be in a backup: name or number of files");
            return Err(BackupError::file(path)(source));
        }
        let sha256 = self.put(path, bytes, content)?;
        self.sums.files.push(FileSum { path: path.to_owned(), bytes, sha256 });
        Ok(())
    }

    fn put(&mut self, path: &str, bytes: u64, content: impl Read) -> Result<Digest, BackupError> {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(tar::EntryType::Regular);
        header.set_mode(MODE);
        header.set_size(bytes);
        let mut content = HashingReader { input: content.take(bytes), hash: Context::new(&SHA256), bytes: 0 };
        self.tar.append_data(&mut header, path, &mut content).map_err(BackupError::writing)?;
        if content.bytes != bytes {
            return Err(BackupError::Changed { path: path.to_owned() });
        }
        Ok(Digest::from_ring(content.hash.finish()))
    }

    /// Writes the sums and the end. Returns the sums too.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn finish(mut self) -> Result<(W, Sums), BackupError> {
        let json = serde_json::to_vec(&self.sums).map_err(|error| BackupError::writing(error.into()))?;
        self.put(SUMS, json.len() as u64, json.as_slice())?;
        let encryptor = self.tar.into_inner().map_err(BackupError::writing)?;
        Ok((encryptor.finish().map_err(BackupError::writing)?, self.sums))
    }
}

struct HashingReader<R> {
    input: R,
    hash: Context,
    bytes: u64,
}

impl<R: Read> Read for HashingReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.input.read(buffer)?;
        self.hash.update(buffer.get(..count).unwrap_or_default());
        self.bytes += count as u64;
        Ok(count)
    }
}

/// Whether a name is that of a file in the folder, or in folders in it: plain parts that are not hidden.
fn is_safe(path: &str) -> bool {
    let is_plain = |part: &str| {
        let of = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
        !part.is_empty() && part.len() <= NAME_MAX_BYTES && !part.starts_with('.') && part.bytes().all(of)
    };
    let parts: Vec<&str> = path.split('/').collect();
    (1..=3).contains(&parts.len()) && parts.into_iter().all(is_plain)
}

/// Takes the files of a backup as they are read.
pub trait FileSink {
    /// The manifest, before the first file.
    ///
    /// # Errors
    /// To end reading.
    fn begin(&mut self, manifest: &Manifest) -> Result<(), BackupError>;

    /// A file; all its content has to be read.
    ///
    /// # Errors
    /// To end reading.
    fn file(&mut self, path: &str, content: &mut dyn Read) -> Result<(), BackupError>;
}

/// Reads a whole backup, checks it, and passes its files on. Files that were passed on are only good if this succeeds.
///
/// # Errors
/// If it is no backup, is cut or damaged, none of the keys opens it, or the sink fails.
pub fn read(input: impl Read, keys: &[PrivateKey], sink: &mut impl FileSink) -> Result<(Manifest, Sums), BackupError> {
    let mut archive = tar::Archive::new(Decryptor::new(input, keys)?);
    let mut reading = Reading { manifest: None, found: Sums::default(), names: BTreeSet::new(), said: None };
    for entry in archive.entries().map_err(BackupError::reading)? {
        reading.entry(entry.map_err(BackupError::reading)?, sink)?;
    }
    let mut rest = archive.into_inner();
    // Up to its last chunk, which is the only proof that it is whole.
    let mut buffer = [0; 8 * 1024];
    loop {
        match rest.read(&mut buffer).map_err(BackupError::reading)? {
            0 => break,
            count if buffer.iter().take(count).all(|byte| *byte == 0) => {}
            _ => return Err(BackupError::Damaged("it has data after its end".to_owned())),
        }
    }
    let Reading { manifest, found, said, .. } = reading;
    let manifest = manifest.ok_or(BackupError::NotABackup("it has no manifest"))?;
    match said {
        Some(said) if said == found => Ok((manifest, found)),
        Some(_) => Err(BackupError::Damaged("its files do not match its list of sums".to_owned())),
        None => Err(BackupError::Damaged("it has no list of sums".to_owned())),
    }
}

struct Reading {
    manifest: Option<Manifest>,
    found: Sums,
    names: BTreeSet<String>,
    said: Option<Sums>,
}

impl Reading {
    fn entry(&mut self, mut entry: tar::Entry<'_, impl Read>, sink: &mut impl FileSink) -> Result<(), BackupError> {
        let damaged = |problem: String| BackupError::Damaged(problem);
        let name = String::from_utf8(entry.path_bytes().into_owned()).unwrap_or_default();
        let (bytes, kind) = (entry.size(), entry.header().entry_type());
        if !is_safe(&name) || kind != tar::EntryType::Regular {
            return Err(match self.manifest {
                Some(_) => damaged(format!(
                    "it has an entry that is not a file of a console: {:?}",
                    name.escape_debug().to_string()
                )),
                None => BackupError::NotABackup("it is another kind of archive"),
            });
        }
        if self.said.is_some() {
            return Err(damaged(format!("{name} comes after its list of sums")));
        }
        let Some(_) = &self.manifest else {
            if name != MANIFEST {
                return Err(BackupError::NotABackup("it is another kind of archive"));
            }
            let manifest = manifest(&whole(&mut entry, bytes, MANIFEST_MAX_BYTES)?)?;
            sink.begin(&manifest)?;
            self.manifest = Some(manifest);
            return Ok(());
        };
        if name == SUMS {
            let json = whole(&mut entry, bytes, SUMS_MAX_BYTES)?;
            self.said =
                Some(serde_json::from_slice(&json).map_err(|error| damaged(format!("its list of sums: {error}")))?);
            return Ok(());
        }
        if self.names.len() >= FILES_MAX || !self.names.insert(name.clone()) {
            return Err(damaged(format!("it has {name} twice, or too many files")));
        }
        let mut content = HashingReader { input: &mut entry, hash: Context::new(&SHA256), bytes: 0 };
        sink.file(&name, &mut content)?;
        if content.bytes != bytes {
            return Err(damaged(format!("{name} is shorter than its entry says")));
        }
        let sha256 = Digest::from_ring(content.hash.finish());
        self.found.files.push(FileSum { path: name, bytes, sha256 });
        Ok(())
    }
}

/// Reads a small entry whole.
fn whole(entry: &mut impl Read, bytes: u64, max_bytes: u64) -> Result<Vec<u8>, BackupError> {
    let mut content = Vec::new();
    if bytes <= max_bytes {
        entry.read_to_end(&mut content).map_err(BackupError::reading)?;
    }
    if content.len() as u64 != bytes {
        return Err(BackupError::Damaged("its manifest or its list of sums is cut, or too long".to_owned()));
    }
    Ok(content)
}

/// Parses a manifest, of which a newer version may have made something else.
fn manifest(json: &[u8]) -> Result<Manifest, BackupError> {
    #[derive(Deserialize)]
    struct Format {
        format: u64,
        form: Option<u16>,
        #[serde(default)]
        muster: String,
    }
    let damaged = |error: serde_json::Error| BackupError::Damaged(format!("its manifest: {error}"));
    let Format { format, form, muster } = serde_json::from_slice(json).map_err(damaged)?;
    let muster = muster.chars().filter(char::is_ascii_graphic).take(40).collect();
    if form != Some(FORM) {
        return Err(BackupError::OtherForm { muster });
    }
    if format > FORMAT {
        return Err(BackupError::Newer { found: format, known: FORMAT, muster });
    }
    serde_json::from_slice(json).map_err(damaged)
}

/// Reads the files of a backup to check them, and keeps none.
#[derive(Clone, Copy, Debug, Default)]
pub struct Check;

impl FileSink for Check {
    fn begin(&mut self, _: &Manifest) -> Result<(), BackupError> {
        Ok(())
    }

    fn file(&mut self, _: &str, content: &mut dyn Read) -> Result<(), BackupError> {
        io::copy(content, &mut io::sink()).map(drop).map_err(BackupError::reading)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;

    pub(crate) fn sample(format: u64) -> Manifest {
        let parts = vec![Part { name: "store".to_owned(), files: 1, bytes: 3 }];
        Manifest {
            format,
            form: FORM,
            muster: "9.9".to_owned(),
            fleet: Digest::of(b"root"),
            console: "main".to_owned(),
            taken_ms: 1_700_000_000_000,
            parts,
        }
    }

    pub(crate) fn backup(key: &PrivateKey, manifest: &Manifest, files: &[(String, Vec<u8>)]) -> Vec<u8> {
        let mut writer = BackupWriter::new(Vec::new(), &[key.public()], manifest).unwrap();
        for (path, content) in files {
            writer.add(path, content.len() as u64, content.as_slice()).unwrap();
        }
        writer.finish().unwrap().0
    }

    #[derive(Default)]
    struct Collect(Vec<(String, Vec<u8>)>);

    impl FileSink for Collect {
        fn begin(&mut self, _: &Manifest) -> Result<(), BackupError> {
            Ok(())
        }

        fn file(&mut self, path: &str, content: &mut dyn Read) -> Result<(), BackupError> {
            let mut bytes = Vec::new();
            content.read_to_end(&mut bytes).map_err(BackupError::reading)?;
            self.0.push((path.to_owned(), bytes));
            Ok(())
        }
    }

    /// Encrypts an archive that no console makes.
    fn forged(key: &PrivateKey, write: impl FnOnce(&mut tar::Builder<Vec<u8>>)) -> Vec<u8> {
        let mut builder = tar::Builder::new(Vec::new());
        write(&mut builder);
        let mut encryptor = Encryptor::new(Vec::new(), &[key.public()]).unwrap();
        encryptor.write_all(&builder.into_inner().unwrap()).unwrap();
        encryptor.finish().unwrap()
    }

    fn entry(builder: &mut tar::Builder<Vec<u8>>, path: &str, content: &[u8]) {
        let mut header = tar::Header::new_gnu();
        header.set_size(content.len() as u64);
        header.set_entry_type(tar::EntryType::Regular);
        // The crate refuses names that lead elsewhere.
        let name = &mut header.as_old_mut().name;
        name[..path.len()].copy_from_slice(path.as_bytes());
        header.set_cksum();
        builder.append(&header, content).unwrap();
    }

    #[test]
    fn newer_format_is_named() {
        let key = PrivateKey::generate().unwrap();
        let file = backup(&key, &sample(FORMAT + 1), &[]);
        let error = read(file.as_slice(), &[key], &mut Check).unwrap_err();
        assert!(matches!(&error, BackupError::Newer { found: 2, known: 1, muster } if muster == "9.9"), "{error}");
    }

    #[test]
    fn forged_archives_are_refused() {
        let key = PrivateKey::generate().unwrap();
        let manifest = serde_json::to_vec(&sample(FORMAT)).unwrap();
        let keys = [key.clone()];
        let check = |write: &dyn Fn(&mut tar::Builder<Vec<u8>>), words: &str| {
            let mut taken = Collect::default();
            let error = read(forged(&key, write).as_slice(), &keys, &mut taken).unwrap_err().to_string();
            assert!(error.contains(words), "{words}: {error}");
            taken.0
        };
        for name in ["../../etc/passwd", "/etc/passwd", "authority/../x", "a/b/c/d", ".hidden", "authority/", "a\u{7f}"]
        {
            let taken = check(
                &|tar| {
                    entry(tar, MANIFEST, &manifest);
                    entry(tar, name, b"x");
                },
                "not a file of a console",
            );
            assert_eq!(taken, [], "{name}");
        }
        check(&|tar| entry(tar, "holiday.jpg", b"x"), "another kind");
        check(&|tar| entry(tar, MANIFEST, &manifest), "no list of sums");
        check(
            &|tar| {
                entry(tar, MANIFEST, &manifest);
                entry(tar, "console.db", b"x");
                entry(tar, SUMS, br#"{"files": []}"#);
            },
            "do not match its list",
        );
        check(
            &|tar| {
                entry(tar, MANIFEST, &manifest);
                entry(tar, "console.db", b"x");
                entry(tar, "console.db", b"y");
            },
            "twice",
        );
        check(
            &|tar| {
                entry(tar, MANIFEST, &manifest);
                let mut header = tar::Header::new_gnu();
                header.set_size(0);
                header.set_entry_type(tar::EntryType::Symlink);
                header.set_link_name("/etc/passwd").unwrap();
                header.set_path("console.db").unwrap();
                header.set_cksum();
                tar.append(&header, &b""[..]).unwrap();
            },
            "not a file of a console",
        );
        check(&|_| (), "no manifest");
    }

    #[test]
    fn shrunk_file_is_an_error() {
        let key = PrivateKey::generate().unwrap();
        let mut writer = BackupWriter::new(Vec::new(), &[key.public()], &sample(FORMAT)).unwrap();
        let error = writer.add("console.db", 10, &b"short"[..]).unwrap_err();
        assert!(matches!(error, BackupError::Changed { .. }), "{error}");
    }

    proptest! {
        #[test]
        fn files_come_back(contents in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..5_000), 0..8)) {
            let key = PrivateKey::generate().unwrap();
            let name = |number: usize| if number.is_multiple_of(2) { format!("artifacts/{number}") } else { format!("file-{number}.db") };
            let files: Vec<_> = contents.into_iter().enumerate().map(|(number, content)| (name(number), content)).collect();
            let manifest = sample(FORMAT);
            let file = backup(&key, &manifest, &files);
            let mut taken = Collect::default();
            let (said, sums) = read(file.as_slice(), &[key], &mut taken).unwrap();
            prop_assert_eq!(said, manifest);
            prop_assert_eq!(sums.files.len(), files.len());
            prop_assert!(taken.0 == files);
        }

        #[test]
        fn cut_backup_is_refused(length in 0..200_000_usize, end in any::<proptest::sample::Index>()) {
            let key = PrivateKey::generate().unwrap();
            let file = backup(&key, &sample(FORMAT), &[("console.db".to_owned(), vec![3; length])]);
            let end = end.index(file.len());
            prop_assert!(read(&file[..end], &[key], &mut Check).is_err(), "{end} of {}", file.len());
        }
    }
}
