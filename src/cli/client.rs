//! The commands' way to the nodes: connects as told, and asks the API under the chosen tenant.

use std::time::Duration;

use longshore::config::check_namespace;
use longshore_backbone::Client;
use longshore_backbone::wire::api::{ApiError, Code};
use serde_json::Value;

use super::{Global, Usage, exact};

/// How long an answer may take. A node answers within milliseconds; a server that is just electing takes seconds.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

/// The tenant of jobs whose own could not be read.
const UNREADABLE: &str = "_";

/// A connection, and whose jobs it is about.
pub(crate) struct Api {
    pub(crate) client: Client,
    tenant: String,
}

impl Api {
    pub(crate) async fn connect(global: &Global) -> anyhow::Result<Self> {
        let namespace = global.namespace();
        check_namespace(&namespace).map_err(|reason| Usage(format!("the namespace cannot be one: {reason}")))?;
        let client = Client::connect(&global.nats.connection()?, &namespace).await?;
        Ok(Self { client, tenant: global.tenant.clone() })
    }

    pub(crate) async fn ask(&self, endpoint: &str, body: Value) -> Result<Value, ApiError> {
        self.ask_patiently(endpoint, body, Duration::ZERO).await
    }

    /// For an endpoint that itself takes up to `more` before it answers.
    pub(crate) async fn ask_patiently(&self, endpoint: &str, body: Value, more: Duration) -> Result<Value, ApiError> {
        self.request(&self.tenant, endpoint, &body, ANSWER_WITHIN + more).await
    }

    /// What only exists for the whole cluster, whatever tenant was chosen.
    pub(crate) async fn ask_cluster(&self, endpoint: &str, body: Value) -> Result<Value, ApiError> {
        self.request("_all", endpoint, &body, ANSWER_WITHIN).await
    }

    async fn request(&self, tenant: &str, endpoint: &str, body: &Value, within: Duration) -> Result<Value, ApiError> {
        let mut body = body.clone();
        let tenant = match (tenant, body.as_object_mut()) {
            // Jobs whose tenant could not be read are the operator's to look after.
            (UNREADABLE, Some(fields)) => {
                fields.insert("tenant".to_owned(), Value::from(UNREADABLE));
                "_all"
            }
            _ => tenant,
        };
        let answer = self.client.request(tenant, endpoint, exact::write(&body), within).await?;
        exact::read(&answer).map_err(|error| ApiError::new(Code::Internal, format!("the answer is not JSON: {error}")))
    }
}
