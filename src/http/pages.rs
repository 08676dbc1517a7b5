//! What is answered: probes and metrics.

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::{Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use longshore_backbone::wire::api::ApiError;
use serde_json::json;
use tokio::sync::Semaphore;

use super::Node;
use super::problem::problem;

/// The media type of the metrics: the text format of Prometheus.
const METRICS: &str = "text/plain; version=0.0.4; charset=utf-8";
const PLAIN: &str = "text/plain; charset=utf-8";
const JSON: &str = "application/json; charset=utf-8";

#[derive(Clone)]
struct Shown {
    node: Node,
    /// One at a time writes the metrics, so that many scrapers cost no more processor time than one.
    scrapes: Arc<Semaphore>,
}

/// The probes, and what is answered at no route.
pub(super) fn router(node: Node) -> Router {
    Router::new().route("/healthz", get(alive)).route("/readyz", get(ready)).fallback(unknown).with_state(node)
}

pub(super) fn metrics_router(node: Node) -> Router {
    let shown = Shown { node, scrapes: Arc::new(Semaphore::new(1)) };
    Router::new().route("/metrics", get(metrics)).with_state(shown)
}

fn page(status: StatusCode, media_type: &'static str, body: String) -> Response {
    // Intermediaries must not keep what is true only now.
    (status, [(header::CONTENT_TYPE, media_type), (header::CACHE_CONTROL, "no-store")], body).into_response()
}

/// An answer at all says that the process can work: its threads run; and the node's supervisors answer. What it lacks
/// from outside is not its own fault, and another start would not bring it.
async fn alive(State(node): State<Node>) -> Response {
    if let Some(node) = node.get()
        && let Some(reason) = node.reason_not_alive().await
    {
        return page(StatusCode::SERVICE_UNAVAILABLE, PLAIN, format!("{reason}\n"));
    }
    page(StatusCode::OK, PLAIN, "ok\n".to_owned())
}

async fn ready(State(node): State<Node>) -> Response {
    let (reasons, warnings) = match node.get() {
        Some(node) => node.reasons_and_warnings().await,
        None => (vec!["starting".to_owned()], Vec::new()),
    };
    let status = if reasons.is_empty() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    page(status, JSON, json!({"ready": reasons.is_empty(), "reasons": reasons, "warnings": warnings}).to_string())
}

async fn metrics(State(shown): State<Shown>) -> Response {
    let Some(node) = shown.node.get() else {
        return page(StatusCode::SERVICE_UNAVAILABLE, PLAIN, "the node is starting\n".to_owned());
    };
    let _permit = shown.scrapes.acquire().await;
    page(StatusCode::OK, METRICS, node.metrics().await)
}

async fn unknown(method: Method, uri: Uri) -> Response {
    // `OPTIONS *` is about the server as a whole.
    if method == Method::OPTIONS && uri.path() == "*" {
        return StatusCode::NO_CONTENT.into_response();
    }
    if uri.path().starts_with("/v1") {
        return problem(ApiError::not_found(format!("there is no {}; docs/contract.md lists the routes", uri.path())));
    }
    page(
        StatusCode::NOT_FOUND,
        PLAIN,
        "there are the dashboard at /, /healthz, /readyz, /metrics and the API under /v1\n".to_owned(),
    )
}
