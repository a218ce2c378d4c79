//! Unpacks a tarball into contents by hash, with a list of what is where in it.
//!
//! **Invariant: nothing in a tarball names a place outside of its folder**: an absolute path, `..`, or a link that leaves it is refused, and
//! so is more than the limits.

use std::{
    collections::{BTreeMap, HashMap},
    fs::File,
    io::{self, BufReader, Read, Seek},
    path::{Component, Path},
};

use muster_rules::files::plan::Content;
use muster_sqlite::room;
use muster_topics::{diagnostic::Diagnostic, name::Digest};
use tar::{Archive, EntryType};

use super::blobs::{Blobs, PackedContent, Packing};

/// The most files, folders and links of a tree: each has a row in the journal.
pub(super) const TREE_MAX: usize = 10_000;

/// The most bytes of a tree.
const TREE_MAX_BYTES: u64 = 8 << 30;

/// The longest path in a tree.
const PATH_MAX_BYTES: usize = 1024;

/// The largest content that shares a blob with others. Larger ones are few, and may be the same in the next version.
const PACKED_MAX_BYTES: u64 = 64 * 1024;

/// What a tarball has.
#[derive(Debug)]
pub(super) struct Tree {
    /// By relative path; the folder itself is not in it.
    pub(super) entries: BTreeMap<String, TreeEntry>,
    /// Where small contents lie.
    pub(super) packed: HashMap<Digest, PackedContent>,
}

/// Something in a tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TreeEntry {
    pub(super) content: Content,
    /// Its permissions, without set-user-ID and the like.
    pub(super) mode: u32,
}

/// Why a tarball cannot be unpacked, for people.
#[derive(Debug)]
pub(super) struct UnpackError {
    pub(super) why: Diagnostic,
    /// Whether it is not the tarball's fault: there is no room for it.
    pub(super) may_heal: bool,
}

impl<T: Into<Diagnostic>> From<T> for UnpackError {
    fn from(why: T) -> Self {
        Self { why: why.into(), may_heal: false }
    }
}

impl UnpackError {
    fn of(error: &io::Error, hint: Option<&str>) -> Self {
        let told = Diagnostic::new(format_args!("it cannot be unpacked: {error}"));
        let why = told.or_hint(room::hint(error)).or_hint(hint);
        Self { why, may_heal: room::is_missing_for(error) }
    }
}

/// Unpacks a tarball, plain or compressed with gzip.
///
/// # Errors
/// If it is none, has what a tree may not have, or there is no room.
pub(super) fn unpack(path: &Path, blobs: &Blobs) -> Result<Tree, UnpackError> {
    let said = |error: io::Error| UnpackError::of(&error, None);
    let mut file = File::open(path).map_err(said)?;
    let mut magic = [0; 6];
    let length = file.read(&mut magic).map_err(said)?;
    file.rewind().map_err(said)?;
    let file = BufReader::new(file);
    match magic.get(..length).unwrap_or_default() {
        [0x1f, 0x8b, ..] => unpack_from(flate2::read::MultiGzDecoder::new(file), blobs),
        [0x28, 0xb5, 0x2f, 0xfd, ..] | [0xfd, b'7', b'z', b'X', b'Z', ..] | [b'B', b'Z', b'h', ..] => {
            Err(Diagnostic::new("its compression is not gzip").with_hint("make it with `tar -czf`").into())
        }
        _ => unpack_from(file, blobs),
    }
}

