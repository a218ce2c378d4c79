//! TLS handshakes and nothing else: the limit for every broker that speaks TLS with rustls.
//!
//! A child process of the bench, which is the bench itself, started with [`ROLE`] in its environment. Each connection
//! is accepted, shakes hands with certificates on both sides, reads one CONNECT, writes one CONNACK, and is kept.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpListener},
    path::{Path, PathBuf},
    process::{Command, ExitCode},
    sync::Arc,
    thread,
};

use anyhow::{Context, Result};
use muster_net::pki;
use rustls::{ServerConfig, ServerConnection, StreamOwned, server::WebPkiClientVerifier};

/// The child's environment variable with its address and the folder of its certificate.
const ROLE: &str = "MUSTER_BENCH_BARE";

/// As many as the load's connections under way, so that none waits for another.
const THREADS: usize = 64;

/// The command that starts it.
pub(crate) fn command(address: SocketAddr, pki: &Path) -> Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.env(ROLE, format!("{address} {}", pki.display()));
    Ok(command)
}

/// Runs it, if this process was started for that.
pub(crate) fn run_if_asked() -> Option<ExitCode> {
    let asked = std::env::var(ROLE).ok()?;
    let served = match asked.split_once(' ') {
        Some((address, pki)) => serve(address, &PathBuf::from(pki)),
        None => Err(anyhow::anyhow!("{ROLE} wants an address and a folder")),
    };
    if let Err(error) = served {
        println!("error: {error:#}");
    }
    Some(ExitCode::FAILURE)
}

fn serve(address: &str, pki: &Path) -> Result<()> {
    let read = |name: &str| std::fs::read_to_string(pki.join(name)).with_context(|| name.to_owned());
    let roots = Arc::new(pki::roots(&read("authority.pem")?)?);
    let verifier = WebPkiClientVerifier::builder_with_provider(roots, pki::provider()).build()?;
    let mut config = ServerConfig::builder_with_provider(pki::provider())
        .with_safe_default_protocol_versions()?
        .with_client_cert_verifier(verifier)
        .with_single_cert(
            pki::certificates("the certificate", &read("certificate.pem")?)?,
            pki::private_key("the key", &read("key.pem")?)?,
        )?;
    config.send_tls13_tickets = 0;
    let config = Arc::new(config);
    let listener = Arc::new(TcpListener::bind(address)?);
    let threads: Vec<_> = (0..THREADS)
        .map(|_| {
            let (config, listener) = (Arc::clone(&config), Arc::clone(&listener));
            thread::spawn(move || {
                let mut kept = Vec::new();
                loop {
                    // A client that only tests the port does not end the server.
                    if let Ok(stream) = one(&listener, &config) {
                        kept.push(stream);
                    }
                }
            })
        })
        .collect();
    // The threads run until the process is ended.
    threads.into_iter().try_for_each(|thread| thread.join()).map_err(|_| anyhow::anyhow!("a thread panicked"))
}

fn one(
    listener: &TcpListener,
    config: &Arc<ServerConfig>,
) -> Result<StreamOwned<ServerConnection, std::net::TcpStream>> {
    let (socket, _) = listener.accept()?;
    socket.set_nodelay(true)?;
    let mut stream = StreamOwned::new(ServerConnection::new(Arc::clone(config))?, socket);
    let mut head = [0; 2];
    stream.read_exact(&mut head)?;
    // The load's CONNECT is shorter than 128 bytes.
    stream.read_exact(&mut vec![0; usize::from(head[1])])?;
    stream.write_all(&[0x20, 2, 0, 0])?;
    stream.flush()?;
    Ok(stream)
}
