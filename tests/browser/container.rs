//! The page of a container: one that is well, and one whose probe fails; wide, and on a telephone.

use std::{fs, os::unix::fs::symlink, process::Command};

use serde_json::{Value, json};

use crate::{
    Browser,
    fleet::{Fleet, file, free_ports},
    run,
};

/// The containers of a fleet's host, which end with this.
struct Ended(std::path::PathBuf);

impl Drop for Ended {
    fn drop(&mut self) {
        for name in ["muster.default.shop", "muster.default.stall"] {
            let _ = Command::new("lxc-stop").arg("-P").arg(&self.0).args(["-k", "-n", name]).output();
        }
    }
}

/// Adds a root file system of a static busybox, and applies two containers of it.
fn stage(fleet: &Fleet) {
    let tree = fleet.home.path().join("tree");
    for folder in ["bin", "dev", "etc", "proc", "sys", "tmp"] {
        fs::create_dir_all(tree.join(folder)).unwrap();
    }
    fs::copy("/bin/busybox", tree.join("bin/busybox")).unwrap();
    for name in ["sh", "sleep", "true", "test", "httpd"] {
        symlink("busybox", tree.join("bin").join(name)).unwrap();
    }
    let tar = fleet.home.path().join("shop.tar");
    assert!(Command::new("tar").arg("-C").arg(&tree).arg("-cf").arg(&tar).arg(".").status().unwrap().success());
    fleet.ok(&["artifact", "create", tar.to_str().unwrap(), "--role", "shop", "--version", "1.4.0"]);
    // They are on the host's network, where those of another test are.
    let ports = free_ports(2);
    fleet.ok(&["realm", "set", "default", "--ports", &format!("{ports}-{}", ports + 1)]);
    let container = |unit: &str, fields: Value| {
        let mut document = json!({
            "unit": unit, "kind": "container", "runtime": "lxc", "image": {"rootfs": "shop@1.4.0"}, "network": "host",
            "args": ["/bin/httpd", "-f", "-p", "{address:http}:{port:http}", "-h", "/etc"], "provides": [{"name": "http"}],
            "env": {"COLOUR": "blue"}, "limits": {"memory_bytes": 64 << 20, "cpu": 0.5, "pids": 50}, "disk_bytes": 32 << 20,
            "mounts": [{"host": "/etc/hostname", "inside": "/etc/shop", "read_only": true}], "grace_ms": 0,
            "labels": {"tier": "gold"}, "run": "running",
        });
        document.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        let path = file(&fleet.home, "unit.json", &document.to_string());
        fleet.ok(&["unit", "apply", &path, "--no-wait"]);
    };
    let well = json!({
        "start": {"tcp": {"port": "http"}}, "ready": {"http": {"port": "http", "path": "/shop"}},
        "live": {"exec": ["/bin/true"], "interval_ms": 60_000},
    });
    container("default/shop", json!({"probes": well}));
    let unwell = json!({"http": {"port": "http", "path": "/a/long/path/which/is/not/there"}, "interval_ms": 500});
    container("default/stall", json!({"probes": {"start": {"tcp": {"port": "http"}}, "ready": unwell}}));
    fleet.unit_in_phase("default/shop", "running");
    let says = |unit: &Value| unit["observed"]["unready"]["message"].as_str().is_some_and(|why| why.contains("404"));
    fleet.unit("default/stall", says);
}

/// Looks at the pages of both.
async fn look(fleet: &Fleet, browser: &Browser, picture: &str) {
    let (host, base) = (fleet.host(), fleet.address("http://"));
    browser.sign_in(fleet).await;
    browser.client.goto(&format!("{base}/host/{host}/unit/default/shop")).await.unwrap();
    for words in ["running", "lxc", "memory 64", "disk 32", "http:http/shop every", "/etc/hostname", "COLOUR"] {
        browser.see(words).await;
    }
    // What may be a secret is shown to nobody.
    assert!(!browser.text().await.contains("blue"));
    browser.check_page(&format!("container-{picture}")).await;
    browser.show("dl.facts").await;
    browser.check_page(&format!("container-facts-{picture}")).await;
    browser.client.goto(&format!("{base}/host/{host}/unit/default/stall")).await.unwrap();
    browser.see("status 404").await;
    browser.show("table.compare").await;
    browser.check_page(&format!("container-unready-{picture}")).await;
    browser.client.goto(&format!("{base}/host/{host}")).await.unwrap();
    browser.see("default/stall").await;
    browser.check_page(&format!("container-host-{picture}")).await;
}

#[test]
fn container_page_shows_spec_and_probes() {
    let fleet = Fleet::start();
    stage(&fleet);
    let ended = Ended(fleet.data().join("agent/lxc"));
    let unit = format!("{}/host/{}/unit/default/shop", fleet.address("http://"), fleet.host());
    run(async {
        let browser = Browser::start(false, 1200).await;
        look(&fleet, &browser, "wide").await;
        // It is suspended and let go on by hand, and what runs inside is asked from its page.
        browser.client.goto(&unit).await.unwrap();
        browser.click("form[action$='/freeze'] button").await;
        fleet.unit("default/shop", |unit| unit["observed"]["frozen"] == true);
        browser.see("frozen").await;
        browser.client.goto(&unit).await.unwrap();
        browser.click("form[action$='/thaw'] button").await;
        fleet.unit("default/shop", |unit| unit["observed"]["frozen"] != true);
        browser.follow("Run a command inside").await;
        browser.find("form[action='/run']").await;
        browser.check_page("container-run").await;
        browser.end().await;
    });
    drop(ended);
}

#[test]
fn a_container_fits_a_telephone_in_the_dark() {
    let fleet = Fleet::start();
    stage(&fleet);
    let ended = Ended(fleet.data().join("agent/lxc"));
    run(async {
        let browser = Browser::start(true, 360).await;
        look(&fleet, &browser, "narrow-dark").await;
        browser.end().await;
    });
    drop(ended);
}