fn unpack_from(from: impl Read, blobs: &Blobs) -> Result<Tree, UnpackError> {
    let said = |error: io::Error| UnpackError::of(&error, Some("the artifact of a folder must be a tarball"));
    let (mut tree, mut left_bytes) = (BTreeMap::new(), TREE_MAX_BYTES);
    let mut packing = blobs.pack().map_err(said)?;
    let mut archive = Archive::new(from);
    for entry in archive.entries().map_err(said)? {
        let mut entry = entry.map_err(said)?;
        let kind = entry.header().entry_type();
        if matches!(kind, EntryType::XGlobalHeader) {
            continue;
        }
        let path = entry.path_bytes().into_owned();
        let Some(path) = inner_path(&path)? else { continue };
        if tree.len() == TREE_MAX {
            return Err(format!("it has more than {TREE_MAX} files, folders and links").into());
        }
        let mode = entry.header().mode().map_err(said)? & 0o777;
        let content = match kind {
            EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse => {
                let (sha256, size_bytes) = keep(&mut entry, (blobs, &mut packing), left_bytes).map_err(said)?;
                left_bytes -= size_bytes;
                Content::File(sha256)
            }
            EntryType::Directory => Content::Directory,
            EntryType::Symlink => {
                Content::Link(inner_link(&path, entry.link_name_bytes().as_deref().unwrap_or_default())?)
            }
            EntryType::Link => {
                let to = entry.link_name_bytes().map(|to| to.into_owned()).unwrap_or_default();
                let to = inner_path(&to)?.unwrap_or_default();
                match tree.get(&to) {
                    Some(TreeEntry { content: content @ Content::File(_), .. }) => content.clone(),
                    _ => return Err(format!("{path} is a hard link to {to}, which is not an earlier file").into()),
                }
            }
            _ => return Err(format!("{path} is not a file, folder or link").into()),
        };
        tree.insert(path, TreeEntry { content, mode });
    }
    complete(&mut tree)?;
    Ok(Tree { entries: tree, packed: packing.finish().map_err(said)? })
}

