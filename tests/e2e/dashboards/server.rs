//! The servers that dashboards are for, real ones, on free ports, with data in them.

use std::{
    fs,
    io::{Read, Write},
    net::TcpStream,
    process::Command,
};

use base64::{Engine, prelude::BASE64_STANDARD};
use muster_topics::metric::Point;
use serde_json::Value;
use tempfile::TempDir;

use super::data::{lines, open_metrics};
use crate::{
    fleet::{Fleet, Running, eventually},
    servers::{self, free_port, installed},
};

/// Where a server is asked.
pub(super) struct Http {
    address: String,
    /// What stands before each path.
    prefix: &'static str,
    /// A line of the head that says who asks.
    authorization: String,
}

impl Http {
    /// A console, as an operator sees it.
    pub(super) fn console(fleet: &Fleet) -> Self {
        let text = fs::read_to_string(fleet.home.path().join("config/muster/context.toml")).unwrap();
        let found = |key: &str| {
            let line = text.lines().find_map(|line| line.trim().strip_prefix(key)?.trim().strip_prefix('='));
            line.unwrap_or_else(|| panic!("no {key} in {text}")).trim().trim_matches('"').to_owned()
        };
        let address = found("url").trim_start_matches("http://").trim_end_matches('/').to_owned();
        let secret = BASE64_STANDARD.encode(format!("grafana:{}", found("token")));
        Self { address, prefix: "/prometheus", authorization: format!("Authorization: Basic {secret}\r\n") }
    }

    fn local(port: u16) -> Self {
        Self { address: format!("127.0.0.1:{port}"), prefix: "", authorization: String::new() }
    }

    /// Asks by GET; gives the JSON, or what else was answered.
    pub(super) fn get(&self, path: &str, params: &[(&str, &str)]) -> Result<Value, String> {
        let encode = |text: &str| text.bytes().map(|byte| format!("%{byte:02X}")).collect::<String>();
        let pairs: Vec<String> =
            params.iter().map(|(name, value)| format!("{}={}", encode(name), encode(value))).collect();
        let (status, body) =
            self.send("GET", &format!("{path}?{}", pairs.join("&")), b"").map_err(|e| e.to_string())?;
        if status != 200 {
            return Err(format!("{status}: {body}"));
        }
        serde_json::from_str(&body).map_err(|error| format!("{error}: {body}"))
    }

    /// Sends a body that must be taken.
    fn post(&self, path: &str, body: &str) {
        let (status, answer) = self.send("POST", path, body.as_bytes()).unwrap();
        assert!((200..300).contains(&status), "{path}: {status}: {answer}");
    }

    fn send(&self, method: &str, path: &str, body: &[u8]) -> std::io::Result<(u16, String)> {
        let mut stream = TcpStream::connect(&self.address)?;
        let (prefix, length) = (self.prefix, body.len());
        let head = format!(
            "{method} {prefix}{path} HTTP/1.0\r\nHost: {}\r\n{}Content-Length: {length}\r\n\r\n",
            self.address, self.authorization
        );
        stream.write_all(head.as_bytes())?;
        stream.write_all(body)?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
        Ok((status, body.to_owned()))
    }
}

/// A server that runs until this is dropped.
pub(super) struct Server {
    /// Where it is asked.
    pub(super) http: Http,
    _process: Running,
    _folder: TempDir,
}

impl Server {
    /// VictoriaMetrics, which takes InfluxDB's lines.
    pub(super) fn victoria_metrics(points: &[Point]) -> Self {
        let port = free_port();
        let folder = TempDir::new().unwrap();
        let mut command = servers::victoria_metrics(folder.path(), port);
        let server = Self::start(&mut command, port, folder, "/health");
        for some in points.chunks(20_000) {
            server.http.post("/write?precision=ms", &lines(some));
        }
        let _ = server.http.send("GET", "/internal/force_flush", b"").unwrap();
        server
    }

    /// Prometheus, over blocks that promtool makes.
    pub(super) fn prometheus(points: &[Point]) -> Self {
        let port = free_port();
        let folder = TempDir::new().unwrap();
        let (text, blocks, config) =
            (folder.path().join("data.txt"), folder.path().join("blocks"), folder.path().join("prometheus.yml"));
        fs::write(&text, open_metrics(points)).unwrap();
        fs::write(&config, "global: {}\n").unwrap();
        let mut promtool = installed("promtool", "prometheus");
        let made =
            promtool.args(["tsdb", "create-blocks-from", "openmetrics", "--quiet"]).args([&text, &blocks]).output();
        let made = made.unwrap();
        assert!(made.status.success(), "promtool: {}", String::from_utf8_lossy(&made.stderr));
        let mut command = installed("prometheus", "prometheus");
        command
            .arg(format!("--config.file={}", config.display()))
            .arg(format!("--storage.tsdb.path={}", blocks.display()))
            .arg(format!("--web.listen-address=127.0.0.1:{port}"));
        Self::start(&mut command, port, folder, "/-/ready")
    }

    /// InfluxDB 1.
    pub(super) fn influxdb(points: &[Point]) -> Self {
        let port = free_port();
        let folder = TempDir::new().unwrap();
        let mut command = servers::influxdb(folder.path(), port);
        let server = Self::start(&mut command, port, folder, "/ping");
        server.http.post("/query?q=CREATE%20DATABASE%20muster", "");
        for some in points.chunks(5_000) {
            server.http.post("/write?db=muster&precision=ms", &lines(some));
        }
        server
    }

    fn start(command: &mut Command, port: u16, folder: TempDir, ready: &str) -> Self {
        let http = Http::local(port);
        let process = Running::start(command);
        eventually(&format!("{command:?} to answer"), || match http.send("GET", ready, b"") {
            Ok((200..300, _)) => Ok(()),
            other => Err(format!("{other:?}")),
        });
        Self { http, _process: process, _folder: folder }
    }
}
