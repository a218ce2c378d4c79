//! The pages of secrets.

use axum::{extract::State, http::StatusCode, response::Response};
use muster_api::{
    NewCommand, NewSecret, NewTarget,
    upgrade::{Offer, upgrade},
};
use muster_topics::name::{Name, NameError};

use crate::{
    error::Error,
    state::Console,
    web::{
        answer,
        extract::PageSegments,
        guard::FormFields,
        session::WebSession,
        view::secret::{SecretView, SecretsView, url},
    },
};

/// All secrets.
pub(in crate::web) async fn list(State(console): State<Console>, session: WebSession) -> Response {
    let view = async {
        let (secrets, realms) = (console.secrets().await?, console.realms().await?);
        Ok(SecretsView { secrets, realms, problem: None })
    };
    answer::or_problem(&session, view.await.map(|view| answer::page(&session, &view, None)))
}

/// One secret.
pub(in crate::web) async fn show(
    State(console): State<Console>,
    session: WebSession,
    PageSegments((realm, name)): PageSegments<(Name, Name)>,
) -> Response {
    let view = console.secret(&realm, &name).await;
    let view = view.map(|detail| SecretView { realm, name, detail, problem: None });
    answer::or_problem(&session, view.map(|view| answer::page(&session, &view, None)))
}

/// Sets a secret, and leads to its page, which offers it to the units that use it.
pub(in crate::web) async fn set(State(console): State<Console>, session: WebSession, fields: FormFields) -> Response {
    let answer = async {
        let wrong = |what: &str, error: NameError| Error::invalid("bad_secret", format!("the {what}: {error}"));
        let realm = fields.one("realm").parse().map_err(|error| wrong("realm", error))?;
        let name: Name = fields.one("name").parse().map_err(|error| wrong("name", error))?;
        // Browsers send the ends of lines as CRLF. A newline at the end is not part of the value, as on the command line.
        let value = fields.raw("value").replace("\r\n", "\n");
        let value = value.strip_suffix('\n').unwrap_or(&value).to_owned();
        let set = console.set_secret(&session.operator, NewSecret { realm, name, value }).await?;
        Ok::<_, Error>(answer::see(&url(&set.secret.realm, &set.secret.name)))
    };
    match answer.await {
        Err(error) if error.status < 500 => {
            let (Ok(secrets), Ok(realms)) = (console.secrets().await, console.realms().await) else {
                return answer::or_problem(&session, Err(error));
            };
            let status = StatusCode::from_u16(error.status).unwrap_or(StatusCode::BAD_REQUEST);
            let view = SecretsView { secrets, realms, problem: Some(error.problem) };
            answer::html(status, session.frame().page(&view))
        }
        answer => answer::or_problem(&session, answer),
    }
}

/// Gives the newest version to all units that have an earlier one.
pub(in crate::web) async fn give(
    State(console): State<Console>,
    session: WebSession,
    PageSegments((realm, name)): PageSegments<(Name, Name)>,
    fields: FormFields,
) -> Response {
    let answer = async {
        let detail = console.secret(&realm, &name).await?;
        let secret = detail.secret.filter(|secret| secret.version.to_string() == fields.one("version"));
        let secret = secret.ok_or_else(|| {
            Error::conflict("changed_meanwhile", "the secret has changed since the page was loaded")
                .hint("load the page again")
        })?;
        let offer = Offer::default().with_secrets([secret.newest()]);
        let behind = detail.users.iter().filter(|user| user.version < secret.version);
        let mut commands = Vec::new();
        for user in behind {
            let unit = console.unit(user.host, &user.unit).await?;
            if let Some(upgrade) = upgrade(&unit.unit, &unit.desired, &offer) {
                let target = NewTarget::Hosts(vec![unit.host.to_string()]);
                commands.push(NewCommand { target, expires_in_ms: None, verb: upgrade.verb, copied_from: None });
            }
        }
        // A unit that its host was not given does not keep the others from theirs.
        let mut refused = None;
        for command in commands {
            match console.submit(&session.operator, command).await {
                Err(error) if error.problem.code == "not_given" => refused = refused.or(Some(error)),
                submitted => drop(submitted?),
            }
        }
        match refused {
            Some(error) => Err(error.consequence("all units that were given to their hosts are upgraded")),
            None => Ok(answer::see("/commands")),
        }
    };
    answer::or_problem(&session, answer.await)
}

/// Removes a secret.
pub(in crate::web) async fn remove(
    State(console): State<Console>,
    session: WebSession,
    PageSegments((realm, name)): PageSegments<(Name, Name)>,
) -> Response {
    let answer = console.remove_secret(&session.operator, &realm, &name).await.map(|()| answer::see("/secrets"));
    answer::or_problem(&session, answer)
}
