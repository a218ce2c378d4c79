//! Tests of the first page of a large fleet: paging, searching, and troubled units.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Instant,
};

use muster_api::Host;
use muster_topics::{
    V1,
    desired::UnitOwner,
    heartbeat::UnitSummary,
    name::{HostId, UnitName},
    unit::{Hold, HoldReason, Phase, Run, TrialReport, UnitReport},
};

use crate::{
    store::{
        host::{self, Search},
        unit_list::UnitFilter,
    },
    testing::Fixture,
    web::view::samples,
};

/// Enters hosts with presence and state, straight into the store: `shop-00000` and so on, of which
/// every tenth is offline, and every hundredth has a unit in trouble.
async fn enter(fixture: &Fixture, hosts: usize) -> Vec<HostId> {
    let shared = fixture.shared();
    let mut transaction = shared.store.begin().await.unwrap();
    let mut ids = Vec::new();
    for index in 0..hosts {
        let Host { id, state, .. } = samples::host("", 1);
        let (name, state) = (format!("shop-{index:05}"), serde_json::to_string(&state.unwrap().value).unwrap());
        let rows = [
            sqlx::query("INSERT INTO host (id, hostname, facts, joined_ms) VALUES ($1, $2, '{}', 1)")
                .bind(id.to_string())
                .bind(name),
            sqlx::query("INSERT INTO presence VALUES ($1, $2, 1, 1, '0.1.0', 1, NULL)")
                .bind(id.to_string())
                .bind(if index % 10 == 0 { "offline".to_owned() } else { "online".to_owned() }),
            sqlx::query("INSERT INTO heartbeat (host, epoch, seq, state, at_ms) VALUES ($1, 1, 1, $2, 1)")
                .bind(id.to_string())
                .bind(state),
        ];
        for row in rows {
            row.execute(&mut *transaction).await.unwrap();
        }
        for name in ["default/hello", "shop/till"] {
            let report = report(name.parse().unwrap(), index % 100 == 0 && name == "shop/till");
            host::set_unit(&mut transaction, id, &report, 1).await.unwrap();
        }
        ids.push(id);
    }
    transaction.commit().await.unwrap();
    ids
}

fn report(unit: UnitName, troubled: bool) -> UnitReport {
    let sample = samples::unit("", usize::from(troubled));
    let mut observed = sample.observed;
    // That it rolled back is enough.
    if troubled {
        observed.state = Phase::Running.into();
    }
    UnitReport {
        v: V1,
        epoch: 1,
        seq: 1,
        at_ms: 1,
        unit,
        desired: sample.desired,
        observed,
        hold: None,
        owner: None,
        pins: sample.pins,
        stats: sample.stats,
    }
}

#[tokio::test]
async fn large_fleet_is_paged() {
    // To measure: MUSTER_HOSTS=10000 with a release build.
    let count = std::env::var("MUSTER_HOSTS").ok().and_then(|count| count.parse().ok()).unwrap_or(250);
    let fixture = Fixture::new().await;
    let ids = enter(&fixture, count).await;
    let console = &fixture.console;
    let check = async |text: &str, online: Option<bool>, wanted: usize| {
        let search = Search { text: text.to_owned(), online };
        let store = fixture.shared().store.read();
        let (hosts, found) = crate::store::host::page(store, &search, 0, 100).await.unwrap();
        assert_eq!((hosts.len(), found), (wanted.min(100), wanted as u64), "{search:?}");
        assert!(hosts.is_sorted_by_key(|host| host.hostname.clone()));
    };
    check("", None, count).await;
    check("", Some(false), count / 10).await;
    check("", Some(true), count - count / 10).await;
    check("SHOP-0001", None, 10).await;
    check("shop-0001", Some(false), 1).await;
    check(&ids[7].to_string(), None, 1).await;
    check(&ids[7].to_string()[..13], None, 1).await;
    for nobody in ["nobody", "%", "_", "!", "shop_00001", "' OR 1 --"] {
        check(nobody, None, 0).await;
    }
    let (last, _) = console.hosts_page(&Search::default(), count as u64 - 50, 100).await.unwrap();
    assert_eq!((last.len(), last[49].hostname.as_str()), (50, &*format!("shop-{:05}", count - 1)));
    assert!(last[0].state.is_some() && last[0].presence.is_some());
    assert!(console.hosts_page(&Search::default(), u64::MAX, 100).await.unwrap().0.is_empty());
    let (troubled, troubled_count) = console.troubled_units(2).await.unwrap();
    assert_eq!((troubled.len(), troubled_count), (2, count.div_ceil(100) as u64));
    assert_eq!((troubled[0].hostname.as_str(), troubled[0].unit.as_str()), ("shop-00000", "shop/till"));
    // The console has no broker, and so hears of nobody.
    for online in [false, true] {
        let search = Search { text: String::new(), online: Some(online) };
        assert_eq!(console.hosts_page(&search, 0, 100).await.unwrap(), (Vec::new(), 0));
    }
    let shown = console.presences().await.unwrap();
    assert_eq!((shown.unknown, shown.online), (count as u64, 0));
    let presences = crate::store::host::presences(console.shared.store.read()).await.unwrap();
    let away = count.div_ceil(10) as u64;
    assert_eq!((presences.online, presences.offline), (count as u64 - away, away));
    assert_eq!((presences.stopped, presences.never), (0, 0));
    for (n, id) in ids.iter().enumerate() {
        let busy =
            muster_topics::metric::Point::new("muster_host_cpu", &[("hostname", "shop")], muster_base::clock::now_ms());
        fixture.shared().measurements.latest.note(*id, &[busy.field("busy_ratio", n as f64 / count as f64)]);
    }
    assert_eq!(console.overview().measured, count);
    let begin = Instant::now();
    for offset in [0, count as u64 / 2] {
        console.hosts_page(&Search::default(), offset, 100).await.unwrap();
        console.troubled_units(10).await.unwrap();
        console.status().await.unwrap();
        console.presences().await.unwrap();
        std::hint::black_box(console.overview());
    }
    println!("a page of {count} hosts: {:?}", begin.elapsed() / 2);
}

