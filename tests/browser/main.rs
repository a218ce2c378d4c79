//! The web console in a real Chromium, driven through its WebDriver: what a person would do on a
//! first visit, in light and dark, wide and narrow, and without a script error anywhere.
//!
//! With `MUSTER_TEST_PICTURES=DIR` each page that is visited is also saved there as a picture.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on has failed")]

#[path = "../fleet/mod.rs"]
mod fleet;

use std::{env, fs, future::Future, path::PathBuf, process::Command, time::Duration};

use fantoccini::{Client, ClientBuilder, Locator};
use fleet::{Fleet, PATIENCE, Running};
use hyper_util::client::legacy::connect::HttpConnector;
use serde_json::{Value, json};
use tempfile::TempDir;

/// A browser with a profile of its own.
struct Browser {
    client: Client,
    // Ended after the client, before the profile goes away.
    _driver: Running,
    _profile: TempDir,
}

impl Browser {
    async fn start(dark: bool, width: u32) -> Self {
        let mut driver = Running::start(Command::new("chromedriver").args(["--port=0"]));
        let port: u16 = driver.wait_for("chromedriver", |printed| {
            printed.split_once("started successfully on port ")?.1.split_once('.')?.0.parse().ok()
        });
        let profile = tempfile::tempdir().unwrap();
        let mut args = vec![
            "--headless=new".to_owned(),
            "--no-sandbox".to_owned(),
            "--disable-gpu".to_owned(),
            "--disable-dev-shm-usage".to_owned(),
            "--disable-quic".to_owned(),
            "--no-first-run".to_owned(),
            "--disable-background-networking".to_owned(),
            "--disable-component-update".to_owned(),
            "--disable-sync".to_owned(),
            format!("--user-data-dir={}", profile.path().display()),
        ];
        if dark {
            args.push("--blink-settings=preferredColorScheme=0".to_owned());
        }
        let mut options = json!({ "args": args });
        if width < 500 {
            // A window cannot be this narrow; a telephone can.
            options["mobileEmulation"] =
                json!({ "deviceMetrics": { "width": width, "height": 800, "pixelRatio": 1.0 } });
        }
        let capabilities = json!({ "browserName": "chrome", "goog:chromeOptions": options });
        let client = ClientBuilder::new(HttpConnector::new())
            .capabilities(capabilities.as_object().unwrap().clone())
            .connect(&format!("http://127.0.0.1:{port}"))
            .await
            .unwrap();
        if width >= 500 {
            client.set_window_size(width, 900).await.unwrap();
        }
        Self { client, _driver: driver, _profile: profile }
    }

    /// Waits for an element.
    async fn find(&self, css: &str) -> fantoccini::elements::Element {
        self.client
            .wait()
            .at_most(PATIENCE)
            .for_element(Locator::Css(css))
            .await
            .unwrap_or_else(|error| panic!("{css}: {error}"))
    }

    /// Waits until the page's text holds `words`.
    async fn see(&self, words: &str) {
        let started = std::time::Instant::now();
        loop {
            let text = self.text().await;
            if text.contains(words) {
                return;
            }
            assert!(started.elapsed() < PATIENCE, "{words:?} is not on the page: {text}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    async fn text(&self) -> String {
        match self.client.execute("return document.body ? document.body.innerText : ''", vec![]).await {
            Ok(Value::String(text)) => text,
            // Between two pages there is no body to ask.
            _ => String::new(),
        }
    }

    async fn click(&self, css: &str) {
        self.find(css).await.click().await.unwrap();
    }

    async fn follow(&self, link: &str) {
        let wait = self.client.wait().at_most(PATIENCE);
        wait.for_element(Locator::LinkText(link))
            .await
            .unwrap_or_else(|error| panic!("{link}: {error}"))
            .click()
            .await
            .unwrap();
    }

    /// What must hold on every page.
    async fn check_page(&self, picture: &str) {
        let script = "return [document.querySelectorAll('h1').length, document.documentElement.scrollWidth - window.innerWidth, \
                      document.documentElement.lang, [...document.querySelectorAll('input:not([type=hidden]),select,textarea')]\
                      .filter(e => !e.labels?.length && !e.ariaLabel).map(e => e.name), window.musterErrors || []]";
        let answer = self.client.execute(script, vec![]).await.unwrap();
        assert_eq!(answer[0], 1, "{picture}: one h1");
        assert!(answer[1].as_i64().unwrap() <= 0, "{picture}: {} pixels too wide", answer[1]);
        assert_eq!(answer[2], "en", "{picture}");
        assert_eq!(answer[3], json!([]), "{picture}: inputs without a label");
        if let Some(folder) = env::var_os("MUSTER_TEST_PICTURES").map(PathBuf::from) {
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join(format!("{picture}.png")), self.client.screenshot().await.unwrap()).unwrap();
        }
    }

    async fn end(self) {
        self.client.close().await.unwrap();
    }
}

fn run(test: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(test);
}