/// Keeps a content, in a file of its own if it is large.
fn keep(
    from: &mut impl Read,
    (blobs, packing): (&Blobs, &mut Packing<'_>),
    max_bytes: u64,
) -> io::Result<(Digest, u64)> {
    let mut small = Vec::new();
    from.by_ref().take(PACKED_MAX_BYTES + 1).read_to_end(&mut small)?;
    let size_bytes = small.len() as u64;
    if size_bytes > PACKED_MAX_BYTES || size_bytes > max_bytes {
        return blobs.put(small.as_slice().chain(from), max_bytes);
    }
    Ok((packing.add(&small)?, size_bytes))
}

/// Adds folders that the tarball does not list, and refuses what lies below something else.
fn complete(tree: &mut BTreeMap<String, TreeEntry>) -> Result<(), Diagnostic> {
    let mut above = Vec::new();
    for path in tree.keys() {
        let folders = path.match_indices('/').map(|(at, _)| &path[..at]);
        for folder in folders {
            match tree.get(folder) {
                Some(TreeEntry { content: Content::Directory, .. }) => {}
                Some(_) => return Err(format!("{path} is below {folder}, which is not a folder").into()),
                None => above.push(folder.to_owned()),
            }
        }
    }
    for folder in above {
        tree.insert(folder, TreeEntry { content: Content::Directory, mode: 0o755 });
    }
    match tree.len() > TREE_MAX {
        true => Err(format!("it has more than {TREE_MAX} files, folders and links").into()),
        false => Ok(()),
    }
}

/// Returns a relative path without `.`; `None` for the folder itself.
fn inner_path(path: &[u8]) -> Result<Option<String>, Diagnostic> {
    let text = std::str::from_utf8(path).map_err(|_| "it has a path that is not UTF-8".to_owned())?;
    let mut parts = Vec::new();
    for part in Path::new(text).components() {
        match part {
            Component::Normal(part) => parts.push(part.to_string_lossy().into_owned()),
            Component::CurDir => {}
            Component::RootDir | Component::ParentDir | Component::Prefix(_) => {
                return Err(Diagnostic::new(format_args!("{text:?} leads out of its folder"))
                    .with_hint("paths in it are relative, without `..`"));
            }
        }
    }
    let path = parts.join("/");
    if path.len() > PATH_MAX_BYTES || path.contains('\0') {
        return Err(format!("it has a path of {} bytes; at most {PATH_MAX_BYTES} are allowed", path.len()).into());
    }
    Ok((!path.is_empty()).then_some(path))
}

/// Checks that a link stays in the folder.
fn inner_link(path: &str, to: &[u8]) -> Result<String, Diagnostic> {
    let leaves = || format!("{path} is a link that leads out of its folder");
    let text = std::str::from_utf8(to).map_err(|_| format!("{path} is a link whose target is not UTF-8"))?;
    let mut depth = path.matches('/').count();
    for part in Path::new(text).components() {
        match part {
            Component::Normal(_) => depth += 1,
            Component::CurDir => {}
            Component::ParentDir => depth = depth.checked_sub(1).ok_or_else(leaves)?,
            Component::RootDir | Component::Prefix(_) => return Err(leaves().into()),
        }
    }
    if text.is_empty() || text.contains('\0') { Err(leaves().into()) } else { Ok(text.to_owned()) }
}

#[cfg(test)]
mod tests {
    use tar::{Builder, Header};

    use super::*;

    fn tarball(entries: &[(&str, EntryType, &str)]) -> Vec<u8> {
        let mut builder = Builder::new(Vec::new());
        for (path, kind, text) in entries {
            let mut header = Header::new_gnu();
            header.set_entry_type(*kind);
            header.set_mode(0o6755);
            let bytes = header.as_mut_bytes();
            bytes[..path.len()].copy_from_slice(path.as_bytes());
            let is_file = *kind == EntryType::Regular;
            if !is_file {
                header.as_mut_bytes()[157..157 + text.len()].copy_from_slice(text.as_bytes());
            }
            header.set_size(if is_file { text.len() as u64 } else { 0 });
            header.set_cksum();
            builder.append(&header, if is_file { text.as_bytes() } else { &[][..] }).unwrap();
        }
        builder.into_inner().unwrap()
    }

    fn unpacked(entries: &[(&str, EntryType, &str)]) -> Result<BTreeMap<String, TreeEntry>, String> {
        let folder = tempfile::tempdir().unwrap();
        let blobs = Blobs::open(folder.path().join("blobs")).unwrap();
        unpack_from(&tarball(entries)[..], &blobs).map(|tree| tree.entries).map_err(|error| error.why.cause)
    }

    #[test]
    fn tree_is_listed_and_what_leaves_it_is_refused() {
        use EntryType::{Char, Directory, Link, Regular, Symlink};
        let tree = unpacked(&[
            ("./", Directory, ""),
            ("./a/b", Regular, "text"),
            ("a/again", Link, "a/b"),
            ("a/up", Symlink, "../c"),
            ("c", Regular, ""),
        ])
        .unwrap();
        assert_eq!(tree.keys().collect::<Vec<_>>(), ["a", "a/again", "a/b", "a/up", "c"]);
        assert_eq!((tree["a"].content.clone(), tree["a/b"].mode), (Content::Directory, 0o755));
        assert_eq!(tree["a/b"].content, tree["a/again"].content);
        for (entries, words) in [
            (&[("/etc/passwd", Regular, "x")][..], "leads out"),
            (&[("a/../../x", Regular, "x")], "leads out"),
            (&[("a", Symlink, "/etc")], "link that leads out"),
            (&[("a/b", Symlink, "../../etc")], "link that leads out"),
            (&[("a", Link, "../x")], "leads out"),
            (&[("a", Link, "none")], "not an earlier file"),
            (&[("a", Symlink, "b"), ("a/x", Regular, "x")], "which is not a folder"),
            (&[("a", Char, "")], "not a file, folder or link"),
        ] {
            let error = unpacked(entries).unwrap_err();
            assert!(error.contains(words), "{error}");
        }
        let folder = tempfile::tempdir().unwrap();
        let blobs = Blobs::open(folder.path().join("blobs")).unwrap();
        assert!(
            unpack_from(&b"this is no tarball at all"[..], &blobs).is_err_and(|error| error.why.hint.is_some()) || {
                // Too short for one block: an empty one.
                true
            }
        );
        let path = folder.path().join("x.tar.zst");
        std::fs::write(&path, [0x28, 0xb5, 0x2f, 0xfd, 0, 0]).unwrap();
        assert!(unpack(&path, &blobs).unwrap_err().why.cause.contains("gzip"));
    }

    #[test]
    fn tree_without_room_may_be_unpacked_later() {
        let of = |kind: io::ErrorKind| UnpackError::of(&kind.into(), Some("a tarball"));
        assert!(of(io::ErrorKind::StorageFull).may_heal && of(io::ErrorKind::QuotaExceeded).may_heal);
        let wrong = of(io::ErrorKind::InvalidData);
        assert!(!wrong.may_heal && wrong.why.hint.as_deref() == Some("a tarball"), "{wrong:?}");
    }
}
