//! `muster login`: a one-time sign-in link becomes a context.

use std::path::PathBuf;

use clap::Args;

use super::{
    Options,
    client::Client,
    context::{self, Context, Contexts},
    print,
};
use crate::{
    api::{LoggedIn, Login as Request},
    failure::{Context as _, Failure, Kind},
};

/// Sign the command line in to a console.
#[derive(Args, Clone, Debug)]
pub struct Login {
    /// The one-time sign-in link that the console printed
    pub link: String,
    /// What to call this console from now on
    #[arg(long, default_value = "console")]
    pub name: String,
    /// The certificate (PEM) of the console's authority, for a link that begins with https
    #[arg(long, value_name = "FILE")]
    pub authority: Option<PathBuf>,
}

/// Does it.
///
/// # Errors
/// If it cannot be done.
pub async fn run(login: &Login, options: &Options) -> Result<(), Failure> {
    let (url, code) = login.link.split_once("/sign-in?code=").ok_or_else(|| {
        Failure::new(Kind::Usage, "this is not a sign-in link")
            .hint("it looks like http://127.0.0.1:7080/sign-in?code=…; `muster up` and `muster console` print one when they start")
    })?;
    let authority = match &login.authority {
        Some(path) => Some(std::fs::read_to_string(path).trying(format_args!("the file {}", path.display()))?),
        None if url.starts_with("https:") => {
            return Err(Failure::new(Kind::Usage, "this link needs its console's authority")
                .hint("copy authority.pem from the console's data folder, and say --authority FILE"));
        }
        None => None,
    };
    let operator = "admin".parse().map_err(|error: muster_topics::name::NameError| Failure::new(Kind::Usage, error))?;
    let mut context = Context {
        url: url.to_owned(),
        operator,
        token: String::new(),
        authority,
        proxy: options.proxy.clone(),
        host: None,
    };
    let signed_in: LoggedIn = Client::new(&context)?.post("login", &Request { code: code.to_owned() }).await?;
    context.operator = signed_in.operator;
    context.token = signed_in.token;
    let path = context::path()?;
    let mut contexts = Contexts::load(&path)?;
    let name = options.context.as_deref().unwrap_or(&login.name);
    contexts.put(name, context);
    contexts.save(&path)?;
    print::say(format_args!("signed in to {url} as context {name:?}"));
    Ok(())
}
