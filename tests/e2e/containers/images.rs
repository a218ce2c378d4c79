//! Images of containers: archives, and images pulled from a registry.

use std::{fs, process::Command};

use muster_topics::name::Digest;
use serde_json::{Value, json};

use super::{
    ENDS_BEFORE_MS, shop, stage,
    stage::{apply, write},
    wait_for_log,
};
use crate::fleet::{Fleet, eventually, file};

/// Adds an artifact to a fleet; gives its SHA-256.
#[track_caller]
fn add(fleet: &Fleet, path: &str, version: &str) -> String {
    fleet.ok(&["artifact", "create", path, "--role", "theirs", "--version", version]);
    Digest::of(&fs::read(path).unwrap()).to_string()
}

fn made_of(image: Value) -> Value {
    shop(json!({"image": image, "args": [], "grace_ms": 0}))
}

fn archive(version: &str) -> Value {
    made_of(json!({"archive": format!("theirs@{version}")}))
}

#[test]
fn container_from_archive_runs_and_is_removed() {
    let (podman, fleet) = stage();
    let mut digests = Vec::new();
    for (form, version) in [("oci-archive", "1"), ("docker-archive", "2")] {
        // Both have the same name in them.
        podman.import(&fleet, "localhost/theirs:1", form);
        let path = fleet.home.path().join(form).to_str().unwrap().to_owned();
        podman.run(&["save", "--quiet", "--format", form, "--output", &path, "localhost/theirs:1"]);
        digests.push(add(&fleet, &path, version));
        podman.run(&["rmi", "localhost/theirs:1"]);
    }
    // Somebody has given that name to something else meanwhile.
    podman.import(&fleet, "localhost/theirs:1", "something else");
    let theirs = || podman.run(&["images", "--quiet", "--no-trunc", "localhost/theirs:1"]);
    let before = theirs();

    fleet.ok(&[
        "container",
        "create",
        "default/shop",
        "--archive",
        "theirs@1",
        "--network",
        "none",
        "--grace",
        "0s",
        "--rlimit",
        "nofile=1024:4096",
        "--rlimit",
        "nproc=1000:1000",
        "--run",
    ]);
    // Program, environment and user are the image's own.
    wait_for_log(&fleet, "made of oci-archive as 700");
    let unit = fleet.unit_in_phase("default/shop", "running");
    assert_eq!(unit["desired"]["spec"]["image"]["archive"]["sha256"], digests[0]);
    apply(&fleet, &archive("2"));
    wait_for_log(&fleet, "made of docker-archive as 700");
    // Two at once, each with the other's name in it, and with more to say than their images.
    let both = [("1", "default/a"), ("2", "default/b")].map(|(version, unit)| {
        let mut document = archive(version);
        document["unit"] = json!(unit);
        document["env"] = json!({"MADE_OF": format!("{version} $(id)")});
        document
    });
    for digest in &digests {
        assert!(podman.run(&["images", "--all"]).contains(digest.as_str()));
    }
    fleet.ok(&["container", "stop", "default/shop"]);
    podman.run(&["rm", "muster.default.shop"]);
    for digest in &digests {
        podman.run(&["rmi", &format!("localhost/muster-archive:{digest}")]);
    }
    let [first, second] = both;
    let path = write(&fleet, &json!({"units": [first, second]}));
    fleet.ok(&["unit", "apply", &path]);
    for (version, unit) in [("1", "default/a"), ("2", "default/b")] {
        let image = podman.inspect(&unit.replace("default/", "muster.default."))["ImageName"].clone();
        let digest = &digests[version.parse::<usize>().unwrap() - 1];
        assert_eq!(image, format!("localhost/muster-archive:{digest}"));
        let wanted = format!("made of {version} $(id) as 700");
        eventually(&wanted, || {
            let log = fleet.muster(&["container", "logs", unit]).stdout;
            if log.contains(&wanted) { Ok(()) } else { Err(log) }
        });
    }
    assert_eq!(theirs(), before, "its name is still theirs");
}

