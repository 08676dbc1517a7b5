//! How much a tenant with a rate limit may submit yet, said with each answer of the API.

use axum::extract::{Request, State};
use axum::http::HeaderValue;
use axum::middleware::Next;
use axum::response::Response;
use longshore_actors::TenantRate;
use longshore_domain::Tenant;

use super::request::Query;
use super::{Gateway, asker};

/// Sets the headers of the draft `draft-ietf-httpapi-ratelimit-headers`. Who may not ask for a tenant reads nothing of
/// its limit.
pub(super) async fn with_rate(State(gateway): State<Gateway>, request: Request, next: Next) -> Response {
    let (parts, body) = request.into_parts();
    let tenant = asker(&parts).ok().and_then(|asker| {
        let named = Query::read(&parts).ok()?.take("tenant");
        let named = named.as_deref().unwrap_or(asker.tenant());
        asker.must_be(named).ok()?;
        Tenant::parse(named).ok()
    });
    let mut answer = next.run(Request::from_parts(parts, body)).await;
    if let (Some(tenant), Some(node)) = (tenant, gateway.guard.node.get())
        && let Some(TenantRate { quota, window, left, more_in }) = node.api().rate_of(&tenant).await
    {
        for (name, value) in [
            ("ratelimit-policy", format!("\"tenant\";q={quota};w={window}")),
            ("ratelimit", format!("\"tenant\";r={left};t={more_in}")),
        ] {
            if let Ok(value) = HeaderValue::try_from(value) {
                answer.headers_mut().insert(name, value);
            }
        }
    }
    answer
}
