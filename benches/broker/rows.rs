//! The rows: each starts a server of its own, puts one load on it, and gives what it measured.

use std::{
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};

use crate::{
    common::spread::Spread,
    load::{FanOut, Return, Single, Stream},
    subject::{CONSOLE, Door, HOST, Kind, Pki, READER, Subject, host},
    swarm::{Hello, Sources, Swarm},
    table::{Budget, Metric, Sample, Unit},
    wire,
};

/// Upper limit for any row on an idle machine.
const LIMIT: Duration = Duration::from_secs(120);

/// Number of connections under way at the same time: enough to keep both cores busy, and fewer than Mosquitto's backlog
/// of 100.
const WINDOW: usize = 64;

/// Number of load threads where the load has as much work as the server: TLS.
const TLS_THREADS: usize = 2;

/// What a row needs.
pub(crate) struct Bench {
    pub(crate) pki: Pki,
    pub(crate) quick: bool,
}

/// A row: its name, its servers, and its measurement.
#[derive(Clone, Copy)]
pub(crate) struct Row {
    pub(crate) name: &'static str,
    pub(crate) kinds: &'static [Kind],
    pub(crate) measure: fn(&mut Bench, Kind) -> Result<Vec<Sample>>,
}

const BROKERS: &[Kind] = &[Kind::Muster, Kind::Mosquitto];
const ALL: &[Kind] = &[Kind::Muster, Kind::Mosquitto, Kind::Bare];

pub(crate) const ROWS: &[Row] = &[
    Row { name: "connect", kinds: BROKERS, measure: connect },
    Row { name: "memory", kinds: BROKERS, measure: memory },
    Row { name: "fan-out", kinds: BROKERS, measure: fan_out },
    Row { name: "pair", kinds: BROKERS, measure: pair },
    Row { name: "many", kinds: BROKERS, measure: many },
    Row { name: "latency", kinds: BROKERS, measure: latency },
    Row { name: "tls", kinds: ALL, measure: tls },
    Row { name: "storm", kinds: ALL, measure: storm },
];

impl Bench {
    /// Numbers of clients, for rows with two of them.
    fn crowds(&self) -> &'static [usize] {
        if self.quick { &[5_000] } else { &[5_000, 9_500] }
    }

    fn lasts(&self) -> Duration {
        Duration::from_secs(if self.quick { 1 } else { 3 })
    }
}

fn thousands(number: usize) -> String {
    if number < 1_000 { number.to_string() } else { format!("{},{:03}", number / 1_000, number % 1_000) }
}

/// Subscribers that are connected without TLS.
fn crowd(subject: &Subject, count: usize) -> Result<Swarm> {
    let mut swarm = Swarm::new(subject.address, Sources::new(0))?;
    swarm.open(count, WINDOW, LIMIT, |who| subject.hello(READER, who))?;
    Ok(swarm)
}

fn connect(bench: &mut Bench, kind: Kind) -> Result<Vec<Sample>> {
    let mut samples = Vec::new();
    for count in bench.crowds() {
        let subject = Subject::start(kind, Door::Plain, &bench.pki)?;
        let started = Instant::now();
        let swarm = crowd(&subject, *count)?;
        let seconds = started.elapsed().as_secs_f64();
        drop((swarm, subject));
        let metric = Metric::new(format!("connect {} clients", thousands(*count)), Unit::Seconds, Budget::Peer(1.0));
        samples.push((metric, seconds));
    }
    Ok(samples)
}

/// Memory of the broker's process for each client: idle, with four subscriptions, and after a message.
fn memory(bench: &mut Bench, kind: Kind) -> Result<Vec<Sample>> {
    let mut samples = memory_behind(bench, kind, Door::Plain, if bench.quick { 2_000 } else { 5_000 })?;
    samples.extend(memory_behind(bench, kind, Door::Tls, if bench.quick { 1_000 } else { 2_000 })?);
    Ok(samples)
}

