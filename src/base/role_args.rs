//! Common arguments of the long-lived roles.

use std::{env, path::PathBuf};

use clap::Args;
use schemars::JsonSchema;
use serde::{Serialize, de::DeserializeOwned};

use crate::{
    config::{self, ConfigError},
    failure::{Failure, FailureKind},
};

/// What every role understands.
#[derive(Args, Clone, Debug)]
pub struct RoleArgs {
    /// Configuration of the role (TOML)
    ///
    /// `MUSTER_<ROLE>_<KEY>` variables override its keys.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Print the effective configuration, and exit
    ///
    /// Each key stands there with what it is for and its default; secrets print as ***.
    #[arg(long)]
    pub print_config: bool,
    /// Say what is wrong with the configuration, and exit
    ///
    /// It says where each key is set, too. File and environment are read to their end, and the files that keys name are
    /// looked at. Nothing is made or changed. The exit code is 0 if the role would start with it, and 2 otherwise.
    #[arg(long, conflicts_with = "print_config")]
    pub check_config: bool,
}

impl RoleArgs {
    /// The role's configuration; nothing if it was only to be printed. `overrides` come last.
    ///
    /// # Errors
    /// If it cannot be read, or is wrong.
    pub fn load<T>(
        &self,
        role: &str,
        overrides: impl FnOnce(&mut T) -> Result<(), Failure>,
    ) -> Result<Option<T>, Failure>
    where
        T: DeserializeOwned + Serialize + JsonSchema + Default,
    {
        let environment =
            env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
        let mut config: T = config::load(role, self.config.as_deref(), environment).map_err(failure)?;
        overrides(&mut config)?;
        if !self.print_config {
            return Ok(Some(config));
        }
        let text = config::print(&config).map_err(|error| Failure::new(FailureKind::Failed, error))?;
        crate::terminal::out(text.as_bytes())?;
        Ok(None)
    }
}

fn failure(error: ConfigError) -> Failure {
    Failure::of(FailureKind::Usage, &error)
}
