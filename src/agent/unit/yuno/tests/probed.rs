//! Tests of probes of real processes.

use super::*;

fn shell(script: &str) -> Value {
    json!(["/bin/sh", "-c", script])
}

/// Tried often, for a test waits for it.
fn exec(script: &str) -> Value {
    json!({"exec": shell(script), "interval_ms": 100, "failures": 2, "timeout_ms": 20_000})
}

impl Host {
    fn touch(&self, name: &str) {
        fs::write(self.unit_folder().join("work").join(name), "").unwrap();
    }

    fn remove(&self, name: &str) {
        fs::remove_file(self.unit_folder().join("work").join(name)).unwrap();
    }

    async fn probed(&self, probes: Value) {
        let fields = json!({"env": {"WHO": "me"}, "restart": "always", "probes": probes});
        let unit = unit();
        self.verb(&unit, &self.apply(&unit, SERVICE, fields)).await.unwrap();
    }
}

fn is_unready(state: &UnitState, words: &str) -> bool {
    state.observed.instance().unready.as_ref().map(|why| why.cause.as_str()).is_some_and(|why| why.contains(words))
}

#[tokio::test]
async fn command_probe_decides_readiness() {
    let mut host = Host::start().await;
    let unit = unit();
    let ready = exec("test -e ready || { echo \"$WHO: not yet, $MUSTER_UNIT\"; exit 3; }");
    host.probed(json!({"ready": ready})).await;
    let state = host.until(&unit, |state| state.observed.instance().unready.is_some()).await;
    assert_eq!(
        state.observed.instance().unready.as_ref().map(|why| why.cause.as_str()),
        Some("ready probe: exit code 3: me: not yet, default/hello")
    );
    assert_eq!(state.observed.phase(), Phase::Starting);
    host.touch("ready");
    let running = host.until_phase(&unit, Phase::Running).await;
    assert_eq!(running.observed.instance().unready, None);

    // To be ready no more ends nothing, also for an agent that is started again.
    host.remove("ready");
    host.until(&unit, |state| is_unready(state, "not yet")).await;
    host.restart_agent().await;
    let state = host.until(&unit, |state| state.process.is_some()).await;
    assert_eq!((state.process, state.observed.phase()), (running.process, Phase::Running));
    assert!(is_unready(&state, "ready probe: exit code 3"), "{:?}", state.observed.instance().unready);
    host.touch("ready");
    let state = host.until(&unit, |state| state.observed.instance().unready.is_none()).await;
    assert_eq!((state.process, state.observed.phase()), (running.process, Phase::Running));
    host.stop(&unit).await;
}

#[tokio::test]
async fn failing_live_probe_ends_unit_and_probe_children() {
    let host = Host::start().await;
    let unit = unit();
    let mut live = exec("test -e well || { sleep 1000 & echo $! >forked; wait; }");
    live["timeout_ms"] = json!(1_000);
    host.probed(json!({"live": live})).await;
    let first = host.until_phase(&unit, Phase::Running).await;
    let next = host.until(&unit, |state| state.observed.attempts > 0 && state.process.is_some()).await;
    assert_ne!(next.process, first.process);
    let error = next.observed.error.unwrap();
    assert!(
        error.cause.contains("hangs: live probe: it did not end within 1000 ms; ended for that: signal 15"),
        "{error}"
    );
    let forked = fs::read_to_string(host.unit_folder().join("work/forked")).unwrap();
    assert!(!is_alive(Pid::from_raw(forked.trim().parse().unwrap())));
    host.touch("well");
    host.stop(&unit).await;
}

#[tokio::test]
async fn start_timeout_fails_the_unit() {
    let host = Host::start().await;
    let unit = unit();
    // A port of its own, on which nobody listens.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let to = listener.local_addr().unwrap();
    drop(listener);
    let probes = json!({"start": {"tcp": {"port": to.port()}}, "ready": exec("touch asked")});
    let fields = json!({"restart": "never", "start_timeout_ms": 500, "probes": probes});
    host.verb(&unit, &host.apply(&unit, SERVICE, fields)).await.unwrap();
    let state = host.until_phase(&unit, Phase::Failed).await;
    let error = state.observed.error.unwrap();
    let wanted = format!("did not come up within 0.5 s: start probe: {to}: Connection refused");
    assert!(error.cause.starts_with(&wanted), "{error}");
    assert!(
        error.cause.contains("ended for that: signal 15") && error.cause.contains("does not restart it"),
        "{error}"
    );
    assert!(!host.unit_folder().join("work/asked").exists(), "no other runs before the start probe has succeeded");
}

#[tokio::test]
async fn probes_are_changed_in_place() {
    let host = Host::start().await;
    let unit = unit();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    host.probed(json!({"start": {"tcp": {"port": port}}})).await;
    let before = host.until_phase(&unit, Phase::Running).await;
    // It is up already: that a start probe is another one now does not matter to this process.
    host.probed(json!({"start": {"exec": shell("false")}, "ready": exec("echo never; false")})).await;
    let state = host.until(&unit, |state| is_unready(state, "never")).await;
    assert_eq!((state.process, state.observed.phase()), (before.process, Phase::Running));
    host.probed(json!({"live": exec("true")})).await;
    let state = host.until(&unit, |state| state.observed.instance().unready.is_none()).await;
    assert_eq!((state.process, state.observed.phase()), (before.process, Phase::Running));
    host.stop(&unit).await;
}

#[tokio::test]
async fn probe_command_runs_in_the_units_cgroup() {
    let host = Host::start().await;
    let unit = unit();
    host.probed(json!({"ready": exec("cat /proc/self/cgroup >where.new; mv where.new where")})).await;
    let state = host.until_phase(&unit, Phase::Running).await;
    let of_unit = fs::read_to_string(format!("/proc/{}/cgroup", pid(&state))).unwrap();
    let of_probe = fs::read_to_string(host.unit_folder().join("work/where")).unwrap();
    for line in of_unit.lines().filter(|line| line.ends_with("/default/hello")) {
        assert!(of_probe.lines().any(|other| other == format!("{line}/probe-ready")), "{line}: {of_probe}");
    }
    host.stop(&unit).await;
}
