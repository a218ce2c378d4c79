//! Options of `create` common to all kinds: labels, priority, start, stop, and restart.

use std::time::Duration;

use clap::Args;
use muster_topics::{
    common::{CommonSpec, ProgramSpec, grace_ms},
    name::{LabelValue, Name, NameError, UnitName},
    signal::Signal,
    unit::Restart,
};
use serde::de::DeserializeOwned;

/// What a unit is known by, and when it is started and how it ends.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Order and policy")]
#[group(id = "policy")]
pub struct PolicyOptions {
    /// Unit of the host to start after; repeatable
    ///
    /// It is waited for only while it is starting.
    #[arg(long, value_name = "UNIT")]
    after: Vec<UnitName>,
    /// Unit of the host that has to run first; repeatable
    #[arg(long, value_name = "UNIT")]
    requires: Vec<UnitName>,
    /// Start order among units that start together, 0 (first) to 9
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u8).range(0..=9))]
    priority: u8,
    /// Label, by which selectors find it; repeatable
    #[arg(long = "label", value_name = "NAME=VALUE", value_parser = parse_label)]
    labels: Vec<(Name, LabelValue)>,
    /// Restart it: always, on-failure or never
    #[arg(long, default_value = "always", value_parser = parse_restart)]
    restart: Restart,
    /// Stop signal, by name or number
    ///
    /// Such as QUIT, SIGRTMIN+3 or 3. Without it: for a container what its image says, quit for a yuno with --lines,
    /// otherwise term.
    #[arg(long, value_name = "SIGNAL")]
    stop_signal: Option<Signal>,
    /// Kill it if it has not ended within this time
    #[arg(long, default_value = "30s", value_name = "TIME")]
    grace: humantime::Duration,
}

impl PolicyOptions {
    /// Puts the options into a spec.
    pub fn put_into(self, common: &mut CommonSpec, program: &mut ProgramSpec) {
        common.labels = self.labels.into_iter().collect();
        common.after = self.after;
        common.requires = self.requires;
        common.priority = self.priority;
        program.restart = self.restart;
        program.stop_signal = self.stop_signal;
        program.grace_ms = u64::try_from(Duration::from(self.grace).as_millis()).unwrap_or_else(|_| grace_ms());
    }
}

/// Parses `NAME=VALUE`.
pub(super) fn parse_label(text: &str) -> Result<(Name, LabelValue), String> {
    let (name, value) = text.split_once('=').ok_or("use NAME=VALUE, such as tier=gold")?;
    let wrong = |error: NameError| error.to_string();
    Ok((name.parse().map_err(wrong)?, value.parse().map_err(wrong)?))
}

fn parse_restart(text: &str) -> Result<Restart, String> {
    parse_word(&text.replace('-', "_"))
}

/// Parses a word as the JSON form of a type.
pub(super) fn parse_word<T: DeserializeOwned>(word: &str) -> Result<T, String> {
    serde_json::from_value(word.into()).map_err(|error| error.to_string())
}
