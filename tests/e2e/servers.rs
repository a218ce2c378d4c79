//! Time-series databases that others make, as tests start them: real ones, on loopback.

use std::{fs, net::TcpListener, path::Path, process::Command};

/// A port that was free a moment ago.
pub(crate) fn free_port() -> u16 {
    TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port()
}

/// A program that must be there.
pub(crate) fn installed(program: &str, package: &str) -> Command {
    let found = Command::new("sh").args(["-c", "command -v \"$0\"", program]).output().unwrap();
    assert!(found.status.success(), "unknown {program}. hint: apt install {package}, as tests/run does");
    Command::new(program)
}

/// VictoriaMetrics, with its data below a folder. It answers `/health`, and shows at once what it has taken.
pub(crate) fn victoria_metrics(folder: &Path, port: u16) -> Command {
    let mut command = installed("victoria-metrics", "victoria-metrics");
    command
        .arg(format!("-httpListenAddr=127.0.0.1:{port}"))
        .arg(format!("-storageDataPath={}", folder.join("data").display()))
        .args(["-retentionPeriod=1y", "-search.latencyOffset=0s", "-search.disableCache"]);
    command
}

/// InfluxDB 1, with its data below a folder, and no database yet. It answers `/ping`.
pub(crate) fn influxdb(folder: &Path, port: u16) -> Command {
    let (below, config) = (|name: &str| folder.join(name), folder.join("influxdb.conf"));
    let text = format!(
        "reporting-disabled = true\nbind-address = \"127.0.0.1:0\"\n[meta]\ndir = {:?}\n[data]\ndir = {:?}\nwal-dir = {:?}\n\
         [http]\nbind-address = \"127.0.0.1:{port}\"\nlog-enabled = false\n[monitor]\nstore-enabled = false\n",
        below("meta"),
        below("data"),
        below("wal"),
    );
    fs::write(&config, text).unwrap();
    let mut command = installed("influxd", "influxdb");
    command.arg("-config").arg(&config).env("HOME", folder);
    command
}
