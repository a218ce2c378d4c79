//! Hosts that measure, for as long as is asked: the console takes what they measure and loses nothing, and does not grow with it.
//!
//! Every day a few hosts for a minute and a half, where what counts is that every value arrives once. `TESTS_LONG=1` has a thousand hosts
//! measure for an hour, 2,000 values a second, and then memory has to be flat as well. `TESTS_SOAK_SECONDS` and
//! `TESTS_SOAK_HOSTS` choose something between. The program may be built meanwhile if the test runs a copy (`TESTS_MUSTER`):
//!
//!     TESTS_LONG=1 TESTS_MUSTER=/tmp/copy/muster /tmp/copy/e2e soak --nocapture
//!
//! What it measures is printed each minute, and at the end.

use std::{
    env, fs, thread,
    time::{Duration, Instant},
};

use muster_series::{SeriesSelector, SeriesStore};
use nix::unistd::Pid;
use serde_json::Value;

use crate::{fleet::Running, roles::Roles};

/// Series of each host.
const SERIES: u64 = 20;
/// Between two samples of a host, and between two looks at the console.
const SAMPLE: Duration = Duration::from_secs(10);
/// Joining a thousand hosts, in a build without optimisation on a busy machine.
const PATIENCE: Duration = Duration::from_secs(1_800);
/// Half an hour at least is looked at for growth; what is shorter shows how memory settles.
const FLAT_FROM: Duration = Duration::from_secs(3_600);
/// How much memory may grow in an hour, by a line through the second half: 25 bytes of each batch, of which a thousand hosts send
/// 120,000. What differs from one look to the next is about as much.
const GROWTH_MAX_BYTES: f64 = 3.0 * 1024.0 * 1024.0;

/// The size of the test.
struct Load {
    hosts: u64,
    lasts: Duration,
}

impl Load {
    fn wanted() -> Self {
        let number =
            |name| env::var(name).ok().map(|text| text.parse::<u64>().unwrap_or_else(|_| panic!("{name}: {text}")));
        let (hosts, seconds) = if env::var_os("TESTS_LONG").is_some() { (1_000, 3_600) } else { (20, 90) };
        Self {
            hosts: number("TESTS_SOAK_HOSTS").unwrap_or(hosts),
            lasts: Duration::from_secs(number("TESTS_SOAK_SECONDS").unwrap_or(seconds)),
        }
    }
}

/// What the console takes of its machine.
#[derive(Clone, Copy, Debug)]
struct Look {
    at: Duration,
    processor: Duration,
    /// With its share of what it has in common with others, such as the program's own pages.
    pss_bytes: f64,
    /// What is its alone, and nobody else's to take back.
    own_bytes: f64,
}

impl Look {
    fn at(pid: Pid, at: Duration) -> Self {
        let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap();
        let kilobytes = |field: &str| {
            let line = rollup.lines().find_map(|line| line.strip_prefix(field)).unwrap();
            line.trim().trim_end_matches(" kB").parse::<f64>().unwrap()
        };
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        let fields = stat.rsplit_once(')').unwrap().1.split_whitespace();
        // Linux tells every program that a tick is a hundredth of a second.
        let ticks: u64 = fields.skip(11).take(2).map(|field| field.parse::<u64>().unwrap()).sum();
        Self {
            at,
            processor: Duration::from_millis(ticks * 10),
            pss_bytes: kilobytes("Pss:") * 1024.0,
            own_bytes: kilobytes("Pss_Anon:") * 1024.0,
        }
    }
}

/// By how much a value grows in an hour, by the line that fits best.
fn growth_in_an_hour(looks: &[Look], value: impl Fn(&Look) -> f64) -> f64 {
    let count = looks.len() as f64;
    let hours = |look: &Look| look.at.as_secs_f64() / 3_600.0;
    let (x, y) = (looks.iter().map(hours).sum::<f64>() / count, looks.iter().map(&value).sum::<f64>() / count);
    let spread: f64 = looks.iter().map(|look| (hours(look) - x).powi(2)).sum();
    looks.iter().map(|look| (hours(look) - x) * (value(look) - y)).sum::<f64>() / spread
}

#[test]
fn growth_is_the_slope_of_a_line() {
    let look = |minutes: u64, own_bytes| Look {
        at: Duration::from_secs(60 * minutes),
        processor: Duration::ZERO,
        pss_bytes: 0.0,
        own_bytes,
    };
    let steady: Vec<Look> = (30..60).map(|minute| look(minute, 7e6 + 1e4 * (minute % 2) as f64)).collect();
    assert!(growth_in_an_hour(&steady, |look| look.own_bytes).abs() < 1e4);
    let leaking: Vec<Look> = (30..60).map(|minute| look(minute, 7e6 + 1e5 * minute as f64)).collect();
    assert!((growth_in_an_hour(&leaking, |look| look.own_bytes) - 6e6).abs() < 1.0);
}

