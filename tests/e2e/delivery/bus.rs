//! The brokers: each a real one, in processes of its own, that can be killed and come back knowing nothing; and stock
//! clients that speak with it as a third party does.

use std::{
    fs,
    io::Write,
    net::{SocketAddr, TcpListener, TcpStream},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use muster_topics::name::HostId;

use crate::fleet::{Home, Running, eventually};

/// A broker that the promises hold over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Mosquitto as Debian installs it: for everybody on this machine, without TLS.
    Installed,
    /// Mosquitto with what `muster broker render` writes.
    Mosquitto,
    /// RabbitMQ, the same.
    RabbitMq,
    /// NATS, the same.
    Nats,
    /// muster's own.
    Own,
}

impl Kind {
    /// What `muster broker render` calls it, if it makes its configuration.
    fn rendered(self) -> Option<&'static str> {
        match self {
            Self::Mosquitto => Some("mosquitto"),
            Self::RabbitMq => Some("rabbitmq"),
            Self::Nats => Some("nats"),
            Self::Installed | Self::Own => None,
        }
    }
}

/// An address that was free a moment ago.
pub(super) fn free_address() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

fn open_to_all(path: &Path) {
    fs::set_permissions(path, fs::Permissions::from_mode(0o777)).unwrap();
}

fn write(path: &Path, text: &str) {
    fs::write(path, text).unwrap();
    // A broker may be a user of its own when it reads this.
    fs::set_permissions(path, fs::Permissions::from_mode(0o644)).unwrap();
}

/// A broker.
pub(super) struct Bus {
    pub(super) kind: Kind,
    address: SocketAddr,
    home: PathBuf,
    server: Option<Running>,
    /// Erlang's directory of nodes, of this test's own, with its port.
    epmd: Option<(Running, String)>,
    /// Where it speaks with its like, of which there are none.
    other: SocketAddr,
    /// What its environment has more from its next start on.
    pub(super) env: Vec<(&'static str, String)>,
}

impl Bus {
    /// Has certificates and a configuration made, for the console `main` and for some hosts; and starts it.
    pub(super) fn start(kind: Kind, home: &Home, hosts: &[HostId]) -> Self {
        // Mosquitto becomes a user of its own before it reads what is here.
        open_to_all(home.path());
        let (address, other) = (free_address(), free_address());
        let mut bus =
            Self { kind, address, home: home.path().to_owned(), server: None, epmd: None, other, env: Vec::new() };
        let folder = bus.folder();
        home.muster(&["console", "init", "--data-dir", bus.home.join("console").to_str().unwrap()]).expect_code(0);
        for (role, name) in [("broker", "broker"), ("console", "spare"), ("observer", "bridge")] {
            let out = if role == "broker" { folder.clone() } else { bus.home.join(format!("{role}-{name}")) };
            let (data, out) = (bus.home.join("console"), out.to_str().unwrap().to_owned());
            let mut args = vec!["console", "issue", "--data-dir", data.to_str().unwrap(), "--role", role];
            args.extend(["--name", name, "--out", &out]);
            if role == "broker" {
                args.extend(["--san", "127.0.0.1"]);
            }
            home.muster(&args).expect_code(0);
        }
        if let Some(rendered) = kind.rendered() {
            let (listen, out) = (address.to_string(), folder.to_str().unwrap());
            let hosts: Vec<String> = hosts.iter().map(HostId::to_string).collect();
            let mut args = vec!["broker", "render", "--program", rendered, "--listen", &listen, "--certificates", out];
            args.extend(["--console", "main", "--console", "spare", "--observer", "bridge"]);
            args.extend(hosts.iter().flat_map(|host| ["--host", host]));
            args.extend(["--out", out]);
            home.muster(&args).expect_code(0);
        }
        bus.configure();
        bus.again();
        bus
    }

    fn folder(&self) -> PathBuf {
        self.home.join("broker")
    }

    fn data(&self) -> PathBuf {
        self.folder().join("data")
    }

