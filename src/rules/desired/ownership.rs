//! Ownership: a unit of a deployment is changed by that deployment alone.
//!
//! What an operator does with a unit for a while (hold, restart, freeze, signals) and questions are for everybody.

use muster_topics::{command::Verb, desired::UnitOwner, diagnostic::Diagnostic, name::UnitName, outcome::RefusalCode};

use crate::CommandRefusal;

/// What a verb does to a unit of a deployment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OwnedVerdict {
    /// It does what it always does.
    Allowed,
    /// The unit goes, before the host's own policy lets it go.
    Removed,
    /// The unit belongs to no deployment any more.
    Detached,
    /// It is refused.
    Refused(CommandRefusal),
}

/// Decides what a verb does to a unit of this owner; `is_leaving` if the unit is to go.
#[must_use]
pub fn verdict(unit: &UnitName, owner: &UnitOwner, is_leaving: bool, verb: &Verb) -> OwnedVerdict {
    match verb {
        Verb::UnitDetach { .. } => OwnedVerdict::Detached,
        other if other.of_units().is_some_and(|row| row.beside_deployment) => OwnedVerdict::Allowed,
        Verb::UnitRm { .. } if is_leaving || owner.orphan => OwnedVerdict::Removed,
        _ => OwnedVerdict::Refused(belongs_to(unit, owner)),
    }
}

fn belongs_to(unit: &UnitName, owner: &UnitOwner) -> CommandRefusal {
    let deployment = &owner.deployment;
    CommandRefusal::new(
        RefusalCode::Conflict,
        Diagnostic::new(format_args!("{unit} belongs to the deployment {deployment}, which changes it")).with_hint(
            format_args!(
                "`muster deployment apply` changes the deployment; `muster unit detach {unit}` detaches the unit from it"
            ),
        ),
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn verb(name: &str) -> Verb {
        serde_json::from_value(json!({ name: {"unit": "shop/till"} })).unwrap()
    }

    #[test]
    fn verbs_change_no_unit_of_a_deployment() {
        let unit = "shop/till".parse().unwrap();
        let mut owner = UnitOwner { deployment: "shop/tills".parse().unwrap(), version: 2, orphan: false };
        let check = |owner: &UnitOwner, is_leaving, name: &str| verdict(&unit, owner, is_leaving, &verb(name));
        for name in ["unit_run", "unit_stop", "unit_retire", "unit_play", "unit_pause", "unit_rm"] {
            let OwnedVerdict::Refused(refusal) = check(&owner, false, name) else { panic!("{name}") };
            let told = &refusal.diagnostic;
            assert!(told.cause.contains("shop/tills") && told.hint.is_some(), "{told}");
        }
        for name in ["unit_hold", "unit_unhold", "unit_restart", "unit_freeze", "unit_thaw"] {
            assert_eq!(check(&owner, false, name), OwnedVerdict::Allowed, "{name}");
        }
        assert_eq!(check(&owner, false, "unit_detach"), OwnedVerdict::Detached);
        assert_eq!(check(&owner, true, "unit_rm"), OwnedVerdict::Removed);
        assert!(matches!(check(&owner, true, "unit_stop"), OwnedVerdict::Refused(_)));
        owner.orphan = true;
        assert_eq!(check(&owner, false, "unit_rm"), OwnedVerdict::Removed);
    }
}
