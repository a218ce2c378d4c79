//! Outlets of alerts: a webhook, and the real Alertmanager.

use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    process::Command,
    sync::{Arc, Mutex},
    thread,
};

use serde_json::{Value, json};

use crate::{
    fleet::{Home, Running, eventually},
    roles::Roles,
};

/// A request as it came.
#[derive(Clone, Debug)]
pub(crate) struct ReceivedRequest {
    headers: Vec<(String, String)>,
    body: String,
}

impl ReceivedRequest {
    fn header(&self, name: &str) -> &str {
        self.headers.iter().find(|(key, _)| key == name).map_or("", |(_, value)| value)
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap()
    }
}

/// A webhook, which refuses its first two requests.
pub(crate) struct Hook {
    pub(crate) url: String,
    pub(crate) asked: Arc<Mutex<Vec<ReceivedRequest>>>,
}

impl Hook {
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/alerts?to=me", listener.local_addr().unwrap());
        let asked: Arc<Mutex<Vec<ReceivedRequest>>> = Arc::default();
        let all = Arc::clone(&asked);
        // It ends with the test's process.
        thread::spawn(move || {
            for (number, stream) in listener.incoming().enumerate() {
                let Ok(stream) = stream else { continue };
                if let Some(one) = answer(stream, if number < 2 { "503 Busy" } else { "204 Fine" })
                    && number >= 2
                {
                    all.lock().unwrap().push(one);
                }
            }
        });
        Self { url, asked }
    }

    /// The requests, once there are so many.
    #[track_caller]
    fn asked(&self, count: usize) -> Vec<ReceivedRequest> {
        eventually("requests to the webhook", || {
            let asked = self.asked.lock().unwrap().clone();
            if asked.len() >= count { Ok(asked) } else { Err(format!("{asked:?}")) }
        })
    }
}

/// Reads a request, answers it, and closes the connection.
fn answer(stream: TcpStream, status: &str) -> Option<ReceivedRequest> {
    let mut reader = BufReader::new(stream);
    let mut lines = Vec::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok().filter(|read| *read > 0)?;
        if line.trim().is_empty() {
            break;
        }
        lines.push(line.trim().to_owned());
    }
    let header = |line: &String| line.split_once(": ").map(|(key, value)| (key.to_lowercase(), value.to_owned()));
    let headers: Vec<(String, String)> = lines.iter().filter_map(header).collect();
    let length = headers.iter().find(|(key, _)| key == "content-length")?.1.parse().ok()?;
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    let mut stream = reader.into_inner();
    stream.write_all(format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n").as_bytes()).ok()?;
    Some(ReceivedRequest { headers, body: String::from_utf8(body).ok()? })
}

/// What a server says to `GET path`, as JSON.
fn get(address: &str, path: &str) -> Result<Value, String> {
    let mut stream = TcpStream::connect(address).map_err(|error| error.to_string())?;
    stream
        .write_all(format!("GET {path} HTTP/1.0\r\nhost: {address}\r\n\r\n").as_bytes())
        .map_err(|e| e.to_string())?;
    let mut text = String::new();
    stream.read_to_string(&mut text).map_err(|error| error.to_string())?;
    let (_, body) = text.split_once("\r\n\r\n").ok_or(text.clone())?;
    serde_json::from_str(body).map_err(|error| format!("{error}: {body}"))
}

fn raise(roles: &Roles) {
    roles.ok(&["rule", "set", "tight", "--metric", "memory_used", "--level", "0.1%", "--severity", "critical"]);
}

fn clear(roles: &Roles) {
    roles.ok(&["rule", "set", "tight", "--level", "99.9%"]);
}