    /// Puts this test's folders and ports into what was rendered, or writes what was not.
    fn configure(&self) {
        let data = self.data().display().to_string();
        let other = self.other.to_string();
        for entry in fs::read_dir(self.folder()).unwrap() {
            let path = entry.unwrap().path();
            let text = fs::read_to_string(&path).unwrap();
            let text = text
                .replace("/var/lib/mosquitto/", &format!("{data}/"))
                .replace("/var/lib/nats", &data)
                .replace("127.0.0.1:4222", &other);
            write(&path, &text);
        }
        let file = |name: &str| self.folder().join(name).display().to_string();
        match self.kind {
            // Debian's own file, but for the folders and the port; where Mosquitto 2 is told of a port, it wants to be
            // told that strangers may come, too.
            Kind::Installed => write(
                &self.folder().join("mosquitto.conf"),
                &format!(
                    "listener {} 127.0.0.1\nallow_anonymous true\npersistence true\npersistence_location {data}/\n",
                    self.address.port()
                ),
            ),
            Kind::Own => write(
                &self.folder().join("broker.toml"),
                &format!(
                    "listen = \"{}\"\ncertificate_file = \"{}\"\nkey_file = \"{}\"\nauthority_file = \"{}\"\ndata_dir = \"{data}\"\n",
                    self.address,
                    file("certificate.pem"),
                    file("key.pem"),
                    file("authority.pem"),
                ),
            ),
            Kind::Mosquitto | Kind::RabbitMq | Kind::Nats => {}
        }
    }

    /// The broker, for console and agent.
    pub(super) fn url(&self) -> String {
        let scheme = if self.kind == Kind::Installed { "mqtt" } else { "mqtts" };
        format!("{scheme}://{}", self.address)
    }

    /// Has Mosquitto refuse who is on the list that lies beside its configuration, from its next start on.
    pub(super) fn use_list(&self) {
        let path = self.folder().join("mosquitto.conf");
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.contains("\n#crlfile "), "{text}");
        write(&path, &text.replace("\n#crlfile ", "\ncrlfile "));
    }

    /// Has its certificates made again, and starts it with them.
    pub(super) fn renew(&mut self, home: &Home) {
        let (data, out) = (self.home.join("console"), self.folder());
        let folders = ["--data-dir", data.to_str().unwrap(), "--out", out.to_str().unwrap()];
        let whose = ["--role", "broker", "--name", "broker", "--san", "127.0.0.1"];
        home.muster(&[&["console", "issue"], &folders[..], &whose].concat()).expect_code(0);
        for name in ["authority.pem", "certificate.pem", "key.pem", "revoked.pem"] {
            fs::set_permissions(out.join(name), fs::Permissions::from_mode(0o644)).unwrap();
        }
        self.kill();
        self.again();
    }

    /// Kills it.
    pub(super) fn kill(&mut self) {
        self.server.take().unwrap().kill();
    }

    /// Forgets all that it knew. (It must not run.)
    pub(super) fn forget(&self) {
        assert!(self.server.is_none());
        fs::remove_dir_all(self.data()).unwrap();
    }

    /// Starts it (again), and waits until it takes connections.
    pub(super) fn again(&mut self) {
        let data = self.data();
        fs::create_dir_all(&data).unwrap();
        open_to_all(&data);
        let file = |name: &str| self.folder().join(name);
        let mut command = match self.kind {
            Kind::Installed | Kind::Mosquitto => {
                let mut command = Command::new("/usr/sbin/mosquitto");
                command.arg("-c").arg(file("mosquitto.conf"));
                command
            }
            Kind::Nats => {
                let mut command = Command::new("nats-server");
                command.arg("-c").arg(file("nats-server.conf"));
                command
            }
            Kind::RabbitMq => self.rabbitmq(),
            Kind::Own => {
                let mut command = Command::new(crate::fleet::LINKED);
                command.args(["broker", "--config"]).arg(file("broker.toml"));
                command
            }
        };
        command.envs(self.env.iter().map(|(name, value)| (name, value)));
        let mut server = Running::start(command.stdin(Stdio::null()));
        let address = self.address;
        server.wait_for("a broker that listens", |_| TcpStream::connect(address).is_ok().then_some(()));
        self.server = Some(server);
    }

