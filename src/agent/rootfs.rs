//! Reads files of a foreign root file system: a container's, or an image's. Its content is untrusted, like any input from
//! outside.
//!
//! **Invariant: no path leads out of it**, whatever links it contains; only plain files are read, and only up to
//! a limit.

use std::{
    fs::File,
    io::{self, Read},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2};

/// The longest file of users or groups that is read: twenty thousand of them.
pub(super) const LIST_MAX_BYTES: u64 = 1024 * 1024;

/// A user of the root file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ContainerUser {
    pub(super) name: String,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) home: String,
}

impl ContainerUser {
    /// `NAME:PASSWORD:UID:GID:WORDS:HOME:SHELL`
    fn parse(line: &str) -> Option<Self> {
        let mut fields = line.split(':');
        let name = fields.next().filter(|name| !name.is_empty())?.to_owned();
        let mut fields = fields.skip(1);
        let (uid, gid) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
        let is_one = |home: &&str| home.starts_with('/') && !home.contains('\0');
        let home = fields.nth(1).filter(is_one).unwrap_or("/").to_owned();
        Some(Self { name, uid, gid, home })
    }

    /// Finds a user by number.
    pub(super) fn of(passwd: &str, uid: u32) -> Option<Self> {
        passwd.lines().filter_map(Self::parse).find(|account| account.uid == uid)
    }

    /// Finds a user by name, or else by number.
    pub(super) fn find(passwd: &str, user: &str) -> Option<Self> {
        let by_name = passwd.lines().filter_map(Self::parse).find(|account| account.name == user);
        by_name.or_else(|| Self::of(passwd, user.parse().ok()?))
    }

    /// Returns all groups of a user, its own first, from lines such as `NAME:PASSWORD:GID:MEMBER,MEMBER`.
    pub(super) fn groups(&self, group: &str) -> Vec<u32> {
        let mut groups = vec![self.gid];
        for line in group.lines() {
            let fields: Vec<&str> = line.split(':').collect();
            let [_, _, gid, members] = fields[..] else { continue };
            if let Ok(gid) = gid.parse()
                && members.split(',').any(|member| member == self.name)
                && !groups.contains(&gid)
            {
                groups.push(gid);
            }
        }
        groups
    }
}

/// Finds a group by name or number.
pub(super) fn group(group: &str, name: &str) -> Option<u32> {
    let gid = |line: &str| {
        let mut fields = line.split(':');
        fields.next().filter(|found| *found == name)?;
        fields.nth(1)?.parse().ok()
    };
    group.lines().find_map(gid).or_else(|| name.parse().ok())
}

/// Opens a path below a root; links cannot leave it.
pub(super) fn open(root: BorrowedFd<'_>, path: &str, flags: OFlag) -> io::Result<OwnedFd> {
    let resolve = ResolveFlag::RESOLVE_IN_ROOT | ResolveFlag::RESOLVE_NO_MAGICLINKS;
    let how = OpenHow::new().flags(flags | OFlag::O_CLOEXEC).resolve(resolve);
    Ok(openat2(root.as_fd(), path, how)?)
}

/// Reads a small file below a root.
pub(super) fn read(root: BorrowedFd<'_>, path: &str) -> io::Result<String> {
    // The type is checked before opening for reading: opening a FIFO or device could block.
    let file = match open(root, path, OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_NOCTTY) {
        Ok(file) => File::from(file),
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            return Ok(String::new());
        }
        Err(error) => return Err(error),
    };
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "it is not a regular file"));
    }
    let mut bytes = Vec::new();
    file.take(LIST_MAX_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > LIST_MAX_BYTES {
        return Err(io::Error::new(io::ErrorKind::InvalidData, format!("it has more than {LIST_MAX_BYTES} bytes")));
    }
    // Names that are not UTF-8 are not supported.
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_of_passwd_are_parsed() {
        let account = |line: &str| {
            ContainerUser::parse(line).map(|ContainerUser { name, uid, gid, home }| (name, uid, gid, home))
        };
        let found = |name: &str, uid, gid, home: &str| Some((name.to_owned(), uid, gid, home.to_owned()));
        for (line, wanted) in [
            ("root:x:0:0:root:/root:/bin/sh", found("root", 0, 0, "/root")),
            ("shop:x:700:701::/:/bin/sh", found("shop", 700, 701, "/")),
            ("shop::700:701", found("shop", 700, 701, "/")),
            ("shop:x:700:701:::", found("shop", 700, 701, "/")),
            ("shop:x:700:701::srv:", found("shop", 700, 701, "/")),
            ("shop:x:-1:701::/:", None),
            (":x:1:1::/:", None),
            ("# shop", None),
            ("", None),
        ] {
            assert_eq!(account(line), wanted, "{line}");
        }
        let shop = ContainerUser::parse("shop:x:700:701::/:").unwrap();
        let text = "root:x:0:\nwheel:x:10:root,shop\nshop:x:701:shop\nbad:x:y:shop\nshopping:x:11:shopper\nmany:x:12:a,shop,b\n";
        assert_eq!(shop.groups(text), [701, 10, 12]);
        for (name, wanted) in [("wheel", Some(10)), ("12", Some(12)), ("99", Some(99)), ("bad", None), ("none", None)] {
            assert_eq!(group(text, name), wanted, "{name}");
        }
    }
}
