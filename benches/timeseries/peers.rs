//! The peers, as processes of their own.

use std::{
    fmt::Write as _,
    fs::{self, File},
    io::{BufRead, BufReader, BufWriter, Read, Write},
    net::{TcpListener, TcpStream},
    path::Path,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use serde_json::Value;

use crate::{
    data::{self, BASE_MS, HOUR_MS, Piece, Plan},
    spread::Spread,
    table::{Row, Subject, Table},
    usage,
};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Longest time to start a server.
const PATIENCE: Duration = Duration::from_secs(60);
const DAY_S: i64 = 24 * 3600;
/// Number of times that queries are repeated.
const ASKED: usize = 21;

/// A server that ends when this is dropped.
struct Server {
    child: Child,
    port: u16,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Server {
    /// Starts a program; `None` if it is not installed.
    fn start(program: &str, args: impl FnOnce(u16) -> Vec<String>, ready: &str) -> Result<Option<Self>> {
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let child = Command::new(program).args(args(port)).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let child = match child {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                eprintln!("{program} is not installed; left out");
                return Ok(None);
            }
            child => child?,
        };
        let server = Self { child, port };
        let begin = Instant::now();
        while server.get(ready).is_err() {
            if begin.elapsed() > PATIENCE {
                return Err(format!("{program} does not begin").into());
            }
            thread::sleep(Duration::from_millis(50));
        }
        Ok(Some(server))
    }

    fn busy(&self) -> Result<Duration> {
        Ok(usage::ticks(self.child.id().cast_signed())?.own)
    }

    fn resident_mb(&self) -> Result<f64> {
        resident_mb(self.child.id().cast_signed())
    }

    fn get(&self, path: &str) -> Result<String> {
        request(self.port, "GET", path, "")
    }
}

/// Sends one request on its own connection; with HTTP 1.0 closing it ends the response.
fn request(port: u16, method: &str, path: &str, body: &str) -> Result<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    let length = body.len();
    let head = format!("{method} {path} HTTP/1.0\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n");
    stream.write_all(head.as_bytes())?;
    stream.write_all(body.as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").ok_or("no answer")?;
    let status = head.split(' ').nth(1).unwrap_or_default();
    if status.starts_with('2') { Ok(body.to_owned()) } else { Err(format!("{path}: {status} {body}").into()) }
}

/// VictoriaMetrics.
pub(crate) fn victoria_metrics(plan: &Plan, table: &mut Table) -> Result<()> {
    let subject = Subject::VictoriaMetrics;
    let folder = tempfile::tempdir()?;
    let path = folder.path().display().to_string();
    let args = |port| {
        vec![
            format!("-storageDataPath={path}"),
            format!("-httpListenAddr=127.0.0.1:{port}"),
            "-retentionPeriod=100y".to_owned(),
            "-search.latencyOffset=0s".to_owned(),
            // Results are not cached: the other stores do not cache them either.
            "-search.disableCache".to_owned(),
        ]
    };
    let Some(server) = Server::start("victoria-metrics", args, "/health")? else { return Ok(()) };
    let mut took = Duration::ZERO;
    for halves in data::hours(plan) {
        let bodies = halves.map(|half| import(&half));
        let start = Instant::now();
        let port = server.port;
        thread::scope(|scope| {
            let senders = bodies.each_ref().map(|body| {
                scope.spawn(move || {
                    request(port, "POST", "/api/v1/import", body).map(drop).map_err(|error| error.to_string())
                })
            });
            senders.into_iter().try_for_each(|sender| sender.join().unwrap_or_else(|_| Err("a sender".to_owned())))
        })?;
        took += start.elapsed();
    }
    table.put(subject, Row::Bulk, plan.points() as f64 / took.as_secs_f64());
    table.put(subject, Row::Memory, server.resident_mb()?);
    let start = Instant::now();
    server.get("/internal/force_flush")?;
    server.get("/internal/force_merge")?;
    let mut before = 0;
    // It merges in the background: waits until the size is stable.
    for _ in 0..60 {
        thread::sleep(Duration::from_secs(1));
        let now = size_bytes(folder.path())?;
        if now == before {
            break;
        }
        before = now;
    }
    table.put(subject, Row::Settle, start.elapsed().as_secs_f64());
    table.put(subject, Row::Bytes, size_bytes(folder.path())? as f64 / plan.points() as f64);
    request(server.port, "POST", "/api/v1/import", &import(&data::asked()))?;
    server.get("/internal/force_flush")?;
    questions(&server, subject, table)?;
    slow(&server, "/write?precision=ms", plan, subject, table)?;
    server.get("/internal/force_flush")?;
    let end_s = (BASE_MS + HOUR_MS) / 1000;
    let question = "sum(count_over_time(%7B__name__%3D~%22slow_.%2A%22%7D%5B2h%5D))";
    let answer: Value = serde_json::from_str(&server.get(&format!("/api/v1/query?query={question}&time={end_s}"))?)?;
    let found = answer["data"]["result"][0]["value"][1].as_str().ok_or("no result")?.parse()?;
    everything_came(found, plan)
}

/// Points that were answered with 204 may have been dropped.
fn everything_came(found: usize, plan: &Plan) -> Result<()> {
    let wanted = data::slow_points(plan.slow);
    if found == wanted { Ok(()) } else { Err(format!("{found} points are stored and not {wanted}").into()) }
}

/// InfluxDB 1: only the slow load.
pub(crate) fn influxdb(plan: &Plan, table: &mut Table) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().display().to_string();
    let configuration = folder.path().join("influxdb.conf");
    let args = |port| {
        let text = format!(
            "reporting-disabled = true\nbind-address = \"127.0.0.1:0\"\n[meta]\ndir = \"{path}/meta\"\n[data]\ndir = \"{path}/data\"\n\
             wal-dir = \"{path}/wal\"\nquery-log-enabled = false\n[monitor]\nstore-enabled = false\n\
             [http]\nbind-address = \"127.0.0.1:{port}\"\nlog-enabled = false\n"
        );
        let _ = fs::write(&configuration, text);
        vec!["-config".to_owned(), configuration.display().to_string()]
    };
    let Some(server) = Server::start("influxd", args, "/ping")? else { return Ok(()) };
    request(server.port, "POST", "/query?q=CREATE%20DATABASE%20slow", "")?;
    slow(&server, "/write?db=slow&precision=ms", plan, Subject::InfluxDb, table)?;
    let answer = server.get("/query?db=slow&q=SELECT%20count(%2A)%20FROM%20/slow_.%2A/")?;
    let answer: Value = serde_json::from_str(&answer)?;
    let measurements = answer["results"][0]["series"].as_array().ok_or("no result")?;
    // The first column is the time.
    let counts = measurements.iter().filter_map(|one| one["values"][0].as_array()).flat_map(|row| row.iter().skip(1));
    everything_came(counts.filter_map(Value::as_u64).sum::<u64>() as usize, plan)
}

