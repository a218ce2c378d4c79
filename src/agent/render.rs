//! Renders templates for whoever asks, and changes nothing.

use std::collections::BTreeMap;

use muster_rules::{
    CommandRefusal,
    port_lease::EndpointWiring,
    render::{self, RenderValues, render},
};
use muster_session::unit_state::UnitState;
use muster_topics::{
    desired::DeploymentName,
    diagnostic::Diagnostic,
    effective::RenderedTexts,
    name::UnitName,
    outcome::RefusalCode,
    unit::{MASK, Spec},
};

use super::store::{Store, StoreError, document, owner};

/// Templates to render.
pub(super) struct RenderRequest {
    pub(super) unit: Option<UnitName>,
    pub(super) deployment: Option<DeploymentName>,
    pub(super) templates: BTreeMap<String, String>,
    pub(super) wiring: EndpointWiring,
    /// The spec that the unit runs as, if it is there.
    pub(super) runs_as: Option<Spec>,
}

/// Returns the endpoints of a unit, as it has them now.
pub(super) fn wiring_of(state: &UnitState) -> EndpointWiring {
    EndpointWiring { endpoints: state.observed.endpoints.clone(), connectors: state.observed.connectors.clone() }
}

impl RenderRequest {
    /// Renders them; the output is a [`RenderedTexts`].
    pub(super) async fn answer(self, store: &Store, host: RenderValues) -> Result<(Vec<u8>, Vec<u8>), CommandRefusal> {
        if let (Some(unit), true) = (&self.unit, self.templates.is_empty()) {
            return told(&RenderedTexts { texts: self.as_it_runs(unit)? });
        }
        let values = self.values(store, host).await.map_err(|error| invalid(Diagnostic::of(&error)))?;
        let mut texts = RenderedTexts::default();
        for (name, template) in &self.templates {
            match render(name, template, &values, &|_| Some(MASK.to_owned())) {
                Ok(text) => drop(texts.texts.insert(name.clone(), text)),
                Err(fault) => return Err(invalid(Diagnostic::of(&fault))),
            }
        }
        told(&texts)
    }

    /// Returns what was rendered of the templates of a unit that is there.
    fn as_it_runs(&self, unit: &UnitName) -> Result<BTreeMap<String, String>, CommandRefusal> {
        let spec = self.runs_as.as_ref().ok_or_else(|| muster_rules::edit::unknown(unit))?;
        render::unit::shown(spec, &self.wiring).map_err(|fault| invalid(Diagnostic::of(&fault)))
    }

    async fn values(&self, store: &Store, host: RenderValues) -> Result<RenderValues, StoreError> {
        let mut tx = store.begin().await?;
        let values = host.with_vars(document::vars(&mut tx).await?).with_endpoints(&self.wiring);
        let Some(unit) = &self.unit else { return Ok(values) };
        let owner = owner::all(&mut tx).await?.remove(unit.as_str());
        let values = values.with_unit(unit);
        Ok(match (owner, &self.deployment) {
            (Some(owner), _) => values.with_deployment(owner.deployment.as_str(), owner.version),
            // What would be its first version.
            (None, Some(deployment)) => values.with_deployment(deployment.as_str(), 1),
            (None, None) => values,
        })
    }
}

fn told(texts: &RenderedTexts) -> Result<(Vec<u8>, Vec<u8>), CommandRefusal> {
    let bytes = serde_json::to_vec(texts).map_err(|error| invalid(Diagnostic::new(error)))?;
    match bytes.len() > super::unit::ANSWER_MAX_BYTES {
        true => Err(invalid(format!("the result has {} bytes, too many for an answer", bytes.len()).into())),
        false => Ok((bytes, Vec::new())),
    }
}

fn invalid(message: Diagnostic) -> CommandRefusal {
    CommandRefusal::new(RefusalCode::Invalid, message)
}
