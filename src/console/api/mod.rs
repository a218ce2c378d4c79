//! The REST API: one table of routes, from which both the router and the OpenAPI document are made,
//! so that they cannot differ.
//!
//! Modules: [`extract`] (parts of a request), [`handlers`], [`content`] and [`alerts`] (one
//! function for each route), [`events`] (progress of a command), [`openapi`] (the
//! document, which a test compares with the committed one), `reference` (a page for people, likewise).
//!
//! **Invariant: unless the table marks a route as open, the operator is authenticated before
//! anything else of the request is read.**

mod alerts;
mod content;
mod deployments;
mod events;
pub(super) mod extract;
mod handlers;
mod openapi;
#[cfg(test)]
mod reference;
mod rollouts;
mod route;

use axum::{
    Extension, Router,
    extract::{Request, State},
    http::{HeaderValue, StatusCode, header},
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::{any, delete, get, post},
};
use muster_api::authority::{AuthorityStatus, BeginRotation, FinishRotation};
use muster_topics::{manifest::Manifest, name::Name};

use self::openapi::{BodyShape, Parameter};
use super::{error::Error, notice, server::CallerConnection, state::Console};

const HOST: Parameter = Parameter {
    name: "host",
    about: "A host's id, a hostname that only one has, or the beginning of an id that no other one has.",
    whole: false,
};
const SELECT_HOSTS: Parameter = Parameter {
    name: "select",
    about: "Those of hosts that this expression picks, such as `label.site=north and not fact.cpus<4`.",
    whole: false,
};
const ALL_BUT: Parameter = Parameter { name: "limit", about: "How many at most; all if left out.", whole: true };
const LIMIT: Parameter =
    Parameter { name: "limit", about: "How many at most; 50 if left out, and up to 500.", whole: true };

/// Returns all routes.
fn routes() -> Vec<Route> {
    let mut routes = fleet_routes();
    routes.extend(backup_routes());
    routes.extend(realm_routes());
    routes.extend(content_routes());
    routes.extend(secret_routes());
    routes.extend(deployment_routes());
    routes.extend(rollout_routes());
    routes.extend(series_routes());
    routes.extend(alert_routes());
    routes
}

/// The console's clock, and its backups.
fn backup_routes() -> Vec<Route> {
    use Method::{Get, Post};
    use handlers as h;
    vec![
        Route::new(Get, "/v1/clock", "The console's clock, and whether it is confirmed.", get(h::clock))
            .gives(BodyShape::of::<muster_api::ConsoleClock>()),
        Route::new(Post, "/v1/clock", "Confirms that the console's clock is right.", post(h::confirm_clock))
            .takes(BodyShape::of::<muster_api::ConfirmClock>())
            .gives(BodyShape::of::<muster_api::ConsoleClock>()),
        Route::new(Get, "/v1/backups", "How backups of the console are made, and the last ones.", get(h::backups))
            .gives(BodyShape::of::<muster_api::Backups>()),
        Route::new(
            Get,
            "/v1/backups/new",
            "Makes a backup, encrypted to the public keys of the console's configuration.",
            get(h::new_backup),
        )
        .query(&[
            Parameter { name: "artifacts", about: "`true` for one with the artifacts.", whole: false },
            Parameter { name: "series", about: "`true` for one with the measurements.", whole: false },
        ])
        .gives(BodyShape::Bytes),
    ]
}

