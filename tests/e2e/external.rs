//! External time-series stores: the real VictoriaMetrics and InfluxDB 1.6. Their content is checked by queries, point by point, because their
//! answers to writes say little (VictoriaMetrics answers 204 to lines that it drops).

use std::{
    collections::BTreeSet,
    fs,
    io::{Read, Write},
    net::TcpStream,
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::Value;

use crate::{
    fleet::{Home, Running, eventually},
    roles::Roles,
    servers,
};

/// One request on a connection of its own; gives status and body.
fn ask(port: u16, line: &str, body: &[u8]) -> Result<(u16, String), String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).map_err(|error| error.to_string())?;
    let head = format!("{line} HTTP/1.0\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n", body.len());
    let sent = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body));
    sent.map_err(|error| error.to_string())?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).map_err(|error| error.to_string())?;
    let answer = String::from_utf8_lossy(&answer).into_owned();
    let (head, body) = answer.split_once("\r\n\r\n").ok_or("no answer")?;
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).ok_or("no status")?;
    Ok((status, body.to_owned()))
}

fn encoded(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02X}")).collect()
}

/// A server, which keeps its port and its data when it is started again.
struct Server {
    running: Option<Running>,
    port: u16,
    folder: PathBuf,
    start: fn(&Path, u16) -> Command,
    ready: &'static str,
}

impl Server {
    fn start(home: &Home, name: &str, start: fn(&Path, u16) -> Command, ready: &'static str) -> Self {
        let port = servers::free_port();
        let folder = home.path().join(name);
        fs::create_dir_all(&folder).unwrap();
        let mut server = Self { running: None, port, folder, start, ready };
        server.again();
        server
    }

    fn victoria(home: &Home, name: &str) -> Self {
        Self::start(home, name, servers::victoria_metrics, "GET /health")
    }

    fn influx(home: &Home, name: &str) -> Self {
        let server = Self::start(home, name, servers::influxdb, "GET /ping");
        server.query("CREATE DATABASE fleet");
        server
    }

    fn again(&mut self) {
        self.running = Some(Running::start(&mut (self.start)(&self.folder, self.port)));
        let (port, ready) = (self.port, self.ready);
        eventually("a server", || match ask(port, ready, b"")? {
            (200..=299, _) => Ok(()),
            other => Err(format!("{other:?}")),
        });
    }

    /// In order, so that what it took is what it has: how durable others are is not what is tested here.
    fn stop(&mut self) {
        let (code, printed) = self.running.take().unwrap().stop();
        assert_eq!(code, 0, "{printed}");
    }

    fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// InfluxDB's answer to a query.
    fn query(&self, query: &str) -> Value {
        let line = format!("POST /query?db=fleet&epoch=ms&q={}", encoded(query));
        let (status, body) = ask(self.port, &line, b"").unwrap();
        assert_eq!(status, 200, "{query}: {body}");
        serde_json::from_str(&body).unwrap()
    }

    /// Every point that VictoriaMetrics has, as series, time and value.
    fn victoria_points(&self) -> Points {
        ask(self.port, "GET /internal/force_flush", b"").unwrap();
        let (status, body) =
            ask(self.port, &format!("GET /api/v1/export?match[]={}", encoded("{__name__!=\"\"}")), b"").unwrap();
        assert_eq!(status, 200, "{body}");
        let mut points = Points::new();
        for line in body.lines() {
            let one: Value = serde_json::from_str(line).unwrap();
            let mut labels: Vec<(String, String)> = one["metric"]
                .as_object()
                .unwrap()
                .iter()
                .map(|(name, value)| (name.clone(), value.as_str().unwrap().to_owned()))
                .collect();
            labels.sort();
            let times = one["timestamps"].as_array().unwrap().iter().map(|at| at.as_i64().unwrap());
            points.extend(times.map(|at_ms| (labels.clone(), at_ms)));
        }
        points
    }

    /// Every point that InfluxDB has, the same way: measurement and field make the name.
    fn influx_points(&self) -> Points {
        let answer = self.query("SELECT * FROM /.*/ GROUP BY *");
        let mut points = Points::new();
        for series in answer["results"][0]["series"].as_array().into_iter().flatten() {
            let columns: Vec<&str> =
                series["columns"].as_array().unwrap().iter().map(|c| c.as_str().unwrap()).collect();
            for row in series["values"].as_array().unwrap() {
                for (column, value) in columns.iter().zip(row.as_array().unwrap()).skip(1).filter(|(_, v)| !v.is_null())
                {
                    assert!(value.is_number(), "{column}: {value}");
                    let mut labels: Vec<(String, String)> = series["tags"]
                        .as_object()
                        .into_iter()
                        .flatten()
                        .map(|(name, value)| (name.clone(), value.as_str().unwrap().to_owned()))
                        // A tag that others of the measurement have.
                        .filter(|(_, value)| !value.is_empty())
                        .collect();
                    labels.push(("__name__".to_owned(), format!("{}_{column}", series["name"].as_str().unwrap())));
                    labels.sort();
                    points.insert((labels, row[0].as_i64().unwrap()));
                }
            }
        }
        points
    }
}

