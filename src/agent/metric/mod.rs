//! Measurements: samples this host and its units, and builds messages from the samples.
//!
//! One task. Every ten seconds, at a phase of its own, it takes a sample; every thirty it builds
//! a message of line protocol, stores it, and notifies the loop. It does not send:
//! [`super::link`] sends what [`super::store::metric`] holds until the console acknowledges it.
//!
//! Modules, in reading order:
//!
//! - [`group`]: which metrics are measured together, and when
//! - `sample`: the host as points; `unit`: its units, whose cgroups `cgroup_counters` reads; `container`: other containers; `agent_metrics`: the agent itself
//! - `procfs`, `io_pressure`: parsers of `/proc`; `disk`: file systems, `temperature`, and `container_filesystem`: each read by a `blocking_timeout`
//!   in a thread; `filesystem`: how full one is; `resource`: other resources that run out; `time`: the clock
//! - `value_filter`: which values go to the console; `batch`: points as messages; both pure
//!
//! **Invariant: a message is stored before it is published**, so no restart loses one.
//! A killed agent loses samples of at most thirty seconds; one that is stopped loses none.
//!
//! **Invariant: memory is bounded.** While the store refuses writes, samples are kept up to a limit, and then the oldest are dropped.

mod agent_metrics;
pub mod batch;
mod blocking_timeout;
mod cgroup_counters;
mod container;
mod container_disk_usage;
mod container_filesystem;
mod disk;
pub(crate) mod figures;
pub(super) mod filesystem;
pub mod group;
mod io_pressure;
mod point_writer;
mod process_figures;
mod procfs;
pub(crate) mod reconcile_time;
mod resource;
mod sample;
mod tags;
mod temperature;
mod time;
mod unit;
mod value_filter;

pub use tags::HostTags;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use muster_base::clock;
use muster_topics::{
    Millis,
    ack::Numbered,
    catalogue::{MetricGroup, SAMPLE_S},
    diagnostic::Diagnostic,
    metric::{Point, PointLine, Shared},
    name::HostId,
};
use tokio::{
    sync::watch,
    time::{Instant, MissedTickBehavior, interval_at},
};
use tokio_util::sync::CancellationToken;

pub use self::{
    agent_metrics::QueueLengths,
    figures::MetricSources,
    group::{GroupChoice, GroupPeriod, PeriodWord},
    reconcile_time::ReconcileTime,
};
use self::{
    blocking_timeout::{BlockingProbe, BlockingProbes},
    container_disk_usage::WrittenSampler,
    container_filesystem::ContainerSpace,
    disk::DiskSampler,
    group::{DueGroups, GroupSchedule},
    resource::ResourceSampler,
    sample::{CollectedInputs, Sampler},
    value_filter::ThinFilter,
};
use super::store::{
    Store, StoreError,
    metric::{self as buffer, BacklogLimits},
};

/// The time of the second sample, and with it the first message: soon, because an operator may be looking at a new
/// host.
const SECOND_SAMPLE: Duration = Duration::from_secs(2);
/// The least sampling period; only tests use one this short.
const SAMPLE_MIN: Duration = Duration::from_millis(10);
/// Times of points are rounded to this fraction of the sampling period: rates stay exact to a hundredth, and there are
/// fewer digits to send.
const GRAIN: Millis = 100;
/// Messages between two checks of the buffer's size: ten minutes, or 1.3 MB of the largest ones.
const TRIM_EVERY: u64 = 20;
/// Points that are kept in memory while the store fails: two hours of a quiet host, or three messages of one with the most units; about a
/// megabyte.
const POINTS_MAX: usize = 8_192;

/// Returns how many clock ticks, as processes' start times are counted in, so long is.
pub(crate) fn ticks_of_ms(ms: Millis) -> u64 {
    u64::try_from(ms).unwrap_or(0).saturating_mul(1_000) / unit::tick_us().max(1)
}