/// Hosts and commands.
fn fleet_routes() -> Vec<Route> {
    use Method::{Delete, Get, Post};
    use handlers as h;
    vec![
        Route::new(Get, "/openapi.json", "This document.", get(h::openapi)).open().gives(BodyShape::Any),
        Route::new(Post, "/v1/login", "Exchanges a one-time sign-in code for a token.", post(h::login))
            .open()
            .takes(BodyShape::of::<muster_api::Login>())
            .gives(BodyShape::of::<muster_api::LoggedIn>()),
        Route::new(Get, "/v1/sign-ins", "Browsers and programs that are signed in, newest first.", get(h::sign_ins))
            .gives(BodyShape::list::<muster_api::SignIn>()),
        Route::new(Delete, "/v1/sign-ins/{id}", "Revokes a sign-in at once.", delete(h::revoke_sign_in)),
        Route::new(Get, "/v1/status", "Whether the console reaches its broker, and how many hosts are online.", get(h::status))
            .gives(BodyShape::of::<muster_api::Status>()),
        Route::new(
            Get,
            "/v1/installation",
            "The installation at a glance: numbers of hosts, units and alerts, what is not done, the last backup, the clock.",
            get(h::installation),
        )
        .gives(BodyShape::of::<muster_api::Installation>()),
        Route::new(Get, "/v1/hosts", "Hosts: all, or those that an expression picks.", get(h::hosts))
            .query(&[
                SELECT_HOSTS,
                Parameter {
                    name: "sort",
                    about: "`hostname`, as if left out; `presence` (away first), `heard` (the last news first), `units` (the most first), \
                            or `joined` (the newest first).",
                    whole: false,
                },
                ALL_BUT,
            ])
            .gives(BodyShape::list::<muster_api::Host>()),
        Route::new(Get, "/v1/hosts/{host}", "One host.", get(h::host)).gives(BodyShape::of::<muster_api::Host>()),
        Route::new(
            Delete,
            "/v1/hosts/{host}",
            "Removes an offline host and all that is recorded of it; it is no longer a member.",
            delete(h::remove_host),
        ),
        Route::new(Get, "/v1/hosts/{host}/labels", "The labels of a host, with where each comes from.", get(h::host_labels))
            .gives(BodyShape::of::<muster_api::LabelledHost>()),
        Route::new(
            Post,
            "/v1/host-labels",
            "Gives hosts labels and takes labels back; offline hosts are told when they are online again.",
            post(h::label_hosts),
        )
        .takes(BodyShape::of::<muster_api::LabelHosts>())
        .gives(BodyShape::list::<muster_api::LabelledHost>()),
        Route::new(Post, "/v1/hosts/{host}/refresh", "Asks a host to report its whole state.", post(h::refresh)),
        Route::new(
            Post,
            "/v1/hosts/{host}/revoke",
            "Revokes all certificates of a host. It may join again with a new token.",
            post(h::revoke_host),
        ),
        Route::new(Get, "/v1/hosts/{host}/units/{realm}/{name}", "One unit of a host.", get(h::unit))
            .gives(BodyShape::of::<muster_api::Unit>()),
        Route::new(
            Get,
            "/v1/hosts/{host}/units/{realm}/{name}/document",
            "A document that describes a unit's present desired state, for `/v1/apply`; secrets are masked, and a mask keeps the present value.",
            get(h::unit_document),
        )
        .gives(BodyShape::Any),
        Route::new(
            Get,
            "/v1/hosts/{host}/units/{realm}/{name}/tasks",
            "The last tasks of a unit, what its changes owe, and the log of one task: the host is asked, by a command.",
            get(h::unit_tasks),
        )
        .query(&[
            Parameter { name: "log", about: "The number of the task whose log to return.", whole: true },
            Parameter {
                name: "from",
                about: "From which position of the log on: the `end` of what was read before.",
                whole: true,
            },
        ])
        .gives(BodyShape::of::<muster_topics::task::UnitTasks>()),
        Route::new(
            Post,
            "/v1/hosts/{host}/units/{realm}/{name}/differences",
            "How a unit differs from what it would be, field by field; secrets are masked.",
            post(h::unit_differences),
        )
        .takes(BodyShape::of::<muster_api::CompareUnit>())
        .gives(BodyShape::list::<muster_api::FieldDifference>()),
        Route::new(
            Post,
            "/v1/apply",
            "Applies documents of units, or returns what that would change. Nothing is changed if any document is wrong.",
            post(h::apply),
        )
        .takes(BodyShape::of::<muster_api::Apply>())
        .gives(BodyShape::of::<muster_api::Applied>()),
        Route::new(Get, "/v1/units", "Units: all, or those that match.", get(h::units))
            .query(&[
                HOST,
                Parameter { name: "kind", about: "Those of this kind: `yuno`, `container`, `files` or `packages`.", whole: false },
                Parameter {
                    name: "select",
                    about: "Those that this expression picks, such as `realm=prod and phase=failed`.",
                    whole: false,
                },
                Parameter {
                    name: "sort",
                    about: "`host`, as if left out; `unit`, `phase` (failures first), or `since` (what changed last first).",
                    whole: false,
                },
                ALL_BUT,
            ])
            .gives(BodyShape::list::<muster_api::Unit>()),
        Route::new(Get, "/v1/tokens", "One-time passwords for joining, newest first.", get(h::tokens))
            .gives(BodyShape::list::<muster_api::Token>()),
        Route::new(Post, "/v1/tokens", "Makes a one-time password for a host to join.", post(h::create_token))
            .takes(BodyShape::of::<muster_api::NewToken>())
            .gives(BodyShape::of::<muster_api::CreatedToken>()),
        Route::new(
            Post,
            "/v1/token-batches",
            "Makes one-time passwords for many hosts to join.",
            post(h::create_tokens),
        )
        .takes(BodyShape::of::<muster_api::NewTokens>())
        .gives(BodyShape::list::<muster_api::CreatedToken>()),
        Route::new(Delete, "/v1/tokens/{id}", "Revokes a one-time password.", delete(h::revoke_token)),
        Route::new(Get, "/v1/authority", "The authority's keys and root certificates, and how far their rotation is.", get(h::authority))
            .gives(BodyShape::of::<AuthorityStatus>()),
        Route::new(
            Post,
            "/v1/authority/rotation",
            "Begins a rotation: makes a new key or root certificate, and tells all hosts of it. One that is under way continues.",
            post(h::begin_rotation),
        )
        .takes(BodyShape::of::<BeginRotation>())
        .gives(BodyShape::of::<AuthorityStatus>()),
        Route::new(
            Post,
            "/v1/authority/rotation/finish",
            "Finishes the rotation: the new key signs from now on; a new root enters its next stage. Refused while hosts lack \
             it, unless they are named.",
            post(h::finish_rotation),
        )
        .takes(BodyShape::of::<FinishRotation>())
        .gives(BodyShape::of::<AuthorityStatus>()),
        Route::new(
            Delete,
            "/v1/authority/rotation",
            "Cancels the rotation: hosts drop the new key or root.",
            delete(h::cancel_rotation),
        )
        .gives(BodyShape::of::<AuthorityStatus>()),
        Route::new(Get, "/v1/commands", "Commands, newest first.", get(h::commands))
            .query(&[HOST, LIMIT])
            .gives(BodyShape::list::<muster_api::Command>()),
        Route::new(Post, "/v1/commands", "Signs, stores and publishes a command.", post(h::submit))
            .takes(BodyShape::of::<muster_api::NewCommand>())
            .gives(BodyShape::of::<muster_api::Command>()),
        Route::new(Get, "/v1/commands/{id}", "One command.", get(h::command)).gives(BodyShape::of::<muster_api::Command>()),
        Route::new(
            Get,
            "/v1/commands/{id}/events",
            "Follows a command: server-sent events from its beginning, each a JSON document, until `end`.",
            get(h::command_events),
        )
        .gives(BodyShape::events::<muster_api::CommandEvent>()),
    ]
}

