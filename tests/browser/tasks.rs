//! The tasks of a unit on its page, with a log that is followed, in light and dark, wide and narrow.

use std::fs;

use serde_json::json;

use crate::{Browser, file, fleet::Fleet, run};

/// A unit of files whose change runs a program that says something, waits for a file, and ends.
fn tasks_in(dark: bool, width: u32, word: &str) {
    let fleet = Fleet::start();
    let home = fleet.home.path().canonicalize().unwrap();
    let (go, path) = (home.join("go"), home.join("till.conf"));
    // The page shows the program too: only what it prints has these words beside each other.
    let wait = format!("while [ ! -e {} ]; do sleep 0.1; done", go.display());
    let script = format!("say() {{ echo $1 words; }}; say first; {wait}; say last");
    let document = json!({
        "unit": "default/config", "kind": "files", "run": "running", "verify_after_ms": 1, "drift": "report",
        "files": {path.to_str().unwrap(): {"text": "right\n"}},
        "on_change": [{"do": {"run": ["sh", "-c", script]}}]
    });
    fleet.ok(&["unit", "apply", &file(&fleet.home, "config.json", &document.to_string())]);
    fleet.unit("default/config", |unit| unit["observed"]["owed"][0].is_object());
    fs::write(&path, "wrong\n").unwrap();
    fleet.unit("default/config", |unit| unit["observed"]["drift"][0].is_object());
    let unit = format!("{}/host/{}/unit/default/config", fleet.address("http://"), fleet.host());
    run(async {
        let browser = Browser::start(dark, width).await;
        browser.sign_in(&fleet).await;
        browser.client.goto(&unit).await.unwrap();
        for words in ["Others changed", "till.conf", "Owes", "pending", "fetched on request"] {
            browser.see(words).await;
        }
        browser.click("form[action$='/tasks'] button").await;
        browser.find("#tasks tbody tr .state.busy").await;
        browser.check_page(&format!("tasks-{word}")).await;
        browser.click("#tasks tbody tr:first-child button").await;
        browser.see("first words").await;
        browser.show("#tasks").await;
        browser.check_page(&format!("tasks-log-{word}")).await;
        // Nothing is clicked any more: the page follows.
        fs::write(&go, "").unwrap();
        browser.see("last words").await;
        browser.see("it has ended with code 0").await;
        let going_on = "return document.querySelectorAll('#tasks form[hx-post]').length";
        while browser.client.execute(going_on, vec![]).await.unwrap() != 0 {
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        }
        fleet.unit("default/config", |unit| unit["observed"]["owed"].is_null());
        browser.show("#tasks").await;
        browser.check_page(&format!("tasks-over-{word}")).await;
        browser.end().await;
    });
}

#[test]
fn tasks_are_followed() {
    tasks_in(false, 1280, "light-1280");
}

#[test]
fn tasks_are_followed_in_the_dark() {
    tasks_in(true, 1280, "dark-1280");
}

#[test]
fn tasks_are_followed_on_a_telephone() {
    tasks_in(false, 390, "light-390");
}

#[test]
fn tasks_are_followed_on_a_telephone_in_the_dark() {
    tasks_in(true, 390, "dark-390");
}
