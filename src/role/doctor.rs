//! `muster doctor`: says to [`muster_doctor`] what is installed here, by the configurations of the roles that this program has.

use std::{
    env,
    path::{Path, PathBuf},
};

use clap::Args;
use muster_base::{
    config::{self, ConfigError},
    failure::Failure,
};
use muster_doctor::{
    bundle, check, collect,
    report::Report,
    setup::{Part, PartSetup},
};
use muster_topics::diagnostic::Diagnostic;
use schemars::JsonSchema;
use serde::de::DeserializeOwned;

/// Check the health of this installation; say what helps
///
/// What is installed is found by the usual places: configurations below /etc/muster, the folder of `muster up`, the folder
/// of an agent, and the context file. Nothing is changed. The exit code is 1 if there is a problem.
#[derive(Args, Clone, Debug)]
pub(crate) struct DoctorArgs {
    /// File to write
    ///
    /// It is a bundle (tar.gz) for somebody who helps. It has the findings, versions, configurations and recent logs, without secrets. Look into it before you send it.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Data folder
    ///
    /// That of a `muster up` [default: of this user].
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// The agent's configuration [default: /etc/muster/agent.toml]
    #[arg(long, value_name = "FILE")]
    agent_config: Option<PathBuf>,
    /// The console's configuration [default: /etc/muster/console.toml]
    #[arg(long, value_name = "FILE")]
    console_config: Option<PathBuf>,
    /// The broker's configuration [default: /etc/muster/broker.toml]
    #[arg(long, value_name = "FILE")]
    broker_config: Option<PathBuf>,
}

/// Checks everything, and writes the bundle.
///
/// # Errors
/// If the bundle cannot be written.
pub(crate) async fn examine(args: &DoctorArgs) -> Result<Report, Failure> {
    let version = env!("CARGO_PKG_VERSION");
    let parts = parts(args);
    let facts = collect::collect(version, &parts).await;
    #[cfg(feature = "cli")]
    let facts = cli::with_consoles(facts).await;
    let report = Report::new(version, check::examine(&facts));
    if let Some(path) = &args.out {
        let names = bundle::write(path, &report, &parts).await?;
        let words = format!("{} has {}; read it before you send it\n", path.display(), names.join(", "));
        muster_base::terminal::err(&words);
    }
    Ok(report)
}

/// Everything that is installed here.
fn parts(args: &DoctorArgs) -> Vec<(Part, PartSetup)> {
    let mut all = Vec::new();
    let up = up_folder(args);
    let usual = |given: &Option<PathBuf>, name: &str| {
        let usual = Path::new("/etc/muster").join(name);
        // What is named is looked at even if it is not there, which is then said.
        given.clone().or_else(|| (args.data_dir.is_none() && usual.exists()).then_some(usual))
    };
    #[cfg(feature = "agent")]
    {
        all.extend(usual(&args.agent_config, "agent.toml").map(|path| (Part::Agent, agent::of_config(&path))));
        all.extend(up.as_deref().map(|data| (Part::Agent, agent::of_up(data))));
        if all.is_empty() && args.data_dir.is_none() {
            all.extend(agent::of_user().map(|setup| (Part::Agent, setup)));
        }
    }
    #[cfg(feature = "console")]
    {
        let setup = usual(&args.console_config, "console.toml").map(|path| console::of_config(&path));
        let setup = setup.filter(|setup| args.console_config.is_some() || is_in_use(setup));
        all.extend(setup.map(|setup| (Part::Console, setup)));
        all.extend(up.as_deref().map(|data| (Part::Console, console::of_up(data))));
    }
    #[cfg(feature = "broker")]
    {
        let setup = usual(&args.broker_config, "broker.toml").map(|path| broker::of_config(&path));
        let setup = setup.filter(|setup| args.broker_config.is_some() || is_in_use(setup));
        all.extend(setup.map(|setup| (Part::Broker, setup)));
        all.extend(up.as_deref().map(|data| (Part::Broker, broker::of_up(data))));
    }
    #[cfg(feature = "cli")]
    all.extend(cli::of_context().map(|setup| (Part::Cli, setup)));
    all
}

