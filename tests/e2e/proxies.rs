//! Proxies of an operator's requests: one that was configured for muster, and never one of the environment.

use std::{
    fs,
    io::{Read, Write},
    net::TcpListener,
    sync::{Arc, Mutex},
    thread,
};

use crate::fleet::{Fleet, Run};

/// Somebody who listens where the environment says that a proxy is.
struct Proxy {
    url: String,
    heard: Arc<Mutex<String>>,
}

impl Proxy {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let heard = Arc::<Mutex<String>>::default();
        let all = Arc::clone(&heard);
        // It ends with the test's process.
        thread::spawn(move || {
            for stream in listener.incoming() {
                let Ok(mut stream) = stream else { continue };
                let mut piece = [0; 4_096];
                let count = stream.read(&mut piece).unwrap_or(0);
                all.lock().unwrap().push_str(&String::from_utf8_lossy(&piece[..count]));
                let _ = stream.write_all(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
            }
        });
        Self { url, heard }
    }

    fn heard(&self) -> String {
        self.heard.lock().unwrap().clone()
    }
}

/// Runs a verb in whose environment these variables name the proxy.
fn run_with(fleet: &Fleet, variables: &[&str], proxy: &Proxy, args: &[&str]) -> Run {
    let mut command = fleet.home.command();
    command.args(args);
    for variable in variables {
        command.env(variable, &proxy.url);
    }
    Run::of(args, &mut command)
}

const ENVIRONMENT: [&str; 6] = ["http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"];

#[test]
fn proxies_of_the_environment_are_ignored() {
    let (fleet, proxy) = (Fleet::start(), Proxy::start());
    let shown = run_with(&fleet, &ENVIRONMENT, &proxy, &["host", "ls"]).expect_code(0).stdout;
    assert_eq!(shown.lines().count(), 2, "{shown}");
    // One that is meant for muster is not used for what is on this machine.
    run_with(&fleet, &["MUSTER_PROXY"], &proxy, &["host", "ls"]).expect_code(0);
    assert_eq!(proxy.heard(), "");

    // Elsewhere: the environment's is still none, and the configured one is asked.
    let path = fleet.home.path().join("config/muster/context.toml");
    let context = fs::read_to_string(&path).unwrap().replace("127.0.0.1", "console.invalid");
    fs::write(&path, &context).unwrap();
    run_with(&fleet, &ENVIRONMENT, &proxy, &["host", "ls"]).expect_code(4);
    assert_eq!(proxy.heard(), "");
    run_with(&fleet, &["MUSTER_PROXY"], &proxy, &["host", "ls"]).expect_code(4);
    assert!(proxy.heard().starts_with("GET http://console.invalid:"), "{}", proxy.heard());
    let first = proxy.heard();
    fs::write(&path, context.replace("operator =", &format!("proxy = \"{}\"\noperator =", proxy.url))).unwrap();
    run_with(&fleet, &[], &proxy, &["host", "ls"]).expect_code(4);
    assert!(proxy.heard().len() > first.len(), "{}", proxy.heard());
    run_with(&fleet, &[], &proxy, &["--proxy", "socks5://x", "host", "ls"])
        .expect_code(2)
        .expect_stderr("http://HOST:PORT");
}
