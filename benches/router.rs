//! What the embedded broker's use of rumqttd costs: a message through rumqttd's router, beside one through a channel.
//!
//!     cargo bench -p muster-broker --bench router -- [--messages N] [--alone N] [--rounds N]
//!
//! The broker puts every accepted message into the router's log under one topic, and one link reads them in the same order
//! (`broker/src/router.rs`). This does the same with the same crate and the same sizes; beside it, in turns, a channel of
//! tokio does what the router is used for: an ordered queue between many publishers and one reader.
//!
//! - **messages/s** and **µs/message**: batches of 64 messages of 200 bytes, at most 1 MB of them inside; processor time is
//!   that of the whole process
//! - **alone**: from the input to the output, of one message at a time
//! - **held**: by how much the resident set has grown after that, with what each keeps

#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::allow_attributes,
    reason = "a program to be run by hand"
)]

#[path = "common/cli.rs"]
#[allow(dead_code, reason = "each bench uses a part of it")]
mod cli;
#[path = "common/spread.rs"]
#[allow(dead_code, reason = "each bench uses a part of it")]
mod spread;
#[path = "common/usage.rs"]
#[allow(dead_code, reason = "each bench uses a part of it")]
mod usage;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use bytes::Bytes;
use rumqttd::{
    Forward, Notification, Router, RouterConfig,
    local::{LinkBuilder, LinkRx, LinkTx},
    protocol::{Packet, PingReq, Publish},
};
use spread::Spread;
use tokio::sync::{Semaphore, mpsc};

const TOPIC: &str = "m";
const MESSAGE_BYTES: usize = 200;
const BATCH: usize = 64;
/// As `intake_max_bytes` of the broker, and its log.
const INSIDE_MAX_BYTES: usize = 1024 * 1024;
const SEGMENTS: usize = 4;

/// A message through rumqttd's router, beside one through a channel
#[derive(clap::Args)]
struct Options {
    /// Messages of a flood
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = cli::at_least::<usize>(BATCH as u64))]
    messages: usize,
    /// Messages that are sent alone
    #[arg(long, value_name = "N", default_value_t = 2_000, value_parser = cli::at_least::<usize>(1))]
    alone: usize,
    /// Rounds, in which the two take turns
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = cli::at_least::<usize>(1))]
    rounds: usize,
}

/// A queue's input.
enum Input {
    Router(LinkTx),
    Channel(mpsc::UnboundedSender<Bytes>),
}

/// A queue's output.
enum Output {
    Router(LinkRx),
    Channel(mpsc::UnboundedReceiver<Bytes>),
}

impl Input {
    fn send(&mut self, batch: &[Bytes]) {
        match self {
            Self::Router(link) => {
                let must_wake = {
                    let mut buffer = link.buffer();
                    let must_wake = buffer.is_empty();
                    let publish =
                        |message: &Bytes| Publish::new(Bytes::from_static(TOPIC.as_bytes()), message.clone(), false);
                    buffer.extend(batch.iter().map(|message| Packet::Publish(publish(message), None)));
                    must_wake
                };
                if must_wake {
                    let _ = futures_util::FutureExt::now_or_never(link.send(Packet::PingReq(PingReq)));
                }
            }
            Self::Channel(sender) => batch.iter().for_each(|message| sender.send(message.clone()).unwrap()),
        }
    }
}

impl Output {
    /// Waits for the next message.
    async fn next(&mut self) -> Bytes {
        match self {
            Self::Router(link) => loop {
                match link.next().await.expect("the router lives") {
                    Some(Notification::Forward(Forward { publish, .. })) => return publish.payload,
                    Some(Notification::Unschedule) => link.ready().expect("the router lives"),
                    _ => {}
                }
            },
            Self::Channel(receiver) => receiver.recv().await.expect("the channel is open"),
        }
    }
}

fn router() -> Result<(Input, Output)> {
    let config = RouterConfig {
        max_connections: 4,
        max_outgoing_packet_count: 1000,
        max_segment_size: INSIDE_MAX_BYTES * 4 / SEGMENTS,
        max_segment_count: SEGMENTS,
        custom_segment: None,
        initialized_filters: None,
        shared_subscriptions_strategy: rumqttd::Strategy::default(),
    };
    let router = Router::new(0, config).spawn();
    let (mut tx, mut rx, _) = LinkBuilder::new("bench", router).build().context("rumqttd's link")?;
    tx.subscribe(TOPIC).context("rumqttd's subscription")?;
    // The first notification is that the subscription exists.
    rx.recv().context("rumqttd's subscription")?;
    Ok((Input::Router(tx), Output::Router(rx)))
}