/// Whether somebody has begun to use a role: the package of the whole program brings configurations of broker and console
/// to every host. Then its service is enabled, or there is something in its folder, or something is wrong with its
/// configuration.
#[cfg(any(feature = "console", feature = "broker"))]
fn is_in_use(setup: &PartSetup) -> bool {
    let wanted = Path::new("/etc/systemd/system/multi-user.target.wants");
    let link = setup.service.map(|service| wanted.join(format!("{service}.service")));
    let is_empty = |folder: &PathBuf| match folder.read_dir() {
        Ok(mut entries) => entries.next().is_none(),
        Err(error) => error.kind() == std::io::ErrorKind::NotFound,
    };
    setup.trouble.is_some()
        || link.is_some_and(|link| link.symlink_metadata().is_ok())
        || !setup.folders.iter().all(is_empty)
}

/// The folder of a `muster up` that there is.
fn up_folder(args: &DoctorArgs) -> Option<PathBuf> {
    #[cfg(all(feature = "agent", feature = "broker", feature = "cli", feature = "console"))]
    let usual = crate::up::default_data().ok().filter(|folder| folder.join("lock").exists());
    #[cfg(not(all(feature = "agent", feature = "broker", feature = "cli", feature = "console")))]
    let usual = None;
    let is_named = [&args.agent_config, &args.console_config, &args.broker_config].iter().any(|given| given.is_some());
    args.data_dir.clone().or(usual.filter(|_| !is_named))
}

/// Reads a configuration as its role does, or says why that cannot.
fn load<T: DeserializeOwned + JsonSchema + Default>(role: &str, path: &Path) -> (T, Option<Diagnostic>) {
    let environment =
        env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
    match config::load(role, Some(path), environment) {
        Ok(config) => (config, None),
        Err(error) => (T::default(), Some(trouble(&error))),
    }
}

fn trouble(error: &ConfigError) -> Diagnostic {
    hinted(Diagnostic::of(error), "correct the file; `--check-config` of its role says all that is wrong with it")
}

/// Gives what has no hint of its own the usual one.
fn hinted(told: Diagnostic, usual: &str) -> Diagnostic {
    if told.hint.is_some() { told } else { told.with_hint(usual) }
}

#[cfg(feature = "agent")]
mod agent {
    use std::path::Path;

    use muster_agent::{config::Config, join, local};
    use muster_doctor::setup::{CertificateSetup, CertificateSource, MemberSetup, PartSetup, ServerSetup};
    use muster_topics::diagnostic::Diagnostic;

    use super::{hinted, load};

    /// Open files of an agent: its store, sockets, and pipes of the programs that it may run at once.
    const OPEN_FILES: (u64, &str) = (1_024, "an agent");

    pub(super) fn of_config(path: &Path) -> PartSetup {
        let (config, trouble): (Config, _) = load("agent", path);
        let mut setup = of_folder(&config.data_dir);
        setup.config = Some(path.to_owned());
        if config.join.is_some() || trouble.is_some() {
            setup.private.push(path.to_owned());
        }
        setup.podman_socket = Some(config.containers.podman_socket.clone());
        "systemctl start muster-agent".clone_into(&mut setup.start);
        setup.service = Some("muster-agent");
        if config.join.is_some() {
            setup.missing = setup.missing.map(|missing| {
                missing.with_hint(
                    "start it (systemctl start muster-agent): it has a token; if that does not \
                     help, see its log: journalctl -u muster-agent -n 50",
                )
            });
        }
        if trouble.is_some() {
            // What is said of default folders would mislead.
            return PartSetup { trouble, missing: None, folders: Vec::new(), stores: Vec::new(), lock: None, ..setup };
        }
        setup
    }

    pub(super) fn of_up(data: &Path) -> PartSetup {
        PartSetup { start: format!("muster up --data-dir {}", data.display()), ..of_folder(&data.join("agent")) }
    }

