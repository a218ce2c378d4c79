//! The pages of deployments.

use axum::{extract::State, response::Response};
use muster_api::{ChangeListing, CompareVersions, DeploymentState, NewTarget, RemoveDeployment, RollBack, UnitOnHosts};
use muster_topics::{
    desired::DeploymentName,
    name::{Name, UnitName},
};
use serde::Deserialize;

use super::RegionQuery;
use crate::{
    error::Error,
    state::Console,
    web::{
        answer,
        extract::{PageParams, PageSegments},
        guard::FormFields,
        session::WebSession,
        view::{
            changes::{CHANGES, ChangesView},
            deployment::{DeploymentView, RemovalView, RollbackView, ShownDeploymentHosts, VersionView, url},
            deployments::DeploymentsView,
        },
    },
};

/// The name of a deployment, by the parts of a path.
pub(super) fn named(realm: &Name, name: &Name) -> Result<DeploymentName, Error> {
    let text = UnitName::new(realm, name).to_string();
    text.parse().map_err(|error| Error::not_found("bad_path", format!("{error}")))
}

/// All deployments.
pub(in crate::web) async fn list(
    State(console): State<Console>,
    session: WebSession,
    PageParams(asked): PageParams<RegionQuery>,
) -> Response {
    let view = async {
        let (deployments, cordoned) = (console.deployments().await?, console.host_cordons().await?);
        Ok(DeploymentsView { deployments, unconfirmed: console.unconfirmed_hosts(), cordoned })
    };
    answer::or_problem(&session, view.await.map(|view| answer::page(&session, &view, asked.part.as_deref())))
}

/// What was changed last.
pub(in crate::web) async fn changes(State(console): State<Console>, session: WebSession) -> Response {
    let wanted = ChangeListing { subject: None, limit: Some(CHANGES) };
    let view = console.recent_changes(&wanted).await.map(|changes| ChangesView { changes });
    answer::or_problem(&session, view.map(|view| answer::page(&session, &view, None)))
}

/// The filter of hosts.
#[derive(Debug, Deserialize)]
pub(in crate::web) struct DeploymentPageQuery {
    state: Option<String>,
    page: Option<String>,
    part: Option<String>,
}

impl DeploymentPageQuery {
    /// Returns the valid parts of a query.
    fn shown(&self) -> ShownDeploymentHosts {
        let state = self.state.as_deref();
        ShownDeploymentHosts {
            state: DeploymentState::ALL.into_iter().find(|known| Some(known.word()) == state),
            page: self.page.as_deref().and_then(|page| page.parse().ok()).unwrap_or(1).max(1),
        }
    }
}

/// One deployment.
pub(in crate::web) async fn show(
    State(console): State<Console>,
    session: WebSession,
    PageSegments((realm, name)): PageSegments<(Name, Name)>,
    PageParams(asked): PageParams<DeploymentPageQuery>,
) -> Response {
    let view = async {
        let name = named(&realm, &name)?;
        let versions = console.deployment_history(&name).await?;
        let rollout = console.present_rollout(&name);
        let plan = console.last_plan(&name);
        let detail = console.deployment(&name).await?;
        Ok(DeploymentView { detail, versions, rollout, plan, shown: asked.shown() })
    };
    answer::or_problem(&session, view.await.map(|view| answer::page(&session, &view, asked.part.as_deref())))
}

/// One version.
pub(in crate::web) async fn version(
    State(console): State<Console>,
    session: WebSession,
    PageSegments((realm, name, number)): PageSegments<(Name, Name, u32)>,
) -> Response {
    let view = async {
        let deployment = named(&realm, &name)?;
        let version = console.deployment_version(&deployment, number).await?;
        let compared = CompareVersions { from: None, to: Some(number) };
        let differences = console.deployment_differences(&deployment, &compared).await?;
        let present = console.deployment_history(&deployment).await?.first().map_or(number, |newest| newest.number);
        Ok(VersionView { deployment, version, differences, present })
    };
    answer::or_problem(&session, view.await.map(|view| answer::page(&session, &view, None)))
}

/// The version to go back to.
#[derive(Debug, Deserialize)]
pub(in crate::web) struct RollbackQuery {
    to: Option<u32>,
}