fn channel() -> (Input, Output) {
    let (sender, receiver) = mpsc::unbounded_channel();
    (Input::Channel(sender), Output::Channel(receiver))
}

/// What one round of one queue measured.
struct Round {
    per_s: f64,
    cpu_us: f64,
    alone_us: Vec<f64>,
    held_mb: f64,
}

async fn measure((mut input, mut output): (Input, Output), options: &Options) -> Result<Round> {
    let me = std::process::id().cast_signed();
    let rss_bytes = usage::rss_bytes(me)?;
    let batches = options.messages / BATCH;
    let count = batches * BATCH;
    let room = Arc::new(Semaphore::new(INSIDE_MAX_BYTES / MESSAGE_BYTES));
    let (began, cpu) = (Instant::now(), usage::ticks(me)?.own);
    let publisher = {
        let room = Arc::clone(&room);
        tokio::spawn(async move {
            for _ in 0..batches {
                // The broker makes each message of the bytes that it read.
                let batch: Vec<Bytes> = (0..BATCH).map(|_| Bytes::from(vec![7; MESSAGE_BYTES])).collect();
                room.acquire_many(BATCH as u32).await.unwrap().forget();
                input.send(&batch);
            }
            input
        })
    };
    for _ in 0..count {
        output.next().await;
        room.add_permits(1);
    }
    let mut input = publisher.await?;
    let took = began.elapsed();
    let cpu = usage::ticks(me)?.own - cpu;
    let mut alone_us = Vec::with_capacity(options.alone);
    for _ in 0..options.alone {
        tokio::time::sleep(Duration::from_millis(1)).await;
        let sent = Instant::now();
        input.send(&[Bytes::from(vec![7; MESSAGE_BYTES])]);
        output.next().await;
        alone_us.push(sent.elapsed().as_secs_f64() * 1e6);
    }
    Ok(Round {
        per_s: count as f64 / took.as_secs_f64(),
        cpu_us: cpu.as_secs_f64() * 1e6 / count as f64,
        alone_us,
        held_mb: usage::mb(usage::rss_bytes(me)?.saturating_sub(rss_bytes)),
    })
}

fn main() -> std::process::ExitCode {
    cli::main_without_budgets(run)
}

fn run(options: &Options) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    println!(
        "{} messages of {MESSAGE_BYTES} bytes, {} rounds, {} cores",
        options.messages,
        options.rounds,
        usage::cores()
    );
    let mut rounds: [Vec<Round>; 2] = Default::default();
    for _ in 0..options.rounds {
        rounds[0].push(runtime.block_on(measure(router()?, options))?);
        rounds[1].push(runtime.block_on(measure(channel(), options))?);
    }
    let row = |cells: [&str; 6]| {
        let [name, per_s, cpu, mean, most, held] = cells;
        println!("{name:<18} {per_s:>22} {cpu:>22} {mean:>16} {most:>16} {held:>16}");
    };
    row(["", "messages/s mean, max", "µs/message mean, max", "alone mean µs", "alone max µs", "held MB mean, max"]);
    for (name, rounds) in ["rumqttd's router", "a channel"].into_iter().zip(&rounds) {
        let mean_and_max = |value: fn(&Round) -> f64, digits: usize| {
            let mean = rounds.iter().map(value).sum::<f64>() / rounds.len() as f64;
            format!("{mean:.digits$}, {:.digits$}", Spread::of(rounds.iter().map(value)).most())
        };
        let alone: Vec<f64> = rounds.iter().flat_map(|round| round.alone_us.iter().copied()).collect();
        let mean = alone.iter().sum::<f64>() / alone.len() as f64;
        row([
            name,
            &mean_and_max(|round| round.per_s, 0),
            &mean_and_max(|round| round.cpu_us, 2),
            &format!("{mean:.1}"),
            &format!("{:.0}", Spread::of(alone).most()),
            &mean_and_max(|round| round.held_mb, 1),
        ]);
    }
    Ok(())
}