#[test]
fn container_is_stopped_by_the_signal_of_its_image_unless_its_unit_names_one() {
    let (podman, fleet) = stage();
    let tar = fleet.home.path().join("shop.tar").to_str().unwrap().to_owned();
    let script = "for s in 3 15 10 37; do trap \"exit $s\" $s; done; echo ready; while :; do sleep 0.1; done";
    let cmd = format!("CMD {}", json!(["/bin/sh", "-c", script]));
    let import = ["import", "--quiet", "--change", &cmd, "--change", "STOPSIGNAL SIGQUIT", &tar, "localhost/quits:1"];
    podman.run(&import);
    let made = |fields: Value| {
        let mut document = shop(json!({"image": {"name": "localhost/quits:1"}, "args": []}));
        document.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        document
    };
    // It is the same container all the time, and its log goes on.
    let mut runs = 0;
    let mut listens = || {
        runs += 1;
        eventually("it listens", || {
            let log = fleet.muster(&["container", "logs", "default/shop"]).stdout;
            if log.lines().filter(|line| line.contains("ready")).count() == runs { Ok(()) } else { Err(log) }
        });
    };
    let mut id = None;
    // What its unit says, and the signal that it ends by.
    for (fields, number) in [
        (json!({}), 3),
        (json!({"stop_signal": "term"}), 15),
        (json!({"stop_signal": "SIGRTMIN+3"}), 37),
        (json!({"stop_signal": 10}), 10),
        (json!({}), 3),
    ] {
        apply(&fleet, &made(fields.clone()));
        listens();
        let now = podman.inspect("muster.default.shop")["Id"].clone();
        assert_eq!(id.get_or_insert_with(|| now.clone()), &now, "another signal makes no other container");
        fleet.ok(&["container", "stop", "default/shop"]);
        let unit = fleet.unit_in_phase("default/shop", "stopped");
        assert_eq!(unit["observed"]["exit"], json!({"code": number}), "{fields}");
    }
    // And by hand.
    apply(&fleet, &made(json!({"restart": "never"})));
    listens();
    fleet.ok(&["container", "signal", "rtmin+3", "default/shop"]);
    let ended = fleet.unit("default/shop", |unit| unit["observed"]["phase"] == "failed");
    assert_eq!(ended["observed"]["exit"], json!({"code": 37}), "{ended}");
}

#[test]
fn invalid_image_is_refused_with_reason() {
    let (podman, fleet) = stage();
    let refused = |document: &Value, words: &str| {
        fleet.muster(&["unit", "apply", &write(&fleet, document)]).expect_code(1).expect_stderr(words);
        fleet.unit_in_phase("default/shop", "failed");
        fleet.ok(&["unit", "retire", "default/shop"]);
        fleet.ok(&["container", "rm", "default/shop"]);
        assert_eq!(podman.names(), Vec::<String>::new());
    };
    // What is no archive at all, one of a root file system, and one of two images.
    add(&fleet, &file(&fleet.home, "no.tar", "not an archive"), "1");
    refused(&archive("1"), "the artifact is not an archive of an image that can be loaded\nhint: ");
    let rootfs = fleet.home.path().join("shop.tar").to_str().unwrap().to_owned();
    add(&fleet, &rootfs, "2");
    refused(&archive("2"), "the artifact is not an archive of an image that can be loaded\nhint: ");
    let two = fleet.home.path().join("two.tar").to_str().unwrap().to_owned();
    podman.import(&fleet, "localhost/a:1", "a");
    podman.import(&fleet, "localhost/b:1", "b");
    let names = ["localhost/a:1", "localhost/b:1"];
    let save = ["save", "--quiet", "--format", "docker-archive", "--multi-image-archive", "--output", &two];
    podman.run(&[&save[..], &names].concat());
    podman.run(&[&["rmi"][..], &names].concat());
    add(&fleet, &two, "3");
    refused(&archive("3"), "the archive does not have exactly one image: ");
    assert_eq!(podman.run(&["images", "--format", "{{.Names}}", "--filter", "reference=localhost/a"]), "");
    // A tarball of nothing that could be a root file system.
    add(&fleet, &file(&fleet.home, "rootfs.tar", "no tarball"), "4");
    refused(
        &shop(json!({"image": {"rootfs": "theirs@4"}})),
        "the artifact is not a root file system that can be imported",
    );
}