/// Settings of the measurements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetricSettings {
    /// The sampling period.
    pub sample: Duration,
    /// The period of messages.
    pub publish: Duration,
    /// What is measured, and how often.
    pub choice: GroupChoice,
    /// Whether messages are compressed.
    pub pack: bool,
    /// The most bytes of messages that may wait for the console.
    pub buffer_max_bytes: u64,
    /// Their largest age.
    pub buffer_max_age: Duration,
}

impl Default for MetricSettings {
    /// 16 MiB are eighteen days of a quiet host, so usually the age decides: a week.
    fn default() -> Self {
        Self {
            sample: Duration::from_secs(SAMPLE_S.into()),
            publish: Duration::from_secs(30),
            choice: GroupChoice::default(),
            pack: true,
            buffer_max_bytes: 16 * 1024 * 1024,
            buffer_max_age: Duration::from_secs(7 * 24 * 3600),
        }
    }
}

/// The task that measures. Clones share it.
#[derive(Clone, Debug)]
pub struct MetricsTask {
    stored: watch::Receiver<u64>,
    samples: watch::Receiver<Arc<[Point]>>,
}

impl MetricsTask {
    /// Starts to measure. When `shutdown` is cancelled the task stores its points, and ends.
    #[must_use]
    pub fn start(
        store: Store,
        settings: MetricSettings,
        labels: HostTags,
        epoch: u64,
        sources: MetricSources,
        shutdown: CancellationToken,
    ) -> Self {
        let phase = phase(labels.host);
        let task = SamplingLoop::new(store, settings, labels, epoch, sources);
        let (stored, samples) = (task.told.subscribe(), task.newest.subscribe());
        tokio::spawn(task.run(phase, shutdown));
        Self { stored, samples }
    }

    /// The number of messages that were stored in this run of the agent; closed when the task has ended.
    #[must_use]
    pub fn stored(&self) -> watch::Receiver<u64> {
        self.stored.clone()
    }

    /// The newest sample.
    #[must_use]
    pub fn samples(&self) -> watch::Receiver<Arc<[Point]>> {
        self.samples.clone()
    }

    /// Waits until the task has ended, and everything is stored.
    pub async fn stopped(&self) {
        let mut stored = self.stored.clone();
        while stored.changed().await.is_ok() {}
    }
}

/// Rounds a time to a hundredth of the sampling period.
pub fn rounded(at_ms: Millis, sample: Duration) -> Millis {
    let grain = (Millis::try_from(sample.as_millis()).unwrap_or(Millis::MAX) / GRAIN).max(1);
    at_ms / grain * grain
}

/// Returns a host's phase within the sampling period, from 0 to 1, by its id: hosts that started together do not send
/// together.
pub fn phase(host: HostId) -> f64 {
    let [.., a, b] = *host.0.as_bytes();
    f64::from(u16::from_be_bytes([a, b])) / f64::from(u16::MAX)
}

/// The task's state.
struct SamplingLoop {
    store: Store,
    settings: MetricSettings,
    labels: HostTags,
    sources: MetricSources,
    schedule: GroupSchedule,
    began: Instant,
    sampler: Sampler,
    disks: DiskSampler,
    sensors: BlockingProbe<Option<f64>>,
    resources: ResourceSampler,
    rooms: BlockingProbes<Option<ContainerSpace>>,
    /// Bytes written by units whose disk has no limit.
    written: WrittenSampler,
    /// Bytes written by containers that are not units.
    written_by_others: WrittenSampler,
    thin: ThinFilter,
    /// Points that are not stored yet.
    lines: Vec<PointLine>,
    epoch: u64,
    /// The number of the last message, once it is known.
    last_seq: Option<u64>,
    told: watch::Sender<u64>,
    newest: watch::Sender<Arc<[Point]>>,
}

