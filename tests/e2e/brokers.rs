//! Other brokers in the place of muster's own, with what `muster broker render` writes for them: console and agent
//! do over them what they do over ours. (What each broker permits is tried in `broker/tests/configs`.)

use std::{
    fs,
    net::{SocketAddr, TcpListener},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
};

use muster_topics::name::HostId;
use serde_json::Value;

use crate::fleet::{Home, Running, eventually, file};

fn free_address() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

/// A home with certificates for a broker, a configuration, and the id of the host that will join.
struct Place {
    home: Home,
    broker: PathBuf,
    address: SocketAddr,
    host: HostId,
}

fn open_to_all(path: &Path) {
    fs::set_permissions(path, fs::Permissions::from_mode(0o777)).unwrap();
}

impl Place {
    /// Has everything made for a broker; `changes` are what this machine's folders and ports would be.
    fn new(kind: &str, changes: &[(&str, &str)]) -> Self {
        let home = Home::new();
        let place = Self { broker: home.path().join("broker"), home, address: free_address(), host: HostId::random() };
        // Mosquitto becomes a user of its own before it reads these.
        open_to_all(place.home.path());
        let data = place.home.path().join("console");
        let (data, out) = (data.to_str().unwrap(), place.broker.to_str().unwrap());
        let ok = |args: &[&str]| place.home.muster(args).expect_code(0);
        ok(&[
            "console",
            "issue",
            "--data-dir",
            data,
            "--role",
            "broker",
            "--name",
            "b",
            "--san",
            "127.0.0.1",
            "--out",
            out,
        ]);
        let (listen, host) = (place.address.to_string(), place.host.to_string());
        ok(&[
            "broker",
            "render",
            "--for",
            kind,
            "--listen",
            &listen,
            "--certificates",
            out,
            "--console",
            "main",
            "--host",
            &host,
            "--out",
            out,
        ]);
        fs::create_dir(place.data()).unwrap();
        open_to_all(&place.data());
        for entry in fs::read_dir(&place.broker).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                continue;
            }
            let text =
                changes.iter().fold(fs::read_to_string(&path).unwrap(), |text, (from, to)| text.replace(from, to));
            fs::write(&path, text.replace("DATA", place.data().to_str().unwrap())).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        }
        place
    }

    fn data(&self) -> PathBuf {
        self.broker.join("data")
    }

    fn json(&self, args: &[&str]) -> Value {
        serde_json::from_str(&self.home.muster(&[&["-o", "json"], args].concat()).expect_code(0).stdout).unwrap()
    }

    /// Waits until the console shows the host so.
    fn wait_for_host(&self, state: &str) {
        eventually(state, || {
            let hosts = self.json(&["host", "ls"]);
            if hosts[0]["presence"]["state"] == state { Ok(()) } else { Err(hosts.to_string()) }
        });
    }

    fn agent(&self, more: &[&str]) -> Running {
        Running::start(self.home.command().args(["agent", "--data-dir", "agent"]).args(more))
    }

    /// Runs a console and an agent over the broker, which may still be starting.
    fn check(&self) {
        let text = format!(
            "data_dir = \"console\"\nbroker_url = \"mqtts://{}\"\nweb_listen = \"127.0.0.1:0\"\nhosts_listen = \"127.0.0.1:0\"\n",
            self.address
        );
        let config = file(&self.home, "console.toml", &text);
        let mut console = Running::start(self.home.command().args(["console", "--config", &config]));
        let link = console.wait_for("the sign-in link", |printed| {
            let from = &printed[printed.find("sign in, once")?..];
            from.split_whitespace()
                .find(|word| word.contains("code="))
                .map(str::to_owned)
                .filter(|_| from.contains('\n'))
        });
        self.home.muster(&["login", &link]).expect_code(0);
        fs::create_dir(self.home.path().join("agent")).unwrap();
        fs::write(self.home.path().join("agent/host"), format!("{}\n", self.host)).unwrap();
        let token = self.json(&["token", "create"])["token"].as_str().unwrap().to_owned();
        let agent = self.agent(&["--join", &token]);
        self.wait_for_host("online");
        let output = self.home.muster(&["exec", "--", "echo", "over another broker"]).expect_code(0).stdout;
        assert!(output.contains("over another broker"), "{output}");
        agent.kill();
        self.wait_for_host("offline");
        let agent = self.agent(&[]);
        self.wait_for_host("online");
        assert_eq!(agent.stop().0, 0);
        self.wait_for_host("stopped");
        assert_eq!(console.stop().0, 0);
    }
}

#[test]
fn over_mosquitto() {
    let place = Place::new("mosquitto", &[("/var/lib/mosquitto/", "DATA/")]);
    let _mosquitto =
        Running::start(Command::new("/usr/sbin/mosquitto").arg("-c").arg(place.broker.join("mosquitto.conf")));
    place.check();
}

#[test]
fn over_nats() {
    let own = free_address().to_string();
    let place = Place::new("nats", &[("/var/lib/nats", "DATA"), ("127.0.0.1:4222", &own)]);
    let _nats = Running::start(Command::new("nats-server").arg("-c").arg(place.broker.join("nats-server.conf")));
    place.check();
}

#[test]
fn over_rabbitmq() {
    let place = Place::new("rabbitmq", &[]);
    let epmd_port = free_address().port().to_string();
    // Erlang's directory of nodes, of this test's own.
    let _epmd = Running::start(Command::new("epmd").args(["-port", &epmd_port, "-address", "127.0.0.1"]));
    let mut rabbitmq = Command::new("/usr/lib/rabbitmq/bin/rabbitmq-server");
    place.home.dress(&mut rabbitmq);
    rabbitmq
        .env("ERL_EPMD_PORT", &epmd_port)
        .env("ERL_EPMD_ADDRESS", "127.0.0.1")
        .env("RABBITMQ_NODENAME", format!("muster{}@localhost", place.address.port()))
        .env("RABBITMQ_DIST_PORT", free_address().port().to_string())
        .env("RABBITMQ_CONFIG_FILE", place.broker.join("rabbitmq.conf"))
        .env("RABBITMQ_ENABLED_PLUGINS_FILE", place.broker.join("enabled_plugins"))
        .env("RABBITMQ_MNESIA_BASE", place.data())
        .env("RABBITMQ_LOG_BASE", place.data())
        .env("RABBITMQ_LOGS", "-")
        .env("RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS", "-kernel inet_dist_use_interface {127,0,0,1} +S 2:2")
        .env("RABBITMQ_CONF_ENV_FILE", "/dev/null")
        // Erlang takes the shell's place, so that it is the process that is ended.
        .env("RUNNING_UNDER_SYSTEMD", "true");
    let _rabbitmq = Running::start(&mut rabbitmq);
    place.check();
}
