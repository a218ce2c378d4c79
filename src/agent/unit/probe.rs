//! Tries a probe once: a connection, a request, or a command.
//!
//! A command has a shim and a folder of its own (`probe/<which>/`). The shim kills it with everything that it forked
//! when it ends or times out, also while the agent is away. The kind decides how it is launched: as the unit itself.

use std::{
    fs, io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    path::Path,
    time::Duration,
};

use muster_rules::{plan::ProbeRequest, port_lease::EndpointWiring, probe::endpoint};
use muster_shim::{
    Launch, OutputMode, ProcessExit, ProgramEnd, RestartLimits, RestartOn, ShimEvent, ShimRequest, files,
};
use muster_topics::{
    diagnostic::Diagnostic,
    name::UnitName,
    probe::{Check, Http, Port, Tcp, Which},
    unit::Spec,
};
use nix::sys::signal::Signal;
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::TcpStream,
    time::timeout,
};

use super::log;
use crate::shim::{AdoptedShim, ShimHandle, Shims, process_end};

/// How much longer than its timeout a command may take, to be started and cleaned up on a slow disk.
const SLACK: Duration = Duration::from_secs(15);

/// How much of a command's output is kept: only its last line is read.
const LOG_BYTES: u64 = 16 * 1024;

/// How much of that line is reported.
const LINE_MAX_CHARS: usize = 200;

/// The most that is read of an answer: its head, and the rest only so that the server does not log an error.
const ANSWER_MAX_BYTES: u64 = 64 * 1024;

/// How long the rest of an answer is awaited once its status is known.
const REST: Duration = Duration::from_millis(200);

/// Ends a command at once.
const KILL: ShimRequest = ShimRequest::Stop { signal: Signal::SIGKILL as i32, grace_ms: 0 };

/// Runs a probe once; the error is why it failed. `probes` is the folder for its commands, and `launch` returns how one
/// is started.
pub(super) async fn attempt(
    shims: &Shims,
    probes: &Path,
    probing: &ProbeRequest,
    launch: impl FnOnce(&[String]) -> Result<Launch, Diagnostic> + Send + 'static,
) -> Result<(), Diagnostic> {
    let limit_ms = probing.probe.timeout_ms;
    let late = || format!("no answer within {limit_ms} ms");
    let limit = Duration::from_millis(limit_ms);
    match &probing.probe.check {
        Check::Tcp(Tcp { port, address }) => {
            let to = target(port, *address, &probing.desired.spec, &probing.wiring)?;
            timeout(limit, connect(to)).await.map_err(|_| late())?.map(drop)
        }
        Check::Http(http) => {
            let to = target(&http.port, http.address, &probing.desired.spec, &probing.wiring)?;
            timeout(limit, request(to, http)).await.map_err(|_| late())?
        }
        Check::Exec(argv) => {
            let (folder, argv) = (probes.join(probing.which.as_str()), argv.clone());
            timeout(limit + SLACK, execute(shims, &folder, limit_ms, move || launch(&argv)))
                .await
                .unwrap_or_else(|_| Err("it could not be started or ended in time".into()))
        }
    }
}

/// Ends processes of cancelled probes: they would prevent a start or a removal.
pub(super) async fn end_all(shims: &Shims, probes: &Path, unit: &UnitName) {
    for which in Which::ALL {
        let folder = probes.join(which.as_str());
        if folder.exists()
            && let Err(error) = timeout(SLACK, end_what_is_left(shims, &folder)).await.unwrap_or(Ok(()))
        {
            tracing::warn!(%unit, error = error.cause, hint = error.hint, "a command of a probe cannot be ended; it ends at its time limit");
        }
    }
}

async fn execute(
    shims: &Shims,
    folder: &Path,
    limit_ms: u64,
    launch: impl FnOnce() -> Result<Launch, Diagnostic> + Send + 'static,
) -> Result<(), Diagnostic> {
    end_what_is_left(shims, folder).await?;
    let at = folder.to_owned();
    let prepare = move || {
        forget_output(&at).map_err(|error| format!("{}: {error}", at.display()))?;
        launch().map(|launch| once(launch, limit_ms))
    };
    let launch = tokio::task::spawn_blocking(prepare).await.map_err(Diagnostic::new)??;
    let mut shim = shims.launch(folder, &launch).await.map_err(|error| Diagnostic::of(&error))?;
    let ended = end_of(&mut shim).await.ok_or("its shim is gone")?;
    judge(&ended, limit_ms, folder)
}

/// Makes a launch run once, for `limit_ms` at most, as a service: then processes that it leaves behind are killed.
fn once(launch: Launch, limit_ms: u64) -> Launch {
    Launch {
        output: OutputMode::Log { max_bytes: LOG_BYTES, keep: 1, max_age_ms: None },
        notify: None,
        forking: None,
        restart: RestartLimits { on: RestartOn::Never, budget: 0, reset_after_ms: 0 },
        timeout_ms: Some(limit_ms),
        stop_signal: Signal::SIGKILL as i32,
        grace_ms: 0,
        ..launch
    }
}

