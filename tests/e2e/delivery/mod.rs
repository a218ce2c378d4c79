//! The delivery suite: the promises about commands and their outcomes, about presence and heartbeats, kept in the same
//! scenarios over each broker, with real processes that are killed. (What each broker permits is tried in
//! `broker/tests/configs`; each instant at which an agent can be killed in `crashes`.)
//!
//! Modules: [`bus`] (the brokers), [`stage`] (a fleet over one), [`scenarios`] and [`desired`] state; and over our own broker alone: [`clocks`]
//! that are wrong, full [`disks`], [`bounds`] of what is kept, and the console's [`stores`].
//!
//! Hosts that are [`revoked`] are tried over brokers that go on letting them in, and the [`root`] certificate is replaced over
//! brokers that know nothing of it.
//! In a [`sweep`], all are killed at random; in a [`flood`], one host sends measurements without end.
//!
//! `TESTS_LONG=1` has more rounds of each. What took how long is printed.

mod bounds;
mod bus;
mod clocks;
mod desired;
mod disks;
mod flood;
mod revoked;
mod root;
mod scenarios;
mod stage;
mod stores;
mod sweep;

use bus::Kind;
use stage::Stage;

/// Runs every scenario over a broker, one after the other in one fleet.
fn keeps_its_promises_over(kind: Kind) {
    let mut stage = Stage::start(kind);
    let told = scenarios::Told::listen(&stage);
    scenarios::delivered_often_done_once(&mut stage);
    scenarios::killed_at_several_instants(&mut stage);
    scenarios::the_broker_comes_back_empty(&mut stage);
    scenarios::many_outcomes_while_the_console_is_slow(&mut stage);
    scenarios::everything_is_told_anew_when_asked(&mut stage);
    scenarios::gone_without_a_word_and_back(&mut stage);
    desired::each_version_reaches_the_host_once(&mut stage);
    desired::stale_and_forged_documents_change_nothing(&mut stage);
    desired::each_rollout_reaches_the_host_once(&mut stage);
    scenarios::gone_in_order(&mut stage);
    told.each_command_had_one_outcome();
    eprintln!("{stage}");
}

#[test]
fn over_mosquitto_as_installed() {
    keeps_its_promises_over(Kind::Installed);
}

#[test]
fn over_mosquitto() {
    keeps_its_promises_over(Kind::Mosquitto);
}

#[test]
fn over_rabbitmq() {
    keeps_its_promises_over(Kind::RabbitMq);
}

#[test]
fn over_nats() {
    keeps_its_promises_over(Kind::Nats);
}

#[test]
fn over_the_own_broker() {
    keeps_its_promises_over(Kind::Own);
}
