//! Tests of units whose host's clock is set.

use muster_base::clock::pretended;
use muster_topics::Millis;

use super::*;

const DAY: Millis = 86_400_000;

#[tokio::test]
async fn retry_comes_although_the_clock_was_set_back() {
    let host = Host::start().await;
    for ahead_ms in [DAY, 31 * DAY, 400 * DAY] {
        let unit = unit(&format!("of-{ahead_ms}"));
        pretended::set_ahead(ahead_ms);
        host.fake.world().failures = vec![Failure { error: "it cannot be had yet".into(), may_heal: true }];
        host.verb(&apply(&unit, "a", Run::Running)).await.unwrap();
        let state = host.until(&unit, |state| state.observed.phase() == Phase::Backoff).await;
        pretended::set_ahead(0);
        assert!(state.observed.retry_ms().is_some_and(|at_ms| at_ms > now_ms() + ahead_ms / 2), "{state:?}");
        host.until_phase(&unit, Phase::Running).await;
    }
}
