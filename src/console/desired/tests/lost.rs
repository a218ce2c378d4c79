//! What goes on after a lost store once something is there again that was lost with it.

use super::*;

/// A host of a deployment whose unit has a config, after the console's store was lost with that: the host has handed in its document.
async fn lost(fixture: &Fixture, select: &str) -> (Member, DesiredBody) {
    let host = able(fixture, "one").await;
    config(fixture).await;
    apply(fixture, with_config(select)).await;
    let body = body(fixture, host.id).await;
    let tables = [
        "given",
        "unit_removal",
        "assignment",
        "host_document",
        "issued_document",
        "deployment_version",
        "deployment",
        "config",
    ];
    for table in tables {
        let all = sqlx::AssertSqlSafe(format!("DELETE FROM {table}"));
        sqlx::query(all).execute(fixture.shared().store.write()).await.unwrap();
    }
    let table = super::super::table::DesiredTable::load(&fixture.shared().store).await.unwrap();
    *fixture.shared().hosts.desired.table() = table;
    let mark = DesiredMark { epoch: 1, generation: 7 };
    let document = foreign(fixture, host.id, mark, &body).await;
    let digest = Some(digest_of(&document));
    heard(fixture, host.id, DesiredReport { mark, digest, ..DesiredReport::default() }).await;
    fixture.console.hand_in(host.id, &document).await.unwrap();
    (host, body)
}

async fn config(fixture: &Fixture) {
    let content = json!({"port": 80}).to_string();
    let config = NewConfig { id: "till".parse().unwrap(), version: "1".parse().unwrap(), content };
    fixture.console.add_config(&admin(), config).await.unwrap();
    fixture.console.catch_up().await.unwrap();
}

fn with_config(select: &str) -> Value {
    document("shop/till", select, json!([{"name": "till", "artifact": "till@1", "configs": ["till@1"]}]))
}

async fn remove(fixture: &Fixture, keep: bool) -> Result<usize, Error> {
    let wanted = RemoveDeployment { dry_run: false, keep, purge: false };
    let removed = fixture.console.remove_deployment(&admin(), &name("shop/till"), wanted).await?;
    Ok(removed.hosts.len())
}

#[tokio::test]
async fn deployment_goes_on_when_its_config_is_added_again() {
    for select in ["label.role=till", "host=*"] {
        let fixture = fixture().await;
        let (host, before) = lost(&fixture, select).await;
        confirm(&fixture, false, false).await;
        assert!(row(&fixture, host.id).is_none(), "{select}: no document can be made without its config");
        config(&fixture).await;
        let after = body(&fixture, host.id).await;
        assert_eq!((&after.deployments, &after.remove), (&before.deployments, &before.remove), "{select}");
        // As a start of the console reads it.
        let stored = store::deployment::assignments(fixture.shared().store.read()).await.unwrap();
        assert_eq!(stored[&host.id][0].deployment, name("shop/till"), "{select}");
        fixture.running.stop().await;
    }
}

#[tokio::test]
async fn host_removes_units_of_a_deployment_that_is_removed_while_its_config_is_lost() {
    let fixture = fixture().await;
    let (host, _) = lost(&fixture, "label.role=till").await;
    confirm(&fixture, false, false).await;
    assert_eq!(remove(&fixture, false).await.unwrap(), 1);
    let body = body(&fixture, host.id).await;
    let removals: Vec<_> = body.remove.iter().map(|removal| removal.unit.clone()).collect();
    assert_eq!((removals, body.deployments.len()), (vec![unit("shop/till")], 0));
    fixture.running.stop().await;
}

#[tokio::test]
async fn deployment_of_an_unconfirmed_host_is_not_said_to_be_removed() {
    let fixture = fixture().await;
    let (host, _) = lost(&fixture, "label.role=till").await;
    config(&fixture).await;
    apply(&fixture, with_config("label.role=till")).await;
    let refused = remove(&fixture, false).await.unwrap_err();
    assert_eq!(refused.problem.code, "hosts_unconfirmed");
    assert!(refused.problem.diagnostic.cause.ends_with(": one"), "{refused}");
    confirm(&fixture, false, false).await;
    assert_eq!(remove(&fixture, false).await.unwrap(), 1);
    assert_eq!(body(&fixture, host.id).await.remove[0].unit, unit("shop/till"));
    fixture.running.stop().await;
}
