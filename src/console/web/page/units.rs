//! The page of the units of all hosts.

use axum::{extract::State, http::StatusCode, response::Response};
use muster_topics::{select::SelectError, unit::Phase};
use serde::Deserialize;

use crate::{
    error::Error,
    state::Console,
    store::unit_list::{UnitFilter, UnitPage},
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
    #[serde(default)]
    phase: String,
    page: Option<String>,
    part: Option<String>,
}

impl UnitsPageQuery {
    /// Returns the filter as it was typed.
    fn shown(&self) -> ShownUnits {
        ShownUnits {
            select: self.select.trim().to_owned(),
            deployment: self.deployment.trim().to_owned(),
            version: self.version.trim().parse().ok(),
            phase: phase(&self.phase),
            page: self.page.as_deref().and_then(|page| page.parse().ok()).unwrap_or(1).max(1),
        }
    }
}

fn phase(word: &str) -> Option<Phase> {
    serde_json::from_value(word.into()).ok()
}

/// Returns the filter that was typed.
fn filter(shown: &ShownUnits) -> Result<UnitFilter, Error> {
    let parsed = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    let select = parsed(&shown.select).map(|text| text.parse()).transpose();
    let select = select.map_err(|error: SelectError| {
        Error::invalid("bad_query", format!("the selector: {error}")).hint("such as realm=shop and phase=failed")
    })?;
    let deployment = parsed(&shown.deployment).map(|text| text.parse()).transpose();
    let deployment = deployment.map_err(|error| Error::invalid("bad_query", format!("{error}")))?;
    Ok(UnitFilter { select, deployment, version: shown.version, phase: shown.phase })
}

/// The page.
pub(in crate::web) async fn show(
    State(console): State<Console>,
    session: WebSession,
    PageParams(asked): PageParams<UnitsPageQuery>,
) -> Response {
    let shown = asked.shown();
    let filter = match filter(&shown) {
        Ok(filter) => filter,
        Err(error) => {
            let status = StatusCode::from_u16(error.status).unwrap_or(StatusCode::BAD_REQUEST);
            let view = UnitsView { shown, found: UnitPage::default(), problem: Some(error.problem) };
            return answer::html(status, session.frame().page(&view));
        }
    };
    let view = async {
        let offset = (shown.page - 1).saturating_mul(u64::from(PAGE_UNITS));
        let found = console.units_page(&filter, offset, PAGE_UNITS).await?;
        Ok(UnitsView { shown, found, problem: None })
    };
    answer::or_problem(&session, view.await.map(|view| answer::page(&session, &view, asked.part.as_deref())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn typed_filter_is_checked() {
        let shown = |deployment: &str, select: &str| ShownUnits {
            deployment: deployment.to_owned(),
            select: select.to_owned(),
            ..ShownUnits::default()
        };
        let found = filter(&shown("shop/till", "realm=shop")).unwrap();
        assert!(found.deployment.is_some() && found.select.is_some());
        assert!(filter(&shown("", "")).unwrap().deployment.is_none());
        assert!(filter(&shown("till", "")).is_err());
        assert!(filter(&shown("", "phase=")).unwrap_err().problem.diagnostic.cause.contains("selector"));
        assert_eq!((phase("failed"), phase("fails"), phase("")), (Some(Phase::Failed), None, None));
    }
}