    /// An agent that is started by hand, in the default folder of this user.
    pub(super) fn of_user() -> Option<PartSetup> {
        let folder = crate::role::agent::own_folder();
        let start = format!("muster agent --data-dir {}", folder.display());
        folder.join("host").exists().then(|| PartSetup { start, ..of_folder(&folder) })
    }

    fn of_folder(folder: &Path) -> PartSetup {
        let at = |name: &str| folder.join(name);
        let mut setup = PartSetup {
            lock: Some(at("lock")),
            folders: vec![folder.to_owned()],
            stores: vec![at("agent.db")],
            private: ["identity.json", "sealing.key", "token.sha256"].map(at).to_vec(),
            agent_socket: Some(at(local::SOCKET)),
            open_files: Some(OPEN_FILES),
            ..PartSetup::default()
        };
        match join::load(folder) {
            Ok(Some(identity)) => add_member(&mut setup, identity),
            Ok(None) => {
                setup.missing = Some(Diagnostic::new("this host has not joined a fleet").with_hint(
                    "`muster token create` on the console's side, and here `muster agent install --now --join TOKEN`",
                ));
            }
            // Its key is a credential, which only the agent gets: what needs the key is not examined.
            Err(join::JoinError::Credential { .. }) => {}
            Err(error) => {
                let usual = "run this as root, or as the user that the agent runs as";
                setup.trouble = Some(hinted(Diagnostic::of(&error), usual));
            }
        }
        setup
    }

    fn add_member(setup: &mut PartSetup, identity: join::MemberIdentity) {
        let membership = identity.membership;
        let authority = Some(membership.authority.clone());
        let server = |what, url: &str, remedy: &str| ServerSetup {
            what,
            url: url.to_owned(),
            authority: authority.clone(),
            remedy: remedy.to_owned(),
        };
        setup.servers = vec![
            server(
                "console",
                &membership.console_url,
                "start the console (systemctl status muster-console on its machine), and let its port for hosts through \
                 the firewall",
            ),
            server(
                "broker",
                &membership.broker_url,
                "start the broker (systemctl status muster-broker on its machine), and let its port through the firewall",
            ),
        ];
        let certificate = |what, pem: &str, remedy: &str| CertificateSetup {
            what,
            source: CertificateSource::Text(pem.to_owned()),
            remedy: remedy.to_owned(),
        };
        setup.certificates = vec![
            certificate(
                "the host's",
                &membership.certificate,
                "a running agent renews it while it reaches the console; once it has expired, join again: `muster token create --replace HOST` on the console's side, and `muster agent --join TOKEN` here",
            ),
            certificate(
                "the authority's",
                &membership.authority,
                "the fleet needs a new authority, and every host a new token: ask the console's operators",
            ),
        ];
        setup.member = Some(MemberSetup {
            host: membership.host,
            prefix: membership.prefix,
            broker_url: membership.broker_url,
            authority: membership.authority,
            certificate: membership.certificate,
            key: identity.key,
        });
    }
}

#[cfg(feature = "console")]
mod console {
    use std::path::Path;

    use muster_console::config::Config;
    use muster_doctor::setup::{CertificateSetup, CertificateSource, ListenerSetup, PartSetup, ServerSetup};

    use super::load;

    /// Open files of a console: its stores, and connections of hosts that join or fetch content.
    const OPEN_FILES: (u64, &str) = (4_096, "a console");

