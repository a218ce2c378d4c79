//! Tests of the order in which units start, and of what they wait for.

use super::*;

fn apply_with(unit: &UnitName, fields: serde_json::Value) -> Verb {
    let Verb::UnitApply { unit, spec, run } = apply(unit, "a", Run::Running) else { unreachable!() };
    let mut json = serde_json::to_value(&*spec).unwrap();
    json.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    Verb::UnitApply { unit, spec: Box::new(serde_json::from_value(json).unwrap()), run }
}

#[tokio::test]
async fn after_a_boot_lower_numbers_start_first_and_what_others_need_before_them() {
    let mut host = Host::start().await;
    let [a, b, web, db] = ["a", "b", "web", "db"].map(unit);
    host.verb(&apply_with(&a, serde_json::json!({"priority": 9}))).await.unwrap();
    host.verb(&apply_with(&b, serde_json::json!({"priority": 0}))).await.unwrap();
    host.verb(&apply_with(&db, serde_json::json!({"started_after_ms": 200}))).await.unwrap();
    host.verb(&apply_with(&web, serde_json::json!({"requires": ["default/db"]}))).await.unwrap();
    let units = [&a, &b, &web, &db];
    for unit in units {
        host.until_phase(unit, Phase::Running).await;
    }
    host.stop().await;
    host.fake.world().alive.clear();
    host.restart().await;
    let mut pids = Vec::new();
    for unit in units {
        let state = host.until(unit, |state| state.observed.phase() == Phase::Running && state.process.is_some()).await;
        pids.push((state.observed.instance().pid.unwrap(), unit.name().to_string()));
    }
    pids.sort();
    let names: Vec<&str> = pids.iter().map(|(_, name)| name.as_str()).collect();
    assert_eq!((names[0], names.len()), ("b", 4), "{pids:?}");
    let place = |name: &str| names.iter().position(|other| *other == name);
    assert!(place("db") < place("web") && place("db") < place("a"), "{pids:?}");
}

#[tokio::test]
async fn what_requires_something_is_held_until_that_runs() {
    let host = Host::start().await;
    let [web, db] = ["web", "db"].map(unit);
    host.verb(&apply_with(&web, serde_json::json!({"requires": ["default/db"]}))).await.unwrap();
    let state = host.until(&web, |state| state.hold.is_some()).await;
    let hold = state.hold.unwrap();
    assert_eq!((hold.reason, hold.note.as_deref()), (HoldReason::Dependency, Some("there is no unit default/db")));
    host.verb(&apply(&db, "a", Run::Stopped)).await.unwrap();
    host.until(&web, |state| {
        state.hold.as_ref().is_some_and(|hold| hold.note.as_deref() == Some("default/db is not running"))
    })
    .await;
    host.verb(&Verb::UnitRun { unit: db.clone() }).await.unwrap();
    let state = host.until_phase(&web, Phase::Running).await;
    assert_eq!(state.hold, None);
    // What runs goes on without it.
    host.verb(&Verb::UnitStop { unit: db.clone() }).await.unwrap();
    host.until_phase(&db, Phase::Stopped).await;
    assert_eq!(host.until_phase(&web, Phase::Running).await.process, state.process);
}