/// Labels with the name among them, and a time.
type Points = BTreeSet<(Vec<(String, String)>, i64)>;

/// Everything that the embedded store has, which is what was acknowledged.
fn own_points(roles: &Roles) -> Points {
    let text = roles.ok(&["metric", "export", "{__name__!=\"\"}"]);
    let mut points = Points::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let (_, read) = muster_topics::metric::decode(format!("# v=1 epoch=1 seq=1\n{line}\n").as_bytes()).unwrap();
        for point in read {
            for (field, _) in &point.fields {
                let mut labels = point.tags.clone();
                labels.push(("__name__".to_owned(), format!("{}_{field}", point.measurement)));
                labels.sort();
                points.insert((labels, point.at_ms));
            }
        }
    }
    points
}

/// Waits until a store has everything that the embedded one has now.
#[track_caller]
fn has_everything(roles: &Roles, what: &str, found: impl Fn() -> Points) {
    let wanted = own_points(roles);
    assert!(wanted.len() > 50, "{} points", wanted.len());
    eventually(what, || {
        let found = found();
        let missing: Vec<_> = wanted.difference(&found).take(3).collect();
        if missing.is_empty() {
            return Ok(());
        }
        let stores = roles.ok(&["metric", "stores"]);
        Err(format!(
            "{} of {} are there; missing: {missing:?}\n{stores}",
            wanted.intersection(&found).count(),
            wanted.len()
        ))
    });
}

fn entry(name: &str, kind: &str, url: &str, more: &str) -> String {
    format!("[[metric_stores]]\nname = \"{name}\"\nkind = \"{kind}\"\nurl = \"{url}\"\n{more}\n")
}

/// What is told of a store.
fn told(roles: &Roles, name: &str) -> Value {
    let stores = roles.json(&["metric", "stores"]);
    let found = stores.as_array().unwrap().iter().find(|store| store["name"] == name);
    found.unwrap_or_else(|| panic!("no {name} in {stores}")).clone()
}

/// Waits until so many more points are in the embedded store.
fn more_points(roles: &Roles, count: usize) {
    let before = own_points(roles).len();
    eventually("more measurements", || {
        let now = own_points(roles).len();
        if now >= before + count { Ok(()) } else { Err(format!("{now} after {before}")) }
    });
}

#[test]
fn external_stores_get_everything_despite_outages() {
    let home = Home::new();
    let (mut victoria, mut influx) = (Server::victoria(&home, "victoria"), Server::influx(&home, "influx"));
    let second = Server::victoria(&home, "second");
    let more = [
        entry("victoria", "victoriametrics", &victoria.url(), ""),
        entry("influx", "influxdb1", &influx.url(), "bucket = \"fleet\""),
        entry("two", "influxdb2", &second.url(), "org = \"fleet\"\nbucket = \"fleet\""),
        // Nobody listens there: it holds up nobody else.
        entry("nowhere", "victoriametrics", "http://127.0.0.1:1", ""),
    ];
    let mut roles = Roles::start_in(home, more.concat());
    let agent = roles.agent(&["--join", &roles.token()]);
    roles.wait_for_host("online");
    more_points(&roles, 100);
    has_everything(&roles, "VictoriaMetrics", || victoria.victoria_points());
    has_everything(&roles, "InfluxDB", || influx.influx_points());
    has_everything(&roles, "by the API of InfluxDB 2", || second.victoria_points());
    // Nothing else is there: no names or labels of the store's own making.
    // Theirs first: a series may begin between the two.
    let theirs = victoria.victoria_points();
    let own = own_points(&roles);
    let strange: Vec<_> = theirs.iter().filter(|(labels, _)| !own.iter().any(|(ours, _)| ours == labels)).collect();
    assert!(strange.is_empty(), "{strange:?}");
    let nowhere = told(&roles, "nowhere");
    assert_eq!((&nowhere["failing"], &nowhere["sent_lines"]), (&true.into(), &0.into()));
    assert!(nowhere["waiting_lines"].as_u64().unwrap() > 0, "{nowhere}");

    // One is away for a while, and in the middle of that the console is killed: what was acknowledged until then comes from its queue.
    victoria.stop();
    influx.stop();
    more_points(&roles, 200);
    eventually("a store that is missed", || {
        let store = told(&roles, "victoria");
        if store["failing"] == true && store["waiting_lines"].as_u64() > Some(0) {
            Ok(())
        } else {
            Err(store.to_string())
        }
    });
    roles.restart_console();
    let store = told(&roles, "victoria");
    assert!(store["waiting_lines"].as_u64() > Some(0), "{store}");
    more_points(&roles, 100);
    victoria.again();
    influx.again();
    has_everything(&roles, "VictoriaMetrics after it was away", || victoria.victoria_points());
    has_everything(&roles, "InfluxDB after it was away", || influx.influx_points());
    // Killed again and again while it sends.
    for _ in 0..3 {
        more_points(&roles, 50);
        roles.restart_console();
    }
    has_everything(&roles, "VictoriaMetrics after the console was killed", || victoria.victoria_points());
    has_everything(&roles, "InfluxDB after the console was killed", || influx.influx_points());
    has_everything(&roles, "by the API of InfluxDB 2 after the console was killed", || second.victoria_points());

    // The console tells of this itself, and of itself.
    let sent = roles.json(&["metric", "query", "muster_console_external_sent_total{store=\"victoria\"}"]);
    assert!(sent["series"][0]["points"][0][1].is_number(), "{sent}");
    let hosts = roles.json(&["metric", "query", "sum(muster_console_hosts_count)"]);
    assert_eq!(hosts["series"][0]["points"][0][1], 1.0, "{hosts}");
    let (code, _) = agent.stop();
    assert_eq!(code, 0);
}

