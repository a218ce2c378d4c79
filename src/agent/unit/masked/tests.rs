//! A kind that says a secret wherever it can say something.

use muster_rules::{host_plan::FilePlan, port_lease::EndpointWiring};
use muster_topics::{
    diagnostic::Diagnostic,
    probe::{Check, Probe, Which},
    unit::{Exit, Run, Spec},
};
use serde_json::json;

use super::*;

const VALUE: &str = "hunter2-hunter2";

fn said() -> String {
    format!("it was given {VALUE}, or {{\"pw\":\"{VALUE}\"}}, or aHVudGVyMi1odW50ZXIy")
}

/// A kind that says a secret wherever it can say something.
struct TalkativeKind;

fn failed<T>() -> Result<T, Failure> {
    Err(Failure { error: said().into(), may_heal: false })
}

fn exit() -> InstanceExit {
    let (last_lines, why) = (Some(format!("unter2\n{}\nhunter2", said())), Some(said().into()));
    InstanceExit { last_lines, why, ..InstanceExit::new(Exit::Code(1), None, 0) }
}

fn report() -> ShimReport {
    let status = Some(format!("{} hunter2", said()));
    ShimReport {
        last: Some(exit()),
        status,
        unsupported: vec![said().into()],
        drift: Some(vec![said().into()]),
        ..ShimReport::default()
    }
}

impl Instance for TalkativeKind {
    fn next(&mut self) -> BoxFuture<'_, Option<InstanceEvent>> {
        async { Some(InstanceEvent::Told(report())) }.boxed()
    }
    fn stop(&mut self, _: Option<Signal>, _: u64) -> BoxFuture<'_, Result<(), Failure>> {
        async { failed() }.boxed()
    }
    fn freeze(&mut self, _: bool) -> BoxFuture<'_, Result<(), Failure>> {
        async { failed() }.boxed()
    }
    fn signal(&mut self, _: Signal) -> BoxFuture<'_, Result<bool, Failure>> {
        async { failed() }.boxed()
    }
}

impl UnitKind for TalkativeKind {
    fn name(&self) -> &'static str {
        "talkative"
    }
    fn traces(&self) -> io::Result<Vec<UnitTrace>> {
        Ok(vec![UnitTrace { unit: unit(), at_ms: 0 }])
    }
    fn kept_secrets(&self, _: &UnitName) -> Vec<String> {
        vec![VALUE.to_owned()]
    }
    fn adopt<'a>(&'a self, _: &'a UnitName, slot: Slot) -> BoxFuture<'a, Result<AdoptedUnit, Failure>> {
        let end = InstanceEnd { restarts: 0, last: exit() };
        async move {
            Ok(match slot {
                Slot::First => {
                    AdoptedUnit::Alive { revision: Digest::of(b"x"), told: report(), instance: Box::new(Self) }
                }
                Slot::Second => AdoptedUnit::Ended(end),
            })
        }
        .boxed()
    }
    fn install<'a>(
        &'a self,
        _: &'a UnitName,
        _: &'a Desired,
        _: Option<&'a Digest>,
        _: &'a ProgressReporter<'a>,
    ) -> BoxFuture<'a, Result<(), Failure>> {
        async { failed() }.boxed()
    }
    fn prepare<'a>(
        &'a self,
        _: &'a UnitName,
        _: &'a Desired,
        _: Option<&'a Digest>,
        _: bool,
    ) -> BoxFuture<'a, Result<(), Failure>> {
        async { failed() }.boxed()
    }
    fn changes<'a>(
        &'a self,
        _: &'a UnitName,
        _: Option<&'a Desired>,
        _: Option<&'a Digest>,
    ) -> BoxFuture<'a, Result<HostChanges, Failure>> {
        let (path, diff) = ("/etc/x".to_owned(), Some(said()));
        let file = FilePlan { path, before: None, after: None, left: None, diff, is_masked: false };
        async { Ok(HostChanges { files: vec![file], packages: Vec::new() }) }.boxed()
    }
    fn start<'a>(&'a self, _: &'a UnitName, _: &'a StartOrder) -> BoxFuture<'a, Result<Box<dyn Instance>, StartError>> {
        async { failed().map_err(StartError::Failed) }.boxed()
    }
    fn reload<'a>(
        &'a self,
        _: &'a UnitName,
        _: Slot,
        _: &'a Desired,
        _: Option<&'a Digest>,
        _: &'a Signaller<'a>,
    ) -> BoxFuture<'a, Result<bool, Failure>> {
        async { failed() }.boxed()
    }
    fn check_watched_files<'a>(
        &'a self,
        _: &'a UnitName,
        _: Slot,
        _: &'a Desired,
        _: &'a Signaller<'a>,
    ) -> BoxFuture<'a, Result<bool, Failure>> {
        async { failed() }.boxed()
    }
    fn remove<'a>(&'a self, _: &'a UnitName) -> BoxFuture<'a, Result<(), Failure>> {
        async { failed() }.boxed()
    }
    fn ask<'a>(
        &'a self,
        _: &'a UnitName,
        slot: Slot,
        _: InstanceRequest,
        _: Duration,
    ) -> BoxFuture<'a, Result<Value, Complaint>> {
        async move {
            match slot {
                Slot::First => Ok(json!({"deep": [said()]})),
                Slot::Second => Err(Complaint { code: VALUE.to_owned(), diagnostic: said().into() }),
            }
        }
        .boxed()
    }
    fn probe<'a>(&'a self, _: &'a UnitName, _: &'a ProbeRequest) -> BoxFuture<'a, Result<(), Diagnostic>> {
        async { Err(format!("{} hunter2", said()).into()) }.boxed()
    }
    fn log<'a>(&'a self, _: &'a UnitName, _: FollowFrom, _: LogView) -> BoxFuture<'a, io::Result<LogPart>> {
        let text = format!("unter2\n{}\nhunter2", said()).into_bytes();
        async { Ok(LogPart { text, ..LogPart::default() }) }.boxed()
    }
    fn effective<'a>(
        &'a self,
        unit: &'a UnitName,
        _: Slot,
        revision: &'a Digest,
    ) -> BoxFuture<'a, io::Result<Effective>> {
        let effective = Effective {
            unit: unit.clone(),
            path: String::new(),
            changed: Vec::new(),
            revision: revision.clone(),
            configs: Vec::new(),
            config: Some(json!({"a": said()})),
        };
        async { Ok(effective) }.boxed()
    }
    fn stats(&self) -> BTreeMap<(UnitName, Slot), ToldStats> {
        let values = [("last".to_owned(), json!(said()))].into();
        [((unit(), Slot::First), ToldStats { at_ms: 0, values, and_more: false })].into()
    }
    fn sweep(&self, _: Vec<Desired>) -> BoxFuture<'_, io::Result<()>> {
        async { Ok(()) }.boxed()
    }
}

