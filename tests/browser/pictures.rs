//! The picture of the console that README shows, made anew by
//!
//! ```text
//! unshare --uts sh -c 'hostname shop-7; cargo test -p muster --test browser -- --ignored pictures'
//! ```
//!
//! as root, so that the host in it has a name of its own.

use std::{fs, path::Path};

use crate::{
    Browser,
    fleet::{Fleet, eventually, file},
    run,
};

/// Points of each chart: two minutes of samples.
const POINTS: usize = 12;

/// Waits until charts have this many points.
fn measured(fleet: &Fleet, points: usize) {
    eventually("measurements", || {
        let answer = fleet.json(&["metric", "query", "muster_host_cpu_busy_ratio", "--range", "5m", "--step", "10s"]);
        match answer["series"][0]["points"].as_array() {
            Some(values) if values.len() >= points => Ok(()),
            _ => Err(answer.to_string()),
        }
    });
}

#[test]
#[ignore = "it writes docs/pictures anew"]
fn pictures_of_the_documents() {
    let fleet = Fleet::start_with(&[]);
    let script = "#!/bin/sh\ntrap 'exit 0' TERM\nn=0\nwhile :; do n=$((n+1)); [ $((n % 40)) -eq 0 ] && sleep 1; done\n";
    let path = file(&fleet.home, "till", script);
    for role in ["till", "scale", "sync"] {
        fleet.ok(&["artifact", "add", &path, "--role", role, "--version", "1.4.0"]);
        let (unit, label) = (format!("shop/{role}"), "tier=gold");
        if role == "till" {
            fleet.ok(&["realm", "create", "shop"]);
        }
        fleet.ok(&["yuno", "create", &unit, "--artifact", role, "--cpu", "0.2", "--label", label, "--run"]);
    }
    (1..=POINTS / 4).for_each(|part| measured(&fleet, part * 4));
    run(async {
        let browser = Browser::start(false, 1200).await;
        browser.sign_in(&fleet).await;
        let base = fleet.address("http://");
        browser.client.goto(&format!("{base}/host/{}", fleet.host())).await.unwrap();
        browser.see("shop/till").await;
        browser.follow("15m").await;
        browser.client.set_window_size(1200, 1080).await.unwrap();
        browser.find("main .uplot canvas").await;
        browser.check_page("host").await;
        let picture = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/pictures/host.png");
        fs::create_dir_all(picture.parent().unwrap()).unwrap();
        fs::write(picture, browser.client.screenshot().await.unwrap()).unwrap();
        browser.end().await;
    });
}