#[test]
fn refused_lines_are_set_aside() {
    let home = Home::new();
    let (victoria, influx) = (Server::victoria(&home, "victoria"), Server::influx(&home, "influx"));
    let more = [
        entry("victoria", "victoriametrics", &victoria.url(), ""),
        entry("wrong", "influxdb1", &influx.url(), "bucket = \"no_such\""),
    ];
    let roles = Roles::start_in(home, more.concat());
    let agent = roles.agent(&["--join", &roles.token()]);
    roles.wait_for_host("online");
    more_points(&roles, 100);
    has_everything(&roles, "the other store", || victoria.victoria_points());
    let store = eventually("what was refused", || {
        let store = told(&roles, "wrong");
        if store["refused_lines"].as_u64() >= Some(30) { Ok(store) } else { Err(store.to_string()) }
    });
    assert_eq!((&store["sent_lines"], &store["retries"]), (&0.into(), &0.into()), "{store}");
    let message = store["last_error"]["message"].as_str().unwrap();
    assert!(message.contains("404") && message.contains("database not found"), "{message}");
    let table = roles.ok(&["metric", "stores"]);
    assert!(table.contains("SET ASIDE") && table.contains("database not found"), "{table}");
    let (code, _) = agent.stop();
    assert_eq!(code, 0);

    // With the reason gone, the files can be sent as they are.
    let folder = store["quarantine"]["folder"].as_str().unwrap();
    let mut lines = 0;
    for entry in fs::read_dir(folder).unwrap() {
        let text = fs::read(entry.unwrap().path()).unwrap();
        let head = String::from_utf8_lossy(&text[..200]).into_owned();
        assert!(head.contains("database not found"), "{head}");
        lines += text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty() && line[0] != b'#').count();
        let (status, answer) = ask(influx.port, "POST /write?db=fleet&precision=ms", &text).unwrap();
        assert_eq!(status, 204, "{answer}");
    }
    assert!(lines >= 30 && influx.influx_points().len() >= lines, "{lines}");
}

#[test]
fn invalid_store_is_refused_at_start() {
    let home = Home::new();
    let data = home.path().join("console").display().to_string();
    for (entry, words) in [
        (entry("far", "influxdb2", "http://127.0.0.1:1", ""), vec!["far", "bucket", "hint:"]),
        (entry("far", "influxdb2", "https://h", "bucket = \"b\""), vec!["far", "authority_file", "hint:"]),
        (entry("far", "graphite", "http://127.0.0.1:1", ""), vec!["console.toml", "graphite", "influxdb2"]),
        (entry("far", "influxdb1", "http://127.0.0.1:1", "buket = \"x\""), vec!["console.toml", "buket", "bucket"]),
    ] {
        let path = home.path().join("console.toml");
        let usual = "web_listen = \"127.0.0.1:0\"\nhosts_listen = \"127.0.0.1:0\"";
        fs::write(&path, format!("data_dir = {data:?}\n{usual}\n{entry}")).unwrap();
        let run = home.muster(&["console", "--config", path.to_str().unwrap()]);
        assert!(run.code == 1 || run.code == 2, "{run:?}");
        for word in words {
            assert!(run.stderr.contains(word), "{word} is not in: {}", run.stderr);
        }
    }
}
