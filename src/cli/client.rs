//! The commands' way to the nodes: connects as the options say, and asks the API under the chosen tenant.

use std::time::Duration;

use longshore::config::check_namespace;
use longshore_backbone::Client;
use longshore_backbone::wire::api::{ApiError, Encoded, Endpoint, OPERATOR};

use super::{Ended, Global, Usage, output};

/// How long an answer may take. A node answers within milliseconds; servers that elect a leader take seconds.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

/// Who asks, for the audit: the user and the machine, as far as this program can know them.
fn who() -> String {
    let variable = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
    let user = variable("USER").or_else(|| variable("LOGNAME")).unwrap_or_else(|| "somebody".to_owned());
    let machine = rustix::system::uname();
    format!("{user}@{}", machine.nodename().to_string_lossy())
}

/// A connection, and the tenant that the requests are about.
pub(crate) struct Api {
    pub(crate) client: Client,
    tenant: String,
}

impl Api {
    pub(crate) async fn connect(global: &Global) -> anyhow::Result<Self> {
        let namespace = global.namespace();
        check_namespace(&namespace).map_err(|reason| Usage(format!("the namespace cannot be one: {reason}")))?;
        let client = Client::connect(&global.nats.connection()?, &namespace).await?;
        let client = client.asking_as(&who()).because(global.reason.as_deref());
        Ok(Self { client, tenant: global.tenant.clone() })
    }

    pub(crate) async fn ask<E: Endpoint>(&self, request: E::Request) -> Result<Encoded<E::Answer>, ApiError> {
        self.ask_within::<E>(request, Duration::ZERO).await
    }

    /// For an endpoint that itself takes up to `more` before it answers.
    pub(crate) async fn ask_within<E: Endpoint>(
        &self,
        request: E::Request,
        more: Duration,
    ) -> Result<Encoded<E::Answer>, ApiError> {
        // Some endpoints exist for the whole cluster only, whatever tenant was chosen.
        let tenant = if E::DECLARATION.for_operators { OPERATOR } else { &self.tenant };
        self.client.ask::<E>(tenant, &request, ANSWER_WITHIN + more).await
    }

    /// Asks, and prints the answer: as JSON for machines, else as `shown` does.
    pub(crate) async fn show<E: Endpoint>(
        &self,
        request: E::Request,
        json: bool,
        shown: impl FnOnce(E::Answer) -> anyhow::Result<()>,
    ) -> anyhow::Result<Ended> {
        self.show_within::<E>(request, Duration::ZERO, json, shown).await
    }

    /// The same for an endpoint that itself takes up to `more` before it answers.
    pub(crate) async fn show_within<E: Endpoint>(
        &self,
        request: E::Request,
        more: Duration,
        json: bool,
        shown: impl FnOnce(E::Answer) -> anyhow::Result<()>,
    ) -> anyhow::Result<Ended> {
        let answer = self.ask_within::<E>(request, more).await?;
        output::answer(&answer, json, || shown(answer.read()?))
    }

    /// All pages of a list: `asked` is the request for the one at a cursor, `taken` its items and the next cursor.
    pub(crate) async fn all<E: Endpoint, T>(
        &self,
        asked: impl Fn(Option<String>) -> E::Request,
        mut taken: impl FnMut(E::Answer) -> (Vec<T>, Option<String>),
    ) -> Result<Vec<T>, ApiError> {
        let (mut all, mut cursor) = (Vec::new(), None);
        loop {
            let (items, next) = taken(self.ask::<E>(asked(cursor)).await?.read()?);
            all.extend(items);
            if next.is_none() {
                return Ok(all);
            }
            cursor = next;
        }
    }
}