/// Realms.
fn realm_routes() -> Vec<Route> {
    use Method::{Delete, Get, Post};
    use handlers as h;
    let one = |method, about, handler| Route::new(method, "/v1/realms/{realm}", about, handler);
    vec![
        Route::new(Get, "/v1/realms", "Realms, by name.", get(h::realms)).gives(BodyShape::list::<muster_api::Realm>()),
        Route::new(Post, "/v1/realms", "Makes a realm, and tells all hosts.", post(h::create_realm))
            .takes(BodyShape::of::<muster_api::NewRealm>())
            .gives(BodyShape::of::<muster_api::RealmChanged>()),
        one(Get, "One realm.", get(h::realm)).gives(BodyShape::of::<muster_api::Realm>()),
        one(Post, "Changes a realm, and tells all hosts.", post(h::update_realm))
            .takes(BodyShape::of::<muster_api::RealmFields>())
            .gives(BodyShape::of::<muster_api::RealmChanged>()),
        one(Delete, "Removes a realm that has no units.", delete(h::remove_realm))
            .gives(BodyShape::of::<muster_api::RealmRemoved>()),
    ]
}

/// Artifacts, manifests and configs.
fn content_routes() -> Vec<Route> {
    use Method::{Delete, Get, Post};
    use content as h;
    vec![
        Route::new(Get, "/v1/artifacts", "Artifacts, by role, newest first.", get(h::artifacts))
            .query(&[
                Parameter { name: "role", about: "Those of this role.", whole: false },
                Parameter { name: "version", about: "Those of this version.", whole: false },
            ])
            .gives(BodyShape::list::<muster_api::Artifact>()),
        Route::new(
            Post,
            "/v1/artifacts",
            "Creates an artifact; the same one again changes nothing.",
            post(h::add_artifact),
        )
        .query(&[
            Parameter { name: "role", about: "What it is for. (Required.)", whole: false },
            Parameter { name: "version", about: "Which one of the role. (Required.)", whole: false },
            Parameter { name: "manifest", about: "The SHA-256 of its manifest, which was added before.", whole: false },
        ])
        .takes(BodyShape::Bytes)
        .gives(BodyShape::of::<muster_api::Artifact>()),
        Route::new(Post, "/v1/artifacts/gc", "Removes every artifact that no unit uses.", post(h::collect))
            .takes(BodyShape::of::<muster_api::Collect>())
            .gives(BodyShape::of::<muster_api::Collected>()),
        Route::new(Get, "/v1/artifacts/{artifact}", "One artifact, by its SHA-256.", get(h::artifact))
            .gives(BodyShape::of::<muster_api::Artifact>()),
        Route::new(
            Delete,
            "/v1/artifacts/{artifact}/{version}",
            "Removes an artifact, by its role and version, unless a unit needs it.",
            delete(h::remove_artifact),
        ),
        Route::new(Post, "/v1/manifests", "Creates an artifact's manifest.", post(h::add_manifest))
            .takes(BodyShape::of::<Manifest>())
            .gives(BodyShape::of::<muster_api::StoredManifest>()),
        Route::new(Get, "/v1/manifests/{sha256}", "One manifest.", get(h::manifest)).gives(BodyShape::of::<Manifest>()),
        Route::new(Get, "/v1/configs", "All configs, without their content.", get(h::configs))
            .gives(BodyShape::list::<muster_api::Config>()),
        Route::new(Post, "/v1/configs", "Creates a config; the same one again changes nothing.", post(h::add_config))
            .takes(BodyShape::of::<muster_api::NewConfig>())
            .gives(BodyShape::of::<muster_api::Config>()),
        Route::new(
            Get,
            "/v1/configs/{id}/{version}",
            "One config, with its content; its secrets are masked.",
            get(h::config),
        )
        .gives(BodyShape::of::<muster_api::Config>()),
        Route::new(
            Delete,
            "/v1/configs/{id}/{version}",
            "Removes a config, unless a unit needs it.",
            delete(h::remove_config),
        ),
        Route::new(
            Get,
            "/v1/configs/{id}/{version}/diff",
            "In what another config differs from this one; secrets are masked.",
            get(h::config_differences),
        )
        .query(&[Parameter { name: "to", about: "The other one: ID@VERSION. (Required.)", whole: false }])
        .gives(BodyShape::list::<muster_api::ConfigDifference>()),
    ]
}

