//! Access to a broker: revocation while it runs, and passwords.

use std::{
    fs,
    io::Write,
    net::TcpStream,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use crate::fleet::{Fleet, Home, Run, Running, eventually};

/// Whether a stock client gets in and subscribes, by its exit code.
fn subscribes(address: &str, more: impl FnOnce(&mut Command)) -> bool {
    let (host, port) = address.rsplit_once("://").unwrap().1.rsplit_once(':').unwrap();
    let mut command = Command::new("mosquitto_sub");
    // It ends when it has subscribed or was refused.
    command.args(["-h", host, "-p", port, "-E", "-W", "60", "-t", "muster/#"]);
    more(&mut command);
    Run::of(&["mosquitto_sub"], &mut command).code == 0
}

fn with_certificate(folder: &Path) -> impl FnOnce(&mut Command) {
    move |command| {
        command.args(["-i", folder.file_name().unwrap().to_str().unwrap()]);
        for (flag, file) in [("--cafile", "authority.pem"), ("--cert", "certificate.pem"), ("--key", "key.pem")] {
            command.arg(flag).arg(folder.join(file));
        }
    }
}

#[test]
fn revoked_client_is_disconnected() {
    let fleet = Fleet::start();
    let address = fleet.address("mqtts://");
    let console = fleet.data().join("console");
    let (anna, bridge) = (fleet.issue("operator", "anna"), fleet.issue("observer", "bridge"));
    let mut annas = Command::new("mosquitto_sub");
    let (host, port) = address.trim_start_matches("mqtts://").rsplit_once(':').unwrap();
    annas.args(["-h", host, "-p", port, "-d", "-t", "muster/#"]);
    with_certificate(&anna)(&mut annas);
    let mut annas = Running::start(&mut annas);
    annas.wait_for("a subscription", |printed| printed.contains("received SUBACK").then_some(()));
    assert!(subscribes(&address, with_certificate(&bridge)));

    fleet.ok(&["console", "revoke", "--data-dir", console.to_str().unwrap(), "operator-anna"]);
    // It tries to come back, and is not let in.
    annas.wait_for("the end of the connection", |printed| {
        let after = printed.split("received SUBACK").nth(1)?;
        (after.contains("sending CONNECT") || after.contains("Error")).then_some(())
    });
    eventually("a refusal", || {
        if subscribes(&address, with_certificate(&anna)) { Err("it is let in".to_owned()) } else { Ok(()) }
    });
    assert!(subscribes(&address, with_certificate(&bridge)));
    annas.kill();
}

/// A console's folder, and a broker's with what is needed to run one.
pub(crate) struct Place {
    pub(crate) home: Home,
    data: PathBuf,
}

impl Place {
    pub(crate) fn new() -> Self {
        let home = Home::new();
        let data = home.path().join("console");
        home.muster(&["console", "init", "--data-dir", data.to_str().unwrap()]).expect_code(0);
        let place = Self { home, data };
        place.issue("broker", "broker", &["--san", "127.0.0.1"]);
        place
    }

    pub(crate) fn issue(&self, role: &str, name: &str, more: &[&str]) -> PathBuf {
        let folder = self.home.path().join(if role == "broker" { role.to_owned() } else { format!("{role}-{name}") });
        let (data, out) = (self.data.to_str().unwrap(), folder.to_str().unwrap());
        let verb = ["console", "issue", "--data-dir", data, "--role", role, "--name", name, "--out", out];
        self.home.muster(&[&verb, more].concat()).expect_code(0);
        folder
    }

    /// Starts the broker with more configuration.
    pub(crate) fn broker(&self, more: &str) -> Running {
        Running::start(self.home.command().args(["broker", "--config"]).arg(self.config(more)))
    }

    /// The same where a shell says how many files it may open.
    fn broker_within(&self, ulimit: &str, more: &str) -> Running {
        let mut shell = Command::new("sh");
        self.home.dress(&mut shell);
        shell.args(["-c", &format!("ulimit {ulimit}; exec \"$@\""), "sh"]).arg(self.home.command().get_program());
        Running::start(shell.args(["broker", "--config"]).arg(self.config(more)))
    }

    /// The file for a broker, with more configuration.
    fn config(&self, more: &str) -> PathBuf {
        let folder = self.home.path().join("broker");
        let file = |name: &str| folder.join(name).display().to_string();
        let mut text = String::from("listen = \"127.0.0.1:0\"\n");
        for (key, name) in [
            ("certificate_file", "certificate.pem"),
            ("key_file", "key.pem"),
            ("authority_file", "authority.pem"),
            ("data_dir", "data"),
        ] {
            text += &format!("{key} = \"{}\"\n", file(name));
        }
        let path = self.home.path().join("broker.toml");
        fs::write(&path, text + more).unwrap();
        path
    }
}

pub(crate) fn address(broker: &mut Running, scheme: &str) -> String {
    broker.wait_for(scheme, |printed| {
        let start = printed.find(&format!("listens on {scheme}"))? + "listens on ".len();
        let (word, _) = printed[start..].split_once('\n')?;
        Some(word.to_owned())
    })
}

/// The output of `muster broker password` for a password that is typed into it.
pub(crate) fn password_line(home: &Home, name: &str, password: &str) -> (i32, String) {
    let mut command = home.command();
    command.args(["broker", "password", name]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(password.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let both = [output.stdout, output.stderr].concat();
    (output.status.code().unwrap(), String::from_utf8(both).unwrap())
}

#[test]
fn local_program_connects_with_a_password() {
    let place = Place::new();
    let (code, line) = password_line(&place.home, "operator-anna", "a word of anna's\n");
    assert_eq!(code, 0, "{line}");
    assert!(line.starts_with("operator-anna:$pbkdf2-sha256$i=") && line.ends_with('\n'), "{line}");
    let users = place.home.path().join("users");
    fs::write(&users, format!("# who\n{line}")).unwrap();
    // A password is slow to check on purpose; without optimisation, on a busy machine, slower than a client may be.
    let mut broker = place.broker(&format!(
        "plain_listen = \"127.0.0.1:0\"\nwebsocket_listen = \"127.0.0.1:0\"\nusers_file = \"{}\"\nconnect_timeout_s = 120\n",
        users.display()
    ));
    address(&mut broker, "wss://");
    let plain = address(&mut broker, "mqtt://");
    let with_password = |name: &'static str, password: &'static str| {
        subscribes(&plain, |command| {
            command.args(["-i", name, "-u", name, "-P", password]);
        })
    };
    assert!(with_password("operator-anna", "a word of anna's"));
    assert!(!with_password("operator-anna", "another word"));
    assert!(!with_password("operator-berta", "a word of anna's"));
    assert!(!subscribes(&plain, |command| {
        command.args(["-i", "operator-anna"]);
    }));
    assert_eq!(broker.stop().0, 0);

    for (name, password, words) in [("anna", "x\n", "neither"), ("operator-anna", "\n", "the password is empty")] {
        let (code, said) = password_line(&place.home, name, password);
        assert!(code == 2 && said.contains(words), "{code} {said}");
    }
}

#[test]
fn invalid_users_file_is_refused_at_start() {
    let place = Place::new();
    let users = place.home.path().join("users");
    let plain = |listen: &str| format!("plain_listen = \"{listen}\"\nusers_file = \"{}\"\n", users.display());
    place.broker(&plain("127.0.0.1:0")).wait_for_end(1, "broker password NAME");
    fs::write(&users, "\noperator-anna:secret\n").unwrap();
    place.broker(&plain("127.0.0.1:0")).wait_for_end(1, "line 2 of the users file");
    fs::write(&users, "").unwrap();
    place.broker(&plain("0.0.0.0:0")).wait_for_end(1, "others can reach");
}

#[test]
fn separate_broker_follows_the_list_file() {
    let place = Place::new();
    let (anna, berta) = (place.issue("operator", "anna", &[]), place.issue("operator", "berta", &[]));
    let (list, strangers) = (place.home.path().join("broker/revoked.pem"), Home::new());
    let setting = format!("revoked_file = \"{}\"\n", list.display());
    let good = fs::read(&list).unwrap();
    fs::remove_file(&list).unwrap();
    place.broker(&setting).wait_for_end(1, "revoked.pem in its data folder");
    let out = strangers.path().join("broker");
    let data = strangers.path().join("console");
    let (data, out_path) = (data.to_str().unwrap(), out.to_str().unwrap());
    let verb =
        ["console", "issue", "--data-dir", data, "--role", "broker", "--name", "b", "--san", "b", "--out", out_path];
    strangers.muster(&["console", "init", "--data-dir", data]).expect_code(0);
    strangers.muster(&verb).expect_code(0);
    let foreign = fs::read(out.join("revoked.pem")).unwrap();
    fs::write(&list, &foreign).unwrap();
    place.broker(&setting).wait_for_end(1, "the authority that the broker trusts");

    fs::write(&list, good).unwrap();
    let mut broker = place.broker(&setting);
    let mqtts = address(&mut broker, "mqtts://");
    assert!(subscribes(&mqtts, with_certificate(&anna)) && subscribes(&mqtts, with_certificate(&berta)));
    // A list that is none changes nothing, and is told of once.
    fs::write(&list, foreign).unwrap();
    broker.wait_for("a warning", |printed| printed.contains("stays in force").then_some(()));
    let data = place.data.to_str().unwrap();
    place.home.muster(&["console", "revoke", "--data-dir", data, "operator-anna"]).expect_code(0);
    fs::copy(place.data.join("revoked.pem"), &list).unwrap();
    broker.signal(nix::sys::signal::Signal::SIGHUP);
    eventually("a refusal", || {
        if subscribes(&mqtts, with_certificate(&anna)) { Err("it is let in".to_owned()) } else { Ok(()) }
    });
    assert!(subscribes(&mqtts, with_certificate(&berta)));
    let (code, printed) = broker.stop();
    assert_eq!((code, printed.matches("stays in force").count()), (0, 1), "{printed}");
}

/// The number of the certificate that a server shows.
pub(crate) fn certificate_shown(address: &str) -> String {
    let mut command = Command::new("sh");
    let script = "echo | openssl s_client -connect \"$0\" 2>/dev/null | openssl x509 -noout -serial";
    let run = Run::of(&["openssl"], command.args(["-c", script, address.rsplit_once('/').unwrap().1]));
    assert!(run.stdout.contains("serial="), "{}", run.stdout);
    run.stdout
}

#[test]
fn broker_reload_keeps_its_clients() {
    let place = Place::new();
    let users = place.home.path().join("users");
    let (_, anna) = password_line(&place.home, "operator-anna", "anna's\n");
    let (_, berta) = password_line(&place.home, "operator-berta", "berta's\n");
    fs::write(&users, &anna).unwrap();
    let setting =
        format!("plain_listen = \"127.0.0.1:0\"\nusers_file = \"{}\"\nconnect_timeout_s = 120\n", users.display());
    let mut broker = place.broker(&setting);
    let (mqtts, plain) = (address(&mut broker, "mqtts://"), address(&mut broker, "mqtt://"));
    let with_password = |name: &'static str, password: &'static str| {
        subscribes(&plain, |command| {
            command.args(["-i", name, "-u", name, "-P", password]);
        })
    };
    assert!(with_password("operator-anna", "anna's") && !with_password("operator-berta", "berta's"));
    let before = certificate_shown(&mqtts);
    let hear = |name: &str, password: &str| {
        // What it says has to come line by line: there is no message with which it would come along.
        let mut command = Command::new("stdbuf");
        command.args(["-oL", "mosquitto_sub"]);
        let (host, port) = plain.trim_start_matches("mqtt://").rsplit_once(':').unwrap();
        command.args(["-h", host, "-p", port, "-d", "-t", "muster/#", "-i", name, "-u", name, "-P", password]);
        let mut running = Running::start(&mut command);
        running.wait_for("a subscription", |printed| printed.contains("received SUBACK").then_some(()));
        running
    };
    let mut annas = hear("operator-anna", "anna's");

    // What is wrong changes nothing, and ends nobody.
    fs::write(&users, "nonsense\n").unwrap();
    broker.signal(nix::sys::signal::Signal::SIGHUP);
    broker.wait_for("a refusal", |printed| printed.contains("is unchanged").then_some(()));
    assert!(with_password("operator-anna", "anna's"));

    // A user more, another certificate, and something that only a restart changes.
    fs::write(&users, format!("{anna}{berta}")).unwrap();
    place.issue("broker", "broker", &["--san", "127.0.0.1", "--san", "localhost"]);
    place.config(&format!("monitor_listen = \"127.0.0.1:0\"\n{setting}"));
    broker.signal(nix::sys::signal::Signal::SIGHUP);
    broker.wait_for("what it took", |printed| printed.contains("need a restart: monitor_listen").then_some(()));
    assert!(with_password("operator-berta", "berta's"));
    assert_ne!(certificate_shown(&mqtts), before);
    assert!(!annas.ended() && annas.printed().matches("received CONNACK").count() == 1, "{}", annas.printed());

    // Who is a user no more is one at once.
    fs::write(&users, &berta).unwrap();
    broker.signal(nix::sys::signal::Signal::SIGHUP);
    annas.wait_for("the end of the connection", |printed| {
        let after = printed.split("received SUBACK").nth(1)?;
        (after.contains("sending CONNECT") || after.contains("Error")).then_some(())
    });
    assert!(!with_password("operator-anna", "anna's") && with_password("operator-berta", "berta's"));
    annas.kill();
    assert_eq!(broker.stop().0, 0);
}

#[test]
fn broker_raises_its_file_limit() {
    let place = Place::new();
    let anna = place.issue("operator", "anna", &[]);
    let mut broker = place.broker_within("-Sn 64", "connect_timeout_s = 600\n");
    let mqtts = address(&mut broker, "mqtts://");
    // Strangers take more than these, and stay: each has begun a handshake, for the kernel keeps who says nothing.
    let stranger = |_| {
        let mut stream = TcpStream::connect(mqtts.rsplit_once('/').unwrap().1).unwrap();
        stream.write_all(&[22]).unwrap();
        stream
    };
    let strangers: Vec<_> = (0..100).map(stranger).collect();
    assert!(subscribes(&mqtts, with_certificate(&anna)));
    drop(strangers);
    let (code, printed) = broker.stop();
    assert!(code == 0 && !printed.contains("open files"), "{printed}");

    let mut broker = place.broker_within("-n 100", "");
    let mqtts = address(&mut broker, "mqtts://");
    assert!(subscribes(&mqtts, with_certificate(&anna)));
    let (code, printed) = broker.stop();
    assert!(code == 0 && printed.contains("raise the hard limit"), "{printed}");
}