#[test]
fn image_of_other_architecture_is_reported() {
    let (_podman, fleet) = stage();
    let lxc = stage::Lxc::of(&fleet);
    // The beginning of a program for 64 bits of ARM, and of one for S/390 there.
    let machine: u8 = if cfg!(target_arch = "aarch64") { 22 } else { 183 };
    let mut elf = vec![0x7f, b'E', b'L', b'F', 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, machine, 0, 1, 0, 0, 0];
    elf.resize(4_096, 0);
    let program = fleet.home.path().join("tree/bin/foreign");
    fs::write(&program, elf).unwrap();
    let executable = Command::new("chmod").arg("755").arg(&program).status().unwrap();
    assert!(executable.success());
    stage::add_packed(&fleet, "--gzip", "2");
    // LXC has it tried as a script, like a shell would.
    for (runtime, words) in [("podman", "exec format error"), ("lxc", "/bin/foreign: line 1: ")] {
        let fields = json!({
            "runtime": runtime, "image": {"rootfs": "shop@2"}, "args": ["/bin/foreign"], "restart": "never",
            "started_after_ms": ENDS_BEFORE_MS,
        });
        fleet.muster(&["unit", "apply", &write(&fleet, &shop(fields))]).expect_code(1);
        let unit = fleet.unit_in_phase("default/shop", "failed");
        assert!(unit["observed"].to_string().to_lowercase().contains(words), "{runtime}: {unit}");
    }
    drop(lxc);
}

#[test]
fn an_image_is_pulled_by_its_tag_or_its_digest() {
    let (podman, fleet) = stage();
    let registry = podman.serve_registry();
    let name = format!("{}/shop/web", podman.registry());
    let push = |tag: &str, made_of: &str| {
        let image = format!("{name}:{tag}");
        podman.import(&fleet, &image, made_of);
        let digest = fleet.home.path().join("digest").to_str().unwrap().to_owned();
        podman.run(&["push", "--quiet", "--digestfile", &digest, &image]);
        podman.run(&["rmi", &image]);
        fs::read_to_string(&digest).unwrap()
    };
    push("1", "the first");
    let second = push("latest", "the second");
    let at = |name: &str| made_of(json!({"name": name}));
    apply(&fleet, &at(&format!("{name}:1")));
    wait_for_log(&fleet, "made of the first as 700");
    apply(&fleet, &at(&format!("{name}@{second}")));
    wait_for_log(&fleet, "made of the second as 700");
    fleet.ok(&["container", "clone", "default/shop", "default/shop-2", "--env", "COLOUR=red", "--run"]);
    fleet.unit_in_phase("default/shop-2", "running");

    // What is there is not asked for again, and without a tag it is the latest alone.
    push("1", "another first");
    podman.run(&["pull", "--quiet", &format!("{name}:1")]);
    push("3", "the third");
    let bare = at(&name);
    apply(&fleet, &bare);
    fleet.unit_in_phase("default/shop", "running");
    wait_for_log(&fleet, "made of the second as 700");
    let tags = podman.run(&["images", "--format", "{{.Tag}}"]);
    assert!(!tags.lines().any(|tag| tag == "3"), "{tags}");

    // No such tag, no such image: one outcome each, and what ran before goes on.
    let refused = |image: &str, words: &str| {
        let run = fleet.muster(&["unit", "apply", &write(&fleet, &at(image))]).expect_code(1);
        assert!(run.stderr.contains("cannot get the image: ") && run.stderr.contains(words), "{}", run.stderr);
    };
    refused(&format!("{name}:none"), "manifest unknown");
    refused(&format!("{}/shop/none:1", podman.registry()), "manifest unknown");
    // Nobody answers, for now: it comes when somebody does.
    registry.kill();
    let late = shop(json!({"unit": "default/late", "image": {"name": format!("{name}:3")}, "args": []}));
    fleet.ok(&["unit", "apply", &write(&fleet, &late), "--no-wait"]);
    let unit = fleet.unit("default/late", |unit| unit["observed"]["error"].is_object());
    assert!(unit["observed"]["error"]["message"].as_str().unwrap().contains("connection refused"), "{unit}");
    let _again = podman.serve_registry();
    fleet.unit_in_phase("default/late", "running");
}
