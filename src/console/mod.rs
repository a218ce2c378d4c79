//! The console: one per fleet. (Being written: this file's signatures are the contract between its parts.)

pub mod config;
pub mod series;
pub mod web;

use muster_topics::{
    Millis,
    name::{CommandId, HostId, Name, UnitName},
};
use tokio::sync::broadcast;

use crate::api;

/// A request that was not granted: an HTTP status and the reason.
#[derive(Clone, Debug)]
pub struct Error {
    /// HTTP status code.
    pub status: u16,
    /// Why.
    pub problem: api::Problem,
}

/// Something changed that a page may show.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// A host: joined, presence, state.
    Host(HostId),
    /// A unit of a host.
    Unit(HostId, UnitName),
    /// A command: created, or a host came further, or there is more output.
    Command(CommandId),
    /// New measurements of a host.
    Metrics(HostId),
}

/// The running console; a handle that can be cloned.
#[derive(Clone, Debug)]
pub struct Console {}

#[expect(clippy::unused_async, reason = "signatures for parts that are written at the same time")]
impl Console {
    /// The installation at a glance.
    pub async fn status(&self) -> Result<api::Status, Error> {
        unimplemented!()
    }
    /// All hosts, sorted by hostname.
    pub async fn hosts(&self) -> Result<Vec<api::Host>, Error> {
        unimplemented!()
    }
    /// One host, by id or by a hostname that only one has.
    pub async fn host(&self, _name: &str) -> Result<api::Host, Error> {
        unimplemented!()
    }
    /// Units, of one host or of all, sorted by hostname and name.
    pub async fn units(&self, _host: Option<HostId>) -> Result<Vec<api::Unit>, Error> {
        unimplemented!()
    }
    /// One unit.
    pub async fn unit(&self, _host: HostId, _unit: &UnitName) -> Result<api::Unit, Error> {
        unimplemented!()
    }
    /// The newest commands, of one host or of all.
    pub async fn commands(&self, _host: Option<HostId>, _limit: u32) -> Result<Vec<api::Command>, Error> {
        unimplemented!()
    }
    /// One command.
    pub async fn command(&self, _id: CommandId) -> Result<api::Command, Error> {
        unimplemented!()
    }
    /// All output of a command on one host that has come so far: stdout and stderr.
    pub async fn output(&self, _id: CommandId, _host: HostId) -> Result<(Vec<u8>, Vec<u8>), Error> {
        unimplemented!()
    }
    /// Signs, stores and publishes a command.
    pub async fn submit(&self, _operator: &Name, _command: api::NewCommand) -> Result<api::Command, Error> {
        unimplemented!()
    }
    /// Makes a one-time password for a host that shall join.
    pub async fn create_token(&self, _operator: &Name, _token: api::NewToken) -> Result<api::CreatedToken, Error> {
        unimplemented!()
    }
    /// All one-time passwords, newest first.
    pub async fn tokens(&self) -> Result<Vec<api::Token>, Error> {
        unimplemented!()
    }
    /// Measurements over time: `range` is start and end, nothing for the last values.
    pub async fn series(
        &self,
        _selector: &str,
        _range: Option<(Millis, Millis)>,
        _points_max: usize,
    ) -> Result<api::SeriesAnswer, Error> {
        unimplemented!()
    }
    /// Uses up a one-time sign-in code; gives a session's secret for the cookie.
    pub async fn sign_in(&self, _code: &str) -> Result<String, Error> {
        unimplemented!()
    }
    /// Who has this session.
    pub async fn session(&self, _secret: &str) -> Result<Option<Name>, Error> {
        unimplemented!()
    }
    /// Ends a session.
    pub async fn sign_out(&self, _secret: &str) -> Result<(), Error> {
        unimplemented!()
    }
    /// What changes from now on.
    #[must_use]
    pub fn changes(&self) -> broadcast::Receiver<Change> {
        unimplemented!()
    }
}