impl SamplingLoop {
    fn new(store: Store, settings: MetricSettings, labels: HostTags, epoch: u64, sources: MetricSources) -> Self {
        Self {
            sampler: Sampler::new(&labels),
            schedule: GroupSchedule::new(settings.choice.clone(), settings.sample),
            began: Instant::now(),
            disks: DiskSampler::new(),
            sensors: BlockingProbe::at("the sensors"),
            resources: ResourceSampler::new(),
            rooms: BlockingProbes::at("the disk of a container"),
            written: WrittenSampler::default(),
            written_by_others: WrittenSampler::default(),
            thin: ThinFilter::default(),
            lines: Vec::new(),
            epoch,
            last_seq: None,
            store,
            settings,
            labels,
            sources,
            told: watch::Sender::new(0),
            newest: watch::Sender::new(Arc::default()),
        }
    }

    async fn run(mut self, phase: f64, shutdown: CancellationToken) {
        self.sample().await;
        let sample = self.settings.sample.max(SAMPLE_MIN);
        let per_message = (self.settings.publish.as_millis() / sample.as_millis()).max(1);
        let mut ticks = interval_at(Instant::now() + SECOND_SAMPLE.min(sample), sample);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // The first message has the first two samples; then the host's own phase applies.
        let (mut wanted, mut in_rhythm) = (1, false);
        loop {
            // Both arms are cancel-safe: an interval keeps its tick, and a token stays cancelled.
            tokio::select! {
                _ = ticks.tick() => {}
                () = shutdown.cancelled() => break,
            }
            self.sample().await;
            wanted -= 1;
            if wanted > 0 {
                continue;
            }
            self.flush().await;
            wanted = per_message;
            if !in_rhythm {
                in_rhythm = true;
                ticks.reset_after(sample.mul_f64(phase));
            }
        }
        self.flush().await;
    }

    /// Goes on under the host's new name, if it has one. Series of another name need every value once.
    async fn follow_hostname(&mut self) {
        if !self.sources.hostname.has_changed().unwrap_or(false) {
            return;
        }
        // A message has one name.
        self.flush().await;
        self.labels.hostname.clone_from(&self.sources.hostname.borrow_and_update());
        self.sampler.set_labels(&self.labels);
        self.thin = ThinFilter::default();
    }

    async fn sample(&mut self) {
        self.follow_hostname().await;
        let due = self.schedule.take(self.began.elapsed());
        let asked = self.ask(due).await;
        let at_ms = rounded(clock::now_ms(), self.settings.sample);
        let points: Arc<[Point]> = self.sampler.sample(due, &self.sources, &asked, at_ms).into();
        self.newest.send_replace(points.clone());
        let host = self.labels.host.to_string();
        let shared = shared(&self.settings, &host, &self.labels);
        for point in points.iter() {
            self.lines.extend(PointLine::new(point, shared, |field, value| self.thin.is_sent(point, field, value)));
        }
        let surplus = self.lines.len().saturating_sub(POINTS_MAX);
        if surplus > 0 {
            tracing::warn!(points = surplus, "measurements cannot be stored, and the oldest are dropped");
            self.lines.drain(..surplus);
        }
    }

    /// Collects values that other tasks have, or that may take long.
    async fn ask(&mut self, due: DueGroups) -> CollectedInputs {
        let mut asked = CollectedInputs::default();
        if due.has(MetricGroup::Disks) {
            asked.disks = self.disks.measure().await;
        }
        if due.has(MetricGroup::Temperature) {
            asked.celsius = self.sensors.take(temperature::warmest).await.flatten();
        }
        if due.has(MetricGroup::Resources) {
            asked.resources = self.resources.measure().await;
        }
        if due.has(MetricGroup::UnitDetails) {
            let limited = container_filesystem::limited(&self.sources.units.borrow());
            let questions =
                limited.into_iter().map(|one| (one.unit.to_string(), move || container_filesystem::measure(one)));
            let rooms = self.rooms.take(questions.collect()).await;
            asked.rooms = rooms.into_values().flatten().flatten().collect();
            let unlimited = container_filesystem::unlimited(&self.sources.units.borrow());
            asked.written = self.written.take(&unlimited).await;
            let others = self.sources.keeper.as_ref().map(super::unit::Units::other_containers).unwrap_or_default();
            let others: BTreeMap<_, _> = others.iter().map(|(name, other)| (name.clone(), other.process)).collect();
            asked.written_by_others = self.written_by_others.take(&others).await;
        }
        if due.has(MetricGroup::Agent) {
            // Failures of the store are reported elsewhere.
            asked.stored = buffer::figures(&self.store).await.ok();
        }
        if due.has(MetricGroup::Stats) {
            asked.stats = self.sources.keeper.as_ref().map(super::unit::Units::stats).unwrap_or_default();
        }
        asked
    }

