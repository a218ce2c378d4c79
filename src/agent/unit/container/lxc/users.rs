//! Who somebody is inside: by the root file system's own `/etc/passwd` and `/etc/group`.
//!
//! **Invariant: no path leads out of the root file system**, whatever links are in it.

use std::{
    fs::File,
    io::{self, Read},
    path::Path,
};

use nix::{
    errno::Errno,
    fcntl::{OFlag, OpenHow, ResolveFlag, openat2},
};

/// The most that is read of either: ten thousand users.
const FILE_MAX_BYTES: u64 = 1024 * 1024;

/// A user inside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct User {
    pub(super) uid: u32,
    pub(super) gid: u32,
    /// Those that he is in beside.
    pub(super) groups: Vec<u32>,
    pub(super) home: String,
}

/// Who `user` (`USER` or `USER:GROUP`, by name or number) is in a root file system; its root if nobody is named.
pub(super) fn find(root: &Path, user: Option<&str>) -> Result<User, String> {
    let read = |file: &str| read(root, file).map_err(|error| format!("/{file} of the image cannot be read: {error}"));
    named(&read("etc/passwd")?, &read("etc/group")?, user.unwrap_or("0"))
}

/// A file below a root; nothing if there is none.
fn read(root: &Path, file: &str) -> io::Result<String> {
    let root = File::open(root)?;
    // Opening waits for nobody, whatever it is.
    let how = OpenHow::new()
        .flags(OFlag::O_RDONLY | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK | OFlag::O_NOCTTY)
        .resolve(ResolveFlag::RESOLVE_IN_ROOT | ResolveFlag::RESOLVE_NO_MAGICLINKS);
    let file = match openat2(&root, file, how) {
        Err(Errno::ENOENT | Errno::ENOTDIR) => return Ok(String::new()),
        opened => File::from(opened?),
    };
    if !file.metadata()?.is_file() {
        return Ok(String::new());
    }
    let mut content = Vec::new();
    file.take(FILE_MAX_BYTES).read_to_end(&mut content)?;
    Ok(String::from_utf8_lossy(&content).into_owned())
}

fn named(passwd: &str, group: &str, user: &str) -> Result<User, String> {
    let (user, of_group) = match user.split_once(':') {
        Some((user, group)) => (user, Some(group)),
        None => (user, None),
    };
    let line = lines(passwd).find(|fields| fields[0] == user).or_else(|| {
        let uid: u32 = user.parse().ok()?;
        lines(passwd).find(|fields| number(fields, 2) == Some(uid))
    });
    let uid = match &line {
        Some(fields) => number(fields, 2),
        None => user.parse().ok(),
    };
    let uid = uid.ok_or_else(|| {
        format!("user {user:?} is not in the image's /etc/passwd. hint: a number needs no entry there")
    })?;
    let gid = match of_group {
        Some(name) => Some(group_of(group, name)?),
        None => line.as_ref().and_then(|fields| number(fields, 3)),
    };
    let gid = gid.unwrap_or(0);
    let is_in = |fields: &Vec<&str>| match &line {
        Some(line) => fields.get(3).is_some_and(|members| members.split(',').any(|member| member == line[0])),
        None => false,
    };
    // Who says which group means this one alone.
    let others = lines(group).filter(is_in).filter_map(|fields| number(&fields, 2)).filter(|other| *other != gid);
    let groups = if of_group.is_some() { Vec::new() } else { others.collect() };
    let home =
        line.as_ref().and_then(|fields| fields.get(5).copied()).filter(|home| home.starts_with('/')).unwrap_or("/");
    Ok(User { uid, gid, groups, home: home.to_owned() })
}

fn group_of(group: &str, name: &str) -> Result<u32, String> {
    let by_name = lines(group).find(|fields| fields[0] == name).and_then(|fields| number(&fields, 2));
    by_name
        .or_else(|| name.parse().ok())
        .ok_or_else(|| format!("group {name:?} is not in the image's /etc/group. hint: a number needs no entry there"))
}

fn lines(text: &str) -> impl Iterator<Item = Vec<&str>> {
    text.lines().map(|line| line.split(':').collect())
}

fn number(fields: &[&str], place: usize) -> Option<u32> {
    fields.get(place)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    const PASSWD: &str = "root:x:0:0::/root:/bin/sh\nshop:x:700:70:a shop:/srv:/bin/sh\nodd\n";
    const GROUP: &str = "root:x:0:\nshop:x:70:\ntill:x:80:root,shop\nbar:x:90:shop\n";

    #[track_caller]
    fn check(user: &str, wanted: Result<(u32, u32, &[u32], &str), &str>) {
        match (named(PASSWD, GROUP, user), wanted) {
            (Ok(found), Ok((uid, gid, groups, home))) => {
                assert_eq!(found, User { uid, gid, groups: groups.to_vec(), home: home.to_owned() });
            }
            (Err(error), Err(words)) => assert!(error.contains(words), "{error}"),
            (found, _) => panic!("{user}: {found:?}"),
        }
    }

    #[test]
    fn by_name_and_by_number() {
        check("shop", Ok((700, 70, &[80, 90], "/srv")));
        check("700", Ok((700, 70, &[80, 90], "/srv")));
        check("shop:till", Ok((700, 80, &[], "/srv")));
        check("0", Ok((0, 0, &[80], "/root")));
        check("5", Ok((5, 0, &[], "/")));
        check("5:6", Ok((5, 6, &[], "/")));
        check("nobody", Err("user \"nobody\" is not in"));
        check("shop:nobody", Err("group \"nobody\" is not in"));
        check("odd", Err("user \"odd\" is not in"));
        check("", Err("user \"\" is not in"));
        check("-1", Err("is not in"));
        assert_eq!(named("", "", "0").unwrap().home, "/");
    }

    #[test]
    fn links_stay_inside() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("root");
        std::fs::create_dir_all(root.join("etc")).unwrap();
        std::fs::write(folder.path().join("passwd"), "outside:x:1:1::/:\n").unwrap();
        assert_eq!(find(&root, None).unwrap().uid, 0);
        // To the host's own file, by an absolute path and by one that goes up.
        symlink(folder.path().join("passwd"), root.join("etc/passwd")).unwrap();
        assert!(find(&root, Some("outside")).is_err());
        std::fs::remove_file(root.join("etc/passwd")).unwrap();
        symlink("../../passwd", root.join("etc/passwd")).unwrap();
        assert!(find(&root, Some("outside")).is_err());
        // An absolute one means the root file system's own.
        std::fs::write(root.join("users"), "inside:x:2:2::/:\n").unwrap();
        std::fs::remove_file(root.join("etc/passwd")).unwrap();
        symlink("/users", root.join("etc/passwd")).unwrap();
        assert_eq!(find(&root, Some("inside")).unwrap().uid, 2);
        // What is no file has nobody in it.
        std::fs::remove_file(root.join("etc/passwd")).unwrap();
        nix::unistd::mkfifo(&root.join("etc/passwd"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert!(find(&root, Some("inside")).is_err());
    }
}