/// Secrets that units use by name.
fn secret_routes() -> Vec<Route> {
    use Method::{Delete, Get, Post};
    use content as h;
    vec![
        Route::new(Get, "/v1/secrets", "All secrets that have a value, without it.", get(h::secrets))
            .gives(BodyShape::list::<muster_api::Secret>()),
        Route::new(
            Post,
            "/v1/secrets",
            "Sets a secret: a new version, unless it has that value. Units get it with their next change.",
            post(h::set_secret),
        )
        .takes(BodyShape::of::<muster_api::NewSecret>())
        .gives(BodyShape::of::<muster_api::SecretSet>()),
        Route::new(
            Get,
            "/v1/secrets/{realm}/{name}",
            "One secret: its versions, the units that use it, and the configs that name it. No value.",
            get(h::secret),
        )
        .gives(BodyShape::of::<muster_api::SecretDetail>()),
        Route::new(
            Delete,
            "/v1/secrets/{realm}/{name}",
            "Erases all values of a secret, unless a unit needs one.",
            delete(h::remove_secret),
        ),
        Route::new(
            Post,
            "/v1/secrets/rotate-key",
            "Makes a new key for secrets at rest, and encrypts all values with it.",
            post(h::rotate_secret_key),
        )
        .gives(BodyShape::of::<muster_api::KeyRotation>()),
    ]
}

