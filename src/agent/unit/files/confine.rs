//! The way to a path, which nobody but root can redirect.
//!
//! Each folder on the way is opened in the one before it. A symbolic link is followed only if it is root's (or the agent's own
//! user's), in a folder that nobody else can write. What is opened stays the same, whatever is renamed meanwhile.
//!
//! **Invariant: nothing below the agent's own folder, `/proc`, `/sys` or `/dev` is touched**, whatever a host's policy allows.

use muster_topics::diagnostic::Diagnostic;
use std::{
    collections::VecDeque,
    ffi::{OsStr, OsString},
    io,
    os::{fd::OwnedFd, unix::ffi::OsStrExt},
    path::{Component, Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use rustix::{
    fs::{AtFlags, CWD, FileType, Mode, OFlags, Stat, fstat, openat, readlinkat, statat},
    io::Errno,
};

/// The most links on a way, as the kernel has it.
const LINKS_MAX: usize = 40;

/// How long a folder that was opened is used for further paths in it: as long as somebody's rename may stay unseen.
const WAY_MAX: Duration = Duration::from_millis(100);

/// What is never touched, beside the agent's own folder.
const NEVER: [&str; 3] = ["/proc", "/sys", "/dev"];

/// Where units of files may be.
#[derive(Debug)]
pub(super) struct Confinement {
    roots: Option<Vec<PathBuf>>,
    never: Vec<PathBuf>,
    own_uid: u32,
}

/// A name in an open folder.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) folder: Arc<OwnedFd>,
    pub(super) name: OsString,
    /// The folder's path without links.
    pub(super) folder_path: PathBuf,
}

/// Why there is no way to a path.
#[derive(Debug)]
pub(super) enum NoWay {
    /// A folder on the way is not there.
    Missing(PathBuf),
    /// It is not allowed, or impossible; with the reason.
    Barred(Diagnostic),
    /// The system says no.
    Io(io::Error),
}

impl From<Errno> for NoWay {
    fn from(errno: Errno) -> Self {
        Self::Io(errno.into())
    }
}

impl Confinement {
    pub(super) fn new(data_dir: &Path, roots: Option<&[PathBuf]>) -> Self {
        let resolved = std::fs::canonicalize(data_dir).unwrap_or_else(|_| data_dir.to_owned());
        let never = NEVER.iter().map(PathBuf::from).chain([data_dir.to_owned(), resolved]).collect();
        Self { roots: roots.map(<[PathBuf]>::to_vec), never, own_uid: nix::unistd::geteuid().as_raw() }
    }

    /// Whether something of the host that is never touched is below a folder.
    pub(super) fn holds_what_is_never_touched(&self, folder: &Path) -> bool {
        self.never.iter().any(|never| never.starts_with(folder))
    }

    fn check(&self, path: &Path) -> Result<(), NoWay> {
        if let Some(never) = self.never.iter().find(|never| path.starts_with(never)) {
            return Err(NoWay::Barred(format!("paths below {} are never changed", never.display()).into()));
        }
        match &self.roots {
            Some(roots) if !roots.iter().any(|root| path.starts_with(root)) => Err(NoWay::Barred(
                format!(
                    "this host's policy (`files.dirs` in the agent's configuration) does not allow {}",
                    path.display()
                )
                .into(),
            )),
            _ => Ok(()),
        }
    }

    /// Opens the folder of a path.
    pub(super) fn open(&self, path: &Path) -> Result<Place, NoWay> {
        self.check(path)?;
        let name = path.file_name().ok_or_else(|| NoWay::Barred("it has no file name".into()))?;
        let (folder, folder_path) = self.walk(path.parent().unwrap_or(Path::new("/")))?;
        self.check(&folder_path.join(name))?;
        Ok(Place { folder: Arc::new(folder), name: name.to_owned(), folder_path })
    }

    fn walk(&self, folder: &Path) -> Result<(OwnedFd, PathBuf), NoWay> {
        let root = || openat(CWD, "/", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
        let (mut at, mut path, mut links) = (root()?, PathBuf::from("/"), 0);
        let mut left: VecDeque<OsString> = parts(folder).collect();
        while let Some(part) = left.pop_front() {
            if part == ".." {
                // The folder above was passed before.
                let above = path.parent().unwrap_or(Path::new("/")).to_owned();
                (at, path) = self.walk(&above)?;
                continue;
            }
            let next = match openat(&at, &*part, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty()) {
                Err(Errno::NOENT) => return Err(NoWay::Missing(path.join(part))),
                other => other?,
            };
            let found = fstat(&next)?;
            match FileType::from_raw_mode(found.st_mode) {
                FileType::Directory => {
                    path.push(part);
                    at = next;
                }
                FileType::Symlink => {
                    links += 1;
                    if links > LINKS_MAX {
                        return Err(NoWay::Barred(
                            format!("{} is a loop of symbolic links", path.join(part).display()).into(),
                        ));
                    }
                    if !self.is_trusted(&found, &fstat(&at)?) {
                        return Err(NoWay::Barred(
                            Diagnostic::new(format_args!(
                                "{} is a symbolic link that users other than root may change",
                                path.join(part).display()
                            ))
                            .with_hint("use the path that it leads to"),
                        ));
                    }
                    let to = readlinkat(&next, "", Vec::new())?;
                    let to = Path::new(OsStr::from_bytes(to.as_bytes())).to_owned();
                    if to.is_absolute() {
                        (at, path) = (root()?, PathBuf::from("/"));
                    }
                    for part in parts(&to).collect::<Vec<_>>().into_iter().rev() {
                        left.push_front(part);
                    }
                }
                _ => return Err(NoWay::Barred(format!("{} is not a folder", path.join(part).display()).into())),
            }
        }
        Ok((at, path))
    }

    /// Whether a link in a folder can be changed by nobody but root and the agent's own user.
    fn is_trusted(&self, link: &Stat, folder: &Stat) -> bool {
        let is_own = |uid| uid == 0 || uid == self.own_uid;
        is_own(link.st_uid) && is_own(folder.st_uid) && folder.st_mode & 0o022 == 0
    }
}

/// Opens the folders of many paths. The last one is used for the next path if that is in it, too: a tree takes a walk for each of its
/// folders, rather than for each of its files.
pub(super) struct Ways<'a> {
    confinement: &'a Confinement,
    last: Option<Way>,
}

/// A folder that was opened.
struct Way {
    path: PathBuf,
    folder: Arc<OwnedFd>,
    folder_path: PathBuf,
    since: Instant,
}

impl<'a> Ways<'a> {
    pub(super) fn new(confinement: &'a Confinement) -> Self {
        Self { confinement, last: None }
    }

    /// Opens the folder of a path, as [`Confinement::open`].
    pub(super) fn open(&mut self, path: &Path) -> Result<Place, NoWay> {
        let is_same = |way: &&Way| path.parent() == Some(&way.path) && way.since.elapsed() < WAY_MAX;
        if let (Some(way), Some(name)) = (self.last.as_ref().filter(is_same), path.file_name()) {
            self.confinement.check(path)?;
            self.confinement.check(&way.folder_path.join(name))?;
            let (folder, folder_path) = (way.folder.clone(), way.folder_path.clone());
            return Ok(Place { folder, name: name.to_owned(), folder_path });
        }
        let since = Instant::now();
        let place = self.confinement.open(path)?;
        self.last = path.parent().map(|parent| Way {
            path: parent.to_owned(),
            folder: place.folder.clone(),
            folder_path: place.folder_path.clone(),
            since,
        });
        Ok(place)
    }

    /// Walks anew for the next path, since a folder or a link has been changed.
    pub(super) fn forget(&mut self) {
        self.last = None;
    }
}

impl Place {
    /// What is there; `None` if nothing is.
    pub(super) fn stat(&self) -> io::Result<Option<Stat>> {
        match statat(&self.folder, &*self.name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(found) => Ok(Some(found)),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }
}

fn parts(path: &Path) -> impl Iterator<Item = OsString> {
    path.components().filter_map(|part| match part {
        Component::Normal(part) => Some(part.to_owned()),
        Component::ParentDir => Some("..".into()),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    })
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink};

    use super::*;

    fn barred(confinement: &Confinement, path: &Path) -> String {
        match confinement.open(path).unwrap_err() {
            NoWay::Barred(why) => why.cause,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn links_of_others_are_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let at = folder.path().canonicalize().unwrap();
        let data = at.join("data");
        for name in ["data", "real", "open"] {
            fs::create_dir(at.join(name)).unwrap();
        }
        symlink("real", at.join("own")).unwrap();
        symlink("../real", at.join("open/link")).unwrap();
        symlink("data", at.join("to-data")).unwrap();
        symlink("circle", at.join("circle")).unwrap();
        fs::write(at.join("file"), "").unwrap();
        fs::set_permissions(at.join("open"), std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
        let confinement = Confinement::new(&data, None);
        assert_eq!(confinement.open(&at.join("own/x")).unwrap().folder_path, at.join("real"));
        assert!(barred(&confinement, &at.join("open/link/x")).contains("users other than root may change"));
        assert!(barred(&confinement, &data.join("agent.db")).contains("are never changed"));
        assert!(barred(&confinement, &at.join("to-data/agent.db")).contains("never changed"));
        assert!(barred(&confinement, &at.join("circle/x")).contains("loop of symbolic links"));
        assert!(barred(&confinement, &at.join("file/x")).contains("is not a folder"));
        assert!(barred(&confinement, Path::new("/proc/sys/x")).contains("paths below /proc"));
        assert!(
            matches!(confinement.open(&at.join("none/x")).unwrap_err(), NoWay::Missing(path) if path == at.join("none"))
        );
        let mut ways = Ways::new(&confinement);
        let first = ways.open(&at.join("own/x")).unwrap();
        let second = ways.open(&at.join("own/y")).unwrap();
        assert!(Arc::ptr_eq(&first.folder, &second.folder), "one walk for both");
        assert!(matches!(ways.open(&at.join("to-data/agent.db")), Err(NoWay::Barred(_))));
        fs::rename(at.join("real"), at.join("renamed")).unwrap();
        std::thread::sleep(WAY_MAX);
        assert!(matches!(ways.open(&at.join("own/y")), Err(NoWay::Missing(_))), "a renamed folder is noticed");
        fs::rename(at.join("renamed"), at.join("real")).unwrap();
        if nix::unistd::geteuid().is_root() {
            nix::unistd::chown(&at.join("open"), Some(65534.into()), None).unwrap();
            symlink("../real", at.join("open/theirs")).unwrap();
            std::os::unix::fs::lchown(at.join("open/theirs"), Some(65534), None).unwrap();
            assert!(barred(&confinement, &at.join("open/theirs/x")).contains("symbolic link"));
        }
        let allowed = Confinement::new(&data, Some(&[at.join("own"), at.join("real")]));
        allowed.open(&at.join("own/x")).unwrap();
        assert!(barred(&allowed, &at.join("open/x")).contains("`files.dirs`"));
        let elsewhere = Confinement::new(&data, Some(&[at.join("own")]));
        assert!(barred(&elsewhere, &at.join("own/x")).contains("does not allow"), "a link leads out of the roots");
        assert!(
            confinement.holds_what_is_never_touched(&at) && !confinement.holds_what_is_never_touched(&at.join("real"))
        );
    }
}
