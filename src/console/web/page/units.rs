//! The page of the units of all hosts.

use axum::{extract::State, http::StatusCode, response::Response};
use muster_api::{Unit, UnitListing};
use muster_topics::{
    desired::DeploymentName,
    select::{Select, SelectError},
};
use serde::Deserialize;

use crate::{
    error::Error,
    state::Console,
    web::{
        answer,
        extract::PageParams,
        session::WebSession,
        view::units::{PAGE_UNITS, ShownUnits, UnitsView},
    },
};

/// The filter of units.
#[derive(Debug, Deserialize)]
pub(in crate::web) struct UnitsPageQuery {
    #[serde(default)]
    select: String,
    #[serde(default)]
    deployment: String,
    #[serde(default)]
    version: String,
    page: Option<String>,
}

/// What units have to be.
#[derive(Debug, Default)]
struct UnitFilter {
    select: Option<Select>,
    deployment: Option<DeploymentName>,
    version: Option<u32>,
}

impl UnitsPageQuery {
    /// Returns the filter as it was typed.
    fn shown(&self) -> ShownUnits {
        ShownUnits {
            select: self.select.trim().to_owned(),
            deployment: self.deployment.trim().to_owned(),
            version: self.version.trim().parse().ok(),
            page: self.page.as_deref().and_then(|page| page.parse().ok()).unwrap_or(1).max(1),
        }
    }
}

impl UnitFilter {
    fn of(shown: &ShownUnits) -> Result<Self, Error> {
        let parsed = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        let select = parsed(&shown.select).map(|text| text.parse()).transpose();
        let select = select.map_err(|error: SelectError| {
            Error::invalid("bad_query", format!("the selector: {error}")).hint("such as realm=shop and phase=failed")
        })?;
        let deployment = parsed(&shown.deployment).map(|text| text.parse()).transpose();
        let deployment = deployment.map_err(|error| Error::invalid("bad_query", format!("{error}")))?;
        Ok(Self { select, deployment, version: shown.version })
    }

    fn picks(&self, unit: &Unit) -> bool {
        let owner = unit.owner.as_ref();
        let is = |wanted: &DeploymentName| owner.is_some_and(|owner| owner.deployment == *wanted);
        let has = |number: u32| owner.is_some_and(|owner| owner.version == number);
        self.deployment.as_ref().is_none_or(is) && self.version.is_none_or(has)
    }
}

/// The page.
pub(in crate::web) async fn show(
    State(console): State<Console>,
    session: WebSession,
    PageParams(asked): PageParams<UnitsPageQuery>,
) -> Response {
    let shown = asked.shown();
    let filter = match UnitFilter::of(&shown) {
        Ok(filter) => filter,
        Err(error) => {
            let status = StatusCode::from_u16(error.status).unwrap_or(StatusCode::BAD_REQUEST);
            let view = UnitsView { shown, units: Vec::new(), found: 0, problem: Some(error.problem) };
            return answer::html(status, session.frame().page(&view));
        }
    };
    let view = async {
        let listing = UnitListing { select: filter.select.clone(), ..UnitListing::default() };
        let mut units = console.units_listed(&listing).await?;
        units.retain(|unit| filter.picks(unit));
        let (found, first) = (units.len(), (shown.page - 1).saturating_mul(PAGE_UNITS));
        let units = units.into_iter().skip(first).take(PAGE_UNITS).collect();
        Ok(UnitsView { shown, units, found, problem: None })
    };
    answer::or_problem(&session, view.await.map(|view| answer::page(&session, &view, None)))
}

#[cfg(test)]
mod tests {
    use muster_topics::desired::UnitOwner;

    use super::*;

    #[test]
    fn units_are_filtered_by_deployment_and_version() {
        let mut unit = crate::web::sample_unit();
        let shown = |deployment: &str, version| ShownUnits {
            deployment: deployment.to_owned(),
            version,
            ..ShownUnits::default()
        };
        let picks =
            |unit: &Unit, deployment: &str, version| UnitFilter::of(&shown(deployment, version)).unwrap().picks(unit);
        assert!(picks(&unit, "", None) && !picks(&unit, "shop/till", None) && !picks(&unit, "", Some(1)));
        unit.owner = Some(UnitOwner { deployment: "shop/till".parse().unwrap(), version: 2, orphan: false });
        for (deployment, version, wanted) in [
            ("", None, true),
            ("shop/till", None, true),
            ("shop/till", Some(2), true),
            ("shop/till", Some(1), false),
            ("shop/x", None, false),
        ] {
            assert_eq!(picks(&unit, deployment, version), wanted, "{deployment} {version:?}");
        }
        assert!(UnitFilter::of(&shown("till", None)).is_err());
        let wrong = ShownUnits { select: "phase=".to_owned(), ..ShownUnits::default() };
        assert!(UnitFilter::of(&wrong).unwrap_err().problem.diagnostic.cause.contains("selector"));
    }
}
