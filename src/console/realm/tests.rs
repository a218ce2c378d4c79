use muster_topics::{command::Command, envelope};
use serde_json::json;

use super::*;
use crate::testing::{Fixture, admin};

fn name(name: &str) -> Name {
    name.parse().unwrap()
}

fn fields(fields: serde_json::Value) -> RealmFields {
    serde_json::from_value(fields).unwrap()
}

async fn create(fixture: &Fixture, realm: &str, what: serde_json::Value) -> Result<muster_api::RealmChanged, Error> {
    let mut what = what;
    what["name"] = realm.into();
    fixture.console.create_realm(&admin(), serde_json::from_value(what).unwrap()).await
}

#[tokio::test]
async fn realms_are_created_changed_and_removed() {
    let fixture = Fixture::new().await;
    let console = &fixture.console;
    assert_eq!(
        console.realms().await.unwrap().iter().map(|realm| realm.realm.name.as_str()).collect::<Vec<_>>(),
        ["default"]
    );
    let land = create(&fixture, "land", json!({ "ports": { "first": 500, "last": 509 } })).await.unwrap();
    assert_eq!(land.command, None, "there is nobody to tell");
    let again = create(&fixture, "land", json!({ "ports": { "first": 500, "last": 509 } })).await.unwrap();
    assert_eq!(again, land);
    assert_eq!(create(&fixture, "land", json!({})).await.unwrap_err().problem.code, "realm_exists");
    let shop = create(&fixture, "shop", json!({ "parent": "land", "disabled": true })).await.unwrap().realm;
    assert_eq!((shop.comes_to.ports.to_string().as_str(), shop.comes_to.disabled_by), ("500-509", Some(name("shop"))));
    let wrong =
        create(&fixture, "x", json!({ "parent": "none", "ports": { "first": 9, "last": 1 } })).await.unwrap_err();
    assert!(
        wrong.problem.diagnostic.cause.contains("not a range")
            && wrong.problem.diagnostic.cause.contains("no realm none"),
        "{wrong}"
    );

    let ring = console.update_realm(&admin(), &name("land"), fields(json!({ "parent": "shop" }))).await.unwrap_err();
    assert_eq!(ring.problem.code, "bad_realm");
    let old = console.update_realm(&admin(), &name("shop"), fields(json!({ "if_generation": 1 }))).await.unwrap_err();
    assert_eq!(old.problem.code, "changed_meanwhile");
    let changed = console.update_realm(&admin(), &name("shop"), fields(json!({ "parent": "land" }))).await.unwrap();
    assert!(changed.realm.realm.generation > shop.realm.generation);
    assert_eq!(changed.realm.comes_to.disabled_by, None);

    for (realm, code) in [("land", "realm_in_use"), ("default", "default_realm"), ("none", "unknown_realm")] {
        let refused = console.remove_realm(&admin(), &name(realm)).await.unwrap_err();
        assert_eq!(refused.problem.code, code);
    }
    console.remove_realm(&admin(), &name("shop")).await.unwrap();
    console.remove_realm(&admin(), &name("land")).await.unwrap();
}

#[tokio::test]
async fn hosts_get_realms_and_those_of_their_units() {
    let fixture = Fixture::new().await;
    let member = fixture.member("shop-7").await;
    create(&fixture, "land", json!({ "disabled": true })).await.unwrap();
    let changed = create(&fixture, "shop", json!({ "parent": "land" })).await.unwrap();
    let command = fixture.console.command(changed.command.unwrap()).await.unwrap();
    assert_eq!(command.hosts.iter().map(|host| host.host).collect::<Vec<_>>(), [member.id]);
    let signed: Vec<(Vec<u8>,)> = sqlx::query_as("SELECT signed FROM command ORDER BY id")
        .fetch_all(fixture.shared().store.read())
        .await
        .unwrap();
    let keys = fixture.shared().authority.keys().state.of_hosts();
    let told: Vec<Vec<String>> = signed
        .iter()
        .map(|(bytes,)| envelope::open(bytes, &keys).unwrap().body::<Command>().unwrap())
        .map(|command| command.realms.iter().map(|realm| realm.name.to_string()).collect())
        .collect();
    assert_eq!(told, [vec!["land".to_owned()], vec!["land".to_owned(), "shop".to_owned()]]);

    // No operator says by hand what realms are.
    let target = NewTarget::Hosts(vec![member.id.to_string()]);
    let verb = Verb::RealmSet { realm: name("shop") };
    let refused = fixture
        .console
        .submit(&admin(), NewCommand { target, expires_in_ms: None, verb, copied_from: None })
        .await
        .unwrap_err();
    assert_eq!(refused.problem.code, "not_by_command");
}