/// Deployments, variables, and hosts that get no deployments.
fn deployment_routes() -> Vec<Route> {
    use Method::{Delete, Get, Post};
    use deployments as h;
    let mut routes = one_deployment_routes();
    routes.extend([
        Route::new(Get, "/v1/deployments", "Deployments, by name, with how far their hosts are.", get(h::deployments))
            .gives(BodyShape::list::<muster_api::Deployment>()),
        Route::new(
            Post,
            "/v1/deployments",
            "Applies documents of deployments, or returns what that would change. Nothing is changed if any document is wrong.",
            post(h::apply),
        )
        .takes(BodyShape::of::<muster_api::ApplyDeployments>())
        .gives(BodyShape::of::<muster_api::AppliedDeployments>()),
        Route::new(
            Post,
            "/v1/plans",
            "Has hosts compute what documents would change there, and changes nothing. It continues after the response.",
            post(h::plan),
        )
        .takes(BodyShape::of::<muster_api::NewPlan>())
        .gives(BodyShape::of::<muster_api::Plan>()),
        Route::new(Get, "/v1/plans/{id}", "A plan, as far as hosts have answered.", get(h::one_plan))
            .gives(BodyShape::of::<muster_api::Plan>()),
        Route::new(
            Post,
            "/v1/deployments/confirm",
            "Confirms hosts that have a document which this console did not make, or returns what that would change.",
            post(h::confirm),
        )
        .takes(BodyShape::of::<muster_api::ConfirmDocuments>())
        .gives(BodyShape::of::<muster_api::ConfirmedDocuments>()),
        Route::new(
            Get,
            "/v1/deployments/sync",
            "The result of the last comparison of hosts with their desired state.",
            get(h::sync),
        )
        .gives(BodyShape::of::<muster_api::SyncReport>()),
        Route::new(
            Get,
            "/v1/changes",
            "What operators have changed of deployments, cordons and variables, the newest first.",
            get(h::changes),
        )
        .query(&[
            Parameter { name: "subject", about: "Only changes of this deployment.", whole: false },
            Parameter { name: "limit", about: "How many at most (100; no more than 1,000).", whole: true },
        ])
        .gives(BodyShape::list::<muster_api::Change>()),
        Route::new(Get, "/v1/host-cordons", "Hosts that get no new deployments, or none.", get(h::cordons))
            .gives(BodyShape::list::<muster_api::HostCordon>()),
        Route::new(
            Post,
            "/v1/host-cordons",
            "Keeps new deployments from hosts, has hosts remove theirs, or opens hosts again.",
            post(h::cordon),
        )
        .takes(BodyShape::of::<muster_api::CordonHosts>())
        .gives(BodyShape::list::<muster_api::HostCordon>()),
        Route::new(Get, "/v1/vars", "Variables of hosts, by layer and name.", get(h::vars))
            .gives(BodyShape::list::<muster_api::Var>()),
        Route::new(Post, "/v1/vars", "Sets a variable in a layer.", post(h::set_var))
            .takes(BodyShape::of::<muster_api::NewVar>())
            .gives(BodyShape::of::<muster_api::Var>()),
        Route::new(Delete, "/v1/vars", "Removes a variable from a layer.", delete(h::remove_var)).query(&[
            Parameter {
                name: "layer",
                about: "`fleet`, `realm:NAME`, `label:NAME=VALUE` or `host:HOST`. (Required.)",
                whole: false,
            },
            Parameter { name: "name", about: "The variable's name. (Required.)", whole: false },
        ]),
    ]);
    routes
}

