//! Cases of containers, where they differ from yunos.

use super::*;
use muster_topics::diagnostic::Diagnostic;

fn container(fields: serde_json::Value) -> Spec {
    let mut spec = serde_json::json!({"kind": "container", "image": {"name": "a"}, "rollback": "never"});
    spec.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    serde_json::from_value(spec).unwrap()
}

fn plain() -> Spec {
    container(serde_json::json!({}))
}

fn running(spec: Spec) -> Bench {
    let mut bench = Bench::new(desired(1, spec, Run::Running));
    bench.install();
    bench.start();
    bench.pass(SECOND);
    bench.trail.clear();
    bench
}

#[test]
fn container_is_restarted_five_times_then_held() {
    let mut bench = running(plain());
    for (attempt, wait_s) in [5, 10, 20, 40, 60].into_iter().enumerate() {
        bench.end(1);
        bench.check("BACKOFF");
        assert_eq!(bench.unit.observed.retry_ms(), Some(bench.now_ms + wait_s * SECOND));
        // Whoever comes after this agent goes on counting.
        let kept = bench.unit.kept().observed;
        assert_eq!((kept.attempts, kept.retry_ms()), (attempt as u32, bench.unit.observed.retry_ms()));
        bench.pass(wait_s * SECOND);
        bench.check(&format!("start {attempt}, STARTING"));
        bench.start();
        bench.pass(SECOND);
        bench.check("STARTING, RUNNING");
    }
    bench.end(1);
    bench.check("FAILED");
    assert_eq!(bench.unit.hold.as_ref().unwrap().reason, HoldReason::Broken);
    assert!(bench.unit.observed.error.as_ref().unwrap().cause.contains("restarted 5 times"));
    assert_eq!(bench.unit.desired.as_ref().unwrap().run, Run::Running, "what is wanted stays");
    // A new try has all its chances.
    bench.see(wants(desired(2, plain(), Run::Running)));
    bench.check("start 0, STARTING");
}

#[test]
fn failed_container_start_is_retried_five_times() {
    let mut bench = Bench::new(desired(1, plain(), Run::Running));
    bench.install();
    let failure = || Failure { error: "no runtime".into(), may_heal: true };
    let mut waits = Vec::new();
    while bench.unit.hold.is_none() {
        bench.see(UnitEvent::NotStarted(failure()));
        let Some(retry_ms) = bench.unit.observed.retry_ms() else { break };
        waits.push((retry_ms - bench.now_ms) / SECOND);
        bench.pass(retry_ms - bench.now_ms);
    }
    assert_eq!(waits, [5, 10, 20, 40, 60]);
    assert!(bench.unit.is_broken());
}

#[test]
fn changed_limits_apply_and_other_changes_recreate() {
    let limited = |pids: u32| container(serde_json::json!({"limits": {"pids": pids}}));
    let mut bench = running(limited(5));
    bench.see(wants(desired(2, limited(6), Run::Running)));
    bench.install();
    bench.check("Install, RUNNING, Reload, RUNNING");
    bench.see(UnitEvent::Reloaded(limited(6).revision().unwrap()));
    bench.check("RUNNING");
    assert_eq!((bench.reached(), bench.unit.observed.instance().pid), (2, Some(1)));
    let other = container(serde_json::json!({"args": ["b"]}));
    bench.see(wants(desired(3, other.clone(), Run::Running)));
    bench.install();
    bench.check("Install, RUNNING, Reload, RUNNING");
    bench.see(UnitEvent::NotReloaded(other.revision().unwrap()));
    bench.check("stop own 30000, STOPPING");
    bench.end(0);
    bench.check("start 0, STARTING");
}

#[test]
fn failed_runtime_call_is_retried() {
    let mut bench = running(plain());
    let frozen = Desired { frozen: true, ..desired(2, plain(), Run::Running) };
    bench.see(wants(frozen));
    bench.check("Freeze, RUNNING");
    let error = || Diagnostic::from("it does not answer");
    bench.see(UnitEvent::Unheard { error: error() });
    assert_eq!((bench.reached(), bench.unit.observed.error.clone()), (1, Some(error())));
    // Another generation is another try.
    bench.see(wants(desired(3, plain(), Run::Stopped)));
    assert_eq!(bench.unit.observed.error, None);
    bench.see(UnitEvent::Unheard { error: error() });
    assert_eq!(bench.unit.observed.error, Some(error()));
    bench.end(0);
    assert_eq!((bench.reached(), &bench.unit.observed.error), (3, &None));
    // Of what has ended meanwhile it is no news.
    bench.see(UnitEvent::Unheard { error: error() });
    assert_eq!(bench.unit.observed.error, None);
}
