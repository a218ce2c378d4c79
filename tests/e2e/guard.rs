//! Attacks by strangers on every listener, which members of the fleet do not notice.

#![expect(clippy::print_stdout, reason = "figures for whoever asks with --nocapture")]

use std::{
    fs,
    io::{self, Read, Write},
    net::{SocketAddr, TcpStream},
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use muster_net::pki;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use rustls::{ClientConfig, ClientConnection, StreamOwned, pki_types::ServerName};

use crate::{
    doors::{Place, address, password_line},
    fleet::{Fleet, PATIENCE, Running, eventually},
};

/// How many strangers come to each listener in a second.
const PER_SECOND: u64 = 100;

/// How many come at once and say nothing: more than any listener has places for.
const IDLE: usize = 2_100;

/// What a login of somebody of the fleet takes at most, most of the time; and always, on two cores that are busy with the
/// tests of others, in a build without optimisation. It took ten seconds and more while strangers had all places.
const LOGIN: Duration = Duration::from_secs(1);
const LOGIN_ALWAYS: Duration = Duration::from_secs(5);

/// What strangers may cost a broker with three listeners in memory: 512 handshakes of some 20 KB at each. A console's two
/// have 2,048 connections of some 40 KB. Without optimisation both take more than that.
const BROKER_MAX_BYTES: u64 = 64 << 20;
const CONSOLE_MAX_BYTES: u64 = 200 << 20;

/// What may be logged in a second, in bytes.
const LOG_MAX_BYTES: f64 = 10.0 * 1024.0;

fn is_long() -> bool {
    std::env::var_os("TESTS_LONG").is_some()
}

/// How somebody of the fleet comes in at a listener, and what they say first.
#[derive(Clone)]
struct Door {
    name: &'static str,
    address: SocketAddr,
    tls: Option<Arc<ClientConfig>>,
    /// What is said, one after the other, and how each answer begins.
    talk: Vec<(Vec<u8>, Vec<u8>)>,
    /// What somebody says who does not come to the end of it.
    beginning: Vec<u8>,
}

trait Duplex: Read + Write {}
impl<T: Read + Write> Duplex for T {}

impl Door {
    fn open(&self) -> io::Result<Box<dyn Duplex>> {
        let stream = TcpStream::connect_timeout(&self.address, PATIENCE)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(match &self.tls {
            None => Box::new(stream),
            Some(config) => {
                let name = ServerName::try_from("127.0.0.1").unwrap();
                Box::new(StreamOwned::new(ClientConnection::new(Arc::clone(config), name).unwrap(), stream))
            }
        })
    }

    /// A login, from the first packet to the answer.
    fn log_in(&self) -> io::Result<Duration> {
        let began = Instant::now();
        let mut stream = self.open()?;
        for (said, answer) in &self.talk {
            stream.write_all(said)?;
            let mut begins = vec![0; answer.len()];
            stream.read_exact(&mut begins)?;
            if begins != *answer {
                return Err(io::Error::other(format!("{} answers {}", self.name, String::from_utf8_lossy(&begins))));
            }
        }
        Ok(began.elapsed())
    }
}

fn connect(client_id: &str, user: Option<(&str, &str)>) -> Vec<u8> {
    let text = |text: &str| [&u16::try_from(text.len()).unwrap().to_be_bytes()[..], text.as_bytes()].concat();
    let (flags, credentials) = match user {
        Some((name, password)) => (0xc2, [text(name), text(password)].concat()),
        None => (2, Vec::new()),
    };
    let body = [&b"\0\x04MQTT\x04"[..], &[flags, 0, 60], &text(client_id), &credentials].concat();
    [&[0x10, u8::try_from(body.len()).unwrap()][..], &body].concat()
}

fn get(path: &str) -> (Vec<u8>, Vec<u8>) {
    let request = format!("GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n");
    (request.into_bytes(), b"HTTP/1.1 200".to_vec())
}

fn client(folder: &Path, with_certificate: bool) -> Arc<ClientConfig> {
    let read = |name: &str| fs::read_to_string(folder.join(name)).unwrap();
    let authority = read("authority.pem");
    Arc::new(if with_certificate {
        pki::client(&authority, &read("certificate.pem"), &read("key.pem")).unwrap()
    } else {
        ClientConfig::builder_with_provider(pki::provider())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(pki::roots(&authority).unwrap())
            .with_no_client_auth()
    })
}

/// What a client of TLS says first.
fn hello(config: &Arc<ClientConfig>) -> Vec<u8> {
    let name = ServerName::try_from("127.0.0.1").unwrap();
    let mut hello = Vec::new();
    ClientConnection::new(Arc::clone(config), name).unwrap().write_tls(&mut hello).unwrap();
    hello
}

/// A broker with all its listeners, and a console.
struct Case {
    broker: Running,
    fleet: Fleet,
    doors: Vec<Door>,
    anna: Door,
    // The broker's folder.
    _place: Place,
}

impl Case {
    fn start() -> Self {
        // Each stranger is an open file, here too.
        let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
        setrlimit(Resource::RLIMIT_NOFILE, soft.max(hard.min(60_000)), hard).unwrap();
        let place = Place::new();
        let folder = place.issue("operator", "anna", &[]);
        let (_, line) = password_line(&place.home, "operator-anna", "anna's\n");
        let users = place.home.path().join("users");
        fs::write(&users, line).unwrap();
        let loopback = "\"127.0.0.1:0\"";
        let mut broker = place.broker(&format!(
            "plain_listen = {loopback}\nwebsocket_listen = {loopback}\nmonitor_listen = {loopback}\nusers_file = \"{}\"\n\
             connect_timeout_s = 60\n",
            users.display()
        ));
        let fleet = Fleet::start();
        let with_certificate = client(&folder, true);
        let tls_hello = hello(&with_certificate);
        let parse = |url: String| url.rsplit_once('/').unwrap().1.parse::<SocketAddr>().unwrap();
        let connack = b"\x20\x02\0\0".to_vec();
        let mqtt = |user| vec![(connect("operator-anna-known", user), connack.clone())];
        let upgrade = "GET /mqtt HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n\
                       Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Protocol: mqtt\r\n\r\n";
        let door = |name, address, tls: Option<&Arc<ClientConfig>>, talk, beginning: &[u8]| Door {
            name,
            address,
            tls: tls.cloned(),
            talk,
            beginning: beginning.to_vec(),
        };
        let monitor = broker.wait_for("the address of the metrics", |printed| {
            let line = printed.lines().find(|line| line.contains("serves its metrics"))?;
            line.rsplit_once("address=")?.1.trim().parse().ok()
        });
        let anna =
            door("mqtts", parse(address(&mut broker, "mqtts://")), Some(&with_certificate), mqtt(None), &tls_hello);
        let joins = client(&fleet.issue("operator", "berta"), false);
        let doors = vec![
            anna.clone(),
            door(
                "wss",
                parse(address(&mut broker, "wss://")),
                Some(&with_certificate),
                // It is enough that the upgrade is granted: what follows is the same as over TLS alone.
                vec![(upgrade.as_bytes().to_vec(), b"HTTP/1.1 101".to_vec())],
                &tls_hello,
            ),
            door(
                "mqtt",
                parse(address(&mut broker, "mqtt://")),
                None,
                mqtt(Some(("operator-anna", "anna's"))),
                &connect("operator-anna", None)[..5],
            ),
            door("monitor", monitor, None, vec![get("/metrics")], b"GET /metrics HTTP/1.1\r\nHo"),
            door("web", parse(fleet.address("http://")), None, vec![get("/sign-in")], b"GET / HTTP/1.1\r\nHo"),
            door("hosts", parse(fleet.address("https://")), Some(&joins), vec![get("/v1/revoked.pem")], &hello(&joins)),
        ];
        let case = Self { broker, fleet, doors, anna, _place: place };
        // Everybody has been in once; a password is slow to check the first time.
        for door in &case.doors {
            eventually(door.name, || door.log_in().map_err(|error| error.to_string()));
        }
        case
    }

    fn memory(&mut self) -> [u64; 2] {
        let resident = |pid: nix::unistd::Pid| {
            let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
            let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
            line.trim_end_matches("kB").trim().parse::<u64>().unwrap() * 1024
        };
        [resident(self.broker.pid()), resident(self.fleet.up().pid())]
    }

    fn logged(&mut self) -> [usize; 2] {
        [self.broker.printed().len(), self.fleet.up().printed().len()]
    }

    /// Has strangers do something at each of `doors` at once, and logs in meanwhile, again and again, at each of them.
    fn attack(&mut self, what: &str, seconds: u64, doors: &[Door], strangers: impl Fn(&Door, &AtomicBool) + Sync) {
        let over = AtomicBool::new(false);
        let (memory, logged) = (self.memory(), self.logged());
        let logins = Mutex::new(Vec::new());
        let began = Instant::now();
        let mut most = memory;
        thread::scope(|scope| {
            for door in doors {
                scope.spawn(|| strangers(door, &over));
                scope.spawn(|| {
                    while !over.load(Ordering::Relaxed) {
                        let login = door.log_in();
                        logins.lock().unwrap().push((door.name, login));
                        thread::sleep(Duration::from_millis(300));
                    }
                });
            }
            while began.elapsed() < Duration::from_secs(seconds) {
                thread::sleep(Duration::from_millis(250));
                let now = self.memory();
                most = [most[0].max(now[0]), most[1].max(now[1])];
            }
            over.store(true, Ordering::Relaxed);
        });
        let took = began.elapsed().as_secs_f64();
        let logins = logins.into_inner().unwrap();
        for door in doors {
            let mut times: Vec<_> = logins
                .iter()
                .filter(|(name, _)| *name == door.name)
                .map(|(name, login)| *login.as_ref().unwrap_or_else(|error| panic!("{what}: {name}: {error}")))
                .collect();
            times.sort_unstable();
            let (median, longest) = (times[times.len() / 2], *times.last().unwrap());
            println!("{what:16} {:8} {:3} logins, median {median:.2?}, longest {longest:.2?}", door.name, times.len());
            assert!(median <= LOGIN, "{what}: half of the logins at {} take {median:?}", door.name);
            assert!(longest <= LOGIN_ALWAYS, "{what}: a login at {} took {longest:?}", door.name);
        }
        let grown = [most[0].saturating_sub(memory[0]), most[1].saturating_sub(memory[1])];
        println!("{what:16} memory of broker and console +{} +{} MB", grown[0] >> 20, grown[1] >> 20);
        assert!(grown[0] <= BROKER_MAX_BYTES && grown[1] <= CONSOLE_MAX_BYTES, "{what}: {grown:?} bytes");
        self.check_log(what, logged, took);
    }

    fn check_log(&mut self, what: &str, before: [usize; 2], seconds: f64) {
        let after = self.logged();
        for (name, before, after) in [("broker", before[0], after[0]), ("console", before[1], after[1])] {
            #[expect(clippy::cast_precision_loss, reason = "a log has fewer bytes than a mantissa has values")]
            let rate = (after - before) as f64 / seconds;
            println!("{what:16} log of the {name} {:.1} KB/s", rate / 1024.0);
            assert!(rate <= LOG_MAX_BYTES, "{what}: the {name} logs {rate} bytes a second");
        }
    }
}

/// Connections that come at a steady rate, and stay.
fn come(door: &Door, over: &AtomicBool, mut each: impl FnMut(&mut TcpStream)) {
    let (began, mut count, mut held) = (Instant::now(), 0, Vec::new());
    while !over.load(Ordering::Relaxed) {
        let due = began + Duration::from_millis(count * 1000 / PER_SECOND);
        thread::sleep(due.saturating_duration_since(Instant::now()));
        count += 1;
        if let Ok(mut stream) = TcpStream::connect_timeout(&door.address, Duration::from_secs(1)) {
            each(&mut stream);
            held.push(stream);
        }
    }
}

#[test]
fn attacks_do_not_affect_known_clients() {
    let mut case = Case::start();
    let seconds = if is_long() { 30 } else { 8 };
    let doors = case.doors.clone();
    case.attack("silent", seconds, &doors, |door, over| come(door, over, |_| ()));
    // All at once, so at one listener after the other.
    for door in &doors {
        case.attack("idle", if is_long() { 15 } else { 3 }, std::slice::from_ref(door), |door, over| {
            let connect = |_| TcpStream::connect_timeout(&door.address, Duration::from_secs(1)).ok();
            let held: Vec<_> =
                (0..IDLE).map_while(|number| (!over.load(Ordering::Relaxed)).then(|| connect(number))).collect();
            while !over.load(Ordering::Relaxed) {
                thread::sleep(Duration::from_millis(50));
            }
            drop(held);
        });
    }
    case.attack("slow", seconds, &doors, |door, over| {
        // Who gave way cannot be written to.
        come(door, over, |stream| drop(stream.write_all(&door.beginning)));
    });
    case.attack("no protocol", seconds / 2, &doors, |door, over| {
        come(door, over, |stream| drop(stream.write_all(b"\x16\x03\x01\0\x04nono")));
    });
}

/// Passwords that are guessed, faster than they can be checked.
#[test]
fn password_guesses_do_not_delay_a_login() {
    let mut case = Case::start();
    let door = case.doors.iter().find(|door| door.name == "mqtt").unwrap().clone();
    let guess = |number: usize| {
        let mut stream = TcpStream::connect(door.address).unwrap();
        stream.write_all(&connect("operator-anna-guess", Some(("operator-anna", &format!("guess {number}"))))).unwrap();
        stream
    };
    let guesses: Vec<_> = (0..700).map(guess).collect();
    // It has been in before; and nobody with a certificate waits either.
    for _ in 0..5 {
        for door in [&door, &case.anna] {
            let took = door.log_in().unwrap();
            assert!(took <= LOGIN_ALWAYS, "{took:?} at {}", door.name);
        }
    }
    drop(guesses);
    assert!(!case.broker.ended());
}

#[test]
fn health_needs_no_token() {
    let fleet = Fleet::start();
    let web = fleet.address("http://");
    let ask = |path: &str| {
        let mut stream = TcpStream::connect(web.rsplit_once('/').unwrap().1).unwrap();
        stream.write_all(&get(path).0).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    };
    assert!(ask("/healthz").starts_with("HTTP/1.1 200") && ask("/healthz").ends_with("ok\n"));
    eventually("ready", || {
        let answer = ask("/readyz");
        if answer.starts_with("HTTP/1.1 200") && answer.ends_with("ready\n") { Ok(()) } else { Err(answer) }
    });
}

#[test]
fn roles_survive_sighup() {
    let mut fleet = Fleet::start();
    let https = fleet.address("https://");
    let shown = || crate::doors::certificate_shown(&https);
    let before = shown();
    fleet.up().signal(nix::sys::signal::Signal::SIGHUP);
    eventually("another certificate", || if shown() == before { Err(before.clone()) } else { Ok(()) });
    fleet.ok(&["exec", "--", "true"]);
}

/// Filters that are refused, thousands in a packet, for each reason that there is.
#[test]
fn refused_filters_do_not_fill_the_log() {
    let mut case = Case::start();
    let packet = |prefix: &str| {
        let filter = |number| {
            let text = format!("{prefix}{number:06}");
            [&u16::try_from(text.len()).unwrap().to_be_bytes()[..], text.as_bytes(), &[0]].concat()
        };
        let body = [vec![0, 1], (0..9_000).flat_map(filter).collect()].concat();
        let (mut length, mut left) = (Vec::new(), body.len());
        while left > 0 {
            length.push(u8::try_from(left % 128).unwrap() | if left > 127 { 0x80 } else { 0 });
            left /= 128;
        }
        [vec![0x82], length, body].concat()
    };
    let (logged, began) = (case.logged(), Instant::now());
    let mut rounds = 0;
    while began.elapsed() < Duration::from_secs(if is_long() { 30 } else { 5 }) {
        let mut stream = case.anna.open().unwrap();
        stream.write_all(&connect("operator-anna-wild", None)).unwrap();
        stream.read_exact(&mut [0; 4]).unwrap();
        // Not permitted; permitted, but too many; no filter; shared.
        for prefix in ["other/", "muster/s/", "muster/#/", "$share/g/muster/"] {
            stream.write_all(&packet(prefix)).unwrap();
            let mut answer = vec![0; 1 + 2 + 2 + 9_000];
            stream.read_exact(&mut answer).unwrap();
            assert_eq!(answer[0], 0x90);
        }
        rounds += 1;
    }
    println!("{rounds} times four packets of 9,000 filters");
    case.check_log("refused filters", logged, began.elapsed().as_secs_f64());
    let printed = case.broker.printed();
    assert!(printed.contains("a limit on subscriptions is reached") && printed.contains("other/000000"), "{printed}");
}
