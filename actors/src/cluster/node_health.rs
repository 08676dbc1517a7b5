//! A node's health, with the tenant that each of its warnings names: who asks as a tenant reads nothing of another.

use longshore_backbone::wire::api::{HealthStatus, OPERATOR};
use serde::{Deserialize, Serialize};

/// What a node says of itself, for all who may ask.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct NodeHealth {
    /// With all warnings.
    #[serde(flatten)]
    pub(crate) status: HealthStatus,
    /// The same warnings. Nodes of older versions do not say whom theirs name: so no tenant reads them.
    #[serde(default)]
    warnings_of: Vec<Warning>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Warning {
    pub(crate) text: String,
    /// Whom it names; `_all`: it is for operators alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) tenant: Option<String>,
}

impl From<String> for Warning {
    fn from(text: String) -> Self {
        Self { text, tenant: None }
    }
}

impl NodeHealth {
    pub(crate) fn new(mut status: HealthStatus, warnings_of: Vec<Warning>) -> Self {
        status.warnings = warnings_of.iter().map(|warning| warning.text.clone()).collect();
        Self { status, warnings_of }
    }

    /// What this asker may read of it.
    pub(crate) fn shown_to(self, asker: &str) -> HealthStatus {
        if asker == OPERATOR {
            return self.status;
        }
        let shown = self.warnings_of.into_iter().filter(|of| of.tenant.as_deref().is_none_or(|tenant| tenant == asker));
        let warnings = shown.map(|warning| warning.text).collect();
        // Handlers of other tenants are none of a tenant's business.
        HealthStatus { warnings, handlers: None, parts: Vec::new(), ..self.status }
    }

    /// What everybody may read of it.
    pub(crate) fn shown_to_all(self) -> HealthStatus {
        let all = self.warnings_of.len();
        // No tenant is called so.
        let mut status = self.shown_to("");
        let left_out = all - status.warnings.len();
        if left_out > 0 {
            status.warnings.push(format!("warnings that only health has, as they name tenants: {left_out}"));
        }
        status
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn status() -> HealthStatus {
        let status = json!({"live": true, "node": "n", "queues": [], "ready": true, "reasons": [], "version": "1",
            "warnings": ["of an older node"], "parts": [{"part": "api", "restarts": 0, "per_queue": false}]});
        serde_json::from_value(status).unwrap()
    }

    #[test]
    fn a_tenant_reads_no_warning_that_names_another() {
        let of = |text: &str, tenant: &str| Warning { text: text.to_owned(), tenant: Some(tenant.to_owned()) };
        let warnings = vec![Warning::from("slow".to_owned()), of("a", "acme"), of("b", "beta"), of("all", OPERATOR)];
        // As another node answers it.
        let said = serde_json::to_vec(&NodeHealth::new(status(), warnings)).unwrap();
        let health: NodeHealth = serde_json::from_slice(&said).unwrap();
        let shown = |asker| health.clone().shown_to(asker);
        assert_eq!(shown(OPERATOR).warnings, ["slow", "a", "b", "all"]);
        assert_eq!(shown("acme").warnings, ["slow", "a"]);
        assert!(shown("acme").parts.is_empty() && !shown(OPERATOR).parts.is_empty());
        let to_all = health.shown_to_all().warnings;
        assert_eq!(to_all, ["slow", "warnings that only health has, as they name tenants: 3"]);
    }

    #[test]
    fn nobody_knows_whom_the_warnings_of_an_older_node_name() {
        let health: NodeHealth = serde_json::from_slice(&serde_json::to_vec(&status()).unwrap()).unwrap();
        assert_eq!(health.clone().shown_to(OPERATOR).warnings, ["of an older node"]);
        assert!(health.shown_to("acme").warnings.is_empty());
    }
}
