//! What follows when the content that an instance was started from was changed.

use super::*;
use crate::content_check::ContentReport;

#[test]
fn changed_content_is_reported_and_restarts_what_may_run_it() {
    let process = |start_ticks, restarts| {
        let process = Some(ProcessId { pid: 7, start_ticks, started_ms: 0 });
        UnitEvent::Told(ShimReport { process, restarts, ..ShimReport::default() })
    };
    let found = |bench: &Bench, is_corrected, changed: &[&str]| {
        let revision = bench.unit.desired.as_ref().map(|desired| desired.revision.clone());
        let changed = changed.iter().map(|one| (*one).into()).collect();
        UnitEvent::ContentChecked(ContentReport { revision, changed, is_corrected, whole_ticks: Some(100) })
    };
    // It began from what was as it should be: it goes on.
    let mut bench = Bench::running();
    bench.see(process(99, 1));
    bench.trail.clear();
    bench.see(found(&bench, false, &["config.json"]));
    assert_eq!(bench.unit.observed.instance().drift, ["config.json".into()]);
    bench.see(found(&bench, true, &["config.json"]));
    assert_eq!(bench.unit.observed.instance().drift, []);
    bench.see(found(&bench, false, &["config.json"]));
    bench.see(found(&bench, false, &[]));
    assert_eq!(bench.unit.observed.instance().drift, []);
    assert_eq!(bench.unit.plan(bench.now_ms), None);
    // Its shim has started it again since: it is restarted, but only once that is put right.
    bench.see(process(101, 2));
    bench.trail.clear();
    bench.see(found(&bench, false, &["config.json"]));
    assert_eq!(bench.unit.plan(bench.now_ms), None);
    let other = ContentReport { revision: None, ..ContentReport::default() };
    bench.see(UnitEvent::ContentChecked(other));
    assert_eq!(bench.unit.observed.instance().drift, ["config.json".into()], "of another revision");
    bench.see(found(&bench, true, &["config.json"]));
    bench.check("RUNNING, stop Term 30000, STOPPING");
}
