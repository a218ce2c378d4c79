//! What each verb works with: the console's client, the printer, and the global options.

use clap::Args;
use muster_base::failure::Failure;
use tokio_util::sync::CancellationToken;

use super::{
    client::ConsoleClient,
    context::{ConsoleContext, Contexts},
    print::{PrintFormat, Printer},
};

/// What every verb understands.
#[derive(Args, Clone, Debug)]
pub struct GlobalOptions {
    /// Output format: table, json or yaml
    ///
    /// With json and yaml, standard output has one document and nothing else, or one for each item of an answer that
    /// goes on. Messages and errors are text on standard error.
    #[arg(short, long, value_enum, default_value_t, global = true, value_name = "FORM")]
    #[arg(hide_possible_values = true, help_heading = "Everywhere")]
    pub output: PrintFormat,
    /// Console to use, by its name in the context file
    #[arg(long, global = true, env = "MUSTER_CONTEXT", value_name = "NAME", help_heading = "Everywhere")]
    pub context: Option<String>,
    /// HTTP proxy to reach the console through
    ///
    /// It replaces that of the context. http_proxy and such variables are ignored.
    #[arg(long, global = true, env = "MUSTER_PROXY", value_name = "URL", help_heading = "Everywhere")]
    #[arg(hide_env_values = true)]
    pub proxy: Option<String>,
    /// Print times in UTC; on a terminal they are otherwise local
    #[arg(long, global = true, help_heading = "Everywhere")]
    pub utc: bool,
    /// Whether the list is drawn again and again: `-w`, which only lists have
    #[arg(skip)]
    pub watch: bool,
}

impl GlobalOptions {
    /// The requested context, with the options of the command line in place of its own.
    ///
    /// # Errors
    /// If there is none.
    pub fn pick_context(&self) -> Result<ConsoleContext, Failure> {
        self.pick_named().map(|(_, context)| context)
    }

    /// The same, with its name.
    pub(super) fn pick_named(&self) -> Result<(String, ConsoleContext), Failure> {
        let (name, context) = Contexts::load(&super::context::path()?)?.pick_named(self.context.as_deref())?;
        Ok((name, ConsoleContext { proxy: self.proxy.clone().or(context.proxy), ..context }))
    }
}

/// The environment of a verb: the console, and how to print.
#[derive(Clone, Debug)]
pub struct CliSession {
    /// The client of the console.
    pub client: ConsoleClient,
    /// The context.
    pub context: ConsoleContext,
    /// The name of the context.
    pub context_name: String,
    /// The printer.
    pub printer: Printer,
    /// Cancelled when the user interrupts the verb.
    pub interrupt: CancellationToken,
}