/// Returns where a connection goes.
fn target(
    port: &Port,
    address: Option<IpAddr>,
    spec: &Spec,
    wiring: &EndpointWiring,
) -> Result<SocketAddr, Diagnostic> {
    let (of_port, port) = match (endpoint(spec, port, address), port) {
        (Some(name), _) | (None, Port::Endpoint(name)) => {
            let endpoint = wiring.endpoints.iter().find(|endpoint| endpoint.name == *name);
            let endpoint = endpoint.ok_or_else(|| format!("it was started without an endpoint {name}"))?;
            (endpoint.address, endpoint.port)
        }
        (None, Port::Number(number)) => (IpAddr::V4(Ipv4Addr::LOCALHOST), *number),
    };
    let address = match address.unwrap_or(of_port) {
        // The unspecified address is not one to connect to.
        IpAddr::V4(address) if address.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(address) if address.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        address => address,
    };
    Ok(SocketAddr::new(address, port))
}

async fn connect(to: SocketAddr) -> Result<TcpStream, Diagnostic> {
    TcpStream::connect(to).await.map_err(|error| format!("{to}: {error}").into())
}

/// Sends a request; checks the status of its answer.
async fn request(to: SocketAddr, http: &Http) -> Result<(), Diagnostic> {
    let Http { path, status: wanted, .. } = http;
    let stream = connect(to).await?;
    let failed = |error: io::Error| format!("{to}: {error}");
    let mut stream = BufReader::new(stream);
    let agent = concat!("muster/", env!("CARGO_PKG_VERSION"));
    let head =
        format!("GET {path} HTTP/1.1\r\nHost: {to}\r\nUser-Agent: {agent}\r\nAccept: */*\r\nConnection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).await.map_err(failed)?;
    let mut answer = stream.take(ANSWER_MAX_BYTES);
    let status = loop {
        let mut line = Vec::new();
        answer.read_until(b'\n', &mut line).await.map_err(failed)?;
        let status = status(&line).ok_or_else(|| format!("{to}: its answer is not HTTP/1"))?;
        if status >= 200 {
            break status;
        }
        // Read the head, which ends with an empty line.
        while !line.is_empty() && !matches!(line.as_slice(), b"\r\n" | b"\n") {
            line.clear();
            answer.read_until(b'\n', &mut line).await.map_err(failed)?;
        }
    };
    // Some servers log an error if the client closes early.
    let _ = timeout(REST, tokio::io::copy(&mut answer, &mut tokio::io::sink())).await;
    match wanted {
        Some(wanted) if *wanted != status => {
            Err(format!("http://{to}{path}: status {status} instead of {wanted}").into())
        }
        None if !(200..400).contains(&status) => Err(format!("http://{to}{path}: status {status}").into()),
        _ => Ok(()),
    }
}

/// Parses the status in the first line of an answer: `HTTP/1.1 200 OK`.
fn status(line: &[u8]) -> Option<u16> {
    let line = std::str::from_utf8(line.get(..line.len().min(64))?).ok()?;
    let mut words = line.split_ascii_whitespace();
    words.next().filter(|version| version.starts_with("HTTP/1."))?;
    let status = words.next()?;
    status.parse().ok().filter(|number| status.len() == 3 && (100..600).contains(number))
}

/// Ends what an attempt has left behind: of an earlier run of the agent, or a cancelled one.
async fn end_what_is_left(shims: &Shims, folder: &Path) -> Result<(), Diagnostic> {
    if let AdoptedShim::Alive(mut shim) = shims.adopt(folder).await.map_err(|error| Diagnostic::of(&error))? {
        shim.send(&KILL).await.map_err(|error| Diagnostic::of(&error))?;
        end_of(&mut shim).await;
    }
    Ok(())
}

/// Returns how it ended; `None` if its shim ends before.
async fn end_of(shim: &mut ShimHandle) -> Option<ProgramEnd> {
    loop {
        match shim.next().await? {
            ShimEvent::State(state) if state.over => return state.last,
            _ => {}
        }
    }
}

/// Removes old output, so that the last line is this attempt's.
fn forget_output(folder: &Path) -> io::Result<()> {
    for name in [files::LOG.to_owned(), format!("{}.1", files::LOG)] {
        match fs::remove_file(folder.join(name)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

fn judge(ended: &ProgramEnd, limit_ms: u64, folder: &Path) -> Result<(), Diagnostic> {
    let how = match ended.exit {
        _ if ended.timed_out => format!("it did not end within {limit_ms} ms"),
        ProcessExit::Code(0) => return Ok(()),
        ProcessExit::Code(_) | ProcessExit::Signal(_) => process_end(ended).to_string(),
        ProcessExit::Unknown => "how it ended is unknown".to_owned(),
    };
    // A few, because the last may be empty.
    let lines = log::tail(&[folder], 3, LOG_BYTES).unwrap_or_default();
    let lines = String::from_utf8_lossy(&lines);
    match lines.lines().rev().map(str::trim).find(|line| !line.is_empty()) {
        Some(line) => Err(format!("{how}: {}", line.chars().take(LINE_MAX_CHARS).collect::<String>()).into()),
        None => Err(how.into()),
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::{TcpListener, TcpSocket};

    use super::*;

    fn http(path: &str, status: Option<u16>) -> Http {
        Http { port: Port::Number(1), address: None, path: path.to_owned(), status }
    }

    /// Answers a request like this; returns the result, and the request.
    async fn ask(http: &Http, answer: &'static [u8]) -> (Result<(), String>, String) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let to = listener.local_addr().unwrap();
        let serve = async {
            let mut stream = BufReader::new(listener.accept().await.unwrap().0);
            let mut asked = String::new();
            while !asked.ends_with("\r\n\r\n") {
                assert_ne!(stream.read_line(&mut asked).await.unwrap(), 0);
            }
            stream.write_all(answer).await.unwrap();
            asked
        };
        let (answer, asked) = tokio::join!(request(to, http), serve);
        (answer.map_err(|why| why.cause.replace(&to.to_string(), "HERE")), asked.replace(&to.to_string(), "HERE"))
    }

    #[tokio::test]
    async fn http_status_decides_success() {
        let good = |answer| async move { ask(&http("/a?b", None), answer).await.0 };
        assert_eq!(good(b"HTTP/1.1 200 OK\r\n\r\nfine").await, Ok(()));
        assert_eq!(good(b"HTTP/1.0 302 Found\r\nLocation: /b\r\n\r\n").await, Ok(()));
        assert_eq!(good(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 204\r\n\r\n").await, Ok(()));
        assert_eq!(
            good(b"HTTP/1.1 103 Early\r\nLink: </a>\r\n\r\nHTTP/1.1 404 No\r\n\r\n").await.unwrap_err(),
            "http://HERE/a?b: status 404"
        );
        assert_eq!(good(b"HTTP/1.1 503 Busy\r\n\r\n").await.unwrap_err(), "http://HERE/a?b: status 503");
        for strange in [
            &b"SSH-2.0-OpenSSH_9.2\r\n"[..],
            b"",
            b"HTTP/1.1 2000 OK\r\n",
            b"HTTP/2 200\r\n",
            b"HTTP/1.1\r\n",
            b"\xff\n",
        ] {
            assert_eq!(good(strange).await.unwrap_err(), "HERE: its answer is not HTTP/1");
        }
        let (answer, asked) = ask(&http("/", Some(503)), b"HTTP/1.1 503 Busy\r\n\r\n").await;
        assert_eq!(answer, Ok(()));
        assert!(asked.starts_with("GET / HTTP/1.1\r\nHost: HERE\r\n"), "{asked}");
        let (answer, _) = ask(&http("/", Some(204)), b"HTTP/1.1 200 OK\r\n\r\n").await;
        assert_eq!(answer.unwrap_err(), "http://HERE/: status 200 instead of 204");
    }

    #[test]
    fn probe_connects_to_its_address() {
        let endpoint = |name: &str, address: &str, port| muster_topics::endpoint::Endpoint {
            name: name.parse().unwrap(),
            address: address.parse().unwrap(),
            port,
            protocol: muster_topics::endpoint::Protocol::Tcp,
        };
        let endpoints = vec![endpoint("all", "0.0.0.0", 1), endpoint("all6", "::", 2), endpoint("web", "10.0.0.1", 3)];
        let wiring = EndpointWiring { endpoints, connectors: Vec::new() };
        let named = |name: &str| Port::Endpoint(name.parse().unwrap());
        let spec = |network: &str| -> Spec {
            let spec = serde_json::json!({
                "kind": "container", "image": {"name": "a"}, "network": network, "provides": [{"name": "web"}], "ports": {"web": 80},
            });
            serde_json::from_value(spec).unwrap()
        };
        let (own, host) = (spec("bridge"), spec("host"));
        let to = |spec: &Spec, port: &Port, address: Option<&str>| {
            target(port, address.map(|address| address.parse().unwrap()), spec, &wiring)
        };
        // A port inside is reached through its endpoint on the host.
        assert_eq!(to(&own, &Port::Number(80), None), Ok("10.0.0.1:3".parse().unwrap()));
        for (port, address, wanted) in [
            (Port::Number(80), None, Some("127.0.0.1:80")),
            (Port::Number(80), Some("::1"), Some("[::1]:80")),
            (named("all"), None, Some("127.0.0.1:1")),
            (named("all6"), None, Some("[::1]:2")),
            (named("web"), None, Some("10.0.0.1:3")),
            (named("web"), Some("127.0.0.1"), Some("127.0.0.1:3")),
            (named("db"), None, None),
        ] {
            let found = to(&host, &port, address);
            assert_eq!(found.ok().map(|found| found.to_string()).as_deref(), wanted, "{port}");
        }
    }

    #[tokio::test]
    async fn refused_connection_fails_the_probe() {
        // A bound socket reserves its port, and refuses connections until it listens.
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let to = socket.local_addr().unwrap();
        let why = connect(to).await.unwrap_err();
        assert!(why.cause.starts_with(&to.to_string()) && why.cause.contains("refused"), "{why}");
        let _listener = socket.listen(1).unwrap();
        assert!(connect(to).await.is_ok());
    }
}