    /// Stores the points. If that fails they wait for the next time.
    async fn flush(&mut self) {
        // On a full disk they wait in memory: the reserve is for commands.
        if self.lines.is_empty() || self.store.is_short_of_room() {
            return;
        }
        match self.store_points().await {
            Ok(count) => {
                self.lines = Vec::new();
                let before = *self.told.borrow();
                self.told.send_modify(|stored| *stored += count);
                if before / TRIM_EVERY != (before + count) / TRIM_EVERY || before == 0 {
                    self.trim().await;
                }
            }
            Err(error) => tracing::warn!(
                %error,
                hint = "check whether the disk is full",
                "measurements cannot be stored",
            ),
        }
    }

    async fn store_points(&mut self) -> Result<u64, StoreError> {
        let last_seq = match self.last_seq {
            Some(seq) => seq,
            None => buffer::last_seq(&self.store, self.epoch).await?,
        };
        let first = Numbered { epoch: self.epoch, seq: last_seq + 1 };
        let host = self.labels.host.to_string();
        let messages = batch::messages(first, &mut self.lines, shared(&self.settings, &host, &self.labels));
        buffer::insert(&self.store, &messages, clock::now_ms()).await?;
        let count = messages.len() as u64;
        self.last_seq = Some(last_seq + count);
        Ok(count)
    }

    async fn trim(&self) {
        let limits = BacklogLimits { max_bytes: self.settings.buffer_max_bytes, max_age: self.settings.buffer_max_age };
        match buffer::trim(&self.store, limits, self.store.certain_ms()).await {
            Ok(0) => {}
            Ok(messages) => tracing::warn!(messages, "measurements that the console has not accepted were dropped"),
            Err(error) => {
                tracing::warn!(%error, hint = Diagnostic::of(&error).hint, "the buffer of measurements cannot be trimmed");
            }
        }
    }
}

