//! The real Prometheus, on a free port, over blocks with the same data.

use std::{
    fs,
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    path::Path,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use muster_promql::number;
use serde_json::Value;
use tempfile::TempDir;

use crate::{
    answer::{self, Answer},
    data::Data,
    grammar::When,
};

/// How long it may take to start: far more than it needs on two busy cores.
const PATIENCE: Duration = Duration::from_secs(120);
const HINT: &str = "`apt install prometheus` provides it";

pub(crate) struct Oracle {
    process: Child,
    port: u16,
    _folder: TempDir,
}

impl Oracle {
    pub(crate) fn start(data: &Data) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let blocks = folder.path().join("blocks");
        let text = folder.path().join("data.txt");
        fs::write(&text, data.open_metrics()).unwrap();
        let made = Command::new("promtool")
            .args(["tsdb", "create-blocks-from", "openmetrics", "--quiet"])
            .args([&text, &blocks])
            .output()
            .unwrap_or_else(|error| panic!("promtool: {error}; {HINT}"));
        assert!(made.status.success(), "promtool: {}", String::from_utf8_lossy(&made.stderr));
        for _ in 0..5 {
            let port = TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port();
            let mut oracle =
                Self { process: spawn(folder.path(), &blocks, port), port, _folder: TempDir::new().unwrap() };
            if oracle.is_ready() {
                oracle._folder = folder;
                return oracle;
            }
        }
        panic!("prometheus does not start: {}", fs::read_to_string(folder.path().join("log")).unwrap_or_default());
    }

    /// Waits until it answers; not if it ends, as it does if something else took the port.
    fn is_ready(&mut self) -> bool {
        let started = Instant::now();
        while started.elapsed() < PATIENCE {
            if self.process.try_wait().unwrap().is_some() {
                return false;
            }
            if self.http("/-/ready", None).is_ok_and(|(status, _)| status == 200) {
                return true;
            }
            thread::sleep(Duration::from_millis(50));
        }
        false
    }

    /// What it answers.
    pub(crate) fn ask(&self, query: &str, when: When) -> Answer {
        let (path, mut form) = match when {
            When::At(at_ms) => ("/api/v1/query", format!("time={}", number::seconds(at_ms))),
            When::Range(range) => (
                "/api/v1/query_range",
                format!(
                    "start={}&end={}&step={}",
                    number::seconds(range.start_ms),
                    number::seconds(range.end_ms),
                    number::seconds(range.step_ms)
                ),
            ),
        };
        form.push_str("&query=");
        for byte in query.bytes() {
            form.push_str(&format!("%{byte:02X}"));
        }
        let (_, body) = self.http(path, Some(&form)).unwrap();
        let json: Value = serde_json::from_str(&body).unwrap_or_else(|error| panic!("{query}: {error}: {body}"));
        answer::of_json(&json)
    }

    fn http(&self, path: &str, form: Option<&str>) -> std::io::Result<(u16, String)> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port))?;
        let method = if form.is_some() { "POST" } else { "GET" };
        let form = form.unwrap_or_default();
        let length = form.len();
        let head = format!(
            "{method} {path} HTTP/1.0\r\nHost: localhost\r\nContent-Type: application/x-www-form-urlencoded\r\nContent-Length: {length}\r\n\r\n"
        );
        stream.write_all(head.as_bytes())?;
        stream.write_all(form.as_bytes())?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
        Ok((status, body.to_owned()))
    }
}

fn spawn(folder: &Path, blocks: &Path, port: u16) -> Child {
    let config = folder.join("prometheus.yml");
    fs::write(&config, "global: {}\n").unwrap();
    let log = fs::File::create(folder.join("log")).unwrap();
    Command::new("prometheus")
        .arg(format!("--config.file={}", config.display()))
        .arg(format!("--storage.tsdb.path={}", blocks.display()))
        .arg(format!("--web.listen-address=127.0.0.1:{port}"))
        // The data is some years old.
        .arg("--storage.tsdb.retention.time=100y")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log)
        .spawn()
        .unwrap_or_else(|error| panic!("prometheus: {error}; {HINT}"))
}

impl Drop for Oracle {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