/// One deployment.
fn one_deployment_routes() -> Vec<Route> {
    use Method::{Delete, Get, Post};
    use deployments as h;
    vec![
        Route::new(
            Get,
            "/v1/deployments/{realm}/{name}",
            "One deployment: its document, its units, and how far each host is.",
            get(h::deployment),
        )
        .gives(BodyShape::of::<muster_api::DeploymentDetail>()),
        Route::new(
            Delete,
            "/v1/deployments/{realm}/{name}",
            "Removes a deployment: its hosts remove its units, or keep them.",
            delete(h::remove),
        )
        .query(&[
            Parameter { name: "purge", about: "`true` to remove the units' data, too.", whole: false },
            Parameter { name: "keep", about: "`true` to leave the units on their hosts.", whole: false },
            Parameter { name: "dry_run", about: "`true` to only return what would be removed.", whole: false },
        ])
        .gives(BodyShape::of::<muster_api::RemovedDeployment>()),
        Route::new(
            Get,
            "/v1/deployments/{realm}/{name}/history",
            "All versions of a deployment, newest first.",
            get(h::history),
        )
        .gives(BodyShape::list::<muster_api::DeploymentVersionInfo>()),
        Route::new(
            Get,
            "/v1/deployments/{realm}/{name}/versions/{number}",
            "One version of a deployment; values of environments are masked.",
            get(h::version),
        )
        .gives(BodyShape::of::<muster_api::DeploymentVersionDetail>()),
        Route::new(
            Get,
            "/v1/deployments/{realm}/{name}/differences",
            "How two versions of a deployment differ, field by field; secrets are masked.",
            get(h::differences),
        )
        .query(&[
            Parameter { name: "from", about: "One version; the one before the other if left out.", whole: true },
            Parameter { name: "to", about: "The other version; the present one if left out.", whole: true },
        ])
        .gives(BodyShape::of::<muster_api::DeploymentDifferences>()),
        Route::new(
            Post,
            "/v1/deployments/{realm}/{name}/rollback",
            "Makes a new version with the content of an earlier one, or returns what that would change.",
            post(h::roll_back),
        )
        .takes(BodyShape::of::<muster_api::RollBack>())
        .gives(BodyShape::of::<muster_api::AppliedDeployment>()),
        Route::new(
            Post,
            "/v1/deployments/{realm}/{name}/adopt",
            "Has a deployment take over a unit that was made by a verb, or that was detached.",
            post(h::adopt),
        )
        .takes(BodyShape::of::<muster_api::UnitOnHosts>())
        .gives(BodyShape::list::<muster_api::NamedHost>()),
        Route::new(
            Post,
            "/v1/deployments/{realm}/{name}/detach",
            "Detaches a unit from its deployment on some hosts; verbs change it from then on.",
            post(h::detach),
        )
        .takes(BodyShape::of::<muster_api::UnitOnHosts>())
        .gives(BodyShape::list::<muster_api::NamedHost>()),
        Route::new(
            Get,
            "/v1/deployments/{realm}/{name}/events",
            "Follows a deployment: server-sent events from the present state, each a JSON document, until `end`.",
            get(h::events),
        )
        .gives(BodyShape::events::<muster_api::DeploymentEvent>()),
    ]
}

/// Rollouts of deployments.
fn rollout_routes() -> Vec<Route> {
    use Method::{Get, Post};
    use rollouts as h;
    const VERSION: Parameter =
        Parameter { name: "version", about: "The number of the version; the last one if left out.", whole: true };
    vec![
        Route::new(Get, "/v1/rollouts", "The last rollout of each deployment.", get(h::rollouts))
            .gives(BodyShape::list::<muster_api::Rollout>()),
        Route::new(
            Get,
            "/v1/rollouts/{realm}/{name}",
            "One rollout: its waves, its hosts by outcome, and why hosts wait.",
            get(h::rollout),
        )
        .query(&[VERSION])
        .gives(BodyShape::of::<muster_api::RolloutDetail>()),
        Route::new(
            Get,
            "/v1/rollouts/{realm}/{name}/history",
            "All rollouts of a deployment, newest first.",
            get(h::history),
        )
        .gives(BodyShape::list::<muster_api::Rollout>()),
        Route::new(
            Get,
            "/v1/rollouts/{realm}/{name}/hosts",
            "A page of the hosts of a rollout, by name, each with its outcome or what it waits for.",
            get(h::hosts),
        )
        .query(&[
            VERSION,
            Parameter { name: "outcome", about: "Only hosts with this outcome.", whole: false },
            Parameter { name: "waits", about: "Only hosts that wait for this.", whole: false },
            Parameter { name: "wave", about: "Only hosts that were admitted in this wave.", whole: true },
            Parameter { name: "after", about: "How many to leave out, which earlier pages had.", whole: true },
            Parameter { name: "limit", about: "How many at most; 1000 if left out, and up to 1000.", whole: true },
        ])
        .gives(BodyShape::of::<muster_api::RolloutHosts>()),
        Route::new(
            Post,
            "/v1/rollouts/{realm}/{name}/pause",
            "Pauses a rollout: no further host begins.",
            post(h::pause),
        )
        .takes(BodyShape::of::<muster_api::RolloutVersion>())
        .gives(BodyShape::of::<muster_api::Rollout>()),
        Route::new(
            Post,
            "/v1/rollouts/{realm}/{name}/resume",
            "Resumes a rollout: hosts begin again.",
            post(h::resume),
        )
        .takes(BodyShape::of::<muster_api::RolloutVersion>())
        .gives(BodyShape::of::<muster_api::Rollout>()),
        Route::new(Post, "/v1/rollouts/{realm}/{name}/promote", "Approves the next wave.", post(h::promote))
            .takes(BodyShape::of::<muster_api::RolloutVersion>())
            .gives(BodyShape::of::<muster_api::Rollout>()),
        Route::new(Post, "/v1/rollouts/{realm}/{name}/retry", "Retries the hosts that failed.", post(h::retry))
            .takes(BodyShape::of::<muster_api::RolloutVersion>())
            .gives(BodyShape::of::<muster_api::Rollout>()),
        Route::new(
            Post,
            "/v1/rollouts/{realm}/{name}/cancel",
            "Cancels a rollout: hosts keep what they have, or are rolled back.",
            post(h::cancel),
        )
        .takes(BodyShape::of::<muster_api::CancelRollout>())
        .gives(BodyShape::of::<muster_api::Rollout>()),
        Route::new(
            Post,
            "/v1/rollouts/{realm}/{name}/release",
            "Counts a host as available again that failed or was lost.",
            post(h::release),
        )
        .takes(BodyShape::of::<muster_api::ReleaseHost>())
        .gives(BodyShape::of::<muster_api::RolloutHost>()),
        Route::new(
            Get,
            "/v1/rollouts/{realm}/{name}/events",
            "Follows a rollout: server-sent events, each the whole rollout as a JSON document, until `end`.",
            get(h::events),
        )
        .gives(BodyShape::events::<muster_api::RolloutEvent>()),
    ]
}