/// The tags that compressed messages have once.
fn shared<'a>(settings: &MetricSettings, host: &'a str, labels: &'a HostTags) -> Option<Shared<'a>> {
    settings.pack.then_some(Shared { host, hostname: &labels.hostname })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use muster_topics::metric::decode;

    use super::{
        sample::tests::{labels, sources},
        *,
    };

    /// Fast sampling, and a message for each sample.
    fn settings() -> MetricSettings {
        let sample = Duration::from_millis(20);
        MetricSettings { sample, publish: sample, ..MetricSettings::default() }
    }

    async fn open(folder: &Path) -> Store {
        Store::open(&folder.join("agent.db")).await.unwrap()
    }

    fn start(store: &Store, settings: MetricSettings, epoch: u64) -> (MetricsTask, CancellationToken) {
        let shutdown = CancellationToken::new();
        (MetricsTask::start(store.clone(), settings, labels(), epoch, sources(), shutdown.clone()), shutdown)
    }

    async fn run(store: &Store, epoch: u64, messages: u64) {
        let (task, shutdown) = start(store, settings(), epoch);
        task.stored().wait_for(|stored| *stored >= messages).await.unwrap();
        shutdown.cancel();
        task.stopped().await;
    }

    #[tokio::test]
    async fn batches_are_numbered_per_epoch() {
        let folder = tempfile::tempdir().unwrap();
        let store = open(folder.path()).await;
        run(&store, 8, 3).await;
        run(&store, 9, 2).await;
        let mut pending = buffer::pending(&store, 1_000).await.unwrap();
        assert!(pending.is_sorted_by(|a, b| a.0 > b.0), "the newest first");
        pending.reverse();
        for (epoch, least) in [(8, 3), (9, 2)] {
            let of_epoch: Vec<_> = pending.iter().filter(|(id, _)| id.epoch == epoch).collect();
            assert!(of_epoch.len() >= least);
            for (index, (id, payload)) in of_epoch.iter().enumerate() {
                assert_eq!(id.seq, index as u64 + 1);
                let (decoded, points) = decode(payload).unwrap();
                assert_eq!(decoded, *id);
                assert!(points.iter().any(|point| point.measurement == "muster_host_load"));
                assert_eq!(points.iter().any(|point| point.measurement == "muster_agent_store"), index == 0);
                assert_eq!(points.iter().any(|point| point.measurement == "muster_host_disk"), index == 0);
            }
        }
    }

    #[tokio::test]
    async fn changed_hostname_is_that_of_later_points() {
        let folder = tempfile::tempdir().unwrap();
        let store = open(folder.path()).await;
        let (renames, hostname) = watch::channel("shop-0042".to_owned());
        let (shutdown, sources) = (CancellationToken::new(), MetricSources { hostname, ..sources() });
        let task = MetricsTask::start(store.clone(), settings(), labels(), 1, sources, shutdown.clone());
        task.stored().wait_for(|stored| *stored >= 2).await.unwrap();
        renames.send_replace("till-7".to_owned());
        let before = *task.stored().borrow();
        task.stored().wait_for(|stored| *stored >= before + 3).await.unwrap();
        shutdown.cancel();
        task.stopped().await;
        let mut pending = buffer::pending(&store, 1_000).await.unwrap();
        pending.reverse();
        let name_of = |payload: &[u8]| -> Vec<String> {
            let (_, points) = decode(payload).unwrap();
            let names = points.iter().flat_map(|point| &point.tags).filter(|(name, _)| name == "hostname");
            let mut names: Vec<String> = names.map(|(_, value)| value.to_string()).collect();
            names.dedup();
            names
        };
        let mut names: Vec<Vec<String>> = pending.iter().map(|(_, payload)| name_of(payload)).collect();
        names.dedup();
        assert_eq!(names, [["shop-0042"], ["till-7"]]);
    }

    #[tokio::test]
    async fn first_batch_has_two_samples_and_comes_soon() {
        let folder = tempfile::tempdir().unwrap();
        let store = open(folder.path()).await;
        let started = Instant::now();
        let (task, shutdown) = start(&store, MetricSettings::default(), 1);
        task.stored().wait_for(|stored| *stored == 1).await.unwrap();
        assert!(started.elapsed() >= SECOND_SAMPLE && started.elapsed() < MetricSettings::default().sample);
        let (_, payload) = &buffer::pending(&store, 1).await.unwrap()[0];
        let (_, points) = decode(payload).unwrap();
        let count = |name| points.iter().filter(|point| point.measurement == name).count();
        assert_eq!((count("muster_host_load"), count("muster_host_cpu")), (2, 1), "a ratio needs two");
        shutdown.cancel();
        task.stopped().await;
    }

    #[tokio::test]
    async fn samples_are_stored_on_stop() {
        let folder = tempfile::tempdir().unwrap();
        let store = open(folder.path()).await;
        let (task, shutdown) = start(&store, MetricSettings { pack: false, ..MetricSettings::default() }, 1);
        shutdown.cancel();
        task.stopped().await;
        let pending = buffer::pending(&store, 10).await.unwrap();
        let [(id, payload)] = &pending[..] else { panic!("{} messages", pending.len()) };
        assert_eq!(*id, Numbered { epoch: 1, seq: 1 });
        assert!(payload.starts_with(b"# v=1 epoch=1 seq=1\n"), "not packed");
        let text = String::from_utf8_lossy(payload);
        assert!(text.lines().skip(1).all(|line| line.contains(",host=") && line.contains(",hostname=")), "{text}");
    }

    #[tokio::test]
    async fn samples_wait_for_failing_store() {
        let folder = tempfile::tempdir().unwrap();
        let store = open(folder.path()).await;
        let other = sqlx::SqlitePool::connect(folder.path().join("agent.db").to_str().unwrap()).await.unwrap();
        sqlx::query("ALTER TABLE metric_batch RENAME TO gone").execute(&other).await.unwrap();
        let mut task = SamplingLoop::new(store.clone(), settings(), labels(), 1, sources());
        for _ in 0..3 {
            task.sample().await;
            task.flush().await;
        }
        assert_eq!(*task.told.borrow(), 0);
        sqlx::query("ALTER TABLE gone RENAME TO metric_batch").execute(&other).await.unwrap();
        task.flush().await;
        task.flush().await;
        let pending = buffer::pending(&store, 10).await.unwrap();
        let [(id, payload)] = &pending[..] else { panic!("{} messages", pending.len()) };
        assert_eq!((id.seq, *task.told.borrow()), (1, 1), "one message, and no number left out");
        let (_, points) = decode(payload).unwrap();
        let count = |name| points.iter().filter(|point| point.measurement == name).count();
        assert_eq!((count("muster_host_load"), count("muster_agent_link")), (3, 1));
        assert!(count("muster_host_disk") > 0, "the very first sample is among them");

        let lines = points.iter().filter_map(|point| PointLine::new(point, None, |_, _| true));
        task.lines = lines.collect::<Vec<_>>().into_iter().cycle().take(POINTS_MAX).collect();
        task.sample().await;
        assert_eq!(task.lines.len(), POINTS_MAX, "memory is bounded");
    }

    /// One value in each batch.
    fn load_alone() -> GroupChoice {
        let others = MetricGroup::ALL.into_iter().filter(|group| *group != MetricGroup::Load);
        GroupChoice::new(others.map(|group| (group, GroupPeriod::Word(PeriodWord::Off))).collect())
    }

    #[tokio::test]
    async fn full_buffer_drops_oldest() {
        let folder = tempfile::tempdir().unwrap();
        let store = open(folder.path()).await;
        // A batch of one value is some hundred bytes, whatever this machine has.
        let settings = MetricSettings { buffer_max_bytes: 600, choice: load_alone(), ..settings() };
        let (task, shutdown) = start(&store, settings, 1);
        task.stored().wait_for(|stored| *stored >= TRIM_EVERY).await.unwrap();
        shutdown.cancel();
        task.stopped().await;
        let pending = buffer::pending(&store, 1_000).await.unwrap();
        assert!(pending.len() < usize::try_from(TRIM_EVERY).unwrap() && pending.last().unwrap().0.seq > 1);
        assert_eq!(pending[0].0.seq, *task.stored().borrow(), "the newest is there");
    }

    #[test]
    fn sample_times_are_rounded() {
        for (at_ms, sample_ms, expected) in
            [(1_795_228_867_671, 10_000, 1_795_228_867_600), (1_234_567, 1_000, 1_234_560), (1_234_567, 20, 1_234_567)]
        {
            assert_eq!(rounded(at_ms, Duration::from_millis(sample_ms)), expected, "{sample_ms}");
        }
    }

    #[tokio::test]
    async fn disabled_groups_are_not_measured() {
        let folder = tempfile::tempdir().unwrap();
        let store = open(folder.path()).await;
        let settings = MetricSettings { choice: load_alone(), ..settings() };
        let mut task = SamplingLoop::new(store.clone(), settings, labels(), 1, sources());
        task.sample().await;
        task.flush().await;
        let (_, points) = decode(&buffer::pending(&store, 1).await.unwrap()[0].1).unwrap();
        assert!(points.iter().all(|point| point.measurement == "muster_host_load"), "{points:?}");
        assert_eq!(points.len(), 1);
    }

    #[test]
    fn hosts_spread_over_the_interval() {
        let phases: Vec<_> = (0..1_000).map(|_| phase(HostId::random())).collect();
        assert!(phases.iter().all(|phase| (0.0..=1.0).contains(phase)));
        for tenth in 0..10 {
            let tenth = f64::from(tenth) / 10.0;
            assert!(phases.iter().any(|phase| (tenth..tenth + 0.1).contains(phase)), "none from {tenth}");
        }
    }
}
