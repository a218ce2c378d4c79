//! Who asked for a command, or for a unit of a document. Hosts read the operator; role and approval are reserved, and constant
//! until there are operators with roles.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::name::Name;

/// Who asked for something, as the console has authorised it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Asker {
    /// The operator.
    pub operator: Name,
    /// The role by which the operator may ask for it; as yet every operator is [`Name::admin`].
    pub role: Name,
    /// The approval of it, if it needed one; as yet nothing does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approval: Option<Uuid>,
}

impl Asker {
    /// Returns an operator who may do everything, and needs no approval.
    #[must_use]
    pub fn admin(operator: Name) -> Self {
        Self { operator, role: Name::admin(), approval: None }
    }
}