/// Measurements.
fn series_routes() -> Vec<Route> {
    use Method::Get;
    use handlers as h;
    vec![
        Route::new(
            Get,
            "/v1/series",
            "Measurements over time; with neither start nor end, the last value of each series within five minutes.",
            get(h::series),
        )
        .query(&[
            Parameter {
                name: "selector",
                about: "Such as `muster_host_cpu_busy_ratio{host=\"…\"}`. (Required.)",
                whole: false,
            },
            Parameter { name: "start_ms", about: "Where the range starts.", whole: true },
            Parameter { name: "end_ms", about: "Where the range ends; now if left out.", whole: true },
            Parameter {
                name: "points",
                about: "How many points of each series at most; 500 if left out.",
                whole: true,
            },
        ])
        .gives(BodyShape::of::<muster_api::SeriesAnswer>()),
        Route::new(Get, "/v1/series/export", "All measurements of a range of time, as text.", get(h::export_series))
            .query(&[
                Parameter {
                    name: "selector",
                    about: "Such as `muster_host_cpu_busy_ratio{host=\"…\"}`. (Required.)",
                    whole: false,
                },
                Parameter {
                    name: "start_ms",
                    about: "Where the range starts; at the oldest point if left out.",
                    whole: true,
                },
                Parameter { name: "end_ms", about: "Where the range ends; now if left out.", whole: true },
                Parameter {
                    name: "format",
                    about: "`lines` for line protocol with times in milliseconds, as if left out, or `csv`.",
                    whole: false,
                },
            ])
            .gives(BodyShape::Text),
        Route::new(
            Get,
            "/v1/metric-stores",
            "Time-series stores elsewhere, and how they are fed.",
            get(h::metric_stores),
        )
        .gives(BodyShape::list::<muster_api::MetricStore>()),
    ]
}

