//! The cookie of a session, as requests bring it.

use axum::http::{HeaderMap, HeaderValue, Method, header};
use longshore_backbone::wire::api::{ApiError, Code};

pub(super) const NAME: &str = "longshore_session";

/// The session that a request brings.
pub(super) fn read(headers: &HeaderMap) -> Option<&str> {
    let cookies = headers.get_all(header::COOKIE).iter().filter_map(|cookies| cookies.to_str().ok());
    let mut pairs = cookies.flat_map(|cookies| cookies.split(';')).filter_map(|cookie| cookie.trim().split_once('='));
    pairs.find(|(name, _)| *name == NAME).map(|(_, session)| session)
}

/// A request that changes something and brings a cookie must say that it comes from the same site: browsers do.
pub(super) fn changes_from_own_page(method: &Method, headers: &HeaderMap) -> Result<(), ApiError> {
    let site = headers.get("sec-fetch-site").map(HeaderValue::as_bytes);
    match site {
        Some(b"same-origin" | b"none") => Ok(()),
        _ if matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS) => Ok(()),
        _ => Err(ApiError::new(Code::Forbidden, "Sec-Fetch-Site: a session changes something from its own page alone")),
    }
}
