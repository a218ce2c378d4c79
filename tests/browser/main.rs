//! The web console in a real Chromium, driven through its WebDriver: what a person would do on a
//! first visit, in light and dark, wide and narrow, and without a script error anywhere.
//!
//! With `MUSTER_TEST_PICTURES=DIR` each page that is visited is also saved there as a picture.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on has failed")]

#[path = "../fleet/mod.rs"]
mod fleet;

mod container;
mod pictures;
mod tasks;

use std::{env, fs, future::Future, path::PathBuf, process::Command, str::FromStr, time::Duration};

use fantoccini::{
    Client, ClientBuilder, Locator,
    actions::{InputSource, MOUSE_BUTTON_LEFT, MouseActions, PointerAction},
    wd::WebDriverCompatibleCommand,
};
use fleet::{Fleet, PATIENCE, Running, file};
use hyper_util::client::legacy::connect::HttpConnector;
use reqwest::Url;
use serde_json::{Value, json};
use tempfile::TempDir;

/// What the browser has logged since it was asked last: script errors, refused resources, violations of the
/// content security policy.
#[derive(Debug)]
struct BrowserLog;

impl WebDriverCompatibleCommand for BrowserLog {
    fn endpoint(&self, base: &Url, session: Option<&str>) -> Result<Url, <Url as FromStr>::Err> {
        base.join(&format!("session/{}/se/log", session.unwrap_or_default()))
    }

    fn method_and_body(&self, _: &Url) -> (hyper::Method, Option<String>) {
        (hyper::Method::POST, Some(json!({ "type": "browser" }).to_string()))
    }
}

/// How high a window is: as a screen, or for pictures as long as most pages.
fn height() -> u32 {
    if env::var_os("MUSTER_TEST_PICTURES").is_some() { 2_400 } else { 900 }
}

/// Starts a driver on a port of its choice.
///
/// It lets the kernel choose a port of one address family, and then wants the same one of the
/// other, which a connection may have by then: it ends, and another one is started.
fn start_driver() -> (Running, u16) {
    for _ in 0..10 {
        let mut driver = Running::start(Command::new("chromedriver").args(["--port=0"]));
        let port = driver.wait_for("chromedriver", |printed| {
            if printed.contains("port not available") {
                return Some(None);
            }
            let (_, rest) = printed.split_once("started successfully on port ")?;
            Some(Some(rest.split_once('.')?.0.parse::<u16>().ok()?))
        });
        if let Some(port) = port {
            return (driver, port);
        }
    }
    panic!("chromedriver found no port ten times");
}

/// A browser with a profile of its own.
struct Browser {
    client: Client,
    // Ended after the client, before the profile goes away.
    _driver: Running,
    _profile: TempDir,
}