/// Alerts, rules and silences.
fn alert_routes() -> Vec<Route> {
    use Method::{Delete, Get, Post};
    use alerts as h;
    const SORT: Parameter = Parameter {
        name: "sort",
        about: "`since`, as if left out (those that began last first); `severity` (the worst first), or `host`.",
        whole: false,
    };
    const RULE: Parameter = Parameter { name: "rule", about: "Those of this rule.", whole: false };
    const LIMIT: Parameter =
        Parameter { name: "limit", about: "How many at most; 500 if left out, and up to 1,000.", whole: true };
    vec![
        Route::new(Get, "/v1/alerts", "Active alerts, those that began last first.", get(h::alerts))
            .query(&[HOST, SELECT_HOSTS, RULE, SORT, LIMIT])
            .gives(BodyShape::list::<muster_api::Alert>()),
        Route::new(Get, "/v1/alerts/history", "Active and past alerts, those that began last first.", get(h::history))
            .query(&[HOST, SELECT_HOSTS, RULE, SORT, LIMIT])
            .gives(BodyShape::list::<muster_api::Alert>()),
        Route::new(Get, "/v1/alert-rules", "The console's rules for alerts, those for all hosts first.", get(h::rules))
            .gives(BodyShape::list::<muster_api::AlertRule>()),
        Route::new(Post, "/v1/alert-rules", "Sets a rule, for one host or for all.", post(h::set_rule))
            .takes(BodyShape::of::<muster_api::NewAlertRule>())
            .gives(BodyShape::of::<muster_api::AlertRule>()),
        Route::new(
            Delete,
            "/v1/alert-rules/{rule}",
            "Removes a rule: the hosts' built-in rule of this name applies again.",
            delete(h::remove_rule),
        )
        .query(&[HOST]),
        Route::new(Get, "/v1/alert-silences", "Silences that are not over.", get(h::silences))
            .gives(BodyShape::list::<muster_api::AlertSilence>()),
        Route::new(
            Post,
            "/v1/alert-silences",
            "Creates a silence: alerts are sent to nobody for some time.",
            post(h::create_silence),
        )
        .takes(BodyShape::of::<muster_api::NewAlertSilence>())
        .gives(BodyShape::of::<muster_api::AlertSilence>()),
        Route::new(Delete, "/v1/alert-silences/{id}", "Removes a silence.", delete(h::remove_silence)),
    ]
}

async fn unknown_path() -> Error {
    Error::not_found("unknown_path", "unknown path of the API").hint("GET /api/openapi.json describes it")
}

/// Returns the routes at and below `/api`.
pub(super) fn router(console: Console) -> Router {
    let authenticated = middleware::from_fn_with_state(console.clone(), authenticate);
    let mut router = Router::new();
    for route in routes() {
        let handler = if route.open { route.handler } else { route.handler.route_layer(authenticated.clone()) };
        router = router.route(route.path, handler);
    }
    let router = router
        .fallback(unknown_path)
        .method_not_allowed_fallback(async || {
            Error::new(StatusCode::METHOD_NOT_ALLOWED, "wrong_method", "this path does not support the method")
                .hint("GET /api/openapi.json describes it")
        })
        .layer(middleware::map_response(not_stored))
        .layer(middleware::from_fn_with_state(console.clone(), with_notice))
        .with_state(console);
    // Nesting does not cover this one path.
    Router::new().nest("/api", router).route("/api/", any(unknown_path))
}

/// Adds the problems of the console to every response.
async fn with_notice(State(console): State<Console>, request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    if let Some(text) = console.shared.notices.header() {
        response.headers_mut().insert(notice::HEADER, text);
    }
    response
}

/// The authenticated operator: an extension of each request whose route is not public.
#[derive(Clone, Debug)]
struct Requester(Name);

/// Authenticates a request. The token is looked up by its hash, so timing reveals nothing.
async fn authenticate(State(console): State<Console>, mut request: Request, next: Next) -> Response {
    let given = request.headers().get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let token =
        given.and_then(|value| value.split_once(' ')).filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"));
    let asker = match token {
        None => Err(Error::unauthorised("no_token", "this needs `Authorization: Bearer …`")
            .hint("`muster login` gets a token for the command line")),
        Some((_, token)) => match console.bearer(token.trim()).await {
            Ok(Some(asker)) => Ok(asker),
            Ok(None) => {
                Err(Error::unauthorised("bad_token", "the token is unknown").hint("`muster login` gets a new one"))
            }
            Err(error) => Err(error),
        },
    };
    match asker {
        Ok(asker) => {
            CallerConnection::has_logged_in(request.extensions());
            request.extensions_mut().insert(Requester(asker));
            next.run(request).await
        }
        Err(error) => error.into_response(),
    }
}

/// Marks responses as not cacheable, because they describe the present.
async fn not_stored(mut response: Response) -> Response {
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

type AskedBy = Extension<Requester>;

#[cfg(test)]
mod tests;

use route::{Method, Route};
