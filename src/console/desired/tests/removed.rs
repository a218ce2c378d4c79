//! Which units go at once, and which by the policies of their hosts.

use super::*;

/// A host that carries the label `role=till`, and knows units that the console places.
async fn placer(fixture: &Fixture, hostname: &str) -> Member {
    let member = able(fixture, hostname).await;
    set_online(fixture, member.id, true).await;
    heard(fixture, member.id, DesiredReport::default()).await;
    member
}

/// What a host is to remove, and whether each goes at once.
async fn removals(fixture: &Fixture, host: &Member) -> Vec<(String, bool)> {
    let removals = body(fixture, host.id).await.remove;
    removals.into_iter().map(|removal| (removal.unit.to_string(), removal.at_once)).collect()
}

fn expected(removals: &[(&str, bool)]) -> Vec<(String, bool)> {
    removals.iter().map(|(unit, at_once)| ((*unit).to_owned(), *at_once)).collect()
}

fn web(count: u32, others: &[&str]) -> Value {
    let mut units = vec![json!({"name": "web", "artifact": "till@1", "count": count})];
    units.extend(others.iter().map(|name| json!({"name": name, "artifact": "till@1"})));
    document("shop/web", "label.role=till", Value::Array(units))
}

#[tokio::test]
async fn lowered_count_goes_at_once_and_what_a_document_leaves_out_does_not() {
    let fixture = fixture().await;
    let host = placer(&fixture, "one").await;
    apply(&fixture, web(3, &["clerk", "scanner"])).await;
    assert_eq!(removals(&fixture, &host).await, []);
    apply(&fixture, web(1, &["scanner"])).await;
    let first = [("shop/clerk", false), ("shop/web-2", true), ("shop/web-3", true)];
    assert_eq!(removals(&fixture, &host).await, expected(&first));
    // It is as urgent after a start of the console.
    let stored = store::deployment::removals(fixture.shared().store.read()).await.unwrap();
    assert_eq!(stored[&host.id], body(&fixture, host.id).await.remove);
    // Whoever drains a host wants all of it gone, also what waits already.
    let target = NewTarget::Hosts(vec!["one".to_owned()]);
    let drain = CordonHosts { target, cordon: Cordon::Drained };
    let shown = fixture.console.cordon_hosts(&admin(), drain).await.unwrap().remove(0);
    let all = ["shop/clerk", "shop/scanner", "shop/web-1", "shop/web-2", "shop/web-3"];
    assert_eq!(removals(&fixture, &host).await, expected(&all.map(|unit| (unit, true))));
    let leaving: Vec<String> = shown.leaving.iter().map(|leaving| leaving.unit.to_string()).collect();
    assert_eq!((leaving, shown.deployments, shown.is_online), (all.map(str::to_owned).to_vec(), 0, true));
    fixture.running.stop().await;
}

#[tokio::test]
async fn moved_instance_goes_at_once_and_what_lost_its_target_does_not() {
    let fixture = fixture().await;
    let (one, two) = (placer(&fixture, "one").await, placer(&fixture, "two").await);
    apply(&fixture, web(2, &["clerk"])).await;
    let instances =
        async |host: &Member| body(&fixture, host.id).await.deployments[0].instances[&unit("shop/web")].clone();
    let number = instances(&one).await.into_iter().next().unwrap();
    label(&fixture, one.id, &[], &["role"]).await;
    fixture.console.sync().await;
    assert_eq!(instances(&two).await.len(), 2);
    let moved = format!("shop/web-{number}");
    assert_eq!(removals(&fixture, &one).await, expected(&[("shop/clerk", false), (&moved, true)]));
    fixture.running.stop().await;
}

#[tokio::test]
async fn deployment_that_is_removed_goes_by_the_policy() {
    let fixture = fixture().await;
    let host = placer(&fixture, "one").await;
    apply(&fixture, web(1, &["clerk"])).await;
    fixture.console.remove_deployment(&admin(), &name("shop/web"), RemoveDeployment::default()).await.unwrap();
    assert_eq!(removals(&fixture, &host).await, expected(&[("shop/clerk", false), ("shop/web-1", false)]));
    fixture.running.stop().await;
}