/// Processor time of a server for the load of hosts.
fn slow(server: &Server, path: &str, plan: &Plan, subject: Subject, table: &mut Table) -> Result<()> {
    for host in 0..data::HOSTS {
        let before = data::of_host(host, BASE_MS, data::BEFORE_MS / data::STEP_MS);
        request(server.port, "POST", path, &data::lines(&before))?;
    }
    // Work that is left after the load is not counted.
    thread::sleep(Duration::from_secs(10));
    let sent = data::sent(plan.slow);
    let mut stream = BufReader::new(TcpStream::connect(("127.0.0.1", server.port))?);
    stream.get_ref().set_nodelay(true)?;
    let (used, begin) = (server.busy()?, Instant::now());
    for (number, sent) in (0..).zip(&sent) {
        thread::sleep((begin + data::BATCH_EVERY * number).saturating_duration_since(Instant::now()));
        let length = sent.lines.len();
        let request =
            format!("POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n{}", sent.lines);
        stream.get_mut().write_all(request.as_bytes())?;
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            if stream.read_line(&mut head)? == 0 {
                return Err(format!("{path}: {head}").into());
            }
        }
        // It has no body.
        if head.split(' ').nth(1) != Some("204") {
            return Err(format!("{path}: {head}").into());
        }
    }
    let share = (server.busy()? - used).as_secs_f64() / begin.elapsed().as_secs_f64();
    table.put(subject, Row::Slow, share * 100.0);
    table.put(subject, Row::SlowMemory, server.resident_mb()?);
    Ok(())
}

fn import(piece: &Piece) -> String {
    let mut text = String::new();
    for (name, labels, points) in piece {
        let mut metric: serde_json::Map<String, Value> =
            labels.iter().map(|(name, value)| (name.clone(), Value::from(value.as_str()))).collect();
        metric.insert("__name__".to_owned(), Value::from(name.as_str()));
        let values: Vec<String> = points.iter().map(|point| point.1.to_string()).collect();
        let times: Vec<String> = points.iter().map(|point| point.0.to_string()).collect();
        let (values, times) = (values.join(","), times.join(","));
        let _ =
            writeln!(text, "{{\"metric\":{},\"values\":[{values}],\"timestamps\":[{times}]}}", Value::Object(metric));
    }
    text
}