fn unit() -> UnitName {
    "default/till".parse().unwrap()
}

fn desired() -> Desired {
    let spec: Spec = serde_json::from_value(json!({"kind": "files", "files": {"/x": {"text": ""}}})).unwrap();
    let revision = spec.revision().unwrap();
    Desired { generation: 1, revision, spec: spec.into(), run: Run::Running, frozen: false }
}

#[tokio::test]
async fn nothing_that_a_kind_says_has_a_secret() {
    let kind = MaskedKind::new(Arc::new(TalkativeKind), GivenSecrets::default());
    let (unit, desired, limit) = (unit(), desired(), Duration::from_secs(1));
    let (revision, wiring) = (desired.revision.clone(), EndpointWiring::default());
    let signal: &Signaller<'_> = &|_| async { Ok(()) }.boxed();
    // As an agent that finds what an earlier one has left.
    kind.traces().unwrap();
    let (slot, other) = (Slot::First, Slot::Second);
    let mut heard = Vec::new();
    let mut hear = |what: &str, said: String| heard.push((what.to_owned(), said));
    let Ok(AdoptedUnit::Alive { told, mut instance, .. }) = kind.adopt(&unit, slot).await else { panic!("alive") };
    hear("adopted", format!("{told:?}"));
    hear("event", format!("{:?}", instance.next().await));
    hear("stop", format!("{:?}", instance.stop(None, 0).await));
    hear("freeze", format!("{:?}", instance.freeze(true).await));
    hear("signal", format!("{:?}", instance.signal(Signal::Hup).await));
    let Ok(AdoptedUnit::Ended(end)) = kind.adopt(&unit, other).await else { panic!("ended") };
    hear("ended", format!("{end:?}"));
    hear("install", format!("{:?}", kind.install(&unit, &desired, None, &|_| ()).await));
    hear("prepare", format!("{:?}", kind.prepare(&unit, &desired, None, false).await));
    hear("changes", format!("{:?}", kind.changes(&unit, None, None).await));
    let order =
        StartOrder { slot, desired: desired.clone(), keep: None, wiring: wiring.clone(), attempts: 0, beside: false };
    hear("start", format!("{:?}", kind.start(&unit, &order).await.err()));
    hear("reload", format!("{:?}", kind.reload(&unit, slot, &desired, None, signal).await));
    hear("files", format!("{:?}", kind.check_watched_files(&unit, slot, &desired, signal).await));
    hear("remove", format!("{:?}", kind.remove(&unit).await));
    hear("answer", format!("{:?}", kind.ask(&unit, slot, InstanceRequest::Stats, limit).await));
    hear("complaint", format!("{:?}", kind.ask(&unit, other, InstanceRequest::Stats, limit).await));
    let log = kind.log(&unit, FollowFrom::Last(9), LogView::default()).await.unwrap();
    hear("log", String::from_utf8(log.text).unwrap());
    hear("effective", format!("{:?}", kind.effective(&unit, slot, &revision).await));
    hear("stats", format!("{:?}", kind.stats()));
    let probe: Probe = serde_json::from_value(json!({"exec": ["true"]})).unwrap();
    assert!(matches!(probe.check, Check::Exec(_)));
    let process = muster_rules::plan::ProcessId { pid: 1, start_ticks: 1, started_ms: 0 };
    let request =
        ProbeRequest { which: Which::Live, probe, slot, process, desired: desired.clone(), wiring, coming: false };
    hear("probe", format!("{:?}", kind.probe(&unit, &request).await));
    for (what, said) in heard {
        assert!(said.contains("***"), "{what} is heard: {said}");
        assert!(!said.contains("unter2") && !said.contains("aHVudGVy"), "{what}: {said}");
    }
}