#[test]
fn soak_loses_nothing_and_memory_is_flat() {
    let load = Load::wanted();
    let mut roles = Roles::start();
    let simulation = start(&roles, load.hosts);
    let looks = watch(roles.console_pid(), &simulation, load.lasts);
    let (code, printed) = simulation.stop();
    assert_eq!(code, 0, "{printed}");
    let told = last_told(&printed).unwrap();
    roles.stop_console();

    let count = |name: &str| told[name].as_u64().unwrap();
    let stored = stored(&roles);
    let (made, known) = (count("values"), count("values_acknowledged"));
    eprintln!("{made} values measured, {known} acknowledged, {stored} in the store");
    assert!((known..=made).contains(&stored), "{stored} of {made} are stored, and {known} were acknowledged: {told}");
    assert_eq!((count("values_given_up"), count("twice")), (0, 0), "{told}");
    // Of each host one batch may be on its way.
    assert!(count("batches_waiting") <= load.hosts, "{told}");
    // A host begins within thirty seconds and sends after twenty more. A busy machine may make a sample late, not many.
    let whole = load.lasts.as_secs().saturating_sub(60) / SAMPLE.as_secs() * SERIES * load.hosts;
    assert!(made >= whole / 10 * 8, "{made} of about {whole} values were measured");
    report(&looks, load.lasts);
}

/// Has hosts join, and waits until all of them are online.
fn start(roles: &Roles, hosts: u64) -> Running {
    let (data, count) = (roles.home.path().join("simulation"), hosts.to_string());
    let args = ["-o", "json", "simulate", "--hosts", &count, "--every", "5s", "--data-dir", data.to_str().unwrap()];
    let metrics = format!("--metrics={SERIES}");
    let running = Running::start(roles.home.command().args(args).arg(metrics));
    let began = Instant::now();
    while !running.printed().contains(&format!("{hosts} hosts online")) {
        assert!(began.elapsed() < PATIENCE, "not all are online: {}", running.printed());
        thread::sleep(Duration::from_millis(100));
    }
    running
}

/// Looks at the console until the time is over.
fn watch(console: Pid, simulation: &Running, lasts: Duration) -> Vec<Look> {
    let began = Instant::now();
    let mut looks = vec![Look::at(console, Duration::ZERO)];
    while began.elapsed() < lasts {
        thread::sleep(SAMPLE.min(lasts.saturating_sub(began.elapsed())));
        let look = Look::at(console, began.elapsed());
        looks.push(look);
        if looks.len() % 6 == 0 {
            let told = last_told(&simulation.printed()).unwrap_or_default();
            eprintln!(
                "{:>5.0} s: console {:.1} MB, its own {:.1} MB, processor {:.1} s; {} values acknowledged, {} batches wait",
                look.at.as_secs_f64(),
                look.pss_bytes / 1e6,
                look.own_bytes / 1e6,
                look.processor.as_secs_f64(),
                told["values_acknowledged"],
                told["batches_waiting"],
            );
        }
    }
    looks
}

/// The last document that a simulation printed.
fn last_told(printed: &str) -> Option<Value> {
    printed.lines().rev().filter(|line| line.starts_with('{')).find_map(|line| serde_json::from_str(line).ok())
}

/// How many values of simulated hosts the console's store has: read from its file, as the console reads it.
fn stored(roles: &Roles) -> u64 {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let store = SeriesStore::open(&roles.home.path().join("console/series.db")).await.unwrap();
        // Without what the console says of them itself.
        let simulated = r#"{hostname=~"sim-.*", __name__!~"muster_host_online|muster_alert_active"}"#;
        let simulated = SeriesSelector::parse(simulated).unwrap();
        let series = store.select(simulated, 1_000_000).await.unwrap();
        let ids: Vec<_> = series.iter().map(|series| series.id).collect();
        let mut count = 0;
        for ids in ids.chunks(100) {
            count += store.points(ids, (0, i64::MAX)).await.unwrap().iter().map(Vec::len).sum::<usize>();
        }
        store.stop().await;
        count as u64
    })
}

/// Prints what the console took, and fails if it grew.
fn report(looks: &[Look], lasts: Duration) {
    let (first, last) = (looks[0], looks[looks.len() - 1]);
    let share = |from: &Look, to: &Look| {
        (to.processor - from.processor).as_secs_f64() / (to.at - from.at).as_secs_f64().max(0.1) * 100.0
    };
    eprintln!("the console took {:.2} % of a core{}", share(&first, &last), unoptimised());
    for minutes in [10, 30, 60] {
        let at = Duration::from_secs(60 * minutes);
        // The last look of an hour falls a little before or after its end.
        let Some(look) = looks.iter().find(|look| look.at + SAMPLE / 2 >= at) else { break };
        eprintln!("memory after {minutes} min: {:.1} MB, its own {:.1} MB", look.pss_bytes / 1e6, look.own_bytes / 1e6);
    }
    let second = &looks[looks.len() / 2..];
    if second.len() < 3 {
        return;
    }
    let growth = growth_in_an_hour(second, |look| look.own_bytes);
    eprintln!("in the second half its own memory grew by {:.2} MB an hour", growth / 1e6);
    if lasts >= FLAT_FROM {
        assert!(growth <= GROWTH_MAX_BYTES, "{growth:.0} bytes an hour, and {GROWTH_MAX_BYTES:.0} are allowed");
    }
}

fn unoptimised() -> &'static str {
    if cfg!(debug_assertions) { " (a build without optimisation)" } else { "" }
}
