//! Replacing the root certificate over brokers that are made by others, with their own TLS libraries.

use serde_json::Value;

use super::{bus::Kind, stage::Stage};
use crate::fleet::eventually;

fn wait_until_ready(stage: &Stage, wanted: &str) {
    eventually(wanted, || {
        let status: Value = serde_json::from_str(&stage.ok(&["-o", "json", "authority", "show"])).unwrap();
        let rotation = &status["rotation"];
        let is_ready = rotation["stage"] == wanted && rotation["ready"] == true;
        if is_ready { Ok(()) } else { Err(rotation.to_string()) }
    });
}

fn finish(stage: &Stage) {
    eventually("the next stage", || {
        let run = stage.home.muster(&["authority", "finish", "--timeout", "0s"]);
        if run.code == 0 { Ok(()) } else { Err(run.stderr) }
    });
}

fn root_is_replaced_over(kind: Kind) {
    let mut stage = Stage::start(kind);
    if kind == Kind::Mosquitto {
        stage.bus.use_list();
        stage.bus.renew(&stage.home);
    }
    stage.wait_for_presence("online");
    let works = |stage: &Stage, name: &str| {
        stage.succeeds(&stage.exec(&stage.note(name)));
        stage.wait_for_effect(name);
    };
    works(&stage, "before");
    stage.ok(&["authority", "rotate", "root"]);
    wait_until_ready(&stage, "trust");
    let refused = stage.home.muster(&["authority", "finish"]).expect_code(3);
    refused.expect_stderr("does not accept a certificate under the new root");
    stage.bus.renew(&stage.home);
    finish(&stage);
    wait_until_ready(&stage, "certificates");
    works(&stage, "between");
    let refused = stage.home.muster(&["authority", "finish"]).expect_code(3);
    refused.expect_stderr("has no certificate under the new root");
    stage.bus.renew(&stage.home);
    finish(&stage);
    stage.bus.renew(&stage.home);
    works(&stage, "after");
    stage.stop_agent();
    stage.start_party(super::stage::Party::Agent);
    works(&stage, "again");
    eprintln!("{stage}");
}

#[test]
fn root_is_replaced_over_mosquitto() {
    root_is_replaced_over(Kind::Mosquitto);
}

#[test]
fn root_is_replaced_over_rabbitmq() {
    root_is_replaced_over(Kind::RabbitMq);
}

#[test]
fn root_is_replaced_over_nats() {
    root_is_replaced_over(Kind::Nats);
}
