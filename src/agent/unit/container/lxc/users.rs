//! Resolves users inside a root file system, by its own `/etc/passwd` and `/etc/group`.

use muster_topics::diagnostic::Diagnostic;
use std::{fs::File, os::fd::AsFd, path::Path};

use crate::rootfs::{self, ContainerUser};

/// A user inside a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct InsideUser {
    pub(super) uid: u32,
    pub(super) gid: u32,
    /// Its further groups.
    pub(super) groups: Vec<u32>,
    pub(super) home: String,
}

/// Resolves `user` (`USER` or `USER:GROUP`, by name or number) in a root file system; root if none is given.
pub(super) fn find(root: &Path, user: Option<&str>) -> Result<InsideUser, Diagnostic> {
    let read = |file: &str| {
        let read = File::open(root).and_then(|root| rootfs::read(root.as_fd(), file));
        read.map_err(|error| format!("{file} of the image cannot be read: {error}"))
    };
    named(&read("/etc/passwd")?, &read("/etc/group")?, user.unwrap_or("0"))
}

fn named(passwd: &str, group: &str, user: &str) -> Result<InsideUser, Diagnostic> {
    let (user, of_group) = match user.split_once(':') {
        Some((user, group)) => (user, Some(group)),
        None => (user, None),
    };
    let account = ContainerUser::find(passwd, user);
    let uid = account.as_ref().map(|account| account.uid).or_else(|| user.parse().ok()).ok_or_else(|| {
        Diagnostic::new(format_args!("user {user:?} is not in the image's /etc/passwd"))
            .with_hint("or use a number, which needs no entry")
    })?;
    let (gid, groups) = match (of_group, &account) {
        // An explicit group is the only one.
        (Some(name), _) => (group_of(group, name)?, Vec::new()),
        (None, Some(account)) => (account.gid, account.groups(group).split_off(1)),
        (None, None) => (0, Vec::new()),
    };
    let home = account.map_or_else(|| "/".to_owned(), |account| account.home);
    Ok(InsideUser { uid, gid, groups, home })
}

fn group_of(group: &str, name: &str) -> Result<u32, Diagnostic> {
    rootfs::group(group, name).ok_or_else(|| {
        Diagnostic::new(format_args!("group {name:?} is not in the image's /etc/group"))
            .with_hint("or use a number, which needs no entry")
    })
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
                assert_eq!(found, InsideUser { uid, gid, groups: groups.to_vec(), home: home.to_owned() });
            }
            (Err(error), Err(words)) => assert!(error.cause.contains(words), "{error}"),
            (found, _) => panic!("{user}: {found:?}"),
        }
    }

    #[test]
    fn users_resolve_by_name_and_number() {
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
        // To the host's file, by an absolute path and by one with `..`.
        symlink(folder.path().join("passwd"), root.join("etc/passwd")).unwrap();
        assert!(find(&root, Some("outside")).is_err());
        std::fs::remove_file(root.join("etc/passwd")).unwrap();
        symlink("../../passwd", root.join("etc/passwd")).unwrap();
        assert!(find(&root, Some("outside")).is_err());
        // An absolute link is resolved in the container's root.
        std::fs::write(root.join("users"), "inside:x:2:2::/:\n").unwrap();
        std::fs::remove_file(root.join("etc/passwd")).unwrap();
        symlink("/users", root.join("etc/passwd")).unwrap();
        assert_eq!(find(&root, Some("inside")).unwrap().uid, 2);
        // Without the file there are no users.
        std::fs::remove_file(root.join("etc/passwd")).unwrap();
        nix::unistd::mkfifo(&root.join("etc/passwd"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert!(find(&root, Some("inside")).is_err());
    }
}