/// Shows what a rollback would change.
pub(in crate::web) async fn ask_rollback(
    State(console): State<Console>,
    session: WebSession,
    PageSegments((realm, name)): PageSegments<(Name, Name)>,
    PageParams(asked): PageParams<RollbackQuery>,
) -> Response {
    let view = async {
        let deployment = named(&realm, &name)?;
        let versions = console.deployment_history(&deployment).await?;
        let wanted = RollBack { to: asked.to, dry_run: true };
        let planned = console.roll_back_deployment(&session.operator, &deployment, wanted).await?;
        let before = versions.get(1).map_or(1, |version| version.number);
        Ok(RollbackView { deployment, versions, to: asked.to.unwrap_or(before), planned })
    };
    answer::or_problem(&session, view.await.map(|view| answer::page(&session, &view, None)))
}

/// Goes back to an earlier version, if the deployment has not changed since that was shown.
pub(in crate::web) async fn roll_back(
    State(console): State<Console>,
    session: WebSession,
    PageSegments((realm, name)): PageSegments<(Name, Name)>,
    fields: FormFields,
) -> Response {
    let answer = async {
        let deployment = named(&realm, &name)?;
        let to = fields.one("to").parse().map_err(|_| {
            Error::invalid("bad_query", "the version to go back to is not a number").hint("load the page again")
        })?;
        let wanted = |dry_run| RollBack { to: Some(to), dry_run };
        let planned = console.roll_back_deployment(&session.operator, &deployment, wanted(true)).await?;
        if planned.version.to_string() != fields.one("version") {
            let message = "the deployment has changed since the page was loaded";
            return Err(Error::conflict("changed_meanwhile", message).hint("load the page again"));
        }
        console.roll_back_deployment(&session.operator, &deployment, wanted(false)).await?;
        Ok(answer::see(&url(&deployment)))
    };
    answer::or_problem(&session, answer.await)
}

/// Shows what a removal would remove.
pub(in crate::web) async fn ask_removal(
    State(console): State<Console>,
    session: WebSession,
    PageSegments((realm, name)): PageSegments<(Name, Name)>,
) -> Response {
    let view = async {
        let wanted = RemoveDeployment { dry_run: true, ..RemoveDeployment::default() };
        let planned = console.remove_deployment(&session.operator, &named(&realm, &name)?, wanted).await?;
        Ok(RemovalView { planned })
    };
    answer::or_problem(&session, view.await.map(|view| answer::page(&session, &view, None)))
}

/// Removes a deployment.
pub(in crate::web) async fn remove(
    State(console): State<Console>,
    session: WebSession,
    PageSegments((realm, name)): PageSegments<(Name, Name)>,
    fields: FormFields,
) -> Response {
    let answer = async {
        let units = fields.one("units");
        let wanted = RemoveDeployment { purge: units == "purge", keep: units == "keep", dry_run: false };
        console.remove_deployment(&session.operator, &named(&realm, &name)?, wanted).await?;
        Ok(answer::see("/deployments"))
    };
    answer::or_problem(&session, answer.await)
}

/// Has the deployment adopt a unit on some hosts, or detaches it there.
pub(in crate::web) async fn attach(
    State(console): State<Console>,
    session: WebSession,
    PageSegments((realm, name)): PageSegments<(Name, Name)>,
    fields: FormFields,
) -> Response {
    let answer = async {
        let deployment = named(&realm, &name)?;
        let attach = match fields.one("do") {
            "adopt" => true,
            "detach" => false,
            _ => return Err(Error::invalid("bad_query", "a unit is adopted or detached").hint("load the page again")),
        };
        let unit = fields.one("unit").parse().map_err(|error| Error::invalid("bad_query", format!("{error}")))?;
        let wanted = UnitOnHosts { unit, target: target(&fields)? };
        console.set_unit_attached(&session.operator, &deployment, wanted, attach).await?;
        Ok(answer::see(&url(&deployment)))
    };
    answer::or_problem(&session, answer.await)
}

/// Returns the hosts of a form: by name, or by selector.
fn target(fields: &FormFields) -> Result<NewTarget, Error> {
    let hosts: Vec<String> =
        fields.one("hosts").split([' ', ',']).filter(|host| !host.is_empty()).map(str::to_owned).collect();
    match (hosts.is_empty(), fields.one("select")) {
        (false, "") => Ok(NewTarget::Hosts(hosts)),
        (true, "") => Err(Error::invalid("no_hosts", "no host is named").hint("name hosts, or give a selector")),
        (false, _) => Err(Error::invalid("bad_query", "hosts are named or selected, not both")),
        (true, select) => select.parse().map(NewTarget::Select).map_err(|error| {
            Error::invalid("bad_query", format!("the selector: {error}")).hint("such as label.site=north")
        }),
    }
}