fn memory_behind(bench: &mut Bench, kind: Kind, door: Door, count: usize) -> Result<Vec<Sample>> {
    if door == Door::Tls {
        bench.pki.make_hosts(count)?;
    }
    let pki = &bench.pki;
    let subject = Subject::start(kind, door, pki)?;
    let hello = |who: usize| match door {
        Door::Plain => subject.hello(READER, who),
        Door::Tls => subject.hello_tls(&format!("{}-bench", host(who)), pki.host(who)),
    };
    // What the first clients make the broker allocate once is not counted.
    let mut first = Swarm::new(subject.address, Sources::new(1))?;
    first.open(WINDOW.min(count), WINDOW, LIMIT, hello)?;
    drop(first);
    let before = subject.settled_pss_bytes()?;
    let mut swarm = Swarm::new(subject.address, Sources::new(0))?;
    swarm.open(count, WINDOW, LIMIT, hello)?;
    let each_kb = |subject: &Subject| {
        Ok::<_, anyhow::Error>(subject.settled_pss_bytes()?.saturating_sub(before) as f64 / 1024.0 / count as f64)
    };
    let idle = each_kb(&subject)?;
    swarm.ask(0x90, LIMIT, |who| {
        let own = ["cmd", "ack", "desired"].map(|topic| format!("muster/s/00/h/{}/{topic}", host(who)));
        wire::subscribe(own.iter().map(String::as_str).chain(["muster/s/00/cmd/all"]), 1)
    })?;
    let filters = each_kb(&subject)?;
    announce(&mut swarm, &subject, pki, true)?;
    let message = each_kb(&subject)?;
    let name = match door {
        Door::Plain => "plain",
        Door::Tls => "TLS",
    };
    let metric = |when: &str| {
        Metric::new(format!("memory of an idle connection, {name}, {when}"), Unit::Kilobytes, Budget::AtMost(12.0))
    };
    Ok(vec![(metric("at first"), idle), (metric("4 filters"), filters), (metric("after a message"), message)])
}

/// Sends one message to all subscribed clients of a swarm; returns the time it took.
fn announce(swarm: &mut Swarm, subject: &Subject, pki: &Pki, acknowledged: bool) -> Result<Duration> {
    let readers = swarm.len();
    let hello = |_| match subject.door {
        Door::Plain => subject.hello(CONSOLE, 0),
        Door::Tls => subject.hello_tls("console-bench-0", pki.console()),
    };
    swarm.open(1, 1, LIMIT, hello)?;
    announce_from(swarm, readers, readers, acknowledged)
}

fn announce_from(swarm: &mut Swarm, publisher: usize, readers: usize, acknowledged: bool) -> Result<Duration> {
    let mut load = FanOut { left: readers, acknowledged: !acknowledged };
    let started = Instant::now();
    swarm.say(publisher, &wire::publish("muster/s/00/cmd/all", acknowledged.then_some(1), false, &[b'x'; 200]));
    swarm.run(&mut load, LIMIT)?;
    Ok(started.elapsed())
}

fn fan_out(bench: &mut Bench, kind: Kind) -> Result<Vec<Sample>> {
    let mut samples = Vec::new();
    for count in bench.crowds() {
        let mut subject = Subject::start(kind, Door::Plain, &bench.pki)?;
        let mut swarm = crowd(&subject, *count)?;
        swarm.ask(0x90, LIMIT, |_| wire::subscribe(["muster/s/00/cmd/all"], 1))?;
        for (qos, acknowledged) in [(0, false), (1, true)] {
            if swarm.len() == *count {
                announce(&mut swarm, &subject, &bench.pki, acknowledged)?;
            }
            announce_from(&mut swarm, *count, *count, acknowledged)?;
            let times =
                (0..7).map(|_| announce_from(&mut swarm, *count, *count, acknowledged)).collect::<Result<Vec<_>>>()?;
            let what = format!("one message to {} clients, QoS {qos}", thousands(*count));
            let metric = Metric::new(what, Unit::Milliseconds, Budget::Peer(1.0));
            samples.push((metric, Spread::of(times).median().as_secs_f64() * 1000.0));
        }
        subject.check()?;
    }
    Ok(samples)
}

/// A subscriber and publishing hosts. Returns the swarm, with the subscriber first, and the topics.
fn meeting(subject: &Subject, publishers: usize, qos: u8) -> Result<(Swarm, Vec<String>)> {
    let mut swarm = Swarm::new(subject.address, Sources::new(0))?;
    swarm.open(1, 1, LIMIT, |who| subject.hello(READER, who))?;
    swarm.ask(0x90, LIMIT, |_| wire::subscribe([format!("muster/s/00/h/{HOST}/unit/#").as_str()], qos))?;
    swarm.open(publishers, WINDOW, LIMIT, |who| subject.hello(HOST, who))?;
    Ok((swarm, (0..publishers).map(|who| format!("muster/s/00/h/{HOST}/unit/default/p{who}")).collect()))
}

