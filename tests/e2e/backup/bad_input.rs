//! Files that are no good backups, keys that do not fit, folders that must not be touched.

use std::{fs, os::unix::fs::FileExt};

use muster_test_support::disk::Disk;

use super::{make_key, roles};
use crate::fleet::{Home, Run, file};

#[test]
fn bad_backups_keys_and_folders_are_named() {
    let mut roles = roles("every_hours = 0");
    roles.ok(&["backup", "create", "--out", "one.tar.age"]);
    make_key(&roles.home, "other.txt");
    let home = &roles.home;
    let verify = |file: &str, key: &str| home.muster(&["backup", "verify", file, "--identity", key]);
    let check = |run: Run, code: i32, words: &[&str]| {
        let run = run.expect_code(code);
        for word in words.iter().chain(&["hint: "]) {
            assert!(run.stderr.contains(word), "{word} is not in {}", run.stderr);
        }
        assert_eq!(run.stdout, "");
    };
    check(verify("one.tar.age", "other.txt"), 1, &["does not open"]);
    verify("one.tar.age", "nowhere.txt").expect_code(2).expect_stderr("nowhere.txt");
    verify("nowhere", "key.txt").expect_code(2).expect_stderr("nowhere");
    check(verify("one.tar.age", &file(home, "public", "age1qqqq\n")), 2, &["it is a public key"]);
    check(verify("one.tar.age", &file(home, "empty", "# nothing\n")), 2, &["AGE-SECRET-KEY-1"]);
    check(verify(&file(home, "text", "nothing of this kind\n"), "key.txt"), 2, &["not a backup"]);
    verify(".", "key.txt").expect_code(2).expect_stderr("not a regular file");

    let whole = fs::read(home.path().join("one.tar.age")).unwrap();
    for cut in [1, 20, 1_000, whole.len() - 300] {
        fs::write(home.path().join("cut"), &whole[..whole.len() - cut]).unwrap();
        check(verify("cut", "key.txt"), 1, &["cut off"]);
        check(restore(home, "cut", "new", &[]), 1, &["cut off", "nothing was restored"]);
        assert!(!home.path().join("new").exists() && !home.path().join("new.restoring").exists());
    }
    fs::copy(home.path().join("one.tar.age"), home.path().join("changed")).unwrap();
    let changed = fs::File::options().write(true).open(home.path().join("changed")).unwrap();
    changed.write_all_at(&[whole[whole.len() / 2] ^ 1], whole.len() as u64 / 2).unwrap();
    check(verify("changed", "key.txt"), 1, &["damaged"]);

    // A folder of another fleet stays what it is.
    home.muster(&["console", "init", "--data-dir", "other"]).expect_code(0);
    check(restore(home, "one.tar.age", "other", &[]), 2, &["is not empty"]);
    check(restore(home, "one.tar.age", "other", &["--replace"]), 1, &["of another fleet", "nothing was changed"]);
    check(restore(home, "one.tar.age", "one.tar.age", &["--replace"]), 2, &["not a folder"]);

    // No room, and a folder that cannot be renamed.
    let disk = Disk::new(1);
    fs::write(disk.path().join("filler"), vec![1; 900_000]).unwrap();
    let on_disk = disk.path().join("console").to_str().unwrap().to_owned();
    check(restore(home, "one.tar.age", &on_disk, &[]), 1, &["free space"]);
    assert_eq!(fs::read_dir(disk.path()).unwrap().count(), 1, "only the filler");
    check(restore(home, "one.tar.age", disk.path().to_str().unwrap(), &["--replace"]), 1, &["a mount of its own"]);

    // A console without a public key makes none.
    roles.kill_console();
    let config = roles.home.path().join("console.toml");
    let text = fs::read_to_string(&config).unwrap().replace("recipients", "# recipients");
    fs::write(&config, text).unwrap();
    roles.try_console().unwrap();
    roles
        .home
        .muster(&["backup", "create"])
        .expect_code(3)
        .expect_stderr("no public key")
        .expect_stderr("muster backup create-key");
    roles.kill_console();
    let text =
        fs::read_to_string(&config).unwrap().replace("# recipients = [\"age1", "recipients = [\"AGE-SECRET-KEY-1");
    fs::write(&config, text).unwrap();
    let refused = roles.try_console().unwrap_err();
    assert!(refused.contains("private key"), "{refused}");
}

fn restore(home: &Home, file: &str, folder: &str, more: &[&str]) -> Run {
    let args = ["backup", "restore", file, "--identity", "key.txt", "--data-dir", folder];
    home.muster(&[&args, more].concat())
}
