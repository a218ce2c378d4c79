//! `muster token`: one-time tokens, with which hosts join.

use clap::Subcommand;
use muster_topics::name::Name;
use reqwest::Method;

use super::{Session, print};
use crate::{
    api::{CreatedToken, NewToken, Token},
    clock,
    failure::Failure,
};

/// Verbs on tokens.
#[derive(Subcommand, Clone, Debug)]
pub enum Verb {
    /// Make a token; on the new host, `muster agent --join TOKEN` uses it up
    Create {
        /// How long it may be used
        #[arg(long, default_value = "1h", value_name = "TIME")]
        ttl: humantime::Duration,
    },
    /// List tokens, used ones and unused ones
    #[command(alias = "list")]
    Ls,
    /// Make a token useless
    Revoke {
        /// Its id, as `muster token ls` shows it
        id: Name,
    },
}

/// Does it.
///
/// # Errors
/// If it cannot be done.
pub async fn run(verb: Verb, session: &Session) -> Result<(), Failure> {
    let now_ms = clock::now_ms();
    match verb {
        Verb::Create { ttl } => {
            let wanted = NewToken { ttl_s: Some(ttl.as_secs().max(1)) };
            let created: CreatedToken = session.client.post("tokens", &wanted).await?;
            match session.printer.format {
                print::Format::Table => {
                    print::write_out(&format!("{}\n", created.token))?;
                    print::say(format_args!("good for one host, and gone {}", print::age(created.expires_ms, now_ms)));
                    print::say("on that host: muster agent --join TOKEN");
                    Ok(())
                }
                _ => session.printer.one(&created, Vec::new),
            }
        }
        Verb::Ls => {
            let tokens: Vec<Token> = session.client.get("tokens", &[]).await?;
            let row = |token: &Token| {
                let state = match token.used {
                    Some((at_ms, host)) => format!("used {} by {host}", print::age(at_ms, now_ms)),
                    None if token.expires_ms <= now_ms => "expired".to_owned(),
                    None => format!("ends {}", print::age(token.expires_ms, now_ms)),
                };
                vec![token.id.to_string(), token.operator.to_string(), print::age(token.created_ms, now_ms), state]
            };
            session.printer.list(
                &tokens,
                &["ID", "OPERATOR", "MADE", "STATE"],
                row,
                "no tokens; `muster token create` makes one",
            )
        }
        Verb::Revoke { id } => {
            session.client.order(Method::DELETE, &format!("tokens/{id}")).await?;
            print::say(format_args!("token {id} is of no use any more"));
            Ok(())
        }
    }
}
