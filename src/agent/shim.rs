//! The agent's end of the shim: launching one, finding it again, and speaking with it.

use std::{io, path::Path};

use muster_shim::{Ended, Event, Launch, Request};

/// Something went wrong with a shim.
#[derive(Debug, thiserror::Error)]
pub enum ShimError {
    /// The program could not be started; nothing runs.
    #[error("{program} cannot be started: {source}")]
    Start {
        /// The program that was asked for.
        program: String,
        /// Why not.
        source: io::Error,
    },
    /// A file or socket of the shim failed.
    #[error("the shim in {folder}: {source}")]
    Io {
        /// The shim's folder.
        folder: String,
        /// Why.
        source: io::Error,
    },
}

/// Starts and finds shims.
#[derive(Clone, Debug)]
pub struct Shims {}

/// What became of a shim that was started in a folder.
#[derive(Debug)]
pub enum Adopted {
    /// None ever was.
    Nothing,
    /// It is alive, and so is or will be its program.
    Alive(Shim),
    /// Its program ended, as it recorded before it ended too. (`Exit::Unknown` if it was killed and could not.)
    Ended(Ended),
}

/// A live shim. Dropping this leaves it alone.
#[derive(Debug)]
pub struct Shim {}

impl Shims {
    /// Puts the shim's program, which is part of this one, into `data_dir`.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn install(_data_dir: &Path) -> io::Result<Self> {
        unimplemented!()
    }

    /// Starts a program under a new shim, which keeps its files in `folder`.
    ///
    /// # Errors
    /// If the shim or its program cannot be started; nothing is left of either then.
    pub async fn launch(&self, _folder: &Path, _launch: &Launch) -> Result<Shim, ShimError> {
        unimplemented!()
    }

    /// Finds the shim that was launched in `folder` again.
    ///
    /// # Errors
    /// If its files cannot be read.
    pub async fn adopt(&self, _folder: &Path) -> Result<Adopted, ShimError> {
        unimplemented!()
    }
}

impl Shim {
    /// The next thing that the shim tells; nothing once it is gone. The first is its whole state. Cancel-safe.
    pub async fn next(&mut self) -> Option<Event> {
        unimplemented!()
    }

    /// Asks the shim for something; the answer is an [`Event`].
    ///
    /// # Errors
    /// If the shim is gone.
    pub async fn send(&mut self, _request: &Request) -> Result<(), ShimError> {
        unimplemented!()
    }
}