/// One stream; returns messages per second, and the number lost of a million.
fn stream(bench: &Bench, kind: Kind, publishers: usize, window: Option<u64>, size: usize) -> Result<(f64, f64)> {
    let mut subject = Subject::start(kind, Door::Plain, &bench.pki)?;
    let (mut swarm, topics) = meeting(&subject, publishers, u8::from(window.is_some()))?;
    let payload = vec![b'x'; size];
    // The beginning, in which buffers grow, is not counted.
    for lasts in [Duration::from_millis(200), bench.lasts()] {
        let mut load = Stream::new(&topics, window, &payload, lasts);
        for who in 1..=publishers {
            swarm.wake(who);
        }
        swarm.run(&mut load, LIMIT)?;
        ensure!(load.received > 0, "nothing arrived");
        if lasts == bench.lasts() {
            subject.check()?;
            let lost = load.sent.saturating_sub(load.received) as f64 / load.sent as f64;
            return Ok((load.rate(), lost * 1_000_000.0));
        }
    }
    bail!("no stream was measured")
}

fn pair(bench: &mut Bench, kind: Kind) -> Result<Vec<Sample>> {
    let mut samples = Vec::new();
    for (qos, size, name, factor) in
        [(0, 100, "100 B", 2.0), (0, 1024, "1 KB", 1.3), (1, 100, "100 B", 2.0), (1, 1024, "1 KB", 2.0)]
    {
        let window = (qos == 1).then_some(256);
        let (rate, lost) = stream(bench, kind, 1, window, size)?;
        let what = format!("1 → 1, QoS {qos}, {name}");
        samples.push((Metric::new(what.clone(), Unit::Rate, Budget::Peer(factor)), rate));
        // QoS 0 may lose messages; QoS 1 may not.
        let budget = if qos == 0 { Budget::None } else { Budget::AtMost(0.0) };
        samples.push((Metric::new(format!("{what}, lost of a million"), Unit::Count, budget), lost));
    }
    Ok(samples)
}

fn many(bench: &mut Bench, kind: Kind) -> Result<Vec<Sample>> {
    let mut samples = Vec::new();
    for (publishers, window) in [(20, 64), (200, 16)] {
        let (rate, lost) = stream(bench, kind, publishers, Some(window), 200)?;
        let what = format!("{publishers} → 1, QoS 1, 200 B");
        samples.push((Metric::new(what.clone(), Unit::Rate, Budget::Peer(1.0)), rate));
        samples.push((Metric::new(format!("{what}, lost of a million"), Unit::Count, Budget::AtMost(0.0)), lost));
    }
    Ok(samples)
}

fn latency(bench: &mut Bench, kind: Kind) -> Result<Vec<Sample>> {
    let count = if bench.quick { 500 } else { 3_000 };
    let subject = Subject::start(kind, Door::Plain, &bench.pki)?;
    let (mut swarm, topics) = meeting(&subject, 1, 1)?;
    let packet = wire::publish(&topics[0], Some(1), false, &[b'x'; 200]);
    let mut times = Vec::with_capacity(count);
    for _ in 0..count + 50 {
        let mut load = Single::new();
        let started = Instant::now();
        swarm.say(1, &packet);
        swarm.run(&mut load, LIMIT)?;
        times.push(load.arrived.context("nothing arrived")? - started);
    }
    let times = Spread::of(times.split_off(50));
    let metric =
        |name: &str| Metric::new(format!("latency of a message, QoS 1, {name}"), Unit::Microseconds, Budget::None);
    let at = |percent| times.percentile(percent).as_secs_f64() * 1e6;
    Ok(vec![(metric("p50"), at(50)), (metric("p99"), at(99))])
}