#[test]
fn webhook_gets_signed_raised_and_cleared_alerts() {
    let home = Home::new();
    let hook = Hook::start();
    let secret = home.path().join("secret");
    fs::write(&secret, "hush\n").unwrap();
    let more = format!(
        "[[alert_outlets]]\nkind = \"webhook\"\nurl = \"{}\"\nsecret_file = \"{}\"\n",
        hook.url,
        secret.display()
    );
    let mut roles = Roles::start_in(home, more);
    let agent = roles.agent(&["--join", &roles.token()]);
    let host = roles.wait_for_host("online");
    raise(&roles);
    // Its first two answers were no.
    let first = hook.asked(1)[0].clone();
    let told = first.json();
    assert_eq!((&told["v"], &told["event"]), (&json!(1), &json!("raised")));
    assert_eq!((&told["alert"]["host"], &told["alert"]["alert"]["rule"]), (&host["id"], &json!("tight")));
    let seconds = first.header("x-muster-timestamp");
    let message = roles.home.path().join("message");
    fs::write(&message, format!("{seconds}.{}", first.body)).unwrap();
    // By a program that knows nothing of ours.
    let program = "import hmac, sys; print(hmac.new(b'hush', open(sys.argv[1], 'rb').read(), 'sha256').hexdigest())";
    let tag = Command::new("python3").args(["-c", program]).arg(&message).output().unwrap();
    let tag = String::from_utf8(tag.stdout).unwrap();
    assert_eq!(first.header("x-muster-signature"), format!("sha256={}", tag.trim()));

    // A new console knows what was told.
    roles.restart_console();
    clear(&roles);
    let asked = hook.asked(2);
    let over = asked[1].json();
    assert_eq!((&over["event"], &over["alert"]["standing"]), (&json!("cleared"), &json!("cleared")));
    assert_eq!(over["alert"]["alert"]["since_ms"], told["alert"]["alert"]["since_ms"]);

    // What is silenced is told to nobody.
    roles.ok(&["silence", "create", "--rule", "tight", "--for", "1h", "--reason", "a test"]);
    raise(&roles);
    eventually("a silenced alert", || {
        let alerts = roles.json(&["alert", "ls", "--rule", "tight"]);
        if alerts[0]["silence"].is_object() { Ok(()) } else { Err(alerts.to_string()) }
    });
    let silence = roles.json(&["silence", "ls"])[0]["id"].as_str().unwrap().to_owned();
    assert_eq!(hook.asked(2).len(), 2);
    roles.ok(&["silence", "rm", &silence]);
    assert_eq!(hook.asked(3)[2].json()["event"], "raised");
    let (code, _) = agent.stop();
    assert_eq!(code, 0);
}

#[test]
fn alertmanager_shows_active_alerts() {
    const ALERTMANAGER: &str = "/usr/bin/prometheus-alertmanager";
    if !std::path::Path::new(ALERTMANAGER).exists() {
        eprintln!("skipped: unknown {ALERTMANAGER} (Debian's prometheus-alertmanager)");
        return;
    }
    let home = Home::new();
    let config = home.path().join("alertmanager.yml");
    fs::write(&config, "route:\n  receiver: nobody\nreceivers:\n  - name: nobody\n").unwrap();
    let mut command = Command::new(ALERTMANAGER);
    home.dress(&mut command);
    command
        .arg(format!("--config.file={}", config.display()))
        .arg(format!("--storage.path={}", home.path().join("alertmanager").display()))
        .args(["--web.listen-address=127.0.0.1:0", "--cluster.listen-address="]);
    let mut alertmanager = Running::start(&mut command);
    let address = alertmanager.wait_for("Alertmanager's address", |printed| {
        let start = printed.find("address=127.0.0.1:")? + "address=".len();
        let rest = &printed[start..];
        Some(rest[..rest.find(char::is_whitespace)?].to_owned())
    });
    let more = format!("[[alert_outlets]]\nkind = \"alertmanager\"\nurl = \"http://{address}/\"\n");
    let roles = Roles::start_in(home, more);
    let agent = roles.agent(&["--join", &roles.token()]);
    let host = roles.wait_for_host("online");
    let shown = |wanted: usize| {
        eventually("Alertmanager's alerts", || {
            // Those that hold: what is over is left out.
            let alerts = get(&address, "/api/v2/alerts?active=true&filter=alertname%3Dtight")?;
            let count = alerts.as_array().map(Vec::len);
            if count == Some(wanted) { Ok(alerts) } else { Err(alerts.to_string()) }
        })
    };
    raise(&roles);
    let alert = shown(1)[0].clone();
    assert_eq!((&alert["labels"]["host"], &alert["labels"]["severity"]), (&host["id"], &json!("critical")));
    assert!(alert["annotations"]["summary"].as_str().unwrap().contains("memory used"), "{alert}");
    let ours = roles.json(&["alert", "ls", "--rule", "tight"])[0]["alert"]["since_ms"].as_i64().unwrap();
    let starts = time::OffsetDateTime::parse(
        alert["startsAt"].as_str().unwrap(),
        &time::format_description::well_known::Rfc3339,
    );
    assert_eq!(starts.unwrap().unix_timestamp_nanos() / 1_000_000, i128::from(ours));

    roles.ok(&["silence", "create", "--rule", "tight", "--for", "1h", "--reason", "a test"]);
    shown(0);
    let silence = roles.json(&["silence", "ls"])[0]["id"].as_str().unwrap().to_owned();
    roles.ok(&["silence", "rm", &silence]);
    shown(1);
    clear(&roles);
    shown(0);
    let (code, _) = agent.stop();
    assert_eq!(code, 0);
    alertmanager.stop();
}