/// Prometheus.
pub(crate) fn prometheus(plan: &Plan, table: &mut Table) -> Result<()> {
    let subject = Subject::Prometheus;
    let folder = tempfile::tempdir()?;
    let (text, blocks) = (folder.path().join("points.txt"), folder.path().join("data"));
    // All points of a series follow each other, as its text format requires.
    let mut sources: Vec<data::Source> = (0..plan.series).map(|number| data::Source::new("bulk", number)).collect();
    let pieces = sources.iter_mut().map(|source| {
        let points = source.points(BASE_MS, plan.hours * HOUR_MS / data::STEP_MS, data::STEP_MS);
        (source.name.clone(), source.labels.clone(), points)
    });
    write_text(&text, pieces.collect::<Piece>())?;
    let start = Instant::now();
    if !make_blocks(&text, &blocks)? {
        return Ok(());
    }
    table.put(subject, Row::Bulk, plan.points() as f64 / start.elapsed().as_secs_f64());
    table.put(subject, Row::Bytes, size_bytes(&blocks)? as f64 / plan.points() as f64);
    write_text(&text, data::asked())?;
    make_blocks(&text, &blocks)?;
    let args = |port| {
        let configuration = folder.path().join("prometheus.yml");
        let _ = fs::write(&configuration, "global: {}\n");
        vec![
            format!("--config.file={}", configuration.display()),
            format!("--storage.tsdb.path={}", blocks.display()),
            "--storage.tsdb.retention.time=100y".to_owned(),
            format!("--web.listen-address=127.0.0.1:{port}"),
        ]
    };
    let Some(server) = Server::start("prometheus", args, "/-/ready")? else { return Ok(()) };
    table.put(subject, Row::Memory, server.resident_mb()?);
    questions(&server, subject, table)
}

fn write_text(path: &Path, mut piece: Piece) -> Result<()> {
    piece.sort_by(|one, other| one.0.cmp(&other.0));
    let mut file = BufWriter::new(File::create(path)?);
    let mut last = "";
    for (name, labels, points) in &piece {
        if last != name {
            writeln!(file, "# TYPE {name} unknown")?;
        }
        last = name;
        let labels: Vec<String> = labels.iter().map(|(name, value)| format!("{name}=\"{value}\"")).collect();
        let labels = labels.join(",");
        for (at_ms, value) in points {
            writeln!(file, "{name}{{{labels}}} {value} {}", at_ms / 1000)?;
        }
    }
    writeln!(file, "# EOF")?;
    Ok(file.flush()?)
}

fn make_blocks(text: &Path, blocks: &Path) -> Result<bool> {
    let made = Command::new("promtool")
        .args(["tsdb", "create-blocks-from", "openmetrics"])
        .args([text, blocks])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .output();
    match made {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            eprintln!("promtool is not installed; Prometheus is left out");
            Ok(false)
        }
        made => {
            let made = made?;
            if made.status.success() { Ok(true) } else { Err(String::from_utf8_lossy(&made.stderr).into()) }
        }
    }
}

/// Queries that both understand.
fn questions(server: &Server, subject: Subject, table: &mut Table) -> Result<()> {
    let base_s = BASE_MS / 1000;
    let ask = |query: &str, start_s: i64, end_s: i64, points: usize| -> Result<Duration> {
        let path = format!("/api/v1/query_range?query={query}&start={start_s}&end={end_s}&step=60");
        let mut times = Vec::new();
        for _ in 0..ASKED {
            let start = Instant::now();
            let answer = server.get(&path)?;
            times.push(start.elapsed());
            let answer: Value = serde_json::from_str(&answer)?;
            let found: usize = answer["data"]["result"]
                .as_array()
                .ok_or("no result")?
                .iter()
                .map(|series| series["values"].as_array().map_or(0, Vec::len))
                .sum();
            if found != points {
                return Err(format!("{query}: {found} points and not {points}").into());
            }
        }
        Ok(Spread::of(times).median())
    };
    let one = "asked_busy_percent%7Bhost%3D%22host-0000%22%2Cunit%3D%22shop%2Funit-0%22%7D";
    table.put(subject, Row::Hour, ask(one, base_s + 3_600, base_s + 7_199, 60)?.as_secs_f64() * 1e6);
    let end_s = base_s + DAY_S - 1;
    let day = ask("asked_busy_percent", base_s, end_s, data::ASKED * 1_440)?;
    table.put(subject, Row::Day, day.as_secs_f64() * 1e3);
    let hosts = (data::ASKED * 4).div_ceil(data::PER_HOST);
    let average = ask("avg%20by%20(host)%20(asked_busy_percent)", base_s, end_s, hosts * 1_440)?;
    table.put(subject, Row::Average, average.as_secs_f64() * 1e3);
    Ok(())
}

/// The resident memory of a process, in MB of 1,048,576 bytes.
pub(crate) fn resident_mb(pid: i32) -> Result<f64> {
    Ok(usage::counted_rss_bytes(pid)? as f64 / 1_048_576.0)
}

/// The size of all files in a folder.
pub(crate) fn size_bytes(folder: &Path) -> Result<u64> {
    let mut bytes = 0;
    for entry in fs::read_dir(folder)? {
        let (path, kind) = entry.and_then(|entry| Ok((entry.path(), entry.file_type()?)))?;
        bytes += if kind.is_dir() { size_bytes(&path)? } else { fs::metadata(&path)?.len() };
    }
    Ok(bytes)
}
