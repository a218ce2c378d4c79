//! `muster broker render`: the configuration of another broker with the same rules.

use std::{
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
};

use clap::Args;
use muster_base::{
    failure::{Failure, FailureKind as Failed},
    files,
};
use muster_broker::render::{self, BrokerKind, RenderInputs, RenderedFile};
use muster_topics::{
    name::{HostId, Name},
    topic::Prefix,
};

/// Arguments of `muster broker render`.
#[derive(Args, Clone, Debug)]
pub(crate) struct RenderArgs {
    /// Program that it is for
    ///
    /// mosquitto, rabbitmq, nats, emqx or hivemq.
    #[arg(long = "program", value_name = "PROGRAM")]
    kind: BrokerKind,
    /// First levels of all topics
    #[arg(long = "topic-prefix", value_name = "TOPIC", default_value_t = Prefix::default().as_str().to_owned())]
    prefix: String,
    /// Address on which clients connect
    #[arg(long, value_name = "ADDRESS:PORT", default_value_t = render::default_listen())]
    listen: SocketAddr,
    /// Folder of its certificates on the broker's machine
    ///
    /// It has authority.pem, certificate.pem and key.pem. [default: /etc/PROGRAM/muster]
    #[arg(long, value_name = "DIR")]
    certificates: Option<PathBuf>,
    /// Console with a certificate console-NAME; repeatable
    #[arg(long = "console", value_name = "NAME")]
    consoles: Vec<Name>,
    /// Operator with a certificate operator-NAME; repeatable
    #[arg(long = "operator", value_name = "NAME")]
    operators: Vec<Name>,
    /// Observer with a certificate observer-NAME; repeatable
    #[arg(long = "observer", value_name = "NAME")]
    observers: Vec<Name>,
    /// Host, by its id; repeatable
    ///
    /// For brokers that must know each: rabbitmq, nats.
    #[arg(long = "host", value_name = "HOST")]
    hosts: Vec<HostId>,
    /// Folder to write into [default: print it all]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

/// Writes the files, or prints them.
///
/// # Errors
/// If they cannot be rendered or written.
pub(crate) fn run(wanted: &RenderArgs) -> Result<(), Failure> {
    let prefix =
        wanted.prefix.parse().map_err(|error| Failure::new(Failed::Usage, format!("--topic-prefix: {error}")))?;
    let fleet = RenderInputs {
        prefix,
        listen: wanted.listen,
        certificates: wanted.certificates.clone(),
        hosts: wanted.hosts.clone(),
        consoles: wanted.consoles.clone(),
        operators: wanted.operators.clone(),
        observers: wanted.observers.clone(),
    };
    if fleet.consoles.is_empty() {
        return Err(Failure::new(Failed::Usage, "a fleet's broker needs a console")
            .hint("pass --console main, or the `id` of the console's configuration"));
    }
    let files = render::render(wanted.kind, &fleet).map_err(|error| Failure::new(Failed::Usage, error))?;
    match &wanted.out {
        Some(folder) => write(folder, &files),
        None => print(&files),
    }
}

fn write(folder: &Path, all: &[RenderedFile]) -> Result<(), Failure> {
    fs::create_dir_all(folder).map_err(|error| Failure::of_file(folder, &error))?;
    for file in all {
        let path = folder.join(file.name);
        files::write_atomically(&path, file.text.as_bytes(), files::PUBLIC_MODE)
            .map_err(|error| Failure::of_file(&path, &error))?;
    }
    Ok(())
}

/// Prints the files; several are each preceded by a line with the name.
fn print(all: &[RenderedFile]) -> Result<(), Failure> {
    let named = |file: &RenderedFile| match all {
        [_] => file.text.clone(),
        _ => format!("==> {} <==\n{}\n", file.name, file.text),
    };
    let text: String = all.iter().map(named).collect();
    muster_base::terminal::out(text.as_bytes())
}
