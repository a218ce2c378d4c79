//! `muster login`: turns a one-time sign-in link into a context.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use futures_util::future::BoxFuture;
use muster_api::{LoggedIn, Login as Request, SignIn, SignInKind};
use muster_base::{
    clock,
    failure::{Failure, FailureKind},
};
use reqwest::Method;

use super::{
    client::ConsoleClient,
    context::{self, ConsoleContext, Contexts},
    print::{self, Printer},
    session::{CliSession, GlobalOptions},
};

/// Sign the command line in to a console, and see who is signed in.
#[derive(Args, Clone, Debug)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct LoginArgs {
    /// One-time sign-in link that the console printed
    #[arg(required_unless_present = "new_link")]
    pub link: Option<String>,
    /// Certificate (PEM) of the authority of an https console
    #[arg(long, value_name = "FILE")]
    pub authority: Option<PathBuf>,
    /// Print a new one-time sign-in link
    ///
    /// On the console's own machine, as the user that it runs as.
    #[arg(long, conflicts_with = "link")]
    pub new_link: bool,
    /// Data folder
    ///
    /// That of `muster up`, or of the console.
    ///
    /// [default: that of your `muster up`, else /var/lib/muster/console]
    #[arg(long, value_name = "DIR", requires = "new_link")]
    pub data_dir: Option<PathBuf>,
    /// Something else than to sign in
    #[command(subcommand)]
    pub verb: Option<LoginVerb>,
}

/// Verbs on sign-ins.
#[derive(Subcommand, Clone, Debug)]
pub enum LoginVerb {
    /// List browsers and programs that are signed in
    Ls,
    /// Revoke a sign-in
    Revoke {
        /// Id, or the beginning of it
        ///
        /// `muster login ls` shows it.
        id: String,
    },
}

/// Lists sign-ins, or revokes one.
///
/// # Errors
/// If it fails.
pub async fn manage(verb: LoginVerb, session: &CliSession) -> Result<(), Failure> {
    let now_ms = clock::now_ms();
    match verb {
        LoginVerb::Ls => {
            let sign_ins: Vec<SignIn> = session.client.get("sign-ins", &[]).await?;
            let row = |one: &SignIn| {
                let kind = match one.kind {
                    SignInKind::Browser => "browser",
                    SignInKind::Program => "program",
                };
                let used = one.used_ms.map_or_else(|| "never".to_owned(), |at_ms| print::age(at_ms, now_ms));
                let (made, ends) = (print::age(one.created_ms, now_ms), session.printer.time(one.expires_ms));
                vec![one.id.to_string(), kind.to_owned(), one.operator.to_string(), made, used, ends]
            };
            session.printer.list(
                &sign_ins,
                &["ID", "KIND", "OPERATOR", "SINCE", "USED", "ENDS"],
                row,
                "there are no sign-ins",
            )
        }
        LoginVerb::Revoke { id } => {
            session.client.order(Method::DELETE, &format!("sign-ins/{id}")).await?;
            print::say(format_args!("sign-in {id} is revoked"));
            Ok(())
        }
    }
}

/// The name of a console in the context file, unless `--context` gives it another.
const CONTEXT: &str = "console";

/// A function that creates a sign-in link of a console on this machine, in the folder that was named, if any. The
/// program passes it in, because the command line does not depend on the console.
pub type NewSignInLink = fn(Option<PathBuf>) -> BoxFuture<'static, Result<String, Failure>>;

/// Prints a new sign-in link of a console on this machine.
async fn print_link(
    data_dir: Option<PathBuf>,
    new_link: Option<NewSignInLink>,
    printer: Printer,
) -> Result<(), Failure> {
    let new_link = new_link.ok_or_else(|| {
        Failure::new(FailureKind::Usage, "this program has no console in it, so it makes no sign-in links")
            .hint("do this on the console's machine, with the program that runs there")
    })?;
    let link = new_link(data_dir).await?;
    printer.line(&serde_json::json!({ "link": link }), &link)?;
    print::say("good once, and for 15 minutes: open it in a browser, or give it to `muster login`");
    Ok(())
}

/// Runs the verb.
///
/// # Errors
/// If it fails.
pub async fn run(login: &LoginArgs, options: &GlobalOptions, new_link: Option<NewSignInLink>) -> Result<(), Failure> {
    if login.new_link {
        return print_link(login.data_dir.clone(), new_link, Printer::new(options.output)).await;
    }
    let link = login.link.as_deref().unwrap_or_default();
    let (url, code) = link.split_once("/sign-in?code=").ok_or_else(|| {
        Failure::new(FailureKind::Usage, "this is not a sign-in link")
            .hint("it looks like http://127.0.0.1:7080/sign-in?code=…; `muster login --new-link`, on the console's machine, prints one")
    })?;
    let authority = match &login.authority {
        Some(path) => Some(muster_base::files::read_text(path).map_err(|error| Failure::of_file(path, &error))?),
        None if url.starts_with("https:") => {
            return Err(Failure::new(FailureKind::Usage, "this link needs its console's authority")
                .hint("copy authority.pem from the console's data folder, and pass --authority FILE"));
        }
        None => None,
    };
    let operator =
        "admin".parse().map_err(|error: muster_topics::name::NameError| Failure::new(FailureKind::Usage, error))?;
    let mut context = ConsoleContext {
        url: url.to_owned(),
        operator,
        token: String::new(),
        authority,
        proxy: options.proxy.clone(),
        host: None,
    };
    let signed_in: LoggedIn = ConsoleClient::new(&context)?.post("login", &Request { code: code.to_owned() }).await?;
    context.operator = signed_in.operator;
    context.token = signed_in.token;
    let path = context::path()?;
    let mut contexts = Contexts::load(&path)?;
    let name = options.context.as_deref().unwrap_or(CONTEXT);
    contexts.put(name, context);
    contexts.save(&path)?;
    print::say(format_args!("signed in to {url} as context {name:?}"));
    Ok(())
}