    pub(super) fn of_config(path: &Path) -> PartSetup {
        let (config, trouble): (Config, _) = load("console", path);
        let mut setup = of_folder(&config.data_dir);
        setup.config = Some(path.to_owned());
        "systemctl start muster-console".clone_into(&mut setup.start);
        setup.service = Some("muster-console");
        setup.listeners = vec![
            ListenerSetup { key: "web_listen", address: config.web_listen },
            ListenerSetup { key: "hosts_listen", address: config.hosts_listen },
        ];
        // Both, while one root replaces the other.
        let read = |name| std::fs::read_to_string(config.data_dir.join("authority").join(name)).ok();
        let roots = [read("authority.pem"), read("authority.next.pem")].into_iter().flatten().collect::<String>();
        let authority = (!roots.is_empty()).then_some(roots);
        setup.servers = vec![ServerSetup {
            what: "broker",
            url: config.broker_url.clone(),
            authority,
            remedy: "start the broker (systemctl status muster-broker on its machine), or correct `broker_url`"
                .to_owned(),
        }];
        let outlets = config.alert_outlets.iter().filter_map(|outlet| outlet.secret_file.clone());
        let stores = config.metric_stores.iter();
        let of_stores = stores.filter_map(|store| store.secret_file.clone());
        setup.private.extend(outlets.chain(of_stores));
        if trouble.is_some() {
            return PartSetup { trouble, start: setup.start, config: setup.config, ..PartSetup::default() };
        }
        setup
    }

    pub(super) fn of_up(data: &Path) -> PartSetup {
        PartSetup { start: format!("muster up --data-dir {}", data.display()), ..of_folder(&data.join("console")) }
    }

    fn of_folder(folder: &Path) -> PartSetup {
        let at = |name: &str| folder.join(name);
        PartSetup {
            lock: Some(at("lock")),
            folders: vec![folder.to_owned()],
            stores: vec![at("console.db"), at("series.db")],
            certificates: vec![CertificateSetup {
                what: "the authority's",
                source: CertificateSource::File(at("authority/authority.pem")),
                remedy: "restore it from a backup; if it has expired, the fleet needs a new authority".to_owned(),
            }],
            private: ["authority.key", "authority.next.key", "signing.key", "signing.next.key", "salt.key"]
                .map(|name| at(&format!("authority/{name}")))
                .to_vec(),
            open_files: Some(OPEN_FILES),
            ..PartSetup::default()
        }
    }
}

#[cfg(feature = "broker")]
mod broker {
    use std::path::Path;

    use muster_doctor::setup::{CertificateSetup, CertificateSource, ListenerSetup, PartSetup};

    use super::load;
    use crate::role::embedded_broker::Config;

    /// Open files of a broker: one for each client, and some thousand hosts.
    const OPEN_FILES: (u64, &str) = (10_000, "a broker of some thousand hosts");

    pub(super) fn of_config(path: &Path) -> PartSetup {
        let (config, trouble): (Config, _) = load("broker", path);
        let issue = "`muster console issue --role broker --name NAME --san ADDRESS --out DIR` on the console's machine makes \
                     a new one; the broker reads it after kill -HUP";
        let mut setup = of_folder(&config.data_dir);
        setup.config = Some(path.to_owned());
        "systemctl start muster-broker".clone_into(&mut setup.start);
        setup.service = Some("muster-broker");
        let listeners = [
            ("listen", Some(config.listen)),
            ("websocket_listen", config.websocket_listen),
            ("plain_listen", config.plain_listen),
            ("monitor_listen", config.monitor_listen),
        ];
        let listener = |(key, address): (&'static str, Option<_>)| Some(ListenerSetup { key, address: address? });
        setup.listeners = listeners.into_iter().filter_map(listener).collect();
        let certificate = |what, path: &Path| CertificateSetup {
            what,
            source: CertificateSource::File(path.to_owned()),
            remedy: issue.to_owned(),
        };
        setup.certificates = vec![
            certificate("the broker's", &config.certificate_file),
            certificate("the authority's", &config.authority_file),
        ];
        setup.private.push(config.key_file.clone());
        setup.private.extend(config.plain_listen.map(|_| config.users_file.clone()));
        setup.revoked = config.revoked_file;
        if trouble.is_some() {
            return PartSetup { trouble, start: setup.start, config: setup.config, ..PartSetup::default() };
        }
        setup
    }

    pub(super) fn of_up(data: &Path) -> PartSetup {
        PartSetup {
            start: format!("muster up --data-dir {}", data.display()),
            lock: Some(data.join("lock")),
            ..of_folder(&data.join("broker"))
        }
    }

    fn of_folder(folder: &Path) -> PartSetup {
        PartSetup {
            lock: Some(folder.join("lock")),
            folders: vec![folder.to_owned()],
            open_files: Some(OPEN_FILES),
            ..PartSetup::default()
        }
    }
}

#[cfg(feature = "cli")]
mod cli {
    use std::time::Duration;