    fn rabbitmq(&mut self) -> Command {
        let (_, epmd_port) = self.epmd.get_or_insert_with(|| {
            let port = free_address().port().to_string();
            (Running::start(Command::new("epmd").args(["-port", &port, "-address", "127.0.0.1"])), port)
        });
        let folder = self.home.join("broker");
        let data = folder.join("data");
        let mut command = Command::new("/usr/lib/rabbitmq/bin/rabbitmq-server");
        command
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("HOME", &self.home)
            .env("ERL_EPMD_PORT", epmd_port)
            .env("ERL_EPMD_ADDRESS", "127.0.0.1")
            .env("RABBITMQ_NODENAME", format!("muster{}@localhost", self.address.port()))
            .env("RABBITMQ_DIST_PORT", self.other.port().to_string())
            .env("RABBITMQ_CONFIG_FILE", folder.join("rabbitmq.conf"))
            .env("RABBITMQ_ENABLED_PLUGINS_FILE", folder.join("enabled_plugins"))
            .env("RABBITMQ_MNESIA_BASE", &data)
            .env("RABBITMQ_LOG_BASE", &data)
            .env("RABBITMQ_LOGS", "-")
            .env("RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS", "-kernel inet_dist_use_interface {127,0,0,1} +S 2:2")
            .env("RABBITMQ_CONF_ENV_FILE", "/dev/null")
            // Erlang takes the shell's place, so that it is the process that is killed.
            .env("RUNNING_UNDER_SYSTEMD", "true")
            .current_dir(&data);
        command
    }

    /// A stock client with the certificate of somebody, such as `observer-bridge`.
    fn client(&self, program: &str, who: &str) -> Command {
        let mut command = Command::new(program);
        command.args(["-h", "127.0.0.1", "-p", &self.address.port().to_string(), "-q", "1", "-i", who]);
        if self.kind != Kind::Installed {
            let folder = self.home.join(who);
            for (flag, name) in [("--cafile", "authority.pem"), ("--cert", "certificate.pem"), ("--key", "key.pem")] {
                command.arg(flag).arg(folder.join(name));
            }
        }
        command
    }

    /// Publishes a message so many times, as another console. The broker has them all when this is over.
    #[track_caller]
    pub(super) fn publish(&self, topic: &str, message: &str, times: usize) {
        let mut client = self.client("mosquitto_pub", "console-spare");
        let mut client = client.args(["-t", topic, "-l"]).stdin(Stdio::piped()).spawn().unwrap();
        let lines = format!("{message}\n").repeat(times);
        client.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
        assert!(client.wait().unwrap().success());
    }

    /// Listens to topics, as long as the answer lives. It connects anew by itself.
    pub(super) fn listen(&self, topics: &[&str]) -> Running {
        let mut client = self.client("mosquitto_sub", "observer-bridge");
        client.args(["-v"]);
        for topic in topics {
            client.args(["-t", topic]);
        }
        Running::start(&mut client)
    }

    /// What is retained on a topic; nothing if there is none within some seconds.
    pub(super) fn retained(&self, topic: &str) -> Option<String> {
        let mut client = self.client("mosquitto_sub", "console-spare");
        let output = client.args(["-t", topic, "-C", "1", "-W", "3", "--retained-only"]).output().unwrap();
        String::from_utf8(output.stdout).ok().filter(|text| !text.is_empty())
    }

    /// Waits until something is retained on a topic that has these words.
    #[track_caller]
    pub(super) fn wait_for_retained(&self, topic: &str, words: &str) {
        eventually(topic, || match self.retained(topic) {
            Some(text) if text.contains(words) => Ok(()),
            other => Err(format!("{words} is not in {other:?}")),
        });
    }
}
