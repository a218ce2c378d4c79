//! The web pages, rendered on the server.
//!
//! A page is a function from a view struct to markup ([`view`]); a handler ([`page`]) reads through
//! [`Console`], fills the view and renders it. Every page works without scripts. With them, regions of
//! a page are fetched again (htmx, the page's own address with `part=`) when [`live`] reports a
//! change, and charts are drawn from [`chart`].
//!
//! Modules, in reading order:
//!
//! - [`guard`]: headers of every answer, and checks of a form's request; [`session`]: the session of a browser
//! - [`answer`]: pages, parts of pages and problems as HTTP answers; [`extract`]: parameters of addresses
//! - [`view`]: view structs and their markup; [`page`]: one module of handlers for each
//! - [`chart`]: measurements as charts and as a table; [`ledger`]: summaries of commands; [`live`]: server-sent events; [`assets`]
//!
//! **Invariant: without a session only the sign-in page and the assets are served**: every other
//! route, known or not, lies behind [`guard::signed_in`].
//!
//! **Invariant: a handler of a form runs only after origin and token were checked**; it gets
//! the fields only from [`guard::checked_form`].
//!
//! **Invariant: `view` does no IO and reads no clock**, and text is always escaped: maud's
//! `PreEscaped` is not used.

mod answer;
mod asset_server;
mod assets;
mod chart;
mod command_progress;
mod extract;
mod guard;
mod ledger;
mod live;
mod page;
mod session;
mod state;
pub(super) mod tallies;
#[cfg(test)]
mod tests;
mod view;

use state::Web;

use std::sync::Arc;

use axum::{
    Router,
    extract::FromRef,
    middleware,
    routing::{get, post},
};
use tokio::sync::Semaphore;

pub(super) use self::tallies::Tallies;
use self::{
    page::{
        alerts, backups, command, commands, confirm, content, deployment, host, hosts, join, rollout, rule, run,
        secret, sign_in, unit, units, vars,
    },
    session::Cookie,
};
use super::state::Console;

/// A unit that tests may change.
#[cfg(test)]
pub(super) fn sample_unit() -> muster_api::Unit {
    view::samples::unit("h", 0)
}

/// A host that tests may change.
#[cfg(test)]
pub(super) fn sample_host() -> muster_api::Host {
    view::samples::host("h", 0)
}

impl FromRef<Web> for Console {
    fn from_ref(web: &Web) -> Self {
        web.console.clone()
    }
}

/// Returns the pages, to be merged at `/`.
pub fn router(console: Console) -> Router {
    let cookie = Arc::new(Cookie::of(console.web_url()));
    let web = Web { console, cookie, followers: Arc::new(Semaphore::new(live::FOLLOWERS_MAX)) };
    Router::new()
        .route("/", get(hosts::show))
        .route("/host/{host}", get(host::show))
        .route("/charts", get(chart::fleet))
        .route("/host/{host}/charts", get(chart::host))
        .route("/host/{host}/label", post(host::label))
        .route("/host/{host}/cordon", post(host::cordon))
        .route("/host/{host}/drain", get(host::ask_drain))
        .route("/host/{host}/remove", post(host::remove))
        .route("/host/{host}/unit/{realm}/{name}", get(unit::show))
        .route("/host/{host}/unit/{realm}/{name}/charts", get(chart::unit))
        .route("/host/{host}/unit/{realm}/{name}/{action}", post(unit::act))
        .route("/units", get(units::show))
        .route("/deployments", get(deployment::list))
        .route("/deployments/changes", get(deployment::changes))
        .route("/deployments/confirm", get(confirm::ask).post(confirm::confirm))
        .route("/deployment/{realm}/{name}", get(deployment::show))
        .route("/deployment/{realm}/{name}/version/{number}", get(deployment::version))
        .route("/deployment/{realm}/{name}/rollback", get(deployment::ask_rollback).post(deployment::roll_back))
        .route("/deployment/{realm}/{name}/unit", post(deployment::attach))
        .route("/deployment/{realm}/{name}/removal", get(deployment::ask_removal).post(deployment::remove))
        .route("/rollouts", get(rollout::list))
        .route("/rollout/{realm}/{name}", get(rollout::show))
        .route("/rollout/{realm}/{name}/release", get(rollout::ask_release).post(rollout::release))
        .route("/rollout/{realm}/{name}/{verb}", get(rollout::ask).post(rollout::act))
        .route("/backups", get(backups::show))
        .route("/alerts", get(alerts::show))
        .route("/alerts/silence", post(alerts::silence))
        .route("/alerts/silence/{id}/remove", post(alerts::remove))
        .route("/alerts/rule", get(rule::show).post(rule::set))
        .route("/alerts/rule/remove", post(rule::remove))
        .route("/commands", get(commands::show))
        .route("/command/{id}", get(command::show))
        .route("/command/{id}/host/{host}/{stream}", get(command::download))
        .route("/run", get(run::show).post(run::submit))
        .route("/join", get(join::show).post(join::create))
        .route("/join/{id}/revoke", post(join::revoke))
        .route("/artifacts", get(content::artifacts))
        .route("/manifest/{sha256}", get(content::manifest))
        .route("/configs", get(content::configs))
        .route("/config/{id}/{version}", get(content::config))
        .route("/secrets", get(secret::list).post(secret::set))
        .route("/secret/{realm}/{name}", get(secret::show))
        .route("/secret/{realm}/{name}/upgrade", post(secret::give))
        .route("/secret/{realm}/{name}/remove", post(secret::remove))
        .route("/vars", get(vars::show).post(vars::set))
        .route("/vars/remove", post(vars::remove))
        .route("/sign-out", post(sign_in::sign_out))
        .route("/live", get(live::follow))
        .fallback(answer::no_such_page)
        .method_not_allowed_fallback(answer::wrong_method)
        // The last layer sees a request first: the session is checked before the form.
        .layer(middleware::from_fn(guard::checked_form))
        .layer(middleware::from_fn_with_state(web.clone(), guard::signed_in))
        .route("/sign-in", get(sign_in::show).post(sign_in::sign_in))
        .route("/assets/{hash}/{name}", get(assets::serve))
        .layer(middleware::from_fn(guard::headers))
        .with_state(web)
}