    use futures_util::future::join_all;
    use muster_cli::{
        client::ConsoleClient,
        context::{self, ConsoleContext, Contexts},
    };
    use muster_doctor::{
        facts::{ConsoleAlertFacts, ConsoleFacts, Facts},
        setup::{Part, PartSetup, ServerSetup},
    };
    use tokio::time::timeout;

    use super::{Failure, hinted};

    /// How long a console may take to say what is wrong.
    const ANSWER: Duration = Duration::from_secs(5);
    /// The most alerts that are asked for: as many as a console lists.
    const ALERTS_MAX: usize = 1_000;
    /// What the names of rules begin with by which a console speaks of itself, or of what hosts want of it.
    const OWN_PREFIX: &str = "console-";

    /// Adds what the console says of itself that this user's verbs ask.
    pub(super) async fn with_consoles(mut facts: Facts) -> Facts {
        for (_, found) in facts.parts.iter_mut().filter(|(part, _)| *part == Part::Cli) {
            found.consoles = ask_consoles().await;
        }
        facts
    }

    async fn ask_consoles() -> Vec<ConsoleFacts> {
        let known = context::path().ok().and_then(|path| Contexts::load(&path).ok()).unwrap_or_default();
        join_all(used(known).map(async |(name, context)| {
            let alerts = match timeout(ANSWER, own_alerts(&context)).await {
                Ok(alerts) => alerts,
                Err(_) => Err(format!("no answer within {} s", ANSWER.as_secs())),
            };
            ConsoleFacts { name, alerts }
        }))
        .await
    }

    /// The console that verbs ask. Another one that is gone is not a fault of this machine.
    fn used(known: Contexts) -> impl Iterator<Item = (String, ConsoleContext)> {
        let Contexts { current, contexts } = known;
        contexts.into_iter().filter(move |(name, _)| current.as_ref() == Some(name))
    }

    fn why(failure: Failure) -> String {
        failure.cause().unwrap_or("it failed").to_owned()
    }

    async fn own_alerts(context: &ConsoleContext) -> Result<Vec<ConsoleAlertFacts>, String> {
        let client = ConsoleClient::new(context).map_err(why)?;
        // Its own are of the worst severity.
        let query = [("sort", "severity".to_owned()), ("limit", ALERTS_MAX.to_string())];
        let alerts: Vec<muster_api::Alert> = client.get("alerts", &query).await.map_err(why)?;
        let own = alerts.into_iter().filter(|one| one.alert.rule.as_str().starts_with(OWN_PREFIX));
        Ok(own
            .map(|one| ConsoleAlertFacts {
                rule: one.alert.rule.to_string(),
                hostname: (!one.host.0.is_nil()).then_some(one.hostname),
                told: one.alert.diagnostic,
            })
            .collect())
    }

    /// The console that this user's verbs ask.
    pub(super) fn of_context() -> Option<PartSetup> {
        let path = context::path().ok().filter(|path| path.exists())?;
        let mut setup = PartSetup { config: Some(path.clone()), private: vec![path.clone()], ..PartSetup::default() };
        match Contexts::load(&path) {
            Ok(contexts) => {
                setup.servers = used(contexts)
                    .map(|(_, context)| ServerSetup {
                        what: "console",
                        url: context.url,
                        authority: context.authority,
                        remedy: "start that console (or `muster up`); if its address has changed, sign in again: \
                                 `muster login LINK`"
                            .to_owned(),
                    })
                    .collect();
            }
            Err(failure) => {
                let usual = format!("move {} away and sign in again: `muster login LINK`", path.display());
                setup.trouble = Some(hinted(failure.diagnostic.unwrap_or_default(), &usual));
            }
        }
        Some(setup)
    }
}