#[tokio::test]
async fn rolled_back_units_are_troubled_and_held_ones_not() {
    let fixture = Fixture::new().await;
    let host = enter(&fixture, 1).await[0];
    let shared = fixture.shared();
    let went_back = samples::unit("", 1).observed.trial;
    let hold = |reason| Some(Hold::new(reason, 1));
    let mut wanted = BTreeMap::new();
    let reasons = [None, Some(HoldReason::Operator), Some(HoldReason::Dependency), Some(HoldReason::Broken)];
    for run in [Run::Stopped, Run::Running, Run::Playing] {
        for phase in [Phase::Running, Phase::Stopped, Phase::Backoff, Phase::Failed] {
            for reason in reasons {
                for trial in [TrialReport::Unverified, went_back.clone()] {
                    let name: UnitName = format!("case/u{}", wanted.len()).parse().unwrap();
                    let mut report = report(name.clone(), false);
                    report.desired.run = run;
                    report.hold = reason.and_then(hold);
                    (report.observed.state, report.observed.trial) = (phase.into(), trial.clone());
                    let is_back = trial.rolled_back().is_some();
                    let summary =
                        UnitSummary { generation: 1, run, phase, hold: report.hold.clone(), rolled_back: is_back };
                    let on_purpose = run == Run::Stopped || reason == Some(HoldReason::Operator);
                    let is_ill = matches!(phase, Phase::Backoff | Phase::Failed);
                    let is_troubled = !on_purpose && (is_ill || reason.is_some() || is_back);
                    assert_eq!(summary.is_troubled(), is_troubled, "{report:?}");
                    let mut transaction = shared.store.begin().await.unwrap();
                    host::set_unit(&mut transaction, host, &report, 1).await.unwrap();
                    transaction.commit().await.unwrap();
                    wanted.insert(name, is_troubled);
                }
            }
        }
    }
    let (troubled, _) = fixture.console.troubled_units(1_000).await.unwrap();
    let found: BTreeSet<UnitName> = troubled.into_iter().map(|unit| unit.unit).collect();
    for (unit, is_troubled) in wanted {
        assert_eq!(found.contains(&unit), is_troubled, "{unit}");
    }
}

/// A unit of every second host belongs to a deployment, in two versions.
#[tokio::test]
async fn units_of_large_fleet_are_paged_and_filtered() {
    let fixture = Fixture::new().await;
    let ids = enter(&fixture, 250).await;
    let mut transaction = fixture.shared().store.begin().await.unwrap();
    for (index, id) in ids.iter().enumerate().filter(|(index, _)| index % 2 == 0) {
        let mut report = report("shop/till".parse().unwrap(), false);
        let version = if index < 100 { 2 } else { 1 };
        report.owner = Some(UnitOwner { deployment: "shop/tills".parse().unwrap(), version, orphan: false });
        report.observed.state = if index == 4 { Phase::Failed } else { Phase::Running }.into();
        report.seq = 2;
        host::set_unit(&mut transaction, *id, &report, 1).await.unwrap();
    }
    transaction.commit().await.unwrap();
    let page = async |filter: &UnitFilter, offset| fixture.console.units_page(filter, offset, 100).await.unwrap();
    let deployment = Some("shop/tills".parse().unwrap());
    let select = |text: &str| Some(text.parse().unwrap());
    let all = UnitFilter::default();
    let failed = UnitFilter { phase: Some(Phase::Failed), ..all.clone() };
    let owned = UnitFilter { deployment: deployment.clone(), ..all.clone() };
    for (filter, found, of_phase) in [
        (all.clone(), 500, 500),
        (failed.clone(), 500, 1),
        (owned.clone(), 125, 125),
        (UnitFilter { version: Some(2), ..all.clone() }, 50, 50),
        (UnitFilter { version: Some(1), ..owned.clone() }, 75, 75),
        (UnitFilter { version: Some(3), ..owned.clone() }, 0, 0),
        (UnitFilter { deployment: Some("shop/x".parse().unwrap()), ..all.clone() }, 0, 0),
        (UnitFilter { phase: Some(Phase::Failed), ..owned.clone() }, 125, 1),
        (UnitFilter { select: select("realm=shop"), ..all.clone() }, 250, 250),
        (UnitFilter { select: select("host=shop-00004"), ..failed.clone() }, 2, 1),
        (UnitFilter { select: select("realm=shop"), version: Some(2), ..all.clone() }, 50, 50),
        (UnitFilter { select: select("realm=nowhere"), ..all.clone() }, 0, 0),
    ] {
        let first = page(&filter, 0).await;
        assert_eq!((first.found(None), first.found(filter.phase)), (found, of_phase), "{filter:?}");
        // Every unit is on one page, by hostname and name.
        let (mut seen, mut offset) = (Vec::new(), 0);
        loop {
            let units = page(&filter, offset).await.units;
            if units.is_empty() {
                break;
            }
            offset += units.len() as u64;
            seen.extend(units.into_iter().map(|unit| (unit.hostname, unit.unit)));
        }
        assert_eq!(seen.len() as u64, of_phase, "{filter:?}");
        assert!(seen.is_sorted() && seen.windows(2).all(|pair| pair[0] != pair[1]), "{filter:?}");
        assert!(page(&filter, u64::MAX).await.units.is_empty());
    }
}
