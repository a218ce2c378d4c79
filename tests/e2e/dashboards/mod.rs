//! Dashboards: runs every query of every panel against every server that it is for, over data of every series;
//! none may return nothing. Grafana's variables are replaced by the answers to their own queries.

mod data;
mod server;
mod standing;

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use muster_series::SeriesStore;
use muster_topics::catalogue;
use serde_json::Value;

use self::{
    data::{END_AGO_MS, HOSTS, STEP_MS, points},
    server::{Http, Server},
};
use crate::fleet::{Fleet, Home, eventually};

fn dashboards() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("dashboards")
}

/// The dashboards of a flavour, by name.
fn of_flavour(flavour: &str) -> BTreeMap<String, Value> {
    let read = |path: PathBuf| {
        let json = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
        (path.file_stem().unwrap().to_str().unwrap().to_owned(), json)
    };
    let found: BTreeMap<_, _> =
        fs::read_dir(dashboards().join(flavour)).unwrap().map(|entry| read(entry.unwrap().path())).collect();
    assert!(found.len() >= 6, "{:?}", found.keys());
    found
}

/// Which time is asked for: half an hour, up to the last value that there is.
#[derive(Clone, Copy)]
struct Times {
    start_ms: i64,
    end_ms: i64,
}

impl Times {
    fn of(now_ms: i64) -> Self {
        let end_ms = (now_ms - END_AGO_MS) / STEP_MS * STEP_MS;
        Self { start_ms: end_ms - 30 * 60_000, end_ms }
    }
}

fn now_ms() -> i64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    i64::try_from(now.as_millis()).unwrap()
}

/// What is asked of a server, and how many answers it has with a value.
type Ask<'a> = dyn Fn(&Value, &str) -> Result<usize, String> + 'a;
/// The values that a variable's query gives.
type Choose<'a> = dyn Fn(&str) -> Vec<String> + 'a;

/// Puts values in place of variables, the longest names first.
fn with(text: &str, variables: &BTreeMap<String, String>) -> String {
    let mut names: Vec<_> = variables.keys().collect();
    names.sort_by_key(|name| std::cmp::Reverse(name.len()));
    names.into_iter().fold(text.to_owned(), |text, name| text.replace(&format!("${name}"), &variables[name]))
}

/// Asks everything that dashboards ask; gives how many questions that were.
fn ask_all(what: &str, flavour: &str, macros: &[(&str, String)], choose: &Choose<'_>, ask: &Ask<'_>) -> usize {
    let mut asked = 0;
    let mut empty = Vec::new();
    for (name, dashboard) in of_flavour(flavour) {
        let mut variables: BTreeMap<String, String> =
            macros.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
        for variable in dashboard["templating"]["list"].as_array().unwrap() {
            if variable["type"] != "query" {
                continue;
            }
            let text = variable["definition"].as_str().unwrap();
            let values = choose(&with(text, &variables));
            assert!(!values.is_empty(), "{what}: {name}: {text} has no values");
            let all = variable["includeAll"] == true;
            let chosen = values.iter().find(|value| HOSTS.contains(&value.as_str())).unwrap_or(&values[0]);
            let value = if all { ".*" } else { chosen };
            variables.insert(variable["name"].as_str().unwrap().to_owned(), value.to_owned());
        }
        let mut question = |target: &Value, interval: &Value, text: &str, title: &str| {
            let mut variables = variables.clone();
            variables.insert("__interval".to_owned(), interval.as_str().unwrap_or("30s").to_owned());
            // As Grafana makes it: four times the query's least step.
            if let Some(step) = target["interval"].as_str() {
                let step_s: u32 = step.trim_end_matches('s').parse().unwrap();
                variables.insert("__rate_interval".to_owned(), format!("{}s", 4 * step_s));
            }
            let text = with(text, &variables);
            // The end of a regular expression is none of Grafana's.
            assert!(!text.replace("$/", "/").contains('$'), "{what}: {name}: {title}: {text}");
            asked += 1;
            match ask(target, &text) {
                Ok(0) => empty.push(format!("{name}: {title}: {text}: nothing")),
                Ok(_) => (),
                Err(problem) => empty.push(format!("{name}: {title}: {text}: {problem}")),
            }
        };
        for panel in dashboard["panels"].as_array().unwrap() {
            for target in panel["targets"].as_array().into_iter().flatten() {
                let text = target["expr"].as_str().or(target["query"].as_str()).unwrap();
                question(target, &panel["interval"], text, panel["title"].as_str().unwrap());
            }
        }
        for annotation in dashboard["annotations"]["list"].as_array().unwrap() {
            if let Some(text) = annotation["expr"].as_str() {
                question(annotation, &Value::Null, text, "annotations");
            }
        }
    }
    assert!(empty.is_empty(), "{what}: {} of {asked} questions:\n{}", empty.len(), empty.join("\n"));
    asked
}