/// Runs work with clients' certificates in as many threads as TLS needs; each thread gets its share.
fn from_threads<T: Send>(count: usize, work: impl Fn(usize, usize, Sources) -> Result<T> + Sync) -> Result<Vec<T>> {
    thread::scope(|scope| {
        let threads: Vec<_> = (0..TLS_THREADS)
            .map(|index| {
                let work = &work;
                let (first, end) = (count * index / TLS_THREADS, count * (index + 1) / TLS_THREADS);
                let sources = Sources::new(u8::try_from(index).expect("few threads"));
                scope.spawn(move || work(first, end - first, sources))
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("a load does not panic")).collect()
    })
}

fn tls_hello(subject: &Subject, pki: &Pki, number: usize) -> Hello {
    subject.hello_tls(&format!("{}-bench", host(number)), pki.host(number))
}

fn tls(bench: &mut Bench, kind: Kind) -> Result<Vec<Sample>> {
    let count = if bench.quick { 500 } else { 2_000 };
    bench.pki.make_hosts(count)?;
    let pki = &bench.pki;
    let subject = Subject::start(kind, Door::Tls, pki)?;
    let (started, cpu) = (Instant::now(), subject.cpu()?);
    let swarms = from_threads(count, |first, count, sources| {
        let mut swarm = Swarm::new(subject.address, sources)?;
        swarm.open(count, WINDOW / TLS_THREADS, LIMIT, |who| tls_hello(&subject, pki, first + who))?;
        Ok(swarm)
    })?;
    let (elapsed, cpu) = (started.elapsed(), subject.cpu()? - cpu);
    drop(swarms);
    let metric = |what: &str, unit| Metric::new(what.to_owned(), unit, Budget::None);
    Ok(vec![
        (metric("TLS connections", Unit::Rate), count as f64 / elapsed.as_secs_f64()),
        (metric("  processor of the server for each", Unit::Microseconds), cpu.as_secs_f64() * 1e6 / count as f64),
    ])
}

/// A whole fleet reconnects after the broker was killed: the time until all are connected and subscribed, have
/// published their presence, and a subscriber has received each of them.
fn storm(bench: &mut Bench, kind: Kind) -> Result<Vec<Sample>> {
    let count = if bench.quick { 500 } else { 9_500 };
    bench.pki.make_hosts(count)?;
    let pki = &bench.pki;
    let mut subject = Subject::start(kind, Door::Tls, pki)?;
    if kind != Kind::Bare {
        // They have all been connected before the restart, and have left state behind.
        back(&subject, pki, count)?;
    }
    subject = subject.restart(pki)?;
    let started = Instant::now();
    let missing = match kind {
        Kind::Bare => {
            from_threads(count, |first, count, sources| {
                let mut swarm = Swarm::new(subject.address, sources)?;
                swarm.open(count, WINDOW / TLS_THREADS, LIMIT, |who| tls_hello(&subject, pki, first + who))?;
                Ok(swarm)
            })?;
            0
        }
        _ => back(&subject, pki, count)?,
    };
    let seconds = started.elapsed().as_secs_f64();
    let name = thousands(count);
    Ok(vec![
        (Metric::new(format!("storm: {name} TLS hosts back and in sync"), Unit::Seconds, Budget::Bare(1.5)), seconds),
        (
            Metric::new("  answers and presences that did not come".to_owned(), Unit::Count, Budget::AtMost(0.0)),
            missing as f64,
        ),
    ])
}

/// All hosts connect; returns the numbers of missing acknowledgements and of presences that the subscriber has not
/// received.
fn back(subject: &Subject, pki: &Pki, count: usize) -> Result<usize> {
    let missing = from_threads(count, |first, share, sources| {
        let mut swarm = Swarm::new(subject.address, sources)?;
        let reads = usize::from(first == 0);
        if reads == 1 {
            swarm.open(1, 1, LIMIT, |_| subject.hello_tls("operator-bench-0", pki.reader()))?;
            swarm.ask(0x90, LIMIT, |_| wire::subscribe(["muster/s/+/h/+/presence"], 1))?;
        }
        let says = (first..first + share).map(words).collect();
        let unseen = if reads == 1 { count } else { 0 };
        let last = Instant::now();
        let mut load = Return { says, first: reads, answers: 0, unseen, accepted: 0, refused: None, last };
        swarm.open_for(&mut load, share, WINDOW / TLS_THREADS, LIMIT, |who| {
            let number = first + who - reads;
            let (id, topic) = (format!("{}-bench", host(number)), format!("muster/s/00/h/{}/presence", host(number)));
            Hello { connect: wire::connect_with_will(&id, &topic, "offline"), tls: Some(pki.host(number)) }
        })?;
        if let Some(answer) = load.refused {
            bail!("a host was refused: {answer:?}");
        }
        Ok((swarm, load.missing()))
    })?;
    Ok(missing.iter().map(|(_, missing)| missing).sum())
}

/// What a host sends after it is connected: four subscriptions, and its presence.
fn words(number: usize) -> Vec<u8> {
    let host = host(number);
    let own = ["cmd", "ack", "desired"].map(|topic| format!("muster/s/00/h/{host}/{topic}"));
    let filters = own.iter().map(String::as_str).chain(["muster/s/00/cmd/all"]);
    let presence = wire::publish(&format!("muster/s/00/h/{host}/presence"), Some(2), true, &[b'x'; 200]);
    [wire::subscribe(filters, 1), presence].concat()
}
