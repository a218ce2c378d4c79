//! `muster token`: one-time tokens for joining.

use clap::Subcommand;
use muster_api::{CreatedToken, Host, NewToken, NewTokens, TOKENS_MAX, Token};
use muster_base::{clock, failure::Failure};
use muster_topics::name::HostId;
use reqwest::Method;

use super::{client::ConsoleClient, print, session::CliSession};
use muster_api::host_names::HostNames;

/// Verbs on tokens.
#[derive(Subcommand, Clone, Debug)]
pub enum TokenVerb {
    /// Create a token, for `muster agent --join TOKEN` on a new host
    Create {
        /// How long it lasts
        #[arg(long = "for", default_value = "1h", value_name = "TIME")]
        lifetime: humantime::Duration,
        /// Create so many, each for one host
        #[arg(long, default_value_t = 1, value_name = "N")]
        count: u32,
        /// Let this host join again with another key
        ///
        /// For one that was revoked, or has lost its folder.
        #[arg(long, value_name = "HOST", conflicts_with = "count")]
        replace: Option<String>,
    },
    /// List tokens, used and unused
    Ls,
    /// Revoke a token
    Revoke {
        /// Id, or the beginning of it
        ///
        /// `muster token ls` shows it.
        id: String,
    },
}

/// Runs the verb.
///
/// # Errors
/// If it fails.
pub async fn run(verb: TokenVerb, session: &CliSession) -> Result<(), Failure> {
    let now_ms = clock::now_ms();
    match verb {
        TokenVerb::Create { lifetime, count, replace } => {
            let for_s = Some(lifetime.as_secs().max(1));
            if count != 1 {
                return many(session, count, for_s).await;
            }
            let created: CreatedToken = session.client.post("tokens", &NewToken { for_s, replace }).await?;
            match session.printer.format {
                print::PrintFormat::Table => {
                    print::write_out(&format!("{}\n", created.token))?;
                    print::say(format_args!("good for one host, and gone {}", print::age(created.expires_ms, now_ms)));
                    print::say(format_args!("on the other machine: {}", created.command));
                    warn(&created);
                    Ok(())
                }
                _ => session.printer.one(&created, Vec::new),
            }
        }
        TokenVerb::Ls => {
            let tokens: Vec<Token> = session.client.get("tokens", &[]).await?;
            let names_any = tokens.iter().any(|token| token.used.is_some() || token.replaces.is_some());
            let hosts: Vec<Host> = if names_any { session.client.get("hosts", &[]).await? } else { Vec::new() };
            let names = HostNames::new(hosts.iter().map(|host| (host.id, host.hostname.as_str())));
            // A removed host is only known by its id.
            let name = |id: HostId| {
                let host = hosts.iter().find(|host| host.id == id);
                host.map_or_else(|| id.to_string(), |host| names.show(id, &host.hostname))
            };
            let row = |token: &Token| {
                let state = match token.used {
                    Some((at_ms, host)) => format!("used {} by {}", print::age(at_ms, now_ms), name(host)),
                    None if token.expires_ms <= now_ms => "expired".to_owned(),
                    None => format!("ends {}", print::age(token.expires_ms, now_ms)),
                };
                let state = match token.replaces {
                    Some(host) if token.used.is_none() => format!("{state}, for {}", name(host)),
                    _ => state,
                };
                vec![token.id.to_string(), token.operator.to_string(), print::age(token.created_ms, now_ms), state]
            };
            session.printer.list(
                &tokens,
                &["ID", "OPERATOR", "CREATED", "STATE"],
                row,
                "no tokens; `muster token create` makes one",
            )
        }
        TokenVerb::Revoke { id } => {
            session.client.order(Method::DELETE, &format!("tokens/{id}")).await?;
            print::say(format_args!("token {id} is revoked"));
            Ok(())
        }
    }
}

/// Reports why another machine cannot use a token.
fn warn(created: &CreatedToken) {
    if let Some(warning) = &created.warning {
        print::say(format_args!("warning: {warning}"));
    }
}

/// Prints tokens, one per line.
async fn many(session: &CliSession, count: u32, for_s: Option<u64>) -> Result<(), Failure> {
    let made = make(&session.client, count, for_s).await?;
    let lines: String = made.iter().map(|created| format!("{}\n", created.token)).collect();
    made.first().into_iter().for_each(warn);
    match session.printer.format {
        print::PrintFormat::Table => print::write_out(&lines),
        _ => session.printer.data(&made),
    }
}

/// Creates any number of tokens.
///
/// # Errors
/// If the console cannot be reached, or refuses the request.
pub async fn make(client: &ConsoleClient, count: u32, for_s: Option<u64>) -> Result<Vec<CreatedToken>, Failure> {
    let mut made: Vec<CreatedToken> = Vec::new();
    // At least one request, so that the console reports an invalid number.
    loop {
        let left = count - u32::try_from(made.len()).unwrap_or(count).min(count);
        let wanted = NewTokens { count: left.min(TOKENS_MAX), for_s };
        made.extend(client.post::<_, Vec<CreatedToken>>("token-batches", &wanted).await?);
        if made.len() >= count as usize {
            return Ok(made);
        }
    }
}