/// What Grafana asks for a variable `label_values(series, label)`.
fn label_values(http: &Http, text: &str) -> Vec<String> {
    let inner = text.strip_prefix("label_values(").and_then(|rest| rest.strip_suffix(')')).unwrap();
    let (series, label) = inner.rsplit_once(", ").unwrap();
    let answer = http.get(&format!("/api/v1/label/{label}/values"), &[("match[]", series)]).unwrap();
    answer["data"].as_array().unwrap().iter().map(|value| value.as_str().unwrap().to_owned()).collect()
}

/// Asks a server that speaks Prometheus's language everything.
fn ask_prometheus(what: &str, http: &Http, times: Times) -> usize {
    let seconds = |ms: i64| (ms / 1000).to_string();
    let ask = |target: &Value, text: &str| {
        let (start, end) = (seconds(times.start_ms), seconds(times.end_ms));
        let answer = if target["instant"] == true {
            http.get("/api/v1/query", &[("query", text), ("time", &end)])
        } else {
            http.get("/api/v1/query_range", &[("query", text), ("start", &start), ("end", &end), ("step", "30")])
        }?;
        let is_value = |pair: &Value| pair[1].as_str().is_some_and(|value| value != "NaN");
        let rows = answer["data"]["result"].as_array().ok_or_else(|| answer.to_string())?.iter();
        let has_value = |row: &&Value| {
            is_value(&row["value"]) || row["values"].as_array().is_some_and(|values| values.iter().any(is_value))
        };
        Ok(rows.filter(has_value).count())
    };
    ask_all(what, "promql", &[], &|text| label_values(http, text), &ask)
}

#[test]
fn the_embedded_store_answers_every_panel() {
    let mut fleet = Fleet::start();
    fleet.stop();
    let now_ms = now_ms();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let store = SeriesStore::open(&fleet.data().join("console/series.db")).await.unwrap();
        for some in points(now_ms).chunks(10_000) {
            store.append(some).await.unwrap();
        }
        store.stop().await;
    });
    fleet.again();
    let http = Http::console(&fleet);
    ask_prometheus("the embedded store", &http, Times::of(now_ms));
}

#[test]
fn victoria_metrics_answers_every_panel() {
    let now_ms = now_ms();
    let server = Server::victoria_metrics(&points(now_ms));
    ask_prometheus("VictoriaMetrics", &server.http, Times::of(now_ms));
}

#[test]
fn prometheus_answers_every_panel() {
    let now_ms = now_ms();
    let server = Server::prometheus(&points(now_ms));
    ask_prometheus("Prometheus", &server.http, Times::of(now_ms));
}

#[test]
fn influxdb_answers_every_panel() {
    let now_ms = now_ms();
    let server = Server::influxdb(&points(now_ms));
    let times = Times::of(now_ms);
    let query = |text: &str| server.http.get("/query", &[("db", "muster"), ("epoch", "ms"), ("q", text)]);
    let macros = [
        ("timeFilter", format!("time >= {}ms and time <= {}ms", times.start_ms, times.end_ms)),
        ("{__to}", times.end_ms.to_string()),
    ];
    let choose = |text: &str| {
        let answer = query(text).unwrap();
        let rows = answer["results"][0]["series"][0]["values"].as_array().cloned().unwrap_or_default();
        rows.iter().map(|row| row[1].as_str().unwrap().to_owned()).collect()
    };
    let ask = |_: &Value, text: &str| {
        let answer = query(text)?;
        if let Some(problem) = answer["results"][0]["error"].as_str() {
            return Err(problem.to_owned());
        }
        let series = answer["results"][0]["series"].as_array().into_iter().flatten();
        let rows = series.flat_map(|one| one["values"].as_array().into_iter().flatten());
        Ok(rows.filter(|row| row[1].is_number()).count())
    };
    ask_all("InfluxDB", "influxql", &macros, &choose, &ask);
}