impl Browser {
    async fn start(dark: bool, width: u32) -> Self {
        let (driver, port) = start_driver();
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
        let capabilities = json!({
            "browserName": "chrome",
            "goog:chromeOptions": options,
            "goog:loggingPrefs": { "browser": "ALL" },
        });
        let client = ClientBuilder::new(HttpConnector::new())
            .capabilities(capabilities.as_object().unwrap().clone())
            .connect(&format!("http://127.0.0.1:{port}"))
            .await
            .unwrap();
        if width >= 500 {
            client.set_window_size(width, height()).await.unwrap();
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
        self.click_at(Locator::Css(css)).await;
    }

    async fn follow(&self, link: &str) {
        self.click_at(Locator::LinkText(link)).await;
    }

    /// Clicks an element once it is there. A live region may be replaced between finding and clicking; then
    /// the one that stands there now is meant.
    async fn click_at(&self, place: Locator<'_>) {
        loop {
            let wait = self.client.wait().at_most(PATIENCE);
            let element = wait.for_element(place).await.unwrap_or_else(|error| panic!("{place:?}: {error}"));
            match element.click().await {
                Ok(()) => return,
                Err(error) if error.is_stale_element_reference() => {}
                Err(error) => panic!("{place:?}: {error}"),
            }
        }
    }

    /// What must hold on every page.
    async fn check_page(&self, picture: &str) {
        let script = "return [document.querySelectorAll('h1').length, document.documentElement.scrollWidth - window.innerWidth, \
                      document.documentElement.lang, [...document.querySelectorAll('input:not([type=hidden]),select,textarea')]\
                      .filter(e => !e.labels?.length && !e.ariaLabel).map(e => e.name)]";
        let answer = self.client.execute(script, vec![]).await.unwrap();
        assert_eq!(answer[0], 1, "{picture}: one h1");
        assert!(answer[1].as_i64().unwrap() <= 0, "{picture}: {} pixels too wide", answer[1]);
        assert_eq!(answer[2], "en", "{picture}");
        assert_eq!(answer[3], json!([]), "{picture}: inputs without a label");
        let log = self.client.issue_cmd(BrowserLog).await.unwrap();
        // These pages say what they are in their status, and the browser notes that.
        let expected = match picture {
            "sign-in" => "status of 401",
            "narrow-dark-nowhere" | "wide-light-nowhere" => "status of 404",
            // A label, and a rule, were refused on the way there.
            "unit-retired-narrow" | "rule-refused" | "alerts" => "status of 400",
            _ => "(nothing)",
        };
        let is_fault =
            |entry: &&Value| entry["level"] == "SEVERE" && !entry["message"].as_str().unwrap().contains(expected);
        let faults: Vec<&Value> = log.as_array().unwrap().iter().filter(is_fault).collect();
        assert!(faults.is_empty(), "{picture}: {faults:?}");
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

impl Browser {
    /// Signs in with the link that `muster up` printed.
    async fn sign_in(&self, fleet: &Fleet) {
        self.client.goto(&fleet.sign_in_link()).await.unwrap();
        self.click("main button[type=submit]").await;
        self.see(fleet.json(&["host", "ls"])[0]["hostname"].as_str().unwrap()).await;
    }

    /// Scrolls to an element, for whoever looks at the picture.
    async fn show(&self, css: &str) {
        let script = "document.querySelector(arguments[0]).scrollIntoView()";
        self.client.execute(script, vec![css.into()]).await.unwrap();
    }

    async fn type_into(&self, css: &str, text: &str) {
        let field = self.find(css).await;
        field.clear().await.unwrap();
        field.send_keys(text).await.unwrap();
    }
}

#[test]
fn a_first_visit_from_sign_in_to_a_stopped_yuno() {
    let fleet = Fleet::start_with(&[]);
    fleet.unit_in_phase("default/hello", "running");
    run(async {
        let browser = Browser::start(false, 1200).await;
        browser.client.goto(&fleet.address("http://")).await.unwrap();
        browser.see("Sign in").await;
        browser.check_page("sign-in").await;
        browser.sign_in(&fleet).await;
        browser.check_page("hosts").await;

        // One host: facts, units, charts that are drawn.
        let hosts = fleet.json(&["host", "ls"]);
        browser.follow(hosts[0]["hostname"].as_str().unwrap()).await;
        browser.see("default/hello").await;
        browser.find("main .uplot canvas").await;
        browser.check_page("host").await;

        // The yuno, stopped and started by hand, and its log; the page follows by itself.
        browser.follow("default/hello").await;
        browser.see("running").await;
        browser.click("form[action$='/stop'] button").await;
        fleet.unit_in_phase("default/hello", "stopped");
        browser.see("stopped").await;
        browser.click("form[action$='/start'] button").await;
        fleet.unit_in_phase("default/hello", "running");
        browser.see("running").await;
        browser.click("form[action$='/logs'] button").await;
        browser.see("hello, number").await;
        browser.check_page("unit").await;
        browser.end().await;
    });
}

#[test]
fn unit_is_managed_and_removed_from_its_page() {
    let fleet = Fleet::start();
    for version in ["1", "2"] {
        let script = format!("#!/bin/sh\n# {version}\ntrap 'echo got usr1' USR1\nwhile :; do sleep 0.1; done\n");
        let path = fleet::file(&fleet.home, "till", &script);
        fleet.ok(&["artifact", "create", &path, "--role", "till", "--version", version]);
    }
    fleet.ok(&["yuno", "create", "default/till", "--artifact", "till@1", "--run"]);
    fleet.unit_in_phase("default/till", "running");
    let unit = format!("{}/host/{}/unit/default/till", fleet.address("http://"), fleet.host());
    run(async {
        let browser = Browser::start(false, 360).await;
        browser.sign_in(&fleet).await;
        browser.client.goto(&unit).await.unwrap();
        browser.see("till 1 → 2").await;
        browser.show(".forms").await;
        browser.check_page("unit-manage-narrow").await;
        browser.click("form[action$='/upgrade'] button").await;
        fleet.unit("default/till", |unit| unit["desired"]["spec"]["artifact"]["version"] == "2");
        fleet.unit_in_phase("default/till", "running");
        browser.client.goto(&unit).await.unwrap();
        browser.see("No newer version").await;

        // What cannot be a label is told, and nothing is changed.
        browser.type_into("#label-name", "Tier!").await;
        browser.type_into("#label-value", "gold").await;
        browser.click("form[action$='/label'] button").await;
        browser.see("the label's name").await;
        browser.client.goto(&unit).await.unwrap();
        browser.type_into("#label-name", "tier").await;
        browser.type_into("#label-value", "gold").await;
        browser.click("form[action$='/label'] button").await;
        fleet.unit("default/till", |unit| unit["desired"]["spec"]["labels"]["tier"] == "gold");
        browser.client.goto(&unit).await.unwrap();
        browser.click("form[action$='/unlabel'] button").await;
        fleet.unit("default/till", |unit| unit["desired"]["spec"]["labels"]["tier"].is_null());

        browser.client.goto(&unit).await.unwrap();
        browser.click("#signal option[value=usr1]").await;
        browser.click("form[action$='/signal'] button").await;
        fleet::eventually("the signal", || {
            let log = fleet.muster(&["yuno", "logs", "default/till"]).stdout;
            if log.contains("got usr1") { Ok(()) } else { Err(log) }
        });

        browser.client.goto(&unit).await.unwrap();
        browser.type_into("#retire-note", "sold").await;
        browser.click("form[action$='/retire'] button").await;
        fleet.unit("default/till", |unit| unit["hold"]["note"] == "sold" && unit["observed"]["phase"] == "stopped");
        browser.client.goto(&unit).await.unwrap();
        browser.see("Remove").await;
        browser.show(".forms").await;
        browser.check_page("unit-retired-narrow").await;
        browser.click("form[action$='/remove'] button").await;
        fleet::eventually("it is gone", || match fleet.muster(&["unit", "show", "default/till"]) {
            run if run.code == 3 => Ok(()),
            run => Err(run.stdout),
        });
        browser.see("default/till").await;
        browser.end().await;
    });
}

/// Applies a deployment of one unit to this host; a second time with another argument.
fn deploy(fleet: &Fleet, argument: &str) {
    let script = file(&fleet.home, "till", "#!/bin/sh\necho \"$1\"; while :; do sleep 0.1; done\n");
    fleet.muster(&["artifact", "create", &script, "--role", "till", "--version", "1"]);
    let document = format!(
        "deployment: default/fleet\ntarget: {{select: 'host=*'}}\nunits:\n\
         - {{unit: default/till, artifact: till@1, args: [{argument}], verify_after_ms: 300}}\n"
    );
    let document = file(&fleet.home, "till.yaml", &document);
    fleet.ok(&["deployment", "apply", &document, "--yes"]);
}

/// Rolls out two versions of a deployment. The unit of the second one is verified after five minutes, so that its host stays in the
/// middle of the change.
fn roll_out(fleet: &Fleet) {
    let script = file(&fleet.home, "slow", "#!/bin/sh\nwhile :; do sleep 0.1; done\n");
    fleet.ok(&["artifact", "create", &script, "--role", "slow", "--version", "1"]);
    let apply = |argument: &str, verify_ms: u32, more: &[&str]| {
        let document = format!(
            "deployment: default/rolled\ntarget: {{select: 'host=*'}}\nrollout: {{max_failures: 1}}\nunits:\n\
             - {{unit: default/slow, artifact: slow@1, args: [{argument}], verify_after_ms: {verify_ms}}}\n"
        );
        let document = file(&fleet.home, "rolled.yaml", &document);
        fleet.ok(&[&["deployment", "apply", &document, "--yes"], more].concat());
    };
    apply("one", 300, &[]);
    apply("two", 300_000, &["--no-wait"]);
}

#[test]
fn rollout_is_paused_resumed_and_cancelled_on_its_pages() {
    let fleet = Fleet::start();
    run(async {
        let browser = Browser::start(false, 1200).await;
        browser.sign_in(&fleet).await;
        browser.follow("Rollouts").await;
        browser.see("There are no rollouts.").await;
        browser.check_page("rollouts-empty").await;
        // The page learns of it by itself.
        roll_out(&fleet);
        browser.see("default/rolled").await;
        browser.follow("default/rolled").await;
        browser.see("the host is in the middle of the change").await;
        browser.check_page("rollout").await;
        for (link, button, seen) in [
            ("Pause…", "primary", "has paused it"),
            ("Resume…", "primary", "running"),
            ("Cancel…", "danger", "cancelled"),
        ] {
            browser.follow(link).await;
            browser.check_page(&format!("rollout-{button}-{seen}")).await;
            browser.click(&format!("main button.{button}")).await;
            browser.see("What has happened").await;
            browser.see(seen).await;
        }
        assert!(!browser.text().await.contains("Pause…"), "it has ended");
        browser.check_page("rollout-cancelled").await;
        browser.client.goto(&format!("{}/host/{}", fleet.address("http://"), fleet.host())).await.unwrap();
        browser.see("default/rolled").await;
        browser.client.goto(&format!("{}/deployment/default/rolled", fleet.address("http://"))).await.unwrap();
        browser.follow("Rollout of version 2").await;
        browser.see("hosts keep what they have").await;
        browser.end().await;
    });
}

#[test]
fn deployment_is_rolled_back_and_removed_on_its_pages() {
    let fleet = Fleet::start();
    run(async {
        let browser = Browser::start(false, 1200).await;
        browser.sign_in(&fleet).await;
        browser.follow("Deployments").await;
        browser.see("muster deployment apply till.yaml").await;
        browser.check_page("deployments-empty").await;
        // The page learns of it by itself.
        deploy(&fleet, "one");
        browser.see("default/fleet").await;
        browser.follow("default/fleet").await;
        browser.see("verified").await;
        deploy(&fleet, "two");
        browser.client.refresh().await.unwrap();
        browser.check_page("deployment").await;
        browser.client.goto(&format!("{}/deployment/default/fleet/version/2", fleet.address("http://"))).await.unwrap();
        browser.see("Differences to version 1").await;
        browser.see("args.0: one → two").await;
        browser.check_page("deployment-version").await;
        browser.follow("default/fleet").await;
        browser.follow("Roll back…").await;
        browser.see("This makes version 3, with the content of version 1").await;
        browser.check_page("deployment-rollback").await;
        browser.click("main button.primary").await;
        browser.see("as version 1").await;
        fleet.unit("default/till", |unit| unit["desired"]["spec"]["args"][0] == "one");

        // The unit names its owner, and the host what it carries.
        browser.client.goto(&format!("{}/host/{}", fleet.address("http://"), fleet.host())).await.unwrap();
        browser.see("default/fleet, version").await;
        browser.check_page("host-of-deployment").await;
        browser.follow("default/till").await;
        browser.see("of the deployment default/fleet").await;
        browser.check_page("unit-of-deployment").await;

        browser.client.goto(&format!("{}/deployment/default/fleet", fleet.address("http://"))).await.unwrap();
        browser.follow("Remove…").await;
        browser.see("1 unit on 1 host").await;
        browser.check_page("deployment-removal").await;
        browser.click("main button.danger").await;
        fleet::eventually("it is gone", || match fleet.muster(&["unit", "show", "default/till"]) {
            run if run.code == 3 => Ok(()),
            run => Err(run.stdout),
        });
        browser.see("There are no deployments.").await;
        browser.end().await;
    });
}

#[test]
fn units_of_all_hosts_are_followed_and_filtered_on_their_page() {
    let fleet = Fleet::start_with(&[]);
    fleet.unit_in_phase("default/hello", "running");
    run(async {
        let browser = Browser::start(false, 1200).await;
        browser.sign_in(&fleet).await;
        browser.follow("Units").await;
        browser.find("ul.tiles a[href*='phase=running']").await;
        // The page learns of it by itself, also of a new unit.
        deploy(&fleet, "one");
        browser.see("default/fleet, version 1").await;
        fleet.ok(&["yuno", "stop", "default/hello"]);
        browser.click("ul.tiles a[href*='phase=stopped']").await;
        browser.see("1–1 of 1").await;
        assert!(!browser.text().await.contains("default/till"), "it runs");
        browser.check_page("units-stopped").await;
        browser.follow("Units").await;
        browser.type_into("#select", "name=till").await;
        browser.click("main form button").await;
        browser.see("1–1 of 1").await;
        browser.see("default/till").await;
        browser.end().await;
    });
}

#[test]
fn host_is_drained_and_opened_and_variables_are_set_on_pages() {
    let fleet = Fleet::start();
    deploy(&fleet, "one");
    fleet.unit_in_phase("default/till", "running");
    run(async {
        let browser = Browser::start(false, 1200).await;
        browser.sign_in(&fleet).await;
        let host = format!("{}/host/{}", fleet.address("http://"), fleet.host());
        browser.client.goto(&host).await.unwrap();
        browser.follow("default/till").await;
        browser.see("Changes here are refused.").await;
        browser.click("form[action$='/detach'] button").await;
        fleet.unit("default/till", |unit| unit["owner"].is_null());
        browser.client.refresh().await.unwrap();
        browser.see("It was taken out of the deployment").await;
        browser.click("form[action$='/adopt'] button").await;
        fleet.unit("default/till", |unit| unit["owner"]["deployment"] == "default/fleet");

        browser.client.goto(&format!("{host}/drain")).await.unwrap();
        browser.see("default/fleet: default/till").await;
        browser.check_page("drain").await;
        browser.click("main button.danger").await;
        fleet::eventually("it is gone", || match fleet.muster(&["unit", "show", "default/till"]) {
            run if run.code == 3 => Ok(()),
            run => Err(run.stdout),
        });
        browser.see("drained").await;
        browser.check_page("host-drained").await;
        browser.click("details:has(form[action$='/cordon']) summary").await;
        browser.click("input[value=open] + button").await;
        fleet.unit_in_phase("default/till", "running");

        browser.follow("Variables").await;
        browser.type_into("#name", "lanes").await;
        browser.type_into("#value", "4").await;
        browser.click("input[name=json]").await;
        browser.click("main button.primary").await;
        browser.see("all hosts").await;
        browser.check_page("vars").await;
        browser.click("form[action='/vars/remove'] button").await;
        browser.see("There are no variables.").await;
        browser.end().await;
    });
}

#[test]
fn a_command_shows_its_output_while_it_runs() {
    let fleet = Fleet::start();
    let gate = fleet.home.path().join("gate");
    run(async {
        let browser = Browser::start(false, 1200).await;
        browser.sign_in(&fleet).await;
        browser.follow("Commands").await;
        browser.see("muster exec").await;
        browser.check_page("commands-empty").await;
        browser.follow("Run").await;
        let script =
            format!("echo first; while ! test -e {}; do sleep 0.1; done; echo '<b>second</b>'; exit 3", gate.display());
        browser.type_into("#command", &format!("sh -c \"{script}\"")).await;
        browser.check_page("run").await;
        browser.click("main button.primary").await;
        browser.see("first").await;
        assert!(!browser.text().await.contains("</b>\n"), "the second line came too early");
        fs::write(&gate, "").unwrap();
        browser.see("<b>second</b>\n").await;
        browser.see("exit code 3").await;
        browser.check_page("command").await;
        browser.end().await;
    });
}

#[test]
fn every_page_fits_narrow_in_the_dark_and_wide_in_the_light() {
    let fleet = Fleet::start_with(&[]);
    fleet.unit_in_phase("default/hello", "running");
    fleet.ok(&["exec", "--", "uname", "-a"]);
    let value = file(&fleet.home, "value", "hunter2");
    fleet.ok(&["secret", "set", "db", "--file", &value]);
    deploy(&fleet, "one");
    deploy(&fleet, "two");
    roll_out(&fleet);
    let host = fleet.host();
    fleet.ok(&["var", "set", "upstream", "https://bank.example/with/a/rather/long/path"]);
    fleet.ok(&["var", "set", "lanes", "[4, 5]", "--json", "--host", &host]);
    fleet.ok(&["host", "cordon", &host]);
    let command = fleet.json(&["command", "ls"])[0]["id"].as_str().unwrap().to_owned();
    let pages = [
        ("hosts", "/".to_owned()),
        ("host", format!("/host/{host}")),
        ("unit", format!("/host/{host}/unit/default/hello")),
        ("commands", "/commands".to_owned()),
        ("command", format!("/command/{command}")),
        ("run", "/run".to_owned()),
        ("join", "/join".to_owned()),
        ("artifacts", "/artifacts".to_owned()),
        ("configs", "/configs".to_owned()),
        ("secrets", "/secrets".to_owned()),
        ("secret", "/secret/default/db".to_owned()),
        ("units", "/units?deployment=default/fleet".to_owned()),
        ("deployments", "/deployments".to_owned()),
        ("deployment", "/deployment/default/fleet".to_owned()),
        ("version", "/deployment/default/fleet/version/2".to_owned()),
        ("rollback", "/deployment/default/fleet/rollback".to_owned()),
        ("removal", "/deployment/default/fleet/removal".to_owned()),
        ("changes", "/deployments/changes".to_owned()),
        ("confirm", "/deployments/confirm".to_owned()),
        ("rollouts", "/rollouts".to_owned()),
        ("rollout", "/rollout/default/rolled".to_owned()),
        ("rollout-changing", "/rollout/default/rolled?waits=changing".to_owned()),
        ("rollout-pause", "/rollout/default/rolled/pause".to_owned()),
        ("rollout-resume", "/rollout/default/rolled/resume".to_owned()),
        ("rollout-cancel", "/rollout/default/rolled/cancel".to_owned()),
        ("rollout-release", format!("/rollout/default/rolled/release?host={host}")),
        ("deployment-rolled", "/deployment/default/rolled".to_owned()),
        ("deployed", format!("/host/{host}/unit/default/till")),
        ("drain", format!("/host/{host}/drain")),
        ("vars", "/vars".to_owned()),
        ("alerts", "/alerts".to_owned()),
        ("rule", "/alerts/rule?name=disk".to_owned()),
        ("config", "/config/hello.main/1".to_owned()),
        ("nowhere", "/no/such/page".to_owned()),
    ];
    for (looks, is_dark, width) in [("narrow-dark", true, 360), ("wide-light", false, 1_280)] {
        run(async {
            let browser = Browser::start(is_dark, width).await;
            browser.sign_in(&fleet).await;
            let base = fleet.address("http://");
            for (name, path) in &pages {
                browser.client.goto(&format!("{base}{path}")).await.unwrap();
                browser.find("main h1").await;
                browser.check_page(&format!("{looks}-{name}")).await;
            }
            browser.end().await;
        });
    }
}

#[test]
fn a_token_for_another_host_is_shown_once() {
    let fleet = Fleet::start();
    run(async {
        let browser = Browser::start(false, 800).await;
        browser.sign_in(&fleet).await;
        browser.follow("Join").await;
        browser.click("main form[action='/join'] button").await;
        browser.see("muster1.").await;
        browser.check_page("join").await;
        browser.client.goto(&format!("{}/join", fleet.address("http://"))).await.unwrap();
        browser.find("main h1").await;
        assert!(!browser.text().await.contains("muster1."), "the token is shown a second time");
        browser.end().await;
    });
}

impl Browser {
    async fn number(&self, script: &str) -> i64 {
        self.client.execute(script, vec![]).await.unwrap().as_i64().unwrap_or(-1)
    }

    /// Waits until a script's number is at least so much.
    async fn until(&self, what: &str, script: &str, least: i64) {
        let started = std::time::Instant::now();
        while self.number(script).await < least {
            assert!(started.elapsed() < PATIENCE, "{what}: {}", self.text().await);
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    /// Each chart is drawn, with something in it.
    async fn charts(&self, least: i64) {
        let drawn = "const all = [...document.querySelectorAll('.chart')]; \
                     return all.some(f => f.querySelector('.nothing')) ? 0 : all.filter(f => f.querySelector('.uplot canvas')).length";
        self.until("charts with something in each", drawn, least).await;
        let values =
            "return [...document.querySelectorAll('.chart .u-value')].filter(v => /\\d/.test(v.textContent)).length";
        assert!(self.number(values).await >= least, "newest values in legends");
    }

    /// The whole of a page, however long it is.
    async fn tall(&self, width: u32) {
        let height = self.number("return document.documentElement.scrollHeight").await;
        if width >= 500 {
            self.client.set_window_size(width, u32::try_from(height).unwrap_or(900) + 150).await.unwrap();
        }
    }
}

/// Charts of real measurements, wide and narrow, light and dark; a part of the time marked with the mouse; and an alert on the
/// axis of time, by a rule that was set in the browser.
#[test]
fn charts_show_what_agents_measure() {
    let fleet = Fleet::start_with(&[]);
    fleet.unit_in_phase("default/hello", "running");
    let host = format!("/host/{}", fleet.host());
    let unit = format!("{host}/unit/default/hello");
    run(async {
        let base = fleet.address("http://");
        let browser = Browser::start(false, 1280).await;
        browser.sign_in(&fleet).await;

        // A rule that everything is beyond; first with a mistake.
        browser.client.goto(&format!("{base}/alerts/rule")).await.unwrap();
        browser.type_into("#name", "any-load").await;
        browser.click("#metric option[value=memory_used]").await;
        browser.type_into("#threshold", "much").await;
        browser.click("main button.primary").await;
        browser.see("is not a level").await;
        browser.check_page("rule-refused").await;
        browser.type_into("#threshold", "0%").await;
        browser.click("#severity option[value=critical]").await;
        browser.click("main button.primary").await;
        browser.see("any-load").await;
        browser.see("memory_used above 0 %").await;
        browser.check_page("alerts").await;

        browser.client.goto(&format!("{base}{host}?range=15m")).await.unwrap();
        browser.charts(6).await;
        let marks = format!("return fetch('{host}/charts?range=15m').then(a => a.json()).then(a => a.marks.length)");
        browser.until("a mark", &marks, 1).await;
        browser.client.goto(&format!("{base}{host}?range=15m")).await.unwrap();
        browser.charts(6).await;
        browser.tall(1280).await;
        browser.charts(6).await;
        browser.check_page("charts-host-light-1280").await;

        // A part of the time, marked in one chart, is shown in all.
        let over = browser.find(".chart[data-chart=cpu] .u-over").await;
        let at = |x| PointerAction::MoveToElement { element: over.clone(), duration: None, x, y: 0.0 };
        let drag = MouseActions::new("mouse".to_owned())
            .then(at(-60.0))
            .then(PointerAction::Down { button: MOUSE_BUTTON_LEFT })
            .then(at(0.0))
            .then(at(60.0))
            .then(PointerAction::Up { button: MOUSE_BUTTON_LEFT });
        browser.client.perform_actions(drag).await.unwrap();
        let zoomed = "return document.querySelector('.zoomed').hidden ? 0 : 1";
        browser.until("a part of the time", zoomed, 1).await;
        browser.check_page("charts-host-zoomed").await;
        browser.click(".zoomed button").await;
        browser.until("all of it again", "return document.querySelector('.zoomed').hidden ? 1 : 0", 1).await;

        for range in ["1h", "24h", "30d", "1y"] {
            browser.client.goto(&format!("{base}{host}?range={range}")).await.unwrap();
            browser.charts(6).await;
        }
        browser.client.goto(&format!("{base}{unit}?range=15m")).await.unwrap();
        browser.charts(2).await;
        browser.tall(1280).await;
        browser.check_page("charts-unit-light-1280").await;
        browser.client.goto(&format!("{base}/?range=1h")).await.unwrap();
        browser.see("Fullest disks").await;
        browser.charts(3).await;
        browser.tall(1280).await;
        browser.check_page("charts-fleet-light-1280").await;
        browser.end().await;
    });
}

/// The same pages in another light, or on another width.
fn charts_in(dark: bool, width: u32, word: &str) {
    let fleet = Fleet::start_with(&[]);
    fleet.unit_in_phase("default/hello", "running");
    let host = format!("/host/{}", fleet.host());
    let unit = format!("{host}/unit/default/hello");
    run(async {
        let base = fleet.address("http://");
        let browser = Browser::start(dark, width).await;
        browser.sign_in(&fleet).await;
        browser.client.goto(&format!("{base}/alerts/rule?name=disk")).await.unwrap();
        browser.find("main h1").await;
        browser.check_page(&format!("rule-{word}")).await;
        for (page, path, least) in [("host", host.as_str(), 6), ("unit", unit.as_str(), 2), ("fleet", "/", 3)] {
            browser.client.goto(&format!("{base}{path}?range=1h")).await.unwrap();
            browser.charts(least).await;
            browser.tall(width).await;
            browser.show(".charts").await;
            browser.check_page(&format!("charts-{page}-{word}")).await;
        }
        browser.end().await;
    });
}

#[test]
fn charts_are_read_in_the_dark() {
    charts_in(true, 1280, "dark-1280");
}

#[test]
fn charts_fit_a_telephone() {
    charts_in(false, 390, "light-390");
}

#[test]
fn charts_fit_a_telephone_in_the_dark() {
    charts_in(true, 390, "dark-390");
}
