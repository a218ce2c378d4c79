//! Bare MQTT: clients of the same library that answer a request, both at QoS 1, to a collector that subscribes at QoS 0, as a console does: at QoS 1 Mosquitto
//! would drop nine tenths of ten thousand answers. The same with both at QoS 0, as muster has it, is the floor under everything.
//!
//! The clients are a child process, which is the bench itself, started with [`ROLE`] in its environment.

use std::{
    net::SocketAddr,
    process::{Command, ExitCode},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow, bail, ensure};
use rumqttc::{AsyncClient, Event, EventLoop, Incoming, MqttOptions, NetworkOptions, QoS};
use tokio::{runtime::Builder, sync::mpsc, time::timeout};

use crate::{common::spread::Spread, place::Broker, process::Process};

/// The child's environment variable with the broker's address, the number of clients and the QoS.
const ROLE: &str = "MUSTER_BENCH_BARE_CLIENTS";

const REQUEST: &str = "bare/request";
const ANSWERS: &str = "bare/answer/+";

/// An answer that has not arrived this long after the last one counts as lost.
const LOST: Duration = Duration::from_secs(5);

/// The result.
pub(crate) struct Bare {
    /// Time until the last answer.
    pub(crate) time: Duration,
    /// Number of lost answers in the worst round.
    pub(crate) lost: u32,
}

/// Runs the clients, if this process was started for that.
pub(crate) fn run_if_asked() -> Option<ExitCode> {
    let asked = std::env::var(ROLE).ok()?;
    if let Err(error) = clients(&asked) {
        println!("error: {error:#}");
    }
    Some(ExitCode::FAILURE)
}

fn connection(name: String, address: SocketAddr) -> (AsyncClient, EventLoop) {
    let mut options = MqttOptions::new(name, address.ip().to_string(), address.port());
    options.set_keep_alive(Duration::from_secs(60)).set_inflight(100);
    let (client, mut events) = AsyncClient::new(options, 64);
    let mut network = NetworkOptions::new();
    network.set_tcp_nodelay(true);
    network.set_connection_timeout(60);
    events.set_network_options(network);
    (client, events)
}

fn clients(asked: &str) -> Result<()> {
    let [address, count, qos] = asked.split(' ').collect::<Vec<_>>()[..] else {
        bail!("an address and two numbers are wanted");
    };
    let (address, count): (SocketAddr, u32) = (address.parse()?, count.parse()?);
    let qos = rumqttc::qos(qos.parse()?).context("no quality has this number")?;
    let runtime = Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let (ready, mut subscribed) = mpsc::channel(64);
        for n in 0..count {
            let ready = ready.clone();
            tokio::spawn(async move {
                let (client, mut events) = connection(format!("bare-{n}"), address);
                // The size of an agent's outcome.
                let answer = vec![b'x'; 230];
                loop {
                    match events.poll().await {
                        Ok(Event::Incoming(Incoming::ConnAck(_))) => {
                            let _ = client.try_subscribe(REQUEST, qos);
                        }
                        Ok(Event::Incoming(Incoming::SubAck(_))) => drop(ready.send(()).await),
                        Ok(Event::Incoming(Incoming::Publish(_))) => {
                            let _ = client.try_publish(format!("bare/answer/{n}"), qos, false, answer.clone());
                        }
                        Ok(_) => {}
                        Err(_) => tokio::time::sleep(Duration::from_millis(500)).await,
                    }
                }
            });
        }
        for _ in 0..count {
            subscribed.recv().await.context("no client")?;
        }
        println!("ready");
        // Until this process is ended.
        std::future::pending::<()>().await;
        Ok(())
    })
}

/// The median time of a request with this QoS to all clients until every answer has arrived.
pub(crate) fn measure(broker: &Broker, count: u32, rounds: usize, qos: QoS) -> Result<Bare> {
    let mut command = Command::new(std::env::current_exe()?);
    command.env(ROLE, format!("{} {count} {}", broker.address(), qos as u8));
    let mut clients = Process::start("bare clients", &mut command)?;
    clients.wait_for("readiness", |line| (line == "ready").then_some(()))?;
    thread::sleep(Duration::from_secs(1));
    let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let result = runtime.block_on(async {
        let (client, mut events) = connection("bare-collector".to_owned(), broker.address());
        client.subscribe(ANSWERS, QoS::AtMostOnce).await?;
        while !matches!(events.poll().await?, Event::Incoming(Incoming::SubAck(_))) {}
        let (mut times, mut lost) = (Vec::new(), 0);
        for _ in 0..rounds {
            let (time, came) = round(&client, &mut events, count, qos).await?;
            times.push(time);
            lost = lost.max(count - came);
        }
        Ok::<_, anyhow::Error>(Bare { time: Spread::of(times).median(), lost })
    });
    clients.check()?;
    clients.kill()?;
    result
}

async fn round(client: &AsyncClient, events: &mut EventLoop, count: u32, qos: QoS) -> Result<(Duration, u32)> {
    let (began, mut last, mut came) = (Instant::now(), Duration::ZERO, 0);
    // The size of a signed command.
    client.publish(REQUEST, qos, false, vec![b'x'; 480]).await?;
    while came < count {
        match timeout(LOST, events.poll()).await {
            Ok(Ok(Event::Incoming(Incoming::Publish(_)))) => {
                came += 1;
                last = began.elapsed();
            }
            Ok(Ok(_)) => {}
            Ok(Err(error)) => return Err(anyhow!(error)),
            Err(_) => break,
        }
        if began.elapsed() > last + LOST {
            break;
        }
    }
    ensure!(came > 0, "no answer came");
    Ok((last, came))
}