#[test]
fn exported_files_equal_committed_ones() {
    let home = Home::new();
    let folder = home.path().join("grafana");
    let run = home.muster(&["-o", "json", "dashboard", "export", "--out", folder.to_str().unwrap()]).expect_code(0);
    let written: Value = serde_json::from_str(&run.stdout).unwrap();
    let written = written.as_array().unwrap();
    assert!(written.len() >= 15, "{written:?}");
    for one in written {
        let path = Path::new(one["file"].as_str().unwrap());
        let committed = dashboards().join(path.strip_prefix(&folder).unwrap());
        assert_eq!(fs::read_to_string(path).unwrap(), fs::read_to_string(&committed).unwrap(), "{path:?}");
    }
    // Again, over what is there; and where nothing can be written.
    home.muster(&["dashboard", "export", "--out", folder.to_str().unwrap()]).expect_code(0);
    fs::write(home.path().join("file"), "").unwrap();
    home.muster(&["dashboard", "export", "--out", home.path().join("file").to_str().unwrap()])
        .expect_code(2)
        .expect_stderr("file");
    home.muster(&["dashboard", "export", "--out", "/tmp", "--language", "flux"])
        .expect_code(2)
        .expect_stderr("influxql");
}

#[test]
fn promtool_accepts_the_rules() {
    let rules = dashboards().join("rules");
    let files = |folder: &Path| {
        let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        let files: Vec<PathBuf> = entries.filter(|path| path.extension().is_some_and(|end| end == "yml")).collect();
        assert!(!files.is_empty(), "{}", folder.display());
        files
    };
    for (verb, files) in [("check", files(&rules)), ("test", files(&rules.join("tests")))] {
        let made = Command::new("promtool").args([verb, "rules"]).args(files).output();
        let made = made.unwrap_or_else(|error| panic!("promtool: {error}. hint: apt install prometheus"));
        let printed = [made.stdout, made.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
        assert!(made.status.success(), "promtool {verb} rules: {printed}");
    }
}

/// What a real fleet measures is in the catalogue.
#[test]
fn every_measured_series_is_listed() {
    let fleet = Fleet::start_with(&[]);
    fleet.unit_in_phase("default/hello", "running");
    let http = Http::console(&fleet);
    let names = eventually("measurements of host, unit and agent", || {
        let answer = http.get("/api/v1/label/__name__/values", &[])?;
        let names: Vec<String> = serde_json::from_value(answer["data"].clone()).unwrap();
        let has = |prefix| names.iter().any(|name| name.starts_with(prefix));
        if ["muster_host_online", "muster_host_memory", "muster_unit_memory", "muster_agent_"].into_iter().all(has) {
            Ok(names)
        } else {
            Err(format!("{names:?}"))
        }
    });
    let is_listed = |name: &str| name.starts_with("muster_yuno_") || catalogue::series(name).is_some();
    let unlisted: Vec<&String> = names.iter().filter(|name| !is_listed(name)).collect();
    assert!(unlisted.is_empty(), "not in topics/src/catalogue.rs: {unlisted:?}");
}

/// Rules ask for series that there are.
#[test]
fn rules_query_measured_series() {
    for file in ["rules/recording.yml", "rules/alerts.yml"] {
        let text = fs::read_to_string(dashboards().join(file)).unwrap();
        let word = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
        for name in text.split(|c| !word(c)).filter(|name| name.starts_with("muster_")) {
            assert!(catalogue::series(name).is_some(), "{file}: nothing measures {name}");
        }
    }
}
