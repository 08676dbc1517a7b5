//! The base path: what the paths of a proxy's clients begin with, whether or not the proxy takes it away.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{StatusCode, Uri, header, uri};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse as _, Response};
use axum::{Router, http};

/// `router`, which knows nothing of the base path, under it as well.
pub(super) fn under(base: &str, router: Router) -> Router {
    if base.is_empty() {
        return router;
    }
    // Before any route is looked for: what stands within the fallback sees the path that is left.
    Router::new().fallback_service(router).layer(middleware::from_fn_with_state(Arc::<str>::from(base), take_away))
}

async fn take_away(State(base): State<Arc<str>>, mut request: Request, next: Next) -> Response {
    match request.uri().path().strip_prefix(&*base) {
        // Relative links of the page begin behind the slash.
        Some("") => return (StatusCode::PERMANENT_REDIRECT, [(header::LOCATION, format!("{base}/"))]).into_response(),
        Some(rest) if rest.starts_with('/') => match without(request.uri(), &base) {
            Ok(uri) => *request.uri_mut() = uri,
            Err(_) => return StatusCode::BAD_REQUEST.into_response(),
        },
        _ => {}
    }
    next.run(request).await
}

fn without(uri: &Uri, base: &str) -> Result<Uri, http::Error> {
    let whole = uri.path_and_query().map_or("", uri::PathAndQuery::as_str);
    let mut parts = uri.clone().into_parts();
    parts.path_and_query = Some(whole.strip_prefix(base).unwrap_or(whole).parse()?);
    Ok(Uri::from_parts(parts)?)
}
