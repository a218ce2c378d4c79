//! Tests of what is stored with a digest, and is not what was stored.

use super::*;

/// Whether a deployment's stored content is what its digest says.
async fn is_whole(fixture: &Fixture) -> bool {
    let row = store::deployment::version(fixture.shared().store.read(), &name("shop/till"), 1).await.unwrap();
    !row.unwrap().is_damaged
}

async fn execute(fixture: &Fixture, statement: &'static str) {
    sqlx::query(statement).execute(fixture.shared().store.write()).await.unwrap();
}

/// As after a start of the console.
async fn reopen(fixture: &Fixture) {
    fixture.console.open_deployments().await.unwrap();
    let wish = super::super::plan::PlanWish { may_remove: true, now: now_ms(), ..Default::default() };
    fixture.console.reconcile(None, wish).await.unwrap();
}

#[tokio::test]
async fn damaged_version_is_taken_from_a_document_or_reaches_nobody() {
    let parts = [
        ("label.role=till", "label.role=tilk"),
        ("\"running\"", "\"stopped\""),
        ("\"deployment\":\"shop/till\"", "\"deployment\":\"shop/tilk\""),
    ];
    for (part, other) in parts {
        let fixture = fixture().await;
        let host = able(&fixture, "one").await;
        apply(&fixture, document("shop/till", "label.role=till", till("1"))).await;
        let (before, generation) = (body(&fixture, host.id).await, generation_of_document(&fixture, host.id));
        let damage = "UPDATE deployment_version SET content = replace(content, $1, $2)";
        let damage = async || {
            sqlx::query(damage).bind(part).bind(other).execute(fixture.shared().store.write()).await.unwrap();
            assert!(!is_whole(&fixture).await, "{part}");
        };
        damage().await;
        reopen(&fixture).await;
        assert!(is_whole(&fixture).await, "the document of its host has it");
        assert_eq!(body(&fixture, host.id).await, before);
        // Nobody has it whole.
        damage().await;
        execute(&fixture, "UPDATE desired_body SET content = content || ' '").await;
        assert!(!fixture.console.notices().iter().any(|notice| notice.contains("damaged")));
        reopen(&fixture).await;
        let newcomer = able(&fixture, "two").await;
        assert!(
            fixture.console.notices().iter().any(|notice| notice.contains("version 1 of the deployment shop/till"))
        );
        assert_eq!(generation_of_document(&fixture, host.id), generation, "it keeps what it has");
        assert!(row(&fixture, newcomer.id).is_none(), "nobody else gets it");
        let digest = row(&fixture, host.id).unwrap().digest;
        assert_eq!(store::desired::body(fixture.shared().store.read(), &digest).await.unwrap(), None);
        // Applied again, it goes on.
        apply(&fixture, document("shop/till", "label.role=till", till("1"))).await;
        assert_eq!(numbers(&body(&fixture, newcomer.id).await), [("shop/till".to_owned(), 2)]);
        assert_eq!(numbers(&body(&fixture, host.id).await), [("shop/till".to_owned(), 2)]);
        fixture.running.stop().await;
    }
}

#[tokio::test]
async fn damaged_variable_is_taken_from_a_document_or_reaches_nobody() {
    let fixture = fixture().await;
    let host = able(&fixture, "one").await;
    let set = async |value: u32| {
        let new = NewVar { layer: VarLayer::Fleet, name: "limit".parse().unwrap(), value: json!(value) };
        fixture.console.set_var(&admin(), new).await.unwrap();
    };
    let shown = async || fixture.console.vars().await.unwrap().into_iter().map(|var| var.value).collect::<Vec<_>>();
    set(4).await;
    execute(&fixture, "UPDATE var SET value = '5'").await;
    assert_eq!(shown().await, [json!(4)]);
    execute(&fixture, "UPDATE desired_body SET content = content || ' '").await;
    assert!(shown().await.is_empty());
    reopen(&fixture).await;
    assert!(fixture.console.notices().iter().any(|notice| notice.contains("limit (fleet)")));
    set(6).await;
    assert_eq!((shown().await, body(&fixture, host.id).await.vars.len()), (vec![json!(6)], 1));
    fixture.running.stop().await;
}

#[tokio::test]
async fn damaged_config_is_not_given_out() {
    let fixture = fixture().await;
    let new =
        NewConfig { id: "till.main".parse().unwrap(), version: "1".parse().unwrap(), content: "{\"a\":1}".to_owned() };
    let config = fixture.console.add_config(&admin(), new).await.unwrap();
    let db = fixture.shared().store.read();
    assert!(store::content::config_content(db, &config.sha256).await.unwrap().is_some());
    execute(&fixture, "UPDATE config SET content = '{\"a\":3}'").await;
    assert!(store::content::config_content(db, &config.sha256).await.is_err());
    assert!(store::content::config(db, &config.id, &config.version).await.is_err());
    fixture.running.stop().await;
}
