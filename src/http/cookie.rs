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

/// Which page asks, as browsers say it.
pub(super) enum FromPage {
    Own,
    /// By this header.
    Foreign(&'static str),
    /// A client that is no browser says nothing.
    Unknown,
}

/// Over plain HTTP a browser names the origin alone, except to loopback addresses.
pub(super) fn from_page(headers: &HeaderMap) -> FromPage {
    let read = |name| headers.get(name).map(HeaderValue::as_bytes);
    // The scheme is that of the proxy, if there is one.
    let is_own = |origin: &[u8]| {
        let host = origin.strip_prefix(b"https://").or_else(|| origin.strip_prefix(b"http://"));
        host.is_some() && host == read("host")
    };
    match (read("sec-fetch-site"), read("origin")) {
        (Some(b"same-origin" | b"none"), _) => FromPage::Own,
        (Some(_), _) => FromPage::Foreign("Sec-Fetch-Site"),
        (None, Some(origin)) if is_own(origin) => FromPage::Own,
        (None, Some(_)) => FromPage::Foreign("Origin"),
        (None, None) => FromPage::Unknown,
    }
}

/// A request that changes something and brings a cookie must say that the own page asks: browsers do.
pub(super) fn changes_from_own_page(method: &Method, headers: &HeaderMap) -> Result<(), ApiError> {
    if matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS) {
        return Ok(());
    }
    let by = match from_page(headers) {
        FromPage::Own => return Ok(()),
        FromPage::Foreign(by) => by,
        FromPage::Unknown => "Sec-Fetch-Site",
    };
    Err(ApiError::new(Code::Forbidden, format!("{by}: a session changes something from its own page alone")))
}
