//! The pictures of the console that README and the documents show, made anew by
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
        let answer = fleet.json(&["metric", "query", "muster_host_cpu_busy_ratio", "--since", "5m", "--step", "10s"]);
        match answer["series"][0]["points"].as_array() {
            Some(values) if values.len() >= points => Ok(()),
            _ => Err(answer.to_string()),
        }
    });
}

/// Applies a deployment of two units in this version.
fn deploy(fleet: &Fleet, version: &str) {
    let unit = |name: &str| {
        format!(
            "- {{name: {name}, artifact: {name}@{version}, limits: {{cpu: 0.2}}, labels: {{tier: gold}}, verify_after_ms: 1000}}\n"
        )
    };
    let document = format!(
        "deployment: shop/counter\ntarget: {{select: label.role=counter}}\nunits:\n{}{}",
        unit("till"),
        unit("scale")
    );
    let document = file(&fleet.home, "counter.yaml", &document);
    fleet.ok(&["deployment", "apply", &document, "--yes"]);
}

#[test]
#[ignore = "it writes docs/pictures anew"]
fn pictures_of_the_documents() {
    let fleet = Fleet::start_with(&[]);
    let script = "#!/bin/sh\ntrap 'exit 0' TERM\nn=0\nwhile :; do n=$((n+1)); [ $((n % 40)) -eq 0 ] && sleep 1; done\n";
    fleet.ok(&["realm", "create", "shop"]);
    for (role, version) in
        [("till", "1.4.0"), ("scale", "1.4.0"), ("sync", "2.0.1"), ("till", "1.5.0"), ("scale", "1.5.0")]
    {
        let path = file(&fleet.home, role, &format!("{script}# {version}\n"));
        fleet.ok(&["artifact", "create", &path, "--role", role, "--version", version]);
    }
    fleet.ok(&["yuno", "create", "shop/sync", "--artifact", "sync", "--cpu", "0.2", "--label", "tier=gold", "--run"]);
    fleet.ok(&["host", "label", &fleet.host(), "role=counter", "site=north"]);
    deploy(&fleet, "1.4.0");
    deploy(&fleet, "1.5.0");
    (1..=POINTS / 4).for_each(|part| measured(&fleet, part * 4));
    run(async {
        let browser = Browser::start(false, 1200).await;
        browser.sign_in(&fleet).await;
        let base = fleet.address("http://");
        browser.client.goto(&format!("{base}/host/{}", fleet.host())).await.unwrap();
        browser.see("shop/till").await;
        browser.follow("15m").await;
        browser.client.set_window_size(1200, 1360).await.unwrap();
        browser.find("main .uplot canvas").await;
        take(&browser, "host").await;
        browser.client.set_window_size(1200, 940).await.unwrap();
        browser.client.goto(&format!("{base}/deployment/shop/counter")).await.unwrap();
        browser.see("verified").await;
        take(&browser, "deployment").await;
        browser.client.set_window_size(1200, 600).await.unwrap();
        browser.client.goto(&format!("{base}/units")).await.unwrap();
        browser.see("shop/counter, version 2").await;
        take(&browser, "units").await;
        browser.end().await;
    });
}

/// Takes a picture of the page.
async fn take(browser: &Browser, name: &str) {
    browser.check_page(name).await;
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/pictures");
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join(format!("{name}.png")), browser.client.screenshot().await.unwrap()).unwrap();
}
